//! What a provider wants back exactly as it came: signatures, encrypted reasoning, blocks of its own tools.

use serde::{Deserialize, Serialize};

/// The protocol that a conversation was spoken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Anthropic,
    /// Gemini's generateContent.
    Gemini,
}

impl Wire {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }
}

/// Who made something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The operator's name of the provider.
    pub provider: String,
    /// The provider's name of the model.
    pub model: String,
}

/// Data of a provider, as JSON in the form of its wire. It goes back only to the same provider and model, and is left out of requests to
/// any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verbatim<T = String> {
    pub wire: Wire,
    pub origin: Origin,
    /// JSON text.
    pub data: T,
}

impl<T> Verbatim<T> {
    /// Whether it may be sent there.
    pub fn is_for(&self, wire: Wire, origin: &Origin) -> bool {
        self.wire == wire && self.origin == *origin
    }

    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<Verbatim<U>, E> {
        Ok(Verbatim { wire: self.wire, origin: self.origin, data: f(self.data)? })
    }
}
