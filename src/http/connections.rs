//! `/connections`: where a person signs in to servers for an agent, and `/oauth/callback`, where issuers send them back.
//!
//! A browser is known by a cookie. It becomes that of an agent by the code of a link, or by the agent's key, and
//! stays it until its person leaves; the link of another agent does not open there. Every form has a token that is
//! made of the cookie, so that no other site can send one. There are no scripts.

mod page;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method as Verb, Request, Response, StatusCode,
    header::{COOKIE, LOCATION, SET_COOKIE},
};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use maud::Markup;
use url::{Url, form_urlencoded};

use super::{
    HttpEdge, RequestPeer,
    body::{self, Body},
    oauth::RequestTarget,
    request_log,
};
use crate::{
    auth::{API_KEY_HEADER, Credentials, MERGED_ROUTE},
    names::{AgentId, ServerName},
    oauth_client::SignIn,
    sign_in::{self, BROWSER_TTL, BrowserSession, LinkTarget, SignInPerson},
};
use page::{PageContext, PageNotice};

/// Bytes of a form; ours are smaller.
const FORM_BYTES_MAX: usize = 16 << 10;

/// One request for a page.
struct Visit<'e> {
    edge: &'e HttpEdge,
    /// The cookie that the browser has, or is given.
    cookie: String,
    /// Whether it is given one.
    is_new: bool,
    session: Option<BrowserSession>,
}

/// Answers a request for `/connections`.
pub(super) async fn handle(
    edge: &HttpEdge,
    peer: &RequestPeer,
    request: &mut Request<Incoming>,
) -> Response<Body> {
    let Some(mut visit) = Visit::of(edge, request.headers()) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR);
    };
    if request.method() != Verb::POST {
        let query = request.uri().query().unwrap_or_default();
        let code = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "code");
        let code = code.map(|(_, code)| code.into_owned());
        return visit.show(code.as_deref()).await;
    }
    let form = Limited::new(request.body_mut(), FORM_BYTES_MAX)
        .collect()
        .await;
    let Ok(form) = form else {
        return visit
            .page(StatusCode::BAD_REQUEST, &PageNotice::InvalidForm)
            .await;
    };
    let form = form.to_bytes();
    let field = |wanted: &str| {
        let mut fields = form_urlencoded::parse(&form);
        let found = fields.find(|(name, _)| name == wanted);
        found
            .map(|(_, value)| value.into_owned())
            .unwrap_or_default()
    };
    if visit.is_new || !sign_in::is_form_token(&field("token"), &visit.cookie) {
        return visit
            .page(StatusCode::FORBIDDEN, &PageNotice::InvalidForm)
            .await;
    }
    match field("action").as_str() {
        "enter" => visit.enter(&field("code")).await,
        "key" => {
            let key = field("key");
            visit.enter_with_key(&key, peer, request).await
        }
        "start" => visit.start(&field("server")).await,
        "revoke" => visit.revoke(&field("server")).await,
        "leave" => visit.leave(),
        _ => {
            visit
                .page(StatusCode::BAD_REQUEST, &PageNotice::InvalidForm)
                .await
        }
    }
}

/// Answers a browser that an issuer sends back.
pub(super) async fn callback(edge: &HttpEdge, request: &Request<Incoming>) -> Response<Body> {
    let Some(visit) = Visit::of(edge, request.headers()) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let Some(session) = &visit.session else {
        return visit
            .page(StatusCode::FORBIDDEN, &PageNotice::OtherBrowser)
            .await;
    };
    let query = request.uri().query().unwrap_or_default();
    match edge.proxy.finish_sign_in(query, session).await {
        Ok(SignIn::Done { server, .. }) => {
            visit
                .page(StatusCode::OK, &PageNotice::SignedIn(server))
                .await
        }
        Ok(SignIn::Again(url)) => {
            visit
                .page(StatusCode::OK, &PageNotice::Leaving(None, url))
                .await
        }
        Err(reason) => {
            visit
                .page(StatusCode::BAD_REQUEST, &PageNotice::Failed(reason))
                .await
        }
    }
}

impl<'e> Visit<'e> {
    /// That of the browser with these headers; `None` where the system has no random numbers.
    fn of(edge: &'e HttpEdge, headers: &HeaderMap) -> Option<Self> {
        let name = cookie_name(edge.proxy.sign_ins().is_secure());
        let known = cookie(headers, name);
        let session = known.and_then(|cookie| edge.proxy.sign_ins().browser(cookie));
        let session = session.filter(|session| match &session.person {
            SignInPerson::Agent(agent) => {
                let directory = edge.proxy.governance().directory();
                agent.enabled && directory.is_still_authorized(agent)
            }
            SignInPerson::Gateway => true,
        });
        Some(Self {
            edge,
            is_new: known.is_none(),
            cookie: match known {
                Some(cookie) => cookie.to_owned(),
                None => sign_in::new_cookie().ok()?,
            },
            session,
        })
    }

    /// The page for the link with `code`, or without one.
    async fn show(&self, code: Option<&str>) -> Response<Body> {
        let Some(code) = code else {
            return self.page(StatusCode::OK, &PageNotice::None).await;
        };
        match (self.edge.proxy.sign_ins().target(code), &self.session) {
            (None, _) => {
                self.page(StatusCode::NOT_FOUND, &PageNotice::UnknownCode)
                    .await
            }
            (Some(target), Some(session)) if !is_of(&target, session) => {
                self.page(
                    StatusCode::FORBIDDEN,
                    &PageNotice::OtherPerson(target.person),
                )
                .await
            }
            (Some(target), _) => {
                self.page(StatusCode::OK, &PageNotice::Link(target, code.to_owned()))
                    .await
            }
        }
    }

    /// Lets the browser be that of whom `code` is for, and begins the sign-in that it is for.
    async fn enter(&mut self, code: &str) -> Response<Body> {
        let sign_ins = self.edge.proxy.sign_ins();
        let Some(target) = sign_ins.target(code) else {
            return self
                .page(StatusCode::NOT_FOUND, &PageNotice::UnknownCode)
                .await;
        };
        if self.session.as_ref().is_some_and(|it| !is_of(&target, it)) {
            return self
                .page(
                    StatusCode::FORBIDDEN,
                    &PageNotice::OtherPerson(target.person),
                )
                .await;
        }
        let Some(LinkTarget { person, server }) = sign_ins.take(code) else {
            return self
                .page(StatusCode::NOT_FOUND, &PageNotice::UnknownCode)
                .await;
        };
        if !self.open(person) {
            return plain(StatusCode::INTERNAL_SERVER_ERROR);
        }
        match server {
            Some(server) => self.start(server.as_str()).await,
            None => self.redirect(),
        }
    }

    /// Lets the browser be that of the agent with `key`.
    async fn enter_with_key(
        &mut self,
        key: &str,
        peer: &RequestPeer,
        request: &Request<Incoming>,
    ) -> Response<Body> {
        let governance = self.edge.proxy.governance();
        let mut headers = HeaderMap::new();
        if let Ok(key) = HeaderValue::try_from(key.trim()) {
            headers.insert(HeaderName::from_static(API_KEY_HEADER), key);
        }
        let resource_server = self.edge.resource_server.load_full();
        let shown = Credentials {
            headers: &headers,
            certificate: None,
            resource: resource_server
                .public_url
                .resource(MERGED_ROUTE, RequestTarget::of(request)),
        };
        let found = governance.directory().authenticate(shown).await;
        match found.map(|identity| identity.agent) {
            // A key is what is asked for here.
            Ok(agent) if agent.id == AgentId::ANONYMOUS => {
                self.page(StatusCode::UNAUTHORIZED, &PageNotice::InvalidForm)
                    .await
            }
            Ok(agent)
                if self
                    .session
                    .as_ref()
                    .is_none_or(|it| it.person.is_agent(agent.id)) =>
            {
                if self.open(SignInPerson::Agent(agent)) {
                    self.redirect()
                } else {
                    plain(StatusCode::INTERNAL_SERVER_ERROR)
                }
            }
            Ok(agent) => {
                let person = SignInPerson::Agent(agent);
                self.page(StatusCode::FORBIDDEN, &PageNotice::OtherPerson(person))
                    .await
            }
            Err(error) => {
                let refused = request_log::refused_request(request);
                governance.record_auth_failure(&error, peer.address, refused);
                self.page(
                    StatusCode::UNAUTHORIZED,
                    &PageNotice::Failed(error.to_string()),
                )
                .await
            }
        }
    }

    /// Makes the browser that of `person`, under another cookie than before.
    fn open(&mut self, person: SignInPerson) -> bool {
        let sign_ins = self.edge.proxy.sign_ins();
        sign_ins.close_browser(&self.cookie);
        let Ok(cookie) = sign_ins.open_browser(person) else {
            return false;
        };
        self.session = sign_ins.browser(&cookie);
        (self.cookie, self.is_new) = (cookie, true);
        true
    }

    /// Sends the browser to the issuer of `server`.
    async fn start(&self, server: &str) -> Response<Body> {
        let (Some(session), Ok(server)) = (&self.session, ServerName::parse(server)) else {
            return self
                .page(StatusCode::FORBIDDEN, &PageNotice::InvalidForm)
                .await;
        };
        match self.edge.proxy.begin_sign_in(&server, session).await {
            Ok(url) if matches!(url.scheme(), "http" | "https") => {
                self.page(StatusCode::OK, &PageNotice::Leaving(Some(server), url))
                    .await
            }
            Ok(_) => {
                let reason = "the issuer has no valid URL to sign in at".to_owned();
                self.page(StatusCode::BAD_GATEWAY, &PageNotice::Failed(reason))
                    .await
            }
            Err(reason) => {
                self.page(StatusCode::BAD_GATEWAY, &PageNotice::Failed(reason))
                    .await
            }
        }
    }

    /// Gives up what was granted for `server`.
    async fn revoke(&self, server: &str) -> Response<Body> {
        let (Some(session), Ok(server)) = (&self.session, ServerName::parse(server)) else {
            return self
                .page(StatusCode::FORBIDDEN, &PageNotice::InvalidForm)
                .await;
        };
        match self.edge.proxy.sign_out(&server, &session.person).await {
            Ok(()) => self.redirect(),
            Err(reason) => {
                self.page(StatusCode::BAD_GATEWAY, &PageNotice::Failed(reason))
                    .await
            }
        }
    }

    fn leave(&mut self) -> Response<Body> {
        self.edge.proxy.sign_ins().close_browser(&self.cookie);
        self.session = None;
        self.redirect()
    }

    /// Has the browser ask for the page anew.
    fn redirect(&self) -> Response<Body> {
        let mut response = self.respond(StatusCode::SEE_OTHER, maud::html! {});
        if let Ok(page) = HeaderValue::try_from(self.edge.proxy.sign_ins().page_path()) {
            response.headers_mut().insert(LOCATION, page);
        }
        response
    }

    async fn page(&self, status: StatusCode, notice: &PageNotice) -> Response<Body> {
        let person = self.session.as_ref().map(|session| &session.person);
        let connections = match person {
            Some(person) => self.edge.proxy.connections(person.owner()).await,
            None => Vec::new(),
        };
        let context = PageContext {
            person,
            connections,
            token: sign_in::form_token(&self.cookie),
            path: self.edge.proxy.sign_ins().page_path(),
            takes_keys: !self.edge.proxy.governance().directory().is_anonymous(),
        };
        self.respond(status, page::render(&context, notice))
    }

    fn respond(&self, status: StatusCode, page: Markup) -> Response<Body> {
        let mut response = Response::new(body::full_body(page.into_string()));
        *response.status_mut() = status;
        page::set_headers(response.headers_mut());
        if self.is_new {
            let is_secure = self.edge.proxy.sign_ins().is_secure();
            let (name, secure) = (
                cookie_name(is_secure),
                if is_secure { "; Secure" } else { "" },
            );
            let (cookie, seconds) = (&self.cookie, BROWSER_TTL.as_secs());
            let value = format!(
                "{name}={cookie}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
            );
            if let Ok(mut value) = HeaderValue::try_from(value) {
                value.set_sensitive(true);
                response.headers_mut().insert(SET_COOKIE, value);
            }
        }
        response
    }
}

/// Whether a link is for who uses the browser.
fn is_of(target: &LinkTarget, session: &BrowserSession) -> bool {
    target.person.owner() == session.person.owner()
}

/// A cookie with this prefix is set by this host alone, over TLS.
fn cookie_name(is_secure: bool) -> &'static str {
    if is_secure {
        "__Host-tollbridge"
    } else {
        "tollbridge"
    }
}

fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';'));
    pairs.find_map(|pair| {
        let (found, value) = pair.trim().split_once('=')?;
        (found == name && !value.is_empty()).then_some(value)
    })
}

fn plain(status: StatusCode) -> Response<Body> {
    super::text_response(status, "the system has no random numbers")
}

/// The host of a URL, for people.
fn shown_host(url: &Url) -> String {
    sign_in::host_of(url)
}
