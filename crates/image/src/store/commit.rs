//! How an import enters the store: layers, then the manifest, then the name.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, fsync, openat, renameat, renameat_with, syncfs, unlinkat,
};
use rustix::io::Errno;
use saggar_domain::template::{LayerId, LayerRecord, Manifest, NameRecord, RECORD_BYTES_MAX, TemplateId};
use saggar_domain::{Problem, TemplateName, Timestamp};

use super::staging::{Staging, random_name};
use super::{Lock, Store, made};
use crate::fail_point::pass;
use crate::failure::storage;

/// An import in progress. No layer is removed while it exists.
pub(crate) struct Import<'a> {
    store: &'a Store,
    staging: Staging,
    _lock: OwnedFd,
}

impl Store {
    /// Waits while layers are removed.
    pub(crate) fn begin(&self) -> Result<Import<'_>, Problem> {
        let lock = self.locked(Lock::Layers, FlockOperation::LockShared)?;
        Ok(Import { store: self, staging: Staging::new(self)?, _lock: lock })
    }

    /// The record of a layer; `None` if the store doesn't have it.
    pub(crate) fn layer(&self, id: &LayerId) -> Result<Option<LayerRecord>, Problem> {
        let fail = |why: String| {
            Problem::new(
                saggar_domain::Code::DataDirectory,
                format!("the stored layer {id} can't be used: {why}"),
                "remove the templates that use it with `saggar template rm`, then `saggar template gc`, then import again",
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

impl Import<'_> {
    /// An empty directory for the files of a layer.
    pub(crate) fn layer(&self, id: &LayerId) -> Result<OwnedFd, Problem> {
        let layer = self.staging.make(id.hex())?;
        made(layer.as_fd(), Path::new("tree")).map_err(|errno| storage("a layer can't be written", errno))
    }

    /// Completes a layer that was written.
    pub(crate) fn finish_layer(&self, record: &LayerRecord) -> Result<(), Problem> {
        let layer = self.staging.make(record.id.hex())?;
        let document = serde_json::to_vec(record).expect("our own types have only text keys");
        write_new(layer.as_fd(), "layer.json", &document)
            .map_err(|error| storage("a layer can't be written", error))?;
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
        let fail = |errno: Errno| storage("the import can't be completed", errno);
        let store = self.store;
        // One call for all files, instead of one for each.
        syncfs(self.staging.directory()).map_err(fail)?;
        pass("import/synced");
        for layer in layers {
            match renameat_with(
                self.staging.directory(),
                layer.hex(),
                &store.layers,
                layer.hex(),
                RenameFlags::NOREPLACE,
            ) {
                // Another import has brought the same layer meanwhile; ours is removed with the rest.
                Ok(()) | Err(Errno::EXIST | Errno::NOTEMPTY) => pass("import/renamed"),
                Err(errno) => return Err(fail(errno)),
            }
        }
        fsync(&store.layers).map_err(fail)?;
        pass("import/layers");
        let _names = store.locked(Lock::Names, FlockOperation::LockExclusive)?;
        let id = manifest.id();
        let file = format!("{}.json", id.hex());
        replace(&store.manifests, &file, manifest.document().as_bytes(), Keep::Existing)
            .map_err(|error| storage("the import can't be completed", error))?;
        pass("import/manifest");
        let before = store.templates.name(name)?.map(|record| record.template);
        let directory = made(store.names.as_fd(), Path::new(name.name())).map_err(fail)?;
        fsync(&store.names).map_err(fail)?;
        let record = serde_json::to_vec(&NameRecord::new(id.clone(), now)).expect("our own types have only text keys");
        replace(&directory, name.tag(), &record, Keep::New)
            .map_err(|error| storage("the import can't be completed", error))?;
        pass("import/named");
        Ok(before.filter(|before| *before != id))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// A file that exists has the same content, and a sandbox may hold a lock on it.
    Existing,
    New,
}

/// Writes a file in one step, durably.
fn replace(directory: &OwnedFd, name: &str, content: &[u8], keep: Keep) -> std::io::Result<()> {
    let beside = format!(".{}", random_name()?);
    let written = write_new(directory.as_fd(), &beside, content).and_then(|()| match keep {
        Keep::New => renameat(directory, beside.as_str(), directory, name).map_err(Into::into),
        Keep::Existing => match renameat_with(directory, beside.as_str(), directory, name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => unlinkat(directory, beside.as_str(), AtFlags::empty()).map_err(Into::into),
            other => other.map_err(Into::into),
        },
    });
    if written.is_err() {
        // The first error is the one to report; the next collection removes the rest.
        let _ = unlinkat(directory, beside.as_str(), AtFlags::empty());
    }
    written?;
    fsync(directory).map_err(Into::into)
}

fn write_new(directory: BorrowedFd<'_>, name: &str, content: &[u8]) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(openat(directory, name, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(content)?;
    file.sync_all()
}
