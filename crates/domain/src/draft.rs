//! Drafts: a spec as a file or the command line gives it, before defaults; and how two of them become one.
//!
//! Nothing is overridden: a value given twice, differently, is an error, because either reading would surprise someone.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, de};

use crate::mode::{FsMode, NetworkMode, Template, Tier, User};
use crate::path::{GuestPath, HostPath, ProtectedPath};
use crate::problem::{Code, Problem};
use crate::quantity::{ByteSize, Count, Cpus, Timeout};
use crate::spec::Mount;

/// The schema a spec file may name.
const SPEC_SCHEMA: &str = "saggar.spec/v1";
/// Most entries of the environment.
const ENV_ENTRIES_MAX: usize = 1024;

/// A spec with holes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct Draft {
    /// Which format the file is in; absent means the only one there is.
    pub schema: Option<String>,
    /// The isolation primitive.
    pub tier: Option<Tier>,
    /// The filesystem to start from.
    pub template: Option<Template>,
    /// The directory mounted at /workspace.
    pub workspace: Option<HostPath>,
    /// What may be written of it.
    pub fs: Option<FsMode>,
    /// Paths in the workspace that stay as they are, besides the built-in ones.
    pub protect: Vec<ProtectedPath>,
    /// More of the host's files and directories.
    pub mounts: Vec<Mount>,
    /// Environment of the program, besides the built-in one.
    pub env: EnvDraft,
    pub cwd: Option<GuestPath>,
    /// Who the program runs as.
    pub user: Option<User>,
    /// How it reaches the network.
    pub network: Option<NetworkMode>,
    /// Limits asked for.
    pub limits: DraftLimits,
    /// Whether an unenforceable default is an error too.
    pub strict: Option<bool>,
}

/// Limits with holes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct DraftLimits {
    pub timeout: Option<Timeout>,
    /// Memory of the tree.
    pub memory: Option<ByteSize>,
    pub cpus: Option<Cpus>,
    /// Processes and threads.
    pub pids: Option<Count>,
    pub disk: Option<ByteSize>,
    pub files: Option<Count>,
    pub output: Option<ByteSize>,
}

/// A table is read from a table alone. What serde derives would also take a list, by the order of the fields: then a value
/// could mean what nobody wrote, and a new field would change what old files say.
macro_rules! only_from_a_table {
    ($($name:ident),+) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Table;
                impl<'de> serde::de::Visitor<'de> for Table {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a table of fields")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        // The one that was derived: `remote` makes it a plain function of the type.
                        $name::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }
                deserializer.deserialize_map(Table)
            }
        }
    )+};
}
pub(crate) use only_from_a_table;

only_from_a_table!(Draft, DraftLimits);

/// Environment entries, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvDraft(BTreeMap<String, String>);

impl Draft {
    /// One draft out of two; an error where both speak of the same thing and disagree.
    pub fn merge(self, other: Self) -> Result<Self, Problem> {
        let mut env = self.env;
        for (name, value) in other.env.0 {
            env.insert(name, value)?;
        }
        Ok(Self {
            schema: one_of("schema", self.schema, other.schema)?,
            tier: one_of("tier", self.tier, other.tier)?,
            template: one_of("template", self.template, other.template)?,
            workspace: one_of("workspace", self.workspace, other.workspace)?,
            fs: one_of("fs", self.fs, other.fs)?,
            protect: joined(self.protect, other.protect),
            mounts: joined(self.mounts, other.mounts),
            env,
            cwd: one_of("cwd", self.cwd, other.cwd)?,
            user: one_of("user", self.user, other.user)?,
            network: one_of("network", self.network, other.network)?,
            limits: DraftLimits {
                timeout: one_of("timeout", self.limits.timeout, other.limits.timeout)?,
                memory: one_of("memory", self.limits.memory, other.limits.memory)?,
                cpus: one_of("cpus", self.limits.cpus, other.limits.cpus)?,
                pids: one_of("pids", self.limits.pids, other.limits.pids)?,
                disk: one_of("disk", self.limits.disk, other.limits.disk)?,
                files: one_of("files", self.limits.files, other.limits.files)?,
                output: one_of("output", self.limits.output, other.limits.output)?,
            },
            strict: one_of("strict", self.strict, other.strict)?,
        })
    }

    /// Refuses a file of a format this version doesn't read.
    pub fn check_schema(&self) -> Result<(), Problem> {
        match self.schema.as_deref() {
            None | Some(SPEC_SCHEMA) => Ok(()),
            Some(other) => Err(Problem::new(
                Code::InvalidSpec,
                format!("the spec is of schema {other:?}"),
                format!("this version reads {SPEC_SCHEMA:?}; leave `schema` out to mean that"),
            )),
        }
    }
}

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

fn one_of<T: PartialEq>(name: &str, a: Option<T>, b: Option<T>) -> Result<Option<T>, Problem> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(Problem::new(
            Code::AmbiguousMerge,
            format!("{name} is given both in the spec file and on the command line, differently"),
            "give it in one place: neither overrides the other",
        )),
        (a, b) => Ok(a.or(b)),
    }
}

/// The second list after the first, each entry once.
fn joined<T: PartialEq>(mut a: Vec<T>, b: Vec<T>) -> Vec<T> {
    for item in b {
        if !a.contains(&item) {
            a.push(item);
        }
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(json: &str) -> Draft {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn unknown_and_doubled_fields_are_errors() {
        for wrong in [
            r#"{"netwrok": "none"}"#,
            r#"{"limits": {"ram": "1G"}}"#,
            r#"{"fs": "scratch", "fs": "read-only"}"#,
            r#"{"env": {"A": "1", "A": "2"}}"#,
            r#"{"env": {"A=B": "1"}}"#,
            r#"{"env": {"A": "\u0000"}}"#,
            r#"{"workspace": "a\u0000b"}"#,
            r#"{"limits": {"memory": "-1"}}"#,
            r#"{"mounts": [{"host": "/a", "guest": "/b", "acces": "rw"}]}"#,
            r#"[]"#,
            r#"["saggar.spec/v1", "namespace"]"#,
            r#"{"limits": ["1h"]}"#,
            r#"{"mounts": [["/a", "/b", "rw"]]}"#,
        ] {
            assert!(serde_json::from_str::<Draft>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_same_value_twice_is_fine_and_another_is_ambiguous() {
        let one = draft(r#"{"limits": {"memory": "512M"}, "env": {"A": "1"}}"#);
        let same = draft(r#"{"limits": {"memory": "524288K"}, "env": {"A": "1"}}"#);
        assert_eq!(one.clone().merge(same), Ok(one.clone()));
        for other in [r#"{"limits": {"memory": "1G"}}"#, r#"{"env": {"A": "2"}}"#] {
            assert_eq!(one.clone().merge(draft(other)).unwrap_err().code, Code::AmbiguousMerge, "{other}");
        }
    }
}
