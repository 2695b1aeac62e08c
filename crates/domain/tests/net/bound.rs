//! Hosts that secrets are bound to.

use saggar_domain::net::{Rule, Rules};

use crate::talk::{passage, request, rules};

fn bound(allow: &[&str], deny: &[&str], to: &[&str]) -> Rules {
    let bound: Vec<Rule> = to.iter().map(|text| text.parse().unwrap()).collect();
    rules(allow, deny).with_bound(&bound)
}

#[test]
fn a_bound_host_is_inspected_and_no_other() {
    let rules = bound(&["a.example", "b.example", "a.example:5432"], &[], &["POST a.example/v1", "*.c.example"]);
    assert_eq!(passage(&rules, "a.example"), "inspect");
    assert_eq!(passage(&rules, "b.example"), "tunnel b.example");
    assert_eq!(passage(&rules, "a.example:5432"), "raw a.example:5432", "the binding names no such port");
    assert_eq!(request(&rules, "a.example", "GET", "/any"), "a.example", "a binding restricts nothing");
}

#[test]
fn a_binding_allows_nothing() {
    let rules = bound(&["a.example"], &["b.example"], &["b.example", "c.example"]);
    assert_eq!(passage(&rules, "b.example"), "egress/deny:b.example");
    assert_eq!(passage(&rules, "c.example"), "egress/default");
    assert_eq!(request(&rules, "c.example", "GET", "/"), "egress/default");
}

#[test]
fn a_binding_that_no_rule_can_serve_is_told() {
    for (allow, binding, expected) in [
        ("a.example", "a.example", true),
        ("GET a.example/x", "POST a.example", true),
        ("*", "a.example", true),
        ("*.example", "a.example", true),
        ("a.b.example", "*.b.example", true),
        ("*.a.b.example", "*.b.example", true),
        ("*.b.example", "*.a.b.example", true),
        ("b.example", "a.example", false),
        ("*.b.example", "b.example", false),
        ("*.b.example", "*.c.example", false),
        ("192.0.2.0/24", "a.example", false),
    ] {
        assert_eq!(rules(&[allow], &[]).could_allow(&binding.parse().unwrap()), expected, "{allow} {binding}");
    }
}
