//! The open sessions of a process, by sandbox, for the server that manages it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use saggar_domain::SandboxId;
use tokio::sync::watch;

use crate::control::Controls;

/// A handle; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Sessions {
    open: Arc<Mutex<HashMap<SandboxId, Weak<Controls>>>>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    sessions: usize,
    is_retired: bool,
}

/// A session, counted until this is dropped.
pub(crate) struct Entry {
    sessions: Sessions,
    sandbox: SandboxId,
    controls: Weak<Controls>,
}

impl Sessions {
    /// `None` if the process is retired. A second session for a sandbox takes the place of the first, which ends: its supervisor has
    /// given that one up. So the secrets of a sandbox are never in two sessions.
    pub fn enter(&self, sandbox: SandboxId, controls: &Arc<Controls>) -> Option<Entry> {
        let is_entered = self.state.send_if_modified(|state| {
            state.sessions += usize::from(!state.is_retired);
            !state.is_retired
        });
        let controls = Arc::downgrade(controls);
        is_entered.then(|| {
            let before = self.open().insert(sandbox.clone(), Weak::clone(&controls));
            if let Some(before) = before.and_then(|before| before.upgrade()) {
                before.displace();
            }
            Entry { sessions: self.clone(), sandbox, controls }
        })
    }

    pub fn count(&self) -> usize {
        self.state.borrow().sessions
    }

    pub fn of(&self, sandbox: &SandboxId) -> Option<Arc<Controls>> {
        self.open().get(sandbox).and_then(Weak::upgrade)
    }

    pub fn all(&self) -> Vec<Arc<Controls>> {
        self.open().values().filter_map(Weak::upgrade).collect()
    }

    /// From now on no session is taken.
    pub fn retire(&self) {
        self.state.send_modify(|state| state.is_retired = true);
    }

    /// Until it is retired and has no session.
    pub async fn until_retired(&self) {
        let mut state = self.state.subscribe();
        // The sender lives as long as we do.
        let _ = state.wait_for(|state| state.is_retired && state.sessions == 0).await;
    }

    fn open(&self) -> MutexGuard<'_, HashMap<SandboxId, Weak<Controls>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut open = self.sessions.open();
        if open.get(&self.sandbox).is_some_and(|controls| Weak::ptr_eq(controls, &self.controls)) {
            open.remove(&self.sandbox);
        }
        drop(open);
        self.sessions.state.send_modify(|state| state.sessions -= 1);
    }
}
