//! Makes connections to one server: starts its program or dials it, and greets it.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{Connection, handshake, identity::InstanceIdentity, start_limiter::StartParty};
use crate::{
    backend::{
        BackendError, SharedState,
        link::{
            Link,
            peer::GatewayPeer,
            pending::{LinkSettings, LinkTaskOwners, PendingRequests},
            session_filter::SessionFilters,
        },
        live_config::LiveConfig,
        transport::{
            http::{self, sse},
            pipe,
            stdio::{self, launch::Launcher},
            websocket,
        },
    },
    config::{EraPin, Remote, Server, Transport},
    limiter::ByteBudget,
    mcp::{Era, Raw},
    names::ServerName,
    session::Session,
    task::Tasks,
};

/// How long a server may take to open the stream for messages that belong to no call; some send
/// no headers before the first message.
const STANDING_PATIENCE: Duration = Duration::from_secs(1);
/// A start that takes longer is reported.
pub(in crate::backend) const SLOW_START: Duration = Duration::from_secs(10);
/// Buffer of the in-process pipe to the builtin server, bytes.
const BUILTIN_PIPE_BYTES: usize = 64 * 1024;

/// What is needed to make connections to one server.
#[derive(Debug)]
pub(crate) struct BackendConnector {
    pub(crate) server: ServerName,
    pub(in crate::backend) written: Arc<LiveConfig>,
    pub(crate) tasks: Tasks,
    pub(crate) launcher: Launcher,
    pub(in crate::backend) peer: Arc<GatewayPeer>,
    pub(in crate::backend) views: SessionFilters,
    pub(in crate::backend) bytes: ByteBudget,
    pub(crate) shared: Arc<SharedState>,
}

/// Which connection is wanted.
#[derive(Clone, Debug)]
pub(crate) struct ConnectSpec {
    pub(crate) era: EraPin,
    /// Capabilities declared in `initialize`.
    pub(crate) capabilities: Raw,
    /// The session whose own it will be.
    pub(crate) home: Option<Arc<Session>>,
    /// Whether it is for the lists of the server alone: there is no client to ask.
    pub(crate) is_for_lists: bool,
    /// Whether it is to be known before the first call if the server asks for roots, and that has to
    /// wait until the server has them where the connection is one client's own.
    pub(crate) awaits_roots: bool,
    /// What it is a connection of.
    pub(crate) lineage: Arc<InstanceIdentity>,
    /// Whose the start is, should it come to nothing.
    pub(in crate::backend) party: Option<StartParty>,
}

impl BackendConnector {
    /// What the config says of the server at present, for a look.
    pub(in crate::backend) fn config(&self) -> arc_swap::Guard<Arc<Server>> {
        self.written.now()
    }

    /// Connects and greets, within the time a start may take. A connection that nobody gets, since
    /// this is dropped before, is closed.
    pub(crate) async fn connect(
        &self,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let limit = self.config().startup_timeout;
        let lineage = &wanted.lineage;
        let odd_before = lineage.output.odd().count;
        let attempt = Box::pin(timeout(limit, self.attempt(wanted)));
        let attempt = watched(attempt, || self.report_slow(lineage)).await;
        lineage.set_slow(false);
        let connection = attempt.unwrap_or_else(|_| {
            Err(BackendError::Startup {
                after: limit,
                key: "startup_timeout",
                odd: lineage.output.odd().since(odd_before),
            })
        })?;
        let closed_early = connection.closed().clone().drop_guard();
        if let Some(http) = connection.link.as_http()
            && connection.era() == Era::Legacy
        {
            let (opened, open) = oneshot::channel();
            let listen = Arc::clone(http).listen(opened);
            lineage.tasks.spawn("standing stream", listen);
            // What a server says before the stream is open may be lost.
            drop(timeout(STANDING_PATIENCE, open).await);
        }
        if wanted.awaits_roots && connection.era() == Era::Legacy {
            self.await_roots(&connection, wanted.home.is_some()).await;
        }
        closed_early.disarm();
        Ok(connection)
    }

    /// Says, here and in `/status`, that a start takes long.
    fn report_slow(&self, lineage: &InstanceIdentity) {
        lineage.set_slow(true);
        let output = &lineage.output;
        let (odd, stderr) = (output.odd().clone(), output.last_words());
        tracing::warn!(
            server = %self.server,
            odd_lines = odd.count,
            last_odd_line = odd.last(),
            last_on_stderr = stderr,
            "server has not started within {SLOW_START:?}"
        );
    }

    async fn attempt(&self, wanted: &ConnectSpec) -> Result<Arc<Connection>, BackendError> {
        let config = self.written.load();
        match &config.transport {
            Transport::Auto(remote) => self.over_either(remote, wanted).await,
            Transport::Http(remote) => self.over_http(remote, wanted).await,
            Transport::Sse(remote) => self.over_sse(remote, wanted).await,
            Transport::WebSocket(remote) => {
                let mux = self.mux(wanted);
                let link = websocket::open(remote, mux, config.connect_timeout).await?;
                self.greet(link, wanted, None).await
            }
            Transport::Builtin => {
                let (ours, theirs) = tokio::io::duplex(BUILTIN_PIPE_BYTES);
                let mux = self.mux(wanted);
                let stop = mux.closed.clone();
                let serving = crate::builtin::serve(theirs, stop);
                wanted.lineage.tasks.spawn("builtin server", serving);
                let (reader, writer) = tokio::io::split(ours);
                let over = mux.closed.clone();
                let link = pipe::over_lines(reader, writer, &mux, |_, _| {}, over);
                self.greet(link, wanted, None).await
            }
            Transport::Stdio(command) => match self.over_stdio(command, wanted).await {
                // Some old servers exit on a request before `initialize`.
                Err(BackendError::Lost { .. }) if wanted.era == EraPin::Auto => {
                    let legacy = ConnectSpec {
                        era: EraPin::Legacy,
                        ..wanted.clone()
                    };
                    let second = self.over_stdio(command, &legacy).await;
                    if second.is_err() {
                        // Two processes came to nothing; whoever asked notes one of them.
                        self.shared.note_futile_start(wanted.party.as_ref());
                    }
                    second
                }
                other => other,
            },
        }
    }

    async fn over_stdio(
        &self,
        command: &crate::config::StdioCommand,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let output = &wanted.lineage.output;
        let odd_before = output.odd().count;
        let mux = self.mux(wanted);
        let (link, pid) = stdio::open(command, &mux, output, &self.launcher).await?;
        let greeted = self.greet(link, wanted, Some(pid)).await;
        greeted.map_err(|failure| failure.with_odd(&output.odd().since(odd_before)))
    }

    /// Streamable HTTP, and HTTP+SSE where the server refuses that.
    async fn over_either(
        &self,
        remote: &Remote,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let (transport, connection) = match self.over_http(remote, wanted).await {
            Err(refusal @ BackendError::Http { .. }) if refusal.refuses_era() => {
                ("sse", self.over_sse(remote, wanted).await)
            }
            other => ("http", other),
        };
        if connection.is_ok() {
            wanted.lineage.set_transport(transport);
        }
        connection
    }

    async fn over_http(
        &self,
        remote: &Remote,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let link = http::open(remote, self.mux(wanted), self.config().connect_timeout)?;
        self.greet(link, wanted, None).await
    }

    async fn over_sse(
        &self,
        remote: &Remote,
        wanted: &ConnectSpec,
    ) -> Result<Arc<Connection>, BackendError> {
        let mux = self.mux(wanted);
        let link = sse::open(remote, mux, self.config().connect_timeout).await?;
        // HTTP+SSE exists in the legacy era only.
        let legacy = ConnectSpec {
            era: EraPin::Legacy,
            ..wanted.clone()
        };
        self.greet(link, &legacy, None).await
    }

    async fn greet(
        &self,
        link: Arc<Link>,
        wanted: &ConnectSpec,
        pid: Option<u32>,
    ) -> Result<Arc<Connection>, BackendError> {
        let closed_early = link.mux.closed.clone().drop_guard();
        let hello = handshake::greet(&link, wanted.era, &wanted.capabilities).await?;
        closed_early.disarm();
        // A link is greeted once.
        link.mux.spoken.set(hello.revision).ok();
        Ok(Arc::new(Connection {
            link,
            hello,
            pid,
            followed: AtomicBool::new(false),
        }))
    }

    fn mux(&self, wanted: &ConnectSpec) -> Arc<PendingRequests> {
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
            views: self.views.clone(),
            bytes: self.bytes.clone(),
            begun: begun_before(&config.transport, &wanted.lineage),
        };
        PendingRequests::new(settings, wanted.home.clone(), wanted.lineage.tasks.clone())
    }
}

/// The tasks that a new connection of `lineage` may hear of: a program begins with none.
fn begun_before(transport: &Transport, lineage: &InstanceIdentity) -> Arc<LinkTaskOwners> {
    match transport {
        Transport::Builtin | Transport::Stdio(_) => lineage.begun_anew(),
        Transport::Auto(_) | Transport::Http(_) | Transport::Sse(_) | Transport::WebSocket(_) => {
            Arc::clone(&lineage.begun)
        }
    }
}

/// Calls `slow` once when `start` takes longer than [`SLOW_START`].
async fn watched<T>(mut start: impl Future<Output = T> + Unpin, slow: impl FnOnce()) -> T {
    tokio::select! {
        biased;
        started = &mut start => return started,
        () = sleep(SLOW_START) => slow(),
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
            watched(start, || reports += 1).await;
            assert_eq!(reports, expect, "{millis} ms");
        };
        check(9_999, 0).await;
        check(10_001, 1).await;
        check(60_000, 1).await;
        check(0, 0).await;
    }
}
