//! Routes of a proxied sandbox: every address is local.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::netlink::{CREATE, Messages};

/// The loopback of every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// `local default dev lo`. The loopback's address is the preferred source: otherwise the kernel takes the destination
/// itself, and a connection to a port that happens to be its own would be to itself.
pub(super) fn everything_is_local(has_six: bool) -> Messages {
    let mut messages = Messages::default();
    add(&mut messages, Ipv4Addr::LOCALHOST.into());
    if has_six {
        add(&mut messages, Ipv6Addr::LOCALHOST.into());
    }
    messages.finish()
}

fn add(messages: &mut Messages, source: IpAddr) {
    let (family, source) = match source {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    // struct rtmsg: family, lengths of destination and source, type of service; table, protocol, scope, type; flags.
    let header = [
        family as u8,
        0,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_STATIC,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
        0,
        0,
        0,
        0,
    ];
    messages.add(libc::RTM_NEWROUTE, CREATE, &header, |attributes| {
        attributes.bytes(libc::RTA_OIF, &LOOPBACK_INDEX.to_ne_bytes()).bytes(libc::RTA_PREFSRC, &source);
    });
}
