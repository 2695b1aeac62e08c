//! Validated paths: in the guest, on the host, and the protected ones inside a workspace.
//!
//! These types only guarantee a path's *form*. Its target is checked when it is opened, by file descriptor.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Maximum path length of the kernel, without the NUL.
const PATH_LEN_MAX: usize = 4095;
/// Maximum depth of a protected path: each component on the way gets a mount of its own.
const PROTECTED_DEPTH_MAX: usize = 32;
/// Maximum length of a file name.
const NAME_LEN_MAX: usize = 255;

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(de::Error::custom)
            }
        }
    };
}

checked_text!(
    /// An absolute path inside the sandbox, without `.`, `..` or doubled slashes.
    GuestPath
);

impl GuestPath {
    /// Normalises slashes. Refuses `.` and `..` rather than resolving them, because a link could change their meaning.
    pub fn parse(text: &str) -> Result<Self, String> {
        check_form(text)?;
        if !text.starts_with('/') {
            return Err(format!("{text:?} must be an absolute path inside the sandbox"));
        }
        let parts = parts_of(text)?;
        Ok(Self(format!("/{}", parts.join("/"))))
    }

    pub fn is_within(&self, other: &str) -> bool {
        other == "/" || self.0 == other || self.0.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
    }
}

checked_text!(
    /// A path on the host, as the user gave it.
    HostPath
);

impl HostPath {
    /// May be relative: the code that opens the path resolves it.
    pub fn parse(text: &str) -> Result<Self, String> {
        check_form(text)?;
        Ok(Self(text.to_owned()))
    }
}

checked_text!(
    /// A path inside the workspace that a sandbox may not change, whether it exists or not. A trailing `/` marks a
    /// directory.
    ProtectedPath
);

impl ProtectedPath {
    pub fn parse(text: &str) -> Result<Self, String> {
        check_form(text)?;
        if text.starts_with('/') {
            return Err(format!("{text:?} must be relative to the workspace"));
        }
        let parts = parts_of(text)?;
        if parts.is_empty() {
            return Err(format!("{text:?} names the workspace itself: use the read-only filesystem mode for that"));
        }
        if parts.len() > PROTECTED_DEPTH_MAX {
            return Err(format!("{text:?} is more than {PROTECTED_DEPTH_MAX} names deep"));
        }
        let tail = if text.ends_with('/') { "/" } else { "" };
        Ok(Self(format!("{}{tail}", parts.join("/"))))
    }

    /// Its components, from the workspace down.
    pub fn names(&self) -> Vec<&str> {
        self.0.split('/').filter(|part| !part.is_empty()).collect()
    }

    /// Whether it was written with a trailing `/`.
    pub fn is_directory(&self) -> bool {
        self.0.ends_with('/')
    }
}

fn check_form(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("a path can't be empty".to_owned());
    }
    if text.contains('\0') {
        return Err(format!("{text:?} has a NUL byte"));
    }
    if text.len() > PATH_LEN_MAX {
        return Err(format!("a path of {} bytes is longer than {PATH_LEN_MAX}", text.len()));
    }
    Ok(())
}

fn parts_of(text: &str) -> Result<Vec<&str>, String> {
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    for part in &parts {
        if matches!(*part, "." | "..") {
            return Err(format!("{text:?} contains {part:?}: write the path without it"));
        }
        if part.len() > NAME_LEN_MAX {
            return Err(format!("a name of {} bytes is longer than {NAME_LEN_MAX}", part.len()));
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_paths_are_absolute_and_plain() {
        assert_eq!(GuestPath::parse("//data//in/").unwrap().as_str(), "/data/in");
        for wrong in ["", "data", "/a/../b", "/a/./b", "/a\0b"] {
            assert!(GuestPath::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(GuestPath::parse(&format!("/{}", "n".repeat(256))).is_err());
        assert!(GuestPath::parse(&"/n".repeat(3000)).is_err());
    }

    #[test]
    fn a_look_alike_prefix_is_not_within() {
        let path = GuestPath::parse("/workspace-evil").unwrap();
        assert!(!path.is_within("/workspace"));
        assert!(GuestPath::parse("/workspace/a").unwrap().is_within("/workspace"));
        assert!(path.is_within("/"));
    }

    #[test]
    fn protected_paths_stay_inside_the_workspace() {
        assert_eq!(ProtectedPath::parse(".git//hooks/").unwrap().as_str(), ".git/hooks/");
        assert!(ProtectedPath::parse(".saggar/").unwrap().is_directory());
        for wrong in ["", "/etc", "../x", "a/../b", ".", "/"] {
            assert!(ProtectedPath::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
