//! Calls: the audit, and why one was refused.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{
    Content, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, encoded, query},
    format::{
        ago, decision_pill, input, milliseconds, next_page, plain, pretty, select, server_link, usd,
    },
};
use crate::config::Role;

const SECTION: &str = "Calls";
/// How the ids of records begin.
const RECORD_PREFIX: &str = "inv_";
/// What calls are looked for by.
const FILTERS: [&str; 6] = ["agent", "server", "tool", "decision", "since", "until"];

/// Lists calls.
pub(super) async fn list(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    let sees_all = matches!(visit.viewer.caller.role, Role::Admin | Role::Auditor);
    let mut fields: Vec<(&str, &str)> = FILTERS
        .iter()
        .map(|name| (*name, visit.query.get(name)))
        .collect();
    let path = if sees_all { "/audit" } else { "/me/audit" };
    fields.push(("cursor", visit.query.get("cursor")));
    let calls = visit.api.get(&format!("{path}{}", query(&fields))).await?;
    fields.pop();
    // A page in the middle stays what it is.
    let is_live = visit.query.get("cursor").is_empty() && visit.query.get("until").is_empty();
    let body = html! {
        (filters(visit, sees_all))
        section id="calls" data-live[is_live] {
            table {
                thead {
                    tr { th { "When" } th { "Agent" } th { "Tool" } th { "Outcome" } th.num.hide { "Time" } th.num.hide { "Price" } }
                }
                tbody { @for record in calls.list("items") { (row(record, sees_all)) } }
            }
            @if calls.list("items").is_empty() { p.dim { "No call is recorded that matches." } }
        }
        (next_page("/ui/calls", &fields, &calls))
    };
    Ok(PageResult::Content(Content {
        title: "Calls".to_owned(),
        section: SECTION,
        actions: html! {},
        body,
    }))
}

fn filters(visit: &PageVisit<'_>, sees_all: bool) -> Markup {
    let decisions = [
        ("", "any"),
        ("allowed", "answered"),
        ("refused", "refused"),
        ("failed", "failed"),
        ("interrupted", "interrupted"),
        ("observed", "observed"),
    ];
    html! {
        form.filters method="get" action="/ui/calls" {
            @if sees_all { (input("agent", "Agent", visit.query.get("agent"))) }
            (input("server", "Server", visit.query.get("server")))
            (input("tool", "Tool", visit.query.get("tool")))
            (select("decision", "Outcome", &decisions, visit.query.get("decision")))
            (input("since", "Since (RFC 3339)", visit.query.get("since")))
            (input("until", "Until", visit.query.get("until")))
            button { "Show" }
        }
    }
}

fn row(record: &Value, has_page: bool) -> Markup {
    html! {
        tr {
            td {
                @if has_page {
                    a href=(format!("/ui/calls/{}", encoded(record.text("id")))) { (ago(record.text("ts"))) }
                } @else {
                    (ago(record.text("ts")))
                }
            }
            td { (plain(record.text("agent_name"))) small { (plain(record.text("team"))) } }
            td { code { (plain(record.text("exposed"))) } small { (plain(record.text("server"))) } }
            td { (decision_pill(record)) small { (plain(record.text("rule"))) } }
            td.num.hide { (milliseconds(&record["execution_time_ms"])) }
            td.num.hide { (usd(record.number("price_micros"))) }
        }
    }
}

/// Shows one call.
pub(super) async fn show(visit: &PageVisit<'_>, id: &str) -> Result<PageResult, ApiFailure> {
    // Other paths below are operations of their own, of which one has no end.
    if !id.starts_with(RECORD_PREFIX) {
        return Err(ApiFailure::not_found());
    }
    let record = visit.api.get(&format!("/audit/{}", encoded(id))).await?;
    let why = match record.text("decision") {
        "refused" => explain(visit, &record).await?,
        _ => None,
    };
    let body = html! {
        section {
            dl {
                dt { "Outcome" } dd { (decision_pill(&record)) " " (plain(record.text("rule"))) }
                dt { "When" } dd { (plain(record.text("ts"))) " (" (ago(record.text("ts"))) ")" }
                dt { "Agent" } dd {
                    a href=(format!("/ui/agents/{}", encoded(record.text("agent_name")))) { (plain(record.text("agent_name"))) }
                }
                dt { "Server" } dd { (server_link(record.text("server"))) }
                dt { "Tool" } dd { code { (plain(record.text("exposed"))) } }
                dt { "Client" } dd { (plain(record.text("client"))) }
                dt { "Time" } dd { (milliseconds(&record["execution_time_ms"])) }
                dt { "Price" } dd { (usd(record.number("price_micros"))) }
            }
        }
        @if let Some(why) = &why { (explanation(why)) }
        section {
            h2 { "Record" small { "as the log has it" } }
            pre { (pretty(&record)) }
        }
    };
    Ok(PageResult::Content(Content {
        title: id.to_owned(),
        section: SECTION,
        actions: html! {},
        body,
    }))
}

/// What the rules say of the call today.
async fn explain(visit: &PageVisit<'_>, record: &Value) -> Result<Option<Value>, ApiFailure> {
    let kind = match record.text("method") {
        "tools/call" => "tool",
        "prompts/get" => "prompt",
        "resources/read" => "resource",
        _ => return Ok(None),
    };
    let asked = json!({
        "agent": record.text("agent_name"), "kind": kind, "name": record.text("exposed"),
    });
    // The agent or the tool may be gone since.
    Ok(visit.api.post("/policy/explain", &asked).await.ok())
}

fn explanation(why: &Value) -> Markup {
    let places = why["places"].as_object();
    html! {
        section {
            h2 { "Why?" small { "by the rules as they are now" } }
            p { (plain(why.text("because"))) }
            dl {
                @for (key, place) in places.into_iter().flatten() {
                    dt { code { (key) } }
                    dd { (super::settings::origin(place)) }
                }
            }
        }
    }
}
