//! `tollbridge serve`

use std::process::ExitCode;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    args::ConfigArgs, block_on, data_dir::check_store_owner, drain_exit_code, interrupted,
    output::print, process_context, report_start_error, second_interrupt, service, usage_error,
};
use crate::{
    app::{self, ConfigSource},
    config::{Config, InvalidListenAddress, Listen, listen_address},
};

/// Open files that are asked for where the system begins with fewer: shells and service managers allow
/// 1,024 until somebody asks for more. Half of them are for connections of clients, which take some 300 MB.
const OPEN_FILES_WANTED: u64 = 32_768;

/// Run the gateway over HTTP
#[derive(Args, Debug)]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address or `unix:PATH` to listen on, instead of `listen` in the config. Port 0 takes a free
    /// port
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
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
        let source = self.config.config_source(adjust.clone());
        let mut config = match self.config.load() {
            Ok(config) => config,
            Err(code) => return code,
        };
        adjust(&mut config);
        if config.is_open_without_auth() && !config.danger_listen_without_auth {
            return usage_error(
                "refusing to listen beyond this machine without authentication; see \
                 `governance.auth` and `danger_listen_without_auth`",
            );
        }
        if config.listen.socket().is_some() && config.tls.is_some() {
            return usage_error("--listen: `tls` cannot be combined with a Unix socket");
        }
        if let Err(refused) = check_store_owner(&config.data_dir) {
            return refused.report();
        }
        raise_open_file_limit();
        block_on(config.workers, serve(&config, source))
    }
}

/// Reads where to listen; a relative path starts where the command is run.
fn parse_listen(written: &str) -> Result<Listen, InvalidListenAddress> {
    Ok(match listen_address(written)? {
        Listen::Unix(path) => Listen::Unix(std::path::absolute(&path).unwrap_or(path)),
        address @ Listen::Address(_) => address,
    })
}

/// Asks for [`OPEN_FILES_WANTED`], or as many as there may be.
fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let files = limit
        .maximum
        .map_or(OPEN_FILES_WANTED, |max| max.min(OPEN_FILES_WANTED));
    if limit.current.is_none_or(|current| current >= files) {
        return;
    }
    let raised = Rlimit {
        current: Some(files),
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, files, "cannot raise the open file limit");
    }
}

async fn serve(config: &Config, source: ConfigSource) -> ExitCode {
    let running = match app::start(config, process_context()).await {
        Ok(running) => running,
        Err(error) => return report_start_error(&error),
    };
    // Who reads the next line may send a signal at once.
    let interruption = interrupted();
    running
        .core()
        .follow_config(source.with_announce(service::notify_reloading));
    let url = &running.url;
    print(&format!("listening on {url}\n"));
    service::notify_ready(running.core().tasks());
    let servers = config.servers.len();
    let at = |url: &str, path: &str| {
        if url.starts_with("unix:") {
            format!("{path} through {url}")
        } else {
            format!("{url}{path}")
        }
    };
    let admin_url = running.admin_url.as_ref().unwrap_or(url);
    let (mcp, status) = (at(url, "/mcp"), at(admin_url, "/status"));
    tracing::info!(servers, "clients connect to {mcp}, status page: {status}");
    interruption.await;
    let again = second_interrupt();
    service::notify_stopping();
    tracing::info!(
        "stopping; waiting up to {:?} for running calls",
        running.core().proxy.settings().drain_timeout
    );
    let abort = running.core().abort_token();
    drain_exit_code(running.stop(), again, abort).await
}
