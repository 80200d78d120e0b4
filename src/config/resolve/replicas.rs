//! Several instances of one server, and which calls go to which.

use super::{Resolver, quoted_or_hidden};
use crate::config::{
    Condition, ReplicaConfig, RouteConfig, diagnostics::report::Diagnostic, file, node::ValuePath,
};

/// Keys of a server that say how it is reached, which replicas say themselves.
pub(in crate::config) const TRANSPORT_KEYS: [&str; 14] = [
    "args",
    "auth",
    "command",
    "cwd",
    "egress",
    "env",
    "env_file",
    "headers",
    "inherit_env",
    "proxy",
    "tls",
    "transport",
    "url",
    "user",
];

/// Keys that are about replicas alone.
const REPLICA_KEYS: [&str; 2] = ["balance", "route"];

impl Resolver<'_> {
    /// The replicas of `server`; none after a mistake in how one is reached.
    pub(super) fn replicas(
        &mut self,
        server: &file::ServerSection,
        locality: Option<&str>,
        at: &ValuePath<'_>,
    ) -> Vec<ReplicaConfig> {
        if server.replicas.is_empty() {
            self.warn_of_unused_keys(at, "a server without `replicas`", &REPLICA_KEYS);
            return Vec::new();
        }
        for key in TRANSPORT_KEYS.iter().map(|key| at.child(key)) {
            if key.has_content() {
                self.findings.add(
                    Diagnostic::error(format!(
                        "`{}` cannot be combined with \
                        `replicas`",
                        key.path()
                    ))
                    .at(key.key_span(), "describes a single server")
                    .at(at.child("replicas").key_span(), "describes several servers")
                    .help("set it in each replica that needs it"),
                );
            }
        }
        let all = at.child("replicas");
        let mut resolved: Vec<ReplicaConfig> = Vec::new();
        for (index, replica) in server.replicas.iter().enumerate() {
            let item = all.item_at(index);
            let number = || (index + 1).to_string();
            let name = replica.name.clone().unwrap_or_else(number);
            if resolved.iter().any(|other| other.name == name) {
                self.findings.add(
                    Diagnostic::error(format!(
                        "duplicate replica name \
                        {}",
                        quoted_or_hidden(&name, &item)
                    ))
                    .at(item.child("name").span(), "this one")
                    .help("use unique names"),
                );
            }
            self.check_replica_auth(&item);
            let is_enabled = server.server.enabled;
            let Some(transport) = self.transport(&replica.transport, is_enabled, &item) else {
                continue;
            };
            let place = replica.locality.as_deref();
            resolved.push(ReplicaConfig {
                is_near: place.is_some() && place == locality,
                locality: replica.locality.clone(),
                name,
                transport,
            });
        }
        resolved
    }

    pub(super) fn check_routes(
        &mut self,
        routes: &[RouteConfig],
        replicas: &[ReplicaConfig],
        at: &ValuePath<'_>,
    ) {
        for (index, route) in routes.iter().enumerate() {
            let item = at.item_at(index);
            let is_known = replicas.iter().any(|replica| {
                replica.name == route.to || replica.locality.as_ref() == Some(&route.to)
            });
            if !is_known && !replicas.is_empty() {
                let to = item.child("to");
                self.findings.add(
                    Diagnostic::error(format!("`{}` does not match any replica", to.path()))
                        .at(
                            to.span().or(item.full_span()),
                            "not the name or locality of any replica",
                        )
                        .help("matching calls would have no replica"),
                );
            }
            self.check_pointer(&route.at, &item.child("at"));
            self.check_condition(&route.condition, &item);
            if item.child("at").is_written() && route.condition == Condition::default() {
                self.findings.add(
                    Diagnostic::error(format!("`{}` has no condition", item.path()))
                        .at(item.child("at").key_span(), "the rule has no condition")
                        .help("add `equals`, `one_of`, `matches`, `min` or `max`"),
                );
            }
        }
    }
}
