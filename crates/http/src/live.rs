//! The current state and the events of a sandbox in the native API's types, from which E2B's responses are made too.

use std::collections::BTreeSet;

use saggar_api::{Sandbox, SandboxEvent, SandboxEventBody, Timestamp};
use saggar_domain::{Labels, SandboxState};
use saggar_runtime::Permit;
use saggar_store::{self as store, PageLimit, SandboxCursor, SandboxQuery, Scope};

use crate::gate::Gate;
use crate::refusal::Refusal;
use crate::wire;

/// Maximum number of objects per page.
pub const PAGE_MAX: u32 = PageLimit::MAX.get();

/// A sandbox, with its deadline, or the one it would have if it were not paused.
#[derive(Clone, Debug)]
pub struct Seen {
    pub sandbox: Sandbox,
    pub end: Option<Timestamp>,
}

/// A request for a list of sandboxes, newest first.
#[derive(Clone, Debug, Default)]
pub struct SandboxesAsked {
    /// Empty means any state.
    pub states: BTreeSet<SandboxState>,
    /// The sandbox must have all of these labels.
    pub labels: Labels,
    pub limit: Option<u32>,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// A page of sandboxes.
#[derive(Clone, Debug)]
pub struct SandboxPage {
    pub items: Vec<Seen>,
    pub next: Option<String>,
}

/// Events of a sandbox.
#[derive(Clone, Debug)]
pub struct EventsRead {
    pub items: Vec<SandboxEvent>,
    /// The number up to which these events are complete.
    pub through: u64,
    /// The number of the newest event.
    pub newest: u64,
}

/// A page size.
pub fn page_limit(limit: Option<u32>) -> Result<PageLimit, Refusal> {
    match limit {
        None => Ok(PageLimit::default()),
        Some(limit) => PageLimit::parse(limit)
            .ok_or_else(|| Refusal::invalid(format!("limit {limit} is out of range"), "choose from 1 to 1000")),
    }
}

/// Tolerance between the recorded deadline and the supervisor's, which starts to count a moment later.
const DEADLINE_TOLERANCE_MS: u64 = 5_000;

fn is_about(written: Option<saggar_domain::Timestamp>, told: Option<saggar_domain::Timestamp>) -> bool {
    match (written, told) {
        (Some(written), Some(told)) => written.as_millis().abs_diff(told.as_millis()) <= DEADLINE_TOLERANCE_MS,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

impl Gate {
    /// A page of the permit's project.
    pub async fn sandbox_page(&self, permit: &Permit, asked: SandboxesAsked) -> Result<SandboxPage, Refusal> {
        let mut query = SandboxQuery::new(Scope::Project(permit.project().clone()));
        query.states = asked.states;
        query.labels = asked.labels;
        query.limit = page_limit(asked.limit)?;
        let cursor = asked.cursor.as_deref().map(SandboxCursor::parse).transpose();
        query.cursor = cursor.map_err(|error| Refusal::invalid(error.to_string(), error.help()))?;
        let page = self.sandboxes.list(permit, query).await?;
        let unenforced = self.known_unenforced();
        let items = page
            .items
            .into_iter()
            .map(|row| Ok(self.with_kept(seen(row, unenforced.clone())?)))
            .collect::<Result<_, Refusal>>()?;
        Ok(SandboxPage { items, next: page.next.map(|cursor| cursor.to_string()) })
    }

    /// The permit's sandbox, in its supervisor's view if it is live.
    pub async fn look(&self, permit: &Permit) -> Result<Seen, Refusal> {
        let mut row = self.sandboxes.get(permit).await?;
        let end = row.asked.lifetime.deadline.map(wire::time);
        let mut unenforced = self.known_unenforced();
        if row.life.state().is_live()
            && let Ok(description) = self.sandboxes.describe(permit).await
        {
            let now = saggar_domain::Timestamp::from(std::time::SystemTime::now());
            let left = description.ttl_left_ms.map(std::time::Duration::from_millis);
            let told = left.map(|left| now.after(left));
            // Computed from the remaining time it would differ by milliseconds each time: the recorded one is kept as
            // long as it is about right.
            if !is_about(row.asked.lifetime.deadline, told) {
                row.asked.lifetime.deadline = told;
            }
            unenforced = self.learn_unenforced(description.unenforced);
        }
        Ok(self.with_kept(Seen { sandbox: wire::sandbox(row, unenforced)?, end }))
    }

    fn with_kept(&self, mut seen: Seen) -> Seen {
        self.fill_kept(&mut seen.sandbox);
        seen
    }

    /// Says what is kept of a paused sandbox, which its row doesn't know.
    pub fn fill_kept(&self, sandbox: &mut Sandbox) {
        let kept = self.sandboxes.kept(&sandbox.id);
        if let Some(paused) = &mut sandbox.paused {
            (paused.has_processes, paused.survives_restart) = (!kept.is_alone, kept.files);
        }
    }

    /// Events after a number. Dropped ones are reported as gaps, except before the first event of all.
    pub async fn events_page(
        &self,
        permit: &Permit,
        after: Option<u64>,
        limit: Option<u32>,
    ) -> Result<EventsRead, Refusal> {
        let limit = page_limit(limit)?;
        let (page, run) = self.sandboxes.events(permit, after, limit).await?;
        let asked = after.unwrap_or(0);
        let newest = page.newest.unwrap_or(asked).max(asked);
        let (mut items, mut through) = (Vec::new(), asked);
        for stored in &page.events {
            if through > 0 && stored.seq > through + 1 {
                let body = SandboxEventBody::Gap { events: stored.seq - through - 1 };
                items.push(SandboxEvent { seq: stored.seq - 1, at: wire::time(stored.at), body });
            }
            // Gaps count, too: the rest is on the next page.
            if items.len() >= limit.get() as usize {
                through = through.max(stored.seq - 1);
                break;
            }
            items.extend(wire::event(stored, run.as_ref()));
            through = stored.seq;
        }
        Ok(EventsRead { items, through, newest })
    }
}

fn seen(row: store::Sandbox, unenforced: Vec<String>) -> Result<Seen, Refusal> {
    let end = row.asked.lifetime.deadline.map(wire::time);
    Ok(Seen { sandbox: wire::sandbox(row, unenforced)?, end })
}
