//! Sessions whose streams a tool can close in the middle of its call (SEP-1699).
//!
//! rmcp can close the event stream of a request, but tells no tool which stream it was called on.
//! `PollingSessions` is rmcp's own session manager, which in addition hands every request an
//! `OpenStream` among its extensions. An answer sent while no stream is open is lost in rmcp, so
//! `OpenStream::close_until_resumed` returns only when the client is back.

use std::time::Duration;

use futures_util::{Stream, stream};
use rmcp::model::{ClientJsonRpcMessage, GetExtensions, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionHandle, LocalSessionManager, LocalSessionManagerError, SessionError,
    SessionTransport, StreamableHttpMessageReceiver,
};
use rmcp::transport::streamable_http_server::session::{
    ServerSseMessage, SessionId, SessionManager,
};
use tokio::sync::broadcast;
use tokio::time::timeout;

/// What clients are told to wait before they reconnect.
pub(crate) const RETRY: Duration = Duration::from_millis(300);

/// How long a tool waits for a client that does not come back.
const RESUME_WITHIN: Duration = Duration::from_secs(20);

/// Resumptions that a slow waiter may be behind; only concurrent reconnection tests add to it.
const RESUMPTIONS_KEPT: usize = 64;

/// A resumed stream: the session and the number of the request in it.
type Resumed = (SessionId, u64);

pub(crate) struct PollingSessions {
    inner: LocalSessionManager,
    resumed: broadcast::Sender<Resumed>,
}

impl PollingSessions {
    pub(crate) fn new() -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.sse_retry = Some(RETRY);
        let (resumed, _) = broadcast::channel(RESUMPTIONS_KEPT);
        Self { inner, resumed }
    }

    async fn handle(&self, id: &SessionId) -> Result<LocalSessionHandle, LocalSessionManagerError> {
        let sessions = self.inner.sessions.read().await;
        let handle = sessions.get(id).cloned();
        handle.ok_or_else(|| LocalSessionManagerError::SessionNotFound(id.clone()))
    }
}

/// The event stream on which a request will be answered.
#[derive(Clone)]
pub(crate) struct OpenStream {
    session: LocalSessionHandle,
    request: u64,
    resumed: broadcast::Sender<Resumed>,
}

impl OpenStream {
    /// Ends the stream and waits for the client to reconnect to it.
    ///
    /// # Errors
    ///
    /// The session ended meanwhile.
    pub(crate) async fn close_until_resumed(&self) -> Result<(), SessionError> {
        // Subscribed before closing, so that no reconnection is missed.
        let mut resumed = self.resumed.subscribe();
        self.session.close_sse_stream(self.request, None).await?;
        let mine = (self.session.id().clone(), self.request);
        let back = async {
            loop {
                match resumed.recv().await {
                    Ok(stream) if stream == mine => return,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        };
        timeout(RESUME_WITHIN, back)
            .await
            .map_err(|_| SessionError::ChannelClosed(Some(self.request)))
    }
}

impl SessionManager for PollingSessions {
    type Error = LocalSessionManagerError;
    type Transport = SessionTransport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        self.inner.create_session().await
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.inner.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        mut message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let session = self.handle(id).await?;
        let receiver = session.establish_request_wise_channel().await?;
        let number = receiver.http_request_id;
        if let (ClientJsonRpcMessage::Request(request), Some(number)) = (&mut message, number) {
            let open = OpenStream {
                session: session.clone(),
                request: number,
                resumed: self.resumed.clone(),
            };
            request.request.extensions_mut().insert(open);
        }
        session.push_message(message, number).await?;
        Ok(events(receiver))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let session = self.handle(id).await?;
        let receiver = session.resume(last_event_id.parse()?).await?;
        if let Some(number) = receiver.http_request_id {
            // Without a waiting tool nobody listens, and nobody needs to.
            self.resumed.send((id.clone(), number)).ok();
        }
        Ok(events(receiver))
    }
}

fn events(
    mut receiver: StreamableHttpMessageReceiver,
) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static {
    stream::poll_fn(move |context| receiver.inner.poll_recv(context))
}
