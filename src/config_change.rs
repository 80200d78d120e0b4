//! Changes to entries of the config that stand in the store: what they would do, before they are made.

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    audit::{ChangedValues, MaskedDocument},
    config::{
        Config, ConfigEntry, ConfigErrors, EntryKey, LoadedConfig, ReadSecrets, SecretKeyPlace,
        StoreReader, mask_document,
    },
    store::{EntryWrite, Store, StoreError, StoredEntry},
    store_reader::DataDirReader,
};

/// A change to one entry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EntryChange {
    /// Which entry.
    pub key: EntryKey,
    /// What it is to say, JSON; `None`: it is removed.
    pub document: Option<String>,
    /// What must be the case before.
    pub precondition: EntryPrecondition,
}

/// What must be the case before an entry is changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EntryPrecondition {
    /// There is none of this name.
    Absent,
    /// There is one.
    Present,
    /// There is one, and it was last changed then.
    Version(Timestamp),
}

/// Why an entry is not changed. Nothing has changed then, but for [`ChangeError::NotApplied`].
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is one of this name; the caller changes that, or takes another name.
    #[error("the {0} already exists")]
    Exists(EntryKey),
    /// A file has it; the operator changes it there.
    #[error("the {key} stands in {place}; change it there")]
    InFile {
        /// Which.
        key: EntryKey,
        /// File and line.
        place: String,
    },
    /// What it says is wrong; the caller mends it.
    #[error("{fault}")]
    Invalid {
        /// What is wrong, in one sentence.
        fault: String,
    },
    /// There is none; the caller looks for another.
    #[error("there is no {0}")]
    Missing(EntryKey),
    /// The files of the config are wrong, so that nothing can be added; the operator mends them.
    #[error("the config files have errors, so that nothing can be changed beside them: {0}")]
    Files(ConfigErrors),
    /// The gateway cannot run with it.
    #[error("the gateway cannot run with the change: {0}")]
    Rejected(String),
    /// The store has the change, but the gateway could not read the config again, most likely for what somebody
    /// writes to a file at this moment; the operator mends that.
    #[error("the change is stored and counts once the config can be read again: {0}")]
    NotApplied(String),
    /// The audit cannot record it; the operator mends that.
    #[error("the change cannot be recorded: {0}")]
    NotRecorded(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no store; the operator sets `data_dir` to one that can be written.
    #[error("this gateway has no store to keep entries in; see `data_dir`")]
    NoStore,
    /// Somebody else changed it meanwhile; the caller reads it again.
    #[error("the {key} was changed since: read it again")]
    Conflict {
        /// Which.
        key: EntryKey,
        /// When it was last changed.
        current: Timestamp,
    },
}

/// Reads the store as it would be after a change.
#[derive(Clone, Debug)]
pub struct ChangedStoreReader(pub Option<EntryChange>);

impl StoreReader for ChangedStoreReader {
    fn secrets(&self, data_dir: &Path, key: &SecretKeyPlace) -> Result<ReadSecrets, String> {
        DataDirReader.secrets(data_dir, key)
    }

    fn entries(&self, data_dir: &Path) -> Result<Vec<ConfigEntry>, String> {
        let mut entries = DataDirReader.entries(data_dir)?;
        if let Some(change) = &self.0 {
            change.apply(&mut entries);
        }
        Ok(entries)
    }
}

impl EntryChange {
    /// Makes the change in `entries`.
    fn apply(&self, entries: &mut Vec<ConfigEntry>) {
        let at = entries.iter().position(|entry| entry.key == self.key);
        match (&self.document, at) {
            (Some(document), Some(at)) => entries[at].document.clone_from(document),
            (Some(document), None) => entries.push(ConfigEntry {
                key: self.key.clone(),
                document: document.clone(),
            }),
            (None, Some(at)) => drop(entries.remove(at)),
            (None, None) => {}
        }
    }

    /// Checks that it may be made to what the files of `config` say and to `stored`, the entries of the store.
    ///
    /// # Errors
    /// [`ChangeError::Exists`], [`ChangeError::InFile`], [`ChangeError::Missing`], [`ChangeError::Conflict`].
    pub fn check_precondition(
        &self,
        config: &Config,
        stored: &[StoredEntry],
    ) -> Result<(), ChangeError> {
        let key = &self.key;
        if let Some(place) = config.entries.in_files.get(key) {
            return Err(match self.precondition {
                EntryPrecondition::Absent => ChangeError::Exists(key.clone()),
                EntryPrecondition::Present | EntryPrecondition::Version(_) => ChangeError::InFile {
                    key: key.clone(),
                    place: place.to_string(),
                },
            });
        }
        let found = stored.iter().find(|stored| stored.entry.key == *key);
        match (self.precondition, found) {
            (EntryPrecondition::Absent, Some(_)) => Err(ChangeError::Exists(key.clone())),
            (EntryPrecondition::Present | EntryPrecondition::Version(_), None) => {
                Err(ChangeError::Missing(key.clone()))
            }
            (EntryPrecondition::Version(version), Some(found)) if version != found.changed => {
                Err(ChangeError::Conflict {
                    key: key.clone(),
                    current: found.changed,
                })
            }
            _ => Ok(()),
        }
    }

    /// Writes it to `store`; the version that the entry has `now`.
    ///
    /// # Errors
    /// Those of the store, and of what somebody else has changed meanwhile.
    pub async fn write(&self, store: &Store, now: Timestamp) -> Result<Timestamp, ChangeError> {
        let key = &self.key;
        let expected = match self.precondition {
            EntryPrecondition::Version(version) => Some(version),
            EntryPrecondition::Absent | EntryPrecondition::Present => None,
        };
        let written = match (self.to_entry(), self.precondition) {
            (Some(entry), EntryPrecondition::Absent) => {
                let added = store.entries.add(&entry, now).await;
                return added.map_err(|error| {
                    if let StoreError::EntryExists { entry } = error {
                        ChangeError::Exists(entry)
                    } else {
                        ChangeError::Store(error)
                    }
                });
            }
            (Some(entry), _) => store.entries.replace(&entry, expected, now).await?,
            (None, _) => store.entries.remove(key, expected).await?,
        };
        match written {
            EntryWrite::Done(version) => Ok(version),
            EntryWrite::Missing => Err(ChangeError::Missing(key.clone())),
            EntryWrite::Conflict(current) => Err(ChangeError::Conflict {
                key: key.clone(),
                current,
            }),
        }
    }

    /// What it makes of the keys of the entry, which is among `stored` where there is one; secrets are masked.
    pub fn changed_values(&self, stored: &[StoredEntry]) -> ChangedValues {
        let stored = stored.iter().find(|stored| stored.entry.key == self.key);
        let old = stored.map_or("{}", |stored| &*stored.entry.document);
        let new = self.document.as_deref().unwrap_or("{}");
        let [old, new] = [old, new].map(|text| {
            let written: Value = serde_json::from_str(text).unwrap_or_default();
            (written, mask_document(text))
        });
        let [old, new] = [&old, &new].map(|(written, shown)| MaskedDocument { written, shown });
        ChangedValues::between_masked(old, new)
    }

    /// What the entry is after the change; `None`: it is gone.
    pub fn to_entry(&self) -> Option<ConfigEntry> {
        let document = self.document.clone()?;
        Some(ConfigEntry {
            key: self.key.clone(),
            document,
        })
    }

    /// Checks that the entry counts in `loaded`, the config with the change.
    ///
    /// # Errors
    /// [`ChangeError::Invalid`].
    pub fn check(&self, loaded: &LoadedConfig) -> Result<(), ChangeError> {
        let mut faulty = loaded.config.entries.faulty.iter();
        match faulty.find(|faulty| faulty.key == self.key) {
            Some(faulty) if self.document.is_some() => Err(ChangeError::Invalid {
                fault: faulty.fault.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}
