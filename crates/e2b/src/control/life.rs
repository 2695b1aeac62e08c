//! The life of a sandbox as E2B's clients steer it.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use saggar_api::{Code, SandboxState};
use saggar_domain::SandboxState as Stored;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Kill, Read};
use saggar_http::extract::Json;
use saggar_http::wire;
use saggar_runtime::{NewTerms, Patch};
use saggar_supervisor::control::State as Held;
use serde::Deserialize;

use super::create::without_memory;
use super::info::{self, Name};
use crate::id;
use crate::state::Shared;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Asked {
    /// Seconds from now.
    timeout: Option<u64>,
    /// As older clients call it.
    duration: Option<u64>,
    memory: Option<bool>,
    auto_pause: Option<bool>,
}

/// Ends a sandbox.
pub(super) async fn kill(
    allowed: Allowed<Kill>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<StatusCode, Refusal> {
    let row = server.sandboxes.get(&readable.permit).await?;
    if row.life.state() == Stored::Ended {
        return Err(Refusal::not_found("sandbox", id::short(&row.asked.id)));
    }
    server.sandboxes.kill(&allowed.permit).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What holds for a sandbox, with another time to live.
async fn terms(server: &Shared, allowed: &Allowed<Change>, seconds: u64) -> Result<NewTerms, Refusal> {
    let lifetime = server.sandboxes.current(&allowed.permit).await?.asked.lifetime;
    Ok(NewTerms { ttl: Duration::from_secs(seconds), then: lifetime.on_deadline, idle_timeout: lifetime.idle_timeout })
}

/// Gives a sandbox another time to live, from now.
pub(super) async fn set_timeout(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(asked): Json<Asked>,
) -> Result<StatusCode, Refusal> {
    let seconds = asked.timeout.ok_or_else(|| Refusal::invalid("timeout is missing", "give it in seconds"))?;
    let terms = Some(terms(&server, &allowed, seconds).await?);
    server.sandboxes.patch(&allowed.permit, Patch { terms, ..Patch::default() }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives a sandbox more time, never less.
pub(super) async fn refresh(
    allowed: Allowed<Change>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    Json(asked): Json<Asked>,
) -> Result<StatusCode, Refusal> {
    let seconds = asked.duration.or(asked.timeout).unwrap_or(server.settings.default_ttl.as_secs());
    prolong(&server, &allowed, &readable, seconds).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn prolong(
    server: &Shared,
    allowed: &Allowed<Change>,
    readable: &Allowed<Read>,
    seconds: u64,
) -> Result<(), Refusal> {
    let left = server.sandboxes.describe(&readable.permit).await?.ttl_left_ms;
    if left.is_some_and(|left| left < seconds.saturating_mul(1000)) {
        let terms = Some(terms(server, allowed, seconds).await?);
        server.sandboxes.patch(&allowed.permit, Patch { terms, ..Patch::default() }).await?;
    }
    Ok(())
}

/// Freezes a sandbox.
pub(super) async fn pause(
    allowed: Allowed<Change>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    Json(asked): Json<Asked>,
) -> Result<StatusCode, Refusal> {
    if asked.memory == Some(false) {
        return Err(without_memory());
    }
    let description = server.sandboxes.describe(&readable.permit).await?;
    if description.state == Held::Paused {
        return Err(Refusal::new(
            Code::Conflict,
            format!("sandbox {} is paused already", id::short(&description.sandbox_id)),
            "",
        ));
    }
    server.sandboxes.pause(&allowed.permit).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Opens a sandbox again: resumed if it sleeps, and with at least so much time.
pub(super) async fn connect(
    allowed: Allowed<Change>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    name: Name,
    Json(asked): Json<Asked>,
) -> Result<Response, Refusal> {
    if asked.memory == Some(false) {
        return Err(without_memory());
    }
    let seconds = asked.timeout.unwrap_or(server.settings.default_ttl.as_secs());
    let description = server.sandboxes.describe(&readable.permit).await?;
    let status = match description.state {
        Held::Paused => {
            let terms = terms(&server, &allowed, seconds).await?;
            server.sandboxes.resume(&allowed.permit, Some(terms)).await?;
            StatusCode::CREATED
        }
        Held::Running | Held::Ending => {
            prolong(&server, &allowed, &readable, seconds).await?;
            StatusCode::OK
        }
    };
    answer(&server, &readable, &name, status).await
}

/// Resumes a sandbox that sleeps, as clients asked before.
pub(super) async fn resume(
    allowed: Allowed<Change>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    name: Name,
    Json(asked): Json<Asked>,
) -> Result<Response, Refusal> {
    let description = server.sandboxes.describe(&readable.permit).await?;
    if description.state != Held::Paused {
        return Err(Refusal::new(
            Code::Conflict,
            format!("sandbox {} is running already", id::short(&description.sandbox_id)),
            "",
        ));
    }
    let mut terms = terms(&server, &allowed, asked.timeout.unwrap_or(server.settings.default_ttl.as_secs())).await?;
    if let Some(is_paused) = asked.auto_pause {
        terms.then =
            wire::deadline_action(if is_paused { saggar_api::OnTimeout::Pause } else { saggar_api::OnTimeout::Kill });
    }
    server.sandboxes.resume(&allowed.permit, Some(terms)).await?;
    answer(&server, &readable, &name, StatusCode::CREATED).await
}

async fn answer(
    server: &Shared,
    readable: &Allowed<Read>,
    name: &Name,
    status: StatusCode,
) -> Result<Response, Refusal> {
    let sandbox = wire::sandbox(server.sandboxes.get(&readable.permit).await?, Vec::new())?;
    if sandbox.state == SandboxState::Ended {
        return Err(Refusal::not_found("sandbox", id::short(&sandbox.id)));
    }
    Ok((status, axum::Json(info::opened(server, name, &sandbox))).into_response())
}
