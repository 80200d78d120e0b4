//! The members of a JSON-RPC message, found in one pass where they are as usual.
//!
//! Called by [`Message::parse`](super::Message::parse), which knows what they mean together. What
//! [`WireMessage::parse_fast`] finds is what [`WireMessage::parse`] finds.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::mcp::{
    json::{Raw, validator},
    params::Params,
};

/// The members of a message.
#[derive(Default)]
pub(super) struct WireMessage<'a> {
    pub(super) jsonrpc: Option<Cow<'a, str>>,
    pub(super) id: Option<Raw>,
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) params: Option<Params>,
    pub(super) result: Option<Raw>,
    pub(super) error: Option<Raw>,
}

impl<'a> WireMessage<'a> {
    /// The members of the object that is `bytes`, whose text is `text`; `None` where anything about
    /// them is unusual. All other messages take this one pass.
    pub(super) fn parse_fast(text: &'a str, bytes: &Bytes) -> Option<Self> {
        let json = text.as_bytes();
        let mut wire = Self::default();
        let start = validator::skip_space(json, 0);
        let end = validator::object_end(text, start, |key, value| {
            if key == "params" && json[value..].first() == Some(&b'{') {
                let (params, end) = Params::parse_fast(text, bytes, value)?;
                return wire.params.replace(params).is_none().then_some(end);
            }
            let end = validator::value_end(json, value)?;
            let raw = || Raw::part(bytes, value..end);
            let string = || validator::unescaped_string(text, value).map(Cow::Borrowed);
            let is_new = match key {
                "jsonrpc" => wire.jsonrpc.replace(string()?).is_none(),
                "id" => wire.id.replace(raw()).is_none(),
                "method" => wire.method.replace(string()?).is_none(),
                "result" => wire.result.replace(raw()).is_none(),
                "error" if json[value] == b'{' => wire.error.replace(raw()).is_none(),
                "params" | "error" => false,
                _ => true,
            };
            is_new.then_some(end)
        })?;
        (validator::skip_space(json, end) == json.len()).then_some(wire)
    }

    /// The same for any message.
    pub(super) fn parse(text: &'a str, bytes: &'a Bytes) -> Result<Self, serde_json::Error> {
        let members: WireMembers<'_> = serde_json::from_str(text)?;
        let raw = |value: &RawValue| Raw::borrow(value, bytes);
        Ok(Self {
            jsonrpc: members.jsonrpc,
            id: members.id.map(raw),
            method: members.method,
            params: members.params.map(raw).map(Params::from),
            result: members.result.map(raw),
            error: members.error.map(raw),
        })
    }
}

#[derive(Deserialize)]
struct WireMembers<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Keeps an explicit `null`, which `Option` alone reads as absent.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mcp::{
        Message,
        envelope::{Malformed, MessageOutline, split_batch},
    };

    /// One pass and the careful way say the same.
    fn agree(bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        let found = Message::parse(&bytes);
        match std::str::from_utf8(&bytes) {
            Ok(text) => assert_eq!(found, Message::parse_unusual(text, &bytes), "{text}"),
            Err(_) => assert!(matches!(found, Err(Malformed::Json { .. })), "{found:?}"),
        }
    }

    #[test]
    fn fuzz_envelope() {
        bolero::check!().for_each(|bytes: &[u8]| {
            agree(bytes.to_vec());
            let bytes = Bytes::copy_from_slice(bytes);
            drop(split_batch(&bytes));
            MessageOutline::of(&bytes);
        });
    }

    /// Params with members that are looked for, as they are and as they should not be.
    fn params() -> impl Strategy<Value = String> {
        let key = prop::sample::select(vec!["name", "n\\u0061me", "_meta", "\\u005fmeta", "a"]);
        let value = prop::sample::select(vec![
            "\"a\"",
            "{}",
            "[{\"progressToken\":1}]",
            "{\"a\":0, \"progressToken\" : \"b\" }",
            "{\"progressToken\":1,\"progress\\u0054oken\":2}",
            "{\"io.modelcontextprotocol/clientInfo\":{\"name\":\"c\"},\"progressToken\":[]}",
        ]);
        prop::collection::vec((key, value), 0..4).prop_map(|members| {
            let member = |(key, value)| format!("\"{key}\" : {value}");
            let members: Vec<String> = members.into_iter().map(member).collect();
            format!("{{{}}}", members.join(", "))
        })
    }

    /// Members as they are and as they should not be, in any order and number.
    fn message() -> impl Strategy<Value = String> {
        let key = prop::sample::select(vec![
            "jsonrpc", "id", "method", "params", "result", "error", "i\\u0064", "x", "\u{e9}",
        ]);
        let value = prop::sample::select(vec![
            "\"2.0\"",
            "\"2.\\u0030\"",
            "2.0",
            "1",
            "-7",
            "1.5",
            "\"a\"",
            "\"\\ud800\"",
            "null",
            "{}",
            "[1]",
            "\"tools/call\"",
            "\"tools\\/call\"",
            "{\"a\":[1e400,{}], \"a\":\"\u{e9}\"}",
            "true",
        ]);
        let usual = prop::sample::select(vec![
            ("jsonrpc", "\"2.0\""),
            ("id", "1"),
            ("method", "\"tools/call\""),
            ("params", "{}"),
            ("result", "[]"),
        ]);
        let member = prop_oneof![3 => usual, 2 => (key, value)];
        let space = prop::sample::select(vec!["", " ", "\n\t", "\u{c}"]);
        (prop::collection::vec(member, 0..7), space).prop_map(|(members, space)| {
            let member = |(key, value)| format!("{space}\"{key}\":{space}{value}");
            let members: Vec<String> = members.into_iter().map(member).collect();
            format!("{space}{{{}{space}}}{space}", members.join(","))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn one_pass_says_what_the_careful_way_says(text in message()) {
            agree(text);
        }

        #[test]
        fn both_find_the_same_in_params(params in params()) {
            agree(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#));
        }

        #[test]
        fn nor_do_they_differ_on_what_was_spoilt(
            text in message(),
            at in any::<prop::sample::Index>(),
            byte in prop_oneof![prop::sample::select(br#" {}[],:"\0-.e"#.to_vec()), any::<u8>()],
            kept in any::<bool>(),
        ) {
            let mut bytes = text.into_bytes();
            let at = at.index(bytes.len());
            bytes.splice(at..at + usize::from(!kept), [byte]);
            agree(bytes);
        }
    }

    #[test]
    fn usual_messages_take_one_pass() {
        let check = |text: &'static str, expect: bool| {
            let bytes = Bytes::from_static(text.as_bytes());
            assert_eq!(
                WireMessage::parse_fast(text, &bytes).is_some(),
                expect,
                "{text}"
            );
            agree(bytes);
        };
        check(
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,"\n"]}}"#,
            true,
        );
        check(
            "{ \"jsonrpc\" : \"2.0\" ,\r\n \"method\":\"m\" , \"x\":[] } ",
            true,
        );
        check(r#"{"result":{"k":null},"id":"a","jsonrpc":"2.0"}"#, true);
        check(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1}}"#, true);
        check(r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}"#, false);
        check(r#"{"jsonrpc":"2.0","i\u0064":1,"method":"m"}"#, false);
        check(r#"{"jsonrpc":"2.0","id":1,"method":"a\/b"}"#, false);
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":null}"#,
            false,
        );
        check(r#"{"jsonrpc":"2.0","id":1,"method":"m"},"#, false);
        check(r#"{"jsonrpc":"2.0","id":1,"method":"m",}"#, false);
        check(r#"[{"jsonrpc":"2.0","id":1,"method":"m"}]"#, false);
        check("{}", true);
        check("", false);
    }
}
