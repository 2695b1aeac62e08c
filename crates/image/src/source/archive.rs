//! Archives written by `docker save`: `manifest.json` names a configuration and the layers' files.

use saggar_domain::Problem;
use saggar_domain::template::{ContentDigest, ImageSource};
use serde::Deserialize;

use super::files::Files;
use super::resolve::Blobs;
use super::{FoundImage, FoundLayer, LayerBlob};
use crate::blob::{Bytes, Promise};
use crate::document::{DOCUMENT_BYTES_MAX, ImageConfig, read};
use crate::failure::{refused, shown};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
}

struct SavedFiles(Files);

impl Blobs for SavedFiles {
    fn open(&self, promise: &Promise) -> Result<Bytes, Problem> {
        Err(refused(format!("the archive has no blob {}", promise.digest), "save the image anew"))
    }

    fn open_file(&self, path: &[u8]) -> Result<Bytes, Problem> {
        self.0.read(path)
    }
}

pub(super) fn open(files: Files, image: Option<&str>) -> Result<FoundImage, Problem> {
    if !files.has(b"manifest.json") {
        return Err(refused(
            "there is no image: neither index.json nor manifest.json exists",
            "name a directory with an OCI image layout, an archive of one, or an archive written by `docker save`",
        ));
    }
    let images: Vec<Saved> = read(&files.read_all(b"manifest.json", DOCUMENT_BYTES_MAX)?, "manifest.json")?;
    let saved = pick(images, image)?;
    let document = files.read_all(saved.config.as_bytes(), DOCUMENT_BYTES_MAX)?;
    let config_digest = ContentDigest::of(&document);
    // Docker names the file for its digest. A file of another name promises nothing.
    let stem = saved.config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
    if ContentDigest::parse_hex(stem).is_some_and(|named| named != config_digest) {
        return Err(refused(
            format!(
                "the configuration {} has another content: its digest is {config_digest}",
                shown(saved.config.as_bytes())
            ),
            "save the image anew; if it stays like this, don't trust where it came from",
        ));
    }
    let config = ImageConfig::parse(&document)?;
    if config.layers.len() != saved.layers.len() {
        return Err(refused(
            format!("the archive has {} layers and the configuration {}", saved.layers.len(), config.layers.len()),
            "the image is malformed or hostile: don't use it, or save it anew",
        ));
    }
    let layer =
        |(id, file): (&_, String)| FoundLayer { id: Clone::clone(id), blob: LayerBlob::File(file.into_bytes()) };
    let layers = config.layers.iter().zip(saved.layers).map(layer).collect();
    let blobs = Box::new(SavedFiles(files));
    Ok(FoundImage { source: ImageSource::Archive, config, config_digest, digest: None, layers, blobs })
}

fn pick(mut images: Vec<Saved>, image: Option<&str>) -> Result<Saved, Problem> {
    let tags = |saved: &Saved| saved.repo_tags.clone().unwrap_or_default();
    let all = shown(images.iter().flat_map(tags).collect::<Vec<_>>().join(", ").as_bytes());
    let at = match image {
        Some(image) => images.iter().position(|saved| tags(saved).iter().any(|tag| tag == image)),
        None if images.len() > 1 => {
            return Err(refused(
                format!("the archive has {} images: {all}", images.len()),
                "choose one with --image NAME",
            ));
        }
        None => (!images.is_empty()).then_some(0),
    };
    match at {
        Some(at) => Ok(images.swap_remove(at)),
        None => Err(refused("the archive has no such image", format!("choose one of {all} with --image NAME"))),
    }
}
