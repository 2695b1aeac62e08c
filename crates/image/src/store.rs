//! The template store of one project on disk, and what changes it.
//!
//! ```text
//! templates/PROJECT/lock          shared while something is imported or built, exclusive while layers are removed
//!                   names.lock    exclusive while names and manifests change
//!                   removals.lock shared while files are removed that nothing leads to
//!                   names/NAME/TAG
//!                   manifests/HEX.json   shared lock: used by a live sandbox
//!                   layers/HEX/   layer.json and tree/, immutable
//!                   builds/HEX    what a step of a build made
//!                   snapshots/ID.json    what is known about a snapshot, which is the template of that name
//!                   staging/      what isn't complete yet, and what is being removed
//! ```
//!
//! INVARIANT: a name leads to a complete manifest, and a manifest to complete layers. So everything is written from the
//! bottom up and removed from the top down, each step by one rename or unlink, and made durable before the next. Whatever
//! a killed process leaves is in `staging`, or is a layer or manifest that nothing leads to; [`Store::collect`] removes it.

mod adopt;
mod build;
mod cache;
mod check;
mod collect;
mod commit;
mod export;
mod lost;
mod removal;
mod remove;
mod snapshot;
mod staging;
mod tag;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Dir, FlockOperation, Mode, OFlags, flock, mkdirat, openat};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_sandbox::{DataDirectory, Templates};

pub use build::{Build, Made};
pub use cache::CacheRest;
pub use check::{Checked, Finding};
pub use collect::Collected;
pub(crate) use commit::Import;
pub use export::Export;
pub use remove::{Removed, Rest};

pub use snapshot::{NewSnapshot, Subject, is_reserved};
pub use tag::{SteadyNames, Tagged, check_free};

use crate::failure::storage;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const PRIVATE: Mode = Mode::from_raw_mode(0o700);

pub struct Store {
    templates: Templates,
    layers: OwnedFd,
    manifests: OwnedFd,
    names: OwnedFd,
    staging: OwnedFd,
    builds: OwnedFd,
    snapshots: OwnedFd,
    root: OwnedFd,
}

impl Store {
    /// Opens the store of a project, and makes it if it doesn't exist.
    pub fn open(data: &DataDirectory, project: &str) -> Result<Self, Problem> {
        let templates = Templates::new(data, project);
        let fail = |errno| storage("the template store can't be opened", errno);
        let above = made(CWD, &data.path().join("templates")).map_err(fail)?;
        let root = made(above.as_fd(), Path::new(project)).map_err(fail)?;
        let part = |name: &str| made(root.as_fd(), Path::new(name)).map_err(fail);
        let (layers, manifests, names, staging, builds) =
            (part("layers")?, part("manifests")?, part("names")?, part("staging")?, part("builds")?);
        let snapshots = part("snapshots")?;
        Ok(Self { templates, layers, manifests, names, staging, builds, snapshots, root })
    }

    /// Reads and holds templates.
    pub fn templates(&self) -> &Templates {
        &self.templates
    }

    fn layers(&self) -> &OwnedFd {
        &self.layers
    }

    /// Takes a lock until it is dropped; `None` if another process has it and `operation` doesn't wait.
    fn lock(&self, lock: Lock, operation: FlockOperation) -> Result<Option<OwnedFd>, Problem> {
        let name = match lock {
            Lock::Layers => "lock",
            Lock::Names => "names.lock",
            Lock::Removals => "removals.lock",
        };
        let fail = |errno| storage("the template store can't be locked", errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.root, name, flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
        match flock(&file, operation) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(fail(errno)),
        }
    }

    /// Waits for a lock.
    fn locked(&self, lock: Lock, operation: FlockOperation) -> Result<OwnedFd, Problem> {
        self.lock(lock, operation)?.ok_or_else(|| storage("the template store can't be locked", Errno::WOULDBLOCK))
    }
}

/// The locks of a store. If several are taken, then in this order.
#[derive(Clone, Copy)]
enum Lock {
    Layers,
    Names,
    Removals,
}

/// Opens a private directory, and makes it if it doesn't exist.
fn made(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    match mkdirat(at, path, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => openat(at, path, DIRECTORY, Mode::empty()),
        Err(errno) => Err(errno),
    }
}

/// The names in a directory, in no order.
fn listed(directory: &OwnedFd) -> Result<Vec<String>, Problem> {
    let fail = |errno| storage("the template store can't be listed", errno);
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}
