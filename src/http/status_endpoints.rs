//! `/status`, `/metrics` and `/readyz`.

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{
        ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use hyper::body::Incoming;

use super::{
    HttpEdge,
    body::{self, Body},
    json_response, media_types, retryable_response, text_response,
};
use crate::{
    auth::Agent,
    control_socket::GatewayIdentity,
    status::{self, StatusAccess},
};

/// The status as JSON, or as a page when a browser asks.
pub(super) async fn status(
    edge: &HttpEdge,
    agent: &Agent,
    request: &Request<Incoming>,
) -> Response<Body> {
    let access = status_access(edge, agent);
    if access == StatusAccess::Full {
        edge.proxy.backends().measure_programs().await;
    }
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
        return page_response(code, edge.status.render_page(&access));
    }
    json_response(code, edge.status.to_json(&access).unwrap_or_default())
}

/// A page for a browser.
pub(super) fn page_response(code: StatusCode, page: String) -> Response<Body> {
    let mut response = Response::new(body::full_body(page));
    *response.status_mut() = code;
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, html);
    set_security_headers(response.headers_mut());
    response
}

/// The figures for Prometheus, in the form that it asks for.
pub(super) async fn metrics(
    edge: &HttpEdge,
    agent: &Agent,
    request: &Request<Incoming>,
) -> Response<Body> {
    let form = media_types::metrics_form(request.headers());
    let (access, streams) = (status_access(edge, agent), edge.stream_readers.count());
    if access == StatusAccess::Full {
        edge.proxy.backends().measure_programs().await;
    }
    let figures = edge.status.render_metrics(&access, streams, form).await;
    let mut response = Response::new(body::full_body(figures));
    let form = HeaderValue::from_static(form.content_type());
    response.headers_mut().insert(CONTENT_TYPE, form);
    response
}

/// How much `agent` may see.
fn status_access(edge: &HttpEdge, agent: &Agent) -> StatusAccess {
    if edge.proxy.governance().directory().is_anonymous() {
        return StatusAccess::Full;
    }
    match (agent.enabled, agent.role.sees_everything()) {
        (true, true) => StatusAccess::Full,
        (true, false) => StatusAccess::Summary(edge.proxy.owners_seen_by(agent)),
        // A stranger, or an agent that may do nothing.
        (false, _) => StatusAccess::StatesOnly,
    }
}

/// Lets a browser show what we answer, and nothing else: it is no script, no page in the frame of
/// another, kept nowhere, and tells nobody where a link on it was followed. A page may say otherwise.
pub(super) fn set_security_headers(headers: &mut HeaderMap) {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, status::CONTENT_SECURITY_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        let entry = headers.entry(name);
        entry.or_insert(HeaderValue::from_static(value));
    }
}

/// That the process answers, and by what commands recognize it.
pub(super) fn health(edge: &HttpEdge) -> Response<Body> {
    let mut response = text_response(StatusCode::OK, "ok");
    let id = edge.status.gateway_identity().map(ToString::to_string);
    if let Some(id) = id.and_then(|id| HeaderValue::try_from(id).ok()) {
        let name = HeaderName::from_static(GatewayIdentity::HEADER);
        response.headers_mut().insert(name, id);
    }
    response
}

/// Whether to send clients here.
pub(super) fn ready(edge: &HttpEdge) -> Response<Body> {
    match edge.status.check_ready() {
        Ok(()) if edge.status.is_audit_space_low() => text_response(
            StatusCode::OK,
            "ready, but the audit log is running out of space",
        ),
        Ok(()) => text_response(StatusCode::OK, "ready"),
        Err(why) => retryable_response(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!("not ready: {why}"),
        ),
    }
}
