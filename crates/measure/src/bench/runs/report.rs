//! The report on durable runs: targets and results, round by round.

use super::alone::Alone;
use super::crowd::{Crowd, Engine};
use super::failover::Failover;
use super::kept::Kept;
use super::long::Long;
use crate::bench::report::{NOTHING, circumstances};
use crate::bench::statistics::Spread;
use crate::bench::table::Table;
use crate::bench::target::{self, Bound, Target};
use crate::machine::{Load, Machine};

/// Minimum ratio of our steps per second to Restate's.
const OVER_RESTATE_MIN: f64 = 3.0;
/// The same for DBOS.
const OVER_DBOS_MIN: f64 = 15.0;
/// Maximum time of a step beyond two syncs, in ms.
const BEYOND_SYNCS_MAX: f64 = 0.5;
/// Maximum ratio of a long run's last steps to its first.
const FLAT_MAX: f64 = 1.2;
/// Minimum of replayed entries per second.
const REPLAY_MIN: f64 = 30_000.0;
/// Maximum time of a fork, in ms.
const FORK_MAX: f64 = 20.0;
/// Minimum part of its speed that a run keeps with a snapshot after every step.
const KEPT_MIN: f64 = 0.5;
/// Maximum ratio of the last steps to the first of a run with a thousand snapshots.
const KEPT_FLAT_MAX: f64 = 1.2;
/// Maximum time from the kill of a worker to the next effect, in seconds.
const WORKER_MAX: f64 = 1.0;
/// The same for the server.
const SERVER_MAX: f64 = 1.5;

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    crowd: Crowd,
    alone: Alone,
    long: Option<Long>,
    kept: Kept,
    failover: Failover,
    loads: [Load; 2],
}

impl Report {
    /// `loads` are the load averages before and after.
    pub fn new(
        machine: Machine,
        crowd: Crowd,
        alone: Alone,
        long: Option<Long>,
        kept: Kept,
        failover: Failover,
        loads: [Load; 2],
    ) -> Self {
        let targets = targets(&crowd, &alone, long.as_ref(), &kept, &failover);
        Self { targets, machine, crowd, alone, long, kept, failover, loads }
    }

    pub fn text(&self) -> String {
        let mut lines = vec![circumstances(&self.machine, self.loads)];
        if !self.crowd.versions.is_empty() {
            lines.push(format!("- against {}", self.crowd.versions.join(", ")));
        }
        let absences = self.crowd.absences.iter();
        lines.extend(absences.map(|(engine, reason)| format!("- NOT measured: {}: {reason}", engine.name())));
        let mut sections = vec![lines.join("\n") + "\n", target::table(&self.targets).to_string()];
        sections.extend([crowd_section(&self.crowd), alone_section(&self.alone)]);
        sections.extend(self.long.as_ref().map(long_section));
        sections.push(kept_section(&self.kept));
        let Failover { kills, parked, .. } = &self.failover;
        sections.push(format!("Each was killed {kills} times; {parked} runs were parked while the server was.\n"));
        sections.join("\n")
    }
}

fn targets(crowd: &Crowd, alone: &Alone, long: Option<&Long>, kept: &Kept, failover: &Failover) -> Vec<Target> {
    let of_long = |measured: fn(&Long) -> Spread| long.map(measured).ok_or("left out by --long 0".to_owned());
    let flat = |long: &Long| Spread::of(&[long.last / long.first]);
    let growth = match kept.growth.as_slice() {
        [] => Err("left out by --long 0".to_owned()),
        growth => Ok(Spread::of(growth)),
    };
    let target = |name, bound, unit, measured| Target { name, bound, unit, measured };
    vec![
        target("steps/s over Restate's", Bound::AtLeast(OVER_RESTATE_MIN), "×", crowd.ratio(Engine::Restate)),
        target("steps/s over DBOS's", Bound::AtLeast(OVER_DBOS_MIN), "×", crowd.ratio(Engine::Dbos)),
        target("a step alone, beyond two syncs", Bound::AtMost(BEYOND_SYNCS_MAX), " ms", Ok(alone.beyond())),
        target("the last steps of a long run over its first", Bound::AtMost(FLAT_MAX), "×", of_long(flat)),
        target("entries replayed a second", Bound::AtLeast(REPLAY_MIN), "", of_long(|long| long.replayed)),
        target("a fork of a long run", Bound::AtMost(FORK_MAX), " ms", of_long(|long| long.forks)),
        target("speed kept with a snapshot after each step", Bound::AtLeast(KEPT_MIN), "×", Ok(kept.ratio())),
        target("the last of 1,000 snapshots over the first", Bound::AtMost(KEPT_FLAT_MAX), "×", growth),
        target("kill of a worker to the next effect", Bound::AtMost(WORKER_MAX), " s", Ok(failover.worker)),
        target("kill of the server to the next effect", Bound::AtMost(SERVER_MAX), " s", Ok(failover.server)),
    ]
}

fn crowd_section(crowd: &Crowd) -> String {
    let names = Engine::ALL.map(Engine::name);
    let mut table = Table::new([&["round"], &names[..], &["saggar/Restate", "saggar/DBOS"]].concat());
    for (number, round) in crowd.rounds.iter().enumerate() {
        let speeds = round.map(|speed| speed.map_or(NOTHING.into(), |speed| format!("{speed:.0}")));
        let [ours, peers @ ..] = round;
        let ratios = peers.map(|peer| match (ours, peer) {
            (Some(ours), Some(peer)) => format!("{:.2}×", ours / peer),
            _ => NOTHING.to_owned(),
        });
        table.add([&[(number + 1).to_string()], &speeds[..], &ratios[..]].concat());
    }
    let [runs, steps] = crowd.size;
    format!("{runs} runs at once of {steps} steps each: steps a second.\n\n{table}")
}

fn alone_section(alone: &Alone) -> String {
    let mut table = Table::new(["round", "fdatasync", "a step", "beyond two syncs"]);
    for (number, round) in alone.rounds.iter().enumerate() {
        let times = [round.sync, round.step, round.beyond()].map(|time| format!("{time:.3}"));
        table.add([&[(number + 1).to_string()], &times[..]].concat());
    }
    format!("One run alone of {} steps: medians in ms.\n\n{table}", alone.steps)
}

fn long_section(long: &Long) -> String {
    let Long { steps, first, last, entries, replayed, forks } = long;
    format!(
        "A run of {steps} steps, {entries} entries: a step took {first:.3} ms near its beginning and {last:.3} ms at its end (medians of 500). Replayed at \
{:.0} ({:.0}..{:.0}) entries a second. A fork took {:.2} ({:.2}..{:.2}) ms.\n",
        replayed.median, replayed.min, replayed.max, forks.median, forks.min, forks.max
    )
}

fn kept_section(kept: &Kept) -> String {
    let mut table = Table::new(["round", "without snapshots", "with", "with/without"]);
    for (number, [without, with]) in kept.rounds.iter().enumerate() {
        let ratio = format!("{:.2}×", with / without);
        table.add([(number + 1).to_string(), format!("{without:.0}"), format!("{with:.0}"), ratio]);
    }
    format!(
        "One run of {} shell steps that change a file, with a snapshot after each: steps a second.\n\n{table}",
        kept.steps
    )
}

#[cfg(test)]
mod tests {
    use super::super::alone::AloneRound;
    use super::*;

    fn even(value: f64) -> Spread {
        Spread { median: value, min: value, max: value }
    }

    #[test]
    fn every_promise_is_judged_and_what_is_missing_says_why() {
        let crowd = Crowd {
            size: [50, 100],
            rounds: vec![[Some(3100.0), Some(1000.0), None]],
            absences: vec![(Engine::Dbos, "no PostgreSQL".to_owned())],
            versions: Vec::new(),
        };
        let alone = Alone { steps: 100, rounds: vec![AloneRound { sync: 1.0, step: 2.6 }] };
        let long =
            Long { steps: 10_000, first: 1.0, last: 1.3, entries: 20_000, replayed: even(31_000.0), forks: even(21.0) };
        let kept = Kept { steps: 100, rounds: vec![[100.0, 40.0]], growth: vec![1.1] };
        let failover = Failover { kills: 5, parked: 1000, worker: even(0.2), server: even(1.6) };
        let verdicts = |long| -> Vec<String> {
            targets(&crowd, &alone, long, &kept, &failover).iter().map(Target::verdict_text).collect()
        };
        let expected = [
            "met",
            "NOT MEASURED: no PostgreSQL",
            "MISSED",
            "MISSED",
            "met",
            "MISSED",
            "MISSED",
            "met",
            "met",
            "MISSED",
        ];
        assert_eq!(verdicts(Some(&long)), expected);
        assert_eq!(verdicts(None)[4], "NOT MEASURED: left out by --long 0");
    }
}
