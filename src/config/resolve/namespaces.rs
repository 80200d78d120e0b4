//! Prefixes of exposed names: no two servers run that have the same.

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
/// each says why; one prefix of URIs is a mistake.
pub(super) fn check(config: &mut Config, root: &ValuePath<'_>, diagnostics: &mut Diagnostics) {
    let servers = root.child("servers");
    let mut report = |finding: Diagnostic, first: &ServerName, second: &ServerName| {
        diagnostics.add(
            finding
                .at(servers.child(second.as_str()).key_span(), "this server")
                .at(servers.child(first.as_str()).key_span(), "and this one")
                .help("rename one, or set a different `namespace`"),
        );
    };
    let mut names: IndexMap<String, Vec<ServerName>> = IndexMap::new();
    let mut uris: HashMap<String, &ServerName> = HashMap::new();
    for (name, server) in config.servers.iter().filter(|(_, server)| server.enabled) {
        let shown = namespace_of(name, server);
        let in_names = name_prefix(shown, config.naming.charset);
        let mut clashes_in_names = false;
        if config.naming.template.contains("{server}") {
            let same = names.entry(in_names).or_default();
            clashes_in_names = !same.is_empty();
            same.push(name.clone());
        }
        let in_uris = uri_prefix(shown);
        if config.naming.namespace_resources
            && let Some(other) = uris.insert(in_uris.clone(), name)
            && !clashes_in_names
        {
            let message = format!("`{other}` and `{name}` have the same URI prefix `{in_uris}`");
            report(Diagnostic::error(message), other, name);
        }
    }
    for (prefix, same) in names.into_iter().filter(|(_, same)| same.len() > 1) {
        for second in &same[1..] {
            let first = &same[0];
            let message = format!(
                "`{first}` and `{second}` have the same name prefix `{prefix}`; neither is started"
            );
            report(Diagnostic::warning(message), first, second);
        }
        for name in &same {
            let others = same.iter().filter(|other| *other != name);
            let others: Vec<String> = others.map(|other| format!("`{other}`")).collect();
            if let Some(server) = config.servers.get_mut(name) {
                server.name_conflict = Some(NameConflict {
                    prefix: prefix.clone(),
                    others: others.join(", "),
                });
            }
        }
    }
}

/// What stands for a server in exposed names.
fn namespace_of<'s>(name: &'s ServerName, server: &'s Server) -> &'s str {
    server.namespace.as_deref().unwrap_or(name.as_str())
}

/// A server's part of tool and prompt names.
fn name_prefix(name: &str, charset: Charset) -> String {
    match charset {
        Charset::Original => name.to_owned(),
        Charset::Strict => name.chars().map(to_strict_char).collect(),
    }
}
