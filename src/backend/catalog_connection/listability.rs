//! Whether a server can be listed, and over which connection.
//!
//! `discovery` follows it, and whoever waits for a server to be listed. Of replicas the best is
//! listed: the first of those that are as well as any.

use std::sync::Arc;

use futures_util::future::select_all;
use tokio::sync::watch;

use super::CatalogConnection;
use crate::backend::{
    Backend,
    instance::{InstancePhase, shared_state::SharedState},
    state_machine::ListState,
};

/// Whether a server can be listed.
#[derive(Clone, Debug)]
pub enum Listability {
    /// Not now, since nobody uses it; its lists are those it had.
    Asleep,
    /// Not yet.
    Connecting,
    /// No.
    Down,
    /// Yes.
    Up(CatalogConnection),
}

impl Listability {
    fn of(phase: &InstancePhase) -> Self {
        match phase {
            InstancePhase::Asleep(_) => Self::Asleep,
            InstancePhase::Connecting => Self::Connecting,
            InstancePhase::Down { .. } => Self::Down,
            InstancePhase::Ready(connection) => Self::Up(CatalogConnection(Arc::clone(connection))),
        }
    }

    fn is_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Up(one), Self::Up(other)) => one == other,
            (Self::Asleep, Self::Asleep)
            | (Self::Connecting, Self::Connecting)
            | (Self::Down, Self::Down) => true,
            (Self::Asleep | Self::Connecting | Self::Down | Self::Up(_), _) => false,
        }
    }
}

/// How well a replica stands to be listed, the best first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(in crate::backend) enum ListingRank {
    Listed,
    /// Some of its lists could not be read.
    Partial,
    /// None could. It is tried again, which one that is not connected cannot be.
    Unreadable,
    Connecting,
    /// It does not take our credential: as good as down, until a call or a check is answered.
    Refused,
    Down,
}

impl ListingRank {
    fn of(phase: &InstancePhase, shared: &SharedState) -> Self {
        let life = shared.state_machine();
        match phase {
            InstancePhase::Asleep(_) => Self::Listed,
            InstancePhase::Connecting => Self::Connecting,
            InstancePhase::Down { .. } => Self::Down,
            InstancePhase::Ready(_) if life.state().lacks_credential() => Self::Refused,
            InstancePhase::Ready(_) => match life.lists() {
                ListState::Read | ListState::Untried => Self::Listed,
                ListState::ReadPartly => Self::Partial,
                ListState::Unreadable => Self::Unreadable,
            },
        }
    }
}

/// One connection that is followed, or the catalog's of one replica.
#[derive(Debug)]
struct FollowedConnection {
    phase: watch::Receiver<InstancePhase>,
    shared: Arc<SharedState>,
    /// Changes of what `shared` knows.
    state_changes: watch::Receiver<()>,
}

impl FollowedConnection {
    fn new(backend: &Backend) -> Self {
        let shared = Arc::clone(&backend.connector.shared);
        Self {
            phase: backend.catalog.subscribe(),
            state_changes: shared.state_machine().changes(),
            shared,
        }
    }

    fn rank(&self) -> ListingRank {
        // A copy: whoever notes something in a life looks at the phase meanwhile.
        let phase = self.phase.borrow().clone();
        ListingRank::of(&phase, &self.shared)
    }

    fn control(&self) -> Option<CatalogConnection> {
        match Listability::of(&self.phase.borrow()) {
            Listability::Up(control) => Some(control),
            Listability::Asleep | Listability::Connecting | Listability::Down => None,
        }
    }

    /// Completes at the next change; never where nobody can make one.
    async fn changed(&mut self) {
        let changed = tokio::select! {
            changed = self.phase.changed() => changed,
            changed = self.state_changes.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Follows the catalog's connection of a server, the best that stands where it has replicas.
#[derive(Debug)]
pub struct CatalogWatch {
    connections: Vec<FollowedConnection>,
    /// What was seen last, where there are several.
    last_seen: Listability,
}

impl CatalogWatch {
    fn new(all: Vec<FollowedConnection>) -> Self {
        let seen = Listability::Down;
        let mut following = Self {
            connections: all,
            last_seen: seen,
        };
        following.current();
        following
    }

    /// How it stands now.
    pub fn current(&mut self) -> Listability {
        if let [only] = &mut *self.connections {
            return Listability::of(&only.phase.borrow_and_update());
        }
        for followed in &mut self.connections {
            // Before a look is taken, so that no change is missed.
            followed.state_changes.mark_unchanged();
            followed.phase.mark_unchanged();
        }
        let best = self
            .connections
            .iter()
            .min_by_key(|followed| followed.rank());
        let now = best.map_or(Listability::Down, |best| {
            Listability::of(&best.phase.borrow())
        });
        self.last_seen = now.clone();
        now
    }

    /// Completes at the next change.
    pub async fn changed(&mut self) {
        if let [only] = &mut *self.connections {
            if only.phase.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            return;
        }
        loop {
            let seen = self.last_seen.clone();
            // What became of the others is nobody's concern.
            if !self.current().is_same_as(&seen) {
                return;
            }
            self.any_changed().await;
        }
    }

    /// Whether it is of several replicas.
    pub fn has_replicas(&self) -> bool {
        self.connections.len() > 1
    }

    /// Whether a replica other than that of `control` can be listed, as far as anybody knows.
    pub fn has_alternative(&self, control: &CatalogConnection) -> bool {
        let mut well = self
            .connections
            .iter()
            .filter(|it| it.rank() == ListingRank::Listed);
        well.any(|it| it.control().is_some_and(|other| other != *control))
    }

    /// Completes once a replica other than that of `control` can be listed.
    pub async fn alternative_available(&mut self, control: &CatalogConnection) {
        while !self.has_alternative(control) {
            self.any_changed().await;
        }
    }

    /// The connected replicas that could not be listed, or only in part, while another is.
    pub fn unlisted_replicas(&mut self) -> Vec<CatalogConnection> {
        let listed = self.current();
        let behind = self.connections.iter().filter(|it| match it.rank() {
            ListingRank::Partial | ListingRank::Unreadable => true,
            ListingRank::Listed
            | ListingRank::Connecting
            | ListingRank::Refused
            | ListingRank::Down => false,
        });
        let behind = behind.filter_map(FollowedConnection::control);
        behind
            .filter(|control| !Listability::Up(control.clone()).is_same_as(&listed))
            .collect()
    }

    /// Completes when anything became of any of them.
    pub async fn any_changed(&mut self) {
        let changes = self.connections.iter_mut().map(|it| Box::pin(it.changed()));
        select_all(changes).await;
    }
}

impl Backend {
    /// Follows the catalog's connection.
    pub fn watch_catalog(&self) -> CatalogWatch {
        CatalogWatch::new(match &self.replicas {
            None => vec![FollowedConnection::new(self)],
            Some(replicas) => replicas
                .backends()
                .map(|it| FollowedConnection::new(it))
                .collect(),
        })
    }

    /// How well it stands to be listed.
    pub(in crate::backend) fn listing_rank(&self) -> ListingRank {
        ListingRank::of(&self.catalog.phase(), &self.connector.shared)
    }
}
