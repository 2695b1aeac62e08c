//! The files of a volume for clients that have no sandbox: a sandbox of the project's own is made for them, with nothing but the volume.
//!
//! A volume is a filesystem that hostile programs wrote, so the host never mounts it for itself or walks it. The sandbox has no network,
//! ends when it was idle for a while, and ends at once when the volume is to be removed, or when another sandbox is to have it alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use saggar_domain::{
    Access, ByteSize, DeadlineAction, Draft, DraftLimits, GuestPath, Labels, NetworkMode, ProjectId, SandboxId,
    Sharing, User, VolumeId, VolumeMount, VolumeRecord,
};

use super::VOLUMES;
use crate::fail_point::pass_named;
use crate::fault::{Fault, FileFault, FileFaultKind};
use crate::files::{FilePath, Files};
use crate::permit::{Action, Permit, Subject};
use crate::sandboxes::{NewSandbox, NewTerms, Sandboxes};

/// The label of such a sandbox; its value is the volume's name.
pub const VOLUME_LABEL: &str = "volume-files";
/// Where it has the volume.
const PLACE: &str = "/mnt/volume";
/// How long it stays without a request.
const IDLE: Duration = Duration::from_secs(20);
/// How long it lives at most.
const TTL: Duration = Duration::from_secs(3600);
const MEMORY: ByteSize = ByteSize::from_bytes(128 << 20);
const DISK: ByteSize = ByteSize::from_bytes(16 << 20);

/// The sandboxes that have a volume for its files, by volume.
#[derive(Debug, Default)]
pub(crate) struct ContentSandboxes(Mutex<BTreeMap<VolumeId, Slot>>);

/// The sandbox of one volume. Locked while it is made or ended, so that only those wait who want this volume.
type Slot = Arc<tokio::sync::Mutex<Option<SandboxId>>>;

impl ContentSandboxes {
    /// The slot of a volume. Those that nobody uses and whose sandbox is gone are removed.
    fn slot(&self, volume: &VolumeId, is_live: impl Fn(&SandboxId) -> bool) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, slot| {
            let has_sandbox = |slot: &Slot| slot.try_lock().is_ok_and(|id| id.as_ref().is_some_and(&is_live));
            // Whoever has a copy got it from here, under the lock.
            Arc::strong_count(slot) > 1 || has_sandbox(slot)
        });
        Arc::clone(slots.entry(volume.clone()).or_default())
    }

    /// The slot of a volume, if somebody has asked for its files.
    fn known(&self, volume: &VolumeId) -> Option<Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(volume).map(Arc::clone)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// The files of one volume. Paths begin at its top.
#[derive(Debug)]
pub struct VolumeContent {
    sandboxes: Sandboxes,
    project: ProjectId,
    sandbox: SandboxId,
}

impl Sandboxes {
    /// A permit for the volumes of the project whose token for this volume it is.
    pub fn volume_bearer(&self, volume: &VolumeId, token: &str) -> Option<Subject> {
        let project = token.split_once('.').and_then(|(project, _)| ProjectId::parse(project))?;
        let action = Action::Manage(VOLUMES);
        self.is_volume_token(volume, token).then_some(Subject::Bearer { project, action })
    }

    /// The files of a volume of the permit's project.
    pub async fn volume_content(&self, permit: &Permit, volume: &VolumeRecord) -> Result<VolumeContent, Fault> {
        permit.check(|action| *action == Action::Manage(VOLUMES))?;
        let project = permit.project().clone();
        let live = self.live_ids();
        let slot = self.content_sandboxes().slot(&volume.id, |id| live.contains(id));
        let mut known = slot.lock().await;
        let sandbox = match known.as_ref().filter(|id| self.live_ids().contains(id)).cloned() {
            Some(id) => id,
            None => {
                pass_named("volume-files", &volume.name);
                let id = self.make_for_content(&project, volume).await?;
                *known = Some(id.clone());
                id
            }
        };
        drop(known);
        Ok(VolumeContent { sandboxes: self.clone(), project, sandbox })
    }

    async fn make_for_content(&self, project: &ProjectId, volume: &VolumeRecord) -> Result<SandboxId, Fault> {
        let at = GuestPath::parse(PLACE).map_err(|_| Fault::WrongPermit)?;
        let labels = [(VOLUME_LABEL.to_owned(), volume.name.to_string())];
        let limits = DraftLimits { memory: Some(MEMORY), disk: Some(DISK), ..DraftLimits::default() };
        let new = NewSandbox {
            spec: Draft {
                user: Some(User::Root),
                network: Some(NetworkMode::None),
                volumes: vec![VolumeMount { name: volume.name.clone(), at, mode: Access::ReadWrite }],
                limits,
                ..Draft::default()
            },
            workspace: None,
            // A volume's name may have a form that a label's value has not.
            labels: Labels::parse(labels.into()).unwrap_or_default(),
            terms: NewTerms { ttl: TTL.min(self.ttl_max()), then: DeadlineAction::Kill, idle_timeout: Some(IDLE) },
            auto_resume: false,
            public_ports: Default::default(),
            ingress: Default::default(),
        };
        Ok(self.create_in(project.clone(), new, None).await?.sandbox.asked.id)
    }

    /// Ends the sandbox that has a volume only for its files, because somebody else needs the volume.
    pub(crate) async fn end_content_sandbox(&self, project: &ProjectId, volume: &VolumeRecord) -> Result<(), Fault> {
        let Some(slot) = self.content_sandboxes().known(&volume.id) else { return Ok(()) };
        let id = slot.lock().await.take();
        let Some(id) = id.filter(|id| self.live_ids().contains(id)) else { return Ok(()) };
        let action = Action::KillSandbox(id);
        let permit = Permit::decide(&Subject::Bearer { project: project.clone(), action: action.clone() }, action)?;
        match self.kill(&permit).await {
            Ok(_) | Err(Fault::NotFound { .. } | Fault::Conflict { .. }) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// The same before a sandbox gets volumes that one sandbox at a time may have.
    pub(crate) async fn free_exclusive_volumes(&self, project: &ProjectId, spec: &Draft) -> Result<(), Fault> {
        if spec.volumes.is_empty() || self.content_sandboxes().is_empty() {
            return Ok(());
        }
        let action = Action::Manage(VOLUMES);
        let permit = Permit::decide(&Subject::Bearer { project: project.clone(), action: action.clone() }, action)?;
        for wanted in &spec.volumes {
            let volume = self.volume(&permit, &wanted.name).await?;
            if volume.record.sharing == Sharing::Exclusive {
                self.end_content_sandbox(project, &volume.record).await?;
            }
        }
        Ok(())
    }
}

impl VolumeContent {
    /// Where a path of the volume is in the sandbox. `..` is refused: it would lead to the sandbox's own files.
    pub fn place(path: &str) -> Result<FilePath, Fault> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.contains(&"..") {
            let path = path.chars().take(256).collect();
            return Err(Fault::File(FileFault { path, kind: FileFaultKind::InvalidPath }));
        }
        let below = parts.iter().map(|part| format!("/{part}")).collect::<String>();
        FilePath::parse(&format!("{PLACE}{below}"), PLACE)
    }

    /// As a client knows it: from the top of the volume.
    pub fn shown(path: &FilePath) -> String {
        let text = path.to_string();
        text.strip_prefix(PLACE).filter(|rest| !rest.is_empty()).unwrap_or("/").to_owned()
    }

    /// The same in the message of a failure.
    pub fn fault(fault: Fault) -> Fault {
        match fault {
            Fault::File(FileFault { path, kind }) => {
                let path =
                    path.strip_prefix(PLACE).map_or(path.clone(), |rest| format!("/{}", rest.trim_start_matches('/')));
                Fault::File(FileFault { path, kind })
            }
            other => other,
        }
    }

    pub async fn to_read(&self, user: User) -> Result<Files, Fault> {
        Files::to_read(&self.sandboxes, &self.permit(Action::ReadFiles(self.sandbox.clone()))?, user).await
    }

    pub async fn to_write(&self, user: User) -> Result<Files, Fault> {
        Files::to_write(&self.sandboxes, &self.permit(Action::WriteFiles(self.sandbox.clone()))?, user).await
    }

    fn permit(&self, action: Action) -> Result<Permit, Fault> {
        Permit::decide(&Subject::Bearer { project: self.project.clone(), action: action.clone() }, action)
    }
}
