//! Media types and codings in headers: what a body is, and what a client takes.

use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE},
};

use super::{bad_post, body::Body};
use crate::status::MetricsForm;

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

/// In which form the client takes the answer to a POST.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AnswerForm {
    /// JSON, or events where something precedes the answer.
    Any,
    /// The same, and events rather than JSON: who lists both as equal gets the first.
    EventsFirst,
    /// JSON alone: what precedes the answer has no place in it.
    JsonOnly,
}

/// The form of the answer that `Accept` allows; none where that is not JSON. No `Accept` header at all
/// takes everything.
pub(super) fn answer_form(headers: &HeaderMap) -> Option<AnswerForm> {
    let value = headers.get(ACCEPT).map(HeaderValue::as_bytes);
    let Some(value) = value.filter(|value| *value != TYPICAL_ACCEPT) else {
        return Some(AnswerForm::Any);
    };
    if !accepts(headers, JSON) {
        return None;
    }
    if !accepts(headers, EVENTS) {
        return Some(AnswerForm::JsonOnly);
    }
    let names_events_first =
        value.starts_with(EVENTS.as_bytes()) && memchr::memmem::find(value, b"json").is_some();
    Some(if names_events_first {
        AnswerForm::EventsFirst
    } else {
        AnswerForm::Any
    })
}

/// Whether the client takes `wanted`; no `Accept` header at all takes everything.
pub(super) fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    accept_lists(headers, |range| matches_range(range, wanted))
}

/// Whether a browser asks, for a page: it names that, and clients do not.
pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    let names = |wanted| accept_lists(headers, |range| is_media_type(range, wanted));
    names("text/html") && !names(EVENTS) && !names(JSON)
}

/// The form of metrics for a scraper: OpenMetrics where it names that.
pub(super) fn metrics_form(headers: &HeaderMap) -> MetricsForm {
    let is_named = |range: &[u8]| is_media_type(range, "application/openmetrics-text");
    if accept_lists(headers, is_named) {
        MetricsForm::OpenMetrics
    } else {
        MetricsForm::PlainText
    }
}

/// Whether `Accept` lists a media range that `fits`, parameters left out. One of weight zero is not taken
/// (RFC 9110, section 12.4.2).
fn accept_lists(headers: &HeaderMap, fits: impl Fn(&[u8]) -> bool) -> bool {
    let values = headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes);
    let mut ranges = values.flat_map(|value| value.split(|byte| *byte == b','));
    ranges.any(|range| fits(strip_params(range)) && !is_weightless(range))
}

/// Whether a media range has the weight zero.
fn is_weightless(range: &[u8]) -> bool {
    let mut params = range.split(|byte| *byte == b';').skip(1);
    params.any(|param| {
        let weight = param.trim_ascii();
        let weight = weight
            .strip_prefix(b"q=")
            .or_else(|| weight.strip_prefix(b"Q="));
        weight.is_some_and(|weight| {
            weight.starts_with(b"0") && weight.iter().all(|byte| matches!(byte, b'0' | b'.'))
        })
    })
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

    fn accept(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn lists_of_types_are_read_leniently() {
        let check = |value: &str, expect: Option<AnswerForm>| {
            assert_eq!(answer_form(&accept(value)), expect, "{value}");
        };
        let (any, json) = (Some(AnswerForm::Any), Some(AnswerForm::JsonOnly));
        check("application/json, text/event-stream", any);
        check("application/json,text/event-stream", any);
        check("*/*", any);
        check("application/json, text/plain, */*", any);
        check(
            "text/event-stream, application/json",
            Some(AnswerForm::EventsFirst),
        );
        check("application/json", json);
        check("Application/JSON;q=0.9 ,x", json);
        check("application/*", json);
        check("text/html, application/json", json);
        check("application/json;q=0.9, text/event-stream;q=0", json);
        check("application/json, text/event-stream; q=0.000", json);
        check("application/json, text/event-stream;q=0.001", any);
        check("application/json;q=0, text/event-stream", None);
        check("text/*;q=1", None);
        check("text/event-streams", None);
        check("text/event-stream", None);
        check("", None);
        assert_eq!(answer_form(&HeaderMap::new()), any);
    }

    #[test]
    fn a_page_is_for_who_names_one() {
        let check = |value: &str, expect: bool| {
            assert_eq!(wants_page(&accept(value)), expect, "{value}");
        };
        let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        check(firefox, true);
        check("text/html", true);
        check("*/*", false);
        check("text/event-stream", false);
        check("text/html, text/event-stream", false);
        check("application/json, text/html;q=0.1", false);
        assert!(!wants_page(&HeaderMap::new()));
    }

    #[test]
    fn scrapers_get_openmetrics_where_they_name_it() {
        let check = |value: &str, expect: MetricsForm| {
            assert_eq!(metrics_form(&accept(value)), expect, "{value}");
        };
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        check(prometheus, MetricsForm::OpenMetrics);
        check("text/plain;version=0.0.4", MetricsForm::PlainText);
        check("application/openmetrics-text;q=0", MetricsForm::PlainText);
        check("*/*", MetricsForm::PlainText);
        assert_eq!(metrics_form(&HeaderMap::new()), MetricsForm::PlainText);
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
