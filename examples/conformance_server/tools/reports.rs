//! Tools that send something before their answer: log messages, progress, the end of a stream.

use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{
    CallToolResponse, ErrorData, LoggingLevel, LoggingMessageNotificationParam,
    ProgressNotificationParam,
};
use serde_json::json;
use tokio::time::sleep;

use crate::ask;
use crate::sessions::OpenStream;
use crate::tools::{Call, text};

/// The suite wants messages that arrive one by one.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn call(call: &Call) -> Result<CallToolResponse, ErrorData> {
    match call.request.name.as_ref() {
        "test_tool_with_logging" => log_thrice(call).await?,
        "test_tool_with_progress" => report_progress(call).await?,
        "test_logging_tool" => log(call, "A message that was asked for").await?,
        _ => end_stream(call).await?,
    }
    Ok(text("done").into())
}

async fn log_thrice(call: &Call) -> Result<(), ErrorData> {
    log(call, "Tool execution started").await?;
    sleep(PAUSE).await;
    log(call, "Tool processing data").await?;
    sleep(PAUSE).await;
    log(call, "Tool execution completed").await
}

/// Logs at `info`, if the connection (before 2026-07-28) or the request wants to know.
async fn log(call: &Call, message: &str) -> Result<(), ErrorData> {
    let least = if ask::is_modern(&call.context) {
        call.context.meta.log_level()
    } else {
        Some(call.fixtures.log_level())
    };
    if least.is_none_or(|least| least as u8 > LoggingLevel::Info as u8) {
        return Ok(());
    }
    let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(message));
    call.context
        .peer
        .notify_logging_message(message)
        .await
        .map_err(|error| gone(&error))
}

async fn report_progress(call: &Call) -> Result<(), ErrorData> {
    for progress in [0.0, 50.0, 100.0] {
        if let Some(token) = call.context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, progress).with_total(100.0);
            call.context
                .peer
                .notify_progress(progress)
                .await
                .map_err(|error| gone(&error))?;
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Only sessions over HTTP have a stream that can end before the answer.
async fn end_stream(call: &Call) -> Result<(), ErrorData> {
    let Some(stream) = call.context.extensions.get::<OpenStream>() else {
        return Ok(());
    };
    let resumed = stream.close_until_resumed().await;
    resumed.map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn gone(error: &ServiceError) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}
