//! Where objects are: a directory of the host, or what was kept of a sandbox's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};

use flate2::bufread::ZlibDecoder;
use rustix::fs::{AtFlags, Dir, FileType, fstat, statat};
use rustix::io::Errno;
use saggar_domain::HostUser;

use super::object::{Commit, OBJECT_LEN_MAX, Object, ObjectError, ObjectId, ObjectKind, TreeEntry, entries};
use super::pack::Pack;
use super::work::{LOOK, Work};
use crate::acting::ActingAs;
use crate::changes::{Change, Changes, Entry, Kind, open_directory, open_file};

/// Maximum number of packs of a repository of the host, and of a sandbox. Two files are open for each; git itself makes one of fifty.
const PACKS_MAX: usize = 2000;
const KEPT_PACKS_MAX: usize = 200;
/// Maximum number of bases by name below an object; git puts none into packs that stay.
const NAMED_MAX: usize = 50;
/// Maximum length of the header of a loose object.
const HEADER_LEN_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Objects<'a> {
    files: Files<'a>,
    packs: Vec<Pack>,
    work: Work,
}

#[derive(Debug)]
enum Files<'a> {
    Directory {
        top: OwnedFd,
        /// In whose name files are opened.
        user: Option<HostUser>,
    },
    Kept {
        changes: &'a Changes,
        /// By their path below the objects.
        entries: BTreeMap<&'a [u8], &'a Entry>,
    },
}

impl Files<'_> {
    fn open(&self, path: &[u8]) -> Result<Option<File>, ObjectError> {
        let opened = match self {
            Self::Directory { top, user } => {
                let _acting = user.map(ActingAs::user);
                open_file(top.as_fd(), path)
            }
            Self::Kept { changes, entries } => match entries.get(path) {
                Some(entry) => changes.content(entry),
                None => Err(Errno::NOENT),
            },
        };
        match opened {
            Ok(file) if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile => {
                Ok(Some(file.into()))
            }
            Ok(_) => Err(ObjectError::Pack),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn packs(&self) -> Result<Vec<String>, ObjectError> {
        match self {
            Self::Directory { top, user } => {
                let _acting = user.map(ActingAs::user);
                let directory = match open_directory(top.as_fd(), b"pack") {
                    Ok(directory) => directory,
                    Err(Errno::NOENT) => return Ok(Vec::new()),
                    Err(errno) => return Err(errno.into()),
                };
                let names = Dir::read_from(&directory)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
                let names = names.collect::<Result<Vec<_>, Errno>>()?;
                Ok(names.iter().filter_map(|name| pack_name(name)).collect())
            }
            Self::Kept { entries, .. } => {
                Ok(entries.keys().filter_map(|path| pack_name(path.strip_prefix(b"pack/")?)).collect())
            }
        }
    }
}

/// The name of a pack without its ending.
fn pack_name(index: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(index).ok()?.strip_suffix(".idx")?;
    (!name.contains('/')).then(|| name.to_owned())
}

impl<'a> Objects<'a> {
    pub(crate) fn of_directory(top: OwnedFd, user: Option<HostUser>) -> Result<Self, ObjectError> {
        Self::with(Files::Directory { top, user })
    }

    /// The objects among the changes of a sandbox.
    pub(crate) fn kept(changes: &'a Changes) -> Result<Self, ObjectError> {
        let is_file = |entry: &&Entry| entry.kind == Kind::File && entry.change != Change::Removed;
        let below = |entry: &'a Entry| Some((entry.path.as_bytes().strip_prefix(b".git/objects/")?, entry));
        let entries = changes.entries().iter().filter(is_file).filter_map(below).collect();
        Self::with(Files::Kept { changes, entries })
    }

    fn with(files: Files<'a>) -> Result<Self, ObjectError> {
        let mut packs = Vec::new();
        let names = files.packs()?;
        let most = match files {
            Files::Directory { .. } => PACKS_MAX,
            Files::Kept { .. } => KEPT_PACKS_MAX,
        };
        if names.len() > most {
            return Err(ObjectError::Packs(most));
        }
        for name in names {
            let index = files.open(format!("pack/{name}.idx").as_bytes())?;
            let pack = files.open(format!("pack/{name}.pack").as_bytes())?;
            if let (Some(index), Some(pack)) = (index, pack) {
                // A damaged pack has no objects. If one is needed, it is missing.
                packs.extend(Pack::open(index, pack).ok());
            }
        }
        Ok(Self { files, packs, work: Work::default() })
    }

    /// With an end to the work of reading them that comes sooner.
    pub(crate) fn with_work(self, bytes: u64) -> Self {
        Self { work: Work::of(bytes), ..self }
    }

    pub(crate) fn has(&self, id: ObjectId) -> Result<bool, ObjectError> {
        for pack in &self.packs {
            if pack.find(id)?.is_some() {
                return Ok(true);
            }
        }
        let (directory, name) = id.loose();
        let path = format!("{directory}/{name}");
        match &self.files {
            Files::Directory { top, user } => {
                let _acting = user.map(ActingAs::user);
                let Ok(directory) = open_directory(top.as_fd(), directory.as_bytes()) else { return Ok(false) };
                Ok(statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
            }
            Files::Kept { entries, .. } => Ok(entries.contains_key(path.as_bytes())),
        }
    }

    /// An object, which is what its id says.
    pub(crate) fn read(&self, id: ObjectId) -> Result<Object, ObjectError> {
        let object = self.read_unchecked(id, 0, 0)?;
        if object.content.len() as u64 > object.kind.len_max() {
            return Err(ObjectError::TooLong(id));
        }
        if ObjectId::of(object.kind, &object.content) != id {
            return Err(ObjectError::Damaged(id));
        }
        Ok(object)
    }

    pub(crate) fn commit(&self, id: ObjectId) -> Result<Commit, ObjectError> {
        let content = self.of_kind(id, ObjectKind::Commit)?;
        Commit::parse(&content).ok_or(ObjectError::Damaged(id))
    }

    pub(crate) fn tree(&self, id: ObjectId) -> Result<Vec<TreeEntry>, ObjectError> {
        // Every repository has it, stored or not.
        if id == ObjectId::of(ObjectKind::Tree, b"") {
            return Ok(Vec::new());
        }
        let content = self.of_kind(id, ObjectKind::Tree)?;
        entries(&content).ok_or(ObjectError::Damaged(id))
    }

    pub(crate) fn of_kind(&self, id: ObjectId, kind: ObjectKind) -> Result<Vec<u8>, ObjectError> {
        let object = self.read(id)?;
        if object.kind == kind { Ok(object.content) } else { Err(ObjectError::Kind(id, kind.name())) }
    }

    fn read_unchecked(&self, id: ObjectId, depth: usize, len: u64) -> Result<Object, ObjectError> {
        if depth > NAMED_MAX {
            return Err(ObjectError::Damaged(id));
        }
        for pack in &self.packs {
            self.work.spend(LOOK)?;
            if let Some(at) = pack.find(id)? {
                return pack.read(at, id, len, &self.work, |base, len| self.read_unchecked(base, depth + 1, len));
            }
        }
        let (directory, name) = id.loose();
        match self.files.open(format!("{directory}/{name}").as_bytes())? {
            Some(file) => {
                let object = loose(file, id)?;
                self.work.spend(object.content.len() as u64)?;
                Ok(object)
            }
            None => Err(ObjectError::Missing(id)),
        }
    }
}

/// A file with one object: its kind and length, and its content.
fn loose(file: File, id: ObjectId) -> Result<Object, ObjectError> {
    let damaged = || ObjectError::Damaged(id);
    let mut reader = ZlibDecoder::new(BufReader::with_capacity(16 * 1024, file));
    let mut header = Vec::new();
    loop {
        let mut byte = [0];
        reader.read_exact(&mut byte).map_err(|_| damaged())?;
        match byte[0] {
            0 => break,
            _ if header.len() == HEADER_LEN_MAX => return Err(damaged()),
            byte => header.push(byte),
        }
    }
    let mut parts = header.splitn(2, |byte| *byte == b' ');
    let kind = parts.next().and_then(ObjectKind::parse).ok_or_else(damaged)?;
    let size = parts.next().and_then(|size| std::str::from_utf8(size).ok()?.parse::<u64>().ok()).ok_or_else(damaged)?;
    if size > OBJECT_LEN_MAX {
        return Err(ObjectError::TooLong(id));
    }
    let mut content = Vec::new();
    reader.take(size + 1).read_to_end(&mut content).map_err(|_| damaged())?;
    if content.len() as u64 == size { Ok(Object { kind, content }) } else { Err(damaged()) }
}
