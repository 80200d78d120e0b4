//! A [`Config`] for people and for scripts: what would run, with secrets hidden.
//!
//! It is shown as a config file with every key, so that it can be read like one; where it has no
//! secrets, loading it again gives the same config.

use std::{fmt, num::NonZeroUsize, path::Path};

use super::{
    Auth, Config, ItemRules, Limits, LogConfig, Naming, Remote, Server, StdioCommand, Tls,
    Transport,
    diagnostics::redact,
    file::{self, ConfigFile, ItemKindSection, TransportKind},
    resolve::IDLE_TIMEOUT,
    units::{Amount, Size, Time},
};

mod governance;

/// A config as text (`Display`: TOML) or as JSON; secrets are `***`.
#[derive(Clone, Debug)]
pub struct ShownConfig {
    file: ConfigFile,
}

impl Config {
    /// What would run, secrets hidden.
    pub fn to_display(&self) -> ShownConfig {
        ShownConfig { file: file(self) }
    }
}

impl ShownConfig {
    /// The same as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(&self.file).expect("every key is a string and no number is NaN")
    }
}

impl fmt::Display for ShownConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string_pretty(&self.file).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

fn file(config: &Config) -> ConfigFile {
    let servers = config
        .servers
        .iter()
        .map(|(name, s)| (name.as_str().to_owned(), server(s)));
    ConfigFile {
        schema: None,
        listen: config.listen.to_string(),
        admin_listen: config.admin_listen.as_ref().map(ToString::to_string),
        socket: file::SocketSection {
            mode: format!("{:04o}", config.socket.mode),
            uids: config.socket.uids.clone(),
        },
        danger_listen_without_auth: config.danger_listen_without_auth,
        port_search: config.port_search,
        data_dir: Some(path(&config.data_dir)),
        allowed_hosts: config.allowed_hosts.clone(),
        allowed_origins: config.allowed_origins.clone(),
        workers: Some(config.workers),
        keep_alive: Time(config.keep_alive),
        first_list_wait: Time(config.first_list_wait),
        drain_timeout: Time(config.drain_timeout),
        request_state_ttl: Time(config.request_state_ttl),
        session_idle_timeout: Time(config.session_idle_timeout),
        list_page_size: config.list_page_size.unwrap_or(0),
        log: log(&config.log),
        tls: config.tls.as_ref().map(tls),
        locality: config.locality.clone(),
        limits: limits(&config.limits),
        naming: naming(&config.naming),
        governance: governance::governance(&config.governance),
        audit: governance::audit(&config.audit),
        agents: governance::agents(&config.agents),
        profiles: governance::profiles(&config.profiles),
        servers: servers.collect(),
    }
}

fn log(log: &LogConfig) -> file::LogSection {
    file::LogSection {
        level: log.level.clone(),
        format: log.format,
    }
}

fn tls(tls: &Tls) -> file::TlsSection {
    file::TlsSection {
        cert: path(&tls.cert),
        key: path(&tls.key),
    }
}

fn limits(limits: &Limits) -> file::LimitsSection {
    file::LimitsSection {
        connections: limits.connections.map(NonZeroUsize::get),
        connections_per_address: limits.connections_per_address.map(NonZeroUsize::get),
        bytes_in_flight: limits.bytes_in_flight.map(size),
        headers_timeout: Time(limits.headers_timeout),
        body_rate_min: size(limits.body_rate_min),
        body_grace: Time(limits.body_grace),
        unauthenticated_body: size(limits.unauthenticated_body),
        body: size(limits.body),
        headers: size(limits.headers),
        depth: limits.depth,
        sessions_per_agent: limits.sessions_per_agent,
        in_flight_per_agent: limits.in_flight_per_agent.map(NonZeroUsize::get),
    }
}

fn naming(naming: &Naming) -> file::NamingSection {
    file::NamingSection {
        template: naming.template.clone(),
        charset: naming.charset,
        max_length: naming.max_length,
        conflict: naming.conflict,
        namespace_resources: naming.namespace_resources,
    }
}

fn server(server: &Server) -> file::ServerSection {
    let mut shown = file::ServerSection {
        era: server.era,
        enabled: server.enabled,
        namespace: server.namespace.clone(),
        expose: expose(server),
        priority: server.priority,
        tags: server.tags.clone(),
        roots: server
            .roots
            .as_ref()
            .map(|roots| roots.iter().map(root).collect()),
        tools: tool_rules(&server.tools),
        resources: item_rules(&server.resources),
        prompts: item_rules(&server.prompts),
        isolation: server.isolation,
        max_instances: server.max_instances,
        pool_size: server.pool_size,
        idle_timeout: (server.sleeps || server.idle_timeout != IDLE_TIMEOUT)
            .then_some(Time(server.idle_timeout)),
        startup_timeout: Time(server.startup_timeout),
        connect_timeout: Time(server.connect_timeout),
        timeout: Time(server.timeout),
        max_total_timeout: Some(Time(server.max_total_timeout)),
        retry: file::RetrySection {
            base: Time(server.retry.base),
            max: Time(server.retry.max),
            jitter: server.retry.jitter,
            stable_after: Time(server.retry.stable_after),
            starts_per_minute: server.retry.starts_per_minute,
            failed_after: server.retry.failed_after,
        },
        breaker: file::BreakerSection {
            failures: server.breaker.failures,
            open_for: Time(server.breaker.open_for),
        },
        health: file::HealthSection {
            interval: Time(server.health.interval),
            timeout: Time(server.health.timeout),
            failures: server.health.failures,
            probe: server.health.probe,
        },
        grace: Time(server.grace),
        limits: file::ServerLimitsSection {
            request: size(server.limits.request),
            response: size(server.limits.response),
            in_flight: server.limits.in_flight.map(NonZeroUsize::get),
            queue: server.limits.queue,
            memory: server.limits.memory.map(|memory| Size(memory.0)),
            item: size(server.limits.item),
            item_depth: server.limits.item_depth,
        },
        balance: server.balance,
        ejection: file::EjectionSection {
            base: Time(server.ejection.base),
            max: Time(server.ejection.max),
        },
        route: server.route.iter().map(route).collect(),
        validate: server.validate,
        price: server.price.map(Amount),
        budget: (!server.budget.is_empty()).then(|| governance::budgets(&server.budget)),
        rate: server.rate.map(file::RateSection::of),
        scan: server.scan.as_ref().map(governance::scan),
        ..file::ServerSection::default()
    };
    if server.replicas.is_empty() {
        show_transport(&server.transport, &mut shown);
    }
    shown.replicas = server.replicas.iter().map(replica).collect();
    shown
}

fn replica(replica: &super::ReplicaConfig) -> file::ReplicaSection {
    let mut reached = file::ServerSection::default();
    show_transport(&replica.transport, &mut reached);
    file::ReplicaSection {
        name: Some(replica.name.clone()),
        locality: replica.locality.clone(),
        command: reached.command,
        args: reached.args,
        env: reached.env,
        env_file: None,
        cwd: reached.cwd,
        user: reached.user,
        url: reached.url,
        headers: reached.headers,
        auth: reached.auth,
        transport: reached.transport,
    }
}

fn route(route: &super::RouteConfig) -> file::RouteSection {
    let condition = &route.condition;
    file::RouteSection {
        tools: Some(globs(&route.tools)),
        at: (!route.at.is_empty()).then(|| route.at.clone()),
        equals: condition.equals.clone(),
        one_of: condition.one_of.clone(),
        matches: condition.matches.clone(),
        min: condition.min,
        max: condition.max,
        to: route.to.clone(),
    }
}

fn show_transport(transport: &Transport, shown: &mut file::ServerSection) {
    let kind = match transport {
        Transport::Auto(remote) => show_remote(remote, TransportKind::Auto, shown),
        Transport::Builtin => TransportKind::Builtin,
        Transport::Http(remote) => show_remote(remote, TransportKind::Http, shown),
        Transport::Sse(remote) => show_remote(remote, TransportKind::Sse, shown),
        Transport::Stdio(command) => show_command(command, shown),
        Transport::WebSocket(remote) => show_remote(remote, TransportKind::WebSocket, shown),
    };
    shown.transport = Some(kind);
}

fn show_command(command: &StdioCommand, shown: &mut file::ServerSection) -> TransportKind {
    shown.command = Some(command.program.clone());
    shown.args.clone_from(&command.shown_args.0);
    shown.env.clone_from(&command.env);
    shown.cwd = command.cwd.as_deref().map(path);
    shown.user.clone_from(&command.user);
    TransportKind::Stdio
}

fn show_remote(
    remote: &Remote,
    kind: TransportKind,
    shown: &mut file::ServerSection,
) -> TransportKind {
    let url = &remote.url;
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let scheme = url.scheme_str().unwrap_or_default();
    let place = redact::redact_urls(&format!("{scheme}://{authority}"));
    let query = url.query().map_or("", |_| "?***");
    shown.url = Some(format!("{place}{}{query}", remote.displayed_path()));
    shown.headers.clone_from(&remote.headers);
    shown.auth = match &remote.auth {
        Auth::Bearer { token } => Some(file::AuthSection::Bearer {
            token: token.clone(),
        }),
        Auth::Header { name, value } => Some(file::AuthSection::Header {
            name: name.clone(),
            value: value.clone(),
        }),
        Auth::None => None,
    };
    kind
}

fn expose(server: &Server) -> Vec<ItemKindSection> {
    let kinds = [
        (server.expose.tools, ItemKindSection::Tools),
        (server.expose.resources, ItemKindSection::Resources),
        (server.expose.prompts, ItemKindSection::Prompts),
    ];
    kinds
        .into_iter()
        .filter(|(shown, _)| *shown)
        .map(|(_, kind)| kind)
        .collect()
}

fn root(root: &super::Root) -> file::RootSection {
    match &root.name {
        None => file::RootSection::Uri(root.uri.clone()),
        Some(name) => file::RootSection::Named(file::NamedRoot {
            uri: root.uri.clone(),
            name: Some(name.clone()),
        }),
    }
}

fn tool_rules(rules: &ItemRules) -> file::ToolRules {
    let price = rules.price.iter();
    let timeout = rules.timeout.iter();
    file::ToolRules {
        items: item_rules(rules),
        price: price
            .map(|(tool, price)| (tool.clone(), Amount(*price)))
            .collect(),
        timeout: timeout
            .map(|(tool, limit)| (tool.clone(), Time(*limit)))
            .collect(),
    }
}

fn item_rules(rules: &ItemRules) -> file::ItemRulesSection {
    file::ItemRulesSection {
        allow: rules.allow.as_deref().map(globs),
        deny: globs(&rules.deny),
        rename: rules.rename.clone(),
        describe: rules.describe.clone(),
    }
}

fn globs(globs: &[globset::Glob]) -> Vec<String> {
    globs.iter().map(|glob| glob.glob().to_owned()).collect()
}

fn size(bytes: usize) -> Size {
    Size(bytes as u64)
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
