//! Makes images: OCI layouts and archives as `docker save` writes them. Each part can be made to lie.

use std::io::Write;
use std::path::Path;

use saggar_domain::template::ContentDigest;
use serde_json::{Value, json};

use crate::tar::Tar;

/// An image whose layers are archives.
#[derive(Clone)]
pub struct Image {
    pub layers: Vec<Layer>,
    /// The `config` of its configuration.
    pub defaults: Value,
    pub architecture: &'static str,
    /// What an exported snapshot says besides.
    pub snapshot: Option<Value>,
}

#[derive(Clone)]
pub struct Layer {
    pub archive: Vec<u8>,
    pub blob: Vec<u8>,
}

impl Layer {
    pub fn plain(archive: Vec<u8>) -> Self {
        Self { blob: archive.clone(), archive }
    }

    pub fn gzip(archive: Vec<u8>) -> Self {
        Self { blob: gzip(&archive), archive }
    }
}

/// A document or blob and its digest.
pub struct Blob {
    pub bytes: Vec<u8>,
    pub digest: ContentDigest,
}

/// Everything of an image, by digest.
pub struct Parts {
    pub config: Blob,
    pub manifest: Blob,
    pub layers: Vec<Blob>,
}

impl Image {
    pub fn new(archives: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let layers = archives.into_iter().map(Layer::plain).collect();
        Self { layers, defaults: json!({}), architecture: "amd64", snapshot: None }
    }

    pub fn config(&self) -> Value {
        let ids: Vec<ContentDigest> = self.layers.iter().map(|layer| ContentDigest::of(&layer.archive)).collect();
        json!({
            "architecture": self.architecture, "os": "linux", "created": "2026-01-02T03:04:05Z",
            "config": self.defaults, "rootfs": {"type": "layers", "diff_ids": ids}, "saggar": self.snapshot,
        })
    }

    pub fn parts(&self) -> Parts {
        let config = blob(self.config().to_string().into_bytes());
        let layers: Vec<Blob> = self.layers.iter().map(|layer| blob(layer.blob.clone())).collect();
        let manifest = manifest(&config, &layers);
        Parts { config, manifest: blob(manifest.to_string().into_bytes()), layers }
    }

    /// Writes an OCI layout into a directory.
    pub fn layout(&self, directory: &Path) {
        self.parts().layout(directory);
    }

    /// The same as an archive.
    pub fn layout_archive(&self) -> Vec<u8> {
        let parts = self.parts();
        let mut tar = Tar::new().file("./oci-layout", LAYOUT).directory("blobs/").directory("blobs/sha256/");
        for blob in [&parts.config, &parts.manifest].into_iter().chain(&parts.layers) {
            tar = tar.file(&format!("blobs/sha256/{}", blob.digest.hex()), &blob.bytes);
        }
        tar.file("./index.json", parts.index().to_string().as_bytes()).end()
    }

    /// As `docker save` writes it. A layer that occurs twice is a link to the first.
    pub fn saved(&self) -> Vec<u8> {
        let config = blob(self.config().to_string().into_bytes());
        let mut tar = Tar::new();
        let mut files = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let file = format!("{index}/layer.tar");
            let earlier = self.layers[..index].iter().position(|earlier| earlier.blob == layer.blob);
            tar = match earlier {
                Some(earlier) => tar.link(&file, &format!("../{earlier}/layer.tar")),
                None => tar.file(&file, &layer.blob),
            };
            files.push(file);
        }
        let name = format!("{}.json", config.digest.hex());
        let manifest = json!([{"Config": name, "RepoTags": ["demo:latest"], "Layers": files}]);
        tar.file(&name, &config.bytes).file("manifest.json", manifest.to_string().as_bytes()).end()
    }
}

const LAYOUT: &[u8] = br#"{"imageLayoutVersion": "1.0.0"}"#;

impl Parts {
    pub fn index(&self) -> Value {
        json!({"schemaVersion": 2, "manifests": [descriptor("application/vnd.oci.image.manifest.v1+json", &self.manifest)]})
    }

    pub fn layout(&self, directory: &Path) {
        let blobs = directory.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).expect("the directory is ours");
        std::fs::write(directory.join("oci-layout"), LAYOUT).expect("the directory is ours");
        std::fs::write(directory.join("index.json"), self.index().to_string()).expect("the directory is ours");
        for blob in [&self.config, &self.manifest].into_iter().chain(&self.layers) {
            std::fs::write(blobs.join(blob.digest.hex()), &blob.bytes).expect("the directory is ours");
        }
    }
}

pub fn manifest(config: &Blob, layers: &[Blob]) -> Value {
    let layers: Vec<Value> =
        layers.iter().map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar", layer)).collect();
    json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config), "layers": layers,
    })
}

pub fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({"mediaType": media_type, "digest": blob.digest, "size": blob.bytes.len()})
}

pub fn blob(bytes: Vec<u8>) -> Blob {
    Blob { digest: ContentDigest::of(&bytes), bytes }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}
