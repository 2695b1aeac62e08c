//! The records beside the files of a template store: of one layer, and of one name.

use serde::{Deserialize, Serialize};

use super::digest::{ContentDigest, LayerId, TemplateId};
use super::{DocumentError, read};
use crate::mode::choice;
use crate::timestamp::Timestamp;

const LAYER_SCHEMA: &str = "saggar.layer/v1";
const NAME_SCHEMA: &str = "saggar.template-name/v1";
/// Maximum size of either record as a document.
pub const RECORD_BYTES_MAX: u64 = 64 << 10;

/// `layer.json`: what a stored layer is, and what was left out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRecord {
    schema: String,
    pub id: LayerId,
    pub form: LayerForm,
    pub owners: Owners,
    /// Of everything that was stored: names, kinds, permissions, owners, times, attributes and contents.
    pub digest: ContentDigest,
    /// Of the archive that it was made from, uncompressed.
    pub archive: Amount,
    /// Of what is stored: files, directories and others, and all contents.
    pub stored: Amount,
    pub dropped: Dropped,
    /// What it took from the layers below it.
    #[serde(default, skip_serializing_if = "Taken::is_nothing")]
    pub taken: Taken,
    /// Nothing of the layers below it is visible.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_bottom: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    pub entries: u64,
    pub bytes: u64,
}

impl LayerRecord {
    pub fn new(
        id: LayerId,
        owners: Owners,
        digest: ContentDigest,
        archive: Amount,
        stored: Amount,
        dropped: Dropped,
    ) -> Self {
        Self {
            schema: LAYER_SCHEMA.to_owned(),
            id,
            form: LayerForm::Tree,
            owners,
            digest,
            archive,
            stored,
            dropped,
            taken: Taken::Nothing,
            is_bottom: false,
        }
    }

    /// Reads the record of a layer; that of another layer is refused.
    pub fn parse(document: &[u8], id: &LayerId) -> Result<Self, DocumentError> {
        let record: Self = read(document, LAYER_SCHEMA)?;
        if record.id == *id { Ok(record) } else { Err(DocumentError::Changed) }
    }
}

choice!(
    /// How a layer is stored.
    LayerForm {
        /// A directory `tree`, with whiteouts as an overlay mounted with `userxattr` reads them.
        Tree = "tree",
    }
);

choice!(
    /// What a stored layer took from those below it, so where it may be used again. Only written where it says something.
    #[derive(Default)]
    Taken {
        /// It is the same above any layers.
        #[default]
        Nothing = "nothing",
        /// Owner, permissions and attributes of the top directory, which it doesn't describe itself.
        Top = "top",
        /// Other directories or files as well. Its id is that of all layers up to it: what OCI calls a chain id.
        Entries = "entries",
    }
);

impl Taken {
    fn is_nothing(&self) -> bool {
        *self == Self::Nothing
    }
}

choice!(
    /// Whose files a stored layer's are.
    Owners {
        /// Ids of the image, moved into the range of the store.
        Shifted = "shifted",
        /// All belong to the user who imported them; the image's owners are lost.
        Dropped = "dropped",
    }
);

/// How many things of an image were left out of a layer, or changed. All harmless for programs that don't need them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dropped {
    /// Device nodes.
    pub devices: u64,
    /// File capabilities.
    pub capabilities: u64,
    /// Other extended attributes that the store doesn't keep.
    pub attributes: u64,
    /// Set-id bits, which only a store with owners can keep.
    pub set_ids: u64,
    /// Owners with ids that no sandbox has; they become `nobody`.
    pub owners: u64,
}

/// What a name points to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameRecord {
    schema: String,
    pub template: TemplateId,
    /// When the name was last set.
    pub set_at: Timestamp,
}

impl NameRecord {
    pub fn new(template: TemplateId, set_at: Timestamp) -> Self {
        Self { schema: NAME_SCHEMA.to_owned(), template, set_at }
    }

    pub fn parse(document: &[u8]) -> Result<Self, DocumentError> {
        read(document, NAME_SCHEMA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(entries: u64) -> Amount {
        Amount { entries, bytes: entries * 10 }
    }

    #[test]
    fn records_read_as_they_were_written() {
        let id = LayerId::of(b"layer");
        let dropped = Dropped { devices: 2, ..Dropped::default() };
        let layer =
            LayerRecord::new(id.clone(), Owners::Shifted, ContentDigest::of(b"tree"), amount(3), amount(4), dropped);
        let document = serde_json::to_vec(&layer).unwrap();
        assert!(!String::from_utf8_lossy(&document).contains("taken"), "an earlier version reads it");
        let settled = LayerRecord { taken: Taken::Entries, is_bottom: true, ..layer.clone() };
        assert_eq!(LayerRecord::parse(&serde_json::to_vec(&settled).unwrap(), &id), Ok(settled));
        assert_eq!(LayerRecord::parse(&document, &id), Ok(layer));
        assert_eq!(LayerRecord::parse(&document, &LayerId::of(b"other")), Err(DocumentError::Changed));
        let name = NameRecord::new(TemplateId::of(b"x"), Timestamp::from_millis(5));
        assert_eq!(NameRecord::parse(&serde_json::to_vec(&name).unwrap()), Ok(name));
    }

    #[test]
    fn a_form_of_a_later_version_is_refused() {
        let id = LayerId::of(b"layer");
        let layer = LayerRecord::new(
            id.clone(),
            Owners::Dropped,
            ContentDigest::of(b""),
            amount(0),
            amount(0),
            Dropped::default(),
        );
        let text = serde_json::to_string(&layer).unwrap();
        let erofs = text.replace(r#""tree""#, r#""erofs""#);
        assert!(matches!(LayerRecord::parse(erofs.as_bytes(), &id), Err(DocumentError::Malformed(_))));
        let later = text.replace("layer/v1", "layer/v2");
        assert!(matches!(LayerRecord::parse(later.as_bytes(), &id), Err(DocumentError::Version { .. })));
    }
}
