//! Revisions before 2025-11-25 on either side of the gateway, in every pairing.

use serde_json::Value;

use crate::support::{
    Backend, Client, Era, Front, Gateway, TestGateway, Transport, backend::Asked, value,
    wire::request,
};

/// The older revisions.
const OLD: [&str; 3] = ["2024-11-05", "2025-03-26", "2025-06-18"];
/// Clients of older revisions, each where it has its home.
const CLIENTS: [(&str, Front); 6] = [
    ("2024-11-05", Front::Sse),
    ("2025-03-26", Front::Streamable),
    ("2025-06-18", Front::Streamable),
    ("2024-11-05", Front::Stdio),
    ("2025-03-26", Front::Stdio),
    ("2025-06-18", Front::Stdio),
];
const TRANSPORTS: [Transport; 5] = [
    Transport::Stdio,
    Transport::Http,
    Transport::HttpEvents,
    Transport::Sse,
    Transport::WebSocket,
];

/// Whatever revision a server agrees on, it is listed and called, and `/status` names that revision.
#[tokio::test]
async fn servers_of_old_revisions_serve_clients_of_all() {
    for transport in TRANSPORTS {
        for revision in OLD {
            let backend = Backend::start(transport, Era::Legacy).await;
            backend.set_revision(revision);
            let gateway = TestGateway::new().governed();
            let gateway = gateway.server("x", &backend).start().await;
            let what = format!("{transport:?} {revision}");
            let status = gateway.status("x").await;
            assert_eq!(status["state"], "connected", "{what}: {status}");
            assert_eq!(status["revision"], revision, "{what}");
            for (spoken, front) in CLIENTS {
                let client = gateway.client_speaking(spoken, front, "/mcp").await;
                let call = converse(&client, &backend).await;
                expect_version(&call, revision);
            }
            for front in Front::ALL {
                let client = gateway.client(front, "/mcp", "{}").await;
                converse(&client, &backend).await;
            }
            gateway.stop().await;
        }
    }
}

/// Clients of older revisions are served by servers of the newest ones of both eras, and `/status` names
/// what each session speaks.
#[tokio::test]
async fn clients_of_old_revisions_are_served_by_the_newest_servers() {
    for era in [Era::Legacy, Era::Modern] {
        for transport in TRANSPORTS {
            if (transport, era) == (Transport::Sse, Era::Modern) {
                continue;
            }
            let (backend, gateway) = Gateway::governed(transport, era, "").await;
            for (revision, front) in CLIENTS {
                let client = gateway.client_speaking(revision, front, "/mcp").await;
                converse(&client, &backend).await;
                if front != Front::Stdio {
                    let open = sessions(&gateway).await;
                    let last = open.iter().find(|open| open["revision"] == revision);
                    assert!(last.is_some(), "{revision} {front:?}: {open:?}");
                }
            }
            gateway.stop().await;
        }
    }
}

/// The sessions that `/status` shows.
async fn sessions(gateway: &Gateway) -> Vec<Value> {
    let status = gateway.http().get("/status", &[]).await.text().await;
    value(&status)["sessions"].as_array().unwrap().clone()
}

/// Lists, a call with progress, and one that is cancelled; gives the first call as the server got it.
async fn converse(client: &Client, backend: &Backend) -> Asked {
    for (kind, member, expect) in [
        ("tools", "name", "mcp_x_echo"),
        ("resources", "uri", "x+file:///a.txt"),
        ("prompts", "name", "mcp_x_greet"),
    ] {
        let items = client.list(kind).await;
        let is_listed = items.iter().any(|item| item[member] == expect);
        assert!(is_listed, "{:?}: {items:?}", client.front);
    }
    client.call("1", "mcp_x_echo", r#""t""#).await;
    let call = backend.asked("tools/call").await;
    call.progress(1).await;
    let told = client.must("notifications/progress").await;
    assert_eq!(told.param(&["progressToken"]).as_deref(), Some(r#""t""#));
    assert_eq!(told.param(&["progress"]).as_deref(), Some("1"));
    call.answer(r#"{"content":[],"mine":1}"#).await;
    assert_eq!(client.answer("1").await.value()["mine"], 1);
    cancels(client, backend).await;
    client.is_quiet().await;
    call
}

/// A call that its client gives up; the server hears so.
async fn cancels(client: &Client, backend: &Backend) {
    let sent = client.call("2", "mcp_x_echo", r#""u""#).await;
    let call = backend.asked("tools/call").await;
    if client.front == Front::Modern {
        sent.disconnect();
    } else {
        client.cancel("2").await;
    }
    let is_http = call.headers.contains_key("host");
    if is_http && backend.script.era() == Era::Modern {
        call.closed().await;
    } else {
        let told = backend.told("notifications/cancelled").await.envelope;
        assert_eq!(told.param(&["requestId"]).as_deref(), Some(call.id()));
    }
    if client.front == Front::Streamable {
        let failure = client.answer("2").await.failure();
        assert_eq!(failure["data"]["code"], "CANCELLED", "{failure}");
    }
}

/// Since 2025-06-18 requests over streamable HTTP name the revision that was agreed on.
fn expect_version(call: &Asked, revision: &str) {
    let is_streamable = call.headers.contains_key("mcp-session-id");
    if is_streamable && revision == "2025-06-18" {
        assert_eq!(call.headers["mcp-protocol-version"], revision);
    }
}

/// A batch of a client of 2025-03-26 reaches servers of every revision as messages of their own, and is
/// answered in one array.
#[tokio::test]
async fn batches_reach_servers_of_all_revisions() {
    for transport in TRANSPORTS {
        for revision in OLD.into_iter().chain(["2025-11-25"]) {
            let backend = Backend::start(transport, Era::Legacy).await;
            backend.set_revision(revision);
            let gateway = TestGateway::new().server("x", &backend).start().await;
            expect_batch(&gateway, &backend).await;
            gateway.stop().await;
        }
    }
    for transport in [Transport::Stdio, Transport::Http, Transport::WebSocket] {
        let backend = Backend::start(transport, Era::Modern).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        expect_batch(&gateway, &backend).await;
        gateway.stop().await;
    }
}

/// A list and two calls in one batch.
async fn expect_batch(gateway: &Gateway, backend: &Backend) {
    let revision = "2025-03-26";
    let client = gateway.client_speaking(revision, Front::Streamable, "/mcp");
    let client = client.await;
    let header = [("mcp-session-id", client.session.as_deref().unwrap())];
    let call = |id: &str, tool: &str| {
        let params = format!(r#"{{"name":"mcp_x_{tool}"}}"#);
        request(id, "tools/call", &params)
    };
    let messages = [
        call("1", "echo"),
        request("2", "tools/list", "{}"),
        call(r#""two""#, "other"),
    ];
    let batch = format!("[{}]", messages.join(","));
    let serve = async {
        for _ in 0..2 {
            let asked = backend.asked("tools/call").await;
            let tool = asked.envelope.param(&["name"]).unwrap();
            asked
                .answer(&format!(r#"{{"content":[],"tool":{tool}}}"#))
                .await;
        }
    };
    let (answer, ()) = tokio::join!(client.http.post_with("/mcp", &header, batch), serve);
    assert!(!answer.is_events(), "nothing precedes the answers");
    let answers = value(&answer.text().await);
    let of = |id: Value| {
        let mut all = answers.as_array().unwrap().iter();
        let found = all.find(|answer| answer["id"] == id);
        found.unwrap_or_else(|| panic!("{answers}"))["result"].clone()
    };
    assert_eq!(answers.as_array().unwrap().len(), 3, "{answers}");
    assert_eq!(of(1.into())["tool"], "echo");
    assert_eq!(of("two".into())["tool"], "other");
    assert!(!of(2.into())["tools"].as_array().unwrap().is_empty());
}
