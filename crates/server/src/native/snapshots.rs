//! Snapshots: take, list, read, remove, export and import; and forks of sandboxes.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use saggar_api::{
    CreateSnapshot, CreatedSandbox, DiffQuery, ForkOutcome, ForkSandbox, ForkedSandboxes, ImportSnapshot,
    ListSnapshots, RemovedSnapshot, RollBackSandbox, Sandbox, Secret, Snapshot, SnapshotChange, SnapshotChangeKind,
    SnapshotDiff, SnapshotList, SnapshotOfRun, TemplateRest, route,
};
use saggar_domain::SnapshotId;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Create};
use saggar_http::download::flushed;
use saggar_http::extract::{Json, PathId, Pieces, Query};
use saggar_http::wire;
use saggar_runtime::{
    Created, DiffEntry, Difference, Fault, ForkOptions, SNAPSHOTS, SnapshotQuery, SnapshotView, TakeSnapshot,
};

use super::resource::resource;
use super::template_jobs::received;
use super::templates::rest;
use crate::server::Shared;

resource! {
    tag "snapshots": "The files of sandboxes at one moment, from which others are started.";
    bounded {
        route::SANDBOX_SNAPSHOTS => post take;
        route::SNAPSHOTS => get list;
        route::SNAPSHOT => get get, delete remove;
        route::SNAPSHOT_DIFF => get diff;
        route::SANDBOX_FORK => post fork;
        route::SANDBOX_ROLLBACK => post roll_back;
    }
    streaming {
        route::SNAPSHOT_ARCHIVE => get export;
        route::SNAPSHOT_IMPORT => post import;
    }
}

saggar_http::wanted! {
    /// Lists, reads and removes snapshots.
    Manage => Manage(SNAPSHOTS);
}

/// Take a snapshot of a sandbox
///
/// The sandbox's programs stand still for a moment and then go on; those of a paused one stay paused. The snapshot has the files of its
/// root, `/home` and `/tmp` among them, and neither workspaces, volumes, memory nor processes.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/snapshots", tag = "snapshots", operation_id = "takeSnapshot",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = CreateSnapshot,
    responses((status = 201, description = "The snapshot", body = Snapshot)),
)]
pub(crate) async fn take(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(CreateSnapshot { name, labels, ttl }): Json<CreateSnapshot>,
) -> Result<(StatusCode, axum::Json<Snapshot>), Refusal> {
    let labels = wire::labels(labels.iter())?;
    let keep_for = ttl.map(|ttl| wire::lifetime("ttl", ttl)).transpose()?;
    let taken =
        server.sandboxes.take_snapshot(&allowed.permit, TakeSnapshot { name, labels, keep_for, of_run: None }).await?;
    Ok((StatusCode::CREATED, axum::Json(shown(taken))))
}

/// List snapshots, oldest first
#[utoipa::path(
    get, path = "/api/v1/snapshots", tag = "snapshots", operation_id = "listSnapshots",
    params(ListSnapshots),
    responses((status = 200, description = "The snapshots of the project that match", body = SnapshotList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(list): Query<ListSnapshots>,
) -> Result<axum::Json<SnapshotList>, Refusal> {
    let labels = list.label.iter().map(|label| (label.name().to_owned(), label.value().to_owned())).collect();
    let query = SnapshotQuery { sandbox: list.sandbox, name: list.name, labels };
    let found = server.sandboxes.snapshots(&allowed.permit, query).await?;
    Ok(axum::Json(SnapshotList { items: found.into_iter().map(shown).collect() }))
}

/// Read a snapshot
#[utoipa::path(
    get, path = "/api/v1/snapshots/{snapshot}", tag = "snapshots", operation_id = "getSnapshot",
    params(("snapshot" = saggar_api::schema::SnapshotId, Path, description = "The snapshot")),
    responses((status = 200, description = "The snapshot, and the sandboxes that were started from it", body = Snapshot)),
)]
pub(crate) async fn get(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(id): PathId<SnapshotId>,
) -> Result<axum::Json<Snapshot>, Refusal> {
    Ok(axum::Json(shown(server.sandboxes.snapshot(&allowed.permit, &id).await?)))
}

/// Remove a snapshot
///
/// Nothing can be started from it any more. Sandboxes that use its files, and other snapshots, keep them.
#[utoipa::path(
    delete, path = "/api/v1/snapshots/{snapshot}", tag = "snapshots", operation_id = "removeSnapshot",
    params(("snapshot" = saggar_api::schema::SnapshotId, Path, description = "The snapshot")),
    responses((status = 200, description = "It is gone", body = RemovedSnapshot)),
)]
pub(crate) async fn remove(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(id): PathId<SnapshotId>,
) -> Result<axum::Json<RemovedSnapshot>, Refusal> {
    let files: TemplateRest = rest(server.sandboxes.remove_snapshot(&allowed.permit, &id).await?);
    Ok(axum::Json(RemovedSnapshot { id, files }))
}

/// Compare two snapshots
///
/// Lists what was added, changed and removed, with the lines of small texts.
#[utoipa::path(
    get, path = "/api/v1/snapshots/{snapshot}/diff", tag = "snapshots", operation_id = "diffSnapshots",
    params(("snapshot" = saggar_api::schema::SnapshotId, Path, description = "The snapshot that counts as after"), DiffQuery),
    responses((status = 200, description = "What differs, by path", body = SnapshotDiff)),
)]
pub(crate) async fn diff(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(DiffQuery { from }): Query<DiffQuery>,
    PathId(to): PathId<SnapshotId>,
) -> Result<axum::Json<SnapshotDiff>, Refusal> {
    let found = server.sandboxes.diff_snapshots(&allowed.permit, &from, &to).await?;
    let item = |entry: DiffEntry| SnapshotChange {
        path: format!("/{}", String::from_utf8_lossy(&entry.path)),
        change: match entry.difference {
            Difference::Added => SnapshotChangeKind::Added,
            Difference::Changed => SnapshotChangeKind::Changed,
            Difference::Removed => SnapshotChangeKind::Removed,
        },
        is_directory: entry.is_directory,
        size_before: entry.sizes.0,
        size_after: entry.sizes.1,
        text: entry.text,
    };
    Ok(axum::Json(SnapshotDiff { items: found.entries.into_iter().map(item).collect(), is_cut: found.is_cut }))
}

/// Export a snapshot as one file
///
/// The file is a tar archive of an OCI image layout, which other programs read too. The header `ETag` has the digest of its manifest, which
/// names everything else in it.
#[utoipa::path(
    get, path = "/api/v1/snapshots/{snapshot}/archive", tag = "snapshots", operation_id = "exportSnapshot",
    params(("snapshot" = saggar_api::schema::SnapshotId, Path, description = "The snapshot")),
    responses((status = 200, description = "The file", body = inline(saggar_api::schema::Octets), content_type = "application/x-tar")),
)]
pub(crate) async fn export(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(id): PathId<SnapshotId>,
) -> Result<Response, Refusal> {
    let export = server.sandboxes.export_snapshot(&allowed.permit, &id).await?;
    let tag = HeaderValue::try_from(format!("\"{}\"", export.digest)).expect("a digest is ASCII");
    let name = HeaderValue::try_from(format!("attachment; filename=\"{id}.tar\"")).expect("an id is ASCII");
    let length = HeaderValue::from(export.bytes);
    let pieces = stream::try_unfold(export, |mut export| async move {
        let piece = flushed(export.next().await).await?;
        Ok::<_, Fault>(piece.map(|piece| (piece, export)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONTENT_DISPOSITION, name);
    headers.insert(ETAG, tag);
    Ok(response)
}

/// Import an exported snapshot
///
/// The body is a file that was exported, at most `import_size_max` bytes. All of it is compared with its digests before anything becomes
/// visible. The snapshot gets a new id.
#[utoipa::path(
    post, path = "/api/v1/snapshots/import", tag = "snapshots", operation_id = "importSnapshot",
    params(ImportSnapshot),
    request_body(content = inline(saggar_api::schema::Octets), content_type = "application/x-tar"),
    responses((status = 201, description = "The snapshot", body = Snapshot)),
)]
pub(crate) async fn import(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Query(ImportSnapshot { digest, name, label, ttl }): Query<ImportSnapshot>,
    pieces: Pieces,
) -> Result<(StatusCode, axum::Json<Snapshot>), Refusal> {
    let labels = wire::labels(label.iter().map(|label| (label.name(), label.value())))?;
    let keep_for = ttl.map(|ttl| wire::lifetime("ttl", ttl)).transpose()?;
    let upload = received(&server, pieces, server.sandboxes.begin_snapshot_upload(&allowed.permit)).await?;
    let take = TakeSnapshot { name, labels, keep_for, of_run: None };
    let brought = server.sandboxes.import_snapshot(&allowed.permit, upload, digest, take).await?;
    Ok((StatusCode::CREATED, axum::Json(shown(brought))))
}

/// Take a sandbox back to a snapshot
///
/// All its programs are ended, and its files are those of the snapshot. It keeps its id, tokens, variables, rules and time.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/rollback", tag = "snapshots", operation_id = "rollBackSandbox",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = RollBackSandbox,
    responses((status = 200, description = "The sandbox in its current state", body = Sandbox)),
)]
pub(crate) async fn roll_back(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(RollBackSandbox { snapshot }): Json<RollBackSandbox>,
) -> Result<axum::Json<Sandbox>, Refusal> {
    let row = server.sandboxes.roll_back(&allowed.permit, &snapshot).await?;
    Ok(axum::Json(wire::sandbox(row, server.known_unenforced())?))
}

/// Fork a sandbox
///
/// Each fork has the files that the sandbox has now, its variables, limits and rules, and starts without its programs. Some may be refused
/// while others are made, for example if there is not enough room.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/fork", tag = "snapshots", operation_id = "forkSandbox",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = ForkSandbox,
    responses((status = 201, description = "The forks, each with what became of it", body = ForkedSandboxes)),
)]
pub(crate) async fn fork(
    allowed: Allowed<Change>,
    create: Allowed<Create>,
    State(server): State<Shared>,
    Json(ForkSandbox { count, ttl }): Json<ForkSandbox>,
) -> Result<(StatusCode, axum::Json<ForkedSandboxes>), Refusal> {
    let ttl = ttl.map(|ttl| wire::lifetime("ttl", ttl)).transpose()?;
    let options = ForkOptions { count: count.unwrap_or(1), ttl };
    let forked = server.sandboxes.fork(&allowed.permit, &create.permit, options).await?;
    let frozen_us = u64::try_from(forked.frozen.as_micros()).unwrap_or(u64::MAX);
    let items = forked.forks.into_iter().map(|fork| outcome(&server, fork)).collect();
    Ok((StatusCode::CREATED, axum::Json(ForkedSandboxes { items, has_processes: false, frozen_us })))
}

fn outcome(server: &Shared, fork: Result<Created, Fault>) -> ForkOutcome {
    let made = fork.map_err(Refusal::from).and_then(|created| {
        let unenforced = server.learn_unenforced(created.unenforced);
        let sandbox = wire::sandbox(created.sandbox, unenforced)?;
        Ok(CreatedSandbox { sandbox, access_token: Some(Secret::new(created.access_token)) })
    });
    match made {
        Ok(sandbox) => ForkOutcome::Sandbox(Box::new(sandbox)),
        Err(Refusal(problem)) => ForkOutcome::Problem(problem),
    }
}

fn shown(view: SnapshotView) -> Snapshot {
    let SnapshotView { record, used_by } = view;
    let facts = record.facts;
    Snapshot {
        id: record.id,
        name: facts.name,
        sandbox_id: facts.sandbox,
        parent_id: facts.parent,
        of_run: facts.of_run.map(|of| SnapshotOfRun { run_id: of.run, step: of.step }),
        labels: wire::shown_labels(&facts.labels),
        created_at: wire::time(facts.created_at),
        expires_at: facts.expires_at.map(wire::time),
        bytes: facts.bytes,
        entries: facts.entries,
        frozen_us: facts.frozen_us,
        has_processes: false,
        used_by,
    }
}
