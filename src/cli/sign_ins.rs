//! `tollbridge sign-ins`

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    args::ConfigArgs,
    data_dir::{self, AccessMode, AuditNote, CommandError, DataDir, exit_code, unknown_name},
    output::{OutputFormat, escape_terminal, format_time, print, print_json},
    table::TextTable,
};
use crate::{
    audit::{ChangedValues, EventKind},
    authorization_server::{AuthorizationServer, Grant, ServerError},
};

/// List and revoke what people granted to OAuth clients
#[derive(Args, Debug)]
pub(super) struct SignInsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List grants: who signed in, with which client, for what
    List(ListGrants),
    /// Revoke grants: their tokens are invalid at once and open streams end
    Revoke(RevokeGrants),
}

#[derive(Args, Debug)]
struct ListGrants {
    /// Only grants of this agent
    agent: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct RevokeGrants {
    /// Ids of grants, as `sign-ins list` shows them
    #[arg(required_unless_present = "agent")]
    ids: Vec<String>,
    /// All grants of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl SignInsArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::List(list) => data_dir::with_data_dir(
                &list.config,
                OutputFormat::from_flag(list.json),
                AccessMode::Read,
                async |data_dir| list.list(data_dir).await,
            ),
            Command::Revoke(revoke) => data_dir::with_data_dir(
                &revoke.config,
                OutputFormat::from_flag(revoke.json),
                AccessMode::Change,
                async |data_dir| revoke.revoke(data_dir).await,
            ),
        }
    }
}

/// The grants of the store, of one agent if it is named.
async fn grants(agent: Option<&str>, data_dir: &DataDir) -> Result<Vec<Grant>, CommandError> {
    let agent = agent.map(|name| data_dir.agent(name)).transpose()?;
    let all = AuthorizationServer::new(&data_dir.store).grants().await;
    let mut all = all.map_err(server_error)?;
    if let Some(agent) = agent {
        all.retain(|grant| grant.agent() == Some(agent.id));
    }
    Ok(all)
}

fn server_error(error: ServerError) -> CommandError {
    match error {
        ServerError::Store(error) => CommandError::Store(error),
        ServerError::Randomness(error) => CommandError::Randomness(error),
        ServerError::Encoding(_) | ServerError::Off => CommandError::usage(error.to_string()),
    }
}

impl ListGrants {
    async fn list(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let grants = grants(self.agent.as_deref(), data_dir).await?;
        if self.json {
            return Ok(print_json(&grants.iter().map(to_json).collect::<Vec<_>>()));
        }
        let mut table = TextTable::new([
            "ID",
            "SIGNED IN AS",
            "CLIENT",
            "AT",
            "SCOPES",
            "RESOURCES",
            "CREATED",
            "LAST USED",
        ]);
        for grant in &grants {
            table.add([
                grant.id.clone(),
                escape_terminal(&grant.subject_name),
                escape_terminal(grant.client_label()),
                escape_terminal(&grant.redirect_target),
                grant.scopes.to_string(),
                escape_terminal(&grant.resources.join(" ")),
                format!("{:.0}", grant.created),
                format!("{:.0}", grant.used),
            ]);
        }
        Ok(table.print())
    }
}

impl RevokeGrants {
    async fn revoke(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let mut wanted = grants(self.agent.as_deref(), data_dir).await?;
        if !self.ids.is_empty() {
            let known: Vec<&str> = wanted.iter().map(|grant| grant.id.as_str()).collect();
            if let Some(unknown) = self.ids.iter().find(|id| !known.contains(&id.as_str())) {
                return Err(unknown_name("grant", unknown, &known, "nobody signed in"));
            }
            wanted.retain(|grant| self.ids.contains(&grant.id));
        }
        if let (true, Some(agent)) = (wanted.is_empty(), &self.agent) {
            return Err(CommandError::usage(format!(
                "nobody signed in as `{agent}` with a code; who logged in at an issuer is revoked by the id that \
                 `sign-ins list` shows"
            )));
        }
        let note = |grant: &Grant| AuditNote {
            event: EventKind::GrantRevoked,
            subject: grant.id.clone(),
            detail: format!("of {} to {}", grant.subject_name, grant.client_label()),
            changes: ChangedValues::default(),
        };
        let notes: Vec<AuditNote> = wanted.iter().map(note).collect();
        let revoke = async {
            for grant in &wanted {
                data_dir.store.oauth.revoke_grant(&grant.id).await?;
            }
            Ok(())
        };
        let is_notified = data_dir.apply_change(&notes, revoke).await?;
        let code = if self.json {
            print_json(&wanted.iter().map(to_json).collect::<Vec<_>>())
        } else {
            let lines = wanted.iter().map(|grant| {
                let (who, client) = (&grant.subject_name, grant.client_label());
                escape_terminal(&format!("revoked {} of `{who}` to {client}\n", grant.id))
            });
            print(&lines.collect::<String>())
        };
        Ok(exit_code(code, is_notified))
    }
}

fn to_json(grant: &Grant) -> Value {
    json!({
        "id": grant.id,
        "subject": grant.subject_name,
        "agent_id": grant.agent(),
        "client_id": grant.client,
        "client_name": grant.client_name,
        "redirect": grant.redirect_target,
        "scopes": grant.scopes.iter().collect::<Vec<_>>(),
        "resources": grant.resources,
        "created": format_time(grant.created),
        "last_used": format_time(grant.used),
    })
}
