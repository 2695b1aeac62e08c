//! The wires of models: unmodified clients of OpenAI and Anthropic reach the gateway with a project's key.
//!
//! Makes no decisions: it authenticates, reads a bounded body, hands it to the gateway, and writes what comes back. Every error has the
//! form of the client's own provider.

mod answer;
mod failed;
pub(crate) mod inside;
mod list;
mod room;

use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use http::request::Parts;
use saggar_gateway::{Ask, Caller, ClientWire, Failure, FailureKind};
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::context::Peer;
use saggar_http::extract::whole;
use saggar_http::listen::Caller as Origin;

use saggar_runtime::Permit;

use self::room::{Held, Whose};
use crate::server::Shared;

pub(crate) use self::room::Room;

/// Maximum size of a request, in bytes. It may have images.
const BODY_BYTES_MAX: usize = 32 << 20;
/// How long one may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(120);

saggar_http::wanted! {
    /// Calls models.
    Use => Manage(saggar_runtime::MODELS);
}

/// People mix up the base URLs of the two kinds of clients: with `/v1`, without it, and twice.
const BASES: [&str; 3] = ["/v1", "", "/v1/v1"];

pub(crate) fn router() -> Router<Shared> {
    let mut router = Router::new();
    for base in BASES {
        router = router
            .route(&format!("{base}/chat/completions"), post(chat))
            .route(&format!("{base}/responses"), post(responses))
            .route(&format!("{base}/responses/input_tokens"), post(count_responses))
            .route(&format!("{base}/messages"), post(messages))
            .route(&format!("{base}/messages/count_tokens"), post(count_messages))
            .route(&format!("{base}/models"), get(list::all))
            .route(&format!("{base}/models/{{*model}}"), get(list::one))
            .route(&format!("{base}/embeddings"), any(not_built))
            .route(&format!("{base}/responses/{{id}}"), any(not_built))
            .route(&format!("{base}/messages/batches"), any(not_built_messages));
    }
    router
}

async fn chat(State(server): State<Shared>, request: Request) -> Response {
    reply(server, ClientWire::Chat, request).await
}

async fn responses(State(server): State<Shared>, request: Request) -> Response {
    reply(server, ClientWire::Responses, request).await
}

async fn messages(State(server): State<Shared>, request: Request) -> Response {
    reply(server, ClientWire::Anthropic, request).await
}

async fn count_responses(State(server): State<Shared>, request: Request) -> Response {
    count(server, ClientWire::Responses, request).await
}

async fn count_messages(State(server): State<Shared>, request: Request) -> Response {
    count(server, ClientWire::Anthropic, request).await
}

async fn not_built(request: Request) -> Response {
    refuse(ClientWire::Chat, &request)
}

async fn not_built_messages(request: Request) -> Response {
    refuse(ClientWire::Anthropic, &request)
}

fn refuse(wire: ClientWire, request: &Request) -> Response {
    let message =
        format!("{} is not built yet: only replies, counting and listing of models are", request.uri().path());
    failed::answer(wire, &Failure::new(FailureKind::NotFound, message))
}

async fn reply(server: Shared, wire: ClientWire, request: Request) -> Response {
    let replied = async {
        let (caller, ask, held) = asked(&server, wire, request).await?;
        Ok((Box::pin(server.models.answer(caller, ask)).await?, held))
    };
    match replied.await {
        Ok((reply, held)) => held.until_sent(answer::answer(wire, reply)),
        Err(failure) => failed::answer(wire, &failure),
    }
}

async fn count(server: Shared, wire: ClientWire, request: Request) -> Response {
    let counted = async {
        let (caller, ask, _held) = asked(&server, wire, request).await?;
        Box::pin(server.models.count_tokens(caller, ask)).await
    };
    match counted.await {
        Ok(tokens) => {
            let mut body = serde_json::json!({ "input_tokens": tokens });
            if wire == ClientWire::Responses {
                body["object"] = "response.input_tokens".into();
            }
            axum::Json(body).into_response()
        }
        Err(failure) => failed::answer(wire, &failure),
    }
}

/// Who asks, and what. Nothing of the body is read for a client without a key, or without room for it.
async fn asked(server: &Shared, wire: ClientWire, request: Request) -> Result<(Caller, Ask, Held), Failure> {
    let (mut parts, body) = request.into_parts();
    let (caller, _) = caller(server, &mut parts).await?;
    let whose = Whose::Project(caller.project.clone());
    let mut held = server.model_room.take(&whose, &parts.headers, body.is_end_stream()).await?;
    let slow = |_elapsed| Failure::new(FailureKind::Timeout, "the body did not arrive in time; send it faster");
    let body = tokio::time::timeout(BODY_PATIENCE, whole(body, BODY_BYTES_MAX)).await.map_err(slow)?;
    let body = body.map_err(|refusal: Refusal| failed::of(&refusal))?;
    held.shrink(body.len());
    Ok((caller, Ask { wire, headers: parts.headers, body }, held))
}

/// Who asks: a program in a sandbox, which has no permit, or the holder of a key.
async fn caller(server: &Shared, parts: &mut Parts) -> Result<(Caller, Option<Permit>), Failure> {
    if let Some(Origin::Sandbox(id)) = parts.extensions.get::<Peer>().map(|peer| peer.caller.clone()) {
        return Ok((inside::caller(server, &id, &parts.headers).await?, None));
    }
    let allowed = Allowed::<Use>::from_request_parts(parts, server).await;
    let allowed = allowed.map_err(|refusal| failed::of(&refusal))?;
    Ok((Caller::project(allowed.permit.project().clone()), Some(allowed.permit)))
}
