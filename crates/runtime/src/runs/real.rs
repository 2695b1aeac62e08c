//! The real world: models, sandboxes, files and HTTP.
//!
//! A tool's own claims are not trusted: its class is set by the operator, in the agent's spec.

mod model;
mod script;

use std::future::Future;
use std::sync::Arc;

use saggar_domain::model::{ModelRequest, Tariff};
use saggar_domain::{SandboxId, Timestamp, Uptime};
use saggar_engine::{Report, ToolSpec};
use saggar_gateway::Gateway;

use super::effects::{About, Effects, Over, Session, Task, Work};
use super::live::Live;
use super::tools::{
    Endpoint, Exits, Hands, HttpRule, HttpTool, LiveSettings, Perform, Performer, RunSandbox, Tool, failed, returned,
};
use crate::sandboxes::{self, Sandboxes};
use model::Model;
use script::Script;

pub use script::ScriptError;
pub(super) use script::check as check_script;

/// The operator's settings for runs.
#[derive(Clone, Debug, Default)]
pub struct RunSettings {
    /// Where the tool `http` may go. Empty allows nothing.
    pub http_allowed: Vec<HttpRule>,
    /// Whether a run's sandbox is kept when the run is over.
    pub keep_sandboxes: bool,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct RealEffects {
    sandboxes: Sandboxes,
    settings: LiveSettings,
    exits: Arc<Exits>,
    models: Gateway,
    live: Live,
}

impl RealEffects {
    pub fn new(sandboxes: Sandboxes, models: Gateway, settings: RunSettings) -> Self {
        let settings = LiveSettings::new(settings);
        Self { sandboxes, settings, exits: Arc::default(), models, live: Live::default() }
    }

    /// Tells followers what models say while they say it.
    #[must_use]
    pub fn telling(self, live: &Live) -> Self {
        Self { live: live.clone(), ..self }
    }

    /// The way to its models.
    pub fn models(&self) -> &Gateway {
        &self.models
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
        let script = match about.agent.model.route() {
            Some(_) => None,
            None => Some(Script::parse(&about.agent.model.model)),
        };
        let model = Model::new(self.models.clone(), &about, self.live.clone());
        let http = HttpTool::of(&about.agent, self.settings.clone(), Arc::clone(&self.exits));
        let endpoint = |(name, tool): (&String, &ToolSpec)| {
            let endpoint = Endpoint::of(name, tool, self.settings.clone(), Arc::clone(&self.exits))?;
            Some((name.clone(), endpoint))
        };
        let endpoints = about.agent.tools.iter().filter_map(endpoint).collect();
        let sandbox = RunSandbox::new(self.sandboxes.clone(), about, self.settings.get().keep_sandboxes);
        RealSession { script, model, hands: Hands { sandbox, http, endpoints } }
    }

    async fn within<F: Future + Send>(&self, work: F) -> F::Output {
        work.await
    }
}

/// The real world, for one run.
#[derive(Debug)]
pub struct RealSession {
    script: Option<Result<Script, ScriptError>>,
    model: Model,
    hands: Hands,
}

impl Session for RealSession {
    async fn perform(self: Arc<Self>, task: Task) -> Report {
        match &task.work {
            Work::CallModel { replies, request } => match (&self.script, request) {
                (Some(Ok(script)), _) => script.reply(*replies),
                (other, request) => self.ask(other.as_ref(), request.as_deref(), &task).await,
            },
            Work::Summarize { request } => match &self.script {
                Some(Ok(script)) => script.summary(),
                other => self.ask(other.as_ref(), request.as_deref(), &task).await,
            },
            Work::CallTool { tool, arguments } => match (self.hands.endpoints.get(tool), executor(tool)) {
                (Some(endpoint), _) => endpoint.call(&self.hands.sandbox, &task, arguments).await,
                (None, Some((call, _))) => call(&self.hands, &task, arguments).await,
                (None, None) => returned(format!("unknown tool {tool:?}"), true),
            },
            Work::TakeSnapshot => self.hands.sandbox.snapshot(&task).await,
            Work::Probe { tool, arguments } => match executor(tool) {
                Some((_, Some(probe))) => probe(&self.hands, &task, arguments).await,
                Some((_, None)) | None => Report::unknown(format!("{tool:?} can't be probed")),
            },
        }
    }

    fn tariff(&self) -> Option<Tariff> {
        self.model.tariff()
    }

    fn sandbox(&self) -> Option<SandboxId> {
        self.hands.sandbox.id()
    }

    async fn rest(&self) {
        self.hands.sandbox.rest().await;
    }

    async fn end_earlier(&self) {
        // If that fails, the next use of the sandbox does it, or the end of the run.
        if let Err(fault) = self.hands.sandbox.end_earlier_generations().await {
            tracing::warn!(error = %fault, "ending the sandbox of a run that was rolled back failed");
        }
    }

    fn may_hold(&self) -> bool {
        self.hands.sandbox.may_be()
    }

    async fn end(&self, over: Over) -> bool {
        self.hands.sandbox.end(over).await
    }
}

impl RealSession {
    /// Asks a model whose replies aren't written in advance.
    async fn ask(
        &self,
        script: Option<&Result<Script, ScriptError>>,
        request: Option<&ModelRequest>,
        task: &Task,
    ) -> Report {
        match (script, request) {
            (Some(Err(error)), _) => failed("script", error.to_string(), false),
            (_, Some(request)) => self.model.call(request.clone(), task).await,
            (_, None) => failed("model", "the agent names no model", false),
        }
    }
}

/// What performs a tool and what probes it; `None` if no executor does.
fn executor(tool: &str) -> Option<(Perform, Option<Perform>)> {
    match Tool::find(tool)?.performer {
        Performer::Executor { call, probe } => Some((call, probe)),
        Performer::Engine => None,
    }
}
