//! Agents: who may call, their keys, and what is left to them.

use http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::{
    Content, FormOutcome, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, encoded, query},
    budgets::budget_line,
    format::{ago, input, next_page, pill, plain, pretty, select, source},
};
use crate::config::Role;

const SECTION: &str = "Agents";
const ROLES: [(&str, &str); 4] = [
    ("agent", "agent: calls tools"),
    (
        "workspace_admin",
        "workspace admin: manages the servers of its team",
    ),
    ("auditor", "auditor: sees everything, changes nothing"),
    ("admin", "admin: may change everything"),
];

/// Whether the person may change agents.
fn may_change(visit: &PageVisit<'_>) -> bool {
    matches!(visit.viewer.caller.role, Role::Admin | Role::WorkspaceAdmin)
}

/// Lists agents; makes one.
pub(super) async fn list(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    if visit.action() == "create" {
        let team = visit.sent("team").trim();
        let settings = json!({
            "role": visit.sent("role"),
            "team": if team.is_empty() { Value::Null } else { json!(team) },
        });
        let name = visit.sent("name").trim();
        visit
            .api
            .post("/agents", &json!({ "name": name, "settings": settings }))
            .await?;
        return Ok(PageResult::SeeOther(format!(
            "/ui/agents/{}?done=Added.",
            encoded(name)
        )));
    }
    let fields = [("cursor", visit.query.get("cursor"))];
    let agents = visit.api.get(&format!("/agents{}", query(&fields))).await?;
    let body = html! {
        section id="agents" {
            table {
                thead { tr { th { "Agent" } th { "Role" } th { "Team" } th.hide { "Defined in" } } }
                tbody {
                    @for agent in agents.list("items") {
                        @let name = agent.text("name");
                        tr {
                            td {
                                b { a href=(format!("/ui/agents/{}", encoded(name))) { (plain(name)) } }
                                @if !agent.is("enabled") { " " (pill("", "Disabled")) }
                            }
                            td { (agent.text("role")) }
                            td { (plain(agent.text("team"))) }
                            td.hide { small { (source(&agent["source"])) } }
                        }
                    }
                }
            }
        }
        (next_page("/ui/agents", &[], &agents))
        @if may_change(visit) { (new_agent(visit)) }
    };
    Ok(PageResult::Content(Content {
        title: "Agents".to_owned(),
        section: SECTION,
        actions: html! {},
        body,
    }))
}

fn new_agent(visit: &PageVisit<'_>) -> Markup {
    html! {
        section {
            h2 { "New agent" }
            form.filters method="post" action="/ui/agents" {
                (visit.token())
                (input("name", "Name", ""))
                (input("team", "Team", ""))
                (select("role", "Role", &ROLES, "agent"))
                button.primary name="action" value="create" { "Add" }
            }
        }
    }
}

/// Does what was asked for of the agent at `path` of the API.
async fn change(visit: &PageVisit<'_>, name: &str, path: &str) -> Result<FormOutcome, ApiFailure> {
    let done = match visit.action() {
        "" => return Ok(FormOutcome::Nothing),
        "key" => {
            let expires = visit.sent("expires").trim();
            let asked = if expires.is_empty() {
                json!({})
            } else {
                json!({ "expires": expires })
            };
            let made = visit.api.post(&format!("{path}/keys"), &asked).await?;
            return Ok(FormOutcome::Shown(made));
        }
        "delete" => {
            visit.api.send((Method::DELETE, path), None, "").await?;
            let done = format!("{name} was deleted.");
            return Ok(FormOutcome::SeeOther(format!(
                "/ui/agents{}",
                query(&[("done", &done)])
            )));
        }
        "revoke" => {
            let at = format!("{path}/keys/{}", encoded(visit.sent("key")));
            visit.api.send((Method::DELETE, &at), None, "").await?;
            "The key was revoked."
        }
        "policy" => {
            let lines = visit.sent("tools").lines().map(str::trim);
            let tools: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
            let mode = visit.sent("mode");
            let policy = match mode {
                "" => Value::Null,
                "all" | "none" => json!({ "mode": mode, "tools": null }),
                _ => json!({ "mode": mode, "tools": tools }),
            };
            let change = json!({ "terms": { "policy": policy } });
            visit
                .api
                .send((Method::PATCH, path), Some(&change), "")
                .await?;
            "Saved."
        }
        action @ ("enable" | "disable") => {
            let change = json!({ "enabled": action == "enable" });
            visit
                .api
                .send((Method::PATCH, path), Some(&change), "")
                .await?;
            "Saved."
        }
        other => {
            return Err(ApiFailure::invalid(format_args!(
                "there is no action `{other}`"
            )));
        }
    };
    let page = format!("/ui/agents/{}{}", encoded(name), query(&[("done", done)]));
    Ok(FormOutcome::SeeOther(page))
}

/// Shows one agent, and does what its forms ask for.
pub(super) async fn show(visit: &PageVisit<'_>, name: &str) -> Result<PageResult, ApiFailure> {
    let path = format!("/agents/{}", encoded(name));
    let made = match change(visit, name, &path).await? {
        FormOutcome::SeeOther(page) => return Ok(PageResult::SeeOther(page)),
        FormOutcome::Shown(made) => Some(made),
        FormOutcome::Nothing => None,
    };
    let agent = visit.api.get(&path).await?;
    let keys = visit.api.get(&format!("{path}/keys?limit=500")).await?;
    let budgets = visit
        .api
        .get_allowed(&format!(
            "/budgets{}",
            query(&[("of", "agent"), ("name", agent.text("name"))])
        ))
        .await?;
    let body = html! {
        @if let Some(made) = &made { (new_key(made)) }
        div.two {
            section {
                h2 { "Keys" small { (keys.list("items").len()) } }
                (key_table(visit, &keys))
                @if may_change(visit) { (key_form(visit)) }
            }
            div {
                (facts(&agent))
                (policy(visit, &agent))
                @if let Some(budgets) = &budgets {
                    section {
                        h2 { "Budgets" }
                        @for budget in budgets.list("items") { (budget_line(budget)) }
                        @if budgets.list("items").is_empty() { p.dim { "None of its own." } }
                    }
                }
            }
        }
    };
    Ok(PageResult::Content(Content {
        title: name.to_owned(),
        section: SECTION,
        actions: switches(visit, &agent),
        body,
    }))
}

fn switches(visit: &PageVisit<'_>, agent: &Value) -> Markup {
    let is_ours = agent["source"].text("type") == "store";
    let calls = format!("/ui/calls{}", query(&[("agent", agent.text("name"))]));
    let tools = format!("/ui/tools{}", query(&[("agent", agent.text("name"))]));
    html! {
        a.button href=(calls) { "Calls" }
        a.button href=(tools) { "Tools" }
        @if is_ours && may_change(visit) {
            form.inline method="post" {
                (visit.token())
                @if agent.is("enabled") { button name="action" value="disable" { "Disable" } }
                @else { button name="action" value="enable" { "Enable" } }
                " "
                button.danger name="action" value="delete" data-confirm="Delete this agent and its keys?" { "Delete" }
            }
        }
    }
}

fn facts(agent: &Value) -> Markup {
    html! {
        section {
            dl {
                dt { "Role" } dd { (agent.text("role")) }
                dt { "Team" } dd { (plain(agent.text("team"))) }
                dt { "Enabled" } dd { @if agent.is("enabled") { "yes" } @else { "no" } }
                dt { "Defined in" } dd { (source(&agent["source"])) }
                dt { "Id" } dd { code { (agent.text("id")) } }
            }
            h3 { "Policy, rates and budgets of its own" }
            pre { (pretty(&agent["terms"])) }
        }
    }
}

const MODES: [(&str, &str); 5] = [
    ("", "the default policy"),
    ("all", "all tools"),
    ("allowlist", "only these tools"),
    ("denylist", "all but these tools"),
    ("none", "none"),
];

/// What it may call, in a form where it may be changed here.
fn policy(visit: &PageVisit<'_>, agent: &Value) -> Markup {
    let policy = &agent["terms"]["policy"];
    let tools = policy.list("tools").iter().filter_map(Value::as_str);
    let tools = tools.collect::<Vec<_>>().join("\n");
    let may_change =
        agent["source"].text("type") == "store" && visit.viewer.caller.role == Role::Admin;
    html! {
        @if may_change {
            section {
                h2 { "Policy" }
                form method="post" {
                    (visit.token())
                    (select("mode", "It may call", &MODES, policy.text("mode")))
                    div.field {
                        label for="tools" { "Tools, one a line " small { "names or globs, such as mcp_github_* or github/create_*" } }
                        textarea.mono id="tools" name="tools" rows="5" spellcheck="false" { (plain(&tools)) }
                    }
                    button.primary name="action" value="policy" { "Save" }
                }
            }
        }
    }
}

/// A key that was just made.
fn new_key(made: &Value) -> Markup {
    html! {
        section role="status" {
            h2 { "The new key" small { "shown this once" } }
            code.secret id="new-key" { (made.text("key")) }
            p.actions { button data-copy="new-key" hidden { "Copy" } a href="/ui/connect" { "Connect a client with it" } }
        }
    }
}

fn key_table(visit: &PageVisit<'_>, keys: &Value) -> Markup {
    html! {
        table {
            thead { tr { th { "Key" } th { "State" } th.hide { "Last used" } th.hide { "Expires" } th {} } }
            tbody {
                @for key in keys.list("items") {
                    @let is_live = key.text("state") == "live";
                    tr {
                        td { code { (plain(key.text("prefix"))) "…" } small { (ago(key.text("created"))) } }
                        td { (pill(if is_live { "ok" } else { "" }, key.text("state"))) }
                        td.hide { @if key.text("last_used").is_empty() { "never" } @else { (ago(key.text("last_used"))) } }
                        td.hide { @if key.text("expires").is_empty() { "never" } @else { (ago(key.text("expires"))) } }
                        td.num {
                            @if is_live && may_change(visit) {
                                form.inline method="post" {
                                    (visit.token())
                                    input type="hidden" name="key" value=(key.text("id"));
                                    button.danger name="action" value="revoke" data-confirm="Revoke this key?" { "Revoke" }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if keys.list("items").is_empty() { p.dim { "None in the store. Keys in a config file are not listed." } }
    }
}

fn key_form(visit: &PageVisit<'_>) -> Markup {
    html! {
        form.filters method="post" {
            (visit.token())
            (input("expires", "Good for, such as 90d; empty for the default", ""))
            button.primary name="action" value="key" { "New key" }
        }
    }
}
