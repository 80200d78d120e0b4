//! What shows that a gateway or the command line wrote a row: an HMAC under a key that is in a file of
//! its own. Who can only write to the database makes no agent and no key, nor changes one.

use std::collections::{HashMap, HashSet};

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tokio::sync::Mutex;

use crate::{
    key_file::FileKey,
    store::{RefusedRow, RowFault, StoreError, StoredRows},
};

/// The MAC of a row.
pub(super) type RowMac = [u8; 32];

/// A value of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum ColumnValue<'a> {
    Null,
    Integer(i64),
    Bytes(&'a [u8]),
}

impl From<i64> for ColumnValue<'_> {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<Option<i64>> for ColumnValue<'_> {
    fn from(value: Option<i64>) -> Self {
        value.map_or(Self::Null, Self::Integer)
    }
}

impl<'a> From<&'a [u8]> for ColumnValue<'a> {
    fn from(value: &'a [u8]) -> Self {
        Self::Bytes(value)
    }
}

impl<'a> From<Option<&'a [u8]>> for ColumnValue<'a> {
    fn from(value: Option<&'a [u8]>) -> Self {
        value.map_or(Self::Null, Self::Bytes)
    }
}

/// A row with a MAC.
pub(super) trait MacRow {
    const TABLE: &'static str;

    fn id(&self) -> &[u8];

    /// When it was written, which grows with each change.
    fn changed_ms(&self) -> i64;

    fn mac(&self) -> Option<&[u8]>;

    /// All that the MAC covers besides id and time, in an order that never changes.
    fn values(&self) -> Vec<ColumnValue<'_>>;

    /// The row as it is reported when it is refused.
    fn to_refused(&self, why: RowFault) -> RefusedRow;
}

/// Makes and checks MACs of rows.
#[derive(Debug)]
pub(super) struct Signer {
    key: FileKey,
    rows: Hmac<Sha256>,
    /// The rows of each table that were ever listed: an earlier state of one, or one that was removed, has a
    /// MAC too.
    latest_seen: Mutex<HashMap<&'static str, HashMap<Vec<u8>, SeenRow>>>,
}

/// The last state of a row that was listed.
#[derive(Clone, Copy, Debug, Default)]
struct SeenRow {
    changed_ms: i64,
    is_removed: bool,
}

impl Signer {
    /// Derives what it needs from `key`.
    pub(super) fn new(key: FileKey) -> Self {
        let rows = key.derive("rows of agents and keys");
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let rows = Hmac::new_from_slice(&rows).expect("any length will do");
        Self {
            key,
            rows,
            latest_seen: Mutex::default(),
        }
    }

    /// A key for another purpose.
    pub(super) fn derive(&self, purpose: &str) -> [u8; 32] {
        self.key.derive(purpose)
    }

    pub(super) fn sign<R: MacRow>(&self, row: &R) -> RowMac {
        self.hmac(row).finalize().into_bytes().into()
    }

    /// The rows of a table, all of which `read` reads, as `stored` understands them. Those without their MAC,
    /// or in an earlier state than was seen, are refused; one that was removed is such, unless it was written
    /// anew since.
    pub(super) async fn verified_rows<R: MacRow, T>(
        &self,
        read: impl Future<Output = Result<Vec<R>, StoreError>>,
        stored: impl Fn(R) -> Result<T, StoreError>,
    ) -> Result<StoredRows<T>, StoreError> {
        // Held from before the reading, so that an older list is never looked at after a newer one.
        let mut tables = self.latest_seen.lock().await;
        let seen = tables.entry(R::TABLE).or_default();
        let rows = read.await?;
        let there: HashSet<&[u8]> = rows.iter().map(MacRow::id).collect();
        for (id, row) in &mut *seen {
            row.is_removed |= !there.contains(id.as_slice());
        }
        self.verify_all(rows, stored, seen)
    }

    /// The same for some of the rows, which says nothing of others.
    pub(super) async fn verified_part<R: MacRow, T>(
        &self,
        read: impl Future<Output = Result<Vec<R>, StoreError>>,
        stored: impl Fn(R) -> Result<T, StoreError>,
    ) -> Result<StoredRows<T>, StoreError> {
        let mut tables = self.latest_seen.lock().await;
        let seen = tables.entry(R::TABLE).or_default();
        let rows = read.await?;
        self.verify_all(rows, stored, seen)
    }

    fn verify_all<R: MacRow, T>(
        &self,
        rows: Vec<R>,
        stored: impl Fn(R) -> Result<T, StoreError>,
        seen: &mut HashMap<Vec<u8>, SeenRow>,
    ) -> Result<StoredRows<T>, StoreError> {
        let mut listed = StoredRows::default();
        for row in rows {
            match self.verify_row(&row, seen) {
                Ok(()) => listed.rows.push(stored(row)?),
                Err(why) => listed.refused.push(row.to_refused(why)),
            }
        }
        Ok(listed)
    }

    /// Whether `row` has its MAC, and is the latest state of it that was seen.
    fn verify_row<R: MacRow>(
        &self,
        row: &R,
        seen: &mut HashMap<Vec<u8>, SeenRow>,
    ) -> Result<(), RowFault> {
        let mac = row.mac().ok_or(RowFault::Unsigned)?;
        let verified = self.hmac(row).verify_slice(mac);
        verified.map_err(|_| RowFault::MacMismatch)?;
        let changed_ms = row.changed_ms();
        let last = seen.entry(row.id().to_vec()).or_default();
        if changed_ms < last.changed_ms || last.is_removed && changed_ms == last.changed_ms {
            return Err(RowFault::RolledBack);
        }
        *last = SeenRow {
            changed_ms,
            is_removed: false,
        };
        Ok(())
    }

    fn hmac<R: MacRow>(&self, row: &R) -> Hmac<Sha256> {
        let mut hmac = self.rows.clone();
        let ours = [
            R::TABLE.as_bytes().into(),
            row.id().into(),
            row.changed_ms().into(),
        ];
        for value in ours.into_iter().chain(row.values()) {
            // Each says how long it is, so that no two rows give the same bytes.
            match value {
                ColumnValue::Null => hmac.update(&[0]),
                ColumnValue::Integer(number) => {
                    hmac.update(&[1]);
                    hmac.update(&number.to_be_bytes());
                }
                ColumnValue::Bytes(bytes) => {
                    hmac.update(&[2]);
                    hmac.update(&(bytes.len() as u64).to_be_bytes());
                    hmac.update(bytes);
                }
            }
        }
        hmac
    }
}
