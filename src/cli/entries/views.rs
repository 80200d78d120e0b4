//! `tollbridge view`: what the admin API does with views.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{ListEntries, Setting, SettingKey, report_gateways};
use crate::cli::{
    data_dir::{AccessMode, CommandError, DataDir},
    offline_api::OfflineApi,
    output::{escape_terminal, print, print_json},
    table::TextTable,
};

/// Where the API has them.
const PATH: &str = "/views";

/// Show views, and make, change and end them for agents
#[derive(Args, Debug)]
pub(in crate::cli) struct ViewArgs {
    #[command(subcommand)]
    command: ViewCommand,
}

#[derive(Debug, Subcommand)]
enum ViewCommand {
    /// List the views of all agents
    List(ListEntries),
    /// Show one
    Show(NamedView),
    /// Make one: `profile=reading`, `servers=["mail"]`, `disabled_tools=["mail/delete_*"]`, `tool_choice=none`, `ttl=30m`
    Create(CreateViewArgs),
    /// Change some of what one says; its clients are told
    Set(SetViewArgs),
    /// End one, and the sessions on it
    End(ChangedView),
}

#[derive(Args, Debug)]
struct NamedView {
    /// Its id, `view_<uuid>`
    id: String,
    #[command(flatten)]
    common: ListEntries,
}

#[derive(Args, Debug)]
struct ChangedView {
    #[command(flatten)]
    named: NamedView,
    /// Change nothing: print what it would be
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args, Debug)]
struct CreateViewArgs {
    /// What it says
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// The agent that it is for. Default: callers without a key
    #[arg(long)]
    agent: Option<String>,
    /// Change nothing: print what it would be
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: ListEntries,
}

#[derive(Args, Debug)]
struct SetViewArgs {
    #[command(flatten)]
    changed: ChangedView,
    /// What it is to say
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Remove what it says, so that the default holds
    #[arg(long, value_name = "KEY")]
    unset: Vec<SettingKey>,
}

/// What is asked of the API, and how people are told that it was done.
struct ViewRequest<'a> {
    common: &'a ListEntries,
    dry_run: bool,
    method: Method,
    path: String,
    body: Option<Value>,
    done: &'static str,
}

impl ViewArgs {
    pub(in crate::cli) fn run(&self) -> ExitCode {
        match &self.command {
            ViewCommand::List(common) => common.with_api(AccessMode::Read, async |api, _| {
                api.list(PATH, common.json, print_views).await
            }),
            ViewCommand::Show(named) => named.common.with_api(AccessMode::Read, async |api, _| {
                let answer = api.send(Method::GET, &named.path(), None).await;
                Ok(answer.report(named.common.json, print_view))
            }),
            ViewCommand::Create(create) => create.run(),
            ViewCommand::Set(set) => set.run(),
            ViewCommand::End(changed) => changed.request(Method::DELETE, None, "ended").run(),
        }
    }
}

impl NamedView {
    fn path(&self) -> String {
        format!("{PATH}/{}", utf8_percent_encode(&self.id, NON_ALPHANUMERIC))
    }
}

impl ChangedView {
    fn request(&self, method: Method, body: Option<Value>, done: &'static str) -> ViewRequest<'_> {
        ViewRequest {
            common: &self.named.common,
            dry_run: self.dry_run,
            method,
            path: self.named.path(),
            body,
            done,
        }
    }
}

impl CreateViewArgs {
    fn run(&self) -> ExitCode {
        let mut document = json!({});
        if let Some(agent) = &self.agent {
            document["agent"] = agent.as_str().into();
        }
        for setting in &self.settings {
            setting.put_into(&mut document);
        }
        ViewRequest {
            common: &self.common,
            dry_run: self.dry_run,
            method: Method::POST,
            path: PATH.to_owned(),
            body: Some(document),
            done: "made",
        }
        .run()
    }
}

impl SetViewArgs {
    fn run(&self) -> ExitCode {
        let mut document = json!({});
        for setting in &self.settings {
            setting.put_into(&mut document);
        }
        for key in &self.unset {
            key.put_into(&mut document, Value::Null);
        }
        self.changed
            .request(Method::PATCH, Some(document), "changed")
            .run()
    }
}

impl ViewRequest<'_> {
    fn run(self) -> ExitCode {
        let intent = if self.dry_run {
            AccessMode::Read
        } else {
            AccessMode::Change
        };
        let common = self.common;
        common.with_api(intent, async |api, data_dir| self.send(api, data_dir).await)
    }

    async fn send(&self, api: &OfflineApi, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let path = format!("{}?dry_run={}", self.path, self.dry_run);
        let method = self.method.clone();
        let answer = api.send(method, &path, self.body.as_ref()).await;
        let is_made = answer.status.is_success() && !self.dry_run;
        let code = answer.report(self.common.json, |body| {
            let view = &body["view"];
            if self.dry_run {
                return print_view(view);
            }
            let [id, path, expires] = ["id", "path", "expires"].map(|key| text(&view[key]));
            let done = self.done;
            let where_it_is = if self.method == Method::DELETE {
                String::new()
            } else {
                format!(": {path}, until {expires}")
            };
            print(&escape_terminal(&format!(
                "view `{id}` {done}{where_it_is}\n"
            )))
        });
        Ok(report_gateways(data_dir, is_made, code))
    }
}

/// Prints views, one a line.
fn print_views(items: &[Value]) -> ExitCode {
    let mut table = TextTable::new(["ID", "AGENT", "EXPIRES", "SHOWS"]).fit_to_terminal();
    for item in items {
        let [id, agent, expires] = ["id", "agent_id", "expires"].map(|key| text(&item[key]));
        table.add([id, agent, expires, summary(item)]);
    }
    table.print()
}

/// What a view shows, in short.
fn summary(item: &Value) -> String {
    let list = |key: &str| {
        let names = item[key].as_array().into_iter().flatten();
        names.map(text).collect::<Vec<_>>()
    };
    let profile = item["profile"]
        .as_str()
        .map(|name| format!("profile {name}"));
    let added = list("servers").into_iter().map(|name| format!("+{name}"));
    let taken = list("disabled_tools")
        .into_iter()
        .map(|glob| format!("-{glob}"));
    let choice = Some(&item["tool_choice"]).filter(|it| *it != "auto");
    let choice = choice.map(|it| format!("tool_choice {}", text(it)));
    let parts: Vec<String> = profile
        .into_iter()
        .chain(added)
        .chain(taken)
        .chain(choice)
        .collect();
    parts.join(" ")
}

/// Prints what a view says.
fn print_view(item: &Value) -> ExitCode {
    print_json(item)
}

/// As people read it.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
