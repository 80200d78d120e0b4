//! The dashboard over HTTP: who gets in, what pages show, and what forms do.

use regex::Regex;
use reqwest::{Client, Method, Response, StatusCode, redirect};
use serde_json::json;

use crate::{
    harness::{ADMIN_KEY, AGENT_KEY, TestApi},
    roles::{AGENTS, AUDITOR_KEY, LEAD_KEY},
};

/// Every page that lists or shows something, for an admin.
const PAGES: [&str; 14] = [
    "",
    "/servers",
    "/servers/new",
    "/servers/own",
    "/tools",
    "/tools?q=echo&agent=reader",
    "/playground",
    "/playground?tool=mcp_own_echo&agent=reader",
    "/calls",
    "/agents",
    "/agents/reader",
    "/budgets",
    "/connect",
    "/settings",
];

/// A person's browser on the dashboard of a gateway.
struct Visitor {
    client: Client,
    base: String,
    cookie: String,
}

/// The body of a form.
fn encoded(fields: &[(&str, &str)]) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields).finish()
}

/// A page that was shown.
#[derive(Debug)]
struct Shown {
    status: StatusCode,
    location: String,
    text: String,
}

impl Visitor {
    /// One who has not logged in.
    async fn new(api: &TestApi) -> Self {
        let client = Client::builder().redirect(redirect::Policy::none());
        let mut visitor = Self {
            client: client.build().unwrap(),
            base: format!("{}/ui", api.url()),
            cookie: String::new(),
        };
        visitor.open("/login").await;
        visitor
    }

    /// One who has logged in with `key`.
    async fn with_key(api: &TestApi, key: &str) -> Self {
        let mut visitor = Self::new(api).await;
        let shown = visitor.send("/login", &[("key", key)]).await;
        assert_eq!(shown.status, StatusCode::SEE_OTHER, "{shown:?}");
        visitor
    }

    async fn open(&mut self, path: &str) -> Shown {
        let request = self.client.get(format!("{}{path}", self.base));
        let response = request.header("cookie", &self.cookie).send().await.unwrap();
        self.show(response).await
    }

    /// Sends a form of the page at `path`.
    async fn send(&mut self, path: &str, fields: &[(&str, &str)]) -> Shown {
        let page = self
            .open(if path == "/login" { path } else { "/connect" })
            .await;
        let token = Regex::new(r#"name="token" value="([^"]*)""#).unwrap();
        let token = token.captures(&page.text).unwrap()[1].to_owned();
        self.send_with(path, &token, fields).await
    }

    async fn send_with(&mut self, path: &str, token: &str, fields: &[(&str, &str)]) -> Shown {
        let mut form = vec![("token", token)];
        form.extend_from_slice(fields);
        let request = self.client.post(format!("{}{path}", self.base));
        let request = request.header("cookie", &self.cookie).body(encoded(&form));
        let response = request.send().await.unwrap();
        self.show(response).await
    }

    async fn show(&mut self, response: Response) -> Shown {
        let header = |name: &str| {
            let value = response.headers().get(name);
            value.map_or_else(String::new, |it| it.to_str().unwrap().to_owned())
        };
        let (status, location, policy) = (
            response.status(),
            header("location"),
            header("content-security-policy"),
        );
        let cookie = header("set-cookie");
        if let Some((pair, rest)) = cookie.split_once(';') {
            assert!(rest.contains("HttpOnly; SameSite=Strict"), "{cookie}");
            pair.clone_into(&mut self.cookie);
        }
        let text = response.text().await.unwrap();
        if text.contains("<html") {
            assert!(
                policy.contains("script-src 'self'") && !policy.contains("unsafe"),
                "{policy}"
            );
            let inline = Regex::new(r#"<style|<script>| style="| on[a-z]+="|javascript:"#).unwrap();
            assert!(!inline.is_match(&text), "{text}");
        }
        Shown {
            status,
            location,
            text,
        }
    }
}

#[tokio::test]
async fn nobody_sees_a_page_without_a_login() {
    let api = TestApi::start("").await;
    let mut visitor = Visitor::new(&api).await;
    for page in PAGES {
        let shown = visitor.open(page).await;
        assert_eq!(shown.status, StatusCode::SEE_OTHER, "{page}");
        assert!(
            shown.location.starts_with("/ui/login?next=%2Fui"),
            "{shown:?}"
        );
        assert_eq!(shown.text, "");
    }
    for key in ["", "tb_wrong", "Bearer x\u{7f}"] {
        let shown = visitor.send("/login", &[("key", key)]).await;
        assert_eq!(shown.status, StatusCode::UNAUTHORIZED, "{key}");
        assert_eq!(visitor.open("/servers").await.status, StatusCode::SEE_OTHER);
    }
    let shown = visitor.send("/login", &[("code", "guessed")]).await;
    assert_eq!(shown.status, StatusCode::FORBIDDEN);
    // What is logged in goes on where it wanted to; and out again.
    let fields = [("key", ADMIN_KEY), ("next", "/ui/servers?x=1")];
    let shown = visitor.send("/login", &fields).await;
    assert_eq!(shown.location, "/ui/servers?x=1");
    let stays = visitor.cookie.clone();
    assert_eq!(visitor.open("/servers").await.status, StatusCode::OK);
    let shown = visitor.send("/logout", &[]).await;
    assert_eq!(shown.location, "/ui/login");
    visitor.cookie = stays;
    assert_eq!(visitor.open("/servers").await.status, StatusCode::SEE_OTHER);
    api.stop().await;
}

#[tokio::test]
async fn a_form_of_another_site_changes_nothing() {
    let api = TestApi::start("").await;
    let mut visitor = Visitor::with_key(&api, ADMIN_KEY).await;
    let fields = [("action", "create"), ("name", "made"), ("role", "admin")];
    for token in ["", "guessed"] {
        let shown = visitor.send_with("/agents", token, &fields).await;
        assert_eq!(shown.status, StatusCode::FORBIDDEN, "{shown:?}");
    }
    assert_eq!(api.get("/agents/made").await.status, StatusCode::NOT_FOUND);
    let request = visitor.client.post(format!("{}/agents", visitor.base));
    let request = request
        .header("cookie", &visitor.cookie)
        .header("origin", "https://evil.example");
    let response = request.body(encoded(&fields)).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    let shown = visitor.send("/agents", &fields).await;
    assert_eq!(shown.location, "/ui/agents/made?done=Added.");
    assert_eq!(api.get("/agents/made").await.status, StatusCode::OK);
    api.stop().await;
}

#[tokio::test]
async fn each_role_sees_its_pages() {
    let api = TestApi::start(AGENTS).await;
    api.items("/tools").await;
    for (key, closed) in [
        (ADMIN_KEY, &[][..]),
        (AUDITOR_KEY, &[]),
        (
            LEAD_KEY,
            &[
                "/tools?q=echo&agent=reader",
                "/playground?tool=mcp_own_echo&agent=reader",
                "/settings",
            ],
        ),
        (
            AGENT_KEY,
            &[
                "/servers",
                "/servers/own",
                "/playground?tool=mcp_own_echo&agent=reader",
                "/agents",
                "/agents/reader",
                "/budgets",
                "/settings",
            ],
        ),
    ] {
        let mut visitor = Visitor::with_key(&api, key).await;
        for page in PAGES {
            let shown = visitor.open(page).await;
            let expect = !closed.contains(&page) || page.starts_with("/tools");
            let is_open = shown.status == StatusCode::OK;
            // The page of a server of another owner is not there for a workspace admin.
            let is_hidden = page == "/servers/own" || page == "/agents/reader";
            assert!(
                is_open == expect || key == LEAD_KEY && is_hidden,
                "{key} {page}: {shown:?}"
            );
            if !is_open {
                assert!(shown.status.is_client_error(), "{page}: {}", shown.status);
            }
        }
    }
    api.stop().await;
}

#[tokio::test]
async fn a_server_is_added_tested_and_used() {
    let api = TestApi::start("").await;
    let mut visitor = Visitor::with_key(&api, ADMIN_KEY).await;
    let pasted = json!({ "mcpServers": { "second": { "transport": "builtin" } } }).to_string();
    let shown = visitor
        .send("/servers/new", &[("json", &pasted), ("action", "test")])
        .await;
    assert!(shown.text.contains("Test: connected"), "{}", shown.text);
    assert_eq!(
        api.get("/servers/second").await.status,
        StatusCode::NOT_FOUND
    );
    let shown = visitor
        .send("/servers/new", &[("json", "{"), ("action", "create")])
        .await;
    assert!(
        shown.text.contains("no valid JSON") && shown.text.contains(">{</textarea>"),
        "{shown:?}"
    );
    let shown = visitor
        .send("/servers/new", &[("json", &pasted), ("action", "create")])
        .await;
    assert_eq!(shown.location, "/ui/servers/second?done=Added.");
    api.items("/servers/second/tools").await;
    use_added_server(&api, &mut visitor).await;
    let page = visitor.open("/servers/second").await.text;
    let version = Regex::new(r#"name="version" value="([^"]*)""#).unwrap();
    let version = version.captures(&page).unwrap()[1].replace("&quot;", "\"");
    let save = [
        ("action", "save"),
        ("version", &version),
        (
            "config",
            "{\"transport\": \"builtin\", \"timeout\": \"9s\"}",
        ),
    ];
    let shown = visitor.send("/servers/second", &save).await;
    assert_eq!(
        shown.location, "/ui/servers/second?done=Saved.",
        "{shown:?}"
    );
    let shown = visitor.send("/servers/second", &save).await;
    assert_eq!(
        shown.status,
        StatusCode::PRECONDITION_FAILED,
        "somebody has saved since"
    );
    let shown = visitor
        .send("/servers/second", &[("action", "delete")])
        .await;
    assert!(shown.location.starts_with("/ui/servers?done="), "{shown:?}");
    assert_eq!(
        api.get("/servers/second").await.status,
        StatusCode::NOT_FOUND
    );
    api.stop().await;
}

/// Ticks one of its tools off, and calls another.
async fn use_added_server(api: &TestApi, visitor: &mut Visitor) {
    let off = [("action", "tool"), ("tool", "echo"), ("enabled", "false")];
    let shown = visitor.send("/servers/second", &off).await;
    assert_eq!(shown.status, StatusCode::SEE_OTHER, "{shown:?}");
    let tools = api.items("/servers/second/tools").await;
    let echo = tools.iter().find(|tool| tool["name"] == "echo").unwrap();
    assert_eq!(echo["enabled"], false);
    let call = [
        ("tool", "mcp_second_hash"),
        ("agent", "reader"),
        ("argument.text", "<b>text</b>"),
        ("action", "call"),
    ];
    let shown = visitor.send("/playground", &call).await;
    assert!(
        shown.text.contains("SHA-256") || shown.text.contains("sha256"),
        "{}",
        shown.text
    );
    assert!(!shown.text.contains("<b>text"), "{}", shown.text);
}

#[tokio::test]
async fn a_refusal_is_explained() {
    let terms = "[agents.held]\npolicy = { mode = \"none\" }\n";
    let api = TestApi::start(terms).await;
    api.items("/tools").await;
    let mut visitor = Visitor::with_key(&api, ADMIN_KEY).await;
    let call = [
        ("tool", "mcp_own_echo"),
        ("agent", "held"),
        ("arguments", "{\"text\": \"x\"}"),
        ("action", "call"),
    ];
    let shown = visitor.send("/playground", &call).await;
    let link = Regex::new(r#"href="/ui(/calls/inv_[^"]*)""#).unwrap();
    let link = link.captures(&shown.text).unwrap()[1].to_owned();
    api.items("/audit").await;
    let shown = visitor.open(&link).await;
    // What stands beside the records in the API is no record.
    for other in ["/calls/follow", "/calls/export", "/calls/events/x"] {
        assert_eq!(visitor.open(other).await.status, StatusCode::NOT_FOUND);
    }
    let put = visitor.client.put(format!("{}/calls", visitor.base));
    assert_eq!(
        put.send().await.unwrap().status(),
        StatusCode::METHOD_NOT_ALLOWED
    );
    let injected = visitor.open("/connect?profile=x;curl").await.text;
    assert!(!injected.contains("profiles/x"), "{injected}");
    assert!(
        shown.text.contains("agents.held.policy.mode"),
        "{}",
        shown.text
    );
    assert!(
        visitor
            .open("/calls?decision=refused")
            .await
            .text
            .contains("held")
    );
    api.stop().await;
}

#[tokio::test]
async fn an_agent_gets_a_policy_and_a_key_that_ends() {
    let api = TestApi::start("").await;
    let mut visitor = Visitor::with_key(&api, ADMIN_KEY).await;
    visitor
        .send(
            "/agents",
            &[("action", "create"), ("name", "new"), ("role", "agent")],
        )
        .await;
    let policy = [
        ("action", "policy"),
        ("mode", "allowlist"),
        ("tools", " own/echo\n\nown/uuid "),
    ];
    let shown = visitor.send("/agents/new", &policy).await;
    assert_eq!(shown.status, StatusCode::SEE_OTHER, "{shown:?}");
    let agent = api.get("/agents/new").await.body;
    let expect = json!({ "mode": "allowlist", "tools": ["own/echo", "own/uuid"] });
    assert_eq!(agent["terms"]["policy"], expect, "{agent}");
    let shown = visitor
        .send(
            "/agents/new",
            &[("action", "policy"), ("mode", "all"), ("tools", "x")],
        )
        .await;
    assert_eq!(shown.status, StatusCode::SEE_OTHER, "{shown:?}");
    let agent = api.get("/agents/new").await.body;
    assert_eq!(
        agent["terms"]["policy"],
        json!({ "mode": "all" }),
        "{agent}"
    );
    let shown = visitor.send("/agents/new", &[("action", "key")]).await;
    let key = Regex::new(r#"id="new-key">([^<]*)<"#).unwrap();
    let key = key.captures(&shown.text).unwrap()[1].to_owned();
    let asked = api.request(Method::GET, "/me").bearer_auth(&key);
    assert_eq!(asked.send().await.unwrap().status(), StatusCode::OK);
    let mut other = Visitor::with_key(&api, &key).await;
    assert_eq!(other.open("").await.status, StatusCode::OK);
    let id = api.items("/agents/new/keys").await[0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = visitor
        .send("/agents/new", &[("action", "revoke"), ("key", &id)])
        .await;
    assert_eq!(shown.status, StatusCode::SEE_OTHER, "{shown:?}");
    assert_eq!(
        other.open("").await.status,
        StatusCode::SEE_OTHER,
        "logged out with its key"
    );
    let shown = visitor.open("/agents/new").await;
    assert!(!shown.text.contains(&key), "a key is shown once");
    api.stop().await;
}

#[tokio::test]
async fn files_are_small_and_named_by_their_content() {
    let api = TestApi::start("").await;
    let mut visitor = Visitor::new(&api).await;
    let page = visitor.open("/login").await.text;
    let asset = Regex::new(r#"(?:href|src)="/ui(/dashboard-[0-9a-f]{16}\.(?:css|js))""#).unwrap();
    let paths: Vec<_> = asset
        .captures_iter(&page)
        .map(|found| found[1].to_owned())
        .collect();
    assert_eq!(paths.len(), 2, "{page}");
    let mut bytes = page.len();
    for path in paths {
        let request = visitor.client.get(format!("{}{path}", visitor.base));
        let response = request.send().await.unwrap();
        assert_eq!(
            response.headers()["cache-control"],
            "public, max-age=31536000, immutable"
        );
        bytes += response.text().await.unwrap().len();
    }
    assert!(bytes < 250_000, "{bytes}");
    assert_eq!(
        visitor.open("/dashboard-0000000000000000.css").await.status,
        StatusCode::SEE_OTHER
    );
    api.stop().await;
}
