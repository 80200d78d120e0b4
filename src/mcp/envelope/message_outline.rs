//! What a message that is not kept is: the id it has, and whether it asks or answers.
//!
//! Read piece by piece while the message is thrown away, so that what this takes does not grow with it.
//! What lies deeper than its own members is passed over, however deep that is.

use super::Id;
use crate::mcp::json::Raw;

/// Bytes of a name or a value that are looked at: ids are shorter.
const VALUE_BYTES_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct MessageOutline {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// The name of the member whose value is read, in its quotes.
    name: Option<Vec<u8>>,
    /// What was read of a name or a value.
    part: Vec<u8>,
    id: Option<Id>,
    has_method: bool,
    parts: AnswerParts,
}

/// What of an answer a message has.
#[derive(Debug, Default)]
struct AnswerParts {
    version: bool,
    result: bool,
    error: bool,
}

impl MessageOutline {
    /// That of a whole message.
    pub fn of(message: &[u8]) -> Self {
        let mut outline = Self::default();
        outline.read(message);
        outline
    }

    /// Reads on.
    pub fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.push_byte(*byte);
        }
    }

    /// The id of the request that it is; `None` when it is none, or its id is not legible.
    pub fn request_id(&self) -> Option<&Id> {
        self.id.as_ref().filter(|_| self.has_method)
    }

    /// The id of the request that it answers.
    pub fn response_id(&self) -> Option<&Id> {
        self.id.as_ref().filter(|_| !self.has_method)
    }

    /// The ids of the requests that `bytes` would answer, if they could be read: of all objects that stand in
    /// them, whatever stands between. What has neither a result nor an error in a JSON-RPC envelope may be a
    /// line of a log.
    pub(super) fn answered_ids(bytes: &[u8]) -> Vec<Id> {
        let mut ids = Vec::new();
        let mut rest = bytes;
        while let Some(start) = memchr::memchr(b'{', rest) {
            let mut outline = Self::default();
            let object = &rest[start..];
            let is_last = |byte: &u8| {
                outline.push_byte(*byte);
                outline.depth == 0
            };
            let length = object.iter().position(is_last);
            rest = length.map_or(&[], |last| &object[last + 1..]);
            ids.extend(outline.into_answered_id());
        }
        ids
    }

    fn into_answered_id(self) -> Option<Id> {
        let is_envelope = self.parts.result || self.parts.error && self.parts.version;
        self.id.filter(|_| is_envelope && !self.has_method)
    }

    fn push_byte(&mut self, byte: u8) {
        if self.in_string {
            self.push_part(byte);
            self.in_string = self.is_escaped || byte != b'"';
            self.is_escaped = !self.is_escaped && byte == b'\\';
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.push_part(byte);
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.end_member();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => self.end_member(),
            b':' if self.depth == 1 => self.begin_value(),
            _ if byte.is_ascii_whitespace() => {}
            _ => self.push_part(byte),
        }
    }

    fn push_part(&mut self, byte: u8) {
        // One more than is looked at, to know what is too long.
        if self.depth == 1 && self.part.len() <= VALUE_BYTES_MAX {
            self.part.push(byte);
        }
    }

    fn begin_value(&mut self) {
        let name = std::mem::take(&mut self.part);
        match name.as_slice() {
            br#""error""# => self.parts.error = true,
            br#""jsonrpc""# => self.parts.version = true,
            br#""result""# => self.parts.result = true,
            _ => {}
        }
        self.name = Some(name);
    }

    fn end_member(&mut self) {
        if self.depth != 1 {
            return;
        }
        let value = std::mem::take(&mut self.part);
        match self.name.take().as_deref() {
            Some(br#""id""#) if value.len() <= VALUE_BYTES_MAX => {
                self.id = Raw::parse(value).ok().and_then(Id::from_raw);
            }
            Some(br#""method""#) => self.has_method = true,
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of `text`, in whatever pieces it comes.
    fn check(text: &str, request: Option<&str>, answer: Option<&str>) {
        for size in [1, 3, text.len()] {
            let mut outline = MessageOutline::default();
            text.as_bytes()
                .chunks(size)
                .for_each(|piece| outline.read(piece));
            let found = |id: Option<&Id>| id.map(|id| id.raw().as_str().to_owned());
            assert_eq!(found(outline.request_id()).as_deref(), request, "{text}");
            assert_eq!(found(outline.response_id()).as_deref(), answer, "{text}");
        }
    }

    #[test]
    fn an_id_is_found_wherever_it_stands() {
        check(
            r#"{"jsonrpc":"2.0","id": 42,"result":{}}"#,
            None,
            Some("42"),
        );
        check(
            r#"{"result":{"id":3},"jsonrpc":"2.0","id":7}"#,
            None,
            Some("7"),
        );
        check(
            r#" { "id" : "a\"b" , "method":"m"}"#,
            Some(r#""a\"b""#),
            None,
        );
        check(
            r#"{"method":"m","params":{"x":"\\\","},"id":-1}"#,
            Some("-1"),
            None,
        );
        check(
            r#"{"params":[[{"id":5}],"\"id\":6"],"method":"m"}"#,
            None,
            None,
        );
        check(
            r#"{"note":",\"id\":6,","id":8,"error":{}}"#,
            None,
            Some("8"),
        );
        check(r#"{"method":"m","id":9,"params":{"a":"#, Some("9"), None);
        check(r#"{"method":"m","id":9"#, None, None);
        check(r#"{"method":"m","id":[9]}"#, None, None);
        check(r#"[{"method":"m","id":9}]"#, None, None);
        check(r#"{"method":"m","id":1.5}"#, None, None);
    }

    #[test]
    fn answers_that_cannot_be_read_are_told_from_other_lines() {
        let check = |text: &[u8], expect: &[u64]| {
            let found = MessageOutline::answered_ids(text);
            let found: Vec<_> = found.iter().filter_map(Id::as_number).collect();
            assert_eq!(found, expect, "{}", String::from_utf8_lossy(text));
        };
        check(br#"{"jsonrpc":"2.0","id":3,"result":{"x":NaN}}"#, &[3]);
        check(br#"{"id":3,"result":{"x":-Infinity}}"#, &[3]);
        check(br#"{"jsonrpc":"2.0","error":undefined,"id":4}"#, &[4]);
        check(
            b"{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{\"t\":\"\xd6\xd0",
            &[5],
        );
        check(
            br#"ready {"id":6,"result":{}}{"id":7,"result":[]} ok"#,
            &[6, 7],
        );
        check(br#"{"id":8,"level":"error","error":"broken"}"#, &[]);
        check(br#"{"jsonrpc":"2.0","id":9,"method":"m","result":1}"#, &[]);
        check(br#"{"msg":{"id":9,"result":1}}"#, &[]);
        check(br#"say "{" and {"id":9,"result":1}"#, &[]);
        check(b"nothing at all", &[]);
    }

    #[test]
    fn so_long_may_an_id_be() {
        let of = |digits: usize| {
            let id = "1".repeat(digits);
            let outline = MessageOutline::of(format!(r#"{{"id":{id},"method":"m"}}"#).as_bytes());
            outline.request_id().map(|id| id.raw().as_str().len())
        };
        assert_eq!(of(VALUE_BYTES_MAX), Some(VALUE_BYTES_MAX));
        assert_eq!(of(VALUE_BYTES_MAX + 1), None);
        assert_eq!(of(VALUE_BYTES_MAX - 1), Some(VALUE_BYTES_MAX - 1));
    }

    #[test]
    fn it_is_no_matter_how_deep_the_rest_is() {
        let deep = "[".repeat(1 << 16) + &"]".repeat(1 << 16);
        let text = format!(r#"{{"params":{deep},"id":1,"method":"m"}}"#);
        assert_eq!(
            MessageOutline::of(text.as_bytes()).request_id(),
            Some(&Id::number(1))
        );
    }
}
