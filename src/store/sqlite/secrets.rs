//! Secrets in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sqlx::{Executor, Transaction};

use super::{Sqlite, begin, from_time, to_time};
use crate::{
    names::SecretName,
    store::{
        GRANTS_PURPOSE, KeyFingerprint, SECRETS_PURPOSE, SecretStore, StoreError, StoredSecret,
    },
};

impl SecretStore for Sqlite {
    fn set<'a>(
        &'a self,
        name: &'a SecretName,
        sealed: &'a [u8],
        at: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO secrets (name, sealed, created_ms, changed_ms) VALUES (?1, ?2, ?3, ?3) \
                 ON CONFLICT DO UPDATE SET sealed = excluded.sealed, changed_ms = excluded.changed_ms",
            )
            .bind(name.as_str())
            .bind(sealed)
            .bind(from_time(at))
            .execute(&self.durable)
            .await
            .map_err(|error| self.map_error("setting a secret", error))?;
            Ok(())
        })
    }

    fn secrets(&self) -> BoxFuture<'_, Result<Vec<StoredSecret>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<(String, i64, i64)> =
                sqlx::query_as("SELECT name, created_ms, changed_ms FROM secrets ORDER BY name")
                    .fetch_all(&self.reader)
                    .await
                    .map_err(|error| self.map_error("reading secrets", error))?;
            rows.into_iter()
                .map(|(name, created, changed)| {
                    Ok(StoredSecret {
                        name: SecretName::parse(&name)
                            .map_err(|error| self.undecodable("a secret".to_owned(), error))?,
                        created: to_time(created),
                        changed: to_time(changed),
                    })
                })
                .collect()
        })
    }

    fn sealed<'a>(
        &'a self,
        name: &'a SecretName,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(async move {
            sqlx::query_scalar("SELECT sealed FROM secrets WHERE name = ?")
                .bind(name.as_str())
                .fetch_optional(&self.reader)
                .await
                .map_err(|error| self.map_error("reading a secret", error))
        })
    }

    fn remove<'a>(&'a self, name: &'a SecretName) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing a secret", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let removed = sqlx::query("DELETE FROM secrets WHERE name = ?")
                .bind(name.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            forget_unused_key(&mut tx).await.map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(removed.rows_affected() > 0)
        })
    }

    fn claim_key<'a>(
        &'a self,
        purpose: &'a str,
        key: &'a KeyFingerprint,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<KeyFingerprint, StoreError>> {
        Box::pin(async move {
            if let Some(kept) = self.key_of(purpose).await?
                && kept == *key
            {
                return Ok(kept);
            }
            let failed = |error| self.map_error("recording which key seals", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            forget_unused_key(&mut tx).await.map_err(failed)?;
            if purpose == GRANTS_PURPOSE {
                forget_unused_grant_key(&mut tx).await.map_err(failed)?;
            }
            sqlx::query(
                "INSERT INTO sealing_keys (purpose, fingerprint, place, since_ms) \
                 VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            )
            .bind(purpose)
            .bind(key.bytes.as_slice())
            .bind(&key.place)
            .bind(from_time(at))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            let kept = self.read_key(purpose, &mut *tx).await?;
            tx.commit().await.map_err(failed)?;
            Ok(kept.unwrap_or_else(|| key.clone()))
        })
    }

    fn key_of<'a>(
        &'a self,
        purpose: &'a str,
    ) -> BoxFuture<'a, Result<Option<KeyFingerprint>, StoreError>> {
        Box::pin(self.read_key(purpose, &self.reader))
    }
}

/// Removes the mark of the key of secrets where there are none.
async fn forget_unused_key(tx: &mut Transaction<'_, sqlx::Sqlite>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE FROM sealing_keys WHERE purpose = ? AND NOT EXISTS (SELECT * FROM secrets)",
    )
    .bind(SECRETS_PURPOSE)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Removes the mark of the key of grants where there are none, for another key. What else it has sealed nobody can
/// open then.
async fn forget_unused_grant_key(
    tx: &mut Transaction<'_, sqlx::Sqlite>,
) -> Result<(), sqlx::Error> {
    let forgotten = sqlx::query(
        "DELETE FROM sealing_keys WHERE purpose = ? AND NOT EXISTS (SELECT * FROM grants)",
    )
    .bind(GRANTS_PURPOSE)
    .execute(&mut **tx)
    .await?;
    if forgotten.rows_affected() == 0 {
        return Ok(());
    }
    let notes = sqlx::query("DELETE FROM grant_notes")
        .execute(&mut **tx)
        .await?;
    tracing::warn!(
        notes = notes.rows_affected(),
        "another key seals grants from now on; there are none. What was known of authorization servers is forgotten, \
         also the clients that they registered"
    );
    Ok(())
}

impl Sqlite {
    async fn read_key<'c>(
        &self,
        purpose: &str,
        from: impl Executor<'c, Database = sqlx::Sqlite>,
    ) -> Result<Option<KeyFingerprint>, StoreError> {
        let row: Option<(Vec<u8>, String)> =
            sqlx::query_as("SELECT fingerprint, place FROM sealing_keys WHERE purpose = ?")
                .bind(purpose)
                .fetch_optional(from)
                .await
                .map_err(|error| self.map_error("reading which key seals", error))?;
        row.map(|(bytes, place)| {
            let bytes = <[u8; 16]>::try_from(bytes)
                .map_err(|_| self.undecodable("the mark of a key".to_owned(), "its length"))?;
            Ok(KeyFingerprint { bytes, place })
        })
        .transpose()
    }
}
