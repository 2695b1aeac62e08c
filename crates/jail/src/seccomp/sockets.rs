//! The rules for sockets: allowed families, options, and ways to send.
//!
//! Much of what a socket keeps is charged to no cgroup: options, keys, queued errors, pending datagrams. A program can
//! create as many sockets as fit in its memory limit, so anything a socket keeps beyond that must be refused here or be
//! small. THREAT_MODEL.md lists what was examined.

use rustix::io::Errno;

use super::rules::{Group, Rule, Test, Values, any_bit, moot, none_of, one_of, silent, telling};

const AF_UNIX: u32 = libc::AF_UNIX as u32;
const AF_INET: u32 = libc::AF_INET as u32;
const AF_INET6: u32 = libc::AF_INET6 as u32;
const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
const SOCK_STREAM: u32 = libc::SOCK_STREAM as u32;
const SOCK_DGRAM: u32 = libc::SOCK_DGRAM as u32;
const SOCK_RAW: u32 = libc::SOCK_RAW as u32;
const SOCK_SEQPACKET: u32 = libc::SOCK_SEQPACKET as u32;
const SOCK_PACKET: u32 = 10;
/// The kernel's SOCK_TYPE_MASK: above it are SOCK_CLOEXEC and SOCK_NONBLOCK.
const SOCK_TYPE_MASK: u32 = 0xF;
const IPPROTO_DEFAULT: u32 = 0;
const IPPROTO_TCP: u32 = libc::IPPROTO_TCP as u32;
const IPPROTO_UDP: u32 = libc::IPPROTO_UDP as u32;
const IPPROTO_MPTCP: u32 = 262;

const fn socket_type(values: Values) -> Test {
    Test { arg: 1, mask: SOCK_TYPE_MASK, values }
}

pub(super) const SOCKET: Rule = &[
    // What a netlink socket has not read is charged to no cgroup: 164 MiB of 1,000 sockets, for 1.3 MiB that are. Silent: getifaddrs and
    // getaddrinfo of every C library try it and do without. ZeroMQ does without on this answer and aborts on others.
    silent(Group::Sockets, Errno::OPNOTSUPP).when(one_of(0, &[AF_NETLINK])),
    telling(Group::Sockets, Errno::AFNOSUPPORT).when(none_of(0, &[AF_UNIX, AF_INET, AF_INET6])),
    // SOCK_PACKET with AF_INET is an old way to spell AF_PACKET.
    telling(Group::Sockets, Errno::PERM).when(socket_type(Values::OneOf(&[SOCK_RAW, SOCK_PACKET]))),
    silent(Group::Sockets, Errno::SOCKTNOSUPPORT).when(socket_type(Values::NoneOf(&[
        SOCK_STREAM,
        SOCK_DGRAM,
        SOCK_SEQPACKET,
    ]))),
    silent(Group::Sockets, Errno::PROTONOSUPPORT)
        .when_both(none_of(0, &[AF_UNIX]), socket_type(Values::OneOf(&[SOCK_SEQPACKET]))),
    // Silent: Go's listeners try multipath TCP first, and fall back to plain TCP on this answer.
    silent(Group::Sockets, Errno::PROTONOSUPPORT).when_both(none_of(0, &[AF_UNIX]), one_of(2, &[IPPROTO_MPTCP])),
    telling(Group::Sockets, Errno::PROTONOSUPPORT)
        .when_both(none_of(0, &[AF_UNIX]), none_of(2, &[IPPROTO_DEFAULT, IPPROTO_TCP, IPPROTO_UDP])),
];

pub(super) const SOCKETPAIR: Rule = &[telling(Group::Sockets, Errno::AFNOSUPPORT).when(none_of(0, &[AF_UNIX]))];

const SOL_SOCKET: u32 = libc::SOL_SOCKET as u32;
const IPPROTO_IP: u32 = libc::IPPROTO_IP as u32;
const IPPROTO_IPV6: u32 = libc::IPPROTO_IPV6 as u32;
/// SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and SO_ATTACH_REUSEPORT_EBPF.
const ATTACHING_OPTIONS: &[u32] = &[26, 50, 51, 52];
/// IP_ADD_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP, MCAST_JOIN_GROUP and MCAST_JOIN_SOURCE_GROUP.
const JOINING_OPTIONS: &[u32] = &[35, 39, 42, 46];
/// IPV6_ADD_MEMBERSHIP, IPV6_JOIN_ANYCAST, MCAST_JOIN_GROUP and MCAST_JOIN_SOURCE_GROUP.
const JOINING_OPTIONS_V6: &[u32] = &[20, 27, 42, 46];

pub(super) const SETSOCKOPT: Rule = &[
    telling(Group::Bpf, Errno::PERM).when_both(one_of(1, &[SOL_SOCKET]), one_of(2, ATTACHING_OPTIONS)),
    // Silent, with the answer of a machine without a network: programs that look for peers find none.
    silent(Group::Sockets, Errno::NODEV).when_both(one_of(1, &[IPPROTO_IP]), one_of(2, JOINING_OPTIONS)),
    silent(Group::Sockets, Errno::NODEV).when_both(one_of(1, &[IPPROTO_IPV6]), one_of(2, JOINING_OPTIONS_V6)),
    // The same answer as from a kernel built without it, here and in what follows.
    telling(Group::Corking, Errno::NOPROTOOPT).when_both(one_of(1, &[IPPROTO_UDP]), one_of(2, &[UDP_CORK])),
    telling(Group::TcpKeys, Errno::NOPROTOOPT).when_both(one_of(1, &[IPPROTO_TCP]), one_of(2, SIGNING_OPTIONS)),
    telling(Group::FlowLabels, Errno::NOPROTOOPT)
        .when_both(one_of(1, &[IPPROTO_IPV6]), one_of(2, &[IPV6_FLOWLABEL_MGR])),
    telling(Group::PacketOptions, Errno::NOPROTOOPT)
        .when_both(one_of(1, &[IPPROTO_IPV6]), one_of(2, &[IPV6_2292PKTOPTIONS])),
    silent(Group::ErrorQueues, Errno::NOPROTOOPT).when_both(one_of(1, &[SOL_SOCKET]), one_of(2, TIMESTAMPING_OPTIONS)),
    // Every resolver requests errors, and glibc's gives up if it can't have them. A connected socket learns of a closed
    // port without this.
    moot(Group::ErrorQueues).when_both(one_of(1, &[IPPROTO_IP]), one_of(2, RECEIVING_ERRORS)),
    moot(Group::ErrorQueues).when_both(one_of(1, &[IPPROTO_IPV6]), one_of(2, RECEIVING_ERRORS_V6)),
    // The size is only a request: the kernel silently cuts it down to the host's limit. Here that is the default.
    moot(Group::ReceiveBuffers).when_both(one_of(1, &[SOL_SOCKET]), one_of(2, &[SO_RCVBUF])),
];

const UDP_CORK: u32 = 1;
/// TCP_MD5SIG, TCP_MD5SIG_EXT, and TCP_AO_ADD_KEY.
const SIGNING_OPTIONS: &[u32] = &[14, 32, 38];
const IPV6_FLOWLABEL_MGR: u32 = 32;
/// All options at once, as control messages. The kernel keeps up to 64 KiB of them, whatever their content.
const IPV6_2292PKTOPTIONS: u32 = 6;
/// SO_TIMESTAMPING, old and new.
const TIMESTAMPING_OPTIONS: &[u32] = &[37, 65];
/// IP_RECVERR and IP_RECVERR_RFC4884.
const RECEIVING_ERRORS: &[u32] = &[11, 26];
/// IPV6_RECVERR and IPV6_RECVERR_RFC4884.
const RECEIVING_ERRORS_V6: &[u32] = &[25, 31];
const SO_RCVBUF: u32 = libc::SO_RCVBUF as u32;

/// On a UDP socket `MSG_MORE` corks. A filter can't see the type of a socket, so it is refused on all of them; on TCP
/// it would only be a hint.
const fn more_to_come(flags: u8) -> [super::rules::Clause; 1] {
    [telling(Group::Corking, Errno::OPNOTSUPP).when(any_bit(flags, libc::MSG_MORE as u32))]
}

pub(super) const SENDTO: Rule = &more_to_come(3);
pub(super) const SENDMSG: Rule = &more_to_come(2);
pub(super) const SENDMMSG: Rule = &more_to_come(3);
