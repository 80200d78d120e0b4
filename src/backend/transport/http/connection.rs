//! One HTTP/1.1 connection to a server, polled by the task that waits for its response; while many
//! requests are in flight its first poll, which writes the request, is left to a batch.
//!
//! Called by `pool`, which keeps the idle ones.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{self, Connection, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::read_budget::{OVERHEAD_MAX, Overhead, ReadBudget};
use crate::{
    lock::lock,
    task::{FlushLater, Tasks},
};

/// One connection; boxed wherever it is passed on, for it is large.
#[derive(Debug)]
pub(super) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: Arc<Mutex<ConnectionDriver>>,
    pub(super) overhead: Overhead,
}

/// What reads and writes.
#[derive(Debug)]
struct ConnectionDriver {
    /// `None` once it has ended.
    connection: Option<Connection<TokioIo<ReadBudget<TcpStream>>, Full<Bytes>>>,
    /// While a batch is to write the request: the task that waits for the response.
    deferred: Option<Waker>,
}

/// The head of the response to a request, or the request itself where hyper did not take it.
pub(super) type ResponseHead = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

impl HttpConnection {
    /// Speaks HTTP over `socket`.
    ///
    /// # Errors
    /// hyper's; nothing was sent.
    pub(super) async fn new(socket: TcpStream) -> hyper::Result<Box<Self>> {
        let turns = ReadBudget::new(socket, OVERHEAD_MAX);
        let overhead = turns.overhead();
        let (sender, connection) = http1::handshake(TokioIo::new(turns)).await?;
        Ok(Box::new(Self {
            sender,
            driver: Arc::new(Mutex::new(ConnectionDriver {
                connection: Some(connection),
                deferred: None,
            })),
            overhead,
        }))
    }

    /// Sends `request` and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        request: Box<Request<Full<Bytes>>>,
        tasks: &Tasks,
    ) -> ResponseHead {
        self.overhead.reset();
        let mut response = pin!(self.sender.try_send_request(*request));
        if tasks.should_batch() {
            lock(&self.driver).deferred = Some(Waker::noop().clone());
            tasks.defer_flush(Arc::clone(&self.driver) as _);
        }
        poll_fn(|cx| {
            lock(&self.driver).poll_unless_deferred(cx);
            response.as_mut().poll(cx)
        })
        .await
    }

    /// Lets the connection read and write what it can.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        lock(&self.driver).poll_unless_deferred(cx);
    }

    /// Whether it can take another request. Most can as soon as the response is there; others must
    /// learn first that the rest of it is not wanted.
    pub(super) fn is_reusable(&mut self) -> bool {
        if !self.sender.is_ready() {
            // The next user polls it again, with a waker of its own.
            self.drive(&mut Context::from_waker(Waker::noop()));
        }
        lock(&self.driver).connection.is_some() && self.sender.is_ready()
    }
}

impl ConnectionDriver {
    fn poll_unless_deferred(&mut self, cx: &mut Context<'_>) {
        match &mut self.deferred {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.poll(cx),
        }
    }

    /// Reads and writes what it can; what it reads goes to the futures and bodies that wait for it.
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(cx).is_ready()
        {
            // Dropping it fails what still waits for a part of a response.
            self.connection = None;
        }
    }
}

impl FlushLater for Mutex<ConnectionDriver> {
    fn flush_now(&self) {
        let mut driver = lock(self);
        if let Some(waker) = driver.deferred.take() {
            driver.poll(&mut Context::from_waker(&waker));
        }
    }
}
