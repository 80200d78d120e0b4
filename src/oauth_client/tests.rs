//! Grants against a scripted issuer.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{StatusCode, header::LOCATION};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use jiff::SignedDuration;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use super::{record::OpenGrant, *};
use crate::{
    config::{Secret, SecretKeyPlace},
    names::AgentId,
    store::Store,
};

#[path = "../../tests/support/issuer.rs"]
mod issuer;

use issuer::{Behaviour, Issuer, TestKey};

const SERVER: &str = "http://127.0.0.1:9/mcp";
const BROWSER: &str = "cookie of this browser";

/// An issuer, and a gateway whose only server wants its tokens.
struct Bench {
    issuer: Issuer,
    data_dir: TempDir,
    store: Store,
    grants: Grants,
    tasks: Tasks,
    ahead: Arc<AtomicI64>,
    auth: String,
}

impl Bench {
    /// `auth` are the keys of `servers.s.auth` besides its type and the issuer.
    async fn start(behaviour: Behaviour, auth: &str) -> Self {
        let issuer = Issuer::start(behaviour).await;
        issuer.add_client("gateway", Some("a secret of +&="), &[]);
        let data_dir = tempfile::tempdir().unwrap();
        let store = Store::open(data_dir.path()).await.unwrap();
        let tasks = Tasks::new();
        let ahead = Arc::new(AtomicI64::new(0));
        let auth = format!("issuer = '{}'\n{auth}", issuer.url());
        let grants = grants_of(&data_dir, &store, &tasks, &ahead);
        let bench = Self {
            issuer,
            data_dir,
            store,
            grants,
            tasks,
            ahead,
            auth,
        };
        bench.configure(&bench.grants);
        bench
    }

    fn configure(&self, grants: &Grants) {
        self.configure_at(SERVER, grants);
    }

    /// With the server at another URL.
    fn configure_at(&self, url: &str, grants: &Grants) {
        let auth = &self.auth;
        grants.configure(&Config::example(&format!(
            "[servers.s]\nurl = '{url}'\n[servers.s.auth]\ntype = 'oauth2'\n{auth}"
        )));
    }

    /// Another process of the same data directory.
    async fn another_process(&self) -> Grants {
        let store = Store::open(self.data_dir.path()).await.unwrap();
        let grants = grants_of(&self.data_dir, &store, &self.tasks, &self.ahead);
        self.configure(&grants);
        grants
    }

    fn server_grants(&self) -> ServerGrants {
        self.grants.towards(&server()).unwrap()
    }

    fn wait(&self, time: SignedDuration) {
        self.ahead.fetch_add(time.as_secs(), Ordering::Relaxed);
    }

    async fn token(&self, owner: GrantOwner) -> Result<AccessToken, GrantError> {
        token_of(&self.grants, owner).await
    }

    /// Shows `token` as a request of `agent` does.
    fn show(&self, agent: u128, token: &str) {
        let mut headers = http::HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        let agent = AgentId(Uuid::from_u128(agent));
        self.grants.offer_subject(agent, &headers);
    }

    async fn begin(&self, owner: GrantOwner) -> Result<Url, GrantError> {
        let request = SignInRequest {
            redirect_uri: Url::parse("http://127.0.0.1:1/oauth/callback").unwrap(),
            browser: BROWSER.to_owned(),
            client_metadata: None,
            selects_account: false,
        };
        self.grants.begin(&server(), owner, &request).await
    }

    /// Signs in as a browser does: the query that it brings back.
    async fn visit(&self, url: &Url) -> String {
        let browser = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let answer = browser.get(url.as_str().parse().unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::FOUND, "{url}");
        let location = answer.headers()[LOCATION].to_str().unwrap();
        Url::parse(location).unwrap().query().unwrap().to_owned()
    }

    async fn sign_in(&self, owner: GrantOwner) {
        let mut url = self.begin(owner).await.unwrap();
        loop {
            let query = self.visit(&url).await;
            match self.grants.finish(&query, BROWSER).await.unwrap() {
                SignIn::Again(again) => url = again,
                done @ SignIn::Done { .. } => {
                    let expect = SignIn::Done {
                        server: server(),
                        owner,
                    };
                    assert_eq!(done, expect);
                    return;
                }
            }
        }
    }

    async fn status(&self, owner: GrantOwner) -> GrantStatus {
        self.grants.list(owner).await.unwrap()[0].status
    }

    /// The refresh tokens that were sent.
    fn spent(&self) -> Vec<String> {
        let requests = self.issuer.requests_for("/token");
        let sent = requests.iter().filter_map(|it| it.param("refresh_token"));
        sent.map(str::to_owned).collect()
    }
}

fn grants_of(data_dir: &TempDir, store: &Store, tasks: &Tasks, ahead: &Arc<AtomicI64>) -> Grants {
    let ahead = Arc::clone(ahead);
    Grants::new(GrantsParts {
        storage: Some(GrantStorage::new(store.clone(), data_dir.path())),
        tasks: tasks.clone(),
        now: GrantClock::new(move || {
            clock::now() + SignedDuration::from_secs(ahead.load(Ordering::Relaxed))
        }),
    })
}

async fn token_of(grants: &Grants, owner: GrantOwner) -> Result<AccessToken, GrantError> {
    grants.towards(&server()).unwrap().access_token(owner).await
}

fn server() -> ServerName {
    ServerName::parse("s").unwrap()
}

fn agent(number: u128) -> GrantOwner {
    GrantOwner::Agent(AgentId(Uuid::from_u128(number)))
}

fn text(token: &AccessToken) -> String {
    token.header().to_str().unwrap().to_owned()
}

/// What the issuer put into `token`.
fn claims(bench: &Bench, token: &AccessToken) -> serde_json::Map<String, serde_json::Value> {
    let text = text(token);
    bench
        .issuer
        .issued(text.strip_prefix("Bearer ").unwrap())
        .unwrap()
}

const OWN: &str =
    "grant = 'client_credentials'\nclient_id = 'gateway'\nclient_secret = 'a secret of +&='\n";
const PERSON: &str =
    "grant = 'authorization_code'\nclient_id = 'gateway'\nclient_secret = 'a secret of +&='\n";

#[tokio::test]
async fn the_gateway_gets_a_token_for_itself_and_keeps_it() {
    let bench = Bench::start(
        Behaviour::default(),
        &format!("{OWN}scopes = ['tools:call']"),
    )
    .await;
    let all = join_all((0..10).map(|_| bench.token(agent(1)))).await;
    let texts: HashSet<_> = all.iter().map(|it| text(it.as_ref().unwrap())).collect();
    assert_eq!((texts.len(), bench.issuer.count("/token")), (1, 1));
    let asked = &bench.issuer.requests_for("/token")[0];
    assert_eq!(asked.param("resource"), Some(SERVER));
    assert_eq!(asked.param("client_secret"), None);
    let claims = claims(&bench, all[0].as_ref().unwrap());
    assert_eq!(
        (&claims["aud"], &claims["scope"]),
        (&json!(SERVER), &json!("tools:call offline_access"))
    );
    bench.wait(SignedDuration::from_hours(2));
    let later = bench.token(agent(2)).await.unwrap();
    assert_ne!(text(&later), *texts.iter().next().unwrap());
    assert_eq!(bench.issuer.count("/token"), 2);
}

#[tokio::test]
async fn a_secret_goes_where_the_issuer_wants_it() {
    let methods = json!({"token_endpoint_auth_methods_supported": ["client_secret_post"]});
    let behaviour = Behaviour {
        metadata: issuer::object(methods),
        ..Behaviour::default()
    };
    let bench = Bench::start(behaviour, OWN).await;
    bench.token(GrantOwner::Gateway).await.unwrap();
    let asked = &bench.issuer.requests_for("/token")[0];
    assert_eq!(asked.param("client_secret"), Some("a secret of +&="));
    assert_eq!(asked.authorization, None);
}

#[tokio::test]
async fn the_gateway_signs_who_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key.pem");
    let pair = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&path, pair.serialize_pem()).unwrap();
    let auth = format!(
        "grant = 'client_credentials'\nclient_id = 'signer'\nprivate_key = '{}'\n",
        path.display()
    );
    let bench = Bench::start(Behaviour::default(), &auth).await;
    let public = pair.public_key_pem();
    let key = jsonwebtoken::DecodingKey::from_ec_pem(public.as_bytes()).unwrap();
    bench.issuer.add_client_with_key("signer", key, &[]);
    bench.token(GrantOwner::Gateway).await.unwrap();
    // A key of RSA takes its place: the issuer knows no other now, and is asked for another token.
    let (private, public) = TestKey::rsa_pair();
    std::fs::write(&path, private).unwrap();
    bench.issuer.add_client_with_key("signer", public, &[]);
    bench.wait(SignedDuration::from_hours(2));
    bench.token(GrantOwner::Gateway).await.unwrap();
    std::fs::write(&path, "no key").unwrap();
    bench.wait(SignedDuration::from_hours(2));
    let error = bench.token(GrantOwner::Gateway).await.unwrap_err();
    assert!(
        error.to_string().contains("is not the private key"),
        "{error}"
    );
}

#[tokio::test]
async fn each_caller_gets_a_token_for_theirs() {
    let auth = "grant = 'token_exchange'\nclient_id = 'gateway'\nclient_secret = 'a secret of +&='\n\
                audience = 'https://api'\nactor_token = 'of the gateway'\n";
    let bench = Bench::start(Behaviour::default(), auth).await;
    for (number, name) in [(1, "ada"), (2, "bob"), (1, "ada")] {
        let shown = bench.issuer.access_token(json!({"sub": name}));
        bench.show(number, &shown);
        let token = bench.token(agent(number)).await;
        let claims = claims(&bench, &token.unwrap());
        assert_eq!(
            (&claims["sub"], &claims["act"]["sub"]),
            (&json!(name), &json!("gateway"))
        );
        assert_eq!(claims["aud"], json!([SERVER, "https://api"]));
    }
    assert_eq!(bench.issuer.count("/token"), 2);
    let error = bench.token(agent(3)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no token that could be exchanged"),
        "{error}"
    );
    let shown = bench.issuer.access_token(json!({"sub": "eve"}));
    bench.show(3, &shown);
    let token = bench.token(agent(3)).await.unwrap();
    assert_eq!(claims(&bench, &token)["sub"], "eve");
    assert!(bench.token(agent(4)).await.is_err());
}

#[tokio::test]
async fn an_identity_provider_vouches_for_callers() {
    let idp = Issuer::start(Behaviour::default()).await;
    idp.add_client("at-idp", Some("s"), &[]);
    // The provider knows the client at the other issuer by the same name.
    idp.add_client("gateway", Some("s"), &[]);
    let auth = format!(
        "grant = 'id_jag'\nclient_id = 'gateway'\nclient_secret = 'a secret of +&='\n\
         idp = {{ issuer = '{}', client_id = 'gateway', client_secret = 's' }}\n",
        idp.url()
    );
    let bench = Bench::start(Behaviour::default(), &auth).await;
    idp.change(|it| it.token_type = "JWT");
    bench.show(1, &idp.access_token(json!({"sub": "ada"})));
    let token = bench.token(agent(1)).await.unwrap();
    assert_eq!(claims(&bench, &token)["sub"], "ada");
    let asked = &idp.requests_for("/token")[0];
    assert_eq!(asked.param("audience"), Some(&*bench.issuer.url()));
    assert_eq!(asked.param("resource"), Some(SERVER));
    idp.change(|it| it.token_type = "at+jwt");
    bench.show(2, &idp.access_token(json!({"sub": "bob"})));
    let refused = bench.token(agent(2)).await;
    assert!(refused.unwrap_err().to_string().contains("ID token"));
}

#[tokio::test]
async fn a_person_signs_in_for_themselves_alone() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let (ada, bob) = (agent(1), agent(2));
    assert_eq!(bench.token(ada).await.unwrap_err(), GrantError::NeedsSignIn);
    assert_eq!(bench.status(ada).await, GrantStatus::NeedsSignIn);
    let mut changes = bench.grants.subscribe_changes();
    bench.sign_in(ada).await;
    let told = changes.recv().await.unwrap();
    let expect = GrantChange::Here {
        server: server(),
        owner: ada,
    };
    assert_eq!(told, expect);
    let token = bench.token(ada).await.unwrap();
    assert_eq!(claims(&bench, &token)["aud"], SERVER);
    assert_eq!(bench.token(bob).await.unwrap_err(), GrantError::NeedsSignIn);
    assert_eq!(
        bench.token(GrantOwner::Gateway).await.unwrap_err(),
        GrantError::NeedsSignIn
    );
    let summary = bench.grants.list(ada).await.unwrap().remove(0);
    assert_eq!(summary.status, GrantStatus::Connected);
    assert_eq!(summary.issuer, Some(bench.issuer.url()));
    // After a restart as well.
    let restarted = bench.another_process().await;
    let again = token_of(&restarted, ada).await.unwrap();
    assert_eq!(text(&again), text(&token));
    assert!(bench.grants.revoke(&server(), ada).await.unwrap());
    assert_eq!(bench.token(ada).await.unwrap_err(), GrantError::NeedsSignIn);
    assert_eq!(bench.issuer.count("/revoke"), 1);
    let mut changes = restarted.subscribe_changes();
    restarted.reread();
    assert_eq!(changes.recv().await.unwrap(), GrantChange::Elsewhere);
    let gone = token_of(&restarted, ada).await;
    assert_eq!(gone.unwrap_err(), GrantError::NeedsSignIn);
}

/// A backend that is retired goes on for a while. Its server gets no token of the one that has its name now.
#[tokio::test]
async fn a_server_of_another_url_has_other_tokens() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let retired = bench.server_grants();
    let before = text(&retired.access_token(owner).await.unwrap());
    bench.configure_at("http://127.0.0.1:9/other", &bench.grants);
    let error = bench.token(owner).await.unwrap_err();
    assert_eq!(error, GrantError::NeedsSignIn);
    bench.sign_in(owner).await;
    let next = bench.token(owner).await.unwrap();
    assert_eq!(claims(&bench, &next)["aud"], "http://127.0.0.1:9/other");
    let token = retired.access_token(owner).await.unwrap();
    assert_eq!(text(&token), before);
    bench.wait(SignedDuration::from_hours(2));
    let token = retired.access_token(owner).await.unwrap();
    assert_eq!(claims(&bench, &token)["aud"], SERVER);
    // What concerns requests to issuers alone changes no token.
    let current = bench.server_grants();
    bench.grants.configure(&Config::example(&format!(
        "[egress]\ntimeout = '3s'\n[servers.s]\nurl = 'http://127.0.0.1:9/other'\n\
         [servers.s.auth]\ntype = 'oauth2'\n{}",
        bench.auth
    )));
    assert!(Arc::ptr_eq(&current.server, &bench.server_grants().server));
    let egress = current.server.egress.load_full();
    assert_eq!(egress.rules.timeout, std::time::Duration::from_secs(3));
}

#[tokio::test]
async fn one_sign_in_may_serve_everybody() {
    let bench = Bench::start(Behaviour::default(), &format!("{PERSON}per_user = false\n")).await;
    bench.sign_in(GrantOwner::Gateway).await;
    let token = bench.token(agent(1)).await.unwrap();
    assert_eq!(text(&bench.token(agent(2)).await.unwrap()), text(&token));
    assert!(bench.grants.list(agent(1)).await.unwrap().is_empty());
}

#[tokio::test]
async fn whoever_comes_back_is_who_began_and_once() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    let refused = async |query: &str, browser: &str| {
        let finished = bench.grants.finish(query, browser).await;
        finished.unwrap_err().to_string()
    };
    let query = bench.visit(&bench.begin(owner).await.unwrap()).await;
    assert!(
        refused(&query, "another")
            .await
            .contains("in another browser")
    );
    assert!(
        refused(&query.replace("state=", "state=x"), BROWSER)
            .await
            .contains("not known")
    );
    let false_iss = query.replace("iss=http", "iss=https");
    assert!(refused(&false_iss, BROWSER).await.contains("`iss`"));
    let without = query.split('&').filter(|it| !it.starts_with("iss="));
    let without = without.collect::<Vec<_>>().join("&");
    assert!(refused(&without, BROWSER).await.contains("`iss`"));
    // None of these has used the sign-in up.
    let both = tokio::join!(
        bench.grants.finish(&query, BROWSER),
        bench.grants.finish(&query, BROWSER)
    );
    assert_eq!(
        [both.0.is_ok(), both.1.is_ok()]
            .iter()
            .filter(|it| **it)
            .count(),
        1
    );
    assert!(refused(&query, BROWSER).await.contains("not known"));
    let query = bench.visit(&bench.begin(owner).await.unwrap()).await;
    bench.wait(SignedDuration::from_mins(11));
    assert!(refused(&query, BROWSER).await.contains("not known"));
}

#[tokio::test]
async fn a_token_that_ends_at_once_is_not_renewed_for_ever() {
    let behaviour = Behaviour {
        lifetime: 0,
        ..Behaviour::default()
    };
    let bench = Bench::start(behaviour, PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let first = text(&bench.token(owner).await.unwrap());
    for _ in 0..20 {
        bench.wait(SignedDuration::from_secs(60));
        assert_eq!(text(&bench.token(owner).await.unwrap()), first);
    }
    assert_eq!(bench.spent().len(), 0);
}

#[tokio::test]
async fn a_hundred_calls_at_expiry_make_one_refresh() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    bench.token(owner).await.unwrap();
    bench.wait(SignedDuration::from_hours(2));
    bench.issuer.change(|it| it.token_delay_ms = 50);
    let all = join_all((0..100).map(|_| bench.token(owner))).await;
    let texts: HashSet<_> = all.iter().map(|it| text(it.as_ref().unwrap())).collect();
    assert_eq!((texts.len(), bench.spent().len()), (1, 1));
}

#[tokio::test]
async fn two_processes_never_both_spend_a_refresh_token() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let other = bench.another_process().await;
    for round in 1..=5 {
        bench.wait(SignedDuration::from_hours(2));
        bench.issuer.change(|it| it.token_delay_ms = 20);
        let here = join_all((0..10).map(|_| bench.token(owner)));
        let there = join_all((0..10).map(|_| token_of(&other, owner)));
        let (here, there) = tokio::join!(here, there);
        let all = here.iter().chain(&there);
        let texts: HashSet<_> = all.map(|it| text(it.as_ref().unwrap())).collect();
        assert_eq!(texts.len(), 1);
        let spent = bench.spent();
        assert_eq!(
            (spent.len(), HashSet::<&String>::from_iter(&spent).len()),
            (round, round)
        );
    }
}

#[tokio::test]
async fn a_token_is_renewed_beside_before_it_ends() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let first = text(&bench.token(owner).await.unwrap());
    bench.wait(SignedDuration::from_mins(47));
    assert_eq!(text(&bench.token(owner).await.unwrap()), first);
    assert_eq!(bench.spent().len(), 0);
    bench.wait(SignedDuration::from_mins(2));
    // Nobody waits for the renewal.
    assert_eq!(text(&bench.token(owner).await.unwrap()), first);
    while text(&bench.token(owner).await.unwrap()) == first {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.spent().len(), 1);
}

#[tokio::test]
async fn a_night_of_sleep_ends_no_grant() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let before = text(&bench.token(owner).await.unwrap());
    bench.wait(SignedDuration::from_hours(8));
    assert_ne!(text(&bench.token(owner).await.unwrap()), before);
    assert_eq!(bench.status(owner).await, GrantStatus::Connected);
}

#[tokio::test]
async fn an_issuer_that_is_down_for_an_hour_ends_no_grant() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let before = text(&bench.token(owner).await.unwrap());
    let break_down = |it: &mut Behaviour| it.token_error = Some((503, "temporarily_unavailable"));
    bench.issuer.change(break_down);
    bench.wait(SignedDuration::from_mins(50));
    // It is good yet.
    for _ in 0..3 {
        assert_eq!(text(&bench.token(owner).await.unwrap()), before);
        tokio::task::yield_now().await;
    }
    bench.wait(SignedDuration::from_mins(15));
    let error = bench.token(owner).await.unwrap_err();
    assert!(matches!(error, GrantError::Unreachable { .. }), "{error}");
    let asked = bench.issuer.count("/token");
    assert_eq!(bench.token(owner).await.unwrap_err(), error);
    assert_eq!(
        bench.issuer.count("/token"),
        asked,
        "it is asked again later"
    );
    bench
        .issuer
        .change(|it| it.token_error = Some((400, "invalid_client")));
    bench.grants.reread();
    assert!(matches!(
        bench.token(owner).await,
        Err(GrantError::Refused { .. })
    ));
    bench.issuer.change(|it| it.token_error = None);
    bench.grants.reread();
    bench.token(owner).await.unwrap();
    assert_eq!(bench.status(owner).await, GrantStatus::Connected);
}

#[tokio::test]
async fn only_the_issuer_ends_a_grant() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    bench.token(owner).await.unwrap();
    bench.issuer.revoke_grants();
    bench.wait(SignedDuration::from_hours(2));
    assert_eq!(
        bench.token(owner).await.unwrap_err(),
        GrantError::NeedsSignIn
    );
    assert_eq!(bench.status(owner).await, GrantStatus::Expired);
    assert_eq!(
        bench.token(owner).await.unwrap_err(),
        GrantError::NeedsSignIn
    );
    assert_eq!(
        bench.spent().len(),
        1,
        "a token that is refused is not sent again"
    );
    bench.sign_in(owner).await;
    bench.token(owner).await.unwrap();
}

/// The process dies when its issuer has rotated, before that is written down: to the issuer that is an answer
/// that never came.
#[tokio::test]
async fn a_rotation_whose_answer_is_lost_does_not_stop_the_next_call() {
    for has_grace in [true, false] {
        let behaviour = Behaviour {
            rotates_with_grace: has_grace,
            ..Behaviour::default()
        };
        let bench = Bench::start(behaviour, PERSON).await;
        let owner = agent(1);
        bench.sign_in(owner).await;
        let before = text(&bench.token(owner).await.unwrap());
        bench.issuer.change(|it| it.loses_token_answers = true);
        // Four fifths have passed: the token of before is good for a while.
        bench.wait(SignedDuration::from_mins(50));
        assert_eq!(text(&bench.token(owner).await.unwrap()), before);
        while bench.spent().is_empty() {
            tokio::task::yield_now().await;
        }
        bench.issuer.change(|it| it.loses_token_answers = false);
        let restarted = bench.another_process().await;
        let next = token_of(&restarted, owner).await.unwrap();
        if has_grace {
            assert_ne!(text(&next), before);
            continue;
        }
        assert_eq!(text(&next), before);
        bench.wait(SignedDuration::from_mins(15));
        let ended = token_of(&restarted, owner).await;
        assert_eq!(ended.unwrap_err(), GrantError::NeedsSignIn);
    }
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_soon() {
    let behaviour = Behaviour {
        rotates_with_grace: true,
        ..Behaviour::default()
    };
    let bench = Bench::start(behaviour, PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    bench.wait(SignedDuration::from_hours(2));
    bench.issuer.change(|it| it.loses_token_answers = true);
    let error = bench.token(owner).await.unwrap_err();
    assert!(matches!(error, GrantError::Unreachable { .. }), "{error}");
    bench.issuer.change(|it| it.loses_token_answers = false);
    // Nobody calls meanwhile.
    while bench.spent().len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    bench.issuer.change(|it| it.rotates_with_grace = false);
    bench.token(owner).await.unwrap();
    assert_eq!(bench.spent().len(), 2);
}

/// What the store did not take when the issuer gave it is written later, but never over what is newer there.
#[tokio::test]
async fn a_grant_that_is_written_late_overwrites_no_newer_one() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let server = bench.server_grants().server;
    let slot = server.slot(owner);
    let read = async || bench.grants.read(&server, owner).await.unwrap().unwrap();
    let keep = |grant: OpenGrant| {
        slot.clear();
        slot.keep_unwritten(grant);
    };
    let other = bench.another_process().await;
    let old = read().await;
    bench.wait(SignedDuration::from_hours(2));
    let renewed = text(&token_of(&other, owner).await.unwrap());
    keep(old);
    assert_eq!(text(&bench.token(owner).await.unwrap()), renewed);
    // Later than what is there.
    let mut late = read().await;
    late.record.received += SignedDuration::from_secs(1);
    late.record.tokens.access_token = "late".to_owned();
    keep(late.clone());
    assert_eq!(text(&bench.token(owner).await.unwrap()), "Bearer late");
    assert_eq!(read().await.record.tokens.access_token, "late");
    late.record.received += SignedDuration::from_secs(1);
    // Somebody has signed in anew meanwhile.
    bench.wait(SignedDuration::from_secs(10));
    bench.sign_in(owner).await;
    let granted = read().await.granted;
    keep(late.clone());
    bench.token(owner).await.unwrap();
    assert_eq!(read().await.granted, granted);
    let before = read().await;
    assert!(other.revoke(&self::server(), owner).await.unwrap());
    let mut late = before;
    late.record.received += SignedDuration::from_secs(1);
    keep(late);
    let error = bench.token(owner).await.unwrap_err();
    assert_eq!(error, GrantError::NeedsSignIn, "it was given up");
}

#[tokio::test]
async fn a_caller_that_goes_away_loses_no_rotated_token() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    bench.wait(SignedDuration::from_hours(2));
    bench.issuer.change(|it| it.token_delay_ms = 50);
    let limit = std::time::Duration::from_millis(20);
    let gone = tokio::time::timeout(limit, bench.token(owner)).await;
    assert!(gone.is_err());
    bench.token(owner).await.unwrap();
    assert_eq!(bench.spent().len(), 1);
}

#[tokio::test]
async fn a_rejected_token_is_renewed_once() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let token = bench.token(owner).await.unwrap();
    let challenge = Some("Bearer error=\"invalid_token\"");
    let reject = |token: &AccessToken| {
        bench
            .server_grants()
            .rejected(owner, token, (false, challenge))
    };
    let all = join_all((0..20).map(|_| async {
        assert_eq!(reject(&token), Rejection::Retry);
        text(&bench.token(owner).await.unwrap())
    }));
    let texts: HashSet<_> = all.await.into_iter().collect();
    assert_eq!((texts.len(), bench.spent().len()), (1, 1));
    assert!(!texts.contains(&text(&token)));
    // A server that takes none of them is not asked for ever.
    let mut last = Rejection::Retry;
    for _ in 0..9 {
        let Ok(next) = bench.token(owner).await else {
            break;
        };
        last = reject(&next);
    }
    assert_eq!(last, Rejection::Final);
    assert!(bench.spent().len() <= 4, "{}", bench.spent().len());
    assert_eq!(bench.status(owner).await, GrantStatus::Connected);
}

#[tokio::test]
async fn more_scopes_are_asked_for_together_with_those_of_before() {
    let bench = Bench::start(
        Behaviour::default(),
        &format!("{PERSON}scopes = ['tools:read']\n"),
    )
    .await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let token = bench.token(owner).await.unwrap();
    let challenge = |scope: &str| format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
    let forbid = |token: &AccessToken, scope: &str| {
        let challenge = challenge(scope);
        bench
            .server_grants()
            .rejected(owner, token, (true, Some(&challenge)))
    };
    assert_eq!(forbid(&token, "tools:read"), Rejection::Final);
    assert_eq!(forbid(&token, "tools:call"), Rejection::SignIn);
    // What it is good for it does all the while.
    assert_eq!(text(&bench.token(owner).await.unwrap()), text(&token));
    let url = bench.begin(owner).await.unwrap();
    let scope = url
        .query_pairs()
        .find(|(name, _)| name == "scope")
        .unwrap()
        .1
        .into_owned();
    let scopes: HashSet<_> = scope.split(' ').collect();
    assert_eq!(
        scopes,
        HashSet::from(["tools:read", "tools:call", "offline_access"])
    );
    for number in 0..2 {
        assert_eq!(forbid(&token, &format!("more:{number}")), Rejection::SignIn);
    }
    assert_eq!(forbid(&token, "more:9"), Rejection::Final);

    let own = Bench::start(
        Behaviour::default(),
        &format!("{OWN}scopes = ['tools:read']\n"),
    )
    .await;
    let token = own.token(owner).await.unwrap();
    let challenge = challenge("tools:call");
    let stepped = own
        .server_grants()
        .rejected(owner, &token, (true, Some(&challenge)));
    assert_eq!(stepped, Rejection::Retry);
    let more = own.token(owner).await.unwrap();
    assert!(
        claims(&own, &more)["scope"]
            .as_str()
            .unwrap()
            .contains("tools:call")
    );
}

#[tokio::test]
async fn an_issuer_that_refuses_resource_is_asked_without_it() {
    let auth = format!("{PERSON}scopes = ['api://tollbridge/tools']\n");
    let bench = Bench::start(Behaviour::entra(), &auth).await;
    let asked = async |path: &str| {
        let requests = bench.issuer.requests_for(path);
        let resources = requests.iter().map(|it| it.param("resource").is_some());
        resources.collect::<Vec<_>>()
    };
    bench.sign_in(agent(1)).await;
    assert_eq!(asked("/authorize").await, [true, false]);
    bench.sign_in(agent(2)).await;
    assert_eq!(asked("/authorize").await, [true, false, false]);
    bench.wait(SignedDuration::from_hours(2));
    bench.token(agent(1)).await.unwrap();
    assert!(!asked("/token").await.contains(&true));

    let own = Bench::start(
        Behaviour::entra(),
        &format!("{OWN}scopes = ['api://tollbridge/tools']\n"),
    )
    .await;
    own.token(agent(1)).await.unwrap();
    let another = own.another_process().await;
    token_of(&another, agent(1)).await.unwrap();
    let requests = own.issuer.requests_for("/token");
    let resources: Vec<_> = requests
        .iter()
        .map(|it| it.param("resource").is_some())
        .collect();
    assert_eq!(resources, [true, false, false]);
}

#[tokio::test]
async fn issuers_of_all_kinds_are_signed_in_to() {
    for (name, behaviour) in [
        ("okta", Behaviour::okta()),
        ("keycloak", Behaviour::keycloak()),
        ("google", Behaviour::google()),
        ("auth0", Behaviour::auth0()),
    ] {
        let auth = format!("{PERSON}scopes = ['openid', 'email']\n");
        let bench = Bench::start(behaviour, &auth).await;
        bench.sign_in(agent(1)).await;
        let first = text(&bench.token(agent(1)).await.unwrap());
        bench.wait(SignedDuration::from_hours(2));
        let next = bench.token(agent(1)).await;
        assert_ne!(text(&next.unwrap()), first, "{name}");
    }
}

#[tokio::test]
async fn the_gateway_is_registered_once_and_anew_where_it_is_forgotten() {
    let behaviour = Behaviour {
        client_id_documents: false,
        ..Behaviour::default()
    };
    let bench = Bench::start(behaviour, "grant = 'authorization_code'\n").await;
    bench.sign_in(agent(1)).await;
    bench.sign_in(agent(2)).await;
    assert_eq!(bench.issuer.count("/register"), 1);
    let query = bench.visit(&bench.begin(agent(3)).await.unwrap()).await;
    bench.issuer.forget_clients();
    let forgotten = bench.grants.finish(&query, BROWSER).await.unwrap_err();
    assert!(
        forgotten.to_string().contains("invalid_client"),
        "{forgotten}"
    );
    bench.sign_in(agent(3)).await;
    assert_eq!(bench.issuer.count("/register"), 2);

    let closed = Bench::start(Behaviour::google(), "grant = 'authorization_code'\n").await;
    let error = closed.begin(agent(1)).await.unwrap_err().to_string();
    assert!(error.contains("set `auth.client_id`"), "{error}");
}

/// The refresh token is that of a client that is gone: somebody signs in again, and that works without an operator.
#[tokio::test]
async fn a_registration_that_the_issuer_lost_is_replaced_at_the_next_sign_in() {
    let basic = json!({"token_endpoint_auth_methods_supported": ["client_secret_basic"]});
    for metadata in [json!({}), basic] {
        let behaviour = Behaviour {
            client_id_documents: false,
            metadata: issuer::object(metadata),
            ..Behaviour::default()
        };
        let bench = Bench::start(behaviour, "grant = 'authorization_code'\n").await;
        bench.sign_in(agent(1)).await;
        bench.sign_in(agent(2)).await;
        bench.issuer.forget_clients();
        bench.wait(SignedDuration::from_hours(2));
        for (owner, registered) in [(agent(1), 2), (agent(2), 2)] {
            let error = bench.token(owner).await.unwrap_err();
            assert_eq!(error, GrantError::NeedsSignIn);
            assert_eq!(bench.status(owner).await, GrantStatus::Expired);
            bench.sign_in(owner).await;
            bench.token(owner).await.unwrap();
            assert_eq!(bench.issuer.count("/register"), registered);
        }
    }
    // One that the config names is the operator's concern.
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    bench.sign_in(agent(1)).await;
    bench.issuer.forget_clients();
    bench.wait(SignedDuration::from_hours(2));
    let error = bench.token(agent(1)).await.unwrap_err();
    assert!(error.to_string().contains("invalid_client"), "{error}");
    assert_eq!(bench.status(agent(1)).await, GrantStatus::Connected);
}

#[tokio::test]
async fn a_client_is_registered_anew_before_its_secret_ends() {
    let methods = json!({"token_endpoint_auth_methods_supported": ["client_secret_basic"]});
    let behaviour = Behaviour {
        client_id_documents: false,
        secret_lifetime: 100 * 3600,
        metadata: issuer::object(methods),
        ..Behaviour::default()
    };
    let bench = Bench::start(behaviour, "grant = 'authorization_code'\n").await;
    for (hours, registered) in [(0, 1), (75, 1), (2, 2), (1, 2)] {
        bench.wait(SignedDuration::from_hours(hours));
        bench.sign_in(agent(1)).await;
        assert_eq!(bench.issuer.count("/register"), registered, "{hours}");
    }
}

#[tokio::test]
async fn another_key_opens_nothing_and_changes_nothing() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    bench.token(owner).await.unwrap();
    let place =
        SecretKeyPlace::Variable(Secret::new("another key of thirty-two bytes!".to_owned()));
    let store = Store::open(bench.data_dir.path()).await.unwrap();
    let store = store.with_secret_key(&place).unwrap();
    let grants = grants_of(&bench.data_dir, &store, &bench.tasks, &bench.ahead);
    bench.configure(&grants);
    let error = token_of(&grants, owner).await.unwrap_err();
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    bench.grants.reread();
    bench.token(owner).await.unwrap();
}

#[tokio::test]
async fn nothing_shows_a_token() {
    let bench = Bench::start(Behaviour::default(), PERSON).await;
    let owner = agent(1);
    bench.sign_in(owner).await;
    let token = bench.token(owner).await.unwrap();
    let secret = text(&token).replace("Bearer ", "");
    bench.issuer.revoke_grants();
    bench.wait(SignedDuration::from_hours(2));
    let error = bench.token(owner).await.unwrap_err();
    let shown = format!(
        "{token:?} {error:?} {error} {:?} {:?}",
        bench.grants,
        bench.grants.list(owner).await
    );
    assert!(
        !shown.contains(&secret) && !shown.contains("a secret of"),
        "{shown}"
    );
    for spent in bench.spent() {
        assert!(!shown.contains(&spent), "{shown}");
    }
    bench.store.close().await;
    for file in std::fs::read_dir(bench.data_dir.path()).unwrap() {
        let Ok(content) = std::fs::read(file.unwrap().path()) else {
            continue;
        };
        let content = String::from_utf8_lossy(&content).into_owned();
        assert!(!content.contains(&secret) && !content.contains("a secret of"));
    }
}
