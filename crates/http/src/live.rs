//! The current state and the events of a sandbox in the native API's types, from which E2B's responses are made too.

use saggar_api::{Sandbox, SandboxEvent, SandboxEventBody};
use saggar_runtime::Permit;
use saggar_runtime::store::{self, PageLimit};

use crate::gate::Gate;
use crate::refusal::Refusal;
use crate::wire;

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
    /// The sandbox in its supervisor's view, if it is live.
    pub async fn shown(&self, permit: &Permit, mut row: store::Sandbox) -> Result<Sandbox, Refusal> {
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
        wire::sandbox(row, unenforced)
    }

    /// Some events, and the number of the newest one.
    pub async fn events_page(
        &self,
        permit: &Permit,
        after: Option<u64>,
        limit: PageLimit,
    ) -> Result<(Vec<SandboxEvent>, u64), Refusal> {
        let page = self.sandboxes.events(permit, after, limit).await?;
        let mut items = Vec::new();
        // Dropped events are reported as a gap.
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
