use serde_json::json;

use super::*;

fn check(schema: &Value) -> Result<Option<RootId>, ClientFault> {
    let mut patterns_left = SERVER_PATTERNS_MAX;
    check_for_clients(schema.to_string().as_bytes(), &mut patterns_left)
}

/// What stands in `schema` under a property, so that no rule holds at the root alone.
fn within(schema: &Value) -> Value {
    json!({ "type": "object", "properties": { "p": schema }, "required": ["p"] })
}

fn accept(schema: &Value) {
    for schema in [schema, &within(schema)] {
        check(schema).unwrap_or_else(|fault| panic!("{schema}: {fault}"));
    }
}

fn refuse(schema: &Value, expect: &str) {
    for schema in [schema, &within(schema)] {
        let fault = check(schema).expect_err(expect).to_string();
        assert!(fault.contains(expect), "{schema}: {fault}");
    }
}

#[test]
fn shapes_of_keywords() {
    for odd in [
        json!({ "type": "str" }),
        json!({ "type": "any" }),
        json!({ "type": ["string", "string"] }),
        json!({ "type": [] }),
        json!({ "type": null }),
        json!({ "required": true }),
        json!({ "required": ["a", "a"] }),
        json!({ "required": [1] }),
        json!({ "required": null }),
        json!({ "minimum": 1, "exclusiveMinimum": true }),
        json!({ "maximum": "5" }),
        json!({ "multipleOf": 0 }),
        json!({ "maxLength": -1 }),
        json!({ "minItems": 1.5 }),
        json!({ "enum": [] }),
        json!({ "enum": [1, 1] }),
        json!({ "$recursiveAnchor": "a" }),
        json!({ "enum": "a" }),
        json!({ "pattern": 7 }),
        json!({ "format": null }),
        json!({ "properties": ["a"] }),
        json!({ "anyOf": [] }),
        json!({ "anyOf": {} }),
        json!({ "uniqueItems": "true" }),
        json!({ "dependentRequired": { "a": "b" } }),
        json!({ "$ref": {} }),
        json!({ "examples": "a" }),
        json!({ "title": 1 }),
    ] {
        refuse(&odd, "is not allowed here");
    }
    for odd in [
        json!({ "if": 7 }),
        json!({ "items": "string" }),
        json!({ "items": [{}] }),
        json!({ "oneOf": [null] }),
        json!({ "not": [] }),
        json!({ "additionalProperties": "no" }),
        json!({ "additionalProperties": null }),
        json!({ "dependencies": { "a": 1 } }),
    ] {
        refuse(&odd, "it is no schema");
    }
    refuse(&json!({ "id": "a" }), "clients refuse this keyword");
    refuse(
        &json!({ "nullable": true, "enum": ["a"] }),
        "`nullable` without `type`",
    );
    refuse(
        &json!({ "nullable": false, "type": ["null"] }),
        "`nullable` contradicts `type`",
    );
    refuse(&json!({ "$async": true }), "`$async`");
}

#[test]
fn usual_keywords() {
    for usual in [
        json!(true),
        json!({}),
        json!({ "type": ["string", "null"], "nullable": true, "x-own": { "type": 7 } }),
        json!({ "exclusiveMinimum": 0, "multipleOf": 0.5, "minLength": 2.0 }),
        json!({ "properties": { "id": { "type": "string" }, "$id": {}, "required": true } }),
        json!({ "const": { "type": 7, "$id": "a" }, "enum": [{ "$ref": "#/no" }], "default": { "$id": "b" } }),
        json!({ "dependencies": { "a": ["b"], "c": { "type": "object" } } }),
        json!({ "format": "no-such", "contentEncoding": "base64", "unknown": null }),
        json!({ "additionalProperties": false, "if": true, "else": false }),
    ] {
        accept(&usual);
    }
    let tuple = |draft: &str| json!({ "$schema": draft, "items": [{}, true] });
    assert!(check(&tuple("http://json-schema.org/draft-07/schema#")).is_ok());
    assert!(check(&tuple("https://json-schema.org/draft/2019-09/schema")).is_ok());
    assert!(check(&tuple("https://json-schema.org/draft/2020-12/schema")).is_err());
    for unknown in ["http://json-schema.org/schema#", "draft-07", ""] {
        let fault = check(&json!({ "$schema": unknown }))
            .unwrap_err()
            .to_string();
        assert!(fault.contains("is no draft"), "{fault}");
    }
}

#[test]
fn patterns_are_of_ecmascript() {
    for odd in [
        "(?i)^a",
        "(",
        "a**",
        "a++",
        "(?>a)",
        r"\A",
        r"\Z",
        r"\z",
        r"\_",
        r"\e",
        "(?P<n>a)",
        "(?P=n)",
        "(?#c)a",
        "[[:alpha:]]",
        r"\p{Alpha_}",
        r"\Qa\E",
        r"\h",
        r"[\w-z]",
        "]",
        "{",
        "a{,3}",
        "(?i:a)",
        "(?<n>a)(?<n>b)",
        r"\1",
        r"\x{41}",
        "a{2,1}",
        "[b-a]",
        "(?=a)*",
        r"\u{110000}",
    ] {
        refuse(&json!({ "pattern": odd }), "pattern");
        refuse(&json!({ "patternProperties": { odd: {} } }), "pattern");
    }
    for usual in [
        "",
        "^[a-z]{2,}$",
        r"^[\w\-\.]+@[\w.]+$",
        r"^\d{4}-\d\d$",
        "(?:a|b)?",
        "(?<=a)b",
        "(?<!a)b",
        "(?!a)",
        r"\p{L}",
        r"\p{Script=Greek}",
        r"\u{1F600}",
        r"(?<n>a)\k<n>",
        r"\/",
        r"[^\]]",
        "😀",
        r"\cA",
    ] {
        accept(&json!({ "pattern": usual, "patternProperties": { usual: true } }));
    }
    let of = |count: usize, length: usize| {
        let patterns = (0..count).map(|n| (format!("{n:0length$}"), json!({})));
        check(&json!({ "patternProperties": patterns.collect::<Map<_, _>>() }))
    };
    for (count, length, is_few) in [
        (PATTERNS_MAX, 3, true),
        (PATTERNS_MAX + 1, 3, false),
        (PATTERNS_MAX - 1, 3, true),
        (1, PATTERN_TEXT_MAX, true),
        (1, PATTERN_TEXT_MAX + 1, false),
        (PATTERNS_TEXT_MAX / 1024, 1024, true),
        (PATTERNS_TEXT_MAX / 1024 + 1, 1024, false),
    ] {
        let checked = of(count, length);
        assert_eq!(checked.is_ok(), is_few, "{count} of {length}: {checked:?}");
    }
}

#[test]
fn patterns_of_all_schemas_of_a_server_are_bounded() {
    let schema = json!({ "pattern": "x".repeat(1024) }).to_string();
    let mut left = 2048;
    for is_left in [true, true, false] {
        let checked = check_for_clients(schema.as_bytes(), &mut left);
        assert_eq!(checked.is_ok(), is_left, "{checked:?}");
    }
    assert!(check_for_clients(b"{}", &mut left).is_ok());
}

#[test]
fn references_lead_to_parts() {
    let with = |reference: &str| {
        json!({
            "type": "object",
            "properties": { "x": { "$ref": reference } },
            "$defs": {
                "n": { "type": "integer" }, "a b": {}, "c/d~e": true, "no": 7, "List<Foo>": {},
                "again": { "$ref": "#/$defs/n" }, "anchored": { "$anchor": "here" },
                "one": { "$ref": "#/$defs/two" }, "two": { "$ref": "#/$defs/one" },
                "tree": { "properties": { "l": { "$ref": "#/$defs/tree" } } },
            },
        })
    };
    // A reference that leads nowhere in `$defs` is refused although nothing uses it.
    let strip = |mut schema: Value, names: &[&str]| {
        let definitions = schema["$defs"].as_object_mut().unwrap();
        definitions.retain(|name, _| !names.contains(&name.as_str()));
        schema
    };
    let unsound = ["one", "two", "no"];
    for usual in [
        "#",
        "#/$defs/n",
        "#/%24defs/n",
        "#/$defs/a%20b",
        "#/$defs/c~1d~0e",
        "#/$defs/again",
        "#here",
        "#/$defs/tree",
        "#/properties",
        "#/$defs/List%3CFoo%3E",
    ] {
        let checked = check(&strip(with(usual), &unsound));
        assert!(checked.is_ok(), "{usual}: {checked:?}");
    }
    for odd in [
        "#/$defs/ScreenInstance",
        "#/$defs/n/type",
        "#/$defs",
        "#/",
        "",
        "n",
        "x.json#/a",
        "#nowhere",
        "https://example.com/schema.json",
        "http://json-schema.org/draft-07/schema#",
        "#/$defs/n#",
        "#/%2Fdefs",
        "#/$defs/%FF",
        "#/required/0",
    ] {
        let checked = check(&strip(with(odd), &unsound));
        if odd == "#/$defs" {
            continue;
        }
        assert!(checked.is_err(), "{odd}");
    }
    for odd in ["#/$defs/one", "#/properties/x"] {
        let fault = check(&strip(with(odd), &["no"])).unwrap_err().to_string();
        assert!(fault.contains("circle"), "{odd}: {fault}");
    }
    let fault = check(&strip(with("#/$defs/missing"), &unsound)).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "at `/properties/x/$ref`: `#/$defs/missing` is no part of the schema"
    );
}

/// What is referred to is a schema, wherever it stands; long chains of parts that refer on take no stack.
#[test]
fn references_lead_anywhere_and_far() {
    let elsewhere =
        |inner: Value| json!({ "properties": { "x": { "$ref": "#/x-any/0" } }, "x-any": [inner] });
    assert!(check(&elsewhere(json!({ "type": "string" }))).is_ok());
    assert!(check(&elsewhere(json!({ "type": "text" }))).is_err());
    let count = 5_000;
    let next = |n: usize| json!({ "properties": { "x": { "$ref": format!("#/$defs/d{}", (n + 1) % count) } } });
    let chain: Map<_, _> = (0..count).map(|n| (format!("d{n}"), next(n))).collect();
    assert!(check(&json!({ "$ref": "#/$defs/d0", "$defs": chain })).is_ok());
}

#[test]
fn names_of_parts() {
    let id = |schema: Value| check(&schema).unwrap();
    let root = |uri: &str, is_used| {
        let uri = uri.to_owned();
        Some(RootId { uri, is_used })
    };
    assert_eq!(id(json!({})), None);
    assert_eq!(id(json!({ "$id": "urn:a#" })), root("urn:a", false));
    let own = json!({ "$id": "https://e.com/a", "$defs": { "n": {} }, "properties": { "n": { "$ref": "https://e.com/a#/$defs/n" } } });
    assert_eq!(id(own), root("https://e.com/a", true));
    for odd in [
        json!({ "properties": { "a": { "$id": "b" } } }),
        json!({ "x-any": [{ "$id": "b" }] }),
        json!({ "$anchor": "root" }),
        json!({ "$defs": { "a": { "$anchor": "x" }, "b": { "$anchor": "x" } } }),
        json!({ "$defs": { "a": { "$anchor": "1x" } } }),
        json!({ "$id": 7 }),
    ] {
        assert!(check(&odd).is_err(), "{odd}");
    }
}

#[test]
fn depth_and_size() {
    let deep = |levels: usize| {
        (0..levels).fold(
            json!({}),
            |inner, _| json!({ "properties": { "p": inner } }),
        )
    };
    // As deep as JSON is read: two levels of it for each, and one.
    for (levels, is_read) in [(63, true), (64, false), (62, true)] {
        assert_eq!(check(&deep(levels)).is_ok(), is_read, "{levels}");
    }
    let long = |bytes: usize| {
        let empty = json!({ "title": "" }).to_string().len();
        check(&json!({ "title": "x".repeat(bytes - empty) }))
    };
    assert!(long(SCHEMA_BYTES_MAX).is_ok());
    assert!(long(SCHEMA_BYTES_MAX + 1).is_err());
    assert!(long(SCHEMA_BYTES_MAX - 1).is_ok());
    let fault = check_for_clients(b"{", &mut 0).unwrap_err().to_string();
    assert!(fault.contains("it cannot be read"), "{fault}");
}

#[test]
fn faults_have_json_pointers() {
    refuse(
        &json!({ "anyOf": [{}, { "items": { "pattern": "(?i)a" } }] }),
        "/anyOf/1/items/pattern`",
    );
}
