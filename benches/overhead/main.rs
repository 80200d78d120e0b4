//! What Tollbridge adds to a call, measured against a bare reverse proxy in the same run.
//!
//! `cargo bench --bench overhead` measures and prints ratios; `-- --smoke` is the short form for
//! continuous integration, which only checks that every call is answered rightly. `-- --help`
//! lists ways to look at one path alone, and `-- --soak` holds and ends very many sessions instead,
//! `-- --flood` shows what is left to an agent while others flood the gateway. The program starts
//! itself again, by role, as the servers and the proxy that Tollbridge is compared with; the parent
//! makes the calls. It reads `/proc`, so it runs on Linux only.
//!
//! Ratios are taken inside a round, between cells that ran one after the other, and the median
//! over the rounds is shown with its range: an absolute figure says as much about the machine as
//! about us. CPU time is that of the threads of the one process on the path that is measured, so
//! it holds on a busy machine as well; throughput and latency need a quiet one.
//!
//! Nothing in here may import the gateway: what is measured is the program that users run.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "the figures are what this program is for"
)]
#![expect(
    clippy::cast_precision_loss,
    reason = "figures have a few digits, a float has fifteen"
)]

mod plan;

mod flood;

mod soak;

mod cell;

mod memory;

mod idle;

mod figures;

mod report;

mod gateway;

mod client;

mod call;

mod process;

mod echo;

mod bare;

use std::{error::Error, net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;

use crate::call::Era;

/// The gateway's own allocator, so that the bare proxy is compared like with like.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What can go wrong, in words; this program only ever prints it.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// Worker threads of the bare proxy. The echo server and the load generator have one each, which
/// leaves the process that is measured room to run; the gateway has as many as it sees fit.
pub(crate) const WORKERS: usize = 2;

/// Measures what Tollbridge adds to a call.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    role: Option<Role>,

    #[command(flatten)]
    choice: Choice,

    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Cargo says so when it runs benchmarks; without it the run is a smoke test.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What is run, and how much of it.
#[derive(Clone, clap::Args, Debug)]
pub(crate) struct Choice {
    /// A small part of the work, in seconds: is every call answered rightly?
    #[arg(long)]
    pub(crate) smoke: bool,

    /// Only calls of this era.
    #[arg(long)]
    pub(crate) era: Option<Era>,

    /// Only these paths beside the bare proxy, such as `http`, `stdio-10` or `stdio-10-all`.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) path: Vec<String>,

    /// Only these numbers of connections.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) connections: Vec<usize>,

    /// Rounds, each of which runs every path once.
    #[arg(long)]
    pub(crate) rounds: Option<usize>,

    /// Measured calls of one path in one round.
    #[arg(long)]
    pub(crate) calls: Option<usize>,

    /// Leave out memory and start-up.
    #[arg(long)]
    pub(crate) only_calls: bool,

    /// Hold many idle sessions and streams, then open and end many more, and watch the memory.
    #[arg(long)]
    pub(crate) soak: bool,

    /// Show what is left to an agent while others flood the gateway.
    #[arg(long, value_name = "KIND", num_args = 0.., value_delimiter = ',', conflicts_with = "soak")]
    pub(crate) flood: Option<Vec<flood::Flood>>,

    #[command(flatten)]
    pub(crate) amounts: soak::Amounts,

    /// Another build of the gateway, to compare two.
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_tollbridge"))]
    pub(crate) gateway: PathBuf,

    /// Another build of this program, whose bare proxy is compared with.
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy: Option<PathBuf>,
}

impl Choice {
    /// Whether the path `name` is run.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.path.is_empty() || self.path.iter().any(|path| path == name)
    }
}

/// What a child of the benchmark is; nobody else calls these.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
enum Role {
    /// An MCP server with one tool, on HTTP.
    EchoHttp {
        #[arg(long)]
        era: Era,
    },
    /// The same on stdin and stdout.
    EchoStdio {
        #[arg(long)]
        era: Era,
    },
    /// A reverse proxy that knows nothing of JSON.
    BareProxy {
        #[arg(long)]
        target: http::uri::Authority,
    },
    /// A client that sends all it can.
    Flood {
        #[arg(long)]
        flood: flood::Flood,
        #[arg(long)]
        address: SocketAddr,
    },
}

fn main() -> ExitCode {
    let Options {
        role,
        mut choice,
        json,
        bench,
    } = Options::parse();
    choice.smoke |= !bench;
    let outcome = match role {
        Some(Role::EchoHttp { era }) => echo::serve_http(era),
        Some(Role::EchoStdio { era }) => echo::serve_stdio(era),
        Some(Role::BareProxy { target }) => bare::serve(&target),
        Some(Role::Flood { flood, address }) => flood::send(flood, address),
        None => measure(&choice, json),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("error: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn measure(choice: &Choice, json: Option<PathBuf>) -> Result<(), Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let figures = if choice.soak {
        runtime.block_on(soak::run(choice))?
    } else if let Some(floods) = &choice.flood {
        runtime.block_on(flood::run(choice, floods))?
    } else {
        runtime.block_on(plan::run(choice))?
    };
    print!("{}", report::table(&figures));
    if let Some(file) = json {
        std::fs::write(file, report::json(&figures))?;
    }
    match figures.faults.len() {
        0 => Ok(()),
        wrong => Err(format!("{wrong} things were not as they should be").into()),
    }
}
