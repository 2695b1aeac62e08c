//! The messages to and from a name server: a question for the addresses of a name, and as much of the reply as is needed.
//!
//! A reply is read with the suspicion that a question from a sandbox gets: a name server can belong to an attacker. Pointers must
//! lead backwards, names and records are counted, and a reply to another question is no reply.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use saggar_domain::net::HostName;

use crate::bytes::Cursor;

/// The longest reply that is read over TCP.
pub(super) const REPLY_MAX: usize = 16 * 1024;
/// The longest that a server may send over UDP: fits every path.
pub(super) const UDP_MAX: u16 = 1232;
/// Records of the answer section that are looked at.
const RECORDS_MAX: u16 = 256;
const POINTERS_MAX: usize = 32;
const NAME_MAX: usize = 255;
const HEADER: usize = 12;
const CLASS_IN: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_OPT: u16 = 41;
const FLAGS_QUERY: u16 = 0x0100; // recursion desired
const FLAG_ANSWER: u16 = 0x8000;
const FLAG_TRUNCATED: u16 = 0x0200;
const OPCODE: u16 = 0x7800;
const CODE: u16 = 0x000f;

/// A name in wire form, lower-case, without compression. It need not be a host's: aliases may have any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireName(Vec<u8>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub id: u16,
    pub name: WireName,
    pub family: Family,
}

/// The answer section of a reply, records of other types left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// 0 is success, 3 that there is no such name.
    pub code: u8,
    /// Not all records fitted: ask again over TCP.
    pub truncated: bool,
    pub addresses: Vec<(WireName, u32, IpAddr)>,
    pub aliases: Vec<Alias>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    pub owner: WireName,
    pub ttl: u32,
    pub target: WireName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    #[error("the reply is malformed")]
    Malformed,
    /// Perhaps forged, perhaps late: go on waiting.
    #[error("the reply belongs to another question")]
    Stranger,
}

impl From<&HostName> for WireName {
    fn from(name: &HostName) -> Self {
        let mut wire = Vec::with_capacity(name.as_str().len() + 2);
        for label in name.as_str().split('.') {
            wire.push(label.len() as u8);
            wire.extend_from_slice(label.as_bytes());
        }
        wire.push(0);
        Self(wire)
    }
}

impl WireName {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Family {
    fn code(self) -> u16 {
        match self {
            Self::V4 => 1,
            Self::V6 => 28,
        }
    }
}

impl Query {
    pub fn encode(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + self.name.0.len() + 4 + 11);
        for value in [self.id, FLAGS_QUERY, 1, 0, 0, 1] {
            message.extend(value.to_be_bytes());
        }
        message.extend_from_slice(&self.name.0);
        message.extend(self.family.code().to_be_bytes());
        message.extend(CLASS_IN.to_be_bytes());
        message.push(0);
        message.extend(TYPE_OPT.to_be_bytes());
        message.extend(UDP_MAX.to_be_bytes());
        message.extend([0; 6]);
        message
    }

    /// Reads a reply to this question.
    pub fn parse_reply(&self, message: &[u8]) -> Result<Reply, ReplyError> {
        let mut cursor = Cursor::new(message);
        let (flags, questions, answers) = self.header(&mut cursor).ok_or(ReplyError::Stranger)?;
        let code = (flags & CODE) as u8;
        let truncated = flags & FLAG_TRUNCATED != 0;
        let mut reply = Reply { code, truncated, addresses: Vec::new(), aliases: Vec::new() };
        // A server that can't even read the question may leave it out. Only its refusal counts then.
        if questions == 0 {
            return if code == 0 { Err(ReplyError::Malformed) } else { Ok(reply) };
        }
        let mut at = HEADER;
        let name = read_name(message, &mut at).ok_or(ReplyError::Malformed)?;
        let mut cursor = Cursor::new(message.get(at..).ok_or(ReplyError::Malformed)?);
        if questions != 1
            || name != self.name
            || cursor.u16() != Some(self.family.code())
            || cursor.u16() != Some(CLASS_IN)
        {
            return Err(ReplyError::Stranger);
        }
        at += 4;
        if answers > RECORDS_MAX {
            return Err(ReplyError::Malformed);
        }
        for _ in 0..answers {
            match self.record(message, &mut at, &mut reply) {
                Some(()) => {}
                // What was cut off isn't needed.
                None if truncated => break,
                None => return Err(ReplyError::Malformed),
            }
        }
        Ok(reply)
    }

    fn header(&self, cursor: &mut Cursor<'_>) -> Option<(u16, u16, u16)> {
        let (id, flags, questions, answers) = (cursor.u16()?, cursor.u16()?, cursor.u16()?, cursor.u16()?);
        cursor.u32()?;
        let ours = id == self.id && flags & FLAG_ANSWER != 0 && flags & OPCODE == 0;
        ours.then_some((flags, questions, answers))
    }

    fn record(&self, message: &[u8], at: &mut usize, reply: &mut Reply) -> Option<()> {
        let owner = read_name(message, at)?;
        let mut cursor = Cursor::new(message.get(*at..)?);
        let (kind, class, ttl) = (cursor.u16()?, cursor.u16()?, cursor.u32()?);
        let data = cursor.vector16()?;
        let start = *at + 10;
        *at = start + data.len();
        if class != CLASS_IN {
            return Some(());
        }
        if kind == self.family.code() {
            let address = match self.family {
                Family::V4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?)),
                Family::V6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?)),
            };
            reply.addresses.push((owner, ttl, address));
        } else if kind == TYPE_CNAME {
            let mut end = start;
            let target = read_name(message, &mut end)?;
            if end != *at {
                return None;
            }
            reply.aliases.push(Alias { owner, ttl, target });
        }
        Some(())
    }
}

/// The name at `at`, which is moved behind it.
fn read_name(message: &[u8], at: &mut usize) -> Option<WireName> {
    let mut wire = Vec::new();
    let mut position = *at;
    let mut pointers = 0;
    loop {
        let length = *message.get(position)?;
        match length {
            0 => {
                wire.push(0);
                if pointers == 0 {
                    *at = position + 1;
                }
                return Some(WireName(wire));
            }
            1..=63 => {
                let label = message.get(position + 1..position + 1 + usize::from(length))?;
                wire.push(length);
                wire.extend(label.iter().map(u8::to_ascii_lowercase));
                if wire.len() >= NAME_MAX {
                    return None;
                }
                position += 1 + usize::from(length);
            }
            0xc0.. => {
                let low = *message.get(position + 1)?;
                if pointers == 0 {
                    *at = position + 2;
                }
                pointers += 1;
                let target = usize::from(u16::from_be_bytes([length & 0x3f, low]));
                // Backwards only, so it ends.
                if target >= position || pointers > POINTERS_MAX {
                    return None;
                }
                position = target;
            }
            _ => return None,
        }
    }
}
