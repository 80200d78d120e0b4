//! One connection to a server, driven by whoever waits for something of it.
//!
//! Called by `pool`, which keeps the idle ones. What is asked goes out at once, or with the next of the
//! [`Departures`], which drives it then, together with what others ask.

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
use tokio::{
    net::TcpStream,
    task::{unconstrained, yield_now},
};

use super::turns::Turns;
use crate::{lock::lock, task::Tasks};

/// One connection; boxed wherever it is passed on, for it is large. Between requests what happens to
/// it, and the next request, may wake who used it last, for nothing.
#[derive(Debug)]
pub(super) struct Line {
    sender: SendRequest<Full<Bytes>>,
    wire: Arc<Mutex<Wire>>,
}

#[derive(Debug)]
struct Wire {
    /// `None` once it has ended.
    connection: Option<Connection<TokioIo<Turns<TcpStream>>, Full<Bytes>>>,
    /// Who waits for the departure of what is to be sent.
    boarded: Option<Waker>,
}

/// What came of a request: the head of its answer.
pub(super) type Asked = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

impl Line {
    /// Speaks HTTP over `stream`.
    ///
    /// # Errors
    /// hyper's; nothing was sent.
    pub(super) async fn new(stream: TcpStream) -> hyper::Result<Box<Self>> {
        let (sender, connection) = http1::handshake(TokioIo::new(Turns::new(stream))).await?;
        let wire = Wire {
            connection: Some(connection),
            boarded: None,
        };
        Ok(Box::new(Self {
            sender,
            wire: Arc::new(Mutex::new(wire)),
        }))
    }

    /// Sends `request`, with the next of `departures` where there are any, and waits for the head of
    /// its answer.
    pub(super) async fn ask(
        &mut self,
        request: Box<Request<Full<Bytes>>>,
        mut departures: Option<&Departures>,
    ) -> Asked {
        let mut answer = pin!(unconstrained(self.sender.try_send_request(*request)));
        let wire = &self.wire;
        poll_fn(|cx| {
            if let Some(departures) = departures.take() {
                // The departure may bring the answer, or the end of the connection.
                let sent = answer.as_mut().poll(cx);
                if sent.is_pending() {
                    departures.board(wire, cx.waker());
                }
                return sent;
            }
            // From here on nobody needs to be woken for the answer: who drives the connection looks for
            // it afterwards, whatever the budget. Looked for before, it was brought by the departure;
            // and that wakes nobody here any more.
            let mut nobody = Context::from_waker(Waker::noop());
            let departed = answer.as_mut().poll(&mut nobody);
            if departed.is_ready() {
                return departed;
            }
            lock(wire).drive(cx);
            answer.as_mut().poll(&mut nobody)
        })
        .await
    }

    /// Lets the connection do what it can.
    pub(super) fn drive(&self, cx: &mut Context<'_>) {
        lock(&self.wire).drive(cx);
    }

    /// Whether it can take another request. Most can as soon as an answer is there; others learn
    /// first that nobody wants the rest of it.
    pub(super) fn is_free(&self) -> bool {
        let mut wire = lock(&self.wire);
        if !self.sender.is_ready() {
            wire.drive(&mut Context::from_waker(Waker::noop()));
        }
        wire.connection.is_some() && self.sender.is_ready()
    }
}

impl Wire {
    /// Lets the connection do what it can; what it brings is found where it is waited for. Beside a
    /// departure it takes of the budget of its task too, since a server may have more to say for ever.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(cx).is_ready()
        {
            // Dropping it tells whoever waits for something of it.
            self.connection = None;
        }
        self.boarded = None;
    }
}

/// Requests that leave together: those that come while what is there is read.
///
/// What reads, what decides and what sends are much code, in the system too, and would go through the
/// caches of the processor in turns for each; and the server is woken once for many.
#[derive(Debug)]
pub(super) struct Departures {
    boarded: Arc<Mutex<Vec<Boarded>>>,
    tasks: Tasks,
}

impl Departures {
    /// None yet; they are tasks of `tasks`.
    pub(super) fn new(tasks: &Tasks) -> Self {
        Self {
            boarded: Arc::default(),
            tasks: tasks.clone(),
        }
    }

    /// How many waited for a departure that is called off.
    #[cfg(test)]
    pub(super) fn call_off(&self) -> usize {
        std::mem::take(&mut *lock(&self.boarded)).len()
    }

    /// Has the connection driven in the name of `waker` as soon as others had their turn.
    fn board(&self, wire: &Arc<Mutex<Wire>>, waker: &Waker) {
        lock(wire).boarded = Some(waker.clone());
        let mut boarded = lock(&self.boarded);
        boarded.push(Boarded(Arc::clone(wire)));
        if boarded.len() == 1 {
            drop(boarded);
            let boarded = Arc::clone(&self.boarded);
            self.tasks
                .spawn("departure", unconstrained(depart(boarded)));
        }
    }
}

/// Connections that are driven in one turn: others have theirs after that.
const ABOARD_MAX: usize = 32;

/// Lets others have their turn, and then sends what is there.
async fn depart(boarded: Arc<Mutex<Vec<Boarded>>>) {
    yield_now().await;
    let leaving = std::mem::take(&mut *lock(&boarded));
    for (index, boarded) in leaving.into_iter().enumerate() {
        if index > 0 && index % ABOARD_MAX == 0 {
            yield_now().await;
        }
        let mut wire = lock(&boarded.0);
        // Who was woken meanwhile has driven it. It stays aboard until it is driven, and is woken where
        // that breaks off.
        if let Some(waker) = wire.boarded.clone() {
            wire.drive(&mut Context::from_waker(&waker));
        }
    }
}

/// A connection that waits for its departure. Where that breaks off, who waits for it is woken, and drives
/// it.
#[derive(Debug)]
struct Boarded(Arc<Mutex<Wire>>);

impl Drop for Boarded {
    fn drop(&mut self) {
        let waker = lock(&self.0).boarded.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
