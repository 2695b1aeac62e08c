//! What replies, conversations and budgets of runs are held to, on the wires of real providers.

mod http;
mod model_standin;
mod runs;

use http::Server;
use model_standin::serving::server;
use model_standin::{Asked, Standin, Turn};
use runs::{begin, events, journal, said, show, until_completed, until_state};
use serde_json::{Value, json};

const ROUTES: [&str; 3] = ["chat", "responses", "anthropic"];

fn agent(route: &str, more: Value) -> Value {
    let mut agent = json!({
        "name": "tester",
        "system": "You are careful.",
        "task": "Count the tests.",
        "model": { "route": route, "reply_tokens_max": 500 },
        "tools": { "shell": {}, "finish": {} },
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        agent[name] = value.clone();
    }
    json!({ "agent": agent })
}

fn shell(line: &str) -> (String, String) {
    ("shell".to_owned(), json!({ "command": line }).to_string())
}

fn calling(calls: Vec<(String, String)>) -> Turn {
    Turn { calls, ..Turn::says("I look.") }
}

/// As the wire says that a reply was cut off.
fn cut(path: &str) -> &'static str {
    match path {
        "/v1/chat/completions" => "length",
        "/v1/responses" => "max_output_tokens",
        _ => "max_tokens",
    }
}

fn failure(server: &Server, run: &str) -> Value {
    until_state(server, run, "finished")["outcome"]["failure"].clone()
}

#[test]
fn a_reply_that_is_cut_off_or_empty_is_answered_and_a_refusal_ends_the_run_on_every_wire() {
    let standin = Standin::saying(|replies, asked| match replies {
        0 => Turn::says("There are man").stopped(cut(&asked.path)),
        _ if asked.body.to_string().contains("cut off at its limit of 500 tokens") => Turn::says("Many."),
        _ => Turn::says("nobody told me"),
    });
    let server = self::server(&standin, "");
    for route in ROUTES {
        let run = begin(&server, &agent(route, json!({})));
        let finished = until_completed(&server, &run);
        assert_eq!(finished["outcome"]["answer"]["text"], "Many.", "{route}");
        assert_eq!(events(&server, &run, "corrected").len(), 1, "{route}");
    }
    for (route, stop, code) in [
        ("chat", "content_filter", "content_filter"),
        ("responses", "content_filter", "content_filter"),
        ("anthropic", "refusal", "refused"),
        ("anthropic", "model_context_window_exceeded", "context_full"),
    ] {
        let standin = Standin::of(vec![Turn::says("I must not.").stopped(stop)]);
        let server = self::server(&standin, "");
        let failure = failure(&server, &begin(&server, &agent(route, json!({}))));
        assert_eq!(failure["code"], code, "{route}: {failure}");
        assert_eq!(standin.asked().len(), 1, "{route}: it is asked once");
    }
    let standin = Standin::saying(|_, _| Turn { text: String::new(), ..Turn::says("") });
    let server = self::server(&standin, "");
    for route in ["chat", "anthropic"] {
        let before = standin.asked().len();
        let failure = failure(&server, &begin(&server, &agent(route, json!({ "corrections_max": 2 }))));
        assert_eq!(failure["code"], "empty_reply", "{route}: {failure}");
        assert_eq!(standin.asked().len() - before, 3, "{route}");
    }
}

#[test]
fn an_answer_has_the_form_that_its_author_wants_or_the_run_fails() {
    let output = json!({ "schema": {
        "type": "object", "properties": { "tests": { "type": "integer" } }, "required": ["tests"],
    } });
    let finish = |arguments: Value| ("finish".to_owned(), arguments.to_string());
    let wrong = vec![
        Turn::says("Three."),
        calling(vec![finish(json!({ "answer": "three" }))]),
        calling(vec![finish(json!({ "output": { "tests": "three" } }))]),
    ];
    let right = [Turn::says(r#"{"tests": 3}"#), calling(vec![finish(json!({ "output": { "tests": 3 } }))])];
    for (route, right) in ROUTES.into_iter().zip(right.into_iter().cycle()) {
        let standin = Standin::of([wrong.clone(), vec![right]].concat());
        let server = self::server(&standin, "");
        let run = begin(&server, &agent(route, json!({ "output": output })));
        let finished = until_completed(&server, &run);
        let answer: Value = said(finished["outcome"]["answer"]["text"].as_str().expect("a text"));
        assert_eq!(answer, json!({ "tests": 3 }), "{route}");
        let asked: Vec<String> = standin.asked().iter().map(|asked| asked.body.to_string()).collect();
        assert!(asked[0].contains("JSON Schema") && asked[0].contains("integer"), "{route}: it is told: {}", asked[0]);
        for (asked, told) in asked[1..].iter().zip(["not a JSON object", "instead of", "/tests"]) {
            assert!(asked.contains(told), "{route} is told {told:?}: {asked}");
        }
        let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
        assert_eq!(report["divergence"], Value::Null, "{route}");
    }
    let standin = Standin::saying(|_, _| Turn::says("Three."));
    let server = self::server(&standin, "");
    let agent = agent("chat", json!({ "output": output, "corrections_max": 1 }));
    let failure = failure(&server, &begin(&server, &agent));
    assert_eq!(failure["code"], "wrong_output");
    assert!(failure["message"].as_str().is_some_and(|message| message.contains("2 times in a row")), "{failure}");
    for (output, why) in [
        (json!({ "schema": { "type": "array" } }), "doesn't describe an object"),
        (json!({ "schema": { "type": "object", "unevaluatedItems": 1 } }), "unevaluatedItems"),
    ] {
        let refused = server.post("/api/v1/runs", &self::agent("chat", json!({ "output": output })));
        let problem = refused.problem(400, "invalid_request");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(why)), "{problem}");
    }
}

/// The calls of a request and their results, in its order: those of each wire.
fn calls_and_results(asked: &Asked) -> (Vec<String>, Vec<String>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    for message in asked.body["messages"].as_array().into_iter().flatten() {
        calls.extend(message["tool_calls"].as_array().into_iter().flatten().filter_map(|call| text(&call["id"])));
        results.extend(text(&message["tool_call_id"]));
        for block in message["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("tool_use") => calls.extend(text(&block["id"])),
                Some("tool_result") => results.extend(text(&block["tool_use_id"])),
                _ => {}
            }
        }
    }
    for item in asked.body["input"].as_array().into_iter().flatten() {
        match item["type"].as_str() {
            Some("function_call") => calls.extend(text(&item["call_id"])),
            Some("function_call_output") => results.extend(text(&item["call_id"])),
            _ => {}
        }
    }
    (calls, results)
}

fn is_summary_wanted(asked: &Asked) -> bool {
    asked.body.to_string().contains("will be replaced by a summary")
}

#[test]
fn a_conversation_that_grows_too_long_is_summed_up_and_goes_on() {
    for route in ROUTES {
        let turns = std::sync::atomic::AtomicUsize::new(0);
        let standin = Standin::saying(move |_, asked| {
            if is_summary_wanted(asked) {
                return Turn::says("SUMMARY: the first ones are counted.");
            }
            match turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                turn if turn < 6 => {
                    calling(vec![shell(&format!("echo turn-{turn}; head -c 3000 /dev/zero | tr '\\0' x"))])
                }
                _ => Turn::says("All are counted."),
            }
        });
        let server = self::server(&standin, "");
        let context = json!({ "tokens_max": 6000, "keep_tokens": 1500 });
        let run = begin(&server, &agent(route, json!({ "context": context })));
        let finished = until_completed(&server, &run);
        assert_eq!(finished["outcome"]["answer"]["text"], "All are counted.", "{route}");
        let asked = standin.asked();
        let at = asked.iter().position(is_summary_wanted).expect("it is asked to sum up");
        let tool_choice = asked[at].body["tool_choice"].to_string();
        assert!(tool_choice.contains("none"), "{route}: it may call nothing: {tool_choice}");
        let next = asked[at + 1].body.to_string();
        assert!(next.contains("SUMMARY: the first ones") && next.contains("Count the tests."), "{route}: {next}");
        assert!(!next.contains("turn-0") && next.contains("turn-"), "{route}: the newest turns stay: {next}");
        for asked in &asked {
            let (calls, results) = calls_and_results(asked);
            assert_eq!(calls, results, "{route}: no call is parted from its result");
        }
        let longest = asked.iter().map(|asked| asked.body["messages"].to_string().len()).max();
        assert!(longest < Some(40_000), "{route}: {longest:?}");
        let summaries = journal(&server, &run).iter().filter(|entry| entry["effect"]["do"] == "summarize").count();
        assert_eq!(summaries, asked.iter().filter(|asked| is_summary_wanted(asked)).count(), "{route}");
        let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
        assert_eq!(report["divergence"], Value::Null, "{route}");
    }
}

#[test]
fn a_run_out_of_budget_asks_for_more_or_sums_up() {
    let standin = Standin::saying(|replies, asked| {
        if asked.body.to_string().contains("your last reply") {
            return Turn::says("Half of them are counted.");
        }
        match replies {
            0..3 => calling(vec![shell(&format!("echo turn-{replies}"))]),
            _ => Turn::says("All are counted."),
        }
    });
    let server = self::server(&standin, "");
    let budget = json!({ "steps": 3 });
    let run = begin(&server, &agent("chat", json!({ "budget": budget, "on": { "budget": "ask" } })));
    let parked = until_state(&server, &run, "parked");
    assert_eq!((&parked["out_of_budget"], &parked["parked"]), (&json!("steps"), &Value::Null), "{parked}");
    let raise = |body: Value| server.post(&format!("/api/v1/runs/{run}/budget"), &body);
    raise(json!({ "more": {} })).problem(400, "invalid_request");
    for _ in 0..2 {
        assert_eq!(raise(json!({ "id": "one", "more": { "steps": 1 } })).status, 202);
    }
    http::eventually("it is used up again", || {
        journal(&server, &run).iter().filter(|entry| entry["event"] == "budget_reached").count() == 2
    });
    until_state(&server, &run, "parked");
    assert_eq!(events(&server, &run, "budget_raised").len(), 1, "the same request is effective once");
    assert_eq!(raise(json!({ "more": { "steps": 10 } })).status, 202);
    http::eventually("it goes on", || show(&server, &run)["state"] != "parked");
    assert_eq!(until_completed(&server, &run)["outcome"]["answer"]["text"], "All are counted.");
    raise(json!({ "more": { "steps": 10 } })).problem(409, "conflict");

    for route in ROUTES {
        let before = standin.asked().len();
        let run = begin(&server, &agent(route, json!({ "budget": budget, "on": { "budget": "finish" } })));
        let finished = until_state(&server, &run, "finished");
        let outcome = json!({
            "outcome": "budget_exceeded", "budget": "steps", "answer": { "text": "Half of them are counted." },
        });
        assert_eq!(finished["outcome"], outcome, "{route}");
        let asked = standin.asked().split_off(before);
        let last = asked.last().expect("it was asked");
        assert!(last.body["tool_choice"].to_string().contains("none"), "{route}: {}", last.body["tool_choice"]);
        let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
        assert_eq!(report["divergence"], Value::Null, "{route}");
    }
}

#[test]
fn followers_see_what_the_model_says_while_it_says_it_and_the_journal_has_it_once() {
    let said = "This takes a while, and everybody sees it coming.";
    for route in ROUTES {
        let standin = Standin::of(vec![Turn::says(said)]);
        let server = self::server(&standin, "");
        standin.hold(true);
        let run = begin(&server, &agent(route, json!({})));
        standin.until_held(1);
        let path = |query: &str| format!("/api/v1/runs/{run}/journal{query}");
        let mut live = server.follow("GET", &path("?live=true"), &[], b"");
        let mut plain = server.follow("GET", &path(""), &[], b"");
        standin.hold(false);
        let (mut heard, mut entries) = (String::new(), Vec::new());
        while let Some(event) = live.next() {
            match event.name.as_str() {
                "said" => {
                    assert_eq!((&event.data["step"], &event.data["attempt"]), (&json!(1), &json!(1)), "{event:?}");
                    assert_eq!(event.id, "", "a stream isn't resumed after it");
                    if event.data["kind"] == "text" {
                        heard += event.data["text"].as_str().expect("a text");
                    }
                    let is_settled = entries.iter().any(|entry: &Value| entry["event"] == "step_settled");
                    assert!(!is_settled, "{route}: it comes before the reply is recorded");
                }
                _ => entries.push(event.data),
            }
        }
        // What was said before the follower came is in the reply alone.
        assert!(!heard.is_empty() && said.ends_with(&heard), "{route}: {heard:?}");
        let mut others = Vec::new();
        while let Some(event) = plain.next() {
            assert_ne!(event.name, "said", "{route}: only those who want it get it");
            others.push(event.data);
        }
        assert_eq!(entries, others, "{route}");
        assert_eq!(entries, journal(&server, &run), "{route}: nothing of it is recorded but the reply");
    }
}
