//! A real client and raw lines in front of the server, over the same byte stream as the `builtin` transport.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use rmcp::RoleClient;
use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _, RunningService};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

use super::text::HASH_INPUT_BYTES_MAX;
use super::*;

/// How long a test may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn speaks_the_legacy_era_in_raw_lines() {
    let answers = exchange(&[
        request(0, "server/discover", json!({"_meta": modern_meta()})),
        initialize(1, "2025-06-18"),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        request(
            json!("two"),
            "tools/call",
            json!({"name": "echo", "arguments": {"text": "a"}}),
        ),
        request(3, "tools/call", json!({"name": "hex"})),
        request(4, "tools/list", json!({"cursor": "x"})),
        request(5, "ping", json!({})),
    ])
    .await;
    assert!(
        answers[0]["result"]["supportedVersions"].is_array(),
        "a probe may come first"
    );
    let greeting = &answers[1]["result"];
    assert_eq!(greeting["protocolVersion"], "2025-06-18");
    assert_eq!(greeting["serverInfo"]["name"], "tollbridge-toolbox");
    assert_eq!(greeting["capabilities"], json!({"tools": {}}));
    assert_eq!(
        answers[2],
        json!({"jsonrpc": "2.0", "id": "two", "result": {
            "content": [{"type": "text", "text": r#"{"text":"a"}"#}],
            "structuredContent": {"text": "a"},
            "isError": false,
        }})
    );
    assert_eq!(
        answers[3]["error"],
        json!({"code": -32602, "message": "Unknown tool: hex"})
    );
    assert_eq!(answers[4]["error"]["code"], -32602);
    assert_eq!(answers[5]["result"], json!({}));
}

#[tokio::test]
async fn speaks_the_modern_era_in_raw_lines() {
    let call = json!({"_meta": modern_meta(), "name": "uuid", "arguments": {"count": 0}});
    let answers = exchange(&[
        request(1, "server/discover", json!({"_meta": modern_meta()})),
        request(2, "tools/list", json!({"_meta": modern_meta()})),
        request(3, "tools/call", call),
        json!({"jsonrpc": "2.0", "id": 4, "method": "tools/list"}),
    ])
    .await;
    let versions = answers[0]["result"]["supportedVersions"].as_array();
    assert!(
        versions.unwrap().contains(&json!("2026-07-28")),
        "{answers:?}"
    );
    assert_eq!(answers[1]["result"]["resultType"], "complete");
    assert_eq!(answers[1]["result"]["tools"][0]["name"], "current_time");
    assert_eq!(answers[2]["result"]["isError"], true);
    assert_eq!(
        answers[2]["result"]["content"][0]["text"],
        "count: 0 is not between 1 and 1000. Send a count within these bounds."
    );
    assert_eq!(answers[3]["error"]["code"], -32602, "modern without _meta");
}

/// What is wrong with a request is said in the answer to it, and the connection goes on.
#[tokio::test]
async fn every_request_with_an_id_is_answered() {
    let wrong = [
        ("tools/call", json!({"name": "uuid", "_meta": "x"})),
        (
            "tools/call",
            json!({"name": "uuid", "_meta": {"progressToken": {}}}),
        ),
        ("tools/call", json!({"name": "uuid", "arguments": []})),
        ("tools/call", json!({"name": "uuid", "task": "x"})),
        ("tools/call", json!({"name": 5})),
        ("tools/call", json!([])),
        ("tools/call", json!(5)),
        ("tools/list", json!({"cursor": 5})),
        ("resources/read", json!({"uri": 5})),
        ("prompts/get", json!({"name": "x", "arguments": 5})),
        ("completion/complete", json!({"ref": 5})),
        ("ping", json!({"_meta": 5})),
        ("no/such", json!({"_meta": 5})),
    ];
    let mut messages = vec![initialize("first", "2025-11-25")];
    messages.push(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    for (id, (method, params)) in wrong.into_iter().enumerate() {
        messages.push(json!("not a message"));
        messages.push(request(id, method, params));
    }
    messages.push(request(99, "tools/call", json!({"name": "uuid"})));
    let answers = exchange(&messages).await;
    assert!(answers.last().unwrap()["result"].is_object(), "{answers:?}");
}

#[tokio::test]
async fn connections_do_not_mix() {
    let connections = (0..50).flat_map(|n| eras().map(|era| (n, era)));
    join_all(connections.map(|(n, era)| {
        connected(era, async move |client| {
            let text = n.to_string().repeat(4096);
            let (made, echoed) = tokio::join!(
                call(client, "uuid", json!({})),
                call(client, "echo", json!({"text": text})),
            );
            assert!(made.is_ok());
            assert_eq!(echoed, Ok(json!({"text": text})));
        })
    }))
    .await;
}

#[tokio::test]
async fn stop_ends_a_connection_and_a_connection_does_not_stop_others() {
    let stop = CancellationToken::new();
    let (ours, theirs) = tokio::io::duplex(1024);
    drop(ours);
    bounded(serve(theirs, stop.clone())).await;
    assert!(!stop.is_cancelled(), "closed before a word");
    for stops in [false, true] {
        let (ours, theirs) = tokio::io::duplex(1024);
        let mut lines = RawLines(BufReader::new(ours));
        let talk = async {
            lines.send(&initialize(1, "2024-11-05")).await;
            lines.receive().await;
            if stops {
                stop.cancel();
            } else {
                drop(lines);
            }
        };
        bounded(async { tokio::join!(serve(theirs, stop.clone()), talk) }).await;
        assert_eq!(stop.is_cancelled(), stops, "closed after the handshake");
    }
    let (_ours, theirs) = tokio::io::duplex(1024);
    bounded(serve(theirs, stop)).await;
}

#[test]
fn every_tool_introduces_itself() {
    for tool in tools::list() {
        let name = &tool.name;
        assert!(tool.title.is_some_and(|title| !title.is_empty()), "{name}");
        let description = tool.description.unwrap();
        assert!(description.ends_with('.'), "{name}: {description}");
        let output = Value::Object(tool.output_schema.unwrap().as_ref().clone());
        assert_eq!(output["type"], "object", "{name}");
        let input = Value::Object(tool.input_schema.as_ref().clone());
        assert_eq!(input["additionalProperties"], false, "{name}");
        assert!(!format!("{input}{output}").contains("\"format\""), "{name}");
        for (argument, schema) in input["properties"].as_object().unwrap() {
            let description = schema["description"].as_str().unwrap();
            assert!(!description.contains('\n'), "{name} {argument}");
            assert!(schema["type"].is_string(), "{name} {argument}: {schema}");
        }
        let hints = tool.annotations.unwrap();
        assert_eq!(
            (hints.read_only_hint, hints.open_world_hint),
            (Some(true), Some(false))
        );
        assert_eq!(
            (hints.destructive_hint, hints.idempotent_hint),
            (Some(false), Some(true))
        );
    }
}

/// In both eras.
#[tokio::test]
async fn tools_answer_what_they_are_asked() {
    for era in eras() {
        connected(era, async |client| {
            for row in EXAMPLES.trim().lines() {
                let (asked, expected) = row.split_once(" => ").unwrap();
                let (tool, arguments) = asked.split_once(' ').unwrap();
                match call(client, tool, serde_json::from_str(arguments).unwrap()).await {
                    Ok(answer) => {
                        let expected = serde_json::from_str(expected).expect("an error");
                        assert!(contains(&answer, &expected), "{row}: {answer}");
                    }
                    Err(error) => assert!(error.starts_with(expected), "{row}: {error}"),
                }
            }
        })
        .await;
    }
}

/// A tool, its arguments, and members of the structured answer as JSON or the start of the text of an error.
/// The first hash is an example of FIPS 180, the first UUID that of RFC 9562, appendix A.4.
const EXAMPLES: &str = r#"
echo {"text":"Grüße\n\u001b\""} => {"text":"Grüße\n\u001b\""}
echo {} => arguments: missing field `text`. Send the arguments
hash {"text":"abc"} => {"algorithm":"sha256","bytes":3,"hex":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","base64":"ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="}
hash {"algorithm":"sha384","base64":"YW Jj"} => {"hex":"cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7"}
hash {"algorithm":"sha512","text":""} => {"hex":"cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"}
hash {"base64":"/wA"} => {"bytes":2}
hash {"base64":"_wA="} => base64: not base64 (Invalid symbol 95, offset 0.). Send standard
hash {"text":"a","base64":"YQ=="} => arguments: exactly one of text and base64 is needed
hash {} => arguments: exactly one of text and base64 is needed
hash {"text":"a","algorithm":"md5"} => algorithm: unknown variant `md5`, expected one of
uuid {"version":"v5","namespace":"dns","name":"www.example.com"} => {"uuids":["2ed6657d-e927-568b-95e1-2665a8aea6a2"]}
uuid {"version":5,"count":1,"namespace":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","name":"www.example.com"} => {"uuids":["2ed6657d-e927-568b-95e1-2665a8aea6a2"]}
uuid {"version":"v5","namespace":"web","name":"a"} => namespace: "web" is neither
uuid {"version":"v5","namespace":"dns"} => arguments: version 5 is the one UUID
uuid {"version":"v5","name":"a"} => arguments: version 5 is the one UUID
uuid {"version":"v5","namespace":"dns","name":"a","count":2} => arguments: version 5 is
uuid {"name":"a"} => arguments: version 5 is the one UUID
uuid {"version":"v7","namespace":"dns"} => arguments: version 5 is the one UUID
uuid {"version":"v6"} => version: unknown variant `v6`, expected one of `v4`, `v5`, `v7`
uuid {"count":-1} => count: invalid value: integer `-1`, expected u32.
uuid {"count":0} => count: 0 is not between 1 and 1000.
uuid {"count":1001} => count: 1001 is not between 1 and 1000.
current_time {} => {"zone":"UTC"}
current_time {"zone":"asia/tokyo"} => {"zone":"Asia/Tokyo","offset":"+09:00"}
current_time {"zone":"../../etc/passwd"} => zone: "../../etc/passwd" is not a known time zone.
current_time {"zone":""} => zone: "" is not a known time zone. Send an IANA name such as
current_time {"zone":2} => zone: invalid type: integer `2`, expected a string. Send
current_time {"timezone":"UTC"} => timezone: unknown field `timezone`, expected `zone`. Send
convert_time {"time":"2026-07-01T12:00:00Z","to":"Europe/Berlin"} => {"from":{"time":"2026-07-01T12:00:00+00:00","zone":"UTC"},"to":{"time":"2026-07-01T14:00:00+02:00","zone":"Europe/Berlin","offset":"+02:00","abbreviation":"CEST","daylight_saving":true,"unix_seconds":1782907200,"weekday":"Wednesday"}}
convert_time {"time":"2026-03-01T20:30","from":"America/New_York","to":"Asia/Kolkata"} => {"from":{"time":"2026-03-01T20:30:00-05:00"},"to":{"time":"2026-03-02T07:00:00+05:30"}}
convert_time {"unix_seconds":-1,"to":"UTC"} => {"to":{"time":"1969-12-31T23:59:59+00:00","unix_seconds":-1}}
convert_time {"time":"2026-07-01T12:00:00+02:00","from":"Europe/Berlin","to":"UTC"} => {"to":{"time":"2026-07-01T10:00:00+00:00"}}
convert_time {"time":"2026-03-29T02:30","from":"Europe/Berlin","to":"UTC"} => {"from":{"time":"2026-03-29T03:30:00+02:00"},"note":"the clocks skip this local time; read as if they had not been set forward yet"}
convert_time {"time":"2026-10-25T02:30","from":"Europe/Berlin","to":"UTC"} => {"to":{"time":"2026-10-25T00:30:00+00:00"},"note":"the clocks show this local time twice; read as the first of the two"}
convert_time {"to":"UTC"} => arguments: exactly one of time and unix_seconds is needed.
convert_time {"time":"tomorrow\nnoon","to":"UTC"} => time: "tomorrow\nnoon" is neither a timestamp
convert_time {"time":"2026-07-01T12:00Z","from":"Europe/Berlin","to":"UTC"} => from: the zone is not at
convert_time {"time":"2026-07-01T12:00[Europe/Berlin]","to":"UTC"} => time: "2026-07-01T12:00[Europe
convert_time {"unix_seconds":-99999999999,"to":"UTC"} => arguments: the time lies outside the years
convert_time {"unix_seconds":9223372036854775807,"to":"UTC"} => arguments: the time lies outside
convert_time {"time":"2026-07-01T12:00Z"} => arguments: missing field `to`. Send the arguments
"#;

#[test]
fn the_time_is_now() {
    let answer = run("current_time", json!({})).unwrap();
    let shown: jiff::Timestamp = answer["time"].as_str().unwrap().parse().unwrap();
    assert_eq!(answer["unix_seconds"], shown.as_second());
    let age = crate::clock::now().as_second() - shown.as_second();
    assert!((0..60).contains(&age), "{answer}");
}

#[test]
fn versions_4_and_7_are_new_each_time_and_7_ascends() {
    for (version, number) in [(json!("v4"), '4'), (json!("v7"), '7'), (json!(4), '4')] {
        let mut all = Vec::new();
        for count in [1, 1000] {
            let answer = run("uuid", json!({"version": version, "count": count})).unwrap();
            let ids: Vec<String> = serde_json::from_value(answer["uuids"].clone()).unwrap();
            all.extend(ids);
        }
        assert!(
            all.iter()
                .all(|id| id.len() == 36 && id.chars().nth(14) == Some(number))
        );
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 1001);
        assert!(number == '4' || all.is_sorted(), "{all:?}");
    }
}

#[test]
fn the_input_of_a_hash_has_a_limit() {
    let hash = |argument: &str, bytes: usize| run("hash", json!({argument: "A".repeat(bytes)}));
    let max = HASH_INPUT_BYTES_MAX;
    assert_eq!(hash("text", max).unwrap()["bytes"], max);
    let refused = "text: longer than 1048576 bytes. Send a shorter one.";
    assert_eq!(hash("text", max + 1), Err(refused.to_owned()));
    assert_eq!(hash("base64", max).unwrap()["bytes"], max / 4 * 3);
    assert!(hash("base64", max + 4).is_err());
}

fn run(tool: &str, arguments: Value) -> Result<Value, String> {
    let arguments = serde_json::from_value(arguments).unwrap();
    let answer = tools::find(tool).unwrap().run(arguments);
    answer.map_err(|error| error.to_string())
}

type Client = RunningService<RoleClient, ()>;

/// Both ways to open a connection.
fn eras() -> [ClientLifecycleMode; 2] {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    [
        ClientLifecycleMode::Initialize,
        ClientLifecycleMode::Discover { preferred_versions },
    ]
}

/// Serves one connection for as long as `talk` uses it.
async fn connected(era: ClientLifecycleMode, talk: impl AsyncFnOnce(&Client)) {
    let (ours, theirs) = tokio::io::duplex(4096);
    let talking = async {
        let client = ().serve_with_lifecycle(ours, era).await.unwrap();
        talk(&client).await;
        client.cancel().await.unwrap();
    };
    let serving = serve(theirs, CancellationToken::new());
    bounded(Box::pin(async { tokio::join!(serving, talking) })).await;
}

/// The structured answer, checked against the output schema, or the text of the error.
async fn call(client: &Client, tool: &str, arguments: Value) -> Result<Value, String> {
    let arguments = arguments
        .as_object()
        .expect("arguments are an object")
        .clone();
    let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    let result = client.call_tool(request).await.unwrap();
    let text = result.content[0]
        .as_text()
        .expect("every result has text")
        .text
        .clone();
    if result.is_error == Some(true) {
        assert_eq!(result.structured_content, None);
        return Err(text);
    }
    let answer = result.structured_content.expect("answers are structured");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), answer);
    let schema = tools::find(tool)
        .unwrap()
        .tool
        .output_schema
        .clone()
        .unwrap();
    let schema = Value::Object(schema.as_ref().clone());
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(&answer), "{answer} is not of {schema}");
    Ok(answer)
}

/// Whether `whole` has everything of `part`: objects may have more members, all else is equal.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part))),
        (whole, part) => whole == part,
    }
}

/// Sends raw lines and returns the answer to each request, in the order of the requests.
async fn exchange(messages: &[Value]) -> Vec<Value> {
    let (ours, theirs) = tokio::io::duplex(1024);
    let talk = async {
        let mut lines = RawLines(BufReader::new(ours));
        let mut answers = Vec::new();
        for message in messages {
            lines.send(message).await;
            if message.get("id").is_some() {
                let answer = lines.receive().await;
                assert_eq!(answer["id"], message["id"], "{message}");
                answers.push(answer);
            }
        }
        answers
    };
    let serving = serve(theirs, CancellationToken::new());
    let ((), answers) = bounded(Box::pin(async { tokio::join!(serving, talk) })).await;
    answers
}

fn request(id: impl Into<Value>, method: &str, params: impl Into<Value>) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params.into()})
}

fn initialize(id: impl Into<Value>, version: &str) -> Value {
    let client = json!({"name": "t", "version": "1"});
    let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
    request(id, "initialize", params)
}

fn modern_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

async fn bounded<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("a test hangs")
}

struct RawLines(BufReader<DuplexStream>);

impl RawLines {
    async fn send(&mut self, message: &Value) {
        self.0
            .write_all(format!("{message}\n").as_bytes())
            .await
            .unwrap();
    }

    async fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(self.0.read_line(&mut line).await.unwrap(), 0, "closed");
        serde_json::from_str(&line).unwrap()
    }
}
