//! How sessions see servers outside of calls: by the rules and the catalog of the moment.

use std::sync::Arc;

use super::viewers::owners_seen_by;
use crate::{
    backend::{SessionFilter, SessionView},
    discovery::CatalogStore,
    governance::{Governance, QuestionEnd, QuestionFacts},
    names::ServerName,
    session::Session,
};

/// The rules and the catalog, for backends, which stand below both.
#[derive(Debug)]
pub(super) struct ProxySessionFilter {
    pub(super) governance: Arc<Governance>,
    pub(super) catalog_store: Arc<CatalogStore>,
}

impl SessionFilter for ProxySessionFilter {
    fn view(&self, session: &Session, server: &ServerName) -> SessionView {
        let Session { agent, scope, .. } = session;
        let owners = owners_seen_by(agent, (&self.catalog_store, &self.governance));
        SessionView {
            scanners: self.governance.scanners_for(agent, scope, server),
            uris: self
                .catalog_store
                .catalog((&owners, scope))
                .uri_map(scope, server),
        }
    }

    fn note_question(&self, question: &QuestionFacts, end: QuestionEnd) {
        self.governance.note_question(question, end);
    }
}
