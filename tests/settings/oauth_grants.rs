//! Tokens that the gateway gets for servers.

use serde_json::json;
use tollbridge::{
    names::{AgentId, ServerName},
    oauth_client::{AccessToken, GrantError, GrantStorage, Grants, GrantsParts, SignInRequest},
    store::{GrantOwner, Store},
    task::Tasks,
};
use url::Url;

use crate::{
    harness::parse,
    support::issuer::{Behaviour, Issuer},
};

const SERVER: &str = "http://127.0.0.1:9/mcp";

fn server() -> ServerName {
    ServerName::parse("one").unwrap()
}

fn agent() -> AgentId {
    AgentId::from_name("ada")
}

/// A config of one server with these keys of `auth`.
fn config(auth: &str) -> String {
    format!("[servers.one]\nurl = \"{SERVER}\"\n[servers.one.auth]\ntype = \"oauth2\"\n{auth}\n")
}

async fn issuer() -> Issuer {
    let issuer = Issuer::start(Behaviour::default()).await;
    issuer.add_client("gateway", Some("secret"), &[]);
    issuer
}

/// The grants of a gateway with these keys of `auth`, and its data directory.
async fn grants(auth: &str) -> (Grants, tempfile::TempDir) {
    let data_dir = tempfile::tempdir().unwrap();
    let store = Store::open(data_dir.path()).await.unwrap();
    let storage = GrantStorage::new(store, data_dir.path());
    let grants = Grants::new(GrantsParts::new(Some(storage), Tasks::new()));
    grants.configure(&parse(&config(auth)).unwrap());
    (grants, data_dir)
}

/// A token for a call of an agent that has shown `caller`.
async fn token(auth: &str, caller: Option<&str>) -> Result<AccessToken, GrantError> {
    let (grants, _data_dir) = grants(auth).await;
    if let Some(caller) = caller {
        let mut headers = http::HeaderMap::new();
        headers.insert("authorization", format!("Bearer {caller}").parse().unwrap());
        grants.offer_subject(agent(), &headers);
    }
    let grants = grants.towards(&server()).unwrap();
    grants.access_token(GrantOwner::Agent(agent())).await
}

/// The keys of a client with a secret.
fn keys(issuer: &Issuer, grant: &str) -> String {
    let url = issuer.url();
    format!(
        "grant = \"{grant}\"\nissuer = \"{url}\"\nclient_id = \"gateway\"\nclient_secret = \"secret\"\n"
    )
}

/// The parameter `name` of the last request for a token.
fn asked(issuer: &Issuer, name: &str) -> Option<String> {
    let requests = issuer.requests_for("/token");
    requests.last().unwrap().param(name).map(str::to_owned)
}

#[tokio::test]
pub(crate) async fn own_credentials() {
    let issuer = issuer().await;
    let keys = keys(&issuer, "client_credentials");
    token(&keys, None).await.unwrap();
    assert_eq!(asked(&issuer, "grant_type").unwrap(), "client_credentials");
    assert_eq!(asked(&issuer, "scope"), None);
    assert_eq!(asked(&issuer, "audience"), None);
    let more = "scopes = [\"tools:read\", \"tools:call\"]\naudience = \"https://api\"\n";
    token(&format!("{keys}{more}"), None).await.unwrap();
    let scopes = asked(&issuer, "scope").unwrap();
    assert!(scopes.starts_with("tools:read tools:call"), "{scopes}");
    assert_eq!(asked(&issuer, "audience").unwrap(), "https://api");
    let wrong = token(&keys.replace("secret\"", "wrong\""), None).await;
    assert!(
        matches!(wrong, Err(GrantError::Refused { .. })),
        "{wrong:?}"
    );
    let unknown = token(&keys.replace("gateway", "unknown"), None).await;
    assert!(
        matches!(unknown, Err(GrantError::Refused { .. })),
        "{unknown:?}"
    );
}

#[tokio::test]
pub(crate) async fn private_key() {
    let issuer = issuer().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key.pem");
    let pair = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&path, pair.serialize_pem()).unwrap();
    let public = pair.public_key_pem();
    let key = jsonwebtoken::DecodingKey::from_ec_pem(public.as_bytes()).unwrap();
    issuer.add_client_with_key("signer", key, &[]);
    let keys = keys(&issuer, "client_credentials").replace("gateway", "signer");
    let signs = format!("private_key = \"{}\"", path.display());
    let keys = keys.replace("client_secret = \"secret\"", &signs);
    token(&keys, None).await.unwrap();
    assert!(asked(&issuer, "client_assertion").is_some());
}

/// A token of a caller, of the type `typ`.
fn caller(issuer: &Issuer, typ: &'static str) -> String {
    issuer.change(|it| it.token_type = typ);
    issuer.access_token(json!({"sub": "ada"}))
}

#[tokio::test]
pub(crate) async fn exchange() {
    let issuer = issuer().await;
    let keys = keys(&issuer, "token_exchange");
    let caller = caller(&issuer, "at+jwt");
    token(&keys, Some(&caller)).await.unwrap();
    assert_eq!(asked(&issuer, "subject_token").unwrap(), caller);
    assert_eq!(asked(&issuer, "actor_token"), None);
    let own = issuer.access_token(json!({"sub": "workload"}));
    let own = format!("{keys}subject_token = \"{own}\"\nactor_token = \"of the gateway\"\n");
    token(&own, Some(&caller)).await.unwrap();
    assert_ne!(asked(&issuer, "subject_token").unwrap(), caller);
    assert_eq!(asked(&issuer, "actor_token").unwrap(), "of the gateway");
}

#[tokio::test]
pub(crate) async fn assertion() {
    let (issuer, idp) = (issuer().await, issuer().await);
    idp.add_client("gateway", Some("at the provider"), &[]);
    let caller = caller(&idp, "JWT");
    let with = |secret: &str| {
        format!(
            "{}idp = {{ issuer = \"{}\", client_id = \"gateway\", client_secret = \"{secret}\" }}\n",
            keys(&issuer, "id_jag"),
            idp.url()
        )
    };
    token(&with("at the provider"), Some(&caller))
        .await
        .unwrap();
    assert_eq!(asked(&idp, "subject_token").unwrap(), caller);
    assert!(asked(&issuer, "assertion").is_some());
    let wrong = token(&with("wrong"), Some(&caller)).await;
    assert!(
        matches!(wrong, Err(GrantError::Refused { .. })),
        "{wrong:?}"
    );
}

#[tokio::test]
pub(crate) async fn per_user() {
    let issuer = issuer().await;
    let keys = keys(&issuer, "authorization_code");
    let (each, _data_dir) = grants(&keys).await;
    assert!(each.is_per_agent(&server()));
    let (one, _data_dir) = grants(&format!("{keys}per_user = false\n")).await;
    assert!(!one.is_per_agent(&server()));
    let request = SignInRequest {
        selects_account: false,
        redirect_uri: Url::parse("http://127.0.0.1:1/oauth/callback").unwrap(),
        browser: "cookie".to_owned(),
        client_metadata: None,
    };
    let url = one
        .begin(&server(), GrantOwner::Gateway, &request)
        .await
        .unwrap();
    assert!(
        url.as_str().starts_with(&issuer.endpoint("authorize")),
        "{url}"
    );
}

/// What is wrong with the keys of `auth`.
fn mistake(auth: &str) -> String {
    parse(&config(auth)).unwrap_err()
}

#[test]
fn grants_that_cannot_work_are_refused() {
    let check = |auth: &str, expect: &str| {
        let mistake = mistake(auth);
        assert!(mistake.contains(expect), "{auth}: {mistake}");
    };
    check("grant = \"client_credentials\"", "requires `client_id`");
    check(
        "grant = \"client_credentials\"\nclient_id = \"a\"",
        "requires `client_secret` or `private_key`",
    );
    check(
        "grant = \"client_credentials\"\nclient_id = \"a\"\nclient_secret = \"a\"\nprivate_key = \"a\"",
        "sets the credential twice",
    );
    check(
        "grant = \"authorization_code\"\nclient_secret = \"a\"",
        "requires `client_id`",
    );
    check("grant = \"id_jag\"\nclient_id = \"a\"", "requires `idp`");
    check("grant = \"token_exchange\"", "requires `client_id`");
    check(
        "grant = \"authorization_code\"\nissuer = \"as.example\"",
        "is not an `https:` URL",
    );
    check(
        "grant = \"authorization_code\"\nscopes = [\"a b\"]",
        "is not one scope",
    );
    check("grant = \"password\"", "grant");
}

#[test]
pub(crate) fn replicas_have_none() {
    let replica = format!(
        "{{ url = \"{SERVER}\", auth = {{ type = \"oauth2\", grant = \"client_credentials\", client_id = \"a\", \
         client_secret = \"b\" }} }}"
    );
    let mistake = parse(&format!("[servers.one]\nreplicas = [{replica}]\n")).unwrap_err();
    assert!(
        mistake.contains("replicas have fixed credentials"),
        "{mistake}"
    );
}
