//! Imports an exported snapshot: all of it, or nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use saggar_domain::template::{ContentDigest, Image, ImageSource, Manifest};
use saggar_domain::{Problem, SnapshotFacts, SnapshotId, SnapshotRecord};

use super::stack::Layers;
use super::stacked;
use crate::failure::refused;
use crate::limits::Limits;
use crate::registry::RegistryOptions;
use crate::source::{FoundImage, Source};
use crate::store::Store;

/// A file that a snapshot was exported to.
pub struct SnapshotArchive {
    pub source: Source,
    /// What the export said its digest is, if the caller knows.
    pub digest: Option<ContentDigest>,
    pub limits: Limits,
    /// Ends the import early, with an error and nothing visible, once it is set.
    pub stop: Arc<AtomicBool>,
}

impl Store {
    /// Imports a snapshot under a new id. Of the facts, `bytes`, `entries` and labels that aren't given come from the archive.
    pub fn import_snapshot(
        &self,
        id: SnapshotId,
        archive: &SnapshotArchive,
        mut facts: SnapshotFacts,
    ) -> Result<SnapshotRecord, Problem> {
        if let Some(name) = &facts.name {
            self.check_alias(name)?;
        }
        let image = FoundImage::open(&archive.source, None, &RegistryOptions::default())?;
        let (Some(note), Some(digest)) = (image.config.snapshot.clone(), image.digest.clone()) else {
            return Err(refused(
                "it is not an exported snapshot",
                "export one with `saggar snapshot export`; an image becomes a template with `saggar template import`",
            ));
        };
        if let Some(expected) = archive.digest.as_ref().filter(|expected| **expected != digest) {
            return Err(refused(
                format!("the snapshot has another digest: it is {digest}, and {expected} was expected"),
                "export it again; if it stays like this, don't trust where it came from",
            ));
        }
        let import = self.begin()?;
        let stack = stacked(&import, &image, archive.limits, &archive.stop, &mut |_| {})?;
        let Layers { entries, new, .. } = stack.finish();
        (facts.bytes, facts.entries) = entries.iter().fold((0u64, 0u64), |(bytes, count), layer| {
            (bytes.saturating_add(layer.bytes), count.saturating_add(layer.entries))
        });
        if facts.labels.is_empty() {
            facts.labels = note.labels;
        }
        let FoundImage { config, config_digest, .. } = image;
        let wrong =
            |why: String| refused(format!("the archive can't be a snapshot: {why}"), "export the snapshot again");
        let mut defaults = config.defaults;
        (defaults.start, defaults.ready) = (note.start, note.ready);
        let defaults = defaults.check().map_err(wrong)?;
        let described = Image {
            source: ImageSource::Snapshot,
            config: config_digest,
            platform: config.platform.to_string(),
            created: config.created,
        };
        let manifest = Manifest::new(entries, defaults, described).map_err(wrong)?.over(note.root);
        import.commit_snapshot(&new, id, facts, &manifest)
    }
}
