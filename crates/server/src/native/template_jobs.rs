//! Template jobs: start, follow, cancel.

use std::collections::{BTreeMap, VecDeque};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use saggar_api::{
    BuildTemplate, ImportTemplate, ServerSentEvent, TemplateJob, TemplateJobKind, TemplateJobList, TemplateJobProblem,
    TemplateJobState, TemplateLog, TemplateLogLine, TemplateLogQuery, UploadTemplate, route,
};
use saggar_domain::JobId;
use saggar_domain::template::TemplateLimits;
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{self, JsonText, PathId, Pieces, Query};
use saggar_http::sse::{self, Source};
use saggar_http::wire;
use saggar_runtime::{
    BuildRequest, BuildSource, Fault, ImportRequest, JobKind, JobLine, JobState, JobView, Permit, RegistryCredentials,
    Upload,
};

use super::events::{last_event, wants_stream};
use super::resource::resource;
use super::templates::Manage;
use crate::server::Shared;

/// Maximum number of lines in one answer.
const LINES_MAX: u32 = 1000;

resource! {
    bounded {
        route::TEMPLATE_JOBS => get list;
        route::TEMPLATE_IMPORT => post import;
        route::TEMPLATE_JOB => get get, delete cancel;
    }
    streaming {
        route::TEMPLATE_UPLOAD => post upload;
        route::TEMPLATE_BUILD => post build;
        route::TEMPLATE_JOB_LOG => get log;
    }
}

/// Import an image of a registry as a template
///
/// The operator's setting `import_registries` says which registries; by default there are none. The answer comes at once,
/// and the import goes on as a job.
#[utoipa::path(
    post, path = "/api/v1/template-jobs/import", tag = "templates", operation_id = "importTemplate",
    request_body = ImportTemplate,
    responses((status = 202, description = "The job", body = TemplateJob)),
)]
pub(crate) async fn import(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    body: JsonText,
) -> Result<Response, Refusal> {
    let ImportTemplate { source, name, username, password, secret } = read(&body)?;
    let credentials = match (username, password, secret) {
        (None, None, None) => None,
        (Some(username), Some(password), None) => Some(RegistryCredentials::new(username, password.reveal())),
        (Some(username), None, Some(secret)) => {
            Some(server.sandboxes.registry_secret(&allowed.permit, username, &secret).await?)
        }
        _ => {
            let help = "send username with either password or secret, or none of them";
            return Err(Refusal::invalid("username needs one password, and a password a username", help));
        }
    };
    let request = ImportRequest { source, name, credentials };
    let job = server.sandboxes.import_template(&allowed.permit, request).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(shown(job))).into_response())
}

/// A parser's message quotes what it doesn't expect, which may be the password. So only its place is told.
fn read(body: &JsonText) -> Result<ImportTemplate, Refusal> {
    serde_json::from_slice(&body.0).map_err(|error| {
        Refusal::invalid(
            format!("the body is malformed at line {}, column {}", error.line(), error.column()),
            "send {\"source\": \"docker://REGISTRY/REPOSITORY:TAG\", \"name\": NAME}; see the request's schema in /api/v1/openapi.json",
        )
    })
}

/// Import an image that the request's body holds
///
/// The body is a tar archive: an OCI image layout, or what `docker save` writes. At most `import_size_max` bytes. The
/// answer comes when all of it has arrived, and the import goes on as a job.
#[utoipa::path(
    post, path = "/api/v1/template-jobs/upload", tag = "templates", operation_id = "uploadTemplate",
    params(UploadTemplate),
    request_body(content = inline(saggar_api::schema::Octets), content_type = "application/x-tar"),
    responses((status = 202, description = "The job", body = TemplateJob)),
)]
pub(crate) async fn upload(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(UploadTemplate { name, image }): Query<UploadTemplate>,
    pieces: Pieces,
) -> Result<Response, Refusal> {
    let upload = received(&server, pieces, server.sandboxes.begin_upload(&allowed.permit)).await?;
    let job = server.sandboxes.import_upload(&allowed.permit, upload, name, image).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(shown(job))).into_response())
}

/// Build a template from a Dockerfile
///
/// The body is a tar archive, plain or gzipped, of a directory with a Dockerfile and what it copies. `FROM` names a template of the
/// project. Each `RUN` has a sandbox of its own, with the limits and the network that the operator gives builds.
#[utoipa::path(
    post, path = "/api/v1/template-jobs/build", tag = "templates", operation_id = "buildTemplate",
    params(BuildTemplate),
    request_body(content = inline(saggar_api::schema::Octets), content_type = "application/x-tar"),
    responses((status = 202, description = "The job", body = TemplateJob)),
)]
pub(crate) async fn build(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(BuildTemplate { name, file, target, arg, no_cache }): Query<BuildTemplate>,
    pieces: Pieces,
) -> Result<Response, Refusal> {
    let args = arg.iter().map(|pair| {
        let pair = pair.split_once('=').filter(|(name, _)| !name.is_empty());
        pair.map(|(name, value)| (name.to_owned(), value.to_owned()))
    });
    let args = args
        .collect::<Option<BTreeMap<String, String>>>()
        .ok_or_else(|| Refusal::invalid("a build argument has no name", "write each as NAME=VALUE"))?;
    let archive = received(&server, pieces, server.sandboxes.begin_upload(&allowed.permit)).await?;
    let job = server.sandboxes.announce_build(&allowed.permit, vec![name], TemplateLimits::default()).await?;
    let file = file.unwrap_or_else(|| "Dockerfile".to_owned());
    let request = BuildRequest { source: BuildSource::Context { archive, file, target, args }, no_cache };
    let job = server.sandboxes.begin_build(&allowed.permit, &job.id, request).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(shown(job))).into_response())
}

/// The body, on disk.
pub(super) async fn received(
    server: &Shared,
    mut pieces: Pieces,
    begin: impl Future<Output = Result<Upload, Fault>>,
) -> Result<Upload, Refusal> {
    let most = server.sandboxes.settings().import_size_max.bytes();
    if pieces.expected().is_some_and(|expected| expected > most) {
        return Err(extract::too_large(most));
    }
    let mut upload = begin.await?;
    let mut bytes = 0;
    while let Some(piece) = pieces.next().await? {
        bytes += piece.len() as u64;
        if bytes > most {
            return Err(extract::too_large(most));
        }
        upload = upload.add(piece).await?;
    }
    Ok(upload)
}

/// List template jobs, newest first
#[utoipa::path(
    get, path = "/api/v1/template-jobs", tag = "templates", operation_id = "listTemplateJobs",
    responses((status = 200, description = "The jobs of the project; old ones are forgotten", body = TemplateJobList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
) -> Result<axum::Json<TemplateJobList>, Refusal> {
    let jobs = server.sandboxes.template_jobs(&allowed.permit).await?;
    Ok(axum::Json(TemplateJobList { items: jobs.into_iter().map(shown).collect() }))
}

/// Read a template job
#[utoipa::path(
    get, path = "/api/v1/template-jobs/{job}", tag = "templates", operation_id = "getTemplateJob",
    params(("job" = saggar_api::schema::JobId, Path, description = "The job")),
    responses((status = 200, description = "The job", body = TemplateJob)),
)]
pub(crate) async fn get(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(id): PathId<JobId>,
) -> Result<axum::Json<TemplateJob>, Refusal> {
    Ok(axum::Json(shown(server.sandboxes.template_job(&allowed.permit, &id).await?)))
}

/// Cancel a template job
///
/// It ends soon after. One that is over stays as it is.
#[utoipa::path(
    delete, path = "/api/v1/template-jobs/{job}", tag = "templates", operation_id = "cancelTemplateJob",
    params(("job" = saggar_api::schema::JobId, Path, description = "The job")),
    responses((status = 200, description = "The job", body = TemplateJob)),
)]
pub(crate) async fn cancel(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(id): PathId<JobId>,
) -> Result<axum::Json<TemplateJob>, Refusal> {
    Ok(axum::Json(shown(server.sandboxes.cancel_template_job(&allowed.permit, &id).await?)))
}

/// Read or follow the log of a template job
///
/// With `Accept: text/event-stream`, lines arrive as they are written, until the job is over. The id of an event is the number of the next
/// line, so `Last-Event-ID` goes on where a stream ended.
#[utoipa::path(
    get, path = "/api/v1/template-jobs/{job}/log", tag = "templates", operation_id = "readTemplateLog",
    params(("job" = saggar_api::schema::JobId, Path, description = "The job"), TemplateLogQuery),
    responses(
        (status = 200, description = "Lines; or a stream of them", content(
            (TemplateLog = "application/json"),
            (String = "text/event-stream"),
        )),
    ),
)]
pub(crate) async fn log(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(id): PathId<JobId>,
    Query(query): Query<TemplateLogQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let from = match last_event(&headers)? {
        Some(next) => u32::try_from(next).unwrap_or(u32::MAX),
        None => query.from,
    };
    let most = query.limit.unwrap_or(LINES_MAX);
    if !(1..=LINES_MAX).contains(&most) {
        return Err(Refusal::invalid(format!("limit is not between 1 and {LINES_MAX}"), "choose another"));
    }
    let (job, lines) = server.sandboxes.template_job_lines(&allowed.permit, &id, from as usize, most as usize).await?;
    if wants_stream(&headers) {
        let source =
            Following { server: server.clone(), permit: allowed.permit, id, next: from, ready: VecDeque::new() };
        return Ok(sse::answer(server.gate.clone(), source));
    }
    let next = from.saturating_add(u32::try_from(lines.len()).unwrap_or(u32::MAX));
    let items = lines.into_iter().map(line).collect();
    Ok(axum::Json(TemplateLog { items, next, state: state(job.state) }).into_response())
}

/// The lines as they are written.
struct Following {
    server: Shared,
    permit: Permit,
    id: JobId,
    next: u32,
    ready: VecDeque<JobLine>,
}

impl Source for Following {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                self.next += 1;
                return Some(sse::json(self.next.to_string(), "line", &line(ready)));
            }
            // Before the lines are read, so that none is missed.
            let changes = self.server.sandboxes.template_job_changes(&self.permit, &self.id);
            let (job, lines) = self
                .server
                .sandboxes
                .template_job_lines(&self.permit, &self.id, self.next as usize, LINES_MAX as usize)
                .await
                .ok()?;
            self.ready.extend(lines);
            if !self.ready.is_empty() {
                continue;
            }
            if job.state.is_over() {
                return None;
            }
            changes?.changed().await.ok()?;
        }
    }
}

fn line(line: JobLine) -> TemplateLogLine {
    TemplateLogLine { at: wire::time(line.at), step: line.step, is_error: line.is_error, text: line.text }
}

fn state(state: JobState) -> TemplateJobState {
    match state {
        JobState::Waiting => TemplateJobState::Waiting,
        JobState::Running => TemplateJobState::Running,
        JobState::Succeeded => TemplateJobState::Succeeded,
        JobState::Failed => TemplateJobState::Failed,
        JobState::Cancelled => TemplateJobState::Cancelled,
    }
}

fn shown(job: JobView) -> TemplateJob {
    let problem = job.outcome.as_ref().and_then(|outcome| {
        let problem = outcome.problem.clone()?;
        Some(TemplateJobProblem {
            code: problem.code.as_str().to_owned(),
            detail: problem.message,
            help: problem.help,
            step: outcome.step.clone(),
        })
    });
    TemplateJob {
        id: job.id,
        kind: match job.kind {
            JobKind::Import => TemplateJobKind::Import,
            JobKind::Build => TemplateJobKind::Build,
        },
        name: job.names.into_iter().next().unwrap_or_default(),
        state: state(job.state),
        steps_done: job.progress.map(|(done, _)| done),
        steps: job.progress.map(|(_, count)| count),
        created_at: wire::time(job.created_at),
        ended_at: job.outcome.as_ref().map(|outcome| wire::time(outcome.at)),
        template: job.outcome.and_then(|outcome| outcome.template),
        problem,
    }
}
