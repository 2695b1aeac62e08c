//! Creates a sandbox for E2B's clients.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use saggar_domain::{DeadlineAction, Draft, Ingress, PublicPorts, TemplateName};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Create};
use saggar_http::extract::JsonText;
use saggar_http::request::idempotency;
use saggar_http::wire;
use saggar_runtime::{Fault, NewSandbox, NewTerms};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::info::{self, Name};
use super::network::{self, Network};
use super::templates::{named, no_template};
use super::volumes::Mounted;
use super::words::unsupported;
use crate::object::Object;
use crate::state::Shared;

/// The built-in template.
pub(super) const TEMPLATE: &str = "base";

/// Whether a name is that of a built-in template.
pub(super) fn is_built_in(name: &str) -> bool {
    matches!(name, TEMPLATE | "base:latest" | "base:default")
}

/// What clients of the code interpreter ask for. A project may have its own; otherwise the built-in one has what it takes.
const INTERPRETER: &str = "code-interpreter-v1";

/// The template to use instead of one that the project doesn't have.
pub(super) fn stands_in(name: &TemplateName) -> Option<TemplateName> {
    (name.name() == INTERPRETER).then(TemplateName::default)
}

/// The template that a name of E2B's clients means; `None` if no template can have it.
pub(super) fn template_named(name: &str) -> Option<TemplateName> {
    if is_built_in(name) { Some(TemplateName::default()) } else { named(name) }
}

/// The request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<Object<AutoResume>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Object<Network>>,
    volume_mounts: Option<Vec<Object<Mounted>>>,
    // Every sandbox is secure: its token is always required.
    #[serde(rename = "secure")]
    _secure: Option<bool>,
    /// All other fields.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct AutoResume {
    enabled: Option<bool>,
}

pub(super) async fn create(
    allowed: Allowed<Create>,
    State(server): State<Shared>,
    headers: HeaderMap,
    name: Name,
    body: JsonText,
) -> Result<Response, Refusal> {
    let whole: Value = body.read()?;
    let idempotency = idempotency(&headers, &whole)?;
    let asked: Asked = body.read()?;
    let headers = asked.network.as_deref().map(Network::headers);
    let mut new = wanted(&server, asked)?;
    let headers = headers.transpose()?.unwrap_or_default();
    let template = new.spec.template_name();
    new.spec.secrets = server.sandboxes.store_headers(&allowed.permit, &headers).await?;
    let mut created = server.sandboxes.create(&allowed.permit, new.clone(), idempotency.clone()).await;
    if matches!(created, Err(Fault::NoSuchTemplate(_)))
        && let Some(template) = stands_in(&template)
    {
        new.spec.template = Some(template);
        created = server.sandboxes.create(&allowed.permit, new.clone(), idempotency.clone()).await;
    }
    // Values that no sandbox uses are removed after a while, which may have been just now.
    if matches!(created, Err(Fault::NoSuchSecret(_))) {
        server.sandboxes.store_headers(&allowed.permit, &headers).await?;
        created = server.sandboxes.create(&allowed.permit, new, idempotency).await;
    }
    let created = created.map_err(|fault| match fault {
        Fault::NoSuchTemplate(_) => no_template(template.as_str()),
        other => other.into(),
    })?;
    let sandbox = wire::sandbox(created.sandbox, Vec::new())?;
    Ok((StatusCode::CREATED, axum::Json(info::opened(&server, &name, &sandbox))).into_response())
}

/// The same for older clients.
pub(super) async fn create_as_before(
    allowed: Allowed<Create>,
    server: State<Shared>,
    headers: HeaderMap,
    name: Name,
    body: JsonText,
) -> Result<Response, Refusal> {
    create(allowed, server, headers, name, body).await
}

fn wanted(server: &Shared, asked: Asked) -> Result<NewSandbox, Refusal> {
    let template = template_named(&asked.template_id).ok_or_else(|| no_template(&asked.template_id))?;
    check_rest(&asked.rest)?;
    let mounts = asked.volume_mounts.unwrap_or_default();
    let volumes = mounts.into_iter().map(|mounted| mounted.0.wanted()).collect::<Result<_, _>>()?;
    let then = match (asked.auto_pause, asked.auto_pause_memory) {
        (Some(true), Some(false)) => DeadlineAction::Rest,
        (Some(true), Some(true) | None) => DeadlineAction::Pause,
        (Some(false) | None, _) => DeadlineAction::Kill,
    };
    let metadata = asked.metadata.unwrap_or_default();
    let given = network::given(server.network, asked.allow_internet_access, asked.network.as_deref())?;
    let host = asked.network.as_deref().map(Network::host_mask).transpose()?.flatten();
    let is_public = asked.network.as_ref().and_then(|network| network.allow_public_traffic).unwrap_or(true);
    Ok(NewSandbox {
        spec: Draft {
            template: Some(template),
            env: wire::env(asked.env_vars.unwrap_or_default())?,
            network: Some(given.mode),
            egress: given.egress,
            volumes,
            ..Draft::default()
        },
        workspace: None,
        labels: wire::labels(metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())))?,
        terms: NewTerms {
            ttl: asked.timeout.map_or(server.settings.default_ttl, Duration::from_secs),
            then,
            idle_timeout: None,
        },
        auto_resume: asked.auto_resume.and_then(|resume| resume.enabled).unwrap_or(false),
        public_ports: if is_public { PublicPorts::ALL } else { PublicPorts::default() },
        ingress: Ingress { allow: None, host },
    })
}

/// Refuses unknown fields, unless they request nothing.
fn check_rest(rest: &Map<String, Value>) -> Result<(), Refusal> {
    let asks = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    };
    match rest.iter().find(|(_, value)| asks(value)) {
        Some((name, _)) => {
            let name: String = name.chars().take(64).collect();
            Err(unsupported(format!("{name} is not supported yet"), "leave it out"))
        }
        None => Ok(()),
    }
}
