//! How sessions see what servers say outside of calls.
//!
//! Asked by `pending` for each message that belongs to a session and to no call of it. A connection may be
//! made without any call (a subscription that is renewed), and outlives the rules of its calls, so that
//! none of these is taken for the view.

use std::{
    fmt::Debug,
    sync::{Arc, OnceLock},
};

use super::resource_updates::UpdateSender;
use crate::{
    catalog::UriMap,
    governance::{CallScanners, QuestionEnd, QuestionFacts},
    limiter::{ByteBudget, CallLimit},
    mcp::GatewayId,
    names::ServerName,
    oauth_client::Grants,
    session::Session,
};

/// How a session sees a server at a moment.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// What passes is looked at with; `None` where nothing is looked for.
    pub scanners: Option<CallScanners>,
    /// How URIs of the server become exposed ones.
    pub uris: Option<Arc<UriMap>>,
}

/// Who knows the rules and the catalog of the moment, and records what servers ask.
pub trait SessionFilter: Debug + Send + Sync {
    /// How `session` sees `server`.
    fn view(&self, session: &Session, server: &ServerName) -> SessionView;

    /// Hears what became of a question of a server to a client.
    fn note_question(&self, question: &QuestionFacts, end: QuestionEnd);
}

/// The gateway as its servers know it: who asks them, and where what they say outside of calls goes.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamContext {
    /// Who asks.
    pub(crate) gateway: GatewayId,
    /// Updates of resources.
    pub(crate) updates: UpdateSender,
    /// How sessions see the rest.
    pub(crate) session_filters: SessionFilters,
    /// What answers may take.
    pub(crate) byte_budget: ByteBudget,
    /// How many requests over HTTP may be under way.
    pub(crate) http_calls: CallLimit,
    /// Access tokens for servers.
    pub(crate) grants: Option<Grants>,
}

/// The viewer, as soon as there is one: the rules and the catalog come after the backends.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionFilters(Arc<OnceLock<Arc<dyn SessionFilter>>>);

impl SessionFilters {
    /// Takes the viewer; there is one for good.
    pub(in crate::backend) fn set_filter(&self, filter: Arc<dyn SessionFilter>) {
        self.0.set(filter).ok();
    }

    /// How `session` sees `server`; `None` where nobody can say, so that it may see nothing.
    pub(in crate::backend) fn view(
        &self,
        session: &Session,
        server: &ServerName,
    ) -> Option<SessionView> {
        let filter = self.0.get()?;
        Some(filter.view(session, server))
    }

    /// Tells what became of a question.
    pub(in crate::backend) fn note_question(&self, question: &QuestionFacts, end: QuestionEnd) {
        if let Some(viewer) = self.0.get() {
            viewer.note_question(question, end);
        }
    }
}

#[cfg(test)]
impl UpstreamContext {
    /// That of some gateway, whose servers everybody sees as they are.
    pub(crate) fn example() -> Self {
        Self {
            gateway: GatewayId::random(),
            updates: super::resource_updates::update_channel().0,
            session_filters: SessionFilters::unfiltered(),
            byte_budget: ByteBudget::new(usize::MAX),
            http_calls: CallLimit::new(usize::MAX),
            grants: None,
        }
    }
}

#[cfg(test)]
impl SessionFilters {
    /// Everything is seen as it is.
    pub(crate) fn unfiltered() -> Self {
        #[derive(Debug)]
        struct Clear;
        impl SessionFilter for Clear {
            fn view(&self, _: &Session, _: &ServerName) -> SessionView {
                SessionView {
                    scanners: None,
                    uris: None,
                }
            }

            fn note_question(&self, _: &QuestionFacts, _: QuestionEnd) {}
        }
        let filters = Self::default();
        filters.set_filter(Arc::new(Clear));
        filters
    }
}
