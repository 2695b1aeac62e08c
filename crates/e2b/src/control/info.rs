//! Sandboxes in the form of E2B's API, and their usage.

use std::collections::BTreeSet;

use axum::extract::{FromRequestParts, State};
use http::header::HOST;
use http::request::Parts;
use saggar_api::{Sandbox, SandboxState, SandboxVolume, Timestamp};
use saggar_domain::{NetworkMode, SandboxId};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Read, SandboxReader};
use saggar_http::extract::Query;
use saggar_http::live::Seen;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::egress;
use crate::state::{E2b, Shared};
use crate::{id, metrics};

/// The version of E2B's agent whose protocol is implemented: clients avoid features that older ones lack.
pub(super) const ENVD_VERSION: &str = "0.6.4";
/// The machine in E2B's cluster: there is only one.
const CLIENT_ID: &str = "saggar";

/// Sandboxes whose usage is told at once.
const MANY_MAX: usize = 100;

/// A sandbox, for a client that may open it.
pub(super) fn opened(server: &E2b, name: &Name, sandbox: &Sandbox) -> Value {
    let mut shown = json!({
        "sandboxID": id::short(&sandbox.id),
        "templateID": sandbox.spec.template.as_str(),
        "alias": sandbox.spec.template.as_str(),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": server.sandboxes.inside_token(&sandbox.id),
        "domain": domain(server, name),
    });
    if !sandbox.ports.every {
        shown["trafficAccessToken"] = json!(server.sandboxes.access_token(&sandbox.id));
    }
    shown
}

/// The client's name for this server.
pub(super) struct Name(String);

impl<S: Sync> FromRequestParts<S> for Name {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(parts.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned()))
    }
}

impl Name {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The domain of the sandboxes' ports, derived from the address that the client used, including its port.
pub(super) fn domain(server: &E2b, name: &Name) -> String {
    let port =
        name.0.rsplit_once(':').map(|(_, port)| port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match port {
        Some(port) => format!("{}:{port}", server.settings.domain),
        None => server.settings.domain.clone(),
    }
}

/// One that is paused has no time that runs; here it is told when it would have ended, the same at every look.
pub(super) fn with_end(seen: Seen) -> Sandbox {
    Sandbox { deadline: seen.sandbox.deadline.or(seen.end), ..seen.sandbox }
}

/// A sandbox in a list.
pub(super) fn listed(sandbox: &Sandbox) -> Value {
    let started_at = sandbox.started_at.unwrap_or(sandbox.created_at);
    let metadata: Map<String, Value> =
        sandbox.labels.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mount = |volume: &SandboxVolume| json!({ "name": volume.name, "path": volume.at });
    let mounts: Vec<Value> = sandbox.spec.volumes.iter().map(mount).collect();
    json!({
        "sandboxID": id::short(&sandbox.id),
        "templateID": sandbox.spec.template.as_str(),
        "alias": sandbox.spec.template.as_str(),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "startedAt": started_at,
        "endAt": sandbox.deadline.unwrap_or(started_at),
        "cpuCount": metrics::cpu_count(sandbox.spec.limits.cpus),
        "memoryMB": sandbox.spec.limits.memory.bytes() >> 20,
        "diskSizeMB": sandbox.spec.limits.disk.bytes() >> 20,
        "state": state(sandbox.state),
        "metadata": metadata,
        "volumeMounts": mounts,
    })
}

fn state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Paused => "paused",
        SandboxState::Creating | SandboxState::Running | SandboxState::Ending | SandboxState::Ended => "running",
    }
}

pub(super) async fn get(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
    name: Name,
) -> Result<axum::Json<Value>, Refusal> {
    let sandbox = live(&server, &allowed).await?;
    let mut shown = listed(&sandbox);
    if let (Value::Object(shown), Value::Object(more)) = (&mut shown, opened(&server, &name, &sandbox)) {
        shown.extend(more);
    }
    shown["lifecycle"] =
        json!({ "autoResume": sandbox.auto_resume, "onTimeout": sandbox.on_timeout.of_supervisor().as_str() });
    let egress = sandbox.spec.egress.unwrap_or_default();
    let is_open = egress::allows_everything(&egress.allow);
    shown["allowInternetAccess"] = json!(sandbox.spec.network == NetworkMode::Host || is_open);
    shown["network"] = json!({ "allowPublicTraffic": sandbox.ports.every });
    if sandbox.spec.network == NetworkMode::Proxied {
        let (allow, deny) = egress::shown(&egress.allow, &egress.deny);
        shown["network"]["allowOut"] = json!(allow);
        shown["network"]["denyOut"] = json!(deny);
    }
    if let Some(host) = sandbox.ports.host {
        shown["network"]["maskRequestHost"] = json!(host);
    }
    Ok(axum::Json(shown))
}

/// A live sandbox in its current state.
async fn live(server: &Shared, allowed: &Allowed<Read>) -> Result<Sandbox, Refusal> {
    let seen = server.look(&allowed.permit).await?;
    if seen.sandbox.state == SandboxState::Ended {
        return Err(Refusal::not_found("sandbox", id::short(&seen.sandbox.id)));
    }
    Ok(with_end(seen))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Span {
    start: Option<u64>,
    end: Option<u64>,
}

/// The usage of a sandbox.
pub(super) async fn metrics(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
    Query(span): Query<Span>,
) -> Result<axum::Json<Value>, Refusal> {
    live(&server, &allowed).await?;
    let is_wanted = |at_ms: u64| {
        let at = at_ms / 1000;
        span.start.is_none_or(|start| at >= start) && span.end.is_none_or(|end| at <= end)
    };
    let used = metrics::all(&server, &allowed.permit).await?;
    let used: Vec<Value> = used.into_iter().filter(|used| is_wanted(used.at_ms)).map(shown).collect();
    Ok(axum::Json(json!(used)))
}

fn shown(used: metrics::Used) -> Value {
    json!({
        "timestamp": Timestamp::from_millis(used.at_ms),
        "timestampUnix": used.at_ms / 1000,
        "cpuCount": used.cpu_count,
        "cpuUsedPct": used.cpu_used_pct,
        "memUsed": used.mem_used,
        "memTotal": used.mem_total,
        "memCache": 0,
        "diskUsed": used.disk_used,
        "diskTotal": used.disk_total,
    })
}

#[derive(Debug, Deserialize)]
pub(super) struct Many {
    /// Separated by commas.
    sandbox_ids: String,
}

/// The current usage of many sandboxes, by id. Those that aren't there are left out.
pub(super) async fn metrics_of_many(
    reader: SandboxReader,
    State(server): State<Shared>,
    Query(Many { sandbox_ids }): Query<Many>,
) -> Result<axum::Json<Value>, Refusal> {
    let ids: BTreeSet<&str> = sandbox_ids.split(',').map(str::trim).filter(|id| !id.is_empty()).collect();
    if ids.len() > MANY_MAX {
        return Err(Refusal::invalid(format!("more than {MANY_MAX} sandboxes at once"), "ask for fewer"));
    }
    let mut sandboxes = Map::new();
    for short in ids {
        let Some(id) = SandboxId::parse(&format!("sbx_{short}")) else { continue };
        // One that ended a moment ago is no reason to tell nothing about the others.
        let Ok(used) = metrics::now(&server, &reader.permit(id)?).await else { continue };
        sandboxes.insert(short.to_owned(), shown(used));
    }
    Ok(axum::Json(json!({ "sandboxes": sandboxes })))
}
