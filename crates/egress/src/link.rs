//! One connection of the sandbox: what is going on in it, and when it has to be cut.
//!
//! It is cut when new rules forbid something that it is doing, and when nothing has moved for too long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use saggar_domain::net::Rules;
use tokio::time::MissedTickBehavior;

use crate::record::Record;
use crate::session::Shared;

/// Looks at an idle connection per idle time: it is cut between one and one and a quarter of it.
const LOOKS: u32 = 4;

pub(crate) struct Link {
    session: Arc<Shared>,
    /// Grows whenever bytes move.
    movement: AtomicU64,
    /// Requests and tunnels that go on. At most as many as HTTP/2 streams are allowed.
    records: Mutex<Vec<Weak<Record>>>,
}

impl Link {
    pub fn new(session: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { session, movement: AtomicU64::new(0), records: Mutex::default() })
    }

    pub fn session(&self) -> &Arc<Shared> {
        &self.session
    }

    pub fn moved(&self) {
        self.movement.fetch_add(1, Ordering::Relaxed);
    }

    pub fn enter(&self, record: &Arc<Record>) {
        self.moved();
        let mut records = self.records();
        records.retain(|record| record.strong_count() > 0);
        records.push(Arc::downgrade(record));
    }

    /// Ends when the connection has to be cut; its records then say why. May be cancelled at any time.
    pub async fn until_cut(&self) {
        let mut rules = self.session.rules_changes();
        // What changed between a decision and this subscription.
        let current = Arc::clone(&rules.borrow_and_update());
        if self.forbid(&current) {
            return;
        }
        let mut looks = tokio::time::interval(self.session.limits.idle_time / LOOKS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut still) = (self.movement.load(Ordering::Relaxed), 0);
        loop {
            tokio::select! {
                changed = rules.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let current = Arc::clone(&rules.borrow_and_update());
                    if self.forbid(&current) {
                        return;
                    }
                }
                _ = looks.tick() => {
                    let now = self.movement.load(Ordering::Relaxed);
                    let going_on = self.going_on();
                    still = if now == seen { still + 1 } else { 0 };
                    seen = now;
                    if still > LOOKS {
                        for record in going_on {
                            record.fail("no byte moved for too long");
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Denies what the rules forbid. Other requests of the same connection end with it.
    fn forbid(&self, rules: &Rules) -> bool {
        let going_on = self.going_on();
        let mut forbidden = false;
        for record in &going_on {
            if let Some(refusal) = record.forbidden_by(rules) {
                record.deny(&refusal);
                forbidden = true;
            }
        }
        if forbidden {
            for record in &going_on {
                record.fail("the rules changed, and another request on the same connection is forbidden now");
            }
        }
        forbidden
    }

    // Upgraded outside of the lock: dropping the last owner of a record sends its decision.
    fn going_on(&self) -> Vec<Arc<Record>> {
        self.records().iter().filter_map(Weak::upgrade).collect()
    }

    fn records(&self) -> MutexGuard<'_, Vec<Weak<Record>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
