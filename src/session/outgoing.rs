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
    pub overflow: Overflow,
}

/// What becomes of a message whose reader is too slow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Overflow {
    /// It may be missed.
    Droppable,
    /// It must not be lost, and is not there twice.
    Deduplicated,
    /// It must not be lost.
    Required,
}

impl Encoded {
    /// That a list has changed is not said again; of the rest whoever reads too slowly misses some.
    pub fn notification(method: &str, params: Option<&Raw>) -> Self {
        let overflow = match method {
            notice::TOOLS_CHANGED | notice::RESOURCES_CHANGED | notice::PROMPTS_CHANGED => {
                Overflow::Deduplicated
            }
            _ => Overflow::Droppable,
        };
        let bytes = envelope::encode_notification(method, params);
        Self { bytes, overflow }
    }

    /// Adds it to `stream`.
    pub fn push_to(self, stream: &ReplayStream) {
        match self.overflow {
            Overflow::Droppable => stream.push_droppable(self.bytes),
            Overflow::Deduplicated => stream.push_deduplicated(self.bytes),
            Overflow::Required => stream.push_required(StreamItem::Message(self.bytes)),
        }
    }
}
