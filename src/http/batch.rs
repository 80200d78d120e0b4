//! Batches of 2025-03-26 as every edge takes them: whole or not at all, then message by message.

use bytes::Bytes;

use crate::{
    mcp::{Message, Method, Request, RpcError, envelope, error},
    session::{Session, modern},
};

/// Messages in one batch.
const BATCH_MAX: usize = 64;

/// What the batch `bytes` of the client of `session` holds: each message, or in its place what the
/// client is answered.
///
/// # Errors
/// When there are no batches in the session, and when this is none, or too long.
pub(crate) fn split(
    bytes: &Bytes,
    session: &Session,
) -> Result<Vec<Result<Message, Bytes>>, RpcError> {
    let opening = session.client_info();
    if !opening.is_some_and(|opening| opening.revision.has_batches()) {
        let message = "batches are only supported in 2025-03-26 sessions";
        return Err(RpcError::new(error::INVALID_REQUEST, message));
    }
    let parts = envelope::split_batch(bytes).map_err(|malformed| malformed.to_error())?;
    if parts.len() > BATCH_MAX {
        let message = format!("a batch may have at most {BATCH_MAX} messages");
        return Err(RpcError::new(error::INVALID_REQUEST, message));
    }
    Ok(parts.iter().map(parse_element).collect())
}

fn parse_element(part: &Bytes) -> Result<Message, Bytes> {
    let (id, error) = match Message::parse(part) {
        Ok(Message::Request(request)) => match forbidden_in_batch(&request) {
            None => return Ok(Message::Request(request)),
            Some(why) => (Some(request.id), RpcError::new(error::INVALID_REQUEST, why)),
        },
        Ok(message) => return Ok(message),
        Err(malformed) => (malformed.id().cloned(), malformed.to_error()),
    };
    Err(envelope::encode_response(id.as_ref(), &Err(error.to_raw())))
}

/// Why `request` is possible in no batch.
fn forbidden_in_batch(request: &Request) -> Option<&'static str> {
    if request.method == Method::Initialize {
        // Spec 2025-03-26, lifecycle: nothing is possible beside it.
        return Some("`initialize` cannot be batched");
    }
    modern::is_modern(request).then_some("2026-07-28 requests cannot be batched")
}
