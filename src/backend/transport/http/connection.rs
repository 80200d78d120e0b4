//! One connection to a server, driven by whoever waits for something of it.
//!
//! Called by `pool`, which keeps the idle ones.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
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
use tokio::task::unconstrained;

use super::read_budget::{OVERHEAD_MAX, Overhead, ReadBudget};
use crate::coalescing_stream::CoalescingStream;

/// One connection; boxed wherever it is passed on, for it is large. Between requests what happens to
/// it may wake who used it last, for nothing.
#[derive(Debug)]
pub(super) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    state: ConnectionState,
    pub(super) overhead: Overhead,
}

/// `None` once it has ended.
#[derive(Debug)]
struct ConnectionState(Option<Connection<TokioIo<ReadBudget<CoalescingStream>>, Full<Bytes>>>);

/// What came of a request: the head of its answer.
pub(super) type ResponseHead = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

impl HttpConnection {
    /// Speaks HTTP over `socket`.
    ///
    /// # Errors
    /// hyper's; nothing was sent.
    pub(super) async fn new(socket: CoalescingStream) -> hyper::Result<Box<Self>> {
        let turns = ReadBudget::new(socket, OVERHEAD_MAX);
        let overhead = turns.overhead();
        let (sender, connection) = http1::handshake(TokioIo::new(turns)).await?;
        Ok(Box::new(Self {
            sender,
            state: ConnectionState(Some(connection)),
            overhead,
        }))
    }

    /// Sends `request` and waits for the head of its answer.
    pub(super) async fn send(&mut self, request: Box<Request<Full<Bytes>>>) -> ResponseHead {
        let Self {
            sender,
            state: wire,
            overhead,
        } = self;
        overhead.reset();
        let mut answer = pin!(unconstrained(sender.try_send_request(*request)));
        // Only the connection can bring the answer, and it is polled first: nobody else needs to
        // be woken for it, and it is there when the connection says so, whatever the budget.
        poll_fn(|cx| {
            wire.drive(cx);
            answer
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    /// Lets the connection do what it can.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        self.state.drive(cx);
    }

    /// Whether it can take another request. Most can as soon as an answer is there; others learn
    /// first that nobody wants the rest of it.
    pub(super) fn is_reusable(&mut self) -> bool {
        if !self.sender.is_ready() {
            self.drive(&mut Context::from_waker(Waker::noop()));
        }
        self.state.0.is_some() && self.sender.is_ready()
    }
}

impl ConnectionState {
    /// Lets the connection do what it can; what it brings is found where it is waited for. It takes
    /// of the budget of its task too, since a server may have more to say for ever.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && Pin::new(connection).poll(cx).is_ready()
        {
            // Dropping it tells whoever waits for something of it.
            self.0 = None;
        }
    }
}
