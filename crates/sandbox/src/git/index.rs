//! Parses git's index for two things: paths that are checkouts of other repositories, because git looks into those by
//! itself, and paths that are marked so that git shows no edits of them.

/// A malformed index; git would not parse it either.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

const GITLINK: u32 = 0o160_000;
const KIND: u32 = 0o170_000;
/// Times, device, inode, mode, owner and size, before the object's name.
const STAT_LEN: usize = 40;
const MODE_AT: usize = 24;
const EXTENDED: u16 = 0x4000;
/// `git update-index --assume-unchanged`.
const ASSUMED_UNCHANGED: u16 = 0x8000;
/// `git update-index --skip-worktree`, in the second pair of flag bytes.
const SKIPPED: u16 = 0x4000;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// Checkouts of other repositories.
    pub(crate) gitlinks: Vec<Vec<u8>>,
    /// Paths whose edits git doesn't show.
    pub(crate) hidden: Vec<Vec<u8>>,
}

/// Parses an index of a repository whose settings are not known: it uses the hash length that fits.
pub(crate) fn parse_either(bytes: &[u8]) -> Result<Index, Malformed> {
    let fitting = [20, 32].into_iter().find_map(|hash_len| {
        let (index, end) = entries(bytes, hash_len).ok()?;
        // The entries are followed by extensions, whose names are letters, or by the checksum alone.
        let rest = bytes.get(end..)?;
        let is_sum = rest.len() == hash_len;
        let is_extension = rest.len() > hash_len && rest[..4].iter().all(u8::is_ascii_alphabetic);
        (is_sum || is_extension).then_some(index)
    });
    fitting.ok_or(Malformed)
}

/// `hash_len` is 20 or, if the repository says so, 32.
pub(crate) fn parse(bytes: &[u8], hash_len: usize) -> Result<Index, Malformed> {
    entries(bytes, hash_len).map(|(index, _)| index)
}

/// The entries, and the position where they end.
fn entries(bytes: &[u8], hash_len: usize) -> Result<(Index, usize), Malformed> {
    let number = |at: usize| bytes.get(at..at + 4)?.first_chunk().map(|four| u32::from_be_bytes(*four));
    let (version, count) = (number(4).ok_or(Malformed)?, number(8).ok_or(Malformed)?);
    if !bytes.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return Err(Malformed);
    }
    let mut found = Index::default();
    let mut at = 12;
    let mut name: Vec<u8> = Vec::new();
    for _ in 0..count {
        let mode = number(at + MODE_AT).ok_or(Malformed)?;
        let flags_at = at + STAT_LEN + hash_len;
        let flags_of = |at: usize| bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two));
        let flags = flags_of(flags_at).ok_or(Malformed)?;
        let is_extended = flags & EXTENDED != 0;
        let more = if is_extended { flags_of(flags_at + 2).ok_or(Malformed)? } else { 0 };
        let mut name_at = flags_at + if is_extended { 4 } else { 2 };
        let kept = if version == 4 {
            let (cut, length) = varint(bytes.get(name_at..).ok_or(Malformed)?).ok_or(Malformed)?;
            name_at += length;
            name.len().checked_sub(cut).ok_or(Malformed)?
        } else {
            0
        };
        let rest = bytes.get(name_at..).ok_or(Malformed)?;
        let length = rest.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        name.truncate(kept);
        name.extend_from_slice(&rest[..length]);
        // Entries are padded to eight bytes, with at least one NUL.
        at = if version == 4 { name_at + length + 1 } else { at + ((name_at - at + length + 8) & !7) };
        if mode & KIND == GITLINK {
            found.gitlinks.push(name.clone());
        }
        if flags & ASSUMED_UNCHANGED != 0 || more & SKIPPED != 0 {
            found.hidden.push(name.clone());
        }
    }
    Ok((found, at))
}

/// A variable-length number in git's encoding, and its length.
fn varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0usize;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        value = (value << 7) + usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
        value += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn submodules_and_marks_are_found_in_every_version_that_git_writes() {
        for (version, format) in [(2, "sha1"), (3, "sha1"), (4, "sha1"), (2, "sha256"), (4, "sha256")] {
            let top = std::env::temp_dir().join(format!("saggar-index-{}-{version}-{format}", std::process::id()));
            std::fs::create_dir_all(&top).unwrap();
            let git = |arguments: &[&str]| {
                let mut command = Command::new("git");
                command.arg("-C").arg(&top).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
                assert!(command.env("GIT_CONFIG_NOSYSTEM", "1").status().unwrap().success(), "{arguments:?}");
            };
            git(&["init", "--quiet", "--template=", &format!("--object-format={format}")]);
            git(&["config", "index.version", &version.to_string()]);
            let hash_len = if format == "sha1" { 20 } else { 32 };
            let id = "1".repeat(hash_len * 2);
            let names = ["a", "aa/b", "aa/bc", "deep/er/module", "z"];
            for (index, name) in names.iter().enumerate() {
                let mode = if index % 2 == 0 { "160000" } else { "100644" };
                git(&["update-index", "--add", "--info-only", "--cacheinfo", &format!("{mode},{id},{name}")]);
            }
            git(&["update-index", "--assume-unchanged", "deep/er/module"]);
            if version == 3 {
                git(&["update-index", "--skip-worktree", "aa/b"]);
            }
            let bytes = std::fs::read(top.join(".git/index")).unwrap();
            assert_eq!(bytes[7], version);
            let found = parse(&bytes, hash_len).unwrap();
            let bytes_of = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
            assert_eq!(found.gitlinks, bytes_of(&["a", "aa/bc", "z"]), "{version} {format}");
            let hidden: &[&str] = if version == 3 { &["aa/b", "deep/er/module"] } else { &["deep/er/module"] };
            assert_eq!(found.hidden, bytes_of(hidden), "{version} {format}");
            assert_eq!(parse_either(&bytes), Ok(found), "{version} {format}");
            for length in 0..bytes.len() - hash_len {
                // A truncated index is malformed or, past the last entry, the same.
                let _ = parse(&bytes[..length], hash_len);
            }
            std::fs::remove_dir_all(top).unwrap();
        }
        assert_eq!(parse(b"DIRC\0\0\0\x09\0\0\0\0", 20), Err(Malformed));
    }
}
