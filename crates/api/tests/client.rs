//! The client against a scripted server that records its requests.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use saggar_api::client::{AttachMessage, Client, ClientOptions, Error, SandboxHandle};
use saggar_api::{
    AttachQuery, AttachReply, AttachRequest, Bytes, Code, CommandLine, CreateSandbox, EventsQuery, ExecEvent, FilePath,
    FileQuery, ListSandboxes, Offsets, OutputStream, SandboxEventBody, Secret, ServerSentEvent, StartExec, StreamQuery,
    TerminalSize, WriteQuery,
};
use saggar_domain::{ExecId, SandboxId};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;

/// A recorded request.
#[derive(Debug)]
struct Asked {
    head: String,
    body: Vec<u8>,
}

impl Asked {
    fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Answers one connection after the other with the next response, and closes it. Returns the recorded requests.
async fn server(answers: Vec<String>) -> (String, JoinHandle<Vec<Asked>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut all = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            all.push(read_request(&mut stream).await);
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
        all
    });
    (url, task)
}

async fn read_request(stream: &mut TcpStream) -> Asked {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        let count = stream.read(&mut piece).await.unwrap();
        assert_ne!(count, 0, "a request that ends in its head");
        bytes.extend_from_slice(&piece[..count]);
    };
    let mut asked = Asked { head: String::from_utf8(bytes[..end].to_vec()).unwrap(), body: bytes[end + 4..].to_vec() };
    let length: usize = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
    while asked.body.len() < length {
        let count = stream.read(&mut piece).await.unwrap();
        if count == 0 {
            break;
        }
        asked.body.extend_from_slice(&piece[..count]);
    }
    asked
}

fn answer(status: &str, media_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A stream of events that is cut off, as when the server dies: chunked, without a last chunk.
fn events(events: &[(&str, serde_json::Value)]) -> String {
    let mut text =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for (id, data) in events {
        let event = ServerSentEvent {
            id: (*id).to_owned(),
            event: data["type"].as_str().unwrap_or_default().to_owned(),
            data: data.to_string(),
        };
        let event = event.to_text();
        text.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
    }
    text
}

fn client(url: &str) -> Client {
    Client::new(ClientOptions::new(url).with_key(Secret::new("sgr_test"))).unwrap()
}

fn sandbox(url: &str) -> SandboxHandle {
    client(url).sandbox(SandboxId::from_random([0; 16]))
}

fn exec_id() -> ExecId {
    ExecId::from_random([0; 16])
}

fn exited() -> serde_json::Value {
    json!({"type": "exited", "exec": {
        "id": exec_id(), "sandbox_id": SandboxId::from_random([0; 16]), "command": ["true"], "user": "user", "tty": false,
        "status": "exited", "pid": null, "exit_code": 0, "signal": null,
        "started_at": "2026-11-15T12:00:00.000Z", "ended_at": "2026-11-15T12:00:00.000Z", "elapsed_ms": 0
    }})
}

fn command() -> StartExec {
    StartExec::new(CommandLine::Words(vec!["true".into()]))
}

#[tokio::test]
async fn a_problem_is_told_as_one_with_the_key_sent() {
    let problem = r#"{"type":"https://saggar.dev/problems/capacity","title":"t","status":429,"code":"capacity","detail":"full","help":"wait"}"#;
    let with_header = answer("429 Too Many", "application/problem+json; charset=utf-8", problem)
        .replace("connection: close", "connection: close\r\nretry-after: 7");
    let (url, asked) = server(vec![with_header]).await;
    let error = client(&url).create(&CreateSandbox::default()).await.unwrap_err();
    let problem = error.problem().unwrap();
    assert_eq!((problem.code, problem.retry_after_seconds), (Code::Capacity, Some(7)));
    let asked = asked.await.unwrap();
    assert_eq!(asked[0].line(), "POST /api/v1/sandboxes HTTP/1.1");
    assert_eq!(asked[0].header("authorization"), Some("Bearer sgr_test"));
    assert_eq!(asked[0].header("idempotency-key").map(str::len), Some(32));
    assert_eq!(serde_json::from_slice::<CreateSandbox>(&asked[0].body).unwrap(), CreateSandbox::default());
}

#[tokio::test]
async fn what_is_no_answer_of_this_api_is_not_taken_for_one() {
    for other in [
        answer("502 Bad Gateway", "text/html", "<h1>nginx</h1>"),
        answer("200 OK", "application/json", "[1]"),
        answer("404 Not Found", "application/problem+json", "{}"),
    ] {
        let (url, _asked) = server(vec![other]).await;
        let error = client(&url).list(&ListSandboxes::default()).await.unwrap_err();
        assert!(matches!(error, Error::Answer(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_model_that_fails_is_told_in_its_providers_words() {
    let told = answer("502 Bad Gateway", "application/json", r#"{"error": {"message": "the key is wrong"}}"#);
    let (url, _asked) = server(vec![told]).await;
    let error = client(&url).try_model(&"coder".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.to_string(), "the key is wrong (status 502)");
}

#[tokio::test]
async fn a_stream_is_taken_up_where_it_broke_off() {
    let started = json!({"type": "started", "exec_id": exec_id(), "pid": 2});
    let (url, asked) = server(vec![
        events(&[
            ("0-0", started.clone()),
            ("2-0", json!({"type": "stdout", "text": "ab"})),
            ("2-1", json!({"type": "stderr", "base64": "/w=="})),
        ]),
        // A server that is restarting.
        answer(
            "503 Service Unavailable",
            "application/problem+json",
            r#"{"type":"x","title":"t","status":503,"code":"unavailable","detail":"starting"}"#,
        ),
        events(&[
            ("2-1", started),
            ("2-1", json!({"type": "from_the_future"})),
            ("7-1", json!({"type": "gap", "stream": "stdout", "bytes": 5})),
            ("9-1", json!({"type": "stdout", "text": "cd"})),
        ]),
        events(&[("9-1", exited())]),
    ])
    .await;
    let mut stream = sandbox(&url).stream(&command()).await.unwrap();
    let mut told = Vec::new();
    while let Some(event) = stream.next().await.unwrap() {
        told.push(event);
    }
    let last = told.pop().unwrap();
    assert_eq!(
        told,
        [
            ExecEvent::Started { exec_id: exec_id(), pid: Some(2) },
            ExecEvent::Stdout { bytes: Bytes(b"ab".to_vec()) },
            ExecEvent::Stderr { bytes: Bytes(vec![0xff]) },
            ExecEvent::Gap { stream: OutputStream::Stdout, bytes: 5 },
            ExecEvent::Stdout { bytes: Bytes(b"cd".to_vec()) },
        ]
    );
    assert!(matches!(last, ExecEvent::Exited { exec } if exec.exit_code == Some(0)));
    let asked = asked.await.unwrap();
    assert_eq!(asked[0].header("accept"), Some("text/event-stream"));
    let resumed = format!(
        "GET /api/v1/sandboxes/{}/execs/{}/stream?from=start HTTP/1.1",
        SandboxId::from_random([0; 16]),
        exec_id()
    );
    for (index, place) in [(1, "2-1"), (2, "2-1"), (3, "9-1")] {
        assert_eq!(asked[index].line(), resumed);
        assert_eq!(asked[index].header("last-event-id"), Some(place));
    }
}

#[tokio::test]
async fn a_stream_without_ids_is_taken_up_by_counting() {
    let (url, asked) = server(vec![
        events(&[
            ("", json!({"type": "started", "exec_id": exec_id(), "pid": null})),
            ("", json!({"type": "stdout", "text": "abc"})),
        ]),
        events(&[("", exited())]),
    ])
    .await;
    let mut stream = sandbox(&url).stream(&command()).await.unwrap();
    while stream.next().await.unwrap().is_some() {}
    let place = asked.await.unwrap()[1].header("last-event-id").map(Offsets::parse);
    assert_eq!(place, Some(Ok(Offsets { stdout: 3, stderr: 0 })));
}

#[tokio::test]
async fn a_stream_that_never_began_is_not_started_again() {
    let (url, asked) = server(vec![events(&[])]).await;
    let mut stream = sandbox(&url).stream(&command()).await.unwrap();
    assert!(matches!(stream.next().await, Err(Error::Broken { .. })));
    assert_eq!(asked.await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_problem_ends_a_stream_for_good() {
    let gone = r#"{"type":"x","title":"t","status":404,"code":"not_found","detail":"no such exec"}"#;
    let (url, _asked) = server(vec![
        events(&[("0-0", json!({"type": "started", "exec_id": exec_id(), "pid": null}))]),
        answer("404 Not Found", "application/problem+json", gone),
    ])
    .await;
    let mut stream = sandbox(&url).exec(exec_id()).follow(StreamQuery::default()).await.unwrap();
    let error = loop {
        match stream.next().await {
            Ok(event) => assert!(event.is_some()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.problem().map(|problem| problem.code), Some(Code::NotFound));
}

#[tokio::test]
async fn events_of_a_sandbox_go_on_after_the_last_number() {
    let event = |seq: u64, kind: &str| json!({"seq": seq, "at": "2026-11-15T12:00:00.000Z", "type": kind});
    let mut ended = event(5, "ended");
    ended["reason"] = "killed".into();
    ended["detail"] = "".into();
    let (url, asked) = server(vec![events(&[("4", event(4, "resumed"))]), events(&[("5", ended)])]).await;
    let query = EventsQuery { after: Some(3), limit: None };
    let mut stream = sandbox(&url).follow_events(&query).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().body, SandboxEventBody::Resumed);
    assert!(matches!(stream.next().await.unwrap().unwrap().body, SandboxEventBody::Ended { .. }));
    assert_eq!(stream.next().await.unwrap(), None);
    let asked = asked.await.unwrap();
    assert_eq!([asked[0].header("last-event-id"), asked[1].header("last-event-id")], [Some("3"), Some("4")]);
}

/// A port that refuses connections until it is listened on: bound, so that no other process gets it.
fn refusing() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    (socket, url)
}

fn stubborn(url: &str) -> Client {
    Client::new(ClientOptions { attempts_max: u32::MAX, ..ClientOptions::new(url) }).unwrap()
}

#[tokio::test]
async fn a_refused_connection_is_tried_again_for_what_may_be_done_twice() {
    let (socket, url) = refusing();
    let address = socket.local_addr().unwrap();
    let client = stubborn(&url);
    let serve = async {
        // Polled after the call: by now its first connection has been refused like these.
        for _ in 0..3 {
            assert!(TcpStream::connect(address).await.is_err());
        }
        let listener = socket.listen(1).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(answer("200 OK", "application/json", r#"{"items":[]}"#).as_bytes()).await.unwrap();
    };
    let (keys, ()) = tokio::join!(biased; client.list_keys(), serve);
    assert_eq!(keys.unwrap().items, []);
}

#[tokio::test]
async fn a_refused_connection_is_told_at_once_for_what_may_not() {
    let (_socket, url) = refusing();
    let sandbox = stubborn(&url).sandbox(SandboxId::from_random([0; 16]));
    let start = tokio::time::timeout(Duration::from_secs(30), sandbox.start(&command())).await;
    assert!(
        matches!(start, Ok(Err(Error::Connect { source, .. })) if source.kind() == std::io::ErrorKind::ConnectionRefused)
    );
}

#[tokio::test]
async fn attempts_are_bounded() {
    let (_socket, url) = refusing();
    let client = Client::new(ClientOptions { attempts_max: 2, ..ClientOptions::new(url) }).unwrap();
    assert!(matches!(client.health().await, Err(Error::Connect { .. })));
}

#[tokio::test]
async fn a_file_is_sent_as_it_is_read() {
    let (url, asked) = server(vec![answer("200 OK", "application/json", r#"{"bytes":300000}"#)]).await;
    let query = WriteQuery { path: FilePath::parse("/tmp/a b&c").unwrap(), mode: None, parents: true, user: None };
    let content = vec![7u8; 300_000];
    let report = sandbox(&url).write_file(&query, std::io::Cursor::new(content.clone()), Some(300_000)).await.unwrap();
    assert_eq!(report.bytes, 300_000);
    let asked = asked.await.unwrap();
    assert!(asked[0].line().ends_with("/files?path=%2Ftmp%2Fa+b%26c&parents=true HTTP/1.1"), "{}", asked[0].line());
    assert_eq!(asked[0].body, content);
}

#[tokio::test]
async fn a_file_that_became_shorter_is_an_error() {
    let (url, _asked) = server(vec![answer("200 OK", "application/json", r#"{"bytes":4}"#)]).await;
    let query = WriteQuery { path: FilePath::parse("a").unwrap(), mode: None, parents: false, user: None };
    let outcome = sandbox(&url).write_file(&query, std::io::Cursor::new(vec![1, 2, 3]), Some(4)).await;
    assert!(matches!(outcome, Err(Error::Broken { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_download_that_breaks_off_is_an_error_and_not_an_end() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_owned();
    let (url, _asked) = server(vec![cut]).await;
    let query = FileQuery { path: FilePath::parse("a").unwrap(), user: None };
    let mut download = sandbox(&url).read_file(&query).await.unwrap();
    assert_eq!(download.length(), Some(10));
    assert_eq!(download.next().await.unwrap().as_deref(), Some(&b"abc"[..]));
    assert!(download.next().await.is_err());
}

#[tokio::test]
async fn attached_both_ways_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let started = json!({"type": "started", "exec_id": exec_id(), "pid": 3}).to_string();
        socket.send(Message::Text(started.into())).await.unwrap();
        let mut heard = Vec::new();
        for _ in 0..2 {
            heard.push(socket.next().await.unwrap().unwrap());
        }
        socket.send(Message::Binary(b"\x01echo".to_vec().into())).await.unwrap();
        socket.send(Message::Text(exited().to_string().into())).await.unwrap();
        socket.close(None).await.unwrap();
        heard
    });
    let mut attached = sandbox(&url).exec(exec_id()).attach(AttachQuery::default()).await.unwrap();
    attached.writer.send_stdin(&b"ls\n"[..]).await.unwrap();
    let TerminalSize { rows, cols } = TerminalSize { rows: 40, cols: 120 };
    attached.writer.send(&AttachRequest::Resize { rows, cols }).await.unwrap();
    let mut told = Vec::new();
    while let Some(message) = attached.reader.next().await.unwrap() {
        told.push(message);
    }
    assert!(matches!(&told[0], AttachMessage::Reply(AttachReply::Started { pid: Some(3), .. })));
    assert!(matches!(&told[1], AttachMessage::Output(OutputStream::Stdout, bytes) if &bytes[..] == b"echo"));
    assert!(matches!(&told[2], AttachMessage::Reply(AttachReply::Exited { .. })));
    let heard = server.await.unwrap();
    assert_eq!(heard[0], Message::Binary(b"ls\n".to_vec().into()));
    assert_eq!(heard[1], Message::Text(r#"{"type":"resize","rows":40,"cols":120}"#.into()));
}

#[test]
fn an_address_must_be_one() {
    for wrong in ["", "127.0.0.1:7420", "ftp://x", "http://", "http://a b", "http://x?y=1", "unix:x"] {
        assert!(matches!(Client::new(ClientOptions::new(wrong)), Err(Error::Address(_))), "{wrong}");
    }
}
