//! Paths of requests and of rules.
//!
//! A path that different servers could understand differently is refused, not repaired. An accepted path means the same before
//! and after percent-decoding: decoding it makes no separator, no dot segment, no parameter and no further escape.
//!
//! Some servers normalise Unicode: they read `ａdmin`, with a full-width a, as `admin`. Deny rules therefore match such a path as
//! the plain one, and allow rules don't match it at all.

use std::fmt::{self, Write as _};

use unicode_normalization::UnicodeNormalization as _;

/// Maximum length of a path that rules are applied to, in bytes.
const PATH_LEN_MAX: usize = 8192;

/// The path of a rule: segments in which `*` stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PathPattern {
    segments: Vec<String>,
    /// Whether it ends with `**`: everything below.
    below: bool,
}

impl PathPattern {
    /// `text` begins with a slash. An error says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains(['?', '#']) {
            return Err("a rule has no query and no fragment: leave out what follows the path");
        }
        if text.to_ascii_lowercase().contains("%2a") {
            return Err("an escaped * can't be told from a pattern: write `*`, which matches it too");
        }
        if text == "/" {
            return Err(
                "`/` alone is unclear: leave it out to mean every path, or write `/**` for the same with every request inspected",
            );
        }
        let (front, below) = match text.strip_suffix("/**") {
            Some(front) => (front, true),
            None => (text, false),
        };
        if front.contains("**") {
            return Err("`**` can only be the last segment of a path: write `*` for a part of one segment");
        }
        let segments = if front.is_empty() { Vec::new() } else { segments(front)? };
        Ok(Self { segments, below })
    }

    /// Whether a path matches exactly as written.
    pub(super) fn matches_strictly(&self, path: &[String]) -> bool {
        let is_long_enough =
            if self.below { path.len() > self.segments.len() } else { path.len() == self.segments.len() };
        is_long_enough && self.segments.iter().zip(path).all(|(pattern, segment)| is_like(pattern, segment))
    }

    /// Whether some server may take the path for one that matches: by ignoring case, a slash at the end, dots and spaces at
    /// the end of a segment, or invisible characters; or by normalising Unicode.
    pub(super) fn matches_loosely(&self, path: &[String]) -> bool {
        let (pattern, path) = (folded(&self.segments), folded(path));
        let is_long_enough = if self.below { path.len() >= pattern.len() } else { path.len() == pattern.len() };
        is_long_enough && pattern.iter().zip(&path).all(|(pattern, segment)| is_like(pattern, segment))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            f.write_char('/')?;
            for byte in segment.bytes() {
                match byte {
                    b'!'..=b'~' if !matches!(byte, b'?' | b'#' | b'%') => f.write_char(byte.into())?,
                    other => write!(f, "%{other:02X}")?,
                }
            }
        }
        if self.below { f.write_str("/**") } else { Ok(()) }
    }
}

/// The decoded segments of a path without its query. An error says what is ambiguous.
pub(super) fn segments(path: &str) -> Result<Vec<String>, &'static str> {
    if path.len() > PATH_LEN_MAX {
        return Err("is longer than 8192 bytes");
    }
    let rest = path.strip_prefix('/').ok_or("doesn't begin with a slash")?;
    let segments = rest.split('/').map(segment).collect::<Result<Vec<_>, _>>()?;
    let (_, front) = segments.split_last().expect("split yields at least one segment");
    if front.iter().any(String::is_empty) {
        return Err("has an empty segment (//)");
    }
    Ok(segments)
}

fn segment(raw: &str) -> Result<String, &'static str> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = [bytes.next(), bytes.next()].map(|digit| digit.and_then(|d| (d as char).to_digit(16)));
                let [Some(high), Some(low)] = digits else { return Err("has a % that begins no escape") };
                match u8::try_from(high * 16 + low).expect("two hexadecimal digits fit a byte") {
                    b'.' => return Err("has an escaped dot (%2e)"),
                    b'/' => return Err("has an escaped slash (%2f)"),
                    b'\\' => return Err("has an escaped backslash (%5c)"),
                    b'%' => return Err("has an escaped percent sign (%25)"),
                    b';' | b'?' | b'#' => return Err("has an escaped separator"),
                    other => decoded.push(other),
                }
            }
            b'\\' => return Err("has a backslash"),
            b';' => return Err("has a parameter (;)"),
            0x21..=0x7e => decoded.push(byte),
            _ => return Err("has a space, a control character or a character beyond ASCII that is not escaped"),
        }
    }
    let decoded = String::from_utf8(decoded).map_err(|_| "has escapes that are not UTF-8")?;
    if decoded.chars().any(char::is_control) {
        return Err("has an escaped control character");
    }
    if decoded.chars().any(is_wide_separator) {
        return Err("has a character that some servers turn into a dot, a slash or another separator");
    }
    if !decoded.is_empty() && decoded.bytes().all(|byte| byte == b'.') {
        return Err("has a segment of dots");
    }
    Ok(decoded)
}

/// Characters whose compatibility form is or contains `.`, `/`, `\`, `;`, `%`, `?` or `#`. A table of its own, because rules
/// are parsed in a program that has no room for the tables of Unicode.
fn is_wide_separator(character: char) -> bool {
    matches!(
        character,
        '\u{2024}'
            ..='\u{2026}' // dot leaders and the ellipsis
            | '\u{ff0e}' | '\u{fe52}' // full stops
            | '\u{ff0f}' | '\u{2100}' | '\u{2101}' | '\u{2105}' | '\u{2106}' // solidus, and signs such as c/o
            | '\u{ff3c}' | '\u{fe68}' // backslashes
            | '\u{ff1b}' | '\u{fe54}' | '\u{fe14}' | '\u{037e}' // semicolons
            | '\u{ff05}' | '\u{fe6a}' // percent signs
            | '\u{ff1f}' | '\u{fe56}' | '\u{fe16}' | '\u{2047}'..='\u{2049}' // question marks
            | '\u{ff03}' | '\u{fe5f}' // number signs
            | '\u{fe19}' | '\u{fe30}' | '\u{2488}'..='\u{249b}' | '\u{1f100}' // other dots: ellipses, digits with a full stop
    )
}

/// What is wrong with a path that has a look-alike.
pub(super) const LOOKALIKE: &str = "has a character that some servers turn into a plain letter or drop";

/// Whether a character of a path could become plain ASCII, or nothing, by normalisation.
pub(super) fn has_lookalike(segments: &[String]) -> bool {
    let mut characters = segments.iter().flat_map(|segment| segment.chars());
    characters.any(|character| is_invisible(character) || plain_form(character).any(|plain| plain.is_ascii()))
}

/// The compatibility form of a character beyond ASCII; nothing for one of ASCII.
fn plain_form(character: char) -> impl Iterator<Item = char> {
    Some(character).filter(|character| !character.is_ascii()).into_iter().nfkc()
}

/// Characters without a width of their own, which some servers and file systems drop.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}'
    )
}

fn folded(segments: &[String]) -> Vec<String> {
    let mut folded: Vec<String> = segments.iter().map(|segment| fold(segment)).collect();
    while folded.last().is_some_and(String::is_empty) {
        folded.pop();
    }
    folded
}

fn fold(segment: &str) -> String {
    if segment.is_ascii() {
        return segment.trim_end_matches(['.', ' ']).to_ascii_lowercase();
    }
    // By capitals first: several letters have the same one.
    let plain: String = segment.chars().filter(|character| !is_invisible(*character)).nfkc().collect();
    plain.to_uppercase().to_lowercase().trim_end_matches(['.', ' ']).to_owned()
}

/// Whether a text matches a pattern in which `*` stands for any characters, or none.
fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    // The leftmost place is always as good as any other: what follows has the most room.
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}
