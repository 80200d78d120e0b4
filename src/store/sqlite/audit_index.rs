//! The index of the audit in SQLite.

mod usage;

use std::collections::HashSet;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;
use sqlx::{QueryBuilder, Sqlite as Db};

use super::{Sqlite, begin};
use crate::store::{
    AuditIndex, IndexFilter, IndexedPlace, IndexedRecord, IndexedSegment, NewPlaces, SegmentMark,
    StoreError, UsageAnswer, UsageQuery,
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
     value->>7, value->>8 FROM json_each(?2) RETURNING first_byte";

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
                let added: Vec<i64> = sqlx::query_scalar(PUT_RECORDS)
                    .bind(id)
                    .bind(serde_json::Value::from(rows).to_string())
                    .fetch_all(&mut *tx)
                    .await
                    .map_err(failed)?;
                // What was known is counted already.
                let added: HashSet<u64> = added.into_iter().map(i64::cast_unsigned).collect();
                let records = segment.records.iter();
                let records = records.filter(|record| added.contains(&record.offset));
                usage::add(records, &mut tx).await.map_err(failed)?;
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

    fn find_after<'a>(
        &'a self,
        filter: &'a IndexFilter,
        after: Option<i64>,
        count: usize,
    ) -> BoxFuture<'a, Result<NewPlaces, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("reading the index of the audit", error);
            let last: i64 = sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM audit_records")
                .fetch_one(&self.reader)
                .await
                .map_err(failed)?;
            // A number that was never given out is of another index.
            let Some(after) = after.map(|after| if after > last { 0 } else { after }) else {
                let places = Vec::new();
                return Ok(NewPlaces { places, end: last });
            };
            let rows: Vec<(i64, String, i64, i64)> = news_query(filter, (after, last), count)
                .build_query_as()
                .fetch_all(&self.reader)
                .await
                .map_err(failed)?;
            let is_full = rows.len() == count;
            let places: Vec<_> = rows
                .into_iter()
                .map(|(seq, chain, segment, offset)| {
                    let (segment, offset) = (segment.cast_unsigned(), offset.cast_unsigned());
                    let place = IndexedPlace {
                        chain,
                        segment,
                        offset,
                    };
                    (seq, place)
                })
                .collect();
            let end = places.last().filter(|_| is_full).map_or(last, |it| it.0);
            Ok(NewPlaces { places, end })
        })
    }

    fn usage<'a>(
        &'a self,
        query: &'a UsageQuery,
    ) -> BoxFuture<'a, Result<UsageAnswer, StoreError>> {
        Box::pin(usage::find(self, query))
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
                usage::REMOVE_OLD,
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

/// What is found: the latest of the `branches`, each of which an index leads to. A record may be in two.
fn find_query(filter: &IndexFilter, count: usize) -> QueryBuilder<Db> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let order = " ORDER BY ts_us DESC, segment DESC, first_byte DESC LIMIT ";
    let mut query = QueryBuilder::new("SELECT it.chain, it.segment, first_byte FROM (");
    for (number, (agent, tool)) in branches(filter).into_iter().enumerate() {
        if number > 0 {
            query.push(" UNION ");
        }
        let hint = index_for(filter, agent.or(tool));
        query.push(
            "SELECT * FROM (SELECT ts_us, segment, first_byte FROM audit_records INDEXED BY ",
        );
        query.push(hint).push(" WHERE true");
        for (column, value) in agent.into_iter().chain(tool) {
            query
                .push(format_args!(" AND {column} = "))
                .push_bind(value);
        }
        push_conditions(&mut query, filter);
        query.push(order).push_bind(count).push(")");
    }
    query.push(") AS record JOIN audit_segments AS it ON it.id = record.segment");
    query.push(" ORDER BY ts_us DESC, record.segment DESC, first_byte DESC LIMIT ");
    query.push_bind(count);
    query
}

/// What is new among the numbers after the first and up to the second of `span`.
fn news_query(filter: &IndexFilter, (after, last): (i64, i64), count: usize) -> QueryBuilder<Db> {
    let mut query = QueryBuilder::new(
        "SELECT seq, it.chain, it.segment, first_byte FROM audit_records AS record NOT INDEXED \
         JOIN audit_segments AS it ON it.id = record.segment WHERE seq > ",
    );
    query.push_bind(after).push(" AND seq <= ").push_bind(last);
    if let Some(agent) = &filter.agent {
        query.push(" AND (agent_name = ").push_bind(agent);
        query.push(" OR agent_id = ").push_bind(agent).push(")");
    }
    if let Some(tool) = &filter.tool {
        query.push(" AND (tool = ").push_bind(tool);
        query.push(" OR exposed = ").push_bind(tool).push(")");
    }
    push_conditions(&mut query, filter);
    query.push(" ORDER BY seq LIMIT ");
    query.push_bind(i64::try_from(count).unwrap_or(i64::MAX));
    query
}

/// A column and what must stand there.
type WantedValue<'f> = (&'static str, &'f str);

/// What is wanted, as alternatives without an `OR`, for which no index would be of use.
fn branches(filter: &IndexFilter) -> Vec<(Option<WantedValue<'_>>, Option<WantedValue<'_>>)> {
    let tools = either(["tool", "exposed"], filter.tool.as_ref());
    let agents = either(["agent_id", "agent_name"], filter.agent.as_ref());
    let all = agents.into_iter();
    all.flat_map(|agent| tools.iter().map(move |tool| (agent, *tool)))
        .collect()
}

/// The index that leads to fewest records. Without statistics SQLite cannot tell, and reads many more.
fn index_for(filter: &IndexFilter, first: Option<WantedValue<'_>>) -> &'static str {
    if filter.invocation.is_some() {
        return "audit_records_invocation";
    }
    match first {
        Some(("agent_id", _)) => "audit_records_agent_id",
        Some(("agent_name", _)) => "audit_records_agent_name",
        _ if filter.server.is_some() => "audit_records_server",
        Some(("tool", _)) => "audit_records_tool",
        Some(("exposed", _)) => "audit_records_exposed",
        _ if filter.decision.is_some() => "audit_records_decision",
        _ => "audit_records_ts",
    }
}

/// That one of `columns` has what is wanted, if anything is.
fn either<'f>(
    columns: [&'static str; 2],
    wanted: Option<&'f String>,
) -> Vec<Option<WantedValue<'f>>> {
    match wanted {
        Some(wanted) => columns
            .map(|column| Some((column, wanted.as_str())))
            .to_vec(),
        None => vec![None],
    }
}

/// The conditions that hold in every branch.
fn push_conditions(query: &mut QueryBuilder<Db>, filter: &IndexFilter) {
    if let Some(server) = &filter.server {
        query.push(" AND server = ").push_bind(server.clone());
    }
    if let Some(decision) = &filter.decision {
        query.push(" AND decision = ").push_bind(decision.clone());
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
}
