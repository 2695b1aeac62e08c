//! Templates: immutable stacks of filesystem layers with defaults, by which sandboxes are started.
//!
//! A template is named by the hash of its manifest, a layer by the hash of its content, so neither can change without
//! getting another name. A [`TemplateName`](crate::TemplateName) points to a template and may be moved to another.
//! These are the documents alone: what is on a disk is read and written elsewhere.

mod defaults;
mod digest;
mod given;
mod limits;
mod manifest;
mod record;

pub use defaults::{Defaults, ExposedPort, PortProtocol};
pub use digest::{ContentDigest, LayerId, TemplateId};
pub use given::{Account, GivenByTemplate};
pub use limits::TemplateLimits;
pub use manifest::{BuiltInRoot, Image, ImageSource, LayerEntry, MANIFEST_BYTES_MAX, Manifest};
pub use record::{Amount, Dropped, LayerForm, LayerRecord, NameRecord, Owners, RECORD_BYTES_MAX, Taken};

/// Why a document of a template can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("it is damaged: its content doesn't match its name")]
    Changed,
    #[error("it is of another version: it says {found:?}, and this version of saggar reads {known:?}")]
    Version { found: String, known: &'static str },
    #[error("it can't be read: {0}")]
    Malformed(String),
}

/// Reads a document after its schema: a later version must be named as such, not as an unknown field.
fn read<T: serde::de::DeserializeOwned>(bytes: &[u8], known: &'static str) -> Result<T, DocumentError> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        schema: String,
    }
    let malformed = |error: serde_json::Error| DocumentError::Malformed(error.to_string());
    let Versioned { schema } = serde_json::from_slice(bytes).map_err(malformed)?;
    if schema != known {
        return Err(DocumentError::Version { found: schema, known });
    }
    serde_json::from_slice(bytes).map_err(malformed)
}
