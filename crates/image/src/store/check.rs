//! Compares everything in the store with its digests.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, openat};
use saggar_domain::Problem;
use saggar_domain::template::{LayerId, LayerRecord, Owners, TemplateId};
use serde::Serialize;

use super::{DIRECTORY, Lock, Store, listed};
use crate::layer::{Contents, Ownership, TreeDigest};

/// What a check looked at and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub names: u64,
    pub templates: u64,
    pub layers: u64,
    pub entries: u64,
    pub bytes: u64,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub about: String,
    pub what: String,
}

impl Store {
    /// Reads every name, manifest and layer. Nothing is removed meanwhile; imports go on.
    pub fn check(&self) -> Result<Checked, Problem> {
        self.check_each(&mut |_| {})
    }

    /// The same. `begin` is told of each layer before it is read.
    pub fn check_each(&self, begin: &mut dyn FnMut(&LayerId)) -> Result<Checked, Problem> {
        let _layers = self.locked(Lock::Layers, FlockOperation::LockShared)?;
        let names = self.locked(Lock::Names, FlockOperation::LockShared)?;
        let mut checked = Checked::default();
        let mut users: BTreeMap<LayerId, TemplateId> = BTreeMap::new();
        for file in listed(&self.manifests)? {
            let Some(id) = file.strip_suffix(".json").and_then(TemplateId::parse_hex) else { continue };
            checked.templates += 1;
            match self.manifest(&id) {
                Ok(manifest) => users.extend(manifest.layers().iter().map(|layer| (layer.id.clone(), id.clone()))),
                Err(problem) => checked.found(&id, &problem.message),
            }
        }
        for (name, record) in self.templates.records()? {
            checked.names += 1;
            if let Err(problem) = record.and_then(|record| self.manifest(&record.template)) {
                checked.found(&name, &problem.message);
            }
        }
        // The layers take long. An import that ends meanwhile must not wait for them.
        drop(names);
        for (id, template) in users {
            checked.layers += 1;
            begin(&id);
            match self.sound_layer(&id) {
                Ok((_, tree)) => {
                    checked.entries += tree.entries;
                    checked.bytes += tree.bytes;
                }
                Err(what) => checked.found(&id, &format!("{what}; used by {template}")),
            }
        }
        Ok(checked)
    }

    /// A layer that is as it was written; the error says what is wrong with it.
    pub(super) fn sound_layer(&self, id: &LayerId) -> Result<(LayerRecord, TreeDigest), String> {
        let record: LayerRecord = match self.layer(id) {
            Ok(Some(record)) => record,
            Ok(None) => return Err("the layer is missing".to_owned()),
            Err(problem) => return Err(problem.message),
        };
        let ownership = match record.owners {
            Owners::Shifted => Ownership::Shifted,
            Owners::Dropped => Ownership::Dropped,
        };
        let tree: OwnedFd = openat(&self.layers, format!("{}/tree", id.hex()), DIRECTORY, Mode::empty())
            .map_err(|errno| format!("the layer's files can't be opened: {errno}"))?;
        let found = TreeDigest::of(tree.as_fd(), Contents::Read, ownership)
            .map_err(|error| format!("the layer's files can't be read: {}", error.kind()))?;
        if found.digest != record.digest {
            return Err("the layer's files were changed after the import".to_owned());
        }
        Ok((record, found))
    }
}

impl Checked {
    fn found(&mut self, about: &impl ToString, what: &str) {
        self.findings.push(Finding { about: about.to_string(), what: what.to_owned() });
    }
}
