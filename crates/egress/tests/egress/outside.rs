//! Connections of the program itself: the same checks as for a sandbox.

use std::net::IpAddr;

use saggar_domain::net::{Destination, parse_authority};
use saggar_egress::outside::{ConnectError, Outside, Security};
use saggar_egress::tls::Roots;
use saggar_supervisor::egress::Upstream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::pki::Trust;
use crate::sandbox::{DEADLINE, rules};
use crate::server::Server;
use crate::world::World;

fn outside(world: &World) -> Outside {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let hosts = ["good.test", "bad.test"].map(|name| (local, name.to_owned())).to_vec();
    let upstream = Upstream { servers: Vec::new(), hosts, own: Vec::new() };
    Outside::new(upstream, &Roots::from_pem(world.pki.roots_pem.clone().into_bytes())).unwrap()
}

fn to(host: &str, port: u16) -> Destination {
    parse_authority(format!("{host}:{port}").as_bytes(), None).unwrap()
}

#[tokio::test]
async fn a_server_is_reached_by_plain_http_and_by_tls_that_is_verified() {
    let world = World::new();
    let plain = Server::start(None).await;
    let good = Server::start(Some(world.pki.server("good.test", Trust::Good, &["http/1.1"]))).await;
    for (server, security) in [(&plain, Security::Plain), (&good, Security::Tls)] {
        let port = server.address.port();
        let rules = rules(&[&format!("good.test:{port}"), &format!("127.0.0.1:{port}")], &[]);
        let connected = outside(&world).connect(&to("good.test", port), &rules, security, DEADLINE).await;
        let mut connection = connected.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(connection.address, server.address.ip());
        let request = b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n";
        connection.stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        // Without TLS's goodbye it may end in an error.
        let _ = connection.stream.read_to_end(&mut answer).await;
        assert!(answer.ends_with(b"hello"), "{security:?}");
    }
}

#[tokio::test]
async fn what_the_rules_or_the_certificate_forbid_gets_no_request() {
    let world = World::new();
    for trust in [Trust::Expired, Trust::WrongName, Trust::SelfSigned] {
        let bad = Server::start(Some(world.pki.server("bad.test", trust, &["http/1.1"]))).await;
        let port = bad.address.port();
        let rules = rules(&[&format!("bad.test:{port}"), &format!("127.0.0.1:{port}")], &[]);
        let connected = outside(&world).connect(&to("bad.test", port), &rules, Security::Tls, DEADLINE).await;
        assert!(matches!(connected, Err(ConnectError::Tls(refusal)) if refusal.rule == "egress/upstream-tls"));
    }
    let server = Server::start(None).await;
    let port = server.address.port();
    for (allow, rule) in [
        (vec![], "egress/default"),
        (vec![format!("good.test:{port}")], "egress/address-loopback"),
        (vec!["*:*".to_owned()], "egress/address-loopback"),
    ] {
        let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
        let connected =
            outside(&world).connect(&to("good.test", port), &rules(&allow, &[]), Security::Plain, DEADLINE).await;
        match connected {
            Err(ConnectError::Refused { refusal, .. }) => assert_eq!(refusal.rule, rule),
            Err(other) => panic!("{other}"),
            Ok(connection) => panic!("reached {}", connection.address),
        }
    }
    assert_eq!(server.connections(), 0);
}
