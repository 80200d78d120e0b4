//! `tollbridge agents`

pub(super) mod terms;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    args::ConfigArgs,
    data_dir::{self, AccessMode, AgentOrigin, AuditNote, CommandError, DataDir, exit_code},
    output::{OutputFormat, eprint, escape_terminal, format_time, print, print_json},
    table::TextTable,
};
use crate::{
    agent_change,
    audit::{ChangedValues, EventKind},
    auth::Agent,
    clock,
    config::Role,
    names::ProfileName,
    store::{RefusedRow, StoredAgent},
};
use terms::Flags;

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
            Command::List(common) => data_dir::with_data_dir(
                &common.config,
                OutputFormat::from_flag(common.json),
                AccessMode::Read,
                async |data_dir| Ok(list(data_dir, common.json)),
            ),
            Command::Show(one) => one.with(AccessMode::Read, async |data_dir| {
                let agent = data_dir.agent(&one.name)?;
                Ok(show(&agent, data_dir, one.common.json))
            }),
            Command::Add(add) => add.with(async |data_dir| add.add(data_dir).await),
            Command::Set(set) => set.with(async |data_dir| set.set(data_dir).await),
            Command::Enable(one) => one.with(AccessMode::Change, async |data_dir| {
                one.enable(true, data_dir).await
            }),
            Command::Disable(one) => one.with(AccessMode::Change, async |data_dir| {
                one.enable(false, data_dir).await
            }),
            Command::Remove(one) => one.with(AccessMode::Change, async |data_dir| {
                one.remove(data_dir).await
            }),
        }
    }
}

impl One {
    fn with(
        &self,
        intent: AccessMode,
        work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>,
    ) -> ExitCode {
        let common = &self.common;
        data_dir::with_data_dir(
            &common.config,
            OutputFormat::from_flag(common.json),
            intent,
            work,
        )
    }

    async fn enable(&self, enabled: bool, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let mut agent = data_dir.stored_agent(&self.name)?;
        agent.enabled = enabled;
        let word = if enabled { "enabled" } else { "disabled" };
        update(agent, word, self.common.json, data_dir).await
    }

    async fn remove(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let stored = data_dir.stored_agent(&self.name);
        let changes = agent_change::changed_values(stored.as_ref().ok(), None);
        let stored = stored.map(|it| (it.id, it.name));
        // A row that Tollbridge did not write is not taken for one that it did.
        let (id, name) = stored.or_else(|why| data_dir.refused_agent(&self.name).ok_or(why))?;
        let note = audit_note(&name, "removed", changes);
        let remove = async { data_dir.store.agents.remove(id).await.map(drop) };
        let is_notified = data_dir.apply_change(&[note], remove).await?;
        let code = if self.common.json {
            print_json(&json!({ "name": name, "id": id, "removed": true }))
        } else {
            print(&escape_terminal(&format!(
                "removed agent `{name}` and its keys\n"
            )))
        };
        Ok(exit_code(code, is_notified))
    }
}

impl ChangeArgs {
    fn with(&self, work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>) -> ExitCode {
        let common = &self.common;
        data_dir::with_data_dir(
            &common.config,
            OutputFormat::from_flag(common.json),
            AccessMode::Change,
            work,
        )
    }

    async fn add(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let place = data_dir.config_files_text();
        let configured = (&data_dir.config, &*place);
        let mut agent = agent_change::new_agent(&self.name, configured, clock::now())?;
        let done = self.flags.apply(&mut agent, data_dir)?;
        let detail = [vec!["added".to_owned()], done].concat().join("; ");
        let add = data_dir.store.agents.add(&agent);
        let changes = agent_change::changed_values(None, Some(&agent));
        let note = audit_note(&agent.name, &detail, changes);
        let is_notified = data_dir.apply_change(&[note], add).await?;
        if let Some(hint) = terms::default_access_note(&agent, data_dir) {
            eprint(&hint);
        }
        if !data_dir.requires_keys() && agent.role == Role::Agent {
            eprint(
                "this agent cannot be used over HTTP until `auth = \"keys\"` is set in \
                 `[governance]`\n",
            );
        }
        Ok(exit_code(
            report(agent, &detail, self.common.json),
            is_notified,
        ))
    }

    async fn set(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let mut agent = data_dir.stored_agent(&self.name)?;
        let done = self.flags.apply(&mut agent, data_dir)?;
        if done.is_empty() {
            return Err(CommandError::usage(
                "nothing to change; see `agents set --help`",
            ));
        }
        update(agent, &done.join("; "), self.common.json, data_dir).await
    }
}

async fn update(
    agent: StoredAgent,
    detail: &str,
    json: bool,
    data_dir: &DataDir,
) -> Result<ExitCode, CommandError> {
    let update = write(&agent, data_dir);
    let old = data_dir.stored_agent(&agent.id.to_string())?;
    let changes = agent_change::changed_values(Some(&old), Some(&agent));
    let note = audit_note(&agent.name, detail, changes);
    let is_notified = data_dir.change_and_record(&[note], update).await?;
    Ok(exit_code(report(agent, detail, json), is_notified))
}

/// Writes `agent`, unless somebody else has changed or removed it meanwhile.
pub(super) async fn write(agent: &StoredAgent, data_dir: &DataDir) -> Result<(), CommandError> {
    let written = data_dir.store.agents.update(agent, Some(agent.changed));
    if written.await?.is_done() {
        return Ok(());
    }
    let message = format!(
        "the agent `{}` was changed meanwhile: try again",
        agent.name
    );
    Err(CommandError::usage(message))
}

fn report(agent: StoredAgent, detail: &str, json: bool) -> ExitCode {
    if json {
        let created = agent.created;
        let mut shown = to_json(&Agent::from(agent), AgentOrigin::Store);
        shown["created"] = json!(format_time(created));
        print_json(&shown)
    } else {
        print(&format!("agent `{}`: {detail}\n", agent.name))
    }
}

fn audit_note(name: &str, detail: &str, changes: ChangedValues) -> AuditNote {
    AuditNote {
        event: EventKind::AgentChanged,
        subject: name.to_owned(),
        detail: detail.to_owned(),
        changes,
    }
}

fn list(data_dir: &DataDir, json: bool) -> ExitCode {
    for hidden in data_dir.shadowed() {
        let keys = if hidden.enabled {
            "its keys authenticate the configured agent"
        } else {
            "its keys are not accepted while it is disabled"
        };
        eprint(&escape_terminal(&format!(
            "the stored agent `{}` is overridden by the config, and {keys} (see `keys list {}`)\n",
            hidden.name, hidden.id
        )));
    }
    for refused in data_dir.refused() {
        eprint(&escape_terminal(&format!("{refused}\n")));
    }
    let agents = data_dir.agents();
    if json {
        let shown = agents.iter().map(|agent| full_json(agent, data_dir));
        let refused = data_dir.refused().iter().map(refused_to_json);
        return print_json(&shown.chain(refused).collect::<Vec<_>>());
    }
    let mut table = TextTable::new([
        "NAME", "ORIGIN", "STATE", "TEAM", "BUDGET", "RATE", "POLICY",
    ])
    .fit_to_terminal();
    for agent in &agents {
        table.add([
            agent.name.clone(),
            data_dir.origin(agent.id).as_str().to_owned(),
            state(agent).to_owned(),
            agent.team.clone().unwrap_or_default(),
            terms::display_budgets(&agent.terms),
            terms::display_rate(agent.terms.rate),
            terms::display_policy(&agent.terms),
        ]);
    }
    for refused in data_dir.refused() {
        let cells = [&refused.name, "store", REFUSED_STATE, "", "", "", ""];
        table.add(cells.map(escape_terminal));
    }
    table.print()
}

/// The state of an agent or a key of the store that counts for nothing.
pub(super) const REFUSED_STATE: &str = "refused";

fn refused_to_json(refused: &RefusedRow) -> Value {
    json!({
        "name": refused.name,
        "id": refused.id,
        "origin": "store",
        "enabled": false,
        "refused": refused.why.to_string(),
    })
}

fn show(agent: &Agent, data_dir: &DataDir, json: bool) -> ExitCode {
    if json {
        return print_json(&full_json(agent, data_dir));
    }
    let profiles = agent.profiles.as_ref().map_or_else(
        || "all".to_owned(),
        |names| {
            let names: Vec<&str> = names.iter().map(ProfileName::as_str).collect();
            names.join(" ")
        },
    );
    let created = data_dir.created(agent.id);
    let mut table = TextTable::new(["FIELD", "VALUE"]);
    let rows = [
        ("name", agent.name.clone()),
        ("id", agent.id.to_string()),
        ("origin", data_dir.origin(agent.id).as_str().to_owned()),
        ("state", state(agent).to_owned()),
        ("team", agent.team.clone().unwrap_or_default()),
        ("role", agent.role.to_string()),
        ("profiles", profiles),
        ("policy", terms::display_policy(&agent.terms)),
        ("budget", terms::display_budgets(&agent.terms)),
        ("rate", terms::display_rate(agent.terms.rate)),
        ("tool rate", terms::display_rate(agent.terms.tool_rate)),
        ("scan", terms::data::display_scan(&agent.terms)),
        ("args", terms::data::display_argument_rules(&agent.terms)),
        ("observe", terms::data::display_observed(&agent.terms)),
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

fn full_json(agent: &Agent, data_dir: &DataDir) -> Value {
    let mut shown = to_json(agent, data_dir.origin(agent.id));
    shown["created"] = json!(data_dir.created(agent.id).map(format_time));
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
        "admin": agent.role == Role::Admin,
        "role": agent.role,
        "team": agent.team,
        "profiles": profiles,
        "terms": agent.terms,
    })
}
