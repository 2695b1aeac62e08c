//! Paths in a sandbox's own view.
//!
//! Nothing outside of the sandbox is reachable, so a path needs no sanitising: the kernel resolves it inside. Invalid
//! paths are rejected here.

use std::fmt;

use saggar_guest::PATH_MAX;

use crate::fault::{Fault, FileFault, FileFaultKind};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Parses a path: absolute, or relative to the user's home, `~` included.
    pub fn parse(text: &str, home: &str) -> Result<Self, Fault> {
        let relative = text.strip_prefix("~/").unwrap_or(text).trim_start_matches("./");
        let absolute = match relative {
            "" | "~" | "." => home.to_owned(),
            _ if text.starts_with('/') => text.to_owned(),
            _ => format!("{}/{relative}", home.trim_end_matches('/')),
        };
        Self::from_bytes(absolute.into_bytes())
    }

    /// A path below this one. `relative` comes from an archive or a listing, and must stay below.
    pub fn join(&self, relative: &[u8]) -> Result<Self, Fault> {
        if relative.is_empty() {
            return Ok(self.clone());
        }
        let mut bytes = self.0.clone();
        if bytes.last() != Some(&b'/') {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(relative);
        Self::from_bytes(bytes)
    }

    fn from_bytes(bytes: Vec<u8>) -> Result<Self, Fault> {
        let kind = if bytes.contains(&0) {
            FileFaultKind::InvalidPath
        } else if bytes.len() >= PATH_MAX {
            FileFaultKind::PathTooLong
        } else {
            return Ok(Self(bytes));
        };
        // The quoted path is truncated: it may be a megabyte.
        let path = String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).into_owned();
        Err(Fault::File(FileFault { path, kind }))
    }

    /// The path's bytes, as the kernel gets them.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.clone()
    }

    /// The last component.
    pub fn name(&self) -> String {
        let name = self.0.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or(b"/");
        String::from_utf8_lossy(name).into_owned()
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::User;

    use super::*;

    #[test]
    fn relative_paths_are_the_users() {
        for (text, user, path) in [
            ("", User::User, "/home/user"),
            ("~", User::Root, "/root"),
            ("~/a", User::User, "/home/user/a"),
            (".", User::User, "/home/user"),
            ("./a", User::User, "/home/user/a"),
            ("./", User::User, "/home/user"),
            ("..", User::User, "/home/user/.."),
            (".../x", User::User, "/home/user/.../x"),
            ("a/../b", User::User, "/home/user/a/../b"),
            ("/etc/x", User::User, "/etc/x"),
            ("%2e%2e%2f", User::User, "/home/user/%2e%2e%2f"),
        ] {
            assert_eq!(FilePath::parse(text, user.home()).unwrap().to_string(), path);
        }
    }

    #[test]
    fn what_cannot_be_a_path_is_refused() {
        for (text, kind) in
            [("ok\0/../../etc".to_owned(), FileFaultKind::InvalidPath), ("x".repeat(5000), FileFaultKind::PathTooLong)]
        {
            match FilePath::parse(&text, User::User.home()) {
                Err(Fault::File(fault)) => assert_eq!(fault.kind, kind),
                other => panic!("{other:?}"),
            }
        }
    }
}
