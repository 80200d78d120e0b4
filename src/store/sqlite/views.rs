//! Views in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sqlx::{FromRow, Transaction};

use super::{Sqlite, begin, from_time, to_time, to_uuid};
use crate::{
    names::{AgentId, ViewId},
    store::{EntryWrite, StoreError, StoredView, ViewStore},
};

#[derive(Debug, FromRow)]
struct ViewRow {
    id: Vec<u8>,
    agent: Vec<u8>,
    document: String,
    created_ms: i64,
    expires_ms: i64,
    changed_ms: i64,
}

impl From<ViewRow> for StoredView {
    fn from(row: ViewRow) -> Self {
        Self {
            id: ViewId(to_uuid(&row.id)),
            agent: AgentId(to_uuid(&row.agent)),
            document: row.document,
            created: to_time(row.created_ms),
            expires: to_time(row.expires_ms),
            changed: to_time(row.changed_ms),
        }
    }
}

impl ViewStore for Sqlite {
    fn add<'a>(
        &'a self,
        view: &'a StoredView,
        per_agent_max: usize,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let done = sqlx::query(
                "INSERT INTO views (id, agent, document, created_ms, expires_ms, changed_ms) \
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE \
                 (SELECT count(*) FROM views WHERE agent = ?2 AND expires_ms > ?4) < ?7",
            )
            .bind(view.id.0.as_bytes().as_slice())
            .bind(view.agent.0.as_bytes().as_slice())
            .bind(&view.document)
            .bind(from_time(view.created))
            .bind(from_time(view.expires))
            .bind(from_time(view.changed))
            .bind(i64::try_from(per_agent_max).unwrap_or(i64::MAX))
            .execute(&self.durable)
            .await;
            let done = done.map_err(|error| self.map_error("adding a view", error))?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn replace<'a>(
        &'a self,
        view: &'a StoredView,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("changing a view", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let checked = checked_version(&mut tx, view.id, view.changed).await;
            if let Err(outcome) = checked.map_err(failed)? {
                return Ok(outcome);
            }
            let now = from_time(at).max(from_time(view.changed).saturating_add(1));
            sqlx::query(
                "UPDATE views SET document = ?, expires_ms = ?, changed_ms = ? WHERE id = ?",
            )
            .bind(&view.document)
            .bind(from_time(view.expires))
            .bind(now)
            .bind(view.id.0.as_bytes().as_slice())
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(EntryWrite::Done(to_time(now)))
        })
    }

    fn remove(
        &self,
        id: ViewId,
        expected: Timestamp,
    ) -> BoxFuture<'_, Result<EntryWrite, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing a view", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let checked = checked_version(&mut tx, id, expected).await;
            if let Err(outcome) = checked.map_err(failed)? {
                return Ok(outcome);
            }
            sqlx::query("DELETE FROM views WHERE id = ?")
                .bind(id.0.as_bytes().as_slice())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(EntryWrite::Done(expected))
        })
    }

    fn remove_expired(&self, now: Timestamp) -> BoxFuture<'_, Result<Vec<StoredView>, StoreError>> {
        Box::pin(async move {
            let rows =
                sqlx::query_as::<_, ViewRow>("DELETE FROM views WHERE expires_ms <= ? RETURNING *")
                    .bind(from_time(now))
                    .fetch_all(&self.durable)
                    .await;
            let rows = rows.map_err(|error| self.map_error("removing expired views", error))?;
            Ok(rows.into_iter().map(StoredView::from).collect())
        })
    }

    fn views(&self) -> BoxFuture<'_, Result<Vec<StoredView>, StoreError>> {
        Box::pin(async move {
            let rows = sqlx::query_as::<_, ViewRow>("SELECT * FROM views");
            let rows = rows.fetch_all(&self.reader).await;
            let rows = rows.map_err(|error| self.map_error("reading views", error))?;
            Ok(rows.into_iter().map(StoredView::from).collect())
        })
    }
}

/// Whether the view `id` has still the version `expected`; else what becomes of a change to it.
async fn checked_version(
    tx: &mut Transaction<'_, sqlx::Sqlite>,
    id: ViewId,
    expected: Timestamp,
) -> Result<Result<(), EntryWrite>, sqlx::Error> {
    let found: Option<i64> = sqlx::query_scalar("SELECT changed_ms FROM views WHERE id = ?")
        .bind(id.0.as_bytes().as_slice())
        .fetch_optional(&mut **tx)
        .await?;
    Ok(match found {
        None => Err(EntryWrite::Missing),
        Some(changed) if changed != from_time(expected) => {
            Err(EntryWrite::Conflict(to_time(changed)))
        }
        Some(_) => Ok(()),
    })
}
