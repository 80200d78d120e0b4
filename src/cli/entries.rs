//! `tollbridge server`, `profile`, `workspace` and `view`: what the admin API does with what the store has.

mod setting;
mod show;
mod views;

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::{Args, Subcommand};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{
    EXIT_CONFIG,
    args::ConfigArgs,
    data_dir::{self, AccessMode, CommandError, DataDir},
    offline_api::{ApiAnswer, OfflineApi},
    output::{OutputFormat, eprint, escape_terminal, print, print_json},
};
use crate::{
    config::EntrySection,
    control_socket::{self, RestartCommand, canonical_files},
};
use setting::{Setting, SettingKey};
pub(super) use views::ViewArgs;

/// The largest document that is read.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;

/// Show servers, and change those of the store
#[derive(Args, Debug)]
pub(super) struct ServerArgs {
    #[command(subcommand)]
    command: ServerCommand,
}

#[derive(Debug, Subcommand)]
enum ServerCommand {
    #[command(flatten)]
    Entry(EntryCommand),
    /// Enable a server of the store
    Enable(ChangedEntry),
    /// Disable a server of the store: its connections end, and nothing of it is listed
    Disable(ChangedEntry),
    /// Let running gateways make the connections of a server anew
    Restart(NamedEntry),
    /// Connect to a server and list its tools, as it is or with settings that are not saved
    Test(TestServerArgs),
}

/// Show profiles, and change those of the store
#[derive(Args, Debug)]
pub(super) struct ProfileArgs {
    #[command(subcommand)]
    command: EntryCommand,
}

/// Show workspaces, and change those of the store
#[derive(Args, Debug)]
pub(super) struct WorkspaceArgs {
    #[command(subcommand)]
    command: EntryCommand,
}

#[derive(Debug, Subcommand)]
enum EntryCommand {
    /// List what files and store have
    List(ListEntries),
    /// Show what one says, as a config file would have it
    Show(NamedEntry),
    /// Add one to the store
    Add(AddEntryArgs),
    /// Change some settings of one of the store
    Set(SetEntryArgs),
    /// Remove one of the store
    Remove(ChangedEntry),
}

#[derive(Args, Debug)]
struct ListEntries {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct NamedEntry {
    /// Its name; `NAME@WORKSPACE` for a server of a workspace
    name: String,
    #[command(flatten)]
    common: ListEntries,
}

#[derive(Args, Debug)]
struct ChangedEntry {
    #[command(flatten)]
    named: NamedEntry,
    /// Change nothing: print what the change would do
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args, Debug)]
struct AddEntryArgs {
    #[command(flatten)]
    changed: ChangedEntry,
    /// Settings as in a config file: `url=https://example.com/mcp`, `tools.deny=["delete_*"]`. A
    /// VALUE that is not TOML is text. Of variables only `${secret:NAME}` is expanded
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Read the settings from a JSON file; `-` is stdin
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct SetEntryArgs {
    #[command(flatten)]
    add: AddEntryArgs,
    /// Remove a setting, so that its default holds
    #[arg(long, value_name = "KEY")]
    unset: Vec<SettingKey>,
}

#[derive(Args, Debug)]
struct TestServerArgs {
    #[command(flatten)]
    named: NamedEntry,
    /// Settings of a server that is not saved
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
}

/// What a command does with the operations of the API.
struct EntryOperations<'a> {
    api: &'a OfflineApi,
    data_dir: &'a DataDir,
    section: EntrySection,
}

impl ServerArgs {
    pub(super) fn run(&self) -> ExitCode {
        let section = EntrySection::Servers;
        match &self.command {
            ServerCommand::Entry(entry) => entry.run(section),
            ServerCommand::Enable(changed) => changed.switch("enable"),
            ServerCommand::Disable(changed) => changed.switch("disable"),
            ServerCommand::Restart(named) => data_dir::with_data_dir(
                &named.common.config,
                named.common.format(),
                AccessMode::Read,
                async |data_dir| named.restart(data_dir).await,
            ),
            ServerCommand::Test(test) => {
                let common = &test.named.common;
                common.with(section, AccessMode::Read, async |operations| {
                    test.run(operations).await
                })
            }
        }
    }
}

impl ProfileArgs {
    pub(super) fn run(&self) -> ExitCode {
        self.command.run(EntrySection::Profiles)
    }
}

impl WorkspaceArgs {
    pub(super) fn run(&self) -> ExitCode {
        self.command.run(EntrySection::Workspaces)
    }
}

impl EntryCommand {
    fn run(&self, section: EntrySection) -> ExitCode {
        match self {
            Self::List(common) => common.with(section, AccessMode::Read, async |operations| {
                let path = format!("/{}", section.as_str());
                operations
                    .api
                    .list(&path, common.json, show::print_entries)
                    .await
            }),
            Self::Show(named) => named
                .common
                .with(section, AccessMode::Read, async |operations| {
                    let path = operations.path(&named.name);
                    let answer = operations.api.send(Method::GET, &path, None).await;
                    Ok(answer.report(named.common.json, show::print_entry))
                }),
            Self::Add(add) => add.changed.with(section, async |operations| {
                let new = json!({ "name": add.changed.named.name, "config": add.document()? });
                let path = format!("/{}", section.as_str());
                let sent = (Method::POST, path, Some(new));
                operations.change(&add.changed, sent, "added").await
            }),
            Self::Set(set) => set
                .add
                .changed
                .with(section, async |operations| set.run(operations).await),
            Self::Remove(changed) => changed.with(section, async |operations| {
                let sent = (Method::DELETE, operations.path(&changed.named.name), None);
                operations.change(changed, sent, "removed").await
            }),
        }
    }
}

impl ListEntries {
    const fn format(&self) -> OutputFormat {
        OutputFormat::from_flag(self.json)
    }

    /// Does `work` with the operations on `section`.
    fn with(
        &self,
        section: EntrySection,
        intent: AccessMode,
        work: impl AsyncFnOnce(&EntryOperations<'_>) -> Result<ExitCode, CommandError>,
    ) -> ExitCode {
        self.with_api(intent, async |api, data_dir| {
            let operations = EntryOperations {
                api,
                data_dir,
                section,
            };
            work(&operations).await
        })
    }

    /// Does `work` with all operations.
    fn with_api(
        &self,
        intent: AccessMode,
        work: impl AsyncFnOnce(&OfflineApi, &DataDir) -> Result<ExitCode, CommandError>,
    ) -> ExitCode {
        let run = async |data_dir: &Arc<DataDir>| {
            let api = OfflineApi::start(&self.config, data_dir).await?;
            let done = work(&api, data_dir).await;
            api.stop().await;
            done
        };
        data_dir::with_shared_data_dir(&self.config, self.format(), intent, run)
    }
}

impl NamedEntry {
    async fn restart(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let command = RestartCommand {
            files: canonical_files(&self.common.config.files()).unwrap_or_default(),
            server: self.name.clone(),
        };
        let directory = &data_dir.config.data_dir;
        let outcome = control_socket::restart_server(directory, &command).await;
        for failure in &outcome.failures {
            eprint(&format!("{}\n", escape_terminal(failure)));
        }
        if outcome.failures.is_empty() && outcome.gateways == 0 {
            let directory = directory.display();
            eprint(&format!(
                "no gateway is running on {directory}: nothing to restart\n"
            ));
            return Ok(ExitCode::FAILURE);
        }
        let code = if self.common.json {
            print_json(&json!({ "server": self.name, "gateways": outcome.gateways }))
        } else if outcome.gateways > 0 {
            print(&escape_terminal(&format!(
                "server `{}` restarted\n",
                self.name
            )))
        } else {
            ExitCode::SUCCESS
        };
        Ok(data_dir::exit_code(code, outcome.failures.is_empty()))
    }
}

impl ChangedEntry {
    fn with(
        &self,
        section: EntrySection,
        work: impl AsyncFnOnce(&EntryOperations<'_>) -> Result<ExitCode, CommandError>,
    ) -> ExitCode {
        let intent = if self.dry_run {
            AccessMode::Read
        } else {
            AccessMode::Change
        };
        self.named.common.with(section, intent, work)
    }

    fn switch(&self, verb: &str) -> ExitCode {
        self.with(EntrySection::Servers, async |operations| {
            let path = format!("{}/{verb}", operations.path(&self.named.name));
            let done = format!("{verb}d");
            operations
                .change(self, (Method::POST, path, None), &done)
                .await
        })
    }
}

impl AddEntryArgs {
    /// What it is to say.
    fn document(&self) -> Result<Value, CommandError> {
        let mut document = match &self.from {
            Some(file) => read_document(file)?,
            None => json!({}),
        };
        for setting in &self.settings {
            setting.put_into(&mut document);
        }
        Ok(document)
    }
}

impl SetEntryArgs {
    async fn run(&self, operations: &EntryOperations<'_>) -> Result<ExitCode, CommandError> {
        let add = &self.add;
        if add.from.is_none() && add.settings.is_empty() && self.unset.is_empty() {
            let noun = operations.section.noun();
            let message = format!("nothing to change; see `{noun} set --help`");
            return Err(CommandError::usage(message));
        }
        let mut document = add.document()?;
        for key in &self.unset {
            key.put_into(&mut document, Value::Null);
        }
        let method = match add.from {
            Some(_) => Method::PUT,
            None => Method::PATCH,
        };
        let sent = (
            method,
            operations.path(&add.changed.named.name),
            Some(document),
        );
        operations.change(&add.changed, sent, "changed").await
    }
}

impl TestServerArgs {
    async fn run(&self, operations: &EntryOperations<'_>) -> Result<ExitCode, CommandError> {
        let name = &self.named.name;
        let (path, body) = if self.settings.is_empty() {
            (format!("{}/test", operations.path(name)), None)
        } else {
            let mut document = json!({});
            for setting in &self.settings {
                setting.put_into(&mut document);
            }
            let tried = json!({ "name": name, "config": document });
            ("/servers/test".to_owned(), Some(tried))
        };
        let answer = operations
            .api
            .send(Method::POST, &path, body.as_ref())
            .await;
        let is_connected = answer.body["status"] == "connected";
        let is_answered = answer.status.is_success();
        let code = answer.report(self.named.common.json, show::print_trial);
        Ok(if is_answered && !is_connected {
            ExitCode::FAILURE
        } else {
            code
        })
    }
}

impl EntryOperations<'_> {
    /// The path of the entry `name`.
    fn path(&self, name: &str) -> String {
        let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
        format!("/{}/{name}", self.section.as_str())
    }

    /// Makes a change, of which people are told that it was `done`.
    async fn change(
        &self,
        changed: &ChangedEntry,
        (method, path, body): (Method, String, Option<Value>),
        done: &str,
    ) -> Result<ExitCode, CommandError> {
        let (name, common) = (&changed.named.name, &changed.named.common);
        let path = format!("{path}?dry_run={}", changed.dry_run);
        let answer = self.api.send(method, &path, body.as_ref()).await;
        let is_made = answer.status.is_success() && !changed.dry_run;
        let code = answer.report(common.json, |body| {
            if changed.dry_run {
                return show::print_plan(&body["plan"]);
            }
            let noun = self.section.noun();
            print(&escape_terminal(&format!("{noun} `{name}` {done}\n")))
        });
        Ok(report_gateways(self.data_dir, is_made, code))
    }
}

/// Says how many gateways know of a change that `is_made`; the exit code, which `code` is without them.
fn report_gateways(data_dir: &DataDir, is_made: bool, code: ExitCode) -> ExitCode {
    let (gateways, has_failed) = data_dir.last_change();
    if is_made && gateways > 0 {
        let noun = if gateways == 1 { "gateway" } else { "gateways" };
        eprint(&format!("in effect in {gateways} running {noun}\n"));
    }
    data_dir::exit_code(code, !has_failed)
}

impl OfflineApi {
    /// Prints the list at `path`, all pages: as JSON, or what `show` makes of it.
    async fn list(
        &self,
        path: &str,
        json: bool,
        show: impl FnOnce(&[Value]) -> ExitCode,
    ) -> Result<ExitCode, CommandError> {
        let mut items = Vec::new();
        let mut cursor = None::<String>;
        loop {
            let next = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
            let page = format!("{path}?limit=500{next}");
            let mut answer = self.send(Method::GET, &page, None).await;
            if !answer.status.is_success() {
                return Ok(answer.report(json, |_| ExitCode::FAILURE));
            }
            cursor = answer.body["next_cursor"].as_str().map(str::to_owned);
            if let Some(page) = answer.body["items"].as_array_mut() {
                items.append(page);
            }
            if cursor.is_none() {
                break;
            }
        }
        Ok(if json {
            print_json(&items)
        } else {
            show(&items)
        })
    }
}

impl ApiAnswer {
    /// Prints it: as JSON, or what `show` makes of it. What went wrong goes to stderr in words.
    fn report(&self, json: bool, show: impl FnOnce(&Value) -> ExitCode) -> ExitCode {
        let is_success = self.status.is_success();
        let printed = match json {
            true => print_json(&self.body),
            false if is_success => return show(&self.body),
            false => ExitCode::SUCCESS,
        };
        if is_success {
            return printed;
        }
        if !json {
            let detail = self.body["detail"]
                .as_str()
                .unwrap_or("the operation failed");
            eprint(&format!("{}\n", escape_terminal(detail)));
        }
        if self.status.is_client_error() {
            ExitCode::from(EXIT_CONFIG)
        } else {
            ExitCode::FAILURE
        }
    }
}

/// The JSON in `file`.
fn read_document(file: &Path) -> Result<Value, CommandError> {
    let cannot = |error: &dyn std::fmt::Display| {
        CommandError::usage(format!("cannot read {}: {error}", file.display()))
    };
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin()
            .take(DOCUMENT_BYTES_MAX)
            .read_to_string(&mut text)
    } else {
        let opened = fs::File::open(file).map_err(|error| cannot(&error))?;
        opened.take(DOCUMENT_BYTES_MAX).read_to_string(&mut text)
    };
    read.map_err(|error| cannot(&error))?;
    serde_json::from_str(&text).map_err(|error| cannot(&error))
}
