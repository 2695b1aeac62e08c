//! The real world: a scripted model, sandboxes, files and HTTP.
//!
//! What a tool declares of itself is not believed: its class is the operator's word, in the agent's spec. Everything a tool gives back is
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
use saggar_engine::{Body, Class, Failure, Report, ToolResult, Usage};

use super::effects::{About, Effects, Session, Task, Work};
use crate::fault::Fault;
use crate::sandboxes::{self, Sandboxes};
use http::HttpTool;
use sandbox::RunSandbox;
use script::Script;

pub use address::{AddressError, HttpAddress};
pub use script::ScriptError;
pub(super) use script::check as check_script;

/// The tools there are.
pub const TOOLS: &[&str] = &["shell", "files", "http", "wait", "ask_human", "delegate"];

/// What a crash in the middle of a tool means, unless the operator says otherwise.
pub fn default_class(tool: &str) -> Class {
    match tool {
        // Its supervisor knows whether it was started, and what came of it.
        "shell" => Class::Probeable,
        // A file is read, or replaced as a whole: twice is as good as once.
        "files" => Class::Pure,
        // The key goes with every request.
        "http" => Class::Keyed,
        // A child's id follows from the key.
        "delegate" => Class::Keyed,
        // Nobody executes them.
        "wait" | "ask_human" => Class::Pure,
        _ => Class::Once,
    }
}

/// What an operator decides about runs.
#[derive(Clone, Debug, Default)]
pub struct RunSettings {
    /// Where the tool `http` may go, each with everything below it. Nowhere unless something is named.
    pub http_allowed: Vec<HttpAddress>,
    /// Whether a run's sandbox is kept when the run is over.
    pub keep_sandboxes: bool,
}

/// Settings that may change while runs are driven: each effect goes by those of its moment. Cheap to clone.
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

/// The real world. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RealEffects {
    sandboxes: Sandboxes,
    settings: LiveSettings,
}

impl RealEffects {
    /// Through these sandboxes.
    pub fn new(sandboxes: Sandboxes, settings: RunSettings) -> Self {
        Self { sandboxes, settings: LiveSettings::new(settings) }
    }

    /// What the operator has decided since. Effects that begin from now on go by it, in every clone.
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
            tracing::warn!(error = %fault, "the sandboxes there are can't be counted");
            0
        });
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    fn session(&self, about: About) -> RealSession {
        let script = Script::parse(&about.agent.model.model);
        let http = HttpTool::new(self.settings.clone());
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
                // What is large is in a box, so that a call by HTTP needs no room for it.
                "shell" => Box::pin(shell::call(&self.sandbox, &task, arguments)).await,
                "files" => Box::pin(files::call(&self.sandbox, arguments)).await,
                "http" => self.http.call(&task, arguments).await,
                _ => returned(format!("there is no tool {tool:?} here"), true),
            },
            Work::Probe { tool, .. } => match tool.as_str() {
                "shell" => Box::pin(shell::probe(&self.sandbox, &task)).await,
                _ => Report::Unknown { reason: format!("nobody can be asked whether {tool:?} did it") },
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
    Report::Returned { result: ToolResult { content: Body::text(content), is_error }, snapshot: None }
}

/// The first of what a tool gave, and a word where there is more.
fn cut(mut bytes: Vec<u8>, most: usize) -> String {
    let is_longer = bytes.len() > most;
    bytes.truncate(most);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_longer {
        text.push_str(&format!("\n(cut: there is more than {most} bytes)"));
    }
    text
}

fn failed(code: &str, message: impl Into<String>, is_passing: bool) -> Report {
    let failure = Failure { code: code.to_owned(), message: message.into(), is_passing };
    Report::Failed { failure, usage: Usage::default() }
}

/// What a fault means that came before anything was begun.
fn not_begun(fault: &Fault) -> Report {
    match fault {
        Fault::Capacity { what, .. } => Report::Delayed { reason: format!("waiting for a sandbox: {what}") },
        Fault::InProgress | Fault::Busy { .. } | Fault::Internal { .. } | Fault::StoreUnwritable { .. } => {
            failed("sandbox_unavailable", fault.to_string(), true)
        }
        Fault::Paused { .. } => failed("sandbox_paused", fault.to_string(), true),
        Fault::NotFound { .. }
        | Fault::Ended { .. }
        | Fault::IdempotencyMismatch
        | Fault::Refused(_)
        | Fault::File(_)
        | Fault::PortClosed { .. }
        | Fault::Conflict { .. }
        | Fault::RunDamaged { .. }
        | Fault::WrongPermit => returned(fault.to_string(), true),
    }
}
