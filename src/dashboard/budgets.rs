//! Budgets: what is spent of what, and letting one begin anew.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{
    Content, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, encoded, query},
    format::{ago, next_page, plain},
};
use crate::config::Role;

/// Lists budgets.
pub(super) async fn list(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    if visit.action() == "reset" {
        let budget = visit.sent("budget");
        let path = format!("/budgets/{}/reset", encoded(budget));
        visit.api.post(&path, &json!({})).await?;
        let done = format!("The budget {budget} begins anew.");
        return Ok(PageResult::SeeOther(format!(
            "/ui/budgets{}",
            query(&[("done", &done)])
        )));
    }
    let fields = [
        ("name", visit.query.get("name")),
        ("cursor", visit.query.get("cursor")),
    ];
    let budgets = visit
        .api
        .get(&format!("/budgets{}", query(&fields)))
        .await?;
    let may_reset = visit.viewer.caller.role == Role::Admin;
    let body = html! {
        section id="budgets" data-live {
            table {
                thead { tr { th { "Budget" } th { "Used" } th.hide { "Ends" } th {} } }
                tbody {
                    @for budget in budgets.list("items") { (row(visit, budget, may_reset)) }
                }
            }
            @if budgets.list("items").is_empty() { p.dim { "There are none." } }
        }
        (next_page("/ui/budgets", &fields[..1], &budgets))
    };
    Ok(PageResult::Content(Content {
        title: "Budgets".to_owned(),
        section: "Budgets",
        actions: html! {},
        body,
    }))
}

fn row(visit: &PageVisit<'_>, budget: &Value, may_reset: bool) -> Markup {
    let ends = budget.text("ends");
    html! {
        tr {
            td {
                b { (plain(budget.text("name"))) }
                small { (budget.text("of")) ", by " (budget.text("window")) ", " (budget.text("from")) }
            }
            td { (meter(budget)) small { (amounts(budget)) } }
            td.hide { @if ends.is_empty() { "never" } @else { (ago(ends)) } }
            td.num {
                @if may_reset {
                    form.inline method="post" action="/ui/budgets" {
                        (visit.token())
                        input type="hidden" name="action" value="reset";
                        input type="hidden" name="budget" value=(budget.text("id"));
                        button data-confirm=(format!("Let the budget {} begin anew?", budget.text("id"))) { "Reset" }
                    }
                }
            }
        }
    }
}

/// A budget on one line.
pub(super) fn budget_line(budget: &Value) -> Markup {
    html! {
        p {
            (plain(budget.text("name"))) " "
            small { (budget.text("window")) ": " (amounts(budget)) }
            (meter(budget))
        }
    }
}

fn amounts(budget: &Value) -> String {
    format!("${} of ${}", budget.text("spent"), budget.text("limit"))
}

fn meter(budget: &Value) -> Markup {
    let limit = budget.number("limit_micros").max(1);
    let used = budget.number("spent_micros") + budget.number("held_micros");
    html! {
        meter min="0" max=(limit) high=(limit / 10 * 8) value=(used.min(limit)) { (amounts(budget)) }
    }
}
