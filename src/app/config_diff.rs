//! In what a changed config differs from the one that runs, beside its servers and what is fixed.
//!
//! Told by names alone: terms can hold secrets.

use std::{fmt::Display, hash::Hash};

use indexmap::IndexMap;

use crate::config::{AgentConfig, Config, GovernanceConfig, Profile, Terms, Workspace};

/// A key, and whether both say the same of it.
type KeyComparison = (&'static str, bool);

/// These fields of a struct as keys, each with whether `$old` and `$new` say the same of it. With those
/// that are left out they are all that there are: a new one cannot be forgotten.
macro_rules! keys {
    ($of:ident, $old:expr, $new:expr; $($key:ident),*; but $($other:ident),*) => {{
        let $of { $($key: _,)* $($other: _,)* } = $old;
        [$((stringify!($key), $old.$key == $new.$key)),*]
    }};
}

/// In what `new` differs from `old`, for people.
pub(super) fn differences(old: &Config, new: &Config) -> Vec<String> {
    let mut differences = named_differences("agents", &old.agents, &new.agents, of_agent);
    let profiles = named_differences("profiles", &old.profiles, &new.profiles, of_profile);
    differences.extend(profiles);
    let (before, after) = (&old.workspaces, &new.workspaces);
    let workspaces = named_differences("workspaces", before, after, of_workspace);
    differences.extend(workspaces);
    let are_matches_same = old.agent_matches == new.agent_matches;
    let settings = keys!(
        Config, old, new;
        allowed_hosts, allowed_origins, audit, danger_listen_without_auth, drain_timeout, egress,
        first_list_wait, jwt, keep_alive, limits, list_page_size, locality, naming, oauth, public_url,
        request_state_ttl, secrets, session_idle_timeout, views;
        but admin_listen, agent_matches, agents, data_dir, entries, files, governance, listen, log, named_files,
        port_search, profiles,
        servers, socket, tls, workers, workspaces
    );
    let settings = settings
        .into_iter()
        .chain([("agents.match", are_matches_same)]);
    let mut changed: Vec<String> = changed(settings).map(str::to_owned).collect();
    let governing = of_governance(&old.governance, &new.governance);
    changed.extend(governing.iter().map(|key| format!("governance.{key}")));
    changed.sort_unstable();
    if !changed.is_empty() {
        differences.push(format!("changed: {}", changed.join(", ")));
    }
    differences
}

/// Those of `keys` that are not alike.
fn changed(keys: impl IntoIterator<Item = KeyComparison>) -> impl Iterator<Item = &'static str> {
    let changed = keys.into_iter().filter(|(_, is_same)| !is_same);
    changed.map(|(key, _)| key)
}

fn of_governance(old: &GovernanceConfig, new: &GovernanceConfig) -> Vec<&'static str> {
    let own = keys!(
        GovernanceConfig, old, new;
        auth, charge_errors, error_codes, errors, key_lifetime, price, refusal_rate, teams;
        but is_auth_written, terms
    );
    let is_auth_same = old.is_auth_written == new.is_auth_written;
    let own = own.into_iter().chain([("auth", is_auth_same)]);
    changed_keys(own, &old.terms, &new.terms)
}

fn of_agent(old: &AgentConfig, new: &AgentConfig) -> Vec<&'static str> {
    let own = keys!(
        AgentConfig, old, new;
        certificates, enabled, id, keys, profiles, role, team;
        but name, terms
    );
    changed_keys(own, &old.terms, &new.terms)
}

fn of_profile(old: &Profile, new: &Profile) -> Vec<&'static str> {
    let own = keys!(
        Profile, old, new;
        describe, prompts, rename, resources, tags, tools;
        but terms
    );
    changed_keys(own, &old.terms, &new.terms)
}

fn of_workspace(old: &Workspace, new: &Workspace) -> Vec<&'static str> {
    let own = keys!(Workspace, old, new; budget, description, members; but);
    changed(own).collect()
}

/// Those of a section's `own` keys, and of the terms in it, that are not alike, each once.
fn changed_keys(
    own: impl IntoIterator<Item = KeyComparison>,
    old: &Terms,
    new: &Terms,
) -> Vec<&'static str> {
    let terms = keys!(
        Terms, old, new;
        args, budget, observe, policy, rate, scan, tool_rate;
        but
    );
    let mut changed: Vec<_> = changed(own.into_iter().chain(terms)).collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

/// Which of the `what` came, differ and went; `keys` says in which of them one differs.
fn named_differences<K, V>(
    what: &str,
    old: &IndexMap<K, V>,
    new: &IndexMap<K, V>,
    keys: fn(&V, &V) -> Vec<&'static str>,
) -> Vec<String>
where
    K: Eq + Hash + Display,
    V: PartialEq,
{
    let (mut added, mut differ) = (Vec::new(), Vec::new());
    for (name, value) in new {
        match old.get(name) {
            None => added.push(name.to_string()),
            Some(old) if old != value => {
                differ.push(format!("{name} ({})", keys(old, value).join(", ")));
            }
            Some(_) => {}
        }
    }
    let removed = old.keys().filter(|name| !new.contains_key(*name));
    let removed: Vec<_> = removed.map(ToString::to_string).collect();
    let all = [("added", added), ("changed", differ), ("removed", removed)];
    let some = all.into_iter().filter(|(_, names)| !names.is_empty());
    some.map(|(how, names)| format!("{what} {how}: {}", names.join(", ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let old = Config::example(
            r#"
            [servers.docs]
            command = "x"
            [governance]
            auth = "keys"
            [agents.alice]
            budget = { limit = "1.00" }
            [agents.bob]
            [agents.carol]
            "#,
        );
        let new = Config::example(
            r#"
            keep_alive = "20s"
            danger_listen_without_auth = true
            [servers.docs]
            command = "x"
            [governance]
            auth = "anonymous"
            price = "0.02"
            [agents.alice]
            budget = { limit = "2.00" }
            policy = { mode = "all" }
            [agents.bob]
            [agents.dave]
            [profiles.reading]
            "#,
        );
        let expect = [
            "agents added: dave",
            "agents changed: alice (budget, policy)",
            "agents removed: carol",
            "profiles added: reading",
            "changed: danger_listen_without_auth, governance.auth, \
             governance.policy, governance.price, keep_alive",
        ];
        assert_eq!(differences(&old, &new), expect);
        assert!(differences(&new, &new).is_empty());
    }
}
