//! Names of servers and prefixes of exposed names: of those that somebody sees together, no two run that have
//! the same. Everybody sees the gateway's servers, and those of one workspace or agent with them.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::{
    config::{
        Charset, Config, NameConflict, Server,
        diagnostics::report::{Diagnostic, Diagnostics},
        node::ValuePath,
    },
    names::{ServerName, to_strict_char, uri_prefix},
};

/// Finds servers whose names or URIs nobody could tell apart. Those with one prefix of names do not run, and
/// each says why, but the gateway's runs beside another's; one prefix of URIs is a mistake.
pub(super) fn check(config: &mut Config, root: &ValuePath<'_>, diagnostics: &mut Diagnostics) {
    const HELP: &str = "rename one, or set a different `namespace`";
    let servers = root.child("servers");
    let mut report = |finding: Diagnostic, first: &ServerName, second: &ServerName, help: &str| {
        diagnostics.add(
            finding
                .at(servers.child(second.as_str()).key_span(), "this server")
                .at(servers.child(first.as_str()).key_span(), "and this one")
                .help(help),
        );
    };
    for (first, second) in equal_names(config) {
        let message = format!("`{second}` has the name of `{first}`, which every agent sees");
        report(Diagnostic::error(message), first, second, "rename one");
    }
    let mut names: IndexMap<String, Vec<ServerName>> = IndexMap::new();
    let mut uris: HashMap<String, Vec<&ServerName>> = HashMap::new();
    for (name, server) in config.servers.iter().filter(|(_, server)| server.enabled) {
        let shown = namespace_of(name, server);
        let in_names = name_prefix(shown, config.naming.charset);
        let mut clashes_in_names = false;
        if config.naming.template.contains("{server}") {
            let same = names.entry(in_names).or_default();
            clashes_in_names = same.iter().any(|other| are_seen_together(other, name));
            same.push(name.clone());
        }
        let in_uris = uri_prefix(shown);
        let same = uris.entry(in_uris.clone()).or_default();
        let other = same.iter().rfind(|other| are_seen_together(other, name));
        if config.naming.namespace_resources
            && let Some(other) = other
            && !clashes_in_names
        {
            let message = format!("`{other}` and `{name}` have the same URI prefix `{in_uris}`");
            report(Diagnostic::error(message), other, name, HELP);
        }
        same.push(name);
    }
    for (prefix, same) in names.into_iter().filter(|(_, same)| same.len() > 1) {
        for (at, second) in same.iter().enumerate() {
            let Some(first) = same[..at].iter().find(|it| are_seen_together(it, second)) else {
                continue;
            };
            let outcome = match [first, second].map(ServerName::is_owned) {
                [true, false] => format!("`{first}` is not started"),
                [false, true] => format!("`{second}` is not started"),
                [true, true] | [false, false] => "neither is started".to_owned(),
            };
            let message =
                format!("`{first}` and `{second}` have the same name prefix `{prefix}`; {outcome}");
            report(Diagnostic::warning(message), first, second, HELP);
        }
        for name in &same {
            let others = same.iter().filter(|other| *other != name);
            let others = others.filter(|other| are_seen_together(other, name));
            let others = others.filter(|other| name.is_owned() || !other.is_owned());
            let others: Vec<String> = others.map(|other| format!("`{other}`")).collect();
            if let Some(server) = config.servers.get_mut(name)
                && !others.is_empty()
            {
                server.name_conflict = Some(NameConflict {
                    prefix: prefix.clone(),
                    others: others.join(", "),
                });
            }
        }
    }
}

/// Servers of workspaces and agents, each after that of the gateway whose name it has.
fn equal_names(config: &Config) -> Vec<(&ServerName, &ServerName)> {
    let of_gateway = config.servers.keys().filter(|name| !name.is_owned());
    let of_gateway: HashMap<&str, &ServerName> =
        of_gateway.map(|name| (name.as_str(), name)).collect();
    let owned = config.servers.keys().filter(|name| name.is_owned());
    let pairs = owned.filter_map(|name| Some((*of_gateway.get(name.local())?, name)));
    pairs.collect()
}

/// Whether anybody sees both servers by different names.
fn are_seen_together(first: &ServerName, second: &ServerName) -> bool {
    let is_seen = !first.is_owned() || !second.is_owned() || first.has_owner_of(second);
    is_seen && first.local() != second.local()
}

/// What stands for a server in exposed names.
fn namespace_of<'s>(name: &'s ServerName, server: &'s Server) -> &'s str {
    server.namespace.as_deref().unwrap_or(name.local())
}

/// A server's part of tool and prompt names.
fn name_prefix(name: &str, charset: Charset) -> String {
    match charset {
        Charset::Original => name.to_owned(),
        Charset::Strict => name.chars().map(to_strict_char).collect(),
    }
}
