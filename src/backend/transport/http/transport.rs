//! The way requests take to a server: a pool of our own for `http:`, the library's through TLS.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, uri::Scheme};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::{
    content_encoding::{self, DecodedBody, ResponseBodyError, unknown_encoding},
    http_client::{self, HttpClient, WatchedBody},
    pool::{HttpPool, PooledBody},
    server_resolver::ServerResolver,
};
use crate::{backend::BackendError, config::Remote, task::Tasks};

/// How requests reach a server.
#[derive(Debug)]
pub(super) enum HttpTransport {
    /// HTTP/1.1 over TCP, which most servers next to us are reached by.
    Plain(Arc<HttpPool>),
    /// Through TLS, HTTP/2 where the server offers it.
    Secure(Box<HttpClient>, Uri),
}

impl HttpTransport {
    /// The way to a server. Nothing is opened yet.
    pub(super) fn new(
        remote: &Remote,
        connect: Duration,
        tasks: &Tasks,
    ) -> Result<Self, BackendError> {
        let url = &remote.url;
        if url.scheme() == Some(&Scheme::HTTP) {
            return Ok(Self::Plain(HttpPool::new(
                url,
                remote.proxy.as_ref(),
                http_client::tcp_connector(ServerResolver::new(remote)?, connect),
                tasks,
            )));
        }
        let client = Box::new(http_client::new(remote, connect)?);
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

    /// The URI of requests for another URL of the same origin.
    pub(super) fn target_of(&self, url: &Uri) -> Uri {
        match self {
            Self::Plain(pool) => pool.target_of(url),
            Self::Secure(..) => url.clone(),
        }
    }

    /// Sends `request`, whose URI is [`HttpTransport::target`].
    pub(super) async fn send(
        &self,
        request: Box<Request<Full<Bytes>>>,
    ) -> Result<Response<ResponseBody>, BackendError> {
        let response = match self {
            Self::Plain(pool) => pool.request(request).await?.map(ResponseBody::Plain),
            Self::Secure(client, _) => match client.request(*request).await {
                Ok(response) => response.map(ResponseBody::Secure),
                Err(error) => return Err(from_client_error(&error)),
            },
        };
        Ok(content_encoding::decode(response))
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
pub(in crate::backend) enum ResponseBody {
    Decoded(Box<DecodedBody>),
    Plain(PooledBody),
    Secure(WatchedBody),
    /// Nobody can read it: the content encoding that it has.
    Unknown(String),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let frame = match self.get_mut() {
            Self::Decoded(body) => return Pin::new(body).poll_frame(cx),
            Self::Plain(body) => ready!(Pin::new(body).poll_frame(cx)),
            Self::Secure(body) => ready!(Pin::new(body).poll_frame(cx)),
            Self::Unknown(coding) => return Poll::Ready(Some(Err(unknown_encoding(coding)))),
        };
        Poll::Ready(frame.map(|frame| frame.map_err(ResponseBodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Secure(body) => body.is_end_stream(),
            Self::Decoded(_) | Self::Unknown(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Secure(body) => body.size_hint(),
            Self::Decoded(_) | Self::Unknown(_) => SizeHint::default(),
        }
    }
}
