//! What an agent may see: lists and updates are cut down by the same rules that admit calls.

use std::sync::Arc;

use super::{policy::Item, rules::Rules};
use crate::{
    catalog::{Entry, Kind, Prospect},
    names::ServerName,
    router::Named,
};

/// What an agent may see on a route.
#[derive(Clone, Debug)]
pub enum Sight {
    /// All there is.
    Everything,
    /// Nothing.
    Nothing,
    /// What its rules allow.
    Some(Visible),
}

/// The rules by which an agent sees some things and others not.
#[derive(Clone, Debug)]
pub struct Visible(pub(super) Arc<Rules>);

impl Sight {
    /// Whether an entry of a list is in it.
    pub fn shows(&self, kind: Kind, entry: &Entry) -> bool {
        self.decides(|| Item::of_entry(kind, entry))
    }

    /// Whether a resource is in it, by its names on merged routes and with its server.
    pub fn shows_resource(&self, server: &ServerName, exposed: &str, original: &str) -> bool {
        self.decides(|| Item::of_resource(server, exposed, original))
    }

    /// Whether a method that only `server` knows is in it.
    pub fn shows_method(&self, server: &ServerName, method: &str) -> bool {
        self.decides(|| Item::of_method(server, method))
    }

    /// Whether a notification of `method`, which only `server` knows, may be sent to it: as with its
    /// methods, what it names is for those who may read it.
    pub fn shows_notification(&self, server: &ServerName, method: &str, named: &Named) -> bool {
        match self {
            Self::Everything => true,
            Self::Nothing => false,
            Self::Some(Visible(rules)) => rules.policy.allows_notification(server, method, named),
        }
    }

    /// Whether something that `prospect` may stand for is in it.
    pub fn may_show(&self, prospect: &Prospect) -> bool {
        let mut originals = prospect.originals.iter();
        originals.any(|original| self.decides(|| Item::of_prospect(prospect, original)))
    }

    fn decides<'i>(&self, item: impl FnOnce() -> Item<'i>) -> bool {
        match self {
            Self::Everything => true,
            Self::Nothing => false,
            Self::Some(Visible(rules)) => rules.policy.allows(&item()),
        }
    }
}
