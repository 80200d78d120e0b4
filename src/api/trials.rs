//! What servers listed when they were last tried, in memory: those of agents list nothing before they are used.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;

use super::ServerTrial;
use crate::{backend::ServerState, catalog::Tool, clock, lock::lock, names::ServerName};

/// The last trial of each server that could be connected.
#[derive(Debug, Default)]
pub(crate) struct ServerTrials(Mutex<HashMap<ServerName, TriedTools>>);

type TriedTools = (Vec<Arc<Tool>>, Timestamp);

impl ServerTrials {
    /// Notes what came of trying `server`.
    pub(super) fn note(&self, server: &ServerName, trial: &ServerTrial) {
        let state = trial.report.as_ref().map(|report| report.state);
        if state == Some(ServerState::Connected) {
            lock(&self.0).insert(server.clone(), (trial.tools.clone(), clock::now()));
        }
    }

    /// What `server` listed, and when.
    pub(super) fn last(&self, server: &ServerName) -> Option<TriedTools> {
        lock(&self.0).get(server).cloned()
    }

    /// Forgets a server that is gone.
    pub(super) fn forget(&self, server: &ServerName) {
        lock(&self.0).remove(server);
    }
}
