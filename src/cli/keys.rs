//! `tollbridge keys`

use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    agents::REFUSED_STATE,
    args::ConfigArgs,
    data_dir::{self, AccessMode, AuditNote, CommandError, DataDir, exit_code, unknown_name},
    output::{OutputFormat, eprint, escape_terminal, format_time, print, print_json},
    table::TextTable,
};
use crate::{
    agent_change::{self, KeyLifetime},
    audit::EventKind,
    auth::key::ApiKey,
    clock,
    store::{KeyId, RefusedRow, StoredKey, StoredRows},
};

/// Create, list and revoke API keys
#[derive(Args, Debug)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key and print it to stdout. It is not shown again
    Create(Create),
    /// List keys
    ///
    /// Keys marked `shut` belong to a disabled agent of the store that an agent of the config
    /// replaces; they are not accepted. LAST USED has a resolution of one minute.
    List(ListKeysArgs),
    /// Revoke a key
    Revoke(Revoke),
}

#[derive(Args, Debug)]
struct Create {
    /// Name or id of the agent, of the config or the store
    agent: String,
    /// Lifetime such as 90d, or `never`. Default: `governance.key_lifetime`
    #[arg(long, value_name = "TIME", value_parser = KeyLifetime::parse)]
    expires: Option<KeyLifetime>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the key and its metadata as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ListKeysArgs {
    /// Only keys of this agent
    agent: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Revoke {
    /// Id of the key, as `keys list` shows it
    id: String,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl KeysArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::Create(create) => data_dir::with_data_dir(
                &create.config,
                OutputFormat::from_flag(create.json),
                AccessMode::Change,
                async |data_dir| create.create(data_dir).await,
            ),
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

impl Create {
    async fn create(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let agent = data_dir.agent(&self.agent)?;
        let whose = (agent.id, agent.role);
        let (key, stored) =
            agent_change::new_key(whose, self.expires, &data_dir.config, clock::now())?;
        let until = agent_change::expiry_text(&stored);
        let note = |event, detail, changes| AuditNote {
            event,
            subject: stored.id.to_string(),
            detail,
            changes,
        };
        let made = note(
            EventKind::KeyCreated,
            format!("for {}; expires {until}", agent.name),
            agent_change::new_key_values(&stored),
        );
        let unmade = note(
            EventKind::KeyRevoked,
            format!("of {}; it was never activated", agent.name),
            agent_change::revoked_key_values(),
        );
        let work = self.print_and_store(&key, &stored, data_dir);
        let is_notified = data_dir.record_then_change(made, work, unmade).await?;
        if !self.json {
            eprint(&format!(
                "key {} for agent `{}`, expires {until}; it is not shown again\n",
                stored.id, agent.name
            ));
        }
        Ok(exit_code(ExitCode::SUCCESS, is_notified))
    }

    /// Shows `key`, and lets it open what `stored` says: in this order, since whatever breaks off between
    /// the two must leave no key behind that opens something and was seen by nobody.
    async fn print_and_store(
        &self,
        key: &ApiKey,
        stored: &StoredKey,
        data_dir: &DataDir,
    ) -> Result<(), CommandError> {
        let printed = if self.json {
            let mut shown = to_json(stored, data_dir);
            shown["key"] = json!(key.expose());
            print_json(&shown)
        } else {
            print(&format!("{}\n", key.expose()))
        };
        if printed != ExitCode::SUCCESS {
            return Err(CommandError::KeyNotShown);
        }
        let added = data_dir.store.keys.add(stored).await;
        added.map_err(|source| CommandError::KeyNotStored { source })
    }
}

impl ListKeysArgs {
    async fn list(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let agent = self.agent.as_deref().map(|name| data_dir.agent(name));
        let agent = agent.transpose()?;
        let StoredRows {
            rows: mut keys,
            mut refused,
        } = data_dir.store.keys.keys().await?;
        if let Some(agent) = &agent {
            keys.retain(|key| agent.id == key.agent);
            refused.retain(|key| agent.id.to_string() == key.name);
        }
        for key in &refused {
            eprint(&escape_terminal(&format!("{key}\n")));
        }
        if self.json {
            let shown = keys.iter().map(|key| to_json(key, data_dir));
            let refused = refused.iter().map(refused_to_json);
            return Ok(print_json(&shown.chain(refused).collect::<Vec<_>>()));
        }
        let mut table = TextTable::new([
            "ID",
            "AGENT",
            "PREFIX",
            "STATE",
            "CREATED",
            "EXPIRES",
            "LAST USED",
        ]);
        let seconds = |at: Option<Timestamp>| at.map_or_else(String::new, |at| format!("{at:.0}"));
        for key in &keys {
            table.add([
                key.id.to_string(),
                data_dir.name_of(key.agent),
                key.prefix.clone(),
                state(key, data_dir).to_owned(),
                seconds(Some(key.created)),
                seconds(key.expires),
                seconds(key.last_used),
            ]);
        }
        for key in &refused {
            let cells = [&key.id, &key.name, "", REFUSED_STATE, "", "", ""];
            table.add(cells.map(escape_terminal));
        }
        let code = table.print();
        let now = clock::now();
        for key in keys.iter().filter(|key| key.expires_soon(now)) {
            let (id, agent) = (&key.id, data_dir.name_of(key.agent));
            eprint(&escape_terminal(&format!(
                "key {id} expires soon: create another with `tollbridge keys create {agent}`\n"
            )));
        }
        let written = data_dir.config.agents.values().filter(|written| {
            let wanted = agent.as_ref().is_none_or(|agent| agent.id == written.id);
            wanted && !written.keys.is_empty()
        });
        let written: Vec<&str> = written.map(|agent| agent.name.as_str()).collect();
        if !written.is_empty() {
            let names = written.join(", ");
            eprint(&format!(
                "keys in the config are not listed; agents with configured keys: {names}\n"
            ));
        }
        Ok(code)
    }
}

impl Revoke {
    async fn revoke(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let StoredRows {
            rows: keys,
            refused,
        } = data_dir.store.keys.keys().await?;
        if refused.iter().any(|key| key.id == self.id) {
            return self.revoke_refused(data_dir).await;
        }
        let Some(key) = keys.iter().find(|key| key.id.as_str() == self.id) else {
            return Err(unknown_key(&self.id, &keys));
        };
        let mut key = key.clone();
        let revoked_before = key.revoked.is_some();
        let is_notified = if revoked_before {
            // Whoever says it twice may have heard that a gateway was not told.
            data_dir.notify_change().await
        } else {
            let detail = format!("of {}", data_dir.name_of(key.agent));
            let (revoked, is_notified) = revoke(&key.id, detail, data_dir).await?;
            key.revoked = Some(revoked);
            is_notified
        };
        let code = if self.json {
            print_json(&to_json(&key, data_dir))
        } else {
            let what = if revoked_before {
                "already revoked"
            } else {
                "revoked"
            };
            print(&format!(
                "{what}: key {} of agent `{}`\n",
                key.id,
                data_dir.name_of(key.agent)
            ))
        };
        Ok(exit_code(code, is_notified))
    }
}

impl Revoke {
    /// Revokes a key that opens nothing as it stands, so that it is known as one that was revoked.
    async fn revoke_refused(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let id = KeyId::new(&self.id);
        let detail = "already refused: invalid MAC".to_owned();
        let (_, is_notified) = revoke(&id, detail, data_dir).await?;
        let code = if self.json {
            print_json(&json!({ "id": id.as_str(), "state": "revoked" }))
        } else {
            print(&escape_terminal(&format!("revoked key {id}\n")))
        };
        Ok(exit_code(code, is_notified))
    }
}

/// Revokes the key `id`: when, and whether all running gateways know.
async fn revoke(
    id: &KeyId,
    detail: String,
    data_dir: &DataDir,
) -> Result<(Timestamp, bool), CommandError> {
    let now = clock::now();
    let note = AuditNote {
        event: EventKind::KeyRevoked,
        subject: id.to_string(),
        detail,
        changes: agent_change::revoked_key_values(),
    };
    let revoke = async { data_dir.store.keys.revoke(id, now).await.map(drop) };
    let is_notified = data_dir.apply_change(&[note], revoke).await?;
    Ok((now, is_notified))
}

fn refused_to_json(refused: &RefusedRow) -> Value {
    json!({
        "id": refused.id,
        "agent_id": refused.name,
        "state": REFUSED_STATE,
        "refused": refused.why.to_string(),
    })
}

fn unknown_key(id: &str, keys: &[StoredKey]) -> CommandError {
    if id.starts_with(ApiKey::PREFIX) {
        return CommandError::usage(
            "that is a key or its prefix: use the key id shown by `keys list`",
        );
    }
    let known: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    unknown_name(
        "key",
        id,
        &known,
        "create one with `tollbridge keys create`",
    )
}

fn state(key: &StoredKey, data_dir: &DataDir) -> &'static str {
    agent_change::key_state(key, data_dir.is_locked_out(key.agent), clock::now())
}

fn to_json(key: &StoredKey, data_dir: &DataDir) -> Value {
    json!({
        "id": key.id.as_str(),
        "agent": data_dir.name_of(key.agent),
        "agent_id": key.agent,
        "prefix": key.prefix,
        "state": state(key, data_dir),
        "created": format_time(key.created),
        "expires": key.expires.map(format_time),
        "expires_soon": key.expires_soon(clock::now()),
        "revoked": key.revoked.map(format_time),
        "last_used": key.last_used.map(format_time),
    })
}
