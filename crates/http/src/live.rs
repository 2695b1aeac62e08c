//! A sandbox as it is now, and what happened in it, as the native API's types: E2B's wire is written from the same.

use std::collections::BTreeSet;

use saggar_api::{Sandbox, SandboxEvent, SandboxEventBody, Timestamp};
use saggar_domain::{Labels, SandboxState};
use saggar_runtime::Permit;
use saggar_store::{self as store, PageLimit, SandboxCursor, SandboxQuery, Scope};

use crate::gate::Gate;
use crate::refusal::Refusal;
use crate::wire;

/// Most objects of one page.
pub const PAGE_MAX: u32 = PageLimit::MAX.get();

/// A sandbox, and when its time ends or would have ended if it were not paused.
#[derive(Clone, Debug)]
pub struct Seen {
    pub sandbox: Sandbox,
    pub end: Option<Timestamp>,
}

/// Which sandboxes are asked for, newest first.
#[derive(Clone, Debug, Default)]
pub struct SandboxesAsked {
    /// Empty means any state.
    pub states: BTreeSet<SandboxState>,
    /// All of these labels.
    pub labels: Labels,
    pub limit: Option<u32>,
    /// What a page before said is next.
    pub cursor: Option<String>,
}

/// Some of the sandboxes that were asked for.
#[derive(Clone, Debug)]
pub struct SandboxPage {
    pub items: Vec<Seen>,
    pub next: Option<String>,
}

/// A number of objects for one page.
pub fn page_limit(limit: Option<u32>) -> Result<PageLimit, Refusal> {
    match limit {
        None => Ok(PageLimit::default()),
        Some(limit) => PageLimit::parse(limit)
            .ok_or_else(|| Refusal::invalid(format!("limit {limit} is out of range"), "choose from 1 to 1000")),
    }
}

/// How far what is written may be from what the supervisor counts: it begins to count when the sandbox is there, a moment later.
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
        let items = page.items.into_iter().map(|row| seen(row, unenforced.clone())).collect::<Result<_, _>>()?;
        Ok(SandboxPage { items, next: page.next.map(|cursor| cursor.to_string()) })
    }

    /// The sandbox that a permit is for, as its supervisor sees it where it lives.
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
            // Counted from what is left it would be another millisecond at each look: what is written stays as long as it is right.
            if !is_about(row.asked.lifetime.deadline, told) {
                row.asked.lifetime.deadline = told;
            }
            unenforced = self.learn_unenforced(description.unenforced);
        }
        Ok(Seen { sandbox: wire::sandbox(row, unenforced)?, end })
    }

    /// Some events, and the number of the last one that there is.
    pub async fn events_page(
        &self,
        permit: &Permit,
        after: Option<u64>,
        limit: Option<u32>,
    ) -> Result<(Vec<SandboxEvent>, u64), Refusal> {
        let page = self.sandboxes.events(permit, after, page_limit(limit)?).await?;
        let mut items = Vec::new();
        // What was asked for and is no longer kept is said.
        let asked = after.unwrap_or(0);
        if let (Some(oldest), Some(first)) = (page.oldest, page.events.first())
            && oldest > asked + 1
            && asked > 0
        {
            let body = SandboxEventBody::Gap { events: oldest - asked - 1 };
            items.push(SandboxEvent { seq: oldest - 1, at: wire::time(first.at), body });
        }
        let last_seq = page.events.last().map_or(asked, |event| event.seq);
        items.extend(page.events.iter().filter_map(wire::event));
        Ok((items, last_seq))
    }
}

fn seen(row: store::Sandbox, unenforced: Vec<String>) -> Result<Seen, Refusal> {
    let end = row.asked.lifetime.deadline.map(wire::time);
    Ok(Seen { sandbox: wire::sandbox(row, unenforced)?, end })
}
