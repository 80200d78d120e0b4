//! API keys of agents: shown once, when they are made.

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
    agents::{AgentPath, ShownAgents, check_rank},
    caller::{ApiCaller, Manager, WorkspaceReader},
    input::{Body, DryRun, InPath, Params},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
};
use crate::{
    agent_change::{self, KeyLifetime, NewKeyError},
    audit::EventKind,
    auth::Agent,
    clock,
    store::StoredKey,
};

/// A key as the API shows it; never the key itself.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct KeyResource {
    /// Its id, by which it is revoked.
    id: String,
    /// The id of its agent.
    agent: String,
    /// How it begins.
    prefix: String,
    /// `live`, `expired`, `revoked`, or `shut` where its agent of the store is disabled and hidden by one of a file.
    state: &'static str,
    /// When it was made, RFC 3339.
    created: String,
    /// When its time passes; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    /// When it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<String>,
    /// When it was last used, to the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
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
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct CreatedKey {
    /// The key itself. It is not shown again. Absent in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// What is kept of it.
    #[serde(flatten)]
    resource: KeyResource,
}

/// Which key a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct KeyPath {
    /// Its id, `key_` and 12 characters.
    key: String,
}

/// The operations on keys.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/agents/{agent}/keys",
            get_with(list, |op| op.id("listKeys")).post_with(create, |op| op.id("createKey")),
        )
        .api_route(
            "/api/v1/keys/{key}",
            delete_with(revoke, |op| op.id("revokeKey")),
        )
}

/// Lists the keys of an agent that the store has; those of a config file are not listed.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    InPath(path): InPath<AgentPath>,
    Params(page): Params<PageQuery>,
) -> Result<Json<Page<KeyResource>>, Problem> {
    let agent = ShownAgents::read(&state)
        .await?
        .find(&path.agent, &caller)?;
    let mut keys = match &state.store {
        Some(store) => store.keys.keys().await?.rows,
        None => Vec::new(),
    };
    keys.retain(|key| key.agent == agent.id);
    keys.sort_by(|a, b| a.id.cmp(&b.id));
    let ids: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    let show = |id: &&str| {
        let at = ids.partition_point(|known| known < id);
        show_key(&state, &keys[at])
    };
    page.page(&ids, show).map(Json)
}

/// Makes a key of an agent. The answer has the key, which is not shown again.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<AgentPath>,
    Params(run): Params<DryRun>,
    Body(new): Body<NewKey>,
) -> Result<Created<CreatedKey>, Problem> {
    let shown = ShownAgents::read(&state).await?;
    let agent = shown.find(&path.agent, &caller)?;
    check_rank(&caller, agent.role)?;
    let lifetime = match &new.expires {
        Some(written) => KeyLifetime::parse(written)
            .map_err(|why| Problem::new(ProblemType::Unprocessable, format!("`expires`: {why}")))?
            .time(),
        None => shown.config.governance.key_lifetime,
    };
    let (key, stored) = agent_change::new_key(agent.id, lifetime)?;
    let until = stored
        .expires
        .map_or_else(|| "never".to_owned(), |at| format!("{at:.0}"));
    if !run.dry_run {
        state.open_store()?.keys.add(&stored).await?;
        let detail = format!("for {}; expires {until}", agent.name);
        note_key(&state, (&caller, EventKind::KeyCreated), &stored, &detail).await;
    }
    let body = CreatedKey {
        key: (!run.dry_run).then(|| key.expose().to_owned()),
        resource: show_key(&state, &stored),
    };
    let location = (!run.dry_run).then(|| format!("/api/v1/keys/{}", stored.id));
    let body = WithEtag { body, etag: None };
    Ok(Created { body, location })
}

/// Revokes a key: what was begun with it ends. One that was revoked stays so.
pub(super) async fn revoke(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<KeyPath>,
    Params(run): Params<DryRun>,
) -> Result<Json<KeyResource>, Problem> {
    let (mut key, agent) = find_key(&state, &caller, &path.key).await?;
    check_rank(&caller, agent.role)?;
    if key.revoked.is_none() && !run.dry_run {
        let now = clock::now();
        state.open_store()?.keys.revoke(&key.id, now).await?;
        key.revoked = Some(now);
        let detail = format!("of {}", agent.name);
        note_key(&state, (&caller, EventKind::KeyRevoked), &key, &detail).await;
    }
    Ok(Json(show_key(&state, &key)))
}

/// The key `id` and its agent, where `caller` sees that.
async fn find_key(
    state: &ApiState,
    caller: &ApiCaller,
    id: &str,
) -> Result<(StoredKey, Arc<Agent>), Problem> {
    let keys = match &state.store {
        Some(store) => store.keys.keys().await?.rows,
        None => Vec::new(),
    };
    let found = keys.into_iter().find(|key| key.id.as_str() == id);
    let found = found.and_then(|key| {
        let agent = state.directory().current(key.agent)?;
        caller.sees_team(agent.team.as_deref()).then_some((key, agent))
    });
    found.ok_or_else(|| Problem::not_found(format_args!("key `{id}`")))
}

async fn note_key(
    state: &ApiState,
    (caller, event): (&ApiCaller, EventKind),
    key: &StoredKey,
    detail: &str,
) {
    state.record(event, key.id.as_str(), caller, detail);
    state.writer.refresh("a changed key").await;
}

fn show_key(state: &ApiState, key: &StoredKey) -> KeyResource {
    let is_shut = state.directory().locked_out_agents().contains(&key.agent);
    let text = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string());
    KeyResource {
        id: key.id.to_string(),
        agent: key.agent.to_string(),
        prefix: key.prefix.clone(),
        state: agent_change::key_state(key, is_shut, clock::now()),
        created: key.created.to_string(),
        expires: text(key.expires),
        revoked: text(key.revoked),
        last_used: text(key.last_used),
    }
}

impl From<NewKeyError> for Problem {
    fn from(error: NewKeyError) -> Self {
        let kind = match error {
            NewKeyError::Randomness(_) => ProblemType::InternalError,
            NewKeyError::NoLifetime | NewKeyError::LifetimeTooLarge => ProblemType::Unprocessable,
        };
        Self::new(kind, error.to_string())
    }
}
