//! Unpacks an archive that came from a sandbox.
//!
//! The archive is untrusted. Every path is resolved relative to the destination's descriptor, follows no link and
//! never goes up; a name that would is an error. Files keep their permission bits and nothing more. Links are created
//! last, and only if they stay inside the tree. Any other kind of entry is skipped and counted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2, symlinkat, unlinkat};
use rustix::io::Errno;
use tar::EntryType;

use super::progress::Progress;

/// Maximum number of entries in one archive.
const ENTRIES_MAX: u64 = 2_000_000;
/// Maximum total size of the files in one archive, in bytes.
const BYTES_MAX: u64 = 1 << 40;
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    pub(crate) bytes: u64,
    /// Devices, pipes, hard links, and links that lead out of the tree.
    pub(crate) skipped: u64,
}

/// Unpacks into an existing directory.
pub(crate) fn unpack(archive: impl Read, destination: &Path, progress: &Progress) -> io::Result<Unpacked> {
    let root = rustix::fs::open(destination, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let mut told = Unpacked::default();
    let mut links: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = plain(&entry.path()?)?;
        if told.files + told.directories + links.len() as u64 + told.skipped >= ENTRIES_MAX {
            return Err(io::Error::other(format!("the archive has more than {ENTRIES_MAX} entries")));
        }
        match entry.header().entry_type() {
            EntryType::Directory => {
                make_directories(&root, &path)?;
                told.directories += 1;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mode = entry.header().mode()? & 0o777;
                told.bytes += write_file(&root, &path, mode, &mut entry, BYTES_MAX - told.bytes, progress)?;
                told.files += 1;
            }
            EntryType::Symlink => match entry.link_name()? {
                Some(target) if stays_inside(&path, &target) => links.push((path, target.into_owned())),
                _ => told.skipped += 1,
            },
            _ => told.skipped += 1,
        }
    }
    for (path, target) in &links {
        make_link(&root, path, target)?;
    }
    // A link's text alone doesn't say where it leads: other links may be on its path, from the archive or already in
    // place.
    for (path, target) in &links {
        if leads_out(&root, path, target) {
            let (directory, name) = parent(&root, path)?;
            remove(&directory, name)?;
            told.skipped += 1;
        } else {
            told.links += 1;
        }
    }
    Ok(told)
}

/// Whether a created link leads out of the tree, by the kernel's own resolution. If the target doesn't exist, the
/// rest of its path can't be checked; then only a target without `..` after a name is known to stay inside.
fn leads_out(root: &OwnedFd, path: &Path, target: &Path) -> bool {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(_) => false,
        Err(Errno::NOENT) => {
            let mut names = target.components().skip_while(|component| !matches!(component, Component::Normal(_)));
            names.any(|component| component == Component::ParentDir)
        }
        Err(_) => true,
    }
}

/// The components of a path below the destination. A path with `..` or an absolute path is an error.
fn plain(path: &Path) -> io::Result<PathBuf> {
    let mut names = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => names.push(name),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(io::Error::other(format!("the archive has a path that leads out of it: {path:?}")));
            }
        }
    }
    Ok(names)
}

/// Whether a link at this path stays inside the tree, judged by its text alone.
fn stays_inside(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(_) => depth += 1,
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

/// The entry's parent directory, opened beneath the destination without following links, and the entry's name in it.
fn parent<'a>(root: &OwnedFd, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the archive has an entry without a name"))?;
    let above = path.parent().unwrap_or(Path::new(""));
    Ok((make_directories(root, above)?, name))
}

/// Creates the missing directories of a path, one by one, and opens the last.
fn make_directories(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut at = openat2(root, ".", flags, Mode::empty(), BENEATH)?;
    for name in path.iter() {
        match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        at = openat2(&at, name, flags, Mode::empty(), BENEATH).map_err(|errno| refused(path, errno))?;
    }
    Ok(at)
}

fn write_file(
    root: &OwnedFd,
    path: &Path,
    mode: u32,
    content: &mut impl Read,
    most: u64,
    progress: &Progress,
) -> io::Result<u64> {
    let (directory, name) = parent(root, path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    remove(&directory, name)?;
    let file = openat2(&directory, name, flags, Mode::from_raw_mode(mode | 0o200), BENEATH)
        .map_err(|errno| refused(path, errno))?;
    let mut file = File::from(file);
    let mut piece = vec![0; 128 << 10];
    let mut bytes = 0;
    loop {
        let count = content.read(&mut piece)?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes += count as u64;
        if bytes > most {
            return Err(io::Error::other(format!("the archive has more than {BYTES_MAX} bytes")));
        }
        file.write_all(&piece[..count])?;
        progress.add(count as u64);
    }
}

fn make_link(root: &OwnedFd, path: &Path, target: &Path) -> io::Result<()> {
    let (directory, name) = parent(root, path)?;
    remove(&directory, name)?;
    symlinkat(target, &directory, name).map_err(|errno| refused(path, errno))
}

/// Removes an existing entry of that name, unless it is a directory.
fn remove(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(refused(Path::new(name), errno)),
    }
}

fn refused(path: &Path, errno: Errno) -> io::Error {
    let why = match errno {
        Errno::LOOP | Errno::NOTDIR => "the path exists and is not a directory".to_owned(),
        Errno::ISDIR => "the path is an existing directory".to_owned(),
        errno => io::Error::from(errno).to_string(),
    };
    io::Error::other(format!("{:?}: {why}", String::from_utf8_lossy(path.as_os_str().as_bytes())))
}

/// Opens a temporary file beside the destination, so that the file appears only when it is complete.
pub(crate) fn temporary(directory: &Path, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(CWD, directory.join(name), flags, Mode::from_raw_mode(0o600))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// An archive that a hostile sandbox could have made: names are not checked.
    fn archive(entries: &[(&str, EntryType, &str, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, kind, content, mode) in entries {
            let mut header = tar::Header::new_gnu();
            let old = header.as_old_mut();
            old.name[..name.len()].copy_from_slice(name.as_bytes());
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            if is_link {
                old.linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_size(if is_link { 0 } else { content.len() as u64 });
            header.set_cksum();
            bytes.extend_from_slice(header.as_bytes());
            if !is_link && !content.is_empty() {
                let mut block = content.as_bytes().to_vec();
                block.resize(block.len().next_multiple_of(512), 0);
                bytes.extend_from_slice(&block);
            }
        }
        bytes.extend_from_slice(&[0; 1024]);
        bytes
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("saggar-unpack-{name}-{}", std::process::id()));
            std::fs::create_dir_all(path.join("in")).unwrap();
            Self(path)
        }

        fn unpack(&self, entries: &[(&str, EntryType, &str, u32)]) -> io::Result<Unpacked> {
            unpack(archive(entries).as_slice(), &self.0.join("in"), &Progress::new("", None))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // The test directory is inside the temporary directory, so a leftover is harmless.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_tree_comes_out_without_set_id_bits() {
        let folder = Folder::new("tree");
        let told = folder
            .unpack(&[
                ("a/", EntryType::Directory, "", 0o777),
                ("a/b.sh", EntryType::Regular, "hi", 0o6755),
                ("./deep/er/c", EntryType::Regular, "", 0o644),
                ("a/link", EntryType::Symlink, "../deep/er/c", 0o777),
            ])
            .unwrap();
        assert_eq!(told, Unpacked { files: 2, directories: 1, links: 1, bytes: 2, skipped: 0 });
        let found = std::fs::metadata(folder.0.join("in/a/b.sh")).unwrap();
        assert_eq!(found.permissions().mode() & 0o7000, 0);
        assert_eq!(std::fs::read_link(folder.0.join("in/a/link")).unwrap(), Path::new("../deep/er/c"));
    }

    #[test]
    fn nothing_lands_outside() {
        let folder = Folder::new("outside");
        for name in ["../evil", "a/../../evil", "/evil"] {
            assert!(folder.unpack(&[(name, EntryType::Regular, "x", 0o644)]).is_err(), "{name}");
        }
        // An existing link is not followed.
        symlink("..", folder.0.join("in/up")).unwrap();
        assert!(folder.unpack(&[("up/evil", EntryType::Regular, "x", 0o644)]).is_err());
        // Neither is a link from the archive: links are created last.
        let told = folder.unpack(&[
            ("out", EntryType::Symlink, "..", 0o777),
            ("out/evil", EntryType::Regular, "x", 0o644),
            ("abs", EntryType::Symlink, "/etc", 0o777),
            ("a/ok/../../..", EntryType::Symlink, "x", 0o777),
        ]);
        assert!(told.is_err());
        assert!(!folder.0.join("evil").exists());
    }

    #[test]
    fn what_is_neither_file_nor_directory_stays_behind() {
        let folder = Folder::new("kinds");
        let told = folder
            .unpack(&[
                ("device", EntryType::Char, "", 0o666),
                ("pipe", EntryType::Fifo, "", 0o666),
                ("hard", EntryType::Link, "/etc/passwd", 0o666),
                ("abs", EntryType::Symlink, "/etc/passwd", 0o777),
                ("up", EntryType::Symlink, "a/../../x", 0o777),
            ])
            .unwrap();
        assert_eq!(told, Unpacked { skipped: 5, ..Unpacked::default() });
        assert_eq!(std::fs::read_dir(folder.0.join("in")).unwrap().count(), 0);
    }

    #[test]
    fn links_that_lead_out_together_or_through_one_that_was_there_stay_behind() {
        let folder = Folder::new("together");
        symlink("..", folder.0.join("in/mine")).unwrap();
        let told = folder
            .unpack(&[
                ("a/b/c/f", EntryType::Regular, "", 0o644),
                // Judged by its text, each of these links stays inside; together they lead out.
                ("a/b/c/top", EntryType::Symlink, "../../..", 0o777),
                ("out", EntryType::Symlink, "a/b/c/top/../..", 0o777),
                ("later", EntryType::Symlink, "a/b/c/top/missing/../../..", 0o777),
                ("through", EntryType::Symlink, "mine/x", 0o777),
                ("fine", EntryType::Symlink, "a/b/../b/c/f", 0o777),
                ("dangling", EntryType::Symlink, "a/not/there", 0o777),
            ])
            .unwrap();
        assert_eq!(told, Unpacked { files: 1, links: 3, skipped: 3, ..Unpacked::default() });
        for (name, is_made) in
            [("out", false), ("later", false), ("through", false), ("fine", true), ("dangling", true)]
        {
            assert_eq!(folder.0.join("in").join(name).symlink_metadata().is_ok(), is_made, "{name}");
        }
    }

    #[test]
    fn a_file_that_is_there_is_replaced_and_not_written_through() {
        let folder = Folder::new("replace");
        std::fs::write(folder.0.join("outside"), "keep").unwrap();
        symlink("../outside", folder.0.join("in/a")).unwrap();
        folder.unpack(&[("a", EntryType::Regular, "new", 0o644)]).unwrap();
        assert_eq!(std::fs::read_to_string(folder.0.join("outside")).unwrap(), "keep");
        assert_eq!(std::fs::read_to_string(folder.0.join("in/a")).unwrap(), "new");
    }
}
