//! Prefixes of exposed names: no two servers that run may have the same.

use std::collections::HashMap;

use crate::{
    config::{
        Charset, Config, Server,
        diagnostics::report::{Diagnostic, Diagnostics},
        node::ValuePath,
    },
    names::{ServerName, to_strict_char, uri_prefix},
};

/// Reports servers whose names or URIs nobody could tell apart.
pub(super) fn check(config: &Config, root: &ValuePath<'_>, diagnostics: &mut Diagnostics) {
    let servers = root.child("servers");
    let mut report = |kind: &str, prefix: &str, first: &ServerName, second: &ServerName| {
        diagnostics.add(
            Diagnostic::error(format!(
                "`{first}` and `{second}` have the same {kind} `{prefix}`"
            ))
            .at(servers.child(second.as_str()).key_span(), "this server")
            .at(servers.child(first.as_str()).key_span(), "and this one")
            .help("rename one, or set a different `namespace`"),
        );
    };
    let mut names: HashMap<String, &ServerName> = HashMap::new();
    let mut uris: HashMap<String, &ServerName> = HashMap::new();
    for (name, server) in config.servers.iter().filter(|(_, server)| server.enabled) {
        let shown = namespace_of(name, server);
        let in_names = name_prefix(shown, config.naming.charset);
        let clashes_in_names = config.naming.template.contains("{server}")
            && match names.insert(in_names.clone(), name) {
                Some(other) => {
                    report("name prefix", &in_names, other, name);
                    true
                }
                None => false,
            };
        let in_uris = uri_prefix(shown);
        if config.naming.namespace_resources
            && let Some(other) = uris.insert(in_uris.clone(), name)
            && !clashes_in_names
        {
            report("URI prefix", &in_uris, other, name);
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
