//! Sessions that are recorded, and sessions that are answered from a recording.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use saggar_domain::net::Verdict;
use saggar_egress::limits::Limits;
use saggar_egress::recording::{Library, RecordingLimits};
use saggar_supervisor::egress::FromEgress;
use serde_json::Value;
use tokio::time::timeout;

use crate::client::{Answer, get, https1, https2, plain, raw, request, send1, send2, with_body};
use crate::sandbox::{DEADLINE, Sandbox};
use crate::world::World;

/// A file without a name.
struct Tape(File);

impl Tape {
    fn new() -> Self {
        let file = rustix::fs::memfd_create("tape", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        Self(file.into())
    }

    fn of(lines: &str) -> Self {
        let tape = Self::new();
        (&tape.0).write_all(lines.as_bytes()).unwrap();
        tape
    }

    fn fd(&self) -> OwnedFd {
        self.0.try_clone().unwrap().into()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        (&self.0).rewind().unwrap();
        (&self.0).read_to_string(&mut text).unwrap();
        text
    }

    fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn load(&self) -> Library {
        (&self.0).rewind().unwrap();
        Library::load(self.fd()).map_err(|error| error.to_string()).unwrap()
    }

    fn refused(&self) -> String {
        (&self.0).rewind().unwrap();
        Library::load(self.fd()).err().expect("a recording that can't be read").to_string()
    }
}

async fn recorded(world: &World, allow: &[&str], tape: &Tape) -> Sandbox {
    recorded_within(world, allow, tape, RecordingLimits::default()).await
}

async fn recorded_within(world: &World, allow: &[&str], tape: &Tape, recording: RecordingLimits) -> Sandbox {
    let limits = Limits { recording, ..Limits::default() };
    Sandbox::prepared(world, allow, limits, |session| session.record(tape.fd()).unwrap()).await
}

/// In a world without servers.
async fn replayed(world: &World, allow: &[&str], tape: &Tape) -> Sandbox {
    let library = tape.load();
    Sandbox::prepared(world, allow, Limits::default(), |session| session.replay(library).unwrap()).await
}

fn parts(answer: &Answer) -> (StatusCode, String, Option<String>) {
    let kind = answer.headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    (answer.status, answer.text().to_owned(), kind)
}

/// What the programs of both runs do.
async fn visit(sandbox: &Sandbox) -> Vec<(StatusCode, String, Option<String>)> {
    let mut answers = Vec::new();
    let mut first = https1(sandbox, "good.test").await;
    for request in [
        get("good.test", "/a?page=1"),
        with_body("POST", "/echo", "good.test", "{\"prompt\":\"é\"}"),
        with_body("POST", "/echo", "good.test", "another"),
        get("good.test", "/redirect"),
        request("HEAD", "/a", "good.test"),
    ] {
        answers.push(parts(&send1(&mut first, request).await));
    }
    let mut second = https2(sandbox, "good.test").await;
    let answer = send2(&mut second, with_body("POST", "https://good.test/trailers", "", "body")).await;
    assert_eq!(answer.trailers.as_ref().expect("trailers")["grpc-status"], "0");
    answers.push(parts(&answer));
    answers.push(parts(&send1(&mut plain(sandbox, "good.test").await, get("good.test", "/plain")).await));
    answers
}

#[tokio::test]
async fn a_recording_answers_the_same_requests_without_any_server() {
    let world = World::new();
    world.https("good.test").await;
    world.http("good.test").await;
    let tape = Tape::new();
    // Without a tape the first rule would let TLS pass unread.
    let sandbox = recorded(&world, &["good.test"], &tape).await;
    let before = visit(&sandbox).await;
    assert!(sandbox.rest().await.iter().all(|decision| decision.verdict == Verdict::Allowed));

    let empty = World::new();
    let mut sandbox = replayed(&empty, &["good.test"], &tape).await;
    let after = visit(&sandbox).await;

    assert_eq!(after, before);
    assert_eq!(empty.dials(), 0);
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.address, decision.rule.as_str()), (Verdict::Allowed, None, "good.test"));
    assert!(decision.bytes_down > 0);
}

#[tokio::test]
async fn a_stream_is_recorded_in_pieces_and_replayed_in_their_order_at_once() {
    let world = World::new();
    let server = world.https("good.test").await;
    let tape = Tape::new();
    let sandbox = recorded(&world, &["good.test"], &tape).await;
    let mut sender = https1(&sandbox, "good.test").await;
    let mut answer = sender.send_request(get("good.test", "/stream")).await.unwrap();
    for _ in 0..3 {
        server.go.add_permits(1);
        let frame = timeout(DEADLINE, answer.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "data: piece\n\n");
    }
    // The program has seen enough.
    drop((answer, sender));
    sandbox.rest().await;
    let got: Vec<Value> = tape.lines().into_iter().filter_map(|line| line.get("got").cloned()).collect();
    assert_eq!(got.len(), 3);
    assert!(got.iter().all(|piece| piece["text"] == "data: piece\n\n"), "{got:?}");

    let empty = World::new();
    let sandbox = replayed(&empty, &["good.test"], &tape).await;
    let mut sender = https1(&sandbox, "good.test").await;
    let mut answer = sender.send_request(get("good.test", "/stream")).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut text = Vec::new();
    let mut is_broken = false;
    while let Some(frame) = timeout(DEADLINE, answer.frame()).await.unwrap() {
        match frame {
            Ok(frame) => text.extend(frame.into_data().unwrap()),
            Err(_) => is_broken = true,
        }
    }
    assert_eq!(String::from_utf8(text).unwrap(), "data: piece\n\n".repeat(3));
    assert!(is_broken, "an answer that was cut must not look whole");
    assert_eq!(empty.dials(), 0);
}

#[tokio::test]
async fn nothing_that_proves_who_asks_gets_into_the_file() {
    let world = World::new();
    let server = crate::server::Server::start_fixed(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: id=canary\r\nX-Kept: yes\r\n\r\nok".to_vec(),
    )
    .await;
    world.lead("good.test:80", &server);
    let tape = Tape::new();
    let sandbox = recorded(&world, &["good.test"], &tape).await;
    let mut request = get("good.test", "/x?api_key=canary&page=1");
    for name in ["authorization", "cookie", "x-api-key", "proxy-authorization", "x-auth-token"] {
        request.headers_mut().insert(name, "canary".parse().unwrap());
    }
    let live = send1(&mut plain(&sandbox, "good.test").await, request).await;
    assert_eq!(live.headers["set-cookie"], "id=canary");
    sandbox.rest().await;
    assert!(!tape.text().contains("canary"), "{}", tape.text());
    assert!(tape.text().contains("x-kept"));

    let empty = World::new();
    let sandbox = replayed(&empty, &["good.test"], &tape).await;
    let other_key = get("good.test", "/x?api_key=other&page=1");
    let answer = send1(&mut plain(&sandbox, "good.test").await, other_key).await;
    assert_eq!((answer.text(), answer.headers["x-kept"].to_str().unwrap()), ("ok", "yes"));
    assert!(!answer.headers.contains_key("set-cookie"), "a value that was left out is not replayed");
}

#[tokio::test]
async fn what_passes_as_it_is_is_named_and_not_replayed() {
    let world = World::new();
    world.echo("good.test:7000").await;
    world.https("good.test").await;
    let tape = Tape::new();
    let allow = ["good.test", "good.test:7000"];
    let sandbox = recorded(&world, &allow, &tape).await;
    let mut stream = sandbox.dial("good.test", 7000).await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"ping").await.unwrap();
    let mut echoed = [0; 4];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut echoed).await.unwrap();
    drop(stream);
    let answer = send1(&mut https1(&sandbox, "good.test").await, websocket()).await;
    assert_eq!(answer.status, StatusCode::SWITCHING_PROTOCOLS);
    sandbox.rest().await;
    let connections: Vec<Value> = tape.lines().into_iter().filter_map(|line| line.get("connection").cloned()).collect();
    assert_eq!(connections.len(), 2, "{connections:?}");
    assert!(connections.iter().all(|connection| connection["replayable"] == false));
    assert!(!tape.text().contains("ping"));

    let empty = World::new();
    let mut sandbox = replayed(&empty, &allow, &tape).await;
    assert_eq!(raw(sandbox.dial("good.test", 7000).await, b"ping").await, "");
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/not-recorded"));
    assert!(decision.reason.unwrap().contains("names the connection"));
    let answer = send1(&mut https1(&sandbox, "good.test").await, websocket()).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/not-recorded"));
    assert_eq!(empty.dials(), 0);
}

fn websocket() -> Request<Full<Bytes>> {
    let mut request = get("good.test", "/websocket");
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_failure_is_recorded_and_not_replayed_as_an_answer() {
    let world = World::new();
    let tape = Tape::new();
    let sandbox = recorded(&world, &["down.test"], &tape).await;
    let answer = send1(&mut plain(&sandbox, "down.test").await, get("down.test", "/")).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    sandbox.rest().await;
    assert_eq!(tape.load().replayable(), 0);

    let sandbox = replayed(&world, &["down.test"], &tape).await;
    let answer = send1(&mut plain(&sandbox, "down.test").await, get("down.test", "/")).await;
    assert_eq!(answer.rule(), "egress/not-recorded");
    assert!(answer.text().contains("failed when it was recorded: down.test:80 can't be reached"), "{}", answer.text());
}

const EMPTY_HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A recording of plain requests without bodies: method, target and the answer's body.
fn tape_of(exchanges: &[(&str, &str, &str)]) -> Tape {
    let mut lines = String::from("{\"saggar_recording\":{\"v\":1}}\n");
    for (index, (method, target, body)) in exchanges.iter().enumerate() {
        let n = index + 1;
        lines += &format!(
            "{{\"request\":{{\"exchange\":{n},\"method\":\"{method}\",\"scheme\":\"http\",\"host\":\"good.test\",\
             \"port\":80,\"target\":\"{target}\",\"headers\":[]}}}}\n\
             {{\"answer\":{{\"exchange\":{n},\"status\":200,\"headers\":[]}}}}\n\
             {{\"got\":{{\"exchange\":{n},\"text\":\"{body}\"}}}}\n\
             {{\"end\":{{\"exchange\":{n},\"sha256\":\"{EMPTY_HASH}\",\"sent_whole\":true,\"outcome\":\"whole\"}}}}\n"
        );
    }
    Tape::of(&lines)
}

#[tokio::test]
async fn the_nth_identical_request_gets_the_nth_answer_and_only_reads_are_repeated() {
    let tape = tape_of(&[("GET", "/x", "one"), ("POST", "/x", "made"), ("GET", "/y", "other"), ("GET", "/x", "two")]);
    let world = World::new();
    let sandbox = replayed(&world, &["good.test"], &tape).await;
    for (method, expected) in [("GET", "one"), ("GET", "two"), ("GET", "two"), ("POST", "made"), ("GET", "two")] {
        let answer = send1(&mut plain(&sandbox, "good.test").await, request(method, "/x", "good.test")).await;
        assert_eq!(answer.text(), expected, "{method}");
    }
    let answer = send1(&mut plain(&sandbox, "good.test").await, request("POST", "/x", "good.test")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/not-recorded"));
    assert!(answer.text().contains("recorded 1 times, and is made once more"), "{}", answer.text());
}

#[tokio::test]
async fn what_is_not_recorded_is_refused_with_what_is_nearest() {
    let tape = tape_of(&[("GET", "/list?page=1&size=5", "a"), ("POST", "/make", "b")]);
    let world = World::new();
    let mut sandbox = replayed(&world, &["*"], &tape).await;
    for (host, request, nearest) in [
        ("good.test", get("good.test", "/list?page=2&size=5"), "the nearest has another query: page"),
        ("good.test", get("good.test", "/list?size=5&page=1"), "the same parameters in another order"),
        ("good.test", get("good.test", "/make"), "the nearest has another method: POST /make"),
        ("good.test", get("good.test", "/none"), "the nearest is another path: GET /list"),
        ("good.test", with_body("POST", "/make", "good.test", "new"), "the nearest has another body"),
        ("other.test", get("other.test", "/"), "no request to other.test:80 is in the recording"),
    ] {
        let answer = send1(&mut plain(&sandbox, host).await, request).await;
        assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/not-recorded"));
        assert!(answer.text().contains(nearest), "{nearest}: {}", answer.text());
        let decision = sandbox.decision().await;
        assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/not-recorded"));
        assert!(!decision.reason.unwrap().contains("size=5"), "a query's values are never in the records");
    }
    assert_eq!(world.dials(), 0);
}

#[tokio::test]
async fn rules_still_decide_what_is_replayed() {
    let tape = tape_of(&[("GET", "/open", "a"), ("GET", "/closed", "b")]);
    let world = World::new();
    let sandbox = replayed(&world, &["GET good.test/open"], &tape).await;
    let mut sender = plain(&sandbox, "good.test").await;
    assert_eq!(send1(&mut sender, get("good.test", "/open")).await.text(), "a");
    let answer = send1(&mut sender, get("good.test", "/closed")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/default"));
}

#[tokio::test]
async fn a_cut_last_line_is_reported_and_the_rest_is_replayed() {
    let whole = tape_of(&[("GET", "/x", "one"), ("GET", "/y", "two")]).text();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    // Killed anywhere in the second exchange.
    let first: usize = lines[..5].iter().map(|line| line.len()).sum();
    for length in first..whole.len() {
        let tape = Tape::of(&whole[..length]);
        let library = tape.load();
        assert_eq!(library.replayable(), 1, "{length}");
        let is_cut = !whole[..length].ends_with('\n');
        assert_eq!(library.warning().is_some_and(|warning| warning.contains("is cut")), is_cut, "{length}");
    }
    // Its request is known, but not its end.
    let world = World::new();
    let cut = lines[..7].concat();
    let sandbox = replayed(&world, &["good.test"], &Tape::of(&cut)).await;
    let answer = send1(&mut plain(&sandbox, "good.test").await, get("good.test", "/y")).await;
    assert!(answer.text().contains("ends in the middle of this exchange"), "{}", answer.text());
}

#[test]
fn a_file_that_is_no_recording_is_refused_with_the_reason() {
    let header = "{\"saggar_recording\":{\"v\":1}}\n";
    let end = format!(
        "{{\"end\":{{\"exchange\":9,\"sha256\":\"{EMPTY_HASH}\",\"sent_whole\":true,\"outcome\":\"whole\"}}}}\n"
    );
    for (text, expected) in [
        (String::new(), "it is not a recording of saggar"),
        ("{\"log\":{}}\n".to_owned(), "it is not a recording of saggar"),
        ("{\"saggar_recording\":{\"v\":2}}\n".to_owned(), "it has version 2 of the format"),
        (format!("{header}not json\n{header}"), "line 2 is damaged"),
        (format!("{header}{end}"), "line 2 is damaged"),
        (format!("{header}{{\"got\":{{\"exchange\":1,\"base64\":\"AA==\"}}}}\n"), "line 2 is damaged"),
        (format!("{header}{}", "x".repeat(2 << 20)), "line 2 is longer than"),
    ] {
        let found = Tape::of(&text).refused();
        assert!(found.contains(expected), "{expected}: {found}");
    }
}

#[test]
fn a_second_header_begins_new_numbers() {
    let one = tape_of(&[("GET", "/x", "one")]).text();
    let library = Tape::of(&format!("{one}{one}")).load();
    assert_eq!(library.replayable(), 2);
}

#[tokio::test]
async fn a_recording_has_bounds_and_the_supervisor_hears_of_them() {
    let world = World::new();
    world.http("good.test").await;
    let tape = Tape::new();
    let limits = RecordingLimits { bytes: 2000, ..RecordingLimits::default() };
    let mut sandbox = recorded_within(&world, &["good.test"], &tape, limits).await;
    let mut sender = plain(&sandbox, "good.test").await;
    for _ in 0..8 {
        assert_eq!(send1(&mut sender, get("good.test", "/")).await.text(), "hello", "traffic goes on");
    }
    let notice = timeout(DEADLINE, sandbox.session.notice()).await.unwrap();
    let Some(FromEgress::RecordingFailed { reason }) = notice else { panic!("{notice:?}") };
    assert!(reason.contains("longer than 2000 bytes"), "{reason}");
    drop(sender);
    sandbox.rest().await;
    assert!(tape.text().len() <= 2000);
    let replayable = tape.load().replayable();
    assert!((1..8).contains(&replayable), "{replayable}");
}

#[tokio::test]
async fn an_exchange_with_a_body_that_is_too_long_is_not_replayed() {
    let world = World::new();
    world.http("good.test").await;
    let tape = Tape::new();
    let limits = RecordingLimits { body_bytes: 100, ..RecordingLimits::default() };
    let sandbox = recorded_within(&world, &["good.test"], &tape, limits).await;
    let long = "x".repeat(101);
    let answer = send1(&mut plain(&sandbox, "good.test").await, with_body("POST", "/echo", "good.test", &long)).await;
    assert_eq!(answer.text(), long);
    sandbox.rest().await;
    let sandbox = replayed(&world, &["good.test"], &tape).await;
    let answer = send1(&mut plain(&sandbox, "good.test").await, with_body("POST", "/echo", "good.test", &long)).await;
    assert!(answer.text().contains("its answer has more than 100 bytes"), "{}", answer.text());
}
