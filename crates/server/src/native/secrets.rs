//! Secrets: store, list, read without the value, remove, within the project of the authenticating key.

use axum::extract::{RawPathParams, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use saggar_api::{Code, ProjectSecret, RemoveSecret, SecretList, SetSecret, route};
use saggar_domain::secret::{Binding, SecretName, SecretValue};
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{JsonText, PathId, Query};
use saggar_http::wire;
use saggar_runtime::{SECRETS, Written};
use saggar_store::WhileUsed;

use super::resource::resource;
use crate::server::Shared;

resource! {
    tag "secrets": "Values that programs in a sandbox use and never see.";
    bounded {
        route::SECRETS => get list;
        route::SECRET => put set, get get, delete remove;
    }
}

saggar_http::wanted! {
    /// Stores, lists and removes secrets.
    Manage => Manage(SECRETS);
}

/// Store a secret, or change one
///
/// A new secret needs a value and a binding. For one that exists, what is absent stays as it is. Live sandboxes that use
/// it have the new version when this responds. Repeating the request changes nothing.
#[utoipa::path(
    put, path = "/api/v1/secrets/{secret}", tag = "secrets", operation_id = "setSecret",
    params(("secret" = saggar_api::schema::SecretName, Path, description = "The secret's name")),
    request_body = SetSecret,
    responses(
        (status = 200, description = "It exists, in this version", body = ProjectSecret),
        (status = 201, description = "It is new", body = ProjectSecret),
    ),
)]
pub(crate) async fn set(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    parameters: RawPathParams,
    body: JsonText,
) -> Result<Response, Refusal> {
    let name = parameters.iter().last().map(|(_, name)| name).unwrap_or_default();
    let name = name.parse::<SecretName>().map_err(|complaint| {
        Refusal::new(Code::InvalidValue, complaint, "choose a name such as `openai` or `github-bot`")
    })?;
    let SetSecret { value, binding } = read(&body)?;
    let value = value.map(|value| SecretValue::parse(value.reveal())).transpose().map_err(|error| {
        Refusal::new(Code::InvalidValue, error.to_string(), "send the value as it is used, without a line break")
    })?;
    let set = saggar_runtime::SetSecret { name, binding, value };
    let (row, written) = server.sandboxes.set_secret(&allowed.permit, set).await?;
    let status = match written {
        Written::Created => StatusCode::CREATED,
        Written::Changed | Written::Same => StatusCode::OK,
    };
    Ok((status, axum::Json(wire::secret(row, None))).into_response())
}

/// A parser's message quotes what it doesn't expect, which may be the value. So only its place is told, unless the
/// binding alone is wrong.
fn read(body: &JsonText) -> Result<SetSecret, Refusal> {
    const HELP: &str = "send {\"value\": TEXT, \"binding\": {\"rules\": [RULE], \"slot\": SLOT}}; see the request's schema in /api/v1/openapi.json";
    let text: &[u8] = if body.0.trim_ascii().is_empty() { b"{}" } else { &body.0 };
    serde_json::from_slice(text).map_err(|error| match wrong_binding(text) {
        Some(complaint) => Refusal::new(Code::InvalidValue, complaint, HELP),
        None => {
            Refusal::invalid(format!("the body is malformed at line {}, column {}", error.line(), error.column()), HELP)
        }
    })
}

/// What is wrong with a binding that has the right shape.
fn wrong_binding(text: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(text).ok()?;
    let binding = body.get("binding")?;
    let has_shape = binding.get("rules")?.as_array()?.iter().all(serde_json::Value::is_string);
    let error = serde_json::from_value::<Binding>(binding.clone()).err()?.to_string();
    let fields = binding.as_object()?.iter().filter(|(name, _)| *name != "rules").map(|(_, field)| field);
    let is_shown = |text: &str| SecretValue::parse(text).is_ok() && error.contains(text);
    // Rules are shown, so that one can see what is wrong with them; unless one is the value.
    let hides = fields.chain(body.get("value")).any(|field| any_text(field, &is_shown));
    has_shape.then(|| if hides { "its slot, its placeholder or a rule can't be understood".to_owned() } else { error })
}

/// Names in a slot that are as long as a value may be.
const FIELDS: &[&str] = &["access_key_id", "parameter"];

/// Whether a text in this value, or the name of an unknown field, is as wanted.
fn any_text(value: &serde_json::Value, is_wanted: &dyn Fn(&str) -> bool) -> bool {
    match value {
        serde_json::Value::String(text) => is_wanted(text),
        serde_json::Value::Array(values) => values.iter().any(|value| any_text(value, is_wanted)),
        serde_json::Value::Object(fields) => {
            let is_other = |name: &str| !FIELDS.contains(&name) && is_wanted(name);
            fields.iter().any(|(name, value)| is_other(name) || any_text(value, is_wanted))
        }
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => false,
    }
}

/// List secrets, by name
#[utoipa::path(
    get, path = "/api/v1/secrets", tag = "secrets", operation_id = "listSecrets",
    responses((status = 200, description = "The secrets of the project, without their values", body = SecretList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
) -> Result<axum::Json<SecretList>, Refusal> {
    let secrets = server.sandboxes.secrets(&allowed.permit).await?;
    Ok(axum::Json(SecretList { items: secrets.into_iter().map(|row| wire::secret(row, None)).collect() }))
}

/// Read a secret, without its value
#[utoipa::path(
    get, path = "/api/v1/secrets/{secret}", tag = "secrets", operation_id = "getSecret",
    params(("secret" = saggar_api::schema::SecretName, Path, description = "The secret's name")),
    responses((status = 200, description = "The secret, and the live sandboxes that use it", body = ProjectSecret)),
)]
pub(crate) async fn get(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(name): PathId<SecretName>,
) -> Result<axum::Json<ProjectSecret>, Refusal> {
    let (row, users) = server.sandboxes.secret(&allowed.permit, &name).await?;
    Ok(axum::Json(wire::secret(row, Some(users))))
}

/// Remove a secret
///
/// Refused while live sandboxes use it, unless `force` is set: then they go on without it.
#[utoipa::path(
    delete, path = "/api/v1/secrets/{secret}", tag = "secrets", operation_id = "removeSecret",
    params(("secret" = saggar_api::schema::SecretName, Path, description = "The secret's name"), RemoveSecret),
    responses((status = 204, description = "The secret is gone")),
)]
pub(crate) async fn remove(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(name): PathId<SecretName>,
    Query(how): Query<RemoveSecret>,
) -> Result<StatusCode, Refusal> {
    let while_used = if how.force { WhileUsed::Remove } else { WhileUsed::Refuse };
    server.sandboxes.remove_secret(&allowed.permit, &name, while_used).await?;
    Ok(StatusCode::NO_CONTENT)
}
