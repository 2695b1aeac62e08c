//! Finding everything again after a start: sandboxes outlive the server that made them.
//!
//! Three lists are held against each other: rows that say a sandbox lives, sockets that say a supervisor does, and last words.
//!
//! | row | supervisor answers | then |
//! |---|---|---|
//! | running, paused | yes | adopted |
//! | creating | yes | acknowledged by now, or ended if nobody can ask for it again |
//! | alive | no | ended: by its last words, by a reboot, or lost |
//! | none | yes, without an owner | back into the pool |
//! | none, or ended | yes, with an owner | ended: nobody knows it |

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{EndReason, ProjectId, SandboxId, User};
use saggar_store::{Change, Life, PageLimit, Sandbox, SandboxQuery, Scope};
use saggar_supervisor::control::{Description, Op, Reply, State};
use tokio::time::{Instant, sleep};

use super::changes::wake_of;
use super::live::{Live, LiveFacts};
use super::pool::{Ready, UNOWNED_MAX};
use super::{Sandboxes, now};
use crate::fault::Fault;
use crate::supervisor::Connection;

/// Supervisors that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;
/// How long a supervisor may take to say what it holds: it has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a supervisor whose starter is dead is waited for, and how often it is looked at. One that gets ready later is a stranger.
const GETS_READY_MAX: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a start found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Sandboxes that go on.
    pub live: usize,
    /// Sandboxes without an owner, kept ready.
    pub ready: usize,
    /// Sandboxes that ended while nobody looked.
    pub ended: usize,
    /// Sandboxes that nobody knows of, ended now.
    pub strangers: usize,
}

impl Sandboxes {
    /// Takes over what there is. Comes before any request.
    pub async fn adopt(&self) -> Result<Adopted, Fault> {
        let mut found = Adopted::default();
        let mut rows = self.live_rows().await?;
        let list = |error| Fault::internal("reading the data directory", error);
        let mut sockets = self.inner.places.sockets().map_err(list)?;
        // A worker beside this server makes it, and goes on with that.
        sockets.retain(|id| !self.inner.places.is_being_made(id));
        rows.retain(|id, _| !self.inner.places.is_being_made(id));
        for (id, description) in self.ask_all(sockets).await {
            let row = rows.remove(&id);
            match (row, description) {
                (Some(row), Some(description)) => self.adopt_one(row, description, &mut found).await?,
                (None, Some(description)) => self.adopt_without_row(&id, description, &mut found).await,
                (Some(row), None) => self.bury(&row, &mut found).await?,
                (None, None) => self.inner.places.remove_socket(&id),
            }
        }
        for row in rows.into_values() {
            self.bury(&row, &mut found).await?;
        }
        for id in self.inner.places.finals().map_err(list)? {
            self.find_end(&id, EndReason::SupervisorLost).await?;
        }
        self.inner.places.remove_dead_makers().map_err(list)?;
        self.reap().await;
        Ok(found)
    }

    async fn live_rows(&self) -> Result<HashMap<SandboxId, Sandbox>, Fault> {
        let mut rows = HashMap::new();
        let mut query = SandboxQuery::new(Scope::All).live();
        query.limit = PageLimit::MAX;
        loop {
            let page = self.store().sandboxes(query.clone()).await?;
            rows.extend(page.items.into_iter().map(|row| (row.asked.id.clone(), row)));
            match page.next {
                Some(next) => query.cursor = Some(next),
                None => return Ok(rows),
            }
        }
    }

    pub(super) async fn ask_all(&self, ids: Vec<SandboxId>) -> Vec<(SandboxId, Option<Description>)> {
        let mut answers = Vec::with_capacity(ids.len());
        for some in ids.chunks(ASKED_AT_ONCE) {
            let asked = some.iter().map(|id| {
                let socket = self.inner.places.socket(id);
                tokio::spawn(tokio::time::timeout(PATIENCE, async move {
                    Connection::question(&socket, Op::Describe).await
                }))
            });
            let asked: Vec<_> = asked.collect();
            for (id, answer) in some.iter().zip(asked) {
                let description = match answer.await {
                    Ok(Ok(Ok(Reply::Described(description)))) => Some(*description),
                    _ => None,
                };
                answers.push((id.clone(), description));
            }
        }
        answers
    }

    async fn adopt_one(&self, row: Sandbox, description: Description, found: &mut Adopted) -> Result<(), Fault> {
        let id = row.asked.id.clone();
        let live = Arc::new(Live::new(self.facts_of(&row), self.inner.slots.take_anyway()));
        self.inner.register.add(Arc::clone(&live));
        match row.life {
            Life::Creating if self.store().has_idempotency_key(id.clone()).await? => {
                let change = Change::Started { at: now(), supervisor_pid: description.pid };
                self.store().change_sandbox(id.clone(), change).await?;
            }
            Life::Creating => {
                self.abandon(&live).await;
                found.strangers += 1;
                return Ok(());
            }
            Life::Running { .. } | Life::Paused { .. } | Life::Ended { .. } => {}
        }
        let change = match description.state {
            State::Running => Change::Resumed { at: now() },
            State::Paused => Change::Paused { at: now() },
            State::Ending => {
                self.abandon(&live).await;
                found.ended += 1;
                return Ok(());
            }
        };
        // Where the row says so already nothing changes.
        self.store().change_sandbox(id.clone(), change).await?;
        let after = self.store().last_event(id).await?.unwrap_or(0);
        self.watch(live, after);
        found.live += 1;
        Ok(())
    }

    /// Takes over a sandbox that another process of this machine made, if it lives and is the project's: a worker's is reached through the
    /// server, and the server's through a worker.
    pub(super) async fn adopt_late(&self, project: &ProjectId, id: &SandboxId) -> bool {
        let Ok(Some(row)) = self.store().sandbox(project.clone(), id.clone()).await else { return false };
        match row.life {
            Life::Running { .. } | Life::Paused { .. } => {}
            Life::Creating | Life::Ended { .. } => return false,
        }
        let socket = self.inner.places.socket(id);
        let asked = tokio::time::timeout(PATIENCE, Connection::question(&socket, Op::Describe)).await;
        let Ok(Ok(Reply::Described(description))) = asked else { return false };
        if description.state == State::Ending {
            return false;
        }
        let live = Arc::new(Live::new(self.facts_of(&row), self.inner.slots.take_anyway()));
        self.inner.register.add(Arc::clone(&live));
        let after = self.store().last_event(id.clone()).await.ok().flatten().unwrap_or(0);
        self.watch(live, after);
        true
    }

    pub(super) async fn adopt_without_row(&self, id: &SandboxId, description: Description, found: &mut Adopted) {
        let slot = self.inner.slots.take_anyway();
        if !description.is_claimed && description.state == State::Running {
            let left = description.ttl_left_ms.map_or(UNOWNED_MAX, Duration::from_millis);
            self.inner.pool.put(Ready::new(id.clone(), slot, left));
            found.ready += 1;
            return;
        }
        let socket = self.inner.places.socket(id);
        if let Err(error) = Connection::question(&socket, Op::Kill).await {
            tracing::warn!(sandbox = %id, error = %error, "a sandbox that nobody knows of can't be ended");
        }
        self.inner.places.remove_final(id);
        found.strangers += 1;
    }

    /// Goes on with a sandbox whose maker died over it, for whoever asks for it again. Its supervisor may be getting ready all the same.
    pub(super) async fn adopt_half_made(&self, row: Sandbox) -> Result<(), Fault> {
        let (begun, mut found) = (Instant::now(), Adopted::default());
        loop {
            let mut asked = self.ask_all(vec![row.asked.id.clone()]).await;
            if let Some((_, Some(description))) = asked.pop() {
                return self.adopt_one(row, description, &mut found).await;
            }
            if begun.elapsed() > GETS_READY_MAX {
                return self.bury(&row, &mut found).await;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// A row without a supervisor.
    async fn bury(&self, row: &Sandbox, found: &mut Adopted) -> Result<(), Fault> {
        let reason = if row.asked.boot_id != self.inner.boot_id {
            EndReason::HostRebooted
        } else if row.life == Life::Creating {
            EndReason::StartFailed
        } else {
            EndReason::SupervisorLost
        };
        self.find_end(&row.asked.id, reason).await?;
        found.ended += 1;
        Ok(())
    }

    fn facts_of(&self, row: &Sandbox) -> LiveFacts {
        let asked = &row.asked;
        LiveFacts {
            id: asked.id.clone(),
            project: asked.project.clone(),
            socket: self.inner.places.socket(&asked.id),
            wake: wake_of(row, None),
            user: user_of(row),
            public_ports: asked.public_ports.clone(),
        }
    }
}

/// Who acts in a sandbox unless somebody says otherwise.
fn user_of(row: &Sandbox) -> User {
    let spec: Option<serde_json::Value> = row.asked.spec.to_value().ok();
    spec.and_then(|spec| User::parse(spec.get("user")?.as_str()?)).unwrap_or(User::User)
}
