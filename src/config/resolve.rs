//! From the config as written to the one that runs: what depends on the machine or on other keys is
//! filled in, and keys are checked against each other.
//!
//! Every function here takes one section, reports all that is wrong with it and goes on; what it
//! returns after a mistake is never used. Shape, types and bounds were checked before (`validate`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::available_parallelism,
};

use super::{
    Config, DisplayOnly, Egress, EgressTarget, EntryOrigins, InvalidLogFilter, Listen, LoadScope,
    LogConfig, SecretKeyPlace, SecretUse, Secrets, SocketConfig, Tls, check_log_filter,
    diagnostics::report::{ConfigTexts, Diagnostic, Diagnostics},
    file,
    file_access::FileAccess,
    listen_address,
    node::{Node, Span, ValuePath},
};

mod env_file;
mod forward_headers;
mod governance;
mod hidden_paths;
mod identity;
mod items;
mod key_strength;
pub(super) mod log_filter;
mod namespaces;
mod oauth_grant;
mod policy_methods;
mod replicas;
mod server;
mod transport;
mod unvalidated_arguments;
mod way_out;

pub(super) use replicas::TRANSPORT_KEYS;
pub(crate) use transport::with_scheme;

/// What resolving needs beside the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolveContext<'s> {
    pub(super) sources: &'s ConfigTexts,
    /// The files that the config is read from.
    pub(super) config_files: &'s [PathBuf],
    pub(super) files: FileAccess,
    pub(super) environment: &'s crate::config::Environment,
    /// Which servers need all that they name.
    pub(super) scope: LoadScope<'s>,
    /// Where state is kept unless the config says; `None` when the user has no home.
    pub(super) data_dir: Option<&'s Path>,
    /// Whether a file could not be read, so that what is missing may stand there.
    pub(super) is_incomplete: bool,
    /// Where secrets of the store stand.
    pub(super) secret_uses: &'s [SecretUse],
}

/// Resolves `file`, whose places stand in `tree`.
pub(super) fn config(
    mut file: file::ConfigFile,
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
        path_spans: Vec::new(),
        egress_allow: file.egress.allow.clone().into(),
    };
    let is_anonymous = governance::is_anonymous(&file, &root) && !context.is_incomplete;
    if is_anonymous {
        resolver.warn_of_unreachable_agents(&root);
    }
    resolver.add_workspace_members(&file.workspaces, &mut file.agents.by_name, &root);
    let known = (&file.agents.by_name, &file.workspaces);
    let names: Vec<String> = file.profiles.keys().cloned().collect();
    let servers = file.servers.values();
    let tags: Vec<String> = servers.flat_map(|it| it.server.tags.clone()).collect();
    resolver.check_log(&file.log, &at("log"));
    resolver.check_template(&file.naming.template, &at("naming").child("template"));
    resolver.check_allowed_hosts(&file.allowed_hosts, &at("allowed_hosts"));
    resolver.check_identity(&file, &root);
    resolver.check_allowed_origins(&file.allowed_origins, &at("allowed_origins"));
    let mut config = Config {
        listen: resolver.listen(&file, is_anonymous, &root),
        admin_listen: resolver.admin_listen(&file, is_anonymous, &root),
        socket: resolver.socket(file.socket, &at("socket")),
        danger_listen_without_auth: file.danger_listen_without_auth,
        port_search: file.port_search,
        public_url: resolver.public_url(file.public_url.as_deref(), &at("public_url")),
        data_dir: resolver.data_dir(file.data_dir.as_deref(), &at("data_dir")),
        allowed_hosts: file.allowed_hosts,
        allowed_origins: file.allowed_origins,
        workers: file.workers.unwrap_or_else(default_workers),
        keep_alive: file.keep_alive,
        first_list_wait: file.first_list_wait,
        drain_timeout: file.drain_timeout,
        request_state_ttl: file.request_state_ttl,
        session_idle_timeout: file.session_idle_timeout,
        list_page_size: Some(file.list_page_size).filter(|size| *size > 0),
        log: file.log,
        tls: file.tls.map(|tls| resolver.tls(&tls, &at("tls"))),
        limits: file.limits,
        egress: Egress {
            proxies: resolver.environment_proxies(),
            ..file.egress
        },
        oauth: file.oauth,
        views: file.views,
        jwt: file.jwt,
        naming: file.naming,
        governance: resolver.governance(file.governance, known, &root),
        audit: file.audit,
        agent_matches: resolver.agent_matches(
            file.agents.rules,
            (&file.agents.by_name, &names),
            &at("agents"),
        ),
        agents: resolver.agents(file.agents.by_name, &names, &at("agents")),
        profiles: resolver.profiles(file.profiles, &tags, &at("profiles")),
        secrets: resolver.secrets(file.secrets, &at("secrets")),
        servers: resolver.servers(file.servers, file.locality.as_deref(), &at("servers")),
        workspaces: resolver.workspaces(file.workspaces, &root),
        locality: file.locality,
        entries: EntryOrigins::with_paths(resolver.path_spans),
        files: context.config_files.to_vec(),
        named_files: resolver.named_files,
    };
    check_whole(&mut config, &root, resolver.findings);
    config
}

/// Finds what is wrong with sections together.
fn check_whole(config: &mut Config, root: &ValuePath<'_>, findings: &mut Diagnostics) {
    namespaces::check(config, root, findings);
    unvalidated_arguments::check(config, root, findings);
    policy_methods::check(config, root, findings);
    hidden_paths::check(config, root, findings);
}

/// How a certificate begins in PEM (RFC 7468, section 5.1).
const CERTIFICATE_LABEL: &str = "-----BEGIN CERTIFICATE-----";

struct Resolver<'r> {
    context: ResolveContext<'r>,
    findings: &'r mut Diagnostics,
    /// Those that were looked for.
    named_files: Vec<PathBuf>,
    /// Where paths are written.
    path_spans: Vec<Span>,
    /// The targets of `egress.allow`, which hold for servers too.
    egress_allow: Arc<[EgressTarget]>,
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

    fn check_allowed_hosts(&mut self, hosts: &[String], at: &ValuePath<'_>) {
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
    }

    fn check_allowed_origins(&mut self, origins: &[String], at: &ValuePath<'_>) {
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
    }

    fn check_log(&mut self, log: &LogConfig, at: &ValuePath<'_>) {
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
    }

    fn tls(&mut self, tls: &file::TlsSection, at: &ValuePath<'_>) -> Tls {
        Tls {
            cert: self.certificates_file(&tls.cert, &at.child("cert")),
            key: self.existing_file(&tls.key, &at.child("key")),
            client_ca: tls
                .client_ca
                .as_deref()
                .map(|file| self.certificates_file(file, &at.child("client_ca"))),
        }
    }

    /// A file in which there is a certificate at least; whoever uses it says what else is wrong.
    fn certificates_file(&mut self, written: &str, at: &ValuePath<'_>) -> PathBuf {
        let path = self.existing_file(written, at);
        let files = self.context.files;
        let text = files.are_real.then(|| (files.read)(&path).ok()).flatten();
        if text.is_some_and(|text| !text.contains(CERTIFICATE_LABEL)) {
            let message = format!("the file of `{}` contains no PEM certificate", at.path());
            self.findings.add(
                Diagnostic::error(message)
                    .at(at.span(), "no certificate in it")
                    .help(format!("a certificate begins with `{CERTIFICATE_LABEL}`")),
            );
        }
        path
    }

    /// Where the key of secrets stands, and which secrets are used.
    fn secrets(&mut self, section: Secrets, at: &ValuePath<'_>) -> Secrets {
        let is_needed = self.context.scope != LoadScope::DataDir;
        let key_file = section.key_file.map(|path| {
            let (written, at) = (path.to_string_lossy(), at.child("key_file"));
            // Most commands about the data directory need no secrets; others say that the key cannot be read.
            if is_needed {
                self.existing_file(&written, &at)
            } else {
                self.path(&written, &at)
            }
        });
        let ResolveContext {
            environment, files, ..
        } = self.context;
        let key = SecretKeyPlace::find(key_file.clone(), environment, files.is_file);
        self.named_files.extend(key.file().map(Path::to_owned));
        Secrets {
            key_file,
            key,
            uses: DisplayOnly(self.context.secret_uses.to_vec()),
            exec: section.exec,
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
        let is_foreign = at
            .span()
            .is_some_and(|span| self.context.sources.get(span.source).is_foreign);
        if written.starts_with('~') && !is_foreign {
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
        self.path_spans.extend(at.span());
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

    fn check_template(&mut self, template: &str, at: &ValuePath<'_>) {
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

    /// Reports a value that its key does not allow.
    fn report_invalid(&mut self, at: &ValuePath<'_>, label: &str) {
        let diagnostic = Diagnostic::error(format!("`{}` is out of range", at.path()));
        self.findings.add(diagnostic.at(at.span(), label));
    }
}

/// Half of the cores: programs that it starts, the store and the audit run beside it; and calls that
/// meet on one worker cost less than calls that are spread over more.
fn default_workers() -> usize {
    available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
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
