mod names;

use serde_json::{Map as Members, Value, json};

use super::{
    FAULTS_BYTES_MAX, Formats, PATTERNS_MAX, SCHEMA_BYTES_MAX, Schema, SchemaFault, TooFar,
    walk::LEVELS_MAX,
};

fn compile(schema: &Value) -> Result<Schema, SchemaFault> {
    Schema::compile(schema.to_string().as_bytes(), Formats::Annotations)
}

/// How many faults `value` has; `None` where only that there are some is told.
fn faults(schema: &Schema, value: &Value) -> Option<usize> {
    let question = schema.question(value).unwrap();
    let faults = question.faults(|_| true, 8);
    assert_eq!(
        question.is_valid(),
        faults.as_ref().is_some_and(Vec::is_empty)
    );
    faults.map(|faults| faults.len())
}

fn is_valid(schema: &Schema, value: &Value) -> bool {
    schema.question(value).unwrap().is_valid()
}

fn too_far(schema: &Value) -> TooFar {
    match compile(schema) {
        Err(SchemaFault::TooFar(far)) => far,
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
        let each = (each.question(&json!({ "a": 1 })).unwrap().walked.levels - 2) / 2;
        let most = (LEVELS_MAX - 2) / each;
        let schema = compile(&chain(most, way, &last)).unwrap();
        assert!(!is_valid(&schema, &json!({ "a": 1 })));
        assert!(is_valid(&schema, &json!({ "a": 1, "b": 1 })));
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
    assert!(is_valid(&schema, &json!({ "b": 1 })));
    assert!(!is_valid(&schema, &json!({ "a": 1, "b": 1 })));
    assert_eq!(too_far(&of(LEVELS_MAX / 2)), TooFar::Levels);
}

#[test]
fn a_schema_may_lead_into_a_value_as_deep_as_there_is_room() {
    let of = |count| {
        let last = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/d0" } } });
        compile(&chain(count, |next| next, &last)).unwrap()
    };
    let schema = of(30);
    assert!(is_valid(&schema, &nested(120, json!({}))));
    assert!(!is_valid(&schema, &nested(120, json!(1))));
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
    let escaped = json!({
        "$defs": { "a b": { "allOf": [{ "$ref": "#/$defs/a%20b" }] } },
        "items": { "$ref": "#/$defs/a%20b" },
    });
    let recursive = json!({
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$recursiveAnchor": true,
        "allOf": [{ "$recursiveRef": "#" }],
    });
    let whole = json!({ "anyOf": [{ "$ref": "#" }, {}] });
    for schema in [anchors, dynamic, within, old, escaped, recursive, whole] {
        assert_eq!(too_far(&schema), TooFar::Circle, "{schema}");
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
    assert!(schema.question(&json!({})).unwrap().faults_bytes() > FAULTS_BYTES_MAX);
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
        schema.question(value).unwrap().walked.visits
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
        (json!({ "unevaluatedItems": t() }), &array, 9),
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
            3,
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
        assert_eq!(
            faults(&schema, &deep(json!({ "type": 5 }))),
            None,
            "unknown"
        );
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
        assert_eq!(faults(&usual, &json!("abc")), Some(0));
    }
    let other = compile(&json!({ "pattern": "^(?!x)a" })).unwrap();
    assert_eq!(faults(&other, &json!("a")), Some(0));
}

/// A visit of what goes through a text, or compares with many, is more than one.
#[test]
fn what_takes_long_counts_as_more() {
    let visits = |schema: Value, value: Value| {
        let schema = compile(&schema).unwrap();
        schema
            .question(&value)
            .map(|question| question.walked.visits)
    };
    let password = || json!({ "items": { "pattern": r"(?=.*\d)(?=.*[a-z]).{8,}" } });
    assert_eq!(visits(password(), json!(["abcdefg1"])), Ok(4));
    let long = json!(["a".repeat(40_000)]);
    assert_eq!(visits(password(), long.clone()), Err(TooFar::Visits));
    assert_eq!(
        visits(json!({ "items": { "pattern": "a$" } }), long),
        Ok(2502)
    );
    let options: Vec<_> = (0..1000).map(|n| json!({ "n": n })).collect();
    assert_eq!(visits(json!({ "enum": options }), json!({})), Ok(1001));
    let unique = json!({ "uniqueItems": true });
    assert_eq!(visits(unique, json!(vec![0; 160])), Ok(12));
}

/// What a validator keeps of a schema beside what it says.
#[test]
fn what_takes_memory_to_compile_is_refused() {
    let name = "n".repeat(20_000);
    let inner: Members<_, _> = (0..5_000).map(|n| (n.to_string(), json!({}))).collect();
    let long = compile(&json!({ "properties": { name: { "properties": inner } } }));
    assert!(matches!(long, Err(SchemaFault::Unfollowed(_))), "{long:?}");
    let large: Vec<_> = (0..20_000).collect();
    let of = |levels| (0..levels).fold(json!({ "enum": large }), |it, _| json!({ "not": it }));
    assert!(compile(&of(2)).is_ok());
    assert!(matches!(compile(&of(20)), Err(SchemaFault::Copies)));
}

/// A tree of one of many kinds, as generators write what components or filters are: each kind leads
/// into the same value.
#[test]
fn unions_are_asked_as_deep_as_people_nest_them() {
    let kind = |n: usize| {
        json!({
            "type": "object",
            "required": ["kind"],
            "properties": {
                "kind": { "const": format!("k{n}") },
                "parts": { "type": "array", "items": { "$ref": "#/$defs/any" } },
            },
        })
    };
    let kinds: Vec<_> = (0..10).map(kind).collect();
    let schema = json!({ "$defs": { "any": { "anyOf": kinds } }, "$ref": "#/$defs/any" });
    let schema = compile(&schema).unwrap();
    let tree = |depth, last: &str| {
        let leaf = json!({ "kind": last });
        (0..depth).fold(leaf, |inner, _| json!({ "kind": "k9", "parts": [inner] }))
    };
    assert!(is_valid(&schema, &tree(5, "k3")));
    assert!(!is_valid(&schema, &tree(5, "k10")));
    let far = schema.question(&tree(20, "k3")).map(|_| ());
    assert_eq!(far, Err(TooFar::Visits));
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
    assert_eq!(faults(&schema, &of(10, 10)), Some(8));
    assert_eq!(faults(&schema, &of(10, 10_000)), None);
    assert_eq!(faults(&schema, &of(100_000, 10)), None);
    // An alternative that fails keeps what it was asked about.
    let alternatives = vec![json!({ "type": "null" }); 50];
    let schema = compile(&json!({ "anyOf": alternatives })).unwrap();
    assert_eq!(faults(&schema, &json!("x")), Some(1));
    assert_eq!(faults(&schema, &json!("x".repeat(1 << 20))), None);
    let options: Vec<_> = (0..20_000).collect();
    let schema = compile(&json!({ "items": { "enum": options } })).unwrap();
    assert_eq!(faults(&schema, &json!(vec!["a"; 8])), Some(8));
    assert_eq!(faults(&schema, &json!(vec!["a"; 100])), None);
    let not = json!({ "not": { "enum": options } });
    let schema = compile(&json!({ "items": { "not": not } })).unwrap();
    assert_eq!(faults(&schema, &json!(vec!["a"; 100])), None);
}

/// Definitions that own one another, each compiled before the one that refers to it.
#[test]
fn a_chain_of_definitions_is_dropped_whole() {
    const COUNT: usize = 9_000;
    let definitions: Members<_, _> = (1..=COUNT)
        .map(|n| {
            let below = json!({ "$ref": format!("#/$defs/d{}", n - 1) });
            (format!("d{n}"), json!({ "properties": { "a": below } }))
        })
        .chain([("d0".to_owned(), json!({ "type": "null" }))])
        .collect();
    let upwards: Vec<_> = (0..=COUNT)
        .map(|n| json!({ "$ref": format!("#/$defs/d{n}") }))
        .collect();
    let schema = compile(&json!({ "$defs": definitions, "prefixItems": upwards })).unwrap();
    assert!(is_valid(
        &schema,
        &json!([null, { "a": null }, { "a": { "a": null } }])
    ));
    drop(schema);
}

/// A validator keeps all that it has to look through for what nothing has evaluated.
#[test]
fn what_is_unevaluated_leads_so_far_and_no_further() {
    let of = |count: usize| {
        let twice = |next: Value| json!({ "allOf": [next, next] });
        let mut schema = chain(count, twice, &json!({ "properties": { "b": true } }));
        schema["unevaluatedProperties"] = json!(false);
        schema
    };
    let within = compile(&of(12)).unwrap();
    assert!(is_valid(&within, &json!({ "b": 1 })));
    assert!(!is_valid(&within, &json!({ "a": 1 })));
    assert_eq!(too_far(&of(17)), TooFar::Unevaluated);
}
