//! How a server is reached: a program, a URL, or the toolbox.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};
use indexmap::IndexMap;

use super::{Resolver, quoted_or_hidden};
use crate::config::model::environment_proxies::is_local;
use crate::config::{
    Auth, DisplayOnly, Remote, Secret, ServerEgress, StdioCommand, Transport,
    diagnostics::{ignored_keys::IgnoredKey, redact, report::Diagnostic, suggest},
    model::transport::{TransportKind, TransportSection},
    node::{Span, ValuePath},
};
use crate::names::OWNER_MARK;

/// Headers that belong to the transport; those that begin with `mcp-` do as well.
const RESERVED_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Keys that only a program has a use for.
const PROGRAM_KEYS: [&str; 6] = ["args", "cwd", "env", "env_file", "inherit_env", "user"];

/// Keys that only a URL has a use for.
const URL_KEYS: [&str; 6] = [
    "auth",
    "egress",
    "forward_headers",
    "headers",
    "proxy",
    "tls",
];

impl Resolver<'_> {
    /// `None` after a mistake, and for a disabled server that does not say.
    pub(super) fn transport(
        &mut self,
        written: &TransportSection,
        is_enabled: bool,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        let reached = self.explicit_transport(written, is_enabled, at);
        let url = at.child("url");
        let is_named = self.context.scope.is_of_data_dir() && !self.is_used(at, false);
        if reached.is_none() && is_named {
            // Nobody connects to it: what counts is that there is a server of that name.
            return Some(Transport::Builtin);
        }
        if reached.is_none()
            && url
                .span()
                .is_some_and(|url| self.findings.is_suppressed(url))
        {
            self.findings.add(
                Diagnostic::warning(format!("`{}` is skipped", at.path())).at(
                    url.key_span(),
                    "disabled, with an unset variable in its URL",
                ),
            );
        }
        reached
    }

    fn explicit_transport(
        &mut self,
        written: &TransportSection,
        is_enabled: bool,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        let (command, url) = (
            at.child("command").is_written(),
            at.child("url").is_written(),
        );
        match (command, url) {
            (true, true) => self.both_given(at),
            (true, false) => {
                self.warn_of_unused_keys(at, "a server with `command`", &URL_KEYS);
                self.stdio_transport(written, is_enabled, at)
            }
            (false, true) => {
                self.warn_of_unused_keys(at, "a server with `url`", &PROGRAM_KEYS);
                self.warn_of_unused_keys(&at.child("limits"), "a server with `url`", &["memory"]);
                self.remote_transport(written, at)
            }
            (false, false) => self.none_given(written, is_enabled, at),
        }
    }

    fn both_given(&mut self, at: &ValuePath<'_>) -> Option<Transport> {
        self.findings.add(
            Diagnostic::error(format!("`{}` has both `command` and `url`", at.path()))
                .at(
                    at.child("url").key_span(),
                    "the address of a running server",
                )
                .at(at.child("command").key_span(), "a program to run")
                .help("keep one of them"),
        );
        None
    }

    fn none_given(
        &mut self,
        written: &TransportSection,
        is_enabled: bool,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        if written.transport == Some(TransportKind::Builtin) {
            let keys = [PROGRAM_KEYS.as_slice(), URL_KEYS.as_slice()].concat();
            self.warn_of_unused_keys(at, "the toolbox", &keys);
            self.warn_of_unused_keys(&at.child("limits"), "the toolbox", &["memory"]);
            return Some(Transport::Builtin);
        }
        // With a mistyped transport nobody knows what is missing.
        let is_mistyped = at.child("transport").is_written() && written.transport.is_none();
        if is_mistyped || self.context.is_incomplete {
            return None;
        }
        if !is_enabled {
            self.findings.add(
                Diagnostic::warning(format!("`{}` is skipped", at.path()))
                    .at(at.key_span(), "disabled, without `command` or `url`"),
            );
            return None;
        }
        let needed = match written.transport {
            Some(TransportKind::Stdio) => "`command`",
            Some(
                TransportKind::Auto
                | TransportKind::Http
                | TransportKind::Sse
                | TransportKind::WebSocket,
            ) => "`url`",
            Some(TransportKind::Builtin) | None => "`command` or `url`",
        };
        self.findings.add(
            Diagnostic::error(format!("`{}` requires {needed}", at.path()))
                .at(
                    at.key_span(),
                    "missing transport: neither `command` nor `url` is set",
                )
                .help(
                    "set `command` for a program, `url` for a remote server, or `transport = \
                     \"builtin\"` for the toolbox",
                ),
        );
        None
    }

    /// Warns of keys that are written and that `what` does not read.
    pub(super) fn warn_of_unused_keys(&mut self, at: &ValuePath<'_>, what: &str, keys: &[&str]) {
        for at in keys
            .iter()
            .map(|key| at.child(key))
            .filter(ValuePath::has_content)
        {
            self.findings.add(
                Diagnostic::warning(format!("`{}` has no effect", at.path()))
                    .at(at.key_span(), format!("not used by {what}")),
            );
        }
    }

    fn stdio_transport(
        &mut self,
        written: &TransportSection,
        is_enabled: bool,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        let kind = written.transport;
        if kind.is_some_and(|kind| kind != TransportKind::Stdio) {
            self.report_mismatch("programs use stdin and stdout", at);
            return None;
        }
        let program = written.command.as_deref()?;
        let program = self.program_name(program, &at.child("command"));
        let env = self.server_variables(written, is_enabled, at);
        let args = at.child("args");
        for (index, _) in written
            .args
            .iter()
            .enumerate()
            .filter(|(_, arg)| arg.contains('\0'))
        {
            let at = args.item_at(index);
            self.report_unusable(&at, "has a NUL character");
        }
        let cwd = written
            .cwd
            .as_deref()
            .map(|cwd| self.path(cwd, &at.child("cwd")));
        Some(Transport::Stdio(StdioCommand {
            program,
            args: written.args.clone(),
            shown_args: display_args(&written.args, &args),
            env,
            cwd,
            user: self.user(written.user.as_deref(), &at.child("user")),
            inherit_env: self.inherited_names(&written.inherit_env, &at.child("inherit_env")),
        }))
    }

    fn inherited_names(&mut self, names: &[String], at: &ValuePath<'_>) -> Vec<String> {
        for (index, name) in names.iter().enumerate() {
            if name.is_empty() || name.contains(['=', '\0', '*']) {
                self.report_unusable(&at.item_at(index), "is not the name of one variable");
            }
        }
        names.to_vec()
    }

    fn user(&mut self, written: Option<&str>, at: &ValuePath<'_>) -> Option<String> {
        let user = written?.trim();
        if user.is_empty() || user.contains(['\0', ':', '/']) {
            self.report_unusable(at, "is not a valid user name");
        }
        Some(user.to_owned())
    }

    fn report_mismatch(&mut self, why: &str, at: &ValuePath<'_>) {
        let at = at.child("transport");
        self.findings.add(
            Diagnostic::error(format!("`{}` does not match", at.path()))
                .at(at.span(), why)
                .help("remove it; it is derived from `command` or `url`"),
        );
    }

    /// A name alone is looked for in `PATH`; a path is one like any other.
    fn program_name(&mut self, program: &str, at: &ValuePath<'_>) -> String {
        if program.trim().is_empty() {
            self.report_unusable(at, "is empty or blank");
        } else if program.contains('\0') {
            self.report_unusable(at, "has a NUL character");
        } else if let Some((first, _)) = program.split_once(char::is_whitespace)
            && !first.contains(['/', '\\'])
        {
            let shown = redact::redact_command_line(program);
            let words: Vec<_> = shown.split_whitespace().map(str::to_owned).collect();
            let help = suggest::command_suggestion(&words);
            self.findings.add(
                Diagnostic::error(format!(
                    "{} is not a single \
                    program",
                    quoted_or_hidden(&shown, at)
                ))
                .at(at.span(), "not split into words: no shell is involved")
                .help_if(at.is_quotable().then_some(help)),
            );
        } else if program.contains('/') {
            match self.path(program, at).into_os_string().into_string() {
                Ok(path) => return path,
                Err(_) => self.report_unusable(
                    at,
                    "has a working directory that is not valid \
                    Unicode",
                ),
            }
        }
        program.to_owned()
    }

    pub(super) fn check_env(&mut self, env: &IndexMap<String, Secret>, at: &ValuePath<'_>) {
        for (name, value) in env {
            let at = at.child(name);
            if name.is_empty() || name.contains(['=', '\0']) {
                self.findings.add(
                    Diagnostic::error("invalid variable name")
                        .at(at.key_span(), "names must not be empty or contain `=`"),
                );
            }
            if value.expose().contains('\0') {
                self.report_unusable(&at, "has a NUL character");
            }
        }
    }

    fn remote_transport(
        &mut self,
        written: &TransportSection,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        let url = self.url(written.url.as_deref()?, &at.child("url"));
        let headers = self.used_headers(&written.headers, &at.child("headers"));
        let auth = match &written.auth {
            Some(Auth::OAuth2(grant)) => {
                Auth::OAuth2(Box::new(self.oauth_grant(grant, &at.child("auth"))))
            }
            written => written.clone().unwrap_or(Auth::None),
        };
        self.check_headers(&headers, &at.child("headers"));
        self.check_auth(&auth, at);
        let url = url?;
        self.warn_of_clear_text(&url, &auth, &headers, at);
        let is_socket = matches!(url.scheme_str(), Some("ws" | "wss"));
        if matches!(url.scheme_str(), Some("http" | "ws")) {
            self.warn_of_unused_keys(at, "a URL without TLS", &["tls"]);
        }
        let remote = Remote {
            proxy: self.forward_proxy(&url, written.proxy.as_ref(), at),
            tls: self.remote_tls(written.tls.as_ref(), &at.child("tls")),
            url,
            is_from_variable: !at.child("url").is_literal(),
            headers,
            auth,
            egress: self.server_egress(written, at),
            egress_allow: Arc::clone(&self.egress_allow),
        };
        let implied = if is_socket {
            TransportKind::WebSocket
        } else {
            TransportKind::Auto
        };
        match written.transport.unwrap_or(implied) {
            TransportKind::WebSocket if is_socket => Some(Transport::WebSocket(remote)),
            TransportKind::Auto if !is_socket => Some(Transport::Auto(remote)),
            TransportKind::Http if !is_socket => Some(Transport::Http(remote)),
            TransportKind::Sse if !is_socket => Some(Transport::Sse(remote)),
            TransportKind::Auto
            | TransportKind::Builtin
            | TransportKind::Http
            | TransportKind::Sse
            | TransportKind::Stdio
            | TransportKind::WebSocket => {
                let scheme = remote.url.scheme_str().unwrap_or_default();
                self.report_mismatch(
                    &format!("the URL of this server begins with `{scheme}:`"),
                    at,
                );
                None
            }
        }
    }

    /// Where a URL may lead. What its owner sets as a secret is a part of no URL that an admin wrote.
    fn server_egress(&self, written: &TransportSection, at: &ValuePath<'_>) -> ServerEgress {
        let is_owned = at.path().contains(OWNER_MARK);
        let has_secret = |span: Span| {
            let text = self.context.sources.get(span.source).text.get(span.range());
            text.is_some_and(|text| text.contains("${secret:"))
        };
        let url = at.child("url").span();
        let default = if is_owned && url.is_some_and(has_secret) {
            ServerEgress::Public
        } else {
            ServerEgress::Any
        };
        written.egress.unwrap_or(default)
    }

    fn url(&mut self, written: &str, at: &ValuePath<'_>) -> Option<Uri> {
        const EXAMPLE: &str = "for example \"https://mcp.example.com/mcp\"";
        // What stands behind `?` or before `@` is nothing to show.
        let meant =
            with_scheme(written).filter(|url| at.is_quotable() && !url.contains(['?', '@', '#']));
        let meant = meant.map(|url| format!("use \"{url}\""));
        let meant = meant.as_deref().unwrap_or(EXAMPLE);
        let (problem, help) = match written.trim().parse::<Uri>() {
            Err(_) if meant != EXAMPLE => (MISSING_SCHEME, meant),
            Err(_) => ("not a URL", EXAMPLE),
            Ok(url) => match (url.scheme_str(), url.authority()) {
                (Some("http" | "https" | "ws" | "wss"), Some(authority)) => {
                    if !authority.as_str().contains('@') {
                        return Some(url);
                    }
                    let help = "move the password to `auth` or `headers`";
                    ("a URL with a password ends up in logs", help)
                }
                (Some(_), _) => (
                    "only `http:`, `https:`, `ws:` and `wss:` are supported",
                    EXAMPLE,
                ),
                (None, _) => (MISSING_SCHEME, meant),
            },
        };
        let diagnostic = Diagnostic::error(format!("`{}` is not valid", at.path()));
        self.findings
            .add(diagnostic.at(at.span(), problem).help(help));
        None
    }

    /// `headers` without those in documents of other programs that are places for a value, or that we set
    /// ourselves.
    fn used_headers(
        &mut self,
        headers: &IndexMap<String, Secret>,
        at: &ValuePath<'_>,
    ) -> IndexMap<String, Secret> {
        let mut used = headers.clone();
        used.retain(|name, value| {
            let at = at.child(name);
            let key = at.key_span();
            let key = key.filter(|key| self.context.sources.get(key.source).is_foreign);
            let note = if value.expose().trim().is_empty() {
                "headers without a value are not sent"
            } else if is_reserved_header(name) {
                "the transport sets this header"
            } else {
                return true;
            };
            let Some(span) = key else {
                return true;
            };
            self.findings.ignore_key(IgnoredKey {
                span,
                path: at.path().to_owned(),
                pattern: None,
                is_protection: false,
                note: Some(note.to_owned()),
            });
            false
        });
        used
    }

    fn check_headers(&mut self, headers: &IndexMap<String, Secret>, at: &ValuePath<'_>) {
        let mut seen: IndexMap<String, &str> = IndexMap::new();
        for (name, value) in headers {
            let entry = at.child(name);
            self.check_header_name(name, &entry);
            self.check_header_value(value, &entry);
            if let Some(other) = seen.insert(name.to_lowercase(), name) {
                self.findings.add(
                    Diagnostic::error(format!("`{}` has a duplicate header", at.path()))
                        .at(entry.key_span(), "header names are case-insensitive")
                        .at(at.child(other).key_span(), "the same header"),
                );
            }
        }
    }

    fn check_header_name(&mut self, name: &str, at: &ValuePath<'_>) {
        let label = if HeaderName::from_bytes(name.as_bytes()).is_err() {
            "a header name consists of letters, digits and `-`"
        } else if is_reserved_header(name) {
            "this header is set by the transport"
        } else {
            return;
        };
        let diagnostic = Diagnostic::error("invalid or reserved header");
        self.findings.add(diagnostic.at(at.key_span(), label));
    }

    fn check_header_value(&mut self, value: &Secret, at: &ValuePath<'_>) {
        if HeaderValue::from_str(value.expose()).is_err() {
            self.report_unusable(
                at,
                "contains a line break or another character not allowed in headers",
            );
        } else if value.expose().trim().is_empty() {
            self.report_unusable(at, "is empty");
        }
    }

    fn check_auth(&mut self, auth: &Auth, server: &ValuePath<'_>) {
        let at = server.child("auth");
        let sent = match auth {
            Auth::Bearer { token } => {
                self.check_header_value(token, &at.child("token"));
                "authorization".to_owned()
            }
            Auth::Header { name, value } => {
                self.check_auth_header_name(name, &at.child("name"));
                self.check_header_value(value, &at.child("value"));
                name.to_lowercase()
            }
            Auth::None => return,
            Auth::OAuth2(_) => "authorization".to_owned(),
        };
        self.check_duplicate_header(&sent, server);
    }

    fn check_auth_header_name(&mut self, name: &str, at: &ValuePath<'_>) {
        let illegal = HeaderName::from_bytes(name.as_bytes()).is_err();
        if illegal || is_reserved_header(name) {
            self.findings
                .add(Diagnostic::error("invalid or reserved header").at(
                    at.span(),
                    "not a valid header name, or reserved by the transport",
                ));
        }
    }

    /// Reports a header that `auth` and `headers` both set.
    fn check_duplicate_header(&mut self, header: &str, server: &ValuePath<'_>) {
        let headers = server.child("headers");
        let written = headers.keys().find(|name| name.to_lowercase() == header);
        if let Some(name) = written {
            self.findings.add(
                Diagnostic::error(format!("`{}` sets the credential twice", server.path()))
                    .at(headers.child(name).key_span(), "here")
                    .at(server.child("auth").key_span(), "and here")
                    .help("keep one of them"),
            );
        }
    }

    /// Warns of a credential that everyone on the way can read.
    fn warn_of_clear_text(
        &mut self,
        url: &Uri,
        auth: &Auth,
        headers: &IndexMap<String, Secret>,
        at: &ValuePath<'_>,
    ) {
        let is_plain = matches!(url.scheme_str(), Some("http" | "ws"));
        let has_credential = *auth != Auth::None
            || headers
                .keys()
                .any(|name| name.eq_ignore_ascii_case("authorization"));
        if is_plain && has_credential && !url.host().is_some_and(is_local) {
            self.findings.add(
                Diagnostic::warning("the credential of this server is sent in clear text")
                    .at(at.child("url").span(), "not encrypted")
                    .help("use `https:` unless the network path is trusted"),
            );
        }
    }

    /// Reports a value that no program or header can carry, without showing it.
    pub(super) fn report_unusable(&mut self, at: &ValuePath<'_>, why: &str) {
        let diagnostic = Diagnostic::error(format!("`{}` {why}", at.path()));
        self.findings.add(diagnostic.at(at.span(), "not valid"));
    }
}

/// Whether the header `name` belongs to the transport.
pub(super) fn is_reserved_header(name: &str) -> bool {
    let name = name.to_lowercase();
    let is_of_gateway = name.starts_with("tollbridge-");
    RESERVED_HEADERS.contains(&name.as_str()) || name.starts_with("mcp-") || is_of_gateway
}

/// What is said of a URL that begins with its host.
const MISSING_SCHEME: &str = "missing scheme";

/// What `url` most likely means when it has no scheme: machines of one's own are asked without TLS.
pub(crate) fn with_scheme(url: &str) -> Option<String> {
    let url = url.trim();
    let has_scheme = |scheme: &str| {
        let start = url.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    if url.contains("://")
        || ["http:", "https:", "ws:", "wss:"]
            .into_iter()
            .any(has_scheme)
    {
        return None;
    }
    let rest = url.strip_prefix("//").unwrap_or(url);
    if rest.starts_with(['/', '.']) {
        // A path, and nobody knows of which host.
        return None;
    }
    let guess = |scheme| format!("{scheme}://{rest}");
    let uri: Uri = guess("http").parse().ok()?;
    let host = uri.host()?;
    let is_own = is_local(host) || host.ends_with(".localhost");
    Some(guess(if is_own { "http" } else { "https" }))
}

/// `args` without the values of variables, which may be secret whatever stands before them.
fn display_args(args: &[String], at: &ValuePath<'_>) -> DisplayOnly<Vec<String>> {
    let shown = args.iter().enumerate().map(|(index, arg)| {
        let at = at.item_at(index);
        // In documents of others it may be a number.
        let written = at.is_literal().then_some(arg.as_str());
        at.displayed().or(written).unwrap_or(redact::MASK)
    });
    DisplayOnly(redact::redact_words(&shown.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_suggested() {
        let check = |url: &str, expect: Option<&str>| {
            assert_eq!(with_scheme(url).as_deref(), expect, "{url}");
        };
        check("http://x/mcp", None);
        check("ftp://x/", None);
        check("localhost:8080/mcp", Some("http://localhost:8080/mcp"));
        check("127.0.0.1:8080", Some("http://127.0.0.1:8080"));
        check("[::1]:8080/mcp", Some("http://[::1]:8080/mcp"));
        check("//mcp.example.com/mcp", Some("https://mcp.example.com/mcp"));
        check("mcp.example.com", Some("https://mcp.example.com"));
        check("a.localhost:80", Some("http://a.localhost:80"));
        for url in ["http:/x/mcp", "WSS:x", "/mcp", "///mcp", "./server"] {
            check(url, None);
        }
        check("not a url", None);
        check("", None);
    }
}
