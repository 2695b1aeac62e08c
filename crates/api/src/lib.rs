//! The HTTP API of `saggar serve` as types: requests, responses, problems, streams; and a client for it.
//!
//! There is no logic here: the server checks what a type can't express. Requests reject unknown fields by name;
//! responses may grow, so readers ignore unknown fields. [`schema`] defines how the domain's types appear in the
//! OpenAPI document.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod agent;
mod agent_bounds;
mod attach;
mod bytes;
mod changes;
#[cfg(feature = "client")]
pub mod client;
mod code;
mod environment;
mod event;
mod exec;
mod file;
mod host;
mod interpreter;
mod key;
mod model;
mod name;
mod network;
mod object;
mod output;
mod path;
mod problem;
mod project_secret;
pub mod read;
pub mod route;
mod run;
mod run_files;
mod run_models;
mod sandbox;
pub mod schema;
mod secret;
mod snapshot;
mod sse;
mod stream;
mod template;
mod time;
mod update;
mod volume;

pub use agent::{
    Agent, AgentFallbacks, AgentModel, AgentTool, EffectClass, RunBudget, SubAgent, ToolKind, WhenFailing,
    WhenUnanswered, WhenUncertain,
};
pub use agent_bounds::{AgentContext, AgentOutput, WhenOutOfBudget};
pub use attach::{ATTACH_MESSAGE_BYTES_MAX, AttachQuery, AttachReply, AttachRequest, split_output};
pub use bytes::Bytes;
pub use changes::{
    AppliedBranch, AppliedChange, AppliedChanges, ApplyChanges, ChangeDiff, ChangeDiffQuery, ChangeDiffs, ChangeList,
    NewBranch, NewCommit, SandboxChange, SkippedChange,
};
pub use code::Code;
pub use environment::Environment;
pub use event::{EventList, EventsQuery, PauseReason, SandboxEvent, SandboxEventBody};
pub use exec::{Exec, ExecLimitsShape, ExecList, ResizeExec, SignalExec, StartExec, StdinQuery, TerminalSizeShape};
pub use file::{
    FileChange, FileEntry, FileEvent, FileKind, FileList, FileQuery, ListQuery, MakeDirectory, Metadata, MoveFile,
    RemoveQuery, SignFile, SignedMethod, SignedUrl, StatQuery, TreeReport, WatchQuery, WriteQuery, WriteReport,
};
pub use host::{Health, HealthStatus, Metrics, Sample};
pub use interpreter::{
    CodeContext, CodeContextList, CodeEvent, CodeExecution, CodeFormats, CreateCodeContext, RaisedError, RunCode,
    ShownResult,
};
pub use key::{CreateKey, CreatedKey, Key, KeyList};
pub use model::{Model, ModelDetails, ModelList, ModelSpending, ModelTarget, ModelTrial, RouteSpending, TrialUsage};
pub use name::{KeyName, Label, Labels};
pub use network::{NetworkDecision, SandboxNetwork};
pub use output::{ExecResult, Output};
pub use path::{FileMode, FilePath};
pub use problem::{PROBLEM_MEDIA_TYPE, Problem};
pub use project_secret::{EffectiveBinding, EffectiveSlot, ProjectSecret, RemoveSecret, SecretList, SetSecret};
pub use run::{
    DecideStep, ForkRun, JournalPage, JournalQuery, ListRuns, OpenStepState, RaiseBudget, ReplayDivergence,
    ReplayReport, Run, RunBlock, RunChildOf, RunList, RunOpenCall, RunOpenStep, RunParent, RunParked, RunQuestion,
    RunSaid, SaidKind, SignalRun, StartRun, StepDecision,
};
pub use run_files::{
    AgentSnapshots, RestoredFiles, RollBackRun, RolledBackRun, RunBeganWith, RunFiles, RunSnapshot, StaysDone,
};
pub use run_models::RunSandboxModel;
/// Words of the domain that are part of the API.
pub use saggar_domain::{
    Beginning, CodeLanguage, CodeStatus, CommandLine, DeadlineAction, ExecLimits, ExecState, ExecStatus, Offsets,
    OutputStream, SandboxState, Signal, SignalScope, TemplateName, TerminalSize,
};
pub use sandbox::{
    CreateSandbox, CreatedSandbox, EffectiveEgress, EffectiveEgressLimits, EffectiveLimits, EffectivePorts, Ended,
    ListSandboxes, Network, PausedSandbox, Ports, Sandbox, SandboxLimits, SandboxList, SandboxSecret, SandboxSpec,
    States,
};
pub use secret::Secret;
pub use snapshot::{
    CreateSnapshot, DiffQuery, ForkOutcome, ForkSandbox, ForkedSandboxes, ImportSnapshot, ListSnapshots,
    RemovedSnapshot, RollBackSandbox, Snapshot, SnapshotChange, SnapshotChangeKind, SnapshotDiff, SnapshotList,
    SnapshotOfRun,
};
pub use sse::{SSE_MEDIA_TYPE, ServerSentEvent, SseDecoder, TooLong};
pub use stream::{ExecEvent, StreamQuery};
pub use template::{
    BuildTemplate, ImportTemplate, RemovedTemplate, TagTemplate, Template, TemplateContents, TemplateJob,
    TemplateJobKind, TemplateJobList, TemplateJobProblem, TemplateJobState, TemplateLayer, TemplateList, TemplateLog,
    TemplateLogLine, TemplateLogQuery, TemplateRest, UploadTemplate,
};
pub use time::Timestamp;
pub use update::{Change, PauseSandbox, ResumeSandbox, SetTimeout, UpdateSandbox};
pub use volume::{CreateVolume, SandboxVolume, Volume, VolumeList};
