//! The messages of one connection, one per line.
//!
//! rmcp gives no answer to a request that it cannot read, and its caller would wait for one. Such a request is
//! handed on under a method of its own, so that it is answered like any other.

use std::{future::ready, io};

use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use rmcp::{
    RoleServer,
    model::{ClientRequest, CustomRequest, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{Framed, LinesCodec, LinesCodecError};

/// The method of a request that could not be read.
pub(super) const UNREADABLE: &str = "tollbridge/unreadable";

/// Incoming messages as a stream, outgoing ones as a sink. The peer is this process, which has bounded the
/// length of messages already.
pub(super) fn messages<S>(
    stream: S,
) -> impl Stream<Item = RxJsonRpcMessage<RoleServer>>
+ Sink<TxJsonRpcMessage<RoleServer>, Error = LinesCodecError>
+ Send
+ 'static
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    Framed::new(stream, LinesCodec::new())
        .with(|message: TxJsonRpcMessage<RoleServer>| {
            let line = serde_json::to_string(&message).map_err(io::Error::from);
            ready(line.map_err(LinesCodecError::from))
        })
        .filter_map(|line| ready(line.ok().and_then(|line| read(&line))))
}

/// The message in `line`, `None` for what is not one and gets no answer.
fn read(line: &str) -> Option<RxJsonRpcMessage<RoleServer>> {
    #[derive(Deserialize)]
    struct UnreadableRequest {
        id: RequestId,
        #[serde(rename = "method")]
        _method: String,
    }
    serde_json::from_str(line)
        .inspect_err(|error| tracing::debug!(%error, "the built-in server cannot read a message"))
        .or_else(|_| {
            let UnreadableRequest { id, .. } = serde_json::from_str(line)?;
            let request = CustomRequest::new(UNREADABLE, None);
            let request = ClientRequest::CustomRequest(request);
            Ok::<_, serde_json::Error>(RxJsonRpcMessage::<RoleServer>::request(request, id))
        })
        .ok()
}
