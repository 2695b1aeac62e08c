//! Compares what the ledger saw of one run with what its class promises and with the run's own journal.

use std::collections::BTreeSet;

use serde_json::Value;

use super::minder::{Class, Watched, step_of};
use crate::ledger::{Arrival, result};

/// Runs of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of ended runs.
    pub runs: u64,
    /// Effects that they should have.
    pub effects: u64,
    /// Number of these that were requested more than once.
    pub repeated: u64,
    /// How often another worker took over a run.
    pub taken_over: u64,
}

/// The faults of a run. `arrivals` are the requests of this run.
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
        faults.push(format!("it had an effect that was not requested: {}", stranger.body));
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
            faults.push(format!("effect {index} was done {} times without being reported", keys.len()));
        }
        if !believed.contains(&(step, result(key).as_str())) {
            faults.push(format!("effect {index} was done, but step {step} has no result"));
        }
    }
    faults
}

/// For shell effects the lines in the sandbox's file are the ledger: each effect left one, outside of the journal.
fn judge_lines(run: &Watched, believed: &[(u64, &str)]) -> Vec<String> {
    let calls = run.class.calls();
    let expected: String = (0..calls).map(|index| format!("step-{}\n", step_of(index, calls))).collect();
    let last = believed.last().and_then(|(_, text)| serde_json::from_str::<Value>(text).ok());
    let found = last.as_ref().and_then(|found| found["stdout"].as_str()).unwrap_or("nothing");
    if found == expected { Vec::new() } else { vec![format!("its shell found {found:?} and not {expected:?}")] }
}

/// Tool results by step.
fn results(journal: &[Value]) -> Vec<(u64, &str)> {
    let settled = journal.iter().filter(|entry| entry["event"] == "step_settled");
    let given = settled
        .filter_map(|entry| Some((entry["step"].as_u64()?, entry["result"]["returned"]["content"]["text"].as_str()?)));
    given.collect()
}
