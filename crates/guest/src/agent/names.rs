//! The names in a directory, as the kernel returns them.

use alloc::vec::Vec;
use core::ffi::CStr;

use super::sys::{self, Errno, Fd};

/// Bytes of names read at once. Longer than any one record.
const NAMES_LEN: usize = 32 * 1024;

/// Offsets of the length, type and name in a record (`struct linux_dirent64`).
const LENGTH_AT: usize = 16;
const KIND_AT: usize = 18;
const NAME_AT: usize = 19;

/// The part of a directory that was read and not yet returned. The directory must be the same at every call.
pub(super) struct Names {
    // In words, for the alignment of the records.
    buffer: Vec<u64>,
    filled: usize,
    position: usize,
}

impl Names {
    pub(super) fn new() -> Names {
        Names { buffer: alloc::vec![0; NAMES_LEN / size_of::<u64>()], filled: 0, position: 0 }
    }

    /// Discards what was read, for another directory.
    pub(super) fn clear(&mut self) {
        (self.filled, self.position) = (0, 0);
    }

    /// The next name and its `DT_` type, without `.` and `..`.
    pub(super) fn next(&mut self, directory: &Fd) -> Result<Option<(&CStr, u8)>, Errno> {
        loop {
            if self.position == self.filled && !self.read(directory)? {
                return Ok(None);
            }
            let start = self.position;
            // SAFETY: any bytes are valid, and the length is the buffer's.
            let bytes = unsafe { core::slice::from_raw_parts(self.buffer.as_ptr().cast::<u8>(), NAMES_LEN) };
            let length = u16::from_ne_bytes([bytes[start + LENGTH_AT], bytes[start + LENGTH_AT + 1]]);
            self.position = start + usize::from(length);
            let record = &bytes[start..self.position];
            let name = CStr::from_bytes_until_nul(&record[NAME_AT..]).map_err(|_| Errno(libc::EIO))?;
            if name != c"." && name != c".." {
                return Ok(Some((name, record[KIND_AT])));
            }
        }
    }

    /// Reads more; false at the end.
    fn read(&mut self, directory: &Fd) -> Result<bool, Errno> {
        let pointer = self.buffer.as_mut_ptr();
        self.filled = sys::retry(|| {
            // SAFETY: the pointer and the length are those of one writable buffer.
            unsafe { libc::syscall(libc::SYS_getdents64, directory.raw(), pointer, NAMES_LEN) as isize }
        })?;
        self.position = 0;
        Ok(self.filled > 0)
    }
}
