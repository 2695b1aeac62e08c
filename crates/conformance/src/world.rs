//! A small internet for cases of the network: the attacker serves it in a network namespace of its own (`--world`), and the worker
//! joins that namespace for the time of the case. So the egress process of a sandbox finds these servers and no others.
//!
//! An ordinary user can't join it. Their cases run without a world: what must be refused is refused all the same.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::bench::Bench;

#[derive(Debug)]
pub(crate) struct World {
    serving: Child,
    said: BufReader<ChildStdout>,
    before: File,
}

impl World {
    /// Makes it, and joins it. `None` if the host doesn't let this user.
    pub(crate) fn enter(bench: &Bench) -> io::Result<Option<Self>> {
        if !bench.is_root {
            return Ok(None);
        }
        let before = File::open("/proc/self/ns/net")?;
        let mut command = Command::new(bench.attacker().join("saggar-attacker"));
        command.arg("--world").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut serving = command.spawn()?;
        let said = serving.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut world = Self { serving, said: BufReader::new(said), before };
        let mut first = String::new();
        world.said.read_line(&mut first)?;
        if first != "ready\n" {
            return Err(io::Error::other("the world can't be made"));
        }
        let inside = File::open(format!("/proc/{}/ns/net", world.serving.id()))?;
        move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Some(world))
    }

    /// Leaves it, and returns what its servers saw: `tcp 203.0.113.10 80`, each once.
    pub(crate) fn leave(mut self) -> io::Result<Vec<String>> {
        self.go_back()?;
        // It ends when its standard input does.
        drop(self.serving.stdin.take());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest)?;
        self.serving.wait()?;
        let mut seen: Vec<String> = rest.lines().map(str::to_owned).collect();
        seen.sort();
        seen.dedup();
        Ok(seen)
    }

    fn go_back(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // After `leave` both have happened already.
        let _ = self.go_back();
        let _ = self.serving.kill(); // As above.
        let _ = self.serving.wait(); // As above.
    }
}
