//! JSON as it is whoever writes it, to tell whether two texts are the same.
//!
//! As RFC 8785 does it, but for what that cannot keep apart or has no form for: numbers are written by
//! their value, none is rounded, and an object with a doubled member, or a string with a lone
//! surrogate, stays as it was written.

use std::borrow::Cow;

use crate::{governance::number::Decimal, mcp::json};

/// The same text for what is the same, and for nothing else.
pub(super) fn canonical(json: &[u8]) -> Vec<u8> {
    let mut canonical = Vec::with_capacity(json.len());
    write(json, &mut canonical);
    canonical
}

fn write(json: &[u8], to: &mut Vec<u8>) {
    let is_written = match json.first() {
        Some(b'{') => object(json, to),
        Some(b'[') => {
            to.push(b'[');
            for item in json::elements(json, 0) {
                write(&json[item], to);
                to.push(b',');
            }
            to.push(b']');
            true
        }
        Some(b'"') => json::text(json).is_some_and(|text| string(&text, to)),
        Some(b'-' | b'0'..=b'9') => number(json, to),
        Some(_) | None => false,
    };
    if !is_written {
        to.extend_from_slice(json);
    }
}

/// Writes an object by its keys in order; not if one of them has no one meaning.
fn object(json: &[u8], to: &mut Vec<u8>) -> bool {
    let members = json::members(json, 0);
    let members = members.map(|member| Some((json::text(&json[member.key])?, member.value)));
    let Some(mut members) = members.collect::<Option<Vec<(Cow<'_, str>, _)>>>() else {
        return false;
    };
    members.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    if members.array_windows().any(|[(a, _), (b, _)]| a == b) {
        return false;
    }
    to.push(b'{');
    for (key, value) in members {
        string(&key, to);
        to.push(b':');
        write(&json[value], to);
        to.push(b',');
    }
    to.push(b'}');
    true
}

fn string(text: &str, to: &mut Vec<u8>) -> bool {
    serde_json::to_writer(to, text).is_ok()
}

fn number(json: &[u8], to: &mut Vec<u8>) -> bool {
    let number = std::str::from_utf8(json).ok().and_then(Decimal::parse);
    if let Some(number) = &number {
        to.extend_from_slice(number.to_string().as_bytes());
    }
    number.is_some()
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn what_is_the_same_is_written_alike_and_nothing_else() {
        let check = |one: &str, other: &str, is_same: bool| {
            let [a, b] = [one, other].map(|json| canonical(json.as_bytes()));
            assert_eq!(a == b, is_same, "{one} {other}");
        };
        for (one, other) in [
            (
                r#"{"a":1,"b":[true,null]}"#,
                r#"{ "b" : [ true, null ], "a":1.0 }"#,
            ),
            (r#"{"\u0061":"\u00e9\/"}"#, r#"{"a":"é/"}"#),
            ("[100,-0,1e999]", "[1e2,0.0,10E998]"),
            (r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2}"#),
            (r#""\ud800""#, r#""\ud800""#),
            ("{}", "{ }"),
        ] {
            check(one, other, true);
        }
        for (one, other) in [
            (r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#),
            ("0.1", "0.10000000000000000001"),
            ("1e400", "1e401"),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
            (r#"{"a":1,"\u0061":2}"#, r#"{"a":2}"#),
            (r#""\ud800""#, r#""\ud801""#),
            (r#"["a","b"]"#, r#"["b","a"]"#),
            (r#"[["a"],"b"]"#, r#"[["a","b"]]"#),
            (r#"{"a":"1"}"#, r#"{"a":1}"#),
            ("null", r#""null""#),
            ("{}", "[]"),
        ] {
            check(one, other, false);
        }
    }
}
