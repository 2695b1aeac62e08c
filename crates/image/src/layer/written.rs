//! Writes one layer of a build below an empty directory, and computes its digest.

use std::os::fd::{BorrowedFd, OwnedFd};

use saggar_domain::Problem;
use saggar_domain::template::{Amount, BuiltInRoot, LayerId, LayerRecord};
use saggar_sandbox::RootChanges;

use super::below::Below;
use super::changes::{Withheld, find};
use super::content::GoOn;
use super::copy::{Placement, Selection, make_directory};
use super::spool::{Spool, Spooled};
use super::tree_digest::{Contents, TreeDigest};
use super::view::View;
use super::writer::{HOSTILE, Writer};
use super::{Ownership, merge};
use crate::failure::storage;
use crate::limits::Budget;

/// Hashed with the digest of the files: no archive has this id, so it can't be the id of an imported layer.
const FORM: &str = "saggar.built-layer/v1";

/// What a layer is made of.
pub(crate) enum Content<'a> {
    /// What a step changed in its image.
    Changes(&'a RootChanges),
    /// Several layers, the topmost first.
    Merged(&'a [BorrowedFd<'a>]),
    Copies {
        from: &'a View,
        selection: &'a Selection,
        placement: &'a Placement<'a>,
    },
    /// A directory, by its absolute path.
    Directory(&'a str),
}

/// A layer that is complete but for its record.
pub(crate) enum Written {
    Layer(LayerRecord),
    /// Nothing differs from the layers below.
    Nothing,
}

/// A layer whose files are there, without their times and its digest.
pub(crate) struct Copied {
    writer: Writer,
    ownership: Ownership,
    is_changed: bool,
}

/// What a sandbox changed, read while it stands still. [`Still::read`] is all that happens meanwhile.
pub(crate) struct Still<'a> {
    below: &'a View,
    withheld: Withheld,
    spool: Spool<'a>,
}

impl<'a> Still<'a> {
    /// Everything that can be done before. `place` is a directory that nobody else uses.
    pub(crate) fn prepare(root: Option<BuiltInRoot>, below: &'a View, place: BorrowedFd<'a>) -> Result<Self, Problem> {
        Ok(Self { below, withheld: Withheld::new(root, below)?, spool: Spool::new(place) })
    }

    pub(crate) fn read(
        mut self,
        changes: &RootChanges,
        budget: &mut Budget,
        go_on: GoOn<'_>,
    ) -> Result<Spooled, Problem> {
        let found = find(changes, &self.withheld, self.below, &mut self.spool, budget, go_on).map_err(of_a_step)?;
        self.spool.finish(found)
    }
}

/// Writes what was read. On an error the directory holds a part of it.
pub(crate) fn write_spooled(
    spooled: Spooled,
    tree: OwnedFd,
    budget: &mut Budget,
    go_on: GoOn<'_>,
) -> Result<Copied, Problem> {
    let ownership = Ownership::here();
    let mut writer = Writer::new(tree, Below::default(), ownership)?;
    let is_changed = spooled.write(&mut writer, budget, go_on).map_err(of_a_step)?;
    Ok(Copied { writer, ownership, is_changed })
}

/// On an error the directory holds a part of it.
pub(crate) fn copy(
    content: &Content<'_>,
    below: &View,
    tree: OwnedFd,
    budget: &mut Budget,
    go_on: GoOn<'_>,
) -> Result<Copied, Problem> {
    let ownership = Ownership::here();
    let mut writer = Writer::new(tree, Below::default(), ownership)?;
    let is_changed = match content {
        Content::Changes(changes) => {
            let withheld = Withheld::new(None, below)?;
            let found = find(changes, &withheld, below, &mut writer, budget, go_on).map_err(of_a_step)?;
            writer.leave_out(found.dropped);
            found.is_changed
        }
        Content::Merged(layers) => merge::write(layers, &mut writer, budget, go_on).map(|()| true)?,
        Content::Copies { from, selection, placement } => {
            selection.write(from, below, placement, &mut writer, budget, go_on).map_err(of_a_step)?;
            true
        }
        Content::Directory(path) => make_directory(below, path, &mut writer, budget).map_err(of_a_step)?,
    };
    Ok(Copied { writer, ownership, is_changed })
}

impl Copied {
    /// Needs nothing but the directory: what was copied may change now.
    pub(crate) fn finish(mut self) -> Result<Written, Problem> {
        if !self.is_changed {
            return Ok(Written::Nothing);
        }
        self.writer.finish()?;
        let ownership = self.ownership;
        let found = TreeDigest::of(self.writer.root(), Contents::Known(&self.writer.contents), ownership)
            .map_err(|error| storage("a layer can't be read back", error))?;
        let id = LayerId::of(format!("{FORM}\n{}\n{}", ownership.record(), found.digest).as_bytes());
        let amount = Amount { entries: found.entries, bytes: found.bytes };
        let dropped = self.writer.dropped;
        Ok(Written::Layer(LayerRecord::new(id, ownership.record(), found.digest, amount, amount, dropped)))
    }
}

/// The writer's advice is about images of strangers. What it writes here comes from a step of the user's own.
fn of_a_step(problem: Problem) -> Problem {
    match problem.help == HOSTILE {
        true => Problem { help: "correct the step: two of its sources may have the same name".to_owned(), ..problem },
        false => problem,
    }
}
