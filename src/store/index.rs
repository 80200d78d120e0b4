//! The index of the audit: which stretches of the log are worth reading for what is looked for.
//! The log itself is the truth, and the index can be made again from it.
//!
//! A row for each record would cost a call as much as many a step of governance. A row for a block
//! of some hundred records says as well what of the log need not be read.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::StoreError;

/// A stretch of whole lines of one segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Block {
    /// The chain.
    pub chain: String,
    /// The segment of the chain.
    pub segment: u64,
    /// Its first byte in the segment.
    pub start: u64,
    /// The first byte after it.
    pub end: u64,
    /// When the earliest and the latest of its records were made, to the millisecond; nothing when
    /// it has no record.
    pub times: Option<(Timestamp, Timestamp)>,
}

/// What the records of one block have, each once.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BlockTerms {
    /// Ids and names of agents.
    pub agents: BTreeSet<String>,
    /// Names of servers.
    pub servers: BTreeSet<String>,
    /// Names of tools, their servers' and those that clients used.
    pub tools: BTreeSet<String>,
    /// What was decided.
    pub decisions: BTreeSet<String>,
}

/// The last block of a chain that is indexed.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ChainMark {
    /// The chain.
    pub chain: String,
    /// The segment of the chain.
    pub segment: u64,
    /// Where the block begins in the segment.
    pub start: u64,
    /// Bytes of the segment that the index covers.
    pub end: u64,
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
}

/// Which blocks come first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IndexOrder {
    /// The one with the latest record.
    NewestFirst,
    /// The one with the earliest record.
    OldestFirst,
}

/// Keeps the index of the audit.
pub trait AuditIndex: std::fmt::Debug + Send + Sync {
    /// Adds blocks, all or nothing. One that begins where a known one does takes its place, unless
    /// it is the shorter.
    fn put<'a>(
        &'a self,
        blocks: &'a [(Block, BlockTerms)],
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Where every chain goes on of which anything is indexed.
    fn marks(&self) -> BoxFuture<'_, Result<Vec<ChainMark>, StoreError>>;

    /// All blocks that may hold a record that matches: of a log of 10 GB, 40,000 at most.
    fn find<'a>(
        &'a self,
        filter: &'a IndexFilter,
        order: IndexOrder,
    ) -> BoxFuture<'a, Result<Vec<Block>, StoreError>>;

    /// How far every segment is indexed of which anything is.
    fn segment_marks(&self) -> BoxFuture<'_, Result<Vec<SegmentMark>, StoreError>>;

    /// Forgets what lies beyond `length` in a segment, provided that it is still indexed as far as
    /// `mark` says and `witness` agrees; whether it did. While `witness` is asked nobody else can
    /// change the index, so that of several who come with one mark one is asked.
    fn cut_segment<'a>(
        &'a self,
        mark: &'a SegmentMark,
        length: u64,
        witness: BoxFuture<'a, bool>,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Forgets a segment.
    fn remove_segment<'a>(
        &'a self,
        chain: &'a str,
        segment: u64,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}
