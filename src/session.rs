//! Who is calling and in which era: from an envelope to a [`Call`], and back to that era's wire form.
//!
//! The edges (HTTP, stdio) own sockets and framing; this module owns what a client said about
//! itself, what it is waiting for and what it may be told. [`legacy`] and [`modern`] hold the rules
//! of the two eras, [`state`] one legacy session with its [`running_calls`], `client_questions`, [`streams`] and
//! [`subscriptions`], [`progress`] what is heard of one call, [`forwarded_headers`] what of it goes to servers, [`registry`] the living ones, [`saved_session`] what of them outlives the process.

mod client_questions;

pub mod bridge;
pub mod cancellation;
pub mod client_info;
pub mod events;
pub mod forwarded_headers;
pub mod legacy;
pub mod modern;
pub mod outgoing;
pub mod progress;
pub mod registry;
pub mod replay;
pub mod running_calls;
pub mod saved_session;
pub mod state;
pub mod streams;
pub mod subscriptions;

use std::{
    borrow::Cow,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{Agent, token::Scopes},
    mcp::{Era, Id, LogFilter, Method, Outcome, Params, Raw, Request, Revision},
    names::{PeerAddress, Scope},
};

pub use cancellation::Cancel;
pub use client_info::ClientInfo;
pub use events::{EventReader, EventSender};
pub use forwarded_headers::ForwardedHeaders;
pub use progress::Progress;
pub use state::Session;

/// The client behind a call.
#[derive(Clone, Debug)]
pub struct Client {
    /// The identity being governed.
    pub agent: Arc<Agent>,
    /// What it said about itself, be it once or with its request.
    pub client_info: Arc<ClientInfo>,
    /// Its session, when it has one.
    pub session: Option<Arc<Session>>,
    /// Headers of this request that servers may get.
    pub forwarded: Option<Arc<ForwardedHeaders>>,
    /// The scopes that its token needs for this request and does not have.
    pub missing_scopes: Option<Arc<Scopes>>,
}

/// What a client said about itself is read as its own.
impl Deref for Client {
    type Target = ClientInfo;

    fn deref(&self) -> &ClientInfo {
        &self.client_info
    }
}

impl Client {
    /// The client of a session; `None` before it said `initialize`.
    pub fn of(session: &Arc<Session>) -> Option<Self> {
        Some(Self {
            agent: Arc::clone(&session.agent),
            client_info: session.client_info()?,
            session: Some(Arc::clone(session)),
            forwarded: None,
            missing_scopes: None,
        })
    }

    /// A client of which nothing is known but the revision it speaks.
    pub fn stateless(agent: Arc<Agent>, revision: Revision) -> Self {
        Self {
            agent,
            client_info: Arc::new(ClientInfo {
                revision,
                info: None,
                display_name: OnceLock::new(),
                capabilities: Raw::from_static("{}"),
                profile: Arc::default(),
            }),
            session: None,
            forwarded: None,
            missing_scopes: None,
        }
    }

    /// Which log messages it wants now of a call that began with `wanted`: a session may have changed its
    /// mind since.
    pub fn logs(&self, wanted: LogFilter) -> LogFilter {
        let session = self.session.as_ref();
        session.map_or(wanted, |session| session.logs())
    }

    /// Whether servers can ask it something over a connection of its own: only legacy servers see
    /// what it declares.
    pub fn accepts_server_requests(&self) -> bool {
        self.era() == Era::Legacy
            && !self.profile.is_empty()
            && legacy::accepts_server_requests(&self.capabilities)
    }

    /// The era it speaks.
    pub fn era(&self) -> Era {
        self.revision.era()
    }
}

/// Whoever is shown lists.
#[derive(Clone, Copy, Debug)]
pub struct ListViewer<'a> {
    /// The identity being governed.
    pub agent: &'a Agent,
    /// Which part of the catalog it sees.
    pub scope: &'a Scope,
}

/// One request of a client, on its way to an answer.
#[derive(Debug)]
pub struct Call {
    /// As the client wrote it.
    pub id: Id,
    /// What is asked.
    pub method: Method,
    /// As the client wrote them.
    pub params: Option<Params>,
    /// Who asks.
    pub client: Arc<Client>,
    /// Which part of the catalog it sees.
    pub scope: Scope,
    /// How it is connected.
    pub kind: state::SessionKind,
    /// Which log messages it wants while this runs.
    pub log_filter: LogFilter,
    /// What it hears of progress, where it wants to.
    pub progress: Option<Arc<Progress>>,
    /// Where messages that precede the answer go.
    pub events: EventSender,
    /// Cancelled when the client no longer wants the answer.
    pub cancel: Cancel,
    /// Cancelled when the session that it came in ends, where it came in one.
    pub session_ended: Option<CancellationToken>,
    /// How others name it, where its transport says so.
    pub correlation: Option<Box<Correlation>>,
    /// Where it came from, over a network; behind a reverse proxy, the address of that.
    pub address: Option<PeerAddress>,
}

/// How others name a call, which joins our log and audit with theirs, and how it came here.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Correlation {
    /// How many gateways it has passed.
    pub hops: u8,
    /// The trace that it belongs to (W3C Trace Context); what `_meta` says comes first.
    pub traceparent: Option<Box<str>>,
    /// The id that a client or a balancer gave the HTTP request in `X-Request-Id`.
    pub request_id: Option<Box<str>>,
}

/// What a client wants to hear of a call while it runs.
#[derive(Clone, Debug)]
pub struct Interest {
    /// Which log messages.
    pub logs: LogFilter,
    /// Its token for progress, as it wrote it; without one, no progress.
    pub progress_token: Option<Raw>,
}

impl Interest {
    /// The token that `request` carries, and `logs`.
    pub fn of(request: &Request, logs: LogFilter) -> Self {
        let token = request.params.as_ref().and_then(|params| {
            let span = params.meta().progress_token.clone()?;
            Some(params.slice(span))
        });
        Self {
            logs,
            progress_token: token,
        }
    }
}

impl Call {
    /// Who looks at a list that it asks for.
    pub fn list_viewer(&self) -> ListViewer<'_> {
        ListViewer {
            agent: &self.client.agent,
            scope: &self.scope,
        }
    }

    /// The call for `request` on the route of `scope`, and what will precede its answer.
    /// In a box, since every step hands it to the next and each of their futures has room for it.
    pub fn new(
        request: Request,
        client: Arc<Client>,
        scope: Scope,
        interest: Interest,
    ) -> (Box<Self>, EventReader) {
        let (events, reader) = events::event_queue();
        let session = client.session.as_ref();
        // What comes without a session comes over streamable HTTP, or from an edge that says otherwise.
        let kind = session.map_or(state::SessionKind::Streamable, |session| session.kind);
        let call = Box::new(Self {
            id: request.id,
            method: request.method,
            params: request.params,
            client,
            scope,
            kind,
            log_filter: interest.logs,
            progress: interest
                .progress_token
                .map(|token| Arc::new(Progress::new(token))),
            events,
            cancel: Cancel::default(),
            session_ended: None,
            correlation: None,
            address: None,
        });
        (call, reader)
    }

    /// The same request on the route of `scope`; what precedes its answer goes to `events`.
    #[must_use]
    pub fn for_scope(&self, scope: Scope, events: EventSender) -> Box<Self> {
        Box::new(Self {
            id: self.id.clone(),
            method: self.method.clone(),
            params: self.params.clone(),
            client: Arc::clone(&self.client),
            scope,
            kind: self.kind,
            log_filter: self.log_filter,
            progress: None,
            events,
            cancel: self.cancel.clone(),
            session_ended: self.session_ended.clone(),
            correlation: self.correlation.clone(),
            address: self.address,
        })
    }
}

/// How we introduce ourselves on one route.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// The capabilities, in the shape of the client's era.
    pub capabilities: serde_json::Value,
    /// Name and version.
    pub server_info: serde_json::Value,
    /// Advice for the model.
    pub instructions: Option<String>,
}

/// Name and version of this program, as every revision wants them.
pub fn server_info() -> serde_json::Value {
    serde_json::json!({
        "name": env!("CARGO_PKG_NAME"),
        "title": "Tollbridge",
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// A message for the client that precedes the answer to its call.
#[derive(Debug)]
pub enum Event {
    /// Something to know.
    Notification {
        /// Its name.
        method: Cow<'static, str>,
        /// As the client shall see them.
        params: Option<Raw>,
    },
    /// The server closed its stream and will go on when asked again (2025-11-25).
    Pause {
        /// Milliseconds the server asks for.
        retry_ms: Option<u64>,
    },
    /// Something the server asks of the client (legacy era).
    Request(ServerRequest),
}

/// A request from a server to a client.
#[derive(Debug)]
pub struct ServerRequest {
    /// Its id and its progress token towards the client; unique in this process.
    pub key: u64,
    /// What is asked.
    pub method: Method,
    /// As the client shall see them.
    pub params: Option<Raw>,
    /// Takes the client's answer; dropped when there will be none.
    pub answer: oneshot::Sender<Outcome>,
    /// Takes the params of the client's progress; `None` when the server asked for none.
    pub progress: Option<mpsc::Sender<Raw>>,
}
