//! A thousand idle sandboxes on one server: the total cost of each, and the cost of one more.
//!
//! The cost is the drop of MemAvailable, which covers everything the kernel holds for a sandbox, its supervisor, PID
//! 1 and the growth of the server; the breakdown is shown beside it. "Few" and "many" can't take turns one by one, so
//! each round has few, many and few again, and both halves of "few" form one sample.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::life::{CREATE, create, kill, timed};
use crate::bench::options::Options;
use crate::bench::statistics::{Spread, median, p99};
use crate::http::Client;
use crate::machine::{mem_available_kib, meminfo_kib};
use crate::patience::pause;
use crate::processes;
use crate::serving::Serving;

/// The number that counts as few.
pub const FEW: usize = 10;
/// The kernel sums its per-CPU page counters once a second; before that, MemAvailable is inaccurate.
const SETTLING: Duration = Duration::from_millis(1200);
/// Kernel memory other than pages of processes and the page cache.
const KERNEL: &[&str] = &["Slab", "KernelStack", "PageTables", "Percpu", "Shmem"];

#[derive(Clone, Debug, PartialEq)]
pub struct Many {
    /// Number of concurrent sandboxes.
    pub count: usize,
    /// Timed creates with few, and with many.
    pub creates: usize,
    /// One entry per round.
    pub rounds: Vec<ManyRound>,
}

/// Times in ms, memory in KiB per sandbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManyRound {
    /// Median and p99 of a create with few alive.
    pub few: [f64; 2],
    /// The same with many.
    pub many: [f64; 2],
    /// The total cost of each.
    pub fall: f64,
    /// Parts of it: supervisors, processes inside, the server, the kernel.
    pub parts: [f64; 4],
}

impl Many {
    /// The cost of a sandbox, in MiB.
    pub fn cost_mib(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|round| round.fall / 1024.0).collect::<Vec<_>>())
    }

    /// The ratio of the p99 of creates with many to that with few.
    pub fn slowdown(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|round| round.many[1] / round.few[1]).collect::<Vec<_>>())
    }
}

pub fn measure(saggar: &Path, options: &Options, workplace: &Path) -> Result<Many> {
    let count = options.many.max(FEW + 1);
    let mut rounds = Vec::new();
    for round in 0..options.many_rounds {
        eprintln!("bench: many sandboxes, round {} of {}", round + 1, options.many_rounds);
        rounds.push(measure_round(saggar, &workplace.join(format!("many-{round}")), count, options.creates)?);
    }
    Ok(Many { count, creates: options.creates, rounds })
}

fn measure_round(saggar: &Path, directory: &Path, count: usize, creates: usize) -> Result<ManyRound> {
    let capacity = (count + FEW).to_string();
    let server = Serving::start(saggar, directory, &["--log", "warn", "--pool-max", "0", "--capacity", &capacity])?;
    let mut client = server.client();
    let mut alive = Vec::new();
    grow(&mut client, &mut alive, FEW)?;
    let mut few = time_creates(&mut client, creates / 2)?;
    let before = Reading::take(&server)?;
    grow(&mut client, &mut alive, count)?;
    let after = Reading::take(&server)?;
    let many = time_creates(&mut client, creates)?;
    for id in alive.split_off(FEW) {
        kill(&mut client, &id)?;
    }
    few.extend(time_creates(&mut client, creates - creates / 2)?);
    for id in alive {
        kill(&mut client, &id)?;
    }
    let each = |after: f64, before: f64| (after - before) / (count - FEW) as f64;
    Ok(ManyRound {
        few: [median(&few), p99(&few)],
        many: [median(&many), p99(&many)],
        fall: each(before.available, after.available),
        parts: [0, 1, 2, 3].map(|part| each(after.parts[part], before.parts[part])),
    })
}

fn grow(client: &mut Client, alive: &mut Vec<String>, count: usize) -> Result<()> {
    while alive.len() < count {
        alive.push(create(client, CREATE).with_context(|| format!("with {} alive", alive.len()))?);
    }
    Ok(())
}

fn time_creates(client: &mut Client, count: usize) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..count {
        let (id, time) = timed(|| create(client, CREATE))?;
        times.push(time);
        kill(client, &id)?;
    }
    Ok(times)
}

/// Memory at one moment, in KiB.
struct Reading {
    available: f64,
    /// Supervisors, processes inside, the server, the kernel.
    parts: [f64; 4],
}

impl Reading {
    fn take(server: &Serving) -> Result<Self> {
        pause(SETTLING);
        let available = mem_available_kib()?;
        let kernel = KERNEL.iter().map(|name| meminfo_kib(name).map(|kib| kib as f64)).sum::<Result<f64>>()?;
        let all = processes::all()?;
        let supervisors = processes::running(server.program(), &all);
        let tree = processes::tree_of(server.program(), &all);
        let pss =
            |pids: &mut dyn Iterator<Item = &u32>| -> f64 { pids.filter_map(|pid| processes::pss_kib(*pid)).sum() };
        let own = processes::pss_kib(server.pid()).context("the server is gone")?;
        let outside = pss(&mut supervisors.iter().filter(|pid| **pid != server.pid()));
        let inside = pss(&mut tree.difference(&supervisors));
        Ok(Self { available, parts: [outside, inside, own, kernel] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_of_the_slowest_hundredth() {
        let round = |few, many| ManyRound { few: [1.0, few], many: [1.0, many], fall: 1024.0, parts: [0.0; 4] };
        let rounds = vec![round(2.0, 4.0), round(2.0, 2.0), round(1.0, 3.0)];
        let many = Many { count: 1000, creates: 200, rounds };
        assert_eq!(many.slowdown(), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(many.cost_mib(), Spread { median: 1.0, min: 1.0, max: 1.0 });
    }
}
