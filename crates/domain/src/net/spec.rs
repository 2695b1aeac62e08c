//! The network rules of a spec.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::mode::NetworkMode;
use crate::net::limits::EgressLimits;
use crate::net::refusal::RuleRef;
use crate::net::rule::{Kind, Match, Rule};
use crate::net::rules::Entry;
use crate::net::sets::Set;
use crate::problem::{Code, Problem};
use crate::table::{joined, only_from_a_table};

/// Maximum number of rules of one sandbox, sets counted as one.
const RULES_MAX: usize = 512;
/// Maximum length of all rules together, in bytes, so that they fit one message.
const TEXT_LEN_MAX: usize = 64 * 1024;

/// Rules for network mode `proxied`, as they were asked for: sets are named, not expanded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct EgressDraft {
    /// Without any, everything is denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    /// Wins over every allow rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
    /// How much of the network may be used.
    #[serde(skip_serializing_if = "EgressLimits::is_empty")]
    pub limits: EgressLimits,
}

only_from_a_table!(EgressDraft);

impl EgressDraft {
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty() && self.limits.is_empty()
    }

    /// These rules, without limits.
    pub fn of(allow: Vec<Rule>, deny: Vec<Rule>) -> Self {
        Self { allow, deny, limits: EgressLimits::default() }
    }

    /// Joins the lists. Fails if both give different values for a limit.
    pub fn merge(self, other: Self) -> Result<Self, Problem> {
        Ok(Self {
            allow: joined(self.allow, other.allow),
            deny: joined(self.deny, other.deny),
            limits: self.limits.merge(other.limits)?,
        })
    }

    /// Rules have a meaning only where something applies them.
    pub(crate) fn check_mode(&self, mode: Option<NetworkMode>) -> Result<(), Problem> {
        match mode {
            Some(NetworkMode::Proxied) => Ok(()),
            None | Some(NetworkMode::None | NetworkMode::Host) if self.is_empty() => Ok(()),
            None | Some(NetworkMode::None | NetworkMode::Host) => Err(Problem::new(
                Code::Contradiction,
                format!("there are network rules, and the network mode is {}", mode.unwrap_or(NetworkMode::None)),
                "rules need the mode `proxied`: add `--net proxied` (`network = \"proxied\"` in a spec), or leave the rules out",
            )),
        }
    }

    pub(crate) fn check_size(&self) -> Result<(), Problem> {
        self.limits.check()?;
        let help = "use wider rules, such as *.example.com or a set";
        let count = self.allow.len() + self.deny.len();
        if count > RULES_MAX {
            let message = format!("{count} network rules are more than {RULES_MAX}");
            return Err(Problem::new(Code::InvalidValue, message, help));
        }
        let len: usize = self.allow.iter().chain(&self.deny).map(|rule| rule.to_string().len()).sum();
        if len > TEXT_LEN_MAX {
            let message = format!("the network rules have {len} bytes together, more than {TEXT_LEN_MAX}");
            return Err(Problem::new(Code::InvalidValue, message, help));
        }
        Ok(())
    }

    pub(super) fn expanded_allow(&self) -> Result<Vec<Entry>, Problem> {
        expanded(&self.allow, Match::clone)
    }

    /// A set that is denied is denied altogether: the methods and paths that it would allow say nothing about the others.
    pub(super) fn expanded_deny(&self) -> Result<Vec<Entry>, Problem> {
        expanded(&self.deny, Match::without_requests)
    }
}

fn expanded(rules: &[Rule], of_set: fn(&Match) -> Match) -> Result<Vec<Entry>, Problem> {
    let mut entries = Vec::new();
    for Rule(kind) in rules {
        match kind {
            Kind::Match(rule) => entries.push(Entry { rule: rule.clone(), text: RuleRef(rule.to_string()) }),
            Kind::Set(name) => {
                let set = Set::find(&name.to_string())?;
                entries.extend(set.matches().iter().map(of_set).map(|rule| {
                    let text = RuleRef(format!("@{name}: {rule}"));
                    Entry { rule, text }
                }));
            }
        }
    }
    Ok(entries)
}

/// The rules as the policy hash covers them: those of sets too, because a set may change between versions; sorted, because order has
/// no meaning.
pub(crate) fn as_policy<S: Serializer>(draft: &EgressDraft, serializer: S) -> Result<S::Ok, S::Error> {
    let has_limits = !draft.limits.is_empty();
    let mut table = serializer.serialize_struct("Egress", if has_limits { 3 } else { 2 })?;
    table.serialize_field("allow", &covered(&draft.allow, Match::clone))?;
    table.serialize_field("deny", &covered(&draft.deny, Match::without_requests))?;
    // Absent where nothing was asked for, so that specs without limits keep their hash.
    if has_limits {
        table.serialize_field("limits", &draft.limits)?;
    }
    table.end()
}

fn covered(rules: &[Rule], of_set: fn(&Match) -> Match) -> Vec<String> {
    let mut texts = Vec::new();
    for rule in rules {
        match expanded(std::slice::from_ref(rule), of_set) {
            Ok(entries) => texts.extend(entries.iter().map(|entry| entry.rule.to_string())),
            // A set of another version is covered by its name.
            Err(_) => texts.push(rule.to_string()),
        }
    }
    texts.sort_unstable();
    texts.dedup();
    texts
}
