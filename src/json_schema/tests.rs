use serde_json::{Map as Members, Value, json};

use super::{
    Formats, PATTERNS_MAX, SCHEMA_BYTES_MAX, Schema, TOLD_VISITS_MAX, TooFar, Unusable,
    walk::LEVELS_MAX,
};

fn compile(schema: &Value) -> Result<Schema, Unusable> {
    Schema::compile(schema.to_string().as_bytes(), Formats::Annotations)
}

/// How many faults `value` has.
fn faults(schema: &Schema, value: &Value) -> Option<usize> {
    let question = schema.question(value).unwrap();
    let faults = question.faults(|_| true, 8);
    assert_eq!(
        question.is_valid(),
        faults.as_ref().is_some_and(Vec::is_empty)
    );
    faults.map(|faults| faults.len())
}

fn too_far(schema: &Value) -> TooFar {
    match compile(schema) {
        Err(Unusable::TooFar(far)) => far,
        other => panic!("{other:?}"),
    }
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

/// `value` in so many objects.
fn nested(levels: usize, value: Value) -> Value {
    (0..levels).fold(value, |inner, _| json!({ "a": inner }))
}

#[test]
fn references_are_followed_as_deep_as_there_is_room() {
    let ways: [fn(Value) -> Value; 6] = [
        |next| next,
        |next| json!({ "allOf": [{}, next] }),
        |next| json!({ "not": { "not": next } }),
        |next| json!({ "if": {}, "then": next, "else": false }),
        |next| json!({ "dependentSchemas": { "a": next } }),
        |next| json!({ "oneOf": [false, next] }),
    ];
    let last = json!({ "required": ["b"] });
    for way in ways {
        // The root refers to the first, each of them takes the same number of levels.
        let each = compile(&chain(2, way, &last)).unwrap();
        let each = (each.question(&json!({ "a": 1 })).unwrap().levels - 2) / 2;
        let most = (LEVELS_MAX - 2) / each;
        let schema = compile(&chain(most, way, &last)).unwrap();
        assert_eq!(faults(&schema, &json!({ "a": 1 })), Some(1));
        assert_eq!(faults(&schema, &json!({ "a": 1, "b": 1 })), Some(0));
        assert_eq!(too_far(&chain(LEVELS_MAX, way, &last)), TooFar::Levels);
    }
}

#[test]
fn what_is_not_evaluated_is_found_as_deep() {
    let last = json!({ "properties": { "b": true } });
    let of = |count| {
        let mut schema = chain(count, |next| json!({ "allOf": [next] }), &last);
        schema["unevaluatedProperties"] = json!(false);
        schema
    };
    let schema = compile(&of(LEVELS_MAX / 2 - 2)).unwrap();
    assert_eq!(faults(&schema, &json!({ "b": 1 })), Some(0));
    assert_eq!(faults(&schema, &json!({ "a": 1, "b": 1 })), Some(1));
    assert_eq!(too_far(&of(LEVELS_MAX / 2)), TooFar::Levels);
}

#[test]
fn a_schema_may_lead_into_a_value_as_deep_as_there_is_room() {
    let of = |count| {
        let last = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/d0" } } });
        compile(&chain(count, |next| next, &last)).unwrap()
    };
    let schema = of(30);
    assert_eq!(faults(&schema, &nested(120, json!({}))), Some(0));
    assert_eq!(faults(&schema, &nested(120, json!(1))), Some(1));
    let far = of(60).question(&nested(120, json!({}))).map(|_| ());
    assert_eq!(far, Err(TooFar::Levels));
}

#[test]
fn circles_lead_nowhere() {
    let anchors = json!({
        "$defs": { "a": { "$anchor": "one", "$ref": "#two" }, "b": { "$anchor": "two", "$ref": "#one" } },
        "properties": { "a": { "$ref": "#one" } },
    });
    let dynamic = json!({
        "$defs": { "a": { "$dynamicAnchor": "n", "allOf": [{ "$dynamicRef": "#n" }] } },
        "properties": { "a": { "$dynamicRef": "#n" } },
    });
    let within = json!({
        "$id": "https://example.com/root",
        "$defs": {
            "a": { "$id": "inner", "$defs": { "x": { "$ref": "inner#/$defs/y" }, "y": { "$ref": "#/$defs/x" } } },
        },
        "properties": { "a": { "$ref": "inner#/$defs/x" } },
    });
    let old = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": { "a": { "$id": "#one", "allOf": [{ "$ref": "#one" }] } },
        "properties": { "a": { "$ref": "#one" } },
    });
    let disguised = json!({
        "$defs": { "a": { "$id": "https://json-schema.org/own", "allOf": [{ "$ref": "https://json-schema.org/own" }] } },
        "properties": { "a": { "$ref": "https://json-schema.org/own" } },
    });
    let escaped = json!({ "$defs": { "a b": { "allOf": [{ "$ref": "#/$defs/a%20b" }] } } });
    let recursive = json!({
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$recursiveAnchor": true,
        "allOf": [{ "$recursiveRef": "#" }],
    });
    let whole = json!({ "anyOf": [{ "$ref": "#" }, {}] });
    for schema in [
        anchors, dynamic, within, old, disguised, escaped, recursive, whole,
    ] {
        assert_eq!(too_far(&schema), TooFar::Levels, "{schema}");
    }
}

#[test]
fn what_fans_out_is_not_asked() {
    let twice = |next: Value| json!({ "allOf": [next, next] });
    let last = json!({ "required": ["b"] });
    assert_eq!(too_far(&chain(30, twice, &last)), TooFar::Visits);
    let schema = compile(&chain(8, twice, &last)).unwrap();
    assert_eq!(faults(&schema, &json!({})), Some(8), "of 256");
    // Past a number of places only whether there are any is told.
    let schema = compile(&chain(17, twice, &last)).unwrap();
    assert!(schema.question(&json!({})).unwrap().visits > TOLD_VISITS_MAX);
    assert_eq!(faults(&schema, &json!({})), None);
    assert_eq!(faults(&schema, &json!({ "b": 1 })), Some(0));

    let inner = json!({ "properties": { "a": { "$ref": "#" } } });
    let schema = compile(&json!({ "anyOf": [inner, inner] })).unwrap();
    assert_eq!(faults(&schema, &nested(9, json!({}))), Some(0));
    let far = schema.question(&nested(30, json!({}))).map(|_| ());
    assert_eq!(far, Err(TooFar::Visits));
}

/// Visits of a reference, what it leads to, and both parts of that.
const EACH: usize = 4;

#[test]
fn every_keyword_leads_where_its_subschemas_are_asked() {
    let visits = |schema: &Value, value: &Value| {
        let mut schema = schema.clone();
        schema["$defs"] = json!({ "t": { "allOf": [{}, {}] } });
        let schema = compile(&schema).unwrap();
        schema.question(value).unwrap().visits
    };
    let t = || json!({ "$ref": "#/$defs/t" });
    let object = json!({ "a": 1, "b": 2, "c": 3 });
    let array = json!([1, 2, 3]);
    for (schema, value, times) in [
        (json!({ "properties": { "a": t(), "x": t() } }), &object, 1),
        (json!({ "additionalProperties": t() }), &object, 3),
        (json!({ "unevaluatedProperties": t() }), &object, 3),
        (json!({ "propertyNames": t() }), &object, 3),
        (
            json!({ "patternProperties": { "a": t(), "b": t() } }),
            &object,
            6,
        ),
        (json!({ "properties": { "a": t() } }), &array, 0),
        (json!({ "items": t() }), &array, 3),
        (json!({ "prefixItems": [t(), t()] }), &array, 2),
        (json!({ "prefixItems": [t(), t()] }), &object, 0),
        (json!({ "contains": t() }), &array, 3),
        (json!({ "unevaluatedItems": t() }), &array, 3),
        (
            json!({ "dependentSchemas": { "a": t(), "x": t() } }),
            &object,
            2,
        ),
        (json!({ "if": t(), "then": t(), "else": t() }), &array, 3),
        (
            json!({ "not": t(), "oneOf": [t()], "anyOf": [t()] }),
            &array,
            3,
        ),
        (
            json!({ "allOf": [t()], "unevaluatedItems": true }),
            &json!([]),
            2,
        ),
    ] {
        assert_eq!(visits(&schema, value), 1 + times * EACH, "{schema}");
    }
}

#[test]
fn json_schema_itself_may_be_referred_to() {
    for itself in [
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    ] {
        let schema = json!({ "$schema": itself, "properties": { "a": { "$ref": itself } } });
        let schema = compile(&schema).unwrap();
        let deep = |last: Value| {
            let inner = (0..120).fold(last, |inner, _| json!({ "not": inner }));
            json!({ "a": inner })
        };
        assert_eq!(faults(&schema, &deep(json!({}))), Some(0));
        assert_eq!(faults(&schema, &deep(json!({ "type": 5 }))), Some(1));
    }
}

#[test]
fn a_schema_at_past_and_back_under_its_length() {
    let of = |length: usize| {
        let padding = length - json!({ "title": "" }).to_string().len();
        compile(&json!({ "title": "x".repeat(padding) }))
    };
    of(SCHEMA_BYTES_MAX).unwrap();
    assert!(matches!(of(SCHEMA_BYTES_MAX + 1), Err(Unusable::Large(_))));
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
    assert!(matches!(many, Err(Unusable::Patterns(257))), "{many:?}");
    of(PATTERNS_MAX - 1).unwrap();
    for pattern in [r"\p{L}{500}", r"(?!x)\p{L}{500}"] {
        let large = compile(&json!({ "pattern": pattern }));
        assert!(matches!(large, Err(Unusable::Invalid(_))), "{large:?}");
    }
    let other = compile(&json!({ "pattern": "^(?!x)a" })).unwrap();
    assert_eq!(faults(&other, &json!("a")), Some(0));
}
