//! Removes a name, or a directory with all its contents.

use alloc::vec::Vec;
use core::ffi::CStr;

use saggar_guest::{FileReply, FileStage};

use super::at::{self, ROOT};
use super::descent::{Descent, Enter, Entered};
use super::session::{Session, Trouble, c_path};
use crate::agent::sys::Errno;

/// How often a directory that is still not empty is cleared again: a program may keep creating files in it.
const AGAIN_MAX: usize = 256;

pub(super) fn remove(session: &mut Session, path: Vec<u8>, recursive: bool) -> Result<(), Trouble> {
    let path = c_path(path)?;
    match at::unlink(ROOT, &path) {
        Ok(()) => {}
        Err(Errno(libc::EISDIR)) => remove_directory(&path, recursive)?,
        Err(errno @ Errno(libc::ENOENT | libc::ENOTDIR)) => return Err(Trouble::Failed(FileStage::Find, errno)),
        Err(errno) => return Err(Trouble::Failed(FileStage::Remove, errno)),
    }
    session.reply(&FileReply::Done)
}

fn remove_directory(path: &CStr, recursive: bool) -> Result<(), Trouble> {
    for _ in 0..AGAIN_MAX {
        match at::remove_directory(ROOT, path) {
            Ok(()) => return Ok(()),
            Err(Errno(libc::ENOTEMPTY | libc::EEXIST)) if recursive => {}
            Err(errno) => return Err(Trouble::Failed(FileStage::Remove, errno)),
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        clear(Descent::new(at::open(ROOT, path, flags, 0).map_err(Trouble::at(FileStage::Remove))?))?;
    }
    Err(Trouble::Failed(FileStage::Remove, Errno(libc::ENOTEMPTY)))
}

/// Removes the contents of the top directory.
fn clear(mut descent: Descent) -> Result<(), Trouble> {
    let mut again = 0;
    loop {
        descent.read(|directory, _, name, kind| {
            if kind == libc::DT_DIR {
                return Ok(Enter::Later);
            }
            match at::unlink(directory, name) {
                Ok(()) | Err(Errno(libc::ENOENT)) => Ok(Enter::Never),
                Err(Errno(libc::EISDIR)) => Ok(Enter::Later),
                Err(errno) => Err(Trouble::Failed(FileStage::Remove, errno)),
            }
        })?;
        loop {
            match descent.enter()? {
                Entered::Yes => break,
                Entered::Refused(errno) => {
                    give_up_on(&mut descent, errno)?;
                }
                Entered::None => {
                    let Some(name) = descent.leave()? else { return Ok(()) };
                    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
                    match at::remove_directory(descent.here(), name) {
                        Ok(()) | Err(Errno(libc::ENOENT)) => {}
                        Err(Errno(libc::ENOTEMPTY | libc::EEXIST)) if again < AGAIN_MAX => {
                            again += 1;
                            descent.enter_again(name);
                        }
                        Err(errno) => return Err(Trouble::Failed(FileStage::Remove, errno)),
                    }
                }
            }
        }
    }
}

/// An unreadable directory can be removed if it is empty. One that is gone is skipped, and one that is no longer a
/// directory is removed as a file.
fn give_up_on(descent: &mut Descent, errno: Errno) -> Result<(), Trouble> {
    let start = descent.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let name = c_path(descent.path[start..].to_vec())?;
    descent.forget_refused();
    let removed = match errno {
        Errno(libc::ENOENT) => Ok(()),
        Errno(libc::ENOTDIR | libc::ELOOP) => at::unlink(descent.here(), &name),
        _ => at::remove_directory(descent.here(), &name).map_err(|_| errno),
    };
    removed.map_err(Trouble::at(FileStage::Remove))
}
