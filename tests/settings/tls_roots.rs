//! Whose certificates are believed of servers.

use std::{fs, net::SocketAddr};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::Signal;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use serde_json::{Value, json};

use crate::{
    binary::{Place, Serving},
    harness::answer_with,
    support::{
        Backend, Era, Transport,
        http::Http,
        soon, value,
        way::inside_tls,
        wire::{Envelope, request},
    },
};

/// An authority, and a server's certificate by it.
pub(crate) struct Authority {
    pub(crate) pem: String,
    pub(crate) root: CertificateDer<'static>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) server_pem: String,
    pub(crate) key: KeyPair,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = KeyPair::generate().unwrap();
        let authority = params.self_signed(&own).unwrap();
        let issuer = Issuer::new(params, own);
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let server = server.signed_by(&key, &issuer).unwrap();
        Self {
            pem: authority.pem(),
            root: authority.der().clone(),
            certificate: server.der().clone(),
            server_pem: server.pem(),
            key,
        }
    }

    /// What a server shows.
    pub(crate) fn config(&self) -> ServerConfig {
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .unwrap()
    }
}

/// The servers behind TLS: their transports, and the schemes and paths of their URLs.
pub(crate) const SERVERS: [(&str, Transport, &str, &str); 3] = [
    ("http", Transport::Http, "https", "mcp"),
    ("sse", Transport::Sse, "https", "sse"),
    ("websocket", Transport::WebSocket, "wss", "mcp"),
];

/// Servers over `https:` and `wss:` are reached where SSL_CERT_FILE names their authority; otherwise
/// they are not, and `/status` says that it is for their certificate.
#[tokio::test]
async fn authorities_come_from_ssl_cert_file() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let mut backends = Vec::new();
    let mut config = String::new();
    for (name, transport, scheme, path) in SERVERS {
        let backend = Backend::start(transport, Era::Legacy).await;
        answer_with(&backend, name);
        let at = inside_tls(backend.address(), ours.config()).await;
        let url = format!("{scheme}://{at}/{path}");
        let section = format!("[servers.{name}]\nurl = \"{url}\"\ntransport = \"{name}\"\n");
        config.push_str(&section);
        backends.push(backend);
    }
    for (authority, is_believed) in [(Some(&ours), true), (Some(&other), false), (None, false)] {
        let place = Place::new(&config);
        let file = place.file("authority.pem");
        let variable = authority.map(|authority| {
            fs::write(&file, &authority.pem).unwrap();
            ("SSL_CERT_FILE", file.to_str().unwrap())
        });
        let serving = place.serve_with(variable.as_slice()).await;
        let http = Http::new(addr(&serving));
        for (name, ..) in SERVERS {
            if is_believed {
                expect_served(&http, name).await;
            } else {
                expect_distrusted(&http, name).await;
            }
        }
        serving.end(Signal::TERM).await;
    }
}

pub(crate) fn addr(serving: &Serving) -> SocketAddr {
    let host = serving.url.strip_prefix("http://").unwrap();
    host.parse().unwrap()
}

async fn expect_served(http: &Http, name: &str) {
    status_until(http, name, |status| status["state"] == "connected").await;
    let params = format!(r#"{{"name":"mcp_{name}_echo"}}"#);
    let answer = http.post("/mcp", request("1", "tools/call", &params)).await;
    let answer = Envelope::of(&answer.text().await).value();
    assert_eq!(answer["structuredContent"], json!({"name": name}));
}

async fn expect_distrusted(http: &Http, name: &str) {
    let status = status_until(http, name, |status| status["state"] != "connecting").await;
    assert_eq!(status["state"], "failed", "{status}");
    let reason = status["reason"].as_str().unwrap();
    // A machine may have no authorities at all.
    let expect = [
        "invalid peer certificate: UnknownIssuer",
        "no native root CA certificates",
    ];
    let is_clear = expect.iter().any(|expect| reason.contains(expect));
    assert!(is_clear, "{name}: {reason}");
}

/// Waits until `reached` holds of what `/status` says of a server.
async fn status_until(http: &Http, name: &str, reached: impl Fn(&Value) -> bool) -> Value {
    let wait = async {
        loop {
            let status = value(&http.get("/status", &[]).await.text().await);
            let mut servers = status["servers"].as_array().unwrap().iter();
            let found = servers.find(|server| server["name"] == name).unwrap();
            if reached(found) {
                return found.clone();
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    soon(&format!("the status of {name}"), wait).await
}

/// Pause between looks at what has no event of its own.
const LOOK: std::time::Duration = std::time::Duration::from_millis(20);
