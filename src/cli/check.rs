//! `tollbridge check`

mod patterns;

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{
    args::{ConfigArgs, warn},
    block_on,
    gateway::{self, Gateway},
    output::{OutputFormat, harmless, print, print_json, say},
    server_summary::FoundServer,
    table::TextTable,
    target::GatewayTarget,
};
use crate::{
    app,
    backend::ServerState,
    catalog::{Cost, Kind},
    config::{Authentication, Config, LoadScope, LoadedConfig, Mistakes, Notice},
    names::{Scope, ServerName},
    store::{FILE_NAME, Store, StoreError, StoredAgent},
};
use patterns::{ConfigPatterns, ServerItems};

/// Pause before a server that failed is tried again: longer than any check, which shows the first
/// attempt.
const NEVER: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    pub(super) fn run(&self) -> ExitCode {
        let server = self.connect.as_ref().and_then(Option::as_deref);
        let read = self
            .config
            .read(server.map_or(LoadScope::Enabled, LoadScope::Also));
        let loaded = match read.and_then(|loaded| Ok(vetted(loaded)?)) {
            Ok(loaded) => loaded,
            Err(unusable) => return unusable.report(OutputFormat::of(self.json)),
        };
        if !self.json {
            warn(&loaded.warnings);
        }
        match &self.connect {
            Some(server) => self.connect(loaded, server.as_deref()),
            None => block_on(1, self.show(&loaded)),
        }
    }

    /// Prints what would run.
    async fn show(&self, loaded: &LoadedConfig) -> ExitCode {
        let shown = loaded.config.to_display();
        let mut odd = Vec::from_iter(unusable_data_dir(&loaded.config));
        let (stored, refused, unread) = stored_agents(&loaded.config).await;
        odd.extend(refused);
        let patterns = ConfigPatterns::of(&loaded.config).and_of(&stored);
        odd.extend(patterns.spanning(&loaded.config));
        if no_caller(&loaded.config, &[]).is_some() {
            odd.extend(unread.or_else(|| no_caller(&loaded.config, &stored)));
        }
        if self.json {
            let notices: Vec<_> = loaded.warnings.iter().chain(&odd).collect();
            print_json(&json!({
                "ok": true,
                "notices": notices,
                "config": shown.to_json(),
            }))
        } else {
            warn(&odd);
            let printed = print(&shown.to_string());
            say(&format!("{}\n", summary(&loaded.config)));
            printed
        }
    }

    /// Tries all enabled servers, or the one.
    fn connect(&self, loaded: LoadedConfig, server: Option<&str>) -> ExitCode {
        let LoadedConfig {
            mut config,
            warnings,
            blank: _,
        } = loaded;
        if let Err(code) = self.config.quieten(&mut config) {
            return code;
        }
        for server in config.servers.values_mut() {
            server.retry.base = NEVER;
            server.retry.max = NEVER;
        }
        // What governs is forgotten by whoever only looks.
        let mut written = config.clone();
        let target = match server {
            None => GatewayTarget::all(config),
            Some(name) => match GatewayTarget::one(config, name) {
                Ok(target) => target,
                Err(code) => return code,
            },
        };
        written.servers.clone_from(&target.config.servers);
        let work = async |gateway: &Gateway| self.report(warnings, &written, gateway).await;
        block_on(
            1,
            gateway::with(target.only_looking(), OutputFormat::of(self.json), work),
        )
    }

    async fn report(
        &self,
        mut notices: Vec<Notice>,
        config: &Config,
        gateway: &Gateway,
    ) -> ExitCode {
        let mut found = gateway.survey_replicas().await;
        found.retain(|server| server.state != ServerState::Disabled);
        let catalog = gateway.proxy().board().catalog();
        let problems = catalog.problems();
        let is_whole = problems.iter().all(|problem| problem.cost() != Cost::Item);
        let ok = is_whole && found.iter().all(FoundServer::is_connected);
        let (schemas, unseen) = gateway.schemas(&found).await;
        let problems = problems.iter().chain(schemas.iter().flat_map(|it| &**it));
        let odd = found.iter().flat_map(FoundServer::odd_replicas);
        let odd = odd.chain(problems.map(ToString::to_string));
        let odd = odd.chain(unseen.iter().map(unseen_schemas));
        let odd = odd.map(|message| Notice::warning(harmless(&message), None));
        let mut odd: Vec<Notice> = odd.collect();
        let (stored, refused, unread) = stored_agents(config).await;
        odd.extend(unusable_data_dir(config));
        odd.extend(refused);
        odd.extend(unread.or_else(|| no_caller(config, &stored)));
        odd.extend(unmatched(config, &stored, gateway));
        let printed = if self.json {
            notices.extend(odd);
            print_json(&json!({ "ok": ok, "notices": notices, "servers": found }))
        } else {
            let printed = table(&found).print();
            warn(&odd);
            printed
        };
        if ok { printed } else { ExitCode::FAILURE }
    }
}

/// `loaded`, where a gateway would start with it.
fn vetted(loaded: LoadedConfig) -> Result<LoadedConfig, Mistakes> {
    match app::vet(&loaded.config) {
        Ok(()) => Ok(loaded),
        Err(error) => {
            let mut notices = loaded.warnings;
            notices.push(Notice::mistake(error.to_string()));
            Err(Mistakes {
                notices,
                named_files: loaded.config.named_files,
            })
        }
    }
}

/// Warns of a data directory with which a gateway would not start. That is no mistake of the config: who
/// checks it need not be the user who runs it, nor be on the same machine.
fn unusable_data_dir(config: &Config) -> Option<Notice> {
    let error = app::unusable_data_dir(config)?;
    let message = format!("a gateway of this user would not start: {error}");
    Some(Notice::warning(message, None))
}

/// Warns of a config with which nobody could call, where the store has the agents `stored`.
fn no_caller(config: &Config, stored: &[StoredAgent]) -> Option<Notice> {
    let needs_key = config.governance.auth == Authentication::Keys;
    if !needs_key || !config.agents.is_empty() || !stored.is_empty() {
        return None;
    }
    let message = "nobody could call: `governance.auth` is \"keys\", and there is no agent, neither in \
                   the config nor in the store";
    let help = "write a section `[agents.NAME]` with `keys`, or use `agents add` and `keys create`";
    Some(Notice::warning(message.to_owned(), Some(help.to_owned())))
}

/// What came of a config without mistakes, for people: a config may be right and yet of no use.
fn summary(config: &Config) -> String {
    let all = config.servers.len();
    let disabled = config.servers.values().filter(|it| !it.enabled).count();
    let servers = match (all, disabled) {
        (0, _) => {
            return "no mistakes, but no servers: clients would be offered nothing".to_owned();
        }
        (1, 0) => "1 server".to_owned(),
        (_, 0) => format!("{all} servers"),
        (_, _) if all == disabled => {
            return "no mistakes, but all servers are disabled: clients would be offered nothing"
                .to_owned();
        }
        (_, _) => format!("{all} servers, {disabled} of them disabled"),
    };
    format!("no mistakes: {servers}; not connected to, see --connect")
}

/// Says that nobody knows what is wrong with the schemas that `server` lists.
fn unseen_schemas(server: &ServerName) -> String {
    let wait = humantime::format_duration(gateway::SCHEMAS_WAIT);
    format!("{server}: tools: not every `inputSchema` was looked at within {wait}")
}

/// The agents of the store that those of `config` do not hide, what is said of rows there that count for
/// nothing, and why it cannot be read, if so.
async fn stored_agents(config: &Config) -> (Vec<StoredAgent>, Vec<Notice>, Option<Notice>) {
    let read: Result<_, StoreError> = async {
        if !config.data_dir.join(FILE_NAME).exists() {
            return Ok(Default::default());
        }
        // A check before an upgrade must not be the upgrade.
        let store = Store::open_unchanged(&config.data_dir).await?;
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
            let refused = refused.map(|row| Notice::warning(harmless(&row.to_string()), None));
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
fn unmatched(config: &Config, stored: &[StoredAgent], gateway: &Gateway) -> Vec<Notice> {
    let only = match &gateway.scope {
        Scope::Server(server) => Some(server),
        Scope::All | Scope::Profile(_) => None,
    };
    let names = ServerItems::of(config, &gateway.proxy().board().offers());
    let patterns = ConfigPatterns::of(config).and_of(stored);
    let mut warnings = patterns.spanning(config);
    warnings.extend(patterns.warnings(&names, only));
    warnings
}

fn table(found: &[FoundServer]) -> TextTable<8> {
    let mut table = TextTable::new([
        "SERVER",
        "STATE",
        "REVISION",
        "LATENCY",
        "TOOLS",
        "RESOURCES",
        "PROMPTS",
        "REASON",
    ]);
    for server in found {
        let latency = server.latency_ms.map(|ms| format!("{ms} ms"));
        table.add([
            server.server.clone(),
            server.state().to_owned(),
            server.revision.unwrap_or_default().to_owned(),
            latency.unwrap_or_default(),
            server.count(&[Kind::Tools]),
            server.count(&[Kind::Resources, Kind::Templates]),
            server.count(&[Kind::Prompts]),
            server.explanation(),
        ]);
    }
    table
}
