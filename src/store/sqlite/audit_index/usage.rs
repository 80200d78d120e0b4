//! Usage over time in SQLite.

use std::collections::BTreeMap;

use serde_json::json;
use sqlx::{Sqlite as Db, Transaction};

use crate::store::{
    IndexedRecord, StoreError, UsageAnswer, UsageDimension, UsageQuery, UsageSum, UsageTotals,
    sqlite::Sqlite,
    usage::{contribution, names_of},
};

/// Adds sums, which come as one text.
const ADD: &str = "INSERT INTO audit_usage SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, \
     value->>6, value->>7, value->>8 FROM json_each(?) WHERE true \
     ON CONFLICT (dimension, name, hour, bucket) DO UPDATE SET calls = calls + excluded.calls, \
     errors = errors + excluded.errors, refused = refused + excluded.refused, \
     spent_micros = spent_micros + excluded.spent_micros, took_us = took_us + excluded.took_us";

/// Forgets the usage of hours of which there are no records any more.
pub(super) const REMOVE_OLD: &str = "DELETE FROM audit_usage WHERE hour < \
     (SELECT min(ts_us) / 3600000000 FROM audit_records)";

/// The first names after one: each is looked up by itself, since there are many rows of a name.
const NAMES: &str = "WITH RECURSIVE names (name) AS (\
     SELECT min(name) FROM audit_usage WHERE dimension = ?1 AND name > ?2 UNION ALL \
     SELECT (SELECT min(name) FROM audit_usage WHERE dimension = ?1 AND name > names.name) \
     FROM names WHERE names.name IS NOT NULL) \
     SELECT name FROM names WHERE name IS NOT NULL LIMIT ?3";

/// Name, step, bucket of latency, calls, errors, refused, spent, took.
type SumRow = (String, i64, i64, i64, i64, i64, i64, i64);

/// What the calls of some names came to.
const SUMS: &str = "SELECT name, hour / ?6 AS step, bucket, sum(calls), sum(errors), sum(refused), sum(spent_micros), \
     sum(took_us) FROM audit_usage WHERE dimension = ?1 AND name >= ?2 AND name <= ?3 AND hour >= ?4 AND hour < ?5 \
     GROUP BY name, step, bucket ORDER BY name, step, bucket";

/// Counts `records`.
pub(super) async fn add<'r>(
    records: impl Iterator<Item = &'r IndexedRecord>,
    tx: &mut Transaction<'_, Db>,
) -> Result<(), sqlx::Error> {
    let mut sums: BTreeMap<(UsageDimension, String, i64, i64), UsageTotals> = BTreeMap::new();
    for record in records {
        let (hour, bucket, one) = contribution(record);
        for (dimension, name) in names_of(record) {
            let sum = sums.entry((dimension, name, hour, bucket)).or_default();
            sum.add(&one);
        }
    }
    if sums.is_empty() {
        return Ok(());
    }
    let rows = sums.iter().map(|((dimension, name, hour, bucket), sum)| {
        let [calls, errors, refused, spent, took] = sum.to_row();
        json!([
            dimension.as_str(),
            name,
            hour,
            bucket,
            calls,
            errors,
            refused,
            spent,
            took
        ])
    });
    let rows: serde_json::Value = rows.collect();
    let text = rows.to_string();
    sqlx::query(ADD).bind(text).execute(&mut **tx).await?;
    Ok(())
}

/// Answers a question.
pub(super) async fn find(store: &Sqlite, query: &UsageQuery) -> Result<UsageAnswer, StoreError> {
    let failed = |error| store.map_error("reading usage", error);
    let mut names: Vec<String> = sqlx::query_scalar(NAMES)
        .bind(query.dimension.as_str())
        .bind(query.after.as_deref().unwrap_or_default())
        .bind(i64::try_from(query.count.saturating_add(1)).unwrap_or(i64::MAX))
        .fetch_all(&store.reader)
        .await
        .map_err(failed)?;
    let has_more = names.len() > query.count;
    names.truncate(query.count);
    let (Some(first), Some(last)) = (names.first(), names.last()) else {
        return Ok(UsageAnswer::default());
    };
    let rows: Vec<SumRow> = sqlx::query_as(SUMS)
        .bind(query.dimension.as_str())
        .bind(first)
        .bind(last)
        .bind(query.first_hour)
        .bind(query.end_hour)
        .bind(query.step_hours)
        .fetch_all(&store.reader)
        .await
        .map_err(failed)?;
    let mut sums: Vec<UsageSum> = Vec::new();
    for (name, step, bucket, calls, errors, refused, spent, took) in rows {
        let hour = step.saturating_mul(query.step_hours);
        let added = UsageTotals::from_row([calls, errors, refused, spent, took]);
        match sums.last_mut() {
            Some(sum) if sum.name == name && sum.hour == hour => {
                sum.totals.add_bucket(bucket, &added);
            }
            _ => {
                let mut totals = UsageTotals::default();
                totals.add_bucket(bucket, &added);
                sums.push(UsageSum { name, hour, totals });
            }
        }
    }
    let next = has_more.then(|| last.clone());
    Ok(UsageAnswer { sums, next })
}
