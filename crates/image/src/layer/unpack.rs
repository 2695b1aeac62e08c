//! Unpacks one layer: reads its archive, writes its entries, and computes the digest of what was written.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use saggar_domain::Problem;
use saggar_domain::template::{Dropped, Taken};
use sha2::{Digest, Sha256};

use super::Ownership;
use super::below::Below;
use super::content::GoOn;
use super::entry_path::EntryPath;
use super::tree_digest::{Contents, TreeDigest};
use super::writer::Writer;
use crate::blob::problem_of;
use crate::failure::{about, refused, shown, storage};
use crate::limits::Budget;
use crate::tar::{Archive, Entry, Input, Kind, Segment, TarError};

/// Read and written at once.
const CHUNK: usize = 128 << 10;

/// What a layer turned out to be.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Entries of the archive.
    pub(crate) archive_entries: u64,
    /// Of what is on disk.
    pub(crate) tree: TreeDigest,
    pub(crate) dropped: Dropped,
    pub(crate) taken: Taken,
    pub(crate) is_bottom: bool,
}

/// Writes an archive below an empty directory. `below` is what the layers below have. On an error the directory holds a part of it.
pub(crate) fn unpack(
    input: impl Input,
    tree: OwnedFd,
    below: Below,
    ownership: Ownership,
    budget: &mut Budget,
) -> Result<Unpacked, Problem> {
    let mut archive = Archive::new(input);
    let mut writer = Writer::new(tree, below, ownership)?;
    let mut buffer = vec![0; CHUNK];
    let mut archive_entries = 0;
    while let Some(entry) = archive.next().map_err(unreadable)? {
        archive_entries += 1;
        budget.entry(entry.path.len())?;
        write(&mut archive, &mut writer, &entry, budget, &mut buffer)
            .map_err(|problem| about(&format!("entry {}", shown(&entry.path)), problem))?;
    }
    archive.finish().map_err(unreadable)?;
    writer.finish()?;
    let tree = TreeDigest::of(writer.root(), Contents::Known(&writer.contents), ownership)
        .map_err(|error| storage("a layer can't be read back", error))?;
    let (taken, is_bottom) = (writer.taken(), writer.is_bottom());
    Ok(Unpacked { archive_entries, tree, dropped: writer.dropped, taken, is_bottom })
}

fn write<R: Input>(
    archive: &mut Archive<R>,
    writer: &mut Writer,
    entry: &Entry,
    budget: &mut Budget,
    buffer: &mut [u8],
) -> Result<(), Problem> {
    let path = EntryPath::parse(&entry.path).map_err(|why| {
        refused(format!("it {why}"), "the image is malformed or hostile: don't use it, or build it anew")
    })?;
    if writer.mark(&path, budget)? {
        return Ok(());
    }
    match &entry.kind {
        Kind::Directory => writer.directory(&path, entry, budget),
        Kind::File { size, segments } => {
            budget.content(*size)?;
            let file = File::from(writer.file(&path, budget)?);
            let (file, digest) = fill(archive, file, *size, segments.as_deref(), buffer)?;
            writer.finish_file(&file, entry, digest)
        }
        Kind::Link { target } => writer.link(&path, target, entry, budget),
        Kind::HardLink { target } => writer.hard_link(&path, target, budget),
        Kind::Fifo => writer.fifo(&path, entry, budget),
        // The sandbox has its own devices; and a device 0/0 would be a whiteout.
        Kind::Device => {
            writer.dropped.devices += 1;
            Ok(())
        }
    }
}

/// Writes a file's data, and leaves holes where the archive has them.
fn fill<R: Input>(
    archive: &mut Archive<R>,
    mut file: File,
    size: u64,
    segments: Option<&[Segment]>,
    buffer: &mut [u8],
) -> Result<(OwnedFd, [u8; 32]), Problem> {
    let fail = |error: std::io::Error| storage("a layer can't be written", error);
    let mut hash = Sha256::new();
    let whole = [Segment { offset: 0, length: size }];
    let mut at = 0;
    for segment in segments.unwrap_or(&whole) {
        if segment.offset > at {
            hash_zeroes(&mut hash, segment.offset - at, buffer, &|| Ok(()))?;
            file.seek(SeekFrom::Start(segment.offset)).map_err(fail)?;
        }
        at = segment.offset;
        let end = segment.offset + segment.length;
        while at < end {
            let most = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            let count = archive.data(&mut buffer[..most]).map_err(unreadable)?;
            if count == 0 {
                return Err(refused("a file is shorter than its header says", "fetch or build the image anew"));
            }
            hash.update(&buffer[..count]);
            file.write_all(&buffer[..count]).map_err(fail)?;
            at += count as u64;
        }
    }
    if at < size {
        hash_zeroes(&mut hash, size - at, buffer, &|| Ok(()))?;
        file.set_len(size).map_err(fail)?;
    }
    Ok((file.into(), hash.finalize().into()))
}

/// A hole costs whoever made it nothing, and takes us as long as data.
pub(super) fn hash_zeroes(
    hash: &mut Sha256,
    mut count: u64,
    buffer: &mut [u8],
    go_on: GoOn<'_>,
) -> Result<(), Problem> {
    buffer.fill(0);
    while count > 0 {
        go_on()?;
        let most = buffer.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        hash.update(&buffer[..most]);
        count -= most as u64;
    }
    Ok(())
}

/// An error of the reader below an archive carries the problem that it found, such as a wrong digest.
fn unreadable(error: TarError) -> Problem {
    match error {
        TarError::Read(error) => problem_of(error),
        malformed @ (TarError::Malformed(..) | TarError::Truncated(_)) => {
            refused(malformed.to_string(), "fetch or build the image anew")
        }
    }
}
