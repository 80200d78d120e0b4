//! The life of codes and tokens, at times that the tests choose.

use jiff::SignedDuration;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{auth::token::TokenSubject, config::Egress, names::AgentId};

const VERIFIER: &str = "a-verifier-of-at-least-forty-three-characters";
const RESOURCE: &str = "http://localhost/mcp";

struct Setup {
    server: AuthorizationServer,
    client: GrantClient,
    store: Store,
    now: Timestamp,
    _data: TempDir,
}

impl Setup {
    async fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let server = AuthorizationServer::new(&store);
        server.update_settings(Some(settings()));
        let now = clock::now();
        let metadata = json!({ "redirect_uris": ["http://localhost/cb"] });
        let metadata = serde_json::from_value(metadata).unwrap();
        let registered = server.register(&metadata, now).await.unwrap();
        let id = registered["client_id"].as_str().unwrap();
        Self {
            client: server.client(id).await.unwrap(),
            server,
            store,
            now,
            _data: data,
        }
    }

    fn request(&self) -> AuthorizationRequest {
        AuthorizationRequest {
            client_id: self.client.id.clone(),
            client_name: None,
            issuer: "http://localhost".to_owned(),
            redirect_uri: "http://localhost:7/cb".to_owned(),
            state: None,
            scope: "tools:call tools:read".to_owned(),
            code_challenge: tokens::challenge_of(VERIFIER),
            resources: vec![
                RESOURCE.to_owned(),
                "http://localhost/mcp/servers/x".to_owned(),
            ],
            asks_consent: false,
            asks_login: false,
        }
    }

    /// A code for the request, and its grant.
    async fn code(&self) -> (Grant, String) {
        let who = LoggedIn::new(
            &TokenSubject::Agent(AgentId::from_name("ann")),
            "ann".to_owned(),
        );
        let approved = self.server.approve(&self.request(), &who, self.now).await;
        let (grant, url) = approved.unwrap();
        let url = url::Url::parse(&url).unwrap();
        let mut params = url.query_pairs();
        let code = params
            .find(|(name, _)| name == "code")
            .unwrap()
            .1
            .into_owned();
        (grant, code)
    }

    async fn exchange(&self, code: &str, seconds: i64) -> Result<IssuedTokens, TokenRequestError> {
        self.exchange_for(code, &Narrowing::default(), seconds)
            .await
    }

    async fn exchange_for(
        &self,
        code: &str,
        narrowing: &Narrowing,
        seconds: i64,
    ) -> Result<IssuedTokens, TokenRequestError> {
        let params = CodeParams {
            code,
            redirect_uri: Some("http://localhost:7/cb"),
            verifier: VERIFIER,
        };
        let now = self.now + SignedDuration::from_secs(seconds);
        self.server
            .exchange_code(&self.client, params, narrowing, now)
            .await
    }

    async fn refresh(&self, token: &str, seconds: i64) -> Result<IssuedTokens, TokenRequestError> {
        let now = self.now + SignedDuration::from_secs(seconds);
        self.server
            .refresh(&self.client, token, &Narrowing::default(), now)
            .await
    }
}

fn settings() -> Settings {
    Settings {
        access_token_lifetime: Duration::from_secs(600),
        refresh_token_lifetime: Duration::from_secs(1_000),
        refresh_grace: Duration::from_secs(60),
        metadata_documents: true,
        registration: Some(RegistrationLimits {
            clients_max: 10,
            unused_max: Duration::from_secs(1_000),
        }),
        login: None,
        egress: EgressClient::new(&Egress::default(), []).unwrap(),
    }
}

fn rejection(result: Result<IssuedTokens, TokenRequestError>) -> &'static str {
    result.err().and_then(|why| why.reason()).unwrap_or("none")
}

#[tokio::test]
async fn a_code_is_good_for_a_minute() {
    let setup = Setup::new().await;
    let (_, code) = setup.code().await;
    assert_eq!(
        rejection(setup.exchange(&code, 60).await),
        "oauth_code_expired"
    );
    setup.exchange(&code, 59).await.unwrap();
    let (grant, code) = setup.code().await;
    setup.exchange(&code, 1).await.unwrap();
    // Whoever comes with it later has it from somebody.
    assert_eq!(
        rejection(setup.exchange(&code, 3_000).await),
        "oauth_replayed"
    );
    let left = setup.server.grants().await.unwrap();
    assert!(left.iter().all(|it| it.id != grant.id));
    setup.store.close().await;
}

#[tokio::test]
async fn a_refresh_token_has_its_time_and_its_grace() {
    let setup = Setup::new().await;
    let (_, code) = setup.code().await;
    let first = setup.exchange(&code, 0).await.unwrap().refresh_token;
    let second = setup.refresh(&first, 300).await.unwrap().refresh_token;
    let third = setup.refresh(&second, 500).await.unwrap().refresh_token;
    setup.refresh(&second, 500 + 59).await.unwrap();
    setup.refresh(&third, 500).await.unwrap();
    assert_eq!(
        rejection(setup.refresh(&second, 500 + 60).await),
        "oauth_replayed"
    );
    assert_eq!(
        rejection(setup.refresh(&third, 600).await),
        "oauth_unknown_code"
    );
    setup.store.close().await;
}

/// However often a client refreshes, its person signs in again at last; then the client goes on with the claims of that
/// time.
#[tokio::test]
async fn refreshes_end_so_long_after_the_sign_in() {
    let setup = Setup::new().await;
    let subject = |groups: &[&str]| {
        let claims = json!({ "iss": "https://a", "sub": "ann", "groups": groups });
        TokenSubject::Claims(claims.as_object().unwrap().clone())
    };
    let who = |groups: &[&str]| LoggedIn::new(&subject(groups), "ann".to_owned());
    let request = AuthorizationRequest {
        redirect_uri: "https://client.example/cb".to_owned(),
        ..setup.request()
    };
    let code_of = |url: String| {
        let url = url::Url::parse(&url).unwrap();
        let mut params = url.query_pairs();
        params
            .find(|(name, _)| name == "code")
            .unwrap()
            .1
            .into_owned()
    };
    let exchange = async |code: &str, seconds: i64| {
        let params = CodeParams {
            code,
            redirect_uri: None,
            verifier: VERIFIER,
        };
        let now = setup.now + SignedDuration::from_secs(seconds);
        let server = &setup.server;
        let narrowing = Narrowing::default();
        let issued = server.exchange_code(&setup.client, params, &narrowing, now);
        issued.await.unwrap()
    };
    let (before, after) = (who(&["a"]), who(&["b"]));
    let approved = setup.server.approve(&request, &before, setup.now);
    let (grant, url) = approved.await.unwrap();
    let first = exchange(&code_of(url), 0).await.refresh_token;
    let second = setup.refresh(&first, 999).await.unwrap();
    // Ends are kept to the millisecond.
    let left = second.expires_in.as_millis();
    assert!((999..=1_000).contains(&left), "{left} ms are left");
    let past = setup.refresh(&second.refresh_token, 1_000).await;
    assert_eq!(rejection(past), "oauth_code_expired");
    // The same client asks again, and somebody logs in of whom another group is claimed.
    let later = setup.now + SignedDuration::from_secs(1_000);
    let again = setup.server.approve_as_before(&request, &after, later);
    let next = exchange(&code_of(again.await.unwrap().unwrap()), 1_000).await;
    assert_eq!(
        (next.grant.id, next.grant.subject),
        (grant.id, subject(&["b"]))
    );
    let third = setup.refresh(&next.refresh_token, 1_999).await.unwrap();
    assert_eq!(third.grant.subject, subject(&["b"]));
    let past = setup.refresh(&third.refresh_token, 2_000).await;
    assert_eq!(rejection(past), "oauth_code_expired");
    setup.store.close().await;
}

/// A client that never uses up a refresh token gets no tokens without end: the oldest go.
#[tokio::test]
async fn a_grant_has_so_many_tokens() {
    let setup = Setup::new().await;
    let (_, code) = setup.code().await;
    let first = setup.exchange(&code, 0).await.unwrap();
    let is_good = async |token: &str| {
        let verified = setup.server.verify(token, RESOURCE).await;
        verified.unwrap().is_ok()
    };
    let refresh = async |seconds: usize| {
        let seconds = i64::try_from(seconds).unwrap();
        setup.refresh(&first.refresh_token, seconds).await.unwrap()
    };
    let max = crate::store::TOKENS_PER_GRANT_MAX;
    let second = refresh(1).await;
    for nth in 2..max {
        assert!(!refresh(nth).await.has_displaced);
    }
    assert!(is_good(&first.access_token).await, "at the limit");
    assert!(refresh(max).await.has_displaced);
    assert!(!is_good(&first.access_token).await, "past it");
    assert!(is_good(&second.access_token).await);
    let live = setup.store.oauth.access_tokens().await.unwrap();
    assert_eq!(live.len(), max);
    let used = TokenHash::of(&second.access_token);
    assert!(setup.store.oauth.remove_token(used).await.unwrap());
    assert!(!refresh(max + 1).await.has_displaced, "back under it");
    setup.store.close().await;
}

#[tokio::test]
async fn tokens_are_for_what_was_granted_or_less() {
    let setup = Setup::new().await;
    let (_, code) = setup.code().await;
    let narrow = |scope: &str, resource: &str| Narrowing {
        scopes: Some(Scopes::parse(scope)),
        resources: vec![resource.to_owned()],
    };
    for (scope, resource, error) in [
        ("tools:call admin", RESOURCE, "invalid_scope"),
        (
            "tools:call",
            "http://localhost/mcp/servers/y",
            "invalid_target",
        ),
    ] {
        let result = setup.exchange_for(&code, &narrow(scope, resource), 0).await;
        assert_eq!(result.unwrap_err().code(), error);
    }
    let less = narrow("tools:read", "http://localhost/mcp/servers/x");
    let tokens = setup.exchange_for(&code, &less, 0).await.unwrap();
    assert_eq!(tokens.scope, "tools:read");
    let (token, server) = (&tokens.access_token, &setup.server);
    let on = async |resource| server.verify(token, resource).await.unwrap();
    assert!(on("http://localhost/mcp/servers/x").await.is_ok());
    assert_eq!(on(RESOURCE).await, Err(TokenRejection::Audience));
    // The next ones may be for all again.
    let next = setup.refresh(&tokens.refresh_token, 1).await.unwrap();
    assert_eq!(next.scope, "tools:call tools:read");
    setup.store.close().await;
}

#[tokio::test]
async fn all_processes_know_what_one_issues_and_revokes() {
    let setup = Setup::new().await;
    let other = AuthorizationServer::new(&setup.store);
    other.update_settings(Some(settings()));
    let (grant, code) = setup.code().await;
    let tokens = setup.exchange(&code, 0).await.unwrap();
    let token = &tokens.access_token;
    let verified = other.verify(token, RESOURCE).await.unwrap().unwrap();
    assert_eq!(
        verified.subject,
        TokenSubject::Agent(AgentId::from_name("ann"))
    );
    let known = || vec![grant.id.clone()];
    let nothing = EndedAccess::default();
    assert_eq!(other.reread(known()).await.unwrap(), nothing);
    let changes = setup.server.changes();
    assert!(setup.server.revoke_grant(&grant.id).await.unwrap());
    assert!(changes.has_changed().unwrap());
    let unknown = Err(TokenRejection::Unknown);
    assert_eq!(setup.server.verify(token, RESOURCE).await.unwrap(), unknown);
    let ended = EndedAccess {
        grants: known(),
        has_tokens: true,
    };
    assert_eq!(other.reread(known()).await.unwrap(), ended);
    let ended = EndedAccess {
        grants: known(),
        has_tokens: false,
    };
    let again = other.reread(known()).await.unwrap();
    assert_eq!(again, ended, "none of its tokens is known");
    assert_eq!(other.verify(token, RESOURCE).await.unwrap(), unknown);
    assert_eq!(
        other.verify("tbk_key", RESOURCE).await,
        None,
        "it is no token"
    );
    other.update_settings(None);
    assert_eq!(other.verify(token, RESOURCE).await, None, "it is off");
    setup.store.close().await;
}

#[tokio::test]
async fn a_client_over_tls_is_not_asked_again_for_the_same() {
    let setup = Setup::new().await;
    let who = LoggedIn::new(
        &TokenSubject::Agent(AgentId::from_name("ann")),
        "ann".to_owned(),
    );
    let bob = LoggedIn::new(
        &TokenSubject::Agent(AgentId::from_name("bob")),
        "bob".to_owned(),
    );
    let request = AuthorizationRequest {
        redirect_uri: "https://client.example/cb".to_owned(),
        scope: "tools:read".to_owned(),
        ..setup.request()
    };
    let before = async |request: &AuthorizationRequest, who: &LoggedIn| {
        let approved = setup
            .server
            .approve_as_before(request, who, setup.now)
            .await;
        approved.unwrap().is_some()
    };
    assert!(!before(&request, &who).await);
    setup
        .server
        .approve(&request, &who, setup.now)
        .await
        .unwrap();
    assert!(before(&request, &who).await);
    assert!(!before(&request, &bob).await, "somebody else");
    for different in [
        AuthorizationRequest {
            scope: "tools:read tools:call".to_owned(),
            ..request.clone()
        },
        AuthorizationRequest {
            redirect_uri: "https://other.example/cb".to_owned(),
            ..request.clone()
        },
        AuthorizationRequest {
            client_id: "another".to_owned(),
            ..request.clone()
        },
        AuthorizationRequest {
            resources: vec!["http://localhost/sse".to_owned()],
            ..request.clone()
        },
        AuthorizationRequest {
            asks_consent: true,
            ..request.clone()
        },
    ] {
        assert!(!before(&different, &who).await, "{different:?}");
    }
    let local = setup.request();
    setup.server.approve(&local, &who, setup.now).await.unwrap();
    assert!(!before(&local, &who).await, "any program may be there");
    setup.store.close().await;
}

/// What is in the store is good only as it was written, where it was written.
#[tokio::test]
async fn rows_that_others_write_are_no_grants() {
    let setup = Setup::new().await;
    let (grant, code) = setup.code().await;
    let tokens = setup.exchange(&code, 0).await.unwrap();
    let stored = setup.store.oauth.grants().await.unwrap().remove(0);
    let (known, _) = setup
        .store
        .oauth
        .token(TokenHash::of(&tokens.access_token))
        .await
        .unwrap()
        .unwrap();
    let forged = StoredOAuthGrant {
        id: "grant_forged".to_owned(),
        ..stored
    };
    let hash = TokenHash::of("tba_forged");
    let token = crate::store::StoredToken {
        hash,
        grant: forged.id.clone(),
        ..known
    };
    setup.store.oauth.add_grant(&forged, &token).await.unwrap();
    let found = setup.server.verify("tba_forged", RESOURCE).await.unwrap();
    assert_eq!(found, Err(TokenRejection::Unknown));
    let ids: Vec<String> = setup
        .server
        .grants()
        .await
        .unwrap()
        .into_iter()
        .map(|it| it.id)
        .collect();
    assert_eq!(ids, [grant.id]);
    setup.store.close().await;
}
