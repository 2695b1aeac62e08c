//! Files of a sandbox: stat, list, move, remove, metadata, and signed URLs.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::State;
use http::header::HOST;
use http::{HeaderMap, StatusCode};
use saggar_api::{
    Code, FileEntry, FileKind, FileList, FileMode, FileQuery, ListQuery, MakeDirectory, Metadata, MoveFile,
    RemoveQuery, SignFile, SignedMethod, SignedUrl, StatQuery, Timestamp, route,
};
use saggar_domain::{Timeout, User};
use saggar_http::Refusal;
use saggar_http::access::signed::{self, Grant};
use saggar_http::access::{Allowed, ReadFiles, WriteFiles};
use saggar_http::extract::{Json, Query};
use saggar_http::wire;
use saggar_runtime::{self as runtime, FilePath, Files, LIST_MAX, MetadataEntry, Permit};

use super::events::sandbox_of;
use super::resource::resource;
use crate::server::{Server, Shared};

resource! {
    tag "files": "Files of a sandbox, in its own view.";
    bounded {
        route::FILES_STAT => get stat;
        route::FILES_LIST => get list;
        route::FILES_MKDIR => post make_directory;
        route::FILES_MOVE => post move_file;
        route::FILES_METADATA => get metadata, put set_metadata;
        route::FILES_SIGN => post sign;
    }
    streaming {
        route::FILES => delete remove;
    }
}

/// Default maximum number of listed entries.
const LIST_DEFAULT: u32 = 10_000;
/// The longest validity of a signed URL.
const SIGNED_MAX: Timeout = Timeout::millis(7 * 86_400_000);

impl Server {
    /// A path in the sandbox's view, and the user.
    pub(super) fn place(
        &self,
        permit: &Permit,
        path: &saggar_api::FilePath,
        user: Option<User>,
    ) -> Result<(FilePath, User), Refusal> {
        let user = user.unwrap_or_else(|| self.sandboxes.default_user(permit));
        Ok((FilePath::parse(path.as_str(), &self.sandboxes.home_of(permit, user))?, user))
    }
}

/// Get information about an entry
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/stat", tag = "files", operation_id = "statFile",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), StatQuery),
    responses((status = 200, description = "The entry", body = FileEntry)),
)]
pub(crate) async fn stat(
    allowed: Allowed<ReadFiles>,
    State(server): State<Shared>,
    Query(query): Query<StatQuery>,
) -> Result<axum::Json<FileEntry>, Refusal> {
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let mut files = Files::to_read(&server.sandboxes, &allowed.permit, user).await?;
    Ok(axum::Json(shown(&path, files.stat(&path, query.follow).await?)?))
}

/// List a directory
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/list", tag = "files", operation_id = "listFiles",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), ListQuery),
    responses((status = 200, description = "Its entries", body = FileList)),
)]
pub(crate) async fn list(
    allowed: Allowed<ReadFiles>,
    State(server): State<Shared>,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<FileList>, Refusal> {
    let limit = query.limit.unwrap_or(LIST_DEFAULT);
    if !(1..=runtime::DEPTH_MAX).contains(&query.depth) || !(1..=LIST_MAX).contains(&limit) {
        return Err(Refusal::invalid("depth or limit is out of range", "depth is 1 to 64, limit 1 to 100000"));
    }
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let mut files = Files::to_read(&server.sandboxes, &allowed.permit, user).await?;
    let (entries, _skipped) = files.list(&path, query.depth, limit).await?;
    let entries = entries.into_iter().map(|entry| shown(&path, entry)).collect::<Result<Vec<_>, _>>()?;
    Ok(axum::Json(FileList { entries, truncated: false }))
}

/// Create a directory
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/files/mkdir", tag = "files", operation_id = "makeDirectory",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = MakeDirectory,
    responses((status = 204, description = "It is there")),
)]
pub(crate) async fn make_directory(
    allowed: Allowed<WriteFiles>,
    State(server): State<Shared>,
    Json(make): Json<MakeDirectory>,
) -> Result<StatusCode, Refusal> {
    let (path, user) = server.place(&allowed.permit, &make.path, make.user)?;
    let mode = make.mode.unwrap_or(FileMode::DIRECTORY).bits();
    let mut files = Files::to_write(&server.sandboxes, &allowed.permit, user).await?;
    files.make_directory(&path, make.parents, mode).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Rename a file or directory
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/files/move", tag = "files", operation_id = "moveFile",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = MoveFile,
    responses((status = 204, description = "The entry was renamed")),
)]
pub(crate) async fn move_file(
    allowed: Allowed<WriteFiles>,
    State(server): State<Shared>,
    Json(file): Json<MoveFile>,
) -> Result<StatusCode, Refusal> {
    let (from, user) = server.place(&allowed.permit, &file.from, file.user)?;
    let (to, _) = server.place(&allowed.permit, &file.to, file.user)?;
    let mut files = Files::to_write(&server.sandboxes, &allowed.permit, user).await?;
    files.move_to(&from, &to).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a file or directory
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/files", tag = "files", operation_id = "removeFile",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), RemoveQuery),
    responses((status = 204, description = "It is gone")),
)]
pub(crate) async fn remove(
    allowed: Allowed<WriteFiles>,
    State(server): State<Shared>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Refusal> {
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let mut files = Files::to_write(&server.sandboxes, &allowed.permit, user).await?;
    files.remove(&path, query.recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Read a file's metadata
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/metadata", tag = "files", operation_id = "getMetadata",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), FileQuery),
    responses((status = 200, description = "Names and values", body = Metadata)),
)]
pub(crate) async fn metadata(
    allowed: Allowed<ReadFiles>,
    State(server): State<Shared>,
    Query(query): Query<FileQuery>,
) -> Result<axum::Json<Metadata>, Refusal> {
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let mut files = Files::to_read(&server.sandboxes, &allowed.permit, user).await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let entries = files.metadata(&path).await?;
    let metadata: BTreeMap<String, String> =
        entries.into_iter().map(|entry| (text(entry.name), text(entry.value))).collect();
    Ok(axum::Json(Metadata { metadata }))
}

/// Replace a file's metadata
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/files/metadata", tag = "files", operation_id = "setMetadata",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), FileQuery),
    request_body = Metadata,
    responses((status = 204, description = "The metadata was replaced")),
)]
pub(crate) async fn set_metadata(
    allowed: Allowed<WriteFiles>,
    State(server): State<Shared>,
    Query(query): Query<FileQuery>,
    Json(Metadata { metadata }): Json<Metadata>,
) -> Result<StatusCode, Refusal> {
    if metadata.keys().any(|name| name.is_empty() || name.contains('\0')) {
        return Err(Refusal::invalid("a name is empty or has a NUL byte", "use other names"));
    }
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let entry = |(name, value): (String, String)| MetadataEntry { name: name.into_bytes(), value: value.into_bytes() };
    let mut files = Files::to_write(&server.sandboxes, &allowed.permit, user).await?;
    files.set_metadata(&path, metadata.into_iter().map(entry).collect()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Create a URL for one file that works without a key
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/files/sign", tag = "files", operation_id = "signFile",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = SignFile,
    responses((status = 200, description = "The address", body = SignedUrl)),
)]
pub(crate) async fn sign(
    reads: Allowed<ReadFiles>,
    writes: Allowed<WriteFiles>,
    State(server): State<Shared>,
    headers: HeaderMap,
    Json(sign): Json<SignFile>,
) -> Result<axum::Json<SignedUrl>, Refusal> {
    if sign.expires > SIGNED_MAX || sign.expires.as_millis() == 0 {
        return Err(Refusal::new(
            Code::InvalidValue,
            format!("{} is out of range", sign.expires),
            format!("choose up to {SIGNED_MAX}"),
        ));
    }
    let (permit, method) = match sign.method {
        SignedMethod::Get => (&reads.permit, "get"),
        SignedMethod::Put => (&writes.permit, "put"),
    };
    let id = sandbox_of(permit)?;
    // There is no URL for an ended sandbox, or one of another project.
    let (path, user) = (sign.path, sign.user.unwrap_or_else(|| server.sandboxes.default_user(permit)));
    server.sandboxes.check_live(permit).await?;
    let now = saggar_domain::Timestamp::from(SystemTime::now());
    let expires_at: Timestamp = wire::time(now.after(sign.expires.duration()));
    let grant = Grant { id: &id, method, path, user: Some(user), expires_at };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let url = server.base(host) + &signed::address(server.sandboxes.signing(), grant);
    Ok(axum::Json(SignedUrl { url, expires_at }))
}

/// An entry in the API's format. A worker's path is interpreted as below the requested one.
pub(super) fn shown(top: &FilePath, entry: runtime::FileEntry) -> Result<FileEntry, Refusal> {
    let path = top.join(&entry.path)?.bytes();
    let (path, path_base64) = FileEntry::written_path(&path);
    Ok(FileEntry {
        path,
        path_base64,
        kind: match entry.kind {
            runtime::FileKind::File => FileKind::File,
            runtime::FileKind::Directory => FileKind::Directory,
            runtime::FileKind::Link => FileKind::Link,
            runtime::FileKind::Other => FileKind::Other,
        },
        size: entry.size,
        mode: FileMode::of(entry.mode),
        uid: entry.uid,
        gid: entry.gid,
        modified_at: Timestamp::from_millis(u64::try_from(entry.modified_ns / 1_000_000).unwrap_or(0)),
        link_target: entry.link_target.map(|target| String::from_utf8_lossy(&target).into_owned()),
    })
}
