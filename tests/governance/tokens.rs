//! Tokens of issuers: who they let in, on which route and for what, and what the others are told.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    binary::Place,
    harness::{ANN, Server, ask_on, code_of, keyed, records},
    support::{
        Auto, Front, Gateway, TestGateway,
        client::Who,
        http::{Http, PING},
        issuer::{Behaviour, Issuer},
        soon, value,
        wire::request,
    },
};

const METADATA: &str = "/.well-known/oauth-protected-resource";

/// A gateway with a server `x` and a profile `p`, which takes keys and tokens of an issuer.
struct Scene {
    issuer: Issuer,
    server: Server,
    gateway: Gateway,
}

/// Rules by which everybody with a group is `eng`, who may call everything.
const ENGINEERS: &str = r#"
    [agents.eng]
    policy = { mode = "all" }
    [[agents.match]]
    claims = { groups = "eng-*" }
    agent = "eng"
"#;

impl Scene {
    async fn new(behaviour: Behaviour, oauth: &str) -> Self {
        Self::with(behaviour, oauth, ENGINEERS).await
    }

    async fn with(behaviour: Behaviour, oauth: &str, agents: &str) -> Self {
        let issuer = Issuer::start(behaviour).await;
        let settings = format!(
            "[governance]\nauth = [\"keys\", \"oauth\"]\nprice = \"0\"\n[oauth]\nmode = \"external\"\n\
             issuer = \"{}\"\n{oauth}\n[agents.ann]\npolicy = {{ mode = \"all\" }}\n[profiles.p]\n{agents}\n",
            issuer.url()
        );
        let server = Server::start().await;
        let gateway = TestGateway::new().setting(&keyed(&settings));
        let gateway = gateway.server("x", &server.backend).start().await;
        Self {
            issuer,
            server,
            gateway,
        }
    }

    /// The URL of a route.
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway.addr())
    }

    /// A token for everything on `/mcp`, but for what `claims` change.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "claims are written where they are used"
    )]
    fn token(&self, claims: Value) -> String {
        let mut all = json!({"aud": self.url("/mcp"), "scope": "tools:read tools:call"});
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        self.issuer.access_token(all)
    }

    fn http(&self, token: &str) -> Http {
        self.gateway.http().with_key(token)
    }

    async fn status(&self, path: &str, token: &str) -> u16 {
        let list = request("1", "tools/list", "{}");
        self.http(token).post(path, list).await.status().as_u16()
    }

    fn counted(&self, reason: &str) -> u64 {
        let counts = self.gateway.running.core().proxy.governance().counts();
        let counts = serde_json::to_value(counts).unwrap();
        counts["unauthenticated"][reason]
            .as_u64()
            .unwrap_or_default()
    }
}

fn call() -> String {
    request("1", "tools/call", r#"{"name":"mcp_x_echo","arguments":{}}"#)
}

#[tokio::test]
pub(crate) async fn a_token_of_the_issuer_lets_its_user_in() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let http = scene.http(&scene.token(json!({})));
    let params = r#"{"name":"mcp_x_echo","arguments":{}}"#;
    ask_on(&http, "/mcp", "tools/call", params).await.value();
    let record = records(&scene.gateway.config.data_dir).pop().unwrap();
    assert_eq!(record.agent_name, "eng/ada@example.com");
    assert_eq!(scene.issuer.count("/jwks"), 1);
    scene.gateway.stop().await;
}

#[tokio::test]
pub(crate) async fn wrong_tokens_are_refused_and_counted() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let now = jiff::Timestamp::now().as_second();
    let foreign = Issuer::start(Behaviour::default()).await;
    let claims = |token: &str| token.split('.').nth(1).unwrap().to_owned();
    let good = scene.token(json!({}));
    let with_head = |head: &str| {
        let head = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, head);
        format!("{head}.{}.", claims(&good))
    };
    let mut tampered: Vec<String> = good.split('.').map(str::to_owned).collect();
    tampered[1] = claims(&scene.token(json!({"sub": "eve"})));
    for (token, reason) in [
        (scene.token(json!({"exp": now - 61})), "token_expired"),
        (
            scene.token(json!({"nbf": now + 120})),
            "token_not_yet_valid",
        ),
        (scene.token(json!({"exp": null})), "token_malformed"),
        (
            scene.token(json!({"iss": "https://other.example"})),
            "token_issuer",
        ),
        (
            scene.token(json!({"aud": "https://other.example"})),
            "token_audience",
        ),
        (
            scene.token(json!({"aud": scene.url("/mcp/servers/x")})),
            "token_audience",
        ),
        (scene.token(json!({"groups": ["sales"]})), "token_subject"),
        (
            foreign.access_token(json!({"iss": scene.issuer.url(), "aud": scene.url("/mcp")})),
            "token_signature",
        ),
        (tampered.join("."), "token_signature"),
        (with_head(r#"{"alg":"none"}"#), "token_algorithm"),
        (with_head(r#"{"alg":"HS256"}"#), "token_algorithm"),
        (
            with_head(r#"{"alg":"ES256","typ":"dpop+jwt"}"#),
            "token_malformed",
        ),
        ("a.b.c".to_owned(), "token_unknown"),
        ("garbage".to_owned(), "token_unknown"),
    ] {
        let before = scene.counted(reason);
        assert_eq!(scene.status("/mcp", &token).await, 401, "{reason}");
        assert_eq!(scene.counted(reason), before + 1, "{reason}");
    }
    let skewed = scene.token(json!({"exp": now - 30, "nbf": now + 30}));
    assert_eq!(scene.status("/mcp", &skewed).await, 200, "within the skew");
    assert!(scene.server.seen().is_empty());
    scene.gateway.stop().await;
}

#[tokio::test]
async fn each_route_has_tokens_and_metadata_of_its_own() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let routes = ["/mcp", "/mcp/servers/x", "/mcp/profiles/p"];
    for issued_for in routes {
        let token = scene.token(json!({
            "aud": scene.url(issued_for), "scope": "tools:read profile:p"
        }));
        for path in routes {
            let good = issued_for == path || issued_for == "/mcp";
            let expect = if good { 200 } else { 401 };
            assert_eq!(
                scene.status(path, &token).await,
                expect,
                "{issued_for} on {path}"
            );
        }
        let answer = scene
            .gateway
            .http()
            .get(&format!("{METADATA}{issued_for}"), &[])
            .await;
        assert_eq!(answer.status(), 200);
        let metadata = value(&answer.text().await);
        assert_eq!(metadata["resource"], scene.url(issued_for));
        assert_eq!(
            metadata["authorization_servers"],
            json!([scene.issuer.url()])
        );
        let answer = scene.gateway.http().post(issued_for, call()).await;
        assert_eq!(answer.status(), 401);
        let challenge = answer.header("www-authenticate").unwrap();
        let place = format!(
            "resource_metadata=\"{}\"",
            scene.url(&format!("{METADATA}{issued_for}"))
        );
        assert!(challenge.contains(&place), "{challenge}");
        assert!(
            challenge.contains("scope=\"") && challenge.contains("tools:read"),
            "{challenge}"
        );
    }
    let answer = scene
        .gateway
        .http()
        .get(&format!("{METADATA}/mcp/servers/y"), &[])
        .await;
    assert_eq!(answer.status(), 404);
    scene.gateway.stop().await;
}

#[tokio::test]
async fn scopes_limit_what_a_token_is_good_for() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let reader = scene.token(json!({"scope": "openid tools:read"}));
    assert_eq!(scene.status("/mcp", &reader).await, 200);
    let answer = scene.http(&reader).post("/mcp", call()).await;
    assert_eq!(answer.status(), 403);
    let challenge = answer.header("www-authenticate").unwrap().to_owned();
    assert!(
        challenge.contains("error=\"insufficient_scope\""),
        "{challenge}"
    );
    assert!(
        challenge.contains("scope=\"tools:call tools:read\""),
        "{challenge}"
    );
    assert!(scene.server.seen().is_empty());
    let record = records(&scene.gateway.config.data_dir).pop().unwrap();
    assert_eq!(record.rule.as_deref(), Some("scope"));

    let caller = scene.token(json!({"scope": "tools:call"}));
    assert_eq!(scene.status("/mcp", &caller).await, 403);
    assert_eq!(scene.http(&caller).post("/mcp", call()).await.status(), 200);
    let profile = scene
        .status("/mcp/profiles/p", &scene.token(json!({})))
        .await;
    assert_eq!(profile, 403, "a profile has a scope of its own");

    // What no scope would change is no challenge.
    let unknown = request("1", "tools/call", r#"{"name":"mcp_x_none","arguments":{}}"#);
    let answer = scene.http(&reader).post("/mcp", unknown).await;
    assert_eq!(answer.status(), 200);
    scene.gateway.stop().await;
}

#[tokio::test]
async fn a_session_outlives_its_token_and_belongs_to_its_user() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let token = scene.token(json!({}));
    let who = Who {
        name: "ada",
        key: Box::leak(token.into_boxed_str()),
    };
    let client = scene
        .gateway
        .client_of(who, Front::Streamable, "/mcp")
        .await;
    let session = client.session.clone().unwrap();
    let headers = [
        ("mcp-session-id", session.as_str()),
        ("mcp-protocol-version", "2025-11-25"),
    ];
    let status = async |token: &str| {
        let answer = scene.http(token).post_with("/mcp", &headers, call()).await;
        answer.status().as_u16()
    };
    let now = jiff::Timestamp::now().as_second();
    assert_eq!(status(&scene.token(json!({"exp": now - 100}))).await, 401);
    assert_eq!(
        status(&scene.token(json!({"scope": "tools:read"}))).await,
        403
    );
    assert_eq!(status(&scene.token(json!({"sub": "eve"}))).await, 404);
    assert_eq!(status(&scene.token(json!({"jti": "another"}))).await, 200);
    scene.gateway.stop().await;
}

#[tokio::test]
async fn keys_of_an_issuer_rotate_and_outlive_an_outage() {
    let scene = Scene::new(Behaviour::default(), "").await;
    assert_eq!(scene.status("/mcp", &scene.token(json!({}))).await, 200);
    scene.issuer.change(|it| it.jwks_status = 503);
    let second = scene.token(json!({"jti": "2"}));
    assert_eq!(
        scene.status("/mcp", &second).await,
        200,
        "the keys are still good"
    );
    assert_eq!(
        scene.issuer.count("/jwks"),
        1,
        "they are not fetched for each token"
    );
    scene.issuer.rotate_keys();
    for _ in 0..3 {
        let unknown = scene.token(json!({"jti": "3"}));
        assert_eq!(scene.status("/mcp", &unknown).await, 401);
    }
    assert_eq!(scene.issuer.count("/jwks"), 1, "keys were fetched just now");
    scene.gateway.stop().await;
}

/// Whoever comes while the keys are being fetched waits for them: they are not refused for want of keys.
#[tokio::test]
async fn the_first_tokens_of_an_issuer_wait_for_its_keys() {
    let slow = Behaviour {
        jwks_delay_ms: 300,
        ..Behaviour::default()
    };
    let scene = Scene::new(slow, "").await;
    let tokens: Vec<_> = (0..8)
        .map(|it| scene.token(json!({"jti": it.to_string()})))
        .collect();
    let statuses = join_all(tokens.iter().map(|token| scene.status("/mcp", token))).await;
    assert_eq!(statuses, [200; 8]);
    assert_eq!(scene.issuer.count("/jwks"), 1);
    scene.gateway.stop().await;
}

/// A key and a token in one request, in all combinations.
#[tokio::test]
async fn a_key_beside_a_token() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let agents = "[agents.ann]\n[[agents.match]]\nclaims = {}\nagent = \"ann\"\n";
    let same = Scene::with(
        Behaviour::default(),
        "",
        agents.trim_start_matches("[agents.ann]\n"),
    )
    .await;
    let check = async |scene: &Scene, key: &str, token: &str, expect: u16| {
        let bearer = format!("Bearer {token}");
        let both = [("x-api-key", key), ("authorization", bearer.as_str())];
        let headers: Vec<_> = both
            .into_iter()
            .filter(|(_, it)| !it.trim_end().ends_with("none"))
            .collect();
        let answer = scene
            .gateway
            .http()
            .post_with("/mcp", &headers, call())
            .await;
        assert_eq!(answer.status().as_u16(), expect, "{key} {token}");
        answer.text().await
    };
    let (good, bad) = (scene.token(json!({})), scene.token(json!({"aud": "x"})));
    check(&scene, "none", "none", 401).await;
    check(&scene, "none", &good, 200).await;
    check(&scene, "none", &bad, 401).await;
    check(&scene, ANN.key, "none", 200).await;
    check(&scene, "tbk_of_nobody", "none", 401).await;
    check(&scene, "tbk_of_nobody", &good, 200).await;
    check(&scene, "tbk_of_nobody", &bad, 401).await;
    check(&scene, ANN.key, &bad, 200).await;
    check(&scene, ANN.key, "stale", 200).await;
    let told = check(&scene, ANN.key, &good, 400).await;
    assert!(told.contains("two different agents"), "{told}");
    check(&same, ANN.key, &same.token(json!({})), 200).await;
    let served = records(&same.gateway.config.data_dir).pop().unwrap();
    assert_eq!(served.agent_name, "ann/ada@example.com");
    scene.gateway.stop().await;
    same.gateway.stop().await;
}

/// Products as they issue tokens.
#[tokio::test]
pub(crate) async fn tokens_of_products() {
    let check = async |behaviour: Behaviour, oauth: &str, claim: (&str, &str), scopes: Value| {
        let (name, glob) = claim;
        let agents = format!(
            "[agents.eng]\npolicy = {{ mode = \"all\" }}\n[[agents.match]]\nclaims = {{ \"{name}\" = \"{glob}\" }}\n\
             agent = \"eng\"\n"
        );
        let path = behaviour.path;
        let scene = Scene::with(behaviour, oauth, &agents).await;
        let token = scene.issuer.access_token(scopes);
        assert_eq!(
            scene.http(&token).post("/mcp", call()).await.status(),
            200,
            "{path}"
        );
        scene.gateway.stop().await;
    };
    let entra = "audience = [\"api://tollbridge\"]\nscopes = [\"api://tollbridge/tools\"]";
    check(
        Behaviour::entra(),
        entra,
        ("roles", "Eng*"),
        json!({"scp": "tools"}),
    )
    .await;
    let okta = "audience = [\"api://default\"]";
    let scopes = json!({"scp": ["tools:read", "tools:call"]});
    check(Behaviour::okta(), okta, ("groups", "eng-*"), scopes.clone()).await;
    let scopes = json!({"scope": "email tools:read tools:call"});
    let keycloak = "audience = [\"account\"]";
    check(
        Behaviour::keycloak(),
        keycloak,
        ("realm_access.roles", "engineer"),
        scopes.clone(),
    )
    .await;
    let auth0 = "audience = [\"https://tollbridge.example.com\"]";
    check(
        Behaviour::auth0(),
        auth0,
        ("https://tollbridge.example.com/groups", "eng-*"),
        scopes,
    )
    .await;
}

/// Entra's own scopes are needed where the config has them.
#[tokio::test]
pub(crate) async fn scopes_of_the_issuer_are_asked_for() {
    let oauth = "audience = [\"api://tollbridge\"]\nscopes = [\"api://tollbridge/tools\"]";
    let agents = "[agents.eng]\npolicy = { mode = \"all\" }\n[[agents.match]]\nagent = \"eng\"\n";
    let scene = Scene::with(Behaviour::entra(), oauth, agents).await;
    let other = scene.issuer.access_token(json!({"scp": "other"}));
    let answer = scene.http(&other).post("/mcp", call()).await;
    assert_eq!(answer.status(), 403);
    let challenge = answer.header("www-authenticate").unwrap();
    assert!(
        challenge.contains("scope=\"api://tollbridge/tools\""),
        "{challenge}"
    );
    scene.gateway.stop().await;
}

/// Who loses their agent is shown out.
#[tokio::test]
async fn a_user_ends_with_the_rule_that_made_them() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let token = scene.token(json!({}));
    assert_eq!(scene.status("/mcp", &token).await, 200);
    let directory = scene
        .gateway
        .running
        .core()
        .proxy
        .governance()
        .directory()
        .clone();
    let listen = async || {
        let list = request("1", "tools/list", "{}");
        scene
            .http(&token)
            .post("/mcp", list)
            .await
            .status()
            .as_u16()
    };
    assert_eq!(directory.user_count(), 1);
    let mut config = scene.gateway.config.clone();
    config.agents.get_mut("eng").unwrap().enabled = false;
    scene.gateway.running.core().apply_config(&config).unwrap();
    let refused = ask_on(
        &scene.http(&token),
        "/mcp",
        "tools/call",
        r#"{"name":"mcp_x_echo"}"#,
    )
    .await;
    assert_eq!(code_of(&refused), "UNAUTHORIZED");
    config.agents.get_mut("eng").unwrap().enabled = true;
    config.agent_matches.clear();
    scene.gateway.running.core().apply_config(&config).unwrap();
    assert_eq!((directory.user_count(), listen().await), (0, 401));
    scene.gateway.stop().await;
}

/// A rule may give its users other terms than those of the agent.
#[tokio::test]
pub(crate) async fn rules_say_what_users_may_do() {
    let agents = r#"
        [agents.eng]
        team = "engineering"
        policy = { mode = "none" }
        [[agents.match]]
        claims = { sub = "lead" }
        agent = "eng"
        team = "leads"
        role = "auditor"
        policy = { mode = "allowlist", tools = ["x/echo"], prompts = ["x/*"], resources = ["**"], methods = ["x/*"], deny = ["x/add"] }
        [[agents.match]]
        claims = { sub = "reader" }
        agent = "eng"
        profiles = ["p"]
        policy = { mode = "all" }
        [[agents.match]]
        claims = { sub = "a*" }
        agent = "eng"
    "#;
    let scene = Scene::with(Behaviour::default(), "", agents).await;
    let ask = async |subject: &str, path: &str, tool: &str| {
        let token =
            scene.token(json!({"sub": subject, "scope": "tools:read tools:call profile:p"}));
        let params = format!(r#"{{"name":"mcp_x_{tool}","arguments":{{}}}}"#);
        let answer = ask_on(&scene.http(&token), path, "tools/call", &params).await;
        let record = records(&scene.gateway.config.data_dir).pop().unwrap();
        (
            answer.error.is_some(),
            record.team.map(String::from),
            record.decision.to_string(),
        )
    };
    let of = |team: &str, decision: &str| {
        (
            decision == "refused",
            Some(team.to_owned()),
            decision.to_owned(),
        )
    };
    assert_eq!(ask("lead", "/mcp", "echo").await, of("leads", "allowed"));
    assert_eq!(ask("lead", "/mcp", "add").await, of("leads", "refused"));
    assert_eq!(
        ask("reader", "/mcp", "echo").await,
        of("engineering", "refused")
    );
    assert_eq!(
        ask("reader", "/mcp/profiles/p", "echo").await,
        of("engineering", "allowed")
    );
    assert_eq!(
        ask("ada", "/mcp", "echo").await,
        of("engineering", "refused")
    );
    assert_eq!(
        scene
            .status("/mcp", &scene.token(json!({"sub": "bob"})))
            .await,
        401
    );
    // A token is only for the API with a scope of its own.
    for (subject, scope, expect) in [
        ("lead", "tools:read admin", 200),
        ("lead", "tools:read", 403),
        ("ada", "tools:read admin", 403),
    ] {
        let token = scene.token(json!({ "sub": subject, "scope": scope }));
        let http = scene.http(&token);
        let status = http.get("/api/v1/servers", &[]).await.status();
        assert_eq!(status, expect, "{subject} {scope}");
    }
    scene.gateway.stop().await;
}

/// Who acts for a user is somebody else than that user, and stands in the record.
#[tokio::test]
async fn delegation_stands_in_the_audit() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let plain = scene.token(json!({}));
    let delegated = scene.token(json!({"act": {"sub": "bot"}}));
    let mut ids = Vec::new();
    for (token, act) in [(plain, None), (delegated, Some("bot"))] {
        scene.http(&token).post("/mcp", call()).await;
        let record = records(&scene.gateway.config.data_dir).pop().unwrap();
        assert_eq!(record.subject.as_deref(), Some("ada"));
        assert_eq!(record.act.as_deref(), act);
        ids.push(record.agent_id);
    }
    assert_ne!(ids[0], ids[1]);
    scene.gateway.stop().await;
}

/// Whose budget is spent says the rule.
#[tokio::test]
pub(crate) async fn users_share_the_budget_of_their_agent_or_have_it() {
    for (quota, expect) in [("agent", [200, 429]), ("user", [200, 200])] {
        let agents = format!(
            "[agents.eng]\npolicy = {{ mode = \"all\" }}\nrate = {{ calls = 1, per = \"1h\" }}\n[[agents.match]]\n\
             agent = \"eng\"\nquota = \"{quota}\"\n"
        );
        let scene = Scene::with(Behaviour::default(), "", &agents).await;
        let mut found = Vec::new();
        for subject in ["ada", "bob"] {
            let token = scene.token(json!({"sub": subject}));
            let http = scene.http(&token);
            let answer = ask_on(&http, "/mcp", "tools/call", r#"{"name":"mcp_x_echo"}"#).await;
            found.push(if answer.error.is_some() { 429 } else { 200 });
        }
        assert_eq!(found, expect, "{quota}");
        scene.gateway.stop().await;
    }
}

/// Machines need no scope, and what the config says of their issuer holds.
#[tokio::test]
pub(crate) async fn machines_have_tokens_of_their_issuer() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = Server::start().await;
    let now = jiff::Timestamp::now().as_second();
    let check = async |keys: &str, claims: Value, expect: u16| {
        let settings = format!(
            "[governance]\nauth = \"jwt\"\n[jwt.ci]\nissuer = \"{}\"\n{keys}\n[agents.ci]\n\
             policy = {{ mode = \"all\" }}\n[[agents.match]]\nagent = \"ci\"\n",
            issuer.url()
        );
        let gateway = TestGateway::new().setting(&settings);
        let gateway = gateway.server("x", &server.backend).start().await;
        let token = issuer.access_token(claims);
        let answer = gateway.http().with_key(&token).post("/mcp", call()).await;
        assert_eq!(answer.status().as_u16(), expect, "{keys}");
        gateway.stop().await;
    };
    let audience = "audience = [\"tollbridge\"]";
    let token = json!({"aud": "tollbridge", "sub": "ci"});
    check(audience, token.clone(), 200).await;
    check("", token.clone(), 401).await;
    let algorithms = |list: &str| format!("{audience}\nalgorithms = [{list}]");
    check(&algorithms("\"RS256\""), token.clone(), 401).await;
    check(&algorithms("\"RS256\", \"ES256\""), token.clone(), 200).await;
    let early = json!({"aud": "tollbridge", "nbf": now + 300});
    check(audience, early.clone(), 401).await;
    check(&format!("{audience}\nclock_skew = \"10m\""), early, 200).await;
    let elsewhere = format!("{audience}\njwks_url = \"{}/nothing\"", issuer.url());
    check(&elsewhere, token.clone(), 503).await;
    issuer.change(|it| it.metadata_status = 404);
    check(audience, token.clone(), 503).await;
    let direct = format!("{audience}\njwks_url = \"{}\"", issuer.endpoint("jwks"));
    check(&direct, token, 200).await;
}

/// What is open for a user ends when they are shown out, on every front.
#[tokio::test]
async fn open_streams_end_with_the_user() {
    let scene = Scene::new(Behaviour::default(), "").await;
    let token = scene.token(json!({}));
    let http = scene.http(&token);
    let mut events = http
        .get("/sse", &[("accept", "text/event-stream")])
        .await
        .events();
    assert_eq!(events.must().await.name.as_deref(), Some("endpoint"));
    let who = Who {
        name: "ada",
        key: &token,
    };
    let client = scene
        .gateway
        .client_of(who, Front::Streamable, "/mcp")
        .await;
    let session = client.session.clone().unwrap();
    let directory = scene
        .gateway
        .running
        .core()
        .proxy
        .governance()
        .directory()
        .clone();
    let claims = json!({"iss": scene.issuer.url(), "sub": "ada"});
    let user = directory.agent_of_claims(claims.as_object().unwrap());
    assert!(user.is_err(), "no group, no agent");
    let record = {
        http.post("/mcp", call()).await;
        records(&scene.gateway.config.data_dir).pop().unwrap()
    };
    directory.revoke_user(record.agent_id);
    events.ends().await;
    let headers = [("mcp-session-id", session.as_str())];
    let answer = http.post_with("/mcp", &headers, call()).await;
    assert_eq!(answer.status(), 404, "the session is gone");
    assert_eq!(
        scene.status("/mcp", &token).await,
        200,
        "they may come in anew"
    );
    scene.gateway.stop().await;
}

/// What a token opened ends when its time has passed, clocks that differ allowed for. The session goes on with the next.
#[tokio::test]
async fn open_streams_end_with_the_time_of_the_token() {
    let scene = Scene::new(Behaviour::default(), "").await;
    scene.server.does("tools/call", Auto::Nothing);
    // A minute of skew is allowed.
    let passes = jiff::Timestamp::now().as_second() + 6;
    let token = scene.token(json!({"exp": passes - 60}));
    let (key, name) = (token.as_str(), "ada");
    let open = async |front| {
        let who = Who { name, key };
        scene.gateway.client_of(who, front, "/mcp").await
    };
    let (legacy, modern) = (open(Front::Streamable).await, open(Front::Modern).await);
    let session = legacy.session.clone().unwrap();
    let accept = ("accept", "text/event-stream");
    let in_session = [accept, ("mcp-session-id", session.as_str())];
    let mut standing = legacy.http.get("/mcp", &in_session).await.events();
    let mut old = legacy.http.get("/sse", &[accept]).await.events();
    old.must().await;
    let both = ("accept", "text/event-stream, application/json");
    let headers = [
        ("content-type", "application/json"),
        both,
        ("mcp-session-id", session.as_str()),
    ];
    let long = legacy.http.send("POST", "/mcp", &headers, call()).await;
    let mut long = long.events();
    let wish = r#""notifications":{"toolsListChanged":true}"#;
    modern.ask("9", "subscriptions/listen", wish).await;
    modern
        .must("notifications/subscriptions/acknowledged")
        .await;
    let fresh = scene.token(json!({}));
    let http = scene.http(&fresh);
    let mut other = http.get("/mcp", &in_session).await.events();
    let mut other_old = http.get("/sse", &[accept]).await.events();
    for events in [&mut standing, &mut old, &mut long] {
        let ends = async { while events.next().await.is_some() {} };
        soon("the stream ends", ends).await;
    }
    modern.answer("9").await;
    let now = jiff::Timestamp::now().as_second();
    assert!(now >= passes, "{now} {passes}");
    assert_eq!(scene.status("/mcp", &token).await, 401);
    let answer = http.post_with("/mcp", &in_session[1..], PING).await;
    assert_eq!(answer.status(), 200, "the session goes on");
    for events in [&mut other, &mut other_old] {
        let ends = async { while events.next().await.is_some() {} };
        let ended = timeout(Duration::from_millis(100), ends).await;
        assert!(ended.is_err(), "its token is still good");
    }
    scene.gateway.stop().await;
}

/// Clients of 2025-03-26 know no metadata of resources: they look for those of the issuer at the origin of the gateway.
#[tokio::test]
async fn old_clients_find_the_issuer_at_the_origin() {
    let path = "/.well-known/oauth-authorization-server";
    let scene = Scene::new(Behaviour::default(), "").await;
    let found = async |scene: &Scene| {
        let answer = scene.gateway.http().get(path, &[]).await;
        (answer.status().as_u16(), value(&answer.text().await))
    };
    let expect = (200, scene.issuer.metadata());
    assert_eq!(found(&scene).await, expect);
    scene.issuer.change(|it| it.metadata_status = 500);
    assert_eq!(found(&scene).await, expect, "it is kept");
    assert_eq!(scene.issuer.count(path), 1);
    scene.gateway.stop().await;
    let down = Behaviour {
        metadata_status: 500,
        ..Behaviour::default()
    };
    let scene = Scene::new(down, "").await;
    let (status, answer) = found(&scene).await;
    assert_eq!(
        (status, &answer["error"]),
        (503, &json!("temporarily_unavailable"))
    );
    scene.issuer.change(|it| it.metadata_status = 200);
    assert_eq!(found(&scene).await.0, 503, "it is not asked each time");
    scene.gateway.stop().await;
}

#[tokio::test]
async fn a_token_is_explained() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let place = Place::new(&format!(
        "public_url = \"https://mcp.example.com\"\n[governance]\nauth = \"oauth\"\n[oauth]\nmode = \"external\"\n\
         issuer = \"{}\"\n[agents.eng]\n[[agents.match]]\nclaims = {{ groups = \"eng-*\" }}\nagent = \"eng\"\n\
         policy = {{ mode = \"allowlist\", tools = [\"toolbox/echo\"] }}\n[servers.toolbox]\n\
         transport = \"builtin\"\n",
        issuer.url()
    ));
    let explain = async |claims: Value, more: &[&str]| {
        place.write_private("token", &issuer.access_token(claims));
        let file = place.file("token").display().to_string();
        let args = [&["policy", "explain", "--token", &file], more].concat();
        place.run(&args).await
    };
    let good = json!({"aud": "https://mcp.example.com/mcp", "scope": "tools:read"});
    let ran = explain(good.clone(), &[]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout.contains("that of `eng/ada@example.com`"),
        "{ran:?}"
    );
    assert!(
        ran.stdout.contains("Rule 1 of `agents.match` fits"),
        "{ran:?}"
    );
    let ran = explain(good.clone(), &["toolbox/echo"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = explain(good, &["toolbox/hash"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let ran = explain(json!({"aud": "other"}), &["--json"]).await;
    assert_eq!(
        (ran.code, ran.json()["reason"].as_str()),
        (Some(1), Some("token_audience"))
    );
}
