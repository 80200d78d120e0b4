//! Instances beside the catalog's: each has states, a history and counts of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, wire::Envelope,
};

const ECHO: &str = r#""name":"mcp_x_echo""#;
const DONE: &str = r#"{"content":[]}"#;

/// A gateway in front of one legacy server, and a client that gets an instance of its own.
async fn one(transport: Transport, keys: &str) -> (Backend, Gateway, Client) {
    let (backend, gateway) = Gateway::governed(transport, Era::Legacy, keys).await;
    let client = able(&gateway).await;
    (backend, gateway, client)
}

/// A client with a capability that the catalog's connection did not declare.
async fn able(gateway: &Gateway) -> Client {
    let capabilities = r#"{"sampling":{}}"#;
    gateway
        .client(Front::Streamable, "/mcp", capabilities)
        .await
}

/// Whether `request` greets for such a client; the gateway greets for itself as well.
fn greets_able(request: &Envelope) -> bool {
    let capabilities = request.param(&["capabilities"]);
    request.method() == "initialize" && capabilities.as_deref() == Some(r#"{"sampling":{}}"#)
}

/// Calls `echo`, which is answered.
async fn call(backend: &Backend, client: &Client, id: &str) {
    client.ask(id, "tools/call", ECHO).await;
    backend.asked("tools/call").await.answer(DONE).await;
    client.answer(id).await.value();
}

/// Calls `echo`, during which the connection is lost; what the client is told.
async fn lose(backend: &Backend, client: &Client, id: &str) -> Value {
    client.ask(id, "tools/call", ECHO).await;
    backend.asked("tools/call").await.die().await;
    client.answer(id).await.failure()
}

fn instances(status: &Value) -> &[Value] {
    status["instances"].as_array().map_or(&[], Vec::as_slice)
}

/// The one instance, once `is_wanted`.
async fn instance(gateway: &Gateway, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let is_it = |status: &Value| matches!(instances(status), [one] if is_wanted(one));
    let status = gateway.status_until("x", is_it).await;
    status["instances"][0].clone()
}

fn states(of: &Value) -> Vec<&str> {
    let history = of["history"].as_array().unwrap();
    let states = history.iter().map(|past| past["state"].as_str().unwrap());
    states.collect()
}

/// What is lost and replaced is one thing for people, apart from the server it is of.
#[tokio::test]
async fn a_lost_instance_is_shown_until_the_next_goes_on_with_it() {
    for (transport, isolation) in [
        (Transport::Stdio, "agent"),
        (Transport::WebSocket, "session"),
        (Transport::Stdio, "pool"),
    ] {
        let (backend, gateway, client) =
            one(transport, &format!("isolation = '{isolation}'")).await;
        let failure = lose(&backend, &client, "1").await;
        // That of the server itself is the catalog's.
        let state = match isolation {
            "pool" => "connected",
            _ => "disconnected",
        };
        assert_eq!(failure["data"]["state"], state, "{isolation}: {failure}");
        assert_eq!(gateway.status("x").await["state"], "connected");
        let lost = instance(&gateway, |it| it["state"] == "disconnected").await;
        assert_eq!(
            states(&lost),
            ["connecting", "connected", "disconnected"],
            "{isolation}"
        );
        let last = &lost["history"][2];
        assert_eq!(
            (&last["at"], &last["reason"]),
            (&lost["since"], &lost["reason"])
        );
        let reason = lost["reason"].as_str().unwrap();
        assert!(reason.contains("lost"), "{isolation}: {reason}");
        assert_eq!(lost["restarts"], 0, "{isolation}: {lost}");
        assert_eq!(lost["asleep"], Value::Null, "{isolation}: {lost}");

        let (agent, session) = (&lost["agent"], &lost["session"]);
        match isolation {
            "agent" => assert_eq!((agent.is_string(), session), (true, &Value::Null)),
            "session" => assert!(agent.is_string() && session.is_string(), "{lost}"),
            _ => assert_eq!((agent, session), (&Value::Null, &Value::Null)),
        }
        assert_eq!(lost["era"], "legacy");

        client.ask("2", "tools/call", ECHO).await;
        let asked = backend.asked("tools/call").await;
        let back = instance(&gateway, |it| it["in_flight"] == 1).await;
        assert_eq!(back["number"], lost["number"], "{isolation}");
        assert_eq!(
            states(&back)[2..],
            ["disconnected", "connecting", "connected"],
            "{isolation}"
        );
        assert_eq!(
            (&back["restarts"], &back["failed_starts"]),
            (&1.into(), &0.into())
        );
        asked.answer(DONE).await;
        client.answer("2").await.value();
        let server = gateway.status("x").await;
        assert_eq!(states(&server), ["connecting", "connected"], "{isolation}");
        assert_eq!(server["restarts"], 1, "{isolation}: {server}");
        gateway.stop().await;
    }
}

/// Nobody waits for what is lost, and no breaker answers in its place.
const HASTY: &str = "grace = '0s'\nbreaker = { failures = 1000 }";

#[tokio::test]
async fn an_instance_that_cannot_be_made_has_failed() {
    for isolation in ["agent", "pool"] {
        let (backend, gateway, client) = one(
            Transport::Stdio,
            &format!("isolation = '{isolation}'\n{HASTY}"),
        )
        .await;
        backend.on_request(|request| greets_able(request).then_some(Auto::Die));
        client.ask("1", "tools/call", ECHO).await;
        client.answer("1").await.failure();
        let failed = instance(&gateway, |it| it["state"] == "failed").await;
        assert_eq!(states(&failed), ["connecting", "failed"], "{isolation}");
        assert_eq!(failed["failed_starts"], 1, "{isolation}: {failed}");
        let server = gateway.status("x").await;
        assert_eq!(server["state"], "connected", "{isolation}: {server}");
        assert_eq!(server["failed_starts"], 1, "{isolation}: {server}");
        backend.on_request(|_| None);
        let mut tries = 2..;
        let (id, answered) = loop {
            let id = tries.next().unwrap().to_string();
            client.ask(&id, "tools/call", ECHO).await;
            // Until it may be tried again, the failure is the answer.
            tokio::select! {
                asked = backend.asked("tools/call") => break (id.clone(), asked),
                answer = client.answer(&id) => drop(answer.failure()),
            }
        };
        answered.answer(DONE).await;
        client.answer(&id).await.value();
        let back = instance(&gateway, |it| it["state"] == "connected").await;
        assert_eq!(back["number"], failed["number"], "{isolation}");
        assert_eq!(back["restarts"], 1, "{isolation}: {back}");
        gateway.stop().await;
    }
}

/// Nobody used it: that is no loss, and to wake it is no restart.
#[tokio::test]
async fn an_idle_instance_sleeps() {
    let keys = "isolation = 'agent'\nidle_timeout = '50ms'\nlimits = { in_flight = 8 }";
    let (backend, gateway, client) = one(Transport::Http, keys).await;
    call(&backend, &client, "1").await;
    let asleep = instance(&gateway, |it| it["asleep"] == true).await;
    assert_eq!(asleep["state"], "disconnected", "{asleep}");
    assert_eq!(states(&asleep), ["connecting", "connected", "disconnected"]);
    call(&backend, &client, "2").await;
    let woken = instance(&gateway, |it| states(it).len() > 3).await;
    assert_eq!(states(&woken)[3..], ["connecting", "connected"]);
    let (number, restarts) = (&woken["number"], &woken["restarts"]);
    assert_eq!((number, restarts), (&asleep["number"], &0.into()));
    assert_eq!(gateway.status("x").await["restarts"], 0);
    gateway.stop().await;
}

/// With its session it goes for good.
#[tokio::test]
async fn the_instance_of_a_session_ends_with_it() {
    let (backend, gateway, client) = one(Transport::Stdio, "isolation = 'session'").await;
    call(&backend, &client, "1").await;
    let other = able(&gateway).await;
    call(&backend, &other, "1").await;
    let both = gateway.status("x").await;
    assert_eq!(instances(&both).len(), 2, "{both}");
    assert_ne!(
        both["instances"][0]["session"],
        both["instances"][1]["session"]
    );
    other.end().await;
    let left = instance(&gateway, |_| true).await;
    assert_eq!(left, both["instances"][0], "the other is as it was");
    gateway.stop().await;
}

/// Health checks tell of the one instance that misses them.
#[tokio::test]
async fn an_instance_that_hangs_is_degraded_and_given_up() {
    let keys = "isolation = 'agent'\n\
                health = { interval = '50ms', timeout = '200ms', failures = 2 }";
    let (backend, gateway, client) = one(Transport::WebSocket, keys).await;
    call(&backend, &client, "1").await;
    backend.on_request(|request| (request.method() == "ping").then_some(Auto::Nothing));
    let gone = instance(&gateway, |it| it["state"] == "disconnected").await;
    assert_eq!(
        states(&gone),
        ["connecting", "connected", "degraded", "disconnected"]
    );
    let reason = gone["reason"].as_str().unwrap();
    assert!(reason.contains("missed 2 health checks"), "{reason}");
    assert_eq!(gone["health_checks"]["missed"], 2, "{gone}");
    backend.on_request(|_| None);
    call(&backend, &client, "2").await;
    let back = instance(&gateway, |it| it["restarts"] == 1).await;
    assert_eq!(back["number"], gone["number"]);
    gateway.stop().await;
}

/// `connected` means listed as well, which happens on the catalog's connection.
#[tokio::test]
async fn an_instance_of_a_server_that_was_not_listed_is_connecting() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &backend);
    // What it lists is kept from an earlier start.
    plan.start().await.stop().await;
    let asked = AtomicBool::new(false);
    backend.on_request(move |request| {
        let is_first = request.method() == "tools/list" && !asked.swap(true, Ordering::SeqCst);
        is_first.then_some(Auto::Hand)
    });
    let gateway = plan.launch().await;
    let listing = backend.asked("tools/list").await;
    let client = able(&gateway).await;
    call(&backend, &client, "1").await;
    let waiting = instance(&gateway, |it| !it["reason"].is_null()).await;
    assert_eq!(waiting["state"], "connecting", "{waiting}");
    let reason = waiting["reason"].as_str().unwrap();
    assert!(reason.contains("not been listed"), "{reason}");
    listing.answer(r#"{"tools":[]}"#).await;
    let listed = instance(&gateway, |it| it["state"] == "connected").await;
    assert_eq!(states(&listed), ["connecting", "connected"]);
    gateway.stop().await;
}

async fn subscribe(backend: &Backend, client: &Client, id: &str) {
    let uri = r#""uri":"x+file:///a.txt""#;
    client.ask(id, "resources/subscribe", uri).await;
    let asked = backend.asked("resources/subscribe").await;
    asked.answer("{}").await;
    client.answer(id).await;
}

/// One that clients are subscribed on is made again by itself; calls wait for that.
#[tokio::test]
async fn calls_wait_for_an_instance_that_is_made_again() {
    let keys = "isolation = 'agent'";
    let (backend, gateway, client) = one(Transport::WebSocket, keys).await;
    subscribe(&backend, &client, "1").await;
    backend.on_request(|request| greets_able(request).then_some(Auto::Hand));
    lose(&backend, &client, "2").await;
    let greeting = backend.asked("initialize").await;
    client.ask("3", "tools/call", ECHO).await;
    client.is_quiet().await;
    greeting.answer(HELLO).await;
    let again = backend.asked("resources/subscribe").await;
    again.answer("{}").await;
    backend.asked("tools/call").await.answer(DONE).await;
    client.answer("3").await.value();
    gateway.stop().await;
}

/// A server that starts anew again and again is greeted after a pause, and calls wait for that.
#[tokio::test]
async fn calls_wait_for_an_instance_that_was_forgotten_twice() {
    let keys = "isolation = 'session'\nretry = { base = '500ms', jitter = 0.0 }";
    let (backend, gateway, client) = one(Transport::Http, keys).await;
    call(&backend, &client, "1").await;
    let greetings = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&greetings);
    backend.on_request(move |request| {
        counted.fetch_add(usize::from(greets_able(request)), Ordering::SeqCst);
        None
    });
    backend.forget_sessions();
    let is_connected = |it: &Value| it["state"] == "connected";
    let is_back = |it: &Value| greetings.load(Ordering::SeqCst) == 1 && is_connected(it);
    instance(&gateway, is_back).await;
    backend.forget_sessions();
    instance(&gateway, |it| it["state"] == "disconnected").await;
    call(&backend, &client, "2").await;
    gateway.stop().await;
}

const HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"x","version":"1"}}"#;

/// Nobody can wake it, or take its place.
#[tokio::test]
async fn what_was_a_sessions_goes_with_it_also_when_it_is_down() {
    let keys = "isolation = 'session'\nidle_timeout = '50ms'";
    for asleep in [true, false] {
        let (backend, gateway, client) = one(Transport::Http, keys).await;
        if asleep {
            call(&backend, &client, "1").await;
            instance(&gateway, |it| it["asleep"] == true).await;
        } else {
            backend.on_request(|request| {
                (request.method() == "initialize").then_some(Auto::Status(500))
            });
            client.ask("1", "tools/call", ECHO).await;
            client.answer("1").await.failure();
            instance(&gateway, |it| it["state"] == "failed").await;
        }
        client.end().await;
        let status = gateway.status("x").await;
        assert!(instances(&status).is_empty(), "{status}");
        gateway.stop().await;
    }
}

/// A call that is refused for our credential says so of its instance as well, and one that is answered
/// that it is accepted again.
#[tokio::test]
async fn an_instance_may_need_another_credential() {
    let keys = "isolation = 'agent'\nhealth = { probe = 'off' }";
    let (backend, gateway, client) = one(Transport::Http, keys).await;
    call(&backend, &client, "1").await;
    backend.on_request(|request| (request.method() == "tools/call").then_some(Auto::Status(401)));
    client.ask("2", "tools/call", ECHO).await;
    client.answer("2").await.failure();
    instance(&gateway, |it| it["state"] == "needs_reauth").await;
    backend.on_request(|_| None);
    call(&backend, &client, "3").await;
    instance(&gateway, |it| it["state"] == "connected").await;
    gateway.stop().await;
}

/// While the catalog's connection sleeps the server stands where its instances do.
#[tokio::test]
async fn the_server_is_degraded_where_its_only_instance_is() {
    let keys = "idle_timeout = '300ms'\n\
                health = { interval = '200ms', timeout = '100ms', failures = 1000 }";
    let (backend, gateway, client) = one(Transport::Stdio, keys).await;
    let asleep = |status: &Value| status["asleep"] == true;
    gateway.status_until("x", asleep).await;
    client.ask("1", "tools/call", ECHO).await;
    let asked = backend.asked("tools/call").await;
    backend.on_request(|request| (request.method() == "ping").then_some(Auto::Nothing));
    instance(&gateway, |it| it["state"] == "degraded").await;
    assert_eq!(gateway.status("x").await["state"], "degraded");
    asked.answer(DONE).await;
    client.answer("1").await;
    gateway.stop().await;
}

/// One that is being made again by itself is not put out of sight by another.
#[tokio::test]
async fn there_are_no_more_instances_than_allowed() {
    let keys = format!("isolation = 'session'\nmax_instances = 1\n{HASTY}");
    let (backend, gateway, client) = one(Transport::WebSocket, &keys).await;
    subscribe(&backend, &client, "1").await;
    backend.on_request(|request| greets_able(request).then_some(Auto::Hand));
    lose(&backend, &client, "2").await;
    let greeting = backend.asked("initialize").await;
    let other = able(&gateway).await;
    other.ask("1", "tools/call", ECHO).await;
    let refused = other.answer("1").await.failure();
    assert_eq!(refused["data"]["reason"], "busy", "{refused}");
    greeting.answer(HELLO).await;
    gateway.stop().await;
}

/// Who answers a health check with a refusal is asked again when the next one is due.
#[tokio::test]
async fn checks_are_as_far_apart_as_they_should_be() {
    for status in [400, 401] {
        let backend = Backend::start(Transport::Http, Era::Legacy).await;
        let keys = "health = { interval = '300ms' }";
        let gateway = TestGateway::new().server_with("x", &backend, keys);
        let gateway = gateway.start().await;
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        backend.on_request(move |request| {
            let is_check = request.method() == "ping";
            is_check.then(|| {
                count.fetch_add(1, Ordering::SeqCst);
                Auto::Status(status)
            })
        });
        tokio::time::sleep(Duration::from_millis(1000)).await;
        let asked = asked.load(Ordering::SeqCst);
        assert!((1..=4).contains(&asked), "{status}: {asked}");
        gateway.stop().await;
    }
}

/// Nothing goes on with what served one call.
#[tokio::test]
async fn an_instance_for_one_call_is_shown_when_it_was_lost() {
    let (backend, gateway, client) = one(Transport::Stdio, "isolation = 'call'").await;
    lose(&backend, &client, "1").await;
    let lost = instance(&gateway, |it| it["state"] == "disconnected").await;
    client.ask("2", "tools/call", ECHO).await;
    let asked = backend.asked("tools/call").await;
    let both = |status: &Value| instances(status).len() == 2;
    let status = gateway.status_until("x", both).await;
    assert_eq!(instances(&status)[0], lost);
    assert_eq!(instances(&status)[1]["restarts"], 0);
    asked.answer(DONE).await;
    client.answer("2").await.value();
    gateway.stop().await;
}

/// While an instance is made again it is so, and when that fails again there is a line of history.
#[tokio::test]
async fn an_instance_that_is_made_again_is_connecting() {
    let keys = format!("isolation = 'agent'\n{HASTY}");
    let (backend, gateway, client) = one(Transport::WebSocket, &keys).await;
    lose(&backend, &client, "1").await;
    backend.on_request(|request| greets_able(request).then_some(Auto::Hand));
    // Until the next attempt may be made, the answer says when that is.
    let again = async {
        for id in 2.. {
            let id = id.to_string();
            client.ask(&id, "tools/call", ECHO).await;
            let early = client.answer(&id).await.failure();
            let wait = early["data"]["retryAfterMs"].as_u64();
            assert_eq!(early["data"]["code"], "UNAVAILABLE", "{early}");
            // The attempt itself is not too early.
            let Some(wait) = wait else { break };
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    };
    let serve = async {
        let greeting = backend.asked("initialize").await;
        let made = instance(&gateway, |it| it["state"] == "connecting").await;
        assert_eq!(made["restarts"], 1, "{made}");
        greeting.die().await;
    };
    tokio::join!(again, serve);
    let failed = instance(&gateway, |it| it["state"] == "failed").await;
    let ways = [
        "connecting",
        "connected",
        "disconnected",
        "connecting",
        "failed",
    ];
    assert_eq!(states(&failed), ways);
    assert_eq!(gateway.status("x").await["breaker"]["failures"], 2);
    gateway.stop().await;
}

/// Whoever had an instance started waits for it: it does not give way to another.
#[tokio::test]
async fn an_instance_that_is_being_made_gives_way_to_none() {
    let keys = "isolation = 'session'\nmax_instances = 1";
    let (backend, gateway, client) = one(Transport::Stdio, keys).await;
    backend.on_request(|request| greets_able(request).then_some(Auto::Hand));
    client.ask("1", "tools/call", ECHO).await;
    let greeting = backend.asked("initialize").await;
    let other = able(&gateway).await;
    other.ask("1", "tools/call", ECHO).await;
    let refused = other.answer("1").await.failure();
    assert_eq!(refused["data"]["reason"], "busy", "{refused}");
    greeting.answer(HELLO).await;
    backend.asked("tools/call").await.answer(DONE).await;
    client.answer("1").await.value();
    gateway.stop().await;
}

/// The end of a session is no failure of its server.
#[tokio::test]
async fn a_call_of_a_session_that_ends_is_cancelled() {
    for transport in [Transport::Stdio, Transport::WebSocket, Transport::Http] {
        let (backend, gateway, client) = one(transport, "isolation = 'session'").await;
        client.ask("1", "tools/call", ECHO).await;
        let _under_way = backend.asked("tools/call").await;
        client.end().await;
        let answer = client.answer("1").await.failure();
        assert_eq!(
            answer["data"]["code"], "CANCELLED",
            "{transport:?}: {answer}"
        );
        let status = gateway.status("x").await;
        assert_eq!(status["breaker"]["failures"], 0, "{transport:?}: {status}");
        gateway.stop().await;
    }
}
