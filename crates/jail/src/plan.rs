//! The plan of a sandbox: everything the jail will do, decided beforehand and written as data.
//!
//! Paths are relative to the new root, except in a [`Source`]. The operations run in order, inside the new namespaces.

use std::os::fd::{OwnedFd, RawFd};

use rustix::thread::CpuSet;

use crate::cgroup::View;
use crate::identity::Identity;
use crate::memfd::SealedProgram;

/// Input of [`crate::spawn`].
pub struct Plan {
    pub identity: Identity,
    pub network: NetworkPlan,
    /// Host name inside.
    pub hostname: String,
    /// Size of private storage in bytes.
    pub storage_bytes: u64,
    /// Maximum number of files and directories in private storage.
    pub storage_inodes: u64,
    /// The steps that build the root.
    pub ops: Vec<Op>,
    /// Landlock's grants, a second barrier besides the mounts.
    pub fence: Fence,
    /// The CPUs to run on, if fewer than the caller's. Programs that count CPUs then see these; the actual limit is the
    /// cgroup's.
    pub processors: Option<CpuSet>,
    /// Whether programs may set set-id bits.
    pub set_ids: SetIds,
    /// Maximum number of open files of a process.
    pub files: u64,
    /// Maximum number of processes of the host user behind the sandbox, if no cgroup counts them.
    pub processes: Option<u64>,
    /// The v2 cgroup to create the process in.
    pub cgroup: Option<OwnedFd>,
    /// The agent's end of the control channel.
    pub channel: OwnedFd,
}

/// The network of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkPlan {
    /// The host's own.
    Host,
    /// A namespace of its own, with nothing but a loopback.
    None,
    /// The same, in which everything leads to [`crate::Gates`].
    Proxied,
}

/// Setuid and setgid bits on files of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetIds {
    /// Setting one is an error: a file might outlive the sandbox, or be visible outside of it.
    Refused,
    /// They can be set and have no effect. Only for a sandbox whose files nobody outside can execute: no directory of the host is
    /// writable, and its own files are in a private tmpfs or belong to ids that nobody has. Packages set such bits.
    Powerless,
}

/// What a sandbox needs once its root is ready: the parent prepares it while the child builds the root.
#[derive(Debug)]
pub struct Supplies {
    /// Cgroup v1 groups to join: their `tasks` files, open for writing. Writing `0` there moves just the writer, and
    /// unlike `cgroup.procs` takes no lock over all processes of the host.
    pub tasks: Vec<OwnedFd>,
    pub guest: SealedProgram,
    /// Detached mounts that show the sandbox its own cgroups. Their mount points must exist.
    pub views: Vec<(View, OwnedFd)>,
}

/// One step in building the root.
///
/// After [`Op::Layers`] the root is a tree that somebody else made, so a path may be anything there. No link is followed then: a directory
/// that exists is used as it is, a file or link where a file belongs is replaced in the private layer, and everything else is an error
/// (`ENOTDIR`, `ELOOP`, `EISDIR`).
#[derive(Debug)]
pub enum Op {
    /// The root becomes a copy-on-write view of layers, with its changes in private storage. Must come first.
    Layers {
        /// Directories, the topmost first; never changed.
        lowers: Vec<Source>,
        /// A filesystem for the changes, if they are not to be in private storage.
        disk: Option<Source>,
        /// What happens to the changes at the end.
        fate: Fate,
    },
    /// Hands the parent private storage as it is below all mounts, so that it can be read from outside. Not for a root made of layers, which
    /// has its own [`Fate`].
    Expose,
    /// A directory of private storage, mounted over a directory of the root that exists.
    Private { path: String, mode: u32 },
    /// A directory of private storage.
    Directory {
        path: String,
        mode: u32,
        /// uid and gid inside.
        owner: u32,
    },
    /// A file of private storage.
    File { path: String, bytes: Vec<u8> },
    /// Makes the directory that programs start in, if it is missing in a root made of layers.
    WorkingDirectory { path: String, owner: u32 },
    /// A file of private storage whose content the parent may replace later, also if its mount is sealed.
    Kept {
        /// Must exist, except in a root made of layers; there it may be behind a link.
        directory: String,
        name: String,
        bytes: Vec<u8>,
    },
    /// A symbolic link. In a root made of layers it replaces a file or link that may be there.
    Link { path: String, target: String },
    /// A file or directory of the host.
    Bind {
        source: Source,
        /// The mount point; must exist.
        target: String,
        attributes: Attributes,
    },
    /// A device node of the host, in /dev.
    Device { name: String },
    /// A directory of private storage as its own mount: it stays writable when its parent is sealed, and can be sealed
    /// itself.
    Writable { path: String },
    /// A copy-on-write view.
    Overlay {
        /// The lower layer; never changed.
        lower: Source,
        /// The mount point; must exist.
        target: String,
        /// A directory of private storage for the changes: `upper`, `work` and `lower` are created in it.
        layer: String,
        /// What happens to the changes at the end.
        fate: Fate,
    },
    /// A path that can't be changed, along with every directory above it up to `under`.
    Protect {
        under: String,
        /// Names from there down; each must exist and not be a link.
        names: Vec<String>,
    },
    /// A read-only procfs of the new pid namespace.
    Proc {
        /// The mount point; must exist.
        target: String,
    },
    /// A private devpts.
    Terminals {
        /// The mount point; must exist.
        target: String,
    },
    /// Creates the empty file and directory used as masks.
    Covers,
    /// Hides a file or directory if it exists. Needs [`Op::Covers`] before it.
    Mask { path: String, cover: Cover },
    /// Makes a mount read-only; mounts on top of it keep their own flags.
    Seal {
        /// The mount point; empty for the root itself.
        path: String,
    },
}

/// What happens to the changes in a copy-on-write view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The parent gets the layer and may keep the changes. A plan has at most one such view besides the root.
    HandedOver,
    /// They are discarded with the sandbox.
    Dropped,
}

/// A host path to be mounted.
#[derive(Debug)]
pub enum Source {
    /// A path that no sandbox can change, opened by the child.
    System(String),
    /// A path that must still be the file the caller checked: the child opens it without following links, and compares.
    Pinned {
        /// Absolute, without links.
        path: String,
        /// Device number that the caller saw.
        device: u64,
        /// Inode number that the caller saw.
        inode: u64,
    },
    /// A detached mount that the caller created, with its attributes set, and keeps open.
    Detached(RawFd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
}

/// How a host path is mounted; always without devices and set-id bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    ReadOnly,
    ReadWrite,
}

/// Landlock's grants. Everything may be read and executed, since the mounts decide what is visible; this lists what may
/// be written.
#[derive(Debug, Default)]
pub struct Fence {
    /// Trees that may be changed, in addition to the device nodes of /dev, which may be opened for writing.
    pub writable: Vec<String>,
}
