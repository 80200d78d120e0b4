//! Client certificates: whose they are, and where they are needed.

use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use http_body_util::Full;
use hyper::{Request, body::Bytes};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::{
    harness::{ANN, Server, keyed, records},
    support::{Gateway, TestGateway, soon, wire::request},
};

/// What a client shows.
type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A CA of clients.
struct ClientCa(CertifiedIssuer<'static, KeyPair>);

impl ClientCa {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn issue(&self, common_name: &str, dns_name: &str) -> Shown {
        let mut params = CertificateParams::new([dns_name.to_owned()]).unwrap();
        params.distinguished_name.remove(DnType::CommonName);
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.0).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        (vec![made.der().clone()], key.into())
    }
}

/// A gateway over TLS that takes certificates of `ca`, and the certificate it shows.
async fn start(
    place: &Path,
    ca: &ClientCa,
    auth: &str,
) -> (Gateway, Server, CertificateDer<'static>) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let write = |name: &str, text: String| {
        let file = place.join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        file.display().to_string()
    };
    let (cert, key) = (
        write("cert.pem", own.cert.pem()),
        write("cert.key", own.signing_key.serialize_pem()),
    );
    let client_ca = write("ca.pem", ca.0.pem());
    let settings = format!(
        "tls = {{ cert = '{cert}', key = '{key}', client_ca = '{client_ca}' }}\n[governance]\nauth = {auth}\n\
         price = \"0\"\n[agents.ann]\npolicy = {{ mode = \"all\" }}\n[agents.ci]\npolicy = {{ mode = \"all\" }}\n\
         certificates = [\"CN=ci-*\", \"*.ci.example.com\"]\n[agents.both]\n\
         certificates = [\"CN=ci-both\"]\n"
    );
    let server = Server::start().await;
    let gateway = TestGateway::new().setting(&keyed(&settings));
    let gateway = gateway.server("x", &server.backend).start().await;
    (gateway, server, own.cert.der().clone())
}

/// The status of a call with this certificate and key; `None` where no connection comes about.
async fn status(
    gateway: &Gateway,
    root: &CertificateDer<'static>,
    shown: Option<&Shown>,
    key: Option<&str>,
) -> Option<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some((chain, key)) => config
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .unwrap(),
    };
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .build();
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let body = request("1", "tools/call", r#"{"name":"mcp_x_echo","arguments":{}}"#);
    let mut request = Request::post(format!("https://{}/mcp", gateway.addr()))
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let request = request.body(Full::<Bytes>::from(body)).unwrap();
    let answer = soon("an answer over TLS", client.request(request))
        .await
        .ok()?;
    Some(answer.status().as_u16())
}

#[tokio::test]
pub(crate) async fn a_certificate_is_that_of_an_agent() {
    let (place, ca, foreign) = (
        tempfile::tempdir().unwrap(),
        ClientCa::new(),
        ClientCa::new(),
    );
    let (gateway, _server, root) = start(place.path(), &ca, "[\"keys\", \"mtls\"]").await;
    let name = || {
        let record = records(&gateway.config.data_dir).pop().unwrap();
        record.agent_name.into_owned()
    };
    let check =
        async |shown: Option<&Shown>, key: Option<&str>| status(&gateway, &root, shown, key).await;
    let ci = ca.issue("ci-1", "a.example.com");
    assert_eq!(check(Some(&ci), None).await, Some(200));
    assert_eq!(name(), "ci");
    let by_name = ca.issue("other", "a.ci.example.com");
    assert_eq!(check(Some(&by_name), None).await, Some(200));
    let nobody = ca.issue("other", "a.example.com");
    assert_eq!(check(Some(&nobody), None).await, Some(401));
    let both = ca.issue("ci-both", "a.example.com");
    assert_eq!(
        check(Some(&both), None).await,
        Some(401),
        "that of two agents"
    );
    assert_eq!(check(None, None).await, Some(401));
    assert_eq!(check(None, Some(ANN.key)).await, Some(200));
    assert_eq!(name(), "ann");
    assert_eq!(check(Some(&nobody), Some(ANN.key)).await, Some(200));
    assert_eq!(
        check(Some(&ci), Some(ANN.key)).await,
        Some(400),
        "two agents"
    );
    assert_eq!(check(Some(&ci), Some("tbk_of_nobody")).await, Some(200));
    let stranger = foreign.issue("ci-1", "a.example.com");
    assert_eq!(check(Some(&stranger), None).await, None);
    gateway.stop().await;
}

#[tokio::test]
async fn a_certificate_is_needed_where_there_is_no_other_way() {
    let (place, ca) = (tempfile::tempdir().unwrap(), ClientCa::new());
    let (gateway, _server, root) = start(place.path(), &ca, "\"mtls\"").await;
    let ci = ca.issue("ci-1", "a.example.com");
    assert_eq!(status(&gateway, &root, Some(&ci), None).await, Some(200));
    assert_eq!(status(&gateway, &root, None, None).await, None);
    assert_eq!(
        status(&gateway, &root, Some(&ci), Some(ANN.key)).await,
        Some(200),
        "keys mean nothing"
    );
    gateway.stop().await;
}
