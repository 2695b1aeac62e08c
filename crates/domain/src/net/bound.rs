//! Hosts that secrets are bound to.

use crate::net::pattern::HostPattern;
use crate::net::ports::Ports;
use crate::net::rule::{Kind, Rule, Scheme};
use crate::net::rules::Rules;

impl Rules {
    /// Adds the rules of secrets' bindings. They allow nothing; a host that one of them names is inspected.
    pub fn with_bound<'a>(mut self, rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        self.bound.extend(rules.into_iter().filter_map(|Rule(kind)| match kind {
            Kind::Match(rule) => Some(rule.clone()),
            Kind::Set(_) => None,
        }));
        self
    }

    /// Whether some request that a binding's rule is for could be allowed. Without one, the secret has no use.
    pub fn could_allow(&self, Rule(kind): &Rule) -> bool {
        let Kind::Match(bound) = kind else { return false };
        self.allow_hosts().any(|host| host.overlaps(&bound.host))
    }
}

/// Why a secret can't be bound to a rule.
pub(crate) fn check_bound(Rule(kind): &Rule) -> Result<(), &'static str> {
    let Kind::Match(rule) = kind else { return Err("a set can mean other hosts in another version") };
    match &rule.host {
        HostPattern::Any => return Err("every host would get it"),
        HostPattern::Range(_) => return Err("an address says nothing about who answers there"),
        HostPattern::Below(parent) if !parent.as_str().contains('.') => {
            return Err("everyone can have a host below such a name");
        }
        HostPattern::Below(_) | HostPattern::Exact(_) => {}
    }
    if rule.scheme == Some(Scheme::Http) || rule.ports == Ports::one(80) {
        return Err("a secret is never sent over plain http");
    }
    Ok(())
}
