//! What servers may take a value for.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    Test,
    decimal::{Decimal, NumberValue, trim_lenient},
    json_types::JsonTypes,
    pointer::{Decoded, MemberName, sole_element},
};
use crate::mcp::json;

/// What a value is, or may be taken for.
#[derive(Debug, Default)]
pub(super) struct ValueReadings<'a> {
    json: &'a [u8],
    is_lax: bool,
    is_null: bool,
    /// Whether it may be false, and true.
    booleans: [bool; 2],
    numbers: Vec<NumberValue>,
    texts: Vec<Cow<'a, str>>,
}

impl<'a> ValueReadings<'a> {
    /// What `json` is as it is written: one reading, or another for those who keep fractions as doubles.
    pub(super) fn exact(json: &'a [u8]) -> Vec<Self> {
        let of = |numbers: Vec<NumberValue>| Self {
            json,
            is_null: json.first() == Some(&b'n'),
            booleans: [json.first() == Some(&b'f'), json.first() == Some(&b't')],
            numbers,
            texts: json::decode_string(json).into_iter().collect(),
            is_lax: false,
        };
        let Some(number) = number(json) else {
            return vec![of(Vec::new())];
        };
        let is_fraction = json.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
        let rounded = number.as_double().filter(|_| is_fraction);
        let readings = [Some(number), rounded].into_iter().flatten();
        readings.map(|number| of(vec![number])).collect()
    }

    /// All that `json` may be taken for where the schema wants `types`.
    pub(super) fn lax(json: &'a [u8], types: JsonTypes) -> Self {
        let mut all = Self {
            json,
            is_lax: true,
            ..Self::default()
        };
        match json.first() {
            Some(b'"') => all.add_text(types),
            Some(b't') => all.add_boolean(true),
            Some(b'f') => all.add_boolean(false),
            Some(b'n') => all.is_null = true,
            Some(b'[' | b'{') => {}
            _ => {
                let text = std::str::from_utf8(json).ok().map(Cow::Borrowed);
                all.texts.extend(text);
                all.add_number(number(json), types);
            }
        }
        all.add_javascript_coercions(types);
        all
    }

    fn add_text(&mut self, types: JsonTypes) {
        let Some(text) = json::decode_string(self.json) else {
            return;
        };
        let inner = trim_lenient(&text).to_owned();
        self.add_number(NumberValue::parse_lenient(&inner), types);
        let spelled = lenient_boolean(&inner);
        for value in [false, true] {
            self.booleans[usize::from(value)] |= spelled == Some(value);
        }
        if inner != text {
            self.texts.push(inner.into());
        }
        self.texts.push(text);
    }

    fn add_boolean(&mut self, value: bool) {
        self.booleans[usize::from(value)] = true;
        let (number, texts) = if value {
            ("1", ["true", "True"])
        } else {
            ("0", ["false", "False"])
        };
        self.numbers
            .extend(Decimal::parse(number).map(NumberValue::Exact));
        self.texts.extend(texts.map(Cow::Borrowed));
    }

    fn add_number(&mut self, number: Option<NumberValue>, types: JsonTypes) {
        let Some(number) = number else { return };
        self.booleans[usize::from(!number.is_zero())] = true;
        self.texts.push(number.to_text().into());
        self.numbers.extend(number.as_double());
        if types.is_subset_of(JsonTypes::INTEGER) {
            self.numbers.extend(number.integer_readings());
        }
        self.numbers.push(number);
    }

    /// JavaScript's `Boolean`, `Number` and `String` make something of everything.
    fn add_javascript_coercions(&mut self, types: JsonTypes) {
        if types.is_subset_of(JsonTypes::BOOLEAN) {
            let is_text = matches!(self.json.first(), Some(b'"' | b'[' | b'{'));
            let is_true = is_text && self.json != b"\"\"";
            self.booleans[usize::from(is_true)] |= is_text || self.is_null;
        } else if types.is_subset_of(JsonTypes::STRING) {
            let text = javascript_text(self.json);
            self.texts.extend(text.map(Cow::Owned));
        } else if types.is_subset_of(JsonTypes::NUMBER) {
            let text = javascript_text(self.json);
            let number = text.and_then(|text| match trim_lenient(&text) {
                "" | "null" => NumberValue::parse_lenient("0"),
                text => NumberValue::parse_lenient(text),
            });
            self.numbers.extend(number);
        }
    }

    /// Whether it is, or may be, `value`.
    pub(super) fn equals(&self, value: &Value) -> bool {
        match value {
            Value::Null => self.is_null,
            Value::Bool(value) => self.booleans[usize::from(*value)],
            Value::Number(value) => {
                let value = Decimal::parse(&value.to_string()).map(NumberValue::Exact);
                value.is_some_and(|value| self.numbers.contains(&value))
            }
            Value::String(value) => self.texts.iter().any(|text| text == value),
            Value::Array(values) => self.json.first() == Some(&b'[') && self.equals_array(values),
            Value::Object(values) if self.json.first() == Some(&b'{') => {
                self.equals_object(values.iter(), values.len())
            }
            // Some take the elements of an array for the members of an object.
            Value::Object(values) => {
                let mut values = values.values();
                let is_list = self.is_lax && self.json.first() == Some(&b'[');
                is_list && values.all(|value| self.has_element(value))
            }
        }
    }

    fn equals_array(&self, values: &[Value]) -> bool {
        let parts: Vec<_> = json::elements(self.json, 0).collect();
        let mut pairs = parts.iter().zip(values);
        parts.len() == values.len()
            && pairs.all(|(span, value)| self.member_equals(&self.json[span.clone()], value))
    }

    fn has_element(&self, value: &Value) -> bool {
        let mut elements = json::elements(self.json, 0);
        elements.any(|span| self.member_equals(&self.json[span], value))
    }

    /// What a server does not know of an object it leaves out.
    fn equals_object<'v>(
        &self,
        mut values: impl Iterator<Item = (&'v String, &'v Value)>,
        count: usize,
    ) -> bool {
        let json = self.json;
        let size = json::members(json, 0).count();
        let may_have_more = self.is_lax && count > 0;
        (size == count || size > count && may_have_more)
            && values.all(|(key, value)| {
                let name = self.is_lax.then(|| MemberName::new(key.clone()));
                let is_key = |member: &json::Member| match &name {
                    Some(name) => name.may_match(json, member),
                    None => member.matches(json, key),
                };
                let mut members = json::members(json, 0).filter(is_key);
                members.any(|member| self.member_equals(&json[member.value], value))
            })
    }

    fn member_equals(&self, json: &[u8], value: &Value) -> bool {
        if !self.is_lax {
            return ValueReadings::exact(json).iter().any(|it| it.equals(value));
        }
        ValueReadings::lax(json, JsonTypes::ANY).equals(value)
            || match Decoded::of(json) {
                Decoded::Json(inner) => self.member_equals(inner.as_bytes(), value),
                Decoded::TooDeep => true,
                Decoded::Malformed => is_structure(value),
                Decoded::Plain => false,
            }
            || sole_element(json).is_some_and(|element| self.member_equals(element, value))
    }
}

fn is_structure(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

impl Test {
    /// Whether it compares with an array or object.
    pub(super) fn compares_structures(&self) -> bool {
        matches!(self, Self::OneOf(values) if values.iter().any(is_structure))
    }

    /// Whether it holds of one of `readings`.
    pub(super) fn matches(&self, readings: &ValueReadings<'_>) -> bool {
        match self {
            Self::Matches(regex) => readings.texts.iter().any(|text| regex.is_match(text)),
            Self::Max(limit) => readings.numbers.iter().any(|it| it.is_at_most(limit)),
            Self::Min(limit) => readings.numbers.iter().any(|it| it.is_at_least(limit)),
            Self::OneOf(values) => values.iter().any(|value| readings.equals(value)),
        }
    }
}

/// The number that `json` is.
fn number(json: &[u8]) -> Option<NumberValue> {
    let is_number = matches!(json.first(), Some(b'-' | b'0'..=b'9'));
    let text = std::str::from_utf8(json).ok().filter(|_| is_number);
    text.and_then(Decimal::parse).map(NumberValue::Exact)
}

/// The truth value that servers take a text for.
fn lenient_boolean(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "enabled" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "disabled" => Some(false),
        _ => None,
    }
}

/// The text that JavaScript's `String` makes of a value; `None` for objects, of which it shows nothing.
fn javascript_text(json: &[u8]) -> Option<String> {
    match json.first()? {
        b'"' => json::decode_string(json).map(Cow::into_owned),
        b'{' => None,
        b'[' => {
            let text = |span: std::ops::Range<usize>| {
                let json = &json[span];
                match json.first() {
                    Some(b'n') => Some(String::new()),
                    _ => javascript_text(json),
                }
            };
            let texts: Option<Vec<_>> = json::elements(json, 0).map(text).collect();
            texts.map(|texts| texts.join(","))
        }
        b't' => Some("true".to_owned()),
        b'f' => Some("false".to_owned()),
        b'n' => Some("null".to_owned()),
        _ => number(json).map(|number| number.to_text()),
    }
}
