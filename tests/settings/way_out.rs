//! What stands between the gateway and a server behind a URL: proxies and certificates.

use std::{
    fs,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use rustix::process::Signal;
use rustls::{
    RootCertStore, ServerConfig, crypto::ring, pki_types::PrivateKeyDer,
    server::WebPkiClientVerifier,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::{
    binary::{Place, finish},
    harness::{answer_with, call, of_file, parse},
    support::{
        Backend, Era, Gateway, TestGateway,
        http::Http,
        scripted::{Received, Scripted},
        soon,
        way::inside_tls,
        wire::spawn,
    },
    tls_roots::{Authority, SERVERS, addr},
    transports::PROGRAM,
};

/// A proxy that opens tunnels to one address, whatever it is asked for; and what it was asked.
async fn tunnels(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&asked);
    spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let heard = Arc::clone(&heard);
            spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if from.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                heard.lock().unwrap().push(String::from_utf8(head).unwrap());
                let said = b"HTTP/1.1 200 Connection established\r\n\r\n";
                from.write_all(said).await.unwrap();
                let mut to = TcpStream::connect(to).await.unwrap();
                drop(copy_bidirectional(&mut from, &mut to).await);
            });
        }
    });
    (at, asked)
}

/// The server of `keys`, and a gateway before it.
async fn one(keys: &str) -> Gateway {
    TestGateway::new().section("one", keys).start().await
}

async fn state(gateway: &Gateway) -> (String, String) {
    let status = gateway.status("one").await;
    let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

/// A proxy gets requests for `http:` with the whole URL, and tunnels for all else; its password goes to it
/// alone.
#[tokio::test]
pub(crate) async fn proxy() {
    let proxy = Scripted::start(|_| None).await;
    let at = proxy.address;
    for transport in ["http", "sse"] {
        let keys = format!(
            "url = \"http://mcp.invalid:81/mcp?a=b\"\ntransport = \"{transport}\"\n\
             proxy = \"http://ann:hunter2@{at}\""
        );
        let gateway = one(&keys).await;
        let connects = state(&gateway).await.0 == "connected";
        assert_eq!(connects, transport == "http");
        gateway.stop().await;
        let received = proxy.received();
        let last: &Received = received.last().unwrap();
        assert_eq!(last.target, "http://mcp.invalid:81/mcp?a=b", "{transport}");
        assert_eq!(last.header("host"), Some("mcp.invalid:81"));
        let authorization = last.header("proxy-authorization");
        assert_eq!(authorization, Some("Basic YW5uOmh1bnRlcjI="));
    }
    let authority = Authority::new("ours");
    let place = tempfile::tempdir().unwrap();
    let ca = place.path().join("ca.pem");
    fs::write(&ca, &authority.pem).unwrap();
    for (name, transport, scheme, path) in SERVERS {
        let backend = Backend::start(transport, Era::Legacy).await;
        answer_with(&backend, name);
        let to = inside_tls(backend.address(), authority.config()).await;
        let (at, asked) = tunnels(to).await;
        let keys = format!(
            "url = \"{scheme}://127.0.0.1:9/{path}\"\ntransport = \"{name}\"\n\
             proxy = \"ann:hunter2@{at}\"\ntls = {{ ca = \"{}\" }}",
            ca.display()
        );
        let gateway = one(&keys).await;
        let called = call(&gateway, "mcp_one_echo").await;
        assert_eq!(called["name"], name);
        gateway.stop().await;
        let asked = asked.lock().unwrap();
        assert!(
            asked[0].starts_with("CONNECT 127.0.0.1:9 HTTP/1.1\r\n"),
            "{asked:?}"
        );
        assert!(asked[0].contains("Basic YW5uOmh1bnRlcjI="), "{asked:?}");
    }
    let gateway = one("url = \"https://127.0.0.1:9/mcp\"\nproxy = \"http://127.0.0.1:1\"").await;
    let (_, reason) = state(&gateway).await;
    assert!(reason.contains("proxy `127.0.0.1:1`"), "{reason}");
    gateway.stop().await;
    for wrong in [
        "socks5://127.0.0.1:1",
        "https://127.0.0.1:1",
        "ftp://x",
        "//",
    ] {
        let keys = format!("[servers.one]\nurl = \"http://a.example/\"\nproxy = \"{wrong}\"");
        let refused = parse(&keys).unwrap_err();
        assert!(
            refused.contains("not the URL of an HTTP proxy"),
            "{refused}"
        );
    }
}

/// Without `proxy` the environment decides, as it does for other programs; a proxy on another machine is no
/// way to this one.
#[tokio::test]
async fn proxies_of_the_environment() {
    let proxy = Scripted::start(|_| None).await;
    let direct = Scripted::start(|_| None).await;
    let here = format!("http://{}", proxy.address);
    let nowhere = "http://proxy.invalid:1";
    let elsewhere = "http://mcp.invalid/mcp".to_owned();
    let local = format!("http://{}/mcp", direct.address);
    for (variables, key, url, is_proxied) in [
        (vec![("HTTP_PROXY", &*here)], "", &elsewhere, true),
        (vec![("http_proxy", &*here)], "", &elsewhere, true),
        (vec![("ALL_PROXY", &*here)], "", &elsewhere, true),
        (vec![("HTTP_PROXY", &*here)], "", &local, true),
        (vec![("HTTP_PROXY", nowhere)], "", &local, false),
        (vec![("HTTPS_PROXY", &*here)], "", &local, false),
        (
            vec![("HTTP_PROXY", &*here)],
            "proxy = \"off\"",
            &local,
            false,
        ),
        (
            vec![("HTTP_PROXY", &*here), ("NO_PROXY", "127.0.0.0/8")],
            "",
            &local,
            false,
        ),
        (
            vec![("HTTP_PROXY", &*here), ("no_proxy", "*")],
            "",
            &local,
            false,
        ),
    ] {
        let (before, straight) = (proxy.received().len(), direct.received().len());
        let place = Place::new(&format!("[servers.one]\nurl = \"{url}\"\n{key}\n"));
        let serving = place.serve_with(&variables).await;
        let http = Http::new(addr(&serving));
        let ready = async {
            while http.get("/readyz", &[]).await.status() != 200 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        soon("the gateway is ready", ready).await;
        serving.end(Signal::TERM).await;
        let passed = proxy.received().len() > before;
        assert_eq!(passed, is_proxied, "{variables:?} {key} {url}");
        let arrived = direct.received().len() > straight;
        assert_eq!(arrived, !is_proxied, "{variables:?} {key} {url}");
    }
}

/// The command line asks a server by its URL through the proxy of the environment too.
#[tokio::test]
async fn a_url_is_asked_through_a_proxy() {
    let proxy = Scripted::start(|_| None).await;
    let place = Place::new("");
    let mut command = place.command(&["list", "--url", "http://mcp.invalid/mcp"]);
    command.env("HTTP_PROXY", format!("http://{}", proxy.address));
    let ran = finish(command).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("echo"), "{ran:?}");
}

/// A server that presents a certificate of its own making for another name, one that says it is a CA.
fn self_signed() -> (String, String, ServerConfig) {
    let mut params = CertificateParams::new(["elsewhere.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "self");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    let digits = Sha256::digest(cert.der());
    let digits: Vec<_> = digits.iter().map(|byte| format!("{byte:02X}")).collect();
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![cert.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    (cert.pem(), digits.join(":"), config)
}

/// What becomes of servers of all transports behind `config`, with this `tls`.
async fn check_tls(config: &ServerConfig, tls: &str, expect: Result<(), &str>) {
    for (name, transport, scheme, path) in SERVERS {
        let backend = Backend::start(transport, Era::Legacy).await;
        answer_with(&backend, name);
        let at = inside_tls(backend.address(), config.clone()).await;
        let keys =
            format!("url = \"{scheme}://{at}/{path}\"\ntransport = \"{name}\"\ntls = {{ {tls} }}");
        let gateway = one(&keys).await;
        let (state, reason) = state(&gateway).await;
        match expect {
            Ok(()) => assert_eq!(state, "connected", "{name} {tls}: {reason}"),
            Err(expect) => assert!(reason.contains(expect), "{name} {tls}: {reason}"),
        }
        gateway.stop().await;
    }
}

fn written(place: &TempDir, name: &str, text: &str) -> String {
    let path = place.path().join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A CA beside those of the system, or the certificate of the server itself, whatever it says of itself.
#[tokio::test]
pub(crate) async fn tls_ca() {
    let place = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let (leaf, _, own) = self_signed();
    let file = |name, text: &str| written(&place, name, text);
    let ca = format!("ca = \"{}\"", file("ours.pem", &ours.pem));
    let others = format!("ca = \"{}\"", file("other.pem", &other.pem));
    let pinned = format!("ca = \"{}\"", file("leaf.pem", &leaf));
    let both = format!("ca = \"{}\"", file("both.pem", &(other.pem + &leaf)));
    check_tls(&ours.config(), &ca, Ok(())).await;
    check_tls(&ours.config(), &others, Err("invalid peer certificate")).await;
    check_tls(&own, &pinned, Ok(())).await;
    check_tls(&own, &both, Ok(())).await;
    check_tls(&own, &ca, Err("invalid peer certificate")).await;
    let empty = format!("ca = \"{}\"", file("empty.pem", ""));
    check_tls(
        &own,
        &empty,
        Err("empty.pem: there is no certificate in it"),
    )
    .await;
    check_tls(&own, "ca = \"/nowhere.pem\"", Err("`tls.ca`: /nowhere.pem")).await;
    // A path starts at the folder of the config.
    let relative =
        of_file("[servers.one]\nurl = \"https://127.0.0.1:1/\"\ntls = { ca = \"x.pem\" }");
    let (_, reason) = state(&relative.await).await;
    assert!(reason.contains("/x.pem: "), "{reason}");
}

#[tokio::test]
pub(crate) async fn tls_fingerprint() {
    let (_, digits, own) = self_signed();
    let ours = Authority::new("ours");
    for written in [
        digits.clone(),
        format!("sha256 Fingerprint={digits}"),
        format!("SHA256:{}", digits.replace(':', "").to_lowercase()),
    ] {
        check_tls(&own, &format!("fingerprint = \"{written}\""), Ok(())).await;
    }
    let pinned = format!("fingerprint = \"{digits}\"");
    check_tls(
        &ours.config(),
        &pinned,
        Err("is not that of `tls.fingerprint`"),
    )
    .await;
    for wrong in ["", "12:34", &digits.replace(':', "g")] {
        let keys = format!(
            "[servers.one]\nurl = \"https://a.example/\"\ntls = {{ fingerprint = \"{wrong}\" }}"
        );
        let refused = parse(&keys).unwrap_err();
        assert!(refused.contains("SHA-256 fingerprint"), "{refused}");
    }
}

#[tokio::test]
pub(crate) async fn tls_danger_accept_invalid() {
    let (.., own) = self_signed();
    check_tls(&own, "danger_accept_invalid = true", Ok(())).await;
    check_tls(&own, "danger_accept_invalid = false", Err("certificate")).await;
}

/// A server that wants a certificate of its clients.
#[tokio::test]
pub(crate) async fn tls_client_cert() {
    let place = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    let mut roots = RootCertStore::empty();
    roots.add(ours.root.clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let key = PrivateKeyDer::try_from(ours.key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![ours.certificate.clone()], key)
        .unwrap();
    let ca = format!("ca = \"{}\"", written(&place, "ca.pem", &ours.pem));
    let cert = written(&place, "cert.pem", &ours.server_pem);
    let key = written(&place, "key.pem", &ours.key.serialize_pem());
    let shown = format!("{ca}, client_cert = \"{cert}\", client_key = \"{key}\"");
    check_tls(&config, &shown, Ok(())).await;
    check_tls(&config, &ca, Err("")).await;
    let gone = format!("{ca}, client_cert = \"{cert}\", client_key = \"{cert}\"");
    check_tls(&config, &gone, Err("`tls.client_key`")).await;
    for half in ["client_cert", "client_key"] {
        let keys =
            format!("[servers.one]\nurl = \"https://a.example/\"\ntls = {{ {half} = \"x\" }}");
        let refused = parse(&keys).unwrap_err();
        assert!(
            refused.contains("requires `servers.one.tls.client_"),
            "{refused}"
        );
    }
}

/// Programs get the variables that are named, and none of the others.
#[tokio::test]
pub(crate) async fn inherit_env() {
    for (keys, expect) in [
        ("", ""),
        ("inherit_env = [\"SHOWN\", \"UNSET\"]", "from outside"),
    ] {
        let place = Place::new(&format!("[servers.one]\ncommand = \"{PROGRAM}\"\n{keys}\n"));
        let serving = place.serve_with(&[("SHOWN", "from outside")]).await;
        let http = Http::new(addr(&serving));
        let params = r#"{"name":"mcp_one_show"}"#;
        let request = crate::support::wire::request("1", "tools/call", params);
        let answer = http.post("/mcp", request).await.text().await;
        let answer = crate::support::wire::Envelope::of(&answer).value();
        assert_eq!(answer["structuredContent"]["env"], expect);
        serving.end(Signal::TERM).await;
    }
    for wrong in ["", "A=B", "A*"] {
        let keys = format!("[servers.one]\ncommand = \"x\"\ninherit_env = [\"{wrong}\"]");
        let refused = parse(&keys).unwrap_err();
        assert!(refused.contains("name of one variable"), "{refused}");
    }
}
