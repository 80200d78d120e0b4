//! The store in one SQLite file of the data directory.
//!
//! Three kinds of connection: one writer that syncs every transaction to disk, for whatever must
//! survive a power cut; one that does not, for what can be lost: the index of the audit, the last
//! use of keys, sessions, listings; and a few that only read. Several processes share the file, so every writing
//! transaction begins `IMMEDIATE`: SQLite then waits for other writers instead of failing midway.

use std::{
    cmp::Ordering,
    fs::{self, Metadata, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use rustix::fs::{StatVfs, statvfs};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Sqlite as Db, SqliteConnection, SqlitePool, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use uuid::Uuid;

use super::{ENTRIES_SINCE, SECRETS_SINCE, StoreBackend, StoreError};
use crate::{config::SecretKeyPlace, key_file::FileKey, money::Micros};
use mac::Signer;

mod agents;
mod audit_index;
mod entries;
mod grants;
mod keys;
mod leases;
mod listings;
mod mac;
mod oauth;
mod secrets;
mod sessions;
mod tasks;
mod views;

/// The database in the data directory.
pub const FILE_NAME: &str = "tollbridge.db";

/// Marks a database as ours: "Toll" in ASCII.
const APPLICATION_ID: i64 = 0x546F_6C6C;

/// Every version of the schema, oldest first; only ever appended to.
const MIGRATIONS: &[&str] = &[
    include_str!("../../migrations/sqlite/0001.sql"),
    include_str!("../../migrations/sqlite/0002.sql"),
    include_str!("../../migrations/sqlite/0003.sql"),
    include_str!("../../migrations/sqlite/0004.sql"),
    include_str!("../../migrations/sqlite/0005.sql"),
    include_str!("../../migrations/sqlite/0006.sql"),
    include_str!("../../migrations/sqlite/0007.sql"),
    include_str!("../../migrations/sqlite/0008.sql"),
    include_str!("../../migrations/sqlite/0009.sql"),
    include_str!("../../migrations/sqlite/0010.sql"),
    include_str!("../../migrations/sqlite/0011.sql"),
    include_str!("../../migrations/sqlite/0012.sql"),
    include_str!("../../migrations/sqlite/0013.sql"),
    include_str!("../../migrations/sqlite/0014.sql"),
    include_str!("../../migrations/sqlite/0015.sql"),
];

/// The first version of the schema whose agents and keys have MACs.
const FIRST_SIGNED_VERSION: i64 = 6;

/// The file with the secret key of the store, beside the database.
const KEY_FILE: &str = "secret.key";

/// The same while the rows of before have no MACs yet. Where only this one is there, they get them; where
/// the other is, whoever takes the schema back to one without MACs gains nothing.
const NEW_KEY_FILE: &str = "secret.key.new";

/// The version of the schema that all of them make.
pub(super) fn schema_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// How transactions begin that write.
const BEGIN_IMMEDIATE: &str = "BEGIN IMMEDIATE";
/// How long a transaction waits for those of other processes, which take milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How often opening is tried while another process is creating the database.
const OPEN_ATTEMPTS: u32 = 100;

/// Between two attempts to open.
const OPEN_RETRY_DELAY: Duration = Duration::from_millis(20);

/// All stores in one file. Each pool is one connection, which is a thread and a quarter of a
/// megabyte: calls do not wait for the store.
#[derive(Debug)]
pub(super) struct Sqlite {
    path: PathBuf,
    /// Device and inode of the file that is open; `None` where they are not known.
    file: Option<(u64, u64)>,
    durable: SqlitePool,
    relaxed: SqlitePool,
    reader: SqlitePool,
    signer: Signer,
}

impl Sqlite {
    pub(super) async fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let (path, options) = prepare_files(data_dir)?;
        let durable = connect_durable(&path, &options).await?;
        let signer = migrate(&path, data_dir, &durable).await?;
        Ok(Self::from_parts(path, options, durable, signer))
    }

    /// Opens what has the schema of this version, or one of before that is no older than `oldest`.
    pub(super) async fn open_unchanged(data_dir: &Path, oldest: i64) -> Result<Self, StoreError> {
        let path = data_dir.join(FILE_NAME);
        let options = SqliteConnectOptions::new().filename(&path).read_only(true);
        let looking = connect(&path, options.busy_timeout(BUSY_TIMEOUT)).await?;
        let read = async {
            let application: i64 = read_pragma("PRAGMA application_id", &looking).await?;
            Ok((
                application,
                read_pragma("PRAGMA user_version", &looking).await?,
            ))
        };
        let read = read.await;
        looking.close().await;
        let doing = "reading the version of its schema";
        let (application, found) = read.map_err(|error| classify_error(&path, doing, error))?;
        let known = schema_version();
        if application != APPLICATION_ID {
            return Err(StoreError::NotOurDatabase { path });
        }
        match found.cmp(&known) {
            Ordering::Equal => {}
            Ordering::Greater => return Err(StoreError::NewerVersion { path, found, known }),
            Ordering::Less if found >= oldest => {}
            Ordering::Less => return Err(StoreError::OlderVersion { path, found, known }),
        }
        let (path, options) = prepare_files(data_dir)?;
        let durable = connect_durable(&path, &options).await?;
        let signer = match existing_key(data_dir)? {
            Some(StoreKey { key, .. }) => Signer::new(key),
            None => unneeded_signer(&path, data_dir, found, &durable).await?,
        };
        Ok(Self::from_parts(path, options, durable, signer))
    }

    fn from_parts(
        path: PathBuf,
        options: SqliteConnectOptions,
        durable: SqlitePool,
        signer: Signer,
    ) -> Self {
        let relaxed = options.clone().synchronous(SqliteSynchronous::Normal);
        Self {
            file: file_id(&path).ok(),
            durable,
            relaxed: pool_options().connect_lazy_with(relaxed),
            reader: pool_options().connect_lazy_with(options.read_only(true)),
            path,
            signer,
        }
    }

    /// What an error of the database means for the operator.
    fn map_error(&self, doing: &'static str, source: sqlx::Error) -> StoreError {
        classify_error(&self.path, doing, source)
    }

    fn undecodable(&self, what: String, detail: impl std::fmt::Display) -> StoreError {
        StoreError::Undecodable {
            path: self.path.clone(),
            what,
            detail: detail.to_string(),
        }
    }
}

impl StoreBackend for Sqlite {
    fn check_file(&self) -> Result<(), StoreError> {
        let path = self.path.clone();
        match file_id(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::FileRemoved { path })
            }
            Ok(now) if self.file.is_some_and(|opened| opened != now) => {
                Err(StoreError::FileReplaced { path })
            }
            // What cannot be looked at says nothing of the file that is open.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn derive_key(&self, purpose: &str) -> [u8; 32] {
        self.signer.derive(purpose)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.reader.close().await;
            self.relaxed.close().await;
            self.durable.close().await;
        })
    }
}

/// Device and inode of the file at `path`.
fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// A key and whether the rows of before have their MACs yet.
struct StoreKey {
    key: FileKey,
    is_new: bool,
}

/// The secret key of the store, if there is one. Its file gets its name while others look.
fn existing_key(data_dir: &Path) -> Result<Option<StoreKey>, StoreError> {
    for (name, is_new) in [(KEY_FILE, false), (NEW_KEY_FILE, true), (KEY_FILE, false)] {
        if let Some(key) = FileKey::read(&data_dir.join(name))? {
            return Ok(Some(StoreKey { key, is_new }));
        }
    }
    Ok(None)
}

/// The same, where it is made if there is none; one process at a time does this.
async fn store_key(
    path: &Path,
    data_dir: &Path,
    version: i64,
    tx: &mut Transaction<'_, Db>,
) -> Result<StoreKey, StoreError> {
    if let Some(kept) = existing_key(data_dir)? {
        return Ok(kept);
    }
    refuse_new_key(path, version, tx).await?;
    Ok(StoreKey {
        key: FileKey::read_or_create(&data_dir.join(NEW_KEY_FILE))?,
        is_new: true,
    })
}

/// A signer with a key that is kept nowhere, for a store that needs none: under it no row has its MAC.
async fn unneeded_signer(
    path: &Path,
    data_dir: &Path,
    version: i64,
    durable: &SqlitePool,
) -> Result<Signer, StoreError> {
    let held = durable.acquire().await;
    let mut held = held.map_err(|error| classify_error(path, "opening it", error))?;
    refuse_new_key(path, version, &mut held).await?;
    let key = FileKey::generate().map_err(|error| StoreError::Directory {
        path: data_dir.to_owned(),
        source: error.into(),
    })?;
    Ok(Signer::new(key))
}

/// Fails where rows of the database, which has the schema `version`, are signed or sealed with a key that is gone:
/// all of them would be refused under a new one, which nobody could tell from an attack.
async fn refuse_new_key(
    path: &Path,
    version: i64,
    db: &mut SqliteConnection,
) -> Result<(), StoreError> {
    let sealed = "SELECT EXISTS (SELECT * FROM sealing_keys WHERE place = ?)";
    let sealed = sqlx::query_scalar(sealed).bind(SecretKeyPlace::DataDir.to_string());
    let signed = |query| sqlx::query_scalar(query);
    let uses = [
        (
            FIRST_SIGNED_VERSION,
            signed("SELECT EXISTS (SELECT * FROM agents WHERE mac IS NOT NULL)"),
        ),
        (
            FIRST_SIGNED_VERSION,
            signed("SELECT EXISTS (SELECT * FROM keys WHERE mac IS NOT NULL)"),
        ),
        (SECRETS_SINCE, sealed),
        (
            ENTRIES_SINCE,
            signed("SELECT EXISTS (SELECT * FROM config_entries)"),
        ),
    ];
    for (_, query) in uses.into_iter().filter(|(since, _)| version >= *since) {
        let is_used: bool = query
            .fetch_one(&mut *db)
            .await
            .map_err(|error| classify_error(path, "looking for rows that need its key", error))?;
        if is_used {
            return Err(StoreError::KeyMissing {
                key: path.with_file_name(KEY_FILE),
                path: path.to_owned(),
            });
        }
    }
    Ok(())
}

/// Brings the schema to our version, in one transaction: of processes that start together one does it and
/// the others find it done.
async fn migrate(path: &Path, data_dir: &Path, durable: &SqlitePool) -> Result<Signer, StoreError> {
    let doing = "migrating the schema";
    let failed = |error| classify_error(path, doing, error);
    let mut tx = begin(durable).await.map_err(failed)?;
    let version = version_of(path, &mut tx).await?;
    let StoreKey { key, is_new } = store_key(path, data_dir, version, &mut tx).await?;
    let signer = Signer::new(key);
    let done = usize::try_from(version).unwrap_or(0);
    for migration in &MIGRATIONS[done..] {
        sqlx::raw_sql(*migration)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
    }
    let known = schema_version();
    if version < known {
        let stamp =
            format!("PRAGMA user_version = {known}; PRAGMA application_id = {APPLICATION_ID}");
        sqlx::raw_sql(AssertSqlSafe(stamp))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
    }
    if version < FIRST_SIGNED_VERSION && is_new {
        agents::sign_all(&signer, &mut tx).await.map_err(failed)?;
        keys::sign_all(&signer, &mut tx).await.map_err(failed)?;
    }
    tx.commit().await.map_err(failed)?;
    if is_new {
        let renamed = fs::rename(data_dir.join(NEW_KEY_FILE), data_dir.join(KEY_FILE));
        match renamed {
            // Another process has done it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.map_err(|source| StoreError::Directory {
                path: data_dir.to_owned(),
                source,
            })?,
        }
    }
    Ok(signer)
}

/// The version of the schema of what is ours.
async fn version_of(path: &Path, tx: &mut Transaction<'_, Db>) -> Result<i64, StoreError> {
    let doing = "reading the version of its schema";
    let failed = |error| classify_error(path, doing, error);
    let version = query_number("PRAGMA user_version", tx)
        .await
        .map_err(failed)?;
    let application = query_number("PRAGMA application_id", tx)
        .await
        .map_err(failed)?;
    let tables = query_number("SELECT count(*) FROM sqlite_schema", tx)
        .await
        .map_err(failed)?;
    let path = path.to_owned();
    let known = schema_version();
    if application != APPLICATION_ID && (tables > 0 || application != 0) {
        return Err(StoreError::NotOurDatabase { path });
    }
    if version > known {
        return Err(StoreError::NewerVersion {
            path,
            found: version,
            known,
        });
    }
    Ok(version)
}

/// Makes the directory and an empty file that only we may read; what SQLite puts beside it gets the
/// same mode. How that is opened.
fn prepare_files(data_dir: &Path) -> Result<(PathBuf, SqliteConnectOptions), StoreError> {
    let directory = |source| StoreError::Directory {
        path: data_dir.to_owned(),
        source,
    };
    match fs::metadata(data_dir) {
        Ok(found) if found.is_dir() => check_directory_permissions(data_dir, &found)?,
        Ok(_) => {
            return Err(StoreError::NotADirectory {
                path: data_dir.to_owned(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(data_dir)
                .map_err(directory)?;
        }
        Err(error) => return Err(directory(error)),
    }
    let path = data_dir.join(FILE_NAME);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let file = match file {
        Ok(file) => file,
        Err(_) if path.is_file() => {
            let doing = "opening it";
            return Err(StoreError::ReadOnly { path, doing });
        }
        Err(error) => return Err(directory(error)),
    };
    let mode = file.metadata().map_err(directory)?.permissions().mode();
    if mode & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(directory)?;
    }
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .busy_timeout(BUSY_TIMEOUT)
        .journal_mode(SqliteJournalMode::Wal)
        // Slow statements are slow disks or busy machines, which our own lines tell of where it
        // matters.
        .disable_statement_logging();
    Ok((path, options))
}

/// Refuses a data directory in which everybody on this machine can put and replace files.
fn check_directory_permissions(data_dir: &Path, found: &Metadata) -> Result<(), StoreError> {
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o002 == 0 {
        return Ok(());
    }
    Err(StoreError::UnsafePermissions {
        path: data_dir.to_owned(),
        mode,
    })
}

/// What [`Store::open`](super::Store::open) would refuse of permissions on `data_dir`.
pub(super) fn check_data_dir(data_dir: &Path) -> Result<(), StoreError> {
    match fs::metadata(data_dir) {
        Ok(found) if found.is_dir() => check_directory_permissions(data_dir, &found),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn connect_durable(
    path: &Path,
    options: &SqliteConnectOptions,
) -> Result<SqlitePool, StoreError> {
    connect(path, options.clone().synchronous(SqliteSynchronous::Full)).await
}

/// The first connection. SQLite does not wait for others while the journal is set up, so we do.
async fn connect(path: &Path, options: SqliteConnectOptions) -> Result<SqlitePool, StoreError> {
    let doing = "opening it";
    let mut attempt = 1;
    loop {
        let error = match pool_options().connect_with(options.clone()).await {
            Ok(pool) => return Ok(pool),
            Err(error) => classify_error(path, doing, error),
        };
        if attempt == OPEN_ATTEMPTS || !matches!(error, StoreError::Busy { .. }) {
            return Err(error);
        }
        attempt += 1;
        tokio::time::sleep(OPEN_RETRY_DELAY).await;
    }
}

async fn read_pragma(sql: &'static str, pool: &SqlitePool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(sql).fetch_one(pool).await
}

fn pool_options() -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(BUSY_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
}

/// Begins a transaction on one of the writers, each of which is the only connection of its pool.
///
/// SQLite ends a transaction that meets a full disk by itself; sqlx then fails to end it once more,
/// and takes it to go on for ever. That connection is given up for a new one.
async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Db>, sqlx::Error> {
    match pool.begin_with(BEGIN_IMMEDIATE).await {
        Err(sqlx::Error::InvalidSavePointStatement) => {
            if let Err(error) = pool.acquire().await?.close().await {
                tracing::debug!(%error, "a database connection did not close cleanly");
            }
            pool.begin_with(BEGIN_IMMEDIATE).await
        }
        begun => begun,
    }
}

async fn query_number(
    query: &'static str,
    tx: &mut Transaction<'_, Db>,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(query).fetch_one(&mut **tx).await
}

fn classify_error(path: &Path, doing: &'static str, source: sqlx::Error) -> StoreError {
    classify_error_on(path, doing, source, |path| statvfs(path).ok())
}

/// The same, where `disk` says what there is on the disk of a path.
fn classify_error_on(
    path: &Path,
    doing: &'static str,
    source: sqlx::Error,
    disk: impl Fn(&Path) -> Option<StatVfs>,
) -> StoreError {
    let path = path.to_owned();
    let busy = |path| StoreError::Busy {
        path,
        doing,
        seconds: BUSY_TIMEOUT.as_secs(),
    };
    if matches!(source, sqlx::Error::PoolTimedOut) {
        return busy(path);
    }
    let code = source
        .as_database_error()
        .and_then(|error| error.code()?.parse().ok());
    match code.map(|extended: u32| extended & PRIMARY_CODE_MASK) {
        Some(5 | 6) => busy(path),
        Some(8) => StoreError::ReadOnly { path, doing },
        Some(11 | 26) => StoreError::Corrupt {
            path,
            detail: source.to_string(),
        },
        Some(13) => StoreError::Full { path, doing },
        // What SQLite does not write through itself, such as the file of the lock that processes share,
        // fails so on a full disk.
        Some(10) if disk(&path).is_some_and(|disk| is_full(&disk)) => {
            StoreError::Full { path, doing }
        }
        _ => StoreError::Failed {
            path,
            doing,
            source,
        },
    }
}

/// The part of an SQLite result code that names its kind: 5 BUSY, 6 LOCKED, 8 READONLY, 10 IOERR,
/// 11 CORRUPT, 13 FULL, 26 NOTADB. Source: sqlite.org/rescode.html.
const PRIMARY_CODE_MASK: u32 = 0xff;

/// Whether `disk` has less room than the index of the journal takes when it is made. File systems that
/// have no blocks at all do not say what room they have.
fn is_full(disk: &StatVfs) -> bool {
    disk.f_blocks > 0 && disk.f_bavail.saturating_mul(disk.f_frsize) < JOURNAL_INDEX_BYTES
}

/// What SQLite allocates at once for the index of a journal. Source: sqlite.org/walformat.html.
const JOURNAL_INDEX_BYTES: u64 = 32 << 10;

fn from_micros(amount: Micros) -> i64 {
    amount.get().cast_signed()
}

fn to_micros(column: i64) -> Micros {
    Micros::new(u64::try_from(column).unwrap_or(0))
}

fn from_time(time: Timestamp) -> i64 {
    time.as_millisecond()
}

/// A time of ours always fits; what does not was put there by somebody else and becomes 1970.
fn to_time(column: i64) -> Timestamp {
    Timestamp::from_millisecond(column).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn to_uuid(column: &[u8]) -> Uuid {
    Uuid::from_slice(column).unwrap_or_default()
}

#[cfg(test)]
mod tests;
