//! The requests that need only one system call, or a few.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::MaybeUninit;

use saggar_guest::{FileReply, FileStage};

use super::at::{self, Links, ROOT};
use super::entry::entry;
use super::session::{Session, Trouble, c_path};
use crate::agent::sys::{Errno, check};

/// Permissions of parent directories that are created on the way.
const PARENT_MODE: u32 = 0o755;

pub(super) fn stat(session: &mut Session, path: Vec<u8>, follow: bool) -> Result<(), Trouble> {
    let path = c_path(path)?;
    let links = if follow { Links::Follow } else { Links::Stay };
    let status = at::stat(ROOT, &path, links).map_err(Trouble::at(FileStage::Find))?;
    session.reply(&FileReply::Entry(entry(Vec::new(), &status, ROOT, &path)))
}

pub(super) fn make_directory(session: &mut Session, path: Vec<u8>, parents: bool, mode: u32) -> Result<(), Trouble> {
    let path = c_path(path)?;
    let mut made = at::make_directory(ROOT, &path, mode);
    if parents && made == Err(Errno(libc::ENOENT)) {
        make_parents(path.as_bytes())?;
        made = at::make_directory(ROOT, &path, mode);
    }
    if parents && made == Err(Errno(libc::EEXIST)) && is_directory(&path) {
        made = Ok(());
    }
    made.map_err(Trouble::at(FileStage::Create))?;
    session.reply(&FileReply::Done)
}

/// Creates the missing directories above a path.
pub(super) fn make_parents(path: &[u8]) -> Result<(), Trouble> {
    for (position, _) in path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/') {
        let parent = c_path(path[..position].to_vec())?;
        match at::make_directory(ROOT, &parent, PARENT_MODE) {
            // An existing one may also be on a filesystem, or in a directory, where nothing can be created.
            Ok(()) | Err(Errno(libc::EEXIST)) => {}
            Err(_) if is_directory(&parent) => {}
            Err(errno) => return Err(Trouble::Failed(FileStage::Parents, errno)),
        }
    }
    Ok(())
}

fn is_directory(path: &CStr) -> bool {
    at::stat(ROOT, path, Links::Follow).is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

pub(super) fn rename(session: &mut Session, from: Vec<u8>, to: Vec<u8>) -> Result<(), Trouble> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    at::stat(ROOT, &from, Links::Stay).map_err(Trouble::at(FileStage::Find))?;
    at::rename((ROOT, &from), (ROOT, &to)).map_err(Trouble::at(FileStage::Publish))?;
    session.reply(&FileReply::Done)
}

pub(super) fn link(session: &mut Session, path: Vec<u8>, target: Vec<u8>) -> Result<(), Trouble> {
    let (path, target): (CString, CString) = (c_path(path)?, c_path(target)?);
    at::make_link(ROOT, &path, &target).map_err(Trouble::at(FileStage::Create))?;
    session.reply(&FileReply::Done)
}

pub(super) fn set_mode(session: &mut Session, path: Vec<u8>, mode: u32) -> Result<(), Trouble> {
    let path = c_path(path)?;
    at::stat(ROOT, &path, Links::Follow).map_err(Trouble::at(FileStage::Find))?;
    at::set_mode(ROOT, &path, mode).map_err(Trouble::at(FileStage::Attributes))?;
    session.reply(&FileReply::Done)
}

pub(super) fn set_owner(
    session: &mut Session,
    path: Vec<u8>,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), Trouble> {
    let path = c_path(path)?;
    at::stat(ROOT, &path, Links::Follow).map_err(Trouble::at(FileStage::Find))?;
    at::set_owner(ROOT, &path, uid, gid).map_err(Trouble::at(FileStage::Attributes))?;
    session.reply(&FileReply::Done)
}

pub(super) fn storage(session: &mut Session, path: Vec<u8>) -> Result<(), Trouble> {
    let path = c_path(path)?;
    let mut filesystem = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string; statvfs fills in the whole struct when it succeeds, and only then is it read.
    let filesystem = unsafe {
        check(libc::statvfs(path.as_ptr(), filesystem.as_mut_ptr())).map_err(Trouble::at(FileStage::Find))?;
        filesystem.assume_init()
    };
    let bytes = |blocks: u64| blocks.saturating_mul(filesystem.f_frsize);
    session.reply(&FileReply::Storage {
        total: bytes(filesystem.f_blocks),
        free: bytes(filesystem.f_bavail),
        inodes: filesystem.f_files,
        inodes_free: filesystem.f_favail,
    })
}
