//! Child runs over HTTP and on the command line; and sandboxes that are paused while their run is idle.

mod http;

use http::{Server, command, eventually};
use serde_json::{Value, json};

fn shell(line: &str) -> Value {
    json!({ "tool": "shell", "arguments": { "command": line } })
}

fn ask(question: &str) -> Value {
    json!({ "tool": "ask_human", "arguments": { "question": question } })
}

fn delegate(task: &str) -> Value {
    json!({ "tool": "delegate", "arguments": { "task": task, "agent": "helper" } })
}

fn model(turns: Value) -> Value {
    json!({ "provider": "scripted", "script": { "turns": turns } })
}

/// An agent with a helper that it may start.
fn parent(turns: Value, helper: Value, budget: Value) -> Value {
    json!({ "agent": {
        "name": "parent",
        "task": "test",
        "model": model(turns),
        "tools": { "shell": {}, "ask_human": {}, "delegate": {} },
        "budget": budget,
        "agents": { "helper": { "model": model(helper), "tools": { "ask_human": {} } } },
    } })
}

fn start(server: &Server, run: &Value) -> String {
    let run = server.post("/api/v1/runs", run).expect(201);
    run["id"].as_str().expect("it has an id").to_owned()
}

fn until_state(server: &Server, run: &str, state: &str) -> Value {
    let mut shown = Value::Null;
    eventually(&format!("the run is {state}"), || {
        shown = server.get(&format!("/api/v1/runs/{run}")).expect(200);
        shown["state"] == state
    });
    shown
}

fn children(server: &Server, run: &str) -> Vec<Value> {
    let listed = server.get(&format!("/api/v1/runs?child_of={run}")).expect(200);
    listed["items"].as_array().expect("a list").clone()
}

fn post(server: &Server, path: &str) {
    assert_eq!(server.post(path, &json!({})).status, 202, "{path}");
}

fn answer(server: &Server, run: &str, text: &str) {
    let question = &until_state(server, run, "asking")["question"]["id"];
    let signal = json!({ "name": "answer", "question": question, "body": text });
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &signal).status, 202);
}

fn until_sandbox(server: &Server, sandbox: &str, state: &str) {
    eventually(&format!("the sandbox is {state}"), || {
        server.get(&format!("/api/v1/sandboxes/{sandbox}")).expect(200)["state"] == state
    });
}

/// Tool results, in order.
fn results(server: &Server, run: &str) -> Vec<Value> {
    let page = server.get(&format!("/api/v1/runs/{run}/journal")).expect(200);
    let entries = page["items"].as_array().expect("a list").clone();
    let returned = entries.iter().map(|entry| &entry["result"]["returned"]["content"]["text"]);
    returned
        .filter(|text| text.is_string())
        .map(|text| serde_json::from_str(text.as_str().unwrap_or_default()).unwrap_or(text.clone()))
        .collect()
}

#[test]
fn a_run_waits_for_its_child_asleep_and_gets_its_answer() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let run = parent(
        json!([{ "calls": [shell("echo kept > /tmp/note"), delegate("ask them"), shell("cat /tmp/note")] }, { "text": "finished" }]),
        json!([{ "calls": [ask("Which?")] }, { "text": "They said so.", "tokens": 7 }]),
        json!({ "children": 5, "tokens": 100_000 }),
    );
    let run = start(&server, &run);
    let waiting = until_state(&server, &run, "waiting");
    let sandbox = waiting["sandbox_id"].as_str().expect("it has one").to_owned();
    until_sandbox(&server, &sandbox, "paused");
    let found = children(&server, &run);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["child_of"], &found[0]["agent"]), (&json!({ "run_id": run, "step": 3 }), &json!("helper")));
    let child = found[0]["id"].as_str().expect("it has an id").to_owned();
    until_state(&server, &child, "asking");

    post(&server, &format!("/api/v1/runs/{run}/pause"));
    eventually("the child is told", || {
        let page = server.get(&format!("/api/v1/runs/{child}/journal")).expect(200);
        page["items"].as_array().expect("a list").iter().any(|entry| entry["event"] == "paused")
    });
    answer(&server, &child, "This.");
    until_state(&server, &child, "paused");
    post(&server, &format!("/api/v1/runs/{run}/resume"));
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"]["outcome"], "completed", "{finished}");
    assert_eq!(results(&server, &run).last().expect("it read the note")["stdout"], "kept\n", "its files were there");
    let page = server.get(&format!("/api/v1/runs/{run}/journal")).expect(200);
    let ended: Vec<&Value> = page["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| &entry["result"]["ended"])
        .filter(|ended| !ended.is_null())
        .collect();
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0]["outcome"], json!({ "outcome": "completed", "answer": { "text": "They said so." } }));
    assert_eq!((&ended[0]["child"], &ended[0]["spent"]["tokens"]), (&json!(child), &json!(7)));

    let at_its_end = json!({ "at_entry": finished["entries"] });
    server.post(&format!("/api/v1/runs/{run}/fork"), &at_its_end).problem(409, "conflict");
    // A fork after the child reads the recorded result; replaying any of them executes nothing.
    let fork = server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "at_step": 3 })).expect(201);
    let fork = fork["id"].as_str().expect("it has an id");
    until_state(&server, fork, "finished");
    assert!(children(&server, fork).is_empty());
    for id in [&run, &child, fork] {
        let report = server.get(&format!("/api/v1/runs/{id}/replay")).expect(200);
        assert_eq!((&report["agreed"], &report["divergence"]), (&report["entries"], &Value::Null), "{id}");
        let path = server.data().join("fixture.json");
        std::fs::write(&path, server.get(&format!("/api/v1/runs/{id}/export")).expect(200).to_string()).expect("ours");
        let tested = command(&["test"]).arg(&path).output().expect("the binary was built");
        assert!(tested.status.success(), "{tested:?}");
    }
}

#[test]
fn the_budget_of_children_trips_by_name_and_a_cancel_goes_down() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let helper = json!([{ "text": "done" }]);
    let turns = json!([{ "calls": [delegate("one"), delegate("two"), delegate("three")] }, { "text": "finished" }]);
    let run = start(&server, &parent(turns, helper, json!({ "children": 2 })));
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"], json!({ "outcome": "budget_exceeded", "budget": "children" }));
    assert_eq!(children(&server, &run).len(), 2);

    let turns = json!([{ "calls": [delegate("one")] }, { "text": "finished" }]);
    let run = start(&server, &parent(turns, json!([{ "calls": [ask("?")] }]), json!({})));
    until_state(&server, &run, "waiting");
    let child = children(&server, &run)[0]["id"].as_str().expect("it has an id").to_owned();
    until_state(&server, &child, "asking");
    post(&server, &format!("/api/v1/runs/{run}/cancel"));
    for id in [&run, &child] {
        assert_eq!(until_state(&server, id, "finished")["outcome"]["outcome"], "cancelled");
    }

    let mut wrong = parent(json!([]), json!([]), json!({}));
    wrong["agent"]["agents"]["helper"]["tools"]["http"] = json!({});
    server.post("/api/v1/runs", &wrong).problem(400, "invalid_value");
    let signal = json!({ "id": "@parent", "name": "note", "body": "x" });
    let other = start(&server, &parent(json!([{ "calls": [ask("?")] }]), json!([]), json!({})));
    server.post(&format!("/api/v1/runs/{other}/signal"), &signal).problem(400, "invalid_value");
}

#[test]
fn the_command_line_tells_parents_and_children() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let directory = server.data();
    std::fs::write(
        directory.join("turns.json"),
        json!({ "turns": [{ "calls": [delegate("one")] }, { "text": "finished" }] }).to_string(),
    )
    .expect("ours");
    std::fs::write(directory.join("helper.json"), json!({ "turns": [{ "text": "done" }] }).to_string()).expect("ours");
    let agent = "name = \"boss\"\ntask = \"test\"\n[model]\nprovider = \"scripted\"\nscript = \"turns.json\"\n[tools]\ndelegate = {}\n\
        [budget]\nchildren = 3\n[agents.helper.model]\nprovider = \"scripted\"\nscript = \"helper.json\"\n";
    std::fs::write(directory.join("agent.toml"), agent).expect("ours");
    let saggar = |arguments: &[&str]| {
        let mut command = command(&["runs"]);
        let output = command
            .args(arguments)
            .env("SAGGAR_URL", format!("http://{}", server.address))
            .env("SAGGAR_API_KEY", &server.key)
            .output()
            .expect("the binary was built");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let path = directory.join("agent.toml");
    let said = saggar(&["start", path.to_str().expect("a name"), "--follow"]);
    let run = said.lines().next().expect("its id").to_owned();
    assert!(said.contains("completed done"), "{said}");
    let child = children(&server, &run)[0]["id"].as_str().expect("it has an id").to_owned();
    assert!(saggar(&["show", &run]).contains(&format!("child    {child} finished (helper)")));
    assert!(saggar(&["show", &child]).contains(&format!("child of {run} at step 2")));
    let listed = saggar(&["list", "--child-of", &run]);
    assert!(listed.contains(&child) && listed.lines().count() == 2, "{listed}");
}

#[test]
fn the_sandbox_of_a_run_that_asks_or_is_parked_sleeps_and_comes_back() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let run = json!({ "agent": {
        "name": "sleeper",
        "task": "test",
        "model": model(json!([
            { "calls": [
                shell("echo kept > /tmp/note"),
                ask("Go on?"),
                shell("touch /tmp/begun; while [ ! -e /tmp/go ]; do sleep 0.05; done"),
                shell("cat /tmp/note"),
            ] },
            { "text": "finished" },
        ])),
        // Its outcome can't be determined, so a crash in the middle of it parks the run.
        "tools": { "shell": { "class": "once" }, "ask_human": {} },
    } });
    let run = start(&server, &run);
    let asking = until_state(&server, &run, "asking");
    let sandbox = asking["sandbox_id"].as_str().expect("it has one").to_owned();
    until_sandbox(&server, &sandbox, "paused");
    answer(&server, &run, "Yes.");
    until_sandbox(&server, &sandbox, "running");
    eventually("the program of the step runs", || {
        server.sh(&format!("/api/v1/sandboxes/{sandbox}"), "cat /tmp/begun")["exit_code"] == 0
    });
    server.kill();
    server.begin();
    until_state(&server, &run, "parked");
    until_sandbox(&server, &sandbox, "paused");
    let decide = json!({ "decision": "done", "result": "{\"stdout\": \"I looked\"}" });
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/steps/4/decide"), &decide).status, 202);
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"]["outcome"], "completed", "{finished}");
    let given = results(&server, &run);
    assert_eq!(given.last().expect("the last")["stdout"], "kept\n", "{given:?}");
    until_sandbox(&server, &sandbox, "ended");
}

#[test]
fn three_executors_work_at_once_under_one_manager_each_with_its_own_share() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let turns = json!([
        { "calls": [delegate("one"), delegate("two"), delegate("three")] },
        { "text": "finished" },
    ]);
    // Each leaves its mark in a sandbox of its own, asks, and looks for the marks of the others.
    let helper = json!([
        { "calls": [shell("echo mine >> /tmp/mark"), ask("Go on?")] },
        { "calls": [shell("cat /tmp/mark")] },
        { "text": "done" },
    ]);
    let mut manager = parent(turns, helper, json!({ "steps": 31, "tool_calls": 24 }));
    manager["agent"]["parallel"] = json!(3);
    manager["agent"]["agents"]["helper"]["tools"] = json!({ "shell": {}, "ask_human": {} });
    let run = start(&server, &manager);
    let mut asking = Vec::new();
    eventually("all three work at once", || {
        asking = children(&server, &run);
        asking.len() == 3 && asking.iter().all(|child| child["state"] == "asking")
    });
    let shown = server.get(&format!("/api/v1/runs/{run}")).expect(200);
    let delegating: Vec<&Value> =
        shown["open_steps"].as_array().expect("a list").iter().map(|step| &step["child"]).collect();
    assert_eq!(delegating.len(), 3, "{shown}");
    let sandboxes: std::collections::BTreeSet<_> = asking.iter().map(|child| child["sandbox_id"].to_string()).collect();
    assert_eq!(sandboxes.len(), 3, "each has a sandbox of its own");
    // What the manager has left, in equal shares: none can use up another's.
    for child in delegating {
        let path = format!("/api/v1/runs/{}/journal", child.as_str().expect("an id"));
        let first = server.get(&path).expect(200)["items"][0].clone();
        assert_eq!(
            (&first["agent"]["budget"]["steps"], &first["agent"]["budget"]["tool_calls"]),
            (&json!(9), &json!(7)),
            "{first}"
        );
    }
    // They end in another order than they were asked for.
    for child in asking {
        answer(&server, child["id"].as_str().expect("an id"), "yes");
    }
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"]["outcome"], "completed", "{finished}");
    for child in children(&server, &run) {
        let given = results(&server, child["id"].as_str().expect("an id"));
        assert_eq!(given[2]["stdout"], "mine\n", "{given:?}");
    }
}
