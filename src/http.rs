//! The downstream edge over HTTP: listener, routes, checks that need no body.
//!
//! Owns sockets and framing. What a request means is decided in `session`, what is done about it
//! in `proxy`.

mod body;
mod exchange;
mod listener;
mod media;
mod messages;
mod origin;
mod pages;
mod streamable;

use std::{sync::Arc, time::Duration};

use ::http::{
    HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use hyper::body::Incoming;

use crate::{
    auth::Agent,
    config::{Config, Limits},
    mcp::{Raw, RpcError, envelope},
    names::{Scope, ServerName},
    proxy::Proxy,
    status::Status,
    task::Tasks,
};
pub(crate) use body::Body;
pub use listener::{Bound, InvalidListener, InvalidTls, bind};
use origin::Guard;
pub(crate) use streamable::{BATCH_MAX, told};

/// What every HTTP handler needs.
#[derive(Debug)]
pub struct Edge {
    proxy: Arc<Proxy>,
    status: Arc<Status>,
    guard: Guard,
    limits: Limits,
    keep_alive: Duration,
    /// The agent of callers without a credential.
    anonymous: Arc<Agent>,
    tasks: Tasks,
}

impl Edge {
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
            guard: Guard::new(config),
            limits: config.limits.clone(),
            keep_alive: config.keep_alive,
            anonymous: Arc::new(Agent::anonymous()),
            tasks: tasks.clone(),
        })
    }

    /// Answers one HTTP request.
    pub(crate) async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        if let Err(refusal) = self.guard.check(&request) {
            return text(StatusCode::FORBIDDEN, &refusal);
        }
        let limit = self.limits.headers;
        if bytes_of(request.headers()) > limit {
            let message = format!("the headers are larger than limits.headers ({limit} bytes)");
            return text(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &message);
        }
        let path = request.uri().path();
        let Some(route) = Route::parse(path) else {
            return text(StatusCode::NOT_FOUND, "not found");
        };
        if let Some(scope) = route.scope()
            && !self.proxy.has(scope)
        {
            return text(StatusCode::NOT_FOUND, "there is no such server");
        }
        match route {
            Route::Mcp(scope) => streamable::handle(&self, scope, request).await,
            Route::Sse(scope) => messages::open(&self, scope, &request),
            Route::Messages => Box::pin(messages::post(&self, request)).await,
            Route::Status => pages::status(&self, &request),
            Route::Health => text(StatusCode::OK, "ok"),
            Route::Ready => pages::ready(&self),
        }
    }
}

/// What a path leads to.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Route {
    Health,
    Mcp(Scope),
    Messages,
    Ready,
    Sse(Scope),
    Status,
}

impl Route {
    fn parse(path: &str) -> Option<Self> {
        let server = |name: &str| ServerName::parse(name).ok().map(Scope::Server);
        match path.strip_suffix('/').unwrap_or(path) {
            "/mcp" => Some(Self::Mcp(Scope::All)),
            "/sse" => Some(Self::Sse(Scope::All)),
            "/messages" => Some(Self::Messages),
            "/status" | "" => Some(Self::Status),
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Ready),
            path => {
                if let Some(name) = path.strip_prefix("/mcp/servers/") {
                    return server(name).map(Self::Mcp);
                }
                path.strip_prefix("/sse/servers/")
                    .and_then(server)
                    .map(Self::Sse)
            }
        }
    }

    fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Mcp(scope) | Self::Sse(scope) => Some(scope),
            Self::Health | Self::Messages | Self::Ready | Self::Status => None,
        }
    }
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

/// A JSON-RPC error as the body of an HTTP status.
fn rpc_error(status: StatusCode, id: Option<&crate::mcp::Id>, error: &RpcError) -> Response<Body> {
    json(status, envelope::response(id, &Err(error.to_raw())))
}

/// A JSON body.
fn json(status: StatusCode, bytes: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(body::full(bytes));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to an accepted notification or response.
fn accepted() -> Response<Body> {
    let mut response = Response::new(body::full(""));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn wrong_verb(allowed: &'static str) -> Response<Body> {
    let mut response = text(
        StatusCode::METHOD_NOT_ALLOWED,
        &format!("only {allowed} here"),
    );
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn is(verb: &Verb, request: &Request<Incoming>) -> bool {
    request.method() == verb
}

/// An empty object, where a client declared nothing.
const NO_CAPABILITIES: Raw = Raw::from_static("{}");

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
        check("/messages/", Some(Route::Messages));
        check("/", Some(Route::Status));
        check("/mcp/servers/", None);
        check("/mcp/servers/a/b", None);
        check("/other", None);
    }
}
