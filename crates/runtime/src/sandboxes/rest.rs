//! Rest: a paused sandbox whose files are kept on disk, so that it can go on from them alone.
//!
//! ```text
//!            pause, its storage is on disk               its supervisor is gone: the host restarted
//!  running ──────────────────────────────▶ kept (paused) ────────────────────────────────────────▶ alone (paused) ──resume──▶ running
//!     └───────────────── pause without memory: kept, and then its supervisor is ended ────────────────▶┘
//! ```
//! What is kept is a snapshot that nobody sees. A resume of a sandbox that is alone starts a new supervisor under the same id, with the files
//! of the snapshot and without processes.
//!
//! INVARIANT: a paused row with such a snapshot was paused with these files. So the snapshot goes before the sandbox runs again, or, if it is
//! needed for that, before the next pause is recorded; and before a kill. All of this happens under a lock that the processes of a machine
//! share, and the snapshot of a paused sandbox goes only while its supervisor has the files as well.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use saggar_domain::secret::SecretName;
use saggar_domain::{
    Code, DeadlineAction, Draft, EnvDraft, Problem, Resting, SandboxId, SandboxState, SnapshotId, SnapshotRecord,
    Storage,
};
use saggar_store::{Change, ExecOutput, Life, Lifetime, Sandbox, SandboxPatch, Sealed};
use saggar_supervisor::control::{CONTROL, Description, Final, Op, Terms};
use zeroize::Zeroizing;

use super::create::{Owner, Past};
use super::end::end_of;
use super::live::Live;
use super::pool::StoredTemplate;
use super::{Sandboxes, now};
use crate::fail_point::{check, pass};
use crate::fault::Fault;
use crate::secrets::{Label, SealingKey};
use crate::snapshots::{Purpose, TakeSnapshot};
use crate::supervisor::Connection;
use crate::templates::blocking;

/// The purpose string from which the key for variables is derived.
const KEY: &str = "rest/v1";
/// The name in the label of sealed variables.
const ENVIRONMENT: &str = "sandbox-environment";
/// Maximum size of sealed variables, as text.
const ENVIRONMENT_MAX: usize = 2 << 20;

/// What a pause keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Everything: its processes are frozen.
    #[default]
    Memory,
    /// Its files. Its processes are ended, and it uses no memory.
    Files,
}

/// Where the files of a paused sandbox are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Beside its supervisor, which has them too.
    Kept(SnapshotId),
    /// Nothing else is left of it.
    Alone(SnapshotId),
}

impl Rest {
    pub(crate) fn snapshot(&self) -> &SnapshotId {
        match self {
            Self::Kept(id) | Self::Alone(id) => id,
        }
    }
}

/// What clients learn of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// It survives a restart of the host.
    pub files: bool,
    /// It has no processes any more.
    pub is_alone: bool,
}

impl Sandboxes {
    /// What is kept of a paused sandbox.
    pub fn kept(&self, id: &SandboxId) -> Kept {
        let rest = self.inner.register.get(id).and_then(|live| live.rest());
        Kept { files: rest.is_some(), is_alone: matches!(rest, Some(Rest::Alone(_))) }
    }

    /// Refuses a pause that can't be made, before anything is paused.
    pub(super) async fn check_keep(&self, live: &Live, keep: Keep) -> Result<(), Fault> {
        let row = self.row_of(&live.project, &live.id).await?;
        match keep {
            Keep::Files => check_restful(&row.asked.spec),
            Keep::Memory => Ok(()),
        }
    }

    /// Refuses terms whose deadline can't be kept.
    pub(super) async fn check_deadline(&self, live: &Live, terms: Option<Terms>) -> Result<(), Fault> {
        match terms.map(|terms| terms.then) {
            Some(DeadlineAction::Rest) => check_restful(&self.row_of(&live.project, &live.id).await?.asked.spec),
            Some(DeadlineAction::Kill | DeadlineAction::Pause) | None => Ok(()),
        }
    }

    /// Keeps the files of a sandbox that was just paused. The caller has locked its paused state.
    pub(super) async fn keep_files(&self, live: &Arc<Live>, keep: Keep) -> Result<(), Fault> {
        let row = self.row_of(&live.project, &live.id).await?;
        let spec = &row.asked.spec;
        let is_wanted = keep == Keep::Files || spec.storage == Some(Storage::Disk) && spec.workspace.is_none();
        if !is_wanted || live.rest().is_some() || !matches!(row.life, Life::Paused { .. }) {
            return Ok(());
        }
        let id = Self::new_snapshot_id();
        // Until it is noted below: nothing else says that it is used.
        let _used = self.begin_forking(&id);
        self.take(live, id.clone(), TakeSnapshot::default(), Purpose::Rest).await?;
        pass("rest/kept");
        live.set_rest(Some(Rest::Kept(id)));
        Ok(())
    }

    /// The same for one that was paused by its deadline. If it fails, the sandbox is paused all the same, with its memory.
    pub(super) fn keep_files_later(&self, live: &Arc<Live>) {
        let (this, live) = (self.clone(), Arc::clone(live));
        tokio::spawn(async move {
            let _paused = live.accounted.lock().await;
            let _alone = match this.begin_change(&live).await {
                Ok(alone) => alone,
                Err(fault) => {
                    tracing::warn!(sandbox = %live.id, error = %fault, "a sandbox that its deadline paused keeps only its memory");
                    return;
                }
            };
            match this.row_of(&live.project, &live.id).await.map(|row| row.asked.lifetime.on_deadline) {
                Ok(DeadlineAction::Rest) => this.rest_or_warn(&live).await,
                Ok(DeadlineAction::Pause | DeadlineAction::Kill) | Err(_) => this.keep_files_or_warn(&live).await,
            }
        });
    }

    async fn rest_or_warn(&self, live: &Arc<Live>) {
        let rested = match self.keep_files(live, Keep::Files).await {
            Ok(()) => self.leave_alone(live).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = rested {
            tracing::warn!(sandbox = %live.id, error = %fault, "a sandbox keeps its memory, because its files could not be kept alone");
        }
    }

    pub(super) async fn keep_files_or_warn(&self, live: &Arc<Live>) {
        if let Err(fault) = self.keep_files(live, Keep::Memory).await {
            tracing::warn!(sandbox = %live.id, error = %fault, "a paused sandbox would not survive a restart of the host");
        }
    }

    /// Ends the processes of a paused sandbox whose files are kept.
    pub(super) async fn leave_alone(&self, live: &Arc<Live>) -> Result<(), Fault> {
        let Some(Rest::Kept(id)) = live.rest() else { return Ok(()) };
        if self.is_running(live).await {
            // A process that resumed it died before it recorded that: what was kept is not what it has now.
            return self.forget_rest(live).await;
        }
        // First, so that whoever notices the end of its supervisor doesn't take it for the sandbox's.
        live.set_rest(Some(Rest::Alone(id.clone())));
        match Connection::question(&live.socket, Op::Kill).await {
            Ok(_) => {}
            Err(error) if error.is_gone() => self.reap().await,
            Err(error) => {
                live.set_rest(Some(Rest::Kept(id)));
                return Err(Fault::from_control(error, &live.id));
            }
        }
        pass("rest/alone");
        self.hear_last_words(&live.id).await;
        Ok(())
    }

    /// Stores what the supervisor of a resting sandbox left, except for the end.
    pub(super) async fn hear_last_words(&self, id: &SandboxId) {
        if let Ok(Some(last)) = self.inner.places.read_final(id) {
            self.write_rest(&last).await;
        }
        self.inner.places.remove_socket(id);
    }

    async fn write_rest(&self, last: &Final) {
        let id = &last.sandbox_id;
        let mut written = self.write_events(id, &last.events).await;
        for state in last.execs.iter().map(|finished| &finished.state) {
            if let Some(end) = end_of(state) {
                written = written.and(self.write_exec_ended(id, state, end, ExecOutput::default()).await);
            }
        }
        if let Err(fault) = written {
            tracing::warn!(sandbox = %id, error = %fault, "storing what a resting sandbox did last failed");
        }
        self.inner.places.remove_final(id);
    }

    /// The supervisor of a sandbox is gone. Whether the sandbox rests, and so has not ended.
    pub(super) async fn rests(&self, id: &SandboxId) -> bool {
        let Some(live) = self.inner.register.get(id) else { return false };
        if live.is_ending() {
            return live.is_alone();
        }
        // Another process of this machine may have paused it, or resumed it.
        if !matches!(live.rest(), Some(Rest::Alone(_)))
            && let Err(fault) = self.learn_rest(&live).await
        {
            tracing::warn!(sandbox = %id, error = %fault, "reading whether a sandbox rests failed");
        }
        match live.lose_supervisor() {
            None => false,
            Some(Rest::Alone(_)) => true,
            Some(Rest::Kept(_)) => {
                self.reap().await;
                self.hear_last_words(id).await;
                true
            }
        }
    }

    /// Adopts a paused sandbox of which only its files are left.
    pub(super) async fn adopt_resting(&self, row: &Sandbox, snapshot: SnapshotId) {
        let live = Live::new(self.facts_of(row), self.inner.slots.take_anyway());
        live.set_rest(Some(Rest::Alone(snapshot)));
        let stored = self.store().last_event(row.asked.id.clone()).await.ok().flatten().unwrap_or(0);
        live.stored.send_replace(stored);
        self.inner.register.add(Arc::new(live));
        self.hear_last_words(&row.asked.id).await;
    }

    /// The snapshots that sandboxes rest in, of all projects.
    pub(super) async fn all_rests(&self) -> Result<HashMap<SandboxId, SnapshotId>, Fault> {
        let this = self.clone();
        blocking("reading snapshots", move || {
            let mut found = HashMap::new();
            for project in this.projects_with_templates() {
                // What is wrong with one project must not keep the server from starting.
                let all = this.template_store(&project).and_then(|store| store.snapshots().map_err(Fault::Refused));
                let all = all.inspect_err(|fault| tracing::error!(%project, error = %fault, "snapshots can't be read"));
                for record in all.unwrap_or_default().into_iter().filter(|record| record.facts.rest.is_some()) {
                    // The last one counts: they are in the order of their time.
                    found.extend(record.facts.sandbox.map(|sandbox| (sandbox, record.id)));
                }
            }
            Ok(found)
        })
        .await
    }

    /// Whether a sandbox rests in this snapshot.
    pub(crate) fn is_rest(&self, record: &SnapshotRecord) -> bool {
        let live = record.facts.sandbox.as_ref().and_then(|id| self.inner.register.get(id));
        live.and_then(|live| live.rest()).is_some_and(|rest| *rest.snapshot() == record.id)
    }

    /// Removes what was kept, because it is about to become outdated.
    pub(crate) async fn forget_rest(&self, live: &Live) -> Result<(), Fault> {
        let Some(rest) = live.set_rest(None) else { return Ok(()) };
        let dropped = self.drop_rest(live, rest.snapshot().clone()).await;
        if dropped.is_err() {
            live.set_rest(Some(rest));
        }
        dropped
    }

    /// Removes a snapshot that a sandbox rested in. What runs from it keeps its files.
    pub(super) async fn drop_rest(&self, live: &Live, snapshot: SnapshotId) -> Result<(), Fault> {
        let (this, project) = (self.clone(), live.project.clone());
        blocking("removing a snapshot", move || {
            let store = this.template_store(&project)?;
            store.remove_snapshot(&snapshot).map_err(Fault::Refused)?;
            this.jobs().note_leftovers(project);
            Ok(())
        })
        .await
    }

    /// Starts a sandbox again of which only its files are left. The caller has locked its paused state.
    pub(super) async fn rise(&self, live: &Arc<Live>, snapshot: SnapshotId, terms: Option<Terms>) -> Result<(), Fault> {
        let (id, project) = (&live.id, &live.project);
        let row = self.row_of(project, id).await?;
        let found = self.resting_in(live, &snapshot).await?;
        let template = StoredTemplate {
            project: project.to_string(),
            name: snapshot.template_name(),
            id: found.template.clone(),
            user: None,
            limits: Default::default(),
        };
        let env = self.opened_environment(&found)?;
        let uses = row.asked.spec.secrets.clone();
        let secrets = self.resolve_secrets(project, &uses).await?;
        let terms = terms.unwrap_or_else(|| time_left(&row));
        let spec = Draft { template: Some(template.name.clone()), env, ..row.asked.spec };
        let spec = self.with_models(id, self.with_placeholders(id, spec, &secrets)?)?;
        let volume_project = (!spec.volumes.is_empty()).then(|| project.as_str().to_owned());
        let owner = Owner::Client { uses_secrets: !uses.is_empty() };
        let events_before = self.store().last_event(id.clone()).await?.unwrap_or(0);
        pass("rest/rising");
        let past = Past { template_project: Some(project.to_string()), volume_project, events_before };
        match self.start_supervisor(id, spec, terms, owner, past).await {
            // A server that started since doesn't know the user that its template names.
            Ok(description) => live.learn(&description),
            Err(error) => {
                self.reap().await;
                return Err(self.start_fault(id, error));
            }
        }
        pass("rest/started");
        let bound = self.bind_new(id, project, &uses).await;
        let recorded = match bound {
            Ok(()) => self.record_risen(id).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = recorded {
            // It rests on: a sandbox whose row doesn't say that it runs isn't watched.
            if let Err(error) = Connection::question(&live.socket, Op::Kill).await {
                tracing::warn!(sandbox = %id, error = %error, "ending a sandbox that could not be resumed failed");
            }
            self.hear_last_words(id).await;
            return Err(fault);
        }
        pass("rest/row");
        let lifetime = Lifetime {
            deadline: terms.ttl_ms.map(|left| now().after(Duration::from_millis(left))),
            on_deadline: terms.then,
            idle_timeout: terms.idle_ms.map(Duration::from_millis),
        };
        let patch = SandboxPatch { lifetime: Some(lifetime), ..SandboxPatch::default() };
        if let Err(error) = self.store().patch_sandbox(id.clone(), patch).await {
            // It runs, by these terms. Only what its row says about them is outdated.
            tracing::warn!(sandbox = %id, error = %error, "recording the lifetime of a resumed sandbox failed");
        }
        live.set_rest(None);
        self.watch(Arc::clone(live), events_before);
        if let Err(fault) = self.begin_service(project, id, Some(&template)).await {
            // Its files count for more than its service.
            tracing::warn!(sandbox = %id, error = %fault, "the start command of a resumed sandbox failed");
        }
        self.begin_warm(id, &live.socket, &self.warm_imports_of(Some(&template))).await;
        // It is used, so its files stay until the sandbox ends. If it can't be removed now, the next sweep does it.
        if let Err(fault) = self.drop_rest(live, snapshot).await {
            tracing::warn!(sandbox = %id, error = %fault, "removing what a sandbox rested in failed");
        }
        pass("rest/forgotten");
        Ok(())
    }

    async fn record_risen(&self, id: &SandboxId) -> Result<(), Fault> {
        check("rest/recording").map_err(|error| Fault::internal("recording that a sandbox was resumed", error))?;
        self.store().change_sandbox(id.clone(), Change::Resumed { at: now() }).await?;
        Ok(())
    }

    async fn resting_in(&self, live: &Live, snapshot: &SnapshotId) -> Result<SnapshotRecord, Fault> {
        let (this, project, wanted) = (self.clone(), live.project.clone(), snapshot.clone());
        let found = blocking("reading a snapshot", move || {
            this.template_store(&project)?.snapshot(&wanted).map_err(Fault::Refused)
        });
        found.await?.ok_or_else(|| {
            Fault::Refused(Problem::new(
                Code::DataDirectory,
                format!("the files of sandbox {} are gone", live.id),
                "tell the operator: `saggar template check` lists all damage",
            ))
        })
    }

    /// What is known of a sandbox that is alone.
    pub(super) async fn described_alone(&self, live: &Live) -> Result<Description, Fault> {
        let row = self.row_of(&live.project, &live.id).await?;
        let terms = time_left(&row);
        Ok(Description {
            protocol: CONTROL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sandbox_id: live.id.clone(),
            pid: 0,
            state: SandboxState::Paused,
            is_claimed: true,
            ttl_left_ms: terms.ttl_ms,
            then: terms.then,
            idle_ms: terms.idle_ms,
            idle_for_ms: 0,
            policy_hash: row.asked.policy_hash.map(|hash| hash.to_string()).unwrap_or_default(),
            unenforced: Vec::new(),
            execs: Vec::new(),
            last_event: self.store().last_event(live.id.clone()).await?.unwrap_or(0),
            guest_protocol: saggar_guest::PROTOCOL,
            egress: None,
            based_on: None,
            account: None,
            has_changes: false,
        })
    }

    /// What its row doesn't have and a new supervisor needs.
    pub(crate) async fn resting(&self, live: &Live, snapshot: &SnapshotId) -> Result<Resting, Fault> {
        let env = self.environment_of(live).await?.into_map();
        if env.is_empty() {
            return Ok(Resting::default());
        }
        let text = serde_json::to_vec(&env).map_err(|error| Fault::internal("writing variables", error))?;
        let name = environment_name();
        let label = Label { project: &live.project, name: &name, version: 1, binding_text: snapshot.as_str() };
        let sealed = STANDARD.encode(self.rest_key().seal(label, &text).0);
        if sealed.len() > ENVIRONMENT_MAX {
            return Err(Fault::Refused(Problem::new(
                Code::InvalidValue,
                "the variables that the sandbox was created with are too large to be kept",
                "pause it with its memory",
            )));
        }
        Ok(Resting { env: Some(sealed) })
    }

    fn opened_environment(&self, record: &SnapshotRecord) -> Result<EnvDraft, Fault> {
        let mut env = EnvDraft::default();
        let (Some(text), Some(sandbox)) =
            (record.facts.rest.as_ref().and_then(|rest| rest.env.as_ref()), &record.facts.sandbox)
        else {
            return Ok(env);
        };
        let project = self.inner.register.get(sandbox).map(|live| live.project.clone());
        let name = environment_name();
        let opened = project.zip(STANDARD.decode(text).ok()).and_then(|(project, sealed)| {
            let label = Label { project: &project, name: &name, version: 1, binding_text: record.id.as_str() };
            let text = self.rest_key().open(label, &Sealed(sealed))?;
            serde_json::from_slice::<HashMap<String, String>>(&text).ok()
        });
        let unreadable = || {
            Fault::Refused(Problem::new(
                Code::DataDirectory,
                format!("the variables of sandbox {sandbox} can't be read: they were sealed with another signing key"),
                "end it, and create a new one",
            ))
        };
        for (name, value) in opened.ok_or_else(unreadable)? {
            env.insert(name, value).map_err(Fault::Refused)?;
        }
        Ok(env)
    }

    fn rest_key(&self) -> SealingKey {
        SealingKey::from_bytes(Zeroizing::new(self.signing().derive(&[KEY])))
    }
}

/// Whether a sandbox can go on from its files alone.
pub(super) fn check_restful(spec: &Draft) -> Result<(), Fault> {
    match spec.workspace {
        None => Ok(()),
        Some(_) => Err(Fault::Refused(Problem::new(
            Code::UnsupportedCapability,
            "a sandbox with a workspace can't be paused without its memory: its changes there are kept when it ends, and not before",
            "pause it with its memory, or end it",
        ))),
    }
}

fn environment_name() -> SecretName {
    SecretName::parse(ENVIRONMENT).expect("it has the form of a name")
}

/// The terms of a paused sandbox: the time that it had left, or the whole time again if it had none.
fn time_left(row: &Sandbox) -> Terms {
    let asked = &row.asked;
    let Lifetime { deadline, on_deadline, idle_timeout } = &asked.lifetime;
    let paused_at = match row.life {
        Life::Paused { since, .. } => since,
        Life::Creating | Life::Running { .. } | Life::Ended { .. } => asked.created_at,
    };
    let until = |from: saggar_domain::Timestamp| {
        deadline.map(|deadline| deadline.as_millis().saturating_sub(from.as_millis())).filter(|left| *left > 0)
    };
    Terms {
        ttl_ms: until(paused_at).or_else(|| until(asked.created_at)),
        then: *on_deadline,
        idle_ms: idle_timeout.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
    }
}
