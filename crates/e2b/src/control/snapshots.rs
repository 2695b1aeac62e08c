//! Snapshots and forks for E2B's clients. Theirs may keep memory and processes; on this tier they have the files alone, and one that asks
//! for memory is refused.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode};
use saggar_api::Code;
use saggar_domain::{SnapshotId, TemplateName};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Create};
use saggar_http::extract::{Json, Query};
use saggar_http::live;
use saggar_http::wire;
use saggar_runtime::{Created, Fault, ForkOptions, SNAPSHOTS, SnapshotQuery, SnapshotView, TakeSnapshot};
use serde::Deserialize;
use serde_json::{Value, json};

use super::info::{self, Name};
use super::templates::named;
use super::words::{status, unsupported};
use crate::id;
use crate::state::Shared;

/// The header that E2B's clients read the next page's token from.
const NEXT_TOKEN: &str = "x-next-token";
/// Default page size.
const PAGE_DEFAULT: u32 = 100;

saggar_http::wanted! {
    /// Lists and removes snapshots.
    Manage => Manage(SNAPSHOTS);
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    name: Option<String>,
    memory: Option<bool>,
}

pub(super) async fn take(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(asked): Json<Asked>,
) -> Result<Response, Refusal> {
    if asked.memory == Some(true) {
        return Err(unsupported(
            "a snapshot with memory is not supported on this tier",
            "take one of the filesystem, which is the default here",
        ));
    }
    let name = asked.name.as_deref().filter(|name| !name.is_empty()).map(as_name).transpose()?;
    let taken = server.sandboxes.take_snapshot(&allowed.permit, TakeSnapshot { name, ..TakeSnapshot::default() });
    Ok((StatusCode::CREATED, axum::Json(shown(&taken.await?))).into_response())
}

fn as_name(text: &str) -> Result<TemplateName, Refusal> {
    let wrong = || {
        let shown: String = text.chars().take(64).collect();
        Refusal::invalid(format!("{shown:?} can't be a snapshot's name"), "use letters, digits, '.', '_' and '-'")
    };
    named(text).ok_or_else(wrong)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Listed {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    name: Option<String>,
    limit: Option<u32>,
    next_token: Option<String>,
}

/// A page of snapshots, newest first. The token of the next page is the last id of this one.
pub(super) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(asked): Query<Listed>,
) -> Result<Response, Refusal> {
    let limit = asked.limit.unwrap_or(PAGE_DEFAULT);
    live::page_limit(Some(limit))?;
    let nothing = || axum::Json(Vec::<Value>::new()).into_response();
    let mut query = SnapshotQuery::default();
    if let Some(short) = &asked.sandbox_id {
        // What is no id has no snapshots.
        let Some(sandbox) = id::long(short) else { return Ok(nothing()) };
        query.sandbox = Some(sandbox);
    }
    if let Some(name) = &asked.name {
        let Some(name) = named(name) else { return Ok(nothing()) };
        query.name = Some(name);
    }
    let mut all = server.sandboxes.snapshots(&allowed.permit, query).await?;
    all.reverse();
    let begin = match &asked.next_token {
        None => 0,
        Some(token) => {
            let wrong = || Refusal::invalid("the token of the next page is invalid", "pass it unchanged");
            SnapshotId::parse(token).ok_or_else(wrong)?;
            all.iter().position(|view| view.id().as_str() == token).map_or(all.len(), |at| at + 1)
        }
    };
    let page: Vec<&SnapshotView> = all[begin..].iter().take(limit as usize).collect();
    let next = page.last().filter(|_| begin + page.len() < all.len()).map(|view| view.id().to_string());
    let mut response = axum::Json(page.into_iter().map(shown).collect::<Vec<Value>>()).into_response();
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, next);
    }
    Ok(response)
}

fn shown(view: &SnapshotView) -> Value {
    let names: Vec<&str> = view.record.facts.name.iter().map(TemplateName::as_str).collect();
    json!({ "snapshotID": view.record.id, "names": names })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AskedForks {
    count: Option<u32>,
    /// Seconds.
    timeout: Option<u64>,
}

pub(super) async fn fork(
    allowed: Allowed<Change>,
    create: Allowed<Create>,
    State(server): State<Shared>,
    name: Name,
    Json(asked): Json<AskedForks>,
) -> Result<Response, Refusal> {
    let options =
        ForkOptions { count: asked.count.unwrap_or(1), ttl: asked.timeout.map(std::time::Duration::from_secs) };
    let forked = server.sandboxes.fork(&allowed.permit, &create.permit, options).await?;
    let items: Vec<Value> = forked.forks.into_iter().map(|fork| outcome(&server, &name, fork)).collect();
    Ok((StatusCode::CREATED, axum::Json(items)).into_response())
}

fn outcome(server: &Shared, name: &Name, fork: Result<Created, Fault>) -> Value {
    let made = fork.map_err(Refusal::from).and_then(|created| wire::sandbox(created.sandbox, Vec::new()));
    match made {
        Ok(sandbox) => json!({ "sandbox": info::opened(server, name, &sandbox) }),
        Err(Refusal(problem)) => {
            json!({ "error": { "code": status(&problem).as_u16(), "message": problem.detail } })
        }
    }
}

/// Removes a snapshot, which E2B's clients know as a template.
pub(super) async fn remove(allowed: &Allowed<Manage>, server: &Shared, id: &SnapshotId) -> Result<StatusCode, Refusal> {
    let removed = server.sandboxes.remove_snapshot(&allowed.permit, id).await;
    removed.map_err(|fault| match fault {
        Fault::NotFound { .. } => Refusal::new(Code::NotFound, format!("template '{id}' not found"), ""),
        other => other.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}
