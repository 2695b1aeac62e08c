//! User namespaces made only for their mapping: what an idmapped mount translates ids by.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::sys::{Cloned, clone3};

/// An id on disk, and the id of the host it appears as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPair {
    /// As stored.
    pub on_disk: u32,
    /// As seen through the mount.
    pub seen: u32,
}

/// A user namespace in which exactly one uid and one gid are mapped. Needs root.
///
/// A process has to live in it while it is mapped and opened; it does nothing else and is reaped before this returns.
pub fn mapping_namespace(uid: IdPair, gid: IdPair) -> Result<OwnedFd, Errno> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match clone3(libc::CLONE_NEWUSER as u64, None)? {
        Cloned::Child => {
            drop(theirs);
            // Returns at end of file, when the parent has what it wants or is gone.
            // The outcome does not matter: the next step is the end in any case.
            let _ = rustix::io::read(&ours, &mut [0u8; 1]);
            crate::sys::exit_now(0)
        }
        Cloned::Parent { pid, .. } => {
            drop(ours);
            let outcome = map_and_open(pid, uid, gid);
            drop(theirs);
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
            }
            outcome
        }
    }
}

fn map_and_open(pid: i32, uid: IdPair, gid: IdPair) -> Result<OwnedFd, Errno> {
    write_map(pid, "uid_map", &format!("{} {} 1\n", uid.on_disk, uid.seen))?;
    write_map(pid, "gid_map", &format!("{} {} 1\n", gid.on_disk, gid.seen))?;
    open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Writes one of the map files of a process; the kernel takes it whole or not at all.
pub(crate) fn write_map(pid: i32, name: &str, text: &str) -> Result<(), Errno> {
    let file = open(format!("/proc/{pid}/{name}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::write(&file, text.as_bytes())? {
        length if length == text.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}
