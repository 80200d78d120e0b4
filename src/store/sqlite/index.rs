//! The index of the audit in SQLite.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Row, Sqlite as Db, sqlite::SqliteRow};

use super::{Sqlite, begin, from_time, to_time};
use crate::store::{
    AuditIndex, Block, BlockTerms, ChainMark, IndexFilter, IndexOrder, SegmentMark, StoreError,
};

impl AuditIndex for Sqlite {
    fn put<'a>(
        &'a self,
        blocks: &'a [(Block, BlockTerms)],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("indexing the audit", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for (block, terms) in blocks {
                let (first, last) = block.times.unzip();
                sqlx::query(
                    "INSERT INTO audit_blocks (chain, segment, first_byte, end_byte, first_ms, \
                     last_ms, agents, servers, tools, decisions) \
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
                     ON CONFLICT DO UPDATE SET end_byte = excluded.end_byte, \
                     first_ms = excluded.first_ms, last_ms = excluded.last_ms, \
                     agents = excluded.agents, servers = excluded.servers, \
                     tools = excluded.tools, decisions = excluded.decisions \
                     WHERE excluded.end_byte > end_byte",
                )
                .bind(&block.chain)
                .bind(block.segment.cast_signed())
                .bind(block.start.cast_signed())
                .bind(block.end.cast_signed())
                .bind(first.map(from_time))
                .bind(last.map(from_time))
                .bind(array(&terms.agents))
                .bind(array(&terms.servers))
                .bind(array(&terms.tools))
                .bind(array(&terms.decisions))
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<ChainMark>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<(String, i64, i64, i64)> = sqlx::query_as(
                "SELECT chain, segment, max(first_byte), end_byte FROM audit_blocks AS it \
                 WHERE segment = (SELECT max(segment) FROM audit_blocks WHERE chain = it.chain) \
                 GROUP BY chain ORDER BY chain",
            )
            .fetch_all(&self.reader)
            .await
            .map_err(|error| self.failed("reading the index of the audit", error))?;
            let marks = rows
                .into_iter()
                .map(|(chain, segment, start, end)| ChainMark {
                    chain,
                    segment: segment.cast_unsigned(),
                    start: start.cast_unsigned(),
                    end: end.cast_unsigned(),
                });
            Ok(marks.collect())
        })
    }

    fn find<'a>(
        &'a self,
        filter: &'a IndexFilter,
        order: IndexOrder,
    ) -> BoxFuture<'a, Result<Vec<Block>, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("reading the index of the audit", error);
            let rows = query(filter, order)
                .build()
                .fetch_all(&self.reader)
                .await
                .map_err(failed)?;
            let blocks = rows.iter().map(block_of).collect::<Result<_, _>>();
            blocks.map_err(failed)
        })
    }

    fn segment_marks(&self) -> BoxFuture<'_, Result<Vec<SegmentMark>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<(String, i64, i64)> = sqlx::query_as(
                "SELECT chain, segment, max(end_byte) FROM audit_blocks \
                 GROUP BY chain, segment ORDER BY chain, segment",
            )
            .fetch_all(&self.reader)
            .await
            .map_err(|error| self.failed("reading the index of the audit", error))?;
            let marks = rows.into_iter().map(|(chain, segment, end)| SegmentMark {
                chain,
                segment: segment.cast_unsigned(),
                end: end.cast_unsigned(),
            });
            Ok(marks.collect())
        })
    }

    fn cut_segment<'a>(
        &'a self,
        mark: &'a SegmentMark,
        length: u64,
        witness: BoxFuture<'a, bool>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("cutting a segment of the index", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            let (segment, length) = (mark.segment.cast_signed(), length.cast_signed());
            let known: Option<i64> = sqlx::query_scalar(
                "SELECT max(end_byte) FROM audit_blocks WHERE chain = ? AND segment = ?",
            )
            .bind(&mark.chain)
            .bind(segment)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed)?;
            if known != Some(mark.end.cast_signed()) || !witness.await {
                tx.rollback().await.map_err(failed)?;
                return Ok(false);
            }
            for cut in [
                "DELETE FROM audit_blocks WHERE chain = ?1 AND segment = ?2 AND first_byte >= ?3",
                "UPDATE audit_blocks SET end_byte = ?3 \
                 WHERE chain = ?1 AND segment = ?2 AND end_byte > ?3",
            ] {
                sqlx::query(cut)
                    .bind(&mark.chain)
                    .bind(segment)
                    .bind(length)
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
            sqlx::query("DELETE FROM audit_blocks WHERE chain = ? AND segment = ?")
                .bind(chain)
                .bind(segment.cast_signed())
                .execute(&self.relaxed)
                .await
                .map_err(|error| self.failed("removing a segment from the index", error))?;
            Ok(())
        })
    }
}

/// A JSON array.
fn array(terms: &BTreeSet<String>) -> String {
    serde_json::to_string(terms).expect("texts are JSON")
}

fn query(filter: &IndexFilter, order: IndexOrder) -> QueryBuilder<Db> {
    let mut query = QueryBuilder::new(
        "SELECT chain, segment, first_byte, end_byte, first_ms, last_ms FROM audit_blocks \
         WHERE last_ms IS NOT NULL",
    );
    let terms = [
        ("agents", &filter.agent),
        ("servers", &filter.server),
        ("tools", &filter.tool),
        ("decisions", &filter.decision),
    ];
    for (column, wanted) in terms {
        if let Some(wanted) = wanted {
            query.push(format_args!(
                " AND EXISTS (SELECT 1 FROM json_each({column}) WHERE value = "
            ));
            query.push_bind(wanted.clone()).push(")");
        }
    }
    if let Some(since) = filter.since {
        query.push(" AND last_ms >= ").push_bind(from_time(since));
    }
    if let Some(until) = filter.until {
        query.push(" AND first_ms <= ").push_bind(from_time(until));
    }
    query.push(match order {
        IndexOrder::NewestFirst => " ORDER BY last_ms DESC",
        IndexOrder::OldestFirst => " ORDER BY first_ms",
    });
    query
}

fn block_of(row: &SqliteRow) -> Result<Block, sqlx::Error> {
    let number = |column| row.try_get::<i64, _>(column);
    let time = |column| row.try_get::<Option<i64>, _>(column);
    let times = time("first_ms")?.zip(time("last_ms")?);
    Ok(Block {
        chain: row.try_get("chain")?,
        segment: number("segment")?.cast_unsigned(),
        start: number("first_byte")?.cast_unsigned(),
        end: number("end_byte")?.cast_unsigned(),
        times: times.map(|(first, last)| (to_time(first), to_time(last))),
    })
}
