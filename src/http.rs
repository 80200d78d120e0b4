//! The downstream edge over HTTP: listener, routes, checks that need no body.
//!
//! Owns sockets and framing. What a request means is decided in `session`, what is done about it
//! in `proxy`.

mod api;
mod batch;
mod batch_response;
mod body;
mod browser;
mod call_response;
mod connections;
mod correlation;
mod cors;
mod dashboard;
mod legacy_sse;
mod listener;
mod media_types;
mod oauth;
mod oauth_probes;
mod oauth_server;
mod origin;
mod request_log;
mod responses;
mod route;
mod status_endpoints;
mod streamable;
mod timeouts;
mod tls;
mod unix_socket;

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use ::http::{HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode};
use arc_swap::{ArcSwap, ArcSwapOption};
use hyper::body::Incoming;

use crate::{
    api::Api,
    auth::{
        Agent, AuthError, CredentialLifetime, Credentials, Identity, MERGED_ROUTE, PeerCertificate,
        jwt::ExternalMetadata, token::Scopes,
    },
    authorization_server::AuthorizationServer,
    browser_login::{BrowserLogins, BrowserPages, DashboardCodes},
    config::{Config, Listen},
    limiter::ConnectionPermit,
    mcp::{
        GatewayId, Method,
        gateway_headers::{self, GATEWAY_HEADER, HOPS_MAX},
        header,
    },
    names::{PeerAddress, Scope},
    proxy::Proxy,
    session::{Client, ForwardedHeaders},
    status::{self, Status},
    task::{InFlight, Tasks},
};
pub(crate) use batch::split as split_batch;
pub(crate) use body::Body;
use body::DrainLimit;
use listener::ListenerRole;
pub(crate) use listener::{BoundListener, InvalidListener, bind, bind_admin};
use oauth::{RequestTarget, ResourceServer};
use oauth_server::{Endpoint, OAuthEdge};
use origin::OriginGuard;
use request_log::{RequestFault, RequestLog};
pub(crate) use responses::overloaded_error;
use responses::{
    MCP_PATH_HINT, accepted, bad_post, challenged, json_response, method_not_allowed,
    overloaded_response, retryable_response, rpc_error_response, session_not_opened, shutting_down,
    text_response, with_retry_after, wrong_method,
};
use route::Route;
pub(crate) use tls::{Certificate, Certificates, InvalidTls};

/// What every HTTP handler needs.
#[derive(Debug)]
pub(crate) struct HttpEdge {
    proxy: Arc<Proxy>,
    status: Arc<Status>,
    guard: ArcSwap<OriginGuard>,
    /// For requests to the listener of `admin_listen`.
    admin_guard: ArcSwap<OriginGuard>,
    resource_server: ArcSwap<ResourceServer>,
    request_log: RequestLog,
    /// The built-in authorization server; `None` without a store.
    oauth: Option<OAuthEdge>,
    /// Who is logged in in browsers, where people sign in.
    browser_logins: BrowserLogins,
    /// The same in the dashboard.
    dashboard_logins: BrowserLogins,
    dashboard_codes: DashboardCodes,
    /// Where the gateway is managed; `None` where nothing can be changed.
    api: OnceLock<Api>,
    /// What another authorization server says of itself, where that issues the tokens.
    external_metadata: ArcSwapOption<ExternalMetadata>,
    /// Those who read streams of events.
    stream_readers: InFlight,
    tasks: Tasks,
}

impl HttpEdge {
    /// Joins the parts; `config.listen` and `config.admin_listen` are the addresses of bound listeners.
    pub(crate) fn new(
        config: &Config,
        proxy: Arc<Proxy>,
        status: Arc<Status>,
        oauth: Option<Arc<AuthorizationServer>>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let resource_server = ResourceServer::new(config, &config.listen);
        proxy.sign_ins().set_base(resource_server.public_url.base());
        let edge = Arc::new(Self {
            oauth: oauth.map(OAuthEdge::new),
            browser_logins: BrowserLogins::new(BrowserPages::SignIn),
            dashboard_logins: BrowserLogins::new(BrowserPages::Dashboard),
            dashboard_codes: DashboardCodes::default(),
            api: OnceLock::new(),
            external_metadata: ArcSwapOption::from(ExternalMetadata::new(config).map(Arc::new)),
            proxy,
            status,
            guard: ArcSwap::from_pointee(OriginGuard::new(config, &config.listen)),
            admin_guard: ArcSwap::from_pointee(OriginGuard::new(config, admin_listen(config))),
            resource_server: ArcSwap::from_pointee(resource_server),
            request_log: RequestLog::default(),
            stream_readers: InFlight::default(),
            tasks: tasks.clone(),
        });
        oauth_server::spawn_issue_reports(&edge, tasks);
        edge
    }

    /// Lets the gateway be managed by `api`; only the first counts.
    pub(crate) fn set_api(&self, api: Api) {
        drop(self.api.set(api));
    }

    /// The path of a link that opens the dashboard as the operator, once.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn dashboard_link(&self) -> Result<String, getrandom::Error> {
        let code = self.dashboard_codes.add()?;
        Ok(format!("{}?code={code}", dashboard::LOGIN_PATH))
    }

    /// Takes the hosts and origins of another config; its listeners are still those that are bound.
    pub(crate) fn replace(&self, config: &Config) {
        let guard = OriginGuard::new(config, &config.listen);
        self.guard.store(Arc::new(guard));
        let guard = OriginGuard::new(config, admin_listen(config));
        self.admin_guard.store(Arc::new(guard));
        let resource_server = ResourceServer::new(config, &config.listen);
        let base = resource_server.public_url.base();
        self.proxy.sign_ins().set_base(base);
        self.resource_server.store(Arc::new(resource_server));
        let external = ExternalMetadata::new(config);
        self.external_metadata.store(external.map(Arc::new));
    }

    /// Answers one HTTP request, which came from `peer`.
    pub(crate) async fn handle(
        self: Arc<Self>,
        peer: RequestPeer,
        mut request: Box<Request<Incoming>>,
    ) -> Response<Body> {
        let route = Route::parse(request.uri().path()).filter(|route| match peer.role {
            ListenerRole::Admin => !route.is_for_clients(),
            ListenerRole::All => true,
            ListenerRole::Clients => route.is_for_clients(),
        });
        let is_page = !route.as_ref().is_some_and(Route::requires_agent);
        let mut response = self.respond(route, &peer, &mut request).await;
        if is_page {
            status_endpoints::set_security_headers(response.headers_mut());
        }
        self.drain_body(request.into_body(), response.status(), is_page);
        response
    }

    /// Leaves the body of a request that was answered so. Who has to show a key and is refused before it was
    /// looked at, or for it, may send little of it, and so may who asks for a page.
    fn drain_body(&self, body: Incoming, answered: StatusCode, is_page: bool) {
        let is_early = is_page
            || matches!(
                answered,
                StatusCode::UNAUTHORIZED
                    | StatusCode::FORBIDDEN
                    | StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            );
        let limit = if answered == StatusCode::REQUEST_TIMEOUT {
            return;
        } else if is_early && !self.proxy.governance().directory().is_anonymous() {
            DrainLimit::for_unauthenticated(self.proxy.settings().limits.unauthenticated_body)
        } else {
            DrainLimit::for_client()
        };
        body::drain(body, limit, &self.tasks);
    }

    async fn respond(
        self: &Arc<Self>,
        route: Option<Route>,
        peer: &RequestPeer,
        request: &mut Request<Incoming>,
    ) -> Response<Body> {
        let form = ErrorFormat::of(route.as_ref(), request.method());
        // Before all that a server may refuse for: the reason is none of those.
        if route.as_ref().is_some_and(Route::requires_agent)
            && let Some(why) = self.loop_of(request.headers())
        {
            let mut response = form.refuse(StatusCode::LOOP_DETECTED, &why);
            self.gateway().set_header(response.headers_mut());
            return response;
        }
        // Balancers name the address of a pod, which no config knows. Probes tell nothing that a page
        // could use, and do nothing.
        let is_probe = matches!(route, Some(Route::Health | Route::Ready));
        let guard = match peer.role {
            ListenerRole::Admin => &self.admin_guard,
            ListenerRole::All | ListenerRole::Clients => &self.guard,
        };
        if !is_probe && let Err(unwelcome) = guard.load().check(request) {
            self.proxy.governance().record_forbidden(unwelcome.reason());
            let (fault, message) = (unwelcome.fault(), unwelcome.message());
            self.request_log.warn(fault, message, peer.address, request);
            return form.refuse(StatusCode::FORBIDDEN, unwelcome.message());
        }
        let limit = self.proxy.settings().limits.headers;
        if header_bytes(request.headers()) > limit {
            let message = format!("the request headers exceed limits.headers ({limit} bytes)");
            return form.refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &message);
        }
        let Some(route) = route else {
            // Browsers ask for it beside every page.
            if request.uri().path() != "/favicon.ico" {
                let (fault, message) = (RequestFault::Path, "nothing is at this path");
                self.request_log.warn(fault, message, peer.address, request);
            }
            return text_response(
                StatusCode::NOT_FOUND,
                &format!("not found; {MCP_PATH_HINT}"),
            );
        };
        if let (Route::Api, Some(api)) = (&route, self.api.get()) {
            return Box::pin(api::handle(self, api, peer, request)).await;
        }
        if let (Route::Dashboard, Some(api)) = (&route, self.api.get()) {
            return Box::pin(dashboard::handle(self, api, peer, request)).await;
        }
        if !route.is_for_clients() {
            return self.answer(route, form, peer, request).await;
        }
        if let Some(answer) = cors::preflight(request, route.allowed_methods().1) {
            return answer;
        }
        let page = cors::WebPage::from_request(request);
        let for_gateway = request.headers().contains_key(GATEWAY_HEADER);
        let scope = route.scope().filter(|_| for_gateway).cloned();
        let mut response = self.answer(route, form, peer, request).await;
        if let Some(scope) = scope {
            self.tell_depth(&scope, &mut response);
        }
        if let Some(page) = page {
            page.allow_read(response.headers_mut());
        }
        response
    }

    /// Whether who asked may still be answered.
    fn is_still_authorized(&self, client: &Client) -> bool {
        self.proxy
            .governance()
            .directory()
            .is_still_authorized(&client.agent)
    }

    /// Why a request is part of a loop of gateways, if it is.
    fn loop_of(&self, headers: &HeaderMap) -> Option<String> {
        if self.gateway().is_in_header(headers) {
            let why = "loop detected: one of the configured servers is this gateway";
            return Some(why.to_owned());
        }
        let hops = gateway_headers::hops(headers);
        (hops > HOPS_MAX).then(|| {
            format!(
                "loop detected: the request has passed more than {HOPS_MAX} gateways; \
                 remove this gateway from the servers of one of them"
            )
        })
    }

    /// Tells the gateway that asks how many stand in a row here.
    fn tell_depth(&self, scope: &Scope, response: &mut Response<Body>) {
        if response.status().is_success() {
            let depth = self.proxy.backends().depth(scope);
            gateway_headers::set_hops(response.headers_mut(), depth);
        }
    }

    /// The headers of a request that servers may get.
    fn forwarded_headers(&self, headers: &HeaderMap) -> Option<Arc<ForwardedHeaders>> {
        ForwardedHeaders::of(headers, &self.proxy.settings().forward_headers)
    }

    /// The built-in authorization server, where it is on.
    fn authorization_server(&self) -> Option<&OAuthEdge> {
        self.oauth.as_ref().filter(|oauth| oauth.is_on())
    }

    /// The endpoint of the built-in authorization server at `path`.
    fn oauth_endpoint(&self, path: &str) -> Option<Endpoint> {
        let resource_server = self.resource_server.load();
        Endpoint::parse(path, resource_server.public_url.path())
    }

    /// What another authorization server says of itself, where clients look for it at `path`.
    fn external_metadata_at(&self, path: &str) -> Option<Arc<ExternalMetadata>> {
        let metadata = self.external_metadata.load_full()?;
        (self.oauth_endpoint(path) == Some(Endpoint::Metadata)).then_some(metadata)
    }

    /// Keeps the token of a request for servers that want another one in exchange for it.
    fn offer_subject_token(&self, identity: &Identity, headers: &HeaderMap) {
        // Keys have no end and no scopes of their own.
        let is_token = identity.expires.is_some() || identity.scopes.is_some();
        if let Some(grants) = self.proxy.backends().grants().filter(|_| is_token) {
            grants.offer_subject(identity.agent.id, headers);
        }
    }

    /// The answer to a request that is for an authorization server, ours or the one whose metadata we have.
    async fn answer_oauth(
        self: &Arc<Self>,
        peer: &RequestPeer,
        request: &mut Request<Incoming>,
    ) -> Option<Response<Body>> {
        if let Some(oauth) = self.authorization_server()
            && let Some(endpoint) = self.oauth_endpoint(request.uri().path())
        {
            let answer = oauth_server::answer(endpoint, self, oauth, peer, request);
            return Some(Box::pin(answer).await);
        }
        let metadata = self.external_metadata_at(request.uri().path())?;
        Some(Box::pin(oauth::answer_metadata(&metadata)).await)
    }

    fn gateway(&self) -> &GatewayId {
        self.proxy.backends().gateway()
    }

    async fn answer(
        self: &Arc<Self>,
        route: Route,
        form: ErrorFormat,
        peer: &RequestPeer,
        request: &mut Request<Incoming>,
    ) -> Response<Body> {
        if let Some(scope) = route.scope()
            && !self.proxy.has_route(scope)
        {
            return self.unknown_route(unknown_message(scope), form, peer, request);
        }
        let (verbs, _) = route.allowed_methods();
        if !verbs.contains(request.method()) {
            let (fault, message) = (RequestFault::Method, "this path does not take the method");
            self.request_log.warn(fault, message, peer.address, request);
            return wrong_method(&route);
        }
        if let Some(answer) = self.answer_oauth(peer, request).await {
            return answer;
        }
        if let Some(answer) = self.answer_anybody(&route, peer, request) {
            return answer;
        }
        if let Route::Connections | Route::OAuthCallback = route {
            return Box::pin(self.answer_browser(&route, peer, request)).await;
        }
        let identity = match self.authenticate(&route, peer, request).await {
            Ok(identity) => identity,
            Err(error) => match self.refuse_or_limit(&error, &route, peer, request) {
                Some(refusal) => return refusal,
                None => Arc::new(Agent::unauthenticated()).into(),
            },
        };
        let agent = &identity.agent;
        self.offer_subject_token(&identity, request.headers());
        if form == ErrorFormat::Rpc
            && let Err(full) = self.proxy.limiter().bytes.admit(agent.id)
        {
            return overloaded_response(full);
        }
        match route {
            Route::Mcp(scope) => {
                let what = unknown_message(&scope);
                let Some(scope) = self.proxy.resolve_route(agent, scope) else {
                    return self.unknown_route(what, form, peer, request);
                };
                let context = RequestContext::of(identity, scope, peer);
                streamable::handle(self, &context, request).await
            }
            Route::Sse(scope) => {
                let what = unknown_message(&scope);
                let Some(scope) = self.proxy.resolve_route(agent, scope) else {
                    return self.unknown_route(what, form, peer, request);
                };
                legacy_sse::open(self, &RequestContext::of(identity, scope, peer), request)
            }
            Route::Messages => Box::pin(legacy_sse::post(self, (&identity, peer), request)).await,
            Route::Api | Route::Dashboard => {
                text_response(StatusCode::NOT_FOUND, "this gateway has no API")
            }
            Route::Connections | Route::OAuth | Route::OAuthCallback | Route::OAuthClient => {
                oauth_probes::refuse(self.proxy.governance().directory().is_anonymous())
            }
            Route::Status => {
                let viewer = identity.viewer();
                Box::pin(status_endpoints::status(self, &viewer, request)).await
            }
            Route::Metrics => {
                let viewer = identity.viewer();
                Box::pin(status_endpoints::metrics(self, &viewer, request)).await
            }
            Route::Health => status_endpoints::health(self),
            Route::Ready => status_endpoints::ready(self),
        }
    }
}

impl HttpEdge {
    /// Who sent `request` to `route`.
    async fn authenticate<B>(
        &self,
        route: &Route,
        peer: &RequestPeer,
        request: &Request<B>,
    ) -> Result<Identity, AuthError> {
        let directory = self.proxy.governance().directory();
        let resource_server = self.resource_server.load();
        let path = self.resource_path(route, request);
        let shown = Credentials {
            headers: request.headers(),
            certificate: peer.certificate.as_deref(),
            resource: resource_server
                .public_url
                .resource(&path, RequestTarget::of(request)),
        };
        directory.authenticate(shown).await
    }

    /// The path of the route that `request` is for, as a token for it has it.
    fn resource_path<'r, B>(&self, route: &Route, request: &'r Request<B>) -> Cow<'r, str> {
        let of_session = match route {
            Route::Messages => legacy_sse::route_of_session(self, request),
            Route::Api
            | Route::Connections
            | Route::Dashboard
            | Route::Health
            | Route::Mcp(_)
            | Route::Metrics
            | Route::OAuth
            | Route::OAuthCallback
            | Route::OAuthClient
            | Route::Ready
            | Route::Sse(_)
            | Route::Status => None,
        };
        match (route, of_session) {
            (_, Some(path)) => path.into(),
            (Route::Mcp(_) | Route::Sse(_), None) => {
                let path = request.uri().path();
                path.strip_suffix('/').unwrap_or(path).into()
            }
            (_, None) => MERGED_ROUTE.into(),
        }
    }

    /// What `WWW-Authenticate` says on the route at `path`.
    fn challenge(&self, why: &AuthError, path: &str, request: RequestTarget<'_>) -> HeaderValue {
        let scope = Route::parse(path).and_then(|route| route.scope().cloned());
        let scope = scope.map(|scope| self.proxy.complete_scope(scope));
        let profile = scope.as_ref().and_then(Scope::profile);
        let resource_server = self.resource_server.load();
        resource_server.challenge(why, (path, profile), request)
    }

    /// The answer to a request to `route` without an agent, or whose token is not good for what it asks.
    fn unauthorized<B>(
        &self,
        why: &AuthError,
        route: &Route,
        request: &Request<B>,
    ) -> Response<Body> {
        let path = self.resource_path(route, request);
        let challenge = self.challenge(why, &path, RequestTarget::of(request));
        challenged(why, None, challenge)
    }

    /// Records that nobody is known by a request, and refuses it where somebody has to be.
    fn refuse_or_limit(
        &self,
        error: &AuthError,
        route: &Route,
        peer: &RequestPeer,
        request: &Request<Incoming>,
    ) -> Option<Response<Body>> {
        let is_refused = route.requires_agent();
        // Pages refuse nobody, but whoever shows them a wrong key may be looking for a right one.
        if is_refused || !error.is_missing() {
            let refused = request_log::refused_request(request);
            let governance = self.proxy.governance();
            governance.record_auth_failure(error, peer.address, refused);
        }
        if is_refused && error.is_missing() {
            let (fault, message) = (RequestFault::Key, "it has no credential");
            self.request_log.warn(fault, message, peer.address, request);
        }
        is_refused.then(|| self.unauthorized(error, route, request))
    }

    fn unknown_route(
        &self,
        what: &'static str,
        form: ErrorFormat,
        peer: &RequestPeer,
        request: &Request<Incoming>,
    ) -> Response<Body> {
        let fault = RequestFault::Path;
        self.request_log.warn(fault, what, peer.address, request);
        form.refuse(StatusCode::NOT_FOUND, what)
    }

    /// Answers on the pages that know browsers by their cookies, and take no keys in headers.
    async fn answer_browser(
        self: &Arc<Self>,
        route: &Route,
        peer: &RequestPeer,
        request: &mut Request<Incoming>,
    ) -> Response<Body> {
        if *route == Route::OAuthCallback {
            connections::callback(self, peer, request).await
        } else {
            connections::handle(self, peer, request).await
        }
    }

    /// What is answered whoever asks, with a key or without.
    fn answer_anybody(
        &self,
        route: &Route,
        peer: &RequestPeer,
        request: &Request<Incoming>,
    ) -> Option<Response<Body>> {
        let is_anonymous = self.proxy.governance().directory().is_anonymous();
        match route {
            Route::OAuth if self.resource_server.load().takes_tokens() => {
                let path = request.uri().path();
                let find_route = |scope: Scope| {
                    let has_route = self.proxy.has_route(&scope);
                    has_route.then(|| self.proxy.complete_scope(scope))
                };
                let resource_server = self.resource_server.load();
                let metadata =
                    resource_server.metadata(path, RequestTarget::of(request), find_route);
                Some(match metadata {
                    Some(metadata) => json_response(StatusCode::OK, metadata.to_string()),
                    None => oauth_probes::not_found(),
                })
            }
            Route::OAuth => {
                let message = "its client looks for OAuth, which this gateway does not have";
                self.request_log
                    .warn(RequestFault::OAuth, message, peer.address, request);
                Some(oauth_probes::refuse(is_anonymous))
            }
            Route::Mcp(_) | Route::Sse(_) => {
                let is_browser = request.method() == Verb::GET
                    && !request.headers().contains_key(header::SESSION_ID)
                    && media_types::wants_page(request.headers());
                is_browser.then(|| {
                    let page = status::render_connect_page(!is_anonymous);
                    status_endpoints::page_response(StatusCode::OK, page)
                })
            }
            Route::OAuthClient => {
                let document = self.proxy.client_metadata().to_string();
                Some(json_response(StatusCode::OK, document))
            }
            Route::Api
            | Route::Connections
            | Route::Dashboard
            | Route::Health
            | Route::Messages
            | Route::Metrics
            | Route::OAuthCallback
            | Route::Ready
            | Route::Status => None,
        }
    }
}

/// What is said where there is no route for `scope`, or none for who asks.
fn unknown_message(scope: &Scope) -> &'static str {
    match scope {
        Scope::All | Scope::Server(_) => "unknown server",
        Scope::Profile(_) => "unknown profile",
        Scope::View { .. } => "unknown view: it has ended, or another agent made it",
    }
}

/// Where probes are answered.
fn admin_listen(config: &Config) -> &Listen {
    config.admin_listen.as_ref().unwrap_or(&config.listen)
}

/// In which form a request is refused before it is known what it asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ErrorFormat {
    /// A JSON-RPC error without an id: SDKs take from it what went wrong with a POST, and show no other
    /// text (Spec 2025-11-25, transports, sending messages to the server).
    Rpc,
    Text,
}

impl ErrorFormat {
    fn of(route: Option<&Route>, verb: &Verb) -> Self {
        let takes_posts = route.is_some_and(|route| {
            !matches!(route, Route::Api | Route::Dashboard)
                && route.allowed_methods().0.contains(&Verb::POST)
        });
        if takes_posts && verb == Verb::POST {
            Self::Rpc
        } else {
            Self::Text
        }
    }

    fn refuse(self, status: StatusCode, message: &str) -> Response<Body> {
        match self {
            Self::Rpc => bad_post(status, message),
            Self::Text => text_response(status, message),
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Debug)]
pub(crate) struct RequestPeer {
    /// Behind a reverse proxy, that of the proxy.
    address: PeerAddress,
    /// Which listener it came to.
    role: ListenerRole,
    /// That of its connection.
    permit: Arc<ConnectionPermit>,
    /// The certificate that it showed.
    certificate: Option<Arc<PeerCertificate>>,
}

/// Who asks, and on which route.
#[derive(Clone, Debug)]
struct RequestContext {
    agent: Arc<Agent>,
    /// What its token is good for; `None` for all that the agent may do.
    scopes: Option<Arc<Scopes>>,
    /// How long its credential is good: streams end then.
    lifetime: CredentialLifetime,
    scope: Scope,
    peer: RequestPeer,
}

impl RequestContext {
    fn of(identity: Identity, scope: Scope, peer: &RequestPeer) -> Self {
        Self {
            lifetime: identity.lifetime(),
            agent: identity.agent,
            scopes: identity.scopes,
            scope,
            peer: peer.clone(),
        }
    }

    /// The scopes that a request with `method` needs and its token does not have all of, with those that it has.
    fn missing_scopes(&self, method: &Method) -> Option<Scopes> {
        missing_scopes(self.scopes.as_deref()?, method, &self.scope)
    }
}

/// The scopes that a request with `method` needs on a route of `scope`, where those `granted` do not suffice. To begin
/// needs none.
fn missing_scopes(granted: &Scopes, method: &Method, scope: &Scope) -> Option<Scopes> {
    if matches!(method, Method::Discover | Method::Initialize | Method::Ping) {
        return None;
    }
    granted.missing_for(*method == Method::ToolsCall, scope.profile())
}

/// Bytes of all names and values.
fn header_bytes(headers: &HeaderMap) -> usize {
    let sizes = headers.iter();
    sizes
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum()
}

fn is_method(verb: &Verb, request: &Request<Incoming>) -> bool {
    request.method() == verb
}
