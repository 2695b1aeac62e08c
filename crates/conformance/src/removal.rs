//! Removes a tree that a hostile program created: any depth, any names, without following links and without recursion.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Removes a directory with everything below it.
///
/// Subdirectories of a directory are moved up beside it before it is removed. So none is more than two levels deep when
/// it is read, and at most two are open.
pub(crate) fn remove_tree(path: &Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = rustix::fs::open(path, flags, Mode::empty())?;
    let mut moved = 0u64;
    loop {
        let entries = names(&top)?;
        if entries.is_empty() {
            break;
        }
        for (name, kind) in entries {
            if kind != FileType::Directory {
                unlinkat(&top, &name, AtFlags::empty())?;
                continue;
            }
            match unlinkat(&top, &name, AtFlags::REMOVEDIR) {
                Ok(()) => continue,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            // We may change the mode of a directory with mode 0.
            let _ = rustix::fs::chmodat(&top, &name, Mode::RWXU, AtFlags::empty());
            let below = openat(&top, &name, flags, Mode::empty())?;
            for (inner, inner_kind) in names(&below)? {
                if inner_kind == FileType::Directory {
                    moved += 1;
                    renameat(&below, &inner, &top, format!("saggar-removed-{moved}"))?;
                } else {
                    unlinkat(&below, &inner, AtFlags::empty())?;
                }
            }
            unlinkat(&top, &name, AtFlags::REMOVEDIR)?;
        }
    }
    std::fs::remove_dir(path)
}

fn names(directory: &OwnedFd) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            known => known,
        };
        found.push((name.to_owned(), kind));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_and_linked_trees_go_and_what_links_lead_to_stays() {
        let top = std::env::temp_dir().join(format!("saggar-removal-{}", std::process::id()));
        let outside = top.with_extension("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        std::fs::create_dir_all(top.join("a/b/c/d/e/f")).unwrap();
        std::fs::write(top.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, top.join("a/b/c/link")).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists() && outside.join("kept").exists());
        std::fs::remove_dir_all(&outside).unwrap();
    }
}
