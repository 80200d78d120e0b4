//! From the config as written to the one that runs: values are parsed, defaults filled in, and
//! keys checked against each other.
//!
//! Every function here takes one section, reports all that is wrong with it and goes on; what it
//! returns after a mistake is never used. Shape and types were checked before (`validate`).

use std::{
    fmt::Display,
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread::available_parallelism,
    time::Duration,
};

use super::{
    Config, InvalidLogFilter, Limits, Listen, LoadScope, LogConfig, Naming, SocketConfig, Tls,
    check_log_filter,
    diagnostics::report::{ConfigTexts, Diagnostic, Diagnostics},
    file, listen_address,
    node::{Node, ValuePath},
    units::{Size, Time},
};

mod env_file;
mod governance;
mod hidden_paths;
mod items;
mod key_strength;
pub(super) mod log_filter;
mod namespaces;
mod policy_methods;
mod replicas;
mod server;
mod transport;
mod unvalidated_arguments;

pub(super) use server::IDLE_TIMEOUT;
pub(crate) use transport::with_scheme;

/// The longest time a key may name: what is longer is a slip of the unit.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The largest number of bytes a key may name.
const SIZE_MAX: u64 = 1 << 30;

/// More memory than machines have.
const MEMORY_MAX: u64 = 1 << 44;

/// The deepest JSON that `serde_json` reads.
const DEPTH_MAX: usize = 128;

/// More calls than a process has room for.
const CALLS_MAX: usize = 1_000_000;

/// More threads than any machine this runs on has cores.
const WORKERS_MAX: usize = 1024;

/// Shorter names leave no room beside the hash of nine characters; longer ones no client takes.
const NAME_LENGTHS: std::ops::RangeInclusive<usize> = 16..=128;

/// The files that a config names; a test or a dry run has its own answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileAccess {
    /// Whether one is there.
    pub(super) is_file: fn(&Path) -> bool,
    /// The text of one.
    pub(super) read: fn(&Path) -> io::Result<String>,
}

/// What resolving needs beside the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolveContext<'s> {
    pub(super) sources: &'s ConfigTexts,
    /// The files that the config is read from.
    pub(super) config_files: &'s [PathBuf],
    pub(super) files: FileAccess,
    /// Which servers need all that they name.
    pub(super) scope: LoadScope<'s>,
    /// Where state is kept unless the config says; `None` when the user has no home.
    pub(super) data_dir: Option<&'s Path>,
    /// Whether a file could not be read, so that what is missing may stand there.
    pub(super) is_incomplete: bool,
}

/// Resolves `file`, whose places stand in `tree`.
pub(super) fn config(
    file: file::ConfigFile,
    tree: &Node,
    context: ResolveContext<'_>,
    diagnostics: &mut Diagnostics,
) -> Config {
    let root = ValuePath::root(tree);
    let at = |key| root.child(key);
    let mut resolver = Resolver {
        context,
        findings: diagnostics,
        named_files: Vec::new(),
    };
    let is_anonymous = governance::is_anonymous(&file, &root) && !context.is_incomplete;
    if is_anonymous {
        resolver.warn_of_unreachable_agents(&root);
    }
    let names: Vec<String> = file.profiles.keys().cloned().collect();
    let tags: Vec<String> = file
        .servers
        .values()
        .flat_map(|it| it.tags.clone())
        .collect();
    let config = Config {
        listen: resolver.listen(&file, is_anonymous, &root),
        admin_listen: resolver.admin_listen(&file, is_anonymous, &root),
        socket: resolver.socket(file.socket, &at("socket")),
        danger_listen_without_auth: file.danger_listen_without_auth,
        port_search: file.port_search,
        allowed_hosts: resolver.allowed_hosts(file.allowed_hosts, &at("allowed_hosts")),
        allowed_origins: resolver.allowed_origins(file.allowed_origins, &at("allowed_origins")),
        workers: resolver.workers(file.workers, &at("workers")),
        log: resolver.log(file.log, &at("log")),
        tls: file.tls.map(|tls| resolver.tls(&tls, &at("tls"))),
        limits: resolver.limits(&file.limits, &at("limits")),
        locality: file.locality.clone(),
        keep_alive: resolver.time(file.keep_alive, Duration::from_secs(1), &at("keep_alive")),
        first_list_wait: resolver.time(
            file.first_list_wait,
            Duration::ZERO,
            &at("first_list_wait"),
        ),
        drain_timeout: resolver.time(file.drain_timeout, Duration::ZERO, &at("drain_timeout")),
        request_state_ttl: resolver.time(
            file.request_state_ttl,
            Duration::from_secs(1),
            &at("request_state_ttl"),
        ),
        session_idle_timeout: resolver.time(
            file.session_idle_timeout,
            Duration::from_secs(1),
            &at("session_idle_timeout"),
        ),
        list_page_size: Some(file.list_page_size).filter(|size| *size > 0),
        naming: resolver.naming(&file.naming, &at("naming")),
        data_dir: resolver.data_dir(file.data_dir.as_deref(), &at("data_dir")),
        governance: resolver.governance(file.governance, &file.agents, &root),
        audit: resolver.audit(file.audit, &at("audit")),
        agents: resolver.agents(file.agents, &names, &at("agents")),
        profiles: resolver.profiles(file.profiles, &tags, &at("profiles")),
        servers: resolver.servers(file.servers, file.locality.as_deref(), &at("servers")),
        files: context.config_files.to_vec(),
        named_files: resolver.named_files,
    };
    namespaces::check(&config, &root, resolver.findings);
    unvalidated_arguments::check(&config, &root, resolver.findings);
    policy_methods::check(&config, &root, resolver.findings);
    hidden_paths::check(&config, &root, resolver.findings);
    config
}

struct Resolver<'r> {
    context: ResolveContext<'r>,
    findings: &'r mut Diagnostics,
    /// Those that were looked for.
    named_files: Vec<PathBuf>,
}

impl Resolver<'_> {
    fn listen(
        &mut self,
        file: &file::ConfigFile,
        is_anonymous: bool,
        root: &ValuePath<'_>,
    ) -> Listen {
        let at = root.child("listen");
        let listen = self.address(&file.listen, (file, is_anonymous), &at);
        if file.tls.is_some() && listen.socket().is_some() {
            let what = "`tls` cannot be combined with a Unix socket";
            self.findings.add(
                Diagnostic::error(what)
                    .at(
                        at.span(),
                        "traffic on a Unix socket does not leave the machine",
                    )
                    .help("remove `tls`, or listen on an address"),
            );
        }
        let port = listen.address().map_or(0, |address| address.port());
        if port.checked_add(file.port_search).is_none() {
            let at = root.child("port_search");
            self.report_invalid(&at, "exceeds port 65535");
        }
        listen
    }

    fn admin_listen(
        &mut self,
        file: &file::ConfigFile,
        is_anonymous: bool,
        root: &ValuePath<'_>,
    ) -> Option<Listen> {
        let at = root.child("admin_listen");
        let written = file.admin_listen.as_deref()?;
        Some(self.address(written, (file, is_anonymous), &at))
    }

    /// Where `written` says to listen.
    fn address(
        &mut self,
        written: &str,
        (file, is_anonymous): (&file::ConfigFile, bool),
        at: &ValuePath<'_>,
    ) -> Listen {
        let address = match listen_address(written) {
            Ok(Listen::Address(address)) => address,
            Ok(Listen::Unix(path)) => return Listen::Unix(self.path(&path.to_string_lossy(), at)),
            Err(unusable) => {
                let written = quoted_or_hidden(written, at);
                self.findings.add(
                    Diagnostic::error(format!("{written} is not an address and port"))
                        .at(at.span(), unusable.expected())
                        .help(format!("write \"{}\"", unusable.suggestion)),
                );
                return unusable.suggestion;
            }
        };
        let is_open = !address.ip().to_canonical().is_loopback() && is_anonymous;
        if is_open && !file.danger_listen_without_auth {
            self.findings.add(
                Diagnostic::error(format!("{address} is reachable from other machines"))
                    .at(at.span(), "without authentication")
                    .help(
                        "listen on 127.0.0.1, set `auth = \"keys\"` in `[governance]`, or set \
                         `danger_listen_without_auth = true`",
                    ),
            );
        }
        Listen::Address(address)
    }

    fn socket(&mut self, socket: file::SocketSection, at: &ValuePath<'_>) -> SocketConfig {
        let mode = u32::from_str_radix(&socket.mode, 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777 && mode & 0o200 != 0);
        if mode.is_none() {
            let why = "expected an octal mode with owner write permission, such as \"0600\"";
            self.report_invalid(&at.child("mode"), why);
        }
        SocketConfig {
            mode: mode.unwrap_or(0o600),
            uids: socket.uids,
        }
    }

    fn allowed_hosts(&mut self, hosts: Vec<String>, at: &ValuePath<'_>) -> Vec<String> {
        for (index, host) in hosts.iter().enumerate() {
            let is_name =
                host.parse::<http::uri::Authority>().is_ok() && !host.contains(['@', '*', '/']);
            if !is_name {
                self.findings.add(
                    Diagnostic::error(format!(
                        "`{}` must be a host name",
                        at.item_at(index).path()
                    ))
                    .at(at.item_at(index).span(), "not a host name")
                    .help("use a form such as `gateway.example.com`: no scheme, path or `*`"),
                );
            }
        }
        hosts
    }

    fn allowed_origins(&mut self, origins: Vec<String>, at: &ValuePath<'_>) -> Vec<String> {
        for (index, origin) in origins.iter().enumerate() {
            if !is_origin(origin) {
                self.findings.add(
                    Diagnostic::error(format!("`{}` must be an origin", at.item_at(index).path()))
                        .at(at.item_at(index).span(), "not an origin")
                        .help(
                            "use a scheme and host without a path, such as \
                            `https://app.example.com`, or `*`",
                        ),
                );
            }
        }
        origins
    }

    fn workers(&mut self, workers: Option<usize>, at: &ValuePath<'_>) -> usize {
        match workers {
            Some(workers) => self.check_range(workers, 1, WORKERS_MAX, at),
            // Programs that it starts, the store and the audit run beside it; and calls that meet on
            // one worker cost less than calls that are spread over more.
            None => available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
        }
    }

    fn log(&mut self, log: file::LogSection, at: &ValuePath<'_>) -> LogConfig {
        let at = at.child("level");
        if let Err(InvalidLogFilter { suggestion: close }) = check_log_filter(&log.level) {
            self.findings.add(
                Diagnostic::error(format!(
                    "{} is not a log level or filter",
                    quoted_or_hidden(&log.level, &at)
                ))
                .at(
                    at.span(),
                    close.map_or("not supported".to_owned(), |close| {
                        format!("did you mean \"{close}\"?")
                    }),
                )
                .help(log_filter::LOG_FILTER_HELP),
            );
        }
        LogConfig {
            level: log.level,
            format: log.format,
        }
    }

    fn tls(&mut self, tls: &file::TlsSection, at: &ValuePath<'_>) -> Tls {
        Tls {
            cert: self.existing_file(&tls.cert, &at.child("cert")),
            key: self.existing_file(&tls.key, &at.child("key")),
        }
    }

    fn existing_file(&mut self, written: &str, at: &ValuePath<'_>) -> PathBuf {
        let path = self.path(written, at);
        self.named_files.push(path.clone());
        if !(self.context.files.is_file)(&path) {
            self.findings.add(
                Diagnostic::error(format!("the file of `{}` does not exist", at.path()))
                    .at(at.span(), "no such file")
                    .help_if(
                        at.is_quotable()
                            .then(|| format!("searched for {}", path.display())),
                    ),
            );
        }
        path
    }

    /// `written` as a path; a relative one starts at the folder of the file it is written in.
    fn path(&mut self, written: &str, at: &ValuePath<'_>) -> PathBuf {
        if written.starts_with('~') {
            self.findings.add(
                Diagnostic::error(format!("`{}` begins with `~`", at.path()))
                    .at(at.span(), "not expanded: no shell is involved")
                    .help_if(
                        at.is_quotable().then(|| {
                            format!("use \"${{HOME}}{}\"", written.trim_start_matches('~'))
                        }),
                    ),
            );
        }
        let source = at.span().map(|span| self.context.sources.get(span.source));
        let path = source.map_or_else(|| written.into(), |source| source.base_dir().join(written));
        // Only where the directory of the process is gone does it stay relative.
        std::path::absolute(&path).unwrap_or(path)
    }

    fn data_dir(&mut self, written: Option<&str>, at: &ValuePath<'_>) -> PathBuf {
        match (written, self.context.data_dir) {
            (Some(""), _) => {
                self.findings.add(
                    Diagnostic::error(format!("`{}` is empty", at.path()))
                        .at(at.span(), "set a directory, or remove the key"),
                );
                PathBuf::new()
            }
            (Some(written), _) => self.path(written, at),
            (None, Some(default)) => default.to_owned(),
            (None, None) => {
                if !at.is_written() && !self.context.is_incomplete {
                    self.findings.add(
                        Diagnostic::error("no default data directory")
                            .help("set `data_dir`: this user has no home directory"),
                    );
                }
                PathBuf::new()
            }
        }
    }

    fn limits(&mut self, limits: &file::LimitsSection, at: &ValuePath<'_>) -> Limits {
        Limits {
            connections: self.concurrency_limit(limits.connections, &at.child("connections")),
            connections_per_address: self.concurrency_limit(
                limits.connections_per_address,
                &at.child("connections_per_address"),
            ),
            bytes_in_flight: limits
                .bytes_in_flight
                .map(|size| self.memory_bytes(size, &at.child("bytes_in_flight"))),
            headers_timeout: self.time(
                limits.headers_timeout,
                Duration::from_millis(100),
                &at.child("headers_timeout"),
            ),
            body_rate_min: self.size_or_zero(limits.body_rate_min, &at.child("body_rate_min")),
            body_grace: self.time(limits.body_grace, Duration::ZERO, &at.child("body_grace")),
            unauthenticated_body: self.size_or_zero(
                limits.unauthenticated_body,
                &at.child("unauthenticated_body"),
            ),
            body: self.size(limits.body, &at.child("body")),
            headers: self.size(limits.headers, &at.child("headers")),
            depth: self.check_range(limits.depth, 8, DEPTH_MAX, &at.child("depth")),
            sessions_per_agent: self.check_range(
                limits.sessions_per_agent,
                1,
                usize::MAX,
                &at.child("sessions_per_agent"),
            ),
            in_flight_per_agent: self
                .concurrency_limit(limits.in_flight_per_agent, &at.child("in_flight_per_agent")),
        }
    }

    /// A number of what may be under way at once.
    fn concurrency_limit(
        &mut self,
        written: Option<usize>,
        at: &ValuePath<'_>,
    ) -> Option<NonZeroUsize> {
        NonZeroUsize::new(self.check_range(written?, 1, CALLS_MAX, at))
    }

    fn naming(&mut self, naming: &file::NamingSection, at: &ValuePath<'_>) -> Naming {
        self.template(&naming.template, &at.child("template"));
        let (min, max) = NAME_LENGTHS.into_inner();
        Naming {
            template: naming.template.clone(),
            charset: naming.charset,
            max_length: self.check_range(naming.max_length, min, max, &at.child("max_length")),
            conflict: naming.conflict,
            namespace_resources: naming.namespace_resources,
        }
    }

    fn template(&mut self, template: &str, at: &ValuePath<'_>) {
        let literal = template.replace("{server}", "").replace("{tool}", "");
        let stray = literal.chars().find(|c| !is_name_char(*c));
        let label = if template.matches("{tool}").count() != 1 {
            "`{tool}` must occur exactly once".to_owned()
        } else if template.matches("{server}").count() > 1 {
            "`{server}` may occur at most once".to_owned()
        } else if literal.contains(['{', '}']) {
            "only the placeholders `{server}` and `{tool}` are supported".to_owned()
        } else if let Some(stray) = stray {
            format!("names cannot have `{}`", stray.escape_default())
        } else {
            return;
        };
        self.findings.add(
            Diagnostic::error(format!(
                "{} is not a valid name template",
                quoted_or_hidden(template, at)
            ))
            .at(at.span(), label)
            .help("for example \"mcp_{server}_{tool}\", \"{server}.{tool}\" or \"{tool}\""),
        );
    }

    /// A time of at least `min`.
    fn time(&mut self, time: Time, min: Duration, at: &ValuePath<'_>) -> Duration {
        if time.0 < min || time.0 > TIME_MAX {
            let label = format!(
                "must be between {} and {}",
                Time(min),
                humantime::format_duration(TIME_MAX)
            );
            self.report_invalid(at, &label);
        }
        time.0
    }

    fn size(&mut self, size: Size, at: &ValuePath<'_>) -> usize {
        self.check_range(size, Size(Size::KIB), Size(SIZE_MAX), at);
        usize::try_from(size.0).unwrap_or(usize::MAX)
    }

    /// A part of the memory of a machine.
    fn memory_bytes(&mut self, size: Size, at: &ValuePath<'_>) -> usize {
        self.check_range(size, Size(Size::KIB), Size(MEMORY_MAX), at);
        usize::try_from(size.0).unwrap_or(usize::MAX)
    }

    /// A size that may be zero.
    fn size_or_zero(&mut self, size: Size, at: &ValuePath<'_>) -> usize {
        self.check_range(size, Size(0), Size(SIZE_MAX), at);
        usize::try_from(size.0).unwrap_or(usize::MAX)
    }

    /// `value`, which is reported unless it is between `min` and `max`.
    fn check_range<T: Copy + Display + PartialOrd>(
        &mut self,
        value: T,
        min: T,
        max: T,
        at: &ValuePath<'_>,
    ) -> T {
        if value < min {
            self.report_invalid(at, &format!("must be at least {min}"));
        } else if !(min..=max).contains(&value) {
            self.report_invalid(at, &format!("must be at most {max}"));
        }
        value
    }

    /// Reports a value that its key does not allow.
    fn report_invalid(&mut self, at: &ValuePath<'_>, label: &str) {
        let diagnostic = Diagnostic::error(format!("`{}` is out of range", at.path()));
        self.findings.add(diagnostic.at(at.span(), label));
    }
}

/// `*`, or scheme and authority alone, as browsers send them.
fn is_origin(text: &str) -> bool {
    if text == "*" || text == "null" {
        return true;
    }
    let Some((scheme, authority)) = text.split_once("://") else {
        return false;
    };
    !scheme.is_empty()
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && authority.parse::<http::uri::Authority>().is_ok()
        && !authority.contains(['@', '*'])
}

/// The characters of tool names (specification 2025-11-25, tool names).
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}

/// `` `text` ``, or words in its place where it may not be shown.
fn quoted_or_hidden(text: &str, at: &ValuePath<'_>) -> String {
    if at.is_quotable() {
        format!("`{text}`")
    } else {
        format!("the value of `{}`", at.path())
    }
}
