//! Removes what nothing leads to: rests of killed imports and builds, templates without a name, layers without a template or a cache record.
//!
//! What goes is taken out of its place under the locks of the store, and its files are removed after they were released ([`Removal`]): imports,
//! builds and starts don't wait for a large tree.
//!
//! Nothing is removed on a guess. If a name or a manifest can't be read, what it needs isn't known, and nothing is removed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fsync, openat, unlinkat};
use rustix::io::Errno;
use saggar_domain::template::{LayerId, MANIFEST_BYTES_MAX, Manifest, TemplateId};
use saggar_domain::{Code, Problem};
use serde::Serialize;

use super::removal::Removal;
use super::{CacheRest, DIRECTORY, Lock, Store, listed};
use crate::failure::storage;
use saggar_sandbox::fail_point::pass;

/// What was removed, and what had to stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Rests of imports and removals that were interrupted.
    pub interrupted: u64,
    /// Templates without a name.
    pub templates: u64,
    pub layers: u64,
    /// Steps of builds that the cache had.
    pub cached: u64,
    /// Templates without a name that a live sandbox uses; they are removed later.
    pub in_use: u64,
}

impl Collected {
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl Store {
    /// Removes everything that nothing leads to. `None`: an import or a build is in progress, and nothing was removed.
    pub fn collect(&self) -> Result<Option<Collected>, Problem> {
        self.collect_with(CacheRest::Used)
    }

    /// The same, but only if something was interrupted: most builds have nothing to remove, and reading all manifests takes time.
    pub fn collect_interrupted(&self) -> Result<Option<Collected>, Problem> {
        if listed(&self.staging)?.is_empty() { Ok(None) } else { self.collect() }
    }

    /// The same with a say in what becomes of the cache of builds.
    pub fn collect_with(&self, cache: CacheRest) -> Result<Option<Collected>, Problem> {
        let Some(layers) = self.lock(Lock::Layers, FlockOperation::NonBlockingLockExclusive)? else { return Ok(None) };
        let names = self.locked(Lock::Names, FlockOperation::LockExclusive)?;
        let mut removal = Removal::begin(self)?;
        let fail = |errno: Errno| storage("what is left over can't be removed", errno);
        let mut collected = Collected::default();
        let named: BTreeSet<TemplateId> =
            self.templates.names()?.into_iter().map(|(_, record)| record.template).collect();
        let mut used = BTreeSet::new();
        for file in listed(&self.manifests)? {
            let Some(id) = file.strip_suffix(".json").and_then(TemplateId::parse_hex) else {
                unlinkat(&self.manifests, file.as_str(), AtFlags::empty()).map_err(fail)?;
                collected.interrupted += 1;
                continue;
            };
            if !named.contains(&id) {
                if self.remove_unused(&file)? {
                    collected.templates += 1;
                    continue;
                }
                collected.in_use += 1;
            }
            used.extend(self.manifest(&id)?.layers().iter().map(|layer| layer.id.clone()));
        }
        let (cached, removed) = self.tidy_cache(cache)?;
        used.extend(cached);
        collected.cached = removed;
        pass("collect/cache");
        fsync(&self.manifests).map_err(fail)?;
        fsync(&self.builds).map_err(fail)?;
        pass("collect/manifests");
        for name in listed(&self.layers)? {
            if LayerId::parse_hex(&name).is_some_and(|id| used.contains(&id)) {
                continue;
            }
            // In one step, so that no half of a layer is ever in its place.
            removal.add(&self.layers, &name)?;
            pass("collect/layer");
            collected.layers += 1;
        }
        collected.interrupted += self.tidy_names()?;
        collected.interrupted += self.tidy_snapshots()?;
        collected.interrupted += removal.add_interrupted(self.is_any_used()?)?;
        // Nothing leads to what is removed now. Removing files takes time, so no lock is held for it.
        drop((layers, names));
        pass("collect/removing");
        removal.finish()?;
        Ok(Some(collected))
    }

    /// Whether a live sandbox uses any template.
    fn is_any_used(&self) -> Result<bool, Problem> {
        let fail = |errno: Errno| storage("what is left over can't be removed", errno);
        for file in listed(&self.manifests)? {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let manifest = openat(&self.manifests, file.as_str(), flags, Mode::empty()).map_err(fail)?;
            match flock(&manifest, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(true),
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(false)
    }

    /// Removes files of names that were never completed, and directories without names.
    fn tidy_names(&self) -> Result<u64, Problem> {
        let fail = |errno: Errno| storage("what is left over can't be removed", errno);
        let mut removed = 0;
        for name in listed(&self.names)? {
            let directory = openat(&self.names, name.as_str(), DIRECTORY, Mode::empty()).map_err(fail)?;
            for file in listed(&directory)?.iter().filter(|file| file.starts_with('.')) {
                unlinkat(&directory, file.as_str(), AtFlags::empty()).map_err(fail)?;
                removed += 1;
            }
            match unlinkat(&self.names, name.as_str(), AtFlags::REMOVEDIR) {
                Ok(()) => removed += 1,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(removed)
    }

    /// Removes a manifest unless a live sandbox uses it. The names must be locked.
    pub(super) fn remove_unused(&self, file: &str) -> Result<bool, Problem> {
        let fail = |errno: Errno| storage("a template can't be removed", errno);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let manifest = match openat(&self.manifests, file, flags, Mode::empty()) {
            Ok(manifest) => manifest,
            Err(Errno::NOENT) => return Ok(true),
            Err(errno) => return Err(fail(errno)),
        };
        match flock(&manifest, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => unlinkat(&self.manifests, file, AtFlags::empty()).map_err(fail).map(|()| true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(fail(errno)),
        }
    }

    /// A stored manifest, compared with its digest.
    pub(super) fn manifest(&self, id: &TemplateId) -> Result<Manifest, Problem> {
        let fail = |why: String| {
            Problem::new(
                Code::DataDirectory,
                format!("the manifest {id} can't be used: {why}"),
                "remove the names that lead to it with `saggar template rm`, and import the image again",
            )
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.manifests, format!("{}.json", id.hex()), flags, Mode::empty())
            .map_err(|errno| fail(errno.to_string()))?;
        let mut document = Vec::new();
        File::from(file)
            .take(MANIFEST_BYTES_MAX)
            .read_to_end(&mut document)
            .map_err(|error| fail(error.kind().to_string()))?;
        Manifest::parse(&document, id).map_err(|error| fail(error.to_string()))
    }
}
