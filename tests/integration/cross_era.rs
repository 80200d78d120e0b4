//! Clients of one era with servers of the other: plain requests cross, questions fail clearly.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::support::{
    ALL, Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, value,
    wire::{member, request},
};

/// The four pairings, on each transport of the server and each kind of client.
async fn each_pair(check: impl AsyncFn(&Client, &Backend, Era)) {
    for (transport, era) in ALL {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        for front in Front::ALL {
            for path in ["/mcp", "/mcp/servers/x"] {
                let client = gateway.client(front, path, r#"{"elicitation":{}}"#).await;
                check(&client, &backend, era).await;
            }
        }
        gateway.stop().await;
    }
}

fn is_merged(client: &Client) -> bool {
    client.path == "/mcp"
}

/// What a server must see of a request: the envelope of its own era, and nothing of the other.
fn expect_envelope(
    asked: &crate::support::backend::Asked,
    era: Era,
    front: Front,
    name: Option<&str>,
) {
    let version = asked
        .envelope
        .param(&["_meta", "io.modelcontextprotocol/protocolVersion"]);
    let capabilities = asked
        .envelope
        .param(&["_meta", "io.modelcontextprotocol/clientCapabilities"]);
    let header = |name: &str| asked.headers.get(name).map(|value| value.to_str().unwrap());
    let over_http = header("host").is_some();
    match era {
        Era::Legacy => {
            assert_eq!((version, capabilities), (None, None), "{front:?}");
            assert_eq!(header("mcp-method"), None);
            assert_eq!(header("mcp-name"), None);
        }
        Era::Modern => {
            assert_eq!(version.as_deref(), Some(r#""2026-07-28""#));
            let expect = if front.is_modern() {
                r#"{"elicitation":{}}"#
            } else {
                "{}"
            };
            assert_eq!(capabilities.as_deref(), Some(expect));
            if over_http {
                assert_eq!(header("mcp-protocol-version"), Some("2026-07-28"));
                assert_eq!(header("mcp-method"), Some(asked.envelope.method()));
                assert_eq!(header("mcp-name"), name);
                assert_eq!(header("mcp-session-id"), None);
            }
        }
    }
}

/// What there is from 2026-07-28 on is unknown to clients of before: a listen stream of theirs would go on
/// when they have left, since their leaving cancels nothing.
#[tokio::test]
async fn legacy_clients_have_no_methods_of_the_modern_era() {
    let (_backend, gateway) = Gateway::governed(Transport::Stdio, Era::Modern, "").await;
    let wish = r#""notifications":{"toolsListChanged":true}"#;
    for method in ["server/discover", "subscriptions/listen"] {
        for front in Front::LEGACY {
            let client = gateway.client(front, "/mcp", "{}").await;
            client.ask("1", method, wish).await;
            assert_eq!(
                client.answer("1").await.code(),
                -32601,
                "{front:?} {method}"
            );
        }
        let bare = request("1", method, &format!("{{{wish}}}"));
        let answer = gateway.http().post("/mcp", bare).await;
        assert!(!answer.is_events(), "{method} without a session");
        let answer = value(&answer.text().await);
        assert_eq!(answer["error"]["code"], -32601, "{answer}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn calls_cross() {
    each_pair(async |client, backend, era| {
        let tool = if is_merged(client) {
            "mcp_x_echo"
        } else {
            "echo"
        };
        let members = format!(r#""name":"{tool}","arguments":{{"a":1e3}}"#);
        client.ask("1", "tools/call", &members).await;
        let asked = backend.asked("tools/call").await;
        assert_eq!(
            asked.envelope.param(&["name"]).as_deref(),
            Some(r#""echo""#)
        );
        assert_eq!(
            asked.envelope.param(&["arguments"]).as_deref(),
            Some(r#"{"a":1e3}"#)
        );
        expect_envelope(&asked, era, client.front, Some("echo"));
        let marker = if era == Era::Modern {
            r#","resultType":"complete""#
        } else {
            ""
        };
        asked
            .answer(&format!(r#"{{"content":[],"_meta":{{"k":1e3}}{marker}}}"#))
            .await;
        let result = client.answer("1").await.result.unwrap();
        let expect = match (client.front.is_modern(), era) {
            (false, _) => r#"{"content":[],"_meta":{"k":1e3}}"#,
            (true, Era::Legacy) => r#"{"resultType":"complete","content":[],"_meta":{"k":1e3}}"#,
            (true, Era::Modern) => r#"{"content":[],"_meta":{"k":1e3},"resultType":"complete"}"#,
        };
        assert_eq!(result, expect, "{:?}", client.front);
    })
    .await;
}

#[tokio::test]
async fn prompts_cross() {
    each_pair(async |client, backend, era| {
        let prompt = if is_merged(client) {
            "mcp_x_greet"
        } else {
            "greet"
        };
        let members = format!(r#""name":"{prompt}","arguments":{{"who":"y"}}"#);
        client.ask("1", "prompts/get", &members).await;
        let asked = backend.asked("prompts/get").await;
        assert_eq!(
            asked.envelope.param(&["name"]).as_deref(),
            Some(r#""greet""#)
        );
        expect_envelope(&asked, era, client.front, Some("greet"));
        asked.answer(r#"{"messages":[]}"#).await;
        assert_eq!(
            client.answer("1").await.value()["messages"],
            serde_json::json!([])
        );
    })
    .await;
}

#[tokio::test]
async fn completions_cross() {
    each_pair(async |client, backend, era| {
        let prompt = if is_merged(client) { "mcp_x_greet" } else { "greet" };
        let members = format!(
            r#""ref":{{"type":"ref/prompt","name":"{prompt}"}},"argument":{{"name":"who","value":"a"}}"#
        );
        client.ask("1", "completion/complete", &members).await;
        let asked = backend.asked("completion/complete").await;
        assert_eq!(asked.envelope.param(&["ref", "name"]).as_deref(), Some(r#""greet""#));
        expect_envelope(&asked, era, client.front, None);
        asked.answer(r#"{"completion":{"values":["abc"]}}"#).await;
        assert_eq!(client.answer("1").await.value()["completion"]["values"][0], "abc");
    })
    .await;
}

#[tokio::test]
async fn reads_cross() {
    each_pair(async |client, backend, era| {
        let uri = if is_merged(client) {
            "x+file:///a.txt"
        } else {
            "file:///a.txt"
        };
        client
            .ask("1", "resources/read", &format!(r#""uri":"{uri}""#))
            .await;
        let asked = backend.asked("resources/read").await;
        assert_eq!(
            asked.envelope.param(&["uri"]).as_deref(),
            Some(r#""file:///a.txt""#)
        );
        expect_envelope(&asked, era, client.front, Some("file:///a.txt"));
        asked
            .answer(r#"{"contents":[{"uri":"file:///a.txt","text":"hi"}]}"#)
            .await;
        let result = client.answer("1").await.value();
        assert_eq!(
            result["contents"][0]["uri"], uri,
            "{:?} {}",
            client.front, client.path
        );
        assert_eq!(
            result.get("resultType").is_some(),
            client.front.is_modern() && era == Era::Legacy,
            "{result}"
        );
        assert_eq!(
            result.get("ttlMs").is_some(),
            client.front.is_modern() && era == Era::Legacy,
            "{result}"
        );
    })
    .await;
}

/// A resource that is not found has the code of the client's era, whoever finds out.
#[tokio::test]
async fn missing_resources_have_the_code_of_the_era() {
    each_pair(async |client, backend, era| {
        let code = if client.front.is_modern() {
            -32602
        } else {
            -32002
        };
        if is_merged(client) {
            client
                .ask("1", "resources/read", r#""uri":"nowhere:a""#)
                .await;
            assert_eq!(client.answer("1").await.code(), code, "{:?}", client.front);
        }
        let uri = if is_merged(client) {
            "x+file:///gone"
        } else {
            "file:///gone"
        };
        client
            .ask("2", "resources/read", &format!(r#""uri":"{uri}""#))
            .await;
        let theirs = if era == Era::Modern { -32602 } else { -32002 };
        let refusal =
            format!(r#"{{"code":{theirs},"message":"no","data":{{"uri":"file:///gone"}}}}"#);
        backend.asked("resources/read").await.refuse(&refusal).await;
        let failed = client.answer("2").await.failure();
        assert_eq!(failed["code"], code, "{:?} {era:?} {failed}", client.front);
        assert_eq!(failed["data"]["uri"], uri);
    })
    .await;
}

/// A program that keeps to the era of the first message on its pipe runs once for each era in use;
/// the second process is not asked which one it speaks.
#[tokio::test]
async fn a_program_of_both_eras_runs_once_for_each() {
    const VERSION: [&str; 2] = ["_meta", "io.modelcontextprotocol/protocolVersion"];
    const GREETING: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#;
    let backend = Backend::start(Transport::Stdio, Era::Modern).await;
    let probes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&probes);
    backend.on_request(move |request| match request.method() {
        "server/discover" => {
            count.fetch_add(1, Ordering::SeqCst);
            None
        }
        "initialize" => Some(Auto::Result(GREETING.to_owned())),
        "tools/call" => Some(Auto::Hand),
        _ => None,
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..2 {
        for front in Front::ALL {
            let client = gateway.client(front, "/mcp", "{}").await;
            client
                .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
                .await;
            let asked = backend.asked("tools/call").await;
            let is_modern = asked.envelope.param(&VERSION).is_some();
            assert_eq!(is_modern, front.is_modern(), "{front:?} {round}");
            seen[usize::from(is_modern)].insert(asked.conn.id);
            asked.answer(r#"{"content":[]}"#).await;
            client.answer("1").await;
        }
    }
    let [legacy, modern] = seen;
    assert_eq!((legacy.len(), modern.len()), (1, 1));
    assert_ne!(legacy, modern);
    assert_eq!(probes.load(Ordering::SeqCst), 1);
    gateway.stop().await;
}

/// Old programs do not know `server/discover`: one exits on it and is started again, another says
/// nothing to it and is greeted in the other way beside. Both serve clients of both eras, soon.
#[tokio::test]
async fn programs_that_do_not_know_discovery_are_served() {
    for (to_discover, processes) in [(Auto::Die, 2), (Auto::Nothing, 1)] {
        let what = format!("{to_discover:?}");
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        backend.on_request(move |request| {
            (request.method() == "server/discover").then(|| to_discover.clone())
        });
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let tools = client.list("tools").await;
        assert!(
            tools.iter().any(|tool| tool["name"] == "mcp_x_echo"),
            "{what}: {tools:?}"
        );
        let status = gateway.status("x").await;
        assert_eq!(status["state"], "connected", "{what}: {status}");
        assert_eq!(status["revision"], "2025-11-25", "{what}");
        assert_eq!(status["restarts"], 0, "{what}");
        assert_eq!(backend.greeted(), 1, "{what}");
        for front in Front::ALL {
            let client = gateway.client(front, "/mcp", "{}").await;
            client
                .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
                .await;
            let asked = backend.asked("tools/call").await;
            assert_eq!(asked.conn.id, processes, "{what} {front:?}");
            asked.answer(r#"{"content":[]}"#).await;
            client.answer("1").await.value();
        }
        gateway.stop().await;
    }
}

/// A question cannot cross: the call fails with an error that names both revisions.
#[tokio::test]
async fn questions_do_not_cross() {
    each_pair(async |client, backend, era| {
        let tool = if is_merged(client) { "mcp_x_echo" } else { "echo" };
        let (front, members) = (client.front, format!(r#""name":"{tool}""#));
        match (front.is_modern(), era) {
            // The call goes on when the server can do without.
            (true, Era::Legacy) => {
                client.ask("1", "tools/call", &members).await;
                let asked = backend.asked("tools/call").await;
                asked.ask("9", "elicitation/create", r#"{"message":"?"}"#).await;
                let refused = backend.answered().await.failure();
                let message = refused["message"].as_str().unwrap();
                assert!(message.contains("2026-07-28"), "{message}");
                assert!(message.contains("2025-11-25"), "{message}");
                asked.answer("{}").await;
                client.answer("1").await;
            }
            (false, Era::Modern) => {
                client.ask("1", "tools/call", &members).await;
                let asked = backend.asked("tools/call").await;
                asked.answer(r#"{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?"}}}}"#).await;
                let failed = client.answer("1").await.failure();
                let message = failed["message"].as_str().unwrap();
                assert!(message.contains("2026-07-28") && message.contains("2025-11-25"), "{message}");
                client.ask("2", "tools/call", &members).await;
                let asked = backend.asked("tools/call").await;
                asked.refuse(r#"{"code":-32021,"message":"no","data":{"requiredCapabilities":{"elicitation":{}}}}"#).await;
                let failed = client.answer("2").await.failure();
                let message = failed["message"].as_str().unwrap();
                assert!(message.contains("2026-07-28") && message.contains("2025-11-25"), "{message}");
            }
            (true, Era::Modern) => {
                client.ask("1", "tools/call", &members).await;
                let asked = backend.asked("tools/call").await;
                let result = r#"{"resultType":"input_required","requestState":"s","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?"}}}}"#;
                asked.answer(result).await;
                let got = client.answer("1").await.result.unwrap();
                let sealed = member(&got, &["requestState"]).unwrap();
                assert_eq!(got.replace(&sealed, r#""s""#), result);
                let again = format!(r#"{members},"inputResponses":{{"a":{{"action":"decline"}}}},"requestState":{sealed}"#);
                client.ask("2", "tools/call", &again).await;
                let asked = backend.asked("tools/call").await;
                assert_eq!(asked.envelope.param(&["requestState"]).as_deref(), Some(r#""s""#));
                assert_eq!(asked.envelope.param(&["inputResponses"]).as_deref(), Some(r#"{"a":{"action":"decline"}}"#));
                asked.answer(r#"{"resultType":"complete"}"#).await;
                client.answer("2").await;
            }
            (false, Era::Legacy) => {}
        }
    })
    .await;
}

/// Subscriptions to resources do not cross either: legacy clients are told which revisions are in the
/// way, and modern ones what is honoured. The server hears nothing.
#[tokio::test]
async fn subscriptions_do_not_cross() {
    each_pair(async |client, backend, era| {
        let uri = if is_merged(client) {
            "x+file:///a.txt"
        } else {
            "file:///a.txt"
        };
        match (client.front.is_modern(), era) {
            (false, Era::Modern) => {
                for method in ["resources/subscribe", "resources/unsubscribe"] {
                    client.ask("1", method, &format!(r#""uri":"{uri}""#)).await;
                    let failed = client.answer("1").await.failure();
                    assert_eq!(failed["code"], -32603, "{:?} {failed}", client.front);
                    let message = failed["message"].as_str().unwrap();
                    assert!(message.contains(method), "{message}");
                    assert_eq!(failed["data"]["serverRevision"], "2026-07-28");
                    assert_eq!(failed["data"]["clientRevision"], "2025-11-25");
                }
            }
            (true, Era::Legacy) => {
                let wish = format!(
                    r#""notifications":{{"toolsListChanged":true,"resourceSubscriptions":["{uri}"]}}"#
                );
                client.ask("1", "subscriptions/listen", &wish).await;
                let told = client
                    .must("notifications/subscriptions/acknowledged")
                    .await;
                let honoured = told.param(&["notifications"]);
                assert_eq!(honoured.as_deref(), Some(r#"{"toolsListChanged":true}"#));
            }
            (false, Era::Legacy) | (true, Era::Modern) => {}
        }
        let asked = backend.was_asked().await;
        assert!(asked.is_none(), "{:?} {asked:?}", client.front);
    })
    .await;
}

/// Nor does what is asked about tasks, which have methods of the same names in both eras and mean other
/// things.
#[tokio::test]
async fn what_is_asked_about_tasks_does_not_cross() {
    each_pair(async |client, backend, era| {
        let crosses = client.front.is_modern() != (era == Era::Modern);
        // Merged routes know no tasks.
        if is_merged(client) || !crosses {
            return;
        }
        for method in ["tasks/get", "tasks/cancel", "tasks/list"] {
            client.ask("1", method, r#""taskId":"t""#).await;
            let failed = client.answer("1").await.failure();
            assert_eq!(failed["code"], -32603, "{:?} {failed}", client.front);
            let message = failed["message"].as_str().unwrap();
            assert!(message.contains(method), "{message}");
            let revision = |of: &str| failed["data"][of].as_str().map(str::to_owned);
            let both = [revision("serverRevision"), revision("clientRevision")];
            assert!(both.contains(&Some("2026-07-28".to_owned())), "{failed}");
            assert!(both.iter().all(Option::is_some), "{failed}");
        }
        let asked = backend.was_asked().await;
        assert!(asked.is_none(), "{:?} {asked:?}", client.front);
    })
    .await;
}

/// A subscription that does not cross says nothing of its server, which has not heard of it.
#[tokio::test]
async fn what_does_not_cross_counts_for_nothing() {
    let (transport, keys) = (Transport::Http, "breaker = { failures = 2 }");
    let (backend, gateway) = Gateway::governed(transport, Era::Modern, keys).await;
    backend.on_request(|request| (request.method() == "tools/call").then_some(Auto::Status(502)));
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    for _ in 0..2 {
        client
            .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        let failed = client.answer("1").await.failure();
        assert_eq!(failed["data"]["reason"], "bad_answer", "{failed}");
        let uri = r#""uri":"x+file:///a.txt""#;
        client.ask("2", "resources/subscribe", uri).await;
        let failed = client.answer("2").await.failure();
        assert_eq!(failed["data"]["server"], "x", "{failed}");
    }
    let status = gateway.status("x").await;
    assert_eq!(status["breaker"]["state"], "open", "{status}");
    gateway.stop().await;
}

/// An output schema of something else than objects, which 2026-07-28 allows, would cost clients of
/// legacy revisions the whole list.
#[tokio::test]
async fn output_schemas_are_of_objects_for_legacy_clients() {
    const TOOLS: &str = r#"[{"name":"a","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}},{"name":"b","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}]"#;
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    backend.set_list("tools/list", TOOLS);
    let gateway = TestGateway::new().server("x", &backend).start().await;
    for front in Front::ALL {
        for path in ["/mcp", "/mcp/servers/x"] {
            let client = gateway.client(front, path, "{}").await;
            let tools = client.list("tools").await;
            let expect = if front.is_modern() { "array" } else { "null" };
            let kind = &tools[0]["outputSchema"]["type"];
            assert_eq!(kind.as_str().unwrap_or("null"), expect, "{front:?}");
            assert_eq!(tools[1]["outputSchema"]["type"], "object");
        }
    }
    gateway.stop().await;
}

/// Errors of a server that look like refusals of ours are marked as the server's on merged routes,
/// and pass unchanged on its own.
#[tokio::test]
async fn errors_of_servers_are_no_refusals_of_ours() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    each_pair(async |client, backend, _| {
        let odd = ["1e999", r#""\ud800""#, &deep].map(|data| (-32001, data));
        let codes = [-32001, -32002, -32003, -32004, -32000, -32603, 42];
        for (code, data) in codes
            .map(|code| (code, r#"{"k":1e3}"#))
            .into_iter()
            .chain(odd)
        {
            let tool = if is_merged(client) {
                "mcp_x_echo"
            } else {
                "echo"
            };
            client
                .ask("1", "tools/call", &format!(r#""name":"{tool}""#))
                .await;
            let error = format!(r#"{{"code":{code},"message":"theirs", "data":{data}}}"#);
            backend.asked("tools/call").await.refuse(&error).await;
            let answer = client.answer("1").await;
            if is_merged(client) && (-32004..=-32001).contains(&code) {
                let failed = answer.error.unwrap();
                let (before, after) = failed.split_once(&error).expect("it is in the data");
                let failed: serde_json::Value =
                    serde_json::from_str(&format!("{before}{{}}{after}")).unwrap();
                assert_eq!(failed["code"], -32603);
                assert_eq!(failed["message"], "server `x`: theirs");
                assert_eq!(failed["data"]["server"], "x");
                assert!(failed["data"]["upstream"].is_object());
            } else {
                assert_eq!(
                    answer.error.as_deref(),
                    Some(error.as_str()),
                    "{:?}",
                    client.front
                );
            }
        }
    })
    .await;
}

/// What a server says of the headers or the revision of a request concerns ours, not those of its
/// client; it is listed again, as it may want other headers now.
#[tokio::test]
async fn what_servers_say_of_our_requests_is_not_said_to_clients() {
    each_pair(async |client, backend, _| {
        for code in [-32020, -32022] {
            let tool = if is_merged(client) {
                r#""name":"mcp_x_echo""#
            } else {
                r#""name":"echo""#
            };
            client.ask("1", "tools/call", tool).await;
            let error = format!(r#"{{"code":{code},"message":"theirs","data":{{"k":1e3}}}}"#);
            backend.asked("tools/call").await.refuse(&error).await;
            let answer = client.answer("1").await;
            let failed = answer.error.as_deref().unwrap();
            assert!(failed.contains(&error), "it is in the data: {failed}");
            assert_eq!(answer.failure()["code"], -32603);
        }
    })
    .await;
}

/// Log messages of a modern call come only when it names a level, and only from there up.
#[tokio::test]
async fn modern_calls_name_their_log_level() {
    for era in [Era::Legacy, Era::Modern] {
        let (backend, gateway) = Gateway::governed(Transport::Http, era, "").await;
        backend
            .on_request(|request| (request.method() == "logging/setLevel").then_some(Auto::Hand));
        let client = gateway.client(Front::Modern, "/mcp", "{}").await;
        for (meta, expect) in [
            ("", &[][..]),
            (
                r#""io.modelcontextprotocol/logLevel":"warning""#,
                &["warning", "error"],
            ),
        ] {
            let params = client.params(r#""name":"mcp_x_echo""#, meta);
            client
                .send(crate::support::wire::request("1", "tools/call", &params))
                .await;
            if era == Era::Legacy && !meta.is_empty() {
                // A legacy server is told beforehand.
                let raised = backend.asked("logging/setLevel").await;
                let level = raised.envelope.param(&["level"]);
                assert_eq!(level.as_deref(), Some(r#""warning""#));
                raised.answer("{}").await;
            }
            let asked = backend.asked("tools/call").await;
            for level in ["debug", "info", "warning", "error"] {
                let params = format!(r#"{{"level":"{level}","data":1}}"#);
                asked.tell("notifications/message", &params).await;
            }
            asked.answer("{}").await;
            for level in expect {
                let told = client.must("notifications/message").await;
                assert_eq!(told.param(&["level"]), Some(format!("\"{level}\"")));
            }
            client.answer("1").await;
        }
        gateway.stop().await;
    }
}
