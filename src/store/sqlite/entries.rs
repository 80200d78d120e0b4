//! Entries of the config in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sqlx::{FromRow, Transaction};

use super::{
    Sqlite, begin, from_time,
    mac::{ColumnValue, MacRow},
    to_time,
};
use crate::{
    config::{ConfigEntry, EntryKey, EntrySection},
    store::{
        EntryStore, EntryWrite, RefusedRow, RowFault, RowKind, StoreError, StoredEntry, StoredRows,
    },
};

/// A row. Texts are bytes, since whoever forges one need not write UTF-8.
#[derive(Debug, FromRow)]
struct EntryRow {
    #[sqlx(skip)]
    id: Vec<u8>,
    section: Vec<u8>,
    name: Vec<u8>,
    document: Vec<u8>,
    created_ms: i64,
    changed_ms: i64,
    mac: Vec<u8>,
}

impl EntryRow {
    fn of(entry: &ConfigEntry, created_ms: i64, changed_ms: i64) -> Self {
        let EntryKey { section, name } = &entry.key;
        Self {
            id: Vec::new(),
            section: section.as_str().into(),
            name: name.clone().into_bytes(),
            document: entry.document.clone().into_bytes(),
            created_ms,
            changed_ms,
            mac: Vec::new(),
        }
        .with_id()
    }

    /// No section has a `/`, so that no two rows have one id.
    fn with_id(mut self) -> Self {
        self.id = [&*self.section, b"/", &*self.name].concat();
        self
    }
}

impl MacRow for EntryRow {
    const TABLE: &'static str = "config_entries";

    fn id(&self) -> &[u8] {
        &self.id
    }

    fn changed_ms(&self) -> i64 {
        self.changed_ms
    }

    fn mac(&self) -> Option<&[u8]> {
        Some(&self.mac)
    }

    fn values(&self) -> Vec<ColumnValue<'_>> {
        vec![self.document.as_slice().into(), self.created_ms.into()]
    }

    fn to_refused(&self, why: RowFault) -> RefusedRow {
        RefusedRow::new(RowKind::ConfigEntry, &self.section, &self.name, why)
    }
}

impl EntryStore for Sqlite {
    fn add<'a>(
        &'a self,
        entry: &'a ConfigEntry,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<Timestamp, StoreError>> {
        Box::pin(async move {
            let row = EntryRow::of(entry, from_time(at), from_time(at));
            let done = sqlx::query(
                "INSERT INTO config_entries (section, name, document, created_ms, changed_ms, mac) \
                 VALUES (?, ?, ?, ?, ?, ?)",
            )
            .bind(entry.key.section.as_str())
            .bind(&entry.key.name)
            .bind(&entry.document)
            .bind(row.created_ms)
            .bind(row.changed_ms)
            .bind(self.signer.sign(&row).as_slice())
            .execute(&self.durable)
            .await;
            match done {
                Ok(_) => Ok(to_time(row.changed_ms)),
                Err(error) if is_taken(&error) => Err(StoreError::EntryExists {
                    entry: entry.key.clone(),
                }),
                Err(error) => Err(self.map_error("adding an entry of the config", error)),
            }
        })
    }

    fn replace<'a>(
        &'a self,
        entry: &'a ConfigEntry,
        expected: Option<Timestamp>,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("changing an entry of the config", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let (created_ms, changed_ms) = match checked_version(&mut tx, &entry.key, expected)
                .await
                .map_err(failed)?
            {
                Ok(times) => times,
                Err(outcome) => return Ok(outcome),
            };
            let now = from_time(at).max(changed_ms.saturating_add(1));
            let row = EntryRow::of(entry, created_ms, now);
            sqlx::query(
                "UPDATE config_entries SET document = ?, changed_ms = ?, mac = ? \
                 WHERE section = ? AND name = ?",
            )
            .bind(&entry.document)
            .bind(now)
            .bind(self.signer.sign(&row).as_slice())
            .bind(entry.key.section.as_str())
            .bind(&entry.key.name)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(EntryWrite::Done(to_time(now)))
        })
    }

    fn remove<'a>(
        &'a self,
        key: &'a EntryKey,
        expected: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing an entry of the config", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let checked = checked_version(&mut tx, key, expected).await;
            let (_, changed_ms) = match checked.map_err(failed)? {
                Ok(times) => times,
                Err(outcome) => return Ok(outcome),
            };
            sqlx::query("DELETE FROM config_entries WHERE section = ? AND name = ?")
                .bind(key.section.as_str())
                .bind(&key.name)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(EntryWrite::Done(to_time(changed_ms)))
        })
    }

    fn entries(&self) -> BoxFuture<'_, Result<StoredRows<StoredEntry>, StoreError>> {
        Box::pin(async move {
            let read = async {
                let rows = sqlx::query_as::<_, EntryRow>(
                    "SELECT * FROM config_entries ORDER BY section, name",
                );
                let rows = rows.fetch_all(&self.reader).await;
                let rows =
                    rows.map_err(|error| self.map_error("reading entries of the config", error))?;
                Ok(rows.into_iter().map(EntryRow::with_id).collect())
            };
            self.signer
                .verified_rows(read, |row| self.entry_of(row))
                .await
        })
    }
}

/// When the entry `key` was made and last changed, where it has still the version `expected`; else what becomes of
/// a change to it.
async fn checked_version(
    tx: &mut Transaction<'_, sqlx::Sqlite>,
    key: &EntryKey,
    expected: Option<Timestamp>,
) -> Result<Result<(i64, i64), EntryWrite>, sqlx::Error> {
    let found: Option<(i64, i64)> = sqlx::query_as(
        "SELECT created_ms, changed_ms FROM config_entries WHERE section = ? AND name = ?",
    )
    .bind(key.section.as_str())
    .bind(&key.name)
    .fetch_optional(&mut **tx)
    .await?;
    Ok(match found {
        None => Err(EntryWrite::Missing),
        Some((_, changed)) if expected.is_some_and(|at| from_time(at) != changed) => {
            Err(EntryWrite::Conflict(to_time(changed)))
        }
        Some(times) => Ok(times),
    })
}

fn is_taken(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

impl Sqlite {
    fn entry_of(&self, row: EntryRow) -> Result<StoredEntry, StoreError> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let section = text(row.section);
        let parsed = EntrySection::parse(&section);
        let section = parsed.ok_or_else(|| {
            self.undecodable(
                "an entry of the config".to_owned(),
                format!("section `{section}`"),
            )
        })?;
        Ok(StoredEntry {
            entry: ConfigEntry {
                key: EntryKey::new(section, text(row.name)),
                document: text(row.document),
            },
            created: to_time(row.created_ms),
            changed: to_time(row.changed_ms),
        })
    }
}
