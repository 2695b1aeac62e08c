//! The secret of an API key: `sgr_` and 43 characters for 256 random bits.
//!
//! Only its SHA-256 is stored. A slow hash is for passwords that people choose and attackers can guess; 256 random
//! bits can't be guessed at any speed. A slow hash would also cost time on every request.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Error;
use crate::hash::KeyHash;

const PREFIX: &str = "sgr_";
/// How many random bytes there are.
const RANDOM_LEN: usize = 32;
/// Shown in lists: enough to tell keys apart, and leaves 208 bits unknown.
const SHOWN_LEN: usize = PREFIX.len() + 8;

/// A secret in plain text, on its way to the client that created the key, or from a client that presents it. `Debug`
/// doesn't print it.
#[derive(Clone)]
pub struct KeySecret(String);

impl KeySecret {
    pub fn generate() -> Result<Self, Error> {
        let mut bits = [0; RANDOM_LEN];
        match getrandom(&mut bits, GetRandomFlags::empty()) {
            Ok(length) if length == bits.len() => Ok(Self::from_random(bits)),
            Ok(_) | Err(_) => Err(Error::Random),
        }
    }

    /// Parses a presented secret; `None` if it can't be a key.
    pub fn parse(text: &str) -> Option<Self> {
        let bits = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
        (bits.len() == RANDOM_LEN).then(|| Self(text.to_owned()))
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

    fn from_random(bits: [u8; RANDOM_LEN]) -> Self {
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bits)))
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
        assert_eq!(secret.expose().len(), PREFIX.len() + 43);
        assert_eq!(KeySecret::parse(secret.expose()).unwrap().expose(), secret.expose());
        assert_ne!(secret.expose(), KeySecret::generate().unwrap().expose());
        assert!(!format!("{secret:?}").contains(&secret.expose()[SHOWN_LEN..]));
        for wrong in ["", "sgr_", "sgr_short", &secret.expose()[1..], &format!("{}A", secret.expose())] {
            assert!(KeySecret::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_written_as_it_always_was() {
        let bits = std::array::from_fn(|index| u8::try_from(index * 8 + 7).unwrap_or(0xff));
        assert_eq!(KeySecret::from_random(bits).expose(), "sgr_Bw8XHycvNz9HT1dfZ293f4ePl5-nr7e_x8_X3-fv9_8");
    }
}
