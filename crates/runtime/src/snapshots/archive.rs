//! Snapshots as files: exports to a client while it reads, and imports of what a client sent.
//!
//! Each occupies a thread for as long as it takes, so their number is bounded. A client that stops reading ends its export.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use saggar_domain::template::ContentDigest;
use saggar_domain::{Problem, ProjectId, SnapshotFacts, SnapshotId, SnapshotRecord};
use saggar_image::{Export, Limits, SnapshotArchive};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::keep::{is_expired, no_snapshot};
use super::{SNAPSHOTS, SnapshotView, TakeSnapshot};
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{Sandboxes, now};
use crate::templates::{Upload, blocking};

/// Exports and imports at once, of all projects.
const AT_ONCE: usize = 8;
/// Pieces that wait for the client.
const PIECES_MAX: usize = 4;
const PIECE_BYTES: usize = 256 << 10;

/// The places of exports and imports.
#[derive(Debug)]
pub(crate) struct Carrying(Arc<Semaphore>);

impl Default for Carrying {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Carrying {
    fn begin(&self) -> Result<OwnedSemaphorePermit, Fault> {
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| Fault::Capacity {
            what: format!("{AT_ONCE} snapshots are being exported or imported, and no more are allowed at once"),
            retry_after: Duration::from_secs(1),
        })
    }
}

/// A snapshot on its way to a client.
pub struct SnapshotExport {
    pub digest: ContentDigest,
    /// Of the whole file.
    pub bytes: u64,
    pieces: mpsc::Receiver<Result<Bytes, Fault>>,
}

impl SnapshotExport {
    /// The next piece; `None` at the end. Dropping this ends the export.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        self.pieces.recv().await.transpose()
    }
}

impl Sandboxes {
    /// Begins to export a snapshot. Its files are read once before the answer, for their digests.
    pub async fn export_snapshot(&self, permit: &Permit, id: &SnapshotId) -> Result<SnapshotExport, Fault> {
        permit.check(|action| *action == Action::Manage(SNAPSHOTS))?;
        let place = self.carrying().begin()?;
        let (this, project, id) = (self.clone(), permit.project().clone(), id.clone());
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let (told, tell) = tokio::sync::oneshot::channel();
        let what = "exporting a snapshot";
        // Goes on while the client reads.
        drop(tokio::task::spawn_blocking(move || {
            let _place = place;
            let gone = sender.clone();
            let go_on = || if gone.is_closed() { Err(cancelled()) } else { Ok(()) };
            let export = match this.opened(&project, &id, &go_on) {
                Ok(export) => export,
                Err(fault) => return drop(told.send(Err(fault))),
            };
            if told.send(Ok((export.digest().clone(), export.bytes()))).is_err() {
                return;
            }
            let mut pipe = Pipe { sender: &sender, piece: Vec::with_capacity(PIECE_BYTES) };
            let written = export.write(&mut pipe, &go_on);
            let written = written.and_then(|()| pipe.send().map_err(|_| cancelled()));
            if let Err(problem) = written {
                // A client that is gone needs no answer.
                let _ = sender.blocking_send(Err(Fault::Refused(problem)));
            }
        }));
        let (digest, bytes) = tell.await.map_err(|error| Fault::internal(what, error))??;
        Ok(SnapshotExport { digest, bytes, pieces })
    }

    fn opened(
        &self,
        project: &ProjectId,
        id: &SnapshotId,
        go_on: &dyn Fn() -> Result<(), Problem>,
    ) -> Result<Export, Fault> {
        let store = self.template_store(project)?;
        let found = store.snapshot(id).map_err(Fault::Refused)?;
        if found.is_none_or(|record| !record.facts.is_listed() || is_expired(&record, now())) {
            return Err(no_snapshot(id));
        }
        store.export_snapshot(id, go_on).map_err(Fault::Refused)?.ok_or_else(|| no_snapshot(id))
    }

    /// Begins the upload of a snapshot.
    pub async fn begin_snapshot_upload(&self, permit: &Permit) -> Result<Upload, Fault> {
        permit.check(|action| *action == Action::Manage(SNAPSHOTS))?;
        self.upload_for(permit.project()).await
    }

    /// Makes a snapshot of a file that has arrived, under a new id. Continues to its end even if the caller is cancelled.
    pub async fn import_snapshot(
        &self,
        permit: &Permit,
        upload: Upload,
        digest: Option<ContentDigest>,
        take: TakeSnapshot,
    ) -> Result<SnapshotView, Fault> {
        permit.check(|action| *action == Action::Manage(SNAPSHOTS))?;
        let place = self.carrying().begin()?;
        let (this, project) = (self.clone(), permit.project().clone());
        let work = tokio::spawn(blocking("importing a snapshot", move || {
            let _place = place;
            this.bring(&project, &upload, digest, take)
        }));
        let record = work.await.map_err(|error| Fault::internal("importing a snapshot", error))??;
        Ok(SnapshotView { record, used_by: Vec::new() })
    }

    fn bring(
        &self,
        project: &ProjectId,
        upload: &Upload,
        digest: Option<ContentDigest>,
        take: TakeSnapshot,
    ) -> Result<SnapshotRecord, Fault> {
        let store = self.template_store(project)?;
        let id = Self::new_snapshot_id();
        let _place = self.take_place(&store, project, &id)?;
        let created_at = now();
        let facts = SnapshotFacts {
            name: take.name,
            sandbox: None,
            parent: None,
            labels: take.labels,
            created_at,
            expires_at: take.keep_for.map(|span| created_at.after(span)),
            frozen_us: 0,
            bytes: 0,
            entries: 0,
            is_for_forks: false,
            of_run: None,
            rest: None,
        };
        let limits = Limits { bytes_max: self.settings().import_size_max.bytes(), ..Limits::default() };
        let archive = SnapshotArchive { source: upload.source(), digest, limits, stop: Arc::default() };
        let brought = store.import_snapshot(id, &archive, facts).map_err(Fault::Refused);
        if brought.is_err() {
            // What it wrote before is collected with the rest.
            self.jobs().note_leftovers(project.clone());
        }
        brought
    }
}

/// To the client, in pieces.
struct Pipe<'a> {
    sender: &'a mpsc::Sender<Result<Bytes, Fault>>,
    piece: Vec<u8>,
}

impl Pipe<'_> {
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        if piece.is_empty() {
            return Ok(());
        }
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::Error::other(cancelled()))
    }
}

impl Write for Pipe<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cancelled() -> Problem {
    Problem::new(saggar_domain::Code::Stream, "the client stopped reading", "export the snapshot again")
}
