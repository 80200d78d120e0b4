//! What clients may take of the process: connections and memory.
//!
//! Neither is a matter of one request: a client that stays within every other limit can still open all
//! connections there may be, or leave so many bodies and answers lying about that the system ends the process.
//! `ConnectionLimit` says who may connect, `ByteBudget` how many bytes of messages may be held at
//! once, and `CallLimit` how many requests to servers over HTTP may be under way. They are asked where something
//! is about to be taken, and give it back when it is dropped.

mod byte_budget;
mod calls;
mod connections;
mod memory_limit;

use std::{num::NonZeroUsize, sync::Arc};

pub(crate) use byte_budget::{ByteBudget, ByteBudgetExceeded, Reservation};
pub(crate) use calls::CallLimit;
pub(crate) use connections::{ConnectionLimit, ConnectionPermit};

use crate::config::Limits;

/// Connections to the listener of `admin_listen`: a few monitors and people need no more.
const ADMIN_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// The limits that hold for the whole process.
#[derive(Debug)]
pub struct Limiter {
    pub(crate) connections: Arc<ConnectionLimit>,
    /// Those to the listener for state and probes.
    pub(crate) admin_connections: Arc<ConnectionLimit>,
    /// Requests to servers over HTTP.
    pub(crate) http_calls: CallLimit,
    pub(crate) bytes: ByteBudget,
}

impl Limiter {
    /// The limits of the config, with nothing taken.
    pub fn new(limits: &Limits) -> Arc<Self> {
        let limiter = Self {
            connections: Arc::new(ConnectionLimit::new()),
            admin_connections: Arc::new(ConnectionLimit::new()),
            http_calls: CallLimit::new(0),
            bytes: ByteBudget::new(0),
        };
        limiter.admin_connections.set_max(Some(ADMIN_MAX), None);
        limiter.update(limits);
        Arc::new(limiter)
    }

    /// Lets other limits hold from now on; who has more than they allow keeps it.
    pub fn update(&self, limits: &Limits) {
        self.connections
            .set_max(limits.connections, limits.connections_per_address);
        self.http_calls.set_max(self.connections.left_for_calls());
        self.bytes.set_max(
            limits
                .bytes_in_flight
                .unwrap_or_else(memory_limit::bytes_max),
        );
    }
}
