//! The cost of an idle sandbox: the drop of MemAvailable for many of them, minus the drop for as many bare programs.
//!
//! MemAvailable covers everything that a sandbox makes the kernel hold, which no sum over processes does. It is
//! noisy, hence the many sandboxes and several rounds. A sandbox counts as started when its event says so.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::options::Options;
use super::statistics::Spread;
use crate::machine::{drop_caches, mem_available_kib};
use crate::signal::{Signal, send_signal};

/// Idle for longer than any round takes.
const IDLE_PROGRAM: &[&str] = &["/bin/sleep", "1000"];
/// All of them start, or end, within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The kernel sums its per-CPU page counters once a second; before that, MemAvailable is inaccurate.
const SETTLING: Duration = Duration::from_millis(1200);
/// Maximum number of event lines read ahead.
const EVENTS_AHEAD: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Number of concurrent sandboxes.
    pub sandboxes: usize,
    /// Whether the kernel's caches were dropped before each reading.
    pub caches_were_dropped: bool,
    /// One entry per round.
    pub rounds: Vec<IdleRound>,
}

/// The drop of MemAvailable per program, in KiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleRound {
    /// With a sandbox.
    pub sandboxed_kib: f64,
    /// Without one.
    pub bare_kib: f64,
}

impl IdleRound {
    /// The cost of the sandbox alone.
    pub fn cost_kib(self) -> f64 {
        self.sandboxed_kib - self.bare_kib
    }
}

impl Idle {
    /// The cost over all rounds, in KiB.
    pub fn cost_kib(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|round| round.cost_kib()).collect::<Vec<_>>())
    }
}

pub fn measure(saggar: &Path, options: &Options, workplace: &Path) -> Result<Idle> {
    let count = options.idle_sandboxes;
    let mut rounds = Vec::new();
    for round in 0..options.idle_rounds {
        eprintln!("bench: idle round {} of {}", round + 1, options.idle_rounds);
        let sandboxed = || sandboxed_drop(saggar, &workplace.join(format!("events-{round}")), options);
        // Both take turns to be first: the second finds the kernel's caches filled by the first.
        let (sandboxed_kib, bare_kib) = if round % 2 == 0 {
            let sandboxed = sandboxed()?;
            (sandboxed, bare_drop(options)?)
        } else {
            let bare = bare_drop(options)?;
            (sandboxed()?, bare)
        };
        rounds.push(IdleRound { sandboxed_kib: sandboxed_kib / count as f64, bare_kib: bare_kib / count as f64 });
    }
    Ok(Idle { sandboxes: count, caches_were_dropped: options.drops_caches, rounds })
}

fn sandboxed_drop(saggar: &Path, fifo: &Path, options: &Options) -> Result<f64> {
    let arguments: Vec<&str> = std::iter::once("--").chain(IDLE_PROGRAM.iter().copied()).collect();
    let run = || Command::new(saggar);
    whole_drop(run, fifo, options, &arguments)
}

/// The memory of each of many idle sandboxes, in KiB. `arguments` are flags of `saggar run` and an idle program.
pub fn drop_of_each(saggar: &Path, data: &Path, fifo: &Path, options: &Options, arguments: &[&str]) -> Result<f64> {
    let run = || {
        let mut command = Command::new(saggar);
        command.env("SAGGAR_DATA_DIR", data);
        command
    };
    Ok(whole_drop(run, fifo, options, arguments)? / options.idle_sandboxes as f64)
}

fn whole_drop(run: impl Fn() -> Command, fifo: &Path, options: &Options, arguments: &[&str]) -> Result<f64> {
    let events = Events::open(fifo, options.idle_sandboxes)?;
    let before = settled_reading(options)?;
    let mut crowd = Crowd::default();
    for _ in 0..options.idle_sandboxes {
        crowd.start(run().args(["run", "--events"]).arg(fifo).args(arguments))?;
    }
    events.wait_for_all(Happening::Started)?;
    let after = settled_reading(options)?;
    crowd.signal(Signal::Terminate)?;
    events.wait_for_all(Happening::Finished)?;
    crowd.wait()?;
    Ok(before - after)
}

fn bare_drop(options: &Options) -> Result<f64> {
    let before = settled_reading(options)?;
    let mut crowd = Crowd::default();
    for _ in 0..options.idle_sandboxes {
        crowd.start(Command::new(IDLE_PROGRAM[0]).args(&IDLE_PROGRAM[1..]))?;
    }
    let after = settled_reading(options)?;
    crowd.signal(Signal::Terminate)?;
    crowd.wait()?;
    Ok(before - after)
}

#[expect(clippy::disallowed_methods, reason = "the kernel sends no event when it sums its counters")]
fn settled_reading(options: &Options) -> Result<f64> {
    if options.drops_caches {
        drop_caches()?;
    }
    std::thread::sleep(SETTLING);
    mem_available_kib()
}

/// Processes that are all killed on drop.
#[derive(Debug, Default)]
struct Crowd(Vec<Child>);

impl Crowd {
    fn start(&mut self, command: &mut Command) -> Result<()> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.0.push(command.spawn().with_context(|| format!("starting {}", command.get_program().display()))?);
        Ok(())
    }

    /// None of them has been waited for yet, so each pid is still that child's.
    fn signal(&self, signal: Signal) -> Result<()> {
        send_signal(signal, &self.0.iter().map(Child::id).collect::<Vec<_>>())
    }

    fn wait(mut self) -> Result<()> {
        for mut child in self.0.drain(..) {
            child.wait().context("waiting for an idle program")?;
        }
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Reached only after a failure, which is what gets reported.
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

/// The two events of a sandbox that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    Started,
    Finished,
}

impl Happening {
    fn parse(line: &str) -> Option<Self> {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        match event["type"].as_str()? {
            "start" => Some(Self::Started),
            "finish" => Some(Self::Finished),
            _ => None,
        }
    }
}

/// The events of all sandboxes of a round, through one named pipe: lines are short enough to be written atomically.
struct Events {
    happenings: Receiver<Happening>,
    count: usize,
}

impl Events {
    fn open(fifo: &Path, count: usize) -> Result<Self> {
        let status = Command::new("mkfifo").args(["-m", "600"]).arg(fifo).status().context("running mkfifo")?;
        ensure!(status.success(), "mkfifo failed");
        // Opened for writing too, so that it has no end of file between two sandboxes.
        let pipe = File::options().read(true).write(true).open(fifo).context("opening the events pipe")?;
        let (sender, happenings) = sync_channel(EVENTS_AHEAD);
        let read = move || {
            let mut finished = 0;
            for happening in
                BufReader::new(pipe).lines().map_while(Result::ok).filter_map(|line| Happening::parse(&line))
            {
                finished += usize::from(happening == Happening::Finished);
                if sender.send(happening).is_err() || finished == count {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("events".into()).spawn(read).context("starting a thread")?;
        Ok(Self { happenings, count })
    }

    fn wait_for_all(&self, wanted: Happening) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for seen in 0..self.count {
            match self.happenings.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(happening) if happening == wanted => {}
                Ok(_) => bail!(
                    "a sandbox finished instead of staying idle; try it: saggar run -- {}",
                    IDLE_PROGRAM.join(" ")
                ),
                Err(_) => bail!("only {seen} of {} sandboxes {wanted:?} within {} s", self.count, PATIENCE.as_secs()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_starts_and_finishes_count() {
        for (line, expected) in [
            (r#"{"schema":"saggar.event/v1","seq":2,"type":"start","program":"/bin/sleep"}"#, Some(Happening::Started)),
            (r#"{"type":"finish","status":"cancelled"}"#, Some(Happening::Finished)),
            (r#"{"type":"network","network":"none"}"#, None),
            ("not json", None),
        ] {
            assert_eq!(Happening::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn the_cost_is_what_comes_on_top_of_the_program() {
        let round = |sandboxed_kib, bare_kib| IdleRound { sandboxed_kib, bare_kib };
        let rounds = vec![round(900.0, 100.0), round(1000.0, 300.0), round(850.0, 100.0)];
        let idle = Idle { sandboxes: 50, caches_were_dropped: false, rounds };
        assert_eq!(idle.cost_kib(), Spread { median: 750.0, min: 700.0, max: 800.0 });
    }

    #[test]
    fn a_crowd_ends_when_it_is_told_to() {
        let mut crowd = Crowd::default();
        for _ in 0..3 {
            crowd.start(Command::new(IDLE_PROGRAM[0]).args(&IDLE_PROGRAM[1..])).unwrap();
        }
        crowd.signal(Signal::Terminate).unwrap();
        crowd.wait().unwrap();
    }
}
