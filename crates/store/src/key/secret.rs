//! The secret of an API key: `sgr_` and 43 characters for 256 random bits.
//!
//! Only its SHA-256 is stored. A slow hash is for passwords that people choose and attackers can guess; 256 random
//! bits can't be guessed at any speed. A slow hash would also cost time on every request.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Error;
use crate::hash::KeyHash;

const PREFIX: &str = "sgr_";
/// 256 bits in groups of six.
const ENCODED_LEN: usize = 43;
/// Length of the part shown in lists: enough to tell keys apart, and leaves 208 bits unknown.
const SHOWN_LEN: usize = PREFIX.len() + 8;
/// RFC 4648 base64 for URLs, without padding.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A secret in plain text, on its way to the client that created the key, or from a client that presents it. `Debug`
/// doesn't print it.
#[derive(Clone)]
pub struct KeySecret(String);

impl KeySecret {
    pub fn generate() -> Result<Self, Error> {
        let mut bits = [0; 32];
        match getrandom(&mut bits, GetRandomFlags::empty()) {
            Ok(length) if length == bits.len() => Ok(Self::from_random(bits)),
            Ok(_) | Err(_) => Err(Error::Random),
        }
    }

    /// Parses a presented secret; `None` if it can't be a key.
    pub fn parse(text: &str) -> Option<Self> {
        let tail = text.strip_prefix(PREFIX)?;
        let is_key = tail.len() == ENCODED_LEN && tail.bytes().all(|byte| ALPHABET.contains(&byte));
        is_key.then(|| Self(text.to_owned()))
    }

    /// The secret itself, to be shown once to the key's creator.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The part that lists show.
    pub(super) fn shown(&self) -> &str {
        &self.0[..SHOWN_LEN]
    }

    pub(super) fn hash(&self) -> KeyHash {
        KeyHash::of(self.0.as_bytes())
    }

    fn from_random(bits: [u8; 32]) -> Self {
        let mut text = String::from(PREFIX);
        for chunk in bits.chunks(3) {
            let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
            for position in 0..=chunk.len() {
                text.push(char::from(ALPHABET[(word >> (18 - 6 * position)) as usize & 63]));
            }
        }
        Self(text)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySecret({}…)", self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_its_form_and_reads_back() {
        let secret = KeySecret::generate().unwrap();
        assert_eq!(secret.expose().len(), PREFIX.len() + ENCODED_LEN);
        assert_eq!(KeySecret::parse(secret.expose()).unwrap().expose(), secret.expose());
        assert_ne!(secret.expose(), KeySecret::generate().unwrap().expose());
        assert!(!format!("{secret:?}").contains(&secret.expose()[SHOWN_LEN..]));
        for wrong in ["", "sgr_", "sgr_short", &secret.expose()[1..], &format!("{}A", secret.expose())] {
            assert!(KeySecret::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn every_bit_is_in_the_text() {
        let zero = KeySecret::from_random([0; 32]);
        for bit in 0..256 {
            let mut bits = [0u8; 32];
            bits[bit / 8] = 1 << (bit % 8);
            assert_ne!(KeySecret::from_random(bits).expose(), zero.expose(), "{bit}");
        }
    }
}
