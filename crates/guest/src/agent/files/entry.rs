//! Describes a file.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};

use saggar_guest::{FileEntry, FileKind};

use super::at;

/// An entry from a stat result. Reads a link's target, and leaves it out if the link is gone by then.
pub(super) fn entry(path: Vec<u8>, status: &libc::stat, directory: c_int, name: &CStr) -> FileEntry {
    let kind = kind(status);
    let link_target = if kind == FileKind::Link { at::read_link(directory, name).ok() } else { None };
    FileEntry { link_target, ..bare(path, status) }
}

/// An entry of anything but a link.
pub(super) fn bare(path: Vec<u8>, status: &libc::stat) -> FileEntry {
    let kind = kind(status);
    FileEntry {
        path,
        kind,
        size: match kind {
            // Never negative.
            FileKind::File | FileKind::Link | FileKind::Directory => status.st_size as u64,
            FileKind::Other => 0,
        },
        mode: status.st_mode & 0o7777,
        uid: status.st_uid,
        gid: status.st_gid,
        modified_ns: status.st_mtime.saturating_mul(1_000_000_000).saturating_add(status.st_mtime_nsec),
        link_target: None,
    }
}

pub(super) fn kind(status: &libc::stat) -> FileKind {
    match status.st_mode & libc::S_IFMT {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    }
}
