//! The output of a probe: one JSON object per case, as `saggar probe --json` prints them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

/// One runtime's results, in the order of the cases.
#[derive(Debug)]
pub struct Results(pub Vec<CaseResult>);

/// The part of a result that is compared.
#[derive(Debug, Deserialize)]
pub struct CaseResult {
    pub id: String,
    pub title: String,
    pub verdict: String,
    pub observed: BTreeMap<String, String>,
    #[serde(default)]
    pub documented: Option<String>,
    #[serde(default)]
    pub reasons: Vec<String>,
}

impl Results {
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(|line| serde_json::from_str(line).context("a line is no result"));
        lines.collect::<Result<_>>().map(Self)
    }

    pub fn of(&self, id: &str) -> Option<&CaseResult> {
        self.0.iter().find(|result| result.id == id)
    }
}

impl CaseResult {
    pub fn is_applicable(&self) -> bool {
        self.verdict != "not-applicable"
    }

    /// The members that got through: each reason for a failure begins with its member's name.
    pub fn breaches(&self) -> Vec<&str> {
        let names = self.reasons.iter().filter_map(|reason| reason.split_once(": observed "));
        names.map(|(member, _)| member).collect()
    }

    /// A reason that concerns the run and not a member.
    pub fn obstacle(&self) -> Option<&str> {
        self.reasons.iter().map(String::as_str).find(|reason| !reason.contains(": observed "))
    }
}

/// Whether an outcome means that something got through.
pub fn is_open(outcome: &str) -> bool {
    outcome.starts_with("allowed") || outcome.starts_with("broken")
}
