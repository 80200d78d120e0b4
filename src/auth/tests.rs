//! Who is let in with what.

use http::{HeaderMap, HeaderName, HeaderValue};

use futures_util::{FutureExt, future::BoxFuture};

use serde_json::{Map, Value};

use super::TokenValidity;
use super::token::{Scopes, TokenRejection, TokenSubject, VerifiedToken};
use super::*;
use crate::{
    config::{AuthMethod, Secret},
    store::KeyHash,
};

const UNKNOWN: AuthError = AuthError::Rejected(KeyRejection::Unknown);
const KEY: &str = "tbk_0123456789012345678901234567890123456789";

#[test]
fn a_key_is_found_in_either_header_and_nowhere_else() {
    let directory = directory(Authentication::KEYS);
    let check = |headers: &[(&str, &str)], expect: Result<&str, AuthError>| {
        let map: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                (name, HeaderValue::from_str(value).unwrap())
            })
            .collect();
        let found = identify(&directory, &map).map(|agent| agent.name.clone());
        assert_eq!(
            found.as_deref(),
            expect.as_ref().map(|name| *name),
            "{headers:?}"
        );
    };
    let bearer = format!("Bearer {KEY}");
    check(&[("authorization", &bearer)], Ok("researcher"));
    check(
        &[("authorization", &format!("bearer  {KEY}"))],
        Ok("researcher"),
    );
    check(&[("x-api-key", KEY)], Ok("researcher"));
    check(
        &[("x-api-key", KEY), ("authorization", &bearer)],
        Ok("researcher"),
    );
    check(&[], Err(AuthError::Missing(Authentication::KEYS)));
    check(&[("authorization", KEY)], Err(UNKNOWN));
    check(&[("authorization", "Basic abc")], Err(UNKNOWN));
    check(&[("x-api-key", "tbk_other")], Err(UNKNOWN));
    check(
        &[("x-api-key", KEY), ("authorization", "Bearer x")],
        Err(AuthError::Ambiguous),
    );
}

#[test]
fn without_authentication_everybody_is_the_anonymous_agent() {
    let directory = directory(Authentication::ANONYMOUS);
    let agent = identify(&directory, &HeaderMap::new()).unwrap();
    assert_eq!(agent.id, AgentId::ANONYMOUS);
}

#[test]
fn a_key_ends_with_its_time_and_with_the_store_that_drops_it() {
    let directory = directory(Authentication::KEYS);
    let agent = Agent {
        id: AgentId::from_name("stored"),
        name: "stored".to_owned(),
        ..Agent::anonymous()
    };
    let key = |expires: Option<&str>| StoredKey {
        expires: expires.map(|at| at.parse().unwrap()),
        ..key_of(&agent)
    };
    let mut headers = HeaderMap::new();
    headers.insert(API_KEY_HEADER, HeaderValue::from_static("secret"));
    assert_eq!(identify(&directory, &headers), Err(UNKNOWN));
    directory.update_store(vec![agent.clone()], vec![key(None)]);
    let first = identify(&directory, &headers).unwrap();
    assert_eq!(first.name, "stored");
    directory.update_store(vec![agent.clone()], vec![key(Some("2999-01-01T00:00:00Z"))]);
    assert!(Arc::ptr_eq(
        &first,
        &identify(&directory, &headers).unwrap()
    ));
    let later = "2999-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(directory.next_expiry(), Some(later));
    directory.remove_expired();
    assert!(
        directory.is_still_authorized(&first),
        "its time has not come"
    );
    directory.update_store(vec![agent.clone()], vec![key(Some("2001-01-01T00:00:00Z"))]);
    let why = |wrong: fn(KeyId) -> KeyRejection| Err(AuthError::Rejected(wrong(KeyId::new("k1"))));
    assert_eq!(identify(&directory, &headers), why(KeyRejection::Expired));
    assert!(!directory.is_still_authorized(&first));
    assert!(first.session_validity.token().is_cancelled());
    assert_eq!(directory.next_expiry(), None);
    directory.update_store(vec![agent.clone()], vec![key(None)]);
    let first = identify(&directory, &headers).unwrap();
    assert!(
        !first.session_validity.token().is_cancelled(),
        "it came in anew"
    );
    let revoked = StoredKey {
        revoked: Some(clock::now()),
        ..key(Some("2001-01-01T00:00:00Z"))
    };
    directory.update_store(vec![agent.clone()], vec![revoked]);
    assert_eq!(identify(&directory, &headers), why(KeyRejection::Revoked));
    assert!(!directory.is_still_authorized(&first));
    directory.update_store(vec![agent.clone()], vec![key(None)]);
    let first = identify(&directory, &headers).unwrap();
    directory.update_store(vec![agent.clone()], Vec::new());
    assert_eq!(identify(&directory, &headers), Err(UNKNOWN));
    assert!(!directory.is_still_authorized(&first));
    directory.update_store(Vec::new(), Vec::new());
    assert_eq!(directory.current(agent.id), None);
}

#[test]
fn who_is_disabled_is_shown_out_but_not_who_came_in_so() {
    let directory = directory(Authentication::KEYS);
    let load = |enabled| {
        let agent = Agent {
            id: AgentId::from_name("stored"),
            name: "stored".to_owned(),
            enabled,
            ..Agent::anonymous()
        };
        directory.update_store(vec![agent.clone()], vec![key_of(&agent)]);
        directory.current(agent.id).unwrap()
    };
    let (enabled, disabled) = (load(true), load(false));
    assert!(!directory.is_still_authorized(&enabled));
    assert!(
        directory.is_still_authorized(&disabled),
        "each call says so"
    );
    load(true);
    assert!(directory.is_still_authorized(&enabled) && directory.is_still_authorized(&disabled));
}

#[test]
fn a_disabled_agent_of_the_store_has_no_keys_behind_one_of_the_config() {
    let directory = directory(Authentication::KEYS);
    let written = directory.named("researcher").unwrap();
    let stored = |enabled| Agent {
        name: "of the store".to_owned(),
        enabled,
        ..(*written).clone()
    };
    let key = key_of(&written);
    let mut of_store = HeaderMap::new();
    of_store.insert(API_KEY_HEADER, HeaderValue::from_static("secret"));
    let mut of_config = HeaderMap::new();
    of_config.insert(API_KEY_HEADER, HeaderValue::from_static(KEY));
    directory.update_store(vec![stored(true)], vec![key.clone()]);
    let opened = identify(&directory, &of_store).unwrap();
    assert_eq!(opened.name, "researcher", "the config hides the other");
    directory.update_store(vec![stored(false)], vec![key.clone()]);
    let revoked = AuthError::Rejected(KeyRejection::Revoked(key.id.clone()));
    assert_eq!(identify(&directory, &of_store), Err(revoked));
    assert!(!directory.is_still_authorized(&opened), "it is shown out");
    identify(&directory, &of_config).unwrap();
    directory.update_store(vec![stored(true)], vec![key]);
    identify(&directory, &of_store).unwrap();
}

#[tokio::test]
async fn the_use_of_a_key_outlives_a_reading_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = crate::store::Store::open(dir.path()).await.unwrap();
    let directory = directory(Authentication::KEYS);
    let agent = directory.named("researcher").unwrap();
    let key = key_of(&agent);
    store.keys.add(&key).await.unwrap();
    directory.update_store(Vec::new(), vec![key.clone()]);
    let mut headers = HeaderMap::new();
    headers.insert(API_KEY_HEADER, HeaderValue::from_static("secret"));
    identify(&directory, &headers).unwrap();
    let mut changes = directory.changes();
    directory.update_store(Vec::new(), vec![key]);
    assert!(!changes.has_changed().unwrap(), "nothing has changed");
    directory.update_store(Vec::new(), Vec::new());
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    directory
        .uses()
        .write_due(&*store.keys, clock::now())
        .await
        .unwrap();
    let keys = store.keys.keys().await.unwrap().rows;
    assert!(keys[0].last_used.is_some());
    store.close().await;
}

/// A live key of the store, which is `secret`.
fn key_of(agent: &Agent) -> StoredKey {
    StoredKey {
        id: KeyId::new("k1"),
        agent: agent.id,
        hash: KeyHash::of("secret"),
        prefix: "tbk_abcd".to_owned(),
        created: clock::now(),
        expires: None,
        revoked: None,
        last_used: None,
    }
}

fn directory(authentication: Authentication) -> AgentDirectory {
    AgentDirectory::new(authentication, [researcher()].into_iter())
}

fn researcher() -> config::AgentConfig {
    config::AgentConfig {
        id: AgentId::from_name("researcher"),
        name: "researcher".to_owned(),
        team: None,
        enabled: true,
        role: Role::Agent,
        keys: vec![Secret::new(KEY)],
        certificates: Vec::new(),
        profiles: None,
        terms: Terms::default(),
    }
}

fn identify(directory: &AgentDirectory, headers: &HeaderMap) -> Result<Arc<Agent>, AuthError> {
    let resource = ResourceUrl {
        scheme: "http://",
        base: "127.0.0.1:8080",
        path: MERGED_ROUTE,
    };
    let shown = Credentials {
        headers,
        certificate: None,
        resource,
    };
    let identified = directory.authenticate(shown).now_or_never().unwrap();
    identified.map(|identity| identity.agent)
}

/// Finds every token good: it is the text of its claims.
#[derive(Debug)]
struct Trusting;

impl TokenVerifier for Trusting {
    fn verify<'t>(
        &'t self,
        token: &'t str,
        _: &'t str,
    ) -> BoxFuture<'t, Option<Result<VerifiedToken, TokenRejection>>> {
        let claims: Map<String, Value> = match serde_json::from_str(token) {
            Ok(claims) => claims,
            Err(_) => return std::future::ready(None).boxed(),
        };
        let verified = VerifiedToken {
            subject: TokenSubject::Claims(claims),
            scopes: Scopes::everything(),
            client: None,
            grant: None,
            expires: "2999-01-01T00:00:00Z".parse().unwrap(),
            validity: TokenValidity::default(),
        };
        std::future::ready(Some(Ok(verified))).boxed()
    }
}

/// A directory in which every user is `researcher`.
fn directory_of_users() -> AgentDirectory {
    let methods = [AuthMethod::Keys, AuthMethod::Oauth];
    let directory = directory(methods.into_iter().collect());
    let rule = serde_json::json!({"claims": {"sub": "*"}, "agent": "researcher"});
    directory.set_agent_matches(vec![serde_json::from_value(rule).unwrap()]);
    directory.set_token_verifiers(vec![Arc::new(Trusting)]);
    directory
}

fn token_of(subject: &str) -> HeaderMap {
    let token = format!(r#"Bearer {{"iss":"https://a","sub":"{subject}"}}"#);
    let mut headers = HeaderMap::new();
    headers.insert("authorization", HeaderValue::try_from(token).unwrap());
    headers
}

#[test]
fn a_user_is_an_agent_until_somebody_ends_that() {
    let directory = directory_of_users();
    let ada = identify(&directory, &token_of("ada")).unwrap();
    let bob = identify(&directory, &token_of("bob")).unwrap();
    assert_eq!(
        (ada.name.as_str(), ada.base),
        ("researcher/ada", AgentId::from_name("researcher"))
    );
    assert_ne!(ada.id, bob.id);
    assert!(Arc::ptr_eq(
        &ada,
        &identify(&directory, &token_of("ada")).unwrap()
    ));
    assert_eq!(directory.current(ada.id), Some(Arc::clone(&ada)));
    assert_eq!(directory.user_count(), 2);
    directory.revoke_user(ada.id);
    assert!(ada.session_validity.token().is_cancelled());
    assert!(!directory.is_still_authorized(&ada) && directory.is_still_authorized(&bob));
    let anew = identify(&directory, &token_of("ada")).unwrap();
    assert!(directory.is_still_authorized(&anew) && !directory.is_still_authorized(&ada));
    directory.set_agent_matches(Vec::new());
    assert!(bob.session_validity.token().is_cancelled());
    assert_eq!(directory.current(bob.id), None);
    let refused = AuthError::Token(TokenRejection::Subject);
    assert_eq!(identify(&directory, &token_of("bob")), Err(refused));
}

#[test]
fn a_user_ends_with_the_agent() {
    let directory = directory_of_users();
    let ada = identify(&directory, &token_of("ada")).unwrap();
    let of_config = |enabled: bool| {
        vec![config::AgentConfig {
            enabled,
            ..researcher()
        }]
    };
    let methods = directory.authentication();
    directory.update_config(methods, of_config(false));
    assert!(ada.session_validity.token().is_cancelled());
    assert!(!identify(&directory, &token_of("ada")).unwrap().enabled);
    directory.update_config(methods, of_config(true));
    assert!(identify(&directory, &token_of("ada")).unwrap().enabled);
    directory.update_config(methods, Vec::new());
    let refused = AuthError::Token(TokenRejection::Subject);
    assert_eq!(identify(&directory, &token_of("ada")), Err(refused));
}

/// Whoever came in as an agent can be shown out, with a key too.
#[test]
fn an_agent_can_be_shown_out() {
    let directory = directory(Authentication::KEYS);
    let mut headers = HeaderMap::new();
    headers.insert(API_KEY_HEADER, HeaderValue::from_static(KEY));
    let first = identify(&directory, &headers).unwrap();
    directory.revoke_user(first.id);
    assert!(first.session_validity.token().is_cancelled());
    assert!(!directory.is_still_authorized(&first));
    let second = identify(&directory, &headers).unwrap();
    assert!(directory.is_still_authorized(&second));
}
