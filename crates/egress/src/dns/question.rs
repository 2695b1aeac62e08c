//! Reads a question from a sandbox (RFC 1035, 4.1; RFC 6891).
//!
//! Accepts exactly what resolvers send: one question, whose name isn't compressed, and at most one OPT record. Everything
//! else is refused with the code that the protocol has for it.

use std::fmt;

use crate::bytes::Cursor;
use crate::dns::answer::Outcome;

/// The longest message that is read. A question with its options takes far less.
pub(super) const QUESTION_MAX: usize = 1232;

pub(super) const HEADER: usize = 12;
pub(super) const TYPE_A: u16 = 1;
pub(super) const TYPE_AAAA: u16 = 28;
pub(super) const TYPE_OPT: u16 = 41;
pub(super) const CLASS_IN: u16 = 1;
pub(super) const FLAG_ANSWER: u16 = 0x8000;
pub(super) const FLAG_TRUNCATED: u16 = 0x0200;
pub(super) const FLAG_RECURSION_DESIRED: u16 = 0x0100;
pub(super) const OPCODE: u16 = 0x7800;
/// IXFR, AXFR, MAILB, MAILA, ANY: requests for more than one type.
const META_TYPES: std::ops::RangeInclusive<u16> = 251..=255;
const NAME_MAX: usize = 255;
const LABEL_MAX: u8 = 63;

/// A well-formed question.
#[derive(Clone, PartialEq, Eq)]
pub struct Question<'a> {
    pub id: u16,
    pub recursion_desired: bool,
    /// The name in wire form, as sent: upper case is kept, because clients compare.
    pub name: &'a [u8],
    pub asked: Asked,
    pub opt: Option<Opt>,
}

/// What is asked about the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    A,
    Aaaa,
    /// A single type of which we have no records.
    Other(u16),
}

impl Asked {
    pub(super) fn code(self) -> u16 {
        match self {
            Self::A => TYPE_A,
            Self::Aaaa => TYPE_AAAA,
            Self::Other(code) => code,
        }
    }
}

/// The client speaks EDNS. Nothing in its record matters here: no answer exceeds 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionError<'a> {
    /// Has no header, or is an answer: to reply could start a loop.
    Ignored,
    /// To be replied to with this code. The question is there if it could be read, and is then part of the reply.
    Refused { id: u16, flags: u16, outcome: Outcome, question: Option<Question<'a>> },
}

impl<'a> Question<'a> {
    pub fn parse(message: &'a [u8]) -> Result<Self, QuestionError<'a>> {
        let mut cursor = Cursor::new(message);
        let (id, flags, counts) = header(&mut cursor).ok_or(QuestionError::Ignored)?;
        if flags & FLAG_ANSWER != 0 {
            return Err(QuestionError::Ignored);
        }
        let refused = |outcome, question| QuestionError::Refused { id, flags, outcome, question };
        if flags & OPCODE != 0 {
            return Err(refused(Outcome::NotImplemented, None));
        }
        let malformed = || refused(Outcome::Malformed, None);
        let [questions, answers, authorities, additional] = counts;
        let expected = questions == 1 && answers == 0 && authorities == 0 && additional <= 1;
        if !expected || flags & FLAG_TRUNCATED != 0 || message.len() > QUESTION_MAX {
            return Err(malformed());
        }

        let name = name(message, &mut cursor).ok_or_else(malformed)?;
        let (Some(kind), Some(class)) = (cursor.u16(), cursor.u16()) else { return Err(malformed()) };
        let version = if additional == 1 { Some(opt(&mut cursor).ok_or_else(malformed)?) } else { None };
        if !cursor.is_empty() {
            return Err(malformed());
        }

        let asked = match kind {
            TYPE_A => Asked::A,
            TYPE_AAAA => Asked::Aaaa,
            other => Asked::Other(other),
        };
        let recursion_desired = flags & FLAG_RECURSION_DESIRED != 0;
        let question = Self { id, recursion_desired, name, asked, opt: version.map(|_| Opt) };
        if version.is_some_and(|version| version != 0) {
            return Err(refused(Outcome::BadVersion, Some(question)));
        }
        if class != CLASS_IN || META_TYPES.contains(&kind) || kind == TYPE_OPT {
            // The reply repeats the question with class IN, so it is left out where that would be another question.
            return Err(refused(Outcome::Refused, (class == CLASS_IN).then_some(question)));
        }
        Ok(question)
    }

    /// The name as text, without a trailing dot. `None` if a label has a dot of its own, or the name is the root.
    pub fn text(&self) -> Option<Vec<u8>> {
        let mut text = Vec::with_capacity(self.name.len());
        let mut cursor = Cursor::new(self.name);
        while let Some(label) = cursor.vector8().filter(|label| !label.is_empty()) {
            if label.contains(&b'.') {
                return None;
            }
            if !text.is_empty() {
                text.push(b'.');
            }
            text.extend_from_slice(label);
        }
        (!text.is_empty()).then_some(text)
    }
}

impl fmt::Debug for Question<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_ascii();
        write!(f, "Question({:#06x} {name} {:?} rd={} {:?})", self.id, self.asked, self.recursion_desired, self.opt)
    }
}

fn header(cursor: &mut Cursor<'_>) -> Option<(u16, u16, [u16; 4])> {
    Some((cursor.u16()?, cursor.u16()?, [cursor.u16()?, cursor.u16()?, cursor.u16()?, cursor.u16()?]))
}

/// The name that follows the header, with its final empty label. A compression pointer is no label.
fn name<'a>(message: &'a [u8], cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let mut length = 0;
    loop {
        let label = cursor.u8().filter(|&label| label <= LABEL_MAX)?;
        cursor.take(label.into())?;
        length += 1 + usize::from(label);
        if length > NAME_MAX {
            return None;
        }
        if label == 0 {
            return message.get(HEADER..HEADER + length);
        }
    }
}

/// The version of an OPT record that ends the message. Its options are skipped.
fn opt(cursor: &mut Cursor<'_>) -> Option<u8> {
    let (root, kind, _size) = (cursor.u8()?, cursor.u16()?, cursor.u16()?);
    let [_extended_code, version, _, _] = cursor.u32()?.to_be_bytes();
    cursor.vector16()?;
    (root == 0 && kind == TYPE_OPT).then_some(version)
}
