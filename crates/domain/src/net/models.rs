//! The name of the server's models: decided apart from all rules, because no rule can lead it anywhere else.
//!
//! Deny rules apply to it as to every name. Allow rules don't: whether a sandbox may call models is a part of its spec.

use crate::net::address::MODEL_HOST;
use crate::net::authority::Destination;
use crate::net::refusal::Refusal;
use crate::net::rules::{Passage, Rules};

/// What decisions name as the rule that has allowed it.
pub(super) const MODEL_RULE: &str = "models";

impl Rules {
    /// Lets programs call models, under [`MODEL_HOST`].
    #[must_use]
    pub fn with_models(mut self, has_models: bool) -> Self {
        self.has_models = has_models;
        self
    }

    /// What becomes of a connection to the models, unless a rule denies it.
    pub(super) fn to_models(&self, to: &Destination) -> Passage {
        if !self.has_models {
            return Passage::Denied(Refusal::new(
                "egress/models",
                format!("{MODEL_HOST} is for sandboxes that may call models, and this one may not"),
                "create the sandbox on a server that has models, with `models` in its spec",
            ));
        }
        if !matches!(to.port, 80 | 443) {
            return Passage::Denied(Refusal::new(
                "egress/models",
                format!("models answer at the ports 80 and 443 of {MODEL_HOST}, not at {}", to.port),
                "leave the port out",
            ));
        }
        Passage::Inspect
    }
}

impl Destination {
    /// Whether it is what programs in a sandbox call the models of their server.
    pub fn is_of_models(&self) -> bool {
        is_of_models(self)
    }
}

pub(super) fn is_of_models(to: &Destination) -> bool {
    to.host.name().is_some_and(|name| name.as_str() == MODEL_HOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Wire, parse_authority};

    fn rules(json: &str) -> Rules {
        serde_json::from_str(json).unwrap()
    }

    fn to(port: u16) -> Destination {
        parse_authority(format!("{MODEL_HOST}:{port}").as_bytes(), None).unwrap()
    }

    #[test]
    fn no_rule_leads_to_models_and_every_deny_rule_does() {
        for (json, has_models, is_open) in [
            ("{}", true, true),
            ("{}", false, false),
            (r#"{"allow": ["model.internal", "*.internal:*", "*:*"]}"#, false, false),
            (r#"{"deny": ["*.internal"]}"#, true, false),
            (r#"{"deny": ["model.internal:80"]}"#, true, false),
        ] {
            let rules = rules(json).with_models(has_models);
            assert_eq!(rules.connection(&to(80)) == Passage::Inspect, is_open, "{json}");
            assert_eq!(rules.request(&to(80), "POST", "/v1/messages").is_ok(), is_open, "{json}");
        }
        let models = rules("{}").with_models(true);
        assert_eq!((models.wire(&to(80)), models.wire(&to(443))), (Wire::Http, Wire::Tls));
        assert!(matches!(models.connection(&to(8080)), Passage::Denied(refusal) if refusal.rule == "egress/models"));
        let denied = rules(r#"{"deny": ["POST model.internal"]}"#).with_models(true);
        assert!(denied.request(&to(80), "POST", "/v1/messages").is_err());
        assert!(denied.request(&to(80), "GET", "/v1/models").is_ok());
    }
}
