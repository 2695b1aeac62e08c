//! The files of an image on disk: in a directory, or in an archive that is read where it lies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use saggar_domain::{Code, Problem};

use crate::blob::{Bytes, problem_of};
use crate::failure::{refused, shown};
use crate::tar::{Archive, Input, Kind, TarError};

/// Maximum number of files of an archive that holds an image.
const FILES_MAX: usize = 65_536;
/// Maximum length of a name or a link's target there: the kernel's own limit.
const NAME_LEN_MAX: usize = 4095;
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

pub(super) enum Files {
    Directory(OwnedFd),
    Archive { file: Arc<File>, index: BTreeMap<Vec<u8>, Place> },
}

/// Where a file lies in an archive.
#[derive(Clone, Debug)]
pub(super) enum Place {
    At {
        offset: u64,
        size: u64,
    },
    /// Docker's archives have a layer that is used twice only once.
    Link(Vec<u8>),
}

impl Files {
    /// The path is the user's own, so links in it are followed.
    pub(super) fn open(path: &Path) -> Result<Self, Problem> {
        let given = path.display();
        let fail = |why: &dyn std::fmt::Display| {
            Problem::new(
                Code::InvalidValue,
                format!("{given} can't be opened: {why}"),
                "name a directory with an OCI image layout, an archive of one, or an archive written by `docker save`",
            )
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = openat(CWD, path, flags, Mode::empty()).map_err(|errno| fail(&errno))?;
        match FileType::from_raw_mode(fstat(&opened).map_err(|errno| fail(&errno))?.st_mode) {
            FileType::Directory => Ok(Self::Directory(opened)),
            FileType::RegularFile => Self::index(File::from(opened)),
            _ => Err(fail(&"it is neither a directory nor a file")),
        }
    }

    pub(super) fn has(&self, path: &[u8]) -> bool {
        match self {
            Self::Directory(directory) => {
                openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), RESOLVE).is_ok()
            }
            Self::Archive { index, .. } => index.contains_key(path),
        }
    }

    /// Opens a file.
    pub(super) fn read(&self, path: &[u8]) -> Result<Bytes, Problem> {
        let missing = |why: String| {
            refused(format!("the image's file {} can't be read: {why}", shown(path)), "copy or save the image anew")
        };
        match self {
            Self::Directory(directory) => {
                // A pipe in its place must not be waited for.
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = openat2(directory, path, flags, Mode::empty(), RESOLVE)
                    .map_err(|errno| missing(errno.to_string()))?;
                let stat = fstat(&file).map_err(|errno| missing(errno.to_string()))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(missing("it is not a file".into()));
                }
                Ok(Box::new(File::from(file)))
            }
            Self::Archive { file, index } => {
                let place = match index.get(path) {
                    Some(Place::Link(target)) => index.get(target),
                    other => other,
                };
                match place {
                    Some(Place::At { offset, size }) => {
                        Ok(Box::new(Section { file: Arc::clone(file), offset: *offset, left: *size }))
                    }
                    Some(Place::Link(_)) => Err(missing("it is a link to a link".into())),
                    None => Err(missing("it is missing".into())),
                }
            }
        }
    }

    /// The whole of a small file.
    pub(super) fn read_all(&self, path: &[u8], bytes_max: u64) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        self.read(path)?.take(bytes_max + 1).read_to_end(&mut bytes).map_err(problem_of)?;
        if bytes.len() as u64 > bytes_max {
            return Err(refused(
                format!("the image's file {} is larger than {bytes_max} bytes", shown(path)),
                "the image is malformed or hostile: don't use it, or build it anew",
            ));
        }
        Ok(bytes)
    }

    fn index(mut file: File) -> Result<Self, Problem> {
        let mut start = [0; 4];
        let read = file.read(&mut start).and_then(|count| file.rewind().map(|()| count));
        let count =
            read.map_err(|error| refused(format!("the archive can't be read: {}", error.kind()), "try again"))?;
        if start[..count].starts_with(&[0x1f, 0x8b]) || start == [0x28, 0xb5, 0x2f, 0xfd] {
            return Err(refused(
                "the archive is compressed as a whole, so its parts can't be found",
                "decompress it first, with `gunzip` or `unzstd`; its layers may be compressed",
            ));
        }
        let mut index = BTreeMap::new();
        let mut archive = Archive::new(Seekable(&file));
        let wrong = |error: TarError| refused(error.to_string(), "save the image anew");
        while let Some(entry) = archive.next().map_err(wrong)? {
            let target = match &entry.kind {
                Kind::Link { target } | Kind::HardLink { target } => target.len(),
                Kind::File { .. } | Kind::Directory | Kind::Fifo | Kind::Device => 0,
            };
            if entry.path.len().max(target) > NAME_LEN_MAX {
                return Err(refused(
                    format!("the archive has a name of more than {NAME_LEN_MAX} bytes"),
                    "save the image anew",
                ));
            }
            let place = match entry.kind {
                Kind::File { size, segments: None } => Place::At { offset: archive.position(), size },
                Kind::Link { target } => Place::Link(joined(&entry.path, &target)),
                Kind::HardLink { target } => Place::Link(plain(&target)),
                Kind::File { segments: Some(_), .. } | Kind::Directory | Kind::Fifo | Kind::Device => continue,
            };
            if index.len() >= FILES_MAX {
                return Err(refused(
                    format!("the archive has more than {FILES_MAX} files"),
                    "name an archive of an image: an OCI image layout, or one written by `docker save`",
                ));
            }
            index.insert(plain(&entry.path), place);
        }
        Ok(Self::Archive { file: Arc::new(file), index })
    }
}

/// Without `./` in front.
fn plain(path: &[u8]) -> Vec<u8> {
    path.strip_prefix(b"./").unwrap_or(path).to_vec()
}

/// The target of a link, from the directory that the link is in. It only ever names a file of the same archive.
fn joined(link: &[u8], target: &[u8]) -> Vec<u8> {
    let link = plain(link);
    let mut names: Vec<&[u8]> = link.split(|byte| *byte == b'/').collect();
    names.pop();
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

/// A part of a file, read without moving the file's own position.
struct Section {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.offset)?;
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Skips by moving on, and so passes over layers without reading them.
struct Seekable<'a>(&'a File);

impl Read for Seekable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Input for Seekable<'_> {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let at = self.0.stream_position()?;
        let end = self.0.metadata()?.len();
        let skipped = count.min(end.saturating_sub(at));
        self.0.seek(SeekFrom::Start(at + skipped))?;
        Ok(skipped)
    }
}
