//! Short answers: refusals, errors, and JSON.

use http::{
    HeaderValue, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};

use super::{
    body::{self, Body},
    route::Route,
};
use crate::{
    auth::AuthError,
    limiter::ByteBudgetExceeded,
    mcp::{
        Id, RpcError, envelope,
        error::{self, FailureReason},
    },
    proxy,
    session::registry::SessionRefused,
};

/// A short answer for people.
pub(super) fn text_response(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = Response::new(body::full_body(format!("{message}\n")));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// An answer to what may succeed soon.
pub(super) fn retryable_response(status: StatusCode, message: &str) -> Response<Body> {
    with_retry_after(text_response(status, message))
}

pub(super) fn with_retry_after(mut response: Response<Body>) -> Response<Body> {
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
pub(super) fn overloaded_response(full: ByteBudgetExceeded) -> Response<Body> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    with_retry_after(rpc_error_response(status, None, &overloaded_error(full)))
}

/// The answer to a client for whom no session opens, to its request with this id.
pub(super) fn session_not_opened(why: SessionRefused, id: Option<&Id>) -> Response<Body> {
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
pub(super) fn challenged(
    failure: &AuthError,
    id: Option<&Id>,
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
pub(super) fn shutting_down(id: Option<&Id>) -> Response<Body> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    with_retry_after(rpc_error_response(status, id, &proxy::draining_error()))
}

/// A JSON-RPC error as the body of an HTTP status.
pub(super) fn rpc_error_response(
    status: StatusCode,
    id: Option<&Id>,
    error: &RpcError,
) -> Response<Body> {
    json_response(status, envelope::encode_response(id, &Err(error.to_raw())))
}

/// The refusal of a POST that is no answer to what it asks.
pub(super) fn bad_post(status: StatusCode, message: &str) -> Response<Body> {
    let error = RpcError::new(error::INVALID_REQUEST, message);
    rpc_error_response(status, None, &error)
}

/// A JSON body.
pub(super) fn json_response(status: StatusCode, bytes: impl Into<bytes::Bytes>) -> Response<Body> {
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
pub(super) fn accepted() -> Response<Body> {
    let mut response = Response::new(body::full_body(""));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

pub(super) fn wrong_method(route: &Route) -> Response<Body> {
    let (_, allowed) = route.allowed_methods();
    let mut why = format!("allowed methods for this path: {allowed}");
    if !route.requires_agent() {
        why = format!("{why}; {MCP_PATH_HINT}");
    }
    method_not_allowed(allowed, &why)
}

/// What is said to who comes to a path where no MCP is spoken: most likely its client was given a URL
/// without any.
pub(super) const MCP_PATH_HINT: &str = "MCP clients connect to /mcp";

/// The refusal of a request that is not possible with its verb, and why.
pub(super) fn method_not_allowed(allowed: &'static str, why: &str) -> Response<Body> {
    let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, why);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
