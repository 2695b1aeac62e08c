//! Rules that change while connections are open.

use futures_util::StreamExt as _;
use http::StatusCode;
use http_body_util::BodyExt as _;
use saggar_domain::net::Verdict;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{HTTP1, get, https1, send1, tls};
use crate::sandbox::{DEADLINE, Sandbox, rules};
use crate::world::World;

async fn exchange(stream: &mut TcpStream) -> Option<u8> {
    stream.write_all(b"x").await.ok()?;
    timeout(DEADLINE, stream.read_u8()).await.expect("an answer in time").ok()
}

#[tokio::test]
async fn a_tunnel_to_a_host_that_becomes_denied_is_cut_and_others_go_on() {
    let world = World::new();
    world.echo("one.test:7000").await;
    world.echo("two.test:7000").await;
    let mut sandbox = Sandbox::allowing(&world, &["one.test:7000", "two.test:7000"]).await;
    let mut one = sandbox.dial("one.test", 7000).await;
    let mut two = sandbox.dial("two.test", 7000).await;
    assert_eq!((exchange(&mut one).await, exchange(&mut two).await), (Some(b'x'), Some(b'x')));

    sandbox.session.replace_rules(rules(&["one.test:7000", "two.test:7000"], &["one.test:7000"]));

    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.host.as_str()), (Verdict::Denied, "one.test"));
    assert!(decision.rule.starts_with("egress/deny"), "{}", decision.rule);
    assert_eq!(exchange(&mut one).await, None);
    assert_eq!(exchange(&mut two).await, Some(b'x'));
}

#[tokio::test]
async fn a_tunnel_that_should_be_inspected_from_now_on_is_cut() {
    let world = World::new();
    world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let mut stream = tls(sandbox.dial("good.test", 443).await, "good.test", &world.pki.roots_pem, HTTP1).await.unwrap();
    sandbox.session.replace_rules(rules(&["GET good.test/**"], &[]));
    assert_eq!(sandbox.decision().await.rule, "egress/rules-changed");
    let mut rest = Vec::new();
    // Either a reset or an end.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("the cut in time");
}

#[tokio::test]
async fn an_answer_that_is_still_coming_is_cut_if_its_request_is_forbidden_now() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let mut sender = https1(&sandbox, "good.test").await;
    server.go.add_permits(1);
    let mut body = sender.send_request(get("good.test", "/stream")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();

    // First a change that still allows it.
    sandbox.session.replace_rules(rules(&["GET good.test/**"], &[]));
    server.go.add_permits(1);
    timeout(DEADLINE, body.frame()).await.expect("a piece in time").unwrap().unwrap();

    sandbox.session.replace_rules(rules(&["good.test/other"], &[]));
    let cut = timeout(DEADLINE, body.frame()).await.expect("the cut in time");
    assert!(cut.is_some_and(|frame| frame.is_err()));
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.path.as_deref()), (Verdict::Denied, Some("/stream")));
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_websocket_is_cut_if_it_is_forbidden_now() {
    let world = World::new();
    world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let stream = tls(sandbox.dial("good.test", 443).await, "good.test", &sandbox.ca_pem, HTTP1).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("wss://good.test/websocket", stream).await.unwrap();
    sandbox.session.replace_rules(rules(&["GET good.test/**"], &[]));
    let end = timeout(DEADLINE, socket.next()).await.expect("the cut in time");
    assert!(end.is_none_or(|end| end.is_err()));
    assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn an_open_connection_obeys_new_rules_with_its_next_request() {
    let world = World::new();
    let server = world.https("good.test").await;
    let sandbox = Sandbox::allowing(&world, &[]).await;
    let mut sender = https1(&sandbox, "good.test").await;
    for (allow, expected) in [
        (&[][..], StatusCode::FORBIDDEN),
        (&["good.test/**"], StatusCode::OK),
        (&["good.test/other"], StatusCode::FORBIDDEN),
        (&["good.test"], StatusCode::OK),
        (&[], StatusCode::FORBIDDEN),
    ] {
        sandbox.session.replace_rules(rules(allow, &[]));
        assert_eq!(send1(&mut sender, get("good.test", "/")).await.status, expected, "{allow:?}");
    }
    assert_eq!(server.seen().len(), 2);
}
