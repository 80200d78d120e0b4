//! `/status`: every field that monitors read is there, in JSON and on the page.

use serde_json::Value;

use crate::support::{Backend, Era, Front, TestGateway, Transport, wire};

/// The keys of `object`, sorted.
fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn what_monitors_read_is_there() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    backend
        .asked("tools/call")
        .await
        .answer(r#"{"content":[]}"#)
        .await;
    client.answer("1").await;
    client
        .ask("2", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let under_way = backend.asked("tools/call").await;
    let status = gateway.http().get("/status", &[]).await.text().await;
    let status = wire::value(&status);
    insta::assert_snapshot!(keys(&status).join(" "), @"config confinement governance limits listed servers sessions sessions_open started_at status uptime_seconds version views");
    assert_eq!(status["sessions_open"], 1, "{status}");
    let server = &status["servers"][0];
    insta::assert_snapshot!(keys(server).join(" "), @"answered breaker cpu_seconds failed failed_starts health_checks history in_flight instances_busy instances_live last_listed latency_ms_p50 latency_ms_p99 memory_bytes name odd_lines offers pid queued refused restarts revision server_info since state transport");
    assert_eq!(
        (&server["in_flight"], &server["answered"]),
        (&1.into(), &1.into())
    );
    assert!(
        server["pid"].is_u64() && server["latency_ms_p99"].is_f64(),
        "{server}"
    );
    let memory = server["memory_bytes"].as_u64().unwrap();
    assert!((1..1 << 30).contains(&memory), "{server}");
    assert!(server["cpu_seconds"].as_f64().unwrap() < 60.0, "{server}");
    let http = gateway.http();
    let figures = http.get("/metrics", &[]).await.text().await;
    let line = format!("tollbridge_server_memory_bytes{{server=\"x\"}} {memory}");
    assert!(
        figures.contains(&line),
        "looked at once within two seconds: {figures}"
    );
    let page = http.get("/status", &[("accept", "text/html")]).await;
    let page = page.text().await;
    let row = page.split("<tr>").nth(2).unwrap();
    let shown: Vec<&str> = row
        .split("<td")
        .map(|cell| cell.split_once('>').unwrap_or_default().1)
        .collect();
    assert_eq!(
        shown[8..10],
        ["1", "1"],
        "calls, and those under way: {row}"
    );
    assert_eq!(shown[12], server["pid"].to_string(), "{row}");
    let headings = page
        .split("<th>")
        .skip(1)
        .map(|heading| heading.split('<').next().unwrap());
    insta::assert_snapshot!(headings.take(14).collect::<Vec<_>>().join(", "), @"Server, State, Transport, Revision, Tools, Resources, Prompts, Calls, Under way, p50 ms, p99 ms, Pid, Restarts, Last listed");
    drop(under_way);
    gateway.stop().await;
}
