//! The calls that run in one legacy session, by the ids its client gave them.
//!
//! Knows which of them the client cancelled itself: to such it expects no answer.

use std::{
    collections::hash_map::Entry,
    sync::{Arc, Mutex},
};

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

#[derive(Debug, Default)]
struct CallsInner {
    running: HashMap<Id, InFlightCall>,
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
        cancel: Cancel,
    ) -> Result<RunningGuard, CallRejected> {
        let mut calls = lock(&self.0);
        if session.ended.is_cancelled() {
            return Err(CallRejected::Ended);
        }
        let is_full = calls.running.len() >= CALLS_MAX;
        let Entry::Vacant(place) = calls.running.entry(id.clone()) else {
            return Err(CallRejected::Duplicate);
        };
        if is_full {
            return Err(CallRejected::Busy);
        }
        place.insert(InFlightCall {
            cancel,
            is_cancelled: false,
        });
        Ok(RunningGuard {
            session: Arc::clone(session),
            id: Some(id.clone()),
        })
    }

    /// Cancels the running call `id`, as its client wants, which said `params`; whether there was one.
    pub(super) fn cancel(&self, id: &Id, params: &Raw) -> bool {
        let mut calls = lock(&self.0);
        let Some(call) = calls.running.get_mut(id) else {
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
    id: Option<Id>,
}

impl RunningGuard {
    /// Lets the client use the id again, as it may once it has the answer. Called before that is
    /// written: it may be read, and the id used, before whoever wrote it goes on. Whether the client
    /// expects the answer: not to a call that it cancelled (spec 2025-11-25, cancellation).
    pub fn mark_answered(&mut self) -> bool {
        let Some(id) = self.id.take() else {
            return false;
        };
        let mut calls = lock(&self.session.calls.0);
        let call = calls.running.remove(&id);
        calls.answered_count += 1;
        call.is_some_and(|call| !call.is_cancelled)
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let mut calls = lock(&self.session.calls.0);
        match &self.id {
            Some(id) => drop(calls.running.remove(id)),
            None => calls.answered_count -= 1,
        }
        let was_last = calls.are_answered();
        drop(calls);
        if was_last && self.session.ended.is_cancelled() {
            self.session.streams.finish();
        }
    }
}
