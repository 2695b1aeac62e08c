//! Gates: the sockets inside a proxied sandbox's namespace that are served from outside.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};

use crate::sys::set_option;

/// Where all TCP connections to other addresses than the loopback's arrive, except those to port 53. Above the ports
/// that the kernel gives out, and used by no known service.
pub const GATE_PORT: u16 = 61443;
/// Where programs that use a proxy find it, on 127.0.0.1.
pub const PROXY_PORT: u16 = 61080;
pub(super) const DNS_PORT: u16 = 53;
/// Marks DNS answers. Programs can't: that takes CAP_NET_ADMIN.
pub(super) const MARK: u32 = 0x5a66_0035;

/// The part of the kernel's `tcp_info` that is read: its first field is the state, the last one the bytes received.
const INFO_LEN: usize = 136;
const INFO_RECEIVED: usize = 128;
const TCP_ESTABLISHED: u8 = 1;
/// Less than any receive window that a connection begins with.
const RECEIVED_MAX: u64 = 16 * 1024;

/// What waits to be accepted is charged to no cgroup, up to 256 KiB a connection.
const BACKLOG: i32 = 64;
const DNS_BACKLOG: i32 = 8;

/// The gates of one sandbox: bound, listening, not blocking. In each list IPv4 comes first; IPv6 is absent if the host
/// has none, and no IPv6 packet is sent in the sandbox then.
#[derive(Debug)]
pub struct Gates {
    /// Every TCP connection to an address outside of the loopback; [`original_destination`] says which.
    pub tcp: Vec<OwnedFd>,
    /// 127.0.0.1, [`PROXY_PORT`].
    pub proxy: OwnedFd,
    /// Every datagram to port 53, whatever its address. An answer must be sent from the address that the question was
    /// sent to: `IP_PKTINFO` or `IPV6_RECVPKTINFO` is set.
    pub dns_udp: Vec<OwnedFd>,
    /// Every connection to port 53, whatever its address.
    pub dns_tcp: Vec<OwnedFd>,
    pub probes: Probes,
}

/// Sockets of the sandbox that are not connected. What a program inside can reach, these can reach: the supervisor tests
/// the network with them before any program runs.
#[derive(Debug)]
pub struct Probes {
    pub datagram: OwnedFd,
    pub streams: [OwnedFd; Self::STREAMS],
}

impl Probes {
    const STREAMS: usize = 3;
    const COUNT: usize = 1 + Self::STREAMS;

    /// In the caller's network namespace.
    pub(super) fn open() -> Result<Self, Errno> {
        let open = |kind| socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None);
        let stream = || open(SocketType::STREAM);
        Ok(Self { datagram: open(SocketType::DGRAM)?, streams: [stream()?, stream()?, stream()?] })
    }
}

/// Where the program wanted to connect to, for a connection accepted from [`Gates::tcp`]. An error if the program
/// dialled the gate itself, because connections to the loopback are never led there, or port 0.
///
/// (There is no address translation, so the connection's own address is the answer. `SO_ORIGINAL_DST` is ENOENT.)
pub fn original_destination(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let address = SocketAddr::try_from(getsockname(socket)?)?;
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    if address.ip().is_loopback() || address.port() == 0 {
        let message = "the connection was made to the gate itself, or to port 0";
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message));
    }
    Ok(address)
}

/// Whether a process still has the other end of a TCP connection open. `false` if it can't be told: the end of a connection arrives after
/// everything that was sent before, so it can't where the other end has sent more than the kernel takes at once.
pub fn is_peer_open(socket: &impl AsFd) -> bool {
    let mut info = [0u8; INFO_LEN];
    let mut length = INFO_LEN as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `info`; both outlive the call.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let Some(received) = info[INFO_RECEIVED..].first_chunk() else { return false };
    let received = u64::from_ne_bytes(*received);
    outcome == 0 && length as usize == INFO_LEN && info[0] == TCP_ESTABLISHED && received < RECEIVED_MAX
}

impl Gates {
    /// For a message: the number of gates of each kind of which there can be more than one.
    pub(crate) fn counts(&self) -> [u8; 3] {
        [self.tcp.len(), self.dns_udp.len(), self.dns_tcp.len()].map(|count| count as u8)
    }

    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let proxy = std::iter::once(&self.proxy);
        let probes = std::iter::once(&self.probes.datagram).chain(&self.probes.streams);
        self.tcp.iter().chain(proxy).chain(&self.dns_udp).chain(&self.dns_tcp).chain(probes).map(AsFd::as_fd).collect()
    }

    /// The reverse of the two above.
    pub(crate) fn from_parts(counts: [u8; 3], descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [tcp, dns_udp, dns_tcp] = counts.map(usize::from);
        if descriptors.len() != tcp + 1 + dns_udp + dns_tcp + Probes::COUNT {
            return None;
        }
        let mut rest = descriptors.into_iter();
        Some(Self {
            tcp: rest.by_ref().take(tcp).collect(),
            proxy: rest.next()?,
            dns_udp: rest.by_ref().take(dns_udp).collect(),
            dns_tcp: rest.by_ref().take(dns_tcp).collect(),
            probes: Probes { datagram: rest.next()?, streams: [rest.next()?, rest.next()?, rest.next()?] },
        })
    }

    /// Most gates that a sandbox can have.
    pub(crate) const COUNT_MAX: usize = 2 * Family::COUNT + 1 + Probes::COUNT;
}

/// Gates of one address family, while the helper makes them: it allocates nothing.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) tcp: OwnedFd,
    pub(super) dns_udp: OwnedFd,
    pub(super) dns_tcp: OwnedFd,
}

impl Family {
    pub(super) const COUNT: usize = 3;

    /// The sockets of IPv4.
    pub(super) fn four() -> Result<Self, Errno> {
        Self::open(Ipv4Addr::LOCALHOST.into())
    }

    /// The sockets of IPv6; `None` if the kernel doesn't have it, or has it switched off.
    pub(super) fn six() -> Result<Option<Self>, Errno> {
        match Self::open(Ipv6Addr::LOCALHOST.into()) {
            Ok(family) => Ok(Some(family)),
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn open(address: IpAddr) -> Result<Self, Errno> {
        Ok(Self {
            tcp: listener(SocketAddr::new(address, GATE_PORT), BACKLOG)?,
            dns_udp: datagrams(SocketAddr::new(address, DNS_PORT))?,
            dns_tcp: listener(SocketAddr::new(address, DNS_PORT), DNS_BACKLOG)?,
        })
    }
}

pub(super) fn proxy() -> Result<OwnedFd, Errno> {
    listener(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PROXY_PORT), BACKLOG)
}

/// With SO_REUSEADDR, which accepted connections inherit: they occupy the port of their destination, and a service of
/// the sandbox must be able to bind that port. It doesn't make a port that is listened on available to others;
/// SO_REUSEPORT would.
fn listener(address: SocketAddr, backlog: i32) -> Result<OwnedFd, Errno> {
    let socket = open(address, SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind_transparently(&socket, address)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

fn datagrams(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = open(address, SocketType::DGRAM)?;
    match address {
        SocketAddr::V4(_) => set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?,
        SocketAddr::V6(_) => set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?,
    }
    set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, MARK as i32)?;
    bind_transparently(&socket, address)?;
    Ok(socket)
}

fn open(address: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Then packets for every address may be assigned to the socket. It is bound before: such a socket may be bound to an
/// address that doesn't exist, and the loopback's IPv6 address may not exist.
fn bind_transparently(socket: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    bind(socket, &address)?;
    match address {
        SocketAddr::V4(_) => set_option(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        SocketAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}
