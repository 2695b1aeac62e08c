//! The report on kills, as Markdown.

use super::Killing;
use super::minder::Class;
use crate::bench::table::Table;
use crate::machine::{Load, Machine};

#[derive(Debug)]
pub struct Report {
    machine: Machine,
    seed: u64,
    killing: Killing,
    loads: [Load; 2],
}

impl Report {
    pub fn new(machine: Machine, seed: u64, killing: Killing, loads: [Load; 2]) -> Self {
        Self { machine, seed, killing, loads }
    }

    /// Runs that were lost, done twice or ended differently.
    pub fn faults(&self) -> &[String] {
        &self.killing.minded.faults
    }

    pub fn text(&self) -> String {
        let Killing { kills: [workers, servers], start_max, time, minded } = &self.killing;
        let [before, after] = self.loads;
        let mut lines = vec![
            format!("- soaked on {} for {} s, with `make soak`, seed {}", self.machine.date, time.as_secs(), self.seed),
            format!("- {}", self.machine.text()),
            format!("- load average before: {before}; after: {after}"),
        ];
        match minded.faults.as_slice() {
            [] => lines.push("- **nothing was lost, nothing was done twice, every run came to its end**".to_owned()),
            faults => lines.extend(faults.iter().map(|fault| format!("- **FAULT**: {fault}"))),
        }
        let mut table = Table::new([
            "class",
            "runs that ended",
            "effects",
            "asked for more than once",
            "taken over by another worker",
        ]);
        for (class, tally) in Class::ALL.into_iter().zip(minded.tallies) {
            let counts = [tally.runs, tally.effects, tally.repeated, tally.taken_over].map(|count| count.to_string());
            table.add([&[class.name().to_owned()], &counts[..]].concat());
        }
        let [decided, done] = minded.decided;
        format!(
            "{}\n\nWorkers were killed {workers} times and the server {servers} times; its slowest start took {start_max:.0} ms. {decided} steps parked and \
were decided, {done} of them because they had been done. {} requests got no answer.\n\n{table}",
            lines.join("\n"),
            minded.unanswered
        )
    }
}
