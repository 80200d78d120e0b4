//! Snapshots for clients to whom servers list something that they list to nobody else.
//!
//! They are made when they are first asked for and kept as long as what they are made of is shown.

use std::{collections::VecDeque, sync::Arc};

use super::{Board, Snapshots};
use crate::{
    catalog::{Audience, Catalog, Listing},
    lock::lock,
    names::ServerName,
};

/// Snapshots that are kept, each as large as the catalog: of those that were asked for last.
const VIEWS_MAX: usize = 32;

/// What servers list on the connections of one client.
pub(super) type Apart = [(ServerName, Arc<Listing>)];

/// Snapshots that were made, the one that was made last at the end.
#[derive(Debug, Default)]
pub(super) struct Views(VecDeque<View>);

#[derive(Debug)]
struct View {
    /// The snapshot without it.
    base: Arc<Catalog>,
    apart: Vec<(ServerName, Arc<Listing>)>,
    catalog: Arc<Catalog>,
}

impl View {
    fn is_of(&self, base: &Arc<Catalog>, apart: &Apart) -> bool {
        let is_same = |((server, one), (other, two)): (&(_, _), &(_, _))| {
            server == other && Arc::ptr_eq(one, two)
        };
        Arc::ptr_eq(&self.base, base)
            && self.apart.len() == apart.len()
            && self.apart.iter().zip(apart).all(is_same)
    }
}

impl Views {
    fn find(&self, base: &Arc<Catalog>, apart: &Apart) -> Option<Arc<Catalog>> {
        let known = self.0.iter().find(|view| view.is_of(base, apart));
        known.map(|view| Arc::clone(&view.catalog))
    }

    fn keep(&mut self, view: View, shown: &Snapshots) {
        let is_shown = |view: &View| {
            [Audience::Able, Audience::Plain]
                .iter()
                .any(|audience| Arc::ptr_eq(shown.of(*audience), &view.base))
        };
        self.0.retain(is_shown);
        if self.0.len() >= VIEWS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(view);
    }
}

impl Board {
    /// Tells that what some server lists on a single connection has changed.
    pub(in crate::discovery) fn note_apart(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// The snapshot for `audience` with what servers list `apart`, where it was made before.
    pub fn known_with(&self, audience: Audience, apart: &Apart) -> Option<Arc<Catalog>> {
        let current = self.current.load();
        lock(&self.views).find(current.shown.of(audience), apart)
    }

    /// The same in any case; it may take long.
    pub fn catalog_with(
        &self,
        audience: Audience,
        apart: Vec<(ServerName, Arc<Listing>)>,
    ) -> Arc<Catalog> {
        if let Some(known) = self.known_with(audience, &apart) {
            return known;
        }
        let current = self.current.load_full();
        let (mut offers, _) = current.offers.merged(&current.plan, audience);
        for offer in &mut offers {
            let more = apart.iter().find(|(server, _)| *server == offer.server);
            if let Some((_, more)) = more {
                Arc::make_mut(&mut offer.listing).extend(more);
            }
        }
        let catalog = current.plan.catalog(&offers);
        let view = View {
            base: Arc::clone(current.shown.of(audience)),
            apart,
            catalog: Arc::clone(&catalog),
        };
        lock(&self.views).keep(view, &current.shown);
        catalog
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{board, list},
        *,
    };
    use crate::{catalog::Kind, mcp::Raw, names::Scope, task::Tasks};

    /// What the server `one` lists apart: a tool of this name.
    fn tool(name: &str) -> Vec<(ServerName, Arc<Listing>)> {
        let mut listing = Listing::default();
        let tool = format!(r#"{{"name":"{name}"}}"#);
        listing.tools = vec![Raw::parse(tool).unwrap()];
        vec![(ServerName::parse("one").unwrap(), Arc::new(listing))]
    }

    fn tools(catalog: &Catalog) -> Vec<String> {
        let tools = catalog.list(&Scope::All, Kind::Tools).entries().iter();
        tools.map(|entry| entry.original.to_string()).collect()
    }

    #[tokio::test]
    async fn what_is_listed_apart_is_beside_what_is_listed_for_all() {
        let (board, ..) = board(&Tasks::new());
        list(&board, "one");
        list(&board, "two");
        for audience in [Audience::Able, Audience::Plain] {
            let shown = board.catalog_with(audience, tool("a"));
            assert_eq!(tools(&shown), ["a", "one", "two"]);
            assert_eq!(tools(&board.catalog_for(audience)), ["one", "two"]);
            // What it lists for all is not there twice.
            let shown = board.catalog_with(audience, tool("one"));
            assert_eq!(tools(&shown), ["one", "two"]);
        }
    }

    #[tokio::test]
    async fn a_snapshot_is_made_once_for_what_is_shown() {
        let (board, ..) = board(&Tasks::new());
        list(&board, "one");
        let known = |apart: &Apart| board.known_with(Audience::Plain, apart);
        let first = tool("a");
        let made = board.catalog_with(Audience::Plain, first.clone());
        let again = board.catalog_with(Audience::Plain, first.clone());
        assert!(Arc::ptr_eq(&made, &again));
        assert!(known(&tool("a")).is_none(), "another listing");
        for index in 1..VIEWS_MAX {
            board.catalog_with(Audience::Plain, tool(&format!("b{index}")));
        }
        assert!(known(&first).is_some(), "there is room for so many");
        board.catalog_with(Audience::Plain, tool("c"));
        assert!(known(&first).is_none(), "it gave way to another");

        let last = tool("d");
        board.catalog_with(Audience::Plain, last.clone());
        list(&board, "two");
        assert!(known(&last).is_none(), "something else is shown");
        let shown = board.catalog_with(Audience::Plain, last);
        assert_eq!(tools(&shown), ["d", "one", "two"]);
        assert_eq!(
            lock(&board.views).0.len(),
            1,
            "the others are none any more"
        );
    }
}
