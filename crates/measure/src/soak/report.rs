//! The report on a soak, as Markdown.

use std::time::Duration;

use super::census::Census;
use super::cycles::Cycles;
use super::storm::Storm;
use crate::bench::table::Table;
use crate::machine::{Load, Machine};

#[derive(Debug)]
pub struct Report {
    /// Everything that was left over, lost or done twice.
    pub faults: Vec<String>,
    machine: Machine,
    seed: u64,
    time: Duration,
    cycles: Cycles,
    storm: Option<Storm>,
    loads: [Load; 2],
}

impl Report {
    pub fn new(
        machine: Machine,
        seed: u64,
        time: Duration,
        cycles: Cycles,
        storm: Option<Storm>,
        loads: [Load; 2],
    ) -> Self {
        let faults = cycles.faults.iter().chain(storm.iter().flat_map(|storm| &storm.faults)).cloned().collect();
        Self { faults, machine, seed, time, cycles, storm, loads }
    }

    pub fn text(&self) -> String {
        let [before, after] = self.loads;
        let mut lines = vec![
            format!(
                "- soaked on {} for {} s, with `make soak`, seed {}",
                self.machine.date,
                self.time.as_secs(),
                self.seed
            ),
            format!("- {}", self.machine.text()),
            format!("- load average before: {before}; after: {after}"),
        ];
        match self.faults.as_slice() {
            [] => lines.push("- **nothing grew, nothing was lost, nothing was left**".to_owned()),
            faults => lines.extend(faults.iter().map(|fault| format!("- **FAULT**: {fault}"))),
        }
        let mut sections = vec![lines.join("\n") + "\n", self.cycles_section()];
        sections.extend(self.storm.as_ref().map(storm_section));
        sections.join("\n")
    }

    fn cycles_section(&self) -> String {
        let Cycles { done, time, samples, store_bytes, .. } = &self.cycles;
        let mut table = census_table("lives");
        for (lives, census) in samples {
            table.add(row(&lives.to_string(), census));
        }
        let [new, emptied] = store_bytes.map(|bytes| bytes / 1024);
        format!(
            "{done} lives in {} s on one server. The store used {new} KiB when it was new and {emptied} KiB when it had forgotten them all.\n\n{table}",
            time.as_secs()
        )
    }
}

fn storm_section(storm: &Storm) -> String {
    let Storm { kills, starts, made, commands, unanswered, census, .. } = storm;
    let slowest = starts.iter().copied().fold(0.0, f64::max);
    let mut table = census_table("after");
    table.add(row("all was ended", census));
    format!(
        "Then the server was killed {kills} times under load: {made} sandboxes were made, {unanswered} requests got no answer, and the lines of {commands} \
acknowledged commands were counted before their sandbox was ended. The slowest start took {slowest:.0} ms until everything was adopted and the server listened.\n\n{table}"
    )
}

fn census_table(first: &str) -> Table {
    Table::new([
        first,
        "processes",
        "mounts",
        "cgroups",
        "namespaces",
        "descriptors",
        "RSS, KiB",
        "files",
        "data, KiB",
        "kernel's slab, KiB",
    ])
}

fn row(first: &str, census: &Census) -> Vec<String> {
    let Census { processes, mounts, cgroups, namespaces, descriptors, rss_kib, files, disk_kib, slab_kib } = census;
    let counts = [processes, mounts, cgroups, namespaces, descriptors].map(ToString::to_string);
    [
        &[first.to_owned()],
        &counts[..],
        &[rss_kib.to_string(), files.to_string(), disk_kib.to_string(), slab_kib.to_string()],
    ]
    .concat()
}
