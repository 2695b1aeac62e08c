//! Conversions of runs between the API and the runtime.

use std::collections::BTreeMap;

use saggar_api as api;
use saggar_domain::model::{CallSum, SandboxCalls};
use saggar_domain::{AgentSandbox, HostUser, RunState, Timeout};
use saggar_engine::{
    AgentIdentity, AgentSpec, Body, Budget, CORRECTIONS_DEFAULT, Class, ContextLimit, Decision, Event, Fallbacks,
    KeptFiles, ModelRef, OPEN_STEPS_DEFAULT, OwnDirectory, Restored, RetryPolicy, RunFiles, SnapshotRules, ToolSpec,
    Unanswered, WhenFailing, WhenOutOfBudget, WhenUncertain,
};
use saggar_http::Refusal;
use saggar_http::wire;
use saggar_runtime::runs::{
    DoingNow, DoneCall, ForkAt, Forked, Needs, OpenCall, OpenNow, Replay, RollBack, Said, SaidWhat, Tool, default_class,
};
use saggar_store::RunRow;
use serde::Deserialize;

/// Default time limit of a tool call.
const TOOL_TIMEOUT_MS: u64 = 10 * 60 * 1000;
/// Default number of identical calls in a row that are allowed.
const REPEATS: u32 = 8;

/// Refuses an unsupported provider, before any other error is reported.
pub(crate) fn check_providers(body: &[u8]) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    struct Start {
        agent: Agent,
    }
    #[derive(Deserialize)]
    struct Agent {
        model: Model,
        #[serde(default)]
        agents: BTreeMap<String, SubAgent>,
    }
    #[derive(Deserialize)]
    struct SubAgent {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(default)]
        provider: Option<String>,
    }
    // A body that can't be parsed so far is refused by the complete parser.
    let Ok(Start { agent }) = serde_json::from_slice(body) else { return Ok(()) };
    let others = agent.agents.values().map(|other| &other.model);
    for model in others.chain([&agent.model]) {
        if let Some((message, help)) = model.provider.as_deref().and_then(api::AgentModel::wrong_provider) {
            return Err(Refusal::new(api::Code::InvalidValue, message, help));
        }
    }
    Ok(())
}

/// Refuses what the types of the API allow and no agent may have.
pub(crate) fn check(agent: &api::Agent) -> Result<(), Refusal> {
    if let Some((message, help)) = agent.wrong() {
        return Err(Refusal::invalid(message, help));
    }
    if agent.task.trim().is_empty() {
        return Err(Refusal::invalid("the agent has no task", "set `task`, or use: saggar agent run \"TASK\""));
    }
    Ok(())
}

/// The directory that a request names. A path is only for a user of this host.
pub(crate) fn directory(start: &api::StartRun, caller: Option<HostUser>) -> Result<Option<OwnDirectory>, Refusal> {
    match (&start.directory, caller) {
        (None, _) if start.agent.sandbox.fs.is_some() && start.agent.sandbox.workspace.is_none() => Err(Refusal::new(
            api::Code::Contradiction,
            "the agent's sandbox.fs says how a directory of the host is mounted, and none is named",
            "name one with directory or sandbox.workspace, or leave sandbox.fs out",
        )),
        (None, _) => Ok(None),
        (Some(_), _) if start.agent.sandbox.workspace.is_some() => Err(Refusal::new(
            api::Code::Contradiction,
            "directory and the agent's sandbox.workspace are both mounted at /workspace",
            "leave one of them out",
        )),
        (Some(path), Some(user)) => Ok(Some(OwnDirectory { path: path.clone(), user })),
        (Some(_), None) => Err(Refusal::new(
            api::Code::Forbidden,
            "a directory of the host can be named only by a user of that host, through the server's Unix socket",
            "connect to that socket, such as with --url unix:/run/saggar.sock; or ask the operator for a workspace by name",
        )),
    }
}

pub(crate) fn agent(agent: api::Agent) -> AgentSpec {
    let hash = agent.hash();
    let api::Agent {
        schema: _,
        name,
        version,
        system,
        task,
        model,
        tools,
        sandbox,
        budget,
        repeats_max,
        corrections_max,
        output,
        context,
        parallel,
        on,
        snapshots,
        agents,
    } = agent;
    let identity = Some(AgentIdentity { version, hash });
    let others = agents.into_iter().map(|(name, other)| {
        // The agent that starts it provides its task.
        let api::SubAgent {
            system,
            model,
            tools,
            sandbox,
            budget,
            repeats_max,
            corrections_max,
            output,
            context,
            parallel,
            on,
            snapshots,
        } = other;
        let other = spec(name.clone(), system, String::new(), model, tools, budget, (repeats_max, parallel));
        let bounds = Bounds { corrections_max, output, context };
        let snapshots = snapshot_rules(snapshots);
        (name, bounds.of(AgentSpec { sandbox, on: fallbacks(on), snapshots, ..other }))
    });
    let bounds = Bounds { corrections_max, output, context };
    bounds.of(AgentSpec {
        identity,
        sandbox,
        on: fallbacks(on),
        snapshots: snapshot_rules(snapshots),
        agents: others.collect(),
        ..spec(name, system, task, model, tools, budget, (repeats_max, parallel))
    })
}

/// What its replies and its conversation are held to.
struct Bounds {
    corrections_max: Option<u32>,
    output: Option<api::AgentOutput>,
    context: Option<api::AgentContext>,
}

impl Bounds {
    /// What is wrong with them has been refused.
    fn of(self, agent: AgentSpec) -> AgentSpec {
        let output = self.output.and_then(|output| output.schema().ok()).map(Box::new);
        let context = self
            .context
            .map(|context| ContextLimit { tokens_max: context.tokens_max, keep_tokens: context.keep_tokens() });
        let corrections_max = self.corrections_max.unwrap_or(agent.corrections_max);
        AgentSpec { corrections_max, output, context, ..agent }
    }
}

fn spec(
    name: String,
    system: Option<String>,
    task: String,
    model: api::AgentModel,
    tools: BTreeMap<String, api::AgentTool>,
    budget: api::RunBudget,
    (repeats_max, parallel): (Option<u32>, Option<u32>),
) -> AgentSpec {
    let tools = tools.into_iter().map(|(name, tool)| {
        // A tool that there isn't is refused later, with the names of those that there are.
        let described = Tool::find(&name);
        // What is wrong with a declaration has been refused.
        let endpoint = tool.endpoint(&name).unwrap_or_default().map(Box::new);
        let own = match &endpoint {
            Some(endpoint) => default_class(endpoint),
            None => described.map_or(Class::Once, |tool| tool.class),
        };
        let class = tool.class.map_or(own, class);
        let retry = RetryPolicy::default();
        let retry = RetryPolicy { attempts_max: tool.attempts_max.unwrap_or(retry.attempts_max), ..retry };
        let own = described.map(|tool| u64::try_from(tool.timeout.as_millis()).unwrap_or(u64::MAX));
        let timeout_ms = tool.timeout.map(millis).or(own).unwrap_or(TOOL_TIMEOUT_MS);
        let own = class != Class::Once && (endpoint.is_some() || described.is_some_and(|tool| tool.is_parallel));
        let is_parallel = tool.parallel.unwrap_or(own);
        let uses_sandbox = endpoint.is_none() && described.is_some_and(|tool| tool.needs == Needs::Sandbox);
        (name, ToolSpec { class, retry, timeout_ms, egress: tool.egress, endpoint, is_parallel, uses_sandbox })
    });
    AgentSpec {
        tools: tools.collect(),
        name,
        identity: None,
        directory: None,
        system: system.map(Body::text),
        task: Body::text(task),
        model: model_of(model),
        sandbox: AgentSandbox::default(),
        budget: self::budget(budget),
        repeats_max: repeats_max.unwrap_or(REPEATS),
        corrections_max: CORRECTIONS_DEFAULT,
        output: None,
        context: None,
        open_max: parallel.unwrap_or(OPEN_STEPS_DEFAULT),
        on: Fallbacks::default(),
        snapshots: SnapshotRules::default(),
        agents: BTreeMap::new(),
    }
}

pub(crate) fn budget(budget: api::RunBudget) -> Budget {
    let api::RunBudget { steps, time, tokens, micros, tool_calls, retries, children } = budget;
    Budget { steps, wall_ms: time.map(millis), tokens, micros, tool_calls, retries, children }
}

/// A model that was checked before.
fn model_of(model: api::AgentModel) -> ModelRef {
    let (reply_tokens_max, reply_micros_max) = (model.reply_tokens(), model.reply_micros_max);
    let sampling = Box::new(model.sampling().unwrap_or_default());
    let (provider, model) = match (model.route, model.provider) {
        (Some(route), _) => (ModelRef::ROUTE.to_owned(), route),
        (None, provider) => (provider.unwrap_or_default(), model.script.to_string()),
    };
    ModelRef { provider, model, sampling, reply_tokens_max, reply_micros_max, retry: RetryPolicy::default() }
}

fn fallbacks(on: api::AgentFallbacks) -> Fallbacks {
    let api::AgentFallbacks { uncertain, failing, unanswered, budget } = on;
    Fallbacks {
        uncertain: match uncertain {
            None | Some(api::WhenUncertain::Park) => WhenUncertain::Park,
            Some(api::WhenUncertain::Retry) => WhenUncertain::Retry,
            Some(api::WhenUncertain::Abandon) => WhenUncertain::Abandon,
        },
        failing: match failing {
            None | Some(api::WhenFailing::Fail) => WhenFailing::Fail,
            Some(api::WhenFailing::Ask) => WhenFailing::Ask,
        },
        unanswered: unanswered.map(|api::WhenUnanswered { after, answer }| Unanswered {
            after_ms: millis(after),
            answer: answer.map(Body::text),
        }),
        budget: match budget {
            None | Some(api::WhenOutOfBudget::End) => WhenOutOfBudget::End,
            Some(api::WhenOutOfBudget::Finish) => WhenOutOfBudget::Finish,
            Some(api::WhenOutOfBudget::Ask) => WhenOutOfBudget::Ask,
        },
    }
}

fn snapshot_rules(snapshots: api::AgentSnapshots) -> SnapshotRules {
    let api::AgentSnapshots { every, before, at_end } = snapshots;
    SnapshotRules { every, before: before.into_iter().map(class).collect(), at_end }
}

fn class(class: api::EffectClass) -> Class {
    match class {
        api::EffectClass::Pure => Class::Pure,
        api::EffectClass::Keyed => Class::Keyed,
        api::EffectClass::Probeable => Class::Probeable,
        api::EffectClass::Once => Class::Once,
    }
}

fn millis(span: Timeout) -> u64 {
    u64::try_from(span.duration().as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn run(row: RunRow) -> Result<api::Run, Refusal> {
    let outcome = row.outcome.map(|outcome| outcome.to_value()).transpose().map_err(|_| Refusal::internal())?;
    // A running or queued run is due all the time; only a waiting one has a meaningful time.
    let wake_at = row.wake_at.filter(|_| row.state == RunState::Waiting).map(wire::time);
    let files = row.files.map(|files| files.to_value()).transpose().map_err(|_| Refusal::internal())?.map(files_of_run);
    let is_without_room = row.state == RunState::Waiting && row.room_since.is_some();
    Ok(api::Run {
        waiting_for: is_without_room.then(|| "sandbox".to_owned()),
        id: row.id,
        project_id: row.project,
        agent: row.agent,
        labels: wire::shown_labels(&row.labels),
        state: row.state,
        created_at: wire::time(row.created_at),
        updated_at: wire::time(row.updated_at),
        wake_at,
        entries: row.head,
        generation: row.generation,
        parent: row.parent.map(|(run_id, through)| api::RunParent {
            run_id,
            through,
            does_again: None,
            open_calls: Vec::new(),
        }),
        child_of: row.child_of.map(|(run_id, step)| api::RunChildOf { run_id, step }),
        question: None,
        parked: None,
        out_of_budget: None,
        open_steps: Vec::new(),
        sandbox_models: Vec::new(),
        sandbox_id: row.sandbox,
        files,
        began_with: row.began_with.map(|began| api::RunBeganWith { run_id: began.from, snapshot_id: began.snapshot }),
        outcome,
        blocked: row.block.map(|block| api::RunBlock { kind: block.kind.as_str().to_owned(), reason: block.reason }),
    })
}

pub(crate) fn sandbox_models(calls: SandboxCalls) -> Vec<api::RunSandboxModel> {
    let model = |(model, sum): (String, CallSum)| {
        let CallSum { calls, estimated, input, cached, written, output, reasoning, micros } = sum;
        api::RunSandboxModel { model, calls, estimated, input, cached, written, output, reasoning, micros }
    };
    calls.models.into_iter().map(model).collect()
}

fn files_of_run(files: RunFiles) -> api::RunFiles {
    let RunFiles { kept, restored: at } = files;
    let restored = at.map(|at| api::RestoredFiles { after_step: Some(at.after), ..restored(at.files) });
    api::RunFiles { snapshots: kept.into_iter().map(snapshot).collect(), restored }
}

fn restored(files: Restored) -> api::RestoredFiles {
    let Restored { from, older_from } = files;
    api::RestoredFiles { after_step: None, snapshot: from.map(snapshot), older_from_step: older_from }
}

fn snapshot(kept: KeptFiles) -> api::RunSnapshot {
    api::RunSnapshot { step: kept.step, id: kept.snapshot }
}

pub(crate) fn rolled_back(back: RollBack) -> api::RolledBackRun {
    let RollBack { run: id, to, files, stays_done } = back;
    let call = |DoneCall { step, tool, class, is_certain, in_sandbox, child }| {
        let class = match class {
            // Neither is listed.
            Class::Pure | Class::Model => api::EffectClass::Pure,
            Class::Keyed => api::EffectClass::Keyed,
            Class::Probeable => api::EffectClass::Probeable,
            Class::Once => api::EffectClass::Once,
        };
        api::StaysDone { step, tool, class, is_certain, in_sandbox, child }
    };
    let stays_done = stays_done.into_iter().map(call).collect();
    api::RolledBackRun { id, at_step: to, files: restored(files), stays_done }
}

/// A fork, with the calls that it repeats.
pub(crate) fn forked(forked: Forked) -> Result<api::Run, Refusal> {
    let mut run = run(forked.row)?;
    if let Some(parent) = &mut run.parent {
        let call = |OpenCall { step, tool }| api::RunOpenCall { step, tool };
        parent.open_calls = forked.does_again.into_iter().map(call).collect();
        parent.does_again = parent.open_calls.first().cloned();
    }
    Ok(run)
}

/// A run with its open steps, and with what it waits for from a human.
pub(crate) fn with_open(mut run: api::Run, open: Vec<OpenNow>) -> api::Run {
    for OpenNow { step, attempt, what: tool, doing, since } in open {
        let since = wire::time(since);
        let state = match &doing {
            DoingNow::InProgress => api::OpenStepState::Running,
            DoingNow::Asks(_) => api::OpenStepState::Asking,
            DoingNow::Waits { .. } => api::OpenStepState::Waiting,
            DoingNow::Delegates(_) => api::OpenStepState::Delegating,
            DoingNow::IsProbed => api::OpenStepState::Probing,
            DoingNow::Failed { .. } => api::OpenStepState::Retrying,
            DoingNow::IsDelayed(_) => api::OpenStepState::Delayed,
            DoingNow::IsInterrupted => api::OpenStepState::Interrupted,
            DoingNow::IsParked(_) => api::OpenStepState::Parked,
        };
        let (mut until, mut text, mut child) = (None, None, None);
        match doing {
            DoingNow::Asks(question) => {
                let asked = api::RunQuestion { id: step, text: question.clone(), asked_at: since };
                run.question.get_or_insert(asked);
                text = Some(question);
            }
            DoingNow::IsParked(reason) => {
                let parked = api::RunParked { step, attempt, tool: tool.clone(), reason: reason.clone(), since };
                run.parked.get_or_insert(parked);
                text = Some(reason);
            }
            DoingNow::IsDelayed(reason) => text = Some(reason),
            DoingNow::Waits { until: time, signal } => {
                until = Some(wire::time(time));
                text = signal.map(|name| format!("signal {name}"));
            }
            DoingNow::Failed { retry_at: time } => until = Some(wire::time(time)),
            DoingNow::Delegates(run) => child = Some(run),
            DoingNow::InProgress | DoingNow::IsProbed | DoingNow::IsInterrupted => {}
        }
        run.open_steps.push(api::RunOpenStep { step, attempt, tool, state, since, until, text, child });
    }
    run
}

pub(crate) fn said(said: Said) -> api::RunSaid {
    let (kind, text) = match said.what {
        SaidWhat::Text(text) => (api::SaidKind::Text, text),
        SaidWhat::Reasoning(text) => (api::SaidKind::Reasoning, text),
        SaidWhat::Call(name) => (api::SaidKind::Call, name),
    };
    api::RunSaid { step: said.step, attempt: said.attempt, kind, text }
}

pub(crate) fn decision(decide: api::DecideStep) -> Result<Decision, Refusal> {
    match (decide.decision, decide.result) {
        (api::StepDecision::Retry, None) => Ok(Decision::Retry),
        (api::StepDecision::Abandon, None) => Ok(Decision::Abandon),
        (api::StepDecision::Done, Some(result)) => Ok(Decision::Done(Body::text(result))),
        (api::StepDecision::Done, None) => {
            Err(Refusal::invalid("the decision \"done\" needs a result", "set \"result\""))
        }
        (api::StepDecision::Retry | api::StepDecision::Abandon, Some(_)) => Err(Refusal::invalid(
            "only the decision \"done\" may have a result",
            "leave \"result\" out, or decide \"done\"",
        )),
    }
}

pub(crate) fn fork_at(fork: &api::ForkRun) -> Result<ForkAt, Refusal> {
    match (fork.at_step, fork.at_entry) {
        (Some(_), Some(_)) => {
            Err(Refusal::invalid("a fork is either at a step or at an entry", "leave one of them out"))
        }
        (Some(step), None) => Ok(ForkAt::Step(step)),
        (None, Some(entry)) => Ok(ForkAt::Entry(entry)),
        (None, None) => Ok(ForkAt::End),
    }
}

pub(crate) fn replay(replay: Replay) -> api::ReplayReport {
    let shown = |event: Option<Event>| event.and_then(|event| serde_json::to_value(event).ok());
    let divergence = replay.divergence.map(|divergence| api::ReplayDivergence {
        entry: divergence.at as u64 + 1,
        recorded: shown(divergence.recorded),
        derived: shown(divergence.derived),
    });
    api::ReplayReport { entries: replay.entries as u64, agreed: replay.agreed as u64, divergence }
}
