//! The trace a request belongs to (W3C Trace Context; in `_meta` by SEP-414).

use super::json;

/// The key of `_meta`, and the HTTP header.
pub const TRACEPARENT: &str = "traceparent";

/// A place in a trace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trace {
    /// The trace: 32 hex digits.
    pub id: String,
    /// What called, within the trace: 16 hex digits.
    pub parent: String,
}

impl Trace {
    /// The trace that `meta`, the value of `_meta`, names.
    pub fn from_meta(meta: &[u8]) -> Option<Self> {
        let traceparent = json::find_member(meta, 0, TRACEPARENT)?;
        Self::parse(&json::decode_string(&meta[traceparent])?)
    }

    /// Reads a `traceparent` of version 00 or one that begins alike.
    pub fn parse(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.trim().split('-');
        let (version, id, parent) = (parts.next()?, parts.next()?, parts.next()?);
        let flags = parts.next()?;
        let is_hex = |text: &str, digits: usize| {
            let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            text.len() == digits && text.bytes().all(hex)
        };
        let is_zero = |text: &str| text.bytes().all(|b| b == b'0');
        let fits = is_hex(version, 2)
            && version != "ff"
            && is_hex(id, 32)
            && is_hex(parent, 16)
            && is_hex(flags, 2)
            && (version != "00" || parts.next().is_none());
        (fits && !is_zero(id) && !is_zero(parent)).then(|| Self {
            id: id.to_owned(),
            parent: parent.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_taken_from_what_is_well_formed() {
        let check = |text: &str, is_trace: bool| {
            assert_eq!(Trace::parse(text).is_some(), is_trace, "{text}");
        };
        let (id, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        check(&format!("00-{id}-{parent}-01"), true);
        check(&format!("01-{id}-{parent}-01-what-comes-later"), true);
        check(&format!("00-{id}-{parent}-01-more"), false);
        check(&format!("ff-{id}-{parent}-01"), false);
        check(&format!("00-{id}-{parent}"), false);
        check(&format!("00-{}-{parent}-01", id.to_uppercase()), false);
        check(&format!("00-{}-{parent}-01", "0".repeat(32)), false);
        check(&format!("00-{id}-{}-01", "0".repeat(16)), false);
        check("", false);
    }
}
