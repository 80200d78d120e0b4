//! Usage over time: what calls came to, by agent, server, tool, team or workspace.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ApiState,
    audit::{no_index, parse_time},
    caller::{ApiCaller, WorkspaceReader, find_agent},
    input::QueryParams,
    page::{Page, PageQuery, cursor_of},
    problem::{Problem, ProblemType},
    servers::sees_server,
};
use crate::{
    backend::ProgramUsage,
    clock,
    config::Role,
    names::ServerName,
    store::{UsageDimension, UsageQuery, UsageSum, UsageTotals},
};

/// Seconds of an hour.
const HOUR_SECONDS: i64 = 3600;
/// Hours of a day.
const DAY_HOURS: i64 = 24;
/// Steps of all items of a page, at most.
const STEPS_MAX: usize = 50_000;

/// What is asked about usage.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct UsageParams {
    /// By what calls are summed up.
    by: UsageKey,
    /// From the hour of this time on, RFC 3339. Default: a day before `until`.
    #[schemars(extend("format" = "date-time"))]
    since: Option<String>,
    /// Up to the end of the hour before this time, RFC 3339. Default: now, with the hour that has begun.
    #[schemars(extend("format" = "date-time"))]
    until: Option<String>,
    /// Also what each hour or day (UTC) came to.
    step: Option<UsageStep>,
}

/// By what calls are summed up.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum UsageKey {
    Agent,
    Server,
    Team,
    Tool,
    Workspace,
}

/// How long a step is.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum UsageStep {
    Day,
    Hour,
}

/// What the calls of one agent, server, tool, team or workspace came to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct UsageItem {
    /// The id of the agent, the name of the server, team or workspace, or `server/tool`.
    id: String,
    /// Its name; an agent that is no more has its id.
    name: String,
    #[serde(flatten)]
    figures: CallFigures,
    /// Bytes that the programs of a server have in memory at present, with what they started; absent where none
    /// runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    /// Time that they have kept a processor busy, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
    /// What each step came to, where `step` was given; a step without calls is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<UsageOfStep>,
}

/// What the calls of a step came to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct UsageOfStep {
    /// When the step begins, RFC 3339.
    start: String,
    #[serde(flatten)]
    figures: CallFigures,
}

/// What calls came to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct CallFigures {
    /// All calls.
    calls: u64,
    /// Those that failed, or were under way when the gateway stopped.
    errors: u64,
    /// Those that were refused.
    refused: u64,
    /// What they cost, USD.
    spent: String,
    /// What they cost, millionths of a USD.
    spent_micros: u64,
    /// How long those took on average that reached their servers, milliseconds; `null` where that is not known.
    latency_mean_ms: Option<f64>,
    /// How long 95 of 100 took at most, milliseconds, estimated from counts by duration.
    latency_p95_ms: Option<f64>,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new().api_route("/api/v1/usage", get_with(show, |op| op.id("getUsage")))
}

/// Shows what calls came to in whole hours, as far back as the audit goes. A page may have fewer items than `limit`. A
/// workspace admin sees its workspace, its agents and its servers, all on one page.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    QueryParams(page): QueryParams<PageQuery>,
    QueryParams(params): QueryParams<UsageParams>,
) -> Result<Json<Page<UsageItem>>, Problem> {
    let mut query = params.to_query(&page)?;
    let store = state.store.as_ref().ok_or_else(no_index)?;
    let is_limited = caller.role == Role::WorkspaceAdmin;
    if matches!(params.by, UsageKey::Server) {
        state.proxy.backends().measure_programs().await;
    }
    let mut items = Vec::new();
    loop {
        let answer = store.audit.usage(&query).await;
        let answer =
            answer.map_err(|error| Problem::new(ProblemType::InternalError, error.to_string()))?;
        for sums in answer.sums.chunk_by(|a, b| a.name == b.name) {
            if !is_limited || params.shows(&sums[0].name, &caller, &state) {
                items.push(params.item(sums, &state));
            }
        }
        // A cursor would name what somebody else has.
        if is_limited && answer.next.is_some() {
            query.after = answer.next;
            continue;
        }
        let next_cursor = answer.next.as_deref().map(cursor_of);
        return Ok(Json(Page { items, next_cursor }));
    }
}

impl UsageParams {
    fn to_query(&self, page: &PageQuery) -> Result<UsageQuery, Problem> {
        let now = clock::now();
        let until = parse_time("until", self.until.as_deref())?;
        let end_hour = match until {
            Some(until) => hour_of(until),
            None => hour_of(now) + 1,
        };
        let since = parse_time("since", self.since.as_deref())?;
        let first_hour = since.map_or(end_hour - DAY_HOURS, hour_of);
        let (hours, count) = (end_hour.saturating_sub(first_hour).max(0), page.limit()?);
        let step_hours = match self.step {
            Some(UsageStep::Day) => DAY_HOURS,
            Some(UsageStep::Hour) => 1,
            None => i64::MAX,
        };
        let steps = usize::try_from(hours / step_hours + 1).unwrap_or(usize::MAX);
        if steps.saturating_mul(count) > STEPS_MAX {
            let detail = format!(
                "`limit` items of {steps} steps are more than {STEPS_MAX}: choose a shorter time, a longer step or a \
                 lower `limit`"
            );
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        Ok(UsageQuery {
            dimension: match self.by {
                UsageKey::Agent => UsageDimension::Agent,
                UsageKey::Server => UsageDimension::Server,
                UsageKey::Team => UsageDimension::Team,
                UsageKey::Tool => UsageDimension::Tool,
                UsageKey::Workspace => UsageDimension::Workspace,
            },
            first_hour,
            end_hour,
            step_hours,
            after: page.after()?,
            count,
        })
    }

    /// What one name came to.
    fn item(&self, sums: &[UsageSum], state: &ApiState) -> UsageItem {
        let (mut all, id) = (UsageTotals::default(), &sums[0].name);
        for sum in sums {
            all.add(&sum.totals);
        }
        let steps = sums.iter().filter(|_| self.step.is_some());
        let steps = steps.map(|sum| UsageOfStep {
            start: hour_start(sum.hour).to_string(),
            figures: CallFigures::of(&sum.totals),
        });
        let programs = self.programs_of(id, state);
        UsageItem {
            memory_bytes: programs.map(|programs| programs.memory_bytes),
            cpu_seconds: programs.map(|programs| programs.cpu_seconds),
            name: self.name_of(id, state),
            id: id.clone(),
            figures: CallFigures::of(&all),
            steps: steps.collect(),
        }
    }

    /// Whether what `id` names belongs to the workspace of `caller`.
    fn shows(&self, id: &str, caller: &ApiCaller, state: &ApiState) -> bool {
        match self.by {
            UsageKey::Agent => {
                let agent = find_agent(state, id);
                agent.is_ok_and(|agent| caller.sees_team(agent.team.as_deref()))
            }
            UsageKey::Server => sees_server(caller, id),
            UsageKey::Team | UsageKey::Workspace => caller.sees_team(Some(id)),
            UsageKey::Tool => {
                let server = id.split_once('/').map_or(id, |(server, _)| server);
                sees_server(caller, server)
            }
        }
    }

    /// What the programs of the server `id` take of the machine.
    fn programs_of(&self, id: &str, state: &ApiState) -> Option<ProgramUsage> {
        let name = matches!(self.by, UsageKey::Server).then(|| ServerName::parse(id).ok());
        state.proxy.backends().get(&name??)?.program_usage()
    }

    fn name_of(&self, id: &str, state: &ApiState) -> String {
        let agent = matches!(self.by, UsageKey::Agent).then(|| find_agent(state, id).ok());
        let agent = agent.flatten();
        agent.map_or_else(|| id.to_owned(), |agent| agent.name.clone())
    }
}

impl CallFigures {
    fn of(totals: &UsageTotals) -> Self {
        Self {
            calls: totals.calls,
            errors: totals.errors,
            refused: totals.refused,
            spent: totals.spent.to_decimal(),
            spent_micros: totals.spent.get(),
            latency_mean_ms: totals.mean_ms(),
            latency_p95_ms: totals.p95_ms(),
        }
    }
}

fn hour_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(HOUR_SECONDS)
}

fn hour_start(hour: i64) -> Timestamp {
    let since = SignedDuration::from_hours(hour);
    Timestamp::UNIX_EPOCH.checked_add(since).unwrap_or_default()
}
