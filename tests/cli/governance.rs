//! Agents, keys, budgets, policies and the audit: each command alone, and with a gateway that runs.

mod agents;
mod budgets;
mod keys;
mod mistakes;
mod policy;
mod records;
mod running;
mod tampering;

use serde_json::{Value, json};
use sqlx::Connection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Place, Ran, Serving, bounded};

/// Two servers, an agent of the config, and budgets of all kinds.
const GOVERNED: &str = r#"
    listen = "127.0.0.1:0"
    [servers.toolbox]
    transport = "builtin"
    price = "0.25"
    [servers.other]
    transport = "builtin"
    budget = { limit = "5.00", window = "month" }
    [governance]
    auth = "keys"
    [governance.teams.science]
    budget = { limit = "3.00" }
    [agents.researcher]
    team = "science"
    keys = ["4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a"]
    policy = { mode = "allowlist", tools = ["toolbox/*"], prompts = ["other/*"] }
    [profiles.reading]
    tools = ["toolbox/hash"]
"#;
/// The key of the agent in the config.
const RESEARCHER: &str = "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a";

async fn ok(place: &Place, args: &[&str]) -> Ran {
    let ran = place.run(args).await;
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran
}

/// Does `statements` with the store.
async fn in_store(place: &Place, statements: &str) {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned()));
    done.execute(&mut store(place).await)
        .await
        .expect("it is done");
}

/// A connection to the store of `place` beside the program's own.
async fn store(place: &Place) -> sqlx::SqliteConnection {
    let url = format!("sqlite:{}", place.file("data/tollbridge.db").display());
    let store = sqlx::SqliteConnection::connect(&url).await;
    store.expect("it opens")
}

/// Ids and times differ each time.
fn masked(ran: &Ran) -> String {
    let mut text = ran.all();
    for (pattern, mask) in [
        (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z", "TIME"),
        (r"tbk_[A-Za-z0-9]{49}", "KEY"),
        (r"tbk_[A-Za-z0-9]{4}", "PREFIX"),
        (r"key_[A-Za-z0-9]{12}", "KEY_ID"),
        (r"inv_[0-9a-f-]{36}", "INV"),
        (r"unix:uid=[0-9]+", "USER"),
    ] {
        let pattern = regex::Regex::new(pattern).expect("a regex");
        text = pattern.replace_all(&text, mask).into_owned();
    }
    text
}

/// Calls a tool with `key`, as a client without a session: the status and the body.
async fn call(serving: &Serving, key: &str) -> (u16, Value) {
    call_with(serving, key, "1").await
}

/// The same with this text.
async fn call_with(serving: &Serving, key: &str, text: &str) -> (u16, Value) {
    let address = serving.url.trim_start_matches("http://");
    let body = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": { "name": "mcp_toolbox_hash", "arguments": { "text": text } },
    });
    let body = body.to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut answer = Vec::new();
    bounded(async {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it is read");
        stream.read_to_end(&mut answer).await.expect("it answers");
    })
    .await;
    let text = String::from_utf8_lossy(&answer);
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let json = text
        .find('{')
        .zip(text.rfind('}'))
        .map(|(from, to)| &text[from..=to]);
    let body = json.and_then(|json| serde_json::from_str(json).ok());
    (status.expect("a status"), body.unwrap_or_default())
}
