//! Replies of a files worker.
//!
//! The host must not rely on the order that [`super::FileRequest`] promises, nor on the sizes: the sandbox may have
//! taken over its worker.

use alloc::vec::Vec;

use super::decoder::Message;
use super::exec::{at_most, has_nul};
use super::file_request::{LINK_MAX, METADATA_MAX, MetadataEntry};
use super::wire::{self, Reader};
use super::{FRAME_MAX, FrameError};

/// Maximum path of an entry: deep trees have paths longer than any system call accepts. Anything deeper is `Skipped`.
pub const ENTRY_PATH_MAX: usize = 64 * 1024;

const DONE: u8 = 0xa1;
const FAILED: u8 = 0xa2;
const ENTRY: u8 = 0xa3;
const END: u8 = 0xa4;
const DATA: u8 = 0xa5;
const EVENT: u8 = 0xa6;
const WATCHING: u8 = 0xa7;
const STORAGE: u8 = 0xa8;
const METADATA: u8 = 0xa9;
const SKIPPED: u8 = 0xaa;

/// A frame from files worker to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileReply {
    /// The request was carried out.
    Done,
    /// It failed, entirely or in part.
    Failed {
        /// The kernel's error number.
        errno: i32,
        /// The step that failed.
        stage: FileStage,
    },
    /// Describes one file.
    Entry(FileEntry),
    /// The end of a list.
    End,
    /// Content of a file; never empty.
    Data(Vec<u8>),
    /// Something has changed.
    Event {
        kind: FileEventKind,
        /// Relative to the watched path; empty for that path itself.
        path: Vec<u8>,
        /// Whether it is, or was, a directory.
        is_directory: bool,
    },
    /// From here on changes are reported.
    Watching,
    /// How full a filesystem is.
    Storage {
        /// Total bytes.
        total: u64,
        /// Bytes that an ordinary user can still write.
        free: u64,
        /// Total number of files; zero if the filesystem doesn't count them.
        inodes: u64,
        /// Number of files that can still be created.
        inodes_free: u64,
    },
    /// A file's notes.
    Metadata(Vec<MetadataEntry>),
    /// A file below the top that could not be read, in a `List` or a `Walk`, which continues.
    Skipped {
        /// Relative to the top. If it is too deep to be named, the directory that contains it.
        path: Vec<u8>,
        /// The kernel's error number.
        errno: i32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the requested path; empty for that path itself.
    pub path: Vec<u8>,
    pub kind: FileKind,
    /// Size in bytes; zero unless it is a regular file or a link.
    pub size: u64,
    /// Permission bits, including set-id and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Modification time, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// The target of a link.
    pub link_target: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    File = 1,
    Directory = 2,
    /// A symbolic link.
    Link = 3,
    /// A device, a pipe, a socket.
    Other = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileEventKind {
    /// A file of this name was created or moved here.
    Created = 1,
    /// Its content has changed.
    Written = 2,
    Removed = 3,
    /// It was moved away from this name. The new name, if it is watched, is `Created`.
    Moved = 4,
    /// Its permissions, owner, times or notes have changed.
    Attributes = 5,
    /// Events were lost, or a directory is not watched because there are too many: list the files again.
    Overflow = 6,
}

/// The step of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileStage {
    /// Starting the worker. The session is over.
    Worker = 1,
    /// Switching to the session's user. The session is over.
    Identity = 2,
    /// Understanding the request, or its position among the others. The session is over.
    Request = 3,
    /// Finding or opening the file.
    Find = 4,
    /// It is not a regular file, and so is not opened. (`EISDIR` for a directory, `EINVAL` for the rest.)
    NotRegular = 5,
    /// Creating the directories above it.
    Parents = 6,
    /// Creating the file, directory or link.
    Create = 7,
    /// Reading or writing content. `EMSGSIZE`: not as much as was announced.
    Content = 8,
    /// Giving it its final name.
    Publish = 9,
    Remove = 10,
    /// Reading or setting permissions or notes.
    Attributes = 11,
    /// There is more than requested, or more than a session handles.
    Bound = 12,
    Watch = 13,
}

impl FileStage {
    const ALL: [FileStage; 13] = [
        FileStage::Worker,
        FileStage::Identity,
        FileStage::Request,
        FileStage::Find,
        FileStage::NotRegular,
        FileStage::Parents,
        FileStage::Create,
        FileStage::Content,
        FileStage::Publish,
        FileStage::Remove,
        FileStage::Attributes,
        FileStage::Bound,
        FileStage::Watch,
    ];

    pub fn from_code(code: u8) -> Option<FileStage> {
        FileStage::ALL.into_iter().find(|stage| stage.code() == code)
    }

    pub fn code(self) -> u8 {
        self as u8
    }
}

impl FileReply {
    pub fn check(&self) -> Result<(), FrameError> {
        match self {
            FileReply::Done
            | FileReply::Failed { .. }
            | FileReply::End
            | FileReply::Watching
            | FileReply::Storage { .. } => Ok(()),
            FileReply::Data(bytes) if bytes.is_empty() => Err(FrameError::Invalid("data")),
            FileReply::Data(_) => Ok(()),
            FileReply::Entry(entry) => entry.check(),
            FileReply::Event { path, .. } | FileReply::Skipped { path, .. } => check_path(path),
            FileReply::Metadata(entries) => {
                at_most("metadata", entries.len(), METADATA_MAX)?;
                entries.iter().try_for_each(MetadataEntry::check)
            }
        }
    }

    /// Appends this frame to `out`, which is unchanged after an error.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        self.check()?;
        wire::append(out, self.kind(), FRAME_MAX, |out| self.put(out))
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

    fn kind(&self) -> u8 {
        match self {
            FileReply::Done => DONE,
            FileReply::Failed { .. } => FAILED,
            FileReply::Entry(_) => ENTRY,
            FileReply::End => END,
            FileReply::Data(_) => DATA,
            FileReply::Event { .. } => EVENT,
            FileReply::Watching => WATCHING,
            FileReply::Storage { .. } => STORAGE,
            FileReply::Metadata(_) => METADATA,
            FileReply::Skipped { .. } => SKIPPED,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            FileReply::Done | FileReply::End | FileReply::Watching => {}
            FileReply::Failed { errno, stage } => {
                wire::put_u32(out, *errno as u32);
                out.push(stage.code());
            }
            FileReply::Entry(entry) => entry.put(out),
            FileReply::Data(bytes) => out.extend_from_slice(bytes),
            FileReply::Event { kind, path, is_directory } => {
                out.push(*kind as u8);
                wire::put_bytes(out, path);
                wire::put_bool(out, *is_directory);
            }
            FileReply::Storage { total, free, inodes, inodes_free } => {
                for number in [total, free, inodes, inodes_free] {
                    wire::put_u64(out, *number);
                }
            }
            FileReply::Metadata(entries) => wire::put_list(out, entries, |out, entry| entry.put(out)),
            FileReply::Skipped { path, errno } => {
                wire::put_bytes(out, path);
                wire::put_u32(out, *errno as u32);
            }
        }
    }
}

impl FileEntry {
    fn check(&self) -> Result<(), FrameError> {
        check_path(&self.path)?;
        let is_target = self.link_target.as_ref().is_none_or(|target| target.len() <= LINK_MAX && !has_nul(target));
        if is_target { Ok(()) } else { Err(FrameError::Invalid("link_target")) }
    }

    fn put(&self, out: &mut Vec<u8>) {
        wire::put_bytes(out, &self.path);
        out.push(self.kind as u8);
        wire::put_u64(out, self.size);
        wire::put_u32(out, self.mode);
        wire::put_u32(out, self.uid);
        wire::put_u32(out, self.gid);
        wire::put_u64(out, self.modified_ns as u64);
        wire::put_option(out, self.link_target.as_ref(), |out, target| wire::put_bytes(out, target));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(FileEntry {
            path: reader.bytes()?,
            kind: match reader.u8()? {
                1 => FileKind::File,
                2 => FileKind::Directory,
                3 => FileKind::Link,
                4 => FileKind::Other,
                _ => return Err(FrameError::Invalid("kind")),
            },
            size: reader.u64()?,
            mode: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            modified_ns: reader.u64()? as i64,
            link_target: reader.option("link_target", Reader::bytes)?,
        })
    }
}

impl Message for FileReply {
    fn payload_max(kind: u8) -> Option<usize> {
        (DONE..=SKIPPED).contains(&kind).then_some(FRAME_MAX)
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload);
        let reply = match kind {
            DONE => FileReply::Done,
            FAILED => FileReply::Failed {
                errno: reader.u32()? as i32,
                stage: FileStage::from_code(reader.u8()?).ok_or(FrameError::Invalid("stage"))?,
            },
            ENTRY => FileReply::Entry(FileEntry::read(&mut reader)?),
            END => FileReply::End,
            DATA => FileReply::Data(reader.rest()),
            EVENT => FileReply::Event {
                kind: read_event_kind(&mut reader)?,
                path: reader.bytes()?,
                is_directory: reader.bool("is_directory")?,
            },
            WATCHING => FileReply::Watching,
            STORAGE => FileReply::Storage {
                total: reader.u64()?,
                free: reader.u64()?,
                inodes: reader.u64()?,
                inodes_free: reader.u64()?,
            },
            METADATA => FileReply::Metadata(reader.list("metadata", METADATA_MAX, MetadataEntry::read)?),
            SKIPPED => FileReply::Skipped { path: reader.bytes()?, errno: reader.u32()? as i32 },
            unknown => return Err(FrameError::UnknownKind(unknown)),
        };
        reader.finish()?;
        reply.check()?;
        Ok(reply)
    }
}

fn read_event_kind(reader: &mut Reader<'_>) -> Result<FileEventKind, FrameError> {
    Ok(match reader.u8()? {
        1 => FileEventKind::Created,
        2 => FileEventKind::Written,
        3 => FileEventKind::Removed,
        4 => FileEventKind::Moved,
        5 => FileEventKind::Attributes,
        6 => FileEventKind::Overflow,
        _ => return Err(FrameError::Invalid("event")),
    })
}

/// Checks a path below a top: it must never lead out of it.
fn check_path(path: &[u8]) -> Result<(), FrameError> {
    let is_relative = path.is_empty() || has_only_names(path);
    if is_relative && path.len() <= ENTRY_PATH_MAX && !has_nul(path) {
        Ok(())
    } else {
        Err(FrameError::Invalid("path"))
    }
}

/// Whether there is a name before, between and after the slashes. (Written by hand for speed: some trees have a
/// gigabyte of paths, and even an unoptimised build has to handle them.)
fn has_only_names(path: &[u8]) -> bool {
    let (mut start, mut position) = (0, 0);
    while position <= path.len() {
        if position == path.len() || path[position] == b'/' {
            if matches!(&path[start..position], b"" | b"." | b"..") {
                return false;
            }
            start = position + 1;
        }
        position += 1;
    }
    true
}
