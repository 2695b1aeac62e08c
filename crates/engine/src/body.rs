//! Bodies: what a model, a tool or a person said. Small ones travel in the record, large ones beside it.

use serde::{Deserialize, Serialize};

/// The most bytes of a body inside a record; what is longer is a blob, named by its hash.
pub const BODY_INLINE_MAX: usize = 16 * 1024;

/// Something that was said. The engine never looks inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// The text itself.
    Text(String),
    /// A blob beside the journal.
    Blob {
        /// SHA-256 of its bytes, in hexadecimal.
        hash: String,
        /// How long it is.
        length: u64,
    },
}

impl Body {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The text, where it is in the record.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Blob { .. } => None,
        }
    }

    /// Whether it belongs beside the record and not in it.
    pub fn is_too_long(&self) -> bool {
        match self {
            Self::Text(text) => text.len() > BODY_INLINE_MAX,
            Self::Blob { .. } => false,
        }
    }
}
