//! Who has no key that opens something: what they are answered, what is counted, and what the audit
//! keeps of them.

use std::path::Path;

use serde_json::{Value, json};
use tollbridge::{
    clock,
    names::AgentId,
    store::{KeyHash, KeyId, Store, StoredKey},
};

use crate::{
    audit_records::{LOOK, events, limit_files, serve, until},
    harness::{ANN, BOB, Server, keyed},
    support::{Gateway, TestGateway, http::Http, soon, value, wire::request},
};

/// An admin, and an agent that is disabled.
const TWO: &str = "[agents.ann]\nadmin = true\n[agents.bob]\nenabled = false\n\
                   [governance]\nprice = \"0\"\n";

/// The texts of keys that have ended; their ids are `id_` and these.
const EXPIRED: &str = "tbk_expired_0123456789abcdef0123456789";
const REVOKED: &str = "tbk_revoked_0123456789abcdef0123456789";

/// A gateway whose store has keys that have ended.
async fn start(data: &Path) -> Gateway {
    let store = Store::open(data).await.unwrap();
    for (text, expires) in [(EXPIRED, Some("2001-01-01T00:00:00Z")), (REVOKED, None)] {
        let key = StoredKey {
            id: KeyId::new(&format!("id_{}", &text[4..11])),
            agent: AgentId::from_name("ann"),
            hash: KeyHash::of(text),
            prefix: text[..8].to_owned(),
            created: clock::now(),
            expires: expires.map(|at| at.parse().unwrap()),
            revoked: None,
            last_used: None,
        };
        store.keys.add(&key).await.unwrap();
        if expires.is_none() {
            store.keys.revoke(&key.id, clock::now()).await.unwrap();
        }
    }
    store.close().await;
    let settings = format!("data_dir = '{}'\n{}", data.display(), keyed(TWO));
    let gateway = TestGateway::new().setting(&settings);
    gateway
        .server("x", &Server::start().await.backend)
        .start()
        .await
}

fn list() -> String {
    request("1", "tools/list", "{}")
}

async fn status_of(http: &Http) -> u16 {
    http.post("/mcp", list()).await.status().as_u16()
}

/// What `/status` says of governance.
async fn governed(http: &Http) -> Value {
    let status = value(&http.get("/status", &[]).await.text().await);
    status["governance"].clone()
}

/// What the audit says of strangers: the source, and the detail.
fn told(data: &Path) -> Vec<(String, String)> {
    let all = events(data).into_iter();
    let of_strangers = all.filter(|(event, ..)| event == "authentication_refused");
    of_strangers
        .map(|(_, source, detail)| (source, detail))
        .collect()
}

/// Waits until all events are written: those who cause one do not wait for it.
async fn synced(gateway: &Gateway) {
    let audit = gateway.running.core().proxy.governance().audit();
    soon("the audit is written", async {
        while !audit.is_synced() {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
}

fn from_here(detail: &str) -> (String, String) {
    ("127.0.0.1".to_owned(), detail.to_owned())
}

/// Each reason is counted for admins, and has an event with the source and the id of the key. The
/// answers are alike, and no text or hash of a key is kept.
#[tokio::test]
async fn each_reason_leaves_a_trace() {
    let data = tempfile::tempdir().unwrap();
    let gateway = start(data.path()).await;
    let http = gateway.http();
    let mut answers = Vec::new();
    for key in ["tbk_of_nobody", EXPIRED, REVOKED] {
        let answer = http.clone().with_key(key).post("/mcp", list()).await;
        assert_eq!(answer.status(), 401, "{key}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let challenge = answer.header("www-authenticate").map(str::to_owned);
        answers.push((challenge, answer.text().await));
    }
    assert!(answers.iter().all(|it| *it == answers[0]), "{answers:?}");
    assert_eq!(status_of(&http).await, 401);
    assert_eq!(status_of(&http).await, 401);
    let both = [("x-api-key", ANN.key), ("authorization", "Bearer x")];
    let several = http.post_with("/mcp", &both, list()).await;
    assert_eq!(several.status(), 401);
    assert_eq!(status_of(&http.clone().with_key(ANN.key)).await, 200);
    // A disabled agent is known: its calls have records, which say so.
    assert_eq!(status_of(&http.clone().with_key(BOB.key)).await, 200);

    let counted = governed(&http.clone().with_key(ANN.key)).await;
    let expect = json!({ "expired": 1, "missing": 2, "revoked": 1, "several": 1, "unknown": 1 });
    assert_eq!(counted["unauthenticated"], expect);
    for accept in ["application/json", "text/html"] {
        let stranger = http.get("/status", &[("accept", accept)]).await;
        let stranger = stranger.text().await;
        assert!(!stranger.contains("unauthenticated"), "{stranger}");
    }
    let ann = http.clone().with_key(ANN.key);
    let page = ann.get("/status", &[("accept", "text/html")]).await;
    let page = page.text().await;
    let row = "unauthenticated<td>expired 1, missing 2, revoked 1, several 1, unknown 1";
    assert!(page.contains(row), "{page}");
    let figures = http.get("/metrics", &[]).await.text().await;
    assert!(!figures.contains("unauthenticated"), "{figures}");
    let ann = http.clone().with_key(ANN.key);
    let figures = ann.get("/metrics", &[]).await.text().await;
    let figure = r#"tollbridge_unauthenticated_requests_total{reason="missing"} 2"#;
    assert!(figures.contains(figure), "{figures}");
    let documented = include_str!("../../docs/src/reference/metrics.md");
    assert!(documented.contains("`tollbridge_unauthenticated_requests_total`"));

    let expect = [
        from_here("unknown"),
        from_here("expired id_expired"),
        from_here("revoked id_revoked"),
        from_here("several"),
    ];
    synced(&gateway).await;
    assert_eq!(told(data.path()), expect);
    gateway.stop().await;
    for file in std::fs::read_dir(data.path().join("audit")).unwrap() {
        let text = std::fs::read(file.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&text);
        let hash: String = KeyHash::of(REVOKED)
            .0
            .map(|byte| format!("{byte:02x}"))
            .concat();
        for secret in ["tbk_", &hash] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

/// A flood is one event, and one more that says how large it was, at the latest when the gateway
/// stops. All are counted.
#[tokio::test]
async fn a_flood_is_two_events() {
    let data = tempfile::tempdir().unwrap();
    let gateway = start(data.path()).await;
    let stranger = gateway.http().with_key("tbk_of_nobody");
    for _ in 0..300 {
        assert_eq!(status_of(&stranger).await, 401);
    }
    synced(&gateway).await;
    assert_eq!(told(data.path()), [from_here("unknown")]);
    let counted = governed(&gateway.http().with_key(ANN.key)).await;
    assert_eq!(counted["unauthenticated"], json!({ "unknown": 300 }));
    gateway.stop().await;
    let rest = from_here("unknown: 299 more since the last report");
    assert_eq!(told(data.path()), [from_here("unknown"), rest]);
}

/// Pages are for everybody, so that no key is asked for; a wrong one is noted all the same.
#[tokio::test]
async fn pages_note_wrong_keys_only() {
    let data = tempfile::tempdir().unwrap();
    let gateway = start(data.path()).await;
    for path in ["/status", "/metrics"] {
        let http = gateway.http();
        assert_eq!(http.get(path, &[]).await.status(), 200);
        let wrong = http.clone().with_key(REVOKED);
        assert_eq!(wrong.get(path, &[]).await.status(), 200);
    }
    let counted = governed(&gateway.http().with_key(ANN.key)).await;
    assert_eq!(counted["unauthenticated"], json!({ "revoked": 2 }));
    synced(&gateway).await;
    assert_eq!(told(data.path()), [from_here("revoked id_revoked")]);
    gateway.stop().await;
}

/// Who asks for a host that is not ours, or from a page that is not welcome, is refused and counted;
/// probes of balancers name any host, and are answered.
#[tokio::test]
async fn hosts_and_origins_that_are_refused_are_counted() {
    let data = tempfile::tempdir().unwrap();
    let gateway = start(data.path()).await;
    let http = gateway.http();
    let host = ("host", "10.0.0.7:8085");
    let origin = ("origin", "https://evil.example");
    for strange in [host, host, origin] {
        assert_eq!(http.get("/status", &[strange]).await.status(), 403);
        assert_eq!(http.get("/healthz", &[strange]).await.status(), 200);
        assert_ne!(http.get("/readyz", &[strange]).await.status(), 403);
    }
    let ann = http.clone().with_key(ANN.key);
    let expect = json!({ "host": 2, "origin": 1 });
    assert_eq!(governed(&ann).await["forbidden"], expect);
    let page = ann.get("/status", &[("accept", "text/html")]).await;
    let page = page.text().await;
    assert!(page.contains("forbidden<td>host 2, origin 1"), "{page}");
    let figures = ann.get("/metrics", &[]).await.text().await;
    let figure = r#"tollbridge_forbidden_requests_total{reason="host"} 2"#;
    assert!(figures.contains(figure), "{figures}");
    gateway.stop().await;
}

/// Whether or not it can be recorded, a stranger is refused in the same way.
#[tokio::test]
async fn a_full_disk_lets_nobody_in() {
    let server = Server::start().await;
    let (_place, mut child, http) = serve(&server, &keyed(TWO)).await;
    limit_files(&child, Some(1));
    let stranger = http.clone().with_key("tbk_of_nobody");
    for _ in 0..3 {
        let answer = stranger.post("/mcp", list()).await;
        assert_eq!(answer.status(), 401);
        let text = answer.text().await;
        assert!(text.contains("invalid, revoked or expired"), "{text}");
    }
    let ann = http.clone().with_key(ANN.key);
    until(&ann, "the error is seen", |it| {
        it["audit_error"].is_string()
    })
    .await;
    let said = governed(&ann).await;
    assert_eq!(said["unauthenticated"], json!({ "unknown": 3 }));
    child.start_kill().unwrap();
    soon("it is killed", child.wait()).await.unwrap();
}
