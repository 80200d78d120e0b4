//! `tollbridge stdio`

use std::{pin::pin, process::ExitCode, sync::Arc};

use clap::Args;

use super::{
    args::{self, ConfigArgs},
    block_on,
    data_dir::check_store_owner,
    drain_exit_code, interrupted,
    output::OutputFormat,
    process_context, report_start_error, second_interrupt,
    url_target::UrlArgs,
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
    #[command(flatten)]
    url: UrlArgs,
    /// Serve only this server, under its own names
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    server: Option<String>,
    /// Serve this profile, with --url too
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Agent of the calls. Required with `governance.auth = "keys"`
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
}

impl Stdio {
    pub(super) fn run(self) -> ExitCode {
        let prepared = match self.url.config(self.profile.as_deref(), OutputFormat::Text) {
            Ok(Some((config, server))) => self.bridge(config, &server),
            Ok(None) => self.configured(),
            Err(code) => Err(code),
        };
        match prepared {
            Ok(served) => block_on(served.config.workers, serve(served)),
            Err(code) => code,
        }
    }

    /// What is at a URL, for clients that can only start a command.
    fn bridge(&self, mut config: Config, server: &str) -> Result<Served, ExitCode> {
        self.config.start_log(&mut config)?;
        let scope = args::find_server(server, &config).map(Scope::Server)?;
        Ok(Served {
            config,
            source: None,
            scope,
            agent: None,
        })
    }

    fn configured(self) -> Result<Served, ExitCode> {
        let server = self.server.clone();
        let adjust = move |config: &mut Config| {
            if let Some(server) = &server {
                config.servers.retain(|name, _| name.is_called(server));
            }
        };
        let source = self.config.config_source(adjust.clone());
        let mut config = self.config.load()?;
        let scope = self.scope(&config)?;
        adjust(&mut config);
        check_store_owner(&config.data_dir).map_err(|refused| refused.report())?;
        Ok(Served {
            config,
            source: Some(source),
            scope,
            agent: self.agent,
        })
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

/// What one client is served.
struct Served {
    config: Config,
    /// Where a changed config comes from.
    source: Option<ConfigSource>,
    scope: Scope,
    agent: Option<String>,
}

async fn serve(served: Served) -> ExitCode {
    let started = match &served.source {
        Some(_) => GatewayCore::start(&served.config, process_context()).await,
        None => GatewayCore::start_stateless(&served.config, process_context()).await,
    };
    let core = match started {
        Ok(core) => core,
        Err(error) => return report_start_error(&error),
    };
    let directory = core.proxy.governance().directory();
    let agent = match args::find_agent(served.agent.as_deref(), directory) {
        Ok(agent) => agent,
        Err(code) => {
            core.stop().await;
            return code;
        }
    };
    if let Some(source) = served.source {
        core.follow_config(source);
    }
    let scope = served.scope;
    let edge = StdioEdge::new(Arc::clone(&core.proxy), agent, scope, core.tasks());
    let stop = core.tasks().stop_token().child_token();
    let abort = core.abort_token();
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
        return drain_exit_code(stop, once_more, abort).await;
    }
    // The answers of running calls are still to be written.
    let stop = async {
        let (drained, is_whole) = tokio::join!(core.stop(), serving);
        drained && is_whole
    };
    drain_exit_code(stop, second_interrupt(), abort).await
}
