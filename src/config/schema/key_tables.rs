//! Where in a config a key belongs that stands where it does not.

use serde_json::Value as Json;

use super::{options_of, resolve};
use crate::config::{diagnostics::suggest, node::join_path};

/// How many places are worth naming; a key with more of them says too little.
const PLACES_NAMED_MAX: usize = 3;

/// What stands for a name that the operator gives.
const NAME: &str = "<name>";

/// Says which tables of the config that `root` describes have a key `key`, if any do, and few.
pub(in crate::config) fn describe_places(root: &Json, key: &str) -> Option<String> {
    let named = |place: &String| match place.as_str() {
        "" => "the outermost table".to_owned(),
        path => format!("`{path}`"),
    };
    let named: Vec<String> = tables_with_key(root, key).iter().map(named).collect();
    (!named.is_empty()).then(|| {
        format!(
            "`{key}` belongs to \
        {}",
            suggest::join_words(&named, "and")
        )
    })
}

/// The tables of the config that `root` describes which have a key `key`, as paths, `""` for the
/// outermost; none where there are more than [`PLACES_NAMED_MAX`].
fn tables_with_key(root: &Json, key: &str) -> Vec<String> {
    let mut search = SchemaSearch {
        root,
        key,
        visited: Vec::new(),
        places: Vec::new(),
    };
    search.visit(root, "");
    let mut places = search.places;
    places.sort();
    places.dedup();
    if places.len() > PLACES_NAMED_MAX {
        places.clear();
    }
    places
}

struct SchemaSearch<'s> {
    root: &'s Json,
    key: &'s str,
    /// The definitions that the place reached is inside of.
    visited: Vec<&'s str>,
    places: Vec<String>,
}

impl<'s> SchemaSearch<'s> {
    fn visit(&mut self, schema: &'s Json, path: &str) {
        let (name, schema) = resolve(self.root, schema);
        if self.visited.contains(&name) {
            return;
        }
        if name.is_empty() {
            self.visit_parts(schema, path);
        } else {
            self.visited.push(name);
            self.visit(schema, path);
            self.visited.pop();
        }
    }

    /// What `schema` itself, not a reference, is made of.
    fn visit_parts(&mut self, schema: &'s Json, path: &str) {
        for option in options_of(schema) {
            self.visit(option, path);
        }
        let properties = schema.get("properties").and_then(Json::as_object);
        for (name, property) in properties.into_iter().flatten() {
            if name == self.key {
                self.places.push(path.to_owned());
            }
            self.visit(property, &join_path(path, name));
        }
        if let Some(named) = schema.get("additionalProperties") {
            // Not quoted, as such a name would be.
            let named_path = if path.is_empty() {
                NAME.to_owned()
            } else {
                format!("{path}.{NAME}")
            };
            self.visit(named, &named_path);
        }
        if let Some(items) = schema.get("items") {
            self.visit(items, &format!("{path}[]"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_table_that_has_the_key_is_found_unless_there_are_many() {
        let root = json!({
            "properties": {
                "deep": {"additionalProperties": {"$ref": "#/$defs/Deep"}},
                "few": {"properties": {"key": {}, "list": {"items": {"properties": {"key": {}}}}}},
                "one": {},
            },
            "$defs": {"Deep": {"anyOf": [
                {"type": "null"},
                {"properties": {"deeper": {"$ref": "#/$defs/Deep"}, "key": {}, "many": {}}},
                {"properties": {"many": {}, "a": {"properties": {"many": {}}},
                    "b": {"properties": {"many": {}}}, "c": {"properties": {"many": {}}}}},
            ]}},
        });
        assert_eq!(tables_with_key(&root, "one"), [""]);
        assert_eq!(
            tables_with_key(&root, "key"),
            ["deep.<name>", "few", "few.list[]"]
        );
        assert_eq!(tables_with_key(&root, "many"), [""; 0]);
        assert_eq!(tables_with_key(&root, "none"), [""; 0]);
    }
}
