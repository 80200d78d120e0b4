//! What an operator learns of client certificates that are refused.

use std::sync::Arc;

use http_body_util::Full;
use hyper::{Request, Response, body::Incoming};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client, Error},
    rt::TokioExecutor,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustix::process::Signal;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::support::{Place, bounded};

/// A chain and its key.
type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);
type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca() -> Ca {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("a CA")
}

fn issue(ca: &Ca) -> Shown {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    let names = [
        (DnType::OrganizationName, "Example"),
        (DnType::CommonName, "cron"),
    ];
    for (kind, value) in names {
        params.distinguished_name.push(kind, value);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("a key");
    let made = params.signed_by(&key, ca).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    (vec![made.der().clone()], key.into())
}

/// What comes of a request to `url` with the certificate `shown`, by a client that trusts `root`.
async fn ask(
    url: &str,
    root: &CertificateDer<'static>,
    shown: Option<Shown>,
) -> Result<Response<Incoming>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some((chain, key)) => config.with_client_auth_cert(chain, key).expect("a key"),
    };
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .build();
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let request = Request::post(format!("{url}/mcp")).body(Full::<&[u8]>::default());
    bounded(client.request(request.expect("a request"))).await
}

/// A gateway that takes certificates of `ca`, and the one that it shows.
fn place(ca: &Ca, auth: &str) -> (Place, CertificateDer<'static>) {
    let place = Place::new(&format!(
        "tls = {{ cert = 'cert.pem', key = 'key.pem', client_ca = 'ca.pem' }}\n[governance]\n\
         auth = {auth}\n[agents.ci]\ncertificates = ['CN=ci']\n"
    ));
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    place.write_private("cert.pem", &own.cert.pem());
    place.write_private("key.pem", &own.signing_key.serialize_pem());
    place.write_private("ca.pem", &ca.pem());
    (place, own.cert.der().clone())
}

#[tokio::test]
async fn the_log_names_who_is_refused() {
    let (ours, foreign) = (ca(), ca());
    let (place, root) = place(&ours, "['keys', 'mtls']");
    let mut serving = place.serve().await;
    let answer = ask(&serving.url, &root, Some(issue(&ours))).await;
    let answer = answer.expect("it is of our CA");
    assert_eq!(answer.status(), 401);
    // The request had no token that could be invalid (RFC 6750, section 3.1).
    let challenge = answer.headers().get("www-authenticate");
    let challenge = challenge.map(|it| it.to_str().expect("text"));
    assert!(
        !challenge.unwrap_or_default().contains("error="),
        "{challenge:?}"
    );
    let said = serving.says("authentication refused").await;
    assert!(said.contains("CN=cron,O=Example"), "{said}");
    for _ in 0..3 {
        let refused = ask(&serving.url, &root, Some(issue(&foreign))).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    let said = serving.says("TLS handshake failed").await;
    assert!(
        said.contains("INFO") && said.contains("invalid peer certificate"),
        "{said}"
    );
    let ended = serving.end(Signal::TERM).await;
    assert!(
        !ended.stderr.contains("TLS handshake failed"),
        "once a minute: {ended:?}"
    );
}

#[tokio::test]
async fn the_log_says_that_a_certificate_is_missing() {
    let ours = ca();
    let (place, root) = place(&ours, "'mtls'");
    let mut serving = place.serve().await;
    assert!(ask(&serving.url, &root, None).await.is_err());
    let said = serving.says("TLS handshake failed").await;
    assert!(
        said.contains("INFO") && said.contains("no certificates"),
        "{said}"
    );
    serving.end(Signal::TERM).await;
}
