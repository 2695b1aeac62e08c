//! What a host can give: the answer of `saggar doctor`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The schema of [`Capabilities`].
pub const CAPABILITIES_SCHEMA: &str = "saggar.capabilities/v1";

/// Everything that was tried, by kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// [`CAPABILITIES_SCHEMA`].
    pub schema: Cow<'static, str>,
    /// Version of this program.
    pub version: Cow<'static, str>,
    /// Kernel release and machine, as the kernel says.
    pub host: String,
    /// `root` or `ordinary user`: what the host gives differs.
    pub identity: Cow<'static, str>,
    /// Whether the default tier can start.
    pub is_ready: bool,
    pub tiers: Vec<Capability>,
    pub filesystem: Vec<Capability>,
    pub network: Vec<Capability>,
    pub limits: Vec<Capability>,
    /// The kernel mechanisms under them, one by one.
    pub mechanisms: Vec<Capability>,
    /// What a killed predecessor left behind and this start removed.
    pub reaped: Vec<String>,
}

/// One thing a host may give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    pub name: String,
    pub status: Support,
    /// Why, in one sentence.
    pub reason: String,
    /// What to do about it; empty when there is nothing to do.
    pub remedy: String,
    /// What it is done with.
    pub mechanism: String,
}

/// How far a capability can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// Tried, works, enforced.
    Supported,
    /// Works, with a gap that the reason names.
    Experimental,
    /// Not here; asking for it is refused.
    Unsupported,
}

impl Support {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Experimental => "experimental",
            Self::Unsupported => "unsupported",
        }
    }
}

impl Capability {
    /// Tried, and works.
    pub fn supported(name: &str, mechanism: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(Support::Supported, name, mechanism.into(), reason.into(), String::new())
    }

    /// Tried, and doesn't work here.
    pub fn unsupported(
        name: &str,
        mechanism: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(Support::Unsupported, name, mechanism.into(), reason.into(), remedy.into())
    }

    /// Works with a gap.
    pub fn experimental(
        name: &str,
        mechanism: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(Support::Experimental, name, mechanism.into(), reason.into(), remedy.into())
    }

    fn new(status: Support, name: &str, mechanism: String, reason: String, remedy: String) -> Self {
        Self { name: name.to_owned(), status, reason, remedy, mechanism }
    }
}
