//! The manifest of a template: its layers, bottom first, its defaults, and where it came from.

use serde::{Deserialize, Serialize};

use super::digest::{ContentDigest, LayerId, TemplateId};
use super::{Defaults, DocumentError, read};
use crate::canonical::canonical_json;
use crate::mode::choice;
use crate::timestamp::Timestamp;

const SCHEMA: &str = "saggar.template/v1";
/// Maximum number of layers. The kernel stacks at most 500.
const LAYERS_MAX: usize = 256;
/// Maximum size of a manifest as a document.
pub const MANIFEST_BYTES_MAX: u64 = 4 << 20;

/// The same image imported twice has the same manifest: nothing in it depends on the host or on the time of the import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    schema: String,
    /// The first is the bottom.
    layers: Vec<LayerEntry>,
    defaults: Defaults,
    image: Image,
    /// What the layers lie over, if they are not a whole root by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root: Option<BuiltInRoot>,
}

impl Manifest {
    pub fn new(layers: Vec<LayerEntry>, defaults: Defaults, image: Image) -> Result<Self, String> {
        let manifest = Self { schema: SCHEMA.to_owned(), layers, defaults, image, root: None }.check()?;
        // Nobody could read it again.
        match manifest.document().len() as u64 {
            bytes if bytes > MANIFEST_BYTES_MAX => {
                Err(format!("its manifest would have {bytes} bytes; the maximum is {MANIFEST_BYTES_MAX}"))
            }
            _ => Ok(manifest),
        }
    }

    /// The layers of a snapshot of a sandbox that was started from a built-in template.
    pub fn over(self, root: Option<BuiltInRoot>) -> Self {
        Self { root, ..self }
    }

    pub fn root(&self) -> Option<BuiltInRoot> {
        self.root
    }

    /// Reads a document, which must be the one that the id names.
    pub fn parse(document: &[u8], id: &TemplateId) -> Result<Self, DocumentError> {
        if TemplateId::of(document) != *id {
            return Err(DocumentError::Changed);
        }
        Self::read(document)
    }

    /// Reads a document without comparing it with an id.
    pub fn read(document: &[u8]) -> Result<Self, DocumentError> {
        read::<Self>(document, SCHEMA)?.check().map_err(DocumentError::Malformed)
    }

    /// The document: canonical JSON, whose digest is the template's id.
    pub fn document(&self) -> String {
        canonical_json(self)
    }

    pub fn id(&self) -> TemplateId {
        TemplateId::of(self.document().as_bytes())
    }

    /// The first is the bottom.
    pub fn layers(&self) -> &[LayerEntry] {
        &self.layers
    }

    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Size of all layers as archives, uncompressed.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.bytes))
    }

    fn check(self) -> Result<Self, String> {
        match self.layers.len() {
            0 => Err("it has no layer".to_owned()),
            count if count > LAYERS_MAX => Err(format!("it has {count} layers; the maximum is {LAYERS_MAX}")),
            _ => Ok(self),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerEntry {
    pub id: LayerId,
    /// Size of the archive, uncompressed.
    pub bytes: u64,
    /// Number of entries of the archive.
    pub entries: u64,
}

/// The image that a template was imported from, or how it was built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    pub source: ImageSource,
    /// Of the image's configuration, which names its layers and defaults: what Docker calls the image's id. Of the recipe, if it was built.
    pub config: ContentDigest,
    /// `linux/amd64`, or with a variant `linux/arm64/v8`.
    pub platform: String,
    /// As the image says.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub created: Option<Timestamp>,
}

choice!(
    ImageSource {
        /// An OCI image layout, as a directory or an archive.
        Layout = "oci-layout",
        /// An archive written by `docker save`.
        Archive = "docker-archive",
        Registry = "registry",
        /// No image: it was built here.
        Build = "build",
        /// The files of a sandbox at one moment.
        Snapshot = "snapshot",
    }
);

choice!(
    /// A root that is built in, and whose files are stored in no layer.
    BuiltInRoot {
        /// The host's programs and libraries.
        Host = "host",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let layer = LayerEntry { id: LayerId::of(b"layer"), bytes: 10_240, entries: 3 };
        let image = Image {
            source: ImageSource::Layout,
            config: ContentDigest::of(b"config"),
            platform: "linux/amd64".into(),
            created: Some(Timestamp::from_millis(1)),
        };
        Manifest::new(vec![layer], Defaults { user: Some("app".into()), ..Defaults::default() }, image).unwrap()
    }

    #[test]
    fn a_manifest_is_read_only_under_its_own_digest() {
        let manifest = manifest();
        let (document, id) = (manifest.document(), manifest.id());
        assert_eq!(Manifest::parse(document.as_bytes(), &id), Ok(manifest.clone()));
        let changed = document.replace("app", "dev");
        assert_eq!(Manifest::parse(changed.as_bytes(), &id), Err(DocumentError::Changed));
        assert_ne!(changed, document);
    }

    /// The stored form: a change of it needs a new version.
    #[test]
    fn the_document_of_version_1_stays_as_it_is() {
        assert_eq!(
            manifest().document(),
            concat!(
                r#"{"defaults":{"user":"app"},"image":{"config":"sha256:b79606fb3afea5bd1609ed40b622142f1c98125abcfe89a76a661b0e8e343910","#,
                r#""created":1,"platform":"linux/amd64","source":"oci-layout"},"layers":[{"bytes":10240,"entries":3,"#,
                r#""id":"sha256:dac1d7cfa95021764849fd102524e141488c5e3a90f861dbb5a12d9ac8584f85"}],"schema":"saggar.template/v1"}"#
            )
        );
    }

    #[test]
    fn documents_of_other_versions_and_forms_are_refused() {
        let document = manifest().document();
        let parse = |text: &str| Manifest::parse(text.as_bytes(), &TemplateId::of(text.as_bytes()));
        let later = document.replace("template/v1", "template/v2").replace("bytes", "size");
        assert_eq!(
            parse(&later),
            Err(DocumentError::Version { found: "saggar.template/v2".into(), known: "saggar.template/v1" })
        );
        let more = document.replacen('{', r#"{"more":1,"#, 1);
        let (start, end) = (document.find('[').unwrap(), document.find(']').unwrap());
        let bare = format!("{}{}", &document[..=start], &document[end..]);
        for wrong in [more.as_str(), bare.as_str(), "", "{}", "null"] {
            assert!(matches!(parse(wrong), Err(DocumentError::Malformed(_))), "{wrong}");
        }
    }
}
