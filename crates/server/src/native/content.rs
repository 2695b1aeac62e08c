//! The content of files, in and out, as a stream: constant memory, whatever the size.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Method, Uri};
use saggar_api::{FileMode, FileQuery, WriteQuery, WriteReport, route};
use saggar_http::Refusal;
use saggar_http::access::signed;
use saggar_http::access::{Allowed, ReadFile, WriteFile};
use saggar_http::download::{Unread, download};
use saggar_http::extract::{Pieces, too_large};
use saggar_runtime::{Files, WriteOptions};

use super::resource::resource;
use crate::server::Shared;

resource! {
    streaming {
        route::FILES => get read, put write;
    }
}

/// Read a file
///
/// `Range: bytes=…` gives a part of it. A signed address needs no key.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files", tag = "files", operation_id = "readFile",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        FileQuery,
        ("Range" = Option<String>, Header, description = "One range of bytes"),
    ),
    responses(
        (status = 200, description = "The file", body = inline(saggar_api::schema::Octets), content_type = "application/octet-stream"),
        (status = 206, description = "A part of it", body = inline(saggar_api::schema::Octets), content_type = "application/octet-stream"),
    ),
)]
pub(crate) async fn read(
    allowed: Allowed<ReadFile>,
    State(server): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let query: FileQuery = saggar_api::read::query(&signed::unsigned(uri.query()))?;
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let files = Files::to_read(&server.sandboxes, &allowed.permit, user).await?;
    match download(files, &path, &method, &headers).await {
        Ok(response) => Ok(response),
        Err(Unread::Fault(fault)) => Err(fault.into()),
        Err(Unread::Refused(refusal)) => Err(refusal),
    }
}

/// Write a file
///
/// All of it appears at once, or nothing of it. A signed address needs no key.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/files", tag = "files", operation_id = "writeFile",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), WriteQuery),
    request_body(content = inline(saggar_api::schema::Octets), content_type = "application/octet-stream"),
    responses((status = 200, description = "It is written", body = WriteReport)),
)]
pub(crate) async fn write(
    allowed: Allowed<WriteFile>,
    State(server): State<Shared>,
    uri: Uri,
    mut body: Pieces,
) -> Result<axum::Json<WriteReport>, Refusal> {
    let query: WriteQuery = saggar_api::read::query(&signed::unsigned(uri.query()))?;
    let most = server.settings.upload_max.bytes();
    if body.expected().is_some_and(|expected| expected > most) {
        return Err(too_large(most));
    }
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let files = Files::to_write(&server.sandboxes, &allowed.permit, user).await?;
    let mode = query.mode.unwrap_or(FileMode::FILE).bits();
    let options = WriteOptions { mode, parents: query.parents, expected: body.expected() };
    let mut writing = files.write(&path, options).await?;
    let mut bytes = 0;
    while let Some(piece) = body.next().await? {
        bytes += piece.len() as u64;
        if bytes > most {
            return Err(too_large(most));
        }
        writing.data(&piece).await?;
    }
    writing.finish().await?;
    Ok(axum::Json(WriteReport { bytes }))
}
