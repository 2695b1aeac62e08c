//! Random ids, prefixed with their kind. None can be guessed from another.
//!
//! Randomness is an argument, so that this crate stays pure.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use sha2::{Digest, Sha256};

/// RFC 4648 base32 in lower case: safe in file names, host names and cgroup names.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn from_random(bits: [u8; 16]) -> Self {
                Self(format!(concat!($prefix, "_{}"), base32(bits)))
            }

            /// `None` if the text is not an id of this kind.
            pub fn parse(text: &str) -> Option<Self> {
                let tail = text.strip_prefix(concat!($prefix, "_"))?;
                let well_formed = tail.len() == ENCODED_LEN && tail.bytes().all(|b| ALPHABET.contains(&b));
                well_formed.then(|| Self(text.to_owned()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| {
                    de::Error::custom(format!(concat!("{:?} is not an id of the form ", $prefix, "_…"), text))
                })
            }
        }
    };
}

id!(SandboxId, "sbx");
id!(
    /// One exec: a process tree run in a sandbox.
    ExecId, "exec"
);
id!(
    /// One project: the owner of sandboxes and keys.
    ProjectId, "prj"
);
id!(
    /// One API key; this is not its secret.
    KeyId, "key"
);

id!(
    /// One volume, which keeps its id while it exists; its name can be given to another one later.
    VolumeId, "vol"
);

id!(
    /// One run: a durable execution of an agent.
    RunId, "run"
);

id!(
    /// One job that makes a template.
    JobId, "job"
);

id!(
    /// One snapshot of a sandbox's files. Also the name of the template that sandboxes start from it by.
    SnapshotId, "snap"
);

id!(
    /// One code context, which keeps its id when its process is started anew.
    ContextId, "ctx"
);

impl SandboxId {
    /// A name for places that every local user can read, such as cgroups and the kernel's list of sockets. It is always
    /// the same for one sandbox and doesn't reveal the id, which would give access to the sandbox's public ports.
    pub fn alias(&self) -> String {
        let digest = Sha256::new().chain_update("saggar.alias/v1 ").chain_update(&self.0).finalize();
        let mut bits = [0; 16];
        bits.copy_from_slice(&digest[..16]);
        base32(bits)
    }
}

/// 128 bits in groups of five.
const ENCODED_LEN: usize = 26;

fn base32(bits: [u8; 16]) -> String {
    let mut rest = u128::from_be_bytes(bits);
    let mut text = Vec::with_capacity(ENCODED_LEN);
    for _ in 0..ENCODED_LEN {
        text.push(ALPHABET[(rest & 31) as usize]);
        rest >>= 5;
    }
    text.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_nothing_else_does() {
        let id = SandboxId::from_random([0xa5; 16]);
        assert_eq!(SandboxId::parse(id.as_str()), Some(id.clone()));
        for wrong in [
            "",
            "sbx_",
            "exec_aaaaaaaaaaaaaaaaaaaaaaaaaa",
            "sbx_../../etc/passwd/aaaaaaaaa",
            "sbx_AAAAAAAAAAAAAAAAAAAAAAAAAA",
        ] {
            assert_eq!(SandboxId::parse(wrong), None, "{wrong}");
        }
    }

    /// The reaper of a later version must recognise the names that an earlier one gave.
    #[test]
    fn an_alias_stays_the_same_and_holds_nothing_of_its_id() {
        let id = SandboxId::from_random([0xa5; 16]);
        assert_eq!(id.alias(), "u7aeoy3yjt6f2reyotjkb4ifbe");
        assert!(!id.alias().contains(&id.as_str()[4..10]));
    }

    #[test]
    fn different_bits_give_different_ids() {
        let mut high = [0; 16];
        high[0] = 0x80;
        assert_ne!(SandboxId::from_random([0; 16]), SandboxId::from_random(high));
    }
}
