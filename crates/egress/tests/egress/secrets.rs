//! Secrets: requests get them where they are bound, and nobody inside ever sees one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use http::{HeaderMap, StatusCode};
use saggar_domain::net::{NetDecision, Verdict};
use saggar_domain::secret::{Binding, Grant, SecretName, SecretValue, Slot};
use saggar_egress::limits::Limits;
use saggar_egress::session::Session;
use tokio::time::{Duration, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::client::{Answer, HTTP1, get, https1, https2, plain, request, send1, send2, tls, with_body};
use crate::pki::Trust;
use crate::sandbox::{DEADLINE, Sandbox};
use crate::server::{Seen, Server};
use crate::world::World;

const CANARY: &str = "canary/5f+b0c4de71.a9 é";
const PLACEHOLDER: &str = "saggar-00112233445566778899aabbccddeeff";

fn grant(name: &str, rules: &[&str], slot: Slot, value: &str) -> Grant {
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    Grant {
        name: SecretName::parse(name).unwrap(),
        placeholder: PLACEHOLDER.to_owned(),
        binding: Binding::new(rules, slot, None).unwrap(),
        value: SecretValue::parse(value).unwrap(),
    }
}

fn bearer(rules: &[&str]) -> Grant {
    grant("canary", rules, Slot::Bearer, CANARY)
}

fn header(name: &str, prefix: &str) -> Slot {
    Slot::Header { name: name.to_owned(), prefix: prefix.to_owned() }
}

fn query(parameter: &str) -> Slot {
    Slot::Query { parameter: parameter.to_owned() }
}

async fn bound(world: &World, allow: &[&str], grants: Vec<Grant>) -> Sandbox {
    let sandbox = Sandbox::allowing(world, allow).await;
    sandbox.session.bind(grants).unwrap();
    sandbox
}

fn names(decision: &NetDecision) -> Vec<&str> {
    decision.secrets.iter().map(SecretName::as_str).collect()
}

/// Everything that a program can see of an answer.
fn visible(answer: &Answer) -> String {
    let headers = |headers: &HeaderMap| {
        let lines =
            headers.iter().map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
        lines.collect::<String>()
    };
    let trailers = answer.trailers.as_ref().map(headers).unwrap_or_default();
    format!("{}\n{}{}\n{trailers}", answer.phrase, headers(&answer.headers), String::from_utf8_lossy(&answer.body))
}

fn assert_hidden(shown: &str) {
    for form in [
        CANARY.to_owned(),
        STANDARD.encode(CANARY),
        STANDARD.encode(format!("user:{CANARY}")),
        "canary%2F5f%2Bb0c4de71".to_owned(),
        "5f+b0c4".to_owned(),
    ] {
        assert!(!shown.contains(form.trim_end_matches('=')), "{form} is in {shown}");
    }
}

fn text(seen: &Seen, name: &str) -> String {
    let values: Vec<_> =
        seen.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    values.join(" and ")
}

#[tokio::test]
async fn every_slot_gets_the_value_and_whatever_was_in_it_is_gone() {
    let basic = Slot::Basic { user: "user".to_owned() };
    let pair = format!("Basic {}", STANDARD.encode(format!("user:{CANARY}")));
    for (slot, sent, name, expected) in [
        (Slot::Bearer, "authorization", "authorization", format!("Bearer {CANARY}")),
        (header("x-api-key", ""), "x-api-key", "x-api-key", CANARY.to_owned()),
        (header("x-api-key", ""), "x_api_key", "x-api-key", CANARY.to_owned()),
        (header("authorization", "token "), "authorization", "authorization", format!("token {CANARY}")),
        (basic, "authorization", "authorization", pair),
    ] {
        for alpn in [&["h2", "http/1.1"][..], &["http/1.1"]] {
            let world = World::new();
            let server = world.https_with("good.test", Trust::Good, alpn).await;
            let mut sandbox =
                bound(&world, &["good.test"], vec![grant("canary", &["good.test"], slot.clone(), CANARY)]).await;
            let mut request = request("GET", "https://good.test/shown/plain", "");
            request.headers_mut().append(sent, "own-1".parse().unwrap());
            request.headers_mut().append(sent, PLACEHOLDER.parse().unwrap());
            let answer = send2(&mut https2(&sandbox, "good.test").await, request).await;

            let seen = &server.seen()[0];
            assert_eq!(text(seen, name), expected, "{slot:?}");
            assert!(sent == name || !seen.headers.contains_key(sent), "{:?}", seen.headers);
            assert_eq!(answer.status, StatusCode::OK);
            assert!(answer.text().contains("****"), "{}", answer.text());
            assert_hidden(&visible(&answer));
            let decision = sandbox.decision().await;
            assert_eq!((decision.verdict, names(&decision)), (Verdict::Allowed, vec!["canary"]));
            assert_hidden(&serde_json::to_string(&decision).unwrap());
        }
    }
}

#[tokio::test]
async fn until_its_secrets_are_bound_a_session_that_awaits_them_refuses_what_it_would_allow() {
    let world = World::new();
    let server = world.https("good.test").await;
    world.https("seen.test").await;
    world.http("plain.test").await;
    world.echo("good.test:7000").await;
    let limits = Limits { secrets_time: Duration::ZERO, ..Limits::default() };
    let allow = ["good.test", "seen.test/**", "plain.test", "good.test:7000"];
    let mut sandbox = Sandbox::prepared(&world, &allow, limits, Session::await_secrets).await;
    // A host that would pass unread, one that is inspected, plain http, a port without a protocol, and a host that is denied anyway.
    for (host, expected) in [
        ("good.test", "egress/secrets-pending"),
        ("seen.test", "egress/secrets-pending"),
        ("bad.test", "egress/default"),
    ] {
        let answer = send1(&mut https1(&sandbox, host).await, get(host, "/")).await;
        assert_eq!((answer.status.is_server_error(), answer.rule()), (expected != "egress/default", expected));
        let decision = sandbox.decision().await;
        assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, expected), "{host}");
    }
    let answer = send1(&mut plain(&sandbox, "plain.test").await, get("plain.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::SERVICE_UNAVAILABLE, "egress/secrets-pending"));
    assert_eq!(sandbox.decision().await.rule, "egress/secrets-pending");
    let mut raw = sandbox.dial("good.test", 7000).await;
    let read = timeout(DEADLINE, tokio::io::AsyncReadExt::read(&mut raw, &mut [0; 1])).await.expect("an end in time");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert_eq!(sandbox.decision().await.rule, "egress/secrets-pending");
    assert_eq!(world.dials(), 0);

    sandbox.session.bind(vec![bearer(&["good.test"])]).unwrap();
    let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(text(&server.seen()[0], "authorization"), format!("Bearer {CANARY}"));
}

#[tokio::test]
async fn a_query_parameter_is_replaced_however_it_is_written() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = bound(&world, &["good.test"], vec![grant("canary", &["good.test"], query("key"), CANARY)]).await;
    let mut sender = https1(&sandbox, "good.test").await;
    let value = "canary%2F5f%2Bb0c4de71.a9%20%C3%A9";
    for (target, expected) in [
        ("/shown/plain", format!("/shown/plain?key={value}")),
        ("/shown/plain?", format!("/shown/plain?key={value}")),
        ("/shown/plain?key=own&a=1&k%65y=own&key", format!("/shown/plain?a=1&key={value}")),
        ("/shown/plain?a=1;key=own;b=2&c;k%65y=own", format!("/shown/plain?a=1;b=2&c&key={value}")),
        ("/shown/plain?KEY=kept&a=1", format!("/shown/plain?KEY=kept&a=1&key={value}")),
    ] {
        let answer = send1(&mut sender, get("good.test", target)).await;
        assert_eq!(server.seen().last().unwrap().target, expected);
        assert_hidden(&visible(&answer));
        let decision = sandbox.decision().await;
        assert_eq!((decision.path.as_deref(), names(&decision)), (Some("/shown/plain"), vec!["canary"]));
    }
}

#[tokio::test]
async fn no_way_of_showing_a_request_shows_the_value() {
    for alpn in [&["h2"][..], &["http/1.1"]] {
        let world = World::new();
        world.https_with("good.test", Trust::Good, alpn).await;
        let basic = Slot::Basic { user: "user".to_owned() };
        let grants = vec![
            grant("canary", &["good.test"], basic, CANARY),
            grant("second", &["good.test"], query("key"), CANARY),
            grant("third", &["good.test"], header("x-key", ""), "another-canary-value"),
        ];
        let mut sandbox = bound(&world, &["good.test"], grants).await;
        let mut sender = https2(&sandbox, "good.test").await;
        for path in ["plain", "bytes", "header", "trailer", "moved"] {
            let mut request = request("GET", &format!("https://good.test/shown/{path}"), "");
            request.headers_mut().insert("te", "trailers".parse().unwrap());
            let answer = send2(&mut sender, request).await;
            let shown = visible(&answer);
            assert!(shown.contains("*****"), "{path}: {shown}");
            assert_hidden(&shown);
            assert!(!shown.contains("another-canary"), "{path}: {shown}");
            assert_eq!(names(&sandbox.decision().await), ["canary", "second", "third"]);
        }
    }
}

#[tokio::test]
async fn values_have_a_bound_together_and_a_lower_one_with_many_special_characters() {
    let world = World::new();
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let plain = ["a", "b", "c", "d"].map(|name| grant(name, &["good.test"], query(name), &"v".repeat(8 * 1024)));
    sandbox.session.bind(plain.to_vec()).unwrap();
    // Each of them is written differently by each encoder.
    let special = "<&+\"/='é>".repeat(800);
    let two = ["a", "b"].map(|name| grant(name, &["good.test"], query(name), &format!("{name}{special}")));
    let problem = sandbox.session.bind(two.to_vec()).unwrap_err();
    assert!(problem.message.contains("too many special characters") && !problem.message.contains('<'), "{problem:?}");
    sandbox.session.bind(vec![grant("a", &["good.test"], query("a"), &special[..900])]).unwrap();
}

#[tokio::test]
async fn a_header_with_a_value_in_its_name_is_removed() {
    for alpn in [&["h2"][..], &["http/1.1"]] {
        let world = World::new();
        world.https_with("good.test", Trust::Good, alpn).await;
        let key = grant("key", &["good.test"], header("x-key", ""), "Another-Canary-Value");
        let sandbox = bound(&world, &["good.test"], vec![key]).await;
        let answer =
            send2(&mut https2(&sandbox, "good.test").await, request("GET", "https://good.test/shown/name", "")).await;
        assert_eq!((answer.status, answer.headers.get("x-kept").is_some()), (StatusCode::OK, true));
        assert!(!visible(&answer).to_ascii_lowercase().contains("canary"), "{}", visible(&answer));
    }
}

/// A part could end in the middle of a value, and the next one begin there.
#[tokio::test]
async fn a_host_with_a_secret_is_not_asked_for_parts_and_a_part_is_scrubbed_all_the_same() {
    for alpn in [&["h2"][..], &["http/1.1"]] {
        let world = World::new();
        let server = world.https_with("good.test", Trust::Good, alpn).await;
        world.https_with("free.test", Trust::Good, alpn).await;
        let sandbox = bound(&world, &["good.test", "free.test/**"], vec![bearer(&["good.test"])]).await;
        let asked = |host: &str| {
            let mut asked = request("GET", &format!("https://{host}/shown/part"), "");
            asked.headers_mut().insert("range", "bytes=0-9".parse().unwrap());
            asked.headers_mut().insert("if-range", "\"etag\"".parse().unwrap());
            asked
        };
        let answer = send2(&mut https2(&sandbox, "good.test").await, asked("good.test")).await;
        assert!(
            answer.text().starts_with("asked for none, got ") && answer.text().contains("****"),
            "{}",
            answer.text()
        );
        assert_hidden(&visible(&answer));
        let seen = &server.seen()[0].headers;
        assert!(!seen.contains_key("range") && !seen.contains_key("if-range"), "{seen:?}");
        // Without a secret, parts are what the program makes of them.
        let answer = send2(&mut https2(&sandbox, "free.test").await, asked("free.test")).await;
        assert!(answer.text().starts_with("asked for bytes=0-9, "), "{}", answer.text());
    }
}

/// A transfer coding that is not `chunked` would hide the value.
#[tokio::test]
async fn an_answer_in_another_transfer_coding_is_refused() {
    for (coding, expected) in [
        ("transfer-encoding: chunked", StatusCode::OK),
        ("transfer-encoding: gzip, chunked", StatusCode::BAD_GATEWAY),
        ("transfer-encoding: gzip\r\ntransfer-encoding: chunked", StatusCode::BAD_GATEWAY),
        ("content-encoding: br\r\ntransfer-encoding: chunked", StatusCode::BAD_GATEWAY),
    ] {
        let world = World::new();
        let tls = world.pki.server("good.test", Trust::Good, HTTP1);
        let answer = format!("HTTP/1.1 200 OK\r\n{coding}\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        let server = Server::start_abrupt(tls, answer.leak().as_bytes()).await;
        world.lead("good.test:443", &server);
        let mut sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test"])]).await;
        let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/")).await;
        assert_eq!(answer.status, expected, "{coding}: {}", visible(&answer));
        let has_body = answer.text() == "hello";
        assert_eq!(has_body, expected == StatusCode::OK, "{coding}");
        let decision = sandbox.decision().await;
        assert_eq!((decision.verdict, decision.reason.is_none()), (Verdict::Allowed, has_body), "{decision:?}");
    }
}

#[tokio::test]
async fn a_host_that_keeps_a_value_does_not_show_it_elsewhere() {
    let world = World::new();
    world.https("good.test").await;
    let mut sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test/only"])]).await;
    let mut request = with_body("POST", "/echo", "good.test", &format!("kept: {CANARY}."));
    request.headers_mut().insert("authorization", "own".parse().unwrap());
    let answer = send1(&mut https1(&sandbox, "good.test").await, request).await;
    assert_eq!(answer.text(), format!("kept: {}.", "*".repeat(CANARY.len())));
    assert!(names(&sandbox.decision().await).is_empty());
}

#[tokio::test]
async fn a_websocket_gets_the_value_and_shows_it_to_nobody() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test"])]).await;
    for (path, expected) in [
        ("websocket", "authorization: Bearer ******"),
        ("split", "authorization: Bearer ******"),
        ("begun", "it ends with ca"),
    ] {
        let stream = tls(sandbox.dial("good.test", 443).await, "good.test", &sandbox.ca_pem, HTTP1).await.unwrap();
        let mut request = format!("wss://good.test/shown/{path}").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-extensions", "permessage-deflate".parse().unwrap());
        let connected = tokio_tungstenite::client_async(request, stream);
        let (mut socket, _) = timeout(DEADLINE, connected).await.expect("in time").unwrap();
        // What looks like the beginning of a value arrives, although nothing follows it.
        let mut next = async || timeout(DEADLINE, socket.next()).await.expect("a message in time").unwrap().unwrap();
        let mut message = next().await;
        while message.is_ping() {
            message = next().await;
        }
        let Message::Text(shown) = message else { panic!("{message:?}") };
        assert!(shown.contains(expected), "{shown}");
        assert_hidden(&shown);
        drop(socket);
        assert_eq!(names(&sandbox.decision().await), ["canary"]);
    }
    assert_eq!(text(&server.seen()[0], "authorization"), format!("Bearer {CANARY}"));
    assert!(!server.seen()[0].headers.contains_key("sec-websocket-extensions"));
}

#[tokio::test]
async fn other_requests_get_nothing_and_a_placeholder_in_them_is_reported() {
    let world = World::new();
    let (good, other) = (world.https("good.test").await, world.https("other.test").await);
    let plain_http = world.http("good.test").await;
    let mut sandbox = bound(&world, &["good.test", "other.test/**"], vec![bearer(&["POST good.test/v1/**"])]).await;
    let authorize = |mut request: http::Request<_>, value: &str| {
        request.headers_mut().insert("authorization", value.parse().unwrap());
        request
    };
    let as_bearer = format!("Bearer {PLACEHOLDER}");
    let as_basic = format!("Basic {}", STANDARD.encode(format!("x:{PLACEHOLDER}")));
    for (host, method, target, sent) in [
        ("good.test", "GET", "/v1/x", &as_bearer),
        ("good.test", "POST", "/v2", &as_bearer),
        ("good.test", "POST", "/v1/../v1/x", &as_bearer),
        ("other.test", "POST", "/v1/x", &as_bearer),
        ("other.test", "POST", "/v1/x", &as_basic),
    ] {
        let answer = send1(&mut https1(&sandbox, host).await, authorize(request(method, target, host), sent)).await;
        assert_eq!(answer.status, StatusCode::OK, "{host} {method} {target}");
        let decision = sandbox.decision().await;
        assert!(names(&decision).is_empty());
        let reason = decision.reason.unwrap();
        assert!(reason.contains("the placeholder of the secret canary"), "{reason}");
    }
    // Over plain http the same request gets nothing either.
    let request = authorize(request("POST", "/v1/x", "good.test"), &as_bearer);
    assert_eq!(send1(&mut plain(&sandbox, "good.test").await, request).await.status, StatusCode::OK);
    assert!(sandbox.decision().await.reason.unwrap().contains("canary"));
    for seen in [good.seen(), other.seen(), plain_http.seen()].concat() {
        let sent = text(&seen, "authorization");
        assert!(sent == as_bearer || sent == as_basic, "{sent}");
    }
    // And a program's own credential stays where none is bound.
    let own = authorize(get("good.test", "/v2"), "Bearer own");
    send1(&mut https1(&sandbox, "good.test").await, own).await;
    assert_eq!(text(good.seen().last().unwrap(), "authorization"), "Bearer own");
    assert_eq!(sandbox.decision().await.reason, None);
}

#[tokio::test]
async fn a_redirect_is_the_programs_business_and_its_target_gets_nothing() {
    let world = World::new();
    world.https("good.test").await;
    let other = world.https("other.test").await;
    let sandbox = bound(&world, &["good.test", "other.test/**"], vec![bearer(&["good.test"])]).await;
    let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/shown/moved")).await;
    assert_eq!(answer.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(other.seen().len(), 0, "nobody followed it");
    let location = answer.headers["location"].to_str().unwrap();
    assert_hidden(location);
    // The program follows, as clients do, with what it has.
    let target = location.strip_prefix("https://other.test").unwrap().replace(' ', "%20");
    send1(&mut https1(&sandbox, "other.test").await, get("other.test", &target)).await;
    assert!(!other.seen()[0].headers.contains_key("authorization"));
    assert_hidden(&other.seen()[0].target);
}

#[tokio::test]
async fn a_server_that_cannot_be_trusted_gets_nothing() {
    for trust in [Trust::Expired, Trust::WrongName, Trust::SelfSigned] {
        let world = World::new();
        let server = world.https_with("good.test", trust, &["http/1.1"]).await;
        let sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test"])]).await;
        let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/")).await;
        assert_eq!((answer.status, answer.rule()), (StatusCode::BAD_GATEWAY, "egress/upstream-tls"));
        assert_eq!(server.seen().len(), 0);
    }
}

#[tokio::test]
async fn rules_decide_before_secrets() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = bound(&world, &["GET good.test"], vec![bearer(&["good.test", "other.test"])]).await;
    let answer = send1(&mut https1(&sandbox, "good.test").await, with_body("POST", "/", "good.test", "x")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/default"));
    assert!(names(&sandbox.decision().await).is_empty());
    for method in ["TRACE", "TRACK"] {
        let answer = send1(&mut https1(&sandbox, "good.test").await, request(method, "/", "good.test")).await;
        assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/method"));
    }
    let answer = send1(&mut https1(&sandbox, "other.test").await, get("other.test", "/")).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn two_secrets_for_one_slot_are_refused() {
    let world = World::new();
    let server = world.https("good.test").await;
    let second = grant("second", &["good.test/both"], header("authorization", ""), "another-canary-value");
    let mut sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test"]), second]).await;
    let mut sender = https1(&sandbox, "good.test").await;
    let answer = send1(&mut sender, get("good.test", "/both")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/secret-conflict"));
    assert!(answer.text().contains("canary and second"), "{}", answer.text());
    assert_eq!(server.seen().len(), 0);
    assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
    assert_eq!(send1(&mut sender, get("good.test", "/one")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_compressed_answer_to_a_secret_is_refused() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test/shown/**"])]).await;
    let mut request = get("good.test", "/shown/gzip");
    request.headers_mut().insert("accept-encoding", "gzip, br".parse().unwrap());
    let answer = send1(&mut https1(&sandbox, "good.test").await, request).await;
    assert_eq!(text(&server.seen()[0], "accept-encoding"), "identity");
    assert_eq!((answer.status, answer.rule()), (StatusCode::BAD_GATEWAY, "egress/secret-answer"));
    assert!(answer.text().contains("compressed answer"), "{}", answer.text());
    assert!(sandbox.decision().await.reason.unwrap().contains("compressed answer"));
}

#[tokio::test]
async fn the_next_request_gets_a_new_value_or_none() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test"])]).await;
    let mut sender = https1(&sandbox, "good.test").await;
    for (grants, expected) in [
        (vec![bearer(&["good.test"])], format!("Bearer {CANARY}")),
        (vec![grant("canary", &["good.test"], Slot::Bearer, "rotated-value")], "Bearer rotated-value".to_owned()),
        (vec![grant("other", &["else.test"], Slot::Bearer, "of-another-host")], "Bearer own".to_owned()),
    ] {
        sandbox.session.bind(grants).unwrap();
        let mut request = get("good.test", "/");
        request.headers_mut().insert("authorization", "Bearer own".parse().unwrap());
        assert_eq!(send1(&mut sender, request).await.status, StatusCode::OK);
        assert_eq!(text(server.seen().last().unwrap(), "authorization"), expected);
        sandbox.decision().await;
    }
}

#[tokio::test]
async fn a_secret_that_is_replaced_while_the_server_is_dialled_is_not_sent() {
    let world = World::new();
    let server = world.https("held.test").await;
    let sandbox = bound(&world, &["held.test"], vec![bearer(&["held.test"])]).await;
    let mut sender = https1(&sandbox, "held.test").await;
    let asking = tokio::spawn(async move { send1(&mut sender, get("held.test", "/")).await });
    let dialled = async {
        while world.dials() == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, dialled).await.expect("the server to be dialled");
    let other = grant("canary", &["held.test"], Slot::Bearer, "rotated-value");
    sandbox.session.bind(vec![other]).unwrap();
    world.release();
    assert_eq!(asking.await.unwrap().status, StatusCode::OK);
    assert_eq!(text(server.seen().last().unwrap(), "authorization"), "Bearer rotated-value");
}

#[tokio::test]
async fn a_secret_for_two_variables_is_one_secret() {
    let world = World::new();
    let server = world.https("good.test").await;
    let sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test"]), bearer(&["good.test"])]).await;
    let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(text(server.seen().last().unwrap(), "authorization"), format!("Bearer {CANARY}"));
}

#[tokio::test]
async fn a_tunnel_is_cut_when_a_secret_is_bound_to_its_host() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let world = World::new();
    world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let stream = sandbox.dial("good.test", 443).await;
    let mut stream = tls(stream, "good.test", &world.pki.roots_pem, HTTP1).await.expect("the server's own certificate");
    sandbox.session.bind(vec![bearer(&["good.test"])]).unwrap();
    // It may be cut while this is written.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n").await;
    let mut rest = Vec::new();
    // It may end with a reset.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("the tunnel to end");
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/rules-changed"));
    let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/")).await;
    assert_eq!(answer.status, StatusCode::OK, "inspected from now on");
}

fn sigv4(service: &str) -> Grant {
    let slot = Slot::SigV4 {
        access_key_id: "AKIDEXAMPLE".to_owned(),
        region: "eu-central-1".to_owned(),
        service: service.to_owned(),
    };
    grant("aws", &["good.test"], slot, "canary/aws+secret0access1key2EXAMPLE3KEY")
}

/// Temporary credentials are two secrets.
#[tokio::test]
async fn a_session_token_of_aws_is_a_secret_of_its_own_and_is_signed() {
    let world = World::new();
    let server = world.https("good.test").await;
    let token = grant("token", &["good.test"], header("x-amz-security-token", ""), "canary-session-token");
    for grants in [vec![sigv4("s3"), token.clone()], vec![token, sigv4("s3")]] {
        let sandbox = bound(&world, &["good.test"], grants).await;
        let mut request = get("good.test", "/shown/plain");
        request.headers_mut().insert("x-amz-security-token", "own".parse().unwrap());
        request.headers_mut().insert("x_amz_security_token", "own".parse().unwrap());
        let answer = send1(&mut https1(&sandbox, "good.test").await, request).await;
        assert!(!visible(&answer).contains("canary"), "{}", visible(&answer));
        let seen = server.seen().pop().unwrap();
        assert_eq!(text(&seen, "x-amz-security-token"), "canary-session-token");
        assert!(!seen.headers.contains_key("x_amz_security_token"));
        let signed = text(&seen, "authorization");
        assert!(signed.contains(";x-amz-date;x-amz-security-token,"), "{signed}");
    }
}

#[tokio::test]
async fn a_request_to_aws_is_signed_again() {
    let world = World::new();
    let server = world.https("good.test").await;
    for (service, claimed, expected) in [
        ("s3", None, Some("UNSIGNED-PAYLOAD")),
        ("s3", Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER")),
        ("dynamodb", None, None),
    ] {
        let mut sandbox = bound(&world, &["good.test"], vec![sigv4(service)]).await;
        let mut request = with_body("POST", "/echo?X-Amz-Signature=own&list=1", "good.test", "the body");
        for (name, value) in [
            ("authorization", "AWS4-HMAC-SHA256 Credential=own/20200101/a/b/aws4_request, Signature=own"),
            ("x-amz-date", "20200101T000000Z"),
            ("x-amz-security-token", "own"),
        ] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        if let Some(claimed) = claimed {
            request.headers_mut().insert("x-amz-content-sha256", claimed.parse().unwrap());
        }
        let answer = send1(&mut https1(&sandbox, "good.test").await, request).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "the body"));
        let seen = server.seen().pop().unwrap();
        let signed = text(&seen, "authorization");
        assert!(signed.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20"), "{signed}");
        assert!(
            signed.contains(&format!("/eu-central-1/{service}/aws4_request, SignedHeaders=host;x-amz-")),
            "{signed}"
        );
        assert!(!signed.contains("own") && seen.target.ends_with("/echo?list=1"), "{signed} {}", seen.target);
        assert!(!seen.headers.contains_key("x-amz-security-token"));
        assert_eq!(seen.headers.get("x-amz-content-sha256").map(|value| value.to_str().unwrap()), expected);
        assert_ne!(text(&seen, "x-amz-date"), "20200101T000000Z");
        assert_eq!(names(&sandbox.decision().await), ["aws"]);
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_signed_is_refused() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = bound(&world, &["good.test"], vec![sigv4("dynamodb")]).await;
    let mut parts = with_body("PUT", "/echo", "good.test", "x");
    parts.headers_mut().insert("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".parse().unwrap());
    let answer = send1(&mut https1(&sandbox, "good.test").await, parts).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/secret-payload"));
    assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
    let long = "x".repeat(16 * 1024 * 1024 + 1);
    let answer = send1(&mut https1(&sandbox, "good.test").await, with_body("PUT", "/echo", "good.test", &long)).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::PAYLOAD_TOO_LARGE, "egress/secret-payload"));
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn too_many_values_for_one_session_are_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::new();
        let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
        let value = "v".repeat(8192);
        let grants = (0..5).map(|index| grant(&format!("s{index}"), &["good.test"], Slot::Bearer, &value)).collect();
        let problem = sandbox.session.bind(grants).unwrap_err();
        assert!(problem.message.contains("40960 bytes together"), "{}", problem.message);
    });
}

#[tokio::test]
async fn a_websocket_that_is_compressed_unasked_is_refused() {
    let world = World::new();
    world.https("good.test").await;
    let sandbox = bound(&world, &["good.test"], vec![bearer(&["good.test"])]).await;
    let stream = tls(sandbox.dial("good.test", 443).await, "good.test", &sandbox.ca_pem, HTTP1).await.unwrap();
    match timeout(DEADLINE, tokio_tungstenite::client_async("wss://good.test/shown/deflate", stream)).await.unwrap() {
        Err(tungstenite::Error::Http(answer)) => assert_eq!(answer.status(), StatusCode::BAD_GATEWAY),
        other => panic!("{other:?}"),
    }
}
