//! Tries a proxied network for real: makes one, and uses it as a program and as the egress process would.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::datagram::{receive_datagram, send_datagram};
use super::gates::{DNS_PORT, Gates, original_destination};
use super::namespace::Network;
use super::rules::Wanted;
use crate::spawn::Step;
use crate::sys::{Cloned, clone3, exit_now};

/// Addresses for documentation, which lead nowhere anywhere else.
const FOUR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const SIX: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const HTTPS: u16 = 443;
const DISCARD: u16 = 9;
/// Everything happens on one machine; this only bounds a kernel that loses packets.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Why the kernel can't give a sandbox a proxied network.
#[derive(Debug, thiserror::Error)]
#[error("{trial}")]
pub struct TrialFailure {
    trial: Trial,
    #[source]
    errno: Errno,
}

impl TrialFailure {
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    UserNamespace,
    SetUp(Step),
    Connection,
    ConnectionSix,
    Dns,
    Drop,
}

impl Trial {
    /// One byte for a message. Steps have small numbers of their own.
    fn number(self) -> u8 {
        match self {
            Self::SetUp(step) => step as u8,
            Self::UserNamespace => 100,
            Self::Connection => 101,
            Self::ConnectionSix => 102,
            Self::Dns => 103,
            Self::Drop => 104,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        let own = [Self::UserNamespace, Self::Connection, Self::ConnectionSix, Self::Dns, Self::Drop];
        own.into_iter().find(|trial| trial.number() == number).or_else(|| Step::from_number(number).map(Self::SetUp))
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetUp(step) => step.fmt(f),
            Self::UserNamespace => f.write_str("creating a user namespace"),
            Self::Connection => f.write_str("leading an IPv4 connection to its gate"),
            Self::ConnectionSix => f.write_str("leading an IPv6 connection to its gate"),
            Self::Dns => f.write_str("answering a DNS question"),
            Self::Drop => f.write_str("dropping other traffic"),
        }
    }
}

/// Makes a proxied network as a sandbox's would be, and checks that it leads to the gates and nowhere else. The caller
/// must be single-threaded.
pub fn try_proxied() -> Result<(), TrialFailure> {
    attempt(Wanted { is_redirecting: true, is_dropping: true })
}

pub(super) fn attempt(wanted: Wanted) -> Result<(), TrialFailure> {
    let failed = |errno| TrialFailure { trial: Trial::UserNamespace, errno };
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed)?;
    match clone3(libc::CLONE_NEWUSER as u64, None).map_err(failed)? {
        Cloned::Child => {
            let said = inside(wanted).err().map_or([0; 5], |(trial, errno)| {
                let [a, b, c, d] = errno.raw_os_error().to_ne_bytes();
                [trial.number(), a, b, c, d]
            });
            // If the parent is gone, nothing is left to do.
            let _ = rustix::io::write(&theirs, &said);
            exit_now(0)
        }
        Cloned::Parent { pid, .. } => {
            drop(theirs);
            let mut said = [0; 5];
            let length = rustix::io::read(&ours, &mut said);
            // Our own child, which has answered or died.
            let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
            match (length, said) {
                (Ok(5), [0, ..]) => Ok(()),
                (Ok(5), [number, errno @ ..]) => Err(TrialFailure {
                    trial: Trial::from_number(number).unwrap_or(Trial::UserNamespace),
                    errno: Errno::from_raw_os_error(i32::from_ne_bytes(errno)),
                }),
                _ => Err(failed(Errno::CHILD)),
            }
        }
    }
}

fn inside(wanted: Wanted) -> Result<(), (Trial, Errno)> {
    let network = Network::start_with(Some(wanted)).map_err(|errno| (Trial::SetUp(Step::Network), errno))?;
    let joined = network.join().map_err(|failure| (Trial::SetUp(failure.step), failure.errno))?;
    let gates = joined.gates.ok_or((Trial::SetUp(Step::Gates), Errno::BADF))?;
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::PROTO);
    let Gates { tcp, proxy: _, dns_udp, dns_tcp: _, probes: _ } = gates;
    if tcp.len() != dns_udp.len() {
        return Err((Trial::SetUp(Step::Gates), Errno::BADF));
    }
    let trials = [(Trial::Connection, FOUR), (Trial::ConnectionSix, SIX)];
    for (gate, (trial, address)) in tcp.into_iter().zip(trials) {
        connects(gate, SocketAddr::new(address, HTTPS)).map_err(|error| (trial, errno(error)))?;
    }
    for (gate, address) in dns_udp.iter().zip([FOUR, SIX]) {
        answers(gate, address).map_err(|error| (Trial::Dns, errno(error)))?;
    }
    drops(SocketAddr::new(FOUR, DISCARD)).map_err(|error| (Trial::Drop, errno(error)))
}

/// A connection to `target` arrives at the gate, and the gate learns the target.
fn connects(gate: OwnedFd, target: SocketAddr) -> io::Result<()> {
    let program = TcpStream::connect(target)?;
    wait(&gate)?;
    let (accepted, _) = TcpListener::from(gate).accept()?;
    let is_right = original_destination(&accepted)? == target && program.peer_addr()? == target;
    if is_right { Ok(()) } else { Err(Errno::DESTADDRREQ.into()) }
}

/// A question to port 53 of any address is answered from there.
fn answers(gate: &OwnedFd, address: IpAddr) -> io::Result<()> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let program = UdpSocket::bind((any, 0))?;
    program.connect((address, DNS_PORT))?;
    program.send(b"question")?;
    wait(gate)?;
    let mut buffer = [0; 16];
    let question = receive_datagram(gate, &mut buffer)?;
    send_datagram(gate, b"answer", question.to, question.from)?;
    wait(&program)?;
    let length = program.recv(&mut buffer)?;
    if question.to == address && &buffer[..length] == b"answer" { Ok(()) } else { Err(Errno::DESTADDRREQ.into()) }
}

fn drops(target: SocketAddr) -> io::Result<()> {
    let program = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    match program.send_to(b"lost", target) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(Errno::NETUNREACH.into()),
    }
}

fn wait(socket: &impl AsFd) -> io::Result<()> {
    let mut polls = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut polls, Some(&PATIENCE))? {
        0 => Err(Errno::TIMEDOUT.into()),
        _ => Ok(()),
    }
}
