//! People sign in to the built-in authorization server, and their clients call tools with what they get.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rmcp::transport::auth::{AuthorizationRequest, OAuthState};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tollbridge::{
    authorization_server::LoginCode,
    clock,
    config::{Egress, Role, Terms},
    control_socket,
    egress::EgressClient,
    names::AgentId,
    store::{Store, StoredAgent, StoredOAuthClient, TokenHash},
};
use url::Url;

use crate::support::{
    Auto, Backend, Era, Gateway, TestGateway, Transport,
    http::{Answer, Events, Http},
    soon, value,
    wire::{request, spawn},
};

/// Where the codes of the clients of these tests go.
pub(crate) const CALLBACK: &str = "http://127.0.0.1:33418/callback";
/// The verifier of PKCE of the clients that are written out here.
const VERIFIER: &str = "a-verifier-of-at-least-forty-three-characters";

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A gateway with the built-in authorization server, the agent `ann` and a server `x`.
pub(crate) struct SignIns {
    pub(crate) gateway: Gateway,
    _server: Backend,
    pub(crate) store: Store,
}

impl SignIns {
    /// With these keys of `[oauth]`.
    pub(crate) async fn new(oauth: &str) -> Self {
        let server = Backend::start(Transport::Http, Era::Legacy).await;
        server.on_request(|envelope| {
            let fine = r#"{"content":[{"type":"text","text":"fine"}]}"#;
            (envelope.method() == "tools/call").then(|| Auto::Result(fine.to_owned()))
        });
        let settings = format!(
            "[governance]\nauth = [\"oauth\", \"keys\"]\nprice = \"0\"\npolicy = {{ mode = \"all\" }}\n\
             [agents.ann]\n[agents.bob]\n[oauth]\n{oauth}\n"
        );
        let gateway = TestGateway::new().setting(&settings);
        let gateway = gateway.server("x", &server).start().await;
        let store = Store::open(&gateway.config.data_dir).await.unwrap();
        Self {
            gateway,
            _server: server,
            store,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.gateway.addr())
    }

    /// A code for logging in as the agent, as the command line makes it.
    pub(crate) async fn login_code(&self, agent: &str) -> String {
        let (agent, minute) = (
            AgentId::from_name(agent),
            std::time::Duration::from_secs(60),
        );
        let made = LoginCode::generate(agent, minute, clock::now(), &self.store);
        let (code, stored) = made.unwrap();
        self.store.oauth.add_login_code(&stored).await.unwrap();
        code.expose().to_owned()
    }

    pub(crate) fn browser(&self) -> Browser {
        Browser::new(self.gateway.http())
    }

    /// Lets a client register itself; what it is told.
    pub(crate) async fn register(&self, metadata: &Value) -> (u16, Value) {
        let http = self.gateway.http();
        let header = [("content-type", "application/json")];
        let answer = http.send("POST", "/oauth/register", &header, metadata.to_string());
        json_answer(answer.await).await
    }

    /// The id of a public client that has registered itself.
    pub(crate) async fn client_id(&self) -> String {
        let metadata = json!({ "client_name": "Test", "redirect_uris": [CALLBACK] });
        let (status, registered) = self.register(&metadata).await;
        assert_eq!(status, 201, "{registered}");
        registered["client_id"].as_str().unwrap().to_owned()
    }

    /// The query of a client that asks for a grant.
    #[allow(clippy::unused_self, reason = "it reads as the others")]
    pub(crate) fn query(&self, client_id: &str, more: &[(&str, &str)]) -> String {
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER));
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let all = [
            ("response_type", "code"),
            ("client_id", client_id),
            ("redirect_uri", CALLBACK),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("state", "s 1"),
        ];
        let is_replaced = |name: &str| more.iter().any(|(other, _)| *other == name);
        let usual = all.into_iter().filter(|(name, _)| !is_replaced(name));
        let more = more.iter().copied().filter(|(_, value)| !value.is_empty());
        query.extend_pairs(usual.chain(more));
        format!("/oauth/authorize?{}", query.finish())
    }

    /// A code for a client whose person agrees to all.
    pub(crate) async fn code(&self, client_id: &str, agent: &str) -> String {
        let code = self.login_code(agent).await;
        let url = self
            .browser()
            .sign_in(&self.query(client_id, &[]), &code)
            .await;
        param(&url, "code").unwrap()
    }

    /// What the token endpoint answers.
    pub(crate) async fn token(&self, params: &[(&str, &str)]) -> (u16, Value) {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(params)
            .finish();
        let http = self.gateway.http();
        json_answer(http.send("POST", "/oauth/token", &[FORM], form).await).await
    }

    pub(crate) async fn exchange(&self, client_id: &str, code: &str) -> (u16, Value) {
        self.token(&[
            ("grant_type", "authorization_code"),
            ("client_id", client_id),
            ("code", code),
            ("redirect_uri", CALLBACK),
            ("code_verifier", VERIFIER),
        ])
        .await
    }

    pub(crate) async fn refresh(&self, client_id: &str, token: &str) -> (u16, Value) {
        self.token(&[
            ("grant_type", "refresh_token"),
            ("client_id", client_id),
            ("refresh_token", token),
        ])
        .await
    }

    /// The status of a call with `token`.
    pub(crate) async fn call_status(&self, token: &str, path: &str) -> u16 {
        let http = self.gateway.http().with_key(token);
        http.post(path, crate::support::http::PING)
            .await
            .status()
            .as_u16()
    }

    /// How often requests were refused for a reason of the authorization server.
    pub(crate) fn refusals(&self, reason: &str) -> u64 {
        let counts = self.gateway.running.core().proxy.governance().counts();
        let counts = serde_json::to_value(counts).unwrap();
        counts["unauthenticated"][reason].as_u64().unwrap_or(0)
    }

    /// The details of the events of this kind in the audit.
    pub(crate) async fn told(&self, event: &str) -> Vec<String> {
        let audit = self.gateway.running.core().proxy.governance().audit();
        let written = async {
            while !audit.is_synced() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        soon("the audit is written", written).await;
        let log_dir = self.gateway.config.data_dir.join("audit");
        let mut details = Vec::new();
        for file in std::fs::read_dir(log_dir).unwrap() {
            let text = std::fs::read(file.unwrap().path()).unwrap();
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines = text
                .lines()
                .filter(|line| line.starts_with(r#"{"kind":"event""#));
            for line in lines.map(value).filter(|line| line["event"] == event) {
                details.push(line["detail"].as_str().unwrap_or_default().to_owned());
            }
        }
        details
    }

    /// Asserts that something was refused for this reason, once, and that the audit says so.
    async fn refused_once(&self, reason: &str) {
        assert_eq!(self.refusals(reason), 1, "{reason}");
        let told = self.told("authentication_refused").await;
        assert!(
            told.iter().any(|detail| detail == reason),
            "{reason}: {told:?}"
        );
    }

    pub(crate) async fn stop(self) {
        self.store.close().await;
        self.gateway.stop().await;
    }
}

async fn json_answer(answer: Answer) -> (u16, Value) {
    let status = answer.status().as_u16();
    (status, value(&answer.text().await))
}

/// A parameter of the query of a URL.
pub(crate) fn param(url: &str, name: &str) -> Option<String> {
    let url = Url::parse(url).unwrap();
    let mut pairs = url.query_pairs();
    pairs.find_map(|(known, value)| (known == name).then(|| value.into_owned()))
}

/// A browser without scripts: it keeps a cookie, follows redirects within the gateway, and sends forms.
pub(crate) struct Browser {
    http: Http,
    cookie: Option<String>,
}

/// Where a browser is.
#[derive(Debug)]
pub(crate) enum Shown {
    /// A page of the gateway, and its status.
    Page(u16, String),
    /// It was sent somewhere else.
    Elsewhere(String),
}

impl Shown {
    pub(crate) fn page(self) -> String {
        match self {
            Self::Page(_, text) => text,
            Self::Elsewhere(url) => panic!("no page but {url}"),
        }
    }

    pub(crate) fn url(self) -> String {
        match self {
            Self::Elsewhere(url) => url,
            Self::Page(status, text) => panic!("{status} {text}"),
        }
    }
}

impl Browser {
    pub(crate) fn new(http: Http) -> Self {
        Self { http, cookie: None }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Shown {
        self.go("GET", path.to_owned(), String::new()).await
    }

    /// Sends the form of `page` with these fields beside its hidden one.
    pub(crate) async fn submit(&mut self, page: &str, fields: &[(&str, &str)]) -> Shown {
        let action = between(page, "action=\"", "\"").replace("&amp;", "&");
        let hidden = between(page, "name=\"page\" value=\"", "\"");
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("page", hidden)
            .extend_pairs(fields)
            .finish();
        self.go("POST", action, form).await
    }

    /// Sends a form of `page`, which is `/connections`, with these fields beside its token.
    pub(crate) async fn send(&mut self, page: &str, fields: &[(&str, &str)]) -> Shown {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("token", between(page, "name=\"token\" value=\"", "\""))
            .extend_pairs(fields)
            .finish();
        self.go("POST", "/connections".to_owned(), form).await
    }

    async fn go(&mut self, verb: &str, path: String, form: String) -> Shown {
        let (mut verb, mut path, mut form) = (verb, path, form);
        for _ in 0..5 {
            let cookie = self.cookie.clone().unwrap_or_default();
            let mut headers = vec![("cookie", cookie.as_str())];
            if verb == "POST" {
                headers.push(FORM);
            }
            let answer = self.http.send(verb, &path, &headers, form).await;
            if let Some(set) = answer.header("set-cookie") {
                self.cookie = set.split(';').next().map(str::to_owned);
            }
            let Some(next) = answer.header("location").map(str::to_owned) else {
                let status = answer.status().as_u16();
                return Shown::Page(status, answer.text().await);
            };
            if !next.starts_with('/') {
                return Shown::Elsewhere(next);
            }
            (verb, path, form) = ("GET", next, String::new());
        }
        panic!("too many redirects: {path}");
    }

    /// Logs in with `code` and agrees: where the browser is sent with the code of the client.
    pub(crate) async fn sign_in(&mut self, path: &str, code: &str) -> String {
        let login = self.get(path).await.page();
        let consent = self.submit(&login, &[("code", code)]).await.page();
        self.submit(&consent, &[("decision", "allow")]).await.url()
    }
}

/// What stands between two texts.
pub(crate) fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let from = text
        .find(start)
        .unwrap_or_else(|| panic!("no {start} in {text}"))
        + start.len();
    let rest = &text[from..];
    &rest[..rest.find(end).unwrap()]
}

/// What fetches for the client library of these tests.
pub(crate) fn client_egress() -> Arc<EgressClient> {
    let config = Egress {
        allow: vec!["127.0.0.0/8".parse().unwrap()],
        ..Egress::default()
    };
    Arc::new(EgressClient::new(&config, []).unwrap())
}

#[tokio::test]
async fn a_client_library_registers_signs_in_calls_refreshes_and_is_signed_out() {
    let signing = SignIns::new("").await;
    let url = format!("{}/mcp", signing.url());
    let state = OAuthState::new_with_oauth_http_client(&*url, client_egress());
    let mut state = state.await.unwrap();
    let asked = AuthorizationRequest::new(CALLBACK).with_client_name("A library");
    state.start_authorization(asked).await.unwrap();
    let start = state.get_authorization_url().await.unwrap();
    let start = start.strip_prefix(&signing.url()).unwrap();
    let code = signing.login_code("ann").await;
    let mut browser = signing.browser();
    let login = browser.get(start).await.page();
    assert!(login.contains("A library"), "{login}");
    let consent = browser.submit(&login, &[("code", &code)]).await.page();
    for shown in [
        "A library",
        "ann",
        "127.0.0.1",
        "all servers",
        "own computer",
    ] {
        assert!(consent.contains(shown), "{shown}: {consent}");
    }
    let callback = browser
        .submit(&consent, &[("decision", "allow")])
        .await
        .url();
    state.handle_callback_url(&callback).await.unwrap();
    let manager = state.into_authorization_manager().unwrap();
    let token = manager.get_access_token().await.unwrap();
    assert!(token.starts_with("tba_"));
    let http = signing.gateway.http().with_key(&token);
    let params = r#"{"name":"mcp_x_echo","arguments":{}}"#;
    let called = http.post("/mcp", request("1", "tools/call", params)).await;
    let called = value(&called.text().await);
    assert_eq!(called["result"]["content"][0]["text"], "fine", "{called}");
    manager.refresh_token().await.unwrap();
    let fresh = manager.get_access_token().await.unwrap();
    assert_ne!(fresh, token);
    assert_eq!(signing.call_status(&fresh, "/mcp").await, 200);
    let mut open = open_stream(&signing.gateway.http().with_key(&fresh)).await;
    let grants = signing.store.oauth.grants().await.unwrap();
    assert_eq!(grants.len(), 1);
    assert!(
        signing
            .store
            .oauth
            .revoke_grant(&grants[0].id)
            .await
            .unwrap()
    );
    control_socket::notify_all(&signing.gateway.config.data_dir).await;
    assert_eq!(signing.call_status(&fresh, "/mcp").await, 401);
    let end = async { while open.next().await.is_some() {} };
    soon("the stream of the client ends", end).await;
    signing.stop().await;
}

/// The stream of a session for what the gateway sends by itself.
pub(crate) async fn open_stream(http: &Http) -> Events {
    let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#;
    let opened = http.post("/mcp", request("1", "initialize", params)).await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", session.as_str()),
    ];
    http.get("/mcp", &headers).await.events()
}

#[tokio::test]
async fn old_clients_find_the_endpoints_at_the_root() {
    let signing = SignIns::new("").await;
    let http = signing.gateway.http();
    let metadata = http
        .get("/.well-known/oauth-authorization-server", &[])
        .await;
    let (status, metadata) = json_answer(metadata).await;
    assert_eq!((status, &metadata["issuer"]), (200, &json!(signing.url())));
    let client = signing.client_id().await;
    let query = signing
        .query(&client, &[])
        .replace("/oauth/authorize", "/authorize");
    let code = signing.login_code("ann").await;
    let url = signing.browser().sign_in(&query, &code).await;
    assert_eq!(param(&url, "state").as_deref(), Some("s 1"));
    assert_eq!(param(&url, "iss"), Some(signing.url()));
    let form = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("grant_type", "authorization_code")
        .append_pair("client_id", &client)
        .append_pair("code", &param(&url, "code").unwrap())
        .append_pair("code_verifier", VERIFIER)
        .finish();
    let answer = http.send("POST", "/token", &[FORM], form).await;
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let (status, tokens) = json_answer(answer).await;
    assert_eq!(status, 200, "{tokens}");
    assert_eq!(tokens["token_type"], "Bearer");
    let token = tokens["access_token"].as_str().unwrap();
    assert_eq!(signing.call_status(token, "/mcp").await, 200);
    assert_eq!(signing.call_status(token, "/mcp/servers/x").await, 200);
    signing.stop().await;
}

#[tokio::test]
async fn a_code_that_is_used_twice_ends_what_it_gave() {
    let signing = SignIns::new("").await;
    let client = signing.client_id().await;
    let code = signing.code(&client, "ann").await;
    let (status, tokens) = signing.exchange(&client, &code).await;
    assert_eq!(status, 200, "{tokens}");
    let access = tokens["access_token"].as_str().unwrap();
    assert_eq!(signing.call_status(access, "/mcp").await, 200);
    let (status, error) = signing.exchange(&client, &code).await;
    assert_eq!((status, &error["error"]), (400, &json!("invalid_grant")));
    signing.refused_once("oauth_replayed").await;
    assert_eq!(signing.call_status(access, "/mcp").await, 401);
    let refresh = tokens["refresh_token"].as_str().unwrap();
    assert_eq!(signing.refresh(&client, refresh).await.0, 400);
    assert_eq!(signing.told("grant_revoked").await.len(), 1);
    signing.stop().await;
}

#[tokio::test]
async fn a_code_is_for_its_client_its_verifier_and_its_redirect_uri() {
    let signing = SignIns::new("").await;
    let (client, other) = (signing.client_id().await, signing.client_id().await);
    let code = signing.code(&client, "ann").await;
    let good = [
        ("grant_type", "authorization_code"),
        ("client_id", &*client),
        ("code", &*code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    let wrong_verifier = "another-verifier-of-at-least-forty-three-characters";
    for (name, wrong, error, reason) in [
        (
            "code_verifier",
            wrong_verifier,
            "invalid_grant",
            "oauth_wrong_verifier",
        ),
        (
            "redirect_uri",
            "http://127.0.0.1:1/callback",
            "invalid_grant",
            "oauth_foreign_redirect",
        ),
        (
            "client_id",
            &*other,
            "invalid_grant",
            "oauth_foreign_client",
        ),
        (
            "client_id",
            "client_of_nobody",
            "invalid_client",
            "oauth_client",
        ),
        (
            "code",
            "tbc_of_nobody",
            "invalid_grant",
            "oauth_unknown_code",
        ),
    ] {
        let params = good.map(|(known, value)| (known, if known == name { wrong } else { value }));
        let (status, answer) = signing.token(&params).await;
        assert_eq!(answer["error"], error, "{name} {answer}");
        assert_eq!(status, if error == "invalid_client" { 401 } else { 400 });
        signing.refused_once(reason).await;
    }
    // None of them has used it up.
    assert_eq!(signing.token(&good).await.0, 200);
    signing.stop().await;
}

#[tokio::test]
async fn nobody_is_sent_where_the_client_did_not_register() {
    let signing = SignIns::new("").await;
    let client = signing.client_id().await;
    let query = signing.query(
        &client,
        &[("redirect_uri", "https://evil.example/callback")],
    );
    let Shown::Page(400, page) = signing.browser().get(&query).await else {
        panic!("it was sent on");
    };
    assert!(page.contains("redirect URI"), "{page}");
    signing.refused_once("oauth_foreign_redirect").await;
    let query = signing.query("client_of_nobody", &[]);
    assert!(matches!(
        signing.browser().get(&query).await,
        Shown::Page(400, _)
    ));
    signing.refused_once("oauth_client").await;
    // Everything else is told the client, once its person is there.
    let mut person = signing.browser();
    let login = person.get(&signing.query(&client, &[])).await.page();
    let code = signing.login_code("ann").await;
    person.submit(&login, &[("code", &code)]).await.page();
    for (name, value, error) in [
        ("response_type", "token", "unsupported_response_type"),
        ("code_challenge", "", "invalid_request"),
        ("code_challenge", "short", "invalid_request"),
        ("code_challenge_method", "plain", "invalid_request"),
        ("scope", "everything", "invalid_scope"),
        ("resource", "https://other.example/mcp", "invalid_target"),
        (
            "resource",
            &format!("{}/mcp/servers/none", signing.url()),
            "invalid_target",
        ),
    ] {
        let query = signing.query(&client, &[(name, value)]);
        let Shown::Page(400, page) = signing.browser().get(&query).await else {
            panic!("nobody is logged in, and it was sent on");
        };
        assert!(page.contains(error), "{page}");
        let url = person.get(&query).await.url();
        assert!(url.starts_with(CALLBACK), "{url}");
        assert_eq!(
            param(&url, "error").as_deref(),
            Some(error),
            "{name} {value}"
        );
        assert_eq!(param(&url, "state").as_deref(), Some("s 1"));
        assert_eq!(param(&url, "iss"), Some(signing.url()));
    }
    signing.stop().await;
}

#[tokio::test]
async fn a_page_is_good_in_its_browser_unchanged_alone() {
    let signing = SignIns::new("").await;
    let client = signing.client_id().await;
    let query = signing.query(&client, &[]);
    let (mut victim, mut attacker) = (signing.browser(), signing.browser());
    let foreign = attacker.get(&query).await.page();
    let code = signing.login_code("ann").await;
    let login = victim.get(&query).await.page();
    let consent = victim.submit(&login, &[("code", &code)]).await.page();
    let hidden = between(&consent, "name=\"page\" value=\"", "\"").to_owned();
    let tampered = consent.replace(&hidden, &format!("B{}", &hidden[1..]));
    for (nth, page) in [(1, &tampered), (2, &foreign)] {
        let shown = victim.submit(page, &[("decision", "allow")]).await;
        assert!(matches!(shown, Shown::Page(400, _)), "{shown:?}");
        assert_eq!(signing.refusals("oauth_tampered_state"), nth);
    }
    let told = signing.told("authentication_refused").await;
    assert!(
        told.iter().any(|detail| detail == "oauth_tampered_state"),
        "{told:?}"
    );
    let shown = attacker.submit(&consent, &[("decision", "allow")]).await;
    assert!(
        matches!(shown, Shown::Page(400, _)),
        "another browser: {shown:?}"
    );
    let denied = victim.submit(&consent, &[("decision", "deny")]).await.url();
    assert_eq!(param(&denied, "error").as_deref(), Some("access_denied"));
    signing.stop().await;
}

#[tokio::test]
async fn a_login_code_is_good_once() {
    let signing = SignIns::new("").await;
    let client = signing.client_id().await;
    let query = signing.query(&client, &[]);
    let code = signing.login_code("ann").await;
    let mut browser = signing.browser();
    let login = browser.get(&query).await.page();
    let wrong = browser.submit(&login, &[("code", "tbl_wrong")]).await;
    let Shown::Page(403, again) = wrong else {
        panic!("{wrong:?}");
    };
    signing.refused_once("oauth_login_code").await;
    let consent = browser.submit(&again, &[("code", &code)]).await.page();
    assert!(consent.contains("ann"), "{consent}");
    assert_eq!(signing.told("signed_in").await.len(), 1);
    let mut other = signing.browser();
    let login = other.get(&query).await.page();
    let shown = other.submit(&login, &[("code", &code)]).await;
    assert!(matches!(shown, Shown::Page(403, _)), "{shown:?}");
    // Somebody else may log in there.
    let switch = between(&consent, "href=\"", "\"").replace("&amp;", "&");
    assert!(browser.get(&switch).await.page().contains("Login code"));
    // Whoever is logged in is not asked for another client.
    let second = signing.query(&signing.client_id().await, &[]);
    assert!(
        browser
            .get(&second)
            .await
            .page()
            .contains("value=\"allow\"")
    );
    signing.stop().await;
}

#[tokio::test]
pub(crate) async fn a_refresh_token_may_be_used_again_for_a_while() {
    let signing = SignIns::new("refresh_grace = \"1h\"").await;
    let client = signing.client_id().await;
    let code = signing.code(&client, "ann").await;
    let (_, tokens) = signing.exchange(&client, &code).await;
    let first = tokens["refresh_token"].as_str().unwrap();
    let (status, second) = signing.refresh(&client, first).await;
    assert_eq!(status, 200, "{second}");
    let (status, third) = signing.refresh(&client, first).await;
    assert_eq!(status, 200, "the answer may have been lost: {third}");
    for tokens in [&tokens, &second, &third] {
        let access = tokens["access_token"].as_str().unwrap();
        assert_eq!(signing.call_status(access, "/mcp").await, 200);
    }
    signing.stop().await;
    let signing = SignIns::new("refresh_grace = \"0s\"").await;
    let client = signing.client_id().await;
    let code = signing.code(&client, "ann").await;
    let (_, tokens) = signing.exchange(&client, &code).await;
    let first = tokens["refresh_token"].as_str().unwrap();
    let (_, second) = signing.refresh(&client, first).await;
    assert_eq!(signing.refresh(&client, first).await.0, 400);
    signing.refused_once("oauth_replayed").await;
    let access = second["access_token"].as_str().unwrap();
    assert_eq!(
        signing.call_status(access, "/mcp").await,
        401,
        "somebody else has it"
    );
    signing.stop().await;
}

#[tokio::test]
async fn a_token_is_for_the_resource_that_was_asked_for() {
    let signing = SignIns::new("").await;
    let client = signing.client_id().await;
    let one = format!("{}/mcp/servers/x", signing.url());
    let query = signing.query(&client, &[("resource", &one)]);
    let code = signing.login_code("ann").await;
    let url = signing.browser().sign_in(&query, &code).await;
    let (status, tokens) = signing
        .exchange(&client, &param(&url, "code").unwrap())
        .await;
    assert_eq!(status, 200, "{tokens}");
    let access = tokens["access_token"].as_str().unwrap();
    assert_eq!(signing.call_status(access, "/mcp/servers/x").await, 200);
    assert_eq!(signing.call_status(access, "/mcp").await, 401);
    assert_eq!(signing.refusals("token_audience"), 1);
    signing.stop().await;
}

#[tokio::test]
pub(crate) async fn tokens_last_as_long_as_the_config_says() {
    for (keys, access, refresh) in [
        ("", 3_600, 30 * 24 * 3_600),
        (
            "access_token_lifetime = \"2m\"\nrefresh_token_lifetime = \"2h\"",
            120,
            7_200,
        ),
    ] {
        let signing = SignIns::new(keys).await;
        let client = signing.client_id().await;
        let code = signing.code(&client, "ann").await;
        let (_, tokens) = signing.exchange(&client, &code).await;
        assert_eq!(tokens["expires_in"], access, "{keys}");
        for (name, seconds) in [("access_token", access), ("refresh_token", refresh)] {
            let hash = TokenHash::of(tokens[name].as_str().unwrap());
            let (stored, _) = signing.store.oauth.token(hash).await.unwrap().unwrap();
            let left = stored.expires.duration_since(clock::now()).as_secs();
            assert!((seconds - 60..=seconds).contains(&left), "{name} {left}");
        }
        signing.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn the_built_in_server_is_there_where_tokens_are_accepted() {
    let signing = SignIns::new("mode = \"builtin\"").await;
    let metadata = "/.well-known/oauth-authorization-server";
    assert_eq!(
        signing.gateway.http().get(metadata, &[]).await.status(),
        200
    );
    let keys_alone = signing.gateway.config.clone();
    let config = tollbridge::config::Config {
        governance: tollbridge::config::GovernanceConfig {
            auth: tollbridge::config::Authentication::KEYS,
            ..keys_alone.governance.clone()
        },
        ..*keys_alone
    };
    let client = signing.client_id().await;
    let code = signing.code(&client, "ann").await;
    let (_, tokens) = signing.exchange(&client, &code).await;
    let access = tokens["access_token"].as_str().unwrap();
    assert_eq!(signing.call_status(access, "/mcp").await, 200);
    signing
        .gateway
        .running
        .core()
        .apply_config(&config)
        .unwrap();
    assert_eq!(
        signing.gateway.http().get(metadata, &[]).await.status(),
        404
    );
    assert_eq!(signing.call_status(access, "/mcp").await, 401);
    signing.stop().await;
}

#[tokio::test]
pub(crate) async fn clients_register_where_the_config_lets_them() {
    let signing = SignIns::new("registration = false").await;
    let metadata = "/.well-known/oauth-authorization-server";
    let answer = signing.gateway.http().get(metadata, &[]).await;
    let (_, metadata) = json_answer(answer).await;
    assert_eq!(metadata.get("registration_endpoint"), None);
    let asks = json!({ "redirect_uris": [CALLBACK] });
    assert_eq!(signing.register(&asks).await.0, 403);
    signing.stop().await;
    let signing = SignIns::new("registration = true").await;
    for (asks, error) in [
        (
            json!({ "redirect_uris": ["http://example.com/cb"] }),
            "invalid_redirect_uri",
        ),
        (
            json!({ "redirect_uris": ["javascript:alert(1)"] }),
            "invalid_redirect_uri",
        ),
        (json!({ "redirect_uris": [] }), "invalid_redirect_uri"),
        (json!({}), "invalid_redirect_uri"),
        (json!([]), "invalid_client_metadata"),
        (
            json!({ "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "private_key_jwt" }),
            "invalid_client_metadata",
        ),
        (
            json!({ "redirect_uris": [CALLBACK], "grant_types": ["implicit"] }),
            "invalid_client_metadata",
        ),
    ] {
        let (status, answer) = signing.register(&asks).await;
        assert_eq!((status, &answer["error"]), (400, &json!(error)), "{asks}");
    }
    signing.stop().await;
}

#[tokio::test]
pub(crate) async fn so_many_clients_register() {
    let keys = "registrations_max = 2\nregistration_lifetime = \"1h\"";
    let signing = SignIns::new(keys).await;
    let asks = json!({ "redirect_uris": [CALLBACK] });
    let unused = StoredOAuthClient {
        id: "client_unused".to_owned(),
        body: Vec::new(),
        used: clock::now() - std::time::Duration::from_secs(3_700),
    };
    let long_ago = jiff::Timestamp::MIN;
    let is_added = signing.store.oauth.add_client(&unused, long_ago, 2).await;
    assert!(is_added.unwrap());
    let first = signing.client_id().await;
    let is_kept = async |id: &str| signing.store.oauth.client(id).await.unwrap().is_some();
    assert!(!is_kept("client_unused").await, "nobody used it");
    let second = signing.client_id().await;
    assert!(is_kept(&first).await, "at the limit");
    let code = signing.code(&first, "ann").await;
    let (_, tokens) = signing.exchange(&first, &code).await;
    let third = signing.client_id().await;
    assert!(!is_kept(&second).await, "it has no grant");
    assert!(is_kept(&first).await && is_kept(&third).await);
    let code = signing.code(&third, "ann").await;
    assert_eq!(signing.exchange(&third, &code).await.0, 200);
    let (status, refused) = signing.register(&asks).await;
    assert_eq!(status, 503, "past it, and all have grants: {refused}");
    let grants = signing.store.oauth.grants().await.unwrap();
    let grant = grants.iter().find(|grant| grant.client == third).unwrap();
    assert!(signing.store.oauth.revoke_grant(&grant.id).await.unwrap());
    signing.client_id().await;
    assert!(!is_kept(&third).await, "back under it");
    let refresh = tokens["refresh_token"].as_str().unwrap();
    assert_eq!(signing.refresh(&first, refresh).await.0, 200);
    signing.stop().await;
}

#[tokio::test]
async fn a_client_may_ask_for_a_secret_and_shows_it_then() {
    let signing = SignIns::new("").await;
    for method in ["client_secret_post", "client_secret_basic"] {
        let asks = json!({ "redirect_uris": [CALLBACK], "token_endpoint_auth_method": method });
        let (_, registered) = signing.register(&asks).await;
        let client = registered["client_id"].as_str().unwrap();
        let secret = registered["client_secret"].as_str().unwrap();
        let code = signing.code(client, "ann").await;
        assert_eq!(
            signing.exchange(client, &code).await.0,
            401,
            "without its secret"
        );
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "authorization_code")
            .append_pair("code", &code)
            .append_pair("code_verifier", VERIFIER)
            .finish();
        let http = signing.gateway.http();
        let answer = if method == "client_secret_basic" {
            let basic = base64::prelude::BASE64_STANDARD.encode(format!("{client}:{secret}"));
            let basic = format!("Basic {basic}");
            let headers = [FORM, ("authorization", basic.as_str())];
            http.send("POST", "/oauth/token", &headers, form).await
        } else {
            let form = format!("{form}&client_id={client}&client_secret={secret}");
            http.send("POST", "/oauth/token", &[FORM], form).await
        };
        assert_eq!(answer.status(), 200, "{method}");
    }
    signing.stop().await;
}

#[tokio::test]
async fn a_client_revokes_its_tokens() {
    let signing = SignIns::new("").await;
    let (client, other) = (signing.client_id().await, signing.client_id().await);
    let code = signing.code(&client, "ann").await;
    let (_, tokens) = signing.exchange(&client, &code).await;
    let access = tokens["access_token"].as_str().unwrap();
    let refresh = tokens["refresh_token"].as_str().unwrap();
    let revoke = async |client: &str, token: &str| {
        let form = format!("client_id={client}&token={token}");
        let http = signing.gateway.http();
        http.send("POST", "/oauth/revoke", &[FORM], form)
            .await
            .status()
            .as_u16()
    };
    assert_eq!(revoke(&other, access).await, 400, "it is of another client");
    assert_eq!(signing.call_status(access, "/mcp").await, 200);
    assert_eq!(revoke(&client, "tba_of_nobody").await, 200);
    assert_eq!(revoke(&client, access).await, 200);
    assert_eq!(signing.call_status(access, "/mcp").await, 401);
    let (status, tokens) = signing.refresh(&client, refresh).await;
    assert_eq!(status, 200, "the grant still holds");
    assert_eq!(revoke(&client, refresh).await, 200);
    let access = tokens["access_token"].as_str().unwrap();
    assert_eq!(signing.call_status(access, "/mcp").await, 401);
    signing.stop().await;
}

/// Serves `document` with its own URL in place of `SELF`, once for each connection; counts them.
async fn document_server(path: &str, document: &str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{path}", listener.local_addr().unwrap());
    let (document, served) = (
        document.replace("SELF", &url),
        Arc::new(AtomicUsize::new(0)),
    );
    let counted = Arc::clone(&served);
    spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut head = [0; 4096];
            let read = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..read]).into_owned();
            let answer = if head.starts_with("GET /moved") {
                "HTTP/1.1 302 Found\r\nlocation: /client.json\r\ncontent-length: 0\r\n\r\n"
                    .to_owned()
            } else {
                let (kind, length) = ("application/json", document.len());
                let head = format!("content-type: {kind}\r\ncontent-length: {length}");
                format!("HTTP/1.1 200 OK\r\n{head}\r\nconnection: close\r\n\r\n{document}")
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, served)
}

const DOCUMENT: &str = r#"{ "client_id": "SELF", "client_name": "Hosted <b>client</b>",
    "redirect_uris": ["http://127.0.0.1/callback"], "token_endpoint_auth_method": "none" }"#;

#[tokio::test]
async fn a_client_is_known_by_the_document_at_its_id() {
    let signing = SignIns::new("[egress]\nallow = [\"127.0.0.0/8\"]").await;
    let (client, served) = document_server("/client.json", DOCUMENT).await;
    let code = signing.login_code("ann").await;
    let mut browser = signing.browser();
    let login = browser.get(&signing.query(&client, &[])).await.page();
    assert!(
        login.contains("Hosted &lt;b&gt;client&lt;/b&gt;"),
        "{login}"
    );
    let consent = browser.submit(&login, &[("code", &code)]).await.page();
    assert!(consent.contains(&client), "{consent}");
    let url = browser
        .submit(&consent, &[("decision", "allow")])
        .await
        .url();
    let (status, tokens) = signing
        .exchange(&client, &param(&url, "code").unwrap())
        .await;
    assert_eq!(status, 200, "{tokens}");
    let access = tokens["access_token"].as_str().unwrap();
    assert_eq!(signing.call_status(access, "/mcp").await, 200);
    assert_eq!(served.load(Ordering::Relaxed), 1, "it is kept");
    let foreign = DOCUMENT.replace("SELF", "https://other.example/client.json");
    for (path, document) in [
        ("/client.json", foreign.as_str()),
        ("/client.json", "[]"),
        (
            "/client.json",
            &DOCUMENT.replace("\"none\"", "\"client_secret_post\""),
        ),
        (
            "/client.json",
            &DOCUMENT.replace("http://127.0.0.1/", "http://example.com/"),
        ),
        ("/moved", DOCUMENT),
        ("/", DOCUMENT),
    ] {
        let (client, _) = document_server(path, document).await;
        let shown = signing.browser().get(&signing.query(&client, &[])).await;
        assert!(matches!(shown, Shown::Page(400, _)), "{document} {shown:?}");
    }
    assert_eq!(signing.refusals("oauth_client"), 6);
    signing.stop().await;
    let signing = SignIns::new("").await;
    let shown = signing.browser().get(&signing.query(&client, &[])).await;
    let Shown::Page(400, page) = shown else {
        panic!("{shown:?}");
    };
    assert!(page.contains("egress.allow"), "{page}");
    signing.stop().await;
}

#[tokio::test]
pub(crate) async fn documents_of_clients_can_be_turned_off() {
    let member = "client_id_metadata_document_supported";
    let metadata = async |signing: &SignIns| {
        let path = "/.well-known/oauth-authorization-server";
        json_answer(signing.gateway.http().get(path, &[]).await)
            .await
            .1
    };
    let allow = "[egress]\nallow = [\"127.0.0.0/8\"]";
    let signing = SignIns::new(allow).await;
    assert_eq!(metadata(&signing).await[member], true);
    signing.stop().await;
    let off = format!("client_id_metadata_documents = false\n{allow}");
    let signing = SignIns::new(&off).await;
    assert_eq!(metadata(&signing).await[member], false);
    let (client, served) = document_server("/client.json", DOCUMENT).await;
    let shown = signing.browser().get(&signing.query(&client, &[])).await;
    let Shown::Page(400, page) = shown else {
        panic!("{shown:?}");
    };
    assert!(page.contains("registers itself"), "{page}");
    assert_eq!(served.load(Ordering::Relaxed), 0, "nothing is fetched");
    signing.client_id().await;
    signing.stop().await;
}

#[tokio::test]
async fn who_is_disabled_or_removed_is_signed_out() {
    let signing = SignIns::new("").await;
    let agent = |enabled| StoredAgent {
        id: AgentId::from_name("eve"),
        name: "eve".to_owned(),
        team: None,
        enabled,
        role: Role::Agent,
        profiles: None,
        terms: Terms::default(),
        created: clock::now(),
        changed: clock::now(),
    };
    let data = signing.gateway.config.data_dir.clone();
    signing.store.agents.add(&agent(true)).await.unwrap();
    control_socket::notify_all(&data).await;
    let client = signing.client_id().await;
    let code = signing.code(&client, "eve").await;
    let (_, tokens) = signing.exchange(&client, &code).await;
    let access = tokens["access_token"].as_str().unwrap();
    let mut open = open_stream(&signing.gateway.http().with_key(access)).await;
    signing
        .store
        .agents
        .update(&agent(false), None)
        .await
        .unwrap();
    control_socket::notify_all(&data).await;
    let end = async { while open.next().await.is_some() {} };
    soon("the stream ends", end).await;
    signing.store.agents.remove(agent(true).id).await.unwrap();
    signing.store.agents.add(&agent(true)).await.unwrap();
    control_socket::notify_all(&data).await;
    assert_eq!(
        signing.call_status(access, "/mcp").await,
        401,
        "its grants are gone"
    );
    let refresh = tokens["refresh_token"].as_str().unwrap();
    assert_eq!(signing.refresh(&client, refresh).await.0, 400);
    signing.stop().await;
}
