//! Exports a snapshot as one file: an archive of an OCI image layout, which other programs read too.
//!
//! ```text
//! oci-layout                 index.json
//! blobs/sha256/MANIFEST      names everything else: its digest is the export's
//! blobs/sha256/CONFIG        defaults, and what an image can't say (`saggar`)
//! blobs/sha256/LAYER ...     the files, entry by entry
//! ```
//!
//! Layers are read twice: for their digests, which come first in the file, and to be written. Nothing is kept on disk meanwhile. The same
//! snapshot gives the same bytes.

use std::collections::BTreeSet;
use std::io::{self, Write};

use saggar_domain::template::{ContentDigest, Defaults};
use saggar_domain::{Problem, SnapshotId, Timestamp};
use saggar_sandbox::{HeldTemplate, StoredLayer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Store;
use crate::blob::problem_of;
use crate::document::SnapshotNote;
use crate::layer::{GoOn, pack};
use crate::tar::{Entry, Kind, Packer};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// An entry of the outer archive, with what fills its last block.
const BLOCK: u64 = 512;
/// Sizes above this need one more header.
const SIZE_MAX: u64 = 0o77_777_777_777;

/// A snapshot that is ready to be written. It is held: nothing of it is removed meanwhile.
pub struct Export {
    held: HeldTemplate,
    /// Of the layers, the bottom first.
    layers: Vec<Blob>,
    /// The names and contents of the small files.
    documents: Vec<(String, Vec<u8>)>,
    digest: ContentDigest,
}

/// What is known about a layer's archive before it is written.
#[derive(Clone)]
struct Blob {
    digest: ContentDigest,
    size: u64,
}

impl Store {
    /// Reads the layers of a snapshot for an export; `None` if there is no such snapshot.
    pub fn export_snapshot(&self, id: &SnapshotId, go_on: GoOn<'_>) -> Result<Option<Export>, Problem> {
        let Some(record) = self.snapshot(id)? else { return Ok(None) };
        let Some(held) = self.templates.find_id(&record.template)? else { return Ok(None) };
        let layers = held.layers.iter().map(|layer| measured(layer, go_on)).collect::<Result<Vec<_>, _>>()?;
        let manifest = &held.manifest;
        let note = SnapshotNote::new(manifest.root(), manifest.defaults(), record.facts.labels);
        let config = document(&config(&held, &note, &layers, record.facts.created_at));
        let about = |media_type: &str, blob: &Blob| json!({ "mediaType": media_type, "digest": blob.digest.as_str(), "size": blob.size });
        let manifest = document(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": about(CONFIG, &Blob::of(&config)),
            "layers": layers.iter().map(|layer| about(LAYER, layer)).collect::<Vec<_>>(),
        }));
        let mut named = about(MANIFEST, &Blob::of(&manifest));
        named["annotations"] = json!({ "org.opencontainers.image.ref.name": id.as_str() });
        let index = document(&json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [named] }));
        let digest = ContentDigest::of(&manifest);
        let documents = vec![
            ("oci-layout".to_owned(), document(&json!({ "imageLayoutVersion": "1.0.0" }))),
            ("index.json".to_owned(), index),
            (path_of(&digest), manifest),
            (path_of(&ContentDigest::of(&config)), config),
        ];
        Ok(Some(Export { held, layers, documents, digest }))
    }
}

impl Export {
    /// Names the content: whoever imports it can compare.
    pub fn digest(&self) -> &ContentDigest {
        &self.digest
    }

    /// Size of the whole file.
    pub fn bytes(&self) -> u64 {
        let of = |size: u64| {
            let extended = if size > SIZE_MAX { 2 * BLOCK } else { 0 };
            BLOCK + extended + size.next_multiple_of(BLOCK)
        };
        let documents = self.documents.iter().map(|(_, content)| of(content.len() as u64));
        let layers = self.once().map(|(_, blob)| of(blob.size));
        documents.chain(layers).sum::<u64>() + 2 * BLOCK
    }

    /// Writes the file. After an error it is incomplete, and can't be imported.
    pub fn write(&self, out: &mut dyn Write, go_on: GoOn<'_>) -> Result<(), Problem> {
        self.try_write(out, go_on).map_err(problem_of)
    }

    fn try_write(&self, out: &mut dyn Write, go_on: GoOn<'_>) -> io::Result<()> {
        let mut packer = Packer::new(out);
        for (name, content) in &self.documents {
            packer.entry(&file(name, content.len() as u64))?;
            packer.data(content)?;
        }
        for (layer, blob) in self.once() {
            packer.entry(&file(&path_of(&blob.digest), blob.size))?;
            let inner = Exactly { packer: &mut packer, left: blob.size };
            if pack(layer.tree(), layer.record.owners, inner, go_on)?.left > 0 {
                return Err(changed());
            }
        }
        packer.finish().map(drop)
    }

    /// Each layer once: two may be the same.
    fn once(&self) -> impl Iterator<Item = (&StoredLayer, &Blob)> {
        let mut seen = BTreeSet::new();
        self.held.layers.iter().zip(&self.layers).filter(move |(_, blob)| seen.insert(blob.digest.clone()))
    }
}

impl Blob {
    fn of(content: &[u8]) -> Self {
        Self { digest: ContentDigest::of(content), size: content.len() as u64 }
    }
}

fn measured(layer: &StoredLayer, go_on: GoOn<'_>) -> Result<Blob, Problem> {
    struct Measure {
        hash: Sha256,
        size: u64,
    }
    impl Write for Measure {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.hash.update(bytes);
            self.size += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let measure = Measure { hash: Sha256::new(), size: 0 };
    let Measure { hash, size } = pack(layer.tree(), layer.record.owners, measure, go_on).map_err(problem_of)?;
    Ok(Blob { digest: ContentDigest::from_bytes(hash.finalize().into()), size })
}

/// Takes as many bytes as the header before them says, and no more.
struct Exactly<'a, W> {
    packer: &'a mut Packer<W>,
    left: u64,
}

impl<W: Write> Write for Exactly<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(changed)?;
        self.packer.data(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn changed() -> io::Error {
    io::Error::other("a stored layer changed while it was read")
}

/// As OCI defines it, with a field of our own.
fn config(held: &HeldTemplate, note: &SnapshotNote, layers: &[Blob], created: Timestamp) -> Value {
    let manifest = &held.manifest;
    let Defaults { env, cwd, user, entrypoint, command, ports, labels, start: _, ready: _ } = manifest.defaults();
    let mut platform = manifest.image().platform.split('/');
    let mut part = || platform.next().unwrap_or_default();
    let (os, architecture, variant) = (part(), part(), part());
    let mut config = json!({
        "os": os,
        "architecture": architecture,
        "created": created.to_string(),
        "config": {
            "Env": env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
            "Entrypoint": entrypoint,
            "Cmd": command,
            "ExposedPorts": ports.iter().map(|port| (port.to_string(), json!({}))).collect::<serde_json::Map<_, _>>(),
            "Labels": labels,
            "WorkingDir": cwd.as_ref().map(ToString::to_string).unwrap_or_default(),
            "User": user.as_deref().unwrap_or_default(),
        },
        "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|blob| blob.digest.as_str()).collect::<Vec<_>>() },
        "saggar": note,
    });
    if !variant.is_empty() {
        config["variant"] = json!(variant);
    }
    config
}

fn document(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value has only text keys")
}

fn path_of(digest: &ContentDigest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn file(name: &str, size: u64) -> Entry {
    Entry {
        path: name.as_bytes().to_vec(),
        kind: Kind::File { size, segments: None },
        mode: 0o644,
        uid: 0,
        gid: 0,
        modified: (0, 0),
        attributes: Vec::new(),
        attributes_unread: 0,
    }
}
