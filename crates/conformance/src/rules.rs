//! Which cases must fail when an enforcement rule is switched off: data for the mutation check.

use saggar_domain::{Code, Problem};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Teeth {
    pub rule: String,
    /// At least one of these fails without the rule.
    #[serde(default)]
    pub cases: Vec<String>,
    /// Other rules that stop the same attempts, and must be off too for the difference to show.
    #[serde(default, rename = "with")]
    pub backups: Vec<String>,
    /// What the host must have for the difference to show: a file, or `cgroup v1`.
    #[serde(default)]
    pub needs: Option<String>,
    /// Whether the machine of `make test-vm` can show it if this host can't.
    #[serde(default)]
    pub in_machine: bool,
    /// Whether it shows only when an ordinary user runs the probe.
    #[serde(default)]
    pub as_ordinary_user: bool,
    /// Why no case can show it.
    #[serde(default)]
    pub untested: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<Teeth>,
}

pub fn teeth() -> Result<Vec<Teeth>, Problem> {
    let file: File = toml::from_str(include_str!("../../../conformance/rules.toml")).map_err(|error| {
        Problem::new(
            Code::InvalidSpec,
            format!("conformance/rules.toml can't be read: {error}"),
            "this is a defect of the build; report it",
        )
    })?;
    Ok(file.rule)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_has_a_case_and_every_case_and_rule_named_is_there() {
        let rules: BTreeSet<String> = saggar_sandbox::rules().into_iter().map(saggar_sandbox::Rule::name).collect();
        let cases: BTreeSet<String> = crate::cases().unwrap().into_iter().map(|case| case.id).collect();
        let mut named = BTreeSet::new();
        for entry in teeth().unwrap() {
            assert!(entry.untested.is_some() == entry.cases.is_empty(), "{}: cases, or a reason for none", entry.rule);
            for id in &entry.cases {
                assert!(cases.contains(id), "{}: no case {id}", entry.rule);
            }
            for backup in &entry.backups {
                assert!(rules.contains(backup) && *backup != entry.rule, "{}: no rule {backup}", entry.rule);
            }
            assert!(named.insert(entry.rule.clone()), "{} occurs twice", entry.rule);
        }
        assert_eq!(named, rules);
    }
}
