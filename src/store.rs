//! What outlives the process: agents, keys, leases on budgets, the index of the audit, grants towards
//! servers, sessions of clients, views, what servers listed last, and whose their tasks are.
//!
//! Each need is a small trait, and a user is given the one it needs. `sqlite` implements all of
//! them in one file of the data directory, which several processes may share; a second
//! implementation adds an arm to [`Store::open`] and a line to the contract in `store/tests.rs`.

use std::{io, path::Path, path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;

use crate::{
    clock,
    config::{EntryKey, SecretKeyPlace},
    key_file::{self, KeyFileError},
    sealing::SealingKey,
};

mod agents;
mod audit_index;
mod entries;
mod grants;
mod keys;
mod leases;
mod listings;
mod oauth;
mod refused_rows;
mod secret_key;
mod secrets;
mod sessions;
mod sqlite;
mod tasks;
mod usage;
mod views;

#[cfg(test)]
mod tests;

pub use agents::{AgentStore, StoredAgent};
pub use audit_index::{
    AuditIndex, IndexFilter, IndexedPlace, IndexedRecord, IndexedSegment, NewPlaces, SegmentMark,
};
pub use entries::{EntryStore, EntryWrite, StoredEntry};
pub use grants::{
    GRANTS_PURPOSE, GrantKey, GrantNote, GrantOwner, GrantState, GrantStore, StoredGrant,
};
pub use keys::{KeyHash, KeyId, KeyStore, StoredKey};
pub use leases::{
    Account, AccountUsage, BudgetSubject, BudgetSubjectKind, CallerBreakerState, Fund, FundReset,
    LeaseReply, LeaseRequest, LeaseUpdate, Leases, OtherUsage,
};
pub use listings::{Listings, StoredListing};
pub use oauth::{
    OAuthStore, StoredLoginCode, StoredOAuthClient, StoredOAuthGrant, StoredToken,
    TOKENS_PER_GRANT_MAX, TokenExchange, TokenHash, TokenKind,
};
pub use refused_rows::{RefusedRow, RowFault, RowKind, StoredRows};
use secret_key::SecretKey;
pub use secret_key::SecretKeyError;
pub use secrets::{KeyFingerprint, SECRETS_PURPOSE, SecretStore, StoredSecret, secret_place};
pub use sessions::{SessionHash, SessionStore, StoredSession};
pub use sqlite::FILE_NAME;
pub use tasks::{StoredTask, TaskClaim, TaskIdScope, TaskOwners};
pub use usage::{UsageAnswer, UsageDimension, UsageQuery, UsageSum, UsageTotals};
pub use views::{StoredView, ViewStore};

/// The first version of the schema that keeps secrets.
pub const SECRETS_SINCE: i64 = 9;

/// The first version of the schema that keeps entries of the config.
pub const ENTRIES_SINCE: i64 = 12;

/// The stores of one data directory.
#[derive(Clone, Debug)]
pub struct Store {
    /// Agents that the command line manages.
    pub agents: Arc<dyn AgentStore>,
    /// API keys.
    pub keys: Arc<dyn KeyStore>,
    /// What processes may spend of budgets.
    pub leases: Arc<dyn Leases>,
    /// Where in the audit records may stand.
    pub audit: Arc<dyn AuditIndex>,
    /// Entries of the config that the API makes.
    pub entries: Arc<dyn EntryStore>,
    /// Grants towards servers.
    pub grants: Arc<dyn GrantStore>,
    /// What servers listed last.
    pub listings: Arc<dyn Listings>,
    /// What the built-in authorization server gives out.
    pub oauth: Arc<dyn OAuthStore>,
    /// Sessions of clients.
    pub sessions: Arc<dyn SessionStore>,
    /// Whose tasks of servers are.
    pub tasks: Arc<dyn TaskOwners>,
    /// Views of the catalog for one conversation each.
    pub views: Arc<dyn ViewStore>,
    /// Secrets of the operator.
    pub secrets: Arc<dyn SecretStore>,
    /// What secrets are sealed with, where that is not the key of the store.
    secret_key: Option<SecretKey>,
    secret_key_place: SecretKeyPlace,
    backend: Arc<dyn StoreBackend>,
}

impl Store {
    /// Opens the store of `data_dir`, which is created with mode 0700 when it is missing, and
    /// brings it to the schema of this version.
    ///
    /// # Errors
    /// Says what is in the way and what the operator can do.
    pub async fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Ok(Self::from_sqlite(sqlite::Sqlite::open(data_dir).await?))
    }

    /// Opens the store of `data_dir` where it has the schema of this version, or one that is no older than
    /// `oldest`, to read what that has; it brings no other to it: a gateway of before could not be started
    /// with that again.
    ///
    /// # Errors
    /// As [`Store::open`], and [`StoreError::OlderVersion`].
    pub async fn open_unchanged(data_dir: &Path, oldest: i64) -> Result<Self, StoreError> {
        Ok(Self::from_sqlite(
            sqlite::Sqlite::open_unchanged(data_dir, oldest).await?,
        ))
    }

    /// Refuses permissions on `data_dir` that [`Store::open`] would refuse.
    ///
    /// # Errors
    /// [`StoreError::UnsafePermissions`].
    pub fn check_data_dir(data_dir: &Path) -> Result<(), StoreError> {
        sqlite::check_data_dir(data_dir)
    }

    fn from_sqlite(sqlite: sqlite::Sqlite) -> Self {
        let sqlite = Arc::new(sqlite);
        Self {
            agents: sqlite.clone(),
            keys: sqlite.clone(),
            leases: sqlite.clone(),
            audit: sqlite.clone(),
            entries: sqlite.clone(),
            grants: sqlite.clone(),
            listings: sqlite.clone(),
            oauth: sqlite.clone(),
            sessions: sqlite.clone(),
            tasks: sqlite.clone(),
            views: sqlite.clone(),
            secrets: sqlite.clone(),
            secret_key: None,
            secret_key_place: SecretKeyPlace::DataDir,
            backend: sqlite,
        }
    }

    /// Whether the file that is open is still that of the data directory.
    ///
    /// # Errors
    /// [`StoreError::FileRemoved`] and [`StoreError::FileReplaced`].
    pub fn check_file(&self) -> Result<(), StoreError> {
        self.backend.check_file()
    }

    /// A key for `purpose` that the gateways of this store have in common, and nobody else knows.
    pub fn derive_key(&self, purpose: &str) -> [u8; 32] {
        self.backend.derive_key(purpose)
    }

    /// The same store, whose secrets are sealed with the key in `place`.
    ///
    /// # Errors
    /// [`SecretKeyError`].
    pub fn with_secret_key(mut self, place: &SecretKeyPlace) -> Result<Self, SecretKeyError> {
        self.secret_key = SecretKey::read(place)?;
        self.secret_key_place = place.clone();
        Ok(self)
    }

    /// A key for `purpose` that is derived from the one of secrets.
    pub fn derive_secret_key(&self, purpose: &str) -> [u8; 32] {
        match &self.secret_key {
            Some(key) => key.derive(purpose),
            None => self.derive_key(purpose),
        }
    }

    /// What seals secrets of one `purpose`, such as `secrets` or `grants`. The store keeps a mark of the key
    /// from the first use on, and gives no other one then.
    ///
    /// # Errors
    /// [`SecretKeyError::Wrong`] where the key is another one than before.
    pub async fn sealing_key(&self, purpose: &str) -> Result<SealingKey, StoreError> {
        let (key, mark) = self.marked_key(purpose);
        let kept = self.secrets.claim_key(purpose, &mark, clock::now()).await?;
        self.check_key(purpose, &mark, kept)?;
        Ok(SealingKey::new(&key))
    }

    /// The same to open what is sealed only: `None` where nothing was sealed for `purpose`.
    ///
    /// # Errors
    /// As [`Store::sealing_key`].
    pub async fn opening_key(&self, purpose: &str) -> Result<Option<SealingKey>, StoreError> {
        let Some(kept) = self.secrets.key_of(purpose).await? else {
            return Ok(None);
        };
        let (key, mark) = self.marked_key(purpose);
        self.check_key(purpose, &mark, kept)?;
        Ok(Some(SealingKey::new(&key)))
    }

    fn marked_key(&self, purpose: &str) -> ([u8; 32], KeyFingerprint) {
        let key = self.derive_secret_key(purpose);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&key_file::derive_key(&key, "fingerprint")[..16]);
        let place = self.secret_key_place.to_string();
        (key, KeyFingerprint { bytes, place })
    }

    fn check_key(
        &self,
        purpose: &str,
        found: &KeyFingerprint,
        kept: KeyFingerprint,
    ) -> Result<(), SecretKeyError> {
        if found.bytes == kept.bytes {
            return Ok(());
        }
        Err(SecretKeyError::Wrong {
            purpose: purpose.to_owned(),
            database: self.backend.path().to_owned(),
            looked: found.place.clone(),
            place: kept.place,
        })
    }

    /// Waits for what is under way and closes the files.
    pub async fn close(&self) {
        self.backend.close().await;
    }
}

/// The file and the secret key of an implementation, and the end of its connections.
trait StoreBackend: std::fmt::Debug + Send + Sync {
    fn check_file(&self) -> Result<(), StoreError>;

    fn derive_key(&self, purpose: &str) -> [u8; 32];

    /// Where it is.
    fn path(&self) -> &Path;

    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Why the store does not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process kept the database locked for longer than we wait; trying again may help.
    #[error(
        "{path} was locked by another process for {seconds} s while {doing}; check for a process \
         that keeps it open, such as a backup, and try again"
    )]
    Busy {
        /// The database.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// How long we waited, in seconds.
        seconds: u64,
    },
    /// The database is damaged or is none; the operator restores or removes it.
    #[error(
        "{path} is corrupt or not a database ({detail}); restore it from a backup, or move it away \
         to start with an empty one"
    )]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// What the database library says.
        detail: String,
    },
    /// The data directory cannot be made or used; the operator mends path or permissions.
    #[error(
        "the data directory {path} cannot be used: {source}; set `data_dir` to a directory that \
         this user may write to"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Anything else that the database reports.
    #[error("{path}: {doing} failed: {source}")]
    Failed {
        /// The database.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the database library says.
        source: sqlx::Error,
    },
    /// There is such an entry of the config already; the caller changes that one, or chooses another name.
    #[error("the {entry} already exists")]
    EntryExists {
        /// Which.
        entry: EntryKey,
    },
    /// The file was removed while it was open; the operator puts it back.
    #[error(
        "{path} was removed; what this process stores in it is lost when it ends, and other processes do \
         not see it: stop the gateway, put back the file from a backup, and start the gateway"
    )]
    FileRemoved {
        /// The database.
        path: PathBuf,
    },
    /// The file was replaced while it was open; the operator starts the gateway again.
    #[error(
        "{path} was replaced; this process goes on with the file that was there before, which nobody else \
         sees: restart the gateway to use the new one"
    )]
    FileReplaced {
        /// The database.
        path: PathBuf,
    },
    /// The file is a database of another program; the operator chooses another directory.
    #[error(
        "{path} belongs to another program; set `data_dir` to a directory used only by Tollbridge"
    )]
    NotOurDatabase {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full; the operator makes room.
    #[error("no space left on the disk of {path} while {doing}; free some space and try again")]
    Full {
        /// The database.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
    },
    /// The file with the secret key; the operator mends it.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The secret key is gone, and rows need it; the operator restores it, or gives up what it protects.
    #[error(
        "{key} is missing, and agents, keys, entries or secrets in {path} are signed or sealed with it; \
         nothing was changed. Restore it from the backup. If it is lost, make another: `(umask 077; head \
         -c 32 /dev/urandom > {key})`; stored agents, keys, entries and secrets are refused then until \
         they are made again"
    )]
    KeyMissing {
        /// The file.
        key: PathBuf,
        /// The database.
        path: PathBuf,
    },
    /// The key of secrets; the operator mends it.
    #[error(transparent)]
    SecretKey(#[from] SecretKeyError),
    /// An agent of this name exists; the caller chooses another.
    #[error("an agent named `{name}` already exists")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A newer version has changed the schema; the operator starts that version.
    #[error(
        "{path} was written by a newer version of Tollbridge (schema {found}, this version \
         supports {known}); run that version, or set `data_dir` to another directory"
    )]
    NewerVersion {
        /// The database.
        path: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The newest version that we know.
        known: i64,
    },
    /// A file stands where the data directory should be; the operator moves it or sets another path.
    #[error("the data directory {path} is a file; move it, or set `data_dir` to a directory")]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// An older version wrote the schema, and nobody asked to change it; the operator starts this version.
    #[error(
        "{path} was written by an older version of Tollbridge (schema {found}, this version has \
         {known}) and was not changed; it is migrated when this version first starts a gateway"
    )]
    OlderVersion {
        /// The database.
        path: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The version that we have.
        known: i64,
    },
    /// The database may be read but not written; the operator mends permissions.
    #[error(
        "{path} cannot be written ({doing}); make the file and its directory writable for this \
         user, or set `data_dir` to another directory"
    )]
    ReadOnly {
        /// The database.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
    },
    /// Everybody on this machine can write to the data directory; the operator changes that.
    #[error(
        "the data directory {path} is writable by other users (mode {mode:04o}): run `chmod o-w`"
    )]
    UnsafePermissions {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A stored value does not mean anything to this version; most likely a newer one wrote it.
    #[error(
        "{path}: cannot decode {what}: {detail}; it was probably written by a newer version of \
         Tollbridge"
    )]
    Undecodable {
        /// The database.
        path: PathBuf,
        /// Which value.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
}
