//! Budgets of agents, teams and servers: how they stand, and a fresh start.

use std::sync::Arc;

use aide::axum::{
    ApiRouter,
    routing::{get_with, post_with},
};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ApiState,
    caller::{AdminOnly, ApiCaller, WorkspaceReader, find_agent},
    input::{InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::{Problem, ProblemType},
    servers::sees_server,
};
use crate::{
    audit::EventKind,
    auth::Agent,
    clock,
    config::Window,
    governance::{
        ListedBudget, ShownBudget,
        budget::{BudgetStatus, Budgets},
    },
    money::Micros,
    names::{AgentId, ServerName},
    store::{BudgetSubject, StoreError},
};

/// A budget, and how it is named in paths.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct BudgetResource {
    /// `agent:NAME:day` and the like. Budgets of one period share what is spent, and the id.
    id: String,
    #[serde(flatten)]
    shown: ShownBudget,
}

/// Which budget a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct BudgetPath {
    /// `agent:NAME:WINDOW`, `team:NAME:WINDOW` or `server:NAME:WINDOW`; an agent is named by its id as well.
    budget: String,
}

/// Which budgets are listed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct BudgetFilter {
    /// Only those of agents, teams or servers.
    of: Option<BudgetOwnerKind>,
    /// Only those of the agent, team or server of this name.
    name: Option<String>,
}

/// What has a budget.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum BudgetOwnerKind {
    Agent,
    Server,
    Team,
}

/// Why a budget starts anew.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetReset {
    /// The reason, which stands in the audit; not empty.
    #[schemars(length(min = 1))]
    reason: String,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route("/api/v1/budgets", get_with(list, |op| op.id("listBudgets")))
        .api_route(
            "/api/v1/budgets/{budget}/reset",
            post_with(reset, |op| op.id("resetBudget")),
        )
}

/// Lists the budgets of agents, teams and servers, and what was spent without one. A workspace admin has those of its
/// workspace, its agents and its servers.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    QueryParams(page): QueryParams<PageQuery>,
    QueryParams(filter): QueryParams<BudgetFilter>,
) -> Result<Json<Page<BudgetResource>>, Problem> {
    let mut lines = all_budgets(&state).await?;
    lines.retain(|line| filter.wants(line) && is_seen(line, &caller, &state));
    let mut keyed: Vec<_> = lines.iter().map(|line| (key_of(line), line)).collect();
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    // Pages go by keys; a limit that is given twice in one place is one.
    keyed.dedup_by(|(a, _), (b, _)| a == b);
    let keys: Vec<&str> = keyed.iter().map(|(key, _)| key.as_str()).collect();
    let at = |key: &&str| keyed[keys.partition_point(|known| known < key)].1;
    let chosen = page.page(&keys, at)?;
    let mut items = Vec::with_capacity(chosen.items.len());
    for line in chosen.items {
        let status = status_of(&state, line).await?;
        if line.limit.is_some() || status.spent > Micros::ZERO {
            items.push(to_resource(line, &status));
        }
    }
    let next_cursor = chosen.next_cursor;
    Ok(Json(Page { items, next_cursor }))
}

/// Starts a budget anew: what was spent counts as nothing. Calls under way still count for the period before.
pub(super) async fn reset(
    State(state): State<Arc<ApiState>>,
    AdminOnly(caller): AdminOnly,
    InPath(path): InPath<BudgetPath>,
    JsonBody(asked): JsonBody<BudgetReset>,
) -> Result<Json<BudgetResource>, Problem> {
    if asked.reason.trim().is_empty() {
        let detail = "`reason` must not be empty";
        return Err(Problem::new(ProblemType::InvalidRequest, detail));
    }
    let missing = || Problem::not_found(format_args!("budget `{}`", path.budget));
    let (subject, window) = parse_id(&state, &path.budget).ok_or_else(missing)?;
    let lines = all_budgets(&state).await?;
    let is_meant = |line: &ListedBudget| line.subject == subject && line.window == window;
    let line = lines.into_iter().find(is_meant).ok_or_else(missing)?;
    let (budgets, now) = (budgets_of(&state).ok_or_else(missing)?, clock::now());
    let before = status_of(&state, &line).await?;
    let done = budgets.reset(&subject, window, &asked.reason, now).await;
    done.map_err(|error| failed(&error))?;
    let name = match subject.kind().as_str() {
        "agent" => line.name.clone(),
        kind => format!("{kind} {}", line.name),
    };
    let detail = format!("reset {}: {}", window.as_str(), asked.reason);
    let record = (&*caller.actor(), &*detail);
    let (governance, event) = (state.proxy.governance(), EventKind::BudgetChanged);
    let recorded = governance.record_change(event, &name, record, before.reset_values());
    recorded.durable().await?;
    let status = status_of(&state, &line).await?;
    Ok(Json(to_resource(&line, &status)))
}

impl BudgetFilter {
    fn wants(&self, line: &ListedBudget) -> bool {
        let of = self.of.map(|kind| match kind {
            BudgetOwnerKind::Agent => "agent",
            BudgetOwnerKind::Server => "server",
            BudgetOwnerKind::Team => "team",
        });
        of.is_none_or(|of| of == line.subject.kind().as_str())
            && self.name.as_ref().is_none_or(|name| *name == line.name)
    }
}

/// Whether the budget is there for `caller`.
fn is_seen(line: &ListedBudget, caller: &ApiCaller, state: &ApiState) -> bool {
    if caller.sees_team(None) {
        return true;
    }
    match line.subject.kind().as_str() {
        "agent" => {
            let agents = state.proxy.governance().directory().agents().into_iter();
            let mut own = agents.filter(|agent| caller.sees_team(agent.team.as_deref()));
            own.any(|agent| BudgetSubject::agent(agent.id) == line.subject)
        }
        "team" => caller.sees_team(Some(&line.name)),
        _ => sees_server(caller, &line.name),
    }
}

/// Every budget, and what was spent without a limit.
async fn all_budgets(state: &ApiState) -> Result<Vec<ListedBudget>, Problem> {
    let Some(store) = &state.store else {
        // Without a store nothing can be charged.
        return Ok(Vec::new());
    };
    let directory = state.proxy.governance().directory();
    let mut agents = directory.agents();
    // Where everybody signs in nobody calls as this one.
    agents.retain(|agent| agent.id != AgentId::ANONYMOUS || directory.is_anonymous());
    let mut lines = ListedBudget::all(&agents, &state.writer.running());
    let accounts = store.leases.spent_accounts(clock::now()).await;
    let accounts = accounts.map_err(|error| failed(&error))?;
    lines.extend(ListedBudget::without_limit(&accounts, &lines, &agents));
    Ok(lines)
}

/// The budgets that calls of `agent` count to, and how they stand: its own and those of its team.
pub(super) async fn budgets_of_agent(
    state: &ApiState,
    agent: &Agent,
) -> Result<Vec<BudgetResource>, Problem> {
    if budgets_of(state).is_none() {
        return Ok(Vec::new());
    }
    let config = state.writer.running();
    let directory = state.proxy.governance().directory();
    // A user behind a token may spend what the agent has whose terms they are.
    let payer = directory.current(agent.quota_owner);
    let payer = payer.as_deref().unwrap_or(agent);
    let mut lines = ListedBudget::of_agent(payer, &config);
    let team = agent.team.as_ref();
    let team = team.and_then(|team| config.governance.teams.get_key_value(team));
    lines.extend(
        team.into_iter()
            .flat_map(|(name, budgets)| ListedBudget::of_team(name, budgets)),
    );
    let mut shown = Vec::with_capacity(lines.len());
    for line in &lines {
        shown.push(to_resource(line, &status_of(state, line).await?));
    }
    Ok(shown)
}

fn budgets_of(state: &ApiState) -> Option<&Budgets> {
    state.proxy.governance().budgets()
}

async fn status_of(state: &ApiState, line: &ListedBudget) -> Result<BudgetStatus, Problem> {
    let missing = || Problem::not_found("store of budgets");
    let budgets = budgets_of(state).ok_or_else(missing)?;
    let status = line.status(budgets, clock::now()).await;
    status.map_err(|error| failed(&error))
}

fn to_resource(line: &ListedBudget, status: &BudgetStatus) -> BudgetResource {
    BudgetResource {
        id: id_of(line),
        shown: line.show(status),
    }
}

fn id_of(line: &ListedBudget) -> String {
    let (kind, window) = (line.subject.kind().as_str(), line.window.as_str());
    format!("{kind}:{}:{window}", line.name)
}

/// What tells one budget from another of its period as well.
fn key_of(line: &ListedBudget) -> String {
    let limit = line.limit.map_or(0, Micros::get);
    format!("{} {} {limit:020}", id_of(line), line.source)
}

/// Whose budget `id` names, and of which period.
fn parse_id(state: &ApiState, id: &str) -> Option<(BudgetSubject, Window)> {
    let (kind, rest) = id.split_once(':')?;
    let (name, window) = rest.rsplit_once(':')?;
    let mut windows = Window::ALL.into_iter();
    let window = windows.find(|it| it.as_str() == window)?;
    let subject = match kind {
        "agent" => BudgetSubject::agent(find_agent(state, name).ok()?.id),
        "team" => BudgetSubject::team(name),
        "server" => BudgetSubject::server(&ServerName::parse(name).ok()?),
        _ => return None,
    };
    Some((subject, window))
}

fn failed(error: &StoreError) -> Problem {
    Problem::new(ProblemType::InternalError, error.to_string())
}
