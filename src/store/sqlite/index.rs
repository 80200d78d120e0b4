//! The index of the audit in SQLite.

use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Row, Sqlite as Db, sqlite::SqliteRow};

use super::{Sqlite, begin, from_time, to_time, to_uuid};
use crate::{
    names::{AgentId, InvocationId},
    store::{AuditIndex, IndexEntry, IndexFilter, IndexOrder, SegmentMark, StoreError},
};

/// Entries that one statement inserts: each statement costs the way to the thread of the connection
/// and back, which is far more than the insertion of a row.
const ROWS_MAX: usize = 200;

impl AuditIndex for Sqlite {
    fn insert<'a>(
        &'a self,
        entries: &'a [IndexEntry],
        marks: &'a [SegmentMark],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("indexing the audit", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for entries in entries.chunks(ROWS_MAX) {
                insertion(entries)
                    .build()
                    .persistent(entries.len() == ROWS_MAX)
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            for mark in marks {
                sqlx::query(
                    "INSERT INTO audit_segments (chain, segment, indexed) VALUES (?, ?, ?) \
                     ON CONFLICT DO UPDATE SET indexed = max(indexed, excluded.indexed)",
                )
                .bind(&mark.chain)
                .bind(mark.segment.cast_signed())
                .bind(mark.indexed.cast_signed())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<SegmentMark>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<(String, i64, i64)> = sqlx::query_as(
                "SELECT chain, segment, indexed FROM audit_segments ORDER BY chain, segment",
            )
            .fetch_all(&self.reader)
            .await
            .map_err(|error| self.failed("reading the index of the audit", error))?;
            let marks = rows
                .into_iter()
                .map(|(chain, segment, indexed)| SegmentMark {
                    chain,
                    segment: segment.cast_unsigned(),
                    indexed: indexed.cast_unsigned(),
                });
            Ok(marks.collect())
        })
    }

    fn find<'a>(
        &'a self,
        filter: &'a IndexFilter,
        order: IndexOrder,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<IndexEntry>, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("reading the index of the audit", error);
            let rows = query(filter, order, limit)
                .build()
                .fetch_all(&self.reader)
                .await
                .map_err(failed)?;
            let entries = rows.iter().map(entry_of).collect::<Result<_, _>>();
            entries.map_err(failed)
        })
    }

    fn remove_segment<'a>(
        &'a self,
        chain: &'a str,
        segment: u64,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("removing a segment from the index", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for delete in [
                "DELETE FROM audit_index WHERE chain = ? AND segment = ?",
                "DELETE FROM audit_segments WHERE chain = ? AND segment = ?",
            ] {
                sqlx::query(delete)
                    .bind(chain)
                    .bind(segment.cast_signed())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }
}

/// The statement that inserts `entries`; it reads the same for as many entries.
fn insertion(entries: &[IndexEntry]) -> QueryBuilder<Db> {
    let mut query = QueryBuilder::new(
        "INSERT OR IGNORE INTO audit_index (chain, segment, position, length, invocation, ts_ms, \
         agent, server, tool, decision) ",
    );
    query.push_values(entries, |mut row, entry| {
        row.push_bind(entry.chain.clone())
            .push_bind(entry.segment.cast_signed())
            .push_bind(entry.offset.cast_signed())
            .push_bind(entry.length)
            .push_bind(entry.invocation.0.as_bytes().to_vec())
            .push_bind(from_time(entry.ts))
            .push_bind(entry.agent.0.as_bytes().to_vec())
            .push_bind(entry.server.clone())
            .push_bind(entry.tool.clone())
            .push_bind(entry.decision.clone());
    });
    query
}

fn query(filter: &IndexFilter, order: IndexOrder, limit: u32) -> QueryBuilder<Db> {
    let mut query = QueryBuilder::new("SELECT * FROM audit_index WHERE 1");
    if let Some(id) = filter.invocation {
        let id = id.0.as_bytes().to_vec();
        query.push(" AND invocation = ").push_bind(id);
    }
    if let Some(id) = filter.agent {
        query
            .push(" AND agent = ")
            .push_bind(id.0.as_bytes().to_vec());
    }
    let texts = [
        (" AND server = ", &filter.server),
        (" AND tool = ", &filter.tool),
        (" AND decision = ", &filter.decision),
    ];
    for (condition, text) in texts {
        if let Some(text) = text {
            query.push(condition).push_bind(text.clone());
        }
    }
    if let Some(since) = filter.since {
        query.push(" AND ts_ms >= ").push_bind(from_time(since));
    }
    if let Some(until) = filter.until {
        query.push(" AND ts_ms < ").push_bind(from_time(until));
    }
    query.push(match order {
        IndexOrder::NewestFirst => {
            " ORDER BY ts_ms DESC, chain DESC, segment DESC, position DESC LIMIT "
        }
        IndexOrder::OldestFirst => " ORDER BY ts_ms, chain, segment, position LIMIT ",
    });
    query.push_bind(i64::from(limit));
    query
}

fn entry_of(row: &SqliteRow) -> Result<IndexEntry, sqlx::Error> {
    let number = |column| row.try_get::<i64, _>(column);
    Ok(IndexEntry {
        invocation: InvocationId(to_uuid(row.try_get("invocation")?)),
        ts: to_time(number("ts_ms")?),
        agent: AgentId(to_uuid(row.try_get("agent")?)),
        server: row.try_get("server")?,
        tool: row.try_get("tool")?,
        decision: row.try_get("decision")?,
        chain: row.try_get("chain")?,
        segment: number("segment")?.cast_unsigned(),
        offset: number("position")?.cast_unsigned(),
        length: row.try_get("length")?,
    })
}
