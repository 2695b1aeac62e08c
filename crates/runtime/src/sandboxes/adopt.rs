//! Adoption: finds all sandboxes again after a start, because they outlive the server that created them.
//!
//! It compares three lists: rows of live sandboxes, sockets of supervisors, and last words.
//!
//! | row | supervisor answers | then |
//! |---|---|---|
//! | running, paused | yes | adopted |
//! | creating, and its creator is alive | | left to its creator, a worker |
//! | creating | yes | acknowledged, or ended if no client can request it again |
//! | creating | yes, it is ending | ended as `start_failed`: its creator died before it was ready |
//! | running, paused | not in time | adopted: a slow supervisor is not dead |
//! | creating | no | ended as `start_failed`, whatever its last words say: no client has heard of it |
//! | paused, and its files are kept | no | adopted: they are all that is left of it |
//! | running, paused | no | ended: by its last words, by a reboot, or lost |
//! | none | yes, without an owner | back into the pool; ended if it is from a stored template |
//! | none, or ended | yes, with an owner | ended: it is unknown |

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{
    DeadlineAction, EndReason, NetworkMode, ProjectId, SandboxId, SandboxState, SnapshotId, Spec, User,
};
use saggar_store::{Change, Life, Lifetime, PageLimit, Sandbox, SandboxQuery, Scope};
use saggar_supervisor::control::{Description, Op, Reply};

use super::changes::wake_of;
use super::live::{Live, LiveFacts};
use super::pool::{PoolKind, PoolNetwork, Ready, UNOWNED_MAX};
use super::rest::Rest;
use super::{Sandboxes, now};
use crate::fault::Fault;
use crate::supervisor::Connection;

/// Number of supervisors asked concurrently.
const ASKED_AT_ONCE: usize = 64;
/// Time limit for a supervisor to describe its sandbox.
const PATIENCE: Duration = Duration::from_secs(5);

/// The result of an adoption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Sandboxes that continue.
    pub live: usize,
    /// Sandboxes in the pool.
    pub ready: usize,
    /// Sandboxes that ended while no server ran.
    pub ended: usize,
    /// Unknown sandboxes, which were ended.
    pub strangers: usize,
}

/// A supervisor's response to the question what it holds.
#[derive(Debug)]
pub(super) enum Heard {
    Described(Box<Description>),
    /// No response in time: it exists, and is busy, stopped, or not ready yet.
    Nothing,
    /// It is gone.
    Gone,
}

impl Sandboxes {
    /// Adopts all existing sandboxes. Runs before any request is accepted.
    pub async fn adopt(&self) -> Result<Adopted, Fault> {
        let mut found = Adopted::default();
        let mut rows = self.live_rows().await?;
        let list = |error| Fault::internal("reading the data directory", error);
        let mut rests = self.all_rests().await?;
        let mut is_proxied = false;
        for (id, heard) in self.ask_all(self.inner.places.sockets().map_err(list)?).await {
            is_proxied |= matches!(&heard, Heard::Described(description) if description.egress.is_some());
            let row = rows.remove(&id);
            if row.as_ref().is_some_and(|row| self.is_being_made(row)) {
                continue;
            }
            match (row, heard) {
                (Some(row), Heard::Described(description)) => {
                    let is_paused = description.state == SandboxState::Paused;
                    let is_overdue = is_paused && should_rest(&row);
                    self.adopt_one(row, *description, &mut found).await?;
                    self.adopt_rest(&id, rests.remove(&id), is_paused).await;
                    // A server that died while it kept its files has stored the event that says so.
                    if let Some(live) = self.inner.register.get(&id).filter(|_| is_overdue) {
                        self.keep_files_later(&live);
                    }
                }
                (None, Heard::Described(description)) => self.adopt_without_row(&id, *description, &mut found).await,
                (Some(row), Heard::Nothing) => {
                    let is_paused = row.life.state() == SandboxState::Paused;
                    self.adopt_unheard(row, &mut found).await?;
                    self.adopt_rest(&id, rests.remove(&id), is_paused).await;
                }
                // Checked again later, as a stranger.
                (None, Heard::Nothing) => {}
                (Some(row), Heard::Gone) => self.bury_or_rest(&row, rests.remove(&id), &mut found).await?,
                (None, Heard::Gone) => self.inner.places.remove_socket(&id),
            }
        }
        for row in rows.into_values().filter(|row| !self.is_being_made(row)) {
            self.bury_or_rest(&row, rests.remove(&row.asked.id), &mut found).await?;
        }
        for id in self.inner.places.finals().map_err(list)? {
            match self.store().sandbox_of_any(id.clone()).await?.filter(|row| row.life == Life::Creating) {
                // Its creator reads them.
                Some(row) if self.is_being_made(&row) => {}
                Some(row) => self.bury(&row, &mut found).await?,
                None => self.find_end(&id, EndReason::SupervisorLost).await?,
            }
        }
        self.inner.makers.sweep().map_err(list)?;
        self.reap().await;
        if let Err(problem) = self.inner.egress.adopt(is_proxied && self.inner.launcher.needs_egress()).await {
            // Tried again with the next proxied sandbox. Those that exist have no network until then.
            tracing::error!(error = %problem, "starting the egress process failed");
        }
        self.bind_adopted().await?;
        Ok(found)
    }

    /// What changed while no server ran, and what a server didn't come to before it died. Also for sandboxes that use no secret: the
    /// last one may have been taken away just before.
    async fn bind_adopted(&self) -> Result<(), Fault> {
        for (id, row) in self.live_rows().await? {
            if row.asked.spec.network == Some(NetworkMode::Proxied) {
                self.rebind(&id).await;
            }
        }
        Ok(())
    }

    fn is_being_made(&self, row: &Sandbox) -> bool {
        row.life == Life::Creating && self.inner.makers.has(&row.asked.id)
    }

    /// Settles a sandbox whose creator died, as a start would. Returns whether there was anything to settle.
    pub(super) async fn settle(&self, id: &SandboxId) -> Result<bool, Fault> {
        // In this order: the lock is released after the row has changed.
        if self.inner.makers.has(id) {
            return Ok(false);
        }
        let Some(row) = self.store().sandbox_of_any(id.clone()).await?.filter(|row| row.life == Life::Creating) else {
            return Ok(false);
        };
        let mut found = Adopted::default();
        match self.ask_all(vec![id.clone()]).await.pop() {
            Some((_, Heard::Described(description))) => self.adopt_one(row, *description, &mut found).await?,
            Some((_, Heard::Gone)) => self.bury(&row, &mut found).await?,
            Some((_, Heard::Nothing)) | None => return Ok(false),
        }
        tracing::info!(sandbox = %id, live = found.live, "settled a sandbox whose creator died");
        Ok(true)
    }

    /// The same for all of them.
    pub(super) async fn settle_all(&self) -> Result<(), Fault> {
        let mut query = SandboxQuery::new(Scope::All);
        query.states = [SandboxState::Creating].into();
        query.limit = PageLimit::MAX;
        // The rest is left to the next round.
        for row in self.store().sandboxes(query).await?.items {
            self.settle(&row.asked.id).await?;
        }
        self.inner.makers.sweep().map_err(|error| Fault::internal("reading the data directory", error))
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

    pub(super) async fn ask_all(&self, ids: Vec<SandboxId>) -> Vec<(SandboxId, Heard)> {
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
                let heard = match answer.await {
                    Ok(Ok(Ok(Reply::Described(description)))) => Heard::Described(description),
                    Ok(Ok(Err(error))) if error.is_gone() => Heard::Gone,
                    Ok(_) | Err(_) => Heard::Nothing,
                };
                answers.push((id.clone(), heard));
            }
        }
        answers
    }

    async fn adopt_one(&self, row: Sandbox, description: Description, found: &mut Adopted) -> Result<(), Fault> {
        let id = row.asked.id.clone();
        let live = Arc::new(Live::new(self.facts_of(&row), self.inner.slots.take_anyway()));
        live.learn(&description);
        self.inner.register.add(Arc::clone(&live));
        match row.life {
            // Before anything else is recorded: the first recorded end stays.
            Life::Creating if description.state == SandboxState::Ending => {
                self.write_end(&id, EndReason::StartFailed, None).await;
                self.abandon(&live).await;
                found.ended += 1;
                return Ok(());
            }
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
            SandboxState::Running => Change::Resumed { at: now() },
            SandboxState::Paused => Change::Paused { at: now() },
            // A sandbox that is being created doesn't respond yet, and an ended one no longer does: neither can
            // occur.
            SandboxState::Ending | SandboxState::Creating | SandboxState::Ended => {
                self.abandon(&live).await;
                found.ended += 1;
                return Ok(());
            }
        };
        // If the row already says so, nothing changes.
        self.store().change_sandbox(id.clone(), change).await?;
        // A server that died while it replaced them has left them in the row only.
        if description.egress.is_some_and(|in_force| in_force != row.asked.spec.egress) {
            live.set_unruled(true);
            self.rule_again(&live).await;
        }
        let after = self.store().last_event(id).await?.unwrap_or(0);
        self.watch(live, after);
        found.live += 1;
        Ok(())
    }

    /// Adopts a sandbox whose supervisor doesn't respond. Later its events tell what changed meanwhile.
    async fn adopt_unheard(&self, row: Sandbox, found: &mut Adopted) -> Result<(), Fault> {
        if row.life == Life::Creating {
            return Ok(());
        }
        tracing::warn!(sandbox = %row.asked.id, "adopted a sandbox whose supervisor does not respond");
        let after = self.store().last_event(row.asked.id.clone()).await?.unwrap_or(0);
        let live = Arc::new(Live::new(self.facts_of(&row), self.inner.slots.take_anyway()));
        live.set_unruled(row.asked.spec.network == Some(NetworkMode::Proxied));
        self.inner.register.add(Arc::clone(&live));
        self.watch(live, after);
        found.live += 1;
        Ok(())
    }

    /// Adopts a sandbox that another process of this machine created, if it is live and belongs to the project: the
    /// server can reach a worker's sandboxes, and a worker the server's.
    pub(super) async fn adopt_late(&self, project: &ProjectId, id: &SandboxId) -> bool {
        let Ok(Some(row)) = self.store().sandbox(project.clone(), id.clone()).await else { return false };
        match row.life {
            Life::Running { .. } | Life::Paused { .. } => {}
            Life::Creating | Life::Ended { .. } => return false,
        }
        let socket = self.inner.places.socket(id);
        let asked = tokio::time::timeout(PATIENCE, Connection::question(&socket, Op::Describe)).await;
        let Ok(Ok(Reply::Described(description))) = asked else {
            // Paused without its memory, it has no supervisor.
            let Ok(Some(snapshot)) = self.stored_rest(&row).await else { return false };
            self.adopt_resting(&row, snapshot).await;
            return true;
        };
        if description.state == SandboxState::Ending {
            return false;
        }
        let live = Arc::new(Live::new(self.facts_of(&row), self.inner.slots.take_anyway()));
        live.learn(&description);
        self.inner.register.add(Arc::clone(&live));
        let after = self.store().last_event(id.clone()).await.ok().flatten().unwrap_or(0);
        self.watch(live, after);
        true
    }

    pub(super) async fn adopt_without_row(&self, id: &SandboxId, description: Description, found: &mut Adopted) {
        let slot = self.inner.slots.take_anyway();
        let network = if description.egress.is_some() { PoolNetwork::Proxied } else { PoolNetwork::Plain };
        let kind = PoolKind::built_in(network);
        // One from a stored template isn't given to anybody: whose template it is, it doesn't say.
        let is_kind =
            Spec::resolve(kind.spec()).is_ok_and(|spec| spec.policy_hash().as_str() == description.policy_hash);
        if !description.is_claimed && description.state == SandboxState::Running && is_kind {
            let left = description.ttl_left_ms.map_or(UNOWNED_MAX, Duration::from_millis);
            if self.inner.pools.put(Ready::new(id.clone(), kind, slot, left)).is_none() {
                found.ready += 1;
                return;
            }
        }
        let socket = self.inner.places.socket(id);
        if let Err(error) = Connection::question(&socket, Op::Kill).await {
            tracing::warn!(sandbox = %id, error = %error, "ending an unknown sandbox failed");
        }
        self.inner.places.remove_final(id);
        found.strangers += 1;
    }

    /// What is kept of a sandbox that has a supervisor. Of one that runs it is outdated.
    async fn adopt_rest(&self, id: &SandboxId, rest: Option<SnapshotId>, is_paused: bool) {
        let Some((snapshot, live)) = rest.zip(self.inner.register.get(id)) else { return };
        if is_paused {
            live.set_rest(Some(Rest::Kept(snapshot)));
            return;
        }
        if let Err(fault) = self.drop_rest(&live, snapshot).await {
            tracing::warn!(sandbox = %id, error = %fault, "removing what a sandbox rested in failed");
        }
    }

    /// A paused sandbox whose files are kept needs no supervisor.
    async fn bury_or_rest(&self, row: &Sandbox, rest: Option<SnapshotId>, found: &mut Adopted) -> Result<(), Fault> {
        match (&row.life, rest) {
            (Life::Paused { .. }, Some(snapshot)) => {
                self.adopt_resting(row, snapshot).await;
                found.live += 1;
                Ok(())
            }
            (_, _) => self.bury(row, found).await,
        }
    }

    /// Ends a row without a supervisor.
    async fn bury(&self, row: &Sandbox, found: &mut Adopted) -> Result<(), Fault> {
        let id = &row.asked.id;
        if row.asked.boot_id != self.inner.boot_id {
            self.find_end(id, EndReason::HostRebooted).await?;
        } else if row.life == Life::Creating {
            // No client has heard of it. Whatever the last words of its supervisor say, it never came to be: then the same request can
            // be made again.
            self.lose(id, EndReason::StartFailed).await?;
            self.inner.places.remove_final(id);
        } else {
            self.find_end(id, EndReason::SupervisorLost).await?;
        }
        found.ended += 1;
        Ok(())
    }

    pub(super) fn facts_of(&self, row: &Sandbox) -> LiveFacts {
        let asked = &row.asked;
        LiveFacts {
            id: asked.id.clone(),
            project: asked.project.clone(),
            socket: self.inner.places.socket(&asked.id),
            wake: wake_of(row, None),
            user: asked.spec.user.unwrap_or(User::User),
            template: asked.spec.template_name(),
            public_ports: asked.public_ports.clone(),
            ingress: asked.ingress.clone(),
        }
    }
}

/// Whether a sandbox was paused by its deadline, at which only its files are to be kept.
fn should_rest(row: &Sandbox) -> bool {
    let Lifetime { deadline, on_deadline, .. } = row.asked.lifetime;
    match (&row.life, deadline) {
        (Life::Paused { since, .. }, Some(deadline)) => on_deadline == DeadlineAction::Rest && deadline <= *since,
        (_, _) => false,
    }
}
