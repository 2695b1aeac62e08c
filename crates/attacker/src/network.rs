//! Attempts to reach a network where there should be none. Addresses come from the ranges reserved for documentation,
//! or belong to the host itself. Nothing waits, so that a slow refusal shows.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::Attempt;
use crate::out::Out;
use crate::sys::{call, own};
use std::os::fd::AsRawFd;

pub const ATTEMPTS: &[Attempt] = &[("dial-out", dial_out), ("dial-host", dial_host), ("odd-protocols", odd_protocols)];

/// Starts to connect and doesn't wait: if the connection can begin, there is a way out.
fn dial(address: &str) -> io::Result<()> {
    let address: SocketAddr = address.parse().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = own(call(
        libc::SYS_socket,
        &[family as usize, (libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as usize, 0],
    )?);
    let (bytes, length) = raw(&address);
    match call(libc::SYS_connect, &[socket.as_raw_fd() as usize, bytes.as_ptr() as usize, length]) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            // On a loopback the answer is immediate, but arrives asynchronously.
            let mut poll = [u64::from(socket.as_raw_fd() as u32) | (libc::POLLOUT as u64) << 32];
            let ready = call(libc::SYS_poll, &[poll.as_mut_ptr() as usize, 1, 50])?;
            let (mut pending, mut size) = (0i32, 4u32);
            call(
                libc::SYS_getsockopt,
                &[
                    socket.as_raw_fd() as usize,
                    libc::SOL_SOCKET as usize,
                    libc::SO_ERROR as usize,
                    &raw mut pending as usize,
                    &raw mut size as usize,
                ],
            )?;
            if ready > 0 && pending != 0 { Err(io::Error::from_raw_os_error(pending)) } else { Ok(()) }
        }
        Err(error) => Err(error),
    }
}

fn raw(address: &SocketAddr) -> ([u8; 28], usize) {
    let mut bytes = [0u8; 28];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            (bytes, 16)
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (bytes, 28)
        }
    }
}

fn send(to: &str) -> io::Result<()> {
    let socket = UdpSocket::bind(if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" })?;
    socket.set_broadcast(true)?;
    socket.send_to(b"saggar-probe", to).map(|_| ())
}

fn dial_out(out: &Out, _: &[String]) {
    let start = Instant::now();
    for address in [
        "192.0.2.1:80",
        "198.51.100.1:443",
        "203.0.113.7:22",
        "169.254.169.254:80",
        "[2001:db8::1]:443",
        "[fd00:ec2::254]:80",
        "0.0.0.0:1",
    ] {
        out.tried(&format!("tcp {address}"), dial(address));
    }
    for address in ["192.0.2.1:53", "192.0.2.53:123", "[2001:db8::1]:53", "192.0.2.1:443"] {
        out.tried(&format!("udp {address}"), send(address));
    }
    for (member, family, protocol) in [("ping", libc::AF_INET, 1), ("ping v6", libc::AF_INET6, 58)] {
        out.tried(member, call(libc::SYS_socket, &[family as usize, libc::SOCK_DGRAM as usize, protocol]).map(own));
    }
    for (member, family) in [("raw", libc::AF_INET), ("raw v6", libc::AF_INET6)] {
        out.tried(member, call(libc::SYS_socket, &[family as usize, libc::SOCK_RAW as usize, 255]).map(own));
    }
    // If a resolver is configured: one query by hand.
    let resolvers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers: Vec<&str> = resolvers.lines().filter_map(|line| line.strip_prefix("nameserver ")).collect();
    out.examined("no resolver is named", servers.is_empty(), &servers.join(" "));
    for server in ["127.0.0.53:53", "127.0.0.1:53"] {
        out.tried(&format!("dns over tcp {server}"), dial(server));
    }
    out.examined("all fail fast", start.elapsed() < Duration::from_secs(2), "");
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    out.examined("no route", routes.lines().count() <= 1, "");
}

/// The arguments are the host's own addresses and listeners, as `address:port`.
fn dial_host(out: &Out, arguments: &[String]) {
    for (index, address) in arguments.iter().enumerate() {
        out.tried(&format!("listener {index} of the host"), dial(address));
    }
    for address in
        ["172.17.0.1:22", "10.0.2.2:22", "192.168.122.1:22", "[fe80::1%1]:22", "[fe80::1]:22", "169.254.1.1:80"]
    {
        out.tried(&format!("tcp {address}"), dial(address));
    }
    for (member, address) in [
        ("mDNS", "224.0.0.251:5353"),
        ("SSDP", "239.255.255.250:1900"),
        ("LLMNR", "224.0.0.252:5355"),
        ("broadcast", "255.255.255.255:9"),
        ("DHCP", "255.255.255.255:67"),
        ("mDNS v6", "[ff02::fb]:5353"),
        ("all nodes v6", "[ff02::1]:9"),
    ] {
        out.tried(member, send(address));
    }
}

fn odd_protocols(out: &Out, _: &[String]) {
    let (stream, datagram, raw, sequenced) =
        (libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET);
    for (member, kind, protocol) in [
        ("icmp", datagram, 1),
        ("igmp", raw, 2),
        ("ip-in-ip", raw, 4),
        ("tcp raw", raw, 6),
        ("udp raw", raw, 17),
        ("dccp", 6, 33),
        ("gre", raw, 47),
        ("esp", raw, 50),
        ("sctp", stream, 132),
        ("sctp sequenced", sequenced, 132),
        ("udp-lite", datagram, 136),
        ("raw of any", raw, 255),
        ("mptcp", stream, 262),
        ("l2tp", datagram, 115),
        ("packet by type", 10, 0x300),
        ("smc", stream, 256),
    ] {
        for (family, name) in [(libc::AF_INET, ""), (libc::AF_INET6, " v6")] {
            out.tried(
                &format!("{member}{name}"),
                call(libc::SYS_socket, &[family as usize, kind as usize, protocol]).map(own),
            );
        }
    }
}
