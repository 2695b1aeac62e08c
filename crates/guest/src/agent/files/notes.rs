//! A file's notes: extended attributes with a prefix.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;

use saggar_guest::{FileReply, FileStage, METADATA_MAX, METADATA_NAME_MAX, METADATA_VALUE_MAX, MetadataEntry};

use super::session::{Session, Trouble, c_path};
use crate::agent::sys::{self, Errno, check};

/// The prefix that E2B's agent uses: programs inside read and set attributes by this name.
const PREFIX: &[u8] = b"user.e2b.";

/// The kernel's maximum length of a list of names.
const NAMES_MAX: usize = 64 * 1024;

pub(super) fn notes(session: &mut Session, path: Vec<u8>, set: Option<Vec<MetadataEntry>>) -> Result<(), Trouble> {
    let path = c_path(path)?;
    let names = names(&path).map_err(Trouble::at(FileStage::Find))?;
    match set {
        None => {
            let notes = names.iter().map(|name| note(&path, name)).collect::<Result<Vec<_>, _>>();
            let notes =
                notes.and_then(|notes| if notes.len() <= METADATA_MAX { Ok(notes) } else { Err(Errno(libc::E2BIG)) });
            session.reply(&FileReply::Metadata(notes.map_err(Trouble::at(FileStage::Attributes))?))
        }
        Some(set) => {
            replace(&path, &names, &set).map_err(Trouble::at(FileStage::Attributes))?;
            session.reply(&FileReply::Done)
        }
    }
}

/// The names of a file's notes, without the prefix.
fn names(path: &CStr) -> Result<Vec<Vec<u8>>, Errno> {
    let mut list = vec![0; NAMES_MAX];
    let length = sys::retry(|| {
        // SAFETY: the path is a C string; the pointer and the length are those of one writable slice.
        unsafe { libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) }
    });
    match length {
        Ok(length) => {
            let names = list[..length].split(|byte| *byte == 0);
            Ok(names.filter_map(|name| name.strip_prefix(PREFIX)).map(<[u8]>::to_vec).collect())
        }
        // The filesystem has no attributes.
        Err(Errno(libc::ENOTSUP)) => Ok(Vec::new()),
        Err(errno) => Err(errno),
    }
}

fn note(path: &CStr, name: &[u8]) -> Result<MetadataEntry, Errno> {
    if name.is_empty() || name.len() > METADATA_NAME_MAX {
        return Err(Errno(libc::E2BIG));
    }
    let attribute = attribute(name);
    let mut value = vec![0; METADATA_VALUE_MAX];
    let length = sys::retry(|| {
        // SAFETY: path and name are C strings; the pointer and the length are those of one writable slice.
        unsafe { libc::getxattr(path.as_ptr(), attribute.as_ptr().cast(), value.as_mut_ptr().cast(), value.len()) }
    });
    // A value longer than a note was not set here.
    let length = length.map_err(|errno| if errno.0 == libc::ERANGE { Errno(libc::E2BIG) } else { errno })?;
    value.truncate(length);
    if is_padded(&value) {
        value.pop();
    }
    Ok(MetadataEntry { name: name.to_vec(), value })
}

fn replace(path: &CStr, names: &[Vec<u8>], set: &[MetadataEntry]) -> Result<(), Errno> {
    for entry in set {
        let (attribute, value) = (attribute(&entry.name), padded(&entry.value));
        // SAFETY: path and name are C strings; the pointer and the length are those of one readable slice.
        check(unsafe {
            libc::setxattr(path.as_ptr(), attribute.as_ptr().cast(), value.as_ptr().cast(), value.len(), 0)
        })?;
    }
    for name in names.iter().filter(|name| !set.iter().any(|entry| entry.name == **name)) {
        // SAFETY: path and name are C strings.
        check(unsafe { libc::removexattr(path.as_ptr(), attribute(name).as_ptr().cast()) })?;
    }
    Ok(())
}

/// The filter refuses attributes of the size of an access control list with many entries, because it can't see which
/// attribute is set (`large-acls`, in `crates/jail/src/seccomp/rules.rs`). A note of such a size gets a NUL at its end.
/// Notes are text: one that ends in its own NUL may lose it.
fn padded(value: &[u8]) -> Vec<u8> {
    let mut value = value.to_vec();
    if value.len() > LIST_BYTES_MAX && value.len() % 8 == 4 {
        value.push(0);
    }
    value
}

fn is_padded(value: &[u8]) -> bool {
    value.len() > LIST_BYTES_MAX + 1 && value.len() % 8 == 5 && value.last() == Some(&0)
}

/// The largest access control list that the filter allows.
const LIST_BYTES_MAX: usize = 228;

/// The attribute's name, with a NUL at its end; a note's name contains none.
fn attribute(name: &[u8]) -> Vec<u8> {
    [PREFIX, name, b"\0"].concat()
}
