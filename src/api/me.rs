//! What every agent may know of itself: who it is, the tools it sees, what it has used, and what is left.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ApiState,
    budgets::{BudgetResource, budgets_of_agent},
    caller::SignedIn,
    input::QueryParams,
    page::{Page, PageQuery},
    problem::Problem,
    tools::{CatalogTool, tools_page},
};
use crate::{config::Role, governance::RateStatus};

/// The agent that asks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct OwnAccount {
    /// Its id.
    id: String,
    /// Its name.
    name: String,
    /// Its workspace, and whose budget it shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    team: Option<String>,
    /// What of the API is open to this request: a token without the scope `admin` is that of an agent.
    role: Role,
    /// The profiles that it may use, and nothing beside them; absent: every route.
    #[serde(skip_serializing_if = "Option::is_none")]
    profiles: Option<Vec<String>>,
    /// Its calls since this gateway started.
    calls: OwnCalls,
    /// The budgets that its calls count to, its own and those of its team, and what is left of them.
    budgets: Vec<BudgetResource>,
    /// The rate limits that count its calls of the merged route, and what is left of them; those of tools and
    /// servers where some of it is used.
    rates: Vec<RateStatus>,
}

/// Calls of an agent.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct OwnCalls {
    /// Those that their servers answered.
    answered: u64,
    /// Those that got no answer.
    failed: u64,
    /// Those that were refused.
    refused: u64,
    /// What they cost, millionths of a USD.
    spent_micros: u64,
}

/// Which of its tools an agent asks for.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct OwnToolQuery {
    /// A text that name, title or description must have; the case does not matter.
    q: Option<String>,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route("/api/v1/me", get_with(show, |op| op.id("getMe")))
        .api_route(
            "/api/v1/me/tools",
            get_with(list_tools, |op| op.id("listOwnTools")),
        )
}

/// Shows who asks: what it has used, and what is left.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
) -> Result<Json<OwnAccount>, Problem> {
    let agent = &caller.agent;
    let governance = state.proxy.governance();
    let usage = governance.call_usage();
    let totals = usage.agents.get(&agent.id).copied().unwrap_or_default();
    let profiles = agent.profiles.as_ref();
    Ok(Json(OwnAccount {
        id: agent.id.to_string(),
        name: agent.name.clone(),
        team: agent.team.clone(),
        role: caller.role,
        profiles: profiles.map(|names| names.iter().map(ToString::to_string).collect()),
        calls: OwnCalls {
            answered: totals.answered,
            failed: totals.failed,
            refused: totals.refused,
            spent_micros: totals.spent_micros,
        },
        budgets: budgets_of_agent(&state, agent).await?,
        // Who has terms that cannot be used may do nothing.
        rates: governance.rate_statuses(agent).unwrap_or_default(),
    }))
}

/// Lists the tools of the merged route that it sees.
pub(super) async fn list_tools(
    State(state): State<Arc<ApiState>>,
    SignedIn(caller): SignedIn,
    QueryParams(page): QueryParams<PageQuery>,
    QueryParams(query): QueryParams<OwnToolQuery>,
) -> Result<Json<Page<CatalogTool>>, Problem> {
    tools_page(&state, Some(&caller.agent), &page, query.q.as_deref()).map(Json)
}
