//! The code interpreter: contexts, and code that runs in them.

use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use saggar_api::{
    Code, CodeContext, CodeContextList, CodeEvent, CodeExecution, CodeFormats, CreateCodeContext, RaisedError, RunCode,
    ServerSentEvent, ShownResult, Timestamp, route,
};
use saggar_domain::{CodeLanguage, CodeStatus, OutputStream, SandboxId, Timeout};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Exec, Read};
use saggar_http::extract::{self, JSON_MAX, Json, PathContext};
use saggar_http::sse::{self, Source};
use saggar_runtime::{self as runtime, Context, NewContext, Place, Running};

use super::events::{sandbox_of, wants_stream};
use super::resource::resource;
use crate::server::Shared;

resource! {
    tag "code": "Code that runs in contexts of a sandbox, which keep what it defines.";
    bounded {
        route::CODE_CONTEXT => get get, delete remove;
    }
    streaming {
        route::CODE_CONTEXTS => post create, get list;
        route::CODE_RESTART => post restart;
        route::CODE_RUN => post run;
    }
}

/// Maximum of each stream in an answer that isn't a stream.
const OUTPUT_MAX: usize = 1 << 20;
/// Maximum of all results in such an answer.
const RESULTS_MAX: usize = 32 << 20;

/// Create a code context
///
/// A context is a process of the sandbox's user. It is ready for code when the response comes.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/code/contexts", tag = "code", operation_id = "createCodeContext",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = CreateCodeContext,
    responses((status = 201, description = "The context", body = CodeContext)),
)]
pub(crate) async fn create(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    Json(CreateCodeContext { language, cwd, env }): Json<CreateCodeContext>,
) -> Result<(StatusCode, axum::Json<CodeContext>), Refusal> {
    let new = NewContext { language, cwd: cwd.map(|cwd| cwd.as_str().to_owned()), env: env.into_map() };
    let context = server.sandboxes.create_context(&allowed.permit, new).await?;
    Ok((StatusCode::CREATED, axum::Json(shown(sandbox_of(&allowed.permit)?, context))))
}

/// List the code contexts of a sandbox, oldest first
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/code/contexts", tag = "code", operation_id = "listCodeContexts",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "The contexts", body = CodeContextList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<axum::Json<CodeContextList>, Refusal> {
    let id = sandbox_of(&allowed.permit)?;
    let contexts = server.sandboxes.contexts_of(&allowed.permit).await?;
    Ok(axum::Json(CodeContextList { items: contexts.into_iter().map(|context| shown(id.clone(), context)).collect() }))
}

/// Read a code context
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/code/contexts/{context}", tag = "code", operation_id = "getCodeContext",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("context" = saggar_api::schema::ContextId, Path, description = "The context"),
    ),
    responses((status = 200, description = "The context", body = CodeContext)),
)]
pub(crate) async fn get(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
    PathContext(context): PathContext,
) -> Result<axum::Json<CodeContext>, Refusal> {
    let context = server.sandboxes.context(&allowed.permit, &context).await?;
    Ok(axum::Json(shown(sandbox_of(&allowed.permit)?, context)))
}

/// Remove a code context
///
/// Its process ends, with everything that it started.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/code/contexts/{context}", tag = "code", operation_id = "removeCodeContext",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("context" = saggar_api::schema::ContextId, Path, description = "The context"),
    ),
    responses((status = 204, description = "The context is gone")),
)]
pub(crate) async fn remove(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathContext(context): PathContext,
) -> Result<StatusCode, Refusal> {
    server.sandboxes.remove_context(&allowed.permit, &context).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Start a code context anew
///
/// Its process ends, and another one with the same id, directory and variables begins. What code had defined is lost.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/code/contexts/{context}/restart", tag = "code", operation_id = "restartCodeContext",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("context" = saggar_api::schema::ContextId, Path, description = "The context"),
    ),
    responses((status = 200, description = "The context, with a new process", body = CodeContext)),
)]
pub(crate) async fn restart(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathContext(context): PathContext,
) -> Result<axum::Json<CodeContext>, Refusal> {
    let context = server.sandboxes.restart_context(&allowed.permit, &context).await?;
    Ok(axum::Json(shown(sandbox_of(&allowed.permit)?, context)))
}

/// Run code
///
/// The response comes when the code has ended; with `Accept: text/event-stream` it streams what the code prints and
/// shows. If the client disconnects, the code is interrupted.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/code/run", tag = "code", operation_id = "runCode",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = RunCode,
    responses((status = 200, description = "The ended execution, or the stream of its events", content(
        (CodeExecution = "application/json"),
        (CodeEvent = "text/event-stream"),
    ))),
)]
pub(crate) async fn run(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Refusal> {
    let held = server.sandboxes.room_for_code(&allowed.permit, extract::length(request.body(), JSON_MAX))?;
    let Json(run) = Json::<RunCode>::from_request(request, &()).await?;
    let RunCode { code, context, language, env, timeout } = run;
    let place = match (context, language) {
        (Some(_), Some(_)) => {
            let help = "name one of them: a context has its language";
            return Err(Refusal::new(Code::Contradiction, "a context and a language are given", help));
        }
        (Some(context), None) => Place::Context(context),
        (None, language) => Place::Default(language.unwrap_or(CodeLanguage::Python), Default::default()),
    };
    let run = runtime::RunCode { code, place, env: env.into_map(), timeout: timeout.map(Timeout::duration) };
    let running = server.sandboxes.run_arrived_code(&allowed.permit, run, held).await?;
    if wants_stream(&headers) {
        let started = CodeEvent::Started { context_id: running.context.clone(), language: running.language };
        let source = Stream { number: 0, started: Some(started), running, is_over: false };
        return Ok(sse::answer(server.gate.clone(), source));
    }
    tokio::select! {
        ended = whole(running) => Ok(axum::Json(ended?).into_response()),
        () = server.stops() => Err(Refusal::new(
            Code::Unavailable,
            "the server is stopping, and the code is interrupted",
            "run it again once the server is back",
        )),
    }
}

struct Stream {
    number: u64,
    started: Option<CodeEvent>,
    running: Running,
    is_over: bool,
}

impl Source for Stream {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        if self.is_over {
            return None;
        }
        let event = match self.started.take() {
            Some(started) => started,
            None => match self.running.next().await {
                Some(event) => told(event),
                None => CodeEvent::Failed { problem: broken_off().0.as_ref().clone() },
            },
        };
        self.is_over = matches!(event, CodeEvent::Ended { .. } | CodeEvent::Failed { .. });
        self.number += 1;
        Some(sse::json(self.number.to_string(), event.name(), &event))
    }
}

fn told(event: runtime::CodeEvent) -> CodeEvent {
    match event {
        runtime::CodeEvent::Output { stream: OutputStream::Stdout, text } => CodeEvent::Stdout { text },
        runtime::CodeEvent::Output { stream: OutputStream::Stderr, text } => CodeEvent::Stderr { text },
        runtime::CodeEvent::Result(result) => CodeEvent::Result { result: shown_result(result) },
        runtime::CodeEvent::Error(error) => CodeEvent::Error { error: raised(error) },
        runtime::CodeEvent::Ended { status, count } => CodeEvent::Ended { status, execution_count: count },
        runtime::CodeEvent::Failed(fault) => CodeEvent::Failed { problem: *Refusal::from(fault).0 },
    }
}

/// Everything of an execution, as far as it fits.
async fn whole(mut running: Running) -> Result<CodeExecution, Refusal> {
    let mut ended = CodeExecution {
        context_id: running.context.clone(),
        language: running.language,
        status: CodeStatus::Died,
        execution_count: None,
        stdout: String::new(),
        stderr: String::new(),
        stdout_dropped_bytes: 0,
        stderr_dropped_bytes: 0,
        results: Vec::new(),
        results_dropped: 0,
        error: None,
    };
    let mut length = 0;
    loop {
        match running.next().await.ok_or_else(broken_off)? {
            runtime::CodeEvent::Output { stream: OutputStream::Stdout, text } => {
                ended.stdout_dropped_bytes += keep_end(&mut ended.stdout, &text);
            }
            runtime::CodeEvent::Output { stream: OutputStream::Stderr, text } => {
                ended.stderr_dropped_bytes += keep_end(&mut ended.stderr, &text);
            }
            runtime::CodeEvent::Result(result) => {
                length += result.formats.values().map(|value| value.get().len()).sum::<usize>();
                match length <= RESULTS_MAX {
                    true => ended.results.push(shown_result(result)),
                    false => ended.results_dropped += 1,
                }
            }
            // The last one says most: the process may die after an error.
            runtime::CodeEvent::Error(error) => ended.error = Some(raised(error)),
            runtime::CodeEvent::Ended { status, count } => {
                return Ok(CodeExecution { status, execution_count: count, ..ended });
            }
            runtime::CodeEvent::Failed(fault) => return Err(fault.into()),
        }
    }
}

/// Appends, and returns how many bytes were dropped for it.
fn keep_end(kept: &mut String, text: &str) -> u64 {
    kept.push_str(text);
    let excess = kept.len().saturating_sub(OUTPUT_MAX);
    let excess = (excess..=kept.len()).find(|at| kept.is_char_boundary(*at)).unwrap_or(kept.len());
    kept.drain(..excess);
    excess as u64
}

fn shown(sandbox_id: SandboxId, context: Context) -> CodeContext {
    CodeContext {
        id: context.id,
        sandbox_id,
        language: context.language,
        cwd: context.cwd,
        default: context.is_default,
        exec_id: context.exec,
        started_at: Timestamp::from_millis(context.started_ms),
    }
}

fn shown_result(result: runtime::CodeResult) -> ShownResult {
    ShownResult { main: result.is_main, formats: CodeFormats(result.formats) }
}

fn raised(error: runtime::CodeError) -> RaisedError {
    let runtime::CodeError { name, value, traceback } = error;
    RaisedError { name, value, traceback }
}

fn broken_off() -> Refusal {
    let what = "the response was read too slowly, and the code was interrupted";
    Refusal::new(Code::Timeout, what, "read the stream as it comes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_kept_in_whole_characters() {
        let mut kept = String::new();
        let dropped = keep_end(&mut kept, &"é".repeat(OUTPUT_MAX));
        assert_eq!((kept.len(), dropped), (OUTPUT_MAX, OUTPUT_MAX as u64));
        assert_eq!(keep_end(&mut kept, "x"), 2);
        assert!(kept.ends_with("éx"));
    }
}
