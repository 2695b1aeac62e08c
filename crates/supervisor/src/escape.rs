//! Removes terminal escape sequences from output that is shown on a terminal.
//!
//! A program in a sandbox must not be able to set the operator's clipboard (OSC 52), change the window title, make the
//! terminal type an answer (DECRQSS, DA, title report), or move the cursor over earlier output. Printable text,
//! newline, carriage return, tab, backspace, and colours (CSI … m) pass. Everything else is shown as a visible
//! character or dropped entirely.
//!
//! A program with its own terminal may also use the whole screen ([`EscapeFilter::for_screen`]), again by an allowlist.

mod screen;

/// The state between two pieces of output: a sequence may be cut anywhere.
#[derive(Clone, Debug, Default)]
pub struct EscapeFilter {
    state: EscapeState,
    /// Bytes of a sequence that may turn out to be harmless; at most [`SEQUENCE_MAX`].
    sequence: Vec<u8>,
    keeps: Keeps,
}

/// What passes in addition to text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keeps {
    /// Colours: new output only ever follows earlier output.
    #[default]
    Colours,
    /// Everything that full-screen programs need.
    Screen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EscapeState {
    #[default]
    Text,
    /// After a lead byte of UTF-8: this many continuation bytes follow.
    Utf8 {
        left: u8,
        lead: u8,
    },
    Escape,
    /// After ESC and an intermediate byte, such as one that selects a character set.
    Intermediate,
    Control,
    /// Inside a string (OSC, DCS, APC, PM, SOS): all of it is dropped.
    Text8,
    /// Inside a string, after ESC.
    Text8Escape,
}

/// Sequences that pass are short; anything longer is not one of them.
const SEQUENCE_MAX: usize = 64;
const ESC: u8 = 0x1b;
/// U+FFFD, in place of bytes that a terminal could take for a control.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

impl EscapeFilter {
    /// For a program that has the terminal to itself: it controls the screen, and nothing else of the terminal.
    pub fn for_screen() -> Self {
        Self { keeps: Keeps::Screen, ..Self::default() }
    }

    /// Passes on harmless bytes.
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
            EscapeState::Text => self.text(byte, out),
            EscapeState::Utf8 { left, lead } => self.continuation(left, lead, byte, out),
            EscapeState::Escape => {
                self.state = match byte {
                    b'[' => {
                        self.sequence.clear();
                        EscapeState::Control
                    }
                    b']' | b'P' | b'X' | b'^' | b'_' => EscapeState::Text8,
                    0x20..=0x2f => {
                        self.sequence.clear();
                        self.sequence.push(byte);
                        EscapeState::Intermediate
                    }
                    ESC => EscapeState::Escape,
                    _ => {
                        self.sequence.clear();
                        self.end_escape(byte, out);
                        EscapeState::Text
                    }
                };
            }
            EscapeState::Intermediate => match byte {
                0x20..=0x2f if self.sequence.len() < SEQUENCE_MAX => self.sequence.push(byte),
                0x20..=0x2f => {}
                ESC => self.state = EscapeState::Escape,
                _ => {
                    self.end_escape(byte, out);
                    self.state = EscapeState::Text;
                }
            },
            EscapeState::Control => self.control(byte, out),
            EscapeState::Text8 => match byte {
                // The terminator, or a byte that cancels a string. None of the string was passed on, so the terminal is
                // not inside one.
                0x07 | 0x18 | 0x1a => self.state = EscapeState::Text,
                ESC => self.state = EscapeState::Text8Escape,
                _ => {}
            },
            EscapeState::Text8Escape if byte == b'\\' => self.state = EscapeState::Text,
            // Another sequence begins here and ends the string.
            EscapeState::Text8Escape => {
                self.state = EscapeState::Escape;
                self.step(byte, out);
            }
        }
    }

    fn end_escape(&mut self, last: u8, out: &mut impl FnMut(u8)) {
        let is_whole = self.sequence.len() < SEQUENCE_MAX;
        if self.keeps == Keeps::Screen && is_whole && screen::escape(&self.sequence, last) {
            [ESC].iter().chain(&self.sequence).chain(&[last]).for_each(|byte| out(*byte));
        }
    }

    fn text(&mut self, byte: u8, out: &mut impl FnMut(u8)) {
        match byte {
            ESC => self.state = EscapeState::Escape,
            b'\n' | b'\r' | b'\t' | 0x08 | 0x20..=0x7e => out(byte),
            // The bell, and the choice between two character sets.
            0x07 | 0x0e | 0x0f if self.keeps == Keeps::Screen => out(byte),
            0xc2..=0xdf => self.lead(1, byte),
            0xe0..=0xef => self.lead(2, byte),
            0xf0..=0xf4 => self.lead(3, byte),
            // Lone continuation bytes are the C1 controls of an 8-bit terminal.
            0x80..=0xff => REPLACEMENT.iter().for_each(|byte| out(*byte)),
            // The rest of C0, and DEL: bell, shift-out, enquiry and the like.
            _ => {}
        }
    }

    fn lead(&mut self, left: u8, lead: u8) {
        self.state = EscapeState::Utf8 { left, lead };
        self.sequence.clear();
        self.sequence.push(lead);
    }

    fn continuation(&mut self, left: u8, lead: u8, byte: u8, out: &mut impl FnMut(u8)) {
        if !(0x80..=0xbf).contains(&byte) {
            REPLACEMENT.iter().for_each(|byte| out(*byte));
            self.state = EscapeState::Text;
            return self.text(byte, out);
        }
        self.sequence.push(byte);
        if left > 1 {
            self.state = EscapeState::Utf8 { left: left - 1, lead };
            return;
        }
        self.state = EscapeState::Text;
        let shown = match std::str::from_utf8(&self.sequence) {
            // U+0080 to U+009F are the C1 controls; bidirectional controls make text look like something else.
            Ok(text) if !text.chars().any(is_hazard) => self.sequence.as_slice(),
            _ => REPLACEMENT,
        };
        shown.iter().for_each(|byte| out(*byte));
    }

    fn control(&mut self, byte: u8, out: &mut impl FnMut(u8)) {
        match byte {
            0x20..=0x3f if self.sequence.len() < SEQUENCE_MAX => self.sequence.push(byte),
            0x20..=0x3f => {}
            ESC => self.state = EscapeState::Escape,
            0x40..=0x7e => {
                self.state = EscapeState::Text;
                let is_whole = self.sequence.len() < SEQUENCE_MAX;
                let is_wanted = self.keeps == Keeps::Screen || byte == b'm';
                let shown = if is_whole && is_wanted { screen::control(&self.sequence, byte) } else { Vec::new() };
                if !shown.is_empty() {
                    [ESC, b'['].iter().chain(&shown).for_each(|byte| out(*byte));
                }
            }
            // A control inside a sequence ends it here, so that output is not swallowed forever.
            _ => {
                self.state = EscapeState::Text;
                self.text(byte, out);
            }
        }
    }
}

/// Where a cut falls in filtered text, which consists of whole characters and whole sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seam {
    /// Between two of them: other text may be written here.
    #[default]
    Whole,
    /// After the ESC of a sequence, and after an intermediate.
    Escape,
    /// Inside a control sequence, such as a colour.
    Control,
    /// Inside a character, this many bytes before its end.
    Character { left: u8 },
}

impl Seam {
    pub(crate) fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Control, 0x40..=0x7e) | (Self::Character { left: 0 | 1 }, _) => Self::Whole,
            (Self::Escape, b'[') | (Self::Control, _) => Self::Control,
            (Self::Whole, ESC) | (Self::Escape, 0x20..=0x2f) => Self::Escape,
            (Self::Escape, _) => Self::Whole,
            (Self::Character { left }, _) => Self::Character { left: left - 1 },
            (Self::Whole, 0xc0..=0xdf) => Self::Character { left: 1 },
            (Self::Whole, 0xe0..=0xef) => Self::Character { left: 2 },
            (Self::Whole, 0xf0..=0xff) => Self::Character { left: 3 },
            (Self::Whole, _) => Self::Whole,
        }
    }
}

/// Whether a colour sequence makes text invisible. An 8 that is part of a longer colour, after 38, 48 or 58, doesn't
/// conceal; an 8 after the whole colour does.
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
        // With colons it is a single part. Otherwise its kind and its numbers are the following parts, if all of them
        // are present.
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

    fn check_screen(input: &[u8], expected: &[u8]) {
        let mut whole = Vec::new();
        EscapeFilter::for_screen().pass(input, |byte| whole.push(byte));
        assert_eq!(whole, expected, "{:?}", String::from_utf8_lossy(input));
        let (mut filter, mut pieces) = (EscapeFilter::for_screen(), Vec::new());
        for byte in input {
            filter.pass(&[*byte], |byte| pieces.push(byte));
        }
        assert_eq!(pieces, expected, "cut after every byte: {:?}", String::from_utf8_lossy(input));
    }

    #[test]
    fn a_program_with_the_screen_to_itself_may_use_all_of_it() {
        let kept: &[&[u8]] = &[
            b"\x1b[2J\x1b[H\x1b[10;20H\x1b[1A\x1b[K\x1b[?25l\x1b[?25h",
            b"\x1b[?1049h\x1b[1;24r\x1b[4L\x1b[2M\x1b[3P\x1b[@\x1b[?1049l",
            b"\x1b[?1000;1002;1006h\x1b[?1000;1002;1006l\x1b[?2004h\x1b[?1h\x1b=\x1b>",
            b"\x1b7\x1b8\x1bM\x1bD\x1b(0lqk\x1b(B\x0e\x0f\x1b#8\x1bc",
            b"\x1b[2 q\x1b[!p\x1b[1;31mred\x1b[0m\x1b[38:2:1:2:3m\x07\x08\t\r\n",
            b"\x1b[s\x1b[u\x1b[3g\x1b[4h\x1b[20l\x1b[5b\x1b[?2J",
        ];
        for text in kept {
            check_screen(text, text);
        }
    }

    #[test]
    fn clipboard_title_and_reports_are_not_part_of_the_screen() {
        let dropped: &[(&str, &[u8])] = &[
            ("clipboard", b"\x1b]52;c;ZXZpbA==\x07"),
            ("clipboard, ended by ST", b"\x1b]52;c;?\x1b\\"),
            ("titles", b"\x1b]0;t\x07\x1b]1;t\x07\x1b]2;t\x1b\\"),
            ("title stack and report", b"\x1b[22;0t\x1b[23;0t\x1b[21t\x1b[20t"),
            ("window size, place and state", b"\x1b[8;1;1t\x1b[3;0;0t\x1b[11t\x1b[14t\x1b[18t"),
            ("links and colours of the palette", b"\x1b]8;;http://x\x1b\\\x1b]4;1;?\x07\x1b]10;?\x07\x1b]11;?\x1b\\"),
            ("notifications and working directory", b"\x1b]9;x\x07\x1b]777;notify;a;b\x07\x1b]7;file://h/\x07"),
            ("status and place", b"\x1b[5n\x1b[6n\x1b[?6n\x1b[?15n\x1b[?996n"),
            ("attributes", b"\x1b[c\x1b[0c\x1b[>c\x1b[>0c\x1b[=c\x1bZ\x1b[>q"),
            ("parameters, modes and checksums", b"\x1b[x\x1b[?1$p\x1b[4$p\x1b[1;1;1;1;1;1*y\x1b[2$w"),
            ("settings and capabilities", b"\x1bP$qm\x1b\\\x1bP+q544e\x1b\\\x1bP1000p\x1b\\\x1bPq#0\x1b\\"),
            ("answerback", b"\x05"),
            ("other strings", b"\x1bXsos\x1b\\\x1b^pm\x1b\\\x1b_Gapc\x1b\\"),
            ("keyboards", b"\x1b[?u\x1b[>1u\x1b[=5;1u\x1b[<u\x1b[>4;2m\x1b[?4m\x1b[2h\x1b[12l"),
            ("modes that report by themselves", b"\x1b[?2031h\x1b[?2048h\x1b[?1001h\x1b[?3h\x1b[?9999h"),
            ("saved modes", b"\x1b[?1049s\x1b[?1049r"),
            ("printer and lights", b"\x1b[5i\x1b[?5i\x1b[i\x1b[1q"),
            ("another coding", b"\x1b%@\x1b%G\x1b G\x1b F\x1b(K\x1bN\x1bO\x1bn"),
            ("hidden text", b"\x1b[8m\x1b[0;08m\x1b[38;5;1;8m"),
            ("too long", b"\x1b[1111111111222222222233333333334444444444555555555566666666667777H"),
        ];
        for (what, text) in dropped {
            let mut shown = Vec::new();
            EscapeFilter::for_screen().pass(text, |byte| shown.push(byte));
            assert_eq!(String::from_utf8_lossy(&shown), "", "{what}");
            check_screen(text, b"");
        }
        check_screen(b"a\x1b[?1049;2031;25hb", b"a\x1b[?1049;25hb");
        check_screen(
            b"a\x9b6nb\x9d52;c;x\x9cc\x90+q\x9c",
            "a\u{fffd}6nb\u{fffd}52;c;x\u{fffd}c\u{fffd}+q\u{fffd}".as_bytes(),
        );
        check_screen("a\u{9b}6n\u{202e}b".as_bytes(), "a\u{fffd}6n\u{fffd}b".as_bytes());
    }

    #[test]
    fn a_string_without_an_end_hides_only_itself() {
        check_screen(b"a\x1b]52;c;x\x1b[1mb", b"a\x1b[1mb");
        check_screen(b"a\x1bPtmux;\x1b\x1b]52;c;x\x07\x1b\\b", b"ab");
        check_screen(b"a\x1b]0;t\x18b\x1bP+q\x1ac", b"abc");
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
        assert_eq!(places("a\x1b(0b\x1b7c\x1b[2Jd"), "|..||.||...||");
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
