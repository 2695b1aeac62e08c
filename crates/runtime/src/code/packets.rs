//! Separates what code prints from what its kernel tells.
//!
//! Both come on the same stream. A kernel tells a message in packets, each written at once and so short that the
//! kernel of Linux lets nothing come between its bytes:
//!
//! ```text
//!  NUL "saggar:" NONCE ":" ("m" | "e") LENGTH ":" PAYLOAD      e: the last packet of its message
//! ```
//! The nonce is new for every execution, so nothing that a program prints by chance or from memory is a packet. Code
//! that looks for the nonce can forge packets, and then lies about its own execution only.

/// Longest packet, as Linux writes it to a pipe at once.
const PACKET_MAX: usize = 4096;
/// Maximum length of a message.
const MESSAGE_MAX: usize = 16 << 20;
/// `e` or `m`, four digits and a colon.
const KIND_LEN: usize = 6;

/// A part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Printed(Vec<u8>),
    Message(Vec<u8>),
}

/// A message is longer than any kernel's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// One stream of one execution.
#[derive(Debug)]
pub(super) struct Packets {
    prefix: Vec<u8>,
    /// What may be the beginning of a packet.
    held: Vec<u8>,
    message: Vec<u8>,
}

enum Found {
    Packet { is_last: bool, from: usize, to: usize },
    Nothing,
    Unfinished,
}

impl Packets {
    pub(super) fn new(nonce: &str) -> Self {
        Self { prefix: format!("\0saggar:{nonce}:").into_bytes(), held: Vec::new(), message: Vec::new() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Piece>, TooLong> {
        self.held.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        let mut printed = Vec::new();
        let mut at = 0;
        while at < self.held.len() {
            let rest = &self.held[at..];
            let text = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
            printed.extend_from_slice(&rest[..text]);
            at += text;
            match self.found(at) {
                Found::Unfinished => break,
                Found::Nothing => {
                    printed.push(0);
                    at += 1;
                }
                Found::Packet { is_last, from, to } => {
                    if self.message.len() + (to - from) > MESSAGE_MAX {
                        return Err(TooLong);
                    }
                    self.message.extend_from_slice(&self.held[from..to]);
                    at = to;
                    if is_last {
                        if !printed.is_empty() {
                            pieces.push(Piece::Printed(std::mem::take(&mut printed)));
                        }
                        pieces.push(Piece::Message(std::mem::take(&mut self.message)));
                    }
                }
            }
        }
        self.held.drain(..at);
        if !printed.is_empty() {
            pieces.push(Piece::Printed(printed));
        }
        Ok(pieces)
    }

    /// What was held back, at the end of the stream.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Bytes of the stream are missing here.
    pub(super) fn skip(&mut self) {
        self.held.clear();
        self.message.clear();
    }

    /// What begins with the NUL at this place, or with the end of what there is.
    fn found(&self, at: usize) -> Found {
        let rest = &self.held[at..];
        let known = rest.len().min(self.prefix.len());
        if rest[..known] != self.prefix[..known] {
            return Found::Nothing;
        }
        let Some(header) = rest.get(self.prefix.len()..self.prefix.len() + KIND_LEN) else {
            return Found::Unfinished;
        };
        let digits = std::str::from_utf8(&header[1..5]).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let length = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let (Some(length), b'e' | b'm', b':') = (length, header[0], header[5]) else { return Found::Nothing };
        let whole = self.prefix.len() + KIND_LEN + length;
        if whole > PACKET_MAX {
            return Found::Nothing;
        }
        if rest.len() < whole {
            return Found::Unfinished;
        }
        Found::Packet { is_last: header[0] == b'e', from: at + whole - length, to: at + whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &str = "0123456789abcdef0123456789abcdef";

    fn packet(nonce: &str, kind: char, payload: &str) -> Vec<u8> {
        format!("\0saggar:{nonce}:{kind}{:04x}:{payload}", payload.len()).into_bytes()
    }

    /// The same, however the stream is cut.
    fn check(stream: &[u8], expected: &[(&str, bool)]) {
        for size in [1, 2, 3, 7, 50, 4096, stream.len().max(1)] {
            let mut packets = Packets::new(NONCE);
            let mut seen: Vec<(Vec<u8>, bool)> = Vec::new();
            for piece in stream.chunks(size).flat_map(|bytes| packets.push(bytes).unwrap()) {
                match (piece, seen.last_mut()) {
                    (Piece::Printed(bytes), Some((last, false))) => last.extend(bytes),
                    (Piece::Printed(bytes), _) => seen.push((bytes, false)),
                    (Piece::Message(bytes), _) => seen.push((bytes, true)),
                }
            }
            let rest = packets.rest();
            if !rest.is_empty() {
                match seen.last_mut() {
                    Some((last, false)) => last.extend(rest),
                    _ => seen.push((rest, false)),
                }
            }
            let seen: Vec<_> = seen.iter().map(|(bytes, told)| (std::str::from_utf8(bytes).unwrap(), *told)).collect();
            assert_eq!(seen, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_printed_and_what_is_told_come_apart_and_in_order() {
        let stream = [
            b"a\n".to_vec(),
            packet(NONCE, 'm', "{\"x\""),
            // Another process prints in the middle of a message.
            b"b\n".to_vec(),
            packet(NONCE, 'e', ":1}"),
            packet(NONCE, 'e', "2"),
            b"c".to_vec(),
        ]
        .concat();
        check(&stream, &[("a\nb\n", false), ("{\"x\":1}", true), ("2", true), ("c", false)]);
    }

    #[test]
    fn what_only_looks_like_a_packet_is_printed() {
        let other = packet(&"f".repeat(32), 'e', "{}");
        let text = String::from_utf8(other.clone()).unwrap();
        check(&other, &[(&text, false)]);
        for wrong in ["x0002:{}", "e00g2:{}", "e0002;{}", "effff:{}", "e+002:{}"] {
            let text = format!("\0saggar:{NONCE}:{wrong}");
            check(text.as_bytes(), &[(&text, false)]);
        }
        check(b"\0\0\0", &[("\0\0\0", false)]);
        check(b"\0saggar:", &[("\0saggar:", false)]);
    }

    #[test]
    fn a_message_without_end_is_refused() {
        let mut packets = Packets::new(NONCE);
        let piece = packet(NONCE, 'm', &"x".repeat(4000));
        let mut pushed = 0;
        while packets.push(&piece).is_ok() {
            pushed += 4000;
            assert!(pushed <= MESSAGE_MAX, "a message may be this long");
        }
        assert!(pushed > MESSAGE_MAX - 4001);
    }

    #[test]
    fn after_missing_bytes_the_next_whole_packet_counts() {
        let mut packets = Packets::new(NONCE);
        packets.push(&packet(NONCE, 'm', "lost")).unwrap();
        packets.skip();
        let pieces = packets.push(&packet(NONCE, 'e', "{}")).unwrap();
        assert_eq!(pieces, [Piece::Message(b"{}".to_vec())]);
    }
}
