//! The soak's command line.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

/// Output of `--help`.
pub const USAGE: &str = "\
usage: cargo measure soak [options]

  --only PART     only `sandboxes` or only `runs`; default: both
  --cycles N      sandboxes to create and end (10000)
  --minutes N     stop creating sandboxes after this time (30)
  --clients N     concurrent clients (4)
  --kills N       kills of the server under load afterwards (30; 0 skips them)
  --run-kills N   kills of a worker or the server while runs are in progress (2000)
  --seed N        repeat the choices of an earlier run (default: from the clock)
  --saggar PATH   the binary to soak (default: builds a release)
  --write         put the result into docs/soak.md
";

#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Help,
    Run(Options),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Life cycles, and a storm.
    Sandboxes,
    /// Runs whose workers are killed.
    Runs,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// `None` means both parts.
    pub only: Option<Part>,
    /// Sandboxes to create and end.
    pub cycles: u64,
    /// Time limit for creating sandboxes.
    pub minutes: u64,
    /// Concurrent clients.
    pub clients: u64,
    /// Kills of the server.
    pub kills: u64,
    /// Kills of workers and of the server while runs are in progress.
    pub run_kills: u64,
    pub seed: u64,
    /// The binary; `None` builds it.
    pub saggar: Option<PathBuf>,
    /// Whether the page is written.
    pub writes: bool,
}

impl Options {
    pub fn parse(arguments: &[&str]) -> Result<Asked> {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_nanos()));
        let mut options = Self {
            only: None,
            cycles: 10_000,
            minutes: 30,
            clients: 4,
            kills: 30,
            run_kills: 2000,
            seed,
            saggar: None,
            writes: false,
        };
        let mut rest = arguments.iter().copied();
        while let Some(flag) = rest.next() {
            match flag {
                "--only" => {
                    options.only = Some(match rest.next() {
                        Some("sandboxes") => Part::Sandboxes,
                        Some("runs") => Part::Runs,
                        _ => bail!("--only takes sandboxes or runs"),
                    });
                }
                "--run-kills" => options.run_kills = number(flag, rest.next())?,
                "--cycles" => options.cycles = number(flag, rest.next())?,
                "--minutes" => options.minutes = number(flag, rest.next())?,
                "--clients" => options.clients = number(flag, rest.next())?,
                "--kills" => options.kills = number(flag, rest.next())?,
                "--seed" => options.seed = number(flag, rest.next())?,
                "--saggar" => options.saggar = Some(rest.next().context("--saggar takes a path")?.into()),
                "--write" => options.writes = true,
                "--help" | "-h" => return Ok(Asked::Help),
                _ => bail!("soak has no option \"{flag}\"\n\n{USAGE}"),
            }
        }
        ensure!(options.cycles > 0 && options.clients > 0, "a soak needs at least one cycle and one client");
        Ok(Asked::Run(options))
    }

    pub fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

fn number(flag: &str, given: Option<&str>) -> Result<u64> {
    let text = given.with_context(|| format!("{flag} takes a number"))?;
    text.parse().with_context(|| format!("{flag} takes a number, not \"{text}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_change_what_they_name() {
        let given = ["--cycles", "5", "--kills", "0", "--seed", "7", "--write"];
        let Asked::Run(options) = Options::parse(&given).unwrap() else { panic!("not for help") };
        assert_eq!((options.cycles, options.kills, options.seed, options.writes), (5, 0, 7, true));
        for given in [&["--cycles", "0"][..], &["--cycles"], &["--kills", "x"], &["--only", "dreams"], &["--hard"]] {
            assert!(Options::parse(given).is_err(), "{given:?}");
        }
    }
}
