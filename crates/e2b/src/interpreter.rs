//! Answers the requests for the code interpreter of an E2B sandbox: `/execute` and `/contexts` on port 49999.
//!
//! E2B's clients show the token of the sandbox's inside only to run code. Contexts are managed as what listens on the
//! port: by whoever may use the port.

mod lines;

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Method, StatusCode};
use saggar_domain::{CodeLanguage, ContextId, SandboxId};
use saggar_http::access::{self, Insider};
use saggar_http::extract;
use saggar_runtime::{Action, CODE_BYTES_MAX, Context, Fault, NewContext, Place, RunCode};
use serde::Deserialize;
use serde_json::json;

use crate::connect::Actor;
use crate::failure::{CallFailure, Code};
use crate::process::environment;
use crate::routing::INTERPRETER_PORT;
use crate::state::Shared;
use crate::{connect, id, token};

/// Maximum size of a request: the code, escaped as JSON, and variables.
const REQUEST_MAX: usize = 2 * CODE_BYTES_MAX + (1 << 20);

#[derive(Deserialize)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Create {
    language: Option<String>,
    cwd: Option<String>,
}

pub(super) async fn serve(server: Shared, request: Request, id: SandboxId) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().trim_end_matches('/').to_owned();
    let names: Vec<&str> = path.split('/').skip(1).collect();
    let outcome = match (&parts.method, names.as_slice()) {
        (&Method::GET | &Method::HEAD, ["health"]) => health(&server, &id).await,
        (&Method::POST, ["execute"]) => execute(&server, &parts, body, &id).await,
        (&Method::POST, ["contexts"]) => create(&server, &parts, body, &id).await,
        (&Method::GET, ["contexts"]) => list(&server, &parts, &id).await,
        (&Method::DELETE, ["contexts", context]) => remove(&server, &parts, &id, context).await,
        (&Method::POST, ["contexts", context, "restart"]) => restart(&server, &parts, &id, context).await,
        _ => Err(CallFailure::new(Code::NotFound, "this path does not exist")),
    };
    outcome.unwrap_or_else(|failure| failure.plain())
}

async fn health(server: &Shared, id: &SandboxId) -> Result<Response, CallFailure> {
    let inside = access::inside(server, id).ok_or_else(|| CallFailure::gone(id::short(id)))?;
    server.sandboxes.check_runs(&inside.may_be_looked_at()?).await?;
    Ok("OK".into_response())
}

async fn execute(server: &Shared, parts: &Parts, body: Body, id: &SandboxId) -> Result<Response, CallFailure> {
    let insider = token::insider(server, &parts.headers, id)?;
    let permit = insider.may(Action::Exec)?;
    let held = server.sandboxes.room_for_code(&permit, extract::length(&body, REQUEST_MAX))?;
    let Execute { code, context_id, language, env_vars } = asked(body).await?;
    let place = match (context_id.as_deref(), language.as_deref()) {
        (Some(_), Some(_)) => {
            return Err(CallFailure::invalid("Only one of context_id or language can be provided"));
        }
        (Some(context), None) => Place::Context(named(context)?),
        (None, language) => Place::Default(language_named(language)?, BTreeMap::new()),
    };
    let template = server.sandboxes.template_of(&permit);
    let env = environment(id, template.name(), env_vars.unwrap_or_default());
    let running = server.sandboxes.run_arrived_code(&permit, RunCode { code, place, env, timeout: None }, held).await;
    Ok(lines::answer(server.clone(), running.map_err(in_their_words)?))
}

async fn create(server: &Shared, parts: &Parts, body: Body, id: &SandboxId) -> Result<Response, CallFailure> {
    let insider = manager(server, parts, id).await?;
    let Create { language, cwd } = asked(body).await?;
    let permit = insider.may(Action::Exec)?;
    let cwd = match cwd.filter(|cwd| !cwd.is_empty()) {
        None => None,
        Some(cwd) => Some(crate::filesystem::place(&cwd, &Actor::of(server, &permit, None)?.home)?.to_string()),
    };
    let new = NewContext { language: language_named(language.as_deref())?, cwd, env: BTreeMap::new() };
    let context = server.sandboxes.create_context(&permit, new).await.map_err(in_their_words)?;
    Ok(Json(shown(&context)).into_response())
}

async fn list(server: &Shared, parts: &Parts, id: &SandboxId) -> Result<Response, CallFailure> {
    let permit = manager(server, parts, id).await?.may(Action::ReadSandbox)?;
    let contexts = server.sandboxes.contexts_of(&permit).await?;
    Ok(Json(contexts.iter().map(shown).collect::<Vec<_>>()).into_response())
}

async fn remove(server: &Shared, parts: &Parts, id: &SandboxId, context: &str) -> Result<Response, CallFailure> {
    let permit = manager(server, parts, id).await?.may(Action::Exec)?;
    server.sandboxes.remove_context(&permit, &named(context)?).await.map_err(in_their_words)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn restart(server: &Shared, parts: &Parts, id: &SandboxId, context: &str) -> Result<Response, CallFailure> {
    let permit = manager(server, parts, id).await?.may(Action::Exec)?;
    let context = server.sandboxes.restart_context(&permit, &named(context)?).await.map_err(in_their_words)?;
    Ok(Json(shown(&context)).into_response())
}

/// One who may manage contexts.
async fn manager(server: &Shared, parts: &Parts, id: &SandboxId) -> Result<Insider, CallFailure> {
    if let Ok(insider) = token::insider(server, &parts.headers, id) {
        return Ok(insider);
    }
    let inside = access::inside(server, id).ok_or_else(|| CallFailure::gone(id::short(id)))?;
    Ok(inside.by_port(server, &parts.headers, INTERPRETER_PORT).await?)
}

async fn asked<T: serde::de::DeserializeOwned>(body: Body) -> Result<T, CallFailure> {
    let body = connect::in_time(async { Ok(extract::whole(body, REQUEST_MAX).await?) }).await?;
    connect::read(&body)
}

fn language_named(name: Option<&str>) -> Result<CodeLanguage, CallFailure> {
    let name = name.unwrap_or("python").to_ascii_lowercase();
    let name = match name.as_str() {
        "js" => "javascript",
        "ts" => "typescript",
        "sh" => "bash",
        other => other,
    };
    CodeLanguage::parse(name).ok_or_else(|| {
        let name: String = name.chars().take(64).collect();
        let known: Vec<&str> = CodeLanguage::ALL.iter().map(|language| language.as_str()).collect();
        CallFailure::invalid(format!("the language {name:?} is not supported: use one of {}", known.join(", ")))
    })
}

fn named(context: &str) -> Result<ContextId, CallFailure> {
    ContextId::parse(context).ok_or_else(|| no_context(context))
}

fn no_context(context: &str) -> CallFailure {
    let context: String = context.chars().take(64).collect();
    CallFailure::new(Code::NotFound, format!("Context {context} not found"))
}

fn in_their_words(fault: Fault) -> CallFailure {
    match fault {
        Fault::NotFound { what: "code context", id } => no_context(&id),
        other => {
            let failure = CallFailure::from(other);
            // Clients take some numbers for the end of the sandbox.
            match failure {
                CallFailure::Said { code: Code::DeadlineExceeded, message } => CallFailure::invalid(message),
                other => other,
            }
        }
    }
}

fn shown(context: &Context) -> serde_json::Value {
    json!({ "id": context.id, "language": context.language, "cwd": context.cwd })
}
