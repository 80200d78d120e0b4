//! `/status`, `/metrics` and `/readyz`.

use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{
        ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use hyper::body::Incoming;

use super::{
    HttpEdge,
    body::{self, Body},
    json, not_now, text,
};
use crate::{
    auth::Agent,
    status::{self, Detail, METRICS_CONTENT_TYPE, StatusAccess},
};

/// The status as JSON, or as a page when a browser asks.
pub(super) fn status(
    edge: &HttpEdge,
    agent: &Agent,
    request: &Request<Incoming>,
) -> Response<Body> {
    let insight = insight(edge, agent);
    let code = if edge.status.is_serving() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    let wants_json = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("format=json"));
    if accept.is_some_and(|accept| accept.contains("text/html")) && !wants_json {
        let mut response = Response::new(body::full(edge.status.page(insight)));
        *response.status_mut() = code;
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, html);
        return response;
    }
    json(code, edge.status.json(insight).unwrap_or_default())
}

/// The figures for Prometheus.
pub(super) fn metrics(edge: &HttpEdge, agent: &Agent) -> Response<Body> {
    let figures = edge
        .status
        .metrics(insight(edge, agent), edge.readers.now());
    let mut response = Response::new(body::full(figures));
    let form = HeaderValue::from_static(METRICS_CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, form);
    response
}

/// How much `agent` may see.
fn insight(edge: &HttpEdge, agent: &Agent) -> StatusAccess {
    if edge.proxy.governance().directory().is_anonymous() {
        return StatusAccess::Servers(Detail::Whole);
    }
    match (agent.enabled, agent.admin) {
        (true, true) => StatusAccess::Servers(Detail::Whole),
        (true, false) => StatusAccess::Servers(Detail::Part),
        // A stranger, or an agent that may do nothing.
        (false, _) => StatusAccess::States,
    }
}

/// Lets a browser show what we answer, and nothing else: it is no script, no page in the frame of
/// another, kept nowhere, and tells nobody where a link on it was followed.
pub(super) fn shield(headers: &mut HeaderMap) {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, status::CONTENT_SECURITY_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Whether to send clients here.
pub(super) fn ready(edge: &HttpEdge) -> Response<Body> {
    match edge.status.ready() {
        Ok(()) if edge.status.is_low() => text(
            StatusCode::OK,
            "ready, but the audit log is running out of space",
        ),
        Ok(()) => text(StatusCode::OK, "ready"),
        Err(why) => not_now(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!("not ready: {why}"),
        ),
    }
}
