//! Builds of templates for E2B's clients: announced, fed with files, begun, told about.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use saggar_api::Code;
use saggar_domain::template::TemplateLimits;
use saggar_domain::{ByteSize, Cpus, JobId, ProjectId, TemplateName, Timestamp};
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{JsonText, Pieces, Query, path_text, too_large};
use saggar_http::wire;
use saggar_runtime::{
    BuildAction as Action, BuildBase, BuildCommand as Command, BuildRequest, BuildSource, BuildStage as Stage,
    BuildStep as Step, Fault, FilesHash, ImportRequest, JobLine, JobState, JobView, Recipe, RegistryCredentials,
    StageBase as Base,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::info::Name;
use super::templates::{Manage, named, no_template, tagged, their_tag};
use super::words::unsupported;
use crate::object::Object;
use crate::state::Shared;

/// How long a link for an upload works.
const LINK_LIFE: Duration = Duration::from_secs(60 * 60);
/// Log entries in one answer, as E2B's service does.
const ENTRIES_MAX: usize = 100;
/// Maximum number of tags of a build.
const TAGS_MAX: usize = 64;
/// E2B's image for templates that name no other.
const E2B_BASE: &[&str] = &["e2bdev/base", "e2bdev/base:latest"];
/// The user that E2B's clients know, in every sandbox.
const USER: (&str, &str) = ("user", "1000:1000");

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Announced {
    name: Option<String>,
    alias: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
}

/// Announces a build.
pub(super) async fn announce(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    body: JsonText,
) -> Result<Response, Refusal> {
    let asked: Announced = body.read()?;
    let text = asked.name.or(asked.alias).unwrap_or_default();
    let wrong = |text: &str| {
        let shown: String = text.chars().take(64).collect();
        Refusal::invalid(
            format!("{shown:?} can't be the name of a template"),
            "use 1 to 64 letters, digits, '.', '_' and '-', without a namespace, with or without a :tag",
        )
    };
    let name = named(&text).ok_or_else(|| wrong(&text))?;
    if asked.tags.len() > TAGS_MAX {
        return Err(Refusal::invalid(format!("more than {TAGS_MAX} tags"), "give fewer"));
    }
    let mut names: Vec<TemplateName> = Vec::new();
    if asked.tags.is_empty() || text.contains(':') {
        names.push(name.clone());
    }
    for tag in &asked.tags {
        let tagged =
            tagged(&name, &tag.to_ascii_lowercase()).filter(|_| !tag.contains(':')).ok_or_else(|| wrong(tag))?;
        if !names.contains(&tagged) {
            names.push(tagged);
        }
    }
    // More than the server gives to steps is no error: harnesses always send what E2B would give.
    let limits = TemplateLimits {
        cpus: asked.cpu_count.filter(|count| *count > 0).map(|count| Cpus::millis(count.saturating_mul(1000))),
        memory: asked.memory_mb.filter(|mib| *mib > 0).map(|mib| ByteSize::from_bytes(u64::from(mib) << 20)),
    };
    let tags: Vec<&str> = names.iter().map(|name| their_tag(name.tag())).collect();
    let job = server.sandboxes.announce_build(&allowed.permit, names.clone(), limits).await?;
    let answer = json!({
        "templateID": name.name(),
        "buildID": build_id(&job.id),
        "aliases": [name.name()],
        "names": [name.name()],
        "public": false,
        "tags": tags,
    });
    Ok((StatusCode::ACCEPTED, axum::Json(answer)).into_response())
}

/// Whether the files of a COPY step are there, and where to send them.
pub(super) async fn files(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    host: Name,
    mut parts: Parts,
) -> Result<Response, Refusal> {
    let (template, hash) = files_named(&mut parts).await?;
    let is_present = server.sandboxes.has_build_files(&allowed.permit, &hash).await?;
    let now = Timestamp::from(SystemTime::now());
    let expires = now.after(LINK_LIFE);
    let signature = server.sandboxes.sign_build_files(&allowed.permit, &hash, expires)?;
    let scheme = if server.settings.tls { "https" } else { "http" };
    let url = format!(
        "{scheme}://{}/templates/{}/files/{}?project={}&expires={}&signature={signature}",
        host.as_str(),
        template.name(),
        hash.as_str(),
        allowed.permit.project(),
        expires.as_millis(),
    );
    Ok((StatusCode::CREATED, axum::Json(json!({ "present": is_present, "url": url }))).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    project: ProjectId,
    expires: u64,
    signature: String,
}

/// Takes the files of a COPY step from the holder of a link.
pub(super) async fn upload(
    State(server): State<Shared>,
    Query(link): Query<Link>,
    request: axum::extract::Request,
) -> Result<StatusCode, Refusal> {
    let (mut parts, body) = request.into_parts();
    let (_, hash) = files_named(&mut parts).await?;
    let expires = Timestamp::from_millis(link.expires);
    let permit = server
        .sandboxes
        .build_files_permit(&link.project, &hash, expires, &link.signature)
        .ok_or_else(|| Refusal::new(Code::Unauthorized, "the link is invalid or has expired", "ask for a new one"))?;
    let most = server.sandboxes.settings().import_size_max.bytes();
    let mut pieces = Pieces::of(&parts.headers, body);
    if pieces.expected().is_some_and(|expected| expected > most) {
        return Err(too_large(most));
    }
    let mut upload = server.sandboxes.begin_upload(&permit).await?;
    let mut bytes = 0;
    while let Some(piece) = pieces.next().await? {
        bytes += piece.len() as u64;
        if bytes > most {
            return Err(too_large(most));
        }
        upload = upload.add(piece).await?;
    }
    server.sandboxes.keep_build_files(&permit, hash, upload).await?;
    Ok(StatusCode::OK)
}

async fn files_named(parts: &mut Parts) -> Result<(TemplateName, FilesHash), Refusal> {
    let template = path_text(parts, "template").await.unwrap_or_default();
    let name = named(&template).ok_or_else(|| no_template(&template))?;
    let hash = path_text(parts, "hash").await.unwrap_or_default();
    let hash = FilesHash::parse(&hash)
        .ok_or_else(|| Refusal::invalid("the hash of the files is not one", "send 64 hexadecimal digits"))?;
    Ok((name, hash))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Begun {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Object<Registry>>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    steps: Vec<Object<StepAsked>>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Registry {
    #[serde(rename = "type")]
    kind: String,
    username: Option<String>,
    password: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StepAsked {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    force: Option<bool>,
    files_hash: Option<String>,
}

/// Begins an announced build.
pub(super) async fn begin(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    mut parts: Parts,
    body: JsonText,
) -> Result<Response, Refusal> {
    let (_, id) = build_named(&mut parts).await?;
    let asked: Begun = read(&body)?;
    let mut files = BTreeSet::new();
    let mut steps = Vec::new();
    for (index, step) in asked.steps.iter().enumerate() {
        steps.push(step_of(step, &mut files).map_err(|what| {
            Refusal::invalid(format!("step {}: {what}", index + 1), "use the steps of E2B's Template")
        })?);
    }
    let base = match (asked.from_image, asked.from_template) {
        (Some(image), None) if E2B_BASE.contains(&image.as_str()) => {
            return Err(unsupported(
                "E2B's base image is not here",
                "start from an image or a template: from_image(…), from_template(…)",
            ));
        }
        (Some(image), None) => BuildBase::Image(Box::new(ImportRequest {
            source: image,
            name: None,
            credentials: asked.from_image_registry.map(|registry| credentials(&registry)).transpose()?,
        })),
        (None, Some(template)) => BuildBase::Template(named(&template).ok_or_else(|| no_template(&template))?),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Refusal::invalid("a build starts from an image or from a template", "give one of them"));
        }
    };
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let mut recipe = Recipe::new(vec![Stage { name: None, from: Base::Scratch, steps }]);
    recipe.start = some(asked.start_cmd);
    recipe.ready = some(asked.ready_cmd);
    let request = BuildRequest { source: BuildSource::Steps { base, recipe, files }, no_cache: asked.force };
    let begun = server.sandboxes.begin_build(&allowed.permit, &id, request).await;
    begun.map_err(|fault| match fault {
        // By the id that the client knows.
        Fault::NotFound { .. } => no_build(&parts),
        other => other.into(),
    })?;
    Ok((StatusCode::ACCEPTED, axum::Json(json!({}))).into_response())
}

/// A parser's message quotes what it doesn't expect, which may be a password. So only its place is told.
fn read(body: &JsonText) -> Result<Begun, Refusal> {
    serde_json::from_slice(&body.0).map_err(|error| {
        let place = format!("the body is malformed at line {}, column {}", error.line(), error.column());
        Refusal::invalid(place, "send what E2B's clients send")
    })
}

fn credentials(registry: &Registry) -> Result<RegistryCredentials, Refusal> {
    match (registry.kind.as_str(), &registry.username, &registry.password) {
        ("registry", Some(username), Some(password)) => Ok(RegistryCredentials::new(username.clone(), password)),
        _ => Err(unsupported("registries of cloud providers are not supported yet", "use a username and a password")),
    }
}

/// One step. Its number stays the same, because clients find their own line by it.
fn step_of(asked: &StepAsked, files: &mut BTreeSet<FilesHash>) -> Result<Step, String> {
    let argument = |at: usize| asked.args.get(at).filter(|text| !text.is_empty()).cloned();
    let needed = |at: usize, what: &str| argument(at).ok_or_else(|| format!("{} has no {what}", asked.kind));
    let user = |at: usize| argument(at).map(|user| if user == USER.0 { USER.1.to_owned() } else { user });
    let action = match asked.kind.to_ascii_uppercase().as_str() {
        "COPY" => {
            let hash = asked.files_hash.as_deref().and_then(FilesHash::parse).ok_or("COPY has no hash of its files")?;
            files.insert(hash.clone());
            let chmod =
                argument(3).map(|mode| u32::from_str_radix(&mode, 8).map_err(|_| format!("{mode:?} is not a mode")));
            Action::Copy {
                from: Some(hash.as_str().to_owned()),
                sources: vec![needed(0, "source")?],
                to: needed(1, "destination")?,
                chown: user(2),
                chmod: chmod.transpose()?,
            }
        }
        "RUN" => Action::Run { command: Command::Shell(needed(0, "command")?), user: user(1), args: BTreeMap::new() },
        "ENV" => {
            if !asked.args.len().is_multiple_of(2) {
                return Err("ENV has a name without a value".to_owned());
            }
            Action::Env { set: asked.args.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect() }
        }
        "WORKDIR" => Action::Workdir { path: needed(0, "path")? },
        "USER" => Action::User { user: user(0).ok_or("USER has no user")? },
        other => return Err(format!("{other:?} is not a step")),
    };
    Ok(Step { line: None, force: asked.force.unwrap_or(false), action })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Since {
    logs_offset: usize,
    limit: Option<usize>,
}

/// How far a build is, with the next part of its log.
pub(super) async fn status(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(since): Query<Since>,
    mut parts: Parts,
) -> Result<axum::Json<Value>, Refusal> {
    let (template, id) = build_named(&mut parts).await?;
    let most = since.limit.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
    let told = server.sandboxes.template_job_lines(&allowed.permit, &id, since.logs_offset, most).await;
    let (job, lines) = told.map_err(|_| no_build(&parts))?;
    let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    let mut answer = json!({
        "templateID": template.name(),
        "buildID": build_id(&id),
        "status": state(job.state),
        "logs": texts,
        "logEntries": lines.iter().map(entry).collect::<Vec<_>>(),
    });
    if let Some(reason) = reason(&job) {
        answer["reason"] = reason;
    }
    Ok(axum::Json(answer))
}

pub(super) async fn logs(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    mut parts: Parts,
) -> Result<axum::Json<Value>, Refusal> {
    let (_, id) = build_named(&mut parts).await?;
    let told = server.sandboxes.template_job_lines(&allowed.permit, &id, 0, ENTRIES_MAX).await;
    let (_, lines) = told.map_err(|_| no_build(&parts))?;
    Ok(axum::Json(json!({ "logs": lines.iter().map(entry).collect::<Vec<_>>() })))
}

fn entry(line: &JobLine) -> Value {
    let mut entry = json!({
        "timestamp": wire::time(line.at),
        "level": if line.is_error { "warn" } else { "info" },
        "message": line.text,
    });
    if let Some(step) = line.step {
        entry["step"] = json!(step.to_string());
    }
    entry
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "waiting",
        JobState::Running => "building",
        JobState::Succeeded => "ready",
        JobState::Failed | JobState::Cancelled => "error",
    }
}

fn reason(job: &JobView) -> Option<Value> {
    let outcome = job.outcome.as_ref().filter(|_| state(job.state) == "error")?;
    let message = match &outcome.problem {
        Some(problem) if problem.help.is_empty() => problem.message.clone(),
        Some(problem) => format!("{}: {}", problem.message, problem.help),
        None => "the build was cancelled".to_owned(),
    };
    let mut reason = json!({ "message": message, "logEntries": [] });
    if let Some(step) = &outcome.step {
        reason["step"] = json!(step);
    }
    Some(reason)
}

async fn build_named(parts: &mut Parts) -> Result<(TemplateName, JobId), Refusal> {
    let template = path_text(parts, "template").await.unwrap_or_default();
    let name = named(&template).ok_or_else(|| no_template(&template))?;
    let build = path_text(parts, "build").await.unwrap_or_default();
    let id = job_id(&build).ok_or_else(|| no_build(parts))?;
    Ok((name, id))
}

fn no_build(_parts: &Parts) -> Refusal {
    Refusal::new(Code::NotFound, "build not found", "check the ids of the template and of the build")
}

/// The alphabet of our ids.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The id of a build as a UUID, which is what clients expect.
fn build_id(id: &JobId) -> String {
    let tail = id.as_str().trim_start_matches("job_");
    let digit = |byte: u8| ALPHABET.iter().position(|letter| *letter == byte).unwrap_or(0) as u128;
    let bits = tail.bytes().rev().fold(0_u128, |bits, byte| (bits << 5) | digit(byte));
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The job of a build's id.
fn job_id(text: &str) -> Option<JobId> {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let is_uuid = text.len() == 36 && hex.len() == 32;
    let bits = u128::from_str_radix(&hex, 16).ok().filter(|_| is_uuid)?;
    Some(JobId::from_random(bits.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_build_leads_back_to_its_job() {
        for bits in [[0; 16], [0xff; 16], *b"0123456789abcdef"] {
            let id = JobId::from_random(bits);
            assert_eq!(job_id(&build_id(&id)), Some(id.clone()), "{id}");
        }
        for wrong in ["", "b", "00000000-0000-0000-0000-00000000000g", &"0".repeat(36)] {
            assert_eq!(job_id(wrong), None, "{wrong}");
        }
    }

    fn step(json: &str) -> Result<Action, String> {
        let asked: StepAsked = serde_json::from_str(json).map_err(|error| error.to_string())?;
        step_of(&asked, &mut BTreeSet::new()).map(|step| step.action)
    }

    #[test]
    fn steps_are_read_as_clients_send_them() {
        let hash = "0".repeat(64);
        let copy = step(&format!(r#"{{"type":"COPY","args":["a","/b","user","0755"],"filesHash":"{hash}"}}"#)).unwrap();
        let expected = Action::Copy {
            from: Some(hash),
            sources: vec!["a".to_owned()],
            to: "/b".to_owned(),
            chown: Some("1000:1000".to_owned()),
            chmod: Some(0o755),
        };
        assert_eq!(copy, expected);
        let run = step(r#"{"type":"RUN","args":["echo hi","root"]}"#).unwrap();
        let command = Command::Shell("echo hi".to_owned());
        assert_eq!(run, Action::Run { command, user: Some("root".to_owned()), args: BTreeMap::new() });
        let env = step(r#"{"type":"ENV","args":["A","1","B",""]}"#).unwrap();
        let set = [("A", "1"), ("B", "")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(env, Action::Env { set });
        for wrong in [
            r#"{"type":"COPY","args":["a","/b"]}"#,
            r#"{"type":"COPY","args":["a","/b"],"filesHash":"../x"}"#,
            r#"{"type":"RUN","args":[]}"#,
            r#"{"type":"ENV","args":["A"]}"#,
            r#"{"type":"USER","args":[""]}"#,
            r#"{"type":"ADD","args":["a"]}"#,
        ] {
            assert!(step(wrong).is_err(), "{wrong}");
        }
    }
}
