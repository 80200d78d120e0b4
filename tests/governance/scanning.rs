//! PII and secrets on the wire: what is blocked, masked or reported in each direction.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tollbridge::audit::RecordedDecision;

use crate::{
    harness::{Level, Server, Stage, ask_on, call_over, code_of, text_result},
    support::{
        Auto, Client, Era, Front, Transport, soon, value,
        wire::{request, spawn},
    },
};

const MAIL: &str = "ann.lee@example.org";
const ASK_HER: &str = r#"{"to":"ann.lee@example.org","n":1e3}"#;

/// A scan of one direction at one level.
async fn stage(level: Level, scan: &str) -> Stage {
    Stage::at(level, &format!("scan = {{ {scan} }}")).await
}

#[tokio::test]
pub(crate) async fn arguments() {
    for level in Level::ALL {
        let blocks = stage(level, "arguments = { email = \"block\" }").await;
        assert_eq!(blocks.must_not(ASK_HER).await, "PII_DETECTED", "{level:?}");
        assert!(blocks.server.seen().is_empty());
        blocks.must(r#"{"to":"nobody"}"#).await;
        blocks.stop().await;
        let masks = stage(level, "arguments = { email = \"redact\" }").await;
        masks.must(ASK_HER).await;
        let arrived = masks.server.seen()[0].param(&["arguments"]).unwrap();
        assert_eq!(arrived, r#"{"to":"[EMAIL]","n":1e3}"#, "{level:?}");
        assert_eq!(masks.last().decision, RecordedDecision::Allowed);
        let rule = masks.last().rule.unwrap();
        assert_eq!(rule, "scan: email x1 redacted");
        masks.stop().await;
        let reports = stage(level, "arguments = { email = \"report\" }").await;
        reports.must(ASK_HER).await;
        assert_eq!(reports.server.last_arguments(), value(ASK_HER));
        let rule = reports.last().rule.unwrap();
        assert_eq!(rule, "scan: email x1 reported", "{level:?}");
        reports.stop().await;
        let off = stage(level, "arguments = { \"*\" = \"block\", email = \"off\" }").await;
        off.must(ASK_HER).await;
        assert_eq!(off.last().rule, None, "{level:?}");
        off.stop().await;
    }
}

/// Every client of either era is looked at alike, on each route, and an escape hides nothing.
#[tokio::test]
async fn every_client_is_looked_at() {
    let settings = "[profiles.p]\n[governance]\nprice = \"0\"\n\
                    scan = { arguments = { email = \"redact\" }, results = { email = \"redact\" } }\n";
    let mut stage = Stage::new(settings, "").await;
    stage.server.answers("tools/call", &text_result(MAIL));
    for front in Front::ALL {
        for (path, tool) in [
            ("/mcp", "mcp_x_echo"),
            ("/mcp/servers/x", "echo"),
            ("/mcp/profiles/p", "mcp_x_echo"),
        ] {
            stage.path = path;
            let client = stage.client(front).await;
            let arguments = r#"{"a":["ann.lee\u0040example.org"],"ann.lee@example.org":1}"#;
            let answer = call_over(&client, "1", tool, arguments).await.value();
            assert_eq!(answer["content"][0]["text"], "[EMAIL]", "{front:?} {path}");
            let arrived = stage.server.last_arguments().to_string();
            assert!(!arrived.contains("ann"), "{front:?} {path}: {arrived}");
        }
    }
    stage.stop().await;
}

/// What is found in a number leaves a number, with or without a schema.
#[tokio::test]
async fn a_number_stays_a_number() {
    for (mask, expect) in [("type", "0"), ("length", "1000000000000000")] {
        let server = Server::start().await;
        let card = r#"{"content":[],"structuredContent":{"card":4111111111111111,"n":7}}"#;
        server.answers("tools/call", card);
        let settings = format!(
            "[governance]\nscan = {{ mask = \"{mask}\", results = {{ credit_card = \"redact\" }} }}\n"
        );
        let stage = Stage::with(server, &settings, "").await;
        let structured = stage.must("{}").await["structuredContent"].to_string();
        assert_eq!(structured, format!(r#"{{"card":{expect},"n":7}}"#));
        let rule = stage.last().rule.unwrap();
        assert_eq!(rule, "scan: credit_card x1 redacted");
        stage.stop().await;
    }
}

/// A tool whose results have a schema.
const TOOL: &str = r#"[{"name":"echo","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"mail":{"type":"string","format":"email"},"n":{"type":"integer"},"note":{"type":"string","maxLength":24}},"required":["mail","n"],"additionalProperties":false}}]"#;

#[tokio::test]
pub(crate) async fn results() {
    let structured = json!({ "mail": MAIL, "n": 7, "note": MAIL });
    let both = json!({
        "content": [{ "type": "text", "text": structured.to_string() }],
        "structuredContent": structured,
    });
    for level in Level::ALL {
        let server = Server::start().await;
        server.backend.set_list("tools/list", TOOL);
        server.answers("tools/call", &both.to_string());
        let masks = "scan = { results = { email = \"redact\" } }";
        let stage = Stage::at_in_front_of(server, level, masks).await;
        let result = stage.must("{}").await;
        assert!(!result.to_string().contains("ann"), "{result}");
        let text = value(result["content"][0]["text"].as_str().unwrap());
        assert_eq!(
            text["mail"], result["structuredContent"]["mail"],
            "{level:?}"
        );
        let mail = result["structuredContent"]["mail"].as_str().unwrap();
        assert!(mail.contains('@'), "no address any more: {mail}");
        assert_eq!(result["structuredContent"]["n"], 7);
        let note = result["structuredContent"]["note"].as_str().unwrap();
        assert!(note.len() <= 24, "{note}");
        stage.stop().await;
        let server = Server::start().await;
        server.answers("tools/call", &text_result(MAIL));
        let blocks = "scan = { results = { email = \"block\" } }";
        let stage = Stage::at_in_front_of(server, level, blocks).await;
        assert_eq!(stage.must_not("{}").await, "PII_DETECTED", "{level:?}");
        assert_eq!(stage.server.seen().len(), 1);
        stage.server.answers("tools/call", &text_result("fine"));
        stage.must("{}").await;
        stage.stop().await;
    }
}

/// What a server says in an error is looked at too.
#[tokio::test]
async fn errors_of_servers_are_results() {
    let error = format!(r#"{{"code":-32000,"message":"no {MAIL}","data":{{"of":"{MAIL}"}}}}"#);
    for (action, path, tool) in [
        ("redact", "/mcp", "mcp_x_echo"),
        ("redact", "/mcp/servers/x", "echo"),
        ("block", "/mcp", "mcp_x_echo"),
    ] {
        let server = Server::start().await;
        server.does("tools/call", Auto::Error(error.clone()));
        let settings = format!(
            "[governance]\nprice = \"0\"\nscan = {{ results = {{ email = \"{action}\" }} }}\n"
        );
        let mut stage = Stage::with(server, &settings, "").await;
        stage.path = path;
        let answer = stage.call_tool(tool, "{}").await;
        let failed = answer.failure();
        assert!(!failed.to_string().contains("ann"), "{failed}");
        if action == "block" {
            assert_eq!(code_of(&answer), "PII_DETECTED");
        } else {
            assert_eq!(failed["code"], -32000);
            assert_eq!(failed["message"], "no [EMAIL]");
            assert_eq!(failed["data"]["of"], "[EMAIL]");
        }
        stage.stop().await;
    }
}

const READ: &str = r#"{"uri":"x+file:///a.txt"}"#;

fn contents(members: &str) -> String {
    format!(r#"{{"contents":[{{"uri":"file:///a.txt",{members}}}]}}"#)
}

#[tokio::test]
pub(crate) async fn resources() {
    for level in Level::ALL {
        let text = contents(&format!(r#""text":"to {MAIL}""#));
        let masks = stage(level, "resources = { email = \"redact\" }").await;
        masks.server.answers("resources/read", &text);
        let read = masks.ask("resources/read", READ).await.value();
        assert_eq!(read["contents"][0]["text"], "to [EMAIL]", "{level:?}");
        assert_eq!(read["contents"][0]["uri"], "x+file:///a.txt");
        masks.stop().await;
        let blocks = stage(level, "resources = { email = \"block\" }").await;
        blocks.server.answers("resources/read", &text);
        let read = blocks.ask("resources/read", READ).await;
        assert_eq!(code_of(&read), "PII_DETECTED", "{level:?}");
        blocks.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn base64() {
    // "ann.lee@example.org"
    let blob = contents(r#""mimeType":"text/plain","blob":"YW5uLmxlZUBleGFtcGxlLm9yZw==""#);
    for level in Level::ALL {
        for (more, code) in [
            ("", None),
            (", base64 = [\"text/*\"]", Some("PII_DETECTED")),
        ] {
            let scan = format!("resources = {{ email = \"block\" }}{more}");
            let stage = stage(level, &scan).await;
            stage.server.answers("resources/read", &blob);
            let read = stage.ask("resources/read", READ).await;
            let found = read.error.is_some().then(|| code_of(&read));
            assert_eq!(found.as_deref(), code, "{level:?} {more}");
            stage.stop().await;
        }
    }
}

/// What is written into prompts, and what comes out of them; completions of their arguments too.
#[tokio::test]
pub(crate) async fn prompts() {
    let get = format!(r#"{{"name":"mcp_x_greet","arguments":{{"who":"{MAIL}"}}}}"#);
    let complete = |value: &str, other: &str| {
        format!(
            r#"{{"ref":{{"type":"ref/prompt","name":"mcp_x_greet"}},"argument":{{"name":"who","value":"{value}"}},"context":{{"arguments":{{"other":"{other}"}}}}}}"#
        )
    };
    let prompt = format!(
        r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":"{MAIL}"}}}}]}}"#
    );
    for level in Level::ALL {
        let masks = stage(level, "prompts = { email = \"redact\" }").await;
        masks.server.answers("prompts/get", &prompt);
        let got = masks.ask("prompts/get", &get).await.value();
        assert_eq!(got["messages"][0]["content"]["text"], "[EMAIL]");
        assert_eq!(masks.server.last_arguments(), json!({ "who": "[EMAIL]" }));
        let values = format!(r#"{{"completion":{{"values":["{MAIL}"]}}}}"#);
        masks.server.answers("completion/complete", &values);
        let asked = masks
            .ask("completion/complete", &complete(MAIL, MAIL))
            .await;
        assert_eq!(asked.value()["completion"]["values"][0], "[EMAIL]");
        let seen = masks.server.seen().pop().unwrap().params.unwrap();
        assert!(!seen.contains("ann"), "{level:?}: {seen}");
        masks.stop().await;
        let blocks = stage(level, "prompts = { email = \"block\" }").await;
        let refused = [
            blocks.ask("prompts/get", &get).await,
            blocks.ask("completion/complete", &complete(MAIL, "")).await,
            blocks.ask("completion/complete", &complete("", MAIL)).await,
        ];
        for answer in refused {
            assert_eq!(code_of(&answer), "PII_DETECTED", "{level:?}");
        }
        assert!(blocks.server.seen().is_empty());
        blocks.stop().await;
    }
}

const CALL: &str = r#""name":"mcp_x_echo""#;
/// What a modern client says to hear log messages.
const LOGS: &str = r#","io.modelcontextprotocol/logLevel":"error""#;

/// Progress and log messages during a call, for clients of every kind.
#[tokio::test]
pub(crate) async fn notifications() {
    for level in Level::ALL {
        for action in ["redact", "block"] {
            let server = Server::start().await;
            server.does("tools/call", Auto::Hand);
            let scan = format!("scan = {{ notifications = {{ email = \"{action}\" }} }}");
            let stage = Stage::at_in_front_of(server, level, &scan).await;
            for front in Front::ALL {
                let client = stage.client(front).await;
                check_notifications(&stage, &client, action).await;
            }
            stage.stop().await;
        }
    }
}

async fn check_notifications(stage: &Stage, client: &Client, action: &str) {
    let logs = if client.front.is_modern() { LOGS } else { "" };
    let params = client.params(CALL, &format!(r#""progressToken":"t"{logs}"#));
    client.send(request("1", "tools/call", &params)).await;
    let asked = stage.server.backend.asked("tools/call").await;
    let token = asked.token().unwrap();
    let progress =
        format!(r#"{{"progressToken":{token},"progress":1,"message":"reading {MAIL}"}}"#);
    asked.tell("notifications/progress", &progress).await;
    let log = format!(r#"{{"level":"error","data":{{"of":["{MAIL}"]}}}}"#);
    asked.tell("notifications/message", &log).await;
    let harmless = r#"{"level":"error","data":"done"}"#;
    asked.tell("notifications/message", harmless).await;
    asked.answer("{}").await;
    if action == "redact" {
        let told = client.must("notifications/progress").await;
        let message = told.param(&["message"]).unwrap();
        assert_eq!(message, r#""reading [EMAIL]""#);
        assert_eq!(told.param(&["progressToken"]).as_deref(), Some(r#""t""#));
        let told = client.must("notifications/message").await;
        assert_eq!(
            told.param(&["data", "of"]).as_deref(),
            Some(r#"["[EMAIL]"]"#)
        );
    }
    let told = client.must("notifications/message").await;
    assert_eq!(told.param(&["data"]).as_deref(), Some(r#""done""#));
    client.answer("1").await;
}

/// What a server tells of a task is looked at as what it answers to `tasks/get` is too.
#[tokio::test]
async fn a_task_counts_as_its_result() {
    let parts = [
        format!(
            r#""status":"completed","result":{{"content":[{{"type":"text","text":"{MAIL}"}}]}},"#
        ),
        format!(r#""status":"failed","error":{{"code":-1,"message":"{MAIL}"}},"#),
        format!(
            r#""status":"input_required","inputRequests":{{"k":{{"method":"elicitation/create","params":{{"message":"{MAIL}"}}}}}},"#
        ),
        format!(r#""status":"working","statusMessage":"{MAIL}","#),
    ];
    for (scan, passes) in [
        (r#"results = { email = "redact" }"#, true),
        (r#"results = { email = "block" }"#, false),
        (
            r#"results = { email = "block" }, notifications = { email = "redact" }"#,
            false,
        ),
        (
            r#"results = { email = "redact" }, notifications = { email = "block" }"#,
            false,
        ),
    ] {
        let server = Server::over(Transport::Http, Era::Modern).await;
        let settings = format!("[governance]\nprice = \"0\"\nscan = {{ {scan} }}\n");
        let stage = Stage::with(server, &settings, "").await;
        let path = "/mcp/servers/x";
        let client = stage.gateway.client(Front::Modern, path, "{}").await;
        let wish = r#""notifications":{"taskIds":["t"]}"#;
        client.ask("1", "subscriptions/listen", wish).await;
        client
            .must("notifications/subscriptions/acknowledged")
            .await;
        let stream = stage.server.backend.listen("taskIds").await;
        let tell = async |members: &str| {
            let task = stream.tagged(&format!(r#""taskId":"t",{members}"#));
            stream.tell("notifications/tasks", &task).await;
        };
        for part in &parts {
            tell(part).await;
            if passes {
                let told = client.must("notifications/tasks").await.params.unwrap();
                assert!(told.contains("[EMAIL]") && !told.contains("ann"), "{told}");
            }
        }
        tell(r#""status":"working","#).await;
        let told = client.must("notifications/tasks").await;
        assert_eq!(told.param(&["status"]).as_deref(), Some(r#""working""#));
        assert_eq!(told.param(&["statusMessage"]), None, "{scan}");
        stage.stop().await;
    }
}

/// That a resource was updated is looked at as well, but for the URI that the client itself has named.
#[tokio::test]
async fn updates_of_resources_are_looked_at() {
    for (era, front) in [
        (Era::Legacy, Front::Streamable),
        (Era::Modern, Front::Modern),
    ] {
        for action in ["redact", "block"] {
            let server = Server::over(Transport::Http, era).await;
            let settings = format!(
                "[governance]\nprice = \"0\"\nscan = {{ notifications = {{ email = \"{action}\" }} }}\n"
            );
            let stage = Stage::with(server, &settings, "").await;
            let client = stage.gateway.client(front, "/mcp", "{}").await;
            check_updates(&stage.server, &client, action).await;
            stage.stop().await;
        }
    }
}

async fn check_updates(server: &Server, client: &Client, action: &str) {
    const UPDATED: &str = "notifications/resources/updated";
    let named = format!("file:///{MAIL}");
    let stream = if client.front.is_modern() {
        let wish = format!(r#""notifications":{{"resourceSubscriptions":["x+{named}"]}}"#);
        client.ask("1", "subscriptions/listen", &wish).await;
        client
            .must("notifications/subscriptions/acknowledged")
            .await;
        Some(server.backend.listen("resourceSubscriptions").await)
    } else {
        client.listen().await;
        let uri = format!(r#""uri":"x+{named}""#);
        client.ask("1", "resources/subscribe", &uri).await;
        client.answer("1").await.value();
        None
    };
    let tell = async |uri: &str, title: &str| {
        let members = format!(r#""uri":"{uri}","title":"{title}""#);
        if let Some(stream) = &stream {
            let params = stream.tagged(&format!("{members},"));
            stream.tell(UPDATED, &params).await;
        } else {
            let params = format!("{{{members}}}");
            server.backend.speak(UPDATED, &params).await;
        }
    };
    let told = async |uri: &str, title: &str| {
        let told = client.must(UPDATED).await;
        assert_eq!(told.param(&["uri"]), Some(format!("\"x+{uri}\"")));
        assert_eq!(told.param(&["title"]), Some(format!("\"{title}\"")));
    };
    tell(&named, MAIL).await;
    if action == "redact" {
        told(&named, "[EMAIL]").await;
    }
    // Of what lies below it the client may know nothing.
    let below = "bob@example.org";
    tell(&format!("{named}/{below}"), "below").await;
    if action == "redact" {
        told("file:///[EMAIL]/[EMAIL]", "below").await;
    }
    tell(&named, "last").await;
    told(&named, "last").await;
}

/// The token of progress is the client's own word: whatever it looks like, the client gets it back.
#[tokio::test]
async fn a_progress_token_stays_as_it_is() {
    for action in ["redact", "block"] {
        let server = Server::start().await;
        server.does("tools/call", Auto::Hand);
        let scan = format!("scan = {{ notifications = {{ \"*\" = \"{action}\" }} }}");
        let stage = Stage::at_in_front_of(server, Level::Default, &scan).await;
        for front in Front::ALL {
            let client = stage.client(front).await;
            for token in [format!("\"{MAIL}\""), "4111111111111111".to_owned()] {
                client.call("1", "mcp_x_echo", &token).await;
                let asked = stage.server.backend.asked("tools/call").await;
                let ours = asked.token().unwrap();
                for (progress, message) in [(1, MAIL), (2, "harmless")] {
                    let progress = format!(
                        r#"{{"message":"{message}","progressToken":{ours},"progress":{progress}}}"#
                    );
                    asked.tell("notifications/progress", &progress).await;
                }
                asked.answer("{}").await;
                if action == "redact" {
                    let told = client.must("notifications/progress").await;
                    let expect =
                        format!(r#"{{"message":"[EMAIL]","progressToken":{token},"progress":1}}"#);
                    assert_eq!(told.params, Some(expect), "{front:?}");
                }
                let told = client.must("notifications/progress").await;
                assert_eq!(told.param(&["progressToken"]), Some(token), "{front:?}");
                client.answer("1").await;
            }
        }
        stage.stop().await;
    }
}

/// What arrives of `text` under a scan of arguments.
async fn arrives(level: Level, scan: &str, text: &str) -> String {
    let stage = stage(level, scan).await;
    stage.must(&json!({ "a": text }).to_string()).await;
    let arrived = stage.server.last_arguments();
    stage.stop().await;
    arrived["a"].as_str().unwrap().to_owned()
}

#[tokio::test]
pub(crate) async fn mask() {
    for level in Level::ALL {
        let scan = |mask: &str| format!("arguments = {{ email = \"redact\" }}, mask = \"{mask}\"");
        assert_eq!(arrives(level, &scan("type"), MAIL).await, "[EMAIL]");
        assert_eq!(
            arrives(level, &scan("length"), MAIL).await,
            "*".repeat(MAIL.len())
        );
    }
}

#[tokio::test]
pub(crate) async fn countries() {
    let text = "DNI 12345678Z";
    for level in Level::ALL {
        let scan =
            |code: &str| format!("arguments = {{ \"*\" = \"redact\" }}, countries = [\"{code}\"]");
        let masked = arrives(level, &scan("es"), text).await;
        assert!(!masked.contains("12345678Z"), "{level:?} {masked}");
        assert_eq!(arrives(level, &scan("nl"), text).await, text, "{level:?}");
    }
}

#[tokio::test]
pub(crate) async fn custom() {
    for level in Level::ALL {
        let scan = "arguments = { ticket = \"redact\" }, custom = { ticket = 'TICKET-\\d{6}' }";
        let masked = arrives(level, scan, "see TICKET-123456 and TICKET-1").await;
        assert_eq!(masked, "see [TICKET] and TICKET-1", "{level:?}");
    }
}

#[tokio::test]
pub(crate) async fn detectors() {
    let row = |keys: &str| {
        format!(
            "arguments = {{ api_key = \"redact\", credential = \"report\" }}, \
             detectors = [{{ id = \"acme/key\", pattern = 'acme_[A-Za-z0-9]{{12,40}}'{keys} }}]"
        )
    };
    for level in Level::ALL {
        let check = async |keys: &str, text: &str, expect: &str| {
            let masked = arrives(level, &row(keys), text).await;
            assert_eq!(masked, expect, "{level:?} {keys} {text}");
        };
        let text = "see acme_q7Wb2Kd9Zx4T and acme_q7";
        check("", text, "see [API_KEY] and acme_q7").await;
        check(", class = \"credential\"", text, text).await;
        check(", near = [\"bolt\"]", text, text).await;
        let near = "the bolt: acme_q7Wb2Kd9Zx4T";
        check(", near = [\"bolt\"]", near, "the bolt: [API_KEY]").await;
        let plain = "see acme_qqqqqqrrrrrr";
        check("", plain, plain).await;
        check(", entropy = 0.9", plain, "see [API_KEY]").await;
        check(", entropy = 0.9, mixed = true", plain, plain).await;
        // The last six characters are the CRC-32 of those before them, in base 62.
        let checked = "see acme_aaaaaa1fCJho";
        check("", checked, checked).await;
        check(
            ", check = \"crc32\", entropy = 9.0",
            checked,
            "see [API_KEY]",
        )
        .await;
    }
}

#[tokio::test]
pub(crate) async fn dictionaries() {
    for level in Level::ALL {
        let scan = "arguments = { project = \"redact\" }, dictionaries = { project = [\"Bluebird\", \"Project Heron\"] }";
        let masked = arrives(level, scan, "Bluebird, Project Heron, Heron").await;
        assert_eq!(masked, "[PROJECT], [PROJECT], Heron", "{level:?}");
    }
}

#[tokio::test]
pub(crate) async fn allow() {
    for level in Level::ALL {
        let scan = format!("arguments = {{ email = \"redact\" }}, allow = [\"{MAIL}\"]");
        let masked = arrives(level, &scan, &format!("{MAIL} bob@example.org")).await;
        assert_eq!(masked, format!("{MAIL} [EMAIL]"), "{level:?}");
    }
}

/// Methods that only one server knows are looked at as a whole.
#[tokio::test]
async fn vendor_methods_are_looked_at() {
    let settings = "[governance]\nprice = \"0\"\nscan = { arguments = { email = \"block\" }, results = { email = \"redact\" } }\n";
    let mut stage = Stage::new(settings, "").await;
    stage.path = "/mcp/servers/x";
    stage
        .server
        .answers("acme/do", &format!(r#"{{"of":"{MAIL}"}}"#));
    let answer = stage.ask("acme/do", r#"{"a":1}"#).await.value();
    assert_eq!(answer["of"], "[EMAIL]");
    let refused = stage
        .ask("acme/do", &format!(r#"{{"deep":[{{"of":"{MAIL}"}}]}}"#))
        .await;
    assert_eq!(code_of(&refused), "PII_DETECTED");
    assert_eq!(stage.server.seen().len(), 1);
    stage.stop().await;
}

/// The scan of a server and that of the agent hold together.
#[tokio::test]
async fn scans_of_agent_and_server_add_up() {
    let settings = "[governance]\nprice = \"0\"\nscan = { arguments = { email = \"redact\" } }\n";
    let keys = "scan = { arguments = { t = \"redact\" }, custom = { t = 'T-\\d' } }";
    let stage = Stage::new(settings, keys).await;
    stage
        .must(&json!({ "a": format!("{MAIL} T-1") }).to_string())
        .await;
    assert_eq!(stage.server.last_arguments(), json!({ "a": "[EMAIL] [T]" }));
    stage.stop().await;
}

/// How often a small call is answered while a large result is looked at.
const SMALL_CALLS_MIN: usize = 10;

/// A result of 10 MiB is looked at without keeping others waiting: each small call takes a fraction
/// of the time of the large one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_result_keeps_nobody_waiting() {
    let line = "The quick brown fox jumps over the lazy dog while others keep the bridge. ";
    let text = line.repeat((10 << 20) / line.len());
    let server = Server::start().await;
    let large = json!({ "content": [{ "type": "text", "text": text }] }).to_string();
    server.backend.on_request(move |envelope| {
        let name = envelope.param(&["name"]);
        match name.as_deref() {
            Some(r#""echo""#) => Some(Auto::Result(large.clone())),
            Some(r#""other""#) => Some(Auto::Result("{}".to_owned())),
            _ => None,
        }
    });
    let settings = "[governance]\nprice = \"0\"\nscan = { results = { \"*\" = \"redact\" } }\n";
    let stage = Stage::with(server, settings, "timeout = \"5m\"").await;
    let (http, began) = (stage.http(), Instant::now());
    let large = spawn(async move {
        let answer = ask_on(&http, "/mcp", "tools/call", r#"{"name":"mcp_x_echo"}"#).await;
        (answer.value(), began.elapsed())
    });
    let mut small: Vec<Duration> = Vec::new();
    while !large.is_finished() {
        let began = Instant::now();
        stage.call_tool("mcp_x_other", "{}").await.value();
        small.push(began.elapsed());
    }
    let (answer, took): (Value, Duration) = soon("the large call ends", large).await.unwrap();
    assert_eq!(
        answer["content"][0]["text"].as_str().unwrap().len(),
        text.len()
    );
    small.sort();
    let (count, median) = (small.len(), small[small.len() / 2]);
    assert!(count > SMALL_CALLS_MIN, "{count} calls");
    assert!(median < took / 20, "{median:?} beside {took:?}");
    assert!(small[count - 1] < took / 2, "{small:?} beside {took:?}");
    stage.stop().await;
}
