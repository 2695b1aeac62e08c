//! What an agent's definition says about the sandbox of its runs: its network, the rules for it, and the secrets of its requests.
//!
//! The parts have the types of a sandbox's spec and mean the same there. It has no environment, because a definition is stored and
//! an environment may hold secrets; and nothing of the host.

use serde::{Deserialize, Serialize};

use crate::mode::NetworkMode;
use crate::net::EgressDraft;
use crate::problem::{Code, Problem};
use crate::secret::SecretUse;
use crate::spec::{Draft, Spec};
use crate::table::{joined, only_from_a_table};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct AgentSandbox {
    /// `none` or `proxied`; `none` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkMode>,
    /// Rules for network mode `proxied`.
    #[serde(skip_serializing_if = "EgressDraft::is_empty")]
    pub egress: EgressDraft,
    /// Secrets that requests get on their way out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
}

only_from_a_table!(AgentSandbox);

impl AgentSandbox {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The spec of the sandbox.
    pub fn draft(&self) -> Draft {
        let Self { network, egress, secrets } = self.clone();
        Draft { network, egress, secrets, ..Draft::default() }
    }

    /// Refuses what could only fail when the sandbox is made.
    pub fn check(&self) -> Result<(), Problem> {
        match self.network {
            None | Some(NetworkMode::None | NetworkMode::Proxied) => Spec::resolve(self.draft()).map(drop),
            Some(NetworkMode::Host) => Err(Problem::new(
                Code::UnsupportedCapability,
                "the sandbox of a run can't have the network mode host",
                "use `proxied` with rules for what its programs may reach, or `none`",
            )),
        }
    }

    /// The first thing that this one may use and the other may not, in words. Rules are compared as they are written: one that is
    /// narrower than another must still be written there.
    pub fn beyond(&self, other: &Self) -> Option<String> {
        if self.is_proxied() && !other.is_proxied() {
            return Some("the network mode proxied".to_owned());
        }
        let rule = self.egress.allow.iter().find(|rule| !other.egress.allow.contains(rule));
        let secret = self.secrets.iter().find(|used| !other.uses(used));
        rule.map(|rule| format!("the rule {:?}", rule.to_string()))
            .or_else(|| secret.map(|used| format!("the secret {}", used.name)))
    }

    /// What of this one the other may use, too. What the other denies stays denied, and its limits hold.
    pub fn within(self, other: &Self) -> Self {
        if !(self.is_proxied() && other.is_proxied()) {
            return Self::default();
        }
        let Self { network, egress: EgressDraft { mut allow, deny, limits }, mut secrets } = self;
        allow.retain(|rule| other.egress.allow.contains(rule));
        secrets.retain(|used| other.uses(used));
        let (deny, limits) = (joined(deny, other.egress.deny.clone()), limits.within(&other.egress.limits));
        Self { network, egress: EgressDraft { allow, deny, limits }, secrets }
    }

    fn is_proxied(&self) -> bool {
        self.network == Some(NetworkMode::Proxied)
    }

    /// Whether it uses the same secret. The variable is the program's business.
    fn uses(&self, used: &SecretUse) -> bool {
        self.secrets.iter().any(|own| own.name == used.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(json: &str) -> AgentSandbox {
        serde_json::from_str(json).unwrap()
    }

    const PARENT: &str = r#"{"network": "proxied", "egress": {"allow": ["a.example", "@pypi"], "deny": ["c.example"]},
        "secrets": [{"name": "api", "env": "KEY"}]}"#;

    #[test]
    fn a_sandbox_may_use_at_most_what_the_other_may() {
        for (json, beyond) in [
            ("{}", None),
            (PARENT, None),
            (r#"{"network": "proxied"}"#, None),
            (r#"{"network": "proxied", "egress": {"allow": ["@pypi"], "deny": ["d.example"]}}"#, None),
            (r#"{"network": "proxied", "secrets": [{"name": "api"}]}"#, None),
            (r#"{"network": "proxied", "egress": {"allow": ["b.example"]}}"#, Some(r#"the rule "b.example""#)),
            // Narrower, and not written there.
            (r#"{"network": "proxied", "egress": {"allow": ["GET a.example"]}}"#, Some(r#"the rule "GET a.example""#)),
            (r#"{"network": "proxied", "secrets": [{"name": "other"}]}"#, Some("the secret other")),
        ] {
            assert_eq!(sandbox(json).beyond(&sandbox(PARENT)).as_deref(), beyond, "{json}");
            let within = sandbox(json).within(&sandbox(PARENT));
            assert_eq!(within.beyond(&sandbox(PARENT)), None, "{json}");
        }
        assert_eq!(sandbox(PARENT).beyond(&sandbox("{}")).as_deref(), Some("the network mode proxied"));
        assert_eq!(sandbox(PARENT).within(&sandbox("{}")), AgentSandbox::default());
    }

    #[test]
    fn what_the_other_denies_stays_denied() {
        let child = sandbox(r#"{"network": "proxied", "egress": {"allow": ["a.example"], "deny": ["d.example"]}}"#);
        let within = child.within(&sandbox(PARENT));
        assert_eq!(
            within,
            sandbox(
                r#"{"network": "proxied", "egress": {"allow": ["a.example"], "deny": ["d.example", "c.example"]}}"#
            )
        );
    }

    #[test]
    fn contradictions_and_the_network_of_the_host_are_refused() {
        for (json, code) in [
            (r#"{"network": "host"}"#, Code::UnsupportedCapability),
            (r#"{"egress": {"allow": ["a.example"]}}"#, Code::Contradiction),
            (r#"{"secrets": [{"name": "api"}]}"#, Code::Contradiction),
            (r#"{"network": "proxied", "egress": {"allow": ["@nothing"]}}"#, Code::InvalidValue),
        ] {
            assert_eq!(sandbox(json).check().unwrap_err().code, code, "{json}");
        }
        assert_eq!(sandbox(PARENT).check(), Ok(()));
        assert!(serde_json::from_str::<AgentSandbox>(r#"{"env": {"A": "1"}}"#).is_err());
    }
}
