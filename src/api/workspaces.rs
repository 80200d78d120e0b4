//! Workspaces: those of the files are shown, those of the store are made, changed and removed.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ApiState, ChangePlan,
    caller::{AdminOnly, ApiCaller, WorkspaceReader},
    entries::{self, EntryEdit, EntrySource, ShownEntries, make_change},
    input::{ChangeOptions, DryRun, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
    servers::ShownServers,
};
use crate::{
    config::{EntryKey, EntrySection, mask_document},
    config_change::{EntryChange, EntryPrecondition},
    names::{ServerName, ServerOwner, WorkspaceName},
};

/// A workspace as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct WorkspaceResource {
    /// Its name: the `team` of its agents, and what follows the `@` of its servers.
    name: String,
    /// Where it is written.
    source: EntrySource,
    /// What it says, as a config file would have it.
    config: Value,
    /// The servers that it owns.
    servers: Vec<String>,
    /// Why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A workspace that is to be made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewWorkspace {
    /// Its name.
    name: String,
    /// What a config file would have below `workspaces.NAME`.
    config: Value,
}

/// Which workspace a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct WorkspacePath {
    /// Its name.
    workspace: String,
}

/// What a change made, or would make, of a workspace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct WorkspaceChanged {
    /// The workspace as it is now; absent where it is gone, or not there yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<WorkspaceResource>,
    /// What the change does to the gateway.
    plan: ChangePlan,
    /// Whether nothing was changed.
    dry_run: bool,
}

/// The operations on workspaces.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/workspaces",
            get_with(list, |op| op.id("listWorkspaces"))
                .post_with(create, |op| op.id("createWorkspace")),
        )
        .api_route(
            "/api/v1/workspaces/{workspace}",
            get_with(show, |op| op.id("getWorkspace"))
                .put_with(replace, |op| op.id("replaceWorkspace"))
                .patch_with(patch, |op| op.id("patchWorkspace"))
                .delete_with(delete, |op| op.id("deleteWorkspace")),
        )
}

/// Lists the workspaces; a workspace admin has its own alone.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<WorkspaceResource>>, Problem> {
    let shown = ShownEntries::read(&state, EntrySection::Workspaces);
    page.page(&names(&shown, &caller), |name| {
        resource(&state, &shown, name)
    })
    .map(Json)
}

/// Shows a workspace.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    InPath(path): InPath<WorkspacePath>,
) -> Result<WithEtag<WorkspaceResource>, Problem> {
    let shown = ShownEntries::read(&state, EntrySection::Workspaces);
    find(&shown, &caller, &path.workspace)?;
    Ok(WithEtag {
        etag: shown.etag(&path.workspace),
        body: resource(&state, &shown, &path.workspace),
    })
}

/// Makes a workspace.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    QueryParams(run): QueryParams<DryRun>,
    JsonBody(new): JsonBody<NewWorkspace>,
) -> Result<Created<WorkspaceChanged>, Problem> {
    let name = WorkspaceName::parse(&new.name)
        .map_err(|invalid| Problem::new(ProblemType::Unprocessable, invalid.to_string()))?;
    let change = EntryChange {
        key: EntryKey::new(EntrySection::Workspaces, name.as_str()),
        document: Some(new.config.to_string()),
        precondition: EntryPrecondition::Absent,
    };
    let body = change_workspace(&state, &caller, &change, (run.dry_run, "added")).await?;
    let location = (!run.dry_run).then(|| format!("/api/v1/workspaces/{name}"));
    Ok(Created { body, location })
}

/// Replaces what a workspace says.
pub(super) async fn replace(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<WorkspacePath>,
    options: ChangeOptions,
    JsonBody(document): JsonBody<Value>,
) -> Result<WithEtag<WorkspaceChanged>, Problem> {
    edit(&state, &caller, (&path, options), |_| document).await
}

/// Changes some of what a workspace says, as a JSON merge patch (RFC 7396): null removes a key.
pub(super) async fn patch(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<WorkspacePath>,
    options: ChangeOptions,
    JsonBody(changes): JsonBody<Value>,
) -> Result<WithEtag<WorkspaceChanged>, Problem> {
    let merge = |mut document: Value| {
        entries::merge_patch(&mut document, changes);
        document
    };
    edit(&state, &caller, (&path, options), merge).await
}

/// Removes a workspace that owns no servers and no secrets.
pub(super) async fn delete(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<WorkspacePath>,
    options: ChangeOptions,
) -> Result<WithEtag<WorkspaceChanged>, Problem> {
    let shown = ShownEntries::read(&state, EntrySection::Workspaces);
    find(&shown, &caller, &path.workspace)?;
    check_owns_nothing(&state, &path.workspace).await?;
    let change = EntryChange {
        key: EntryKey::new(EntrySection::Workspaces, path.workspace),
        document: None,
        precondition: options.precondition,
    };
    change_workspace(&state, &caller, &change, (options.dry_run, "removed")).await
}

/// What a workspace owns would go to the next one of its name.
async fn check_owns_nothing(state: &ApiState, workspace: &str) -> Result<(), Problem> {
    let mut owned: Vec<String> = servers_of(state, workspace);
    if let Some(store) = &state.store {
        let secrets = store.secrets.secrets().await?;
        let secrets = secrets.into_iter().map(|secret| secret.name);
        let secrets = secrets.filter(|name| is_workspace(&name.owner(), workspace));
        owned.extend(secrets.map(|name| format!("secret {name}")));
    }
    if owned.is_empty() {
        return Ok(());
    }
    let owned = owned.join("`, `");
    let detail = format!("the workspace `{workspace}` owns `{owned}`: remove them first");
    Err(Problem::new(ProblemType::InUse, detail))
}

/// Makes what `edit` says of the document of a workspace.
async fn edit(
    state: &ApiState,
    caller: &ApiCaller,
    (path, options): (&WorkspacePath, ChangeOptions),
    edit: impl FnOnce(Value) -> Value,
) -> Result<WithEtag<WorkspaceChanged>, Problem> {
    let shown = ShownEntries::read(state, EntrySection::Workspaces);
    find(&shown, caller, &path.workspace)?;
    let (change, detail) = EntryEdit {
        key: EntryKey::new(EntrySection::Workspaces, &*path.workspace),
        mask: mask_document,
        precondition: options.precondition,
    }
    .to_change(state, edit);
    change_workspace(state, caller, &change, (options.dry_run, &detail)).await
}

/// Makes `change`, or says what it would do.
async fn change_workspace(
    state: &ApiState,
    caller: &ApiCaller,
    change: &EntryChange,
    run: (bool, &str),
) -> Result<WithEtag<WorkspaceChanged>, Problem> {
    let plan = make_change(state, caller, change, run).await?;
    let shown = ShownEntries::read(state, EntrySection::Workspaces);
    let name = &change.key.name;
    let found = find(&shown, caller, name);
    let body = WorkspaceChanged {
        workspace: found.ok().map(|()| resource(state, &shown, name)),
        plan,
        dry_run: run.0,
    };
    Ok(WithEtag {
        etag: shown.etag(name),
        body,
    })
}

/// The names of all that `caller` sees, also of those that do not count.
fn names(shown: &ShownEntries, caller: &ApiCaller) -> Vec<String> {
    let running = shown.config.workspaces.keys();
    let mut names = shown.names(running.map(ToString::to_string));
    names.retain(|name| caller.sees_team(Some(name)));
    names
}

/// That there is a workspace `name` for `caller`.
fn find(shown: &ShownEntries, caller: &ApiCaller, name: &str) -> Result<(), Problem> {
    let found = names(shown, caller).iter().any(|known| known == name);
    let missing = || Problem::not_found(format_args!("workspace `{name}`"));
    found.then_some(()).ok_or_else(missing)
}

fn resource(state: &ApiState, shown: &ShownEntries, name: &str) -> WorkspaceResource {
    let parsed = WorkspaceName::parse(name).ok();
    let running = parsed.and_then(|name| shown.config.workspaces.get(&name));
    let config = match (shown.counted(name), running) {
        (Some(stored), _) => mask_document(&stored.entry.document),
        (None, Some(workspace)) => workspace.to_display(),
        (None, None) => Value::Null,
    };
    WorkspaceResource {
        name: name.to_owned(),
        source: shown.source(name),
        config,
        servers: servers_of(state, name),
        reason: shown.fault(name),
    }
}

fn servers_of(state: &ApiState, workspace: &str) -> Vec<String> {
    let mut names = ShownServers::read(state).names();
    names.retain(|name| {
        let name = ServerName::parse(name);
        name.is_ok_and(|name| is_workspace(&name.owner(), workspace))
    });
    names
}

fn is_workspace(owner: &ServerOwner, workspace: &str) -> bool {
    matches!(owner, ServerOwner::Workspace(name) if name.as_str() == workspace)
}
