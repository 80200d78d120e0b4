//! Agents: those of the files are shown, those of the store are made, changed and removed.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ApiState,
    caller::{ApiCaller, Manager, WorkspaceReader, find_agent},
    entries::{changed_keys, merge_patch},
    etag,
    input::{ChangeOptions, DryRun, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
    value_places::{ValuePlaces, value_places},
};
use crate::{
    agent_change::{self, AgentFault},
    audit::{ChangedValues, EventKind},
    auth::Agent,
    clock,
    config::{Role, Terms, ValuePlace},
    config_change::EntryPrecondition,
    names::AgentId,
    store::{EntryWrite, Store, StoreError, StoredAgent},
};

/// An agent as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct AgentResource {
    /// Its id, `agent_<uuid>`.
    id: String,
    /// Its name.
    name: String,
    /// Where it is written.
    source: AgentSource,
    /// Whether it may do anything at all.
    enabled: bool,
    /// What of the API is open to it.
    role: Role,
    /// The team whose budget and servers it shares.
    team: Option<String>,
    /// The profiles that it may use; `null`: all.
    profiles: Option<Vec<String>>,
    /// What it may do, as a config has it; what is absent holds as for everybody.
    terms: Terms,
}

/// Where an agent is written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AgentSource {
    /// Nowhere: it stands for callers without a key.
    Builtin,
    /// In a file, where it is changed.
    File {
        /// The file, as it was named; `environment` for what no file says.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// In the store, where the API changes it.
    Store,
}

/// What may be said of an agent.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AgentSettings {
    /// Whether it may do anything at all. Default: true.
    enabled: bool,
    /// What of the API is open to it. Default: agent.
    role: Role,
    /// The team whose budget and servers it shares. Default: none; of a workspace admin, its own.
    team: Option<String>,
    /// The profiles that it may use. Default: all.
    profiles: Option<Vec<String>>,
    /// What it may do, as a config has it. Default: what everybody may.
    terms: Terms,
}

/// An agent that is to be made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewAgent {
    /// Its name.
    name: String,
    /// What it is and may do.
    #[serde(default)]
    settings: AgentSettings,
}

/// Which agent a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct AgentPath {
    /// Its name, or its id with or without prefix.
    pub(super) agent: String,
}

/// What a change made, or would make, of an agent.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct AgentChanged {
    /// The agent after the change; absent where it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<AgentResource>,
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
                .patch_with(patch, |op| op.id("patchAgent").response::<409, Problem>())
                .delete_with(delete, |op| op.id("deleteAgent").response::<409, Problem>()),
        )
}

/// Lists the agents, by name.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<AgentResource>>, Problem> {
    let directory = state.proxy.governance().directory();
    let mut agents = directory.agents();
    agents.retain(|agent| {
        let is_somebody = agent.id != AgentId::ANONYMOUS || directory.is_anonymous();
        is_somebody && caller.sees_team(agent.team.as_deref())
    });
    // An agent of the store may have the name of one of the config.
    let key = |agent: &Agent| format!("{}\n{}", agent.name, agent.id);
    let mut agents: Vec<_> = agents.iter().map(|agent| (key(agent), agent)).collect();
    agents.sort_by(|(a, _), (b, _)| a.cmp(b));
    let keys: Vec<&str> = agents.iter().map(|(key, _)| key.as_str()).collect();
    let places = value_places(&state).await;
    page.page(&keys, |key| {
        let at = keys.partition_point(|known| known < key);
        resource(&state, agents[at].1, &places)
    })
    .map(Json)
}

/// Shows an agent.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    InPath(path): InPath<AgentPath>,
) -> Result<WithEtag<AgentResource>, Problem> {
    let agent = visible_agent(&state, &caller, &path)?;
    let places = value_places(&state).await;
    let body = resource(&state, &agent, &places);
    let stored = match (&body.source, &state.store) {
        (AgentSource::Store, Some(store)) => store.agents.agent(agent.id).await?,
        _ => None,
    };
    let etag = stored.map(|stored| etag::of_version(stored.changed));
    Ok(WithEtag { body, etag })
}

/// Makes an agent, which has no key yet. A workspace admin makes those of its own workspace.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    QueryParams(run): QueryParams<DryRun>,
    JsonBody(new): JsonBody<NewAgent>,
) -> Result<Created<AgentChanged>, Problem> {
    let _changing = state.agent_changes.lock().await;
    let store = store_of(&state)?;
    let config = state.writer.running();
    let place = "a config file; change it there";
    let mut agent = agent_change::new_agent(&new.name, (&config, place), clock::now())?;
    let mut settings = new.settings;
    if caller.role == Role::WorkspaceAdmin && settings.team.is_none() {
        settings.team.clone_from(&caller.agent.team);
    }
    let before = AgentSettings {
        team: caller.agent.team.clone(),
        ..AgentSettings::default()
    };
    check_bounds(&caller, &before, &settings)?;
    settings.write_to(&mut agent, &state)?;
    let stored = store.agents.agents().await?;
    let mut rows = stored.rows.iter();
    if rows.any(|known| known.name == agent.name || known.id == agent.id) {
        let name = agent.name;
        return Err(StoreError::NameTaken { name }.into());
    }
    if !run.dry_run {
        store.agents.add(&agent).await?;
        let detail = format!("added; {}", settings.summary(&AgentSettings::default()));
        let changes = agent_change::changed_values(None, Some(&agent));
        record_and_apply(&state, &caller, (&agent.name, &detail), changes).await?;
    }
    let location = (!run.dry_run).then(|| format!("/api/v1/agents/{}", agent.id));
    let body = changed_agent(agent, run.dry_run);
    Ok(Created { body, location })
}

/// Changes some of what is said of an agent of the store, as a JSON merge patch (RFC 7396): null takes the default.
pub(super) async fn patch(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<AgentPath>,
    options: ChangeOptions,
    JsonBody(changes): JsonBody<Value>,
) -> Result<WithEtag<AgentChanged>, Problem> {
    let _changing = state.agent_changes.lock().await;
    let store = store_of(&state)?;
    let mut agent = stored_agent(&state, &caller, &path).await?;
    check_version(&agent, options.precondition)?;
    let old = agent.clone();
    let before = AgentSettings::of(&agent);
    if !changes.is_object() {
        let detail = "the patch must be an object";
        return Err(Problem::new(ProblemType::Unprocessable, detail));
    }
    let mut document = serde_json::to_value(&before).unwrap_or_default();
    merge_patch(&mut document, changes);
    let settings: AgentSettings = serde_json::from_value(document)
        .map_err(|error| Problem::new(ProblemType::Unprocessable, error.to_string()))?;
    check_bounds(&caller, &before, &settings)?;
    settings.write_to(&mut agent, &state)?;
    if !options.dry_run && settings != before {
        // What was changed is what was read.
        match store.agents.update(&agent, Some(old.changed)).await? {
            EntryWrite::Done(version) => agent.changed = version,
            EntryWrite::Conflict(current) => return Err(changed_since(&agent.name, current)),
            EntryWrite::Missing => {
                return Err(Problem::not_found(format_args!("agent `{}`", path.agent)));
            }
        }
        let detail = settings.summary(&before);
        let changes = agent_change::changed_values(Some(&old), Some(&agent));
        record_and_apply(&state, &caller, (&agent.name, &detail), changes).await?;
    }
    Ok(changed_agent(agent, options.dry_run))
}

/// Removes an agent of the store, its keys and its sessions. What it spent is kept.
pub(super) async fn delete(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<AgentPath>,
    options: ChangeOptions,
) -> Result<Json<AgentChanged>, Problem> {
    let _changing = state.agent_changes.lock().await;
    let store = store_of(&state)?;
    let agent = stored_agent(&state, &caller, &path).await?;
    check_version(&agent, options.precondition)?;
    // It could be made anew without what an admin said of it.
    if caller.role == Role::WorkspaceAdmin && !is_unlimited(&agent) {
        let why = "only admins remove an agent with `terms` or `profiles` of its own";
        return Err(Problem::forbidden(why));
    }
    if !options.dry_run {
        store.agents.remove(agent.id).await?;
        let changes = agent_change::changed_values(Some(&agent), None);
        record_and_apply(&state, &caller, (&agent.name, "removed"), changes).await?;
    }
    Ok(Json(AgentChanged {
        agent: None,
        dry_run: options.dry_run,
    }))
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            role: Role::Agent,
            team: None,
            profiles: None,
            terms: Terms::default(),
        }
    }
}

impl AgentSettings {
    fn of(agent: &StoredAgent) -> Self {
        Self {
            enabled: agent.enabled,
            role: agent.role,
            team: agent.team.clone(),
            profiles: agent.profiles.as_ref().map(|names| names_of(names)),
            terms: agent.terms.clone(),
        }
    }

    /// Writes it into `agent`, with the checks of the command line.
    fn write_to(&self, agent: &mut StoredAgent, state: &ApiState) -> Result<(), AgentFault> {
        let config = state.writer.running();
        if let Some(team) = &self.team {
            agent_change::check_team(team)?;
        }
        let profiles = self.profiles.as_ref().map(|names| {
            let found = names
                .iter()
                .map(|name| agent_change::find_profile(name, &config));
            found.collect::<Result<Vec<_>, _>>()
        });
        agent.enabled = self.enabled;
        agent.role = self.role;
        agent.team.clone_from(&self.team);
        agent.profiles = profiles.transpose()?;
        let is_new = agent.terms != self.terms;
        agent.terms.clone_from(&self.terms);
        if is_new {
            agent_change::check_terms(agent, &config)?;
        }
        Ok(())
    }

    /// Which keys differ from `before`, for the audit.
    fn summary(&self, before: &Self) -> String {
        let [old, new] = [before, self].map(|it| serde_json::to_value(it).unwrap_or_default());
        changed_keys(&old, &new)
    }
}

/// Refuses what a workspace admin may not make of an agent: it has no other workspace, gives no role, and what agents
/// may do is for admins to say.
fn check_bounds(
    caller: &ApiCaller,
    before: &AgentSettings,
    after: &AgentSettings,
) -> Result<(), Problem> {
    if caller.role != Role::WorkspaceAdmin {
        return Ok(());
    }
    let why = if after.team.is_none() || after.team != caller.agent.team {
        "a workspace admin has agents of its own `team` only"
    } else if after.role != Role::Agent {
        "a workspace admin gives no `role` but `agent`"
    } else if (&after.terms, &after.profiles) != (&before.terms, &before.profiles) {
        "only admins set `terms` and `profiles`"
    } else {
        return Ok(());
    };
    Err(Problem::forbidden(why))
}

/// Whether nobody has said what the agent may do.
fn is_unlimited(agent: &StoredAgent) -> bool {
    let free = AgentSettings::default();
    agent.terms == free.terms && agent.profiles.is_none()
}

/// Refuses a change of another version than that which `If-Match` names.
fn check_version(agent: &StoredAgent, precondition: EntryPrecondition) -> Result<(), Problem> {
    match precondition {
        EntryPrecondition::Version(version) if version != agent.changed => {
            Err(changed_since(&agent.name, agent.changed))
        }
        EntryPrecondition::Absent | EntryPrecondition::Present | EntryPrecondition::Version(_) => {
            Ok(())
        }
    }
}

fn changed_since(name: &str, current: Timestamp) -> Problem {
    let detail = format!("the agent `{name}` was changed since: read it again");
    Problem::changed_meanwhile(&detail, current)
}

/// The agent of the path, if it is there for the caller.
pub(super) fn visible_agent(
    state: &ApiState,
    caller: &ApiCaller,
    path: &AgentPath,
) -> Result<Arc<Agent>, Problem> {
    let missing = || Problem::not_found(format_args!("agent `{}`", path.agent));
    let agent = find_agent(state, &path.agent)?;
    let is_listed = agent.user.is_none() && caller.sees_team(agent.team.as_deref());
    is_listed.then_some(agent).ok_or_else(missing)
}

/// The same for who changes it or its keys: a workspace admin has no power over those with a role.
pub(super) fn managed_agent(
    state: &ApiState,
    caller: &ApiCaller,
    path: &AgentPath,
) -> Result<Arc<Agent>, Problem> {
    let agent = visible_agent(state, caller, path)?;
    if caller.role == Role::WorkspaceAdmin && agent.role != Role::Agent {
        let (name, role) = (&agent.name, agent.role);
        let why = format!("`{name}` has the role `{role}`: only admins change it and its keys");
        return Err(Problem::forbidden(why));
    }
    Ok(agent)
}

/// The agent of the path as the store has it; those of the config are refused.
async fn stored_agent(
    state: &Arc<ApiState>,
    caller: &ApiCaller,
    path: &AgentPath,
) -> Result<StoredAgent, Problem> {
    let agent = managed_agent(state, caller, path)?;
    let name = &agent.name;
    let places = value_places(state).await;
    let why = match source_of(state, &agent, &places) {
        AgentSource::Builtin => {
            format!("`{name}` (callers without a key) is configured in `[governance]`")
        }
        AgentSource::File { file, line } => {
            format!("agent `{name}` is configured in {file} line {line}; change it there")
        }
        AgentSource::Store => {
            let found = store_of(state)?.agents.agent(agent.id).await?;
            let missing = || Problem::not_found(format_args!("agent `{}`", path.agent));
            return found.ok_or_else(missing);
        }
    };
    Err(Problem::new(ProblemType::InConfigFile, why))
}

pub(super) fn store_of(state: &ApiState) -> Result<&Store, Problem> {
    let detail = "there is no store to change; see the log of the start";
    let missing = || Problem::new(ProblemType::InternalError, detail);
    state.store.as_ref().ok_or_else(missing)
}

/// Records what was made of the agent `name`, and lets every gateway know it.
async fn record_and_apply(
    state: &ApiState,
    caller: &ApiCaller,
    (name, detail): (&str, &str),
    changes: ChangedValues,
) -> Result<(), Problem> {
    let governance = state.proxy.governance();
    let record = (&*caller.actor(), detail);
    let recorded = governance.record_change(EventKind::AgentChanged, name, record, changes);
    let recorded = recorded.durable().await;
    apply(state).await?;
    Ok(recorded?)
}

/// Lets every gateway know what the store says of agents and keys.
pub(super) async fn apply(state: &ApiState) -> Result<(), Problem> {
    let applied = state.writer.apply_agents().await;
    applied.map_err(|why| {
        let detail = format!("the change was saved and is not in effect yet: {why}");
        Problem::new(ProblemType::InternalError, detail)
    })
}

/// What was made of an agent, with its version.
fn changed_agent(agent: StoredAgent, dry_run: bool) -> WithEtag<AgentChanged> {
    WithEtag {
        etag: Some(etag::of_version(agent.changed)),
        body: AgentChanged {
            agent: Some(stored_resource(agent)),
            dry_run,
        },
    }
}

fn resource(state: &ApiState, agent: &Agent, places: &ValuePlaces) -> AgentResource {
    AgentResource {
        id: agent.id.to_string(),
        name: agent.name.clone(),
        source: source_of(state, agent, places),
        enabled: agent.enabled,
        role: agent.role,
        team: agent.team.clone(),
        profiles: agent.profiles.as_ref().map(|names| names_of(names)),
        terms: agent.terms.clone(),
    }
}

fn stored_resource(agent: StoredAgent) -> AgentResource {
    let settings = AgentSettings::of(&agent);
    AgentResource {
        id: agent.id.to_string(),
        name: agent.name,
        source: AgentSource::Store,
        enabled: settings.enabled,
        role: settings.role,
        team: settings.team,
        profiles: settings.profiles,
        terms: settings.terms,
    }
}

fn names_of(names: &[crate::names::ProfileName]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn source_of(state: &ApiState, agent: &Agent, places: &ValuePlaces) -> AgentSource {
    if agent.id == AgentId::ANONYMOUS {
        return AgentSource::Builtin;
    }
    if !state.proxy.governance().directory().is_in_config(agent.id) {
        return AgentSource::Store;
    }
    let section = format!("agents.{}.", agent.name);
    let below = places.range(section.clone()..);
    let below = below.take_while(|(key, _)| key.starts_with(&section));
    let written = below.filter_map(|(_, place)| match place {
        ValuePlace::File { file, line, .. } => Some((file.clone(), *line)),
        ValuePlace::Default | ValuePlace::Environment { .. } | ValuePlace::Store { .. } => None,
    });
    let first = written.min_by_key(|(_, line)| *line);
    let (file, line) = first.unwrap_or_else(|| ("environment".to_owned(), 1));
    AgentSource::File { file, line }
}

impl From<AgentFault> for Problem {
    fn from(fault: AgentFault) -> Self {
        let kind = match &fault {
            AgentFault::Configured { .. } => ProblemType::AlreadyExists,
            AgentFault::Name { .. }
            | AgentFault::Profile(_)
            | AgentFault::Team
            | AgentFault::Terms(_) => ProblemType::Unprocessable,
        };
        Self::new(kind, fault.to_string())
    }
}
