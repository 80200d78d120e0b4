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
pub(in crate::backend) struct QuestionRecording {
    session_filters: SessionFilters,
    question: Option<QuestionFacts>,
}

impl QuestionRecording {
    /// Records that it ended so.
    pub(in crate::backend) fn finish(mut self, end: QuestionEnd) {
        self.record(end);
    }

    fn record(&mut self, end: QuestionEnd) {
        if let Some(question) = self.question.take() {
            self.session_filters.note_question(&question, end);
        }
    }
}

impl Drop for QuestionRecording {
    fn drop(&mut self) {
        self.record(QuestionEnd::Withdrawn);
    }
}

impl PendingRequests {
    /// Begins to record a question to `recipient`; to nobody where it cannot be told whom the server means.
    pub(super) fn begin_recording(
        &self,
        method: &Method,
        params: Option<&Raw>,
        recipient: Option<&Recipient>,
    ) -> QuestionRecording {
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
        QuestionRecording {
            session_filters: self.settings.session_filters.clone(),
            question: Some(question),
        }
    }
}
