//! What an HTTP request is called elsewhere, so that our log and audit can be joined with others', and how many
//! gateways it has passed.

use http::{HeaderMap, HeaderName};

use crate::{
    mcp::{gateway_headers, trace::TRACEPARENT},
    session::Correlation,
};

/// The header in which clients and balancers name a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header of W3C Trace Context.
const TRACE_HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);
/// Longest such name that is kept, bytes; a longer one is left out.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// How the headers name the request.
pub(super) fn of(headers: &HeaderMap) -> Option<Box<Correlation>> {
    let text = |name| Some(Box::<str>::from(headers.get(name)?.to_str().ok()?));
    let traceparent = text(TRACE_HEADER);
    let request_id = text(REQUEST_ID).filter(|id| id.len() <= REQUEST_ID_BYTES_MAX);
    let hops = gateway_headers::hops(headers);
    (hops > 0 || traceparent.is_some() || request_id.is_some()).then(|| {
        Box::new(Correlation {
            hops,
            traceparent,
            request_id,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_a_request() {
        let check = |name: &'static str, value: &str, expect: Option<Correlation>| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(of(&headers).as_deref(), expect.as_ref(), "{name}: {value}");
        };
        let request_id = |id: &str| Correlation {
            request_id: Some(id.into()),
            ..Correlation::default()
        };
        check("x-request-id", "abc", Some(request_id("abc")));
        let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
        check("x-request-id", &longest, Some(request_id(&longest)));
        check("x-request-id", &format!("{longest}x"), None);
        check("x-other", "abc", None);
        let traced = Correlation {
            traceparent: Some("00-1".into()),
            ..Correlation::default()
        };
        check("traceparent", "00-1", Some(traced));
    }
}
