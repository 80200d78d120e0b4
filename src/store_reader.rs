//! Reads for configs what the store has: secrets, and entries that the API and the command line made.

use std::{collections::HashMap, path::Path, thread};

use crate::{
    config::{ConfigEntry, ReadSecrets, Secret, SecretKeyPlace, StoreReader},
    escape,
    store::{
        ENTRIES_SINCE, FILE_NAME, SECRETS_PURPOSE, SECRETS_SINCE, Store, StoreError, secret_place,
    },
};

/// Reads the store in the data directory of a config, and makes none there.
#[derive(Clone, Copy, Debug)]
pub struct DataDirReader;

impl StoreReader for DataDirReader {
    fn secrets(&self, data_dir: &Path, key: &SecretKeyPlace) -> Result<ReadSecrets, String> {
        read_store(data_dir, read_secrets(data_dir, key))
    }

    fn entries(&self, data_dir: &Path) -> Result<Vec<ConfigEntry>, String> {
        read_store(data_dir, read_entries(data_dir))
    }
}

/// What `read` finds in the store of `data_dir`; nothing where there is none, or one of a version that kept no such
/// thing.
fn read_store<T: Default + Send>(
    data_dir: &Path,
    read: impl Future<Output = Result<T, StoreError>> + Send,
) -> Result<T, String> {
    if matches!(data_dir.join(FILE_NAME).try_exists(), Ok(false)) {
        return Ok(T::default());
    }
    // Configs are read on threads of a runtime and on others; the store needs one of its own.
    let reader = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match runtime.map_err(|error| error.to_string())?.block_on(read) {
            Err(StoreError::OlderVersion { .. }) => Ok(T::default()),
            read => read.map_err(|error| error.to_string()),
        }
    };
    thread::scope(|scope| scope.spawn(reader).join())
        .unwrap_or_else(|_| Err("reading the store was interrupted".to_owned()))
}

async fn read_secrets(data_dir: &Path, key: &SecretKeyPlace) -> Result<ReadSecrets, StoreError> {
    let store = Store::open_unchanged(data_dir, SECRETS_SINCE).await?;
    let store = store.with_secret_key(key)?;
    let secrets = open_all(&store).await;
    store.close().await;
    secrets
}

async fn read_entries(data_dir: &Path) -> Result<Vec<ConfigEntry>, StoreError> {
    let store = Store::open_unchanged(data_dir, ENTRIES_SINCE).await?;
    let entries = store.entries.entries().await;
    store.close().await;
    let entries = entries?;
    for refused in &entries.refused {
        tracing::error!("{}", escape::escape_controls(&refused.to_string(), &[]));
    }
    Ok(entries
        .rows
        .into_iter()
        .map(|stored| stored.entry)
        .collect())
}

async fn open_all(store: &Store) -> Result<ReadSecrets, StoreError> {
    let Some(key) = store.opening_key(SECRETS_PURPOSE).await? else {
        return Ok(HashMap::new());
    };
    let mut secrets = HashMap::new();
    for stored in store.secrets.secrets().await? {
        let name = stored.name;
        // It may have been removed meanwhile.
        let Some(sealed) = store.secrets.sealed(&name).await? else {
            continue;
        };
        let opened = key.open(&secret_place(&name), &sealed);
        let value = opened
            .map_err(|error| format!("{error}; set it again: `tollbridge secret set {name}`"))
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned()));
        secrets.insert(name, value.map(Secret::new));
    }
    Ok(secrets)
}
