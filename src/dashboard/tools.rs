//! The catalog, as all see it or as one agent does.

use maud::html;

use super::{
    Content, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, query},
    format::{input, next_page, pill, plain, pretty, server_link},
};
use crate::config::Role;

/// Lists tools.
pub(super) async fn list(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    let (q, agent) = (visit.query.get("q"), visit.query.get("agent"));
    let role = visit.viewer.caller.role;
    let sees_all = matches!(role, Role::Admin | Role::Auditor);
    let path = if sees_all { "/tools" } else { "/me/tools" };
    let fields = [
        ("q", q),
        ("agent", if sees_all { agent } else { "" }),
        ("cursor", visit.query.get("cursor")),
    ];
    let tools = visit.api.get(&format!("{path}{}", query(&fields))).await?;
    let body = html! {
        form.filters method="get" action="/ui/tools" {
            (input("q", "Search", q))
            @if sees_all { (input("agent", "As agent", agent)) }
            button { "Show" }
        }
        section {
            table {
                thead { tr { th { "Tool" } th.hide { "Server" } th { "Description" } } }
                tbody {
                    @for tool in tools.list("items") {
                        @let item = &tool["item"];
                        tr {
                            td {
                                code { (plain(tool.text("name"))) }
                                small { (hints(&item["annotations"])) }
                                @if role == Role::Admin {
                                    small { a href=(format!("/ui/playground{}", query(&[("tool", tool.text("name")), ("agent", agent)]))) { "Try it" } }
                                }
                            }
                            td.hide { (server_link(tool.text("server"))) }
                            td {
                                (plain(item.text("description")))
                                details { summary { "Definition" } pre { (pretty(item)) } }
                            }
                        }
                    }
                }
            }
            @if tools.list("items").is_empty() { p.dim { "No tool." } }
        }
        (next_page("/ui/tools", &fields[..2], &tools))
    };
    Ok(PageResult::Content(Content {
        title: "Tools".to_owned(),
        section: "Tools",
        actions: html! {},
        body,
    }))
}

/// What a tool says that it does to the world.
fn hints(annotations: &serde_json::Value) -> maud::Markup {
    html! {
        @if annotations.is("readOnlyHint") { (pill("ok", "reads")) }
        @else if annotations.is("destructiveHint") { (pill("bad", "destroys")) }
        @if annotations.is("openWorldHint") { " " (pill("", "open world")) }
    }
}
