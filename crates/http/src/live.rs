//! A sandbox as it is now, and what happened in it, as the native API's types: E2B's wire is written from the same.

use saggar_api::{Sandbox, SandboxEvent, SandboxEventBody};
use saggar_runtime::Permit;
use saggar_runtime::store::{self, PageLimit};

use crate::gate::Gate;
use crate::refusal::Refusal;
use crate::wire;

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
    /// The sandbox as its supervisor sees it, where it lives.
    pub async fn shown(&self, permit: &Permit, mut row: store::Sandbox) -> Result<Sandbox, Refusal> {
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
        wire::sandbox(row, unenforced)
    }

    /// Some events, and the number of the last one that there is.
    pub async fn events_page(
        &self,
        permit: &Permit,
        after: Option<u64>,
        limit: PageLimit,
    ) -> Result<(Vec<SandboxEvent>, u64), Refusal> {
        let page = self.sandboxes.events(permit, after, limit).await?;
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
