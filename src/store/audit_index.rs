//! The index of the audit: where in the log each record stands, and what searches ask of it. The log
//! itself is the truth, and the index can be made again from it.

use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use uuid::Uuid;

use super::{StoreError, UsageAnswer, UsageQuery};
use crate::money::Micros;

/// What is new of one segment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IndexedSegment {
    /// The chain.
    pub chain: String,
    /// The segment of the chain.
    pub segment: u64,
    /// Bytes of the segment that are indexed with these.
    pub end: u64,
    /// The hash of the line that ends there.
    pub hash: Option<String>,
    /// Its records.
    pub records: Vec<IndexedRecord>,
}

impl IndexedSegment {
    /// How far the segment is indexed then.
    pub fn into_mark(self) -> SegmentMark {
        SegmentMark {
            chain: self.chain,
            segment: self.segment,
            end: self.end,
            hash: self.hash,
        }
    }
}

/// A record as the index has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IndexedRecord {
    /// Its first byte in the segment.
    pub offset: u64,
    /// When it was made, to the microsecond.
    pub ts: Timestamp,
    /// The invocation.
    pub invocation: Uuid,
    /// The agent's id.
    pub agent_id: String,
    /// The agent's name.
    pub agent_name: String,
    /// The server's name.
    pub server: Option<String>,
    /// The tool's name, as its server has it.
    pub tool: Option<String>,
    /// The tool's name, as the client used it.
    pub exposed: Option<String>,
    /// What was decided.
    pub decision: String,
    /// The team of the agent.
    pub team: Option<String>,
    /// The workspace of the agent.
    pub workspace: Option<String>,
    /// What the call cost.
    pub price: Micros,
    /// How long it took, to the microsecond.
    pub took: Duration,
}

/// Where a record stands.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct IndexedPlace {
    /// The chain.
    pub chain: String,
    /// The segment of the chain.
    pub segment: u64,
    /// Its first byte in the segment.
    pub offset: u64,
}

/// What came into the index after some record.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NewPlaces {
    /// Where the records stand, each with its number: they are numbered as they come.
    pub places: Vec<(i64, IndexedPlace)>,
    /// The number up to which was looked.
    pub end: i64,
}

/// How far a segment is indexed.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SegmentMark {
    /// The chain.
    pub chain: String,
    /// The segment of the chain.
    pub segment: u64,
    /// Bytes of the segment that the index covers.
    pub end: u64,
    /// The hash of the line that ends there, where it is known.
    pub hash: Option<String>,
}

/// What records are looked for; what is `None` does not matter.
#[derive(Clone, Debug, Default)]
pub struct IndexFilter {
    /// Of this agent, by id or name.
    pub agent: Option<String>,
    /// Of this server.
    pub server: Option<String>,
    /// Of this tool, by any of its names.
    pub tool: Option<String>,
    /// With this decision.
    pub decision: Option<String>,
    /// At or after this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// Of this invocation.
    pub invocation: Option<Uuid>,
}

/// Keeps the index of the audit.
pub trait AuditIndex: std::fmt::Debug + Send + Sync {
    /// Adds what is new, all or nothing. What is known already stays as it is.
    fn put<'a>(&'a self, segments: &'a [IndexedSegment]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// How far every segment is indexed of which anything is, in the order of chains and segments.
    fn marks(&self) -> BoxFuture<'_, Result<Vec<SegmentMark>, StoreError>>;

    /// The latest records that match, latest first; at most `count`.
    fn find<'a>(
        &'a self,
        filter: &'a IndexFilter,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<IndexedPlace>, StoreError>>;

    /// The first records that match and came into the index after the one with the number `after`, in this order; at
    /// most `count`. Without a number there are none, and the end is the number of the last record.
    fn find_after<'a>(
        &'a self,
        filter: &'a IndexFilter,
        after: Option<i64>,
        count: usize,
    ) -> BoxFuture<'a, Result<NewPlaces, StoreError>>;

    /// What calls came to, as far back as there are records.
    fn usage<'a>(&'a self, query: &'a UsageQuery)
    -> BoxFuture<'a, Result<UsageAnswer, StoreError>>;

    /// Forgets what lies beyond `length` in a segment, provided that it is still indexed as far as
    /// `mark` says and `confirm_truncated` agrees; whether it did. While `confirm_truncated` is asked nobody else can
    /// change the index, so that of several who come with one mark one is asked.
    fn truncate_segment<'a>(
        &'a self,
        mark: &'a SegmentMark,
        length: u64,
        confirm_truncated: BoxFuture<'a, bool>,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Forgets a segment.
    fn remove_segment<'a>(
        &'a self,
        chain: &'a str,
        segment: u64,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}
