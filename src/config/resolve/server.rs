//! One server.

use std::time::Duration;

use indexmap::IndexMap;

use super::{Resolver, quoted_or_hidden};
use crate::{
    config::{
        Isolation, Root, Server, Transport, diagnostics::report::Diagnostic, file,
        model::items::ItemKindSection, node::ValuePath, units::Time,
    },
    names::ServerName,
};

impl Resolver<'_> {
    pub(super) fn servers(
        &mut self,
        servers: IndexMap<String, file::ServerSection>,
        locality: Option<&str>,
        at: &ValuePath<'_>,
    ) -> IndexMap<ServerName, Server> {
        let mut resolved = IndexMap::new();
        for (name, server) in servers {
            let at = at.child(&name);
            match ServerName::parse(&name) {
                Ok(name) => {
                    if let Some(mut server) = self.server(server, locality, &at) {
                        if name.is_of_agent() {
                            set_agent_defaults(&mut server, &at);
                        }
                        resolved.insert(name, server);
                    }
                }
                Err(error) => self.findings.add(
                    Diagnostic::error("invalid server name")
                        .at(at.key_span(), error.to_string())
                        .help("names are part of URLs: for example `aws-s3`"),
                ),
            }
        }
        resolved
    }

    /// `None` when it is not said how the server is reached.
    fn server(
        &mut self,
        server: file::ServerSection,
        locality: Option<&str>,
        at: &ValuePath<'_>,
    ) -> Option<Server> {
        let replicas = self.replicas(&server, locality, at);
        let transport = match replicas.first() {
            Some(first) => Some(first.transport.clone()),
            None if at.child("replicas").has_content() => None,
            None => self.transport(&server.transport, server.server.enabled, at),
        };
        let file::ServerSection {
            idle_timeout,
            max_total_timeout,
            server,
            ..
        } = server;
        self.check_server(&server, at);
        self.check_routes(&server.route, &replicas, &at.child("route"));
        let total = max_total_timeout.map(|total| total.0);
        let is_program = matches!(transport, Some(Transport::Stdio(_)));
        Some(Server {
            max_total_timeout: self.max_total_timeout(total, server.timeout, at),
            idle_timeout: idle_timeout.map_or(Server::IDLE_TIMEOUT, |idle| idle.0),
            sleeps: idle_timeout.is_some() && is_program,
            forward_headers: self.forward_headers(&server.forward_headers, at),
            replicas,
            transport: transport?,
            ..server
        })
    }

    /// Reports what is wrong with a server, wherever it runs.
    fn check_server(&mut self, server: &Server, at: &ValuePath<'_>) {
        self.check_namespace(server.namespace.as_deref(), &at.child("namespace"));
        self.check_tags(&server.tags, &at.child("tags"));
        for (index, root) in server.roots.iter().flatten().enumerate() {
            self.check_root(root, &at.child("roots").item_at(index));
        }
        for (key, rules, kind) in [
            ("tools", &server.tools, ItemKindSection::Tools),
            ("resources", &server.resources, ItemKindSection::Resources),
            ("prompts", &server.prompts, ItemKindSection::Prompts),
        ] {
            self.check_renames(&rules.rename, kind, &at.child(key).child("rename"));
        }
        let (retry, ejection) = (&server.retry, &server.ejection);
        let retry_at = at.child("retry");
        self.check_base_below_max((retry.base, retry.max), "delays grow", &retry_at);
        let ejection_at = at.child("ejection");
        self.check_base_below_max((ejection.base, ejection.max), "delays double", &ejection_at);
        if let Some(scan) = &server.scan {
            self.check_scan(scan, &at.child("scan"));
        }
    }

    fn max_total_timeout(
        &mut self,
        written: Option<Duration>,
        timeout: Duration,
        server: &ValuePath<'_>,
    ) -> Duration {
        let Some(total) = written else {
            return timeout.max(Server::MAX_TOTAL_TIMEOUT);
        };
        let at = server.child("max_total_timeout");
        if total < timeout {
            self.findings.add(
                Diagnostic::error(format!("`{}` is less than `timeout`", at.path()))
                    .at(at.span(), "would end every call first")
                    .at(
                        server
                            .child("timeout")
                            .span()
                            .filter(|_| server.child("timeout").is_written()),
                        "is longer",
                    )
                    .help(format!("`timeout` is {}; use at least that", Time(timeout))),
            );
        }
        total
    }

    /// Reports a `base` that is longer than its `max`, since what is `meant` grows from one to the
    /// other.
    fn check_base_below_max(
        &mut self,
        times: (Duration, Duration),
        meant: &str,
        at: &ValuePath<'_>,
    ) {
        let (base, max) = times;
        if base <= max {
            return;
        }
        let (base_at, max_at) = (at.child("base"), at.child("max"));
        let first = if base_at.is_written() {
            &base_at
        } else {
            &max_at
        };
        self.findings.add(
            Diagnostic::error(format!("`{}` is longer than `max`", base_at.path()))
                .at(
                    first.span(),
                    format!("base is {}, max is {}", Time(base), Time(max)),
                )
                .help(format!("{meant} from `base` to `max`")),
        );
    }

    fn check_namespace(&mut self, namespace: Option<&str>, at: &ValuePath<'_>) {
        if let Some(Err(error)) = namespace.map(ServerName::parse_local) {
            self.findings.add(
                Diagnostic::error(format!(
                    "`{}` must follow the rules of server names",
                    at.path()
                ))
                .at(at.span(), error.to_string())
                .help("for example \"aws-s3\""),
            );
        }
    }

    fn check_tags(&mut self, tags: &[String], at: &ValuePath<'_>) {
        for (index, _) in tags
            .iter()
            .enumerate()
            .filter(|(_, tag)| tag.trim().is_empty())
        {
            self.findings.add(
                Diagnostic::error(format!("`{}` is empty", at.item_at(index).path()))
                    .at(at.item_at(index).span(), "use a word, or remove it"),
            );
        }
    }

    fn check_root(&mut self, root: &Root, at: &ValuePath<'_>) {
        let named = at.child("uri");
        let at = if named.is_written() { &named } else { at };
        if !root.uri.starts_with("file:///") {
            self.findings.add(
                Diagnostic::error(format!(
                    "{} is not a `file:` URI",
                    quoted_or_hidden(&root.uri, at)
                ))
                .at(at.span(), "roots are local directories")
                .help(root_help(&root.uri)),
            );
        }
    }
}

/// Of a server that an agent owns each of its sessions has a process, and nothing runs between them.
fn set_agent_defaults(server: &mut Server, at: &ValuePath<'_>) {
    if !at.child("isolation").is_written() {
        server.isolation = Isolation::Session;
    }
    server.sleeps |= matches!(server.transport, Transport::Stdio(_));
}

fn root_help(written: &str) -> String {
    match written.strip_prefix('/') {
        Some(path) => format!("use \"file:///{path}\""),
        None => "for example \"file:///home/me/project\"".to_owned(),
    }
}
