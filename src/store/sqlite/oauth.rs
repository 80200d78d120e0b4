//! Clients, grants and tokens of the built-in authorization server in SQLite.

use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sqlx::{FromRow, SqliteConnection};

use super::{Sqlite, begin, from_time, to_time, to_uuid};
use crate::{
    names::AgentId,
    store::{
        OAuthStore, StoreError, StoredLoginCode, StoredOAuthClient, StoredOAuthGrant, StoredToken,
        TOKENS_PER_GRANT_MAX, TokenExchange, TokenHash, TokenKind,
    },
};

#[derive(Debug, FromRow)]
struct OAuthGrantRow {
    id: String,
    client: String,
    agent: Option<Vec<u8>>,
    body: Vec<u8>,
    created_ms: i64,
    used_ms: i64,
    expires_ms: i64,
}

impl From<OAuthGrantRow> for StoredOAuthGrant {
    fn from(row: OAuthGrantRow) -> Self {
        Self {
            id: row.id,
            client: row.client,
            agent: row.agent.map(|agent| AgentId(to_uuid(&agent))),
            body: row.body,
            created: to_time(row.created_ms),
            used: to_time(row.used_ms),
            expires: to_time(row.expires_ms),
        }
    }
}

#[derive(Debug, FromRow)]
struct TokenRow {
    hash: Vec<u8>,
    grant_id: String,
    kind: i64,
    body: Vec<u8>,
    expires_ms: i64,
    spent_ms: Option<i64>,
}

impl TokenRow {
    /// `None` where the row is none that this version writes.
    fn to_token(&self) -> Option<StoredToken> {
        Some(StoredToken {
            hash: TokenHash(self.hash.as_slice().try_into().ok()?),
            grant: self.grant_id.clone(),
            kind: match self.kind {
                0 => TokenKind::Code,
                1 => TokenKind::Access,
                2 => TokenKind::Refresh,
                _ => return None,
            },
            body: self.body.clone(),
            expires: to_time(self.expires_ms),
            spent: self.spent_ms.map(to_time),
        })
    }
}

const fn kind_number(kind: TokenKind) -> i64 {
    match kind {
        TokenKind::Code => 0,
        TokenKind::Access => 1,
        TokenKind::Refresh => 2,
    }
}

impl OAuthStore for Sqlite {
    fn add_client<'a>(
        &'a self,
        client: &'a StoredOAuthClient,
        unused_since: Timestamp,
        clients_max: usize,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("registering an OAuth client", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            sqlx::query(
                "DELETE FROM oauth_clients WHERE used_ms < ? AND NOT EXISTS \
                 (SELECT 1 FROM oauth_grants WHERE client = oauth_clients.id)",
            )
            .bind(from_time(unused_since))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            let count = "SELECT count(*) FROM oauth_clients";
            let known: i64 = sqlx::query_scalar(count)
                .fetch_one(&mut *tx)
                .await
                .map_err(failed)?;
            let clients_max = i64::try_from(clients_max).unwrap_or(i64::MAX);
            let too_many = known.saturating_add(1).saturating_sub(clients_max).max(0);
            let removed = sqlx::query(
                "DELETE FROM oauth_clients WHERE id IN (SELECT id FROM oauth_clients \
                 WHERE id NOT IN (SELECT client FROM oauth_grants) ORDER BY used_ms, id LIMIT ?)",
            )
            .bind(too_many)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            let has_room = removed.rows_affected() >= too_many.unsigned_abs();
            if has_room {
                sqlx::query("INSERT INTO oauth_clients (id, body, used_ms) VALUES (?, ?, ?)")
                    .bind(&client.id)
                    .bind(&client.body)
                    .bind(from_time(client.used))
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)?;
            Ok(has_room)
        })
    }

    fn client<'a>(
        &'a self,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<StoredOAuthClient>, StoreError>> {
        Box::pin(async move {
            let row: Option<(String, Vec<u8>, i64)> =
                sqlx::query_as("SELECT id, body, used_ms FROM oauth_clients WHERE id = ?")
                    .bind(id)
                    .fetch_optional(&self.reader)
                    .await
                    .map_err(|error| self.map_error("reading an OAuth client", error))?;
            Ok(row.map(|(id, body, used_ms)| StoredOAuthClient {
                id,
                body,
                used: to_time(used_ms),
            }))
        })
    }

    fn add_grant<'a>(
        &'a self,
        grant: &'a StoredOAuthGrant,
        code: &'a StoredToken,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("adding a grant", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            sqlx::query(
                "INSERT INTO oauth_grants (id, client, agent, body, created_ms, used_ms, \
                 expires_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(&grant.id)
            .bind(&grant.client)
            .bind(grant.agent.map(|agent| agent.0.as_bytes().to_vec()))
            .bind(&grant.body)
            .bind(from_time(grant.created))
            .bind(from_time(grant.used))
            .bind(from_time(grant.expires))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            touch_client(&grant.client, grant.used, &mut tx)
                .await
                .map_err(failed)?;
            insert_token(code, &mut tx).await.map_err(failed)?;
            tx.commit().await.map_err(failed)
        })
    }

    fn renew_grant<'a>(
        &'a self,
        grant: &'a StoredOAuthGrant,
        code: &'a StoredToken,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("renewing a grant", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let done = sqlx::query(
                "UPDATE oauth_grants SET body = ?, used_ms = ?, expires_ms = max(expires_ms, ?) \
                 WHERE id = ?",
            )
            .bind(&grant.body)
            .bind(from_time(grant.used))
            .bind(from_time(grant.expires))
            .bind(&grant.id)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            if done.rows_affected() == 0 {
                return Ok(false);
            }
            insert_token(code, &mut tx).await.map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(true)
        })
    }

    fn grants(&self) -> BoxFuture<'_, Result<Vec<StoredOAuthGrant>, StoreError>> {
        Box::pin(async move {
            let rows = sqlx::query_as::<_, OAuthGrantRow>(
                "SELECT * FROM oauth_grants ORDER BY created_ms, id",
            )
            .fetch_all(&self.reader)
            .await
            .map_err(|error| self.map_error("reading grants", error))?;
            Ok(rows.into_iter().map(Into::into).collect())
        })
    }

    fn grant_ids(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async move {
            sqlx::query_scalar("SELECT id FROM oauth_grants")
                .fetch_all(&self.reader)
                .await
                .map_err(|error| self.map_error("reading grants", error))
        })
    }

    fn revoke_grant<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("revoking a grant", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            sqlx::query("DELETE FROM oauth_tokens WHERE grant_id = ?")
                .bind(id)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            let done = sqlx::query("DELETE FROM oauth_grants WHERE id = ?")
                .bind(id)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn token(
        &self,
        hash: TokenHash,
    ) -> BoxFuture<'_, Result<Option<(StoredToken, StoredOAuthGrant)>, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("reading a token", error);
            let row = sqlx::query_as::<_, TokenRow>("SELECT * FROM oauth_tokens WHERE hash = ?")
                .bind(hash.0.as_slice())
                .fetch_optional(&self.reader)
                .await
                .map_err(failed)?;
            let Some(token) = row.and_then(|row| row.to_token()) else {
                return Ok(None);
            };
            let grant =
                sqlx::query_as::<_, OAuthGrantRow>("SELECT * FROM oauth_grants WHERE id = ?")
                    .bind(&token.grant)
                    .fetch_optional(&self.reader)
                    .await
                    .map_err(failed)?;
            Ok(grant.map(|grant| (token, grant.into())))
        })
    }

    fn exchange<'a>(
        &'a self,
        spent: TokenHash,
        at: Timestamp,
        grace: Duration,
        tokens: &'a [StoredToken],
    ) -> BoxFuture<'a, Result<TokenExchange, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("exchanging a token", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let row: Option<(Option<i64>, String, String)> = sqlx::query_as(
                "SELECT spent_ms, oauth_grants.id, client FROM oauth_tokens \
                 JOIN oauth_grants ON oauth_grants.id = grant_id WHERE hash = ?",
            )
            .bind(spent.0.as_slice())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed)?;
            let Some((spent_ms, grant, client)) = row else {
                return Ok(TokenExchange::Gone);
            };
            let grace_ms = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
            let now_ms = from_time(at);
            // What has no grace is good for once, whatever clocks say.
            let is_over = |before: i64| grace_ms == 0 || now_ms >= before.saturating_add(grace_ms);
            if spent_ms.is_some_and(is_over) {
                return Ok(TokenExchange::Replayed);
            }
            sqlx::query("UPDATE oauth_tokens SET spent_ms = coalesce(spent_ms, ?) WHERE hash = ?")
                .bind(now_ms)
                .bind(spent.0.as_slice())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            let mut displaced = Vec::new();
            for token in tokens {
                let removed = make_room_for_token(token, &mut tx).await;
                let removed = removed.map_err(failed)?;
                if token.kind == TokenKind::Access {
                    displaced.extend(removed);
                }
                insert_token(token, &mut tx).await.map_err(failed)?;
            }
            let expires = tokens.iter().map(|token| from_time(token.expires)).max();
            sqlx::query(
                "UPDATE oauth_grants SET used_ms = ?, expires_ms = max(expires_ms, ?) WHERE id = ?",
            )
            .bind(now_ms)
            .bind(expires.unwrap_or(now_ms))
            .bind(&grant)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
            touch_client(&client, at, &mut tx).await.map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(TokenExchange::Done(displaced))
        })
    }

    fn remove_token(&self, hash: TokenHash) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let done = sqlx::query("DELETE FROM oauth_tokens WHERE hash = ?")
                .bind(hash.0.as_slice())
                .execute(&self.durable)
                .await
                .map_err(|error| self.map_error("removing a token", error))?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn access_tokens(&self) -> BoxFuture<'_, Result<Vec<TokenHash>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<Vec<u8>> =
                sqlx::query_scalar("SELECT hash FROM oauth_tokens WHERE kind = ?")
                    .bind(kind_number(TokenKind::Access))
                    .fetch_all(&self.reader)
                    .await
                    .map_err(|error| self.map_error("reading tokens", error))?;
            let hashes = rows.iter().filter_map(|row| row.as_slice().try_into().ok());
            Ok(hashes.map(TokenHash).collect())
        })
    }

    fn add_login_code<'a>(
        &'a self,
        code: &'a StoredLoginCode,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO oauth_login_codes (hash, agent, body, expires_ms) VALUES (?, ?, ?, ?)",
            )
            .bind(code.hash.0.as_slice())
            .bind(code.agent.0.as_bytes().as_slice())
            .bind(&code.body)
            .bind(from_time(code.expires))
            .execute(&self.durable)
            .await
            .map_err(|error| self.map_error("adding a login code", error))?;
            Ok(())
        })
    }

    fn take_login_code(
        &self,
        hash: TokenHash,
    ) -> BoxFuture<'_, Result<Option<StoredLoginCode>, StoreError>> {
        Box::pin(async move {
            let row: Option<(Vec<u8>, Vec<u8>, i64)> = sqlx::query_as(
                "DELETE FROM oauth_login_codes WHERE hash = ? RETURNING agent, body, expires_ms",
            )
            .bind(hash.0.as_slice())
            .fetch_optional(&self.durable)
            .await
            .map_err(|error| self.map_error("using a login code", error))?;
            Ok(row.map(|(agent, body, expires_ms)| StoredLoginCode {
                hash,
                agent: AgentId(to_uuid(&agent)),
                body,
                expires: to_time(expires_ms),
            }))
        })
    }

    fn remove_expired_oauth(&self, before: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing expired tokens", error);
            let mut tx = begin(&self.relaxed).await.map_err(failed)?;
            for expired in [
                "DELETE FROM oauth_tokens WHERE expires_ms < ?",
                "DELETE FROM oauth_grants WHERE expires_ms < ?",
                "DELETE FROM oauth_login_codes WHERE expires_ms < ?",
            ] {
                sqlx::query(expired)
                    .bind(from_time(before))
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            tx.commit().await.map_err(failed)
        })
    }
}

/// Removes the oldest tokens of the kind and grant of `token`, where with it there would be too many.
async fn make_room_for_token(
    token: &StoredToken,
    db: &mut SqliteConnection,
) -> Result<Vec<TokenHash>, sqlx::Error> {
    let removed: Vec<Vec<u8>> = sqlx::query_scalar(
        "DELETE FROM oauth_tokens WHERE hash IN (SELECT hash FROM oauth_tokens WHERE grant_id = ? \
         AND kind = ? AND spent_ms IS NULL ORDER BY expires_ms DESC LIMIT -1 OFFSET ?) RETURNING hash",
    )
    .bind(&token.grant)
    .bind(kind_number(token.kind))
    .bind(i64::try_from(TOKENS_PER_GRANT_MAX).unwrap_or(i64::MAX) - 1)
    .fetch_all(db)
    .await?;
    let hashes = removed
        .iter()
        .filter_map(|hash| hash.as_slice().try_into().ok());
    Ok(hashes.map(TokenHash).collect())
}

async fn insert_token(token: &StoredToken, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO oauth_tokens (hash, grant_id, kind, body, expires_ms, spent_ms) \
         VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(token.hash.0.as_slice())
    .bind(&token.grant)
    .bind(kind_number(token.kind))
    .bind(&token.body)
    .bind(from_time(token.expires))
    .bind(token.spent.map(from_time))
    .execute(db)
    .await
    .map(drop)
}

async fn touch_client(
    id: &str,
    at: Timestamp,
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE oauth_clients SET used_ms = max(used_ms, ?) WHERE id = ?")
        .bind(from_time(at))
        .bind(id)
        .execute(db)
        .await
        .map(drop)
}

/// Removes what an agent gave, and the codes for logging in as it.
pub(super) async fn remove_of_agent(
    agent: AgentId,
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    for of_agent in [
        "DELETE FROM oauth_tokens WHERE grant_id IN (SELECT id FROM oauth_grants WHERE agent = ?)",
        "DELETE FROM oauth_grants WHERE agent = ?",
        "DELETE FROM oauth_login_codes WHERE agent = ?",
        // Another agent may get the name, and the id with it.
        "DELETE FROM grants WHERE owner = ?",
    ] {
        sqlx::query(of_agent)
            .bind(agent.0.as_bytes().as_slice())
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}
