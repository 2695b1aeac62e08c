//! Templates: list, read, name, remove, within the project of the authenticating key.

use axum::extract::State;
use saggar_api::{
    RemovedTemplate, TagTemplate, Template, TemplateContents, TemplateLayer, TemplateList, TemplateRest, route,
};
use saggar_domain::TemplateName;
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{Json, PathId};
use saggar_http::wire;
use saggar_runtime::{TEMPLATES, TemplateView};

use super::resource::resource;
use crate::server::Shared;

resource! {
    tag "templates": "Images that sandboxes start from.";
    bounded {
        route::TEMPLATES => get list;
        route::TEMPLATE => get get, put tag, delete remove;
    }
}

saggar_http::wanted! {
    /// Lists, names and removes templates, and starts jobs that make them.
    Manage => Manage(TEMPLATES);
}

/// List templates, by name
///
/// The project's own, and those that the operator publishes to all.
#[utoipa::path(
    get, path = "/api/v1/templates", tag = "templates", operation_id = "listTemplates",
    responses((status = 200, description = "The templates", body = TemplateList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
) -> Result<axum::Json<TemplateList>, Refusal> {
    let views = server.sandboxes.templates(&allowed.permit).await?;
    let items = views.into_iter().map(|view| Template { contents: None, ..shown(view) }).collect();
    Ok(axum::Json(TemplateList { items }))
}

/// Read a template, with its layers and defaults
#[utoipa::path(
    get, path = "/api/v1/templates/{template}", tag = "templates", operation_id = "getTemplate",
    params(("template" = saggar_api::schema::TemplateName, Path, description = "The template's name, with or without a tag")),
    responses((status = 200, description = "The template", body = Template)),
)]
pub(crate) async fn get(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(name): PathId<TemplateName>,
) -> Result<axum::Json<Template>, Refusal> {
    Ok(axum::Json(shown(server.sandboxes.template(&allowed.permit, &name).await?)))
}

/// Give a template another name
///
/// The name may have led elsewhere before. Sandboxes that run keep what they started from.
#[utoipa::path(
    put, path = "/api/v1/templates/{template}", tag = "templates", operation_id = "tagTemplate",
    params(("template" = saggar_api::schema::TemplateName, Path, description = "The new name, with or without a tag")),
    request_body = TagTemplate,
    responses((status = 200, description = "The name leads there", body = Template)),
)]
pub(crate) async fn tag(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(name): PathId<TemplateName>,
    Json(TagTemplate { from }): Json<TagTemplate>,
) -> Result<axum::Json<Template>, Refusal> {
    let view = server.sandboxes.tag_template(&allowed.permit, &from, &name).await?;
    Ok(axum::Json(Template { contents: None, ..shown(view) }))
}

/// Remove a template's name, and with its last name the template
///
/// Sandboxes that use the template keep it; it is removed after them.
#[utoipa::path(
    delete, path = "/api/v1/templates/{template}", tag = "templates", operation_id = "removeTemplate",
    params(("template" = saggar_api::schema::TemplateName, Path, description = "The name, with or without a tag")),
    responses((status = 200, description = "The name is gone", body = RemovedTemplate)),
)]
pub(crate) async fn remove(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(name): PathId<TemplateName>,
) -> Result<axum::Json<RemovedTemplate>, Refusal> {
    let removed = server.sandboxes.remove_template(&allowed.permit, &name).await?;
    Ok(axum::Json(RemovedTemplate { name, id: removed.id, template: rest(removed.rest) }))
}

pub(super) fn rest(rest: saggar_runtime::TemplateRest) -> TemplateRest {
    match rest {
        saggar_runtime::TemplateRest::Named => TemplateRest::Named,
        saggar_runtime::TemplateRest::InUse => TemplateRest::InUse,
        saggar_runtime::TemplateRest::Gone => TemplateRest::Gone,
    }
}

fn shown(view: TemplateView) -> Template {
    let TemplateView { name, id, set_at, is_public, contents } = view;
    let bytes = contents.as_ref().map(|contents| contents.manifest.bytes());
    let contents = contents.map(|contents| {
        let defaults = contents.manifest.defaults().clone();
        let layers = contents.layers.into_iter().map(|layer| TemplateLayer {
            id: layer.id,
            bytes: layer.stored.bytes,
            entries: layer.stored.entries,
        });
        TemplateContents {
            layers: layers.collect(),
            platform: contents.manifest.image().platform.clone(),
            env: defaults.env,
            cwd: defaults.cwd.map(|cwd| cwd.to_string()),
            user: defaults.user,
            entrypoint: defaults.entrypoint,
            command: defaults.command,
            ports: defaults.ports.iter().map(ToString::to_string).collect(),
            labels: defaults.labels,
        }
    });
    Template { name, id, set_at: wire::time(set_at), public: is_public, bytes, contents }
}
