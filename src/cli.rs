//! The command line: one file for each subcommand; tables for people and `--json` from one value.
//!
//! stdout carries what was asked for, stderr everything else. Exit codes: 0 done, 1 failed, 2 wrong
//! usage or config, 3 a drain that had to be cut short, 130 interrupted.

mod agents;
mod args;
mod audit;
mod budget;
mod call;
mod check;
mod completions;
mod config_export;
mod data_dir;
mod doctor;
mod entries;
mod gateway;
mod gateway_target;
mod keys;
mod list;
mod login;
mod login_code;
mod offline_api;
mod output;
mod policy;
mod qualified_names;
mod secret;
mod serve;
mod server_summary;
mod service;
mod sign_ins;
mod stdio;
mod suggest;
mod table;
mod ui;
mod url_target;
mod usage_tips;

use std::{pin::pin, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api,
    app::{ProcessContext, StartError},
    config, launcher,
};
use output::{eprint, print};

/// Wrong usage or config.
const EXIT_CONFIG: u8 = 2;
/// A drain that had to be cut short.
const EXIT_DRAIN_TIMEOUT: u8 = 3;
/// Ended by Ctrl-C or SIGTERM, in the shell's own way of counting.
const EXIT_INTERRUPTED: u8 = 130;

/// Signals nearer to each other than this are one.
const SIGNAL_DEBOUNCE: Duration = Duration::from_millis(100);

/// One URL in front of every MCP server.
#[derive(Debug, Parser)]
#[command(name = "tollbridge", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Of these only the one that is run learns its arguments: a gateway that serves has no use for those
/// of all others.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum Command {
    /// Manage agents
    Agents(agents::AgentsArgs),
    /// Query, export and verify the audit log
    Audit(audit::AuditArgs),
    /// Show, set and reset budgets
    Budget(budget::BudgetArgs),
    /// Call a tool
    Call(call::CallArgs),
    /// Validate the config, and with --connect the servers
    Check(check::CheckArgs),
    /// Print a shell completion script
    Completions(completions::Completions),
    /// Print the config in one file
    Config(config_export::ConfigCommandArgs),
    /// Find out why something does not work
    Doctor(doctor::DoctorArgs),
    /// Create, list and revoke API keys
    Keys(keys::KeysArgs),
    /// List servers, tools, resources or prompts
    List(list::ListArgs),
    /// Sign in to a server in a browser
    Login(login::LoginArgs),
    /// Give up what a server granted
    Logout(login::LogoutArgs),
    /// Print a one-time code with which a person signs in as an agent
    LoginCode(login_code::LoginCodeArgs),
    /// Explain effective policies
    Policy(policy::PolicyArgs),
    /// Show profiles, and change those of the store
    Profile(entries::ProfileArgs),
    /// Print the JSON Schema of the config
    Schema {
        /// Print the OpenAPI description of the admin API instead
        #[arg(long)]
        openapi: bool,
    },
    /// Set, list and remove secrets that the config refers to as `${secret:NAME}`
    Secret(secret::SecretArgs),
    /// Run the gateway over HTTP
    Serve(serve::Serve),
    /// Show servers, and change those of the store
    Server(entries::ServerArgs),
    /// List and revoke what people granted to OAuth clients
    SignIns(sign_ins::SignInsArgs),
    /// Run the gateway for one client on stdin and stdout
    Stdio(stdio::Stdio),
    /// Print a link that opens the dashboard
    Ui(ui::UiArgs),
    /// Show views of the catalog, and make, change and end them for agents
    View(entries::ViewArgs),
    /// Show workspaces, and change those of the store
    Workspace(entries::WorkspaceArgs),
    /// Confine and start a program (run by the gateway itself)
    #[command(hide = true)]
    Launcher {
        /// What it is to do.
        step: Vec<String>,
    },
}

/// The command line as clap knows it; `docs/src/reference/commands.md` is made of it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| usage_tips::with_tip(error).exit());
    match cli.command {
        Command::Agents(agents) => agents.run(),
        Command::Audit(audit) => audit.run(),
        Command::Budget(budget) => budget.run(),
        Command::Call(call) => call.run(),
        Command::Check(check) => check.run(),
        Command::Completions(completions) => completions.run(),
        Command::Config(config) => config.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Keys(keys) => keys.run(),
        Command::List(list) => list.run(),
        Command::Login(login) => login.run(),
        Command::Logout(logout) => logout.run(),
        Command::LoginCode(login_code) => login_code.run(),
        Command::Policy(policy) => policy.run(),
        Command::Profile(profile) => profile.run(),
        Command::Server(server) => server.run(),
        Command::Schema { openapi: true } => {
            print(&format!("{}\n", String::from_utf8_lossy(&api::openapi())))
        }
        Command::Schema { openapi: false } => print(&format!("{:#}\n", config::schema())),
        Command::Secret(secret) => secret.run(),
        Command::Serve(serve) => serve.run(),
        Command::SignIns(sign_ins) => sign_ins.run(),
        Command::Stdio(stdio) => stdio.run(),
        Command::Ui(ui) => ui.run(),
        Command::View(view) => view.run(),
        Command::Workspace(workspace) => workspace.run(),
        Command::Launcher { step } => launcher::run(&step),
    }
}

/// Says what is wrong with the command line or the config.
fn usage_error(message: &str) -> ExitCode {
    eprint(&format!("{message}\n"));
    ExitCode::from(EXIT_CONFIG)
}

/// Says why something failed that was asked for in the right way.
fn report_failure(error: &dyn std::error::Error) -> ExitCode {
    eprint(&format!("{error}\n"));
    ExitCode::FAILURE
}

/// Says why no gateway starts.
fn report_start_error(error: &StartError) -> ExitCode {
    if error.is_config_error() {
        usage_error(&error.to_string())
    } else {
        report_failure(error)
    }
}

/// This binary, to be run as the launcher of programs. From here on no other process of our user sees
/// what we know.
fn process_context() -> ProcessContext {
    launcher::deny_memory_access();
    ProcessContext {
        launcher: launcher::current_binary().ok(),
    }
}

/// Runs `work` on a runtime of its own with `workers` threads.
fn block_on(workers: usize, work: impl Future<Output = ExitCode>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(async {
                ignore_sigxfsz();
                work.await
            });
            // A thread of the runtime may still wait for input that never comes.
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            eprint(&format!("cannot start the runtime: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// What the process exits with once `stop` has ended a gateway. When it is interrupted `again` that waits for
/// nothing but its records, and launchers see to their programs.
async fn drain_exit_code(
    stop: impl Future<Output = bool>,
    again: impl Future<Output = ()>,
    abort: CancellationToken,
) -> ExitCode {
    let mut stop = pin!(stop);
    let drained = tokio::select! {
        drained = &mut stop => drained,
        () = again => {
            tracing::warn!("stopping immediately; cutting off running calls");
            abort.cancel();
            // A log that was not closed would look like that of a crash.
            drop(timeout(ABORT_TIMEOUT, stop).await);
            false
        }
    };
    if drained {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_DRAIN_TIMEOUT)
    }
}

/// How long the end of a gateway may take that is to wait for nothing but its records.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Completes on Ctrl-C or SIGTERM; from this call on neither ends the process by itself.
fn interrupted() -> impl Future<Output = ()> {
    let interrupt = wait_for_signal(SignalKind::interrupt());
    let terminate = wait_for_signal(SignalKind::terminate());
    async move {
        tokio::select! {
            () = interrupt => {}
            () = terminate => {}
        }
    }
}

/// Completes when another signal comes than the one that has just come: `timeout` and service managers
/// send it to a process and to its group, which makes two.
async fn second_interrupt() {
    // Meanwhile they are caught, and mean nothing.
    sleep(SIGNAL_DEBOUNCE).await;
    interrupted().await;
}

/// From now on a file that would outgrow what the system lets this process write (`ulimit -f`) fails the
/// write, as a full disk does, where it would end the process.
fn ignore_sigxfsz() {
    // Whoever has caught a signal once never gets its usual effect again.
    if let Err(error) = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) {
        tracing::warn!(%error, "cannot handle SIGXFSZ; exceeding the file size limit would \
            terminate this process");
    }
}

/// Completes on a signal of `kind`; never when the system does not let us catch it.
fn wait_for_signal(kind: SignalKind) -> impl Future<Output = ()> {
    let caught = signal(kind);
    async move {
        match caught {
            Ok(mut signals) => signals.recv().await.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, ?kind, "cannot install a signal handler");
                std::future::pending::<()>().await;
            }
        }
    }
}
