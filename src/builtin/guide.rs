//! The toolbox's resources, its prompt and their completion.
//!
//! Called by the handler, one function for each method. A wrong URI, name or argument here is a
//! protocol error, as the specification asks of these methods.

use std::fmt::Write as _;

use rmcp::ErrorData;
use rmcp::model::{
    ArgumentInfo, CompleteResult, CompletionInfo, GetPromptResult, JsonObject, Prompt,
    PromptArgument, PromptMessage, ReadResourceResult, Reference, Resource, ResourceContents,
    ResourceTemplate, Role,
};
use serde_json::{Value, json};

use super::codec::from_percent;
use super::{time, tools};

const GUIDE_URI: &str = "tollbridge://guide";
const TIME_PREFIX: &str = "tollbridge://time/";
const TIME_TEMPLATE: &str = "tollbridge://time/{zone}";
const WRITE_REGEX: &str = "write_regex";

/// Longest argument of the prompt, in bytes: it is repeated into a conversation.
const ARGUMENT_BYTES_MAX: usize = 16 << 10;

pub(super) fn resources() -> Vec<Resource> {
    vec![
        Resource::new(GUIDE_URI, "guide")
            .with_title("Guide to the toolbox")
            .with_description("What the built-in tools do and how names work behind Tollbridge.")
            .with_mime_type("text/markdown"),
    ]
}

pub(super) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(TIME_TEMPLATE, "time")
            .with_title("Current time in a zone")
            .with_description(
                "The current time as JSON; zone is an IANA name such as Europe/Berlin, its slash \
                 plain or as %2F.",
            )
            .with_mime_type("application/json"),
    ]
}

pub(super) fn read(uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let contents = if uri == GUIDE_URI {
        ResourceContents::text(guide(), uri).with_mime_type("text/markdown")
    } else if let Some(zone) = uri.strip_prefix(TIME_PREFIX) {
        let moment = from_percent("uri", zone)
            .and_then(|zone| time::now_in(&String::from_utf8_lossy(&zone)))
            .map_err(|mistake| not_found(uri, &mistake.to_string()))?;
        let text = serde_json::to_string_pretty(&moment).expect("a moment has string keys only");
        ResourceContents::text(text, uri).with_mime_type("application/json")
    } else {
        return Err(not_found(
            uri,
            &format!("this server has {GUIDE_URI} and {TIME_TEMPLATE}"),
        ));
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

pub(super) fn prompts() -> Vec<Prompt> {
    let argument = |name: &str, description: &str, required| {
        PromptArgument::new(name)
            .with_description(description)
            .with_required(required)
    };
    let arguments = vec![
        argument(
            "task",
            "What the expression is to find, in plain words.",
            true,
        ),
        argument("matching", "Texts it must match, one on each line.", false),
        argument(
            "not_matching",
            "Texts it must not match, one on each line.",
            false,
        ),
    ];
    vec![
        Prompt::new(
            WRITE_REGEX,
            Some("Write a regular expression and prove it with regex_test."),
            Some(arguments),
        )
        .with_title("Write a regular expression"),
    ]
}

pub(super) fn prompt(name: &str, arguments: &JsonObject) -> Result<GetPromptResult, ErrorData> {
    if name != WRITE_REGEX {
        let message = format!("Unknown prompt: {name}. This server has {WRITE_REGEX}");
        return Err(ErrorData::invalid_params(message, None));
    }
    let task = text_argument(arguments, "task")?.ok_or_else(|| {
        ErrorData::invalid_params("Missing argument: task says what to find", None)
    })?;
    let mut text = format!(
        "Write a regular expression in the syntax of the Rust regex crate (no look-around, no \
         back-references).\n\n\
         It is to find: {task}\n"
    );
    let examples = [
        ("matching", "must match"),
        ("not_matching", "must not match"),
    ];
    for (argument, wish) in examples {
        if let Some(lines) = text_argument(arguments, argument)? {
            write!(text, "\nIt {wish} each of these lines:\n{lines}\n")
                .expect("writing to a string succeeds");
        }
    }
    text += "\nRun it with the regex_test tool on every example, and on edge cases of your own. \
             Correct it until all agree, then show the final expression, the results, and what it \
             deliberately leaves out.";
    Ok(
        GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)])
            .with_description("Write a regular expression and prove it with regex_test."),
    )
}

pub(super) fn complete(
    reference: &Reference,
    argument: &ArgumentInfo,
) -> Result<CompleteResult, ErrorData> {
    match (reference.as_resource_uri(), reference.as_prompt_name()) {
        (Some(TIME_TEMPLATE), _) if argument.name == "zone" => complete_zone(&argument.value),
        (Some(TIME_TEMPLATE), _) | (_, Some(WRITE_REGEX)) => Ok(CompleteResult::default()),
        _ => Err(ErrorData::invalid_params(
            format!("Nothing to complete: this server has {TIME_TEMPLATE} and {WRITE_REGEX}"),
            None,
        )),
    }
}

fn complete_zone(typed: &str) -> Result<CompleteResult, ErrorData> {
    let typed = typed.to_lowercase();
    // A zone is often known by its city alone, so names that begin as typed come first, others that
    // contain it after.
    let (mut values, inner): (Vec<_>, Vec<_>) = time::zone_names()
        .iter()
        .filter(|zone| zone.to_lowercase().contains(&typed))
        .cloned()
        .partition(|zone| zone.to_lowercase().starts_with(&typed));
    values.extend(inner);
    let total = values.len();
    values.truncate(CompletionInfo::MAX_VALUES);
    let has_more = values.len() < total;
    let info = CompletionInfo::with_pagination(values, u32::try_from(total).ok(), has_more)
        .map_err(|error| ErrorData::internal_error(error, None))?;
    Ok(CompleteResult::new(info))
}

/// A prompt's argument, which the specification wants to be a string.
fn text_argument<'a>(arguments: &'a JsonObject, name: &str) -> Result<Option<&'a str>, ErrorData> {
    let refuse = |problem: &str| {
        let message = format!("Invalid argument: {name} {problem}");
        Err(ErrorData::invalid_params(message, None))
    };
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) if text.len() > ARGUMENT_BYTES_MAX => {
            refuse(&format!("is longer than {ARGUMENT_BYTES_MAX} bytes"))
        }
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            refuse("is not a string")
        }
    }
}

fn not_found(uri: &str, why: &str) -> ErrorData {
    ErrorData::resource_not_found(
        format!("Resource not found: {why}"),
        Some(json!({ "uri": uri })),
    )
}

fn guide() -> String {
    let mut text = String::from(
        "# Tollbridge toolbox\n\n\
         A small server inside Tollbridge. It reads nothing but its arguments and the clock, and \
         nothing leaves the process.\n\n\
         ## Tools\n\n",
    );
    for tool in tools::list() {
        let description = tool.description.as_deref().unwrap_or_default();
        writeln!(text, "- `{}`: {description}", tool.name).expect("writing to a string succeeds");
    }
    text += "\n## Names\n\n\
             Tollbridge merges many servers behind one URL, so it puts a server's name before the \
             names of its tools and prompts: with this server called `toolbox` in the \
             configuration, `uuid` is `mcp_toolbox_uuid` at `/mcp`. Resources get the server's \
             name before their scheme: `toolbox+tollbridge://guide`. At `/mcp/servers/toolbox` \
             every name is the original one. The `[naming]` section of the configuration changes \
             these rules.\n\n\
             ## Mistakes\n\n\
             A tool that cannot work with its arguments answers with an error that names the \
             argument, what is wrong with it and what to send instead.\n";
    text
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CompleteRequestParams, GetPromptRequestParams, ReadResourceRequestParams};
    use rmcp::service::ServiceError;

    use super::*;
    use crate::builtin::testing::{Client, connected, eras};

    #[tokio::test]
    async fn reads_the_guide_and_the_time() {
        for era in eras() {
            connected(era, async |client| {
                let resources = client.list_all_resources().await.unwrap();
                assert_eq!(resources.len(), 1);
                let guide = read_text(client, &resources[0].uri).await.unwrap();
                for tool in tools::list() {
                    assert!(guide.contains(&format!("- `{}`: ", tool.name)), "{guide}");
                }
                let templates = client.list_all_resource_templates().await.unwrap();
                assert_eq!(templates[0].uri_template, TIME_TEMPLATE);
                for zone in ["Asia/Kolkata", "Asia%2FKolkata"] {
                    let text = read_text(client, &format!("{TIME_PREFIX}{zone}"))
                        .await
                        .unwrap();
                    let moment: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(moment["zone"], "Asia/Kolkata");
                    assert_eq!(moment["offset"], "+05:30");
                }
            })
            .await;
        }
    }

    #[tokio::test]
    async fn refuses_unknown_resources() {
        for (era, code) in eras().into_iter().zip([-32002, -32602]) {
            connected(era, async |client| {
                for (uri, why) in [
                    ("tollbridge://time/Berlin", "Did you mean Europe/Berlin"),
                    ("tollbridge://time/a%2", "is not followed by two hex digits"),
                    ("tollbridge://nothing", "this server has tollbridge://guide"),
                ] {
                    let error = read_text(client, uri).await.unwrap_err();
                    assert_eq!(error.code.0, code);
                    assert!(error.message.contains(why), "{}", error.message);
                    assert_eq!(error.data, Some(json!({"uri": uri})));
                }
            })
            .await;
        }
    }

    #[tokio::test]
    async fn writes_the_prompt() {
        for era in eras() {
            connected(era, async |client| {
                let prompts = client.list_all_prompts().await.unwrap();
                assert_eq!(prompts[0].name, WRITE_REGEX);
                let text = prompt_text(
                    client,
                    WRITE_REGEX,
                    &json!({"task": "a postcode", "matching": "8001", "not_matching": "80"}),
                )
                .await
                .unwrap();
                for part in [
                    "It is to find: a postcode\n",
                    "It must match each of these lines:\n8001\n",
                    "It must not match each of these lines:\n80\n",
                    "regex_test",
                ] {
                    assert!(text.contains(part), "{text}");
                }
                for (name, arguments, why) in [
                    (
                        WRITE_REGEX,
                        json!({}),
                        "Missing argument: task says what to find",
                    ),
                    (
                        WRITE_REGEX,
                        json!({"task": 1}),
                        "Invalid argument: task is not a string",
                    ),
                    (
                        "other",
                        json!({}),
                        "Unknown prompt: other. This server has write_regex",
                    ),
                ] {
                    let error = prompt_text(client, name, &arguments).await.unwrap_err();
                    assert_eq!((error.code.0, error.message.as_ref()), (-32602, why));
                }
            })
            .await;
        }
    }

    #[test]
    fn prompt_arguments_have_a_limit() {
        let task = |bytes| {
            let arguments = json!({"task": "a".repeat(bytes)});
            prompt(WRITE_REGEX, arguments.as_object().unwrap()).map_err(|error| error.message)
        };
        assert!(task(ARGUMENT_BYTES_MAX).is_ok());
        let refused = task(ARGUMENT_BYTES_MAX + 1).unwrap_err();
        assert_eq!(refused, "Invalid argument: task is longer than 16384 bytes");
        assert!(task(ARGUMENT_BYTES_MAX - 1).is_ok());
    }

    #[tokio::test]
    async fn completes_zones() {
        let zone = |typed: &str| {
            let argument = ArgumentInfo::new("zone", typed);
            CompleteRequestParams::new(Reference::for_resource(TIME_TEMPLATE), argument)
        };
        for era in eras() {
            connected(era, async |client| {
                let berlin = client
                    .complete(zone("europe/ber"))
                    .await
                    .unwrap()
                    .completion;
                assert_eq!(berlin.values, ["Europe/Berlin"]);
                assert_eq!((berlin.total, berlin.has_more), (Some(1), Some(false)));
                let city = client.complete(zone("tokyo")).await.unwrap().completion;
                assert_eq!(city.values, ["Asia/Tokyo"]);
                let all = client.complete(zone("")).await.unwrap().completion;
                assert_eq!(all.values.len(), CompletionInfo::MAX_VALUES);
                assert_eq!(all.has_more, Some(true));
                assert!(all.total > Some(100));

                let other = Reference::for_prompt(WRITE_REGEX);
                let request = CompleteRequestParams::new(other, ArgumentInfo::new("task", "a"));
                assert_eq!(
                    client.complete(request).await.unwrap().completion.values,
                    [""; 0]
                );
                let unknown = Reference::for_resource("file:///{path}");
                let request = CompleteRequestParams::new(unknown, ArgumentInfo::new("path", ""));
                let error = refusal(client.complete(request).await.unwrap_err());
                assert_eq!(error.code.0, -32602);
            })
            .await;
        }
    }

    async fn read_text(client: &Client, uri: &str) -> Result<String, ErrorData> {
        let read = client
            .read_resource(ReadResourceRequestParams::new(uri))
            .await;
        match &read.map_err(refusal)?.contents[..] {
            [ResourceContents::TextResourceContents { text, .. }] => Ok(text.clone()),
            other => panic!("not one text: {other:?}"),
        }
    }

    async fn prompt_text(
        client: &Client,
        name: &str,
        arguments: &Value,
    ) -> Result<String, ErrorData> {
        let request = GetPromptRequestParams::new(name)
            .with_arguments(arguments.as_object().unwrap().clone());
        let prompt = client.get_prompt(request).await.map_err(refusal)?;
        Ok(prompt.messages[0].content.as_text().unwrap().text.clone())
    }

    fn refusal(error: ServiceError) -> ErrorData {
        let ServiceError::McpError(error) = error else {
            panic!("not an answer: {error}");
        };
        error
    }
}
