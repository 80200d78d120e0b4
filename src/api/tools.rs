//! The catalog of tools, and calls of them as an agent.

use std::{pin::pin, sync::Arc};

use aide::axum::{
    ApiRouter,
    routing::{get_with, post_with},
};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use tokio::time::Instant;

use super::{
    ApiState,
    caller::{AdminOnly, Reader, find_agent},
    input::{InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
};
use crate::{
    auth::Agent,
    catalog::{Kind, ListEntry},
    governance::Visibility,
    mcp::{Id, Level, LogFilter, Method, Raw, Request, Revision, RpcError, error, meta},
    names::{OwnerSet, Scope},
    session::{Call, Event, EventReader, modern::RequestEnvelope, server_info},
};

/// A tool as clients of the merged route see it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct CatalogTool {
    /// What clients call it.
    name: String,
    /// Its server.
    server: String,
    /// What the server calls it.
    server_tool: String,
    /// Its entry in the list of tools.
    #[schemars(with = "Value")]
    item: Box<RawValue>,
}

/// Which tools are listed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ToolQuery {
    /// A text that name, title or description must have; the case does not matter.
    q: Option<String>,
    /// The name or id of an agent: what it sees. Default: every tool of the gateway's own servers.
    agent: Option<String>,
}

/// A call that is to be made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TestedCall {
    /// The name or id of the agent whose call it is.
    agent: String,
    /// The arguments. Default: none.
    #[serde(default)]
    arguments: serde_json::Map<String, Value>,
}

/// How a call ended.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct CallAnswer {
    /// The result, as a client of 2026-07-28 gets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    result: Option<Box<RawValue>>,
    /// The error, as a client gets it; either this or `result` is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    error: Option<Box<RawValue>>,
    /// How long it took, milliseconds.
    latency_ms: u64,
}

/// Which tool a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct ToolPath {
    /// What clients call it.
    tool: String,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/tools",
            get_with(list, |op| op.id("listTools").response::<404, Problem>()),
        )
        .api_route(
            "/api/v1/tools/{tool}/test",
            post_with(test, |op| op.id("testTool")),
        )
}

/// Lists the tools of the merged route.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    QueryParams(page): QueryParams<PageQuery>,
    QueryParams(query): QueryParams<ToolQuery>,
) -> Result<Json<Page<CatalogTool>>, Problem> {
    let agent = query.agent.as_deref();
    let agent = agent.map(|written| find_agent(&state, written));
    let agent = agent.transpose()?;
    tools_page(&state, agent.as_deref(), &page, query.q.as_deref()).map(Json)
}

/// A page of the tools that `agent` sees, or of all of the gateway's own servers.
pub(super) fn tools_page(
    state: &ApiState,
    agent: Option<&Agent>,
    page: &PageQuery,
    wanted: Option<&str>,
) -> Result<Page<CatalogTool>, Problem> {
    let (owners, visibility) = match agent {
        None => (OwnerSet::default(), Visibility::All),
        Some(agent) => {
            let visibility = state.proxy.governance().visibility(agent, &Scope::All);
            (state.proxy.owners_seen_by(agent), visibility)
        }
    };
    let catalog = state.proxy.catalog_store().catalog((&owners, &Scope::All));
    let wanted = wanted.map(str::to_lowercase);
    let entries = catalog.list(&Scope::All, Kind::Tools).entries().iter();
    let entries = entries.filter(|entry| visibility.shows(Kind::Tools, entry));
    let mut entries: Vec<&ListEntry> = entries
        .filter(|entry| wanted.as_deref().is_none_or(|it| says(entry, it)))
        .collect();
    // Pages go by names.
    entries.sort_unstable_by(|a, b| a.exposed.cmp(&b.exposed));
    let names: Vec<&str> = entries.iter().map(|entry| &*entry.exposed).collect();
    let show = |name: &&str| {
        let entry = entries[names.partition_point(|known| known < name)];
        CatalogTool {
            name: entry.exposed.to_string(),
            server: entry.server.to_string(),
            server_tool: entry.original.to_string(),
            item: to_json(&entry.item),
        }
    };
    page.page(&names, show)
}

/// Calls a tool as an agent: the call is authorized, paid, scanned and recorded as one of its clients is.
pub(super) async fn test(
    State(state): State<Arc<ApiState>>,
    AdminOnly(_): AdminOnly,
    InPath(path): InPath<ToolPath>,
    JsonBody(tested): JsonBody<TestedCall>,
) -> Result<Json<CallAnswer>, Problem> {
    let agent = find_agent(&state, &tested.agent)?;
    let arguments = Value::Object(tested.arguments);
    let (call, mut events) = new_call(agent, &path.tool, &arguments)?;
    let begun = Instant::now();
    let mut answer = pin!(state.proxy.answer(call));
    let outcome = loop {
        tokio::select! {
            biased;
            event = events.next() => refuse_request(event),
            outcome = &mut answer => break outcome,
        }
    };
    let latency = begun.elapsed().as_millis();
    let (result, error) = match outcome {
        Ok(result) => (Some(to_json(&result)), None),
        Err(error) => (None, Some(to_json(&error))),
    };
    Ok(Json(CallAnswer {
        result,
        error,
        latency_ms: u64::try_from(latency).unwrap_or(u64::MAX),
    }))
}

/// A call without a client that could be asked something.
fn new_call(
    agent: Arc<Agent>,
    tool: &str,
    arguments: &Value,
) -> Result<(Box<Call>, EventReader), Problem> {
    let envelope = RequestEnvelope {
        revision: Revision::MODERN,
        info: Some(Raw::from_value(&server_info())),
        capabilities: Raw::from_static("{}"),
        logs: LogFilter::From(Level::Error),
        progress_token: None,
    };
    let written = meta::modern_members(
        envelope.info.as_ref(),
        &envelope.capabilities,
        Some(Level::Error.as_str()),
    );
    let name = Value::from(tool);
    let params = format!(r#"{{"name":{name},"arguments":{arguments},"_meta":{{{written}}}}}"#);
    let params = Raw::parse(params)
        .map_err(|error| Problem::new(ProblemType::InvalidRequest, error.to_string()))?;
    let request = Request {
        id: Id::number(1),
        method: Method::ToolsCall,
        params: Some(params.into()),
    };
    let (client, wants) = envelope.into_client(agent);
    Ok(Call::new(request, Arc::new(client), Scope::All, wants))
}

/// What a server asks in between is refused: nobody is here to answer.
fn refuse_request(event: Event) {
    if let Event::Request(request) = event {
        let refusal = RpcError::new(error::METHOD_NOT_FOUND, "no user to respond").to_raw();
        drop(request.answer.send(Err(refusal)));
    }
}

fn says(entry: &ListEntry, wanted: &str) -> bool {
    let texts = ["title", "description"].into_iter().filter_map(|key| {
        let text = entry.item.get(key)?;
        text.as_text().map(|text| text.to_lowercase())
    });
    let mut all = std::iter::once(entry.exposed.to_lowercase()).chain(texts);
    all.any(|text| text.contains(wanted))
}

fn to_json(raw: &Raw) -> Box<RawValue> {
    raw.read().unwrap_or_default()
}
