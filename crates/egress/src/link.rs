//! One connection of the sandbox: what is going on in it, and when it has to be cut.
//!
//! It is cut when new rules forbid something that it is doing, and when nothing has moved for too long.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use saggar_domain::net::{Destination, Refusal, Rules};
use saggar_supervisor::egress::HostAnswer;
use tokio::net::TcpStream;
use tokio::time::MissedTickBehavior;

use crate::ask::{Once, why};
use crate::record::Record;
use crate::session::Shared;

/// Looks at an idle connection per idle time: it is cut between one and one and a quarter of it.
const LOOKS: u32 = 4;

pub(crate) struct Link {
    session: Arc<Shared>,
    /// The sandbox's end.
    client: SocketAddr,
    /// Its number, if the supervisor was told of it.
    connection: Option<u64>,
    /// Grows whenever bytes move.
    movement: AtomicU64,
    /// Requests and tunnels that go on. At most as many as HTTP/2 streams are allowed.
    records: Mutex<Vec<Weak<Record>>>,
    asked: Mutex<Asked>,
}

/// What was asked for this connection.
#[derive(Default)]
struct Asked {
    /// What a person allowed for it alone; at most one for each host.
    once: Vec<Arc<Once>>,
    /// Why the last question wasn't answered with yes.
    denied: Option<(Destination, HostAnswer)>,
}

impl Link {
    /// A connection that was accepted just now.
    pub fn new(session: Arc<Shared>, stream: &TcpStream, client: SocketAddr) -> Arc<Self> {
        let (records, asked) = (Mutex::default(), Mutex::default());
        let connection = session.arrivals.get().and_then(|arrivals| {
            let connected = arrivals.note(stream, client)?;
            let number = connected.connection;
            session.decisions.announce(connected);
            Some(number)
        });
        Arc::new(Self { session, client, connection, movement: AtomicU64::new(0), records, asked })
    }

    pub fn connection(&self) -> Option<u64> {
        self.connection
    }

    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Holds what was allowed for this connection, until it ends.
    pub fn keep(&self, once: Arc<Once>) {
        self.asked().once.push(once);
    }

    pub fn explain(&self, to: &Destination, answer: HostAnswer) {
        self.asked().denied = Some((to.clone(), answer));
    }

    /// A refusal, with what came of the question about it.
    pub fn explained(&self, to: &Destination, mut refusal: Refusal) -> Refusal {
        if let Some((asked, answer)) = &self.asked().denied
            && asked == to
        {
            refusal.message = format!("{}, {}", refusal.message, why(*answer));
        }
        refusal
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
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
