//! The vocabulary of Saggar as types: ids, specs, limits, events, results and error codes.
//!
//! Pure: no IO, no clock, no randomness. Anything stored or sent has its `schema` here, versioned from its first day.
#![forbid(unsafe_code)]

mod agent_sandbox;
mod canonical;
mod capability;
mod denial;
mod end;
mod environment;
mod event;
mod exec;
mod exec_spec;
pub mod id;
mod ingress;
mod label;
mod life;
mod limit;
mod mode;
pub mod model;
mod mount;
mod name;
pub mod net;
mod path;
mod problem;
mod public_ports;
mod quantity;
mod schema;
pub mod secret;
mod signal;
mod spec;
mod stream;
mod table;
pub mod template;
mod timestamp;
mod uptime;
mod volume;
mod workspace;

pub use agent_sandbox::AgentSandbox;
pub use canonical::{AgentHash, PolicyHash, canonical_json};
pub use capability::{CAPABILITIES_SCHEMA, Capabilities, Capability, Support};
pub use denial::{Denial, DenialCode};
pub use end::EndReason;
pub use environment::EnvDraft;
pub use event::{EVENT_SCHEMA, Event, EventBody};
pub use exec::{EXEC_SCHEMA, ExecResult, ExecState, ExecStatus, NetworkReport, Output, Usage};
pub use exec_spec::{CommandLine, ExecLimits, ExecSpec, TerminalSize};
pub use id::{ExecId, JobId, KeyId, ProjectId, RunId, SandboxId, VolumeId};
pub use ingress::{HostMask, Ingress};
pub use label::Labels;
pub use life::{DeadlineAction, RunState, SandboxState};
pub use limit::{DraftLimits, Limit, LimitName, Limits};
pub use mode::{Access, FsMode, NetworkMode, Sharing, Storage, Template, Tier, User};
pub use mount::Mount;
pub use name::{BootId, ProjectName, TemplateName, WorkspaceName};
pub use path::{GuestPath, HostPath, ProtectedPath};
pub use problem::{Code, Problem};
pub use public_ports::PublicPorts;
pub use quantity::{ByteSize, Count, Cpus, Timeout};
pub use schema::{Mismatch, SCHEMA_BYTES_MAX, Schema, SchemaError};
pub use signal::{Signal, SignalScope};
pub use spec::{Draft, Spec};
pub use stream::{Beginning, Offsets, OutputStream};
pub use timestamp::Timestamp;
pub use uptime::Uptime;
pub use volume::{VOLUME_RECORD_BYTES_MAX, VolumeMount, VolumeName, VolumeRecord};
pub use workspace::DEFAULT_PROTECTED;
