//! Tools of the Tasks extension (SEP-2663). Some run as a task for clients that declare the
//! extension and at once for others; some cannot do without.

use std::time::Duration;

use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, CreateTaskResult,
    ErrorData, InputRequests, InputRequiredResult,
};
use rmcp::task_manager::{TaskContext, TaskExit, TaskFuture, TaskOptions};
use serde_json::Value;
use tokio::time::sleep;

use crate::ask::{self, Asked};
use crate::tools::{Call, text};

/// Clients that obey the hint finish the suite soon.
const POLL_INTERVAL_MS: u64 = 100;

/// No fixture is asked to take longer, and a typing error shall not hold a task for years.
const SECONDS_MAX: f64 = 600.0;

pub(super) async fn call(call: Call) -> Result<CallToolResponse, ErrorData> {
    match call.request.name.as_ref() {
        "slow_compute" => {
            let work = slow_compute(&call);
            task_or_not(&call, work).await
        }
        "protocol_error_job" => task_or_not(&call, protocol_error()).await,
        "failing_job" => {
            need_tasks(&call)?;
            task_or_not(&call, tool_error()).await
        }
        "confirm_delete" => {
            let file = call.text_argument("filename").to_owned();
            task(&call, |task| Box::pin(confirm_delete(task, file)))
        }
        "multi_input" => task(&call, |task| Box::pin(multi_input(task))),
        "test_tool_with_task" => ask_then_task(&call).await,
        _ => Ok(text(format!("Hello, {}!", call.text_argument("name"))).into()),
    }
}

/// Runs `work` as a task if the client can follow one, else before the answer.
async fn task_or_not(
    call: &Call,
    work: impl Future<Output = Result<CallToolResult, ErrorData>> + Send + 'static,
) -> Result<CallToolResponse, ErrorData> {
    if !has_tasks(call) {
        return work.await.map(CallToolResponse::from);
    }
    task(call, |task| {
        Box::pin(async move {
            tokio::select! {
                result = work => result.map_err(TaskExit::Error),
                () = task.cancelled() => Err(TaskExit::Cancelled),
            }
        })
    })
}

fn task(
    call: &Call,
    work: impl FnOnce(TaskContext) -> TaskFuture,
) -> Result<CallToolResponse, ErrorData> {
    need_tasks(call)?;
    let options = TaskOptions::new().with_poll_interval_ms(POLL_INTERVAL_MS);
    let task = call.fixtures.shared.tasks.spawn(options, work);
    Ok(CreateTaskResult::new(task).into())
}

fn has_tasks(call: &Call) -> bool {
    let client = call.context.client_capabilities();
    ask::is_modern(&call.context) && client.is_some_and(|client| client.supports_tasks())
}

fn need_tasks(call: &Call) -> Result<(), ErrorData> {
    if has_tasks(call) {
        return Ok(());
    }
    let needed = ClientCapabilities::builder().enable_tasks().build();
    Err(ErrorData::missing_required_client_capability(needed))
}

fn slow_compute(
    call: &Call,
) -> impl Future<Output = Result<CallToolResult, ErrorData>> + Send + 'static {
    let seconds = call
        .argument("seconds")
        .and_then(Value::as_f64)
        .unwrap_or(1.0);
    let seconds = seconds.clamp(0.0, SECONDS_MAX);
    let label = call.text_argument("label").to_owned();
    async move {
        sleep(Duration::from_secs_f64(seconds)).await;
        Ok(text(format!("{label} computed for {seconds} s")))
    }
}

async fn tool_error() -> Result<CallToolResult, ErrorData> {
    sleep(Duration::from_secs(1)).await;
    Ok(CallToolResult::error(vec![ContentBlock::text(
        "the job failed, as it always does",
    )]))
}

async fn protocol_error() -> Result<CallToolResult, ErrorData> {
    sleep(Duration::from_millis(200)).await;
    Err(ErrorData::internal_error(
        "the job broke, as it always does",
        None,
    ))
}

async fn confirm_delete(task: TaskContext, file: String) -> Result<CallToolResult, TaskExit> {
    let question = ask::elicitation(&format!("Delete {file}?"), &ask::form("confirm", "boolean"));
    let answer = task.request_input("confirm", question).await?;
    let confirmed = answer.pointer("/content/confirm") == Some(&Value::Bool(true));
    Ok(text(if confirmed {
        format!("{file} deleted")
    } else {
        format!("{file} kept")
    }))
}

async fn multi_input(task: TaskContext) -> Result<CallToolResult, TaskExit> {
    let form = ask::form("name", "string");
    let first = task.request_input("first", ask::elicitation("The first name?", &form));
    let second = task.request_input("second", ask::elicitation("The second name?", &form));
    let (first, second) = tokio::try_join!(first, second)?;
    Ok(text(format!(
        "{} and {}",
        first["content"], second["content"]
    )))
}

async fn ask_then_task(call: &Call) -> Result<CallToolResponse, ErrorData> {
    need_tasks(call)?;
    let question = ask::elicitation("What is your name?", &ask::form("name", "string"));
    let questions = InputRequests::from([("user_name".to_owned(), question)]);
    match call.ask(questions).await? {
        Asked::Answered(answers) => {
            let name = ask::filled_in(&answers, "user_name", "name");
            task(call, |_| {
                Box::pin(async move { Ok(text(format!("Hello from a task, {name}!"))) })
            })
        }
        Asked::Pending(questions) => Ok(InputRequiredResult::from_input_requests(questions).into()),
    }
}
