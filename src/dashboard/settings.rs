//! Settings: what counts, and where each value comes from.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{
    Content, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields},
    format::{ago, plain, select},
};

/// Shows the config, and validates one that was sent.
pub(super) async fn show(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    let running = visit.api.get("/config").await?;
    let status = visit.api.get("/status").await?;
    let validated = match visit.action() {
        "validate" => {
            let asked = json!({ "document": visit.sent("text"), "format": visit.sent("format") });
            Some(visit.api.post("/config/validate", &asked).await?)
        }
        _ => None,
    };
    let mut values = Vec::new();
    flatten("", &running["config"], &mut values);
    let body = html! {
        (files(&status["config"]))
        section {
            h2 { "What counts" small { (values.len()) " values" } }
            table {
                thead { tr { th { "Key" } th { "Value" } th.hide { "From" } } }
                tbody {
                    @for (key, value) in &values {
                        @let place = &running["origins"][key.as_str()];
                        tr {
                            td { code { (plain(key)) } }
                            td { code { (plain(value)) } }
                            td.hide { small { (origin(place)) } }
                        }
                    }
                }
            }
        }
        (validation(visit, validated.as_ref()))
    };
    Ok(PageResult::Content(Content {
        title: "Settings".to_owned(),
        section: "Settings",
        actions: html! {},
        body,
    }))
}

fn files(config: &Value) -> Markup {
    html! {
        section id="files" data-live {
            dl {
                dt { "Files" }
                dd { @for file in config.list("files") { code { (plain(file.as_str().unwrap_or_default())) } " " } }
                dt { "Read" } dd { (ago(config.text("loaded_at"))) }
                @if !config.list("needs_restart").is_empty() {
                    dt { "Needs a restart" }
                    dd { @for key in config.list("needs_restart") { code { (plain(key.as_str().unwrap_or_default())) } " " } }
                }
            }
            @if config["error"].is_object() {
                h3 { "The files have errors; what ran before goes on" }
                pre { (plain(config["error"].text("message"))) }
            }
        }
    }
}

fn validation(visit: &PageVisit<'_>, validated: Option<&Value>) -> Markup {
    let formats = [("toml", "TOML"), ("yaml", "YAML"), ("json", "JSON")];
    html! {
        section id="validate" {
            h2 { "Validate a config" }
            @if let Some(found) = validated {
                @if found.is("valid") { p.notice.done role="status" { "It could be used." } }
                @for finding in found.list("errors").iter().chain(found.list("warnings")) {
                    p.notice.wrong role="alert" { (plain(finding.text("message"))) }
                }
            }
            form method="post" action="/ui/settings" {
                (visit.token())
                (select("format", "Format", &formats, visit.sent("format")))
                div.field {
                    label for="text" { "Document" }
                    textarea.mono id="text" name="text" rows="8" spellcheck="false" { (visit.sent("text")) }
                }
                button name="action" value="validate" { "Validate" }
            }
        }
    }
}

/// The values below `key`, one by one.
fn flatten(key: &str, value: &Value, values: &mut Vec<(String, String)>) {
    match value.as_object() {
        Some(table) if !table.is_empty() => {
            for (name, value) in table {
                let below = if key.is_empty() {
                    name.clone()
                } else {
                    format!("{key}.{name}")
                };
                flatten(&below, value, values);
            }
        }
        _ => values.push((key.to_owned(), value.to_string())),
    }
}

/// Where a value comes from.
pub(super) fn origin(place: &Value) -> String {
    match place.text("type") {
        "file" => format!("{}:{}", plain(place.text("file")), place.number("line")),
        "environment" => format!("variable {}", place.text("variable")),
        "store" => "made by the API".to_owned(),
        _ => "default".to_owned(),
    }
}
