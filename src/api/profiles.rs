//! Profiles: those of the files are shown, those of the store are made, changed and removed.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ApiState, ChangePlan,
    caller::{AdminOnly, ApiCaller, Reader},
    entries::{self, EntryEdit, EntrySource, ShownEntries, make_change},
    input::{ChangeOptions, DryRun, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    response::{Created, WithEtag},
};
use crate::{
    config::{EntryKey, EntrySection, mask_document},
    config_change::{EntryChange, EntryPrecondition},
    names::ProfileName,
};

/// A profile as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ProfileResource {
    /// Its name; it is served at `/mcp/profiles/NAME`.
    name: String,
    /// Where it is written.
    source: EntrySource,
    /// What it says, as a config file would have it.
    config: Value,
    /// Why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A profile that is to be made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewProfile {
    /// Its name.
    name: String,
    /// What a config file would have below `profiles.NAME`.
    config: Value,
}

/// Which profile a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct ProfilePath {
    /// Its name.
    profile: String,
}

/// What a change made, or would make, of a profile.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ProfileChanged {
    /// The profile as it is now; absent where it is gone, or not there yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileResource>,
    /// What the change does to the gateway.
    plan: ChangePlan,
    /// Whether nothing was changed.
    dry_run: bool,
}

/// The operations on profiles.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/profiles",
            get_with(list, |op| op.id("listProfiles"))
                .post_with(create, |op| op.id("createProfile")),
        )
        .api_route(
            "/api/v1/profiles/{profile}",
            get_with(show, |op| op.id("getProfile"))
                .put_with(replace, |op| op.id("replaceProfile"))
                .patch_with(patch, |op| op.id("patchProfile"))
                .delete_with(delete, |op| op.id("deleteProfile")),
        )
}

/// Lists the profiles.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<ProfileResource>>, Problem> {
    let shown = ShownEntries::read(&state, EntrySection::Profiles);
    page.page(&names(&shown), |name| resource(&shown, name))
        .map(Json)
}

/// Shows a profile.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    InPath(path): InPath<ProfilePath>,
) -> Result<WithEtag<ProfileResource>, Problem> {
    let shown = ShownEntries::read(&state, EntrySection::Profiles);
    find(&shown, &path.profile)?;
    Ok(WithEtag {
        etag: shown.etag(&path.profile),
        body: resource(&shown, &path.profile),
    })
}

/// Makes a profile.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    QueryParams(run): QueryParams<DryRun>,
    JsonBody(new): JsonBody<NewProfile>,
) -> Result<Created<ProfileChanged>, Problem> {
    let name = ProfileName::parse(&new.name)
        .map_err(|invalid| Problem::new(ProblemType::Unprocessable, invalid.to_string()))?;
    let change = EntryChange {
        key: EntryKey::new(EntrySection::Profiles, name.as_str()),
        document: Some(new.config.to_string()),
        precondition: EntryPrecondition::Absent,
    };
    let body = change_profile(&state, &caller, &change, (run.dry_run, "added")).await?;
    let location = (!run.dry_run).then(|| format!("/api/v1/profiles/{}", name.as_str()));
    Ok(Created { body, location })
}

/// Replaces what a profile says.
pub(super) async fn replace(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<ProfilePath>,
    options: ChangeOptions,
    JsonBody(document): JsonBody<Value>,
) -> Result<WithEtag<ProfileChanged>, Problem> {
    edit_profile(&state, &caller, (&path, options), |_| document).await
}

/// Changes some of what a profile says, as a JSON merge patch (RFC 7396): null removes a key.
pub(super) async fn patch(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<ProfilePath>,
    options: ChangeOptions,
    JsonBody(changes): JsonBody<Value>,
) -> Result<WithEtag<ProfileChanged>, Problem> {
    let edit = |mut document: Value| {
        entries::merge_patch(&mut document, changes);
        document
    };
    edit_profile(&state, &caller, (&path, options), edit).await
}

/// Removes a profile.
pub(super) async fn delete(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<ProfilePath>,
    options: ChangeOptions,
) -> Result<WithEtag<ProfileChanged>, Problem> {
    find(
        &ShownEntries::read(&state, EntrySection::Profiles),
        &path.profile,
    )?;
    let change = EntryChange {
        key: EntryKey::new(EntrySection::Profiles, path.profile),
        document: None,
        precondition: options.precondition,
    };
    change_profile(&state, &caller, &change, (options.dry_run, "removed")).await
}

/// Makes what `edit` says of the document of a profile.
async fn edit_profile(
    state: &ApiState,
    caller: &ApiCaller,
    (path, options): (&ProfilePath, ChangeOptions),
    edit: impl FnOnce(Value) -> Value,
) -> Result<WithEtag<ProfileChanged>, Problem> {
    find(
        &ShownEntries::read(state, EntrySection::Profiles),
        &path.profile,
    )?;
    let (change, detail) = EntryEdit {
        key: EntryKey::new(EntrySection::Profiles, &*path.profile),
        mask: mask_document,
        precondition: options.precondition,
    }
    .to_change(state, edit);
    change_profile(state, caller, &change, (options.dry_run, &detail)).await
}

/// Makes `change`, or says what it would do.
async fn change_profile(
    state: &ApiState,
    caller: &ApiCaller,
    change: &EntryChange,
    run: (bool, &str),
) -> Result<WithEtag<ProfileChanged>, Problem> {
    let plan = make_change(state, caller, change, run).await?;
    let shown = ShownEntries::read(state, EntrySection::Profiles);
    let name = &change.key.name;
    let profile = find(&shown, name).ok().map(|()| resource(&shown, name));
    let body = ProfileChanged {
        profile,
        plan,
        dry_run: run.0,
    };
    Ok(WithEtag {
        etag: shown.etag(name),
        body,
    })
}

/// The names of all, also of those that do not count.
fn names(shown: &ShownEntries) -> Vec<String> {
    let running = shown.config.profiles.keys();
    shown.names(running.map(|name| name.as_str().to_owned()))
}

/// That there is a profile `name`.
fn find(shown: &ShownEntries, name: &str) -> Result<(), Problem> {
    let found = names(shown).iter().any(|known| known == name);
    let missing = || Problem::not_found(format_args!("profile `{name}`"));
    found.then_some(()).ok_or_else(missing)
}

fn resource(shown: &ShownEntries, name: &str) -> ProfileResource {
    let parsed = ProfileName::parse(name).ok();
    let running = parsed.and_then(|name| shown.config.profiles.get(&name));
    let config = match (shown.counted(name), running) {
        (Some(stored), _) => mask_document(&stored.entry.document),
        (None, Some(profile)) => profile.to_display(),
        (None, None) => Value::Null,
    };
    ProfileResource {
        name: name.to_owned(),
        source: shown.source(name),
        config,
        reason: shown.fault(name),
    }
}
