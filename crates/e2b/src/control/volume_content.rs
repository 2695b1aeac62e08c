//! The files of a volume for E2B's clients, which have the volume's token for them and no sandbox.

use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{Method, StatusCode};
use saggar_api::{Code, Timestamp};
use saggar_domain::{User, VolumeId};
use saggar_http::Refusal;
use saggar_http::access::{self, Allowed};
use saggar_http::download::{self, Unread};
use saggar_http::extract::{Pieces, path_text, too_large, whole};
use saggar_runtime::{Fault, FileEntry, FileFault, FileFaultKind, FileKind, FilePath, VolumeContent, WriteOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use super::volumes::{Manage, chosen};
use crate::state::Shared;

/// Permissions of new files and directories, unless the request says others.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// Maximum number of entries in one listing.
const LIST_MAX: u32 = 10_000;
/// Maximum length of a body that is JSON.
const JSON_MAX: usize = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Query {
    path: String,
    depth: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
    force: Option<bool>,
}

/// What a request changes of a file besides its content.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Attributes {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

/// What a request is about: the last part of its path.
#[derive(Clone, Copy)]
enum Part {
    Path,
    Directory,
    File,
}

pub(super) async fn answer(
    State(server): State<Shared>,
    method: Method,
    mut parts: Parts,
    body: Body,
) -> Result<Response, Refusal> {
    let content = open(&server, &mut parts).await?;
    let part = match path_text(&mut parts, "part").await.as_deref() {
        Some("path") => Part::Path,
        Some("dir") => Part::Directory,
        Some("file") => Part::File,
        _ => return Err(Refusal::not_found("part of a volume", parts.uri.path())),
    };
    let query: Query = saggar_api::read::query(parts.uri.query().unwrap_or_default()).map_err(Refusal::from)?;
    let path = VolumeContent::place(&query.path)?;
    let request = Request { content, path, query };
    let done = match (method, part) {
        (Method::GET, Part::Path) => request.stat().await.map(|entry| axum::Json(entry).into_response()),
        (Method::PATCH, Part::Path) => request.patch(body).await,
        (Method::DELETE, Part::Path) => request.remove().await,
        (Method::GET, Part::Directory) => request.list().await,
        (Method::POST, Part::Directory) => request.make_directory().await,
        (Method::GET, Part::File) => request.read(&parts).await,
        (Method::PUT, Part::File) => request.write(&server, &parts, body).await,
        (method, _) => {
            let what = format!("{method} is not a method of this part of a volume");
            Err(Refusal::new(Code::MethodNotAllowed, what, "use a current version of the client").into())
        }
    };
    done.map_err(|failure| match failure {
        Failure::Fault(fault) => VolumeContent::fault(fault).into(),
        Failure::Refused(refusal) => refusal,
    })
}

/// By the volume's token, or by a key of its project.
async fn open(server: &Shared, parts: &mut Parts) -> Result<VolumeContent, Refusal> {
    let asked = path_text(parts, "volume").await.unwrap_or_default();
    let shown = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let bearer = VolumeId::parse(&asked).zip(shown).and_then(|(id, token)| server.sandboxes.volume_bearer(&id, token));
    let permit = match bearer {
        Some(subject) => access::volumes_of(&subject)?,
        None => {
            use axum::extract::FromRequestParts;
            Allowed::<Manage>::from_request_parts(parts, server).await?.permit
        }
    };
    let volumes = server.sandboxes.volumes(&permit).await?;
    let volume = chosen(volumes, &asked).ok_or_else(|| Refusal::not_found("volume", &asked))?;
    Ok(server.sandboxes.volume_content(&permit, &volume.record).await?)
}

enum Failure {
    Fault(Fault),
    Refused(Refusal),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

struct Request {
    content: VolumeContent,
    path: FilePath,
    query: Query,
}

impl Request {
    async fn stat(&self) -> Result<Value, Failure> {
        let mut files = self.content.to_read(User::Root).await?;
        Ok(shown(&self.path, &files.stat(&self.path, false).await?))
    }

    async fn list(&self) -> Result<Response, Failure> {
        let mut files = self.content.to_read(User::Root).await?;
        let (entries, _) = files.list(&self.path, self.query.depth.unwrap_or(1), LIST_MAX).await?;
        let item = |entry: &FileEntry| Ok(shown(&self.path.join(&entry.path)?, entry));
        let items = entries.iter().map(item).collect::<Result<Vec<_>, Fault>>()?;
        Ok(axum::Json(items).into_response())
    }

    async fn read(&self, parts: &Parts) -> Result<Response, Failure> {
        let files = self.content.to_read(User::Root).await?;
        match download::download(files, &self.path, &parts.method, &parts.headers).await {
            Ok(response) => Ok(response),
            Err(Unread::Fault(fault)) => Err(fault.into()),
            Err(Unread::Refused(refusal)) => Err(refusal.into()),
        }
    }

    async fn make_directory(&self) -> Result<Response, Failure> {
        let (mode, parents) = (self.query.mode.unwrap_or(DIRECTORY_MODE), self.query.force == Some(true));
        let mut files = self.content.to_write(User::User).await?;
        // What belongs to the sandboxes' user stays that user's; the rest needs root.
        match files.make_directory(&self.path, parents, mode).await {
            Err(fault) if is_denied(&fault) => {
                files = self.content.to_write(User::Root).await?;
                files.make_directory(&self.path, parents, mode).await?;
            }
            done => done?,
        }
        self.finish(&Attributes { mode: self.query.mode, ..self.owners() }).await
    }

    async fn write(&self, server: &Shared, parts: &Parts, body: Body) -> Result<Response, Failure> {
        let mut pieces = Pieces::of(&parts.headers, body);
        let most = server.settings.upload_max.bytes();
        if pieces.expected().is_some_and(|expected| expected > most) {
            return Err(too_large(most).into());
        }
        let user = self.writer().await?;
        let mode = self.query.mode.unwrap_or(FILE_MODE);
        let options = WriteOptions { mode, parents: self.query.force == Some(true), expected: pieces.expected() };
        let mut writing = self.content.to_write(user).await?.write(&self.path, options).await?;
        let mut left = most;
        while let Some(piece) = pieces.next().await? {
            left = left.checked_sub(piece.len() as u64).ok_or_else(|| too_large(most))?;
            writing.data(&piece).await?;
        }
        writing.finish().await?;
        self.finish(&Attributes { mode: self.query.mode, ..self.owners() }).await
    }

    /// Who writes: the user of sandboxes, or root where that user can't. That a write is refused is known only when its content has been
    /// sent.
    async fn writer(&self) -> Result<User, Failure> {
        let mut files = self.content.to_read(User::Root).await?;
        let can_write = |entry: &FileEntry| entry.uid == User::User.id() || entry.mode & 0o002 != 0;
        if let Ok(entry) = files.stat(&self.path, true).await {
            return Ok(if can_write(&entry) { User::User } else { User::Root });
        }
        let text = VolumeContent::shown(&self.path);
        let mut parent = text.as_str();
        while let Some((above, _)) = parent.rsplit_once('/') {
            parent = above;
            if let Ok(entry) = files.stat(&VolumeContent::place(parent)?, true).await {
                return Ok(if can_write(&entry) { User::User } else { User::Root });
            }
        }
        Ok(User::Root)
    }

    async fn patch(&self, body: Body) -> Result<Response, Failure> {
        let body = whole(body, JSON_MAX).await?;
        let attributes: Attributes = serde_json::from_slice(&body)
            .map_err(|error| Refusal::invalid(format!("the body is not right: {error}"), "send uid, gid or mode"))?;
        self.change(&attributes).await?;
        Ok(axum::Json(self.stat().await?).into_response())
    }

    async fn remove(&self) -> Result<Response, Failure> {
        if VolumeContent::shown(&self.path) == "/" {
            let what = "the top of a volume can't be removed";
            return Err(Refusal::invalid(what, "destroy the volume, or name what is in it").into());
        }
        self.content.to_write(User::Root).await?.remove(&self.path, true).await?;
        Ok(StatusCode::NO_CONTENT.into_response())
    }

    fn owners(&self) -> Attributes {
        Attributes { uid: self.query.uid, gid: self.query.gid, mode: None }
    }

    async fn finish(&self, attributes: &Attributes) -> Result<Response, Failure> {
        self.change(attributes).await?;
        Ok((StatusCode::CREATED, axum::Json(self.stat().await?)).into_response())
    }

    async fn change(&self, attributes: &Attributes) -> Result<(), Failure> {
        let Attributes { uid, gid, mode } = *attributes;
        if uid.is_none() && gid.is_none() && mode.is_none() {
            return Ok(());
        }
        let mut files = self.content.to_write(User::Root).await?;
        if uid.is_some() || gid.is_some() {
            files.set_owner(&self.path, uid, gid).await?;
        }
        // Afterwards, because a change of owner takes permissions away.
        if let Some(mode) = mode {
            files.set_mode(&self.path, mode).await?;
        }
        Ok(())
    }
}

fn is_denied(fault: &Fault) -> bool {
    matches!(fault, Fault::File(FileFault { kind: FileFaultKind::PermissionDenied, .. }))
}

/// An entry as clients read it. There is one time for all three that they know.
fn shown(path: &FilePath, entry: &FileEntry) -> Value {
    let kind = match entry.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "symlink",
        FileKind::Other => "unknown",
    };
    let text = VolumeContent::shown(path);
    let name = text.rsplit('/').next().unwrap_or_default();
    let time = Timestamp::from(UNIX_EPOCH + Duration::from_nanos(entry.modified_ns.max(0) as u64));
    let mut shown = json!({
        "name": name,
        "type": kind,
        "path": text,
        "size": entry.size,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "atime": time,
        "mtime": time,
        "ctime": time,
    });
    if let Some(target) = &entry.link_target {
        shown["target"] = json!(String::from_utf8_lossy(target));
    }
    shown
}
