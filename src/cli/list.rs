//! `tollbridge list`

use std::{io, path::Path, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use tokio::time::{Instant, sleep};

use super::{
    block_on,
    gateway::{self, Gateway},
    gateway_target::{GatewayTarget, TargetArgs},
    output::{OutputFormat, eprint, error_text, print_json, print_raw_json},
    report_failure,
    server_summary::{FoundServer, servers_in_status},
    table::TextTable,
};
use crate::{
    backend::ServerState,
    catalog::{Kind, Lookup},
    config::Config,
    control_socket,
    mcp::{Method, Raw, json},
    names::{Scope, ServerName, ServerOwner},
};

/// How a script knows what came of it.
const EXIT_CODES: &str = "\
Exit code: 0 when everything was listed; 1 when items are missing because a server is not connected,
does not list them, or names collide (`list servers`: when every enabled server failed); 2 for a wrong
command line or config.";

/// How often a running gateway is asked whether its servers are connected.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

/// List servers, tools, resources or prompts
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ListArgs {
    /// What to list
    #[arg(value_enum, default_value = "tools")]
    what: What,
    #[command(flatten)]
    target: TargetArgs,
    /// How long to wait for servers. Slower ones are named on stderr and their items are missing
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Print JSON: the items as the servers sent them
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    Servers,
    Tools,
    /// Including resource templates
    Resources,
    Prompts,
}

impl ListArgs {
    pub(super) fn run(&self) -> ExitCode {
        let target = match self.target.resolve(OutputFormat::from_flag(self.json)) {
            Ok(target) => target,
            Err(code) => return code,
        };
        block_on(1, self.list_target(target))
    }

    async fn list_target(&self, target: GatewayTarget) -> ExitCode {
        let scope = target.scope.clone();
        let sees = self
            .target
            .agent()
            .map(|agent| server_filter(agent, &target.config));
        let target = match scope {
            // Which servers a profile or a view shows anything of, no status says.
            Scope::Profile(_) | Scope::View { .. } => Ok(target),
            Scope::All | Scope::Server(_) => target.via_running_gateway().await,
        };
        let target = match target {
            Ok(target) => target,
            Err(code) => return code,
        };
        let mut is_whole = true;
        if let Some(socket) = &target.gateway_socket {
            let mut servers = match running_servers(socket, &scope, self.wait).await {
                Ok(servers) => servers,
                Err(error) => return report_failure(&error),
            };
            if let Some(sees) = &sees {
                servers.retain(|found| sees(&found.server));
            }
            if let What::Servers = self.what {
                return print_servers(&servers, self.json);
            }
            for server in servers.iter().filter(|server| !server.is_listed()) {
                server.report("not connected");
                is_whole = false;
            }
        }
        let target = target.read_only().with_list_timeout(self.wait);
        let form = OutputFormat::from_flag(self.json);
        // A running gateway does not say whose the items of merged routes are, and names tell nothing.
        let is_merged = target.gateway_socket.is_some() && scope == Scope::All;
        let listed = gateway::with(target, form, async |gateway| {
            self.list(gateway, is_merged).await
        });
        let listed = listed.await;
        if is_whole { listed } else { ExitCode::FAILURE }
    }

    async fn list(&self, gateway: &Gateway, is_merged: bool) -> ExitCode {
        let found = gateway.wait_for_servers().await;
        if found
            .iter()
            .any(|server| server.state == ServerState::Connecting)
        {
            report_timeout(self.wait);
        }
        match self.what {
            What::Servers => print_servers(&found, self.json),
            What::Tools => self.print_items(&[Kind::Tools], gateway, is_merged).await,
            What::Resources => {
                let kinds = [Kind::Resources, Kind::Templates];
                self.print_items(&kinds, gateway, is_merged).await
            }
            What::Prompts => self.print_items(&[Kind::Prompts], gateway, is_merged).await,
        }
    }

    /// Prints the items of `kinds`; it counts as failed when a server's are missing. Where they are merged by
    /// the running gateway, their servers are not shown.
    async fn print_items(&self, kinds: &[Kind], gateway: &Gateway, is_merged: bool) -> ExitCode {
        let complete = gateway.report_unhealthy(kinds) & gateway.report_missing_items(kinds);
        gateway.report_hidden_route();
        let mut items = Vec::new();
        for kind in kinds {
            match fetch(*kind, gateway).await {
                Ok(listed) => items.extend(listed.into_iter().map(|item| (*kind, item))),
                Err(refusal) => {
                    eprint(&format!("{}: {}\n", kind.method(), error_text(&refusal)));
                    return ExitCode::FAILURE;
                }
            }
        }
        let printed = if self.json {
            print_raw_json(&json_array(&items))
        } else if items.is_empty() && !complete {
            // What is missing was said; the head of a table would say that there is nothing.
            ExitCode::FAILURE
        } else {
            table(&items, gateway, is_merged).print()
        };
        if complete { printed } else { ExitCode::FAILURE }
    }
}

/// Which servers the agent called `name` sees, as far as the config says of which team it is.
fn server_filter(name: &str, config: &Config) -> impl Fn(&str) -> bool + use<> {
    let mut agents = config.agents.values();
    let agent = agents.find(|agent| agent.name == name || agent.id.to_string() == name);
    let agent = agent.map(|agent| (agent.id, agent.team.clone()));
    move |server| {
        let owner = ServerName::parse(server).map(|server| server.owner());
        owner.is_ok_and(|owner| match &agent {
            Some((id, team)) => owner.is_visible_to(*id, team.as_deref()),
            None => owner == ServerOwner::Gateway,
        })
    }
}

/// The servers of the gateway at `socket` that matter for `scope`, once none is connecting or `wait` is
/// over.
pub(super) async fn running_servers(
    socket: &Path,
    scope: &Scope,
    wait: Duration,
) -> io::Result<Vec<FoundServer>> {
    let end = Instant::now() + wait;
    loop {
        let mut servers = servers_in_status(&control_socket::read_status(socket).await?)?;
        if let Scope::Server(server) = scope {
            servers.retain(|found| found.server == server.as_str());
        }
        let is_connecting = |found: &FoundServer| found.state == ServerState::Connecting;
        if !servers.iter().any(is_connecting) {
            return Ok(servers);
        }
        if Instant::now() >= end {
            report_timeout(wait);
            return Ok(servers);
        }
        sleep(STATUS_INTERVAL.min(wait)).await;
    }
}

/// Says that servers took longer than `wait`.
pub(super) fn report_timeout(wait: Duration) {
    let wait = humantime::format_duration(wait);
    eprint(&format!(
        "not all servers were listed within {wait} (--wait)\n"
    ));
}

async fn fetch(kind: Kind, gateway: &Gateway) -> Result<Vec<Raw>, Raw> {
    let method = Method::parse(kind.method());
    let result = gateway.request(method, "", |_, _| {}).await?;
    let array = result.member(kind.member()).map(|span| span.start);
    let items = array.map(|at| json::elements(result.as_bytes(), at));
    Ok(items
        .into_iter()
        .flatten()
        .map(|span| result.slice(span))
        .collect())
}

/// One item a line, byte for byte as listed.
fn json_array(items: &[(Kind, Raw)]) -> String {
    let lines: Vec<String> = items
        .iter()
        .map(|(_, item)| format!("\n{}", item.as_str()))
        .collect();
    if lines.is_empty() {
        "[]\n".to_owned()
    } else {
        format!("[{}\n]\n", lines.join(","))
    }
}

fn table(items: &[(Kind, Raw)], gateway: &Gateway, is_merged: bool) -> TextTable<3> {
    let mut table = TextTable::new(["NAME", "SERVER", "DESCRIPTION"]).fit_to_terminal();
    for (kind, item) in items {
        let member = |key: &str| {
            let value = item.get(key);
            value.as_ref().and_then(Raw::as_text).map(String::from)
        };
        let name = member(kind.key()).unwrap_or_default();
        let server = server_of(*kind, &name, gateway).filter(|_| !is_merged);
        let about = member("description").filter(|text| !text.trim().is_empty());
        let about = about.or_else(|| member("title")).unwrap_or_default();
        table.add([name, server.unwrap_or_default(), about]);
    }
    table
}

/// The server that has the item called `name`.
fn server_of(kind: Kind, name: &str, gateway: &Gateway) -> Option<String> {
    let catalog = gateway.catalog();
    let scope = &gateway.scope;
    let server = match kind {
        Kind::Tools => catalog.tool(scope, name)?.server.clone(),
        Kind::Prompts => catalog.prompt(scope, name)?.server.clone(),
        Kind::Resources | Kind::Templates => match catalog.resource(scope, name) {
            Lookup::Found { server, .. } => server,
            Lookup::Ambiguous { .. } | Lookup::NotFound => return None,
        },
    };
    Some(server.to_string())
}

/// Prints how servers do; it counts as failed when none of those that are enabled is there.
fn print_servers(found: &[FoundServer], json: bool) -> ExitCode {
    let printed = if json {
        print_json(&found)
    } else {
        servers_table(found).print()
    };
    let mut enabled = found
        .iter()
        .filter(|server| server.state != ServerState::Disabled)
        .peekable();
    if enabled.peek().is_some() && !enabled.any(FoundServer::is_up) {
        return ExitCode::FAILURE;
    }
    printed
}

fn servers_table(found: &[FoundServer]) -> TextTable<8> {
    let mut table = TextTable::new([
        "SERVER",
        "STATE",
        "TRANSPORT",
        "REVISION",
        "TOOLS",
        "RESOURCES",
        "PROMPTS",
        "REASON",
    ]);
    for server in found {
        table.add([
            server.server.clone(),
            server.state().to_owned(),
            server.transport.to_string(),
            server.revision.as_deref().unwrap_or_default().to_owned(),
            server.count(&[Kind::Tools]),
            server.count(&[Kind::Resources, Kind::Templates]),
            server.count(&[Kind::Prompts]),
            server.explanation(),
        ]);
    }
    table
}
