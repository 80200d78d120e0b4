//! Changes entries of the config that stand in the store, and the running gateway with them.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::{sync::Mutex, task::spawn_blocking};

use super::{
    ConfigSource, authorization::notify_others, config_diff::differences,
    config_watch::ReloadRequests, reload::Reloader, server_trial, storage::StorageKeeper,
};
use crate::{
    api::{ChangePlan, ConfigWriter, Problem, ServerTrial, view_event},
    audit::{ChangedValues, EventKind},
    clock,
    config::{Config, EntryKey, EntrySection, LoadedConfig},
    config_change::{ChangeError, EntryChange},
    names::ServerName,
    store::StoredEntry,
    views::{ViewChange, ViewOutcome},
};

/// Changes entries, one at a time.
pub(super) struct EntryWriter {
    /// Where the config comes from, and who reads it again.
    source: OnceLock<(Arc<ConfigSource>, ReloadRequests)>,
    reloader: Arc<Reloader>,
    storage: Arc<StorageKeeper>,
    /// This binary, which starts programs.
    launcher: Option<PathBuf>,
    /// Held from the check to the end of a change: two that are right alone need not be so together.
    writing: Mutex<()>,
}

impl fmt::Debug for EntryWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryWriter").finish_non_exhaustive()
    }
}

impl EntryWriter {
    pub(super) fn new(
        reloader: &Arc<Reloader>,
        storage: &Arc<StorageKeeper>,
        launcher: Option<PathBuf>,
    ) -> Self {
        Self {
            source: OnceLock::new(),
            reloader: Arc::clone(reloader),
            storage: Arc::clone(storage),
            launcher,
            writing: Mutex::default(),
        }
    }

    /// Where the config comes from, and who reads it again; only the first counts.
    pub(super) fn set_source(&self, source: Arc<ConfigSource>, requests: ReloadRequests) {
        drop(self.source.set((source, requests)));
    }

    /// The config with `change`, if that is right.
    async fn load(&self, change: &EntryChange) -> Result<Config, ChangeError> {
        let (source, _) = self.source.get().ok_or(ChangeError::NoStore)?;
        let source = Arc::clone(source);
        let asked = change.clone();
        let loaded = spawn_blocking(move || source.load_with(Some(asked))).await;
        let loaded = loaded.map_err(|error| ChangeError::Rejected(error.to_string()))?;
        let loaded: LoadedConfig = loaded.map_err(ChangeError::Files)?;
        check(change, &loaded)?;
        Ok(loaded.config)
    }

    /// Lets the gateway run what the store and the files say now.
    async fn reload(&self) -> Result<(), ChangeError> {
        if let Err(error) = self.storage.reread_quietly().await {
            tracing::warn!(%error, "the store was changed but cannot be read again");
        }
        self.apply_stored().await
    }

    /// The same, once the store was read.
    pub(super) async fn apply_stored(&self) -> Result<(), ChangeError> {
        let Some((_, requests)) = self.source.get() else {
            return Ok(());
        };
        match requests.reload().await {
            Some(Err(refused)) => Err(ChangeError::NotApplied(refused.to_string())),
            // A gateway that stops reads it when it starts.
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Checks that `change` may be made to what the store has.
    fn check_precondition(&self, change: &EntryChange) -> Result<(), ChangeError> {
        change.check_precondition(&self.reloader.running(), &self.entries())
    }

    fn to_plan(&self, config: &Config) -> ChangePlan {
        plan(&self.reloader.running(), config)
    }

    async fn apply_change(
        &self,
        change: &EntryChange,
        record: (&str, &str),
    ) -> Result<(ChangePlan, Timestamp), ChangeError> {
        let _writing = self.writing.lock().await;
        self.check_precondition(change)?;
        let config = self.load(change).await?;
        let plan = self.to_plan(&config);
        let changes = change.changed_values(&self.entries());
        let store = self.storage.store().ok_or(ChangeError::NoStore)?;
        let version = change.write(store, clock::now()).await?;
        let subject = change.key.to_string();
        let event = EventKind::ConfigChanged;
        self.reloader
            .record_change(event, &subject, record, changes);
        let reloaded = self.reload().await;
        notify_others(self.storage.data_dir(), "a changed entry of the config").await;
        reloaded.map(|()| (plan, version))
    }
}

/// Checks that the gateway can run with `change`, with which the config was `loaded`.
pub(crate) fn check(change: &EntryChange, loaded: &LoadedConfig) -> Result<(), ChangeError> {
    change.check(loaded)?;
    Reloader::check(&loaded.config).map_err(|refused| ChangeError::Rejected(refused.to_string()))
}

/// What `new` does to a gateway that runs with `old`.
pub(crate) fn plan(old: &Config, new: &Config) -> ChangePlan {
    ChangePlan::of(old, new, differences(old, new))
}

impl ConfigWriter for EntryWriter {
    fn running(&self) -> Arc<Config> {
        self.reloader.running()
    }

    fn entries(&self) -> Vec<StoredEntry> {
        self.storage.config_input().borrow().entries.clone()
    }

    fn plan<'a>(
        &'a self,
        change: &'a EntryChange,
    ) -> BoxFuture<'a, Result<ChangePlan, ChangeError>> {
        Box::pin(async move {
            self.check_precondition(change)?;
            let config = self.load(change).await?;
            Ok(self.to_plan(&config))
        })
    }

    fn apply<'a>(
        &'a self,
        change: &'a EntryChange,
        record: (&'a str, &'a str),
    ) -> BoxFuture<'a, Result<(ChangePlan, Timestamp), ChangeError>> {
        Box::pin(self.apply_change(change, record))
    }

    fn try_server<'a>(
        &'a self,
        name: &'a ServerName,
        unsaved: Option<&'a EntryChange>,
    ) -> BoxFuture<'a, Result<ServerTrial, ChangeError>> {
        Box::pin(async move {
            let config = match unsaved {
                Some(change) => Arc::new(self.load(change).await?),
                None => self.reloader.running(),
            };
            let server = config.servers.get(name).cloned();
            let key = EntryKey::new(EntrySection::Servers, name.as_str());
            let server = server.ok_or(ChangeError::Missing(key))?;
            Ok(server_trial::run(&config, (name, server), self.launcher.clone()).await)
        })
    }

    fn apply_agents(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let refreshed = self.storage.refresh().await;
            notify_others(self.storage.data_dir(), "a changed agent or key").await;
            if refreshed? {
                let applied = self.apply_stored().await;
                applied.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }

    fn change_view<'a>(
        &'a self,
        change: &'a ViewChange,
        record: (&'a str, &'a str),
    ) -> BoxFuture<'a, Result<ViewOutcome, Problem>> {
        Box::pin(async move {
            let store = self.storage.store().ok_or(ChangeError::NoStore)?;
            let outcome = change.write(&*store.views).await?;
            if let ViewOutcome::Done(_) = outcome {
                let id = change.view().id.to_string();
                let event = view_event(change);
                let changes = ChangedValues::default();
                self.reloader.record_change(event, &id, record, changes);
                self.storage.views().reread(&*store.views).await?;
                notify_others(self.storage.data_dir(), "a changed view").await;
            }
            Ok(outcome)
        })
    }

    fn restart_server(&self, name: &ServerName) -> bool {
        self.reloader.restart_server(name)
    }
}
