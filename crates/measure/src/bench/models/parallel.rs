//! Tools of one reply that are called at once: how long all of them take, over the longest.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bench::options::Options;
use crate::bench::statistics::Spread;
use crate::ledger::Ledger;
use crate::runs;
use crate::serving::Serving;

/// Calls at once.
pub const CALLS: usize = 8;
/// The longest that the service takes. Each call has its own time.
const SLOWNESS: Duration = Duration::from_millis(400);

#[derive(Clone, Debug, PartialEq)]
pub struct Parallel {
    /// The time of all calls, and of the longest of them, in ms, round by round.
    pub rounds: Vec<[f64; 2]>,
}

impl Parallel {
    pub fn over_the_longest(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|[all, longest]| all / longest).collect::<Vec<_>>())
    }
}

pub fn measure(options: &Options, saggar: &Path, place: &Path) -> Result<Parallel> {
    let ledger = Ledger::start(SLOWNESS)?;
    let flags = ["--log", "warn", "--pool-max", "0", "--http-allowed", ledger.address()];
    let server = Serving::start(saggar, &place.join("parallel"), &flags)?;
    let mut client = server.client();
    let calls: Vec<Value> = (0..CALLS).map(|index| runs::http_call(&ledger.url(), format!("call {index}"))).collect();
    let mut request: Value = serde_json::from_str(&runs::request("parallel", &json!({ "http": {} }), vec![calls]))?;
    request["agent"]["parallel"] = json!(CALLS);
    let request = request.to_string();
    let mut rounds = Vec::new();
    for round in 0..=options.rounds {
        let id = runs::start(&mut client, &request)?;
        runs::wait_for_all(&mut client, std::slice::from_ref(&id))?;
        // The first round warms up.
        if round > 0 {
            rounds.push(times(&runs::journal(&mut client, &id)?)?);
        }
    }
    Ok(Parallel { rounds })
}

/// From the intent of the first call to the outcome of the last, and the longest of them, in ms.
fn times(journal: &[Value]) -> Result<[f64; 2]> {
    let (mut begun, mut spans) = (Vec::new(), Vec::new());
    for entry in journal {
        let at = || entry["at"].as_u64().context("an entry without a time");
        // The first step is the model's.
        let step = entry["step"].as_u64().filter(|step| (2..2 + CALLS as u64).contains(step));
        match (entry["event"].as_str(), step) {
            (Some("step_intended"), Some(step)) => begun.push((step, at()?)),
            (Some("step_settled"), Some(step)) => {
                let from = begun.iter().find(|(of, _)| *of == step).context("a step that was never intended")?.1;
                spans.push((from, at()?));
            }
            _ => {}
        }
    }
    ensure!(spans.len() == CALLS, "{} calls were settled", spans.len());
    let first = spans.iter().map(|(from, _)| *from).min().unwrap_or_default();
    let last = spans.iter().map(|(_, to)| *to).max().unwrap_or_default();
    let longest = slowest();
    Ok([(last - first) as f64, longest])
}

/// The longest that the service takes for any of the calls, in ms.
fn slowest() -> f64 {
    let of = |index: usize| crate::ledger::slowness(&format!("\"call {index}\""), SLOWNESS.as_millis() as u64);
    (0..CALLS).map(of).max().unwrap_or_default() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_count_from_the_first_intent_to_the_last_outcome() {
        let entry = |event: &str, step: usize, at: u64| json!({ "event": event, "step": step, "at": at });
        let mut journal = vec![entry("step_intended", 1, 1), entry("step_settled", 1, 999)];
        journal.extend((2..2 + CALLS).map(|step| entry("step_intended", step, 1000)));
        journal.extend((2..2 + CALLS).map(|step| entry("step_settled", step, 1500 + 1000 * (step as u64 % 3))));
        assert_eq!(times(&journal).unwrap(), [2500.0, slowest()]);
        assert!(slowest() > 200.0 && slowest() <= 400.0);
        assert!(times(&journal[..12]).is_err());
    }
}
