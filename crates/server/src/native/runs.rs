//! Runs: start, list, read, signal, fork.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use saggar_api::{
    DecideStep, ForkRun, ListRuns, RaiseBudget, RollBackRun, RolledBackRun, Run, RunList, SignalRun, StartRun, route,
};
use saggar_engine::{AgentSpec, Body};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, ForkRun as Fork, OnRun, ReadRun, RemoveRun, RunsList, RunsStart, TellRun};
use saggar_http::extract::{Json, JsonText, LocalCaller, Query, path_text};
use saggar_http::wire;
use saggar_runtime::Permit;
use saggar_runtime::runs::{Instruction, NewRun};
use saggar_store::{Cursor, Idempotency, IdempotencyKey, PageLimit, RequestHash, RunQuery};

use super::resource::resource;
use super::wire_run;
use crate::server::{Server, Shared};

resource! {
    tag "runs": "Durable executions of agents: start, follow, signal, fork, replay.";
    bounded {
        route::RUNS => post start, get list;
        route::RUN => get get, delete remove;
        route::RUN_SIGNAL => post signal;
        route::RUN_PAUSE => post pause;
        route::RUN_RESUME => post resume;
        route::RUN_CANCEL => post cancel;
        route::RUN_BUDGET => post raise_budget;
        route::RUN_DECIDE => post decide;
        route::RUN_FORK => post fork;
        route::RUN_ROLLBACK => post roll_back;
    }
}

/// Start a run
///
/// The run is durable when this responds, and continues whatever happens to the client, the server or a worker. With
/// the header `Idempotency-Key`, repeating the request within a day returns the same run.
#[utoipa::path(
    post, path = "/api/v1/runs", tag = "runs", operation_id = "startRun",
    params(("Idempotency-Key" = Option<String>, Header, description = "Idempotency key, chosen by the client: 1 to 255 visible ASCII characters")),
    request_body = StartRun,
    responses((status = 201, description = "It has begun", body = Run)),
)]
pub(crate) async fn start(
    allowed: Allowed<RunsStart>,
    State(server): State<Shared>,
    LocalCaller(caller): LocalCaller,
    headers: HeaderMap,
    body: JsonText,
) -> Result<Response, Refusal> {
    wire_run::check_providers(&body.0)?;
    let start: StartRun = body.read()?;
    wire_run::check(&start.agent)?;
    let idempotency = idempotency(&headers, &start)?;
    let labels = wire::labels(start.labels.iter())?;
    let directory = wire_run::directory(&start, caller)?;
    let agent = AgentSpec { directory, ..wire_run::agent(start.agent) };
    let new = NewRun { agent, labels, idempotency };
    let (row, _) = server.runs.start(&allowed.permit, new).await?;
    Ok((StatusCode::CREATED, axum::Json(wire_run::run(row)?)).into_response())
}

fn idempotency(headers: &HeaderMap, start: &StartRun) -> Result<Option<Idempotency>, Refusal> {
    let Some(value) = headers.get(route::header::IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().and_then(IdempotencyKey::parse).ok_or_else(|| {
        Refusal::invalid("the Idempotency-Key is invalid", "use 1 to 255 visible ASCII characters, such as a UUID")
    })?;
    let request = serde_json::to_vec(start).map_err(|_| Refusal::internal())?;
    Ok(Some(Idempotency { key, request_hash: RequestHash::of(&request) }))
}

/// List runs, newest first
#[utoipa::path(
    get, path = "/api/v1/runs", tag = "runs", operation_id = "listRuns",
    params(ListRuns),
    responses((status = 200, description = "A page of runs", body = RunList)),
)]
pub(crate) async fn list(
    allowed: Allowed<RunsList>,
    State(server): State<Shared>,
    Query(list): Query<ListRuns>,
) -> Result<axum::Json<RunList>, Refusal> {
    let limit = match list.limit {
        None => PageLimit::default(),
        Some(limit) => PageLimit::parse(limit)
            .ok_or_else(|| Refusal::invalid(format!("limit {limit} is out of range"), "choose from 1 to 1000"))?,
    };
    let cursor = match &list.cursor {
        None => None,
        Some(cursor) => Some(Cursor::parse(cursor).map_err(|error| Refusal::invalid(error.to_string(), error.help()))?),
    };
    let query = RunQuery {
        states: list.state.into_iter().collect(),
        agent: list.agent,
        labels: wire::labels(list.label.iter().map(|label| (label.name(), label.value())))?,
        since: list.since.map(wire::moment),
        before: list.before.map(wire::moment),
        child_of: list.child_of,
        limit,
        cursor,
        ..RunQuery::new(allowed.permit.project().clone())
    };
    let page = server.runs.list(&allowed.permit, query).await?;
    let next_cursor = page.next.map(|cursor| cursor.to_string());
    let items = page.items.into_iter().map(wire_run::run).collect::<Result<_, _>>()?;
    Ok(axum::Json(RunList { items, next_cursor }))
}

/// Read a run
#[utoipa::path(
    get, path = "/api/v1/runs/{id}", tag = "runs", operation_id = "getRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 200, description = "The run", body = Run)),
)]
pub(crate) async fn get(allowed: OnRun<ReadRun>, State(server): State<Shared>) -> Result<axum::Json<Run>, Refusal> {
    let row = server.runs.get(&allowed.permit).await?;
    let open = server.runs.open_now(&allowed.permit, &row).await?;
    let short = server.runs.out_of_budget(&allowed.permit, &row).await?;
    let calls = server.runs.sandbox_calls(&allowed.permit, &row).await?;
    let run = wire_run::with_open(wire_run::run(row)?, open);
    let out_of_budget = short.map(|budget| budget.as_str().to_owned());
    Ok(axum::Json(Run { out_of_budget, sandbox_models: wire_run::sandbox_models(calls), ..run }))
}

/// Send a message to a run, or answer its question
///
/// The message is durable when this responds; the same `id` is delivered once. An answer must name its `question`; if
/// that question isn't open, the answer is refused with a conflict that shows the open one.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/signal", tag = "runs", operation_id = "signalRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    request_body = SignalRun,
    responses((status = 202, description = "The message is stored, and the run will receive it")),
)]
pub(crate) async fn signal(
    allowed: OnRun<TellRun>,
    State(server): State<Shared>,
    Json(signal): Json<SignalRun>,
) -> Result<StatusCode, Refusal> {
    let SignalRun { id, name, body, question } = signal;
    server.tell(&allowed.permit, id, Instruction::Signal { name, body: Body::text(body), question }).await
}

/// Pause a run: it starts no new effect
///
/// The child run that it waits for, if any, is paused with it.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/pause", tag = "runs", operation_id = "pauseRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 202, description = "The request is stored; an effect in progress is completed")),
)]
pub(crate) async fn pause(allowed: OnRun<TellRun>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.tell(&allowed.permit, None, Instruction::Pause).await
}

/// Resume a paused run
///
/// The child run that it waits for, if any, is resumed with it.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/resume", tag = "runs", operation_id = "resumeRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 202, description = "The request is stored")),
)]
pub(crate) async fn resume(allowed: OnRun<TellRun>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.tell(&allowed.permit, None, Instruction::Resume).await
}

/// Cancel a run for good
///
/// The child run that it waits for, if any, is cancelled with it.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/cancel", tag = "runs", operation_id = "cancelRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 202, description = "The request is stored; an effect in progress is abandoned")),
)]
pub(crate) async fn cancel(allowed: OnRun<TellRun>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.tell(&allowed.permit, None, Instruction::Cancel).await
}

/// Raise the budget of a run
///
/// A run that waits because its budget is used up goes on. The budget of a child run is part of its parent's and can't be
/// raised.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/budget", tag = "runs", operation_id = "raiseBudget",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    request_body = RaiseBudget,
    responses((status = 202, description = "The request is stored, and the run gets more")),
)]
pub(crate) async fn raise_budget(
    allowed: OnRun<TellRun>,
    State(server): State<Shared>,
    Json(raise): Json<RaiseBudget>,
) -> Result<StatusCode, Refusal> {
    let more = wire_run::budget(raise.more);
    if more == saggar_engine::Budget::default() {
        return Err(Refusal::invalid("nothing is added to the budget", "name at least one limit in `more`"));
    }
    server.tell(&allowed.permit, raise.id, Instruction::Raise { more }).await
}

/// Decide about a step whose outcome is unknown
///
/// Refused with a conflict if the run isn't parked at that step, or not at the attempt that the request names.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/steps/{step}/decide", tag = "runs", operation_id = "decideStep",
    params(
        ("id" = saggar_api::schema::RunId, Path, description = "The run"),
        ("step" = u64, Path, description = "The step at which the run is parked"),
    ),
    request_body = DecideStep,
    responses((status = 202, description = "The decision is stored, and the run continues")),
)]
pub(crate) async fn decide(
    allowed: OnRun<TellRun>,
    State(server): State<Shared>,
    PathStep(step): PathStep,
    Json(decide): Json<DecideStep>,
) -> Result<StatusCode, Refusal> {
    let attempt = decide.attempt;
    let decision = wire_run::decision(decide)?;
    server.tell(&allowed.permit, None, Instruction::Decide { step, attempt, decision }).await
}

/// Start a new run from this one's history
///
/// The fork shares the history up to that point. Its files are those of the newest snapshot before; `files.restored` says
/// which, and which changes they lack. Without a snapshot, files are not restored. If a call is open there, the fork
/// repeats it with its own key: `parent.does_again` names it. If the call may be made only once, or its outcome is unknown, the
/// fork is refused with a conflict.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/fork", tag = "runs", operation_id = "forkRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    request_body = ForkRun,
    responses((status = 201, description = "The fork", body = Run)),
)]
pub(crate) async fn fork(
    allowed: OnRun<Fork>,
    State(server): State<Shared>,
    Json(fork): Json<ForkRun>,
) -> Result<Response, Refusal> {
    let at = wire_run::fork_at(&fork)?;
    let forked = server.runs.fork(&allowed.permit, at, fork.message.map(Body::text)).await?;
    Ok((StatusCode::CREATED, axum::Json(wire_run::forked(forked)?)).into_response())
}

/// Take a run back to an earlier step, with its files
///
/// The run keeps its id and its journal, and goes on from the end of that step as a new generation: keys are new, what was
/// spent stays spent, and a call in progress is abandoned. Its files are those of the newest snapshot before. Effects
/// outside its sandbox aren't undone: `stays_done` lists them. Refused with a conflict if the run has finished, if other
/// steps were open at the end of that step, if an earlier rollback has undone it, if its files are in no snapshot that is
/// kept, or while a call is in progress that may be made only once.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/rollback", tag = "runs", operation_id = "rollBackRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    request_body = RollBackRun,
    responses((status = 202, description = "The request is stored, and the run will go back", body = RolledBackRun)),
)]
pub(crate) async fn roll_back(
    allowed: OnRun<TellRun>,
    State(server): State<Shared>,
    Json(RollBackRun { at_step, generation, message }): Json<RollBackRun>,
) -> Result<Response, Refusal> {
    let back = server.runs.roll_back(&allowed.permit, at_step, generation, message.map(Body::text)).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(wire_run::rolled_back(back))).into_response())
}

/// Remove a finished run
///
/// Its journal, its snapshots and its child runs are removed with it. A run whose history a fork uses can't be removed before the
/// fork.
#[utoipa::path(
    delete, path = "/api/v1/runs/{id}", tag = "runs", operation_id = "removeRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 204, description = "It is gone")),
)]
pub(crate) async fn remove(allowed: OnRun<RemoveRun>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.runs.remove(&allowed.permit).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Server {
    async fn tell(&self, permit: &Permit, id: Option<String>, what: Instruction) -> Result<StatusCode, Refusal> {
        self.runs.tell(permit, id, what).await?;
        Ok(StatusCode::ACCEPTED)
    }
}

/// The step that the path names.
pub(crate) struct PathStep(u64);

impl<S: Sync> axum::extract::FromRequestParts<S> for PathStep {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let text = path_text(parts, "step").await.unwrap_or_default();
        text.parse().map(Self).map_err(|_| Refusal::not_found("step", &text))
    }
}
