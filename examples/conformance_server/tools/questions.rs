//! Tools that ask the client once and repeat what it says.

use rmcp::model::{
    CallToolResponse, ClientCapabilities, ErrorData, InputRequest, InputRequests,
    InputRequiredResult,
};
use serde_json::{Value, json};

use crate::ask::{self, Asked};
use crate::tools::{Call, text};

/// The only question of each of these tools.
const QUESTION: &str = "answer";

pub(super) async fn call(call: &Call) -> Result<CallToolResponse, ErrorData> {
    match call.request.name.as_ref() {
        "test_missing_capability" => need_sampling(call),
        "test_sampling" => {
            let prompt = call.text_argument("prompt");
            repeat(call, "LLM response", ask::sampling(prompt)).await
        }
        "test_elicitation" => {
            let question = ask::elicitation(call.text_argument("message"), &address_form());
            repeat(call, "User response", question).await
        }
        "test_elicitation_sep1034_defaults" => {
            let question = ask::elicitation("Please check these defaults", &default_form());
            repeat(call, "Elicitation completed", question).await
        }
        "test_elicitation_sep1330_enums" => {
            let question = ask::elicitation("Please choose", &enum_form());
            repeat(call, "Elicitation completed", question).await
        }
        _ => {
            let question = ask::elicitation("Please give a value", &ask::form("value", "string"));
            repeat(call, "Elicitation completed", question).await
        }
    }
}

/// Refuses clients that did not declare sampling, without asking them anything.
fn need_sampling(call: &Call) -> Result<CallToolResponse, ErrorData> {
    let client = call.context.client_capabilities().unwrap_or_default();
    if client.sampling.is_some() {
        return Ok(text("the client has sampling").into());
    }
    let needed = ClientCapabilities::builder().enable_sampling().build();
    Err(ErrorData::missing_required_client_capability(needed))
}

async fn repeat(
    call: &Call,
    prefix: &str,
    question: InputRequest,
) -> Result<CallToolResponse, ErrorData> {
    let questions = InputRequests::from([(QUESTION.to_owned(), question)]);
    match call.ask(questions).await? {
        Asked::Answered(answers) => {
            let said: Vec<_> = answers.values().map(describe).collect();
            Ok(text(format!("{prefix}: {}", said.join(", "))).into())
        }
        Asked::Pending(questions) => Ok(InputRequiredResult::from_input_requests(questions).into()),
    }
}

fn describe(answer: &Value) -> String {
    let content = &answer["content"];
    match answer["action"].as_str() {
        Some(action) => format!("action={action}, content={content}"),
        None => content["text"]
            .as_str()
            .map_or_else(|| content.to_string(), str::to_owned),
    }
}

fn address_form() -> Value {
    json!({
        "type": "object",
        "properties": {
            "username": { "type": "string", "description": "User's response" },
            "email": { "type": "string", "description": "User's email address" },
        },
        "required": ["username", "email"],
    })
}

/// A default for every primitive type (SEP-1034).
fn default_form() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "default": "John Doe" },
            "age": { "type": "integer", "default": 30 },
            "score": { "type": "number", "default": 95.5 },
            "status": {
                "type": "string",
                "enum": ["active", "inactive", "pending"],
                "default": "active",
            },
            "verified": { "type": "boolean", "default": true },
        },
        "required": [],
    })
}

/// Every way to write an enumeration (SEP-1330).
fn enum_form() -> Value {
    let plain = json!(["option1", "option2", "option3"]);
    let titled = json!([
        { "const": "value1", "title": "First Option" },
        { "const": "value2", "title": "Second Option" },
        { "const": "value3", "title": "Third Option" },
    ]);
    json!({
        "type": "object",
        "properties": {
            "untitledSingle": { "type": "string", "enum": plain },
            "titledSingle": { "type": "string", "oneOf": titled },
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": { "type": "array", "items": { "type": "string", "enum": plain } },
            "titledMulti": { "type": "array", "items": { "anyOf": titled } },
        },
        "required": [],
    })
}
