//! Agents that are refused too often are held back: what they are told, what the audit keeps of it, and who
//! is not held back with them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    audit_records::events,
    harness::{ANN, BOB, Server, Stage, code_of, keyed, records},
    support::{
        Client, Front, TestGateway,
        http::Http,
        soon, value,
        wire::{Envelope, request},
    },
};

/// Ann may do nothing, and be refused twice; it takes an hour until once more.
const METERED: &str = "[agents.ann]\npolicy = { mode = \"none\" }\n[agents.bob]\nadmin = true\n\
                       [governance]\nprice = \"0\"\n\
                       refusal_rate = { calls = 1, per = \"1h\", burst = 2 }\n";

fn call(id: &str) -> String {
    request(id, "tools/call", r#"{"name":"mcp_x_echo","arguments":{}}"#)
}

async fn refused(http: &Http, text: String) -> String {
    let answer = http.post("/mcp", text).await;
    assert_eq!(answer.status(), 200);
    code_of(&Envelope::of(&answer.text().await))
}

/// Past its rate an agent gets 429 for whatever a server would answer, no record, and one in all at the end.
#[tokio::test]
pub(crate) async fn who_is_refused_too_often_is_held_back() {
    let data = tempfile::tempdir().unwrap();
    let settings = format!("data_dir = '{}'\n{METERED}", data.path().display());
    let stage = Stage::new(&settings, "").await;
    let ann = stage.gateway.http().with_key(ANN.key);
    for id in ["1", "2"] {
        assert_eq!(refused(&ann, call(id)).await, "UNAUTHORIZED");
    }
    let other = request("4", "resources/read", r#"{"uri":"file:///etc/passwd"}"#);
    let unknown = request("5", "acme/unknown", "{}");
    for text in [call("3"), other, unknown] {
        let answer = ann.post("/mcp", text.clone()).await;
        assert_eq!(answer.status(), 429, "{text}");
        let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!(retry >= 1);
        let answer = Envelope::of(&answer.text().await);
        assert_eq!(
            answer.id.as_deref(),
            Some(&text[text.find("\"id\":").unwrap() + 5..][..1])
        );
        let failure = answer.failure();
        assert_eq!(failure["code"], -32004, "{failure}");
        assert_eq!(failure["data"]["limited"], "refusals");
        assert_eq!(failure["data"]["retryable"], true);
        assert!(failure["data"]["retryAfterMs"].as_u64().unwrap() > 60_000);
    }
    let list = ann.post("/mcp", request("6", "tools/list", "{}")).await;
    assert_eq!(list.status(), 200, "it costs nothing");
    let bob = stage.gateway.http().with_key(BOB.key);
    assert_eq!(
        bob.post("/mcp", call("7")).await.status(),
        200,
        "another agent"
    );
    assert_eq!(records(&stage.gateway.config.data_dir).len(), 3);
    let counts = value(&bob.get("/status", &[]).await.text().await)["governance"].clone();
    assert_eq!(counts["held_back"], 3, "{counts}");
    assert_eq!(counts["refused"], json!({ "UNAUTHORIZED": 2 }));
    stage.stop().await;
    let summed = events(data.path());
    let summed: Vec<_> = summed
        .iter()
        .filter(|it| it.0 == "refusals_summed")
        .collect();
    let [(_, subject, detail)] = &summed[..] else {
        panic!("{summed:?}");
    };
    assert_eq!(subject, "ann");
    assert!(
        detail.starts_with("3 calls from 127.0.0.1, RATE_LIMITED, since "),
        "{detail}"
    );
}

/// What counts as a refusal is all that an agent could have avoided, and nothing else.
#[tokio::test]
async fn what_counts() {
    let blocked = "scan = { arguments = { email = \"block\" }, results = { email = \"block\" } }\n";
    let args = "args = [{ name = \"small\", tools = [\"*\"], at = \"/n\", min = 6 }]\n";
    for (terms, method, params, code) in [
        (
            "",
            "tools/call",
            r#"{"name":"unknown"}"#,
            Some("TOOL_NOT_FOUND"),
        ),
        ("", "acme/unknown", "{}", None),
        (
            "rate = { calls = 1, per = \"1h\" }\n",
            "tools/call",
            r#"{"name":"mcp_x_echo"}"#,
            Some("RATE_LIMITED"),
        ),
        (
            blocked,
            "tools/call",
            r#"{"name":"mcp_x_echo","arguments":{"a":"ann.lee@example.org"}}"#,
            Some("PII_DETECTED"),
        ),
        (
            args,
            "tools/call",
            r#"{"name":"mcp_x_echo","arguments":{"n":9}}"#,
            Some("UNAUTHORIZED"),
        ),
    ] {
        let settings = format!(
            "[governance]\nprice = \"0\"\nrefusal_rate = {{ calls = 1, per = \"1h\", burst = 1 }}\n{terms}"
        );
        let stage = Stage::new(&settings, "").await;
        // The first of a rate is allowed.
        let is_rate = code == Some("RATE_LIMITED");
        for _ in 0..usize::from(is_rate) {
            assert_eq!(
                stage
                    .http()
                    .post("/mcp", request("1", method, params))
                    .await
                    .status(),
                200
            );
        }
        let answer = stage.ask(method, params).await;
        if let Some(code) = code {
            assert_eq!(code_of(&answer), code, "{terms}");
        }
        let answer = stage
            .http()
            .post("/mcp", request("2", method, params))
            .await;
        assert_eq!(answer.status(), 429, "{terms} {method}");
        stage.stop().await;
    }
    // What a server answers has been paid for.
    let settings = format!(
        "[governance]\nprice = \"0\"\nrefusal_rate = {{ calls = 1, per = \"1h\", burst = 1 }}\n{blocked}"
    );
    let stage = Stage::new(&settings, "").await;
    stage.server.answers(
        "tools/call",
        r#"{"content":[{"type":"text","text":"ann.lee@example.org"}]}"#,
    );
    for _ in 0..3 {
        assert_eq!(stage.must_not("{}").await, "PII_DETECTED");
    }
    stage.stop().await;
}

/// Where there is no status the error says it, on every front.
#[tokio::test]
async fn every_front_is_held_back() {
    for front in Front::ALL {
        let server = Server::start().await;
        let gateway = TestGateway::new()
            .setting(&keyed(METERED))
            .server("x", &server.backend)
            .start()
            .await;
        let client = gateway.client_of(ANN, front, "/mcp").await;
        let refuse = async |client: &Client, id: &str| -> Value {
            client.ask(id, "tools/call", r#""name":"mcp_x_echo""#).await;
            client.answer(id).await.failure()
        };
        for id in ["1", "2"] {
            assert_eq!(
                refuse(&client, id).await["data"]["code"],
                "UNAUTHORIZED",
                "{front:?}"
            );
        }
        let held = refuse(&client, "3").await;
        assert_eq!(held["data"]["limited"], "refusals", "{front:?} {held}");
        assert_eq!(records(&gateway.config.data_dir).len(), 2, "{front:?}");
        gateway.stop().await;
    }
}

/// As soon as the rate allows one more refusal, calls pass again; those that are allowed cost nothing of it.
#[tokio::test]
pub(crate) async fn it_recovers_soon() {
    let settings = "[agents.ann]\npolicy = { mode = \"allowlist\", tools = [\"mcp_x_echo\"] }\n\
                    [governance]\nprice = \"0\"\nrefusal_rate = \"10/1s/1\"\n";
    let stage = Stage::new(settings, "").await;
    for _ in 0..3 {
        assert_eq!(
            code_of(&stage.call_tool("mcp_x_other", "{}").await),
            "UNAUTHORIZED"
        );
        let recovers = async {
            while stage.http().post("/mcp", call("2")).await.status() != 200 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("it is let through again", recovers).await;
        for _ in 0..20 {
            stage.must("{}").await;
        }
    }
    stage.stop().await;
}
