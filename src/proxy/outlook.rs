//! How sessions see servers outside of calls: by the rules and the catalog of the moment.

use std::sync::Arc;

use crate::{
    backend::{View, Viewer},
    discovery::Board,
    governance::{Governance, Question, QuestionEnd},
    names::ServerName,
    session::Session,
};

/// The rules and the catalog, for backends, which stand below both.
#[derive(Debug)]
pub(super) struct Outlook {
    pub(super) governance: Arc<Governance>,
    pub(super) board: Arc<Board>,
}

impl Viewer for Outlook {
    fn view(&self, session: &Session, server: &ServerName) -> View {
        let Session { agent, scope, .. } = session;
        View {
            screens: self.governance.screens(agent, scope, server),
            uris: self.board.catalog().uri_map(scope, server),
        }
    }

    fn note_question(&self, question: &Question, end: QuestionEnd) {
        self.governance.note_question(question, end);
    }
}
