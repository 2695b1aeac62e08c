//! Imports an image as a template: all of it, or nothing.

use saggar_domain::template::{Amount, Dropped, Image, LayerEntry, LayerId, LayerRecord, Manifest, TemplateId};
use saggar_domain::{Code, Problem, TemplateName, Timestamp};

use crate::blob::LayerStream;
use crate::failure::{about, refused};
use crate::layer::{Ownership, unpack};
use crate::limits::{Budget, Limits};
use crate::registry::RegistryOptions;
use crate::source::{FoundImage, FoundLayer, Source};
use crate::store::{Collected, Import, Store};

/// Names that stand for what is built in.
const BUILT_IN: &[&str] = &["base", "host"];

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
    if BUILT_IN.contains(&request.name.name()) {
        return Err(Problem::new(
            Code::InvalidValue,
            format!("the name {:?} is taken by a template that is built in", request.name.as_str()),
            "choose another with --name",
        ));
    }
    let image = FoundImage::open(&request.source, request.image.as_deref(), &request.registry)?;
    let (collected, not_collected) = match store.collect() {
        Ok(collected) => (collected, None),
        Err(problem) => (None, Some(problem)),
    };
    let import = store.begin()?;
    let mut budget = Budget::new(request.limits);
    let mut entries = Vec::with_capacity(image.layers.len());
    let mut new: Vec<LayerId> = Vec::new();
    let mut dropped = Dropped::default();
    let count = image.layers.len();
    for (index, layer) in image.layers.iter().enumerate() {
        let number = index + 1;
        let record = match store.layer(&layer.id)? {
            // A layer may occur twice in one image.
            _ if new.contains(&layer.id) => None,
            record => record,
        };
        let is_shared = record.is_some() || new.contains(&layer.id);
        progress(Progress::Layer { number, count, id: layer.id.clone(), is_shared });
        let amount = match (record, entries.iter().find(|entry: &&LayerEntry| entry.id == layer.id)) {
            (Some(record), _) => record.archive,
            (None, Some(entry)) => Amount { bytes: entry.bytes, entries: entry.entries },
            (None, None) => {
                let written = write_layer(&import, &image, layer, &mut budget)
                    .map_err(|problem| about(&format!("layer {number} of {count}, {}", layer.id), problem))?;
                add(&mut dropped, written.dropped);
                new.push(layer.id.clone());
                written.archive
            }
        };
        entries.push(LayerEntry { id: layer.id.clone(), bytes: amount.bytes, entries: amount.entries });
    }
    progress(Progress::Completing);
    let shared_layers = (count - new.len()) as u64;
    let FoundImage { source, config, config_digest, .. } = image;
    let described =
        Image { source, config: config_digest, platform: config.platform.to_string(), created: config.created };
    let manifest = Manifest::new(entries, config.defaults, described)
        .map_err(|why| refused(format!("the image can't be a template: {why}"), "build the image anew"))?;
    let replaced = import.commit(&new, &manifest, &request.name, request.now)?;
    Ok(Imported { id: manifest.id(), manifest, shared_layers, dropped, replaced, collected, not_collected })
}

fn write_layer(
    import: &Import<'_>,
    image: &FoundImage,
    layer: &FoundLayer,
    budget: &mut Budget,
) -> Result<LayerRecord, Problem> {
    let (bytes_max, too_large) = budget.archive_max();
    let blob = image.open_layer(layer, bytes_max)?;
    let tree = import.layer(&layer.id)?;
    let ownership = Ownership::here();
    let mut stream = LayerStream::new(blob, bytes_max, too_large);
    let unpacked = unpack(&mut stream, tree, ownership, budget)?;
    let (id, bytes) = stream.finish();
    if id != layer.id {
        return Err(refused(
            format!("its content has another digest when uncompressed: {id}"),
            "fetch or build the image anew; if it stays like this, don't trust where it came from",
        ));
    }
    budget.archive(bytes)?;
    let record = LayerRecord::new(
        id,
        ownership.record(),
        unpacked.tree.digest,
        Amount { entries: unpacked.archive_entries, bytes },
        Amount { entries: unpacked.tree.entries, bytes: unpacked.tree.bytes },
        unpacked.dropped,
    );
    import.finish_layer(&record)?;
    Ok(record)
}

fn add(sum: &mut Dropped, more: Dropped) {
    sum.devices += more.devices;
    sum.capabilities += more.capabilities;
    sum.attributes += more.attributes;
    sum.set_ids += more.set_ids;
    sum.owners += more.owners;
}
