//! Targets, and whether the measurements meet them.

use super::contender::Contender;
use super::idle::Idle;
use super::report::NOTHING;
use super::rounds::Round;
use super::statistics::Spread;
use super::table::Table;

/// Maximum ratio of our time to bubblewrap's.
const OVER_BUBBLEWRAP_MAX: f64 = 0.85;
/// Minimum ratio of runc's time to ours.
const RUNC_OVER_MIN: f64 = 6.5;
/// How many times `/bin/true`'s time the binary may take to print its version.
const VERSION_OVER_BARE_MAX: f64 = 1.0;
/// Maximum cost of an idle sandbox, in MiB.
const IDLE_MIB_MAX: f64 = 2.0;

#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub name: &'static str,
    pub bound: Bound,
    /// The unit of the numbers, with a leading space if it has one.
    pub unit: &'static str,
    /// One value per round, summarised; or why there is none.
    pub measured: Result<Spread, String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The median over rounds meets the target.
    Met,
    Missed,
    NotMeasured,
}

impl Target {
    /// `absent` says why a contender did not take part.
    pub fn all(rounds: &[Round], idle: Option<&Idle>, absent: impl Fn(Contender) -> String) -> Vec<Self> {
        let ratios = |of: Contender, to: Contender, peer: Contender| {
            let ratios: Option<Vec<f64>> = rounds.iter().map(|round| round.ratio(of, to)).collect();
            ratios.filter(|ratios| !ratios.is_empty()).map(|ratios| Spread::of(&ratios)).ok_or_else(|| absent(peer))
        };
        let mib = |kib: Spread| Spread { median: kib.median / 1024.0, min: kib.min / 1024.0, max: kib.max / 1024.0 };
        vec![
            Self {
                name: "saggar's time over bubblewrap's",
                bound: Bound::AtMost(OVER_BUBBLEWRAP_MAX),
                unit: "×",
                measured: ratios(Contender::Saggar, Contender::Bubblewrap, Contender::Bubblewrap),
            },
            Self {
                name: "runc's time over saggar's",
                bound: Bound::AtLeast(RUNC_OVER_MIN),
                unit: "×",
                measured: ratios(Contender::Runc, Contender::Saggar, Contender::Runc),
            },
            Self {
                name: "saggar --version over /bin/true",
                bound: Bound::AtMost(VERSION_OVER_BARE_MAX),
                unit: "×",
                measured: ratios(Contender::Version, Contender::Bare, Contender::Version),
            },
            Self {
                name: "an idle sandbox, above its program",
                bound: Bound::AtMost(IDLE_MIB_MAX),
                unit: " MiB",
                measured: match idle.map(|idle| mib(idle.cost_kib())) {
                    None => Err("left out by --idle 0".to_owned()),
                    Some(Spread { min, max, .. }) if min <= 0.0 => Err(format!(
                        "a round came out at {min:.2} MiB and another at {max:.2}, so something else moves memory; measure when it is quiet"
                    )),
                    Some(cost) => Ok(cost),
                },
            },
        ]
    }

    /// Whether the median over rounds meets the target.
    pub fn verdict(&self) -> Verdict {
        match &self.measured {
            Ok(spread) if self.bound.holds(spread.median) => Verdict::Met,
            Ok(_) => Verdict::Missed,
            Err(_) => Verdict::NotMeasured,
        }
    }

    /// The verdict as text; says so if not every round agrees.
    pub fn verdict_text(&self) -> String {
        let is_split = |spread: &Spread| self.bound.holds(spread.min) != self.bound.holds(spread.max);
        let but = if self.measured.as_ref().is_ok_and(is_split) { ", not in every round" } else { "" };
        match (self.verdict(), &self.measured) {
            (Verdict::Met, _) => format!("met{but}"),
            (Verdict::Missed, _) if but.is_empty() => "MISSED".to_owned(),
            (Verdict::Missed, _) => "MISSED, not in every round".to_owned(),
            // The rest of a longer reason, such as the end of a log, is in what the benchmark prints.
            (Verdict::NotMeasured, Err(reason)) => {
                format!("NOT MEASURED: {}", reason.lines().next().unwrap_or_default())
            }
            (Verdict::NotMeasured, Ok(_)) => unreachable!("what is not measured has a reason"),
        }
    }

    pub fn bound_text(&self) -> String {
        match self.bound {
            Bound::AtMost(limit) => format!("≤ {limit}{}", self.unit),
            Bound::AtLeast(limit) => format!("≥ {limit}{}", self.unit),
        }
    }
}

/// All targets with their verdicts.
pub fn table(targets: &[Target]) -> Table {
    let mut table = Table::new(["target", "promised", "measured", "min..max over rounds", "verdict"]);
    for target in targets {
        let (median, spread) = match target.measured {
            Ok(Spread { median, min, max }) => (format!("{median:.2}{}", target.unit), format!("{min:.2}..{max:.2}")),
            Err(_) => (NOTHING.to_owned(), NOTHING.to_owned()),
        };
        table.add([target.name.to_owned(), target.bound_text(), median, spread, target.verdict_text()]);
    }
    table
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::idle::IdleRound;

    fn check_verdict(bound: Bound, [min, median, max]: [f64; 3], expected: &str) {
        let target = Target { name: "a thing", bound, unit: "×", measured: Ok(Spread { median, min, max }) };
        assert_eq!(target.verdict_text(), expected, "{target:?}");
    }

    #[test]
    fn a_verdict_goes_by_the_median_and_tells_a_split() {
        check_verdict(Bound::AtMost(1.0), [0.8, 0.9, 1.0], "met");
        check_verdict(Bound::AtMost(1.0), [0.8, 0.9, 1.1], "met, not in every round");
        check_verdict(Bound::AtMost(1.0), [0.9, 1.01, 1.1], "MISSED, not in every round");
        check_verdict(Bound::AtMost(1.0), [1.1, 1.2, 1.3], "MISSED");
        check_verdict(Bound::AtLeast(6.0), [6.0, 7.0, 8.0], "met");
        check_verdict(Bound::AtLeast(6.0), [3.0, 4.0, 5.0], "MISSED");
    }

    #[test]
    fn a_cost_below_nothing_is_no_measurement() {
        let round = |sandboxed_kib| IdleRound { sandboxed_kib, bare_kib: 100.0 };
        for (costs, expected) in [([500.0, 90.0, 510.0], Verdict::NotMeasured), ([500.0, 490.0, 510.0], Verdict::Met)] {
            let idle = Idle { sandboxes: 50, caches_were_dropped: false, rounds: costs.map(round).to_vec() };
            let targets = Target::all(&[], Some(&idle), |_| String::new());
            assert_eq!(targets[3].verdict(), expected, "{:?}", targets[3]);
        }
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let targets = Target::all(&[], None, |contender| format!("{} is not installed", contender.name()));
        let texts: Vec<String> = targets.iter().map(Target::verdict_text).collect();
        let expected = [
            "bubblewrap is not installed",
            "runc is not installed",
            "saggar --version is not installed",
            "left out by --idle 0",
        ];
        assert_eq!(texts, expected.map(|reason| format!("NOT MEASURED: {reason}")));
        assert!(targets.iter().all(|target| target.verdict() == Verdict::NotMeasured));
    }
}
