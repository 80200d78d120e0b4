//! The tools: their listing, and the way from a call to the module that answers it.
//!
//! Names are the suite's. `CATALOGUE` says which module owns which name, so that a listed tool
//! cannot lack an answer.

mod content;

mod reports;

mod questions;

mod rounds;

mod jobs;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    InputRequests, InputRequiredResult, JsonObject, SealOptions, Tool,
};
use rmcp::service::RequestContext;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::ask::{self, Asked};
use crate::listeners::List;
use crate::server::Fixtures;

pub(crate) use crate::tools::content::PIXEL_PNG;

/// Who answers a call.
#[derive(Clone, Copy)]
enum Kind {
    Content,
    Job,
    Question,
    Report,
    Round,
    Trigger(List),
}

/// Every tool that is always there: its name, who answers it, its description.
const CATALOGUE: &[(&str, Kind, &str)] = &[
    ("test_simple_text", Kind::Content, "Returns a text"),
    ("test_image_content", Kind::Content, "Returns an image"),
    ("test_audio_content", Kind::Content, "Returns a sound"),
    (
        "test_embedded_resource",
        Kind::Content,
        "Returns a resource",
    ),
    (
        "test_multiple_content_types",
        Kind::Content,
        "Returns a text, an image and a resource",
    ),
    ("test_error_handling", Kind::Content, "Always fails"),
    (
        "json_schema_2020_12_tool",
        Kind::Content,
        "Has an input schema of every kind of keyword",
    ),
    (
        "test_header_parameter",
        Kind::Content,
        "Has an argument that travels in a header as well",
    ),
    (
        "test_tool_with_logging",
        Kind::Report,
        "Logs three messages",
    ),
    (
        "test_tool_with_progress",
        Kind::Report,
        "Reports its progress three times",
    ),
    (
        "test_logging_tool",
        Kind::Report,
        "Logs a message if the request asks for messages",
    ),
    (
        "test_reconnection",
        Kind::Report,
        "Ends its own event stream before it answers",
    ),
    (
        "test_missing_capability",
        Kind::Question,
        "Needs a client with sampling, and uses it not",
    ),
    (
        "test_sampling",
        Kind::Question,
        "Asks the model of the client",
    ),
    (
        "test_elicitation",
        Kind::Question,
        "Asks the user for a name and an address",
    ),
    (
        "test_elicitation_sep1034_defaults",
        Kind::Question,
        "Asks with defaults of every type",
    ),
    (
        "test_elicitation_sep1330_enums",
        Kind::Question,
        "Asks with enumerations of every kind",
    ),
    (
        "test_streaming_elicitation",
        Kind::Question,
        "Asks the user in the midst of a stream",
    ),
    (
        "test_input_required_result_elicitation",
        Kind::Round,
        "Asks the user, then greets",
    ),
    (
        "test_input_required_result_sampling",
        Kind::Round,
        "Asks the model for a capital",
    ),
    (
        "test_input_required_result_list_roots",
        Kind::Round,
        "Asks for the roots",
    ),
    (
        "test_input_required_result_request_state",
        Kind::Round,
        "Asks, and keeps a state meanwhile",
    ),
    (
        "test_input_required_result_tampered_state",
        Kind::Round,
        "Refuses a state that is not its own",
    ),
    (
        "test_input_required_result_multiple_inputs",
        Kind::Round,
        "Asks three things at once",
    ),
    (
        "test_input_required_result_multi_round",
        Kind::Round,
        "Asks one thing after the other",
    ),
    (
        "test_input_required_result_capabilities",
        Kind::Round,
        "Asks only what the client can answer",
    ),
    ("greet", Kind::Job, "Greets at once, never as a task"),
    (
        "slow_compute",
        Kind::Job,
        "Takes its time, as a task if it may",
    ),
    (
        "failing_job",
        Kind::Job,
        "Fails as a tool does, only as a task",
    ),
    (
        "protocol_error_job",
        Kind::Job,
        "Fails as a request does, as a task if it may",
    ),
    (
        "confirm_delete",
        Kind::Job,
        "Asks for a confirmation, only as a task",
    ),
    (
        "multi_input",
        Kind::Job,
        "Asks two things at once, only as a task",
    ),
    (
        "test_tool_with_task",
        Kind::Job,
        "Asks the user first, then goes on as a task",
    ),
    (
        "test_trigger_tool_change",
        Kind::Trigger(List::Tools),
        "Changes the list of tools",
    ),
    (
        "test_trigger_prompt_change",
        Kind::Trigger(List::Prompts),
        "Changes the list of prompts",
    ),
];

const EXTRA: &str = "test_extra_tool";

/// Every tool that is always there.
pub(crate) fn list() -> Vec<Tool> {
    CATALOGUE
        .iter()
        .map(|(name, _, about)| Tool::new(*name, *about, schema(name)))
        .collect()
}

/// The tool that comes and goes.
pub(crate) fn extra() -> Tool {
    Tool::new(
        EXTRA,
        "Comes and goes with test_trigger_tool_change",
        schema(EXTRA),
    )
}

/// Answers `tools/call`.
///
/// # Errors
///
/// There is no such tool, or it fails as a request.
pub(crate) async fn call(call: Call) -> Result<CallToolResponse, ErrorData> {
    let name = call.request.name.clone();
    if name == EXTRA {
        return Ok(text("Here while it lasts.").into());
    }
    let Some((_, kind, _)) = CATALOGUE.iter().find(|(listed, _, _)| *listed == name) else {
        return Err(ErrorData::invalid_params(
            format!("Unknown tool: {name}"),
            None,
        ));
    };
    match kind {
        Kind::Content => Ok(content::call(&call).into()),
        Kind::Job => jobs::call(call).await,
        Kind::Question => questions::call(&call).await,
        Kind::Report => reports::call(&call).await,
        Kind::Round => rounds::call(&call).await,
        Kind::Trigger(list) => {
            call.fixtures.shared.listeners.change(*list).await;
            Ok(text("changed").into())
        }
    }
}

/// One call of a tool, with everything needed to answer it.
pub(crate) struct Call {
    pub(crate) fixtures: Fixtures,
    pub(crate) request: CallToolRequestParams,
    pub(crate) context: RequestContext<RoleServer>,
}

impl Call {
    fn argument(&self, name: &str) -> Option<&Value> {
        self.request.arguments.as_ref()?.get(name)
    }

    fn text_argument(&self, name: &str) -> &str {
        self.argument(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    async fn ask(&self, questions: InputRequests) -> Result<Asked, ErrorData> {
        ask::ask(
            questions,
            self.request.input_responses.as_ref(),
            &self.context,
        )
        .await
    }

    /// Answers that input is required, and has `state` sent back with it.
    fn require(&self, questions: InputRequests, state: &impl Serialize) -> CallToolResponse {
        let bound = SealOptions::new().associated_data(self.request.name.as_bytes());
        let sealed = self.fixtures.shared.seal.seal_json_with(state, &bound);
        let sealed = sealed.expect("the states of the fixtures are JSON");
        InputRequiredResult::new(Some(questions), Some(sealed)).into()
    }

    /// The state that `require` sent, if the client sends one back.
    ///
    /// # Errors
    ///
    /// It is not what this tool sent.
    fn state<T: DeserializeOwned>(&self) -> Result<Option<T>, ErrorData> {
        let Some(sealed) = &self.request.request_state else {
            return Ok(None);
        };
        let opened = self
            .fixtures
            .shared
            .seal
            .open_json_with(sealed, self.request.name.as_bytes());
        opened
            .map(Some)
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))
    }
}

fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn schema(name: &str) -> JsonObject {
    let required = |name: &str, property: Value| json!({ "type": "object", "properties": { name: property }, "required": [name] });
    let text = || json!({ "type": "string" });
    let schema = match name {
        "greet" => required("name", text()),
        "slow_compute" => json!({
            "type": "object",
            "properties": { "seconds": { "type": "number", "minimum": 0 }, "label": text() },
        }),
        "confirm_delete" => {
            json!({ "type": "object", "properties": { "filename": { "type": "string" } } })
        }
        "test_sampling" => required("prompt", text()),
        "test_elicitation" => required("message", text()),
        "test_header_parameter" => required(
            "region",
            json!({ "type": "string", "x-mcp-header": "Region" }),
        ),
        "json_schema_2020_12_tool" => content::schema_2020_12(),
        _ => json!({ "type": "object" }),
    };
    let Value::Object(schema) = schema else {
        unreachable!("every arm is an object");
    };
    schema
}
