//! The index of the audit in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;
use sqlx::{QueryBuilder, Sqlite as Db};

use super::{Sqlite, begin};
use crate::store::{
    AuditIndex, IndexFilter, IndexedPlace, IndexedRecord, IndexedSegment, SegmentMark, StoreError,
};

/// Adds what is new of a segment, or raises how far it is known.
const PUT_SEGMENT: &str = "INSERT INTO audit_segments (chain, segment, end_byte, end_hash) \
     VALUES (?, ?, ?, ?) ON CONFLICT (chain, segment) DO UPDATE SET \
     end_byte = max(end_byte, excluded.end_byte), \
     end_hash = iif(excluded.end_byte > end_byte, excluded.end_hash, end_hash) RETURNING id";

/// Adds records, which come as one text: a statement for each would cost more than all else.
const PUT_RECORDS: &str = "INSERT OR IGNORE INTO audit_records (segment, first_byte, ts_us, \
     invocation, agent_id, agent_name, server, tool, exposed, decision) \
     SELECT ?1, value->>0, value->>1, unhex(value->>2), value->>3, value->>4, value->>5, value->>6, \
     value->>7, value->>8 FROM json_each(?2)";

impl AuditIndex for Sqlite {
    fn put<'a>(&'a self, segments: &'a [IndexedSegment]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("indexing the audit", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for segment in segments {
                let id: i64 = sqlx::query_scalar(PUT_SEGMENT)
                    .bind(&segment.chain)
                    .bind(segment.segment.cast_signed())
                    .bind(segment.end.cast_signed())
                    .bind(&segment.hash)
                    .fetch_one(&mut *tx)
                    .await
                    .map_err(failed)?;
                if segment.records.is_empty() {
                    continue;
                }
                let rows: Vec<_> = segment.records.iter().map(record_json).collect();
                sqlx::query(PUT_RECORDS)
                    .bind(id)
                    .bind(serde_json::Value::from(rows).to_string())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<SegmentMark>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<(String, i64, i64, Option<String>)> = sqlx::query_as(
                "SELECT chain, segment, end_byte, end_hash FROM audit_segments \
                 ORDER BY chain, segment",
            )
            .fetch_all(&self.reader)
            .await
            .map_err(|error| self.map_error("reading the index of the audit", error))?;
            let marks = rows
                .into_iter()
                .map(|(chain, segment, end, hash)| SegmentMark {
                    chain,
                    segment: segment.cast_unsigned(),
                    end: end.cast_unsigned(),
                    hash,
                });
            Ok(marks.collect())
        })
    }

    fn find<'a>(
        &'a self,
        filter: &'a IndexFilter,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<IndexedPlace>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<(String, i64, i64)> = find_query(filter, count)
                .build_query_as()
                .fetch_all(&self.reader)
                .await
                .map_err(|error| self.map_error("reading the index of the audit", error))?;
            let places = rows
                .into_iter()
                .map(|(chain, segment, offset)| IndexedPlace {
                    chain,
                    segment: segment.cast_unsigned(),
                    offset: offset.cast_unsigned(),
                });
            Ok(places.collect())
        })
    }

    fn truncate_segment<'a>(
        &'a self,
        mark: &'a SegmentMark,
        length: u64,
        confirm_truncated: BoxFuture<'a, bool>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("truncating a segment of the index", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            let known: Option<i64> = sqlx::query_scalar(
                "SELECT id FROM audit_segments WHERE chain = ? AND segment = ? AND end_byte = ?",
            )
            .bind(&mark.chain)
            .bind(mark.segment.cast_signed())
            .bind(mark.end.cast_signed())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed)?;
            let Some(id) = known else {
                tx.rollback().await.map_err(failed)?;
                return Ok(false);
            };
            if !confirm_truncated.await {
                tx.rollback().await.map_err(failed)?;
                return Ok(false);
            }
            for cut in [
                "DELETE FROM audit_records WHERE segment = ?1 AND first_byte >= ?2",
                "UPDATE audit_segments SET end_byte = ?2, end_hash = NULL WHERE id = ?1 AND ?2 > 0",
                "DELETE FROM audit_segments WHERE id = ?1 AND ?2 = 0",
            ] {
                sqlx::query(cut)
                    .bind(id)
                    .bind(length.cast_signed())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)?;
            Ok(true)
        })
    }

    fn remove_segment<'a>(
        &'a self,
        chain: &'a str,
        segment: u64,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing a segment from the index", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for remove in [
                "DELETE FROM audit_records WHERE segment IN \
                 (SELECT id FROM audit_segments WHERE chain = ?1 AND segment = ?2)",
                "DELETE FROM audit_segments WHERE chain = ?1 AND segment = ?2",
            ] {
                sqlx::query(remove)
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

fn record_json(record: &IndexedRecord) -> serde_json::Value {
    json!([
        record.offset,
        to_micros(record.ts),
        record.invocation.simple().to_string(),
        record.agent_id,
        record.agent_name,
        record.server,
        record.tool,
        record.exposed,
        record.decision,
    ])
}

fn to_micros(time: Timestamp) -> i64 {
    time.as_microsecond()
}

fn find_query(filter: &IndexFilter, count: usize) -> QueryBuilder<Db> {
    let mut query = QueryBuilder::new(
        "SELECT it.chain, it.segment, first_byte FROM audit_records AS record \
         JOIN audit_segments AS it ON it.id = record.segment WHERE true",
    );
    if let Some(agent) = &filter.agent {
        query.push(" AND (agent_name = ").push_bind(agent);
        query.push(" OR agent_id = ").push_bind(agent).push(")");
    }
    if let Some(server) = &filter.server {
        query.push(" AND server = ").push_bind(server);
    }
    if let Some(tool) = &filter.tool {
        query.push(" AND (tool = ").push_bind(tool);
        query.push(" OR exposed = ").push_bind(tool).push(")");
    }
    if let Some(decision) = &filter.decision {
        query.push(" AND decision = ").push_bind(decision);
    }
    if let Some(since) = filter.since {
        query.push(" AND ts_us >= ").push_bind(to_micros(since));
    }
    if let Some(until) = filter.until {
        query.push(" AND ts_us < ").push_bind(to_micros(until));
    }
    if let Some(invocation) = filter.invocation {
        let id = invocation.as_bytes().to_vec();
        query.push(" AND invocation = ").push_bind(id);
    }
    query.push(" ORDER BY ts_us DESC, record.segment DESC, first_byte DESC LIMIT ");
    query.push_bind(i64::try_from(count).unwrap_or(i64::MAX));
    query
}
