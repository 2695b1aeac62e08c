//! The layers of one image, from the bottom up: each is found in the store or written.
//!
//! A stored layer is used again only if it is undamaged, if it is what this stack needs at this place, and if its blob was
//! once seen to have that content. Otherwise an image could be given files that its own blobs don't have.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use saggar_domain::Problem;
use saggar_domain::template::{Amount, Dropped, LayerEntry, LayerId, LayerRecord, Taken};

use crate::blob::{Bytes, LayerStream, problem_of, until};
use crate::failure::{refused, storage};
use crate::layer::{Below, Ownership, unpack};
use crate::limits::Budget;
use crate::source::{FoundImage, FoundLayer};
use crate::store::Import;

pub(super) struct Stack<'a> {
    import: &'a Import<'a>,
    image: &'a FoundImage,
    budget: Budget,
    stop: &'a Arc<AtomicBool>,
    /// The id of all layers of the image up to here, as OCI defines it.
    chain: Option<LayerId>,
    /// Written by this import.
    new: Vec<LayerRecord>,
    /// Bottom first.
    entries: Vec<LayerEntry>,
    dropped: Dropped,
    shared_layers: u64,
}

/// What became of an image's layers.
pub(super) struct Layers {
    /// Bottom first.
    pub(super) entries: Vec<LayerEntry>,
    pub(super) new: Vec<LayerId>,
    pub(super) dropped: Dropped,
    pub(super) shared_layers: u64,
}

impl<'a> Stack<'a> {
    pub(super) fn new(
        import: &'a Import<'a>,
        image: &'a FoundImage,
        budget: Budget,
        stop: &'a Arc<AtomicBool>,
    ) -> Self {
        Self {
            import,
            image,
            budget,
            stop,
            chain: None,
            new: Vec::new(),
            entries: Vec::new(),
            dropped: Dropped::default(),
            shared_layers: 0,
        }
    }

    /// Puts the next layer on top. `begin` is told first whether the store has it.
    pub(super) fn add(&mut self, layer: &FoundLayer, begin: impl FnOnce(bool)) -> Result<(), Problem> {
        let chain = LayerId::chained(self.chain.as_ref(), &layer.id);
        let known = self.known(layer, &chain)?;
        begin(known.is_some());
        let record = match known {
            Some(record) => {
                self.shared_layers += 1;
                self.check_blob(&record.id, layer)?;
                record
            }
            None => self.write(layer, &chain)?,
        };
        if record.is_bottom {
            self.entries.clear();
        }
        let Amount { bytes, entries } = record.archive;
        self.entries.push(LayerEntry { id: record.id, bytes, entries });
        self.chain = Some(chain);
        Ok(())
    }

    pub(super) fn finish(self) -> Layers {
        let Self { entries, new, dropped, shared_layers, .. } = self;
        // Layers below one that hides them are not part of the template.
        let new = new.into_iter().map(|record| record.id).filter(|id| entries.iter().any(|entry| entry.id == *id));
        Layers { new: new.collect(), entries, dropped, shared_layers }
    }

    /// A layer of the store, or of this image, that can be used here.
    fn known(&self, layer: &FoundLayer, chain: &LayerId) -> Result<Option<LayerRecord>, Problem> {
        for id in [chain, &layer.id] {
            let written = self.new.iter().find(|record| record.id == *id).cloned();
            let Some(record) = written.or_else(|| self.import.sound_layer(id)) else { continue };
            let fits = id == chain
                || match record.taken {
                    Taken::Nothing => true,
                    Taken::Top => self.is_top_usual()?,
                    Taken::Entries => false,
                };
            if fits {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn is_top_usual(&self) -> Result<bool, Problem> {
        let usual = self.below()?.is_usual(Ownership::here());
        usual.map_err(|errno| storage("a stored layer can't be read", errno))
    }

    fn below(&self) -> Result<Below, Problem> {
        let trees = self.entries.iter().rev().map(|entry| {
            let is_new = self.new.iter().any(|record| record.id == entry.id);
            self.import.tree(&entry.id, is_new)
        });
        trees.collect::<Result<_, _>>().map(Below::new)
    }

    fn open(&self, layer: &FoundLayer, bytes_max: u64) -> Result<Bytes, Problem> {
        Ok(until(self.image.open_layer(layer, bytes_max)?, self.stop))
    }

    fn write(&mut self, layer: &FoundLayer, chain: &LayerId) -> Result<LayerRecord, Problem> {
        let below = self.below()?;
        let is_top_usual = self.is_top_usual()?;
        let (bytes_max, too_large) = self.budget.archive_max();
        let blob = self.open(layer, bytes_max)?;
        let tree = self.import.layer(&layer.id)?;
        let ownership = Ownership::here();
        let mut stream = LayerStream::new(blob, bytes_max, too_large);
        let unpacked = unpack(&mut stream, tree, below, ownership, &mut self.budget)?;
        let (found, bytes) = stream.finish();
        check_id(&found, layer)?;
        self.budget.archive(bytes)?;
        let is_same_anywhere = match unpacked.taken {
            Taken::Nothing => true,
            Taken::Top => is_top_usual,
            Taken::Entries => false,
        };
        let id = if is_same_anywhere { layer.id.clone() } else { chain.clone() };
        let mut record = LayerRecord::new(
            id,
            ownership.record(),
            unpacked.tree.digest,
            Amount { entries: unpacked.archive_entries, bytes },
            Amount { entries: unpacked.tree.entries, bytes: unpacked.tree.bytes },
            unpacked.dropped,
        );
        (record.taken, record.is_bottom) = (unpacked.taken, unpacked.is_bottom);
        self.import.finish_layer(&layer.id, &record)?;
        if let Some(blob) = layer.blob_digest() {
            self.import.prove(&record.id, true, &layer.id, blob)?;
        }
        add(&mut self.dropped, record.dropped);
        self.new.push(record.clone());
        Ok(record)
    }

    /// Reads a layer's blob, unless an earlier import has shown that it has the content of the layer.
    fn check_blob(&self, id: &LayerId, layer: &FoundLayer) -> Result<(), Problem> {
        let is_new = self.new.iter().any(|record| record.id == *id);
        let blob = layer.blob_digest();
        if blob.is_some_and(|blob| self.import.is_proven(id, is_new, &layer.id, blob)) {
            return Ok(());
        }
        let (bytes_max, too_large) = self.budget.archive_max();
        let mut stream = LayerStream::new(self.open(layer, bytes_max)?, bytes_max, too_large);
        io::copy(&mut stream.by_ref(), &mut io::sink()).map_err(problem_of)?;
        check_id(&stream.finish().0, layer)?;
        match blob {
            Some(blob) => self.import.prove(id, is_new, &layer.id, blob),
            None => Ok(()),
        }
    }
}

fn check_id(found: &LayerId, layer: &FoundLayer) -> Result<(), Problem> {
    if *found == layer.id {
        return Ok(());
    }
    Err(refused(
        format!("its content has another digest when uncompressed: {found}"),
        "fetch or build the image anew; if it stays like this, don't trust where it came from",
    ))
}

fn add(sum: &mut Dropped, more: Dropped) {
    sum.devices += more.devices;
    sum.capabilities += more.capabilities;
    sum.attributes += more.attributes;
    sum.set_ids += more.set_ids;
    sum.owners += more.owners;
}
