//! What projects spend on models: an account for each, with amounts that are set aside before a call and replaced by its cost after it.
//!
//! An account is one value in `meta`, changed in one transaction: whoever asks at the same time, in this process or another, the limit
//! holds. An amount whose call never ended, because its process died, stays spent.

use std::collections::BTreeMap;

use rusqlite::Connection;
use saggar_domain::ProjectId;
use saggar_domain::model::{CallSum, Micros, TokenUsage};
use serde::{Deserialize, Serialize};

use crate::column;
use crate::error::Error;
use crate::meta;
use crate::sandbox_call::{self, Fits, NewSandboxCall, TooMuch};
use crate::store::Store;
use crate::writer::Durability;

/// The version of an account's form.
const VERSION: u32 = 1;
/// Days that are kept one by one. Earlier ones are summed up.
const DAYS_KEPT: u64 = 62;
/// Days after which a call that has not been settled never will be.
const OPEN_DAYS_MAX: u64 = 1;
/// Calls of a project that have an amount set aside at once.
pub const OPEN_CALLS_MAX: usize = 10_000;
/// Routes of a project with sums of their own. Others are summed up under an empty name.
const ROUTES_MAX: usize = 1_000;

/// What came of setting an amount aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAside {
    Done {
        /// Whether a budget of the run limits it.
        by_run: bool,
    },
    /// It doesn't fit the project's budget. What is spent and set aside so far.
    Exhausted {
        gone: Micros,
    },
    /// It doesn't fit what the run's budget leaves.
    RunExhausted(TooMuch),
    RunOver,
}

/// A call that is about to begin, and whose budgets it has to fit.
#[derive(Clone, Debug)]
pub struct NewCall {
    /// Unique.
    pub call: String,
    /// `None` if the project has no budget.
    pub account: Option<NewAmount>,
    /// For a program in a sandbox of a run.
    pub of_run: Option<NewSandboxCall>,
}

/// An amount of a project's budget.
#[derive(Clone, Debug)]
pub struct NewAmount {
    pub project: ProjectId,
    pub amount: Micros,
    /// What may be spent from `first_day` on. Days count from 1970.
    pub limit: Micros,
    pub first_day: u64,
    pub day: u64,
}

/// A call that has ended.
#[derive(Clone, Debug)]
pub struct EndedCall {
    pub project: ProjectId,
    pub call: String,
    pub route: String,
    pub usage: TokenUsage,
    pub day: u64,
}

/// A project's spending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub today: Micros,
    pub in_all: Micros,
    /// Of calls under way.
    pub set_aside: Micros,
    pub routes: BTreeMap<String, CallSum>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Account {
    v: u32,
    /// Micro-dollars by day.
    days: BTreeMap<u64, u64>,
    earlier: u64,
    /// Calls that are under way: the day, and what is set aside.
    open: BTreeMap<String, (u64, u64)>,
    routes: BTreeMap<String, CallSum>,
}

impl Store {
    /// Sets aside what a call may come to, if it fits every budget that it has.
    pub async fn set_aside(&self, new: NewCall) -> Result<SetAside, Error> {
        let work = move |connection: &Connection| {
            let fits = match &new.of_run {
                Some(of_run) => sandbox_call::fits(connection, of_run)?,
                None => Fits::Yes { is_limited: false },
            };
            let by_run = match fits {
                Fits::Yes { is_limited } => is_limited,
                Fits::No(too_much) => return Ok(SetAside::RunExhausted(too_much)),
                Fits::RunOver => return Ok(SetAside::RunOver),
            };
            if let Some(of_account) = &new.account {
                let mut account = read(connection, &of_account.project)?;
                account.tidy(of_account.day);
                let gone = account.gone(of_account.first_day);
                if gone.plus(of_account.amount) > of_account.limit {
                    return Ok(SetAside::Exhausted { gone });
                }
                if account.open.len() >= OPEN_CALLS_MAX {
                    return Err(Error::TooMany { what: "model calls under way in the project" });
                }
                account.open.insert(new.call.clone(), (of_account.day, of_account.amount.0));
                write(connection, &of_account.project, &account)?;
            }
            if let Some(of_run) = &new.of_run {
                sandbox_call::begin(connection, &new.call, of_run)?;
            }
            Ok(SetAside::Done { by_run })
        };
        self.write(Durability::Process, work).await
    }

    /// Books a call, with its project and with the run whose sandbox asked, and gives back what was set aside for it.
    pub async fn book(&self, ended: EndedCall) -> Result<(), Error> {
        let work = move |connection: &Connection| {
            let mut account = read(connection, &ended.project)?;
            account.open.remove(&ended.call);
            account.tidy(ended.day);
            account.add(ended.day, ended.usage.cost.0);
            let is_known = account.routes.contains_key(&ended.route) || account.routes.len() < ROUTES_MAX;
            let route = if is_known { ended.route.clone() } else { String::new() };
            let sum = account.routes.entry(route).or_default();
            sum.add(&ended.usage);
            write(connection, &ended.project, &account)?;
            sandbox_call::end(connection, &ended.call, Some(&ended.usage))
        };
        self.write(Durability::Process, work).await
    }

    pub async fn spent(&self, project: ProjectId, day: u64) -> Result<Spent, Error> {
        let account = self.read(move |connection| read(connection, &project)).await?;
        Ok(Spent {
            today: Micros(account.days.get(&day).copied().unwrap_or(0)),
            in_all: Micros(account.days.values().fold(account.earlier, |sum, day| sum.saturating_add(*day))),
            set_aside: account.set_aside(),
            routes: account.routes,
        })
    }
}

impl Account {
    fn set_aside(&self) -> Micros {
        Micros(self.open.values().fold(0, |sum, (_, amount)| sum.saturating_add(*amount)))
    }

    fn gone(&self, first_day: u64) -> Micros {
        let earlier = if first_day == 0 { self.earlier } else { 0 };
        let days = self.days.range(first_day..).fold(earlier, |sum, (_, day)| sum.saturating_add(*day));
        Micros(days).plus(self.set_aside())
    }

    fn add(&mut self, day: u64, micros: u64) {
        let of_day = self.days.entry(day).or_default();
        *of_day = of_day.saturating_add(micros);
    }

    /// Sums up old days, and counts calls as spent that will never be settled.
    fn tidy(&mut self, today: u64) {
        let lost: Vec<(String, u64, u64)> = self
            .open
            .iter()
            .filter(|(_, (day, _))| day + OPEN_DAYS_MAX < today)
            .map(|(call, (day, amount))| (call.clone(), *day, *amount))
            .collect();
        for (call, day, amount) in lost {
            self.open.remove(&call);
            self.add(day, amount);
        }
        while let Some((day, micros)) = self.days.first_key_value().map(|(day, micros)| (*day, *micros))
            && day + DAYS_KEPT < today
        {
            self.days.remove(&day);
            self.earlier = self.earlier.saturating_add(micros);
        }
    }
}

fn key(project: &ProjectId) -> String {
    format!("spending/{project}")
}

fn read(connection: &Connection, project: &ProjectId) -> Result<Account, Error> {
    let text: Option<String> = column::one(connection, meta::GET, [key(project)], |row| column::plain(row, "value"))?;
    let Some(text) = text else { return Ok(Account { v: VERSION, ..Account::default() }) };
    let account: Account =
        serde_json::from_str(&text).map_err(|_| Error::corrupt("a project's spending can't be parsed"))?;
    if account.v > VERSION { Err(Error::corrupt("a project's spending is of a newer version")) } else { Ok(account) }
}

fn write(connection: &Connection, project: &ProjectId, account: &Account) -> Result<(), Error> {
    column::execute(connection, meta::SET, (key(project), column::to_json(account)))?;
    Ok(())
}
