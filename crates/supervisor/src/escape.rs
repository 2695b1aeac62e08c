//! Terminal escapes taken out of output that is shown on a terminal.
//!
//! A program in a sandbox must not be able to set the operator's clipboard (OSC 52), retitle the window, ask the terminal
//! to type an answer (DECRQSS, DA, title report), or move the cursor over what was printed before. What stays: printable
//! text, newline, carriage return, tab, backspace, and colours (CSI … m). Everything else is shown as a visible letter or dropped whole.

/// The state between two pieces of output: a sequence may be cut anywhere.
#[derive(Clone, Debug, Default)]
pub struct EscapeFilter {
    state: State,
    /// Bytes of a CSI sequence that may turn out to be a colour.
    sequence: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After a lead byte of UTF-8: so many continuation bytes follow.
    Utf8 { left: u8, lead: u8 },
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte, such as a choice of character set.
    Intermediate,
    /// Inside CSI.
    Control,
    /// Inside a string (OSC, DCS, APC, PM, SOS): all of it is dropped.
    Text8,
    /// Inside a string, after ESC.
    Text8Escape,
}

/// A colour sequence is short; anything longer is not one.
const SEQUENCE_MAX: usize = 64;
const ESC: u8 = 0x1b;
/// U+FFFD, for bytes that a terminal could read as a control.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

impl EscapeFilter {
    /// Passes on what is harmless.
    pub fn pass(&mut self, bytes: &[u8], mut out: impl FnMut(u8)) {
        if !saggar_jail::Rule::EscapeFilter.is_on() {
            return bytes.iter().copied().for_each(out);
        }
        for byte in bytes {
            self.step(*byte, &mut out);
        }
    }

    fn step(&mut self, byte: u8, out: &mut impl FnMut(u8)) {
        match self.state {
            State::Text => self.text(byte, out),
            State::Utf8 { left, lead } => self.continuation(left, lead, byte, out),
            State::Escape => {
                self.state = match byte {
                    b'[' => {
                        self.sequence.clear();
                        State::Control
                    }
                    b']' | b'P' | b'X' | b'^' | b'_' => State::Text8,
                    0x20..=0x2f => State::Intermediate,
                    ESC => State::Escape,
                    _ => State::Text,
                };
            }
            State::Intermediate => {
                if !(0x20..=0x2f).contains(&byte) {
                    self.state = State::Text;
                }
            }
            State::Control => self.control(byte, out),
            State::Text8 => match byte {
                0x07 => self.state = State::Text,
                ESC => self.state = State::Text8Escape,
                _ => {}
            },
            State::Text8Escape => {
                self.state = if byte == b'\\' { State::Text } else { State::Text8 };
            }
        }
    }

    fn text(&mut self, byte: u8, out: &mut impl FnMut(u8)) {
        match byte {
            ESC => self.state = State::Escape,
            b'\n' | b'\r' | b'\t' | 0x08 | 0x20..=0x7e => out(byte),
            0xc2..=0xdf => self.lead(1, byte),
            0xe0..=0xef => self.lead(2, byte),
            0xf0..=0xf4 => self.lead(3, byte),
            // Lone continuation bytes are the C1 controls of an 8-bit terminal.
            0x80..=0xff => REPLACEMENT.iter().for_each(|byte| out(*byte)),
            // The rest of C0 and DEL: bell, shift-out, enquiry and their like.
            _ => {}
        }
    }

    fn lead(&mut self, left: u8, lead: u8) {
        self.state = State::Utf8 { left, lead };
        self.sequence.clear();
        self.sequence.push(lead);
    }

    fn continuation(&mut self, left: u8, lead: u8, byte: u8, out: &mut impl FnMut(u8)) {
        if !(0x80..=0xbf).contains(&byte) {
            REPLACEMENT.iter().for_each(|byte| out(*byte));
            self.state = State::Text;
            return self.text(byte, out);
        }
        self.sequence.push(byte);
        if left > 1 {
            self.state = State::Utf8 { left: left - 1, lead };
            return;
        }
        self.state = State::Text;
        let shown = match std::str::from_utf8(&self.sequence) {
            // U+0080 to U+009F are the C1 controls; the bidirectional ones make text read as what it isn't.
            Ok(text) if !text.chars().any(is_hazard) => self.sequence.as_slice(),
            _ => REPLACEMENT,
        };
        shown.iter().for_each(|byte| out(*byte));
    }

    fn control(&mut self, byte: u8, out: &mut impl FnMut(u8)) {
        match byte {
            0x20..=0x3f if self.sequence.len() < SEQUENCE_MAX => self.sequence.push(byte),
            0x20..=0x3f => {}
            ESC => self.state = State::Escape,
            0x40..=0x7e => {
                self.state = State::Text;
                let is_colour =
                    byte == b'm' && self.sequence.iter().all(|byte| matches!(byte, b'0'..=b'9' | b';' | b':'));
                if is_colour && self.sequence.len() < SEQUENCE_MAX && !conceals(&self.sequence) {
                    [ESC, b'['].iter().chain(&self.sequence).chain(b"m").for_each(|byte| out(*byte));
                }
            }
            // A control inside a sequence ends it here, so that nothing is swallowed for ever.
            _ => {
                self.state = State::Text;
                self.text(byte, out);
            }
        }
    }
}

/// Where a cut falls in text that was filtered, which is made of whole characters and whole colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seam {
    /// Between two of them: something else may be written here.
    #[default]
    Whole,
    /// Inside of a colour.
    Colour,
    /// Inside of a character, before so many bytes.
    Character { left: u8 },
}

impl Seam {
    /// The place one byte further.
    pub(crate) fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Colour, b'm') | (Self::Character { left: 0 | 1 }, _) => Self::Whole,
            (Self::Colour, _) | (Self::Whole, ESC) => Self::Colour,
            (Self::Character { left }, _) => Self::Character { left: left - 1 },
            (Self::Whole, 0xc0..=0xdf) => Self::Character { left: 1 },
            (Self::Whole, 0xe0..=0xef) => Self::Character { left: 2 },
            (Self::Whole, 0xf0..=0xff) => Self::Character { left: 3 },
            (Self::Whole, _) => Self::Whole,
        }
    }
}

/// Whether a colour sequence makes text invisible. An 8 that belongs to a longer colour, after 38, 48 or 58, is not one that conceals; one
/// that comes after the whole of it is.
fn conceals(sequence: &[u8]) -> bool {
    let is = |part: &[u8], number: &[u8]| part.iter().skip_while(|byte| **byte == b'0').eq(number);
    let mut parts = sequence.split(|byte| *byte == b';');
    while let Some(part) = parts.next() {
        let mut numbers = part.split(|byte| *byte == b':');
        if !numbers.clone().next().is_some_and(|first| [b"38", b"48", b"58"].iter().any(|long| is(first, *long))) {
            if numbers.any(|number| is(number, b"8")) {
                return true;
            }
            continue;
        }
        // With colons it is one part. Otherwise its kind and its numbers are the next ones, if all of them are there.
        let mut ahead = parts.clone();
        let length = match ahead.next() {
            _ if part.contains(&b':') => 0,
            Some(kind) if is(kind, b"5") => 2,
            Some(kind) if is(kind, b"2") => 4,
            _ => 0,
        };
        if length > 0 && parts.clone().count() >= length {
            parts.nth(length - 1);
        }
    }
    false
}

fn is_hazard(character: char) -> bool {
    matches!(character, '\u{80}'..='\u{9f}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[u8], expected: &[u8]) {
        let mut whole = Vec::new();
        EscapeFilter::default().pass(input, |byte| whole.push(byte));
        assert_eq!(whole, expected, "{:?}", String::from_utf8_lossy(input));
        let (mut filter, mut pieces) = (EscapeFilter::default(), Vec::new());
        for byte in input {
            filter.pass(&[*byte], |byte| pieces.push(byte));
        }
        assert_eq!(pieces, expected, "cut after every byte: {:?}", String::from_utf8_lossy(input));
    }

    #[test]
    fn text_and_colours_pass() {
        check("plain\r\n\tüñ€😀 ok\x08".as_bytes(), "plain\r\n\tüñ€😀 ok\x08".as_bytes());
        check(b"\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m");
        check(b"\x1b[38:2:1:2:3mx\x1b[m", b"\x1b[38:2:1:2:3mx\x1b[m");
    }

    #[test]
    fn what_acts_on_the_terminal_is_gone() {
        check(b"a\x1b]52;c;ZXZpbA==\x07b", b"ab");
        check(b"a\x1b]0;title\x1b\\b", b"ab");
        check(b"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", b"alinkb");
        check(b"a\x1bP$qm\x1b\\b", b"ab");
        check(b"a\x1b[2J\x1b[H\x1b[6n\x1b[?1049hb", b"ab");
        check(b"a\x1b[>4;2mb\x1b[?1mc", b"abc");
        check(b"a\x1b[8mb\x1b[0;08mc\x1b[38;5;8md", b"abc\x1b[38;5;8md");
        check(b"a\x1b[38;5;1;8mb\x1b[48;2;1;2;3;8mc\x1b[1:8md\x1b[38;8me\x1b[38;2;1;8mf", b"abcdef");
        check(b"\x1b[48;2;8;8;8m\x1b[38:5:8m\x1b[58;5;8;1m", b"\x1b[48;2;8;8;8m\x1b[38:5:8m\x1b[58;5;8;1m");
        check(b"a\x1bcb\x1b(0c\x1b#8d", b"abcd");
        check(b"a\x07\x0e\x05\x7f\x00b", b"ab");
        check(b"a\x9b2Jb\x9d0;t\x07c", "a\u{fffd}2Jb\u{fffd}0;tc".as_bytes());
        check("a\u{9b}2Jb".as_bytes(), "a\u{fffd}2Jb".as_bytes());
        check("a\u{202e}b".as_bytes(), "a\u{fffd}b".as_bytes());
    }

    #[test]
    fn a_cut_is_seen_wherever_it_falls() {
        let places = |text: &str| -> String {
            let mut seam = Seam::default();
            let mut is_whole = |byte| {
                seam = seam.after(byte);
                seam == Seam::Whole
            };
            text.bytes().map(|byte| if is_whole(byte) { '|' } else { '.' }).collect()
        };
        assert_eq!(places("ab\x1b[1;31mmc\x1b[md"), "||......|||..||");
        assert_eq!(places("ü€😀\u{fffd}x\n"), ".|..|...|..|||");
    }

    #[test]
    fn broken_sequences_hide_nothing_that_follows() {
        check(b"a\x1b[12\nb", b"a\nb");
        check(b"a\xe2\x82b", "a\u{fffd}b".as_bytes());
        check(b"a\xff\xc0b", "a\u{fffd}\u{fffd}b".as_bytes());
        check(b"a\x1b\x1b[0mb", b"a\x1b[0mb");
    }
}
