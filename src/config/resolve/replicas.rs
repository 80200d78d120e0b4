//! Several instances of one server, and which calls go to which.

use super::{Resolver, quote};
use crate::config::{
    Condition, ReplicaConfig, RouteConfig, diagnostics::report::Diagnostic, file, node::ValuePath,
};

/// Keys of a server that say how it is reached, which replicas say themselves.
const REACH_KEYS: [&str; 10] = [
    "args",
    "auth",
    "command",
    "cwd",
    "env",
    "env_file",
    "headers",
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
            self.no_effect(at, "a server without `replicas`", &REPLICA_KEYS);
            return Vec::new();
        }
        for key in REACH_KEYS.iter().map(|key| at.key(key)) {
            if key.has_content() {
                self.findings.add(
                    Diagnostic::mistake(format!("`{}` stands beside `replicas`", key.path()))
                        .at(key.key_span(), "how one server is reached")
                        .at(at.key("replicas").key_span(), "how several are")
                        .help("write it into each of the replicas that needs it"),
                );
            }
        }
        let all = at.key("replicas");
        let mut resolved: Vec<ReplicaConfig> = Vec::new();
        for (index, replica) in server.replicas.iter().enumerate() {
            let item = all.item(index);
            let number = || (index + 1).to_string();
            let name = replica.name.clone().unwrap_or_else(number);
            if resolved.iter().any(|other| other.name == name) {
                self.findings.add(
                    Diagnostic::mistake(format!("two replicas are called {}", quote(&name, &item)))
                        .at(item.key("name").span(), "this one")
                        .help("give each its own name"),
                );
            }
            let Some(transport) = self.transport(&reached_like(replica, server.enabled), &item)
            else {
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

    pub(super) fn routes(
        &mut self,
        routes: Vec<file::RouteSection>,
        replicas: &[ReplicaConfig],
        at: &ValuePath<'_>,
    ) -> Vec<RouteConfig> {
        let mut resolved = Vec::new();
        for (index, route) in routes.into_iter().enumerate() {
            let item = at.item(index);
            let is_known = replicas.iter().any(|replica| {
                replica.name == route.to || replica.locality.as_ref() == Some(&route.to)
            });
            if !is_known && !replicas.is_empty() {
                let to = item.key("to");
                self.findings.add(
                    Diagnostic::mistake(format!("`{}` names no replica", to.path()))
                        .at(
                            to.span().or(item.whole_span()),
                            "neither the name nor the locality of one",
                        )
                        .help("calls that the rule is about could go nowhere"),
                );
            }
            resolved.push(self.route(route, &item));
        }
        resolved
    }

    fn route(&mut self, route: file::RouteSection, at: &ValuePath<'_>) -> RouteConfig {
        let rule = file::ArgumentRuleSection {
            name: route.to.clone(),
            tools: Vec::new(),
            at: route.at.clone().unwrap_or_default(),
            equals: route.equals,
            one_of: route.one_of,
            matches: route.matches,
            min: route.min,
            max: route.max,
            action: crate::config::ArgumentAction::Refuse,
            observe: false,
        };
        self.pointer(&rule.at, &at.key("at"));
        let condition = self.condition(&rule, at);
        if route.at.is_some() && condition == Condition::default() {
            self.findings.add(
                Diagnostic::mistake(format!("`{}` has no condition", at.path()))
                    .at(at.key("at").key_span(), "nothing is asked of this argument")
                    .help("write `equals`, `one_of`, `matches`, `min` or `max`"),
            );
        }
        let tools = route.tools.unwrap_or_else(|| vec!["*".to_owned()]);
        RouteConfig {
            tools: self.globs(&tools, &at.key("tools")),
            at: rule.at,
            condition,
            to: route.to,
        }
    }
}

/// A server that is reached like a replica.
fn reached_like(replica: &file::ReplicaSection, enabled: bool) -> file::ServerSection {
    let replica = replica.clone();
    file::ServerSection {
        command: replica.command,
        args: replica.args,
        env: replica.env,
        env_file: replica.env_file,
        cwd: replica.cwd,
        user: replica.user,
        url: replica.url,
        headers: replica.headers,
        auth: replica.auth,
        transport: replica.transport,
        enabled,
        ..file::ServerSection::default()
    }
}
