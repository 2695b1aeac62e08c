//! Paths and permission bits of files in a sandbox, as given in requests.
//!
//! A path is passed unchanged to the kernel, which resolves it inside the sandbox as the sandbox's user: `..` and
//! links mean the same as for any program there, and nothing outside exists. Only paths that no kernel could accept
//! are rejected here.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Maximum length of a path in the kernel, without its NUL.
pub(crate) const PATH_LEN_MAX: usize = 4095;

/// A path in a sandbox: absolute, or relative to the user's home.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct FilePath(String);

impl FilePath {
    /// Parses and validates a path.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a path can't be empty".to_owned());
        }
        if text.contains('\0') {
            return Err(format!("{text:?} has a NUL byte"));
        }
        if text.len() > PATH_LEN_MAX {
            return Err(format!("a path of {} bytes is longer than {PATH_LEN_MAX}", text.len()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The absolute path; a relative one starts at `home`.
    pub fn from_root(&self, home: &str) -> String {
        if self.0.starts_with('/') { self.0.clone() } else { format!("{home}/{}", self.0) }
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// Permission bits without set-id and sticky bits, which can't be set through the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(u32);

impl FileMode {
    /// The default of a file.
    pub const FILE: Self = Self(0o644);
    /// The default of a directory.
    pub const DIRECTORY: Self = Self(0o755);

    /// Keeps only the permission bits.
    pub const fn of(bits: u32) -> Self {
        Self(bits & 0o777)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Parses `644` or `0755`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let complaint = || format!("{text:?} is not a mode: write permission bits in octal, such as 0644");
        let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let bits = if is_octal { u32::from_str_radix(text, 8).ok() } else { None };
        bits.filter(|bits| *bits <= 0o777).map(Self).ok_or_else(complaint)
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_as_they_are_but_for_what_no_kernel_takes() {
        for fine in ["a", "/", "../x", "/a/./b", "name with spaces", "\u{202e}"] {
            assert_eq!(FilePath::parse(fine).unwrap().as_str(), fine);
        }
        for wrong in [String::new(), "a\0b".to_owned(), "x".repeat(4096)] {
            assert!(FilePath::parse(&wrong).is_err());
        }
        assert_eq!(FilePath::parse("a/b").unwrap().from_root("/home/user"), "/home/user/a/b");
        assert_eq!(FilePath::parse("/a").unwrap().from_root("/home/user"), "/a");
    }

    #[test]
    fn modes_are_octal_and_have_no_set_id_bits() {
        for (text, bits) in [("644", 0o644), ("0755", 0o755), ("000", 0)] {
            assert_eq!(FileMode::parse(text).map(FileMode::bits), Ok(bits));
        }
        for wrong in ["", "6", "64", "4755", "1777", "0o644", "898", "-644", "07777", "00644"] {
            assert!(FileMode::parse(wrong).is_err(), "{wrong}");
        }
    }
}
