//! `tollbridge stdio`

use std::{pin::pin, process::ExitCode, sync::Arc};

use clap::Args;

use super::{
    args::{self, ConfigArgs},
    block_on, drain_exit_code, interrupted, process_context, report_start_error, second_interrupt,
};
use crate::{
    app::{ConfigSource, GatewayCore},
    config::Config,
    names::Scope,
    stdio::StdioEdge,
};

/// Run the gateway for one client on stdin and stdout
#[derive(Args, Debug)]
pub(super) struct Stdio {
    #[command(flatten)]
    config: ConfigArgs,
    /// Serve only this server, under its own names
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    server: Option<String>,
    /// Serve this profile
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Agent of the calls. Required with `governance.auth = "keys"`
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
}

impl Stdio {
    pub(super) fn run(self) -> ExitCode {
        let server = self.server.clone();
        let adjust = move |config: &mut Config| {
            if let Some(server) = &server {
                config.servers.retain(|name, _| name.as_str() == server);
            }
        };
        let source = self.config.config_source(adjust.clone());
        let mut config = match self.config.load() {
            Ok(config) => config,
            Err(code) => return code,
        };
        let scope = match self.scope(&config) {
            Ok(scope) => scope,
            Err(code) => return code,
        };
        adjust(&mut config);
        let gateway = (scope, self.agent.as_deref());
        block_on(config.workers, serve(&config, source, gateway))
    }

    fn scope(&self, config: &Config) -> Result<Scope, ExitCode> {
        if let Some(name) = &self.server {
            return args::find_server(name, config).map(Scope::Server);
        }
        match &self.profile {
            Some(name) => args::find_profile(name, config).map(Scope::Profile),
            None => Ok(Scope::All),
        }
    }
}

async fn serve(
    config: &Config,
    source: ConfigSource,
    (scope, agent): (Scope, Option<&str>),
) -> ExitCode {
    let core = match GatewayCore::start(config, process_context()).await {
        Ok(core) => core,
        Err(error) => return report_start_error(&error),
    };
    let agent = match args::find_agent(agent, core.proxy.governance().directory()) {
        Ok(agent) => agent,
        Err(code) => {
            core.stop().await;
            return code;
        }
    };
    core.follow_config(source);
    let edge = StdioEdge::new(Arc::clone(&core.proxy), agent, scope, core.tasks());
    let stop = core.tasks().stop_token().child_token();
    let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
    let mut serving = pin!(edge.serve(input, output, stop));
    let served = tokio::select! {
        is_whole = &mut serving => Some(is_whole),
        () = interrupted() => None,
    };
    if let Some(is_whole) = served {
        // SDKs close our input, and send a signal when we take longer than two seconds: that is the first
        // word of it again.
        let once_more = async {
            interrupted().await;
            second_interrupt().await;
        };
        let stop = async { core.stop().await && is_whole };
        return drain_exit_code(stop, once_more).await;
    }
    // The answers of running calls are still to be written.
    let stop = async {
        let (drained, is_whole) = tokio::join!(core.stop(), serving);
        drained && is_whole
    };
    drain_exit_code(stop, second_interrupt()).await
}
