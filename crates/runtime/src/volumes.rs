//! Volumes of projects: create, list, remove, within what the operator allows.
//!
//! A volume is a directory in the data directory and has no row: the files are the truth, also after a backup of the store was restored.

mod content;

pub(crate) use content::ContentSandboxes;
pub use content::{VOLUME_LABEL, VolumeContent};

use saggar_domain::{ByteSize, Code, Draft, Problem, ProjectId, SandboxId, Sharing, VolumeName, VolumeRecord};
use saggar_sandbox::{NewVolume, VolumeQuota, Volumes, volume_users};

use crate::fault::Fault;
use crate::permit::{Action, Kind, Permit};
use crate::sandboxes::{Sandboxes, now};

/// Volumes, as permits name them.
pub const VOLUMES: Kind = Kind::new("volumes");

/// How much of the disk volumes may take.
#[derive(Clone, Copy, Debug)]
pub struct VolumeLimits {
    /// Maximum number of volumes in a project.
    pub count_max: usize,
    /// Maximum size of a project's volumes together. Without it, there are no volumes.
    pub bytes_max: Option<ByteSize>,
    /// The size of a volume if the request sets none.
    pub default_size: ByteSize,
}

/// A volume, and the live sandboxes that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedVolume {
    pub project: ProjectId,
    pub record: VolumeRecord,
    pub used_by: Vec<SandboxId>,
}

impl Sandboxes {
    pub async fn create_volume(
        &self,
        permit: &Permit,
        name: VolumeName,
        size: Option<ByteSize>,
        sharing: Sharing,
    ) -> Result<UsedVolume, Fault> {
        let limits = self.settings().volumes;
        let Some(bytes_max) = limits.bytes_max else {
            return Err(Fault::Refused(Problem::new(
                Code::UnsupportedCapability,
                "this server has no volumes",
                "ask the operator for the setting `volumes_bytes_max`",
            )));
        };
        let quota = VolumeQuota { count: limits.count_max as u64, bytes: bytes_max.bytes() };
        let size = size.unwrap_or(limits.default_size);
        let new = NewVolume { name, size, sharing, now: now(), quota };
        let project = permit.project().clone();
        self.on_volumes(permit, move |volumes, _| {
            let record = volumes.create(&new)?;
            Ok(UsedVolume { project, record, used_by: Vec::new() })
        })
        .await
    }

    /// By name.
    pub async fn volumes(&self, permit: &Permit) -> Result<Vec<UsedVolume>, Fault> {
        let project = permit.project().clone();
        self.on_volumes(permit, move |volumes, data| {
            let mut users = volume_users(data);
            let used = |record: VolumeRecord| UsedVolume {
                project: project.clone(),
                used_by: users.remove(&record.id).unwrap_or_default(),
                record,
            };
            Ok(volumes.list()?.into_iter().map(used).collect())
        })
        .await
    }

    pub async fn volume(&self, permit: &Permit, name: &VolumeName) -> Result<UsedVolume, Fault> {
        let (project, name) = (permit.project().clone(), name.clone());
        self.on_volumes(permit, move |volumes, data| {
            let record = volumes.get(&name)?;
            let used_by = volume_users(data).remove(&record.id).unwrap_or_default();
            Ok(UsedVolume { project, record, used_by })
        })
        .await
    }

    /// Refused while a sandbox uses it.
    pub async fn remove_volume(&self, permit: &Permit, name: &VolumeName) -> Result<(), Fault> {
        let volume = self.volume(permit, name).await?;
        self.end_content_sandbox(permit.project(), &volume.record).await?;
        let name = name.clone();
        self.on_volumes(permit, move |volumes, data| volumes.remove(data, &name)).await
    }

    /// Continues to its end even if the caller is cancelled.
    async fn on_volumes<T: Send + 'static>(
        &self,
        permit: &Permit,
        work: impl FnOnce(&Volumes, &saggar_sandbox::DataDirectory) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Fault> {
        permit.check(|action| *action == Action::Manage(VOLUMES))?;
        let (this, project) = (self.clone(), permit.project().clone());
        let done = tokio::task::spawn_blocking(move || {
            let data = this.data();
            work(&Volumes::new(data, project.as_str()), data)
        })
        .await;
        done.map_err(|error| Fault::internal("working on a volume", error))?.map_err(Fault::of_volume)
    }

    /// Refuses a volume that doesn't exist before anything of the sandbox does.
    pub(crate) fn check_volumes(&self, project: &ProjectId, spec: &Draft) -> Result<(), Fault> {
        let volumes = Volumes::new(self.data(), project.as_str());
        let check = |name: &VolumeName| volumes.get(name).map(drop).map_err(Fault::of_volume);
        spec.volumes.iter().try_for_each(|wanted| check(&wanted.name))
    }
}
