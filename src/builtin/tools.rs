//! The table of tools: the name, the description, the schemas and the function of each.
//!
//! Arguments are decoded here rather than by rmcp, whose decoding failures are protocol errors that a model
//! never gets to read.

use std::sync::LazyLock;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::input_error::InputError;
use super::{text, time, uuid};

/// One tool: its description for `tools/list` and the function behind it.
pub(super) struct BuiltinTool {
    pub(super) tool: Tool,
    run: Box<ToolFn>,
}

/// The function of a tool after its argument and answer types are erased.
type ToolFn = dyn Fn(JsonObject) -> Result<Value, InputError> + Send + Sync;

impl BuiltinTool {
    pub(super) fn run(&self, arguments: JsonObject) -> Result<Value, InputError> {
        (self.run)(arguments)
    }
}

/// The tool of this name.
pub(super) fn find(name: &str) -> Option<&'static BuiltinTool> {
    TOOLS.iter().find(|entry| entry.tool.name == name)
}

/// All tools, in their order.
pub(super) fn list() -> Vec<Tool> {
    TOOLS.iter().map(|entry| entry.tool.clone()).collect()
}

static TOOLS: LazyLock<[BuiltinTool; 5]> = LazyLock::new(|| {
    [
        tool(
            "current_time",
            "Current time",
            "The current date and time in a time zone (UTC unless one is given), with its UTC \
             offset, Unix seconds and weekday. Use it whenever an answer depends on today's date.",
            time::current_time,
        ),
        tool(
            "convert_time",
            "Convert a time between zones",
            "Shows one point in time in another time zone. Takes an RFC 3339 timestamp, a local \
             date and time with the zone it is meant in, or Unix seconds. Knows daylight saving \
             time, and says when a local time is skipped or happens twice.",
            time::convert_time,
        ),
        tool(
            "uuid",
            "Make UUIDs",
            "New UUIDs: version 4 (random), 7 (ordered by time, good for database keys) or 5 \
             (always the same for the same namespace and name). Models cannot make random ids; \
             this can.",
            uuid::uuid,
        ),
        tool(
            "hash",
            "Hash",
            "The SHA-256, SHA-384 or SHA-512 digest of a text (its UTF-8 bytes) or of bytes given \
             as base64, in hex and base64.",
            text::hash,
        ),
        tool(
            "echo",
            "Echo",
            "Gives a text back as it came, to try the connection.",
            text::echo,
        ),
    ]
});

fn tool<I, O>(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    run: fn(I) -> Result<O, InputError>,
) -> BuiltinTool
where
    I: DeserializeOwned + JsonSchema + 'static,
    O: Serialize + JsonSchema + 'static,
{
    let tool = Tool::new(name, description, schema_of::<I>())
        .with_title(title)
        .with_raw_output_schema(schema_of::<O>().into())
        .with_annotations(
            ToolAnnotations::with_title(title)
                .read_only(true)
                .destructive(false)
                .idempotent(true)
                .open_world(false),
        );
    let run = move |arguments| {
        let answer = run(decode(arguments)?)?;
        Ok(serde_json::to_value(answer).expect("answers have string keys only"))
    };
    let run = Box::new(run);
    BuiltinTool { tool, run }
}

/// The schema of `T` as clients like it: without `null` for what may be left out (some models know no lists of
/// types), and without formats such as `uint`, which JSON Schema does not know.
fn schema_of<T: JsonSchema>() -> JsonObject {
    let mut schema = schemars::schema_for!(T);
    schema.remove("title");
    schema.remove("description");
    let mut plain = RecursiveTransform(|schema: &mut Schema| {
        let only = match schema.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().find(|kind| *kind != "null").cloned(),
            _ => None,
        };
        if let Some(only) = only {
            schema.insert("type".to_owned(), only);
        }
        schema.remove("format");
    });
    plain.transform(&mut schema);
    std::mem::take(schema.ensure_object())
}

/// Reads the arguments of a tool, naming the one that does not fit.
fn decode<I: DeserializeOwned>(arguments: JsonObject) -> Result<I, InputError> {
    let arguments = Value::Object(arguments);
    I::deserialize(&arguments).map_err(|error| {
        let argument = wrong_argument::<I>(&arguments, &error.to_string());
        let remedy = "Send the arguments that the tool's input schema describes";
        InputError::new(argument.as_deref().unwrap_or("arguments"), error, remedy)
    })
}

/// The argument that an error is about: the one without which the error is another.
fn wrong_argument<I: DeserializeOwned>(arguments: &Value, error: &str) -> Option<String> {
    let arguments = arguments.as_object()?;
    let is_wrong = |name: &&String| {
        let mut others = arguments.clone();
        others.remove(*name);
        I::deserialize(&Value::Object(others)).map_or_else(|e| e.to_string() != error, |_| true)
    };
    arguments.keys().find(is_wrong).cloned()
}
