//! Operations on runs for clients: start, list, read and follow. See `tell` for those that change one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::model::RouteName;
use saggar_domain::net::Rules;
use saggar_domain::{Code, Labels, Problem, ProjectId, RunId, RunState, WorkspaceName, reuse_with_a_directory};
use saggar_engine::{
    AgentSpec, Body, BuiltIn, Class, Entry, EntryError, Event, Input, OPEN_STEPS_MAX, Run, SnapshotRules, ToolSpec,
    WhenUncertain,
};
use saggar_gateway::Gateway;
use saggar_store::{Idempotency, JournalEntry, NewRun as NewRow, Page, Removal, RunInsertion, RunQuery, RunRow, Store};
use tokio::time::sleep;

use super::bodies::shelve;
use super::damage::unreadable;
use super::hub::Hub;
use super::live::Listener;
use super::real::check_script;
use super::stored_agent::{agent_of_entry, pack, read_entry};
use super::tools::{Needs, Tool, check_endpoint};
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{now, random};
use crate::secrets::unknown_secret;

/// How often a follower polls for entries that other processes have appended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Maximum length of an agent's name, and of a signal's id.
pub(super) const NAME_LEN_MAX: usize = 128;
/// Maximum number of other agents that an agent may name.
const AGENTS_MAX: usize = 32;

/// Operations on runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Runs {
    store: Store,
    hub: Hub,
    models: Option<Gateway>,
    workspaces: Option<Arc<BTreeSet<WorkspaceName>>>,
}

#[derive(Clone, Debug)]
pub struct NewRun {
    pub agent: AgentSpec,
    pub labels: Labels,
    pub idempotency: Option<Idempotency>,
}

impl Runs {
    /// Workers of this process share the hub.
    pub fn new(store: Store, hub: Hub) -> Self {
        Self { store, hub, models: None, workspaces: None }
    }

    /// The models that runs may use. Without this, a route that doesn't exist is found out at its first call.
    #[must_use]
    pub fn with_models(self, models: Gateway) -> Self {
        Self { models: Some(models), ..self }
    }

    /// The operator's directories that runs may name. Without this, one that doesn't exist is found out at its first command.
    #[must_use]
    pub fn with_workspaces(self, names: impl IntoIterator<Item = WorkspaceName>) -> Self {
        Self { workspaces: Some(Arc::new(names.into_iter().collect())), ..self }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Starts a run: durable when this returns, and claimed by a worker at once. The flag says whether an earlier
    /// request started it.
    pub async fn start(&self, permit: &Permit, new: NewRun) -> Result<(RunRow, bool), Fault> {
        permit.check(|action| *action == Action::StartRun)?;
        let mut agent = new.agent;
        check_agent(&agent)?;
        check_directory(&agent)?;
        self.check_routes(&agent)?;
        self.check_workspaces(&agent)?;
        self.check_secrets(permit.project(), &agent).await?;
        agent.task = shelve(&self.store, agent.task).await?;
        let others = agent.agents.values_mut().map(|other| &mut other.system);
        for told in others.chain([&mut agent.system]) {
            if let Some(system) = told.take() {
                *told = Some(shelve(&self.store, system).await?);
            }
        }
        let (id, at, name) = (RunId::from_random(random()), now(), agent.name.clone());
        let input = Input::Start { run: id.clone(), agent: Box::new(agent), child_of: None };
        let events = Run::new().decide(at, &input).map_err(|rejected| refuse(rejected.to_string()))?;
        let [event] = <[Event; 1]>::try_from(events).map_err(|_| refuse("the run has no beginning".to_owned()))?;
        let (first, stored) = pack(&Entry::new(1, event));
        if let Some(stored) = stored {
            self.store.put_blob(stored, at).await?;
        }
        let project = permit.project().clone();
        let labels = new.labels;
        let row = NewRow { id: id.clone(), project, agent: name, labels, created_at: at, first, child_of: None };
        let (id, is_replay) = match self.store.create_run(row, new.idempotency).await? {
            RunInsertion::Inserted => (id, false),
            RunInsertion::Replayed(earlier) => (earlier, true),
            RunInsertion::Mismatch => return Err(Fault::IdempotencyMismatch),
        };
        self.hub.wake();
        Ok((self.row(permit, &id).await?, is_replay))
    }

    pub async fn get(&self, permit: &Permit) -> Result<RunRow, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        self.row(permit, permit.run()?).await
    }

    /// A page of runs of the permit's project.
    pub async fn list(&self, permit: &Permit, mut query: RunQuery) -> Result<Page<RunRow, RunId>, Fault> {
        permit.check(|action| *action == Action::ListRuns)?;
        query.project = permit.project().clone();
        Ok(self.store.runs(query).await?)
    }

    /// A page of a run's journal after that entry, including its parents' history.
    pub async fn journal(&self, permit: &Permit, after: u64) -> Result<Vec<JournalEntry>, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        let row = self.row(permit, permit.run()?).await?;
        let damaged = |error| Fault::of_run(&row.id, error);
        let mut page = self.store.journal_after(row.id.clone(), after).await.map_err(damaged)?;
        for entry in &mut page {
            if agent_of_entry(entry.seq, &entry.entry).is_some() {
                let read = read_entry(&self.store, entry.seq, &entry.entry).await.map_err(damaged)?;
                entry.entry = read.map_err(|error| unreadable(&row.id, entry.seq, error))?.encode();
            } else if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&entry.entry) {
                return Err(unreadable(&row.id, entry.seq, EntryError::Unreadable(error)));
            }
        }
        Ok(page)
    }

    /// The text of a run's body.
    pub async fn body(&self, permit: &Permit, body: &Body) -> Result<String, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        let row = self.row(permit, permit.run()?).await?;
        super::bodies::fetch(&self.store, body).await.map_err(|error| Fault::of_run(&row.id, error))
    }

    /// Hears what a run's model says from now on.
    pub fn listen(&self, permit: &Permit) -> Result<Listener, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        Ok(self.hub.live().listen(permit.run()?))
    }

    /// Waits until a run has an entry after that one: `true`. If it is over and has no later entry: `false`.
    pub async fn next_entry(&self, permit: &Permit, after: u64) -> Result<bool, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        let id = permit.run()?;
        let topic = self.hub.topic(id);
        let outcome = loop {
            // Subscribed before reading, so that an entry in between is not missed.
            let grown = topic.entries.notified();
            match self.row(permit, id).await {
                Ok(row) if row.head > after => break Ok(true),
                Ok(row) if row.state == RunState::Finished => break Ok(false),
                Ok(_) => {}
                Err(fault) => break Err(fault),
            }
            tokio::select! {
                () = grown => {}
                () = sleep(LOOK_EVERY) => {}
            }
        };
        self.hub.forget(id, topic);
        outcome
    }

    /// Waits until a run is over, and returns it.
    pub async fn finished(&self, permit: &Permit) -> Result<RunRow, Fault> {
        let mut after = 0;
        loop {
            if !self.next_entry(permit, after).await? {
                return self.get(permit).await;
            }
            after = self.get(permit).await?.head;
        }
    }

    /// Removes a finished run with its descendants. Nothing of it can be read when this returns.
    pub async fn remove(&self, permit: &Permit) -> Result<(), Fault> {
        permit.check(|action| matches!(action, Action::RemoveRun(_)))?;
        let id = permit.run()?;
        let conflict = |what: String, help: &str| Err(Fault::Conflict { what, help: help.to_owned() });
        match self.store.remove_run(permit.project().clone(), id.clone(), now()).await? {
            Removal::Removed => Ok(()),
            Removal::Absent => Err(Fault::no_run(id)),
            Removal::Busy(busy) if busy == *id => {
                conflict(format!("run {id} is not over"), "cancel it, and remove it when it has finished")
            }
            Removal::Busy(busy) => {
                conflict(format!("run {busy}, which belongs to run {id}, is not over"), "retry when it has finished")
            }
            Removal::StartedBy(starter) => conflict(
                format!("run {id} belongs to run {starter}, which started it"),
                "remove that run; its child runs are removed with it",
            ),
            Removal::ForkedBy(fork) => {
                conflict(format!("run {fork} is a fork that uses the history of run {id}"), "remove the fork first")
            }
        }
    }

    /// A run may use the secrets of its project and no others. Found out now, and not at its first command.
    async fn check_secrets(&self, project: &ProjectId, agent: &AgentSpec) -> Result<(), Fault> {
        for agent in agent.agents.values().chain([agent]) {
            let of_tools = agent.tools.values().filter_map(|tool| tool.endpoint.as_ref()?.secret.as_ref());
            for name in agent.sandbox.secrets.iter().map(|used| &used.name).chain(of_tools) {
                if self.store.secret(project.clone(), name.clone()).await?.is_none() {
                    return Err(unknown_secret("the agent", name));
                }
            }
        }
        Ok(())
    }

    /// An agent may use the routes that there are. Found out now, and not at its first call.
    fn check_routes(&self, agent: &AgentSpec) -> Result<(), Fault> {
        let Some(models) = &self.models else { return Ok(()) };
        let catalogue = models.catalogue();
        for route in [agent].into_iter().chain(agent.agents.values()).filter_map(|agent| agent.model.route()) {
            if catalogue.route(route).is_some() {
                continue;
            }
            let known: Vec<&str> = catalogue.routes().map(|route| route.name.as_str()).take(ROUTES_SHOWN).collect();
            let help = match known.as_slice() {
                [] => "the server has no models: its operator names them in the file of the setting models_file, \
                       which docs/models.md shows"
                    .to_owned(),
                known => format!("set model.route to one of: {}", known.join(", ")),
            };
            let message = format!("the server has no model {route:?}");
            return Err(Fault::Refused(Problem::new(Code::InvalidValue, message, help)));
        }
        Ok(())
    }

    fn check_workspaces(&self, agent: &AgentSpec) -> Result<(), Fault> {
        let Some(known) = &self.workspaces else { return Ok(()) };
        for name in agent.agents.values().chain([agent]).filter_map(|agent| agent.sandbox.workspace.as_ref()) {
            if !known.contains(name) {
                let name = name.as_str();
                let message = format!("the server has no workspace {name:?}");
                let help = format!(
                    "the operator names them with the setting `workspaces`; a directory of your own is a path, such as ./{name}"
                );
                return Err(Fault::Refused(Problem::new(Code::InvalidValue, message, help)));
            }
        }
        Ok(())
    }

    pub(super) async fn row(&self, permit: &Permit, id: &RunId) -> Result<RunRow, Fault> {
        self.store.run(permit.project().clone(), id.clone()).await?.ok_or_else(|| Fault::no_run(id))
    }
}

/// Names of routes in a message.
const ROUTES_SHOWN: usize = 16;

/// Rejects agents that could only fail later.
pub fn check_agent(agent: &AgentSpec) -> Result<(), Fault> {
    check_one(&agent.name, agent)?;
    if agent.agents.len() > AGENTS_MAX {
        return Err(refuse(format!("an agent may name at most {AGENTS_MAX} others")));
    }
    for (name, other) in &agent.agents {
        check_one(name, other).map_err(|fault| within(name, fault))?;
        if !other.agents.is_empty() {
            return Err(refuse(format!("agent {name:?} names agents of its own: name them all in the first one")));
        }
        if let Some(tool) = other.tools.keys().find(|tool| !agent.tools.contains_key(*tool)) {
            return Err(refuse(format!("agent {name:?} has the tool {tool:?}, which the agent that starts it lacks")));
        }
        let is_another = |(tool, spec): &(&String, &ToolSpec)| agent.tools[*tool].endpoint != spec.endpoint;
        if let Some((tool, _)) = other.tools.iter().find(is_another) {
            return Err(refuse(format!(
                "agent {name:?} declares the tool {tool:?} in another way than the agent that starts it"
            )));
        }
        if let Some(more) = other.sandbox.beyond(&agent.sandbox) {
            return Err(refuse(format!(
                "the sandbox of agent {name:?} has {more}, which the agent that starts it lacks"
            )));
        }
    }
    match !agent.agents.is_empty() && !agent.tools.contains_key(BuiltIn::DELEGATE) {
        true => Err(refuse(format!("an agent that names others needs the tool {:?} to start them", BuiltIn::DELEGATE))),
        false => Ok(()),
    }
}

fn check_one(name: &str, agent: &AgentSpec) -> Result<(), Fault> {
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Err(refuse(format!("an agent's name must have 1 to {NAME_LEN_MAX} bytes")));
    }
    let called = match (agent.model.route(), agent.model.provider.as_str()) {
        (Some(route), _) => match route.parse::<RouteName>() {
            Ok(_) => BTreeSet::new(),
            Err(complaint) => return Err(refuse(format!("model.route of agent {name:?}: {complaint}"))),
        },
        (None, "scripted") => check_script(&agent.model.model).map_err(|error| refuse(error.to_string()))?,
        (None, other) => {
            return Err(refuse(format!("unknown model provider {other:?}: set model.route, or use \"scripted\"")));
        }
    };
    let is_known = |tool: &str| Tool::find(tool).is_some();
    for (tool, spec) in &agent.tools {
        if let Some(endpoint) = &spec.endpoint {
            check_endpoint(tool, spec, endpoint).map_err(Fault::Refused)?;
        }
    }
    let is_declared = |tool: &str| agent.tools.get(tool).is_some_and(|tool| tool.endpoint.is_some());
    let is_known = |tool: &str| is_known(tool) || is_declared(tool);
    if let Some(tool) = agent.tools.keys().find(|tool| !is_known(tool)) {
        return Err(refuse(format!("unknown tool {tool:?}: use one of {}", Tool::names())));
    }
    if !(1..=OPEN_STEPS_MAX).contains(&agent.open_max) {
        return Err(refuse(format!("`parallel` of agent {name:?} is {}: use 1 to {OPEN_STEPS_MAX}", agent.open_max)));
    }
    for (tool, spec) in &agent.tools {
        if spec.is_parallel && spec.class == Class::Once {
            return Err(refuse(format!(
                "the tool {tool:?} has the class `once`, whose calls are always alone: remove `parallel` there"
            )));
        }
        let Some(egress) = &spec.egress else { continue };
        if !is_declared(tool) && Tool::find(tool).is_none_or(|tool| tool.needs != Needs::Network) {
            return Err(refuse(format!(
                "the tool {tool:?} has network rules, and it doesn't go by them: remove `egress` there"
            )));
        }
        if !egress.limits.is_empty() {
            return Err(refuse(format!(
                "the tool {tool:?} has network limits, which only sandboxes have: remove `egress.limits` there"
            )));
        }
        Rules::new(egress.clone()).map_err(Fault::Refused)?;
    }
    check_fallbacks(agent)?;
    check_snapshots(name, agent)?;
    agent.sandbox.check().map_err(Fault::Refused)?;
    // A model that asks for a tool it doesn't have is told so and can go on. A script can't.
    match called.iter().find(|tool| !agent.tools.contains_key(*tool)) {
        Some(tool) if is_known(tool) => Err(Fault::Refused(Problem::new(
            Code::InvalidValue,
            format!("the script calls {tool:?}, which is not among the tools of agent {name:?}"),
            format!("add `{tool} = {{}}` to [tools]"),
        ))),
        Some(tool) => Err(refuse(format!("the script calls the unknown tool {tool:?}: use one of {}", Tool::names()))),
        None => Ok(()),
    }
}

/// Names the place in the definition for a problem of another agent in it.
fn within(name: &str, fault: Fault) -> Fault {
    match fault {
        Fault::Refused(problem) if problem.message.starts_with("tools.") || problem.message.starts_with("on.") => {
            let message = format!("agents.{name}.{}", problem.message);
            Fault::Refused(Problem { message, ..problem })
        }
        other => other,
    }
}

/// Refuses what an agent can't want together.
fn check_fallbacks(agent: &AgentSpec) -> Result<(), Fault> {
    let contradiction =
        |message: String, help: String| Err(Fault::Refused(Problem::new(Code::Contradiction, message, help)));
    let is_once = |(_, tool): &(&String, &ToolSpec)| tool.class == Class::Once;
    if agent.on.uncertain == WhenUncertain::Retry
        && let Some((tool, _)) = agent.tools.iter().find(is_once)
    {
        return contradiction(
            format!(
                "on.uncertain: it is \"retry\", and the tool {tool:?} has the class `once`: it may not be done twice"
            ),
            format!("use \"park\" or \"abandon\", or give {tool} the class `keyed` if a repeated call does no harm"),
        );
    }
    if agent.on.unanswered.is_some() && !agent.tools.contains_key("ask_human") {
        return contradiction(
            "on.unanswered: it says what follows a question, and the agent has no tool to ask one".to_owned(),
            "add `ask_human = {}` to [tools], or remove on.unanswered".to_owned(),
        );
    }
    if agent.on.unanswered.as_ref().is_some_and(|rule| rule.after_ms == 0) {
        return contradiction(
            "on.unanswered.after: 0 leaves no time for an answer".to_owned(),
            "use a time such as \"1h\"".to_owned(),
        );
    }
    Ok(())
}

/// Refuses a directory of the host together with a sandbox whose files later runs go on with.
fn check_directory(agent: &AgentSpec) -> Result<(), Fault> {
    let mut all = agent.agents.values().chain([agent]);
    match agent.directory.is_some() && all.any(|agent| !agent.sandbox.reuse.is_never()) {
        true => Err(Fault::Refused(reuse_with_a_directory("the directory of the host"))),
        false => Ok(()),
    }
}

/// Refuses snapshots that would never be taken.
fn check_snapshots(name: &str, agent: &AgentSpec) -> Result<(), Fault> {
    let is_used = agent.tools.values().any(|tool| tool.uses_sandbox);
    if agent.snapshots == SnapshotRules::default() || is_used {
        return Ok(());
    }
    Err(Fault::Refused(Problem::new(
        Code::Contradiction,
        format!("snapshots: agent {name:?} wants snapshots of its sandbox, and has no tool that works in one"),
        "add such a tool, as `shell = {}` in [tools], or remove [snapshots]",
    )))
}

pub(super) fn refuse(message: String) -> Fault {
    Fault::Refused(Problem::new(Code::InvalidValue, message, "correct the agent and try again"))
}
