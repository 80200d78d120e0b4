//! What a browser needs to hear before a web page of another origin may speak MCP with us.
//!
//! Called after [`super::origin`] has refused strangers, so an `Origin` seen here is welcome. It is
//! echoed, never answered with `*`, and credentials of the browser (cookies) are never asked for.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method as Verb, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
        ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
    },
};

use super::body::{self, Body};

/// Headers that a page may send, beside all whose names begin with [`MCP_HEADER_PREFIX`].
const ALLOWED_HEADERS: [&str; 9] = [
    "content-type",
    "accept",
    "authorization",
    "x-api-key",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "mcp-method",
    "mcp-name",
];
/// How the names of headers of MCP begin; `Mcp-Param-*` are as many as tools have parameters.
const MCP_HEADER_PREFIX: &str = "mcp-";
/// Headers that a page may read.
const EXPOSED_HEADERS: &str = "mcp-session-id, mcp-protocol-version, www-authenticate";
/// How long a browser may remember the answer to a preflight, seconds.
const MAX_AGE_S: &str = "600";

/// A web page behind a request.
#[derive(Debug)]
pub(super) struct WebPage {
    origin: HeaderValue,
}

impl WebPage {
    /// The page behind `request`; `None` for clients that are no browsers.
    pub(super) fn from_request<B>(request: &Request<B>) -> Option<Self> {
        let origin = request.headers().get(ORIGIN)?.clone();
        Some(Self { origin })
    }

    /// Lets the page read a response.
    pub(super) fn allow_read(self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(EXPOSED_HEADERS),
        );
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}

/// The answer to the question of a browser whether its page may send a request with one of `verbs`;
/// `None` when `request` is no such question.
pub(super) fn preflight<B>(request: &Request<B>, verbs: &'static str) -> Option<Response<Body>> {
    let asks = request.method() == Verb::OPTIONS
        && request
            .headers()
            .contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks {
        return None;
    }
    let page = WebPage::from_request(request)?;
    let mut response = Response::new(body::full_body(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    page.allow_read(headers);
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static(verbs),
    );
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        allowed_headers(request.headers()),
    );
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_S));
    Some(response)
}

/// The headers that a page may send, with those it asks for by name.
fn allowed_headers(request: &HeaderMap) -> HeaderValue {
    let asked = request.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let asked = asked.filter_map(|value| value.to_str().ok());
    let asked = asked.flat_map(|value| value.split(','));
    let asked = asked.filter_map(|name| HeaderName::try_from(name.trim()).ok());
    let mut list = ALLOWED_HEADERS.join(", ");
    for name in asked {
        let name = name.as_str();
        if name.starts_with(MCP_HEADER_PREFIX) && !ALLOWED_HEADERS.contains(&name) {
            list.push_str(", ");
            list.push_str(name);
        }
    }
    HeaderValue::try_from(list).unwrap_or_else(|_| HeaderValue::from_static(MCP_HEADER_PREFIX))
}
