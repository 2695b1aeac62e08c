//! Capabilities of a host, as `saggar doctor` reports them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub const CAPABILITIES_SCHEMA: &str = "saggar.capabilities/v1";

/// Everything that was tried, by kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub schema: Cow<'static, str>,
    /// Version of this binary.
    pub version: Cow<'static, str>,
    /// Kernel release and machine, as the kernel reports them.
    pub host: String,
    /// `root` or `ordinary user`; the two get different capabilities.
    pub identity: Cow<'static, str>,
    /// Whether the default tier can start.
    pub is_ready: bool,
    pub tiers: Vec<Capability>,
    pub filesystem: Vec<Capability>,
    pub network: Vec<Capability>,
    pub limits: Vec<Capability>,
    /// The kernel mechanisms under them, one by one.
    pub mechanisms: Vec<Capability>,
    /// What a killed predecessor left behind and this process removed.
    pub reaped: Vec<String>,
}

/// One feature that a host may provide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    pub name: String,
    pub status: Support,
    pub reason: String,
    /// What to do about it; empty if nothing can be done.
    pub remedy: String,
    /// The kernel feature that implements it.
    pub mechanism: String,
}

/// How far a capability can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// Tried; works and is enforced.
    Supported,
    /// Works, with a gap that the reason names.
    Experimental,
    /// Not available; requests for it are refused.
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
    pub fn supported(name: &str, mechanism: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(Support::Supported, name, mechanism.into(), reason.into(), String::new())
    }

    pub fn unsupported(
        name: &str,
        mechanism: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(Support::Unsupported, name, mechanism.into(), reason.into(), remedy.into())
    }

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
