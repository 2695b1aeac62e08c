//! Classes of addresses: which are public, and which must be named by a rule to be reached.
//!
//! Special addresses lead to the host itself, to its neighbours or to a cloud's metadata service. A rule opens one only if its
//! range lies completely within one entry of the table below, so that no wide range opens them by accident. An IPv4 address
//! inside an IPv6 address is special by itself, and the inner address must pass too.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::mode::choice;

/// Addresses that the sandbox's DNS answers with; none of them is ever dialled.
pub const FAKE_V4: Range = v4([198, 18, 0, 0], 15);
/// A name that no rule can allow: the top-level domain is reserved for that. The self-test of a sandbox's network asks for it.
pub const SELF_TEST_NAME: &str = "self-test.saggar.invalid";
/// The name under which programs in a sandbox reach the models of their server. It leads nowhere else.
pub const MODEL_HOST: &str = "model.internal";
/// The same as [`FAKE_V4`] for IPv6.
pub const FAKE_V6: Range = v6([0xfdfe, 0x5a66, 0, 0, 0, 0, 0, 0], 32);

choice!(
    /// Why an address is special. The name is part of a refusal's rule: `egress/address-NAME`.
    AddressClass {
        Unspecified = "unspecified",
        Loopback = "loopback",
        Private = "private",
        /// Shared by the customers of a carrier (100.64.0.0/10).
        Shared = "shared",
        LinkLocal = "link-local",
        Metadata = "metadata",
        /// For benchmarks (198.18.0.0/15); the sandbox's DNS answers with these.
        Benchmark = "benchmark",
        Multicast = "multicast",
        Broadcast = "broadcast",
        Reserved = "reserved",
        /// An IPv4 address inside an IPv6 address.
        Embedded = "embedded",
        /// An address of this host's own interfaces.
        Own = "own",
    }
);

impl AddressClass {
    /// `None`: a public address. Addresses of this host are not known here.
    pub fn of(address: IpAddr) -> Option<Self> {
        special(address).map(|(class, _)| class)
    }

    /// For messages: "10.0.0.1 is …".
    pub fn describe(self) -> &'static str {
        match self {
            Self::Unspecified => "an address of no host",
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::Shared => "a carrier's internal address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "an address of a cloud's metadata service",
            Self::Benchmark => "an address for benchmarks",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::Reserved => "a reserved address",
            Self::Embedded => "an IPv4 address inside an IPv6 address",
            Self::Own => "an address of this host",
        }
    }
}

/// A range of addresses: all that share a prefix. The bits after the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    first: IpAddr,
    prefix: u8,
}

impl Range {
    pub fn new(first: IpAddr, prefix: u8) -> Result<Self, RangeError> {
        if prefix > width(first) {
            return Err(RangeError::Prefix { max: width(first) });
        }
        let masked = mask(first, prefix);
        if masked != first {
            return Err(RangeError::Bits { first: masked });
        }
        Ok(Self { first, prefix })
    }

    pub fn single(address: IpAddr) -> Self {
        Self { first: address, prefix: width(address) }
    }

    pub fn first(self) -> IpAddr {
        self.first
    }

    pub fn prefix(self) -> u8 {
        self.prefix
    }

    pub fn is_single(self) -> bool {
        self.prefix == width(self.first)
    }

    pub fn contains(self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && mask(address, self.prefix) == self.first
    }

    pub fn is_within(self, other: Self) -> bool {
        self.prefix >= other.prefix && other.contains(self.first)
    }
}

/// As a rule writes it: `10.0.0.0/8`, `[fd00::]/8`, `192.0.2.1`, `[2001:db8::1]`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first {
            IpAddr::V4(address) => write!(f, "{address}")?,
            IpAddr::V6(address) => write!(f, "[{address}]")?,
        }
        if self.is_single() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    Prefix {
        max: u8,
    },
    /// Bits are set after the prefix; `first` is the address without them.
    Bits {
        first: IpAddr,
    },
}

/// The class of a special address, with the range of the table that it lies in. `None`: a public address.
pub(super) fn special(address: IpAddr) -> Option<(AddressClass, Range)> {
    let listed = SPECIAL.iter().find(|(_, range)| range.contains(address)).copied();
    match address {
        IpAddr::V4(_) => listed,
        IpAddr::V6(v6) => listed
            .or_else(|| embedded(v6).map(|_| (AddressClass::Embedded, Range::single(address))))
            .or_else(|| (!GLOBAL_V6.contains(address)).then_some((AddressClass::Reserved, Range::single(address)))),
    }
}

/// The IPv4 address inside an IPv6 address, by every scheme that has one.
pub(super) fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let low = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match s {
        // Unspecified and loopback are classes of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // Compatible, mapped, translated.
        [0, 0, 0, 0, 0, 0 | 0xffff, a, b] | [0, 0, 0, 0, 0xffff, 0, a, b] => low(a, b),
        // NAT64, the well-known prefix and the one for local use.
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0x64, 0xff9b, 1, _, _, _, a, b] => low(a, b),
        // 6to4.
        [0x2002, a, b, ..] => low(a, b),
        // Teredo: the client's address is inverted.
        [0x2001, 0, _, _, _, _, a, b] => low(!a, !b),
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, a, b] => low(a, b),
        _ => None,
    }
}

/// First match wins: narrow entries come before the wide ones that contain them.
const SPECIAL: &[(AddressClass, Range)] = {
    use AddressClass::*;
    &[
        // AWS, Google, Azure, OpenStack and others; container credentials of AWS; Tencent; Scaleway.
        (Metadata, v4([169, 254, 169, 0], 24)),
        (Metadata, v4([169, 254, 170, 0], 24)),
        (Metadata, v4([169, 254, 0, 23], 32)),
        (Metadata, v4([169, 254, 42, 42], 32)),
        // Azure's wire server, Oracle, Alibaba.
        (Metadata, v4([168, 63, 129, 16], 32)),
        (Metadata, v4([192, 0, 0, 192], 32)),
        (Metadata, v4([100, 100, 100, 200], 32)),
        // AWS, Google, Scaleway.
        (Metadata, v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32)),
        (Metadata, v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0], 32)),
        (Metadata, v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128)),
        (Unspecified, v4([0, 0, 0, 0], 8)),
        (Private, v4([10, 0, 0, 0], 8)),
        (Shared, v4([100, 64, 0, 0], 10)),
        (Loopback, v4([127, 0, 0, 0], 8)),
        (LinkLocal, v4([169, 254, 0, 0], 16)),
        (Private, v4([172, 16, 0, 0], 12)),
        (Reserved, v4([192, 0, 0, 0], 24)),
        // Relays of 6to4.
        (Reserved, v4([192, 88, 99, 0], 24)),
        (Private, v4([192, 168, 0, 0], 16)),
        (Benchmark, FAKE_V4),
        (Multicast, v4([224, 0, 0, 0], 4)),
        (Broadcast, v4([255, 255, 255, 255], 32)),
        (Reserved, v4([240, 0, 0, 0], 4)),
        (Unspecified, v6([0, 0, 0, 0, 0, 0, 0, 0], 128)),
        (Loopback, v6([0, 0, 0, 0, 0, 0, 0, 1], 128)),
        (Embedded, v6([0, 0, 0, 0, 0, 0, 0, 0], 96)),
        (Embedded, v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96)),
        (Embedded, v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96)),
        (Embedded, v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96)),
        (Embedded, v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48)),
        (Embedded, v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16)),
        (Embedded, v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32)),
        (Benchmark, v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48)),
        // ORCHID, twice.
        (Reserved, v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28)),
        (Reserved, v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28)),
        (Private, v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7)),
        (LinkLocal, v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10)),
        // Site-local.
        (Private, v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10)),
        (Multicast, v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8)),
    ]
};

/// Only addresses in here are routed on the internet.
const GLOBAL_V6: Range = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

const fn v4(octets: [u8; 4], prefix: u8) -> Range {
    Range { first: IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])), prefix }
}

const fn v6(s: [u16; 8], prefix: u8) -> Range {
    Range { first: IpAddr::V6(Ipv6Addr::new(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7])), prefix }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask(address: IpAddr, prefix: u8) -> IpAddr {
    let cleared = u32::from(width(address).saturating_sub(prefix));
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & u32::MAX.checked_shl(cleared).unwrap_or(0)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & u128::MAX.checked_shl(cleared).unwrap_or(0)).into(),
    }
}
