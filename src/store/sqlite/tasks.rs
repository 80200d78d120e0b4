//! Whose tasks are, in SQLite.

use futures_util::future::BoxFuture;

use super::{Sqlite, begin, from_time};
use crate::{
    names::{AgentId, ServerName},
    store::{SameId, StoreError, StoredTask, TaskHash, TaskOwners},
};

impl TaskOwners for Sqlite {
    fn give<'a>(
        &'a self,
        task: &'a StoredTask,
        same_id: SameId,
        per_agent_max: usize,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("keeping whose a task is", error);
            let agent = task.agent.0.as_bytes().as_slice();
            // Whose a task was before a power cut must not be whose it is after it.
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            if same_id == SameId::Replaced {
                sqlx::query("DELETE FROM tasks WHERE server = ? AND id = ?")
                    .bind(task.server.as_str())
                    .bind(task.id.0.as_slice())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            sqlx::query(
                "INSERT INTO tasks (server, id, agent, given_ms) VALUES (?, ?, ?, ?) \
                 ON CONFLICT DO UPDATE SET given_ms = excluded.given_ms",
            )
            .bind(task.server.as_str())
            .bind(task.id.0.as_slice())
            .bind(agent)
            .bind(from_time(task.given))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            let forgotten = sqlx::query(
                "DELETE FROM tasks WHERE agent = ?1 AND (server, id) IN (SELECT server, id \
                 FROM tasks WHERE agent = ?1 ORDER BY given_ms DESC LIMIT -1 OFFSET ?2)",
            )
            .bind(agent)
            .bind(i64::try_from(per_agent_max).unwrap_or(i64::MAX))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(forgotten.rows_affected())
        })
    }

    fn is_of<'a>(
        &'a self,
        agent: AgentId,
        server: &'a ServerName,
        id: TaskHash,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let found: Option<(i64,)> = sqlx::query_as(
                "SELECT given_ms FROM tasks WHERE server = ? AND id = ? AND agent = ?",
            )
            .bind(server.as_str())
            .bind(id.0.as_slice())
            .bind(agent.0.as_bytes().as_slice())
            .fetch_optional(&self.reader)
            .await
            .map_err(|error| self.failed("reading whose a task is", error))?;
            Ok(found.is_some())
        })
    }
}
