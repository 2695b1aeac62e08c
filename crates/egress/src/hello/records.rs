//! Puts the ClientHello together from TLS records, as bytes arrive.
//!
//! INVARIANT: `parsed` is the end of the last whole record in `raw`, and `message` holds the payload of all records up to
//! there. Each byte is looked at once, so a client that sends one byte per record costs no more than any other.

use super::{ClientHello, HelloError, message};

/// The most that a ClientHello may take, record headers included. The largest seen, with post-quantum key shares, have
/// less than 2 KiB.
pub const HELLO_MAX: usize = 16 * 1024;

const RECORD_HEADER: usize = 5;
const RECORD_MAX: usize = 16 * 1024;
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const MESSAGE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;

#[derive(Debug, Default)]
pub struct Records {
    raw: Vec<u8>,
    parsed: usize,
    message: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    Incomplete,
    Complete(ClientHello),
}

impl Records {
    /// Takes the next bytes of the connection. After an error or `Complete`, only [`Self::bytes`] is of use.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Progress, HelloError> {
        self.raw.extend_from_slice(bytes);
        loop {
            if let Some(length) = message_length(&self.message)? {
                if length > HELLO_MAX {
                    return Err(HelloError::TooLarge);
                }
                if self.message.len() >= length {
                    return self.complete(length).map(Progress::Complete);
                }
            }
            match self.next_record()? {
                Some(end) => {
                    self.message.extend_from_slice(&self.raw[self.parsed + RECORD_HEADER..end]);
                    self.parsed = end;
                }
                None if self.raw.len() > HELLO_MAX => return Err(HelloError::TooLarge),
                None => return Ok(Progress::Incomplete),
            }
        }
    }

    /// All bytes pushed so far.
    pub fn bytes(&self) -> &[u8] {
        &self.raw
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.raw
    }

    /// The end of the record at `parsed`, once it is there in full. Its header is checked as far as it is there.
    fn next_record(&self) -> Result<Option<usize>, HelloError> {
        let rest = &self.raw[self.parsed..];
        let (Some(&kind), first) = (rest.first(), self.parsed == 0) else { return Ok(None) };
        if kind != HANDSHAKE {
            return Err(if first { HelloError::NotTls } else { HelloError::Record });
        }
        if rest.get(1).is_some_and(|&major| major != 3) {
            return Err(if first { HelloError::NotTls } else { HelloError::Record });
        }
        if rest.get(2).is_some_and(|&minor| minor > 4) {
            return Err(HelloError::Record);
        }
        let Some(&[high, low]) = rest.get(3..RECORD_HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        // An empty handshake record is forbidden (RFC 8446, 5.1).
        if length == 0 || length > RECORD_MAX {
            return Err(HelloError::Record);
        }
        let end = self.parsed + RECORD_HEADER + length;
        Ok((self.raw.len() >= end).then_some(end))
    }

    fn complete(&self, length: usize) -> Result<ClientHello, HelloError> {
        if self.parsed > HELLO_MAX {
            return Err(HelloError::TooLarge);
        }
        // A client waits for the answer before its next handshake message. Early data may follow in records of its own.
        let next = self.raw.get(self.parsed);
        if self.message.len() > length
            || next.is_some_and(|kind| ![CHANGE_CIPHER_SPEC, APPLICATION_DATA].contains(kind))
        {
            return Err(HelloError::Trailing);
        }
        message::parse(&self.message[MESSAGE_HEADER..length])
    }
}

/// The length of the handshake message with its header, as soon as the header is there.
fn message_length(message: &[u8]) -> Result<Option<usize>, HelloError> {
    if message.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
        return Err(HelloError::NotClientHello);
    }
    let Some(&[_, high, middle, low]) = message.get(..MESSAGE_HEADER) else { return Ok(None) };
    let body = u32::from_be_bytes([0, high, middle, low]);
    Ok(Some(MESSAGE_HEADER + usize::try_from(body).map_err(|_| HelloError::TooLarge)?))
}
