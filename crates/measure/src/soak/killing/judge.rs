//! The judge: what the ledger saw of one run, held against what its class promises and what the run itself believes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::minder::{Class, Watched, step_of};
use crate::ledger::{Arrival, result};

/// Runs of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many have ended.
    pub runs: u64,
    /// Effects that they were to have.
    pub effects: u64,
    /// Of those, asked for more than once.
    pub repeated: u64,
    /// How often another worker took one over.
    pub taken_over: u64,
}

/// What is wrong. `arrivals` are those of this run, by what it asked for.
pub fn judge(run: &Watched, journal: &[Value], arrivals: &[Arrival], tally: &mut Tally) -> Vec<String> {
    let claims = journal.iter().filter(|entry| entry["event"] == "claimed").count();
    tally.taken_over += claims.saturating_sub(1) as u64;
    tally.effects += run.class.calls() as u64;
    let believed = results(journal);
    match run.class {
        Class::Probeable => judge_lines(run, &believed),
        Class::Pure | Class::Keyed | Class::Once => judge_calls(run, &believed, arrivals, tally),
    }
}

fn judge_calls(run: &Watched, believed: &[(u64, &str)], arrivals: &[Arrival], tally: &mut Tally) -> Vec<String> {
    let mut faults = Vec::new();
    let calls = run.class.calls();
    let wanted: BTreeSet<String> = (0..calls).map(|index| format!("\"{}/{index}\"", run.tag)).collect();
    for stranger in arrivals.iter().filter(|arrival| !wanted.contains(&arrival.body)) {
        faults.push(format!("it did what nobody asked for: {}", stranger.body));
    }
    for index in 0..calls {
        let body = format!("\"{}/{index}\"", run.tag);
        let keys: Vec<&str> =
            arrivals.iter().filter(|arrival| arrival.body == body).map(|arrival| arrival.key.as_str()).collect();
        let step = step_of(index, calls) as u64;
        let Some(key) = keys.first() else {
            faults.push(format!("effect {index} was never done"));
            continue;
        };
        tally.repeated += u64::from(keys.len() > 1);
        if keys.iter().any(|other| other != key) {
            faults.push(format!("effect {index} was done under several keys: {keys:?}"));
        }
        if run.class == Class::Once && keys.len() > 1 {
            faults.push(format!("effect {index} was done {} times, and nobody said so", keys.len()));
        }
        if !believed.contains(&(step, result(key).as_str())) {
            faults.push(format!("effect {index} was done, and step {step} does not know what came of it"));
        }
    }
    faults
}

/// The lines that the last shell found are the ledger: each effect left one, in the sandbox, outside of the journal.
fn judge_lines(run: &Watched, believed: &[(u64, &str)]) -> Vec<String> {
    let calls = run.class.calls();
    let expected: String = (0..calls).map(|index| format!("step-{}\n", step_of(index, calls))).collect();
    let last = believed.last().and_then(|(_, text)| serde_json::from_str::<Value>(text).ok());
    let found = last.as_ref().and_then(|found| found["stdout"].as_str()).unwrap_or("nothing");
    if found == expected { Vec::new() } else { vec![format!("its shell found {found:?} and not {expected:?}")] }
}

/// What tools gave, by step.
fn results(journal: &[Value]) -> Vec<(u64, &str)> {
    let settled = journal.iter().filter(|entry| entry["event"] == "step_settled");
    let given = settled
        .filter_map(|entry| Some((entry["step"].as_u64()?, entry["result"]["returned"]["content"]["text"].as_str()?)));
    given.collect()
}
