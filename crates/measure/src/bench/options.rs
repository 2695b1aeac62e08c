//! The benchmark's command line.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// Output of `--help`.
pub const USAGE: &str = "\
usage: cargo measure bench [options]

  --only PART       only `run` (one-shot sandboxes), `server` (sandboxes over HTTP), `e2b` (the same with E2B's client),
                    `runs` (durable runs), `egress` (the network boundary), `templates` (images),
                    `snapshots` (and forks), `code` (contexts of the code interpreter)
                    or `models` (the model gateway); default: all
  --rounds N        interleaved rounds of timing (7; at least 5 for a meaningful ratio)
  --runs N          runs of each contender in a round (100)
  --runc-runs N     the same for runc, which is slow (100: as often as the others)
  --idle N          idle sandboxes to start at once (50; 0 skips the measurement of memory)
  --idle-rounds N   times to do that (3)
  --many N          sandboxes alive at once on a server, and idle ones from an image (1000; 0 skips it)
  --many-rounds N   times to do that (7)
  --creates N       creates timed with few and with many alive (200)
  --transfer MIB    size of the uploaded and downloaded file (1024; 0 skips it)
  --at-once N       concurrent durable runs, compared with the peers (50)
  --steps N         steps of each of them (100)
  --long N          steps of a long run (10000; 0 skips it)
  --parked N        parked runs while the server is killed (1000)
  --failovers N     kills of a worker, and as many of the server (10)
  --calls N         model calls of each kind in a round (1000)
  --drop-caches     drop the kernel's caches before each reading of memory (root; disturbs the machine)
  --saggar PATH     the binary to measure (default: builds a release)
  --write           put the numbers into docs/benchmarks.md, those of durable runs into docs/durability.md
  --check           fail if a target is missed
";

#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Help,
    Run(Options),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Run,
    /// Sandboxes over HTTP.
    Server,
    /// Sandboxes through E2B's own client.
    E2b,
    Runs,
    /// The network boundary.
    Egress,
    /// Sandboxes that start from images.
    Templates,
    /// Snapshots and forks.
    Snapshots,
    /// Contexts of the code interpreter.
    Code,
    /// The model gateway.
    Models,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `None` means all parts.
    pub only: Option<Part>,
    /// Rounds of timing.
    pub rounds: usize,
    /// Runs of a contender per round.
    pub runs: usize,
    /// Runs of runc per round.
    pub runc_runs: usize,
    /// Concurrent idle sandboxes; 0 skips the measurement.
    pub idle_sandboxes: usize,
    /// Rounds with idle sandboxes.
    pub idle_rounds: usize,
    /// Sandboxes alive at once on a server; 0 skips the measurement.
    pub many: usize,
    /// Rounds with that many.
    pub many_rounds: usize,
    /// Timed creates with few alive, and with many.
    pub creates: usize,
    /// Size of the transferred file in MiB; 0 skips the measurement.
    pub transfer_mib: usize,
    /// Concurrent durable runs.
    pub at_once: usize,
    /// Steps of each of them.
    pub steps: usize,
    /// Steps of a long run; 0 skips the measurement.
    pub long: usize,
    /// Parked runs while the server is killed.
    pub parked: usize,
    /// Kills of a worker, and of the server.
    pub failovers: usize,
    /// Model calls of each kind in a round.
    pub calls: usize,
    /// Whether the kernel's caches are dropped before each reading of memory.
    pub drops_caches: bool,
    /// The binary; `None` builds it.
    pub saggar: Option<PathBuf>,
    /// Whether the page is written.
    pub writes: bool,
    /// Whether a missed target is a failure.
    pub checks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            only: None,
            rounds: 7,
            runs: 100,
            runc_runs: 100,
            idle_sandboxes: 50,
            idle_rounds: 3,
            many: 1000,
            many_rounds: 7,
            creates: 200,
            transfer_mib: 1024,
            at_once: 50,
            steps: 100,
            long: 10_000,
            parked: 1000,
            failovers: 10,
            calls: 1000,
            drops_caches: false,
            saggar: None,
            writes: false,
            checks: false,
        }
    }
}

impl Options {
    pub fn parse(arguments: &[&str]) -> Result<Asked> {
        let mut options = Self::default();
        let mut rest = arguments.iter().copied();
        while let Some(flag) = rest.next() {
            match flag {
                "--only" => options.only = Some(part(value(flag, rest.next())?)?),
                "--many" => options.many = number(flag, rest.next())?,
                "--many-rounds" => options.many_rounds = number(flag, rest.next())?,
                "--creates" => options.creates = number(flag, rest.next())?,
                "--transfer" => options.transfer_mib = number(flag, rest.next())?,
                "--at-once" => options.at_once = number(flag, rest.next())?,
                "--steps" => options.steps = number(flag, rest.next())?,
                "--long" => options.long = number(flag, rest.next())?,
                "--parked" => options.parked = number(flag, rest.next())?,
                "--failovers" => options.failovers = number(flag, rest.next())?,
                "--calls" => options.calls = number(flag, rest.next())?,
                "--rounds" => options.rounds = number(flag, rest.next())?,
                "--runs" => options.runs = number(flag, rest.next())?,
                "--runc-runs" => options.runc_runs = number(flag, rest.next())?,
                "--idle" => options.idle_sandboxes = number(flag, rest.next())?,
                "--idle-rounds" => options.idle_rounds = number(flag, rest.next())?,
                "--drop-caches" => options.drops_caches = true,
                "--saggar" => options.saggar = Some(value(flag, rest.next())?.into()),
                "--write" => options.writes = true,
                "--check" => options.checks = true,
                "--help" | "-h" => return Ok(Asked::Help),
                _ => bail!("bench has no option \"{flag}\"\n\n{USAGE}"),
            }
        }
        let Self {
            rounds, runs, runc_runs, idle_rounds, many_rounds, creates, at_once, steps, failovers, calls, ..
        } = options;
        let counts = [rounds, runs, runc_runs, idle_rounds, many_rounds, creates, at_once, steps, failovers, calls];
        ensure!(!counts.contains(&0), "a median needs at least one value: rounds and runs start at 1");
        Ok(Asked::Run(options))
    }

    pub fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

fn part(name: &str) -> Result<Part> {
    match name {
        "run" => Ok(Part::Run),
        "server" => Ok(Part::Server),
        "e2b" => Ok(Part::E2b),
        "runs" => Ok(Part::Runs),
        "egress" => Ok(Part::Egress),
        "templates" => Ok(Part::Templates),
        "snapshots" => Ok(Part::Snapshots),
        "code" => Ok(Part::Code),
        "models" => Ok(Part::Models),
        _ => {
            bail!("--only takes run, server, e2b, runs, egress, templates, snapshots, code or models, not \"{name}\"")
        }
    }
}

fn number(flag: &str, given: Option<&str>) -> Result<usize> {
    let text = value(flag, given)?;
    usize::from_str(text).with_context(|| format!("{flag} takes a number, not \"{text}\""))
}

fn value<'a>(flag: &str, given: Option<&'a str>) -> Result<&'a str> {
    given.with_context(|| format!("{flag} takes a value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_change_what_they_name_and_nothing_else() {
        let given = ["--rounds", "5", "--write", "--saggar", "./saggar"];
        let options = Options { rounds: 5, writes: true, saggar: Some("./saggar".into()), ..Options::default() };
        assert_eq!(Options::parse(&given).unwrap(), Asked::Run(options));
        let Asked::Run(options) = Options::parse(&["--only", "server"]).unwrap() else { panic!("not for help") };
        assert!(options.wants(Part::Server) && !options.wants(Part::Run));
        assert_eq!(Options::parse(&["--rounds", "5", "-h"]).unwrap(), Asked::Help);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (given, complaint) in [
            (&["--rounds"][..], "takes a value"),
            (&["--runs", "many"], "takes a number"),
            (&["--runs", "0"], "at least one value"),
            (&["--only", "client"], "takes run, server"),
            (&["--fast"], "no option \"--fast\""),
        ] {
            let error = format!("{:#}", Options::parse(given).unwrap_err());
            assert!(error.contains(complaint), "{given:?}: {error}");
        }
    }
}
