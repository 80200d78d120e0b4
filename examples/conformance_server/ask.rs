//! Asking the client: for input of its user, for a sample of its model, for its roots.
//!
//! The handshake revisions let a server send requests of its own; 2026-07-28 lets it answer that
//! input is required, and be called again. `ask` hides which: a tool states what it needs and gets
//! either the answers or the requests that it has to return.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    ClientCapabilities, ErrorData, InputRequest, InputRequests, InputResponses, JsonObject,
    ProtocolVersion, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, RequestContext};
use serde_json::{Value, json};

/// How long the person or the model behind the client may take on a handshake connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What became of the questions.
pub(crate) enum Asked {
    /// Every question has an answer.
    Answered(InputResponses),
    /// The client has to be sent these and to call again.
    Pending(InputRequests),
}

/// Whether a request follows 2026-07-28, without handshake, and not one of its predecessors.
pub(crate) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Asks the client, in the way of its era.
///
/// `given` are the answers that came with this request.
///
/// # Errors
///
/// The client lacks a capability that a question needs, or does not answer.
pub(crate) async fn ask(
    requests: InputRequests,
    given: Option<&InputResponses>,
    context: &RequestContext<RoleServer>,
) -> Result<Asked, ErrorData> {
    refuse_undeclared(&requests, context)?;
    if is_modern(context) {
        Ok(match_answers(requests, given))
    } else {
        push(requests, context).await
    }
}

/// Whether the client says that it can answer a question of this kind.
pub(crate) fn is_declared(request: &InputRequest, client: &ClientCapabilities) -> bool {
    let wanted = required_capability(request);
    let has = |name: &str| match name {
        "elicitation" => client.elicitation.is_some(),
        "roots" => client.roots.is_some(),
        _ => client.sampling.is_some(),
    };
    has(wanted)
}

/// A question to the user, with a form for the answer.
pub(crate) fn elicitation(message: &str, schema: &Value) -> InputRequest {
    request(json!({
        "method": "elicitation/create",
        "params": { "mode": "form", "message": message, "requestedSchema": schema },
    }))
}

/// A question to the model of the client.
pub(crate) fn sampling(prompt: &str) -> InputRequest {
    request(json!({
        "method": "sampling/createMessage",
        "params": {
            "messages": [{ "role": "user", "content": { "type": "text", "text": prompt } }],
            "maxTokens": 100,
        },
    }))
}

/// The question for the roots of the client.
pub(crate) fn roots() -> InputRequest {
    request(json!({ "method": "roots/list" }))
}

/// A form with one required field.
pub(crate) fn form(field: &str, kind: &str) -> Value {
    json!({
        "type": "object",
        "properties": { field: { "type": kind } },
        "required": [field],
    })
}

/// A field of the form that the user filled in, as text.
pub(crate) fn filled_in(answers: &InputResponses, question: &str, field: &str) -> String {
    match answers
        .get(question)
        .and_then(|answer| answer.pointer(&format!("/content/{field}")))
    {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::from("nothing"),
    }
}

fn request(wire: Value) -> InputRequest {
    serde_json::from_value(wire).expect("the fixtures are requests that rmcp knows")
}

fn required_capability(request: &InputRequest) -> &'static str {
    match request {
        InputRequest::Elicitation(_) => "elicitation",
        InputRequest::ListRoots(_) => "roots",
        // The enum may grow; the fixtures ask nothing else.
        InputRequest::CreateMessage(_) | _ => "sampling",
    }
}

fn refuse_undeclared(
    requests: &InputRequests,
    context: &RequestContext<RoleServer>,
) -> Result<(), ErrorData> {
    let client = context.client_capabilities().unwrap_or_default();
    let missing: JsonObject = requests
        .values()
        .filter(|request| !is_declared(request, &client))
        .map(|request| (required_capability(request).to_owned(), json!({})))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_modern(context) {
        let names: Vec<_> = missing.keys().map(String::as_str).collect();
        let message = format!("the client does not support {}", names.join(", "));
        return Err(ErrorData::invalid_request(message, None));
    }
    let missing = serde_json::from_value(Value::Object(missing))
        .expect("capabilities without settings are capabilities");
    Err(ErrorData::missing_required_client_capability(missing))
}

/// An answer counts when it is an object, as every answer is; others are asked for again.
fn match_answers(requests: InputRequests, given: Option<&InputResponses>) -> Asked {
    let answer = |key: &String| given?.get(key).filter(|answer| answer.is_object()).cloned();
    let answers: Option<InputResponses> = requests
        .keys()
        .map(|key| answer(key).map(|answer| (key.clone(), answer)))
        .collect();
    answers.map_or(Asked::Pending(requests), Asked::Answered)
}

async fn push(
    requests: InputRequests,
    context: &RequestContext<RoleServer>,
) -> Result<Asked, ErrorData> {
    let mut answers = InputResponses::new();
    for (key, request) in requests {
        let request = match request {
            InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
            InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
            InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
            _ => return Err(ErrorData::internal_error("no such question", None)),
        };
        let options = PeerRequestOptions::with_timeout(ANSWER_WITHIN);
        let unanswered = |error| ErrorData::internal_error(format!("no answer: {error}"), None);
        let sent = context
            .peer
            .send_request_with_option(request, options)
            .await;
        let answer = sent
            .map_err(unanswered)?
            .await_response()
            .await
            .map_err(unanswered)?;
        let answer = serde_json::to_value(answer).expect("rmcp's own types are JSON");
        answers.insert(key, answer);
    }
    Ok(Asked::Answered(answers))
}
