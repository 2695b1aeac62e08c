//! ClientHello: what is read from it, however it is cut, and what is refused.

use std::time::Duration;

use saggar_egress::hello::{ClientHello, HELLO_MAX, HelloError, PeekError, Progress, Records, ServerName, peek};
use saggar_egress::replay::Replay;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use crate::corpus;

const SNI: u16 = 0;
const ALPN: u16 = 16;
const ECH: u16 = 0xfe0d;

fn vector8(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes(), vector16(data).as_slice()].concat()
}

fn sni(name: &[u8]) -> Vec<u8> {
    extension(SNI, &vector16(&sni_entry(0, name)))
}

fn sni_entry(kind: u8, name: &[u8]) -> Vec<u8> {
    [&[kind], vector16(name).as_slice()].concat()
}

fn alpn(protocols: &[&[u8]]) -> Vec<u8> {
    let list: Vec<u8> = protocols.iter().flat_map(|protocol| vector8(protocol)).collect();
    extension(ALPN, &vector16(&list))
}

/// The handshake message with these bytes after the list of compression methods.
fn message_with(tail: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend(vector8(&[9; 32]));
    body.extend(vector16(&[0x13, 1, 0x13, 2]));
    body.extend(vector8(&[0]));
    body.extend(tail);
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[1..], &body].concat()
}

fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
    message_with(&vector16(&extensions.concat()))
}

fn records(message: &[u8], step: usize) -> Vec<u8> {
    message.chunks(step).flat_map(|part| [&[22, 3, 1], vector16(part).as_slice()].concat()).collect()
}

fn parse(bytes: &[u8]) -> Result<Progress, HelloError> {
    Records::default().push(bytes)
}

fn hello(name: &str, alpn: &[&[u8]], ech: bool) -> ClientHello {
    let name = if name.is_empty() { ServerName::Absent } else { ServerName::Name(name.parse().unwrap()) };
    ClientHello { name, alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(), ech }
}

#[test]
fn hellos_of_real_clients_are_understood() {
    for (file, expected) in [
        ("python", hello("files.example.com", &[], false)),
        ("python-alpn", hello("files.example.com", &[b"h2", b"http/1.1"], false)),
        ("curl", hello("api.example.com", &[b"h2", b"http/1.1"], false)),
        ("cargo", hello("index.example.com", &[b"http/1.1"], false)),
        ("node", hello("node.example.com", &[], false)),
        ("no-name", hello("", &[], false)),
        ("tls12", hello("old.example.com", &[], false)),
    ] {
        assert_eq!(parse(&corpus::message("hello", file)), Ok(Progress::Complete(expected)), "{file}");
    }
}

#[test]
fn a_hello_may_be_cut_anywhere() {
    // As large as post-quantum key shares make it.
    let message = message(&[extension(51, &[5; 1_900]), sni(b"Files.Example.com"), alpn(&[b"h2"])]);
    let expected = hello("files.example.com", &[b"h2"], false);
    for record in [1, 2, 3, 5, 100, 1_400, 16_384] {
        // Each byte of content takes six with records of one byte.
        if message.len().div_ceil(record) * 5 + message.len() > HELLO_MAX {
            continue;
        }
        let bytes = records(&message, record);
        for segment in [1, 7, 1_448, bytes.len()] {
            let mut records = Records::default();
            let mut parts = bytes.chunks(segment).peekable();
            while let Some(part) = parts.next() {
                let progress = records.push(part);
                let complete = Progress::Complete(expected.clone());
                assert_eq!(progress, Ok(if parts.peek().is_none() { complete } else { Progress::Incomplete }));
            }
            assert_eq!(records.bytes(), bytes, "record {record}, segment {segment}");
        }
    }
}

#[test]
fn names_are_canonical_or_refused() {
    let name = |text: &str| Ok(ServerName::Name(text.parse().unwrap()));
    let address = |text: &str| Ok(ServerName::Address(text.parse().unwrap()));
    for (sent, expected) in [
        (&b"example.com"[..], name("example.com")),
        (b"EXAMPLE.com", name("example.com")),
        (b"192.0.2.1", address("192.0.2.1")),
        (b"2001:db8::1", address("2001:db8::1")),
        (b"example.com.", Err(HelloError::ServerName)),
        (b"2001:DB8:0::1", Err(HelloError::ServerName)),
        (b"[::1]", Err(HelloError::ServerName)),
        (b"example.com:443", Err(HelloError::ServerName)),
        (b"example.com\0.evil.example", Err(HelloError::ServerName)),
        (b"a b", Err(HelloError::ServerName)),
        (b"b\xc3\xbccher.example", Err(HelloError::ServerName)),
        (b"0x7f.1", Err(HelloError::ServerName)),
        (b"2130706433", Err(HelloError::ServerName)),
        (b"", Err(HelloError::ServerName)),
    ] {
        let got = parse(&records(&message(&[sni(sent)]), 16_384)).map(|progress| match progress {
            Progress::Complete(hello) => hello.name,
            Progress::Incomplete => panic!("incomplete: {}", sent.escape_ascii()),
        });
        assert_eq!(got, expected, "{}", sent.escape_ascii());
    }
}

#[test]
fn what_two_readers_could_understand_differently_is_refused() {
    let two = [sni_entry(0, b"a.example"), sni_entry(0, b"b.example")].concat();
    let one = sni_entry(0, b"a.example");
    let good = message(&[sni(b"a.example")]);
    let large = message(&[extension(51, &[0; HELLO_MAX])]);
    let cases: &[(&str, Vec<u8>, HelloError)] = &[
        ("two names", records(&message(&[extension(SNI, &vector16(&two))]), 999), HelloError::ServerNameList),
        (
            "a name of another type",
            records(&message(&[extension(SNI, &vector16(&sni_entry(1, b"a.example")))]), 999),
            HelloError::ServerNameList,
        ),
        ("no name in the list", records(&message(&[extension(SNI, &vector16(b""))]), 999), HelloError::ServerNameList),
        ("an empty extension", records(&message(&[extension(SNI, b"")]), 999), HelloError::ServerNameList),
        (
            "bytes after the list",
            records(&message(&[extension(SNI, &[vector16(&one), vec![0]].concat())]), 999),
            HelloError::ServerNameList,
        ),
        (
            "bytes after the name",
            records(&message(&[extension(SNI, &vector16(&[one, vec![0]].concat()))]), 999),
            HelloError::ServerNameList,
        ),
        (
            "two extensions for names",
            records(&message(&[sni(b"a.example"), sni(b"b.example")]), 999),
            HelloError::DuplicateExtension,
        ),
        (
            "any extension twice",
            records(&message(&[extension(51, b""), sni(b"a.example"), extension(51, b"")]), 999),
            HelloError::DuplicateExtension,
        ),
        ("an empty list of protocols", records(&message(&[alpn(&[])]), 999), HelloError::Alpn),
        ("an empty protocol", records(&message(&[alpn(&[b"h2", b""])]), 999), HelloError::Alpn),
        (
            "bytes after the extensions",
            records(&message_with(&[vector16(&sni(b"a.example")), vec![0]].concat()), 999),
            HelloError::Trailing,
        ),
        ("extensions shorter than said", records(&message_with(&[0, 9, 0, 0]), 999), HelloError::Length),
        (
            "an extension longer than its list",
            records(&message_with(&vector16(&[0, 51, 0, 9, 1])), 999),
            HelloError::Length,
        ),
        (
            "bytes after the message in its record",
            records(&[good.clone(), vec![0]].concat(), 999),
            HelloError::Trailing,
        ),
        ("two messages in one record", records(&[good.clone(), good.clone()].concat(), 9_999), HelloError::Trailing),
        ("two messages in two records", [records(&good, 999), records(&good, 999)].concat(), HelloError::Trailing),
        (
            "an alert after the message",
            [records(&good, 999), vec![21, 3, 3, 0, 2, 1, 0]].concat(),
            HelloError::Trailing,
        ),
        ("another message than a hello", records(&[&[2], &good[1..]].concat(), 999), HelloError::NotClientHello),
        ("an empty record", [vec![22, 3, 1, 0, 0], records(&good, 999)].concat(), HelloError::Record),
        ("a record that is too long", [22, 3, 1, 0x40, 1].to_vec(), HelloError::Record),
        (
            "another record within the message",
            [&records(&good, 20)[..25], &[23, 3, 3, 0, 1, 0]].concat(),
            HelloError::Record,
        ),
        ("a version that isn't TLS", [22, 3, 5].to_vec(), HelloError::Record),
        ("a length beyond the limit", records(&[1, 0, 0x40, 0x01], 9), HelloError::TooLarge),
        ("more than the limit in small records", records(&large[..8_000], 3), HelloError::TooLarge),
        ("a whole message beyond the limit", records(&message(&[extension(51, &[0; 4_000])]), 1), HelloError::TooLarge),
        ("plain HTTP", b"GET / HTTP/1.1\r\n".to_vec(), HelloError::NotTls),
        ("SSL 2", [0x80, 0x2e, 1, 3, 1].to_vec(), HelloError::NotTls),
        ("something that begins like it", [22, 9].to_vec(), HelloError::NotTls),
    ];
    for (case, bytes, expected) in cases {
        assert_eq!(parse(bytes), Err(*expected), "{case}");
    }
}

#[test]
fn encrypted_hellos_are_seen() {
    for (kind, ech) in [(ECH, true), (0xfe0a, true), (0xffce, true), (0xfe0e, false), (0x0a0a, false)] {
        let bytes = records(&message(&[sni(b"outer.example"), extension(kind, &[0; 64])]), 999);
        assert_eq!(parse(&bytes), Ok(Progress::Complete(hello("outer.example", &[], ech))), "{kind:#x}");
    }
}

#[test]
fn early_data_may_follow_and_old_clients_have_no_extensions() {
    let early = [records(&message(&[sni(b"a.example")]), 999), vec![20, 3, 3, 0, 1, 1, 23, 3, 3, 0]].concat();
    assert_eq!(parse(&early), Ok(Progress::Complete(hello("a.example", &[], false))));
    assert_eq!(parse(&records(&message_with(&[]), 999)), Ok(Progress::Complete(hello("", &[], false))));
}

#[tokio::test]
async fn a_peeked_stream_yields_every_byte_again() {
    let sent = [records(&message(&[sni(b"a.example")]), 10), b"\x17\x03\x03early".to_vec()].concat();
    let (mut client, mut server) = duplex(16);
    let expected = sent.clone();
    let client = tokio::spawn(async move { client.write_all(&sent).await.map(|()| drop(client)) });
    let peeked = peek(&mut server, Duration::from_secs(60)).await.unwrap();
    assert_eq!(peeked.hello, hello("a.example", &[], false));
    let mut seen = Vec::new();
    Replay::new(peeked.bytes, server).read_to_end(&mut seen).await.unwrap();
    assert_eq!(seen, expected);
    client.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_within_its_hello_is_given_up() {
    let (mut client, mut server) = duplex(64);
    client.write_all(&[22, 3, 1]).await.unwrap();
    let late = peek(&mut server, Duration::from_secs(10)).await;
    assert!(matches!(late, Err(PeekError::TooLate { read: 3 })), "{late:?}");

    let (mut client, mut server) = duplex(64);
    client.write_all(&[22, 3, 1, 0]).await.unwrap();
    drop(client);
    let ended = peek(&mut server, Duration::from_secs(10)).await;
    assert!(matches!(ended, Err(PeekError::Ended { read: 4 })), "{ended:?}");
}

#[tokio::test]
async fn a_peek_reads_no_more_than_its_limit() {
    let (mut client, mut server) = duplex(64 * 1024);
    // One byte per record, never complete.
    let endless = [&[22, 3, 1, 0, 1, 1][..], &[22, 3, 1, 0, 1, 0].repeat(10_000)].concat();
    client.write_all(&endless[..60_000]).await.unwrap();
    let large = peek(&mut server, Duration::from_secs(60)).await;
    // The message's length is then 0, so what follows it is too much.
    assert!(matches!(large, Err(PeekError::Malformed(_))), "{large:?}");

    let (mut client, mut server) = duplex(64 * 1024);
    client.write_all(&records(&[&[1, 0, 0x3f, 0], &[0; 8_000][..]].concat(), 3)).await.unwrap();
    let large = peek(&mut server, Duration::from_secs(60)).await;
    assert!(matches!(large, Err(PeekError::Malformed(HelloError::TooLarge))), "{large:?}");
    drop(client);
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.len(), (8_004_usize.div_ceil(3) * 5 + 8_004) - (HELLO_MAX + 1));
}

#[tokio::test]
async fn bytes_of_another_protocol_are_given_back() {
    let (mut client, mut server) = duplex(64);
    client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let Err(PeekError::NotTls { bytes }) = peek(&mut server, Duration::from_secs(60)).await else {
        panic!("taken for TLS");
    };
    assert_eq!(bytes, b"GET / HTTP/1.1\r\n");
}
