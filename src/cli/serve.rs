//! `tollbridge serve`

use std::process::ExitCode;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    args::ConfigArgs, block_on, drained, interrupted, interrupted_again, not_started,
    output::print, service, surroundings, wrong_usage,
};
use crate::{
    app::{self, ConfigSource},
    config::{Config, Listen, NotAnAddress, listen_address},
};

/// Open files that are asked for where the system begins with fewer: shells and service managers allow
/// 1,024 until somebody asks for more. As many idle connections take some 300 MB.
const OPEN_FILES: u64 = 16_384;

/// Run the gateway over HTTP
#[derive(Args, Debug)]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address or `unix:PATH` to listen on, instead of `listen` in the config. Port 0 takes a free
    /// port
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    listen: Option<Listen>,
}

impl Serve {
    pub(super) fn run(self) -> ExitCode {
        let listen = self.listen;
        let adjust = move |config: &mut Config| {
            if let Some(listen) = &listen {
                config.listen.clone_from(listen);
            }
        };
        let source = self.config.source(adjust.clone());
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
        if config.listen.socket().is_some() && config.tls.is_some() {
            return wrong_usage("--listen: `tls` of the config does not go with a Unix socket");
        }
        raise_open_files();
        block_on(config.workers, serve(&config, source))
    }
}

/// Reads where to listen; a relative path starts where the command is run.
fn listen(written: &str) -> Result<Listen, NotAnAddress> {
    Ok(match listen_address(written)? {
        Listen::Unix(path) => Listen::Unix(std::path::absolute(&path).unwrap_or(path)),
        address @ Listen::Address(_) => address,
    })
}

/// Asks for [`OPEN_FILES`], or as many as there may be.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let files = limit.maximum.map_or(OPEN_FILES, |max| max.min(OPEN_FILES));
    if limit.current.is_none_or(|current| current >= files) {
        return;
    }
    let raised = Rlimit {
        current: Some(files),
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, files, "the limit of open files cannot be raised");
    }
}

async fn serve(config: &Config, source: ConfigSource) -> ExitCode {
    let running = match app::start(config, surroundings()).await {
        Ok(running) => running,
        Err(error) => return not_started(&error),
    };
    // Who reads the next line may send a signal at once.
    let interruption = interrupted();
    running
        .core()
        .follow(source.announced_to(service::reloading));
    let url = &running.url;
    print(&format!("listening on {url}\n"));
    service::ready(running.core().tasks());
    let servers = config.servers.len();
    if running.listen.socket().is_some() {
        tracing::info!(
            servers,
            "clients connect to /mcp through {url}, people to /status"
        );
    } else {
        tracing::info!(
            servers,
            "clients connect to {url}/mcp, people to {url}/status"
        );
    }
    interruption.await;
    let again = interrupted_again();
    service::stopping();
    tracing::info!(
        "stopping; running calls may finish within {:?}",
        running.core().proxy.settings().drain_timeout
    );
    drained(running.stop(), again).await
}
