//! Removes trees that nothing leads to any more, without a lock that others wait for.
//!
//! ```text
//! layers/HEX, staging/NAME ─▶ staging/gone-NAME ─▶ removed
//!  under the locks of the store                     under the lock of removals alone
//! ```
//! Whoever removes has a shared lock until its trees are gone. So what has such a name while nobody has that lock was left by a process that was
//! killed, and the next collection removes it.

use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, flock, renameat};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_sandbox::fail_point::pass;

use super::commit::REPLACED;
use super::staging::{random_name, remove_tree};
use super::{Lock, Store, listed};
use crate::failure::storage;

/// How the names of trees begin that are being removed.
const GONE: &str = "gone-";

/// Trees that are to be removed. What is not removed stays for the next collection.
pub(super) struct Removal<'a> {
    store: &'a Store,
    gone: Vec<String>,
    /// How many of these a killed process left.
    left_over: u64,
    _lock: OwnedFd,
}

impl<'a> Removal<'a> {
    /// The layers must be locked exclusively: so no other removal begins or ends its search meanwhile.
    pub(super) fn begin(store: &'a Store) -> Result<Self, Problem> {
        let is_alone = store.lock(Lock::Removals, FlockOperation::NonBlockingLockExclusive)?;
        let mut gone = Vec::new();
        let lock = match is_alone {
            Some(lock) => {
                gone = listed(&store.staging)?;
                gone.retain(|name| name.starts_with(GONE));
                flock(&lock, FlockOperation::LockShared).map_err(fail)?;
                lock
            }
            None => store.locked(Lock::Removals, FlockOperation::LockShared)?,
        };
        Ok(Self { store, left_over: gone.len() as u64, gone, _lock: lock })
    }

    /// Takes a tree out of its place.
    pub(super) fn add(&mut self, place: &OwnedFd, name: &str) -> Result<(), Problem> {
        let gone = format!("{GONE}{}", random_name().map_err(fail)?);
        renameat(place, name, &self.store.staging, gone.as_str()).map_err(fail)?;
        self.gone.push(gone);
        Ok(())
    }

    /// Adds what killed imports, builds and removals left, and returns how much that is. Replaced layers stay if a sandbox may use them.
    pub(super) fn add_interrupted(&mut self, is_any_used: bool) -> Result<u64, Problem> {
        let mut count = self.left_over;
        for name in listed(&self.store.staging)? {
            if name.starts_with(GONE) || is_any_used && name.starts_with(REPLACED) {
                continue;
            }
            self.add(&self.store.staging, &name)?;
            count += 1;
        }
        Ok(count)
    }

    /// Removes the trees. Needs no lock of the store.
    pub(super) fn finish(self) -> Result<(), Problem> {
        let remove = |name: &String| {
            remove_tree(&self.store.staging, name)
                .map_err(|error| storage("what is left over can't be removed", error))?;
            pass("collect/removed");
            Ok(())
        };
        self.gone.iter().try_for_each(remove)
    }
}

fn fail(errno: Errno) -> Problem {
    storage("what is left over can't be removed", errno)
}
