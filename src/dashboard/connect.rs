//! What to write into a client so that it uses this gateway.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Content, PageResult, PageVisit, format::input};
use crate::names::ProfileName;

/// A client, where its config is, and what that says for a gateway at a URL.
struct ClientSnippet {
    client: &'static str,
    file: &'static str,
    text: fn(url: &str, key: &str) -> String,
}

/// Claude Desktop speaks stdio only; `tollbridge stdio` serves it on the same machine.
const SNIPPETS: [ClientSnippet; 7] = [
    ClientSnippet {
        client: "Claude Code",
        file: "a terminal",
        text: |url, key| {
            format!(
                "claude mcp add --transport http tollbridge {url} \\\n  --header \"Authorization: Bearer {key}\""
            )
        },
    },
    ClientSnippet {
        client: "Claude Desktop, on the machine of the gateway",
        file: "claude_desktop_config.json",
        text: |_, _| {
            pretty(
                &json!({ "mcpServers": { "tollbridge": { "command": "tollbridge", "args": ["stdio"] } } }),
            )
        },
    },
    ClientSnippet {
        client: "Cursor",
        file: "~/.cursor/mcp.json",
        text: |url, key| pretty(&json!({ "mcpServers": { "tollbridge": remote(url, key) } })),
    },
    ClientSnippet {
        client: "VS Code",
        file: ".vscode/mcp.json",
        text: |url, key| {
            let mut entry = remote(url, key);
            entry["type"] = json!("http");
            pretty(&json!({ "servers": { "tollbridge": entry } }))
        },
    },
    ClientSnippet {
        client: "Gemini CLI",
        file: "~/.gemini/settings.json",
        text: |url, key| {
            let headers = remote(url, key)["headers"].clone();
            pretty(
                &json!({ "mcpServers": { "tollbridge": { "httpUrl": url, "headers": headers } } }),
            )
        },
    },
    ClientSnippet {
        client: "Codex",
        file: "~/.codex/config.toml, with the key in the variable TOLLBRIDGE_KEY",
        text: |url, _| {
            format!(
                "[mcp_servers.tollbridge]\nurl = \"{url}\"\nbearer_token_env_var = \"TOLLBRIDGE_KEY\""
            )
        },
    },
    ClientSnippet {
        client: "Any other",
        file: "streamable HTTP",
        text: |url, key| format!("URL: {url}\nAuthorization: Bearer {key}"),
    },
];

fn remote(url: &str, key: &str) -> Value {
    json!({ "url": url, "headers": { "Authorization": format!("Bearer {key}") } })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}")
}

/// Shows what to write for each client.
pub(super) fn show(visit: &PageVisit<'_>) -> PageResult {
    // It stands in commands to copy.
    let profile = visit.query.get("profile").trim();
    let is_name = ProfileName::parse(profile).is_ok();
    let profile = if is_name { profile } else { "" };
    let mut url = format!("{}/mcp", visit.viewer.base);
    if !profile.is_empty() {
        url = format!("{url}/profiles/{profile}");
    }
    let body = html! {
        p {
            "Every client needs the URL, and the key of an agent where the gateway asks for one. "
            a href="/ui/agents" { "Make a key" } ": it is shown once, and replaces KEY below."
        }
        form.filters method="get" action="/ui/connect" {
            (input("profile", "Only the profile", profile))
            button { "Show" }
        }
        @for (number, snippet) in SNIPPETS.iter().enumerate() { (section(number, snippet, &url)) }
    };
    PageResult::Content(Content {
        title: "Connect a client".to_owned(),
        section: "Connect a client",
        actions: html! {},
        body,
    })
}

fn section(number: usize, snippet: &ClientSnippet, url: &str) -> Markup {
    let id = format!("snippet-{number}");
    html! {
        section {
            h2 { (snippet.client) small { (snippet.file) } }
            pre id=(id) { ((snippet.text)(url, "KEY")) }
            p.actions { button data-copy=(id) hidden { "Copy" } }
        }
    }
}
