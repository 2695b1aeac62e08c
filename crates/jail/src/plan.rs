//! The plan of a sandbox: everything the jail will do, decided beforehand and written down as data.
//!
//! Paths are relative to the new root unless they are a [`Source`]. The operations run in order, inside the new namespaces.

use std::os::fd::{OwnedFd, RawFd};

use rustix::thread::CpuSet;

use crate::cgroup::View;
use crate::identity::Identity;
use crate::memfd::SealedProgram;

/// What [`crate::spawn`] carries out.
pub struct Plan {
    /// Which ids of the host stand behind those inside.
    pub identity: Identity,
    /// Whether the sandbox has a network namespace of its own; without one it shares the host's.
    pub is_network_private: bool,
    /// Host name inside.
    pub hostname: String,
    /// Bytes of private storage.
    pub storage_bytes: u64,
    /// Files and directories of private storage.
    pub storage_inodes: u64,
    /// How the root is made.
    pub ops: Vec<Op>,
    /// What Landlock grants, as a second lock under the mounts.
    pub fence: Fence,
    /// The CPUs to run on, where that is fewer than the caller's. What counts them inside then counts these; the limit itself is the cgroup's.
    pub processors: Option<CpuSet>,
    /// Most open files of a process.
    pub files: u64,
    /// Most processes of the host user behind the sandbox, where no cgroup counts them.
    pub processes: Option<u64>,
    /// The version 2 cgroup to be born in.
    pub cgroup: Option<OwnedFd>,
    /// The agent's end of the control channel.
    pub channel: OwnedFd,
}

/// What a sandbox needs only when its root is made: prepared by the parent while the child makes it.
#[derive(Debug)]
pub struct Supplies {
    /// Version 1 cgroups to join: their `tasks` files, open for writing. Writing `0` there moves just the writer and takes no
    /// lock over all of the host's processes, as `cgroup.procs` does.
    pub tasks: Vec<OwnedFd>,
    pub guest: SealedProgram,
    /// What the sandbox sees of its own cgroups: detached mounts. Where they go must be there.
    pub views: Vec<(View, OwnedFd)>,
}

/// One step in making the root.
#[derive(Debug)]
pub enum Op {
    /// A directory of private storage.
    Directory {
        path: String,
        mode: u32,
        /// uid and gid inside.
        owner: u32,
    },
    /// A file of private storage.
    File {
        path: String,
        /// What is in it.
        bytes: Vec<u8>,
    },
    /// A symbolic link.
    Link {
        path: String,
        /// What it says.
        target: String,
    },
    /// Something of the host.
    Bind {
        source: Source,
        /// Where; must exist.
        target: String,
        attributes: Attributes,
    },
    /// A device node of the host, in /dev.
    Device {
        /// Its name there.
        name: String,
    },
    /// A directory of private storage as a mount of its own: it stays writable when what it is in is sealed, and can be sealed itself.
    Writable { path: String },
    /// A copy-on-write view.
    Overlay {
        /// What is below; never changed.
        lower: Source,
        /// Where; must exist.
        target: String,
        /// A directory of private storage for the changes: `upper`, `work` and `lower` are made in it.
        layer: String,
        /// Who gets the changes in the end.
        fate: Fate,
    },
    /// A path that can't be changed, with every directory above it up to `under` held in place.
    Protect {
        under: String,
        /// Names from there down; each must exist and not be a link.
        names: Vec<String>,
    },
    /// A procfs of the new pid namespace, read-only.
    Proc {
        /// Where; must exist.
        target: String,
    },
    /// A devpts of its own.
    Terminals {
        /// Where; must exist.
        target: String,
    },
    /// Makes what masks are made of.
    Covers,
    /// Hides a file or directory if it is there. Needs [`Op::Covers`] before it.
    Mask { path: String, cover: Cover },
    /// Makes a mount read-only; what is mounted on top of it keeps what it has.
    Seal {
        /// Where it is mounted; empty for the root itself.
        path: String,
    },
}

/// What becomes of the changes in a copy-on-write view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The parent gets the layer, and may keep them. A plan has at most one such view.
    HandedOver,
    /// They end with the sandbox.
    Dropped,
}

/// Something of the host to be mounted.
#[derive(Debug)]
pub enum Source {
    /// A path that no sandbox can change, opened by the child.
    System(String),
    /// A path that must still be what the caller looked at: opened by the child without following links, and compared.
    Pinned {
        /// Absolute, without links.
        path: String,
        /// Device number seen.
        device: u64,
        /// Inode number seen.
        inode: u64,
    },
    /// A detached mount the caller made, with its attributes set, and keeps open.
    Detached(RawFd),
}

/// What a mask is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
}

/// How something of the host is mounted; always without devices and set-id bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// Landlock's grants. Everything may be read and executed (the mounts decide what there is); this says what may be written.
#[derive(Debug, Default)]
pub struct Fence {
    /// Trees that may be changed, besides the device nodes of /dev, which may be opened for writing.
    pub writable: Vec<String>,
}
