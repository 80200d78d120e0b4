//! The first page: what needs a person, then how things go.

use maud::{Markup, html};
use serde_json::Value;

use super::{
    Content, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, encoded},
    budgets::budget_line,
    format::{ago, count, pill, plain, server_link, trend, usd},
    layout::state_pill,
};
use crate::config::Role;

/// The share of a budget, in percent, from which on it is said that it ends.
const BUDGET_WARN_PERCENT: u64 = 90;
/// Rows of the short lists.
const ROWS_MAX: usize = 8;

/// Something that needs a person.
struct Need {
    kind: &'static str,
    word: &'static str,
    what: Markup,
    link: (String, &'static str),
}

/// Shows the page.
pub(super) async fn show(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    let role = visit.viewer.caller.role;
    let body = match role {
        Role::Admin | Role::Auditor => gateway(visit).await?,
        Role::Agent | Role::WorkspaceAdmin => own(visit).await?,
    };
    let actions = html! {
        @if role == Role::Admin { a.button.primary href="/ui/servers/new" { "Add server" } }
    };
    Ok(PageResult::Content(Content {
        title: "Overview".to_owned(),
        section: "Overview",
        actions,
        body,
    }))
}

async fn gateway(visit: &PageVisit<'_>) -> Result<Markup, ApiFailure> {
    let status = visit.api.get("/status").await?;
    let budgets = visit.api.get("/budgets?limit=500").await?;
    let usage = visit.api.get("/usage?by=server&step=hour&limit=500").await;
    let refused = visit.api.get("/audit?decision=refused&limit=5").await;
    let needs = needs(&status, &budgets);
    let fullest = fullest(&budgets);
    Ok(html! {
        div id="overview" data-live {
            (needs_list(&needs))
            // Without an audit log there are neither.
            @if let Ok(usage) = &usage { (figures(usage)) }
            div.two {
                section {
                    h2 { "Servers" small { a href="/ui/servers" { "all " (status.list("servers").len()) } } }
                    (server_table(&status, usage.as_ref().ok()))
                }
                section {
                    @if let Ok(refused) = &refused {
                        h2 { "Last refusals" small { a href="/ui/calls?decision=refused" { "all" } } }
                        (refusals(refused))
                    }
                    h2 { "Budgets" small { a href="/ui/budgets" { "all" } } }
                    @for budget in fullest { (budget_line(budget)) }
                }
            }
        }
    })
}

/// What an agent sees of itself.
async fn own(visit: &PageVisit<'_>) -> Result<Markup, ApiFailure> {
    let me = visit.api.get("/me").await?;
    let calls = &me["calls"];
    Ok(html! {
        div id="overview" data-live {
            div.stats {
                section { small { "Answered" } div.n { (count(calls.number("answered"))) } }
                section { small { "Failed" } div.n { (count(calls.number("failed"))) } }
                section { small { "Refused" } div.n { (count(calls.number("refused"))) } }
                section { small { "Spent" } div.n { (usd(calls.number("spent_micros"))) } }
            }
            section {
                h2 { "What is left" }
                @for budget in me.list("budgets") { (budget_line(budget)) }
                @if me.list("budgets").is_empty() { p.dim { "No budget limits you." } }
            }
        }
    })
}

fn needs(status: &Value, budgets: &Value) -> Vec<Need> {
    let mut needs = gateway_needs(status);
    needs.extend(status.list("servers").iter().filter_map(server_need));
    needs.extend(budgets.list("items").iter().filter_map(budget_need));
    needs.extend(
        status["governance"]
            .list("keys_expiring")
            .iter()
            .map(key_need),
    );
    needs
}

/// What is wrong with the gateway itself.
fn gateway_needs(status: &Value) -> Vec<Need> {
    let mut needs = Vec::new();
    let error = &status["config"]["error"];
    if error.is_object() {
        let first = error.text("message").lines().next().unwrap_or_default();
        needs.push(Need {
            kind: "bad",
            word: "Config",
            what: html! {
                b { "The config" } " has errors; what ran before goes on" small { (plain(first)) }
            },
            link: ("/ui/settings".to_owned(), "See all"),
        });
    }
    let problems = [
        "audit_error",
        "audit_warning",
        "budget_error",
        "store_error",
    ];
    let problems = problems
        .iter()
        .filter_map(|key| status["governance"][*key].as_str());
    needs.extend(problems.map(|problem| Need {
        kind: "bad",
        word: "Storage",
        what: html! { (plain(problem)) },
        link: ("/ui/settings".to_owned(), "Settings"),
    }));
    needs
}

fn server_need(server: &Value) -> Option<Need> {
    let name = server.text("name");
    let (kind, word) = match server.text("state") {
        "failed" => ("bad", "Failed"),
        "needs_reauth" => ("warn", "Sign-in"),
        _ => return None,
    };
    let what = html! {
        b { (plain(name)) } ": " (plain(server.text("reason")))
        small {
            "Since " (ago(server.text("since")))
            ". " (count(server.number("failed_starts"))) " failed starts."
        }
    };
    let link = (format!("/ui/servers/{}", encoded(name)), "Look");
    Some(Need {
        kind,
        word,
        what,
        link,
    })
}

fn budget_need(budget: &Value) -> Option<Need> {
    let used = budget.number("spent_micros") + budget.number("held_micros");
    let percent = used.saturating_mul(100) / budget.number("limit_micros").max(1);
    (percent >= BUDGET_WARN_PERCENT).then(|| Need {
        kind: "warn",
        word: "Budget",
        what: html! {
            b { (plain(budget.text("name"))) } " has spent " (percent) " % of $" (budget.text("limit"))
            " (" (budget.text("window")) ")"
        },
        link: ("/ui/budgets".to_owned(), "Budgets"),
    })
}

fn key_need(key: &Value) -> Need {
    let agent = key.text("agent");
    Need {
        kind: "warn",
        word: "Key",
        what: html! { "A key of " b { (plain(agent)) } " expires " (ago(key.text("expires"))) },
        link: (format!("/ui/agents/{}", encoded(agent)), "Keys"),
    }
}

fn needs_list(needs: &[Need]) -> Markup {
    html! {
        section.todo aria-label="Needs you" {
            h2 { "Needs you" small { (needs.len()) @if needs.len() == 1 { " thing" } @else { " things" } } }
            @if needs.is_empty() { p.dim { "Nothing. All servers are connected, and nothing was lost." } }
            ul {
                @for need in needs {
                    li {
                        (pill(need.kind, need.word))
                        div.what { (need.what) }
                        a.button href=(need.link.0) { (need.link.1) }
                    }
                }
            }
        }
    }
}

/// Sums of all servers, hour by hour.
fn figures(usage: &Value) -> Markup {
    let mut hours = std::collections::BTreeMap::<String, [u64; 3]>::new();
    for step in usage
        .list("items")
        .iter()
        .flat_map(|item| item.list("steps"))
    {
        let hour = hours.entry(step.text("start").to_owned()).or_default();
        hour[0] += step.number("calls");
        hour[1] += step.number("errors") + step.number("refused");
        hour[2] += step.number("spent_micros");
    }
    let of = |at: usize| hours.values().map(|hour| hour[at]).collect::<Vec<u64>>();
    let sum = |at: usize| of(at).iter().sum::<u64>();
    let (calls, bad) = (sum(0), sum(1));
    let per_mille = bad.saturating_mul(1000) / calls.max(1);
    let slowest = usage.list("items").iter();
    let slowest = slowest.filter_map(|item| Some((item["latency_p95_ms"].as_f64()?, item)));
    let slowest = slowest.max_by(|a, b| a.0.total_cmp(&b.0));
    html! {
        div.stats {
            section {
                small { "Calls, last 24 hours" }
                div.n { (count(calls)) }
                (trend(&of(0), "", "Calls, by the hour"))
            }
            section {
                small { "Failed or refused" }
                div.n { (per_mille / 10) "." (per_mille % 10) " %" }
                (trend(&of(1), "red", "Calls that failed or were refused, by the hour"))
            }
            section {
                small { "Slowest server, p95" }
                @match slowest {
                    Some((ms, item)) => {
                        div.n { (super::format::milliseconds(&ms.into())) }
                        small { (server_link(item.text("name"))) }
                    }
                    None => div.n { "–" }
                }
            }
            section {
                small { "Spent, last 24 hours" }
                div.n { (usd(sum(2))) }
                (trend(&of(2), "", "Spend, by the hour"))
            }
        }
    }
}

/// Servers: first those that do not do well.
fn server_table(status: &Value, usage: Option<&Value>) -> Markup {
    let mut servers: Vec<&Value> = status.list("servers").iter().collect();
    servers.sort_by_key(|server| server.text("state") == "connected");
    let calls = |name: &str| {
        let mut items = usage.map_or(&[][..], |usage| usage.list("items")).iter();
        items.find(|item| item.text("id") == name)
    };
    html! {
        table {
            thead { tr { th { "Server" } th { "State" } th.num.hide { "Tools" } th.num { "Calls" } th.num.hide { "p95" } } }
            tbody {
                @for server in servers.iter().take(ROWS_MAX) {
                    @let used = calls(server.text("name"));
                    tr {
                        td { b { (server_link(server.text("name"))) } small { (server.text("transport")) } }
                        td { (state_pill(server.text("state"))) }
                        td.num.hide { (count(server["offers"].number("tools"))) }
                        td.num { (count(used.map_or(0, |used| used.number("calls")))) }
                        td.num.hide {
                            (super::format::milliseconds(used.map_or(&Value::Null, |used| &used["latency_p95_ms"])))
                        }
                    }
                }
            }
        }
        @if servers.is_empty() { p.dim { "There are none yet. " a href="/ui/servers/new" { "Add one." } } }
    }
}

fn refusals(refused: &Value) -> Markup {
    html! {
        table {
            tbody {
                @for record in refused.list("items") {
                    tr {
                        td {
                            b { (plain(record.text("agent_name"))) } " · " code { (plain(record.text("exposed"))) }
                            small {
                                (plain(record.text("rule"))) " "
                                a href=(format!("/ui/calls/{}", encoded(record.text("id")))) { "Why?" }
                            }
                        }
                        td.num { small { (ago(record.text("ts"))) } }
                    }
                }
            }
        }
        @if refused.list("items").is_empty() { p.dim { "No call was refused." } }
    }
}

/// The budgets of which the largest share is used.
fn fullest(budgets: &Value) -> Vec<&Value> {
    let mut budgets: Vec<&Value> = budgets.list("items").iter().collect();
    let used = |budget: &Value| {
        budget.number("spent_micros").saturating_mul(1000) / budget.number("limit_micros").max(1)
    };
    budgets.sort_by_key(|budget| std::cmp::Reverse(used(budget)));
    budgets.truncate(ROWS_MAX / 2);
    budgets
}
