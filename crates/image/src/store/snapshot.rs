//! Snapshots in the store: each is a template, whose name is the snapshot's id, with a record beside it.
//!
//! ```text
//! snapshots/ID.json   what is known about it; without the name ID it is the rest of one that was never completed, or is being removed
//! ```
//!
//! The layers of what the sandbox was started from, and one with what it has changed. A long stack is merged into a shorter one first, so
//! that neither a start nor the next snapshot takes longer for a longer history.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, statat, unlinkat};
use rustix::io::Errno;
use saggar_domain::template::{
    BuiltInRoot, ContentDigest, Defaults, Image, ImageSource, LayerEntry, LayerId, Manifest,
};
use saggar_domain::{
    Code, Problem, SNAPSHOT_RECORD_BYTES_MAX, SnapshotFacts, SnapshotId, SnapshotRecord, TemplateName,
};
use saggar_sandbox::fail_point::pass;
use saggar_sandbox::{HeldTemplate, RootChanges};

use super::build::Durability;
use super::commit::replace_by;
use super::{Build, Import, Made, Removed, Store, listed};
use crate::failure::{refused, storage};
use crate::layer::{Content, GoOn, View};
use crate::limits::{Budget, Limits};

/// A stack of this many layers is merged before one more comes on top.
const STACK_MAX: usize = 32;
/// Layers at the bottom that are then left as they are: often those of an image, which many templates share.
const STACK_LEFT: usize = 16;
/// Nothing of a merged layer is new: each of those that it is made of was bounded when it was written.
const MERGED: Limits = Limits { bytes_max: u64::MAX, entries_max: u64::MAX };

/// What a snapshot is to be.
pub struct NewSnapshot {
    pub id: SnapshotId,
    /// `bytes`, `entries` and `frozen_us` are filled in.
    pub facts: SnapshotFacts,
    /// What the sandbox was started from; `None` for the built-in template.
    pub base: Option<HeldTemplate>,
    pub limits: Limits,
}

/// A sandbox whose changes can be read while it stands still.
pub struct Subject<'a> {
    /// Freezes it.
    pub stop: &'a mut dyn FnMut() -> Result<RootChanges, Problem>,
    /// Lets it go on, and says for how long it stood still. An error means that its files may have changed meanwhile.
    pub resume: &'a mut dyn FnMut() -> Result<Duration, Problem>,
}

impl Store {
    /// Takes a snapshot. On an error nothing of it is visible.
    pub fn take_snapshot(
        &self,
        new: NewSnapshot,
        subject: Subject<'_>,
        go_on: GoOn<'_>,
    ) -> Result<SnapshotRecord, Problem> {
        let NewSnapshot { id, mut facts, base, limits } = new;
        let durability = if facts.is_for_forks { Durability::Boot } else { Durability::Commit };
        if let Some(name) = &facts.name {
            self.check_alias(name)?;
        }
        let mut build = self.begin_build(limits, go_on)?;
        let (root, mut layers, defaults, image) = match &base {
            None => (Some(BuiltInRoot::Host), Vec::new(), Defaults::default(), of_the_host()),
            Some(held) => {
                build.adopt(held, go_on)?;
                let manifest = &held.manifest;
                let image = Image { source: ImageSource::Snapshot, ..manifest.image().clone() };
                (manifest.root(), manifest.layers().to_vec(), manifest.defaults().clone(), image)
            }
        };
        build.shorten(&mut layers, go_on).map_err(of_a_snapshot)?;
        let below = match &base {
            None => View::empty(),
            Some(held) => {
                View::of_template(held).map_err(|errno| storage("the sandbox's template can't be read", errno))?
            }
        };
        let mut frozen = Duration::ZERO;
        let mut resume = || {
            pass("snapshot/read");
            frozen = (subject.resume)()?;
            pass("snapshot/went-on");
            Ok(())
        };
        let made =
            build.changes_of_held(root, &below, go_on, durability, subject.stop, &mut resume).map_err(of_a_snapshot)?;
        // What is below may be of a snapshot for forks, which nobody has synced. The commit does it.
        if let Some(Made { layer, .. }) = made {
            (facts.bytes, facts.entries) = (layer.bytes, layer.entries);
            layers.push(layer);
        }
        facts.frozen_us = u64::try_from(frozen.as_micros()).unwrap_or(u64::MAX);
        let manifest = Manifest::new(layers, defaults, image)
            .map_err(|why| {
                refused(format!("the files can't be a snapshot: {why}"), "start from a template with files")
            })?
            .over(root);
        build.into_import().keep_snapshot(id, facts, &manifest, durability)
    }

    /// A name may move from one snapshot to the next, but takes no template's place.
    pub(crate) fn check_alias(&self, name: &TemplateName) -> Result<(), Problem> {
        super::check_free(name)?;
        let Some(led_to) = self.templates.name(name)? else { return Ok(()) };
        match self.manifest(&led_to.template)?.image().source {
            ImageSource::Snapshot => Ok(()),
            ImageSource::Layout | ImageSource::Archive | ImageSource::Registry | ImageSource::Build => {
                Err(Problem::new(
                    Code::InvalidValue,
                    format!("the name {:?} is taken by a template", name.as_str()),
                    "choose another name, or remove the template",
                ))
            }
        }
    }

    /// The record of a complete snapshot; `None` if there is none.
    pub fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, Problem> {
        match self.templates.name(&id.template_name())? {
            Some(_) => self.snapshot_record(id),
            None => Ok(None),
        }
    }

    /// All complete snapshots, oldest first. One whose record can't be read is left out: it must not hide the others.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRecord>, Problem> {
        let mut records = Vec::new();
        for file in listed(&self.snapshots)? {
            let Some(id) = file.strip_suffix(".json").and_then(SnapshotId::parse) else { continue };
            // The directory of a name stays a moment longer than the name.
            if !self.is_named(&id) {
                continue;
            }
            records.extend(self.snapshot_record(&id).ok().flatten());
        }
        records.sort_by(|a, b| (a.facts.created_at, &a.id).cmp(&(b.facts.created_at, &b.id)));
        Ok(records)
    }

    fn is_named(&self, id: &SnapshotId) -> bool {
        let name = id.template_name();
        let path = format!("{}/{}", name.name(), name.tag());
        statat(&self.names, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Number of snapshots, together with these that are being taken.
    pub fn count_snapshots(&self, taking: &BTreeSet<SnapshotId>) -> Result<usize, Problem> {
        let stored: BTreeSet<String> = listed(&self.snapshots)?.into_iter().collect();
        Ok(stored.len() + taking.iter().filter(|id| !stored.contains(&file_of(id))).count())
    }

    /// Removes a snapshot, also one that is damaged. Its layers stay as long as a template, another snapshot or a live sandbox uses them.
    /// `None`: there is no such one.
    pub fn remove_snapshot(&self, id: &SnapshotId) -> Result<Option<Removed>, Problem> {
        let name = id.template_name();
        if let Ok(None) = self.templates.name(&name) {
            return Ok(None);
        }
        // What its record no longer says is only which other name it has.
        let record = self.snapshot_record(id).ok().flatten();
        let removed = self.remove(&name)?;
        pass("snapshot/unnamed");
        self.forget_snapshot(id)?;
        // A name that leads elsewhere by now isn't this snapshot's. Neither is one that has moved to a later snapshot of the same files,
        // which are the same template.
        if let Some(record) = record
            && let Some(name) = &record.facts.name
            && self.templates.name(name)?.is_some_and(|found| found.template == record.template)
            && !self.snapshots()?.iter().any(|other| has_taken_name(other, &record))
        {
            return self.remove(name).map(Some);
        }
        Ok(Some(removed))
    }

    /// Removes records of snapshots that have no name. Nobody may make one meanwhile.
    pub(super) fn tidy_snapshots(&self) -> Result<u64, Problem> {
        let mut removed = 0;
        for file in listed(&self.snapshots)? {
            let id = file.strip_suffix(".json").and_then(SnapshotId::parse);
            if let Some(id) = &id
                && self.templates.name(&id.template_name())?.is_some()
            {
                continue;
            }
            unlinkat(&self.snapshots, file.as_str(), AtFlags::empty()).map_err(unremovable)?;
            removed += 1;
        }
        Ok(removed)
    }

    pub(super) fn forget_snapshot(&self, id: &SnapshotId) -> Result<(), Problem> {
        match unlinkat(&self.snapshots, file_of(id), AtFlags::empty()) {
            Ok(()) => fsync(&self.snapshots).map_err(unremovable),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(unremovable(errno)),
        }
    }

    pub(super) fn snapshot_record(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, Problem> {
        let fail = |why: String| {
            Problem::new(
                Code::DataDirectory,
                format!("what is known about snapshot {id} can't be read: {why}"),
                "remove the snapshot",
            )
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match openat(&self.snapshots, file_of(id), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fail(errno.to_string())),
        };
        let mut document = Vec::new();
        file.take(SNAPSHOT_RECORD_BYTES_MAX)
            .read_to_end(&mut document)
            .map_err(|error| fail(error.kind().to_string()))?;
        SnapshotRecord::read(&document, id).map(Some).map_err(fail)
    }
}

impl Build<'_> {
    /// Merges the upper half of a stack that has become too high.
    fn shorten(&mut self, layers: &mut Vec<LayerEntry>, go_on: GoOn<'_>) -> Result<(), Problem> {
        if layers.len() < STACK_MAX {
            return Ok(());
        }
        let merged = layers.split_off(STACK_LEFT);
        let trees: Vec<_> = merged.iter().rev().map(|layer| self.tree(&layer.id)).collect::<Result<_, _>>()?;
        let trees: Vec<_> = trees.iter().map(AsFd::as_fd).collect();
        let own = std::mem::replace(&mut self.budget, Budget::for_build(MERGED));
        let merge = |copying: &mut super::build::Copying<'_>| copying.copy(&Content::Merged(&trees));
        let made = self.layer_by(&View::empty(), go_on, Durability::Commit, merge);
        self.budget = own;
        let made = made?;
        pass("snapshot/merged");
        layers.extend(made.map(|made| made.layer));
        Ok(())
    }
}

impl Import<'_> {
    /// Makes a snapshot visible: the record first, because its name says that it is complete.
    pub(super) fn keep_snapshot(
        self,
        id: SnapshotId,
        facts: SnapshotFacts,
        manifest: &Manifest,
        durability: Durability,
    ) -> Result<SnapshotRecord, Problem> {
        let (store, now, name) = (self.store(), facts.created_at, id.template_name());
        let record = SnapshotRecord::new(id, manifest.id(), facts);
        let document = serde_json::to_vec(&record).expect("our own types have only text keys");
        let file = file_of(&record.id);
        // Its name makes it durable. One of this id may be left of an attempt that a kill ended.
        replace_by(&store.snapshots, &file, &document, &|| Ok(()))
            .map_err(|error| storage("what is known about a snapshot can't be written", error))?;
        pass("snapshot/recorded");
        self.commit_by(durability, manifest, &name, now)?;
        pass("snapshot/named");
        if let Some(alias) = &record.facts.name
            // A template may have taken it meanwhile.
            && let Err(problem) = store.check_alias(alias).and_then(|()| store.tag(&name, alias, now))
        {
            // Its client hears of an error, and will never remove it. Whatever can't be removed now is an ordinary snapshot.
            let _ = store.remove(&name).and_then(|_| store.forget_snapshot(&record.id));
            return Err(problem);
        }
        Ok(record)
    }

    /// The same for a snapshot that comes with layers.
    pub(crate) fn commit_snapshot(
        self,
        layers: &[LayerId],
        id: SnapshotId,
        facts: SnapshotFacts,
        manifest: &Manifest,
    ) -> Result<SnapshotRecord, Problem> {
        self.keep_layers(layers)?;
        self.keep_snapshot(id, facts, manifest, Durability::Commit)
    }
}

fn has_taken_name(later: &SnapshotRecord, record: &SnapshotRecord) -> bool {
    let of = |record: &SnapshotRecord| (record.facts.name.clone(), record.template.clone());
    of(later) == of(record) && (later.facts.created_at, &later.id) > (record.facts.created_at, &record.id)
}

pub(super) fn file_of(id: &SnapshotId) -> String {
    format!("{id}.json")
}

/// There is no image: the host's files are in no layer.
fn of_the_host() -> Image {
    Image {
        source: ImageSource::Snapshot,
        config: ContentDigest::of(BuiltInRoot::Host.as_str().as_bytes()),
        platform: crate::document::Platform::here().to_string(),
        created: None,
    }
}

/// What was read is a sandbox's and not an image's.
fn of_a_snapshot(problem: Problem) -> Problem {
    match problem.code {
        Code::InvalidImage => Problem {
            message: format!(
                "the sandbox's files can't be kept: {}",
                problem.message.replace("the steps copy and write", "it has")
            ),
            help: "remove what isn't needed, then take the snapshot again".to_owned(),
            ..problem
        },
        _ => problem,
    }
}

fn unremovable(errno: Errno) -> Problem {
    storage("what is known about a snapshot can't be removed", errno)
}

/// Whether a template's name is a snapshot's: such names are given by this store alone.
pub fn is_reserved(name: &TemplateName) -> bool {
    name.name().starts_with("snap_")
}
