//! Whole trees, as tar archives in and out.
//!
//! Coming in, nothing is touched outside of the directory that is named: names that lead out are refused, and so is going through a link,
//! whether the archive brought it or the sandbox had it. Going out, a file that changes while it is read breaks the archive off.

use std::collections::HashSet;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use saggar_api::{Code, FileQuery, TreeReport, route};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, ReadFiles, WriteFiles};
use saggar_http::download::flushed;
use saggar_http::extract::{Pieces, Query, too_large};
use saggar_runtime::{
    Fault, FileEntry, FileFault, FileFaultKind, FileKind, FilePath, Files, Walked, Walking, WriteOptions, Writing,
};

use super::resource::resource;
use crate::native::archive::{self, ArchiveError, Inflater, Item, Kind, Packed, Unpacker};
use crate::server::Shared;

resource! {
    streaming {
        route::FILES_TREE => get download, put upload;
    }
}

/// Permissions of a directory that an archive has no entry for.
const DIRECTORY_MODE: u32 = 0o755;

/// Download a whole tree as a tar archive
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/tree", tag = "files", operation_id = "downloadTree",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), FileQuery),
    responses((status = 200, description = "The archive; what can't be read is left out", body = inline(saggar_api::schema::Octets), content_type = "application/x-tar")),
)]
pub(crate) async fn download(
    allowed: Allowed<ReadFiles>,
    State(server): State<Shared>,
    Query(query): Query<FileQuery>,
) -> Result<Response, Refusal> {
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let files = Files::to_read(&server.sandboxes, &allowed.permit, user).await?;
    let mut walking = files.walk(&path).await?;
    // The first answer says whether there is anything to be walked; after that it is too late for a status.
    let first = walking.next().await?;
    let packing = Packing { walking, waiting: first, left: 0, padding: &[], is_over: false };
    let pieces = stream::try_unfold(packing, |mut packing| async move {
        let piece = flushed(packing.next().await).await?;
        Ok::<_, Fault>(piece.map(|piece| (piece, packing)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    response.headers_mut().insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"tree.tar\""));
    Ok(response)
}

/// A tree that becomes an archive.
struct Packing {
    walking: Walking,
    waiting: Option<Walked>,
    /// Bytes that are still to come of the file in hand.
    left: u64,
    padding: &'static [u8],
    is_over: bool,
}

impl Packing {
    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if self.is_over {
                return Ok(None);
            }
            if self.left == 0 && !self.padding.is_empty() {
                return Ok(Some(Bytes::from_static(std::mem::take(&mut self.padding))));
            }
            let walked = match self.waiting.take() {
                Some(walked) => Some(walked),
                None => self.walking.next().await?,
            };
            match walked {
                Some(Walked::Data(bytes)) => {
                    self.left = self.left.saturating_sub(bytes.len() as u64);
                    return Ok(Some(bytes.into()));
                }
                // A file that became shorter would shift everything after it.
                _ if self.left > 0 => return Err(changed()),
                Some(Walked::Entry(entry)) => {
                    if let Some(header) = self.begin(&entry) {
                        return Ok(Some(header.into()));
                    }
                }
                Some(Walked::Skipped { .. }) => {}
                None => {
                    self.is_over = true;
                    return Ok(Some(Bytes::from_static(archive::end_of_archive())));
                }
            }
        }
    }

    /// The header of an entry; `None` for what has no place in an archive.
    fn begin(&mut self, entry: &FileEntry) -> Option<Vec<u8>> {
        let kind = match entry.kind {
            FileKind::File => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Link => Kind::Link,
            FileKind::Other => return None,
        };
        if kind == Kind::File {
            self.left = entry.size;
            self.padding = archive::padding(entry.size);
        }
        let path = if entry.path.is_empty() { &b"."[..] } else { &entry.path };
        Some(archive::entry(&Packed {
            path,
            kind,
            mode: entry.mode & 0o777,
            uid: entry.uid,
            gid: entry.gid,
            size: entry.size,
            modified: u64::try_from(entry.modified_ns / 1_000_000_000).unwrap_or(0),
            target: entry.link_target.as_deref().unwrap_or_default(),
        }))
    }
}

fn changed() -> Fault {
    Fault::File(FileFault { path: "a file".to_owned(), kind: FileFaultKind::Changed })
}

/// Upload a whole tree as a tar archive, plain or with gzip
///
/// Files, directories and symbolic links, below the directory that is named, which is made if it isn't there. An archive that holds
/// anything else, or goes through a link, is refused; what came before in it stays.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/files/tree", tag = "files", operation_id = "uploadTree",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), FileQuery),
    request_body(content = inline(saggar_api::schema::Octets), content_type = "application/x-tar"),
    responses((status = 200, description = "What was made", body = TreeReport)),
)]
pub(crate) async fn upload(
    allowed: Allowed<WriteFiles>,
    State(server): State<Shared>,
    Query(query): Query<FileQuery>,
    mut body: Pieces,
) -> Result<axum::Json<TreeReport>, Refusal> {
    let most = server.settings.upload_max.bytes();
    if body.expected().is_some_and(|expected| expected > most) {
        return Err(too_large(most));
    }
    let (top, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let mut files = Files::to_write(&server.sandboxes, &allowed.permit, user).await?;
    files.make_directory(&top, true, DIRECTORY_MODE).await?;
    let mut planting = Planting::new(top, files);
    let (mut inflater, mut unpacker) = (Inflater::New, Unpacker::new(most));
    let mut received = 0;
    while let Some(piece) = body.next().await? {
        received += piece.len() as u64;
        if received > most {
            return Err(too_large(most));
        }
        let plain = inflater.push(piece);
        planting.take(&mut unpacker, plain).await?;
        while let Some(plain) = inflater.next()? {
            planting.take(&mut unpacker, plain).await?;
        }
    }
    planting.take(&mut unpacker, inflater.finish()?).await?;
    unpacker.finish()?;
    Ok(axum::Json(planting.report))
}

/// An archive that becomes a tree.
struct Planting {
    top: FilePath,
    /// One of the two is there.
    files: Option<Files>,
    writing: Option<Writing>,
    /// Directories that are known to be some, and no links.
    directories: HashSet<Vec<u8>>,
    report: TreeReport,
}

impl Planting {
    fn new(top: FilePath, files: Files) -> Self {
        Self { top, files: Some(files), writing: None, directories: HashSet::new(), report: TreeReport::default() }
    }

    async fn take(&mut self, unpacker: &mut Unpacker, piece: Bytes) -> Result<(), Refusal> {
        unpacker.push(piece);
        while let Some(item) = unpacker.next()? {
            match item {
                Item::Directory { path, mode } => {
                    self.directory(&path, mode).await?;
                    self.report.directories += 1;
                }
                Item::File { path, mode, size } => {
                    self.parents(&path).await?;
                    self.make_way(&path, Way::Through).await?;
                    let at = self.top.join(&path)?;
                    let files = self.files.take().ok_or_else(Refusal::internal)?;
                    let options = WriteOptions { mode, parents: false, expected: Some(size) };
                    self.writing = Some(files.write(&at, options).await?);
                    self.report.files += 1;
                }
                Item::Data(bytes) => {
                    self.report.bytes += bytes.len() as u64;
                    self.writing.as_mut().ok_or_else(Refusal::internal)?.data(&bytes).await?;
                }
                Item::FileEnd => {
                    let writing = self.writing.take().ok_or_else(Refusal::internal)?;
                    self.files = Some(writing.finish().await?);
                }
                Item::Link { path, target } => {
                    self.parents(&path).await?;
                    self.make_way(&path, Way::Clear).await?;
                    let at = self.top.join(&path)?;
                    self.files()?.link(&at, &target).await?;
                    self.report.links += 1;
                }
            }
        }
        Ok(())
    }

    /// Every directory above, none of them a link.
    async fn parents(&mut self, path: &[u8]) -> Result<(), Refusal> {
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if !self.directories.contains(&path[..at]) {
                self.one_directory(&path[..at], DIRECTORY_MODE).await?;
            }
        }
        Ok(())
    }

    async fn directory(&mut self, path: &[u8], mode: u32) -> Result<(), Refusal> {
        self.parents(path).await?;
        self.one_directory(path, mode).await
    }

    async fn one_directory(&mut self, path: &[u8], mode: u32) -> Result<(), Refusal> {
        let at = self.top.join(path)?;
        match self.files()?.stat(&at, false).await {
            Ok(entry) => match entry.kind {
                FileKind::Directory => {}
                FileKind::Link => return Err(through_a_link(path)),
                FileKind::File | FileKind::Other => {
                    return Err(
                        Fault::File(FileFault { path: at.to_string(), kind: FileFaultKind::NotDirectory }).into()
                    );
                }
            },
            Err(Fault::File(FileFault { kind: FileFaultKind::NotFound, .. })) => {
                // What comes into it must be able to: its own mode may not let us.
                self.files()?.make_directory(&at, false, mode | 0o700).await?;
            }
            Err(fault) => return Err(fault.into()),
        }
        self.directories.insert(path.to_vec());
        Ok(())
    }

    /// Sees what is where an entry will be.
    async fn make_way(&mut self, path: &[u8], way: Way) -> Result<(), Refusal> {
        let at = self.top.join(path)?;
        let entry = match self.files()?.stat(&at, false).await {
            Ok(entry) => entry,
            Err(Fault::File(FileFault { kind: FileFaultKind::NotFound, .. })) => return Ok(()),
            Err(fault) => return Err(fault.into()),
        };
        match (entry.kind, way) {
            // Writing would go through it.
            (FileKind::Link, Way::Through) | (FileKind::Link | FileKind::File, Way::Clear) => {
                Ok(self.files()?.remove(&at, false).await?)
            }
            (FileKind::File, Way::Through) => Ok(()),
            (FileKind::Directory, _) => {
                Err(Fault::File(FileFault { path: at.to_string(), kind: FileFaultKind::IsDirectory }).into())
            }
            (FileKind::Other, _) => {
                Err(Fault::File(FileFault { path: at.to_string(), kind: FileFaultKind::NotRegular }).into())
            }
        }
    }

    fn files(&mut self) -> Result<&mut Files, Refusal> {
        self.files.as_mut().ok_or_else(Refusal::internal)
    }
}

/// What is done with what is there.
#[derive(Clone, Copy)]
enum Way {
    /// A file stays, and gets new content.
    Through,
    /// It is removed.
    Clear,
}

fn through_a_link(path: &[u8]) -> Refusal {
    Refusal::new(
        Code::InvalidArchive,
        format!("{:?} is a link in the sandbox, and the archive goes through it", String::from_utf8_lossy(path)),
        "name the directory that the link leads to, or remove the link",
    )
}

impl From<ArchiveError> for Refusal {
    fn from(error: ArchiveError) -> Self {
        let code = match &error {
            ArchiveError::Damaged(_) | ArchiveError::Entry { .. } => Code::InvalidArchive,
            ArchiveError::Outside { .. } => Code::PathOutsideSandbox,
            ArchiveError::TooLarge(_) => Code::TooLarge,
        };
        Self::new(
            code,
            error.to_string(),
            "make the archive again, of plain files, directories and links below one directory",
        )
    }
}
