//! The network rules of a live sandbox, replaced while it runs; and what it did with its network.
//!
//! The row is written first, then its secrets are bound, then the supervisor enforces the rules, then the client gets its answer. So the
//! row always has what was asked for last. If this process dies in between, the rules before stay in force until the next server adopts
//! the sandbox: it compares the rules in force with the row, and sends those of the row, and its secrets, before it accepts any request.
//! If the supervisor doesn't confirm them, they are sent again until it does.

use std::collections::BTreeSet;
use std::sync::Arc;

use saggar_domain::net::{EgressDraft, HostTraffic, Rules};
use saggar_domain::secret::SecretUse;
use saggar_domain::{Draft, EnvDraft, NetworkMode, PolicyHash, SandboxId, Spec};
use saggar_store::{Changed, Sandbox};
use saggar_supervisor::control::{Description, Op};
use tokio::task::JoinSet;

use super::Sandboxes;
use super::live::Live;
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::secrets::with_headers;

/// Supervisors that rules are sent to at once.
const AT_ONCE: usize = 64;

impl Sandboxes {
    /// Replaces all network rules of a sandbox. When this returns they are in force, and connections that they forbid are cut.
    /// Continues to its end even if the caller is cancelled.
    pub async fn set_egress(&self, permit: &Permit, egress: EgressDraft) -> Result<Sandbox, Fault> {
        self.set_network(permit, egress, None).await
    }

    /// The same, and replaces the headers of its requests, if any are given: secrets from [`Self::store_headers`]. When this returns its
    /// requests get these headers and no others. Its other secrets stay.
    pub async fn set_network(
        &self,
        permit: &Permit,
        egress: EgressDraft,
        headers: Option<Vec<SecretUse>>,
    ) -> Result<Sandbox, Fault> {
        let live = self.changeable(permit).await?;
        let egress = self.limited(egress)?;
        let this = self.clone();
        let work = tokio::spawn(async move { this.replace_rules(&live, egress, headers).await });
        work.await.map_err(|error| Fault::internal("replacing network rules", error))?
    }

    /// With the operator's maxima filled in. What asks for more is refused.
    pub(super) fn limited(&self, egress: EgressDraft) -> Result<EgressDraft, Fault> {
        let limits = egress.limits.under(&self.settings().egress_maxima).map_err(Fault::Refused)?;
        Ok(EgressDraft { limits, ..egress })
    }

    async fn replace_rules(
        &self,
        live: &Arc<Live>,
        egress: EgressDraft,
        headers: Option<Vec<SecretUse>>,
    ) -> Result<Sandbox, Fault> {
        let _turn = live.ruling.lock().await;
        let row = self.row_of(&live.project, &live.id).await?;
        if row.asked.spec.network != Some(NetworkMode::Proxied) {
            return Err(not_proxied(&row));
        }
        Rules::new(egress.clone()).map_err(Fault::Refused)?;
        if let Some(headers) = &headers {
            self.resolve_secrets(&live.project, headers).await?;
        }
        let secrets = headers.map(|headers| with_headers(&row.asked.spec.secrets, headers));
        let hash = row_hash(&row, egress.clone(), secrets.clone())?;
        // Before the row: if this ends in between, the rules and the secrets are sent again.
        live.set_unruled(true);
        if secrets.is_some() {
            live.set_unbound(true);
        }
        match self.store().set_egress(live.id.clone(), egress.clone(), secrets.clone(), hash).await? {
            Changed::Done => {}
            Changed::Otherwise(_) | Changed::Absent => return Err(self.ended_fault(&live.project, &live.id).await),
        }
        pass("egress/row");
        let uses_secrets = secrets.as_ref().is_some_and(|secrets| !secrets.is_empty());
        // Before the rules: they may allow more, and no request may get a secret that was taken away.
        if secrets.is_some() {
            self.bind_all(std::slice::from_ref(&live.id)).await?;
        }
        self.enforce(live, egress, uses_secrets).await?;
        pass("egress/ruled");
        self.row_of(&live.project, &live.id).await
    }

    /// Sends rules to the supervisor, which confirms that they are in force.
    async fn enforce(&self, live: &Live, egress: EgressDraft, uses_secrets: bool) -> Result<(), Fault> {
        let set = Op::SetEgress { egress: egress.clone(), uses_secrets };
        let description: Description = self.described(live, set).await?;
        if description.egress.as_ref() != Some(&egress) {
            return Err(Fault::Conflict {
                what: format!("sandbox {} has not confirmed its network rules", live.id),
                help: "they are sent again until it does; send them again to wait for that".to_owned(),
            });
        }
        live.set_unruled(false);
        Ok(())
    }

    /// Sends the rules of the row to a supervisor that may have others.
    pub(super) async fn rule_again(&self, live: &Arc<Live>) {
        let _turn = live.ruling.lock().await;
        let enforced = match self.row_of(&live.project, &live.id).await {
            Ok(row) => self.enforce(live, row.asked.spec.egress, !row.asked.spec.secrets.is_empty()).await,
            Err(fault) => Err(fault),
        };
        match enforced {
            Ok(()) => {
                tracing::info!(sandbox = %live.id, "sent the network rules of the row to a supervisor that had others")
            }
            Err(Fault::Ended { .. } | Fault::NotFound { .. }) => {}
            // It is tried again.
            Err(fault) => {
                tracing::error!(sandbox = %live.id, error = %fault, "sending network rules to a supervisor failed")
            }
        }
    }

    /// Sends the rules of the row to every supervisor that has not confirmed them, and secrets to every network that may lack them. A
    /// supervisor that is slow delays no other.
    pub async fn confirm_networks(&self) {
        let all = self.live_ids().into_iter().filter_map(|id| self.inner.register.get(&id));
        let unconfirmed: Vec<_> = all.filter(|live| live.is_unruled() || live.is_unbound()).collect();
        for some in unconfirmed.chunks(AT_ONCE) {
            let mut tasks = JoinSet::new();
            for live in some {
                let (this, live) = (self.clone(), Arc::clone(live));
                tasks.spawn(async move {
                    if live.is_unbound() {
                        this.rebind(&live.id).await;
                    }
                    if live.is_unruled() {
                        this.rule_again(&live).await;
                    }
                });
            }
            while tasks.join_next().await.is_some() {}
        }
    }

    /// Remembers whether its network has its secrets.
    pub(crate) fn note_bound(&self, id: &SandboxId, is_bound: bool) {
        if let Some(live) = self.inner.register.get(id) {
            live.set_unbound(!is_bound);
        }
    }

    /// Sums of what a sandbox did with its network, by host; also of an ended one.
    pub async fn traffic(&self, permit: &Permit) -> Result<(Sandbox, Vec<HostTraffic>), Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        let row = self.row_of(permit.project(), permit.sandbox()?).await?;
        let sums = self.store().traffic(row.asked.id.clone()).await?;
        Ok((row, sums))
    }
}

fn not_proxied(row: &Sandbox) -> Fault {
    let mode = row.asked.spec.network.unwrap_or(NetworkMode::None);
    Fault::Conflict {
        what: format!("the network of sandbox {} is {mode}, and rules need the mode proxied", row.asked.id),
        help: "create a sandbox with `\"network\": \"proxied\"`; the mode of an existing one can't be changed"
            .to_owned(),
    }
}

/// The hash of its spec with other rules and secrets.
fn row_hash(row: &Sandbox, egress: EgressDraft, secrets: Option<Vec<SecretUse>>) -> Result<PolicyHash, Fault> {
    let secrets = secrets.unwrap_or_else(|| row.asked.spec.secrets.clone());
    policy_hash(&row.asked.env_names, Draft { egress, secrets, ..row.asked.spec.clone() })
}

/// The hash of a spec that was stored, without the values of its environment: it covers their names alone. The spec may be of an earlier
/// version, and isn't judged again.
pub(crate) fn policy_hash(env_names: &BTreeSet<String>, spec: Draft) -> Result<PolicyHash, Fault> {
    let mut env = EnvDraft::default();
    for name in env_names {
        env.insert(name.clone(), String::new()).map_err(Fault::Refused)?;
    }
    Ok(Spec::fill(Draft { env, ..spec }).map_err(Fault::Refused)?.policy_hash())
}
