//! The prompts of the fixtures, and the completion of their arguments.

use rmcp::RoleServer;
use rmcp::model::{
    ArgumentInfo, CompleteResult, CompletionInfo, ContentBlock, ErrorData, GetPromptRequestParams,
    GetPromptResponse, GetPromptResult, InputRequests, InputRequiredResult, JsonObject, Prompt,
    PromptArgument, PromptMessage, ResourceContents, Role,
};
use rmcp::service::RequestContext;
use serde_json::Value;

use crate::ask::{self, Asked};
use crate::tools::PIXEL_PNG;

/// What the completion of every argument chooses from.
const WORDS: [&str; 4] = ["test", "testimony", "paris", "park"];

/// Every prompt that is always there.
pub(crate) fn list() -> Vec<Prompt> {
    let required = |name: &str| PromptArgument::new(name).with_required(true);
    let with_arguments = vec![required("arg1"), required("arg2")];
    vec![
        prompt("test_simple_prompt", "A text", None),
        prompt(
            "test_prompt_with_arguments",
            "Repeats its arguments",
            Some(with_arguments),
        ),
        prompt(
            "test_prompt_with_embedded_resource",
            "A resource and a text",
            Some(vec![required("resourceUri")]),
        ),
        prompt("test_prompt_with_image", "An image and a text", None),
        prompt(
            "test_input_required_result_prompt",
            "Asks the user for a context",
            None,
        ),
    ]
}

/// The prompt that comes and goes.
pub(crate) fn extra() -> Prompt {
    prompt(
        "test_extra_prompt",
        "Comes and goes with test_trigger_prompt_change",
        None,
    )
}

/// Answers `prompts/get`.
///
/// # Errors
///
/// There is no such prompt, or the client cannot be asked.
pub(crate) async fn get(
    request: GetPromptRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<GetPromptResponse, ErrorData> {
    let arguments = request.arguments.clone().unwrap_or_default();
    let messages = match request.name.as_str() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.".into())],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument(&arguments, "arg1"), argument(&arguments, "arg2"));
            vec![text(format!(
                "Prompt with arguments: arg1='{first}', arg2='{second}'"
            ))]
        }
        "test_prompt_with_embedded_resource" => {
            let uri = argument(&arguments, "resourceUri");
            let contents = ResourceContents::text("Embedded resource content for testing.", uri);
            vec![
                PromptMessage::new(Role::User, ContentBlock::resource(contents)),
                text("Please process the embedded resource above.".into()),
            ]
        }
        "test_prompt_with_image" => vec![
            PromptMessage::new(Role::User, ContentBlock::image(PIXEL_PNG, "image/png")),
            text("Please analyze the image above.".into()),
        ],
        "test_extra_prompt" => vec![text("Here while it lasts.".into())],
        "test_input_required_result_prompt" => return with_context(&request, context).await,
        name => {
            return Err(ErrorData::invalid_params(
                format!("Unknown prompt: {name}"),
                None,
            ));
        }
    };
    Ok(GetPromptResult::new(messages).into())
}

/// Answers `completion/complete` with the words that begin like the argument.
///
/// # Errors
///
/// None, as long as there are few words.
pub(crate) fn complete(argument: &ArgumentInfo) -> Result<CompleteResult, ErrorData> {
    let begins = |word: &&&str| word.starts_with(&argument.value);
    let values = WORDS
        .iter()
        .filter(begins)
        .map(|word| (*word).to_owned())
        .collect();
    let completion = CompletionInfo::with_all_values(values);
    completion
        .map(CompleteResult::new)
        .map_err(|error| ErrorData::internal_error(error, None))
}

async fn with_context(
    request: &GetPromptRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<GetPromptResponse, ErrorData> {
    let question = ask::elicitation(
        "What context should the prompt use?",
        &ask::form("context", "string"),
    );
    let questions = InputRequests::from([("user_context".to_owned(), question)]);
    match ask::ask(questions, request.input_responses.as_ref(), context).await? {
        Asked::Answered(answers) => {
            let context = ask::filled_in(&answers, "user_context", "context");
            Ok(GetPromptResult::new(vec![text(format!("Mind this context: {context}"))]).into())
        }
        Asked::Pending(questions) => Ok(InputRequiredResult::from_input_requests(questions).into()),
    }
}

fn prompt(name: &str, description: &str, arguments: Option<Vec<PromptArgument>>) -> Prompt {
    Prompt::new(name, Some(description), arguments)
}

fn text(text: String) -> PromptMessage {
    PromptMessage::new_text(Role::User, text)
}

fn argument<'a>(arguments: &'a JsonObject, name: &str) -> &'a str {
    arguments
        .get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
