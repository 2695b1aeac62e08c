//! Requests are deserialised from objects only.
//!
//! Serde's derived code would also accept a list, by the order of the fields: then a value could get an unintended
//! meaning, and a new field would change the meaning of old requests. Types named here derive with `#[serde(remote =
//! "Self")]`, which turns the derived code into a plain function, and get their trait from the macro.

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
