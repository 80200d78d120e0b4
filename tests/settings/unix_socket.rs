//! A Unix socket to listen on: where it is, and who may connect to it.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::Command,
};

use crate::{
    harness::{launch, parse, try_launch},
    support::{Gateway, soon, value},
};

/// The id of a user who is neither root nor the one of the tests.
const OTHER: u32 = 65_533;

struct Place {
    _directory: TempDir,
    path: PathBuf,
}

/// A path that everybody may reach.
fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open).unwrap();
    let path = directory.path().join("gateway.sock");
    Place {
        _directory: directory,
        path,
    }
}

/// State and probes on a socket, while clients come to an address.
pub(crate) async fn admin_listen() {
    let place = place();
    let admin = format!("admin_listen = \"unix:{}\"", place.path.display());
    let gateway = launch(&format!("listen = \"127.0.0.1:0\"\n{admin}")).await;
    assert!(healthz(&place.path).await.starts_with("HTTP/1.1 200"));
    let at_address = gateway.http().get("/healthz", &[]).await;
    assert_eq!(at_address.status(), 404);
}

async fn on(path: &Path, settings: &str) -> Gateway {
    launch(&format!("listen = \"unix:{}\"\n{settings}", path.display())).await
}

/// What the gateway answers at `path` to a request with this head.
async fn answer(path: &Path, head: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let length = body.len();
    let request = format!("{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    soon("an answer", read).await.unwrap();
    answer
}

async fn healthz(path: &Path) -> String {
    answer(path, "GET /healthz HTTP/1.1\r\nhost: localhost", "").await
}

/// Posts a message of a legacy client; the head and the message of the answer.
async fn post(path: &Path, headers: &str, message: &Value) -> (String, Value) {
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream{headers}"
    );
    let answer = answer(path, &head, &message.to_string()).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), value(body))
}

/// A client that speaks HTTP over the socket is served as over TCP. The file is there while the gateway is,
/// and takes the place of one that was left behind; a second gateway is told that it is taken.
pub(crate) async fn listen() {
    let place = place();
    let path = &place.path;
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let gateway = on(path, "[servers.toolbox]\ntransport = \"builtin\"\n").await;
    gateway.settled().await;
    assert_eq!(gateway.running.url, format!("unix:{}", path.display()));
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }});
    let (head, hello) = post(path, "", &hello).await;
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25", "{hello}");
    let session = head
        .lines()
        .find(|line| line.starts_with("mcp-session-id:"))
        .unwrap();
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "mcp_toolbox_uuid", "arguments": {},
    }});
    let (_, called) = post(path, &format!("\r\n{session}"), &call).await;
    assert!(called["result"]["content"].is_array(), "{called}");
    for (host, expect) in [
        ("127.0.0.1", "200"),
        ("localhost:80", "200"),
        ("evil.example", "403"),
    ] {
        let head = format!("GET /status HTTP/1.1\r\nhost: {host}");
        let status = answer(path, &head, "").await;
        assert_eq!(status.split(' ').nth(1), Some(expect), "{host}");
    }
    let taken = try_launch(&format!("listen = \"unix:{}\"", path.display())).await;
    let taken = taken.err().unwrap();
    assert!(
        taken.contains("another program is listening on it"),
        "{taken}"
    );
    gateway.stop().await;
    assert!(!path.exists(), "it is removed");
}

#[tokio::test]
pub(crate) async fn mode() {
    for (setting, expect) in [("", 0o600), ("socket.mode = \"0660\"", 0o660)] {
        let place = place();
        let gateway = on(&place.path, setting).await;
        let mode = fs::metadata(&place.path).unwrap().mode();
        assert_eq!(mode & 0o777, expect, "{setting}");
        gateway.stop().await;
    }
    for wrong in ["0400", "9", "7777", ""] {
        let mistakes = parse(&format!("socket.mode = \"{wrong}\"")).unwrap_err();
        assert!(mistakes.contains("`socket.mode`"), "{wrong}: {mistakes}");
    }
}

/// A user who is not named is turned away although the file lets everybody connect. Only root can try as
/// another.
#[tokio::test]
pub(crate) async fn uids() {
    let is_root = fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
    for (uids, is_let_in) in [
        (vec![], false),
        (vec![OTHER], true),
        (vec![OTHER + 1], false),
    ] {
        let place = place();
        let settings = format!("socket = {{ mode = \"0666\", uids = {uids:?} }}");
        let gateway = on(&place.path, &settings).await;
        let ours = healthz(&place.path).await;
        assert!(ours.starts_with("HTTP/1.1 200"), "we are: {ours}");
        if is_root {
            assert_eq!(is_served(&place.path).await, is_let_in, "{uids:?}");
        }
        gateway.stop().await;
    }
}

/// Whether another user is answered.
async fn is_served(path: &Path) -> bool {
    let ran = Command::new("setpriv")
        .arg(format!("--reuid={OTHER}"))
        .args(["--clear-groups", "curl", "-s", "--unix-socket"])
        .arg(path)
        .arg("http://localhost/healthz")
        .output();
    let ran = soon("curl ends", ran).await.unwrap();
    assert_ne!(ran.status.code(), Some(127), "{ran:?}");
    ran.stdout == b"ok\n"
}
