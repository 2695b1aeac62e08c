//! The lifecycle of a sandbox for E2B's clients.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use saggar_api::Code;
use saggar_domain::{DeadlineAction, SandboxState};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Kill, Read};
use saggar_http::extract::Json;
use saggar_http::wire;
use saggar_runtime::{Keep, NewTerms, Patch};
use serde::Deserialize;

use super::info::{self, Name};
use crate::id;
use crate::state::Shared;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Asked {
    /// Seconds from now.
    timeout: Option<u64>,
    /// The name in older clients.
    duration: Option<u64>,
    memory: Option<bool>,
    auto_pause: Option<bool>,
}

pub(super) async fn kill(
    allowed: Allowed<Kill>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<StatusCode, Refusal> {
    let row = server.sandboxes.get(&readable.permit).await?;
    if row.life.state() == SandboxState::Ended {
        return Err(Refusal::not_found("sandbox", id::short(&row.asked.id)));
    }
    server.sandboxes.kill(&allowed.permit).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The sandbox's terms with another lifetime.
async fn terms(server: &Shared, allowed: &Allowed<Change>, seconds: u64) -> Result<NewTerms, Refusal> {
    let lifetime = server.sandboxes.current(&allowed.permit).await?.asked.lifetime;
    Ok(NewTerms { ttl: Duration::from_secs(seconds), then: lifetime.on_deadline, idle_timeout: lifetime.idle_timeout })
}

/// Sets the remaining lifetime of a sandbox.
pub(super) async fn set_timeout(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(asked): Json<Asked>,
) -> Result<StatusCode, Refusal> {
    let seconds = asked.timeout.ok_or_else(|| Refusal::invalid("timeout is missing", "set it in seconds"))?;
    let terms = Some(terms(&server, &allowed, seconds).await?);
    server.sandboxes.patch(&allowed.permit, Patch { terms, ..Patch::default() }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Extends the lifetime of a sandbox, never shortens it.
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

pub(super) async fn pause(
    allowed: Allowed<Change>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    Json(asked): Json<Asked>,
) -> Result<StatusCode, Refusal> {
    let description = server.sandboxes.describe(&readable.permit).await?;
    if description.state == SandboxState::Paused {
        return Err(Refusal::new(
            Code::Conflict,
            format!("sandbox {} is already paused", id::short(&description.sandbox_id)),
            "",
        ));
    }
    let keep = if asked.memory == Some(false) { Keep::Files } else { Keep::Memory };
    server.sandboxes.pause(&allowed.permit, keep).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Opens a sandbox again: resumes it if paused, with at least this lifetime.
pub(super) async fn connect(
    allowed: Allowed<Change>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    name: Name,
    Json(asked): Json<Asked>,
) -> Result<Response, Refusal> {
    let seconds = asked.timeout.unwrap_or(server.settings.default_ttl.as_secs());
    let description = server.sandboxes.describe(&readable.permit).await?;
    let status = match description.state {
        SandboxState::Paused => {
            // Its files are to be used without what is in its memory.
            if asked.memory == Some(false) {
                server.sandboxes.pause(&allowed.permit, Keep::Files).await?;
            }
            let terms = terms(&server, &allowed, seconds).await?;
            server.sandboxes.resume(&allowed.permit, Some(terms)).await?;
            StatusCode::CREATED
        }
        SandboxState::Creating | SandboxState::Running | SandboxState::Ending | SandboxState::Ended => {
            prolong(&server, &allowed, &readable, seconds).await?;
            StatusCode::OK
        }
    };
    answer(&server, &readable, &name, status).await
}

/// Resumes a paused sandbox, for older clients.
pub(super) async fn resume(
    allowed: Allowed<Change>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    name: Name,
    Json(asked): Json<Asked>,
) -> Result<Response, Refusal> {
    let description = server.sandboxes.describe(&readable.permit).await?;
    if description.state != SandboxState::Paused {
        return Err(Refusal::new(
            Code::Conflict,
            format!("sandbox {} is already running", id::short(&description.sandbox_id)),
            "",
        ));
    }
    let mut terms = terms(&server, &allowed, asked.timeout.unwrap_or(server.settings.default_ttl.as_secs())).await?;
    if let Some(is_paused) = asked.auto_pause {
        terms.then = match (is_paused, terms.then) {
            (true, DeadlineAction::Rest) => DeadlineAction::Rest,
            (true, DeadlineAction::Pause | DeadlineAction::Kill) => DeadlineAction::Pause,
            (false, _) => DeadlineAction::Kill,
        };
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
