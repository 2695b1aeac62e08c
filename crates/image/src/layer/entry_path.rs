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
    /// Takes an archive's name; the error says what is wrong with it. An absolute one begins at the top of the layer.
    pub(super) fn parse(text: &[u8]) -> Result<Self, &'static str> {
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

    /// The names in it, the last one first.
    pub(super) fn names_reversed(&self) -> impl Iterator<Item = &[u8]> {
        self.0.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// A name below it.
    pub(super) fn join(&self, name: &[u8]) -> Result<Self, &'static str> {
        Self::parse(&[&self.0, b"/".as_slice(), name].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        for (text, expected) in [
            ("a/b", "a/b"),
            ("./a/b/", "a/b"),
            ("a//./b", "a/b"),
            ("./", ""),
            ("", ""),
            ("/", ""),
            ("...", "..."),
            ("/etc/x", "etc/x"),
            ("//a", "a"),
        ] {
            assert_eq!(EntryPath::parse(text.as_bytes()), Ok(EntryPath(expected.into())), "{text}");
        }
        let deep = "d/".repeat(201);
        let long = "x".repeat(256);
        let far = format!("{}/", "x".repeat(200)).repeat(21);
        for wrong in ["..", "../x", "/..", "/../x", "a/../../b", "a/..", "./..", "a\0b", &deep, &long, &far] {
            assert!(EntryPath::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_splits_into_its_directories() {
        let path = EntryPath(b"a/b/c".to_vec());
        assert_eq!(path.names_reversed().collect::<Vec<_>>(), [b"c", b"b", b"a"]);
        assert_eq!(EntryPath::top().names_reversed().count(), 0);
        assert_eq!(path.join(b"d"), Ok(EntryPath(b"a/b/c/d".to_vec())));
        assert_eq!(EntryPath::top().join(b"d"), Ok(EntryPath(b"d".to_vec())));
        assert_eq!(path.split(), Some((EntryPath(b"a/b".to_vec()), &b"c"[..])));
        assert_eq!(EntryPath::top().split(), None);
    }
}
