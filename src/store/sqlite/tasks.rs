//! Whose tasks are, in SQLite.

use std::collections::HashSet;

use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Sqlite as Db, SqliteConnection};

use super::{Sqlite, begin, from_time};
use crate::{
    names::{AgentId, ServerName, TaskHash},
    store::{StoreError, StoredTask, TaskClaim, TaskIdScope, TaskOwners},
};

/// Tasks that are looked up at once: each is a parameter of the query, of which there may be so many.
const IDS_PER_QUERY: usize = 1000;

/// Stands for the agent of a task that is nobody's: ids of agents have 16 bytes.
const REVOKED_OWNER: &[u8] = &[];

impl TaskOwners for Sqlite {
    fn claim<'a>(
        &'a self,
        task: &'a StoredTask,
        same_id: TaskIdScope,
        per_agent_max: usize,
    ) -> BoxFuture<'a, Result<TaskClaim, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("storing a task owner", error);
            // Whose a task was before a power cut must not be whose it is after it.
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let is_contested = same_id == TaskIdScope::Shared
                && is_owned_by_other(task, &mut tx).await.map_err(failed)?;
            let owner = if is_contested {
                remove(task, &mut tx).await.map_err(failed)?;
                REVOKED_OWNER
            } else {
                task.agent.0.as_bytes().as_slice()
            };
            insert_owner(task, owner, &mut tx).await.map_err(failed)?;
            let forgotten = remove_oldest(owner, per_agent_max, &mut tx).await;
            let forgotten = forgotten.map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(if is_contested {
                TaskClaim::Contested
            } else {
                TaskClaim::Claimed(forgotten)
            })
        })
    }

    fn owned_by<'a>(
        &'a self,
        agent: AgentId,
        server: &'a ServerName,
        ids: &'a [TaskHash],
    ) -> BoxFuture<'a, Result<HashSet<TaskHash>, StoreError>> {
        Box::pin(async move {
            let mut own = HashSet::new();
            for ids in ids.chunks(IDS_PER_QUERY) {
                let found = self.owned_of_batch(agent, server, ids).await;
                let found = found.map_err(|error| self.map_error("reading task owners", error))?;
                own.extend(found);
            }
            Ok(own)
        })
    }
}

impl Sqlite {
    async fn owned_of_batch(
        &self,
        agent: AgentId,
        server: &ServerName,
        ids: &[TaskHash],
    ) -> Result<impl Iterator<Item = TaskHash>, sqlx::Error> {
        let mut query = QueryBuilder::<Db>::new("SELECT id FROM tasks WHERE server = ");
        query.push_bind(server.as_str());
        query
            .push(" AND agent = ")
            .push_bind(agent.0.as_bytes().as_slice());
        query.push(" AND id IN (");
        let mut listed = query.separated(", ");
        for id in ids {
            listed.push_bind(id.0.as_slice());
        }
        query.push(")");
        let found: Vec<(Vec<u8>,)> = query.build_query_as().fetch_all(&self.reader).await?;
        // What is no hash is none that was asked for.
        let hashes = found
            .into_iter()
            .filter_map(|(id,)| id.try_into().ok().map(TaskHash));
        Ok(hashes)
    }
}

/// Whether anybody but its agent was given the task, or it is nobody's.
async fn is_owned_by_other(
    task: &StoredTask,
    db: &mut SqliteConnection,
) -> Result<bool, sqlx::Error> {
    let other: Option<(i64,)> = sqlx::query_as(
        "SELECT given_ms FROM tasks WHERE server = ? AND id = ? AND agent <> ? LIMIT 1",
    )
    .bind(task.server.as_str())
    .bind(task.id.0.as_slice())
    .bind(task.agent.0.as_bytes().as_slice())
    .fetch_optional(db)
    .await?;
    Ok(other.is_some())
}

async fn remove(task: &StoredTask, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let query = sqlx::query("DELETE FROM tasks WHERE server = ? AND id = ?");
    let query = query.bind(task.server.as_str()).bind(task.id.0.as_slice());
    query.execute(db).await.map(drop)
}

async fn insert_owner(
    task: &StoredTask,
    owner: &[u8],
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO tasks (server, id, agent, given_ms) VALUES (?, ?, ?, ?) \
         ON CONFLICT DO UPDATE SET given_ms = excluded.given_ms",
    )
    .bind(task.server.as_str())
    .bind(task.id.0.as_slice())
    .bind(owner)
    .bind(from_time(task.claimed))
    .execute(db)
    .await
    .map(drop)
}

/// Forgets all but the last `kept_max`; how many.
async fn remove_oldest(
    owner: &[u8],
    kept_max: usize,
    db: &mut SqliteConnection,
) -> Result<u64, sqlx::Error> {
    let forgotten = sqlx::query(
        "DELETE FROM tasks WHERE agent = ?1 AND (server, id) IN (SELECT server, id \
         FROM tasks WHERE agent = ?1 ORDER BY given_ms DESC LIMIT -1 OFFSET ?2)",
    )
    .bind(owner)
    .bind(i64::try_from(kept_max).unwrap_or(i64::MAX))
    .execute(db)
    .await?;
    Ok(forgotten.rows_affected())
}
