//! How a build enters the store: each layer as soon as it is complete, then its cache record; at the end the manifest and the name.
//!
//! A layer is visible before anything leads to it, so a build that was killed leaves layers that [`Store::collect`] removes, unless the cache has
//! them. No layer is removed while a build is in progress.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{RenameFlags, fsync, renameat_with, syncfs};
use rustix::io::Errno;
use saggar_domain::template::{BuiltInRoot, Dropped, LayerEntry, LayerId, Manifest, TemplateId};
use saggar_domain::{Problem, TemplateName, Timestamp};
use saggar_sandbox::{HeldTemplate, RootChanges};

use super::commit::Import;
use super::staging::{random_name, remove_tree};
use super::{Store, made};
use crate::failure::storage;
use crate::layer::{
    Content, Copied, GoOn, Ignored, Placement, Selection, Spooled, Still, View, Written, copy, write_spooled,
};
use crate::limits::{Budget, Limits};
use saggar_sandbox::fail_point::pass;

/// A build in progress. What it has written and nothing leads to is removed by a later collection.
pub struct Build<'a> {
    pub(super) store: &'a Store,
    import: Import<'a>,
    pub(super) budget: Budget,
}

/// A layer that a step made, and what was left out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub layer: LayerEntry,
    pub dropped: Dropped,
}

impl Store {
    /// Waits while layers are removed, unless it is to stop.
    pub fn begin_build(&self, limits: Limits, go_on: GoOn<'_>) -> Result<Build<'_>, Problem> {
        Ok(Build { store: self, import: self.begin_unless(go_on)?, budget: Budget::for_build(limits) })
    }

    /// The entry of a stored layer; `None` if the store doesn't have it, or can't use it.
    pub(super) fn usable(&self, id: &LayerId) -> Option<LayerEntry> {
        let record = self.layer(id).ok()??;
        (record.owners == crate::layer::Ownership::here().record()).then(|| LayerEntry {
            id: id.clone(),
            bytes: record.archive.bytes,
            entries: record.archive.entries,
        })
    }
}

impl<'a> Build<'a> {
    pub fn store(&self) -> &Store {
        self.store
    }

    /// Layers as a sandbox can start from them, or a view of them be made. They stay as long as this build.
    pub fn hold(&self, name: &TemplateName, manifest: Manifest) -> Result<HeldTemplate, Problem> {
        let lock = self.import.lock().map_err(|error| storage("the template store can't be locked", error))?;
        self.store.templates().assemble(name, manifest, lock)
    }

    /// Lists what is to be copied: paths of a view, without links. What is too large is refused before it is read.
    pub fn select(
        &self,
        from: &View,
        sources: &[Vec<u8>],
        ignored: Ignored<'_>,
        go_on: GoOn<'_>,
    ) -> Result<Selection, Problem> {
        Selection::list(from, sources, ignored, &self.budget, go_on)
    }

    /// A layer with what a sandbox changed; `None` if that is nothing.
    pub fn changes(&mut self, changes: &RootChanges, below: &View, go_on: GoOn<'_>) -> Result<Option<Made>, Problem> {
        self.layer(&Content::Changes(changes), below, go_on)
    }

    /// A layer with copies.
    pub fn copies(
        &mut self,
        from: &View,
        selection: &Selection,
        placement: &Placement<'_>,
        below: &View,
        go_on: GoOn<'_>,
    ) -> Result<Option<Made>, Problem> {
        self.layer(&Content::Copies { from, selection, placement }, below, go_on)
    }

    /// A layer with a directory, given by its absolute path; `None` if it exists.
    pub fn directory(&mut self, path: &str, below: &View, go_on: GoOn<'_>) -> Result<Option<Made>, Problem> {
        self.layer(&Content::Directory(path), below, go_on)
    }

    /// Makes the result visible. Its layers must be in the store.
    pub fn finish(
        self,
        manifest: &Manifest,
        name: &TemplateName,
        now: Timestamp,
    ) -> Result<Option<TemplateId>, Problem> {
        pass("build/finish");
        let id = manifest.id();
        // The usual case of a build that changed nothing. Writing the same again would wait for the disk.
        let is_there = self.store.templates().name(name)?.is_some_and(|record| record.template == id);
        if is_there && self.store.manifest(&id).is_ok() {
            return Ok(None);
        }
        self.import.commit(&[], manifest, name, now)
    }

    fn layer(&mut self, content: &Content<'_>, below: &View, go_on: GoOn<'_>) -> Result<Option<Made>, Problem> {
        self.layer_by(below, go_on, Durability::Power, |copying| copying.copy(content))
    }

    /// The same for a sandbox that is not dead but stands still: only while its changes are read. Nothing is created meanwhile.
    pub(super) fn changes_of_held(
        &mut self,
        root: Option<BuiltInRoot>,
        below: &View,
        go_on: GoOn<'_>,
        durability: Durability,
        stop: &mut dyn FnMut() -> Result<RootChanges, Problem>,
        resume: &mut dyn FnMut() -> Result<(), Problem>,
    ) -> Result<Option<Made>, Problem> {
        self.layer_by(below, go_on, durability, |copying| {
            let spooled = copying.spool(root, &mut || {
                let changes = stop()?;
                pass("snapshot/still");
                Ok(changes)
            })?;
            resume()?;
            copying.write(spooled)
        })
    }

    pub(super) fn layer_by(
        &mut self,
        below: &View,
        go_on: GoOn<'_>,
        durability: Durability,
        copy: impl FnOnce(&mut Copying<'_>) -> Result<Copied, Problem>,
    ) -> Result<Option<Made>, Problem> {
        let fail = |errno: Errno| storage("a layer can't be written", errno);
        let staged = random_name().map_err(fail)?;
        let place = self.import.stage(&staged)?;
        let tree =
            made(place.as_fd(), Path::new("tree")).map_err(|errno| storage("a layer can't be written", errno))?;
        let mut copying = Copying { below, place: &place, tree: Some(tree), budget: &mut self.budget, go_on };
        let outcome = copy(&mut copying).and_then(Copied::finish);
        let Ok(Written::Layer(record)) = outcome else {
            // The error is the one to report; what is left is removed with everything else that is staged.
            let _ = remove_tree(self.import.staged(), &staged);
            return outcome.map(|_| None);
        };
        pass("build/written");
        let document = serde_json::to_vec(&record).expect("our own types have only text keys");
        super::commit::write_unsynced(place.as_fd(), "layer.json", &document)
            .map_err(|error| storage("a layer can't be written", error))?;
        match durability {
            Durability::Power => syncfs(&place).map_err(fail)?,
            Durability::Commit | Durability::Boot => {}
        }
        pass("build/synced");
        let hex = record.id.hex();
        match renameat_with(self.import.staged(), staged.as_str(), &self.store.layers, hex, RenameFlags::NOREPLACE) {
            Ok(()) if durability == Durability::Power => fsync(&self.store.layers).map_err(fail)?,
            Ok(()) => {}
            // One of this name was made from the same files. Reading it again would take longer than making it.
            Err(Errno::EXIST | Errno::NOTEMPTY) if durability == Durability::Boot => {}
            Err(Errno::EXIST | Errno::NOTEMPTY) if self.store.sound_layer(&record.id).is_err() => {
                self.import.replace(&staged, &record.id)?;
                fsync(&self.store.layers).map_err(fail)?;
            }
            // The same files were written before, perhaps by a snapshot that has not synced them yet. Ours are removed with everything
            // else that is staged.
            Err(Errno::EXIST | Errno::NOTEMPTY) => self.sync_stored(durability)?,
            Err(errno) => return Err(fail(errno)),
        }
        pass("build/layer");
        let layer = LayerEntry { id: record.id, bytes: record.archive.bytes, entries: record.archive.entries };
        Ok(Some(Made { layer, dropped: record.dropped }))
    }

    fn sync_stored(&self, durability: Durability) -> Result<(), Problem> {
        match durability {
            Durability::Power => syncfs(&self.store.layers).map_err(|errno| storage("a layer can't be written", errno)),
            Durability::Commit | Durability::Boot => Ok(()),
        }
    }

    pub(super) fn stage(&self, name: &str) -> Result<OwnedFd, Problem> {
        self.import.stage(name)
    }

    pub(super) fn staged(&self) -> &OwnedFd {
        self.import.staged()
    }

    /// The files of a layer of the store.
    pub(super) fn tree(&self, id: &LayerId) -> Result<OwnedFd, Problem> {
        self.import.tree(id, false)
    }

    pub(super) fn into_import(self) -> Import<'a> {
        self.import
    }
}

/// What a new layer survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A loss of power.
    Power,
    /// A loss of power once something leads to it: whoever makes that syncs everything before.
    Commit,
    /// The end of any process, for something that no boot of the host outlives.
    Boot,
}

/// A layer that is about to be copied.
pub(super) struct Copying<'a> {
    below: &'a View,
    place: &'a OwnedFd,
    /// Taken once.
    tree: Option<OwnedFd>,
    budget: &'a mut Budget,
    go_on: GoOn<'a>,
}

impl Copying<'_> {
    pub(super) fn copy(&mut self, content: &Content<'_>) -> Result<Copied, Problem> {
        let tree = self.tree()?;
        copy(content, self.below, tree, self.budget, self.go_on)
    }

    /// What is read is open no longer than this.
    fn spool(
        &mut self,
        root: Option<BuiltInRoot>,
        stop: &mut dyn FnMut() -> Result<RootChanges, Problem>,
    ) -> Result<Spooled, Problem> {
        let still = Still::prepare(root, self.below, self.place.as_fd())?;
        still.read(&stop()?, self.budget, self.go_on)
    }

    fn write(&mut self, spooled: Spooled) -> Result<Copied, Problem> {
        let tree = self.tree()?;
        write_spooled(spooled, tree, self.budget, self.go_on)
    }

    fn tree(&mut self) -> Result<OwnedFd, Problem> {
        self.tree.take().ok_or_else(|| storage("a layer can't be written", Errno::ALREADY))
    }
}
