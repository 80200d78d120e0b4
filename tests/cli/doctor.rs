//! `doctor`: which step of a sign-in fails, for which client.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{io, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    issuer::{Behaviour, Issuer, Registration, object},
    support::{Place, Ran, TOOLBOX},
};

/// An MCP server that wants a token, as far as a sign-in shows.
#[derive(Clone, Debug)]
struct Protected {
    /// Of a request without a token.
    status: u16,
    /// Whether `WWW-Authenticate` names the metadata.
    challenges: bool,
    scope: Option<&'static str>,
    /// Members of the metadata that differ; `None`: there are no metadata.
    metadata: Option<Value>,
}

impl Default for Protected {
    fn default() -> Self {
        Self {
            status: 401,
            challenges: true,
            scope: Some("tools:read"),
            metadata: Some(json!({})),
        }
    }
}

impl Protected {
    /// Starts it for tokens of `issuer`; its URL.
    async fn start(self, issuer: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let metadata = self.metadata.as_ref().map(|changes| {
            let mut all = object(json!({
                "resource": format!("{origin}/mcp"),
                "authorization_servers": [issuer],
                "scopes_supported": ["tools:read", "tools:call"],
            }));
            all.extend(object(changes.clone()));
            Value::Object(all).to_string()
        });
        let url = format!("{origin}/mcp");
        let answer = move |request: Request<Incoming>| {
            let well_known = "/.well-known/oauth-protected-resource/mcp";
            let response = Response::builder();
            let response = match (request.uri().path(), &metadata) {
                (path, Some(metadata)) if path == well_known => {
                    response.body(Full::from(metadata.clone()))
                }
                ("/mcp", _) => {
                    let scope = self.scope.map(|scope| format!(", scope=\"{scope}\""));
                    let mut response = response.status(self.status);
                    if self.challenges {
                        let challenge = format!(
                            "Bearer resource_metadata=\"{origin}{well_known}\"{}",
                            scope.unwrap_or_default()
                        );
                        response = response.header(header::WWW_AUTHENTICATE, challenge);
                    }
                    response.body(Full::from("{}"))
                }
                _ => response.status(404).body(Full::from("no")),
            };
            response.unwrap()
        };
        spawn(serve(listener, Arc::new(answer)));
        url
    }
}

type Answer = dyn Fn(Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync;

async fn serve(listener: TcpListener, answer: Arc<Answer>) {
    while let Ok((stream, _)) = listener.accept().await {
        let answer = Arc::clone(&answer);
        let service = service_fn(move |request| {
            let response = answer(request);
            async move { io::Result::Ok(response) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        spawn(async move { drop(connection.await) });
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the gateway's tasks are not the test's"
)]
fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(future));
}

/// What `doctor oauth` says about `protected` and `issuer`.
async fn examine(issuer: &Issuer, protected: Protected, more: &[&str]) -> Ran {
    let url = protected.start(&issuer.url()).await;
    let place = Place::new(TOOLBOX);
    let args = [&["doctor", "oauth", &url, "--json"], more].concat();
    place.run(&args).await
}

/// Where `client` fails, and what is said of it; `None` where it can sign in.
fn failure(ran: &Ran, client: &str) -> Option<(String, String)> {
    let report = ran.json();
    let reports = report["clients"].as_array().unwrap();
    let found = reports.iter().find(|it| it["client"] == client);
    let found = found.unwrap_or_else(|| panic!("{client}: {ran:?}"));
    let last = found["steps"].as_array().unwrap().last().unwrap();
    let failed = last["result"] == "failed";
    assert_eq!(found["ok"], !failed, "{found}");
    let text = |member: &str| last[member].as_str().unwrap().to_owned();
    failed.then(|| {
        assert!(!text("advice").is_empty(), "{last}");
        (text("step"), text("detail"))
    })
}

const CLIENTS: [&str; 6] = [
    "Claude",
    "Claude Code",
    "ChatGPT",
    "VS Code",
    "Cursor",
    "Copilot",
];

#[tokio::test]
async fn every_client_can_sign_in_where_nothing_is_wrong() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let ran = examine(&issuer, Protected::default(), &[]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    for client in CLIENTS {
        assert_eq!(failure(&ran, client), None, "{client}");
    }
    let asked = issuer.requests_for("/authorize");
    let asked = asked.last().unwrap();
    assert_eq!(asked.param("scope"), Some("tools:read"));
    assert!(asked.param("resource").unwrap().ends_with("/mcp"));
    assert_eq!(issuer.count("/token"), 0, "nobody has logged in");
    // Claude, ChatGPT, VS Code and Copilot have documents.
    assert_eq!(issuer.count("/register"), 1);
}

#[tokio::test]
async fn the_step_that_fails_is_named() {
    for (name, change, protected, expected) in ROWS {
        let issuer = Issuer::start(Behaviour::default()).await;
        issuer.change(change);
        let ran = examine(&issuer, protected(), &[]).await;
        for client in CLIENTS {
            let wanted = expected
                .iter()
                .find(|(clients, _, _)| clients.is_empty() || clients.contains(&client));
            let found = failure(&ran, client);
            match (wanted, found) {
                (None, None) => {}
                (Some((_, step, words)), Some((found, detail))) => {
                    assert_eq!(found, *step, "{name}: {client}: {detail}");
                    assert!(detail.contains(words), "{name}: {client}: {detail}");
                }
                (wanted, found) => panic!("{name}: {client}: {found:?} and not {wanted:?}"),
            }
        }
        let fails = !expected.is_empty();
        assert_eq!(ran.code, Some(i32::from(fails)), "{name}: {ran:?}");
    }
}

/// A name, what the issuer and the server do, and which clients fail at which step with which words; no clients
/// are all of them.
type Row = (
    &'static str,
    fn(&mut Behaviour),
    fn() -> Protected,
    &'static [(&'static [&'static str], &'static str, &'static str)],
);

const ROWS: &[Row] = &[
    (
        "nothing is protected",
        |_| {},
        || Protected {
            status: 200,
            ..Protected::default()
        },
        &[],
    ),
    (
        "a firewall answers",
        |_| {},
        || Protected {
            status: 403,
            ..Protected::default()
        },
        &[(&[], "connect", "403")],
    ),
    (
        "no challenge",
        |_| {},
        || Protected {
            challenges: false,
            ..Protected::default()
        },
        &[(&["Copilot"], "challenge", "no `WWW-Authenticate: Bearer`")],
    ),
    (
        "neither a challenge nor metadata",
        |_| {},
        || Protected {
            challenges: false,
            metadata: None,
            ..Protected::default()
        },
        &[
            (&["Copilot"], "challenge", ""),
            (&["ChatGPT"], "resource_metadata", "HTTP 404"),
            (&[], "server_metadata", "HTTP 404"),
        ],
    ),
    (
        "metadata that are not there",
        |_| {},
        || Protected {
            metadata: None,
            ..Protected::default()
        },
        &[(&[], "resource_metadata", "HTTP 404")],
    ),
    (
        "another resource",
        |_| {},
        || Protected {
            metadata: Some(json!({"resource": "https://mcp.example.com/mcp"})),
            ..Protected::default()
        },
        &[(
            &["Claude", "VS Code", "Claude Code", "Cursor", "Copilot"],
            "resource_metadata",
            "https://mcp.example.com/mcp",
        )],
    ),
    (
        "no authorization server",
        |_| {},
        || Protected {
            metadata: Some(json!({"authorization_servers": []})),
            ..Protected::default()
        },
        &[(&[], "resource_metadata", "names no authorization server")],
    ),
    (
        "an issuer of which nothing is known",
        |issuer| issuer.metadata_status = 500,
        Protected::default,
        &[(&[], "server_metadata", "HTTP 500")],
    ),
    (
        "an issuer that nobody may reach",
        |_| {},
        || Protected {
            metadata: Some(json!({"authorization_servers": ["http://169.254.169.254/"]})),
            ..Protected::default()
        },
        &[(&[], "server_metadata", "not public")],
    ),
    (
        "no endpoint for tokens",
        |issuer| {
            let endpoint = "token_endpoint".to_owned();
            issuer.metadata.insert(endpoint, Value::Null);
        },
        Protected::default,
        &[(&[], "server_metadata", "token_endpoint")],
    ),
    (
        "metadata of another issuer",
        |issuer| {
            let other = "https://other.example.com".into();
            issuer.metadata.insert("issuer".to_owned(), other);
        },
        Protected::default,
        &[(&["Copilot"], "server_metadata", "other.example.com")],
    ),
    (
        "PKCE that nobody tells of",
        |issuer| issuer.advertises_pkce = false,
        Protected::default,
        &[(&["ChatGPT", "Cursor"], "pkce", "do not name PKCE")],
    ),
    (
        "PKCE without S256",
        |issuer| {
            issuer.metadata.insert(
                "code_challenge_methods_supported".to_owned(),
                json!(["plain"]),
            );
        },
        Protected::default,
        &[(&[], "pkce", "plain")],
    ),
    (
        "documents without public clients, and no registration",
        |issuer| {
            issuer.registration = Registration::None;
            issuer.metadata.insert(
                "token_endpoint_auth_methods_supported".to_owned(),
                json!(["client_secret_basic"]),
            );
        },
        Protected::default,
        &[
            (&["Claude", "Claude Code"], "registration", "`none`"),
            (&["Cursor"], "registration", "registers no clients"),
        ],
    ),
    (
        "registration that is refused",
        |issuer| {
            issuer.client_id_documents = false;
            issuer.registration_status = 400;
        },
        Protected::default,
        &[(&[], "registration", "invalid_client_metadata")],
    ),
    (
        "an authorization server that refuses",
        |issuer| issuer.authorize_error = Some("server_error"),
        Protected::default,
        &[(&[], "authorization", "server_error")],
    ),
];

#[tokio::test]
async fn quirks_of_issuers_are_told_with_what_to_do() {
    for (behaviour, client, step, words, advice) in [
        (
            Behaviour::entra(),
            "VS Code",
            "authorization",
            "AADSTS9010010",
            "oauth.mode",
        ),
        (
            Behaviour::okta(),
            "Claude",
            "authorization",
            "invalid_scope",
            "oauth.scopes",
        ),
        (
            Behaviour::google(),
            "Copilot",
            "authorization",
            "invalid_scope",
            "oauth.scopes",
        ),
    ] {
        let issuer = Issuer::start(behaviour).await;
        issuer.change(|it| {
            if it.advertises_pkce {
                it.scopes.retain(|scope| scope != "tools:read");
            } else {
                it.scopes.push("tools:read".to_owned());
            }
        });
        let ran = examine(&issuer, Protected::default(), &[]).await;
        let (found, detail) = failure(&ran, client).unwrap();
        assert_eq!(found, "registration", "{client}: {detail}");
        issuer.add_client("app", None, &[]);
        let ran = examine(&issuer, Protected::default(), &["--client-id", "app"]).await;
        let (found, detail) = failure(&ran, client).unwrap();
        assert_eq!(found, step, "{client}: {detail}");
        assert!(detail.contains(words), "{client}: {detail}");
        assert!(ran.stdout.contains(advice), "{ran:?}");
    }
    for behaviour in [Behaviour::keycloak(), Behaviour::auth0()] {
        let issuer = Issuer::start(behaviour).await;
        let ran = examine(&issuer, Protected::default(), &[]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[tokio::test]
async fn people_read_a_line_for_each_client_and_what_to_do() {
    let issuer = Issuer::start(Behaviour::default()).await;
    issuer.change(|it| it.advertises_pkce = false);
    let protected = Protected {
        challenges: false,
        ..Protected::default()
    };
    let url = protected.start(&issuer.url()).await;
    let place = Place::new(TOOLBOX);
    let ran = place
        .run(&[
            "doctor", "oauth", &url, "--client", "vs-code", "--client", "Copilot",
        ])
        .await;
    let rows: Vec<&str> = ran.stdout.lines().collect();
    assert!(
        rows[0].starts_with("CLIENT\tSIGN-IN\tSTEP\tDETAIL"),
        "{ran:?}"
    );
    assert!(
        rows[1].starts_with("VS Code\twarning\tchallenge\t"),
        "{ran:?}"
    );
    assert!(rows[2].starts_with("VS Code\twarning\tPKCE\t"), "{ran:?}");
    assert!(
        rows[3].starts_with("Copilot\tfails\tchallenge\t"),
        "{ran:?}"
    );
    let advice = "To do for VS Code, Copilot: send `WWW-Authenticate: Bearer";
    assert!(ran.stdout.contains(advice), "{ran:?}");
    assert!(!ran.stdout.contains("ChatGPT"), "{ran:?}");
    assert_eq!(ran.code, Some(1));
}

#[tokio::test]
async fn a_private_issuer_is_asked_where_it_is_allowed() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let named = issuer.url().replace("127.0.0.1", "localhost");
    issuer.change(|it| {
        let named = named.clone().into();
        it.metadata.insert("issuer".to_owned(), named);
    });
    let protected = || Protected {
        metadata: Some(json!({"authorization_servers": [named]})),
        ..Protected::default()
    };
    let ran = examine(&issuer, protected(), &[]).await;
    let (step, _) = failure(&ran, "VS Code").unwrap();
    assert_eq!(step, "server_metadata");
    let ran = examine(&issuer, protected(), &["--allow", "localhost"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn wrong_command_lines_are_refused() {
    let place = Place::new(TOOLBOX);
    for (args, words) in [
        (&["mcp.example.com"][..], "missing scheme"),
        (&["ftp://mcp.example.com"], "only `http:` and `https:`"),
        (&["https://x", "--client", "Emacs"], "one of: Claude"),
        (&["https://x", "--allow", "a b"], "not a host name"),
    ] {
        let ran = place.run(&[&["doctor", "oauth"], args].concat()).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(words), "{ran:?}");
    }
}

#[tokio::test]
async fn a_gateway_with_keys_alone_says_what_is_missing() {
    let place = Place::new(&format!("{TOOLBOX}\n[governance]\nauth = \"keys\"\n"));
    let serving = place.serve().await;
    let ran = place.run(&["doctor", "oauth", &serving.url]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stdout.contains("add \"oauth\" to `governance.auth`"),
        "{ran:?}"
    );
}
