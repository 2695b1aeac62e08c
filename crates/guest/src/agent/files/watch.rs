//! Watches a file, a directory or a tree.
//!
//! The kernel watches directories one by one, so each new one gets a watch as soon as its creation is reported. Files
//! that were created in it before that are searched for and reported as `Created`, and also as `Written`, perhaps once
//! more than it happened. Number and memory are bounded: if something is not watched because there is too much,
//! `Overflow` is reported.

use alloc::ffi::CString;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_int};

use saggar_guest::{ENTRY_PATH_MAX, FileEventKind, FileReply, FileRequest, FileStage, Message};

use super::at::{self, Links, ROOT};
use super::descent::{Descent, Enter, Entered};
use super::session::{Session, Trouble, c_path};
use super::write;
use crate::agent::sys::{self, Errno, Fd, Wait};

/// Maximum number of directories that one session watches.
const WATCHES_MAX: usize = 8192;

/// Maximum length of their paths together.
const PATHS_MAX: usize = 8 * 1024 * 1024;

/// Bytes of events read at once.
const EVENTS_LEN: usize = 64 * 1024;

/// Maximum number of reads for one `Settle`. The kernel's queue, of 16,384 events by default, needs fewer.
const SETTLE_READS: usize = 512;

/// Length of an event (`struct inotify_event`) without its name.
const EVENT_LEN: usize = 16;

const INTEREST: u32 = libc::IN_CREATE
    | libc::IN_MODIFY
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ATTRIB
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF;

pub(super) fn watch(session: &mut Session, path: Vec<u8>, recursive: bool) -> Result<(), Trouble> {
    let path = c_path(path)?;
    // SAFETY: takes numbers only.
    let events = Fd::returned(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })
        .map_err(Trouble::at(FileStage::Watch))?;
    let top = at::open(ROOT, &path, libc::O_PATH, 0).map_err(Trouble::at(FileStage::Find))?;
    let status = at::stat_open(&top).map_err(Trouble::at(FileStage::Find))?;
    let identity = (status.st_dev, status.st_ino);
    let mut watches = Watches { events, path, identity, list: Vec::new(), paths_len: 0, recursive };
    watches.add(&top, Vec::new()).map_err(Trouble::at(FileStage::Watch))?;
    let mut found = Vec::new();
    if recursive {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        match at::open(ROOT, at::open_path(&top).as_c_str(), flags, 0) {
            Ok(top) => watches.add_below(top, &[], Found::Known, &mut found)?,
            Err(Errno(libc::ENOTDIR)) => {}
            Err(errno) => return Err(Trouble::Failed(FileStage::Find, errno)),
        }
    }
    // While it is open, the kernel does not report its removal.
    drop(top);
    session.reply(&FileReply::Watching)?;
    for reply in found {
        session.reply(&reply)?;
    }
    watches.serve(session)
}

struct Watches {
    events: Fd,
    /// Path of the top, and its expected identity.
    path: CString,
    identity: (libc::dev_t, libc::ino_t),
    // INVARIANT: in ascending order of the kernel's numbers, at most WATCHES_MAX.
    list: Vec<(c_int, Vec<u8>)>,
    paths_len: usize,
    recursive: bool,
}

/// Whether existing entries of a directory are reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Known,
    New,
}

impl Watches {
    /// Watches an open file or directory under this path.
    fn add(&mut self, file: &Fd, path: Vec<u8>) -> Result<(), Errno> {
        if self.list.len() == WATCHES_MAX || self.paths_len + path.len() > PATHS_MAX {
            return Err(Errno(libc::ENOSPC));
        }
        let watch = add_watch(&self.events, file)?;
        self.paths_len += path.len();
        match self.list.binary_search_by_key(&watch, |(watch, _)| *watch) {
            // It is known by an earlier name.
            Ok(position) => {
                let old = core::mem::replace(&mut self.list[position].1, path);
                self.paths_len -= old.len();
            }
            Err(position) => self.list.insert(position, (watch, path)),
        }
        Ok(())
    }

    /// Watches every directory below one, up to the bounds.
    fn add_below(&mut self, top: Fd, above: &[u8], found: Found, out: &mut Vec<FileReply>) -> Result<(), Trouble> {
        let mut descent = Descent::new(top);
        loop {
            if descent.depth() > 0 {
                let path = below(above, &descent.path);
                let place = at::open_place(descent.here(), c".");
                let added = place.and_then(|place| match &path {
                    Some(path) => self.add(&place, path.clone()),
                    None => Err(Errno(libc::ENAMETOOLONG)),
                });
                if added.is_err() {
                    out.push(overflow(above));
                    return Ok(());
                }
            }
            let read = descent.read(|_, here, name, kind| {
                let is_directory = kind == libc::DT_DIR;
                if found == Found::New
                    && out.len() < WATCHES_MAX
                    && let Some(path) = below(above, here).and_then(|here| below(&here, name.to_bytes()))
                {
                    out.push(FileReply::Event { kind: FileEventKind::Created, path: path.clone(), is_directory });
                    // Its content may have come before the watch, so no event reports it.
                    if !is_directory {
                        out.push(FileReply::Event { kind: FileEventKind::Written, path, is_directory });
                    }
                }
                Ok(if is_directory { Enter::Later } else { Enter::Never })
            });
            match read {
                Ok(()) => {}
                Err(Trouble::Over) => return Err(Trouble::Over),
                Err(Trouble::Failed(..)) => out.push(overflow(above)),
            }
            loop {
                match descent.enter() {
                    Ok(Entered::Yes) => break,
                    // It is not readable, or gone.
                    Ok(Entered::Refused(_)) => descent.forget_refused(),
                    Ok(Entered::None) => match descent.leave() {
                        Ok(Some(_)) => {}
                        Ok(None) => return Ok(()),
                        Err(_) => {
                            out.push(overflow(above));
                            return Ok(());
                        }
                    },
                    Err(_) => {
                        out.push(overflow(above));
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reports events until the host ends it.
    fn serve(&mut self, session: &mut Session) -> Result<(), Trouble> {
        let mut buffer = vec![0u8; EVENTS_LEN];
        loop {
            session.flush()?;
            let mut entries = [
                libc::pollfd { fd: session.stream.raw(), events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: self.events.raw(), events: libc::POLLIN, revents: 0 },
            ];
            sys::poll(&mut entries, Wait::Forever).map_err(|_| Trouble::Over)?;
            let is_asked = entries[0].revents != 0;
            if is_asked {
                let frame = session.next_frame()?;
                // No other request is allowed here.
                if FileRequest::decode(frame.kind, session.payload(&frame)) != Ok(FileRequest::Settle) {
                    return Err(Trouble::Over);
                }
            }
            // The kernel has queued every change made before the request came; later ones are reported as well, up to a
            // bound.
            let reads = if is_asked { SETTLE_READS } else { 1 };
            for _ in 0..reads {
                if !self.read_events(session, &mut buffer)? {
                    break;
                }
            }
            if is_asked {
                session.reply(&FileReply::Done)?;
            }
        }
    }

    /// Reads the queue once and reports the events; false if it was empty.
    fn read_events(&mut self, session: &mut Session, buffer: &mut [u8]) -> Result<bool, Trouble> {
        let count = match self.events.read(buffer) {
            Ok(count) => count,
            Err(Errno(libc::EAGAIN)) => return Ok(false),
            Err(_) => return Err(Trouble::Over),
        };
        let mut rest = &buffer[..count];
        while let Some((event, after)) = Event::take(rest) {
            rest = after;
            self.tell(session, &event)?;
        }
        Ok(true)
    }

    fn tell(&mut self, session: &mut Session, event: &Event<'_>) -> Result<(), Trouble> {
        if event.mask & libc::IN_Q_OVERFLOW != 0 {
            return session.reply(&overflow(&[]));
        }
        let Ok(position) = self.list.binary_search_by_key(&event.watch, |(watch, _)| *watch) else { return Ok(()) };
        if event.mask & libc::IN_IGNORED != 0 {
            let (_, path) = self.list.remove(position);
            self.paths_len -= path.len();
            return Ok(());
        }
        let directory = &self.list[position].1;
        let is_self = event.name.is_empty();
        // For a directory below the top, its parent's watch reports this.
        if is_self && !directory.is_empty() {
            return Ok(());
        }
        let Some(path) = below(directory, event.name) else { return session.reply(&overflow(directory)) };
        let is_directory = event.mask & libc::IN_ISDIR != 0;
        let Some(kind) = kind_of(event.mask) else { return Ok(()) };
        // The temporary name of a file that is about to replace another is not reported.
        if self.is_nameless(kind, event.name, &path) || write::is_own_name(event.name) {
            return Ok(());
        }
        session.reply(&FileReply::Event { kind, path: path.clone(), is_directory })?;
        if is_directory && !is_self && self.recursive {
            match kind {
                FileEventKind::Created => self.take_in(session, &path)?,
                FileEventKind::Moved => self.let_go(&path),
                FileEventKind::Written
                | FileEventKind::Removed
                | FileEventKind::Attributes
                | FileEventKind::Overflow => {}
            }
        }
        Ok(())
    }

    /// Whether a written file has no name yet. Such a file is reported by its number, such as `#53`, and will be
    /// reported again by its name.
    fn is_nameless(&self, kind: FileEventKind, name: &[u8], path: &[u8]) -> bool {
        let may_be = matches!(kind, FileEventKind::Written | FileEventKind::Attributes)
            && name.strip_prefix(b"#").is_some_and(|number| number.iter().all(u8::is_ascii_digit));
        if !may_be {
            return false;
        }
        let whole = [self.path.as_bytes(), b"/", path].concat();
        c_path(whole).is_ok_and(|whole| matches!(at::stat(ROOT, &whole, Links::Stay), Err(Errno(libc::ENOENT))))
    }

    /// Watches a new directory and its contents.
    fn take_in(&mut self, session: &mut Session, path: &[u8]) -> Result<(), Trouble> {
        // It is gone again, or a link by now.
        let Some(directory) = self.open_below(path) else { return Ok(()) };
        if self.add(&directory, path.to_vec()).is_err() {
            return session.reply(&overflow(path));
        }
        let mut found = Vec::new();
        if let Ok(directory) = at::open(directory.raw(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0) {
            self.add_below(directory, path, Found::New, &mut found)?;
        }
        found.iter().try_for_each(|reply| session.reply(reply))
    }

    /// Opens a directory name by name, as a path may be longer than the kernel accepts at once.
    fn open_below(&self, path: &[u8]) -> Option<Fd> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let mut here = at::open_place(ROOT, &self.path).ok()?;
        let status = at::stat_open(&here).ok()?;
        if (status.st_dev, status.st_ino) != self.identity {
            return None;
        }
        for name in path.split(|byte| *byte == b'/') {
            let name = c_path(name.to_vec()).ok()?;
            here = at::open(here.raw(), &name, flags, 0).ok()?;
        }
        Some(here)
    }

    /// Stops watching a directory that was moved away, and its contents: their paths are no longer valid.
    fn let_go(&mut self, path: &[u8]) {
        let events = self.events.raw();
        let mut freed = 0;
        self.list.retain(|(watch, watched)| {
            let is_below = watched.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
            if is_below {
                freed += watched.len();
                // SAFETY: takes numbers only. A watch that is already gone is fine.
                unsafe { libc::inotify_rm_watch(events, *watch) };
            }
            !is_below
        });
        self.paths_len -= freed;
    }
}

fn add_watch(events: &Fd, file: &Fd) -> Result<c_int, Errno> {
    let name = at::open_path(file);
    // SAFETY: the name is a C string.
    let watch = unsafe { libc::inotify_add_watch(events.raw(), name.as_c_str().as_ptr(), INTEREST) };
    sys::check(watch).map(|()| watch)
}

struct Event<'a> {
    watch: c_int,
    mask: u32,
    name: &'a [u8],
}

impl<'a> Event<'a> {
    /// The first of several events, and the rest.
    fn take(bytes: &'a [u8]) -> Option<(Event<'a>, &'a [u8])> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok();
        let (watch, mask) = (c_int::from_ne_bytes(word(0)?), u32::from_ne_bytes(word(4)?));
        let length = u32::from_ne_bytes(word(12)?) as usize;
        let name = bytes.get(EVENT_LEN..EVENT_LEN + length)?;
        let name = CStr::from_bytes_until_nul(name).map_or(&name[..0], CStr::to_bytes);
        Some((Event { watch, mask, name }, &bytes[EVENT_LEN + length..]))
    }
}

fn kind_of(mask: u32) -> Option<FileEventKind> {
    let has = |bits: u32| mask & bits != 0;
    if has(libc::IN_CREATE | libc::IN_MOVED_TO) {
        Some(FileEventKind::Created)
    } else if has(libc::IN_MODIFY) {
        Some(FileEventKind::Written)
    } else if has(libc::IN_DELETE | libc::IN_DELETE_SELF) {
        Some(FileEventKind::Removed)
    } else if has(libc::IN_MOVED_FROM | libc::IN_MOVE_SELF) {
        Some(FileEventKind::Moved)
    } else if has(libc::IN_ATTRIB) {
        Some(FileEventKind::Attributes)
    } else {
        None
    }
}

fn overflow(path: &[u8]) -> FileReply {
    FileReply::Event { kind: FileEventKind::Overflow, path: path.to_vec(), is_directory: true }
}

/// One path below another; `None` if it is too long to be reported.
fn below(above: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    let path = match (above, rest) {
        ([], rest) => rest.to_vec(),
        (above, []) => above.to_vec(),
        (above, rest) => [above, b"/", rest].concat(),
    };
    (path.len() <= ENTRY_PATH_MAX).then_some(path)
}
