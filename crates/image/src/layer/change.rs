//! One entry of what a sandbox changed, and how it becomes one of a layer.
//!
//! Whoever finds changes hands them on one by one: a dead sandbox's go into the layer at once, those of one that only stands still into a
//! [`Spool`](super::spool::Spool) first. Both end in [`Change::apply`], so the layers are the same.

use std::fs::File;

use saggar_domain::Problem;

use super::attributes::Attribute;
use super::content::{self, GoOn, Target};
use super::entry_path::EntryPath;
use super::spool::Stored;
use super::writer::Writer;
use crate::failure::refused;
use crate::limits::Budget;
use crate::tar::{Entry, Kind};

/// What an entry is to become.
pub(super) enum Change<'a> {
    Directory {
        facts: Facts,
        is_opaque: bool,
    },
    /// Something of a lower layer is gone.
    Whiteout,
    Link {
        facts: Facts,
        target: Vec<u8>,
    },
    Fifo {
        facts: Facts,
    },
    HardLink {
        first: Vec<u8>,
    },
    File {
        facts: Facts,
        content: Source<'a>,
    },
}

/// What is kept of an entry beside its content. Its ids are those inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: (i64, u32),
    pub(super) attributes: Vec<Attribute>,
}

/// Where the content of a file is.
pub(super) enum Source<'a> {
    File { file: &'a File, size: u64 },
    Bytes(&'a [u8]),
    Spooled { from: Stored<'a>, size: u64 },
}

impl Source<'_> {
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::File { size, .. } | Self::Spooled { size, .. } => *size,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// What is in it, with the places: ascending, without holes.
    pub(super) fn pieces(
        self,
        go_on: GoOn<'_>,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        match self {
            Self::File { file, size } => content::pieces(file, size, go_on, each),
            Self::Bytes(bytes) => each(0, bytes),
            Self::Spooled { mut from, .. } => from.pieces(each),
        }
    }
}

/// Who takes changes, in the order in which a layer is written.
pub(super) trait Sink {
    fn put(&mut self, path: &[u8], change: Change<'_>, budget: &mut Budget, go_on: GoOn<'_>) -> Result<(), Problem>;
}

impl Sink for Writer {
    fn put(&mut self, path: &[u8], change: Change<'_>, budget: &mut Budget, go_on: GoOn<'_>) -> Result<(), Problem> {
        change.apply(path, self, budget, go_on)
    }
}

impl Change<'_> {
    pub(super) fn apply(
        self,
        path: &[u8],
        writer: &mut Writer,
        budget: &mut Budget,
        go_on: GoOn<'_>,
    ) -> Result<(), Problem> {
        let place = parse(path)?;
        match self {
            Change::Directory { facts, is_opaque } => {
                writer.directory(&place, &facts.into(), budget)?;
                if is_opaque { writer.opaque(&place) } else { Ok(()) }
            }
            Change::Whiteout => writer.whiteout(&place, budget),
            Change::Link { facts, target } => writer.link(&place, &target, &facts.into(), budget),
            Change::Fifo { facts } => writer.fifo(&place, &facts.into(), budget),
            Change::HardLink { first } => writer.hard_link(&place, &first, budget),
            Change::File { facts, content } => {
                let size = content.size();
                let mut target = Target::new(writer.file(&place, budget)?);
                content.pieces(go_on, |at, bytes| target.put(at, bytes, go_on))?;
                let (target, digest) = target.finish(size, go_on)?;
                writer.finish_file(&target, &facts.into(), digest)
            }
        }
    }
}

impl From<Facts> for Entry {
    fn from(facts: Facts) -> Self {
        let Facts { mode, uid, gid, modified, attributes } = facts;
        Self {
            path: Vec::new(),
            kind: Kind::Directory,
            mode,
            uid: uid.into(),
            gid: gid.into(),
            modified,
            attributes,
            attributes_unread: 0,
        }
    }
}

pub(super) fn parse(path: &[u8]) -> Result<EntryPath, Problem> {
    EntryPath::parse(path).map_err(|why| refused(format!("it {why}"), "let the step write fewer levels of directories"))
}
