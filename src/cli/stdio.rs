//! `tollbridge stdio`

use std::{process::ExitCode, sync::Arc};

use clap::Args;

use super::{ConfigArgs, EXIT_CUT_SHORT, block_on, interrupted, say, surroundings};
use crate::{
    app::Core,
    config::Config,
    names::{Scope, ServerName},
    stdio::Edge,
};

/// Serve one client on stdin and stdout
#[derive(Args, Debug)]
pub(super) struct Stdio {
    #[command(flatten)]
    config: ConfigArgs,
    /// Serve this server alone, under its own names
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
}

impl Stdio {
    pub(super) fn run(self) -> ExitCode {
        let config = match self.config.load() {
            Ok(config) => config,
            Err(code) => return code,
        };
        let scope = match self.server.as_deref().map(ServerName::parse) {
            None => Scope::All,
            Some(Ok(name)) if config.servers.contains_key(&name) => Scope::Server(name),
            Some(_) => {
                let known: Vec<_> = config.servers.keys().map(ServerName::as_str).collect();
                say(&format!("there is no such server; these are: {}\n", known.join(", ")));
                return ExitCode::from(super::EXIT_CONFIG);
            }
        };
        block_on(config.workers, serve(&config, scope))
    }
}

async fn serve(config: &Config, scope: Scope) -> ExitCode {
    let core = Core::start(config, surroundings());
    let edge = Edge::new(Arc::clone(&core.proxy), scope, &config.limits, core.tasks());
    let stop = core.tasks().stop_token().child_token();
    let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
    tokio::select! {
        () = edge.serve(input, output, stop) => {}
        () = interrupted() => {}
    }
    let drained = core.stop().await;
    // A thread of the runtime may still wait for input that never comes.
    if drained { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CUT_SHORT) }
}
