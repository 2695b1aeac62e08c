//! Finds the directory of an entry, and makes what is missing of it.
//!
//! A link of a lower layer on the way is followed inside of the image, as other tools do it. A link of the same layer is
//! refused: no tool that archives a directory writes an entry behind one.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use rustix::fs::{Gid, Mode, Uid, fchmod, fchown, fsetxattr, openat2};
use rustix::io::Errno;
use saggar_domain::Problem;

use super::{DIRECTORY, HOSTILE, Parent, RESOLVE, Writer, io, make_directory, through_link, wrong_path};
use crate::failure::{refused, shown};
use crate::layer::Ownership;
use crate::layer::below::{Below, Found, IMPLIED_MODE, Likeness};
use crate::layer::entry_path::EntryPath;
use crate::layer::whiteout::is_opaque;
use crate::limits::Budget;

/// How many links may be on the way to one entry, as the kernel has it.
const LINKS_MAX: usize = 40;

/// A directory on the way to an entry: in this layer, and below it.
#[derive(Clone)]
struct Step {
    own: Parent,
    below: Below,
}

impl Writer {
    /// Opens a directory of the layer, and makes it and those above it if they don't exist.
    pub(super) fn parent(&mut self, path: &EntryPath, budget: &mut Budget) -> Result<Parent, Problem> {
        if let Some((latest, parent)) = &self.latest
            && latest == path
        {
            return Ok(parent.clone());
        }
        let parent = match self.open(path) {
            Ok(directory) => Parent { path: path.clone(), directory: Rc::new(directory) },
            Err(Errno::NOENT | Errno::NOTDIR) => self.make_parents(path, budget)?,
            Err(Errno::LOOP) => return Err(through_link(path)),
            Err(errno) => return Err(io(errno)),
        };
        self.latest = Some((path.clone(), parent.clone()));
        Ok(parent)
    }

    fn make_parents(&mut self, path: &EntryPath, budget: &mut Budget) -> Result<Parent, Problem> {
        // The next name is the last one.
        let mut names: Vec<Vec<u8>> = path.names_reversed().map(<[u8]>::to_vec).collect();
        let top = Step {
            own: Parent { path: EntryPath::top(), directory: Rc::clone(&self.root) },
            below: self.below.clone(),
        };
        let mut above: Vec<Step> = Vec::new();
        let mut at = top.clone();
        let mut links = 0;
        while let Some(name) = names.pop() {
            // Only links have such names. Above the top is the top, as for the kernel.
            if name == b".." {
                at = above.pop().unwrap_or(at);
                continue;
            }
            match self.step(&at, &name, path, budget)? {
                Next::Directory(step) => above.push(std::mem::replace(&mut at, step)),
                Next::Link(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(refused(
                            format!("the directory {} is behind more than {LINKS_MAX} links", shown(path.as_bytes())),
                            HOSTILE,
                        ));
                    }
                    if target.starts_with(b"/") {
                        above.clear();
                        at = top.clone();
                    }
                    let parts = target.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
                    names.extend(parts.map(<[u8]>::to_vec));
                }
            }
        }
        Ok(at.own)
    }

    /// From a directory to the one of that name in it.
    fn step(&mut self, at: &Step, name: &[u8], path: &EntryPath, budget: &mut Budget) -> Result<Next, Problem> {
        let own_path = at.own.path.join(name).map_err(wrong_path)?;
        let (directory, below) = match openat2(&at.own.directory, name, DIRECTORY, Mode::empty(), RESOLVE) {
            Ok(directory) => {
                let below = if is_opaque(&directory).map_err(io)? { None } else { Some(at.below.directory(name)) };
                (directory, below.transpose().map_err(io)?.unwrap_or_default())
            }
            Err(Errno::LOOP) => return Err(through_link(path)),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => {
                // What this layer has here itself, such as a whiteout, hides those below.
                let found = if errno == Errno::NOENT { at.below.find(name).map_err(io)? } else { Found::Nothing };
                let below = match found {
                    Found::Link(target, _) => {
                        self.has_taken_entries = true;
                        return Ok(Next::Link(target));
                    }
                    Found::Directory(below) => below,
                    Found::Nothing | Found::Other(..) => Below::default(),
                };
                budget.entry(own_path.as_bytes().len())?;
                let made = make_directory(at.own.directory.as_fd(), name)?;
                let modified = match below.likeness().map_err(io)? {
                    Some(likeness) => {
                        self.resemble(made.as_fd(), &likeness).map_err(io)?;
                        (likeness.stat.st_mtime, likeness.stat.st_mtime_nsec as u32)
                    }
                    None => {
                        self.own(made.as_fd(), 0, 0)
                            .and_then(|()| fchmod(&made, Mode::from_raw_mode(IMPLIED_MODE)))
                            .map_err(io)?;
                        (0, 0)
                    }
                };
                self.has_taken_entries = true;
                self.directory_times.insert(own_path.clone(), modified);
                (made, below)
            }
            Err(errno) => return Err(io(errno)),
        };
        Ok(Next::Directory(Step { own: Parent { path: own_path, directory: Rc::new(directory) }, below }))
    }

    /// What the layers below have of a directory of this layer.
    pub(super) fn below_at(&self, parent: &Parent) -> Result<Below, Errno> {
        let mut below = self.below.clone();
        let mut own = Rc::clone(&self.root);
        let names: Vec<&[u8]> = parent.path.names_reversed().collect();
        for name in names.into_iter().rev() {
            own = Rc::new(openat2(&own, name, DIRECTORY, Mode::empty(), RESOLVE)?);
            below = if is_opaque(&own)? { Below::default() } else { below.directory(name)? };
        }
        Ok(below)
    }

    /// Gives a directory the owner, permissions and attributes of one below.
    pub(super) fn resemble(&self, directory: BorrowedFd<'_>, likeness: &Likeness) -> Result<(), Errno> {
        let Likeness { stat, attributes } = likeness;
        if self.ownership == Ownership::Shifted {
            fchown(directory, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
        }
        for (name, value) in attributes {
            fsetxattr(directory, name.as_slice(), value, rustix::fs::XattrFlags::empty())?;
        }
        fchmod(directory, Mode::from_raw_mode(stat.st_mode & 0o7777))
    }
}

enum Next {
    Directory(Step),
    /// Of a lower layer, with its target.
    Link(Vec<u8>),
}
