//! Streamable HTTP on loopback: binds, prints the URL, and hands requests for `/mcp` to rmcp.
//!
//! `main` calls `serve`. Host and Origin are checked by rmcp, whose default leaves Origin alone.

use std::convert::Infallible;
use std::error::Error;
use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::server::Fixtures;
use crate::sessions::{PollingSessions, RETRY};

/// Enough for several suites at once, and few enough to notice a leak.
const CONNECTIONS_MAX: usize = 512;

type Mcp = StreamableHttpService<Fixtures, PollingSessions>;

/// Serves until the process is ended from outside.
pub(crate) async fn serve(fixtures: Fixtures, port: u16) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let mcp = service(fixtures);
    let mut out = std::io::stdout();
    writeln!(out, "http://{}/mcp", listener.local_addr()?)?;
    out.flush()?;

    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let (stream, _) = listener.accept().await?;
        let mcp = mcp.clone();
        connections.spawn(async move {
            serve_connection(stream, mcp).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
}

fn service(fixtures: Fixtures) -> Mcp {
    let config = StreamableHttpServerConfig::default()
        .with_sse_retry(Some(RETRY))
        .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"]);
    let sessions = Arc::new(PollingSessions::new());
    StreamableHttpService::new(move || Ok(fixtures.for_connection()), sessions, config)
}

async fn serve_connection(stream: TcpStream, mcp: Mcp) {
    let service = service_fn(move |request| answer(mcp.clone(), request));
    let served = Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    // The suite drops connections on purpose, so this is no error.
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer(
    mcp: Mcp,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    if request.uri().path() == "/mcp" {
        return Ok(mcp.handle(request).await);
    }
    let mut missing = Response::new(Full::new(Bytes::from_static(b"not found")).boxed());
    *missing.status_mut() = StatusCode::NOT_FOUND;
    Ok(missing)
}
