//! The index of the audit: where each record stands. The log itself is the truth, and the index can
//! be made again from it.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::StoreError;
use crate::names::{AgentId, InvocationId};

/// Where one record of the audit stands, and what it is looked for by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IndexEntry {
    /// The call.
    pub invocation: InvocationId,
    /// When, to the millisecond.
    pub ts: Timestamp,
    /// Who called.
    pub agent: AgentId,
    /// Which server; `None` when the call was refused before one was known.
    pub server: Option<String>,
    /// Which tool, by its original name.
    pub tool: Option<String>,
    /// What was decided.
    pub decision: String,
    /// The chain that holds the record.
    pub chain: String,
    /// The segment of the chain.
    pub segment: u64,
    /// First byte of the record in its segment.
    pub offset: u64,
    /// Bytes of the record.
    pub length: u32,
}

/// How far a segment is indexed.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SegmentMark {
    /// The chain.
    pub chain: String,
    /// The segment of the chain.
    pub segment: u64,
    /// Bytes from its beginning that the index covers.
    pub indexed: u64,
}

/// What records are looked for; what is `None` does not matter.
#[derive(Clone, Debug, Default)]
pub struct IndexFilter {
    /// Of this call.
    pub invocation: Option<InvocationId>,
    /// Of this agent.
    pub agent: Option<AgentId>,
    /// Of this server.
    pub server: Option<String>,
    /// Of this tool, by its original name.
    pub tool: Option<String>,
    /// With this decision.
    pub decision: Option<String>,
    /// At or after this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

/// Which records come first; those of one millisecond are ordered by chain, segment and offset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IndexOrder {
    /// The latest.
    NewestFirst,
    /// The earliest.
    OldestFirst,
}

/// Keeps the index of the audit.
pub trait AuditIndex: std::fmt::Debug + Send + Sync {
    /// Adds entries and says how far their segments are indexed, all or nothing. Entries that are
    /// known already change nothing, and a mark never moves back.
    fn insert<'a>(
        &'a self,
        entries: &'a [IndexEntry],
        marks: &'a [SegmentMark],
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Every segment of which anything is indexed, by chain and number.
    fn marks(&self) -> BoxFuture<'_, Result<Vec<SegmentMark>, StoreError>>;

    /// At most `limit` entries that match.
    fn find<'a>(
        &'a self,
        filter: &'a IndexFilter,
        order: IndexOrder,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<IndexEntry>, StoreError>>;

    /// Forgets a segment: its entries and its mark.
    fn remove_segment<'a>(
        &'a self,
        chain: &'a str,
        segment: u64,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}
