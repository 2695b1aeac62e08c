//! Requests of the host to a files worker.
//!
//! Requests are answered in order, each by exactly one of the replies that [`FileRequest`] names for it, and the next
//! may be sent before the last is answered. Paths are absolute and inside the sandbox; the kernel resolves them as the
//! session's user.

use alloc::vec::Vec;

use super::decoder::Message;
use super::exec::{at_most, has_nul, is_path};
use super::wire::{self, Reader};
use super::{FRAME_MAX, FrameError};

/// Maximum number of content bytes in one frame.
pub const DATA_MAX: usize = FRAME_MAX;
/// Maximum length of a link's target, without a NUL.
pub const LINK_MAX: usize = super::exec::PATH_MAX - 1;
/// Maximum number of metadata entries of a file.
pub const METADATA_MAX: usize = 32;
/// Maximum length of a metadata entry's name.
pub const METADATA_NAME_MAX: usize = 200;
/// Maximum length of a metadata entry's value.
pub const METADATA_VALUE_MAX: usize = 2048;

/// The permission bits a request may set. Set-id bits would outlive a sandbox in its workspace, so they are excluded.
const MODE_MASK: u32 = 0o1777;

const STAT: u8 = 0x21;
const LIST: u8 = 0x22;
const MAKE_DIR: u8 = 0x23;
const MOVE: u8 = 0x24;
const REMOVE: u8 = 0x25;
const READ: u8 = 0x26;
const WRITE: u8 = 0x27;
const DATA: u8 = 0x28;
const END: u8 = 0x29;
const ABORT: u8 = 0x2a;
const LINK: u8 = 0x2b;
const SET_MODE: u8 = 0x2c;
const METADATA: u8 = 0x2d;
const WATCH: u8 = 0x2e;
const STORAGE: u8 = 0x2f;
const WALK: u8 = 0x30;
const SETTLE: u8 = 0x31;
const SET_OWNER: u8 = 0x32;

/// A frame from host to files worker. Every request may also end with `Failed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRequest {
    /// Describe one file. `Entry`, whose path is empty.
    Stat {
        path: Vec<u8>,
        /// Whether to describe a link's target.
        follow: bool,
    },
    /// List a directory and its subdirectories. Any number of `Entry` and `Skipped`, then `End`. Their paths are
    /// relative to `path`.
    List {
        /// The directory; a link to one is followed.
        path: Vec<u8>,
        /// 1 means only the directory's own entries.
        depth: u32,
        /// After this many entries it fails with the stage `Bound`.
        most: u32,
    },
    /// Create a directory. `Done`. With `parents` it is no error if it already exists.
    MakeDir {
        path: Vec<u8>,
        /// Whether missing parents are created, too.
        parents: bool,
        mode: u32,
    },
    /// Rename a file, replacing any existing one of that name. `Done`.
    Move { from: Vec<u8>, to: Vec<u8> },
    /// Remove a file or a directory. `Done`.
    Remove {
        /// A link itself is removed, never its target.
        path: Vec<u8>,
        /// Whether a directory is removed with all its contents.
        recursive: bool,
    },
    /// Read a file's content. `Entry` (whose path is empty) of the opened file, `Data` any number of times, `End`.
    Read {
        path: Vec<u8>,
        offset: u64,
        /// Number of bytes; `None` means up to the end.
        length: Option<u64>,
    },
    /// Write new content to a file. It follows in any number of `Data`, then `End` or `Abort`. Answered with `Done`
    /// after `End` or `Abort`, or with `Failed` at any time. After `Failed` the rest must still be sent, at least
    /// `Abort`, and is not answered again.
    Write {
        path: Vec<u8>,
        /// Permissions of a new file.
        mode: u32,
        /// Whether missing parent directories are created.
        parents: bool,
        /// Number of bytes that will follow. More or fewer are an error.
        expected: Option<u64>,
    },
    /// Content; never empty.
    Data(Vec<u8>),
    /// The content is complete.
    End,
    /// Discard the content: nothing is changed.
    Abort,
    /// Create a symbolic link. `Done`.
    Link { path: Vec<u8>, target: Vec<u8> },
    /// Change a file's permissions. `Done`.
    SetMode { path: Vec<u8>, mode: u32 },
    /// Read or write a file's notes. With `set` these replace all existing ones: `Done`. Without: `Metadata`.
    Metadata { path: Vec<u8>, set: Option<Vec<MetadataEntry>> },
    /// Report changes. `Watching`, then `Event` until the host closes its side of the stream. This is the last request
    /// of a session, except for `Settle`.
    Watch {
        /// The file or directory.
        path: Vec<u8>,
        /// Whether subdirectories are watched, too.
        recursive: bool,
    },
    /// Report how full the filesystem is. `Storage`.
    Storage {
        /// Any file or directory on it.
        path: Vec<u8>,
    },
    /// Read a whole tree. An `Entry` for the top (whose path is empty) and for everything below it, a directory before
    /// its contents. The entry of a regular file is followed by its content in `Data`, at most as much as the entry
    /// says. `Skipped` for what can't be read. Then `End`.
    Walk {
        /// The top; a link is followed there and nowhere below.
        path: Vec<u8>,
        /// After this many entries it fails with the stage `Bound`.
        most: u32,
    },
    /// Change a file's owner, group, or both; a link's target is meant. `Done`. Since protocol 4.
    SetOwner { path: Vec<u8>, uid: Option<u32>, gid: Option<u32> },
    /// Only in a watch: `Done`, once every change that was made before this request has been reported. Since protocol
    /// 3.
    Settle,
}

/// One of a file's notes, kept as the extended attribute `user.e2b.NAME`: the name that programs written for E2B use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataEntry {
    /// Not empty; contains no NUL.
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

impl MetadataEntry {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put_bytes(out, &self.name);
        wire::put_bytes(out, &self.value);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let entry = MetadataEntry { name: reader.bytes()?, value: reader.bytes()? };
        entry.check()?;
        Ok(entry)
    }

    pub(super) fn check(&self) -> Result<(), FrameError> {
        let is_name = !self.name.is_empty() && self.name.len() <= METADATA_NAME_MAX && !has_nul(&self.name);
        if !is_name || self.value.len() > METADATA_VALUE_MAX {
            return Err(FrameError::Invalid("metadata"));
        }
        Ok(())
    }
}

impl FileRequest {
    pub fn check(&self) -> Result<(), FrameError> {
        match self {
            FileRequest::Stat { path, .. }
            | FileRequest::List { path, .. }
            | FileRequest::Remove { path, .. }
            | FileRequest::Read { path, .. }
            | FileRequest::Watch { path, .. }
            | FileRequest::Storage { path }
            | FileRequest::SetOwner { path, .. }
            | FileRequest::Walk { path, .. } => check_path(path),
            FileRequest::MakeDir { path, mode, .. }
            | FileRequest::Write { path, mode, .. }
            | FileRequest::SetMode { path, mode } => {
                check_path(path)?;
                if mode & !MODE_MASK == 0 { Ok(()) } else { Err(FrameError::Invalid("mode")) }
            }
            FileRequest::Move { from, to } => {
                check_path(from)?;
                check_path(to)
            }
            FileRequest::Data(bytes) if bytes.is_empty() => Err(FrameError::Invalid("data")),
            FileRequest::Data(_) | FileRequest::End | FileRequest::Abort | FileRequest::Settle => Ok(()),
            FileRequest::Link { path, target } => {
                check_path(path)?;
                let is_target = !target.is_empty() && target.len() <= LINK_MAX && !has_nul(target);
                if is_target { Ok(()) } else { Err(FrameError::Invalid("target")) }
            }
            FileRequest::Metadata { path, set } => {
                check_path(path)?;
                let set = set.as_deref().unwrap_or_default();
                at_most("metadata", set.len(), METADATA_MAX)?;
                set.iter().try_for_each(MetadataEntry::check)
            }
        }
    }

    /// Whether a payload of this kind is raw content.
    pub fn is_data(kind: u8) -> bool {
        kind == DATA
    }

    /// The header of a `Data` of this length, for a writer that has the bytes elsewhere.
    pub fn data_header(length: usize) -> [u8; super::HEADER_LEN] {
        // An invalid length is truncated here, and the reader refuses the frame.
        let [a, b, c, d] = (length as u32).to_le_bytes();
        [a, b, c, d, DATA]
    }

    /// Appends this frame to `out`, which is unchanged after an error.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        self.check()?;
        wire::append(out, self.kind(), FRAME_MAX, |out| self.put(out))
    }

    fn kind(&self) -> u8 {
        match self {
            FileRequest::Stat { .. } => STAT,
            FileRequest::List { .. } => LIST,
            FileRequest::MakeDir { .. } => MAKE_DIR,
            FileRequest::Move { .. } => MOVE,
            FileRequest::Remove { .. } => REMOVE,
            FileRequest::Read { .. } => READ,
            FileRequest::Write { .. } => WRITE,
            FileRequest::Data(_) => DATA,
            FileRequest::End => END,
            FileRequest::Abort => ABORT,
            FileRequest::Link { .. } => LINK,
            FileRequest::SetMode { .. } => SET_MODE,
            FileRequest::Metadata { .. } => METADATA,
            FileRequest::Watch { .. } => WATCH,
            FileRequest::Storage { .. } => STORAGE,
            FileRequest::Walk { .. } => WALK,
            FileRequest::Settle => SETTLE,
            FileRequest::SetOwner { .. } => SET_OWNER,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            FileRequest::Stat { path, follow } => {
                wire::put_bytes(out, path);
                wire::put_bool(out, *follow);
            }
            FileRequest::List { path, depth, most } => {
                wire::put_bytes(out, path);
                wire::put_u32(out, *depth);
                wire::put_u32(out, *most);
            }
            FileRequest::MakeDir { path, parents, mode } => {
                wire::put_bytes(out, path);
                wire::put_bool(out, *parents);
                wire::put_u32(out, *mode);
            }
            FileRequest::Move { from, to } => {
                wire::put_bytes(out, from);
                wire::put_bytes(out, to);
            }
            FileRequest::Remove { path, recursive } | FileRequest::Watch { path, recursive } => {
                wire::put_bytes(out, path);
                wire::put_bool(out, *recursive);
            }
            FileRequest::Read { path, offset, length } => {
                wire::put_bytes(out, path);
                wire::put_u64(out, *offset);
                wire::put_option(out, *length, wire::put_u64);
            }
            FileRequest::Write { path, mode, parents, expected } => {
                wire::put_bytes(out, path);
                wire::put_u32(out, *mode);
                wire::put_bool(out, *parents);
                wire::put_option(out, *expected, wire::put_u64);
            }
            FileRequest::Data(bytes) => out.extend_from_slice(bytes),
            FileRequest::End | FileRequest::Abort | FileRequest::Settle => {}
            FileRequest::Link { path, target } => {
                wire::put_bytes(out, path);
                wire::put_bytes(out, target);
            }
            FileRequest::SetMode { path, mode } => {
                wire::put_bytes(out, path);
                wire::put_u32(out, *mode);
            }
            FileRequest::Metadata { path, set } => {
                wire::put_bytes(out, path);
                wire::put_option(out, set.as_deref(), |out, set| wire::put_list(out, set, |out, entry| entry.put(out)));
            }
            FileRequest::Storage { path } => wire::put_bytes(out, path),
            FileRequest::SetOwner { path, uid, gid } => {
                wire::put_bytes(out, path);
                wire::put_option(out, *uid, wire::put_u32);
                wire::put_option(out, *gid, wire::put_u32);
            }
            FileRequest::Walk { path, most } => {
                wire::put_bytes(out, path);
                wire::put_u32(out, *most);
            }
        }
    }
}

impl Message for FileRequest {
    fn payload_max(kind: u8) -> Option<usize> {
        (STAT..=SET_OWNER).contains(&kind).then_some(FRAME_MAX)
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload);
        let request = match kind {
            STAT => FileRequest::Stat { path: reader.bytes()?, follow: reader.bool("follow")? },
            LIST => FileRequest::List { path: reader.bytes()?, depth: reader.u32()?, most: reader.u32()? },
            MAKE_DIR => {
                FileRequest::MakeDir { path: reader.bytes()?, parents: reader.bool("parents")?, mode: reader.u32()? }
            }
            MOVE => FileRequest::Move { from: reader.bytes()?, to: reader.bytes()? },
            REMOVE => FileRequest::Remove { path: reader.bytes()?, recursive: reader.bool("recursive")? },
            READ => FileRequest::Read {
                path: reader.bytes()?,
                offset: reader.u64()?,
                length: reader.option("length", Reader::u64)?,
            },
            WRITE => FileRequest::Write {
                path: reader.bytes()?,
                mode: reader.u32()?,
                parents: reader.bool("parents")?,
                expected: reader.option("expected", Reader::u64)?,
            },
            DATA => FileRequest::Data(reader.rest()),
            END => FileRequest::End,
            ABORT => FileRequest::Abort,
            LINK => FileRequest::Link { path: reader.bytes()?, target: reader.bytes()? },
            SET_MODE => FileRequest::SetMode { path: reader.bytes()?, mode: reader.u32()? },
            METADATA => FileRequest::Metadata {
                path: reader.bytes()?,
                set: reader.option("set", |reader| reader.list("metadata", METADATA_MAX, MetadataEntry::read))?,
            },
            WATCH => FileRequest::Watch { path: reader.bytes()?, recursive: reader.bool("recursive")? },
            STORAGE => FileRequest::Storage { path: reader.bytes()? },
            WALK => FileRequest::Walk { path: reader.bytes()?, most: reader.u32()? },
            SETTLE => FileRequest::Settle,
            SET_OWNER => FileRequest::SetOwner {
                path: reader.bytes()?,
                uid: reader.option("uid", Reader::u32)?,
                gid: reader.option("gid", Reader::u32)?,
            },
            unknown => return Err(FrameError::UnknownKind(unknown)),
        };
        reader.finish()?;
        request.check()?;
        Ok(request)
    }
}

fn check_path(path: &[u8]) -> Result<(), FrameError> {
    if is_path(path) { Ok(()) } else { Err(FrameError::Invalid("path")) }
}
