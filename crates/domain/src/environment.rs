//! Environment variables of a request, validated: each name occurs once.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::problem::{Code, Problem};

/// Most entries of the environment.
const ENV_ENTRIES_MAX: usize = 1024;

/// Variables by which programs of a sandbox with a managed network find the proxy and the certificates to trust. The supervisor sets each
/// of them, and an image none.
pub(crate) const MANAGED_NETWORK_VARIABLES: [&str; 11] = [
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Environment entries, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct EnvDraft(BTreeMap<String, String>);

impl EnvDraft {
    /// Adds an entry; the same name with another value is ambiguous.
    pub fn insert(&mut self, name: String, value: String) -> Result<(), Problem> {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        if !is_name || value.contains('\0') {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("environment entry {name:?} has an empty name, an = in its name, or a NUL byte"),
                "write it as NAME=VALUE",
            ));
        }
        if self.0.len() >= ENV_ENTRIES_MAX {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("more than {ENV_ENTRIES_MAX} environment entries"),
                "pass a file in the workspace instead",
            ));
        }
        match self.0.get(&name) {
            Some(before) if *before != value => Err(Problem::new(
                Code::AmbiguousMerge,
                format!("environment variable {name:?} is given twice with different values"),
                "give it once",
            )),
            _ => {
                self.0.insert(name, value);
                Ok(())
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Adds all entries of another.
    pub(crate) fn merge(mut self, other: Self) -> Result<Self, Problem> {
        for (name, value) in other.0 {
            self.insert(name, value)?;
        }
        Ok(self)
    }

    pub fn into_map(self) -> BTreeMap<String, String> {
        self.0
    }
}

/// A JSON object may name a key twice, and a map would keep the last: here that is an error.
impl<'de> Deserialize<'de> for EnvDraft {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> de::Visitor<'de> for Entries {
            type Value = EnvDraft;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of names and text values")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<EnvDraft, A::Error> {
                let mut env = EnvDraft::default();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if env.0.contains_key(&name) {
                        return Err(de::Error::custom(format!("environment variable {name:?} is given twice")));
                    }
                    env.insert(name, value).map_err(de::Error::custom)?;
                }
                Ok(env)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
