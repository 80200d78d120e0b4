//! The audit: what it keeps, for how long, and that nothing is called that cannot be recorded.

use std::{
    fs,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};
use tollbridge::{
    audit::{self, ArgumentsDigest, RecordedDecision},
    clock,
    store::Store,
};

use crate::{
    binary::Place,
    harness::{Server, Stage, ask_on, call_over, code_of, records, text_result},
    support::{
        Auto, Front, Gateway, TestGateway,
        http::Http,
        soon,
        wire::{Envelope, request},
    },
};

const ECHO: &str = r#"{"name":"mcp_x_echo"}"#;

/// Names of the segments in an audit directory.
pub(crate) fn segments(data_dir: &Path) -> Vec<String> {
    let Ok(files) = fs::read_dir(data_dir.join("audit")) else {
        return Vec::new();
    };
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| Path::new(name).extension() != Some("lock".as_ref()))
        .collect()
}

/// What everybody sees of a call is what its one record says.
#[tokio::test]
async fn a_record_says_what_happened() {
    let stage = Stage::new("[governance]\nprice = \"0.01\"\n", "").await;
    for (at, front) in Front::ALL.into_iter().enumerate() {
        let client = stage.client(front).await;
        let arguments = r#"{"a": 1e3}"#;
        let answer = call_over(&client, "1", "mcp_x_echo", arguments).await;
        let all = stage.records();
        assert_eq!(all.len(), at + 1);
        let record = all.last().unwrap();
        assert_eq!(record.decision, RecordedDecision::Allowed);
        assert_eq!(
            (record.code.as_deref(), record.rule.as_deref()),
            (None, None)
        );
        assert_eq!(record.method, "tools/call");
        assert_eq!(record.tool.as_deref(), Some("echo"));
        assert_eq!(record.exposed.as_deref(), Some("mcp_x_echo"));
        assert_eq!(record.server.as_deref(), Some("x"));
        assert_eq!(record.server_revision.as_deref(), Some("2025-11-25"));
        assert_eq!(record.price.get(), 10_000);
        let digest = ArgumentsDigest::of(arguments.as_bytes());
        assert_eq!(record.arguments_digest, Some(digest));
        assert!(record.arguments.is_none());
        assert_eq!(record.session_id.is_some(), !front.is_modern(), "{front:?}");
        if let Some(id) = &client.session {
            let mark = tollbridge::session::state::log_id(id);
            assert_eq!(record.session_id.as_deref(), Some(&*mark), "{front:?}");
        }
        let bytes = u64::try_from(answer.result.unwrap().len()).unwrap();
        assert!(
            record.bytes_out > 0 && record.bytes_out <= bytes,
            "{record:?}"
        );
    }
    let data_dir = stage.gateway.config.data_dir.clone();
    let report = audit::verify(&data_dir.join("audit")).unwrap();
    assert!(report.is_valid(), "{report:?}");
    stage.stop().await;
}

/// A call that was sent twice may have had its effect the first time, whatever became of the second.
#[tokio::test]
async fn a_call_that_may_have_arrived_is_charged_though_refused_later() {
    let tools =
        r#"[{"name":"echo","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object"}}]"#;
    let terms = "[governance]\nprice = \"0.01\"\n";
    for (first, second, price) in [
        (Auto::Die, Auto::Status(401), 10_000),
        (Auto::Die, Auto::Status(404), 10_000),
        (Auto::Die, Auto::Status(502), 10_000),
        (Auto::Status(404), Auto::Status(401), 0),
    ] {
        let server = Server::start().await;
        server.backend.set_list("tools/list", tools);
        let stage = Stage::with(server, terms, "").await;
        let script = Mutex::new(vec![first.clone()]);
        let afterwards = second.clone();
        stage.server.backend.on_request(move |envelope| {
            let is_call = envelope.method() == "tools/call";
            is_call.then(|| script.lock().unwrap().pop().unwrap_or(afterwards.clone()))
        });
        stage.call("{}").await.failure();
        let record = stage.last();
        assert_eq!(record.price.get(), price, "{first:?} {second:?}");
        stage.stop().await;
    }
}

/// Who reads the audit cannot go on with the sessions in it: it names them by a hash.
#[tokio::test]
async fn a_session_is_named_by_a_hash() {
    // SHA-256 of "abc", FIPS 180-2 B.1.
    assert_eq!(
        tollbridge::session::state::log_id("abc"),
        "ba7816bf8f01cfea"
    );
    let stage = Stage::new("[governance]\n", "").await;
    let client = stage.client(Front::Streamable).await;
    let id = client.session.clone().unwrap();
    call_over(&client, "1", "mcp_x_echo", "{}").await.value();
    let data_dir = stage.gateway.config.data_dir.clone();
    let written = segments(&data_dir).into_iter().map(|name| {
        let bytes = fs::read(data_dir.join("audit").join(name)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let written: String = written.collect();
    let mark = tollbridge::session::state::log_id(&id);
    let named = |what: &str| written.matches(what).count();
    assert_eq!(named(&format!(r#""session_id":"{mark}""#)), 1, "{written}");
    assert_eq!(named(&format!(r#""subject":"{mark}""#)), 1, "{written}");
    assert_eq!(named(&id), 0, "{written}");
    stage.stop().await;
}

/// The trace of a caller goes on: its record names it, and the server hears of it in the same way.
#[tokio::test]
async fn a_trace_is_continued() {
    let (id, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let traceparent = format!("00-{id}-{parent}-01");
    let stage = Stage::new("[governance]\n", "").await;
    let check = |what: &str| {
        let record = stage.last();
        assert_eq!(record.trace_id.as_deref(), Some(id), "{what}");
        assert_eq!(record.parent_id.as_deref(), Some(parent), "{what}");
    };
    for front in Front::ALL {
        let client = stage.client(front).await;
        let meta = format!(r#""traceparent":"{traceparent}""#);
        let params = client.params(r#""name":"mcp_x_echo""#, &meta);
        client.send(request("1", "tools/call", &params)).await;
        client.answer("1").await.value();
        check(&format!("{front:?}"));
        let told = stage.server.seen().pop().unwrap();
        let told = told.param(&["_meta", "traceparent"]);
        assert_eq!(told, Some(format!("\"{traceparent}\"")), "{front:?}");
    }
    stage.server.does("tools/call", Auto::Hand);
    let call = request("1", "tools/call", r#"{"name":"mcp_x_echo"}"#);
    for (sent, told) in [(&*traceparent, Some(&*traceparent)), ("00-0-0-00", None)] {
        let (http, headers) = (stage.http(), [("traceparent", sent)]);
        let answer = http.post_with("/mcp", &headers, call.clone());
        let served = async {
            let asked = stage.server.backend.asked("tools/call").await;
            let header = asked.headers.get("traceparent");
            assert_eq!(header.map(|it| it.to_str().unwrap()), told);
            asked.answer("{}").await;
        };
        let (answer, ()) = tokio::join!(answer, served);
        Envelope::of(&answer.text().await).value();
        assert_eq!(stage.last().trace_id.is_some(), told.is_some());
        if told.is_some() {
            check("in a header");
        }
    }
    stage.stop().await;
}

/// Arguments are kept when that is wanted, and never with what identifies somebody.
#[tokio::test]
pub(crate) async fn arguments() {
    for (wanted, expect) in [(false, None), (true, Some(r#"{"to":"[EMAIL]","n":1e3}"#))] {
        let settings = format!("[audit]\narguments = {wanted}\n");
        let stage = Stage::new(&settings, "").await;
        let sent = r#"{"to":"ann.lee@example.org","n":1e3}"#;
        stage.must(sent).await;
        let kept = stage.last().arguments.map(|kept| kept.get().to_owned());
        assert_eq!(kept.as_deref(), expect);
        assert_eq!(
            stage.last().arguments_digest,
            Some(ArgumentsDigest::of(sent.as_bytes()))
        );
        let data_dir = stage.gateway.config.data_dir.clone();
        for name in segments(&data_dir) {
            let text = fs::read_to_string(data_dir.join("audit").join(name)).unwrap();
            assert!(!text.contains("ann.lee"), "{text}");
        }
        stage.stop().await;
    }
}

/// Results are kept when that is wanted, and never with what identifies somebody.
#[tokio::test]
pub(crate) async fn results() {
    for wanted in [false, true] {
        let settings = format!("[audit]\nresults = {wanted}\n");
        let stage = Stage::new(&settings, "").await;
        let sent = text_result("ask ann.lee@example.org");
        stage.server.answers("tools/call", &sent);
        stage.must("{}").await;
        let kept = stage.last().result.map(|kept| kept.get().to_owned());
        let masked = text_result("ask [EMAIL]");
        assert_eq!(kept.as_deref(), wanted.then_some(&*masked));
        let refused = stage.call_tool("mcp_x_none", "{}").await;
        assert_eq!(code_of(&refused), "TOOL_NOT_FOUND");
        assert!(stage.last().result.is_none(), "there is no result");
        let data_dir = stage.gateway.config.data_dir.clone();
        for name in segments(&data_dir) {
            let text = fs::read_to_string(data_dir.join("audit").join(name)).unwrap();
            assert!(!text.contains("ann.lee"), "{text}");
        }
        stage.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn result_limit() {
    let stage = Stage::new("[audit]\nresults = true\nresult_limit = \"1KiB\"\n", "").await;
    let around = text_result("").len();
    for bytes in [1023, 1024, 1025] {
        let sent = text_result(&"x".repeat(bytes - around));
        stage.server.answers("tools/call", &sent);
        stage.must("{}").await;
        let last = stage.last();
        let kept = last.result.map(|kept| kept.get().len());
        assert_eq!(kept, (bytes <= 1024).then_some(bytes));
        let left_out = (bytes > 1024).then_some(bytes as u64);
        assert_eq!(last.result_bytes, left_out);
    }
    stage.stop().await;
}

/// What callers make up as a name is kept without what identifies somebody or opens something.
#[tokio::test]
async fn names_that_callers_choose_are_masked() {
    let key = "AKIAQ3EGRZ7XHWLDT5NB";
    let stage = Stage::new("[governance]\n", "").await;
    for front in Front::ALL {
        let client = stage.client(front).await;
        let mut number = 0;
        let mut ask = async |method: &str, members: &str| {
            number += 1;
            let id = number.to_string();
            client.ask(&id, method, members).await;
            client.answer(&id).await;
            let last = stage.last();
            (last.exposed.unwrap(), last.tool)
        };
        let tool = ask("tools/call", r#""name":"ann.lee@example.org""#).await;
        assert_eq!(tool, ("[EMAIL]".into(), None), "{front:?}");
        let prompt = ask("prompts/get", &format!(r#""name":"{key}""#)).await;
        assert_eq!(prompt, ("[API_KEY]".into(), None), "{front:?}");
        let uri = format!(r#""uri":"x+file:///{key}/ann.lee@example.org/b.txt""#);
        let resource = ask("resources/read", &uri).await;
        let masked = "file:///[API_KEY]/[EMAIL]/b.txt";
        assert_eq!(resource.0, format!("x+{masked}"), "{front:?}");
        assert_eq!(resource.1.as_deref(), Some(masked));
        let plain = ask("resources/read", r#""uri":"x+file:///a.txt""#).await;
        assert_eq!(plain.0, "x+file:///a.txt");
        assert_eq!(plain.1.as_deref(), Some("file:///a.txt"));
    }
    let data_dir = stage.gateway.config.data_dir.clone();
    let Gateway { running, _data, .. } = stage.gateway;
    soon("the gateway stops", running.stop()).await;
    let files = fs::read_dir(data_dir.join("audit")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    for file in files.chain([data_dir.join(tollbridge::store::FILE_NAME)]) {
        let bytes = fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("ann.lee"), "{}", file.display());
        assert!(!text.contains(key), "{}", file.display());
    }
}

/// What a client says it is, is kept without what identifies somebody or opens something; versions are
/// no addresses.
#[tokio::test]
async fn what_a_client_calls_itself_is_masked() {
    let key = "AKIAQ3EGRZ7XHWLDT5NB";
    let stage = Stage::new("[governance]\nprice = \"0\"\n", "").await;
    for (name, version, expect) in [
        ("ann.lee@example.org", key, "[EMAIL]/[API_KEY]"),
        ("claude-code", "10.0.190.4", "claude-code/10.0.190.4"),
        (
            "Visual Studio Code",
            "1.104.2",
            "Visual Studio Code/1.104.2",
        ),
    ] {
        let info = format!(r#"{{"version":"{version}","name":"{name}"}}"#);
        let written = |text: &str| text.replace(r#"{"name":"test","version":"1"}"#, &info);
        let initialize = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{info}}}"#
        );
        for front in [Front::Modern, Front::Sse, Front::Stdio, Front::StdioModern] {
            let client = stage.client(front).await;
            if !front.is_modern() {
                client.send(request("8", "initialize", &initialize)).await;
                client.answer("8").await.value();
            }
            for id in ["1", "2"] {
                let params = written(&client.params(r#""name":"mcp_x_echo""#, ""));
                client.send(request(id, "tools/call", &params)).await;
                client.answer(id).await.value();
                let last = stage.last();
                assert_eq!(last.client.as_deref(), Some(expect), "{front:?}");
            }
        }
    }
    let data_dir = stage.gateway.config.data_dir.clone();
    let Gateway { running, _data, .. } = stage.gateway;
    soon("the gateway stops", running.stop()).await;
    let came = events(&data_dir);
    let of_ann = came.iter().filter(|(.., detail)| detail == "[EMAIL]");
    assert!(of_ann.count() >= 2, "{came:?}");
    for file in fs::read_dir(data_dir.join("audit")).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("ann.lee") && !text.contains(key), "{text}");
    }
}

/// Calls that come while the gateway stops have their record, as others that are refused; what is
/// answered without a server has none then either.
#[tokio::test]
async fn calls_that_a_stop_turns_away_are_recorded() {
    let settings = "[governance]\nprice = \"0.01\"\n";
    for front in Front::ALL {
        let stage = Stage::new(settings, "").await;
        let client = stage.client(front).await;
        stage.gateway.running.core().tasks().drain();
        let turned_away = async |id: &str, method: &str, members: &str| {
            client.ask(id, method, members).await;
            let refused = client.answer(id).await.failure();
            assert_eq!(refused["data"]["reason"], "draining", "{front:?} {method}");
            assert_eq!(refused["data"]["retryAfterMs"], 1000, "{front:?} {method}");
            refused["data"]["invocation_id"].as_str().map(str::to_owned)
        };
        let call = r#""name":"mcp_x_echo","arguments":{"a":1}"#;
        let first = turned_away("1", "tools/call", call).await;
        let second = turned_away("2", "tools/call", r#""name":"ann.lee@example.org""#).await;
        turned_away("3", "resources/read", r#""uri":"x+file:///a.txt""#).await;
        assert_eq!(turned_away("4", "tools/list", "").await, None);
        let records = stage.records();
        let found: Vec<_> = records
            .iter()
            .map(|it| {
                (
                    it.method.as_ref(),
                    it.exposed.as_deref(),
                    it.tool.as_deref(),
                )
            })
            .collect();
        let expect = [
            ("tools/call", Some("mcp_x_echo"), Some("echo")),
            ("tools/call", Some("[EMAIL]"), None),
            (
                "resources/read",
                Some("x+file:///a.txt"),
                Some("file:///a.txt"),
            ),
        ];
        assert_eq!(found, expect, "{front:?}");
        for (record, told) in records.iter().zip([first, second]) {
            assert_eq!(Some(record.id.to_string()), told, "{front:?}");
            assert_eq!(record.decision, RecordedDecision::Failed);
            assert_eq!(record.code.as_deref(), Some("DRAINING"));
            assert_eq!(record.price.get(), 0);
            assert_eq!(record.session_id.is_some(), !front.is_modern(), "{front:?}");
        }
        assert!(stage.server.seen().is_empty(), "{front:?}");
        stage.stop().await;
    }
}

/// So have those of a batch, and those of a session that only the next process will know.
#[tokio::test]
async fn calls_of_batches_and_lost_sessions_that_a_stop_turns_away_are_recorded() {
    let stage = Stage::new("[governance]\nprice = \"0.01\"\n", "").await;
    let http = stage.http();
    let batches = r#"{"protocolVersion":"2025-03-26","capabilities":{}}"#;
    let opened = http.post("/mcp", request("0", "initialize", batches)).await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    stage.gateway.running.core().tasks().drain();
    let call = |id: &str| request(id, "tools/call", ECHO);
    let batch = format!(
        "[{},{},{}]",
        call("1"),
        request("2", "ping", "{}"),
        call("3")
    );
    for (session, body, count) in [
        (&*session, batch, 2),
        ("0123", call("1"), 3),
        (&*session, request("1", "ping", "{}"), 3),
    ] {
        let headers = [("mcp-session-id", session)];
        let answer = http.post_with("/mcp", &headers, body).await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        let text = answer.text().await;
        assert!(text.contains(r#""reason":"draining""#), "{text}");
        let records = stage.records();
        assert_eq!(records.len(), count);
        let is_echo = |record: &audit::Record<'_>| record.tool.as_deref() == Some("echo");
        assert!(records.iter().all(is_echo), "{records:?}");
    }
    stage.stop().await;
}

/// Without an audit nothing is written, and budgets hold still.
#[tokio::test]
pub(crate) async fn enabled() {
    for enabled in [true, false] {
        let settings = format!(
            "[audit]\nenabled = {enabled}\n[governance]\nprice = \"0.01\"\nbudget = {{ limit = \"0.02\" }}\n"
        );
        let stage = Stage::new(&settings, "").await;
        stage.must("{}").await;
        stage.must("{}").await;
        assert_eq!(stage.must_not("{}").await, "BUDGET_EXCEEDED", "{enabled}");
        let data_dir = stage.gateway.config.data_dir.clone();
        assert_eq!(!segments(&data_dir).is_empty(), enabled);
        assert_eq!(stage.records().len(), if enabled { 3 } else { 0 });
        stage.stop().await;
    }
}

/// Old records go with time, unless they are kept for ever.
#[tokio::test]
pub(crate) async fn retention() {
    for (retention, is_kept) in [("1h", false), ("90d", true), ("0s", true)] {
        let data = tempfile::tempdir().unwrap();
        let settings = format!(
            "data_dir = '{}'\n[audit]\nretention = \"{retention}\"\n",
            data.path().display()
        );
        let first = Stage::new(&settings, "").await;
        first.must("{}").await;
        first.stop().await;
        let second = Stage::new(&settings, "").await;
        second.must("{}").await;
        let later = clock::now() + jiff::SignedDuration::from_hours(2);
        let audit = Arc::clone(second.gateway.running.core().proxy.governance().audit());
        audit.retire(later).unwrap();
        let kept = records(data.path()).len();
        assert_eq!(kept, if is_kept { 2 } else { 1 }, "{retention}");
        let report = audit::verify(&data.path().join("audit")).unwrap();
        assert!(report.is_valid(), "{report:?}");
        second.stop().await;
    }
}

/// Old records go when there are too many, the oldest first.
#[tokio::test]
pub(crate) async fn retention_size() {
    for is_limited in [true, false] {
        let limit = if is_limited {
            "retention_size = \"16MiB\"\n"
        } else {
            ""
        };
        let settings = format!("[audit]\narguments = true\n{limit}");
        let stage = Stage::new(&settings, "").await;
        let large = format!("{{\"text\":\"{}\"}}", "x".repeat(250 << 10));
        for _ in 0..70 {
            stage.must(&large).await;
        }
        let audit = Arc::clone(stage.gateway.running.core().proxy.governance().audit());
        audit.check_space().unwrap();
        assert_eq!(audit.exceeds_retention_size(), is_limited);
        let all = stage.records();
        audit.retire(clock::now()).unwrap();
        let kept = stage.records();
        assert_eq!(kept.len() < all.len(), is_limited, "{}", kept.len());
        assert!(kept.len() > 40, "{}", kept.len());
        assert_eq!(kept.last().map(|it| it.id), all.last().map(|it| it.id));
        let log_dir = stage.gateway.config.data_dir.join("audit");
        assert!(audit::verify(&log_dir).unwrap().is_valid());
        stage.stop().await;
    }
}

/// Where there is little room left of the quota, refused calls have no records of their own; where there
/// is none, no call leaves.
#[tokio::test]
pub(crate) async fn quota() {
    for is_limited in [true, false] {
        let data = tempfile::tempdir().unwrap();
        let log_dir = data.path().join("audit");
        fs::create_dir(&log_dir).unwrap();
        let fill = |mib: usize| fs::write(log_dir.join("other"), vec![0; mib << 20]).unwrap();
        fill(15);
        let quota = if is_limited {
            "quota = \"16MiB\"\n"
        } else {
            ""
        };
        let settings = format!(
            "data_dir = '{}'\n[audit]\n{quota}[governance]\n\
             args = [{{ name = \"never\", at = \"/never\", equals = true }}]\n",
            data.path().display()
        );
        let stage = Stage::new(&settings, "").await;
        for _ in 0..3 {
            assert_eq!(stage.must_not(r#"{"never":true}"#).await, "UNAUTHORIZED");
        }
        stage.must("{}").await;
        assert_eq!(stage.records().len(), if is_limited { 1 } else { 4 });
        let audit = Arc::clone(stage.gateway.running.core().proxy.governance().audit());
        assert_eq!(audit.space().is_low(), is_limited);
        fill(17);
        audit.check_space().unwrap();
        if is_limited {
            assert_eq!(stage.must_not("{}").await, "AUDIT_UNAVAILABLE");
        } else {
            stage.must("{}").await;
        }
        stage.stop().await;
    }
}

/// With either durability many calls at once are each recorded before their answers leave; with
/// `disk` an answer leaves only when the disk has its record, with `process` it does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn durability() {
    for durability in ["process", "disk"] {
        let settings = format!("[audit]\ndurability = \"{durability}\"\n");
        let stage = Stage::new(&settings, "").await;
        let calls: Vec<_> = (0..50).map(|_| stage.must("{}")).collect();
        futures_util::future::join_all(calls).await;
        assert_eq!(stage.records().len(), 50, "{durability}");
        let core = stage.gateway.running.core();
        let audit = Arc::clone(core.proxy.governance().audit());
        let mut synced = 0;
        for _ in 0..50 {
            stage.must("{}").await;
            synced += usize::from(audit.is_synced());
        }
        if durability == "disk" {
            assert_eq!(synced, 50, "an answer was faster than the disk");
        } else {
            assert!(synced < 50, "every answer waited for the disk");
        }
        stage.stop().await;
    }
}

/// A file where the directory should be: there is no start, and the reason can be acted upon.
#[tokio::test]
async fn an_unusable_directory_refuses_the_start() {
    let place =
        Place::new("listen = \"127.0.0.1:0\"\n[servers.toolbox]\ntransport = \"builtin\"\n");
    fs::create_dir(place.file("data")).unwrap();
    fs::write(place.file("data/audit"), "").unwrap();
    let ran = place.run(&["serve"]).await;
    assert_ne!(ran.code, Some(0), "{ran:?}");
    for words in ["audit", "data_dir", "audit.enabled = false"] {
        assert!(ran.stderr.contains(words), "{ran:?}");
    }
    assert!(!ran.stdout.contains("listening"), "{ran:?}");
    let place = Place::new("listen = \"127.0.0.1:0\"\n");
    fs::write(place.file("data"), "").unwrap();
    let ran = place.run(&["serve"]).await;
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("data_dir"), "{ran:?}");
}

/// Between two looks at the status.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Bytes of arguments that fill the disk soon: as much as one record may hold.
const LARGE: usize = 200 << 10;

/// What `/status` says of governance.
async fn governed(http: &Http) -> serde_json::Value {
    let status = http.get("/status", &[("accept", "application/json")]).await;
    let status: serde_json::Value = serde_json::from_str(&status.text().await).unwrap();
    status["governance"].clone()
}

/// Checks what the page of the status has, and has not.
async fn check_page(http: &Http, told: &[&str], untold: &[&str]) {
    let page = http.get("/status", &[("accept", "text/html")]).await;
    let page = page.text().await;
    for text in told {
        assert!(page.contains(text), "{text}: {page}");
    }
    for text in untold {
        assert!(!page.contains(text), "{text}: {page}");
    }
}

/// Waits until the status says so of governance.
pub(crate) async fn until(http: &Http, what: &str, is_so: fn(&serde_json::Value) -> bool) {
    let look = async {
        while !is_so(&governed(http).await) {
            tokio::time::sleep(LOOK).await;
        }
    };
    soon(what, look).await;
}

/// Checks that each of so many calls that could not be recorded was counted once.
async fn check_count(http: &Http, refused: usize) {
    let governed = governed(http).await;
    let counted = &governed["refused"]["AUDIT_UNAVAILABLE"];
    assert_eq!(*counted, refused, "{governed}");
}

/// A gateway in front of `server` that lives on when a file may not grow.
pub(crate) async fn serve(server: &Server, settings: &str) -> (Place, Child, Http) {
    let config = server.backend.config();
    let place = Place::new(&format!(
        "listen = \"127.0.0.1:0\"\n{settings}[servers.x]\n{config}"
    ));
    let script = "trap '' XFSZ; exec \"$0\" serve --listen 127.0.0.1:0";
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_tollbridge")])
        .current_dir(place.file("."))
        .env("TOLLBRIDGE_DATA_DIR", place.file("data"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = soon("it listens", stdout.next_line())
        .await
        .unwrap()
        .unwrap();
    let address = line.rsplit('/').next().unwrap().parse().unwrap();
    (place, child, Http::new(address))
}

/// No file of `child` may grow beyond so many bytes, as on a disk that is full.
pub(crate) fn limit_files(child: &Child, bytes_max: Option<u64>) {
    let pid = Pid::from_raw(child.id().unwrap().cast_signed());
    let limit = Rlimit {
        current: bytes_max,
        maximum: None,
    };
    prlimit(pid, Resource::Fsize, limit).unwrap();
}

/// While nothing can be written the status says why; with room again budgets are as they were,
/// without a restart.
#[tokio::test]
async fn a_full_disk_is_over_for_budgets_once_there_is_room() {
    let server = Server::start().await;
    let settings = "[governance]\nprice = \"0.01\"\nbudget = { limit = \"9.00\" }\n";
    let (_place, mut child, http) = serve(&server, settings).await;
    let call = || ask_on(&http, "/mcp", "tools/call", ECHO);
    for _ in 0..3 {
        call().await.value();
        // What was spent is said at the next beat.
        limit_files(&child, Some(1024));
        until(&http, "the status says so", |it| {
            it["budget_error"].is_string()
        })
        .await;
        assert_eq!(code_of(&call().await), "AUDIT_UNAVAILABLE");
        let said = governed(&http).await;
        assert!(said["audit_error"].is_string(), "{said}");
        check_page(&http, &["audit_error: ", "budget_error: "], &[">serving<"]).await;
        limit_files(&child, None);
        until(&http, "there is room", |it| {
            it["audit_error"].is_null() && it["budget_error"].is_null()
        })
        .await;
    }
    call().await.value();
    check_page(&http, &[">serving<"], &["_error"]).await;
    child.start_kill().unwrap();
    soon("it is killed", child.wait()).await.unwrap();
}

/// A call that is refused and cannot be recorded either is told one thing, and counted as that; the
/// status names the cause.
#[tokio::test]
async fn a_refusal_without_a_record_is_counted_once() {
    let server = Server::start().await;
    let settings = "[governance]\npolicy = { mode = \"none\" }\n";
    let (_place, mut child, http) = serve(&server, settings).await;
    let call = || ask_on(&http, "/mcp", "tools/call", ECHO);
    assert_eq!(code_of(&call().await), "UNAUTHORIZED");
    limit_files(&child, Some(0));
    for _ in 0..2 {
        assert_eq!(code_of(&call().await), "AUDIT_UNAVAILABLE");
    }
    let said = governed(&http).await;
    let counted = serde_json::json!({"AUDIT_UNAVAILABLE": 2, "UNAUTHORIZED": 1});
    assert_eq!(said["refused"], counted);
    let cause = "cannot write the audit log: File too large (os error 27); pending lines: 2";
    assert_eq!(said["audit_error"], cause);
    let told = [
        ">cannot_record<",
        &format!("audit_error: {cause}"),
        "refused<td>AUDIT_UNAVAILABLE 2, UNAUTHORIZED 1",
        "observed<td>none",
    ];
    check_page(&http, &told, &["budget_error"]).await;
    let status = http.get("/status", &[]).await;
    assert_eq!(status.status(), 200, "lists are served");
    assert!(status.text().await.contains(r#""status": "cannot_record""#));
    let figures = http.get("/metrics", &[]).await.text().await;
    assert!(figures.contains("\ntollbridge_serving 0\n"), "{figures}");
    child.start_kill().unwrap();
    soon("it is killed", child.wait()).await.unwrap();
}

/// Whoever removes what a gateway writes, or its directory, takes records away that verification
/// misses; all later calls are recorded where they can be found, or refused.
#[tokio::test]
async fn a_log_that_is_removed_goes_on() {
    let server = Server::start().await;
    let settings = "[governance]\nprice = \"0.01\"\n";
    let (place, mut child, http) = serve(&server, settings).await;
    let call = || ask_on(&http, "/mcp", "tools/call", ECHO);
    let (data, log) = (place.file("data"), place.file("data/audit"));
    call().await.value();
    let chain = governed(&http).await["audit_chain"].clone();
    let chain = chain.as_str().unwrap();
    fs::remove_dir_all(&log).unwrap();
    until(&http, "it is noticed", |it| it["audit_error"].is_string()).await;
    let seen = server.seen().len();
    assert_eq!(code_of(&call().await), "AUDIT_UNAVAILABLE");
    assert_eq!(server.seen().len(), seen, "it was called without a record");
    let ready = http.get("/readyz", &[]).await;
    assert_eq!(ready.status(), 503);
    let why = ready.text().await;
    assert_eq!(why.trim_end(), "not ready: the audit log is unavailable");
    let said = governed(&http).await["audit_error"].clone();
    assert!(
        said.as_str().unwrap().contains("segment 1 was removed"),
        "{said}"
    );
    fs::create_dir(&log).unwrap();
    until(&http, "it goes on", |it| it["audit_error"].is_null()).await;
    assert_eq!(http.get("/readyz", &[]).await.status(), 200);
    call().await.value();
    fs::remove_file(log.join(format!("{chain}.2.jsonl"))).unwrap();
    let lost = |segment| {
        let lost = events(&data).into_iter();
        let lost = lost.filter(|(event, subject, _)| {
            event == "segment_lost" && *subject == format!("{chain}/{segment}")
        });
        lost.count()
    };
    soon("it is noticed, too", async {
        while lost(2) == 0 {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
    call().await.value();
    assert_eq!(records(&data).last().unwrap().price.get(), 10_000);
    child.start_kill().unwrap();
    soon("it is killed", child.wait()).await.unwrap();
    let verified = place.run(&["audit", "verify"]).await;
    assert_eq!(verified.code, Some(1), "{verified:?}");
    let missing = "segments up to 2 are missing";
    assert!(verified.stdout.contains(missing), "{verified:?}");
}

/// With no room for records calls are refused before they reach their server; with room again
/// everything is as it was.
#[tokio::test]
async fn what_cannot_be_recorded_is_not_called() {
    let server = Server::start().await;
    let settings = "[audit]\narguments = true\n[governance]\nprice = \"0.01\"\n";
    let (place, mut child, http) = serve(&server, settings).await;
    limit_files(&child, Some(1 << 20));
    let text = "a".repeat(LARGE);
    let params = format!(r#"{{"name":"mcp_x_echo","arguments":{{"a":"{text}"}}}}"#);
    let call = || ask_on(&http, "/mcp", "tools/call", &params);
    let mut answered = 0;
    let refused = loop {
        let answer = call().await;
        if answer.error.is_some() {
            break answer;
        }
        answered += 1;
        assert!(answered < 20, "the disk does not fill");
    };
    assert!(answered > 1, "{refused:?}");
    let seen = server.seen().len();
    // The call that filled the disk may have been made already.
    assert!(seen <= answered + 1, "{seen} calls, {answered} answers");
    let refused = [refused, call().await, call().await];
    // To make that one again would be to make it twice.
    let was_made = seen > answered;
    for (at, refused) in refused.iter().enumerate() {
        assert_eq!(code_of(refused), "AUDIT_UNAVAILABLE");
        let failed = refused.failure();
        assert_eq!(failed["code"], -32603);
        let may_retry = at > 0 || !was_made;
        assert_eq!(failed["data"]["retryable"], may_retry);
        let wait = may_retry.then_some(1000);
        assert_eq!(failed["data"]["retryAfterMs"].as_u64(), wait);
    }
    assert_eq!(server.seen().len(), seen, "it was called without a record");
    check_count(&http, refused.len()).await;
    child.start_kill().unwrap();
    soon("it is killed", child.wait()).await.unwrap();
    let serving = place.serve().await;
    let http = Http::new(serving.url.trim_start_matches("http://").parse().unwrap());
    ask_on(&http, "/mcp", "tools/call", ECHO).await.value();
    serving.end(rustix::process::Signal::INT).await;
    let data = place.file("data");
    let report = audit::verify(&data.join("audit")).unwrap();
    assert!(report.is_valid(), "{report:?}");
    let paid = records(&data)
        .iter()
        .filter(|it| it.price.get() > 0)
        .count();
    assert!(paid > seen, "{paid} paid calls of {}", seen + 1);
    Store::open(&data).await.unwrap().close().await;
}

/// Clients of every kind are told alike that nothing can be recorded, and nothing is called.
#[tokio::test]
async fn without_an_audit_nobody_calls() {
    for durability in ["process", "disk"] {
        let settings =
            format!("[governance]\nprice = \"0.01\"\n[audit]\ndurability = \"{durability}\"\n");
        let stage = Stage::new(&settings, "").await;
        let mut clients = Vec::new();
        for front in Front::ALL {
            let client = stage.client(front).await;
            call_over(&client, "1", "mcp_x_echo", "{}").await.value();
            clients.push(client);
        }
        let seen = stage.server.seen().len();
        let core = stage.gateway.running.core();
        let audit = Arc::clone(core.proxy.governance().audit());
        // The chain has ended: from now on it takes no line.
        audit.close().unwrap();
        for client in &clients {
            let refused = call_over(client, "2", "mcp_x_echo", "{}").await;
            let what = format!("{durability} {:?}", client.front);
            assert_eq!(code_of(&refused), "AUDIT_UNAVAILABLE", "{what}");
            let failed = refused.failure();
            assert_eq!(failed["code"], -32603, "{what}");
            assert_eq!(failed["message"], "The call cannot be recorded");
            assert_eq!(failed["data"]["retryable"], true);
            assert_eq!(failed["data"]["retryAfterMs"], 1000);
        }
        assert_eq!(stage.server.seen().len(), seen, "{durability}");
        stage.stop().await;
    }
}

/// Servers and clients that come and go are in the same log.
#[tokio::test]
async fn those_who_come_and_go_are_recorded() {
    let server = Server::start().await;
    let plan = TestGateway::new().server("x", &server.backend);
    let gateway = plan.start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let session = client.session.clone().unwrap();
    let mark = tollbridge::session::state::log_id(&session);
    client.end().await;
    let mut config = gateway.config.clone();
    config.servers.clear();
    gateway.running.core().apply_config(&config).unwrap();
    gateway.stop().await;
    let events = events(&config.data_dir);
    for (event, subject, detail) in [
        ("server_connected", "x", "http"),
        ("server_disconnected", "x", "the config has changed"),
        ("client_connected", mark.as_str(), "test"),
        ("client_disconnected", mark.as_str(), "test"),
    ] {
        let found = (event.to_owned(), subject.to_owned(), detail.to_owned());
        assert!(events.contains(&found), "no {found:?} in {events:?}");
    }
}

/// At a stop everybody who is still there goes.
#[tokio::test]
async fn a_stop_records_who_goes() {
    let server = Server::start().await;
    let plan = TestGateway::new().server("x", &server.backend);
    let gateway = plan.start().await;
    let mut clients = Vec::new();
    for front in Front::LEGACY {
        clients.push(gateway.client(front, "/mcp", "{}").await);
    }
    let data = gateway.config.data_dir.clone();
    gateway.stop().await;
    let events = events(&data);
    let of = |kind: &str| {
        let of_kind = events.iter().filter(|(event, ..)| event == kind);
        let mut subjects: Vec<_> = of_kind.map(|(_, subject, _)| subject.clone()).collect();
        subjects.sort();
        subjects
    };
    assert_eq!(of("client_connected").len(), clients.len());
    assert_eq!(of("client_connected"), of("client_disconnected"));
    let gone = ("server_disconnected", "x", "the gateway stops");
    let gone = (gone.0.to_owned(), gone.1.to_owned(), gone.2.to_owned());
    assert!(events.contains(&gone), "{events:?}");
}

/// The events of the audit below `data`: what, about whom, and the detail.
pub(crate) fn events(data: &Path) -> Vec<(String, String, String)> {
    let mut events = Vec::new();
    for name in segments(data) {
        let text = fs::read_to_string(data.join("audit").join(name)).unwrap();
        for line in text
            .lines()
            .filter(|line| line.starts_with(r#"{"kind":"event""#))
        {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            events.push((text("event"), text("subject"), text("detail")));
        }
    }
    events
}

/// What an operator's own classes find is in no record, whatever becomes of it in the call; nor is what
/// a caller calls a method.
#[tokio::test]
async fn records_hold_nothing_that_own_classes_find() {
    let settings = "[audit]\narguments = true\n[governance]\nprice = \"0\"\n\
                    scan = { arguments = { \"*\" = \"report\" }, custom = { ticket = 'TICKET-\\d+' } }\n";
    let stage = Stage::new(settings, "").await;
    stage
        .must(r#"{"a":"TICKET-123 of ann.lee@example.org"}"#)
        .await;
    assert_eq!(
        stage.server.last_arguments(),
        serde_json::json!({"a": "TICKET-123 of ann.lee@example.org"})
    );
    let recorded = stage.last().arguments.unwrap().to_string();
    assert_eq!(recorded, r#"{"a":"[TICKET] of [EMAIL]"}"#);
    let odd = stage
        .gateway
        .client(Front::Streamable, "/mcp/servers/x", "{}")
        .await;
    odd.ask("9", "acme/ann.lee@example.org", "").await;
    odd.answer("9").await;
    assert_eq!(stage.last().method, "acme/[EMAIL]");
    stage.stop().await;
}
