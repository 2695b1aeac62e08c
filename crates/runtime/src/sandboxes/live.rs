//! The live sandboxes, as this server knows them.
//!
//! It only has what is needed to reach one and to authorise requests; everything else belongs to the supervisor or
//! the store.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use saggar_domain::template::Account;
use saggar_domain::{EndReason, Ingress, ProjectId, PublicPorts, SandboxId, SnapshotId, TemplateName, User};
use saggar_supervisor::control::{Description, Terms};
use tokio::sync::watch;

use super::admission::Slot;
use super::rest::Rest;

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) id: SandboxId,
    pub(crate) project: ProjectId,
    pub(crate) socket: PathBuf,
    /// The lifetime after a resume by traffic; `None` if traffic doesn't resume it.
    pub(crate) wake: RwLock<Option<Terms>>,
    /// The default user of programs.
    pub(crate) user: User,
    /// Of that user, if the template names it. Its supervisor says what it is.
    account: OnceLock<Account>,
    template: RwLock<TemplateName>,
    /// Locked while a snapshot of it is taken.
    pub(crate) snapshotting: tokio::sync::Mutex<()>,
    /// The snapshot that its files were last the same as, once it is known.
    latest_snapshot: Mutex<Option<SnapshotId>>,
    /// Ports that need no token.
    public_ports: RwLock<PublicPorts>,
    /// Ports that can be reached, and how.
    ingress: RwLock<Ingress>,
    /// Locked while network rules are replaced, so that its row and its supervisor get them in the same order.
    pub(crate) ruling: tokio::sync::Mutex<()>,
    /// Whether the rules of its row may not be in force.
    is_unruled: AtomicBool,
    /// Whether its network may not have its secrets.
    is_unbound: AtomicBool,
    /// Locked while its paused state is recorded; the number of the last event that the record includes.
    pub(crate) accounted: tokio::sync::Mutex<u64>,
    /// The number of the last event that is stored.
    pub(crate) stored: watch::Sender<u64>,
    /// Why it ended, once it has.
    pub(crate) ended: watch::Sender<Option<EndReason>>,
    /// Where its files are kept while it is paused.
    rest: RwLock<Option<Rest>>,
    is_ending: AtomicBool,
    /// Held until nothing of it is left; this value may be referenced for a moment longer.
    slot: Mutex<Option<Slot>>,
}

#[derive(Debug)]
pub(crate) struct LiveFacts {
    pub(crate) id: SandboxId,
    pub(crate) project: ProjectId,
    pub(crate) socket: PathBuf,
    pub(crate) wake: Option<Terms>,
    pub(crate) user: User,
    pub(crate) template: TemplateName,
    pub(crate) public_ports: PublicPorts,
    pub(crate) ingress: Ingress,
}

impl Live {
    pub(crate) fn new(facts: LiveFacts, slot: Slot) -> Self {
        let LiveFacts { id, project, socket, wake, user, template, public_ports, ingress } = facts;
        let stored = watch::Sender::new(0);
        let ended = watch::Sender::new(None);
        let public_ports = RwLock::new(public_ports);
        Self {
            id,
            project,
            socket,
            wake: RwLock::new(wake),
            user,
            account: OnceLock::new(),
            template: RwLock::new(template),
            snapshotting: tokio::sync::Mutex::new(()),
            latest_snapshot: Mutex::new(None),
            public_ports,
            ingress: RwLock::new(ingress),
            ruling: tokio::sync::Mutex::new(()),
            is_unruled: AtomicBool::new(false),
            is_unbound: AtomicBool::new(false),
            accounted: tokio::sync::Mutex::new(0),
            stored,
            ended,
            rest: RwLock::new(None),
            is_ending: AtomicBool::new(false),
            slot: Mutex::new(Some(slot)),
        }
    }

    /// Takes from the supervisor's answer what doesn't change.
    pub(crate) fn learn(&self, description: &Description) {
        if let Some(account) = &description.account {
            self.account.get_or_init(|| account.clone());
        }
    }

    /// The account of the user that the template names; `None` if programs run as one of the two users of every sandbox.
    pub(crate) fn account(&self) -> Option<&Account> {
        self.account.get().filter(|_| self.user == User::Template)
    }

    /// Nothing of it is left: frees its slot.
    pub(crate) fn free_slot(&self) {
        self.slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }

    pub(crate) fn rest(&self) -> Option<Rest> {
        self.rest.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Returns what it was before.
    pub(crate) fn set_rest(&self, rest: Option<Rest>) -> Option<Rest> {
        std::mem::replace(&mut *self.rest.write().unwrap_or_else(std::sync::PoisonError::into_inner), rest)
    }

    /// Its supervisor is gone. Returns how it rested until then.
    pub(crate) fn lose_supervisor(&self) -> Option<Rest> {
        let mut rest = self.rest.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = rest.clone();
        if let Some(Rest::Kept(id)) = &before {
            *rest = Some(Rest::Alone(id.clone()));
        }
        before
    }

    /// Whether a kill of it was begun.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    pub(crate) fn set_ending(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Whether it is paused, and only its files are left.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.rest(), Some(Rest::Alone(_)))
    }

    /// What it was started from.
    pub(crate) fn template(&self) -> TemplateName {
        self.template.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(crate) fn set_template(&self, template: TemplateName) {
        *self.template.write().unwrap_or_else(std::sync::PoisonError::into_inner) = template;
    }

    pub(crate) fn latest_snapshot(&self) -> Option<SnapshotId> {
        self.latest_snapshot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(crate) fn set_latest_snapshot(&self, id: SnapshotId) {
        *self.latest_snapshot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(id);
    }

    /// The lifetime after a resume by traffic.
    pub(crate) fn wake_terms(&self) -> Option<Terms> {
        *self.wake.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether this port needs no token.
    pub(crate) fn is_public(&self, port: u16) -> bool {
        let ports = self.public_ports.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        ports.contains(port)
    }

    pub(crate) fn set_public_ports(&self, ports: PublicPorts) {
        *self.public_ports.write().unwrap_or_else(std::sync::PoisonError::into_inner) = ports;
    }

    pub(crate) fn ingress(&self) -> Ingress {
        self.ingress.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(crate) fn set_ingress(&self, ingress: Ingress) {
        *self.ingress.write().unwrap_or_else(std::sync::PoisonError::into_inner) = ingress;
    }

    /// Whether the rules of its row may not be in force: its supervisor didn't confirm them.
    pub(crate) fn is_unruled(&self) -> bool {
        self.is_unruled.load(Ordering::Relaxed)
    }

    pub(crate) fn set_unruled(&self, is_unruled: bool) {
        self.is_unruled.store(is_unruled, Ordering::Relaxed);
    }

    /// Whether its network may not have its secrets. Until it has, programs are refused what would need one.
    pub(crate) fn is_unbound(&self) -> bool {
        self.is_unbound.load(Ordering::Relaxed)
    }

    pub(crate) fn set_unbound(&self, is_unbound: bool) {
        self.is_unbound.store(is_unbound, Ordering::Relaxed);
    }

    pub(crate) fn set_wake(&self, terms: Option<Terms>) {
        *self.wake.write().unwrap_or_else(std::sync::PoisonError::into_inner) = terms;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Register {
    live: RwLock<HashMap<SandboxId, Arc<Live>>>,
}

impl Register {
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<Live>> {
        self.live.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) fn add(&self, live: Arc<Live>) {
        self.live.write().unwrap_or_else(std::sync::PoisonError::into_inner).insert(live.id.clone(), live);
    }

    pub(crate) fn remove(&self, id: &SandboxId) -> Option<Arc<Live>> {
        self.live.write().unwrap_or_else(std::sync::PoisonError::into_inner).remove(id)
    }

    pub(crate) fn ids(&self) -> Vec<SandboxId> {
        self.live.read().unwrap_or_else(std::sync::PoisonError::into_inner).keys().cloned().collect()
    }
}
