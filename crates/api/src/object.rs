//! Requests are deserialised from objects only.
//!
//! Serde's derived code would also accept a list, by the order of the fields: then a value could get an unintended
//! meaning, and a new field would change the meaning of old requests. Types named here derive with `#[serde(remote =
//! "Self")]`, which turns the derived code into a plain function, and get their trait from the macro.

/// Reads `$name` by what is derived for `$shape`, from an object only.
macro_rules! object_only {
    ($name:ident, $shape:ident, $deserializer:expr) => {{
        struct Object;
        impl<'de> serde::de::Visitor<'de> for Object {
            type Value = $name;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                $shape::deserialize(serde::de::value::MapAccessDeserializer::new(map))
            }
        }
        $deserializer.deserialize_map(Object)
    }};
}
pub(crate) use object_only;

/// Gives types `Serialize` and a `Deserialize` that accepts objects only.
macro_rules! only_from_an_object {
    ($($name:ident),+ $(,)?) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::object::object_only!($name, $name, deserializer)
            }
        }
    )+};
}
pub(crate) use only_from_an_object;

/// How the API writes a type of the domain whose own JSON is another process's: a module for `#[serde(with = …)]`, for `Option`s, and one
/// inside it for whole values. The shape derives with `remote`, so the compiler holds its fields against the type's.
macro_rules! shape_of {
    ($module:ident, $name:ident as $shape:ident) => {
        pub(crate) mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            use super::{$name, $shape};

            #[derive(Serialize, Deserialize)]
            #[serde(transparent)]
            struct Written(#[serde(with = "whole")] $name);

            pub(crate) fn serialize<S: Serializer>(value: &Option<$name>, serializer: S) -> Result<S::Ok, S::Error> {
                value.map(Written).serialize(serializer)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<$name>, D::Error> {
                Ok(Option::<Written>::deserialize(deserializer)?.map(|written| written.0))
            }

            pub(crate) mod whole {
                use super::{Deserializer, Serializer, $name, $shape};

                pub(crate) fn serialize<S: Serializer>(value: &$name, serializer: S) -> Result<S::Ok, S::Error> {
                    $shape::serialize(value, serializer)
                }

                pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                    crate::object::object_only!($name, $shape, deserializer)
                }
            }
        }
    };
}
pub(crate) use shape_of;
