//! Keys of agents: shown once when they are made, then known by their id.

use std::sync::Arc;

use aide::axum::{
    ApiRouter,
    routing::{delete_with, get_with},
};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ApiState,
    agents::{self, AgentPath, managed_agent, store_of, visible_agent},
    caller::{Manager, WorkspaceReader},
    input::{DryRun, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
};
use crate::{
    agent_change::{self, KeyFault, KeyLifetime},
    audit::EventKind,
    clock,
    names::AgentId,
    store::StoredKey,
};

/// A key of the store as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct KeyResource {
    /// Its id, by which it is revoked.
    id: String,
    /// The id of its agent.
    agent_id: String,
    /// How the key begins.
    prefix: String,
    /// `live`, `revoked`, `expired`, or `shut`: its agent of the store is disabled and the config has another.
    state: &'static str,
    /// When it was made, RFC 3339.
    created: String,
    /// When it ends, RFC 3339; `null`: never.
    expires: Option<String>,
    /// When it was revoked, RFC 3339.
    revoked: Option<String>,
    /// When it was last used, RFC 3339, to the minute.
    last_used: Option<String>,
}

/// A key that is to be made.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewKey {
    /// How long it is good for, such as `90d`, or `never`. Default: `governance.key_lifetime`.
    expires: Option<String>,
}

/// A key that was made.
#[derive(Serialize, JsonSchema)]
pub(super) struct KeyCreated {
    /// What is kept of it.
    #[serde(flatten)]
    shown: KeyResource,
    /// The key itself, this once; absent in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// Which key a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct KeyPath {
    /// The name of its agent, or the id with or without prefix.
    agent: String,
    /// The id of the key.
    key: String,
}

/// The operations on keys.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/agents/{agent}/keys",
            get_with(list, |op| op.id("listAgentKeys"))
                .post_with(create, |op| op.id("createAgentKey")),
        )
        .api_route(
            "/api/v1/agents/{agent}/keys/{key}",
            delete_with(revoke, |op| op.id("revokeAgentKey")),
        )
}

/// Lists the keys of an agent that stand in the store, also those that have ended.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    InPath(path): InPath<AgentPath>,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<KeyResource>>, Problem> {
    let agent = visible_agent(&state, &caller, &path)?;
    let keys = keys_of(&state, agent.id).await?;
    let ids: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    let at = |id: &&str| &keys[ids.partition_point(|known| known < id)];
    page.page(&ids, |id| resource(&state, at(id))).map(Json)
}

/// Makes a key for an agent of the config or of the store. The answer alone has the key.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<AgentPath>,
    QueryParams(run): QueryParams<DryRun>,
    JsonBody(new): JsonBody<NewKey>,
) -> Result<Created<KeyCreated>, Problem> {
    // A key must not be made for an agent that is being removed.
    let _changing = state.agent_changes.lock().await;
    let agent = managed_agent(&state, &caller, &path)?;
    let store = store_of(&state)?;
    let lifetime = new.expires.as_deref().map(KeyLifetime::parse).transpose()?;
    let config = state.writer.running();
    let (key, stored) =
        agent_change::new_key((agent.id, agent.role), lifetime, &config, clock::now())?;
    let id = stored.id.as_str();
    if !run.dry_run {
        let until = agent_change::expiry_text(&stored);
        let detail = format!("for {}; expires {until}", agent.name);
        let record = (&*caller.actor(), &*detail);
        // No key is there without its record.
        let governance = state.proxy.governance();
        let changes = agent_change::new_key_values(&stored);
        let recorded = governance.record_change(EventKind::KeyCreated, id, record, changes);
        recorded.durable().await?;
        if let Err(error) = store.keys.add(&stored).await {
            let detail = format!("of {}; it was never activated", agent.name);
            let record = (&*caller.actor(), &*detail);
            let changes = agent_change::revoked_key_values();
            let unmade = governance.record_change(EventKind::KeyRevoked, id, record, changes);
            // What failed first is what people are told.
            drop(unmade.durable().await);
            return Err(error.into());
        }
        if let Err(problem) = agents::apply(&state).await {
            // It is shown now or never, and counts once the store can be read.
            tracing::warn!(key = id, "{}", problem.detail);
        }
    }
    let location = (!run.dry_run).then(|| format!("/api/v1/agents/{}/keys/{id}", agent.id));
    let body = KeyCreated {
        shown: resource(&state, &stored),
        key: (!run.dry_run).then(|| key.expose().to_owned()),
    };
    let body = WithEtag { body, etag: None };
    Ok(Created { body, location })
}

/// Revokes a key, which ends the sessions of its agent. One that is revoked already stays as it is.
pub(super) async fn revoke(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<KeyPath>,
    QueryParams(run): QueryParams<DryRun>,
) -> Result<Json<KeyResource>, Problem> {
    let _changing = state.agent_changes.lock().await;
    let KeyPath { agent, key } = path;
    let agent = managed_agent(&state, &caller, &AgentPath { agent })?;
    let keys = keys_of(&state, agent.id).await?;
    let found = keys.into_iter().find(|known| known.id.as_str() == key);
    let name = &agent.name;
    let missing = || Problem::not_found(format_args!("key of that id of the agent `{name}`"));
    let mut key = found.ok_or_else(missing)?;
    if !run.dry_run && key.revoked.is_none() {
        let now = clock::now();
        store_of(&state)?.keys.revoke(&key.id, now).await?;
        key.revoked = Some(now);
        let governance = state.proxy.governance();
        let (actor, detail) = (caller.actor(), format!("of {name}"));
        let (id, record) = (key.id.as_str(), (&*actor, &*detail));
        let changes = agent_change::revoked_key_values();
        let recorded = governance.record_change(EventKind::KeyRevoked, id, record, changes);
        let recorded = recorded.durable().await;
        agents::apply(&state).await?;
        recorded?;
    }
    Ok(Json(resource(&state, &key)))
}

async fn keys_of(state: &ApiState, agent: AgentId) -> Result<Vec<StoredKey>, Problem> {
    Ok(store_of(state)?.keys.keys_of(agent).await?.rows)
}

fn resource(state: &ApiState, key: &StoredKey) -> KeyResource {
    let directory = state.proxy.governance().directory();
    let is_locked_out = directory.locked_out_agents().contains(&key.agent);
    KeyResource {
        id: key.id.to_string(),
        agent_id: key.agent.to_string(),
        prefix: key.prefix.clone(),
        state: agent_change::key_state(key, is_locked_out, clock::now()),
        created: key.created.to_string(),
        expires: key.expires.map(|at| at.to_string()),
        revoked: key.revoked.map(|at| at.to_string()),
        last_used: key.last_used.map(|at| at.to_string()),
    }
}

impl From<KeyFault> for Problem {
    fn from(fault: KeyFault) -> Self {
        let kind = match &fault {
            KeyFault::Anonymous
            | KeyFault::Lifetime(_)
            | KeyFault::LifetimeTooLarge
            | KeyFault::LifetimeZero
            | KeyFault::NotRequired => ProblemType::Unprocessable,
            KeyFault::Randomness(_) => ProblemType::InternalError,
        };
        Self::new(kind, fault.to_string())
    }
}
