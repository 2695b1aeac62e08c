//! A sandbox's supervisor, driven over its control socket.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use saggar_domain::{DeadlineAction, ExecId, ExecSpec, OutputStream, SandboxId};
use saggar_supervisor::control::{
    CONTROL, Client, Description, ExecDescription, Final, Op, Received, Reply, StartExec, Terms, encode_json,
};
use serde_json::Value;

use super::{PATIENCE, Place};

/// A supervisor and its sandbox; both are killed on drop.
#[derive(Debug)]
pub struct Supervisor {
    pub child: Child,
    pub sandbox: SandboxId,
    pub ready: Box<Description>,
    pub socket: std::path::PathBuf,
}

pub const FOR_EVER: Terms = Terms { ttl_ms: None, then: DeadlineAction::Kill, idle_ms: None };

pub fn unique() -> [u8; 16] {
    let mut bits = [0; 16];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty()).expect("ours");
    bits
}

pub fn start(place: &Place, spec: Value, terms: Terms, is_pooled: bool) -> Result<Supervisor, Box<Reply>> {
    start_in(&place.path("data"), spec, terms, is_pooled)
}

/// The same with another data directory.
pub fn start_in(data: &Path, spec: Value, terms: Terms, is_pooled: bool) -> Result<Supervisor, Box<Reply>> {
    let (mut child, mut starter, sandbox) = ask_in(data, spec, terms, is_pooled);
    match starter.receive().expect("it answers") {
        Received::Reply(Reply::Ready(ready)) => {
            let socket = data.join(format!("control/{sandbox}.sock"));
            Ok(Supervisor { child, sandbox, ready, socket })
        }
        Received::Reply(other) => {
            child.wait().expect("our own child");
            Err(Box::new(other))
        }
        other => panic!("{other:?}"),
    }
}

/// A supervisor that was told what to hold, and the connection that it will answer on.
pub fn ask_in(data: &Path, spec: Value, terms: Terms, is_pooled: bool) -> (Child, Client, SandboxId) {
    let (ours, theirs) = UnixStream::pair().expect("ours");
    let sandbox = SandboxId::from_random(unique());
    let mut command = Command::new(env!("CARGO_BIN_EXE_saggar"));
    command.arg("__supervise").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("the binary was built");
    drop(command);
    let mut starter = Client::over(OwnedFd::from(ours));
    starter.set_patience(PATIENCE).expect("ours");
    // As JSON, so that a spec can be invalid.
    let start = serde_json::json!({
        "v": CONTROL, "data_directory": data, "sandbox_id": sandbox, "spec": spec, "terms": terms, "is_pooled": is_pooled,
    });
    let mut bytes = Vec::new();
    encode_json(&mut bytes, &start).expect("short enough");
    starter.send(&bytes).expect("it reads");
    (child, starter, sandbox)
}

pub fn held(place: &Place) -> Supervisor {
    let started = start(place, serde_json::json!({}), FOR_EVER, false);
    started.unwrap_or_else(|reply| panic!("not started: {reply:?}"))
}

pub fn program(argv: &[&str]) -> StartExec {
    StartExec {
        exec_id: ExecId::from_random(unique()),
        spec: ExecSpec { argv: argv.iter().map(|argument| (*argument).to_owned()).collect(), ..ExecSpec::default() },
        follow: true,
        is_fed_apart: false,
    }
}

/// What a followed exec produced.
#[derive(Debug, Default)]
pub struct Seen {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub gaps: [u64; 2],
    pub end: Option<ExecDescription>,
}

impl Supervisor {
    pub fn client(&self) -> Client {
        let client = Client::connect(&self.socket).expect("ours");
        client.set_patience(PATIENCE).expect("ours");
        client
    }

    pub fn request(&self, op: Op) -> Reply {
        self.client().request(op).expect("ours")
    }

    pub fn exec(&self, start: StartExec) -> (Client, Box<ExecDescription>) {
        let mut client = self.client();
        match client.request(Op::Exec(Box::new(start))).expect("ours") {
            Reply::Started(state) => (client, state),
            other => panic!("{other:?}"),
        }
    }

    pub fn sh(&self, script: &str) -> Seen {
        follow(&mut self.exec(program(&["/bin/sh", "-c", script])).0)
    }

    pub fn kill(mut self) -> Final {
        let Reply::Killed(last_word) = self.request(Op::Kill) else { panic!("not killed") };
        self.wait();
        *last_word
    }

    pub fn wait(&mut self) {
        let start = Instant::now();
        while self.child.try_wait().expect("ours").is_none() {
            assert!(start.elapsed() < PATIENCE, "the supervisor hangs");
            std::thread::yield_now();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // A clean stop, so that nothing is left: killed, it would leave its cgroups to a reaper that never runs here.
        let start = Instant::now();
        let mut is_asked = false;
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
            if !is_asked {
                // If it has ended in the meantime, that is fine.
                let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
                is_asked = true;
            }
            std::thread::yield_now();
        }
        // Kills it if it hangs.
        let _ = self.child.kill();
        let _ = self.child.wait(); // As above.
    }
}

pub fn follow(client: &mut Client) -> Seen {
    let mut seen = Seen::default();
    loop {
        match client.receive().expect("ours") {
            Received::Output { stream: OutputStream::Stdout, offset, bytes } => {
                assert_eq!(offset, seen.stdout.len() as u64 + seen.gaps[0]);
                seen.stdout.extend(bytes);
            }
            Received::Output { offset, bytes, .. } => {
                assert_eq!(offset, seen.stderr.len() as u64 + seen.gaps[1]);
                seen.stderr.extend(bytes);
            }
            Received::Reply(Reply::Gap { stream, bytes }) => seen.gaps[usize::from(stream.number()) - 1] += bytes,
            Received::Reply(Reply::Exited(end)) => {
                seen.end = Some(*end);
                return seen;
            }
            Received::End => return seen,
            other => panic!("{other:?}"),
        }
    }
}

/// Polls until there is a result, with a time limit.
pub fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        std::thread::yield_now();
    }
}
