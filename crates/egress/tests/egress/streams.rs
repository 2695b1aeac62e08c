//! Bodies flow in both directions while they are made; WebSockets, gRPC and 100-continue work.

use futures_util::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use http_body_util::BodyExt as _;
use saggar_domain::net::Verdict;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::client::{HTTP1, get, https1, https2, request, send1, send2, tls, with_body};
use crate::pki::Trust;
use crate::sandbox::{DEADLINE, Sandbox};
use crate::server::Server;
use crate::world::World;

#[tokio::test]
async fn pieces_of_an_answer_arrive_before_the_next_is_made() {
    for alpn in [&["h2"][..], &["http/1.1"]] {
        let world = World::new();
        let server = world.https_with("good.test", Trust::Good, alpn).await;
        let mut sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
        let mut sender = https2(&sandbox, "good.test").await;
        server.go.add_permits(1);
        let response = sender.send_request(request("GET", "https://good.test/stream", "")).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.into_body();
        for _ in 0..3 {
            let piece = timeout(DEADLINE, body.frame()).await.expect("a piece in time").unwrap().unwrap();
            assert_eq!(piece.into_data().unwrap(), "data: piece\n\n");
            server.go.add_permits(1);
        }
        drop(body);
        assert!(sandbox.decision().await.bytes_down >= 39);
    }
}

#[tokio::test]
async fn an_upload_is_passed_on_while_it_is_made() {
    let world = World::new();
    world.http("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let mut stream = sandbox.dial("good.test", 80).await;
    stream.write_all(b"POST /echo HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    for piece in ["one", "two", "six"] {
        stream.write_all(format!("3\r\n{piece}\r\n").as_bytes()).await.unwrap();
        while !String::from_utf8_lossy(&answer).contains(piece) {
            timeout(DEADLINE, stream.read_buf(&mut answer)).await.expect("an echo in time").unwrap();
        }
    }
}

#[tokio::test]
async fn trailers_pass_by_http_2_as_grpc_needs_them() {
    let world = World::new();
    world.https("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let mut request = with_body("POST", "https://good.test/trailers", "", "call");
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    let answer = send2(&mut https2(&sandbox, "good.test").await, request).await;
    assert_eq!(answer.text(), "call");
    assert_eq!(answer.trailers.unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn a_program_that_waits_is_told_to_continue() {
    let world = World::new();
    world.http("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let mut stream = sandbox.dial("good.test", 80).await;
    let head = "POST /echo HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        timeout(DEADLINE, stream.read_buf(&mut answer)).await.expect("an answer in time").unwrap();
    }
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").await.unwrap();
    while !answer.ends_with(b"body") {
        timeout(DEADLINE, stream.read_buf(&mut answer)).await.expect("an answer in time").unwrap();
    }
}

async fn websocket(
    sandbox: &Sandbox,
) -> Result<
    tokio_tungstenite::WebSocketStream<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>,
    tungstenite::Error,
> {
    let stream = tls(sandbox.dial("good.test", 443).await, "good.test", &sandbox.ca_pem, HTTP1).await.unwrap();
    let connected = tokio_tungstenite::client_async("wss://good.test/websocket", stream);
    timeout(DEADLINE, connected).await.expect("in time").map(|(socket, _)| socket)
}

#[tokio::test]
async fn a_websocket_passes_in_both_directions_and_is_recorded_as_its_get() {
    let world = World::new();
    world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test/websocket"]).await;
    let mut socket = websocket(&sandbox).await.unwrap();
    for word in ["one", "two"] {
        socket.send(Message::text(word)).await.unwrap();
        let back = timeout(DEADLINE, socket.next()).await.expect("an echo in time").unwrap().unwrap();
        assert_eq!(back, Message::text(word));
    }
    drop(socket);
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.method.as_deref()), (Verdict::Allowed, Some("GET")));
    assert!(decision.bytes_up > 6 && decision.bytes_down > 6);
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_rule_that_only_allows_reading_allows_no_websocket() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["GET good.test/**"]).await;
    match websocket(&sandbox).await {
        Err(tungstenite::Error::Http(answer)) => assert_eq!(answer.status(), StatusCode::FORBIDDEN),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.seen().len(), 0);
    assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
    // The same path by a plain GET is allowed.
    let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/")).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn an_answer_with_a_length_needs_no_goodbye_and_one_without_is_truncated() {
    let answers: [(&[u8], Option<&str>); 4] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", Some("the server ended its answer early; it is truncated")),
    ];
    for (bytes, reason) in answers {
        let world = World::new();
        let server = Server::start_abrupt(world.pki.server("good.test", Trust::Good, HTTP1), bytes).await;
        world.lead("good.test:443", &server);
        let mut sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
        let mut sender = https1(&sandbox, "good.test").await;
        let response = timeout(DEADLINE, sender.send_request(get("good.test", "/"))).await.expect("in time").unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = timeout(DEADLINE, response.into_body().collect()).await.expect("in time");
        assert_eq!(body.ok().map(|body| body.to_bytes()), reason.is_none().then(|| "hello".into()), "{reason:?}");
        let decision = sandbox.decision().await;
        assert_eq!((decision.verdict, decision.reason.as_deref()), (Verdict::Allowed, reason));
    }
}
