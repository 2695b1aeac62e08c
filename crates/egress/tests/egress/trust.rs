//! Certificates: servers that deserve no trust get none, and each sandbox has an authority of its own.

use http::StatusCode;
use saggar_domain::net::Verdict;

use crate::client::{HTTP1, get, https1, https2, request, send1, send2, tls};
use crate::pki::Trust;
use crate::sandbox::Sandbox;
use crate::world::World;

#[tokio::test]
async fn a_server_with_a_bad_certificate_is_a_502_with_the_reason_and_gets_no_request() {
    for (trust, reason) in [
        (Trust::Expired, "has expired"),
        (Trust::NotYet, "not valid yet"),
        (Trust::WrongName, "for another name"),
        (Trust::SelfSigned, "issuer that this host does not trust"),
    ] {
        let world = World::new();
        let server = world.https_with("bad.test", trust, &["h2", "http/1.1"]).await;
        let mut sandbox = Sandbox::allowing(&world, &["bad.test/**"]).await;

        let answer = send1(&mut https1(&sandbox, "bad.test").await, get("bad.test", "/")).await;
        assert_eq!((answer.status, answer.rule()), (StatusCode::BAD_GATEWAY, "egress/upstream-tls"));
        assert!(answer.text().contains(reason), "{}", answer.text());
        let answer = send2(&mut https2(&sandbox, "bad.test").await, request("GET", "https://bad.test/", "")).await;
        assert_eq!(answer.status, StatusCode::BAD_GATEWAY);

        for _ in 0..2 {
            let decision = sandbox.decision().await;
            assert_eq!(decision.verdict, Verdict::Allowed);
            assert!(decision.reason.unwrap().contains(reason));
        }
        assert_eq!(sandbox.rest().await, []);
        assert_eq!(server.seen().len(), 0);
    }
}

#[tokio::test]
async fn the_authority_of_one_sandbox_is_not_trusted_by_another() {
    let world = World::new();
    world.https("good.test").await;
    let mut first = Sandbox::allowing(&world, &["good.test/**"]).await;
    let second = Sandbox::allowing(&world, &["good.test/**"]).await;

    assert!(tls(first.dial("good.test", 443).await, "good.test", &second.ca_pem, HTTP1).await.is_err());
    assert!(tls(first.dial("good.test", 443).await, "good.test", &first.ca_pem, HTTP1).await.is_ok());

    // The program that didn't trust it is in the records, with what to do.
    let decision = first.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/client-tls"));
    assert!(decision.reason.unwrap().contains("may not trust"));
}

#[tokio::test]
async fn the_authority_shows_a_certificate_and_no_key() {
    let sandbox = Sandbox::allowing(&World::new(), &[]).await;
    assert_eq!(sandbox.ca_pem.matches("-----BEGIN").count(), 1);
    assert!(sandbox.ca_pem.starts_with("-----BEGIN CERTIFICATE-----"));
}

#[tokio::test]
async fn an_inspected_server_is_seen_with_our_certificate_and_a_tunnelled_one_with_its_own() {
    let world = World::new();
    world.https("inspected.test").await;
    world.https("tunnelled.test").await;
    let sandbox = Sandbox::allowing(&world, &["inspected.test/**", "tunnelled.test"]).await;
    for (host, ours) in [("inspected.test", true), ("tunnelled.test", false)] {
        let by_ours = tls(sandbox.dial(host, 443).await, host, &sandbox.ca_pem, HTTP1).await;
        let by_theirs = tls(sandbox.dial(host, 443).await, host, &world.pki.roots_pem, HTTP1).await;
        assert_eq!((by_ours.is_ok(), by_theirs.is_ok()), (ours, !ours), "{host}");
    }
}
