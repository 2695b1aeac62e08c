//! Many concurrent clients: each gets its response, nothing is half-made, and the server stays up.

mod http;

use std::io::BufReader;

use http::{Server, eventually, read_head, send};
use serde_json::{Value, json};

/// Number of concurrent creates.
const BURST: usize = 200;
const ROOM: usize = 8;
/// Number of followers of one sandbox.
const LISTENERS: usize = 500;

fn live(server: &Server) -> Vec<Value> {
    server.get("/api/v1/sandboxes?state=creating,running,paused").expect(200)["items"]
        .as_array()
        .expect("a list")
        .clone()
}

#[test]
fn of_a_burst_as_many_get_a_sandbox_as_there_is_room_for_and_the_rest_is_told_when_to_come_again() {
    let server = Server::start_with(&["--capacity", &ROOM.to_string(), "--pool-max", "0"]);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = || server.post("/api/v1/sandboxes", &json!({}));
        let asked: Vec<_> = (0..BURST).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 201);
    assert_eq!(made.len(), ROOM);
    for answer in &refused {
        answer.problem(429, "capacity");
        assert!(answer.header("retry-after").is_some());
    }
    let ids = |items: &[Value]| {
        let mut ids: Vec<String> = items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let made: Vec<Value> = made.iter().map(|answer| answer.expect(201)).collect();
    assert_eq!(ids(&live(&server)), ids(&made));
    assert_eq!(std::fs::read_dir(server.data().join("control")).unwrap().count(), ROOM, "supervisors");
    for sandbox in &made {
        server.delete(&format!("/api/v1/sandboxes/{}", sandbox["id"].as_str().unwrap())).expect(200);
    }
    assert_eq!(live(&server), [] as [Value; 0]);
    assert_eq!(std::fs::read_dir(server.data().join("control")).unwrap().count(), 0);
    server.sandbox();
}

#[test]
fn many_may_listen_to_one_sandbox_and_who_does_not_read_holds_nobody_up() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let mut listening: Vec<_> = (0..LISTENERS)
        .map(|_| {
            let mut connection = server.connect();
            let headers = [&server.authorization(), "Accept: text/event-stream"];
            send(&mut connection, "GET", &format!("{sandbox}/events"), &headers, b"");
            BufReader::new(connection)
        })
        .collect();
    for reader in &mut listening {
        assert_eq!(read_head(reader).0, 200);
    }
    // None of them reads any further.
    assert_eq!(server.sh(&sandbox, "echo heard")["stdout"], "heard\n");
    let mut one = server.follow("GET", &format!("{sandbox}/events"), &[], b"");
    one.until("exec_ended");
    server.delete(&sandbox).expect(200);
    one.until("ended");
    drop(listening);
    eventually("everybody is let go", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
        open < LISTENERS
    });
    server.get("/health").expect(200);
}

/// The server's own memory, in KiB.
fn memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Concurrent sandboxes, each of which transfers a MiB in, out and as output.
fn transfer(server: &Server, count: usize) {
    let content = vec![b'x'; 1 << 20];
    let line = "head -c 1000000 /dev/zero | tr '\\0' x";
    let sandboxes: Vec<String> = (0..count).map(|_| server.sandbox()).collect();
    let together = std::sync::Barrier::new(count);
    std::thread::scope(|scope| {
        let (together, content) = (&together, &content);
        for sandbox in &sandboxes {
            scope.spawn(move || {
                together.wait();
                server.put(&format!("{sandbox}/files?path=f"), content).expect(200);
                assert!(server.get(&format!("{sandbox}/files?path=f")).body == *content);
                assert_eq!(server.sh(sandbox, line)["stdout"].as_str().map(str::len), Some(1_000_000));
            });
        }
    });
    for sandbox in &sandboxes {
        server.delete(sandbox).expect(200);
    }
}

#[test]
fn heavy_what_a_crowd_of_transfers_needed_is_given_back() {
    const CROWD: usize = 48;
    let server = Server::start_with(&["--pool-max", "0"]);
    transfer(&server, 2);
    let before = memory(&server);
    transfer(&server, CROWD);
    // A third of what they used at once, and half of what an earlier version kept.
    let most = before + 16 * 1024;
    eventually("its memory is the system's again", || memory(&server) < most);
}

#[test]
fn a_storm_of_every_request_on_one_sandbox_leaves_it_in_one_state() {
    let server = Server::start();
    let sandbox = server.sandbox();
    std::thread::scope(|scope| {
        for round in 0..48 {
            let (server, sandbox) = (&server, &sandbox);
            scope.spawn(move || {
                let answer = match round % 4 {
                    0 => server.post(&format!("{sandbox}/pause"), &json!({})),
                    1 => server.post(&format!("{sandbox}/resume"), &json!({})),
                    2 => server.post(&format!("{sandbox}/execs"), &json!({ "command": ["true"], "wait": false })),
                    _ => server.get(sandbox),
                };
                assert!([200, 201, 202, 204, 409].contains(&answer.status), "{}: {}", answer.status, answer.text());
            });
        }
    });
    server.post(&format!("{sandbox}/resume"), &json!({})).expect(200);
    assert_eq!(server.get(&sandbox).expect(200)["state"], "running");
    assert_eq!(server.sh(&sandbox, "echo still")["stdout"], "still\n");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| server.delete(&sandbox).expect(200));
        }
    });
    assert_eq!(server.get(&sandbox).expect(200)["ended"]["reason"], "killed");
}
