//! What is recorded of a question of a server: once, whatever becomes of it.

use std::sync::Arc;

use super::{PendingRequests, recipient::Recipient};
use crate::{
    backend::link::session_filter::SessionFilters,
    governance::{QuestionEnd, QuestionFacts},
    mcp::{Method, Raw},
};

/// A question of which it is not known yet what becomes of it. One that is dropped was withdrawn.
#[derive(Debug)]
pub(in crate::backend) struct Recording {
    views: SessionFilters,
    question: Option<QuestionFacts>,
}

impl Recording {
    /// Records that it ended so.
    pub(in crate::backend) fn end(mut self, end: QuestionEnd) {
        self.note(end);
    }

    fn note(&mut self, end: QuestionEnd) {
        if let Some(question) = self.question.take() {
            self.views.note_question(&question, end);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.note(QuestionEnd::Withdrawn);
    }
}

impl PendingRequests {
    /// Begins to record a question to `recipient`; to nobody where it cannot be told whom the server means.
    pub(super) fn recording(
        &self,
        method: &Method,
        params: Option<&Raw>,
        recipient: Option<&Recipient>,
    ) -> Recording {
        let server = self.settings.server.clone();
        let mut question = QuestionFacts::new(server, method.as_str(), params);
        match recipient {
            Some(Recipient::Call { caller, .. }) => {
                question.agent = Some(Arc::clone(&caller.client.agent));
                question.call = Some(caller.invocation);
            }
            Some(Recipient::Session(session, _)) => {
                question.agent = Some(Arc::clone(&session.agent));
            }
            None => {}
        }
        Recording {
            views: self.settings.views.clone(),
            question: Some(question),
        }
    }
}
