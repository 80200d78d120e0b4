//! What workspace admins may write of servers: where they are reached, with which credentials, and what of them is
//! shown.
//!
//! Nothing starts programs, reads files, or hands on tokens of callers. Their URLs lead to public addresses.

use serde_json::{Value, json};

use super::{caller::ApiCaller, entries::differing_keys, problem::Problem};
use crate::{
    config::Role,
    config_change::EntryChange,
    names::{ServerName, ServerOwner},
    store::StoredEntry,
};

/// The keys of a server that a workspace admin may change.
const KEYS: [&str; 10] = [
    "auth",
    "connect_timeout",
    "enabled",
    "headers",
    "idle_timeout",
    "max_total_timeout",
    "startup_timeout",
    "timeout",
    "tools",
    "url",
];

/// Where URLs stand that are connected to.
const URLS: [&str; 3] = ["/url", "/auth/issuer", "/auth/idp"];

/// Checks that `caller` may make a server of this name.
///
/// # Errors
/// The owner is not the workspace of a workspace admin.
pub(super) fn check_owner(caller: &ApiCaller, name: &ServerName) -> Result<(), Problem> {
    let is_its_own = match name.owner() {
        ServerOwner::Workspace(workspace) => caller.sees_team(Some(workspace.as_str())),
        ServerOwner::Gateway | ServerOwner::Agent(_) => caller.sees_team(None),
    };
    if is_its_own {
        return Ok(());
    }
    let team = caller.agent.team.as_deref().unwrap_or("WORKSPACE");
    Err(Problem::forbidden(format!(
        "a workspace admin makes servers of its own workspace: `{}@{team}`",
        name.local()
    )))
}

/// Checks that `caller` may make `change` to `stored`, and lets the URLs of a workspace admin lead to public addresses,
/// unless an admin said otherwise.
///
/// # Errors
/// Which key is not for a workspace admin.
pub(super) fn restrict(
    caller: &ApiCaller,
    stored: Option<&StoredEntry>,
    change: &mut EntryChange,
) -> Result<(), Problem> {
    if caller.role != Role::WorkspaceAdmin {
        return Ok(());
    }
    let old = stored.and_then(|stored| serde_json::from_str(&stored.entry.document).ok());
    let old: Value = old.unwrap_or_else(|| json!({}));
    let Some(document) = &mut change.document else {
        return check_removal(&old);
    };
    let mut new: Value = serde_json::from_str(document).unwrap_or_default();
    // Whoever replaces the rest need not know of it.
    if let (Some(kept), Some(entry)) = (old.get("egress"), new.as_object_mut()) {
        entry.entry("egress").or_insert_with(|| kept.clone());
    }
    let foreign = differing_keys(&old, &new).find(|key| !KEYS.contains(key));
    if let Some(key) = foreign.or_else(|| admins_part(&old, &new)) {
        let keys = KEYS.join("`, `");
        return Err(Problem::forbidden(format!(
            "only an admin sets `{key}`; a workspace admin sets `{keys}`"
        )));
    }
    let is_url_new = URLS
        .into_iter()
        .any(|path| old.pointer(path) != new.pointer(path));
    if let (true, Some(entry)) = (is_url_new, new.as_object_mut()) {
        entry.entry("egress").or_insert_with(|| "public".into());
    }
    *document = new.to_string();
    Ok(())
}

/// Refuses to remove an entry of which an admin said something: it could be made anew without that. To lift the limit
/// on addresses is none.
fn check_removal(old: &Value) -> Result<(), Problem> {
    let nothing = json!({});
    let mut keys = differing_keys(&nothing, old);
    let foreign = keys.find(|key| !KEYS.contains(key) && *key != "egress");
    let priced = old.pointer("/tools/price").map(|_| "tools.price");
    match foreign.or(priced) {
        None => Ok(()),
        Some(key) => Err(Problem::forbidden(format!(
            "an admin has set `{key}` of it, which would be lost: disable it, or have an admin remove it"
        ))),
    }
}

/// What is an admin's of the keys that differ: prices, which budgets count, and where to send what is not the
/// workspace's, such as tokens of callers or what is signed with a file of the gateway.
fn admins_part(old: &Value, new: &Value) -> Option<&'static str> {
    let differs = |path: &str| old.pointer(path) != new.pointer(path);
    let has = |path: &str, is_meant: fn(&Value) -> bool| {
        let mut found = [old, new].into_iter().filter_map(|it| it.pointer(path));
        found.any(is_meant)
    };
    if differs("/tools/price") {
        return Some("tools.price");
    }
    if !differs("/url") && !differs("/auth") {
        return None;
    }
    let hands_on: fn(&Value) -> bool = |grant| grant == "token_exchange" || grant == "id_jag";
    [
        ("auth.grant", has("/auth/grant", hands_on)),
        ("auth.private_key", has("/auth/private_key", |_| true)),
        ("forward_headers", has("/forward_headers", |_| true)),
        ("tls", has("/tls", |_| true)),
    ]
    .into_iter()
    .find_map(|(key, is_there)| is_there.then_some(key))
}
