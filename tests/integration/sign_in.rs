//! Agents sign in to servers that take tokens of an OAuth issuer, and nobody uses what another was granted.

mod harness;

use std::fmt::Write as _;

use serde_json::{Value, json};
use tollbridge::{
    browser_login::Person,
    names::ServerName,
    oauth_client::{GrantStorage, Grants, GrantsParts},
    sign_in::LinkTarget,
    status::StatusAccess,
    store::{GrantOwner, Store},
    task::Tasks,
};

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport,
    client::Who,
    issuer::{Behaviour, Issuer},
    value,
};
use harness::{Browser, ProtectedServer};

/// A client that can show URLs.
const URL_ELICITATION: &str = r#"{"elicitation":{"url":{}}}"#;

/// What `client` is answered to a call of `tool`.
async fn call(client: &Client, id: &str, tool: &str) -> Value {
    call_with(client, id, tool, "").await
}

/// The same with further params.
async fn call_with(client: &Client, id: &str, tool: &str, more: &str) -> Value {
    let members = format!(r#""name":"{tool}","arguments":{{}}{more}"#);
    client.ask(id, "tools/call", &members).await;
    let answer = client.answer(id).await;
    let part = answer.result.or(answer.error).unwrap();
    value(&part)
}

/// The link in an answer that says so in words.
fn link_of(answer: &Value) -> String {
    assert_eq!(answer["isError"], true, "{answer}");
    let data = &answer["_meta"]["tollbridge/failure"];
    assert_eq!(data["code"], "NEEDS_SIGN_IN", "{answer}");
    assert_eq!(data["retryable"], false, "{answer}");
    let url = data["signIn"]["url"].as_str().unwrap();
    let code = data["signIn"]["code"].as_str().unwrap();
    let text = answer["content"][0]["text"].as_str().unwrap();
    assert!(text.contains(url) && text.contains(code), "{text}");
    url.to_owned()
}

/// Whose token a call came with.
fn user(answer: &Value) -> &str {
    answer["structuredContent"]["user"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"))
}

/// Lets `user` be who logs in at the issuer.
fn log_in_as(issuer: &Issuer, user: &str) {
    issuer.change(|it| {
        it.user.insert("sub".to_owned(), user.into());
    });
}

/// A gateway in front of one server that lists its tools to everybody, as `x`.
async fn with_open_lists(issuer: &Issuer) -> (ProtectedServer, Gateway) {
    let server = ProtectedServer::with_open_lists(issuer).await;
    let gateway = TestGateway::new().section("x", &server.config());
    (server, gateway.start().await)
}

#[tokio::test]
async fn the_first_call_gives_a_link_and_the_next_one_is_answered() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let (_server, gateway) = with_open_lists(&issuer).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let link = link_of(&call(&client, "1", "mcp_x_echo").await);
    assert_eq!(
        link_of(&call(&client, "2", "mcp_x_echo").await),
        link,
        "one link"
    );
    let browser = Browser::new(&gateway);
    let page = browser.sign_in(&link).await;
    assert!(page.contains("You are signed in to"), "{page}");
    assert_eq!(user(&call(&client, "3", "mcp_x_echo").await), "ada");
    gateway.stop().await;
}

/// Tokens of callers are exchanged for those of the server, each for its own; the lists come from whoever came first.
#[tokio::test]
async fn tokens_of_callers_are_exchanged() {
    let issuer = Issuer::start(Behaviour::default()).await;
    issuer.add_client("gateway", Some("s"), &[]);
    let server = ProtectedServer::start(&issuer).await;
    let settings = format!(
        "[governance]\nauth = [\"jwt\"]\nprice = \"0\"\n[jwt.idp]\nissuer = \"{}\"\n\
         audience = [\"gateway\"]\n[agents.eng]\npolicy = {{ mode = \"all\" }}\n\
         [[agents.match]]\nclaims = {{ sub = \"*\" }}\nagent = \"eng\"\n",
        issuer.url()
    );
    let gateway = TestGateway::new().setting(&settings);
    let gateway = gateway.section("x", &server.exchanging_config());
    let gateway = gateway.launch().await;
    let mut clients = Vec::new();
    for name in ["ada", "bob"] {
        let token = issuer.access_token(json!({"aud": "gateway", "sub": name}));
        let who = Who { name, key: &token };
        let client = gateway.client_of(who, Front::Streamable, "/mcp").await;
        assert_eq!(user(&call(&client, "1", "mcp_x_echo").await), name);
        clients.push((name, client));
    }
    for (name, client) in &clients {
        assert_eq!(user(&call(client, "2", "mcp_x_echo").await), *name);
    }
    gateway.stop().await;
}

/// Connecting lists all with no prompt; the first call to the third gives one link; after it the same session calls;
/// revoking one leaves four.
#[tokio::test]
#[allow(
    clippy::too_many_lines,
    reason = "one story from the first to the last call"
)]
async fn five_servers_behind_one_route() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let mut gateway = TestGateway::new();
    let mut servers = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let server = ProtectedServer::start(&issuer).await;
        gateway = gateway.section(name, &server.config());
        servers.push(server);
    }
    let gateway = gateway.launch().await;
    let operator = Browser::new(&gateway);
    for name in ["a", "b", "c", "d", "e"] {
        let status = gateway
            .status_until(name, |it| it["state"] == "needs_sign_in")
            .await;
        assert_eq!(status["failed_starts"], 0, "it waits: {status}");
        log_in_as(&issuer, "operator");
        operator.sign_in(&operator_link(&gateway, name)).await;
        gateway
            .status_until(name, |it| it["state"] == "connected")
            .await;
    }
    gateway.tools_until(|tools| tools.len() == 5).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let authorized = issuer.count("/authorize");
    let link = link_of(&call(&client, "1", "mcp_c_echo").await);
    assert_eq!(
        issuer.count("/authorize"),
        authorized,
        "nothing is begun for nobody"
    );
    log_in_as(&issuer, "ada");
    let browser = Browser::new(&gateway);
    browser.sign_in(&link).await;
    assert_eq!(user(&call(&client, "2", "mcp_c_echo").await), "ada");
    for (id, name) in [("3", "a"), ("4", "b"), ("5", "d"), ("6", "e")] {
        let page = browser.open("/connections").await;
        assert!(
            page.row(name).unwrap().contains("needs you"),
            "{}",
            page.text
        );
        let page = browser.submit(&page, "start", &[("server", name)]).await;
        browser.follow(&page).await;
        assert_eq!(
            user(&call(&client, id, &format!("mcp_{name}_echo")).await),
            "ada"
        );
    }
    let page = browser.open("/connections").await;
    let page = browser.submit(&page, "revoke", &[("server", "b")]).await;
    assert_eq!(page.status, 303);
    link_of(&call(&client, "7", "mcp_b_echo").await);
    let page = browser.open("/connections").await;
    assert!(
        page.row("b").unwrap().contains("needs you"),
        "{}",
        page.text
    );
    for (id, name) in [("8", "a"), ("9", "c"), ("10", "d"), ("11", "e")] {
        assert!(
            page.row(name).unwrap().contains("connected"),
            "{}",
            page.text
        );
        assert_eq!(
            user(&call(&client, id, &format!("mcp_{name}_echo")).await),
            "ada"
        );
    }
    assert_eq!(
        gateway.tools().await.len(),
        5,
        "the lists are the operator's"
    );
    gateway.stop().await;
}

/// A link to sign in as the operator, as `tollbridge login` prints it.
fn operator_link(gateway: &Gateway, server: &str) -> String {
    let target = LinkTarget {
        person: Person::Gateway,
        server: Some(ServerName::parse(server).unwrap()),
        is_by_operator: true,
    };
    let sign_ins = gateway.running.core().proxy.sign_ins();
    sign_ins.link(target, None).unwrap().url
}

/// A server that nobody signed in to is waiting, not broken; the first sign-in is what it is listed with.
#[tokio::test]
async fn the_first_sign_in_gives_the_lists() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = ProtectedServer::start(&issuer).await;
    let gateway = TestGateway::new()
        .section("x", &server.config())
        .launch()
        .await;
    gateway
        .status_until("x", |it| it["state"] == "needs_sign_in")
        .await;
    let ready = gateway.http().get("/readyz", &[]).await;
    assert_eq!(ready.status(), 200, "it is not broken");
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let link = link_of(&call(&client, "1", "mcp_x_echo").await);
    Browser::new(&gateway).sign_in(&link).await;
    assert_eq!(user(&call(&client, "2", "mcp_x_echo").await), "ada");
    let status = gateway
        .status_until("x", |it| it["state"] == "connected")
        .await;
    assert_eq!(status["lists_from"], "anonymous", "{status}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_of_2025_11_25_is_asked_to_open_the_url_and_hears_when_it_is_done() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let (_server, gateway) = with_open_lists(&issuer).await;
    let client = gateway
        .client(Front::Streamable, "/mcp", URL_ELICITATION)
        .await;
    client.listen().await;
    let other = gateway
        .client(Front::Streamable, "/mcp", URL_ELICITATION)
        .await;
    other.listen().await;
    let refusal = call(&client, "1", "mcp_x_echo").await;
    assert_eq!(refusal["code"], -32042, "{refusal}");
    let asked = &refusal["data"]["elicitations"][0];
    assert_eq!(asked["mode"], "url", "{refusal}");
    let link = asked["url"].as_str().unwrap();
    Browser::new(&gateway).sign_in(link).await;
    let done = client.next().await;
    assert_eq!(done.method(), "notifications/elicitation/complete");
    let params = value(&done.params.unwrap());
    assert_eq!(params["elicitationId"], asked["elicitationId"]);
    assert!(other.pending().await.is_none(), "it did not ask");
    assert_eq!(user(&call(&client, "2", "mcp_x_echo").await), "ada");
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_of_2026_07_28_is_asked_for_input_and_its_call_waits() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let (server, gateway) = with_open_lists(&issuer).await;
    let client = gateway.client(Front::Modern, "/mcp", URL_ELICITATION).await;
    let asked = call(&client, "1", "mcp_x_echo").await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let request = &asked["inputRequests"]["tollbridge/sign-in"];
    assert_eq!(request["method"], "elicitation/create", "{asked}");
    assert_eq!(request["params"]["mode"], "url", "{asked}");
    let declined = r#","inputResponses":{"tollbridge/sign-in":{"action":"decline"}}"#;
    link_of(&call_with(&client, "2", "mcp_x_echo", declined).await);
    let accepted = r#","inputResponses":{"tollbridge/sign-in":{"action":"accept"}}"#;
    let members = format!(r#""name":"mcp_x_echo","arguments":{{}}{accepted}"#);
    client.ask("3", "tools/call", &members).await;
    let link = request["params"]["url"].as_str().unwrap();
    Browser::new(&gateway).sign_in(link).await;
    let answer = value(&client.answer("3").await.result.unwrap());
    assert_eq!(user(&answer), "ada");
    for request in server.scripted.received() {
        assert!(!request.body.contains("sign-in"), "{}", request.body);
    }
    gateway.stop().await;
}

/// Who opens a link is not enough: the browser that finishes is the one that began.
#[tokio::test]
async fn a_sign_in_is_finished_by_the_browser_that_began_it() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let (_server, gateway) = with_open_lists(&issuer).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let link = link_of(&call(&client, "1", "mcp_x_echo").await);
    let (own, other) = (Browser::new(&gateway), Browser::new(&gateway));
    let back = own.go_to_issuer(&link).await;
    let refused = other.open(&back).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    let signed_in_elsewhere = Browser::new(&gateway);
    let second = link_of(&call(&client, "2", "mcp_x_echo").await);
    assert_ne!(second, link, "a code is good once");
    signed_in_elsewhere.go_to_issuer(&second).await;
    let refused = signed_in_elsewhere.open(&back).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    link_of(&call(&client, "3", "mcp_x_echo").await);
    let tampered = back.replace("state=", "state=x");
    let refused = own.open(&tampered).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    let done = own.open(&back).await;
    assert_eq!(done.status, 200, "{}", done.text);
    assert_eq!(user(&call(&client, "4", "mcp_x_echo").await), "ada");
    let replayed = own.open(&back).await;
    assert_eq!(replayed.status, 400, "{}", replayed.text);
    gateway.stop().await;
}

/// Forms of other sites, used codes and links of other agents open nothing.
#[tokio::test]
async fn pages_are_for_whom_they_were_made() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = ProtectedServer::with_open_lists(&issuer).await;
    let gateway = with_agents(&["ann", "bob"])
        .section("x", &server.config())
        .start()
        .await;
    let ann = agent(&gateway, "ann").await;
    let bob = agent(&gateway, "bob").await;
    let link = link_of(&call(&ann, "1", "mcp_x_echo").await);
    let browser = Browser::with_key(&gateway, key_of("ann"));
    let page = browser.open(&link).await;
    assert!(page.text.contains("<b>ann</b>"), "{}", page.text);
    let foreign = Browser::new(&gateway);
    foreign.open("/connections").await;
    let code = page.hidden("link");
    let refused = foreign.submit(&page, "enter", &[("code", &code)]).await;
    assert_eq!(refused.status, 403, "the token is another browser's");
    browser.sign_in(&link).await;
    assert_eq!(browser.open(&link).await.status, 404, "the code is used");
    let of_bob = link_of(&call(&bob, "1", "mcp_x_echo").await);
    let refused = browser.open(&of_bob).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(!refused.text.contains("name=\"code\""), "{}", refused.text);
    link_of(&call(&bob, "2", "mcp_x_echo").await);
    let page = browser.open("/connections").await;
    assert_eq!(browser.submit(&page, "log-out", &[]).await.status, 303);
    assert!(browser.open("/connections").await.row("x").is_none());
    let key = key_of("bob");
    let page = browser.open("/connections").await;
    assert_eq!(
        browser.submit(&page, "key", &[("key", &key)]).await.status,
        303
    );
    let page = browser.open("/connections").await;
    assert!(page.text.contains("<b>bob</b>"), "{}", page.text);
    assert!(
        page.row("x").unwrap().contains("needs you"),
        "{}",
        page.text
    );
    let page = Browser::new(&gateway).open("/connections").await;
    assert!(
        page.row("x").is_none(),
        "strangers see nothing: {}",
        page.text
    );
    gateway.stop().await;
}

/// Who is sent the link of another agent connects nothing: a browser in which nobody is logged in asks for the key
/// first. What the operator made opens all the same.
#[tokio::test]
async fn a_link_opens_for_its_own_agent_alone() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = ProtectedServer::with_open_lists(&issuer).await;
    let gateway = with_agents(&["ann", "bob"])
        .section("x", &server.config())
        .start()
        .await;
    let bob = agent(&gateway, "bob").await;
    let link = link_of(&call(&bob, "1", "mcp_x_echo").await);
    let browser = Browser::new(&gateway);
    let page = browser.open(&link).await;
    assert!(page.asks_key() && page.status == 200, "{}", page.text);
    let code = page.hidden("link");
    let page = browser.submit(&page, "enter", &[("code", &code)]).await;
    assert!(page.asks_key(), "a click is not enough: {}", page.text);
    let wrong = [("key", "tbk_wrong"), ("link", &code)];
    let page = browser.submit(&page, "key", &wrong).await;
    assert_eq!(page.status, 401, "{}", page.text);
    assert_eq!(page.hidden("link"), code, "it can be tried again");
    let key = key_of("ann");
    let fields = [("key", key.as_str()), ("link", &code)];
    let page = browser.submit(&page, "key", &fields).await;
    assert_eq!(page.status, 303, "{}", page.text);
    let page = browser.open(&link).await;
    assert_eq!(page.status, 403, "{}", page.text);
    assert_eq!(issuer.count("/authorize"), 0);
    assert_eq!(link_of(&call(&bob, "2", "mcp_x_echo").await), link);
    let own = Browser::with_key(&gateway, key_of("bob"));
    own.sign_in(&link).await;
    assert_eq!(user(&call(&bob, "3", "mcp_x_echo").await), "ada");
    let proxy = &gateway.running.core().proxy;
    let ann = proxy.governance().directory().named("ann").unwrap();
    let target = LinkTarget {
        person: Person::Agent(ann),
        server: Some(ServerName::parse("x").unwrap()),
        is_by_operator: true,
    };
    let link = proxy.sign_ins().link(target, None).unwrap().url;
    Browser::new(&gateway).sign_in(&link).await;
    let ann = agent(&gateway, "ann").await;
    assert_eq!(user(&call(&ann, "1", "mcp_x_echo").await), "ada");
    gateway.stop().await;
}

fn key_of(agent: &str) -> String {
    format!("tbk_{agent}_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7")
}

/// A gateway whose agents have keys.
fn with_agents(names: &[&str]) -> TestGateway {
    let mut config = "[governance]\nauth = \"keys\"\npolicy = { mode = \"all\" }\n".to_owned();
    for name in names {
        writeln!(config, "[agents.{name}]\nkeys = [\"{}\"]", key_of(name)).unwrap();
    }
    TestGateway::new().setting(&config)
}

async fn agent(gateway: &Gateway, name: &str) -> Client {
    let key = key_of(name);
    gateway
        .client_of(Who { name, key: &key }, Front::Streamable, "/mcp")
        .await
}

/// Fifty users with grants of their own call one server in any order; it never sees a foreign token.
#[tokio::test]
async fn no_call_comes_with_the_token_of_another() {
    const USERS: usize = 50;
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = ProtectedServer::with_open_lists(&issuer).await;
    let names: Vec<String> = (0..USERS).map(|number| format!("user{number}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let keys = format!("{}max_instances = {USERS}\n", server.config());
    let gateway = with_agents(&all).section("x", &keys).start().await;
    let mut clients = Vec::new();
    for name in &names {
        let client = agent(&gateway, name).await;
        let link = link_of(&call(&client, "0", "mcp_x_echo").await);
        log_in_as(&issuer, name);
        Browser::with_key(&gateway, key_of(name))
            .sign_in(&link)
            .await;
        clients.push(client);
    }
    // A short cycle of all numbers, in an order that looks like none.
    let mut state: usize = 7;
    let mut expected = vec![Vec::new(); USERS];
    for round in 1..=400_usize {
        state = (state.wrapping_mul(1_103_515_245).wrapping_add(12_345)) % (1 << 31);
        let at = (state >> 8) % USERS;
        let id = round.to_string();
        let members = r#""name":"mcp_x_echo","arguments":{}"#;
        clients[at].ask(&id, "tools/call", members).await;
        expected[at].push(id);
        // Many are under way at a time.
        if round % 25 == 0 {
            for (at, asked) in expected.iter_mut().enumerate() {
                for _ in asked.drain(..) {
                    let answer = clients[at].next().await;
                    assert!(answer.result.is_some(), "{answer:?}");
                    let answer = value(&answer.result.unwrap());
                    assert_eq!(user(&answer), names[at]);
                }
            }
        }
    }
    for request in server.scripted.received() {
        let shown = format!("{:?}{}", request.headers, request.body);
        assert!(!shown.contains("tbk_"), "a key of a client: {shown}");
    }
    gateway.stop().await;
}

/// The parameter `prompt` of the last request to sign in.
fn last_prompt(issuer: &Issuer) -> Option<String> {
    let requests = issuer.requests_for("/authorize");
    requests.last().unwrap().param("prompt").map(str::to_owned)
}

/// Two accounts of one service are two servers with one URL: each call comes with the account of its server.
#[tokio::test]
async fn two_servers_of_one_url_have_an_account_each() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = ProtectedServer::with_open_lists(&issuer).await;
    let gateway = TestGateway::new()
        .section("home", &server.config())
        .section("work", &server.config())
        .start()
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let browser = Browser::new(&gateway);
    for (name, account, prompt) in [("home", "ada", None), ("work", "bob", Some("login"))] {
        log_in_as(&issuer, account);
        let link = link_of(&call(&client, "1", &format!("mcp_{name}_echo")).await);
        browser.sign_in(&link).await;
        assert_eq!(last_prompt(&issuer).as_deref(), prompt, "{name}");
    }
    for round in 2..5 {
        for (name, account) in [("home", "ada"), ("work", "bob")] {
            let (id, tool) = (format!("{round}"), format!("mcp_{name}_echo"));
            assert_eq!(user(&call(&client, &id, &tool).await), account);
        }
    }
    let page = browser.open("/connections").await;
    let page = browser.submit(&page, "revoke", &[("server", "home")]).await;
    assert_eq!(page.status, 303);
    link_of(&call(&client, "8", "mcp_home_echo").await);
    assert_eq!(user(&call(&client, "9", "mcp_work_echo").await), "bob");
    gateway.stop().await;
}

/// Another account takes the place of the one of before; one that the issuer gave up has expired.
#[tokio::test]
async fn the_page_changes_accounts_and_says_what_has_expired() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let (server, gateway) = with_open_lists(&issuer).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let link = link_of(&call(&client, "1", "mcp_x_echo").await);
    let browser = Browser::new(&gateway);
    browser.sign_in(&link).await;
    assert_eq!(user(&call(&client, "2", "mcp_x_echo").await), "ada");
    assert_eq!(last_prompt(&issuer), None);
    log_in_as(&issuer, "bob");
    let page = browser.open("/connections").await;
    let row = page.row("x").unwrap();
    assert!(row.contains("Sign in with another account"), "{row}");
    let page = browser.submit(&page, "switch", &[("server", "x")]).await;
    browser.follow(&page).await;
    assert_eq!(last_prompt(&issuer).as_deref(), Some("login"));
    assert_eq!(user(&call(&client, "3", "mcp_x_echo").await), "bob");
    issuer.revoke_grants();
    server.refuse_known_tokens();
    link_of(&call(&client, "4", "mcp_x_echo").await);
    let page = browser.open("/connections").await;
    let row = page.row("x").unwrap();
    assert!(row.contains("expired") && row.contains("Revoke"), "{row}");
    let page = browser.submit(&page, "start", &[("server", "x")]).await;
    browser.follow(&page).await;
    assert_eq!(user(&call(&client, "5", "mcp_x_echo").await), "bob");
    gateway.stop().await;
}

/// A token that the server refuses is renewed once, and the call is made again.
#[tokio::test]
async fn a_refused_token_is_renewed_once() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let (server, gateway) = with_open_lists(&issuer).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let link = link_of(&call(&client, "1", "mcp_x_echo").await);
    Browser::new(&gateway).sign_in(&link).await;
    assert_eq!(user(&call(&client, "2", "mcp_x_echo").await), "ada");
    server.refuse_known_tokens();
    let tokens = issuer.count("/token");
    assert_eq!(user(&call(&client, "3", "mcp_x_echo").await), "ada");
    assert_eq!(issuer.count("/token"), tokens + 1);
    issuer.revoke_grants();
    server.refuse_known_tokens();
    link_of(&call(&client, "4", "mcp_x_echo").await);
    gateway.stop().await;
}

/// The lists of a server never come from a grant that is gone: the next who has signed in gives them, or nobody.
#[tokio::test]
async fn lists_do_not_outlive_the_grant_that_they_come_from() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = ProtectedServer::start(&issuer).await;
    let gateway = with_agents(&["ann", "bob"])
        .section("x", &server.config())
        .launch()
        .await;
    let mut browsers = Vec::new();
    for name in ["ann", "bob"] {
        let client = agent(&gateway, name).await;
        let link = link_of(&call(&client, "1", "mcp_x_echo").await);
        log_in_as(&issuer, name);
        let browser = Browser::with_key(&gateway, key_of(name));
        browser.sign_in(&link).await;
        assert_eq!(user(&call(&client, "2", "mcp_x_echo").await), name);
        browsers.push(browser);
    }
    let listed_by = |name: &'static str| {
        move |it: &Value| it["lists_from"] == name && it["state"] == "connected"
    };
    status_until(&gateway, listed_by("ann")).await;
    sign_out(&browsers[0], "x").await;
    status_until(&gateway, listed_by("bob")).await;
    let listings = server.users_who_ask("tools/list");
    assert_eq!(listings.last().unwrap(), "bob", "{listings:?}");
    assert_eq!(
        server.users_who_ask("initialize").last().unwrap(),
        "bob",
        "in a session of his own"
    );
    sign_out(&browsers[1], "x").await;
    let status = status_until(&gateway, |it| it["state"] == "needs_sign_in").await;
    assert_eq!(status["lists_from"], Value::Null, "{status}");
    assert_eq!(status["failed_starts"], 0, "it waits: {status}");
    gateway.stop().await;
}

async fn sign_out(browser: &Browser, server: &str) {
    let page = browser.open("/connections").await;
    let page = browser.submit(&page, "revoke", &[("server", server)]).await;
    assert_eq!(page.status, 303, "{}", page.text);
}

/// Another process of the data directory signs an agent in with another account: what was opened with the first one
/// ends. When it signs the agent out, nothing goes on either.
#[tokio::test]
async fn connections_end_with_a_grant_that_another_process_changed() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let server = ProtectedServer::start(&issuer).await;
    let gateway = with_agents(&["ann"])
        .section("x", &server.config())
        .launch()
        .await;
    let client = agent(&gateway, "ann").await;
    let link = link_of(&call(&client, "1", "mcp_x_echo").await);
    log_in_as(&issuer, "first");
    Browser::with_key(&gateway, key_of("ann"))
        .sign_in(&link)
        .await;
    assert_eq!(user(&call(&client, "2", "mcp_x_echo").await), "first");
    let other = another_process(&gateway).await;
    let (name, owner) = (ServerName::parse("x").unwrap(), owner_of("ann", &gateway));
    log_in_as(&issuer, "second");
    harness::sign_in_elsewhere(&other, &name, owner).await;
    let core = gateway.running.core();
    core.proxy.backends().grants().unwrap().reread();
    assert_eq!(user(&call(&client, "3", "mcp_x_echo").await), "second");
    // The lists are read anew as well, though nobody asks for them.
    while server.users_who_ask("tools/list").last().unwrap() != "second" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let sessions = server.users_who_ask("initialize");
    assert_eq!(sessions.iter().filter(|it| *it == "second").count(), 2);
    other.revoke(&name, owner).await.unwrap();
    core.proxy.backends().grants().unwrap().reread();
    status_until(&gateway, |it| it["state"] == "needs_sign_in").await;
    link_of(&call(&client, "4", "mcp_x_echo").await);
    gateway.stop().await;
}

/// What the operator's status says of the only server, once `reached` holds of it.
async fn status_until(gateway: &Gateway, reached: impl Fn(&Value) -> bool) -> Value {
    let status = &gateway.running.core().status;
    let mut server = Value::Null;
    for _ in 0..500 {
        let all = status.to_json(&StatusAccess::Full);
        server = serde_json::from_slice::<Value>(&all.unwrap()).unwrap()["servers"][0].take();
        if reached(&server) {
            return server;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{server}");
}

/// The grants of another process with the config and the data directory of `gateway`.
async fn another_process(gateway: &Gateway) -> Grants {
    let data_dir = &gateway.config.data_dir;
    let store = Store::open(data_dir).await.unwrap();
    let storage = GrantStorage::new(store, data_dir);
    let grants = Grants::new(GrantsParts::new(Some(storage), Tasks::new()));
    grants.configure(&gateway.config);
    grants
}

fn owner_of(agent: &str, gateway: &Gateway) -> GrantOwner {
    let directory = gateway.running.core().proxy.governance().directory();
    GrantOwner::Agent(directory.named(agent).unwrap().id)
}

/// Issuers read who the gateway is; browsers without a session are told nothing at the callback.
#[tokio::test]
async fn the_gateway_says_who_it_is_as_a_client() {
    let public = "public_url = \"https://mcp.example.com/gateway/\"";
    let gateway = TestGateway::new().setting(public).start().await;
    let document = gateway.http().get("/oauth/client.json", &[]).await;
    assert_eq!(document.header("content-type"), Some("application/json"));
    let document = value(&document.text().await);
    let base = "https://mcp.example.com/gateway";
    assert_eq!(document["client_id"], format!("{base}/oauth/client.json"));
    assert_eq!(
        document["redirect_uris"][0],
        format!("{base}/oauth/callback")
    );
    let answer = gateway
        .http()
        .get("/oauth/callback?code=a&state=b", &[])
        .await;
    assert_eq!(answer.status(), 403);
    let cookie = answer.header("set-cookie").unwrap().to_owned();
    assert!(
        cookie.starts_with("__Host-tollbridge=") && cookie.ends_with("; Secure"),
        "{cookie}"
    );
    let page = answer.text().await;
    assert!(page.contains("action=\"/gateway/connections\""), "{page}");
    gateway.stop().await;
}

/// Prompts and resources use the same grant, and say in an error where to sign in.
#[tokio::test]
async fn other_requests_need_the_same_grant() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let (server, gateway) = with_open_lists(&issuer).await;
    let client = gateway
        .client(Front::Streamable, "/mcp/servers/x", "{}")
        .await;
    let members = r#""uri":"file:///a""#;
    client.ask("1", "resources/read", members).await;
    let error = client.answer("1").await.failure();
    assert_eq!(error["data"]["code"], "NEEDS_SIGN_IN", "{error}");
    let link = error["data"]["signIn"]["url"].as_str().unwrap();
    assert!(error["message"].as_str().unwrap().contains(link), "{error}");
    Browser::new(&gateway).sign_in(link).await;
    client.ask("2", "resources/read", members).await;
    client.answer("2").await.failure();
    let requests = server.scripted.received();
    let read = requests
        .iter()
        .find(|it| it.body.contains("resources/read"));
    assert!(
        read.unwrap().header("authorization").is_some(),
        "it came with the token"
    );
    gateway.stop().await;
}

/// A server on another transport, or of the other era, gets the token with every request.
#[tokio::test]
async fn every_transport_carries_the_token() {
    for (transport, era) in [
        (Transport::Http, Era::Modern),
        (Transport::HttpEvents, Era::Legacy),
        (Transport::Sse, Era::Legacy),
        (Transport::WebSocket, Era::Legacy),
    ] {
        let issuer = Issuer::start(Behaviour::default()).await;
        let backend = Backend::start(transport, era).await;
        let known = issuer.clone();
        backend.on_http(move |_, headers| {
            let token = headers.get("authorization").and_then(|it| it.to_str().ok());
            let token = token.and_then(|it| it.strip_prefix("Bearer "));
            let is_known = token.is_some_and(|token| known.issued(token).is_some());
            (!is_known).then_some(401)
        });
        backend.on_request(|request| {
            (request.method() == "tools/call").then(|| Auto::Result("{}".to_owned()))
        });
        let auth = format!(
            "auth = {{ type = \"oauth2\", grant = \"authorization_code\", issuer = \"{}\" }}",
            issuer.url()
        );
        let gateway = TestGateway::new()
            .server_with("x", &backend, &auth)
            .launch()
            .await;
        gateway
            .status_until("x", |it| it["state"] == "needs_sign_in")
            .await;
        let browser = Browser::new(&gateway);
        browser.sign_in(&operator_link(&gateway, "x")).await;
        gateway
            .status_until("x", |it| it["state"] == "connected")
            .await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let link = link_of(&call(&client, "1", "mcp_x_echo").await);
        Browser::new(&gateway).sign_in(&link).await;
        client
            .ask("2", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        let answer = client.answer("2").await;
        assert!(answer.result.is_some(), "{transport:?}: {answer:?}");
        gateway.stop().await;
    }
}
