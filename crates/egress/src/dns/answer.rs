//! Writes replies. Every reply fits into [`ANSWER_MAX`] bytes, so none is ever truncated and no reply is much larger than
//! its question.

use std::net::IpAddr;

use crate::dns::question::{
    CLASS_IN, FLAG_ANSWER, FLAG_RECURSION_DESIRED, HEADER, OPCODE, Question, QuestionError, TYPE_A, TYPE_AAAA, TYPE_OPT,
};

/// Header, a name of 255 bytes with type and class, one address, and OPT.
pub const ANSWER_MAX: usize = HEADER + 255 + 4 + 12 + 16 + 11;

/// Seconds. Short, because a program that outlives a restore of its sandbox must ask again.
const TTL: u32 = 5;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
/// A pointer to the question's name, which always follows the header.
const NAME_OF_QUESTION: u16 = 0xc000 | HEADER as u16;
/// What we tell EDNS clients to send at most.
const UDP_SIZE: u16 = 1232;

/// How a question ends. The numbers are the codes of RFC 1035 and RFC 6891.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Also without records: the name exists, with records of other types.
    Ok = 0,
    Malformed = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
    BadVersion = 16,
}

/// The address in an answer; at most one.
pub type Record = Option<IpAddr>;

/// A reply to a question that could be read. The record must be of the type that was asked for.
pub(super) fn write(question: &Question<'_>, outcome: Outcome, record: Record) -> Vec<u8> {
    let flags = if question.recursion_desired { FLAG_RECURSION_DESIRED } else { 0 };
    let mut reply = header(question.id, flags, outcome, [1, record.is_some().into(), 0, question.opt.is_some().into()]);
    reply.extend_from_slice(question.name);
    reply.extend(question.asked.code().to_be_bytes());
    reply.extend(CLASS_IN.to_be_bytes());
    if let Some(address) = record {
        let kind = if address.is_ipv4() { TYPE_A } else { TYPE_AAAA };
        reply.extend(NAME_OF_QUESTION.to_be_bytes());
        reply.extend(kind.to_be_bytes());
        reply.extend(CLASS_IN.to_be_bytes());
        reply.extend(TTL.to_be_bytes());
        match address {
            IpAddr::V4(v4) => extend_vector16(&mut reply, &v4.octets()),
            IpAddr::V6(v6) => extend_vector16(&mut reply, &v6.octets()),
        }
    }
    if question.opt.is_some() {
        reply.push(0);
        reply.extend(TYPE_OPT.to_be_bytes());
        reply.extend(UDP_SIZE.to_be_bytes());
        // The upper bits of the code, version 0, no flags, no options.
        reply.extend([(outcome as u16 >> 4) as u8, 0, 0, 0, 0, 0]);
    }
    reply
}

/// The reply to what isn't an acceptable question, if there is to be one.
pub(super) fn refuse(error: &QuestionError<'_>) -> Option<Vec<u8>> {
    match error {
        QuestionError::Ignored => None,
        QuestionError::Refused { outcome, question: Some(question), .. } => Some(write(question, *outcome, None)),
        QuestionError::Refused { id, flags, outcome, question: None } => {
            Some(header(*id, flags & (OPCODE | FLAG_RECURSION_DESIRED), *outcome, [0; 4]))
        }
    }
}

fn header(id: u16, flags: u16, outcome: Outcome, counts: [u16; 4]) -> Vec<u8> {
    let mut reply = Vec::with_capacity(ANSWER_MAX);
    let flags = FLAG_ANSWER | FLAG_RECURSION_AVAILABLE | flags | (outcome as u16 & 0xf);
    for value in [id, flags].into_iter().chain(counts) {
        reply.extend(value.to_be_bytes());
    }
    reply
}

fn extend_vector16(reply: &mut Vec<u8>, bytes: &[u8]) {
    reply.extend((bytes.len() as u16).to_be_bytes());
    reply.extend_from_slice(bytes);
}
