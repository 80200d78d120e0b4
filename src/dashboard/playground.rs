//! The playground: calls of a tool as any agent, through all that governs its calls.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::{
    Content, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, encoded, query},
    format::{input, plain, pretty},
};

/// Shows the page; runs the call that was sent.
pub(super) async fn show(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    let pick = |name: &'static str| match visit.form {
        Some(_) => visit.sent(name).trim(),
        None => visit.query.get(name).trim(),
    };
    let (name, agent) = (pick("tool"), pick("agent"));
    let tool = match name {
        "" => Value::Null,
        name => find_tool(visit, name, agent).await?,
    };
    let schema = &tool["item"]["inputSchema"];
    let (mut answer, mut wrong) = (None, None);
    let mut arguments = json!({});
    if visit.action() == "call" {
        match read_arguments(visit, schema) {
            Ok(read) => {
                arguments = read;
                let body = json!({ "agent": agent, "arguments": arguments });
                match visit
                    .api
                    .post(&format!("/tools/{}/test", encoded(name)), &body)
                    .await
                {
                    Ok(found) => answer = Some(found),
                    Err(failure) => wrong = Some(failure),
                }
            }
            Err(failure) => wrong = Some(failure),
        }
    }
    let body = html! {
        @if let Some(failure) = &wrong { p.notice.wrong role="alert" { (failure.title) ": " (failure.detail) } }
        div.two {
            section {
                form.filters method="get" action="/ui/playground" {
                    (input("tool", "Tool", name))
                    (input("agent", "As agent", agent))
                    button { "Choose" }
                }
                @if tool.is_null() {
                    p.dim {
                        "Choose a tool by its name, such as from " a href="/ui/tools" { "the list" }
                        ", and the agent whose call it is."
                    }
                } @else {
                    (call_form(visit, &tool, agent, &arguments))
                }
            }
            div {
                @if let Some(answer) = &answer { (result(answer)) }
                @if !tool.is_null() { (equivalents(visit, name, &arguments)) }
            }
        }
    };
    Ok(PageResult::Content(Content {
        title: "Playground".to_owned(),
        section: "Playground",
        actions: html! {},
        body,
    }))
}

/// The tool as `agent` sees it, who may have servers of its own; one that it may not call is as all others see it.
async fn find_tool(visit: &PageVisit<'_>, name: &str, agent: &str) -> Result<Value, ApiFailure> {
    for viewer in [agent, ""] {
        let asked = query(&[("q", name), ("agent", viewer), ("limit", "500")]);
        let found = visit.api.get(&format!("/tools{asked}")).await?;
        let mut tools = found.list("items").iter();
        if let Some(tool) = tools.find(|tool| tool.text("name") == name) {
            return Ok(tool.clone());
        }
    }
    Err(ApiFailure::invalid(format_args!(
        "there is no tool `{name}`"
    )))
}

/// The arguments that were sent: the JSON where there is any, which the script keeps in step with the fields.
fn read_arguments(visit: &PageVisit<'_>, schema: &Value) -> Result<Value, ApiFailure> {
    let json = visit.sent("arguments").trim();
    if !json.is_empty() && json != "{}" {
        return serde_json::from_str(json).map_err(|error| {
            ApiFailure::invalid(format_args!("the arguments are no valid JSON: {error}"))
        });
    }
    let mut arguments = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let text = visit.sent(&format!("argument.{name}"));
        if text.is_empty() {
            continue;
        }
        let value = match kind_of(property) {
            "string" => json!(text),
            _ => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        };
        arguments.insert(name.clone(), value);
    }
    Ok(Value::Object(arguments))
}

/// Whether a field is written as it is, or as JSON.
fn kind_of(property: &Value) -> &'static str {
    let is_text = property.text("type") == "string";
    let has_texts = property.list("enum").iter().all(Value::is_string);
    if is_text || !property.list("enum").is_empty() && has_texts {
        "string"
    } else {
        "json"
    }
}

fn call_form(visit: &PageVisit<'_>, tool: &Value, agent: &str, arguments: &Value) -> Markup {
    let item = &tool["item"];
    let schema = &item["inputSchema"];
    let required = schema.list("required");
    html! {
        h2 { code { (plain(tool.text("name"))) } small { (plain(tool.text("server"))) } }
        p { (plain(item.text("description"))) }
        form method="post" action="/ui/playground" data-arguments {
            (visit.token())
            input type="hidden" name="tool" value=(tool.text("name"));
            input type="hidden" name="agent" value=(agent);
            @for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                (argument_field(name, property, required.contains(&json!(name)), &arguments[name]))
            }
            div.field {
                label for="arguments" { "Arguments as JSON " small { "counts where it is filled in" } }
                textarea.mono id="arguments" name="arguments" rows="8" spellcheck="false" { (pretty(arguments)) }
            }
            button.primary name="action" value="call" disabled[agent.is_empty()] { "Call" }
            @if agent.is_empty() { " " small { "Choose an agent first." } }
        }
    }
}

fn argument_field(name: &str, property: &Value, required: bool, value: &Value) -> Markup {
    let id = format!("argument.{name}");
    let kind = kind_of(property);
    let shown = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    };
    let choices = if property.text("type") == "boolean" {
        vec!["true".to_owned(), "false".to_owned()]
    } else {
        let choices = property.list("enum").iter();
        let choices = choices.map(|it| it.as_str().map_or_else(|| it.to_string(), str::to_owned));
        choices.collect()
    };
    let hint = match property.text("type") {
        "array" | "object" => " (JSON)",
        "integer" | "number" => " (number)",
        _ => "",
    };
    html! {
        div.field {
            label for=(id) {
                (plain(name)) @if required { " *" } (hint) " "
                small { (plain(property.text("description"))) }
            }
            @if choices.is_empty() {
                input id=(id) name=(id) value=(shown) data-argument=(name) data-kind=(kind) autocomplete="off";
            } @else {
                select id=(id) name=(id) data-argument=(name) data-kind=(kind) {
                    option value="" {}
                    @for choice in &choices {
                        option value=(choice) selected[*choice == shown] { (plain(choice)) }
                    }
                }
            }
        }
    }
}

/// How the call ended.
fn result(answer: &Value) -> Markup {
    let error = &answer["error"];
    let result = &answer["result"];
    let latency = answer.number("latency_ms");
    let call = error["data"].text("invocation_id");
    html! {
        section aria-live="polite" {
            @if error.is_null() {
                h2 { "Result" small { (latency) " ms" } }
                @if result.is("isError") { p.notice.wrong { "The tool says that it failed." } }
                @for block in result.list("content") { (content_block(block)) }
                @if !result["structuredContent"].is_null() {
                    h3 { "Structured content" }
                    pre { (pretty(&result["structuredContent"])) }
                }
            } @else {
                h2 { "Refused or failed" small { (latency) " ms" } }
                p.notice.wrong role="alert" { (plain(error.text("message"))) }
                @if !call.is_empty() { p { a href=(format!("/ui/calls/{}", encoded(call))) { "Why?" } } }
            }
            details {
                summary { "Answer as JSON" }
                pre { (pretty(if error.is_null() { result } else { error })) }
            }
        }
    }
}

/// A part of a result, as what it is.
fn content_block(block: &Value) -> Markup {
    let data = block.text("data");
    // What is no base64 could leave the attribute's URL; it is shown as it came.
    let is_data = !data.is_empty() && BASE64_STANDARD.decode(data).is_ok();
    let kind = block.text("mimeType");
    let is_kind = |family: &str| {
        kind.strip_prefix(family).is_some_and(|rest| {
            rest.chars()
                .all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
        })
    };
    html! {
        @match block.text("type") {
            "text" => pre { (plain(block.text("text"))) },
            "image" if is_data && is_kind("image/") => {
                img.result alt="The image of the result" src=(format!("data:{kind};base64,{data}"));
            }
            "audio" if is_data && is_kind("audio/") => {
                audio controls src=(format!("data:{kind};base64,{data}")) {}
            }
            _ => pre { (pretty(block)) },
        }
    }
}

/// The same call elsewhere.
fn equivalents(visit: &PageVisit<'_>, name: &str, arguments: &Value) -> Markup {
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": name, "arguments": arguments },
    });
    let quoted = message.to_string().replace('\'', "'\\''");
    let curl = format!(
        "curl {}/mcp -H 'Authorization: Bearer KEY' \\\n  -H 'Content-Type: application/json' \
         -H 'Accept: application/json, text/event-stream' \\\n  -d '{quoted}'",
        visit.viewer.base
    );
    html! {
        section {
            h2 { "The same call" }
            h3 { "JSON-RPC" }
            pre id="json-rpc" { (pretty(&message)) }
            button data-copy="json-rpc" hidden { "Copy" }
            h3 { "curl" }
            pre id="curl" { (plain(&curl)) }
            button data-copy="curl" hidden { "Copy" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_are_shown_as_pictures() {
        for (block, expect) in [
            (
                json!({"type": "image", "mimeType": "image/png", "data": "AAAA"}),
                "data:image/png;base64,AAAA",
            ),
            (
                json!({"type": "image", "mimeType": "image/png\" onerror=x", "data": "AAAA"}),
                "<pre>",
            ),
            (
                json!({"type": "image", "mimeType": "text/html", "data": "AAAA"}),
                "<pre>",
            ),
            (
                json!({"type": "image", "mimeType": "image/png", "data": "\"><script>"}),
                "<pre>",
            ),
            (
                json!({"type": "audio", "mimeType": "audio/wav", "data": "AAAA"}),
                "<audio",
            ),
            (
                json!({"type": "text", "text": "<script>"}),
                "<pre>&lt;script&gt;</pre>",
            ),
        ] {
            let shown = content_block(&block).into_string();
            assert!(
                shown.contains(expect) && !shown.contains("<script"),
                "{block}: {shown}"
            );
        }
    }
}
