//! The templates of the server's routes, and the names of its headers.
//!
//! Server and client both use these, so that a path is written once. `{id}` is a sandbox, `{exec}` an exec, `{context}` a code context, `{key}` a
//! key, `{secret}` a secret's name, `{volume}` a volume's, `{snapshot}` a snapshot, `{template}` a template's, `{job}` a template job.

/// The models that a project may call, and its spending. Outside of `/api/v1`: OpenAI's and Anthropic's clients have their own paths.
pub const MODELS: &str = "/v1/models";
/// A reply of a model, as OpenAI's clients ask for it.
pub const CHAT_COMPLETIONS: &str = "/v1/chat/completions";
/// The prefix of every route except `/health` and proxied ports.
pub const BASE: &str = "/api/v1";
/// The only route without a key.
pub const HEALTH: &str = "/health";
/// Capabilities of the host.
pub const CAPABILITIES: &str = "/api/v1/capabilities";
/// The OpenAPI document.
pub const OPENAPI: &str = "/api/v1/openapi.json";
/// Create and list sandboxes.
pub const SANDBOXES: &str = "/api/v1/sandboxes";
/// Read, change, end a sandbox.
pub const SANDBOX: &str = "/api/v1/sandboxes/{id}";
/// Freeze a sandbox.
pub const PAUSE: &str = "/api/v1/sandboxes/{id}/pause";
/// Resume a sandbox.
pub const RESUME: &str = "/api/v1/sandboxes/{id}/resume";
/// Set a sandbox's remaining lifetime.
pub const TIMEOUT: &str = "/api/v1/sandboxes/{id}/timeout";
/// Resource usage of a sandbox.
pub const METRICS: &str = "/api/v1/sandboxes/{id}/metrics";
/// Replace a sandbox's network rules.
pub const EGRESS: &str = "/api/v1/sandboxes/{id}/egress";
/// What a sandbox did with its network.
pub const NETWORK: &str = "/api/v1/sandboxes/{id}/network";
/// Events of a sandbox.
pub const EVENTS: &str = "/api/v1/sandboxes/{id}/events";
/// Events as lines of text, with the end of the execs' output.
pub const LOGS: &str = "/api/v1/sandboxes/{id}/logs";
/// Start and list execs.
pub const EXECS: &str = "/api/v1/sandboxes/{id}/execs";
/// Read an exec with its kept output.
pub const EXEC: &str = "/api/v1/sandboxes/{id}/execs/{exec}";
/// Follow an exec's output.
pub const EXEC_STREAM: &str = "/api/v1/sandboxes/{id}/execs/{exec}/stream";
/// Send input to an exec.
pub const EXEC_STDIN: &str = "/api/v1/sandboxes/{id}/execs/{exec}/stdin";
/// Send a signal to an exec.
pub const EXEC_SIGNAL: &str = "/api/v1/sandboxes/{id}/execs/{exec}/signal";
/// Resize an exec's terminal.
pub const EXEC_RESIZE: &str = "/api/v1/sandboxes/{id}/execs/{exec}/resize";
/// A WebSocket to an exec.
pub const EXEC_ATTACH: &str = "/api/v1/sandboxes/{id}/execs/{exec}/attach";
/// Create and list code contexts.
pub const CODE_CONTEXTS: &str = "/api/v1/sandboxes/{id}/code/contexts";
/// Read, remove a code context.
pub const CODE_CONTEXT: &str = "/api/v1/sandboxes/{id}/code/contexts/{context}";
/// Start a code context anew.
pub const CODE_RESTART: &str = "/api/v1/sandboxes/{id}/code/contexts/{context}/restart";
/// Run code.
pub const CODE_RUN: &str = "/api/v1/sandboxes/{id}/code/run";
/// Read, write, remove a file.
pub const FILES: &str = "/api/v1/sandboxes/{id}/files";
/// Information about an entry.
pub const FILES_STAT: &str = "/api/v1/sandboxes/{id}/files/stat";
/// List a directory.
pub const FILES_LIST: &str = "/api/v1/sandboxes/{id}/files/list";
/// Create a directory.
pub const FILES_MKDIR: &str = "/api/v1/sandboxes/{id}/files/mkdir";
/// Rename an entry.
pub const FILES_MOVE: &str = "/api/v1/sandboxes/{id}/files/move";
/// Metadata of a file.
pub const FILES_METADATA: &str = "/api/v1/sandboxes/{id}/files/metadata";
/// Watch for changes.
pub const FILES_WATCH: &str = "/api/v1/sandboxes/{id}/files/watch";
/// A directory tree as a tar archive.
pub const FILES_TREE: &str = "/api/v1/sandboxes/{id}/files/tree";
/// Create a URL that works without a key.
pub const FILES_SIGN: &str = "/api/v1/sandboxes/{id}/files/sign";
/// What a sandbox changed in its workspace.
pub const CHANGES: &str = "/api/v1/sandboxes/{id}/changes";
/// Apply changes to the host's directory.
pub const CHANGES_APPLY: &str = "/api/v1/sandboxes/{id}/changes/apply";
/// Compare changes with the host's directory.
pub const CHANGES_DIFF: &str = "/api/v1/sandboxes/{id}/changes/diff";
/// Forget changes.
pub const CHANGES_DROP: &str = "/api/v1/sandboxes/{id}/changes/drop";
/// A port of a sandbox, without a path.
pub const PORT: &str = "/api/v1/sandboxes/{id}/ports/{port}";
/// The root of a port of a sandbox.
pub const PORT_SLASH: &str = "/api/v1/sandboxes/{id}/ports/{port}/";
/// A path on a port of a sandbox.
pub const PORT_PATH: &str = "/api/v1/sandboxes/{id}/ports/{port}/{*path}";
/// Start and list runs.
pub const RUNS: &str = "/api/v1/runs";
/// One run.
pub const RUN: &str = "/api/v1/runs/{id}";
/// Journal of a run.
pub const RUN_JOURNAL: &str = "/api/v1/runs/{id}/journal";
/// Send a message to a run.
pub const RUN_SIGNAL: &str = "/api/v1/runs/{id}/signal";
/// Pause a run.
pub const RUN_PAUSE: &str = "/api/v1/runs/{id}/pause";
/// Resume a run.
pub const RUN_RESUME: &str = "/api/v1/runs/{id}/resume";
/// Cancel a run.
pub const RUN_CANCEL: &str = "/api/v1/runs/{id}/cancel";
/// Raise the budget of a run.
pub const RUN_BUDGET: &str = "/api/v1/runs/{id}/budget";
/// Decide about a step whose outcome is unknown.
pub const RUN_DECIDE: &str = "/api/v1/runs/{id}/steps/{step}/decide";
/// Start a run from another's history.
pub const RUN_FORK: &str = "/api/v1/runs/{id}/fork";
/// Takes a run back to an earlier step.
pub const RUN_ROLLBACK: &str = "/api/v1/runs/{id}/rollback";
/// Replay a run.
pub const RUN_REPLAY: &str = "/api/v1/runs/{id}/replay";
/// Export a run as a fixture.
pub const RUN_EXPORT: &str = "/api/v1/runs/{id}/export";
/// Create and list keys.
pub const KEYS: &str = "/api/v1/keys";
/// Revoke a key.
pub const KEY: &str = "/api/v1/keys/{key}";

/// Create and list volumes.
pub const VOLUMES: &str = "/api/v1/volumes";
/// Read, remove a volume.
pub const VOLUME: &str = "/api/v1/volumes/{volume}";
/// Take a snapshot of a sandbox.
pub const SANDBOX_SNAPSHOTS: &str = "/api/v1/sandboxes/{id}/snapshots";
/// Fork a sandbox.
pub const SANDBOX_FORK: &str = "/api/v1/sandboxes/{id}/fork";
/// List snapshots.
pub const SNAPSHOTS: &str = "/api/v1/snapshots";
/// Read, remove a snapshot.
pub const SNAPSHOT: &str = "/api/v1/snapshots/{snapshot}";
/// Export a snapshot.
pub const SNAPSHOT_ARCHIVE: &str = "/api/v1/snapshots/{snapshot}/archive";
/// Import an exported snapshot.
pub const SNAPSHOT_IMPORT: &str = "/api/v1/snapshots/import";
/// Compare two snapshots.
pub const SNAPSHOT_DIFF: &str = "/api/v1/snapshots/{snapshot}/diff";
/// Take a sandbox back to a snapshot.
pub const SANDBOX_ROLLBACK: &str = "/api/v1/sandboxes/{id}/rollback";
/// List secrets.
pub const SECRETS: &str = "/api/v1/secrets";
/// Store, read, remove a secret.
pub const SECRET: &str = "/api/v1/secrets/{secret}";

/// List templates.
pub const TEMPLATES: &str = "/api/v1/templates";
/// Read, name, remove a template.
pub const TEMPLATE: &str = "/api/v1/templates/{template}";
/// List template jobs.
pub const TEMPLATE_JOBS: &str = "/api/v1/template-jobs";
/// Import an image of a registry.
pub const TEMPLATE_IMPORT: &str = "/api/v1/template-jobs/import";
/// Import an image that the client sends.
pub const TEMPLATE_UPLOAD: &str = "/api/v1/template-jobs/upload";
/// Build a template from a Dockerfile.
pub const TEMPLATE_BUILD: &str = "/api/v1/template-jobs/build";
/// Read or cancel a template job.
pub const TEMPLATE_JOB: &str = "/api/v1/template-jobs/{job}";
/// Log of a template job.
pub const TEMPLATE_JOB_LOG: &str = "/api/v1/template-jobs/{job}/log";

/// Names of headers, in lower case as in HTTP/2.
pub mod header {
    /// Makes a request idempotent.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// An API key, as an alternative to `Authorization: Bearer`.
    pub const API_KEY: &str = "x-api-key";
    /// The position from which a stream is resumed.
    pub const LAST_EVENT_ID: &str = "last-event-id";
    /// Grants access to the ports of one sandbox.
    pub const ACCESS_TOKEN: &str = "saggar-access-token";
    /// The sandbox of a proxied request.
    pub const SANDBOX: &str = "saggar-sandbox";
    /// The port of a proxied request.
    pub const PORT: &str = "saggar-port";
    /// The id of a request, as in the server's log and in a problem's `instance`.
    pub const REQUEST_ID: &str = "x-request-id";
}
