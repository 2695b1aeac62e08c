//! Walks down a tree of directories and back, of any depth.
//!
//! Every directory is read in one go, and the names of its subdirectories are kept until their turn. So there is no
//! recursion, and at most [`OPEN_MAX`] directories are open. From further down the way up is `..`, which must lead back
//! to where it came from: if the tree is rearranged in the meantime, the walk is abandoned.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};

use saggar_guest::FileStage;

use super::at;
use super::session::Trouble;
use crate::agent::names::Names;
use crate::agent::sys::{Errno, Fd};

/// How many directories above the current one are kept open.
const OPEN_MAX: usize = 64;

/// Maximum memory for names and positions. A tree that needs more is refused.
const MEMORY_MAX: usize = 16 * 1024 * 1024;

pub(super) struct Descent {
    here: Fd,
    above: Vec<Level>,
    // The names still to be entered, each with its NUL. Those of the current directory are at the end, from `first` on.
    waiting: Vec<u8>,
    first: usize,
    /// The current position, relative to the top.
    pub(super) path: Vec<u8>,
    names: Names,
}

/// A directory to come back to.
struct Level {
    way_back: WayBack,
    first: usize,
    path_len: usize,
}

enum WayBack {
    Open(Fd),
    /// Reached through `..`, which must be this directory.
    Closed {
        device: libc::dev_t,
        inode: libc::ino_t,
    },
}

/// The result of entering the next directory.
pub(super) enum Entered {
    Yes,
    /// It could not be opened. The path includes its name.
    Refused(Errno),
    /// None is left here.
    None,
}

impl Descent {
    pub(super) fn new(top: Fd) -> Descent {
        Descent { here: top, above: Vec::new(), waiting: Vec::new(), first: 0, path: Vec::new(), names: Names::new() }
    }

    pub(super) fn here(&self) -> c_int {
        self.here.raw()
    }

    /// How far the current directory is below the top.
    pub(super) fn depth(&self) -> usize {
        self.above.len()
    }

    /// Calls `each` with every name in the current directory; it returns whether that is a directory to enter later.
    pub(super) fn read(
        &mut self,
        mut each: impl FnMut(c_int, &[u8], &CStr, u8) -> Result<Enter, Trouble>,
    ) -> Result<(), Trouble> {
        self.names.clear();
        while let Some((name, kind)) = self.names.next(&self.here).map_err(Trouble::at(FileStage::Content))? {
            match each(self.here.raw(), &self.path, name, kind)? {
                Enter::Later => self.waiting.extend_from_slice(name.to_bytes_with_nul()),
                Enter::Never => {}
            }
            if self.memory() > MEMORY_MAX {
                return Err(Trouble::Failed(FileStage::Bound, Errno(libc::EOVERFLOW)));
            }
        }
        Ok(())
    }

    fn memory(&self) -> usize {
        self.waiting.len() + self.path.len() + self.above.len() * size_of::<Level>()
    }

    /// Schedules a directory to be entered once more.
    pub(super) fn enter_again(&mut self, name: &CStr) {
        self.waiting.extend_from_slice(name.to_bytes_with_nul());
    }

    /// Enters the next subdirectory. A link that has taken its place is not followed.
    pub(super) fn enter(&mut self) -> Result<Entered, Trouble> {
        if self.waiting.len() == self.first {
            return Ok(Entered::None);
        }
        let own = &self.waiting[self.first..self.waiting.len() - 1];
        let start = self.first + own.iter().rposition(|byte| *byte == 0).map_or(0, |nul| nul + 1);
        let name = CStr::from_bytes_until_nul(&self.waiting[start..]).unwrap_or_default();
        let path_len = self.path.len();
        if path_len > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened = at::open(self.here.raw(), name, flags, 0);
        self.waiting.truncate(start);
        match opened {
            Ok(directory) => {
                let left = core::mem::replace(&mut self.here, directory);
                let way_back = if self.above.len() < OPEN_MAX {
                    WayBack::Open(left)
                } else {
                    let status = at::stat_open(&left).map_err(Trouble::at(FileStage::Find))?;
                    WayBack::Closed { device: status.st_dev, inode: status.st_ino }
                };
                self.above.push(Level { way_back, first: self.first, path_len });
                self.first = self.waiting.len();
                Ok(Entered::Yes)
            }
            // Its name stays in the path until it is reported.
            Err(errno) => Ok(Entered::Refused(errno)),
        }
    }

    /// Removes the refused name from the path.
    pub(super) fn forget_refused(&mut self) {
        let parent = self.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.path.truncate(parent);
    }

    /// Goes back up; returns the name of the directory it left, or `None` at the top.
    pub(super) fn leave(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        let Some(level) = self.above.pop() else { return Ok(None) };
        self.here = match level.way_back {
            WayBack::Open(directory) => directory,
            WayBack::Closed { device, inode } => {
                let above = at::open_place(self.here.raw(), c"..").map_err(Trouble::at(FileStage::Find))?;
                let status = at::stat_open(&above).map_err(Trouble::at(FileStage::Find))?;
                if (status.st_dev, status.st_ino) != (device, inode) {
                    return Err(Trouble::Failed(FileStage::Find, Errno(libc::ESTALE)));
                }
                above
            }
        };
        self.first = level.first;
        let name_at = if level.path_len == 0 { 0 } else { level.path_len + 1 };
        let mut name = self.path[name_at..].to_vec();
        name.push(0);
        self.path.truncate(level.path_len);
        Ok(Some(name))
    }
}

/// Whether a name is a directory to enter.
pub(super) enum Enter {
    Later,
    Never,
}
