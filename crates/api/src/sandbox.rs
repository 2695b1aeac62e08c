//! Sandboxes: the request, the description, and how one ended.

use saggar_domain::model::ModelAccess;
use saggar_domain::net::{EgressDraft, EgressLimits, Rule};
use saggar_domain::secret::SecretUse;
use saggar_domain::{
    ByteSize, Count, Cpus, DeadlineAction, Draft, DraftLimits, EndReason, FsMode, HostPath, Limits, NetworkMode,
    PolicyHash, Problem, ProjectId, SandboxId, SandboxState, Spec, Storage, TemplateName, Tier, Timeout, User,
    VolumeMount, WorkspaceName,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::environment::Environment;
use crate::name::{Label, Labels};
use crate::object::only_from_an_object;
use crate::schema;
use crate::secret::Secret;
use crate::time::Timestamp;
use crate::volume::SandboxVolume;

/// A sandbox to create. Everything has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct CreateSandbox {
    /// The template that its filesystem starts from.
    #[schema(value_type = schema::TemplateName)]
    pub template: TemplateName,
    /// Labels for finding it again.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// Environment variables of every exec; an exec's own take precedence. Not kept after the sandbox has ended.
    #[serde(skip_serializing_if = "Environment::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub env: Environment,
    /// Resource limits.
    pub limits: SandboxLimits,
    /// Its lifetime; the server has a default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub ttl: Option<Timeout>,
    /// What happens when its time is up.
    #[schema(value_type = schema::OnTimeout)]
    pub on_timeout: DeadlineAction,
    /// Maximum time without activity before the same happens; by default unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub idle_timeout: Option<Timeout>,
    /// Its network access; `none` by default.
    #[schema(value_type = schema::Network, default = "none")]
    pub network: Network,
    /// Rules for network mode `proxied`.
    #[serde(skip_serializing_if = "EgressDraft::is_empty")]
    #[schema(value_type = schema::EgressShape)]
    pub egress: EgressDraft,
    /// Secrets of the project that its requests use, with network mode `proxied`. Programs get placeholders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schema::SecretUseShape>, max_items = 64)]
    pub secrets: Vec<SecretUse>,
    /// Models of the server that its programs may call at http://model.internal, with network mode `proxied`: `true` for all, or their
    /// names. The variables of OpenAI's and Anthropic's clients lead there.
    #[serde(skip_serializing_if = "ModelAccess::is_none")]
    #[schema(value_type = schema::ModelAccessShape, default = false)]
    pub models: ModelAccess,
    /// The user that programs run as, unless an exec sets another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
    /// Where the files are that it makes; in memory by default. On disk only for a template that is an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::StoragePlace>)]
    pub storage: Option<Storage>,
    /// A directory of the server's host, by the name that the operator gave it, at /workspace. It is mounted copy-on-write: what programs
    /// change is kept when the sandbox ends, and changes the directory only when it is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::WorkspaceName>)]
    pub workspace: Option<WorkspaceName>,
    /// Another directory of the server's host instead, by its path: only for a user of that host, through the server's Unix socket. It is
    /// opened with that user's rights, and mounted in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::HostDirectory>)]
    pub directory: Option<HostPath>,
    /// How that directory is mounted: `scratch`, the default, is copy-on-write; `worktree` is for the top of a git repository, gives the
    /// sandbox the files of its current commit, and makes a branch of what is committed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::WorkspaceMode>)]
    pub fs: Option<FsMode>,
    /// Volumes of the project, each at a path of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schema::VolumeMountShape>, max_items = 16)]
    pub volumes: Vec<VolumeMount>,
    /// Whether a request resumes it while it is paused.
    pub auto_resume: bool,
    /// Access to its ports.
    pub ports: Ports,
}

impl CreateSandbox {
    /// The spec that it asks for.
    pub fn into_spec(self) -> Draft {
        Draft {
            template: Some(self.template),
            env: self.env.into(),
            user: self.user,
            fs: self.fs,
            network: Some(self.network.0),
            egress: self.egress,
            secrets: self.secrets,
            models: self.models,
            storage: self.storage,
            volumes: self.volumes,
            limits: self.limits.into(),
            ..Draft::default()
        }
    }
}

/// A request for a sandbox of this spec, with defaults for everything that is not in a spec. An error names what can't be asked of a
/// server, such as a directory of the host.
impl TryFrom<Draft> for CreateSandbox {
    type Error = Problem;

    fn try_from(draft: Draft) -> Result<Self, Problem> {
        let Draft {
            schema: _,
            tier,
            template,
            workspace,
            workspace_user,
            fs,
            protect,
            mounts,
            volumes,
            env,
            cwd,
            user,
            network,
            egress,
            secrets,
            models,
            storage,
            limits: DraftLimits { timeout, memory, cpus, pids, disk, files, output },
            strict,
        } = draft;
        let unavailable = [
            ("tier", tier.is_some()),
            ("workspace", workspace.is_some()),
            ("workspace_user", workspace_user.is_some()),
            ("protect", !protect.is_empty()),
            ("mounts", !mounts.is_empty()),
            ("cwd", cwd.is_some()),
            ("timeout", timeout.is_some()),
            ("strict", strict.is_some()),
        ];
        if let Some((name, _)) = unavailable.into_iter().find(|(_, is_asked)| *is_asked) {
            return Err(Problem::new(
                saggar_domain::Code::InvalidValue,
                format!("{name} can't be asked of a server"),
                "leave it out",
            ));
        }
        Ok(Self {
            template: template.unwrap_or_default(),
            env: env.into(),
            limits: SandboxLimits { memory, cpus, pids, disk, files, output },
            network: network.map(Network).unwrap_or_default(),
            egress,
            secrets,
            models,
            user,
            storage,
            fs,
            volumes,
            ..Self::default()
        })
    }
}

/// `none` by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Network(pub NetworkMode);

impl Default for Network {
    fn default() -> Self {
        Self(NetworkMode::None)
    }
}

/// Resource limits of a sandbox; missing ones have the runtime's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct SandboxLimits {
    /// Memory of the whole process tree, private storage included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub memory: Option<ByteSize>,
    /// CPU limit, in CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CpuShare>)]
    pub cpus: Option<Cpus>,
    /// Maximum number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pub pids: Option<Count>,
    /// Storage limit of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub disk: Option<ByteSize>,
    /// Maximum number of open files per process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pub files: Option<Count>,
    /// Bytes of output kept per exec, unless the exec sets another limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub output: Option<ByteSize>,
}

impl From<SandboxLimits> for DraftLimits {
    fn from(limits: SandboxLimits) -> Self {
        let SandboxLimits { memory, cpus, pids, disk, files, output } = limits;
        Self { timeout: None, memory, cpus, pids, disk, files, output }
    }
}

/// Resource limits of a sandbox. Separate from the request's type because responses may grow, and requests may not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveLimits {
    /// Memory of the whole process tree, private storage included.
    #[schema(value_type = schema::Size)]
    pub memory: ByteSize,
    /// CPU limit, in CPUs.
    #[schema(value_type = schema::CpuShare)]
    pub cpus: Cpus,
    /// Maximum number of processes and threads.
    #[schema(value_type = schema::Quantity)]
    pub pids: Count,
    /// Storage limit of the sandbox.
    #[schema(value_type = schema::Size)]
    pub disk: ByteSize,
    /// Maximum number of open files per process.
    #[schema(value_type = schema::Quantity)]
    pub files: Count,
    /// Bytes of output kept per exec, unless the exec sets another limit.
    #[schema(value_type = schema::Size)]
    pub output: ByteSize,
}

impl From<&Limits> for EffectiveLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            memory: limits.memory.value,
            cpus: limits.cpus.value,
            pids: limits.pids.value,
            disk: limits.disk.value,
            files: limits.files.value,
            output: limits.output.value,
        }
    }
}

/// Network rules of a sandbox. Text, because a newer server may have rules that a client can't parse.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveEgress {
    /// Destinations that are allowed.
    #[serde(default)]
    #[schema(value_type = Vec<schema::NetworkRule>)]
    pub allow: Vec<String>,
    /// Destinations that are denied, whatever is allowed.
    #[serde(default)]
    #[schema(value_type = Vec<schema::NetworkRule>)]
    pub deny: Vec<String>,
    /// Limits that were asked for, or that the operator sets; absent if there are none.
    #[serde(default, skip_serializing_if = "EffectiveEgressLimits::is_empty")]
    pub limits: EffectiveEgressLimits,
}

/// Limits of a managed network, as reported. Separate from the request's type because responses may grow, and requests may not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveEgressLimits {
    /// Bytes in both directions, over its whole life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>, nullable = false)]
    pub bytes: Option<ByteSize>,
    /// The same for each host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>, nullable = false)]
    pub bytes_per_host: Option<ByteSize>,
    /// Connections at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>, nullable = false)]
    pub connections: Option<Count>,
    /// Connections to one host at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>, nullable = false)]
    pub connections_per_host: Option<Count>,
    /// Requests, and connections that pass unread, in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>, nullable = false)]
    pub requests_per_minute: Option<Count>,
    /// The same for each host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>, nullable = false)]
    pub requests_per_minute_per_host: Option<Count>,
}

impl EffectiveEgressLimits {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<&EgressLimits> for EffectiveEgressLimits {
    fn from(limits: &EgressLimits) -> Self {
        let EgressLimits {
            bytes,
            bytes_per_host,
            connections,
            connections_per_host,
            requests_per_minute,
            requests_per_minute_per_host,
        } = limits.clone();
        Self {
            bytes,
            bytes_per_host,
            connections,
            connections_per_host,
            requests_per_minute,
            requests_per_minute_per_host,
        }
    }
}

impl EffectiveEgress {
    /// The rules of a sandbox with this network mode.
    pub fn of(draft: &EgressDraft, mode: NetworkMode) -> Option<Self> {
        let texts = |rules: &[Rule]| rules.iter().map(Rule::to_string).collect();
        (mode == NetworkMode::Proxied).then(|| Self {
            allow: texts(&draft.allow),
            deny: texts(&draft.deny),
            limits: (&draft.limits).into(),
        })
    }
}

/// A secret that a sandbox uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxSecret {
    /// The secret's name.
    pub name: String,
    /// The variable that holds the placeholder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub env: Option<String>,
}

impl From<SecretUse> for SandboxSecret {
    fn from(used: SecretUse) -> Self {
        Self { name: used.name.to_string(), env: used.env.map(|variable| variable.to_string()) }
    }
}

/// Access to the ports of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct Ports {
    /// Public ports: reachable by any client of the server, without a key or token.
    #[schema(max_items = 64)]
    pub public: Vec<u16>,
    /// The only ports that can be reached from outside, with or without a token; by default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 64)]
    pub allow: Option<Vec<u16>>,
    /// What the program inside gets as `Host`; `${PORT}` stands for the port. By default what the client sent, or `localhost:PORT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255, example = "localhost:${PORT}")]
    pub host: Option<String>,
}

/// Access to the ports of a sandbox, as reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectivePorts {
    /// Public ports: reachable by any client of the server, without a key or token.
    pub public: Vec<u16>,
    /// Whether every port is public.
    #[serde(default)]
    pub every: bool,
    /// The only ports that can be reached from outside; absent if all can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub allow: Option<Vec<u16>>,
    /// What the program inside gets as `Host`; absent if that depends on the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub host: Option<String>,
}

/// A sandbox, live or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// The exec's id.
    #[schema(value_type = schema::SandboxId)]
    pub id: SandboxId,
    /// The project it belongs to.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// Its current state.
    #[schema(value_type = schema::SandboxState)]
    pub state: SandboxState,
    /// What is kept of it while it is paused; absent while it isn't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused: Option<PausedSandbox>,
    /// What it was made to, defaults filled in.
    #[serde(flatten)]
    pub spec: SandboxSpec,
    /// Labels for finding it again.
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// Default limits that this host can't enforce.
    pub unenforced: Vec<String>,
    /// Hash of its boundary: equal hashes mean equal boundaries.
    #[schema(value_type = Option<schema::PolicyHash>)]
    pub policy_hash: Option<PolicyHash>,
    /// When it was requested.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it was ready.
    #[schema(value_type = Option<schema::Instant>)]
    pub started_at: Option<Timestamp>,
    /// When its time is up; absent while it is paused.
    #[schema(value_type = Option<schema::Instant>)]
    pub deadline: Option<Timestamp>,
    /// What happens at the deadline.
    #[schema(value_type = schema::OnTimeout)]
    pub on_timeout: DeadlineAction,
    /// Maximum time without activity before the same happens.
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub idle_timeout: Option<Timeout>,
    /// Whether a request resumes it while it is paused.
    pub auto_resume: bool,
    /// Access to its ports.
    pub ports: EffectivePorts,
    /// How it ended; absent while it hasn't.
    pub ended: Option<Ended>,
}

/// What is kept of a paused sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PausedSandbox {
    /// Whether it still has its processes, frozen. Without them it starts anew with its files.
    pub has_processes: bool,
    /// Whether its files are kept on disk too, so that it survives a restart of the host. Its processes don't.
    pub survives_restart: bool,
}

/// The spec of a sandbox as answers show it, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxSpec {
    /// The template that its filesystem started from.
    #[schema(value_type = schema::TemplateName)]
    pub template: TemplateName,
    /// The isolation tier.
    #[schema(value_type = schema::IsolationTier)]
    pub tier: Tier,
    /// Its network access.
    #[schema(value_type = schema::Network)]
    pub network: NetworkMode,
    /// False for `host`: the sandbox's network is not managed.
    pub network_managed: bool,
    /// Its network rules; absent unless the mode is `proxied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub egress: Option<EffectiveEgress>,
    /// Secrets that its requests use; absent without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(nullable = false)]
    pub secrets: Vec<SandboxSecret>,
    /// Models that its programs may call; absent without any.
    #[serde(default, skip_serializing_if = "ModelAccess::is_none")]
    #[schema(value_type = schema::ModelAccessShape)]
    pub models: ModelAccess,
    /// The user that programs run as.
    #[schema(value_type = schema::SandboxUser)]
    pub user: User,
    /// Where the files are that it makes.
    #[serde(default = "in_memory")]
    #[schema(value_type = schema::StoragePlace)]
    pub storage: Storage,
    /// Volumes that it uses; absent without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(nullable = false)]
    pub volumes: Vec<SandboxVolume>,
    /// Resource limits, with defaults filled in.
    pub limits: EffectiveLimits,
}

/// Where they always were before there was a choice.
fn in_memory() -> Storage {
    Storage::Memory
}

impl SandboxSpec {
    /// Also of a sandbox that this version couldn't create.
    pub fn of(draft: Draft) -> Result<Self, Problem> {
        let template = draft.template_name();
        let spec = Spec::fill(draft)?;
        Ok(Self {
            template,
            tier: spec.tier,
            network: spec.network,
            network_managed: spec.network != NetworkMode::Host,
            egress: EffectiveEgress::of(&spec.egress, spec.network),
            secrets: spec.secrets.into_iter().map(SandboxSecret::from).collect(),
            models: spec.models,
            user: spec.user,
            storage: spec.storage,
            volumes: spec.volumes.into_iter().map(SandboxVolume::from).collect(),
            limits: EffectiveLimits::from(&spec.limits),
        })
    }
}

/// A new sandbox. Only this response has the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedSandbox {
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// Grants access to its ports, in the header `Saggar-Access-Token`. Not shown again, except when this very
    /// request is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub access_token: Option<Secret>,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// When it happened.
    #[schema(value_type = schema::Instant)]
    pub at: Timestamp,
    /// The reason.
    #[schema(value_type = schema::EndReason)]
    pub reason: EndReason,
    /// The reason for people, with a remedy if there is one.
    pub detail: String,
}

/// Which sandboxes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListSandboxes {
    /// Only sandboxes in one of these states, separated by commas; by default all that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, example = "running,paused")]
    pub state: Option<States>,
    /// Only runs with this label, as `name=value`; may be repeated, and then all must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<String>, example = json!(["team=red"]))]
    pub label: Vec<Label>,
    /// Maximum number of runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// The cursor of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A set of states, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct States(pub Vec<SandboxState>);

impl Serialize for States {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names: Vec<&str> = self.0.iter().map(|state| state.as_str()).collect();
        serializer.serialize_str(&names.join(","))
    }
}

impl<'de> Deserialize<'de> for States {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let state = |name: &str| {
            let names: Vec<&str> = SandboxState::ALL.iter().map(|state| state.as_str()).collect();
            SandboxState::parse(name).ok_or_else(|| {
                serde::de::Error::custom(format!("{name:?} is not a state: choose from {}", names.join(", ")))
            })
        };
        text.split(',').map(state).collect::<Result<_, _>>().map(Self)
    }
}

/// A page of sandboxes, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    /// The sandboxes.
    pub items: Vec<Sandbox>,
    /// The cursor of the next page; absent on the last page.
    pub next_cursor: Option<String>,
}

only_from_an_object!(CreateSandbox, SandboxLimits, Ports);
