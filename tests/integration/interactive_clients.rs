//! Some servers list more for clients that they can ask something. Such clients see it, others do
//! not, and no process runs for it longer than a moment.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon, wire::Envelope,
};

/// A server that has a tool `ask` for clients that sample, whom it greets after `$2` seconds; every
/// start of it is a line in `starts`. It declares prompts, of which it knows nothing. With a file `dies` it
/// ends when such a client comes, or calls it.
const SERVER: &str = r#"
echo >> "$1/starts"
dies() { if [ -e "$1/dies" ]; then exit 1; fi; }
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
tools='{"name":"plain","inputSchema":{"type":"object"}}'
while read -r line; do
    id=${line#*'"id":'}
    id=${id%%,*}
    case $line in
    *'"method":"initialize"'*'"sampling"'* | *'"sampling"'*'"method":"initialize"'*)
        dies "$1"
        sleep "$2"
        tools="$tools,"'{"name":"ask","inputSchema":{"type":"object"}}' ;;
    esac
    case $line in
    *'"method":"initialize"'*)
        say '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}}}' ;;
    *'"method":"tools/list"'*)
        say '"result":{"tools":['"$tools"']}' ;;
    *'"method":"tools/call"'*)
        dies "$1"
        case $tools in
        *'"ask"'*) say '"result":{"content":[]}' ;;
        *) say '"error":{"code":-32602,"message":"Unknown tool"}' ;;
        esac ;;
    *'"id":'*)
        say '"error":{"code":-32601,"message":"Method not found"}' ;;
    esac
done
echo >> "$1/ends"
"#;

const SAMPLING: &str = r#"{"sampling":{}}"#;

async fn gateway() -> (Gateway, TempDir) {
    start(TestGateway::new(), 0).await
}

/// A gateway in front of a server that takes `seconds` to greet who samples.
async fn start(gateway: TestGateway, seconds: u32) -> (Gateway, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().display();
    fs::write(place.path().join("server.sh"), SERVER).unwrap();
    let section = format!("command = 'sh'\nargs = ['{path}/server.sh', '{path}', '{seconds}']");
    let gateway = gateway.section("x", &section).start().await;
    (gateway, place)
}

fn lines(place: &Path, file: &str) -> usize {
    fs::read_to_string(place.join(file)).map_or(0, |text| text.lines().count())
}

async fn names(client: &Client) -> Vec<String> {
    let tools = client.list("tools").await;
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

/// Waits until as many of its processes as `ends` have ended.
async fn ended(place: &Path, ends: usize) {
    let look = async {
        while lines(place, "ends") < ends {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    soon("they end", look).await;
}

#[tokio::test]
async fn what_is_listed_for_able_clients() {
    let (gateway, place) = gateway().await;
    let plain = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let modern = gateway.client(Front::Modern, "/mcp", SAMPLING).await;
    for client in [&plain, &modern] {
        assert_eq!(names(client).await, ["mcp_x_plain"]);
    }
    // The process for able clients is started when the first of them comes.
    assert_eq!(lines(place.path(), "starts"), 1);

    let able = gateway.client(Front::Streamable, "/mcp", SAMPLING).await;
    // Not every client asks again when lists change: the first list has everything.
    assert_eq!(names(&able).await, ["mcp_x_ask", "mcp_x_plain"]);
    ended(place.path(), 1).await;
    assert_eq!(lines(place.path(), "starts"), 2);

    able.ask("1", "tools/call", r#""name":"mcp_x_ask""#).await;
    assert!(able.answer("1").await.result.is_some());
    // What it declares is what its own process was told.
    let rooted = gateway
        .client(Front::Streamable, "/mcp", r#"{"roots":{}}"#)
        .await;
    assert_eq!(names(&rooted).await, ["mcp_x_ask", "mcp_x_plain"]);
    rooted.ask("1", "tools/call", r#""name":"mcp_x_ask""#).await;
    let refused = rooted.answer("1").await.failure();
    assert_eq!(refused["message"], "Unknown tool");
    assert_eq!(lines(place.path(), "starts"), 4);

    for client in [&plain, &modern] {
        assert_eq!(names(client).await, ["mcp_x_plain"]);
        client.ask("1", "tools/call", r#""name":"mcp_x_ask""#).await;
        client.answer("1").await.failure();
        client
            .ask("2", "tools/call", r#""name":"mcp_x_plain""#)
            .await;
        client.answer("2").await;
    }
    // Clients without capabilities share the connection of the catalog, as ever.
    assert_eq!(lines(place.path(), "starts"), 4);
    gateway.stop().await;
}

/// Where one replica has no lists for such clients, the next that is listed in its place is asked.
#[tokio::test]
async fn a_replica_that_is_gone_speaks_for_no_other() {
    let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let replicas = places.each_ref().map(|place| {
        let path = place.path().display();
        fs::write(place.path().join("server.sh"), SERVER).unwrap();
        format!("{{ command = 'sh', args = ['{path}/server.sh', '{path}', '0'] }}")
    });
    fs::write(places[0].path().join("dies"), "").unwrap();
    let section = format!("balance = 'failover'\nreplicas = [{}]", replicas.join(", "));
    let gateway = TestGateway::new().section("x", &section).start().await;
    let is_up = |status: &Value| {
        let replicas = status["replicas"].as_array().unwrap();
        replicas.iter().all(|one| one["state"] == "connected")
    };
    gateway.status_until("x", is_up).await;

    let able = gateway.client(Front::Streamable, "/mcp", SAMPLING).await;
    able.listen().await;
    assert_eq!(names(&able).await, ["mcp_x_plain"]);
    let plain = gateway.client(Front::Streamable, "/mcp", "{}").await;
    plain
        .ask("1", "tools/call", r#""name":"mcp_x_plain""#)
        .await;
    plain.answer("1").await.failure();
    able.must("notifications/tools/list_changed").await;
    assert_eq!(names(&able).await, ["mcp_x_ask", "mcp_x_plain"]);
    gateway.stop().await;
}

/// The first list for such clients waits for what is there beyond the rest, and not for ever.
#[tokio::test]
async fn a_server_that_is_slow_for_able_clients() {
    let gateway = TestGateway::new().setting("first_list_wait = \"300ms\"");
    let (gateway, _place) = start(gateway, 2).await;
    let able = gateway.client(Front::Streamable, "/mcp", SAMPLING).await;
    able.listen().await;
    assert_eq!(names(&able).await, ["mcp_x_plain"]);
    able.must("notifications/tools/list_changed").await;
    assert_eq!(names(&able).await, ["mcp_x_ask", "mcp_x_plain"]);
    gateway.stop().await;
}

/// A server that asks who samples all after `$1`, and lists its tool once it has the answers, which are
/// lines in `answers`. Every start of it is a line in `starts`.
const CURIOUS: &str = r#"
echo >> "$1/starts"
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
list() { say '"result":{"tools":[{"name":"plain","inputSchema":{"type":"object"}}]}'; }
open=0
listing=
while read -r line; do
    id=${line#*'"id":'}
    id=${id%%,*}
    case $line in
    *'"method":"initialize"'*)
        case $line in *'"sampling"'*) open=$(($# - 1)) ;; esac
        say '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}' ;;
    *'"method":"notifications/initialized"'*)
        if [ "$open" -gt 0 ]; then
            place=$1
            shift
            for method; do
                printf '{"jsonrpc":"2.0","id":"%s","method":"%s"}\n' "$method" "$method"
            done
            set -- "$place"
        fi ;;
    *'"method":"tools/list"'*)
        if [ "$open" -gt 0 ]; then listing=$id; else list; fi ;;
    *'"method":"tools/call"'*)
        say '"result":{"content":[]}' ;;
    *'"method":"ping"'*)
        say '"result":{}' ;;
    *'"method"'*) ;;
    *)
        printf '%s\n' "$line" >> "$1/answers"
        open=$((open - 1))
        if [ "$open" = 0 ] && [ -n "$listing" ]; then
            id=$listing
            list
        fi ;;
    esac
done
"#;

/// What the server hears where it is listed for such clients, by the id of its question; with the number
/// of processes once two clients have called it, neither of which it asks.
async fn heard(keys: &str) -> (Vec<Envelope>, usize) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().display();
    fs::write(place.path().join("server.sh"), CURIOUS).unwrap();
    let asks = "'roots/list', 'elicitation/create', 'sampling/createMessage'";
    let section = format!("command = 'sh'\nargs = ['{path}/server.sh', '{path}', {asks}]\n{keys}");
    let gateway = TestGateway::new().section("x", &section).start().await;
    for _ in 0..2 {
        let client = gateway
            .client(Front::Streamable, "/mcp", r#"{"roots":{}}"#)
            .await;
        assert_eq!(names(&client).await, ["mcp_x_plain"]);
        client
            .ask("1", "tools/call", r#""name":"mcp_x_plain""#)
            .await;
        client.answer("1").await.value();
    }
    gateway.stop().await;
    let answers = fs::read_to_string(place.path().join("answers")).unwrap();
    let mut answers: Vec<_> = answers.lines().map(Envelope::of).collect();
    answers.sort_by(|one, other| one.id.cmp(&other.id));
    (answers, lines(place.path(), "starts"))
}

/// There nobody can answer, which is no mistake of the config: roots are those of the config or none,
/// and other questions are refused in true words. A server that asks for roots is known for it, so that
/// each session has a process of its own.
#[tokio::test]
async fn a_server_that_asks_while_it_is_listed_for_able_clients() {
    let own = "roots = [{ uri = 'file:///srv', name = 'srv' }]";
    let configured = json!([{ "uri": "file:///srv", "name": "srv" }]);
    // Of the catalog, for able clients, and of the clients.
    for (keys, roots, starts) in [("", json!([]), 2 + 2), (own, configured, 2 + 1)] {
        let (answers, started) = heard(keys).await;
        let [elicitation, listed, sampling] = answers.as_slice() else {
            panic!("{answers:?}");
        };
        assert_eq!(listed.value()["roots"], roots);
        for refused in [elicitation, sampling] {
            let failure = refused.failure();
            let message = failure["message"].as_str().unwrap();
            assert!(message.contains("only used for listing"), "{message}");
            assert!(!message.contains("isolation"), "{message}");
        }
        assert_eq!(started, starts, "{keys}");
    }
}

/// What a client says of itself reaches a legacy server as it was written, odd as it may be.
#[tokio::test]
async fn odd_capabilities_are_as_good_as_others() {
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    for odd in ["1e999", r#""\ud800""#, &deep] {
        let own = format!(r#"{{"elicitation":{{}},"experimental":{{"x":{{"y":{odd}}}}}}}"#);
        let backend = Backend::start(Transport::Http, Era::Legacy).await;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = Arc::clone(&heard);
        backend.on_request(move |request| {
            if request.method() == "initialize" {
                let said = request.param(&["capabilities"]);
                hear.lock().unwrap().extend(said);
            }
            (request.method() == "tools/call").then(|| Auto::Result("{}".to_owned()))
        });
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", &own).await;
        client
            .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        assert!(client.answer("1").await.result.is_some());
        assert!(heard.lock().unwrap().contains(&own), "{heard:?}");
        gateway.stop().await;
    }
}
