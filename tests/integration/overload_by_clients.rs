//! Clients that take all they can get: a paying agent is served beside them, and the process keeps its memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tollbridge::{session::modern::LISTEN_BYTES_MAX, status::StatusAccess};

use crate::support::{
    Auto, Backend, Era, Gateway, TestGateway, Transport,
    http::Http,
    soon,
    wire::{Envelope, request, spawn},
};

const PAYING: &str = "tbk_paying_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7";
const NOBODY: &str = "tbk_nobody_9f8e7d6c5b4a39281706f5e4d3c2b1a0";

/// From one call of the paying agent to the next.
const PAUSE: Duration = Duration::from_millis(20);

/// How long calls on a connection that is kept may take. They need a few milliseconds; this leaves room for
/// machines that are slow or busy, and is below every time for which a connection waits.
const KEPT_MAX: Duration = Duration::from_millis(200);

/// How long calls may take of which each has a connection of its own.
const FRESH_MAX: Duration = Duration::from_secs(3);

async fn gateway(settings: &str) -> (Gateway, Backend) {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    backend.on_request(|envelope| {
        let result = r#"{"content":[]}"#.to_owned();
        (envelope.method() == "tools/call").then_some(Auto::Result(result))
    });
    let gateway = TestGateway::new().setting(settings).server("x", &backend);
    (gateway.start().await, backend)
}

fn keyed(settings: &str) -> String {
    format!(
        "{settings}\n[governance]\nauth = \"keys\"\nprice = \"0\"\n\
         refusal_rate = {{ calls = 10, per = \"1s\", burst = 20 }}\n\
         [agents.paying]\nkeys = [\"{PAYING}\"]\npolicy = {{ mode = \"all\" }}\n\
         [agents.nobody]\nkeys = [\"{NOBODY}\"]"
    )
}

fn call() -> String {
    request("1", "tools/call", r#"{"name":"mcp_x_echo","arguments":{}}"#)
}

/// The median time of so many calls, all of which have to be answered.
async fn median(calls: usize, client: impl Fn() -> Http) -> Duration {
    let mut times = Vec::new();
    for _ in 0..calls {
        let (http, start) = (client(), Instant::now());
        let answer = timeout(Duration::from_secs(15), http.post("/mcp", call())).await;
        let answer = answer.expect("it is answered");
        assert_eq!(answer.status(), 200);
        assert!(Envelope::of(&answer.text().await).result.is_some());
        times.push(start.elapsed());
        sleep(PAUSE).await;
    }
    times.sort();
    times[calls / 2]
}

/// Others use this machine too, so that it may take several attempts until calls are not disturbed by them.
async fn is_served(http: &Http) {
    let mut found = Vec::new();
    for _ in 0..5 {
        found.push(median(50, || http.clone()).await);
        if found.last() < Some(&KEPT_MAX) {
            return;
        }
    }
    panic!("calls on a connection that is kept took {found:?}");
}

/// Sends `text` again and again, on `count` connections at a time that are kept as long as may be.
fn connections(gateway: &Gateway, text: &str, count: usize) -> Vec<AbortOnDropHandle<()>> {
    let addr = gateway.addr();
    let one = |_| {
        let text = text.to_owned();
        AbortOnDropHandle::new(spawn(async move {
            loop {
                let Ok(mut stream) = TcpStream::connect(addr).await else {
                    continue;
                };
                drop(stream.write_all(text.as_bytes()).await);
                let mut sink = [0; 1024];
                while let Ok(1..) = stream.read(&mut sink).await {}
                // It is about connections, and not about who has the processors.
                sleep(Duration::from_secs(1)).await;
            }
        }))
    };
    (0..count).map(one).collect()
}

/// A request whose body does not come to its end.
fn unfinished(gateway: &Gateway, bytes: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {bytes}\r\n\r\n{{\"a\":",
        gateway.addr()
    )
}

#[tokio::test]
async fn strangers_with_unfinished_bodies_starve_nobody() {
    let (gateway, _backend) = gateway(&keyed("limits.connections = 40")).await;
    let paying = gateway.http().with_key(PAYING);
    is_served(&paying).await;
    for bytes in [1000, 4_000_000] {
        let _flood = connections(&gateway, &unfinished(&gateway, bytes), 200);
        sleep(Duration::from_millis(500)).await;
        is_served(&paying).await;
        let fresh = median(5, || gateway.http().with_key(PAYING)).await;
        assert!(fresh < FRESH_MAX, "{bytes}: {fresh:?}");
    }
    gateway.stop().await;
}

/// Where nobody has a key, who is served already goes on, and others get in after a while.
#[tokio::test]
async fn unfinished_bodies_starve_nobody_where_there_are_no_keys() {
    let (gateway, _backend) = gateway("limits.connections = 40").await;
    let http = gateway.http();
    is_served(&http).await;
    let _flood = connections(&gateway, &unfinished(&gateway, 4_000_000), 90);
    sleep(Duration::from_secs(1)).await;
    is_served(&http).await;
    let fresh = gateway.http();
    let answer = timeout(Duration::from_secs(15), fresh.post("/mcp", call())).await;
    assert_eq!(answer.expect("it gets in").status(), 200);
    gateway.stop().await;
}

/// Who is refused too often is slowed down, however many requests it makes at once.
#[tokio::test]
async fn refused_calls_slow_nobody() {
    let (gateway, _backend) = gateway(&keyed("")).await;
    let paying = gateway.http().with_key(PAYING);
    let refused = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let one = |_| {
        let (nobody, refused) = (gateway.http().with_key(NOBODY), Arc::clone(&refused));
        AbortOnDropHandle::new(spawn(async move {
            loop {
                nobody.post("/mcp", call()).await.text().await;
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }))
    };
    let _flood: Vec<_> = (0..8).map(one).collect();
    is_served(&paying).await;
    sleep_until(start + Duration::from_secs(3)).await;
    let refused = refused.load(Ordering::Relaxed);
    // A burst of 20, ten a second, and for each of the eight one that waits as long as that takes.
    let max = 20 + usize::try_from(start.elapsed().as_millis()).unwrap() / 5;
    assert!(refused > 20 && refused < max, "{refused} of {max}");
    gateway.stop().await;
}

/// Half-sent bodies take so much and no more: further ones are turned away, and calls that need none pass.
#[tokio::test]
async fn half_sent_bodies_take_a_part_of_the_memory() {
    const HALF: usize = 4 << 20;
    let (gateway, _backend) =
        gateway("[limits]\nbytes_in_flight = \"8MiB\"\nbody_grace = \"1m\"").await;
    let head = unfinished(&gateway, 1 << 20);
    let body = vec![b' '; 512 << 10];
    let mut statuses = Vec::new();
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        drop(stream.write_all(&body).await);
        let mut answer = [0; 12];
        let read = timeout(Duration::from_millis(200), stream.read_exact(&mut answer)).await;
        if let Ok(Ok(_)) = read {
            statuses.push(String::from_utf8(answer.to_vec()).unwrap());
        } else {
            open.push(stream);
        }
        let used = in_flight(&gateway);
        assert!(used <= HALF, "{used}");
    }
    assert!(
        open.len() >= 3 && statuses.len() >= 8,
        "{} {statuses:?}",
        open.len()
    );
    assert!(
        statuses.iter().all(|it| it == "HTTP/1.1 503"),
        "{statuses:?}"
    );
    assert_eq!(gateway.http().post("/mcp", call()).await.status(), 200);
    drop(open);
    let given_back = async {
        while in_flight(&gateway) > 0 {
            sleep(PAUSE).await;
        }
    };
    soon("it is given back", given_back).await;
    gateway.stop().await;
}

/// Bytes of messages in memory.
fn in_flight(gateway: &Gateway) -> usize {
    let insight = StatusAccess::Full;
    let status = gateway.running.core().status.to_json(&insight).unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let bytes = status["limits"]["bytes_in_flight"].as_u64().unwrap();
    usize::try_from(bytes).unwrap()
}

/// Answers that nobody reads fill the memory as far as they may: new calls are turned away, and served once
/// somebody reads.
#[tokio::test]
async fn unread_answers_turn_new_calls_away() {
    const MIB: usize = 1 << 20;
    let (gateway, backend) = gateway("limits.bytes_in_flight = \"64MiB\"").await;
    let result = format!(r#"{{"content":[],"pad":"{}"}}"#, "x".repeat(12 * MIB));
    backend.on_request(move |envelope| {
        let result = result.clone();
        (envelope.method() == "tools/call").then_some(Auto::Result(result))
    });
    let text = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{}",
        gateway.addr(),
        call().len(),
        call()
    );
    let mut unread = Vec::new();
    let filled = async {
        while in_flight(&gateway) < 48 * MIB {
            let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            unread.push(stream);
            sleep(Duration::from_millis(300)).await;
            assert!(in_flight(&gateway) <= 80 * MIB);
        }
    };
    timeout(Duration::from_secs(60), filled)
        .await
        .expect("it fills");
    let answer = gateway.http().post("/mcp", call()).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    drop(unread);
    let served = async {
        while gateway.http().post("/mcp", call()).await.status() != 200 {
            sleep(PAUSE).await;
        }
    };
    soon("there is room", served).await;
    gateway.stop().await;
}

/// A listen stream keeps what it was opened with, and not the body around it.
#[tokio::test]
async fn listen_streams_do_not_keep_their_bodies() {
    let (gateway, _backend) = gateway("limits.bytes_in_flight = \"16MiB\"").await;
    let listen = async |members: &str, junk: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","junk":"{junk}","params":{{"notifications":{{"toolsListChanged":true{members}}},"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{{"name":"t","version":"1"}},"io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        );
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n\
             mcp-method: subscriptions/listen\r\ncontent-length: {}\r\n\r\n",
            gateway.addr(),
            body.len()
        );
        let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        let read = stream.read_exact(&mut status);
        soon("the answer begins", read).await.unwrap();
        (stream, String::from_utf8(status.to_vec()).unwrap())
    };
    let mut open = Vec::new();
    for _ in 0..4 {
        let (stream, status) = listen("", &"x".repeat(3 << 20)).await;
        assert_eq!(status, "HTTP/1.1 200");
        open.push(stream);
    }
    let given_back = async {
        while in_flight(&gateway) > 0 {
            sleep(PAUSE).await;
        }
    };
    soon("the bodies are given back", given_back).await;
    for (bytes, expect) in [
        (LISTEN_BYTES_MAX - 500, "HTTP/1.1 200"),
        (LISTEN_BYTES_MAX, "HTTP/1.1 400"),
    ] {
        let members = format!(r#","k":"{}""#, "x".repeat(bytes));
        let (_stream, status) = listen(&members, "").await;
        assert_eq!(status, expect, "{bytes}");
    }
    gateway.stop().await;
}
