//! `tollbridge login` and `tollbridge logout`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use tokio::time::{Instant, sleep};
use url::Url;

use super::{
    args::{self, ConfigArgs},
    block_on,
    data_dir::{self, AccessMode, AuditNote, CommandError, DataDir, exit_code},
    output::{OutputFormat, eprint, print, print_json},
    process_context, report_start_error, usage_error,
};
use crate::{
    app::{self, RunningGateway, run_sign_in_command},
    audit::{ChangedValues, EventKind},
    config::{Config, Listen, Server},
    control_socket::{self, SignInAction, SignInCommand, SignInReport},
    sign_in::LINK_TTL,
    store::{GrantOwner, StoredGrant},
};

/// How often it is looked whether the person has signed in.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Sign in to a server in a browser
#[derive(Args, Debug)]
pub(super) struct LoginArgs {
    #[command(flatten)]
    account: AccountArgs,
    /// Print the link as JSON and do not wait
    #[arg(long)]
    json: bool,
}

/// Give up what a server granted
#[derive(Args, Debug)]
pub(super) struct LogoutArgs {
    /// Name of the server
    #[arg(required_unless_present = "all")]
    server: Option<String>,
    /// Give up the grant of this agent. Default: that of the gateway
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Forget the grants of everybody towards all servers, also when the key is lost that they are sealed
    /// with. Their authorization servers are not told
    #[arg(long, conflicts_with_all = ["server", "agent"])]
    all: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Whose grant, towards which server.
#[derive(Args, Debug)]
struct AccountArgs {
    /// Name of the server
    server: String,
    /// Sign in for this agent. Default: for the gateway, whose grant serves every agent, or gives the
    /// lists of a server with `per_user`
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// The gateway that is asked: one that runs, or one of this process.
enum SignInGateway {
    Own(Box<RunningGateway>),
    Running(Box<Config>),
}

impl LoginArgs {
    pub(super) fn run(&self) -> ExitCode {
        let form = OutputFormat::from_flag(self.json);
        self.account.run(form, async |gateway| {
            let before = gateway.ask(&self.account, SignInAction::State).await?;
            let link = gateway.ask(&self.account, SignInAction::Link).await?;
            if self.json {
                if let SignInGateway::Own(_) = gateway {
                    return Err("--json needs a running gateway".to_owned());
                }
                return Ok(print_json(&link));
            }
            let (url, code) = (
                link.url.as_deref().unwrap_or_default(),
                link.code.as_deref().unwrap_or_default(),
            );
            print(&format!("{url}\n"));
            eprint(&format!(
                "Open the link in a browser; the page shows the code {code}. Waiting...\n"
            ));
            self.wait(gateway, &before).await
        })
    }

    async fn wait(
        &self,
        gateway: &SignInGateway,
        before: &SignInReport,
    ) -> Result<ExitCode, String> {
        let deadline = Instant::now() + LINK_TTL;
        while Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
            let now = gateway.ask(&self.account, SignInAction::State).await?;
            if now.status == "connected" && now.granted != before.granted {
                let scopes = match now.scopes.join(" ") {
                    scopes if scopes.is_empty() => String::new(),
                    scopes => format!(" (scopes: {scopes})"),
                };
                eprint(&format!("signed in to `{}`{scopes}\n", self.account.server));
                return Ok(ExitCode::SUCCESS);
            }
        }
        Err("nobody signed in; the link has expired".to_owned())
    }
}

impl LogoutArgs {
    pub(super) fn run(&self) -> ExitCode {
        let Some(server) = &self.server else {
            return data_dir::with_data_dir_and_servers(
                &self.config,
                OutputFormat::Text,
                AccessMode::Change,
                forget_grants,
            );
        };
        let account = AccountArgs {
            server: server.clone(),
            agent: self.agent.clone(),
            config: self.config.clone(),
        };
        account.run(OutputFormat::Text, async |gateway| {
            gateway.ask(&account, SignInAction::Revoke).await?;
            eprint(&format!("signed out of `{server}`\n"));
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Forgets every grant of the store. It takes no key.
async fn forget_grants(data_dir: &DataDir) -> Result<ExitCode, CommandError> {
    let grants = data_dir.store.grants.all_grants(None).await?;
    let servers = &data_dir.config.servers;
    let note = |grant: &StoredGrant| {
        let is_towards = |server: &Server| {
            let remote = server.transport.remote();
            let url = remote.and_then(|remote| Url::parse(&remote.url.to_string()).ok());
            url.is_some_and(|url| url.as_str() == grant.key.resource)
        };
        let server = servers.iter().find(|(_, server)| is_towards(server));
        AuditNote {
            event: EventKind::ServerSignedOut,
            subject: server.map_or_else(|| grant.key.resource.clone(), |it| it.0.to_string()),
            detail: match grant.key.owner {
                GrantOwner::Agent(agent) => format!("forgotten, of {agent}"),
                GrantOwner::Gateway => "forgotten, of the gateway".to_owned(),
            },
            changes: ChangedValues::default(),
        }
    };
    let notes: Vec<_> = grants.iter().map(note).collect();
    let forget = data_dir.store.grants.remove_all_grants();
    let is_notified = data_dir.apply_change(&notes, forget).await?;
    let count = match grants.len() {
        1 => "1 grant".to_owned(),
        count => format!("{count} grants"),
    };
    let code = print(&format!(
        "{count} forgotten; people have to sign in again\n"
    ));
    Ok(exit_code(code, is_notified))
}

impl AccountArgs {
    /// Does `work` with the gateway that runs with the config, or with one of this process.
    fn run(
        &self,
        form: OutputFormat,
        work: impl AsyncFnOnce(&SignInGateway) -> Result<ExitCode, String>,
    ) -> ExitCode {
        let config = match self.config.load_with_quiet_log(form) {
            Ok(config) => config,
            Err(code) => return code,
        };
        if let Err(code) = args::find_server(&self.server, &config) {
            return code;
        }
        block_on(1, async {
            let command = self.command(SignInAction::State, &config);
            let found = control_socket::ask_sign_in(&config.data_dir, &command).await;
            let gateway = match found {
                Some(_) => SignInGateway::Running(Box::new(config)),
                None => match app::start(&own_config(config), process_context()).await {
                    Ok(gateway) => SignInGateway::Own(Box::new(gateway)),
                    Err(error) => return report_start_error(&error),
                },
            };
            let done = work(&gateway).await;
            if let SignInGateway::Own(gateway) = gateway {
                gateway.stop().await;
            }
            done.unwrap_or_else(|reason| usage_error(&reason))
        })
    }

    fn command(&self, action: SignInAction, config: &Config) -> SignInCommand {
        SignInCommand {
            files: control_socket::canonical_files(&config.files).unwrap_or_default(),
            server: self.server.clone(),
            agent: self.agent.clone(),
            action,
        }
    }
}

impl SignInGateway {
    async fn ask(
        &self,
        account: &AccountArgs,
        action: SignInAction,
    ) -> Result<SignInReport, String> {
        match self {
            Self::Own(gateway) => {
                let command = SignInCommand {
                    files: Vec::new(),
                    server: account.server.clone(),
                    agent: account.agent.clone(),
                    action,
                };
                run_sign_in_command(&gateway.core().proxy, &command).await
            }
            Self::Running(config) => {
                let command = account.command(action, config);
                let answer = control_socket::ask_sign_in(&config.data_dir, &command).await;
                answer.unwrap_or_else(|| Err("the gateway has stopped".to_owned()))
            }
        }
    }
}

/// The config of a gateway of this process: it runs no server, and browsers of this machine alone reach it.
fn own_config(mut config: Config) -> Config {
    for server in config.servers.values_mut() {
        server.enabled = false;
    }
    config.listen = Listen::Address(([127, 0, 0, 1], 0).into());
    config.admin_listen = None;
    config.public_url = None;
    config.tls = None;
    config
}
