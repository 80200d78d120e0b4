//! Where the gateway listens, and to whom.

use std::os::unix::fs::PermissionsExt as _;
use std::{net::SocketAddr, path::Path, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Method, Request, Response, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::CertificateDer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    harness::{http_backend, launch, try_launch},
    support::{
        Gateway,
        http::{Http, PING},
        soon,
        wire::request,
    },
    unix_socket,
};

#[tokio::test]
pub(crate) async fn listen() {
    for host in ["127.0.0.1", "127.0.0.2"] {
        let gateway = launch(&format!("listen = \"{host}:0\"")).await;
        assert_eq!(gateway.addr().ip().to_string(), host);
        assert_eq!(gateway.http().get("/healthz", &[]).await.status(), 200);
    }
    unix_socket::listen().await;
}

/// Streams keep all connections of clients at work: without a listener of its own no probe is answered.
#[tokio::test]
pub(crate) async fn admin_listen() {
    let full = "limits.connections = 2\nlisten = \"127.0.0.1:0\"\n";
    let state = ["/healthz", "/readyz", "/metrics", "/status"];
    for (own, expect) in [("", 200), ("admin_listen = \"127.0.0.1:0\"", 404)] {
        let gateway = launch(&format!("{full}{own}")).await;
        let http = gateway.http();
        for path in state {
            assert_eq!(http.get(path, &[]).await.status(), expect, "{path}");
        }
        let url = gateway.running.admin_url.clone();
        assert_eq!(url.is_some(), expect == 404);
        let Some(url) = url else { continue };
        let accept = [("accept", "text/event-stream")];
        let streams = [
            http.get("/sse", &accept).await,
            http.get("/sse", &accept).await,
        ];
        assert!(streams.iter().all(|stream| stream.status() == 200));
        let next = Http::new(gateway.addr());
        let waits = timeout(Duration::from_secs(1), next.get("/sse", &accept)).await;
        assert!(waits.is_err(), "there is no connection left");
        let admin = Http::new(url.strip_prefix("http://").unwrap().parse().unwrap());
        for path in state {
            assert_eq!(admin.get(path, &[]).await.status(), 200, "{path}");
            let strange = admin.get(path, &[("host", "other.example")]).await;
            let probes = path.ends_with('z');
            assert_eq!(strange.status(), if probes { 200 } else { 403 }, "{path}");
        }
        assert_eq!(admin.post("/mcp", PING).await.status(), 404);
        drop(streams);
        assert_eq!(next.post("/mcp", PING).await.status(), 200);
    }
    unix_socket::admin_listen().await;
}

/// As many monitors as there may be: at the limit, past it, and when one has left.
#[tokio::test]
async fn admin_connections_are_limited() {
    let gateway = launch("listen = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"").await;
    let url = gateway.running.admin_url.clone().unwrap();
    let addr: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
    // A connection that has just been used is not closed for another.
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        probe(&mut stream).await;
        open.push(stream);
    }
    let mut next = TcpStream::connect(addr).await.unwrap();
    let waits = timeout(Duration::from_millis(300), probe(&mut next)).await;
    assert!(waits.is_err(), "there are 64");
    assert_eq!(gateway.http().post("/mcp", PING).await.status(), 200);
    drop(open.pop());
    let mut byte = [0];
    let answered = next.read_exact(&mut byte);
    soon("the next is answered", answered).await.unwrap();
}

async fn probe(stream: &mut TcpStream) {
    let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = [0; 512];
    let read = stream.read(&mut answer).await.unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "{read}");
}

#[tokio::test]
pub(crate) async fn port_search() {
    let mut taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    while taken.local_addr().unwrap().port() > u16::MAX - 100 {
        taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    }
    let addr = taken.local_addr().unwrap();
    let with =
        |search: u16| try_launch_owned(format!("listen = \"{addr}\"\nport_search = {search}"));
    let refused = with(0).await.err().unwrap();
    assert!(refused.contains("port_search"), "{refused}");
    let found = with(100).await.unwrap().addr().port();
    assert!((addr.port() + 1..=addr.port() + 100).contains(&found));
}

async fn try_launch_owned(text: String) -> Result<Gateway, String> {
    try_launch(&text).await
}

#[tokio::test]
pub(crate) async fn allowed_hosts() {
    let header = ("host", "gateway.example.com");
    check_header("allowed_hosts = []", header, 403).await;
    check_header("allowed_hosts = [\"gateway.example.com\"]", header, 200).await;
}

#[tokio::test]
pub(crate) async fn public_url() {
    let header = ("host", "gateway.example.com");
    check_header("", header, 403).await;
    let setting = "public_url = \"https://gateway.example.com\"";
    check_header(setting, header, 200).await;
    let origin = ("origin", "https://gateway.example.com");
    check_header("", origin, 403).await;
    check_header(setting, origin, 200).await;
}

#[tokio::test]
pub(crate) async fn allowed_origins() {
    let header = ("origin", "https://app.example.com");
    check_header("allowed_origins = []", header, 403).await;
    check_header(
        "allowed_origins = [\"https://app.example.com\"]",
        header,
        200,
    )
    .await;
    check_header("allowed_origins = [\"*\"]", header, 200).await;
}

async fn check_header(setting: &str, header: (&str, &str), expect: u16) {
    let gateway = launch(&format!("listen = \"127.0.0.1:0\"\n{setting}")).await;
    let answer = gateway.http().get("/status", &[header]).await;
    assert_eq!(answer.status(), expect, "{setting}");
    let probed = gateway.http().get("/healthz", &[header]).await;
    assert_eq!(probed.status(), 200, "{setting}");
}

/// Files of a certificate for 127.0.0.1 and its key.
pub(crate) fn write_certificate(directory: &Path, name: &str) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(directory.join(format!("{name}.pem")), made.cert.pem()).unwrap();
    let key = made.signing_key.serialize_pem();
    let path = directory.join(format!("{name}.key"));
    std::fs::write(&path, key).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    made.cert.der().clone()
}

async fn launch_tls(
    directory: &Path,
    cert: &str,
    key: &str,
    more: &str,
) -> Result<Gateway, String> {
    let path = |name: String| directory.join(name).display().to_string();
    let (cert, key) = (path(format!("{cert}.pem")), path(format!("{key}.key")));
    let tls = format!("tls = {{ cert = \"{cert}\", key = \"{key}\" }}");
    try_launch(&format!("listen = \"127.0.0.1:0\"\n{tls}\n{more}")).await
}

/// The versions of HTTP that a client offers over TLS.
#[derive(Clone, Copy)]
pub(crate) enum Offer {
    Both,
    Http1,
    Http2,
}

impl Offer {
    fn one(is_http2: bool) -> Self {
        if is_http2 { Self::Http2 } else { Self::Http1 }
    }
}

/// Connections of a client that trusts `root` alone.
pub(crate) fn connector(
    root: &CertificateDer<'static>,
    offer: Offer,
) -> HttpsConnector<HttpConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http();
    match offer {
        Offer::Both => connector.enable_all_versions().build(),
        Offer::Http1 => connector.enable_http1().build(),
        Offer::Http2 => connector.enable_http2().build(),
    }
}

/// The version of HTTP that was agreed on, by a client that trusts `root` alone.
async fn https(
    addr: SocketAddr,
    root: &CertificateDer<'static>,
    is_http2: bool,
) -> Option<Version> {
    let client = Client::builder(TokioExecutor::new()).build(connector(root, Offer::one(is_http2)));
    let request = Request::get(format!("https://{addr}/healthz"));
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = soon("an answer over TLS", client.request(request)).await;
    let response = response.ok()?;
    assert_eq!(response.status(), 200);
    Some(response.version())
}

#[tokio::test]
pub(crate) async fn tls_cert() {
    let place = tempfile::tempdir().unwrap();
    let one = write_certificate(place.path(), "one");
    write_certificate(place.path(), "two");
    let gateway = launch_tls(place.path(), "one", "one", "").await.unwrap();
    assert!(gateway.running.url.starts_with("https://"));
    for (is_http2, expect) in [(false, Version::HTTP_11), (true, Version::HTTP_2)] {
        let found = https(gateway.addr(), &one, is_http2).await;
        assert_eq!(found, Some(expect));
    }
    let other = launch_tls(place.path(), "two", "two", "").await.unwrap();
    assert_eq!(https(other.addr(), &one, false).await, None, "not trusted");
}

#[tokio::test]
pub(crate) async fn tls_key() {
    let place = tempfile::tempdir().unwrap();
    let one = write_certificate(place.path(), "one");
    write_certificate(place.path(), "two");
    let refused = launch_tls(place.path(), "one", "two", "")
        .await
        .err()
        .unwrap();
    assert!(refused.starts_with("tls: "), "{refused}");
    let gateway = launch_tls(place.path(), "one", "one", "").await.unwrap();
    assert!(https(gateway.addr(), &one, false).await.is_some());
}

/// A file that cannot be used is named, with what it lacks.
#[tokio::test]
async fn what_is_wrong_with_a_file_of_tls_is_said() {
    let place = tempfile::tempdir().unwrap();
    write_certificate(place.path(), "one");
    write_certificate(place.path(), "two");
    let put = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    put("garbage.pem", "garbage\n");
    put("garbage.key", "garbage\n");
    let whole = std::fs::read_to_string(place.path().join("one.pem")).unwrap();
    put("half.pem", &whole[..whole.len() / 2]);
    put(
        "locked.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    for (cert, key, expect) in [
        (
            "garbage",
            "one",
            "garbage.pem: the file contains no PEM certificate",
        ),
        (
            "one",
            "garbage",
            "garbage.key: the file contains no PEM private key",
        ),
        (
            "half",
            "one",
            "half.pem: truncated PEM: a section does not end with `-----END CERTIFICATE-----`",
        ),
        ("one", "locked", "locked.key: the private key is encrypted"),
        (
            "one",
            "two",
            "two.key: it does not match the certificate in ",
        ),
    ] {
        let refused = launch_tls(place.path(), cert, key, "").await;
        let refused = refused.err().unwrap();
        assert!(refused.contains(expect), "{refused}");
    }
}

/// The files are read again with the config: a certificate that was renewed is shown, one that
/// does not fit its key is not.
#[tokio::test]
async fn a_renewed_certificate_is_shown() {
    let place = tempfile::tempdir().unwrap();
    let one = write_certificate(place.path(), "one");
    let gateway = launch_tls(place.path(), "one", "one", "").await.unwrap();
    assert!(https(gateway.addr(), &one, false).await.is_some());
    let old_key = std::fs::read(place.path().join("one.key")).unwrap();
    let new = write_certificate(place.path(), "one");
    let new_key = std::fs::read(place.path().join("one.key")).unwrap();
    std::fs::write(place.path().join("one.key"), &old_key).unwrap();
    let core = gateway.running.core();
    core.apply_config(&gateway.config).unwrap_err();
    assert!(https(gateway.addr(), &one, false).await.is_some());
    std::fs::write(place.path().join("one.key"), new_key).unwrap();
    let reloaded = core.apply_config(&gateway.config).unwrap();
    assert_eq!(reloaded.others, ["certificate reloaded: tls"]);
    assert!(https(gateway.addr(), &new, false).await.is_some());
    assert_eq!(https(gateway.addr(), &one, false).await, None);
    let again = core.apply_config(&gateway.config).unwrap();
    assert!(again.others.is_empty(), "{again:?}");
}

/// Answers that leave together, since many are under way, come whole and each to its question, whatever
/// is spoken: connections of their own, or one; inside TLS and in the clear.
#[tokio::test]
async fn many_answers_at_once() {
    const CALLS: usize = 24;
    let place = tempfile::tempdir().unwrap();
    let root = write_certificate(place.path(), "one");
    let backend = http_backend().await;
    let server = format!("[servers.one]\n{}", backend.config());
    let secret = launch_tls(place.path(), "one", "one", &server).await;
    let secret = secret.unwrap();
    let open = launch(&format!("listen = \"127.0.0.1:0\"\n{server}")).await;
    for (gateway, is_http2) in [
        (&secret, false),
        (&secret, true),
        (&open, false),
        (&open, true),
    ] {
        gateway.settled().await;
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
            .http2_only(is_http2)
            .build(connector(&root, Offer::one(is_http2)));
        let url = format!("{}/mcp", gateway.running.url);
        let ask = async |number: usize| {
            let params = format!(r#"{{"name":"mcp_one_echo","arguments":{{"number":{number}}}}}"#);
            let body = request(&number.to_string(), "tools/call", &params);
            let asked = Request::post(&url)
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream")
                .body(Full::from(body));
            let answer = client.request(asked.unwrap()).await.unwrap();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            String::from_utf8(body.into()).unwrap()
        };
        let answers = soon("answers", join_all((0..CALLS).map(ask)));
        let serve = async {
            let mut asked = Vec::new();
            for _ in 0..CALLS {
                asked.push(backend.asked("tools/call").await);
            }
            for asked in asked {
                let number = asked.envelope.param(&["arguments", "number"]);
                asked.answer(&padded(&number.unwrap())).await;
            }
        };
        let (answers, ()) = tokio::join!(answers, serve);
        for (number, answer) in answers.iter().enumerate() {
            let result = padded(&number.to_string());
            assert!(answer.contains(&result), "{number}: {answer:.200}");
        }
    }
}

/// The result of the call with this number, each of another size.
fn padded(number: &str) -> String {
    let padding = "x".repeat(1000 * number.parse::<usize>().unwrap());
    format!(r#"{{"content":[],"structuredContent":{{"number":{number},"padding":"{padding}"}}}}"#)
}

/// HTTP/2 carries a session with its stream, its lists and its calls, all on one connection: without `tls`
/// to those who know that it does, with it to those who agree on it in the handshake.
#[tokio::test]
async fn a_session_over_http2() {
    const TOOLBOX: &str = "[servers.tools]\ntransport = \"builtin\"";
    let place = tempfile::tempdir().unwrap();
    let root = write_certificate(place.path(), "one");
    let secret = launch_tls(place.path(), "one", "one", TOOLBOX).await;
    let secret = secret.unwrap();
    let open = launch(&format!("listen = \"127.0.0.1:0\"\n{TOOLBOX}")).await;
    for gateway in [&open, &secret] {
        gateway.settled().await;
        check_session(Http2::new(gateway, &root)).await;
    }
}

async fn check_session(mut client: Http2) {
    let hello = client
        .send(Method::POST, r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#)
        .await;
    assert_eq!(
        (hello.version(), hello.status().as_u16()),
        (Version::HTTP_2, 200)
    );
    let session = hello.headers()["mcp-session-id"].to_str().unwrap();
    client.session = Some(session.to_owned());
    let begun = client.send(
        Method::POST,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    );
    assert_eq!(begun.await.status(), 202);
    let mut stream = client.send(Method::GET, "").await;
    assert_eq!(stream.version(), Version::HTTP_2);
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let call = |id: u8, text: &str| {
        let params = format!(r#"{{"name":"mcp_tools_hash","arguments":{{"text":"{text}"}}}}"#);
        request(&id.to_string(), "tools/call", &params)
    };
    let (one, other) = (call(1, "one"), call(2, "other"));
    let list = request("3", "tools/list", "{}");
    let answers = tokio::join!(
        client.send(Method::POST, &one),
        client.send(Method::POST, &other),
        client.send(Method::POST, &list),
    );
    for (id, answer, expect) in [
        (1, answers.0, "\"content\""),
        (2, answers.1, "\"content\""),
        (3, answers.2, "\"mcp_tools_hash\""),
    ] {
        assert_eq!(answer.version(), Version::HTTP_2);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains(&format!("\"id\":{id},")), "{text}");
        assert!(
            text.contains("\"result\"") && text.contains(expect),
            "{text}"
        );
    }
    assert_eq!(client.send(Method::DELETE, "").await.status(), 200);
    let ended = async { while stream.frame().await.is_some() {} };
    soon("the end of the stream", ended).await;
    assert_eq!(client.send(Method::POST, &one).await.status(), 404);
}

/// A client that speaks HTTP/2 on one connection: in the clear it knows that the gateway does, inside
/// TLS it offers both versions and takes the one that is agreed on.
struct Http2 {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: String,
    session: Option<String>,
}

impl Http2 {
    fn new(gateway: &Gateway, root: &CertificateDer<'static>) -> Self {
        let knows = gateway.running.url.starts_with("http:");
        Self {
            client: Client::builder(TokioExecutor::new())
                .http2_only(knows)
                .build(connector(root, Offer::Both)),
            url: format!("{}/mcp", gateway.running.url),
            session: None,
        }
    }

    async fn send(&self, method: Method, body: &str) -> Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(&self.url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        let request = request.body(Full::from(body.to_owned())).unwrap();
        soon("an answer", self.client.request(request))
            .await
            .unwrap()
    }
}
