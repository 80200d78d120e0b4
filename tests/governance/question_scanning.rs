//! What servers ask clients and what these answer, beside or within a call: it is looked at like
//! arguments and results, in both eras.

use serde_json::{Value, json};

use crate::{
    harness::{Server, Stage, code_of},
    support::{
        Auto, Client, Era, Front, Gateway, TestGateway, Transport, backend::Asked, value,
        wire::Envelope,
    },
};

pub(crate) const MAIL: &str = "ann.lee@example.org";
pub(crate) const ABLE: &str = r#"{"elicitation":{},"sampling":{},"roots":{}}"#;
const CALL: &str = r#""name":"mcp_x_echo""#;

/// A gateway under a scan of both directions, and a client in the middle of a call.
pub(crate) struct Dialogue {
    pub(crate) server: Server,
    pub(crate) gateway: Gateway,
    pub(crate) client: Client,
    pub(crate) call: Asked,
}

impl Dialogue {
    /// With these lines of `scan`, and these keys of the server.
    pub(crate) async fn new(transport: Transport, front: Front, scan: &str, keys: &str) -> Self {
        let server = Server::over(transport, Era::Legacy).await;
        server.does("tools/call", Auto::Hand);
        let gateway = TestGateway::new()
            .setting(&format!(
                "[governance]\nprice = \"0\"\nscan = {{ {scan} }}\n"
            ))
            .server_with("x", &server.backend, keys)
            .start()
            .await;
        let client = gateway.client(front, "/mcp", ABLE).await;
        client.ask("1", "tools/call", CALL).await;
        let call = server.backend.asked("tools/call").await;
        Self {
            server,
            gateway,
            client,
            call,
        }
    }

    /// What the client is asked when the server asks this.
    pub(crate) async fn asked(&self, method: &str, params: &Value) -> Envelope {
        self.call.ask("5", method, &params.to_string()).await;
        self.client.must(method).await
    }

    /// What the server hears when the client answers `question` with this.
    pub(crate) async fn answered(&self, question: &Envelope, result: &Value) -> Envelope {
        let id = question.id.as_deref().unwrap();
        self.client.respond(id, &result.to_string()).await;
        self.server.backend.answered().await
    }

    /// Ends the call; nothing else may reach the client. What its record says of rules.
    pub(crate) async fn end(self) -> Option<String> {
        self.call.answer("{}").await;
        self.client.answer("1").await.value();
        let data_dir = self.gateway.config.data_dir.clone();
        let record = crate::harness::records(&data_dir).pop().unwrap();
        self.gateway.stop().await;
        record.rule.map(std::borrow::Cow::into_owned)
    }
}

pub(crate) fn elicitation(message: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "note": { "type": "string" } } });
    json!({ "message": message, "requestedSchema": schema })
}

fn is_refused(answer: &Envelope, code: i64, message: &str) {
    let refused = answer.failure();
    assert_eq!(refused["code"], code, "{refused}");
    assert_eq!(refused["message"], message);
    assert_eq!(refused["data"]["code"], "PII_DETECTED");
    assert_eq!(refused["data"]["retryable"], false);
    assert!(!refused.to_string().contains("ann"), "{refused}");
}

const TRANSPORTS: [Transport; 4] = [
    Transport::Http,
    Transport::Sse,
    Transport::Stdio,
    Transport::WebSocket,
];

/// Every transport with one kind of client, and every kind of client with one transport.
fn ways() -> impl Iterator<Item = (Transport, Front)> {
    let transports = TRANSPORTS.map(|transport| (transport, Front::Streamable));
    let fronts = [Front::Sse, Front::Stdio].map(|front| (Transport::Stdio, front));
    transports.into_iter().chain(fronts)
}

#[tokio::test]
async fn what_may_not_pass_is_not_asked() {
    for (transport, front) in ways() {
        let blocks = "results = { email = \"block\" }";
        let dialogue = Dialogue::new(transport, front, blocks, "").await;
        for (id, method, params) in [
            ("5", "elicitation/create", elicitation(MAIL)),
            ("6", "sampling/createMessage", sampling(MAIL)),
            ("7", "acme/ask", json!({ "deep": [{ "of": MAIL }] })),
        ] {
            dialogue.call.ask(id, method, &params.to_string()).await;
            let refused = dialogue.server.backend.answered().await;
            assert_eq!(refused.id.as_deref(), Some(id), "{transport:?} {front:?}");
            is_refused(&refused, -32002, "PII in the request to the client");
        }
        // The id is free again, and the answers of clients are not looked at here.
        let question = dialogue
            .asked("elicitation/create", &elicitation("?"))
            .await;
        let answer = json!({ "action": "accept", "content": { "note": MAIL } });
        let heard = dialogue.answered(&question, &answer).await;
        assert_eq!(heard.value(), answer, "{transport:?} {front:?}");
        let rule = dialogue.end().await;
        assert_eq!(rule.as_deref(), Some("scan: email x3 blocked"));
    }
}

fn sampling(text: &str) -> Value {
    let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
    json!({ "messages": [message], "maxTokens": 10 })
}

#[tokio::test]
async fn what_may_not_pass_is_not_answered() {
    for (transport, front) in ways() {
        let blocks = "arguments = { email = \"block\" }";
        let dialogue = Dialogue::new(transport, front, blocks, "").await;
        let sampled = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": MAIL } });
        let roots = json!({ "roots": [{ "uri": "file:///home", "name": MAIL }] });
        for (method, params, answer) in [
            (
                "elicitation/create",
                elicitation(MAIL),
                json!({ "action": "accept", "content": { "note": MAIL } }),
            ),
            ("sampling/createMessage", sampling("?"), sampled),
            ("roots/list", json!({}), roots),
        ] {
            let question = dialogue.asked(method, &params).await;
            assert_eq!(value(question.params.as_deref().unwrap()), params);
            let refused = dialogue.answered(&question, &answer).await;
            is_refused(&refused, -32002, "PII in the client's answer");
        }
        let question = dialogue
            .asked("elicitation/create", &elicitation("?"))
            .await;
        let declined = json!({ "action": "decline" });
        let heard = dialogue.answered(&question, &declined).await;
        assert_eq!(heard.value(), declined, "{transport:?} {front:?}");
        let rule = dialogue.end().await;
        assert_eq!(rule.as_deref(), Some("scan: email x3 blocked"));
    }
}

#[tokio::test]
async fn questions_and_answers_are_masked_or_reported() {
    const BOTH: [(&str, &str, &str); 2] = [
        ("redact", "[EMAIL]", "scan: email x3 redacted"),
        ("report", MAIL, "scan: email x3 reported"),
    ];
    for (transport, front) in ways() {
        for (action, seen, rule) in BOTH {
            let scan = format!(
                "arguments = {{ email = \"{action}\" }}, results = {{ email = \"{action}\" }}"
            );
            let dialogue = Dialogue::new(transport, front, &scan, "").await;
            let question = dialogue
                .asked("elicitation/create", &elicitation(MAIL))
                .await;
            let message = question.param(&["message"]).unwrap();
            assert_eq!(value(&message), seen, "{transport:?} {front:?}");
            let answer = json!({ "action": "accept", "content": { "note": MAIL } });
            let heard = dialogue.answered(&question, &answer).await.value();
            assert_eq!(heard["content"]["note"], seen, "{transport:?} {front:?}");
            // What the client says in an error is an answer too.
            let question = dialogue.asked("roots/list", &json!({})).await;
            let error = format!(
                r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-1,"message":"{MAIL} says no"}}}}"#,
                question.id.as_deref().unwrap()
            );
            dialogue.client.send(error).await;
            let heard = dialogue.server.backend.answered().await.failure();
            assert_eq!(heard["code"], -1);
            assert_eq!(heard["message"], format!("{seen} says no"));
            assert_eq!(dialogue.end().await.as_deref(), Some(rule));
        }
    }
}

/// A masked answer is still what the server asked for.
#[tokio::test]
async fn a_masked_answer_fits_what_was_asked_for() {
    let masks = "arguments = { email = \"redact\" }";
    let dialogue = Dialogue::new(Transport::Http, Front::Streamable, masks, "").await;
    let asks = json!({
        "message": "?",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "mail": { "type": "string", "format": "email" },
                "short": { "type": "string", "maxLength": 3 },
            },
            "required": ["mail"],
        },
    });
    let question = dialogue.asked("elicitation/create", &asks).await;
    let answer = json!({ "action": "accept", "content": { "mail": MAIL, "short": "abc" } });
    let heard = dialogue.answered(&question, &answer).await.value();
    let mail = heard["content"]["mail"].as_str().unwrap();
    assert!(mail.contains('@') && !mail.contains("ann"), "{heard}");
    assert_eq!(heard["content"]["short"], "abc");
    assert_eq!(heard["action"], "accept");
    dialogue.end().await;
}

/// What takes long to look at is looked at beside the reader of the connection.
#[tokio::test]
async fn large_questions_and_answers_are_looked_at() {
    let text = format!("{MAIL} {}", "a ".repeat(140 << 10));
    for transport in [Transport::Http, Transport::Stdio] {
        let masks = "arguments = { email = \"redact\" }, results = { email = \"redact\" }";
        let dialogue = Dialogue::new(transport, Front::Streamable, masks, "").await;
        let question = dialogue
            .asked("sampling/createMessage", &sampling(&text))
            .await;
        let params = question.params.clone().unwrap();
        assert!(params.contains("[EMAIL] a a"), "{transport:?}");
        assert!(params.len() > text.len() && !params.contains("ann"));
        let answer = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": text } });
        let heard = dialogue.answered(&question, &answer).await.value();
        let heard = heard["content"]["text"].as_str().unwrap();
        assert!(heard.starts_with("[EMAIL] a a"), "{transport:?}");
        let rule = dialogue.end().await;
        assert_eq!(rule.as_deref(), Some("scan: email x2 redacted"));
        let blocks = "results = { email = \"block\" }";
        let dialogue = Dialogue::new(transport, Front::Streamable, blocks, "").await;
        let asks = sampling(&text).to_string();
        dialogue
            .call
            .ask("5", "sampling/createMessage", &asks)
            .await;
        let refused = dialogue.server.backend.answered().await;
        is_refused(&refused, -32002, "PII in the request to the client");
        dialogue.end().await;
    }
}

/// A connection that the gateway makes anew for a subscription, after its server or the gateway itself has
/// ended, has seen no call. What is said on it is looked at, and names resources as the route does.
#[tokio::test]
async fn what_is_said_before_any_call_is_looked_at() {
    let server = Server::over(Transport::Stdio, Era::Legacy).await;
    server.does("resources/subscribe", Auto::Hand);
    let plan = TestGateway::new()
        .setting(
            "[governance]\nprice = \"0\"\nscan = { arguments = { email = \"block\" }, \
             results = { email = \"redact\" }, notifications = { email = \"redact\" } }\n",
        )
        .server_with("x", &server.backend, "isolation = \"session\"");
    let gateway = plan.start().await;
    let mut client = gateway.client(Front::Streamable, "/mcp", ABLE).await;
    client.listen().await;
    let uri = r#""uri":"x+file:///a.txt""#;
    client.ask("1", "resources/subscribe", uri).await;
    let asked = server.backend.asked("resources/subscribe").await;
    asked.answer("{}").await;
    client.answer("1").await.value();
    asked.die().await;
    is_looked_at_without_calls(&server, &client).await;
    gateway.stop().await;

    let gateway = plan.start().await;
    client.http = gateway.http();
    client.is_quiet().await;
    client.listen().await;
    // That the server knows nothing of before.
    client.must("notifications/message").await;
    is_looked_at_without_calls(&server, &client).await;
    gateway.stop().await;
}

/// Asks and tells something where a subscription was renewed.
async fn is_looked_at_without_calls(server: &Server, client: &Client) {
    let renewed = server.backend.asked("resources/subscribe").await;
    renewed.answer("{}").await;
    let updated = client.must("notifications/resources/updated").await;
    let uri = r#""x+file:///a.txt""#;
    assert_eq!(updated.param(&["uri"]).as_deref(), Some(uri));
    let log = format!(r#"{{"level":"error","data":"{MAIL}"}}"#);
    renewed.tell("notifications/message", &log).await;
    let told = client.must("notifications/message").await;
    assert_eq!(told.param(&["data"]).as_deref(), Some("\"[EMAIL]\""));
    let link = json!({ "type": "resource_link", "uri": "file:///a.txt", "name": MAIL });
    let message = json!({ "role": "user", "content": link });
    let asks = json!({ "messages": [message], "maxTokens": 10 }).to_string();
    renewed.ask("5", "sampling/createMessage", &asks).await;
    let question = client.must("sampling/createMessage").await;
    let seen = value(&question.param(&["messages"]).unwrap())[0]["content"].clone();
    let expect = json!({ "type": "resource_link", "uri": "x+file:///a.txt", "name": "[EMAIL]" });
    assert_eq!(seen, expect);
    let answer =
        json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": MAIL } });
    let id = question.id.as_deref().unwrap();
    client.respond(id, &answer.to_string()).await;
    let refused = server.backend.answered().await;
    is_refused(&refused, -32002, "PII in the client's answer");
}

/// Questions between calls are looked at by the rules of that moment.
#[tokio::test]
async fn questions_between_calls_are_looked_at() {
    let masks = "arguments = { email = \"block\" }, results = { email = \"redact\" }";
    let own = "isolation = \"session\"";
    let dialogue = Dialogue::new(Transport::Stdio, Front::Stdio, masks, own).await;
    dialogue.call.answer("{}").await;
    dialogue.client.answer("1").await.value();
    let question = dialogue
        .asked("elicitation/create", &elicitation(MAIL))
        .await;
    assert_eq!(question.param(&["message"]).as_deref(), Some("\"[EMAIL]\""));
    let answer = json!({ "action": "accept", "content": { "note": MAIL } });
    let refused = dialogue.answered(&question, &answer).await;
    is_refused(&refused, -32002, "PII in the client's answer");
    dialogue.gateway.stop().await;
}

/// Under `observe` everything passes and is counted; with portable codes servers get those.
#[tokio::test]
async fn observation_and_codes_hold_for_questions() {
    let settings = |more: &str| {
        format!(
            "arguments = {{ email = \"block\" }}, results = {{ email = \"block\" }} }}\n{more}\n#"
        )
    };
    let observed = settings("observe = [\"scan\"]");
    let dialogue = Dialogue::new(Transport::Http, Front::Streamable, &observed, "").await;
    let question = dialogue
        .asked("elicitation/create", &elicitation(MAIL))
        .await;
    let answer = json!({ "action": "accept", "content": { "note": MAIL } });
    let heard = dialogue.answered(&question, &answer).await;
    assert_eq!(heard.value(), answer);
    let counts = dialogue.gateway.running.core().proxy.governance().clone();
    let rule = dialogue.end().await;
    assert_eq!(rule.as_deref(), Some("scan; scan: email x2 reported"));
    assert_eq!(counts.counts().observed["scan"], 1);
    let portable = settings("error_codes = \"portable\"");
    let dialogue = Dialogue::new(Transport::Http, Front::Streamable, &portable, "").await;
    let asks = elicitation(MAIL).to_string();
    dialogue.call.ask("5", "elicitation/create", &asks).await;
    let refused = dialogue.server.backend.answered().await;
    is_refused(&refused, -31002, "PII in the request to the client");
    dialogue.end().await;
}

/// How far a client is with a question, and what it tells the server of a route.
#[tokio::test]
async fn notifications_of_clients_are_looked_at() {
    for (action, expect) in [("redact", Some("[EMAIL]")), ("block", None)] {
        let scan = format!("arguments = {{ email = \"{action}\" }}");
        let dialogue = Dialogue::new(Transport::Http, Front::Streamable, &scan, "").await;
        let mut asks = elicitation("?");
        asks["_meta"] = json!({ "progressToken": "t" });
        let question = dialogue.asked("elicitation/create", &asks).await;
        let token = question.param(&["_meta", "progressToken"]).unwrap();
        let backend = &dialogue.server.backend;
        for (progress, message) in [(1, MAIL), (2, "harmless")] {
            let told = format!(
                r#"{{"progressToken":{token},"progress":{progress},"message":"{message}"}}"#
            );
            dialogue
                .client
                .notify("notifications/progress", &told)
                .await;
        }
        let heard = async || {
            let heard = backend.told("notifications/progress").await.envelope;
            let token = heard.param(&["progressToken"]);
            assert_eq!(token.as_deref(), Some("\"t\""));
            value(&heard.param(&["message"]).unwrap())
        };
        if let Some(masked) = expect {
            assert_eq!(heard().await, masked);
        }
        assert_eq!(heard().await, "harmless");
        let own = dialogue
            .gateway
            .client(Front::Streamable, "/mcp/servers/x", "{}")
            .await;
        for who in [MAIL, "nobody"] {
            let told = format!(r#"{{"deep":["{who}"]}}"#);
            own.notify("notifications/acme/did", &told).await;
        }
        let heard = async || {
            let heard = backend.told("notifications/acme/did").await.envelope;
            value(&heard.param(&["deep"]).unwrap())
        };
        if let Some(masked) = expect {
            assert_eq!(heard().await, json!([masked]));
        }
        assert_eq!(heard().await, json!(["nobody"]));
        dialogue.end().await;
    }
}

/// Why a client cancels is looked at as well; where that may not pass, the server hears that it does.
#[tokio::test]
async fn words_of_a_cancellation_are_looked_at() {
    let ours = "the client cancelled the request";
    for (transport, front) in ways() {
        for (action, expect) in [("redact", "[EMAIL]"), ("block", ours)] {
            let scan = format!("arguments = {{ email = \"{action}\" }}");
            let dialogue = Dialogue::new(transport, front, &scan, "").await;
            let said = format!(r#"{{"requestId":1,"reason":"{MAIL}"}}"#);
            let cancelled = "notifications/cancelled";
            dialogue.client.notify(cancelled, &said).await;
            let heard = dialogue.server.backend.told(cancelled).await.envelope;
            let id = heard.param(&["requestId"]);
            assert_eq!(id.as_deref(), Some(dialogue.call.id()));
            let reason = value(&heard.param(&["reason"]).unwrap());
            assert_eq!(reason, expect, "{transport:?} {front:?}");
            dialogue.gateway.stop().await;
        }
    }
}

/// The methods whose results may ask for input in 2026-07-28, each with what a call of it names.
const ROUNDS: [(&str, &str); 3] = [
    ("tools/call", CALL),
    ("prompts/get", r#""name":"mcp_x_greet""#),
    ("resources/read", r#""uri":"x+file:///a.txt""#),
];

async fn modern(scan: &str) -> Stage {
    let server = Server::over(Transport::Http, Era::Modern).await;
    let settings = format!("[governance]\nprice = \"0\"\nscan = {{ {scan} }}\n");
    Stage::with(server, &settings, "").await
}

/// What a server asks in a result of 2026-07-28.
#[tokio::test]
async fn results_that_ask_for_input_are_looked_at() {
    let asks = json!({
        "resultType": "input_required",
        "inputRequests": { "k": { "method": "elicitation/create", "params": elicitation(MAIL) } },
    });
    for action in ["block", "redact", "report"] {
        let stage = modern(&format!("results = {{ email = \"{action}\" }}")).await;
        for (method, _) in ROUNDS {
            stage.server.answers(method, &asks.to_string());
        }
        for front in [Front::Modern, Front::StdioModern] {
            let client = stage.gateway.client(front, "/mcp", ABLE).await;
            for (method, members) in ROUNDS {
                client.ask("1", method, members).await;
                let answer = client.answer("1").await;
                let what = format!("{action} {method} {front:?}");
                if action == "block" {
                    assert_eq!(code_of(&answer), "PII_DETECTED", "{what}");
                    assert!(!answer.error.unwrap().contains("ann"), "{what}");
                    continue;
                }
                let mut expect = asks.clone();
                if action == "redact" {
                    expect["inputRequests"]["k"]["params"]["message"] = json!("[EMAIL]");
                }
                let mut result = answer.value();
                result.as_object_mut().unwrap().remove("_meta");
                assert_eq!(result, expect, "{what}");
                let rule = stage.last().rule.unwrap();
                assert!(rule.starts_with("scan: email x1 re"), "{what}: {rule}");
            }
        }
        stage.stop().await;
    }
}

/// What a client answers to it in the next request.
#[tokio::test]
async fn responses_to_a_request_for_input_are_looked_at() {
    let responses = json!({ "k": { "action": "accept", "content": { "note": MAIL } } }).to_string();
    for action in ["block", "redact", "report"] {
        let stage = modern(&format!("arguments = {{ email = \"{action}\" }}")).await;
        for front in [Front::Modern, Front::StdioModern] {
            let client = stage.gateway.client(front, "/mcp", ABLE).await;
            for (method, members) in ROUNDS {
                let members = format!(r#"{members},"inputResponses":{responses}"#);
                let before = stage.server.seen().len();
                client.ask("1", method, &members).await;
                let answer = client.answer("1").await;
                let what = format!("{action} {method} {front:?}");
                if action == "block" {
                    assert_eq!(code_of(&answer), "PII_DETECTED", "{what}");
                    assert_eq!(stage.server.seen().len(), before, "{what}");
                    continue;
                }
                answer.value();
                let seen = stage.server.seen().pop().unwrap();
                let expect = if action == "redact" {
                    responses.replace(MAIL, "[EMAIL]")
                } else {
                    responses.clone()
                };
                let heard = seen.param(&["inputResponses"]).unwrap();
                assert_eq!(value(&heard), value(&expect), "{what}");
            }
        }
        stage.stop().await;
    }
}

/// The scan of a server holds beside that of the agent: for each value the stricter wins.
#[tokio::test]
async fn of_two_scans_the_stricter_wins() {
    const ACTIONS: [&str; 4] = ["off", "report", "redact", "block"];
    for (of_agent, agent) in ACTIONS.iter().enumerate() {
        for (of_server, server) in ACTIONS.iter().enumerate() {
            let scan = |action: &str| {
                format!(
                    "scan = {{ arguments = {{ email = \"{action}\" }}, results = {{ email = \"{action}\" }} }}"
                )
            };
            let settings = format!(
                "[agents.ann]\n{}\n[governance]\nprice = \"0\"\n",
                scan(agent)
            );
            let stage = Stage::new(&settings, &scan(server)).await;
            let text = crate::harness::text_result(MAIL);
            stage.server.answers("tools/call", &text);
            let answer = stage.call(&format!(r#"{{"to":"{MAIL}"}}"#)).await;
            let what = format!("{agent} and {server}");
            if of_agent.max(of_server) == 3 {
                assert_eq!(code_of(&answer), "PII_DETECTED", "{what}");
                assert!(stage.server.seen().is_empty(), "{what}");
                // With harmless arguments it is the answer that is refused.
                assert_eq!(stage.must_not("{}").await, "PII_DETECTED", "{what}");
            } else {
                let seen = if of_agent.max(of_server) == 2 {
                    "[EMAIL]"
                } else {
                    MAIL
                };
                assert_eq!(answer.value()["content"][0]["text"], seen, "{what}");
                assert_eq!(stage.server.last_arguments()["to"], seen, "{what}");
            }
            stage.stop().await;
        }
    }
}
