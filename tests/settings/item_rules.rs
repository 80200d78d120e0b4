//! Which items of a server are shown, and as what.

use serde_json::{Value, json};

use crate::{
    harness::{answer_with, ask, http_backend, items, names, with_one},
    support::{Backend, Gateway},
};

/// Each kind, and what stands before `keep` and `drop` in the server's own names.
const KINDS: [(&str, &str); 3] = [("tools", ""), ("resources", "file:///"), ("prompts", "")];

/// A server with an item `keep` and an item `drop` of each kind.
async fn backend() -> Backend {
    let backend = http_backend().await;
    backend
        .set_list(
            "tools/list",
            r#"[{"name":"keep","inputSchema":{"type":"object"}},{"name":"drop","inputSchema":{"type":"object"}}]"#,
        )
        .set_list(
            "resources/list",
            r#"[{"uri":"file:///keep","name":"k"},{"uri":"file:///drop","name":"d"}]"#,
        )
        .set_list("prompts/list", r#"[{"name":"keep"},{"name":"drop"}]"#);
    backend
}

/// The names of `kind` as the server's own route shows them, sorted.
async fn own(gateway: &Gateway, kind: &str) -> Vec<String> {
    let mut names = names(gateway, "/mcp/servers/one", kind).await;
    names.sort();
    names
}

/// Checks what is shown of each kind, on both routes, with a rule that speaks of `drop`.
async fn check(rule: impl Fn(&str) -> String, expect: &[&str]) {
    for (kind, before) in KINDS {
        let backend = backend().await;
        let keys = format!("{kind}.{}", rule(before));
        let gateway = with_one(&backend, "", &keys).await;
        let expect: Vec<String> = expect
            .iter()
            .map(|name| format!("{before}{name}"))
            .collect();
        assert_eq!(own(&gateway, kind).await, expect, "{keys}");
        let merged = names(&gateway, "/mcp", kind).await;
        assert_eq!(merged.len(), expect.len(), "{keys}");
        for name in expect {
            let shown = merged.iter().any(|merged| merged.ends_with(&name));
            assert!(shown, "{keys} {merged:?}");
        }
        for (other, before) in KINDS.into_iter().filter(|(other, _)| *other != kind) {
            let all = [format!("{before}drop"), format!("{before}keep")];
            assert_eq!(own(&gateway, other).await, all, "{keys}");
        }
    }
}

#[tokio::test]
pub(crate) async fn allow() {
    check(|before| format!("allow = [\"{before}k*\"]"), &["keep"]).await;
    check(
        |before| format!("allow = [\"{before}*\"]"),
        &["drop", "keep"],
    )
    .await;
    check(|_| "allow = []".to_owned(), &[]).await;
}

#[tokio::test]
pub(crate) async fn deny() {
    check(|before| format!("deny = [\"{before}d*\"]"), &["keep"]).await;
    check(|_| "deny = []".to_owned(), &["drop", "keep"]).await;
}

/// A resource keeps its URI, which is what it is called by, and has another name for people.
#[tokio::test]
pub(crate) async fn rename() {
    for (kind, before) in KINDS {
        let (new, expect) = match kind {
            "resources" => ("Fall of man", ["Fall of man", "k"]),
            _ => ("fall", ["mcp_one_fall", "mcp_one_keep"]),
        };
        let backend = backend().await;
        let keys = format!("{kind}.rename = {{ \"{before}drop\" = \"{new}\" }}");
        let gateway = with_one(&backend, "", &keys).await;
        let found = items(&gateway, "/mcp", kind).await;
        let found: Vec<&Value> = found.iter().map(|item| &item["name"]).collect();
        assert_eq!(found, expect, "{keys}");
    }
}

#[tokio::test]
pub(crate) async fn describe() {
    for (kind, before) in KINDS {
        let backend = backend().await;
        let keys = format!("{kind}.describe = {{ \"{before}drop\" = \"Lets go.\" }}");
        let gateway = with_one(&backend, "", &keys).await;
        let found = items(&gateway, "/mcp", kind).await;
        let described: Vec<&Value> = found.iter().map(|item| &item["description"]).collect();
        assert_eq!(described, [&json!("Lets go."), &Value::Null], "{keys}");
    }
}

#[tokio::test]
pub(crate) async fn expose() {
    for (kind, _) in KINDS {
        let backend = backend().await;
        let gateway = with_one(&backend, "", &format!("expose = [\"{kind}\"]")).await;
        for (other, _) in KINDS {
            let expect = if other == kind { 2 } else { 0 };
            let merged = names(&gateway, "/mcp", other).await;
            assert_eq!(merged.len(), expect, "{other} with expose = {kind}");
            assert_eq!(own(&gateway, other).await.len(), 2);
        }
    }
}

#[tokio::test]
pub(crate) async fn tags() {
    let backend = backend().await;
    let without = with_one(&backend, "", "").await.status("one").await;
    assert_eq!(without["tags"], Value::Null);
    let keys = "tags = [\"local\", \"beta\"]";
    let with = with_one(&backend, "", keys).await.status("one").await;
    assert_eq!(with["tags"], json!(["local", "beta"]));
}

#[tokio::test]
pub(crate) async fn validate() {
    let strict = r#"[{"name":"echo","inputSchema":{"type":"object","required":["x"]}}]"#;
    for (mode, passes, counted) in [
        ("auto", true, Value::Null),
        ("off", true, Value::Null),
        ("report", true, json!([1, 0])),
        ("refuse", false, json!([0, 1])),
    ] {
        let backend = http_backend().await;
        backend.set_list("tools/list", strict);
        answer_with(&backend, "one");
        let gateway = with_one(&backend, "", &format!("validate = \"{mode}\"")).await;
        let params = r#"{"name":"mcp_one_echo","arguments":{}}"#;
        let answer = ask(&gateway, "/mcp", "tools/call", params).await;
        assert_eq!(answer.result.is_some(), passes, "{mode}");
        let status = gateway.status("one").await;
        let counts = status.get("validation");
        let counts = counts.map(|counts| json!([counts["reported"], counts["refused"]]));
        assert_eq!(counts.unwrap_or_default(), counted, "{mode}");
    }
}
