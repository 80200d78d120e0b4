//! Whom `list`, `call` and others ask: the configured servers, one of them, or whatever answers at a URL.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;

use super::{
    args::{self, ConfigArgs},
    data_dir::check_gateway,
    output::OutputFormat,
    url_target::UrlArgs,
};
use crate::{
    config::{
        self, Authentication, Config, ConfigFormat, ConfigText, Environment, GatewaySession,
        GovernanceConfig, LoadScope, Server, Transport,
    },
    control_socket::{self, SessionRequest},
    names::{Scope, ServerName},
};

/// How long a call that was given up may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// What is asked of a server before it counts as listed: one request for each kind of item.
const LIST_REQUESTS: u32 = 4;

/// Whom to ask.
#[derive(Args, Debug)]
pub(super) struct TargetArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    url: UrlArgs,
    /// Act as this agent. Required by `call` with `governance.auth = "keys"`; `list` without it
    /// shows everything
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    agent: Option<String>,
    /// Ask only this server (enabled or not), under its own names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["url", "profile"])]
    server: Option<String>,
    /// Ask through this profile, with --url too
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

/// What stands for the running gateway where a server is named.
const GATEWAY_NAME: &str = "gateway";
/// How long a running gateway may take for a call, which has timeouts of its own for that.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What to run, and which part of it is asked.
#[derive(Debug)]
pub(super) struct GatewayTarget {
    pub(super) config: Config,
    pub(super) scope: Scope,
    /// The name or id of the agent whose calls these are.
    pub(super) agent: Option<String>,
    /// The control socket of the running gateway that is asked.
    pub(super) gateway_socket: Option<PathBuf>,
    /// Whether it is behind a URL of the command line.
    pub(super) is_url: bool,
}

impl TargetArgs {
    /// Reads the config; what is wrong with it is said in `form`.
    pub(super) fn resolve(&self, form: OutputFormat) -> Result<GatewayTarget, ExitCode> {
        if let Some((mut config, server)) = self.url.config(self.profile.as_deref(), form)? {
            self.config.start_quiet_log(&mut config)?;
            let target = GatewayTarget::single_server(config, &server)?;
            return Ok(GatewayTarget {
                is_url: true,
                ..target
            });
        }
        let used = self
            .server
            .as_deref()
            .map_or(LoadScope::Enabled, LoadScope::EnabledAnd);
        let config = self.config.load_scope_with_quiet_log(used, form)?;
        let target = match (&self.server, &self.profile) {
            (Some(name), _) => GatewayTarget::single_server(config, name)?,
            (None, Some(name)) => GatewayTarget::profile(config, name)?,
            (None, None) => GatewayTarget::all_servers(config),
        };
        Ok(target.with_agent(self.agent.as_deref()))
    }

    /// The agent that is named.
    pub(super) fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// Whether the key is read from stdin.
    pub(super) fn reads_key_from_stdin(&self) -> bool {
        self.url.reads_key_from_stdin()
    }
}

impl GatewayTarget {
    /// All servers of `config`.
    pub(super) fn all_servers(config: Config) -> Self {
        Self::new(config, Scope::All)
    }

    /// The server `name` of `config` alone, enabled or not; what is wrong goes to stderr.
    pub(super) fn single_server(mut config: Config, name: &str) -> Result<Self, ExitCode> {
        let server = args::find_server(name, &config)?;
        config.servers.retain(|name, _| *name == server);
        for server in config.servers.values_mut() {
            server.enabled = true;
            server.name_conflict = None;
        }
        Ok(Self::new(config, Scope::Server(server)))
    }

    /// What the profile `name` of `config` shows; what is wrong goes to stderr.
    pub(super) fn profile(config: Config, name: &str) -> Result<Self, ExitCode> {
        let profile = args::find_profile(name, &config)?;
        Ok(Self::new(config, Scope::Profile(profile)))
    }

    /// The same, asked by the agent called `name`.
    pub(super) fn with_agent(self, name: Option<&str>) -> Self {
        Self {
            agent: name.map(str::to_owned),
            ..self
        }
    }

    /// The gateway that runs with the same config in place of servers of one's own, where there is one and
    /// it has what is asked; one on another data directory is said. Who needs a key and names no agent sees
    /// everything, which no gateway shows.
    pub(super) async fn via_running_gateway(self) -> Result<Self, ExitCode> {
        let needs_agent = !self.config.governance.auth.allows_anonymous();
        let files = control_socket::canonical_files(&self.config.files);
        let (Ok(files), false) = (files, needs_agent && self.agent.is_none()) else {
            return Ok(self);
        };
        let (server, profile) = match &self.scope {
            Scope::All => (None, None),
            Scope::Profile(profile) => (None, Some(profile.to_string())),
            Scope::Server(server) => (Some(server.to_string()), None),
            // No command asks a running gateway about one.
            Scope::View { .. } => return Ok(self),
        };
        let request = SessionRequest {
            files,
            agent: self.agent.clone(),
            server,
            profile,
        };
        let Some(socket) = control_socket::find_gateway(&self.config.data_dir, &request).await
        else {
            let checked = check_gateway(&self.config, &self.config.files).await;
            checked.map_err(|refused| refused.report())?;
            return Ok(self);
        };
        let request = serde_json::to_string(&request);
        let session = request.map(|request| GatewaySession {
            socket: socket.clone(),
            request,
        });
        let name = match &self.scope {
            // Here it is the one server, of nobody else.
            Scope::Server(server) => server.local(),
            Scope::All | Scope::Profile(_) | Scope::View { .. } => GATEWAY_NAME,
        };
        let config = session
            .ok()
            .and_then(|session| gateway_config(name, session));
        Ok(match config {
            Some((config, server)) => Self {
                gateway_socket: Some(socket),
                ..Self::new(config, Scope::Server(server))
            },
            None => self,
        })
    }

    /// The same for who only looks and calls nothing: nothing is recorded. Where no agent is named
    /// and callers need keys, everything there is may be seen.
    pub(super) fn read_only(mut self) -> Self {
        self.config.audit.enabled = false;
        remove_budgets(&mut self.config);
        let Some(name) = &self.agent else {
            if !self.config.governance.auth.allows_anonymous() {
                self.config.governance = GovernanceConfig::default();
            }
            return self;
        };
        // Only a gateway that knows keys opens the store without an audit.
        if !self.config.agents.contains_key(name) {
            self.config.governance.auth = Authentication::KEYS;
        }
        self
    }

    /// The same, where servers may take no longer than `wait` to be listed.
    pub(super) fn with_list_timeout(mut self, wait: Duration) -> Self {
        let longest = self.config.first_list_wait;
        self.config.first_list_wait = longest.min(wait);
        self
    }

    /// Lists wait for every server, since this process has no second chance to show them.
    fn new(mut config: Config, scope: Scope) -> Self {
        let longest = |server: &Server| server.startup_timeout + server.timeout * LIST_REQUESTS;
        let patience = config.servers.values().map(longest).max();
        config.first_list_wait = patience.unwrap_or_default();
        config.list_page_size = None;
        config.drain_timeout = DRAIN_TIMEOUT;
        Self {
            config,
            scope,
            agent: None,
            gateway_socket: None,
            is_url: false,
        }
    }
}

/// Takes away what only calls need: a budget wants the data directory.
fn remove_budgets(config: &mut Config) {
    config.governance.teams.clear();
    config.governance.terms.budget = None;
    for agent in config.agents.values_mut() {
        agent.terms.budget = None;
    }
    for profile in config.profiles.values_mut() {
        profile.terms.budget = None;
    }
    for server in config.servers.values_mut() {
        server.budget.clear();
    }
}

/// A config with what the gateway of `session` shows as its one server, and the name of that. The gateway
/// governs and records.
fn gateway_config(name: &str, session: GatewaySession) -> Option<(Config, ServerName)> {
    let source = ConfigText {
        name: name.to_owned(),
        format: ConfigFormat::Json,
        text: json!({ "servers": { name: { "transport": "builtin" } } }).to_string(),
        directory: PathBuf::new(),
    };
    let mut config = config::parse([source], &Environment::default())
        .ok()?
        .config;
    config.audit.enabled = false;
    let (name, server) = config.servers.iter_mut().next()?;
    server.transport = Transport::ControlSocket(session);
    server.timeout = GATEWAY_TIMEOUT;
    let name = name.clone();
    Some((config, name))
}
