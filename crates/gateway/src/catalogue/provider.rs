//! Providers: who is asked, where, and with which keys.

use std::time::Duration;

use saggar_domain::model::Wire;
use saggar_domain::net::{EgressDraft, Host, Rule, Rules};
use saggar_domain::secret::SecretName;
use saggar_egress::outside::{HttpAddress, own_networks};

/// A provider as the operator has set it up.
#[derive(Debug)]
pub struct Provider {
    pub name: String,
    pub endpoint: Endpoint,
    /// Names of secrets. Calls are spread over them.
    pub keys: Vec<SecretName>,
    pub connect_timeout: Duration,
    /// Until the answer begins.
    pub first_byte_timeout: Duration,
    /// Between two pieces of an answer.
    pub idle_timeout: Duration,
    /// For a whole call.
    pub timeout: Duration,
}

#[derive(Debug)]
pub enum Endpoint {
    /// Over HTTP.
    Remote {
        address: Box<HttpAddress>,
        dialect: Dialect,
        /// Where connections may go: to this very place.
        rules: Box<Rules>,
    },
    /// Answers by a list of turns, without a network.
    Scripted,
    /// Answers what a journal has recorded, without a network.
    Replay,
}

/// How a provider's wire differs from others that speak the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Anthropic,
    Gemini,
    /// Any server that speaks OpenAI's chat completions.
    Compatible,
    /// It knows only `max_tokens`.
    Ollama,
}

impl Dialect {
    /// The wire that a target speaks unless it says otherwise.
    pub fn wire(self) -> Wire {
        match self {
            Self::OpenAi | Self::Compatible | Self::Ollama => Wire::Chat,
            Self::Anthropic => Wire::Anthropic,
            Self::Gemini => Wire::Gemini,
        }
    }

    pub fn speaks(self, wire: Wire) -> bool {
        match self {
            Self::OpenAi => matches!(wire, Wire::Chat | Wire::Responses),
            Self::Compatible | Self::Ollama => matches!(wire, Wire::Chat | Wire::Responses | Wire::Anthropic),
            Self::Anthropic => wire == Wire::Anthropic,
            Self::Gemini => wire == Wire::Gemini,
        }
    }

    pub(super) fn default_url(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("https://api.openai.com/v1"),
            Self::Anthropic => Some("https://api.anthropic.com"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com/v1beta"),
            Self::Compatible => None,
            Self::Ollama => Some("http://127.0.0.1:11434/v1"),
        }
    }
}

/// The rules for one address. A name that the operator has written may lead to their own networks.
pub(super) fn rules_for(address: &HttpAddress) -> Result<Rules, String> {
    let to = address.to();
    let mut allow: Vec<Rule> =
        vec![format!("{}://{to}", address.scheme()).parse().map_err(|error| format!("{error}"))?];
    if matches!(to.host, Host::Name(_)) {
        allow.extend(own_networks(to.port));
    }
    Rules::new(EgressDraft::of(allow, Vec::new())).map_err(|problem| problem.message)
}
