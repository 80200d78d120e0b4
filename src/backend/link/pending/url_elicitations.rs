//! URLs that clients were asked to visit, and whose each visit is: the server says that one is done
//! at any time, also when the call that led to it is long over.
//!
//! Fed by `server_requests` and by the link, with what servers ask and refuse.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Mutex, Weak},
};

use crate::{
    lock::lock,
    mcp::{Raw, error, json},
    session::Session,
};

/// Visits of one server that are remembered; the oldest gives way.
const ELICITATIONS_MAX: usize = 256;

/// The visits that are not done yet.
#[derive(Debug, Default)]
pub(super) struct UrlElicitations(Mutex<VecDeque<UrlElicitation>>);

#[derive(Debug)]
struct UrlElicitation {
    id: String,
    session: Weak<Session>,
}

impl UrlElicitations {
    /// Notes whose the visit is that `question`, the params of an elicitation, asks for, if it does.
    pub(super) fn note(&self, question: &Raw, session: Weak<Session>) {
        let Some(id) = elicitation_id(question) else {
            return;
        };
        let mut visits = lock(&self.0);
        visits.retain(|visit| visit.id != id);
        if visits.len() >= ELICITATIONS_MAX {
            visits.pop_front();
        }
        visits.push_back(UrlElicitation { id, session });
    }

    /// Notes the visits without which a call is refused.
    pub(super) fn note_required(&self, refusal: &Raw, session: &Weak<Session>) {
        if error::code(refusal) != Some(error::URL_ELICITATION_REQUIRED) {
            return;
        }
        let data = refusal.get("data");
        let Some(list) = data.and_then(|data| data.get("elicitations")) else {
            return;
        };
        for span in json::elements(list.as_bytes(), 0).take(ELICITATIONS_MAX) {
            self.note(&list.slice(span), session.clone());
        }
    }

    /// Whose visit is done as `params` say; it is forgotten.
    pub(super) fn complete(&self, params: Option<&Raw>) -> Option<Weak<Session>> {
        let id = elicitation_id(params?)?;
        let mut visits = lock(&self.0);
        let at = visits.iter().position(|visit| visit.id == id)?;
        visits.remove(at).map(|visit| visit.session)
    }
}

fn elicitation_id(params: &Raw) -> Option<String> {
    let id = params.get("elicitationId")?;
    id.as_text().map(Cow::into_owned)
}
