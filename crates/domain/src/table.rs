//! Strict parsing of tables, by field name; and merging two of them.
//!
//! No value overrides another: two different values for one field are an error, because either choice could surprise
//! the user.

use crate::problem::{Code, Problem};

/// Parses a struct from a table only. The derived code would also accept a list, by the order of the fields; then a new
/// field would change the meaning of old files. Types named here derive with `#[serde(remote = "Self")]`.
macro_rules! only_from_a_table {
    ($($name:ident),+) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                // The one that was derived, as below.
                $name::serialize(self, serializer)
            }
        }

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

pub(crate) fn one_of<T: PartialEq>(name: &str, a: Option<T>, b: Option<T>) -> Result<Option<T>, Problem> {
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
pub(crate) fn joined<T: PartialEq>(mut a: Vec<T>, b: Vec<T>) -> Vec<T> {
    for item in b {
        if !a.contains(&item) {
            a.push(item);
        }
    }
    a
}
