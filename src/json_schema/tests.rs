use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Map as Members, Value, json};
use tokio::time::Instant;

use super::{
    Formats, PATTERNS_MAX, SCHEMA_BYTES_MAX, Schema, SchemaFault, Unknown,
    expand::{LEVELS_MAX, SIZE_MAX},
    is_plain,
};

fn compile(schema: &Value) -> Result<Schema, SchemaFault> {
    Schema::compile(schema.to_string().as_bytes(), Formats::Annotations)
}

fn faults(schema: &Schema, value: &Value) -> Result<usize, Unknown> {
    let faults = schema.faults(value, |_| true, 8);
    assert_eq!(
        schema.is_valid(value),
        faults.as_ref().is_ok_and(Vec::is_empty)
    );
    faults.map(|faults| faults.len())
}

/// Asks that `schema` is not used, for a reason that has `reason` in it.
fn check_unused(schema: &Value, reason: &str) {
    let fault = compile(schema).expect_err(reason).to_string();
    assert!(fault.contains(reason), "{fault}");
    assert!(fault.len() < 400, "{fault}");
}

/// `count` definitions, each of which is what `of` makes of a reference to the next one; the last one
/// is `last`.
fn chain(count: usize, of: impl Fn(Value) -> Value, last: &Value) -> Value {
    let next = |index: usize| json!({ "$ref": format!("#/$defs/d{}", index + 1) });
    let mut definitions: Members<_, _> = (0..count)
        .map(|index| (format!("d{index}"), of(next(index))))
        .collect();
    definitions.insert(format!("d{count}"), last.clone());
    json!({ "$defs": definitions, "$ref": "#/$defs/d0" })
}

const DEEP: &str = "it is more than 64 deep";
const LARGE: &str = "it has more than 65536 parts";
const CIRCLE: &str = "leads in a circle";

#[test]
fn references_are_followed_so_deep_and_no_deeper() {
    let last = json!({ "required": ["b"] });
    let ways: [fn(Value) -> Value; 4] = [
        |next| json!({ "allOf": [{}, next] }),
        |next| json!({ "if": {}, "then": next, "else": false }),
        |next| json!({ "dependentSchemas": { "a": next } }),
        |next| json!({ "oneOf": [false, next] }),
    ];
    for way in ways {
        // Each takes a level and its reference another.
        let most = LEVELS_MAX / 2 - 1;
        let schema = compile(&chain(most, way, &last)).unwrap();
        assert!(!schema.is_valid(&json!({ "a": 1 })));
        assert!(schema.is_valid(&json!({ "a": 1, "b": 1 })));
        check_unused(&chain(most + 1, way, &last), DEEP);
    }
    check_unused(&chain(12_000, |next| next, &last), DEEP);
    let nested = |levels: usize| {
        let last = json!({ "type": "null" });
        (0..levels).fold(last, |inner, _| json!({ "items": inner }))
    };
    compile(&nested(LEVELS_MAX)).unwrap();
    check_unused(&nested(LEVELS_MAX + 1), DEEP);
    compile(&nested(LEVELS_MAX - 1)).unwrap();
}

/// Also a tree, as generators write types that have themselves in them.
#[test]
fn what_leads_in_a_circle_is_not_used() {
    for schema in [
        json!({ "anyOf": [{ "$ref": "#" }, {}] }),
        json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
        json!({ "$defs": { "n": { "properties": { "n": { "$ref": "#/$defs/n" } } } }, "$ref": "#/$defs/n" }),
        json!({ "properties": { "a": { "items": { "$ref": "#/properties/a" } } } }),
        json!({ "$defs": { "a b": { "allOf": [{ "$ref": "#/$defs/a%20b" }] } }, "items": { "$ref": "#/$defs/a b" } }),
        json!({ "$defs": { "a": { "not": { "$ref": "#/$defs/b" } }, "b": { "not": { "$ref": "#/$defs/a" } } }, "not": { "$ref": "#/$defs/a" } }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "definitions": { "n": { "items": { "$ref": "#/definitions/n" } } }, "$ref": "#/definitions/n" }),
    ] {
        check_unused(&schema, CIRCLE);
    }
}

#[test]
fn what_depends_on_the_way_to_it_is_not_used() {
    let old = "https://json-schema.org/draft/2019-09/schema";
    for (schema, keyword) in [
        (
            json!({ "$defs": { "a": { "$dynamicAnchor": "n" } }, "items": { "$dynamicRef": "#n" } }),
            "`$dynamicRef`",
        ),
        (
            json!({ "$schema": old, "$recursiveAnchor": true, "items": { "$recursiveRef": "#" } }),
            "`$recursiveRef`",
        ),
    ] {
        check_unused(&schema, keyword);
    }
}

#[test]
fn what_refers_to_elsewhere_or_by_name_is_not_used() {
    let meta = "http://json-schema.org/draft-07/schema#";
    for (schema, reason) in [
        (json!({ "$ref": "other.json" }), "`other.json`"),
        (
            json!({ "items": { "$ref": "https://example.com/a" } }),
            "`https://example.com/a`",
        ),
        (json!({ "items": { "$ref": meta } }), meta),
        (json!({ "$ref": "#nowhere" }), "`#nowhere`"),
        (
            json!({ "$defs": { "a": { "$anchor": "a" } }, "$ref": "#a" }),
            "`#a`",
        ),
        (json!({ "$ref": "#/nowhere" }), "`#/nowhere`"),
        (json!({ "$ref": "##" }), "`##`"),
        (
            json!({ "title": "x", "items": { "$ref": "#/title" } }),
            "`#/title`",
        ),
        (
            json!({ "allOf": [{}, {}], "items": { "$ref": "#/allOf/+1" } }),
            "`#/allOf/+1`",
        ),
        (
            json!({ "$ref": "x".repeat(500) }),
            "which is no JSON pointer",
        ),
        (
            json!({ "$defs": { "n": { "$id": "node", "$ref": "#/$defs/n" } }, "items": { "$ref": "#/$defs/n" } }),
            "parts with an `$id`",
        ),
    ] {
        check_unused(&schema, reason);
    }
}

#[test]
fn what_fans_out_is_not_used() {
    let twice = |next: Value| json!({ "allOf": [next, next] });
    let last = json!({ "required": ["b"] });
    check_unused(&chain(30, twice, &last), LARGE);
    let schema = compile(&chain(8, twice, &last)).unwrap();
    assert_eq!(faults(&schema, &json!({})), Ok(8), "of 256");
    let inner = |count: usize| json!({ "prefixItems": vec![json!({}); count] });
    compile(&inner(SIZE_MAX - 1)).unwrap();
    check_unused(&inner(SIZE_MAX), LARGE);
    compile(&inner(SIZE_MAX - 2)).unwrap();
}

/// What a validator keeps of a schema beside what it says, or asks again.
#[test]
fn what_takes_memory_to_compile_is_not_used() {
    let name = "n".repeat(20_000);
    let inner: Members<_, _> = (0..5_000).map(|n| (n.to_string(), json!({}))).collect();
    let long = json!({ "properties": { name: { "properties": inner } } });
    check_unused(&long, LARGE);
    let large: Vec<_> = (0..10_000).collect();
    let of = |levels| (0..levels).fold(json!({ "enum": large }), |it, _| json!({ "not": it }));
    compile(&of(2)).unwrap();
    check_unused(&of(20), LARGE);
    let text = json!({ "$defs": { "a": { "const": "x".repeat(100_000) } }, "allOf": vec![json!({ "$ref": "#/$defs/a" }); 100] });
    check_unused(&text, LARGE);
    let again =
        |next: Value| json!({ "properties": {}, "allOf": [next], "unevaluatedProperties": false });
    check_unused(&chain(12, again, &json!({})), LARGE);
    let once =
        json!({ "allOf": [{ "properties": { "b": true } }], "unevaluatedProperties": false });
    let once = compile(&once).unwrap();
    assert_eq!(faults(&once, &json!({ "b": 1 })), Ok(0));
    assert_eq!(faults(&once, &json!({ "a": 1 })), Ok(1));
}

/// References as generators write them stand for what they refer to.
#[test]
fn references_are_followed() {
    let old = |name: &str| format!("http://json-schema.org/draft-0{name}/schema#");
    let n = json!({ "type": "integer" });
    let to = |reference: &str| json!({ "n": { "$ref": reference } });
    for schema in [
        json!({ "$defs": { "n": n }, "properties": to("#/$defs/n") }),
        json!({ "$id": "https://example.com/a b", "$defs": { "n": n }, "properties": to("#/$defs/n") }),
        json!({ "$schema": old("7"), "definitions": { "n": n }, "properties": to("#/definitions/n") }),
        json!({ "$schema": old("4"), "id": "x/y", "definitions": { "n": n }, "properties": to("#/definitions/n") }),
        json!({ "properties": { "m": n, "n": { "$ref": "#/properties/m" } } }),
        json!({ "$defs": { "List<Foo> %": n }, "properties": to("#/$defs/List<Foo>%20%25") }),
        json!({ "$defs": { "a/b~c": n }, "properties": to("#/$defs/a~1b~0c") }),
        json!({ "x-any": [n], "properties": to("#/x-any/0") }),
        json!({ "components": { "n": n }, "properties": to("#/components/n") }),
        json!({ "$defs": { "n": n, "m": { "$ref": "#/$defs/n" } }, "properties": to("#/$defs/m") }),
        json!({ "$defs": { "n": { "$id": "#n", "type": "integer" } }, "properties": to("#/$defs/n") }),
    ] {
        let compiled = compile(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(faults(&compiled, &json!({ "n": 1 })), Ok(0), "{schema}");
        assert_eq!(faults(&compiled, &json!({ "n": "x" })), Ok(1), "{schema}");
    }
}

/// Up to draft 7 nothing counts beside a reference, later all does.
#[test]
fn what_stands_beside_a_reference_counts_by_draft() {
    let of = |draft: &str| {
        let definitions = json!({ "n": { "type": "integer" } });
        let n = json!({ "$ref": "#/definitions/n", "minimum": 5, "allOf": [{ "maximum": 7 }] });
        let schema =
            json!({ "definitions": definitions, "properties": { "n": n }, "$schema": draft });
        compile(&schema).unwrap()
    };
    let old = of("http://json-schema.org/draft-07/schema#");
    let new = of("https://json-schema.org/draft/2020-12/schema");
    for (value, in_old, in_new) in [(json!(6), 0, 0), (json!(4), 0, 1), (json!(8.5), 1, 2)] {
        let value = json!({ "n": value });
        assert_eq!(faults(&old, &value), Ok(in_old), "{value}");
        assert_eq!(faults(&new, &value), Ok(in_new), "{value}");
    }
}

/// Names that nothing refers to, and what is no schema, are in nobody's way.
#[test]
fn what_is_not_asked_is_not_followed() {
    for schema in [
        json!({ "$defs": { "a": { "$ref": "#/$defs/a" }, "b": { "$dynamicRef": "#b" } } }),
        json!({ "examples": [{ "$ref": "#/nowhere" }], "default": { "$ref": "x.json" } }),
        json!({ "properties": { "$id": { "type": "string" }, "$ref": { "type": "string" } } }),
        json!({ "properties": { "a": { "$id": "#/properties/a" }, "b": { "$id": "/properties/b" } } }),
        json!({ "$defs": { "a": { "$id": "A", "$ref": "B" } }, "x-own": { "$ref": "C" } }),
        json!({ "enum": [{}, { "$id": "a", "$anchor": "b", "$ref": "c" }] }),
        json!({ "properties": { "a": { "$schema": "http://json-schema.org/draft-07/schema#" } } }),
        json!({ "title": "a", "description": "b", "$comment": "c", "deprecated": true }),
    ] {
        let compiled = compile(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(faults(&compiled, &json!({})), Ok(0));
    }
}

#[test]
fn a_schema_at_past_and_back_under_its_length() {
    let of = |length: usize| {
        let padding = length - json!({ "title": "" }).to_string().len();
        compile(&json!({ "title": "x".repeat(padding) }))
    };
    of(SCHEMA_BYTES_MAX).unwrap();
    assert!(matches!(
        of(SCHEMA_BYTES_MAX + 1),
        Err(SchemaFault::Large(_))
    ));
    of(SCHEMA_BYTES_MAX - 1).unwrap();
}

#[test]
fn patterns_take_so_much_memory_and_no_more() {
    let of = |count: usize| {
        let patterns: Members<_, _> = (1..count).map(|n| (format!("^{n}"), json!(true))).collect();
        compile(&json!({ "patternProperties": patterns, "pattern": "^a" }))
    };
    of(PATTERNS_MAX).unwrap();
    let many = of(PATTERNS_MAX + 1);
    assert!(matches!(many, Err(SchemaFault::Patterns(257))), "{many:?}");
    of(PATTERNS_MAX - 1).unwrap();
    for (length, is_short) in [(4096, true), (4097, false), (4095, true)] {
        let long = compile(&json!({ "pattern": "x".repeat(length) }));
        assert_eq!(long.is_ok(), is_short, "{long:?}");
    }
    let looks: Vec<_> = (0..100)
        .map(|n| format!(r"(?=\p{{L}}{{150}}{n}x)"))
        .collect();
    let looks = looks.concat();
    for pattern in [r"\p{L}{5000}", r"(?!x)\p{L}{5000}", &looks, "("] {
        let large = compile(&json!({ "pattern": pattern }));
        assert!(
            matches!(large, Err(SchemaFault::Pattern { .. })),
            "{large:?}"
        );
    }
    for pattern in ["^.{1,5000}$", r"^\p{L}{1,64}$"] {
        let usual = compile(&json!({ "pattern": pattern })).unwrap();
        assert_eq!(faults(&usual, &json!("abc")), Ok(0));
    }
    let other = compile(&json!({ "pattern": "^(?!x)a" })).unwrap();
    assert_eq!(faults(&other, &json!("a")), Ok(0));
}

/// Each fault keeps where it is and what the schema says there; who sends a long name, or asks for
/// many, multiplies that.
#[test]
fn faults_are_collected_where_there_is_memory() {
    let names: Vec<_> = (0..40).map(|n| format!("n{n}")).collect();
    let schema =
        json!({ "type": "object", "additionalProperties": { "items": { "required": names } } });
    let schema = compile(&schema).unwrap();
    let of = |name: usize, items: usize| json!({ "x".repeat(name): vec![json!({}); items] });
    assert_eq!(faults(&schema, &of(10, 10)), Ok(8));
    assert_eq!(faults(&schema, &of(10, 10_000)), Err(Unknown::Uncollected));
    assert_eq!(faults(&schema, &of(100_000, 10)), Err(Unknown::Uncollected));
    // An alternative that fails keeps what it was asked about.
    let alternatives = vec![json!({ "type": "null" }); 50];
    let schema = compile(&json!({ "anyOf": alternatives })).unwrap();
    assert_eq!(faults(&schema, &json!("x")), Ok(1));
    assert_eq!(
        faults(&schema, &json!("x".repeat(1 << 20))),
        Err(Unknown::Uncollected)
    );
    let options: Vec<_> = (0..1_000).collect();
    let schema = compile(&json!({ "items": { "enum": options } })).unwrap();
    assert_eq!(faults(&schema, &json!(vec!["a"; 8])), Ok(8));
    assert_eq!(
        faults(&schema, &json!(vec!["a"; 100])),
        Err(Unknown::Uncollected)
    );
    let not = json!({ "not": { "enum": options } });
    let schema = compile(&json!({ "items": { "not": not } })).unwrap();
    assert_eq!(
        faults(&schema, &json!(vec!["a"; 100])),
        Err(Unknown::Uncollected)
    );
}

/// Each of them takes a validator longer than anybody waits where it is not known before how long.
#[test]
fn what_is_too_large_for_a_schema_is_not_asked() {
    let start = Instant::now();
    let options: Vec<_> = (0..60_000).map(|n| json!(n)).collect();
    let schema = compile(&json!({ "items": { "enum": options } })).unwrap();
    assert_eq!(
        faults(&schema, &json!(vec!["a"; 2000])),
        Err(Unknown::Unasked)
    );
    // A branch is asked again by all that look for what nothing has evaluated.
    let branches: Vec<_> = (0..4_000)
        .map(|n| json!({ "properties": { format!("m{n}"): true } }))
        .collect();
    let schema = compile(&json!({ "allOf": branches, "unevaluatedProperties": false })).unwrap();
    let members: Members<_, _> = (0..20_000).map(|n| (format!("m{n}"), json!(1))).collect();
    assert_eq!(
        faults(&schema, &Value::Object(members)),
        Err(Unknown::Unasked)
    );
    // A pattern goes back in each text.
    let schema = compile(&json!({ "items": { "pattern": r"^(?!x)(a*)*\1b$" } })).unwrap();
    let texts = json!(vec!["a".repeat(40); 300_000]);
    assert_eq!(faults(&schema, &texts), Err(Unknown::Unasked));
    assert!(start.elapsed() < Duration::from_secs(30));
}

/// A tree of one of many kinds, each of which is the others without it again.
#[test]
fn unions_within_unions_are_asked_in_time() {
    let kinds = |n: usize| {
        let kind = |next: &Value| json!({ "required": ["kind"], "properties": { "parts": { "items": next } } });
        (0..n).fold(
            json!({ "type": "null" }),
            |next, _| json!({ "anyOf": [kind(&next), kind(&next)] }),
        )
    };
    let schema = compile(&kinds(8)).unwrap();
    let tree = (0..8).fold(
        json!(1),
        |inner, _| json!({ "kind": "k", "parts": [inner, inner] }),
    );
    let start = Instant::now();
    assert!(faults(&schema, &tree).is_err());
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_is_plain_compiles() {
    let plain = |schema: Value, expect: bool| {
        assert_eq!(is_plain(&schema), expect, "{schema}");
        assert!(!expect || compile(&schema).is_ok(), "{schema}");
    };
    plain(json!({}), true);
    let seven = "http://json-schema.org/draft-07/schema#";
    plain(json!({ "$schema": seven, "type": "null" }), true);
    plain(
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "format": "strange",
            "properties": {
                "type": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 1.5 } },
                "$ref": true
            },
            "required": ["type", "x"],
            "additionalProperties": false
        }),
        true,
    );
    for odd in [
        json!({ "type": "strange" }),
        json!({ "$schema": "http://example.com/", "type": "object" }),
        json!({ "type": ["string"] }),
        json!({ "properties": { "a": { "type": 1 } } }),
        json!({ "properties": [] }),
        json!({ "required": ["a", "a"] }),
        json!({ "required": ["a", 1] }),
        json!({ "items": [{}] }),
        json!({ "minimum": "1" }),
        json!({ "$ref": "#/none" }),
        json!({ "pattern": "(" }),
    ] {
        plain(odd, false);
    }
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

    /// What is asked comes to an end: a reference that were left in a circle would end this process.
    #[test]
    fn whatever_is_compiled_is_asked_to_an_end(schema in any_schema()) {
        if let Ok(schema) = compile(&schema) {
            for value in [json!({ "c": { "c": [1] }, "d": [] }), json!([{ "c": [{}] }]), json!(1)] {
                let faults = schema.faults(&value, |_| true, 8);
                prop_assert_eq!(schema.is_valid(&value), faults.is_ok_and(|all| all.is_empty()));
            }
        }
    }
}
