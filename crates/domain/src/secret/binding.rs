//! Bindings: which requests a secret is for, and where in them its value goes.

use serde::{Deserialize, Serialize};

use crate::net::{EgressDraft, Rule, Rules, check_bound};
use crate::problem::{Code, Problem};
use crate::secret::slot::Slot;

/// Maximum number of rules of one binding.
const RULES_MAX: usize = 32;
/// Maximum length of a placeholder's prefix, in bytes.
const PREFIX_LEN_MAX: usize = 32;

/// INVARIANT: at least one rule, each for a named host over TLS; the slot is well-formed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Binding {
    rules: Vec<Rule>,
    slot: Slot,
    placeholder_prefix: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    rules: Vec<Rule>,
    slot: Slot,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placeholder_prefix: Option<String>,
}

impl Binding {
    pub fn new(rules: Vec<Rule>, slot: Slot, placeholder_prefix: Option<String>) -> Result<Self, Problem> {
        if rules.is_empty() || rules.len() > RULES_MAX {
            let message = format!("a secret is bound to {} rules, and needs 1 to {RULES_MAX}", rules.len());
            return Err(invalid(message, "name the host that it is for, such as `api.example.com`"));
        }
        for rule in &rules {
            check_bound(rule)
                .map_err(|why| invalid(format!("a secret can't be bound to `{rule}`: {why}"), "name the host"))?;
        }
        let slot = slot.checked().map_err(|why| invalid(format!("the slot of a secret is wrong: {why}"), SLOTS))?;
        if let Some(prefix) = &placeholder_prefix {
            let is_plain = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
            if prefix.len() > PREFIX_LEN_MAX || !is_plain {
                let message = "the prefix of a placeholder is too long or has other characters than A-Z a-z 0-9 - . _";
                return Err(invalid(message.to_owned(), "write the part that all such keys begin with, such as `sk-`"));
            }
        }
        Ok(Self { rules, slot, placeholder_prefix: placeholder_prefix.filter(|prefix| !prefix.is_empty()) })
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    pub fn placeholder_prefix(&self) -> Option<&str> {
        self.placeholder_prefix.as_deref()
    }

    /// What a program sees in place of the value. `random` must be unpredictable, and new for each sandbox.
    pub fn placeholder(&self, random: [u8; 16]) -> String {
        let prefix = self.placeholder_prefix.as_deref().unwrap_or_default();
        format!("{prefix}saggar-{:032x}", u128::from_be_bytes(random))
    }

    /// The rules as a session applies them: what they allow, the secret is for.
    pub fn matching(&self) -> Rules {
        Rules::new(EgressDraft::of(self.rules.clone(), Vec::new()))
            .expect("few rules, and no set among them, as `new` has checked")
    }
}

impl TryFrom<Written> for Binding {
    type Error = Problem;

    fn try_from(Written { rules, slot, placeholder_prefix }: Written) -> Result<Self, Problem> {
        Self::new(rules, slot, placeholder_prefix)
    }
}

impl From<Binding> for Written {
    fn from(Binding { rules, slot, placeholder_prefix }: Binding) -> Self {
        Self { rules, slot, placeholder_prefix }
    }
}

const SLOTS: &str = "a slot is `bearer`, or one of header, basic, query and sigv4 with its fields";

fn invalid(message: String, help: &str) -> Problem {
    Problem::new(Code::InvalidValue, message, help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::parse_authority;

    fn binding(json: &str) -> Result<Binding, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn every_slot_is_read_and_written_the_same() {
        for slot in [
            r#""bearer""#,
            r#"{"header":{"name":"x-api-key"}}"#,
            r#"{"header":{"name":"authorization","prefix":"token "}}"#,
            r#"{"basic":{"user":"x-access-token"}}"#,
            r#"{"query":{"parameter":"key"}}"#,
            r#"{"sigv4":{"access_key_id":"AKIDEXAMPLE","region":"eu-central-1","service":"s3"}}"#,
        ] {
            let json = format!(r#"{{"rules":["api.example.com"],"slot":{slot},"placeholder_prefix":"sk-"}}"#);
            assert_eq!(serde_json::to_string(&binding(&json).unwrap()).unwrap(), json);
        }
        let written = binding(r#"{"rules":["A.example"],"slot":{"header":{"name":"X-Api-Key"}}}"#).unwrap();
        assert_eq!(written.slot().header(), Some("x-api-key"));
    }

    #[test]
    fn a_secret_is_bound_to_named_hosts_over_tls_alone() {
        for rule in ["a.example", "*.a.example", "POST a.example/v1/**", "https://a.example:8443", "a.example:8443"] {
            let json = format!(r#"{{"rules":["{rule}"],"slot":"bearer"}}"#);
            assert!(binding(&json).is_ok(), "{rule}");
        }
        for rule in
            ["*", "*:8443", "*.com", "http://a.example", "a.example:80", "192.0.2.1", "[::1]", "10.0.0.0/8", "@openai"]
        {
            let json = format!(r#"{{"rules":["{rule}"],"slot":"bearer"}}"#);
            let refused = binding(&json).unwrap_err();
            assert!(refused.contains("a secret can't be bound to"), "{rule}: {refused}");
        }
        assert!(binding(r#"{"rules":[],"slot":"bearer"}"#).is_err());
    }

    #[test]
    fn a_slot_cannot_change_the_meaning_of_a_request() {
        for slot in [
            r#"{"header":{"name":"Host"}}"#,
            r#"{"header":{"name":"content-length"}}"#,
            r#"{"header":{"name":"x y"}}"#,
            r#"{"header":{"name":""}}"#,
            r#"{"header":{"name":":path"}}"#,
            r#"{"header":{"name":"x-key","prefix":"a\r\nb"}}"#,
            r#"{"header":{"name":"x-key","extra":"a"}}"#,
            r#"{"basic":{"user":"a:b"}}"#,
            r#"{"query":{"parameter":"a&b"}}"#,
            r#"{"query":{"parameter":""}}"#,
            r#"{"sigv4":{"access_key_id":"A/B","region":"r","service":"s"}}"#,
            r#"{"sigv4":{"access_key_id":"A","region":"","service":"s"}}"#,
            r#""cookie""#,
        ] {
            assert!(binding(&format!(r#"{{"rules":["a.example"],"slot":{slot}}}"#)).is_err(), "{slot}");
        }
        assert!(binding(r#"{"rules":["a.example"],"slot":"bearer","placeholder_prefix":"a b"}"#).is_err());
        assert!(
            binding(r#"{"rules":["a.example"],"slot":"bearer","value":"x"}"#).is_err(),
            "unknown fields are errors"
        );
    }

    #[test]
    fn slots_that_fill_the_same_place_conflict() {
        let header = |name: &str| Slot::Header { name: name.to_owned(), prefix: String::new() };
        let query = |name: &str| Slot::Query { parameter: name.to_owned() };
        assert!(Slot::Bearer.conflicts(&Slot::Basic { user: String::new() }));
        assert!(Slot::Bearer.conflicts(&header("authorization")));
        assert!(!Slot::Bearer.conflicts(&header("x-api-key")));
        assert!(header("x_api_key").conflicts(&header("x-api-key")));
        assert!(query("key").conflicts(&query("key")));
        assert!(!query("key").conflicts(&query("token")));
        assert!(!query("key").conflicts(&header("key")));
    }

    #[test]
    fn a_placeholder_has_the_prefix_and_the_randomness() {
        let bound = |prefix: Option<&str>| {
            Binding::new(vec!["a.example".parse().unwrap()], Slot::Bearer, prefix.map(str::to_owned)).unwrap()
        };
        assert_eq!(bound(Some("sk-")).placeholder([0xab; 16]), format!("sk-saggar-{}", "ab".repeat(16)));
        assert_eq!(bound(None).placeholder([0; 16]), format!("saggar-{}", "0".repeat(32)));
        assert_eq!(bound(Some("")).placeholder_prefix(), None);
    }

    #[test]
    fn a_binding_matches_by_host_method_and_path() {
        let bound = Binding::new(vec!["POST a.example/v1/**".parse().unwrap()], Slot::Bearer, None).unwrap().matching();
        let to = |text: &str| parse_authority(text.as_bytes(), Some(443)).unwrap();
        assert!(bound.request(&to("a.example"), "POST", "/v1/x?y").is_ok());
        for (host, method, path) in
            [("a.example", "GET", "/v1/x"), ("a.example", "POST", "/v2"), ("b.example", "POST", "/v1/x")]
        {
            assert!(bound.request(&to(host), method, path).is_err(), "{host} {method} {path}");
        }
        assert!(bound.request(&to("a.example"), "POST", "/v1/../v1/x").is_err(), "an ambiguous path is no match");
    }
}
