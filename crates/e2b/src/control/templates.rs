//! Templates for E2B's clients: list, read, remove, aliases and tags.
//!
//! E2B's template has an id, names and tags. Here a template's name without its tag is its id, so clients can use both. E2B's
//! tag `default` is our `latest`.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use saggar_api::{Code, Timestamp};
use saggar_domain::template::{TemplateId, TemplateLimits};
use saggar_domain::{DraftLimits, Limits, SnapshotId, TemplateName};
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{JsonText, Query, path_text};
use saggar_http::wire;
use saggar_runtime::{TEMPLATES, TemplateView};
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::TEMPLATE;
use super::snapshots;
use crate::metrics;
use crate::state::Shared;

/// E2B's name for the tag of a name without one.
const DEFAULT_TAG: &str = "default";
/// Ours.
const LATEST: &str = "latest";
/// Maximum number of tags in one request.
const TAGS_MAX: usize = 64;

saggar_http::wanted! {
    /// Lists, names, removes and builds templates.
    Manage => Manage(TEMPLATES);
}

/// A name of E2B's clients, in lower case as there; `None` if no template can have it.
pub(super) fn named(text: &str) -> Option<TemplateName> {
    let text = text.trim().to_ascii_lowercase();
    let (name, tag) = text.split_once(':').unwrap_or((&text, LATEST));
    TemplateName::parse(&format!("{name}:{}", our_tag(tag)))
}

fn our_tag(tag: &str) -> &str {
    if tag == DEFAULT_TAG { LATEST } else { tag }
}

pub(super) fn their_tag(tag: &str) -> &str {
    if tag == LATEST { DEFAULT_TAG } else { tag }
}

/// The name with another tag.
pub(super) fn tagged(name: &TemplateName, tag: &str) -> Option<TemplateName> {
    TemplateName::parse(&format!("{}:{}", name.name(), our_tag(tag)))
}

/// As E2B's service says it.
pub(super) fn no_template(name: &str) -> Refusal {
    let name: String = name.chars().take(64).collect();
    let help = "use `base`, a template of this project, or one that the server's operator publishes";
    Refusal::new(Code::NotFound, format!("template '{name}' not found"), help)
}

/// The id of a build that clients parse as a UUID: the same for the same template.
pub(super) fn build_of(id: &TemplateId) -> String {
    let hex = id.hex();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
}

/// The name in the path, which may be percent-encoded as a whole.
pub(super) async fn path_name(parts: &mut Parts) -> Result<TemplateName, Refusal> {
    let text = path_text(parts, "template").await.unwrap_or_default();
    named(&text).ok_or_else(|| no_template(&text))
}

/// All names of one template, as E2B shows it.
struct Family {
    views: Vec<TemplateView>,
}

impl Family {
    fn all(views: Vec<TemplateView>) -> Vec<Self> {
        let mut families: BTreeMap<String, Vec<TemplateView>> = BTreeMap::new();
        for view in views {
            families.entry(view.name.name().to_owned()).or_default().push(view);
        }
        families.into_values().map(|views| Self { views }).collect()
    }

    /// The one that a name without a tag means, or else the newest.
    fn main(&self) -> &TemplateView {
        let newest = self.views.iter().max_by_key(|view| view.set_at);
        self.views.iter().find(|view| view.name.tag() == LATEST).or(newest).expect("a family has a name")
    }

    fn shown(&self) -> Value {
        let main = self.main();
        let limits = limits_of(main);
        let created_at = self.views.iter().map(|view| view.set_at).min().unwrap_or(main.set_at);
        let updated_at = self.views.iter().map(|view| view.set_at).max().unwrap_or(main.set_at);
        json!({
            "templateID": main.name.name(),
            "buildID": build_of(&main.id),
            "aliases": [main.name.name()],
            "names": [main.name.name()],
            "public": main.is_public,
            "cpuCount": limits.as_ref().map_or(1, |limits| metrics::cpu_count(limits.cpus.value)),
            "memoryMB": limits.as_ref().map_or(0, |limits| limits.memory.value.bytes() >> 20),
            "diskSizeMB": limits.as_ref().map_or(0, |limits| limits.disk.value.bytes() >> 20),
            "createdAt": wire::time(created_at),
            "updatedAt": wire::time(updated_at),
            "createdBy": null,
            "lastSpawnedAt": null,
            "spawnCount": 0,
            "buildCount": self.views.len(),
            "buildStatus": "ready",
            "envdVersion": super::info::ENVD_VERSION,
        })
    }
}

/// Of its sandboxes.
fn limits_of(view: &TemplateView) -> Option<Limits> {
    let labels = view.contents.as_ref().map(|contents| &contents.manifest.defaults().labels);
    let own = labels.map(TemplateLimits::of_labels).unwrap_or_default();
    Limits::resolve(&own.beside(DraftLimits::default())).ok()
}

async fn family(server: &Shared, allowed: &Allowed<Manage>, name: &TemplateName) -> Result<Family, Refusal> {
    let views = server.sandboxes.templates(&allowed.permit).await?;
    let found = Family::all(views).into_iter().find(|family| family.main().name.name() == name.name());
    found.ok_or_else(|| no_template(name.as_str()))
}

pub(super) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
) -> Result<axum::Json<Vec<Value>>, Refusal> {
    let views = server.sandboxes.templates(&allowed.permit).await?;
    Ok(axum::Json(Family::all(views).iter().map(Family::shown).collect()))
}

pub(super) async fn get(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    mut parts: Parts,
) -> Result<axum::Json<Value>, Refusal> {
    let name = path_name(&mut parts).await?;
    let family = family(&server, &allowed, &name).await?;
    let mut shown = family.shown();
    let builds = family.views.iter().map(|view| {
        let limits = limits_of(view);
        json!({
            "buildID": build_of(&view.id),
            "status": "ready",
            "createdAt": wire::time(view.set_at),
            "updatedAt": wire::time(view.set_at),
            "finishedAt": wire::time(view.set_at),
            "cpuCount": limits.as_ref().map_or(1, |limits| metrics::cpu_count(limits.cpus.value)),
            "memoryMB": limits.as_ref().map_or(0, |limits| limits.memory.value.bytes() >> 20),
            "diskSizeMB": shown["diskSizeMB"],
            "envdVersion": super::info::ENVD_VERSION,
        })
    });
    let builds: Vec<Value> = builds.collect();
    shown["builds"] = json!(builds);
    Ok(axum::Json(shown))
}

/// Removes every name of a template; or a snapshot, which is one for these clients.
pub(super) async fn remove(
    allowed: Allowed<Manage>,
    of_snapshots: Allowed<snapshots::Manage>,
    State(server): State<Shared>,
    mut parts: Parts,
) -> Result<StatusCode, Refusal> {
    let name = path_name(&mut parts).await?;
    if let Some(id) = SnapshotId::of_template(&name) {
        return snapshots::remove(&of_snapshots, &server, &id).await;
    }
    let family = family(&server, &allowed, &name).await?;
    for view in &family.views {
        if view.is_public {
            // The operator's: for the project it is not there to be removed.
            return Err(no_template(name.as_str()));
        }
        server.sandboxes.remove_template(&allowed.permit, &view.name).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a template of this name exists.
pub(super) async fn alias(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    mut parts: Parts,
) -> Result<axum::Json<Value>, Refusal> {
    let alias = path_text(&mut parts, "alias").await.unwrap_or_default();
    if super::create::is_built_in(&alias) {
        return Ok(axum::Json(json!({ "templateID": TEMPLATE, "public": true })));
    }
    let name = named(&alias).ok_or_else(|| no_template(&alias))?;
    // Without a tag, any will do.
    let view = match alias.contains(':') {
        true => server.sandboxes.template(&allowed.permit, &name).await.map_err(|_| no_template(&alias)),
        false => family(&server, &allowed, &name).await.map(|family| family.main().clone()),
    };
    if view.is_err() && super::create::stands_in(&name).is_some() {
        return Ok(axum::Json(json!({ "templateID": TEMPLATE, "public": true })));
    }
    let view = view?;
    Ok(axum::Json(json!({ "templateID": view.name.name(), "public": view.is_public })))
}

#[derive(Debug, Deserialize)]
struct Assign {
    target: String,
    tags: Vec<String>,
}

/// Gives a template more tags.
pub(super) async fn assign_tags(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    body: JsonText,
) -> Result<Response, Refusal> {
    let Assign { target, tags } = body.read()?;
    let from = named(&target).ok_or_else(|| no_template(&target))?;
    let names = tag_names(&from, &tags)?;
    let mut view = server.sandboxes.template(&allowed.permit, &from).await.map_err(|_| no_template(&target))?;
    for name in &names {
        let tagged = server.sandboxes.tag_template(&allowed.permit, &from, name).await;
        view = tagged.map_err(|fault| match fault {
            saggar_runtime::Fault::NotFound { .. } => no_template(&target),
            other => other.into(),
        })?;
    }
    let answer = json!({ "tags": tags, "buildID": build_of(&view.id) });
    Ok((StatusCode::CREATED, axum::Json(answer)).into_response())
}

#[derive(Debug, Deserialize)]
struct Unassign {
    name: String,
    tags: Vec<String>,
}

pub(super) async fn remove_tags(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    body: JsonText,
) -> Result<StatusCode, Refusal> {
    let Unassign { name: target, tags } = body.read()?;
    let name = named(&target).ok_or_else(|| no_template(&target))?;
    let names = tag_names(&name, &tags)?;
    let family = family(&server, &allowed, &name).await?;
    // All or nothing, as far as can be seen beforehand.
    for (name, tag) in names.iter().zip(&tags) {
        if !family.views.iter().any(|view| view.name == *name && !view.is_public) {
            return Err(Refusal::new(Code::NotFound, format!("tag '{tag}' not found"), "list the template's tags"));
        }
    }
    for name in &names {
        server.sandboxes.remove_template(&allowed.permit, name).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

fn tag_names(name: &TemplateName, tags: &[String]) -> Result<Vec<TemplateName>, Refusal> {
    if tags.is_empty() || tags.len() > TAGS_MAX {
        return Err(Refusal::invalid(format!("a request has 1 to {TAGS_MAX} tags"), "send fewer"));
    }
    let name_of = |tag: &String| {
        let shown: String = tag.chars().take(64).collect();
        let wrong = || Refusal::invalid(format!("{shown:?} is not a tag"), "use letters, digits, '.', '_' and '-'");
        if tag.contains(':') { Err(wrong()) } else { tagged(name, &tag.to_ascii_lowercase()).ok_or_else(wrong) }
    };
    tags.iter().map(name_of).collect()
}

pub(super) async fn tags(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    mut parts: Parts,
) -> Result<axum::Json<Vec<Value>>, Refusal> {
    let name = path_name(&mut parts).await?;
    let mut views = family(&server, &allowed, &name).await?.views;
    views.sort_by_key(|view| std::cmp::Reverse(view.set_at));
    let shown = |view: &TemplateView| {
        let created_at: Timestamp = wire::time(view.set_at);
        json!({ "tag": their_tag(view.name.tag()), "buildID": build_of(&view.id), "createdAt": created_at })
    };
    Ok(axum::Json(views.iter().map(shown).collect()))
}

pub(super) async fn count_tags(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    mut parts: Parts,
) -> Result<axum::Json<Value>, Refusal> {
    let name = path_name(&mut parts).await?;
    let family = family(&server, &allowed, &name).await?;
    Ok(axum::Json(json!({ "total": family.views.len() })))
}

#[derive(Debug, Deserialize)]
pub(super) struct WantedTag {
    tag: String,
}

pub(super) async fn tag_exists(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(WantedTag { tag }): Query<WantedTag>,
    mut parts: Parts,
) -> Result<axum::Json<Value>, Refusal> {
    let name = path_name(&mut parts).await?;
    let family = family(&server, &allowed, &name).await?;
    let tag = tag.trim().to_ascii_lowercase();
    let exists = family.views.iter().any(|view| view.name.tag() == our_tag(&tag));
    Ok(axum::Json(json!({ "exists": exists, "normalizedTag": tag })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_e2b_reads_them() {
        for (text, expected) in [
            ("mine", Some("mine")),
            ("Mine:Stable", Some("mine:stable")),
            ("mine:default", Some("mine")),
            ("mine:latest", Some("mine")),
            ("team/mine", None),
            ("a:b:c", None),
            ("", None),
        ] {
            assert_eq!(named(text).map(|name| name.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_id_of_a_build_is_a_uuid() {
        let id = build_of(&TemplateId::of(b"x"));
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    }
}
