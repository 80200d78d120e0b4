//! The downstream edge over HTTP: listener, routes, checks that need no body.
//!
//! Owns sockets and framing. What a request means is decided in `session`, what is done about it
//! in `proxy`.

mod batch;
mod batch_response;
mod body;
mod call_response;
mod connections;
mod correlation;
mod cors;
mod legacy_sse;
mod listener;
mod media_types;
mod oauth;
mod oauth_probes;
mod oauth_server;
mod origin;
mod request_log;
mod status_endpoints;
mod streamable;
mod timeouts;
mod tls;
mod unix_socket;

use std::{borrow::Cow, sync::Arc};

use ::http::{
    HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use arc_swap::ArcSwap;
use hyper::body::Incoming;

use crate::{
    auth::{Agent, AuthError, Credentials, Identity, MERGED_ROUTE, PeerCertificate, token::Scopes},
    authorization_server::AuthorizationServer,
    config::{Config, Listen},
    limiter::{ByteBudgetExceeded, ConnectionPermit},
    mcp::{
        GatewayId, Method, RpcError, envelope,
        error::{self, FailureReason},
        gateway_headers::{self, GATEWAY_HEADER, HOPS_MAX},
        header,
    },
    names::{PeerAddress, ProfileName, Scope, ServerName},
    proxy::{self, Proxy},
    session::{Client, ForwardedHeaders, registry::SessionRefused},
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

    /// The endpoint of the built-in authorization server at `path`.
    fn oauth_endpoint(&self, path: &str) -> Option<Endpoint> {
        let resource_server = self.resource_server.load();
        Endpoint::parse(path, resource_server.public_url.path())
    }

    /// Keeps the token of a request for servers that want another one in exchange for it.
    fn offer_subject_token(&self, identity: &Identity, headers: &HeaderMap) {
        // Keys have no end and no scopes of their own.
        let is_token = identity.expires.is_some() || identity.scopes.is_some();
        if let Some(grants) = self.proxy.backends().grants().filter(|_| is_token) {
            grants.offer_subject(identity.agent.id, headers);
        }
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
            let what = match scope {
                Scope::All | Scope::Server(_) => "unknown server",
                Scope::Profile(_) => "unknown profile",
            };
            let fault = RequestFault::Path;
            self.request_log.warn(fault, what, peer.address, request);
            return form.refuse(StatusCode::NOT_FOUND, what);
        }
        let (verbs, _) = route.allowed_methods();
        if !verbs.contains(request.method()) {
            let (fault, message) = (RequestFault::Method, "this path does not take the method");
            self.request_log.warn(fault, message, peer.address, request);
            return wrong_method(&route);
        }
        if let Some(oauth) = self.oauth.as_ref().filter(|oauth| oauth.is_on())
            && let Some(endpoint) = self.oauth_endpoint(request.uri().path())
        {
            return Box::pin(oauth_server::answer(endpoint, self, oauth, peer, request)).await;
        }
        if let Some(answer) = self.answer_anybody(&route, peer, request) {
            return answer;
        }
        if let Route::Connections | Route::OAuthCallback = route {
            return Box::pin(self.answer_browser(&route, peer, request)).await;
        }
        let governance = self.proxy.governance();
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
                let context = RequestContext::of(identity, scope, peer);
                streamable::handle(self, &context, request).await
            }
            Route::Sse(scope) => {
                legacy_sse::open(self, &RequestContext::of(identity, scope, peer), request)
            }
            Route::Messages => Box::pin(legacy_sse::post(self, (&identity, peer), request)).await,
            Route::Connections | Route::OAuth | Route::OAuthCallback | Route::OAuthClient => {
                oauth_probes::refuse(governance.directory().is_anonymous())
            }
            Route::Status => status_endpoints::status(self, &identity.viewer(), request),
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
            Route::Connections
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
        self.resource_server.load().challenge(why, path, request)
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

    /// Answers on the pages that know browsers by their cookies, and take no keys in headers.
    async fn answer_browser(
        &self,
        route: &Route,
        peer: &RequestPeer,
        request: &mut Request<Incoming>,
    ) -> Response<Body> {
        if *route == Route::OAuthCallback {
            connections::callback(self, request).await
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
                let has_route = |scope: &Scope| self.proxy.has_route(scope);
                let resource_server = self.resource_server.load();
                let metadata =
                    resource_server.metadata(path, RequestTarget::of(request), has_route);
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
            Route::Connections
            | Route::Health
            | Route::Messages
            | Route::Metrics
            | Route::OAuthCallback
            | Route::Ready
            | Route::Status => None,
        }
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
        let takes_posts =
            route.is_some_and(|route| route.allowed_methods().0.contains(&Verb::POST));
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
    scope: Scope,
    peer: RequestPeer,
}

impl RequestContext {
    fn of(identity: Identity, scope: Scope, peer: &RequestPeer) -> Self {
        Self {
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
    let profile = match scope {
        Scope::Profile(profile) => Some(profile),
        Scope::All | Scope::Server(_) => None,
    };
    granted.missing_for(*method == Method::ToolsCall, profile)
}

/// What a path leads to.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Route {
    /// Where a person signs in to servers.
    Connections,
    Health,
    Mcp(Scope),
    Messages,
    Metrics,
    /// Where clients look for an authorization server.
    OAuth,
    /// Where issuers send browsers back.
    OAuthCallback,
    /// Where issuers read who this client is.
    OAuthClient,
    Ready,
    Sse(Scope),
    Status,
}

impl Route {
    fn parse(path: &str) -> Option<Self> {
        match path.strip_suffix('/').unwrap_or(path) {
            "/mcp" => Some(Self::Mcp(Scope::All)),
            "/sse" => Some(Self::Sse(Scope::All)),
            "/messages" => Some(Self::Messages),
            "/connections" => Some(Self::Connections),
            proxy::CALLBACK_PATH => Some(Self::OAuthCallback),
            proxy::CLIENT_PATH => Some(Self::OAuthClient),
            "/status" | "" => Some(Self::Status),
            "/metrics" => Some(Self::Metrics),
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Ready),
            path if oauth_probes::is_probe(path) => Some(Self::OAuth),
            path => {
                if let Some(part) = path.strip_prefix("/mcp/") {
                    return parse_scope(part).map(Self::Mcp);
                }
                path.strip_prefix("/sse/")
                    .and_then(parse_scope)
                    .map(Self::Sse)
            }
        }
    }

    /// The verbs it takes, and how the header `Allow` lists them.
    fn allowed_methods(&self) -> (&'static [Verb], &'static str) {
        match self {
            Self::Health | Self::Metrics | Self::Ready | Self::Status => {
                (&[Verb::GET, Verb::HEAD], "GET, HEAD")
            }
            Self::Mcp(_) => (&[Verb::GET, Verb::POST, Verb::DELETE], "GET, POST, DELETE"),
            Self::Messages => (&[Verb::POST], "POST"),
            Self::Connections | Self::OAuth => {
                (&[Verb::GET, Verb::HEAD, Verb::POST], "GET, HEAD, POST")
            }
            Self::OAuthCallback | Self::OAuthClient => (&[Verb::GET, Verb::HEAD], "GET, HEAD"),
            Self::Sse(_) => (&[Verb::GET], "GET"),
        }
    }

    /// Whether clients speak MCP there, which is for agents only.
    fn requires_agent(&self) -> bool {
        match self {
            Self::Mcp(_) | Self::Messages | Self::Sse(_) => true,
            Self::Connections
            | Self::Health
            | Self::Metrics
            | Self::OAuth
            | Self::OAuthCallback
            | Self::OAuthClient
            | Self::Ready
            | Self::Status => false,
        }
    }

    /// Whether it is where clients are served, and not on a listener of its own.
    fn is_for_clients(&self) -> bool {
        let is_sign_in = matches!(
            self,
            Self::Connections | Self::OAuth | Self::OAuthCallback | Self::OAuthClient
        );
        is_sign_in || self.requires_agent()
    }

    fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Mcp(scope) | Self::Sse(scope) => Some(scope),
            Self::Connections
            | Self::Health
            | Self::Messages
            | Self::Metrics
            | Self::OAuth
            | Self::OAuthCallback
            | Self::OAuthClient
            | Self::Ready
            | Self::Status => None,
        }
    }
}

/// The scope that the end of a path names.
fn parse_scope(path: &str) -> Option<Scope> {
    if let Some(name) = path.strip_prefix("servers/") {
        return ServerName::parse(name).ok().map(Scope::Server);
    }
    let name = path.strip_prefix("profiles/")?;
    ProfileName::parse(name).ok().map(Scope::Profile)
}

/// Bytes of all names and values.
fn header_bytes(headers: &HeaderMap) -> usize {
    let sizes = headers.iter();
    sizes
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum()
}

/// A short answer for people.
fn text_response(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = Response::new(body::full_body(format!("{message}\n")));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// An answer to what may succeed soon.
fn retryable_response(status: StatusCode, message: &str) -> Response<Body> {
    with_retry_after(text_response(status, message))
}

fn with_retry_after(mut response: Response<Body>) -> Response<Body> {
    let seconds = HeaderValue::from(error::RETRY_SOON.as_secs());
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

/// What is said of new work for which there is no memory.
pub(crate) fn overloaded_error(full: ByteBudgetExceeded) -> RpcError {
    RpcError::new(error::INTERNAL, full.to_string())
        .with_data(FailureReason::Overloaded.to_data())
        .retry_soon()
}

/// The answer to a request for which there is no memory.
fn overloaded_response(full: ByteBudgetExceeded) -> Response<Body> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    with_retry_after(rpc_error_response(status, None, &overloaded_error(full)))
}

/// The answer to a client for whom no session opens, to its request with this id.
fn session_not_opened(why: SessionRefused, id: Option<&crate::mcp::Id>) -> Response<Body> {
    match why {
        SessionRefused::Closed => shutting_down(id),
        SessionRefused::Full { .. } => {
            let error = RpcError::new(error::INTERNAL, why.to_string())
                .with_data(FailureReason::SessionsBusy.to_data())
                .retry_soon();
            with_retry_after(rpc_error_response(
                StatusCode::TOO_MANY_REQUESTS,
                id,
                &error,
            ))
        }
    }
}

/// The answer to a request without an agent, or whose token is not good for what it asks: the request with this
/// id, where it has one.
fn challenged(
    failure: &AuthError,
    id: Option<&crate::mcp::Id>,
    challenge: HeaderValue,
) -> Response<Body> {
    // Whatever was asked: clients read why from JSON alone.
    let error = RpcError::new(error::INVALID_REQUEST, failure.to_string());
    let mut response = rpc_error_response(failure.status(), id, &error);
    if failure.status() == StatusCode::SERVICE_UNAVAILABLE {
        return with_retry_after(response);
    }
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

/// The answer to what is not taken because the gateway stops: whatever is in its place by then can
/// be asked again.
fn shutting_down(id: Option<&crate::mcp::Id>) -> Response<Body> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    with_retry_after(rpc_error_response(status, id, &proxy::draining_error()))
}

/// A JSON-RPC error as the body of an HTTP status.
fn rpc_error_response(
    status: StatusCode,
    id: Option<&crate::mcp::Id>,
    error: &RpcError,
) -> Response<Body> {
    json_response(status, envelope::encode_response(id, &Err(error.to_raw())))
}

/// The refusal of a POST that is no answer to what it asks.
fn bad_post(status: StatusCode, message: &str) -> Response<Body> {
    let error = RpcError::new(error::INVALID_REQUEST, message);
    rpc_error_response(status, None, &error)
}

/// A JSON body.
fn json_response(status: StatusCode, bytes: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(body::full_body(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.reserve(HEADERS_TYPICAL);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Headers that most requests have at most: hyper reads those of the next one into the memory of
/// those of the answer.
const HEADERS_TYPICAL: usize = 12;

/// The answer to an accepted notification or response.
fn accepted() -> Response<Body> {
    let mut response = Response::new(body::full_body(""));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn wrong_method(route: &Route) -> Response<Body> {
    let (_, allowed) = route.allowed_methods();
    let mut why = format!("allowed methods for this path: {allowed}");
    if !route.requires_agent() {
        why = format!("{why}; {MCP_PATH_HINT}");
    }
    method_not_allowed(allowed, &why)
}

/// What is said to who comes to a path where no MCP is spoken: most likely its client was given a URL
/// without any.
const MCP_PATH_HINT: &str = "MCP clients connect to /mcp";

/// The refusal of a request that is not possible with its verb, and why.
fn method_not_allowed(allowed: &'static str, why: &str) -> Response<Body> {
    let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, why);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn is_method(verb: &Verb, request: &Request<Incoming>) -> bool {
    request.method() == verb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_somewhere_or_nowhere() {
        let check = |path: &str, expect: Option<Route>| {
            assert_eq!(Route::parse(path), expect, "{path}");
        };
        let one = || Scope::Server(ServerName::parse("gh").unwrap());
        check("/mcp", Some(Route::Mcp(Scope::All)));
        check("/mcp/", Some(Route::Mcp(Scope::All)));
        check("/mcp/servers/gh", Some(Route::Mcp(one())));
        check("/sse/servers/gh", Some(Route::Sse(one())));
        let reading = || Scope::Profile(ProfileName::parse("reading").unwrap());
        check("/mcp/profiles/reading", Some(Route::Mcp(reading())));
        check("/sse/profiles/reading/", Some(Route::Sse(reading())));
        check("/mcp/profiles/", None);
        check("/mcp/profiles/a/b", None);
        check("/mcp/others/a", None);
        check("/messages/", Some(Route::Messages));
        check("/metrics", Some(Route::Metrics));
        check("/", Some(Route::Status));
        for probe in [
            "/.well-known/oauth-protected-resource/mcp",
            "/mcp/.well-known/openid-configuration",
            "/register",
            "/token",
            "/authorize/",
        ] {
            check(probe, Some(Route::OAuth));
        }
        check("/tokens", None);
        check("/mcp/token", None);
        check("/mcp/servers/", None);
        check("/mcp/servers/a/b", None);
        check("/other", None);
    }
}
