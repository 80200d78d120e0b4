//! A real client in front of the toolbox, for the tests of its modules.
//!
//! Called by the `tests` modules beside the tools. Every row runs in both eras, over the same byte
//! stream that the `builtin` transport uses.

use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{CallToolRequestParams, CallToolResult, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _, RunningService};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// How long a test may take before it counts as hung.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) type Client = RunningService<RoleClient, ()>;

/// Both ways to open a connection.
pub(super) fn eras() -> [ClientLifecycleMode; 2] {
    [
        ClientLifecycleMode::Initialize,
        ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        },
    ]
}

/// Serves one connection for as long as `talk` uses it.
pub(super) async fn connected<T>(
    era: ClientLifecycleMode,
    talk: impl AsyncFnOnce(&Client) -> T,
) -> T {
    let (ours, theirs) = tokio::io::duplex(4096);
    let talking = async {
        let client = ().serve_with_lifecycle(ours, era).await.unwrap();
        let answer = talk(&client).await;
        client.cancel().await.unwrap();
        answer
    };
    let both =
        Box::pin(async { tokio::join!(super::serve(theirs, CancellationToken::new()), talking) });
    let (served, answer) = tokio::time::timeout(PATIENCE, both)
        .await
        .expect("a test hangs");
    served.unwrap();
    answer
}

/// Calls `tool` with each row's arguments in both eras.
///
/// A row expects members that the structured answer must have (others may be there too), or the
/// whole error text.
pub(super) async fn check(tool: &str, rows: &[(&str, Value, Result<Value, &str>)]) {
    for era in eras() {
        connected(era, async |client| {
            for (name, arguments, expected) in rows {
                let result = call(client, tool, arguments.clone()).await;
                match (outcome(&result), expected) {
                    (Ok(answer), Ok(expected)) => {
                        assert!(
                            contains(&answer, expected),
                            "{name}: {answer} lacks {expected}"
                        );
                        check_schema(client, tool, &answer).await;
                    }
                    (Err(error), Err(expected)) => assert_eq!(&error, expected, "{name}"),
                    (got, expected) => panic!("{name}: {got:?} instead of {expected:?}"),
                }
            }
        })
        .await;
    }
}

pub(super) async fn call(client: &Client, tool: &str, arguments: Value) -> CallToolResult {
    let arguments = arguments
        .as_object()
        .expect("arguments are an object")
        .clone();
    let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    client.call_tool(request).await.unwrap()
}

/// The structured answer, or the error's text.
pub(super) fn outcome(result: &CallToolResult) -> Result<Value, String> {
    let text = &result.content[0]
        .as_text()
        .expect("every result has text")
        .text;
    if result.is_error == Some(true) {
        assert_eq!(result.structured_content, None);
        return Err(text.clone());
    }
    let answer = result
        .structured_content
        .clone()
        .expect("answers are structured");
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), answer);
    Ok(answer)
}

/// Checks an answer's members against the tool's output schema: none missing, none unheard of.
async fn check_schema(client: &Client, tool: &str, answer: &Value) {
    let tools = client.list_all_tools().await.unwrap();
    let tool = tools.iter().find(|t| t.name == tool).unwrap();
    let schema = Value::Object(tool.output_schema.as_deref().unwrap().clone());
    let answer = answer.as_object().unwrap();
    for required in schema["required"].as_array().unwrap() {
        assert!(
            answer.contains_key(required.as_str().unwrap()),
            "{required}"
        );
    }
    for member in answer.keys() {
        assert!(schema["properties"].get(member).is_some(), "{member}");
    }
}

/// Whether `whole` has everything of `part`: members of objects may be more, all else is equal.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(w, p)| contains(w, p))
        }
        (whole, part) => whole == part,
    }
}
