//! Which types of JSON the input schema of a tool wants at the place of a rule. Where it does not say, all
//! are wanted.

use serde_json::Value;

use super::pointer::PointerToken;
use crate::{json_schema::SCHEMA_BYTES_MAX, mcp::Raw};

/// Subschemas that are looked at for one step.
const BRANCHES_MAX: usize = 64;

/// Types of JSON.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct JsonTypes(u8);

impl JsonTypes {
    const NULL: Self = Self(1);
    pub(super) const BOOLEAN: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    /// Integers too.
    pub(super) const NUMBER: Self = Self(4 | 8);
    pub(super) const STRING: Self = Self(16);
    const ARRAY: Self = Self(32);
    const OBJECT: Self = Self(64);
    /// Any.
    pub(super) const ANY: Self = Self(127);

    /// What `schema` wants where `path` leads.
    pub(super) fn expected_at(path: &[PointerToken], schema: Option<&Raw>) -> Self {
        let schema = schema.filter(|schema| schema.as_bytes().len() <= SCHEMA_BYTES_MAX);
        let root = schema.and_then(|schema| schema.read::<Value>().ok());
        root.and_then(|root| resolve(&root, path))
            .unwrap_or(Self::ANY)
    }

    /// Whether only what is of `types` is wanted, or null.
    pub(super) fn is_subset_of(self, types: Self) -> bool {
        self.0 & types.0 != 0 && self.0 & !(types.0 | Self::NULL.0) == 0
    }

    fn intersects(self, types: Self) -> bool {
        self.0 & types.0 != 0
    }

    fn from_name(name: &Value) -> Self {
        match name.as_str() {
            Some("null") => Self::NULL,
            Some("boolean") => Self::BOOLEAN,
            Some("integer") => Self::INTEGER,
            Some("number") => Self::NUMBER,
            Some("string") => Self::STRING,
            Some("array") => Self::ARRAY,
            Some("object") => Self::OBJECT,
            Some(_) | None => Self::ANY,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// What one subschema says of itself.
    fn from_schema(schema: &Value) -> Self {
        let all = |names: &[Value], of: fn(&Value) -> Self| {
            let types = names.iter().map(of);
            types.fold(Self(0), |all, types| Self(all.0 | types.0))
        };
        match (schema.get("type"), schema.get("enum"), schema.get("const")) {
            (Some(Value::Array(names)), _, _) => all(names, Self::from_name),
            (Some(name), _, _) => Self::from_name(name),
            (None, Some(Value::Array(values)), _) => all(values, Self::of_value),
            (None, None, Some(value)) => Self::of_value(value),
            _ => Self::ANY,
        }
    }
}

/// `None` where the schema does not say.
fn resolve(root: &Value, path: &[PointerToken]) -> Option<JsonTypes> {
    let mut places = alternatives(root, root)?;
    for token in path {
        let mut next = Vec::new();
        for place in places {
            match subschema(place, token) {
                Some(inner) => next.extend(alternatives(root, inner)?),
                // What stands there has no members or elements.
                None if !JsonTypes::from_schema(place).intersects(container_of(token)) => {}
                None => return None,
            }
        }
        places = next;
    }
    let types = places.into_iter().map(JsonTypes::from_schema);
    types.reduce(|all, types| JsonTypes(all.0 | types.0))
}

fn container_of(token: &PointerToken) -> JsonTypes {
    match token {
        PointerToken::Name(name) if name.index.is_none() => JsonTypes::OBJECT,
        PointerToken::Each | PointerToken::Name(_) => {
            JsonTypes(JsonTypes::ARRAY.0 | JsonTypes::OBJECT.0)
        }
    }
}

/// What `schema` says of what `token` leads to.
fn subschema<'s>(schema: &'s Value, token: &PointerToken) -> Option<&'s Value> {
    let items = || schema.get("items").filter(|items| items.is_object());
    match token {
        PointerToken::Each => {
            // What else it may lead to is not said.
            let is_list = JsonTypes::from_schema(schema).is_subset_of(JsonTypes::ARRAY);
            items().filter(|_| is_list && schema.get("prefixItems").is_none())
        }
        PointerToken::Name(name) => {
            let member = schema.get("properties").and_then(|all| all.get(&name.text));
            let first = |index| schema.get("prefixItems").and_then(|all| all.get(index));
            let element = name.index.map(|index| first(index).or_else(items));
            member.or_else(|| element.flatten())
        }
    }
}

/// The subschemas one of which a value has to fit that fits `schema`; `None` where more is to be known.
fn alternatives<'s>(root: &'s Value, schema: &'s Value) -> Option<Vec<&'s Value>> {
    let (mut open, mut found) = (vec![schema], Vec::new());
    for _ in 0..BRANCHES_MAX {
        let Some(schema) = open.pop() else {
            return Some(found);
        };
        if let Some(reference) = schema.get("$ref") {
            let pointer = reference.as_str()?.strip_prefix('#')?;
            open.push(root.pointer(pointer)?);
            continue;
        }
        if schema.get("$dynamicRef").is_some() {
            return None;
        }
        let any = ["anyOf", "oneOf"].map(|key| schema.get(key).and_then(Value::as_array));
        match (any, schema.get("allOf").and_then(Value::as_array)) {
            ([None, None], None) => found.push(schema),
            ([Some(all), None] | [None, Some(all)], None) => open.extend(all),
            // As pydantic writes a reference beside other keywords.
            ([None, None], Some(all)) if all.len() == 1 => open.extend(all),
            _ => return None,
        }
    }
    None
}
