//! Snapshots, forks and rollbacks over HTTP: what they cost for a large tree and a small one, and compared with `cp -a`.
//!
//! Both trees come from a snapshot, and a few files have changed since: a fork costs what changed, not what is there. What it costs if
//! everything has changed is shown beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::options::Options;
use super::report::circumstances;
use super::server::life::{SANDBOXES, create, exec, kill, timed};
use super::statistics::{Spread, median};
use super::table::Table;
use super::target::{self, Bound, Target};
use crate::http::{Ask, Client};
use crate::machine::{Load, Machine};
use crate::serving::Serving;
use crate::workplace::Workplace;

const LARGE: usize = 10_000;
const SMALL: usize = 10;
/// Bytes of a file.
const FILE_BYTES: usize = 14_000;
/// Files that have changed when a snapshot is taken whose freeze is measured.
const CHANGED: usize = 100;
/// Runs of each in a round at most.
const RUNS_MAX: usize = 20;
/// Forks of one request.
const AT_ONCE: usize = 100;
/// Room for all forks of a request, and for what they come from.
const CAPACITY: usize = AT_ONCE + 20;
const SNAPSHOTS: &str = "/api/v1/snapshots";

/// One round, in ms except for the last.
#[derive(Clone, Debug, Default, PartialEq)]
struct Round {
    /// A fork up to its first command, of a small tree, of a large one, and of a large one of which everything has changed.
    fork: [f64; 3],
    /// `cp -a` of the large tree.
    copy: f64,
    /// How long a snapshot with [`CHANGED`] files kept the programs still.
    frozen: f64,
    rollback: f64,
    kill: f64,
    forks_per_second: f64,
}

impl Round {
    fn large_over_small(&self) -> f64 {
        self.fork[1] / self.fork[0]
    }

    /// Of one fork among many.
    fn copy_over_fork(&self) -> f64 {
        self.copy * self.forks_per_second / 1000.0
    }

    fn beyond_kill(&self) -> f64 {
        self.rollback - self.kill
    }
}

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    rounds: Vec<Round>,
    runs: usize,
    loads: [Load; 2],
}

pub fn measure(options: &Options, saggar: &Path) -> Result<Report> {
    let workplace = Workplace::make("bench-snapshots").context("making a directory for the benchmark")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let capacity = CAPACITY.to_string();
    let flags = ["--log", "warn", "--pool-max", "0", "--pool-min", "0", "--capacity", &capacity];
    let server = Serving::start(saggar, &workplace.path().join("server"), &flags)?;
    let mut bench = Bench::prepare(server.client(), workplace.path())?;
    let runs = options.runs.min(RUNS_MAX);
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        eprintln!("bench: snapshots, round {} of {}", round + 1, options.rounds);
        let measured = bench.round(runs).with_context(|| format!("the server said:\n{}", server.last_words()))?;
        rounds.push(measured);
    }
    Ok(Report { targets: targets(&rounds), machine, rounds, runs, loads: [load_before, Load::now()?] })
}

struct Bench {
    client: Client,
    /// Sandboxes from snapshots of a small and a large tree; and one that has made a large tree itself.
    parents: [String; 3],
    /// One with [`CHANGED`] files of its own, and the snapshot that it goes back to.
    changed: String,
    small: String,
    tree: PathBuf,
}

impl Bench {
    fn prepare(mut client: Client, place: &Path) -> Result<Self> {
        eprintln!("bench: snapshots, making trees");
        let tree = place.join("tree");
        std::fs::create_dir(&tree)?;
        for number in 0..LARGE {
            std::fs::write(tree.join(number.to_string()), vec![b'x'; FILE_BYTES])?;
        }
        let made = |client: &mut Client, count: usize| -> Result<(String, String)> {
            let id = create(client, &wish(None))?;
            write(client, &id, "tree", count)?;
            let snapshot = take(client, &id)?.0;
            Ok((id, snapshot))
        };
        let (first, small) = made(&mut client, SMALL)?;
        kill(&mut client, &first)?;
        let (full, large) = made(&mut client, LARGE)?;
        let mut from = |snapshot: &str| -> Result<String> {
            let id = create(&mut client, &wish(Some(snapshot)))?;
            write(&mut client, &id, "later", SMALL)?;
            Ok(id)
        };
        let parents = [from(&small)?, from(&large)?, full];
        let changed = create(&mut client, &wish(Some(&small)))?;
        Ok(Self { client, parents, changed, small, tree })
    }

    fn round(&mut self, runs: usize) -> Result<Round> {
        let mut forks = [Vec::new(), Vec::new(), Vec::new()];
        let (mut frozen, mut rollbacks, mut kills) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..runs {
            // In another order each time. Copying everything is slow, and measured less often.
            for at in [0, 1, 2].map(|step| (step + run) % 3) {
                if at < 2 || run % 10 == 0 {
                    forks[at].push(self.fork_once(at)?);
                }
            }
            let (client, changed) = (&mut self.client, &self.changed);
            write(client, changed, "changed", CHANGED)?;
            let (snapshot, frozen_ms) = take(client, changed)?;
            frozen.push(frozen_ms);
            client.ask(Ask::new("DELETE", &format!("{SNAPSHOTS}/{snapshot}")))?.expect(200)?;
            let path = format!("{SANDBOXES}/{changed}/rollback");
            let wanted = format!(r#"{{"snapshot":"{}"}}"#, self.small);
            let back = || client.ask(Ask::post(&path, &wanted))?.expect(200);
            rollbacks.push(timed(back).context("going back")?.1);
            let other = create(client, &wish(Some(&self.small)))?;
            write(client, &other, "changed", CHANGED)?;
            kills.push(timed(|| kill(client, &other))?.1);
        }
        let forks_per_second = self.many_forks()?;
        let copied = self.tree.with_extension("copy");
        let copy = || {
            let status = Command::new("cp").arg("-a").args([&self.tree, &copied]).status()?;
            ensure!(status.success(), "cp failed");
            Ok(())
        };
        let ((), copy) = timed(copy)?;
        std::fs::remove_dir_all(&copied)?;
        let fork = forks.map(|times| median(&times));
        let [frozen, rollback, kill] = [frozen, rollbacks, kills].map(|times| median(&times));
        Ok(Round { fork, copy, frozen, rollback, kill, forks_per_second })
    }

    /// From the request to the end of the first command, in ms.
    fn fork_once(&mut self, parent: usize) -> Result<f64> {
        let client = &mut self.client;
        let path = format!("{SANDBOXES}/{}/fork", self.parents[parent]);
        let (id, time) = timed(|| {
            let answer = client.ask(Ask::post(&path, r#"{"count":1}"#)).context("asking for a fork")?.expect(201)?;
            let id = answer.json()["items"][0]["sandbox"]["id"].as_str().map(str::to_owned);
            let id = id.with_context(|| format!("no fork: {}", answer.text()))?;
            exec(client, &id, &["/bin/true"])?;
            Ok(id)
        })?;
        kill(client, &id)?;
        Ok(time)
    }

    /// Forks of one request, in a second.
    fn many_forks(&mut self) -> Result<f64> {
        let client = &mut self.client;
        let path = format!("{SANDBOXES}/{}/fork", self.parents[1]);
        let wanted = format!(r#"{{"count":{AT_ONCE}}}"#);
        let (answer, ms) = timed(|| client.ask(Ask::post(&path, &wanted))?.expect(201)).context("forking")?;
        let answer = answer.json();
        let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ids: Vec<&str> = items.iter().filter_map(|item| item["sandbox"]["id"].as_str()).collect();
        ensure!(ids.len() == AT_ONCE, "only {} of {AT_ONCE} forks were made", ids.len());
        for id in ids {
            kill(client, id)?;
        }
        Ok(AT_ONCE as f64 * 1000.0 / ms)
    }
}

fn wish(template: Option<&str>) -> String {
    let template = template.map(|template| format!(r#","template":"{template}""#)).unwrap_or_default();
    format!(r#"{{"ttl":"1h","limits":{{"memory":"1G","disk":"512M"}}{template}}}"#)
}

/// Writes files inside.
fn write(client: &mut Client, id: &str, directory: &str, count: usize) -> Result<()> {
    // The text becomes part of a JSON string.
    let script = format!(
        "mkdir -p ~/{directory}; cd ~/{directory}; x=$(printf %0{FILE_BYTES}d 0); \
         i=0; while [ $i -lt {count} ]; do echo $x > $i; i=$((i+1)); done"
    );
    exec(client, id, &["/bin/sh", "-c", &script])
}

/// Takes a snapshot. Returns its id, and for how long it kept the programs still, in ms.
fn take(client: &mut Client, id: &str) -> Result<(String, f64)> {
    let answer = client.ask(Ask::post(&format!("{SANDBOXES}/{id}/snapshots"), "{}")).context("taking a snapshot")?;
    let answer = answer.expect(201)?.json();
    let snapshot = answer["id"].as_str().context("a snapshot without an id")?.to_owned();
    let frozen_us = answer["frozen_us"].as_f64().context("a snapshot that doesn't say how long it took")?;
    Ok((snapshot, frozen_us / 1000.0))
}

fn targets(rounds: &[Round]) -> Vec<Target> {
    let of = |value: fn(&Round) -> f64| Ok(Spread::of(&rounds.iter().map(value).collect::<Vec<_>>()));
    let target = |name, bound, unit, measured| Target { name, bound, unit, measured };
    vec![
        target(
            "a fork of 10,000 files up to its first command, over one of 10",
            Bound::AtMost(1.3),
            "×",
            of(Round::large_over_small),
        ),
        target("forks through the API", Bound::AtLeast(200.0), " /s", of(|round| round.forks_per_second)),
        target("cp -a of 10,000 files over a fork of them", Bound::AtLeast(100.0), "×", of(Round::copy_over_fork)),
        target("a snapshot with 100 changed files keeps still", Bound::AtMost(30.0), " ms", of(|round| round.frozen)),
        target("a rollback takes longer than a kill by", Bound::AtMost(10.0), " ms", of(Round::beyond_kill)),
    ]
}

impl Report {
    pub fn text(&self) -> String {
        let heads = [
            "round",
            "fork, 10 files",
            "10,000 files",
            "all changed",
            "forks/s",
            "cp -a",
            "frozen",
            "rollback",
            "kill",
        ];
        let mut table = Table::new(heads);
        for (number, round) in self.rounds.iter().enumerate() {
            let Round { fork: [small, large, full], copy, frozen, rollback, kill, forks_per_second } = round;
            let times = [small, large, full].map(|ms| format!("{ms:.1}"));
            let rest = [format!("{forks_per_second:.0}"), format!("{copy:.0}")];
            let last = [frozen, rollback, kill].map(|ms| format!("{ms:.1}"));
            table.add(std::iter::once((number + 1).to_string()).chain(times).chain(rest).chain(last));
        }
        let runs = self.runs;
        let about = format!(
            "Times in ms: the median of {runs} forks of one, snapshots with {CHANGED} changed files, rollbacks and kills; {AT_ONCE} forks of one request. Files of {FILE_BYTES} bytes; without a pool. Of the first two trees, {SMALL} files have changed since the sandbox was started."
        );
        let circumstances = circumstances(&self.machine, self.loads);
        [format!("{circumstances}\n"), target::table(&self.targets).to_string(), format!("{about}\n\n{table}")]
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_of_what_was_measured_in_the_same_round() {
        let round = Round {
            fork: [10.0, 12.0, 300.0],
            copy: 600.0,
            frozen: 8.0,
            rollback: 19.0,
            kill: 11.0,
            forks_per_second: 250.0,
        };
        let medians: Vec<f64> =
            targets(&[round]).iter().map(|target| target.measured.as_ref().map_or(f64::NAN, |m| m.median)).collect();
        assert_eq!(medians, [1.2, 250.0, 150.0, 8.0, 8.0]);
    }
}
