//! Which servers an agent sees: the gateway's, those of its workspace, and its own.
//!
//! Asked with every request. Where all servers are the gateway's, the answer is at hand.

use std::sync::Arc;

use super::Proxy;
use crate::{
    auth::Agent,
    catalog::{Catalog, ServerOffer},
    config::Naming,
    discovery::CatalogStore,
    governance::Governance,
    names::{OwnerSet, ProfileName, Scope, ServerName, ViewId},
    views::View,
};

/// The owners whose servers `agent`, as it is at present, sees beside the gateway's.
pub(super) fn owners_seen_by(
    agent: &Agent,
    (catalog_store, governance): (&CatalogStore, &Governance),
) -> OwnerSet {
    catalog_store.owners_seen(|owners| {
        let current = governance.directory().current(agent.id);
        current.map_or_else(OwnerSet::default, |agent| {
            owners.seen_by(agent.id, agent.team.as_deref())
        })
    })
}

impl Proxy {
    /// The owners whose servers `agent` sees beside the gateway's.
    pub fn owners_seen_by(&self, agent: &Agent) -> OwnerSet {
        owners_seen_by(agent, (&self.catalog_store, &self.governance))
    }

    /// Everything that the servers `agent` sees have listed, also what the config hides, under the names of `naming`.
    pub fn whole_catalog(&self, agent: &Agent, naming: &Naming) -> Catalog {
        let owners = self.owners_seen_by(agent);
        let offers = self.catalog_store.offers();
        let seen = offers
            .iter()
            .filter(|offer| self.catalog_store.sees(&owners, &offer.server));
        let offers: Vec<ServerOffer> = seen.map(ServerOffer::unfiltered).collect();
        Catalog::build(naming, &offers)
    }

    /// Whether there is `server`, and `agent` sees it.
    pub fn sees_server(&self, agent: &Agent, server: &ServerName) -> bool {
        let owners = self.owners_seen_by(agent);
        self.backends.get(server).is_some() && self.catalog_store.sees(&owners, server)
    }

    /// Whether a route for `scope` may exist for somebody: before it is known who asks, nobody hears which
    /// servers others have.
    pub fn has_route(&self, scope: &Scope) -> bool {
        match scope {
            // Whose a view is, and whether it is there, only its owner hears.
            Scope::All | Scope::View { .. } => true,
            Scope::Profile(profile) => self.catalog_store.has_profile(profile),
            Scope::Server(server) => {
                let is_shared = !server.is_owned() && self.backends.get(server).is_some();
                is_shared || self.catalog_store.has_owned_servers()
            }
        }
    }

    /// Whether the route of `scope`, as [`resolve_route`](Self::resolve_route) returned it, exists for `agent`.
    pub(super) fn has_route_for(&self, agent: &Agent, scope: &Scope) -> bool {
        match scope {
            Scope::All | Scope::Profile(_) => self.has_route(scope),
            Scope::Server(server) => self.sees_server(agent, server),
            Scope::View { id, .. } => self.view_for(agent, *id).is_some(),
        }
    }

    /// The view `id`, where `agent` made it and may use it.
    fn view_for(&self, agent: &Agent, id: ViewId) -> Option<Arc<View>> {
        let view = self.catalog_store.views().get(id)?;
        let agent = self.governance.directory().current(agent.id)?;
        let content = &view.content;
        let has_profile = |profile: &ProfileName| self.catalog_store.has_profile(profile);
        let is_there = content.profile.as_ref().is_none_or(has_profile);
        // Whoever was limited to profiles since would see more than they show, and rules that a profile got since
        // were not written for what is added to it.
        let has_terms = |profile: &ProfileName| self.governance.has_profile_terms(profile);
        let is_limited =
            agent.profiles.is_some() || content.profile.as_ref().is_some_and(has_terms);
        let is_within = !is_limited || content.servers.is_empty();
        (view.agent == agent.id && is_there && is_within).then_some(view)
    }

    /// The same scope with what is known of a view before it is known who asks: the profile whose rules hold there.
    pub fn complete_scope(&self, scope: Scope) -> Scope {
        let view = scope
            .view()
            .and_then(|id| self.catalog_store.views().get(id));
        view.map_or(scope, |view| view.scope())
    }

    /// The route that `agent` means by `scope`: a server without an owner may be its own, that of its workspace
    /// or the gateway's. `None` where there is none for it.
    pub fn resolve_route(&self, agent: &Agent, scope: Scope) -> Option<Scope> {
        let name = match &scope {
            Scope::Server(name) => name,
            Scope::View { id, .. } => return Some(self.view_for(agent, *id)?.scope()),
            Scope::All | Scope::Profile(_) => return self.has_route(&scope).then_some(scope),
        };
        let owners = self.owners_seen_by(agent);
        let mut owned = owners.names_of(name);
        let is_seen = |server: &ServerName| {
            self.backends.get(server).is_some() && self.catalog_store.sees(&owners, server)
        };
        let found = owned.find(&is_seen).map(Scope::Server);
        found.or_else(|| is_seen(name).then(|| scope.clone()))
    }
}
