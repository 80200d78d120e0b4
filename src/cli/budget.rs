//! `tollbridge budget`

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use serde_json::json;

use super::{
    agents::{
        self,
        terms::{BudgetArg, display_budgets},
    },
    args::ConfigArgs,
    data_dir::{self, AccessMode, AuditNote, CommandError, DataDir, exit_code, unknown_name},
    output::{OutputFormat, eprint, format_time, print, print_json},
    table::TextTable,
};
use crate::{
    agent_change,
    audit::EventKind,
    clock,
    config::{GovernanceConfig, Window},
    governance::{
        ListedBudget,
        budget::{BudgetStatus, Budgets},
    },
    money::Micros,
    names::ServerName,
    store::{Account, BudgetSubject, BudgetSubjectKind},
};

/// The chain under which this process looks at accounts: it never holds a lease.
const CLI_CHAIN: &str = "cli";

/// Show, set and reset budgets
#[derive(Args, Debug)]
pub(super) struct BudgetArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show limits and spending
    ///
    /// SPENT and LEFT add up to LIMIT. HELD is the part of LEFT that running gateways have reserved
    /// for current and coming calls. Unused reservations return within seconds.
    Show(Show),
    /// Set the budget of an agent of the store
    Set(SetArgs),
    /// Reset spending to zero. Running calls still count for the old period
    Reset(ResetArgs),
}

/// Whose budget.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct BudgetOwner {
    /// Name or id of an agent
    agent: Option<String>,
    /// A team
    #[arg(long, value_name = "TEAM")]
    team: Option<String>,
    /// A server: what all agents spend on it
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,
}

#[derive(Args, Debug)]
struct Show {
    #[command(flatten)]
    whose: BudgetOwner,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON, with exact amounts in millionths of a USD
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct SetArgs {
    /// Name or id of the agent
    agent: String,
    /// AMOUNT/day, AMOUNT/month or AMOUNT/total (AMOUNT alone is total) in USD. Several limits all
    /// apply. `off` is unlimited, `default` the budget of the config
    #[arg(value_name = "LIMIT", required = true, num_args = 1.., value_parser = BudgetArg::parse)]
    limits: Vec<BudgetArg>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ResetArgs {
    #[command(flatten)]
    whose: BudgetOwner,
    /// Only the budget of this period. Default: all periods
    #[arg(long, value_name = "WINDOW")]
    window: Option<WindowName>,
    /// Reason, recorded in the audit log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WindowName {
    Day,
    Month,
    Total,
}

impl WindowName {
    const fn window(self) -> Window {
        match self {
            Self::Day => Window::Day,
            Self::Month => Window::Month,
            Self::Total => Window::Total,
        }
    }
}

impl BudgetArgs {
    pub(super) fn run(&self) -> ExitCode {
        match &self.command {
            Command::Show(show) => data_dir::with_data_dir_and_servers(
                &show.config,
                OutputFormat::from_flag(show.json),
                AccessMode::Read,
                async |data_dir| show.show(data_dir).await,
            ),
            Command::Set(set) => data_dir::with_data_dir_and_servers(
                &set.config,
                OutputFormat::from_flag(set.json),
                AccessMode::Change,
                async |data_dir| set.set(data_dir).await,
            ),
            Command::Reset(reset) => data_dir::with_data_dir_and_servers(
                &reset.config,
                OutputFormat::from_flag(reset.json),
                AccessMode::Change,
                async |data_dir| reset.reset(data_dir).await,
            ),
        }
    }
}

impl BudgetOwner {
    /// The budgets meant; all there are when nobody is named.
    fn budget_lines(&self, data_dir: &DataDir) -> Result<Vec<ListedBudget>, CommandError> {
        if let Some(name) = &self.agent {
            return Ok(ListedBudget::of_agent(
                &*data_dir.agent(name)?,
                &data_dir.config,
            ));
        }
        if let Some(name) = &self.team {
            return find_team_lines(name, data_dir);
        }
        if let Some(name) = &self.server {
            return find_server_lines(name, data_dir);
        }
        Ok(ListedBudget::all(&data_dir.agents(), &data_dir.config))
    }

    /// What was spent where no budget of `limited` holds any more: its limit was taken away, or counts
    /// in another window now.
    async fn spent_without_limit(
        &self,
        limited: &[ListedBudget],
        data_dir: &DataDir,
    ) -> Result<Vec<ListedBudget>, CommandError> {
        let agent = self.agent.as_deref().map(|name| data_dir.agent(name));
        let agent = agent
            .transpose()?
            .map(|agent| BudgetSubject::agent(agent.id));
        let is_meant = |subject: &BudgetSubject| match subject.kind() {
            _ if agent.is_none() && self.team.is_none() && self.server.is_none() => true,
            BudgetSubjectKind::Agent => agent.as_ref() == Some(subject),
            BudgetSubjectKind::Server => self.server.as_deref() == Some(subject.id()),
            BudgetSubjectKind::Team => self.team.as_deref() == Some(subject.id()),
        };
        let accounts = data_dir.store.leases.spent_accounts(clock::now()).await?;
        let mut lines = ListedBudget::without_limit(&accounts, limited, &data_dir.agents());
        lines.retain(|line| is_meant(&line.subject));
        Ok(lines)
    }

    /// Complains that nobody's budget is meant, or that there is none.
    fn no_budget_error(&self) -> CommandError {
        let who = match (&self.agent, &self.team, &self.server) {
            (Some(agent), _, _) => format!("the agent `{agent}`"),
            (_, Some(team), _) => format!("the team `{team}`"),
            (_, _, Some(server)) => format!("the server `{server}`"),
            (None, None, None) => {
                return CommandError::usage("specify an agent, --team or --server");
            }
        };
        CommandError::usage(format!("{who} has no such budget"))
    }
}

fn find_team_lines(name: &str, data_dir: &DataDir) -> Result<Vec<ListedBudget>, CommandError> {
    let teams = &data_dir.config.governance.teams;
    if let Some(budgets) = teams.get(name) {
        return Ok(ListedBudget::of_team(name, budgets));
    }
    let known: Vec<&str> = teams.keys().map(String::as_str).collect();
    let otherwise = "team budgets are set in `[governance.teams]`";
    Err(unknown_name("budget of a team", name, &known, otherwise))
}

fn find_server_lines(name: &str, data_dir: &DataDir) -> Result<Vec<ListedBudget>, CommandError> {
    let servers = &data_dir.config.servers;
    let found = servers.iter().find(|(server, _)| server.as_str() == name);
    if let Some((name, server)) = found {
        return Ok(ListedBudget::of_server(name, &server.budget));
    }
    let known: Vec<&str> = servers.keys().map(ServerName::as_str).collect();
    Err(unknown_name(
        "server",
        name,
        &known,
        "servers are set in the config",
    ))
}

impl Show {
    async fn show(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let lines = self.whose.budget_lines(data_dir)?;
        if lines.is_empty() {
            let why = if data_dir.config.governance == GovernanceConfig::default() {
                "the config has no `[governance]`"
            } else {
                "budgets are `off` or not set"
            };
            eprint(&format!("spending is not limited: {why}\n"));
        }
        // Gateways say what they have spent every now and then; being asked, they say it at once.
        let is_notified = data_dir
            .notify_gateways("spending without a limit is not shown")
            .await;
        let budgets = Budgets::new(data_dir.store.leases.clone(), CLI_CHAIN);
        let mut found = Vec::new();
        let unlimited = self.whose.spent_without_limit(&lines, data_dir).await?;
        for line in lines.into_iter().chain(unlimited) {
            let standing = line.status(&budgets, clock::now()).await?;
            // What was spent before a reset is nobody's concern any more.
            if line.limit.is_some() || standing.spent > Micros::ZERO {
                found.push((line, standing));
            }
        }
        let code = if self.json {
            let shown = found.iter().map(|(line, standing)| line.show(standing));
            print_json(&shown.collect::<Vec<_>>())
        } else {
            if found
                .iter()
                .any(|(_, standing)| unspent_reserve(standing) > Micros::ZERO)
            {
                eprint("HELD is the part of LEFT reserved by gateways\n");
            }
            budgets_table(&found).print()
        };
        Ok(exit_code(code, is_notified))
    }
}

fn kind_of(line: &ListedBudget) -> &'static str {
    line.subject.kind().as_str()
}

/// What calls under way, and processes for the next ones, may still spend.
fn unspent_reserve(standing: &BudgetStatus) -> Micros {
    standing.held.saturating_add(standing.elsewhere)
}

fn budgets_table(found: &[(ListedBudget, BudgetStatus)]) -> TextTable<9> {
    let mut table = TextTable::new([
        "OF", "NAME", "WINDOW", "LIMIT", "SPENT", "LEFT", "HELD", "ENDS", "FROM",
    ]);
    for (line, standing) in found {
        let ends = standing.ends.map(|at| format!("{at:.0}"));
        let (limit, left) = match line.limit {
            Some(limit) => {
                let left = limit.saturating_sub(standing.spent);
                (limit.to_decimal(), left.to_decimal())
            }
            None => ("none".to_owned(), String::new()),
        };
        table.add([
            kind_of(line).to_owned(),
            line.name.clone(),
            line.window.as_str().to_owned(),
            limit,
            standing.spent.to_decimal(),
            left,
            unspent_reserve(standing).to_decimal(),
            ends.unwrap_or_default(),
            line.source.clone(),
        ]);
    }
    table
}

impl SetArgs {
    async fn set(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        let mut agent = data_dir.stored_agent(&self.agent)?;
        let old = agent.clone();
        agent.terms.budget = BudgetArg::to_budgets(&self.limits)?;
        let shown = display_budgets(&agent.terms);
        let note = AuditNote {
            event: EventKind::BudgetChanged,
            subject: agent.name.clone(),
            detail: format!("set to {shown}"),
            changes: agent_change::changed_values(Some(&old), Some(&agent)),
        };
        let update = agents::write(&agent, data_dir);
        let is_notified = data_dir.change_and_record(&[note], update).await?;
        let code = if self.json {
            print_json(&json!({
                "name": agent.name,
                "id": agent.id,
                "budget": agent.terms.budget,
            }))
        } else {
            print(&format!("agent `{}`: budget {shown}\n", agent.name))
        };
        Ok(exit_code(code, is_notified))
    }
}

impl ResetArgs {
    async fn reset(&self, data_dir: &DataDir) -> Result<ExitCode, CommandError> {
        if self.reason.trim().is_empty() {
            return Err(CommandError::usage("--reason must not be empty"));
        }
        let wanted = self.window.map(WindowName::window);
        let is_nobody =
            self.whose.agent.is_none() && self.whose.team.is_none() && self.whose.server.is_none();
        let mut lines = if is_nobody {
            Vec::new()
        } else {
            self.whose.budget_lines(data_dir)?
        };
        lines.retain(|line| wanted.is_none_or(|window| window == line.window));
        // Several budgets of one window share an account.
        lines.sort_by_key(|line| line.window.as_str());
        lines.dedup_by_key(|line| line.window);
        if lines.is_empty() {
            return Err(self.whose.no_budget_error());
        }
        let (budgets, now) = (
            Budgets::new(data_dir.store.leases.clone(), CLI_CHAIN),
            clock::now(),
        );
        let mut notes = Vec::with_capacity(lines.len());
        for line in &lines {
            let before = line.status(&budgets, now).await?;
            notes.push(self.audit_note(line, &before));
        }
        let mut accounts = Vec::new();
        let reset = async {
            for line in &lines {
                let window = line.window;
                let account = budgets.reset(&line.subject, window, &self.reason, now);
                accounts.push(account.await?);
            }
            Ok(())
        };
        let is_notified = data_dir.apply_change(&notes, reset).await?;
        Ok(exit_code(self.report(&lines, &accounts, now), is_notified))
    }

    fn audit_note(&self, line: &ListedBudget, before: &BudgetStatus) -> AuditNote {
        AuditNote {
            event: EventKind::BudgetChanged,
            subject: match kind_of(line) {
                "agent" => line.name.clone(),
                kind => format!("{kind} {}", line.name),
            },
            detail: format!("reset {}: {}", line.window.as_str(), self.reason),
            changes: before.reset_values(),
        }
    }

    fn report(&self, lines: &[ListedBudget], accounts: &[Account], now: Timestamp) -> ExitCode {
        let both = lines.iter().zip(accounts);
        if self.json {
            let shown = both.map(|(line, account)| {
                json!({
                    "of": kind_of(line),
                    "name": line.name,
                    "window": line.window.as_str(),
                    "account": account.as_str(),
                    "reset": format_time(now),
                    "reason": self.reason,
                })
            });
            return print_json(&shown.collect::<Vec<_>>());
        }
        let lines = both.map(|(line, _)| {
            let (of, name, window) = (kind_of(line), &line.name, line.window.as_str());
            format!("{of} `{name}`: reset the budget for `{window}` to 0.00\n")
        });
        print(&lines.collect::<Vec<_>>().concat())
    }
}
