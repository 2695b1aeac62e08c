//! Sandboxes: what is asked for, what there is, and how it ended.

use saggar_domain::{
    ByteSize, Count, Cpus, DeadlineAction, Draft, DraftLimits, EndReason, Limits, NetworkMode, PolicyHash, Problem,
    ProjectId, SandboxId, SandboxState, Spec, TemplateName, Tier, Timeout, User,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::environment::Environment;
use crate::name::{Label, Labels};
use crate::object::only_from_an_object;
use crate::schema;
use crate::secret::Secret;
use crate::time::Timestamp;

/// A sandbox to be made. Everything has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct CreateSandbox {
    /// What its filesystem starts from.
    #[schema(value_type = schema::TemplateName)]
    pub template: TemplateName,
    /// For finding it again.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// Environment of every exec, under the exec's own. Not kept once the sandbox has ended.
    #[serde(skip_serializing_if = "Environment::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub env: Environment,
    /// What it may use at most.
    pub limits: SandboxLimits,
    /// How long it lives from now; the server has a default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub ttl: Option<Timeout>,
    /// What happens when its time is up.
    #[schema(value_type = schema::OnTimeout)]
    pub on_timeout: DeadlineAction,
    /// How long it may be left alone before the same happens; without it, for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub idle_timeout: Option<Timeout>,
    /// How it reaches the network: not at all unless asked for.
    #[schema(value_type = schema::Network, default = "none")]
    pub network: Network,
    /// Who programs run as, unless an exec says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
    /// Whether a request to it while it is paused resumes it.
    pub auto_resume: bool,
    /// Who may reach what listens in it.
    pub ports: Ports,
}

impl CreateSandbox {
    /// The spec that it asks for.
    pub fn into_spec(self) -> Draft {
        Draft {
            template: Some(self.template),
            env: self.env.into(),
            user: self.user,
            network: Some(self.network.0),
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
            fs,
            protect,
            mounts,
            env,
            cwd,
            user,
            network,
            limits: DraftLimits { timeout, memory, cpus, pids, disk, files, output },
            strict,
        } = draft;
        let unavailable = [
            ("tier", tier.is_some()),
            ("workspace", workspace.is_some()),
            ("fs", fs.is_some()),
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
            user,
            ..Self::default()
        })
    }
}

/// `none` unless asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Network(pub NetworkMode);

impl Default for Network {
    fn default() -> Self {
        Self(NetworkMode::None)
    }
}

/// What a sandbox may use at most; what is left out has the runtime's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct SandboxLimits {
    /// Memory of the whole tree, its private storage included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub memory: Option<ByteSize>,
    /// CPU time per wall-clock time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CpuShare>)]
    pub cpus: Option<Cpus>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pub pids: Option<Count>,
    /// Storage the sandbox owns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub disk: Option<ByteSize>,
    /// Open files of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pub files: Option<Count>,
    /// Output kept of an exec, unless it says otherwise.
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

/// What a sandbox may use at most. Apart from the request's type because answers may grow, and a request may not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveLimits {
    /// Memory of the whole tree, its private storage included.
    #[schema(value_type = schema::Size)]
    pub memory: ByteSize,
    /// CPU time per wall-clock time.
    #[schema(value_type = schema::CpuShare)]
    pub cpus: Cpus,
    /// Processes and threads at once.
    #[schema(value_type = schema::Quantity)]
    pub pids: Count,
    /// Storage the sandbox owns.
    #[schema(value_type = schema::Size)]
    pub disk: ByteSize,
    /// Open files of a process.
    #[schema(value_type = schema::Quantity)]
    pub files: Count,
    /// Output kept of an exec, unless it says otherwise.
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

/// Who may reach what listens in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct Ports {
    /// Ports that anyone who reaches the server may use, without key or token.
    #[schema(max_items = 64)]
    pub public: Vec<u16>,
}

/// Who may reach what listens in a sandbox, as it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectivePorts {
    /// Ports that anyone who reaches the server may use, without key or token.
    pub public: Vec<u16>,
    /// Whether that is every port.
    #[serde(default)]
    pub every: bool,
}

/// A sandbox, alive or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its id.
    #[schema(value_type = schema::SandboxId)]
    pub id: SandboxId,
    /// Whose it is.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// What it does now.
    #[schema(value_type = schema::SandboxState)]
    pub state: SandboxState,
    /// What it was made to, defaults filled in.
    #[serde(flatten)]
    pub spec: SandboxSpec,
    /// For finding it again.
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// Default limits that this host can't enforce.
    pub unenforced: Vec<String>,
    /// Its boundary; the same hash, the same boundary.
    #[schema(value_type = Option<schema::PolicyHash>)]
    pub policy_hash: Option<PolicyHash>,
    /// When it was asked for.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it was ready.
    #[schema(value_type = Option<schema::Instant>)]
    pub started_at: Option<Timestamp>,
    /// When its time is up; none while it is paused.
    #[schema(value_type = Option<schema::Instant>)]
    pub deadline: Option<Timestamp>,
    /// What happens then.
    #[schema(value_type = schema::OnTimeout)]
    pub on_timeout: DeadlineAction,
    /// How long it may be left alone before the same happens.
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub idle_timeout: Option<Timeout>,
    /// Whether a request to it while it is paused resumes it.
    pub auto_resume: bool,
    /// Who may reach what listens in it.
    pub ports: EffectivePorts,
    /// How it ended; absent while it hasn't.
    pub ended: Option<Ended>,
}

/// The spec of a sandbox as answers show it, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxSpec {
    /// What its filesystem started from.
    #[schema(value_type = schema::TemplateName)]
    pub template: TemplateName,
    /// The isolation primitive.
    #[schema(value_type = schema::IsolationTier)]
    pub tier: Tier,
    /// How it reaches the network.
    #[schema(value_type = schema::Network)]
    pub network: NetworkMode,
    /// False for `host`: nothing stands between the sandbox and the network.
    pub network_managed: bool,
    /// Who programs run as.
    #[schema(value_type = schema::SandboxUser)]
    pub user: User,
    /// What it may use at most, defaults filled in.
    pub limits: EffectiveLimits,
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
            user: spec.user,
            limits: EffectiveLimits::from(&spec.limits),
        })
    }
}

/// A sandbox just made. Only this answer has the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedSandbox {
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// Opens its ports, in the header `Saggar-Access-Token`. Not shown again, but to whoever repeats this very request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub access_token: Option<Secret>,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// When.
    #[schema(value_type = schema::Instant)]
    pub at: Timestamp,
    /// Why.
    #[schema(value_type = schema::EndReason)]
    pub reason: EndReason,
    /// In words, with what to do about it where that is known.
    pub detail: String,
}

/// Which sandboxes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListSandboxes {
    /// Only those in one of these states, with commas between; without it, all that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, example = "running,paused")]
    pub state: Option<States>,
    /// Only those with this label, as `name=value`; may be given several times, and then all must be there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<String>, example = json!(["team=red"]))]
    pub label: Vec<Label>,
    /// How many at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Where the page before said to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A set of states, as text with commas.
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
    /// The page.
    pub items: Vec<Sandbox>,
    /// Ask with this for the next page; absent on the last one.
    pub next_cursor: Option<String>,
}

only_from_an_object!(CreateSandbox, SandboxLimits, Ports);
