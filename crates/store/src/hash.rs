//! SHA-256 hashes of values that aren't stored, or are only compared.

use sha2::{Digest, Sha256};

macro_rules! hash {
    ($(#[$doc:meta])* $name:ident, $domain:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The hash of these bytes. Each kind of hash has its own prefix, so that hashes of different kinds never
            /// match.
            pub fn of(bytes: &[u8]) -> Self {
                let mut digest = Sha256::new_with_prefix(concat!($domain, "\0"));
                digest.update(bytes);
                Self(digest.finalize().into())
            }

            #[allow(dead_code, reason = "not every kind is read back")]
            pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            pub(crate) fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }
    };
}

hash!(
    /// Hash of a request, to recognise a repetition.
    RequestHash, "saggar.request/v1"
);
hash!(
    /// Hash of what runs must have in common to go on with the files of one another.
    ReuseKey, "saggar.reuse/v1"
);
hash!(
    /// Hash of a sandbox's access token. The token has 256 random bits, so a fast hash is enough; see `KeySecret`.
    TokenHash, "saggar.token/v1"
);
hash!(
    /// Hash of an API key's secret.
    KeyHash, "saggar.key/v1"
);

impl TokenHash {
    /// Whether it is the hash of this token. Takes constant time.
    pub fn matches(&self, token: &[u8]) -> bool {
        is_same(&self.0, Self::of(token).as_bytes())
    }
}

impl KeyHash {
    /// Compares in constant time.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        is_same(&self.0, &other.0)
    }
}

fn is_same(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |all, (left, right)| all | (left ^ right));
    // Keeps the compiler from leaving the loop early.
    std::hint::black_box(difference) == 0
}
