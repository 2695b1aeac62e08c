//! Acting as the owner of a workspace while touching it.
//!
//! As root we would otherwise create, change and remove files in a tree that someone else can rearrange at any moment. With the
//! owner's filesystem ids the kernel lets us do no more than the owner could, whatever is swapped for what.

use crate::host_tree::HostTree;

/// Until it is dropped, files are made and reached with the owner's ids. Only root has another's to take.
pub(crate) struct ActingAs {
    _private: (),
}

impl ActingAs {
    pub(crate) fn owner_of(tree: &HostTree) -> Self {
        if rustix::process::geteuid().is_root() {
            // The group first: afterwards we could no longer.
            set_filesystem_ids(tree.uid, tree.gid);
        }
        Self { _private: () }
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        if rustix::process::geteuid().is_root() {
            set_filesystem_ids(0, 0);
        }
    }
}

/// These calls can't fail for root and don't say if they did; with root's own ids nothing would be lost but the restriction.
fn set_filesystem_ids(uid: u32, gid: u32) {
    // SAFETY: both take a number and change nothing but the calling thread's filesystem ids.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}
