//! A coding agent that mends a failing test with every built-in tool. The server is killed in each of its steps twice: when the step is
//! intended and nothing was done for it, and when it was done and nothing says so. The end is the same, and each effect happened once.

mod harness;
mod http;
mod runs;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use harness::{is_root, not_here};
use http::{Server, eventually, new_directory, send};
use runs::ledger::{Ledger, result};
use runs::{begin, events, results, said, shell, show, until_completed, until_state};
use serde_json::{Value, json};

const BROKEN: &str = "leap() { [ $(($1 % 4)) = 0 ]; }\n";
const MENDED: &str = "leap() { [ $(($1 % 4)) = 0 ] && [ $(($1 % 100)) != 0 -o $(($1 % 400)) = 0 ]; }\n";
const TEST: &str = ". ./leap.sh\nleap 2024 && ! leap 1900 && echo passed\n";
/// Runs the test, and leaves a trace outside of the repository.
const TRY: &str = "cd /workspace && echo tried >> /tmp/trace; sh test.sh";

fn call(tool: &str, arguments: Value) -> Value {
    json!({ "tool": tool, "arguments": arguments })
}

/// Every built-in tool, one call after the other.
fn calls(ledger: &Ledger) -> Vec<Value> {
    let path = "/workspace/leap.sh";
    let code = "open('/tmp/trace', 'a').write('computed\\n')\n[year for year in (1900, 2000, 2024) if year % 4 == 0]";
    vec![
        // Until the test has its id.
        call("wait", json!({ "seconds": 600, "signal": "go" })),
        call("files", json!({ "op": "search", "path": "/workspace", "text": "leap()" })),
        shell(TRY),
        call("shell", json!({ "command": "cd /workspace; echo kept >> /tmp/trace", "session": "main" })),
        call("code", json!({ "code": code })),
        call("edit", json!({ "op": "view", "path": path })),
        call("edit", json!({ "op": "insert", "path": path, "line": 0, "content": "# Gregorian." })),
        call("edit", json!({ "op": "replace", "path": path, "old": BROKEN.trim_end(), "new": MENDED.trim_end() })),
        call("http", json!({ "url": ledger.url, "body": "It is mended." })),
        call("wait", json!({ "seconds": 1 })),
        call("ask_human", json!({ "question": "Shall I keep it?" })),
        call("delegate", json!({ "task": "Look at it.", "agent": "reviewer" })),
        shell(TRY),
        shell("cat /tmp/trace /workspace/leap.sh"),
    ]
}

fn agent(ledger: &Ledger) -> Value {
    let mut turns: Vec<Value> = calls(ledger).into_iter().map(|call| json!({ "calls": [call] })).collect();
    turns.push(json!({ "calls": [call("finish", json!({ "output": { "passed": true } }))] }));
    let model = |turns: Value| json!({ "provider": "scripted", "script": { "turns": turns } });
    let review = json!([{ "calls": [shell("wc -l < /workspace/test.sh; echo looked >> /tmp/seen; cat /tmp/seen")] }, { "text": "It is good." }]);
    let tools = ["files", "shell", "code", "edit", "http", "wait", "ask_human", "delegate", "finish"];
    let tools: BTreeMap<&str, Value> = tools.into_iter().map(|tool| (tool, json!({}))).collect();
    json!({ "agent": {
        "name": "mender",
        "task": "Mend the test.",
        "model": model(json!(turns)),
        "tools": tools,
        "sandbox": { "workspace": "site" },
        "agents": { "reviewer": { "model": model(review), "tools": { "shell": {} }, "sandbox": { "workspace": "site" } } },
    } })
}

/// A server with a repository of the operator's, named `site`.
fn site(ledger: &Ledger) -> (Server, PathBuf) {
    let root = new_directory();
    let site = root.join("site");
    std::fs::create_dir(&site).expect("ours");
    std::fs::write(site.join("leap.sh"), BROKEN).expect("ours");
    std::fs::write(site.join("test.sh"), TEST).expect("ours");
    let workspaces = format!("site={}", site.display());
    let flags = ["--pool-max", "0", "--http-allowed", &ledger.url, "--workspaces", &workspaces];
    (Server::start_in(root, &flags), site)
}

/// Sends a request without caring for the answer: the server may be killed before it gives one.
fn tell(server: &Server, path: &str, body: &Value) {
    let authorization = server.authorization();
    let headers = [authorization.as_str(), "Content-Type: application/json"];
    let mut connection = server.connect();
    send(&mut connection, "POST", path, &headers, body.to_string().as_bytes());
    // Cut off, if it was.
    let _ = connection.read_to_end(&mut Vec::new());
}

/// Lets the server go on until it is killed at this point. `meanwhile` does what a person does in this step.
fn until_killed(server: &mut Server, point: &str, meanwhile: impl FnOnce(&Server)) {
    server.fails_at = format!("kill {point}");
    server.begin();
    meanwhile(server);
    assert_eq!(server.ended().signal(), Some(9), "killed at {point}");
}

fn until_parked_at(server: &Server, run: &str, step: u64) {
    eventually(&format!("step {step} is parked"), || {
        let shown = show(server, run);
        assert_ne!(shown["state"], "finished", "{shown}");
        shown["parked"]["step"] == step
    });
}

fn decide(server: &Server, run: &str, step: u64, decision: &Value) {
    until_parked_at(server, run, step);
    tell(server, &format!("/api/v1/runs/{run}/steps/{step}/decide"), decision);
}

fn check(server: &Server, site: &Path, ledger: &Ledger, run: &str) {
    let finished = until_completed(server, run);
    assert_eq!(finished["outcome"]["answer"]["text"], r#"{"passed":true}"#, "{finished}");
    // The ninth call.
    let report = format!("{run}/0/18");
    let given = results(server, run);
    assert_eq!(said(&given[2])["exit_code"], 1, "the test fails at first: {given:#?}");
    let [.., tried, last, finish] = given.as_slice() else { panic!("{given:#?}") };
    assert_eq!(finish, "the run is finished");
    let last = said(last);
    let expected = format!("tried\nkept\ncomputed\ntried\n# Gregorian.\n{MENDED}");
    assert_eq!(last["stdout"], expected, "each program and each edit once");
    assert_eq!(said(tried)["stdout"], "passed\n", "{given:#?}");
    for told in ["Keep it.", &result(&report)] {
        assert!(given.iter().any(|given| given == told), "{told}: {given:#?}");
    }
    let asked = ledger.asked();
    assert_eq!(asked.keys().filter(|key| key.starts_with(run)).collect::<Vec<_>>(), [&report]);
    let all = server.get("/api/v1/runs").expect(200);
    let children: Vec<&Value> =
        all["items"].as_array().expect("a list").iter().filter(|other| other["child_of"]["run_id"] == run).collect();
    assert_eq!(children.len(), 1, "{all}");
    let child = children[0]["id"].as_str().expect("an id");
    assert_eq!(said(&results(server, child)[0])["stdout"], "2\nlooked\n", "the child looked once");
    let replay = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(replay["divergence"], Value::Null);
    // The repository of the operator is as it was, until somebody applies the changes.
    assert_eq!(std::fs::read_to_string(site.join("leap.sh")).expect("there"), BROKEN);
    let sandbox = finished["sandbox_id"].as_str().expect("it had one");
    server.post(&format!("/api/v1/sandboxes/{sandbox}/changes/apply"), &json!({})).expect(200);
    assert_eq!(std::fs::read_to_string(site.join("leap.sh")).expect("there"), format!("# Gregorian.\n{MENDED}"));
}

#[test]
fn a_coding_agent_that_is_killed_twice_in_each_step_ends_as_one_that_was_left_alone() {
    if !is_root() {
        return not_here("sandboxes of an ordinary user have one id");
    }
    let ledger = Ledger::start();
    let (mut server, site) = site(&ledger);
    let run = begin(&server, &agent(&ledger));
    until_state(&server, &run, "waiting");
    server.kill();
    let calls = calls(&ledger);
    let count = calls.len() as u64;
    let go = json!({ "id": "go", "name": "go", "body": "go" });
    until_killed(&mut server, "run/open/3", |server| tell(server, &format!("/api/v1/runs/{run}/signal"), &go));
    // The first step is the model's, and so is every other one.
    for step in 3..=2 * count + 1 {
        let tool = (step % 2 == 0).then(|| &calls[step as usize / 2 - 1]);
        let is_in_session = tool.is_some_and(|call| call["arguments"]["session"].is_string());
        let name = tool.map_or("model", |call| call["tool"].as_str().expect("a name"));
        let next = format!("run/open/{}", step + 1);
        let next = if step == 2 * count + 1 { "run/finished" } else { &next };
        let done = format!("run/reported/{step}");
        match name {
            // Only a person may have these repeated. They were not done before the first kill, and were done before the second.
            "code" | "shell" if name == "code" || is_in_session => {
                until_killed(&mut server, &done, |server| decide(server, &run, step, &json!({ "decision": "retry" })));
                until_killed(&mut server, next, |server| {
                    decide(server, &run, step, &json!({ "decision": "done", "result": "It was done." }));
                });
            }
            "wait" => until_killed(&mut server, next, |_| {}),
            "ask_human" => until_killed(&mut server, next, |server| {
                eventually("it asks", || show(server, &run)["state"] == "asking");
                let answer = json!({ "id": "one", "name": "answer", "question": step, "body": "Keep it." });
                tell(server, &format!("/api/v1/runs/{run}/signal"), &answer);
            }),
            "delegate" => {
                // The same of the child, whose steps are a model's, a program's, and the model's again.
                for point in
                    ["run/open/1", "run/reported/1", "run/open/2", "run/reported/2", "run/open/3", "run/reported/3"]
                {
                    until_killed(&mut server, point, |_| {});
                }
                until_killed(&mut server, next, |_| {});
            }
            _ => {
                until_killed(&mut server, &done, |_| {});
                until_killed(&mut server, next, |_| {});
            }
        }
    }
    server.fails_at.clear();
    server.begin();
    check(&server, &site, &ledger, &run);
    let claims = events(&server, &run, "claimed").len();
    assert!(claims > 2 * count as usize, "{claims} workers had it");
}
