//! The catalogs of views, cut from a state when they are first used.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;

use super::{CatalogState, OwnerPlan, ServerCatalogs};
use crate::{
    catalog::{Audience, Catalog, ServerOffer},
    names::{OwnerSet, ViewId},
    views::View,
};

/// Catalogs that are kept at most; with more, all are cut again.
const VIEW_CATALOGS_MAX: usize = 1024;

/// One that was cut.
#[derive(Clone, Debug)]
struct ViewCatalog {
    /// What it is of.
    view: Arc<View>,
    owners: OwnerSet,
    catalog: Arc<Catalog>,
}

/// Those of a state.
#[derive(Debug, Default)]
pub(super) struct ViewCatalogs(ArcSwap<HashMap<(ViewId, Audience), ViewCatalog>>);

impl CatalogState {
    /// The catalog of `view`, where it was cut.
    pub(super) fn known_of_view(
        &self,
        view: &Arc<View>,
        owners: &OwnerSet,
        audience: Audience,
    ) -> Option<Arc<Catalog>> {
        let cut = self.view_catalogs.0.load();
        let known = cut.get(&(view.id, audience))?;
        let is_same = Arc::ptr_eq(&known.view, view) && known.owners == *owners;
        is_same.then(|| Arc::clone(&known.catalog))
    }

    /// What the client of `view` is shown, of those that see the servers of `owners`.
    pub(super) fn of_view(
        &self,
        view: &Arc<View>,
        owners: &OwnerSet,
        audience: Audience,
    ) -> Arc<Catalog> {
        if let Some(known) = self.known_of_view(view, owners, audience) {
            return known;
        }
        let plan = self.owner_plan(owners);
        let profiles = plan.profiles.with_view(view);
        let offers = self.offers.ordered(&plan, audience);
        let base = self.catalog_of(owners, audience);
        let catalog = Arc::new(base.with_view(&profiles, &offers));
        let made = ViewCatalog {
            view: Arc::clone(view),
            owners: owners.clone(),
            catalog: Arc::clone(&catalog),
        };
        let ViewCatalogs(cut) = &*self.view_catalogs;
        cut.rcu(|cut| {
            let mut cut = HashMap::clone(cut);
            if cut.len() >= VIEW_CATALOGS_MAX {
                cut.clear();
            }
            cut.insert((view.id, audience), made.clone());
            cut
        });
        catalog
    }
}

impl ServerCatalogs {
    /// What the servers of `plan` offer to `audience`, in the config's order.
    pub(super) fn ordered(&self, plan: &OwnerPlan, audience: Audience) -> Vec<ServerOffer> {
        let servers = plan.servers.iter();
        let ordered = servers.filter_map(|(server, _)| self.plain.get(server).cloned());
        let mut ordered: Vec<ServerOffer> = ordered.collect();
        if audience == Audience::Interactive {
            for offer in &mut ordered {
                if let Some(more) = self.interactive_extras(offer) {
                    Arc::make_mut(&mut offer.listing).extend(more);
                }
            }
        }
        ordered
    }
}
