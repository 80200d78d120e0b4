//! Leases in SQLite. Each method is one transaction of the durable writer.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use sqlx::{Sqlite as Db, SqlitePool, Transaction};

use super::{Sqlite, begin, from_micros, from_time, to_micros};
use crate::{
    money::Micros,
    store::{
        Account, AccountUsage, CallerBreakerState, Fund, FundReset, LeaseReply, LeaseRequest,
        LeaseUpdate, Leases, OtherUsage, StoreError,
    },
};

/// The chain that stands for all that ended long ago. No process has it.
const COMPACTED_CHAIN: &str = "";

/// Closed leases of one account that are kept apart, for people who look into the database.
const CLOSED_LEASES_MAX: i64 = 32;

/// Accounts that one compaction adds up, so that it stays short; the next one goes on.
const COMPACT_BATCH: i64 = 1_000;

/// How long leases of windows that ended are kept: somewhat longer than a quarter.
const CLOSED_LEASE_TTL: SignedDuration = SignedDuration::from_hours(100 * 24);

impl Leases for Sqlite {
    fn acquire<'a>(
        &'a self,
        ask: &'a LeaseRequest,
    ) -> BoxFuture<'a, Result<LeaseReply, StoreError>> {
        Box::pin(async move {
            let answer = acquire(&self.durable, ask).await;
            answer.map_err(|error| self.map_error("acquiring a budget lease", error))
        })
    }

    fn write<'a>(
        &'a self,
        chain: &'a str,
        writes: &'a [LeaseUpdate],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let done = write(&self.durable, chain, writes).await;
            done.map_err(|error| self.map_error("writing spending", error))
        })
    }

    fn close_chain<'a>(
        &'a self,
        chain: &'a str,
        writes: &'a [LeaseUpdate],
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let done = close_chain(&self.durable, chain, writes).await;
            done.map_err(|error| self.map_error("closing leases", error))
        })
    }

    fn usage<'a>(
        &'a self,
        fund: &'a Fund,
        chain: &'a str,
    ) -> BoxFuture<'a, Result<AccountUsage, StoreError>> {
        Box::pin(async move {
            let usage = usage(&self.reader, fund, chain).await;
            usage.map_err(|error| self.map_error("reading a budget", error))
        })
    }

    fn spent_accounts(&self, now: Timestamp) -> BoxFuture<'_, Result<Vec<Account>, StoreError>> {
        Box::pin(async move {
            let accounts: Vec<String> = sqlx::query_scalar(
                "SELECT DISTINCT account FROM leases WHERE spent > 0 \
                 AND (ends_ms IS NULL OR ends_ms > ?)",
            )
            .bind(from_time(now))
            .fetch_all(&self.reader)
            .await
            .map_err(|error| self.map_error("reading budgets", error))?;
            Ok(accounts
                .iter()
                .map(|text| Account::from_text(text))
                .collect())
        })
    }

    fn reset<'a>(
        &'a self,
        fund: &'a Fund,
        reason: &'a str,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move {
            let epoch = sqlx::query_scalar(
                "INSERT INTO epochs (fund, epoch, reason, at_ms) VALUES (?1, \
                 (SELECT coalesce(max(epoch), 0) + 1 FROM epochs WHERE fund = ?1), ?2, ?3) \
                 RETURNING epoch",
            )
            .bind(fund.as_str())
            .bind(reason)
            .bind(from_time(at))
            .fetch_one(&self.durable)
            .await;
            epoch.map_err(|error| self.map_error("resetting a budget", error))
        })
    }

    fn resets_after(&self, seq: i64) -> BoxFuture<'_, Result<Vec<FundReset>, StoreError>> {
        Box::pin(async move {
            let rows: Vec<(i64, String, u32)> =
                sqlx::query_as("SELECT seq, fund, epoch FROM epochs WHERE seq > ? ORDER BY seq")
                    .bind(seq)
                    .fetch_all(&self.reader)
                    .await
                    .map_err(|error| self.map_error("reading resets of budgets", error))?;
            let resets = rows
                .into_iter()
                .map(|(seq, fund, epoch)| FundReset { seq, fund, epoch });
            Ok(resets.collect())
        })
    }

    fn chains_with_open_leases(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async move {
            sqlx::query_scalar("SELECT DISTINCT chain FROM leases WHERE open = 1 ORDER BY chain")
                .fetch_all(&self.reader)
                .await
                .map_err(|error| self.map_error("looking for open leases", error))
        })
    }

    fn reconcile<'a>(
        &'a self,
        chain: &'a str,
        sums: &'a BTreeMap<String, Micros>,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let count = reconcile(&self.durable, chain, sums).await;
            count.map_err(|error| self.map_error("reconciling budgets with the audit", error))
        })
    }

    fn forfeit<'a>(&'a self, chain: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let count = forfeit(&self.durable, chain).await;
            count.map_err(|error| self.map_error("closing leases", error))
        })
    }

    fn compact(&self, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let done = compact(&self.durable, now).await;
            done.map_err(|error| self.map_error("compacting closed leases", error))
        })
    }
}

async fn acquire(pool: &SqlitePool, ask: &LeaseRequest) -> Result<LeaseReply, sqlx::Error> {
    let mut tx = begin(pool).await?;
    let epoch = current_epoch(&mut tx, &ask.fund).await?;
    let account = Account::of(ask.fund.as_str(), epoch);
    let (kept, elsewhere) = account_usage(&mut tx, &account, &ask.chain).await?;
    let own = match ask.own {
        Some(own) if own.epoch == epoch => own,
        _ => CallerBreakerState {
            epoch,
            granted: kept,
            spent: kept,
            held: Micros::ZERO,
        },
    };
    let taken = elsewhere.spent.saturating_add(elsewhere.unspent);
    let Some(granted) = ask.slice_granted(own, taken) else {
        return Ok(LeaseReply::Refused {
            epoch,
            spent: own.spent,
            elsewhere,
        });
    };
    sqlx::query(
        "INSERT INTO leases (account, chain, granted, spent, open, ends_ms) \
         VALUES (?, ?, ?, ?, 1, ?) ON CONFLICT DO UPDATE SET \
         granted = excluded.granted, spent = excluded.spent, open = 1",
    )
    .bind(account.as_str())
    .bind(&*ask.chain)
    .bind(from_micros(granted))
    .bind(from_micros(own.spent))
    .bind(ask.fund.ends().map(from_time))
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(LeaseReply::Granted {
        epoch,
        granted,
        spent: own.spent,
    })
}

/// What `chain` has spent of an account, and what others make of it.
async fn account_usage(
    tx: &mut Transaction<'_, Db>,
    account: &Account,
    chain: &str,
) -> Result<(Micros, OtherUsage), sqlx::Error> {
    let (own, spent, unspent): (i64, i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum(spent) FILTER (WHERE chain = ?2), 0), \
         coalesce(sum(spent) FILTER (WHERE chain <> ?2), 0), \
         coalesce(sum(granted - spent) FILTER (WHERE chain <> ?2 AND open = 1), 0) \
         FROM leases WHERE account = ?1",
    )
    .bind(account.as_str())
    .bind(chain)
    .fetch_one(&mut **tx)
    .await?;
    let elsewhere = OtherUsage {
        spent: to_micros(spent),
        unspent: to_micros(unspent),
    };
    Ok((to_micros(own), elsewhere))
}

async fn current_epoch(tx: &mut Transaction<'_, Db>, fund: &Fund) -> Result<u32, sqlx::Error> {
    sqlx::query_scalar("SELECT coalesce(max(epoch), 0) FROM epochs WHERE fund = ?")
        .bind(fund.as_str())
        .fetch_one(&mut **tx)
        .await
}

async fn write(pool: &SqlitePool, chain: &str, writes: &[LeaseUpdate]) -> Result<(), sqlx::Error> {
    let mut tx = begin(pool).await?;
    write_updates(&mut tx, chain, writes).await?;
    tx.commit().await
}

/// Closes all first: those in `writes` that stay open are opened again before anybody can look.
async fn close_chain(
    pool: &SqlitePool,
    chain: &str,
    writes: &[LeaseUpdate],
) -> Result<(), sqlx::Error> {
    let mut tx = begin(pool).await?;
    sqlx::query("UPDATE leases SET granted = spent, open = 0 WHERE chain = ? AND open = 1")
        .bind(chain)
        .execute(&mut *tx)
        .await?;
    write_updates(&mut tx, chain, writes).await?;
    tx.commit().await
}

async fn write_updates(
    tx: &mut Transaction<'_, Db>,
    chain: &str,
    writes: &[LeaseUpdate],
) -> Result<(), sqlx::Error> {
    for write in writes {
        sqlx::query(
            "UPDATE leases SET granted = ?, spent = ?, open = ? WHERE account = ? AND chain = ?",
        )
        .bind(from_micros(write.granted))
        .bind(from_micros(write.spent))
        .bind(write.open)
        .bind(write.account.as_str())
        .bind(chain)
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

async fn usage(pool: &SqlitePool, fund: &Fund, chain: &str) -> Result<AccountUsage, sqlx::Error> {
    let mut tx = pool.begin().await?;
    let epoch = current_epoch(&mut tx, fund).await?;
    let account = Account::of(fund.as_str(), epoch);
    let (spent, elsewhere) = account_usage(&mut tx, &account, chain).await?;
    Ok(AccountUsage {
        epoch,
        spent,
        elsewhere,
    })
}

async fn reconcile(
    pool: &SqlitePool,
    chain: &str,
    sums: &BTreeMap<String, Micros>,
) -> Result<u64, sqlx::Error> {
    if chain == COMPACTED_CHAIN {
        return Ok(0);
    }
    let mut tx = begin(pool).await?;
    let accounts: Vec<String> = sqlx::query_scalar("SELECT account FROM leases WHERE chain = ?")
        .bind(chain)
        .fetch_all(&mut *tx)
        .await?;
    for account in &accounts {
        let spent = sums.get(account).copied().unwrap_or_default();
        sqlx::query(
            "UPDATE leases SET granted = max(spent, ?1), spent = max(spent, ?1), open = 0 \
             WHERE account = ?2 AND chain = ?3",
        )
        .bind(from_micros(spent))
        .bind(account)
        .bind(chain)
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(accounts.len() as u64)
}

async fn forfeit(pool: &SqlitePool, chain: &str) -> Result<u64, sqlx::Error> {
    let mut tx = begin(pool).await?;
    let done =
        sqlx::query("UPDATE leases SET spent = granted, open = 0 WHERE chain = ? AND open = 1")
            .bind(chain)
            .execute(&mut *tx)
            .await?;
    tx.commit().await?;
    Ok(done.rows_affected())
}

async fn compact(pool: &SqlitePool, now: Timestamp) -> Result<(), sqlx::Error> {
    let mut tx = begin(pool).await?;
    let long_ago = now.checked_sub(CLOSED_LEASE_TTL).unwrap_or(Timestamp::MIN);
    sqlx::query("DELETE FROM leases WHERE open = 0 AND ends_ms < ?")
        .bind(from_time(long_ago))
        .execute(&mut *tx)
        .await?;
    let many: Vec<String> = sqlx::query_scalar(
        "SELECT account FROM leases WHERE open = 0 AND chain <> '' \
         GROUP BY account HAVING count(*) > ? LIMIT ?",
    )
    .bind(CLOSED_LEASES_MAX)
    .bind(COMPACT_BATCH)
    .fetch_all(&mut *tx)
    .await?;
    for account in many {
        sqlx::query(
            "INSERT INTO leases (account, chain, granted, spent, open, ends_ms) \
             SELECT account, '', sum(spent), sum(spent), 0, max(ends_ms) FROM leases \
             WHERE account = ? AND open = 0 GROUP BY account \
             ON CONFLICT DO UPDATE SET granted = excluded.granted, spent = excluded.spent",
        )
        .bind(&account)
        .execute(&mut *tx)
        .await?;
        sqlx::query("DELETE FROM leases WHERE account = ? AND open = 0 AND chain <> ''")
            .bind(&account)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await
}
