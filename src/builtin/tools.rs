//! The table of tools: what each is called, says of itself, accepts and answers.
//!
//! The handler looks tools up here and runs them; the functions themselves live in the sibling
//! modules. Arguments are decoded here rather than by rmcp, whose decoding failures are protocol
//! errors that a model never gets to read.
//!
//! What must stay true: every tool only reads its arguments and the clock, so all carry the same
//! annotations.

use std::fmt;
use std::sync::LazyLock;

use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{codec, id, json, pattern, time};

/// One tool: its description for `tools/list` and the function behind it.
pub(super) struct Entry {
    pub(super) tool: Tool,
    pub(super) weight: Weight,
    run: Box<Run>,
}

/// A tool's function after its argument and answer types are erased.
type Run = dyn Fn(JsonObject) -> Result<Value, Mistake> + Send + Sync;

/// Where a tool may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// Microseconds whatever the arguments: runs on the connection's own task.
    Light,
    /// Milliseconds and more for arguments at their limits: runs on a blocking thread.
    Heavy,
}

/// What is wrong with an argument, in the words the model reads.
///
/// All tools share this one shape so that no message can leave out the place or the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// The argument, or `arguments` for their combination.
    place: String,
    /// What is wrong with it, without a full stop.
    problem: String,
    /// What to send instead: one sentence, without a full stop.
    remedy: String,
}

impl Entry {
    pub(super) fn name(&self) -> &str {
        &self.tool.name
    }

    pub(super) fn run(&self, arguments: JsonObject) -> Result<Value, Mistake> {
        (self.run)(arguments)
    }

    fn new<I, O>(weight: Weight, about: About, run: fn(I) -> Result<O, Mistake>) -> Self
    where
        I: DeserializeOwned + JsonSchema + 'static,
        O: Serialize + JsonSchema + 'static,
    {
        let input = schema_for_input::<I>().expect("every argument type is a struct");
        let input = without_sizes(without_null(&input));
        let output = without_sizes(schema_for_output::<O>().as_ref().clone());
        let tool = Tool::new(about.name, about.description, input)
            .with_title(about.title)
            .with_raw_output_schema(output.into())
            .with_annotations(
                ToolAnnotations::with_title(about.title)
                    .read_only(true)
                    .destructive(false)
                    .idempotent(true)
                    .open_world(false),
            );
        let run = move |arguments| {
            let answer = run(decode(arguments)?)?;
            Ok(serde_json::to_value(answer).expect("answers have string keys only"))
        };
        Self {
            tool,
            weight,
            run: Box::new(run),
        }
    }
}

impl Mistake {
    /// `problem` and `remedy` come without a full stop.
    pub(super) fn new(
        place: impl Into<String>,
        problem: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        Self {
            place: place.into(),
            problem: problem.to_string(),
            remedy: remedy.to_string(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            problem,
            remedy,
        } = self;
        write!(f, "{place}: {problem}. {remedy}.")
    }
}

/// The tool of this name.
pub(super) fn find(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name() == name)
}

/// All tools, in the order of the guide.
pub(super) fn list() -> Vec<Tool> {
    TABLE.iter().map(|entry| entry.tool.clone()).collect()
}

/// How much of a caller's text an error message repeats, in characters: enough to recognise it.
const QUOTE_CHARS_MAX: usize = 60;

/// A caller's text as an error message shows it: quoted, control characters escaped, cut to a
/// recognisable length.
pub(super) fn quote(text: &str) -> String {
    let mut chars = text.chars();
    let head: String = chars.by_ref().take(QUOTE_CHARS_MAX).collect();
    let rest = if chars.next().is_some() { "..." } else { "" };
    format!("{head:?}{rest}")
}

/// Refuses an argument of more than `bytes_max` bytes.
pub(super) fn check_length(place: &str, bytes: usize, bytes_max: usize) -> Result<(), Mistake> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Mistake::new(
        place,
        format_args!("{bytes} bytes, more than the {bytes_max} this tool takes"),
        "Send a shorter one or split it",
    ))
}

/// Name and words of a tool.
#[derive(Clone, Copy)]
struct About {
    name: &'static str,
    title: &'static str,
    description: &'static str,
}

static TABLE: LazyLock<[Entry; 9]> = LazyLock::new(|| {
    use Weight::{Heavy, Light};
    [
        Entry::new(Light, CURRENT_TIME, time::current_time),
        Entry::new(Light, CONVERT_TIME, time::convert_time),
        Entry::new(Light, UUID, id::uuid),
        Entry::new(Heavy, HASH, codec::hash),
        Entry::new(Heavy, ENCODE, codec::encode),
        Entry::new(Heavy, DECODE, codec::decode),
        Entry::new(Heavy, JSON_QUERY, json::query),
        Entry::new(Heavy, JSON_DIFF, json::diff),
        Entry::new(Heavy, REGEX_TEST, pattern::test),
    ]
});

const CURRENT_TIME: About = About {
    name: "current_time",
    title: "Current time",
    description: "The current date and time in a time zone (UTC unless one is given), with its UTC \
                  offset, Unix seconds and weekday. Use it whenever an answer depends on today's \
                  date.",
};
const CONVERT_TIME: About = About {
    name: "convert_time",
    title: "Convert a time between zones",
    description: "Shows one point in time in another time zone. Takes an RFC 3339 timestamp, a \
                  local date and time with the zone it is meant in, or Unix seconds. Knows \
                  daylight saving time, and says when a local time is skipped or happens twice.",
};
const UUID: About = About {
    name: "uuid",
    title: "Make UUIDs",
    description: "New UUIDs: version 4 (random), 7 (ordered by time, good for database keys) or 5 \
                  (always the same for the same namespace and name). Models cannot make random \
                  ids; this can.",
};
const HASH: About = About {
    name: "hash",
    title: "Hash",
    description: "The SHA-256, SHA-384 or SHA-512 digest of a text (its UTF-8 bytes) or of bytes \
                  given as base64, in hex and base64.",
};
const ENCODE: About = About {
    name: "encode",
    title: "Encode",
    description: "Writes a text (its UTF-8 bytes), or bytes given as base64, as base64, base64url \
                  (without padding), hex or percent-encoding (RFC 3986, for one component of a \
                  URL).",
};
const DECODE: About = About {
    name: "decode",
    title: "Decode",
    description: "Reads base64, base64url, hex or percent-encoding back. The answer is text when \
                  the bytes are valid UTF-8, otherwise base64. Percent-decoding leaves + as it \
                  is.",
};
const JSON_QUERY: About = About {
    name: "json_query",
    title: "Query JSON",
    description: "Picks values out of a JSON document with a JSONPath (RFC 9535, starts with $) or \
                  a JSON Pointer (RFC 6901, empty or starts with /). A document given as a string \
                  is read as JSON text. The JSONPath functions match and search are not available: \
                  filter with regex_test instead.",
};
const JSON_DIFF: About = About {
    name: "json_diff",
    title: "Compare JSON",
    description: "The difference of two JSON documents as a JSON Patch (RFC 6902) that turns the \
                  first into the second. Array elements are compared by position. A document given \
                  as a string is read as JSON text.",
};
const REGEX_TEST: About = About {
    name: "regex_test",
    title: "Test a regular expression",
    description: "Runs a regular expression over a text and shows each match with its position and \
                  its groups. The syntax is that of the Rust regex crate: like Perl's, without \
                  look-around and back-references. Positions count characters (Unicode code \
                  points) from 0, ends are exclusive.",
};

/// An argument schema in which optional arguments may be left out but not `null`. Tools take `null`
/// too, but some clients hand the schema to models that know no lists of types.
fn without_null(schema: &JsonObject) -> JsonObject {
    let mut schema = schema.clone();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for property in properties.into_iter().flat_map(JsonObject::values_mut) {
        if let Some([only, Value::String(null)]) = property
            .get("type")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            && null == "null"
        {
            property["type"] = only.clone();
        }
    }
    schema
}

/// A schema without the formats that say how wide a number is in this program, such as `uint`: JSON
/// Schema does not know them, and some clients warn of each.
fn without_sizes(mut schema: JsonObject) -> JsonObject {
    let is_number = |kind: &Value| matches!(kind.as_str(), Some("integer" | "number"));
    if schema.get("type").is_some_and(is_number) {
        schema.remove("format");
    }
    let inner = |value: Value| match value {
        Value::Object(inner) => Value::Object(without_sizes(inner)),
        other @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)) => other,
    };
    schema
        .into_iter()
        .map(|(key, value)| (key, inner(value)))
        .collect()
}

/// Reads a tool's arguments, naming the one that does not fit.
fn decode<I: DeserializeOwned>(arguments: JsonObject) -> Result<I, Mistake> {
    let arguments = Value::Object(arguments);
    I::deserialize(&arguments).map_err(|error| {
        Mistake::new(
            culprit::<I>(&arguments, &error).unwrap_or("arguments".to_owned()),
            error,
            "Send the arguments that the tool's input schema describes",
        )
    })
}

/// The argument that an error is about: the missing one, else the one whose absence changes the
/// error, which serde does not name when a value has the wrong type.
fn culprit<I: DeserializeOwned>(arguments: &Value, error: &serde_json::Error) -> Option<String> {
    let error = error.to_string();
    if let Some(rest) = error.strip_prefix("missing field `") {
        return rest.strip_suffix('`').map(str::to_owned);
    }
    let object = arguments.as_object()?;
    let is_culprit = |name: &&String| {
        let mut rest = object.clone();
        rest.remove(*name);
        I::deserialize(&Value::Object(rest)).map_or_else(|e| e.to_string() != error, |_| true)
    };
    object.keys().find(is_culprit).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_introduces_itself() {
        for tool in list() {
            let name = &tool.name;
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
            assert!(tool.title.is_some_and(|title| !title.is_empty()), "{name}");
            assert!(
                tool.description.is_some_and(|text| text.ends_with('.')),
                "{name}"
            );
            let output = Value::Object(tool.output_schema.unwrap().as_ref().clone());
            assert_eq!(output["type"], "object", "{name}");
            for schema in [
                output.to_string(),
                Value::Object(tool.input_schema.as_ref().clone()).to_string(),
            ] {
                assert!(!schema.contains(r#""format":"uint"#), "{name}: {schema}");
                assert!(!schema.contains(r#""format":"int"#), "{name}: {schema}");
            }
            assert_eq!(tool.input_schema["additionalProperties"], false, "{name}");
            for (argument, schema) in tool.input_schema["properties"].as_object().unwrap() {
                let description = schema["description"].as_str().unwrap();
                assert!(
                    !description.contains('\n'),
                    "{name} {argument}: {description}"
                );
                let plain = schema.get("type").is_none_or(Value::is_string);
                assert!(
                    plain && schema.get("$ref").is_none(),
                    "{name} {argument}: {schema}"
                );
            }
            let hints = serde_json::to_value(tool.annotations).unwrap();
            assert_eq!(hints["readOnlyHint"], true, "{name}");
            assert_eq!(hints["idempotentHint"], true, "{name}");
            assert_eq!(hints["destructiveHint"], false, "{name}");
            assert_eq!(hints["openWorldHint"], false, "{name}");
        }
    }

    #[test]
    fn quotes_have_a_limit() {
        let quoted = |chars| quote(&"ä".repeat(chars));
        assert_eq!(quoted(QUOTE_CHARS_MAX), format!("\"{}\"", "ä".repeat(60)));
        assert_eq!(
            quoted(QUOTE_CHARS_MAX + 1),
            format!("\"{}\"...", "ä".repeat(60))
        );
        assert_eq!(
            quoted(QUOTE_CHARS_MAX - 1),
            format!("\"{}\"", "ä".repeat(59))
        );
        assert_eq!(quote("a\u{1b}[31m"), r#""a\u{1b}[31m""#);
    }
}
