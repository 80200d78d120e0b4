//! The tree of `node` into the types of `file`, through serde.
//!
//! `validate` has checked the tree before, so that a failure here is a disagreement between a type's
//! schema and its `Deserialize`; it is reported all the same, never a panic.

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, Error as _, IntoDeserializer, Visitor,
        value::{Error, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

use crate::config::node::{ConfigValue, Node};

/// Reads `T` from `node`.
///
/// # Errors
/// The message of the type's `Deserialize`.
pub(in crate::config) fn decode<T: DeserializeOwned>(node: &Node) -> Result<T, Error> {
    T::deserialize(NodeDeserializer(node))
}

/// A node as a deserializer.
#[derive(Clone, Copy)]
struct NodeDeserializer<'n>(&'n Node);

impl<'de> IntoDeserializer<'de, Error> for NodeDeserializer<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.value {
            ConfigValue::Bool(value) => visitor.visit_bool(*value),
            ConfigValue::Float(value) => visitor.visit_f64(*value),
            ConfigValue::Integer(value) => visitor.visit_i64(*value),
            ConfigValue::List(list) => {
                visitor.visit_seq(SeqDeserializer::new(list.iter().map(NodeDeserializer)))
            }
            ConfigValue::Null => visitor.visit_unit(),
            ConfigValue::Table(table) => {
                let entries = table
                    .iter()
                    .map(|(key, entry)| (key.as_str(), NodeDeserializer(&entry.node)));
                visitor.visit_map(MapDeserializer::new(entries))
            }
            ConfigValue::Text(text) => visitor.visit_borrowed_str(text),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if let ConfigValue::Null = self.0.value {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let word = self
            .0
            .as_text()
            .ok_or_else(|| Error::custom(format!("{name} is a word")))?;
        word.into_deserializer()
            .deserialize_enum(name, variants, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
