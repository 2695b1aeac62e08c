//! Our keys as E2B's clients take them. Some versions refuse, before they ask anybody, what isn't `e2b_` and hexadecimal digits: so
//! the same 256 bits can be written that way too.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const OURS: &str = "sgr_";
const THEIRS: &str = "e2b_";
const BYTES: usize = 32;

/// A key of ours, written as theirs; `None` when it isn't one.
pub fn spelled(secret: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(secret.strip_prefix(OURS)?).ok().filter(|bytes| bytes.len() == BYTES)?;
    Some(bytes.iter().fold(THEIRS.to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// What is shown as a key, as ours: however it is written.
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.strip_prefix(THEIRS).and_then(digits) {
        Some(bytes) => Cow::Owned(format!("{OURS}{}", URL_SAFE_NO_PAD.encode(bytes))),
        None => Cow::Borrowed(text),
    }
}

fn digits(text: &str) -> Option<[u8; BYTES]> {
    let is_hex = text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    is_hex.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_either_way() {
        let key = "sgr_OX-6wZO7EJfChjajoz8j97azzp5yHx6K0hkdi4NTFv4";
        let theirs = spelled(key).unwrap();
        assert!(theirs.len() == 68 && theirs[4..].bytes().all(|byte| byte.is_ascii_hexdigit()), "{theirs}");
        assert_eq!((plain(&theirs), plain(key)), (Cow::Borrowed(key), Cow::Borrowed(key)));
        for other in ["", "e2b_", "e2b_00", "e2b_zz", &format!("e2b_{}", "é".repeat(32))] {
            assert_eq!(plain(other), other);
        }
        assert_eq!((spelled("e2b_00"), spelled("sgr_short")), (None, None));
    }
}
