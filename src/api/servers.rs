//! Servers: those of the files are shown, those of the store are made, changed and removed.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use http::{Method, Request, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{
    ApiState, ChangePlan,
    caller::{ApiCaller, Manager, WorkspaceReader},
    entries::{self, EntryEdit, EntrySource, ShownEntries, make_change},
    input::{ChangeOptions, DryRun, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
    workspace_rules,
};
use crate::{
    config::{EntryKey, EntrySection, Role, mask_document},
    config_change::{EntryChange, EntryPrecondition},
    names::{ServerId, ServerName, ServerOwner},
};

/// The path of the operation that tries a server which is not made.
pub(super) const UNSAVED_PATH: &str = "/api/v1/servers/test";

/// A server as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ServerResource {
    /// Its id, `srv_` and a UUID that its name makes.
    id: String,
    /// Its name; the owner stands behind an `@`, where that is not the gateway.
    name: String,
    /// Where it is written.
    source: EntrySource,
    /// What it says, as a config file would have it. Secrets are `***`, and of `auth` only the type is shown.
    config: Value,
    /// How it does; absent where it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    /// Why it does so, or why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How many tools it lists.
    tools: usize,
    /// Bytes that its programs and what they started have in memory, all instances and replicas together; absent
    /// where none runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    /// Time that they kept a processor busy, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
}

/// A server that is to be made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewServer {
    /// Its name.
    name: String,
    /// What a config file would have below `servers.NAME`. Of variables only `${secret:NAME}` is expanded.
    config: Value,
}

/// Which server a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct ServerPath {
    /// Its name, or its id with or without `srv_`.
    pub(super) server: String,
}

/// What a change made, or would make, of a server.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ServerChanged {
    /// The server as it is now; absent where it is gone, or not there yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server: Option<ServerResource>,
    /// What the change does to the gateway.
    plan: ChangePlan,
    /// Whether nothing was changed.
    dry_run: bool,
}

/// The operations on servers.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/servers",
            get_with(list, |op| op.id("listServers")).post_with(create, |op| op.id("createServer")),
        )
        .api_route(
            "/api/v1/servers/{server}",
            get_with(show, |op| op.id("getServer"))
                .put_with(replace, |op| op.id("replaceServer"))
                .patch_with(patch, |op| op.id("patchServer"))
                .delete_with(delete, |op| op.id("deleteServer")),
        )
}

/// Lists the servers.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<ServerResource>>, Problem> {
    state.proxy.backends().measure_programs().await;
    let shown = ShownServers::seen_by(&state, &caller);
    page.page(&shown.names(), |name| shown.show(name)).map(Json)
}

/// Shows a server.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    InPath(path): InPath<ServerPath>,
) -> Result<WithEtag<ServerResource>, Problem> {
    state.proxy.backends().measure_programs().await;
    let shown = ShownServers::seen_by(&state, &caller);
    let name = shown.find(&path.server)?;
    Ok(shown.show_with_etag(&name))
}

/// Makes a server. A workspace admin makes those of its own workspace, with a `url`.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    QueryParams(run): QueryParams<DryRun>,
    JsonBody(new): JsonBody<NewServer>,
) -> Result<Created<ServerChanged>, Problem> {
    let name = parse_name(&new.name)?;
    workspace_rules::check_owner(&caller, &name)?;
    ShownServers::read(&state).check_name(&name)?;
    let mut change = EntryChange {
        key: key_of(&name),
        document: Some(new.config.to_string()),
        precondition: EntryPrecondition::Absent,
    };
    workspace_rules::restrict(&caller, None, &mut change)?;
    let body = change_server(
        &state,
        &caller,
        change,
        (&name, run.dry_run, "added".to_owned()),
    )
    .await?;
    let location = (!run.dry_run).then(|| format!("/api/v1/servers/{name}"));
    Ok(Created { body, location })
}

/// Replaces what a server says. A secret that is `***` stays as it is.
pub(super) async fn replace(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerPath>,
    options: ChangeOptions,
    JsonBody(mut document): JsonBody<Value>,
) -> Result<WithEtag<ServerChanged>, Problem> {
    let edit = |stored: Value| {
        // It is shown as its type alone.
        let shown = shorten_auth(stored.clone());
        if let (Some(auth), true) = (
            stored.get("auth"),
            document.get("auth") == shown.get("auth"),
        ) {
            document["auth"] = auth.clone();
        }
        document
    };
    edit_server(&state, &caller, (&path, options), edit).await
}

/// Changes some of what a server says, as a JSON merge patch (RFC 7396): null removes a key.
pub(super) async fn patch(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerPath>,
    options: ChangeOptions,
    JsonBody(mut changes): JsonBody<Value>,
) -> Result<WithEtag<ServerChanged>, Problem> {
    let edit = |mut document: Value| {
        prepare_auth(&mut document, &mut changes);
        entries::merge_patch(&mut document, changes);
        document
    };
    edit_server(&state, &caller, (&path, options), edit).await
}

/// Removes a server.
pub(super) async fn delete(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerPath>,
    options: ChangeOptions,
) -> Result<WithEtag<ServerChanged>, Problem> {
    let shown = ShownServers::seen_by(&state, &caller);
    let name = shown.find(&path.server)?;
    let mut change = EntryChange {
        key: key_of(&name),
        document: None,
        precondition: options.precondition,
    };
    let stored = shown.entries.stored(name.as_str());
    workspace_rules::restrict(&caller, stored, &mut change)?;
    change_server(
        &state,
        &caller,
        change,
        (&name, options.dry_run, "removed".to_owned()),
    )
    .await
}

/// Makes what `edit` says of the document of a server.
pub(super) async fn edit_server(
    state: &ApiState,
    caller: &ApiCaller,
    (path, options): (&ServerPath, ChangeOptions),
    edit: impl FnOnce(Value) -> Value,
) -> Result<WithEtag<ServerChanged>, Problem> {
    let shown = ShownServers::seen_by(state, caller);
    let name = shown.find(&path.server)?;
    let (mut change, detail) = EntryEdit {
        key: key_of(&name),
        mask: mask_document,
        precondition: options.precondition,
    }
    .to_change(state, edit);
    let stored = shown.entries.stored(name.as_str());
    workspace_rules::restrict(caller, stored, &mut change)?;
    change_server(state, caller, change, (&name, options.dry_run, detail)).await
}

/// Makes `change`, or says what it would do.
pub(super) async fn change_server(
    state: &ApiState,
    caller: &ApiCaller,
    change: EntryChange,
    (name, dry_run, detail): (&ServerName, bool, String),
) -> Result<WithEtag<ServerChanged>, Problem> {
    let mut plan = make_change(state, caller, &change, (dry_run, &detail)).await?;
    if caller.role == Role::WorkspaceAdmin {
        plan.retain_servers(|name| sees_server(caller, name));
    }
    let shown = ShownServers::read(state);
    let now = shown.find(name.as_str()).ok();
    let now = now.map(|name| shown.show_with_etag(&name));
    let (server, etag) = now.map_or((None, None), |now| (Some(now.body), now.etag));
    let body = ServerChanged {
        server,
        plan,
        dry_run,
    };
    Ok(WithEtag { body, etag })
}

/// Makes `change`, of which the audit says that the server was `detail`.
pub(super) async fn change_document(
    state: &ApiState,
    caller: &ApiCaller,
    change: &EntryChange,
    detail: &str,
) -> Result<(), Problem> {
    state
        .writer
        .apply(change, (&caller.actor(), detail))
        .await?;
    Ok(())
}

/// The servers of the files and of the store at one moment.
pub(super) struct ShownServers<'s> {
    pub(super) state: &'s ApiState,
    pub(super) entries: ShownEntries,
    /// For whom; `None`: everything.
    caller: Option<&'s ApiCaller>,
}

impl<'s> ShownServers<'s> {
    pub(super) fn read(state: &'s ApiState) -> Self {
        Self {
            entries: ShownEntries::read(state, EntrySection::Servers),
            state,
            caller: None,
        }
    }

    /// What is there for `caller`: for a workspace admin the servers of its workspace.
    pub(super) fn seen_by(state: &'s ApiState, caller: &'s ApiCaller) -> Self {
        Self {
            caller: Some(caller),
            ..Self::read(state)
        }
    }

    /// The names of all that are there, also of those that do not count.
    pub(super) fn names(&self) -> Vec<String> {
        let running = self.entries.config.servers.keys();
        let mut names = self.entries.names(running.map(ToString::to_string));
        if let Some(caller) = self.caller {
            names.retain(|name| sees_server(caller, name));
        }
        names
    }

    /// The server that `written`, a name or an id, means.
    pub(super) fn find(&self, written: &str) -> Result<ServerName, Problem> {
        let id = written.strip_prefix("srv_").unwrap_or(written);
        let id = Uuid::parse_str(id).ok();
        let names = self.names();
        let mut names = names.iter();
        let found = names.find(|name| *name == written || id == Some(ServerId::from_name(name).0));
        let found = found.and_then(|name| ServerName::parse(name).ok());
        found.ok_or_else(|| Problem::not_found(format_args!("server `{written}`")))
    }

    /// Checks that no server has the name of a new one whose agents would see both.
    fn check_name(&self, new: &ServerName) -> Result<(), Problem> {
        let names = self.names().into_iter();
        let mut names = names.filter_map(|name| ServerName::parse(&name).ok());
        let other =
            names.find(|other| other.local() == new.local() && other.is_owned() != new.is_owned());
        let Some(other) = other else { return Ok(()) };
        let (owned, shared) = if new.is_owned() {
            (new, &other)
        } else {
            (&other, new)
        };
        let detail = format!("`{owned}` has the name of `{shared}`, which every agent sees");
        Err(Problem::new(ProblemType::AlreadyExists, detail))
    }

    fn show_with_etag(&self, name: &ServerName) -> WithEtag<ServerResource> {
        WithEtag {
            etag: self.entries.etag(name.as_str()),
            body: self.show(name.as_str()),
        }
    }

    pub(super) fn show(&self, name: &str) -> ServerResource {
        let parsed = ServerName::parse(name).ok();
        let entries = &self.entries;
        let running = parsed
            .as_ref()
            .and_then(|name| entries.config.servers.get(name));
        let config = match (entries.counted(name), running) {
            (Some(stored), _) => mask_config(&stored.entry.document),
            (None, Some(server)) => shorten_auth(server.to_display()),
            (None, None) => Value::Null,
        };
        let backend = parsed
            .as_ref()
            .and_then(|name| self.state.proxy.backends().get(name));
        let report = backend.map(|backend| backend.report());
        let reason = report.as_ref().and_then(|report| report.reason.clone());
        ServerResource {
            id: ServerId::from_name(name).to_string(),
            name: name.to_owned(),
            source: entries.source(name),
            config,
            state: report.as_ref().map(|report| report.state.as_str()),
            memory_bytes: report.as_ref().and_then(|report| report.memory_bytes),
            cpu_seconds: report.as_ref().and_then(|report| report.cpu_seconds),
            reason: entries.fault(name).or(reason),
            tools: parsed.map_or(0, |name| {
                let catalog = self.state.proxy.catalog_store().catalog_of(&name);
                catalog.counts(&name).tools
            }),
        }
    }
}

/// Whether the server `name` is there for `caller`.
pub(super) fn sees_server(caller: &ApiCaller, name: &str) -> bool {
    let owner = ServerName::parse(name).map(|name| name.owner());
    match owner {
        Ok(ServerOwner::Workspace(workspace)) => caller.sees_team(Some(workspace.as_str())),
        Ok(ServerOwner::Gateway | ServerOwner::Agent(_)) | Err(_) => caller.sees_team(None),
    }
}

/// Where a server is found whose name makes its path that of an operation on all: by its id.
pub(super) fn uri_beside_operations<T>(request: &Request<T>) -> Option<Uri> {
    let (uri, name) = (request.uri(), UNSAVED_PATH.rsplit('/').next()?);
    let is_on_one = [
        Method::DELETE,
        Method::GET,
        Method::HEAD,
        Method::PATCH,
        Method::PUT,
    ];
    if uri.path() != UNSAVED_PATH || !is_on_one.contains(request.method()) {
        return None;
    }
    let query = uri.query().unwrap_or_default();
    let by_id = format!("/api/v1/servers/{}?{query}", ServerId::from_name(name));
    by_id.parse().ok()
}

pub(super) fn key_of(name: &ServerName) -> EntryKey {
    EntryKey::new(EntrySection::Servers, name.as_str())
}

pub(super) fn parse_name(name: &str) -> Result<ServerName, Problem> {
    ServerName::parse(name)
        .map_err(|invalid| Problem::new(ProblemType::Unprocessable, invalid.to_string()))
}

/// What a document says, with `auth` as its type alone.
pub(super) fn mask_config(document: &str) -> Value {
    shorten_auth(mask_document(document))
}

/// Lets `auth` of `changes`, which was shown shortened, be merged into that of `document`: one of another type takes
/// its place.
fn prepare_auth(document: &mut Value, changes: &mut Value) {
    let Some(new) = changes.get_mut("auth").and_then(Value::as_object_mut) else {
        return;
    };
    new.remove("configured");
    let is_other = new
        .get("type")
        .is_some_and(|kind| document.pointer("/auth/type") != Some(kind));
    if let (true, Some(document)) = (is_other, document.as_object_mut()) {
        document.remove("auth");
    }
}

fn shorten_auth(mut config: Value) -> Value {
    if let Some(auth) = config.get_mut("auth") {
        let kind = auth.get("type").cloned().unwrap_or_else(|| "none".into());
        let configured = kind != "none";
        *auth = serde_json::json!({ "type": kind, "configured": configured });
    }
    config
}
