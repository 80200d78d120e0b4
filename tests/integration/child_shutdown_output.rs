//! What a program writes while it stops is read, so that it can end in its own way.

use std::{fs, path::Path};

use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::{Client, Front, Gateway, TestGateway, soon};

/// A server that writes `$2` lines when its input has ended. Each start of it is a line in `starts`, and
/// each end, for which its last words have to be taken, one in `ends`.
const SERVER: &str = r#"
echo >> "$1/starts"
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
while read -r line; do
    id=${line#*'"id":'}
    id=${id%%,*}
    case $line in
    *'"method":"initialize"'*)
        say '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}' ;;
    *'"method":"tools/list"'*)
        say '"result":{"tools":[{"name":"plain","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*)
        say '"result":{"content":[]}' ;;
    *'"id":'*)
        say '"error":{"code":-32601,"message":"Method not found"}' ;;
    esac
done
# Our end of its output would be closed by then, if ever.
sleep 0.1
yes '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"bye"}}' |
    head -n "$2" || exit
echo >> "$1/ends"
"#;

const LISTED: &str = "mcp_x_plain";

async fn start(keys: &str, lines: u32) -> (Gateway, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().display();
    fs::write(place.path().join("server.sh"), SERVER).unwrap();
    let section =
        format!("command = 'sh'\nargs = ['{path}/server.sh', '{path}', '{lines}']\n{keys}");
    let gateway = TestGateway::new().section("x", &section).start().await;
    (gateway, place)
}

fn lines(place: &Path, file: &str) -> usize {
    fs::read_to_string(place.join(file)).map_or(0, |text| text.lines().count())
}

/// Waits until as many of its processes as `ends` have ended in their own way.
async fn ended(place: &TempDir, ends: usize) {
    let look = async {
        while lines(place.path(), "ends") < ends {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    soon("they end in their own way", look).await;
}

async fn able(gateway: &Gateway) -> Client {
    gateway
        .client(Front::Streamable, "/mcp", r#"{"sampling":{}}"#)
        .await
}

#[tokio::test]
async fn at_the_end_of_the_gateway() {
    let (gateway, place) = start("", 1).await;
    gateway.stop().await;
    assert_eq!(lines(place.path(), "ends"), 1);
}

#[tokio::test]
async fn when_the_config_changes() {
    let (gateway, place) = start("", 1).await;
    let mut config = gateway.config.clone();
    config.servers.clear();
    gateway.running.core().apply_config(&config).unwrap();
    ended(&place, 1).await;
    gateway.stop().await;
}

#[tokio::test]
async fn when_it_falls_asleep() {
    let (gateway, place) = start("idle_timeout = '50ms'", 1).await;
    ended(&place, 1).await;
    gateway.stop().await;
}

/// The process that lists what is there for such clients, and then the one of a session.
#[tokio::test]
async fn when_a_connection_beside_the_catalogs_ends() {
    let (gateway, place) = start("isolation = 'session'", 1).await;
    let client = able(&gateway).await;
    assert_eq!(client.list("tools").await[0]["name"], LISTED);
    ended(&place, 1).await;
    client
        .ask("1", "tools/call", &format!(r#""name":"{LISTED}""#))
        .await;
    client.answer("1").await.value();
    client.end().await;
    ended(&place, 2).await;
    gateway.stop().await;
    assert_eq!(lines(place.path(), "starts"), 3);
    assert_eq!(lines(place.path(), "ends"), 3);
}

/// One that writes more than anybody has to say holds up no stop.
#[tokio::test]
async fn a_program_that_never_stops_writing() {
    let (gateway, place) = start("", u32::MAX).await;
    let begun = Instant::now();
    gateway.stop().await;
    assert!(begun.elapsed().as_secs() < 4, "{:?}", begun.elapsed());
    assert_eq!(lines(place.path(), "starts"), 1);
}
