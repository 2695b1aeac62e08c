//! Requests that are decided one by one.

use http::{StatusCode, Version};
use saggar_domain::net::{Protocol, Verdict};

use crate::client::{get, https1, https2, plain, request, send1, send2, with_body};
use crate::pki::Trust;
use crate::sandbox::Sandbox;
use crate::world::{PUBLIC, World};

#[tokio::test]
async fn an_allowed_request_passes_and_is_recorded_with_rule_and_bytes() {
    let world = World::new();
    let server = world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test/echo"]).await;

    let answer =
        send1(&mut https1(&sandbox, "good.test").await, with_body("POST", "/echo?q=1", "good.test", "ping")).await;

    assert_eq!((answer.status, answer.text()), (StatusCode::OK, "ping"));
    assert_eq!(server.seen()[0].target, "/echo?q=1");
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Allowed, "good.test/echo"));
    assert_eq!((decision.method.as_deref(), decision.path.as_deref()), (Some("POST"), Some("/echo")));
    assert_eq!(
        (decision.address, decision.protocol, decision.reason.as_deref()),
        (Some(PUBLIC), Protocol::Https, None)
    );
    assert!(decision.bytes_up > 4 && decision.bytes_down >= 4, "{decision:?}");
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn each_request_of_a_connection_is_decided_by_method_and_path() {
    let world = World::new();
    let server = world.https("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["GET good.test/open/**"]).await;
    let mut sender = https1(&sandbox, "good.test").await;

    for (method, path, expected) in [
        ("GET", "/open/a", 200),
        ("POST", "/open/a", 403),
        ("GET", "/closed", 403),
        ("GET", "/open/%2e%2e/closed", 403),
        ("GET", "/open//a", 403),
        ("get", "/open/a", 403),
        ("GET", "/open/b", 200),
    ] {
        let answer = send1(&mut sender, request(method, path, "good.test")).await;
        assert_eq!(answer.status.as_u16(), expected, "{method} {path}: {}", answer.text());
    }
    assert_eq!(server.seen().len(), 2);
    assert_eq!(server.connections(), 1);
    assert_eq!(sandbox.rest().await.len(), 7);
}

#[tokio::test]
async fn http_2_is_spoken_with_servers_that_have_it_and_http_1_with_others() {
    for (alpn, version, connections) in
        [(&["h2", "http/1.1"][..], Version::HTTP_2, 1), (&["http/1.1"], Version::HTTP_11, 1)]
    {
        let world = World::new();
        let server = world.https_with("good.test", Trust::Good, alpn).await;
        let sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
        let mut sender = https2(&sandbox, "good.test").await;
        for _ in 0..3 {
            let mut request = request("POST", "https://good.test/echo", "");
            request.headers_mut().append("cookie", "a=1".parse().unwrap());
            request.headers_mut().append("cookie", "b=2".parse().unwrap());
            assert_eq!(send2(&mut sender, request).await.status, StatusCode::OK);
        }
        let seen = server.seen();
        assert_eq!((seen.len(), server.connections()), (3, connections));
        assert_eq!(seen[0].version, version);
        if version == Version::HTTP_11 {
            assert_eq!(seen[0].headers["cookie"], "a=1; b=2");
            assert_eq!(seen[0].headers["host"], "good.test");
        }
    }
}

#[tokio::test]
async fn many_streams_at_once_reach_a_server_without_http_2() {
    let world = World::new();
    let server = world.https_with("good.test", Trust::Good, &["http/1.1"]).await;
    let sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let sender = https2(&sandbox, "good.test").await;
    let mut streams = tokio::task::JoinSet::new();
    for number in 0..60 {
        let mut sender = sender.clone();
        streams.spawn(async move {
            let path = format!("https://good.test/{number}");
            send2(&mut sender, request("GET", &path, "")).await.status
        });
    }
    while let Some(status) = streams.join_next().await {
        assert_eq!(status.unwrap(), StatusCode::OK);
    }
    assert_eq!(server.seen().len(), 60);
    assert!(server.connections() <= 60, "{}", server.connections());
}

#[tokio::test]
async fn headers_of_one_hop_end_here_and_the_host_is_canonical() {
    let world = World::new();
    let server = world.http("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["GET good.test/hop"]).await;
    let mut request = get("GOOD.test.", "/hop");
    for (name, value) in [
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("proxy-authorization", "Basic eDp5"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABk"),
        ("x-http-method-override", "DELETE"),
        ("x_http_method_override", "DELETE"),
        ("x-original-url", "/closed"),
        ("authorization", "Bearer kept"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }

    let answer = send1(&mut plain(&sandbox, "good.test").await, request).await;

    assert_eq!((answer.status, answer.text()), (StatusCode::OK, "hop"));
    assert!(!answer.headers.contains_key("proxy-authenticate") && answer.headers.contains_key("x-end"));
    let mut names: Vec<_> = server.seen()[0].headers.keys().map(|name| name.as_str().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["authorization", "host"]);
    assert_eq!(server.seen()[0].headers["host"], "good.test");
}

#[tokio::test]
async fn trace_and_connect_are_never_passed_on() {
    let world = World::new();
    let server = world.https("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    for method in ["TRACE", "TRACK"] {
        let answer = send1(&mut https1(&sandbox, "good.test").await, request(method, "/", "good.test")).await;
        assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/method"));
    }
    let mut sender = https2(&sandbox, "good.test").await;
    let answer = send2(&mut sender, request("CONNECT", "good.test:443", "")).await;
    assert!(answer.status.is_client_error(), "{answer:?}");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn redirects_are_the_programs_business_and_are_not_followed() {
    let world = World::new();
    world.https("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let answer = send1(&mut https1(&sandbox, "good.test").await, get("good.test", "/redirect")).await;
    assert_eq!(answer.status, StatusCode::FOUND);
    assert_eq!(answer.headers["location"], "https://denied.test/");
}

#[tokio::test]
async fn a_server_that_is_down_is_a_502_with_the_reason() {
    let world = World::new();
    let mut sandbox = Sandbox::allowing(&world, &["down.test", "down.test/x"]).await;
    let answer = send1(&mut plain(&sandbox, "down.test").await, get("down.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::BAD_GATEWAY, "egress/upstream"));
    assert!(answer.text().contains("down.test:80 can't be reached"), "{}", answer.text());
    let decision = sandbox.decision().await;
    assert_eq!(decision.verdict, Verdict::Allowed);
    assert!(decision.reason.unwrap().contains("can't be reached"));
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_new_connection_replaces_one_that_the_server_has_closed() {
    let world = World::new();
    let server = crate::server::Server::start_fixed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec()).await;
    world.lead("good.test:80", &server);
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    // The server closes after each answer, without saying so. A request that meets the closing ends with the connection, as
    // it would without us; the next connection works.
    for _ in 0..3 {
        let answer = send1(&mut plain(&sandbox, "good.test").await, get("good.test", "/")).await;
        assert_eq!(answer.text(), "ok");
    }
}

#[tokio::test]
async fn plain_http_is_parsed_request_by_request_even_without_paths_in_the_rules() {
    let world = World::new();
    world.http("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let mut sender = plain(&sandbox, "good.test").await;
    for path in ["/a", "/b"] {
        assert_eq!(send1(&mut sender, get("good.test", path)).await.text(), "hello");
        let decision = sandbox.decision().await;
        assert_eq!((decision.protocol, decision.path.as_deref()), (Protocol::Http, Some(path)));
    }
    assert_eq!(sandbox.rest().await, []);
}
