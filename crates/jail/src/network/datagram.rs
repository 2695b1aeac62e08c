//! Datagrams with the address that they were sent to, for the DNS gates.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes in the buffer; a longer datagram is cut.
    pub length: usize,
    pub from: SocketAddr,
    /// The address that the program sent it to. The answer must come from there.
    pub to: IpAddr,
}

/// Large enough, and aligned, for one packet information of either family.
type Control = [u64; 8];

/// Receives one datagram of a DNS gate. `WouldBlock` if there is none.
pub fn receive_datagram(gate: &impl AsFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut name = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut control: Control = [0; 8];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: every pointer refers to a live local or the caller's buffer, with its size beside it.
    let length = unsafe { libc::recvmsg(gate.as_fd().as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: zeroes are a valid address of no family, and the kernel may have written another.
    let from = address(unsafe { &*name.as_ptr() });
    let to = information(&message);
    match (from, to) {
        (Some(from), Some(to)) => Ok(Datagram { length, from, to }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a datagram came without its addresses")),
    }
}

/// Answers from the address that a datagram was sent to.
pub fn send_datagram(gate: &impl AsFd, bytes: &[u8], from: IpAddr, to: SocketAddr) -> io::Result<()> {
    let mut control: Control = [0; 8];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    match from {
        IpAddr::V4(address) => {
            let source = libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) };
            let value =
                libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: libc::in_addr { s_addr: 0 } };
            put(&mut message, libc::IPPROTO_IP, libc::IP_PKTINFO, value);
        }
        IpAddr::V6(address) => {
            let source = libc::in6_addr { s6_addr: address.octets() };
            put(
                &mut message,
                libc::IPPROTO_IPV6,
                libc::IPV6_PKTINFO,
                libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: 0 },
            );
        }
    }
    let mut four: libc::sockaddr_in;
    let mut six: libc::sockaddr_in6;
    match to {
        SocketAddr::V4(to) => {
            four = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                sin_zero: [0; 8],
            };
            (message.msg_name, message.msg_namelen) = ((&raw mut four).cast(), size_of_val(&four) as libc::socklen_t);
        }
        SocketAddr::V6(to) => {
            six = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: to.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                sin6_scope_id: to.scope_id(),
            };
            (message.msg_name, message.msg_namelen) = ((&raw mut six).cast(), size_of_val(&six) as libc::socklen_t);
        }
    }
    // SAFETY: every pointer refers to a live local or the caller's bytes, with its size beside it.
    let sent = unsafe { libc::sendmsg(gate.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts the only control message into a buffer that is large enough for it.
fn put<T>(message: &mut libc::msghdr, level: i32, kind: i32, value: T) {
    let length = size_of::<T>() as libc::c_uint;
    // SAFETY: the buffer is a live `Control`, which is aligned and large enough for a header and either information.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(length) as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}

/// The address a datagram was sent to, from its packet information.
fn information(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the kernel filled the control buffer, which is live, and says how much of it is valid; the macros stay
    // within that. The kernel sends these kinds complete.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let found = data.cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(Ipv4Addr::from(found.ipi_addr.s_addr.to_ne_bytes()).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let found = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(found.ipi6_addr.s6_addr).into());
                }
                _ => header = libc::CMSG_NXTHDR(message, header),
            }
        }
    }
    None
}

fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let pointer = &raw const *storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is larger than, and aligned for, every address; the family says which this is.
            let four = unsafe { &*pointer.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(four.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(four.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let six = unsafe { &*pointer.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(six.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(six.sin6_port), 0, six.sin6_scope_id).into())
        }
        _ => None,
    }
}
