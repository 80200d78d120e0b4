//! Who is who: keys, sessions that belong to whoever opened them, and what strangers see.

use serde_json::Value;
use tollbridge::{
    clock,
    names::AgentId,
    store::{KeyHash, KeyId, Store, StoredKey},
};

use crate::{
    binary::Place,
    harness::{ANN, BOB, Server, Stage, ask_on, code_of, keyed},
    support::{
        Client, Front, TestGateway,
        client::Who,
        http::{Headers, Http, JSON},
        value,
        wire::{Envelope, request},
    },
};

const TWO: &str = "[agents.ann]\n[agents.bob]\n[governance]\nprice = \"0\"\n";

/// The paths that need an agent, with the verb for each.
const DOORS: [(&str, &str); 9] = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("POST", "/mcp/servers/x"),
    ("POST", "/mcp/profiles/p"),
    ("GET", "/sse"),
    ("GET", "/sse/servers/x"),
    ("GET", "/sse/profiles/p"),
    ("POST", "/messages/?session_id=abc"),
];

fn list() -> String {
    request("1", "tools/list", "{}")
}

#[tokio::test]
async fn keys_open_in_either_header() {
    let stage = Stage::new(TWO, "").await;
    let http = stage.gateway.http();
    let bearer = format!("Bearer {}", ANN.key);
    let good: [Headers<'_>; 3] = [
        &[("authorization", &bearer)],
        &[("x-api-key", ANN.key)],
        &[("x-api-key", ANN.key), ("authorization", &bearer)],
    ];
    for headers in good {
        let answer = http.post_with("/mcp", headers, list()).await;
        assert_eq!(answer.status(), 200, "{headers:?}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn nobody_enters_without_a_key() {
    let settings = format!("{TWO}[profiles.p]\n");
    let stage = Stage::new(&settings, "").await;
    let http = stage.gateway.http();
    let (bob, basic) = (format!("Bearer {}", BOB.key), format!("Basic {}", ANN.key));
    let plain = r#"Bearer realm="tollbridge""#;
    let invalid = r#"Bearer realm="tollbridge", error="invalid_token""#;
    let several = r#"Bearer realm="tollbridge", error="invalid_request""#;
    let bad: [(Headers<'_>, &str); 5] = [
        (&[], plain),
        (&[("x-api-key", "tbk_of_nobody")], invalid),
        (&[("authorization", &basic)], invalid),
        (&[("authorization", ANN.key)], invalid),
        (&[("authorization", &bob), ("x-api-key", ANN.key)], several),
    ];
    for (verb, path) in DOORS {
        for (headers, challenge) in bad {
            let headers = [&JSON, headers].concat();
            let answer = http.send(verb, path, &headers, list()).await;
            assert_eq!(answer.status(), 401, "{verb} {path} {headers:?}");
            assert_eq!(answer.header("www-authenticate"), Some(challenge));
            let text = answer.text().await;
            assert!(!text.contains("tbk_"), "{text}");
        }
    }
    assert!(stage.server.seen().is_empty());
    assert!(stage.records().is_empty(), "who is nobody has no record");
    stage.stop().await;
}

/// A browser asks before it sends the key.
#[tokio::test]
async fn browsers_may_ask_without_a_key() {
    let stage = Stage::new(TWO, "").await;
    let headers = [
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization, content-type",
        ),
    ];
    let answer = stage
        .gateway
        .http()
        .send("OPTIONS", "/mcp", &headers, "")
        .await;
    assert!(answer.status().is_success(), "{answer:?}");
    let allowed = answer.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("authorization"), "{allowed}");
    let refused = stage
        .gateway
        .http()
        .send("POST", "/mcp", &headers[..1], list())
        .await;
    assert_eq!(refused.status(), 401);
    let readable = refused.header("access-control-expose-headers").unwrap();
    assert!(readable.contains("www-authenticate"), "{readable}");
    stage.stop().await;
}

/// Keys of the store end with their time, and when they are revoked.
#[tokio::test]
async fn keys_of_the_store_end() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let add = async |name: &str, expires: Option<&str>, revoked: bool| {
        let key = StoredKey {
            id: KeyId::new(name),
            agent: AgentId::from_name("ann"),
            hash: KeyHash::of(name),
            prefix: "tbk_abcd".to_owned(),
            created: clock::now(),
            expires: expires.map(|at| at.parse().unwrap()),
            revoked: None,
            last_used: None,
        };
        store.keys.add(&key).await.unwrap();
        if revoked {
            store.keys.revoke(&key.id, clock::now()).await.unwrap();
        }
    };
    add("live", Some("2999-01-01T00:00:00Z"), false).await;
    add("expired", Some("2001-01-01T00:00:00Z"), false).await;
    add("revoked", None, true).await;
    store.close().await;
    let settings = keyed(TWO);
    let place = format!("data_dir = '{}'\n{settings}", data.path().display());
    let server = Server::start().await;
    let gateway = TestGateway::new().setting(&place);
    let gateway = gateway.server("x", &server.backend).start().await;
    for (key, status) in [
        ("live", 200),
        ("expired", 401),
        ("revoked", 401),
        (ANN.key, 200),
    ] {
        let http = gateway.http().with_key(key);
        assert_eq!(http.post("/mcp", list()).await.status(), status, "{key}");
    }
    gateway.stop().await;
}

/// What somebody opened is theirs: for others it is not there.
#[tokio::test]
async fn a_session_belongs_to_who_opened_it() {
    let stage = Stage::new(TWO, "").await;
    let (ann, bob) = (stage.http(), stage.gateway.http().with_key(BOB.key));
    let client = stage.client(Front::Streamable).await;
    let session = client.session.clone().unwrap();
    let headers = [
        ("mcp-session-id", session.as_str()),
        ("mcp-protocol-version", "2025-11-25"),
    ];
    let call = r#"{"name":"mcp_x_echo","arguments":{}}"#;
    let call = request("2", "tools/call", call);
    let status = async |http: &Http, verb: &str, body: &str| {
        let all = [&JSON[..], &headers[..]].concat();
        let stream = [&[("accept", "text/event-stream")], &headers[..]].concat();
        let headers = if verb == "GET" { stream } else { all };
        http.send(verb, "/mcp", &headers, body.to_owned())
            .await
            .status()
            .as_u16()
    };
    for verb in ["POST", "GET", "DELETE"] {
        assert_eq!(status(&bob, verb, &call).await, 404, "{verb}");
        assert_eq!(
            status(&stage.gateway.http(), verb, &call).await,
            401,
            "{verb}"
        );
    }
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(status(&bob, "POST", cancel).await, 404);
    assert!(stage.server.seen().is_empty());
    assert_eq!(status(&ann, "POST", &call).await, 200);
    assert_eq!(status(&ann, "DELETE", "").await, 200);
    assert_eq!(status(&ann, "POST", &call).await, 404);
    stage.stop().await;
}

#[tokio::test]
async fn messages_of_old_clients_are_taken_from_their_agent_alone() {
    let stage = Stage::new(TWO, "").await;
    let accept = [("accept", "text/event-stream")];
    let mut events = stage.http().get("/sse", &accept).await.events();
    let endpoint = events.must().await.data.unwrap();
    let ping = request("1", "ping", "{}");
    let bob = stage.gateway.http().with_key(BOB.key);
    assert_eq!(bob.post(&endpoint, ping.clone()).await.status(), 404);
    assert_eq!(
        stage
            .gateway
            .http()
            .post(&endpoint, ping.clone())
            .await
            .status(),
        401
    );
    assert_eq!(stage.http().post(&endpoint, ping).await.status(), 202);
    assert_eq!(
        Envelope::of(&events.message().await).id.as_deref(),
        Some("1")
    );
    stage.stop().await;
}

/// Records name who called, on every transport.
#[tokio::test]
pub(crate) async fn records_name_the_agent() {
    let id = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11";
    let settings = format!(
        "[agents.ann]\nid = \"{id}\"\nteam = \"science\"\n[agents.bob]\n[governance]\nprice = \"0\"\n\
         [governance.teams.science]\nbudget = \"off\"\n"
    );
    let stage = Stage::new(&settings, "").await;
    for front in Front::ALL {
        let call = async |client: &Client| {
            client
                .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
                .await;
            client.answer("1").await.value();
            stage.last()
        };
        let record = call(&stage.client(front).await).await;
        assert_eq!(record.agent_name, "ann", "{front:?}");
        assert_eq!(record.agent_id.to_string(), id);
        assert_eq!(record.team.as_deref(), Some("science"));
        assert_eq!(record.client.as_deref(), Some("test/1"));
        let revision = if front.is_modern() {
            "2026-07-28"
        } else {
            "2025-11-25"
        };
        assert_eq!(record.client_revision.as_deref(), Some(revision));
        let record = call(&stage.gateway.client_of(BOB, front, "/mcp").await).await;
        assert_eq!(record.agent_name, "bob", "{front:?}");
        assert_eq!(record.agent_id, AgentId::from_name("bob"));
        assert_eq!(record.team, None);
    }
    stage.stop().await;
}

async fn status(http: &Http) -> Value {
    value(&http.get("/status", &[]).await.text().await)
}

#[tokio::test]
pub(crate) async fn keys_last_as_long_as_the_config_says() {
    for (setting, days) in [
        ("", Some(365)),
        ("key_lifetime = \"9d\"", Some(9)),
        ("key_lifetime = \"0s\"", None),
    ] {
        let place = Place::new(&format!("[governance]\nauth = \"keys\"\n{setting}\n"));
        assert_eq!(place.run(&["agents", "add", "bot"]).await.code, Some(0));
        let made = place.run(&["keys", "create", "bot", "--json"]).await.json();
        let left = made["expires"].as_str().map(|expires| {
            let expires: jiff::Timestamp = expires.parse().unwrap();
            (expires.duration_since(clock::now()).as_secs() + 86_399) / 86_400
        });
        assert_eq!(left, days, "{setting}: {made}");
    }
}

const BROWSER: [(&str, &str); 1] = [("accept", "text/html")];

/// Neither which servers there are, nor what they have.
async fn strangers_see_states(http: &Http) {
    let states = status(http).await;
    let keys = |value: &Value| {
        let object = value.as_object().unwrap();
        object.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(keys(&states), ["servers", "status"]);
    let servers = states["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    assert!(servers.iter().all(|it| keys(it) == ["state"]), "{states}");
    let page = http.get("/status", &BROWSER).await.text().await;
    assert!(page.contains("<td class=connected>connected"), "{page}");
    let figures = http.get("/metrics", &[]).await.text().await;
    assert!(
        figures.contains("tollbridge_servers{state=\"connected\"} 1"),
        "{figures}"
    );
    for hidden in [
        "broken",
        "\"x\"",
        env!("CARGO_PKG_VERSION"),
        "tools",
        "private",
    ] {
        let told = [&page, &figures]
            .into_iter()
            .any(|text| text.contains(hidden));
        assert!(!told, "{hidden}: {page} {figures}");
    }
    for open in ["/healthz", "/readyz"] {
        assert_eq!(http.get(open, &[]).await.status(), 200);
    }
}

/// An agent that is no admin sees servers, and nothing of what they wrote, their processes and clients.
async fn others_see_how_servers_do(http: &Http) {
    let part = status(http).await;
    let servers = part["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    for server in servers {
        assert!(server["state"].is_string(), "{server}");
        for hidden in ["reason", "pid", "server_info", "last_odd_line", "problems"] {
            assert!(server[hidden].is_null(), "{hidden}: {server}");
        }
        for instance in server["instances"].as_array().into_iter().flatten() {
            assert_eq!(instance["state"], "connected", "{instance}");
            for hidden in ["agent", "session", "pid", "reason", "stderr"] {
                assert!(instance[hidden].is_null(), "{hidden}: {instance}");
            }
        }
    }
    for hidden in ["config", "governance", "sessions"] {
        assert!(part.get(hidden).is_none(), "{hidden}: {part}");
    }
    let page = http.get("/status", &BROWSER).await.text().await;
    assert!(page.contains(" is connected"), "{page}");
    assert!(!page.contains("refused"), "{page}");
    for text in [page, part.to_string()] {
        assert!(!text.contains("told in private"), "{text}");
        assert!(!text.contains("1 sessions"), "{text}");
    }
    for open in ["/healthz", "/readyz"] {
        assert_eq!(http.get(open, &[]).await.status(), 200);
    }
}

/// Browsers run, frame and keep nothing of what we show.
async fn pages_are_shielded(http: &Http) {
    for path in [
        "/status", "/", "/metrics", "/healthz", "/readyz", "/nothing",
    ] {
        let answer = http.get(path, &BROWSER).await;
        let policy = answer.header("content-security-policy").unwrap();
        for part in ["default-src 'none';", "frame-ancestors 'none'"] {
            assert!(
                policy.contains(part) && !policy.contains("unsafe"),
                "{policy}"
            );
        }
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
}

/// With keys the status shows strangers states alone, and agents that are no admins how servers do, and
/// no more.
#[tokio::test]
pub(crate) async fn only_admins_see_everything() {
    let settings = keyed("[agents.ann]\nadmin = true\n[agents.bob]\n[governance]\nprice = \"0\"\n");
    let server = Server::start().await;
    let broken = "command = \"sh\"\nargs = [\"-c\", \"echo told in private >&2; exec sleep 100\"]\n\
                  startup_timeout = \"300ms\"\n";
    let gateway = TestGateway::new()
        .setting(&settings)
        .server("x", &server.backend)
        .section("broken", broken)
        .start()
        .await;
    let _session = gateway.client_of(ANN, Front::Streamable, "/mcp").await;
    let (ann, bob) = (
        gateway.http().with_key(ANN.key),
        gateway.http().with_key(BOB.key),
    );
    let answer = ask_on(&ann, "/mcp", "tools/call", r#"{"name":"mcp_x_echo"}"#).await;
    answer.value();
    let whole = status(&ann).await;
    let of_x = whole["servers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["name"] == "x");
    assert_eq!(of_x.unwrap()["instances"][0]["agent"], "ann", "{whole}");
    assert!(whole.to_string().contains("told in private"), "{whole}");
    assert!(whole["governance"].is_object(), "{whole}");
    assert_eq!(whole["sessions"].as_array().unwrap().len(), 1);
    let session = &whole["sessions"][0];
    assert_eq!(session["agent"], "ann", "{session}");
    assert_eq!(session["session"].as_str().unwrap().len(), 16, "{session}");
    let page = ann.get("/status", &BROWSER).await.text().await;
    for told in [
        "<th>refused<td>none",
        " of ann is connected",
        "told in private",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
    strangers_see_states(&gateway.http()).await;
    strangers_see_states(&gateway.http().with_key("wrong")).await;
    pages_are_shielded(&ann).await;
    others_see_how_servers_do(&bob).await;
    gateway.stop().await;
}

/// An auditor sees as much of the status as an admin, and an admin may be called by its role; who manages a workspace
/// sees what agents see.
#[tokio::test]
pub(crate) async fn auditors_see_everything() {
    for (role, expect) in [
        ("admin", true),
        ("auditor", true),
        ("workspace_admin", false),
        ("agent", false),
    ] {
        let settings = keyed(&format!(
            "[agents.ann]\nrole = \"{role}\"\nteam = \"science\"\n[agents.bob]\n[governance]\nprice = \"0\"\n"
        ));
        let gateway = TestGateway::new().setting(&settings).start().await;
        let shown = status(&gateway.http().with_key(ANN.key)).await;
        assert_eq!(shown["sessions"].is_array(), expect, "{role}: {shown}");
        gateway.stop().await;
    }
}

/// Without keys everybody on this machine sees everything.
#[tokio::test]
pub(crate) async fn without_keys_everybody_is_the_anonymous_agent() {
    let stage = Stage::new("[governance]\nauth = \"anonymous\"\n", "").await;
    let wrong = stage.gateway.http().with_key("wrong");
    let answer = ask_on(&wrong, "/mcp", "tools/call", r#"{"name":"mcp_x_echo"}"#).await;
    answer.value();
    assert_eq!(stage.last().agent_id, AgentId::ANONYMOUS);
    assert!(status(&wrong).await["governance"].is_object());
    stage.stop().await;
    let stage = Stage::new("[agents.ann]\n[governance]\nauth = \"keys\"\n", "").await;
    let answer = wrong_key(&stage).await;
    assert_eq!(answer, 401);
    // Once keys are on, nothing is allowed that no policy allows.
    assert_eq!(stage.must_not("{}").await, "UNAUTHORIZED");
    stage.stop().await;
}

async fn wrong_key(stage: &Stage) -> u16 {
    let wrong = stage.gateway.http().with_key("wrong");
    wrong.post("/mcp", list()).await.status().as_u16()
}

/// Each key of an agent opens, and opens to that agent.
#[tokio::test]
pub(crate) async fn an_agent_may_have_several_keys() {
    let second = "tbk_second_0123456789abcdef0123456789abcdef";
    let settings = keyed(TWO).replace(
        &format!("\"{}\"", ANN.key),
        &format!("\"{}\", \"{second}\"", ANN.key),
    );
    let stage = Stage::new(&settings.replace("[agents.", "[ agents ."), "").await;
    for (who, name) in [(ANN.key, "ann"), (second, "ann"), (BOB.key, "bob")] {
        let http = stage.gateway.http().with_key(who);
        let params = r#"{"name":"mcp_x_echo"}"#;
        ask_on(&http, "/mcp", "tools/call", params).await.value();
        assert_eq!(stage.last().agent_name, name);
    }
    stage.stop().await;
}

/// A disabled agent sees nothing and may do nothing.
#[tokio::test]
pub(crate) async fn a_disabled_agent_may_do_nothing() {
    let settings = "[agents.ann]\nenabled = false\n[agents.bob]\nenabled = true\n[governance]\nprice = \"0\"\n";
    let stage = Stage::new(settings, "").await;
    for front in Front::ALL {
        let client = stage.client(front).await;
        for kind in ["tools", "resources", "prompts"] {
            assert!(client.list(kind).await.is_empty(), "{front:?} {kind}");
        }
        client
            .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        assert_eq!(code_of(&client.answer("1").await), "UNAUTHORIZED");
        assert_eq!(stage.last().rule.as_deref(), Some("agent disabled"));
        let other = stage.gateway.client_of(BOB, front, "/mcp").await;
        assert_eq!(other.list("tools").await.len(), 2);
    }
    assert!(stage.server.seen().is_empty());
    stage.stop().await;
}

/// Through other profiles than its own, and beside profiles, an agent sees nothing and may do nothing.
#[tokio::test]
pub(crate) async fn an_agent_uses_its_profiles_only() {
    let settings = "[agents.ann]\nprofiles = [\"p\"]\n[agents.bob]\n[profiles.p]\n[profiles.q]\n\
                    [governance]\nprice = \"0\"\n";
    let stage = Stage::new(settings, "").await;
    let tries = async |who: Who<'_>, front, path| {
        let client = stage.gateway.client_of(who, front, path).await;
        let listed = client.list("tools").await.len();
        client
            .ask("1", "tools/call", &format!(r#""name":"{}""#, echo_on(path)))
            .await;
        let answer = client.answer("1").await;
        if answer.error.is_some() {
            assert_eq!(answer.failure()["code"], -32003, "{path}");
            assert_eq!(stage.last().rule.as_deref(), Some("profile"));
        }
        (listed, answer.error.is_none())
    };
    for front in Front::ALL {
        assert_eq!(
            tries(ANN, front, "/mcp/profiles/p").await,
            (2, true),
            "{front:?}"
        );
        for closed in ["/mcp/profiles/q", "/mcp", "/mcp/servers/x"] {
            let tried = tries(ANN, front, closed).await;
            assert_eq!(tried, (0, false), "{front:?} {closed}");
        }
        for open in ["/mcp", "/mcp/servers/x"] {
            let tried = tries(BOB, front, open).await;
            assert_eq!(tried, (2, true), "{front:?} {open}");
        }
        assert_eq!(
            tries(BOB, front, "/mcp/profiles/q").await,
            (2, true),
            "{front:?}"
        );
    }
    assert_eq!(stage.server.seen().len(), 4 * Front::ALL.len());
    stage.stop().await;
}

/// Its empty lists do not say why they are: its client is told.
#[tokio::test]
pub(crate) async fn who_is_shown_nothing_is_told_why() {
    let settings = "[agents.ann]\nprofiles = [\"p\", \"q\"]\n[agents.bob]\nenabled = false\n\
                    [profiles.p]\n[profiles.q]\n[profiles.r]\n[governance]\n";
    let stage = Stage::new(settings, "").await;
    let elsewhere = "Nothing is listed here: this agent may only use the profiles `p`, `q`. ";
    let ways = |front| match front {
        Front::Modern | Front::Streamable => "Connect to /mcp/profiles/p or /mcp/profiles/q.",
        Front::Sse => "Connect to /sse/profiles/p or /sse/profiles/q.",
        Front::Stdio | Front::StdioModern => {
            "Run `tollbridge stdio` with --profile p or --profile q."
        }
    };
    let disabled = "Nothing is listed here: this agent is disabled.";
    for (who, path, expect) in [
        (ANN, "/mcp", Some(elsewhere)),
        (ANN, "/mcp/servers/x", Some(elsewhere)),
        (ANN, "/mcp/profiles/r", Some(elsewhere)),
        (ANN, "/mcp/profiles/p", None),
        (BOB, "/mcp", Some(disabled)),
        (BOB, "/mcp/profiles/p", Some(disabled)),
    ] {
        for (front, said) in stage.introductions(who, path).await {
            let found = said.get("instructions").map(|text| text.as_str().unwrap());
            let expect = expect.map(|text| match text {
                _ if text == elsewhere => [text, ways(front)].concat(),
                _ => text.to_owned(),
            });
            assert_eq!(found, expect.as_deref(), "{} {path} {front:?}", who.name);
        }
    }
    stage.stop().await;
}

/// What `echo` is called on a route.
fn echo_on(path: &str) -> &'static str {
    if path.starts_with("/mcp/servers/") {
        "echo"
    } else {
        "mcp_x_echo"
    }
}
