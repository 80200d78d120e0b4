//! Makes connections to one server: starts its program or dials it, and greets it.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{Connection, handshake, identity::InstanceIdentity, reconnect::StartQuotaKey};
use crate::{
    backend::{
        BackendError, SharedState,
        credential::{CredentialSource, TokenOwner},
        link::{
            Link,
            gateway_peer::GatewayPeer,
            pending::{LinkSettings, LinkTaskOwners, PendingRequests},
            session_filter::SessionFilters,
        },
        live_config::LiveConfig,
        transport::{
            http::{self, sse},
            pipe,
            stdio::{self, process_launcher::Launcher},
            websocket,
        },
    },
    config::{EraPin, Remote, Secret, Server, Transport},
    control_socket,
    limiter::{ByteBudget, CallLimit},
    mcp::{Era, Raw},
    names::ServerName,
    oauth_client::ServerGrants,
    session::{ForwardedHeaders, Session},
    task::Tasks,
};

/// How long a server may take to open the stream for messages that belong to no call; some send
/// no headers before the first message.
const STANDALONE_STREAM_TIMEOUT: Duration = Duration::from_secs(1);
/// A start that takes longer is reported.
pub(in crate::backend) const SLOW_START_AFTER: Duration = Duration::from_secs(10);
/// Buffer of the in-process pipe to the builtin server, bytes.
const BUILTIN_PIPE_BYTES: usize = 64 * 1024;

/// What is needed to make connections to one server.
#[derive(Debug)]
pub(crate) struct BackendConnector {
    pub(crate) server: ServerName,
    pub(in crate::backend) live_config: Arc<LiveConfig>,
    pub(crate) tasks: Tasks,
    pub(crate) launcher: Launcher,
    pub(in crate::backend) peer: Arc<GatewayPeer>,
    pub(in crate::backend) session_filters: SessionFilters,
    pub(in crate::backend) byte_budget: ByteBudget,
    pub(in crate::backend) http_calls: CallLimit,
    /// The access tokens for the server, where it takes such.
    pub(in crate::backend) grants: Option<ServerGrants>,
    pub(crate) shared: Arc<SharedState>,
}

/// Which connection is wanted.
#[derive(Clone, Debug)]
pub(crate) struct ConnectSpec {
    pub(crate) era: EraPin,
    /// Capabilities declared in `initialize`.
    pub(crate) capabilities: Raw,
    /// The session whose own it will be.
    pub(crate) session: Option<Arc<Session>>,
    /// Whether it is for the lists of the server alone: there is no client to ask.
    pub(crate) is_for_lists: bool,
    /// Headers of its callers that the server gets with every request.
    pub(crate) forwarded: Option<Arc<ForwardedHeaders>>,
    /// Whose access tokens its requests carry, where the server takes such.
    pub(in crate::backend) token_owner: TokenOwner,
    /// Whether it is to be known before the first call if the server asks for roots, and that has to
    /// wait until the server has them where the connection is one client's own.
    pub(crate) awaits_roots: bool,
    /// What it is a connection of.
    pub(crate) identity: Arc<InstanceIdentity>,
    /// Whose the start is, should it come to nothing.
    pub(in crate::backend) start_quota_key: Option<StartQuotaKey>,
}

impl ConnectSpec {
    /// `remote` with the headers of the callers.
    fn remote<'r>(&self, remote: &'r Remote) -> Cow<'r, Remote> {
        let Some(forwarded) = &self.forwarded else {
            return Cow::Borrowed(remote);
        };
        let mut remote = remote.clone();
        let headers = forwarded.iter();
        let headers = headers.map(|(name, value)| (name.to_owned(), Secret::new(value)));
        remote.headers.extend(headers);
        Cow::Owned(remote)
    }
}

impl BackendConnector {
    /// What the config says of the server at present, for a look.
    pub(in crate::backend) fn config(&self) -> arc_swap::Guard<Arc<Server>> {
        self.live_config.current()
    }

    /// Whose access tokens the catalog's connections carry.
    pub(in crate::backend) fn catalog_token_owner(&self) -> TokenOwner {
        if self.has_token_per_agent() {
            TokenOwner::Lists
        } else {
            TokenOwner::Gateway
        }
    }

    /// Whether requests carry the access token of the agent that calls.
    pub(in crate::backend) fn has_token_per_agent(&self) -> bool {
        let grants = self.grants.as_ref();
        grants.is_some_and(ServerGrants::is_per_agent)
    }

    /// Connects and greets, within the time a start may take. A connection that nobody gets, since
    /// this is dropped before, is closed.
    pub(crate) async fn connect(
        &self,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let limit = self.config().startup_timeout;
        let identity = &wanted.identity;
        let odd_before = identity.output.stray().count;
        let attempt = Box::pin(timeout(limit, self.try_connect(wanted)));
        let attempt = warn_if_slow(attempt, || self.report_slow_start(identity)).await;
        identity.set_slow(false);
        let connection = attempt.unwrap_or_else(|_| {
            Err(BackendError::Startup {
                after: limit,
                key: "startup_timeout",
                odd: identity.output.stray().lines_since(odd_before),
            })
        });
        if let Err(BackendError::Connect { .. }) = &connection {
            self.peer.note_unreachable();
        }
        let connection = connection?;
        let closed_early = connection.closed().clone().drop_guard();
        if let Some(http) = connection.link.as_http()
            && connection.era() == Era::Legacy
        {
            let (opened, open) = oneshot::channel();
            let listen = Arc::clone(http).listen(opened);
            identity.tasks.spawn("standalone stream", listen);
            // What a server says before the stream is open may be lost.
            drop(timeout(STANDALONE_STREAM_TIMEOUT, open).await);
        }
        if wanted.awaits_roots && connection.era() == Era::Legacy {
            self.await_roots(&connection, wanted.session.is_some())
                .await;
        }
        closed_early.disarm();
        identity.output.mark_serving();
        Ok(connection)
    }

    /// Says, here and in `/status`, that a start takes long.
    fn report_slow_start(&self, identity: &InstanceIdentity) {
        identity.set_slow(true);
        let output = &identity.output;
        let (odd, stderr) = (output.stray().clone(), output.last_stderr_line());
        tracing::warn!(
            server = %self.server,
            odd_lines = odd.count,
            last_odd_line = odd.last(),
            last_on_stderr = stderr,
            "server is still starting after {SLOW_START_AFTER:?}"
        );
    }

    async fn try_connect(&self, wanted: &ConnectSpec) -> Result<Arc<Connection>, BackendError> {
        let config = self.live_config.load();
        match &config.transport {
            Transport::Auto(remote) => {
                let connected = self.connect_http_or_sse(remote, wanted).await;
                connected.map_err(|failure| failure.with_endpoint_hint(remote))
            }
            Transport::Http(remote) => {
                let connected = self.connect_http(remote, wanted).await;
                connected.map_err(|failure| failure.with_endpoint_hint(remote))
            }
            Transport::Sse(remote) => self.connect_sse(remote, wanted).await,
            Transport::WebSocket(remote) => self.connect_websocket(remote, wanted).await,
            Transport::Builtin => {
                let (ours, theirs) = tokio::io::duplex(BUILTIN_PIPE_BYTES);
                let requests = self.new_pending_requests(wanted);
                let stop = requests.closed.clone();
                let serving = crate::builtin::serve(theirs, stop);
                wanted.identity.tasks.spawn("builtin server", serving);
                let (reader, writer) = tokio::io::split(ours);
                let over = requests.closed.clone();
                let link = pipe::open_lines(reader, writer, &requests, |_, _| {}, over);
                self.handshake(link, wanted, None).await
            }
            Transport::ControlSocket(session) => {
                let opened = control_socket::open_session(&session.socket, &session.request).await;
                let stream = opened.map_err(|error| BackendError::Connect {
                    reason: error.to_string(),
                })?;
                let requests = self.new_pending_requests(wanted);
                let (reader, writer) = stream.into_split();
                let over = requests.closed.clone();
                let link = pipe::open_lines(reader, writer, &requests, |_, _| {}, over);
                self.handshake(link, wanted, None).await
            }
            Transport::Stdio(command) => match self.connect_stdio(command, wanted).await {
                // Some old servers exit on a request before `initialize`.
                Err(BackendError::Lost { .. }) if wanted.era == EraPin::Auto => {
                    let legacy = ConnectSpec {
                        era: EraPin::Legacy,
                        ..wanted.clone()
                    };
                    let second = self.connect_stdio(command, &legacy).await;
                    if second.is_err() {
                        // Two processes came to nothing; whoever asked notes one of them.
                        self.shared
                            .reconnect
                            .note_failed_start(wanted.start_quota_key.as_ref());
                    }
                    second
                }
                other => other,
            },
        }
    }

    async fn connect_stdio(
        &self,
        command: &crate::config::StdioCommand,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let output = &wanted.identity.output;
        let odd_before = output.stray().count;
        let requests = self.new_pending_requests(wanted);
        let (link, pid) = stdio::open(command, &requests, output, &self.launcher).await?;
        let connection_result = self.handshake(link, wanted, Some(pid)).await;
        connection_result
            .map_err(|failure| failure.with_stray_lines(&output.stray().lines_since(odd_before)))
    }

    /// Streamable HTTP, and HTTP+SSE where the server refuses that.
    async fn connect_http_or_sse(
        &self,
        remote: &Remote,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let (transport, connection) = match self.connect_http(remote, wanted).await {
            Err(refusal @ BackendError::Http { .. }) if refusal.refuses_era() => {
                ("sse", self.connect_sse(remote, wanted).await)
            }
            other => ("http", other),
        };
        if connection.is_ok() {
            wanted.identity.set_transport(transport);
        }
        connection
    }

    /// A socket carries the access token of the moment when it is opened, and that one alone.
    async fn connect_websocket(
        &self,
        remote: &Remote,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let remote = wanted.remote(remote);
        let connect = self.config().connect_timeout;
        let open = |authorization| {
            websocket::open(
                &remote,
                self.new_pending_requests(wanted),
                connect,
                authorization,
            )
        };
        let credential = self.credential(wanted);
        let link = match &credential {
            Some(credential) => credential.open(open).await?,
            None => open(None).await?,
        };
        let connection = self.handshake(link, wanted, None).await?;
        if let Some(credential) = credential {
            credential.watch_grant(&connection);
        }
        Ok(connection)
    }

    /// What gives the requests of a connection their access tokens, where the server takes such.
    fn credential(&self, wanted: &ConnectSpec) -> Option<CredentialSource> {
        let grants = self.grants.as_ref()?;
        let owner = wanted.token_owner;
        Some(CredentialSource::new(grants, owner, &self.shared))
    }

    async fn connect_http(
        &self,
        remote: &Remote,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let credential = self.credential(wanted);
        let link = http::open(
            &wanted.remote(remote),
            self.new_pending_requests(wanted),
            self.config().connect_timeout,
            credential.clone(),
        )?;
        let connection = self.handshake(link, wanted, None).await?;
        if let Some(credential) = credential {
            credential.watch_grant(&connection);
        }
        Ok(connection)
    }

    async fn connect_sse(
        &self,
        remote: &Remote,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let requests = self.new_pending_requests(wanted);
        let credential = self.credential(wanted);
        let link = sse::open(
            &wanted.remote(remote),
            requests,
            self.config().connect_timeout,
            credential.clone(),
        )
        .await?;
        // HTTP+SSE exists in the legacy era only.
        let legacy = ConnectSpec {
            era: EraPin::Legacy,
            ..wanted.clone()
        };
        let connection = self.handshake(link, &legacy, None).await?;
        if let Some(credential) = credential {
            credential.watch_grant(&connection);
        }
        Ok(connection)
    }

    async fn handshake(
        &self,
        link: Arc<Link>,
        wanted: &ConnectSpec,
        pid: Option<u32>,
    ) -> Result<Arc<Connection>, BackendError> {
        let closed_early = link.requests.closed.clone().drop_guard();
        let hello = handshake::handshake(&link, wanted.era, &wanted.capabilities).await?;
        closed_early.disarm();
        // A link reports its result once.
        link.requests.revision.set(hello.revision).ok();
        Ok(Arc::new(Connection {
            link,
            hello,
            pid,
            follows_lists: AtomicBool::new(false),
        }))
    }

    fn new_pending_requests(&self, wanted: &ConnectSpec) -> Arc<PendingRequests> {
        let config = self.config();
        let settings = LinkSettings {
            server: self.server.clone(),
            peer: Arc::clone(&self.peer),
            request_bytes_max: config.limits.request,
            response_bytes_max: config.limits.response,
            memory_max: config.limits.memory,
            ask_timeout: config.max_total_timeout,
            roots: config.roots.clone(),
            is_for_lists: wanted.is_for_lists,
            session_filters: self.session_filters.clone(),
            byte_budget: self.byte_budget.clone(),
            http_calls: self.http_calls.clone(),
            task_owners: inherited_tasks(&config.transport, &wanted.identity),
        };
        PendingRequests::new(
            settings,
            wanted.session.clone(),
            wanted.identity.tasks.clone(),
        )
    }
}

/// The tasks that a new connection of `identity` may hear of: a program begins with none.
fn inherited_tasks(transport: &Transport, identity: &InstanceIdentity) -> Arc<LinkTaskOwners> {
    match transport {
        Transport::Builtin | Transport::ControlSocket(_) | Transport::Stdio(_) => {
            identity.fresh_task_owners()
        }
        Transport::Auto(_) | Transport::Http(_) | Transport::Sse(_) | Transport::WebSocket(_) => {
            Arc::clone(&identity.task_owners)
        }
    }
}

/// Calls `slow` once when `start` takes longer than [`SLOW_START_AFTER`].
async fn warn_if_slow<T>(mut start: impl Future<Output = T> + Unpin, slow: impl FnOnce()) -> T {
    tokio::select! {
        biased;
        started = &mut start => return started,
        () = sleep(SLOW_START_AFTER) => slow(),
    }
    start.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_start_is_slow_after_ten_seconds() {
        let check = async |millis: u64, expect: u32| {
            let mut reports = 0;
            let start = Box::pin(sleep(Duration::from_millis(millis)));
            warn_if_slow(start, || reports += 1).await;
            assert_eq!(reports, expect, "{millis} ms");
        };
        check(9_999, 0).await;
        check(10_001, 1).await;
        check(60_000, 1).await;
        check(0, 0).await;
    }
}
