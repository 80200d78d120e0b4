//! `tollbridge call`

mod arguments;

use std::{
    io::{self, Read},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use serde_json::Value;

use super::{
    block_on,
    gateway::{self, Gateway, with_progress},
    gateway_target::TargetArgs,
    list::{report_timeout, running_servers},
    output::{
        OutputFormat, eprint, error_text, escape_terminal, is_stdout_terminal, print,
        print_raw_json,
    },
    suggest::did_you_mean,
    usage_error,
};
use crate::{
    catalog::{Kind, Tool},
    mcp::{Method, Outcome, Raw, method::notice},
    names::ServerName,
};
use arguments::GivenArgument;

/// Longest arguments that are read from stdin, bytes; more than any server accepts by default.
const ARGUMENTS_BYTES_MAX: u64 = 64 << 20;

/// Call a tool
#[derive(Args, Debug)]
pub(super) struct CallArgs {
    /// Name of the tool, as `list` shows it
    tool: String,
    /// Arguments as a JSON object; `-` reads it from stdin
    #[arg(value_name = "JSON", conflicts_with = "arg")]
    arguments: Option<String>,
    /// One argument, parsed as JSON if possible, else as text. May be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    arg: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
    /// How long to wait for the servers that may have the tool
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Print the result as JSON, as a 2026-07-28 client receives it
    #[arg(long)]
    json: bool,
}

impl CallArgs {
    pub(super) fn run(&self) -> ExitCode {
        let given = match self.given_arguments() {
            Ok(given) => given,
            Err(invalid) => return usage_error(&invalid.to_string()),
        };
        let target = match self.target.resolve(OutputFormat::from_flag(self.json)) {
            Ok(target) => target,
            Err(code) => return code,
        };
        let form = OutputFormat::from_flag(self.json);
        block_on(1, async {
            let work = async |gateway: &Gateway| self.call(&given, gateway).await;
            let scope = target.scope.clone();
            let target = match target.via_running_gateway().await {
                Ok(target) => target,
                Err(code) => return code,
            };
            if let Some(socket) = &target.gateway_socket {
                // What is not listed yet would be unknown.
                drop(running_servers(socket, &scope, self.wait).await);
            }
            gateway::with(target.with_list_timeout(self.wait), form, work).await
        })
    }

    fn given_arguments(&self) -> Result<GivenArgument, arguments::InvalidArguments> {
        match self.arguments.as_deref() {
            None => GivenArgument::from_pairs(&self.arg),
            Some("-") if self.target.reads_key_from_stdin() => {
                Err(arguments::InvalidArguments::Stdin)
            }
            Some("-") => {
                let mut text = String::new();
                let stdin = io::stdin().lock();
                stdin.take(ARGUMENTS_BYTES_MAX).read_to_string(&mut text)?;
                GivenArgument::from_object(text)
            }
            Some(text) => GivenArgument::from_object(text.to_owned()),
        }
    }

    async fn call(&self, given: &GivenArgument, gateway: &Gateway) -> ExitCode {
        let (tool, candidates) = gateway.find_tool(&self.tool).await;
        gateway.report_hidden_route();
        let Some(tool) = tool else {
            return self.unknown_tool(&candidates, gateway);
        };
        let members = format!(
            r#""name":{},"arguments":{}"#,
            Raw::string(&self.tool).as_str(),
            given.to_arguments(&tool.item).as_str()
        );
        let answer = gateway.request(Method::ToolsCall, &members, print_notification);
        let outcome = with_progress(answer, || format!("waiting for {}", tool.server)).await;
        if self.json {
            print_raw(&outcome)
        } else {
            print_text(&outcome, &tool)
        }
    }

    /// Without all servers that may have it, it is not known whether the name is wrong.
    fn unknown_tool(&self, candidates: &[ServerName], gateway: &Gateway) -> ExitCode {
        let catalog_store = gateway.proxy().catalog_store();
        let catalog = gateway.catalog();
        let tools = catalog.list(&gateway.scope, Kind::Tools).entries();
        let names = tools.iter().map(|tool| [&*tool.exposed, &*tool.original]);
        let ending = did_you_mean(&self.tool, names);
        if !gateway.still_connecting(candidates).is_empty() {
            report_timeout(self.wait);
        }
        if gateway.report_unhealthy_where(&[Kind::Tools], |server| candidates.contains(server)) {
            // A gateway does not list what an agent may not use.
            let agent = self.target.agent().map(|agent| {
                let tool = &self.tool;
                format!(
                    "; `tollbridge policy explain {agent} {tool}` says whether {agent} may use it"
                )
            });
            let agent = agent.unwrap_or_default();
            return usage_error(&format!("unknown tool `{}`{ending}{agent}", self.tool));
        }
        // What is missing was said; where the name is of that server, nothing else is known of it.
        let is_theirs = !catalog_store
            .possible_servers(&gateway.owners(), Kind::Tools, &self.tool)
            .is_empty();
        if !is_theirs && !tools.is_empty() {
            eprint(&format!(
                "no connected server has a tool `{}`{ending}\n",
                self.tool
            ));
        }
        ExitCode::FAILURE
    }
}

/// Shows progress and log messages on stderr.
fn print_notification(method: &str, params: Option<Raw>) {
    let params: Value = params
        .and_then(|params| params.read().ok())
        .unwrap_or_default();
    let line = match method {
        notice::PROGRESS => progress_text(&params),
        notice::MESSAGE => log_text(&params),
        _ => return,
    };
    eprint(&format!("{}\n", escape_terminal(&line)));
}

fn progress_text(params: &Value) -> String {
    let total = params.get("total").map(|total| format!("/{total}"));
    let message = params.get("message").and_then(Value::as_str);
    format!(
        "progress {}{}{}",
        params.get("progress").unwrap_or(&Value::Null),
        total.unwrap_or_default(),
        message.map_or_else(String::new, |message| format!(": {message}"))
    )
}

fn log_text(params: &Value) -> String {
    let text = |key: &str| params.get(key).and_then(Value::as_str);
    let logger = text("logger").map(|logger| format!(" {logger}"));
    let data = match params.get("data") {
        Some(Value::String(data)) => data.clone(),
        Some(data) => data.to_string(),
        None => String::new(),
    };
    let level = text("level").unwrap_or("log");
    format!("{level}{}: {data}", logger.unwrap_or_default())
}

/// Prints the result, or an object with the `error`, byte for byte unless a terminal shows it.
fn print_raw(outcome: &Outcome) -> ExitCode {
    match outcome {
        Ok(result) => {
            let printed = print_raw_json(&format!("{}\n", result.as_str()));
            match call_status(result) {
                CallStatus::Done => printed,
                CallStatus::Failed | CallStatus::Unfinished { .. } => ExitCode::FAILURE,
            }
        }
        Err(refusal) => {
            print_raw_json(&format!("{{\"error\":{}}}\n", refusal.as_str()));
            ExitCode::FAILURE
        }
    }
}

fn print_text(outcome: &Outcome, tool: &Tool) -> ExitCode {
    let result = match outcome {
        Ok(result) => result,
        Err(refusal) => {
            eprint(&format!("{}\n", error_text(refusal)));
            return ExitCode::FAILURE;
        }
    };
    let text = result_text(result);
    let printed = print(&if is_stdout_terminal() {
        escape_terminal(&text)
    } else {
        text
    });
    match call_status(result) {
        CallStatus::Done => printed,
        CallStatus::Failed => ExitCode::FAILURE,
        CallStatus::Unfinished { kind } if kind == "input_required" => {
            let server = &tool.server;
            eprint(&format!(
                "server `{server}` requires input, which `call` does not support\n"
            ));
            ExitCode::FAILURE
        }
        CallStatus::Unfinished { kind } => {
            eprint(&escape_terminal(&format!(
                "incomplete result ({kind}); see --json\n"
            )));
            ExitCode::FAILURE
        }
    }
}

/// How a call ended, as its result says.
enum CallStatus {
    Done,
    /// `isError`
    Failed,
    /// A `resultType` other than `complete`.
    Unfinished {
        kind: String,
    },
}

fn call_status(result: &Raw) -> CallStatus {
    let kind = result.get("resultType");
    match kind.as_ref().and_then(Raw::as_text).as_deref() {
        None | Some("complete") => {}
        Some(kind) => {
            let kind = kind.to_owned();
            return CallStatus::Unfinished { kind };
        }
    }
    match result.get("isError") {
        Some(flag) if flag.as_str() == "true" => CallStatus::Failed,
        Some(_) | None => CallStatus::Done,
    }
}

/// The content for people: texts as they are, a line for what is none. Structured content is shown
/// where there is no other, as it was written.
fn result_text(result: &Raw) -> String {
    let content = result.get("content");
    let blocks: Vec<Value> = content
        .and_then(|content| content.read().ok())
        .unwrap_or_default();
    let mut out = String::new();
    for block in &blocks {
        out.push_str(&block_text(block));
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }
    match result.get("structuredContent") {
        Some(structured) if out.is_empty() => format!("{}\n", structured.as_str()),
        Some(_) | None => out,
    }
}

fn block_text(block: &Value) -> String {
    let text = |pointer: &str| block.pointer(pointer).and_then(Value::as_str);
    let kind = text("/type").unwrap_or("content");
    let known = text("/text").or_else(|| text("/resource/text"));
    if let Some(known) = known {
        return known.to_owned();
    }
    let details = ["/mimeType", "/uri", "/resource/mimeType", "/resource/uri"];
    let details = details.iter().filter_map(|pointer| text(pointer));
    let words: Vec<&str> = std::iter::once(kind).chain(details).collect();
    format!("[{}]", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_shown_plainly() {
        let check = |result: &'static str, expect: &str| {
            assert_eq!(result_text(&Raw::from_static(result)), expect, "{result}");
        };
        check(r#"{"content":[{"type":"text","text":"a\nb"}]}"#, "a\nb\n");
        check(
            r#"{"content":[{"type":"text","text":"a\n"},{"type":"text","text":"b"}]}"#,
            "a\nb\n",
        );
        check(
            r#"{"content":[{"type":"image","mimeType":"image/png","data":"AA=="}]}"#,
            "[image image/png]\n",
        );
        check(
            r#"{"content":[{"type":"resource","resource":{"uri":"a:b","text":"t"}}]}"#,
            "t\n",
        );
        check(
            r#"{"content":[{"type":"resource_link","uri":"a:b","name":"n"}]}"#,
            "[resource_link a:b]\n",
        );
        check(r#"{"content":[{"x":1}]}"#, "[content]\n");
        check(
            r#"{"content":[],"structuredContent":{"b" : 1e3,"a":1}}"#,
            "{\"b\" : 1e3,\"a\":1}\n",
        );
        check("{}", "");
    }
}
