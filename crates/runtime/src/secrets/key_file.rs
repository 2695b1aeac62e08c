//! The file with the sealing keys: outside of the data directory, so that neither it nor a backup has both the values and
//! what opens them.
//!
//! Text, one key on each line, the newest first. A store names the key that it seals with; further keys are there to open
//! what was sealed before, in a backup for instance. So a file may serve several data directories, and changing the key
//! of one of them adds a line and removes none. The file is replaced as a whole, never changed in place.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FlockOperation, flock};
use saggar_store::SealingKeyId;
use zeroize::Zeroizing;

use super::seal::SealingKey;

/// Begins each line with a key.
const PREFIX: &str = "saggar-sealing-key-v1:";
const HEADER: &str = "# Keys that seal the secrets of saggar's servers. Without them, stored secrets can't be read.\n\
                      # Keep a copy, apart from the backups of the data directory.\n";
/// Ends the name of a file that is about to take the place of the key file.
const NEW: &str = ".new";
/// Maximum size of the file, in bytes: about a thousand keys.
const LEN_MAX: u64 = 64 << 10;

/// Where the sealing keys are.
#[derive(Clone, Debug)]
pub struct KeyFile {
    path: PathBuf,
    data_directory: PathBuf,
}

/// Why the key file can't be used. No variant names a path of the host.
#[derive(Debug, thiserror::Error)]
pub enum KeyFault {
    #[error("the file with the sealing keys is missing")]
    Missing,
    #[error("the file with the sealing keys is inside the data directory")]
    InDataDirectory,
    #[error("the file with the sealing keys can be read or changed by other users (mode {mode:04o})")]
    Exposed { mode: u32 },
    #[error("the file with the sealing keys belongs to another user (uid {uid})")]
    NotOurs { uid: u32 },
    #[error("the file with the sealing keys is not a regular file of at most {LEN_MAX} bytes")]
    NotAFile,
    #[error("line {line} of the file with the sealing keys is not a key")]
    Malformed { line: usize },
    #[error("the file with the sealing keys has no key")]
    Empty,
    /// The value is sealed with a key that the file doesn't have.
    #[error("the sealing key {id} is missing: the key file has {}", list(has))]
    NoSuchKey { id: SealingKeyId, has: Vec<SealingKeyId> },
    #[error("the file with the sealing keys can't be read or written: {}", .0.kind())]
    Io(#[from] io::Error),
}

fn list(keys: &[SealingKeyId]) -> String {
    let keys: Vec<&str> = keys.iter().map(SealingKeyId::as_str).collect();
    if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
}

impl KeyFault {
    pub fn help(&self) -> &'static str {
        match self {
            Self::Missing | Self::NoSuchKey { .. } | Self::Empty => {
                "put the file from before back where secrets_key_file points, or add its line to the file; no new key is made while sealed secrets exist"
            }
            Self::InDataDirectory => {
                "set secrets_key_file to a path outside of the data directory, so that a copy of the one doesn't contain the other"
            }
            Self::Exposed { .. } => "chmod 600 the file that secrets_key_file names",
            Self::NotOurs { .. } => "chown the file that secrets_key_file names to the user of the server",
            Self::NotAFile => "set secrets_key_file to a file that saggar has made",
            Self::Malformed { .. } => "remove what is not a key from the file that secrets_key_file names",
            Self::Io(_) => "check the path in secrets_key_file, its permissions and its disk",
        }
    }
}

impl KeyFault {
    /// Whether the keys are where others can get them.
    pub(crate) fn is_unsafe(&self) -> bool {
        match self {
            Self::InDataDirectory | Self::Exposed { .. } | Self::NotOurs { .. } => true,
            Self::Missing
            | Self::NotAFile
            | Self::Malformed { .. }
            | Self::Empty
            | Self::NoSuchKey { .. }
            | Self::Io(_) => false,
        }
    }
}

impl KeyFile {
    pub fn new(path: PathBuf, data_directory: PathBuf) -> Self {
        Self { path, data_directory }
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Every key, the newest first; at least one.
    pub(crate) fn keys(&self) -> Result<Vec<SealingKey>, KeyFault> {
        self.check_place()?;
        read(&self.open()?)
    }

    /// The newest key; makes the file if there is none. The caller knows that nothing is sealed yet.
    pub(crate) fn first(&self) -> Result<SealingKey, KeyFault> {
        match self.keys() {
            Err(KeyFault::Missing) => {}
            keys => return keys?.into_iter().next().ok_or(KeyFault::Empty),
        }
        let directory = self.directory()?;
        if !directory.exists() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let key = SealingKey::generate();
        let new = self.write_beside(std::slice::from_ref(&key))?;
        // Never replaces a file that another process has made meanwhile.
        let made = std::fs::hard_link(&new, &self.path);
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        match made {
            Ok(()) => {
                File::open(directory)?.sync_all()?;
                Ok(key)
            }
            // Or it has even changed that file, and removed ours with what was left over.
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {
                self.keys()?.into_iter().next().ok_or(KeyFault::Empty)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a new key before the others. It is on the disk when this returns.
    pub(crate) fn add(&self) -> Result<SealingKey, KeyFault> {
        let new = SealingKey::generate();
        self.restore(&new)?;
        Ok(new)
    }

    /// Adds a key before the others, unless it is there. Returns all keys.
    pub(crate) fn restore(&self, key: &SealingKey) -> Result<Vec<SealingKey>, KeyFault> {
        let locked = self.lock()?;
        let mut keys = locked.keys()?;
        if keys.iter().all(|known| known.id() != key.id()) {
            keys.insert(0, key.clone());
            locked.replace(&keys)?;
        }
        Ok(keys)
    }

    /// Waits until no other process changes the file, and keeps them from it.
    pub(crate) fn lock(&self) -> Result<Locked, KeyFault> {
        self.check_place()?;
        // A lock is on a file and not on its name, so another file may have the name by then.
        loop {
            let file = self.open()?;
            flock(&file, FlockOperation::LockExclusive).map_err(io::Error::from)?;
            let (ours, named) = (file.metadata()?, std::fs::metadata(&self.path)?);
            if (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
                return Ok(Locked { file, of: self.clone() });
            }
        }
    }

    fn open(&self) -> Result<File, KeyFault> {
        // A pipe must not make this wait.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        File::options().read(true).custom_flags(flags).open(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => KeyFault::Missing,
            _ => error.into(),
        })
    }

    fn write_beside(&self, keys: &[SealingKey]) -> Result<PathBuf, KeyFault> {
        let random: [u8; 8] = crate::sandboxes::random();
        let new = self.target().with_extension(format!("{:016x}{NEW}", u64::from_ne_bytes(random)));
        let written = (|| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(text(keys).as_bytes())?;
            file.sync_all()
        })();
        match written {
            Ok(()) => Ok(new),
            Err(error) => {
                // What can't be written can hold no key that anything was sealed with.
                let _ = std::fs::remove_file(&new);
                Err(error.into())
            }
        }
    }

    /// Where the keys are: a link stays one, and what it leads to is replaced.
    fn target(&self) -> PathBuf {
        std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    fn directory(&self) -> Result<&Path, KeyFault> {
        self.path.parent().ok_or(KeyFault::NotAFile)
    }

    /// Links are followed: what counts is where the keys are.
    fn check_place(&self) -> Result<(), KeyFault> {
        let data = std::fs::canonicalize(&self.data_directory)?;
        // Of a file that doesn't exist yet, the directories that do.
        let exists = self.path.ancestors().find_map(|ancestor| std::fs::canonicalize(ancestor).ok());
        match exists {
            Some(place) if place.starts_with(&data) => Err(KeyFault::InDataDirectory),
            Some(_) => Ok(()),
            None => Err(KeyFault::NotAFile),
        }
    }
}

/// The key file while no other process changes it.
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
    of: KeyFile,
}

impl Locked {
    fn keys(&self) -> Result<Vec<SealingKey>, KeyFault> {
        read(&self.file)
    }

    /// Removes all keys but these. Returns how many were removed.
    pub(crate) fn keep_only(self, ids: &BTreeSet<SealingKeyId>) -> Result<usize, KeyFault> {
        let mut keys = self.keys()?;
        let before = keys.len();
        keys.retain(|key| ids.contains(key.id()));
        let removed = before - keys.len();
        if removed > 0 {
            self.replace(&keys)?;
        }
        Ok(removed)
    }

    /// On the disk when this returns.
    fn replace(&self, keys: &[SealingKey]) -> Result<(), KeyFault> {
        if keys.is_empty() {
            return Err(KeyFault::Empty);
        }
        let target = self.of.target();
        let directory = target.parent().ok_or(KeyFault::NotAFile)?;
        remove_leftovers(directory, &target);
        let new = self.of.write_beside(keys)?;
        std::fs::rename(&new, &target)?;
        File::open(directory)?.sync_all()?;
        Ok(())
    }
}

/// Removes files that processes were about to put in the place of the key file when they were killed: they have keys. If one can't be
/// removed now, it is tried with the next change.
fn remove_leftovers(directory: &Path, target: &Path) {
    let stem = target.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let is_leftover = |name: &str| {
        let random = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(NEW));
        random.is_some_and(|random| random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_leftover) {
            // As said above.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn read(file: &File) -> Result<Vec<SealingKey>, KeyFault> {
    let found = file.metadata()?;
    if !found.is_file() || found.len() > LEN_MAX {
        return Err(KeyFault::NotAFile);
    }
    if found.mode() & 0o077 != 0 {
        return Err(KeyFault::Exposed { mode: found.mode() & 0o7777 });
    }
    if found.uid() != 0 && found.uid() != rustix::process::geteuid().as_raw() {
        return Err(KeyFault::NotOurs { uid: found.uid() });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(LEN_MAX).read_to_string(&mut text)?;
    let keys = parse(&text)?;
    if keys.is_empty() { Err(KeyFault::Empty) } else { Ok(keys) }
}

fn parse(text: &str) -> Result<Vec<SealingKey>, KeyFault> {
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bytes = line.strip_prefix(PREFIX).and_then(|key| STANDARD.decode(key).ok()).map(Zeroizing::new);
        let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes.as_slice()).ok());
        keys.push(SealingKey::from_bytes(Zeroizing::new(bytes.ok_or(KeyFault::Malformed { line: index + 1 })?)));
    }
    Ok(keys)
}

fn text(keys: &[SealingKey]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(HEADER.to_owned());
    for key in keys {
        text.push_str(PREFIX);
        text.push_str(&Zeroizing::new(STANDARD.encode(key.bytes())));
        text.push('\n');
    }
    text
}
