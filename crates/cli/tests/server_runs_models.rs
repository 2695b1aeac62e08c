//! Runs on models of a provider: what is asked, what is recorded, what it costs, and what happens after a crash.

mod http;
mod model_standin;
mod runs;

use model_standin::serving::{CANARY, agent, assert_key_is_nowhere, calling, server, shell, spending};
use model_standin::wires::SIGNATURE;
use model_standin::{Standin, Turn};
use runs::{begin, events, results, said, until_completed};
use serde_json::{Value, json};

#[test]
fn a_task_with_parallel_calls_is_done_on_every_wire() {
    let standin = Standin::of(vec![
        calling(vec![shell("echo one"), shell("echo two")]),
        calling(vec![shell("echo three")]),
        Turn::says("It is done."),
    ]);
    let server = server(&standin, "");
    for (route, back) in [
        ("chat", None),
        ("responses", Some(format!(r#""encrypted_content":"{SIGNATURE}""#))),
        ("anthropic", Some(format!(r#""signature":"{SIGNATURE}""#))),
    ] {
        let before = standin.asked().len();
        let run = begin(&server, &agent(route, json!({})));
        let finished = until_completed(&server, &run);
        assert_eq!(finished["outcome"]["answer"]["text"], "It is done.", "{route}");
        let mut printed: Vec<String> =
            results(&server, &run).iter().map(|result| said(result)["stdout"].to_string()).collect();
        // The first two are made at once.
        printed[..2].sort();
        assert_eq!(printed, [r#""one\n""#, r#""two\n""#, r#""three\n""#], "{route}");
        let asked = standin.asked().split_off(before);
        assert_eq!(asked.len(), 3, "{route}");
        assert!(asked.iter().all(|asked| asked.key == CANARY), "{route}");
        let last = asked[2].body.to_string();
        for (first, second) in [("one", "two"), ("two", "three")] {
            assert!(last.find(first) < last.find(second), "{route}: in the model's order: {last}");
        }
        for expected in ["You are careful.", "Find out.", "Runs a", "0.5", "1000"] {
            assert!(last.contains(expected), "{route} gets {expected}: {last}");
        }
        if let Some(back) = back {
            assert_eq!(last.matches(&back).count(), 2, "{route}: what the provider wants back: {last}");
        }
        let replied = events(&server, &run, "step_settled");
        let replied: Vec<&Value> = replied.iter().map(|entry| &entry["result"]["replied"]).collect();
        let said = &replied.first().expect("it replied")["said"];
        assert_eq!((&said["usage"]["input"], &said["usage"]["output"]), (&json!(100), &json!(10)), "{route}");
        assert!(said["origin"]["model"].as_str().is_some_and(|model| model.starts_with("real-")), "{said}");
    }
    // Nine calls of 100 tokens at $3 and 10 at $15.
    assert_eq!(spending(&server)["spent_micros"], 9 * 450);
    assert_key_is_nowhere(&server);
}

#[test]
fn a_route_that_the_server_does_not_have_is_refused_with_those_there_are() {
    let server = server(&Standin::of(Vec::new()), "");
    let problem = server.post("/api/v1/runs", &agent("gpt-9", json!({}))).problem(400, "invalid_value");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("\"gpt-9\"")), "{problem}");
    assert!(problem.to_string().contains("anthropic, chat, responses"), "{problem}");
}

#[test]
fn a_crash_in_the_middle_of_a_call_repeats_it_and_counts_what_it_may_have_cost() {
    let standin = Standin::of(vec![calling(vec![shell("echo one")]), Turn::says("It is done.")]);
    let mut server = server(&standin, "[budgets.default]\ndollars = \"1\"\n");
    standin.hold(true);
    let run = begin(&server, &agent("chat", json!({ "budget": { "micros": 1_000_000 } })));
    standin.until_held(1);
    server.kill();
    standin.hold(false);
    server.begin();
    until_completed(&server, &run);
    assert_eq!(standin.asked().len(), 3, "the first call was made twice");
    let intended = events(&server, &run, "step_intended");
    let reserved = intended[0]["reserved"]["micros"].as_u64().expect("it has one");
    assert!(reserved > 15_000, "the longest reply costs $0.015: {reserved}");
    let replay = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(replay["divergence"], Value::Null, "{replay}");
    // Two calls that ended, and what was set aside for the one that nobody ended.
    let spent = spending(&server);
    assert_eq!(spent["spent_micros"], 2 * 450, "{spent}");
    assert!(spent["set_aside_micros"].as_u64().is_some_and(|micros| micros > 15_000), "{spent}");
    assert_key_is_nowhere(&server);
}
