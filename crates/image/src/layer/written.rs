//! Writes one layer of a build below an empty directory, and computes its digest.

use std::os::fd::OwnedFd;

use saggar_domain::Problem;
use saggar_domain::template::{Amount, LayerId, LayerRecord};
use saggar_sandbox::RootChanges;

use super::below::Below;
use super::content::GoOn;
use super::copy::{Placement, Selection, make_directory};
use super::tree_digest::{Contents, TreeDigest};
use super::view::View;
use super::writer::{HOSTILE, Writer};
use super::{Ownership, changes};
use crate::failure::storage;
use crate::limits::Budget;

/// Hashed with the digest of the files: no archive has this id, so it can't be the id of an imported layer.
const FORM: &str = "saggar.built-layer/v1";

/// What a layer is made of.
pub(crate) enum Content<'a> {
    /// What a sandbox changed.
    Changes(&'a RootChanges),
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

/// On an error the directory holds a part of it.
pub(crate) fn write(
    content: &Content<'_>,
    below: &View,
    tree: OwnedFd,
    budget: &mut Budget,
    go_on: GoOn<'_>,
) -> Result<Written, Problem> {
    let ownership = Ownership::here();
    let mut writer = Writer::new(tree, Below::default(), ownership)?;
    let is_changed = match content {
        Content::Changes(changes) => changes::write(changes, below, &mut writer, budget, go_on).map_err(of_a_step)?,
        Content::Copies { from, selection, placement } => {
            selection.write(from, below, placement, &mut writer, budget, go_on).map_err(of_a_step)?;
            true
        }
        Content::Directory(path) => make_directory(below, path, &mut writer, budget).map_err(of_a_step)?,
    };
    if !is_changed {
        return Ok(Written::Nothing);
    }
    writer.finish()?;
    let found = TreeDigest::of(writer.root(), Contents::Known(&writer.contents), ownership)
        .map_err(|error| storage("a layer can't be read back", error))?;
    let id = LayerId::of(format!("{FORM}\n{}\n{}", ownership.record(), found.digest).as_bytes());
    let amount = Amount { entries: found.entries, bytes: found.bytes };
    Ok(Written::Layer(LayerRecord::new(id, ownership.record(), found.digest, amount, amount, writer.dropped)))
}

/// The writer's advice is about images of strangers. What it writes here comes from a step of the user's own.
fn of_a_step(problem: Problem) -> Problem {
    match problem.help == HOSTILE {
        true => Problem { help: "correct the step: two of its sources may have the same name".to_owned(), ..problem },
        false => problem,
    }
}
