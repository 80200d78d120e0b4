//! An MCP client whose tokens are those of the gateway's OAuth client, for the official conformance suite.
//!
//! `tests/suites/oauth_client.py` has the suite run it: the last argument is the URL of the suite's server. A person is
//! played by following redirects.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "it fails loudly, and the suite reads what it says"
)]

use std::{env, fs, path::Path};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use tollbridge::{
    config::{self, ConfigFormat, ConfigText, Egress, Environment},
    egress::EgressClient,
    names::ServerName,
    oauth_client::{
        AccessToken, GrantError, GrantStorage, Grants, GrantsParts, Rejection, ServerGrants,
        SignIn, SignInRequest,
    },
    store::{GrantOwner, Store},
    task::Tasks,
};
use url::Url;

/// The suite fetches no metadata document; it knows this name of one.
const CLIENT_METADATA: &str = "https://conformance-test.local/client-metadata.json";
const REDIRECT_URI: &str = "http://127.0.0.1:1/oauth/callback";
const BROWSER: &str = "the browser of the person";

/// How often a request is made again with another token.
const ATTEMPTS_MAX: usize = 12;

struct McpClient {
    grants: Grants,
    server: ServerName,
    url: String,
    http: EgressClient,
    revision: String,
    session: Option<String>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the official suite says by variables what is wanted"
)]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), String> {
    let url = env::args().next_back().unwrap();
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let context: Value =
        serde_json::from_str(&variable("MCP_CONFORMANCE_CONTEXT")).unwrap_or_default();
    let scenario = variable("MCP_CONFORMANCE_SCENARIO");
    let data_dir = tempfile::tempdir().unwrap();
    let grants = grants(
        &url,
        &auth(&scenario, &context, data_dir.path()),
        data_dir.path(),
    )
    .await;
    let http = EgressClient::new(&Egress::default(), [&Url::parse(&url).unwrap()]).unwrap();
    let mut client = McpClient {
        grants,
        server: ServerName::parse("suite").unwrap(),
        url,
        http,
        revision: variable("MCP_CONFORMANCE_PROTOCOL_VERSION"),
        session: None,
    };
    client.run().await
}

/// The keys of `auth` for a scenario.
fn auth(scenario: &str, context: &Value, directory: &Path) -> String {
    let text = |key: &str| context[key].as_str().map(str::to_owned);
    let mut keys = Vec::new();
    let mut key = |name: &str, value: String| keys.push(format!("{name} = {value}"));
    let quoted = |value: &str| Value::from(value).to_string();
    let grant = match scenario.trim_start_matches("auth/") {
        "client-credentials-basic" | "client-credentials-jwt" => "client_credentials",
        "enterprise-managed-authorization" => "id_jag",
        _ => "authorization_code",
    };
    key("grant", quoted(grant));
    for name in ["client_id", "client_secret"] {
        if let Some(value) = text(name) {
            key(name, quoted(&value));
        }
    }
    if let Some(pem) = text("private_key_pem") {
        let path = directory.join("client.pem");
        fs::write(&path, pem).unwrap();
        key("private_key", quoted(path.to_str().unwrap()));
    }
    if let (Some(issuer), Some(client), Some(token)) = (
        text("idp_issuer"),
        text("idp_client_id"),
        text("idp_id_token"),
    ) {
        key("subject_token", quoted(&token));
        let (issuer, client) = (quoted(&issuer), quoted(&client));
        key(
            "idp",
            format!("{{ issuer = {issuer}, client_id = {client} }}"),
        );
    }
    keys.join("\n")
}

async fn grants(url: &str, auth: &str, data_dir: &Path) -> Grants {
    let text =
        format!("[servers.suite]\nurl = '{url}'\n[servers.suite.auth]\ntype = 'oauth2'\n{auth}\n");
    let source = ConfigText {
        name: "suite.toml".to_owned(),
        format: ConfigFormat::Toml,
        text,
        directory: data_dir.to_owned(),
    };
    let loaded = config::parse([source], &Environment::default());
    let loaded = loaded.map_err(|mistakes| eprintln!("{mistakes}")).unwrap();
    let storage = GrantStorage::new(Store::open(data_dir).await.unwrap(), data_dir);
    let grants = Grants::new(GrantsParts::new(Some(storage), Tasks::new()));
    grants.configure(&loaded.config);
    grants
}

impl McpClient {
    async fn run(&mut self) -> Result<(), String> {
        if !self.is_modern() {
            let params = json!({
                "protocolVersion": self.revision,
                "capabilities": {},
                "clientInfo": {"name": "tollbridge", "version": "0.1.0"},
            });
            let answer = self.ask("initialize", Some(1), params).await?;
            let session = answer.headers().get("mcp-session-id");
            self.session = session.map(|it| it.to_str().unwrap().to_owned());
            let initialized = "notifications/initialized";
            self.ask(initialized, None, json!({})).await?;
        }
        let listed = self.ask("tools/list", Some(2), json!({})).await?;
        let listed = body(&listed);
        let name = listed["result"]["tools"][0]["name"]
            .as_str()
            .unwrap_or("test-tool");
        let params = json!({"name": name, "arguments": {}});
        let called = self.ask("tools/call", Some(3), params).await?;
        eprintln!("{}", body(&called));
        Ok(())
    }

    fn is_modern(&self) -> bool {
        self.revision.as_str() >= "2026"
    }

    /// Sends a request, with another token whenever the server wants one.
    async fn ask(
        &self,
        method: &str,
        id: Option<u32>,
        mut params: Value,
    ) -> Result<Response<Bytes>, String> {
        if self.is_modern() {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": self.revision,
                "io.modelcontextprotocol/clientInfo": {"name": "tollbridge", "version": "0.1.0"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        if let Some(id) = id {
            message["id"] = id.into();
        }
        for _ in 0..ATTEMPTS_MAX {
            let token = self.token().await?;
            let mut headers = vec![
                ("accept", "application/json, text/event-stream"),
                ("content-type", "application/json"),
                ("mcp-protocol-version", &self.revision),
            ];
            if let Some(session) = &self.session {
                headers.push(("mcp-session-id", session));
            }
            if self.is_modern() {
                headers.push(("mcp-method", method));
                if !name.is_empty() {
                    headers.push(("mcp-name", &name));
                }
            }
            let mut request = Request::builder().method(Method::POST).uri(&self.url);
            request = request.header("authorization", token.header());
            for (name, value) in headers {
                request = request.header(name, HeaderValue::from_str(value).unwrap());
            }
            let request = request.body(message.to_string().into_bytes()).unwrap();
            let answer = self
                .http
                .fetch(request)
                .await
                .map_err(|error| error.to_string())?;
            let is_forbidden = match answer.status() {
                StatusCode::UNAUTHORIZED => false,
                StatusCode::FORBIDDEN => true,
                status if status.is_success() => return Ok(answer),
                status => return Err(format!("{method}: HTTP {status}")),
            };
            let challenge = answer.headers().get("www-authenticate");
            let challenge = challenge.map(|it| it.to_str().unwrap().to_owned());
            let what = (is_forbidden, challenge.as_deref());
            let owner = GrantOwner::Gateway;
            match self.server_grants()?.rejected(owner, &token, what) {
                Rejection::Retry => {}
                Rejection::SignIn => self.sign_in().await?,
                Rejection::Final => return Err(format!("{method}: {}", answer.status())),
            }
        }
        Err(format!("{method}: no token is good enough"))
    }

    fn server_grants(&self) -> Result<ServerGrants, String> {
        let grants = self.grants.towards(&self.server);
        grants.ok_or_else(|| format!("`{}` takes no tokens", self.server))
    }

    async fn token(&self) -> Result<AccessToken, String> {
        let owner = GrantOwner::Gateway;
        let grants = self.server_grants()?;
        match grants.access_token(owner).await {
            Err(GrantError::NeedsSignIn) => {
                self.sign_in().await?;
                let token = grants.access_token(owner).await;
                token.map_err(|error| error.to_string())
            }
            token => token.map_err(|error| error.to_string()),
        }
    }

    /// What a person does in a browser.
    async fn sign_in(&self) -> Result<(), String> {
        let request = SignInRequest {
            selects_account: false,
            redirect_uri: Url::parse(REDIRECT_URI).unwrap(),
            browser: BROWSER.to_owned(),
            client_metadata: Some(Url::parse(CLIENT_METADATA).unwrap()),
        };
        let begun = self
            .grants
            .begin(&self.server, GrantOwner::Gateway, &request);
        let mut url = begun.await.map_err(|error| error.to_string())?;
        loop {
            let browser = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
            let sent = browser.get(url.as_str().parse().unwrap()).await;
            let sent = sent.map_err(|error| error.to_string())?;
            let location = sent.headers().get("location");
            let location = location.ok_or_else(|| format!("HTTP {}", sent.status()))?;
            let location = Url::parse(location.to_str().unwrap()).unwrap();
            let query = location.query().unwrap_or_default();
            let finished = self.grants.finish(query, BROWSER).await;
            match finished.map_err(|error| error.to_string())? {
                SignIn::Again(again) => url = again,
                SignIn::Done { .. } => return Ok(()),
            }
        }
    }
}

/// The message in an answer, which may be an event.
fn body(answer: &Response<Bytes>) -> Value {
    let text = String::from_utf8_lossy(answer.body());
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let event = events
        .rev()
        .find_map(|data| serde_json::from_str(data).ok());
    event
        .or_else(|| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}
