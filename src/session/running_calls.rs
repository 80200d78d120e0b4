//! The calls that run in one legacy session, by the ids its client gave them.
//!
//! Knows which of them the client cancelled itself: to such it expects no answer. Clients that pool a
//! session give one id to several: where each answer has a response of its own, all of them run.

use std::sync::{Arc, Mutex};

use foldhash::HashMap;

use super::{cancellation::Cancel, state::Session};
use crate::{
    lock::lock,
    mcp::{Id, Raw, RpcError, error},
};

/// Calls a session may have running.
pub const CALLS_MAX: usize = 1024;

/// Why a call was not begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CallRejected {
    /// Its id is in use.
    #[error("a request with this id is still running in this session")]
    Duplicate,
    /// Too many are running.
    #[error("{CALLS_MAX} requests are still running in this session")]
    Busy,
    /// Nothing begins any more.
    #[error("the session has ended")]
    Ended,
}

impl CallRejected {
    /// What the client is told.
    pub fn to_error(self) -> RpcError {
        let error = RpcError::new(error::INVALID_REQUEST, self.to_string());
        match self {
            Self::Busy => error.retry_soon(),
            Self::Duplicate | Self::Ended => error,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<CallsInner>);

/// Whether several calls of one id may run at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IdSharing {
    /// The transport tells their answers apart: each comes in the response to its own request.
    Allowed,
    /// Their answers come on one stream, where only the id tells them apart.
    Refused,
}

/// What tells running calls apart.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct CallKey {
    id: Id,
    /// 0 for the first that has the id.
    serial: u64,
}

#[derive(Debug, Default)]
struct CallsInner {
    running: HashMap<CallKey, InFlightCall>,
    /// The last that was given to a call whose id others had.
    last_serial: u64,
    /// Those whose answers are on their way out.
    answered_count: usize,
}

#[derive(Debug)]
struct InFlightCall {
    cancel: Cancel,
    /// Whether its client cancelled it.
    is_cancelled: bool,
}

impl CallsInner {
    fn are_answered(&self) -> bool {
        self.running.is_empty() && self.answered_count == 0
    }
}

impl Calls {
    /// Registers a running call of `session`, whose calls these are; see [`Session::begin`].
    pub(super) fn begin(
        &self,
        session: &Arc<Session>,
        id: &Id,
        sharing: IdSharing,
        cancel: Cancel,
    ) -> Result<RunningGuard, CallRejected> {
        let mut calls = lock(&self.0);
        if session.ended.is_cancelled() {
            return Err(CallRejected::Ended);
        }
        let mut key = CallKey {
            id: id.clone(),
            serial: 0,
        };
        if calls.running.contains_key(&key) {
            if sharing == IdSharing::Refused {
                return Err(CallRejected::Duplicate);
            }
            calls.last_serial += 1;
            key.serial = calls.last_serial;
        }
        if calls.running.len() >= CALLS_MAX {
            return Err(CallRejected::Busy);
        }
        let call = InFlightCall {
            cancel,
            is_cancelled: false,
        };
        calls.running.insert(key.clone(), call);
        Ok(RunningGuard {
            session: Arc::clone(session),
            key: Some(key),
        })
    }

    /// Cancels the running call `id`, as its client wants, which said `params`; whether there was one. Of
    /// several that have the id nobody knows which is meant: they go on.
    pub(super) fn cancel(&self, id: &Id, params: &Raw) -> bool {
        let mut calls = lock(&self.0);
        let mut named = calls.running.iter_mut().filter(|(key, _)| key.id == *id);
        let (Some((_, call)), None) = (named.next(), named.next()) else {
            return false;
        };
        call.is_cancelled = true;
        let cancel = call.cancel.clone();
        drop(calls);
        cancel.cancel_by_client(params);
        true
    }

    /// Cancels all; whether none is left whose answer is still to go out.
    pub(super) fn cancel_all(&self) -> bool {
        let calls = lock(&self.0);
        calls.running.values().for_each(|call| call.cancel.cancel());
        calls.are_answered()
    }

    /// How many are running.
    pub(super) fn in_flight(&self) -> usize {
        lock(&self.0).running.len()
    }
}

/// Marks a call as running until dropped, which is when its answer is out: a session that has ended
/// waits for that before it finishes its streams.
#[derive(Debug)]
pub struct RunningGuard {
    session: Arc<Session>,
    /// `None` once it is answered.
    key: Option<CallKey>,
}

impl RunningGuard {
    /// Lets the client use the id again, as it may once it has the answer. Called before that is
    /// written: it may be read, and the id used, before whoever wrote it goes on. Whether the client
    /// expects the answer: not to a call that it cancelled (spec 2025-11-25, cancellation).
    pub fn mark_answered(&mut self) -> bool {
        let Some(key) = self.key.take() else {
            return false;
        };
        let mut calls = lock(&self.session.calls.0);
        let call = calls.running.remove(&key);
        calls.answered_count += 1;
        call.is_some_and(|call| !call.is_cancelled)
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let mut calls = lock(&self.session.calls.0);
        match &self.key {
            Some(key) => drop(calls.running.remove(key)),
            None => calls.answered_count -= 1,
        }
        let was_last = calls.are_answered();
        drop(calls);
        if was_last && self.session.ended.is_cancelled() {
            self.session.streams.finish();
        }
    }
}
