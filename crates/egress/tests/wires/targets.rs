//! What must hold for any bytes: one function per parser, named as a fuzzer would call it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use saggar_domain::net::{Host, HostName};
use saggar_egress::dns::{ANSWER_MAX, Desk, Question};
use saggar_egress::hello::{HELLO_MAX, HelloError, Progress, Records, ServerName};
use saggar_egress::names::Names;
use saggar_egress::resolve::{Family, Query, WireName};
use saggar_egress::socks::accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::session::Kept;

/// Whatever is accepted has one canonical text, and that text means the same host.
fn check_canonical(host: &Host) {
    assert_eq!(Host::parse(host.to_string().as_bytes()).as_ref(), Ok(host));
}

pub fn fuzz_dns_question(data: &[u8]) {
    let desk = Desk::new(Arc::new(Names::default()), Kept::new(&["*"], &[]));
    let reply = desk.answer(data, Instant::now());
    assert!(reply.as_ref().is_none_or(|reply| reply.len() <= ANSWER_MAX));
    let Ok(question) = Question::parse(data) else { return };
    let reply = reply.expect("a question gets a reply");

    // The question within the reply, as a question of its own, is the same question.
    let mut again = reply[..12 + question.name.len() + 4].to_vec();
    again[2] &= 0x7f;
    again[3] = 0;
    again[6..12].fill(0);
    assert_eq!(Question::parse(&again), Ok(Question { opt: None, ..question.clone() }));

    if let Some(host) = question.text().and_then(|text| Host::parse(&text).ok()) {
        check_canonical(&host);
    }
}

pub fn fuzz_dns_reply(data: &[u8]) {
    let name: HostName = "a.example".parse().unwrap();
    for family in [Family::V4, Family::V6] {
        let query = Query { id: 0x1234, name: WireName::from(&name), family };
        // Most bytes belong to another question; the parser behind that check matters more.
        let mut message = data.to_vec();
        for (byte, ours) in message.iter_mut().zip([0x12, 0x34]) {
            *byte = ours;
        }
        let Ok(reply) = query.parse_reply(&message) else { continue };
        assert!(reply.addresses.len() + reply.aliases.len() <= 256);
        for alias in &reply.aliases {
            assert!(alias.owner.as_bytes().len() <= 255 && alias.target.as_bytes().len() <= 255);
        }
        assert!(reply.addresses.iter().all(|(_, _, address)| address.is_ipv4() == (family == Family::V4)));
    }
    if let Ok(name) = HostName::parse(data) {
        let query = Query { id: 7, name: WireName::from(&name), family: Family::V6 };
        let message = query.encode();
        let question = Question::parse(&message).expect("our own question");
        assert_eq!(
            (question.id, question.name, question.text()),
            (7, query.name.as_bytes(), Some(name.as_str().into()))
        );
    }
}

pub fn fuzz_socks(data: &[u8]) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    }
    let mut stream = Script { input: data, output: Vec::new() };
    let accepted = RUNTIME.with(|runtime| runtime.block_on(accept(&mut stream, Duration::from_secs(60))));
    assert!(stream.output.len() <= 12);
    if let Ok(destination) = accepted {
        check_canonical(&destination.host);
        assert_ne!(destination.port, 0);
        assert_eq!(stream.output, [5, 0]);
    }
}

pub fn fuzz_hello(data: &[u8]) {
    let whole = Records::default().push(data);
    let mut records = Records::default();
    let mut parts = Ok(Progress::Incomplete);
    for part in data.chunks(3) {
        parts = records.push(part);
        if parts != Ok(Progress::Incomplete) {
            break;
        }
    }
    match (&whole, &parts) {
        // What follows the message is only seen if it was there in time.
        (Err(HelloError::Trailing), Ok(Progress::Complete(_)) | Err(_)) => {}
        _ => assert_eq!(whole, parts),
    }
    if let Ok(Progress::Complete(hello)) = whole {
        assert!(hello.alpn.iter().map(Vec::len).sum::<usize>() <= HELLO_MAX);
        match hello.name {
            ServerName::Name(name) => check_canonical(&Host::Name(name)),
            ServerName::Address(address) => check_canonical(&address.into()),
            ServerName::Absent => {}
        }
    }
}

/// A client that has said everything and then ends.
struct Script<'a> {
    input: &'a [u8],
    output: Vec<u8>,
}

impl AsyncRead for Script<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let (taken, rest) = self.input.split_at(buf.remaining().min(self.input.len()));
        buf.put_slice(taken);
        self.input = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        self.output.extend(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
