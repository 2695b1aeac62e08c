//! Entries, one per changed path, and names that may contain any byte.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to the workspace.
    pub path: Name,
    pub change: Change,
    /// What it is now or, if it was removed, what it was.
    pub kind: Kind,
    /// Permission bits, without set-id and sticky ones.
    pub mode: u32,
    /// File size in bytes.
    pub size: u64,
    /// The number under which its content is kept.
    pub(crate) blob: Option<u32>,
    /// The target of a link.
    pub target: Option<Name>,
    /// The host's file at the start; applying requires that it is unchanged.
    pub(crate) base: Option<Base>,
    /// Whether the host changed it while the sandbox ran.
    pub changed_on_host: bool,
    /// Whether it was taken out of a workspace because programs of the host would act on it. It is applied only if it
    /// is named.
    #[serde(default)]
    pub held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    Added,
    /// Its content, or its link target, changed.
    Modified,
    Removed,
    /// Only its permissions changed.
    Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    Directory,
    /// A symbolic link.
    Link,
}

/// The host's file at a path, identified by inode and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) changed_ns: i128,
}

impl Base {
    pub(crate) fn of(stat: &rustix::fs::Stat) -> Self {
        let changed_ns = i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec as i64);
        Self { inode: stat.st_ino, size: stat.st_size as u64, changed_ns }
    }

    /// The remainder of a file of which a part was held back. The file doesn't exist yet when this is recorded, so only
    /// its length identifies it.
    pub(crate) fn of_length(size: u64) -> Self {
        Self { inode: 0, size, changed_ns: 0 }
    }
}

/// A path that was not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    pub path: Name,
    pub why: String,
}

/// A path or link target: any bytes. Shown and stored with everything but plain text escaped, so that no name can act
/// on a terminal or look like another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub(crate) Vec<u8>);

impl Name {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn join(&self, name: &[u8]) -> Self {
        if self.0.is_empty() { Self(name.to_vec()) } else { Self([&self.0, &b"/"[..], name].concat()) }
    }

    /// The directory that contains it, and its last component.
    pub(crate) fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&self.0[..slash], &self.0[slash + 1..]),
            None => (b".", &self.0),
        }
    }

    /// The directory that contains it, unless it is at the top of the workspace.
    pub(crate) fn parent(&self) -> Option<Self> {
        match self.split() {
            (_, b"") => None,
            (b".", _) => Some(Self(Vec::new())),
            (parent, _) => Some(Self(parent.to_vec())),
        }
    }

    pub fn is_within(&self, other: &[u8]) -> bool {
        self.0 == other || (self.0.starts_with(other) && self.0.get(other.len()) == Some(&b'/'))
    }

    /// Its maximum length in a manifest: an escaped byte takes five there.
    pub(crate) fn stored_len(&self) -> usize {
        self.0.iter().map(|byte| if byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"') { 1 } else { 5 }).sum()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut bytes = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            bytes.extend_from_slice(&rest.as_bytes()[..at]);
            let tail = &rest[at + 1..];
            if let Some(after) = tail.strip_prefix('\\') {
                bytes.push(b'\\');
                rest = after;
            } else {
                let digits = tail.strip_prefix('x')?.get(..2)?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &tail[3..];
            }
        }
        bytes.extend_from_slice(rest.as_bytes());
        Some(Self(bytes))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character == '\\' {
                    f.write_str("\\\\")?;
                } else if is_plain(character) {
                    write!(f, "{character}")?;
                } else {
                    let mut space = [0; 4];
                    character.encode_utf8(&mut space).bytes().try_for_each(|byte| escape(f, byte))?;
                }
            }
            chunk.invalid().iter().try_for_each(|byte| escape(f, *byte))?;
        }
        Ok(())
    }
}

/// Written by hand for speed: there may be millions of these.
fn escape(f: &mut fmt::Formatter<'_>, byte: u8) -> fmt::Result {
    use fmt::Write;
    f.write_str("\\x")?;
    [byte >> 4, byte & 15]
        .iter()
        .try_for_each(|digit| f.write_char(char::from(b"0123456789abcdef"[usize::from(*digit)])))
}

/// Not a control character, and not one that makes text look like something else.
pub fn is_plain(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}' | '\u{feff}')
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("a name with a broken escape"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_shown_plainly_and_read_back() {
        for (bytes, shown) in [
            (&b"src/main.rs"[..], "src/main.rs"),
            ("größe".as_bytes(), "größe"),
            (b"a\\b", "a\\\\b"),
            (b"a\nb\x1b[2J", "a\\x0ab\\x1b[2J"),
            (b"not-\xff-text", "not-\\xff-text"),
            ("a\u{202e}b".as_bytes(), "a\\xe2\\x80\\xaeb"),
        ] {
            let name = Name(bytes.to_vec());
            assert_eq!(name.to_string(), shown);
            assert_eq!(Name::parse(shown), Some(name));
        }
        assert_eq!(Name::parse("a\\q"), None);
    }

    #[test]
    fn a_look_alike_prefix_is_not_within() {
        let name = Name(b".git/hooks-evil".to_vec());
        assert!(!name.is_within(b".git/hooks") && name.is_within(b".git"));
    }
}
