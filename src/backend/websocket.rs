//! Servers behind a WebSocket: subprotocol `mcp`, one text frame a message.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::HeaderValue;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    time::{interval, timeout},
};
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config,
    tungstenite::{
        self, Message as Frame, Utf8Bytes, client::IntoClientRequest, protocol::WebSocketConfig,
    },
};

use super::{Failure, client, link::Link, mux::Mux, pipe};
use crate::{config::Remote, mcp::Message};

/// Messages that may wait for the server to take them.
const QUEUE_MAX: usize = 256;
/// Silence after which a ping is sent, so that a dead peer is noticed.
const PING_EVERY: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a socket to `remote` and starts its task.
pub(crate) async fn open(
    remote: &Remote,
    mux: Arc<Mux>,
    connect: Duration,
) -> Result<Arc<Link>, Failure> {
    let failed = |error: &tungstenite::Error| {
        if let tungstenite::Error::Http(response) = error
            && matches!(response.status().as_u16(), 401 | 403)
        {
            return Failure::Unauthorized {
                status: response.status(),
            };
        }
        Failure::Connect {
            reason: error.to_string(),
        }
    };
    let mut request = remote
        .url
        .clone()
        .into_client_request()
        .map_err(|error| failed(&error))?;
    request.headers_mut().extend(client::headers(remote)?);
    request
        .headers_mut()
        .insert("sec-websocket-protocol", HeaderValue::from_static("mcp"));
    let secure = remote.url.scheme_str() == Some("wss");
    let connector = Connector::Rustls(Arc::new(client::tls(secure)?));
    let limit = mux.settings.response_bytes_max;
    let config = WebSocketConfig::default()
        .max_message_size(Some(limit))
        .max_frame_size(Some(limit));
    let opening = connect_async_tls_with_config(request, Some(config), true, Some(connector));
    let (socket, _) = timeout(connect, opening)
        .await
        .map_err(|_| Failure::Startup { after: connect })?
        .map_err(|error| failed(&error))?;
    let (send, queue) = mpsc::channel(QUEUE_MAX);
    let tasks = mux.tasks.clone();
    let link = Arc::new(Link::pipe(mux, send));
    tasks.spawn("websocket", run(socket, queue, Arc::clone(&link)));
    Ok(link)
}

async fn run(mut socket: Socket, mut queue: mpsc::Receiver<Bytes>, link: Arc<Link>) {
    let mux = Arc::clone(&link.mux);
    let mut ping = interval(PING_EVERY);
    let reason = loop {
        let sent = tokio::select! {
            frame = socket.next() => match frame {
                Some(Ok(frame)) => match take(frame, &link) {
                    Some(reason) => break reason,
                    None => continue,
                },
                Some(Err(tungstenite::Error::Capacity(_))) => {
                    break pipe::oversized(mux.settings.response_bytes_max);
                }
                Some(Err(error)) => break error.to_string(),
                None => break "it closed the socket".to_owned(),
            },
            message = queue.recv() => match message.map(Utf8Bytes::try_from) {
                Some(Ok(text)) => socket.send(Frame::Text(text)).await,
                Some(Err(_)) => continue,
                None => break "it is being stopped".to_owned(),
            },
            _ = ping.tick() => socket.send(Frame::Ping(Bytes::new())).await,
            () = mux.closed.cancelled() => break "it is being stopped".to_owned(),
        };
        if let Err(error) = sent {
            break error.to_string();
        }
    };
    mux.close(reason);
    drop(socket.close(None).await);
}

/// Takes one frame; a reason when it ends the link.
fn take(frame: Frame, link: &Arc<Link>) -> Option<String> {
    let bytes = match frame {
        Frame::Text(text) => Bytes::from(text),
        Frame::Binary(bytes) => bytes,
        Frame::Close(_) => return Some("it closed the socket".to_owned()),
        Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_) => return None,
    };
    match Message::parse(&bytes) {
        Ok(message) => link.incoming(message, None),
        Err(malformed) => {
            tracing::debug!(server = %link.mux.settings.server, %malformed, "odd frame");
        }
    }
    None
}
