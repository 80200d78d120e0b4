//! Sessions of clients in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{Sqlite, begin, from_time, to_time, to_uuid};
use crate::{
    names::AgentId,
    store::{SessionHash, SessionStore, StoreError, StoredSession},
};

impl SessionStore for Sqlite {
    fn put<'a>(&'a self, sessions: &'a [StoredSession]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("keeping sessions", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for session in sessions {
                sqlx::query(
                    "INSERT INTO sessions (id, agent, used_ms, body) VALUES (?, ?, ?, ?) \
                     ON CONFLICT DO UPDATE SET agent = excluded.agent, \
                     used_ms = max(used_ms, excluded.used_ms), body = excluded.body",
                )
                .bind(session.id.0.as_slice())
                .bind(session.agent.0.as_bytes().as_slice())
                .bind(from_time(session.used))
                .bind(&session.body)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }

    fn session(&self, id: SessionHash) -> BoxFuture<'_, Result<Option<StoredSession>, StoreError>> {
        Box::pin(async move {
            let row: Option<(Vec<u8>, i64, String)> =
                sqlx::query_as("SELECT agent, used_ms, body FROM sessions WHERE id = ?")
                    .bind(id.0.as_slice())
                    .fetch_optional(&self.reader)
                    .await
                    .map_err(|error| self.map_error("reading a session", error))?;
            Ok(row.map(|(agent, used, body)| StoredSession {
                id,
                agent: AgentId(to_uuid(&agent)),
                used: to_time(used),
                body,
            }))
        })
    }

    fn touch<'a>(
        &'a self,
        used: &'a [(SessionHash, Timestamp)],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("recording session usage", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for (id, at) in used {
                sqlx::query("UPDATE sessions SET used_ms = max(used_ms, ?) WHERE id = ?")
                    .bind(from_time(*at))
                    .bind(id.0.as_slice())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }

    fn remove<'a>(&'a self, ids: &'a [SessionHash]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing sessions", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for id in ids {
                sqlx::query("DELETE FROM sessions WHERE id = ?")
                    .bind(id.0.as_slice())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }

    fn trim(&self, time: Timestamp, per_agent_max: usize) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "DELETE FROM sessions WHERE used_ms < ?1 OR id IN (SELECT id FROM (SELECT id, \
                 row_number() OVER (PARTITION BY agent ORDER BY used_ms DESC, id) AS place \
                 FROM sessions) WHERE place > ?2)",
            )
            .bind(from_time(time))
            .bind(i64::try_from(per_agent_max).unwrap_or(i64::MAX))
            .execute(&self.relaxed)
            .await
            .map_err(|error| self.map_error("trimming sessions", error))?;
            Ok(())
        })
    }
}
