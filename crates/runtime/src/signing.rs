//! Signatures of the server: access tokens of sandboxes, and signed URLs of files.
//!
//! Both are derived from one key in the data directory, which never leaves it. So a token need not be stored to be
//! returned again for a repeated request, and a signature needs no row.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use saggar_domain::SandboxId;
use sha2::Sha256;

use crate::sandboxes::random;

/// The key's file in the data directory.
pub const SIGNING_KEY: &str = "signing.key";
const KEY_LEN: usize = 32;

pub struct SigningKey([u8; KEY_LEN]);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature(pub String);

impl SigningKey {
    /// Reads the key; the first start creates it.
    pub fn open(data_directory: &Path) -> io::Result<Self> {
        let path = data_directory.join(SIGNING_KEY);
        match std::fs::read(&path) {
            Ok(bytes) => {
                let key = bytes.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                Ok(Self(key))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(&path),
            Err(error) => Err(error),
        }
    }

    /// Written under a temporary name first: an existing key is always complete.
    fn create(path: &Path) -> io::Result<Self> {
        let key = random();
        let new = path.with_extension("new");
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        io::Write::write_all(&mut file, &key)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        Ok(Self(key))
    }

    /// The token for a sandbox's ports.
    pub fn access_token(&self, id: &SandboxId) -> String {
        self.sign(&["access/v1", id.as_str()]).0
    }

    /// Signs these words, in this order. Each is preceded by its length, so that different lists never have the same
    /// encoding.
    pub fn sign(&self, words: &[&str]) -> Signature {
        Signature(URL_SAFE_NO_PAD.encode(self.mac(words).finalize().into_bytes()))
    }

    /// 32 bytes that only this key and these words give, and that tell nothing about either.
    pub(crate) fn derive(&self, words: &[&str]) -> [u8; 32] {
        self.mac(words).finalize().into_bytes().into()
    }

    /// Whether a signature is valid for these words. Takes constant time.
    pub fn verify(&self, words: &[&str], signature: &str) -> bool {
        URL_SAFE_NO_PAD.decode(signature).is_ok_and(|bytes| self.mac(words).verify_slice(&bytes).is_ok())
    }

    fn mac(&self, words: &[&str]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        for word in words {
            mac.update(&(word.len() as u64).to_le_bytes());
            mac.update(word.as_bytes());
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_its_words_and_their_borders() {
        let key = SigningKey([7; KEY_LEN]);
        let Signature(signature) = key.sign(&["get", "/a", "b"]);
        assert!(key.verify(&["get", "/a", "b"], &signature));
        for other in [&["get", "/ab", ""][..], &["get", "/a", "b", ""], &["put", "/a", "b"], &[]] {
            assert!(!key.verify(other, &signature), "{other:?}");
        }
        assert!(!SigningKey([8; KEY_LEN]).verify(&["get", "/a", "b"], &signature));
        assert!(!key.verify(&["get", "/a", "b"], "not base64!"));
    }

    #[test]
    fn the_key_is_made_once_and_only_for_us() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("saggar-signing-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let keys = [SigningKey::open(&directory).unwrap().0, SigningKey::open(&directory).unwrap().0];
        let mode = std::fs::metadata(directory.join(SIGNING_KEY)).unwrap().permissions().mode();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((keys[0], mode & 0o777), (keys[1], 0o600));
    }
}
