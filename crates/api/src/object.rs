//! Requests are read from objects alone.
//!
//! What serde derives would also take a list, by the order of the fields: then a value could mean what nobody wrote, and a new field
//! would change what old requests say. Types named here derive with `#[serde(remote = "Self")]`, which makes the derived code a plain
//! function of the type, and get their trait from the macro.

/// Gives types `Serialize` and a `Deserialize` that takes objects only.
macro_rules! only_from_an_object {
    ($($name:ident),+ $(,)?) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;
                impl<'de> serde::de::Visitor<'de> for Object {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        $name::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }
                deserializer.deserialize_map(Object)
            }
        }
    )+};
}
pub(crate) use only_from_an_object;
