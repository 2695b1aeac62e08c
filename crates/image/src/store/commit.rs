//! How an import enters the store: layers, then the manifest, then the name.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, fsync, openat, renameat, renameat_with, syncfs, unlinkat,
};
use rustix::io::Errno;
use saggar_domain::template::{
    ContentDigest, LayerId, LayerRecord, Manifest, NameRecord, RECORD_BYTES_MAX, TemplateId,
};
use saggar_domain::{Problem, TemplateName, Timestamp};

use super::build::Durability;
use super::staging::{Staging, random_name};
use super::{DIRECTORY, Lock, Store, made};
use crate::failure::storage;
use crate::layer::GoOn;
use saggar_sandbox::fail_point::pass;

/// How long to wait before a lock is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// The directory beside a layer's files that names its blobs.
const PROOFS: &str = "proofs";
/// How the names of damaged layers begin that were replaced.
pub(super) const REPLACED: &str = "replaced-";

/// An import in progress. No layer is removed while it exists.
pub(crate) struct Import<'a> {
    store: &'a Store,
    staging: Staging,
    lock: OwnedFd,
}

impl Store {
    /// Waits while layers are removed.
    pub(crate) fn begin(&self) -> Result<Import<'_>, Problem> {
        self.begin_with(self.locked(Lock::Layers, FlockOperation::LockShared)?)
    }

    /// The same, and asks meanwhile whether to go on.
    pub(super) fn begin_unless(&self, go_on: GoOn<'_>) -> Result<Import<'_>, Problem> {
        loop {
            go_on()?;
            if let Some(lock) = self.lock(Lock::Layers, FlockOperation::NonBlockingLockShared)? {
                return self.begin_with(lock);
            }
            pause();
        }
    }

    fn begin_with(&self, lock: OwnedFd) -> Result<Import<'_>, Problem> {
        Ok(Import { store: self, staging: Staging::new(self)?, lock })
    }

    /// The record of a layer; `None` if the store doesn't have it.
    pub(crate) fn layer(&self, id: &LayerId) -> Result<Option<LayerRecord>, Problem> {
        let fail = |why: String| {
            Problem::new(
                saggar_domain::Code::DataDirectory,
                format!("the stored layer {id} can't be used: {why}"),
                "remove the templates that use it with `saggar template rm`, then `saggar template gc`, then import or build again",
            )
        };
        let path = format!("{}/layer.json", id.hex());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match openat(&self.layers, path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fail(errno.to_string())),
        };
        let mut document = Vec::new();
        File::from(file)
            .take(RECORD_BYTES_MAX)
            .read_to_end(&mut document)
            .map_err(|error| fail(error.kind().to_string()))?;
        LayerRecord::parse(&document, id).map(Some).map_err(|error| fail(error.to_string()))
    }
}

impl<'a> Import<'a> {
    pub(super) fn store(&self) -> &'a Store {
        self.store
    }

    /// The lock, for callers that use the layers longer.
    pub(super) fn lock(&self) -> std::io::Result<OwnedFd> {
        self.lock.try_clone()
    }

    /// Where it writes.
    pub(super) fn staged(&self) -> &OwnedFd {
        self.staging.directory()
    }

    /// A directory there.
    pub(super) fn stage(&self, name: &str) -> Result<OwnedFd, Problem> {
        self.staging.make(name)
    }

    /// A layer of the store that is as it was written; one that is damaged is none, and is replaced by [`Self::commit`].
    pub(crate) fn sound_layer(&self, id: &LayerId) -> Option<LayerRecord> {
        self.store.sound_layer(id).ok().map(|(record, _)| record)
    }

    /// The files of a layer, of this import or of the store.
    pub(crate) fn tree(&self, id: &LayerId, is_new: bool) -> Result<OwnedFd, Problem> {
        openat(self.place(is_new), format!("{}/tree", id.hex()), DIRECTORY, Mode::empty())
            .map_err(|errno| storage("a stored layer can't be opened", errno))
    }

    fn place(&self, is_new: bool) -> &OwnedFd {
        if is_new { self.staging.directory() } else { &self.store.layers }
    }

    /// Whether a blob was once seen to have the content that a stored layer was made from.
    pub(crate) fn is_proven(&self, id: &LayerId, is_new: bool, content: &LayerId, blob: &ContentDigest) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(self.place(is_new), proof(id, content, blob), flags, Mode::empty()).is_ok()
    }

    /// Remembers that it was seen. If this is lost, the blob is read once more.
    pub(crate) fn prove(
        &self,
        id: &LayerId,
        is_new: bool,
        content: &LayerId,
        blob: &ContentDigest,
    ) -> Result<(), Problem> {
        let fail = |errno: Errno| storage("a layer can't be written", errno);
        let place = self.place(is_new);
        made(place.as_fd(), Path::new(&format!("{}/{PROOFS}", id.hex()))).map_err(fail)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(place, proof(id, content, blob), flags, Mode::from_raw_mode(0o600)).map_err(fail).map(drop)
    }

    /// An empty directory for the files of a layer, under a name that is its own until the layer has an id.
    pub(crate) fn layer(&self, name: &LayerId) -> Result<OwnedFd, Problem> {
        let layer = self.staging.make(&unfinished(name))?;
        made(layer.as_fd(), Path::new("tree")).map_err(|errno| storage("a layer can't be written", errno))
    }

    /// Completes a layer that was written.
    pub(crate) fn finish_layer(&self, name: &LayerId, record: &LayerRecord) -> Result<(), Problem> {
        let layer = self.staging.make(&unfinished(name))?;
        let document = serde_json::to_vec(record).expect("our own types have only text keys");
        write_new(layer.as_fd(), "layer.json", &document)
            .map_err(|error| storage("a layer can't be written", error))?;
        let staging = self.staging.directory();
        renameat(staging, unfinished(name), staging, record.id.hex())
            .map_err(|errno| storage("a layer can't be written", errno))?;
        pass("import/layer");
        Ok(())
    }

    /// Makes everything visible: the given new layers, the manifest, and the name, which may have led elsewhere before.
    pub(crate) fn commit(
        self,
        layers: &[LayerId],
        manifest: &Manifest,
        name: &TemplateName,
        now: Timestamp,
    ) -> Result<Option<TemplateId>, Problem> {
        self.keep_layers(layers)?;
        self.commit_by(Durability::Power, manifest, name, now)
    }

    /// Makes the given new layers visible. Nothing leads to them yet.
    pub(super) fn keep_layers(&self, layers: &[LayerId]) -> Result<(), Problem> {
        let fail = |errno: Errno| storage("the import can't be completed", errno);
        let store = self.store;
        if !layers.is_empty() {
            // One call for all files, instead of one for each.
            syncfs(self.staging.directory()).map_err(fail)?;
        }
        pass("import/synced");
        for layer in layers {
            match renameat_with(
                self.staging.directory(),
                layer.hex(),
                &store.layers,
                layer.hex(),
                RenameFlags::NOREPLACE,
            ) {
                Ok(()) => {}
                Err(Errno::EXIST | Errno::NOTEMPTY) if store.sound_layer(layer).is_err() => {
                    self.replace(layer.hex(), layer)?;
                }
                // Another import has brought the same layer meanwhile; ours is removed with the rest.
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                Err(errno) => return Err(fail(errno)),
            }
            pass("import/renamed");
        }
        fsync(&store.layers).map_err(fail)?;
        pass("import/layers");
        Ok(())
    }

    /// The same for layers that are in the store already.
    pub(super) fn commit_by(
        self,
        durability: Durability,
        manifest: &Manifest,
        name: &TemplateName,
        now: Timestamp,
    ) -> Result<Option<TemplateId>, Problem> {
        let fail = |errno: Errno| storage("the import can't be completed", errno);
        let unwritten = |error: std::io::Error| storage("the import can't be completed", error);
        let store = self.store;
        let _names = store.locked(Lock::Names, FlockOperation::LockExclusive)?;
        let id = manifest.id();
        let file = format!("{}.json", id.hex());
        // A file that exists and has this content stays: a sandbox may hold a lock on it.
        if store.manifest(&id).is_err() {
            if !store.remove_unused(&file)? {
                return Err(Problem::new(
                    saggar_domain::Code::DataDirectory,
                    format!("the manifest {id} is damaged, and a live sandbox uses it"),
                    "end the sandboxes that use the template, then import it again",
                ));
            }
            replace_by(&store.manifests, &file, manifest.document().as_bytes(), &|| Ok(())).map_err(unwritten)?;
        }
        pass("import/manifest");
        // A name that can't be read is replaced like any other.
        let before = store.templates.name(name).ok().flatten().map(|record| record.template);
        let directory = made(store.names.as_fd(), Path::new(name.name())).map_err(fail)?;
        let record = serde_json::to_vec(&NameRecord::new(id.clone(), now)).expect("our own types have only text keys");
        // One call for all that the name leads to, files, manifest, records and directories, and for what is in it. Waiting for each
        // takes several times as long.
        let before_named = || if durability == Durability::Boot { Ok(()) } else { syncfs(&directory) };
        replace_by(&directory, name.tag(), &record, &before_named).map_err(unwritten)?;
        if durability != Durability::Boot {
            fsync(&directory).map_err(fail)?;
        }
        pass("import/named");
        Ok(before.filter(|before| *before != id))
    }

    /// Puts a staged layer in the place of a damaged one. Live sandboxes may use what is left of that one, so it is kept for them.
    pub(super) fn replace(&self, staged: &str, layer: &LayerId) -> Result<(), Problem> {
        let fail = |errno: Errno| storage("a damaged layer can't be replaced", errno);
        let beside = format!("{REPLACED}{}", random_name().map_err(fail)?);
        let store = self.store;
        renameat(self.staging.directory(), staged, &store.staging, beside.as_str()).map_err(fail)?;
        pass("import/repair");
        renameat_with(&store.staging, beside.as_str(), &store.layers, layer.hex(), RenameFlags::EXCHANGE).map_err(fail)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "nothing tells when the lock of a file is free, unless one waits for it alone"
)]
fn pause() {
    std::thread::sleep(LOCK_PAUSE);
}

fn unfinished(name: &LayerId) -> String {
    format!("new-{}", name.hex())
}

/// An empty file that says: this blob has this content, and the layer was made from it.
fn proof(id: &LayerId, content: &LayerId, blob: &ContentDigest) -> String {
    format!("{}/{PROOFS}/{}.{}", id.hex(), content.hex(), blob.hex())
}

/// Writes a file in one step, durably.
pub(super) fn replace(directory: &OwnedFd, name: &str, content: &[u8]) -> std::io::Result<()> {
    let beside = format!(".{}", random_name()?);
    let written = write_new(directory.as_fd(), &beside, content);
    renamed(directory, &beside, name, written)?;
    fsync(directory).map_err(Into::into)
}

/// Writes a file in one step, and makes it durable no further than `before` does: the last thing before it has its name.
pub(super) fn replace_by(
    directory: &OwnedFd,
    name: &str,
    content: &[u8],
    before: &dyn Fn() -> Result<(), Errno>,
) -> std::io::Result<()> {
    let beside = format!(".{}", random_name()?);
    let written = write_unsynced(directory.as_fd(), &beside, content).and_then(|()| before().map_err(Into::into));
    renamed(directory, &beside, name, written)
}

fn renamed(directory: &OwnedFd, beside: &str, name: &str, written: std::io::Result<()>) -> std::io::Result<()> {
    let written = written.and_then(|()| renameat(directory, beside, directory, name).map_err(Into::into));
    if written.is_err() {
        // The first error is the one to report; the next collection removes the rest.
        let _ = unlinkat(directory, beside, AtFlags::empty());
    }
    written
}

/// The same as [`write_new`], without waiting for the disk.
pub(super) fn write_unsynced(directory: BorrowedFd<'_>, name: &str, content: &[u8]) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    File::from(openat(directory, name, flags, Mode::from_raw_mode(0o600))?).write_all(content)
}

pub(super) fn write_new(directory: BorrowedFd<'_>, name: &str, content: &[u8]) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(openat(directory, name, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(content)?;
    file.sync_all()
}
