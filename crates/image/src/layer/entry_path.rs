//! Names of entries: the only forms that may lead to a file of the layer.

/// Maximum number of names in a path. More than any real image has, and few enough to keep a directory open for each.
const DEPTH_MAX: usize = 200;
/// Maximum length of a path, as the kernel has it.
const PATH_LEN_MAX: usize = 4095;
/// Maximum length of a name, as most filesystems have it.
const NAME_LEN_MAX: usize = 255;

/// Relative, without `.`, `..` and empty names; empty for the top of the layer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryPath(Vec<u8>);

impl EntryPath {
    /// Takes an archive's name; the error says what is wrong with it.
    pub(super) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        if text.starts_with(b"/") && text.iter().any(|byte| *byte != b'/') {
            return Err("has an absolute name");
        }
        let mut path = Vec::with_capacity(text.len());
        let names = text.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        for (depth, name) in names.enumerate() {
            if name == b".." {
                return Err("has a name with '..'");
            }
            if depth >= DEPTH_MAX {
                return Err("is nested more than 200 directories deep");
            }
            if name.len() > NAME_LEN_MAX {
                return Err("has a name of more than 255 bytes");
            }
            if name.contains(&0) {
                return Err("has a name with a NUL byte");
            }
            if depth > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        if path.len() > PATH_LEN_MAX {
            return Err("has a path of more than 4095 bytes");
        }
        Ok(Self(path))
    }

    pub(super) fn top() -> Self {
        Self(Vec::new())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The directory and the name in it; `None` for the top.
    pub(super) fn split(&self) -> Option<(Self, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            None => Some((Self::top(), &self.0)),
            Some(slash) => Some((Self(self.0[..slash].to_vec()), &self.0[slash + 1..])),
        }
    }

    /// Every directory above it, from the top down, and then itself; without the top.
    pub(super) fn ancestry(&self) -> impl Iterator<Item = Self> + '_ {
        let slashes = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let ends = slashes.chain((!self.0.is_empty()).then_some(self.0.len()));
        ends.map(|end| Self(self.0[..end].to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        for (text, expected) in
            [("a/b", "a/b"), ("./a/b/", "a/b"), ("a//./b", "a/b"), ("./", ""), ("", ""), ("/", ""), ("...", "...")]
        {
            assert_eq!(EntryPath::parse(text.as_bytes()), Ok(EntryPath(expected.into())), "{text}");
        }
        let deep = "d/".repeat(201);
        let long = "x".repeat(256);
        let far = format!("{}/", "x".repeat(200)).repeat(21);
        for wrong in ["/etc/passwd", "//etc", "..", "../x", "a/../../b", "a/..", "./..", "a\0b", &deep, &long, &far] {
            assert!(EntryPath::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_splits_into_its_directories() {
        let path = EntryPath(b"a/b/c".to_vec());
        let names: Vec<Vec<u8>> = path.ancestry().map(|part| part.0).collect();
        assert_eq!(names, [b"a".to_vec(), b"a/b".to_vec(), b"a/b/c".to_vec()]);
        assert_eq!(path.split(), Some((EntryPath(b"a/b".to_vec()), &b"c"[..])));
        assert_eq!(EntryPath::top().split(), None);
    }
}
