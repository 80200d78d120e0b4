//! A scripted OAuth and OpenID Connect issuer: in this process, on loopback.
//!
//! It does what the specifications ask for, or behaves as a product does ([`Behaviour::entra`] and its like), and
//! goes wrong as a test wants ([`Issuer::change`]). Whoever opens its authorization endpoint is logged in and has
//! consented. It records every request.
//!
//! It stands alone, so that any test target can have it:
//!
//! - `tests/integration`, `tests/settings`, `tests/governance`: `crate::integration::support::issuer`
//!   (`crate::support::issuer`),
//! - unit tests in `src`: `#[cfg(test)] #[path = "../tests/support/issuer.rs"] mod issuer;`.
//!
//! ```ignore
//! let issuer = Issuer::start(Behaviour::entra()).await;
//! issuer.add_client("gateway", Some("secret"), &["https://mcp.example.com/oauth/callback"]);
//! let token = issuer.access_token(json!({"aud": resource, "scope": "tools:read"}));
//! issuer.change(|it| it.token_error = Some((503, "temporarily_unavailable")));
//! assert_eq!(issuer.count("/token"), 1);
//! ```
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test target needs a part of it, and fails by panicking"
)]

#[path = "issuer/behaviours.rs"]
mod behaviours;
#[path = "issuer/endpoints.rs"]
mod endpoints;
#[path = "issuer/keys.rs"]
mod keys;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jsonwebtoken::DecodingKey;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use url::form_urlencoded;

pub(crate) use behaviours::{
    Behaviour, Document, Registration, ResourceParameter, ScopeClaim, object,
};
pub(crate) use keys::TestKey;

/// A running issuer; it ends with the runtime of the test.
#[derive(Clone)]
pub(crate) struct Issuer {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    behaviour: Mutex<Behaviour>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: Vec<TestKey>,
    /// How many keys there have been.
    keys_made: usize,
    clients: HashMap<String, Client>,
    codes: HashMap<String, Code>,
    refresh_tokens: HashMap<String, RefreshToken>,
    access_tokens: HashMap<String, Map<String, Value>>,
    /// Ids of client assertions that were used.
    assertions: Vec<String>,
    requests: Vec<Received>,
}

/// A registered client.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) id: String,
    pub(crate) secret: Option<String>,
    /// For `private_key_jwt`.
    pub(crate) key: Option<DecodingKey>,
    pub(crate) redirect_uris: Vec<String>,
}

struct Code {
    client: String,
    redirect_uri: Option<String>,
    challenge: Option<String>,
    grant: Grant,
    nonce: Option<String>,
    used: bool,
}

/// What tokens are issued for.
#[derive(Clone, Debug)]
struct Grant {
    id: String,
    client: String,
    resources: Vec<String>,
    scopes: Vec<String>,
    /// Claims about whom it is for.
    subject: Map<String, Value>,
}

struct RefreshToken {
    grant: Grant,
    used: bool,
}

/// A request as it was received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Of the query, and of a form.
    pub(crate) params: Vec<(String, String)>,
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
    pub(crate) status: u16,
}

impl Received {
    /// The first parameter `name`.
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        let mut found = self.params.iter().filter(|(given, _)| given == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// Every parameter `name`.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let found = self.params.iter().filter(|(given, _)| given == name);
        found.map(|(_, value)| value.clone()).collect()
    }
}

impl Issuer {
    /// Starts one on a free port.
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            address: listener.local_addr().unwrap(),
            behaviour: Mutex::new(behaviour),
            state: Mutex::default(),
        });
        let issuer = Self { shared };
        issuer.rotate_keys();
        let served = issuer.clone();
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if served.behaviour().down {
                    continue;
                }
                let issuer = served.clone();
                let service = service_fn(move |request| endpoints::handle(issuer.clone(), request));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                // A broken connection is what some tests are about.
                spawn(async move { drop(connection.await) });
            }
        });
        issuer
    }

    /// Its identifier, as metadata and `iss` have it.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.origin(), self.behaviour().path)
    }

    /// The URL of its host.
    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// The URL of an endpoint: `authorize`, `token`, `jwks`, `register`, `revoke`, `introspect`, `userinfo`.
    pub(crate) fn endpoint(&self, name: &str) -> String {
        format!("{}/{name}", self.url().trim_end_matches('/'))
    }

    pub(crate) fn behaviour(&self) -> Behaviour {
        lock(&self.shared.behaviour).clone()
    }

    /// Changes what it does from now on.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut lock(&self.shared.behaviour));
    }

    /// Registers a client, as an administrator does.
    pub(crate) fn add_client(&self, id: &str, secret: Option<&str>, redirect_uris: &[&str]) {
        self.insert_client(Client {
            id: id.to_owned(),
            secret: secret.map(str::to_owned),
            key: None,
            redirect_uris: redirect_uris.iter().map(|&uri| uri.to_owned()).collect(),
        });
    }

    /// Registers a client that authenticates by JWTs which `key` verifies (`private_key_jwt`).
    pub(crate) fn add_client_with_key(&self, id: &str, key: DecodingKey, redirect_uris: &[&str]) {
        self.insert_client(Client {
            id: id.to_owned(),
            secret: None,
            key: Some(key),
            redirect_uris: redirect_uris.iter().map(|&uri| uri.to_owned()).collect(),
        });
    }

    fn insert_client(&self, client: Client) {
        self.state().clients.insert(client.id.clone(), client);
    }

    /// Whether a client is registered.
    pub(crate) fn has_client(&self, id: &str) -> bool {
        self.state().clients.contains_key(id)
    }

    /// Forgets all clients, as an issuer does that expires them.
    pub(crate) fn forget_clients(&self) {
        self.state().clients.clear();
    }

    /// Signs with a new key from now on; the JWKS has the older ones too.
    pub(crate) fn rotate_keys(&self) {
        let algorithm = self.behaviour().algorithm;
        let mut state = self.state();
        let key = TestKey::new(algorithm, state.keys_made);
        state.keys_made += 1;
        state.keys.push(key);
    }

    /// Takes all keys but the newest from the JWKS.
    pub(crate) fn forget_old_keys(&self) {
        let mut state = self.state();
        let newest = state.keys.pop();
        state.keys = Vec::from_iter(newest);
    }

    /// The key that it signs with.
    pub(crate) fn key(&self) -> TestKey {
        self.state().keys.last().unwrap().clone()
    }

    /// An access token as a person would have it, valid from now on; `claims` are added, `null` takes one away.
    pub(crate) fn access_token(&self, claims: Value) -> String {
        let behaviour = self.behaviour();
        let mut all = self.times(behaviour.lifetime);
        all.extend(behaviour.user.clone());
        let audience = behaviour.audience.clone().unwrap_or_default();
        all.insert("aud".to_owned(), audience.into());
        merge(&mut all, object(claims));
        self.sign(behaviour.token_type, &all)
    }

    /// A JWT of exactly `claims` with the newest key.
    pub(crate) fn sign(&self, typ: &str, claims: &Map<String, Value>) -> String {
        self.key().sign(typ, claims)
    }

    /// Ends every grant: refresh tokens are refused.
    pub(crate) fn revoke_grants(&self) {
        let mut state = self.state();
        state.refresh_tokens.clear();
        state.access_tokens.clear();
    }

    /// The subject and the other claims of an access token that it issued and did not revoke.
    pub(crate) fn issued(&self, token: &str) -> Option<Map<String, Value>> {
        self.state().access_tokens.get(token).cloned()
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.state().requests.clone()
    }

    /// The requests whose path ends so.
    pub(crate) fn requests_for(&self, path: &str) -> Vec<Received> {
        let mut all = self.requests();
        all.retain(|it| it.path.ends_with(path));
        all
    }

    /// How many requests there were whose path ends so.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.requests_for(path).len()
    }

    /// Its metadata, as it publishes it.
    pub(crate) fn metadata(&self) -> Value {
        let behaviour = self.behaviour();
        let mut metadata = json!({
            "issuer": self.url(),
            "authorization_endpoint": self.endpoint("authorize"),
            "token_endpoint": self.endpoint("token"),
            "jwks_uri": self.endpoint("jwks"),
            "revocation_endpoint": self.endpoint("revoke"),
            "introspection_endpoint": self.endpoint("introspect"),
            "userinfo_endpoint": self.endpoint("userinfo"),
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [behaviour.algorithm],
            "grant_types_supported": [
                "authorization_code",
                "refresh_token",
                "client_credentials",
                "urn:ietf:params:oauth:grant-type:token-exchange",
                "urn:ietf:params:oauth:grant-type:jwt-bearer",
            ],
            "token_endpoint_auth_methods_supported":
                ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"],
            "token_endpoint_auth_signing_alg_values_supported": ["RS256", "ES256"],
            "scopes_supported": behaviour.scopes,
        });
        let members = metadata.as_object_mut().unwrap();
        if behaviour.advertises_pkce {
            members.insert(
                "code_challenge_methods_supported".to_owned(),
                json!(["S256"]),
            );
        }
        if behaviour.registration != Registration::None {
            members.insert(
                "registration_endpoint".to_owned(),
                self.endpoint("register").into(),
            );
        }
        if behaviour.client_id_documents {
            members.insert(
                "client_id_metadata_document_supported".to_owned(),
                true.into(),
            );
        }
        if behaviour.iss_parameter {
            members.insert(
                "authorization_response_iss_parameter_supported".to_owned(),
                true.into(),
            );
        }
        merge(members, behaviour.metadata);
        metadata
    }

    /// `iss`, `iat` and `exp` of a token made now.
    fn times(&self, lifetime: i64) -> Map<String, Value> {
        let now = self.now();
        object(json!({"iss": self.url(), "iat": now, "exp": now + lifetime}))
    }

    /// Seconds since 1970 by its own clock.
    fn now(&self) -> i64 {
        jiff::Timestamp::now().as_second() + self.behaviour().clock_ahead
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }
}

/// Replaces members by `others`, and takes away those that are `null` there.
fn merge(members: &mut Map<String, Value>, others: Map<String, Value>) {
    for (name, value) in others {
        if value.is_null() {
            members.remove(&name);
        } else {
            members.insert(name, value);
        }
    }
}

/// Parameters of a query or a form.
fn params(text: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(text.as_bytes())
        .into_owned()
        .collect()
}

fn random() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Starts a task of the test; it ends with the runtime of the test.
#[expect(
    clippy::disallowed_methods,
    reason = "the gateway's tasks are not the test's"
)]
fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(future));
}
