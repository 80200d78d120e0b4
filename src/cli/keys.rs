//! `tollbridge keys`

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    agents::REFUSED,
    args::ConfigArgs,
    data_dir::{self, CommandError, DataDir, Intent, Note, ended, unknown},
    output::{OutputFormat, harmless, print, print_json, say, time},
    table::TextTable,
};
use crate::{
    audit::EventKind,
    auth::key::ApiKey,
    clock,
    names::AgentId,
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
    #[arg(long, value_name = "TIME", value_parser = Lifetime::parse)]
    expires: Option<Lifetime>,
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

/// How long a key is good for.
#[derive(Clone, Copy, Debug)]
enum Lifetime {
    Never,
    Time(Duration),
}

impl Lifetime {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let time = humantime::parse_duration(text);
        time.map(Self::Time)
            .map_err(|error| format!("{error}; write a time such as 90d, or `never`"))
    }
}

impl KeysArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::Create(create) => data_dir::with(
                &create.config,
                OutputFormat::of(create.json),
                Intent::Change,
                async |books| create.create(books).await,
            ),
            Command::List(list) => data_dir::with(
                &list.config,
                OutputFormat::of(list.json),
                Intent::Look,
                async |books| list.list(books).await,
            ),
            Command::Revoke(revoke) => data_dir::with(
                &revoke.config,
                OutputFormat::of(revoke.json),
                Intent::Change,
                async |books| revoke.revoke(books).await,
            ),
        }
    }
}

impl Create {
    async fn create(&self, books: &DataDir) -> Result<ExitCode, CommandError> {
        let agent = books.agent(&self.agent)?;
        if !books.asks_for_keys() {
            return Err(CommandError::usage(
                "the config asks for no keys, so that one would open nothing: write `auth = \
                 \"keys\"` in `[governance]` first",
            ));
        }
        if agent.id == AgentId::ANONYMOUS {
            return Err(CommandError::usage("callers without a key have none"));
        }
        let created = clock::now();
        let lifetime = match self.expires {
            Some(Lifetime::Never) => None,
            Some(Lifetime::Time(time)) => Some(time),
            None => books.config.governance.key_lifetime,
        };
        let expires = lifetime.map(|time| expiry(created, time)).transpose()?;
        let key = ApiKey::generate()?;
        let stored = StoredKey {
            id: KeyId::generate()?,
            agent: agent.id,
            hash: key.hash(),
            prefix: key.shown().to_owned(),
            created,
            expires,
            revoked: None,
            last_used: None,
        };
        let until = expires.map_or_else(|| "never".to_owned(), |at| format!("{at:.0}"));
        let note = |event, detail| Note {
            event,
            subject: stored.id.to_string(),
            detail,
        };
        let made = note(
            EventKind::KeyCreated,
            format!("for {}; expires {until}", agent.name),
        );
        let unmade = note(
            EventKind::KeyRevoked,
            format!("of {}; it never opened anything", agent.name),
        );
        let work = self.show_and_add(&key, &stored, books);
        let told = books.change_once_recorded(made, work, unmade).await?;
        if !self.json {
            say(&format!(
                "key {} for agent `{}`, expires {until}; it is not shown again\n",
                stored.id, agent.name
            ));
        }
        Ok(ended(ExitCode::SUCCESS, told))
    }

    /// Shows `key`, and lets it open what `stored` says: in this order, since whatever breaks off between
    /// the two must leave no key behind that opens something and was seen by nobody.
    async fn show_and_add(
        &self,
        key: &ApiKey,
        stored: &StoredKey,
        books: &DataDir,
    ) -> Result<(), CommandError> {
        let printed = if self.json {
            let mut shown = to_json(stored, books);
            shown["key"] = json!(key.expose());
            print_json(&shown)
        } else {
            print(&format!("{}\n", key.expose()))
        };
        if printed != ExitCode::SUCCESS {
            return Err(CommandError::Unseen);
        }
        let added = books.store.keys.add(stored).await;
        added.map_err(|source| CommandError::Stillborn { source })
    }
}

fn expiry(now: Timestamp, time: Duration) -> Result<Timestamp, CommandError> {
    if time.is_zero() {
        return Err(CommandError::usage(
            "--expires 0: such a key would open nothing",
        ));
    }
    now.checked_add(time)
        .map_err(|_| CommandError::usage("--expires is too far away; write `never`"))
}

impl ListKeysArgs {
    async fn list(&self, books: &DataDir) -> Result<ExitCode, CommandError> {
        let agent = self.agent.as_deref().map(|name| books.agent(name));
        let agent = agent.transpose()?;
        let StoredRows {
            rows: mut keys,
            mut refused,
        } = books.store.keys.keys().await?;
        if let Some(agent) = &agent {
            keys.retain(|key| agent.id == key.agent);
            refused.retain(|key| agent.id.to_string() == key.name);
        }
        for key in &refused {
            say(&harmless(&format!("{key}\n")));
        }
        if self.json {
            let shown = keys.iter().map(|key| to_json(key, books));
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
                books.name_of(key.agent),
                key.prefix.clone(),
                state(key, books).to_owned(),
                seconds(Some(key.created)),
                seconds(key.expires),
                seconds(key.last_used),
            ]);
        }
        for key in &refused {
            let cells = [&key.id, &key.name, "", REFUSED, "", "", ""];
            table.add(cells.map(harmless));
        }
        let code = table.print();
        let now = clock::now();
        for key in keys.iter().filter(|key| key.expires_soon(now)) {
            let (id, agent) = (&key.id, books.name_of(key.agent));
            say(&harmless(&format!(
                "the key {id} expires soon: `tollbridge keys create {agent}` makes another\n"
            )));
        }
        let written = books.config.agents.values().filter(|written| {
            let wanted = agent.as_ref().is_none_or(|agent| agent.id == written.id);
            wanted && !written.keys.is_empty()
        });
        let written: Vec<&str> = written.map(|agent| agent.name.as_str()).collect();
        if !written.is_empty() {
            let names = written.join(", ");
            say(&format!(
                "keys that are written in the config are not listed; these have some: {names}\n"
            ));
        }
        Ok(code)
    }
}

impl Revoke {
    async fn revoke(&self, books: &DataDir) -> Result<ExitCode, CommandError> {
        let StoredRows {
            rows: keys,
            refused,
        } = books.store.keys.keys().await?;
        if refused.iter().any(|key| key.id == self.id) {
            return self.revoke_refused(books).await;
        }
        let Some(key) = keys.iter().find(|key| key.id.as_str() == self.id) else {
            return Err(no_such_key(&self.id, &keys));
        };
        let mut key = key.clone();
        let revoked_before = key.revoked.is_some();
        let told = if revoked_before {
            // Whoever says it twice may have heard that a gateway was not told.
            books.tell_of_change().await
        } else {
            let detail = format!("of {}", books.name_of(key.agent));
            let (revoked, told) = revoke(&key.id, detail, books).await?;
            key.revoked = Some(revoked);
            told
        };
        let code = if self.json {
            print_json(&to_json(&key, books))
        } else {
            let before = if revoked_before { " already" } else { "" };
            print(&format!(
                "key {} of agent `{}` is revoked{before}\n",
                key.id,
                books.name_of(key.agent)
            ))
        };
        Ok(ended(code, told))
    }
}

impl Revoke {
    /// Revokes a key that opens nothing as it stands, so that it is known as one that was revoked.
    async fn revoke_refused(&self, books: &DataDir) -> Result<ExitCode, CommandError> {
        let id = KeyId::new(&self.id);
        let detail = "already refused: invalid MAC".to_owned();
        let (_, told) = revoke(&id, detail, books).await?;
        let code = if self.json {
            print_json(&json!({ "id": id.as_str(), "state": "revoked" }))
        } else {
            print(&harmless(&format!("key {id} is revoked\n")))
        };
        Ok(ended(code, told))
    }
}

/// Revokes the key `id`: when, and whether all running gateways know.
async fn revoke(
    id: &KeyId,
    detail: String,
    books: &DataDir,
) -> Result<(Timestamp, bool), CommandError> {
    let now = clock::now();
    let note = Note {
        event: EventKind::KeyRevoked,
        subject: id.to_string(),
        detail,
    };
    let revoke = async { books.store.keys.revoke(id, now).await.map(drop) };
    let told = books.change(&[note], revoke).await?;
    Ok((now, told))
}

fn refused_to_json(refused: &RefusedRow) -> Value {
    json!({
        "id": refused.id,
        "agent_id": refused.name,
        "state": REFUSED,
        "refused": refused.why.to_string(),
    })
}

fn no_such_key(id: &str, keys: &[StoredKey]) -> CommandError {
    if id.starts_with(ApiKey::PREFIX) {
        return CommandError::usage(
            "that is a key, or its beginning: keys are revoked by their ids, which `keys list` shows",
        );
    }
    let known: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    unknown("key", id, &known, "`tollbridge keys create` makes one")
}

fn state(key: &StoredKey, books: &DataDir) -> &'static str {
    match key.revoked {
        Some(_) => "revoked",
        None if books.is_shut(key.agent) => "shut",
        None if key.is_live(clock::now()) => "live",
        None => "expired",
    }
}

fn to_json(key: &StoredKey, books: &DataDir) -> Value {
    json!({
        "id": key.id.as_str(),
        "agent": books.name_of(key.agent),
        "agent_id": key.agent,
        "prefix": key.prefix,
        "state": state(key, books),
        "created": time(key.created),
        "expires": key.expires.map(time),
        "expires_soon": key.expires_soon(clock::now()),
        "revoked": key.revoked.map(time),
        "last_used": key.last_used.map(time),
    })
}
