//! The HTTP client towards servers: one pool for each server, TLS only where the URL asks for it.

use std::{
    error::Error,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, Uri,
    header::{ACCEPT_ENCODING, AUTHORIZATION, PROXY_AUTHORIZATION},
    uri::{Authority, Scheme},
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        self, Client,
        connect::{HttpConnector, proxy::Tunnel},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::ClientConfig;
use tokio::{net::TcpStream, time::timeout};
use tower_service::Service;

use super::{
    read_budget::{OVERHEAD_MAX_HTTP2, Overhead, ReadBudget},
    remote_tls,
    server_resolver::ServerResolver,
};
use crate::{
    backend::BackendError,
    config::{Auth, ForwardProxy, Remote},
    mcp::{GatewayId, gateway_headers},
};

/// How long an idle connection is kept. Many servers close theirs after 5 s; a request that meets
/// the closing is lost, and only its sender can know whether it may be repeated.
pub(in crate::backend) const POOL_IDLE: Duration = Duration::from_secs(4);

/// How long a connection may be silent before the system of the other end is asked for a sign of life.
/// Streams are silent for hours while nothing happens, and a path may end without a word. A ping of
/// HTTP/2 would ask the server itself, which answers none while it is at work on a call.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long such a sign may take, before it is asked for once more.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// How often it is asked for before the connection is given up.
const KEEP_ALIVE_PROBES: u32 = 4;

/// A pooling HTTP client.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient(Client<Connector<Https>, Full<Bytes>>);

/// Opens TCP connections.
pub(in crate::backend) type TcpConnector = HttpConnector<ServerResolver>;
type Https = HttpsConnector<BudgetedConnector>;
type Broken = Box<dyn Error + Send + Sync>;

/// A client for `remote`, whose connections open within `connect`, proxy and TLS included.
pub(crate) fn new(remote: &Remote, connect: Duration) -> Result<HttpClient, BackendError> {
    let tls = remote_tls::config(remote)?;
    let tcp = tcp_connector(ServerResolver::new(remote)?, connect);
    let proxy = remote.proxy.as_ref();
    Ok(build_client(tls_connector(tls, proxy, tcp)))
}

fn build_client(connector: Connector<Https>) -> HttpClient {
    let client = Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .build(connector);
    HttpClient(client)
}

impl HttpClient {
    /// Sends `request` and waits for the head of its answer.
    pub(crate) async fn request(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<WatchedBody>, legacy::Error> {
        let mut response = self.0.request(request).await?;
        let overhead: Option<Overhead> = response.extensions_mut().remove();
        let overhead = overhead.unwrap_or_default();
        overhead.reset();
        Ok(response.map(|body| WatchedBody { body, overhead }))
    }
}

/// The body of an answer; its connection hears of each part.
#[derive(Debug)]
pub(crate) struct WatchedBody {
    body: Incoming,
    overhead: Overhead,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.overhead.reset();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Opens connections within a time, from the name of the host to the end of the handshake.
#[derive(Clone, Debug)]
pub(crate) struct Connector<C> {
    inner: C,
    limit: Duration,
}

/// What opens TCP connections, each within `limit`.
pub(in crate::backend) fn tcp_connector(
    resolver: ServerResolver,
    limit: Duration,
) -> Connector<TcpConnector> {
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    // Shared among the addresses of a host, so that one that is silent leaves time for others.
    tcp.set_connect_timeout(Some(limit));
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEP_ALIVE_PROBES));
    tcp.enforce_http(false);
    Connector { inner: tcp, limit }
}

/// What opens connections with TLS on those of `tcp`.
fn tls_connector(
    tls: ClientConfig,
    proxy: Option<&ForwardProxy>,
    tcp: Connector<TcpConnector>,
) -> Connector<Https> {
    let limit = tcp.limit;
    let inner = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .enable_http2()
        .wrap_connector(BudgetedConnector {
            tcp: tcp.inner,
            proxy: proxy.cloned(),
        });
    Connector { inner, limit }
}

/// Opens TCP connections that take turns, for what they carry see [`ReadBudget`].
#[derive(Clone, Debug)]
struct BudgetedConnector {
    tcp: TcpConnector,
    proxy: Option<ForwardProxy>,
}

impl Service<Uri> for BudgetedConnector {
    type Response = TokioIo<ReadBudget<TcpStream>>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Broken>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.clone() else {
            let opening = self.tcp.call(url);
            return Box::pin(async move {
                let stream = opening.await?.into_inner();
                Ok(TokioIo::new(ReadBudget::new(stream, OVERHEAD_MAX_HTTP2)))
            });
        };
        let mut tcp = self.tcp.clone();
        Box::pin(async move {
            if url.scheme() == Some(&Scheme::HTTPS) {
                let stream = open_tunnel(tcp, &proxy, url).await?;
                return Ok(TokioIo::new(ReadBudget::new(stream, OVERHEAD_MAX_HTTP2)));
            }
            let opened = tcp.call(proxy.uri.clone()).await;
            let stream = opened.map_err(|error| proxy_error(&proxy, &error))?;
            let budget = ReadBudget::new(stream.into_inner(), OVERHEAD_MAX_HTTP2);
            Ok(TokioIo::new(budget.proxied()))
        })
    }
}

/// A connection to the host of `url` through `proxy`, which cannot look into it.
async fn open_tunnel(
    tcp: TcpConnector,
    proxy: &ForwardProxy,
    url: Uri,
) -> Result<TcpStream, Broken> {
    let mut tunnel = Tunnel::new(proxy.uri.clone(), tcp);
    if let Some(authorization) = &proxy.authorization {
        tunnel = tunnel.with_auth(HeaderValue::try_from(authorization.expose())?);
    }
    let opened = tunnel.call(url).await;
    let stream = opened.map_err(|error| proxy_error(proxy, &error))?;
    Ok(stream.into_inner())
}

/// A connection to the host of `remote`, or through the proxy before it, for what opens none of its own.
pub(in crate::backend) async fn open_tcp(
    remote: &Remote,
    limit: Duration,
) -> Result<TcpStream, BackendError> {
    let mut tcp = tcp_connector(ServerResolver::new(remote)?, limit).inner;
    let url = with_port(remote.url.clone());
    let opened = if let Some(proxy) = &remote.proxy {
        open_tunnel(tcp, proxy, url).await
    } else {
        let opened = tcp.call(url).await;
        opened.map(TokioIo::into_inner).map_err(Into::into)
    };
    opened.map_err(|error| BackendError::Connect {
        reason: root_cause(&*error),
    })
}

/// `url` with the port of `ws` or `wss`, where it has none.
fn with_port(url: Uri) -> Uri {
    let port = match url.scheme_str() {
        Some("ws") => 80,
        Some("wss") => 443,
        Some(_) | None => return url,
    };
    if url.port().is_some() {
        return url;
    }
    let host = url.host().unwrap_or_default();
    let authority = Authority::try_from(format!("{host}:{port}"));
    let mut parts = url.clone().into_parts();
    parts.authority = authority.ok().or(parts.authority);
    Uri::from_parts(parts).unwrap_or(url)
}

/// What is wrong with the way through `proxy`.
pub(super) fn proxy_error(proxy: &ForwardProxy, error: &(dyn Error + 'static)) -> Broken {
    let at = proxy.uri.authority().map_or("", Authority::as_str);
    io::Error::other(format!("proxy `{at}`: {}", root_cause(error))).into()
}

impl<C> Service<Uri> for Connector<C>
where
    C: Service<Uri, Future: Send + 'static, Error: Into<Broken>>,
    C::Response: 'static,
{
    type Response = C::Response;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, Broken>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let (opening, limit) = (self.inner.call(url), self.limit);
        Box::pin(async move {
            let Ok(opened) = timeout(limit, opening).await else {
                let message = format!("connection timed out after {limit:?} (`connect_timeout`)");
                return Err(io::Error::new(io::ErrorKind::TimedOut, message).into());
            };
            opened.map_err(Into::into)
        })
    }
}

/// The headers that every request of `gateway` to `remote` carries.
pub(crate) fn request_headers(
    remote: &Remote,
    gateway: &GatewayId,
) -> Result<HeaderMap, BackendError> {
    let mut headers = HeaderMap::new();
    let mut put = |name: &str, value: &str| {
        let invalid = || BackendError::Header {
            name: name.to_owned(),
        };
        let header = HeaderName::try_from(name).map_err(|_| invalid())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.insert(header, value);
        Ok(())
    };
    for (name, value) in &remote.headers {
        put(name, value.expose())?;
    }
    match &remote.auth {
        Auth::Bearer { token } => put(
            AUTHORIZATION.as_str(),
            &format!("Bearer {}", token.expose()),
        )?,
        Auth::Header { name, value } => put(name, value.expose())?,
        // The token changes: whoever sends a request puts it there.
        Auth::None | Auth::OAuth2(_) => {}
    }
    if let Some(proxy) = &remote.proxy
        && let Some(authorization) = &proxy.authorization
        && remote.url.scheme() == Some(&Scheme::HTTP)
    {
        put(PROXY_AUTHORIZATION.as_str(), authorization.expose())?;
    }
    let identity = HeaderValue::from_static("identity");
    headers.entry(ACCEPT_ENCODING).or_insert(identity);
    gateway.set_header(&mut headers);
    gateway_headers::set_hops(&mut headers, 1);
    Ok(headers)
}

/// The innermost cause of a failed request, which is what a person needs to read; with what to look at
/// where the other end speaks something else.
pub(crate) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    let mut hint = hint_for(cause);
    while let Some(inner) = cause.source() {
        cause = inner;
        hint = hint.or_else(|| hint_for(cause));
    }
    match hint {
        Some(hint) => format!("{cause}; {hint}"),
        None => cause.to_string(),
    }
}

/// What to look at after `error`, where that says so.
fn hint_for(error: &(dyn Error + 'static)) -> Option<&'static str> {
    // What is within an error of the system is no cause of it, but the error itself.
    if let Some(within) = error.downcast_ref().and_then(io::Error::get_ref) {
        return hint_for(within);
    }
    if let Some(rustls::Error::InvalidMessage(_)) = error.downcast_ref() {
        return Some(NO_TLS_HINT);
    }
    let read: &hyper::Error = error.downcast_ref()?;
    // A head that is too large is one of HTTP.
    (read.is_parse() && !read.is_parse_too_large()).then_some(NO_HTTP_REASON)
}

/// What is said where a server answers the beginning of TLS in another way.
const NO_TLS_HINT: &str = "the server does not seem to use TLS; try a URL with `http:` or `ws:`";
/// What is said where a server answers a request in a way that is not HTTP.
pub(in crate::backend) const NO_HTTP_REASON: &str =
    "the response is not HTTP; if the server uses TLS, use `https:` or `wss:`";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustix::net::sockopt;
    use rustls::{RootCertStore, ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinSet,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_silent_connection_is_asked_for_a_sign_of_life() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let opened = tcp_connector(ServerResolver::unrestricted(), LONG)
            .call(url.parse().unwrap())
            .await
            .unwrap();
        let stream = opened.into_inner();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream), Ok(KEEP_ALIVE));
        assert_eq!(sockopt::tcp_keepintvl(&stream), Ok(KEEP_ALIVE_INTERVAL));
        assert_eq!(sockopt::tcp_keepcnt(&stream), Ok(KEEP_ALIVE_PROBES));
    }

    /// It takes connections and never says a word.
    #[tokio::test]
    async fn a_tls_handshake_takes_no_longer_than_a_connection_may() {
        let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", mute.local_addr().unwrap());
        let limit = Duration::from_millis(100);
        let tcp = tcp_connector(ServerResolver::unrestricted(), limit);
        let mut connector = tls_connector(trusting_nobody(), None, tcp);
        let opening = connector.call(url.parse().unwrap());
        let opened = timeout(Duration::from_secs(10), opening).await;
        let failure = opened.expect("it is given up").err().unwrap();
        assert_eq!(
            failure.to_string(),
            "connection timed out after 100ms (`connect_timeout`)"
        );
    }

    fn trusting_nobody() -> ClientConfig {
        ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth()
    }

    /// A server behind TLS that speaks `protocol`, and says `words` again and again once it is asked.
    async fn endless(
        protocol: &'static str,
        words: &'static [u8],
    ) -> (Uri, ClientConfig, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let versions = || ring::default_provider().into();
        let trusting = ClientConfig::builder_with_provider(versions())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(versions())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            let mut stream = acceptor.accept(stream).await.unwrap();
            // The settings of HTTP/2 come before all else.
            if protocol == "h2" {
                stream
                    .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
                    .await
                    .unwrap();
            }
            let mut heard = Vec::new();
            while !heard.ends_with(b"{}") {
                stream.read_buf(&mut heard).await.unwrap();
            }
            // Ends with the connection.
            while stream.write_all(&words.repeat(2000)).await.is_ok() {}
        });
        (url.parse().unwrap(), trusting, serving)
    }

    #[tokio::test]
    async fn informational_responses_without_end_are_given_up() {
        // Of HTTP/2: a frame with the headers of stream 1, whose status is 103.
        let frame = b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03103";
        let written = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        for (protocol, words) in [("http/1.1", &written[..]), ("h2", &frame[..])] {
            let (url, tls, _serving) = endless(protocol, words).await;
            let tcp = tcp_connector(ServerResolver::unrestricted(), LONG);
            let client = build_client(tls_connector(tls, None, tcp));
            let mut request = Request::post(url);
            request = request.header("content-type", "application/json");
            let asked = client.request(request.body(Full::from("{}")).unwrap());
            let asked = timeout(Duration::from_secs(60), asked).await;
            let failed = asked.expect("it is given up").err().unwrap();
            let said = root_cause(&failed);
            assert!(
                said.contains("informational responses"),
                "{protocol}: {said}"
            );
        }
    }
}
