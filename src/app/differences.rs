//! In what a changed config differs from the one that runs, beside its servers and what is fixed.
//!
//! Told by names alone: terms can hold secrets.

use std::{fmt::Display, hash::Hash};

use indexmap::IndexMap;

use crate::config::{Agent, Config, Governance, Profile, Terms};

/// A key, and whether both say the same of it.
type Key = (&'static str, bool);

/// In what `new` differs from `old`, for people.
pub(super) fn differences(old: &Config, new: &Config) -> Vec<String> {
    // Whole, here and below, so that a new key cannot be forgotten.
    let Config {
        listen: _,
        danger_listen_without_auth,
        port_search: _,
        allowed_hosts,
        allowed_origins,
        workers: _,
        log: _,
        tls: _,
        locality,
        limits,
        keep_alive,
        first_list_wait,
        drain_timeout,
        request_state_ttl,
        session_idle_timeout,
        list_page_size,
        naming,
        data_dir: _,
        governance,
        audit,
        agents,
        profiles,
        servers: _,
        named_files: _,
    } = old;
    let mut told = by_name("agents", agents, &new.agents, of_agent);
    told.extend(by_name("profiles", profiles, &new.profiles, of_profile));
    let is_open = *danger_listen_without_auth == new.danger_listen_without_auth;
    let settings = [
        ("allowed_hosts", *allowed_hosts == new.allowed_hosts),
        ("allowed_origins", *allowed_origins == new.allowed_origins),
        ("audit", *audit == new.audit),
        ("danger_listen_without_auth", is_open),
        ("drain_timeout", *drain_timeout == new.drain_timeout),
        ("first_list_wait", *first_list_wait == new.first_list_wait),
        ("keep_alive", *keep_alive == new.keep_alive),
        ("limits", *limits == new.limits),
        ("list_page_size", *list_page_size == new.list_page_size),
        ("locality", *locality == new.locality),
        ("naming", *naming == new.naming),
        (
            "request_state_ttl",
            *request_state_ttl == new.request_state_ttl,
        ),
        (
            "session_idle_timeout",
            *session_idle_timeout == new.session_idle_timeout,
        ),
    ];
    let mut changed: Vec<String> = changed(settings).map(str::to_owned).collect();
    let governing = of_governance(governance, &new.governance);
    changed.extend(governing.iter().map(|key| format!("governance.{key}")));
    changed.sort_unstable();
    if !changed.is_empty() {
        told.push(format!("changed: {}", changed.join(", ")));
    }
    told
}

/// Those of `keys` that are not alike.
fn changed(keys: impl IntoIterator<Item = Key>) -> impl Iterator<Item = &'static str> {
    let changed = keys.into_iter().filter(|(_, is_same)| !is_same);
    changed.map(|(key, _)| key)
}

fn of_governance(old: &Governance, new: &Governance) -> Vec<&'static str> {
    let Governance {
        auth,
        is_auth_written,
        errors,
        error_codes,
        price,
        charge_errors,
        teams,
        terms,
    } = old;
    let is_auth_same = (*auth, *is_auth_written) == (new.auth, new.is_auth_written);
    let own = [
        ("auth", is_auth_same),
        ("charge_errors", *charge_errors == new.charge_errors),
        ("error_codes", *error_codes == new.error_codes),
        ("errors", *errors == new.errors),
        ("price", *price == new.price),
        ("teams", *teams == new.teams),
    ];
    differing(own, terms, &new.terms)
}

fn of_agent(old: &Agent, new: &Agent) -> Vec<&'static str> {
    let Agent {
        id,
        name: _,
        team,
        enabled,
        admin,
        keys,
        profiles,
        terms,
    } = old;
    let own = [
        ("admin", *admin == new.admin),
        ("enabled", *enabled == new.enabled),
        ("id", *id == new.id),
        ("keys", *keys == new.keys),
        ("profiles", *profiles == new.profiles),
        ("team", *team == new.team),
    ];
    differing(own, terms, &new.terms)
}

fn of_profile(old: &Profile, new: &Profile) -> Vec<&'static str> {
    let Profile {
        tools,
        prompts,
        resources,
        tags,
        rename,
        describe,
        terms,
    } = old;
    let own = [
        ("describe", *describe == new.describe),
        ("prompts", *prompts == new.prompts),
        ("rename", *rename == new.rename),
        ("resources", *resources == new.resources),
        ("tags", *tags == new.tags),
        ("tools", *tools == new.tools),
    ];
    differing(own, terms, &new.terms)
}

/// Those of a section's `own` keys, and of the terms in it, that are not alike.
fn differing<const N: usize>(own: [Key; N], old: &Terms, new: &Terms) -> Vec<&'static str> {
    let Terms {
        policy,
        budget,
        rate,
        tool_rate,
        scan,
        args,
        observe,
    } = old;
    let terms = [
        ("args", *args == new.args),
        ("budget", *budget == new.budget),
        ("observe", *observe == new.observe),
        ("policy", *policy == new.policy),
        ("rate", *rate == new.rate),
        ("scan", *scan == new.scan),
        ("tool_rate", *tool_rate == new.tool_rate),
    ];
    let mut changed: Vec<_> = changed(own.into_iter().chain(terms)).collect();
    changed.sort_unstable();
    changed
}

/// Which of the `what` came, differ and went; `keys` says in which of them one differs.
fn by_name<K, V>(
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
