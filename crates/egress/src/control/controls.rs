//! What can be changed in a session that runs, by its supervisor or by the server.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use saggar_domain::net::{EgressDraft, Rules};
use saggar_domain::secret::Grant;
use saggar_domain::{Code, Problem};
use saggar_jail::Rule;
use saggar_supervisor::egress::Upstream;
use tokio::sync::watch;

use crate::session::Handle;
use crate::setting::Setting;

/// Takes effect at once, whatever the session's own conversation does. Doesn't keep the session alive.
pub(crate) struct Controls {
    handle: Handle,
    setting: Setting,
    basis: Mutex<Basis>,
    is_displaced: watch::Sender<bool>,
}

/// What the rules in force are made of.
struct Basis {
    draft: EgressDraft,
    /// The addresses of the host, which rules must name exactly to open them.
    own: Vec<IpAddr>,
}

impl Controls {
    pub(super) fn new(handle: Handle, setting: Setting, draft: EgressDraft, own: Vec<IpAddr>) -> Self {
        let basis = Mutex::new(Basis { draft, own });
        Self { handle, setting, basis, is_displaced: watch::Sender::new(false) }
    }

    /// Another session has taken the place of this one, which ends. Its secrets are gone when this returns.
    pub fn displace(&self) {
        // In this order: what is bound at this moment is forgotten, too.
        self.is_displaced.send_replace(true);
        self.handle.forget_secrets();
    }

    /// May be cancelled at any time.
    pub(super) async fn until_displaced(&self) {
        let mut displaced = self.is_displaced.subscribe();
        // The sender lives as long as we do.
        let _ = displaced.wait_for(|is_displaced| *is_displaced).await;
    }

    /// Connections that the new rules forbid are cut.
    pub(super) fn replace_rules(&self, draft: EgressDraft) -> Result<(), Problem> {
        let mut basis = self.basis();
        let rules = rules(draft.clone(), &basis.own)?;
        basis.draft = draft;
        self.handle.replace_rules(rules);
        Ok(())
    }

    /// Requests from now on get these secrets and no others.
    pub(super) fn bind(&self, grants: Vec<Grant>) -> Result<(), Problem> {
        // Held meanwhile, so that it can't be displaced in between.
        let is_displaced = self.is_displaced.borrow();
        if *is_displaced { Err(displaced()) } else { self.handle.bind(grants) }
    }

    /// The host's network has changed: name servers, hosts file, own addresses.
    pub(super) fn replace_upstream(&self, upstream: &Upstream) -> Result<(), Problem> {
        let mut basis = self.basis();
        let rules = rules(basis.draft.clone(), &upstream.own)?;
        basis.own.clone_from(&upstream.own);
        // The rules first: a new address of the host is never dialled by the old ones.
        self.handle.replace_rules(rules);
        self.handle.replace_dial((self.setting.dialers)(upstream));
        Ok(())
    }

    /// Until no refusal is waiting to be reported. May be cancelled at any time.
    pub(super) async fn until_settled(&self) {
        self.handle.until_settled().await;
    }

    fn basis(&self) -> MutexGuard<'_, Basis> {
        self.basis.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn displaced() -> Problem {
    Problem::new(
        Code::SandboxEnded,
        "another session of the same sandbox has taken the place of this one",
        "use the newer session; a sandbox has one at a time",
    )
}

pub(super) fn rules(mut draft: EgressDraft, own: &[IpAddr]) -> Result<Rules, Problem> {
    if !Rule::EgressRules.is_on() {
        draft.allow.extend("*:*".parse());
    }
    if !Rule::EgressDeny.is_on() {
        draft.deny.clear();
    }
    Ok(Rules::new(draft)?.with_own_addresses(own.iter().copied()))
}
