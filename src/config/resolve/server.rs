//! One server.

use std::time::Duration;

use indexmap::IndexMap;

use super::{CALLS_MAX, DEPTH_MAX, Resolver, governance::budgets, quoted_or_hidden};
use crate::{
    config::{
        BreakerConfig, Ejection, Expose, Health, MemorySize, Retry, Root, Server, ServerLimits,
        Transport,
        diagnostics::report::Diagnostic,
        file::{self, ItemKindSection},
        node::ValuePath,
        units::{Size, Time},
    },
    names::ServerName,
};

/// The least time that a timeout of a server may be.
pub(super) const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// The most that `retry.starts_per_minute` may be: when each was made is remembered.
const STARTS_PER_MINUTE_MAX: usize = 1000;

/// How long an unused connection beside the catalog's own is kept, unless it is written.
pub(in crate::config) const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Less than the smallest program uses; more than a machine has.
const MEMORY_MIN: Size = Size(Size::MIB);
const MEMORY_MAX: Size = Size(1 << 50);

/// How long one call may take even with progress, unless it is written.
const MAX_TOTAL_TIMEOUT: Duration = Duration::from_secs(10 * 60);

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
                    if let Some(server) = self.server(server, locality, &at) {
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
            None => self.transport(&server, at),
        };
        let timeout = self.timeout(server.timeout, &at.child("timeout"));
        let resolved = Server {
            era: server.era,
            enabled: server.enabled,
            namespace: self.namespace(server.namespace, &at.child("namespace")),
            expose: expose(&server.expose),
            priority: server.priority,
            tags: self.tags(server.tags, &at.child("tags")),
            roots: server
                .roots
                .map(|roots| self.roots(roots, &at.child("roots"))),
            tools: self.tool_rules(server.tools, &at.child("tools")),
            resources: self.item_rules(
                server.resources,
                ItemKindSection::Resources,
                &at.child("resources"),
            ),
            prompts: self.item_rules(
                server.prompts,
                ItemKindSection::Prompts,
                &at.child("prompts"),
            ),
            isolation: server.isolation,
            max_instances: self.check_range(
                server.max_instances,
                1,
                usize::MAX,
                &at.child("max_instances"),
            ),
            pool_size: self.check_range(server.pool_size, 1, usize::MAX, &at.child("pool_size")),
            idle_timeout: server.idle_timeout.map_or(IDLE_TIMEOUT, |idle| {
                self.timeout(idle, &at.child("idle_timeout"))
            }),
            sleeps: server.idle_timeout.is_some() && matches!(transport, Some(Transport::Stdio(_))),
            startup_timeout: self.timeout(server.startup_timeout, &at.child("startup_timeout")),
            connect_timeout: self.timeout(server.connect_timeout, &at.child("connect_timeout")),
            timeout,
            max_total_timeout: self.max_total_timeout(server.max_total_timeout, timeout, at),
            retry: self.retry(server.retry, &at.child("retry")),
            breaker: BreakerConfig {
                failures: server.breaker.failures,
                open_for: self.timeout(
                    server.breaker.open_for,
                    &at.child("breaker").child("open_for"),
                ),
            },
            health: self.health(server.health, &at.child("health")),
            grace: self.time(server.grace, Duration::ZERO, &at.child("grace")),
            limits: self.server_limits(server.limits, &at.child("limits")),
            balance: server.balance,
            ejection: self.ejection(server.ejection, &at.child("ejection")),
            route: self.routes(server.route, &replicas, &at.child("route")),
            replicas,
            validate: server.validate,
            price: server.price.map(|price| price.0),
            budget: server.budget.map(budgets).unwrap_or_default(),
            rate: server.rate.map(|rate| self.rate(rate, &at.child("rate"))),
            scan: server.scan.map(|scan| self.scan(scan, &at.child("scan"))),
            transport: transport?,
        };
        Some(resolved)
    }

    fn server_limits(
        &mut self,
        limits: file::ServerLimitsSection,
        at: &ValuePath<'_>,
    ) -> ServerLimits {
        ServerLimits {
            request: self.size(limits.request, &at.child("request")),
            response: self.size(limits.response, &at.child("response")),
            in_flight: self.concurrency_limit(limits.in_flight, &at.child("in_flight")),
            queue: self.check_range(limits.queue, 0, CALLS_MAX, &at.child("queue")),
            memory: self.memory(limits.memory, &at.child("memory")),
            item: self.size(limits.item, &at.child("item")),
            item_depth: self.check_range(limits.item_depth, 1, DEPTH_MAX, &at.child("item_depth")),
        }
    }

    fn memory(&mut self, written: Option<Size>, at: &ValuePath<'_>) -> Option<MemorySize> {
        let size = self.check_range(written?, MEMORY_MIN, MEMORY_MAX, at);
        Some(MemorySize(size.0))
    }

    fn timeout(&mut self, time: Time, at: &ValuePath<'_>) -> Duration {
        self.time(time, TIMEOUT_MIN, at)
    }

    fn max_total_timeout(
        &mut self,
        written: Option<Time>,
        timeout: Duration,
        server: &ValuePath<'_>,
    ) -> Duration {
        let Some(total) = written else {
            return timeout.max(MAX_TOTAL_TIMEOUT);
        };
        let at = server.child("max_total_timeout");
        if total.0 < timeout {
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
        self.timeout(total, &at)
    }

    /// Reports a `base` that is longer than its `max`, since what is `meant` grows from one to the
    /// other.
    fn check_base_below_max(&mut self, times: (Time, Time), meant: &str, at: &ValuePath<'_>) {
        let (base, max) = times;
        if base.0 <= max.0 {
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
                .at(first.span(), format!("base is {base}, max is {max}"))
                .help(format!("{meant} from `base` to `max`")),
        );
    }

    fn ejection(&mut self, ejection: file::EjectionSection, at: &ValuePath<'_>) -> Ejection {
        self.check_base_below_max((ejection.base, ejection.max), "delays double", at);
        Ejection {
            base: self.timeout(ejection.base, &at.child("base")),
            max: self.timeout(ejection.max, &at.child("max")),
        }
    }

    fn retry(&mut self, retry: file::RetrySection, at: &ValuePath<'_>) -> Retry {
        self.check_base_below_max((retry.base, retry.max), "delays grow", at);
        let jitter = at.child("jitter");
        Retry {
            base: self.timeout(retry.base, &at.child("base")),
            max: self.timeout(retry.max, &at.child("max")),
            jitter: self.check_range(retry.jitter, 0.0, 1.0, &jitter),
            stable_after: self.timeout(retry.stable_after, &at.child("stable_after")),
            starts_per_minute: self.check_range(
                retry.starts_per_minute,
                1,
                STARTS_PER_MINUTE_MAX,
                &at.child("starts_per_minute"),
            ),
            failed_after: self.check_range(
                retry.failed_after,
                1,
                u32::MAX,
                &at.child("failed_after"),
            ),
        }
    }

    fn health(&mut self, health: file::HealthSection, at: &ValuePath<'_>) -> Health {
        Health {
            interval: self.timeout(health.interval, &at.child("interval")),
            timeout: self.timeout(health.timeout, &at.child("timeout")),
            failures: self.check_range(health.failures, 1, u32::MAX, &at.child("failures")),
            probe: health.probe,
        }
    }

    fn namespace(&mut self, namespace: Option<String>, at: &ValuePath<'_>) -> Option<String> {
        if let Some(Err(error)) = namespace.as_deref().map(ServerName::parse) {
            self.findings.add(
                Diagnostic::error(format!(
                    "`{}` must follow the rules of server names",
                    at.path()
                ))
                .at(at.span(), error.to_string())
                .help("for example \"aws-s3\""),
            );
        }
        namespace
    }

    fn tags(&mut self, tags: Vec<String>, at: &ValuePath<'_>) -> Vec<String> {
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
        tags
    }

    fn roots(&mut self, roots: Vec<file::RootSection>, at: &ValuePath<'_>) -> Vec<Root> {
        let mut resolved = Vec::new();
        for (index, root) in roots.into_iter().enumerate() {
            let item = at.item_at(index);
            let (uri, name, at) = match root {
                file::RootSection::Uri(uri) => (uri, None, item),
                file::RootSection::Named(root) => (root.uri, root.name, item.child("uri")),
            };
            if !uri.starts_with("file:///") {
                self.findings.add(
                    Diagnostic::error(format!(
                        "{} is not a `file:` URI",
                        quoted_or_hidden(&uri, &at)
                    ))
                    .at(at.span(), "roots are local directories")
                    .help(root_help(&uri)),
                );
            }
            resolved.push(Root { uri, name });
        }
        resolved
    }
}

fn root_help(written: &str) -> String {
    match written.strip_prefix('/') {
        Some(path) => format!("use \"file:///{path}\""),
        None => "for example \"file:///home/me/project\"".to_owned(),
    }
}

fn expose(kinds: &[ItemKindSection]) -> Expose {
    Expose {
        tools: kinds.contains(&ItemKindSection::Tools),
        resources: kinds.contains(&ItemKindSection::Resources),
        prompts: kinds.contains(&ItemKindSection::Prompts),
    }
}
