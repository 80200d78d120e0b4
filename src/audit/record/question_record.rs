//! Requests of servers to clients, as events with members of their own.

use std::borrow::Cow;

use jiff::Timestamp;

use super::{
    line_writer::LineWriter,
    record_line::{ArgumentsDigest, EventKind, LineType},
};
use crate::names::{AgentId, InvocationId};

/// What became of a request of a server to a client, or of several that are counted instead of recorded one by
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct QuestionRecord<'a> {
    /// When it was known, of the last of several.
    pub ts: Timestamp,
    /// The server that asked.
    pub server: &'a str,
    /// Whose client it is; `None` where that is not known, or differs.
    pub agent: Option<(AgentId, &'a str)>,
    /// What was asked for, such as `elicitation/create`; `None` where that is not known.
    pub method: Option<Cow<'a, str>>,
    /// What became of it, in one word.
    pub outcome: &'a str,
    /// The call that it belongs to.
    pub call: Option<InvocationId>,
    /// Of its params.
    pub params_digest: Option<ArgumentsDigest>,
    /// How many there were, and since when, where these are several.
    pub sum: Option<(u64, Timestamp)>,
}

impl QuestionRecord<'_> {
    /// The line, without its seal: an event that has its figures also as members of their own.
    pub(in crate::audit) fn to_line(&self) -> Vec<u8> {
        let mut made = Vec::new();
        let mut line = LineWriter::begin(&mut made, LineType::Event);
        line.time("ts", self.ts);
        line.plain_text("event", EventKind::ClientAsked.as_str());
        line.text("subject", self.server);
        if let Some((_, name)) = self.agent {
            line.text("actor", name);
        }
        line.text("detail", &self.detail());
        if let Some((id, _)) = self.agent {
            line.id("agent_id", "agent_", id.0);
        }
        if let Some(method) = &self.method {
            line.text("method", method);
        }
        line.text("outcome", self.outcome);
        if let Some(call) = self.call {
            line.id("parent_id", "inv_", call.0);
        }
        if let Some(digest) = self.params_digest {
            line.plain_text("params_digest", &digest.to_string());
        }
        if let Some((count, since)) = self.sum {
            line.number("count", count);
            line.time("since", since);
        }
        made
    }

    fn detail(&self) -> String {
        let method = self.method.as_deref().unwrap_or("a request");
        let outcome = self.outcome.replace('_', " ");
        let call = self.call.map(|call| format!(", in {call}"));
        let several = self
            .sum
            .map(|(count, since)| format!(", {count} times since {since:.0}"));
        let (call, several) = (call.unwrap_or_default(), several.unwrap_or_default());
        format!("{method}: {outcome}{call}{several}")
    }
}
