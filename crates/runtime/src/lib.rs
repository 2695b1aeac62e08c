//! The runtime: the lifecycle of sandboxes over their supervisors, everything that is done in a sandbox, and the
//! execution of runs.
//!
//! Async, and without HTTP or SQL: the server calls it, and it keeps durable state in the store. Every operation that
//! acts takes a [`Permit`].
#![forbid(unsafe_code)]

mod code;
pub mod egress;
mod execs;
mod fault;
mod files;
mod following;
mod host;
mod keys;
mod models;
mod permit;
mod ports;
pub mod runs;
mod sandboxes;
mod secrets;
mod settings;
mod signing;
mod snapshots;
mod supervisor;
mod templates;

/// What a build does, in its own terms.
use saggar_sandbox::fail_point;
pub use saggar_sandbox::{NewBranch, NewCommit};

pub use saggar_build::{
    Action as BuildAction, Base as StageBase, Command as BuildCommand, Recipe, Stage as BuildStage, Step as BuildStep,
};
mod volumes;

pub use code::{
    CODE_BYTES_MAX, CodeError, CodeEvent, CodeResult, Context, HeldCode, ModuleName, NewContext, Place, RunCode,
    Running,
};
pub use fault::{Fault, FileFault, FileFaultKind};
pub use files::{
    DEPTH_MAX, FileEntry, FileEvent, FileEventKind, FileKind, FilePath, Files, Heard, LIST_MAX, MetadataEntry, Reading,
    Walked, Walking, Watching, WriteOptions, Writing,
};
pub use following::{ExecEvent, Finished, Followed, Following};
pub use keys::{KEYS, create_key_in};
pub use models::{MODELS, ModelConnection, gateway as model_gateway};
pub use permit::{Action, Kind, Permit, Subject};
pub use ports::OpenPort;
/// What differs between two snapshots.
pub use saggar_image::{DiffEntry, Difference, StackDiff};
pub use sandboxes::{
    Adopted, AppliedChange, AppliedChanges, AskedWorkspace, ChangeDiff, Created, ExecView, Keep, Kept, KeptChanges,
    NewSandbox, NewTerms, NoDiff, Patch, PoolSize, Sandboxes, StoredExec, Upkeep, Workspaces,
};
pub use secrets::{HeaderRule, KeyFault, KeyFile, OldKeys, Rekeyed, SECRETS, SetSecret, Written, rekey};
pub use settings::Settings;
pub use signing::{SIGNING_KEY, Signature, SigningKey};
pub use snapshots::{
    ForkOptions, Forked, SNAPSHOTS, SnapshotExport, SnapshotLimits, SnapshotQuery, SnapshotView, TakeSnapshot,
};
pub use supervisor::{ControlError, Feeding, Launched, Launcher, Waiting};
pub use templates::{
    BuildBase, BuildRequest, BuildSource, FilesHash, ImportRequest, JobKind, JobLine, JobOutcome, JobState, JobView,
    RegistryCredentials, RegistryRule, RemovedTemplate, TEMPLATES, TemplateContents, TemplateRest, TemplateView,
    Upload,
};
pub use volumes::{UsedVolume, VOLUME_LABEL, VOLUMES, VolumeContent, VolumeLimits};
