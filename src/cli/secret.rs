//! `tollbridge secret`

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Read as _},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use serde_json::json;

use super::{
    args::ConfigArgs,
    data_dir::{self, AccessMode, AuditNote, CommandError, DataDir, exit_code, unknown_name},
    output::{OutputFormat, eprint, format_time, print, print_json},
    table::TextTable,
    usage_error,
};
use crate::{
    audit::{ChangedValues, EventKind},
    clock,
    config::{SECRET_BYTES_MAX, Secret},
    names::{InvalidSecretName, SecretName},
    store::{SECRETS_PURPOSE, StoredSecret, secret_place},
};

/// Set, list and remove secrets that the config refers to as `${secret:NAME}`
#[derive(Args, Debug)]
pub(super) struct SecretArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set a secret to the text on stdin, or to what is typed at a prompt
    ///
    /// A line break at the end is not part of it. Running gateways restart the servers that use it.
    Set(SetSecretArgs),
    /// List secrets: names, times and where the config uses them, never values
    List(ListSecretsArgs),
    /// Remove a secret
    Remove(RemoveSecretArgs),
}

#[derive(Args, Debug)]
struct SetSecretArgs {
    /// Name of the secret; `NAME@OWNER` for servers of that workspace or agent
    #[arg(value_parser = parse_name)]
    name: SecretName,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Args, Debug)]
struct ListSecretsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct RemoveSecretArgs {
    /// Name of the secret; `NAME@OWNER` where a workspace or an agent owns it
    #[arg(value_parser = parse_name)]
    name: SecretName,
    #[command(flatten)]
    config: ConfigArgs,
}

fn parse_name(text: &str) -> Result<SecretName, InvalidSecretName> {
    SecretName::parse(text)
}

impl SecretArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::Set(set) => match read_value(&set.name) {
                Ok(value) => data_dir::with_data_dir(
                    &set.config,
                    OutputFormat::Text,
                    AccessMode::Change,
                    async |data_dir| set.set(&value, data_dir).await,
                ),
                Err(why) => usage_error(&why),
            },
            Command::List(list) => data_dir::with_data_dir(
                &list.config,
                OutputFormat::from_flag(list.json),
                AccessMode::Read,
                async |data_dir| list.list(data_dir).await,
            ),
            Command::Remove(remove) => data_dir::with_data_dir(
                &remove.config,
                OutputFormat::Text,
                AccessMode::Change,
                async |data_dir| remove.remove(data_dir).await,
            ),
        }
    }
}

impl SetSecretArgs {
    async fn set(&self, value: &Secret, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let name = &self.name;
        let store = data_dir.store_with_secret_key()?;
        let is_known = is_stored(name, &store.secrets.secrets().await?);
        let key = store.sealing_key(SECRETS_PURPOSE).await?;
        let sealed = key.seal(&secret_place(name), value.expose().as_bytes())?;
        let done = if is_known { "changed" } else { "set" };
        let note = note(name, done);
        let set = store.secrets.set(name, &sealed, clock::now());
        let is_notified = data_dir.apply_change(&[note], set).await?;
        let code = print(&format!("secret `{name}` {done}\n"));
        Ok(exit_code(code, is_notified))
    }
}

impl ListSecretsArgs {
    async fn list(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let secrets = data_dir.store.secrets.secrets().await?;
        let mut uses: BTreeMap<&SecretName, Vec<&str>> = BTreeMap::new();
        for used in &data_dir.config.secrets.uses.0 {
            uses.entry(&used.name).or_default().push(&used.path);
        }
        let missing = uses.keys().filter(|name| !is_stored(name, &secrets));
        let missing: Vec<&SecretName> = missing.copied().collect();
        let used_by = |name: &SecretName| uses.get(name).cloned().unwrap_or_default();
        if self.json {
            let stored = secrets.iter().map(|secret| {
                json!({
                    "name": secret.name.as_str(),
                    "created": format_time(secret.created),
                    "changed": format_time(secret.changed),
                    "used_by": used_by(&secret.name),
                })
            });
            let missing = missing.iter().map(|name| {
                json!({
                    "name": name.as_str(),
                    "created": null,
                    "changed": null,
                    "used_by": used_by(name),
                })
            });
            print_json(&stored.chain(missing).collect::<Vec<_>>());
            return Ok(self.check_key(data_dir).await);
        }
        let mut table = TextTable::new(["NAME", "CREATED", "CHANGED", "USED BY"]);
        for StoredSecret {
            name,
            created,
            changed,
        } in &secrets
        {
            let times = [created, changed].map(|at| format!("{at:.0}"));
            let [created, changed] = times;
            table.add([name.to_string(), created, changed, used_by(name).join(", ")]);
        }
        for name in missing {
            let not_set = "not set".to_owned();
            table.add([
                name.to_string(),
                not_set,
                String::new(),
                used_by(name).join(", "),
            ]);
        }
        table.print();
        Ok(self.check_key(data_dir).await)
    }

    /// Says when the secrets that are listed cannot be read.
    async fn check_key(&self, data_dir: &DataDir) -> ExitCode {
        let checked = async {
            let store = data_dir.store_with_secret_key()?;
            Ok::<_, CommandError>(store.opening_key(SECRETS_PURPOSE).await?)
        };
        match checked.await.map(drop) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error.report(),
        }
    }
}

impl RemoveSecretArgs {
    async fn remove(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let name = &self.name;
        let secrets = data_dir.store.secrets.secrets().await?;
        if !is_stored(name, &secrets) {
            let known: Vec<&str> = secrets.iter().map(|secret| secret.name.as_str()).collect();
            let otherwise = "set one with `tollbridge secret set`";
            return Err(unknown_name("secret", name.as_str(), &known, otherwise));
        }
        let remove = async { data_dir.store.secrets.remove(name).await.map(drop) };
        let note = note(name, "removed");
        let is_notified = data_dir.apply_change(&[note], remove).await?;
        let code = print(&format!("secret `{name}` removed\n"));
        let uses = data_dir.config.secrets.uses.0.iter();
        for used in uses.filter(|used| used.name == *name) {
            eprint(&format!(
                "warning: `{}` of the config still uses it\n",
                used.path
            ));
        }
        Ok(exit_code(code, is_notified))
    }
}

fn is_stored(name: &SecretName, secrets: &[StoredSecret]) -> bool {
    secrets.iter().any(|secret| secret.name == *name)
}

fn note(name: &SecretName, detail: &str) -> AuditNote {
    AuditNote {
        event: EventKind::SecretChanged,
        subject: name.to_string(),
        detail: detail.to_owned(),
        changes: ChangedValues::default(),
    }
}

/// The value on stdin; where that is a terminal, who sits there is asked.
fn read_value(name: &SecretName) -> Result<Secret, String> {
    let cannot = |error: io::Error| format!("cannot read the value from stdin: {error}");
    let bytes = if io::stdin().is_terminal() {
        eprint(&format!("value of `{name}` (not shown): "));
        let typed = read_hidden().map_err(cannot)?;
        eprint("\n");
        typed
    } else {
        let mut bytes = Vec::new();
        let limit = SECRET_BYTES_MAX as u64 + 3;
        io::stdin()
            .take(limit)
            .read_to_end(&mut bytes)
            .map_err(cannot)?;
        bytes
    };
    let text = String::from_utf8(bytes).map_err(|_| "the value is not UTF-8".to_owned())?;
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        return Err("the value is empty: write it to stdin, or type it".to_owned());
    }
    if value.len() > SECRET_BYTES_MAX {
        return Err(format!("a value has at most {SECRET_BYTES_MAX} bytes"));
    }
    if value.contains('\0') {
        return Err("a value cannot have a NUL character".to_owned());
    }
    Ok(Secret::new(value))
}

/// The mode of the terminal, which comes back when this is dropped.
struct TerminalMode(Termios);

impl Drop for TerminalMode {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        tcsetattr(io::stdin(), OptionalActions::Flush, &self.0).unwrap_or_default();
    }
}

/// What is typed, to the end of the line, and not shown. The terminal sends no signals meanwhile, so that its
/// mode comes back also on Ctrl-C.
fn read_hidden() -> io::Result<Vec<u8>> {
    let mode = TerminalMode(tcgetattr(io::stdin())?);
    let mut hidden = mode.0.clone();
    hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    hidden.special_codes[SpecialCodeIndex::VMIN] = 1;
    hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
    let mut typed = Vec::new();
    for byte in io::stdin().lock().bytes() {
        match byte? {
            b'\r' | b'\n' | 0x04 => break,
            0x03 => return Err(io::ErrorKind::Interrupted.into()),
            0x08 | 0x7f => while typed.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            byte => typed.push(byte),
        }
    }
    Ok(typed)
}
