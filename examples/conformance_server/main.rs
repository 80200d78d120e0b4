//! A conformance server: every fixture that the official MCP conformance suite expects, written on
//! rmcp, so that the suite can judge the gateway in front of a server that itself passes.
//!
//! `tests/suites/conformance.py` starts it. `--http` serves Streamable HTTP on loopback and prints
//! the URL as the first line of stdout; `--stdio` serves stdin and stdout. Both serve the handshake
//! revisions and 2026-07-28 alike, with the same tools; what differs between the eras is in `ask`.
//! `RUST_LOG` says what of rmcp's log goes to stderr, by default errors.
//! Nothing in here may import the gateway: a judge that shares code with the judged sees nothing.

#![forbid(unsafe_code)]
#![expect(
    deprecated,
    reason = "the suite still asks for sampling, roots and logging"
)]

mod server;

mod tools;

mod prompts;

mod resources;

mod ask;

mod listeners;

mod http;

mod sessions;

use std::error::Error;

use clap::{Args, Parser};
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::stdio;
use tracing_subscriber::EnvFilter;

use crate::server::Fixtures;

/// Serves the fixtures of the MCP conformance suite.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    transport: Transport,

    /// Port of `--http` on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Transport {
    /// Serve Streamable HTTP and print the URL.
    #[arg(long)]
    http: bool,

    /// Serve stdin and stdout until stdin closes.
    #[arg(long)]
    stdio: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let fixtures = Fixtures::new();
    if options.transport.stdio {
        serve_stdio(fixtures).await
    } else {
        http::serve(fixtures, options.port).await
    }
}

async fn serve_stdio(fixtures: Fixtures) -> Result<(), Box<dyn Error>> {
    match fixtures.serve(stdio()).await {
        Ok(connection) => {
            connection.waiting().await?;
            Ok(())
        }
        // A client that only asks `server/discover` and leaves has ended well.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
