//! How a server is reached: a program, a URL, or the toolbox.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Uri};
use indexmap::IndexMap;

use super::{Resolver, quote};
use crate::config::{
    Auth, ForPeople, LoadScope, Remote, Secret, StdioCommand, Transport,
    diagnostics::{redact, report::Diagnostic, suggest},
    file::{self, TransportKind},
    node::ValuePath,
};

/// Headers that belong to the transport; those that begin with `mcp-` do as well.
const OWN_HEADERS: [&str; 9] = [
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
const PROGRAM_KEYS: [&str; 5] = ["args", "cwd", "env", "env_file", "user"];

/// Keys that only a URL has a use for.
const URL_KEYS: [&str; 2] = ["auth", "headers"];

impl Resolver<'_> {
    /// `None` after a mistake, and for a disabled server that does not say.
    pub(super) fn transport(
        &mut self,
        server: &file::ServerSection,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        let reached = self.written_transport(server, at);
        let url = at.key("url");
        if reached.is_none() && self.surroundings.used == LoadScope::Books {
            // Nobody connects to it: what counts is that there is a server of that name.
            return Some(Transport::Builtin);
        }
        if reached.is_none() && url.span().is_some_and(|url| self.findings.is_excused(url)) {
            self.findings.add(
                Diagnostic::warning(format!("`{}` is left out", at.path())).at(
                    url.key_span(),
                    "disabled, and a variable in its URL has no value",
                ),
            );
        }
        reached
    }

    fn written_transport(
        &mut self,
        server: &file::ServerSection,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        let kind = server.transport;
        let (command, url) = (at.key("command").is_written(), at.key("url").is_written());
        match (command, url) {
            (true, true) => self.both(at),
            (true, false) => {
                self.no_effect(at, "a server with `command`", &URL_KEYS);
                self.program(server, kind, at)
            }
            (false, true) => {
                self.no_effect(at, "a server with `url`", &PROGRAM_KEYS);
                self.no_effect(&at.key("limits"), "a server with `url`", &["memory"]);
                self.remote(server, kind, at)
            }
            (false, false) => self.neither(server, at),
        }
    }

    fn both(&mut self, at: &ValuePath<'_>) -> Option<Transport> {
        self.findings.add(
            Diagnostic::mistake(format!("`{}` has both `command` and `url`", at.path()))
                .at(
                    at.key("url").key_span(),
                    "the address of a server that runs already",
                )
                .at(at.key("command").key_span(), "a program to run")
                .help("keep one of them"),
        );
        None
    }

    fn neither(&mut self, server: &file::ServerSection, at: &ValuePath<'_>) -> Option<Transport> {
        if server.transport == Some(TransportKind::Builtin) {
            let keys = [PROGRAM_KEYS.as_slice(), URL_KEYS.as_slice()].concat();
            self.no_effect(at, "the toolbox", &keys);
            self.no_effect(&at.key("limits"), "the toolbox", &["memory"]);
            return Some(Transport::Builtin);
        }
        // With a mistyped transport nobody knows what is missing.
        let is_mistyped = at.key("transport").is_written() && server.transport.is_none();
        if is_mistyped || self.surroundings.is_incomplete {
            return None;
        }
        if !server.enabled {
            self.findings.add(
                Diagnostic::warning(format!("`{}` is left out", at.path())).at(
                    at.key_span(),
                    "disabled, and neither `command` nor `url` is given",
                ),
            );
            return None;
        }
        let needed = match server.transport {
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
            Diagnostic::mistake(format!("`{}` needs {needed}", at.path()))
                .at(at.key_span(), "it is not said how this server is reached")
                .help(
                    "write `command` for a program, `url` for a server on the network, or \
                     `transport = \"builtin\"` for the toolbox",
                ),
        );
        None
    }

    /// Warns of keys that are written and that `what` does not read.
    pub(super) fn no_effect(&mut self, at: &ValuePath<'_>, what: &str, keys: &[&str]) {
        for at in keys
            .iter()
            .map(|key| at.key(key))
            .filter(ValuePath::has_content)
        {
            self.findings.add(
                Diagnostic::warning(format!("`{}` has no effect", at.path()))
                    .at(at.key_span(), format!("{what} does not use it")),
            );
        }
    }

    fn program(
        &mut self,
        server: &file::ServerSection,
        kind: Option<TransportKind>,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        if kind.is_some_and(|kind| kind != TransportKind::Stdio) {
            self.mismatch("a program is spoken to on stdin and stdout", at);
            return None;
        }
        let program = server.command.as_deref()?;
        let program = self.program_name(program, &at.key("command"));
        let env = self.variables(server, at);
        let args = at.key("args");
        for (index, _) in server
            .args
            .iter()
            .enumerate()
            .filter(|(_, arg)| arg.contains('\0'))
        {
            let at = args.item(index);
            self.unusable(&at, "has a NUL character");
        }
        let cwd = server
            .cwd
            .as_deref()
            .map(|cwd| self.path(cwd, &at.key("cwd")));
        Some(Transport::Stdio(StdioCommand {
            program,
            args: server.args.clone(),
            shown_args: shown_args(&server.args, &args),
            env,
            cwd,
            user: self.user(server.user.as_deref(), &at.key("user")),
        }))
    }

    fn user(&mut self, written: Option<&str>, at: &ValuePath<'_>) -> Option<String> {
        let user = written?.trim();
        if user.is_empty() || user.contains(['\0', ':', '/']) {
            self.unusable(at, "is not a valid user name");
        }
        Some(user.to_owned())
    }

    fn mismatch(&mut self, why: &str, at: &ValuePath<'_>) {
        let at = at.key("transport");
        self.findings.add(
            Diagnostic::mistake(format!("`{}` does not fit", at.path()))
                .at(at.span(), why)
                .help("leave it out, and it follows from `command` or `url`"),
        );
    }

    /// A name alone is looked for in `PATH`; a path is one like any other.
    fn program_name(&mut self, program: &str, at: &ValuePath<'_>) -> String {
        if program.trim().is_empty() {
            self.unusable(at, "is empty, or blank");
        } else if program.contains('\0') {
            self.unusable(at, "has a NUL character");
        } else if let Some((first, _)) = program.split_once(char::is_whitespace)
            && !first.contains(['/', '\\'])
        {
            let shown = redact::shown_line(program);
            let words: Vec<_> = shown.split_whitespace().map(str::to_owned).collect();
            let help = suggest::command(&words);
            self.findings.add(
                Diagnostic::mistake(format!("{} is not one program", quote(&shown, at)))
                    .at(at.span(), "no shell splits this into words")
                    .help_if(at.is_quotable().then_some(help)),
            );
        } else if program.contains('/') {
            match self.path(program, at).into_os_string().into_string() {
                Ok(path) => return path,
                Err(_) => self.unusable(at, "starts in a directory whose name is no Unicode"),
            }
        }
        program.to_owned()
    }

    pub(super) fn environment(&mut self, env: &IndexMap<String, Secret>, at: &ValuePath<'_>) {
        for (name, value) in env {
            let at = at.key(name);
            if name.is_empty() || name.contains(['=', '\0']) {
                self.findings.add(
                    Diagnostic::mistake("this is not the name of a variable")
                        .at(at.key_span(), "names have no `=`, and are not empty"),
                );
            }
            if value.expose().contains('\0') {
                self.unusable(&at, "has a NUL character");
            }
        }
    }

    fn remote(
        &mut self,
        server: &file::ServerSection,
        kind: Option<TransportKind>,
        at: &ValuePath<'_>,
    ) -> Option<Transport> {
        let url = self.url(server.url.as_deref()?, &at.key("url"));
        let headers = self.headers(server, &at.key("headers"));
        let auth = server
            .auth
            .as_ref()
            .map_or(Auth::None, |auth| self.auth(auth, at));
        let url = url?;
        self.clear_text(&url, &auth, &headers, at);
        let is_socket = matches!(url.scheme_str(), Some("ws" | "wss"));
        let remote = Remote {
            url,
            is_of_variable: !at.key("url").is_of_file(),
            headers,
            auth,
        };
        let implied = if is_socket {
            TransportKind::WebSocket
        } else {
            TransportKind::Auto
        };
        match kind.unwrap_or(implied) {
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
                self.mismatch(
                    &format!("the URL of this server begins with `{scheme}:`"),
                    at,
                );
                None
            }
        }
    }

    fn url(&mut self, written: &str, at: &ValuePath<'_>) -> Option<Uri> {
        const EXAMPLE: &str = "write for example \"https://mcp.example.com/mcp\"";
        // What stands behind `?` or before `@` is nothing to show.
        let meant =
            with_scheme(written).filter(|url| at.is_quotable() && !url.contains(['?', '@', '#']));
        let meant = meant.map(|url| format!("write \"{url}\""));
        let meant = meant.as_deref().unwrap_or(EXAMPLE);
        let (problem, help) = match written.trim().parse::<Uri>() {
            Err(_) if meant != EXAMPLE => (NO_SCHEME, meant),
            Err(_) => ("not a URL", EXAMPLE),
            Ok(url) => match (url.scheme_str(), url.authority()) {
                (Some("http" | "https" | "ws" | "wss"), Some(authority)) => {
                    if !authority.as_str().contains('@') {
                        return Some(url);
                    }
                    let help = "write the password in `auth` or `headers`";
                    ("a URL with a password ends up in logs", help)
                }
                (Some(_), _) => (
                    "only `http:`, `https:`, `ws:` and `wss:` are understood",
                    EXAMPLE,
                ),
                (None, _) => (NO_SCHEME, meant),
            },
        };
        let finding = Diagnostic::mistake(format!("`{}` is not usable", at.path()));
        self.findings.add(finding.at(at.span(), problem).help(help));
        None
    }

    fn headers(
        &mut self,
        server: &file::ServerSection,
        at: &ValuePath<'_>,
    ) -> IndexMap<String, Secret> {
        let mut seen: IndexMap<String, &str> = IndexMap::new();
        for (name, value) in &server.headers {
            let entry = at.key(name);
            self.header_name(name, &entry);
            self.header_value(value, &entry);
            if let Some(other) = seen.insert(name.to_lowercase(), name) {
                self.findings.add(
                    Diagnostic::mistake(format!("`{}` has one header twice", at.path()))
                        .at(entry.key_span(), "case does not matter in header names")
                        .at(at.key(other).key_span(), "the same header"),
                );
            }
        }
        server.headers.clone()
    }

    fn header_name(&mut self, name: &str, at: &ValuePath<'_>) {
        let lower = name.to_lowercase();
        let label = if HeaderName::from_bytes(name.as_bytes()).is_err() {
            "letters, digits and `-` make a header name"
        } else if OWN_HEADERS.contains(&lower.as_str()) || lower.starts_with("mcp-") {
            "the transport sets this header itself"
        } else {
            return;
        };
        let finding = Diagnostic::mistake("this header cannot be set");
        self.findings.add(finding.at(at.key_span(), label));
    }

    fn header_value(&mut self, value: &Secret, at: &ValuePath<'_>) {
        if HeaderValue::from_str(value.expose()).is_err() {
            self.unusable(
                at,
                "has a line break or another character that headers cannot carry",
            );
        } else if value.expose().trim().is_empty() {
            self.unusable(at, "is empty");
        }
    }

    fn auth(&mut self, auth: &file::AuthSection, server: &ValuePath<'_>) -> Auth {
        let at = server.key("auth");
        let sent = match auth {
            file::AuthSection::Bearer { token } => {
                self.header_value(token, &at.key("token"));
                "authorization".to_owned()
            }
            file::AuthSection::Header { name, value } => {
                self.auth_header_name(name, &at.key("name"));
                self.header_value(value, &at.key("value"));
                name.to_lowercase()
            }
        };
        self.sent_twice(&sent, server);
        match auth {
            file::AuthSection::Bearer { token } => Auth::Bearer {
                token: token.clone(),
            },
            file::AuthSection::Header { name, value } => Auth::Header {
                name: name.clone(),
                value: value.clone(),
            },
        }
    }

    fn auth_header_name(&mut self, name: &str, at: &ValuePath<'_>) {
        let lower = name.to_lowercase();
        let illegal = HeaderName::from_bytes(name.as_bytes()).is_err();
        if illegal || OWN_HEADERS.contains(&lower.as_str()) || lower.starts_with("mcp-") {
            self.findings
                .add(Diagnostic::mistake("this header cannot be set").at(
                    at.span(),
                    "not a header name, or one that the transport sets itself",
                ));
        }
    }

    /// Reports a header that `auth` and `headers` both set.
    fn sent_twice(&mut self, header: &str, server: &ValuePath<'_>) {
        let headers = server.key("headers");
        let written = headers.keys().find(|name| name.to_lowercase() == header);
        if let Some(name) = written {
            self.findings.add(
                Diagnostic::mistake(format!("`{}` sets the credential twice", server.path()))
                    .at(headers.key(name).key_span(), "here")
                    .at(server.key("auth").key_span(), "and here")
                    .help("keep one of them"),
            );
        }
    }

    /// Warns of a credential that everyone on the way can read.
    fn clear_text(
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
                    .at(at.key("url").span(), "not encrypted")
                    .help("use `https:`, unless the way there is safe"),
            );
        }
    }

    /// Reports a value that no program or header can carry, without showing it.
    fn unusable(&mut self, at: &ValuePath<'_>, why: &str) {
        let finding = Diagnostic::mistake(format!("`{}` {why}", at.path()));
        self.findings.add(finding.at(at.span(), "not usable"));
    }
}

/// What is said of a URL that begins with its host.
const NO_SCHEME: &str = "the scheme is missing";

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

/// Whether `host` is this machine.
fn is_local(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// `args` without the values of variables, which may be secret whatever stands before them.
fn shown_args(args: &[String], at: &ValuePath<'_>) -> ForPeople<Vec<String>> {
    let shown = args.iter().enumerate().map(|(index, arg)| {
        let at = at.item(index);
        // In documents of others it may be a number.
        let written = at.is_of_file().then_some(arg.as_str());
        at.shown().or(written).unwrap_or(redact::MASK)
    });
    ForPeople(redact::shown_words(&shown.collect::<Vec<_>>()))
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
