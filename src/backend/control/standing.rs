//! Whether a server can be listed, and over which connection.
//!
//! `discovery` follows it, and whoever waits for a server to be listed.

use std::sync::Arc;

use futures_util::future::select_all;
use tokio::sync::watch;

use super::Control;
use crate::{
    backend::{Backend, instance::Phase},
    task::Tasks,
};

/// Whether a server can be listed.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Not now, since nobody uses it; its lists are those it had.
    Asleep,
    /// Not yet.
    Connecting,
    /// No.
    Down,
    /// Yes.
    Up(Control),
}

impl Standing {
    fn of(phase: &Phase) -> Self {
        match phase {
            Phase::Asleep(_) => Self::Asleep,
            Phase::Connecting => Self::Connecting,
            Phase::Down { .. } => Self::Down,
            Phase::Ready(connection) => Self::Up(Control(Arc::clone(connection))),
        }
    }

    /// Of replicas the best counts: it can be listed where one of them can.
    fn rank(&self) -> u8 {
        match self {
            Self::Asleep | Self::Up(_) => 0,
            Self::Connecting => 1,
            Self::Down => 2,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Up(one), Self::Up(other)) => Arc::ptr_eq(&one.0, &other.0),
            (Self::Asleep, Self::Asleep)
            | (Self::Connecting, Self::Connecting)
            | (Self::Down, Self::Down) => true,
            (Self::Asleep | Self::Connecting | Self::Down | Self::Up(_), _) => false,
        }
    }
}

/// Follows the catalog's connection of a server, the first that stands where it has replicas.
#[derive(Debug)]
pub struct Following {
    phases: Vec<watch::Receiver<Phase>>,
    /// What was seen last, where there are several.
    seen: Option<Standing>,
}

impl Following {
    /// How it stands now.
    pub fn now(&mut self) -> Standing {
        if let [phase] = &mut *self.phases {
            return Standing::of(&phase.borrow_and_update());
        }
        let phases = self.phases.iter_mut();
        let standings = phases.map(|phase| Standing::of(&phase.borrow_and_update()));
        let now = standings
            .min_by_key(Standing::rank)
            .unwrap_or(Standing::Down);
        self.seen = Some(now.clone());
        now
    }

    /// Completes at the next change.
    pub async fn changed(&mut self) {
        if let [phase] = &mut *self.phases {
            if phase.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            return;
        }
        loop {
            let changes = self
                .phases
                .iter_mut()
                .map(|phase| Box::pin(phase.changed()));
            if select_all(changes).await.0.is_err() {
                std::future::pending::<()>().await;
            }
            let seen = self.seen.take();
            let now = self.now();
            // What became of the others is nobody's concern.
            if seen.is_none_or(|seen| !seen.is_as(&now)) {
                return;
            }
        }
    }

    /// Completes at the next change, or when the gateway stops.
    pub async fn changed_or(&mut self, tasks: &Tasks) {
        tokio::select! {
            () = self.changed() => {}
            () = tasks.stop_token().cancelled() => {}
        }
    }
}

impl Backend {
    /// Follows the catalog's connection.
    pub fn standing(&self) -> Following {
        let phases = match &self.replicas {
            None => vec![self.catalog.subscribe()],
            Some(replicas) => {
                let catalogs = replicas.backends().map(|replica| &replica.catalog);
                catalogs.map(|catalog| catalog.subscribe()).collect()
            }
        };
        Following { phases, seen: None }
    }
}
