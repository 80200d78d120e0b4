//! JSON-RPC envelopes around raw params, results and errors.
//!
//! Parsing borrows: the parts are slices of the received bytes. Writing emits only the four members
//! that every peer accepts, in a fixed order.

mod message_outline;
mod wire_message;

use std::{borrow::Cow, fmt, hash::Hash};

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    error,
    error::RpcError,
    json::{self, Raw},
    method::Method,
    params::Params,
};
pub use message_outline::MessageOutline;
use wire_message::WireMessage;

/// One JSON-RPC message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Needs no answer.
    Notification(Notification),
    /// Needs an answer.
    Request(Request),
    /// Answers a request.
    Response(Response),
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// As the sender wrote it.
    pub id: Id,
    /// What is asked.
    pub method: Method,
    /// An object; absent when it was absent or `null`.
    pub params: Option<Params>,
}

impl Request {
    /// The same in memory of its own: a request that lasts does not keep all of the body that it came in.
    #[must_use]
    pub fn to_owned_memory(&self) -> Self {
        Self {
            id: Id(self.id.0.to_owned_memory()),
            method: self.method.clone(),
            params: self
                .params
                .as_ref()
                .map(|params| params.to_owned_memory().into()),
        }
    }
}

/// A notification.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// Its name.
    pub method: Cow<'static, str>,
    /// Absent when it was absent or `null`.
    pub params: Option<Raw>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The id of the request; `None` when the peer could not read it.
    pub id: Option<Id>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a request: the result, or the error object.
pub type Outcome = Result<Raw, Raw>;

/// A request id: a JSON string or integer, kept as its sender wrote it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Id(Raw);

impl Id {
    /// An id of ours.
    pub fn number(number: u64) -> Self {
        Self(Raw::number(number))
    }

    /// Accepts strings and integers.
    pub fn from_raw(raw: Raw) -> Option<Self> {
        let legal = match raw.as_bytes() {
            [b'"', ..] => true,
            digits => digits.iter().all(|b| b.is_ascii_digit() || *b == b'-'),
        };
        legal.then_some(Self(raw))
    }

    /// The number, when it is one of ours.
    pub fn as_number(&self) -> Option<u64> {
        self.0.as_str().parse().ok()
    }

    /// The JSON text.
    pub fn raw(&self) -> &Raw {
        &self.0
    }
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// An envelope with nothing in it, such as an answer that says nothing.
    #[error("not a JSON-RPC 2.0 message: it has no method, result or error")]
    EmptyEnvelope {
        /// The id, when it was legible.
        id: Option<Id>,
    },
    /// An array: a batch, legal only in 2025-03-26.
    #[error("a batch is not accepted here")]
    Batch,
    /// Not an envelope. Carries the id when one could be read.
    #[error("not a JSON-RPC 2.0 message: {reason}")]
    Envelope {
        /// What is wrong with it.
        reason: &'static str,
        /// The id, when it was legible.
        id: Option<Id>,
    },
    /// Not JSON.
    #[error("not JSON: {reason}")]
    Json {
        /// What the parser said.
        reason: String,
    },
}

/// A part of what a peer said that is no message.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    /// Why not.
    pub malformed: Malformed,
    /// The requests that it would answer otherwise.
    pub answered: Vec<Id>,
}

impl Unreadable {
    fn new(malformed: Malformed, bytes: &[u8]) -> Self {
        let answered = match &malformed {
            Malformed::EmptyEnvelope { id } => id.iter().cloned().collect(),
            Malformed::Envelope { .. } | Malformed::Json { .. } => {
                MessageOutline::answered_ids(bytes)
            }
            Malformed::Batch => Vec::new(),
        };
        Self {
            malformed,
            answered,
        }
    }

    /// Our requests that `bytes` would answer, if they could be read.
    pub fn answered_by(bytes: &[u8]) -> Vec<u64> {
        let ids = MessageOutline::answered_ids(bytes);
        ids.iter().filter_map(Id::as_number).collect()
    }

    /// Whether it would answer our request `id`.
    pub fn answers(&self, id: u64) -> bool {
        self.answered.iter().any(|it| it.as_number() == Some(id))
    }
}

impl Malformed {
    /// The answer to a peer that sent it.
    pub fn to_error(&self) -> RpcError {
        let code = match self {
            Self::EmptyEnvelope { .. } | Self::Batch | Self::Envelope { .. } => {
                error::INVALID_REQUEST
            }
            Self::Json { .. } => error::PARSE_ERROR,
        };
        RpcError::new(code, self.to_string())
    }

    /// The id to answer with, when it was legible.
    pub fn id(&self) -> Option<&Id> {
        match self {
            Self::EmptyEnvelope { id } | Self::Envelope { id, .. } => id.as_ref(),
            Self::Batch | Self::Json { .. } => None,
        }
    }
}

impl Message {
    /// Reads one message from `bytes`.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &Bytes) -> Result<Self, Malformed> {
        // RFC 8259, section 8.1; also in what is not looked at any further.
        let text = std::str::from_utf8(bytes).map_err(|error| Malformed::Json {
            reason: error.to_string(),
        })?;
        match WireMessage::parse_fast(text, bytes) {
            Some(wire) => Self::from_wire(wire),
            None => Self::parse_unusual(text, bytes),
        }
    }

    /// Reads what a peer of 2025-03-26 may send at once: one message, or a batch. `take` gets each,
    /// or why it is none, with its bytes. A batch within a batch is no message.
    pub fn parse_each(bytes: &Bytes, mut take: impl FnMut(&Bytes, Result<Self, Unreadable>)) {
        let mut take = |part: &Bytes, parsed: Result<Self, Malformed>| {
            take(part, parsed.map_err(|it| Unreadable::new(it, part)));
        };
        let parsed = Self::parse(bytes);
        if parsed != Err(Malformed::Batch) {
            return take(bytes, parsed);
        }
        match split_batch(bytes) {
            Ok(parts) => parts.iter().for_each(|part| take(part, Self::parse(part))),
            Err(malformed) => take(bytes, Err(malformed)),
        }
    }

    /// Reads a message, however unusual it is, or says why it is none.
    fn parse_unusual(text: &str, bytes: &Bytes) -> Result<Self, Malformed> {
        if let Some(rest) = text.strip_prefix(BOM)
            && !rest.starts_with(BOM)
        {
            return Self::parse(&bytes.slice_ref(rest.as_bytes()));
        }
        match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'{') => {}
            Some(b'[') => return Err(Malformed::Batch),
            Some(_) | None => {
                return Err(match serde_json::from_str::<&RawValue>(text) {
                    Ok(_) => Malformed::Envelope {
                        reason: "it is not an object",
                        id: None,
                    },
                    Err(error) => Malformed::Json {
                        reason: describe_json_error(&error, text),
                    },
                });
            }
        }
        let wire = WireMessage::parse(text, bytes).map_err(|error| {
            if error.is_data() {
                let id = extract_id(bytes);
                Malformed::Envelope {
                    reason: "a member is duplicated or of the wrong type",
                    id,
                }
            } else {
                Malformed::Json {
                    reason: describe_json_error(&error, text),
                }
            }
        })?;
        Self::from_wire(wire)
    }

    fn from_wire(wire: WireMessage<'_>) -> Result<Self, Malformed> {
        let has_id = wire.id.is_some();
        let id = wire.id.and_then(Id::from_raw);
        let malformed = |reason, id| Err(Malformed::Envelope { reason, id });
        if wire.jsonrpc.as_deref() != Some("2.0") {
            return malformed("`jsonrpc` is not \"2.0\"", id);
        }
        if let Some(method) = wire.method {
            let params = wire.params;
            if params.as_ref().is_some_and(|params| !params.is_object()) {
                return malformed("`params` is not an object", id);
            }
            return match id {
                Some(id) => Ok(Self::Request(Request {
                    id,
                    method: Method::parse(&method),
                    params,
                })),
                None if has_id => malformed("`id` is neither a string nor an integer", None),
                None => {
                    let method = Cow::Owned(method.into_owned());
                    let params = params.map(Raw::from);
                    Ok(Self::Notification(Notification { method, params }))
                }
            };
        }
        // Old servers send `"error":null` beside a result.
        let outcome = match (wire.error, wire.result) {
            (Some(error), _) => Err(error),
            (None, Some(result)) => Ok(result),
            (None, None) => return Err(Malformed::EmptyEnvelope { id }),
        };
        if !has_id && outcome.is_ok() {
            return malformed("result without an id", None);
        }
        Ok(Self::Response(Response { id, outcome }))
    }
}

/// What the parser said, with the word at that place which other languages have and JSON has not.
fn describe_json_error(error: &serde_json::Error, text: &str) -> String {
    const FOREIGN_WORDS: [&str; 6] = ["NaN", "Infinity", "undefined", "None", "True", "False"];
    let line = text.split('\n').nth(error.line().saturating_sub(1));
    // The column is that of the last byte that was read, from 1.
    let near = line.and_then(|line| line.get(error.column().saturating_sub(1)..));
    let near = near.unwrap_or_default().trim_start_matches(['-', ' ', ':']);
    let word = FOREIGN_WORDS.iter().find(|word| near.starts_with(**word));
    word.map_or_else(
        || error.to_string(),
        |word| format!("{error} (`{word}` is not JSON)"),
    )
}

/// What some programs write before their first message, and no part of it: RFC 8259, section 8.1.
const BOM: &str = "\u{feff}";

/// Messages in one batch: of tiny ones a long line would have millions, each of which takes more
/// memory than it has bytes.
pub const BATCH_MAX: usize = 1024;

/// Splits a batch of 2025-03-26 into its elements.
///
/// # Errors
/// When `bytes` is not a JSON array with at least one element and at most [`BATCH_MAX`].
pub fn split_batch(bytes: &Bytes) -> Result<Vec<Bytes>, Malformed> {
    let of = |reason| Malformed::Envelope { reason, id: None };
    let text = bytes.strip_prefix(BOM.as_bytes()).unwrap_or(bytes);
    let BatchElements(elements) = serde_json::from_slice(text).map_err(|error| {
        if error.is_data() {
            return of("batch with too many messages");
        }
        Malformed::Json {
            reason: error.to_string(),
        }
    })?;
    if elements.is_empty() {
        return Err(of("an empty batch"));
    }
    let elements = elements.into_iter();
    Ok(elements
        .map(|element| bytes.slice_ref(element.get().as_bytes()))
        .collect())
}

/// The elements of an array; more than [`BATCH_MAX`] are an error.
struct BatchElements<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for BatchElements<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BatchElementsVisitor)
    }
}

struct BatchElementsVisitor;

impl<'de> Visitor<'de> for BatchElementsVisitor {
    type Value = BatchElements<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {BATCH_MAX} messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            if elements.len() == BATCH_MAX {
                return Err(de::Error::invalid_length(BATCH_MAX + 1, &self));
            }
            elements.push(element);
        }
        Ok(BatchElements(elements))
    }
}

/// The bytes of a request.
pub fn encode_request(id: &Id, method: &str, params: Option<&Raw>) -> Bytes {
    encode_message(Some(id), method, params)
}

/// The bytes of a notification.
pub fn encode_notification(method: &str, params: Option<&Raw>) -> Bytes {
    encode_message(None, method, params)
}

/// The bytes of an answer.
pub fn encode_response(id: Option<&Id>, outcome: &Outcome) -> Bytes {
    let (member, body) = match outcome {
        Ok(result) => (&br#","result":"#[..], result),
        Err(error) => (&br#","error":"#[..], error),
    };
    let (id, body) = (
        id.map_or(&b"null"[..], |id| id.raw().as_bytes()),
        body.as_bytes(),
    );
    // At its size, so that the bytes need no counter of their own before they are shared.
    let length = RESPONSE_PREFIX.len() + id.len() + member.len() + body.len() + 1;
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(RESPONSE_PREFIX);
    out.extend_from_slice(id);
    out.extend_from_slice(member);
    out.extend_from_slice(body);
    out.push(b'}');
    out.into()
}

/// How an answer begins.
const RESPONSE_PREFIX: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

fn encode_message(id: Option<&Id>, method: &str, params: Option<&Raw>) -> Bytes {
    let (id, method) = (id.map(Id::raw), json::escape_string(method));
    let part =
        |key: &[u8], value: Option<&Raw>| value.map_or(0, |it| key.len() + it.as_bytes().len());
    let length = HEAD.len() + part(ID, id) + METHOD.len() + method.len() + part(PARAMS, params) + 2;
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(HEAD);
    if let Some(id) = id {
        out.extend_from_slice(ID);
        out.extend_from_slice(id.as_bytes());
    }
    out.extend_from_slice(METHOD);
    out.extend_from_slice(method.as_bytes());
    out.push(b'"');
    if let Some(params) = params {
        out.extend_from_slice(PARAMS);
        out.extend_from_slice(params.as_bytes());
    }
    out.push(b'}');
    out.into()
}

const HEAD: &[u8] = br#"{"jsonrpc":"2.0""#;
const ID: &[u8] = br#","id":"#;
const METHOD: &[u8] = br#","method":""#;
const PARAMS: &[u8] = br#","params":"#;

/// The id of an object that is no legal envelope, so that its sender can match our refusal.
fn extract_id(bytes: &Bytes) -> Option<Id> {
    Raw::parse(bytes.clone())
        .ok()?
        .get("id")
        .and_then(Id::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_json_are_named() {
        let check = |value: &str, expect: Option<&str>| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":{value}}}}}"#);
            let said = Message::parse(&text.into()).unwrap_err().to_string();
            let named = said.split('`').nth(1);
            assert_eq!(named, expect, "{said}");
        };
        check("NaN", Some("NaN"));
        check(" [1, NaN]", Some("NaN"));
        check("Infinity", Some("Infinity"));
        check("-Infinity", Some("Infinity"));
        check("undefined", Some("undefined"));
        check("None", Some("None"));
        check("True", Some("True"));
        check("'a'", None);
        check("\"NaN\t\"", None);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_message() {
        let message = r#"{"jsonrpc":"2.0","method":"m"}"#;
        let parse = |text: String| Message::parse(&text.into()).is_ok();
        assert!(parse(format!("{BOM}{message}")));
        assert!(parse(format!("{BOM} {message}\r")));
        assert!(!parse(format!("{BOM}{BOM}{message}")));
        assert!(!parse(BOM.repeat(100_000)));
        let batch = Bytes::from(format!("{BOM}[{message},{message}]"));
        assert_eq!(split_batch(&batch).unwrap().len(), 2);
    }

    #[test]
    fn batches_are_taken_apart_once() {
        let check = |text: &'static str, expect: &[(&str, Result<(), &str>)]| {
            let mut found = Vec::new();
            Message::parse_each(&Bytes::from_static(text.as_bytes()), |part, parsed| {
                let part = String::from_utf8(part.to_vec()).unwrap();
                found.push((
                    part,
                    parsed
                        .map(drop)
                        .map_err(|malformed| malformed.malformed.to_string()),
                ));
            });
            let expect = expect.iter().map(|(part, parsed)| {
                let parsed = parsed.map_err(str::to_owned);
                ((*part).to_owned(), parsed)
            });
            assert_eq!(found, expect.collect::<Vec<_>>(), "{text}");
        };
        let (one, two) = (
            r#"{"jsonrpc":"2.0","method":"one"}"#,
            r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
        );
        let no_object = "not a JSON-RPC 2.0 message: it is not an object";
        check(r#"{"jsonrpc":"2.0","method":"one"}"#, &[(one, Ok(()))]);
        check(
            r#" [{"jsonrpc":"2.0","method":"one"}, 3, {"jsonrpc":"2.0","id":2,"result":{}}]"#,
            &[(one, Ok(())), ("3", Err(no_object)), (two, Ok(()))],
        );
        let nested = Err("a batch is not accepted here");
        check(
            r#"[[{"jsonrpc":"2.0","method":"one"}]]"#,
            &[(r#"[{"jsonrpc":"2.0","method":"one"}]"#, nested)],
        );
        let empty = Err("not a JSON-RPC 2.0 message: an empty batch");
        check("[]", &[("[]", empty)]);
        let cut = Err("not JSON: EOF while parsing a list at line 1 column 2");
        check("[3", &[("[3", cut)]);
    }

    #[test]
    fn messages_are_told_apart() {
        let check = |text: &'static str, expect: &str| {
            let found = match Message::parse(&Bytes::from_static(text.as_bytes())) {
                Ok(message) => format!("{message:?}"),
                Err(malformed) => format!("{malformed} / {:?}", malformed.id()),
            };
            assert_eq!(found, expect, "{text}");
        };
        check(
            r#"{"id":0,"method":"ping","jsonrpc":"2.0","extra":1}"#,
            "Request(Request { id: Id(0), method: Ping, params: None })",
        );
        check(
            r#" {"jsonrpc":"2.0","id":"a","method":"x/y","params":{"a" : 1e3}}"#,
            r#"Request(Request { id: Id("a"), method: Other("x/y"), params: Some({"a" : 1e3}) })"#,
        );
        check(
            r#"{"jsonrpc":"2.0","method":"notifications/x","params":null}"#,
            r#"Notification(Notification { method: "notifications/x", params: None })"#,
        );
        check(
            r#"{"jsonrpc":"2.0","id":7,"result":null,"error":null}"#,
            "Response(Response { id: Some(Id(7)), outcome: Ok(null) })",
        );
        check(
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#,
            r#"Response(Response { id: None, outcome: Err({"code":1}) })"#,
        );
        check(
            r#"{"jsonrpc":"2.0","id":7}"#,
            "not a JSON-RPC 2.0 message: it has no method, result or error / Some(Id(7))",
        );
        check("[]", "a batch is not accepted here / None");
        check(
            "{",
            "not JSON: EOF while parsing an object at line 1 column 1 / None",
        );
        let unread = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"x\":\"\xff\"}";
        let found = Message::parse(&Bytes::from_static(unread));
        assert!(matches!(found, Err(Malformed::Json { .. })), "{found:?}");
        check(
            "3",
            "not a JSON-RPC 2.0 message: it is not an object / None",
        );
        check(
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            "not a JSON-RPC 2.0 message: `id` is neither a string nor an integer / None",
        );
        check(
            r#"{"jsonrpc":"2.0","id":4,"id":5,"method":"ping"}"#,
            "not a JSON-RPC 2.0 message: a member is duplicated or of the wrong type / Some(Id(5))",
        );
        check(
            r#"{"jsonrpc":"2.0","id":4,"method":"ping","params":[1]}"#,
            "not a JSON-RPC 2.0 message: `params` is not an object / Some(Id(4))",
        );
        check(
            r#"{"id":4,"method":"ping"}"#,
            "not a JSON-RPC 2.0 message: `jsonrpc` is not \"2.0\" / Some(Id(4))",
        );
    }

    #[test]
    fn so_many_messages_are_a_batch() {
        let batch = |count| {
            let text = format!("[{}]", vec![r#"{"a":[]}"#; count].join(", "));
            split_batch(&Bytes::from(text)).map(|parts| parts.len())
        };
        assert_eq!(batch(1), Ok(1));
        assert_eq!(batch(BATCH_MAX), Ok(BATCH_MAX));
        let too_many = batch(BATCH_MAX + 1).unwrap_err().to_string();
        assert!(
            too_many.ends_with("batch with too many messages"),
            "{too_many}"
        );
        let empty = batch(0).unwrap_err().to_string();
        assert!(empty.ends_with("an empty batch"), "{empty}");
        let open = split_batch(&Bytes::from_static(b"[1,2"));
        assert!(matches!(open, Err(Malformed::Json { .. })), "{open:?}");
    }

    #[test]
    fn what_is_written_can_be_read() {
        let params = Raw::from_static(r#"{"n":12345678901234567890123,"z":"\ud800"}"#);
        let id = Id::from_raw(Raw::from_static(r#""q-1""#)).unwrap();
        let bytes = encode_request(&id, "odd/\"method\"", Some(&params));
        let expect = Request {
            id,
            method: Method::parse("odd/\"method\""),
            params: Some(params.into()),
        };
        assert_eq!(Message::parse(&bytes), Ok(Message::Request(expect)));
    }
}
