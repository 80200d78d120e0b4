//! Tries a server: connects to it beside what runs, lists it once, and ends it again.

use std::{path::PathBuf, sync::Arc, time::Duration};

use indexmap::IndexMap;
use tokio::time::{Instant, timeout};

use crate::{
    api::ServerTrial,
    backend::Backends,
    config::{Config, Server},
    discovery::{self, CatalogStore},
    names::{OwnerSet, Scope, ServerName},
    task::Tasks,
};

/// How long a server may take to be listed.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a server that failed is tried again: longer than a trial, which shows the first attempt.
const RETRY_NEVER: Duration = Duration::from_secs(24 * 3600);

/// Connects to `server` as `config` has it otherwise; `launcher` is this binary.
pub(crate) async fn run(
    config: &Config,
    (name, mut server): (&ServerName, Server),
    launcher: Option<PathBuf>,
) -> ServerTrial {
    // It is listed at once, whoever owns it.
    let local = ServerName::parse_local(name.local());
    let name = local.unwrap_or_else(|_| name.clone());
    server.enabled = true;
    server.retry.base = RETRY_NEVER;
    server.retry.max = RETRY_NEVER;
    let config = Config {
        servers: IndexMap::from_iter([(name.clone(), server)]),
        profiles: IndexMap::default(),
        ..config.clone()
    };
    let tasks = Tasks::new();
    let (backends, _updates) = Backends::new(&config, launcher, None, &tasks);
    let store = CatalogStore::new(
        &config,
        &backends,
        Arc::default(),
        tasks.stop_token().clone(),
    );
    let store = Arc::new(store);
    let begun = Instant::now();
    for backend in backends.all() {
        backend.start();
        discovery::start(&backend, &store, &tasks);
    }
    let route = (&OwnerSet::default(), &Scope::Server(name.clone()));
    store.wait_ready(route, TRIAL_TIMEOUT).await;
    let latency = begun.elapsed();
    let catalog = store.catalog_of(&name);
    let mut tools: Vec<_> = catalog.tools().cloned().collect();
    tools.sort_by(|a, b| a.original.cmp(&b.original));
    let trial = ServerTrial {
        report: backends.get(&name).map(|backend| backend.report()),
        tools,
        latency,
    };
    tasks.drain();
    drop(timeout(END_TIMEOUT, tasks.finish()).await);
    trial
}
