//! The peers, and what they claim: `conformance/peers.toml`.

use anyhow::{Context, Result};
use serde::Deserialize;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// Members that judge nobody but Saggar.
    pub ours: Vec<Ours>,
    pub peer: Vec<Peer>,
}

/// Members that judge a choice of Saggar's own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    pub cases: Vec<String>,
    pub members: Vec<String>,
    pub why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    pub name: String,
    /// What must be installed.
    pub program: String,
    /// What prints its version.
    pub version: String,
    /// Whether root runs it, or an ordinary user.
    pub as_root: bool,
    pub command: String,
    pub about: String,
    pub stance: Vec<Stance>,
}

/// What it says of some cases, or of some of their members.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stance {
    pub kind: Kind,
    pub cases: Vec<String>,
    #[serde(default)]
    pub members: Vec<String>,
    pub why: String,
    pub source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Claims,
    NoClaim,
    OwnKernel,
}

impl Peers {
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).context("reading conformance/peers.toml")
    }

    /// Whether a member judges nobody but Saggar.
    pub fn is_ours(&self, case: &str, member: &str) -> bool {
        self.ours.iter().any(|ours| contains(&ours.cases, case) && contains(&ours.members, member))
    }
}

impl Peer {
    /// What it says of this member: a word on the member goes before one on its case.
    pub fn stance_on(&self, case: &str, member: &str) -> Option<&Stance> {
        let about = || self.stance.iter().filter(|stance| contains(&stance.cases, case));
        about()
            .find(|stance| contains(&stance.members, member))
            .or_else(|| about().find(|stance| stance.members.is_empty()))
    }
}

fn contains(list: &[String], text: &str) -> bool {
    list.iter().any(|one| one == text)
}
