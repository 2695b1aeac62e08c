//! Who is at the other end of a connection: an address of the network, a user of this host, or a sandbox.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use saggar_domain::{HostUser, SandboxId};

/// The other end of a connection. A user of this host is known only through a Unix socket, where the kernel says who connected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    Network(IpAddr),
    Local(HostUser),
    /// A program in a sandbox, by way of the egress process.
    Sandbox(SandboxId),
}

impl Caller {
    /// Those that share one limit of connections: one network of IPv6 belongs to one client, and one user has one limit.
    pub(super) fn neighbourhood(self) -> Self {
        match self {
            Self::Network(address) => Self::Network(match address.to_canonical() {
                IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
                address @ IpAddr::V4(_) => address,
            }),
            Self::Local(user) => Self::Local(HostUser { gid: 0, ..user }),
            sandbox @ Self::Sandbox(_) => sandbox,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Local(user) => write!(f, "uid:{}", user.uid),
            Self::Sandbox(id) => id.fmt(f),
        }
    }
}
