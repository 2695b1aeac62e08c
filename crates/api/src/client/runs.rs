//! Runs: start, list, read, follow, signal, fork, roll back.

use hyper::Method;
use saggar_domain::RunId;
use serde_json::Value;

use super::error::Error;
use super::events::{Events, parse};
use super::resuming::Resuming;
use super::retry::fresh_key;
use super::send::{Call, Client};
use crate::route;
use crate::run::{
    DecideStep, ForkRun, JournalPage, JournalQuery, ListRuns, RaiseBudget, ReplayReport, Run, RunList, RunSaid,
    SignalRun, StartRun,
};
use crate::run_files::{RollBackRun, RolledBackRun};

impl Client {
    /// Starts a run, with a generated idempotency key.
    pub async fn start_run(&self, run: &StartRun) -> Result<Run, Error> {
        self.start_run_once(run, &fresh_key()).await
    }

    /// Starts a run, or returns the one that was started with this idempotency key before.
    pub async fn start_run_once(&self, run: &StartRun, key: &str) -> Result<Run, Error> {
        let call = self.post(route::RUNS).header(route::header::IDEMPOTENCY_KEY, key);
        call.idempotent().json(run).value().await
    }

    /// One page of runs, newest first.
    pub async fn list_runs(&self, query: &ListRuns) -> Result<RunList, Error> {
        self.get(route::RUNS).query(query).value().await
    }

    /// A handle for a run, which need not exist.
    pub fn run(&self, id: RunId) -> RunHandle {
        RunHandle { client: self.clone(), id }
    }
}

/// A run on a server.
#[derive(Clone, Debug)]
pub struct RunHandle {
    client: Client,
    id: RunId,
}

impl RunHandle {
    /// The run's id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Reads the run.
    pub async fn get(&self) -> Result<Run, Error> {
        self.call(Method::GET, route::RUN).value().await
    }

    /// A page of its journal.
    pub async fn journal(&self, query: &JournalQuery) -> Result<JournalPage, Error> {
        self.call(Method::GET, route::RUN_JOURNAL).query(query).value().await
    }

    /// Follows its journal until the run is over. Resumed after a lost connection.
    pub async fn follow(&self, query: &JournalQuery) -> Result<RunEntries, Error> {
        RunEntries::open(self.clone(), query).await
    }

    /// Sends it a message. Without an id one is generated, so that the message is delivered once even if the request
    /// is repeated.
    pub async fn signal(&self, signal: &SignalRun) -> Result<(), Error> {
        let signal = SignalRun { id: Some(signal.id.clone().unwrap_or_else(fresh_key)), ..signal.clone() };
        self.call(Method::POST, route::RUN_SIGNAL).idempotent().json(&signal).done().await
    }

    /// Pauses it: no new effect starts.
    pub async fn pause(&self) -> Result<(), Error> {
        self.call(Method::POST, route::RUN_PAUSE).idempotent().done().await
    }

    /// Resumes it.
    pub async fn resume(&self) -> Result<(), Error> {
        self.call(Method::POST, route::RUN_RESUME).idempotent().done().await
    }

    /// Cancels it for good.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.call(Method::POST, route::RUN_CANCEL).idempotent().done().await
    }

    /// Decides about a step whose outcome is unknown.
    pub async fn decide(&self, step: u64, decide: &DecideStep) -> Result<(), Error> {
        let route = route::RUN_DECIDE.replace("{step}", &step.to_string());
        self.call(Method::POST, &route).json(decide).done().await
    }

    /// Raises its budget. Without an id one is generated, so that a repeated request is effective once.
    pub async fn raise_budget(&self, raise: &RaiseBudget) -> Result<(), Error> {
        let raise = RaiseBudget { id: Some(raise.id.clone().unwrap_or_else(fresh_key)), ..raise.clone() };
        self.call(Method::POST, route::RUN_BUDGET).idempotent().json(&raise).done().await
    }

    /// Starts a new run from its history.
    pub async fn fork(&self, fork: &ForkRun) -> Result<Run, Error> {
        self.call(Method::POST, route::RUN_FORK).json(fork).value().await
    }

    /// Takes it back to the end of an earlier step.
    pub async fn roll_back(&self, back: &RollBackRun) -> Result<RolledBackRun, Error> {
        let call = self.call(Method::POST, route::RUN_ROLLBACK);
        let call = if back.generation.is_some() { call.idempotent() } else { call };
        call.json(back).value().await
    }

    /// Removes it; it must be over.
    pub async fn remove(&self) -> Result<(), Error> {
        self.call(Method::DELETE, route::RUN).done().await
    }

    /// Replays it.
    pub async fn replay(&self) -> Result<ReplayReport, Error> {
        self.call(Method::GET, route::RUN_REPLAY).value().await
    }

    /// Exports it as a fixture.
    pub async fn export(&self) -> Result<Value, Error> {
        self.call(Method::GET, route::RUN_EXPORT).value().await
    }

    fn call(&self, method: Method, template: &str) -> Call {
        self.client.request(method, &template.replace("{id}", self.id.as_str()))
    }
}

/// A run's journal as it grows. Resumed after a lost connection.
pub struct RunEntries {
    run: RunHandle,
    after: u64,
    is_live: bool,
    stream: Resuming,
    has_ended: bool,
}

impl RunEntries {
    async fn open(run: RunHandle, query: &JournalQuery) -> Result<Self, Error> {
        let (after, is_live) = (query.after.unwrap_or(0), query.live.unwrap_or(false));
        let stream = Resuming::from(connect(&run, after, is_live).await?, "following a run");
        Ok(Self { run, after, is_live, stream, has_ended: false })
    }

    /// The next entry; `None` after the run's last one.
    pub async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            match self.next_heard().await? {
                Some(Heard::Entry(entry)) => return Ok(Some(entry)),
                Some(Heard::Said(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next entry, or what the model says meanwhile if that was asked for; `None` after the run's last entry.
    pub async fn next_heard(&mut self) -> Result<Option<Heard>, Error> {
        while !self.has_ended {
            match self.stream.next(Some(async || connect(&self.run, self.after, self.is_live).await)).await? {
                Some(event) if event.event == "said" => return Ok(Some(Heard::Said(parse(&event)?))),
                Some(event) => {
                    let entry: Value = parse(&event)?;
                    self.after = entry["seq"].as_u64().unwrap_or(self.after);
                    self.has_ended = entry["event"] == "run_finished";
                    return Ok(Some(Heard::Entry(entry)));
                }
                // The run may have ended while the connection was lost, after the last entry that we have.
                None => {
                    let run = self.run.get().await;
                    self.has_ended = run.is_ok_and(|run| run.outcome.is_some() && run.entries <= self.after);
                }
            }
        }
        Ok(None)
    }
}

/// What one hears who follows a run.
pub enum Heard {
    /// An entry of its journal.
    Entry(Value),
    /// A piece of a reply.
    Said(RunSaid),
}

async fn connect(run: &RunHandle, after: u64, is_live: bool) -> Result<Events, Error> {
    let query = JournalQuery { after: None, live: is_live.then_some(true) };
    let call = run.call(Method::GET, route::RUN_JOURNAL).query(&query);
    Events::open(call.header(route::header::LAST_EVENT_ID, &after.to_string())).await
}
