//! Secrets in SQLite.

use futures_util::future::BoxFuture;

use super::Sqlite;
use crate::store::{Secrets, StoreError, secrets::Secret};

impl Secrets for Sqlite {
    fn secret<'a>(
        &'a self,
        name: &'a str,
        fresh: Secret,
    ) -> BoxFuture<'a, Result<Secret, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("keeping a secret", error);
            // Another gateway may keep its own in the same moment: the first one holds.
            sqlx::query("INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING")
                .bind(name)
                .bind(fresh.as_slice())
                .execute(&self.durable)
                .await
                .map_err(failed)?;
            let (value,): (Vec<u8>,) = sqlx::query_as("SELECT value FROM secrets WHERE name = ?")
                .bind(name)
                .fetch_one(&self.reader)
                .await
                .map_err(failed)?;
            Secret::try_from(value).map_err(|value| StoreError::Corrupt {
                path: self.path.clone(),
                detail: format!("a secret has {} bytes", value.len()),
            })
        })
    }
}
