//! Writing an archive: POSIX headers, with extended ones where a name, a link or a size doesn't fit.

use super::header::{self, BLOCK, Fields, NAME_LEN, SIZE_MAX};
use super::pax;

/// What is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Link,
}

/// An entry to be packed.
pub(crate) struct Packed<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Of a file.
    pub(crate) size: u64,
    /// In seconds since 1970.
    pub(crate) modified: u64,
    /// Of a link.
    pub(crate) target: &'a [u8],
}

/// What comes before an entry's content.
pub(crate) fn entry(packed: &Packed<'_>) -> Vec<u8> {
    let mut name = packed.path.to_vec();
    if packed.kind == Kind::Directory && !name.ends_with(b"/") {
        name.push(b'/');
    }
    let mut extended = Vec::new();
    if name.len() > NAME_LEN || std::str::from_utf8(&name).is_err() {
        pax::write(&mut extended, "path", &name);
    }
    if packed.target.len() > NAME_LEN {
        pax::write(&mut extended, "linkpath", packed.target);
    }
    let size = if packed.kind == Kind::File { packed.size } else { 0 };
    if size > SIZE_MAX {
        pax::write(&mut extended, "size", size.to_string().as_bytes());
    }
    let flag = match packed.kind {
        Kind::File => b'0',
        Kind::Directory => b'5',
        Kind::Link => b'2',
    };
    let mut out = Vec::with_capacity(BLOCK * 4);
    let fields = Fields {
        name: &name,
        link: packed.target,
        mode: packed.mode,
        uid: packed.uid,
        gid: packed.gid,
        size,
        modified: packed.modified,
        flag,
    };
    if !extended.is_empty() {
        let about = Fields { name: b"PaxHeader", link: b"", size: extended.len() as u64, flag: b'x', ..fields };
        out.extend_from_slice(&header::write(&about));
        out.extend_from_slice(&extended);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.extend_from_slice(&header::write(&fields));
    out
}

/// What comes after the content of a file of this size.
pub(crate) fn padding(size: u64) -> &'static [u8] {
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    let over = (size % BLOCK as u64) as usize;
    &ZEROS[..if over == 0 { 0 } else { BLOCK - over }]
}

/// What comes after the last entry.
pub(crate) fn end_of_archive() -> &'static [u8] {
    &[0; 2 * BLOCK]
}
