//! The forms in which a server may send a value back.
//!
//! A server that echoes a request shows the value as it is, inside of base64 (`Basic` credentials, or a whole request that was
//! encoded), percent-encoded, escaped as JSON, or in hexadecimal. Other encodings are not recognised: the scrubber is for
//! servers that echo, not for those that want to betray the value.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

pub(super) type Form = Zeroizing<Vec<u8>>;

/// Shorter texts occur by chance.
const LEN_MIN: usize = 6;

/// All forms of a value, without duplicates.
pub(super) fn forms(value: &str) -> Vec<Form> {
    let mut forms = vec![form(value)];
    for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
        forms.push(form(&Zeroizing::new(engine.encode(value))));
        forms.extend((0..3).map(|offset| inside_base64(engine, value, offset)));
    }
    for case in [Case::Upper, Case::Lower] {
        forms.push(form(&percent(value, case, "-._~")));
        // As `encodeURI` and most path encoders leave it.
        forms.push(form(&percent(value, case, "-._~!*'();:@&=+$,/?#")));
        forms.push(form(&percent(value, case, "-._*").replace("%20", "+")));
        forms.push(form(&hexadecimal(value, case)));
    }
    forms.extend(json(value));
    distinct(forms)
}

/// Further forms of a value that stands in a larger text, such as `user:value`.
pub(super) fn whole_base64(text: &str) -> Vec<Form> {
    distinct([&STANDARD_NO_PAD, &URL_SAFE_NO_PAD].map(|engine| form(&Zeroizing::new(engine.encode(text)))).to_vec())
}

fn distinct(mut forms: Vec<Form>) -> Vec<Form> {
    forms.sort_unstable_by(|one, another| one.as_slice().cmp(another.as_slice()));
    forms.dedup_by(|one, another| one.as_slice() == another.as_slice());
    forms.retain(|form| form.len() >= LEN_MIN);
    forms
}

fn form(text: &str) -> Form {
    Zeroizing::new(text.as_bytes().to_vec())
}

/// The digits of base64 that depend on the value alone, if it begins `offset` bytes after a multiple of three.
fn inside_base64(engine: &impl base64::Engine, value: &str, offset: usize) -> Form {
    let mut padded = Zeroizing::new(vec![0; offset]);
    padded.extend_from_slice(value.as_bytes());
    let digits = Zeroizing::new(engine.encode(padded.as_slice()));
    let first = (offset * 8).div_ceil(6);
    let end = padded.len() * 8 / 6;
    Zeroizing::new(digits.as_bytes()[first..end].to_vec())
}

#[derive(Clone, Copy)]
enum Case {
    Upper,
    Lower,
}

fn percent(value: &str, case: Case, kept: &str) -> Zeroizing<String> {
    let mut encoded = Zeroizing::new(String::with_capacity(value.len() * 3));
    for byte in value.bytes() {
        let written = match case {
            _ if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) => {
                encoded.push(byte.into());
                Ok(())
            }
            Case::Upper => write!(encoded, "%{byte:02X}"),
            Case::Lower => write!(encoded, "%{byte:02x}"),
        };
        written.expect("writing to a string never fails");
    }
    encoded
}

fn hexadecimal(value: &str, case: Case) -> Zeroizing<String> {
    let mut encoded = Zeroizing::new(String::with_capacity(value.len() * 2));
    for byte in value.bytes() {
        let written = match case {
            Case::Upper => write!(encoded, "{byte:02X}"),
            Case::Lower => write!(encoded, "{byte:02x}"),
        };
        written.expect("writing to a string never fails");
    }
    encoded
}

/// As most encoders escape it, with slashes as they are and escaped; and with everything beyond ASCII, and what HTML gives a meaning,
/// in `\u`.
fn json(value: &str) -> Vec<Form> {
    let mut plain = Zeroizing::new(String::with_capacity(value.len() * 2));
    let mut ascii = Zeroizing::new(String::with_capacity(value.len() * 6));
    for character in value.chars() {
        if matches!(character, '"' | '\\') {
            plain.push('\\');
            ascii.push('\\');
        }
        plain.push(character);
        if character.is_ascii() && !matches!(character, '<' | '>' | '&' | '\'') {
            ascii.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(ascii, "\\u{unit:04x}").expect("writing to a string never fails");
            }
        }
    }
    let slashes = Zeroizing::new(plain.replace('/', "\\/"));
    let ascii_slashes = Zeroizing::new(ascii.replace('/', "\\/"));
    vec![form(&plain), form(&slashes), form(&ascii), form(&ascii_slashes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, shown: &str) {
        let found = forms(value).iter().any(|form| shown.contains(str::from_utf8(form).unwrap()));
        assert!(found, "{value} in {shown}");
    }

    #[test]
    fn usual_encodings_of_a_value_are_recognised() {
        let value = "wJalrXUtnFEMI/K7MDENG+bPx \"é\"";
        check(value, value);
        check(value, "wJalrXUtnFEMI%2FK7MDENG%2BbPx%20%22%C3%A9%22");
        check(value, "wJalrXUtnFEMI%2fK7MDENG%2bbPx%20%22%c3%a9%22");
        check(value, "wJalrXUtnFEMI%2FK7MDENG%2BbPx+%22%C3%A9%22");
        check(value, r#"wJalrXUtnFEMI/K7MDENG+bPx \"é\""#);
        check(value, r#"wJalrXUtnFEMI\/K7MDENG+bPx \"é\""#);
        check(value, r#"wJalrXUtnFEMI/K7MDENG+bPx \"\u00e9\""#);
        check(value, "774a616c725855746e46454d492f4b374d44454e472b62507820 22c3a922".replace(' ', "").as_str());
    }

    #[test]
    fn base64_is_recognised_wherever_the_value_begins_and_ends() {
        let value = "sk-canary/value+1";
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "z", "zz", "zzz"] {
                let text = format!("{before}{value}{after}");
                check(value, &STANDARD_NO_PAD.encode(&text));
                check(value, &URL_SAFE_NO_PAD.encode(&text));
            }
        }
    }

    #[test]
    fn plain_values_have_few_forms_and_the_shortest_has_none_that_occurs_by_chance() {
        assert!(forms(&"a".repeat(40)).len() <= 8);
        assert!(forms("12345678").iter().all(|form| form.len() >= 8));
    }
}
