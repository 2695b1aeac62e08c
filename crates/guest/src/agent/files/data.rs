//! Reads the content of regular files.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_int};

use saggar_guest::{DATA_MAX, FileKind, FileReply, FileStage, HEADER_LEN};

use super::at::{self, Links, ROOT};
use super::entry::{self, bare};
use super::session::{Session, Trouble, c_path, write_all};
use crate::agent::sys::{self, Errno, Fd};

/// Offset of the content in its buffer: well aligned for copying, with room for a header before it.
const CONTENT_AT: usize = 64;

pub(super) fn read(session: &mut Session, path: Vec<u8>, offset: u64, length: Option<u64>) -> Result<(), Trouble> {
    let path = c_path(path)?;
    let (file, status) = open_regular(ROOT, &path, Links::Follow)?;
    session.reply(&FileReply::Entry(bare(Vec::new(), &status)))?;
    let mut buffer = Buffer::new();
    send(session, &file, offset, length.unwrap_or(u64::MAX), &mut buffer)?;
    session.reply(&FileReply::End)
}

/// Opens a regular file, and nothing else: opening a pipe or a device may affect the process at its other end. It is
/// checked before, and again when it is open, as it may have been swapped.
pub(super) fn open_regular(directory: c_int, name: &CStr, links: Links) -> Result<(Fd, libc::stat), Trouble> {
    let status = at::stat(directory, name, links).map_err(Trouble::at(FileStage::Find))?;
    check_regular(&status)?;
    let flags = match links {
        Links::Stay => libc::O_NOFOLLOW,
        Links::Follow => 0,
    };
    let file = at::open(directory, name, libc::O_RDONLY | flags, 0).map_err(Trouble::at(FileStage::Find))?;
    let status = at::stat_open(&file).map_err(Trouble::at(FileStage::Find))?;
    check_regular(&status)?;
    Ok((file, status))
}

pub(super) fn check_regular(status: &libc::stat) -> Result<(), Trouble> {
    match entry::kind(status) {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Trouble::Failed(FileStage::NotRegular, Errno(libc::EISDIR))),
        FileKind::Link | FileKind::Other => Err(Trouble::Failed(FileStage::NotRegular, Errno(libc::EINVAL))),
    }
}

/// The buffer for content.
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    pub(super) fn new() -> Buffer {
        Buffer(vec![0; CONTENT_AT + DATA_MAX])
    }
}

/// Sends at most this much from an offset on, in as many `Data` frames as it takes.
pub(super) fn send(
    session: &mut Session,
    file: &Fd,
    mut offset: u64,
    mut length: u64,
    buffer: &mut Buffer,
) -> Result<(), Trouble> {
    session.flush()?;
    while length > 0 {
        let most = length.min(DATA_MAX as u64) as usize;
        let count = read_at(file, &mut buffer.0[CONTENT_AT..CONTENT_AT + most], offset)
            .map_err(Trouble::at(FileStage::Content))?;
        if count == 0 {
            break;
        }
        let header = CONTENT_AT - HEADER_LEN;
        buffer.0[header..CONTENT_AT].copy_from_slice(&FileReply::data_header(count));
        write_all(&session.stream, &buffer.0[header..CONTENT_AT + count])?;
        offset += count as u64;
        length -= count as u64;
    }
    Ok(())
}

fn read_at(file: &Fd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // Past the maximum file size there is nothing.
    let Ok(offset) = libc::off_t::try_from(offset) else { return Ok(0) };
    sys::retry(|| {
        // SAFETY: the pointer and the length are those of one writable slice.
        unsafe { libc::pread(file.raw(), buffer.as_mut_ptr().cast(), buffer.len(), offset) }
    })
}
