//! Servers that want tokens of an issuer, and browsers in which people sign in.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tollbridge::{
    names::ServerName,
    oauth_client::{Grants, SignInRequest},
    store::GrantOwner,
};
use url::Url;

use crate::support::{
    Gateway,
    http::Http,
    issuer::Issuer,
    scripted::{self, Received, Scripted},
};

/// A server with the tool `echo`, which says whose token it got; it takes those of one issuer.
pub(super) struct ProtectedServer {
    pub(super) scripted: Scripted,
    issuer: String,
    refused: Arc<Mutex<HashSet<String>>>,
}

impl ProtectedServer {
    /// One that takes no request without a token.
    pub(super) async fn start(issuer: &Issuer) -> Self {
        Self::start_with(issuer, false).await
    }

    /// One that lists its tools to everybody.
    pub(super) async fn with_open_lists(issuer: &Issuer) -> Self {
        Self::start_with(issuer, true).await
    }

    async fn start_with(issuer: &Issuer, has_open_lists: bool) -> Self {
        let known = issuer.clone();
        let refused = Arc::<Mutex<HashSet<String>>>::default();
        let lost = Arc::clone(&refused);
        let scripted = Scripted::start(move |request| {
            let token = token_of(request).filter(|token| !lost.lock().unwrap().contains(*token));
            let user = token.and_then(|token| user_of(token, &known));
            respond(request, &known, (user, has_open_lists))
        });
        Self {
            scripted: scripted.await,
            issuer: issuer.url(),
            refused,
        }
    }

    /// The keys of a config that lead to it; each agent signs in.
    pub(super) fn config(&self) -> String {
        let (url, issuer) = (self.scripted.config(), &self.issuer);
        format!(
            "{url}auth = {{ type = \"oauth2\", grant = \"authorization_code\", \
             issuer = \"{issuer}\" }}\n"
        )
    }

    /// The same where the tokens of callers are exchanged, by a client that the issuer knows.
    pub(super) fn exchanging_config(&self) -> String {
        let (url, issuer) = (self.scripted.config(), &self.issuer);
        format!(
            "{url}auth = {{ type = \"oauth2\", grant = \"token_exchange\", issuer = \"{issuer}\", \
             client_id = \"gateway\", client_secret = \"s\" }}\n"
        )
    }

    /// Whose tokens the requests for `method` came with, in order.
    pub(super) fn users_who_ask(&self, method: &str) -> Vec<String> {
        let requests = self.scripted.received();
        let is_for = |it: &&Received| it.body.contains(&format!("\"{method}\""));
        let tokens = requests.iter().filter(is_for).filter_map(token_of);
        tokens.filter_map(subject_of).collect()
    }

    /// Takes no token from now on that it got before.
    pub(super) fn refuse_known_tokens(&self) {
        let requests = self.scripted.received();
        let known = requests.iter().filter_map(token_of).map(str::to_owned);
        self.refused.lock().unwrap().extend(known);
    }
}

fn token_of(request: &Received) -> Option<&str> {
    request.header("authorization")?.strip_prefix("Bearer ")
}

/// Who a JWT is of, also of one that is no longer good.
fn subject_of(token: &str) -> Option<String> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    claims["sub"].as_str().map(str::to_owned)
}

/// Signs `owner` in by `grants`, which are those of a process without pages.
pub(super) async fn sign_in_elsewhere(grants: &Grants, server: &ServerName, owner: GrantOwner) {
    let request = SignInRequest {
        redirect_uri: Url::parse("http://127.0.0.1:1/oauth/callback").unwrap(),
        browser: "a browser".to_owned(),
        client_metadata: None,
        selects_account: false,
    };
    let url = grants.begin(server, owner, &request).await.unwrap();
    let back = Url::parse(&visit_issuer(url.as_str()).await).unwrap();
    let query = back.query().unwrap();
    grants.finish(query, "a browser").await.unwrap();
}

/// Who a token is of.
fn user_of(token: &str, issuer: &Issuer) -> Option<String> {
    let claims = issuer.issued(token)?;
    Some(claims["sub"].as_str().unwrap().to_owned())
}

fn respond(
    request: &Received,
    issuer: &Issuer,
    (user, has_open_lists): (Option<String>, bool),
) -> Option<Vec<u8>> {
    let host = request.header("host").unwrap();
    if request
        .target
        .contains("/.well-known/oauth-protected-resource")
    {
        return Some(scripted::json(
            json!({
                "resource": format!("http://{host}/mcp"),
                "authorization_servers": [issuer.url()],
            })
            .to_string(),
        ));
    }
    let is_open = has_open_lists && !request.body.contains("\"tools/call\"");
    if user.is_none() && !is_open {
        let metadata = format!("http://{host}/.well-known/oauth-protected-resource/mcp");
        let challenge = format!("www-authenticate: Bearer resource_metadata=\"{metadata}\"\r\n");
        return Some(scripted::response("401 Unauthorized", &challenge, ""));
    }
    request.calls("echo").then(|| {
        let result = json!({ "content": [], "structuredContent": { "user": user } });
        scripted::json(request.result(&result.to_string()))
    })
}

/// A browser, as far as our pages need one.
pub(super) struct Browser {
    gateway: Http,
    base: Url,
    cookie: Mutex<Option<String>>,
    /// What its person logs in with.
    key: Option<String>,
}

/// A page, and its status.
pub(super) struct Page {
    pub(super) status: u16,
    pub(super) text: String,
}

impl Browser {
    pub(super) fn new(gateway: &Gateway) -> Self {
        Self {
            gateway: gateway.http(),
            base: Url::parse(&format!("http://{}/", gateway.addr())).unwrap(),
            cookie: Mutex::default(),
            key: None,
        }
    }

    /// The same of somebody who has a key.
    pub(super) fn with_key(gateway: &Gateway, key: String) -> Self {
        Self {
            key: Some(key),
            ..Self::new(gateway)
        }
    }

    /// Opens a page of the gateway.
    pub(super) async fn open(&self, url: &str) -> Page {
        let url = self.base.join(url).unwrap();
        assert_eq!(url.origin(), self.base.origin(), "{url}");
        let query = url
            .query()
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        self.send("GET", &format!("{}{query}", url.path()), &[], "")
            .await
    }

    /// Sends the form with this button.
    pub(super) async fn submit(&self, page: &Page, action: &str, fields: &[(&str, &str)]) -> Page {
        let token = page.hidden("token");
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("action", action)
            .append_pair("token", &token);
        form.extend_pairs(fields);
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("origin", self.base.as_str().trim_end_matches('/')),
        ];
        self.send("POST", "/connections", &headers, &form.finish())
            .await
    }

    async fn send(&self, verb: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Page {
        let cookie = self.cookie.lock().unwrap().clone();
        let mut headers = headers.to_vec();
        if let Some(cookie) = &cookie {
            headers.push(("cookie", cookie));
        }
        let answer = self
            .gateway
            .send(verb, path, &headers, body.to_owned())
            .await;
        if let Some(set) = answer.header("set-cookie") {
            assert!(set.contains("HttpOnly; SameSite=Lax"), "{set}");
            let pair = set.split(';').next().unwrap().to_owned();
            *self.cookie.lock().unwrap() = Some(pair);
        }
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        Page {
            status: answer.status().as_u16(),
            text: answer.text().await,
        }
    }

    /// Opens a link with a code and goes on to the issuer; where that sends the browser back to.
    pub(super) async fn go_to_issuer(&self, link: &str) -> String {
        let mut page = self.open(link).await;
        assert_eq!(page.status, 200, "{}", page.text);
        if let Some(key) = self.key.as_ref().filter(|_| page.asks_key()) {
            let fields = [("key", key.as_str()), ("link", &page.hidden("link"))];
            assert_eq!(self.submit(&page, "key", &fields).await.status, 303);
            page = self.open(link).await;
        }
        let code = page.hidden("code");
        let page = self.submit(&page, "enter", &[("code", &code)]).await;
        assert_eq!(page.status, 200, "{}", page.text);
        visit_issuer(&page.target()).await
    }

    /// Goes on to the issuer where the page leads there, and back.
    pub(super) async fn follow(&self, page: &Page) -> Page {
        let back = visit_issuer(&page.target()).await;
        self.open(&back).await
    }

    /// Opens a link and signs in; the text of the last page.
    pub(super) async fn sign_in(&self, link: &str) -> String {
        let back = self.go_to_issuer(link).await;
        self.open(&back).await.text
    }
}

/// Opens the page of an issuer, who knows everybody; where it sends the browser.
async fn visit_issuer(url: &str) -> String {
    let url = Url::parse(url).unwrap();
    let address = url.socket_addrs(|| None).unwrap()[0];
    let path = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    let answer = Http::new(address).get(&path, &[]).await;
    let target = answer.header("location").map(str::to_owned);
    let text = answer.text().await;
    target.unwrap_or_else(|| panic!("{text}"))
}

impl Page {
    /// Whether it wants somebody to log in with a key.
    pub(super) fn asks_key(&self) -> bool {
        self.text.contains("name=\"key\"")
    }

    /// The value of the first hidden field `name`.
    pub(super) fn hidden(&self, name: &str) -> String {
        let start = format!("name=\"{name}\" value=\"");
        let found = self.text.split_once(&start);
        let (_, rest) = found.unwrap_or_else(|| panic!("{name}: {}", self.text));
        rest.split('"').next().unwrap().to_owned()
    }

    /// Where the page sends its browser.
    fn target(&self) -> String {
        let (_, rest) = self.text.split_once("content=\"0;url=").unwrap_or_else(|| {
            panic!("{}", self.text);
        });
        rest.split('"').next().unwrap().replace("&amp;", "&")
    }

    /// What the row of a server says.
    pub(super) fn row(&self, server: &str) -> Option<&str> {
        let start = format!("<th scope=\"row\">{server}</th>");
        let (_, rest) = self.text.split_once(&start)?;
        rest.split_once("</tr>").map(|(row, _)| row)
    }
}
