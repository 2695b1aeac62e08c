//! How the domain's types appear in the OpenAPI document.
//!
//! The domain doesn't depend on OpenAPI, so each of its types on the wire has a stand-in here, named by
//! `#[schema(value_type = …)]`. The stand-ins have no values; choices come from the domain's own lists, so that they
//! can't drift apart.

use std::borrow::Cow;

use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

macro_rules! stand_ins {
    ($($(#[$doc:meta])* $name:ident => $object:expr;)+) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                RefOr::T(Schema::Object($object))
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    )+};
}

stand_ins! {
    /// A code context's id.
    ContextId => text("The id of a code context", r"^ctx_[a-z2-7]{26}$", "ctx_b5xp67dqheak6zygmmwjfuhq5f");
    /// The language of a code context.
    CodeLanguage => choice("The language of a code context", saggar_domain::CodeLanguage::ALL.iter().map(|one| one.as_str()));
    /// How an execution of code ended.
    CodeStatus => choice("How an execution of code ended", saggar_domain::CodeStatus::ALL.iter().map(|one| one.as_str()));
    /// A sandbox's id.
    SandboxId => text("The id of a sandbox", r"^sbx_[a-z2-7]{26}$", "sbx_nydx5hut4qxdoavpl3z5prlo4c");
    /// An exec's id.
    ExecId => text("The id of an exec", r"^exec_[a-z2-7]{26}$", "exec_b5xp67dqheak6zygmmwjfuhq5f");
    /// A key's id.
    KeyId => text("The id of an API key", r"^key_[a-z2-7]{26}$", "key_c2xp67dqheak6zygmmwjfuhq5f");
    /// A run's id.
    RunId => text("The id of a run", r"^run_[a-z2-7]{26}$", "run_e4xp67dqheak6zygmmwjfuhq5f");
    /// A snapshot's id.
    SnapshotId => text("The id of a snapshot", r"^snap_[a-z2-7]{26}$", "snap_g6xp67dqheak6zygmmwjfuhq5f");
    /// A project's id.
    ProjectId => text("The id of a project", r"^prj_[a-z2-7]{26}$", "prj_d3xp67dqheak6zygmmwjfuhq5f");
    /// A template job's id.
    JobId => text("The id of a template job", r"^job_[a-z2-7]{26}$", "job_f5xp67dqheak6zygmmwjfuhq5f");
    /// The id of a template or of a layer.
    TemplateId => text("The hash of a template or of a layer", r"^sha256:[0-9a-f]{64}$", "sha256:6f0b6ab2a2a5c6de4ab24a13e6b0f93c1b16a4e0b2c2a2f93e77ee20a5a0c1d7");
    /// A policy hash.
    PolicyHash => text("The hash of a boundary", r"^sha256:[0-9a-f]{64}$", "sha256:9040d8c323aeb83c7b74c63f50e7ca0a10c38ae7e77b0f035338df88cfd7cd0f");
    /// A time span.
    TimeSpan => text("A time span: a whole number with ms, s, m, h or d", r"^[0-9]{1,15}(ms|s|m|h|d)?$", "5m");
    /// A size.
    Size => text("A size: a whole number with K, M, G or T, powers of 1024", r"^[0-9]{1,15}([KkMmGgTt]([Ii]?[Bb])?|[Bb])?$", "512M");
    /// CPUs.
    CpuShare => text("A number of CPUs, three decimals at most", r"^[0-9]{1,6}(\.[0-9]{1,3})?$", "0.5");
    /// A count.
    Quantity => text("A whole number, as text; a bare number is read too", r"^[0-9]{1,15}$", "512");
    /// An instant.
    Instant => timestamp();
    /// A path in a sandbox.
    SandboxPath => path();
    /// Octal permission bits.
    Mode => text("Permission bits in octal", r"^0?[0-7]{3}$", "0644");
    /// A signal.
    SignalName => text("A signal by name or number", r"^((SIG)?[A-Z][A-Z0-9+]{1,9}|[0-9]{1,2})$", "TERM");
    /// A command line.
    CommandWords => command();
    /// A network mode.
    Network => choice("How a sandbox reaches the network", saggar_domain::NetworkMode::ALL.iter().map(|one| one.as_str()));
    /// What a decision says.
    Verdict => choice("Whether a connection or a request was allowed", saggar_domain::net::Verdict::ALL.iter().map(|one| one.as_str()));
    /// A network rule.
    NetworkRule => rule();
    /// A workspace's name.
    WorkspaceName => text("The name of a directory of the operator's", r"^[a-z0-9][a-z0-9._-]{0,63}$", "site");
    /// A directory of the server's host.
    HostDirectory => text("The absolute path of a directory of the server's host", r"^/[^\u0000]{1,4094}$", "/home/me/project");
    /// A volume's id.
    VolumeId => text("The id of a volume", r"^vol_[a-z2-7]{26}$", "vol_d3xp67dqheak6zygmmwjfuhq5f");
    /// A volume's name.
    VolumeName => text("The name of a volume", r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", "data");
    /// How many sandboxes may use a volume at once.
    VolumeSharing => choice("How many sandboxes may use a volume at once", saggar_domain::Sharing::ALL.iter().map(|one| one.as_str()));
    /// Whether programs may write a volume.
    VolumeMode => choice("Whether programs may write a volume", saggar_domain::Access::ALL.iter().map(|one| one.as_str()));
    /// The name of a secret.
    SecretName => text("The name of a secret", r"^[a-z][a-z0-9_-]{0,62}$", "openai");
    /// Where in a request a secret goes.
    SecretSlot => slot();
    /// Where files are.
    StoragePlace => choice("Where the files are that a sandbox makes", saggar_domain::Storage::ALL.iter().map(|one| one.as_str()));
    /// How a directory of the host is mounted.
    WorkspaceMode => choice("How a directory of the host is mounted", [saggar_domain::FsMode::Scratch, saggar_domain::FsMode::Worktree].iter().map(|one| one.as_str()));
    /// A user inside.
    SandboxUser => choice("The user inside the sandbox", saggar_domain::User::ALL.iter().map(|one| one.as_str()));
    /// A tier.
    IsolationTier => choice("The isolation tier", saggar_domain::Tier::ALL.iter().map(|one| one.as_str()));
    /// The state of a run.
    RunState => choice("The state of a run", saggar_domain::RunState::ALL.iter().map(|one| one.as_str()));
    /// The state of a sandbox.
    SandboxState => choice("What a sandbox does now.", saggar_domain::SandboxState::ALL.iter().map(|one| one.as_str()));
    /// What happens when a sandbox's time is up.
    OnTimeout => choice("What happens when a sandbox's time is up.", saggar_domain::DeadlineAction::ALL.iter().map(|one| one.as_str()));
    /// Whether an exec runs, or how it ended.
    ExecState => choice("What an exec does now, or how it ended.", saggar_domain::ExecState::all().map(saggar_domain::ExecState::as_str));
    /// An output stream.
    OutputStream => choice("One of the two output streams.", saggar_domain::OutputStream::ALL.iter().map(|one| one.as_str()));
    /// The processes that get a signal.
    SignalScope => choice("Who gets a signal.", saggar_domain::SignalScope::ALL.iter().map(|one| one.as_str()));
    /// The name of a template.
    TemplateName => text("The name of a template.", r"^[a-z0-9][a-z0-9._-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,63})?$", "base");
    /// The name of a model.
    ModelName => text("What clients name as their model.", r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$", "gpt-5");
    /// Why a sandbox ended.
    EndReason => choice("Why a sandbox ended; newer servers may add reasons", saggar_domain::EndReason::ALL.iter().map(|one| one.as_str()));
    /// A problem's code.
    ProblemCode => choice("The kind of a problem; newer servers may add codes", crate::code::Code::ALL.iter().map(|one| one.as_str()));
    /// Text names to text values.
    TextMap => text_map();
    /// Raw bytes in a body.
    Octets => ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary))).build();
}

/// Network rules. A deny rule wins over every allow rule; what no rule allows is denied.
// Deserialize only for the attribute, which the document shows too.
#[derive(Default, serde::Deserialize, serde::Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = Egress)]
pub struct EgressShape {
    /// Destinations that are allowed.
    #[schema(value_type = Vec<NetworkRule>, max_items = 512)]
    allow: Vec<String>,
    /// Destinations that are denied, whatever is allowed.
    #[schema(value_type = Vec<NetworkRule>, max_items = 512)]
    deny: Vec<String>,
    /// How much of the network may be used; missing limits have the server's default.
    limits: EgressLimitsShape,
}

/// Limits of a managed network, for the sandbox altogether and for each host. What is beyond a limit gets status 429.
// Both only for the attributes, which the document shows too.
#[derive(Default, serde::Deserialize, serde::Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = EgressLimits)]
pub struct EgressLimitsShape {
    /// Bytes in both directions, over its whole life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Size>)]
    bytes: Option<String>,
    /// The same for each host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Size>)]
    bytes_per_host: Option<String>,
    /// Connections at once: 1 to 4096, by default 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Quantity>)]
    connections: Option<String>,
    /// Connections to one host at once: 1 to 4096, by default 512.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Quantity>)]
    connections_per_host: Option<String>,
    /// Requests, and connections that pass unread: so many at once, and as many more in each further minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Quantity>)]
    requests_per_minute: Option<String>,
    /// The same for each host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Quantity>)]
    requests_per_minute_per_host: Option<String>,
}

/// A secret that a sandbox uses.
// Both only for the attributes, which the document shows too.
#[derive(serde::Deserialize, serde::Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SecretUse)]
pub struct SecretUseShape {
    /// The secret's name.
    #[schema(value_type = SecretName)]
    name: String,
    /// The variable that holds the placeholder. Without one, requests get the value all the same.
    #[schema(pattern = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", example = "OPENAI_API_KEY")]
    env: Option<String>,
}

/// Models of the server: all of them, none, or those that are named.
// Both only for the attribute, which the document shows too.
#[derive(serde::Deserialize, serde::Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ModelAccess)]
pub enum ModelAccessShape {
    /// All of them, or none.
    Switch(bool),
    /// The names of routes.
    #[schema(value_type = Vec<ModelName>)]
    Routes(Vec<String>),
}

impl Default for ModelAccessShape {
    fn default() -> Self {
        Self::Switch(false)
    }
}

/// A volume of the project that a sandbox uses.
// Both only for the attributes, which the document shows too.
#[derive(serde::Deserialize, serde::Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = VolumeMount)]
pub struct VolumeMountShape {
    /// The volume's name.
    #[schema(value_type = VolumeName)]
    name: String,
    /// Where it is mounted: an absolute path that belongs neither to the sandbox itself nor to another volume.
    #[schema(value_type = SandboxPath)]
    at: String,
    /// Whether programs may write it; `rw` by default.
    #[schema(value_type = Option<VolumeMode>)]
    mode: Option<String>,
}

/// The sandbox of an agent's runs.
// Both only for the attributes, which the document shows too.
#[derive(Default, serde::Deserialize, serde::Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = AgentSandbox)]
pub struct AgentSandboxShape {
    /// The template that its filesystem starts from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TemplateName>)]
    template: Option<String>,
    /// A directory of the server's host, by the name that the operator gave it, copy-on-write at /workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkspaceName>)]
    workspace: Option<String>,
    /// How the directory at /workspace is mounted: `scratch`, the default, or `worktree`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkspaceMode>)]
    fs: Option<String>,
    /// Where the files are that its programs make; in memory by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StoragePlace>)]
    storage: Option<String>,
    /// The user that programs run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SandboxUser>)]
    user: Option<String>,
    /// Its network access: `none`, the default, or `proxied`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Network>)]
    network: Option<String>,
    /// Rules for network mode `proxied`.
    #[schema(value_type = EgressShape)]
    egress: EgressShape,
    /// Secrets of the project that its requests use, with network mode `proxied`. Programs get placeholders.
    #[schema(max_items = 64)]
    secrets: Vec<SecretUseShape>,
    /// Models of the server that its programs may call at http://model.internal, with network mode `proxied`.
    models: ModelAccessShape,
    /// Volumes of the project, each at a path of its own.
    #[schema(max_items = 16)]
    volumes: Vec<VolumeMountShape>,
    /// Resource limits.
    limits: crate::sandbox::SandboxLimits,
    /// Whether runs of the agent go on with the files of earlier ones; `false` by default.
    reuse: ReuseShape,
}

/// Whether a run starts its sandbox with the files that an earlier run of the agent has left, and leaves its own: `false`, `true`, or how
/// long they wait for the next run, such as `30m`; an hour with `true`.
#[derive(serde::Deserialize, serde::Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = SandboxReuse)]
pub enum ReuseShape {
    /// For an hour, or not at all.
    Switch(bool),
    /// For this time: 1 second to 30 days.
    Time(String),
}

impl Default for ReuseShape {
    fn default() -> Self {
        Self::Switch(false)
    }
}

/// Which requests a secret is for, and where in them its value goes. A binding allows nothing: the network rules decide.
#[derive(ToSchema)]
#[schema(as = SecretBinding)]
#[expect(dead_code, reason = "the shape of a type of the domain; never made")]
pub struct SecretBindingShape {
    /// The requests that get the value: rules for named hosts over https.
    #[schema(value_type = Vec<NetworkRule>, min_items = 1, max_items = 32)]
    rules: Vec<String>,
    /// Where in a request the value goes.
    #[schema(value_type = SecretSlot)]
    slot: String,
    /// What placeholders begin with, for programs that check the form of a key.
    #[schema(max_length = 32, pattern = r"^[A-Za-z0-9._-]*$", example = "sk-")]
    placeholder_prefix: Option<String>,
}

/// What a sandbox exchanged with one host and port.
#[derive(ToSchema)]
#[schema(as = HostTraffic)]
#[expect(dead_code, reason = "the shape of a type of the domain; never made")]
pub struct HostTrafficShape {
    /// The host; `others` for all beyond the bound.
    host: String,
    /// The port.
    port: u16,
    /// Number of decisions that allowed.
    allowed: u64,
    /// Number of decisions that denied.
    denied: u64,
    /// Bytes from the sandbox.
    bytes_up: u64,
    /// Bytes to the sandbox.
    bytes_down: u64,
}

/// A denial in the domain's format.
#[derive(ToSchema)]
#[schema(as = Denial)]
#[expect(dead_code, reason = "the shape of a type of the domain; never made")]
pub struct DenialShape {
    /// The kind: refused, limit_reached, syscall_refused, network_refused, link_removed, denials_dropped.
    code: String,
    /// The rule that refused, such as `seccomp/mounts` or `limit/memory`.
    #[schema(example = "limit/memory")]
    rule: String,
    /// What was attempted, and what to do if it should have been allowed.
    message: String,
}

/// Resource usage; null for values that the host can't measure.
#[derive(ToSchema)]
#[schema(as = Usage)]
#[expect(dead_code, reason = "the shape of a type of the domain; never made")]
pub struct UsageShape {
    /// CPU time of the processes that had ended when the program did.
    cpu_ms: Option<u64>,
    /// Peak memory: of all its processes if it has its own limits, else of the largest of them.
    memory_peak_bytes: Option<u64>,
    /// Peak number of processes and threads; null unless it has its own limit for them.
    processes_peak: Option<u64>,
}

fn text(what: &str, pattern: &str, example: &str) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(what))
        .pattern(Some(pattern))
        .examples([example])
        .build()
}

fn rule() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(
            "A network rule: [METHOD[,METHOD] ]HOST[:PORT][/PATH], or @SET; docs/network.md has the grammar",
        ))
        .min_length(Some(1))
        .max_length(Some(1024))
        .examples(["api.example.com", "GET *.example.com/v1/**", "10.0.0.0/8:5432", "@pypi"])
        .build()
}

fn slot() -> Object {
    // Each form has its own JSON type, so a list of types describes it without a `oneOf`.
    ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::SchemaType::Array(vec![Type::String, Type::Object]))
        .description(Some("Where the value goes: `bearer`, or an object with one of header, basic, query and sigv4"))
        .examples([
            serde_json::json!("bearer"),
            serde_json::json!({ "header": { "name": "x-api-key", "prefix": "" } }),
            serde_json::json!({ "basic": { "user": "x-access-token" } }),
            serde_json::json!({ "query": { "parameter": "key" } }),
            serde_json::json!({ "sigv4": { "access_key_id": "AKIDEXAMPLE", "region": "eu-central-1", "service": "s3" } }),
        ])
        .build()
}

fn timestamp() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("An instant in UTC, RFC 3339 with milliseconds"))
        .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::DateTime)))
        .examples(["2026-11-15T12:00:00.000Z"])
        .build()
}

fn path() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("A path in the sandbox: absolute, or relative to the user's home"))
        .min_length(Some(1))
        .max_length(Some(crate::path::PATH_LEN_MAX))
        .pattern(Some(r"^[^\u0000]+$"))
        .examples(["/home/user/app.py"])
        .build()
}

fn command() -> Object {
    // Each form has its own JSON type, so a list of types describes it without a `oneOf`.
    ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::SchemaType::Array(vec![Type::Array, Type::String]))
        .description(Some("The program and its arguments as a list, or one line for /bin/sh -c"))
        .examples([serde_json::json!(["python3", "-c", "print(6*7)"]), serde_json::json!("make test | tail -5")])
        .build()
}

fn choice(what: &str, names: impl Iterator<Item = &'static str>) -> Object {
    ObjectBuilder::new().schema_type(Type::String).description(Some(what)).enum_values(Some(names)).build()
}

fn text_map() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build()
}
