//! A small model of what SDKs make of arguments, written without a look at the rules: whatever a tool would
//! get, a rule that refuses that sees it.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a model says what is read, and nothing of the rest"
)]

use serde_json::{Map, Number as JsonNumber};

use super::*;

/// What a tool wants.
#[derive(Clone, Debug)]
enum Wants {
    Truth,
    Integer,
    Float,
    Text,
    List(Box<Wants>),
    Object(Vec<(&'static str, Wants)>),
}

impl Wants {
    fn schema(&self) -> Value {
        match self {
            Self::Truth => json!({"type": "boolean"}),
            Self::Integer => json!({"type": "integer"}),
            Self::Float => json!({"type": "number"}),
            Self::Text => json!({"type": "string"}),
            Self::List(inner) => json!({"type": "array", "items": inner.schema()}),
            Self::Object(fields) => {
                let fields = fields.iter();
                let fields: Map<_, _> = fields
                    .map(|(name, wants)| ((*name).to_owned(), wants.schema()))
                    .collect();
                json!({"type": "object", "properties": fields})
            }
        }
    }
}

/// How an SDK reads one value; `None`: it refuses the call.
type Reads = fn(&Wants, &Value) -> Option<Value>;

fn fields(
    wanted: &[(&'static str, Wants)],
    given: &Map<String, Value>,
    is: impl Fn(&str, &str) -> bool,
    read: Reads,
) -> Option<Value> {
    let mut out = Map::new();
    for (name, wants) in wanted {
        let found = given.iter().filter(|(key, _)| is(key, name)).last();
        let Some((_, value)) = found else { continue };
        out.insert((*name).to_owned(), read(wants, value)?);
    }
    Some(Value::Object(out))
}

fn float(value: f64) -> Option<Value> {
    JsonNumber::from_f64(value).map(Value::Number)
}

/// Python's `float`.
fn python_float(text: &str) -> Option<f64> {
    let text: String = text.trim().chars().filter(|c| *c != '_').collect();
    let digits = text.chars().map(|c| match u32::from(c) {
        code @ 0x660..=0x669 => char::from_digit(code - 0x660, 10).unwrap(),
        code @ 0xff10..=0xff19 => char::from_digit(code - 0xff10, 10).unwrap(),
        code @ 0x1d7ce..=0x1d7ff => char::from_digit((code - 0x1d7ce) % 10, 10).unwrap(),
        _ => c,
    });
    digits.collect::<String>().parse().ok()
}

fn pydantic(wants: &Wants, value: &Value) -> Option<Value> {
    match (wants, value) {
        (Wants::Truth, Value::Bool(_))
        | (Wants::Text, Value::String(_))
        | (Wants::Float, Value::Number(_)) => Some(value.clone()),
        (Wants::Truth, Value::Number(number)) => match number.as_f64()? {
            0.0 => Some(json!(false)),
            1.0 => Some(json!(true)),
            _ => None,
        },
        (Wants::Truth, Value::String(text)) => match text.to_lowercase().as_str() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(json!(false)),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(json!(true)),
            _ => None,
        },
        (Wants::Integer | Wants::Float, Value::Bool(value)) => Some(json!(u8::from(*value))),
        (Wants::Float, Value::String(text)) => float(python_float(text)?),
        (Wants::Integer, Value::Number(number)) => whole(number.as_f64()?),
        (Wants::Integer, Value::String(text)) => whole(python_float(text)?),
        (Wants::List(inner), Value::Array(values)) => {
            let read = values.iter().map(|value| pydantic(inner, value));
            read.collect::<Option<Vec<_>>>().map(Value::Array)
        }
        (Wants::Object(wanted), Value::Object(given)) => {
            fields(wanted, given, |key, name| key == name, pydantic)
        }
        _ => None,
    }
}

fn whole(value: f64) -> Option<Value> {
    (value.fract() == 0.0).then(|| float(value)).flatten()
}

/// FastMCP reads text that is JSON, except where the tool wants text, and then as pydantic does.
fn fastmcp(wants: &Wants, value: &Value) -> Option<Value> {
    let parsed = match (wants, value) {
        (Wants::Text, _) => None,
        (_, Value::String(text)) => serde_json::from_str::<Value>(text.trim()).ok(),
        _ => None,
    };
    let parsed = parsed.filter(|parsed| !parsed.is_number() && !parsed.is_string());
    pydantic(wants, parsed.as_ref().unwrap_or(value))
}

/// JavaScript's `String`.
fn javascript_string(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("null".to_owned()),
        Value::String(text) => Some(text.clone()),
        Value::Array(values) => {
            let texts = values.iter().map(|value| match value {
                Value::Null => Some(String::new()),
                other => javascript_string(other),
            });
            texts
                .collect::<Option<Vec<_>>>()
                .map(|texts| texts.join(","))
        }
        Value::Object(_) => None,
        Value::Bool(_) => Some(value.to_string()),
        Value::Number(number) => number.as_f64().map(|number| number.to_string()),
    }
}

/// zod with `coerce` wherever it can be.
fn zod(wants: &Wants, value: &Value) -> Option<Value> {
    match (wants, value) {
        (Wants::Truth, value) => Some(json!(match value {
            Value::Null => false,
            Value::Bool(value) => *value,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(_) | Value::Object(_) => true,
        })),
        (Wants::Text, value) => javascript_string(value).map(Value::String),
        (Wants::Float | Wants::Integer, value) => {
            let number = match value {
                Value::Null => 0.0,
                Value::Bool(value) => f64::from(u8::from(*value)),
                other => {
                    let text = javascript_string(other)?;
                    match text.trim() {
                        "" => 0.0,
                        text => text.parse().ok()?,
                    }
                }
            };
            let is_integer = matches!(wants, Wants::Integer);
            if is_integer {
                whole(number)
            } else {
                float(number)
            }
        }
        (Wants::List(inner), Value::Array(values)) => {
            let read = values.iter().map(|value| zod(inner, value));
            read.collect::<Option<Vec<_>>>().map(Value::Array)
        }
        (Wants::Object(wanted), Value::Object(given)) => {
            fields(wanted, given, |key, name| key == name, zod)
        }
        _ => None,
    }
}

/// Nothing is converted, but names have no case (Go), more than one spelling (protobuf), and arrays may be
/// objects (serde).
fn strict(wants: &Wants, value: &Value) -> Option<Value> {
    match (wants, value) {
        (Wants::Truth, Value::Bool(_))
        | (Wants::Text, Value::String(_))
        | (Wants::Float | Wants::Integer, Value::Number(_)) => Some(value.clone()),
        (Wants::List(inner), Value::Array(values)) => {
            let read = values.iter().map(|value| strict(inner, value));
            read.collect::<Option<Vec<_>>>().map(Value::Array)
        }
        (Wants::Object(wanted), Value::Array(values)) => {
            let mut out = Map::new();
            for ((name, wants), value) in wanted.iter().zip(values) {
                out.insert((*name).to_owned(), strict(wants, value)?);
            }
            Some(Value::Object(out))
        }
        (Wants::Object(wanted), Value::Object(given)) => {
            let plain = |name: &str| name.to_lowercase().replace('_', "");
            fields(wanted, given, |key, name| plain(key) == plain(name), strict)
        }
        _ => None,
    }
}

/// All that a tool gets, each with the pointer that leads there.
fn leaves(value: &Value, at: &str, out: &mut Vec<(String, Value)>) {
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                leaves(value, &format!("{at}/{index}"), out);
                leaves(value, &format!("{at}/*"), out);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(value, &format!("{at}/{name}"), out);
            }
        }
        _ => out.push((at.to_owned(), value.clone())),
    }
    if !at.is_empty() && !at.ends_with('*') {
        out.push((at.to_owned(), value.clone()));
    }
}

fn wants() -> impl Strategy<Value = Wants> {
    let leaf = prop_oneof![
        Just(Wants::Truth),
        Just(Wants::Integer),
        Just(Wants::Float),
        Just(Wants::Text),
    ];
    let any = leaf.prop_recursive(2, 6, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| Wants::List(inner.into())),
            (inner.clone(), inner)
                .prop_map(|(a, b)| Wants::Object(vec![("kind_of", a), ("name", b)])),
        ]
    });
    (any.clone(), any).prop_map(|(a, b)| Wants::Object(vec![("value", a), ("other", b)]))
}

/// What a client may send: each value in one of its spellings.
fn given() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "",
        "true",
        "True",
        "on",
        "Y",
        "no",
        "F",
        "0",
        "1",
        "2",
        " 2\n",
        "+2",
        "2.0",
        "2e0",
        "1_0",
        "\u{662}",
        "\u{ff12}",
        "\u{1d7d0}",
        "\u{a0}2",
        "inf",
        "null",
        "x",
        "[1]",
        "[\"x\", true]",
        "{\"name\": 2}",
        "{\"name\": \"x\", \"kind_of\": [1]}",
        "[[\"2\"]]",
        "\"x\"",
        "{\"name\": {\"kind_of\": \"on\"}}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0i64..3).prop_map(Value::from),
        prop::sample::select(vec![0.0, 1.0, 1.5, 2.0]).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let key = || prop::sample::select(vec!["name", "NAME", "kind_of", "kindOf", "x"]);
    leaf.prop_recursive(3, 12, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map(key(), inner.clone(), 0..3).prop_map(|map| {
                let members = map.into_iter();
                Value::Object(
                    members
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
            inner.prop_map(|value| Value::from(value.to_string())),
        ]
    })
}

/// Whether an empty object is in it: that is refused as it is written, and nothing else for it, since whoever
/// refuses an empty filter does not mean every filter.
fn has_empty_object(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().any(has_empty_object),
        Value::Object(fields) => fields.is_empty() || fields.values().any(has_empty_object),
        _ => false,
    }
}

/// The rule refuses what the tool would get: by each pointer to it, and by what it says of it.
fn assert_refused(sdk: &str, schema: Option<&Raw>, params: &Raw, got: &Value) {
    let mut all = Vec::new();
    leaves(got, "", &mut all);
    // What zod makes of any value depends on the schema, which says it of the place of a rule alone.
    let is_compared = |value: &Value| sdk != "zod" || !value.is_array() && !value.is_object();
    all.retain(|(_, value)| !has_empty_object(value) && is_compared(value));
    for (at, value) in all {
        let mut conditions = vec![json!({"equals": value})];
        if let Some(number) = value.as_f64() {
            conditions.push(json!({"min": number, "max": number}));
        }
        if let Some(text) = value.as_str() {
            conditions.push(json!({"matches": format!("^{}$", regex::escape(text))}));
        }
        for condition in conditions {
            let rules = rules(&[rule(&at, "refuse", condition.clone())]);
            let about = rules.applicable_to(&item("pay"), schema);
            let found = rules.check(&about, Some(params));
            assert!(
                !found.refused.is_empty(),
                "{sdk} gets {value} at {at} from {params:?}, which {condition} lets pass"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_rule_sees_what_a_tool_gets(wants in wants(), value in given(), other in given()) {
        let arguments = json!({"value": value, "other": other});
        let params = Raw::from_value(&json!({"arguments": arguments}));
        let schema = Raw::from_value(&wants.schema());
        let Wants::Object(wanted) = &wants else { unreachable!("arguments are an object") };
        for (sdk, read, asks_schema) in [
            ("FastMCP", fastmcp as Reads, false),
            ("zod", zod, true),
            ("another", strict, false),
        ] {
            // One argument that is refused hides no other.
            for (name, wants) in wanted {
                let Some(got) = read(wants, &arguments[*name]) else { continue };
                let got = json!({*name: got});
                assert_refused(sdk, Some(&schema), &params, &got);
                if !asks_schema {
                    assert_refused(sdk, None, &params, &got);
                }
            }
        }
    }
}
