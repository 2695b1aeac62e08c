//! Programs over HTTP: awaited, followed, fed, signalled, flooding, and unaffected by clients that go away.

mod http;

use std::io::BufReader;

use http::websocket::{Message, WebSocket};
use http::{Server, eventually, read_head, send, stdout_of};
use serde_json::{Value, json};

fn start(server: &Server, sandbox: &str, exec: &Value) -> String {
    let started = server.post(&format!("{sandbox}/execs"), exec).expect(201);
    format!("{sandbox}/execs/{}", started["id"].as_str().expect("it is there"))
}

#[test]
fn a_program_gives_its_streams_and_its_end() {
    let server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "env": { "FROM": "sandbox", "BOTH": "sandbox" } }));
    let exec = json!({ "command": ["sh", "-c", "echo $FROM $BOTH; pwd >&2; exit 3"], "env": { "BOTH": "exec" }, "cwd": "/tmp" });
    let result = server.post(&format!("{sandbox}/execs"), &exec).expect(200);
    assert_eq!(
        (&result["stdout"], &result["stderr"], &result["exit_code"], &result["status"], &result["user"]),
        (&json!("sandbox exec\n"), &json!("/tmp\n"), &json!(3), &json!("exited"), &json!("user"))
    );
    let killed = server.sh(&sandbox, "kill -9 $$");
    assert_eq!((&killed["status"], &killed["signal"]), (&json!("signaled"), &json!(9)));
    let late =
        server.post(&format!("{sandbox}/execs"), &json!({ "command": "sleep 60", "timeout": "100ms" })).expect(200);
    assert_eq!(late["status"], "timed_out");
    let bytes = server.sh(&sandbox, "printf '\\377\\000'");
    assert_eq!(bytes["stdout_base64"], "/wA=");
    let root = server.post(&format!("{sandbox}/execs"), &json!({ "command": "id -u", "user": "root" })).expect(200);
    assert_eq!(root["stdout"], "0\n");
    for (exec, status, code) in [
        (json!({ "command": ["no-such-program"] }), 422, "program_not_found"),
        (json!({ "command": ["/etc/passwd"] }), 422, "program_not_executable"),
        (json!({ "command": "true", "cwd": "/nowhere" }), 422, "invalid_cwd"),
        (json!({ "command": [] }), 400, "invalid_request"),
        (json!({ "command": "" }), 400, "invalid_request"),
        (json!({ "command": "a\u{0}b" }), 400, "invalid_request"),
        (json!({ "command": "true", "env": { "A=B": "x" } }), 400, "invalid_request"),
        (json!({ "command": "true", "shell": true }), 400, "invalid_request"),
    ] {
        server.post(&format!("{sandbox}/execs"), &exec).problem(status, code);
    }
    let list = server.get(&format!("{sandbox}/execs")).expect(200);
    assert!(list["items"].as_array().unwrap().len() >= 5, "{list}");
}

#[test]
fn a_result_tells_what_was_used_and_what_was_refused() {
    let server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "limits": { "memory": "128M", "pids": 64 } }));
    let execs = format!("{sandbox}/execs");
    let other = start(&server, &sandbox, &json!({ "command": "sleep 61", "wait": false }));
    assert_eq!(
        (&server.get(&other).expect(200)["usage"], &server.get(&other).expect(200)["denials"]),
        (&json!(null), &json!([]))
    );
    let result = server.sh(
        &sandbox,
        "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; head -c 20000000 /dev/zero | tail -n 1 | wc -c",
    );
    assert_eq!((&result["stdout"], &result["denials"]), (&json!("20000000\n"), &json!([])));
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{result}"));
    assert!(number(&result["usage"]["cpu_ms"]) > 0, "{result}");
    assert!((20_000_000..128 << 20).contains(&number(&result["usage"]["memory_peak_bytes"])), "{result}");
    // It is not counted for a single exec among others.
    assert_eq!(result["usage"]["processes_peak"], json!(null));
    let rules = |exec: &Value| -> Vec<String> {
        let denials = exec["denials"].as_array().unwrap_or_else(|| panic!("{exec}"));
        denials.iter().map(|denial| denial["rule"].as_str().expect("text").to_owned()).collect()
    };
    let refused = server.sh(&sandbox, "unshare -U true; unshare -U true; (unshare -U true)");
    assert_eq!(rules(&refused), ["seccomp/namespaces"], "{refused}");
    let late = server.post(&execs, &json!({ "command": "sleep 62", "timeout": "100ms" })).expect(200);
    assert_eq!(rules(&late), ["limit/timeout"], "{late}");
    // Only its own usage counts, and the result stays available later, even after the sandbox is gone.
    server.post(&format!("{other}/signal"), &json!({ "signal": "KILL" })).expect(204);
    let ended = |path: &str| server.get(path).expect(200);
    eventually("it has ended", || ended(&other)["status"] == "signaled");
    assert_eq!(rules(&ended(&other)), Vec::<String>::new());
    // The program itself succeeds, and its child did not. No other process runs that could be the reason.
    let hungry = server.sh(&sandbox, "head -c 300000000 /dev/zero | tail -n 1 | wc -c");
    assert_eq!((&hungry["exit_code"], rules(&hungry)), (&json!(0), vec!["limit/memory".to_owned()]), "{hungry}");
    let many = server.sh(&sandbox, "i=0; while [ $i -lt 80 ]; do sleep 1 & i=$((i+1)); done 2>/dev/null; wait; exit 1");
    assert_eq!(rules(&many), ["limit/pids"], "{many}");
    let path = format!("{execs}/{}", refused["id"].as_str().expect("an id"));
    let (usage, denials) = (&refused["usage"], &refused["denials"]);
    assert!(usage.is_object());
    for _ in ["while it lives", "afterwards"] {
        let again = ended(&path);
        assert_eq!((&again["usage"], &again["denials"]), (usage, denials));
        server.delete(&sandbox);
    }
    let listed = ended(&execs);
    let item = listed["items"].as_array().unwrap().iter().find(|item| item["id"] == refused["id"]).unwrap();
    assert_eq!((&item["usage"], &item["denials"]), (usage, denials));
}

#[test]
fn limits_of_its_own_count_what_an_exec_used() {
    let server = Server::start();
    let sandbox = server.sandbox();
    // Both hold that much at the same time: each continues when both have it.
    let both = "while ! [ -e /tmp/1 -a -e /tmp/2 ]; do sleep 0.01; done";
    let one = format!("(head -c 30000000 /dev/zero; : > /tmp/$i; {both}) | tail -n 1 | wc -c &");
    let command = format!("for i in 1 2; do {one} done; wait");
    let exec = json!({ "command": command, "limits": { "memory": "100M", "pids": 40, "cpus": 1 } });
    let answer = server.post(&format!("{sandbox}/execs"), &exec);
    if answer.status == 422 || answer.status == 400 {
        // Only cgroups v1 support limits of an exec.
        return println!("not here: {}", answer.text());
    }
    let usage = answer.expect(200)["usage"].clone();
    assert!((60_000_000..=100 << 20).contains(&usage["memory_peak_bytes"].as_u64().expect("counted")), "{usage}");
    assert!(usage["cpu_ms"].is_u64(), "{usage}");
}

#[test]
fn limits_that_no_exec_can_have_are_the_fault_of_the_request() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let exec = json!({ "command": "true", "limits": { "pids": "46192479" } });
    let answer = server.post(&format!("{sandbox}/execs"), &exec);
    let status = answer.status;
    let problem = answer.expect(status);
    // Where an exec can't have limits at all, that is the reason.
    let is_refused = ["invalid_value", "unsupported_capability"].iter().any(|code| problem["code"] == *code);
    assert!(is_refused && (400..500).contains(&status), "{status} {problem}");
}

#[test]
fn root_of_a_sandbox_that_was_made_for_user_writes_its_private_root() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("NOT RUN HERE: an ordinary user's sandboxes have one user");
    }
    let server = Server::start();
    let [sandbox, other] = [server.sandbox(), server.sandbox()];
    let script = "set -e; echo 10.0.0.1 box >> /etc/hosts; echo x > /root/x; mkdir -p /opt/a /srv/a /data /etc/foo.d; echo x > /etc/foo.d/x; \
                  echo box:x:1001:1001::/data:/bin/sh >> /etc/passwd; chown 1000 /data; echo x > /etc/ssl/openssl.cnf; ! touch /usr/x 2>/dev/null";
    let root = |sandbox: &str, line: &str| {
        server.post(&format!("{sandbox}/execs"), &json!({ "command": line, "user": "root" })).expect(200)
    };
    let done = root(&sandbox, script);
    assert_eq!((&done["exit_code"], &done["stderr"]), (&json!(0), &json!("")), "{done}");
    let seen = server.sh(
        &sandbox,
        "grep -c -e ' box$' -e ^box: /etc/hosts /etc/passwd; cat /etc/foo.d/x; touch /data/y && echo made; touch /etc/y || echo not",
    );
    assert_eq!(seen["stdout"], "/etc/hosts:1\n/etc/passwd:1\nx\nmade\nnot\n", "{seen}");
    assert_eq!(root(&other, "ls /etc/foo.d /data /opt/a; grep ' box$' /etc/hosts")["stdout"], "");
    assert!(!std::path::Path::new("/etc/foo.d").exists());
}

#[test]
fn what_an_exec_tries_of_a_network_that_is_not_there_is_an_event() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let line = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 5)'";
    assert_eq!(server.sh(&sandbox, line)["exit_code"], 1);
    let events = server.follow("GET", &format!("{sandbox}/events"), &[], b"").until("denied");
    let denial = &events.last().expect("that one").data.to_string();
    assert!(denial.contains("network_refused") && denial.contains("network/none"), "{denial}");
}

#[test]
fn a_client_that_leaves_ends_nothing() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let exec = json!({ "command": "sleep 0.5; echo done > /tmp/done" }).to_string();
    for headers in
        [&["Content-Type: application/json"][..], &["Content-Type: application/json", "Accept: text/event-stream"]]
    {
        let authorization = server.authorization();
        let all: Vec<&str> = headers.iter().copied().chain([authorization.as_str()]).collect();
        let mut connection = server.connect();
        send(&mut connection, "POST", &format!("{sandbox}/execs"), &all, exec.as_bytes());
        eventually("it runs", || {
            server.get(&format!("{sandbox}/execs")).expect(200)["items"][0]["status"] == "running"
        });
        drop(connection);
        eventually("it was done", || server.get(&format!("{sandbox}/files/stat?path=/tmp/done")).status == 200);
        server.delete(&format!("{sandbox}/files?path=/tmp/done")).expect(204);
    }
}

#[test]
fn stdin_and_signals_reach_the_program() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let cat = start(&server, &sandbox, &json!({ "command": ["cat"], "stdin": true, "wait": false }));
    server.request("POST", &format!("{cat}/stdin"), &[], b"one ").expect(204);
    server.request("POST", &format!("{cat}/stdin?end=true"), &[], b"two").expect(204);
    let events = server.follow("GET", &format!("{cat}/stream"), &[], b"").until("exited");
    assert_eq!(stdout_of(&events), "one two");
    server.request("POST", &format!("{cat}/stdin"), &[], b"late").problem(409, "exec_ended");
    let tree = start(&server, &sandbox, &json!({ "command": "setsid sleep 61 & sleep 62", "wait": false }));
    eventually("both run", || server.sh(&sandbox, "pgrep -c sleep")["stdout"] == "2\n");
    server.post(&format!("{tree}/signal"), &json!({ "signal": "KILL", "scope": "tree" })).expect(204);
    eventually("none is left", || server.sh(&sandbox, "pgrep -c sleep")["stdout"] == "0\n");
    server.post(&format!("{tree}/signal"), &json!({ "signal": "NOPE" })).problem(400, "invalid_request");
    let unknown = format!("{sandbox}/execs/exec_aaaaaaaaaaaaaaaaaaaaaaaaaa");
    server.post(&format!("{unknown}/signal"), &json!({ "signal": "TERM" })).problem(404, "not_found");
    server.get(&unknown).problem(404, "not_found");
    server.get(&format!("{unknown}/stream")).problem(404, "not_found");
}

#[test]
fn a_stream_goes_on_at_any_byte() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let exec = start(&server, &sandbox, &json!({ "command": "printf 0123456789; printf abc >&2", "wait": false }));
    server.follow("GET", &format!("{exec}/stream"), &[], b"").until("exited");
    for (id, out) in [("0-0", "0123456789"), ("4-3", "456789"), ("10-0", "")] {
        let header = format!("Last-Event-ID: {id}");
        let events = server.follow("GET", &format!("{exec}/stream"), &[&header], b"").until("exited");
        assert_eq!(stdout_of(&events), out, "{id}");
    }
    for forged in ["1", "-1-0", "a-b", "1-2-3", "99999999999999999999999-0"] {
        let header = format!("Last-Event-ID: {forged}");
        server.request("GET", &format!("{exec}/stream"), &[&header], b"").problem(400, "invalid_request");
    }
    server.request("GET", &format!("{exec}/stream"), &["Last-Event-ID: 99-99"], b"").problem(400, "invalid_value");
    server.get(&format!("{exec}/stream?from=nowhere")).problem(400, "invalid_request");
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse().expect("it is there")
}

#[test]
fn a_flood_of_output_is_bounded_and_says_what_was_dropped() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let flood = "head -c 100000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2; echo end";
    let result = server.sh(&sandbox, flood);
    let kept = result["stdout"].as_str().unwrap();
    assert!(kept.len() <= 1 << 20 && kept.ends_with("xend\n"), "{}", kept.len());
    assert_eq!(result["stdout_truncated"], true);
    assert_eq!(result["stdout_dropped_bytes"].as_u64().unwrap() + kept.len() as u64, 100_000_004);
    let peak = resident_kib(server.pid());
    assert!(peak < 200 * 1024, "{peak} KiB");
}

#[test]
fn a_slow_reader_of_a_flood_costs_no_memory_and_is_told_of_gaps() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let exec = json!({ "command": "head -c 100000000 /dev/zero | tr '\\0' y; echo; echo end" }).to_string();
    let authorization = server.authorization();
    let headers = ["Content-Type: application/json", "Accept: text/event-stream", authorization.as_str()];
    let mut slow = server.connect();
    send(&mut slow, "POST", &format!("{sandbox}/execs"), &headers, exec.as_bytes());
    let mut reader = BufReader::new(slow);
    assert_eq!(read_head(&mut reader).0, 200);
    // Other clients are served while this one reads nothing.
    for _ in 0..20 {
        assert_eq!(server.sh(&sandbox, "echo quick")["stdout"], "quick\n");
    }
    let peak = resident_kib(server.pid());
    assert!(peak < 200 * 1024, "{peak} KiB");
    drop(reader);
    eventually("it goes on to its end", || {
        let list = server.get(&format!("{sandbox}/execs")).expect(200);
        list["items"].as_array().unwrap().iter().all(|exec| exec["status"] != "running")
    });
}

fn attach(server: &Server, exec: &str, headers: &[&str]) -> Result<WebSocket, u16> {
    let authorization = server.authorization();
    let all: Vec<&str> = headers.iter().copied().chain([authorization.as_str()]).collect();
    WebSocket::open(server, &format!("{exec}/attach"), &all)
}

#[test]
fn a_terminal_over_a_websocket() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let shell = json!({ "command": ["sh"], "stdin": true, "tty": { "rows": 24, "cols": 80 }, "wait": false });
    let exec = start(&server, &sandbox, &shell);
    let mut socket = attach(&server, &exec, &[]).expect("it opens");
    socket.until("started");
    socket.text(r#"{"type":"resize","rows":40,"cols":132}"#);
    socket.binary(b"stty size; exit 5\n");
    let (output, exited) = socket.until("exited");
    assert!(String::from_utf8_lossy(&output).contains("40 132"), "{}", String::from_utf8_lossy(&output));
    assert_eq!(exited["exec"]["exit_code"], 5);
    assert_eq!(socket.next(), Message::Close);
    let cat = start(&server, &sandbox, &json!({ "command": ["cat"], "stdin": true, "wait": false }));
    let mut socket = attach(&server, &cat, &[]).expect("it opens");
    socket.until("started");
    socket.binary(b"piped");
    socket.text(r#"{"type":"stdin_end"}"#);
    assert_eq!(socket.until("exited").0, b"piped");
    let sleep = start(&server, &sandbox, &json!({ "command": "sleep 60", "wait": false }));
    let mut socket = attach(&server, &sleep, &[]).expect("it opens");
    socket.until("started");
    socket.text(r#"{"type":"signal","signal":"TERM","scope":"tree"}"#);
    assert_eq!(socket.until("exited").1["exec"]["signal"], 15);
}

#[test]
fn a_websocket_that_breaks_the_rules_is_closed_and_nothing_else_is() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let exec = start(&server, &sandbox, &json!({ "command": ["cat"], "stdin": true, "wait": false }));
    assert_eq!(attach(&server, &exec, &["Origin: https://evil.example"]).err(), Some(403));
    assert_eq!(attach(&server, &exec, &["Origin: null"]).err(), Some(403));
    assert_eq!(WebSocket::open(&server, &format!("{exec}/attach"), &[]).err(), Some(401));
    assert!(attach(&server, &exec, &["Origin: http://localhost"]).is_ok());
    server.get(&format!("{exec}/attach")).problem(400, "invalid_request");
    let end = |socket: &mut WebSocket| {
        loop {
            if matches!(socket.next(), Message::Close | Message::Gone) {
                return;
            }
        }
    };
    let mut oversize = attach(&server, &exec, &[]).expect("it opens");
    oversize.binary(&vec![0; 2 << 20]);
    end(&mut oversize);
    let mut nonsense = attach(&server, &exec, &[]).expect("it opens");
    nonsense.text("{\"type\":\"launch\"}");
    end(&mut nonsense);
    let mut pings = attach(&server, &exec, &[]).expect("it opens");
    for _ in 0..10_000 {
        pings.send(9, b"ping");
    }
    drop(pings);
    let mut after = attach(&server, &exec, &[]).expect("it opens");
    after.until("started");
    after.text(r#"{"type":"stdin_end"}"#);
    assert_eq!(after.until("exited").1["exec"]["exit_code"], 0);
}
