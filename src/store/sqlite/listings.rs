//! Listings in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{Sqlite, from_time, to_time};
use crate::{
    names::ServerName,
    store::{Listings, StoreError, StoredListing},
};

impl Listings for Sqlite {
    fn put<'a>(&'a self, listing: &'a StoredListing) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO listings (server, connection, listed_ms, body) VALUES (?, ?, ?, ?) \
                 ON CONFLICT DO UPDATE SET listed_ms = excluded.listed_ms, body = excluded.body",
            )
            .bind(listing.server.as_str())
            .bind(listing.connection.as_slice())
            .bind(from_time(listing.listed))
            .bind(&listing.body)
            .execute(&self.relaxed)
            .await
            .map_err(|error| self.map_error("keeping a listing", error))?;
            Ok(())
        })
    }

    fn confirm<'a>(
        &'a self,
        server: &'a ServerName,
        connection: [u8; 32],
        time: Timestamp,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let confirmed = sqlx::query(
                "UPDATE listings SET listed_ms = ? WHERE server = ? AND connection = ?",
            )
            .bind(from_time(time))
            .bind(server.as_str())
            .bind(connection.as_slice())
            .execute(&self.relaxed)
            .await
            .map_err(|error| self.map_error("confirming a listing", error))?;
            Ok(confirmed.rows_affected() > 0)
        })
    }

    fn listing<'a>(
        &'a self,
        server: &'a ServerName,
        connection: [u8; 32],
    ) -> BoxFuture<'a, Result<Option<StoredListing>, StoreError>> {
        Box::pin(async move {
            let row: Option<(i64, String)> = sqlx::query_as(
                "SELECT listed_ms, body FROM listings WHERE server = ? AND connection = ?",
            )
            .bind(server.as_str())
            .bind(connection.as_slice())
            .fetch_optional(&self.reader)
            .await
            .map_err(|error| self.map_error("reading a listing", error))?;
            Ok(row.map(|(listed, body)| StoredListing {
                server: server.clone(),
                connection,
                listed: to_time(listed),
                body,
            }))
        })
    }

    fn remove_before(&self, time: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query("DELETE FROM listings WHERE listed_ms < ?")
                .bind(from_time(time))
                .execute(&self.relaxed)
                .await
                .map_err(|error| self.map_error("forgetting listings", error))?;
            Ok(())
        })
    }
}
