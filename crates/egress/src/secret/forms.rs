//! The forms in which a server may send a value back.
//!
//! A server that echoes a request shows the value as it is, inside of base64 (`Basic` credentials, or a whole request that was
//! encoded), percent-encoded once or twice, escaped as JSON or HTML, or in hexadecimal. Each form is what one common encoder makes of the
//! whole value. Other encodings, and two different ones on top of each other, are not recognised: the scrubber is for servers that echo, not for
//! those that want to betray the value.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::secret::escapes::{html, json};

pub(super) type Form = Zeroizing<Vec<u8>>;

/// Shorter texts occur by chance.
const LEN_MIN: usize = 6;

/// What encoders leave as it is, besides letters and digits: those that follow RFC 3986, Python's `quote`, JavaScript's
/// `encodeURIComponent`, and `encodeURI` with most encoders of paths.
const PERCENT_KEPT: [&str; 4] = ["-._~", "-._~/", "-._~!*'()", "-._~!*'();:@&=+$,/?#"];

/// All forms of a value, without duplicates.
pub(super) fn forms(value: &str) -> Vec<Form> {
    let mut forms = vec![form(value)];
    for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
        forms.push(form(&Zeroizing::new(engine.encode(value))));
        forms.extend((0..3).map(|offset| inside_base64(engine, value, offset)));
    }
    for case in [Case::Upper, Case::Lower] {
        for kept in PERCENT_KEPT {
            let once = percent(value, case, |byte| byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte));
            // A whole query in a parameter of another one.
            let twice = percent(&once, case, |byte| byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte));
            forms.extend([form(&once), form(&twice)]);
        }
        let mut submitted =
            form(&percent(value, case, |byte| byte.is_ascii_alphanumeric() || b"-._* ".contains(&byte)));
        submitted.iter_mut().filter(|byte| **byte == b' ').for_each(|space| *space = b'+');
        forms.push(submitted);
        forms.push(form(&percent(value, case, |_| false)));
        forms.push(form(&hexadecimal(value, case)));
    }
    forms.extend(json(value).iter().chain(&html(value)).map(|text| form(text)));
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

/// Of hexadecimal digits.
#[derive(Clone, Copy)]
pub(super) enum Case {
    Upper,
    Lower,
}

fn percent(value: &str, case: Case, is_kept: impl Fn(u8) -> bool) -> Zeroizing<String> {
    let mut encoded = Zeroizing::new(String::with_capacity(value.len() * 3));
    for byte in value.bytes() {
        let written = match case {
            _ if is_kept(byte) => {
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
        check(value, "wJalrXUtnFEMI%252FK7MDENG%252BbPx%2520%2522%25C3%25A9%2522");
        check(value, "wJalrXUtnFEMI%252fK7MDENG%252bbPx%2520%2522%25c3%25a9%2522");
        // As Python's `quote` and JavaScript's `encodeURIComponent` write it.
        check(value, "wJalrXUtnFEMI/K7MDENG%2BbPx%20%22%C3%A9%22");
        check(value, "wJalrXUtnFEMI/K7MDENG%252BbPx%2520%2522%25C3%25A9%2522");
        check("it's (a) key!/*", "it's%20(a)%20key!%2F*");
        check("sk-canary", "%73%6B%2D%63%61%6E%61%72%79");
        check("sk-canary", "%73%6b%2d%63%61%6e%61%72%79");
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
        assert!(forms("sk-proj-a.b_c").len() <= 24);
        assert!(forms("12345678").iter().all(|form| form.len() >= 8));
    }
}
