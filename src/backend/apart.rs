//! What a server lists on one connection alone, such as tools that it registers at run time for the
//! callers of that connection.
//!
//! `discovery::apart` reads the lists of a connection beside the catalog's once its server says there that
//! they changed; the proxy asks what is listed for one client beyond what everybody is shown. What
//! is known of a connection ends with it, as it does at the server. Of pools nothing is known, since no
//! connection is anybody's, nor of servers with replicas, where the next call may go to another one.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::{Backend, Control, instance::Connection};
use crate::{catalog::Listing, lock::lock, session::Client};

/// What is known of the lists of one connection beside the catalog's.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// Whether its server said that they changed since they were read.
    is_due: AtomicBool,
    /// What it lists beyond what it lists for everybody.
    beyond: Mutex<Option<Arc<Listing>>>,
}

impl Connection {
    /// Its server said that its lists changed.
    pub(super) fn note_lists_changed(&self) {
        self.apart.is_due.store(true, Ordering::Relaxed);
    }
}

impl Backend {
    /// The connections beside the catalog's on which the server said that its lists changed, since this was
    /// asked.
    pub fn to_be_listed_apart(&self) -> Vec<Control> {
        let instances: Vec<_> = self.lock().values().cloned().collect();
        let connections = instances.iter().filter_map(|it| it.connected());
        let due = connections.filter(|it| it.apart.is_due.swap(false, Ordering::Relaxed));
        due.map(|connection| Control::of(&connection)).collect()
    }

    /// Notes what the server lists on the connection of `control` beyond what it lists for everybody;
    /// whether that is news.
    pub fn note_listed_apart(&self, beyond: Listing, control: &Control) -> bool {
        let mut known = lock(&control.connection().apart.beyond);
        let is_news = match &*known {
            Some(known) => **known != beyond,
            None => !beyond.is_empty(),
        };
        if is_news {
            self.maker.shared.lists_apart.store(true, Ordering::Relaxed);
            *known = Some(Arc::new(beyond));
        }
        is_news
    }

    /// What the server lists for `client` beyond what it lists for everybody, as far as that is known.
    pub(super) fn listed_apart(&self, client: &Client) -> Option<Arc<Listing>> {
        if !self.maker.shared.lists_apart.load(Ordering::Relaxed) || self.pool.is_some() {
            return None;
        }
        let key = self.key(client, self.era_at_hand(client.era())?);
        let instance = self.lock().get(&key).cloned()?;
        let beyond = lock(&instance.connected()?.apart.beyond).clone();
        beyond.filter(|beyond| !beyond.is_empty())
    }
}
