//! Imports an image as a template: all of it, or nothing.

mod snapshot;
mod stack;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use saggar_domain::template::{Dropped, Image, LayerId, Manifest, TemplateId};
use saggar_domain::{Problem, TemplateName, Timestamp};

use crate::failure::{about, refused};
use crate::limits::{Budget, Limits};
use crate::registry::RegistryOptions;
use crate::source::{FoundImage, Source};
use crate::store::{Collected, Import, Store, check_free};
pub use snapshot::SnapshotArchive;
use stack::{Layers, Stack};

/// What to import, and how.
#[derive(Clone)]
pub struct Request {
    pub source: Source,
    pub name: TemplateName,
    /// Which of several images in a layout or an archive.
    pub image: Option<String>,
    pub limits: Limits,
    pub registry: RegistryOptions,
    /// Recorded with the name.
    pub now: Timestamp,
    /// Ends the import early, with an error and nothing visible, once it is set.
    pub stop: Arc<AtomicBool>,
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    pub id: TemplateId,
    pub manifest: Manifest,
    /// Layers that the store had already.
    pub shared_layers: u64,
    /// What was left out of the others.
    pub dropped: Dropped,
    /// Where the name led before, if elsewhere.
    pub replaced: Option<TemplateId>,
    /// What was removed of earlier imports; `None` if another import is in progress, or if it failed.
    pub collected: Option<Collected>,
    /// Why nothing could be removed of earlier imports. The import itself doesn't depend on it.
    pub not_collected: Option<Problem>,
}

/// How far an import is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A layer begins; they are counted from 1.
    Layer { number: usize, count: usize, id: LayerId, is_shared: bool },
    /// Everything is written, and is made durable.
    Completing,
}

/// Imports an image, and gives it a name.
pub fn import(store: &Store, request: &Request, progress: &mut dyn FnMut(Progress)) -> Result<Imported, Problem> {
    check_free(&request.name)?;
    let image = FoundImage::open(&request.source, request.image.as_deref(), &request.registry)?;
    if image.config.snapshot.as_ref().is_some_and(|note| note.root.is_some()) {
        return Err(refused(
            "it is a snapshot of a sandbox of the built-in template, and has only what the sandbox changed",
            "import it with `saggar snapshot import`",
        ));
    }
    let (collected, not_collected) = match store.collect() {
        Ok(collected) => (collected, None),
        Err(problem) => (None, Some(problem)),
    };
    let import = store.begin()?;
    let stack = stacked(&import, &image, request.limits, &request.stop, progress)?;
    progress(Progress::Completing);
    let Layers { entries, new, dropped, shared_layers } = stack.finish();
    let FoundImage { source, config, config_digest, .. } = image;
    let described =
        Image { source, config: config_digest, platform: config.platform.to_string(), created: config.created };
    let manifest = Manifest::new(entries, config.defaults, described)
        .map_err(|why| refused(format!("the image can't be a template: {why}"), "build the image anew"))?;
    let replaced = import.commit(&new, &manifest, &request.name, request.now)?;
    Ok(Imported { id: manifest.id(), manifest, shared_layers, dropped, replaced, collected, not_collected })
}

/// Finds or writes all layers.
fn stacked<'a>(
    import: &'a Import<'a>,
    image: &'a FoundImage,
    limits: Limits,
    stop: &'a Arc<AtomicBool>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Stack<'a>, Problem> {
    let mut stack = Stack::new(import, image, Budget::new(limits), stop);
    let count = image.layers.len();
    for (index, layer) in image.layers.iter().enumerate() {
        let number = index + 1;
        stack
            .add(layer, |is_shared| progress(Progress::Layer { number, count, id: layer.id.clone(), is_shared }))
            .map_err(|problem| about(&format!("layer {number} of {count}, {}", layer.id), problem))?;
    }
    Ok(stack)
}
