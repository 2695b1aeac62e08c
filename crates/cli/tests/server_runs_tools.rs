//! Misbehaving tools: one never returns, one prints forever. Each hits a limit, the limit is reported, and the run
//! continues.

mod http;
mod runs;

use http::{Server, eventually};
use runs::ledger::Ledger;
use runs::{
    agent_with, begin, decide, events, gated, http, journal, results, said, shell, show, start, until_completed,
    until_gated, until_state,
};
use serde_json::{Value, json};

/// Maximum memory of a server, in KiB: the flood is many times as large.
const MEMORY_KIB_MAX: u64 = 96 << 10;
/// Output of a program on each stream: this many lines of two bytes, and as many of six.
const LINES: u64 = 50_000_000;

fn server(ledger: &Ledger) -> Server {
    Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.at("/")])
}

/// Peak memory of a process, in KiB.
fn memory_most(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("every process has one");
    most.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_tool_that_never_returns_has_a_deadline_and_so_many_tries() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let tools = json!({ "http": { "timeout": "2s", "attempts_max": 2 }, "shell": { "timeout": "1s" } });
    let calls = [
        http(&ledger.at("/hang"), 1),
        shell("echo begun >> /tmp/ledger; sleep infinity"),
        shell("cat /tmp/ledger"),
        http(&ledger.url, 2),
    ];
    let run = begin(&server, &agent_with(tools, json!([{ "calls": calls }, { "text": "finished" }])));
    until_completed(&server, &run);

    let failed = events(&server, &run, "step_failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!((&failed[0]["step"], &failed[0]["attempt"]), (&json!(2), &json!(1)));
    assert_eq!(failed[0]["failure"]["message"], "the service did not respond in time");
    let settled = events(&server, &run, "step_settled");
    assert_eq!(settled[1]["result"]["gave_up"]["message"], "the service did not respond in time", "{settled:#?}");
    assert_eq!(ledger.asked()[&format!("{run}/0/2")], 2, "as often as there are tries, by one key");
    let given = results(&server, &run);
    assert_eq!(said(&given[0])["status"], "timed_out", "{given:?}");
    assert_eq!(said(&given[1])["stdout"], "begun\n", "it was begun once, and is gone");
    assert_eq!(given[2], format!("done {run}/0/5"));
}

#[test]
fn a_call_that_may_be_made_once_and_never_returns_parks() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let tools = json!({ "http": { "class": "once", "timeout": "2s" } });
    let calls = [http(&ledger.at("/hang"), 1)];
    let run = begin(&server, &agent_with(tools, json!([{ "calls": calls }, { "text": "finished" }])));
    until_state(&server, &run, "parked");
    assert_eq!(events(&server, &run, "step_unknown")[0]["reason"], "the service did not respond in time");
    decide(&server, &run, 2, &json!({ "decision": "abandon" }));
    let abandoned = until_state(&server, &run, "finished");
    assert_eq!(abandoned["outcome"], json!({ "outcome": "abandoned", "step": 2 }));
    assert_eq!(ledger.asked()[&format!("{run}/0/2")], 1);
}

#[test]
fn heavy_a_tool_that_floods_is_cut_and_says_so() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let read = json!({ "tool": "files", "arguments": { "op": "read", "path": "/tmp/long" } });
    let calls = [
        shell(&format!("yes | head -n {LINES}; yes error | head -n {LINES} >&2; echo the end")),
        http(&ledger.at("/flood"), 1),
        shell("yes | head -c 1000000 > /tmp/long"),
        read,
        shell("echo goes on"),
    ];
    let run = start(&server, json!([{ "calls": calls }, { "text": "finished" }]));
    until_completed(&server, &run);

    let given = texts(&server, &run);
    let flooded = said(&given[0]);
    let kept = |name: &str| flooded[name].as_str().expect("a text");
    assert_eq!((&flooded["status"], &flooded["exit_code"]), (&json!("exited"), &json!(0)));
    assert!(kept("stdout").ends_with("y\nthe end\n") && kept("stderr").ends_with("error\n"), "the last of it is kept");
    let lengths = (kept("stdout").len() + kept("stderr").len()) as u64;
    assert_eq!(flooded["bytes_dropped"], 8 * LINES + "the end\n".len() as u64 - lengths, "what is missing is counted");
    assert!(given[1].starts_with("zzz") && given[1].ends_with("(truncated after 262144 bytes)"), "{}", tail(&given[1]));
    assert_eq!(ledger.asked()[&format!("{run}/0/3")], 1, "it was answered: it isn't asked again");
    assert!(
        given[3].starts_with("y\ny\n") && given[3].ends_with("(truncated after 262144 bytes)"),
        "{}",
        tail(&given[3])
    );
    assert_eq!(said(&given[4])["stdout"], "goes on\n");
    let most = memory_most(server.pid());
    assert!(most < MEMORY_KIB_MAX, "the server had {most} KiB");
}

#[test]
fn runs_wait_for_a_sandbox_in_turn_while_there_is_no_room_for_one() {
    let server = Server::start_with(&["--pool-max", "0", "--capacity", "1"]);
    let first = start(&server, json!([{ "calls": [gated()] }, { "text": "finished" }]));
    let sandbox = until_gated(&server);
    let turns = json!([{ "calls": [shell("echo mine"), shell("echo more")] }, { "text": "finished" }]);
    let waiting: Vec<String> = (0..3).map(|_| start(&server, turns.clone())).collect();
    for run in &waiting {
        let mut shown = Value::Null;
        eventually(&format!("{run} waits for a sandbox"), || {
            shown = show(&server, run);
            shown["waiting_for"] == "sandbox"
        });
        assert_eq!((&shown["state"], &shown["sandbox_id"]), (&json!("waiting"), &Value::Null));
    }
    assert_eq!(server.sh(&sandbox, "touch /tmp/go")["exit_code"], 0);
    until_completed(&server, &first);
    for run in &waiting {
        until_completed(&server, run);
        let said: Vec<Value> = results(&server, run).iter().map(|result| said(result)["stdout"].clone()).collect();
        assert_eq!(said, ["mine\n", "more\n"]);
        assert!(events(&server, run, "step_failed").is_empty(), "to wait is no failure");
        let delayed = events(&server, run, "step_delayed");
        assert!(
            delayed[0]["reason"].as_str().is_some_and(|why| why.starts_with("waiting for a sandbox")),
            "{delayed:?}"
        );
        assert!(events(&server, run, "step_intended").iter().all(|intended| intended["attempt"] == 1));
    }
}

#[test]
fn a_program_that_outlives_its_sandbox_is_settled_and_the_next_gets_another() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let turns = json!([{ "calls": [gated(), shell("echo lost"), shell("ls /tmp")] }, { "text": "finished" }]);
    let run = start(&server, turns);
    let sandbox = until_gated(&server);
    // As when the sandbox's maximum lifetime is over.
    let body = json!({ "ttl": "1s" }).to_string();
    let shortened = server.request("PATCH", &sandbox, &["Content-Type: application/json"], body.as_bytes());
    assert_eq!(shortened.status, 200, "{}", shortened.text());
    until_completed(&server, &run);
    let given = results(&server, &run);
    assert_eq!(said(&given[0])["sandbox_ended"], "timed_out", "{given:?}");
    assert!(given[1].starts_with("nothing was done: sandbox") && given[1].contains("timed_out"), "{given:?}");
    assert_eq!(said(&given[2])["stdout"], "", "it has another sandbox, which is empty");
}

/// Tool results, long or short.
fn texts(server: &Server, run: &str) -> Vec<String> {
    let fixture = server.get(&format!("/api/v1/runs/{run}/export")).expect(200);
    let text = |entry: &Value| {
        let content = &entry["result"]["returned"]["content"];
        let blob = content["blob"]["hash"].as_str().map(|hash| &fixture["blobs"][hash]);
        blob.unwrap_or(&content["text"]).as_str().map(str::to_owned)
    };
    journal(server, run).iter().filter_map(text).collect()
}

fn tail(text: &str) -> &str {
    let from = text.len().saturating_sub(200);
    text.get(from..).unwrap_or(text)
}

fn edit(arguments: Value) -> Value {
    json!({ "tool": "edit", "arguments": arguments })
}

fn files(arguments: Value) -> Value {
    json!({ "tool": "files", "arguments": arguments })
}

/// One call in each turn, so that each waits for the one before.
fn one_by_one(calls: Vec<Value>) -> Value {
    calls.into_iter().map(|call| json!({ "calls": [call] })).chain([json!({ "text": "done" })]).collect()
}

#[test]
fn an_edit_is_made_once_and_can_be_undone_whenever_the_server_is_killed() {
    const PATH: &str = "/tmp/a.txt";
    let calls = || {
        vec![
            files(json!({ "op": "write", "path": PATH, "content": "one\ntwo\n" })),
            edit(json!({ "op": "insert", "path": PATH, "line": 1, "content": "x" })),
            edit(json!({ "op": "replace", "path": PATH, "old": "two", "new": "2" })),
            edit(json!({ "op": "undo", "path": PATH })),
            shell("cat /tmp/a.txt"),
            edit(json!({ "op": "undo", "path": PATH })),
            edit(json!({ "op": "undo", "path": PATH })),
            shell("cat /tmp/a.txt"),
        ]
    };
    for point in ["", "edit/noted", "edit/written", "edit/undone", "edit/marked"] {
        let mut server = Server::start_with(&["--pool-max", "0"]);
        if !point.is_empty() {
            server.stop();
            server.fails_at = format!("kill {point}");
            server.begin();
        }
        let run = begin(&server, &agent_with(json!({ "edit": {} }), one_by_one(calls())));
        if !point.is_empty() {
            assert_eq!(server.ended().code(), None, "it was killed at {point}");
            server.fails_at.clear();
            server.begin();
        }
        until_completed(&server, &run);
        let given = results(&server, &run);
        assert_eq!(given[1], "inserted 1 line after line 1", "{point}");
        assert_eq!(given[2], "replaced once, at line 3", "{point}");
        assert_eq!(said(&given[4])["stdout"], "one\nx\ntwo\n", "{point}: {given:?}");
        assert_eq!(given[6], "there is no edit of this file to undo", "{point}");
        assert_eq!(said(&given[7])["stdout"], "one\ntwo\n", "{point}: {given:?}");
    }
}

#[test]
fn files_are_searched_read_by_lines_and_complained_about_with_what_helps() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let long = "printf 'line\\n%.0s' $(seq 3000) > /tmp/d/long; printf 'a\\0b' > /tmp/d/binary; printf '\\033[31mred\\a\\n' > /tmp/d/red; mkdir /tmp/d/.git; echo needle > /tmp/d/.git/x";
    let calls = vec![
        edit(json!({ "op": "create", "path": "/tmp/d/a.rs", "content": "fn one() {}\nfn needle() {}\n" })),
        shell(long),
        files(json!({ "op": "search", "path": "/tmp/d", "text": "needle" })),
        files(json!({ "op": "read", "path": "/tmp/d/long", "start": 2999 })),
        edit(json!({ "op": "view", "path": "/tmp/d/long", "lines": 3 })),
        edit(json!({ "op": "view", "path": "/tmp/d/binary" })),
        edit(json!({ "op": "view", "path": "/tmp/d/red" })),
        edit(json!({ "op": "create", "path": "/tmp/d/a.rs", "content": "" })),
        edit(json!({ "op": "replace", "path": "/tmp/d/a.rs", "old": "fn ", "new": "pub fn " })),
        edit(json!({ "op": "replace", "path": "/tmp/d/a.rs", "old": "fn needles() {}", "new": "" })),
        edit(json!({ "op": "replace", "path": "/tmp/d/a.rs", "old": "x" })),
        edit(json!({ "op": "view", "path": "/tmp/d/nothing" })),
        shell("sed -i s/one/two/ /tmp/d/a.rs"),
        edit(json!({ "op": "undo", "path": "/tmp/d/a.rs" })),
        edit(json!({ "op": "grow", "path": "/tmp/d/a.rs" })),
    ];
    let run = begin(&server, &agent_with(json!({ "edit": {} }), one_by_one(calls)));
    until_completed(&server, &run);
    let given = results(&server, &run);
    let found = json!([{ "path": "a.rs", "line": 2, "text": "fn needle() {}" }]);
    assert_eq!(said(&given[2]), json!({ "matches": found, "skipped": 0, "is_cut": false }));
    assert_eq!(given[3], "  2999\tline\n  3000\tline\n");
    assert!(given[4].ends_with("(lines 1 to 3 of 3000; the next page has \"start\": 4)"), "{}", given[4]);
    for (index, what) in [
        (5, "the file is not text"),
        (6, "     1\t\u{1b}[31mred\u{7}\n"),
        (7, "the file exists"),
        (8, "old matches 2 times, at lines 1, 2"),
        (9, "the nearest line is 2: \"fn needle() {}\""),
        (10, "missing field `new`"),
        (11, "does not exist in the sandbox"),
        (13, "was changed by something else since its last edit"),
        (14, "the arguments of edit are invalid"),
    ] {
        assert!(given[index].contains(what), "{index}: {}", given[index]);
    }
}

#[test]
fn code_keeps_its_state_from_call_to_call_and_an_error_is_told() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let code = |text: &str| json!({ "tool": "code", "arguments": { "code": text } });
    let bash = json!({ "tool": "code", "arguments": { "code": "echo hi >&2; false", "language": "bash" } });
    let calls = [code("x = 40\nprint('set')"), code("x + 2"), code("1/0"), bash];
    let tools = json!({ "code": { "timeout": "30s" } });
    let turns = json!([{ "calls": calls }, { "text": "finished" }]);
    let run = begin(&server, &agent_with(tools, turns));
    until_completed(&server, &run);
    let given = results(&server, &run);
    let [first, second, third, fourth] = [0, 1, 2, 3].map(|at| said(&given[at]));
    assert_eq!((&first["status"], &first["stdout"], &first["results"]), (&json!("ok"), &json!("set\n"), &json!([])));
    assert_eq!(second["results"], json!([{ "main": true, "text": "42", "formats": [] }]));
    assert_eq!((&third["status"], &third["error"]["name"]), (&json!("error"), &json!("ZeroDivisionError")));
    assert_eq!((&fourth["stderr"], &fourth["error"]["value"]), (&json!("hi\n"), &json!("1")));
}

#[test]
fn a_session_of_the_shell_keeps_its_state_and_says_when_it_ended() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let call =
        |line: &str, session: &str| json!({ "tool": "shell", "arguments": { "command": line, "session": session } });
    let calls = vec![
        call("cd /tmp; n=41; more() { echo $((n + 1)); }; false", "a"),
        call("pwd; more", "a"),
        call("pwd; more", "b"),
        call("exit 3", "a"),
        call("echo ${n:-nothing}", "a"),
        json!({ "tool": "shell", "arguments": { "command": ["echo", "it's", "$n"], "session": "a", "cwd": "/var" } }),
        call("yes | head -c 200000", "a"),
    ];
    let tools = json!({ "shell": { "timeout": "60s", "class": "pure" } });
    let run = begin(&server, &agent_with(tools, one_by_one(calls)));
    until_completed(&server, &run);
    let given = texts(&server, &run);
    let told: Vec<Value> = given.iter().filter(|text| text.contains("session")).map(|text| said(text)).collect();
    let shown = |at: usize, field: &str| told[at][field].clone();
    assert_eq!((shown(0, "exit_code"), shown(0, "session")), (json!(1), json!("new")), "{told:#?}");
    assert_eq!((shown(1, "stdout"), shown(1, "session")), (json!("/tmp\n42\n"), json!("kept")));
    assert_eq!(
        (shown(2, "session"), shown(2, "status")),
        (json!("new"), json!("exited")),
        "another name, another bash"
    );
    assert_ne!(shown(2, "stdout"), json!("/tmp\n42\n"));
    assert_eq!((shown(3, "status"), shown(3, "exit_code")), (json!("died"), Value::Null));
    assert!(shown(3, "session").as_str().is_some_and(|text| text.starts_with("ended")), "{told:#?}");
    assert_eq!(shown(4, "stdout"), "nothing\n");
    assert_eq!(shown(5, "stdout"), "it's $n\n");
    assert_eq!(shown(6, "stdout").as_str().map(str::len), Some(65536));
    assert_eq!(shown(6, "bytes_dropped"), 200_000 - 65536);
    let intended = events(&server, &run, "step_intended");
    let classes: Vec<&Value> =
        intended.iter().filter(|step| step["effect"]["do"] == "call_tool").map(|step| &step["class"]).collect();
    assert!(classes.iter().all(|class| **class == "once"), "nobody can be asked about it: {classes:?}");
}
