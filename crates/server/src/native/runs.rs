//! Runs: begun, listed, looked at, told things, forked.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use saggar_api::{DecideStep, ForkRun, ListRuns, Run, RunList, SignalRun, StartRun, route};
use saggar_engine::Body;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, ForkRun as Fork, OnRun, ReadRun, RemoveRun, RunsList, RunsStart, TellRun};
use saggar_http::extract::{Json, JsonText, Query, path_text};
use saggar_http::wire;
use saggar_runtime::Permit;
use saggar_runtime::runs::{Instruction, NewRun};
use saggar_store::{Cursor, Idempotency, IdempotencyKey, PageLimit, RequestHash, RunQuery};

use super::resource::resource;
use super::wire_run;
use crate::server::{Server, Shared};

resource! {
    tag "runs": "Agents executed durably: begun, followed, told things, forked, replayed.";
    bounded {
        route::RUNS => post start, get list;
        route::RUN => get get, delete remove;
        route::RUN_SIGNAL => post signal;
        route::RUN_PAUSE => post pause;
        route::RUN_RESUME => post resume;
        route::RUN_CANCEL => post cancel;
        route::RUN_DECIDE => post decide;
        route::RUN_FORK => post fork;
    }
}

/// Begin a run
///
/// It is durable when this answers, and goes on whatever happens to whoever asked, to the server or to a worker. With the header
/// `Idempotency-Key`, the same request again gives the same run, for a day.
#[utoipa::path(
    post, path = "/api/v1/runs", tag = "runs", operation_id = "startRun",
    params(("Idempotency-Key" = Option<String>, Header, description = "Name of the request, chosen by the client: 1 to 255 visible ASCII characters")),
    request_body = StartRun,
    responses((status = 201, description = "It has begun", body = Run)),
)]
pub(crate) async fn start(
    allowed: Allowed<RunsStart>,
    State(server): State<Shared>,
    headers: HeaderMap,
    body: JsonText,
) -> Result<Response, Refusal> {
    wire_run::check_providers(&body.0)?;
    let start: StartRun = body.read()?;
    let idempotency = idempotency(&headers, &start)?;
    let labels = wire::labels(start.labels.iter())?;
    let new = NewRun { agent: wire_run::agent(start.agent), labels, idempotency };
    let (row, _) = server.runs.start(&allowed.permit, new).await?;
    Ok((StatusCode::CREATED, axum::Json(wire_run::run(row)?)).into_response())
}

fn idempotency(headers: &HeaderMap, start: &StartRun) -> Result<Option<Idempotency>, Refusal> {
    let Some(value) = headers.get(route::header::IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().and_then(IdempotencyKey::parse).ok_or_else(|| {
        Refusal::invalid("the Idempotency-Key can't be one", "use 1 to 255 visible ASCII characters, such as a UUID")
    })?;
    let request = serde_json::to_vec(start).map_err(|_| Refusal::internal())?;
    Ok(Some(Idempotency { key, request_hash: RequestHash::of(&request) }))
}

/// List runs, newest first
#[utoipa::path(
    get, path = "/api/v1/runs", tag = "runs", operation_id = "listRuns",
    params(ListRuns),
    responses((status = 200, description = "A page of them", body = RunList)),
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

/// Look at a run
#[utoipa::path(
    get, path = "/api/v1/runs/{id}", tag = "runs", operation_id = "getRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 200, description = "The run", body = Run)),
)]
pub(crate) async fn get(allowed: OnRun<ReadRun>, State(server): State<Shared>) -> Result<axum::Json<Run>, Refusal> {
    let row = server.runs.get(&allowed.permit).await?;
    let awaited = server.runs.awaited(&allowed.permit, &row).await?;
    Ok(axum::Json(wire_run::awaiting(wire_run::run(row)?, awaited)))
}

/// Say something to a run, or answer its question
///
/// Durable when this answers; the same `id` twice is once. An answer names its `question`; one that is for no open question is refused with a
/// conflict, which says what the run asks now.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/signal", tag = "runs", operation_id = "signalRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    request_body = SignalRun,
    responses((status = 202, description = "It is written down, and the run takes it next")),
)]
pub(crate) async fn signal(
    allowed: OnRun<TellRun>,
    State(server): State<Shared>,
    Json(signal): Json<SignalRun>,
) -> Result<StatusCode, Refusal> {
    let SignalRun { id, name, body, question } = signal;
    server.tell(&allowed.permit, id, Instruction::Signal { name, body: Body::text(body), question }).await
}

/// Let a run begin no new effect
///
/// The run that it waits for, if it started one, is paused with it.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/pause", tag = "runs", operation_id = "pauseRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 202, description = "It is written down; what is under way comes to its end")),
)]
pub(crate) async fn pause(allowed: OnRun<TellRun>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.tell(&allowed.permit, None, Instruction::Pause).await
}

/// Let a paused run go on
///
/// So does the run that it waits for.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/resume", tag = "runs", operation_id = "resumeRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 202, description = "It is written down")),
)]
pub(crate) async fn resume(allowed: OnRun<TellRun>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.tell(&allowed.permit, None, Instruction::Resume).await
}

/// Stop a run for good
///
/// The run that it waits for, if it started one, is cancelled with it.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/cancel", tag = "runs", operation_id = "cancelRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 202, description = "It is written down; what is under way is given up")),
)]
pub(crate) async fn cancel(allowed: OnRun<TellRun>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.tell(&allowed.permit, None, Instruction::Cancel).await
}

/// Decide about a step of which nobody knows whether it was done
///
/// Refused with a conflict when the run isn't parked at that step.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/steps/{step}/decide", tag = "runs", operation_id = "decideStep",
    params(
        ("id" = saggar_api::schema::RunId, Path, description = "The run"),
        ("step" = u64, Path, description = "The step it is parked at"),
    ),
    request_body = DecideStep,
    responses((status = 202, description = "It is written down, and the run goes on")),
)]
pub(crate) async fn decide(
    allowed: OnRun<TellRun>,
    State(server): State<Shared>,
    PathStep(step): PathStep,
    Json(decide): Json<DecideStep>,
) -> Result<StatusCode, Refusal> {
    let decision = wire_run::decision(decide)?;
    server.tell(&allowed.permit, None, Instruction::Decide { step, decision }).await
}

/// Begin another run from this one's past
///
/// It has everything up to that step and a future of its own. Files are not restored with it. A call that is open there is made again by the fork,
/// with a key of its own: `parent.does_again` names it. Where the call may be made only once, or nobody knows whether it was made, the fork is
/// refused with a conflict.
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

/// Remove a run that is over
///
/// Its journal and every run that it started go with it. A run whose past a fork has can't go before the fork.
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
