//! Profiles: parts of the catalog with a route of their own.

use http::Method;
use maud::html;
use serde_json::{Value, json};

use super::{
    Content, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, encoded, query},
    format::{input, next_page, plain, pretty, source},
};
use crate::config::Role;

const SECTION: &str = "Profiles";

/// Lists profiles; makes one.
pub(super) async fn list(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    if visit.action() == "create" {
        let name = visit.sent("name").trim();
        let config = parsed(visit.sent("config"))?;
        visit
            .api
            .post("/profiles", &json!({ "name": name, "config": config }))
            .await?;
        return Ok(PageResult::SeeOther(format!(
            "/ui/profiles/{}?done=Added.",
            encoded(name)
        )));
    }
    let fields = [("cursor", visit.query.get("cursor"))];
    let profiles = visit
        .api
        .get(&format!("/profiles{}", query(&fields)))
        .await?;
    let body = html! {
        section {
            table {
                thead { tr { th { "Profile" } th { "URL" } th.hide { "Defined in" } } }
                tbody {
                    @for profile in profiles.list("items") {
                        @let name = profile.text("name");
                        tr {
                            td { b { a href=(format!("/ui/profiles/{}", encoded(name))) { (plain(name)) } } }
                            td { code { (visit.viewer.base) "/mcp/profiles/" (plain(name)) } }
                            td.hide { small { (source(&profile["source"])) } }
                        }
                    }
                }
            }
            @if profiles.list("items").is_empty() { p.dim { "There are none." } }
        }
        (next_page("/ui/profiles", &[], &profiles))
        @if visit.viewer.caller.role == Role::Admin {
            section {
                h2 { "New profile" }
                form method="post" action="/ui/profiles" {
                    (visit.token())
                    (input("name", "Name", ""))
                    div.field {
                        label for="config" { "What a config file would have below `profiles.NAME`, as JSON" }
                        textarea.mono id="config" name="config" rows="6" spellcheck="false" { "{\n  \"tools\": [\"mcp_github_*\"]\n}" }
                    }
                    button.primary name="action" value="create" { "Add" }
                }
            }
        }
    };
    Ok(PageResult::Content(Content {
        title: "Profiles".to_owned(),
        section: SECTION,
        actions: html! {},
        body,
    }))
}

/// Shows one profile; changes or deletes it.
pub(super) async fn show(visit: &PageVisit<'_>, name: &str) -> Result<PageResult, ApiFailure> {
    let path = format!("/profiles/{}", encoded(name));
    match visit.action() {
        "" => {}
        "save" => {
            let config = parsed(visit.sent("config"))?;
            let version = visit.sent("version");
            visit
                .api
                .send((Method::PUT, &path), Some(&config), version)
                .await?;
            return Ok(PageResult::SeeOther(format!(
                "/ui/profiles/{}?done=Saved.",
                encoded(name)
            )));
        }
        "delete" => {
            visit.api.send((Method::DELETE, &path), None, "").await?;
            let done = format!("{name} was deleted.");
            return Ok(PageResult::SeeOther(format!(
                "/ui/profiles{}",
                query(&[("done", &done)])
            )));
        }
        other => {
            return Err(ApiFailure::invalid(format_args!(
                "there is no action `{other}`"
            )));
        }
    }
    let profile = visit.api.get_versioned(&path).await?;
    let config = &profile.body["config"];
    let is_ours = profile.body["source"].text("type") == "store";
    let body = html! {
        section {
            h2 { "Settings" small { (source(&profile.body["source"])) } }
            @if is_ours && visit.viewer.caller.role == Role::Admin {
                form method="post" {
                    (visit.token())
                    input type="hidden" name="version" value=(profile.version);
                    div.field {
                        label for="config" { "What a config file would have below `profiles.NAME`, as JSON" }
                        textarea.mono id="config" name="config" rows="12" spellcheck="false" { (pretty(config)) }
                    }
                    div.actions {
                        button.primary name="action" value="save" { "Save" }
                        button.danger name="action" value="delete" data-confirm="Delete this profile?" { "Delete" }
                    }
                }
            } @else {
                pre { (pretty(config)) }
            }
        }
    };
    Ok(PageResult::Content(Content {
        title: name.to_owned(),
        section: SECTION,
        actions: html! {},
        body,
    }))
}

fn parsed(json: &str) -> Result<Value, ApiFailure> {
    serde_json::from_str(json)
        .map_err(|error| ApiFailure::invalid(format_args!("no valid JSON: {error}")))
}
