//! A message for a client as it is written, and what becomes of it where the client reads slowly.

use bytes::Bytes;

use super::replay::{ReplayStream, StreamItem};
use crate::mcp::{Raw, envelope, method::notice};

/// A message ready to be written.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The JSON-RPC message.
    pub bytes: Bytes,
    /// What becomes of it where its reader is too slow.
    pub care: Overflow,
}

/// What becomes of a message whose reader is too slow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Overflow {
    /// It may be missed.
    Offer,
    /// It must not be lost, and is not there twice.
    Keep,
    /// It must not be lost.
    Push,
}

impl Encoded {
    /// That a list has changed is not said again; of the rest whoever reads too slowly misses some.
    pub fn notification(method: &str, params: Option<&Raw>) -> Self {
        let care = match method {
            notice::TOOLS_CHANGED | notice::RESOURCES_CHANGED | notice::PROMPTS_CHANGED => {
                Overflow::Keep
            }
            _ => Overflow::Offer,
        };
        let bytes = envelope::notification(method, params);
        Self { bytes, care }
    }

    /// Adds it to `stream`.
    pub fn put(self, stream: &ReplayStream) {
        match self.care {
            Overflow::Offer => stream.offer(self.bytes),
            Overflow::Keep => stream.keep(self.bytes),
            Overflow::Push => stream.push(StreamItem::Message(self.bytes)),
        }
    }
}
