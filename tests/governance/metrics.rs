//! `/metrics`: what it counts, and who sees it.

use std::collections::BTreeMap;

use crate::{
    harness::{ANN, BOB, Server, Stage, keyed},
    support::{Front, TestGateway, http::Http},
};

/// Every series by its name and labels, as they are written.
async fn scrape(http: &Http) -> BTreeMap<String, f64> {
    let answer = http.get("/metrics", &[]).await;
    assert_eq!(answer.status(), 200);
    let form = answer.header("content-type").unwrap();
    assert!(form.starts_with("application/openmetrics-text"), "{form}");
    let text = answer.text().await;
    assert!(text.ends_with("# EOF\n"), "{text}");
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, figure) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), figure.parse().unwrap())
    };
    series.map(pair).collect()
}

const TERMS: &str = "[governance]\nprice = \"0.25\"\n\
                     args = [{ name = \"never\", at = \"/never\", equals = true }]\n";

#[tokio::test]
async fn what_calls_leave() {
    let stage = Stage::new(TERMS, "").await;
    let before = scrape(&stage.http()).await;
    let of = |series: &BTreeMap<String, f64>, name: &str| {
        *series
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {series:#?}"))
    };
    assert_eq!(
        of(
            &before,
            r#"tollbridge_server_state{server="x",state="connected"}"#
        ),
        1.0
    );
    assert_eq!(
        of(
            &before,
            r#"tollbridge_server_state{server="x",state="failed"}"#
        ),
        0.0
    );
    assert_eq!(of(&before, "tollbridge_streams"), 0.0);
    assert_eq!(of(&before, "tollbridge_serving"), 1.0);
    let reader = stage.client(Front::Sse).await;
    for _ in 0..3 {
        stage.must(r#"{"a":1}"#).await;
    }
    stage.must_not(r#"{"never":true}"#).await;
    let after = scrape(&stage.http()).await;
    for (name, expect) in [
        (
            r#"tollbridge_server_calls_total{server="x",outcome="answered"}"#,
            3.0,
        ),
        (
            r#"tollbridge_server_calls_total{server="x",outcome="failed"}"#,
            0.0,
        ),
        (r#"tollbridge_server_calls_in_flight{server="x"}"#, 0.0),
        (
            r#"tollbridge_server_call_duration_seconds_count{server="x"}"#,
            3.0,
        ),
        (
            r#"tollbridge_server_call_duration_seconds_bucket{le="+Inf",server="x"}"#,
            3.0,
        ),
        (
            r#"tollbridge_spent_micro_dollars_total{server="x"}"#,
            750_000.0,
        ),
        (
            r#"tollbridge_refused_calls_total{code="UNAUTHORIZED"}"#,
            1.0,
        ),
        ("tollbridge_audit_lost_records_total", 0.0),
        ("tollbridge_streams", 1.0),
    ] {
        assert_eq!(of(&after, name), expect, "{name}");
    }
    for bytes in ["sent", "received"] {
        let name = format!("tollbridge_server_{bytes}_bytes_total{{server=\"x\"}}");
        assert!(of(&after, &name) > 3.0 * 7.0, "{name}");
    }
    assert!(of(&after, "tollbridge_sessions") >= 1.0);
    drop(reader);
    stage.stop().await;
}

#[tokio::test]
async fn only_admins_see_who_is_busy() {
    let settings = keyed("[agents.ann]\nadmin = true\n[agents.bob]\n[governance]\nprice = \"0\"\n");
    let server = Server::start().await;
    let gateway = TestGateway::new()
        .setting(&settings)
        .server("x", &server.backend)
        .start()
        .await;
    let whole = scrape(&gateway.http().with_key(ANN.key)).await;
    assert!(whole.contains_key("tollbridge_sessions"), "{whole:#?}");
    for http in [gateway.http(), gateway.http().with_key(BOB.key)] {
        let part = scrape(&http).await;
        assert!(part.contains_key(r#"tollbridge_server_state{server="x",state="connected"}"#));
        for hidden in [
            "spent", "sessions", "streams", "refused", "duration", "_bytes",
        ] {
            assert!(
                !part.keys().any(|name| name.contains(hidden)),
                "{hidden}: {part:#?}"
            );
        }
    }
    gateway.stop().await;
}
