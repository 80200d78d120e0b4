//! API keys in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sqlx::{FromRow, SqliteConnection};

use super::{
    Sqlite, begin, from_time,
    mac::{ColumnValue, MacRow, Signer},
    to_time, to_uuid,
};
use crate::{
    clock,
    names::AgentId,
    store::{
        KeyHash, KeyId, KeyStore, RefusedRow, RowFault, RowKind, StoreError, StoredKey, StoredRows,
    },
};

/// A row. Texts are bytes, since whoever forges one need not write UTF-8.
#[derive(Debug, FromRow)]
struct KeyRow {
    id: Vec<u8>,
    agent: Vec<u8>,
    hash: Vec<u8>,
    prefix: Vec<u8>,
    created_ms: i64,
    expires_ms: Option<i64>,
    revoked_ms: Option<i64>,
    /// The MAC leaves it out: it is written every minute, and nothing depends on it.
    last_used_ms: Option<i64>,
    changed_ms: i64,
    mac: Option<Vec<u8>>,
}

impl MacRow for KeyRow {
    const TABLE: &'static str = "keys";

    fn id(&self) -> &[u8] {
        &self.id
    }

    fn changed_ms(&self) -> i64 {
        self.changed_ms
    }

    fn mac(&self) -> Option<&[u8]> {
        self.mac.as_deref()
    }

    fn values(&self) -> Vec<ColumnValue<'_>> {
        vec![
            self.agent.as_slice().into(),
            self.hash.as_slice().into(),
            self.prefix.as_slice().into(),
            self.created_ms.into(),
            self.expires_ms.into(),
            self.revoked_ms.into(),
        ]
    }

    fn to_refused(&self, why: RowFault) -> RefusedRow {
        let agent = AgentId(to_uuid(&self.agent)).to_string();
        RefusedRow::new(RowKind::Key, &self.id, agent.as_bytes(), why)
    }
}

impl KeyStore for Sqlite {
    fn add<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let row = KeyRow {
                id: key.id.as_str().into(),
                agent: key.agent.0.as_bytes().to_vec(),
                hash: key.hash.0.to_vec(),
                prefix: key.prefix.clone().into_bytes(),
                created_ms: from_time(key.created),
                expires_ms: key.expires.map(from_time),
                revoked_ms: key.revoked.map(from_time),
                last_used_ms: key.last_used.map(from_time),
                changed_ms: from_time(clock::now()),
                mac: None,
            };
            sqlx::query(
                "INSERT INTO keys (id, agent, hash, prefix, created_ms, expires_ms, revoked_ms, \
                 last_used_ms, changed_ms, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(key.id.as_str())
            .bind(&row.agent)
            .bind(&row.hash)
            .bind(&key.prefix)
            .bind(row.created_ms)
            .bind(row.expires_ms)
            .bind(row.revoked_ms)
            .bind(row.last_used_ms)
            .bind(row.changed_ms)
            .bind(self.signer.sign(&row).as_slice())
            .execute(&self.durable)
            .await
            .map_err(|error| self.map_error("adding a key", error))?;
            Ok(())
        })
    }

    fn keys(&self) -> BoxFuture<'_, Result<StoredRows<StoredKey>, StoreError>> {
        Box::pin(async move {
            let read = async {
                let rows =
                    sqlx::query_as::<_, KeyRow>("SELECT * FROM keys ORDER BY created_ms, id");
                let rows = rows.fetch_all(&self.reader).await;
                rows.map_err(|error| self.map_error("reading keys", error))
            };
            self.signer
                .verified_rows(read, |row| self.key_of(&row))
                .await
        })
    }

    fn keys_of(&self, agent: AgentId) -> BoxFuture<'_, Result<StoredRows<StoredKey>, StoreError>> {
        Box::pin(async move {
            let read = async {
                let rows =
                    sqlx::query_as::<_, KeyRow>("SELECT * FROM keys WHERE agent = ? ORDER BY id")
                        .bind(agent.0.as_bytes().to_vec())
                        .fetch_all(&self.reader);
                rows.await
                    .map_err(|error| self.map_error("reading keys", error))
            };
            self.signer
                .verified_part(read, |row| self.key_of(&row))
                .await
        })
    }

    fn revoke<'a>(
        &'a self,
        id: &'a KeyId,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("revoking a key", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let found = sqlx::query_as::<_, KeyRow>(
                "SELECT * FROM keys WHERE id = ? AND revoked_ms IS NULL",
            )
            .bind(id.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed)?;
            let Some(mut row) = found else {
                return Ok(false);
            };
            row.revoked_ms = Some(from_time(at));
            row.changed_ms = from_time(clock::now()).max(row.changed_ms.saturating_add(1));
            sqlx::query("UPDATE keys SET revoked_ms = ?, changed_ms = ?, mac = ? WHERE id = ?")
                .bind(row.revoked_ms)
                .bind(row.changed_ms)
                .bind(self.signer.sign(&row).as_slice())
                .bind(id.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            sqlx::query("DELETE FROM sessions WHERE agent = ?")
                .bind(&row.agent)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(true)
        })
    }

    fn touch<'a>(
        &'a self,
        seen: &'a [(KeyId, Timestamp)],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("recording key usage", error);
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

impl Sqlite {
    fn key_of(&self, row: &KeyRow) -> Result<StoredKey, StoreError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let id = text(&row.id);
        let hash = <[u8; 32]>::try_from(row.hash.as_slice());
        Ok(StoredKey {
            hash: KeyHash(hash.map_err(|_| {
                self.undecodable(
                    format!("the hash of the key {id}"),
                    "it is not 32 bytes long",
                )
            })?),
            agent: AgentId(to_uuid(&row.agent)),
            prefix: text(&row.prefix),
            created: to_time(row.created_ms),
            expires: row.expires_ms.map(to_time),
            revoked: row.revoked_ms.map(to_time),
            last_used: row.last_used_ms.map(to_time),
            id: KeyId::new(&id),
        })
    }
}

/// Gives every row that is there its MAC.
pub(super) async fn sign_all(
    signer: &Signer,
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    let read = sqlx::query_as::<_, KeyRow>("SELECT * FROM keys");
    for row in read.fetch_all(&mut *db).await? {
        sqlx::query("UPDATE keys SET mac = ? WHERE CAST(id AS BLOB) = ?")
            .bind(signer.sign(&row).as_slice())
            .bind(&row.id)
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}
