//! The report on templates: targets and results.

use super::measured::{Measured, Round};
use super::{BUILDS, IMPORT_BYTES, LARGE_MIB, LARGE_TIMES, POOLED, SMALL_FILES, SMALL_TIMES, STARTS};
use crate::bench::report::{NOTHING, circumstances};
use crate::bench::statistics::Spread;
use crate::bench::table::Table;
use crate::bench::target::{self, Bound, Target};
use crate::machine::{Load, Machine};

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    idle_sandboxes: usize,
    measured: Measured,
    loads: [Load; 2],
}

impl Report {
    /// `loads` are the load averages before and after.
    pub fn new(machine: Machine, idle_sandboxes: usize, measured: Measured, loads: [Load; 2]) -> Self {
        Self { targets: targets(&measured), machine, idle_sandboxes, measured, loads }
    }

    pub fn text(&self) -> String {
        let sections = [
            circumstances(&self.machine, self.loads) + "\n",
            target::table(&self.targets).to_string(),
            starts(&self.measured, self.idle_sandboxes),
            files(&self.measured),
        ];
        sections.join("\n")
    }
}

fn targets(measured: &Measured) -> Vec<Target> {
    let target = |name, bound, unit, value: &dyn Fn(&Round) -> Option<f64>| {
        let values: Option<Vec<f64>> = measured.rounds.iter().map(value).collect();
        let values = values.filter(|values| !values.is_empty());
        let measured = values.map(|values| Spread::of(&values)).ok_or_else(|| "left out by --many 0".to_owned());
        Target { name, bound, unit, measured }
    };
    vec![
        target("a sandbox from an image, over the host's", Bound::AtMost(1.2), "×", &|round| {
            Some(round.start_ratio())
        }),
        target("the same from a server's pools", Bound::AtMost(1.2), "×", &|round| Some(round.pooled_ratio())),
        target("its files on disk, added", Bound::AtMost(30.0), " ms", &|round| Some(round.disk_added_ms())),
        target("import, speed of `tar xzf`", Bound::AtLeast(0.8), "×", &|round| Some(round.import_speed())),
        target("a build that is cached as a whole", Bound::AtMost(50.0), " ms", &|round| Some(round.cached_build_ms)),
        target("an idle sandbox from an image, over the host's", Bound::AtMost(1.1), "×", &Round::idle_ratio),
        target("small files in memory, speed of tmpfs", Bound::AtLeast(0.7), "×", &|round| Some(round.files()[0])),
        target("a large file in memory, speed of tmpfs", Bound::AtLeast(0.7), "×", &|round| Some(round.files()[1])),
        target("small files on disk, speed of the disk", Bound::AtLeast(0.7), "×", &|round| Some(round.files()[2])),
        target("a large file on disk, speed of the disk", Bound::AtLeast(0.7), "×", &|round| Some(round.files()[3])),
    ]
}

fn starts(measured: &Measured, idle_sandboxes: usize) -> String {
    let mut table = Table::new([
        "round",
        "host",
        "image",
        "on disk",
        "pooled, host",
        "pooled, image",
        "tar xzf",
        "and sync",
        "import",
        "cached build",
        "idle, host",
        "idle, image",
    ]);
    for (number, round) in measured.rounds.iter().enumerate() {
        let times = round.start_ms.iter().chain(&round.pooled_ms).map(|ms| format!("{ms:.1}"));
        let imports = round.import_ms.iter().map(|ms| format!("{ms:.0}"));
        let build = [format!("{:.1}", round.cached_build_ms)];
        let idle = match round.idle_kib {
            Some(kib) => kib.map(|kib| format!("{kib:.0}")),
            None => [NOTHING, NOTHING].map(str::to_owned),
        };
        table.add(std::iter::once((number + 1).to_string()).chain(times).chain(imports).chain(build).chain(idle));
    }
    format!(
        "Times in ms: the median of {STARTS} starts of `saggar run` until its end, and of {POOLED} lives of sandboxes from a server's pools, an image of {} MB, and the median of {BUILDS} builds of five cached steps. Memory of each of {idle_sandboxes} idle sandboxes in KiB.\n\n{table}",
        IMPORT_BYTES / 1_000_000
    )
}

fn files(measured: &Measured) -> String {
    let mut table =
        Table::new(["round", "small: tmpfs", "memory", "disk", "on disk", "large: tmpfs", "memory", "disk", "on disk"]);
    for (number, round) in measured.rounds.iter().enumerate() {
        let cells = round.small_ms.iter().chain(&round.large_ms).map(|ms| format!("{ms:.0}"));
        table.add(std::iter::once((number + 1).to_string()).chain(cells));
    }
    format!(
        "Times in ms: {SMALL_FILES} small files, {SMALL_TIMES} times, and a file of {LARGE_MIB} MiB, {LARGE_TIMES} times, each written, read and removed. Bare, and in a sandbox.\n\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_ratios_of_what_took_turns() {
        let round = Round {
            start_ms: [10.0, 11.0, 21.0],
            pooled_ms: [4.0, 5.0],
            import_ms: [900.0, 1200.0, 1000.0],
            cached_build_ms: 20.0,
            idle_kib: Some([1000.0, 1050.0]),
            small_ms: [80.0, 100.0, 160.0, 200.0],
            large_ms: [90.0, 100.0, 180.0, 200.0],
        };
        let medians = |round: Round| -> Vec<String> {
            let targets = targets(&Measured { rounds: vec![round] });
            let text = |target: &Target| match &target.measured {
                Ok(spread) => format!("{:.2}", spread.median),
                Err(why) => why.clone(),
            };
            targets.iter().map(text).collect()
        };
        assert_eq!(
            medians(round.clone()),
            ["1.10", "1.25", "10.00", "0.90", "20.00", "1.05", "0.80", "0.90", "0.80", "0.90"]
        );
        assert_eq!(medians(Round { idle_kib: None, ..round })[5], "left out by --many 0");
    }
}
