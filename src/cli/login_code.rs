//! `tollbridge login-code`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;

use super::{
    args::ConfigArgs,
    data_dir::{self, AccessMode, AuditNote, CommandError, DataDir, exit_code},
    output::{OutputFormat, eprint, format_time, print, print_json},
};
use crate::{
    audit::{ChangedValues, EventKind},
    authorization_server::{LoginCode, ServerError},
    clock,
    config::AuthMethod,
    names::AgentId,
};

/// The longest lifetime of a code.
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Print a one-time code with which a person signs in as an agent
///
/// The person enters it in the browser when an OAuth client (claude.ai, ChatGPT, ...) connects to the gateway with
/// `governance.auth = "oauth"`. It is valid once, and not shown again.
#[derive(Args, Debug)]
pub(super) struct LoginCodeArgs {
    /// Name or id of the agent, of the config or the store
    agent: String,
    /// How long the code is valid, 7d at most
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_lifetime)]
    expires: Duration,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the code and its metadata as JSON
    #[arg(long)]
    json: bool,
}

fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() || time > LIFETIME_MAX {
        return Err("expected more than 0 and at most 7d".to_owned());
    }
    Ok(time)
}

impl LoginCodeArgs {
    pub(super) fn run(&self) -> ExitCode {
        data_dir::with_data_dir(
            &self.config,
            OutputFormat::from_flag(self.json),
            AccessMode::Change,
            async |data_dir| self.create(data_dir).await,
        )
    }

    async fn create(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let agent = data_dir.agent(&self.agent)?;
        if !data_dir.config.governance.auth.allows(AuthMethod::Oauth) {
            return Err(CommandError::usage(
                "the config has no OAuth sign-in: set `auth = \"oauth\"` in `[governance]` first",
            ));
        }
        if agent.id == AgentId::ANONYMOUS {
            return Err(CommandError::usage(
                "nobody signs in as the anonymous agent",
            ));
        }
        let made = LoginCode::generate(agent.id, self.expires, clock::now(), &data_dir.store);
        let (code, stored) = made.map_err(|error| match error {
            ServerError::Randomness(error) => CommandError::Randomness(error),
            ServerError::Store(error) => CommandError::Store(error),
            ServerError::Encoding(_) | ServerError::Off => CommandError::usage(error.to_string()),
        })?;
        let until = format!("{:.0}", stored.expires);
        let note = |detail: String| AuditNote {
            event: EventKind::LoginCodeCreated,
            subject: agent.name.clone(),
            detail,
            changes: ChangedValues::default(),
        };
        let work = async {
            let printed = if self.json {
                print_json(&json!({
                    "code": code.expose(),
                    "agent": agent.name,
                    "agent_id": agent.id,
                    "expires": format_time(stored.expires),
                }))
            } else {
                print(&format!("{}\n", code.expose()))
            };
            if printed != ExitCode::SUCCESS {
                return Err(CommandError::KeyNotShown);
            }
            let added = data_dir.store.oauth.add_login_code(&stored).await;
            added.map_err(|source| CommandError::KeyNotStored { source })
        };
        let (made, unmade) = (
            note(format!("expires {until}")),
            note("it was never activated".to_owned()),
        );
        let is_notified = data_dir.record_then_change(made, work, unmade).await?;
        if !self.json {
            eprint(&format!(
                "login code for agent `{}`, valid once, until {until}; it is not shown again\n",
                agent.name
            ));
        }
        Ok(exit_code(ExitCode::SUCCESS, is_notified))
    }
}
