//! API keys in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sqlx::{Row, sqlite::SqliteRow};

use super::{Sqlite, begin, from_time, to_time, to_uuid};
use crate::{
    names::AgentId,
    store::{KeyHash, KeyId, Keys, StoreError, StoredKey},
};

impl Keys for Sqlite {
    fn add<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO keys (id, agent, hash, prefix, created_ms, expires_ms, revoked_ms, \
                 last_used_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(key.id.as_str())
            .bind(key.agent.0.as_bytes().as_slice())
            .bind(key.hash.0.as_slice())
            .bind(&key.prefix)
            .bind(from_time(key.created))
            .bind(key.expires.map(from_time))
            .bind(key.revoked.map(from_time))
            .bind(key.last_used.map(from_time))
            .execute(&self.durable)
            .await
            .map_err(|error| self.failed("adding a key", error))?;
            Ok(())
        })
    }

    fn by_hash(&self, hash: KeyHash) -> BoxFuture<'_, Result<Option<StoredKey>, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("reading a key", error);
            let row = sqlx::query("SELECT * FROM keys WHERE hash = ?")
                .bind(hash.0.as_slice())
                .fetch_optional(&self.reader)
                .await
                .map_err(failed)?;
            row.map(|row| key_of(&row)).transpose().map_err(failed)
        })
    }

    fn keys(&self) -> BoxFuture<'_, Result<Vec<StoredKey>, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("reading keys", error);
            let rows = sqlx::query("SELECT * FROM keys ORDER BY created_ms, id")
                .fetch_all(&self.reader)
                .await
                .map_err(failed)?;
            let keys = rows.iter().map(key_of).collect::<Result<_, _>>();
            keys.map_err(failed)
        })
    }

    fn revoke<'a>(
        &'a self,
        id: &'a KeyId,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("revoking a key", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let done =
                sqlx::query("UPDATE keys SET revoked_ms = ? WHERE id = ? AND revoked_ms IS NULL")
                    .bind(from_time(at))
                    .bind(id.as_str())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            let is_new = done.rows_affected() > 0;
            if is_new {
                sqlx::query(
                    "DELETE FROM sessions WHERE agent = (SELECT agent FROM keys WHERE id = ?)",
                )
                .bind(id.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)?;
            Ok(is_new)
        })
    }

    fn touch<'a>(
        &'a self,
        seen: &'a [(KeyId, Timestamp)],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("noting the use of keys", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for (id, at) in seen {
                sqlx::query(
                    "UPDATE keys SET last_used_ms = max(coalesce(last_used_ms, ?1), ?1) \
                     WHERE id = ?2",
                )
                .bind(from_time(*at))
                .bind(id.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }
}

fn key_of(row: &SqliteRow) -> Result<StoredKey, sqlx::Error> {
    let hash: Vec<u8> = row.try_get("hash")?;
    let hash = <[u8; 32]>::try_from(hash).map_err(|_| sqlx::Error::ColumnDecode {
        index: "hash".to_owned(),
        source: "a hash has 32 bytes".into(),
    })?;
    let time = |column| row.try_get::<Option<i64>, _>(column);
    Ok(StoredKey {
        id: KeyId::new(row.try_get("id")?),
        agent: AgentId(to_uuid(row.try_get("agent")?)),
        hash: KeyHash(hash),
        prefix: row.try_get("prefix")?,
        created: to_time(row.try_get("created_ms")?),
        expires: time("expires_ms")?.map(to_time),
        revoked: time("revoked_ms")?.map(to_time),
        last_used: time("last_used_ms")?.map(to_time),
    })
}
