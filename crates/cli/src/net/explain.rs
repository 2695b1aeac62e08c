//! Explains what rules say about a destination or a request.

use saggar_domain::net::{Destination, Passage, Refusal, RuleRef, Rules, Wire, parse_authority};
use saggar_domain::secret::SecretName;
use saggar_domain::{Code, Problem};
use serde_json::{Value, json};

use super::bindings::Bindings;

/// What rules say about one target.
pub(crate) struct Explained {
    /// The target in words.
    what: String,
    target: Value,
    answer: Answer,
    /// The secrets that it gets.
    secrets: Vec<SecretName>,
    /// Those that these rules leave without a use.
    unused: Vec<SecretName>,
}

enum Answer {
    Allowed {
        rule: RuleRef,
        how: &'static str,
    },
    /// These rules decide each request.
    Inspected {
        allow: Vec<RuleRef>,
        deny: Vec<RuleRef>,
    },
    Denied(Refusal),
}

impl Explained {
    fn new(what: String, target: Value, answer: Answer) -> Self {
        Self { what, target, answer, secrets: Vec::new(), unused: Vec::new() }
    }

    pub(crate) fn is_allowed(&self) -> bool {
        !matches!(self.answer, Answer::Denied(_))
    }

    pub(crate) fn text(&self) -> String {
        let what = &self.what;
        let mut text = match &self.answer {
            Answer::Allowed { rule, how } => format!("{what} is allowed\n  rule: {rule}\n  how: {how}\n"),
            Answer::Inspected { allow, deny } => {
                let lines = |word: &str, rules: &[RuleRef]| -> String {
                    rules.iter().map(|rule| format!("  {word}: {rule}\n")).collect()
                };
                let (allow, deny) = (lines("allow", allow), lines("deny", deny));
                format!("{what} is inspected: these rules decide each request\n{allow}{deny}")
            }
            Answer::Denied(refusal) => {
                format!("{what} is denied: {}\n  rule: {}\n  help: {}\n", refusal.message, refusal.rule, refusal.help)
            }
        };
        for name in &self.secrets {
            text.push_str(&format!("  secret: {name}\n"));
        }
        for name in &self.unused {
            text.push_str(&format!("  warning: no rule allows a host that the secret {name} is bound to\n"));
        }
        text
    }

    pub(crate) fn json(&self) -> String {
        let mut shown = match &self.answer {
            Answer::Allowed { rule, how } => json!({ "verdict": "allowed", "rule": rule, "how": how }),
            Answer::Inspected { allow, deny } => json!({ "verdict": "inspected", "allow": allow, "deny": deny }),
            Answer::Denied(Refusal { rule, message, help }) => {
                json!({ "verdict": "denied", "rule": rule, "reason": message, "help": help })
            }
        };
        shown["target"] = self.target.clone();
        for (field, names) in [("secrets", &self.secrets), ("unused_secrets", &self.unused)] {
            if !names.is_empty() {
                shown[field] = json!(names);
            }
        }
        format!("{shown}\n")
    }
}

/// `words` are a target, or a method and a target.
pub(crate) fn explain(rules: Rules, bindings: &Bindings, words: &[String]) -> Result<Explained, Problem> {
    let rules = bindings.bind(rules);
    let (target, method) = words.split_last().expect("clap takes one or two words");
    let method = method.first().map(String::as_str);
    let (to, path) = parse_target(target)?;
    let request = match (method, path) {
        (None, None) => None,
        (method, path) => Some((method.unwrap_or("GET"), path.unwrap_or("/"))),
    };
    let mut explained = match request {
        None => explain_connection(&rules, &to),
        Some((method, path)) => explain_request(&rules, &to, method, path),
    };
    if explained.is_allowed() {
        explained.secrets = bindings.used(&to, request);
    }
    explained.unused = bindings.unused(&rules);
    Ok(explained)
}

fn explain_connection(rules: &Rules, to: &Destination) -> Explained {
    let answer = match rules.connection(to) {
        Passage::Denied(refusal) => Answer::Denied(refusal),
        Passage::Inspect => {
            let (allow, deny) = rules.about(to);
            Answer::Inspected { allow, deny }
        }
        Passage::Tunnel { rule } => {
            let how = match rules.wire(to) {
                Wire::Http => "plain HTTP; the Host header of each request must be this host",
                Wire::Tls | Wire::Either => "TLS for this name passes through; requests are not seen",
            };
            Answer::Allowed { rule, how }
        }
        Passage::Raw { rule } => {
            Answer::Allowed { rule, how: "bytes pass as they are, whatever the protocol; requests are not seen" }
        }
    };
    let target = json!({ "host": to.host.to_string(), "port": to.port });
    Explained::new(to.to_string(), target, answer)
}

fn explain_request(rules: &Rules, to: &Destination, method: &str, path: &str) -> Explained {
    let answer = match rules.request(to, method, path) {
        Err(refusal) => Answer::Denied(refusal),
        Ok(rule) => {
            let how = match rules.connection(to) {
                Passage::Inspect => "requests to this host are inspected",
                Passage::Tunnel { .. } | Passage::Raw { .. } | Passage::Denied(_) if to.port == 80 => {
                    "plain HTTP; no rule for this host has a method or a path"
                }
                Passage::Tunnel { .. } | Passage::Raw { .. } | Passage::Denied(_) => {
                    "requests to this host are not seen: no rule for it has a method or a path"
                }
            };
            Answer::Allowed { rule, how }
        }
    };
    let target = json!({ "host": to.host.to_string(), "port": to.port, "method": method, "path": path });
    Explained::new(format!("{method} {path} on {to}"), target, answer)
}

/// A destination, and a path with its query if there is one.
fn parse_target(text: &str) -> Result<(Destination, Option<&str>), Problem> {
    let wrong = |why: String| {
        Problem::new(
            Code::InvalidValue,
            format!("{text:?} is no target: {why}"),
            "write a URL, or HOST[:PORT][/PATH], such as api.example.com or https://api.example.com/v1",
        )
    };
    let (port, rest) = match text.split_once("://") {
        Some(("https", rest)) => (443, rest),
        Some(("http", rest)) => (80, rest),
        Some(_) => return Err(wrong("it is neither https nor http".to_owned())),
        None => (443, text),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = match rest.find(['/', '?']) {
        Some(end) if rest[end..].starts_with('/') => (&rest[..end], Some(&rest[end..])),
        // A query without a path belongs to the front page, which is all that rules see of it.
        Some(end) => (&rest[..end], Some("/")),
        None => (rest, None),
    };
    // The path that every URL has doesn't ask about a request.
    let path = path.filter(|path| *path != "/");
    let to = parse_authority(authority.as_bytes(), Some(port)).map_err(|error| wrong(error.to_string()))?;
    Ok((to, path))
}
