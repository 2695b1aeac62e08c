//! Where the tool `http` may go: the setting `http_allowed` as network rules.
//!
//! An entry is a URL, which allows everything below it, or a rule of the grammar that sandboxes have. A URL with a name may also
//! lead to a private address: the operator has named a service of their own. Rules never do.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;

use saggar_domain::Problem;
use saggar_domain::net::{Destination, EgressDraft, Host, Refusal, Rule, RuleRef, Rules, Wire};
use saggar_egress::outside::{HttpAddress, Security, own_networks};

/// One entry of the setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRule {
    text: String,
    rules: Vec<Rule>,
    /// The destination of a URL with a name.
    named: Option<Destination>,
}

impl FromStr for HttpRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains("://") || text.contains(' ') {
            let rule: Rule = text.parse().map_err(|error| format!("{error}"))?;
            return Ok(Self { text: rule.to_string(), rules: vec![rule], named: None });
        }
        let address = HttpAddress::parse(text)
            .map_err(|error| format!("{text:?} is not a valid URL, such as http://127.0.0.1:8080/tools: {error}"))?;
        if address.has_query() {
            return Err(format!("{text:?} has a query; only paths can be allowed"));
        }
        if address.path().contains('*') {
            return Err(format!("{text:?} has a `*`: leave out the scheme to write a rule, such as example.com/v1/*"));
        }
        let base = format!("{}://{}", address.scheme(), address.to());
        let rules = match address.path().trim_end_matches('/') {
            "" => vec![base],
            // With a slash at its end it means what is below, and not the path itself.
            path if address.path().ends_with('/') => vec![format!("{base}{path}/**")],
            path => vec![format!("{base}{path}"), format!("{base}{path}/**")],
        };
        let rules: Result<Vec<Rule>, _> = rules.iter().map(|rule| rule.parse::<Rule>()).collect();
        let named = Some(address.to().clone()).filter(|to| matches!(to.host, Host::Name(_)));
        Ok(Self { text: address.to_string(), rules: rules.map_err(|error| error.to_string())?, named })
    }
}

impl std::fmt::Display for HttpRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// All entries, and the host's own addresses.
#[derive(Debug)]
pub(super) struct Allowed {
    rules: Rules,
    named: BTreeSet<Destination>,
}

impl Allowed {
    pub fn new(entries: &[HttpRule], own: Vec<IpAddr>) -> Result<Self, Problem> {
        let allow = entries.iter().flat_map(|entry| entry.rules.clone()).collect();
        let rules = Rules::new(EgressDraft::of(allow, Vec::new()))?.with_own_addresses(own);
        Ok(Self { rules, named: entries.iter().filter_map(|entry| entry.named.clone()).collect() })
    }

    pub fn decide(&self, address: &HttpAddress, method: &str) -> Result<RuleRef, Refusal> {
        decide(&self.rules, address, method)
    }

    /// Whether a rule speaks of methods or paths there, so that headers which claim others matter.
    pub fn restricts(&self, address: &HttpAddress) -> bool {
        self.rules.restricts(address.to())
    }

    /// The rules by which an allowed address may be dialled. For a URL that the operator has named they include the private
    /// networks, and the host itself.
    pub fn rules_to_dial(&self, address: &HttpAddress) -> Rules {
        if !self.named.contains(address.to()) {
            return self.rules.clone();
        }
        let mut draft = self.rules.draft().clone();
        draft.allow.extend(own_networks(address.to().port));
        Rules::new(draft).unwrap_or_else(|_| self.rules.clone())
    }
}

/// What rules say about one request.
pub(super) fn decide(rules: &Rules, address: &HttpAddress, method: &str) -> Result<RuleRef, Refusal> {
    let rule = rules.request(address.to(), method, address.path())?;
    let (spoken, other) = match (address.security(), rules.wire(address.to())) {
        (Security::Plain, Wire::Tls) => ("http", "https"),
        (Security::Tls, Wire::Http) => ("https", "http"),
        (Security::Plain | Security::Tls, _) => return Ok(rule),
    };
    Err(Refusal::new("egress/protocol", format!("{} is not allowed by {spoken}", address.to()), format!("use {other}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowed_path_cannot_be_left_by_how_a_url_is_written() {
        let entries = ["http://tools.example/ok", "http://127.0.0.1:8080", "http://[::1]/v6/"];
        let allowed = Allowed::new(&entries.map(|entry| entry.parse().unwrap()), Vec::new()).unwrap();
        // The requested URL, and the sent one; `None` if it is rejected.
        let table: &[(&str, Option<&str>)] = &[
            ("http://tools.example/ok", Some("http://tools.example/ok")),
            ("HTTP://Tools.EXAMPLE:80/ok/x?y=%2f&z=[1]", Some("http://tools.example/ok/x?y=%2F&z=[1]")),
            ("http://tools.example/ok/%61%2D%7Eb/", Some("http://tools.example/ok/a-~b/")),
            ("http://tools.example/ok/caf%c3%a9/a%20b", Some("http://tools.example/ok/caf%C3%A9/a%20b")),
            ("http://tools.example/o%6b/x", Some("http://tools.example/ok/x")),
            ("http://tools.example/ok/.hidden/..x/...y", Some("http://tools.example/ok/.hidden/..x/...y")),
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8080/")),
            ("http://[0:0::1]:80/v6/x", Some("http://[::1]/v6/x")),
            // Outside of the allowed path.
            ("http://tools.example/okay", None),
            ("http://tools.example/OK", None),
            ("http://tools.example/", None),
            ("http://tools.example:8080/ok", None),
            ("https://tools.example/ok", None),
            ("http://127.0.0.1/", None),
            ("http://[::1]/v6", None),
            ("http://[::ffff:127.0.0.1]:8080/", None),
            // Dot segments, plain and encoded once or twice.
            ("http://tools.example/ok/../admin", None),
            ("http://tools.example/ok/..", None),
            ("http://tools.example/ok/./x", None),
            ("http://tools.example/ok/%2e%2e/admin", None),
            ("http://tools.example/ok/%2E./admin", None),
            ("http://tools.example/ok/.%2e/admin", None),
            ("http://tools.example/ok/..%2fadmin", None),
            ("http://tools.example/ok/..%5cadmin", None),
            ("http://tools.example/ok/..\\admin", None),
            ("http://tools.example/ok/%252e%252e/admin", None),
            ("http://tools.example/ok/%c0%ae%c0%ae/admin", None),
            ("http://tools.example/ok/..;/admin", None),
            ("http://tools.example/ok/..%3b/admin", None),
            ("http://tools.example/ok;x=/../admin", None),
            ("http://tools.example/ok//admin", None),
            ("http://tools.example//ok", None),
            // Characters that a service might drop or take for the end.
            ("http://tools.example/ok/%00", None),
            ("http://tools.example/ok/%0d%0ax", None),
            ("http://tools.example/ok/%", None),
            ("http://tools.example/ok/%2", None),
            ("http://tools.example/ok/%zz", None),
            ("http://tools.example/ok/ x", None),
            ("http://tools.example/ok/\tx", None),
            ("http://tools.example/ok/\u{ff0e}\u{ff0e}/x", None),
            ("http://tools.example/ok#/../admin", None),
            ("http://tools.example/ok?x=\"", None),
            // Hosts.
            ("http://tools.example@evil.example/ok", None),
            ("http://evil.example@tools.example/ok", None),
            ("http://tools.example:x@evil.example/ok", None),
            ("http://tools.example\\@evil.example/ok", None),
            ("http://tools.example./ok", Some("http://tools.example/ok")),
            ("http://tools..example/ok", None),
            ("http://tools%2eexample/ok", None),
            ("http://tools\u{3002}example/ok", None),
            ("http://tools.example:/ok", None),
            ("http://tools.example:080/ok", None),
            ("http://tools.example:0/ok", None),
            ("http://tools.example:65536/ok", None),
            ("http://tools.example:8o/ok", None),
            ("http://127.1:8080/", None),
            ("http://0x7f.0.0.1:8080/", None),
            ("http://0177.0.0.1:8080/", None),
            ("http://2130706433:8080/", None),
            ("http://[::1%25lo]/v6/x", None),
            ("http://[::1/v6/x", None),
            ("http://[::1]x/v6/x", None),
            ("http:/tools.example/ok", None),
            ("//tools.example/ok", None),
            ("http:///ok", None),
            ("", None),
        ];
        for (asked, sent) in table {
            let parsed = HttpAddress::parse(asked).ok();
            let passed = parsed.filter(|address| allowed.decide(address, "POST").is_ok());
            assert_eq!(passed.as_ref().map(ToString::to_string).as_deref(), *sent, "{asked}");
            // The sent URL parses as the compared one.
            if let Some(address) = passed {
                assert_eq!(HttpAddress::parse(&address.to_string()), Ok(address));
            }
        }
    }

    fn check(entries: &[&str], url: &str, expected: Option<&str>) {
        let entries: Vec<HttpRule> = entries.iter().map(|entry| entry.parse().unwrap()).collect();
        let allowed = Allowed::new(&entries, vec!["203.0.113.9".parse().unwrap()]).unwrap();
        let decided = HttpAddress::parse(url).map(|address| allowed.decide(&address, "GET"));
        let refused = decided.unwrap().err().map(|refusal| refusal.rule);
        assert_eq!(refused.as_deref(), expected, "{url} under {entries:?}");
    }

    #[test]
    fn entries_are_urls_with_what_is_below_or_rules() {
        let entries = ["https://api.example/v1", "GET docs.example", "10.0.0.7:9000", "*.many.example"];
        check(&entries, "https://api.example/v1/x", None);
        check(&entries, "https://api.example/v2", Some("egress/default"));
        check(&entries, "http://api.example/v1", Some("egress/default"));
        check(&entries, "https://docs.example/any", None);
        check(&entries, "http://docs.example/any", None);
        check(&entries, "http://10.0.0.7:9000/", None);
        check(&entries, "https://10.0.0.7:9000/", None);
        check(&entries, "http://10.0.0.8:9000/", Some("egress/address-private"));
        check(&entries, "https://a.b.many.example/", None);
        check(&entries, "https://many.example/", Some("egress/default"));
        check(&entries, "http://docs.example:443/", Some("egress/protocol"));
        check(&["http://a.example:8443"], "https://a.example:8443/", Some("egress/protocol"));
        check(&["https://a.example:8443"], "http://a.example:8443/", Some("egress/protocol"));
        check(&["*"], "http://169.254.169.254/", Some("egress/address-metadata"));
        check(&["*"], "http://203.0.113.9/", Some("egress/address-own"));
        check(&[], "http://a.example/", Some("egress/default"));
    }

    #[test]
    fn a_named_url_may_lead_into_private_networks_and_a_rule_may_not() {
        let entries = ["http://tools.example/ok", "other.example", "http://192.0.2.1/"];
        let allowed = Allowed::new(&entries.map(|entry| entry.parse().unwrap()), Vec::new()).unwrap();
        let leads = |url: &str, address: &str| {
            let to = HttpAddress::parse(url).unwrap();
            allowed.rules_to_dial(&to).address(to.to(), address.parse().unwrap()).is_ok()
        };
        for address in ["127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "::1", "fd00::1", "198.51.100.1"] {
            assert!(leads("http://tools.example/ok", address), "{address}");
        }
        for address in ["169.254.169.254", "169.254.1.1", "fe80::1", "100.100.100.200", "0.0.0.0", "224.0.0.1"] {
            assert!(!leads("http://tools.example/ok", address), "{address}");
        }
        assert!(!leads("http://other.example/", "10.1.2.3") && !leads("http://tools.example:81/ok", "10.1.2.3"));
        // The networks are for the name: nobody may ask for an address in them.
        assert!(allowed.decide(&HttpAddress::parse("http://10.1.2.3/ok").unwrap(), "GET").is_err());
    }
}
