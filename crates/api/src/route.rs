//! Where everything is: the templates of the server's routes, and the names of the headers.
//!
//! Both sides use these, so that a path is written once. `{id}` is a sandbox, `{exec}` an exec, `{key}` a key.

/// What every route but `/health` and proxied ports begins with.
pub const BASE: &str = "/api/v1";
/// The one route without a key.
pub const HEALTH: &str = "/health";
/// What the host can give.
pub const CAPABILITIES: &str = "/api/v1/capabilities";
/// The OpenAPI document.
pub const OPENAPI: &str = "/api/v1/openapi.json";
/// Create and list sandboxes.
pub const SANDBOXES: &str = "/api/v1/sandboxes";
/// Get, change, end a sandbox.
pub const SANDBOX: &str = "/api/v1/sandboxes/{id}";
/// Freeze it.
pub const PAUSE: &str = "/api/v1/sandboxes/{id}/pause";
/// Let it go on.
pub const RESUME: &str = "/api/v1/sandboxes/{id}/resume";
/// Set its time to live.
pub const TIMEOUT: &str = "/api/v1/sandboxes/{id}/timeout";
/// What it uses.
pub const METRICS: &str = "/api/v1/sandboxes/{id}/metrics";
/// What happened to it.
pub const EVENTS: &str = "/api/v1/sandboxes/{id}/events";
/// The same as lines of text, with the tails of its execs' output.
pub const LOGS: &str = "/api/v1/sandboxes/{id}/logs";
/// Start and list execs.
pub const EXECS: &str = "/api/v1/sandboxes/{id}/execs";
/// Get an exec with its kept output.
pub const EXEC: &str = "/api/v1/sandboxes/{id}/execs/{exec}";
/// Follow its output.
pub const EXEC_STREAM: &str = "/api/v1/sandboxes/{id}/execs/{exec}/stream";
/// Send to its stdin.
pub const EXEC_STDIN: &str = "/api/v1/sandboxes/{id}/execs/{exec}/stdin";
/// Send it a signal.
pub const EXEC_SIGNAL: &str = "/api/v1/sandboxes/{id}/execs/{exec}/signal";
/// Set its terminal's size.
pub const EXEC_RESIZE: &str = "/api/v1/sandboxes/{id}/execs/{exec}/resize";
/// A WebSocket to it.
pub const EXEC_ATTACH: &str = "/api/v1/sandboxes/{id}/execs/{exec}/attach";
/// Read, write, remove a file.
pub const FILES: &str = "/api/v1/sandboxes/{id}/files";
/// Look at an entry.
pub const FILES_STAT: &str = "/api/v1/sandboxes/{id}/files/stat";
/// List a directory.
pub const FILES_LIST: &str = "/api/v1/sandboxes/{id}/files/list";
/// Make a directory.
pub const FILES_MKDIR: &str = "/api/v1/sandboxes/{id}/files/mkdir";
/// Give an entry another name.
pub const FILES_MOVE: &str = "/api/v1/sandboxes/{id}/files/move";
/// Names and values kept with a file.
pub const FILES_METADATA: &str = "/api/v1/sandboxes/{id}/files/metadata";
/// Hear of changes.
pub const FILES_WATCH: &str = "/api/v1/sandboxes/{id}/files/watch";
/// A whole tree as a tar archive.
pub const FILES_TREE: &str = "/api/v1/sandboxes/{id}/files/tree";
/// Make a URL that works without a key.
pub const FILES_SIGN: &str = "/api/v1/sandboxes/{id}/files/sign";
/// What listens in a sandbox, without a path behind it.
pub const PORT: &str = "/api/v1/sandboxes/{id}/ports/{port}";
/// The root of what listens in a sandbox.
pub const PORT_SLASH: &str = "/api/v1/sandboxes/{id}/ports/{port}/";
/// What listens in a sandbox.
pub const PORT_PATH: &str = "/api/v1/sandboxes/{id}/ports/{port}/{*path}";
/// Begin and list runs.
pub const RUNS: &str = "/api/v1/runs";
/// One run.
pub const RUN: &str = "/api/v1/runs/{id}";
/// What happened to it.
pub const RUN_JOURNAL: &str = "/api/v1/runs/{id}/journal";
/// Say something to it.
pub const RUN_SIGNAL: &str = "/api/v1/runs/{id}/signal";
/// No new effects.
pub const RUN_PAUSE: &str = "/api/v1/runs/{id}/pause";
/// Effects again.
pub const RUN_RESUME: &str = "/api/v1/runs/{id}/resume";
/// Stop it for good.
pub const RUN_CANCEL: &str = "/api/v1/runs/{id}/cancel";
/// Decide about a step that nobody knows of.
pub const RUN_DECIDE: &str = "/api/v1/runs/{id}/steps/{step}/decide";
/// Begin another from its past.
pub const RUN_FORK: &str = "/api/v1/runs/{id}/fork";
/// Derive it again.
pub const RUN_REPLAY: &str = "/api/v1/runs/{id}/replay";
/// All of it, as a fixture.
pub const RUN_EXPORT: &str = "/api/v1/runs/{id}/export";
/// Make and list keys.
pub const KEYS: &str = "/api/v1/keys";
/// Revoke a key.
pub const KEY: &str = "/api/v1/keys/{key}";

/// Names of headers, in lower case as HTTP/2 has them.
pub mod header {
    /// The same key twice makes one sandbox.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// An API key, beside `Authorization: Bearer`.
    pub const API_KEY: &str = "x-api-key";
    /// Where a broken stream goes on.
    pub const LAST_EVENT_ID: &str = "last-event-id";
    /// Opens the ports of one sandbox.
    pub const ACCESS_TOKEN: &str = "saggar-access-token";
    /// Which sandbox a proxied request is for.
    pub const SANDBOX: &str = "saggar-sandbox";
    /// Which port of it.
    pub const PORT: &str = "saggar-port";
    /// The id of a request, as in the server's log and in a problem's `instance`.
    pub const REQUEST_ID: &str = "x-request-id";
}
