//! Who is calling and in which era: from an envelope to a [`Call`], and back to that era's wire form.
//!
//! The edges (HTTP, stdio) own sockets and framing; this module owns what a client said about
//! itself, what it is waiting for and what it may be told. [`legacy`] and [`modern`] hold the rules
//! of the two eras, [`registry`] the living legacy sessions.

pub mod bridge;
pub mod legacy;
pub mod modern;
pub mod registry;
pub mod replay;

use std::{borrow::Cow, sync::Arc};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::Agent,
    mcp::{Era, Id, Logs, Method, Outcome, Raw, Revision},
    names::Scope,
};

pub use registry::Session;

/// Notifications and server requests of one call that wait for the edge to write them.
pub const EVENTS_MAX: usize = 256;

/// The client behind a call.
#[derive(Clone, Debug)]
pub struct Client {
    /// The identity being governed.
    pub agent: Arc<Agent>,
    /// The revision it speaks.
    pub revision: Revision,
    /// What it says it is; for display only.
    pub info: Option<Raw>,
    /// What it can do for servers: an object.
    pub capabilities: Raw,
    /// The capabilities in a canonical spelling; empty when there are none, or when they come with
    /// each request.
    pub profile: Arc<str>,
    /// Its session, when it has one.
    pub session: Option<Arc<Session>>,
}

impl Client {
    /// Whether servers can ask it something over a connection of its own: only legacy servers see
    /// what it declares.
    pub fn can_be_asked(&self) -> bool {
        self.era() == Era::Legacy && legacy::declares_answers(&self.capabilities)
    }

    /// The era it speaks.
    pub fn era(&self) -> Era {
        self.revision.era()
    }
}

/// One request of a client, on its way to an answer.
#[derive(Debug)]
pub struct Call {
    /// As the client wrote it.
    pub id: Id,
    /// What is asked.
    pub method: Method,
    /// As the client wrote them.
    pub params: Option<Raw>,
    /// Who asks.
    pub client: Arc<Client>,
    /// Which part of the catalog it sees.
    pub scope: Scope,
    /// Which log messages it wants while this runs.
    pub logs: Logs,
    /// Its token for progress, as it wrote it.
    pub progress_token: Option<Raw>,
    /// Where messages that precede the answer go.
    pub events: mpsc::Sender<Event>,
    /// Cancelled when the client no longer wants the answer.
    pub cancel: CancellationToken,
}

impl Call {
    /// The same request on the route of `scope`, for its effect; nobody hears what precedes the
    /// answer.
    #[must_use]
    pub fn copy_for(&self, scope: Scope) -> Self {
        let (events, _) = mpsc::channel(1);
        Self {
            id: self.id.clone(),
            method: self.method.clone(),
            params: self.params.clone(),
            client: Arc::clone(&self.client),
            scope,
            logs: self.logs,
            progress_token: None,
            events,
            cancel: self.cancel.clone(),
        }
    }
}

/// How we introduce ourselves on one route.
#[derive(Clone, Debug)]
pub struct Introduction {
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
    /// Its id towards the client; unique in this process.
    pub key: u64,
    /// What is asked.
    pub method: Method,
    /// As the client shall see them.
    pub params: Option<Raw>,
    /// Takes the client's answer; dropped when there will be none.
    pub answer: oneshot::Sender<Outcome>,
}
