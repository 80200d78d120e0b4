//! What a server says reaches the one client it belongs to, and nobody else.

use crate::support::{
    ALL, Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport,
    backend::Asked,
    wire::{Envelope, notification},
};

/// Two clients with equal ids and tokens: progress and results stay apart.
#[tokio::test]
async fn equal_ids_and_tokens_never_cross() {
    for (transport, era) in ALL {
        for front in Front::ALL {
            let (backend, gateway) = Gateway::governed(transport, era, "").await;
            let one = gateway.client(front, "/mcp/servers/x", "{}").await;
            let two = gateway.client(front, "/mcp", "{}").await;
            one.call("7", "echo", r#""t""#).await;
            let first = backend.asked("tools/call").await;
            two.call("7", "mcp_x_echo", r#""t""#).await;
            let second = backend.asked("tools/call").await;
            assert_ne!(
                first.token(),
                second.token(),
                "{transport:?} {era:?} {front:?}"
            );
            second.progress(1).await;
            first.progress(2).await;
            second.progress(3).await;
            second.answer(r#"{"content":[],"mine":2}"#).await;
            first.progress(4).await;
            first.answer(r#"{"content":[],"mine":1}"#).await;
            expect_call(&one, &[2, 4], 1).await;
            expect_call(&two, &[1, 3], 2).await;
            one.is_quiet().await;
            two.is_quiet().await;
            gateway.stop().await;
        }
    }
}

async fn expect_call(client: &Client, progress: &[u64], mine: u64) {
    for amount in progress {
        let told = client.must("notifications/progress").await;
        assert_eq!(told.param(&["progressToken"]).as_deref(), Some(r#""t""#));
        assert_eq!(told.param(&["progress"]), Some(amount.to_string()));
    }
    assert_eq!(client.answer("7").await.value()["mine"], mine);
}

const ELICITS: &str = r#"{"elicitation":{}}"#;
const ELICITATION: &str =
    r#"{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}"#;

/// Calls of two clients with one id and one token, and what the server gets of each.
async fn both_call(backend: &Backend, one: &Client, two: &Client) -> (Asked, Asked) {
    one.call("7", "mcp_x_echo", r#""t""#).await;
    let first = backend.asked("tools/call").await;
    two.call("7", "mcp_x_echo", r#""t""#).await;
    let second = backend.asked("tools/call").await;
    (first, second)
}

/// Over HTTP a question comes on the stream of its call, so it can be attributed even on a
/// connection that is shared.
#[tokio::test]
async fn a_question_on_the_stream_of_a_call_reaches_its_client() {
    for front in Front::LEGACY {
        let (backend, gateway) = Gateway::governed(Transport::Http, Era::Legacy, "").await;
        let one = gateway.client(front, "/mcp", ELICITS).await;
        let two = gateway.client(front, "/mcp", ELICITS).await;
        let (first, second) = both_call(&backend, &one, &two).await;
        second.ask("1", "elicitation/create", ELICITATION).await;
        let asked = two.must("elicitation/create").await;
        assert_eq!(asked.params.as_deref(), Some(ELICITATION), "{front:?}");
        first.ask("2", "elicitation/create", ELICITATION).await;
        let other = one.must("elicitation/create").await;
        assert_ne!(asked.id, other.id, "ids are unique over all sessions");
        two.respond(asked.id.as_deref().unwrap(), r#"{"action":"decline"}"#)
            .await;
        let answered = backend.answered().await;
        assert_eq!(answered.id.as_deref(), Some("1"));
        assert_eq!(answered.result.as_deref(), Some(r#"{"action":"decline"}"#));
        one.respond(
            other.id.as_deref().unwrap(),
            r#"{"action":"accept", "content":{"n":1e3}}"#,
        )
        .await;
        let answered = backend.answered().await;
        assert_eq!(answered.id.as_deref(), Some("2"));
        assert_eq!(
            answered.result.as_deref(),
            Some(r#"{"action":"accept", "content":{"n":1e3}}"#)
        );
        first.answer("{}").await;
        second.answer("{}").await;
        one.answer("7").await;
        two.answer("7").await;
        one.is_quiet().await;
        two.is_quiet().await;
        gateway.stop().await;
    }
}

/// A client that has not declared that it answers such questions is not asked: the server hears so
/// at once, and goes on.
#[tokio::test]
async fn a_client_is_asked_what_it_has_declared() {
    for transport in [Transport::Stdio, Transport::Http] {
        for front in Front::LEGACY {
            let (backend, gateway) = Gateway::governed(transport, Era::Legacy, "").await;
            let client = gateway.client(front, "/mcp", ELICITS).await;
            client.ask("1", "tools/call", ECHO).await;
            let call = backend.asked("tools/call").await;
            for (method, capability) in [
                ("sampling/createMessage", "sampling"),
                ("roots/list", "roots"),
            ] {
                call.ask("10", method, r#"{"messages":[]}"#).await;
                let refused = backend.answered().await.failure();
                assert_eq!(refused["code"], -32601, "{transport:?} {front:?}");
                let message = refused["message"].as_str().unwrap();
                assert!(message.ends_with(&format!("`{capability}`")), "{message}");
            }
            // What is not of the protocol may be known to both, and needs no word of it.
            call.ask("11", "acme/ask", "{}").await;
            let asked = client.must("acme/ask").await;
            client.respond(asked.id.as_deref().unwrap(), "{}").await;
            assert_eq!(backend.answered().await.id.as_deref(), Some("11"));
            call.answer("{}").await;
            client.answer("1").await;
            client.is_quiet().await;
            gateway.stop().await;
        }
    }
}

/// On one pipe for several clients a question has no owner while two calls run: it is refused.
#[tokio::test]
async fn a_question_without_an_owner_is_refused() {
    for transport in [Transport::Stdio, Transport::Sse, Transport::WebSocket] {
        for front in Front::LEGACY {
            let what = format!("{transport:?} {front:?}");
            let (backend, gateway) = Gateway::governed(transport, Era::Legacy, "").await;
            let one = gateway.client(front, "/mcp", ELICITS).await;
            let two = gateway.client(front, "/mcp", ELICITS).await;
            one.ask("1", "tools/call", ECHO).await;
            let first = backend.asked("tools/call").await;
            first.ask("10", "elicitation/create", ELICITATION).await;
            let asked = one.must("elicitation/create").await;
            one.respond(asked.id.as_deref().unwrap(), "{}").await;
            let answered = backend.answered().await;
            let only = "the only call is its owner";
            assert_eq!(answered.result.as_deref(), Some("{}"), "{what}: {only}");
            two.ask("1", "tools/call", ECHO).await;
            let second = backend.asked("tools/call").await;
            assert_eq!(first.conn.id, second.conn.id, "{what}: one connection");
            for (call, id) in [(&first, "11"), (&second, "12")] {
                call.ask(id, "elicitation/create", ELICITATION).await;
                let refused = backend.answered().await;
                assert_eq!(refused.id.as_deref(), Some(id), "{what}");
                let failure = refused.failure();
                let message = failure["message"].as_str().unwrap();
                assert!(message.contains("isolation"), "{what}: {message}");
            }
            first.answer("{}").await;
            second.answer("{}").await;
            one.answer("1").await;
            two.answer("1").await;
            one.is_quiet().await;
            two.is_quiet().await;
            gateway.stop().await;
        }
    }
}

/// `isolation = "session"` gives each client a connection of its own, so every question has one.
#[tokio::test]
async fn with_a_connection_each_every_question_has_an_owner() {
    for transport in [
        Transport::Stdio,
        Transport::Sse,
        Transport::WebSocket,
        Transport::Http,
    ] {
        for front in Front::LEGACY {
            let what = format!("{transport:?} {front:?}");
            let keys = r#"isolation = "session""#;
            let (backend, gateway) = Gateway::governed(transport, Era::Legacy, keys).await;
            let one = gateway.client(front, "/mcp", ELICITS).await;
            let two = gateway.client(front, "/mcp", ELICITS).await;
            one.ask("1", "tools/call", ECHO).await;
            let first = backend.asked("tools/call").await;
            two.ask("1", "tools/call", ECHO).await;
            let second = backend.asked("tools/call").await;
            assert_ne!(first.conn.id, second.conn.id, "{what}");
            for (call, client, result) in [
                (&second, &two, r#"{"by":2}"#),
                (&first, &one, r#"{"by":1}"#),
            ] {
                call.ask("11", "elicitation/create", ELICITATION).await;
                let asked = client.must("elicitation/create").await;
                client.respond(asked.id.as_deref().unwrap(), result).await;
                let answered = backend.answered().await;
                assert_eq!(answered.result.as_deref(), Some(result), "{what}");
            }
            first.answer(r#"{"for":1}"#).await;
            second.answer(r#"{"for":2}"#).await;
            assert_eq!(one.answer("1").await.value()["for"], 1);
            assert_eq!(two.answer("1").await.value()["for"], 2);
            one.is_quiet().await;
            two.is_quiet().await;
            gateway.stop().await;
        }
    }
}

/// Two clients with equal ids and tokens, each with progress and a question under way; one of them
/// cancels its call, and the other notices nothing.
#[tokio::test]
async fn a_cancellation_concerns_its_call_only() {
    for (transport, keys) in [
        (Transport::Http, ""),
        (Transport::HttpEvents, ""),
        (Transport::Stdio, r#"isolation = "session""#),
        (Transport::Sse, r#"isolation = "session""#),
        (Transport::WebSocket, r#"isolation = "session""#),
    ] {
        for front in Front::LEGACY {
            let (backend, gateway) = Gateway::governed(transport, Era::Legacy, keys).await;
            let one = gateway.client(front, "/mcp", ELICITS).await;
            let two = gateway.client(front, "/mcp", ELICITS).await;
            let (first, second) = both_call(&backend, &one, &two).await;
            second.progress(1).await;
            second.ask("1", "elicitation/create", ELICITATION).await;
            first.ask("2", "elicitation/create", ELICITATION).await;
            two.must("notifications/progress").await;
            let withdrawn = two.must("elicitation/create").await;
            let question = one.must("elicitation/create").await;
            two.cancel("7").await;
            let told = backend.told("notifications/cancelled").await;
            let cancelled = told.envelope.param(&["requestId"]);
            assert_eq!(
                cancelled.as_deref(),
                Some(second.id()),
                "{transport:?} {front:?}"
            );
            first.progress(2).await;
            let told = one.must("notifications/progress").await;
            assert_eq!(told.param(&["progress"]).as_deref(), Some("2"));
            one.respond(question.id.as_deref().unwrap(), r#"{"mine":1}"#)
                .await;
            expect_only_answer(&backend, "2", r#"{"mine":1}"#).await;
            first.answer(r#"{"mine":1}"#).await;
            assert_eq!(one.answer("7").await.value()["mine"], 1);
            one.is_quiet().await;
            expect_end(&two, "7", withdrawn.id.as_deref()).await;
            gateway.stop().await;
        }
    }
}

/// The question `id` is answered with `result`, any other with an error.
async fn expect_only_answer(backend: &Backend, id: &str, result: &str) {
    loop {
        let answer = backend.answered().await;
        if answer.id.as_deref() == Some(id) {
            assert_eq!(answer.result.as_deref(), Some(result));
            return;
        }
        assert!(answer.error.is_some(), "{answer:?}");
    }
}

/// Of the cancelled call `id` nothing comes but an error, and that `question` is withdrawn.
async fn expect_end(client: &Client, id: &str, question: Option<&str>) {
    client.ask("8", "ping", "").await;
    loop {
        let next = client.next().await;
        match next.id.as_deref() {
            Some("8") => return,
            Some(found) => assert!(found == id && next.error.is_some(), "{next:?}"),
            None => assert_eq!(next.param(&["requestId"]).as_deref(), question, "{next:?}"),
        }
    }
}

/// Only the client that was asked can answer: another's answer to the same id is refused.
#[tokio::test]
async fn a_stranger_cannot_answer() {
    let (backend, gateway) = Gateway::governed(Transport::Http, Era::Legacy, "").await;
    let one = gateway.client(Front::Sse, "/mcp", ELICITS).await;
    let stranger = gateway.client(Front::Sse, "/mcp", ELICITS).await;
    one.ask("1", "tools/call", ECHO).await;
    let call = backend.asked("tools/call").await;
    call.ask("5", "elicitation/create", ELICITATION).await;
    let asked = one.must("elicitation/create").await;
    let id = asked.id.as_deref().unwrap();
    stranger.respond(id, r#"{"from":"stranger"}"#).await;
    one.respond(id, r#"{"from":"one"}"#).await;
    assert_eq!(
        backend.answered().await.result.as_deref(),
        Some(r#"{"from":"one"}"#)
    );
    call.answer("{}").await;
    one.answer("1").await;
    gateway.stop().await;
}

/// That a visit of a URL is done is told to the client that was sent there, whoever calls meanwhile:
/// whether it was asked during a call or its call was refused for that.
#[tokio::test]
async fn a_visit_is_done_for_who_was_sent() {
    const DONE: &str = "notifications/elicitation/complete";
    const VISITS: &str = r#"{"elicitation":{"url":{}}}"#;
    let visit = |id: &str| {
        format!(r#"{{"mode":"url","elicitationId":"{id}","url":"https://a","message":"?"}}"#)
    };
    for transport in [
        Transport::Http,
        Transport::Stdio,
        Transport::Sse,
        Transport::WebSocket,
    ] {
        for front in Front::LEGACY {
            let (backend, gateway) = Gateway::governed(transport, Era::Legacy, "").await;
            let one = gateway.client(front, "/mcp", VISITS).await;
            let two = gateway.client(front, "/mcp", VISITS).await;
            one.listen().await;
            two.listen().await;
            one.ask("1", "tools/call", ECHO).await;
            let call = backend.asked("tools/call").await;
            call.ask("5", "elicitation/create", &visit("a")).await;
            let asked = one.must("elicitation/create").await;
            assert_eq!(asked.params, Some(visit("a")));
            one.respond(asked.id.as_deref().unwrap(), r#"{"action":"accept"}"#)
                .await;
            backend.answered().await;
            call.answer("{}").await;
            one.answer("1").await;
            one.ask("2", "tools/call", ECHO).await;
            let refusal = format!(
                r#"{{"code":-32042,"message":"no","data":{{"elicitations":[{},{}]}}}}"#,
                visit("b"),
                visit("c")
            );
            backend.asked("tools/call").await.refuse(&refusal).await;
            assert_eq!(one.answer("2").await.error, Some(refusal));
            two.ask("1", "tools/call", ECHO).await;
            let other = backend.asked("tools/call").await;
            for id in ["c", "a", "b"] {
                let params = format!(r#"{{"elicitationId":"{id}","k":1E400}}"#);
                let done = notification(DONE, &params);
                call.conn.send(done).await;
                let told = one.must(DONE).await;
                assert_eq!(told.params, Some(params), "{transport:?} {front:?}");
            }
            other.answer("{}").await;
            two.answer("1").await;
            two.is_quiet().await;
            one.is_quiet().await;
            gateway.stop().await;
        }
    }
}

/// Two servers may call the visits that they ask for alike: each is done for who was sent there by the
/// server that says so, once.
#[tokio::test]
async fn visits_of_two_servers_may_have_one_name() {
    const DONE: &str = "notifications/elicitation/complete";
    const VISIT: &str = r#"{"mode":"url","elicitationId":"a","url":"https://a","message":"?"}"#;
    for transport in [Transport::Http, Transport::Stdio] {
        let (x, y) = (
            Backend::start(transport, Era::Legacy).await,
            Backend::start(transport, Era::Legacy).await,
        );
        let gateway = TestGateway::new().server("x", &x).server("y", &y);
        let gateway = gateway.start().await;
        let mut open = Vec::new();
        for (backend, tool) in [(&x, "mcp_x_echo"), (&y, "mcp_y_echo")] {
            let visits = r#"{"elicitation":{"url":{}}}"#;
            let client = gateway.client(Front::Streamable, "/mcp", visits).await;
            client.listen().await;
            client.call("1", tool, "7").await;
            let call = backend.asked("tools/call").await;
            call.ask("5", "elicitation/create", VISIT).await;
            let asked = client.must("elicitation/create").await;
            let accepted = r#"{"action":"accept"}"#;
            client.respond(&asked.id.unwrap(), accepted).await;
            backend.answered().await;
            open.push((client, call));
        }
        let [(one, of_x), (two, of_y)] = &open[..] else {
            panic!("two calls are open");
        };
        // The first client calls both, so that what no call or visit owns would go to it.
        one.call("2", "mcp_y_echo", "8").await;
        y.asked("tools/call").await.answer("{}").await;
        one.answer("2").await;
        of_y.answer("{}").await;
        two.answer("1").await;
        one.call("3", "mcp_y_echo", "8").await;
        let also = y.asked("tools/call").await;
        let done = notification(DONE, r#"{"elicitationId":"a"}"#);
        for _ in 0..2 {
            also.conn.send(done.clone()).await;
            also.tell(DONE, r#"{"elicitationId":"a"}"#).await;
        }
        two.must(DONE).await;
        two.is_quiet().await;
        also.answer("{}").await;
        one.answer("3").await;
        one.is_quiet().await;
        of_x.conn.send(done).await;
        one.must(DONE).await;
        of_x.answer("{}").await;
        one.answer("1").await;
        one.is_quiet().await;
        two.is_quiet().await;
        gateway.stop().await;
    }
}

/// A connection that was made anew knows of no visits before; one of a session alone can only mean that.
#[tokio::test]
async fn a_visit_before_the_connection_is_done_for_its_session() {
    const DONE: &str = "notifications/elicitation/complete";
    for isolation in ["session", "agent"] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let keys = format!("isolation = \"{isolation}\"");
        let gateway = TestGateway::new().server_with("x", &backend, &keys);
        let gateway = gateway.start().await;
        let visits = r#"{"elicitation":{"url":{}}}"#;
        let client = gateway.client(Front::Streamable, "/mcp", visits).await;
        client.listen().await;
        client.call("1", "mcp_x_echo", "7").await;
        let call = backend.asked("tools/call").await;
        let done = notification(DONE, r#"{"elicitationId":"a"}"#);
        call.conn.send(done).await;
        if isolation == "session" {
            client.must(DONE).await;
        }
        call.answer("{}").await;
        client.answer("1").await;
        client.is_quiet().await;
        gateway.stop().await;
    }
}

/// A question between calls names resources as one during a call does: to the client as its route
/// exposes them, and back to the server as its own.
#[tokio::test]
async fn questions_between_calls_name_what_the_client_sees() {
    const SAMPLE: &str = "sampling/createMessage";
    let sampling = |uri: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":{{"type":"resource","resource":{{"uri":"{uri}","text":""}}}}}}],"maxTokens":1}}"#
        )
    };
    let sampled = |uri: &str| {
        format!(
            r#"{{"role":"assistant","model":"m","content":{{"type":"resource_link","uri":"{uri}"}}}}"#
        )
    };
    let own = r#"isolation = "session""#;
    for transport in [Transport::Stdio, Transport::Sse, Transport::WebSocket] {
        for front in Front::LEGACY {
            let (backend, gateway) = Gateway::governed(transport, Era::Legacy, own).await;
            for (path, tool, uri) in [
                ("/mcp", "mcp_x_echo", "x+file:///a.txt"),
                ("/mcp/servers/x", "echo", "file:///a.txt"),
            ] {
                let client = gateway.client(front, path, r#"{"sampling":{}}"#).await;
                client.listen().await;
                let name = format!(r#""name":"{tool}""#);
                client.ask("1", "tools/call", &name).await;
                let call = backend.asked("tools/call").await;
                for id in ["7", "8"] {
                    call.ask(id, SAMPLE, &sampling("file:///a.txt")).await;
                    let asked = client.must(SAMPLE).await;
                    let seen = asked.params.as_deref();
                    assert_eq!(seen, Some(&*sampling(uri)), "{transport:?} {front:?} {id}");
                    client.respond(&asked.id.unwrap(), &sampled(uri)).await;
                    let heard = backend.answered().await.result;
                    assert_eq!(heard, Some(sampled("file:///a.txt")));
                    if id == "7" {
                        call.answer("{}").await;
                        client.answer("1").await;
                    }
                }
            }
            gateway.stop().await;
        }
    }
}

/// A server that withdraws its question is heard by the client that was asked.
#[tokio::test]
async fn a_withdrawn_question_is_withdrawn_from_its_client() {
    for transport in [Transport::Http, Transport::Stdio] {
        let (backend, gateway) = Gateway::governed(transport, Era::Legacy, "").await;
        let one = gateway.client(Front::Streamable, "/mcp", ELICITS).await;
        one.ask("1", "tools/call", ECHO).await;
        let call = backend.asked("tools/call").await;
        call.ask(r#""q""#, "elicitation/create", ELICITATION).await;
        let asked = one.must("elicitation/create").await;
        call.tell(
            "notifications/cancelled",
            r#"{"requestId":"q","reason":"late"}"#,
        )
        .await;
        let cancelled = one.must("notifications/cancelled").await;
        assert_eq!(cancelled.param(&["requestId"]), asked.id, "{transport:?}");
        call.answer("{}").await;
        one.answer("1").await;
        gateway.stop().await;
    }
}

/// A question whose server is gone, or whose call has ended, is withdrawn before the call is answered.
#[tokio::test]
async fn a_question_that_nobody_awaits_is_withdrawn() {
    for transport in [
        Transport::Http,
        Transport::Sse,
        Transport::Stdio,
        Transport::WebSocket,
    ] {
        for front in Front::LEGACY {
            let (backend, gateway) = Gateway::governed(transport, Era::Legacy, "").await;
            let what = format!("{transport:?} {front:?}");
            let client = gateway.client(front, "/mcp", ELICITS).await;
            let asked = async |id: &str| {
                client.ask(id, "tools/call", ECHO).await;
                let call = backend.asked("tools/call").await;
                call.ask("5", "elicitation/create", ELICITATION).await;
                (call, client.must("elicitation/create").await)
            };
            let withdrawn = async |question: Envelope| {
                let told = client.must("notifications/cancelled").await;
                assert_eq!(told.param(&["requestId"]), question.id, "{what}");
            };
            let (_call, question) = asked("1").await;
            client.cancel("1").await;
            withdrawn(question).await;
            if front == Front::Streamable {
                client.answer("1").await.failure();
            }
            backend.told("notifications/cancelled").await;
            let refused = backend.answered().await;
            assert!(refused.error.is_some(), "{what}: the server may still wait");

            let (call, question) = asked("2").await;
            call.die().await;
            withdrawn(question).await;
            let failure = client.answer("2").await.failure();
            assert_eq!(failure["data"]["code"], "LOST", "{what}: {failure}");
            gateway.stop().await;
        }
    }
}

/// On a pipe a question may be of any call of its client under way: the end of one withdraws nothing,
/// and where all are over the server's own word still reaches the client.
#[tokio::test]
async fn a_question_of_another_call_is_not_withdrawn() {
    for front in [Front::Sse, Front::Stdio] {
        let (backend, gateway) = Gateway::governed(Transport::Stdio, Era::Legacy, "").await;
        let client = gateway.client(front, "/mcp", ELICITS).await;
        client.ask("1", "tools/call", ECHO).await;
        let first = backend.asked("tools/call").await;
        client.ask("2", "tools/call", ECHO).await;
        backend.asked("tools/call").await;
        first.ask("5", "elicitation/create", ELICITATION).await;
        let question = client.must("elicitation/create").await;
        client.cancel("2").await;
        backend.told("notifications/cancelled").await;
        first.answer("{}").await;
        client.answer("1").await;
        first
            .tell("notifications/cancelled", r#"{"requestId":5}"#)
            .await;
        let told = client.must("notifications/cancelled").await;
        assert_eq!(told.param(&["requestId"]), question.id, "{front:?}");
        client.is_quiet().await;
        assert!(backend.was_told().await.is_none());
        gateway.stop().await;
    }
}

/// How far a client is with a question reaches the server that asked, under its own token, before
/// the answer; and nobody else.
#[tokio::test]
async fn progress_of_a_client_reaches_who_asked() {
    const WITH_TOKEN: &str = r#"{"message":"?","requestedSchema":{"type":"object","properties":{}},"_meta":{"progressToken":"\u0074"}}"#;
    for transport in [
        Transport::Http,
        Transport::Stdio,
        Transport::Sse,
        Transport::WebSocket,
    ] {
        for front in Front::LEGACY {
            let x = Backend::start(transport, Era::Legacy).await;
            let y = Backend::start(transport, Era::Legacy).await;
            let gateway = TestGateway::new()
                .governed()
                .server("x", &x)
                .server("y", &y)
                .start()
                .await;
            let client = gateway.client(front, "/mcp", ELICITS).await;
            let stranger = gateway.client(front, "/mcp", ELICITS).await;
            let mut asked = Vec::new();
            for (backend, tool) in [(&x, "mcp_x_echo"), (&y, "mcp_y_echo")] {
                client.call(&format!(r#""{tool}""#), tool, "1").await;
                let call = backend.asked("tools/call").await;
                call.ask("5", "elicitation/create", WITH_TOKEN).await;
                let question = client.must("elicitation/create").await;
                let token = question.param(&["_meta", "progressToken"]).unwrap();
                asked.push((call, question, token));
            }
            assert_ne!(asked[0].2, asked[1].2, "both servers chose the same");
            let report = |token: &str, amount: u32| {
                format!(r#"{{"progress":{amount}.0,"progressToken":{token},"k":1E400}}"#)
            };
            let at_server = |amount| Some(report(r#""\u0074""#, amount));
            let (call, question, token) = &asked[1];
            let told = "notifications/progress";
            stranger.notify(told, &report(token, 1)).await;
            client.notify(told, &report("12345678", 2)).await;
            client.notify(told, &report(token, 3)).await;
            let heard = y.told(told).await;
            assert_eq!(
                heard.envelope.params,
                at_server(3),
                "{transport:?} {front:?}"
            );
            client.notify(told, &report(token, 4)).await;
            client.respond(question.id.as_deref().unwrap(), "{}").await;
            assert_eq!(y.told(told).await.envelope.params, at_server(4));
            assert_eq!(y.answered().await.id.as_deref(), Some("5"));
            client.notify(told, &report(token, 5)).await;
            call.answer("{}").await;
            client.answer(r#""mcp_y_echo""#).await;
            assert!(y.was_told().await.is_none(), "the question is answered");
            assert!(x.was_told().await.is_none(), "it was not about x");
            gateway.stop().await;
        }
    }
}

/// A vendor's own notifications reach the server of the route on the connection of their session;
/// on the merged route they concern nobody.
#[tokio::test]
async fn vendor_notifications_reach_the_server_of_the_route() {
    const PARAMS: &str = r#"{"n": 1E400,"uri":"x+file:///a"}"#;
    const METHOD: &str = "notifications/acme/changed";
    for (transport, era) in ALL {
        for front in Front::LEGACY {
            let (backend, gateway) =
                Gateway::governed(transport, era, r#"isolation = "session""#).await;
            let path = "/mcp/servers/x";
            let early = gateway.client(front, path, "{}").await;
            early.notify(METHOD, r#"{"is":"early"}"#).await;
            let heard = backend.told(METHOD).await;
            assert_eq!(heard.envelope.params.as_deref(), Some(r#"{"is":"early"}"#));
            let client = gateway.client(front, path, "{}").await;
            client.ask("1", "tools/call", r#""name":"echo""#).await;
            let call = backend.asked("tools/call").await;
            client.notify(METHOD, PARAMS).await;
            let heard = backend.told(METHOD).await;
            let what = format!("{transport:?} {era:?} {front:?}");
            assert_eq!(heard.envelope.params.as_deref(), Some(PARAMS), "{what}");
            assert_eq!(
                heard.headers.get("mcp-session-id"),
                call.headers.get("mcp-session-id"),
                "{what}"
            );
            call.answer("{}").await;
            client.answer("1").await;
            let merged = gateway.client(front, "/mcp", "{}").await;
            merged.notify(METHOD, PARAMS).await;
            merged.is_quiet().await;
            assert!(backend.was_told().await.is_none(), "{what}");
            gateway.stop().await;
        }
    }
}

/// Log messages follow their call; with two calls on one pipe nobody can tell whose they are.
#[tokio::test]
async fn log_messages_reach_their_call_only() {
    const LOG: &str = r#"{"level":"info","data":"x"}"#;
    for transport in [
        Transport::Http,
        Transport::Stdio,
        Transport::WebSocket,
        Transport::Sse,
    ] {
        let (backend, gateway) = Gateway::governed(transport, Era::Legacy, "").await;
        let one = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let two = gateway.client(Front::Sse, "/mcp", "{}").await;
        one.ask("1", "tools/call", ECHO).await;
        let first = backend.asked("tools/call").await;
        first.tell("notifications/message", LOG).await;
        assert_eq!(
            one.must("notifications/message").await.params.as_deref(),
            Some(LOG)
        );
        two.ask("1", "tools/call", ECHO).await;
        let second = backend.asked("tools/call").await;
        first.tell("notifications/message", LOG).await;
        if transport == Transport::Http {
            one.must("notifications/message").await;
        }
        second.answer("{}").await;
        two.answer("1").await;
        first.answer("{}").await;
        one.answer("1").await;
        two.is_quiet().await;
        one.is_quiet().await;
        gateway.stop().await;
    }
}

/// On a shared connection the server hears of the lowest level that a session asked for, and each
/// session of what it asked for.
#[tokio::test]
async fn each_session_has_its_log_level() {
    for transport in [
        Transport::Http,
        Transport::Stdio,
        Transport::Sse,
        Transport::WebSocket,
    ] {
        for front in Front::LEGACY {
            let backend = Backend::start(transport, Era::Legacy).await;
            backend.on_request(|request| {
                (request.method() == "logging/setLevel").then_some(Auto::Hand)
            });
            let gateway = TestGateway::new()
                .governed()
                .server("x", &backend)
                .start()
                .await;
            let one = gateway.client(front, "/mcp", "{}").await;
            let two = gateway.client(front, "/mcp", "{}").await;
            expect_logs(&one, &backend, None, &["debug", "info", "error"]).await;
            for (client, level) in [(&one, "error"), (&two, "info")] {
                client
                    .ask("1", "logging/setLevel", &format!(r#""level":"{level}""#))
                    .await;
                client.answer("1").await;
            }
            expect_logs(&one, &backend, Some("error"), &["error"]).await;
            expect_logs(&two, &backend, Some("info"), &["info", "error"]).await;
            expect_logs(&one, &backend, None, &["error"]).await;
            one.ask("1", "logging/setLevel", r#""level":"loud""#).await;
            assert_eq!(one.answer("1").await.code(), -32602);
            gateway.stop().await;
        }
    }
}

/// Who set no level hears on its calls what the server says unasked, whatever others have asked it for.
#[tokio::test]
async fn a_log_level_is_that_of_one_session_only() {
    for transport in [Transport::Http, Transport::Stdio] {
        let backend = Backend::start(transport, Era::Legacy).await;
        backend
            .on_request(|request| (request.method() == "logging/setLevel").then_some(Auto::Hand));
        let gateway = TestGateway::new().governed().server("x", &backend);
        let gateway = gateway.start().await;
        let silent = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let other = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let all = &["debug", "info", "error"][..];
        for (level, heard, raised) in [("error", &all[2..], Some("info")), ("debug", all, None)] {
            let params = format!(r#""level":"{level}""#);
            other.ask("1", "logging/setLevel", &params).await;
            other.answer("1").await;
            expect_logs(&other, &backend, Some(level), heard).await;
            expect_logs(&silent, &backend, raised, &all[1..]).await;
        }
        gateway.stop().await;
    }
}

/// A level that is set during a call counts from then on: what is no longer wanted is kept back, and a
/// legacy server hears that more is.
#[tokio::test]
async fn a_log_level_may_change_during_a_call() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::HttpEvents, Era::Legacy),
        (Transport::HttpEvents, Era::Modern),
    ] {
        let backend = Backend::start(transport, era).await;
        backend
            .on_request(|request| (request.method() == "logging/setLevel").then_some(Auto::Hand));
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        client.ask("2", "tools/call", ECHO).await;
        let call = backend.asked("tools/call").await;
        for (level, heard) in [("error", false), ("debug", true)] {
            let params = format!(r#""level":"{level}""#);
            client.ask("1", "logging/setLevel", &params).await;
            client.answer("1").await.value();
            if era == Era::Legacy {
                let raised = backend.asked("logging/setLevel").await;
                assert_eq!(
                    raised.envelope.param(&["level"]),
                    Some(format!("\"{level}\""))
                );
                raised.answer("{}").await;
            }
            call.tell("notifications/message", r#"{"level":"info","data":"x"}"#)
                .await;
            call.tell("notifications/message", r#"{"level":"error","data":"x"}"#)
                .await;
            for level in ["info", "error"].into_iter().skip(usize::from(!heard)) {
                let told = client.must("notifications/message").await;
                assert_eq!(told.param(&["level"]), Some(format!("\"{level}\"")));
            }
        }
        call.answer("{}").await;
        client.answer("2").await;
        gateway.stop().await;
    }
}

/// Calls; the server is asked for messages from `level` on, if for any, and says something on each
/// level, of which the client hears what is `expected`.
async fn expect_logs(client: &Client, backend: &Backend, level: Option<&str>, expected: &[&str]) {
    client.ask("2", "tools/call", ECHO).await;
    if let Some(level) = level {
        let raised = backend.asked("logging/setLevel").await;
        let found = raised.envelope.param(&["level"]);
        assert_eq!(found, Some(format!("\"{level}\"")));
        raised.answer("{}").await;
    }
    let call = backend.asked("tools/call").await;
    for level in ["debug", "info", "error"] {
        let params = format!(r#"{{"level":"{level}","data":"x"}}"#);
        call.tell("notifications/message", &params).await;
    }
    call.answer("{}").await;
    for level in expected {
        let told = client.must("notifications/message").await;
        let found = told.param(&["level"]);
        assert_eq!(found, Some(format!("\"{level}\"")), "{:?}", client.front);
    }
    client.answer("2").await;
}

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// Clients that declare the same share one connection, greeted once; nobody pays a handshake.
#[tokio::test]
async fn equal_clients_share_a_connection() {
    for (transport, era) in ALL {
        let backend = Backend::start(transport, era).await;
        backend.set_capabilities(r#"{"tools":{}}"#);
        let gateway = TestGateway::new()
            .governed()
            .server("x", &backend)
            .start()
            .await;
        let front = match era {
            Era::Legacy => Front::Streamable,
            Era::Modern => Front::Modern,
        };
        for _ in 0..5 {
            let client = gateway.client(front, "/mcp", "{}").await;
            client.ask("1", "tools/call", ECHO).await;
            backend.asked("tools/call").await.answer("{}").await;
            client.answer("1").await;
            assert!(client.list("prompts").await.is_empty(), "none are declared");
        }
        assert_eq!(backend.greeted(), 1, "{transport:?} {era:?}");
        gateway.stop().await;
    }
}
