//! Acts as the owner of a workspace while touching it.
//!
//! Otherwise root would create, change and remove files in a tree that another user can rearrange at any moment. With
//! the owner's filesystem ids, and none of root's groups, the kernel lets us do no more than the owner could, whatever
//! is swapped in.

use rustix::process::{Gid, getgroups};
use rustix::thread::set_thread_groups;
use saggar_domain::HostUser;

use crate::host_tree::HostTree;

/// Until this is dropped, files are created and accessed with the owner's ids. Only root can take another user's ids.
pub(crate) struct ActingAs {
    user: HostUser,
    /// Root's own groups, to be restored.
    groups: Vec<Gid>,
}

impl ActingAs {
    pub(crate) fn owner_of(tree: &HostTree) -> Self {
        Self::user(HostUser { uid: tree.uid, gid: tree.gid })
    }

    /// As a user of the host, with its own group alone.
    pub(crate) fn user(user: HostUser) -> Self {
        let mut groups = Vec::new();
        if rustix::process::geteuid().is_root() {
            groups = getgroups().unwrap_or_default();
            set_groups(&groups, &[]);
            // The group first: afterwards we could no longer change it.
            set_filesystem_ids(user.uid, user.gid);
        }
        Self { user, groups }
    }

    /// Does one thing with our own ids, such as opening a file of the data directory.
    pub(crate) fn as_ourselves<T>(&self, work: impl FnOnce() -> T) -> T {
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            set_filesystem_ids(0, 0);
        }
        let done = work();
        if is_root {
            set_filesystem_ids(self.user.uid, self.user.gid);
        }
        done
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        if rustix::process::geteuid().is_root() {
            set_filesystem_ids(0, 0);
            set_groups(&[], &self.groups);
        }
    }
}

/// For this thread only.
fn set_groups(before: &[Gid], after: &[Gid]) {
    if before != after {
        // In a container that doesn't permit this, only the restriction is lost.
        let _ = set_thread_groups(after);
    }
}

/// These calls can't fail for root and report no errors. If they did fail, only the restriction would be lost.
fn set_filesystem_ids(uid: u32, gid: u32) {
    // SAFETY: both take a number and change only the calling thread's filesystem ids.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::{Code, HostPath};

    use super::*;

    #[test]
    fn none_of_roots_groups_is_used_for_an_owner() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not tried here: only root acts as others");
            return;
        }
        let own = [Gid::from_raw(0), Gid::from_raw(4)];
        set_thread_groups(&own).unwrap();
        let path = HostPath::parse(&std::env::temp_dir().display().to_string()).unwrap();
        let tree = HostTree::open(&path, Code::InvalidWorkspace, "directory").unwrap();
        let acting = ActingAs::owner_of(&tree);
        assert_eq!(getgroups().unwrap(), []);
        drop(acting);
        assert_eq!(getgroups().unwrap(), own);
    }
}
