//! What the log says of a call, from the HTTP request to the stderr of the server.

use std::{collections::HashSet, fmt, fs, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::support::{Place, Ran, SCRIPT, TOOLBOX, bounded, finish, pids, send, until};

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_script_hang","arguments":{}}}"#;

/// Posts `body` with the name `request`; the connection, whose answer nobody has read.
async fn post(url: &str, request: &str, body: &str) -> TcpStream {
    let address = url.strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let length = body.len();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nx-request-id: {request}\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    let sent = stream.write_all(head.as_bytes()).await;
    sent.expect("it is read");
    stream
}

/// What is still to be read.
async fn read(answer: &mut TcpStream) -> String {
    let mut text = String::new();
    let read = bounded(answer.read_to_string(&mut text)).await;
    read.expect("it is answered");
    text
}

/// The one line of the log whose message is `message` and that `is_wanted`.
fn line(ended: &Ran, message: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let fields = ended.stderr.lines().filter_map(|line| {
        let mut line: Value = serde_json::from_str(line).ok()?;
        Some(line["fields"].take())
    });
    let mut found = fields.filter(|fields| fields["message"] == message && is_wanted(fields));
    let line = found.next();
    let line = line.unwrap_or_else(|| panic!("no {message} in {}", ended.stderr));
    assert_eq!(found.next(), None, "more than one {message}");
    line
}

/// What a caller writes as a URI or as a method is logged without what identifies somebody.
#[tokio::test]
async fn a_uri_and_a_method_are_logged_with_masks() {
    let place = Place::new(
        "log = { level = \"debug\", format = \"json\" }\n[governance]\npolicy = { mode = \"none\" }\n\
         [servers.toolbox]\ntransport = \"builtin\"\n",
    );
    let serving = place.serve().await;
    let read_it = r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"toolbox+file:///ann.lee@example.org/a"}}"#;
    let answer = read(&mut post(&serving.url, "1", read_it).await).await;
    assert!(answer.contains("UNAUTHORIZED"), "{answer}");
    let odd = r#"{"jsonrpc":"2.0","id":2,"method":"acme/ann.lee@example.org"}"#;
    let answer = read(&mut post(&serving.url, "2", odd).await).await;
    assert!(answer.contains("-32601"), "{answer}");
    let ended = serving.end(Signal::TERM).await;
    let call = line(&ended, "call", |call| call["method"] == "resources/read");
    assert_eq!(call["tool"], "file:///[EMAIL]/a");
    line(&ended, "call", |call| call["method"] == "acme/[EMAIL]");
    assert!(!ended.stderr.contains("ann.lee"), "{}", ended.stderr);
}

/// What a client made up as the name of a tool is whole in the log and in the table of the audit, and has
/// no line and no column of its own there.
#[tokio::test]
async fn an_unknown_tool_is_named() {
    let place = Place::new(&format!(
        "log = {{ level = \"info\", format = \"json\" }}\n{TOOLBOX}"
    ));
    let serving = place.serve().await;
    let named = CALL.replace("mcp_script_hang", r"no/ann.lee@example.org\nallowed\t1");
    let answer = read(&mut post(&serving.url, "1", &named).await).await;
    assert!(answer.contains("TOOL_NOT_FOUND"), "{answer}");
    let ended = serving.end(Signal::TERM).await;
    let call = line(&ended, "call", |call| call["code"] == "TOOL_NOT_FOUND");
    assert_eq!(call["asked_for"], "no/[EMAIL]\nallowed\t1");
    let table = place.run(&["audit"]).await;
    let cell = "\tno/[EMAIL]\\nallowed\\t1\trefused\t";
    assert!(table.stdout.contains(cell), "{table:?}");
}

/// Clients have the configured port in their settings.
#[tokio::test]
async fn another_port_is_not_taken_silently() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("it has one");
    let place = Place::new(&format!(
        "listen = \"{taken}\"\nport_search = 20\n[servers.toolbox]\ntransport = \"builtin\"\n"
    ));
    let serving = Place::serve_as(place.command(&["serve"])).await;
    let url = serving
        .url
        .strip_prefix("http://")
        .expect("a URL")
        .to_owned();
    let ended = serving.end(Signal::TERM).await;
    let expect = format!("{taken} is in use: listening on {url} instead (`port_search`)");
    assert!(ended.stderr.contains(&expect), "{}", ended.stderr);
    assert!(ended.stderr.contains(" WARN "), "{}", ended.stderr);
}

/// A client with the wrong settings is seen in the log, once a minute however often it comes.
#[tokio::test]
async fn requests_that_lead_nowhere_are_logged_once_a_minute() {
    let place = Place::new(
        "log = { format = \"json\" }\n[governance]\nauth = \"keys\"\n[agents.ann]\n\
         keys = [\"tbk_ann_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7\"]\n[servers.toolbox]\ntransport = \"builtin\"\n",
    );
    let serving = place.serve().await;
    let address = serving
        .url
        .strip_prefix("http://")
        .expect("a URL")
        .to_owned();
    let send_to = async |path: &str, key: &str| {
        let mut stream = TcpStream::connect(&address).await.expect("it listens");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nuser-agent: probe/1\r\n{key}\
             content-length: 0\r\nconnection: close\r\n\r\n"
        );
        let sent = stream.write_all(head.as_bytes()).await;
        sent.expect("it is read");
        read(&mut stream).await
    };
    let wrong = "authorization: Bearer wrong\r\n";
    for _ in 0..3 {
        for (path, key, status) in [
            ("/mcp", "", "401"),
            ("/mcp/servers/toolbox", wrong, "401"),
            ("/mcp/servers/none", wrong, "404"),
            ("/register", "", "404"),
            ("/sse", "", "405"),
        ] {
            let answer = send_to(path, key).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "{answer}"
            );
        }
    }
    let ended = serving.end(Signal::TERM).await;
    for (path, message) in [
        ("/mcp", "request rejected: it has no credential"),
        ("/mcp/servers/toolbox", "authentication refused"),
        ("/mcp/servers/none", "request rejected: unknown server"),
        (
            "/register",
            "request rejected: its client looks for OAuth, which this gateway does not have",
        ),
        (
            "/sse",
            "request rejected: this path does not take the method",
        ),
    ] {
        let line = line(&ended, message, |fields| fields["path"] == path);
        assert_eq!(line["user_agent"], "probe/1", "{line}");
    }
}

/// Whatever clients, servers and programs write, a line of the log is one line, and moves no cursor.
#[tokio::test]
async fn nothing_in_the_log_steers_a_terminal() {
    const NOISY: &str = r#"
        [servers.noisy]
        command = "sh"
        args = ["-c", '''printf '\033[2J\000\302\233x\342\200\256\r\177why\n' >&2; exit 1''']
    "#;
    for format in ["human", "json"] {
        let place = Place::new(&format!(
            "log = {{ level = \"trace\", format = \"{format}\" }}\n{SCRIPT}{NOISY}"
        ));
        let serving = place.serve().await;
        let odd = r"\u001b[2J\u0000\u009b31m\u202e\r\n\u007fx";
        for method in ["tools/call", &format!("a/{odd}")] {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":"{odd}","method":"{method}","params":{{"name":"{odd}","arguments":{{"{odd}":1}}}}}}"#
            );
            read(&mut post(&serving.url, "1", &body).await).await;
        }
        let initialize = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{{"name":"{odd}","version":"{odd}"}}}}}}"#
        );
        read(&mut post(&serving.url, "2", &initialize).await).await;
        let ended = serving.end(Signal::TERM).await;
        let steers = |c: &char| c.is_control() && *c != '\n' || *c == '\u{202e}';
        let found = ended.stderr.chars().find(steers);
        assert_eq!(found, None, "{format}: {}", ended.stderr);
        // What the program wrote, and what the client asked for, are there all the same.
        let asked = if format == "json" {
            r"\u009b31m\u202e"
        } else {
            r"\u{9b}31m\u{202e}"
        };
        for told in [r"\u009bx\u202e", asked] {
            assert!(ended.stderr.contains(told), "{format}: {}", ended.stderr);
        }
        if format == "json" {
            for line in ended.stderr.lines() {
                serde_json::from_str::<Value>(line).expect(line);
            }
        }
    }
}

/// A call that is sent once more has the same names in the log as its own line and its record.
#[tokio::test]
async fn a_call_that_is_sent_once_more_is_named() {
    let place = Place::new(&format!("drain_timeout = \"1s\"\n{SCRIPT}"));
    let server = fs::read_to_string(place.file("server.sh")).expect("it is there");
    let hang = r#""name":"hang","#;
    let twice = format!(r#"{hang}"annotations":{{"idempotentHint":true}},"#);
    fs::write(place.file("server.sh"), server.replace(hang, &twice)).expect("written");
    let serving = place.serve().await;
    let mut answer = post(&serving.url, "1", CALL).await;
    let hanging = place.file("hanging");
    until(|| hanging.exists().then_some(())).await;
    fs::remove_file(&hanging).expect("removed");
    let leader = Pid::from_raw(pids(&place).await[0].cast_signed()).expect("a pid");
    kill_process(leader, Signal::KILL).expect("it runs");
    until(|| hanging.exists().then_some(())).await;
    let ended = serving.end(Signal::TERM).await;
    read(&mut answer).await;
    let mut lines = ended.stderr.lines();
    let again = lines.find(|line| line.contains("retrying a call"));
    let again = again.unwrap_or_else(|| panic!("{}", ended.stderr));
    let named = r#"agent="anonymous" server="script" method="tools/call" tool="hang" failure=""#;
    assert!(again.contains(named), "{again}");
    let (_, invocation) = again.split_once("invocation=").expect("it is named");
    let (invocation, _) = invocation.split_once(' ').expect("more follows");
    let records = place.run(&["audit", "--json"]).await;
    assert!(records.stdout.contains(invocation), "{records:?}");
}

/// A balancer whose requests are refused for the host they name shows in the log, once, and in the
/// metrics; its probes are answered, and clients are told in a form that they show.
#[tokio::test]
async fn a_host_that_is_refused_is_logged_once() {
    let place = Place::new(TOOLBOX);
    let serving = place.serve().await;
    let address = serving.url.strip_prefix("http://").expect("a URL");
    let ask = async |asked: &str, host: &str| {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let asked = format!(
            "{asked} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let sent = stream.write_all(asked.as_bytes()).await;
        sent.expect("it is read");
        read(&mut stream).await
    };
    let pod = "10.0.0.7:8085";
    let why = "host 10.0.0.7:8085 is not in allowed_hosts";
    for asked in ["GET /status", "GET /mcp", "POST /sse"] {
        let answer = ask(asked, pod).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{why}\n")), "{answer}");
    }
    let posted = ask("POST /mcp", pod).await;
    assert!(posted.starts_with("HTTP/1.1 403 "), "{posted}");
    let error =
        format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":-32600,"message":"{why}"}}}}"#);
    assert!(posted.ends_with(&error), "{posted}");
    let probed = ask("GET /healthz", pod).await;
    assert!(probed.starts_with("HTTP/1.1 200 "), "{probed}");
    assert!(!ask("GET /readyz", pod).await.starts_with("HTTP/1.1 403 "));
    let figures = ask("GET /metrics", address).await;
    let figure = r#"tollbridge_forbidden_requests_total{reason="host"} 4"#;
    assert!(figures.contains(figure), "{figures}");
    let ended = serving.end(Signal::TERM).await;
    let words = format!(
        "request rejected: {why} peer=127.0.0.1 method=GET path=\"/status\" user_agent=\"(none)\" more=0"
    );
    assert!(ended.stderr.contains(&words), "{ended:?}");
    let told = ended.stderr.matches("request rejected").count();
    assert_eq!(told, 1, "{ended:?}");
}

/// One id joins a client's request, the call and what the server wrote meanwhile.
#[tokio::test]
async fn a_call_is_followed_to_its_server() {
    let log = "drain_timeout = \"1s\"\nlog = { level = \"debug\", format = \"json\" }\n";
    let place = Place::new(&format!("{log}{SCRIPT}"));
    let serving = place.serve().await;
    let mut answer = post(&serving.url, "from-a-balancer", CALL).await;
    let hanging = place.file("hanging");
    until(|| hanging.exists().then_some(())).await;
    let ended = serving.end(Signal::TERM).await;
    read(&mut answer).await;
    let call = line(&ended, "call", |call| call["method"] == "tools/call");
    assert!(call["took_ms"].is_f64(), "a number: {call}");
    let invocation = call["invocation"].as_str().expect("a name");
    assert!(invocation.starts_with("inv_"), "{call}");
    assert_eq!(call["request_id"], "from-a-balancer");
    assert_eq!(call["decision"], "failed");
    assert_eq!(
        (&call["server"], &call["tool"]),
        (&"script".into(), &"hang".into())
    );
    let stderr = line(&ended, "stderr", |stderr| stderr["line"] == "hanging on");
    assert_eq!(stderr["invocations"], invocation);
    assert_eq!(stderr["server"], "script");
    let records = place.run(&["audit", "--json"]).await;
    assert!(records.stdout.contains(invocation), "{records:?}");
}

/// The death of a program that serves some callers alone is in the log, with its last words, and so is
/// that there is another; that there was one at all is not.
#[tokio::test]
async fn a_line_about_an_instance_says_which() {
    let log = "log = { level = \"info\", format = \"json\" }\n";
    let keys = "isolation = \"pool\"\nbreaker = { failures = 1, open_for = \"10ms\" }\n";
    let place = Place::new(&format!("{log}{SCRIPT}{keys}"));
    let serving = place.serve().await;
    let mut answer = post(&serving.url, "one", CALL).await;
    let hanging = place.file("hanging");
    until(|| hanging.exists().then_some(())).await;
    // Those of the catalog's process were there before.
    let leader = pids(&place).await[0];
    let leader = Pid::from_raw(leader.cast_signed()).expect("a pid");
    kill_process(leader, Signal::KILL).expect("it runs");
    let text = read(&mut answer).await;
    assert!(
        text.contains("SIGKILL") && !text.contains("hanging"),
        "{text}"
    );
    // Until the breaker lets one through.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let other = CALL.replace("hang", "fail");
    let text = read(&mut post(&serving.url, "two", &other).await).await;
    assert!(text.contains("it went wrong"), "{text}");
    let ended = serving.end(Signal::TERM).await;
    let lines = ended.stderr.lines();
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_of_instance = |line: &Value| {
        let message = line["fields"]["message"].as_str();
        message.is_some_and(|it| it.starts_with("instance is"))
    };
    let about: Vec<_> = lines.filter(is_of_instance).collect();
    let [lost, back] = &*about else {
        panic!("{}", ended.stderr);
    };
    let check = |line: &Value, level: &str, message: &str| {
        let fields = &line["fields"];
        assert_eq!(line["level"], level, "{line}");
        assert_eq!(fields["message"], message, "{line}");
        assert_eq!(fields["server"], "script", "{line}");
        let mut spans = line["spans"].as_array().into_iter().flatten();
        let number = spans.find_map(|span| span["number"].as_u64());
        number.expect("it has one")
    };
    let one = check(lost, "WARN", "instance is disconnected");
    let two = check(back, "INFO", "instance is connected");
    assert_eq!(one, two);
    let reason = lost["fields"]["reason"].as_str().expect("a reason");
    assert!(reason.ends_with("on stderr: hanging on"), "{reason}");
    let opened = "circuit breaker opened: calls fail fast";
    for message in [opened, "circuit breaker closed"] {
        line(&ended, message, |fields| fields["server"] == "script");
    }
}

/// A limit on the size of files fails what is written, as a full disk does, and ends no process.
#[tokio::test]
async fn a_limit_on_files_is_told() {
    let place = Place::new(TOOLBOX);
    let program = env!("CARGO_BIN_EXE_tollbridge");
    let limited = format!("ulimit -f 1; exec '{program}' serve --listen 127.0.0.1:0");
    let ended = finish(place.shell(&limited)).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("tollbridge.db"), "{ended:?}");
}

/// A disk that takes no more of the audit is said once, and at the end how much of it is lost.
#[tokio::test]
async fn what_the_audit_loses_is_told() {
    let place = Place::new(TOOLBOX);
    let program = env!("CARGO_BIN_EXE_tollbridge");
    // Beside the audit nothing is kept that becomes as large.
    let limited = format!("ulimit -f 500; exec '{program}' serve");
    let serving = Place::serve_as(place.shell(&limited)).await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_toolbox_uuid","arguments":{}}}"#;
    let mut refused = 0;
    for _ in 0..3000 {
        let answer = read(&mut post(&serving.url, "r", call).await).await;
        refused += usize::from(answer.contains("AUDIT_UNAVAILABLE"));
        if refused == 5 {
            break;
        }
    }
    assert_eq!(refused, 5);
    let ended = serving.end(Signal::TERM).await;
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let count = |words: &str| ended.stderr.matches(words).count();
    assert_eq!(
        count("cannot write the audit log; calls are refused until this is fixed"),
        1
    );
    assert_eq!(count("audit lines may have been lost"), 1, "{ended:?}");
    assert_eq!(count("cannot record the call"), 0, "{ended:?}");
}

/// Whoever reads the log may have gone, and the disk that takes it may be full.
#[tokio::test]
async fn a_log_that_cannot_be_written_stops_nothing() {
    let place = Place::new(TOOLBOX);
    // Only Linux has a device that is always full.
    for is_full in [false, cfg!(target_os = "linux")] {
        let mut command = place.command(&["serve", "--listen", "127.0.0.1:0"]);
        if is_full {
            let full = fs::OpenOptions::new().write(true).open("/dev/full");
            command.stderr(full.expect("a device"));
        }
        let mut child = command.env("RUST_LOG", "trace").spawn().expect("it starts");
        drop(child.stderr.take());
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        bounded(stdout.read_line(&mut line)).await.expect("a line");
        let url = line.trim().strip_prefix("listening on ").expect("a URL");
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        for _ in 0..3 {
            let mut stream = post(url, "lost", ping).await;
            let mut answer = [0; 9];
            bounded(stream.read_exact(&mut answer))
                .await
                .expect("an answer");
            assert_eq!(&answer, b"HTTP/1.1 ", "{is_full}");
        }
        send(&child, Signal::TERM);
        let status = bounded(child.wait()).await.expect("it ends");
        assert_eq!(status.code(), Some(0), "{is_full}");
    }
}

/// JSON whose objects have each key once.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format!("`{key}` is there twice")));
            }
            keys.insert(key);
            map.next_value::<Self>()?;
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

/// Many readers of JSON refuse an object that has a key twice, or keep one of the two values.
#[tokio::test]
async fn keys_of_a_line_are_unique() {
    assert!(serde_json::from_str::<Unique>(r#"{"a":[{"b":1,"b":1}]}"#).is_err());
    let log = "drain_timeout = \"1s\"\nlog = { level = \"debug\", format = \"json\" }\n";
    let replicas = "[servers.more]\nreplicas = [{ command = \"sh\", args = [\"server.sh\"] }]\n";
    let place = Place::new(&format!("{log}{SCRIPT}isolation = \"session\"\n{replicas}"));
    let serving = place.serve().await;
    for tool in ["mcp_script_fail", "mcp_more_fail"] {
        let body = CALL.replace("mcp_script_hang", tool);
        read(&mut post(&serving.url, tool, &body).await).await;
    }
    let ended = serving.end(Signal::TERM).await;
    let lines = ended.stderr.lines();
    let lines: Vec<&str> = lines.filter(|line| line.starts_with('{')).collect();
    for line in &lines {
        let read = serde_json::from_str::<Unique>(line);
        assert!(read.is_ok(), "{:?}: {line}", read.err());
    }
    for span in ["task", "replica"] {
        let named = format!(r#""name":"{span}""#);
        assert!(lines.iter().any(|line| line.contains(&named)), "{span}");
    }
}

/// Statements of the store are no business of whoever reads the log.
#[tokio::test]
async fn the_log_has_no_lines_of_the_store() {
    let place = Place::new("[governance]\nauth = \"keys\"\n");
    let mut command = place.command(&["agents", "add", "bot"]);
    command.env("RUST_LOG", "sqlx=trace,tollbridge=info");
    let ran = finish(command).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stderr.contains("sqlx"), "{}", ran.stderr);
}

/// Who starts with nothing is told what to add.
#[tokio::test]
async fn a_config_without_servers_is_pointed_out() {
    for (config, expect) in [
        ("", "add a section `[servers.NAME]`"),
        (
            "[servers.x]\ncommand = \"sh\"\nenabled = false\n",
            "all configured servers have `enabled = false`",
        ),
    ] {
        let place = Place::new(config);
        place.serve().await.says(expect).await;
    }
}

/// Lines about a replica name it beside its server.
#[tokio::test]
async fn a_line_about_a_replica_names_it() {
    let replica = |name: &str| {
        format!(
            "{{ name = \"{name}\", command = \"sh\", args = [\"-c\", \"echo >> {name}; exit 3\"] }}"
        )
    };
    let place = Place::new(&format!(
        "log = {{ level = \"warn\", format = \"json\" }}\n[servers.x]\n\
         retry = {{ base = \"10ms\" }}\nreplicas = [{}, {}]\n",
        replica("one"),
        replica("two")
    ));
    let serving = place.serve().await;
    for name in ["one", "two"] {
        // The first attempt starts it twice, in either era; the third start is after the line about that.
        let starts = || std::fs::read_to_string(place.file(name)).map_or(0, |it| it.len());
        until(|| (starts() >= 3).then_some(())).await;
    }
    let ended = serving.end(Signal::TERM).await;
    for name in ["one", "two"] {
        let mut lines = ended.stderr.lines();
        let is_it = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            let mut spans = line["spans"].as_array().into_iter().flatten();
            line["fields"]["message"] == "server is failed"
                && line["fields"]["server"] == "x"
                && spans.any(|span| span["replica"] == name)
        };
        assert!(lines.any(is_it), "{name}: {}", ended.stderr);
    }
}
