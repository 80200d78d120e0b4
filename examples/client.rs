//! A client of Tollbridge on rmcp: lists what there is, and calls what a plan names.
//!
//!     cargo run --example client -- http://127.0.0.1:8080/mcp
//!     cargo run --example client -- http://127.0.0.1:8080/mcp --plan plan.json
//!
//! A plan is a JSON file of rounds, one after the other; the steps of a round run at the same time:
//!
//!     {"rounds": [[{"label": "sum", "tool": "mcp_math_sum", "arguments": {"a": 1, "b": 2}},
//!                  {"label": "doc", "resource": "docs+file:///readme.md"},
//!                  {"label": "hello", "prompt": "mcp_docs_hello"}]]}
//!
//! The outcome is one JSON object on stdout. `tests/suites/clients.py` starts this with plans of its
//! own and judges what came back.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use futures_util::future::join_all;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, GetPromptRequest,
    GetPromptRequestParams, JsonObject, ListPromptsRequest, ListResourceTemplatesRequest,
    ListResourcesRequest, ListToolsRequest, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, ReadResourceRequest, ReadResourceRequestParams,
};
use rmcp::service::{NotificationContext, Peer, PeerRequestOptions, RoleClient, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// For each request.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Lists what a Tollbridge offers, and calls what a plan names.
#[derive(Debug, Parser)]
struct Options {
    /// Of streamable HTTP, such as http://127.0.0.1:8080/mcp.
    url: String,

    /// What to do besides listing.
    #[arg(long)]
    plan: Option<PathBuf>,

    /// How to begin the conversation.
    #[arg(long, value_enum, default_value_t = Era::Auto)]
    era: Era,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Era {
    /// With `initialize`.
    Legacy,
    /// With `server/discover`, and with `initialize` where that is unknown.
    Auto,
    /// With `server/discover`.
    Modern,
}

#[derive(Debug, Default, Deserialize)]
struct Plan {
    rounds: Vec<Vec<Step>>,
}

#[derive(Debug, Deserialize)]
struct Step {
    label: String,
    #[serde(flatten)]
    subject: Subject,
    arguments: Option<JsonObject>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Subject {
    Tool(String),
    Resource(String),
    Prompt(String),
}

#[derive(Debug, Default, Serialize)]
struct Report {
    protocol: Option<ProtocolVersion>,
    tools: Value,
    resources: Value,
    templates: Value,
    prompts: Value,
    calls: BTreeMap<String, Value>,
    /// By label, what was done and the total.
    progress: BTreeMap<String, Vec<Progress>>,
    errors: Vec<String>,
}

type Progress = (f64, Option<f64>);

/// Hears what servers say besides their answers.
#[derive(Debug, Default)]
struct Listener {
    progress: Mutex<Vec<(ProgressToken, Progress)>>,
}

impl ClientHandler for Listener {
    async fn on_progress(
        &self,
        told: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let progress = (told.progress, told.total);
        self.progress
            .lock()
            .expect("nobody panics while holding it")
            .push((told.progress_token, progress));
    }
}

// One thread, so that notifications are handled in the order in which they came.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    // The crates here bring no provider of TLS that HTTP clients would take by themselves.
    let installed = rustls::crypto::ring::default_provider().install_default();
    installed.map_err(|_| "another provider of TLS is installed")?;
    let plan: Plan = match options.plan {
        Some(path) => serde_json::from_slice(&std::fs::read(path)?)?,
        None => Plan::default(),
    };
    let listener = Arc::new(Listener::default());
    let transport = StreamableHttpClientTransport::from_uri(options.url);
    let client = Arc::clone(&listener)
        .serve_with_lifecycle(transport, lifecycle(options.era))
        .await?;

    let mut report = Report {
        protocol: client.peer_info().map(|info| info.protocol_version.clone()),
        ..Report::default()
    };
    look_around(client.peer(), &mut report).await;
    for steps in plan.rounds {
        let taken = join_all(steps.into_iter().map(|step| take(client.peer(), step))).await;
        for outcome in taken {
            outcome.enter(&listener, &mut report);
        }
    }
    client.cancel().await?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn lifecycle(era: Era) -> ClientLifecycleMode {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    match era {
        Era::Legacy => ClientLifecycleMode::Initialize,
        Era::Auto => ClientLifecycleMode::Auto {
            preferred_versions,
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        },
        Era::Modern => ClientLifecycleMode::Discover { preferred_versions },
    }
}

async fn look_around(peer: &Peer<RoleClient>, report: &mut Report) {
    let lists: [(&mut Value, &str, ClientRequest); 4] = [
        (
            &mut report.tools,
            "tools",
            ListToolsRequest::default().into(),
        ),
        (
            &mut report.resources,
            "resources",
            ListResourcesRequest::default().into(),
        ),
        (
            &mut report.templates,
            "resourceTemplates",
            ListResourceTemplatesRequest::default().into(),
        ),
        (
            &mut report.prompts,
            "prompts",
            ListPromptsRequest::default().into(),
        ),
    ];
    for (list, member, request) in lists {
        *list = json!([]);
        match send(peer, request).await.1 {
            Ok(mut page) => {
                if page.get("nextCursor").is_some() {
                    report
                        .errors
                        .push(format!("list of {member}: it has a second page"));
                }
                *list = page[member].take();
            }
            Err(error) => report.errors.push(format!("list of {member}: {error}")),
        }
    }
}

/// What became of a step.
struct Outcome {
    label: String,
    token: Option<ProgressToken>,
    result: Result<Value, ServiceError>,
}

async fn take(peer: &Peer<RoleClient>, step: Step) -> Outcome {
    let request = match step.subject {
        Subject::Tool(name) => {
            let mut params = CallToolRequestParams::new(name);
            params.arguments = step.arguments;
            ClientRequest::CallToolRequest(CallToolRequest::new(params))
        }
        Subject::Resource(uri) => {
            let params = ReadResourceRequestParams::new(uri);
            ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
        }
        Subject::Prompt(name) => {
            let mut params = GetPromptRequestParams::new(name);
            params.arguments = step.arguments;
            ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
        }
    };
    let (token, result) = send(peer, request).await;
    Outcome {
        label: step.label,
        token,
        result,
    }
}

impl Outcome {
    fn enter(self, listener: &Listener, report: &mut Report) {
        let heard = listener
            .progress
            .lock()
            .expect("nobody panics while holding it");
        let progress: Vec<Progress> = heard
            .iter()
            .filter(|(token, _)| Some(token) == self.token.as_ref())
            .map(|(_, progress)| *progress)
            .collect();
        if !progress.is_empty() {
            report.progress.insert(self.label.clone(), progress);
        }
        match self.result {
            Ok(result) => {
                report.calls.insert(self.label, result);
            }
            Err(error) => report.errors.push(format!("{}: {error}", self.label)),
        }
    }
}

/// The answer as JSON, and the token under which progress is told; rmcp makes one for each request.
async fn send(
    peer: &Peer<RoleClient>,
    request: ClientRequest,
) -> (Option<ProgressToken>, Result<Value, ServiceError>) {
    let options = PeerRequestOptions::with_timeout(TIMEOUT);
    match peer.send_cancellable_request(request, options).await {
        Ok(handle) => {
            let token = handle.progress_token.clone();
            let answer = handle.await_response().await;
            let json = answer.map(|result| json!(result));
            (Some(token), json)
        }
        Err(error) => (None, Err(error)),
    }
}
