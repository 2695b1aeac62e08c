//! User namespaces created only for their id mapping, which idmapped mounts use.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::identity::Identity;
use crate::sys::{Cloned, clone3};

/// An id on disk, and the host id it appears as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPair {
    pub on_disk: u32,
    /// The id seen through the mount.
    pub seen: u32,
}

/// A user namespace that exists for its mapping.
///
/// A process had to live in it while it was mapped and opened. It exits by itself, and is reaped when this is dropped.
/// By then it has ended; waiting for it at once would cost a scheduling delay at every start.
#[derive(Debug)]
pub struct Mapping {
    namespace: OwnedFd,
    process: rustix::process::Pid,
}

impl Mapping {
    pub fn namespace(&self) -> &OwnedFd {
        &self.namespace
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Our own child: nothing else reaps it, and its status doesn't matter.
        let _ = rustix::process::waitpid(Some(self.process), rustix::process::WaitOptions::empty());
    }
}

/// A user namespace in which exactly one uid and one gid are mapped. Needs root.
pub fn mapping_namespace(uid: IdPair, gid: IdPair) -> Result<Mapping, Errno> {
    mapping(uid, gid, 1)
}

/// A user namespace in which as many ids as a sandbox has are mapped, from this pair on. Needs root.
pub fn range_mapping_namespace(first: IdPair) -> Result<Mapping, Errno> {
    mapping(first, first, Identity::RANGE)
}

fn mapping(uid: IdPair, gid: IdPair, count: u32) -> Result<Mapping, Errno> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match clone3(libc::CLONE_NEWUSER as u64, None)? {
        Cloned::Child => {
            drop(theirs);
            // Returns at end of file, when the parent is done or gone. The result does not matter: the next step is to
            // exit in any case.
            let _ = rustix::io::read(&ours, &mut [0u8; 1]);
            crate::sys::exit_now(0)
        }
        Cloned::Parent { pid, .. } => {
            drop(ours);
            let process =
                rustix::process::Pid::from_raw(pid).expect("clone3 returned a child, whose number is not zero");
            let outcome = map_and_open(pid, uid, gid, count);
            drop(theirs);
            match outcome {
                Ok(namespace) => Ok(Mapping { namespace, process }),
                Err(errno) => {
                    // As above.
                    let _ = rustix::process::waitpid(Some(process), rustix::process::WaitOptions::empty());
                    Err(errno)
                }
            }
        }
    }
}

fn map_and_open(pid: i32, uid: IdPair, gid: IdPair, count: u32) -> Result<OwnedFd, Errno> {
    write_map(pid, "uid_map", &format!("{} {} {count}\n", uid.on_disk, uid.seen))?;
    write_map(pid, "gid_map", &format!("{} {} {count}\n", gid.on_disk, gid.seen))?;
    open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Writes one of the map files of a process; the kernel accepts it completely or not at all.
pub(crate) fn write_map(pid: i32, name: &str, text: &str) -> Result<(), Errno> {
    let file = open(format!("/proc/{pid}/{name}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::write(&file, text.as_bytes())? {
        length if length == text.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}
