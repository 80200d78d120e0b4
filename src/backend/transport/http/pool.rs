//! A pool of HTTP/1.1 connections to one server behind `http:`, on hyper's connection API.
//!
//! The task of a call polls the connection that it uses. The client of hyper-util, which `transport`
//! uses for TLS, polls each connection in a task of its own: every call then changes tasks twice, which
//! costs 7 to 9 % of its CPU time (see `docs/src/performance.md`).
//!
//! The contract is that of [`Future`]: while a response is awaited or a body is read, the connection is
//! polled with the waker of the task that waits. An idle connection is not polled. Whether the server
//! closed it meanwhile shows at the next request, which hyper then hands back unsent, and which goes to
//! another connection.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, Weak},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::{body::Incoming, service::Service};
use hyper_util::service::TowerToHyperService;
use tokio::time::{Instant, sleep};

use super::{
    connection::HttpConnection,
    http_client::{Connector, POOL_IDLE, TcpConnector, proxy_error, root_cause},
};
use crate::{backend::BackendError, config::ForwardProxy, lock::lock, task::Tasks};

/// Idle connections that are kept; one that falls idle beyond them is closed.
const IDLE_MAX: usize = 256;

/// Connections to one server.
#[derive(Debug)]
pub(super) struct HttpPool {
    connector: TowerToHyperService<Connector<TcpConnector>>,
    /// The `Host` header that requests need.
    pub(super) host: HeaderValue,
    /// Where to connect to.
    url: Uri,
    /// The proxy that this is.
    proxy: Option<ForwardProxy>,
    /// The URI of requests: a path, and the whole URL for a proxy.
    pub(super) target: Uri,
    idle: Mutex<IdleConnections>,
    tasks: Tasks,
}

/// The connections that nobody uses.
#[derive(Debug, Default)]
struct IdleConnections {
    /// The one that fell idle last is at the end, and used first.
    connections: Vec<(Instant, Box<HttpConnection>)>,
    /// Whether a task sees to it that they are closed in time.
    has_sweeper: bool,
}

impl HttpPool {
    /// A pool of connections to the server of `url`, or to the proxy before it; none of them is open yet.
    pub(super) fn new(
        url: &Uri,
        proxy: Option<&ForwardProxy>,
        connector: Connector<TcpConnector>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let host = match (url.host().unwrap_or_default(), url.port_u16()) {
            (host, None | Some(80)) => HeaderValue::try_from(host),
            (host, Some(port)) => HeaderValue::try_from(format!("{host}:{port}")),
        };
        Arc::new(Self {
            connector: TowerToHyperService::new(connector),
            host: host.expect("what is legal in a URI is legal in a header"),
            url: proxy.map_or(url, |proxy| &proxy.uri).clone(),
            proxy: proxy.cloned(),
            target: target_of(url, proxy.is_some()),
            idle: Mutex::default(),
            tasks: tasks.clone(),
        })
    }

    /// The URI of requests for another URL of the same origin.
    pub(super) fn target_of(&self, url: &Uri) -> Uri {
        target_of(url, self.proxy.is_some())
    }

    /// Sends `request`, whose URI is `target` and which has its `Host` header, and waits for the head
    /// of the answer. One that meets a closed connection before anything was sent goes on the next.
    ///
    /// # Errors
    /// [`BackendError::Lost`] once it may have been sent, which the server may have acted on.
    pub(super) async fn request(
        self: &Arc<Self>,
        mut request: Box<Request<Full<Bytes>>>,
    ) -> Result<Response<PooledBody>, BackendError> {
        loop {
            let (mut connection, is_used) = if let Some(connection) = self.take_idle() {
                (connection, true)
            } else {
                let opened = Box::pin(self.connect()).await;
                (
                    opened.map_err(|reason| BackendError::Connect { reason })?,
                    false,
                )
            };
            let mut error = match connection.send(request, &self.tasks).await {
                Ok(response) => return Ok(response.map(|body| self.pooled_body(body, connection))),
                Err(error) => error,
            };
            request = match error.take_message() {
                Some(unsent) if is_used => Box::new(unsent),
                Some(_) => {
                    let reason = root_cause(error.error());
                    return Err(BackendError::Connect { reason });
                }
                None => {
                    let reason = root_cause(error.error());
                    return Err(BackendError::Lost { reason });
                }
            };
        }
    }

    async fn connect(&self) -> Result<Box<HttpConnection>, String> {
        let io = self.connector.call(self.url.clone()).await;
        let io = io.map_err(|error| match &self.proxy {
            Some(proxy) => proxy_error(proxy, &*error).to_string(),
            None => root_cause(&*error),
        })?;
        let connection = HttpConnection::new(io.into_inner()).await;
        connection.map_err(|error| root_cause(&error))
    }

    fn pooled_body(
        self: &Arc<Self>,
        body: Incoming,
        connection: Box<HttpConnection>,
    ) -> PooledBody {
        PooledBody {
            body: Some(body),
            connection: Some(connection),
            pool: Arc::clone(self),
        }
    }

    fn take_idle(&self) -> Option<Box<HttpConnection>> {
        let mut idle = self.idle();
        let (since, connection) = idle.connections.pop()?;
        if since.elapsed() < POOL_IDLE {
            return Some(connection);
        }
        // The others have been idle for longer.
        idle.connections.clear();
        None
    }

    fn put_idle(self: &Arc<Self>, connection: Box<HttpConnection>) {
        let mut idle = self.idle();
        if idle.connections.len() >= IDLE_MAX {
            return;
        }
        idle.connections.push((Instant::now(), connection));
        if !idle.has_sweeper {
            idle.has_sweeper = true;
            self.tasks.spawn(
                "idle connections",
                sweep_idle(Arc::downgrade(self), self.tasks.clone()),
            );
        }
    }

    /// Closes the connections that have been idle for too long; whether others are left.
    fn close_expired(&self) -> bool {
        let mut idle = self.idle();
        let old = idle
            .connections
            .partition_point(|(since, _)| since.elapsed() >= POOL_IDLE);
        drop(idle.connections.drain(..old));
        idle.has_sweeper = !idle.connections.is_empty();
        idle.has_sweeper
    }

    fn idle(&self) -> MutexGuard<'_, IdleConnections> {
        lock(&self.idle)
    }
}

fn target_of(url: &Uri, is_whole: bool) -> Uri {
    if is_whole {
        return url.clone();
    }
    let path = url.path_and_query().cloned();
    path.map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// Closes idle connections in time, until there are none.
async fn sweep_idle(pool: Weak<HttpPool>, tasks: Tasks) {
    loop {
        tokio::select! {
            () = sleep(POOL_IDLE) => {}
            () = tasks.stop_token().cancelled() => return,
        }
        if !pool.upgrade().is_some_and(|pool| pool.close_expired()) {
            return;
        }
    }
}

/// The body of an answer, which drives its connection and gives it back at the end.
#[derive(Debug)]
pub(super) struct PooledBody {
    /// `None` only while it is dropped.
    body: Option<Incoming>,
    connection: Option<Box<HttpConnection>>,
    pool: Arc<HttpPool>,
}

impl Body for PooledBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self {
            body, connection, ..
        } = &mut *self;
        let (Some(body), Some(connection)) = (body, connection) else {
            return Poll::Ready(None);
        };
        let mut frame = Pin::new(&mut *body).poll_frame(cx);
        if frame.is_pending() {
            connection.drive(cx);
            frame = Pin::new(body).poll_frame(cx);
        }
        let frame = ready!(frame);
        connection.overhead.reset();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for PooledBody {
    fn drop(&mut self) {
        // The rest, if there is any, is wanted by nobody: the connection is told so first.
        drop(self.body.take());
        if let Some(mut connection) = self.connection.take()
            && connection.is_reusable()
        {
            self.pool.put_idle(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::{FutureExt, future::join_all};
    use http_body_util::BodyExt;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::{JoinSet, yield_now},
        time::timeout,
    };

    use super::*;
    use crate::backend::transport::http::{http_client, server_resolver::ServerResolver};

    /// How long a connection stays that nobody uses.
    const KEPT_OPEN: Duration = Duration::from_millis(50);

    /// Answers one request a connection, and closes it a while later without having said so.
    async fn serve_once(listener: TcpListener) {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut heard = Vec::new();
                while !heard.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut heard).await.unwrap();
                }
                stream.write_all(ANSWER.as_bytes()).await.unwrap();
                sleep(KEPT_OPEN).await;
            });
        }
    }

    /// What a server has seen.
    #[derive(Clone, Copy, Debug, Default)]
    struct Seen {
        connections: usize,
        requests: usize,
    }

    /// Answers every request with `answer`.
    async fn serve(listener: TcpListener, answer: &'static str, seen: Arc<Mutex<Seen>>) {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            seen.lock().unwrap().connections += 1;
            let seen = Arc::clone(&seen);
            connections.spawn(async move {
                let mut heard = Vec::new();
                while stream.read_buf(&mut heard).await.unwrap_or(0) > 0 {
                    if heard.ends_with(b"\r\n\r\n") {
                        heard.clear();
                        seen.lock().unwrap().requests += 1;
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            });
        }
    }

    /// A server, and a pool of connections to it.
    struct Pair {
        pool: Arc<HttpPool>,
        seen: Arc<Mutex<Seen>>,
        tasks: Tasks,
        _server: JoinSet<()>,
    }

    impl Pair {
        async fn new(answer: &'static str) -> Self {
            let seen = Arc::default();
            let serve = |listener| serve(listener, answer, Arc::clone(&seen));
            Self::with(serve, Arc::clone(&seen)).await
        }

        async fn with<S: Future<Output = ()> + Send + 'static>(
            serve: impl FnOnce(TcpListener) -> S,
            seen: Arc<Mutex<Seen>>,
        ) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url: Uri = format!("http://{}/x", listener.local_addr().unwrap())
                .parse()
                .unwrap();
            let mut server = JoinSet::new();
            server.spawn(serve(listener));
            let tasks = Tasks::new();
            Self {
                pool: HttpPool::new(
                    &url,
                    None,
                    http_client::tcp_connector(
                        ServerResolver::unrestricted(),
                        Duration::from_secs(5),
                    ),
                    &tasks,
                ),
                seen,
                tasks,
                _server: server,
            }
        }

        fn seen(&self) -> Seen {
            *self.seen.lock().unwrap()
        }

        fn ask(&self) -> impl Future<Output = Response<PooledBody>> + use<> {
            let pool = Arc::clone(&self.pool);
            let mut request = Box::new(Request::new(Full::new(Bytes::new())));
            request.uri_mut().clone_from(&pool.target);
            request.headers_mut().insert("host", pool.host.clone());
            async move { pool.request(request).await.unwrap() }
        }
    }

    async fn check(answer: &'static str, read: bool, connections: usize) {
        let pair = Pair::new(answer).await;
        for _ in 0..3 {
            let response = pair.ask().await;
            if read {
                let body = response.into_body().collect().await.unwrap();
                assert_eq!(body.to_bytes(), "ok", "{answer}");
            }
        }
        assert_eq!(pair.seen().connections, connections, "{answer}");
        pair.tasks.finish().await;
    }

    #[tokio::test]
    async fn connections_are_used_again_while_they_can_be() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        check(whole, true, 1).await;
        check(whole, false, 1).await;
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        check(chunked, true, 1).await;
        let last = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
        check(last, true, 3).await;
        let endless = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok";
        check(endless, false, 3).await;
    }

    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    const MANY: usize = 7;

    impl Pair {
        /// Begins to ask, on connections that stand.
        async fn asking(&self) -> Vec<Pin<Box<impl Future<Output = Response<PooledBody>>>>> {
            join_all((0..MANY).map(|_| self.ask())).await;
            let mut asking: Vec<_> = (0..MANY).map(|_| Box::pin(self.ask())).collect();
            for ask in &mut asking {
                assert!(ask.now_or_never().is_none(), "nothing is answered yet");
            }
            asking
        }
    }

    #[tokio::test]
    async fn requests_leave_while_nobody_polls_them() {
        let pair = Pair::new(ANSWER).await;
        for busy in [Vec::new(), pair.tasks.in_flight_for_batching()] {
            let asking = pair.asking().await;
            let before = pair.seen().requests;
            let sent = async {
                while pair.seen().requests < before + MANY {
                    yield_now().await;
                }
            };
            let sent = timeout(Duration::from_secs(10), sent).await;
            sent.expect("all of them are sent");
            join_all(asking).await;
            drop(busy);
        }
        assert_eq!(pair.seen().connections, MANY);
        pair.tasks.finish().await;
    }

    #[tokio::test]
    async fn who_asks_on_a_closed_connection_goes_on_the_next() {
        let pair = Pair::with(serve_once, Arc::default()).await;
        let _busy = pair.tasks.in_flight_for_batching();
        for _ in 0..3 {
            // Each is woken for itself alone.
            let asking: JoinSet<_> = (0..MANY).map(|_| pair.ask()).collect();
            let answers = timeout(Duration::from_secs(10), asking.join_all()).await;
            drop(answers.expect("nobody is forgotten"));
            assert_eq!(pair.pool.idle().connections.len(), MANY);
            sleep(3 * KEPT_OPEN).await;
        }
        pair.tasks.finish().await;
    }

    #[tokio::test]
    async fn who_gives_up_leaves_no_connection_behind() {
        let pair = Pair::new(ANSWER).await;
        let _busy = pair.tasks.in_flight_for_batching();
        drop(pair.asking().await);
        let idle = || pair.pool.idle().connections.len();
        assert_eq!(idle(), 0, "nobody knows what became of them");
        join_all(pair.asking().await).await;
        assert_eq!(idle(), MANY);
        assert_eq!(pair.seen().connections, 2 * MANY);
        pair.tasks.finish().await;
    }
}
