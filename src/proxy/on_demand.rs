//! Servers that agents own: they run once a session of their agent needs one.

use std::sync::Arc;

use dashmap::DashSet;
use tokio::sync::Notify;

use super::{Proxy, lists};
use crate::{
    auth::Agent,
    backend::Backend,
    names::{AgentId, OwnerSet, Scope, ServerOwner},
    session::Call,
    task::run_blocking,
};

/// The agents whose servers are used.
#[derive(Debug, Default)]
pub(super) struct UsedOwners {
    agents: DashSet<AgentId>,
    /// Tells that there is another.
    added: Notify,
}

impl Proxy {
    /// Gets what is needed for requests of who sees servers of `owners`: those of agents run from now on, and the
    /// catalog is built, aside as all that may take long.
    pub(super) async fn prepare_for(&self, owners: OwnerSet) {
        if let Some(owner) = owners.agent() {
            self.use_servers_of(owner);
        }
        if !self.catalog_store.has_catalog(&owners) {
            let store = Arc::clone(&self.catalog_store);
            run_blocking(move || drop(store.catalog((&owners, &Scope::All)))).await;
        }
    }

    /// Cuts the catalog of the view on whose route `call` came, aside: that takes long where much is listed.
    pub(super) async fn prepare_view(&self, call: &Call) {
        let owners = self.owners_seen_by(&call.client.agent);
        let (scope, audience) = (call.scope.clone(), lists::audience(&call.client));
        if !self
            .catalog_store
            .has_view_catalog((&owners, &scope), audience)
        {
            let store = Arc::clone(&self.catalog_store);
            run_blocking(move || drop(store.catalog_for((&owners, &scope), audience))).await;
        }
    }

    /// Begins to connect to the servers that `agent` owns, if that was not begun before.
    pub fn start_servers_of(&self, agent: &Agent) {
        if let Some(owner) = self.owners_seen_by(agent).agent() {
            self.use_servers_of(owner);
        }
    }

    /// The same for every agent: operators look at the servers of all.
    pub fn start_all_servers(&self) {
        for backend in self.backends.all() {
            if let ServerOwner::Agent(owner) = backend.name.owner() {
                self.use_servers_of(owner);
            }
        }
    }

    fn use_servers_of(&self, owner: AgentId) {
        if !self.used_owners.agents.insert(owner) {
            return;
        }
        let is_own = |backend: &Arc<Backend>| backend.name.owner() == ServerOwner::Agent(owner);
        let enabled = self.backends.all().filter(|backend| backend.is_enabled());
        for backend in enabled.filter(is_own) {
            self.catalog_store.expect_listing(&backend.name);
        }
        self.used_owners.added.notify_one();
    }

    /// Whether `backend` is to run: not before an agent who owns it needs it.
    fn is_in_use(&self, backend: &Backend) -> bool {
        match backend.name.owner() {
            ServerOwner::Gateway | ServerOwner::Workspace(_) => true,
            ServerOwner::Agent(owner) => self.used_owners.agents.contains(&owner),
        }
    }

    /// Starts `backend` where it is to run.
    pub(super) fn start_if_used(self: &Arc<Self>, backend: &Arc<Backend>) {
        if self.is_in_use(backend) {
            self.start_server(backend);
        }
    }

    /// Starts servers as agents come who own some.
    pub(super) async fn start_used_servers(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.used_owners.added.notified() => {}
                () = self.tasks.drain_token().cancelled() => return,
            }
            let enabled = self.backends.all().filter(|it| it.is_enabled());
            for backend in enabled.filter(|it| it.name.is_of_agent()) {
                self.start_if_used(&backend);
            }
        }
    }
}
