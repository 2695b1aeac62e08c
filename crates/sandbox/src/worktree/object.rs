//! Git's objects: their ids, their kinds, and what commits and trees say.
//!
//! Objects come from repositories that strangers may have written. What isn't well-formed is an error, never a guess.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha1::{Digest, Sha1};

/// Maximum length of an object. It is read into memory.
pub(crate) const OBJECT_LEN_MAX: u64 = 128 << 20;
/// The same for a tree, of which a list is made, and for a commit, of which many are looked at together.
const TREE_LEN_MAX: u64 = 32 << 20;
const COMMIT_LEN_MAX: u64 = 1 << 20;
/// Maximum length of a subject that is kept, in bytes.
const SUBJECT_LEN_MAX: usize = 500;

/// The SHA-1 of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectId(pub(crate) [u8; 20]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Commit,
    Tree,
    Blob,
    Tag,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: ObjectKind,
    pub(crate) content: Vec<u8>,
}

/// Why an object can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error("object {0} is missing")]
    Missing(ObjectId),
    #[error("object {0} is damaged")]
    Damaged(ObjectId),
    #[error("object {0} is too long: at most 128 MiB are read, of a tree 32 MiB, of a commit 1 MiB")]
    TooLong(ObjectId),
    #[error("object {0} is not a {1}")]
    Kind(ObjectId, &'static str),
    #[error("a pack of objects is damaged")]
    Pack,
    #[error("its objects are in more than {0} packs")]
    Packs(usize),
    #[error("its objects are more work to read than any ordinary repository's")]
    Work,
    #[error("reading objects: {0}")]
    Read(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for ObjectError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Read(errno.into())
    }
}

/// What an entry of a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    File,
    Executable,
    Link,
    Tree,
    /// The commit of a submodule, which is in another repository.
    Submodule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    pub(crate) mode: Mode,
    pub(crate) name: Vec<u8>,
    pub(crate) id: ObjectId,
}

/// What of a commit is needed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) tree: ObjectId,
    pub(crate) parents: Vec<ObjectId>,
    /// The first line of its message.
    pub(crate) subject: Vec<u8>,
}

impl ObjectId {
    pub(crate) fn of(kind: ObjectKind, content: &[u8]) -> Self {
        let mut hash = Sha1::new();
        hash.update(format!("{} {}\0", kind.name(), content.len()));
        hash.update(content);
        Self(hash.finalize().into())
    }

    pub(crate) fn parse(hex: &[u8]) -> Option<Self> {
        let mut id = [0; 20];
        if hex.len() != 40 || !hex.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(id))
    }

    /// Its place among loose objects: a directory, and a name in it.
    pub(crate) fn loose(self) -> (String, String) {
        let mut hex = self.to_string();
        let name = hex.split_off(2);
        (hex, name)
    }
}

impl ObjectKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }

    pub(crate) const fn len_max(self) -> u64 {
        match self {
            Self::Commit | Self::Tag => COMMIT_LEN_MAX,
            Self::Tree => TREE_LEN_MAX,
            Self::Blob => OBJECT_LEN_MAX,
        }
    }

    pub(crate) fn parse(name: &[u8]) -> Option<Self> {
        [Self::Commit, Self::Tree, Self::Blob, Self::Tag].into_iter().find(|kind| kind.name().as_bytes() == name)
    }
}

impl Mode {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"40000" | b"040000" => Some(Self::Tree),
            b"120000" => Some(Self::Link),
            b"160000" => Some(Self::Submodule),
            // Early versions of git stored more permissions.
            [b'1', b'0', b'0', owner @ b'4'..=b'7', _, _] => {
                Some(if (owner - b'0') & 1 == 1 { Self::Executable } else { Self::File })
            }
            _ => None,
        }
    }

    /// As in a tree.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::File => "100644",
            Self::Executable => "100755",
            Self::Link => "120000",
            Self::Tree => "40000",
            Self::Submodule => "160000",
        }
    }

    /// As in an index.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::File => 0o100_644,
            Self::Executable => 0o100_755,
            Self::Link => 0o120_000,
            Self::Tree => 0o040_000,
            Self::Submodule => 0o160_000,
        }
    }
}

/// The entries of a tree. A name that could lead out of its directory or into a git directory is an error.
pub(crate) fn entries(content: &[u8]) -> Option<Vec<TreeEntry>> {
    let mut found: Vec<TreeEntry> = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let space = rest.iter().position(|byte| *byte == b' ')?;
        let (mode, tail) = (&rest[..space], &rest[space + 1..]);
        let end = tail.iter().position(|byte| *byte == 0)?;
        let (name, tail) = (&tail[..end], &tail[end + 1..]);
        let id = ObjectId(tail.get(..20)?.try_into().ok()?);
        if !is_name(name) {
            return None;
        }
        found.push(TreeEntry { mode: Mode::parse(mode)?, name: name.to_vec(), id });
        rest = &tail[20..];
    }
    Some(found)
}

/// Whether a file may have this name. Other systems take more names for `.git` than the one.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let is_git = name.eq_ignore_ascii_case(b".git") || name.eq_ignore_ascii_case(b"git~1");
    !(name.is_empty() || name.len() > 255 || name == b"." || name == b".." || name.contains(&b'/') || is_git)
}

impl Commit {
    pub(crate) fn parse(content: &[u8]) -> Option<Self> {
        let end = content.windows(2).position(|two| two == b"\n\n").unwrap_or(content.len());
        let mut lines = content[..end].split(|byte| *byte == b'\n');
        let tree = ObjectId::parse(lines.next()?.strip_prefix(b"tree ")?)?;
        let mut parents = Vec::new();
        for line in lines.take_while(|line| line.starts_with(b"parent ")) {
            parents.push(ObjectId::parse(&line[7..])?);
        }
        let message = content.get(end + 2..).unwrap_or_default();
        let subject = message.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Some(Self { tree, parents, subject: subject[..subject.len().min(SUBJECT_LEN_MAX)].to_vec() })
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(text.as_bytes()).ok_or_else(|| de::Error::custom("not the id of an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_git() {
        let id = ObjectId::of(ObjectKind::Blob, b"hello\n");
        assert_eq!(id.to_string(), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(ObjectId::parse(id.to_string().as_bytes()), Some(id));
        assert_eq!(ObjectId::parse(b"CE013625030ba8dba906f756967f9e9ca394464a"), None);
    }

    #[test]
    fn a_tree_with_a_name_that_leads_elsewhere_is_refused() {
        let tree = |mode: &str, name: &[u8]| [mode.as_bytes(), b" ", name, b"\0", &[7; 20]].concat();
        assert!(entries(&tree("100644", b"a")).is_some());
        for name in [&b".."[..], b".", b"", b"a/b", b".git", b".GIT", b"GIT~1", &[b'x'; 256]] {
            assert_eq!(entries(&tree("100644", name)), None, "{:?}", String::from_utf8_lossy(name));
        }
        assert_eq!(entries(&tree("104755", b"a")), None);
        assert_eq!(entries(&tree("100644", b"a")[..25]), None);
    }
}
