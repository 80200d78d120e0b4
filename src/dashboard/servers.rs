//! Servers: how they do, what they offer, and what their entries say.

use http::Method;
use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::{
    Content, FormOutcome, PageResult, PageVisit,
    api_client::{ApiFailure, JsonFields, VersionedAnswer, encoded, query},
    format::{ago, count, input, next_page, plain, pretty, select, server_link, source},
    layout::state_pill,
};
use crate::config::Role;

const SECTION: &str = "Servers";

/// Lists servers.
pub(super) async fn list(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    let fields = [("cursor", visit.query.get("cursor"))];
    let servers = visit
        .api
        .get(&format!("/servers{}", query(&fields)))
        .await?;
    let body = html! {
        section id="servers" data-live {
            table {
                thead { tr { th { "Server" } th { "State" } th.num { "Tools" } th.hide { "Defined in" } } }
                tbody {
                    @for server in servers.list("items") {
                        tr {
                            td { b { (server_link(server.text("name"))) } small { (endpoint(&server["config"])) } }
                            td { (state_pill(server.text("state"))) small { (plain(server.text("reason"))) } }
                            td.num { (count(server.number("tools"))) }
                            td.hide { small { (source(&server["source"])) } }
                        }
                    }
                }
            }
            @if servers.list("items").is_empty() { p.dim { "There are none yet." } }
        }
        (next_page("/ui/servers", &[], &servers))
    };
    let actions = html! {
        @if visit.viewer.caller.role == Role::Admin { a.button.primary href="/ui/servers/new" { "Add server" } }
    };
    Ok(PageResult::Content(Content {
        title: "Servers".to_owned(),
        section: SECTION,
        actions,
        body,
    }))
}

/// What is at the other end, in a few words.
fn endpoint(config: &Value) -> String {
    let args = config.list("args").iter().filter_map(Value::as_str);
    let command: Vec<&str> = config["command"].as_str().into_iter().chain(args).collect();
    let shown = if command.is_empty() {
        config["url"]
            .as_str()
            .unwrap_or(config.text("transport"))
            .to_owned()
    } else {
        command.join(" ")
    };
    plain(&shown)
}

/// Shows one server, and does what its forms ask for.
pub(super) async fn show(visit: &PageVisit<'_>, name: &str) -> Result<PageResult, ApiFailure> {
    let path = format!("/servers/{}", encoded(name));
    let tried = match change(visit, name, &path).await? {
        FormOutcome::SeeOther(page) => return Ok(PageResult::SeeOther(page)),
        FormOutcome::Shown(tried) => Some(tried),
        FormOutcome::Nothing => None,
    };
    let server = visit.api.get_versioned(&path).await?;
    let tools = visit.api.get(&format!("{path}/tools?limit=500")).await?;
    let status = visit.api.get_allowed("/status").await?;
    let body = html! {
        @if let Some(tried) = &tried { (trial(tried)) }
        (facts(&server.body))
        @if let Some(status) = &status { (history(name, status)) }
        (tool_table(visit, &server.body, &tools))
        (entry(visit, &server))
    };
    Ok(PageResult::Content(Content {
        title: name.to_owned(),
        section: SECTION,
        actions: switches(visit, &server.body),
        body,
    }))
}

/// Does what was asked for of the server at `path` of the API.
async fn change(visit: &PageVisit<'_>, name: &str, path: &str) -> Result<FormOutcome, ApiFailure> {
    let done = match visit.action() {
        "" => return Ok(FormOutcome::Nothing),
        "test" => {
            let tried = visit.api.post(&format!("{path}/test"), &json!({})).await?;
            return Ok(FormOutcome::Shown(tried));
        }
        "delete" => {
            visit.api.send((Method::DELETE, path), None, "").await?;
            let done = format!("{name} was deleted.");
            return Ok(FormOutcome::SeeOther(format!(
                "/ui/servers{}",
                query(&[("done", &done)])
            )));
        }
        action @ ("enable" | "disable" | "restart") => {
            visit
                .api
                .post(&format!("{path}/{action}"), &json!({}))
                .await?;
            match action {
                "enable" => "Enabled.".to_owned(),
                "disable" => "Disabled.".to_owned(),
                _ => "Its connections are made anew.".to_owned(),
            }
        }
        "tool" => {
            let tool = visit.sent("tool");
            let body = json!({ "enabled": visit.sent("enabled") == "true" });
            let at = format!("{path}/tools/{}", encoded(tool));
            visit
                .api
                .send((Method::PATCH, &at), Some(&body), "")
                .await?;
            format!("{tool} was changed.")
        }
        "save" => {
            let config = parsed(visit.sent("config"))?;
            let version = visit.sent("version");
            visit
                .api
                .send((Method::PUT, path), Some(&config), version)
                .await?;
            "Saved.".to_owned()
        }
        other => {
            return Err(ApiFailure::invalid(format_args!(
                "there is no action `{other}`"
            )));
        }
    };
    let page = format!("/ui/servers/{}{}", encoded(name), query(&[("done", &done)]));
    Ok(FormOutcome::SeeOther(page))
}

fn button(visit: &PageVisit<'_>, action: &str, words: &str) -> Markup {
    html! {
        form.inline method="post" {
            (visit.token())
            button name="action" value=(action) { (words) }
        }
    }
}

fn switches(visit: &PageVisit<'_>, server: &Value) -> Markup {
    let is_enabled = server["config"]["enabled"] != json!(false);
    html! {
        @if matches!(visit.viewer.caller.role, Role::Admin | Role::WorkspaceAdmin) {
            (button(visit, "test", "Test"))
            (button(visit, "restart", "Restart"))
            @if is_enabled { (button(visit, "disable", "Disable")) } @else { (button(visit, "enable", "Enable")) }
        }
    }
}

fn facts(server: &Value) -> Markup {
    html! {
        section id="facts" data-live {
            dl {
                dt { "State" } dd { (state_pill(server.text("state"))) " " (plain(server.text("reason"))) }
                dt { "At" } dd { code { (endpoint(&server["config"])) } }
                dt { "Defined in" } dd { (source(&server["source"])) }
                dt { "Id" } dd { code { (server.text("id")) } }
            }
        }
    }
}

/// What became of it lately, and what it writes to stderr.
fn history(name: &str, status: &Value) -> Markup {
    let found = status
        .list("servers")
        .iter()
        .find(|server| server.text("name") == name);
    let server = found.unwrap_or(&Value::Null);
    let logs = format!("/ui/servers/{}/stderr", encoded(name));
    html! {
        div.two {
            section id="history" data-live {
                h2 { "History" small { (server.number("restarts")) " restarts, " (server.number("failed_starts")) " failed starts" } }
                table {
                    tbody {
                        @for step in server.list("history").iter().rev() {
                            tr {
                                td { (ago(step.text("at"))) }
                                td { (state_pill(step.text("state"))) small { (plain(step.text("reason"))) } }
                            }
                        }
                    }
                }
            }
            section {
                h2 { "Log" small { "stderr, as it comes" } }
                pre data-stream=(logs) data-event="stderr" tabindex="0" { "Waiting for lines; this needs script." }
            }
        }
    }
}

/// What came of a test.
fn trial(tried: &Value) -> Markup {
    let tools = tried.list("tools");
    let works = tried.text("status") == "connected";
    html! {
        div class=(if works { "notice done" } else { "notice wrong" }) role="status" {
            b { "Test: " (plain(tried.text("status"))) }
            " in " (tried.number("latency_ms")) " ms, " (tools.len()) " tools. "
            (plain(tried.text("error")))
            @if !tools.is_empty() {
                details { summary { "Tools" } @for tool in tools { code { (plain(tool.text("name"))) } " " } }
            }
        }
    }
}

fn tool_table(visit: &PageVisit<'_>, server: &Value, tools: &Value) -> Markup {
    let is_ours = server["source"].text("type") == "store";
    let may_change = is_ours && visit.viewer.caller.role == Role::Admin;
    html! {
        section id="tools" {
            h2 { "Tools" small { (tools.list("items").len()) } }
            table {
                thead { tr { th { "Tool" } th.hide { "Description" } th.num { "Price" } th { "Enabled" } } }
                tbody {
                    @for tool in tools.list("items") {
                        @let enabled = tool.is("enabled");
                        tr {
                            td { code { (plain(tool.text("name"))) } small { (plain(tool.text("exposed_name"))) } }
                            td.hide { (plain(tool.text("description"))) }
                            td.num { @if !tool.text("price").is_empty() { "$" (tool.text("price")) } }
                            td {
                                @if may_change {
                                    form.inline method="post" {
                                        (visit.token())
                                        input type="hidden" name="action" value="tool";
                                        input type="hidden" name="tool" value=(tool.text("name"));
                                        input type="hidden" name="enabled" value=(!enabled);
                                        button aria-pressed=(enabled) { @if enabled { "On" } @else { "Off" } }
                                    }
                                } @else if enabled { "On" } @else { "Off" }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What the entry of a server says; in a form where it may be changed here.
fn entry(visit: &PageVisit<'_>, server: &VersionedAnswer) -> Markup {
    let config = &server.body["config"];
    let is_ours = server.body["source"].text("type") == "store";
    html! {
        section {
            h2 { "Settings" small { (source(&server.body["source"])) } }
            @if is_ours && visit.viewer.caller.role == Role::Admin {
                form method="post" {
                    (visit.token())
                    input type="hidden" name="version" value=(server.version);
                    div.field {
                        label for="config" { "What a config file would have below `servers.NAME`, as JSON" }
                        textarea.mono id="config" name="config" rows="16" spellcheck="false" { (pretty(config)) }
                    }
                    div.actions {
                        button.primary name="action" value="save" { "Save" }
                        button.danger name="action" value="delete" data-confirm="Delete this server?" { "Delete" }
                    }
                }
            } @else {
                @if !is_ours { p.dim { "It stands in a file and is changed there." } }
                details { summary { "Show" } pre { (pretty(config)) } }
            }
        }
    }
}

fn parsed(json: &str) -> Result<Value, ApiFailure> {
    serde_json::from_str(json)
        .map_err(|error| ApiFailure::invalid(format_args!("no valid JSON: {error}")))
}

/// The form for a new server; tests it, or makes it.
pub(super) async fn add(visit: &PageVisit<'_>) -> Result<PageResult, ApiFailure> {
    let mut wrong = None;
    let mut tried = None;
    if let Some(form) = visit.form {
        let made = match new_servers(form) {
            Err(failure) => Err(failure),
            Ok(servers) if visit.action() == "test" => {
                test_all(visit, &servers).await.map(|it| tried = Some(it))
            }
            Ok(servers) => match make_all(visit, &servers).await {
                Ok(page) => return Ok(PageResult::SeeOther(page)),
                Err(failure) => Err(failure),
            },
        };
        wrong = made.err();
    }
    let body = html! {
        @if let Some(failure) = wrong { p.notice.wrong role="alert" { (failure.title) ": " (failure.detail) } }
        @for (name, tried) in tried.iter().flatten() {
            p { b { (plain(name)) } }
            (trial(tried))
        }
        form method="post" {
            (visit.token())
            div.two {
                section { (new_server_fields(visit)) }
                section {
                    h2 { "Or paste JSON" }
                    p.dim {
                        "What a client has, such as " code { "{\"mcpServers\": {...}}" }
                        ", or the entry of one server. It counts instead of the form."
                    }
                    label for="json" { "JSON" }
                    textarea.mono id="json" name="json" rows="16" spellcheck="false" { (visit.sent("json")) }
                }
            }
            div.actions {
                button.primary name="action" value="create" { "Add" }
                button name="action" value="test" { "Test first" }
            }
        }
    };
    Ok(PageResult::Content(Content {
        title: "Add server".to_owned(),
        section: SECTION,
        actions: html! {},
        body,
    }))
}

fn new_server_fields(visit: &PageVisit<'_>) -> Markup {
    let auth = [
        ("", "none"),
        ("bearer", "bearer token"),
        ("oauth2", "OAuth sign-in"),
    ];
    html! {
        h2 { "New server" }
        (input("name", "Name", visit.sent("name")))
        fieldset {
            legend { "At a URL" }
            (input("url", "URL", visit.sent("url")))
            (select("auth", "Authentication", &auth, visit.sent("auth")))
            (input("secret", "Bearer token, as ${secret:NAME}", visit.sent("secret")))
        }
        fieldset {
            legend { "Or a program" }
            (input("command", "Command with its arguments", visit.sent("command")))
            div.field {
                label for="env" { "Variables, one NAME=VALUE a line" }
                textarea.mono id="env" name="env" rows="3" spellcheck="false" { (visit.sent("env")) }
            }
        }
    }
}

/// The names and configs of the servers that a form or its JSON describes.
fn new_servers(
    form: &crate::browser_login::FormFields,
) -> Result<Vec<(String, Value)>, ApiFailure> {
    let (name, json) = (form.get("name").trim(), form.get("json").trim());
    if json.is_empty() {
        return Ok(vec![(name.to_owned(), config_of(form)?)]);
    }
    let document = parsed(json)?;
    let lists = ["mcpServers", "servers", "context_servers", "mcp"];
    let servers = lists.iter().find_map(|list| document[*list].as_object());
    if let Some(servers) = servers {
        let servers = servers
            .iter()
            .map(|(name, config)| (name.clone(), client_entry(config)));
        return Ok(servers.collect());
    }
    if document.get("command").is_some() || document.get("url").is_some() {
        return Ok(vec![(name.to_owned(), client_entry(&document))]);
    }
    let nested = document
        .as_object()
        .filter(|all| !all.is_empty() && all.values().all(Value::is_object));
    let nested = nested.ok_or_else(|| {
        ApiFailure::invalid("the JSON has no server: expected `mcpServers`, or `command` or `url`")
    })?;
    let servers = nested
        .iter()
        .map(|(name, config)| (name.clone(), client_entry(config)));
    Ok(servers.collect())
}

/// The entry of a client as one of ours: what names the transport says the other keys too.
fn client_entry(entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Some(keys) = entry.as_object_mut() {
        keys.remove("type");
        if let Some(url) = keys.remove("serverUrl").or_else(|| keys.remove("httpUrl")) {
            keys.insert("url".to_owned(), url);
        }
        if let Some(off) = keys.remove("disabled") {
            keys.insert("enabled".to_owned(), json!(off != json!(true)));
        }
    }
    entry
}

fn config_of(form: &crate::browser_login::FormFields) -> Result<Value, ApiFailure> {
    let mut config = Map::new();
    let (url, command) = (form.get("url").trim(), form.get("command").trim());
    if !url.is_empty() {
        config.insert("url".to_owned(), json!(url));
    }
    if !command.is_empty() {
        let words = shlex::split(command);
        let words = words.ok_or_else(|| ApiFailure::invalid("the command has an open quote"))?;
        if let [program, args @ ..] = &words[..] {
            config.insert("command".to_owned(), json!(program));
            config.insert("args".to_owned(), json!(args));
        }
    }
    let mut env = Map::new();
    for line in form
        .get("env")
        .lines()
        .filter(|line| !line.trim().is_empty())
    {
        let (name, value) = line.split_once('=').ok_or_else(|| {
            ApiFailure::invalid(format_args!("`{line}` is no variable: write NAME=VALUE"))
        })?;
        env.insert(name.trim().to_owned(), json!(value));
    }
    if !env.is_empty() {
        config.insert("env".to_owned(), Value::Object(env));
    }
    match form.get("auth") {
        "bearer" => {
            let auth = json!({ "type": "bearer", "token": form.get("secret") });
            config.insert("auth".to_owned(), auth);
        }
        "oauth2" => {
            let auth = json!({ "type": "oauth2", "grant": "authorization_code" });
            config.insert("auth".to_owned(), auth);
        }
        _ => {}
    }
    Ok(Value::Object(config))
}

async fn test_all(
    visit: &PageVisit<'_>,
    servers: &[(String, Value)],
) -> Result<Vec<(String, Value)>, ApiFailure> {
    let mut tried = Vec::new();
    for (name, config) in servers {
        let body = json!({ "name": name, "config": config });
        tried.push((name.clone(), visit.api.post("/servers/test", &body).await?));
    }
    Ok(tried)
}

/// Makes the servers; the page to go on at.
async fn make_all(
    visit: &PageVisit<'_>,
    servers: &[(String, Value)],
) -> Result<String, ApiFailure> {
    for (name, config) in servers {
        let body = json!({ "name": name, "config": config });
        let made = visit.api.post("/servers", &body).await;
        made.map_err(|failure| ApiFailure {
            detail: format!("{name}: {}", failure.detail),
            ..failure
        })?;
    }
    if let [(name, _)] = servers {
        return Ok(format!("/ui/servers/{}?done=Added.", encoded(name)));
    }
    let done = format!("{} servers were added.", servers.len());
    Ok(format!("/ui/servers{}", query(&[("done", &done)])))
}
