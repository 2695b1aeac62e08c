//! Agents that can't be meant as they are written.

use saggar_domain::net::EgressDraft;
use saggar_engine::{Class, Event, Settled, ToolSpec};
use saggar_runtime::Action;
use saggar_runtime::runs::NewRun;

use crate::place::{Place, agent};

#[tokio::test]
async fn network_rules_are_for_the_tool_that_goes_by_them_and_must_be_rules() {
    let place = Place::new().await;
    let rules = |rule: &str| Some(EgressDraft { allow: vec![rule.parse().unwrap()], ..EgressDraft::default() });
    for (tool, rule, expected) in [
        ("http", "api.example.com", None),
        ("http", "@nothing", Some("@nothing")),
        ("shell", "api.example.com", Some("it doesn't go by them")),
    ] {
        let mut agent = agent("a", Class::Keyed, "http://127.0.0.1:9/", 0);
        let mut spec = agent.tools["http"].clone();
        spec.egress = rules(rule);
        agent.tools.insert(tool.to_owned(), spec);
        let new = NewRun { agent, labels: saggar_domain::Labels::default(), idempotency: None };
        let refused =
            place.runs.start(&place.permit(Action::StartRun), new).await.err().map(|fault| format!("{fault:?}"));
        match expected {
            None => assert_eq!(refused, None),
            Some(part) => assert!(
                refused.as_ref().is_some_and(|text| text.contains(part) || text.contains(&part.replace('"', "\\\""))),
                "{refused:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_malformed_call_is_answered_by_its_schema_and_never_performed() {
    let place = Place::new().await;
    let script = r#"{"turns": [
        {"calls": [{"tool": "http", "arguments": {"url": "http://127.0.0.1:9/", "metod": "GET"}},
                   {"tool": "wait", "arguments": {"seconds": 1, "minutes": 5}},
                   {"tool": "http"}]},
        {"text": "Done."}]}"#;
    let mut agent = agent("a", Class::Once, "http://127.0.0.1:9/", 0);
    agent.model.model = script.to_owned();
    agent.tools.insert("wait".to_owned(), ToolSpec { class: Class::Pure, ..agent.tools["http"].clone() });
    let run = place.start_agent(agent).await;
    let worker = place.worker(3000, "http://127.0.0.1:9/");
    place.until_finished(&run).await;
    drop(worker);
    let told: Vec<String> = place
        .events(&run)
        .await
        .into_iter()
        .filter_map(|event| match event {
            Event::StepSettled { result: Settled::Returned(result), .. } if result.is_error => {
                Some(result.content.as_text().unwrap_or_default().to_owned())
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        told,
        [
            "the arguments of http are invalid: \"metod\" is not known here; known is body, headers, method, text, url",
            "the arguments of wait are invalid: \"minutes\" is not known here; known is seconds, signal",
            "the arguments of http are invalid: \"url\" is missing",
        ]
    );
}
