//! Clients sign in to a gateway as those of the market do, with issuers that behave as those of the market do.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use http::{Request, header};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::{Url, form_urlencoded};

use crate::support::{
    Auto, Backend, Era, Gateway, TestGateway, Transport,
    browser::Browser,
    http::JSON,
    issuer::{Behaviour, Issuer},
    value,
};

/// What is peculiar to the sign-in of a client.
#[derive(Clone, Copy, Debug)]
struct SignInClient {
    name: &'static str,
    /// It reads where the metadata are in the challenge, or else it knows the place.
    reads_challenge: bool,
    /// What it registers.
    redirect_uris: &'static [&'static str],
    /// What it uses: clients on a machine listen on a port that is free.
    redirect_uri: &'static str,
    grant_types: &'static [&'static str],
    scope: ScopeSource,
    /// Parameters of the authorization request that others do not send.
    more: &'static [(&'static str, &'static str)],
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ScopeSource {
    Challenge,
    /// `scopes_supported` of the resource.
    Metadata,
    /// It leaves the parameter out.
    Nothing,
}

const CODE_AND_REFRESH: &[&str] = &["authorization_code", "refresh_token"];

const CLIENTS: [SignInClient; 7] = [
    SignInClient {
        name: "claude.ai",
        reads_challenge: true,
        redirect_uris: &["https://claude.ai/api/mcp/auth_callback"],
        redirect_uri: "https://claude.ai/api/mcp/auth_callback",
        grant_types: CODE_AND_REFRESH,
        scope: ScopeSource::Challenge,
        more: &[("prompt", "consent")],
    },
    SignInClient {
        name: "Claude Code",
        reads_challenge: true,
        redirect_uris: &["http://localhost:49152/callback"],
        redirect_uri: "http://localhost:49152/callback",
        grant_types: CODE_AND_REFRESH,
        scope: ScopeSource::Metadata,
        more: &[],
    },
    SignInClient {
        name: "ChatGPT",
        reads_challenge: false,
        redirect_uris: &["https://chatgpt.com/connector_platform_oauth_redirect"],
        redirect_uri: "https://chatgpt.com/connector_platform_oauth_redirect",
        grant_types: CODE_AND_REFRESH,
        scope: ScopeSource::Metadata,
        more: &[],
    },
    // It leaves the scope out when it signs in a second time.
    SignInClient {
        name: "ChatGPT again",
        reads_challenge: false,
        redirect_uris: &["https://chatgpt.com/connector_platform_oauth_redirect"],
        redirect_uri: "https://chatgpt.com/connector_platform_oauth_redirect",
        grant_types: CODE_AND_REFRESH,
        scope: ScopeSource::Nothing,
        more: &[],
    },
    SignInClient {
        name: "VS Code",
        reads_challenge: false,
        redirect_uris: &[
            "https://insiders.vscode.dev/redirect",
            "https://vscode.dev/redirect",
            "http://127.0.0.1/",
            "http://127.0.0.1:33418/",
        ],
        redirect_uri: "http://127.0.0.1:59656/",
        grant_types: &[
            "authorization_code",
            "refresh_token",
            "urn:ietf:params:oauth:grant-type:device_code",
        ],
        scope: ScopeSource::Metadata,
        more: &[],
    },
    SignInClient {
        name: "Cursor",
        reads_challenge: true,
        redirect_uris: &[
            "cursor://anysphere.cursor-mcp/oauth/callback",
            "https://www.cursor.com/agents/mcp/oauth/callback",
            "http://localhost:8787/callback",
        ],
        redirect_uri: "cursor://anysphere.cursor-mcp/oauth/callback",
        grant_types: CODE_AND_REFRESH,
        scope: ScopeSource::Metadata,
        more: &[],
    },
    // It registers a port, and listens on another.
    SignInClient {
        name: "Copilot",
        reads_challenge: true,
        redirect_uris: &["http://127.0.0.1:33418/"],
        redirect_uri: "http://127.0.0.1:60005/",
        grant_types: CODE_AND_REFRESH,
        scope: ScopeSource::Challenge,
        more: &[],
    },
];

const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";

/// Where the gateway has its people come back to who logged in.
const LOGIN_CALLBACK: &str = "http://127.0.0.1/oauth/login/callback";

/// The tokens of a client, and how it gets the next.
#[derive(Debug)]
struct SignedIn {
    access_token: String,
    refresh_token: String,
    client_id: String,
    token_endpoint: String,
    resource: String,
}

impl SignInClient {
    /// Signs in at the route `path`, all by itself.
    async fn sign_in(&self, gateway: &Gateway, path: &str, how: SignIn<'_>) -> SignedIn {
        let origin = format!("http://{}", gateway.addr());
        let challenge = self.challenge(gateway, path).await;
        let place = if self.reads_challenge {
            parameter(&challenge, "resource_metadata").expect("it is in the challenge")
        } else {
            format!("{origin}/.well-known/oauth-protected-resource{path}")
        };
        let metadata = get(&place).await;
        let url = format!("{origin}{path}");
        assert_eq!(metadata["resource"], url.as_str(), "{}", self.name);
        let issuer = metadata["authorization_servers"][0].as_str().unwrap();
        let server = server_metadata(issuer).await;
        let resource = how.resource;
        let client_id = match how.client_id {
            Some(id) => id.to_owned(),
            None => self.register(&server).await,
        };
        let mut page = Url::parse(server["authorization_endpoint"].as_str().unwrap()).unwrap();
        let hash = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER.as_bytes()));
        page.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &client_id),
            ("redirect_uri", self.redirect_uri),
            ("state", "a state"),
            ("code_challenge", &hash),
            ("code_challenge_method", "S256"),
        ]);
        page.query_pairs_mut().extend_pairs(self.more);
        if resource == SendsResource::Yes {
            page.query_pairs_mut().append_pair("resource", &url);
        }
        let scope = self.scope_of(&challenge, &metadata);
        if let Some(scope) = scope {
            page.query_pairs_mut().append_pair("scope", &scope);
        }
        let mut browser = Browser::new();
        browser.code = how.code;
        let answer = browser.sign_in(page.as_str(), self.redirect_uri).await;
        let found = |name: &str| {
            let found = answer.query_pairs().find(|(given, _)| given == name);
            found.map(|(_, value)| value.into_owned())
        };
        assert_eq!(found("state").as_deref(), Some("a state"), "{answer}");
        let names_iss = server["authorization_response_iss_parameter_supported"] == true;
        let expected = names_iss.then_some(issuer);
        assert_eq!(found("iss").as_deref(), expected, "{answer}");
        let code = found("code").unwrap_or_else(|| panic!("{}: {answer}", self.name));
        let token_endpoint = server["token_endpoint"].as_str().unwrap().to_owned();
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("client_id", &client_id),
            ("code", &code),
            ("redirect_uri", self.redirect_uri),
            ("code_verifier", VERIFIER),
        ];
        if resource == SendsResource::Yes {
            form.push(("resource", &url));
        }
        let (status, tokens) = post_form(&token_endpoint, &form).await;
        assert_eq!(status, 200, "{}: {tokens}", self.name);
        let text = |member: &str| tokens[member].as_str().unwrap_or_default().to_owned();
        SignedIn {
            access_token: text("access_token"),
            refresh_token: text("refresh_token"),
            client_id,
            token_endpoint,
            resource: url,
        }
    }

    /// What it asks for.
    fn scope_of(&self, challenge: &str, metadata: &Value) -> Option<String> {
        match self.scope {
            ScopeSource::Challenge => parameter(challenge, "scope"),
            ScopeSource::Metadata => metadata["scopes_supported"].as_array().map(|scopes| {
                let scopes: Vec<&str> = scopes.iter().filter_map(Value::as_str).collect();
                scopes.join(" ")
            }),
            ScopeSource::Nothing => None,
        }
    }

    /// `WWW-Authenticate` of a request without a token.
    async fn challenge(&self, gateway: &Gateway, path: &str) -> String {
        let answer = gateway.http().post(path, INITIALIZE).await;
        assert_eq!(answer.status(), 401, "{}", self.name);
        answer.header("www-authenticate").unwrap().to_owned()
    }

    async fn register(&self, server: &Value) -> String {
        let endpoint = server["registration_endpoint"].as_str();
        let endpoint = endpoint.unwrap_or_else(|| panic!("{}: {server}", self.name));
        let body = json!({
            "client_name": self.name,
            "redirect_uris": self.redirect_uris,
            "grant_types": self.grant_types,
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        });
        let request = Request::post(endpoint)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string())
            .unwrap();
        let response = Browser::new().open(request).await;
        let text = String::from_utf8_lossy(response.body()).into_owned();
        assert_eq!(response.status(), 201, "{}: {text}", self.name);
        value(&text)["client_id"].as_str().unwrap().to_owned()
    }
}

/// What differs between sign-ins of one client.
#[derive(Debug, Default)]
struct SignIn<'s> {
    /// It was registered by hand under this id.
    client_id: Option<&'s str>,
    resource: SendsResource,
    /// The one-time code that its user was given.
    code: Option<String>,
}

/// Whether a client sends the parameter `resource`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum SendsResource {
    No,
    #[default]
    Yes,
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

/// The value of a parameter of a challenge.
fn parameter(challenge: &str, name: &str) -> Option<String> {
    let (_, after) = challenge.split_once(&format!("{name}=\""))?;
    Some(after.split('"').next().unwrap().to_owned())
}

/// The metadata of an issuer, from the first place that has them.
async fn server_metadata(issuer: &str) -> Value {
    let url = Url::parse(issuer).unwrap();
    let path = url.path().trim_end_matches('/');
    let origin = url.origin().ascii_serialization();
    for place in [
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
        format!("{origin}{path}/.well-known/openid-configuration"),
    ] {
        let request = Request::get(place).body(String::new()).unwrap();
        let response = Browser::new().open(request).await;
        if response.status() == 200 {
            let metadata = value(&String::from_utf8_lossy(response.body()));
            assert_eq!(metadata["issuer"], issuer);
            return metadata;
        }
    }
    panic!("{issuer} has no metadata");
}

async fn get(url: &str) -> Value {
    let request = Request::get(url).body(String::new()).unwrap();
    let response = Browser::new().open(request).await;
    assert_eq!(response.status(), 200, "{url}");
    value(&String::from_utf8_lossy(response.body()))
}

async fn post_form(url: &str, form: &[(&str, &str)]) -> (u16, Value) {
    let body = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(form)
        .finish();
    let request = Request::post(url)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(body)
        .unwrap();
    let response = Browser::new().open(request).await;
    let body = value(&String::from_utf8_lossy(response.body()));
    (response.status().as_u16(), body)
}

/// Calls through the gateway with the tokens, before and after a refresh.
async fn use_tokens(name: &str, gateway: &Gateway, path: &str, tokens: SignedIn) {
    call(name, gateway, path, &tokens.access_token).await;
    if tokens.refresh_token.is_empty() {
        return;
    }
    let form = [
        ("grant_type", "refresh_token"),
        ("client_id", tokens.client_id.as_str()),
        ("refresh_token", tokens.refresh_token.as_str()),
        ("resource", tokens.resource.as_str()),
    ];
    let (status, next) = post_form(&tokens.token_endpoint, &form).await;
    assert_eq!(status, 200, "{name}: {next}");
    let next = next["access_token"].as_str().unwrap();
    assert_ne!(next, tokens.access_token, "{name}");
    call(name, gateway, path, next).await;
}

async fn call(name: &str, gateway: &Gateway, path: &str, token: &str) {
    let http = gateway.http().with_key(token);
    let answer = http.post(path, INITIALIZE).await;
    assert_eq!(answer.status(), 200, "{name}");
    let session = answer.header("mcp-session-id").unwrap().to_owned();
    let session = ("mcp-session-id", session.as_str());
    let tool = if path == "/mcp" { "mcp_x_echo" } else { "echo" };
    let body = json!({
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": tool, "arguments": {}},
    });
    let headers = [&JSON[..], &[session]].concat();
    let answer = http.send("POST", path, &headers, body.to_string()).await;
    assert_eq!(answer.status(), 200, "{name}");
    let text = answer.text().await;
    assert!(text.contains("called"), "{name}: {text}");
}

/// A gateway whose callers are people that `issuer` knows.
async fn gateway(issuer: &Issuer, oauth: &str) -> (Backend, Gateway) {
    let rule = format!(
        "match = [{{ claims = {{ iss = \"{}\" }}, agent = \"people\" }}]",
        issuer.url()
    );
    let (backend, gateway) = before_one_server(oauth, &rule).await;
    (backend, gateway.start().await)
}

/// A gateway to be, with OAuth and an agent `people`.
async fn before_one_server(oauth: &str, rule: &str) -> (Backend, TestGateway) {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let tools = r#"[{"name":"echo","inputSchema":{"type":"object"}}]"#;
    backend.set_list("tools/list", tools);
    backend.on_request(|asked| {
        let is_call = asked.method() == "tools/call";
        let result = r#"{"content":[{"type":"text","text":"called"}]}"#;
        is_call.then(|| Auto::Result(result.to_owned()))
    });
    let gateway = TestGateway::new()
        .setting("governance = { auth = \"oauth\" }")
        .setting(&format!("oauth = {{ {oauth} }}"))
        .setting(&format!(
            "agents = {{ people = {{ policy = {{ mode = \"all\" }} }}, {rule} }}"
        ))
        .server("x", &backend);
    (backend, gateway)
}

/// Nothing is needed beside the gateway where people have codes of its administrator.
#[tokio::test]
async fn every_client_signs_in_with_a_login_code() {
    let (_backend, unstarted) = before_one_server("mode = \"builtin\"", "").await;
    let gateway = unstarted.start().await;
    let config = gateway.config.data_dir.join("test.toml");
    std::fs::write(&config, unstarted.text()).unwrap();
    for client in CLIENTS {
        for path in ["/mcp", "/mcp/servers/x"] {
            let made = tokio::process::Command::new(env!("CARGO_BIN_EXE_tollbridge"))
                .args(["login-code", "people", "--json", "--config"])
                .arg(&config)
                .output()
                .await
                .unwrap();
            assert!(made.status.success(), "{made:?}");
            let made = value(&String::from_utf8_lossy(&made.stdout));
            let how = SignIn {
                code: Some(made["code"].as_str().unwrap().to_owned()),
                ..SignIn::default()
            };
            let label = format!("{} at {path}", client.name);
            let tokens = client.sign_in(&gateway, path, how).await;
            assert!(!tokens.refresh_token.is_empty(), "{label}");
            use_tokens(&label, &gateway, path, tokens).await;
        }
    }
    gateway.stop().await;
}

/// Every client signs in at the gateway's own authorization server, and people log in at the issuer: it need not
/// take `resource`, register clients, or issue tokens that can be read.
#[tokio::test]
async fn every_client_signs_in_whatever_the_issuer_is() {
    for (name, behaviour) in [
        ("Entra", Behaviour::entra()),
        ("Okta", Behaviour::okta()),
        ("Keycloak", Behaviour::keycloak()),
        ("Google", Behaviour::google()),
        ("Auth0", Behaviour::auth0()),
    ] {
        let issuer = Issuer::start(behaviour).await;
        issuer.add_client("gateway", Some("s3cret"), &[LOGIN_CALLBACK]);
        let login = format!(
            "mode = \"builtin\", login = {{ issuer = \"{}\", client_id = \"gateway\", client_secret = \"s3cret\" }}",
            issuer.url()
        );
        let (_backend, gateway) = gateway(&issuer, &login).await;
        for client in CLIENTS {
            for path in ["/mcp", "/mcp/servers/x"] {
                let label = format!("{} with {name} at {path}", client.name);
                let tokens = client.sign_in(&gateway, path, SignIn::default()).await;
                assert!(!tokens.refresh_token.is_empty(), "{label}");
                use_tokens(&label, &gateway, path, tokens).await;
            }
        }
        let asked = issuer.requests_for("/authorize");
        assert!(asked.iter().all(|it| it.param("resource").is_none()));
        gateway.stop().await;
    }
}

/// The tokens of the issuer itself are taken where it issues some that can be read.
#[tokio::test]
async fn clients_sign_in_at_an_issuer_of_their_own() {
    for (name, behaviour, oauth, sends) in [
        // It refuses the parameter, so that only clients that leave it out can sign in there.
        (
            "Entra",
            Behaviour::entra(),
            "audience = [\"api://tollbridge\"], scopes = [\"api://tollbridge/tools\"]",
            SendsResource::No,
        ),
        (
            "Okta",
            Behaviour::okta(),
            "audience = [\"api://default\"], scopes = [\"tools:read\", \"tools:call\"]",
            SendsResource::Yes,
        ),
        (
            "Keycloak",
            Behaviour::keycloak(),
            "audience = [\"account\"]",
            SendsResource::Yes,
        ),
        (
            "one that does all of it",
            Behaviour::default(),
            "scopes = [\"tools:read\", \"tools:call\"]",
            SendsResource::Yes,
        ),
    ] {
        let issuer = Issuer::start(behaviour).await;
        issuer.add_client("by-hand", None, &[]);
        let registers = issuer.metadata()["registration_endpoint"].is_string();
        let by_hand = (!registers || name == "Okta").then_some("by-hand");
        let external = format!(
            "mode = \"external\", issuer = \"{}\", {oauth}",
            issuer.url()
        );
        let (_backend, gateway) = gateway(&issuer, &external).await;
        for client in CLIENTS {
            // Whoever asks for no scope gets a token that is good for nothing.
            if client.scope == ScopeSource::Nothing {
                continue;
            }
            let label = format!("{} with {name}", client.name);
            let how = SignIn {
                client_id: by_hand,
                resource: sends,
                code: None,
            };
            let tokens = client.sign_in(&gateway, "/mcp", how).await;
            call(&label, &gateway, "/mcp", &tokens.access_token).await;
        }
        gateway.stop().await;
    }
}
