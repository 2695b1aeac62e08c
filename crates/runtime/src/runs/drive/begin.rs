//! Starts the pending effects of a run, and turns what they report into inputs.
//!
//! Nothing starts unless its intent is in the journal and this worker certainly holds the run.

use std::sync::Arc;
use std::time::Duration;

use saggar_engine as engine;
use saggar_engine::{Effect, Input, Report, Run};

use super::{Drive, Driven, Happened, Stopped};
use crate::fail_point::pass_numbered;
use crate::runs::bodies::{fetch, shelve_report};
use crate::runs::effects::{Effects, Session, Task, Work};
use crate::runs::journal::Journal;
use crate::runs::request::{fetched, request_of, summary_request_of};
use crate::runs::under_way::{Doing, Reporting, UnderWay};

/// Time limit of a model call.
const MODEL_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Time limit of a snapshot: longer than a sandbox is kept still for one.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Extra time of an effect before it is abandoned here: it has its own time limit, and its own way to end.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

impl<J: Journal, E: Effects> Drive<J, E> {
    /// Starts every pending effect that isn't in progress, and drops any other.
    pub(super) async fn begin(&self, driven: &Driven<E::Session>, under_way: &mut UnderWay) -> Result<(), Stopped> {
        let now_doing = |pending: &engine::Pending<'_>| Doing {
            step: pending.step,
            attempt: pending.attempt,
            is_probe: matches!(pending.work, engine::Work::Probe(_)),
        };
        under_way.keep(|doing| driven.run.pending().any(|pending| now_doing(&pending) == doing));
        for pending in driven.run.pending() {
            let doing = now_doing(&pending);
            if !under_way.has(doing) {
                let report = self.perform(driven, pending, doing.is_probe).await?;
                under_way.add(doing, report);
            }
        }
        Ok(())
    }

    /// Starts an effect.
    async fn perform(
        &self,
        driven: &Driven<E::Session>,
        pending: engine::Pending<'_>,
        is_probe: bool,
    ) -> Result<Reporting, Stopped> {
        let (call, timeout) = match pending.work {
            engine::Work::CallModel
            | engine::Work::Summarize(_)
            | engine::Work::Probe(Effect::CallModel { .. } | Effect::Summarize { .. }) => (None, MODEL_TIMEOUT),
            engine::Work::TakeSnapshot => (None, SNAPSHOT_TIMEOUT),
            engine::Work::CallTool(call) => (Some(call), timeout_of(&driven.run, &call.tool)),
            engine::Work::Probe(effect) => {
                let call = effect.call().ok_or(Stopped::Broken)?;
                (Some(call), timeout_of(&driven.run, &call.tool))
            }
        };
        let work = match call {
            None if pending.work == engine::Work::TakeSnapshot => Work::TakeSnapshot,
            None => {
                let through = match pending.work {
                    engine::Work::Summarize(through) => Some(through),
                    _ => None,
                };
                let request = match through {
                    Some(through) => summary_request_of(&driven.run, through),
                    None => request_of(&driven.run),
                };
                let request = match request {
                    Some(request) => match self.until_readable(|| fetched(&self.journal, &request)).await {
                        Ok(request) => Some(Box::new(request)),
                        Err(unread) => return Err(self.unread(unread).await.unwrap_or_else(|stopped| stopped)),
                    },
                    None => None,
                };
                match through {
                    Some(_) => Work::Summarize { request },
                    None => Work::CallModel { replies: driven.run.replies(), request },
                }
            }
            Some(call) => {
                let fetched = self.until_readable(|| fetch(&self.journal, &call.arguments)).await;
                let arguments = match fetched {
                    Ok(arguments) => arguments,
                    Err(unread) => return Err(self.unread(unread).await.unwrap_or_else(|stopped| stopped)),
                };
                let tool = call.tool.clone();
                if is_probe { Work::Probe { tool, arguments } } else { Work::CallTool { tool, arguments } }
            }
        };
        // The last moment to notice that this worker was stopped between the commit and here.
        if !self.belief.holds() {
            return Err(Stopped::Lost);
        }
        let (step, attempt) = (pending.step, pending.attempt);
        let open = driven.run.open_steps().iter().find(|open| open.step == step);
        let class = open.map_or(engine::Class::Once, |open| open.class);
        let files = driven.run.restorable(step);
        let task = Task { step, attempt, key: pending.key, class, work, timeout, files };
        // Boxed before it is wrapped: it is large, and every layer would copy it.
        let doing = Box::pin(Arc::clone(&driven.session).perform(task));
        Ok(Box::pin(async move {
            match tokio::time::timeout(timeout + TIMEOUT_GRACE, doing).await {
                Ok(report) => report,
                Err(_) => Report::unknown("it exceeded its time limit"),
            }
        }))
    }

    pub(super) async fn reported(&self, run: &Run, reports: Vec<(Doing, Report)>) -> Happened {
        let mut inputs = Vec::with_capacity(reports.len());
        for (Doing { step, attempt, .. }, report) in reports {
            // It was done, and nothing says so yet.
            pass_numbered("run/reported", step);
            let report = self.until_done(|| shelve_report(&self.journal, run.agent(), report.clone())).await;
            let (epoch, chance) = (self.claimed.epoch, self.effects.chance());
            inputs.push(Input::Reported { epoch, step, attempt, report, chance });
        }
        Happened::Reported(inputs)
    }
}

fn timeout_of(run: &Run, tool: &str) -> Duration {
    let tool = run.agent().and_then(|agent| agent.tools.get(tool));
    tool.map_or(MODEL_TIMEOUT, |tool| Duration::from_millis(tool.timeout_ms))
}
