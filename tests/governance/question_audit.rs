//! What a server asks a client has a record of its own, whatever becomes of it, and a server that asks without
//! end does not fill the audit.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tollbridge::audit::{ArgumentsDigest, Record};

use crate::{
    audit_records::segments,
    harness::{Server, Stage, code_of, records},
    question_scanning::{ABLE, Dialogue, MAIL, elicitation},
    support::{Auto, Era, Front, TestGateway, Transport, soon},
};

const QUIET: &str = "arguments = { email = \"report\" }";

/// The events about questions below `data_dir`, in their order.
fn asked(data_dir: &Path) -> Vec<Value> {
    let mut asked = Vec::new();
    for name in segments(data_dir) {
        let text = fs::read_to_string(data_dir.join("audit").join(name)).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        asked.extend(lines.filter(|line: &Value| line["event"] == "client_asked"));
    }
    asked
}

/// What became of the questions, in their order.
fn outcomes(asked: &[Value]) -> Vec<&str> {
    asked
        .iter()
        .map(|line| line["outcome"].as_str().unwrap())
        .collect()
}

/// Waits until so many are recorded.
async fn recorded(data_dir: &Path, count: usize) -> Vec<Value> {
    soon("questions are recorded", async {
        loop {
            let asked = asked(data_dir);
            if asked.len() >= count {
                return asked;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await
}

/// Ends the call; its record.
async fn recorded_end(dialogue: Dialogue) -> Record<'static> {
    dialogue.call.answer("{}").await;
    dialogue.client.answer("1").await.value();
    let call = records(&dialogue.gateway.config.data_dir).pop().unwrap();
    dialogue.gateway.stop().await;
    call
}

/// Asks and answers every kind of question; what is to be recorded: the method, the outcome and the digest.
async fn conversed(dialogue: &Dialogue) -> Vec<(&'static str, &'static str, String)> {
    let asks = elicitation("secret");
    let samples = json!({ "messages": [], "maxTokens": 10, "systemPrompt": "secret" });
    let accepts = json!({ "action": "accept", "content": { "note": "secret" } });
    let content = json!({ "type": "text", "text": "secret" });
    let sampled = json!({ "role": "assistant", "model": "m", "content": content });
    let [declines, cancels] = ["decline", "cancel"].map(|action| json!({ "action": action }));
    let roots = json!({ "roots": [] });
    let mut expect = Vec::new();
    for (method, params, answer, outcome) in [
        ("elicitation/create", &asks, &accepts, "answered"),
        ("elicitation/create", &asks, &declines, "declined"),
        ("elicitation/create", &asks, &cancels, "cancelled"),
        ("sampling/createMessage", &samples, &sampled, "answered"),
        ("roots/list", &json!({}), &roots, "answered"),
        ("acme/ask", &json!({ "what": "secret" }), &roots, "answered"),
    ] {
        let question = dialogue.asked(method, params).await;
        dialogue.answered(&question, answer).await;
        let digest = ArgumentsDigest::of(params.to_string().as_bytes());
        expect.push((method, outcome, digest.to_string()));
    }
    let question = dialogue.asked("roots/list", &json!({})).await;
    let id = question.id.as_deref().unwrap();
    let error = r#"{"code":-1,"message":"secret"}"#;
    let refusal = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
    dialogue.client.send(refusal).await;
    dialogue.server.backend.answered().await.failure();
    let digest = ArgumentsDigest::of(b"{}").to_string();
    expect.push(("roots/list", "refused_by_client", digest));
    expect
}

/// Every kind of question, and what clients make of them. The record of the question and that of its call have
/// the id in common; the words of neither side are in it.
#[tokio::test]
async fn a_question_is_recorded_with_its_call_and_outcome() {
    for (transport, front) in [
        (Transport::Http, Front::Streamable),
        (Transport::Stdio, Front::Stdio),
    ] {
        let dialogue = Dialogue::new(transport, front, QUIET, "").await;
        let data_dir = dialogue.gateway.config.data_dir.clone();
        let expect = conversed(&dialogue).await;
        let asked = recorded(&data_dir, expect.len()).await;
        let call = recorded_end(dialogue).await;
        assert_eq!(asked.len(), expect.len(), "{asked:?}");
        for (line, (method, outcome, digest)) in asked.iter().zip(expect) {
            assert_eq!(line["method"], method, "{transport:?}");
            assert_eq!(line["outcome"], outcome, "{line}");
            assert_eq!(line["params_digest"], digest, "{line}");
            assert_eq!(line["parent_id"], call.id.to_string(), "{line}");
            assert_eq!(line["subject"], "x");
            assert_eq!(line["actor"], *call.agent_name);
            assert_eq!(line["agent_id"], call.agent_id.to_string());
            let outcome = outcome.replace('_', " ");
            let detail = format!("{method}: {outcome}, in {}", call.id);
            assert_eq!(line["detail"], detail);
            assert!(!line.to_string().contains("secret"), "{line}");
        }
    }
}

/// What does not pass is recorded as what it is: the scan of either side, a client that cannot be asked that.
#[tokio::test]
async fn a_refused_question_is_recorded() {
    let scan = "arguments = { email = \"block\" }, results = { email = \"block\" }";
    let dialogue = Dialogue::new(Transport::Http, Front::Streamable, scan, "").await;
    let data_dir = dialogue.gateway.config.data_dir.clone();
    let asks = elicitation(MAIL).to_string();
    dialogue.call.ask("5", "elicitation/create", &asks).await;
    dialogue.server.backend.answered().await.failure();
    let question = dialogue
        .asked("elicitation/create", &elicitation("?"))
        .await;
    let answer = json!({ "action": "accept", "content": { "note": MAIL } });
    dialogue.answered(&question, &answer).await.failure();
    let refused = recorded(&data_dir, 2).await;
    assert_eq!(outcomes(&refused), ["refused", "refused"]);
    let call = recorded_end(dialogue).await.id.to_string();
    assert!(refused.iter().all(|line| line["parent_id"] == *call));

    let server = Server::over(Transport::Http, Era::Legacy).await;
    server.does("tools/call", Auto::Hand);
    let stage = Stage::with(server, "[governance]\nprice = \"0\"\n", "").await;
    let data_dir = stage.gateway.config.data_dir.clone();
    for front in [Front::Streamable, Front::Modern] {
        let client = stage.gateway.client(front, "/mcp", "{}").await;
        client
            .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        let call = stage.server.backend.asked("tools/call").await;
        call.ask("5", "elicitation/create", "{}").await;
        stage.server.backend.answered().await.failure();
        call.answer("{}").await;
        client.answer("1").await.value();
    }
    let refused = recorded(&data_dir, 2).await;
    assert_eq!(outcomes(&refused), ["refused", "refused"]);
    stage.stop().await;
}

/// A question that its server takes back, or whose call or client is gone.
#[tokio::test]
async fn a_question_without_an_answer_is_recorded() {
    let dialogue = Dialogue::new(Transport::Stdio, Front::Streamable, QUIET, "").await;
    let data_dir = dialogue.gateway.config.data_dir.clone();
    dialogue
        .asked("elicitation/create", &elicitation("?"))
        .await;
    let cancels = r#"{"requestId":5}"#;
    dialogue.call.tell("notifications/cancelled", cancels).await;
    dialogue.client.must("notifications/cancelled").await;
    assert_eq!(outcomes(&recorded(&data_dir, 1).await), ["withdrawn"]);
    dialogue
        .asked("elicitation/create", &elicitation("?"))
        .await;
    dialogue.client.cancel("1").await;
    assert_eq!(outcomes(&recorded(&data_dir, 2).await)[1], "withdrawn");
    dialogue.gateway.stop().await;

    let dialogue = Dialogue::new(Transport::Stdio, Front::Streamable, QUIET, "").await;
    let data_dir = dialogue.gateway.config.data_dir.clone();
    dialogue
        .asked("elicitation/create", &elicitation("?"))
        .await;
    dialogue.client.end().await;
    let gone = recorded(&data_dir, 1).await;
    let outcome = gone[0]["outcome"].as_str().unwrap();
    assert!(["client_gone", "withdrawn"].contains(&outcome), "{outcome}");
    dialogue.gateway.stop().await;

    let server = Server::over(Transport::Stdio, Era::Legacy).await;
    server.does("tools/call", Auto::Hand);
    let plan = TestGateway::new().server("x", &server.backend);
    let gateway = plan.start().await;
    let data_dir = gateway.config.data_dir.clone();
    let able = r#"{"elicitation":{}}"#;
    let client = gateway.client(Front::Streamable, "/mcp", able).await;
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let call = server.backend.asked("tools/call").await;
    call.ask("5", "elicitation/create", "{}").await;
    client.must("elicitation/create").await;
    gateway.stop().await;
    assert_eq!(asked(&data_dir).len(), 1, "also at a stop");
}

/// Between calls a question belongs to none; nobody answers it in time.
#[tokio::test]
async fn a_question_between_calls_is_recorded() {
    let own = "isolation = \"session\"\ntimeout = \"1s\"\nmax_total_timeout = \"1s\"";
    let dialogue = Dialogue::new(Transport::Stdio, Front::Stdio, QUIET, own).await;
    dialogue.call.answer("{}").await;
    dialogue.client.answer("1").await.value();
    let data_dir = dialogue.gateway.config.data_dir.clone();
    dialogue
        .asked("elicitation/create", &elicitation("?"))
        .await;
    dialogue.server.backend.answered().await.failure();
    let asked = recorded(&data_dir, 1).await;
    assert_eq!(outcomes(&asked), ["timed_out"]);
    assert!(asked[0].get("parent_id").is_none(), "{asked:?}");
    assert!(asked[0].get("agent_id").is_some(), "{asked:?}");
    dialogue.gateway.stop().await;
}

/// On a shared connection nobody knows whose a question is while two clients wait.
#[tokio::test]
async fn a_question_of_nobody_is_recorded() {
    let dialogue = Dialogue::new(Transport::Stdio, Front::Streamable, QUIET, "").await;
    let data_dir = dialogue.gateway.config.data_dir.clone();
    let other = dialogue
        .gateway
        .client(Front::Streamable, "/mcp", ABLE)
        .await;
    other.ask("1", "tools/call", r#""name":"mcp_x_echo""#).await;
    let second = dialogue.server.backend.asked("tools/call").await;
    second.ask("5", "elicitation/create", "{}").await;
    dialogue.server.backend.answered().await.failure();
    let asked = recorded(&data_dir, 1).await;
    assert_eq!(outcomes(&asked), ["unattributable"]);
    for member in ["actor", "agent_id", "parent_id"] {
        assert!(asked[0].get(member).is_none(), "{asked:?}");
    }
    second.answer("{}").await;
    other.answer("1").await.value();
    dialogue.end().await;
}

/// What a result of 2026-07-28 asks, and what its client answers in the next request.
#[tokio::test]
async fn questions_in_results_are_recorded() {
    let server = Server::over(Transport::Http, Era::Modern).await;
    let asks = json!({
        "resultType": "input_required",
        "requestState": "s",
        "inputRequests": {
            "a": { "method": "elicitation/create", "params": { "message": "secret" } },
            "b": { "method": "roots/list" },
        },
    });
    server.answers("tools/call", &asks.to_string());
    let settings = "[governance]\nprice = \"0\"\nscan = { results = { email = \"block\" } }\n";
    let stage = Stage::with(server, settings, "").await;
    let data_dir = stage.gateway.config.data_dir.clone();
    let client = stage.client(Front::Modern).await;
    let call = r#""name":"mcp_x_echo""#;
    client.ask("1", "tools/call", call).await;
    let state = client.answer("1").await.value()["requestState"].clone();
    let first = stage.last().id.to_string();
    stage
        .server
        .answers("tools/call", r#"{"resultType":"complete","content":[]}"#);
    let answers = json!({
        "a": { "action": "decline" },
        "b": { "roots": [] },
        "c": { "role": "assistant", "model": "secret" },
    });
    let again = format!(r#"{call},"inputResponses":{answers},"requestState":{state}"#);
    client.ask("2", "tools/call", &again).await;
    client.answer("2").await.value();
    let second = stage.last().id.to_string();
    let blocked = asks.to_string().replace("secret", MAIL);
    stage.server.answers("tools/call", &blocked);
    client.ask("3", "tools/call", call).await;
    assert_eq!(code_of(&client.answer("3").await), "PII_DETECTED");
    let third = stage.last().id.to_string();
    let asked = recorded(&data_dir, 7).await;
    stage.stop().await;
    let told: Vec<_> = asked
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap_or_default();
            (text("method"), text("outcome"), text("parent_id"))
        })
        .collect();
    let (elicitation, roots) = ("elicitation/create", "roots/list");
    let expect = [
        (elicitation, "asked", &*first),
        (roots, "asked", &first),
        (elicitation, "declined", &second),
        (roots, "answered", &second),
        ("sampling/createMessage", "answered", &second),
        (elicitation, "refused", &third),
        (roots, "refused", &third),
    ];
    assert_eq!(told, expect);
    let digest = ArgumentsDigest::of(br#"{"message":"secret"}"#).to_string();
    assert_eq!(asked[0]["params_digest"], digest);
    for line in asked {
        assert!(!line.to_string().contains("secret"), "{line}");
    }
}

/// A server that asks on and on: the first questions have records, and the rest are in sums, of which none is
/// lost; a call asks its client only so often, and another server is recorded as ever.
#[tokio::test]
async fn a_flood_of_questions_is_summed() {
    const FLOOD: usize = 1100;
    let other = Server::over(Transport::Stdio, Era::Legacy).await;
    other.does("tools/call", Auto::Hand);
    let server = Server::over(Transport::Stdio, Era::Legacy).await;
    server.does("tools/call", Auto::Hand);
    let plan = TestGateway::new()
        .setting("[governance]\nprice = \"0\"\nscan = { results = { email = \"block\" } }\n")
        .server("x", &server.backend)
        .server("y", &other.backend);
    let gateway = plan.start().await;
    let data_dir = gateway.config.data_dir.clone();
    let client = gateway
        .client(Front::Streamable, "/mcp", r#"{"elicitation":{}}"#)
        .await;
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let call = server.backend.asked("tools/call").await;
    let asks = elicitation(MAIL).to_string();
    let mut messages = Vec::new();
    for id in 0..FLOOD {
        call.ask(&id.to_string(), "elicitation/create", &asks).await;
        let refused = server.backend.answered().await.failure();
        messages.push(refused["message"].as_str().unwrap().to_owned());
    }
    let over = "too many requests in this call (1000)";
    assert_eq!(
        messages.iter().filter(|message| *message == over).count(),
        FLOOD - 1000
    );
    assert!(messages[..1000].iter().all(|message| message != over));
    client
        .ask("2", "tools/call", r#""name":"mcp_y_echo""#)
        .await;
    let second = other.backend.asked("tools/call").await;
    second
        .ask("5", "elicitation/create", &elicitation("?").to_string())
        .await;
    let question = client.must("elicitation/create").await;
    client
        .respond(question.id.as_deref().unwrap(), r#"{"action":"decline"}"#)
        .await;
    other.backend.answered().await.value();
    second.answer("{}").await;
    client.answer("2").await.value();
    call.answer("{}").await;
    client.answer("1").await.value();
    gateway.stop().await;

    let asked = asked(&data_dir);
    let of = |server: &str| {
        asked
            .iter()
            .filter(|line| line["subject"] == server)
            .collect::<Vec<_>>()
    };
    let (sums, single): (Vec<_>, Vec<_>) =
        of("x").into_iter().partition(|line| line["count"].is_u64());
    assert_eq!(single.len(), 100);
    let [sum] = sums[..] else { panic!("{sums:?}") };
    assert_eq!(sum["count"], FLOOD - 100);
    assert_eq!(sum["outcome"], "refused");
    assert_eq!(sum["method"], "elicitation/create");
    assert!(sum["actor"].is_string() && sum["since"].is_string());
    assert!(sum.get("parent_id").is_none());
    let of_other = of("y");
    assert_eq!(of_other.len(), 1);
    assert_eq!(of_other[0]["outcome"], "declined");
}
