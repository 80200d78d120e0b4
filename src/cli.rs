//! The command line: one file for each subcommand; tables for people and `--json` from one value.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage or config, 3 a drain that had to be cut short.

mod serve;
mod stdio;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use crate::{
    app::Surroundings,
    backend::guard,
    config::{self, Config, Environment, Loaded},
    telemetry,
};

/// Wrong usage or config.
const EXIT_CONFIG: u8 = 2;
/// A drain that had to be cut short.
const EXIT_CUT_SHORT: u8 = 3;

/// One URL in front of every MCP server.
#[derive(Debug, Parser)]
#[command(name = "tollbridge", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the JSON Schema of the config
    Schema,
    /// Serve clients over HTTP
    Serve(serve::Serve),
    /// Serve one client on stdin and stdout
    Stdio(stdio::Stdio),
    /// End the child processes of a gateway that died (started by the gateway itself)
    #[command(hide = true)]
    Guard {
        /// Marks the children.
        marker: String,
    },
}

/// Where the config is.
#[derive(Args, Clone, Debug)]
struct ConfigArgs {
    /// Config file (TOML, YAML or JSON); several are merged, later ones win. Without it,
    /// `tollbridge.{toml,yaml,json}` is looked for here and in your config directory
    #[arg(long, short, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// What is logged, such as `info` or `tollbridge=debug`; `RUST_LOG` comes first
    #[arg(long, value_name = "FILTER", global = true)]
    log_level: Option<String>,
    /// Shape of log lines: human or json
    #[arg(long, value_name = "FORMAT", global = true)]
    log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormat {
    Human,
    Json,
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::Serve(serve) => serve.run(),
        Command::Stdio(stdio) => stdio.run(),
        Command::Guard { marker } => {
            guard::run(&marker, io::stdin().lock());
            ExitCode::SUCCESS
        }
    }
}

impl ConfigArgs {
    /// Reads the config and starts logging; what is wrong goes to stderr.
    fn load(&self) -> Result<Config, ExitCode> {
        let files = if self.config.is_empty() {
            config::find_default().into_iter().collect()
        } else {
            self.config.clone()
        };
        if files.is_empty() {
            say("no config: give one with --config FILE, or put tollbridge.toml here\n");
            return Err(ExitCode::from(EXIT_CONFIG));
        }
        let environment = Environment::of_process();
        match config::load(&files, &environment) {
            Ok(Loaded { mut config, warnings }) => {
                for warning in &warnings {
                    say(&format!("{warning}\n"));
                }
                self.start_log(&mut config, environment.get("RUST_LOG"))?;
                Ok(config)
            }
            Err(mistakes) => {
                say(&format!("{mistakes}\n"));
                Err(ExitCode::from(EXIT_CONFIG))
            }
        }
    }

    fn start_log(&self, config: &mut Config, rust_log: Option<&str>) -> Result<(), ExitCode> {
        if let Some(level) = rust_log.or(self.log_level.as_deref()) {
            level.clone_into(&mut config.log.level);
        }
        match self.log_format {
            Some(LogFormat::Human) => config.log.format = config::LogFormat::Human,
            Some(LogFormat::Json) => config.log.format = config::LogFormat::Json,
            None => {}
        }
        telemetry::start(&config.log).map_err(|invalid| {
            say(&format!("{invalid}\n"));
            ExitCode::from(EXIT_CONFIG)
        })
    }
}

/// This program, to be run as the guard of its children.
fn surroundings() -> Surroundings {
    Surroundings { guard: std::env::current_exe().ok() }
}

/// A runtime with `workers` threads.
fn runtime(workers: usize) -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()
}

/// Runs `work` on a runtime of its own.
fn block_on(workers: usize, work: impl Future<Output = ExitCode>) -> ExitCode {
    match runtime(workers) {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => {
            say(&format!("no runtime: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Completes on Ctrl-C or SIGTERM.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        Err(error) => {
            tracing::warn!(%error, "SIGTERM is not handled");
            drop(tokio::signal::ctrl_c().await);
            return;
        }
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Writes to stdout; a closed pipe is a quiet failure.
fn print(text: &str) -> ExitCode {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Writes to stderr.
fn say(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}
