//! What passes through arrives as it was written, but for what must differ on each side.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tokio::runtime::Runtime;

use crate::support::{
    ALL, Backend, Client, Era, Front, Gateway, TestGateway, Transport,
    backend::Asked,
    wire::{Envelope, request},
};

/// Cases on each transport of the server.
const CASES: u32 = 64;

/// Brackets around the innermost value: of the 128 levels that are allowed, four are those of the
/// message, its result, a list and a block in it, and one the innermost value may have itself.
const DEPTH_MAX: usize = 128 - 5;

/// One request and its answer, as text.
#[derive(Clone, Debug)]
struct Case {
    /// Which client makes the call.
    client: usize,
    /// Between tokens.
    space: String,
    arguments: String,
    extra: String,
    token: String,
    block: String,
    structured: String,
    is_error: bool,
}

impl Case {
    /// The result that names `uri` in a link.
    fn result(&self, uri: &str) -> String {
        let Case {
            space,
            block,
            structured,
            extra,
            ..
        } = self;
        format!(
            r#"{{"content":{space}[{{"type":"future/type",{space}"x":{block}}},{{"type":"resource_link","uri":{space}"{uri}","name":"n","x":{extra}}}{space}],"structuredContent":{structured}{space},"_meta":{{"x":{block}}},"k":{extra}}}"#
        )
    }

    /// The result as clients of legacy revisions can read it, whose structured content is an object.
    fn as_legacy(&self, result: &str) -> String {
        let structured = &self.structured;
        if structured.trim_start().starts_with('{') {
            return result.to_owned();
        }
        let said = serde_json::Value::from(structured.trim());
        let said = format!(r#"[{{"type":"text","text":{said}}},"#);
        let whole = result.replacen('[', &said, 1);
        let member = format!(r#","structuredContent":{structured}"#);
        assert!(whole.contains(&member));
        whole.replacen(&member, "", 1)
    }
}

fn space() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "", "", " ", "\n", "\t", " \n  "]).prop_map(str::to_owned)
}

fn string() -> impl Strategy<Value = String> {
    let odd = [
        r#""""#,
        r#""\u0040""#,
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        r#""\/\b\f\n\r\t\"\\""#,
        r#""\u0000""#,
        r#""\u2028\u00e9""#,
        "\"é😀\u{2028}\u{7f}\"",
        r#""data: \n\nevent: x""#,
        r#""]}""#,
        r#""x+file:///a""#,
    ];
    prop_oneof![
        prop::sample::select(odd.map(str::to_owned).to_vec()),
        "[a-z ]{0,8}".prop_map(|text| format!("\"{text}\"")),
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    let odd = [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-0.0",
        "0.10",
        "1e3",
        "1E400",
        "1e-400",
        "12345678901234567890123",
        "9007199254740993",
        "3.141592653589793238462643",
        "{}",
        "[]",
        "[ ]",
        "{ }",
    ];
    prop_oneof![
        prop::sample::select(odd.map(str::to_owned).to_vec()),
        string()
    ]
}

fn key() -> impl Strategy<Value = String> {
    let odd = [
        r#""a""#,
        r#""\u0061""#,
        r#""""#,
        r#""\ud800""#,
        r#""é""#,
        r#""__proto__""#,
        r#""uri""#,
        r#""_meta""#,
        r#""id""#,
    ];
    prop::sample::select(odd.map(str::to_owned).to_vec())
}

fn object(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let member = (space(), key(), space(), space(), value, space());
    prop::collection::vec(member, 0..4).prop_map(|members| {
        let members: Vec<String> = members
            .into_iter()
            .map(|(a, key, b, c, value, d)| format!("{a}{key}{b}:{c}{value}{d}"))
            .collect();
        format!("{{{}}}", members.join(","))
    })
}

fn json() -> impl Strategy<Value = String> {
    let shallow = scalar().prop_recursive(4, 24, 4, |inner| {
        let array =
            prop::collection::vec((space(), inner.clone(), space()), 0..4).prop_map(|items| {
                let items: Vec<String> = items
                    .into_iter()
                    .map(|(a, item, b)| a + &item + &b)
                    .collect();
                format!("[{}]", items.join(","))
            });
        prop_oneof![array, object(inner)]
    });
    let depth = prop_oneof![Just(DEPTH_MAX), 1..DEPTH_MAX];
    let deep = (depth, scalar())
        .prop_map(|(depth, inner)| format!("{}{inner}{}", "[".repeat(depth), "]".repeat(depth)));
    prop_oneof![8 => shallow, 1 => deep]
}

fn case() -> impl Strategy<Value = Case> {
    let token = prop_oneof![
        Just("1".to_owned()),
        Just(r#""\u0040t""#.to_owned()),
        string()
    ];
    let parts = (
        0..CLIENTS,
        space(),
        object(json()),
        json(),
        token,
        json(),
        json(),
        any::<bool>(),
    );
    parts.prop_map(
        |(client, space, arguments, extra, token, block, structured, is_error)| Case {
            client,
            space,
            arguments,
            extra,
            token,
            block,
            structured,
            is_error,
        },
    )
}

/// Each kind of client, on the merged route and on the server's own.
const CLIENTS: usize = Front::ALL.len() * 2;

struct Stage {
    runtime: Runtime,
    gateway: Gateway,
    backend: Backend,
    clients: Vec<Client>,
    era: Era,
    transport: Transport,
    rules: Rules,
}

/// What the gateway is told about calls.
#[derive(Clone, Copy, Debug)]
enum Rules {
    /// Nothing, as where no config says anything of governance.
    None,
    /// To do every step, and to let all pass.
    PassAll,
}

impl Stage {
    fn new(transport: Transport, era: Era, rules: Rules) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (gateway, backend, clients) = runtime.block_on(async {
            let backend = Backend::start(transport, era).await;
            let plan = match rules {
                Rules::None => TestGateway::new(),
                Rules::PassAll => TestGateway::new().governed(),
            };
            // By default what no validator reads, such as half a surrogate pair, is refused where there
            // are rules on arguments.
            let plan = plan.server_with("x", &backend, "validate = \"off\"");
            let gateway = plan.start().await;
            let mut clients = Vec::new();
            for front in Front::ALL {
                for path in ["/mcp", "/mcp/servers/x"] {
                    clients.push(gateway.client(front, path, "{}").await);
                }
            }
            (gateway, backend, clients)
        });
        Self {
            runtime,
            gateway,
            backend,
            clients,
            era,
            transport,
            rules,
        }
    }

    async fn check(&self, case: &Case) {
        let client = &self.clients[case.client];
        let merged = client.path == "/mcp";
        let Case {
            space,
            arguments,
            extra,
            ..
        } = case;
        // What a case before this one left behind is not of interest.
        while self.backend.was_asked().await.is_some() {}
        while client.pending().await.is_some() {}
        let members = |name: &str| {
            format!(
                r#""name"{space}:{space}"{name}",{space}"arguments":{space}{arguments}{space},"k":{extra}{space}"#
            )
        };
        let meta = |token: &str| format!(r#""progressToken":{token}{space},"x":{extra}"#);
        let exposed = if merged { "mcp_x_echo" } else { "echo" };
        let params = client.params(&members(exposed), &meta(&case.token));
        client.send(request("1", "tools/call", &params)).await;
        let asked = self.backend.asked("tools/call").await;
        let meta = meta(&asked.token().unwrap());
        let expect = match (client.front.is_modern(), self.era) {
            (_, Era::Legacy) => format!(r#"{{{},"_meta":{{{meta}}}}}"#, members("echo")),
            (true, Era::Modern) => client.params(&members("echo"), &meta),
            (false, Era::Modern) => {
                format!(r#"{{{},"_meta":{{{ENVELOPE},{meta}}}}}"#, members("echo"))
            }
        };
        same(
            asked.envelope.params.as_deref(),
            &expect,
            "the params that the server gets",
        );
        self.check_answer(case, client, &asked).await;
    }

    /// The way back: an error, or progress and a result.
    async fn check_answer(&self, case: &Case, client: &Client, asked: &Asked) {
        let merged = client.path == "/mcp";
        let space = &case.space;
        if case.is_error {
            let error = format!(
                r#"{{"code":{space}-32050,"message":"\u0040","data":{{"x":{}}}}}"#,
                case.block
            );
            asked.refuse(&error).await;
            same(
                client.answer("1").await.error.as_deref(),
                &error,
                "the error",
            );
            return;
        }
        let result = |uri: &str| case.result(uri);
        let progress = format!(
            r#"{{"progressToken":{},"progress":1e0,"x":{}}}"#,
            asked.token().unwrap(),
            case.structured
        );
        asked.tell("notifications/progress", &progress).await;
        asked.answer(&result("file:///a.txt")).await;
        let told = client.must("notifications/progress").await;
        let expect = format!(
            r#"{{"progressToken":{},"progress":1e0,"x":{}}}"#,
            case.token, case.structured
        );
        same(told.params.as_deref(), &expect, "the progress");
        let result = result(if merged {
            "x+file:///a.txt"
        } else {
            "file:///a.txt"
        });
        let expect = match (client.front.is_modern(), self.era) {
            (true, Era::Legacy) => result.replacen('{', r#"{"resultType":"complete","#, 1),
            (false, Era::Modern) => case.as_legacy(&result),
            (true, Era::Modern) | (false, Era::Legacy) => result,
        };
        let answer = client.answer("1").await;
        // Where they are quoted now, line breaks between tokens are still line breaks, or spaces.
        let plain = |text: &str| text.replace("\\n", " ");
        let found = answer.result.as_deref().map(plain);
        same(found.as_deref(), &plain(&expect), "the result");
    }
}

const ENVELOPE: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"}"#;

/// Line breaks between tokens may become spaces: stdin and stdout have one message a line.
#[track_caller]
fn same(found: Option<&str>, expect: &str, what: &str) {
    let found = found.unwrap_or("(nothing)").replace('\n', " ");
    assert_eq!(found, expect.replace('\n', " "), "{what}");
}

fn check_transport(transport: Transport) {
    let eras = ALL.into_iter().filter(|(found, _)| *found == transport);
    let stages = eras.flat_map(|(_, era)| [(era, Rules::None), (era, Rules::PassAll)]);
    for (era, rules) in stages {
        let stage = Stage::new(transport, era, rules);
        let config = Config {
            cases: CASES,
            failure_persistence: None,
            max_shrink_iters: 200,
            ..Config::default()
        };
        let checked = TestRunner::new(config).run(&case(), |case| {
            stage.runtime.block_on(stage.check(&case));
            Ok(())
        });
        if let Err(failed) = checked {
            panic!(
                "{:?} {era:?}, rules: {:?}: {failed}",
                stage.transport, stage.rules
            );
        }
        stage.runtime.block_on(stage.gateway.stop());
    }
}

#[test]
fn nothing_changes_over_stdio() {
    check_transport(Transport::Stdio);
}

#[test]
fn nothing_changes_over_http() {
    check_transport(Transport::Http);
}

#[test]
fn nothing_changes_over_http_events() {
    check_transport(Transport::HttpEvents);
}

#[test]
fn nothing_changes_over_sse() {
    check_transport(Transport::Sse);
}

#[test]
fn nothing_changes_over_websocket() {
    check_transport(Transport::WebSocket);
}

/// A vendor's own methods pass on the route of its server, notifications of the call included.
#[tokio::test]
async fn vendor_methods_pass() {
    for (transport, era) in ALL {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        let front = if era == Era::Modern {
            Front::Modern
        } else {
            Front::Streamable
        };
        let client = gateway.client(front, "/mcp/servers/x", "{}").await;
        let params = client.params(r#""a":1E400"#, "");
        client.send(request("1", "acme/do", &params)).await;
        let asked = backend.asked("acme/do").await;
        assert_eq!(asked.envelope.params.as_deref(), Some(params.as_str()));
        asked.tell("notifications/acme/step", r#"{"n":0.10}"#).await;
        asked.answer(r#"{"b":-0}"#).await;
        let told: Envelope = client.must("notifications/acme/step").await;
        assert_eq!(
            told.params.as_deref(),
            Some(r#"{"n":0.10}"#),
            "{transport:?} {era:?}"
        );
        assert_eq!(
            client.answer("1").await.result.as_deref(),
            Some(r#"{"b":-0}"#)
        );
        let merged = gateway.client(front, "/mcp", "{}").await;
        merged.send(request("1", "acme/do", &params)).await;
        assert_eq!(merged.answer("1").await.code(), -32601);
        gateway.stop().await;
    }
}

/// What is read and prompted arrives as it was written, but for URIs and names on the merged route.
#[tokio::test]
async fn reads_and_prompts_pass() {
    const READ: &str = r#"{"contents":[ {"uri":"file:///a.txt","mimeType":"x/y","blob":"AAEC/w==","_meta":{"n":1E400}} ,{"text":"\u0040é \"uri\":\"file:///a.txt\"","uri":"file:///b","x":12345678901234567890123}],"k":{"a":-0.0,"a":[ ]}~}"#;
    const PROMPT: &str = r#"{"description":"\ud800","messages":[{"role":"user","content":{"type":"future/type","n":0.10}},{"role":"assistant","content":{"type":"resource","resource":{"uri":"file:///a.txt" ,"text":"file:///a.txt"}}}] ,"k":1e-400~}"#;
    for (transport, era) in ALL {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        let (front, rest) = match era {
            Era::Legacy => (Front::Streamable, ""),
            Era::Modern => (
                Front::Modern,
                r#","cacheScope":"public" ,"ttlMs":5e0,"resultType":"complete""#,
            ),
        };
        for (path, scheme, name) in [
            ("/mcp", "x+file", "mcp_x_greet"),
            ("/mcp/servers/x", "file", "greet"),
        ] {
            let client = gateway.client(front, path, "{}").await;
            let check = async |method: &str, exposed: String, original: &str, result: &str| {
                let params = client.params(&exposed, r#""a" :-0"#);
                let sent = params.replace(&exposed, original);
                client.send(request("1", method, &params)).await;
                let asked = backend.asked(method).await;
                same(asked.envelope.params.as_deref(), &sent, method);
                let result = result.replace('~', rest);
                asked.answer(&result).await;
                let uri = |uri: &str| format!(r#""uri":"{uri}:///"#);
                let expect = result.replace(&uri("file"), &uri(scheme));
                let what = format!("{method} {path} {transport:?} {era:?}");
                same(client.answer("1").await.result.as_deref(), &expect, &what);
            };
            let read = |scheme: &str| format!(r#""x": 1.0,"uri":"{scheme}:///a.txt""#);
            check("resources/read", read(scheme), &read("file"), READ).await;
            let get = |name: &str| format!(r#""name":"{name}","arguments":{{"who" : "\u0040"}}"#);
            check("prompts/get", get(name), &get("greet"), PROMPT).await;
        }
        gateway.stop().await;
    }
}

/// A client that answers the questions of a result names resources as we showed them; the server
/// hears its own names, also in what a model wrote.
#[tokio::test]
async fn answers_to_questions_name_resources_as_the_server_does() {
    let (backend, gateway) = Gateway::governed(Transport::Http, Era::Modern, "").await;
    let answer = |uri: &str| {
        format!(
            r#""inputResponses":{{"k":{{"role":"assistant","content":{{"type":"resource_link","uri":"{uri}" ,"name":"n"}}}}}}"#
        )
    };
    let client = gateway.client(Front::Modern, "/mcp", "{}").await;
    for (method, exposed, original) in [
        ("tools/call", r#""name":"mcp_x_echo""#, r#""name":"echo""#),
        (
            "prompts/get",
            r#""name":"mcp_x_greet""#,
            r#""name":"greet""#,
        ),
        (
            "resources/read",
            r#""uri":"x+file:///a.txt""#,
            r#""uri":"file:///a.txt""#,
        ),
    ] {
        let members = format!("{exposed},{}", answer("x+file:///a"));
        client.ask("1", method, &members).await;
        let asked = backend.asked(method).await;
        let expect = client.params(&format!("{original},{}", answer("file:///a")), "");
        same(asked.envelope.params.as_deref(), &expect, method);
        asked.answer(r#"{"resultType":"complete"}"#).await;
        client.answer("1").await;
    }
    gateway.stop().await;
}
