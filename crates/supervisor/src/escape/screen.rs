//! What a program may do to a screen: move the cursor, erase, scroll, choose text styles, and use the modes that
//! full-screen programs need. Everything here is an allowlist; anything else is dropped.
//!
//! Not allowed: all strings (clipboard, titles, links, device control), everything that the terminal answers by typing
//! (status, attributes, modes, checksums, the answerback), the printer, the window, the keyboard lock, and switches to
//! 8-bit controls or another text encoding.

use super::conceals;

/// Private modes (`CSI ? … h` and `l`) that pass: cursor keys, screen, origin, wrap, cursor, alternate screen, mouse,
/// focus, bracketed paste, synchronised updates. Modes in which the terminal would send reports by itself are not
/// included.
const PRIVATE_MODES: &[&str] = &[
    "1", "5", "6", "7", "12", "25", "45", "47", "66", "69", "1000", "1002", "1003", "1004", "1006", "1007", "1015",
    "1047", "1048", "1049", "2004", "2026",
];
/// Other modes that pass: insert, and newline.
const MODES: &[&str] = &["4", "20"];

/// The part of a control sequence that passes, without its introducer: parameters, intermediates and the final byte.
/// Empty if nothing does.
pub(super) fn control(sequence: &[u8], last: u8) -> Vec<u8> {
    let whole = || [sequence, &[last]].concat();
    let (prefix, rest) = match sequence.first() {
        Some(b'<' | b'=' | b'>' | b'?') => (sequence[0], &sequence[1..]),
        _ => (0, sequence),
    };
    let is_plain = rest.iter().all(|byte| matches!(byte, b'0'..=b'9' | b';' | b':'));
    match (prefix, last) {
        (0, b'm') if is_plain && !conceals(rest) => whole(),
        (0, b'm') => Vec::new(),
        (
            0,
            b'@'
            | b'A'..=b'M'
            | b'P'
            | b'S'
            | b'T'
            | b'X'
            | b'Z'
            | b'`'
            | b'a'
            | b'b'
            | b'd'..=b'g'
            | b'r'
            | b's'
            | b'u',
        ) if is_plain => whole(),
        // Selective erase.
        (b'?', b'J' | b'K') if is_plain => whole(),
        (0, b'h' | b'l') if is_plain => modes(b"", rest, last, MODES),
        (b'?', b'h' | b'l') if is_plain => modes(b"?", rest, last, PRIVATE_MODES),
        // The cursor's shape, and a soft reset.
        (0, b'q') if shape(rest) => whole(),
        (0, b'p') if rest == b"!" => whole(),
        _ => Vec::new(),
    }
}

/// Whether a sequence of ESC, intermediates and a last byte passes: saving and restoring the cursor, moving by lines,
/// tabs, the keypad, a reset, and the character sets for line drawing and text.
pub(super) fn escape(intermediates: &[u8], last: u8) -> bool {
    match intermediates {
        [] => matches!(last, b'7' | b'8' | b'=' | b'>' | b'D' | b'E' | b'H' | b'M' | b'c'),
        [b'(' | b')' | b'*' | b'+'] => matches!(last, b'0' | b'A' | b'B'),
        [b'#'] => matches!(last, b'3'..=b'6' | b'8'),
        _ => false,
    }
}

/// Keeps the allowed modes of a sequence and drops the others.
fn modes(prefix: &[u8], numbers: &[u8], last: u8, allowed: &[&str]) -> Vec<u8> {
    let kept: Vec<&[u8]> = numbers
        .split(|byte| *byte == b';')
        .filter(|number| allowed.iter().any(|mode| mode.as_bytes() == *number))
        .collect();
    if kept.is_empty() {
        return Vec::new();
    }
    [prefix, &kept.join(&b';'), &[last]].concat()
}

fn shape(rest: &[u8]) -> bool {
    rest.split_last().is_some_and(|(space, number)| *space == b' ' && number.iter().all(u8::is_ascii_digit))
}
