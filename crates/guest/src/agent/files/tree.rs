//! The contents of a directory and its subdirectories: as a list, or with all content.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};

use saggar_guest::{ENTRY_PATH_MAX, FileKind, FileReply, FileStage};

use super::at::{self, Links, ROOT};
use super::data::{self, Buffer};
use super::descent::{Descent, Enter, Entered};
use super::entry::{self, bare, entry};
use super::session::{Session, Trouble, c_path};
use crate::agent::sys::Errno;

pub(super) fn list(session: &mut Session, path: Vec<u8>, depth: u32, most: u32) -> Result<(), Trouble> {
    let path = c_path(path)?;
    let top = at::open(ROOT, &path, libc::O_RDONLY | libc::O_DIRECTORY, 0).map_err(Trouble::at(FileStage::Find))?;
    if depth > 0 {
        let mut teller = Teller { session, left: most, content: None };
        teller.go_through(Descent::new(top), depth as usize)?;
    }
    session.reply(&FileReply::End)
}

pub(super) fn walk(session: &mut Session, path: Vec<u8>, most: u32) -> Result<(), Trouble> {
    let path = c_path(path)?;
    let status = at::stat(ROOT, &path, Links::Follow).map_err(Trouble::at(FileStage::Find))?;
    let mut teller = Teller { session, left: most, content: Some(Buffer::new()) };
    match entry::kind(&status) {
        FileKind::Directory => {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            let top = at::open(ROOT, &path, flags, 0).map_err(Trouble::at(FileStage::Find))?;
            let status = at::stat_open(&top).map_err(Trouble::at(FileStage::Find))?;
            teller.say(&FileReply::Entry(bare(Vec::new(), &status)))?;
            teller.go_through(Descent::new(top), usize::MAX)?;
        }
        FileKind::File => teller.tell_file(ROOT, &path, Links::Follow, Vec::new())?,
        FileKind::Link | FileKind::Other => teller.say(&FileReply::Entry(bare(Vec::new(), &status)))?,
    }
    session.reply(&FileReply::End)
}

/// Reports entries, up to a number.
struct Teller<'a> {
    session: &'a mut Session,
    left: u32,
    /// The buffer for content, if content is wanted.
    content: Option<Buffer>,
}

impl Teller<'_> {
    fn say(&mut self, reply: &FileReply) -> Result<(), Trouble> {
        self.left = self.left.checked_sub(1).ok_or(Trouble::Failed(FileStage::Bound, Errno(libc::EOVERFLOW)))?;
        self.session.reply(reply)
    }

    fn skip(&mut self, path: &[u8], errno: Errno) -> Result<(), Trouble> {
        self.say(&FileReply::Skipped { path: path.to_vec(), errno: errno.0 })
    }

    /// Every directory is reported before its contents.
    fn go_through(&mut self, mut descent: Descent, depth: usize) -> Result<(), Trouble> {
        loop {
            let goes_deeper = descent.depth() + 1 < depth;
            descent.read(|directory, path, name, _| self.tell(directory, path, name, goes_deeper))?;
            loop {
                match descent.enter()? {
                    Entered::Yes => break,
                    Entered::Refused(errno) => {
                        self.skip(&descent.path, errno)?;
                        descent.forget_refused();
                    }
                    Entered::None => {
                        if descent.leave()?.is_none() {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    fn tell(&mut self, directory: c_int, above: &[u8], name: &CStr, goes_deeper: bool) -> Result<Enter, Trouble> {
        let mut path = Vec::with_capacity(above.len() + 1 + name.count_bytes());
        path.extend_from_slice(above);
        if !above.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        if path.len() > ENTRY_PATH_MAX {
            self.skip(above, Errno(libc::ENAMETOOLONG))?;
            return Ok(Enter::Never);
        }
        let status = match at::stat(directory, name, Links::Stay) {
            Ok(status) => status,
            // It was removed since its name was read.
            Err(Errno(libc::ENOENT)) => return Ok(Enter::Never),
            Err(errno) => {
                self.skip(&path, errno)?;
                return Ok(Enter::Never);
            }
        };
        let kind = entry::kind(&status);
        if kind == FileKind::File && self.content.is_some() {
            self.tell_file(directory, name, Links::Stay, path)?;
            return Ok(Enter::Never);
        }
        self.say(&FileReply::Entry(entry(path, &status, directory, name)))?;
        Ok(if kind == FileKind::Directory && goes_deeper { Enter::Later } else { Enter::Never })
    }

    /// A regular file with its content, or why it was skipped.
    fn tell_file(&mut self, directory: c_int, name: &CStr, links: Links, path: Vec<u8>) -> Result<(), Trouble> {
        let (file, status) = match data::open_regular(directory, name, links) {
            Ok(opened) => opened,
            Err(Trouble::Failed(_, errno)) if !path.is_empty() => return self.skip(&path, errno),
            Err(trouble) => return Err(trouble),
        };
        let told = bare(path, &status);
        let size = told.size;
        self.say(&FileReply::Entry(told))?;
        match &mut self.content {
            Some(buffer) if size > 0 => data::send(self.session, &file, 0, size, buffer),
            Some(_) | None => Ok(()),
        }
    }
}
