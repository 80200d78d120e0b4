//! More calls than a server, an agent or the gateway takes: what waits, what is refused, and what
//! whoever is refused is told.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tollbridge::{
    audit::{Query, Record, RecordFilter, RecordedDecision},
    session::{replay::UNREAD_BYTES_MAX, running_calls::CALLS_MAX},
};

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, client::Who, http::Answer,
    soon, wire::request,
};

const ECHO: &str = r#""name":"mcp_x_echo""#;
const DONE: &str = r#"{"content":[]}"#;

const ANN: Who<'static> = Who {
    name: "ann",
    key: "tbk_ann_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7",
};
const BOB: Who<'static> = Who {
    name: "bob",
    key: "tbk_bob_9f8e7d6c5b4a39281706f5e4d3c2b1a0",
};

/// A server `x` with these limits.
async fn limited(backend: &Backend, limits: &str) -> Gateway {
    let keys = format!("limits = {{ {limits} }}");
    let gateway =
        TestGateway::new().setting("[governance]\nprice = \"0.01\"\nbudget = { limit = \"0.03\" }");
    gateway.server_with("x", backend, &keys).start().await
}

async fn queued(gateway: &Gateway, count: usize) -> Value {
    let reached = |status: &Value| status["queued"] == count;
    gateway.status_until("x", reached).await
}

async fn ask(client: &Client, id: &str) {
    client.ask(id, "tools/call", ECHO).await;
}

/// Checks what a call that found no room is told.
fn check_busy(failure: &Value) {
    assert_eq!(failure["code"], -32603, "{failure}");
    let data = &failure["data"];
    assert_eq!(
        (&data["server"], &data["reason"]),
        (&json!("x"), &json!("busy"))
    );
    assert_eq!(data["retryable"], true);
    assert!(data["retryAfterMs"].as_u64().unwrap() >= 100, "{failure}");
}

fn records(gateway: &Gateway) -> Vec<Record<'static>> {
    let audit = gateway.config.data_dir.join("audit");
    let query = Query::new(&audit, RecordFilter::default()).unwrap();
    query.map(|found| found.unwrap().record).collect()
}

/// At the limit a call waits, past the queue it is refused at once, and back under both it passes;
/// what was refused is audited and costs nothing.
#[tokio::test]
async fn calls_wait_for_a_server_and_then_are_refused() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::Http, Era::Legacy),
        (Transport::Http, Era::Modern),
    ] {
        let backend = Backend::start(transport, era).await;
        let gateway = limited(&backend, "in_flight = 1, queue = 1").await;
        let front = match era {
            Era::Legacy => Front::Streamable,
            Era::Modern => Front::Modern,
        };
        let client = gateway.client(front, "/mcp", "{}").await;
        ask(&client, "1").await;
        let first = backend.asked("tools/call").await;
        ask(&client, "2").await;
        let status = queued(&gateway, 1).await;
        assert_eq!(
            (&status["in_flight"], &status["refused"]),
            (&json!(1), &json!(0))
        );
        ask(&client, "3").await;
        check_busy(&client.answer("3").await.failure());
        first.answer(DONE).await;
        assert!(client.answer("1").await.result.is_some());
        backend.asked("tools/call").await.answer(DONE).await;
        assert!(client.answer("2").await.result.is_some());
        ask(&client, "4").await;
        backend.asked("tools/call").await.answer(DONE).await;
        assert!(
            client.answer("4").await.result.is_some(),
            "the budget is for three"
        );
        let status = gateway
            .status_until("x", |status| status["in_flight"] == 0)
            .await;
        let counts = ["queued", "refused", "answered", "failed"].map(|key| status[key].clone());
        assert_eq!(counts, [json!(0), json!(1), json!(3), json!(0)]);
        let of_refused = records(&gateway)
            .into_iter()
            .filter(|record| record.decision == RecordedDecision::Failed);
        let of_refused: Vec<_> = of_refused.collect();
        assert_eq!(of_refused.len(), 1);
        assert_eq!(of_refused[0].code.as_deref(), Some("BUSY"));
        assert_eq!(of_refused[0].price.get(), 0);
        gateway.stop().await;
    }
}

/// A call that its client gives up leaves the queue and never reaches the server.
#[tokio::test]
async fn a_call_is_cancelled_while_it_waits() {
    for front in Front::ALL {
        let backend = Backend::start(Transport::Http, Era::Legacy).await;
        let gateway = limited(&backend, "in_flight = 1").await;
        let client = gateway.client(front, "/mcp", "{}").await;
        ask(&client, "1").await;
        let first = backend.asked("tools/call").await;
        let sent = client.ask("2", "tools/call", ECHO).await;
        queued(&gateway, 1).await;
        if front == Front::Modern {
            sent.disconnect();
        } else {
            client.cancel("2").await;
        }
        let status = queued(&gateway, 0).await;
        assert_eq!(status["refused"], 0, "{front:?}");
        first.answer(DONE).await;
        gateway
            .status_until("x", |status| status["in_flight"] == 0)
            .await;
        let other = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let members = r#""name":"mcp_x_echo","arguments":{"third":true}"#;
        other.ask("3", "tools/call", members).await;
        let third = backend.asked("tools/call").await;
        assert!(
            third.envelope.param(&["arguments", "third"]).is_some(),
            "{front:?}"
        );
        gateway.stop().await;
    }
}

/// A call waits as long as it may take, and no longer.
#[tokio::test]
async fn a_call_waits_no_longer_than_its_timeout() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let keys = "limits = { in_flight = 1 }\ntools.timeout = { other = \"100ms\" }";
    let gateway = TestGateway::new().server_with("x", &backend, keys);
    let gateway = gateway.start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    ask(&client, "1").await;
    let first = backend.asked("tools/call").await;
    client
        .ask("2", "tools/call", r#""name":"mcp_x_other""#)
        .await;
    check_busy(&client.answer("2").await.failure());
    let status = queued(&gateway, 0).await;
    assert_eq!(
        (&status["in_flight"], &status["refused"]),
        (&json!(1), &json!(1))
    );
    first.answer(DONE).await;
    assert!(client.answer("1").await.result.is_some());
    gateway.stop().await;
}

/// Keys for ann and bob, and this limit.
fn two_agents(limits: &str) -> TestGateway {
    TestGateway::new().setting(&format!(
        "limits = {{ {limits} }}\n[governance]\nauth = \"keys\"\npolicy = {{ mode = \"all\" }}\n\
         [agents.ann]\nkeys = [\"{}\"]\n[agents.bob]\nkeys = [\"{}\"]",
        ANN.key, BOB.key
    ))
}

/// Agents that wait for one server are served in turn, whoever came first with how many.
#[tokio::test]
async fn one_agents_burst_does_not_delay_another() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let keys = "limits = { in_flight = 1 }";
    let gateway = two_agents("depth = 64").server_with("x", &backend, keys);
    let gateway = gateway.start().await;
    let ann = gateway.client_of(ANN, Front::Streamable, "/mcp").await;
    let bob = gateway.client_of(BOB, Front::Streamable, "/mcp").await;
    let call = async |client: &Client, id: &str| {
        let members = format!(r#""name":"mcp_x_echo","arguments":{{"call":{id}}}"#);
        client.ask(id, "tools/call", &members).await;
    };
    call(&ann, "1").await;
    let mut running = backend.asked("tools/call").await;
    for (waiting, id) in ["2", "3", "4"].into_iter().enumerate() {
        call(&ann, id).await;
        queued_as(&gateway, &ann, waiting + 1).await;
    }
    call(&bob, "5").await;
    queued_as(&gateway, &ann, 4).await;
    let mut order = Vec::new();
    for _ in 0..4 {
        running.answer(DONE).await;
        running = backend.asked("tools/call").await;
        order.push(running.envelope.param(&["arguments", "call"]).unwrap());
    }
    running.answer(DONE).await;
    assert_eq!(order, ["2", "5", "3", "4"]);
    gateway.stop().await;
}

/// Waits until so many calls wait; strangers do not see that.
async fn queued_as(gateway: &Gateway, client: &Client, count: usize) {
    let name = tollbridge::names::ServerName::parse("x").unwrap();
    let backend = gateway.running.core().proxy.backends().get(&name);
    let backend = backend.unwrap();
    let waiting = async {
        while backend.queued() != count {
            // Its answer leaves time for the call to come.
            client.is_quiet().await;
        }
    };
    soon("the calls wait", waiting).await;
}

/// What an agent has under way, those that wait for a server included, is counted for itself.
#[tokio::test]
async fn an_agent_has_so_many_calls_under_way() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let gateway = two_agents("in_flight_per_agent = 2").server("x", &backend);
    let gateway = gateway.start().await;
    for front in Front::ALL {
        let ann = gateway.client_of(ANN, front, "/mcp").await;
        let bob = gateway.client_of(BOB, front, "/mcp").await;
        ask(&ann, "1").await;
        let first = backend.asked("tools/call").await;
        ask(&ann, "2").await;
        let second = backend.asked("tools/call").await;
        ask(&ann, "3").await;
        let failure = ann.answer("3").await.failure();
        assert_eq!(failure["code"], -32004, "{front:?} {failure}");
        let data = &failure["data"];
        assert_eq!(data["code"], "RATE_LIMITED");
        assert_eq!(
            (&data["limited"], &data["limit"]),
            (&json!("in_flight"), &json!(2))
        );
        assert_eq!(
            (&data["retryable"], &data["retryAfterMs"]),
            (&json!(true), &json!(1000))
        );
        let refused = records(&gateway).pop().unwrap();
        assert_eq!(refused.decision, RecordedDecision::Refused);
        assert_eq!(
            refused.rule.as_deref(),
            Some("concurrent calls of the agent")
        );
        assert_eq!(refused.price.get(), 0);
        ask(&bob, "4").await;
        backend.asked("tools/call").await.answer(DONE).await;
        assert!(
            bob.answer("4").await.result.is_some(),
            "agents do not share"
        );
        first.answer(DONE).await;
        assert!(ann.answer("1").await.result.is_some());
        ask(&ann, "5").await;
        backend.asked("tools/call").await.answer(DONE).await;
        assert!(ann.answer("5").await.result.is_some(), "back under it");
        second.answer(DONE).await;
        assert!(ann.answer("2").await.result.is_some());
    }
    gateway.stop().await;
}

/// A session has so many requests under way; one past that is told when to come back.
#[tokio::test]
async fn a_session_has_so_many_requests_under_way() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    for front in [Front::Sse, Front::Stdio] {
        let client = gateway.client(front, "/mcp", "{}").await;
        ask(&client, "0").await;
        let first = backend.asked("tools/call").await;
        for id in 1..CALLS_MAX {
            ask(&client, &id.to_string()).await;
        }
        client.ask("9000", "ping", "").await;
        let failure = client.answer("9000").await.failure();
        assert_eq!(failure["code"], -32600, "{failure}");
        assert_eq!(failure["data"]["retryable"], true, "{failure}");
        assert_eq!(failure["data"]["retryAfterMs"], 1000, "{failure}");
        first.answer(DONE).await;
        assert!(client.answer("0").await.result.is_some());
        client.ask("9001", "ping", "").await;
        assert!(client.answer("9001").await.result.is_some(), "{front:?}");
        for _ in 1..CALLS_MAX {
            backend.asked("tools/call").await.answer(DONE).await;
        }
    }
    gateway.stop().await;
}

/// What a client is told that may succeed later says when; what never will does not.
#[tokio::test]
async fn retry_after_is_told_where_it_makes_sense() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let limits = "limits = { sessions_per_agent = 1, body = \"1KiB\" }";
    let gateway = TestGateway::new().setting(limits).server("x", &backend);
    let gateway = gateway.start().await;
    let http = gateway.http();
    let initialize = || request("1", "initialize", r#"{"protocolVersion":"2025-11-25"}"#);
    let told = |answer: &Answer| {
        let after = answer.header("retry-after").map(str::to_owned);
        (answer.status().as_u16(), after)
    };
    let large = http.post("/mcp", " ".repeat(1025)).await;
    assert_eq!(told(&large), (413, None));
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    ask(&client, "1").await;
    let first = backend.asked("tools/call").await;
    let after = |seconds: &str| Some(seconds.to_owned());
    let busy = http.post("/mcp", initialize()).await;
    assert_eq!(told(&busy), (429, after("1")));
    let why: Value = serde_json::from_str(&busy.text().await).expect("it is JSON");
    assert_eq!(why["id"], 1, "{why}");
    assert_eq!(why["error"]["data"]["reason"], "sessions_busy", "{why}");
    let accept = [("accept", "text/event-stream")];
    assert_eq!(told(&http.get("/sse", &accept).await), (429, after("1")));
    first.answer(DONE).await;
    assert!(client.answer("1").await.result.is_some());
    let idle = async {
        // The session is free once its answer is out.
        while told(&http.post("/mcp", initialize()).await).0 != 200 {}
    };
    soon("a session ends for another", idle).await;
    gateway.running.core().proxy.sessions().close_all();
    let stopping = http.post("/mcp", initialize()).await;
    assert_eq!(told(&stopping), (503, after("1")));
    assert_eq!(told(&http.get("/sse", &accept).await), (503, after("1")));
    gateway.stop().await;
}

/// Before its servers are known the gateway is not ready, and says when to look again.
#[tokio::test]
async fn a_gateway_that_starts_says_when_to_come_back() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    backend.on_request(|_| Some(Auto::Nothing));
    let gateway = TestGateway::new().server("x", &backend).launch().await;
    let answer = gateway.http().get("/readyz", &[]).await;
    let told = (answer.status().as_u16(), answer.header("retry-after"));
    assert_eq!(told, (503, Some("1")));
    gateway.stop().await;
}

/// Bytes of one answer to a client that does not read.
const ANSWER_BYTES: usize = 3 << 20;

/// A client that asks and asks and does not read the answers loses its session once so many bytes
/// wait for it; others are served meanwhile.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let gateway = TestGateway::new().start().await;
    let mut stream = tokio::net::TcpStream::connect(gateway.addr())
        .await
        .unwrap();
    let head = "GET /sse HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\
                connection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut read = String::new();
    let endpoint = async {
        loop {
            let mut part = [0; 1024];
            let count = stream.read(&mut part).await.unwrap();
            read.push_str(std::str::from_utf8(&part[..count]).unwrap());
            let path = read
                .split("data: ")
                .nth(1)
                .and_then(|rest| rest.split_once('\n'));
            if let Some((path, _)) = path {
                return path.to_owned();
            }
        }
    };
    let endpoint = soon("the endpoint", endpoint).await;
    let id = format!("\"{}\"", "x".repeat(ANSWER_BYTES));
    let http = gateway.http();
    let mut taken = 0;
    let cut_off = async {
        while http
            .post(&endpoint, request(&id, "ping", "{}"))
            .await
            .status()
            == 202
        {
            taken += 1;
            assert!(
                taken * ANSWER_BYTES < UNREAD_BYTES_MAX + SLACK,
                "{taken} answers"
            );
        }
    };
    soon("the session ends", cut_off).await;
    assert!(
        taken * ANSWER_BYTES > UNREAD_BYTES_MAX - SLACK,
        "{taken} answers"
    );
    gateway
        .client(Front::Sse, "/mcp", "{}")
        .await
        .is_quiet()
        .await;
    let rest = async { while let Ok(1..) = stream.read(&mut vec![0; 1 << 20]).await {} };
    soon("its stream ends", rest).await;
    gateway.stop().await;
}

/// What the system and the edge hold of a stream beside what waits in it.
const SLACK: usize = 16 << 20;

/// The same holds of a request that is refused for its head alone: its client may send the body when it
/// has heard that, and the next request behind it.
#[tokio::test]
async fn what_is_refused_unread_is_taken() {
    let gateway = TestGateway::new().start().await;
    let body = request("1", "ping", &format!("{{{}}}", " ".repeat(1 << 20)));
    let head = |path: &str, kind: &str, host: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {kind}\r\naccept: */*\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        )
    };
    let json = "application/json";
    for (refused, status) in [
        (head("/nowhere", json, "localhost"), 404),
        (head("/messages/?session_id=x", json, "localhost"), 404),
        (head("/mcp", "text/plain", "localhost"), 415),
        (head("/mcp", json, "elsewhere.example"), 403),
    ] {
        let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
        stream.write_all(refused.as_bytes()).await.unwrap();
        answers(&mut stream, status).await;
        let next = [&body, &*head("/mcp", json, "localhost"), &body].concat();
        stream.write_all(next.as_bytes()).await.unwrap();
        answers(&mut stream, 200).await;
    }
    gateway.stop().await;
}

/// Reads an answer that has this status.
async fn answers(stream: &mut TcpStream, status: u16) {
    let mut answer = vec![0; 1024];
    let read = soon("the answer", stream.read(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    let line = format!("HTTP/1.1 {status} ");
    assert!(answer.starts_with(&line), "{answer}");
}

/// What is refused on stdin before it is a message is refused under its id, wherever that stands: its
/// client waits for the answer. What is no request has none.
#[tokio::test]
async fn a_request_that_is_refused_unread_keeps_its_id() {
    let gateway = TestGateway::new().setting("limits = { body = \"64KiB\", depth = 16 }");
    let gateway = gateway.start().await;
    let client = gateway.client(Front::Stdio, "/mcp", "{}").await;
    let long = format!("\"{}\"", "x".repeat(1 << 17));
    let deep = "[".repeat(32) + &"]".repeat(32);
    for (value, code) in [(long.as_str(), -32600), (&deep, -32600), ("x", -32700)] {
        let first = format!(r#"{{"id":1,"method":"ping","params":{{"a":{value}}}}}"#);
        let last = format!(r#"{{"method":"ping","params":{{"a":{value}}},"id":"b"}}"#);
        for (message, id) in [(first, Some("1")), (last, Some("\"b\""))] {
            client.send(message).await;
            let refused = client.next().await;
            assert_eq!((refused.id.as_deref(), refused.code()), (id, code));
        }
        client
            .send(format!(r#"{{"id":1,"result":{{"a":{value}}}}}"#))
            .await;
        let refused = client.next().await;
        assert_eq!((refused.id.as_deref(), refused.code()), (None, code));
    }
    client.is_quiet().await;
    gateway.stop().await;
}

/// A client that reads when it has sent all is told why its message was too large: its connection is
/// not reset meanwhile, and serves on.
#[tokio::test]
async fn what_is_too_large_is_taken_and_refused() {
    let gateway = TestGateway::new();
    let gateway = gateway
        .setting("limits = { body = \"64KiB\" }")
        .start()
        .await;
    let large = " ".repeat(4 << 20);
    for _ in 0..50 {
        let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
        for _ in 0..2 {
            let head = format!(
                "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: \
                 application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n",
                gateway.addr(),
                large.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(large.as_bytes()).await.unwrap();
            let mut answer = vec![0; 1024];
            let read = stream.read(&mut answer).await.unwrap();
            let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
            assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
            assert!(answer.contains("limits.body (65536 bytes)"), "{answer}");
            assert!(answer.contains(r#""jsonrpc":"2.0""#), "{answer}");
        }
    }
    gateway.stop().await;
}
