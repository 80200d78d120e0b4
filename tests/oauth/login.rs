//! People log in at an OpenID Connect issuer.

use std::net::SocketAddr;

use serde_json::json;
use tollbridge::{browser_login::Person, sign_in::LinkTarget};
use url::Url;

use crate::{
    sign_in::{Browser, Shown, SignIns, between, param},
    support::{
        http::Http,
        issuer::{Behaviour, Issuer},
    },
};

/// A gateway whose people log in at `issuer`; those of the group `engineers` are `ann`.
async fn signing(issuer: &Issuer) -> SignIns {
    let signing = SignIns::new(&format!(
        "[oauth.login]\nissuer = \"{}\"\nclient_id = \"gateway\"\nclient_secret = \"hush\"\n\
         [[agents.match]]\nclaims = {{ groups = \"engineers\" }}\nagent = \"ann\"\n",
        issuer.url()
    ))
    .await;
    let callback = format!("{}/oauth/login/callback", signing.url());
    issuer.add_client("gateway", Some("hush"), &[&callback]);
    signing
}

/// An issuer that knows a person of these groups.
async fn issuer(groups: &[&str]) -> Issuer {
    let issuer = Issuer::start(Behaviour::default()).await;
    issuer.change(|it| {
        it.user.insert("groups".to_owned(), json!(groups));
        it.user.insert("name".to_owned(), json!("Ada Lovelace"));
    });
    issuer
}

/// Where the issuer sends the browser back to, as a path of the gateway.
async fn at_issuer(url: &str, signing: &SignIns) -> String {
    let url = Url::parse(url).unwrap();
    let host = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let http = Http::new(host.parse::<SocketAddr>().unwrap());
    let path = format!("{}?{}", url.path(), url.query().unwrap());
    let answer = http.get(&path, &[]).await;
    let back = answer.header("location").unwrap().to_owned();
    back.strip_prefix(&signing.url()).unwrap().to_owned()
}

/// A browser that was sent to the issuer, and back to this path.
async fn logged_in(signing: &SignIns, client: &str) -> (Browser, String) {
    let mut browser = signing.browser();
    let away = browser.get(&signing.query(client, &[])).await.url();
    let back = at_issuer(&away, signing).await;
    (browser, back)
}

#[tokio::test]
pub(crate) async fn somebody_logs_in_at_the_issuer() {
    let issuer = issuer(&["engineers", "staff"]).await;
    let signing = signing(&issuer).await;
    let client = signing.client_id().await;
    let (mut browser, back) = logged_in(&signing, &client).await;
    let consent = browser.get(&back).await.page();
    assert!(consent.contains("Ada Lovelace"), "{consent}");
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
    let directory = signing
        .gateway
        .running
        .core()
        .proxy
        .governance()
        .directory()
        .clone();
    assert_eq!(directory.user_count(), 1, "they are governed on their own");
    let asked = issuer.requests_for("/authorize");
    let asked = asked.last().unwrap();
    assert_eq!(asked.param("scope"), Some("openid profile email"));
    assert_eq!(asked.param("code_challenge_method"), Some("S256"));
    // Whoever is logged in need not go there again.
    let second = signing.query(&signing.client_id().await, &[]);
    assert!(browser.get(&second).await.page().contains("Ada Lovelace"));
    let refresh = tokens["refresh_token"].as_str().unwrap();
    let form = format!("client_id={client}&token={refresh}");
    let header = [("content-type", "application/x-www-form-urlencoded")];
    signing
        .gateway
        .http()
        .send("POST", "/oauth/revoke", &header, form)
        .await;
    assert_eq!(signing.call_status(access, "/mcp").await, 401);
    signing.stop().await;
}

#[tokio::test]
async fn who_is_nobody_here_gets_nothing() {
    let issuer = issuer(&["guests"]).await;
    let signing = signing(&issuer).await;
    let client = signing.client_id().await;
    let (mut browser, back) = logged_in(&signing, &client).await;
    let shown = browser.get(&back).await;
    assert!(matches!(shown, Shown::Page(403, _)), "{shown:?}");
    assert_eq!(signing.refusals("oauth_no_agent"), 1);
    signing.stop().await;
}

#[tokio::test]
async fn a_login_ends_in_the_browser_that_began_it() {
    let issuer = issuer(&["engineers"]).await;
    let signing = signing(&issuer).await;
    let client = signing.client_id().await;
    let (mut browser, back) = logged_in(&signing, &client).await;
    let (mut other, _) = logged_in(&signing, &client).await;
    let state = param(&format!("http://x{back}"), "state").unwrap();
    let tampered = back.replace(&state, &format!("B{}", &state[1..]));
    let foreign = back.replace("iss=", "iss=https%3A%2F%2Fother.example%2F&x=");
    let paths = [(&mut other, &back), (&mut browser, &tampered)];
    let mut refused = 0;
    for (browser, path) in paths {
        let shown = browser.get(path).await;
        assert!(matches!(shown, Shown::Page(400, _)), "{path} {shown:?}");
        refused += 1;
        assert_eq!(signing.refusals("oauth_tampered_state"), refused);
    }
    let shown = browser.get(&foreign).await;
    assert!(
        matches!(shown, Shown::Page(400, _)),
        "another issuer: {shown:?}"
    );
    browser.get(&back).await.page();
    let shown = browser.get(&back).await;
    assert!(matches!(shown, Shown::Page(400, _)), "twice: {shown:?}");
    issuer.change(|it| it.authorize_error = Some("access_denied"));
    let (mut browser, back) = logged_in(&signing, &client).await;
    let shown = browser.get(&back).await;
    assert!(matches!(shown, Shown::Page(400, _)), "{shown:?}");
    assert_eq!(signing.refusals("oauth_login_refused"), 1);
    signing.stop().await;
}

#[tokio::test]
async fn an_issuer_that_is_down_lets_nobody_in() {
    let issuer = issuer(&["engineers"]).await;
    let signing = signing(&issuer).await;
    let client = signing.client_id().await;
    issuer.change(|it| it.metadata_status = 503);
    let shown = signing.browser().get(&signing.query(&client, &[])).await;
    assert!(matches!(shown, Shown::Page(400, _)), "{shown:?}");
    assert_eq!(signing.refusals("oauth_login_unavailable"), 1);
    signing.stop().await;
}

/// Who logged in for one page is known to the others.
#[tokio::test]
async fn all_pages_share_a_login() {
    let signing = SignIns::new("").await;
    let client = signing.client_id().await;
    let query = signing.query(&client, &[]);
    let code = signing.login_code("ann").await;
    let mut browser = signing.browser();
    let login = browser.get(&query).await.page();
    browser.submit(&login, &[("code", &code)]).await.page();
    let connections = browser.get("/connections").await.page();
    assert!(connections.contains("<b>ann</b>"), "{connections}");
    let entrance = browser.send(&connections, &[("action", "log-out")]).await;
    let entrance = entrance.page();
    assert!(!entrance.contains("<b>ann</b>"), "{entrance}");
    let login = browser.get(&query).await.page();
    assert!(login.contains("Log in to connect"), "{login}");
    let used = [("action", "login-code"), ("code", code.as_str())];
    let shown = browser.send(&entrance, &used).await;
    assert!(matches!(&shown, Shown::Page(403, _)), "{shown:?}");
    assert_eq!(signing.refusals("oauth_login_code"), 1);
    let code = signing.login_code("bob").await;
    let fields = [("action", "login-code"), ("code", code.as_str())];
    let connections = browser.send(&shown.page(), &fields).await.page();
    assert!(connections.contains("<b>bob</b>"), "{connections}");
    let consent = browser.get(&query).await.page();
    assert!(consent.contains("<strong>bob</strong>"), "{consent}");
    let foreign = signing.browser().send(&connections, &fields).await;
    assert!(matches!(foreign, Shown::Page(403, _)), "{foreign:?}");
    signing.stop().await;
}

/// `/connections` leads to the issuer of `oauth.login`, and whoever is nobody here is shown out.
#[tokio::test]
async fn people_log_in_at_the_issuer_for_their_connections() {
    let issuer = issuer(&["engineers"]).await;
    let signing = signing(&issuer).await;
    let mut browser = signing.browser();
    let entrance = browser.get("/connections").await.page();
    assert!(entrance.contains("Log in with 127.0.0.1"), "{entrance}");
    assert!(!entrance.contains("login-code"), "{entrance}");
    let leaving = browser.send(&entrance, &[("action", "issuer")]).await;
    let away = leaving.page();
    let away = between(&away, "content=\"0;url=", "\"").replace("&amp;", "&");
    let back = at_issuer(&away, &signing).await;
    let mut other = signing.browser();
    other.get("/connections").await.page();
    let shown = other.get(&back).await;
    assert!(matches!(shown, Shown::Page(400, _)), "{shown:?}");
    let connections = browser.get(&back).await.page();
    assert!(connections.contains("Servers that <b>"), "{connections}");
    let client = signing.client_id().await;
    let consent = browser.get(&signing.query(&client, &[])).await.page();
    assert!(consent.contains("Ada Lovelace"), "{consent}");
    signing.stop().await;
}

/// The code of a link for signing in to servers as `agent`.
fn link_code(signing: &SignIns, agent: &str) -> String {
    let proxy = &signing.gateway.running.core().proxy;
    let agent = proxy.governance().directory().named(agent).unwrap();
    let target = LinkTarget {
        person: Person::Agent(agent),
        server: None,
        is_by_operator: false,
    };
    proxy.sign_ins().link(target, None).unwrap().code
}

/// Where people have login codes, a link opens for who has logged in with one of its agent.
#[tokio::test]
async fn a_link_asks_for_a_login_code_first() {
    let signing = SignIns::new("").await;
    let link = link_code(&signing, "ann");
    let mut refused = Vec::new();
    for agent in ["bob", "ann"] {
        let mut browser = signing.browser();
        let page = browser.get(&format!("/connections?code={link}")).await;
        let page = page.page();
        assert!(!page.contains("value=\"enter\""), "{page}");
        let code = signing.login_code(agent).await;
        let fields = [
            ("action", "login-code"),
            ("link", link.as_str()),
            ("code", code.as_str()),
        ];
        match browser.send(&page, &fields).await {
            Shown::Page(200, page) => assert!(page.contains("value=\"enter\""), "{page}"),
            other @ (Shown::Page(..) | Shown::Elsewhere(_)) => refused.push((agent, other)),
        }
    }
    let [("bob", Shown::Page(403, page))] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert!(page.contains("used by somebody else"), "{page}");
    signing.stop().await;
}

/// The same at an issuer, which sends the browser back to the link.
#[tokio::test]
async fn a_link_asks_for_a_login_at_the_issuer_first() {
    let issuer = issuer(&["engineers"]).await;
    let signing = signing(&issuer).await;
    let client = signing.client_id().await;
    let (mut browser, back) = logged_in(&signing, &client).await;
    browser.get(&back).await.page();
    let proxy = &signing.gateway.running.core().proxy;
    let directory = proxy.governance().directory();
    let claims = json!({ "iss": issuer.url(), "sub": "ada", "groups": ["engineers"] });
    let ada = directory
        .agent_of_claims(claims.as_object().unwrap())
        .unwrap();
    let target = LinkTarget {
        person: Person::Agent(ada),
        server: None,
        is_by_operator: false,
    };
    let link = proxy.sign_ins().link(target, None).unwrap().code;
    let url = format!("/connections?code={link}");
    let page = browser.get(&url).await.page();
    assert!(page.contains("value=\"enter\""), "is logged in: {page}");
    let mut browser = signing.browser();
    let page = browser.get(&url).await.page();
    assert!(!page.contains("value=\"enter\""), "{page}");
    let fields = [("action", "issuer"), ("link", link.as_str())];
    let leaving = browser.send(&page, &fields).await.page();
    let away = between(&leaving, "content=\"0;url=", "\"").replace("&amp;", "&");
    let back = at_issuer(&away, &signing).await;
    let page = browser.get(&back).await.page();
    assert!(page.contains("value=\"enter\""), "{page}");
    signing.stop().await;
}
