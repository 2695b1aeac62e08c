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

#[test]
fn explanations_and_sets_have_a_form_for_programs() {
    let parsed = |done: &harness::Done| -> serde_json::Value { serde_json::from_str(&done.stdout).expect("JSON") };
    for (words, code, json) in [
        (
            &["--allow", "a.example", "a.example"][..],
            0,
            r#"{"verdict":"allowed","rule":"a.example","how":"TLS for this name passes through; requests are not seen",
                "target":{"host":"a.example","port":443}}"#,
        ),
        (
            &["--allow", "GET a.example", "--deny", "a.example/x", "a.example"],
            0,
            r#"{"verdict":"inspected","allow":["GET a.example"],"deny":["a.example/x"],"target":{"host":"a.example","port":443}}"#,
        ),
        (
            &["--allow", "GET a.example", "PUT", "http://a.example/x"],
            1,
            r#"{"verdict":"denied","rule":"egress/default","reason":"no rule allows PUT /x on a.example:80",
                "help":"allow it with `--allow 'PUT a.example/x'`, or add it to `egress.allow` in the spec",
                "target":{"host":"a.example","port":80,"method":"PUT","path":"/x"}}"#,
        ),
    ] {
        let done = net(&[&["explain", "--json"], words].concat());
        assert_eq!(done.code, code, "{words:?}");
        assert_eq!(parsed(&done), serde_json::from_str::<serde_json::Value>(json).expect("JSON"), "{words:?}");
    }
    let all = parsed(&net(&["sets", "--json"]));
    let sets = all["sets"].as_array().expect("a list");
    let pypi = sets.iter().find(|set| set["name"] == "pypi").expect("it is one");
    assert_eq!(pypi["rules"], serde_json::json!(["GET,HEAD pypi.org", "GET,HEAD files.pythonhosted.org"]));
    assert_eq!(&parsed(&net(&["sets", "pypi", "--json"])), pypi);
}

/// What `saggar run --events` writes.
const EVENTS: &str = concat!(
    r#"{"schema":"saggar.event/v1","seq":0,"time":"2026-11-16T10:00:00.000Z","elapsed_ms":1,"type":"setup"}"#,
    "\n",
    r#"{"schema":"saggar.event/v1","seq":1,"time":"2026-11-16T10:00:01.000Z","elapsed_ms":2,"type":"decision","host":"a.example","port":443,"protocol":"tls","verdict":"allowed","rule":"a.example","bytes_up":2048,"bytes_down":10,"duration_ms":7}"#,
    "\n",
    r#"{"schema":"saggar.event/v1","seq":2,"time":"2026-11-16T10:00:02.000Z","elapsed_ms":3,"type":"decision","host":"b.example","port":80,"protocol":"http","method":"GET","path":"/\u001b[2J","verdict":"denied","rule":"egress/default","reason":"no rule allows b.example:80","bytes_up":0,"bytes_down":0,"duration_ms":0}"#,
    "\n",
);

#[test]
fn the_decisions_of_an_events_file_are_shown_one_per_line() {
    let place = Place::new();
    let file = place.path("events.jsonl");
    std::fs::write(&file, EVENTS).expect("writable");
    let name = file.to_str().expect("UTF-8");
    let log = |words: &[&str]| net(&[&["log", "--file", name], words].concat());
    let allowed = "2026-11-16T10:00:01.000Z allowed a.example:443 tls: 2.0K up, 10B down, 7 ms (a.example)\n";
    let denied =
        "2026-11-16T10:00:02.000Z denied  b.example:80 GET /\\u{1b}[2J: no rule allows b.example:80 (egress/default)\n";
    assert_eq!(log(&[]).stdout, format!("{allowed}{denied}"));
    assert_eq!(log(&["--denied"]).stdout, denied);
    let json = log(&["--denied", "--json"]).stdout;
    let event: serde_json::Value = serde_json::from_str(&json).expect("one event");
    assert_eq!((&event["seq"], &event["host"]), (&serde_json::json!(2), &serde_json::json!("b.example")));
    for (text, words) in [("{}\n", "line 1"), ("\n\n{\"schema\":\"x\",\"time\":\"\",\"type\":\"decision\"}", "line 3")]
    {
        std::fs::write(&file, text).expect("writable");
        let done = log(&[]);
        assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{text}");
        assert!(done.stderr.contains(words) && done.stderr.contains("--events"), "{}", done.stderr);
    }
    let missing = net(&["log", "--file", "/nonexistent/events"]);
    assert_eq!(missing.code, 125, "{missing:?}");
}

#[test]
fn no_rules_must_be_meant() {
    let id = "sbx_b5xp67dqheak6zygmmwjfuhq5f";
    let done = net(&["set", id]);
    assert_eq!(done.code, 125);
    assert!(done.stderr.contains("no rules are given") && done.stderr.contains("--none"), "{}", done.stderr);
    let place = Place::new();
    let spec = place.path("spec.toml");
    std::fs::write(&spec, "network = \"none\"\n").expect("writable");
    let done = net(&["set", id, "--spec", spec.to_str().expect("UTF-8")]);
    assert!(done.code == 125 && done.stderr.contains("network mode none"), "{done:?}");
}
