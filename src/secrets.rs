//! Reads secrets of the store for configs.

use std::{collections::HashMap, path::Path, thread};

use crate::{
    config::{ReadSecrets, Secret, SecretKeyPlace, SecretReader},
    store::{FILE_NAME, SECRETS_PURPOSE, Store, StoreError, secret_place},
};

/// Reads secrets of the store in the data directory of a config, and makes none there.
#[derive(Clone, Copy, Debug)]
pub struct StoreSecretReader;

impl SecretReader for StoreSecretReader {
    fn read(&self, data_dir: &Path, key: &SecretKeyPlace) -> Result<ReadSecrets, String> {
        if matches!(data_dir.join(FILE_NAME).try_exists(), Ok(false)) {
            return Ok(HashMap::new());
        }
        // Configs are read on threads of a runtime and on others; the store needs one of its own.
        let reader = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime
                .map_err(|error| error.to_string())?
                .block_on(read(data_dir, key))
                .map_err(|error| error.to_string())
        };
        thread::scope(|scope| scope.spawn(reader).join())
            .unwrap_or_else(|_| Err("reading the store was interrupted".to_owned()))
    }
}

async fn read(data_dir: &Path, key: &SecretKeyPlace) -> Result<ReadSecrets, StoreError> {
    let store = match Store::open_unchanged(data_dir).await {
        Ok(store) => store.with_secret_key(key)?,
        // An older version kept none.
        Err(StoreError::OlderVersion { .. }) => return Ok(HashMap::new()),
        Err(error) => return Err(error),
    };
    let secrets = open_all(&store).await;
    store.close().await;
    secrets
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
