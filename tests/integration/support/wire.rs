//! Messages as text: made by joining, taken apart without changing a byte.

use std::{borrow::Cow, future::Future, time::Duration};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::{task::JoinHandle, time::timeout};

/// How long anything that must happen may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for what must happen; `what` names it when it does not.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(elapsed) => panic!("it did not happen within {PATIENCE:?}: {what} ({elapsed})"),
    }
}

/// Starts a task of the test; it ends with the runtime of the test.
#[expect(
    clippy::disallowed_methods,
    reason = "the gateway's tasks are not the test's"
)]
pub(crate) fn spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(future)
}

/// The members of a message, each as it was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Envelope {
    pub(crate) id: Option<String>,
    pub(crate) method: Option<String>,
    pub(crate) params: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl Envelope {
    /// Takes `text` apart.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let wire: Wire<'_> = serde_json::from_str(text).ok()?;
        let raw = |part: Option<&RawValue>| part.map(|part| part.get().to_owned());
        Some(Self {
            id: raw(wire.id),
            method: wire.method.map(Cow::into_owned),
            params: raw(wire.params),
            result: raw(wire.result),
            error: raw(wire.error),
        })
    }

    /// Like [`Envelope::parse`], of what must be a message.
    pub(crate) fn of(text: &str) -> Self {
        Self::parse(text).unwrap_or_else(|| panic!("not a message: {text}"))
    }

    pub(crate) fn is_response(&self) -> bool {
        self.method.is_none()
    }

    /// The name of the method, empty for an answer.
    pub(crate) fn method(&self) -> &str {
        self.method.as_deref().unwrap_or_default()
    }

    /// The member of the params at `path`, as it was written.
    pub(crate) fn param(&self, path: &[&str]) -> Option<String> {
        member(self.params.as_deref()?, path)
    }

    /// The result as a value.
    pub(crate) fn value(&self) -> Value {
        let result = self.result.as_deref();
        value(result.unwrap_or_else(|| panic!("no result: {self:?}")))
    }

    /// The error as a value.
    pub(crate) fn failure(&self) -> Value {
        let error = self.error.as_deref();
        value(error.unwrap_or_else(|| panic!("no error: {self:?}")))
    }

    /// The code of the error.
    pub(crate) fn code(&self) -> i64 {
        self.failure()["code"].as_i64().unwrap()
    }
}

/// The member of `json` at `path`, as it was written.
pub(crate) fn member(json: &str, path: &[&str]) -> Option<String> {
    let mut at = json.to_owned();
    for key in path {
        let members: std::collections::BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(&at).ok()?;
        at = members.get(*key)?.get().to_owned();
    }
    Some(at)
}

/// `text` as a value.
pub(crate) fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn request(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

pub(crate) fn result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

pub(crate) fn error(id: &str, error: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// `message` as a server-sent event.
pub(crate) fn event(id: Option<&str>, message: &str) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    let data = message.replace('\n', "\ndata: ");
    format!("{id}data: {data}\n\n")
}

/// One event as received.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) retry: Option<u64>,
}

impl Event {
    /// Reads the block of lines of one event; a comment alone is no event.
    pub(crate) fn parse(block: &str) -> Option<Self> {
        let mut event = Self::default();
        for line in block.split('\n') {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => event.id = Some(value.to_owned()),
                "event" => event.name = Some(value.to_owned()),
                "retry" => event.retry = value.parse().ok(),
                "data" => {
                    event.data = Some(match event.data.take() {
                        Some(before) => format!("{before}\n{value}"),
                        None => value.to_owned(),
                    });
                }
                _ => {}
            }
        }
        (event != Self::default()).then_some(event)
    }
}

/// Takes the whole events out of `buffer`.
pub(crate) fn take_events(buffer: &mut Vec<u8>) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(end) = buffer.windows(2).position(|two| two == b"\n\n") {
        let block: Vec<u8> = buffer.drain(..end + 2).collect();
        let block = String::from_utf8(block).unwrap();
        events.extend(Event::parse(&block[..end]));
    }
    events
}
