//! Media types and codings in headers: what a body is, and what a client takes.

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE},
};

use super::{bad_post, body::Body};

pub(super) const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream";

/// What nearly all clients take, as most of them write it.
const TYPICAL_ACCEPT: &[u8] = b"application/json, text/event-stream";

/// Refuses a body that cannot be read as its headers say, whichever media type it has.
pub(super) fn check_body(headers: &HeaderMap) -> Result<(), Response<Body>> {
    if headers.get_all(CONTENT_TYPE).iter().nth(1).is_some() {
        let message = "there is more than one Content-Type header";
        return Err(bad_post(StatusCode::BAD_REQUEST, message));
    }
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    if codings.all(|coding| is_media_type(coding.as_bytes(), IDENTITY)) {
        return Ok(());
    }
    let message = "unsupported Content-Encoding: only identity is accepted";
    let mut refusal = bad_post(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
    // RFC 9110, section 15.5.16.
    let plain = HeaderValue::from_static(IDENTITY);
    refusal.headers_mut().insert(ACCEPT_ENCODING, plain);
    Err(refusal)
}

/// The coding of bodies that have none.
const IDENTITY: &str = "identity";

/// Whether the body is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    value.is_some_and(|value| value == JSON.as_bytes() || is_media_type(strip_params(value), JSON))
}

/// Whether the client takes both JSON and events; no `Accept` header at all takes everything.
pub(super) fn accepts_json_and_events(headers: &HeaderMap) -> bool {
    let value = headers.get(ACCEPT).map(HeaderValue::as_bytes);
    value == Some(TYPICAL_ACCEPT) || accepts(headers, &[JSON, EVENTS])
}

/// Whether the client takes all of `wanted`; no `Accept` header at all takes everything.
pub(super) fn accepts(headers: &HeaderMap, wanted: &[&str]) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let taken =
        |wanted: &&str| header_lists(headers, &ACCEPT, |found| matches_range(found, wanted));
    wanted.iter().all(taken)
}

/// Whether the client names events before JSON: who lists both as equal gets the first.
pub(super) fn prefers_events(headers: &HeaderMap) -> bool {
    let value = headers.get(ACCEPT).map_or(&b""[..], HeaderValue::as_bytes);
    value.starts_with(EVENTS.as_bytes()) && memchr::memmem::find(value, b"json").is_some()
}

/// Whether the header `name` lists a media type, its parameters left out, that `fits`.
fn header_lists(headers: &HeaderMap, name: &HeaderName, fits: impl Fn(&[u8]) -> bool) -> bool {
    let values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let mut types = values.flat_map(|value| value.split(|byte| *byte == b','));
    types.any(|found| fits(strip_params(found)))
}

fn strip_params(found: &[u8]) -> &[u8] {
    let end = memchr::memchr(b';', found).unwrap_or(found.len());
    found[..end].trim_ascii()
}

fn is_media_type(found: &[u8], wanted: &str) -> bool {
    found.eq_ignore_ascii_case(wanted.as_bytes())
}

/// Whether `found` is `wanted`, its family (`text/*`) or everything.
fn matches_range(found: &[u8], wanted: &str) -> bool {
    let family = wanted.split_once('/').map_or(wanted, |(family, _)| family);
    is_media_type(found, wanted)
        || found == b"*/*"
        || found
            .strip_suffix(b"/*")
            .is_some_and(|found| is_media_type(found, family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_types_are_read_leniently() {
        let check = |accept: &str, json: bool, events: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
            let found = (accepts(&headers, &[JSON]), accepts(&headers, &[EVENTS]));
            assert_eq!(found, (json, events), "{accept}");
            assert_eq!(
                accepts_json_and_events(&headers),
                json && events,
                "{accept}"
            );
        };
        check("application/json, text/event-stream", true, true);
        check("Application/JSON;q=0.9 ,x", true, false);
        check("application/json,text/event-stream", true, true);
        check("text/*;q=1", false, true);
        check("*/*", true, true);
        check("text/event-streams", false, false);
        check("", false, false);
        assert!(accepts(&HeaderMap::new(), &[JSON, EVENTS]));
    }

    #[test]
    fn a_body_says_what_it_is() {
        let check = |kind: &str, expect: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
            assert_eq!(is_json(&headers), expect, "{kind}");
        };
        check("application/json", true);
        check("application/json; charset=utf-8", true);
        check("application/*", false);
        check("text/plain", false);
        check("text/plain, application/json", false);
    }
}
