//! `tollbridge agents`

pub(super) mod terms;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    args::ConfigArgs,
    data_dir::{self, AgentOrigin, CommandError, DataDir, Intent, Note, ended},
    output::{OutputFormat, harmless, print, print_json, say, time},
    table::TextTable,
};
use crate::{
    audit::EventKind,
    auth::{ANONYMOUS, Agent},
    clock,
    config::Terms,
    names::{AgentId, ProfileName},
    store::{RefusedRow, StoredAgent},
};
use terms::Flags;

/// The longest name of an agent, characters, as in a config.
const NAME_CHARS_MAX: usize = 64;

/// Manage agents
#[derive(Args, Debug)]
pub(super) struct AgentsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the agents of the config and of the store
    List(Common),
    /// Show everything that is known of an agent
    Show(One),
    /// Add an agent to the store
    Add(ChangeArgs),
    /// Change an agent of the store
    Set(ChangeArgs),
    /// Enable an agent of the store
    Enable(One),
    /// Disable an agent of the store: every call is refused
    Disable(One),
    /// Remove an agent of the store and its keys. Its spending is kept
    Remove(One),
}

#[derive(Args, Debug)]
struct Common {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct One {
    /// Name or id of the agent
    name: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct ChangeArgs {
    /// Name of the agent, or the id of an existing one
    name: String,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    common: Common,
}

impl AgentsArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::List(common) => data_dir::with(
                &common.config,
                OutputFormat::of(common.json),
                Intent::Look,
                async |books| Ok(list(books, common.json)),
            ),
            Command::Show(one) => one.with(Intent::Look, async |books| {
                let agent = books.agent(&one.name)?;
                Ok(show(&agent, books, one.common.json))
            }),
            Command::Add(add) => add.with(async |books| add.add(books).await),
            Command::Set(set) => set.with(async |books| set.set(books).await),
            Command::Enable(one) => {
                one.with(Intent::Change, async |books| one.enable(true, books).await)
            }
            Command::Disable(one) => {
                one.with(Intent::Change, async |books| one.enable(false, books).await)
            }
            Command::Remove(one) => one.with(Intent::Change, async |books| one.remove(books).await),
        }
    }
}

impl One {
    fn with(
        &self,
        intent: Intent,
        work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>,
    ) -> ExitCode {
        let common = &self.common;
        data_dir::with(&common.config, OutputFormat::of(common.json), intent, work)
    }

    async fn enable(&self, enabled: bool, books: &DataDir) -> Result<ExitCode, CommandError> {
        let mut agent = books.stored(&self.name)?;
        agent.enabled = enabled;
        let word = if enabled { "enabled" } else { "disabled" };
        update(agent, word, self.common.json, books).await
    }

    async fn remove(&self, books: &DataDir) -> Result<ExitCode, CommandError> {
        let stored = books.stored(&self.name).map(|it| (it.id, it.name));
        // A row that Tollbridge did not write is not taken for one that it did.
        let (id, name) = stored.or_else(|why| books.refused_agent(&self.name).ok_or(why))?;
        let remove = async { books.store.agents.remove(id).await.map(drop) };
        let told = books.change(&[note(&name, "removed")], remove).await?;
        let code = if self.common.json {
            print_json(&json!({ "name": name, "id": id, "removed": true }))
        } else {
            print(&harmless(&format!(
                "agent `{name}` and its keys are removed\n"
            )))
        };
        Ok(ended(code, told))
    }
}

impl ChangeArgs {
    fn with(&self, work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>) -> ExitCode {
        let common = &self.common;
        data_dir::with(
            &common.config,
            OutputFormat::of(common.json),
            Intent::Change,
            work,
        )
    }

    async fn add(&self, books: &DataDir) -> Result<ExitCode, CommandError> {
        check_name(&self.name)?;
        books.refuse_taken(&self.name)?;
        let mut agent = StoredAgent {
            // As in a config, so that an agent that moves there stays the same.
            id: AgentId::of_name(&self.name),
            name: self.name.clone(),
            team: None,
            enabled: true,
            admin: false,
            profiles: None,
            terms: Terms::default(),
            created: clock::now(),
        };
        let done = self.flags.apply(&mut agent, books)?;
        let detail = [vec!["added".to_owned()], done].concat().join("; ");
        let add = books.store.agents.add(&agent);
        let told = books.change(&[note(&agent.name, &detail)], add).await?;
        if let Some(hint) = terms::allowed(&agent, books) {
            say(&hint);
        }
        if !books.asks_for_keys() {
            say(
                "nobody can call as this agent over HTTP until `auth = \"keys\"` is written in \
                 `[governance]`\n",
            );
        }
        Ok(ended(report(agent, &detail, self.common.json), told))
    }

    async fn set(&self, books: &DataDir) -> Result<ExitCode, CommandError> {
        let mut agent = books.stored(&self.name)?;
        let done = self.flags.apply(&mut agent, books)?;
        if done.is_empty() {
            return Err(CommandError::usage(
                "nothing to change; `agents set --help` has the flags",
            ));
        }
        update(agent, &done.join("; "), self.common.json, books).await
    }
}

async fn update(
    agent: StoredAgent,
    detail: &str,
    json: bool,
    books: &DataDir,
) -> Result<ExitCode, CommandError> {
    let update = async { books.store.agents.update(&agent).await.map(drop) };
    let told = books.change(&[note(&agent.name, detail)], update).await?;
    Ok(ended(report(agent, detail, json), told))
}

fn report(agent: StoredAgent, detail: &str, json: bool) -> ExitCode {
    if json {
        let created = agent.created;
        let mut shown = to_json(&Agent::from(agent), AgentOrigin::Store);
        shown["created"] = json!(time(created));
        print_json(&shown)
    } else {
        print(&format!("agent `{}`: {detail}\n", agent.name))
    }
}

fn note(name: &str, detail: &str) -> Note {
    Note {
        event: EventKind::AgentChanged,
        subject: name.to_owned(),
        detail: detail.to_owned(),
    }
}

/// The rules of a config, and no name that reads like an id.
fn check_name(name: &str) -> Result<(), CommandError> {
    let problem = if name.trim().is_empty() || name.trim() != name {
        "it must be words without space around them"
    } else if name.contains(char::is_control) {
        "it has a control character"
    } else if name.chars().count() > NAME_CHARS_MAX {
        "it is longer than 64 characters"
    } else if name == ANONYMOUS {
        "that is the agent of callers without a key"
    } else if name.parse::<AgentId>().is_ok() {
        "that is an id"
    } else {
        return Ok(());
    };
    Err(CommandError::usage(format!(
        "`{}` cannot be the name of an agent: {problem}",
        harmless(name)
    )))
}

fn list(books: &DataDir, json: bool) -> ExitCode {
    for hidden in books.hidden() {
        let keys = if hidden.enabled {
            "its keys open that one"
        } else {
            "its keys open nothing while it is disabled"
        };
        say(&harmless(&format!(
            "the agent `{}` of the store is hidden by the one of the config, and {keys} (see \
             `keys list {}`)\n",
            hidden.name, hidden.id
        )));
    }
    for refused in books.refused() {
        say(&harmless(&format!("{refused}\n")));
    }
    let agents = books.agents();
    if json {
        let shown = agents.iter().map(|agent| complete(agent, books));
        let refused = books.refused().iter().map(refused_to_json);
        return print_json(&shown.chain(refused).collect::<Vec<_>>());
    }
    let mut table = TextTable::new([
        "NAME", "ORIGIN", "STATE", "TEAM", "BUDGET", "RATE", "POLICY",
    ])
    .fitting();
    for agent in &agents {
        table.add([
            agent.name.clone(),
            books.origin(agent.id).as_str().to_owned(),
            state(agent).to_owned(),
            agent.team.clone().unwrap_or_default(),
            terms::budget_shown(&agent.terms),
            terms::rate_shown(agent.terms.rate),
            terms::policy_shown(&agent.terms),
        ]);
    }
    for refused in books.refused() {
        let cells = [&refused.name, "store", REFUSED, "", "", "", ""];
        table.add(cells.map(harmless));
    }
    table.print()
}

/// The state of an agent or a key of the store that counts for nothing.
pub(super) const REFUSED: &str = "refused";

fn refused_to_json(refused: &RefusedRow) -> Value {
    json!({
        "name": refused.name,
        "id": refused.id,
        "origin": "store",
        "enabled": false,
        "refused": refused.why.to_string(),
    })
}

fn show(agent: &Agent, books: &DataDir, json: bool) -> ExitCode {
    if json {
        return print_json(&complete(agent, books));
    }
    let profiles = agent.profiles.as_ref().map_or_else(
        || "all".to_owned(),
        |names| {
            let names: Vec<&str> = names.iter().map(ProfileName::as_str).collect();
            names.join(" ")
        },
    );
    let created = books.created(agent.id);
    let mut table = TextTable::new(["FIELD", "VALUE"]);
    let rows = [
        ("name", agent.name.clone()),
        ("id", agent.id.to_string()),
        ("origin", books.origin(agent.id).as_str().to_owned()),
        ("state", state(agent).to_owned()),
        ("team", agent.team.clone().unwrap_or_default()),
        ("admin", agent.admin.to_string()),
        ("profiles", profiles),
        ("policy", terms::policy_shown(&agent.terms)),
        ("budget", terms::budget_shown(&agent.terms)),
        ("rate", terms::rate_shown(agent.terms.rate)),
        ("tool rate", terms::rate_shown(agent.terms.tool_rate)),
        ("scan", terms::data::scan_shown(&agent.terms)),
        ("args", terms::data::args_shown(&agent.terms)),
        ("observe", terms::data::observe_shown(&agent.terms)),
        (
            "created",
            created.map_or_else(String::new, |at| at.to_string()),
        ),
    ];
    for (field, value) in rows {
        if !value.is_empty() {
            table.add([field.to_owned(), value]);
        }
    }
    table.print()
}

const fn state(agent: &Agent) -> &'static str {
    if agent.enabled { "enabled" } else { "disabled" }
}

fn complete(agent: &Agent, books: &DataDir) -> Value {
    let mut shown = to_json(agent, books.origin(agent.id));
    shown["created"] = json!(books.created(agent.id).map(time));
    shown
}

fn to_json(agent: &Agent, origin: AgentOrigin) -> Value {
    let profiles = agent.profiles.as_ref();
    let profiles = profiles.map(|names| names.iter().map(ProfileName::as_str).collect::<Vec<_>>());
    json!({
        "name": agent.name,
        "id": agent.id,
        "origin": origin.as_str(),
        "enabled": agent.enabled,
        "admin": agent.admin,
        "team": agent.team,
        "profiles": profiles,
        "terms": agent.terms,
    })
}
