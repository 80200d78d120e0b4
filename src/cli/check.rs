//! `tollbridge check`

mod patterns;

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{
    args::{ConfigArgs, print_warnings},
    block_on,
    gateway::{self, Gateway},
    gateway_target::GatewayTarget,
    output::{OutputFormat, eprint, escape_terminal, print, print_json},
    server_summary::FoundServer,
    table::RowPrinter,
};
use crate::{
    app,
    backend::ServerState,
    catalog::{Kind, ProblemImpact},
    config::{Authentication, Config, ConfigErrors, LoadScope, LoadedConfig, Notice},
    names::{Scope, ServerName},
    store::{FILE_NAME, Store, StoreError, StoredAgent},
};
use patterns::{ConfigPatterns, ServerItems};

/// Pause before a server that failed is tried again: longer than any check, which shows the first
/// attempt.
const RETRY_DISABLED: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Validate the config, and with --connect the servers
#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Connect to SERVER, or to every enabled server
    #[arg(long, value_name = "SERVER", num_args = 0..=1)]
    #[expect(
        clippy::option_option,
        reason = "clap's form of an option with an optional value"
    )]
    connect: Option<Option<String>>,
    /// Print the config as it would run, with every default
    #[arg(long, conflicts_with = "connect")]
    print: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    pub(super) fn run(&self) -> ExitCode {
        let server = self.connect.as_ref().and_then(Option::as_deref);
        let read = self
            .config
            .read(server.map_or(LoadScope::Enabled, LoadScope::EnabledAnd));
        let loaded = match read.and_then(|loaded| Ok(check_startable(loaded)?)) {
            Ok(loaded) => loaded,
            Err(unusable) => return unusable.report(OutputFormat::from_flag(self.json)),
        };
        if !self.json {
            print_warnings(&loaded.warnings);
        }
        match &self.connect {
            Some(server) => self.connect(loaded, server.as_deref()),
            None => block_on(1, self.show(&loaded)),
        }
    }

    /// Prints what is odd and a summary; with `--print` what would run.
    async fn show(&self, loaded: &LoadedConfig) -> ExitCode {
        let shown = loaded.config.to_display();
        let mut odd = Vec::from_iter(data_dir_warning(&loaded.config));
        let (stored, refused, unread) = stored_agents(&loaded.config).await;
        odd.extend(refused);
        let patterns = ConfigPatterns::of(&loaded.config).with_stored_agents(&stored);
        odd.extend(patterns.spanning_warnings(&loaded.config));
        odd.extend(patterns.unknown_server_warnings(&loaded.config));
        if no_caller_warning(&loaded.config, &[]).is_some() {
            odd.extend(unread.or_else(|| no_caller_warning(&loaded.config, &stored)));
        }
        if self.json {
            let notices: Vec<_> = loaded.warnings.iter().chain(&odd).collect();
            print_json(&json!({
                "ok": true,
                "notices": notices,
                "config": shown.to_json(),
            }))
        } else {
            print_warnings(&odd);
            let summary = format!("{}\n", summary(&loaded.config, stored.len()));
            if self.print {
                eprint(&summary);
                print(&shown.to_string())
            } else {
                print(&summary)
            }
        }
    }

    /// Tries all enabled servers, or the one.
    fn connect(&self, loaded: LoadedConfig, server: Option<&str>) -> ExitCode {
        let LoadedConfig {
            mut config,
            warnings,
            blank: _,
        } = loaded;
        if let Err(code) = self.config.start_quiet_log(&mut config) {
            return code;
        }
        for server in config.servers.values_mut() {
            server.retry.base = RETRY_DISABLED;
            server.retry.max = RETRY_DISABLED;
        }
        // What governs is forgotten by whoever only looks.
        let mut written = config.clone();
        let target = match server {
            None => GatewayTarget::all_servers(config),
            Some(name) => match GatewayTarget::single_server(config, name) {
                Ok(target) => target,
                Err(code) => return code,
            },
        };
        written.servers.clone_from(&target.config.servers);
        let work = async |gateway: &Gateway| self.report(warnings, &written, gateway).await;
        block_on(
            1,
            gateway::with(target.read_only(), OutputFormat::from_flag(self.json), work),
        )
    }

    async fn report(
        &self,
        mut notices: Vec<Notice>,
        config: &Config,
        gateway: &Gateway,
    ) -> ExitCode {
        let mut rows = (!self.json).then(|| server_rows(config));
        let mut found = gateway
            .wait_for_each(|server| {
                if let Some(rows) = &mut rows
                    && server.state != ServerState::Disabled
                {
                    rows.print(server_row(server));
                }
            })
            .await;
        found.retain(|server| server.state != ServerState::Disabled);
        let catalog_store = gateway.proxy().catalog_store();
        let owned = config.servers.keys().filter(|server| server.is_owned());
        let owned = owned.map(|server| catalog_store.catalog_of(server));
        let catalogs: Vec<_> = std::iter::once(gateway.catalog()).chain(owned).collect();
        let problems = || catalogs.iter().flat_map(|catalog| catalog.problems());
        let is_whole = problems().all(|problem| problem.impact() != ProblemImpact::Item);
        let ok = is_whole && found.iter().all(FoundServer::is_connected);
        let (schemas, unseen) = gateway.schemas(&found).await;
        let problems = problems().chain(schemas.iter().flat_map(|it| &**it));
        let odd = found.iter().flat_map(FoundServer::unhealthy_replicas);
        let odd = odd.chain(problems.map(ToString::to_string));
        let odd = odd.chain(unseen.iter().map(unchecked_schemas_note));
        let odd = odd.map(|message| Notice::warning(escape_terminal(&message), None));
        let mut odd: Vec<Notice> = odd.collect();
        let (stored, refused, unread) = stored_agents(config).await;
        odd.extend(data_dir_warning(config));
        odd.extend(refused);
        odd.extend(unread.or_else(|| no_caller_warning(config, &stored)));
        odd.extend(unmatched_patterns(config, &stored, gateway));
        let printed = if let Some(rows) = rows {
            print_warnings(&odd);
            rows.code
        } else {
            notices.extend(odd);
            print_json(&json!({ "ok": ok, "notices": notices, "servers": found }))
        };
        if ok { printed } else { ExitCode::FAILURE }
    }
}

/// `loaded`, where a gateway would start with it.
fn check_startable(loaded: LoadedConfig) -> Result<LoadedConfig, ConfigErrors> {
    match app::check_config(&loaded.config) {
        Ok(()) => Ok(loaded),
        Err(error) => {
            let mut notices = loaded.warnings;
            notices.push(Notice::error(error.to_string()));
            Err(ConfigErrors {
                notices,
                named_files: loaded.config.named_files,
            })
        }
    }
}

/// Warns of a data directory with which a gateway would not start. That is no mistake of the config: who
/// checks it need not be the user who runs it, nor be on the same machine.
fn data_dir_warning(config: &Config) -> Option<Notice> {
    let error = app::data_dir_error(config)?;
    let message = format!("a gateway run by this user would not start: {error}");
    Some(Notice::warning(message, None))
}

/// Warns of a config with which nobody could call, where the store has the agents `stored`.
fn no_caller_warning(config: &Config, stored: &[StoredAgent]) -> Option<Notice> {
    let needs_key = config.governance.auth == Authentication::KEYS;
    if !needs_key || !config.agents.is_empty() || !stored.is_empty() {
        return None;
    }
    let message = "no caller could authenticate: `governance.auth` is \"keys\", but neither the \
        config nor the store has agents";
    let help = "add a section `[agents.NAME]` with `keys`, or use `agents add` and `keys create`";
    Some(Notice::warning(message.to_owned(), Some(help.to_owned())))
}

/// What came of a config without mistakes, for people: a config may be right and yet of no use. The store
/// has `stored` agents that are not in it.
fn summary(config: &Config, stored: usize) -> String {
    let all = config.servers.len();
    let disabled = config.servers.values().filter(|it| !it.enabled).count();
    let servers = match (all, disabled) {
        (0, _) => {
            return "valid config, but no servers".to_owned();
        }
        (1, 0) => "1 server".to_owned(),
        (_, 0) => format!("{all} servers"),
        (_, _) if all == disabled => {
            return "valid config, but all servers are disabled".to_owned();
        }
        (_, _) => format!("{all} servers, {disabled} of them disabled"),
    };
    let callers = match (config.governance.auth, config.agents.len() + stored) {
        (Authentication::ANONYMOUS, _) => String::new(),
        (auth, 1) => format!(", 1 agent ({auth})"),
        (auth, agents) => format!(", {agents} agents ({auth})"),
    };
    let listen = &config.listen;
    format!(
        "valid config: {servers}{callers}, listening on {listen}; use --connect to test the connections, \
         --print to see every setting"
    )
}

/// Says that nobody knows what is wrong with the schemas that `server` lists.
fn unchecked_schemas_note(server: &ServerName) -> String {
    let wait = humantime::format_duration(gateway::SCHEMAS_TIMEOUT);
    format!("{server}: tools: not every `inputSchema` was checked within {wait}")
}

/// The agents of the store that those of `config` do not hide, what is said of rows there that count for
/// nothing, and why it cannot be read, if so.
async fn stored_agents(config: &Config) -> (Vec<StoredAgent>, Vec<Notice>, Option<Notice>) {
    let read: Result<_, StoreError> = async {
        if !config.data_dir.join(FILE_NAME).exists() {
            return Ok(Default::default());
        }
        // A check before an upgrade must not be the upgrade.
        let store = Store::open_unchanged(&config.data_dir, i64::MAX).await?;
        let read = (store.agents.agents().await, store.keys.keys().await);
        store.close().await;
        Ok((read.0?, read.1?.refused))
    }
    .await;
    match read {
        Ok((mut stored, keys)) => {
            let written: Vec<_> = config.agents.values().map(|agent| agent.id).collect();
            stored.rows.retain(|agent| !written.contains(&agent.id));
            let refused = stored.refused.iter().chain(&keys);
            let refused =
                refused.map(|row| Notice::warning(escape_terminal(&row.to_string()), None));
            (stored.rows, refused.collect(), None)
        }
        Err(error) => {
            let message = format!("agents in the store were not checked: {error}");
            (Vec::new(), Vec::new(), Some(Notice::warning(message, None)))
        }
    }
}

/// Warns of patterns of `config` and of agents of the store that match nothing; where one server is tried,
/// of those about it.
fn unmatched_patterns(config: &Config, stored: &[StoredAgent], gateway: &Gateway) -> Vec<Notice> {
    let only = match &gateway.scope {
        Scope::Server(server) => Some(server),
        Scope::All | Scope::Profile(_) | Scope::View { .. } => None,
    };
    let names = ServerItems::of(config, &gateway.proxy().catalog_store().offers());
    let patterns = ConfigPatterns::of(config).with_stored_agents(stored);
    let mut warnings = patterns.spanning_warnings(config);
    warnings.extend(patterns.warnings(&names, only));
    warnings
}

/// The table of the servers of `config`, of which each row is printed when its server was tried.
fn server_rows(config: &Config) -> RowPrinter<8> {
    let names = config.servers.keys().map(|name| name.as_str().len());
    let headings = [
        "SERVER",
        "STATE",
        "REVISION",
        "LATENCY",
        "TOOLS",
        "RESOURCES",
        "PROMPTS",
        "REASON",
    ];
    let state = ServerState::Disconnected.as_str().len();
    let (revision, latency) = ("2026-07-28".len(), "10000.0 ms".len());
    let name = names.max().unwrap_or_default();
    RowPrinter::start(headings, [name, state, revision, latency, 0, 0, 0, 0])
}

fn server_row(server: &FoundServer) -> [String; 8] {
    let latency = server.latency_ms.map(|ms| format!("{ms} ms"));
    [
        server.server.clone(),
        server.state().to_owned(),
        server.revision.as_deref().unwrap_or_default().to_owned(),
        latency.unwrap_or_default(),
        server.count(&[Kind::Tools]),
        server.count(&[Kind::Resources, Kind::Templates]),
        server.count(&[Kind::Prompts]),
        server.explanation(),
    ]
}
