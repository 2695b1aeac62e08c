//! Creates a sandbox: refused before anything exists, or acknowledged when it is usable, and never half-made.
//!
//! The order makes a crash of this process harmless: a slot, a row, a supervisor, the row again. A sandbox that was
//! not acknowledged is ended by the next server, unless its client gave an idempotency key to request it again.

use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{
    Code, DeadlineAction, Draft, EndReason, EnvDraft, Ingress, Labels, NetworkMode, PolicyHash, Problem, ProjectId,
    PublicPorts, SandboxId, SnapshotId, Spec, Timestamp, User,
};
use saggar_store::{Change, Changed, Idempotency, Insertion, Life, NewSandbox as NewRow, Sandbox, TokenHash};
use saggar_supervisor::control::{CONTROL, Description, Op, Reply, Start, Terms};

use super::changes::NewTerms;
use super::live::{Live, LiveFacts};
use super::making::Making;
use super::pool::{PoolKind, PoolNetwork, Ready, StoredTemplate};
use super::rest::check_restful;
use super::workspace::AskedWorkspace;
use super::{Sandboxes, now, own_labels};
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::secrets::Resolved;
use crate::supervisor::{Connection, StartError, start};

/// Suggested delay without free capacity: most sandboxes live for minutes, so a slot is free soon.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct NewSandbox {
    /// What it is to be. Nothing of the host: that is refused.
    pub spec: Draft,
    /// A directory of the host, mounted copy-on-write.
    pub workspace: Option<AskedWorkspace>,
    pub labels: Labels,
    pub terms: NewTerms,
    /// Whether traffic resumes it while it is paused.
    pub auto_resume: bool,
    /// Ports that need no token.
    pub public_ports: PublicPorts,
    /// Ports that can be reached, and how.
    pub ingress: Ingress,
}

/// A new sandbox, or the one that the same request created before.
#[derive(Clone, Debug)]
pub struct Created {
    pub sandbox: Sandbox,
    /// Default limits that this host can't enforce.
    pub unenforced: Vec<String>,
    /// The token for its ports.
    pub access_token: String,
    /// Whether an earlier request created it.
    pub is_replay: bool,
}

impl Sandboxes {
    /// Creates a sandbox for a client. Continues to its end even if the caller is cancelled.
    pub async fn create(
        &self,
        permit: &Permit,
        new: NewSandbox,
        idempotency: Option<Idempotency>,
    ) -> Result<Created, Fault> {
        own_labels::check(&new.labels).map_err(Fault::Refused)?;
        self.create_labelled(permit, new, idempotency).await
    }

    /// The same for a run, whose sandboxes have the labels of runs.
    pub(crate) async fn create_labelled(
        &self,
        permit: &Permit,
        new: NewSandbox,
        idempotency: Option<Idempotency>,
    ) -> Result<Created, Fault> {
        permit.check(|action| *action == Action::CreateSandbox)?;
        let new = self.within_maxima(self.with_workspace(new)?)?;
        self.free_exclusive_volumes(permit.project(), &new.spec).await?;
        self.create_in(permit.project().clone(), new, idempotency).await
    }

    /// The same for a request that may name things of the host, because one that was checked did.
    pub(crate) async fn create_in(
        &self,
        project: ProjectId,
        new: NewSandbox,
        idempotency: Option<Idempotency>,
    ) -> Result<Created, Fault> {
        let this = self.clone();
        // A client that disconnects must not leave a half-made sandbox, so the work is a separate task.
        let work = tokio::spawn(async move {
            let mut new = new;
            let mut plan = Plan::make(&this, &project, &mut new)?;
            plan.secrets = match this.resolve_secrets(&project, &new.spec.secrets).await {
                Ok(secrets) => secrets,
                Err(fault) => return this.without_secret(project, idempotency, fault).await,
            };
            let ready = plan.pool.as_ref().and_then(|kind| this.inner.pools.take(kind));
            let (owner, template) = (project.clone(), plan.template.clone());
            let created = match ready {
                Some(ready) => this.claim(project, new, plan, idempotency, ready).await,
                None => this.make(project, new, plan, idempotency).await,
            }?;
            if !created.is_replay {
                let id = &created.sandbox.asked.id;
                if let Err(fault) = this.begin_service(&owner, id, template.as_ref()).await {
                    this.write_end(id, EndReason::StartFailed, Some(&fault)).await;
                    if let Some(live) = this.inner.register.get(id) {
                        this.abandon(&live).await;
                    }
                    return Err(fault);
                }
                if let Some(live) = this.inner.register.get(id) {
                    this.begin_warm(id, &live.socket, &this.warm_imports_of(template.as_ref())).await;
                }
            }
            Ok(created)
        });
        work.await.map_err(|error| Fault::internal("making a sandbox", error))?
    }

    /// The request with the operator's maxima of the network filled in. What asks for more is refused.
    fn within_maxima(&self, mut new: NewSandbox) -> Result<NewSandbox, Fault> {
        if new.spec.network == Some(NetworkMode::Proxied) {
            new.spec.egress = self.limited(new.spec.egress)?;
        }
        if new.terms.then == DeadlineAction::Rest {
            check_restful(&new.spec)?;
        }
        Ok(new)
    }

    async fn make(
        &self,
        project: ProjectId,
        new: NewSandbox,
        plan: Plan,
        idempotency: Option<Idempotency>,
    ) -> Result<Created, Fault> {
        let slot = self.inner.slots.take();
        let Some(slot) = slot else {
            return self.without_room(project, idempotency).await;
        };
        let id = self.new_sandbox_id();
        let _making = self.begin(&id)?;
        let row = self.row(&id, &project, &new, &plan);
        pass("create/admitted");
        let inserted = self.insert(&row, idempotency).await?;
        if let Some(earlier) = self.instead(&project, inserted).await? {
            return Ok(earlier);
        }
        pass("create/row");
        let terms = plan.terms;
        let facts = self.facts(&id, &project, &new, terms);
        let uses = new.spec.secrets.clone();
        let spec = self.with_placeholders(&id, new.spec, &plan.secrets);
        let started = match spec.and_then(|spec| self.with_models(&id, spec)) {
            Ok(spec) => {
                let owner = Owner::Client { uses_secrets: !uses.is_empty() };
                let template_project = plan.template.as_ref().map(|template| template.project.clone());
                let volume_project = (!spec.volumes.is_empty()).then(|| project.as_str().to_owned());
                let past = Past { template_project, volume_project, events_before: 0 };
                let started = self.start_supervisor(&id, spec, terms, owner, past).await;
                started.map_err(|error| self.start_fault(&id, error))
            }
            Err(fault) => Err(fault),
        };
        let description = match started {
            Ok(description) => description,
            Err(fault) => {
                self.write_end(&id, EndReason::StartFailed, Some(&fault)).await;
                // Leftovers of a dead supervisor are removed now, not in the next round.
                self.reap().await;
                return Err(fault);
            }
        };
        pass("create/ready");
        let live = Arc::new(Live::new(facts, slot));
        if let Err(fault) = self.bind_new(&id, &project, &uses).await {
            self.write_end(&id, EndReason::StartFailed, Some(&fault)).await;
            self.abandon(&live).await;
            return Err(fault);
        }
        self.acknowledge(live, row, &description).await
    }

    /// Gives a sandbox from the pool to its owner. The claim comes first and the row second: after a crash in
    /// between, the sandbox is unknown and is ended; and the row needs no second step.
    async fn claim(
        &self,
        project: ProjectId,
        new: NewSandbox,
        plan: Plan,
        idempotency: Option<Idempotency>,
        ready: Ready,
    ) -> Result<Created, Fault> {
        let earlier = match &idempotency {
            Some(idempotency) => self.earlier(&project, idempotency.clone()).await,
            None => Ok(None),
        };
        match earlier {
            Ok(None) => {}
            other => {
                self.put_back(ready).await;
                return other.map(|earlier| earlier.expect("the other case is matched above"));
            }
        }
        let id = ready.id.clone();
        pass("claim/taken");
        let facts = self.facts(&id, &project, &new, plan.terms);
        let egress = (ready.kind.network == PoolNetwork::Proxied).then(|| new.spec.egress.clone());
        let spec = match self.with_placeholders(&id, new.spec.clone(), &plan.secrets) {
            Ok(spec) => spec,
            Err(fault) => {
                self.put_back(ready).await;
                return Err(fault);
            }
        };
        let uses_secrets = !new.spec.secrets.is_empty();
        let claim = Op::Claim { terms: plan.terms, env: spec.env.into_map(), egress, uses_secrets };
        let description = match Connection::question(&facts.socket, claim).await {
            Ok(Reply::Described(description)) => description,
            // It died while it waited: the client gets a newly created one.
            outcome => {
                tracing::warn!(sandbox = %id, outcome = ?outcome.err(), "claiming a sandbox from the pool failed");
                self.end_ready(ready).await;
                return self.make(project, new, plan, idempotency).await;
            }
        };
        pass("claim/claimed");
        let row = self.row(&id, &project, &new, &plan);
        let live = Arc::new(Live::new(facts, ready.slot));
        let started_at = now();
        let inserted = self.store().insert_started_sandbox(row.clone(), idempotency, started_at, description.pid).await;
        pass("claim/row");
        match inserted {
            Ok(Insertion::Inserted) => {
                // After the row, so that a change of a secret finds this sandbox; and before anybody can use it.
                if let Err(fault) = self.bind_new(&id, &project, &new.spec.secrets).await {
                    self.write_end(&id, EndReason::StartFailed, Some(&fault)).await;
                    self.abandon(&live).await;
                    return Err(fault);
                }
                Ok(self.welcome(live, row, &description, started_at))
            }
            other => {
                self.abandon(&live).await;
                Ok(self.instead(&project, other?).await?.expect("an insertion is matched above"))
            }
        }
    }

    async fn put_back(&self, ready: Ready) {
        if let Some(ready) = self.inner.pools.put(ready) {
            self.end_ready(ready).await;
        }
    }

    /// Without one of its secrets nothing is created; but a repeated request still gets its response.
    async fn without_secret(
        &self,
        project: ProjectId,
        idempotency: Option<Idempotency>,
        fault: Fault,
    ) -> Result<Created, Fault> {
        match idempotency {
            Some(idempotency) => self.earlier(&project, idempotency).await?.ok_or(fault),
            None => Err(fault),
        }
    }

    /// Without capacity nothing is created; but a repeated request still gets its response.
    async fn without_room(&self, project: ProjectId, idempotency: Option<Idempotency>) -> Result<Created, Fault> {
        if let Some(idempotency) = idempotency
            && let Some(earlier) = self.earlier(&project, idempotency).await?
        {
            return Ok(earlier);
        }
        let (taken, most) = self.occupancy();
        Err(Fault::Capacity { what: format!("{taken} of {most} sandboxes are in use"), retry_after: RETRY_AFTER })
    }

    /// Marks that this process is creating a sandbox, visible to other processes.
    fn begin(&self, id: &SandboxId) -> Result<Making, Fault> {
        self.inner.makers.begin(id).map_err(|error| match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => saggar_store::Error::Full.into(),
            std::io::ErrorKind::ReadOnlyFilesystem => saggar_store::Error::ReadOnly.into(),
            _ => Fault::internal("writing to the data directory", error),
        })
    }

    /// Inserts the row of a sandbox to be created.
    async fn insert(&self, row: &NewRow, idempotency: Option<Idempotency>) -> Result<Insertion, Fault> {
        let capacity = self.inner.slots.most() as u64;
        let insert = || self.store().insert_sandbox_within(row.clone(), idempotency.clone(), capacity);
        let inserted = insert().await?;
        match &inserted {
            // Its creator died. Either the sandbox exists all the same, or the request is carried out again.
            Insertion::Replayed(id) if self.settle(id).await? => Ok(insert().await?),
            Insertion::Inserted | Insertion::Replayed(_) | Insertion::Mismatch | Insertion::NoRoom => Ok(inserted),
        }
    }

    /// The response to the same request before.
    async fn earlier(&self, project: &ProjectId, idempotency: Idempotency) -> Result<Option<Created>, Fault> {
        let ask = || self.store().earlier_request(project.clone(), idempotency.clone(), now());
        let mut earlier = ask().await?;
        if let Some(Insertion::Replayed(id)) = &earlier
            && self.settle(id).await?
        {
            earlier = ask().await?;
        }
        match earlier {
            Some(insertion) => self.instead(project, insertion).await,
            None => Ok(None),
        }
    }

    /// The response if nothing is to be created; `None` otherwise.
    async fn instead(&self, project: &ProjectId, insertion: Insertion) -> Result<Option<Created>, Fault> {
        match insertion {
            Insertion::Inserted => Ok(None),
            Insertion::Replayed(id) => self.replay(project.clone(), id).await.map(Some),
            Insertion::Mismatch => Err(Fault::IdempotencyMismatch),
            // Other processes have used up the capacity: this one still had a slot.
            Insertion::NoRoom => Err(Fault::Capacity {
                what: format!("all {} sandboxes are in use", self.inner.slots.most()),
                retry_after: RETRY_AFTER,
            }),
        }
    }

    async fn replay(&self, project: ProjectId, id: SandboxId) -> Result<Created, Fault> {
        let sandbox = self.store().sandbox(project, id.clone()).await?.ok_or_else(|| Fault::no_sandbox(&id))?;
        if sandbox.life == Life::Creating {
            return Err(Fault::InProgress);
        }
        let access_token = self.access_token(&id);
        Ok(Created { sandbox, unenforced: Vec::new(), access_token, is_replay: true })
    }

    /// The sandbox exists: updates the row, and makes the response.
    async fn acknowledge(&self, live: Arc<Live>, row: NewRow, description: &Description) -> Result<Created, Fault> {
        let (id, started_at) = (live.id.clone(), now());
        let change = Change::Started { at: started_at, supervisor_pid: description.pid };
        let changed = self.store().change_sandbox(id.clone(), change).await;
        pass("create/running");
        match changed {
            Ok(Changed::Done) => Ok(self.welcome(live, row, description, started_at)),
            other => {
                // It can't be acknowledged, so it must be ended.
                self.abandon(&live).await;
                Err(other.map_or_else(Fault::from, |_| Fault::Ended { id, reason: None }))
            }
        }
    }

    /// Registers it as live.
    fn welcome(&self, live: Arc<Live>, row: NewRow, description: &Description, started_at: Timestamp) -> Created {
        live.learn(description);
        self.inner.register.add(Arc::clone(&live));
        self.watch(Arc::clone(&live), 0);
        // Built from what was written; reading it back would only take time.
        let life = Life::Running { started_at, since: started_at };
        let sandbox = Sandbox { asked: row, life, supervisor_pid: Some(description.pid) };
        let unenforced = description.unenforced.clone();
        Created { sandbox, unenforced, access_token: self.access_token(&live.id), is_replay: false }
    }

    /// Before a managed network is made.
    pub(crate) async fn ensure_egress(&self, network: Option<NetworkMode>) -> Result<(), Problem> {
        if network == Some(NetworkMode::Proxied) && self.inner.launcher.needs_egress() {
            self.inner.egress.ensure().await?;
        }
        Ok(())
    }

    /// Starts a supervisor with its sandbox, with bounded concurrency.
    pub(super) async fn start_supervisor(
        &self,
        id: &SandboxId,
        spec: Draft,
        terms: Terms,
        owner: Owner,
        past: Past,
    ) -> Result<Description, StartError> {
        self.ensure_egress(spec.network).await.map_err(StartError::Refused)?;
        let _turn = self.inner.making.acquire().await.expect("this semaphore is never closed");
        let request = Start {
            v: CONTROL,
            data_directory: self.inner.places.data().to_owned(),
            sandbox_id: id.clone(),
            spec,
            terms,
            is_pooled: owner == Owner::Nobody,
            uses_secrets: owner == Owner::Client { uses_secrets: true },
            template_project: past.template_project,
            volume_project: past.volume_project,
            events_before: past.events_before,
        };
        start(&*self.inner.launcher, &request).await
    }

    pub(super) fn start_fault(&self, id: &SandboxId, error: StartError) -> Fault {
        match error {
            StartError::Refused(problem) => Fault::Refused(problem),
            StartError::Spawn(source) => Fault::internal("starting a supervisor", source),
            StartError::Lost(source) => {
                tracing::error!(sandbox = %id, error = %source, "a supervisor died while creating its sandbox");
                Fault::internal("making a sandbox", source)
            }
        }
    }

    fn row(&self, id: &SandboxId, project: &ProjectId, new: &NewSandbox, plan: &Plan) -> NewRow {
        let created_at = now();
        NewRow {
            id: id.clone(),
            project: project.clone(),
            created_at,
            lifetime: new.terms.lifetime(created_at),
            auto_resume: new.auto_resume,
            boot_id: self.inner.boot_id.clone(),
            policy_hash: Some(plan.policy_hash.clone()),
            access_token_hash: Some(TokenHash::of(self.access_token(id).as_bytes())),
            public_ports: new.public_ports.clone(),
            ingress: new.ingress.clone(),
            labels: new.labels.clone(),
            // As it is stored: without the environment.
            spec: Draft { env: EnvDraft::default(), ..new.spec.clone() },
            env_names: new.spec.env.clone().into_map().into_keys().collect(),
        }
    }

    fn facts(&self, id: &SandboxId, project: &ProjectId, new: &NewSandbox, terms: Terms) -> LiveFacts {
        LiveFacts {
            id: id.clone(),
            project: project.clone(),
            socket: self.inner.places.socket(id),
            wake: new.auto_resume.then_some(terms),
            user: new.spec.user.unwrap_or(User::User),
            template: new.spec.template_name(),
            public_ports: new.public_ports.clone(),
            ingress: new.ingress.clone(),
        }
    }
}

/// Whose things its spec names, and what went before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Past {
    /// Of its template; `None` if that is built in.
    pub(super) template_project: Option<String>,
    /// Of its volumes; `None` without any.
    pub(super) volume_project: Option<String>,
    /// The number of the last event of its earlier supervisors.
    pub(super) events_before: u64,
}

/// Whom a supervisor is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It is kept ready in the pool.
    Nobody,
    Client {
        uses_secrets: bool,
    },
}

/// A validated request.
struct Plan {
    policy_hash: PolicyHash,
    terms: Terms,
    /// The pool whose sandboxes fit.
    pool: Option<PoolKind>,
    secrets: Resolved,
    /// Its template; `None` for a built-in one.
    template: Option<StoredTemplate>,
}

impl Plan {
    /// Everything that can be refused before anything exists is refused here.
    fn make(sandboxes: &Sandboxes, project: &ProjectId, new: &mut NewSandbox) -> Result<Self, Fault> {
        let settings = sandboxes.settings();
        if new.spec.network == Some(NetworkMode::Host) && !settings.allow_host_network {
            return Err(refuse(
                Code::UnsupportedCapability,
                "network mode host is not allowed by this server's operator".to_owned(),
                "use `none`; the operator can allow it with `allow_host_network = true`",
            ));
        }
        let template = sandboxes.stored_template(project, &new.spec)?;
        if let Some(template) = &template {
            new.spec.user = new.spec.user.or(template.user);
            new.spec.limits = template.limits.beside(std::mem::take(&mut new.spec.limits));
        }
        let spec = Spec::resolve(new.spec.clone()).map_err(Fault::Refused)?;
        sandboxes.check_models(&spec.models)?;
        let policy_hash = spec.policy_hash();
        let network = match spec.network {
            NetworkMode::Proxied => PoolNetwork::Proxied,
            // A sandbox with the host's network fits neither.
            NetworkMode::None | NetworkMode::Host => PoolNetwork::Plain,
        };
        let kind = PoolKind { network, template: template.clone() };
        let ordinary = Spec::resolve(kind.spec()).map_err(Fault::Refused)?;
        // The environment, the rules and secrets are given to one that is ready as to any other. Models are not: its network would have to
        // be made anew.
        let (env, egress, secrets) = (ordinary.env.clone(), ordinary.egress.clone(), ordinary.secrets.clone());
        // Nobody knows whether a second sandbox is ever made from the same snapshot.
        let is_snapshot = SnapshotId::of_template(&new.spec.template_name()).is_some();
        let pool = (!is_snapshot && Spec { env, egress, secrets, ..spec } == ordinary).then_some(kind);
        let terms = new.terms.check(sandboxes.ttl_max())?;
        sandboxes.check_storage(&new.spec)?;
        sandboxes.check_volumes(project, &new.spec)?;
        Ok(Self { policy_hash, terms, pool, secrets: Resolved::default(), template })
    }
}

pub(super) fn refuse(code: Code, message: String, help: &str) -> Fault {
    Fault::Refused(Problem::new(code, message, help))
}
