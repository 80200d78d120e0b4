//! What parts are called, and what references to them mean.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Map as Members, Value, json};

use super::{compile, faults, is_valid};
use crate::json_schema::SchemaFault;

/// A reference that names a part by its identifier leads to that part alone, so recursive types as
/// generators write them are no circles.
#[test]
fn a_reference_to_a_name_leads_nowhere_else() {
    for base in ["", "https://example.com/types/"] {
        let name = |name: &str| format!("{base}{name}");
        let schema = json!({
            "$id": name("Tree"),
            "$defs": {
                "Leaf": { "$id": name("Leaf"), "type": "integer" },
                "Node": { "$id": name("Node"), "anyOf": [
                    { "$ref": name("Leaf") },
                    { "type": "array", "items": { "$ref": name("Node") } },
                ] },
            },
            "$ref": name("Node"),
        });
        let schema = compile(&schema).unwrap_or_else(|error| panic!("{base}: {error}"));
        assert_eq!(faults(&schema, &json!([1, [2, [3, []]]])), Some(0));
        assert_eq!(faults(&schema, &json!([1, [2, ["x"]]])), Some(1));
    }
}

#[test]
fn what_means_no_one_part_is_refused() {
    let two = |one: Value, other: Value, reference: &str| json!({ "$defs": { "a": one, "b": other }, "items": { "$ref": reference } });
    let (a, anchor) = (json!({ "$id": "A" }), json!({ "$anchor": "a" }));
    for (schema, reason) in [
        (two(a.clone(), a, "A"), "`A`"),
        (two(anchor, json!({ "$dynamicAnchor": "a" }), "#a"), "`#a`"),
        (json!({ "$ref": "other.json" }), "`other.json`"),
        (json!({ "$ref": "#nowhere" }), "`#nowhere`"),
        (json!({ "$ref": "##" }), "`##`"),
        (
            json!({ "items": { "$ref": "#/default" }, "default": {} }),
            "`#/default`",
        ),
        (
            json!({ "items": { "$ref": "#/properties" }, "properties": {} }),
            "`#/properties`",
        ),
        (
            json!({ "allOf": [{}, {}], "items": { "$ref": "#/allOf/+1" } }),
            "`#/allOf/+1`",
        ),
        (
            json!({ "allOf": [{}, {}], "items": { "$ref": "#/allOf/00" } }),
            "`#/allOf/00`",
        ),
        (
            json!({ "$ref": "#/$defs/a", "$dynamicRef": "#", "$defs": { "a": true } }),
            "more than one",
        ),
        (
            two(
                json!({ "$id": "A" }),
                json!({ "$recursiveRef": "#" }),
                "#/$defs/b",
            ),
            "$recursiveRef",
        ),
    ] {
        match compile(&schema) {
            Err(SchemaFault::Unfollowed(why)) => assert!(why.to_string().contains(reason), "{why}"),
            other => panic!("{schema}: {other:?}"),
        }
    }
}

/// However generators name parts, what they refer to is found.
#[test]
fn names_of_all_kinds_are_followed() {
    let node = |id: Value, reference: &str| {
        let mut node = json!({ "type": "object", "properties": { "n": { "$ref": reference } } });
        node.as_object_mut()
            .unwrap()
            .extend(id.as_object().unwrap().clone());
        node
    };
    let id = |id: &str| json!({ "$id": id });
    let draft = |name: &str| format!("http://json-schema.org/draft-0{name}/schema#");
    for schema in [
        json!({ "properties": { "n": node(id("T0"), "T0") } }),
        json!({ "$defs": { "x": node(id("urn:x:y"), "urn:x:y") }, "$ref": "urn:x:y" }),
        json!({ "$defs": { "x": node(id("/schemas/a"), "/schemas/a") }, "$ref": "/schemas/a" }),
        json!({ "$defs": { "x": node(id("https://H/a?b=%41"), "#") }, "$ref": "https://H/a?b=%41#" }),
        json!({ "$defs": { "x": node(json!({ "$anchor": "foo.bar" }), "#foo.bar") }, "$ref": "#foo.bar" }),
        json!({ "$defs": { "x": node(json!({ "$dynamicAnchor": "a" }), "#a") }, "$dynamicRef": "#a" }),
        json!({ "$defs": { "List<Foo> %": node(json!({}), "#/$defs/List<Foo>%20%25") }, "$ref": "#/$defs/List<Foo>%20%25" }),
        json!({ "$defs": { "a/b~c": node(json!({}), "#/$defs/a~1b~0c") }, "$ref": "#/$defs/a~1b~0c" }),
        json!({ "$schema": draft("7"), "definitions": { "x": node(id("A"), "A") }, "$ref": "A" }),
        json!({ "$schema": draft("7"), "definitions": { "x": node(id("#a"), "#a") }, "$ref": "#a" }),
        json!({ "$schema": draft("4"), "definitions": { "x": node(json!({ "id": "A" }), "A") }, "$ref": "A" }),
        json!({ "$schema": draft("7"), "$id": "T", "type": "object", "properties": { "n": { "$ref": "T" } } }),
    ] {
        let compiled = compile(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(
            faults(&compiled, &json!({ "n": { "n": {} } })),
            Some(0),
            "{schema}"
        );
        assert_eq!(
            faults(&compiled, &json!({ "n": { "n": 1 } })),
            Some(1),
            "{schema}"
        );
    }
}

/// Types that all refer to one another, each with an `$id`: compiled along every way there is between
/// them they would be endless.
#[test]
fn types_with_names_are_compiled_once() {
    let names: Vec<_> = (0..20).map(|n| format!("T{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| json!({ "$ref": name })).collect();
    let of = |name: &String| json!({ "$id": name, "items": { "anyOf": all }, "minItems": 0 });
    let definitions: Members<_, _> = names.iter().map(|name| (name.clone(), of(name))).collect();
    let schema = json!({ "$defs": definitions, "$ref": "T7" });
    let schema = compile(&schema).unwrap();
    assert!(is_valid(&schema, &json!([[], [1]])));
}

/// Names that nothing refers to, and what is no schema, are in nobody's way.
#[test]
fn what_is_not_asked_is_not_followed() {
    for schema in [
        json!({ "$defs": { "a": { "$ref": "#/$defs/a" } } }),
        json!({ "examples": [{ "$ref": "#/nowhere" }], "default": { "$ref": "x.json" } }),
        json!({ "properties": { "$id": { "type": "string" }, "$ref": { "type": "string" } } }),
        json!({ "properties": { "id": { "type": "string" } }, "default": { "id": "a/b" } }),
        json!({ "$id": "https://example.com/a b", "type": "object" }),
        json!({ "properties": { "a": { "$id": "#/properties/a" }, "b": { "$id": "/properties/b" } } }),
        json!({ "$defs": { "a": { "$id": "A", "$ref": "B" } }, "x-own": { "$ref": "C" } }),
        json!({ "enum": [{}, { "$id": "a", "$anchor": "b" }], "const": {} }),
        json!({ "properties": { "a": { "$schema": "http://json-schema.org/draft-07/schema#" } } }),
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "id": "x/y", "type": "object" }),
    ] {
        let schema = compile(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(faults(&schema, &json!({})), Some(0));
    }
}

#[test]
fn a_bundle_of_schemas_is_followed() {
    let schema = json!({
        "$id": "https://example.com/tree",
        "$defs": {
            "n": { "$id": "https://example.com/node", "$defs": { "v": { "type": "integer" } },
                "properties": { "v": { "$ref": "#/$defs/v" }, "n": { "$ref": "#" } } },
        },
        "$ref": "https://example.com/node",
        "properties": { "w": { "$ref": "https://example.com/node#/$defs/v" }, "x": { "$ref": "#/$defs/n/$defs/v" } },
    });
    let schema = compile(&schema).unwrap();
    assert_eq!(
        faults(&schema, &json!({ "v": 1, "n": { "v": 2 }, "w": 3 })),
        Some(0)
    );
    let wrong = json!({ "v": "a", "n": { "v": "b" }, "w": "c", "x": "d" });
    assert_eq!(faults(&schema, &wrong), Some(4));
}

/// Identifiers, and the documents of references.
const IDS: [&str; 14] = [
    "A",
    "B",
    "",
    ".",
    "a/b",
    "../A",
    "%41",
    "urn:x:A",
    "https://h/A",
    "https://H/A",
    "https://h:443/A",
    "#a",
    "A#a",
    "http://json-schema.org/draft-07/schema",
];
const FRAGMENTS: [&str; 12] = [
    "",
    "#",
    "#/",
    "##",
    "#a",
    "#%61",
    "#/$defs/A",
    "#/%24defs/B",
    "#/allOf/0",
    "#/allOf/+0",
    "#/$defs/A/$defs/B",
    "#/examples/c",
];
const DRAFTS: [&str; 4] = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
];

/// A keyword with what may stand there, `inner` or a name.
fn keyword(inner: impl Strategy<Value = Value> + Clone) -> impl Strategy<Value = (String, Value)> {
    let of = |keywords: &'static [&'static str]| select(keywords).prop_map(str::to_owned);
    let reference = (select(&IDS), select(&FRAGMENTS), any::<bool>()).prop_map(
        |(document, fragment, is_here)| {
            let document = if is_here { "" } else { document };
            json!(format!("{document}{fragment}"))
        },
    );
    let named = |names: &'static [&'static str]| {
        let inner = inner.clone();
        vec((select(names), inner), 1..3).prop_map(|all| all.into_iter().collect::<Value>())
    };
    prop_oneof![
        4 => (of(&["$ref", "$ref", "$dynamicRef", "$recursiveRef"]), reference),
        2 => (of(&["$id", "$id", "id"]), select(&IDS).prop_map(|id| json!(id))),
        1 => (of(&["$anchor", "$dynamicAnchor"]), select(&["a", "b", "%61"]).prop_map(|id| json!(id))),
        1 => (of(&["$recursiveAnchor", "additionalProperties"]), any::<bool>().prop_map(|is| json!(is))),
        1 => (of(&["$schema"]), select(&DRAFTS).prop_map(|draft| json!(draft))),
        4 => (
            of(&["not", "if", "then", "items", "contains", "additionalProperties",
                "unevaluatedProperties", "unevaluatedItems", "propertyNames"]),
            inner.clone()
        ),
        3 => (of(&["allOf", "anyOf", "oneOf"]), vec(inner.clone(), 1..3).prop_map(|all| json!(all))),
        3 => (of(&["$defs", "$defs", "definitions"]), named(&["A", "B"])),
        3 => (of(&["properties", "dependentSchemas", "examples", "default"]), named(&["c", "$id"])),
    ]
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(true)), Just(json!({ "type": "object" }))];
    leaf.prop_recursive(5, 48, 6, |inner| {
        vec(keyword(inner), 1..6).prop_map(|all| all.into_iter().collect::<Value>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// What is asked comes to an end: a walk that led elsewhere than the validator would end this
    /// process.
    #[test]
    fn whatever_is_compiled_is_asked_to_an_end(schema in any_schema()) {
        if let Ok(schema) = compile(&schema) {
            for value in [json!({ "c": { "c": [1] }, "d": [] }), json!([{ "c": [{}] }]), json!(1)] {
                if let Ok(question) = schema.question(&value) {
                    let faults = question.faults(|_| true, 8);
                    prop_assert_eq!(question.is_valid(), faults.is_some_and(|all| all.is_empty()));
                }
            }
        }
    }
}
