//! Several instances of one server: which serves a call, and what happens when one is lost.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tokio::time::timeout;

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, backend::Asked,
};

const CALL: &str = r#""name":"mcp_x_echo""#;
const DONE: &str = r#"{"content":[]}"#;

/// A replica in the config.
fn replica(backend: &Backend, keys: &str) -> String {
    let reached = backend.config().trim().replace('\n', ", ");
    format!("{{ {reached}, {keys} }}")
}

async fn two() -> (Backend, Backend) {
    let transport = Transport::WebSocket;
    (
        Backend::start(transport, Era::Legacy).await,
        Backend::start(transport, Era::Legacy).await,
    )
}

async fn gateway(top: &str, replicas: &[String], keys: &str) -> Gateway {
    let keys = format!("replicas = [{}]\n{keys}", replicas.join(", "));
    let gateway = TestGateway::new().setting(top).governed();
    let gateway = gateway.section("x", &keys).start().await;
    let all_up = |status: &Value| {
        let replicas = status["replicas"].as_array().unwrap();
        replicas.iter().all(|one| one["state"] == "connected")
    };
    gateway.status_until("x", all_up).await;
    gateway
}

async fn client(gateway: &Gateway) -> Client {
    gateway.client(Front::Streamable, "/mcp", "{}").await
}

async fn ask(client: &Client, backend: &Backend, id: &str) -> Asked {
    client.ask(id, "tools/call", CALL).await;
    backend.asked("tools/call").await
}

async fn call(client: &Client, backend: &Backend, id: &str) {
    ask(client, backend, id).await.answer(DONE).await;
    client.answer(id).await;
}

/// From now on no connection to it comes about.
fn lose(backend: &Backend) {
    backend.on_request(|request| {
        let greets = ["initialize", "server/discover"].contains(&request.method());
        greets.then_some(Auto::Die)
    });
    backend.die();
}

#[tokio::test]
async fn the_first_serves_until_it_is_lost() {
    let (a, b) = two().await;
    let replicas = [replica(&a, ""), replica(&b, "")].map(|one| one.replace(",  }", " }"));
    let gateway = gateway("", &replicas, "").await;
    let client = client(&gateway).await;
    call(&client, &a, "1").await;
    let asked = ask(&client, &a, "2").await;
    lose(&a);
    let lost = client.answer("2").await.failure();
    assert_eq!(lost["data"]["reason"], "lost", "{lost}");
    drop(asked);
    for id in ["3", "4"] {
        call(&client, &b, id).await;
    }
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    let is_shown = |status: &Value| status["state"] == "connected";
    let status = gateway.status_until("x", is_shown).await;
    let states = ["1", "2"].map(|name| state_of(&status, name));
    assert_ne!(states[0], "connected", "{status}");
    assert_eq!(states[1], "connected", "{status}");
    gateway.stop().await;
}

fn state_of<'s>(status: &'s Value, name: &str) -> &'s str {
    let mut replicas = status["replicas"].as_array().unwrap().iter();
    let replica = replicas.find(|one| one["name"] == name).unwrap();
    replica["state"].as_str().unwrap()
}

/// What is asked about a task goes to the replica that began it, whoever asks: another would say that there
/// is none.
#[tokio::test]
async fn a_task_is_asked_for_where_it_began() {
    let (a, b) = two().await;
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let gateway = gateway("", &replicas, "").await;
    let path = "/mcp/servers/x";
    let wish = r#""name":"echo","task":{}"#;
    let begin = async |client: &Client, at: &Backend, id: &str| {
        client.ask("1", "tools/call", wish).await;
        let begun = format!(r#"{{"task":{{"taskId":"{id}","status":"working"}}}}"#);
        at.asked("tools/call").await.answer(&begun).await;
        client.answer("1").await.value();
    };
    let ask = async |client: &Client, at: &Backend, method: &str, id: &str| {
        client
            .ask("2", method, &format!(r#""taskId":"{id}""#))
            .await;
        at.asked(method).await.answer("{}").await;
        client.answer("2").await.value();
    };
    let first = gateway.client(Front::Streamable, path, "{}").await;
    begin(&first, &a, "t").await;
    let second = gateway.client(Front::Streamable, path, "{}").await;
    // While it is out of order its calls go elsewhere, and begin tasks there.
    lose(&a);
    let is_lost = |status: &Value| state_of(status, "a") != "connected";
    gateway.status_until("x", is_lost).await;
    begin(&second, &b, "u").await;
    // Nobody else is asked.
    first.ask("3", "tasks/get", r#""taskId":"t""#).await;
    let failure = first.answer("3").await.failure();
    assert_eq!(failure["data"]["code"], "UNAVAILABLE", "{failure}");
    assert_eq!(failure["data"]["retryable"], true, "{failure}");
    a.on_request(|_| None);
    let is_back = |status: &Value| state_of(status, "a") == "connected";
    in_time(&gateway, is_back).await;
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        for client in [&first, &second] {
            ask(client, &a, method, "t").await;
            ask(client, &b, method, "u").await;
        }
    }
    // The session itself is where it was.
    let plain = r#""name":"echo""#;
    second.ask("4", "tools/call", plain).await;
    b.asked("tools/call").await.answer(DONE).await;
    second.answer("4").await.value();
    gateway.stop().await;
}

/// One that cannot be reached costs no call.
#[tokio::test]
async fn a_call_that_reached_none_goes_to_the_next() {
    let b = Backend::start(Transport::Http, Era::Legacy).await;
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let replicas = format!(
        "replicas = [{{ url = \"http://127.0.0.1:{port}/mcp\" }}, {}]",
        replica(&b, "name = \"b\"")
    );
    let gateway = TestGateway::new().section("x", &replicas).start().await;
    let client = client(&gateway).await;
    for id in ["1", "2", "3"] {
        call(&client, &b, id).await;
    }
    let status = gateway.status("x").await;
    assert_eq!(state_of(&status, "b"), "connected", "{status}");
    gateway.stop().await;
}

/// Who has fewer calls gets the next; whoever was on one stays there.
#[tokio::test]
async fn calls_are_spread_by_load_and_sessions_stay() {
    let (a, b) = two().await;
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let gateway = gateway("", &replicas, "balance = \"least_loaded\"").await;
    let (one, two) = (client(&gateway).await, client(&gateway).await);
    let first = ask(&one, &a, "1").await;
    let second = ask(&two, &b, "1").await;
    first.answer(DONE).await;
    one.answer("1").await;
    second.answer(DONE).await;
    two.answer("1").await;
    for id in ["2", "3"] {
        call(&two, &b, id).await;
        call(&one, &a, id).await;
    }
    gateway.stop().await;
}

/// Lets it answer calls by itself; how many it has answered.
fn answering(backend: &Backend) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    backend.on_request(move |request| {
        (request.method() == "tools/call").then(|| {
            counted.fetch_add(1, Ordering::SeqCst);
            Auto::Result(DONE.to_owned())
        })
    });
    count
}

/// Also where no call is under way when the next one comes: sessions are spread by how many are on a
/// replica, since they stay, and calls of nobody in particular take turns.
#[tokio::test]
async fn short_calls_are_spread() {
    let (a, b) = two().await;
    let counts = [&a, &b].map(answering);
    let calls = || [0, 1].map(|at| counts[at].swap(0, Ordering::SeqCst));
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let gateway = gateway("", &replicas, "balance = \"least_loaded\"").await;
    let answered = async |client: &Client, id: &str| {
        client.ask(id, "tools/call", CALL).await;
        client.answer(id).await.value();
    };
    let mut sessions = Vec::new();
    for _ in 0..6 {
        let session = client(&gateway).await;
        answered(&session, "1").await;
        sessions.push((session, calls()));
    }
    let (on_a, on_b): (Vec<_>, Vec<_>) = sessions.iter().partition(|(_, at)| *at == [1, 0]);
    assert_eq!((on_a.len(), on_b.len()), (3, 3));
    for (session, home) in &sessions {
        answered(session, "2").await;
        assert_eq!(calls(), *home, "it stays");
    }
    // Those that ended are not counted.
    for (session, home) in &sessions {
        if *home == [0, 1] {
            session.end().await;
        }
    }
    for _ in 0..3 {
        let session = client(&gateway).await;
        answered(&session, "1").await;
        assert_eq!(calls(), [0, 1]);
        sessions.push((session, [0, 1]));
    }
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{CALL}}}}}"#);
    for _ in 0..4 {
        let answer = gateway.http().post("/mcp", body.clone()).await;
        let answer = answer.text().await;
        assert!(answer.contains("content"), "{answer}");
    }
    assert_eq!(calls(), [2, 2]);
    gateway.stop().await;
}

#[tokio::test]
async fn the_locality_of_the_gateway_is_preferred() {
    let (a, b) = two().await;
    let replicas = [
        replica(&a, "locality = \"us\""),
        replica(&b, "locality = \"eu\""),
    ];
    for (top, near) in [
        ("", &a),
        ("locality = \"eu\"", &b),
        ("locality = \"us\"", &a),
    ] {
        let gateway = gateway(top, &replicas, "").await;
        let client = client(&gateway).await;
        call(&client, near, "1").await;
        gateway.stop().await;
    }
}

/// A rule sends a call to certain replicas; where those are lost the call fails rather than
/// go elsewhere.
#[tokio::test]
async fn a_rule_chooses_by_an_argument() {
    let (a, b) = two().await;
    let replicas = [
        replica(&a, "name = \"a\", locality = \"us\""),
        replica(&b, "name = \"b\", locality = \"eu\""),
    ];
    let route = "route = [{ tools = [\"echo\"], at = \"/region\", equals = \"eu\", to = \"eu\" }]";
    let gateway = gateway("", &replicas, route).await;
    let client = client(&gateway).await;
    let to = |region: &str| format!(r#"{CALL},"arguments":{{"region":"{region}"}}"#);
    for (id, region, backend) in [("1", "eu", &b), ("2", "us", &a), ("3", "eu", &b)] {
        client.ask(id, "tools/call", &to(region)).await;
        backend.asked("tools/call").await.answer(DONE).await;
        client.answer(id).await;
    }
    let other = r#""name":"mcp_x_other","arguments":{"region":"eu"}"#;
    client.ask("4", "tools/call", other).await;
    a.asked("tools/call").await.answer(DONE).await;
    client.answer("4").await;
    lose(&b);
    gateway
        .status_until("x", |status| state_of(status, "b") != "connected")
        .await;
    client.ask("5", "tools/call", &to("eu")).await;
    client.answer("5").await.failure();
    assert!(a.was_asked().await.is_none(), "it stays in its region");
    gateway.stop().await;
}

/// What a server takes at a time is counted for all of its replicas together.
#[tokio::test]
async fn limits_hold_for_all_replicas_together() {
    let (a, b) = two().await;
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let keys = "balance = \"least_loaded\"\nlimits = { in_flight = 2, queue = 0 }";
    let gateway = gateway("", &replicas, keys).await;
    let (one, two) = (client(&gateway).await, client(&gateway).await);
    let first = ask(&one, &a, "1").await;
    let second = ask(&two, &b, "1").await;
    one.ask("2", "tools/call", CALL).await;
    let busy = one.answer("2").await.failure();
    assert_eq!(busy["data"]["reason"], "busy", "{busy}");
    first.answer(DONE).await;
    one.answer("1").await;
    call(&one, &a, "3").await;
    second.answer(DONE).await;
    two.answer("1").await;
    let status = gateway.status("x").await;
    assert_eq!(
        (&status["refused"], &status["answered"]),
        (&1.into(), &3.into())
    );
    gateway.stop().await;
}

/// What a session is subscribed to follows it to another replica, whether it calls or only listens,
/// and is left alone on the one it has left.
#[tokio::test]
async fn subscriptions_move_with_their_session() {
    const URI: &str = r#""uri":"x+file:///a.txt""#;
    const UPDATED: &str = "notifications/resources/updated";
    const PARAMS: &str = r#"{"uri":"file:///a.txt"}"#;
    let (a, b) = two().await;
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let gateway = gateway("", &replicas, "").await;
    let client = client(&gateway).await;
    client.listen().await;
    client.ask("1", "resources/subscribe", URI).await;
    a.asked("resources/subscribe").await.answer("{}").await;
    client.answer("1").await.value();
    a.speak(UPDATED, PARAMS).await;
    client.must(UPDATED).await;

    lose(&a);
    b.asked("resources/subscribe").await.answer("{}").await;
    // What was updated between the two nobody told.
    client.must(UPDATED).await;
    b.speak(UPDATED, PARAMS).await;
    client.must(UPDATED).await;
    // It comes back, and has nothing to do with it any more.
    a.on_request(|_| None);
    let back = |status: &Value| state_of(status, "a") == "connected";
    gateway.status_until("x", back).await;
    call(&client, &b, "2").await;
    assert!(a.was_asked().await.is_none());
    client.ask("3", "resources/unsubscribe", URI).await;
    b.asked("resources/unsubscribe").await.answer("{}").await;
    client.answer("3").await.value();
    gateway.stop().await;
}

/// A replica that failed while it was connected is left alone until its own breaker lets a call
/// through, however soon it is connected again; the others serve meanwhile.
#[tokio::test]
async fn each_replica_has_a_breaker() {
    let (a, b) = two().await;
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let keys = "breaker = { failures = 1, open_for = \"1h\" }";
    let gateway = gateway("", &replicas, keys).await;
    let client = client(&gateway).await;
    let asked = ask(&client, &a, "1").await;
    a.die();
    client.answer("1").await.failure();
    drop(asked);
    let is_back = |status: &Value| {
        let replica = &status["replicas"][0];
        replica["state"] == "connected" && replica["out_for_ms"].is_null()
    };
    let status = gateway.status_until("x", is_back).await;
    let states = [0, 1].map(|at| &status["replicas"][at]["breaker"]["state"]);
    assert_eq!(states, ["open", "closed"], "{status}");
    let page = gateway.http();
    let page = page.get("/status", &[("accept", "text/html")]).await;
    let page = page.text().await;
    let mut notes = page.lines().filter(|line| line.contains("replica "));
    let (first, second) = (notes.next().unwrap(), notes.next().unwrap());
    assert!(first.contains("replica a at ws://") && second.contains("replica b at ws://"));
    assert!(first.contains(" is connected, breaker open"), "{page}");
    assert!(second.contains(" is connected") && !second.contains("open"));
    for id in ["2", "3"] {
        call(&client, &b, id).await;
    }
    gateway.stop().await;
}

/// Where none can take a call, its caller hears of the one that takes calls again the soonest.
#[tokio::test]
async fn the_earliest_retry_is_told() {
    let (a, b) = two().await;
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let keys = "breaker = { failures = 1, open_for = \"1h\" }\n\
                retry = { base = \"50ms\", max = \"50ms\", starts_per_minute = 1000 }\n\
                grace = \"1h\"";
    let gateway = gateway("", &replicas, keys).await;
    let client = client(&gateway).await;
    let asked = ask(&client, &a, "1").await;
    lose(&a);
    client.answer("1").await.failure();
    drop(asked);
    lose(&b);
    let are_down = |status: &Value| {
        let mut replicas = status["replicas"].as_array().unwrap().iter();
        replicas.all(|replica| replica["state"] != "connected")
    };
    let status = gateway.status_until("x", are_down).await;
    let states = [0, 1].map(|at| &status["replicas"][at]["breaker"]["state"]);
    assert_eq!(states, ["open", "closed"], "{status}");
    let mut last = u64::MAX;
    // The breaker of the other opens with the first.
    for id in ["2", "3"] {
        client.ask(id, "tools/call", CALL).await;
        let data = client.answer(id).await.failure()["data"].clone();
        assert_eq!(data["code"], "BREAKER_OPEN", "{data}");
        let wait = data["retryAfterMs"].as_u64().unwrap();
        assert!(wait <= last, "{data}");
        last = wait;
    }
    let status = gateway.status_until("x", |_| true).await;
    let [of_a, of_b] = [0, 1].map(|at| &status["replicas"][at]["breaker"]["retry_in_ms"]);
    assert!(of_a.as_u64() < of_b.as_u64(), "{status}");
    gateway.stop().await;
}

/// Waits for what a timer of the gateway brings about.
async fn in_time(gateway: &Gateway, reached: impl Fn(&Value) -> bool) -> Value {
    let wait = async {
        loop {
            let status = gateway.status("x").await;
            if reached(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = timeout(Duration::from_secs(90), wait).await;
    waited.expect("it happens by itself")
}

const NEW: &str = r#"[{"name":"echo","inputSchema":{"type":"object"}},{"name":"new","inputSchema":{"type":"object"}}]"#;

/// A replica that begins to refuse our credential is not what is shown and listed, while another
/// serves.
#[tokio::test]
async fn one_that_is_refused_does_not_speak_for_all() {
    let a = Backend::start(Transport::Http, Era::Legacy).await;
    let b = Backend::start(Transport::WebSocket, Era::Legacy).await;
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let keys = "health = { interval = \"200ms\" }";
    let gateway = gateway("", &replicas, keys).await;
    let client = client(&gateway).await;
    call(&client, &a, "1").await;
    a.on_http(|_, _| Some(401));
    call(&client, &b, "2").await;
    let is_refused =
        |status: &Value| state_of(status, "a") == "needs_reauth" && status["state"] == "connected";
    gateway.status_until("x", is_refused).await;
    let overview = gateway.http().get("/status", &[]).await;
    assert_eq!(overview.status(), 200);
    b.set_list("tools/list", NEW);
    b.list_changed("tools").await;
    gateway
        .tools_until(|tools| tools == ["mcp_x_echo", "mcp_x_new"])
        .await;
    // Once a check is answered it leads again.
    a.on_http(|_, _| None);
    gateway
        .tools_until(|tools| tools == ["mcp_x_echo", "mcp_x_other"])
        .await;
    let is_back =
        |status: &Value| state_of(status, "a") == "connected" && status["state"] == "connected";
    gateway.status_until("x", is_back).await;
    gateway.stop().await;
}

/// Where one cannot be listed the next one is, and the first is tried again beside it.
#[tokio::test]
async fn one_that_cannot_be_listed_does_not_speak_for_all() {
    let refusal = Auto::Error(r#"{"code":-32603,"message":"the database is down"}"#.to_owned());
    for (method, fault) in [
        ("tools/list", refusal.clone()),
        ("prompts/list", refusal),
        ("tools/list", Auto::Nothing),
    ] {
        let (a, b) = two().await;
        a.on_request(move |request| (request.method() == method).then(|| fault.clone()));
        b.set_list("tools/list", NEW);
        let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
        let keys = format!(
            "replicas = [{}]\nhealth = {{ probe = \"off\" }}",
            replicas.join(", ")
        );
        let gateway = TestGateway::new().section("x", &keys).launch().await;
        let is_listed =
            |status: &Value| status["state"] == "connected" && state_of(status, "a") == "degraded";
        let status = in_time(&gateway, is_listed).await;
        assert!(status["problems"].is_null(), "{status}");
        assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_new"]);
        a.on_request(|_| None);
        let is_back =
            |status: &Value| state_of(status, "a") == "connected" && status["state"] == "connected";
        in_time(&gateway, is_back).await;
        gateway
            .tools_until(|tools| tools == ["mcp_x_echo", "mcp_x_other"])
            .await;
        gateway.stop().await;
    }
}

/// Where none can be listed as a whole, what can be read of the first is served.
#[tokio::test]
async fn where_all_refuse_a_list_the_others_are_served() {
    let (a, b) = two().await;
    for backend in [&a, &b] {
        backend.on_request(|request| {
            let refusal = r#"{"code":-32603,"message":"the database is down"}"#;
            (request.method() == "prompts/list").then(|| Auto::Error(refusal.to_owned()))
        });
    }
    b.set_list("tools/list", NEW);
    let replicas = [replica(&a, "name = \"a\""), replica(&b, "name = \"b\"")];
    let keys = format!("replicas = [{}]", replicas.join(", "));
    let gateway = TestGateway::new().section("x", &keys).launch().await;
    gateway
        .tools_until(|tools| tools == ["mcp_x_echo", "mcp_x_other"])
        .await;
    let is_shown = |status: &Value| {
        ["a", "b"]
            .iter()
            .all(|name| state_of(status, name) == "degraded")
            && status["state"] == "degraded"
    };
    gateway.status_until("x", is_shown).await;
    gateway.stop().await;
}
