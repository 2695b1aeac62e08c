//! Whether a filesystem is full.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

/// Whether the filesystem at any of these paths (each with a NUL at its end) has no block or no inode left. One that
/// cannot be queried counts as not full: the program may have removed the path.
pub(super) fn is_any_full(paths: &[Vec<u8>]) -> bool {
    paths.iter().any(|path| is_full(path))
}

fn is_full(path: &[u8]) -> bool {
    let Ok(path) = core::ffi::CStr::from_bytes_with_nul(path) else { return false };
    let mut filesystem = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string; statvfs fills in the whole struct when it succeeds, and only then is it read.
    let filesystem = unsafe {
        if libc::statvfs(path.as_ptr(), filesystem.as_mut_ptr()) < 0 {
            return false;
        }
        filesystem.assume_init()
    };
    // A total of zero means that the filesystem doesn't count them.
    let no_block = filesystem.f_blocks > 0 && filesystem.f_bavail == 0;
    let no_inode = filesystem.f_files > 0 && filesystem.f_favail == 0;
    no_block || no_inode
}
