//! Requests that are too large, too slow, malformed or hostile: each is refused, and the server stays up.

mod http;

use std::io::{BufReader, Read, Write};

use http::{Server, read_answer, send};
use serde_json::json;

fn create(server: &Server, body: &[u8]) -> http::Answer {
    server.request("POST", "/api/v1/sandboxes", &["Content-Type: application/json"], body)
}

#[test]
fn malformed_json_is_refused_with_what_is_wrong() {
    let server = Server::start();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = format!("{{\"labels\":{}1{}}}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
    for body in [
        &b"{"[..],
        b"[]",
        b"null",
        b"\"text\"",
        b"{} {}",
        b"{}x",
        b"{\"template\": NaN}",
        b"{\"ttl\": 1e400}",
        b"{\"ttl\": -1}",
        b"{\"limits\": {\"pids\": 99999999999999999999999999}}",
        b"{\"template\": \"base\", \"template\": \"base\"}",
        b"{\"labels\": {\"a\": \"1\", \"a\": \"2\"}}",
        b"{\"template\": \"\\ud800\"}",
        b"\xef\xbb\xbf{}",
        b"{\"template\": \"a\\u0000b\"}",
        b"{\"env\": {\"A\": \"x\\u0000y\"}}",
        b"{\"template\": \"\xff\xfe\"}",
        b"{\"network\": \"maybe\"}",
        b"{\"ports\": {\"public\": [0]}}",
        b"{\"ports\": {\"public\": [70000]}}",
        deep.as_bytes(),
        nested.as_bytes(),
    ] {
        let answer = create(&server, body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
        let problem = answer.expect(400);
        assert!(
            !problem["detail"].as_str().unwrap().is_empty() && problem["detail"].as_str().unwrap().len() < 1000,
            "{shown}"
        );
    }
    let typed = server.request("POST", "/api/v1/sandboxes", &["Content-Type: text/plain"], b"{}");
    typed.problem(415, "unsupported_media_type");
    assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"], json!([]));
}

#[test]
fn too_large_is_refused_whether_or_not_it_was_announced() {
    let server = Server::start();
    let large = format!("{{\"env\":{{\"A\":\"{}\"}}}}", "x".repeat(1 << 20));
    create(&server, large.as_bytes()).problem(413, "too_large");
    let mut connection = server.connect();
    let authorization = server.authorization();
    let headers = [authorization.as_str(), "Content-Type: application/json", "Transfer-Encoding: chunked"];
    send(&mut connection, "POST", "/api/v1/sandboxes", &headers, b"");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..40 {
        if connection.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    read_answer(&mut BufReader::new(connection)).problem(413, "too_large");
    let many: Vec<String> = (0..10_000).map(|index| format!("X-{index}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(server.request("GET", "/api/v1/sandboxes", &many, b"").status, 431);
    let long = format!("X-Long: {}", "x".repeat(100_000));
    server.request("GET", "/api/v1/sandboxes", &[&long], b"").problem(431, "headers_too_large");
    let id = "a".repeat(200_000);
    let answer = server.get(&format!("/api/v1/sandboxes/{id}"));
    assert!((400..=431).contains(&answer.status), "{}", answer.status);
    server.get("/health").expect(200);
}

#[test]
fn a_silent_client_is_let_go() {
    let server = Server::start();
    // All wait concurrently, so that the test takes only as long as the longest.
    let mut nothing = server.connect();
    let mut preface = server.connect();
    preface.write_all(b"PRI * HT").unwrap();
    let mut headers = server.connect();
    headers.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ").unwrap();
    let mut idle = server.connect();
    send(&mut idle, "GET", "/health", &[], b"");
    let mut body = server.connect();
    let authorization = server.authorization();
    let json = [authorization.as_str(), "Content-Type: application/json", "Content-Length: 100"];
    send(&mut body, "POST", "/api/v1/sandboxes", &json, b"");
    body.write_all(b"{").unwrap();
    let mut rest = Vec::new();
    for connection in [&mut nothing, &mut preface, &mut headers, &mut idle] {
        connection.read_to_end(&mut rest).expect("closed, not stuck");
    }
    read_answer(&mut BufReader::new(body)).problem(408, "timeout");
    server.get("/health").expect(200);
}

#[test]
fn more_connections_than_may_be_are_told_so() {
    let all = ["--connections-max", "8", "--connections-per-address", "8", "--requests-per-key", "8"];
    let server = Server::start_with(&all);
    let events = format!("{}/events", server.sandbox());
    // Idle connections would be closed to make room; active ones are not.
    let held: Vec<_> = (0..8).map(|_| server.follow("GET", &events, &[], b"")).collect();
    http::eventually("one too many", || {
        let mut connection = server.connect();
        send(&mut connection, "GET", "/health", &[], b"");
        let mut text = String::new();
        // A connection that is closed before it is read may be reset.
        let _ = connection.read_to_string(&mut text);
        text.starts_with("HTTP/1.1 503") && text.contains("\"code\":\"unavailable\"")
    });
    drop(held);
    http::eventually("room again", || {
        let mut connection = server.connect();
        send(&mut connection, "GET", "/health", &["Connection: close"], b"");
        let mut text = String::new();
        // As above.
        let _ = connection.read_to_string(&mut text);
        text.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn idle_connections_make_room_for_whoever_asks_something() {
    let server = Server::start_with(&["--connections-max", "16", "--pool-max", "0"]);
    let events = format!("{}/events", server.sandbox());
    let mut listening = server.follow("GET", &events, &[], b"");
    // Far more than allowed, and none of them sends a request.
    let idle: Vec<_> = (0..64).map(|_| server.connect()).collect();
    for _ in 0..64 {
        server.get("/api/v1/sandboxes").expect(200);
    }
    // Clients with an active request were not disconnected for them.
    server.delete(events.trim_end_matches("/events")).expect(200);
    listening.until("ended");
    drop(idle);
}

#[test]
fn one_key_can_not_take_all_there_is_and_others_go_on() {
    let mut server =
        Server::start_with(&["--connections-max", "16", "--connections-per-address", "16", "--pool-max", "0"]);
    let events = format!("{}/events", server.sandbox());
    let greedy: Vec<_> = (0..8).map(|_| server.follow("GET", &events, &[], b"")).collect();
    let created = server.post("/api/v1/keys", &json!({ "name": "other" }));
    // Half of the capacity, and then a Retry-After.
    created.problem(429, "capacity");
    assert!(created.header("retry-after").is_some());
    server.get(&events).problem(429, "capacity");
    drop(greedy);
    let mut other = String::new();
    http::eventually("there is room for it again", || {
        let created = server.post("/api/v1/keys", &json!({ "name": "other" }));
        other = serde_json::from_slice::<serde_json::Value>(&created.body).unwrap()["secret"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        created.status == 201
    });
    let greedy: Vec<_> = (0..8).map(|_| server.follow("GET", &events, &[], b"")).collect();
    server.get("/api/v1/sandboxes").problem(429, "capacity");
    server.key = other;
    server.get("/api/v1/sandboxes").expect(200);
    drop(greedy);
}

#[test]
fn cursors_limits_and_filters_are_taken_in_their_form_alone() {
    let server = Server::start();
    let labelled = server.sandbox_with(&json!({ "labels": { "team": "red" } }));
    let second = server.sandbox_with(&json!({ "labels": { "team": "blue" } }));
    for query in [
        "limit=0",
        "limit=-1",
        "limit=1000000000",
        "limit=1e3",
        "cursor=x",
        "cursor=%27%20OR%201%3D1%20--",
        "state=running%27--",
        "state=",
        "label=nonsense",
        "label=a%00b%3D1",
        "sort=id",
        "limit=1&limit=2",
    ] {
        server.get(&format!("/api/v1/sandboxes?{query}")).problem(400, "invalid_request");
    }
    // A name may contain any printable character, and is never interpreted.
    let found = server.get("/api/v1/sandboxes?label=a%27%20OR%201%3D1%20--").expect(200);
    assert_eq!(found["items"], json!([]));
    let first = server.get("/api/v1/sandboxes?limit=1").expect(200);
    let cursor = first["next_cursor"].as_str().unwrap();
    let next = server.get(&format!("/api/v1/sandboxes?limit=1&cursor={cursor}")).expect(200);
    assert_eq!(next["next_cursor"], serde_json::Value::Null);
    assert!(second.ends_with(first["items"][0]["id"].as_str().unwrap()));
    assert!(labelled.ends_with(next["items"][0]["id"].as_str().unwrap()));
    let other = if cursor.ends_with('0') { '1' } else { '0' };
    let edited = format!("{}{other}", &cursor[..cursor.len() - 1]);
    server.get(&format!("/api/v1/sandboxes?cursor={edited}")).problem(400, "invalid_request");
    let red = server.get("/api/v1/sandboxes?label=team%3Dred&state=running,paused").expect(200);
    assert_eq!(red["items"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/api/v1/sandboxes?label=team%3D%27%20OR%201").expect(200)["items"], json!([]));
}

/// One HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// GET http /health, with everything from the static table except the path and the authority.
const HEALTH: &[u8] = b"\x82\x86\x44\x07/health\x41\x01x";

#[test]
fn http2_is_spoken_and_its_floods_end_the_connection_alone() {
    let server = Server::start();
    let mut polite = server.connect();
    polite.write_all(&[PREFACE, &frame(4, 0, 0, b""), &frame(1, 5, 1, HEALTH)].concat()).unwrap();
    let mut read = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&read).contains("\"status\":\"ok\"") {
        let length = polite.read(&mut piece).expect("an answer");
        assert!(length > 0, "it closed: {read:?}");
        read.extend_from_slice(&piece[..length]);
    }
    // Open and reset, repeatedly.
    let mut resets = PREFACE.to_vec();
    resets.extend(frame(4, 0, 0, b""));
    for index in 0..20_000u32 {
        resets.extend(frame(1, 5, 2 * index + 1, HEALTH));
        resets.extend(frame(3, 0, 2 * index + 1, &8u32.to_be_bytes()));
    }
    // Headers that never end.
    let mut continued = PREFACE.to_vec();
    continued.extend(frame(4, 0, 0, b""));
    continued.extend(frame(1, 1, 1, HEALTH));
    for _ in 0..20_000 {
        continued.extend(frame(9, 0, 1, b"\x00\x01a\x01b"));
    }
    // Endless settings, each to be acknowledged, and none of the acknowledgements read.
    let mut settings = PREFACE.to_vec();
    for _ in 0..100_000 {
        settings.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]));
    }
    for (what, flood) in [("resets", resets), ("continuations", continued), ("settings", settings)] {
        let mut rude = server.connect();
        // The connection is expected to be cut off.
        let _ = rude.write_all(&flood);
        drop(rude);
        assert_eq!(server.get("/health").expect(200)["status"], "ok", "after {what}");
    }
    let memory = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = memory.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 200 * 1024, "{peak} KiB");
}

/// One HTTP/2 frame: type, flags, payload.
fn read_frame(connection: &mut std::net::TcpStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    connection.read_exact(&mut head).expect("a frame");
    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    connection.read_exact(&mut payload).expect("all of it");
    (head[3], head[4], payload)
}

#[test]
fn an_http2_client_that_is_there_and_asks_nothing_is_sent_away() {
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GO_AWAY: u8 = 7;
    let server = Server::start_with(&["--pool-max", "0"]);
    let mut connection = server.connect();
    connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("it listens");
    loop {
        match read_frame(&mut connection) {
            // GOAWAY comes twice, and then the connection ends: between the two the client may still send a request.
            (GO_AWAY, ..) => break,
            (PING, 0, payload) => {
                let answer = [&[0, 0, 8, PING, 1, 0, 0, 0, 0][..], &payload].concat();
                connection.write_all(&answer).expect("it listens");
            }
            (SETTINGS, 0, _) => connection.write_all(&[0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]).expect("it listens"),
            _ => {}
        }
    }
}
