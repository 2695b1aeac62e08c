//! `saggar net`: explanations of rules, and the named sets.

mod harness;

use harness::{Place, finish};

fn net(words: &[&str]) -> harness::Done {
    let place = Place::new();
    finish(place.command([&["net"], words].concat()).spawn().expect("built"))
}

#[test]
fn an_explanation_names_the_rule_and_the_way() {
    for (words, code, lines) in [
        (
            &["--allow", "a.example", "a.example"][..],
            0,
            &[
                "a.example:443 is allowed",
                "  rule: a.example",
                "  how: TLS for this name passes through; requests are not seen",
            ][..],
        ),
        (
            &["--allow", "a.example", "http://A.example./"],
            0,
            &[
                "a.example:80 is allowed",
                "  rule: a.example",
                "  how: plain HTTP; the Host header of each request must be this host",
            ],
        ),
        (
            &["--allow", "a.example:22", "a.example:22"],
            0,
            &[
                "a.example:22 is allowed",
                "  rule: a.example:22",
                "  how: bytes pass as they are, whatever the protocol; requests are not seen",
            ],
        ),
        (
            &["--allow", "@pypi", "--deny", "pypi.org/admin/**", "pypi.org"],
            0,
            &[
                "pypi.org:443 is inspected: these rules decide each request",
                "  allow: @pypi: GET,HEAD pypi.org",
                "  deny: pypi.org/admin/**",
            ],
        ),
        (
            &["--allow", "a.example", "POST", "https://a.example/x?secret=1"],
            0,
            &[
                "POST /x?secret=1 on a.example:443 is allowed",
                "  rule: a.example",
                "  how: requests to this host are not seen: no rule for it has a method or a path",
            ],
        ),
        (
            &["--allow", "GET a.example/v1/**", "a.example/v1/x"],
            0,
            &[
                "GET /v1/x on a.example:443 is allowed",
                "  rule: GET a.example/v1/**",
                "  how: requests to this host are inspected",
            ],
        ),
        (
            &["pypi.org"],
            1,
            &[
                "pypi.org:443 is denied: no rule allows pypi.org:443",
                "  rule: egress/default",
                "  help: allow it with `--allow pypi.org`, or add it to `egress.allow` in the spec (it is also in @pypi)",
            ],
        ),
        (
            &["--allow", "*", "--deny", "*.b.example", "a.b.example:8080"],
            1,
            &[
                "a.b.example:8080 is denied: a deny rule forbids a.b.example:8080",
                "  rule: egress/deny:*.b.example",
                "  help: remove the deny rule `*.b.example` to allow it: deny rules win over allow rules",
            ],
        ),
        (
            &["--allow", "*", "https://[::ffff:127.0.0.1]/"],
            1,
            &[
                "[::ffff:127.0.0.1]:443 is denied: ::ffff:127.0.0.1 is an IPv4 address inside an IPv6 address",
                "  rule: egress/address-embedded",
                "  help: such addresses must be named: allow it with `--allow '[::ffff:127.0.0.1]'`, or add it to `egress.allow` in the spec",
            ],
        ),
    ] {
        let done = net(&[&["explain"], words].concat());
        assert_eq!((done.code, done.stderr.as_str()), (code, ""), "{words:?}");
        assert_eq!(done.stdout.lines().collect::<Vec<_>>(), lines, "{words:?}");
    }
}

#[test]
fn a_target_that_can_be_read_in_two_ways_is_not_explained() {
    for target in [
        "http://allowed.example@evil.example/",
        "http://evil.example\\@allowed.example/",
        "https://user:password@a.example",
        "ftp://a.example",
        "127.1",
        "[::1",
        "a.example:",
        "a.example:0",
        "",
        "bücher.example",
    ] {
        let done = net(&["explain", "--allow", "*", target]);
        assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{target}");
        assert!(done.stderr.contains("is no target") && done.stderr.contains("help: "), "{target}: {}", done.stderr);
    }
}

#[test]
fn sets_are_listed_and_shown() {
    let all = net(&["sets"]);
    assert_eq!(all.code, 0);
    for name in ["@pypi", "@npm", "@crates", "@debian", "@github", "@openai", "@anthropic", "@google-ai"] {
        assert!(all.stdout.lines().any(|line| line.starts_with(name)), "{name}: {}", all.stdout);
    }
    for name in ["pypi", "@pypi"] {
        let one = net(&["sets", name]);
        assert_eq!(one.stdout, include_str!("../../domain/sets/pypi.txt"), "{name}");
    }
    let none = net(&["sets", "nothing"]);
    assert_eq!((none.code, none.stdout.as_str()), (125, ""));
    assert!(none.stderr.contains("there is no set \"@nothing\"") && none.stderr.contains("@pypi"), "{}", none.stderr);
    let unknown = net(&["explain", "--allow", "@nothing", "a.example"]);
    assert_eq!(unknown.code, 125);
    assert!(unknown.stderr.contains("@nothing"), "{}", unknown.stderr);
}
