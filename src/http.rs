//! The downstream edge over HTTP: listener, routes, checks that need no body.
//!
//! Owns sockets and framing. What a request means is decided in `session`, what is done about it
//! in `proxy`.

mod batch;
mod batch_response;
mod body;
mod correlation;
mod cors;
mod exchange;
mod listener;
mod media;
mod messages;
mod origin;
mod pages;
mod streamable;
mod timeouts;
mod tls;
mod unix;

use std::sync::Arc;

use ::http::{
    HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use arc_swap::ArcSwap;
use hyper::body::Incoming;

use crate::{
    auth::{Agent, Unidentified},
    config::Config,
    limiter::{ConnectionPermit, Full},
    mcp::{GatewayId, RpcError, envelope, error, gateway::GATEWAY},
    names::{PeerAddress, ProfileName, Scope, ServerName},
    proxy::{self, Proxy},
    session::{Client, Session, registry::Unopened},
    status::Status,
    task::{InFlight, Tasks},
};
pub(crate) use batch::split as split_batch;
pub(crate) use body::Body;
use body::Leftover;
pub use listener::{Bound, InvalidListener, bind};
use origin::{Guard, OriginRefusals};
pub use tls::{Certificate, Certificates, InvalidTls};

/// What every HTTP handler needs.
#[derive(Debug)]
pub struct HttpEdge {
    proxy: Arc<Proxy>,
    status: Arc<Status>,
    guard: ArcSwap<Guard>,
    refusals: OriginRefusals,
    /// Those who read streams of events.
    readers: InFlight,
    tasks: Tasks,
}

impl HttpEdge {
    /// Joins the parts; `config.listen` is the address of the bound listener.
    pub fn new(
        config: &Config,
        proxy: Arc<Proxy>,
        status: Arc<Status>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        Arc::new(Self {
            proxy,
            status,
            guard: ArcSwap::from_pointee(Guard::new(config)),
            refusals: OriginRefusals::default(),
            readers: InFlight::default(),
            tasks: tasks.clone(),
        })
    }

    /// Takes the hosts and origins of another config; `config.listen` is still the address of the
    /// bound listener.
    pub fn replace(&self, config: &Config) {
        self.guard.store(Arc::new(Guard::new(config)));
    }

    /// Answers one HTTP request, which came from `peer`.
    pub(crate) async fn handle(
        self: Arc<Self>,
        peer: RequestPeer,
        mut request: Box<Request<Incoming>>,
    ) -> Response<Body> {
        let route = Route::parse(request.uri().path());
        let is_page = !route.as_ref().is_some_and(Route::is_mcp);
        let mut response = self.respond(route, &peer, &mut request).await;
        if is_page {
            pages::shield(response.headers_mut());
        }
        self.leave(request.into_body(), response.status(), is_page);
        response
    }

    /// Leaves the body of a request that was answered so. Who has to show a key and is refused before it was
    /// looked at, or for it, may send little of it, and so may who asks for a page.
    fn leave(&self, body: Incoming, answered: StatusCode, is_page: bool) {
        let is_early = is_page
            || matches!(
                answered,
                StatusCode::UNAUTHORIZED
                    | StatusCode::FORBIDDEN
                    | StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            );
        let leftover = if answered == StatusCode::REQUEST_TIMEOUT {
            return;
        } else if is_early && !self.proxy.governance().directory().is_anonymous() {
            Leftover::of_stranger(self.proxy.settings().limits.unauthenticated_body)
        } else {
            Leftover::of_client()
        };
        body::leave(body, leftover, &self.tasks);
    }

    async fn respond(
        self: &Arc<Self>,
        route: Option<Route>,
        peer: &RequestPeer,
        request: &mut Request<Incoming>,
    ) -> Response<Body> {
        let form = ErrorFormat::of(route.as_ref(), request.method());
        // Before all that a server may refuse for: the reason is none of those.
        if route.as_ref().is_some_and(Route::is_mcp) && self.is_of_ourselves(request) {
            return self.refuse_ourselves(form);
        }
        // Balancers name the address of a pod, which no config knows. Probes tell nothing that a page
        // could use, and do nothing.
        let is_probe = matches!(route, Some(Route::Health | Route::Ready));
        if !is_probe && let Err(unwelcome) = self.guard.load().check(request) {
            self.proxy.governance().forbid(unwelcome.reason());
            self.refusals.tell(peer.address, &unwelcome);
            return form.refuse(StatusCode::FORBIDDEN, unwelcome.message());
        }
        let limit = self.proxy.settings().limits.headers;
        if bytes_of(request.headers()) > limit {
            let message = format!("the headers are larger than limits.headers ({limit} bytes)");
            return form.refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &message);
        }
        let Some(route) = route else {
            return text(StatusCode::NOT_FOUND, &format!("not found; {WAY}"));
        };
        if !route.is_mcp() {
            return self.answer(route, form, peer, request).await;
        }
        if let Some(answer) = cors::preflight(request, route.verbs().1) {
            return answer;
        }
        let page = cors::WebPage::behind(request);
        let asks_gateway = request.headers().contains_key(GATEWAY);
        let mut response = self.answer(route, form, peer, request).await;
        if asks_gateway && response.status().is_success() {
            self.gateway().sign(response.headers_mut());
            self.proxy.backends().behind().tell(response.headers_mut());
        }
        if let Some(page) = page {
            page.may_read(response.headers_mut());
        }
        response
    }

    /// Whether who asked may still be answered.
    fn still_knows(&self, client: &Client) -> bool {
        self.proxy
            .governance()
            .directory()
            .still_knows(&client.agent)
    }

    /// Whether the URL of one of our servers leads here.
    fn is_of_ourselves(&self, request: &Request<Incoming>) -> bool {
        self.gateway().has_signed(request.headers())
    }

    /// Refuses a request of our own, so that the server it is meant for is known to be ourselves: it would
    /// be listed as a part of itself, again and again.
    fn refuse_ourselves(&self, form: ErrorFormat) -> Response<Body> {
        let message = "loop detected: one of the configured servers is this gateway";
        let mut response = form.refuse(StatusCode::LOOP_DETECTED, message);
        self.gateway().sign(response.headers_mut());
        response
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
            && !self.proxy.has(scope)
        {
            let what = match scope {
                Scope::All | Scope::Server(_) => "there is no such server",
                Scope::Profile(_) => "there is no such profile",
            };
            return form.refuse(StatusCode::NOT_FOUND, what);
        }
        let (verbs, _) = route.verbs();
        if !verbs.contains(request.method()) {
            return wrong_verb(&route);
        }
        let governance = self.proxy.governance();
        let agent = match governance.directory().identify(request.headers()) {
            Ok(agent) => agent,
            Err(stranger) => {
                let is_refused = route.is_mcp();
                // Pages refuse nobody, but whoever shows them a wrong key may be looking for a right
                // one.
                if is_refused || stranger != Unidentified::Missing {
                    governance.turn_away(peer.address, &stranger);
                }
                if is_refused {
                    return challenge(&stranger, form);
                }
                Arc::new(Agent::stranger())
            }
        };
        if form == ErrorFormat::Rpc
            && let Err(full) = self.proxy.limiter().bytes.admit(agent.id)
        {
            return no_room(full);
        }
        match route {
            Route::Mcp(scope) => {
                let visitor = RequestContext::of(agent, scope, (peer, request));
                streamable::handle(self, &visitor, request).await
            }
            Route::Sse(scope) => {
                messages::open(self, &RequestContext::of(agent, scope, (peer, request)))
            }
            Route::Messages => Box::pin(messages::post(self, (&agent, peer), request)).await,
            Route::Status => pages::status(self, &agent, request),
            Route::Metrics => pages::metrics(self, &agent),
            Route::Health => text(StatusCode::OK, "ok"),
            Route::Ready => pages::ready(self),
        }
    }
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
        let takes_posts = route.is_some_and(|route| route.verbs().0.contains(&Verb::POST));
        if takes_posts && verb == Verb::POST {
            Self::Rpc
        } else {
            Self::Text
        }
    }

    fn refuse(self, status: StatusCode, message: &str) -> Response<Body> {
        match self {
            Self::Rpc => refused(status, message),
            Self::Text => text(status, message),
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Debug)]
pub(crate) struct RequestPeer {
    /// Behind a reverse proxy, that of the proxy.
    address: PeerAddress,
    /// That of its connection.
    permit: Arc<ConnectionPermit>,
}

/// Who asks, and on which route.
#[derive(Clone, Debug)]
struct RequestContext {
    agent: Arc<Agent>,
    scope: Scope,
    peer: RequestPeer,
    /// Which gateway it is, if it is one and says so.
    gateway: Option<GatewayId>,
}

impl RequestContext {
    fn of(
        agent: Arc<Agent>,
        scope: Scope,
        (peer, request): (&RequestPeer, &Request<Incoming>),
    ) -> Self {
        let gateway = GatewayId::of(request.headers());
        Self {
            agent,
            scope,
            peer: peer.clone(),
            gateway,
        }
    }

    /// Lets `session` know which gateway it is of.
    fn mark(&self, session: &Session) {
        if let Some(gateway) = &self.gateway {
            session.note_gateway(gateway);
        }
    }
}

/// What a path leads to.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Route {
    Health,
    Mcp(Scope),
    Messages,
    Metrics,
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
            "/status" | "" => Some(Self::Status),
            "/metrics" => Some(Self::Metrics),
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Ready),
            path => {
                if let Some(part) = path.strip_prefix("/mcp/") {
                    return part_of_catalog(part).map(Self::Mcp);
                }
                path.strip_prefix("/sse/")
                    .and_then(part_of_catalog)
                    .map(Self::Sse)
            }
        }
    }

    /// The verbs it takes, and how the header `Allow` lists them.
    fn verbs(&self) -> (&'static [Verb], &'static str) {
        match self {
            Self::Health | Self::Metrics | Self::Ready | Self::Status => {
                (&[Verb::GET, Verb::HEAD], "GET, HEAD")
            }
            Self::Mcp(_) => (&[Verb::GET, Verb::POST, Verb::DELETE], "GET, POST, DELETE"),
            Self::Messages => (&[Verb::POST], "POST"),
            Self::Sse(_) => (&[Verb::GET], "GET"),
        }
    }

    /// Whether clients speak MCP there, which is for agents only.
    fn is_mcp(&self) -> bool {
        match self {
            Self::Mcp(_) | Self::Messages | Self::Sse(_) => true,
            Self::Health | Self::Metrics | Self::Ready | Self::Status => false,
        }
    }

    fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Mcp(scope) | Self::Sse(scope) => Some(scope),
            Self::Health | Self::Messages | Self::Metrics | Self::Ready | Self::Status => None,
        }
    }
}

/// The scope that the end of a path names.
fn part_of_catalog(path: &str) -> Option<Scope> {
    if let Some(name) = path.strip_prefix("servers/") {
        return ServerName::parse(name).ok().map(Scope::Server);
    }
    let name = path.strip_prefix("profiles/")?;
    ProfileName::parse(name).ok().map(Scope::Profile)
}

/// Bytes of all names and values.
fn bytes_of(headers: &HeaderMap) -> usize {
    let sizes = headers.iter();
    sizes
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum()
}

/// A short answer for people.
fn text(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = Response::new(body::full(format!("{message}\n")));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// An answer to what may succeed soon.
fn not_now(status: StatusCode, message: &str) -> Response<Body> {
    come_back(text(status, message))
}

fn come_back(mut response: Response<Body>) -> Response<Body> {
    let seconds = HeaderValue::from(error::RETRY_SOON.as_secs());
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

/// What is said of new work for which there is no memory.
pub(crate) fn overloaded(full: Full) -> RpcError {
    RpcError::new(error::INTERNAL, full.to_string())
        .with(serde_json::json!({ "reason": error::reason::OVERLOADED }))
        .retry_soon()
}

/// The answer to a request for which there is no memory.
fn no_room(full: Full) -> Response<Body> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    come_back(rpc_error(status, None, &overloaded(full)))
}

/// The answer to a client for whom no session opens, to its request with this id.
fn unopened(why: Unopened, id: Option<&crate::mcp::Id>) -> Response<Body> {
    match why {
        Unopened::Closed => stopping(id),
        Unopened::Full { .. } => {
            let error = RpcError::new(error::INTERNAL, why.to_string())
                .with(serde_json::json!({ "reason": error::reason::SESSIONS_BUSY }))
                .retry_soon();
            come_back(rpc_error(StatusCode::TOO_MANY_REQUESTS, id, &error))
        }
    }
}

/// The answer to a request without an agent.
fn challenge(stranger: &Unidentified, form: ErrorFormat) -> Response<Body> {
    let mut response = form.refuse(StatusCode::UNAUTHORIZED, &stranger.to_string());
    response
        .headers_mut()
        .insert(WWW_AUTHENTICATE, stranger.challenge());
    response
}

/// The answer to what is not taken because the gateway stops: whatever is in its place by then can
/// be asked again.
fn stopping(id: Option<&crate::mcp::Id>) -> Response<Body> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    come_back(rpc_error(status, id, &proxy::draining()))
}

/// A JSON-RPC error as the body of an HTTP status.
fn rpc_error(status: StatusCode, id: Option<&crate::mcp::Id>, error: &RpcError) -> Response<Body> {
    json(status, envelope::response(id, &Err(error.to_raw())))
}

/// The refusal of a POST that is no answer to what it asks.
fn refused(status: StatusCode, message: &str) -> Response<Body> {
    let error = RpcError::new(error::INVALID_REQUEST, message);
    rpc_error(status, None, &error)
}

/// A JSON body.
fn json(status: StatusCode, bytes: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(body::full(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Headers that most requests have at most: hyper reads those of the next one into the memory of
/// those of the answer.
const HEADERS: usize = 12;

/// The answer to an accepted notification or response.
fn accepted() -> Response<Body> {
    let mut response = Response::new(body::full(""));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn wrong_verb(route: &Route) -> Response<Body> {
    let (_, allowed) = route.verbs();
    let mut why = format!("this path takes {allowed}");
    if !route.is_mcp() {
        why = format!("{why}; {WAY}");
    }
    not_allowed(allowed, &why)
}

/// What is said to who comes to a path where no MCP is spoken: most likely its client was given a URL
/// without any.
const WAY: &str = "MCP clients connect to /mcp";

/// The refusal of a request that is not possible with its verb, and why.
fn not_allowed(allowed: &'static str, why: &str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, why);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn is(verb: &Verb, request: &Request<Incoming>) -> bool {
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
        check("/mcp/servers/", None);
        check("/mcp/servers/a/b", None);
        check("/other", None);
    }
}
