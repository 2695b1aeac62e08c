//! Extended attributes: which of an image's are kept, and reading them back.
//!
//! Only `user.` attributes are kept. Those of an overlay would be believed by the kernel, file capabilities would be the
//! host's, and the rest belongs to security modules of another machine.

use std::os::fd::AsFd;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_domain::template::Dropped;

use crate::failure::{refused, shown, storage};

const CAPABILITY: &[u8] = b"security.capability";
const KEPT: &[u8] = b"user.";
const OVERLAY: &[u8] = b"user.overlay.";
/// The kernel's own maxima.
const LIST_MAX: usize = 64 << 10;
const VALUE_MAX: usize = 64 << 10;

/// Name and value.
pub(super) type Attribute = (Vec<u8>, Vec<u8>);

/// Keeps what may be kept, and counts the rest. With `None` nothing is kept: the kernel allows none on links and pipes.
pub(super) fn apply(file: Option<&impl AsFd>, attributes: &[Attribute], dropped: &mut Dropped) -> Result<(), Problem> {
    for (name, value) in attributes {
        if name == CAPABILITY {
            dropped.capabilities += 1;
            continue;
        }
        match file {
            Some(file) if name.starts_with(KEPT) && !name.starts_with(OVERLAY) && !name.contains(&0) => {
                fsetxattr(file, name.as_slice(), value, XattrFlags::empty()).map_err(|errno| unkept(name, errno))?;
            }
            _ => dropped.attributes += 1,
        }
    }
    Ok(())
}

/// How much one file can have depends on its file system, which says the same as a full disk.
fn unkept(name: &[u8], errno: Errno) -> Problem {
    let name = shown(name);
    match errno {
        Errno::NOSPC | Errno::TOOBIG | Errno::RANGE => refused(
            format!("the extended attribute {name} is too large for the data directory's disk"),
            "make it smaller, use a data directory on another file system, or free space if the disk is full",
        ),
        errno => storage(&format!("the extended attribute {name} can't be written"), errno),
    }
}

/// The attributes of a stored file that a copy of it has too: all but those of an overlay.
pub(super) fn kept(file: impl AsFd) -> Result<Vec<Attribute>, Errno> {
    let mut attributes = read(file)?;
    attributes.retain(|(name, _)| !name.starts_with(OVERLAY));
    Ok(attributes)
}

/// Removes the same.
pub(super) fn clear(file: impl AsFd) -> Result<(), Errno> {
    kept(&file)?.iter().try_for_each(|(name, _)| fremovexattr(&file, name.as_slice()))
}

/// All `user.` attributes of a file, those of an overlay included, sorted by name.
pub(super) fn read(file: impl AsFd) -> Result<Vec<Attribute>, Errno> {
    // Most files have none or few.
    let mut few = [0; 512];
    let mut many = Vec::new();
    let list = match flistxattr(&file, &mut few) {
        Ok(length) => &few[..length],
        Err(Errno::RANGE) => {
            many.resize(LIST_MAX, 0);
            let length = flistxattr(&file, &mut many[..])?;
            &many[..length]
        }
        Err(errno) => return Err(errno),
    };
    let mut attributes = Vec::new();
    for name in list.split(|byte| *byte == 0).filter(|name| name.starts_with(KEPT)) {
        let mut value = vec![0; VALUE_MAX];
        let length = fgetxattr(&file, name, &mut value[..])?;
        value.truncate(length);
        attributes.push((name.to_vec(), value));
    }
    attributes.sort();
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_that_is_too_large_is_named() {
        // No file system takes a name of this length.
        let name = [KEPT, &[b'n'; 300]].concat();
        let file = std::fs::File::open("/dev/null").unwrap();
        let problem = apply(Some(&file), &[(name, Vec::new())], &mut Dropped::default()).unwrap_err();
        let begin = format!("the extended attribute \"user.{}", "n".repeat(100));
        assert!(problem.message.starts_with(&begin) && problem.message.contains("too large"), "{}", problem.message);
        assert!(problem.help.starts_with("make it smaller"), "{}", problem.help);
    }
}
