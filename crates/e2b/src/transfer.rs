//! File contents over plain HTTP, `/files`: read raw; written from a form with one or many files, or from a raw body.

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, Uri};
use saggar_domain::{SandboxId, User};
use saggar_http::access::Insider;
use saggar_http::download::{self, Unread};
use saggar_http::extract::{Pieces, too_large};
use saggar_runtime::{Action, Fault, FileFault, FileFaultKind, FilePath, Files, MetadataEntry, WriteOptions, Writing};
use serde_json::{Value, json};

use super::connect::{self, Actor};
use super::failure::{CallFailure, Code};
use super::filesystem;
use super::form::Form;
use super::token::{self, FileQuery, Operation};
use crate::state::Shared;

/// Permissions of a new file.
const FILE_MODE: u32 = 0o644;
/// Permissions of a new directory.
const DIRECTORY_MODE: u32 = 0o755;
/// Maximum number of files in one form.
const FILES_MAX: usize = 1000;
/// Prefix of the headers with a file's metadata.
const METADATA_PREFIX: &str = "x-metadata-";

/// The query of a file URL.
pub(super) fn query(uri: &Uri) -> Result<FileQuery, CallFailure> {
    Ok(saggar_api::read::query(uri.query().unwrap_or_default()).map_err(saggar_http::Refusal::from)?)
}

/// The user and the path.
fn acting(
    server: &Shared,
    insider: &Insider,
    parts: &Parts,
    query: &FileQuery,
    action: fn(SandboxId) -> Action,
) -> Result<Actor, CallFailure> {
    let named = query.username.clone().filter(|name| !name.is_empty());
    let name = named.map_or_else(|| connect::user_name(&parts.headers), |name| Ok(Some(name)))?;
    Actor::of(server, &insider.may(action)?, name.as_deref())
}

pub(super) async fn download(server: &Shared, parts: &Parts, sandbox: &SandboxId) -> Result<Response, CallFailure> {
    let query = query(&parts.uri)?;
    let insider = token::file_insider(server, &parts.headers, sandbox, Operation::Read, &query)?;
    let actor = acting(server, &insider, parts, &query, Action::ReadFiles)?;
    let path = filesystem::place(query.path.as_deref().unwrap_or_default(), &actor.home)?;
    let files = Files::to_read(&server.sandboxes, &insider.may(Action::ReadFiles)?, actor.user).await?;
    match download::download(files, &path, &parts.method, &parts.headers).await {
        Ok(response) => Ok(response),
        Err(Unread::Fault(fault)) => Err(fault.into()),
        Err(Unread::Refused(refusal)) => Err(refusal.into()),
    }
}

/// Whether the service of files goes on as root: E2B's is root in the sandbox, and the user says where a path begins.
fn is_denied(fault: &Fault, user: User) -> bool {
    user != User::Root && matches!(fault, Fault::File(FileFault { kind: FileFaultKind::PermissionDenied, .. }))
}

pub(super) async fn upload(
    server: &Shared,
    parts: &Parts,
    body: Body,
    sandbox: &SandboxId,
) -> Result<Response, CallFailure> {
    let query = query(&parts.uri)?;
    let insider = token::file_insider(server, &parts.headers, sandbox, Operation::Write, &query)?;
    let actor = acting(server, &insider, parts, &query, Action::WriteFiles)?;
    let upload = Upload { server, insider: &insider, actor, metadata: metadata(&parts.headers)?, written: Vec::new() };
    let pieces = Pieces::of(&parts.headers, body);
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_gzip = match parts.headers.get(CONTENT_ENCODING).map(|encoding| encoding.as_bytes()) {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => return Err(CallFailure::new(Code::UnsupportedMediaType, "the body must be uncompressed, or gzip")),
    };
    let written = match (essence.as_str(), query.path.as_deref()) {
        ("multipart/form-data", path) if !is_gzip => upload.form(kind, path, pieces).await?,
        ("multipart/form-data", _) => {
            return Err(CallFailure::new(
                Code::UnsupportedMediaType,
                "a form can't be compressed; send application/octet-stream",
            ));
        }
        ("application/octet-stream", Some(path)) => upload.bare(path, is_gzip, pieces).await?,
        ("application/octet-stream", None) => {
            return Err(CallFailure::invalid("a raw body needs the parameter `path`"));
        }
        _ => {
            let message = "send multipart/form-data or application/octet-stream";
            return Err(CallFailure::new(Code::UnsupportedMediaType, message));
        }
    };
    Ok(Json(written).into_response())
}

/// The metadata of the files. Names come in lower case, because header names are case-insensitive.
fn metadata(headers: &HeaderMap) -> Result<Vec<MetadataEntry>, CallFailure> {
    let named = headers.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix(METADATA_PREFIX)?, value)));
    let entry = |(name, value): (&str, &http::HeaderValue)| {
        let is_text = value.as_bytes().iter().all(|byte| (0x20..0x7f).contains(byte));
        if name.is_empty() || !is_text {
            return Err(CallFailure::invalid("metadata names and values must be printable ASCII"));
        }
        Ok(MetadataEntry { name: name.as_bytes().to_vec(), value: value.as_bytes().to_vec() })
    };
    named.map(entry).collect()
}

struct Upload<'a> {
    server: &'a Shared,
    insider: &'a Insider,
    actor: Actor,
    metadata: Vec<MetadataEntry>,
    written: Vec<Value>,
}

impl Upload<'_> {
    async fn bare(mut self, path: &str, is_gzip: bool, mut pieces: Pieces) -> Result<Vec<Value>, CallFailure> {
        let path = filesystem::place(path, &self.actor.home)?;
        let expected = if is_gzip { None } else { pieces.expected() };
        let mut allowance = Allowance::of(self.server, pieces.expected())?;
        let mut writing = self.begin(&path, expected).await?;
        let mut gzip = is_gzip.then(|| MultiGzDecoder::new(Vec::new()));
        while let Some(piece) = pieces.next().await? {
            match &mut gzip {
                None => {
                    allowance.take(piece.len())?;
                    writing.data(&piece).await?;
                }
                Some(decoder) => inflate(decoder, &piece, &mut allowance, &mut writing).await?,
            }
        }
        if let Some(decoder) = gzip {
            let rest = decoder.finish().map_err(|_| not_gzip())?;
            allowance.take(rest.len())?;
            writing.data(&rest).await?;
        }
        self.finish(&path, writing).await?;
        Ok(self.written)
    }

    /// A form of files, each named by its destination; or of one file, whose destination is in the URL.
    async fn form(mut self, kind: &str, path: Option<&str>, mut pieces: Pieces) -> Result<Vec<Value>, CallFailure> {
        let mut allowance = Allowance::of(self.server, pieces.expected())?;
        let mut form = Form::of(kind, &mut pieces)?;
        while let Some(mut part) = form.next().await? {
            // Fields that are not files are ignored.
            let mut file = match part.name.as_str() {
                "file" => Some(self.begin_part(path, part.file_name.take()).await?),
                _ => None,
            };
            while let Some(data) = part.data().await? {
                allowance.take(data.len())?;
                if let Some((_, writing)) = &mut file {
                    writing.data(&data).await?;
                }
            }
            if let Some((to, writing)) = file {
                self.finish(&to, writing).await?;
            }
        }
        drop(form);
        // What follows the form says nothing, and is taken so that the connection can be used again.
        while let Some(piece) = pieces.next().await? {
            allowance.take(piece.len())?;
        }
        Ok(self.written)
    }

    async fn begin_part(
        &self,
        path: Option<&str>,
        file_name: Option<String>,
    ) -> Result<(FilePath, Writing), CallFailure> {
        if self.written.len() >= FILES_MAX {
            return Err(CallFailure::new(Code::TooLarge, format!("a form has more than {FILES_MAX} files")));
        }
        let to = match (path, file_name) {
            (Some(_), _) if !self.written.is_empty() => {
                return Err(CallFailure::invalid("several files need their own names, and no `path`"));
            }
            (Some(path), _) => path.to_owned(),
            (None, Some(name)) => name,
            (None, None) => return Err(CallFailure::invalid("a file of the form has no name")),
        };
        let to = filesystem::place(&to, &self.actor.home)?;
        let writing = self.begin(&to, None).await?;
        Ok((to, writing))
    }

    async fn begin(&self, path: &FilePath, expected: Option<u64>) -> Result<Writing, CallFailure> {
        let user = self.writer(path).await?;
        let files = Files::to_write(&self.server.sandboxes, &self.insider.may(Action::WriteFiles)?, user).await?;
        Ok(files.write(path, WriteOptions { mode: FILE_MODE, parents: true, expected }).await?)
    }

    /// Who writes there: the user, or root where the user can't make the directories that are missing. That a write is refused is known
    /// only when its content has been sent.
    async fn writer(&self, path: &FilePath) -> Result<User, CallFailure> {
        let text = path.to_string();
        let Actor { user, home } = &self.actor;
        let is_own =
            text.starts_with("/tmp/") || text.strip_prefix(home.as_str()).is_some_and(|rest| rest.starts_with('/'));
        let parent = text.rsplit_once('/').map_or("/", |(parent, _)| parent);
        if *user == User::Root || is_own || parent.is_empty() {
            return Ok(*user);
        }
        let parent = FilePath::parse(parent, home)?;
        let permit = self.insider.may(Action::WriteFiles)?;
        let mut files = Files::to_write(&self.server.sandboxes, &permit, *user).await?;
        match files.make_directory(&parent, true, DIRECTORY_MODE).await {
            Err(fault) if is_denied(&fault, *user) => Ok(User::Root),
            // Whatever else is wrong, the write itself says it.
            Ok(()) | Err(_) => Ok(*user),
        }
    }

    async fn finish(&mut self, path: &FilePath, writing: Writing) -> Result<(), CallFailure> {
        let mut files = writing.finish().await?;
        let mut written = json!({ "name": path.name(), "path": path.to_string(), "type": "file" });
        if !self.metadata.is_empty() {
            files.set_metadata(path, self.metadata.clone()).await?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let noted = self.metadata.iter().map(|entry| (text(&entry.name), json!(text(&entry.value))));
            written["metadata"] = Value::Object(noted.collect());
        }
        self.written.push(written);
        Ok(())
    }
}

/// The remaining size.
struct Allowance {
    most: u64,
    left: u64,
}

impl Allowance {
    fn of(server: &Shared, expected: Option<u64>) -> Result<Self, CallFailure> {
        let most = server.settings.upload_max.bytes();
        if expected.is_some_and(|expected| expected > most) {
            return Err(too_large(most).into());
        }
        Ok(Self { most, left: most })
    }

    fn take(&mut self, length: usize) -> Result<(), CallFailure> {
        self.left = self.left.checked_sub(length as u64).ok_or_else(|| CallFailure::from(too_large(self.most)))?;
        Ok(())
    }
}

/// Input processed at once: with gzip's best ratio, about 4 MiB of output.
const GZIP_STEP: usize = 4096;

async fn inflate(
    decoder: &mut MultiGzDecoder<Vec<u8>>,
    piece: &Bytes,
    allowance: &mut Allowance,
    writing: &mut Writing,
) -> Result<(), CallFailure> {
    for step in piece.chunks(GZIP_STEP) {
        std::io::Write::write_all(decoder, step).map_err(|_| not_gzip())?;
        let out = std::mem::take(decoder.get_mut());
        allowance.take(out.len())?;
        writing.data(&out).await?;
    }
    Ok(())
}

fn not_gzip() -> CallFailure {
    CallFailure::invalid("the gzip data is invalid or truncated")
}
