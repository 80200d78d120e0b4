//! `tollbridge ui`

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{
    args::ConfigArgs,
    block_on,
    output::{OutputFormat, eprint, print, print_json},
};
use crate::{browser_login::DASHBOARD_CODE_LIFETIME, config::LoadScope, control_socket};

/// Print a link that opens the dashboard
///
/// It logs a browser in as the operator of a running gateway, who may do everything. It is valid once, for five minutes.
#[derive(Args, Debug)]
pub(super) struct UiArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the link as JSON
    #[arg(long)]
    json: bool,
}

impl UiArgs {
    pub(super) fn run(&self) -> ExitCode {
        let form = OutputFormat::from_flag(self.json);
        match self
            .config
            .load_scope_with_quiet_log(LoadScope::DataDir, form)
        {
            Ok(config) => block_on(1, self.show(&config.data_dir)),
            Err(code) => code,
        }
    }

    async fn show(&self, data_dir: &std::path::Path) -> ExitCode {
        let links = control_socket::dashboard_links(data_dir).await;
        if let Some(link) = links.iter().find_map(|link| link.as_ref().ok()) {
            if self.json {
                return print_json(&json!({ "url": link }));
            }
            let minutes = DASHBOARD_CODE_LIFETIME.as_secs() / 60;
            eprint(&format!(
                "Open this link in a browser within {minutes} minutes; it is valid once.\n"
            ));
            return print(&format!("{link}\n"));
        }
        let reason = match links.into_iter().find_map(Result::err) {
            Some(reason) => reason,
            None => format!(
                "no gateway runs on `{}`: start one with `tollbridge serve`",
                data_dir.display()
            ),
        };
        if self.json {
            print_json(&json!({ "ok": false, "error": reason }));
        } else {
            eprint(&format!("error: {reason}\n"));
        }
        ExitCode::FAILURE
    }
}
