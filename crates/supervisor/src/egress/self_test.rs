//! Tries the network of a proxied sandbox before any program runs in it: a forbidden name, a metadata address and a
//! direct connection must all be refused.
//!
//! The sockets are the sandbox's own, made inside its network namespace. So the test takes the way that a program would
//! take, and needs no program inside. An allowlist that silently allows everything, a rule that isn't installed or an
//! egress process that doesn't decide each fail it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use super::session::Session;
use rustix::io::Errno;
use rustix::net::connect;
use saggar_domain::net::{Destination, FAKE_V4, Host, Passage, Rules, SELF_TEST_NAME, Verdict};
use saggar_domain::{Code, Problem};
use saggar_jail::Probes;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Addresses of metadata services. The first one that the rules deny is tried: a rule may name one.
const METADATA: [Ipv4Addr; 3] =
    [Ipv4Addr::new(169, 254, 169, 254), Ipv4Addr::new(169, 254, 170, 2), Ipv4Addr::new(100, 100, 100, 200)];
const METADATA_PORT: u16 = 80;
/// An address of the pool that DNS answers with, which no name has yet. No rule opens it.
const DIRECT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 19, 255, 254)), 9);
/// Every refusal of ours has this header.
const MARK: &[u8] = b"x-saggar-rule:";

pub(super) fn run(session: &mut Session, rules: &Rules, probes: Probes) -> Result<(), Problem> {
    let Probes { datagram, streams: [name, metadata, direct] } = probes;
    let address = resolve(UdpSocket::from(datagram)).map_err(|error| broken("a name can't be looked up", &error))?;
    if !FAKE_V4.contains(address) {
        return Err(broken("a name is looked up outside of the sandbox", &address));
    }
    refused("a forbidden name", name.into(), SocketAddr::new(address, 80), SELF_TEST_NAME)?;
    let is_denied = |address: &Ipv4Addr| {
        let to = Destination { host: Host::V4(*address), port: METADATA_PORT };
        matches!(rules.connection(&to), Passage::Denied(_))
    };
    let denied = METADATA.into_iter().find(is_denied);
    if let Some(address) = denied {
        let to = SocketAddr::new(address.into(), METADATA_PORT);
        refused("a metadata address", metadata.into(), to, &address.to_string())?;
    }
    closed("a direct connection", direct.into())?;
    // Each was reported as denied, too. No program runs yet, so there are no other decisions.
    let mut missing = vec![(SELF_TEST_NAME.to_owned(), 80), (DIRECT.ip().to_string(), DIRECT.port())];
    missing.extend(denied.map(|address| (address.to_string(), METADATA_PORT)));
    session.await_decisions(|decision| {
        let is_denied = decision.verdict == Verdict::Denied;
        missing.retain(|(host, port)| !(is_denied && *host == decision.host && *port == decision.port));
        missing.is_empty()
    })
}

/// Asks for the address of a name that no rule can allow.
fn resolve(socket: UdpSocket) -> io::Result<IpAddr> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // To an address that isn't our DNS: whatever server a program asks, ours answers.
    connect(&socket, &SocketAddr::new(DIRECT.ip(), 53))?;
    socket.send(&question())?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer)?;
    // The one record is the last part of the answer, and ends with its four bytes.
    match answer[..length] {
        [0, 1, .., a, b, c, d] if answer[7] == 1 => Ok(IpAddr::from([a, b, c, d])),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the answer has no address")),
    }
}

/// A question for one IPv4 address, with the number 1.
fn question() -> Vec<u8> {
    let mut bytes = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in SELF_TEST_NAME.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// A request must be answered with a refusal.
fn refused(what: &str, mut stream: TcpStream, to: SocketAddr, host: &str) -> Result<(), Problem> {
    let mut answer = Vec::new();
    let asked = dial(&stream, to).and_then(|()| {
        write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        stream.take(4096).read_to_end(&mut answer)
    });
    match asked {
        Err(error) => Err(broken(&format!("{what} gets no answer"), &error.kind())),
        Ok(_) if answer.starts_with(b"HTTP/1.1 403 ") && holds(&answer.to_ascii_lowercase(), MARK) => Ok(()),
        Ok(_) => Err(broken(&format!("{what} is not refused"), &"the answer is not a refusal")),
    }
}

/// A connection that speaks neither TLS nor HTTP must end without a byte.
fn closed(what: &str, mut stream: TcpStream) -> Result<(), Problem> {
    let read = dial(&stream, DIRECT).and_then(|()| stream.write_all(&[0; 16])).and_then(|()| stream.read(&mut [0]));
    match read {
        Ok(0) => Ok(()),
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::CONNRESET | Errno::CONNREFUSED)) => Ok(()),
        Ok(_) => Err(broken(&format!("{what} is not refused"), &"it was answered")),
        Err(error) => Err(broken(&format!("{what} is not refused"), &error.kind())),
    }
}

fn dial(stream: &TcpStream, to: SocketAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Bounds the connection's set-up as well.
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(connect(stream, &to)?)
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn broken(what: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the sandbox's network failed its self-test: {what}: {why}"),
        "nothing was started; report it with the output of `saggar doctor`",
    )
}
