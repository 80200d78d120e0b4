//! What happens when a server fails: how soon it is given up, tried again, and not listed any more.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    harness::{ask, http_backend, with_one},
    support::{Auto, Backend, Era, Gateway, TestGateway, Transport, soon},
};

/// The reason why a call of `echo` failed; `None` when it was answered.
async fn reason(gateway: &Gateway) -> Option<String> {
    let params = r#"{"name":"mcp_one_echo"}"#;
    let answer = ask(gateway, "/mcp", "tools/call", params).await;
    let reason = |failure: Value| failure["data"]["reason"].as_str().unwrap().to_owned();
    answer.error.is_some().then(|| reason(answer.failure()))
}

/// A gateway whose server answers every call with HTTP 503.
async fn with_broken(keys: &str) -> (Gateway, Backend) {
    let backend = http_backend().await;
    let gateway = with_one(&backend, "", keys).await;
    backend.on_request(|request| (request.method() == "tools/call").then_some(Auto::Status(503)));
    (gateway, backend)
}

#[tokio::test]
pub(crate) async fn breaker_failures() {
    for (failures, let_through) in [(1, 1), (3, 3), (0, 8)] {
        let keys = format!("breaker = {{ failures = {failures}, open_for = \"1h\" }}");
        let (gateway, _backend) = with_broken(&keys).await;
        for call in 0..8 {
            let expect = if call < let_through {
                "bad_answer"
            } else {
                "breaker_open"
            };
            let found = reason(&gateway).await;
            assert_eq!(found.as_deref(), Some(expect), "call {call}, {failures}");
        }
    }
}

#[tokio::test]
pub(crate) async fn breaker_open_for() {
    let broken = |open_for: &str| {
        let keys = format!("breaker = {{ failures = 1, open_for = \"{open_for}\" }}");
        async move {
            let (gateway, backend) = with_broken(&keys).await;
            assert_eq!(reason(&gateway).await.as_deref(), Some("bad_answer"));
            backend.on_request(|request| {
                (request.method() == "tools/call").then(|| Auto::Result("{}".to_owned()))
            });
            (gateway, backend)
        }
    };
    let (long, _waits) = broken("1h").await;
    let (short, _tries) = broken("50ms").await;
    let closed = async { while reason(&short).await.is_some() {} };
    soon("a call is let through", closed).await;
    assert_eq!(reason(&long).await.as_deref(), Some("breaker_open"));
}

/// A legacy server behind a program, with `keys`.
async fn with_program(keys: &str) -> (Gateway, Backend) {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = with_one(&backend, "", keys).await;
    (gateway, backend)
}

#[tokio::test]
pub(crate) async fn grace() {
    let (long, keeper) = with_program("grace = \"1h\"").await;
    let (short, leaver) = with_program("grace = \"0s\"").await;
    for backend in [&keeper, &leaver] {
        backend.on_request(|_| Some(Auto::Die));
        backend.die();
    }
    let is_away = |status: &Value| status["failed_starts"].as_u64() >= Some(1);
    long.status_until("one", is_away).await;
    short.tools_until(<[String]>::is_empty).await;
    short
        .status_until("one", |status| status["state"] == "failed")
        .await;
    assert_eq!(long.tools().await.len(), 2);
    assert_eq!(long.status("one").await["state"], "disconnected");
}

/// Leaves health checks without an answer; hears of each.
fn mute(backend: &Backend) -> mpsc::Receiver<()> {
    let (tell, asked) = mpsc::channel(64);
    backend.on_request(move |request| {
        (request.method() == "ping").then(|| {
            tell.try_send(()).unwrap_or_default();
            Auto::Nothing
        })
    });
    asked
}

#[tokio::test]
pub(crate) async fn health_interval() {
    let health = |interval: &str| format!("health = {{ interval = \"{interval}\" }}");
    let (_long, quiet) = with_program(&health("1h")).await;
    let mut never = mute(&quiet);
    let (_short, asked) = with_program(&health("50ms")).await;
    soon("a check", mute(&asked).recv()).await.unwrap();
    assert!(never.try_recv().is_err());
}

#[tokio::test]
pub(crate) async fn health_timeout() {
    let health = |timeout: &str| {
        format!("health = {{ interval = \"50ms\", timeout = \"{timeout}\", failures = 1 }}")
    };
    let (long, patient) = with_program(&health("1h")).await;
    let mut asked = mute(&patient);
    let (short, hasty) = with_program(&health("50ms")).await;
    let _asked = mute(&hasty);
    short
        .status_until("one", |status| status["restarts"].as_u64() >= Some(1))
        .await;
    soon("a check", asked.recv()).await.unwrap();
    let status = long.status("one").await;
    assert_eq!(
        (&status["state"], &status["restarts"]),
        (&json!("connected"), &json!(0))
    );
}

#[tokio::test]
pub(crate) async fn health_failures() {
    let health = |failures: u32| {
        format!("health = {{ interval = \"50ms\", timeout = \"50ms\", failures = {failures} }}")
    };
    let (many, patient) = with_program(&health(1000)).await;
    let mut asked = mute(&patient);
    let (few, hasty) = with_program(&health(2)).await;
    let _asked = mute(&hasty);
    few.status_until("one", |status| status["restarts"].as_u64() >= Some(1))
        .await;
    for _ in 0..3 {
        soon("a check", asked.recv()).await.unwrap();
    }
    let status = many
        .status_until("one", |status| status["state"] == "degraded")
        .await;
    assert_eq!(status["restarts"], 0, "{status}");
}

#[tokio::test]
pub(crate) async fn health_probe() {
    let start = async |probe: &str| {
        let health = format!("health = {{ interval = \"50ms\", probe = \"{probe}\" }}");
        let (gateway, backend) = with_program(&health).await;
        let (tell, asked) = mpsc::channel(64);
        backend.on_request(move |request| {
            tell.try_send(request.method().to_owned())
                .unwrap_or_default();
            None
        });
        (gateway, backend, asked)
    };
    let (_off, _silent, mut nothing) = start("off").await;
    for (probe, method) in [("ping", "ping"), ("list", "tools/list")] {
        let (_gateway, _backend, mut asked) = start(probe).await;
        for _ in 0..3 {
            let check = soon("a check", asked.recv()).await;
            assert_eq!(check.as_deref(), Some(method));
        }
    }
    assert!(nothing.try_recv().is_err());
}

/// The pauses between starts of a server whose connections end as soon as they are listed.
async fn pauses_of_short_lives(stable_after: &str) -> Vec<Duration> {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let (start, mut starts) = mpsc::channel(64);
    backend.on_request(move |request| match request.method() {
        "initialize" => {
            start.try_send(Instant::now()).unwrap_or_default();
            None
        }
        "prompts/list" => Some(Auto::Die),
        _ => None,
    });
    let keys = format!(
        "era = \"legacy\"\nretry = {{ base = \"50ms\", jitter = 0.0, stable_after = \"{stable_after}\" }}"
    );
    let gateway = TestGateway::new().server_with("one", &backend, &keys);
    let _gateway = gateway.launch().await;
    let mut last = soon("a start", starts.recv()).await.unwrap();
    let mut pauses = Vec::new();
    while pauses.len() < 6 {
        let next = soon("another start", starts.recv()).await.unwrap();
        pauses.push(next - last);
        last = next;
    }
    pauses
}

/// Six pauses that double from 50 ms on take 3.15 s in all.
#[tokio::test]
pub(crate) async fn retry_stable_after() {
    let doubled = Duration::from_millis(50 * (1 + 2 + 4 + 8 + 16 + 32));
    let never_stable = pauses_of_short_lives("1h").await;
    assert!(
        never_stable.iter().sum::<Duration>() >= doubled,
        "{never_stable:?}"
    );
    let soon_stable = pauses_of_short_lives("1ms").await;
    assert!(
        soon_stable.iter().sum::<Duration>() < doubled,
        "{soon_stable:?}"
    );
}

#[tokio::test]
pub(crate) async fn retry_starts_per_minute() {
    let start = async |limit: u64| {
        let keys = format!(
            "command = \"/no/such/program\"\n\
             retry = {{ base = \"5ms\", max = \"5ms\", starts_per_minute = {limit} }}"
        );
        TestGateway::new().section("one", &keys).launch().await
    };
    let (few, many) = (start(2).await, start(12).await);
    let failed = |count: u64| move |status: &Value| status["failed_starts"] == count;
    many.status_until("one", failed(12)).await;
    few.status_until("one", failed(2)).await;
}

/// Of two attempts there is none after the second within this test.
#[tokio::test]
pub(crate) async fn retry_failed_after() {
    for (failed_after, state) in [(1, "failed"), (2, "failed"), (3, "connecting")] {
        let keys = format!(
            "command = \"/no/such/program\"\n\
             retry = {{ base = \"5ms\", starts_per_minute = 2, failed_after = {failed_after} }}"
        );
        let gateway = TestGateway::new().section("one", &keys).launch().await;
        let tried = |status: &Value| status["failed_starts"] == 2 && status["reason"].is_string();
        let status = gateway.status_until("one", tried).await;
        assert_eq!(status["state"], state, "after {failed_after}: {status}");
    }
}
