//! Decisions about destinations and requests.

use saggar_domain::net::{Destination, EgressDraft, HostName, Passage, Rules, Wire};

use crate::talk::{draft, passage, request, rules, to};

#[test]
fn without_a_rule_everything_is_denied() {
    for rules in [rules(&[], &[]), rules(&[], &["evil.example"]), serde_json::from_str::<Rules>("{}").unwrap()] {
        for host in ["example.com", "192.0.2.1", "[2001:db8::1]", "example.com:22"] {
            assert_eq!(passage(&rules, host), "egress/default", "{host}");
            assert_eq!(request(&rules, host, "GET", "/"), "egress/default", "{host}");
        }
        assert!(!rules.resolves(&HostName::parse(b"example.com").unwrap()));
    }
}

#[test]
fn a_rule_matches_its_hosts_and_ports_and_no_other() {
    for (rule, matching, other) in [
        (
            "example.com",
            &["example.com", "example.com:80"][..],
            &["example.com:22", "a.example.com", "evilexample.com"][..],
        ),
        (
            "*.example.com",
            &["a.example.com", "a.b.example.com:80"],
            &["example.com", "aexample.com", "example.com.evil"],
        ),
        ("*", &["example.com", "192.0.2.1", "[2001:db8::1]"], &["example.com:22"]),
        ("*:22", &["example.com:22", "192.0.2.1:22"], &["example.com:443"]),
        ("example.com:22", &["example.com:22"], &["example.com:443", "example.com:80"]),
        ("example.com:20-22", &["example.com:20", "example.com:22"], &["example.com:19", "example.com:23"]),
        ("example.com:*", &["example.com:1", "example.com:65535", "example.com:443"], &["a.example.com:443"]),
        ("192.0.2.1", &["192.0.2.1"], &["192.0.2.2", "192.0.2.1:22", "192.0.2.1.example"]),
        ("192.0.2.0/24", &["192.0.2.0", "192.0.2.255"], &["192.0.3.0", "example.com"]),
        ("[2001:db8::]/32", &["[2001:db8::1]", "[2001:db8:ffff::1]"], &["[2001:db9::1]", "192.0.2.1"]),
        ("https://example.com", &["example.com:443"], &["example.com:80", "example.com:8443"]),
        ("http://example.com", &["example.com:80"], &["example.com:443"]),
        ("https://example.com:8443", &["example.com:8443"], &["example.com:443"]),
    ] {
        let rules = rules(&[rule], &[]);
        for host in matching {
            assert!(!passage(&rules, host).starts_with("egress/"), "{rule} allows {host}");
        }
        for host in other {
            assert_eq!(passage(&rules, host), "egress/default", "{rule} says nothing about {host}");
        }
    }
}

#[test]
fn internal_names_are_not_public_hosts() {
    let every = rules(&["*", "*.corp", "printer"], &[]);
    for name in [
        "localhost",
        "app.localhost",
        "metadata",
        "metadata.google.internal",
        "metadata.azure.internal",
        "instance-data.ec2.internal",
        "router.lan",
        "nas.local",
        "box.home.arpa",
        "hidden.onion",
    ] {
        assert_eq!(passage(&every, name), "egress/default", "{name}");
        assert!(!every.resolves(&HostName::parse(name.as_bytes()).unwrap()), "{name}");
    }
    for name in ["wiki.corp", "printer", "example.com", "internal.example.com", "myhome.arpa"] {
        assert!(passage(&every, name).starts_with("tunnel"), "{name}");
        assert!(every.resolves(&HostName::parse(name.as_bytes()).unwrap()), "{name}");
    }
}

#[test]
fn deny_wins_wherever_it_stands() {
    let rules = rules(
        &["*:*", "api.example", "evil.example"],
        &["evil.example", "*.bad.example", "other.example:22", "https://secure.example", "DELETE api.example"],
    );
    for (host, decision) in [
        ("evil.example", "egress/deny:evil.example"),
        // A deny rule without a port denies every port.
        ("evil.example:22", "egress/deny:evil.example"),
        ("a.bad.example:8080", "egress/deny:*.bad.example"),
        ("bad.example", "tunnel *:*"),
        ("other.example:22", "egress/deny:other.example:22"),
        ("other.example", "tunnel *:*"),
        ("secure.example", "egress/deny:https://secure.example"),
        ("secure.example:80", "tunnel *:*"),
        ("api.example", "inspect"),
        ("api.example:8080", "inspect"),
    ] {
        assert_eq!(passage(&rules, host), decision, "{host}");
    }
    assert_eq!(request(&rules, "api.example", "DELETE", "/x"), "egress/deny:DELETE api.example");
    assert_eq!(request(&rules, "api.example:8080", "DELETE", "/x"), "egress/deny:DELETE api.example");
    assert_eq!(request(&rules, "api.example", "GET", "/x"), "*:*");
    assert_eq!(request(&rules, "evil.example", "GET", "/x"), "egress/deny:evil.example");
    assert!(!rules.resolves(&HostName::parse(b"evil.example").unwrap()));
    assert!(rules.resolves(&HostName::parse(b"other.example").unwrap()), "other ports are allowed");
}

#[test]
fn everything_can_be_denied() {
    let rules = rules(&["*:*", "localhost"], &["*"]);
    for host in ["example.com", "example.com:22", "192.0.2.1", "[2001:db8::1]", "localhost"] {
        assert_eq!(passage(&rules, host), "egress/deny:*", "{host}");
    }
}

#[test]
fn a_connection_is_a_tunnel_raw_or_inspected_by_its_rules() {
    for (allow, deny, host, decision) in [
        (&["a.example"][..], &[][..], "a.example", "tunnel a.example"),
        (&["a.example"], &[], "a.example:80", "tunnel a.example"),
        (&["a.example:443"], &[], "a.example", "tunnel a.example:443"),
        (&["a.example:*"], &[], "a.example:443", "tunnel a.example:*"),
        (&["a.example:*"], &[], "a.example:22", "raw a.example:*"),
        (&["a.example:22"], &[], "a.example:22", "raw a.example:22"),
        (&["a.example:1-1023"], &[], "a.example:22", "raw a.example:1-1023"),
        (&["https://a.example:8443"], &[], "a.example:8443", "tunnel https://a.example:8443"),
        (&["https://a.example:8443", "a.example:8443"], &[], "a.example:8443", "raw a.example:8443"),
        (&["GET a.example"], &[], "a.example", "inspect"),
        (&["a.example/x"], &[], "a.example", "inspect"),
        (&["a.example/**"], &[], "a.example", "inspect"),
        (&["a.example", "GET a.example/x"], &[], "a.example", "inspect"),
        (&["a.example", "GET *.example"], &[], "a.example", "inspect"),
        (&["a.example", "GET b.example"], &[], "a.example", "tunnel a.example"),
        (&["a.example", "GET a.example:8080"], &[], "a.example", "tunnel a.example"),
        (&["a.example"], &["POST a.example"], "a.example", "inspect"),
        (&["a.example"], &["POST *"], "a.example", "inspect"),
        (&["a.example:22"], &["POST a.example"], "a.example:22", "inspect"),
        (&["a.example:22"], &["POST a.example:443"], "a.example:22", "raw a.example:22"),
        (&["GET a.example:8080"], &[], "a.example:8080", "inspect"),
        // Which rule is reported: the first that matches.
        (&["*", "a.example"], &[], "a.example", "tunnel *"),
        (&["a.example", "*"], &[], "a.example", "tunnel a.example"),
    ] {
        assert_eq!(passage(&rules(allow, deny), host), decision, "{allow:?} without {deny:?}: {host}");
    }
}

#[test]
fn what_must_be_spoken_follows_from_port_and_scheme() {
    let rules = rules(
        &[
            "a.example:*",
            "https://b.example:8443",
            "http://c.example:8080",
            "http://d.example:9000",
            "https://d.example:9000",
        ],
        &[],
    );
    for (host, wire) in [
        ("a.example:443", Wire::Tls),
        ("a.example:80", Wire::Http),
        ("a.example:8443", Wire::Either),
        ("b.example:8443", Wire::Tls),
        ("c.example:8080", Wire::Http),
        ("d.example:9000", Wire::Either),
    ] {
        assert_eq!(rules.wire(&to(host)), wire, "{host}");
    }
}

#[test]
fn requests_are_decided_by_method_and_path() {
    let rules = rules(
        &["GET,HEAD a.example", "POST a.example/v1/**", "b.example", "GET,WEBSOCKET c.example"],
        &["GET a.example/v1/secret", "PUT b.example"],
    );
    for (host, method, path, decision) in [
        ("a.example", "GET", "/x", "GET,HEAD a.example"),
        ("a.example", "HEAD", "/x", "GET,HEAD a.example"),
        ("a.example", "POST", "/v1/x", "POST a.example/v1/**"),
        ("a.example", "POST", "/x", "egress/default"),
        ("a.example", "PUT", "/v1/x", "egress/default"),
        ("a.example", "GET", "/v1/secret", "egress/deny:GET a.example/v1/secret"),
        ("a.example", "HEAD", "/v1/secret", "GET,HEAD a.example"),
        ("a.example", "POST", "/v1/secret", "POST a.example/v1/**"),
        // Methods are case-sensitive; a deny rule takes no chances.
        ("a.example", "get", "/x", "egress/default"),
        ("b.example", "put", "/x", "egress/deny:PUT b.example"),
        ("b.example", "patch", "/x", "b.example"),
        ("b.example", "ANYTHING", "/x", "b.example"),
        ("b.example", "TRACE", "/x", "egress/method"),
        ("b.example", "trace", "/x", "egress/method"),
        ("b.example", "TRACK", "/x", "egress/method"),
        ("b.example", "CONNECT", "/x", "egress/method"),
        ("b.example", "WEBSOCKET", "/x", "egress/method"),
        ("b.example", "", "/x", "egress/method"),
        ("b.example", "GET\0", "/x", "egress/method"),
        ("b.example", "GET /", "/x", "egress/method"),
        ("b.example", "GÉT", "/x", "egress/method"),
        ("d.example", "GET", "/x", "egress/default"),
        ("a.example:22", "GET", "/x", "egress/default"),
    ] {
        assert_eq!(request(&rules, host, method, path), decision, "{method} {path} on {host}");
    }
    assert_eq!(request(&rules, "b.example", &"A".repeat(33), "/x"), "egress/method");
    for (host, is_restricted) in [("a.example", true), ("b.example", true), ("d.example", false)] {
        assert_eq!(rules.restricts(&to(host)), is_restricted, "{host}");
    }
}

#[test]
fn an_upgrade_is_more_than_a_get() {
    let rules = rules(
        &["a.example", "GET b.example", "GET,WEBSOCKET c.example", "WEBSOCKET d.example/ws", "e.example", "f.example"],
        &["GET e.example", "WEBSOCKET f.example"],
    );
    for (host, path, decision) in [
        ("a.example", "/", "a.example"),
        ("b.example", "/", "egress/default"),
        ("c.example", "/", "GET,WEBSOCKET c.example"),
        ("d.example", "/ws", "WEBSOCKET d.example/ws"),
        ("d.example", "/x", "egress/default"),
        ("e.example", "/", "egress/deny:GET e.example"),
        ("f.example", "/", "egress/deny:WEBSOCKET f.example"),
    ] {
        let decided = rules.upgrade(&to(host), path).map_or_else(|refusal| refusal.rule, |rule| rule.0);
        assert_eq!(decided, decision, "{host}{path}");
    }
    assert_eq!(request(&rules, "f.example", "GET", "/"), "f.example");
}

#[test]
fn a_refusal_says_what_to_write() {
    let rules = rules(&["api.example", "GET git.example", "*"], &["evil.example"]);
    let few = crate::talk::rules(&["api.example"], &[]);
    let cases = [
        (
            few.request(&to("other.example"), "GET", "/"),
            "no rule allows other.example:443",
            "allow it with `--allow other.example`, or add it to `egress.allow` in the spec",
        ),
        (
            few.request(&to("api.example:22"), "GET", "/"),
            "no rule allows port 22 of api.example",
            "allow it with `--allow api.example:22`, or add it to `egress.allow` in the spec",
        ),
        (
            few.request(&to("[2001:db8::1]:8080"), "GET", "/"),
            "no rule allows [2001:db8::1]:8080",
            "allow it with `--allow '[2001:db8::1]:8080'`, or add it to `egress.allow` in the spec",
        ),
        (
            few.request(&to("pypi.org"), "GET", "/"),
            "no rule allows pypi.org:443",
            "allow it with `--allow pypi.org`, or add it to `egress.allow` in the spec (it is also in @pypi)",
        ),
        (
            rules.request(&to("nas.local"), "GET", "/"),
            "no rule allows nas.local:443: `*` means public hosts, and this name is internal",
            "allow it with `--allow nas.local`, or add it to `egress.allow` in the spec",
        ),
        (
            rules.request(&to("evil.example"), "GET", "/"),
            "a deny rule forbids evil.example:443",
            "remove the deny rule `evil.example` to allow it: deny rules win over allow rules",
        ),
    ];
    for (decided, message, help) in cases {
        let refusal = decided.unwrap_err();
        assert_eq!((refusal.message.as_str(), refusal.help.as_str()), (message, help));
    }
    let few = crate::talk::rules(&["GET git.example"], &[]);
    for (path, message, rule) in [
        ("/a/b.git?q=secret", "no rule allows POST /a/b.git on git.example:443", "POST git.example/a/b.git"),
        ("/", "no rule allows POST / on git.example:443", "POST git.example"),
        ("/a//b", "no rule allows POST /a//b on git.example:443", "POST git.example"),
        // A path that could forge a command or output is not repeated.
        ("/a'$(id)`", "no rule allows POST on git.example:443", "POST git.example"),
        ("/\u{202e}", "no rule allows POST on git.example:443", "POST git.example"),
    ] {
        let refusal = few.request(&to("git.example"), "POST", path).unwrap_err();
        assert_eq!(refusal.message, message);
        assert_eq!(
            refusal.help,
            format!("allow it with `--allow '{rule}'`, or add it to `egress.allow` in the spec"),
            "{path}"
        );
    }
}

#[test]
fn a_method_that_could_forge_a_command_is_not_repeated() {
    let rules = rules(&["GET git.example", "GET 192.0.2.0"], &["PUT git.example"]);
    let every = "rules name methods in capitals, and only known ones; for every method, allow it with `--allow git.example`, \
                 or add it to `egress.allow` in the spec";
    for (method, message) in [
        ("A'`id`'", "no rule allows this method /x on git.example:443"),
        ("get", "no rule allows get /x on git.example:443"),
        ("BREW", "no rule allows BREW /x on git.example:443"),
    ] {
        let refusal = rules.request(&to("git.example"), method, "/x").unwrap_err();
        assert_eq!((refusal.message.as_str(), refusal.help.as_str()), (message, every), "{method}");
    }
    // Without the port this would be a rule about 256 addresses.
    let refusal = rules.request(&to("192.0.2.0"), "POST", "/24").unwrap_err();
    assert!(refusal.help.contains("'POST 192.0.2.0:443/24'"), "{}", refusal.help);
}

#[test]
fn there_is_no_port_0() {
    let to = Destination { port: 0, ..to("a.example") };
    let Passage::Denied(refusal) = rules(&["*:*"], &[]).connection(&to) else { panic!("it is allowed") };
    assert_eq!(refusal.rule, "egress/port");
}

#[test]
fn rules_are_sent_as_they_were_asked_for() {
    let asked = draft(&["@pypi", "GET a.example/x"], &["10.0.0.0/8"]);
    let sent = serde_json::to_string(&Rules::new(asked.clone()).unwrap()).unwrap();
    assert_eq!(sent, r#"{"allow":["@pypi","GET a.example/x"],"deny":["10.0.0.0/8"]}"#);
    let received: Rules = serde_json::from_str(&sent).unwrap();
    assert_eq!(received, Rules::new(asked).unwrap());
    assert_eq!(passage(&received, "pypi.org"), "inspect");
    assert_eq!(request(&received, "pypi.org", "GET", "/simple/x/"), "@pypi: GET,HEAD pypi.org");
    assert!(serde_json::from_str::<Rules>(r#"{"allow":["@nothing"]}"#).unwrap_err().to_string().contains("@nothing"));
}

#[test]
fn the_number_and_size_of_rules_are_bounded() {
    let many = |count: usize, len: usize| {
        let rule = |n: usize| format!("h{n}.example/{}", "a".repeat(len)).parse().unwrap();
        EgressDraft::of((0..count).map(rule).collect(), Vec::new())
    };
    assert!(Rules::new(many(512, 1)).is_ok());
    assert!(Rules::new(many(513, 1)).unwrap_err().message.contains("more than 512"));
    assert!(Rules::new(many(70, 1000)).unwrap_err().message.contains("more than 65536"));
}

#[test]
fn a_method_that_is_never_passed_on_says_why() {
    let rules = rules(&["*"], &[]);
    for (method, message) in [
        ("TRACE", "is never allowed"),
        ("track", "is never allowed"),
        ("WebSocket", "is WEBSOCKET, which only rules have"),
        ("GET POST", "is not a word of HTTP"),
        ("", "is not a word of HTTP"),
        (&"X".repeat(33), "is longer than 32 bytes"),
    ] {
        let refusal = rules.request(&to("a.example"), method, "/").unwrap_err();
        assert_eq!(refusal.rule, "egress/method");
        assert_eq!(refusal.message, format!("the method of a request to a.example:443 {message}"));
        assert_eq!(refusal.help.contains("TRACE"), message == "is never allowed", "{}", refusal.help);
    }
}
