//! Objects that are objects: by itself, serde also takes a list for one, as the values of its fields in their order.

use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// Something that is read from an object, and from nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Object<T>(pub(super) T);

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(AsMap(deserializer)).map(Self)
    }
}

/// Reads a map, whatever is asked for.
struct AsMap<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AsMap<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Size {
        rows: u32,
        cols: u32,
    }

    #[test]
    fn a_list_is_no_object() {
        let read = |text: &str| serde_json::from_str::<Object<Size>>(text).map(|size| size.0).ok();
        assert_eq!(read(r#"{"cols": 2, "more": [1]}"#), Some(Size { rows: 0, cols: 2 }));
        assert_eq!(read("{}"), Some(Size::default()));
        for wrong in ["[1, 2]", "[]", "null", "1", "\"rows\""] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let read = |text: &str| serde_json::from_str::<Option<Object<Size>>>(text).ok().map(|size| size.is_some());
        assert_eq!([read("null"), read("{}"), read("[]")], [Some(false), Some(true), None]);
    }
}
