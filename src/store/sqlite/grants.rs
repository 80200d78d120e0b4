//! Grants towards servers in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{Sqlite, begin, from_time, to_time, to_uuid};
use crate::{
    names::AgentId,
    store::{GrantKey, GrantNote, GrantOwner, GrantState, GrantStore, StoreError, StoredGrant},
};

/// The columns of a grant, in the order of [`GrantRow`].
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT resource, issuer, owner, state, scopes, granted_ms, refreshed_ms, expires_ms, sealed \
             FROM grants ",
            $rest
        )
    };
}

type GrantRow = (
    String,
    String,
    Vec<u8>,
    String,
    String,
    i64,
    i64,
    Option<i64>,
    Vec<u8>,
);

impl GrantStore for Sqlite {
    fn put_grant<'a>(&'a self, grant: &'a StoredGrant) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let state = match grant.state {
                GrantState::Active => "active",
                GrantState::Rejected => "rejected",
            };
            sqlx::query("INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")
                .bind(&grant.key.resource)
                .bind(&grant.key.issuer)
                .bind(owner_column(grant.key.owner))
                .bind(state)
                .bind(&grant.scopes)
                .bind(from_time(grant.granted))
                .bind(from_time(grant.refreshed))
                .bind(grant.expires.map(from_time))
                .bind(&grant.sealed)
                .execute(&self.durable)
                .await
                .map_err(|error| self.map_error("keeping a grant", error))?;
            Ok(())
        })
    }

    fn grants<'a>(
        &'a self,
        resource: &'a str,
        owner: GrantOwner,
    ) -> BoxFuture<'a, Result<Vec<StoredGrant>, StoreError>> {
        Box::pin(async move {
            let query = select!("WHERE resource = ? AND owner = ? ORDER BY refreshed_ms DESC");
            let rows: Vec<GrantRow> = sqlx::query_as(query)
                .bind(resource)
                .bind(owner_column(owner))
                .fetch_all(&self.reader)
                .await
                .map_err(|error| self.map_error("reading grants", error))?;
            Ok(rows.into_iter().map(from_row).collect())
        })
    }

    fn first_owner<'a>(
        &'a self,
        resource: &'a str,
        issuer: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Option<GrantOwner>, StoreError>> {
        Box::pin(async move {
            let owner: Option<Vec<u8>> = sqlx::query_scalar(
                "SELECT owner FROM grants WHERE resource = ?1 AND state = 'active' \
                 AND (?2 IS NULL OR rtrim(issuer, '/') = rtrim(?2, '/')) \
                 ORDER BY owner <> ?3, granted_ms LIMIT 1",
            )
            .bind(resource)
            .bind(issuer)
            .bind(owner_column(GrantOwner::Gateway))
            .fetch_optional(&self.reader)
            .await
            .map_err(|error| self.map_error("looking for who signed in", error))?;
            Ok(owner.map(|owner| to_owner(&owner)))
        })
    }

    fn all_grants(
        &self,
        owner: Option<GrantOwner>,
    ) -> BoxFuture<'_, Result<Vec<StoredGrant>, StoreError>> {
        Box::pin(async move {
            let query = select!("WHERE ?1 IS NULL OR owner = ?1 ORDER BY resource, owner, issuer");
            let rows: Vec<GrantRow> = sqlx::query_as(query)
                .bind(owner.map(owner_column))
                .fetch_all(&self.reader)
                .await
                .map_err(|error| self.map_error("reading grants", error))?;
            Ok(rows.into_iter().map(from_row).collect())
        })
    }

    fn remove_grant<'a>(&'a self, key: &'a GrantKey) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let removed =
                sqlx::query("DELETE FROM grants WHERE resource = ? AND issuer = ? AND owner = ?")
                    .bind(&key.resource)
                    .bind(&key.issuer)
                    .bind(owner_column(key.owner))
                    .execute(&self.durable)
                    .await
                    .map_err(|error| self.map_error("removing a grant", error))?;
            Ok(removed.rows_affected() > 0)
        })
    }

    fn remove_all_grants(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing all grants", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            for table in ["DELETE FROM grants", "DELETE FROM grant_notes"] {
                sqlx::query(table).execute(&mut *tx).await.map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }

    fn put_note<'a>(
        &'a self,
        (note, key): (GrantNote, &'a str),
        sealed: &'a [u8],
        expires: Option<Timestamp>,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("keeping a note about an issuer", error);
            sqlx::query("DELETE FROM grant_notes WHERE expires_ms <= ?")
                .bind(from_time(now))
                .execute(&self.durable)
                .await
                .map_err(failed)?;
            sqlx::query("INSERT OR REPLACE INTO grant_notes VALUES (?, ?, ?, ?)")
                .bind(note.as_str())
                .bind(key)
                .bind(expires.map(from_time))
                .bind(sealed)
                .execute(&self.durable)
                .await
                .map_err(failed)?;
            Ok(())
        })
    }

    fn note<'a>(
        &'a self,
        (note, key): (GrantNote, &'a str),
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(async move {
            sqlx::query_scalar("SELECT sealed FROM grant_notes WHERE kind = ? AND key = ?")
                .bind(note.as_str())
                .bind(key)
                .fetch_optional(&self.reader)
                .await
                .map_err(|error| self.map_error("reading a note about an issuer", error))
        })
    }

    fn take_note<'a>(
        &'a self,
        (note, key): (GrantNote, &'a str),
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(async move {
            let taken: Option<(Option<i64>, Vec<u8>)> = sqlx::query_as(
                "DELETE FROM grant_notes WHERE kind = ? AND key = ? RETURNING expires_ms, sealed",
            )
            .bind(note.as_str())
            .bind(key)
            .fetch_optional(&self.durable)
            .await
            .map_err(|error| self.map_error("taking a note about an issuer", error))?;
            let is_valid = |expires: Option<i64>| expires.is_none_or(|at| to_time(at) > now);
            Ok(taken.and_then(|(expires, sealed)| is_valid(expires).then_some(sealed)))
        })
    }
}

fn owner_column(owner: GrantOwner) -> Vec<u8> {
    match owner {
        GrantOwner::Gateway => Vec::new(),
        GrantOwner::Agent(agent) => agent.0.as_bytes().to_vec(),
    }
}

fn to_owner(column: &[u8]) -> GrantOwner {
    if column.is_empty() {
        GrantOwner::Gateway
    } else {
        GrantOwner::Agent(AgentId(to_uuid(column)))
    }
}

fn from_row(row: GrantRow) -> StoredGrant {
    let (resource, issuer, owner, state, scopes, granted, refreshed, expires, sealed) = row;
    StoredGrant {
        key: GrantKey {
            resource,
            issuer,
            owner: to_owner(&owner),
        },
        state: match state.as_str() {
            "active" => GrantState::Active,
            _ => GrantState::Rejected,
        },
        scopes,
        granted: to_time(granted),
        refreshed: to_time(refreshed),
        expires: expires.map(to_time),
        sealed,
    }
}
