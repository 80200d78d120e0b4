//! Endpoints and pages of the built-in authorization server; what they do is decided in `authorization_server`.

mod authorize;
mod pages;
mod token;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{
    HeaderValue, Method as Verb, Request, Response, StatusCode,
    header::{CONTENT_TYPE, LOCATION},
};
use hyper::body::Incoming;
use serde_json::json;
use url::{Url, form_urlencoded};

use super::{
    HttpEdge, RequestPeer, Route,
    body::{self, Body},
    browser::Browser,
    json_response,
    oauth::RequestTarget,
    request_log, wrong_method,
};
use crate::{
    audit::EventKind,
    authorization_server::{AuthorizationServer, Grant, OidcIssuer, ServerError, Tries},
    browser_login::BrowserPages,
    lock::lock,
    names::{Scope, ServerName},
    task::Tasks,
};

pub(super) use authorize::TOO_MANY_LOGINS;

/// Bytes of a body that is sent here.
const BODY_MAX: usize = 64 << 10;
/// Between two reports of how many tokens were issued.
const ISSUE_REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Logins that one address may try in a minute.
const LOGINS_PER_MINUTE: u32 = 30;
/// Parameters of a request; no client sends as many.
const PARAMETERS_MAX: usize = 64;
/// Clients that one address may register in a minute, or let us fetch the document of.
const CLIENTS_PER_MINUTE: u32 = 60;

/// What a path of the authorization server leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Endpoint {
    Authorize,
    Login,
    LoginCallback,
    Metadata,
    Register,
    Revoke,
    Token,
}

impl Endpoint {
    /// Clients without metadata assume some of them at the root (Spec 2025-03-26, authorization). Metadata of an
    /// issuer with a path have that at their end (RFC 8414, section 3.1).
    pub(super) fn parse(path: &str, issuer_path: &str) -> Option<Self> {
        let metadata = path.strip_prefix("/.well-known/oauth-authorization-server");
        if metadata.is_some_and(|rest| rest.is_empty() || rest == issuer_path) {
            return Some(Self::Metadata);
        }
        Some(match path {
            "/authorize" | "/oauth/authorize" => Self::Authorize,
            "/oauth/login" => Self::Login,
            "/oauth/login/callback" => Self::LoginCallback,
            "/register" | "/oauth/register" => Self::Register,
            "/oauth/revoke" => Self::Revoke,
            "/token" | "/oauth/token" => Self::Token,
            _ => return None,
        })
    }

    /// The verbs it takes.
    fn takes(self, verb: &Verb) -> bool {
        match self {
            Self::Authorize => matches!(*verb, Verb::GET | Verb::POST),
            Self::LoginCallback => *verb == Verb::GET,
            Self::Metadata => matches!(*verb, Verb::GET | Verb::HEAD),
            Self::Login | Self::Register | Self::Revoke | Self::Token => *verb == Verb::POST,
        }
    }
}

/// The authorization server, and how often strangers may try.
#[derive(Debug)]
pub(super) struct OAuthEdge {
    server: Arc<AuthorizationServer>,
    logins: Tries,
    clients: Tries,
    /// How often tokens of each grant were issued since the audit was told.
    issued: Mutex<BTreeMap<String, u64>>,
}

impl OAuthEdge {
    pub(super) fn new(server: Arc<AuthorizationServer>) -> Self {
        Self {
            server,
            logins: Tries::new(LOGINS_PER_MINUTE),
            clients: Tries::new(CLIENTS_PER_MINUTE),
            issued: Mutex::default(),
        }
    }

    /// Notes that a client got tokens of `grant`.
    fn note_issued(&self, grant: &Grant) {
        *lock(&self.issued).entry(grant.id.clone()).or_default() += 1;
    }

    /// Whether the server is on.
    pub(super) fn is_on(&self) -> bool {
        self.server.is_on()
    }

    /// The issuer where people log in; without one they do with login codes.
    pub(super) fn login_issuer(&self) -> Option<Arc<OidcIssuer>> {
        self.server.settings().ok()?.login.clone()
    }
}

/// A request to an endpoint, with what is needed to answer it.
#[derive(Debug)]
pub(super) struct OAuthRequest<'r> {
    edge: &'r Arc<HttpEdge>,
    oauth: &'r OAuthEdge,
    peer: &'r RequestPeer,
    request: &'r mut Request<Incoming>,
    /// The URL of the gateway, as the sender of the request knows it.
    issuer: String,
}

/// Answers a request to `endpoint`.
pub(super) async fn answer(
    endpoint: Endpoint,
    edge: &Arc<HttpEdge>,
    oauth: &OAuthEdge,
    peer: &RequestPeer,
    request: &mut Request<Incoming>,
) -> Response<Body> {
    if !endpoint.takes(request.method()) {
        return wrong_method(&Route::OAuth);
    }
    let mut asked = OAuthRequest::new(edge, oauth, peer, request);
    match endpoint {
        Endpoint::Authorize if *asked.request.method() == Verb::POST => asked.decide().await,
        Endpoint::Authorize => asked.authorize().await,
        Endpoint::Login => asked.login().await,
        Endpoint::LoginCallback => asked.finish_login().await,
        Endpoint::Metadata => asked.metadata(),
        Endpoint::Register => asked.register().await,
        Endpoint::Revoke => asked.revoke().await,
        Endpoint::Token => asked.token().await,
    }
}

/// Lets the audit know how often tokens were issued.
pub(super) fn spawn_issue_reports(edge: &Arc<HttpEdge>, tasks: &Tasks) {
    if edge.oauth.is_none() {
        return;
    }
    let (edge, stop) = (Arc::clone(edge), tasks.stop_token().clone());
    tasks.spawn("reports of tokens", async move {
        loop {
            let is_stopping = tokio::select! {
                () = tokio::time::sleep(ISSUE_REPORT_INTERVAL) => false,
                () = stop.cancelled() => true,
            };
            let issued = edge
                .oauth
                .as_ref()
                .map(|it| std::mem::take(&mut *lock(&it.issued)));
            for (grant, count) in issued.unwrap_or_default() {
                let (event, detail) = (EventKind::TokensIssued, format!("{count} times"));
                let governance = edge.proxy.governance();
                governance.record_event(event, &grant, None, Some(&detail));
            }
            if is_stopping {
                return;
            }
        }
    });
}

impl<'r> OAuthRequest<'r> {
    /// A request that came from `peer`.
    pub(super) fn new(
        edge: &'r Arc<HttpEdge>,
        oauth: &'r OAuthEdge,
        peer: &'r RequestPeer,
        request: &'r mut Request<Incoming>,
    ) -> Self {
        let resource_server = edge.resource_server.load();
        let issuer = resource_server.public_url.of(RequestTarget::of(request));
        Self {
            edge,
            oauth,
            peer,
            request,
            issuer,
        }
    }

    /// The browser that sent it.
    fn browser(&self) -> Result<Browser<'r>, ServerError> {
        Ok(Browser::of(
            self.edge,
            BrowserPages::SignIn,
            self.request.headers(),
        )?)
    }

    fn server(&self) -> &AuthorizationServer {
        &self.oauth.server
    }

    fn metadata(&self) -> Response<Body> {
        match self.server().metadata(&self.issuer) {
            Some(metadata) => json_response(StatusCode::OK, metadata.to_string()),
            None => oauth_error(StatusCode::NOT_FOUND, "invalid_request", "it is off"),
        }
    }

    /// The body, which is a form.
    async fn form(&mut self) -> Result<OAuthForm, Response<Body>> {
        let is_form = self.content_type_is("application/x-www-form-urlencoded");
        if !is_form {
            let why = "the body is application/x-www-form-urlencoded";
            return Err(oauth_error(StatusCode::BAD_REQUEST, "invalid_request", why));
        }
        let body = self.body().await?;
        OAuthForm::parse(&body)
            .map_err(|why| oauth_error(StatusCode::BAD_REQUEST, "invalid_request", &why))
    }

    fn content_type_is(&self, wanted: &str) -> bool {
        let header = self.request.headers().get(CONTENT_TYPE);
        let header = header
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let essence = header.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case(wanted)
    }

    async fn body(&mut self) -> Result<bytes::Bytes, Response<Body>> {
        body::read_small_body(self.request, self.edge, self.peer, BODY_MAX).await
    }

    /// The resource `wanted` in its usual form, where it is a route of this gateway; without any the merged one.
    fn canonical_resource(&self, wanted: Option<&str>) -> Option<String> {
        let issuer = &self.issuer;
        let Some(wanted) = wanted else {
            return Some(format!("{issuer}/mcp"));
        };
        let url = Url::parse(wanted)
            .ok()
            .filter(|url| url.fragment().is_none())?;
        let base = Url::parse(issuer).ok()?;
        if url.origin() != base.origin() || url.query().is_some() {
            return None;
        }
        let path = url.path().strip_prefix(base.path().trim_end_matches('/'))?;
        let path = path.strip_suffix('/').unwrap_or(path);
        // Clients that found no metadata of a resource name the origin.
        if path.is_empty() {
            return Some(format!("{issuer}/mcp"));
        }
        let Some(Route::Mcp(scope) | Route::Sse(scope)) = Route::parse(path) else {
            return None;
        };
        let is_there = self.edge.proxy.has_route(&scope);
        is_there.then(|| format!("{issuer}{path}"))
    }

    /// Counts a refusal, and lets the audit and the log know, unless they just did.
    fn refused(&self, reason: &'static str) {
        let refused = request_log::refused_request(self.request);
        let governance = self.edge.proxy.governance();
        governance.record_oauth_refusal(reason, self.peer.address, refused);
    }

    /// Ends what is under way by a grant of which tokens were revoked.
    fn end_grant(&self, grant: &Grant) {
        let directory = self.edge.proxy.governance().directory();
        directory.end_grant(&grant.id);
    }

    fn record(&self, event: EventKind, subject: &str, actor: &str, detail: &str) {
        let governance = self.edge.proxy.governance();
        governance.record_event(event, subject, Some(actor), Some(detail));
    }

    /// The answer where we cannot go on, which the operator mends.
    fn failed(error: &ServerError) -> Response<Body> {
        tracing::error!(%error, "the authorization server failed");
        let why = "the authorization server failed; see the log of the gateway";
        oauth_error(StatusCode::INTERNAL_SERVER_ERROR, "server_error", why)
    }
}

/// The parameters of a form.
#[derive(Debug, Default)]
struct OAuthForm(Vec<(String, String)>);

impl OAuthForm {
    /// Parameters but `resource` stand there once.
    fn parse(body: &[u8]) -> Result<Self, String> {
        let mut params: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(body) {
            if params.len() >= PARAMETERS_MAX {
                return Err(format!("there are more than {PARAMETERS_MAX} parameters"));
            }
            if name != "resource" && params.iter().any(|(known, _)| *known == *name) {
                return Err(format!("the parameter {name} stands there twice"));
            }
            params.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(params))
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        let same = self.0.iter().filter(move |(known, _)| known == name);
        same.map(|(_, value)| value.as_str())
    }
}

/// An error as OAuth has it (RFC 6749, section 5.2).
fn oauth_error(status: StatusCode, error: &str, description: &str) -> Response<Body> {
    let error = json!({ "error": error, "error_description": description });
    json_response(status, error.to_string())
}

/// Sends a browser on. After a form it is a GET, whatever was sent (RFC 9110, section 15.4.4).
fn redirect(url: &str) -> Response<Body> {
    let mut response = Response::new(body::full_body(""));
    *response.status_mut() = StatusCode::SEE_OTHER;
    match HeaderValue::from_str(url) {
        Ok(url) => {
            response.headers_mut().insert(LOCATION, url);
        }
        Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    response
}

/// `path` below the path of the public URL.
fn path_below(issuer: &str, path: &str) -> String {
    let base = Url::parse(issuer);
    let base = base
        .as_ref()
        .map_or("", |url| url.path().trim_end_matches('/'));
    format!("{base}{path}")
}

/// A resource for people: which part of the gateway it is.
fn resource_label(resource: &str, issuer: &str) -> String {
    let path = resource.strip_prefix(issuer).unwrap_or(resource);
    match Route::parse(path) {
        Some(Route::Mcp(scope) | Route::Sse(scope)) => scope_label(&scope),
        Some(_) | None => resource.to_owned(),
    }
}

fn scope_label(scope: &Scope) -> String {
    match scope {
        Scope::All => "all servers of this gateway".to_owned(),
        Scope::Profile(profile) => format!("the profile {profile}"),
        Scope::Server(server) => format!("the server {}", ServerName::as_str(server)),
        Scope::View { id, .. } => format!("the view {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_stands_in_a_form_once() {
        let form = OAuthForm::parse(b"a=1&resource=x&resource=y&b=a%20b").unwrap();
        assert_eq!(form.get("b"), Some("a b"));
        assert_eq!(form.all("resource").collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(form.get("c"), None);
        let twice = OAuthForm::parse(b"code=1&code=2").unwrap_err();
        assert_eq!(twice, "the parameter code stands there twice");
    }
}
