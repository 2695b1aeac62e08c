//! Bodies: text from a model, a tool or a person. Small ones are stored in the record, large ones in a blob.

use serde::{Deserialize, Serialize};

/// Maximum size of a body inside a record, in bytes. A longer body is a blob, named by its hash.
pub const BODY_INLINE_MAX: usize = 16 * 1024;

/// A piece of text. The engine never interprets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    Text(String),
    /// A blob stored beside the journal.
    Blob {
        /// SHA-256 of its bytes, in hexadecimal.
        hash: String,
        /// Length in bytes.
        length: u64,
    },
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Body {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The text; `None` if it is a blob.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Blob { .. } => None,
        }
    }

    /// In bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Blob { length, .. } => *length,
        }
    }

    /// Whether it must be stored as a blob.
    pub fn is_too_long(&self) -> bool {
        match self {
            Self::Text(text) => text.len() > BODY_INLINE_MAX,
            Self::Blob { .. } => false,
        }
    }
}
