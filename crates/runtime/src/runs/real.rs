//! The real world: a scripted model, sandboxes, files and HTTP.
//!
//! A tool's own claims are not trusted: its class is set by the operator, in the agent's spec. Every tool result is
//! bounded before it is kept.

mod address;
mod files;
mod http;
#[cfg(test)]
mod reference;
mod sandbox;
mod script;
mod shell;

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};

use saggar_domain::{SandboxId, Timestamp, Uptime};
use saggar_engine::{Body, Class, EffectFailure, Report, ToolResult, Usage};

use super::effects::{About, Effects, Session, Task, Work};
use crate::fault::Fault;
use crate::sandboxes::{self, Sandboxes};
use http::{Exits, HttpTool};
use sandbox::RunSandbox;
use script::Script;

pub use http::HttpRule;
pub use script::ScriptError;
pub(super) use script::check as check_script;

/// The available tools.
pub const TOOLS: &[&str] = &["shell", "files", "http", "wait", "ask_human", "delegate"];

/// What happens after a crash in the middle of a tool call, unless the operator sets another class.
pub fn default_class(tool: &str) -> Class {
    match tool {
        // The supervisor knows whether it was started, and its result.
        "shell" => Class::Probeable,
        // A file is read, or replaced as a whole: repeating it is harmless.
        "files" => Class::Pure,
        // The key goes with every request.
        "http" => Class::Keyed,
        // A child's id is derived from the key.
        "delegate" => Class::Keyed,
        // No executor handles them.
        "wait" | "ask_human" => Class::Pure,
        _ => Class::Once,
    }
}

/// The operator's settings for runs.
#[derive(Clone, Debug, Default)]
pub struct RunSettings {
    /// Where the tool `http` may go. Empty allows nothing.
    pub http_allowed: Vec<HttpRule>,
    /// Whether a run's sandbox is kept when the run is over.
    pub keep_sandboxes: bool,
}

/// Settings that may change at run time: each effect uses those of its start. Cheap to clone.
#[derive(Clone, Debug)]
struct LiveSettings(Arc<RwLock<Arc<RunSettings>>>);

impl LiveSettings {
    fn new(settings: RunSettings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    fn get(&self) -> Arc<RunSettings> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, settings: RunSettings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct RealEffects {
    sandboxes: Sandboxes,
    settings: LiveSettings,
    exits: Arc<Exits>,
}

impl RealEffects {
    pub fn new(sandboxes: Sandboxes, settings: RunSettings) -> Self {
        Self { sandboxes, settings: LiveSettings::new(settings), exits: Arc::default() }
    }

    /// Changes the settings. Effects that start from now on use them, in every clone.
    pub fn set(&self, settings: RunSettings) {
        self.settings.set(settings);
    }
}

impl Effects for RealEffects {
    type Session = RealSession;

    fn now(&self) -> Timestamp {
        sandboxes::now()
    }

    fn uptime(&self) -> Uptime {
        sandboxes::uptime()
    }

    fn chance(&self) -> u64 {
        u64::from_ne_bytes(sandboxes::random())
    }

    async fn room(&self) -> u32 {
        let room = self.sandboxes.room().await.unwrap_or_else(|fault| {
            tracing::warn!(error = %fault, "counting sandboxes failed");
            0
        });
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    fn session(&self, about: About) -> RealSession {
        let script = Script::parse(&about.agent.model.model);
        let egress = about.agent.tools.get("http").and_then(|tool| tool.egress.clone());
        let http = HttpTool::new(self.settings.clone(), Arc::clone(&self.exits), egress);
        let sandbox = RunSandbox::new(self.sandboxes.clone(), about, self.settings.get().keep_sandboxes);
        RealSession { script, sandbox, http }
    }

    async fn within<F: Future + Send>(&self, work: F) -> F::Output {
        work.await
    }
}

/// The real world, for one run.
#[derive(Debug)]
pub struct RealSession {
    script: Result<Script, ScriptError>,
    sandbox: RunSandbox,
    http: HttpTool,
}

impl Session for RealSession {
    async fn perform(self: Arc<Self>, task: Task) -> Report {
        match &task.work {
            Work::CallModel { replies } => match &self.script {
                Ok(script) => script.reply(*replies),
                Err(error) => failed("script", error.to_string(), false),
            },
            Work::CallTool { tool, arguments } => match tool.as_str() {
                // Large futures are boxed, so that an HTTP call needs no space for them.
                "shell" => Box::pin(shell::call(&self.sandbox, &task, arguments)).await,
                "files" => Box::pin(files::call(&self.sandbox, arguments)).await,
                "http" => self.http.call(&task, arguments).await,
                _ => returned(format!("unknown tool {tool:?}"), true),
            },
            Work::Probe { tool, .. } => match tool.as_str() {
                "shell" => Box::pin(shell::probe(&self.sandbox, &task)).await,
                _ => Report::unknown(format!("{tool:?} can't be probed")),
            },
        }
    }

    fn sandbox(&self) -> Option<SandboxId> {
        self.sandbox.id()
    }

    async fn rest(&self) {
        self.sandbox.rest().await;
    }

    fn may_hold(&self) -> bool {
        self.sandbox.may_be()
    }

    async fn end(&self) -> bool {
        self.sandbox.end().await
    }
}

fn returned(content: impl Into<String>, is_error: bool) -> Report {
    Report::Returned { result: ToolResult::new(Body::text(content), is_error), snapshot: None }
}

/// The beginning of a tool's result, with a note if there is more.
fn cut(mut bytes: Vec<u8>, most: usize) -> String {
    let is_longer = bytes.len() > most;
    bytes.truncate(most);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_longer {
        text.push_str(&format!("\n(truncated after {most} bytes)"));
    }
    text
}

fn failed(code: &str, message: impl Into<String>, is_passing: bool) -> Report {
    let failure = EffectFailure::new(code, message, is_passing);
    Report::Failed { failure, usage: Usage::default() }
}

/// Translates a fault that occurred before anything was started.
fn not_begun(fault: &Fault) -> Report {
    match fault {
        Fault::Capacity { what, .. } => Report::Delayed { reason: format!("waiting for a sandbox: {what}") },
        Fault::InProgress
        | Fault::Busy { .. }
        | Fault::Internal { .. }
        | Fault::SealingKey { .. }
        | Fault::StoreUnwritable { .. } => failed("sandbox_unavailable", fault.to_string(), true),
        Fault::Paused { .. } => failed("sandbox_paused", fault.to_string(), true),
        Fault::NotFound { .. }
        | Fault::Ended { .. }
        | Fault::IdempotencyMismatch
        | Fault::NoSuchSecret(_)
        | Fault::NoSuchTemplate(_)
        | Fault::Refused(_)
        | Fault::File(_)
        | Fault::PortClosed { .. }
        | Fault::PortNotAllowed { .. }
        | Fault::Conflict { .. }
        | Fault::RunDamaged { .. }
        | Fault::WrongPermit => returned(fault.to_string(), true),
    }
}
