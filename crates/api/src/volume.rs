//! Volumes of a project: create, list, read, remove.

use saggar_domain::{Access, ByteSize, GuestPath, ProjectId, SandboxId, Sharing, VolumeId, VolumeMount, VolumeName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::object::only_from_an_object;
use crate::schema;
use crate::time::Timestamp;

/// A volume to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct CreateVolume {
    /// Its name, unique in the project.
    #[schema(value_type = schema::VolumeName)]
    pub name: VolumeName,
    /// How much it can hold; the server has a default. All of it is reserved at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub size: Option<ByteSize>,
    /// How many sandboxes may use it at once; `exclusive` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::VolumeSharing>)]
    pub sharing: Option<Sharing>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// The volume's id. A later volume of the same name has another one.
    #[schema(value_type = schema::VolumeId)]
    pub id: VolumeId,
    /// The project it belongs to.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// Its name.
    #[schema(value_type = schema::VolumeName)]
    pub name: VolumeName,
    /// How much it can hold, its own administration included.
    #[schema(value_type = schema::Size)]
    pub size: ByteSize,
    /// How many sandboxes may use it at once.
    #[schema(value_type = schema::VolumeSharing)]
    pub sharing: Sharing,
    /// When it was created.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// The live sandboxes that use it.
    #[schema(value_type = Vec<schema::SandboxId>)]
    pub used_by: Vec<SandboxId>,
}

/// All volumes of a project, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes.
    pub items: Vec<Volume>,
}

/// A volume that a sandbox uses, as reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxVolume {
    /// The volume's name.
    #[schema(value_type = schema::VolumeName)]
    pub name: VolumeName,
    /// Where it is mounted.
    #[schema(value_type = schema::SandboxPath)]
    pub at: GuestPath,
    /// Whether programs may write it.
    #[schema(value_type = schema::VolumeMode)]
    pub mode: Access,
}

impl From<VolumeMount> for SandboxVolume {
    fn from(VolumeMount { name, at, mode }: VolumeMount) -> Self {
        Self { name, at, mode }
    }
}

only_from_an_object!(CreateVolume);
