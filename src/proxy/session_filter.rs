//! How sessions see servers outside of calls: by the rules and the catalog of the moment.

use std::sync::Arc;

use crate::{
    backend::{SessionFilter, SessionView},
    discovery::CatalogStore,
    governance::{Governance, QuestionEnd, QuestionFacts},
    names::ServerName,
    session::Session,
};

/// The rules and the catalog, for backends, which stand below both.
#[derive(Debug)]
pub(super) struct Outlook {
    pub(super) governance: Arc<Governance>,
    pub(super) board: Arc<CatalogStore>,
}

impl SessionFilter for Outlook {
    fn view(&self, session: &Session, server: &ServerName) -> SessionView {
        let Session { agent, scope, .. } = session;
        SessionView {
            screens: self.governance.screens(agent, scope, server),
            uris: self.board.catalog().uri_map(scope, server),
        }
    }

    fn note_question(&self, question: &QuestionFacts, end: QuestionEnd) {
        self.governance.note_question(question, end);
    }
}
