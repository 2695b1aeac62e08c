//! Agents that can't be meant as they are written.

use saggar_domain::net::EgressDraft;
use saggar_engine::Class;
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
        ("shell", "api.example.com", Some("only \"http\" goes by them")),
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
