//! Views: a sandbox's own cgroups as read-only mounts inside, where programs look for their limits.
//!
//! Node, Java, Go and others size their heaps and pools by what they read under /sys/fs/cgroup. A view shows one leaf
//! and nothing above it.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::group::{Group, Wanted, leaves};
use super::host::{Controller, Host};
use crate::sys::{MountAttributes, clone_tree, set_mount_attributes};

/// The hierarchy that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum View {
    /// Version 2: all controllers in one.
    Unified,
    /// Version 1, memory.
    Memory,
    /// Version 1, CPU time.
    Cpu,
    /// Version 1, processes.
    Pids,
}

impl View {
    pub const ALL: &[Self] = &[Self::Unified, Self::Memory, Self::Cpu, Self::Pids];

    /// The views of a sandbox with these limits.
    pub fn of(host: &Host, wanted: &Wanted) -> Vec<Self> {
        leaves(host, "", wanted).iter().filter_map(|leaf| Self::of_leaf(leaf.is_v2, &leaf.controllers)).collect()
    }

    /// Its path inside, relative to the root.
    pub fn path(self) -> &'static str {
        match self {
            Self::Unified => "sys/fs/cgroup",
            Self::Memory => "sys/fs/cgroup/memory",
            Self::Cpu => "sys/fs/cgroup/cpu",
            Self::Pids => "sys/fs/cgroup/pids",
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|view| *view as u8 == number)
    }

    /// A leaf without limits, such as one for freezing only, has no view.
    fn of_leaf(is_v2: bool, controllers: &[Controller]) -> Option<Self> {
        Some(match (is_v2, controllers.first()?) {
            (true, _) => Self::Unified,
            (false, Controller::Memory) => Self::Memory,
            (false, Controller::Cpu) => Self::Cpu,
            (false, Controller::Pids) => Self::Pids,
        })
    }
}

impl Group {
    /// Detached mounts of the views. Views that this host doesn't let us mount are left out: the limits apply without
    /// being visible.
    pub fn views(&self) -> Vec<(View, OwnedFd)> {
        let mount = |path: &str| -> Result<OwnedFd, Errno> {
            let tree = clone_tree(&rustix::fs::CWD, path)?;
            let attributes = MountAttributes { is_read_only: true, is_no_exec: true, ..MountAttributes::default() };
            set_mount_attributes(&tree, attributes)?;
            Ok(tree)
        };
        let views = self.leaves.iter().filter_map(|leaf| {
            let view = View::of_leaf(leaf.is_v2, &leaf.controllers)?;
            Some((view, mount(leaf.path.to_str()?).ok()?))
        });
        views.collect()
    }
}
