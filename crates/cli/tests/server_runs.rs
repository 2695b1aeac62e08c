//! Runs over HTTP: started once per request, followed, signalled, forked, replayed, and unharmed by the server's
//! death.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod http;
mod runs;

use http::{Server, command, eventually};
use runs::ledger::Ledger;
use runs::{
    agent, agent_with, begin, events, gated, http as call_http, results, said, shell, start, until_completed,
    until_gated, until_state,
};
use serde_json::{Value, json};

#[test]
fn a_program_under_way_when_the_server_is_killed_is_found_again_and_not_run_twice() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let run = start(&server, json!([{ "calls": [gated(), shell("cat /tmp/ledger")] }, { "text": "finished" }]));
    let sandbox = until_gated(&server);
    server.kill();
    server.begin();
    server.sh(&sandbox, "touch /tmp/go");
    let finished = until_completed(&server, &run);
    assert!(sandbox.ends_with(finished["sandbox_id"].as_str().expect("it has one")));
    let given = results(&server, &run);
    assert_eq!((&said(&given[0])["stdout"], &said(&given[1])["stdout"]), (&json!("went\n"), &json!("begun\n")));
    let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!((&report["agreed"], &report["divergence"]), (&report["entries"], &Value::Null));
    eventually("its sandbox ends with it", || server.get(&sandbox).expect(200)["state"] == "ended");
}

#[test]
fn a_run_asks_is_answered_forked_exported_and_tested() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ask = json!({ "tool": "ask_human", "arguments": { "question": "Which?" } });
    let write =
        json!({ "tool": "files", "arguments": { "op": "write", "path": "/tmp/a", "content": "x".repeat(20_000) } });
    let read = json!({ "tool": "files", "arguments": { "op": "read", "path": "/tmp/a" } });
    let run = start(&server, json!([{ "calls": [write, read, ask] }, { "text": "finished" }]));
    let asking = until_state(&server, &run, "asking");
    let sandbox = asking["sandbox_id"].as_str().expect("it has one").to_owned();
    eventually("its sandbox sleeps while nothing is to be done", || {
        server.get(&format!("/api/v1/sandboxes/{sandbox}")).expect(200)["state"] == "paused"
    });
    let decide = json!({ "decision": "retry" });
    server.post(&format!("/api/v1/runs/{run}/steps/1/decide"), &decide).problem(409, "conflict");
    assert_eq!(asking["question"]["text"], "Which?");
    let signal = json!({ "id": "one", "name": "answer", "question": asking["question"]["id"], "body": "This." });
    for _ in 0..2 {
        assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &signal).status, 202);
    }
    let mut events = server.follow("GET", &format!("/api/v1/runs/{run}/journal"), &["Accept: text/event-stream"], b"");
    let mut last = Value::Null;
    while let Some(event) = events.next() {
        last = event.data;
    }
    assert_eq!(last["outcome"], json!({ "outcome": "completed", "answer": { "text": "finished" } }), "{last}");
    assert_eq!(results(&server, &run), ["20000 bytes written", "This."], "what is long is beside the journal");
    server.post(&format!("/api/v1/runs/{run}/signal"), &signal).problem(409, "conflict");

    let fork =
        server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "at_step": 3, "message": "Again." })).expect(201);
    assert_eq!((&fork["generation"], &fork["parent"]["run_id"]), (&json!(1), &json!(run)));
    let fork = fork["id"].as_str().expect("it has an id");
    let question = &until_state(&server, fork, "asking")["question"]["id"];
    let signal = json!({ "name": "answer", "question": question, "body": "That." });
    assert_eq!(server.post(&format!("/api/v1/runs/{fork}/signal"), &signal).status, 202);
    until_state(&server, fork, "finished");
    assert_eq!(results(&server, fork), ["20000 bytes written", "That."]);
    server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "at_step": 99 })).problem(409, "conflict");

    let fixture = server.get(&format!("/api/v1/runs/{fork}/export")).expect(200);
    let path = server.data().join("fixture.json");
    std::fs::write(&path, fixture.to_string()).expect("a file of ours");
    let tested = command(&["test"]).arg(&path).output().expect("the binary was built");
    assert!(tested.status.success(), "{tested:?}");
    let mut edited = fixture;
    edited["entries"][3]["at"] = json!(1);
    std::fs::write(&path, edited.to_string()).expect("a file of ours");
    let tested = command(&["test"]).arg(&path).output().expect("the binary was built");
    assert_eq!(tested.status.code(), Some(1), "{tested:?}");
}

#[test]
fn the_same_request_is_one_run_and_anothers_is_not_there() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let body = agent(json!([{ "text": "finished" }])).to_string();
    let headers = ["Idempotency-Key: one", "Content-Type: application/json"];
    let first = server.request("POST", "/api/v1/runs", &headers, body.as_bytes()).expect(201);
    let again = server.request("POST", "/api/v1/runs", &headers, body.as_bytes()).expect(201);
    assert_eq!(first["id"], again["id"]);
    let other = agent(json!([{ "text": "other" }])).to_string();
    server.request("POST", "/api/v1/runs", &headers, other.as_bytes()).problem(409, "idempotency_mismatch");
    until_state(&server, first["id"].as_str().expect("it has an id"), "finished");
    let listed = server.get("/api/v1/runs?state=finished").expect(200);
    assert_eq!(listed["items"].as_array().expect("a list").len(), 1);
    server.get("/api/v1/runs/run_aaaaaaaaaaaaaaaaaaaaaaaaaa").problem(404, "not_found");
    let mut wrong = agent(json!([]));
    wrong["agent"]["tools"]["telephone"] = json!({});
    server.post("/api/v1/runs", &wrong).problem(400, "invalid_value");
}

#[test]
fn a_script_that_calls_a_tool_of_which_the_agent_has_none_is_refused_at_the_start() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let mut lacking = agent(json!([{ "calls": [{ "tool": "ask_human", "arguments": { "question": "?" } }] }]));
    lacking["agent"]["tools"].as_object_mut().expect("tools").remove("ask_human");
    let refused = server.post("/api/v1/runs", &lacking).problem(400, "invalid_value");
    assert_eq!(refused["help"], "add `ask_human = {}` to [tools]", "{refused}");
    let unknown = agent(json!([{ "calls": [{ "tool": "telephone" }] }]));
    let refused = server.post("/api/v1/runs", &unknown).problem(400, "invalid_value");
    assert!(refused["detail"].as_str().unwrap_or_default().contains("\"telephone\""), "{refused}");
}

#[test]
fn an_answer_that_is_repeated_does_not_answer_the_next_question() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ask = |question: &str| json!({ "tool": "ask_human", "arguments": { "question": question } });
    let turns =
        json!([{ "calls": [ask("Which colour?"), ask("Delete the production database?")] }, { "text": "finished" }]);
    let run = start(&server, turns);
    let signal = format!("/api/v1/runs/{run}/signal");
    let first = until_state(&server, &run, "asking")["question"].clone();
    assert_eq!((&first["id"], &first["text"]), (&json!(2), &json!("Which colour?")));
    let unnamed = server.post(&signal, &json!({ "name": "answer", "body": "yes" })).problem(400, "invalid_value");
    assert!(unnamed["detail"].as_str().unwrap_or_default().contains("question 2"), "{unnamed}");
    let yes = json!({ "name": "answer", "question": 2, "body": "yes" });
    assert_eq!(server.post(&signal, &yes).status, 202);
    eventually("it asks the next question", || {
        server.get(&format!("/api/v1/runs/{run}")).expect(200)["question"]["id"] == 3
    });
    assert_eq!(server.post(&signal, &yes).status, 202, "the same answer again is harmless");
    let other = json!({ "name": "answer", "question": 2, "body": "no" });
    let refused = server.post(&signal, &other).problem(409, "conflict");
    let said = refused.to_string();
    assert!(said.contains("Delete the production database?") && said.contains("--question 3"), "{said}");
    server.post(&signal, &json!({ "name": "answer", "question": 4, "body": "yes" })).problem(409, "conflict");
    let shown = server.get(&format!("/api/v1/runs/{run}")).expect(200);
    assert_eq!((&shown["state"], &shown["question"]["id"]), (&json!("asking"), &json!(3)));
    assert_eq!(results(&server, &run), ["yes"]);
    assert_eq!(server.post(&signal, &json!({ "name": "answer", "question": 3, "body": "no" })).status, 202);
    until_state(&server, &run, "finished");
    assert_eq!(results(&server, &run), ["yes", "no"]);
}

/// The output of `saggar runs …`, and whether it succeeded.
fn saggar(server: &Server, arguments: &[&str]) -> (bool, String) {
    let mut command = command(&["runs"]);
    let output = command
        .args(arguments)
        .env("SAGGAR_URL", format!("http://{}", server.address))
        .env("SAGGAR_API_KEY", &server.key)
        .output()
        .expect("the binary was built");
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).expect("text")).concat();
    (output.status.success(), said)
}

#[test]
fn the_command_line_shows_a_question_and_takes_its_answer() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ask = json!({ "tool": "ask_human", "arguments": { "question": "Which colour?" } });
    let run = start(&server, json!([{ "calls": [ask] }, { "text": "finished" }]));
    until_state(&server, &run, "asking");
    let (_, shown) = saggar(&server, &["show", &run]);
    let how = format!("saggar runs answer {run} --question 2 TEXT");
    assert!(shown.contains("asks     Which colour?") && shown.contains(&how), "{shown}");
    let mut follow = command(&["runs"]);
    follow.args(["follow", &run]).env("SAGGAR_URL", format!("http://{}", server.address));
    follow.env("SAGGAR_API_KEY", &server.key).stdout(std::process::Stdio::piped());
    let mut follow = follow.spawn().expect("the binary was built");
    let mut printed = std::io::BufRead::lines(std::io::BufReader::new(follow.stdout.take().expect("piped")));
    let line = printed.find(|line| line.as_ref().is_ok_and(|line| line.contains(&how)));
    assert!(line.is_some(), "it says how to answer, and goes on following");
    let (is_done, refused) = saggar(&server, &["answer", &run, "--question", "7", "blue"]);
    assert!(!is_done && refused.contains("question 7 is not open") && refused.contains("Which colour?"), "{refused}");
    // An answer that names no question might be for the next one.
    let (is_done, refused) = saggar(&server, &["answer", &run, "blue"]);
    assert!(!is_done && refused.contains("Which colour?") && refused.contains("--question 2"), "{refused}");
    let (is_done, said) = saggar(&server, &["answer", &run, "--question", "2", "navy", "blue"]);
    assert!(is_done && said == "answered question 2\n", "{said}");
    let rest: Vec<String> = printed.map(|line| line.expect("text")).collect();
    assert!(rest.iter().any(|line| line.contains("step 2  settled  navy blue")), "{rest:#?}");
    assert!(follow.wait().expect("it ends").success());
    // Its output names positions to fork at.
    let entry = rest.iter().find(|line| line.contains("step 2  settled")).expect("it is there");
    let entry = entry.split_whitespace().next().expect("its number");
    for at in ["2", entry] {
        let (is_done, said) = saggar(&server, &["fork", &run, "--at", at]);
        assert!(is_done, "--at {at}: {said}");
        until_completed(&server, said.trim());
    }
    let (is_done, said) = saggar(&server, &["answer", &run, "blue"]);
    assert!(!is_done && said.contains("has finished"), "{said}");
}

#[test]
fn the_command_line_tells_why_a_run_failed_and_what_it_has_cut() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let run = start(&server, json!([{ "calls": [shell("printf '%0200d' 7")] }]));
    until_state(&server, &run, "finished");
    let (is_done, followed) = saggar(&server, &["follow", &run]);
    assert!(!is_done && followed.contains("run_finished  failed: the script has only 1 turn\n"), "{followed}");
    assert!(followed.contains("…\n") && followed.contains(&format!("saggar runs follow {run} --json")), "{followed}");
    let (_, shown) = saggar(&server, &["show", &run]);
    assert!(shown.contains("outcome  failed: the script has only 1 turn\n"), "{shown}");
    let (_, told) = saggar(&server, &["show", "run_aaaaaaaaaaaaaaaaaaaaaaaaaa"]);
    assert!(told.contains("saggar runs list"), "{told}");
}

#[test]
fn a_provider_in_place_of_a_route_is_the_one_thing_that_is_told() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let told = "model.provider is \"anthropic\", and an agent names no provider: it names a route of its server";
    let model = json!({ "provider": "anthropic", "model": "some-model" });
    let agent = json!({ "agent": { "name": "a", "task": "t", "model": model } });
    let problem = server.post("/api/v1/runs", &agent).problem(400, "invalid_value");
    assert_eq!(problem["detail"], told, "{problem}");
    let path = server.data().join("agent.toml");
    let toml = "name = \"a\"\ntask = \"t\"\n[model]\nprovider = \"anthropic\"\nmodel = \"some-model\"\nscript = \"absent.json\"\n";
    std::fs::write(&path, toml).expect("a file of ours");
    let (is_done, said) = saggar(&server, &["start", path.to_str().expect("a name")]);
    assert!(!is_done && said.contains(told), "{said}");
}

#[test]
fn a_fork_makes_an_open_call_again_and_none_where_nobody_knows() {
    let ledger = Ledger::start();
    let server = Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.at("/")]);
    let calls =
        |url: &str| json!([{ "calls": [call_http(url, 1), call_http(&ledger.url, 2)] }, { "text": "finished" }]);

    ledger.hold(true);
    let run = begin(&server, &agent(calls(&ledger.url)));
    eventually("it calls", || ledger.has(&format!("{run}/0/2")));
    let fork = server.post(&format!("/api/v1/runs/{run}/fork"), &json!({})).expect(201);
    assert_eq!(fork["parent"]["does_again"], json!({ "step": 2, "tool": "http" }));
    let fork = fork["id"].as_str().expect("it has an id");
    ledger.hold(false);
    until_completed(&server, &run);
    until_completed(&server, fork);
    assert_eq!(results(&server, &run), [format!("done {run}/0/2"), format!("done {run}/0/3")]);
    assert_eq!(results(&server, fork), [format!("done {fork}/1/3"), format!("done {fork}/1/4")], "by keys of its own");

    let tools = json!({ "http": { "class": "once", "timeout": "200ms" } });
    let run = begin(&server, &agent_with(tools, calls(&ledger.at("/hang"))));
    let parked = until_state(&server, &run, "parked")["parked"].clone();
    assert_eq!((&parked["step"], &parked["tool"]), (&json!(2), &json!("http")));
    for at in [json!({}), json!({ "at_step": 2 })] {
        let refused = server.post(&format!("/api/v1/runs/{run}/fork"), &at).problem(409, "conflict");
        assert!(refused["detail"].as_str().unwrap_or_default().contains("step 2 (http)"), "{refused}");
        assert!(refused.to_string().contains(&format!("saggar runs decide {run} 2")), "{refused}");
    }
    let retry = json!({ "decision": "retry" });
    let refused = server.post(&format!("/api/v1/runs/{run}/steps/7/decide"), &retry).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap_or_default().contains("parked at step 2"), "{refused}");
    let (_, shown) = saggar(&server, &["show", &run]);
    assert!(shown.contains(&format!("saggar runs decide {run} 2 done --result TEXT")), "{shown}");
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/cancel"), &json!({})).status, 202);
    eventually("it is cancelled", || server.get(&format!("/api/v1/runs/{run}")).expect(200)["state"] == "finished");
    server.post(&format!("/api/v1/runs/{run}/fork"), &json!({})).problem(409, "conflict");
    server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "at_step": 1 })).expect(201);
}

#[test]
fn long_arguments_are_read_by_the_tools_that_nobody_executes() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let long = "x".repeat(100_000);
    let calls = json!([
        { "tool": "wait", "arguments": { "seconds": 0 } },
        { "tool": "delegate", "arguments": { "task": long, "agent": "sub" } },
        { "tool": "ask_human", "arguments": { "question": long } },
    ]);
    let mut agent = agent_with(json!({ "delegate": {} }), json!([{ "calls": calls }, { "text": "finished" }]));
    let model = json!({ "provider": "scripted", "script": { "turns": [{ "text": "the child's word" }] } });
    agent["agent"]["agents"] = json!({ "sub": { "model": model } });
    let run = begin(&server, &agent);
    let asking = until_state(&server, &run, "asking");
    assert_eq!(asking["question"]["text"], json!(long));
    let answer = json!({ "name": "answer", "question": asking["question"]["id"], "body": "read" });
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &answer).status, 202);
    until_completed(&server, &run);
    assert_eq!(results(&server, &run)[0], "the time has passed");
    assert_eq!(results(&server, &run).last().map(String::as_str), Some("read"));
    let fixture = server.get(&format!("/api/v1/runs/{run}/export")).expect(200);
    let path = server.data().join("fixture.json");
    std::fs::write(&path, fixture.to_string()).expect("a file of ours");
    let tested = command(&["test"]).arg(&path).output().expect("the binary was built");
    assert!(tested.status.success(), "{tested:?}");
}

#[test]
fn a_run_is_found_by_its_agent_labels_and_time_and_removed_once_it_is_over() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ask = json!({ "tool": "ask_human", "arguments": { "question": "Which?" } });
    let mut labelled = agent(json!([{ "calls": [ask] }, { "text": "finished" }]));
    labelled["labels"] = json!({ "team": "red" });
    let run = runs::begin(&server, &labelled);
    let other = start(&server, json!([{ "text": "finished" }]));
    until_completed(&server, &other);
    let listed = |query: &str| -> Vec<String> {
        let page = server.get(&format!("/api/v1/runs?{query}")).expect(200);
        page["items"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed("label=team%3Dred"), std::slice::from_ref(&run));
    assert_eq!(listed("agent=tester"), [other.clone(), run.clone()]);
    for none in ["agent=other", "label=team%3Dblue", "since=9999-01-01T00:00:00Z", "before=1970-01-02T00:00:00Z"] {
        assert_eq!(listed(none), Vec::<String>::new(), "{none}");
    }
    server.get("/api/v1/runs?since=yesterday").problem(400, "invalid_request");
    let asking = until_state(&server, &run, "asking");
    assert_eq!(asking["labels"], json!({ "team": "red" }));
    server.delete(&format!("/api/v1/runs/{run}")).problem(409, "conflict");
    let removed = server.delete(&format!("/api/v1/runs/{other}"));
    assert_eq!((removed.status, removed.text()), (204, String::new()));
    for path in ["", "/journal", "/replay"] {
        server.get(&format!("/api/v1/runs/{other}{path}")).problem(404, "not_found");
    }
    server.delete(&format!("/api/v1/runs/{other}")).problem(404, "not_found");
    assert_eq!(listed("agent=tester"), [run]);
}

fn ask(question: &str) -> Value {
    json!({ "tool": "ask_human", "arguments": { "question": question } })
}

#[test]
fn a_wait_ends_with_its_signal_and_finish_ends_the_run() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let wait = |seconds: u64| json!({ "tool": "wait", "arguments": { "seconds": seconds, "signal": "built" } });
    let finish = json!({ "tool": "finish", "arguments": { "output": { "passed": true } } });
    let turns = json!([
        { "calls": [ask("Ready?")] },
        { "calls": [wait(3600)] },
        { "calls": [wait(3601)] },
        { "calls": [finish, wait(3602)] },
    ]);
    let run = begin(&server, &agent_with(json!({ "finish": {} }), turns));
    let asked = until_state(&server, &run, "asking");
    // Before the wait for it.
    assert!(saggar(&server, &["signal", &run, "built", "red"]).0);
    let question = asked["question"]["id"].to_string();
    assert!(saggar(&server, &["answer", &run, "--question", &question, "yes"]).0);
    let waiting = until_state(&server, &run, "waiting");
    assert_eq!(waiting["open_steps"][0]["text"], "signal built", "{waiting}");
    let (_, shown) = saggar(&server, &["show", &run]);
    assert!(shown.contains("signal built"), "{shown}");
    // It stays asleep through a message, which the model reads with its next call.
    assert!(saggar(&server, &["say", &run, "take", "care"]).0);
    assert!(saggar(&server, &["signal", &run, "built", "green"]).0);
    let finished = until_completed(&server, &run);
    assert_eq!(finished["outcome"]["answer"]["text"], r#"{"passed":true}"#);
    let given = results(&server, &run);
    let not_done = "not done: an earlier call of the same reply has finished the run";
    assert_eq!(given, ["yes", "red", "green", "the run is finished", not_done]);
    let said = events(&server, &run, "signal_received");
    let names: Vec<&Value> = said.iter().map(|signal| &signal["name"]).collect();
    assert_eq!(names, ["built", "answer", "message", "built"]);
}

#[test]
fn a_question_that_nobody_answers_gets_the_answer_that_the_agent_has_for_it() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let mut agent = agent_with(json!({}), json!([{ "calls": [ask("Which colour?")] }, { "text": "Painted." }]));
    agent["agent"]["on"] = json!({ "unanswered": { "after": "1s", "answer": "blue" } });
    let run = begin(&server, &agent);
    until_completed(&server, &run);
    assert_eq!(results(&server, &run), ["blue"]);
    agent["agent"]["on"]["unanswered"] = json!({ "after": "1s" });
    let run = begin(&server, &agent);
    let failed = until_state(&server, &run, "finished");
    assert_eq!(failed["outcome"]["failure"]["code"], "unanswered", "{failed}");
}
