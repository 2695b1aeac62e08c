//! Calls of models by programs in the sandboxes of runs. They begin and end in the server, while the run's budget is its worker's
//! business, who may be another process: here the two meet.
//!
//! ```text
//!   server: set_aside ── fits what the run leaves? ──▶ a row ── book ──▶ added to a sum, and the row is gone
//!   worker: reads rows and sums, records them in the journal, and writes what the budget leaves with each append
//! ```
//! INVARIANT: each call is in a row or in a sum, never in both. A row whose process died is billed in full when the next server
//! begins. What a journal has is a copy: a newer one replaces it, so nothing is counted twice.

use std::collections::BTreeMap;

use rusqlite::Connection;
use saggar_domain::model::{CallAmount, CallSum, Micros, SandboxCalls, TokenUsage, UsageSource};
use saggar_domain::{RunId, RunState};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// Calls of a run's sandboxes that are under way at once.
pub const SANDBOX_CALLS_MAX: usize = 2_000;
/// Models of a run with sums of their own. Others are summed up under an empty name.
const MODELS_MAX: usize = 100;

const LEFT: &str = "SELECT state, left_tokens, left_micros FROM run WHERE id = ?1";
const UNDER_WAY: &str = "SELECT input, output, micros FROM sandbox_call WHERE run_id = ?1";
const SUMS: &str = "SELECT model, sum_json FROM sandbox_call_sum WHERE run_id = ?1";
const BEGIN: &str = "
    INSERT INTO sandbox_call (call, run_id, model, input, output, micros) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const FIND: &str = "SELECT run_id, model, input, output, micros FROM sandbox_call WHERE call = ?1";
const ALL: &str = "SELECT call FROM sandbox_call";
const END: &str = "DELETE FROM sandbox_call WHERE call = ?1";
const SET_SUM: &str = "
    INSERT INTO sandbox_call_sum (run_id, model, sum_json) VALUES (?1, ?2, ?3)
    ON CONFLICT (run_id, model) DO UPDATE SET sum_json = excluded.sum_json";
const FORGET: &str = "DELETE FROM sandbox_call WHERE run_id = ?1";
const FORGET_SUMS: &str = "DELETE FROM sandbox_call_sum WHERE run_id = ?1";
const FINISHED: &str = "
    SELECT id FROM run WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'finished'";

/// A call that is about to begin, and the most that it may come to.
#[derive(Clone, Debug)]
pub struct NewSandboxCall {
    pub run: RunId,
    /// As the program named it.
    pub model: String,
    pub input: u64,
    pub output: u64,
    pub cost: Micros,
}

/// Whether a call may begin, as far as its run's budget says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fits {
    /// Whether any budget of the run limits it.
    Yes {
        is_limited: bool,
    },
    No(TooMuch),
    RunOver,
}

/// What a run's budget leaves, and what a call may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMuch {
    Tokens { left: u64, wanted: u64 },
    Micros { left: u64, wanted: u64 },
}

/// What a run's budget leaves for calls of its sandboxes, all of them together; `None` if it has no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftForSandboxes {
    pub tokens: Option<u64>,
    pub micros: Option<u64>,
}

impl LeftForSandboxes {
    /// The first budget that so much exceeds.
    fn refuses(&self, used: CallAmount, wanted: CallAmount) -> Option<TooMuch> {
        let all = used.plus(wanted);
        if let Some(limit) = self.tokens.filter(|limit| all.tokens > *limit) {
            return Some(TooMuch::Tokens { left: limit.saturating_sub(used.tokens), wanted: wanted.tokens });
        }
        let limit = self.micros.filter(|limit| all.micros > *limit)?;
        Some(TooMuch::Micros { left: limit.saturating_sub(used.micros), wanted: wanted.micros })
    }

    /// Whether calls that have come to so much exceed it.
    pub fn is_exceeded_by(&self, used: CallAmount) -> bool {
        self.refuses(used, CallAmount::default()).is_some()
    }
}

impl Store {
    /// What programs in a run's sandboxes have asked of models so far.
    pub async fn sandbox_calls(&self, run: RunId) -> Result<SandboxCalls, Error> {
        self.read(move |connection| read(connection, &run)).await
    }

    /// Bills calls whose process died: all that was set aside for them. Only for the server, before any sandbox reaches it.
    pub async fn bill_lost_sandbox_calls(&self) -> Result<usize, Error> {
        let work = move |connection: &Connection| {
            let lost = column::all(connection, ALL, [], |row| column::plain::<String>(row, "call"))?;
            for call in &lost {
                end(connection, call, None)?;
            }
            Ok(lost.len())
        };
        self.write(Durability::Process, work).await
    }

    /// Those of the runs that have finished.
    pub async fn finished_of(&self, runs: Vec<RunId>) -> Result<Vec<RunId>, Error> {
        self.read(move |connection| {
            let runs = column::to_json(&runs.iter().map(RunId::as_str).collect::<Vec<_>>());
            column::all(connection, FINISHED, [runs], |row| column::parsed(row, "id", RunId::parse))
        })
        .await
    }
}

pub(crate) fn read(connection: &Connection, run: &RunId) -> Result<SandboxCalls, Error> {
    Ok(SandboxCalls { models: sums(connection, run)?, under_way: under_way(connection, run)?.0 })
}

/// Calls that have ended.
fn sums(connection: &Connection, run: &RunId) -> Result<BTreeMap<String, CallSum>, Error> {
    let sums = column::all(connection, SUMS, [run.as_str()], |row| {
        Ok((column::plain(row, "model")?, column::json(row, "sum_json")?))
    })?;
    Ok(sums.into_iter().collect())
}

/// What is set aside, and for how many calls.
fn under_way(connection: &Connection, run: &RunId) -> Result<(CallAmount, usize), Error> {
    let open = column::all(connection, UNDER_WAY, [run.as_str()], |row| {
        let tokens = column::number(row, "input")?.saturating_add(column::number(row, "output")?);
        Ok(CallAmount { tokens, micros: column::number(row, "micros")? })
    })?;
    Ok((open.iter().fold(CallAmount::default(), |sum, one| sum.plus(*one)), open.len()))
}

/// Whether all that a call may come to fits what its run leaves.
pub(crate) fn fits(connection: &Connection, new: &NewSandboxCall) -> Result<Fits, Error> {
    let left = column::one(connection, LEFT, [new.run.as_str()], |row| {
        let left = LeftForSandboxes {
            tokens: column::number_optional(row, "left_tokens")?,
            micros: column::number_optional(row, "left_micros")?,
        };
        Ok((column::parsed(row, "state", RunState::parse)?, left))
    })?;
    let Some((_, left)) = left.filter(|(state, _)| *state != RunState::Finished) else { return Ok(Fits::RunOver) };
    let (under_way, open) = under_way(connection, &new.run)?;
    if open >= SANDBOX_CALLS_MAX {
        return Err(Error::TooMany { what: "model calls under way in the sandboxes of the run" });
    }
    let wanted = CallAmount { tokens: new.input.saturating_add(new.output), micros: new.cost.0 };
    let calls = SandboxCalls { models: sums(connection, &new.run)?, under_way };
    Ok(match left.refuses(calls.at_most(), wanted) {
        Some(too_much) => Fits::No(too_much),
        None => Fits::Yes { is_limited: left != LeftForSandboxes::default() },
    })
}

pub(crate) fn begin(connection: &Connection, call: &str, new: &NewSandboxCall) -> Result<(), Error> {
    let (input, output, micros) = (column::count(new.input), column::count(new.output), column::count(new.cost.0));
    column::execute(connection, BEGIN, (call, new.run.as_str(), &new.model, input, output, micros))?;
    Ok(())
}

/// Books a call that has begun; `None` bills all that was set aside. Does nothing for any other.
pub(crate) fn end(connection: &Connection, call: &str, usage: Option<&TokenUsage>) -> Result<(), Error> {
    let begun = column::one(connection, FIND, [call], |row| {
        let set_aside = TokenUsage {
            input: column::number(row, "input")?,
            output: column::number(row, "output")?,
            cost: Micros(column::number(row, "micros")?),
            source: UsageSource::Estimated,
            ..TokenUsage::default()
        };
        Ok((column::parsed(row, "run_id", RunId::parse)?, column::plain::<String>(row, "model")?, set_aside))
    })?;
    let Some((run, model, set_aside)) = begun else { return Ok(()) };
    column::execute(connection, END, [call])?;
    let mut sums = sums(connection, &run)?;
    let is_known = sums.contains_key(&model) || sums.len() < MODELS_MAX;
    let model = if is_known { model } else { String::new() };
    let sum: &mut CallSum = sums.entry(model.clone()).or_default();
    sum.add(usage.unwrap_or(&set_aside));
    column::execute(connection, SET_SUM, (run.as_str(), &model, column::to_json(sum)))?;
    Ok(())
}

/// For a run whose rows are deleted.
pub(crate) fn forget(connection: &Connection, run: &RunId) -> Result<(), Error> {
    column::execute(connection, FORGET, [run.as_str()])?;
    column::execute(connection, FORGET_SUMS, [run.as_str()])?;
    Ok(())
}
