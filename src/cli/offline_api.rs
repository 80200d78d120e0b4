//! The operations of the admin API in this process, on the store: they need no gateway, and those that run are told.
//!
//! Requests go to the same handlers as those over HTTP, so that validation, messages and answers are the same. What
//! differs is who writes: [`StoreWriter`] in place of the one of a gateway.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, StatusCode, header::CONTENT_TYPE};
use jiff::Timestamp;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{
    args::ConfigArgs,
    data_dir::{AuditNote, CommandError, DataDir},
    process_context,
};
use crate::{
    api::{
        Api, ApiCaller, ApiState, ChangePlan, ConfigWriter, EventStreams, FoundPlaces, Problem,
        ServerTrial, ServerTrials, view_event,
    },
    app::{self, GatewayCore, ProcessContext},
    audit::{ChangedValues, EventKind},
    auth::Agent,
    clock,
    config::{
        self, Config, ConfigFormat, ConfigText, EntryKey, EntrySection, Environment, LoadScope,
        LoadedConfig, Role,
    },
    config_change::{ChangeError, EntryChange},
    lock::lock,
    names::{PeerAddress, ServerName},
    store::StoredEntry,
    views::{ViewChange, ViewOutcome},
};

/// The config of what stands in for a gateway: it has no servers and keeps nothing.
const IDLE_CONFIG: &str = "[audit]\nenabled = false\n";

/// The operations of the API.
#[derive(Debug)]
pub(super) struct OfflineApi {
    api: Api,
    /// Has no servers; what the API says of those that run, it says of none.
    idle: GatewayCore,
}

/// An answer of the API.
#[derive(Debug)]
pub(super) struct ApiAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl OfflineApi {
    /// The operations on the store of `data_dir` and the config that `args` name.
    pub(super) async fn start(
        args: &ConfigArgs,
        data_dir: &Arc<DataDir>,
    ) -> Result<Self, CommandError> {
        let text = ConfigText {
            name: "idle".to_owned(),
            format: ConfigFormat::Toml,
            text: IDLE_CONFIG.to_owned(),
            directory: "/".into(),
        };
        let idle = config::parse([text], &Environment::default());
        let idle = Config {
            data_dir: data_dir.config.data_dir.clone(),
            ..idle
                .map_err(|error| CommandError::usage(error.to_string()))?
                .config
        };
        let idle = GatewayCore::start_stateless(&idle, ProcessContext::default()).await?;
        let directory = idle.proxy.governance().directory();
        let configured = data_dir.config.agents.values().cloned().collect();
        directory.update_config(data_dir.config.governance.auth, configured);
        let agents = data_dir.store.agents.agents().await?.rows;
        directory.update_store(agents.into_iter().map(Agent::from).collect(), Vec::new());
        let stored = data_dir.store.entries.entries().await?;
        let writer = StoreWriter {
            args: args.clone(),
            data_dir: Arc::clone(data_dir),
            running: Mutex::new(Arc::new(data_dir.config.clone())),
            stored: Mutex::new(stored.rows),
        };
        let api = Api::new(ApiState {
            proxy: Arc::clone(&idle.proxy),
            status: Arc::clone(&idle.status),
            writer: Arc::new(writer),
            store: Some(data_dir.store.clone()),
            data_dir: data_dir.config.data_dir.clone(),
            tasks: idle.tasks().clone(),
            trials: ServerTrials::default(),
            event_streams: EventStreams::default(),
            found_places: FoundPlaces::default(),
            agent_changes: tokio::sync::Mutex::default(),
        });
        Ok(Self { api, idle })
    }

    /// What the operation `method` `path`, below `/api/v1`, answers to an admin.
    pub(super) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> ApiAnswer {
        let caller = ApiCaller {
            agent: Arc::new(Agent::anonymous()),
            role: Role::Admin,
            address: PeerAddress::User(rustix::process::getuid().as_raw()),
        };
        let body = body.map(ToString::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header(CONTENT_TYPE, "application/json")
            .extension(caller)
            .body(Bytes::from(body))
            .expect("names in paths are encoded");
        let response = self.api.handle(request).await;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let body = body.unwrap_or_default();
        ApiAnswer {
            status,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        }
    }

    pub(super) async fn stop(self) {
        self.idle.stop().await;
    }
}

/// Changes entries of the store, and tells gateways that run.
#[derive(Debug)]
struct StoreWriter {
    args: ConfigArgs,
    data_dir: Arc<DataDir>,
    /// The config as it is, of which servers are not used.
    running: Mutex<Arc<Config>>,
    stored: Mutex<Vec<StoredEntry>>,
}

impl StoreWriter {
    /// The config with `change`; the server `used` has all that it needs.
    async fn load(
        &self,
        used: Option<&str>,
        change: Option<&EntryChange>,
    ) -> Result<LoadedConfig, ChangeError> {
        let args = self.args.clone();
        let (used, change) = (used.map(str::to_owned), change.cloned());
        let read = spawn_blocking(move || {
            let scope = used
                .as_deref()
                .map_or(LoadScope::DataDir, LoadScope::OneServer);
            args.read_with(scope, change)
        });
        let read = read.await;
        let read = read.map_err(|error| ChangeError::Rejected(error.to_string()))?;
        read.map_err(ChangeError::Files)
    }

    /// What `change` does, and the config that it makes.
    async fn check(&self, change: &EntryChange) -> Result<(ChangePlan, Config), ChangeError> {
        change.check_precondition(&self.running(), &self.entries())?;
        let is_server = change.key.section == EntrySection::Servers;
        let used = is_server.then_some(change.key.name.as_str());
        let new = self.load(used, Some(change)).await?;
        app::check_change(change, &new)?;
        let old = self.load(used, None).await?;
        let plan = app::plan_change(&old.config, &new.config);
        Ok((plan, new.config))
    }

    async fn apply_change(
        &self,
        change: &EntryChange,
        detail: &str,
    ) -> Result<(ChangePlan, Timestamp), ChangeError> {
        let (plan, config) = self.check(change).await?;
        let note = AuditNote {
            event: EventKind::ConfigChanged,
            subject: change.key.to_string(),
            detail: detail.to_owned(),
            changes: change.changed_values(&self.entries()),
        };
        let store = &self.data_dir.store;
        let mut version = clock::now();
        let write = async {
            version = change.write(store, version).await?;
            Ok(())
        };
        match self.data_dir.change_and_record(&[note], write).await {
            Ok(_) => {}
            Err(CommandError::Change(error)) => return Err(error),
            Err(error) => return Err(ChangeError::NotRecorded(error.to_string())),
        }
        let stored = store.entries.entries().await?;
        *lock(&self.stored) = stored.rows;
        *lock(&self.running) = Arc::new(config);
        Ok((plan, version))
    }
}

impl ConfigWriter for StoreWriter {
    fn running(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.running))
    }

    fn entries(&self) -> Vec<StoredEntry> {
        lock(&self.stored).clone()
    }

    fn plan<'a>(
        &'a self,
        change: &'a EntryChange,
    ) -> BoxFuture<'a, Result<ChangePlan, ChangeError>> {
        Box::pin(async move { self.check(change).await.map(|(plan, _)| plan) })
    }

    fn apply<'a>(
        &'a self,
        change: &'a EntryChange,
        (_, detail): (&'a str, &'a str),
    ) -> BoxFuture<'a, Result<(ChangePlan, Timestamp), ChangeError>> {
        Box::pin(self.apply_change(change, detail))
    }

    fn try_server<'a>(
        &'a self,
        name: &'a ServerName,
        unsaved: Option<&'a EntryChange>,
    ) -> BoxFuture<'a, Result<ServerTrial, ChangeError>> {
        Box::pin(async move {
            let loaded = self.load(Some(name.as_str()), unsaved).await?;
            if let Some(change) = unsaved {
                app::check_change(change, &loaded)?;
            }
            let server = loaded.config.servers.get(name).cloned();
            let key = EntryKey::new(EntrySection::Servers, name.as_str());
            let server = server.ok_or(ChangeError::Missing(key))?;
            let launcher = process_context().launcher;
            Ok(app::try_server(&loaded.config, (name, server), launcher).await)
        })
    }

    /// Gateways that run are told; here agents are as they were at the start.
    fn apply_agents(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.data_dir.notify_change().await;
            Ok(())
        })
    }

    fn change_view<'a>(
        &'a self,
        change: &'a ViewChange,
        (_, detail): (&'a str, &'a str),
    ) -> BoxFuture<'a, Result<ViewOutcome, Problem>> {
        Box::pin(async move {
            let note = AuditNote {
                event: view_event(change),
                subject: change.view().id.to_string(),
                detail: detail.to_owned(),
                changes: ChangedValues::default(),
            };
            let mut outcome = ViewOutcome::Missing;
            let write = async {
                outcome = change.write(&*self.data_dir.store.views).await?;
                let is_made = matches!(outcome, ViewOutcome::Done(_));
                is_made.then_some(()).ok_or(CommandError::ViewUnchanged)
            };
            match self.data_dir.change_and_record(&[note], write).await {
                Ok(_) | Err(CommandError::ViewUnchanged) => Ok(outcome),
                Err(error) => Err(ChangeError::NotRecorded(error.to_string()).into()),
            }
        })
    }

    /// None runs here.
    fn restart_server(&self, _: &ServerName) -> bool {
        false
    }
}
