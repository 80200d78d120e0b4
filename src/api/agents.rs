//! Agents: those of the files are shown, those of the store are made, changed and removed.

use std::{collections::HashMap, sync::Arc};

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ApiState, ChangePlan,
    caller::{ApiCaller, Manager, WorkspaceReader},
    etag,
    input::{Body, ChangeOptions, DryRun, InPath, Params},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
    servers::{EntrySource, merge_patch},
};
use crate::{
    agent_change::{self, InvalidAgent},
    audit::EventKind,
    auth::Agent,
    config::{Config, Role},
    config_change::EntryPrecondition,
    names::AgentId,
    store::{EntryWrite, Store, StoredAgent},
};

/// What a workspace admin may set of an agent of its workspace: what beyond that an agent may do is up to admins.
const OPEN_TO_WORKSPACES: [&str; 3] = ["enabled", "role", "team"];

/// An agent as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct AgentResource {
    /// Its id, `agent_` and a UUID.
    id: String,
    /// Its name.
    name: String,
    /// Where it is written.
    source: EntrySource,
    /// What it is and may do, as a config file would have it below `agents.NAME`: `team`, `role`, `enabled`, `profiles`,
    /// and the terms `policy`, `budget`, `rate`, `tool_rate`, `scan`, `args`, `observe`. Keys are not shown.
    config: Value,
}

/// An agent that is to be made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewAgent {
    /// Its name.
    name: String,
    /// What a config file would have below `agents.NAME`, without `id`, `keys` and `certificates`.
    #[serde(default)]
    config: serde_json::Map<String, Value>,
}

/// Which agent a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct AgentPath {
    /// Its name, or its id with or without `agent_`.
    pub(super) agent: String,
}

/// What a change made, or would make, of an agent.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ChangedAgent {
    /// The agent as it is now; absent where it is gone, or not there yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<AgentResource>,
    /// What the change does to the gateway.
    plan: ChangePlan,
    /// Whether nothing was changed.
    dry_run: bool,
}

/// The operations on agents.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/agents",
            get_with(list, |op| op.id("listAgents")).post_with(create, |op| op.id("createAgent")),
        )
        .api_route(
            "/api/v1/agents/{agent}",
            get_with(show, |op| op.id("getAgent"))
                .put_with(replace, |op| op.id("replaceAgent"))
                .patch_with(patch, |op| op.id("patchAgent"))
                .delete_with(delete, |op| op.id("deleteAgent")),
        )
}

/// Lists the agents; a workspace admin sees those of its workspace.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    Params(page): Params<PageQuery>,
) -> Result<Json<Page<AgentResource>>, Problem> {
    let shown = ShownAgents::read(&state).await?;
    let agents = shown.seen_by(&caller);
    let keys: Vec<String> = agents.iter().map(|agent| page_key(agent)).collect();
    let by_key: HashMap<&str, &Arc<Agent>> =
        keys.iter().map(String::as_str).zip(&agents).collect();
    page.page(&keys, |key| shown.show(by_key[key.as_str()]))
        .map(Json)
}

/// By name, and by id where two agents have one name.
fn page_key(agent: &Agent) -> String {
    format!("{}\0{}", agent.name, agent.id)
}

/// Shows an agent.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    InPath(path): InPath<AgentPath>,
) -> Result<WithEtag<AgentResource>, Problem> {
    let shown = ShownAgents::read(&state).await?;
    let agent = shown.find(&path.agent, &caller)?;
    Ok(shown.show_with_etag(&agent))
}

/// Makes an agent; that of a workspace admin is in its workspace.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    Params(run): Params<DryRun>,
    Body(new): Body<NewAgent>,
) -> Result<Created<ChangedAgent>, Problem> {
    agent_change::check_name(&new.name)?;
    let config = state.writer.running();
    let mut document = Value::Object(new.config);
    if let Some(team) = caller.workspace() {
        if document.get("team").is_none() {
            document["team"] = team.into();
        }
    }
    check_open(&caller, &Value::Null, &document)?;
    let mut agent = agent_change::new_agent(&new.name);
    agent_change::apply_document(&mut agent, &document, &config)?;
    let is_taken = |known: &Arc<Agent>| known.id == agent.id || known.name == agent.name;
    if state.directory().agents().iter().any(is_taken) {
        let detail = format!("the agent `{}` already exists", agent.name);
        return Err(Problem::new(ProblemType::AlreadyExists, detail));
    }
    let plan = plan_of(format!("agents added: {}", agent.name));
    if !run.dry_run {
        state.open_store()?.agents.add(&agent).await?;
        note_agent(&state, &caller, &agent.name, "added").await?;
    }
    let body = answer(&state, agent.id, plan, run.dry_run).await?;
    let location = (!run.dry_run).then(|| format!("/api/v1/agents/{}", agent.id));
    Ok(Created { body, location })
}

/// Replaces what an agent is and may do.
pub(super) async fn replace(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<AgentPath>,
    options: ChangeOptions,
    Body(document): Body<Value>,
) -> Result<WithEtag<ChangedAgent>, Problem> {
    let edit = |_: Value| document;
    edit_agent(&state, &caller, (&path.agent, options), edit).await
}

/// Changes some of what an agent is and may do, as a JSON merge patch (RFC 7396): null removes a key.
pub(super) async fn patch(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<AgentPath>,
    options: ChangeOptions,
    Body(changes): Body<Value>,
) -> Result<WithEtag<ChangedAgent>, Problem> {
    let edit = |mut document: Value| {
        merge_patch(&mut document, changes);
        document
    };
    edit_agent(&state, &caller, (&path.agent, options), edit).await
}

/// Removes an agent and its keys. What it spent stays.
pub(super) async fn delete(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<AgentPath>,
    options: ChangeOptions,
) -> Result<WithEtag<ChangedAgent>, Problem> {
    let shown = ShownAgents::read(&state).await?;
    let agent = shown.find(&path.agent, &caller)?;
    let stored = shown.changeable(&agent)?;
    check_rank(&caller, stored.role)?;
    let expected = shown.check_version(stored, options)?;
    let plan = plan_of(format!("agents removed: {}", agent.name));
    if !options.dry_run {
        let store = state.open_store()?;
        let removed = store.agents.remove_version(agent.id, expected).await?;
        check_written(removed, &agent.name)?;
        note_agent(&state, &caller, &agent.name, "removed").await?;
    }
    answer(&state, agent.id, plan, options.dry_run).await
}

/// Makes what `edit` says of the agent that `written` means.
pub(super) async fn edit_agent(
    state: &ApiState,
    caller: &ApiCaller,
    (written, options): (&str, ChangeOptions),
    edit: impl FnOnce(Value) -> Value,
) -> Result<WithEtag<ChangedAgent>, Problem> {
    let shown = ShownAgents::read(state).await?;
    let agent = shown.find(written, caller)?;
    let stored = shown.changeable(&agent)?;
    check_rank(caller, stored.role)?;
    let expected = shown.check_version(stored, options)?;
    let before = agent_change::to_document(&agent);
    let document = edit(before.clone());
    let mut changed = stored.clone();
    agent_change::apply_document(&mut changed, &document, &shown.config)?;
    // As it is read, so that what is not said and what is said to be so are alike.
    let after = agent_change::to_document(&Agent::from(changed.clone()));
    check_open(caller, &before, &after)?;
    let keys = changed_keys(&before, &after);
    let plan = if keys.is_empty() {
        ChangePlan::default()
    } else {
        plan_of(format!("agents changed: {} ({keys})", agent.name))
    };
    if !options.dry_run {
        let store = state.open_store()?;
        let written = store.agents.update_version(&changed, expected).await?;
        check_written(written, &agent.name)?;
        note_agent(state, caller, &agent.name, &format!("changed: {keys}")).await?;
    }
    answer(state, agent.id, plan, options.dry_run).await
}

/// Refuses what a workspace admin would set that is up to admins.
fn check_open(caller: &ApiCaller, before: &Value, after: &Value) -> Result<(), Problem> {
    let Some(team) = caller.workspace() else {
        return Ok(());
    };
    let empty = serde_json::Map::new();
    let [old, new] = [before, after].map(|document| document.as_object().unwrap_or(&empty));
    let keys = old.keys().chain(new.keys());
    let mut changed = keys.filter(|key| old.get(*key) != new.get(*key));
    if let Some(key) = changed.find(|key| !OPEN_TO_WORKSPACES.contains(&key.as_str())) {
        return Err(Problem::forbidden(format!(
            "`{key}` of an agent is set by an admin; a workspace admin sets `enabled` and `role`"
        )));
    }
    if new.get("team").and_then(Value::as_str) != Some(team) {
        return Err(Problem::forbidden(format!(
            "your agents are in the workspace `{team}`: `team` stays so"
        )));
    }
    let role = new.get("role").and_then(Value::as_str);
    if role.is_some_and(|role| role == Role::Admin.as_str() || role == Role::Auditor.as_str()) {
        return Err(Problem::forbidden(
            "the role of an agent of a workspace is `agent` or `workspace_admin`",
        ));
    }
    Ok(())
}

/// Refuses a workspace admin changes to agents that may do more than itself.
pub(super) fn check_rank(caller: &ApiCaller, role: Role) -> Result<(), Problem> {
    if caller.workspace().is_some() && role.sees_everything() {
        let detail = format!("an agent with the role `{role}` is changed by an admin");
        return Err(Problem::forbidden(detail));
    }
    Ok(())
}

fn check_written(written: EntryWrite, name: &str) -> Result<(), Problem> {
    match written {
        EntryWrite::Done(_) => Ok(()),
        EntryWrite::Missing => Err(Problem::not_found(format_args!("agent `{name}`"))),
        EntryWrite::Conflict(current) => Err(conflict(name, current)),
    }
}

fn conflict(name: &str, current: Timestamp) -> Problem {
    let detail = format!("the agent `{name}` was changed since: read it again");
    Problem::new(ProblemType::PreconditionFailed, detail).with_current(current)
}

fn plan_of(other: String) -> ChangePlan {
    ChangePlan {
        others: vec![other],
        ..ChangePlan::default()
    }
}

/// Records a change of the agent `name`, and lets it count here and in other gateways.
async fn note_agent(
    state: &ApiState,
    caller: &ApiCaller,
    name: &str,
    detail: &str,
) -> Result<(), Problem> {
    state.record(EventKind::AgentChanged, name, caller, detail);
    state.writer.refresh("a changed agent").await;
    Ok(())
}

async fn answer(
    state: &ApiState,
    id: AgentId,
    plan: ChangePlan,
    dry_run: bool,
) -> Result<WithEtag<ChangedAgent>, Problem> {
    let shown = ShownAgents::read(state).await?;
    let now = state.directory().current(id);
    let now = now.map(|agent| shown.show_with_etag(&agent));
    let (agent, etag) = now.map_or((None, None), |now| (Some(now.body), now.etag));
    let body = ChangedAgent {
        agent,
        plan,
        dry_run,
    };
    Ok(WithEtag { body, etag })
}

/// The keys that differ, for the audit.
fn changed_keys(old: &Value, new: &Value) -> String {
    let empty = serde_json::Map::new();
    let [old, new] = [old, new].map(|document| document.as_object().unwrap_or(&empty));
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let all = old.keys().chain(added);
    let mut changed: Vec<&str> = all
        .filter(|key| old.get(*key) != new.get(*key))
        .map(String::as_str)
        .collect();
    changed.sort_unstable();
    changed.join(", ")
}

/// The agents of the files and of the store at one moment.
pub(super) struct ShownAgents<'s> {
    state: &'s ApiState,
    pub(super) config: Config,
    stored: HashMap<AgentId, StoredAgent>,
}

impl<'s> ShownAgents<'s> {
    pub(super) async fn read(state: &'s ApiState) -> Result<Self, Problem> {
        let rows = match &state.store {
            Some(store) => store.agents.agents().await?.rows,
            None => Vec::new(),
        };
        Ok(Self {
            config: state.writer.running(),
            stored: rows.into_iter().map(|agent| (agent.id, agent)).collect(),
            state,
        })
    }

    /// The agents that `caller` sees, in the order of their pages.
    pub(super) fn seen_by(&self, caller: &ApiCaller) -> Vec<Arc<Agent>> {
        let mut agents = self.state.directory().agents();
        agents.retain(|agent| agent.id != AgentId::ANONYMOUS && caller.sees_team(agent.team.as_deref()));
        agents.sort_by_cached_key(|agent| page_key(agent));
        agents
    }

    /// The agent that `written`, a name or an id, means, where `caller` sees it.
    pub(super) fn find(&self, written: &str, caller: &ApiCaller) -> Result<Arc<Agent>, Problem> {
        let directory = self.state.directory();
        let found = directory.named(written).or_else(|| {
            let id = format!("agent_{written}").parse().ok()?;
            directory.current(id)
        });
        let found = found.filter(|agent| agent.id != AgentId::ANONYMOUS);
        found
            .filter(|agent| caller.sees_team(agent.team.as_deref()))
            .ok_or_else(|| Problem::not_found(format_args!("agent `{written}`")))
    }

    /// The agent as the store has it; those of files are changed there.
    pub(super) fn changeable(&self, agent: &Agent) -> Result<&StoredAgent, Problem> {
        if self.state.directory().is_in_config(agent.id) {
            let place = self.config.entries.agents_in_files.get(&agent.name);
            let place = place.map_or_else(|| "the config".to_owned(), ToString::to_string);
            let detail = format!(
                "the agent `{}` stands in {place}; change it there",
                agent.name
            );
            return Err(Problem::new(ProblemType::InConfigFile, detail));
        }
        let stored = self.stored.get(&agent.id);
        stored.ok_or_else(|| Problem::not_found(format_args!("agent `{}`", agent.name)))
    }

    /// Checks that the agent has the version that `options` ask for; the one that it has.
    fn check_version(
        &self,
        stored: &StoredAgent,
        options: ChangeOptions,
    ) -> Result<Option<Timestamp>, Problem> {
        match options.precondition {
            EntryPrecondition::Version(version) if version != stored.changed => {
                Err(conflict(&stored.name, stored.changed))
            }
            _ => Ok(Some(stored.changed)),
        }
    }

    fn show_with_etag(&self, agent: &Agent) -> WithEtag<AgentResource> {
        let stored = self.changeable(agent).ok();
        WithEtag {
            etag: stored.map(|stored| etag::of_version(stored.changed)),
            body: self.show(agent),
        }
    }

    fn show(&self, agent: &Agent) -> AgentResource {
        let place = self.config.entries.agents_in_files.get(&agent.name);
        let source = match (self.changeable(agent), place) {
            (Ok(stored), _) => EntrySource::Store {
                created: stored.created.to_string(),
                changed: stored.changed.to_string(),
            },
            (Err(_), Some(place)) => EntrySource::File {
                file: place.file.clone(),
                line: place.line,
            },
            // A gateway that was given its config otherwise.
            (Err(_), None) => EntrySource::File {
                file: "environment".to_owned(),
                line: 1,
            },
        };
        AgentResource {
            id: agent.id.to_string(),
            name: agent.name.clone(),
            source,
            config: agent_change::to_document(agent),
        }
    }
}

impl From<InvalidAgent> for Problem {
    fn from(invalid: InvalidAgent) -> Self {
        Self::new(ProblemType::Unprocessable, invalid.to_string())
    }
}

impl ApiState {
    /// The store, which changes need.
    pub(super) fn open_store(&self) -> Result<&Store, Problem> {
        let store = self.store.as_ref();
        store.ok_or_else(|| Problem::from(crate::config_change::ChangeError::NoStore))
    }
}
