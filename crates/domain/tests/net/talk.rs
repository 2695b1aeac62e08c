//! Short forms for the tests.

use saggar_domain::net::{Destination, EgressDraft, Passage, Rule, Rules, parse_authority};

pub fn draft(allow: &[&str], deny: &[&str]) -> EgressDraft {
    let list = |texts: &[&str]| texts.iter().map(|text| text.parse::<Rule>().unwrap()).collect();
    EgressDraft::of(list(allow), list(deny))
}

pub fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    Rules::new(draft(allow, deny)).unwrap()
}

/// `host:port`; without a port it is 443.
pub fn to(text: &str) -> Destination {
    parse_authority(text.as_bytes(), Some(443)).unwrap()
}

/// `inspect`, `tunnel RULE`, `raw RULE` or the rule of the refusal.
pub fn passage(rules: &Rules, destination: &str) -> String {
    match rules.connection(&to(destination)) {
        Passage::Denied(refusal) => refusal.rule,
        Passage::Inspect => "inspect".to_owned(),
        Passage::Tunnel { rule } => format!("tunnel {rule}"),
        Passage::Raw { rule } => format!("raw {rule}"),
    }
}

/// The rule that allowed a request, or that refused it.
pub fn request(rules: &Rules, destination: &str, method: &str, path: &str) -> String {
    rules.request(&to(destination), method, path).map_or_else(|refusal| refusal.rule, |rule| rule.0)
}
