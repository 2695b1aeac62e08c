//! From a reference to an image: index, manifest, configuration, each compared with the digest that named it.

use saggar_domain::Problem;
use saggar_domain::template::{ContentDigest, ImageSource};

use super::{FoundImage, FoundLayer, LayerBlob, RegistryReference};
use crate::blob::{Bytes, Checked, Promise};
use crate::document::{DOCUMENT_BYTES_MAX, Descriptor, ImageConfig, ImageManifest, Platform, Top, other_platform};
use crate::failure::refused;
use crate::registry::Registry;

/// How often an index may lead to another one.
const INDEXES_MAX: usize = 3;

/// The blobs of an image.
pub(crate) trait Blobs {
    /// A blob by its digest, checked at its end.
    fn open(&self, promise: &Promise) -> Result<Bytes, Problem>;

    /// A manifest or an index by its digest. Registries keep these apart from other blobs.
    fn open_manifest(&self, promise: &Promise) -> Result<Bytes, Problem> {
        self.open(promise)
    }

    /// A file by its name, of an image that has no digests.
    fn open_file(&self, _path: &[u8]) -> Result<Bytes, Problem> {
        Err(refused("the image has no files by name", "fetch or build the image anew"))
    }
}

pub(super) fn from_registry(registry: Registry, reference: &RegistryReference) -> Result<FoundImage, Problem> {
    let top = Top::parse(&registry.manifest(reference.version())?)?;
    from_top(Box::new(registry), top, ImageSource::Registry)
}

/// Follows indexes to the image for this host, and reads its documents.
pub(super) fn from_top(blobs: Box<dyn Blobs>, mut top: Top, source: ImageSource) -> Result<FoundImage, Problem> {
    let mut digest = None;
    for _ in 0..=INDEXES_MAX {
        match top {
            Top::Manifest(manifest) => return from_manifest(blobs, &manifest, digest, source),
            Top::Index(images) => {
                let promise = choose(images)?.promise()?;
                digest = Some(promise.digest.clone());
                let bytes = Checked::new(blobs.open_manifest(&promise)?, promise).read_all(DOCUMENT_BYTES_MAX)?;
                top = Top::parse(&bytes)?;
            }
        }
    }
    Err(refused(
        format!("more than {INDEXES_MAX} indexes lead to one another"),
        "the image is malformed or hostile: don't use it, or build it anew",
    ))
}

/// The image for this host. One without a platform is taken if it is alone; its configuration is checked later.
fn choose(images: Vec<Descriptor>) -> Result<Descriptor, Problem> {
    let mut images: Vec<Descriptor> = images.into_iter().filter(Descriptor::is_image).collect();
    if images.len() == 1 && images[0].platform.is_none() {
        return Ok(images.remove(0));
    }
    let runs_here = |image: &Descriptor| image.platform.as_ref().is_some_and(Platform::runs_here);
    match images.iter().position(runs_here) {
        Some(at) => Ok(images.remove(at)),
        None => {
            let platforms: Vec<Platform> = images.into_iter().filter_map(|image| image.platform).collect();
            if platforms.is_empty() {
                return Err(refused("the image's index names no image", "fetch or build the image anew"));
            }
            Err(other_platform(&platforms))
        }
    }
}

fn from_manifest(
    blobs: Box<dyn Blobs>,
    manifest: &ImageManifest,
    digest: Option<ContentDigest>,
    source: ImageSource,
) -> Result<FoundImage, Problem> {
    let promise = manifest.config.promise()?;
    let document = Checked::new(blobs.open(&promise)?, promise.clone()).read_all(DOCUMENT_BYTES_MAX)?;
    let config = ImageConfig::parse(&document)?;
    if config.layers.len() != manifest.layers.len() {
        return Err(refused(
            format!("the manifest has {} layers and the configuration {}", manifest.layers.len(), config.layers.len()),
            "the image is malformed or hostile: don't use it, or build it anew",
        ));
    }
    let mut layers = Vec::with_capacity(config.layers.len());
    for (id, layer) in config.layers.iter().zip(&manifest.layers) {
        layer.check_layer()?;
        layers.push(FoundLayer { id: id.clone(), blob: LayerBlob::Promised(layer.promise()?) });
    }
    Ok(FoundImage { source, config, config_digest: promise.digest, digest, layers, blobs })
}
