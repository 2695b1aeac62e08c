//! Sealing: values of secrets are encrypted before they are stored, with XChaCha20-Poly1305.
//!
//! A seal covers more than the value: the project, the name, the version and the binding of the secret, and the id of the
//! key. So a sealed value that was moved to another row, or whose row was given other hosts, doesn't open.
//!
//! ```text
//!  1 byte   24 bytes   length of the value + 16
//!  version  nonce      ciphertext and tag
//! ```

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use saggar_domain::ProjectId;
use saggar_domain::secret::SecretName;
use saggar_store::{Sealed, SealedSecret, SealingKeyId};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::sandboxes::random;

/// The version of sealed values.
const VERSION: u8 = 1;
const KEY_LEN: usize = 32;
const NONCE_LEN: usize = 24;
/// Begins what a seal covers, and is hashed into a key's id.
const DOMAIN: &str = "saggar.seal/v1";

/// A key that values are sealed with. `Debug` shows only its id.
#[derive(Clone)]
pub(crate) struct SealingKey {
    id: SealingKeyId,
    bytes: Zeroizing<[u8; KEY_LEN]>,
}

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealingKey({}…)", self.id)
    }
}

/// What a seal covers beside the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label<'a> {
    pub(crate) project: &'a ProjectId,
    pub(crate) name: &'a SecretName,
    pub(crate) version: u64,
    /// As it is stored.
    pub(crate) binding_text: &'a str,
}

impl<'a> Label<'a> {
    pub(crate) fn of(secret: &'a SealedSecret) -> Self {
        let row = &secret.row;
        Self { project: &row.project, name: &row.name, version: row.version, binding_text: &secret.binding_text }
    }
}

impl SealingKey {
    pub(crate) fn generate() -> Self {
        Self::from_bytes(Zeroizing::new(random()))
    }

    pub(crate) fn from_bytes(bytes: Zeroizing<[u8; KEY_LEN]>) -> Self {
        let hash = Sha256::new_with_prefix(DOMAIN).chain_update(bytes.as_slice()).finalize();
        let id: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { id: SealingKeyId::parse(&id).expect("8 bytes are 16 digits"), bytes }
    }

    pub(crate) fn id(&self) -> &SealingKeyId {
        &self.id
    }

    /// For the key file.
    pub(crate) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.bytes
    }

    pub(crate) fn seal(&self, label: Label<'_>, value: &[u8]) -> Sealed {
        let nonce: [u8; NONCE_LEN] = random();
        let aad = self.covered(label);
        let ciphertext = self
            .cipher()
            .encrypt(XNonce::from_slice(&nonce), Payload { msg: value, aad: &aad })
            .expect("a value is far below the cipher's limit of 256 GiB");
        Sealed([&[VERSION][..], &nonce, &ciphertext].concat())
    }

    /// `None` if it was sealed with another key or for another label, or was altered.
    pub(crate) fn open(&self, label: Label<'_>, sealed: &Sealed) -> Option<Zeroizing<Vec<u8>>> {
        let (&version, rest) = sealed.0.split_first()?;
        let (nonce, ciphertext) = rest.split_at_checked(NONCE_LEN)?;
        if version != VERSION {
            return None;
        }
        let aad = self.covered(label);
        let payload = Payload { msg: ciphertext, aad: &aad };
        self.cipher().decrypt(XNonce::from_slice(nonce), payload).ok().map(Zeroizing::new)
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(Key::from_slice(self.bytes.as_slice()))
    }

    /// Each part is preceded by its length, so that different labels never have the same encoding.
    fn covered(&self, label: Label<'_>) -> Vec<u8> {
        let version = label.version.to_string();
        let parts =
            [DOMAIN, self.id.as_str(), label.project.as_str(), label.name.as_str(), &version, label.binding_text];
        parts.iter().flat_map(|part| [&(part.len() as u64).to_le_bytes()[..], part.as_bytes()].concat()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SealingKey {
        SealingKey::from_bytes(Zeroizing::new([byte; KEY_LEN]))
    }

    #[test]
    fn a_seal_opens_with_its_key_for_its_label_and_unaltered_only() {
        let (project, other_project) = (ProjectId::from_random([1; 16]), ProjectId::from_random([2; 16]));
        let name = |text: &str| SecretName::parse(text).unwrap();
        let (name, other_name) = (name("openai"), name("other"));
        let label = Label { project: &project, name: &name, version: 3, binding_text: "{}" };
        let sealed = key(7).seal(label, b"sk-1234");
        assert_eq!(key(7).open(label, &sealed).as_deref().map(Vec::as_slice), Some(&b"sk-1234"[..]));
        assert!(!sealed.0.windows(7).any(|window| window == b"sk-1234"));
        assert_ne!(key(7).seal(label, b"sk-1234"), sealed, "a nonce is used once");

        assert_eq!(key(8).open(label, &sealed), None);
        for wrong in [
            Label { project: &other_project, ..label },
            Label { name: &other_name, ..label },
            Label { version: 2, ..label },
            Label { binding_text: "{} ", ..label },
        ] {
            assert_eq!(key(7).open(wrong, &sealed), None, "{wrong:?}");
        }
        for index in 0..sealed.0.len() {
            let mut altered = sealed.clone();
            altered.0[index] ^= 1;
            assert_eq!(key(7).open(label, &altered), None, "byte {index}");
            altered.0.truncate(index);
            assert_eq!(key(7).open(label, &altered), None, "{index} bytes");
        }
    }

    /// What a released version has sealed must open for ever.
    #[test]
    fn a_seal_of_version_1_opens() {
        let project = ProjectId::from_random([1; 16]);
        let name = SecretName::parse("openai").unwrap();
        let label = Label { project: &project, name: &name, version: 1, binding_text: r#"{"slot":"bearer"}"# };
        assert_eq!(key(7).id().as_str(), GOLDEN_KEY_ID);
        let byte = |at: usize| u8::from_str_radix(&GOLDEN[at..at + 2], 16).unwrap();
        let sealed = Sealed((0..GOLDEN.len()).step_by(2).map(byte).collect());
        assert_eq!(key(7).open(label, &sealed).as_deref().map(Vec::as_slice), Some(&b"golden"[..]));
    }

    const GOLDEN_KEY_ID: &str = "9f1bbf4c618e5349";
    /// Made by another implementation, with the nonce 00 01 … 17.
    const GOLDEN: &str =
        "01000102030405060708090a0b0c0d0e0f1011121314151617cf78c7e19f724c2386e9b044ab60fa37848a1db5658f";

    #[test]
    fn debug_tells_neither_key_nor_value() {
        assert_eq!(format!("{:?}", key(7)), format!("SealingKey({GOLDEN_KEY_ID}…)"));
    }
}
