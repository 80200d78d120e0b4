//! Servers of one agent at `/api/agents/{agent_id}/mcp-servers`, in the form of another system's clients: the same
//! entries of the store, `NAME@agent_<uuid>`, that `/api/v1/servers` has.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use http::StatusCode;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    ApiState,
    caller::{AdminOnly, ApiCaller, SignedIn, find_agent},
    input::{InPath, JsonBody},
    problem::{Problem, ProblemType},
    server_actions::TrialResult,
    servers::{ShownServers, change_document, key_of, mask_config, parse_name},
};
use crate::{
    auth::Agent,
    backend::ServerState,
    catalog::Tool,
    config::{Role, unmask_document},
    config_change::{EntryChange, EntryPrecondition},
    names::{AgentId, ServerId, ServerName, ServerOwner},
};

/// What `endpoint_config` has for a program, in the order in which it is shown.
const STDIO_KEYS: [&str; 4] = ["command", "args", "env", "cwd"];
/// The same of a URL.
const HTTP_KEYS: [&str; 2] = ["url", "headers"];
/// The header of `api_key` where none is named.
const API_KEY_HEADER: &str = "X-API-Key";

/// How a server is reached.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum EndpointKind {
    Stdio,
    Http,
}

/// What a client sends of a server; a PUT leaves what it does not name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentAgentServer {
    name: Option<String>,
    transport_type: Option<EndpointKind>,
    endpoint_config: Option<Map<String, Value>>,
    auth_config: Option<SentAuth>,
    enabled: Option<bool>,
}

/// How a client writes what authenticates the gateway to the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum SentAuth {
    None {
        #[serde(rename = "configured")]
        _configured: Option<bool>,
    },
    BearerToken {
        token: Option<String>,
    },
    ApiKey {
        #[serde(alias = "header_name")]
        header: Option<String>,
        #[serde(alias = "key", alias = "value")]
        api_key: Option<String>,
    },
    Oauth2(Map<String, Value>),
}

/// A server as it is shown.
#[derive(Clone, Debug, Serialize)]
struct AgentServer {
    id: String,
    agent_id: String,
    name: String,
    transport_type: EndpointKind,
    endpoint_config: IndexMap<&'static str, Value>,
    auth_config: ShownAuth,
    enabled: bool,
    discovered_tools: Vec<DiscoveredTool>,
    last_connected_at: Option<String>,
    created_at: String,
    updated_at: String,
}

#[derive(Clone, Debug, Serialize)]
struct ShownAuth {
    #[serde(rename = "type")]
    kind: &'static str,
    configured: bool,
}

#[derive(Clone, Debug, Serialize)]
struct DiscoveredTool {
    name: String,
    description: Option<String>,
    input_schema: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, Deserialize)]
struct AgentServersPath {
    agent_id: String,
}

#[derive(Clone, Debug, Deserialize)]
struct AgentServerPath {
    agent_id: String,
    server_id: String,
}

/// The operations.
pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/api/agents/{agent_id}/mcp-servers", get(list).post(create))
        .route(
            "/api/agents/{agent_id}/mcp-servers/{server_id}",
            get(show).put(replace).delete(remove),
        )
        .route(
            "/api/agents/{agent_id}/mcp-servers/{server_id}/test",
            post(test),
        )
}

async fn list(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    InPath(path): InPath<AgentServersPath>,
) -> Result<Json<Vec<AgentServer>>, Problem> {
    let agent = shown_agent(&state, &caller, &path.agent_id)?;
    let shown = ShownServers::read(&state);
    let names = names_of(&shown, agent.id);
    let servers = names.iter().filter_map(|name| show_server(&shown, name));
    Ok(Json(servers.collect()))
}

async fn show(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    InPath(path): InPath<AgentServerPath>,
) -> Result<Json<AgentServer>, Problem> {
    let name = find_server(&state, &caller, &path)?;
    current(&state, &name).map(Json)
}

async fn create(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<AgentServersPath>,
    JsonBody(sent): JsonBody<SentAgentServer>,
) -> Result<(StatusCode, Json<AgentServer>), Problem> {
    let agent = shown_agent(&state, &caller, &path.agent_id)?;
    let missing = |what: &str| {
        let detail = format!("`{what}` is missing");
        Problem::new(ProblemType::InvalidRequest, detail)
    };
    let local = sent.name.as_deref().ok_or_else(|| missing("name"))?;
    if sent.transport_type.is_none() {
        return Err(missing("transport_type"));
    }
    if sent.endpoint_config.is_none() {
        return Err(missing("endpoint_config"));
    }
    let name = parse_name(&format!("{local}@{}", agent.id))?;
    let mut document = json!({});
    sent.write_into(&mut document)?;
    let change = EntryChange {
        key: key_of(&name),
        document: Some(document.to_string()),
        precondition: EntryPrecondition::Absent,
    };
    change_document(&state, &caller, &change, "added").await?;
    Ok((StatusCode::CREATED, Json(current(&state, &name)?)))
}

async fn replace(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<AgentServerPath>,
    JsonBody(sent): JsonBody<SentAgentServer>,
) -> Result<Json<AgentServer>, Problem> {
    let name = find_server(&state, &caller, &path)?;
    if sent.name.as_deref().is_some_and(|it| it != name.local()) {
        let detail = "`name` cannot be changed; make another server";
        return Err(Problem::new(ProblemType::Unprocessable, detail));
    }
    let shown = ShownServers::read(&state);
    let stored = shown.entries.stored(name.as_str());
    let text = stored.map_or("{}", |stored| &*stored.entry.document);
    let written: Value = serde_json::from_str(text).unwrap_or_default();
    let masked = crate::config::mask_document(text);
    let mut document = masked.clone();
    sent.write_into(&mut document)?;
    unmask_document(&mut document, &written, &masked);
    let change = EntryChange {
        key: key_of(&name),
        document: Some(document.to_string()),
        precondition: stored.map_or(EntryPrecondition::Present, |stored| {
            EntryPrecondition::Version(stored.changed)
        }),
    };
    change_document(&state, &caller, &change, "changed").await?;
    current(&state, &name).map(Json)
}

async fn remove(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<AgentServerPath>,
) -> Result<StatusCode, Problem> {
    let name = find_server(&state, &caller, &path)?;
    let change = EntryChange {
        key: key_of(&name),
        document: None,
        precondition: EntryPrecondition::Present,
    };
    change_document(&state, &caller, &change, "removed").await?;
    state.trials.forget(&name);
    Ok(StatusCode::NO_CONTENT)
}

async fn test(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<AgentServerPath>,
) -> Result<Json<TrialResult>, Problem> {
    let name = find_server(&state, &caller, &path)?;
    let trial = state.writer.try_server(&name, None).await?;
    state.trials.note(&name, &trial);
    Ok(Json(TrialResult::new(&trial)))
}

/// The agent that `written` means. Others than itself are shown to who reads everything.
fn shown_agent(state: &ApiState, caller: &ApiCaller, written: &str) -> Result<Arc<Agent>, Problem> {
    let agent = find_agent(state, written)?;
    let reads_all = matches!(caller.role, Role::Admin | Role::Auditor);
    if reads_all || agent.id == caller.agent.id {
        return Ok(agent);
    }
    Err(Problem::not_found(format_args!("agent `{written}`")))
}

fn names_of(shown: &ShownServers<'_>, agent: AgentId) -> Vec<ServerName> {
    let names = shown.names().into_iter();
    let names = names.filter_map(|name| ServerName::parse(&name).ok());
    names
        .filter(|name| name.owner() == ServerOwner::Agent(agent))
        .collect()
}

fn find_server(
    state: &ApiState,
    caller: &ApiCaller,
    path: &AgentServerPath,
) -> Result<ServerName, Problem> {
    let agent = shown_agent(state, caller, &path.agent_id)?;
    let shown = ShownServers::read(state);
    let own = names_of(&shown, agent.id);
    let written = &*path.server_id;
    let id = written.strip_prefix("srv_").unwrap_or(written);
    let found = own.into_iter().find(|name| {
        name.local() == written
            || ServerId::from_name(name.as_str()).0.to_string() == id.to_lowercase()
    });
    found.ok_or_else(|| Problem::not_found(format_args!("server `{written}`")))
}

fn current(state: &ApiState, name: &ServerName) -> Result<AgentServer, Problem> {
    let shown = ShownServers::read(state);
    let server = show_server(&shown, name);
    server.ok_or_else(|| Problem::not_found(format_args!("server `{name}`")))
}

fn show_server(shown: &ShownServers<'_>, name: &ServerName) -> Option<AgentServer> {
    let state = shown.state;
    let stored = shown.entries.stored(name.as_str());
    let document = match stored {
        Some(stored) => mask_config(&stored.entry.document),
        None => shown.entries.config.servers.get(name)?.to_display(),
    };
    let is_stdio = document.get("command").is_some();
    let keys: &[&'static str] = if is_stdio { &STDIO_KEYS } else { &HTTP_KEYS };
    let endpoint = keys.iter();
    let endpoint = endpoint.filter_map(|key| Some((*key, document.get(*key)?.clone())));
    let time = |at: Timestamp| format!("{at:.0}");
    let (tools, connected) = discovered(state, name);
    let ServerOwner::Agent(agent) = name.owner() else {
        return None;
    };
    let agent = agent.to_string();
    Some(AgentServer {
        id: ServerId::from_name(name.as_str()).0.to_string(),
        agent_id: agent
            .strip_prefix(AgentId::PREFIX)
            .unwrap_or(&agent)
            .to_owned(),
        name: name.local().to_owned(),
        transport_type: if is_stdio {
            EndpointKind::Stdio
        } else {
            EndpointKind::Http
        },
        endpoint_config: endpoint.collect(),
        auth_config: ShownAuth::of(&document),
        enabled: document.get("enabled") != Some(&Value::Bool(false)),
        discovered_tools: tools.iter().map(|tool| DiscoveredTool::new(tool)).collect(),
        last_connected_at: connected,
        created_at: stored.map_or_else(String::new, |stored| time(stored.created)),
        updated_at: stored.map_or_else(String::new, |stored| time(stored.changed)),
    })
}

/// The tools that a server listed, to a session of its agent or when it was last tried, and when it was last
/// connected.
fn discovered(state: &ApiState, name: &ServerName) -> (Vec<Arc<Tool>>, Option<String>) {
    let catalog = state.proxy.catalog_store().catalog_of(name);
    let mut tools: Vec<Arc<Tool>> = catalog.tools().cloned().collect();
    tools.sort_by(|a, b| a.original.cmp(&b.original));
    let report = state
        .proxy
        .backends()
        .get(name)
        .map(|backend| backend.report());
    let connected = report.and_then(|report| {
        let mut history = report.history.into_iter().rev();
        history.find(|past| past.state == ServerState::Connected)
    });
    let connected = connected.and_then(|past| past.at.parse().ok());
    let (tried, tried_at) = state.trials.last(name).unzip();
    let at = connected
        .max(tried_at)
        .map(|at: Timestamp| format!("{at:.0}"));
    if tools.is_empty() {
        return (tried.unwrap_or_default(), at);
    }
    (tools, at)
}

impl SentAgentServer {
    /// Writes what was sent into the document of the server.
    fn write_into(self, document: &mut Value) -> Result<(), Problem> {
        let Some(entry) = document.as_object_mut() else {
            return Ok(());
        };
        if let Some(endpoint) = self.endpoint_config {
            let (keys, others): (&[&str], &[&str]) = match self.transport_type {
                Some(EndpointKind::Http) => (&HTTP_KEYS, &STDIO_KEYS),
                None if endpoint.contains_key("url") => (&HTTP_KEYS, &STDIO_KEYS),
                Some(EndpointKind::Stdio) | None => (&STDIO_KEYS, &HTTP_KEYS),
            };
            for key in others.iter().chain(keys) {
                entry.remove(*key);
            }
            for (key, value) in endpoint {
                if !keys.contains(&&*key) {
                    let known = keys.join("`, `");
                    let detail = format!("`endpoint_config` has no key `{key}`, but `{known}`");
                    return Err(Problem::new(ProblemType::Unprocessable, detail));
                }
                entry.insert(key, value);
            }
            if !entry.contains_key(keys[0]) {
                let detail = format!("`endpoint_config.{}` is missing", keys[0]);
                return Err(Problem::new(ProblemType::Unprocessable, detail));
            }
        }
        if let Some(enabled) = self.enabled {
            entry.insert("enabled".to_owned(), enabled.into());
        }
        match self.auth_config.map(SentAuth::into_document).transpose()? {
            Some(NewAuth::Set(auth)) => drop(entry.insert("auth".to_owned(), auth)),
            Some(NewAuth::Remove) => drop(entry.remove("auth")),
            Some(NewAuth::Keep) if !entry.contains_key("auth") => {
                let detail = "`auth_config` has no credential: `token`, or `api_key`";
                return Err(Problem::new(ProblemType::Unprocessable, detail));
            }
            Some(NewAuth::Keep) | None => {}
        }
        Ok(())
    }
}

/// What becomes of `auth`.
enum NewAuth {
    /// What was shown was sent back.
    Keep,
    Remove,
    Set(Value),
}

impl SentAuth {
    fn into_document(self) -> Result<NewAuth, Problem> {
        Ok(match self {
            Self::None { .. } => NewAuth::Remove,
            Self::BearerToken { token: Some(token) } => {
                NewAuth::Set(json!({ "type": "bearer", "token": token }))
            }
            Self::ApiKey {
                header,
                api_key: Some(value),
            } => {
                let name = header.unwrap_or_else(|| API_KEY_HEADER.to_owned());
                NewAuth::Set(json!({ "type": "header", "name": name, "value": value }))
            }
            Self::BearerToken { token: None } | Self::ApiKey { api_key: None, .. } => NewAuth::Keep,
            Self::Oauth2(mut auth) => {
                if auth.remove("configured").is_some() && auth.is_empty() {
                    return Ok(NewAuth::Keep);
                }
                auth.insert("type".to_owned(), "oauth2".into());
                auth.entry("grant")
                    .or_insert_with(|| "client_credentials".into());
                NewAuth::Set(Value::Object(auth))
            }
        })
    }
}

impl ShownAuth {
    fn of(document: &Value) -> Self {
        let kind = document.pointer("/auth/type").and_then(Value::as_str);
        let kind = match kind {
            Some("bearer") => "bearer_token",
            Some("header") => "api_key",
            Some("oauth2") => "oauth2",
            _ => "none",
        };
        Self {
            configured: kind != "none",
            kind,
        }
    }
}

impl DiscoveredTool {
    fn new(tool: &Tool) -> Self {
        let schema = tool.source.get("inputSchema");
        let description = tool.source.get("description");
        Self {
            name: tool.original.to_string(),
            description: description.and_then(|it| it.as_text().map(Into::into)),
            input_schema: schema.and_then(|it| it.read::<Box<RawValue>>().ok()),
        }
    }
}
