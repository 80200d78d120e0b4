//! Secrets of the store: which there are and what uses them. Their values are set and never shown.

use std::{collections::BTreeMap, sync::Arc};

use aide::axum::{ApiRouter, routing::get_with, routing::put_with};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use super::{
    ApiState, agents,
    caller::{ApiCaller, Manager},
    input::{DryRun, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
};
use crate::{
    audit::{ChangedValues, EventKind},
    clock,
    config::{Secret, check_secret_value},
    names::{SecretName, ServerOwner},
    sealing::SealingKey,
    store::{SECRETS_PURPOSE, Store, StoredSecret, secret_place},
};

/// How many characters at the end of a value are shown.
const SHOWN_CHARS: usize = 4;
/// The least characters of a value of which some are shown: the others are many enough to be guessed by nobody.
const SHOWN_FROM_CHARS: usize = 20;

/// A secret as the API shows it.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(super) struct SecretResource {
    /// Its name; the owner stands behind an `@`, where that is not the gateway.
    name: String,
    /// When it was first set, RFC 3339; `null`: something uses it, and nobody has set it.
    created: Option<String>,
    /// When it was last set, RFC 3339.
    changed: Option<String>,
    /// The last four characters of its value; `null` where it has fewer than 20, or cannot be read.
    last_characters: Option<String>,
    /// The keys of the config that use it, such as `servers.docs.auth.token`.
    used_by: Vec<String>,
}

/// The value of a secret that is to be set.
#[derive(Clone, Debug, JsonSchema)]
pub(super) struct SentSecret {
    /// The value: text of at most 64 KiB.
    #[schemars(with = "String", length(min = 1))]
    value: Secret,
}

/// What a mistake is must not be told with what was sent.
impl<'de> Deserialize<'de> for SentSecret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut sent = Value::deserialize(from)?;
        let keys = sent.as_object().map_or(0, serde_json::Map::len);
        match sent.get_mut("value").map(Value::take) {
            Some(Value::String(value)) if keys == 1 => Ok(Self {
                value: Secret::new(value),
            }),
            _ => Err(de::Error::custom(
                "send the value as text: `{\"value\": \"...\"}`",
            )),
        }
    }
}

/// Which secret a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct SecretPath {
    /// Its name, with its owner; a `/` in it is `%2F`.
    secret: String,
}

/// What a change made, or would make, of a secret.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct SecretChanged {
    /// The secret as it is now.
    secret: SecretResource,
    /// Whether nothing was changed.
    dry_run: bool,
}

/// The operations on secrets.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route("/api/v1/secrets", get_with(list, |op| op.id("listSecrets")))
        .api_route(
            "/api/v1/secrets/{secret}",
            put_with(set, |op| op.id("setSecret")).delete_with(delete, |op| op.id("deleteSecret")),
        )
}

/// Lists the secrets, also those that something uses and nobody has set; a workspace admin has its workspace's.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<SecretResource>>, Problem> {
    let mut secrets = known_secrets(&state).await?;
    secrets.retain(|name, _| owns(&caller, name));
    let names: Vec<&str> = secrets.keys().map(SecretName::as_str).collect();
    let mut chosen = page.page(&names, |name| {
        let found = secrets.iter().find(|(known, _)| known.as_str() == *name);
        found.map(|(_, secret)| secret.clone()).unwrap_or_default()
    })?;
    let store = store_of(&state)?;
    // Without the key nothing is readable; whoever sets one is told.
    if let Ok(Some(key)) = store.opening_key(SECRETS_PURPOSE).await {
        for secret in &mut chosen.items {
            secret.last_characters = last_characters(store, &key, &secret.name).await?;
        }
    }
    Ok(Json(chosen))
}

/// Sets a secret, new or not. Running gateways make the connections of the servers that use it anew. A workspace admin
/// sets those of its workspace.
pub(super) async fn set(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<SecretPath>,
    QueryParams(run): QueryParams<DryRun>,
    JsonBody(sent): JsonBody<SentSecret>,
) -> Result<Json<SecretChanged>, Problem> {
    let unusable = |why: String| Problem::new(ProblemType::Unprocessable, why);
    let name = SecretName::parse(&path.secret).map_err(|why| unusable(why.to_string()))?;
    if !owns(&caller, &name) {
        let team = caller.agent.team.as_deref().unwrap_or("WORKSPACE");
        let why = format!("a workspace admin sets secrets of its own workspace: `NAME@{team}`");
        return Err(Problem::forbidden(why));
    }
    let value = check_secret_value(sent.value.expose());
    let value = value.map_err(|why| unusable(format!("the value cannot be used: {why}")))?;
    let _changing = state.agent_changes.lock().await;
    let known = known_secrets(&state).await?;
    let is_known = known.get(&name).is_some_and(|it| it.created.is_some());
    if !run.dry_run {
        let store = store_of(&state)?;
        let key = store.sealing_key(SECRETS_PURPOSE).await?;
        let sealed = key.seal(&secret_place(&name), value.as_bytes());
        let sealed =
            sealed.map_err(|error| Problem::new(ProblemType::InternalError, error.to_string()))?;
        store.secrets.set(&name, &sealed, clock::now()).await?;
        let done = if is_known { "changed" } else { "set" };
        record_and_apply(&state, &caller, (&name, done)).await?;
    }
    let secret = known_secrets(&state).await?.remove(&name);
    Ok(Json(SecretChanged {
        secret: secret.unwrap_or_default(),
        dry_run: run.dry_run,
    }))
}

/// Removes a secret that nothing uses.
pub(super) async fn delete(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<SecretPath>,
    QueryParams(run): QueryParams<DryRun>,
) -> Result<Json<SecretChanged>, Problem> {
    let missing = || Problem::not_found(format_args!("secret `{}`", path.secret));
    let name = SecretName::parse(&path.secret).map_err(|_| missing())?;
    let _changing = state.agent_changes.lock().await;
    let known = known_secrets(&state).await?.remove(&name);
    let known = known.filter(|secret| secret.created.is_some() && owns(&caller, &name));
    let secret = known.ok_or_else(missing)?;
    if !secret.used_by.is_empty() {
        let users = secret.used_by.join("`, `");
        let detail = format!("the secret `{name}` is used by `{users}`: change these first");
        return Err(Problem::new(ProblemType::InUse, detail));
    }
    if !run.dry_run {
        store_of(&state)?.secrets.remove(&name).await?;
        record_and_apply(&state, &caller, (&name, "removed")).await?;
    }
    Ok(Json(SecretChanged {
        secret,
        dry_run: run.dry_run,
    }))
}

/// Whether `caller` sets and sees the secret.
fn owns(caller: &ApiCaller, name: &SecretName) -> bool {
    match name.owner() {
        ServerOwner::Workspace(workspace) => caller.sees_team(Some(workspace.as_str())),
        ServerOwner::Gateway | ServerOwner::Agent(_) => caller.sees_team(None),
    }
}

/// All that the store has or the config uses, by name.
async fn known_secrets(state: &ApiState) -> Result<BTreeMap<SecretName, SecretResource>, Problem> {
    let mut known: BTreeMap<SecretName, SecretResource> = BTreeMap::new();
    let mut add = |name: &SecretName, change: &dyn Fn(&mut SecretResource)| {
        let secret = known.entry(name.clone()).or_default();
        name.as_str().clone_into(&mut secret.name);
        change(secret);
    };
    for StoredSecret {
        name,
        created,
        changed,
    } in store_of(state)?.secrets.secrets().await?
    {
        add(&name, &|secret| {
            secret.created = Some(created.to_string());
            secret.changed = Some(changed.to_string());
        });
    }
    for used in &state.writer.running().secrets.uses.0 {
        add(&used.name, &|secret| secret.used_by.push(used.path.clone()));
    }
    Ok(known)
}

async fn last_characters(
    store: &Store,
    key: &SealingKey,
    name: &str,
) -> Result<Option<String>, Problem> {
    let Ok(name) = SecretName::parse(name) else {
        return Ok(None);
    };
    let Some(sealed) = store.secrets.sealed(&name).await? else {
        return Ok(None);
    };
    let value = key.open(&secret_place(&name), &sealed).ok();
    let value = value.and_then(|value| String::from_utf8(value).ok());
    Ok(value.and_then(|value| {
        let hidden = value.chars().count().checked_sub(SHOWN_CHARS)?;
        let is_long = hidden >= SHOWN_FROM_CHARS - SHOWN_CHARS;
        is_long.then(|| value.chars().skip(hidden).collect())
    }))
}

fn store_of(state: &ApiState) -> Result<&Store, Problem> {
    let detail = "this gateway has no store to keep secrets in; see `data_dir`";
    let store = state.store.as_ref();
    store.ok_or_else(|| Problem::new(ProblemType::InternalError, detail))
}

async fn record_and_apply(
    state: &ApiState,
    caller: &ApiCaller,
    (name, done): (&SecretName, &str),
) -> Result<(), Problem> {
    let governance = state.proxy.governance();
    let record = (&*caller.actor(), done);
    let (event, changes) = (EventKind::SecretChanged, ChangedValues::default());
    let recorded = governance.record_change(event, name.as_str(), record, changes);
    let recorded = recorded.durable().await;
    agents::apply(state).await?;
    Ok(recorded?)
}
