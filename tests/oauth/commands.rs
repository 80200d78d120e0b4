//! The commands for sign-ins, beside a gateway of its own process.

use std::sync::Arc;

use rmcp::transport::auth::{AuthorizationRequest, OAuthState};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::{
    binary::{Place, Serving},
    sign_in::{Browser, CALLBACK, client_egress},
    support::{
        http::{Http, PING},
        wire::spawn,
    },
};

const CONFIG: &str = r#"
    [governance]
    auth = "oauth"
    policy = { mode = "all" }
    [agents.ann]
    [egress]
    allow = ["127.0.0.0/8"]
    [servers.toolbox]
    transport = "builtin"
"#;

fn http(serving: &Serving) -> Http {
    let addr = serving.url.strip_prefix("http://").unwrap();
    Http::new(addr.parse().unwrap())
}

/// Serves a document about a client over TLS: its URL, and the PEM file of the certificate.
async fn tls_document(place: &Place) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let pem = place.file("ca.pem");
    std::fs::write(&pem, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/client.json", listener.local_addr().unwrap());
    let document = format!(
        r#"{{ "client_id": "{url}", "client_name": "Hosted", "redirect_uris": ["{CALLBACK}"] }}"#
    );
    spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            stream.read_u8().await.unwrap();
            let length = document.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n{document}"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            drop(stream.shutdown().await);
        }
    });
    (url, pem.display().to_string())
}

#[tokio::test]
async fn a_person_signs_in_with_a_code_and_is_signed_out() {
    let place = Place::new(CONFIG);
    let (client, pem) = tls_document(&place).await;
    let serving = place.serve_with(&[("SSL_CERT_FILE", &pem)]).await;
    let url = format!("{}/mcp", serving.url);
    let state = OAuthState::new_with_oauth_http_client(&*url, client_egress());
    let mut state = state.await.unwrap();
    let asked = AuthorizationRequest::new(CALLBACK).with_client_metadata_url(&*client);
    state.start_authorization(asked).await.unwrap();
    let start = state.get_authorization_url().await.unwrap();
    let start = start.strip_prefix(&serving.url).unwrap();
    let made = place.run(&["login-code", "ann"]).await;
    assert!(
        made.stderr.contains("login code for agent `ann`"),
        "{made:?}"
    );
    let mut browser = Browser::new(http(&serving));
    let callback = browser.sign_in(start, made.stdout.trim()).await;
    state.handle_callback_url(&callback).await.unwrap();
    let manager = state.into_authorization_manager().unwrap();
    let token = manager.get_access_token().await.unwrap();
    let client_http = http(&serving).with_key(&token);
    assert_eq!(client_http.post("/mcp", PING).await.status(), 200);
    let listed = place.run(&["sign-ins", "list", "--json"]).await.json();
    let grant = &listed[0];
    assert_eq!(grant["subject"], "ann");
    assert_eq!(grant["client_id"], client);
    assert_eq!(grant["client_name"], "Hosted");
    let id = grant["id"].as_str().unwrap();
    let table = place.run(&["sign-ins", "list", "ann"]).await;
    assert!(table.stdout.contains(id), "{table:?}");
    let revoked = place.run(&["sign-ins", "revoke", id]).await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    assert_eq!(client_http.post("/mcp", PING).await.status(), 401);
    let again = place.run(&["sign-ins", "revoke", id]).await;
    assert_eq!(again.code, Some(2), "{again:?}");
    let events = place.run(&["audit", "events"]).await.stdout;
    for event in [
        "login_code_created",
        "signed_in",
        "grant_created",
        "grant_revoked",
    ] {
        assert!(events.contains(event), "{event}: {events}");
    }
    assert!(!events.contains(&token) && !events.contains(made.stdout.trim()));
    let ended = serving.end(Signal::TERM).await;
    let log = ended.stderr;
    assert!(
        !log.contains(&token) && !log.contains(made.stdout.trim()),
        "{log}"
    );
}

#[tokio::test]
async fn codes_are_for_agents_that_sign_in() {
    let place = Place::new(CONFIG);
    let made = place
        .run(&["login-code", "ann", "--expires", "1h", "--json"])
        .await;
    let made = made.json();
    assert_eq!(made["agent"], "ann");
    assert!(made["code"].as_str().unwrap().starts_with("tbl_"));
    for wrong in [
        ["login-code", "nobody", "--expires", "1h"],
        ["login-code", "anonymous", "--expires", "1h"],
        ["login-code", "ann", "--expires", "8d"],
        ["login-code", "ann", "--expires", "0s"],
    ] {
        assert_eq!(place.run(&wrong).await.code, Some(2), "{wrong:?}");
    }
    let keys = Place::new(&CONFIG.replace("\"oauth\"", "\"keys\""));
    let refused = keys.run(&["login-code", "ann"]).await;
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("auth = \"oauth\""), "{refused:?}");
}
