//! Binding the address, TLS, and one task a connection (HTTP/1.1 and HTTP/2).

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Version};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{either::Either, sync::CancellationToken};

use super::{
    Certificates, HttpEdge, InvalidTls, RequestPeer, body,
    timeouts::{ConnectionTimeouts, TimedStream},
    unix_socket::UnixSocket,
};
use crate::{
    auth::PeerCertificate,
    config::{Config, Limits, Listen},
    limiter::ConnectionPermit,
    names::PeerAddress,
    task::{SelfWake, Tasks},
};

/// How long a client may take for its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection may have no request under way; with HTTP/1.1 the headers of the next one have
/// to be there by then. More than the minute for which balancers and most clients keep those that they
/// do not use: what they send on one that is closed at that moment is lost to them, and a call is
/// nothing to be sent twice.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How long one that was told to end may take for what it still has to write, to a slow reader.
const IDLE_GRACE: Duration = Duration::from_secs(300);
/// Pause between pings of HTTP/2, which find out that nobody is there any more.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long the answer to a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long connections may go on once every task has been told to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// The first port that systems give to whoever asks (Linux and macOS, unless somebody changed that).
const UNPRIVILEGED_PORT_MIN: u16 = 1024;
/// Pause after the system refused a connection (out of descriptors), so that it can recover.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener.
#[derive(Debug)]
pub(crate) struct BoundListener {
    listener: Listener,
    role: ListenerRole,
    certificates: Option<Arc<Certificates>>,
}

/// What a listener serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ListenerRole {
    /// State and probes.
    Admin,
    /// Everything.
    All,
    /// Clients: another listener serves the rest.
    Clients,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixSocket),
}

impl Listener {
    async fn accept(&self) -> io::Result<(Accepted, PeerAddress)> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Either::Left(stream), peer.ip().into()))
            }
            Self::Unix(socket) => {
                let (stream, peer) = socket.accept().await?;
                Ok((Either::Right(stream), peer))
            }
        }
    }
}

impl BoundListener {
    /// Where it listens.
    pub(crate) fn listen(&self) -> Listen {
        match &self.listener {
            Listener::Tcp(_, addr) => Listen::Address(*addr),
            Listener::Unix(socket) => Listen::Unix(socket.path().to_owned()),
        }
    }

    /// The base URL for people; for a Unix socket its path, as `listen` is written.
    pub(crate) fn url(&self) -> String {
        let listen = self.listen();
        match (&listen, &self.certificates) {
            (Listen::Unix(_), _) => listen.to_string(),
            (Listen::Address(_), Some(_)) => format!("https://{listen}"),
            (Listen::Address(_), None) => format!("http://{listen}"),
        }
    }

    /// What the listener shows, when it speaks TLS.
    pub(crate) fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.certificates.as_ref()
    }

    /// Accepts connections until `stop`, then lets the present ones finish what they are doing.
    pub(crate) async fn serve(self, edge: Arc<HttpEdge>, stop: CancellationToken) {
        let limiter = edge.proxy.limiter();
        let limit = Arc::clone(match self.role {
            ListenerRole::Admin => &limiter.admin_connections,
            ListenerRole::All | ListenerRole::Clients => &limiter.connections,
        });
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let permit = tokio::select! {
                        permit = limit.acquire(peer) => permit,
                        () = stop.cancelled() => return,
                    };
                    let Some(permit) = permit else { continue };
                    let connection = ClientConnection {
                        edge: Arc::clone(&edge),
                        peer: RequestPeer {
                            address: peer,
                            role: self.role,
                            permit: Arc::new(permit),
                            certificate: None,
                        },
                        stop: stop.clone(),
                        limits: edge.proxy.settings().limits.clone(),
                    };
                    let tls = self.certificates.as_ref();
                    let tls = tls.map(|certificates| certificates.acceptor(self.role));
                    let run = SelfWake::new(Box::pin(connection.run(stream, tls)));
                    edge.tasks.spawn("connection", run);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Binds `listen`, or one of the `port_search` ports after it.
///
/// # Errors
/// When no port is free, the socket cannot be had, or the TLS files cannot be used.
pub(crate) async fn bind(config: &Config) -> Result<BoundListener, InvalidListener> {
    let certificates = config
        .tls
        .as_ref()
        .map(|tls| Certificates::open(tls, config.governance.auth))
        .transpose()?;
    let role = match config.admin_listen {
        Some(_) => ListenerRole::Clients,
        None => ListenerRole::All,
    };
    Ok(BoundListener {
        listener: listener(&config.listen, config.port_search, config).await?,
        role,
        certificates: certificates.map(Arc::new),
    })
}

/// Binds `admin_listen`, which shows the same `certificates`.
///
/// # Errors
/// When the port is not free, or the socket cannot be had.
pub(crate) async fn bind_admin(
    config: &Config,
    certificates: Option<&Arc<Certificates>>,
) -> Result<Option<BoundListener>, InvalidListener> {
    let Some(listen) = &config.admin_listen else {
        return Ok(None);
    };
    let listener = listener(listen, 0, config).await?;
    let is_tcp = listen.address().is_some();
    Ok(Some(BoundListener {
        listener,
        role: ListenerRole::Admin,
        certificates: certificates.filter(|_| is_tcp).cloned(),
    }))
}

async fn listener(
    listen: &Listen,
    port_search: u16,
    config: &Config,
) -> Result<Listener, InvalidListener> {
    match listen {
        Listen::Address(first) => bind_tcp(*first, port_search).await,
        Listen::Unix(path) => match UnixSocket::bind(path, &config.socket).await {
            Ok(socket) => Ok(Listener::Unix(socket)),
            Err(reason) => {
                let path = path.clone();
                Err(InvalidListener::Socket { path, reason })
            }
        },
    }
}

async fn bind_tcp(first: SocketAddr, port_search: u16) -> Result<Listener, InvalidListener> {
    let mut failure = None;
    for offset in 0..=port_search {
        let Some(port) = first.port().checked_add(offset) else {
            break;
        };
        let addr = SocketAddr::new(first.ip(), port);
        match TcpListener::bind(addr).await {
            Ok(listener) => {
                let addr = listener.local_addr().unwrap_or(addr);
                if offset > 0 {
                    // Clients have the other one in their settings.
                    tracing::warn!(
                        "{first} is in use: listening on {addr} instead (`port_search`)"
                    );
                }
                return Ok(Listener::Tcp(listener, addr));
            }
            Err(error) => failure = Some(error),
        }
    }
    // At least one was tried.
    let failure = failure.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(InvalidListener::Bind {
        addr: first,
        reason: failure.to_string(),
        remedy: bind_hint(failure.kind(), first.port(), port_search),
    })
}

/// What the operator can do where the system refuses an address for this reason.
fn bind_hint(why: io::ErrorKind, port: u16, port_search: u16) -> String {
    let is_privileged = (1..UNPRIVILEGED_PORT_MIN).contains(&port);
    if why == io::ErrorKind::AddrInUse {
        format!(
            "the port is in use: stop the other program, change `listen`, or set `port_search` \
             (now {port_search}) to try the following ports"
        )
    } else if why == io::ErrorKind::AddrNotAvailable {
        "this machine does not have that address: set `listen` to a local address, such as \
         127.0.0.1"
            .to_owned()
    } else if why == io::ErrorKind::PermissionDenied && is_privileged {
        format!(
            "ports below {UNPRIVILEGED_PORT_MIN} require privileges: set `listen` to another port"
        )
    } else {
        "set `listen` to another address or port".to_owned()
    }
}

/// Why there is no listener; the operator mends the config or frees the port.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InvalidListener {
    /// The address cannot be had, nor one of the ports after it that were tried.
    #[error("cannot listen on {addr}: {reason}; {remedy}")]
    Bind {
        /// The configured address.
        addr: SocketAddr,
        /// What the system said last.
        reason: String,
        /// What the operator can do.
        remedy: String,
    },
    /// The Unix socket cannot be had.
    #[error("cannot listen on unix:{}: {reason}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why, and what the operator can do.
        reason: String,
    },
    /// The TLS files cannot be used.
    #[error("{0}")]
    Tls(#[from] InvalidTls),
}

type Accepted = Either<TcpStream, UnixStream>;

/// What a connection goes over: one type for all, so that there is one HTTP server in the program.
type ClientStream = Either<TcpStream, Either<Box<TlsStream<TcpStream>>, UnixStream>>;

struct ClientConnection {
    edge: Arc<HttpEdge>,
    peer: RequestPeer,
    stop: CancellationToken,
    limits: Limits,
}

impl ClientConnection {
    async fn run(mut self, accepted: Accepted, tls: Option<TlsAcceptor>) {
        let stream = match accepted {
            Either::Left(stream) => stream,
            Either::Right(stream) => {
                return self.serve_http(Either::Right(Either::Right(stream))).await;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let stream = match tls {
            None => Either::Left(stream),
            // In a box: a future is as large as its largest branch, and each connection has one.
            Some(tls) => match Box::pin(self.tls_handshake(stream, tls)).await {
                Some(stream) => {
                    let shown = stream
                        .get_ref()
                        .1
                        .peer_certificates()
                        .and_then(<[_]>::first);
                    let certificate = shown.and_then(|it| PeerCertificate::read(it));
                    self.peer.certificate = certificate.map(Arc::new);
                    Either::Right(Either::Left(Box::new(stream)))
                }
                None => return,
            },
        };
        self.serve_http(stream).await;
    }

    /// The stream after its TLS handshake.
    async fn tls_handshake(
        &self,
        stream: TcpStream,
        tls: TlsAcceptor,
    ) -> Option<TlsStream<TcpStream>> {
        let accepted = tokio::select! {
            accepted = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => accepted,
            () = self.peer.permit.closing() => return None,
            () = self.stop.cancelled() => return None,
        };
        match accepted {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => self
                .edge
                .request_log
                .note_handshake(&error, self.peer.address),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        }
        None
    }

    async fn serve_http(self, stream: ClientStream) {
        let (edge, peer) = (Arc::clone(&self.edge), self.peer);
        let permit = Arc::clone(&peer.permit);
        let (heard, first) = (CancellationToken::new(), Once::new());
        let streams = Arc::new(Http2Requests::default());
        let times = ConnectionTimeouts {
            headers: self.limits.headers_timeout,
            read_rate_min: self.limits.body_rate_min,
        };
        // The connection is woken often, and polls this each time.
        let ends = ConnectionLimits {
            first_request: heard.clone(),
            first_request_timeout: times.headers,
            stop: self.stop,
            http2_requests: Arc::clone(&streams),
            permit: Arc::clone(&permit),
        };
        let mut interrupted = SelfWake::new(Box::pin(ends.close_reason()));
        let service = service_fn(move |request: Request<Incoming>| {
            first.call_once(|| heard.cancel());
            let edge = Arc::clone(&edge);
            let open = (request.version() == Version::HTTP_2).then(|| streams.open());
            let held = (peer.permit.begin_request(), open);
            let peer = peer.clone();
            // A future holds what it is given several times over: here it holds a box.
            let request = Box::new(request);
            let in_flight = edge.tasks.track_request();
            // The connection is woken for more than its answer.
            SelfWake::new(Box::pin(async move {
                let _in_flight = in_flight;
                let response = edge.handle(peer, request).await;
                Ok::<_, Infallible>(response.map(|body| body::with_guard(body, held)))
            }))
        });
        let server = http_builder(self.limits.headers);
        let stream = TimedStream::new(stream, Arc::clone(&permit), times);
        let connection = server.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            why = &mut interrupted => match why {
                CloseReason::RequestTimeout => return tracing::debug!("closed a connection: no \
                    request arrived in time"),
                CloseReason::Evicted => return tracing::debug!("closed a connection: the request \
                    body was incomplete"),
                CloseReason::Idle | CloseReason::Stop => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection => ended,
                        () = shutdown_grace_elapsed(&self.edge.tasks) => {
                            return tracing::debug!("aborted a connection");
                        }
                        () = idle_grace_elapsed(&permit), if !matches!(why, CloseReason::Stop) => {
                            return tracing::debug!("aborted an idle connection");
                        }
                    }
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection failed");
        }
    }
}

/// Completes when a connection that was told to end has had the time to, unless a request came in the
/// moment before.
async fn idle_grace_elapsed(permit: &ConnectionPermit) {
    sleep(IDLE_GRACE).await;
    while permit.in_flight() > 0 {
        sleep(IDLE_GRACE).await;
    }
}

/// What speaks HTTP on a connection, with headers of so many bytes at most.
fn http_builder(headers_max: usize) -> Builder<TokioExecutor> {
    // What is larger than both is refused unread; `HttpEdge::handle` looks at the headers alone.
    let head_max = headers_max.saturating_add(REQUEST_LINE_BYTES_MAX);
    let mut builder = Builder::new(TokioExecutor::new());
    // Of HTTP/1.1 it reads 100 headers at most. For another number it would allocate with each request.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(head_max);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_header_list_size(u32::try_from(head_max).unwrap_or(u32::MAX));
    builder
}

/// The requests of HTTP/2 that are under way on a connection.
#[derive(Debug, Default)]
struct Http2Requests {
    count: AtomicUsize,
    /// Told when the first begins, and when the last has ended.
    changed: Notify,
}

impl Http2Requests {
    fn open(self: &Arc<Self>) -> OpenRequest {
        if self.count.fetch_add(1, Ordering::SeqCst) == 0 {
            self.changed.notify_one();
        }
        OpenRequest(Arc::clone(self))
    }

    /// Completes when there was none for [`IDLE_TIMEOUT`] since the last one.
    async fn idle(&self) {
        loop {
            self.changed.notified().await;
            while self.count.load(Ordering::SeqCst) == 0 {
                if timeout(IDLE_TIMEOUT, self.changed.notified())
                    .await
                    .is_err()
                {
                    return;
                }
            }
        }
    }
}

/// A request of HTTP/2 is under way until this is dropped.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<Http2Requests>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.notify_one();
        }
    }
}

/// Why we end a connection.
enum CloseReason {
    /// No request of HTTP/2 came any more, or others wait for its place and it has no request under way.
    Idle,
    /// No request came in time, or none before others waited for its place.
    RequestTimeout,
    /// The gateway stops.
    Stop,
    /// Others wait for its place, and all that is under way on it are bodies.
    Evicted,
}

/// What may end a connection, as far as that is for us to say.
struct ConnectionLimits {
    /// Cancelled by its first request.
    first_request: CancellationToken,
    /// How long that may take.
    first_request_timeout: Duration,
    stop: CancellationToken,
    http2_requests: Arc<Http2Requests>,
    permit: Arc<ConnectionPermit>,
}

impl ConnectionLimits {
    async fn close_reason(self) -> CloseReason {
        tokio::select! {
            // What ends gracefully may wait for a request that was begun, which takes its time.
            () = self.permit.closing() => if !self.first_request.is_cancelled() {
                CloseReason::RequestTimeout
            } else if self.permit.is_awaiting_bodies() {
                CloseReason::Evicted
            } else {
                CloseReason::Idle
            },
            () = self.first_request_timed_out() => CloseReason::RequestTimeout,
            () = self.http2_requests.idle() => CloseReason::Idle,
            () = self.stop.cancelled() => CloseReason::Stop,
        }
    }

    /// Completes when no request was heard in time, and never once one was.
    async fn first_request_timed_out(&self) {
        if timeout(self.first_request_timeout, self.first_request.cancelled())
            .await
            .is_ok()
        {
            std::future::pending::<()>().await;
        }
    }
}

/// Completes a little after every task was told to end: a client that does not read, or that sends
/// half a body, would keep its connection for ever.
async fn shutdown_grace_elapsed(tasks: &Tasks) {
    tasks.stop_token().cancelled().await;
    sleep(SHUTDOWN_GRACE).await;
}

/// Room for the request line and what stands between headers, bytes; hyper wants no less for its
/// read buffer.
const REQUEST_LINE_BYTES_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use http::Response;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;
    use crate::config::{self, ConfigFormat, ConfigText, Environment};

    fn listening_on(listen: impl std::fmt::Display) -> Config {
        let source = ConfigText {
            name: "config".to_owned(),
            format: ConfigFormat::Toml,
            text: format!("listen = \"{listen}\"\ndanger_listen_without_auth = true"),
            directory: "/".into(),
        };
        let loaded = config::parse([source], &Environment::default());
        loaded.unwrap().config
    }

    #[tokio::test]
    async fn who_cannot_listen_is_told_what_to_do() {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let check = async |listen: SocketAddr, expect: &str| {
            let failed = bind(&listening_on(listen)).await.unwrap_err().to_string();
            let begins = format!("cannot listen on {listen}: ");
            assert!(failed.starts_with(&begins), "{failed}");
            assert!(failed.contains(expect), "{failed}");
        };
        check(other.local_addr().unwrap(), "the port is in use").await;
        // It is nobody's (RFC 5737).
        let nobodys = "192.0.2.1:0".parse().unwrap();
        check(nobodys, "this machine does not have that address").await;
    }

    /// Who may use such a port is not for a test to say.
    #[test]
    fn ports_that_are_for_others() {
        let check = |port: u16, expect: &str| {
            let text = bind_hint(io::ErrorKind::PermissionDenied, port, 0);
            assert!(text.starts_with(expect), "{port}: {text}");
        };
        check(1, "ports below 1024 require privileges");
        check(1023, "ports below 1024 require privileges");
        check(1024, "set `listen` to another address or port");
        check(0, "set `listen` to another address or port");
    }

    /// A balancer may send the next request whenever the connection is not older than that.
    #[tokio::test(start_paused = true)]
    async fn a_connection_is_kept_for_longer_than_balancers_do() {
        const BALANCER: Duration = Duration::from_secs(60);
        let (near, mut far) = duplex(1 << 12);
        let answer = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(body::full_body("")))
        });
        let server = http_builder(1024);
        let connection = server.serve_connection(TokioIo::new(near), answer);
        let client = async {
            let (mut answer, request) = ([0; 1024], b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            for pause in [Duration::ZERO, BALANCER, BALANCER] {
                sleep(pause).await;
                far.write_all(request).await.expect("it is open");
                let read = far.read(&mut answer).await.expect("it is open");
                assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "{read} bytes");
            }
            let last = Instant::now();
            assert_eq!(far.read(&mut answer).await.expect("it is closed"), 0);
            assert_eq!(last.elapsed(), IDLE_TIMEOUT);
        };
        let (ended, ()) = tokio::join!(connection, client);
        ended.expect_err("no request came");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_once_nothing_was_under_way_for_long() {
        let streams = Arc::new(Http2Requests::default());
        let used = async {
            // One that speaks HTTP/1.1 has no streams.
            sleep(10 * IDLE_TIMEOUT).await;
            let first = streams.open();
            sleep(10 * IDLE_TIMEOUT).await;
            let second = streams.open();
            drop(first);
            sleep(10 * IDLE_TIMEOUT).await;
            drop(second);
            sleep(IDLE_TIMEOUT / 2).await;
            drop(streams.open());
            sleep(IDLE_TIMEOUT / 2).await;
            drop(streams.open());
            Instant::now()
        };
        let idle = async {
            streams.idle().await;
            Instant::now()
        };
        let (last, over) = tokio::join!(used, idle);
        assert_eq!(over - last, IDLE_TIMEOUT);
    }
}
