//! SOCKS5: every form that is accepted, every form that is refused, and the answer that the client gets.

use std::time::Duration;

use saggar_domain::net::Destination;
use saggar_egress::socks::{Reply, SocksError, accept, reply};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

const GREETING: &[u8] = &[5, 1, 0];

/// What the server makes of the bytes, what the client gets, and what is left unread.
async fn converse(sent: &[u8]) -> (Result<Destination, SocksError>, Vec<u8>, Vec<u8>) {
    let (mut client, mut server) = duplex(4096);
    client.write_all(sent).await.unwrap();
    client.shutdown().await.unwrap();
    let accepted = accept(&mut server, Duration::from_secs(60)).await;
    let mut unread = Vec::new();
    server.read_to_end(&mut unread).await.unwrap();
    drop(server);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    (accepted, answer, unread)
}

fn request(command: u8, kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    [GREETING, &[5, command, 0, kind], address, &port.to_be_bytes()].concat()
}

fn named(name: &[u8]) -> Vec<u8> {
    request(1, 3, &[&[u8::try_from(name.len()).unwrap()], name].concat(), 443)
}

#[tokio::test]
async fn destinations_are_read_in_every_form() {
    let long = [&b"a".repeat(63)[..], b".", &b"b".repeat(63), b".example"].concat();
    let cases: Vec<(Vec<u8>, String)> = vec![
        (named(b"example.com"), "example.com:443".into()),
        (named(b"EXAMPLE.com"), "example.com:443".into()),
        (named(b"example.com."), "example.com:443".into()),
        (named(b"xn--bcher-kva.example"), "xn--bcher-kva.example:443".into()),
        (named(&long), format!("{}:443", String::from_utf8(long.clone()).unwrap())),
        (named(b"192.0.2.1"), "192.0.2.1:443".into()),
        (request(1, 1, &[192, 0, 2, 1], 22), "192.0.2.1:22".into()),
        (
            request(1, 4, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 65_535),
            "[2001:db8::1]:65535".into(),
        ),
    ];
    for (mut sent, expected) in cases {
        sent.extend(b"data");
        let (accepted, answer, unread) = converse(&sent).await;
        assert_eq!(accepted.unwrap().to_string(), expected);
        assert_eq!((answer.as_slice(), unread.as_slice()), (&[5, 0][..], &b"data"[..]), "{expected}");
    }
}

#[tokio::test]
async fn ambiguous_names_are_refused_as_not_allowed() {
    let too_long = [&b"a".repeat(64)[..], b".example"].concat();
    let longest = [&b"a.".repeat(126)[..], b"aaa"].concat();
    for name in [
        &b"allowed.example\0.evil.example"[..],
        b"allowed.example\0",
        b"\0allowed.example",
        b"allowed.example%00",
        b"allowed.example:443",
        b"[::1]",
        b" allowed.example",
        b"allowed.example ",
        b"user@allowed.example",
        b"evil.example#allowed.example",
        b"evil.example?allowed.example",
        b"evil.example/allowed.example",
        b"evil.example\\allowed.example",
        b"under_score.example",
        b"b\xc3\xbccher.example",
        b"allowed.example..",
        b".allowed.example",
        b"a..b",
        b"",
        b".",
        b"0x7f.1",
        b"0177.0.0.1",
        b"127.1",
        b"2130706433",
        b"fe80::1%eth0",
        b"-a.example",
        &too_long,
        &longest,
    ] {
        let (accepted, answer, _) = converse(&named(name)).await;
        assert!(matches!(accepted, Err(SocksError::Host(_))), "{}: {accepted:?}", name.escape_ascii());
        assert_eq!(answer, [&[5, 0][..], &Reply::NotAllowed.encode()].concat(), "{}", name.escape_ascii());
    }
}

#[tokio::test]
async fn everything_else_gets_the_answer_of_the_protocol() {
    let chosen = |reply: Reply| [&[5, 0][..], &reply.encode()].concat();
    let address = &[192, 0, 2, 1];
    let socks4 = [4, 1, 1, 187, 192, 0, 2, 1, 0].to_vec();
    let socks4a = [&[4, 1, 1, 187, 0, 0, 0, 1, 0][..], b"allowed.example\0"].concat();
    let version_4_within = [GREETING, &[4, 1, 0, 1], address, &[1, 187]].concat();
    let reserved = [GREETING, &[5, 1, 1, 1], address, &[1, 187]].concat();
    let cases: &[(&str, Vec<u8>, Vec<u8>)] = &[
        ("SOCKS4", socks4, vec![0, 91, 0, 0, 0, 0, 0, 0]),
        ("SOCKS4a", socks4a, vec![0, 91, 0, 0, 0, 0, 0, 0]),
        ("another version", vec![6, 1, 0], vec![]),
        ("only passwords", vec![5, 1, 2], vec![5, 0xff]),
        ("only GSSAPI and passwords", vec![5, 2, 1, 2], vec![5, 0xff]),
        ("no method", vec![5, 0], vec![5, 0xff]),
        ("BIND", request(2, 1, address, 80), chosen(Reply::CommandNotSupported)),
        ("UDP ASSOCIATE", request(3, 1, address, 80), chosen(Reply::CommandNotSupported)),
        ("an unknown command", request(9, 1, address, 80), chosen(Reply::CommandNotSupported)),
        ("an unknown address type", request(1, 2, address, 80), chosen(Reply::AddressTypeNotSupported)),
        ("port 0", request(1, 1, address, 0), chosen(Reply::GeneralFailure)),
        ("another version in the request", version_4_within, chosen(Reply::GeneralFailure)),
        ("a reserved byte that is set", reserved, chosen(Reply::GeneralFailure)),
        ("a client that ends within its request", request(1, 1, address, 80)[..8].to_vec(), vec![5, 0]),
    ];
    for (case, sent, expected) in cases {
        let (accepted, answer, _) = converse(sent).await;
        assert!(accepted.is_err(), "{case}");
        assert_eq!(&answer, expected, "{case}");
    }
}

#[tokio::test]
async fn passwords_may_be_offered_beside_no_authentication() {
    let sent = [&[5, 2, 2, 0][..], &named(b"example.com")[GREETING.len()..]].concat();
    let (accepted, answer, _) = converse(&sent).await;
    assert_eq!((accepted.unwrap().to_string(), answer), ("example.com:443".to_owned(), vec![5, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_is_given_up() {
    let (mut client, mut server) = duplex(64);
    client.write_all(&named(b"example.com")[..9]).await.unwrap();
    let late = accept(&mut server, Duration::from_secs(10)).await;
    assert!(matches!(late, Err(SocksError::TooLate)), "{late:?}");
}

#[tokio::test]
async fn a_reply_is_one_whole_message() {
    let (mut client, mut server) = duplex(64);
    reply(&mut server, Reply::ConnectionRefused).await.unwrap();
    drop(server);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, [5, 5, 0, 1, 0, 0, 0, 0, 0, 0]);
}
