//! Servers that fail and come back: what is shown of them, who waits, and what is done twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::support::{
    ALL, Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon, way::Way,
};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// The states that `/status` remembers of a server, the current one last.
fn states(status: &Value) -> Vec<String> {
    let history = status["history"].as_array().unwrap();
    let state = |past: &Value| past["state"].as_str().unwrap().to_owned();
    history.iter().map(state).collect()
}

/// Calls `echo`; the answer or the error.
async fn call(client: &Client, id: usize) -> Result<Value, Value> {
    let id = id.to_string();
    client.ask(&id, "tools/call", ECHO).await;
    let answer = client.answer(&id).await;
    if answer.error.is_some() {
        return Err(answer.failure());
    }
    Ok(answer.value())
}

async fn streamable(gateway: &Gateway) -> Client {
    gateway.client(Front::Streamable, "/mcp", "{}").await
}

/// A server that drops and comes back was connected, disconnected, connecting, connected; each
/// state once, with its time and reason.
#[tokio::test]
async fn each_state_is_shown_once() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let status = gateway.status("x").await;
    assert_eq!(states(&status), ["connecting", "connected"]);
    assert!(status["reason"].is_null(), "{status}");
    backend.on_request(|_| Some(Auto::Die));
    backend.die();
    let tried = |s: &Value| s["failed_starts"].as_u64() >= Some(3);
    let status = gateway.status_until("x", tried).await;
    assert_eq!(
        states(&status),
        ["connecting", "connected", "disconnected"],
        "however often it is tried again"
    );
    let last = status["history"].as_array().unwrap().last().unwrap();
    assert_eq!(status["state"], "disconnected");
    assert_eq!(status["since"], last["at"]);
    assert!(last["reason"].as_str().unwrap().contains("lost"), "{last}");
    backend.on_request(|_| None);
    let back = |s: &Value| s["state"] == "connected";
    let status = gateway.status_until("x", back).await;
    let tail = &states(&status)[2..];
    assert_eq!(tail, ["disconnected", "connecting", "connected"]);
    assert_eq!(status["last_error"]["at"], last["at"], "{status}");
    assert!(status["reason"].is_null(), "{status}");
    let page = gateway
        .http()
        .get("/status", &[("accept", "text/html")])
        .await;
    let page = page.text().await;
    assert!(page.contains(&format!("{} disconnected", last["at"].as_str().unwrap())));
    gateway.stop().await;
}

/// A server that is greeted and cannot be listed is not connected.
#[tokio::test]
async fn connected_means_listed() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(|request| {
        let refusal = r#"{"code":-32603,"message":"no tools today"}"#;
        (request.method() == "tools/list").then(|| Auto::Error(refusal.to_owned()))
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let status = gateway.status("x").await;
    assert_eq!(states(&status), ["connecting", "degraded"], "{status}");
    assert!(
        status["reason"]
            .as_str()
            .unwrap()
            .contains("no tools today")
    );
    gateway.stop().await;
}

/// Lets the server answer calls as `answer` says, and counts them.
fn counting(backend: &Backend, answer: Auto) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    backend.on_request(move |request| {
        (request.method() == "tools/call").then(|| {
            counted.fetch_add(1, Ordering::SeqCst);
            answer.clone()
        })
    });
    count
}

/// Once the breaker is open nothing reaches the server; when its time is over one call does, and
/// the others follow.
#[tokio::test]
async fn an_open_breaker_answers_at_once() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let breaker = "breaker = { failures = 2, open_for = \"2s\" }";
    let gateway = TestGateway::new()
        .server_with("x", &backend, breaker)
        .start()
        .await;
    let client = streamable(&gateway).await;
    let count = counting(&backend, Auto::Status(502));
    for id in 0..2 {
        let failure = call(&client, id).await.unwrap_err();
        assert_eq!(failure["data"]["reason"], "bad_answer", "{failure}");
    }
    let failure = call(&client, 2).await.unwrap_err();
    assert_eq!(failure["data"]["reason"], "breaker_open", "{failure}");
    assert_eq!(failure["data"]["server"], "x");
    let wait = failure["data"]["retryAfterMs"].as_u64().unwrap();
    assert!((1..=2000).contains(&wait), "{failure}");
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.starts_with("server `x`: circuit breaker open"),
        "{message}"
    );
    assert_eq!(count.load(Ordering::SeqCst), 2, "nothing more reached it");
    let status = gateway.status("x").await;
    assert_eq!(status["breaker"]["state"], "open", "{status}");
    assert_eq!(status["breaker"]["opened"], 1);

    let count = counting(&backend, Auto::Result("{}".to_owned()));
    let mut id = 3;
    let passes = async {
        while call(&client, id).await.is_err() {
            id += 1;
        }
    };
    soon("a call is let through", passes).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let status = gateway.status("x").await;
    assert_eq!(status["breaker"]["state"], "closed", "{status}");
    gateway.stop().await;
}

/// The call that is on trial may ask its client something; the others do not wait for a person.
#[tokio::test]
async fn a_trial_that_asks_a_person_closes_the_breaker() {
    let backend = Backend::start(Transport::HttpEvents, Era::Legacy).await;
    let breaker = "breaker = { failures = 1, open_for = \"100ms\" }";
    let gateway = TestGateway::new()
        .server_with("x", &backend, breaker)
        .start()
        .await;
    let able = gateway
        .client(Front::Streamable, "/mcp", r#"{"elicitation":{}}"#)
        .await;
    let client = streamable(&gateway).await;
    counting(&backend, Auto::Status(502));
    call(&client, 1).await.unwrap_err();
    let is = |state: &'static str| move |status: &Value| status["breaker"]["state"] == state;
    gateway.status_until("x", is("open")).await;

    backend.on_request(|envelope| (envelope.method() == "tools/call").then_some(Auto::Hand));
    let is_over = |status: &Value| status["breaker"]["retry_in_ms"] == 0;
    gateway.status_until("x", is_over).await;
    able.ask("1", "tools/call", r#""name":"mcp_x_echo""#).await;
    let trial = backend.asked("tools/call").await;
    gateway.status_until("x", is("half_open")).await;
    trial
        .ask("9", "elicitation/create", r#"{"message":"?"}"#)
        .await;
    let question = able.must("elicitation/create").await;
    gateway.status_until("x", is("closed")).await;
    counting(&backend, Auto::Result("{}".to_owned()));
    call(&client, 2).await.unwrap();
    able.respond(question.id.as_deref().unwrap(), r#"{"action":"decline"}"#)
        .await;
    backend.answered().await;
    trial.answer("{}").await;
    able.answer("1").await.value();
    gateway.stop().await;
}

/// What a tool answers is its own business, however often it is an error.
#[tokio::test]
async fn errors_of_tools_open_no_breaker() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let breaker = "breaker = { failures = 1, open_for = \"1h\" }";
    let gateway = TestGateway::new()
        .server_with("x", &backend, breaker)
        .start()
        .await;
    let client = streamable(&gateway).await;
    let own = r#"{"code":-32603,"message":"out of paper"}"#.to_owned();
    let failed = r#"{"content":[],"isError":true}"#.to_owned();
    for answer in [Auto::Error(own), Auto::Result(failed)] {
        let count = counting(&backend, answer);
        for id in 0..3 {
            drop(call(&client, id).await);
        }
        assert_eq!(count.load(Ordering::SeqCst), 3);
    }
    let status = gateway.status("x").await;
    assert_eq!(status["breaker"]["state"], "closed", "{status}");
    gateway.stop().await;
}

/// Two tools that may be called twice, and one that may not.
const TOOLS: &str = r#"[{"name":"reads","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"sets","inputSchema":{"type":"object"},"annotations":{"idempotentHint":true}},{"name":"adds","inputSchema":{"type":"object"}}]"#;

/// A server of [`TOOLS`] that counts what it executes, and dies before it answers for so many
/// times each time [`Counted::dying`] was called.
struct Counted {
    backend: Backend,
    executed: Arc<AtomicUsize>,
    deaths: Arc<AtomicUsize>,
    /// The id of the next request.
    next: AtomicUsize,
}

impl Counted {
    async fn start(transport: Transport, era: Era) -> Self {
        let backend = Backend::start(transport, era).await;
        backend.set_list("tools/list", TOOLS);
        let executed = Arc::new(AtomicUsize::new(0));
        let deaths = Arc::new(AtomicUsize::new(0));
        let (counted, dying) = (Arc::clone(&executed), Arc::clone(&deaths));
        backend.on_request(move |request| {
            let result = match request.method() {
                "tools/call" => r#"{"content":[]}"#,
                "resources/read" => r#"{"contents":[]}"#,
                "prompts/get" => r#"{"messages":[]}"#,
                _ => return None,
            };
            counted.fetch_add(1, Ordering::SeqCst);
            let less = |left: usize| left.checked_sub(1);
            let dies = dying
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok();
            Some(if dies {
                Auto::Die
            } else {
                Auto::Result(result.to_owned())
            })
        });
        Self {
            backend,
            executed,
            deaths,
            next: AtomicUsize::new(1),
        }
    }

    /// Makes a request during which the server dies so many times; whether it was answered, and
    /// how often it was executed.
    async fn dying(
        &self,
        times: usize,
        client: &Client,
        method: &str,
        name: &str,
    ) -> (bool, usize) {
        self.executed.store(0, Ordering::SeqCst);
        self.deaths.store(times, Ordering::SeqCst);
        let id = self.next.fetch_add(1, Ordering::SeqCst).to_string();
        client.ask(&id, method, name).await;
        let answer = client.answer(&id).await;
        let (answered, executed) = (
            answer.result.is_some(),
            self.executed.load(Ordering::SeqCst),
        );
        if !answered {
            // Between two connections it is not sent at all.
            let reason = if executed == 0 { "unavailable" } else { "lost" };
            assert_eq!(answer.failure()["data"]["reason"], reason, "{answer:?}");
        }
        (answered, executed)
    }
}

/// What may be done twice is done again after a crash, once; what may not is never done twice.
#[tokio::test]
async fn after_a_crash_only_safe_calls_are_made_again() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::WebSocket, Era::Modern),
        (Transport::Http, Era::Legacy),
        (Transport::HttpEvents, Era::Modern),
    ] {
        for capabilities in ["{}", r#"{"sampling":{}}"#] {
            let server = Counted::start(transport, era).await;
            let keys = "breaker = { failures = 0 }";
            let gateway = TestGateway::new().server_with("x", &server.backend, keys);
            let gateway = gateway.start().await;
            let client = gateway
                .client(Front::Streamable, "/mcp", capabilities)
                .await;
            for (method, name, safe) in [
                ("tools/call", r#""name":"mcp_x_reads""#, true),
                ("tools/call", r#""name":"mcp_x_sets""#, true),
                ("resources/read", r#""uri":"x+file:///a.txt""#, true),
                ("prompts/get", r#""name":"mcp_x_greet""#, true),
                ("tools/call", r#""name":"mcp_x_adds""#, false),
            ] {
                let what = format!("{transport:?} {era:?} {capabilities} {method} {name}");
                let expect = if safe { (true, 2) } else { (false, 1) };
                let found = server.dying(1, &client, method, name).await;
                assert_eq!(found, expect, "{what}");
                if safe {
                    let found = server.dying(2, &client, method, name).await;
                    assert_eq!(found, (false, 2), "{what}: once more, not for ever");
                }
                // The next one begins with a connection.
                let found = async { while !server.dying(0, &client, method, name).await.0 {} };
                soon(&format!("{what}: it is served again"), found).await;
            }
            gateway.stop().await;
        }
    }
}

/// A call that has reached a server which is gone for good was lost: that nothing came of the second
/// attempt makes it no call that was never made.
#[tokio::test]
async fn a_repeated_call_that_finds_no_server_was_lost() {
    for (transport, era) in ALL {
        for name in ["reads", "adds"] {
            let backend = Backend::start(transport, era).await;
            backend.set_list("tools/list", TOOLS);
            backend.on_request(|request| (request.method() == "tools/call").then_some(Auto::Leave));
            let keys = "retry = { base = \"10ms\" }\nbreaker = { failures = 0 }";
            let gateway = TestGateway::new().server_with("x", &backend, keys);
            let gateway = gateway.start().await;
            let client = streamable(&gateway).await;
            let what = format!("{transport:?} {era:?} {name}");
            let name = format!(r#""name":"mcp_x_{name}""#);
            client.ask("1", "tools/call", &name).await;
            let failure = client.answer("1").await.failure();
            let data = &failure["data"];
            assert_eq!(data["code"], "LOST", "{what}: {failure}");
            assert_eq!(data["retryable"], false, "{what}: {failure}");
            // Over HTTP a lost exchange is no lost server, until a health check has missed it.
            if matches!(
                transport,
                Transport::Stdio | Transport::WebSocket | Transport::Sse
            ) {
                assert_eq!(data["state"], "disconnected", "{what}: {failure}");
            }
            gateway.stop().await;
        }
    }
}

/// Who calls while a server is started again waits for it; without grace, or when it does not come
/// back, the answer is an error, soon.
#[tokio::test]
async fn calls_wait_for_a_server_that_is_started_again() {
    for (grace, waits) in [("30s", true), ("0s", false)] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let keys =
            format!("grace = \"{grace}\"\nretry = {{ base = \"1s\", max = \"1s\", jitter = 0.0 }}");
        let gateway = TestGateway::new()
            .server_with("x", &backend, &keys)
            .start()
            .await;
        let client = gateway
            .client(Front::Streamable, "/mcp/servers/x", "{}")
            .await;
        counting(&backend, Auto::Result("{}".to_owned()));
        backend.die();
        let is_away = |s: &Value| s["state"] == "disconnected" || s["state"] == "failed";
        gateway.status_until("x", is_away).await;
        client
            .ask("1", "resources/read", r#""uri":"file:///a.txt""#)
            .await;
        if waits {
            let asked = backend.asked("resources/read").await;
            asked.answer(r#"{"contents":[]}"#).await;
        }
        assert_eq!(client.answer("1").await.result.is_some(), waits, "{grace}");
        gateway.stop().await;
    }
}

/// Behind a way that can be shut, and tried again in an hour where nobody calls.
async fn seldom_tried(more: &str) -> (Backend, Way, TestGateway) {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    counting(&backend, Auto::Result("{}".to_owned()));
    let way = Way::new(backend.address());
    let keys = format!(
        "url = \"{}\"\ntransport = \"http\"\n{more}\nbreaker = {{ failures = 0 }}\n\
         health = {{ interval = \"50ms\", failures = 1 }}\n\
         retry = {{ base = \"1h\", max = \"1h\", jitter = 0.0 }}",
        way.url()
    );
    let gateway = TestGateway::new().section("x", &keys);
    (backend, way, gateway)
}

/// Calls until one is answered.
async fn call_until_served(client: &Client, what: &str) {
    let mut id = 1;
    let is_served = async {
        while call(client, id).await.is_err() {
            id += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(&format!("{what}: a call is answered"), is_served).await;
}

/// A server that could not be reached when we started is tried as soon as somebody calls, whether its
/// items are known from before or not.
#[tokio::test]
async fn a_call_has_a_server_tried_that_was_never_there() {
    for is_listed in [true, false] {
        let (_backend, mut way, plan) = seldom_tried("grace = \"1h\"").await;
        if is_listed {
            plan.start().await.stop().await;
        }
        way.shut().await;
        let gateway = plan.launch().await;
        let failed = |status: &Value| status["state"] == "failed";
        gateway.status_until("x", failed).await;
        let client = streamable(&gateway).await;
        let failure = call(&client, 0).await.unwrap_err();
        assert_eq!(failure["data"]["code"], "UNAVAILABLE", "{failure}");
        way.open();
        call_until_served(&client, &format!("listed {is_listed}")).await;
        gateway.stop().await;
    }
}

/// So is one that was lost, on whichever connection.
#[tokio::test]
async fn a_call_has_a_server_tried_that_was_lost() {
    for (grace, capabilities) in [("1h", "{}"), ("1h", r#"{"sampling":{}}"#), ("50ms", "{}")] {
        let (_backend, mut way, plan) = seldom_tried(&format!("grace = \"{grace}\"")).await;
        let gateway = plan.start().await;
        let client = gateway
            .client(Front::Streamable, "/mcp", capabilities)
            .await;
        call(&client, 0).await.unwrap();
        way.shut().await;
        let is_down = |it: &Value| it["state"] == "disconnected" || it["state"] == "failed";
        let are_down = |status: &Value| {
            let instances = status["instances"].as_array();
            is_down(status) && instances.is_none_or(|all| all.iter().all(is_down))
        };
        gateway.status_until("x", are_down).await;
        if grace == "50ms" {
            gateway.tools_until(<[String]>::is_empty).await;
        }
        way.open();
        call_until_served(&client, &format!("{grace} {capabilities}")).await;
        gateway.stop().await;
    }
}

/// So is one whose connections of a pool could not be made anew.
#[tokio::test]
async fn a_call_has_a_server_tried_whose_pool_failed() {
    let (_backend, mut way, plan) = seldom_tried("isolation = \"pool\"\npool_size = 2").await;
    let gateway = plan.start().await;
    let client = streamable(&gateway).await;
    way.shut().await;
    let is_away = |status: &Value| status["state"] == "disconnected";
    gateway.status_until("x", is_away).await;
    call(&client, 0).await.unwrap_err();
    let failure = call(&client, 1).await.unwrap_err();
    let wait = failure["data"]["retryAfterMs"].as_u64();
    assert!(wait > Some(60_000), "its pause is an hour: {failure}");
    way.open();
    call_until_served(&client, "of a pool").await;
    gateway.stop().await;
}

/// However many calls come while it is away, a server is tried once in two seconds for them.
#[tokio::test]
async fn calls_have_a_server_tried_at_a_pace() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let keys = "era = \"legacy\"\nbreaker = { failures = 0 }\n\
                retry = { base = \"1h\", max = \"1h\", jitter = 0.0 }";
    let gateway = TestGateway::new().server_with("x", &backend, keys);
    let gateway = gateway.start().await;
    let client = streamable(&gateway).await;
    backend.on_request(|_| Some(Auto::Die));
    backend.die();
    let start = Instant::now();
    let tries = |status: &Value| status["failed_starts"].as_u64().unwrap();
    let mut id = 0;
    let several = async {
        while tries(&gateway.status("x").await) < 2 {
            drop(call(&client, id).await);
            id += 1;
        }
    };
    soon("it is tried several times", several).await;
    let found = tries(&gateway.status("x").await);
    let most = start.elapsed().as_secs() / 2 + 1;
    assert!(found <= most, "{found} in {:?}", start.elapsed());
    gateway.stop().await;
}

/// The items of a server that is away for long disappear and come back, and clients are told.
#[tokio::test]
async fn items_go_after_the_grace_period_and_come_back() {
    const CHANGED: &str = "notifications/tools/list_changed";
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let keys = "grace = \"300ms\"";
    let gateway = TestGateway::new()
        .server_with("x", &backend, keys)
        .start()
        .await;
    let client = gateway.client(Front::Modern, "/mcp", "{}").await;
    let filter = r#""notifications":{"toolsListChanged":true}"#;
    client.ask("1", "subscriptions/listen", filter).await;
    client
        .must("notifications/subscriptions/acknowledged")
        .await;
    backend.on_request(|_| Some(Auto::Die));
    backend.die();
    client.must(CHANGED).await;
    assert_eq!(client.list("tools").await.len(), 0);
    let failed = |s: &Value| s["state"] == "failed";
    let status = gateway.status_until("x", failed).await;
    let tail = ["connected", "disconnected", "failed"];
    assert_eq!(states(&status)[1..], tail, "{status}");
    assert!(status["reason"].is_string(), "{status}");
    backend.on_request(|_| None);
    client.must(CHANGED).await;
    assert_eq!(client.list("tools").await.len(), 2);
    gateway.stop().await;
}

/// A server that is back within the grace period was never gone from the lists.
#[tokio::test]
async fn items_of_a_server_that_is_back_soon_stay() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = streamable(&gateway).await;
    client.listen().await;
    backend.die();
    let back = |s: &Value| s["state"] == "connected" && s["restarts"] == 1;
    gateway.status_until("x", back).await;
    assert_eq!(client.list("tools").await.len(), 2);
    client.is_quiet().await;
    gateway.stop().await;
}

const HASTY: &str = "health = { interval = \"50ms\", timeout = \"500ms\", failures = 3 }";

/// A server that hangs is degraded, then connected anew.
#[tokio::test]
async fn a_server_that_hangs_is_connected_anew() {
    for (transport, era, method) in [
        (Transport::Stdio, Era::Legacy, "ping"),
        (Transport::Http, Era::Legacy, "ping"),
        (Transport::WebSocket, Era::Modern, "server/discover"),
    ] {
        let backend = Backend::start(transport, era).await;
        let gateway = TestGateway::new()
            .server_with("x", &backend, HASTY)
            .start()
            .await;
        let asked = AtomicUsize::new(0);
        backend.on_request(move |request| {
            let hangs = request.method() == method && asked.fetch_add(1, Ordering::SeqCst) < 3;
            hangs.then_some(Auto::Nothing)
        });
        let back = |s: &Value| s["state"] == "connected" && s["restarts"] == 1;
        let status = gateway.status_until("x", back).await;
        let tail = [
            "connected",
            "degraded",
            "disconnected",
            "connecting",
            "connected",
        ];
        assert_eq!(states(&status)[1..], tail, "{status}");
        let reason = status["history"][2]["reason"].as_str().unwrap();
        assert!(reason.contains("health check"), "{reason}");
        let reason = status["history"][3]["reason"].as_str().unwrap();
        assert!(reason.contains("missed 3 health checks"), "{reason}");
        gateway.stop().await;
    }
}

/// One missed check ends nothing; the way back is a listing.
#[tokio::test]
async fn one_missed_check_is_degraded_only() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .server_with("x", &backend, HASTY)
        .start()
        .await;
    let asked = AtomicUsize::new(0);
    backend.on_request(move |request| {
        let hangs = request.method() == "ping" && asked.fetch_add(1, Ordering::SeqCst) == 0;
        hangs.then_some(Auto::Nothing)
    });
    let back = |s: &Value| states(s)[1..] == ["connected", "degraded", "connected"];
    let status = gateway.status_until("x", back).await;
    assert_eq!(status["restarts"], 0, "{status}");
    gateway.stop().await;
}

/// A check that is answered with an error is answered: the server is there, and no other one.
#[tokio::test]
async fn a_check_that_is_answered_with_an_error_ends_nothing() {
    let often = "health = { interval = \"50ms\", timeout = \"10s\", failures = 3 }";
    for transport in [Transport::Stdio, Transport::Http, Transport::WebSocket] {
        let backend = Backend::start(transport, Era::Modern).await;
        let gateway = TestGateway::new()
            .server_with("x", &backend, often)
            .start()
            .await;
        let client = streamable(&gateway).await;
        client.ask("1", "tools/call", ECHO).await;
        let call = backend.asked("tools/call").await;
        backend.on_request(|request| {
            let error = r#"{"code":-32603,"message":"the database is down"}"#;
            (request.method() == "server/discover").then(|| Auto::Error(error.to_owned()))
        });
        let before = gateway.status("x").await["health_checks"]["answered"]
            .as_u64()
            .unwrap();
        let checked = |s: &Value| s["health_checks"]["answered"].as_u64() > Some(before + 2);
        let status = gateway.status_until("x", checked).await;
        assert_eq!(status["state"], "connected", "{status}");
        assert_eq!(status["restarts"], 0, "{status}");
        call.answer(r#"{"content":[],"resultType":"complete"}"#)
            .await;
        assert!(client.answer("1").await.result.is_some(), "{transport:?}");
        gateway.stop().await;
    }
}

/// A server that does one thing at a time answers no check meanwhile, and is left alone.
#[tokio::test]
async fn a_busy_server_is_left_alone() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .server_with("x", &backend, HASTY)
        .start()
        .await;
    let client = streamable(&gateway).await;
    client.ask("1", "tools/call", ECHO).await;
    let call = backend.asked("tools/call").await;
    backend.on_request(|request| (request.method() == "ping").then_some(Auto::Nothing));
    let missed = |s: &Value| {
        s["reason"]
            .as_str()
            .is_some_and(|r| r.contains("missed 6 health"))
    };
    let status = gateway.status_until("x", missed).await;
    assert_eq!(status["state"], "degraded", "{status}");
    backend.on_request(|_| None);
    call.answer("{}").await;
    assert!(client.answer("1").await.result.is_some());
    let well = |s: &Value| s["state"] == "connected";
    let status = gateway.status_until("x", well).await;
    assert_eq!(status["restarts"], 0, "{status}");
    gateway.stop().await;
}

/// A server that crashes on each call is not started for each call, whoever calls.
#[tokio::test]
async fn a_crash_loop_costs_few_starts() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let keys = "breaker = { failures = 0 }\n\
                retry = { base = \"1ms\", max = \"1ms\", jitter = 0.0, starts_per_minute = 3 }";
    let gateway = TestGateway::new()
        .server_with("x", &backend, keys)
        .start()
        .await;
    let client = gateway
        .client(Front::Streamable, "/mcp", r#"{"sampling":{}}"#)
        .await;
    let count = counting(&backend, Auto::Die);
    let mut last = Value::Null;
    for id in 0..20 {
        last = call(&client, id).await.unwrap_err();
    }
    assert_eq!(count.load(Ordering::SeqCst), 3);
    assert_eq!(last["data"]["reason"], "starts_limited", "{last}");
    assert_eq!(last["data"]["retryable"], true, "{last}");
    let message = last["message"].as_str().unwrap();
    assert!(message.contains("starts_per_minute"), "{message}");
    let wait = last["data"]["retryAfterMs"].as_u64().unwrap();
    assert!((1..=60_000).contains(&wait), "{last}");
    // One for the catalog, one for what is listed for clients that can be asked, three in vain.
    assert!(backend.greeted() <= 5, "{} starts", backend.greeted());
    gateway.stop().await;
}

/// Each process counts where one attempt starts two: it may be of an old server that exits when it
/// is asked for the modern era.
#[tokio::test]
async fn starts_of_processes_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let keys = format!(
        "command = \"sh\"\nargs = [\"-c\", \"echo >> {}; exit 3\"]\n\
         retry = {{ base = \"1ms\", max = \"1ms\", jitter = 0.0, starts_per_minute = 4 }}",
        starts.display()
    );
    let gateway = TestGateway::new().section("x", &keys).launch().await;
    let held = |status: &Value| status["held_back_until"].is_string();
    let status = gateway.status_until("x", held).await;
    assert_eq!(status["state"], "failed", "{status}");
    let until: jiff::Timestamp = status["held_back_until"].as_str().unwrap().parse().unwrap();
    assert!(until > jiff::Timestamp::now(), "{status}");
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("retry.starts_per_minute"), "{reason}");
    let started = std::fs::read_to_string(&starts).unwrap().len();
    assert_eq!(started, 4, "two attempts");
    let client = streamable(&gateway).await;
    let failure = call(&client, 1).await.unwrap_err();
    assert_eq!(failure["data"]["reason"], "starts_limited", "{failure}");
    assert!(
        failure["data"]["retryAfterMs"].as_u64() > Some(0),
        "{failure}"
    );
    gateway.stop().await;
}

/// Calls that have a server tried use up half of the starts at most, also where one attempt starts two
/// processes: others that are started for are held back by nothing.
#[tokio::test]
async fn calls_use_up_half_of_the_starts() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let keys = format!(
        "command = \"sh\"\nargs = [\"-c\", \"echo >> {}; exit 3\"]\n\
         breaker = {{ failures = 0 }}\n\
         retry = {{ base = \"1h\", max = \"1h\", jitter = 0.0, starts_per_minute = 8 }}",
        starts.display()
    );
    let gateway = TestGateway::new().section("x", &keys).launch().await;
    let failed = |status: &Value| status["state"] == "failed";
    gateway.status_until("x", failed).await;
    let client = streamable(&gateway).await;
    let calls = async {
        for id in 1.. {
            let failure = call(&client, id).await.unwrap_err();
            if failure["data"]["reason"] == "starts_limited" {
                return failure;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("numbers do not end")
    };
    let failure = soon("calls are told", calls).await;
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.contains("4 failed starts within a minute"),
        "{message}"
    );
    let started = std::fs::read_to_string(&starts).unwrap().len();
    assert_eq!(started, 6, "one attempt by itself, two for calls");
    let status = gateway.status("x").await;
    assert!(status["held_back_until"].is_null(), "{status}");
    gateway.stop().await;
}
