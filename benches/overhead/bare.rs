//! The yardstick: a reverse proxy that moves bytes and knows nothing of what they say.
//!
//! HTTP/1.1 in, a pooled client out, bodies streamed through, no JSON. What it costs is what any
//! proxy on this stack costs; the report counts what comes on top. Started as a child by `plan`.

use std::net::Ipv4Addr;

use http::{Request, Response, Uri, uri::Authority, uri::Scheme};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{Fault, WORKERS};

type Upstream = Client<HttpConnector, Incoming>;

/// Passes every request on a free port of loopback to `target`, until ended from outside.
pub(crate) fn serve(target: &Authority) -> Result<(), Fault> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let upstream: Upstream = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build(connector);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("listening on http://{}", listener.local_addr()?);
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            connections.spawn(serve_connection(stream, upstream.clone(), target.clone()));
            while connections.try_join_next().is_some() {}
        }
    })
}

async fn serve_connection(stream: TcpStream, upstream: Upstream, target: Authority) {
    let service = service_fn(|request| forward(request, &upstream, &target));
    // A client that goes away ends its connection, which is no news.
    drop(
        http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await,
    );
}

async fn forward(
    mut request: Request<Incoming>,
    upstream: &Upstream,
    target: &Authority,
) -> Result<Response<Incoming>, Error> {
    let mut uri = std::mem::take(request.uri_mut()).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(target.clone());
    *request.uri_mut() = Uri::from_parts(uri).expect("a request has a path, and the rest is set");
    upstream.request(request).await
}
