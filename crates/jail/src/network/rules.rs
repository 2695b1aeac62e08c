//! The nftables rules of a proxied sandbox, as one batch of messages.
//!
//! In the notation of the `nft` program (`GATE`, `MARK`: see `gates`):
//!
//! ```text
//! table inet saggar {
//!   chain arriving { type filter hook prerouting priority mangle; policy accept;
//!     meta mark MARK accept                                       # our DNS answers
//!     th dport 53 tproxy to :53 accept
//!     ip daddr != 127.0.0.0/8 meta l4proto tcp tproxy to :GATE accept
//!     ip6 daddr != ::1 meta l4proto tcp tproxy to :GATE accept
//!   }
//!   chain leaving { type filter hook output priority filter; policy drop;
//!     meta l4proto tcp accept
//!     meta mark MARK accept
//!     udp dport 53 accept
//!     ip saddr 127.0.0.0/8 ip daddr 127.0.0.0/8 accept
//!     ip6 saddr ::1 ip6 daddr ::1 accept
//!   }
//! }
//! ```
//!
//! The last two are for programs that talk to each other by UDP, and for the ICMP message with which the kernel reports a
//! closed port. Programs can't create sockets for ICMP.
//!
//! `tproxy` without an address takes the loopback's own, where the gates are. It ends its rule if the packet belongs to a
//! connection whose socket is not a gate's, which is the case for answers; if the protocol has no ports; and if there is
//! no gate any more. The kernel's work at a start grows with the number of expressions: there are few.

use std::net::Ipv6Addr;

use super::gates::{DNS_PORT, GATE_PORT, MARK};
use super::netlink::{APPEND, Attributes, CREATE, Messages, REQUEST};

/// What the rules do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Connections and DNS go to the gates.
    pub(super) is_redirecting: bool,
    /// Everything else is dropped.
    pub(super) is_dropping: bool,
}

const TABLE: &str = "saggar";
/// More than the whole batch.
const BATCH_LEN: usize = 4096;
const ARRIVING: &str = "arriving";
const LEAVING: &str = "leaving";

/// The whole table. Without IPv6 gates, no IPv6 packet is sent at all.
pub(super) fn batch(wanted: Wanted, has_six: bool) -> Messages {
    let mut batch = Messages::with_capacity(BATCH_LEN);
    batch.add(BATCH_BEGIN, REQUEST, &header(NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES), |_| {});
    batch.add(NEWTABLE, CREATE, &header(NFPROTO_INET, 0), |table| {
        table.text(NFTA_TABLE_NAME, TABLE);
    });
    let families: &[Family] = if has_six { &[FOUR, SIX] } else { &[FOUR] };
    chain(&mut batch, ARRIVING, (NF_INET_PRE_ROUTING, PRIORITY_MANGLE), NF_ACCEPT);
    if wanted.is_redirecting {
        rule(&mut batch, ARRIVING, |rule| rule.is_marked().verdict(NF_ACCEPT));
        rule(&mut batch, ARRIVING, |rule| rule.is_to_dns().assign(DNS_PORT).verdict(NF_ACCEPT));
        for family in families {
            rule(&mut batch, ARRIVING, |rule| {
                rule.is_family(family).has_loopback(family, family.destination, CMP_NEQ);
                rule.is_protocol(libc::IPPROTO_TCP).assign(GATE_PORT).verdict(NF_ACCEPT);
            });
        }
    }
    let policy = if wanted.is_dropping { NF_DROP } else { NF_ACCEPT };
    chain(&mut batch, LEAVING, (NF_INET_LOCAL_OUT, PRIORITY_FILTER), policy);
    if wanted.is_dropping {
        if !has_six {
            rule(&mut batch, LEAVING, |rule| rule.is_family(&SIX).verdict(NF_DROP));
        }
        rule(&mut batch, LEAVING, |rule| rule.is_protocol(libc::IPPROTO_TCP).verdict(NF_ACCEPT));
        rule(&mut batch, LEAVING, |rule| rule.is_marked().verdict(NF_ACCEPT));
        rule(&mut batch, LEAVING, |rule| rule.is_protocol(libc::IPPROTO_UDP).is_to_dns().verdict(NF_ACCEPT));
        for family in families {
            rule(&mut batch, LEAVING, |rule| {
                rule.is_family(family).has_loopback(family, family.source, CMP_EQ);
                rule.has_loopback(family, family.destination, CMP_EQ).verdict(NF_ACCEPT);
            });
        }
    }
    batch.add(BATCH_END, REQUEST, &header(NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES), |_| {});
    batch.finish()
}

/// Where to find addresses in packets of one family, and what the loopback's begin with.
struct Family {
    number: u8,
    loopback: &'static [u8],
    source: u32,
    destination: u32,
}

const FOUR: Family = Family { number: libc::AF_INET as u8, loopback: &[127], source: 12, destination: 16 };
const SIX: Family =
    Family { number: libc::AF_INET6 as u8, loopback: &Ipv6Addr::LOCALHOST.octets(), source: 8, destination: 24 };

/// `struct nfgenmsg`: family, version, and a subsystem in network byte order.
fn header(family: u8, subsystem: u16) -> [u8; 4] {
    let [high, low] = subsystem.to_be_bytes();
    [family, 0, high, low]
}

fn chain(batch: &mut Messages, name: &str, (hook, priority): (u32, i32), policy: u32) {
    batch.add(NEWCHAIN, CREATE, &header(NFPROTO_INET, 0), |chain| {
        chain.text(NFTA_CHAIN_TABLE, TABLE).text(NFTA_CHAIN_NAME, name).text(NFTA_CHAIN_TYPE, "filter");
        chain.number(NFTA_CHAIN_POLICY, policy).nested(NFTA_CHAIN_HOOK, |place| {
            place.number(NFTA_HOOK_HOOKNUM, hook).number(NFTA_HOOK_PRIORITY, priority as u32);
        });
    });
}

fn rule(batch: &mut Messages, chain: &str, expressions: impl FnOnce(&mut Expressions<'_, '_>)) {
    batch.add(NEWRULE, APPEND, &header(NFPROTO_INET, 0), |rule| {
        rule.text(NFTA_RULE_TABLE, TABLE).text(NFTA_RULE_CHAIN, chain);
        rule.nested(NFTA_RULE_EXPRESSIONS, |list| expressions(&mut Expressions(list)));
    });
}

/// The expressions of one rule, in order. The first that doesn't match ends the rule.
struct Expressions<'a, 'b>(&'a mut Attributes<'b>);

impl Expressions<'_, '_> {
    fn is_marked(&mut self) -> &mut Self {
        self.meta(NFT_META_MARK).compare(CMP_EQ, &MARK.to_ne_bytes())
    }

    fn is_family(&mut self, family: &Family) -> &mut Self {
        self.meta(NFT_META_NFPROTO).compare(CMP_EQ, &[family.number])
    }

    fn is_protocol(&mut self, protocol: i32) -> &mut Self {
        self.meta(NFT_META_L4PROTO).compare(CMP_EQ, &[protocol as u8])
    }

    /// The destination port has the same place in TCP and UDP.
    fn is_to_dns(&mut self) -> &mut Self {
        self.payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2).compare(CMP_EQ, &DNS_PORT.to_be_bytes())
    }

    fn has_loopback(&mut self, family: &Family, offset: u32, comparison: u32) -> &mut Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, offset, family.loopback.len() as u32);
        self.compare(comparison, family.loopback)
    }

    fn assign(&mut self, port: u16) -> &mut Self {
        self.immediate(NFT_REG_1, |data| {
            data.bytes(NFTA_DATA_VALUE, &port.to_be_bytes());
        });
        self.add("tproxy", |expression| {
            expression.number(NFTA_TPROXY_FAMILY, NFPROTO_UNSPEC.into()).number(NFTA_TPROXY_REG_PORT, NFT_REG_1);
        })
    }

    fn verdict(&mut self, verdict: u32) {
        self.immediate(NFT_REG_VERDICT, |data| {
            data.nested(NFTA_DATA_VERDICT, |code| {
                code.number(NFTA_VERDICT_CODE, verdict);
            });
        });
    }

    fn meta(&mut self, key: u32) -> &mut Self {
        self.add("meta", |expression| {
            expression.number(NFTA_META_DREG, NFT_REG_1).number(NFTA_META_KEY, key);
        })
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32) -> &mut Self {
        self.add("payload", |expression| {
            expression.number(NFTA_PAYLOAD_DREG, NFT_REG_1).number(NFTA_PAYLOAD_BASE, base);
            expression.number(NFTA_PAYLOAD_OFFSET, offset).number(NFTA_PAYLOAD_LEN, length);
        })
    }

    fn compare(&mut self, comparison: u32, value: &[u8]) -> &mut Self {
        self.add("cmp", |expression| {
            expression.number(NFTA_CMP_SREG, NFT_REG_1).number(NFTA_CMP_OP, comparison);
            expression.nested(NFTA_CMP_DATA, |data| {
                data.bytes(NFTA_DATA_VALUE, value);
            });
        })
    }

    fn immediate(&mut self, register: u32, value: impl FnOnce(&mut Attributes<'_>)) {
        self.add("immediate", |expression| {
            expression.number(NFTA_IMMEDIATE_DREG, register).nested(NFTA_IMMEDIATE_DATA, value);
        });
    }

    fn add(&mut self, name: &str, data: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        self.0.nested(NFTA_LIST_ELEM, |element| {
            element.text(NFTA_EXPR_NAME, name).nested(NFTA_EXPR_DATA, data);
        });
        self
    }
}

// Numbers of the kernel's interface (linux/netfilter/nfnetlink.h and nf_tables.h), most of which libc doesn't have.
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = NFNL_SUBSYS_NFTABLES << 8;
const NEWCHAIN: u16 = NFNL_SUBSYS_NFTABLES << 8 | 3;
const NEWRULE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 6;
const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NF_INET_PRE_ROUTING: u32 = 0;
const NF_INET_LOCAL_OUT: u32 = 3;
const PRIORITY_MANGLE: i32 = -150;
const PRIORITY_FILTER: i32 = 0;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFT_REG_VERDICT: u32 = 0;
const NFT_REG_1: u32 = 1;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFT_META_MARK: u32 = 3;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const NFTA_TPROXY_FAMILY: u16 = 1;
const NFTA_TPROXY_REG_PORT: u16 = 3;
