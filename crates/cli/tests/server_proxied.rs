//! Network mode `proxied` for sandboxes of a server: one egress process for all of them, which outlives the server and may die.
//!
//! Each test runs itself again inside of a small internet of our own (tests/network/world.py), so that the server, its sandboxes and the
//! test share a network. Its log shows what reached a server; what is refused must not.

mod http;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use http::{Server, eventually, stdout_of};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use saggar_domain::net::EgressDraft;
use saggar_supervisor::control::{Client, Description, EventBody, Op, Received, Reply};
use serde_json::{Value, json};

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/network/world.py");
/// Set inside of the world, to the path of its log.
const LOG: &str = "WORLD_LOG";

/// Runs the body in the world. `name` is the test's own name.
fn in_world(name: &str, body: impl FnOnce()) {
    if std::env::var_os(LOG).is_some() {
        return body();
    }
    let log = std::env::temp_dir().join(format!("saggar-world-{}-{name}.log", std::process::id()));
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(&log).arg(std::env::current_exe().expect("a test"));
    let status = command.args(["--exact", name, "--nocapture"]).env(LOG, &log).status();
    let seen = std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::remove_file(&log).expect("the world wrote it");
    assert!(status.expect("unshare is part of every Linux").success(), "servers saw: {seen}");
}

/// What servers saw, as `METHOD PATH at ADDRESS`.
fn seen() -> Vec<String> {
    let text = std::fs::read_to_string(std::env::var_os(LOG).expect("in the world")).expect("the world writes it");
    let entry = |line: &str| {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| entry[name].as_str().unwrap_or("raw").to_owned();
        format!("{} {} at {}", word("method"), word("path"), word("server"))
    };
    text.lines().map(entry).collect()
}

fn proxied(server: &Server, allow: &[&str]) -> String {
    server.sandbox_with(&json!({"network": "proxied", "egress": {"allow": allow}}))
}

/// The egress processes of a server's data directory, replaced ones included.
fn egress_processes(server: &Server) -> Vec<u32> {
    let wanted = format!("__egress\0service\0{}\0", server.data().display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).ends_with(&wanted) {
            found.push(pid);
        }
    }
    found
}

fn the_egress_process(server: &Server) -> u32 {
    let processes = egress_processes(server);
    assert_eq!(processes.len(), 1, "{processes:?}");
    processes[0]
}

fn kill_now(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("ours");
}

fn id_of(sandbox: &str) -> &str {
    sandbox.rsplit('/').next().expect("a path")
}

fn control(server: &Server, sandbox: &str) -> Client {
    let socket = server.data().join("control").join(format!("{}.sock", id_of(sandbox)));
    let client = Client::connect(&socket).expect("its supervisor lives");
    client.set_patience(http::PATIENCE).expect("a socket");
    client
}

fn set_rules(server: &Server, sandbox: &str, allow: &[&str]) -> Description {
    let egress = EgressDraft::of(allow.iter().map(|rule| rule.parse().expect("a rule")).collect(), vec![]);
    match control(server, sandbox).request(Op::SetEgress { egress, uses_secrets: false }).expect("an answer") {
        Reply::Described(description) => *description,
        other => panic!("{other:?}"),
    }
}

/// Waits for an event of a sandbox.
fn await_event(server: &Server, sandbox: &str, mut is_it: impl FnMut(&EventBody) -> bool) {
    let mut client = control(server, sandbox);
    client.ask(Op::Events { after: 0 }).expect("a socket");
    loop {
        match client.receive().expect("an event in time") {
            Received::Reply(Reply::Event(event)) if is_it(&event.body) => return,
            Received::Reply(Reply::Event(_) | Reply::EventsGone { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn stdout(exec: &Value) -> &str {
    exec["stdout"].as_str().expect("text")
}

/// Connects to the raw service and says "open"; then sends back and forth until the file `go` is there, and says how the connection ended.
const CONVERSE: &str = r#"/usr/bin/python3 -c '
import os, socket
s = socket.create_connection(("good.test", 7000), 30)
s.settimeout(60)
s.recv(6)
open("/tmp/open", "w").close()
try:
    while not os.path.exists("/tmp/go"):
        s.sendall(b"x")
        if s.recv(1) != b"x":
            raise OSError("closed")
    print("alive")
except OSError:
    print("cut")
'"#;

/// An exec that goes on, by its path.
fn start(server: &Server, sandbox: &str, line: &str) -> String {
    let started = server.post(&format!("{sandbox}/execs"), &json!({"command": line, "wait": false})).expect(201);
    format!("{sandbox}/execs/{}", started["id"].as_str().expect("an id"))
}

/// An exec that converses, started; returns when its connection is open.
fn converse(server: &Server, sandbox: &str) -> String {
    let exec = start(server, sandbox, CONVERSE);
    eventually("the connection is open", || stdout(&server.sh(sandbox, "ls /tmp")).contains("open"));
    exec
}

/// What an exec wrote, once it has ended.
fn written(server: &Server, exec: &str) -> String {
    stdout_of(&server.follow("GET", &format!("{exec}/stream"), &[], b"").until("exited"))
}

#[test]
fn a_sandbox_reaches_what_its_rules_allow_and_hears_why_not() {
    in_world("a_sandbox_reaches_what_its_rules_allow_and_hears_why_not", || {
        let server = Server::start();
        server.sandbox();
        assert_eq!(egress_processes(&server), [0u32; 0], "without a proxied sandbox there is none");
        let one = proxied(&server, &["good.test"]);
        let two = proxied(&server, &["GET good.test/only/**"]);
        the_egress_process(&server);

        let done = server
            .sh(&one, "curl -sS http://good.test/plain; curl -sS https://good.test/tls; curl -sS https://evil.test/");
        assert!(stdout(&done).contains("no rule allows evil.test:443"), "{done}");
        let denial = &done["denials"][0];
        assert_eq!((&denial["code"], &denial["rule"]), (&json!("network_refused"), &json!("egress/default")), "{done}");
        // Inspected, with the authority of this sandbox. Its proxy port is its own.
        let line = "for url in only/1 other; do curl -sS -o /dev/null -w '%{http_code} ' https://good.test/$url; done; \
                    curl -sS -o /dev/null -w '%{http_code}' -x http://127.0.0.1:61080 http://good.test/plain";
        assert_eq!(stdout(&server.sh(&two, line)), "200 403 403");
        assert_eq!(seen(), ["GET /plain at 203.0.113.10", "GET /tls at 203.0.113.10", "GET /only/1 at 203.0.113.10"]);
        await_event(
            &server,
            &one,
            |body| matches!(body, EventBody::Decision { exec_id: Some(_), decision } if decision.host == "evil.test"),
        );
    });
}

#[test]
fn rules_that_change_cut_what_they_forbid() {
    in_world("rules_that_change_cut_what_they_forbid", || {
        let server = Server::start();
        let sandbox = proxied(&server, &["good.test", "good.test:7000"]);
        let talk = converse(&server, &sandbox);
        let before = server.get(&sandbox).expect(200)["policy_hash"].clone();
        let described = set_rules(&server, &sandbox, &["GET good.test"]);
        assert_ne!(json!(described.policy_hash), before);
        assert_eq!(written(&server, &talk), "cut\n");
        let line = "curl -sS -o /dev/null -w '%{http_code} ' https://good.test/; \
                    curl -sS -o /dev/null -w '%{http_code}' -d x https://good.test/";
        assert_eq!(stdout(&server.sh(&sandbox, line)), "200 403");
        // A sandbox without a managed network has no rules.
        let plain = server.sandbox();
        let refused =
            control(&server, &plain).request(Op::SetEgress { egress: EgressDraft::default(), uses_secrets: false });
        assert!(matches!(refused, Ok(Reply::Error(problem)) if problem.message.contains("is none")));
    });
}

#[test]
fn a_killed_egress_process_closes_the_network_until_another_one_has_the_same_rules() {
    in_world("a_killed_egress_process_closes_the_network_until_another_one_has_the_same_rules", || {
        let server = Server::start();
        let sandbox = proxied(&server, &["GET good.test", "good.test:7000"]);
        let talk = converse(&server, &sandbox);
        let load = "for i in $(seq 1000); do curl -sS -m 5 -o /dev/null https://good.test/load; curl -sS -m 5 http://evil.test/; \
                    [ -e /tmp/go ] && break; done";
        start(&server, &sandbox, load);
        let first = the_egress_process(&server);
        kill_now(first);
        assert_eq!(written(&server, &talk), "cut\n");
        await_event(&server, &sandbox, |body| *body == EventBody::NetworkLost);
        await_event(&server, &sandbox, |body| *body == EventBody::NetworkRestored);
        assert_ne!(the_egress_process(&server), first);
        // The new authority is trusted, and the rules are the same.
        let line = "touch /tmp/go; curl -sS -o /dev/null -w '%{http_code} ' https://good.test/again; \
                    curl -sS -o /dev/null -w '%{http_code} ' -d x https://good.test/again; \
                    curl -sS -o /dev/null -w '%{http_code}' http://evil.test/";
        assert_eq!(stdout(&server.sh(&sandbox, line)), "200 403 403");
        let seen = seen();
        assert!(seen.iter().all(|entry| entry.ends_with("203.0.113.10")), "something went direct: {seen:?}");
        assert!(seen.contains(&"GET /again at 203.0.113.10".to_owned()));
    });
}

#[test]
fn a_connection_survives_a_kill_of_the_server_and_the_next_one_adopts_the_process() {
    in_world("a_connection_survives_a_kill_of_the_server_and_the_next_one_adopts_the_process", || {
        let mut server = Server::start();
        let sandbox = proxied(&server, &["good.test", "good.test:7000"]);
        let talk = converse(&server, &sandbox);
        let process = the_egress_process(&server);
        server.kill();
        server.begin();
        assert_eq!(the_egress_process(&server), process);
        server.sh(&sandbox, "touch /tmp/go");
        assert_eq!(written(&server, &talk), "alive\n");
        // A process that dies while no server runs is started again by the next one.
        server.kill();
        kill_now(process);
        server.begin();
        await_event(&server, &sandbox, |body| *body == EventBody::NetworkRestored);
        assert_eq!(stdout(&server.sh(&sandbox, "curl -sS -o /dev/null -w '%{http_code}' http://good.test/")), "200");
    });
}

#[test]
fn a_proxied_sandbox_comes_from_the_pool_and_has_no_network_before_its_claim() {
    in_world("a_proxied_sandbox_comes_from_the_pool_and_has_no_network_before_its_claim", || {
        let server = Server::start_with(&["--pool-min", "0", "--pool-max", "4"]);
        let first = proxied(&server, &["good.test"]);
        let pooled = || -> Option<String> {
            let entries = std::fs::read_dir(server.data().join("control")).expect("ours").flatten();
            let names =
                entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".sock").map(str::to_owned));
            names.into_iter().find(|name| name.starts_with("sbx_") && name != id_of(&first))
        };
        eventually("one is ready", || pooled().is_some());
        let ready = pooled().expect("as above");
        match control(&server, &ready).request(Op::Describe).expect("an answer") {
            Reply::Described(description) => {
                assert_eq!((description.is_claimed, description.egress), (false, Some(EgressDraft::default())));
            }
            other => panic!("{other:?}"),
        }
        let second = proxied(&server, &["GET good.test/**"]);
        assert_eq!(id_of(&second), ready);
        let line = "curl -sS -o /dev/null -w '%{http_code} ' https://good.test/x; \
                    curl -sS -o /dev/null -w '%{http_code}' http://evil.test/";
        assert_eq!(stdout(&server.sh(&second, line)), "200 403");
    });
}

/// A process of another version, as far as a server can see.
fn other_version(socket: &Path) -> OwnedFd {
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&listener, &SocketAddrUnix::new(socket).expect("short")).expect("a new name");
    listen(&listener, 8).expect("a socket");
    listener
}

#[test]
fn a_process_of_another_version_is_replaced_and_retires() {
    in_world("a_process_of_another_version_is_replaced_and_retires", || {
        let mut server = Server::start();
        server.stop();
        let old = other_version(&server.data().join("egress.sock"));
        let asked = thread::spawn(move || {
            let mut asked = Vec::new();
            let mut bytes = [0; 4096];
            // A connection without a message asks whether anything listens.
            while asked.is_empty() {
                let connection = accept(&old).expect("a server");
                while let Ok((_, length @ 1..)) = recv(&connection, &mut bytes[..], rustix::net::RecvFlags::empty()) {
                    let message: Value = serde_json::from_slice(&bytes[..length]).expect("JSON");
                    let is_first = message.get("manage").is_some();
                    asked.push(message);
                    let answer = match is_first {
                        true => json!({"managing": {"version": "0.0.0", "sessions": 1}}),
                        false => json!({"retired": {}}),
                    };
                    send(&connection, answer.to_string().as_bytes(), rustix::net::SendFlags::NOSIGNAL)
                        .expect("a server");
                    if !is_first {
                        break;
                    }
                }
            }
            (old, asked)
        });
        server.begin();
        let (old, asked) = asked.join().expect("no panic");
        assert_eq!(asked, [json!({"manage": {"v": 1}}), json!({"retire": {}})]);
        the_egress_process(&server);
        // The next server finds it by its other name, as long as it lives.
        let others = |server: &Server| -> Vec<PathBuf> {
            let names = std::fs::read_dir(server.data()).expect("ours").flatten().map(|entry| entry.path());
            let is_other =
                |path: &PathBuf| path.to_str().is_some_and(|path| path.contains("/egress-") && path.ends_with(".sock"));
            names.filter(is_other).collect()
        };
        assert_eq!(others(&server).len(), 1);
        drop(old);
        server.stop();
        server.begin();
        assert_eq!(others(&server), Vec::<PathBuf>::new());
        let sandbox = proxied(&server, &["good.test"]);
        assert_eq!(stdout(&server.sh(&sandbox, "curl -sS -o /dev/null -w '%{http_code}' http://good.test/")), "200");
    });
}

#[test]
fn the_process_has_cgroups_and_a_user_of_its_own_and_they_are_removed_after_it() {
    in_world("the_process_has_cgroups_and_a_user_of_its_own_and_they_are_removed_after_it", || {
        let mut server = Server::start();
        proxied(&server, &[]);
        let process = the_egress_process(&server);
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).expect("a line").to_owned();
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(is_root, uid.split('\t').all(|id| id.parse::<u32>().expect("an id") >= 0x7000_0000), "{uid}");
        let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup")).expect("it lives");
        let lists: Vec<PathBuf> = std::fs::read_dir(server.data().join("egress"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        let paths: Vec<String> = lists
            .iter()
            .flat_map(|list| {
                std::fs::read_to_string(list).expect("ours").lines().map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        for path in &paths {
            let name = Path::new(path).file_name().and_then(|name| name.to_str()).expect("a name");
            assert!(groups.contains(name), "{name} is not in {groups}");
        }
        server.stop();
        kill_now(process);
        eventually("it is gone", || !Path::new(&format!("/proc/{process}")).exists());
        let left = || -> Vec<&String> { paths.iter().filter(|path| Path::new(path).exists()).collect() };
        let socket = server.data().join("egress.sock");
        assert!(!is_root || (!left().is_empty() && socket.exists()), "a dead process removes nothing");
        // Any command that looks for leftovers removes them, also without a server.
        let doctor =
            Command::new(env!("CARGO_BIN_EXE_saggar")).arg("doctor").arg("--data-dir").arg(server.data()).output();
        assert!(doctor.expect("the binary was built").status.success());
        assert!(left().is_empty() && !socket.exists(), "{:?}", left());
        server.begin();
    });
}
