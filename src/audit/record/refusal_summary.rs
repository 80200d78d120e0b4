//! Refused calls that are counted instead of recorded one by one.

use jiff::Timestamp;

use super::{
    line_writer::LineWriter,
    record_line::{EventKind, LineType},
};
use crate::names::{AgentId, PeerAddress};

/// Refused calls of one agent from one address with one reason, summed.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusalSummary<'a> {
    /// When the first of them came.
    pub since: Timestamp,
    /// When the last of them came.
    pub until: Timestamp,
    /// Who called.
    pub agent_id: AgentId,
    /// The agent's name.
    pub agent_name: &'a str,
    /// Where from, as far as that is known.
    pub address: Option<PeerAddress>,
    /// The discriminator of the error that they got, such as `RATE_LIMITED`.
    pub code: &'a str,
    /// How many there were.
    pub count: u64,
}

impl RefusalSummary<'_> {
    /// The line, without its seal: an event that has its figures also as members of their own.
    pub(in crate::audit) fn to_line(&self) -> Vec<u8> {
        let mut made = Vec::new();
        let mut line = LineWriter::begin(&mut made, LineType::Event);
        line.time("ts", self.until);
        line.plain_text("event", EventKind::RefusalsSummed.as_str());
        line.text("subject", self.agent_name);
        line.text("detail", &self.detail());
        line.id("agent_id", "agent_", self.agent_id.0);
        if let Some(address) = self.address {
            line.plain_text("address", &address.to_string());
        }
        line.text("code", self.code);
        line.number("count", self.count);
        line.time("since", self.since);
        made
    }

    fn detail(&self) -> String {
        let Self { code, count, .. } = self;
        let from = self.address.map(|address| format!(" from {address}"));
        let from = from.unwrap_or_default();
        format!("{count} calls{from}, {code}, since {:.0}", self.since)
    }
}
