//! `tollbridge serve`

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;

use super::{
    args::ConfigArgs, block_on, drained, failed, interrupted, output::print, service, surroundings,
    wrong_usage,
};
use crate::{
    app::{self, ConfigSource},
    config::Config,
};

/// Serve clients over HTTP
#[derive(Args, Debug)]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address to listen on, in place of the configured one; port 0 takes any free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

impl Serve {
    pub(super) fn run(self) -> ExitCode {
        let listen = self.listen;
        let adjust = move |config: &mut Config| {
            if let Some(listen) = listen {
                config.listen = listen;
            }
        };
        let source = self.config.source(adjust);
        let mut config = match self.config.load() {
            Ok(config) => config,
            Err(code) => return code,
        };
        adjust(&mut config);
        if config.is_open_to_strangers() && !config.danger_listen_without_auth {
            return wrong_usage(
                "refusing to listen beyond this machine without authentication; see \
                 `governance.auth` and `danger_listen_without_auth`",
            );
        }
        block_on(config.workers, serve(&config, source))
    }
}

async fn serve(config: &Config, source: ConfigSource) -> ExitCode {
    let running = match app::start(config, surroundings()).await {
        Ok(running) => running,
        Err(error) => return failed(&error),
    };
    // Who reads the next line may send a signal at once.
    let interruption = interrupted();
    running
        .core()
        .follow(source.announced_to(service::reloading));
    let url = &running.url;
    print(&format!("listening on {url}\n"));
    service::ready(running.core().tasks());
    tracing::info!(
        servers = config.servers.len(),
        "clients connect to {url}/mcp, people to {url}/status"
    );
    interruption.await;
    let again = interrupted();
    service::stopping();
    tracing::info!(
        "stopping; running calls may finish within {:?}",
        running.core().proxy.settings().drain_timeout
    );
    drained(running.stop(), again).await
}
