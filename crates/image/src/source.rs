//! Where images come from: a directory, an archive or a registry. Each is turned into the same list of checked parts.

mod archive;
mod files;
mod layout;
mod reference;
mod resolve;

use std::path::PathBuf;

use saggar_domain::template::{ContentDigest, ImageSource, LayerId};
use saggar_domain::{Problem, TemplateName};

pub use reference::RegistryReference;
pub(crate) use reference::{Version, host_and_port};
pub(crate) use resolve::Blobs;

use crate::blob::{Bytes, Promise};
use crate::document::ImageConfig;
use crate::failure::refused;
use crate::registry::{Registry, RegistryOptions};
use files::Files;

/// How much longer compressed data may be than what it yields, besides a 64th of it.
const COMPRESSED_MARGIN: u64 = 1 << 20;

/// What to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory or an archive; which kind of image it is, is seen from its files.
    Files(PathBuf),
    Registry(RegistryReference),
}

impl Source {
    /// Parses `docker://REGISTRY/REPOSITORY:TAG`, or else a path.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix("docker://") {
            Some(reference) => RegistryReference::parse(reference).map(Self::Registry),
            None => match text.split_once("://") {
                Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Err(format!(
                    "{scheme:?} is not a kind of source: use docker://REGISTRY/REPOSITORY:TAG, a directory or a .tar file"
                )),
                _ => Ok(Self::Files(PathBuf::from(text))),
            },
        }
    }

    /// The template's name if none is given; `None` if none follows.
    pub fn default_name(&self) -> Option<TemplateName> {
        match self {
            Self::Files(path) => {
                let name = path.file_name()?.to_str()?;
                let name = name.strip_suffix(".tar").unwrap_or(name);
                // A colon in a file's name is not meant as a tag.
                TemplateName::parse(name).filter(|_| !name.contains(':'))
            }
            Self::Registry(reference) => reference.default_name(),
        }
    }
}

/// An image whose documents are read and checked; its layers are not read.
pub(crate) struct FoundImage {
    pub(crate) source: ImageSource,
    pub(crate) config: ImageConfig,
    pub(crate) config_digest: ContentDigest,
    /// Of the manifest, which names everything else; `None` if nothing does.
    pub(crate) digest: Option<ContentDigest>,
    /// Bottom first; as many as the configuration has.
    pub(crate) layers: Vec<FoundLayer>,
    blobs: Box<dyn Blobs>,
}

pub(crate) struct FoundLayer {
    pub(crate) id: LayerId,
    blob: LayerBlob,
}

enum LayerBlob {
    Promised(Promise),
    /// A file of an archive. Nothing is promised about it, except the layer's own id.
    File(Vec<u8>),
}

impl FoundLayer {
    /// The digest of its blob, if the image names one.
    pub(crate) fn blob_digest(&self) -> Option<&ContentDigest> {
        match &self.blob {
            LayerBlob::Promised(promise) => Some(&promise.digest),
            LayerBlob::File(_) => None,
        }
    }
}

impl FoundImage {
    /// Reads an image's documents. `image` picks one of several in a layout or an archive.
    pub(crate) fn open(source: &Source, image: Option<&str>, options: &RegistryOptions) -> Result<Self, Problem> {
        match source {
            Source::Registry(reference) => resolve::from_registry(Registry::new(reference, options)?, reference),
            Source::Files(path) => {
                let files = Files::open(path)?;
                if files.has(b"index.json") {
                    return layout::open(files, image);
                }
                archive::open(files, image)
            }
        }
    }

    /// The data of a layer; what was promised is checked at its end. It may have `bytes_max` bytes uncompressed.
    pub(crate) fn open_layer(&self, layer: &FoundLayer, bytes_max: u64) -> Result<Bytes, Problem> {
        match &layer.blob {
            LayerBlob::Promised(promise) => {
                // Compressed data may hold parts that yield nothing, so the bound of what it yields doesn't bound it.
                let blob_max = bytes_max.saturating_add(bytes_max / 64).saturating_add(COMPRESSED_MARGIN);
                if promise.size > blob_max {
                    return Err(refused(
                        format!("its blob has {} bytes, more than the layer may have uncompressed", promise.size),
                        "import a smaller image, or raise --max-size",
                    ));
                }
                self.blobs.open(promise)
            }
            LayerBlob::File(path) => self.blobs.open_file(path),
        }
    }
}
