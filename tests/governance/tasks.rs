//! Tasks of servers: only the agent that was given one can ask for it, hear of it and find it listed.

use serde_json::json;
use tollbridge::audit::RecordedDecision;

use crate::{
    harness::{ANN, BOB, Server, Stage, code_of, keyed},
    support::{
        Auto, Client, Era, Front, Gateway, TestGateway, Transport,
        client::Who,
        wire::{Envelope, member, request},
    },
};

const PATH: &str = "/mcp/servers/x";
const AGENTS: &str = "[agents.ann]\n\n[agents.bob]\n\n[governance]\nprice = \"0\"\n";
const CALL: &str = r#""name":"echo","task":{"ttl" : 6e4}"#;
/// What every client is told of a task that is not its own, and of one that there is not.
const UNKNOWN: &str = "Unknown task";

/// How each era is asked for what has come of a task, but for lists.
fn asked(era: Era) -> &'static [&'static str] {
    match era {
        Era::Legacy => &["tasks/get", "tasks/result", "tasks/cancel"],
        Era::Modern => &["tasks/get", "tasks/update", "tasks/cancel"],
    }
}

fn front(era: Era) -> Front {
    match era {
        Era::Legacy => Front::Streamable,
        Era::Modern => Front::Modern,
    }
}

fn begun(era: Era, id: &str) -> String {
    match era {
        Era::Legacy => format!(r#"{{"task" : {{"taskId":"{id}","status":"working","x":1.0}}}}"#),
        Era::Modern => format!(r#"{{"resultType":"task", "taskId":"{id}","ttlMs":6e4}}"#),
    }
}

fn of(id: &str) -> String {
    format!(r#" "taskId" : "{id}","inputResponses":{{}}"#)
}

/// Servers call the next task so.
fn begins(server: &Server, id: &str) {
    server.answers("tools/call", &begun(server.backend.script.era(), id));
}

async fn server(transport: Transport, era: Era) -> Server {
    let server = Server::over(transport, era).await;
    server.answers("tasks/list", r#"{"tasks":[]}"#);
    server
}

async fn stage(server: Server, keys: &str) -> Stage {
    Stage::with(server, AGENTS, keys).await
}

async fn client(stage: &Stage, who: Who<'static>) -> Client {
    let front = front(stage.server.backend.script.era());
    stage.gateway.client_of(who, front, PATH).await
}

async fn answered(client: &Client, method: &str, members: &str) -> Envelope {
    client.ask("1", method, members).await;
    client.answer("1").await
}

/// Calls the tool, which begins the task that the server calls `id`.
async fn begin(client: &Client, server: &Server, id: &str) {
    begins(server, id);
    let answer = answered(client, "tools/call", CALL).await;
    let expect = begun(server.backend.script.era(), id);
    assert_eq!(answer.result, Some(expect));
}

async fn has(client: &Client, id: &str) -> bool {
    let answer = answered(client, "tasks/get", &of(id)).await;
    if answer.error.is_some() {
        assert_unknown(&answer);
    }
    answer.error.is_none()
}

fn assert_unknown(answer: &Envelope) {
    assert_eq!(answer.code(), -32602, "{answer:?}");
    assert_eq!(code_of(answer), "TASK_NOT_FOUND");
    assert_eq!(answer.failure()["message"], UNKNOWN);
}

/// However a server is shared, its tasks are not. What is refused reaches no server, and is told as
/// what there is not.
#[tokio::test]
async fn a_task_is_known_to_its_agent_alone() {
    for (transport, era, isolation) in [
        (Transport::Http, Era::Modern, "auto"),
        (Transport::Http, Era::Modern, "agent"),
        (Transport::Stdio, Era::Modern, "auto"),
        (Transport::Http, Era::Legacy, "auto"),
        (Transport::Stdio, Era::Legacy, "auto"),
        (Transport::Stdio, Era::Legacy, "shared"),
        (Transport::Http, Era::Legacy, "pool"),
    ] {
        let server = server(transport, era).await;
        let stage = stage(server, &format!("isolation = \"{isolation}\"\n")).await;
        let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
        begin(&ann, &stage.server, "t").await;
        for method in asked(era) {
            answered(&ann, method, &of("t")).await.value();
            let heard = stage.server.seen().pop().unwrap();
            assert_eq!(heard.method(), *method);
            assert_eq!(heard.param(&["taskId"]).as_deref(), Some(r#""t""#));
            let before = stage.server.seen().len();
            assert_unknown(&answered(&bob, method, &of("t")).await);
            assert_eq!(
                stage.last().decision,
                RecordedDecision::Refused,
                "{isolation}"
            );
            assert_unknown(&answered(&ann, method, &of("u")).await);
            assert_eq!(stage.server.seen().len(), before, "{transport:?} {method}");
        }
        stage.stop().await;
    }
}

/// A server may read another name than we do.
#[tokio::test]
async fn a_task_has_one_name() {
    let stage = stage(server(Transport::Http, Era::Legacy).await, "").await;
    let ann = client(&stage, ANN).await;
    begin(&ann, &stage.server, "t").await;
    let before = stage.server.seen().len();
    for members in [
        r#""taskId":"t","taskId":"t""#,
        r#""taskId":"t","taskID":"u""#,
        r#""taskid":"t""#,
        r#""taskId":["t"]"#,
    ] {
        assert_unknown(&answered(&ann, "tasks/get", members).await);
    }
    assert_eq!(stage.server.seen().len(), before);
    let nothing = answered(&ann, "tasks/get", "").await;
    assert!(nothing.error.is_none(), "the server says what is missing");
    stage.stop().await;
}

/// A list of one's own tasks is as its server wrote it.
#[tokio::test]
async fn a_list_has_no_tasks_of_others() {
    let server = server(Transport::Http, Era::Legacy).await;
    let stage = stage(server, "isolation = \"shared\"\n").await;
    let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
    for (client, id) in [(&ann, "a"), (&bob, "b"), (&ann, "c")] {
        begin(client, &stage.server, id).await;
    }
    let task = |id: &str| format!(r#"{{ "taskId" : "{id}", "n":1.0}}"#);
    let list = |tasks: &[String]| {
        let tasks = tasks.join(",");
        format!(r#"{{ "nextCursor":"n","tasks" :[{tasks}]}}"#)
    };
    let (a, b, c) = (task("a"), task("b"), task("c"));
    let unclear = r#"{"taskId":"a","taskid":"b"}"#.to_owned();
    for (listed, of_ann, of_bob) in [
        (vec![], vec![], vec![]),
        (
            vec![a.clone(), b.clone(), c.clone()],
            vec![a.clone(), c.clone()],
            vec![b],
        ),
        (
            vec![task("z"), unclear, "{}".to_owned(), c.clone()],
            vec![c],
            vec![],
        ),
    ] {
        stage.server.answers("tasks/list", &list(&listed));
        for (client, own) in [(&ann, of_ann), (&bob, of_bob)] {
            let answer = answered(client, "tasks/list", "").await;
            assert_eq!(answer.result, Some(list(&own)));
        }
    }
    let odd = r#"{ "tasks" : [ {"taskId":"a"} , {"taskId":"c"} ] }"#;
    stage.server.answers("tasks/list", odd);
    let answer = answered(&ann, "tasks/list", "").await;
    assert_eq!(answer.result.as_deref(), Some(odd), "nothing is left out");
    stage.stop().await;
}

/// Who listens hears of its own tasks, whatever it asks for, and whatever the server says.
#[tokio::test]
async fn who_listens_hears_of_its_own_tasks() {
    let stage = stage(server(Transport::Http, Era::Modern).await, "").await;
    let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
    let wish = r#""notifications":{"taskIds":["t","u"],"resourceSubscriptions":["file:///a.txt"]}"#;
    let honoured = async |client: &Client, id: &str| {
        client.ask(id, "subscriptions/listen", wish).await;
        let ack = client
            .must("notifications/subscriptions/acknowledged")
            .await;
        ack.param(&["notifications"]).unwrap()
    };
    let tasks = |honoured: &str| member(honoured, &["taskIds"]);
    assert_eq!(tasks(&honoured(&ann, "11").await), None);
    begin(&ann, &stage.server, "t").await;
    begin(&bob, &stage.server, "u").await;
    let of_ann = honoured(&ann, "12").await;
    assert_eq!(tasks(&of_ann).as_deref(), Some(r#"["t"]"#));
    let stream = stage.server.backend.listen("taskIds").await;
    assert_eq!(
        stream
            .envelope
            .param(&["notifications", "taskIds"])
            .as_deref(),
        Some(r#"["t"]"#)
    );
    for id in ["u", "v", "t"] {
        let params = stream.tagged(&format!(r#""taskId":"{id}","status":"working","#));
        stream.tell("notifications/tasks", &params).await;
    }
    let told = ann.must("notifications/tasks").await;
    assert_eq!(told.param(&["taskId"]).as_deref(), Some(r#""t""#));
    ann.is_quiet().await;
    let of_bob = honoured(&bob, "13").await;
    assert_eq!(tasks(&of_bob).as_deref(), Some(r#"["u"]"#));
    stage.stop().await;
}

/// A filter beside the one that is looked at reaches no server.
#[tokio::test]
async fn a_listen_stream_has_one_filter() {
    let stage = stage(server(Transport::Http, Era::Modern).await, "").await;
    let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
    begin(&ann, &stage.server, "t").await;
    let wish = r#""notifications":{"taskIds":["t"]},"Notifications":{"taskIds":["t"]},
        "notifications":{"resourceSubscriptions":["file:///a.txt"],"TaskIds":["t"]}"#;
    bob.ask("1", "subscriptions/listen", wish).await;
    bob.must("notifications/subscriptions/acknowledged").await;
    let listened = stage.server.listened().pop().unwrap();
    let params = listened.params.unwrap();
    assert!(params.contains("file:///a.txt"), "{params}");
    assert!(!params.contains("askIds"), "{params}");
    let many = |count: usize| {
        let ids = vec!["\"t\""; count].join(",");
        format!(r#""notifications":{{"taskIds":[{ids}]}}"#)
    };
    ann.ask("2", "subscriptions/listen", &many(1025)).await;
    assert_eq!(ann.answer("2").await.code(), -32602);
    ann.ask("3", "subscriptions/listen", &many(1024)).await;
    ann.must("notifications/subscriptions/acknowledged").await;
    stage.stop().await;
}

/// What a server says on a connection of several agents, and not on that of a call, goes to nobody but
/// whose the task is that it is about.
#[tokio::test]
async fn what_a_shared_program_says_of_a_task_is_for_its_agent() {
    let server = server(Transport::Stdio, Era::Legacy).await;
    let stage = stage(server, "isolation = \"shared\"\n").await;
    let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
    begin(&ann, &stage.server, "t").await;
    begin(&bob, &stage.server, "u").await;
    stage.server.does("tools/call", Auto::Hand);
    bob.ask("2", "tools/call", CALL).await;
    let backend = &stage.server.backend;
    let call = backend.asked("tools/call").await;
    let state = |id: &str| format!(r#"{{"taskId":"{id}","status":"working"}}"#);
    let related = |id: &str| {
        format!(r#"{{"_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{id}"}}}}}}"#)
    };
    for id in ["t", "v", "u"] {
        backend
            .speak("notifications/tasks/status", &state(id))
            .await;
        backend.speak("notifications/acme", &related(id)).await;
    }
    let told = bob.must("notifications/tasks/status").await;
    assert_eq!(told.params, Some(state("u")));
    let told = bob.must("notifications/acme").await;
    assert_eq!(told.params, Some(related("u")));

    backend.utter(request("7", "acme/ask", &related("t"))).await;
    assert!(backend.answered().await.error.is_some());
    backend.utter(request("8", "acme/ask", &related("u"))).await;
    let question = bob.must("acme/ask").await;
    bob.respond(&question.id.unwrap(), "{}").await;
    assert!(backend.answered().await.result.is_some());
    call.answer("{}").await;
    bob.answer("2").await.value();
    stage.stop().await;
}

/// A connection that is made anew has seen one agent only, and the task may be of another all the same.
#[tokio::test]
async fn a_connection_that_is_made_anew_tells_nobody_of_the_tasks_of_others() {
    let server = server(Transport::Http, Era::Legacy).await;
    let gateways = TestGateway::new().setting(&keyed(AGENTS)).server_with(
        "x",
        &server.backend,
        "isolation = \"shared\"\n",
    );
    let gateway = gateways.start().await;
    let client = async |gateway: &Gateway, who| {
        let client = gateway.client_of(who, Front::Streamable, PATH);
        client.await
    };
    let (ann, bob) = (client(&gateway, ANN).await, client(&gateway, BOB).await);
    begin(&ann, &server, "t").await;
    server.does("tools/call", Auto::Hand);
    let state = |id: &str| format!(r#"{{"taskId":"{id}","status":"working"}}"#);
    let speak = async |method, params: String| server.backend.speak(method, &params).await;
    let is_not_told = async |bob: &Client| {
        bob.ask("2", "tools/call", CALL).await;
        let call = server.backend.asked("tools/call").await;
        for id in ["t", "v"] {
            speak("notifications/tasks/status", state(id)).await;
        }
        speak("notifications/acme", "{}".to_owned()).await;
        bob.must("notifications/acme").await;
        call.answer("{}").await;
        bob.answer("2").await.value();
    };
    server.backend.forget_sessions();
    is_not_told(&bob).await;
    // Whose it is hears of it there too.
    ann.ask("3", "tools/call", CALL).await;
    let call = server.backend.asked("tools/call").await;
    speak("notifications/tasks/status", state("t")).await;
    let heard = ann.must("notifications/tasks/status").await;
    assert_eq!(heard.params, Some(state("t")));
    call.answer("{}").await;
    ann.answer("3").await.value();
    gateway.stop().await;

    server.backend.forget_sessions();
    let gateway = gateways.start().await;
    is_not_told(&client(&gateway, BOB).await).await;
    gateway.stop().await;
}

/// A restart neither opens tasks to others nor closes them to their agent; another gateway of the
/// data directory knows them too.
#[tokio::test]
async fn whose_a_task_is_outlives_the_process() {
    let server = server(Transport::Http, Era::Modern).await;
    let gateways = TestGateway::new()
        .setting(&keyed(AGENTS))
        .server("x", &server.backend);
    let (first, second) = (gateways.start().await, gateways.start().await);
    let ann = first.client_of(ANN, Front::Modern, PATH).await;
    begin(&ann, &server, "t").await;
    first.stop().await;
    let third = gateways.start().await;
    for gateway in [second, third] {
        let ann = gateway.client_of(ANN, Front::Modern, PATH).await;
        let bob = gateway.client_of(BOB, Front::Modern, PATH).await;
        assert!(has(&ann, "t").await);
        assert!(!has(&bob, "t").await);
        gateway.stop().await;
    }
}

/// What is one agent's never becomes another's. A server that counts anew gives an id a second time: it
/// is nobody's then, and is not told. Programs of two agents count each by itself.
#[tokio::test]
async fn an_id_is_of_one_agent_for_good() {
    for (transport, era, is_shared) in [
        (Transport::Http, Era::Modern, true),
        (Transport::Stdio, Era::Modern, true),
        (Transport::Http, Era::Legacy, true),
        (Transport::Stdio, Era::Legacy, false),
    ] {
        let stage = stage(server(transport, era).await, "").await;
        let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
        begin(&ann, &stage.server, "1").await;
        begin(&ann, &stage.server, "1").await;
        assert!(has(&ann, "1").await);
        assert!(!has(&bob, "1").await);
        let answer = answered(&bob, "tools/call", CALL).await;
        if is_shared {
            assert_eq!(code_of(&answer), "AUDIT_UNAVAILABLE");
        } else {
            answer.value();
        }
        for client in [&ann, &bob] {
            assert_eq!(has(client, "1").await, !is_shared, "{transport:?} {era:?}");
        }
        stage.stop().await;
    }
}

/// A tool may pass on what it is told, and answer as if it had begun the task of somebody else: of a
/// call that asked for none no task comes. From 2026-07-28 on nobody asks, and the server decides.
#[tokio::test]
async fn a_call_that_asks_for_no_task_begins_none() {
    const PLAIN: &str = r#""name":"echo","arguments":{"task":{}}"#;
    for (era, may_begin) in [(Era::Legacy, false), (Era::Modern, true)] {
        let stage = stage(server(Transport::Http, era).await, "").await;
        let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
        for (id, is_anns) in [("t", true), ("u", false)] {
            if is_anns {
                begin(&ann, &stage.server, id).await;
            }
            begins(&stage.server, id);
            let answer = answered(&bob, "tools/call", PLAIN).await;
            if !may_begin {
                assert_eq!(answer.result, Some(begun(era, id)), "it passes as it is");
            }
            assert_eq!(has(&ann, id).await, is_anns && !may_begin, "{era:?} {id}");
            assert_eq!(has(&bob, id).await, !is_anns && may_begin, "{era:?} {id}");
        }
        stage.stop().await;
    }
}

/// Two servers may call two tasks the same.
#[tokio::test]
async fn a_task_is_of_one_server() {
    let (one, two) = (
        server(Transport::Http, Era::Modern).await,
        server(Transport::Http, Era::Modern).await,
    );
    let gateway = TestGateway::new()
        .setting(&keyed(AGENTS))
        .server("x", &one.backend)
        .server("y", &two.backend)
        .start()
        .await;
    let ann = gateway.client_of(ANN, Front::Modern, PATH).await;
    begin(&ann, &one, "t").await;
    let elsewhere = gateway
        .client_of(ANN, Front::Modern, "/mcp/servers/y")
        .await;
    assert!(has(&ann, "t").await);
    assert!(!has(&elsewhere, "t").await);
    gateway.stop().await;
}

/// What a scan masks in an answer, or withholds of it, is whose it is all the same.
#[tokio::test]
async fn scans_change_no_owner() {
    let server = server(Transport::Http, Era::Modern).await;
    let settings = format!("{AGENTS}scan = {{ results = {{ \"*\" = \"block\" }} }}\n");
    let stage = Stage::with(server, &settings, "").await;
    let (ann, bob) = (client(&stage, ANN).await, client(&stage, BOB).await);
    let leak = r#"{"resultType":"task","taskId":"1","statusMessage":"bob.roe@example.org"}"#;
    stage.server.answers("tools/call", leak);
    let answer = answered(&bob, "tools/call", CALL).await;
    assert_eq!(code_of(&answer), "PII_DETECTED");
    assert!(has(&bob, "1").await);
    assert!(!has(&ann, "1").await);
    stage.stop().await;
}

/// Where nobody needs a key there is one agent: whatever a client calls a task reaches its server,
/// and everything passes byte for byte.
#[tokio::test]
async fn an_open_gateway_looks_at_no_task() {
    for era in [Era::Legacy, Era::Modern] {
        let server = server(Transport::Http, era).await;
        let list = r#"{"tasks" :[ {"taskId":"z"} ],"resultType":"complete"}"#;
        server.answers("tasks/list", list);
        let stage = Stage::with(server, "[governance]\nprice = \"0\"\n", "").await;
        let client = stage.gateway.client(front(era), PATH, "{}").await;
        begin(&client, &stage.server, "t").await;
        for members in [&*of("t"), &*of("z"), r#""taskId" : "z","taskid":1"#] {
            for method in asked(era) {
                let told = r#"{ "taskId" : "z","resultType":"complete"}"#;
                stage.server.does(method, Auto::Result(told.to_owned()));
                let answer = answered(&client, method, members).await;
                assert_eq!(answer.result.as_deref(), Some(told));
                let heard = stage.server.seen().pop().unwrap();
                assert_eq!(heard.params, Some(client.params(members, "")));
            }
        }
        let answer = answered(&client, "tasks/list", "").await;
        assert_eq!(answer.result.as_deref(), Some(list));
        stage.stop().await;
    }
    let stage = Stage::with(
        server(Transport::Http, Era::Modern).await,
        "[governance]\nprice = \"0\"\n",
        "",
    )
    .await;
    let client = stage.gateway.client(Front::Modern, PATH, "{}").await;
    let wish = r#""notifications":{"taskIds":["z"]}"#;
    client.ask("1", "subscriptions/listen", wish).await;
    let ack = client
        .must("notifications/subscriptions/acknowledged")
        .await;
    let honoured = ack.param(&["notifications"]).unwrap();
    assert_eq!(
        crate::support::value(&honoured),
        json!({ "taskIds": ["z"] })
    );
    let stream = stage.server.backend.listen("taskIds").await;
    let params = stream.tagged(r#""taskId":"y","#);
    stream.tell("notifications/tasks", &params).await;
    let told = client.must("notifications/tasks").await;
    assert_eq!(told.param(&["taskId"]).as_deref(), Some(r#""y""#));
    stage.stop().await;
}
