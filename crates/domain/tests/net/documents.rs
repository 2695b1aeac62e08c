//! The documentation's rules are rules, and records keep their form.

use saggar_domain::net::{NetDecision, Protocol, Rule, Verdict};

/// The first column of a table that begins with this heading.
fn column(heading: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/network.md");
    let text = std::fs::read_to_string(path).expect("the page is there");
    let (_, table) = text.split_once(&format!("\n| {heading} |")).expect("the table is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
    rows.map(|line| line.split('`').nth(1).expect("a rule in backquotes").to_owned()).collect()
}

#[test]
fn the_rules_that_the_documentation_shows_are_canonical() {
    let shown = column("rule");
    assert!(shown.len() > 15, "{shown:?}");
    for text in shown {
        let rule: Rule = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(rule.to_string(), text);
    }
}

#[test]
fn what_the_documentation_calls_wrong_is_refused() {
    let shown = column("not a rule");
    assert!(shown.len() > 8, "{shown:?}");
    for text in shown {
        assert!(text.parse::<Rule>().is_err(), "{text}");
    }
}

#[test]
fn a_record_of_a_decision_keeps_its_form() {
    let whole = r#"{"host":"api.example","address":"192.0.2.1","port":443,"protocol":"https","method":"GET","path":"/v1","verdict":"denied","rule":"egress/default","reason":"no rule allows it","bytes_up":1,"bytes_down":2,"duration_ms":3}"#;
    let least = r#"{"host":"api.example","port":443,"protocol":"dns","verdict":"allowed","rule":"api.example","bytes_up":0,"bytes_down":0,"duration_ms":0}"#;
    for text in [whole, least] {
        let record: NetDecision = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
    }
    let newer = least.replace('}', r#","later":1}"#);
    assert_eq!(serde_json::from_str::<NetDecision>(&newer).unwrap(), serde_json::from_str(least).unwrap());
    let names = |all: Vec<&str>| all.join(" ");
    assert_eq!(names(Protocol::ALL.iter().map(|one| one.as_str()).collect()), "dns connect socks http https tls tcp");
    assert_eq!(names(Verdict::ALL.iter().map(|one| one.as_str()).collect()), "allowed denied");
}
