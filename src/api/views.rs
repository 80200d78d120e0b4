//! Views: what one conversation sees of the catalog. Agents make, change and end their own.

use std::{sync::Arc, time::Duration};

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{
    ApiState,
    agents::store_of,
    caller::{ApiCaller, SignedIn, find_agent},
    entries::{changed_keys, merge_patch},
    etag,
    input::{ChangeOptions, DryRun, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
};
use crate::{
    audit::EventKind,
    auth::Agent,
    catalog::{Prefixes, check_disabled_tools},
    clock,
    config::{Config, Role, Terms},
    config_change::EntryPrecondition,
    names::{AgentId, OwnerIndex, ProfileName, ServerName, ViewId},
    views::{View, ViewChange, ViewContent, ViewOutcome},
};

/// The shortest time of a view: what the store keeps.
const TTL_MIN: Duration = Duration::from_millis(1);

/// A view as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ViewResource {
    /// Its id, `view_<uuid>`.
    id: String,
    /// Where its agent connects to it, a path below the URL of the gateway.
    path: String,
    /// The id of the agent that it is for.
    agent_id: String,
    /// What it shows.
    #[serde(flatten)]
    settings: ViewSettings,
    /// When it was made, RFC 3339.
    created: String,
    /// When it ends, RFC 3339.
    expires: String,
}

/// What is said of a view.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
struct ViewSettings {
    /// The profile that it begins with, whose policy holds in it. Default: none, and it shows what `servers` adds.
    profile: Option<String>,
    /// Servers that it shows beside that, with all that they have. Default: none.
    servers: Vec<String>,
    /// Tools that it does not show: globs over their names, or over `SERVER/TOOL`. Default: none.
    disabled_tools: Vec<String>,
    /// What the model is given as `tool_choice`. With `"none"` the view has no tools; with an object that names one in
    /// `name` or `function.name` it has that one. Anything else is kept and changes nothing. Default: `"auto"`.
    tool_choice: Value,
}

/// A view that is to be made.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewView {
    /// The agent that it is for, by name or id; only admins make one for another agent. Default: who asks.
    agent: Option<String>,
    /// How long it lives, such as `90m`. Default: `views.ttl`.
    ttl: Option<String>,
    /// The profile that it begins with, whose policy holds in it. Default: none, and it shows what `servers` adds.
    profile: Option<String>,
    /// Servers that it shows beside that, with all that they have. Default: none.
    servers: Vec<String>,
    /// Tools that it does not show: globs over their names, or over `SERVER/TOOL`. Default: none.
    disabled_tools: Vec<String>,
    /// What the model is given as `tool_choice`, which can take tools away. Default: `"auto"`.
    tool_choice: Value,
}

/// Which view a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct ViewPath {
    /// Its id.
    view: String,
}

/// What a change made, or would make, of a view.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ViewChanged {
    /// The view after the change; as it was, where it has ended.
    view: ViewResource,
    /// Whether nothing was changed.
    dry_run: bool,
}

/// The operations on views.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/views",
            get_with(list, |op| op.id("listViews")).post_with(create, |op| op.id("createView")),
        )
        .api_route(
            "/api/v1/views/{view}",
            get_with(show, |op| op.id("getView"))
                .patch_with(patch, |op| op.id("patchView"))
                .delete_with(end, |op| op.id("endView")),
        )
}

/// Lists views, the oldest first: an agent's own; those of all agents for admins and auditors.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<ViewResource>>, Problem> {
    let mut views = stored_views(&state).await?;
    views.retain(|view| may_see(&caller, view));
    let keys: Vec<String> = views.iter().map(|view| view.id.to_string()).collect();
    page.page(&keys, |key| {
        let at = keys.partition_point(|known| known < key);
        ViewResource::new(&views[at])
    })
    .map(Json)
}

/// Shows a view.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    InPath(path): InPath<ViewPath>,
) -> Result<WithEtag<ViewResource>, Problem> {
    let view = find(&state, &caller, &path).await?;
    Ok(WithEtag {
        etag: Some(etag::of_version(view.changed)),
        body: ViewResource::new(&view),
    })
}

/// Makes a view, which its agent finds at `path` until it ends.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    QueryParams(run): QueryParams<DryRun>,
    JsonBody(new): JsonBody<NewView>,
) -> Result<Created<ViewChanged>, Problem> {
    let agent = agent_of(&state, &caller, new.agent.as_deref())?;
    let settings = ViewSettings {
        profile: new.profile,
        servers: new.servers,
        disabled_tools: new.disabled_tools,
        tool_choice: new.tool_choice,
    };
    let config = state.writer.running();
    let created = to_millisecond(clock::now());
    let view = View {
        id: ViewId(Uuid::now_v7()),
        agent: agent.id,
        content: settings.check(&agent, &config)?,
        created,
        expires: expiry(created, new.ttl.as_deref(), &config)?,
        changed: created,
    };
    let location = (!run.dry_run).then(|| format!("/api/v1/views/{}", view.id));
    let change = ViewChange::Create {
        view,
        per_agent_max: config.views.per_agent_max,
    };
    let detail = format!("for {}", agent.name);
    let body = make(&state, &caller, change, (run.dry_run, &detail)).await?;
    Ok(Created { body, location })
}

/// Changes some of what is said of a view, as a JSON merge patch (RFC 7396): null takes the default. With `ttl` it ends
/// that long from now. Its profile stays. Clients that are connected to it are told what changed.
pub(super) async fn patch(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    InPath(path): InPath<ViewPath>,
    options: ChangeOptions,
    JsonBody(mut changes): JsonBody<Value>,
) -> Result<WithEtag<ViewChanged>, Problem> {
    let mut view = find_for_change(&state, &caller, (&path, options)).await?;
    let Some(members) = changes.as_object_mut() else {
        return Err(unusable("the patch must be an object"));
    };
    let ttl = members.remove("ttl");
    let before = ViewSettings::of(&view.content);
    let mut document = serde_json::to_value(&before).unwrap_or_default();
    // A choice is one value: what was chosen before is no part of it.
    let choice = members.remove("tool_choice");
    merge_patch(&mut document, changes);
    if let Some(choice) = choice {
        document["tool_choice"] = choice;
    }
    let settings: ViewSettings =
        serde_json::from_value(document).map_err(|error| unusable(error.to_string()))?;
    if settings.profile != before.profile {
        return Err(unusable("`profile` cannot be changed; make another view"));
    }
    let config = state.writer.running();
    let owner = find_agent(&state, &view.agent.to_string())?;
    view.content = settings.check(&owner, &config)?;
    if let Some(ttl) = ttl {
        let ttl: Option<String> =
            serde_json::from_value(ttl).map_err(|error| unusable(format!("`ttl`: {error}")))?;
        view.expires = expiry(to_millisecond(clock::now()), ttl.as_deref(), &config)?;
    }
    let detail = settings.summary(&before);
    make(
        &state,
        &caller,
        ViewChange::Replace(view),
        (options.dry_run, &detail),
    )
    .await
}

/// Ends a view, and with it the sessions of clients that are connected to it.
pub(super) async fn end(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    InPath(path): InPath<ViewPath>,
    options: ChangeOptions,
) -> Result<WithEtag<ViewChanged>, Problem> {
    let view = find_for_change(&state, &caller, (&path, options)).await?;
    make(
        &state,
        &caller,
        ViewChange::End(view),
        (options.dry_run, "by request"),
    )
    .await
}

/// How the audit calls `change`.
pub(crate) fn view_event(change: &ViewChange) -> EventKind {
    match change {
        ViewChange::Create { .. } => EventKind::ViewCreated,
        ViewChange::End(_) => EventKind::ViewEnded,
        ViewChange::Replace(_) => EventKind::ViewChanged,
    }
}

impl Default for ViewSettings {
    fn default() -> Self {
        Self {
            profile: None,
            servers: Vec::new(),
            disabled_tools: Vec::new(),
            tool_choice: "auto".into(),
        }
    }
}

impl ViewSettings {
    fn of(content: &ViewContent) -> Self {
        Self {
            profile: content.profile.as_ref().map(ToString::to_string),
            servers: content.servers.iter().map(ToString::to_string).collect(),
            disabled_tools: content.disabled_tools.clone(),
            tool_choice: content.tool_choice.clone(),
        }
    }

    /// The same as a view of `agent` has it, if that can be.
    fn check(&self, agent: &Agent, config: &Config) -> Result<ViewContent, Problem> {
        let profile = self
            .profile
            .as_deref()
            .map(|name| find_profile(name, config));
        let profile = profile.transpose()?;
        check_profiles(agent, profile.as_ref(), &self.servers)?;
        check_terms(profile.as_ref(), &self.servers, config)?;
        let servers = self
            .servers
            .iter()
            .map(|name| find_server(name, agent, config));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        check_disabled_tools(&self.disabled_tools, &Prefixes::of(config))
            .map_err(|error| unusable(format!("`disabled_tools`: {error}")))?;
        let tool_choice = match &self.tool_choice {
            Value::Null => "auto".into(),
            Value::String(_) | Value::Object(_) => self.tool_choice.clone(),
            Value::Array(_) | Value::Bool(_) | Value::Number(_) => {
                return Err(unusable("`tool_choice` must be a string or an object"));
            }
        };
        let content = ViewContent {
            profile,
            servers,
            disabled_tools: self.disabled_tools.clone(),
            tool_choice,
        };
        let size = serde_json::to_string(&content).map_or(0, |text| text.len());
        let most = config.views.size_max;
        if size > most {
            let detail = format!("the view has {size} bytes as JSON; `views.size_max` is {most}");
            return Err(unusable(detail));
        }
        Ok(content)
    }

    /// Which keys differ from `before`, for the audit.
    fn summary(&self, before: &Self) -> String {
        let [old, new] = [before, self].map(|it| serde_json::to_value(it).unwrap_or_default());
        changed_keys(&old, &new)
    }
}

impl ViewResource {
    fn new(view: &View) -> Self {
        Self {
            id: view.id.to_string(),
            path: format!("/mcp/views/{}", view.id),
            agent_id: view.agent.to_string(),
            settings: ViewSettings::of(&view.content),
            created: view.created.to_string(),
            expires: view.expires.to_string(),
        }
    }
}

/// The agent that `written` names; who asks, where it names none.
fn agent_of(
    state: &ApiState,
    caller: &ApiCaller,
    written: Option<&str>,
) -> Result<Arc<Agent>, Problem> {
    let Some(written) = written else {
        let is_nobody = caller.agent.id == AgentId::ANONYMOUS;
        let config = state.writer.running();
        if is_nobody && !config.governance.auth.allows_anonymous() {
            return Err(unusable("say which `agent` the view is for"));
        }
        return Ok(Arc::clone(&caller.agent));
    };
    let agent = find_agent(state, written);
    let is_own = agent
        .as_ref()
        .is_ok_and(|agent| agent.id == caller.agent.id);
    if is_own || caller.role == Role::Admin {
        return agent.map_err(|problem| unusable(problem.detail));
    }
    let why = "only admins make views for other agents; leave out `agent`";
    Err(Problem::forbidden(why))
}

fn find_profile(name: &str, config: &Config) -> Result<ProfileName, Problem> {
    let found = ProfileName::parse(name).ok();
    let found = found.filter(|name| config.profiles.contains_key(name));
    found.ok_or_else(|| unusable(format!("there is no profile `{name}`")))
}

/// The server that `agent` means by `name`: of two, its own, before that of its workspace and the gateway's.
fn find_server(name: &str, agent: &Agent, config: &Config) -> Result<ServerName, Problem> {
    let missing = || unusable(format!("there is no server `{name}`"));
    let parsed = ServerName::parse(name).map_err(|_| missing())?;
    let owners = OwnerIndex::of(config.servers.keys()).seen_by(agent.id, agent.team.as_deref());
    let mut candidates = owners.names_of(&parsed).chain([parsed.clone()]);
    let found = candidates.find(|it| config.servers.contains_key(it) && owners.sees(it));
    found.ok_or_else(missing)
}

/// Refuses what would show an agent with profiles of its own more than they do.
fn check_profiles(
    agent: &Agent,
    profile: Option<&ProfileName>,
    servers: &[String],
) -> Result<(), Problem> {
    let Some(allowed) = &agent.profiles else {
        return Ok(());
    };
    let names: Vec<String> = allowed.iter().map(|name| format!("`{name}`")).collect();
    let (name, names) = (&agent.name, names.join(", "));
    let why = match profile {
        Some(profile) if allowed.contains(profile) && servers.is_empty() => return Ok(()),
        Some(profile) if allowed.contains(profile) => {
            format!(
                "the agent `{name}` may only use its profiles ({names}): its views add no `servers`"
            )
        }
        Some(_) | None => {
            format!(
                "the agent `{name}` may only use its profiles ({names}): `profile` must be one of them"
            )
        }
    };
    Err(Problem::forbidden(why))
}

/// Refuses servers beside a profile with rules of its own: they are written for what the profile shows, and would take
/// the place of those that hold for the servers elsewhere.
fn check_terms(
    profile: Option<&ProfileName>,
    servers: &[String],
    config: &Config,
) -> Result<(), Problem> {
    let found = profile.and_then(|name| Some((name, config.profiles.get(name)?)));
    match found {
        Some((name, profile)) if profile.terms != Terms::default() && !servers.is_empty() => {
            Err(Problem::forbidden(format!(
                "the profile `{name}` has a policy, a rate, a budget or a scan of its own, which is not for other \
                 servers: its views add no `servers`"
            )))
        }
        Some(_) | None => Ok(()),
    }
}

/// When a view ends that lives from `now` on for `ttl`, or for the time of the config.
fn expiry(now: Timestamp, ttl: Option<&str>, config: &Config) -> Result<Timestamp, Problem> {
    let most = config.views.ttl_max;
    let ttl = match ttl {
        Some(text) => humantime::parse_duration(text)
            .map_err(|error| unusable(format!("`ttl`: {error}; write a time such as `90m`")))?,
        None => config.views.ttl.min(most),
    };
    if ttl < TTL_MIN || ttl > most {
        let most = humantime::format_duration(most);
        return Err(unusable(format!(
            "`ttl` must be between 1ms and {most} (`views.ttl_max`)"
        )));
    }
    now.checked_add(ttl)
        .map(to_millisecond)
        .map_err(|_| unusable("`ttl` is too long"))
}

/// As the store keeps it.
fn to_millisecond(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time)
}

fn may_see(caller: &ApiCaller, view: &View) -> bool {
    view.agent == caller.agent.id || matches!(caller.role, Role::Admin | Role::Auditor)
}

/// All that have not ended, by id.
async fn stored_views(state: &ApiState) -> Result<Vec<View>, Problem> {
    let now = clock::now();
    let stored = store_of(state)?.views.views().await?;
    let mut views: Vec<View> = stored.iter().filter_map(View::from_stored).collect();
    views.retain(|view| view.expires > now);
    views.sort_by_key(|view| view.id);
    Ok(views)
}

/// The view of the path, if it is there for the caller.
async fn find(state: &ApiState, caller: &ApiCaller, path: &ViewPath) -> Result<View, Problem> {
    let id = ViewId::parse(&path.view);
    let views = stored_views(state).await?;
    let mut views = views.into_iter();
    let found = views.find(|view| Some(view.id) == id && may_see(caller, view));
    found.ok_or_else(|| Problem::not_found(format_args!("view `{}`", path.view)))
}

/// The same for who changes or ends it, where it has the version that `If-Match` asks for.
async fn find_for_change(
    state: &ApiState,
    caller: &ApiCaller,
    (path, options): (&ViewPath, ChangeOptions),
) -> Result<View, Problem> {
    let view = find(state, caller, path).await?;
    if view.agent != caller.agent.id && caller.role != Role::Admin {
        return Err(Problem::forbidden(
            "only its agent and admins change or end a view",
        ));
    }
    match options.precondition {
        EntryPrecondition::Version(expected) if expected != view.changed => {
            Err(changed_meanwhile(view.changed))
        }
        EntryPrecondition::Version(_) | EntryPrecondition::Present | EntryPrecondition::Absent => {
            Ok(view)
        }
    }
}

/// Makes `change`, or says what it would do.
async fn make(
    state: &ApiState,
    caller: &ApiCaller,
    change: ViewChange,
    (dry_run, detail): (bool, &str),
) -> Result<WithEtag<ViewChanged>, Problem> {
    let version = if dry_run {
        None
    } else {
        let record = (&*caller.actor(), detail);
        match state.writer.change_view(&change, record).await? {
            ViewOutcome::Done(version) => Some(version),
            ViewOutcome::Conflict(current) => return Err(changed_meanwhile(current)),
            ViewOutcome::Missing => {
                let id = change.view().id;
                return Err(Problem::not_found(format_args!("view `{id}`")));
            }
            ViewOutcome::TooMany => {
                let detail = "the agent has as many views as it may (`views.per_agent_max`): end one, or let it expire";
                return Err(Problem::new(ProblemType::TooManyViews, detail));
            }
        }
    };
    let is_there = !matches!(change, ViewChange::End(_));
    let body = ViewChanged {
        view: ViewResource::new(change.view()),
        dry_run,
    };
    let etag = version.filter(|_| is_there).map(etag::of_version);
    Ok(WithEtag { body, etag })
}

fn changed_meanwhile(current: Timestamp) -> Problem {
    Problem::changed_meanwhile("the view was changed since: read it again", current)
}

fn unusable(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemType::Unprocessable, detail)
}
