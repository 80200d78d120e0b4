//! The way requests take to a server: a pool of our own for `http:`, the library's through TLS.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, uri::Scheme};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::{
    http_client::{self, HttpClient, WatchedBody},
    pool::{HttpPool, PooledBody},
};
use crate::{backend::BackendError, task::Tasks};

/// How requests reach a server.
#[derive(Debug)]
pub(super) enum HttpTransport {
    /// HTTP/1.1 over TCP, which most servers next to us are reached by.
    Plain(Arc<HttpPool>),
    /// Through TLS, HTTP/2 where the server offers it.
    Secure(Box<HttpClient>, Uri),
}

impl HttpTransport {
    /// The way to the server of `url`. Nothing is opened yet.
    pub(super) fn new(url: &Uri, connect: Duration, tasks: &Tasks) -> Result<Self, BackendError> {
        if url.scheme() == Some(&Scheme::HTTP) {
            return Ok(Self::Plain(HttpPool::new(
                url,
                http_client::tcp_connector(connect),
                tasks,
            )));
        }
        let client = Box::new(http_client::new(url, connect)?);
        Ok(Self::Secure(client, url.clone()))
    }

    /// The `Host` header of requests, where the library does not add it.
    pub(super) fn host(&self) -> Option<HeaderValue> {
        match self {
            Self::Plain(pool) => Some(pool.host.clone()),
            Self::Secure(..) => None,
        }
    }

    /// The URI of requests.
    pub(super) fn target(&self) -> &Uri {
        match self {
            Self::Plain(pool) => &pool.target,
            Self::Secure(_, url) => url,
        }
    }

    /// Sends `request`, whose URI is [`HttpTransport::target`].
    pub(super) async fn send(
        &self,
        request: Box<Request<Full<Bytes>>>,
    ) -> Result<Response<ResponseBody>, BackendError> {
        match self {
            Self::Plain(pool) => {
                let response = pool.request(request).await?;
                Ok(response.map(ResponseBody::Plain))
            }
            Self::Secure(client, _) => match client.request(*request).await {
                Ok(response) => Ok(response.map(ResponseBody::Secure)),
                Err(error) => Err(from_client_error(&error)),
            },
        }
    }
}

/// Once there is a connection, the server may have acted on what went into it.
fn from_client_error(error: &hyper_util::client::legacy::Error) -> BackendError {
    let reason = http_client::root_cause(error);
    if error.is_connect() {
        BackendError::Connect { reason }
    } else {
        BackendError::Lost { reason }
    }
}

/// The body of an answer, by the way it comes.
#[derive(Debug)]
pub(super) enum ResponseBody {
    Plain(PooledBody),
    Secure(WatchedBody),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Plain(body) => Pin::new(body).poll_frame(cx),
            Self::Secure(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Secure(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Secure(body) => body.size_hint(),
        }
    }
}
