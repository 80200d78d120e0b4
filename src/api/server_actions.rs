//! What is done with a server beside changing what it says: switch it on and off, restart it, try it.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::post_with};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ApiState, ServerTrial,
    caller::{AdminOnly, ApiCaller, Manager},
    input::{ChangeOptions, DryRun, InPath, JsonBody, QueryParams},
    problem::{Problem, ProblemType},
    response::WithEtag,
    servers::{
        ServerChanged, ServerPath, ServerResource, ShownServers, UNSAVED_PATH, edit_server, key_of,
        parse_name,
    },
};
use crate::{
    audit::EventKind,
    backend::ServerState,
    catalog::Tool,
    config::Server,
    config_change::{EntryChange, EntryPrecondition},
};

/// The name of a server that is tried before it has one.
const UNNAMED: &str = "trial";

/// A server that is tried before it is made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriedServer {
    /// Its name; it may be that of a server that is there. Default: `trial`.
    #[serde(default)]
    name: Option<String>,
    /// What a config file would have below `servers.NAME`.
    config: Value,
}

/// What came of connecting to a server.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct TrialResult {
    /// `connected`, or the state it came to, as in `/status`.
    status: &'static str,
    /// How many tools it lists.
    tools_discovered: usize,
    /// The tools.
    tools: Vec<TriedTool>,
    /// From the start to the end of its lists, milliseconds.
    latency_ms: u64,
    /// Why it is not connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A tool of a server that was tried.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct TriedTool {
    /// What the server calls it.
    name: String,
    /// What the server says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    let path = |rest: &str| format!("/api/v1/servers/{{server}}/{rest}");
    ApiRouter::new()
        .api_route(
            UNSAVED_PATH,
            post_with(test_unsaved, |op| {
                op.id("testNewServer").response::<409, Problem>()
            }),
        )
        .api_route(
            &path("enable"),
            post_with(enable, |op| op.id("enableServer")),
        )
        .api_route(
            &path("disable"),
            post_with(disable, |op| op.id("disableServer")),
        )
        .api_route(
            &path("restart"),
            post_with(restart, |op| {
                op.id("restartServer").response::<422, Problem>()
            }),
        )
        .api_route(
            &path("test"),
            post_with(test, |op| {
                op.id("testServer")
                    .response::<409, Problem>()
                    .response::<422, Problem>()
            }),
        )
}

/// Switches a server on.
pub(super) async fn enable(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerPath>,
    options: ChangeOptions,
) -> Result<WithEtag<ServerChanged>, Problem> {
    set_enabled((&state, &caller), (&path, options), true).await
}

/// Switches a server off: its connections end, and nothing of it is listed.
pub(super) async fn disable(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerPath>,
    options: ChangeOptions,
) -> Result<WithEtag<ServerChanged>, Problem> {
    set_enabled((&state, &caller), (&path, options), false).await
}

async fn set_enabled(
    (state, caller): (&ApiState, &ApiCaller),
    change: (&ServerPath, ChangeOptions),
    enabled: bool,
) -> Result<WithEtag<ServerChanged>, Problem> {
    let edit = |mut document: Value| {
        if let Some(document) = document.as_object_mut() {
            document.insert("enabled".to_owned(), enabled.into());
        }
        document
    };
    edit_server(state, caller, change, edit).await
}

/// Makes the connections of a server anew. Its running calls finish with the old ones.
pub(super) async fn restart(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerPath>,
    QueryParams(run): QueryParams<DryRun>,
) -> Result<Json<ServerResource>, Problem> {
    let shown = ShownServers::seen_by(&state, &caller);
    let name = shown.find(&path.server)?;
    let is_enabled = shown
        .entries
        .config
        .servers
        .get(&name)
        .is_some_and(Server::runs);
    if !is_enabled || !run.dry_run && !state.writer.restart_server(&name) {
        let detail = format!("the server `{name}` does not run, so that it cannot be restarted");
        return Err(Problem::new(ProblemType::Unprocessable, detail));
    }
    if !run.dry_run {
        let (event, actor) = (EventKind::ServerDisconnected, caller.actor());
        let governance = state.proxy.governance();
        governance.record_event(event, name.as_str(), Some(&actor), Some("restarted"));
    }
    Ok(Json(shown.show(name.as_str())))
}

/// Connects to a server as it is, beside its connections, and says what it lists. It has no access tokens that people
/// or clients got by OAuth: a server that takes such refuses it.
pub(super) async fn test(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerPath>,
) -> Result<Json<TrialResult>, Problem> {
    let name = ShownServers::seen_by(&state, &caller).find(&path.server)?;
    let trial = state.writer.try_server(&name, None).await?;
    Ok(Json(TrialResult::new(&trial)))
}

/// Connects to a server that is not made, and says what it lists.
pub(super) async fn test_unsaved(
    State(state): State<Arc<ApiState>>,
    AdminOnly(_): AdminOnly,
    JsonBody(tried): JsonBody<TriedServer>,
) -> Result<Json<TrialResult>, Problem> {
    let name = parse_name(tried.name.as_deref().unwrap_or(UNNAMED))?;
    let change = EntryChange {
        key: key_of(&name),
        document: Some(tried.config.to_string()),
        precondition: EntryPrecondition::Absent,
    };
    let trial = state.writer.try_server(&name, Some(&change)).await?;
    Ok(Json(TrialResult::new(&trial)))
}

impl TrialResult {
    pub(super) fn new(trial: &ServerTrial) -> Self {
        let state = trial.report.as_ref().map(|report| report.state);
        let reason = trial
            .report
            .as_ref()
            .and_then(|report| report.reason.clone());
        Self {
            status: state.map_or("failed", ServerState::as_str),
            tools_discovered: trial.tools.len(),
            tools: trial
                .tools
                .iter()
                .map(|tool| TriedTool::new(tool))
                .collect(),
            latency_ms: u64::try_from(trial.latency.as_millis()).unwrap_or(u64::MAX),
            error: reason.filter(|_| state != Some(ServerState::Connected)),
        }
    }
}

impl TriedTool {
    fn new(tool: &Tool) -> Self {
        let description = tool.source.get("description");
        Self {
            name: tool.original.to_string(),
            description: description.and_then(|it| it.as_text().map(Into::into)),
        }
    }
}
