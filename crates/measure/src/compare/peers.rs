//! The peers and their claims: `conformance/peers.toml`.

use anyhow::{Context, Result};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// Members that apply only to Saggar.
    pub ours: Vec<Ours>,
    pub peer: Vec<Peer>,
}

/// Members that test a design choice of Saggar's own.
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
    /// The program that must be installed.
    pub program: String,
    /// The command that prints its version.
    pub version: String,
    /// Whether it runs as root, or as an ordinary user.
    pub as_root: bool,
    pub command: String,
    pub about: String,
    pub stance: Vec<Stance>,
}

/// Its claim about some cases, or about some of their members.
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

    /// Whether a member applies only to Saggar.
    pub fn is_ours(&self, case: &str, member: &str) -> bool {
        self.ours.iter().any(|ours| contains(&ours.cases, case) && contains(&ours.members, member))
    }
}

impl Peer {
    /// Its claim about this member: a claim about the member takes precedence over one about its case.
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
