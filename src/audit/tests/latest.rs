//! The index and the searches that go by it.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tempfile::TempDir;
use uuid::Uuid;

use crate::{
    audit::{
        AuditLog, ChainId, Indexer, LINE_BYTES_MAX, Query, Record, RecordFilter, RecordedDecision,
        latest_records,
        testing::{at, config, invocation, open_log, record},
    },
    names::{AgentId, InvocationId},
    store::{
        AuditIndex, IndexFilter, IndexedPlace, IndexedSegment, NewPlaces, SegmentMark, Store,
        StoreError, UsageAnswer, UsageQuery,
    },
};

/// A log and its index.
pub(super) struct Place {
    directory: TempDir,
    pub(super) store: Store,
}

impl Place {
    pub(super) async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let store = Store::open(directory.path()).await.unwrap();
        Self { directory, store }
    }

    pub(super) fn log_dir(&self) -> PathBuf {
        self.directory.path().join("audit")
    }

    pub(super) fn log(&self) -> AuditLog {
        open_log(&self.log_dir(), config()).unwrap()
    }

    pub(super) fn indexer(&self) -> Indexer {
        Indexer::new(&self.log_dir(), Arc::clone(&self.store.audit))
    }

    pub(super) async fn latest(&self, filter: &RecordFilter, count: usize) -> Vec<InvocationId> {
        let found = latest_records(&self.log_dir(), &*self.store.audit, filter, count).await;
        let found = found.unwrap().into_iter();
        found.map(|found| found.record.id).collect()
    }

    /// How far every segment is indexed.
    pub(super) async fn marks(&self) -> Vec<SegmentMark> {
        self.store.audit.marks().await.unwrap()
    }

    /// How many records are indexed.
    pub(super) async fn records(&self) -> usize {
        let all = IndexFilter::default();
        self.store.audit.find(&all, usize::MAX).await.unwrap().len()
    }

    pub(super) fn segment(&self, chain: ChainId) -> PathBuf {
        self.log_dir().join(format!("{chain}.1.jsonl"))
    }
}

pub(super) fn put(log: &AuditLog, record: &Record<'_>) -> InvocationId {
    assert!(log.record(record).is_written());
    record.id
}

fn later(minute: u64) -> Timestamp {
    at("2026-01-01T00:00:00Z") + Duration::from_secs(minute * 60)
}

/// An invocation of which the id says when it began.
fn begun(time: Timestamp) -> InvocationId {
    let seconds = u64::try_from(time.as_second()).unwrap();
    let time = uuid::Timestamp::from_unix(uuid::NoContext, seconds, 0);
    InvocationId(Uuid::new_v7(time))
}

pub(super) fn at_minute(minute: u64) -> Record<'static> {
    Record {
        ts: later(minute),
        ..record(begun(later(minute)))
    }
}

#[tokio::test]
async fn the_latest_of_all_chains_are_found() {
    let place = Place::new().await;
    let logs = [place.log(), place.log()];
    let written: Vec<_> = (0..10_u8)
        .map(|n| put(&logs[usize::from(n % 2)], &at_minute(n.into())))
        .collect();
    assert!(place.latest(&RecordFilter::default(), 9).await.is_empty());
    place.indexer().catch_up().await.unwrap();
    for (count, expected) in [(0, 10..10), (4, 6..10), (10, 0..10), (99, 0..10)] {
        let found = place.latest(&RecordFilter::default(), count).await;
        assert_eq!(found, written[expected], "{count}");
    }
    let between = RecordFilter {
        since: Some(later(2)),
        until: Some(later(5)),
        ..RecordFilter::default()
    };
    assert_eq!(place.latest(&between, 99).await, written[2..5]);
}

#[tokio::test]
async fn the_index_holds_every_term_of_a_record() {
    let place = Place::new().await;
    let log = place.log();
    put(&log, &at_minute(0));
    let other = AgentId::from_name("other");
    let id = put(
        &log,
        &Record {
            agent_id: other,
            agent_name: "other".into(),
            server: Some("docs".into()),
            tool: Some("search \"quick\"".into()),
            exposed: Some("mcp_docs_search".into()),
            decision: RecordedDecision::Refused,
            ..at_minute(1)
        },
    );
    place.indexer().catch_up().await.unwrap();
    let place = &place;
    let check = async |narrow: &dyn Fn(&mut RecordFilter), expected: &[InvocationId]| {
        let mut filter = RecordFilter::default();
        narrow(&mut filter);
        assert_eq!(place.latest(&filter, 9).await, expected, "{filter:?}");
    };
    let some = |text: &str| Some(text.to_owned());
    check(&|it| it.agent = some("other"), &[id]).await;
    check(&|it| it.agent = Some(other.to_string()), &[id]).await;
    check(&|it| it.agent = some("nobody"), &[]).await;
    check(&|it| it.server = some("docs"), &[id]).await;
    check(&|it| it.tool = some("search \"quick\""), &[id]).await;
    check(&|it| it.tool = some("mcp_docs_search"), &[id]).await;
    check(&|it| it.decision = Some(RecordedDecision::Refused), &[id]).await;
    check(&|it| it.id = Some(id), &[id]).await;
    check(&|it| it.id = Some(begun(later(1))), &[]).await;
    check(&|it| it.id = Some(InvocationId(Uuid::nil())), &[]).await;
    check(&|it| it.id = Some(invocation()), &[]).await;
    // However long a name is that a client makes up, it is found, and no other.
    let long = |end: &str| Some("\u{e9}".repeat(400) + end);
    let named = Record {
        exposed: long("a").map(Into::into),
        ..at_minute(2)
    };
    let found = put(&log, &named);
    place.indexer().catch_up().await.unwrap();
    check(&|it| it.tool = long("a"), &[found]).await;
    check(&|it| it.tool = long("b"), &[]).await;
    let both = |it: &mut RecordFilter| {
        it.agent = some("other");
        it.server = some("github");
    };
    check(&both, &[]).await;
}

#[tokio::test]
async fn only_lines_that_are_wanted_are_read() {
    let place = Place::new().await;
    let log = place.log();
    let written: Vec<_> = (0..9).map(|minute| put(&log, &at_minute(minute))).collect();
    place.indexer().catch_up().await.unwrap();
    let segment = place.segment(log.chain().unwrap());
    let text = fs::read_to_string(&segment).unwrap();
    let spoilt = text.find(&written[4].to_string()).unwrap();
    let file = fs::File::options().write(true).open(&segment).unwrap();
    file.write_all_at(b"\\u", u64::try_from(spoilt).unwrap())
        .unwrap();
    assert!(
        Query::new(&place.log_dir(), RecordFilter::default())
            .unwrap()
            .any(|it| it.is_err())
    );
    assert_eq!(
        place.latest(&RecordFilter::default(), 4).await,
        written[5..]
    );
    let of_first = RecordFilter {
        id: Some(written[0]),
        ..RecordFilter::default()
    };
    assert_eq!(place.latest(&of_first, 5).await, written[..1]);
    let all = RecordFilter::default();
    let wrong = latest_records(&place.log_dir(), &*place.store.audit, &all, 9).await;
    assert!(wrong.is_err(), "what cannot be read is not passed over");
    fs::remove_file(segment).unwrap();
    assert!(place.latest(&of_first, 9).await.is_empty(), "it is gone");
}

#[tokio::test]
async fn an_index_goes_on_where_it_or_another_ended() {
    let place = Place::new().await;
    let log = place.log();
    let mut own = place.indexer();
    let mut written = Vec::new();
    for minute in 0..6 {
        written.push(put(&log, &at_minute(minute)));
        own.catch_up().await.unwrap();
        if minute % 2 == 1 {
            place.indexer().catch_up().await.unwrap();
        }
        assert_eq!(place.latest(&RecordFilter::default(), 9).await, written);
    }
    let marks = place.marks().await;
    assert_eq!(marks.len(), 1, "both go on with one segment: {marks:?}");
}

#[tokio::test]
async fn a_chain_that_cannot_be_read_keeps_no_other_from_the_index() {
    let place = Place::new().await;
    let before = ChainId::generate();
    let log = place.log();
    // A directory can be opened, but not read. One is looked at before our log, one after it.
    fs::create_dir(place.segment(before)).unwrap();
    fs::create_dir(place.segment(ChainId::generate())).unwrap();
    let mut indexer = place.indexer();
    let mut written = Vec::new();
    for minute in 0..3 {
        written.push(put(&log, &at_minute(minute)));
        assert!(indexer.catch_up().await.is_err());
        assert_eq!(place.latest(&RecordFilter::default(), 9).await, written);
    }
}

/// An index on a busy day: whenever it is written there is another record.
#[derive(Debug)]
struct Busy {
    index: Arc<dyn AuditIndex>,
    log: AuditLog,
}

impl AuditIndex for Busy {
    fn put<'a>(&'a self, new: &'a [IndexedSegment]) -> BoxFuture<'a, Result<(), StoreError>> {
        put(&self.log, &at_minute(1));
        self.index.put(new)
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<SegmentMark>, StoreError>> {
        self.index.marks()
    }

    fn find<'a>(
        &'a self,
        filter: &'a IndexFilter,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<IndexedPlace>, StoreError>> {
        self.index.find(filter, count)
    }

    fn find_after<'a>(
        &'a self,
        filter: &'a IndexFilter,
        after: Option<i64>,
        count: usize,
    ) -> BoxFuture<'a, Result<NewPlaces, StoreError>> {
        self.index.find_after(filter, after, count)
    }

    fn usage<'a>(
        &'a self,
        query: &'a UsageQuery,
    ) -> BoxFuture<'a, Result<UsageAnswer, StoreError>> {
        self.index.usage(query)
    }

    fn truncate_segment<'a>(
        &'a self,
        mark: &'a SegmentMark,
        length: u64,
        confirm_truncated: BoxFuture<'a, bool>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.index.truncate_segment(mark, length, confirm_truncated)
    }

    fn remove_segment<'a>(
        &'a self,
        chain: &'a str,
        segment: u64,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.index.remove_segment(chain, segment)
    }
}

#[tokio::test]
async fn an_indexer_does_not_run_after_records_that_are_still_being_written() {
    let place = Place::new().await;
    let log = place.log();
    put(&log, &at_minute(0));
    let index = Arc::clone(&place.store.audit);
    let mut indexer = Indexer::new(&place.log_dir(), Arc::new(Busy { index, log }));
    for turn in 1..4 {
        let caught_up = tokio::time::timeout(Duration::from_secs(5), indexer.catch_up());
        caught_up.await.unwrap().unwrap();
        assert_eq!(place.latest(&RecordFilter::default(), 9).await.len(), turn);
    }
}

#[tokio::test]
async fn lines_before_one_that_cannot_be_read_are_found() {
    let place = Place::new().await;
    let log = place.log();
    let written = put(&log, &at_minute(0));
    let path = place.segment(log.chain().unwrap());
    let segment = fs::File::options().append(true).open(path).unwrap();
    let end = segment.metadata().unwrap().len();
    segment.set_len(end + LINE_BYTES_MAX as u64 + 1).unwrap();
    let mut indexer = place.indexer();
    for _ in 0..2 {
        assert!(indexer.catch_up().await.is_err(), "no line is so long");
        assert_eq!(place.latest(&RecordFilter::default(), 9).await, [written]);
        assert_eq!(place.marks().await[0].end, end);
    }
}

/// Ids are never earlier than those before them, so after a clock was set back they say a later time
/// than records.
#[tokio::test]
async fn a_call_is_found_by_its_id_whatever_the_clock_did() {
    for minute in [0, 100, 3_000] {
        let place = Place::new().await;
        let record = Record {
            ts: later(minute),
            ..record(begun(later(100)))
        };
        let filter = RecordFilter {
            id: Some(put(&place.log(), &record)),
            ..RecordFilter::default()
        };
        place.indexer().catch_up().await.unwrap();
        assert_eq!(place.latest(&filter, 9).await, [record.id], "{minute}");
    }
}
