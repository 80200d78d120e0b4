//! Values of the `Mcp-*` headers of 2026-07-28.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};

/// Repeats the method.
pub const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// Repeats the name, URI or task id of the params.
pub const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// Prefix of headers that repeat annotated arguments.
pub const PARAM_PREFIX: &str = "mcp-param-";
/// The revision of the connection (2025-06-18 on) or of the request (2026-07-28).
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The legacy session.
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// Where to resume a stream.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

const BASE64_PREFIX: &str = "=?base64?";
const BASE64_SUFFIX: &str = "?=";

/// Encodes `value` for a header: plain where that is safe, else in the base64 form.
pub fn encode(value: &str) -> Cow<'_, str> {
    let visible = value
        .bytes()
        .all(|b| b == b'\t' || (0x20..0x7f).contains(&b));
    let edges = !value.starts_with([' ', '\t']) && !value.ends_with([' ', '\t']);
    let sentinel = value.starts_with(BASE64_PREFIX) && value.ends_with(BASE64_SUFFIX);
    if visible && edges && !sentinel {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!(
        "{BASE64_PREFIX}{}{BASE64_SUFFIX}",
        STANDARD.encode(value)
    ))
}

/// Whether the header `value` is `text` in the plain form, as it usually is.
pub fn matches_plain(value: &HeaderValue, text: &str) -> bool {
    value.as_bytes() == text.as_bytes() && text.is_ascii() && !text.starts_with(BASE64_PREFIX)
}

/// Decodes a header value; `None` when its base64 form is broken.
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    let Some(inner) = value
        .strip_prefix(BASE64_PREFIX)
        .and_then(|rest| rest.strip_suffix(BASE64_SUFFIX))
    else {
        return Some(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(inner).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plain_form_is_read_without_decoding() {
        let check = |value: &[u8], text: &str, expect: bool| {
            let value = HeaderValue::from_bytes(value).unwrap();
            assert_eq!(matches_plain(&value, text), expect, "{value:?} {text}");
        };
        check(b"echo", "echo", true);
        check(b"echo", "Echo", false);
        check("\u{e9}".as_bytes(), "\u{e9}", false);
        check(b"=?base64?ZWNobw==?=", "=?base64?ZWNobw==?=", false);
        check(b"=?base64?ZWNobw==", "=?base64?ZWNobw==", false);
    }

    #[test]
    fn values_survive_the_header() {
        let check = |value: &str, wire: &str| {
            assert_eq!(encode(value), wire);
            assert_eq!(decode(wire).as_deref(), Some(value));
        };
        check("echo", "echo");
        check("two words", "two words");
        check("", "");
        check(" edge", "=?base64?IGVkZ2U=?=");
        check("héllo", "=?base64?aMOpbGxv?=");
        check("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?=");
        assert_eq!(decode("=?base64?!?="), None);
    }
}
