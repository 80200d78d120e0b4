//! Servers behind a WebSocket: subprotocol `mcp`, one text frame a message or batch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Sink, SinkExt, StreamExt, stream::SplitStream};
use http::HeaderValue;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::consume_budget,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config,
    tungstenite::{
        self, Message as Frame, Utf8Bytes, client::IntoClientRequest, protocol::WebSocketConfig,
    },
};

use super::{
    Failure, client,
    link::{Link, each_message},
    mux::Mux,
    pipe,
};
use crate::config::Remote;

/// Messages that may wait for the server to take them.
const QUEUE_MAX: usize = 256;
/// Time between pings; a peer from which nothing came in between is dead.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long the peer may take to read a message.
const SEND_PATIENCE: Duration = Duration::from_secs(60);
/// How long the peer may take to read that the socket is closed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

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
        .map_err(|_| Failure::Startup {
            after: connect,
            odd: Vec::new(),
        })?
        .map_err(|error| failed(&error))?;
    let (send, queue) = mpsc::channel(QUEUE_MAX);
    let tasks = mux.tasks.clone();
    let link = Arc::new(Link::pipe(mux, send));
    tasks.spawn("websocket", run(socket, queue, Arc::clone(&link)));
    Ok(link)
}

async fn run(socket: Socket, queue: mpsc::Receiver<Bytes>, link: Arc<Link>) {
    let mux = Arc::clone(&link.mux);
    let (mut sink, stream) = socket.split();
    // Whether anything was heard since the last ping.
    let heard = AtomicBool::new(true);
    let mut reading = std::pin::pin!(read(stream, &link, &heard));
    let reason = tokio::select! {
        reason = &mut reading => reason,
        reason = write(&mut sink, queue, &heard) => {
            // What is being read came before the end.
            tokio::select! {
                biased;
                () = mux.read_out() => {}
                _ = reading => {}
            }
            reason
        }
        () = mux.closed.cancelled() => "it is being stopped".to_owned(),
    };
    mux.close(reason);
    drop(timeout(CLOSE_PATIENCE, sink.close()).await);
}

/// Reads until the link is over; says why.
async fn read(mut stream: SplitStream<Socket>, link: &Arc<Link>, heard: &AtomicBool) -> String {
    loop {
        let frame = match stream.next().await {
            Some(Ok(frame)) => frame,
            Some(Err(tungstenite::Error::Capacity(_))) => {
                return pipe::oversized(link.mux.settings.response_bytes_max);
            }
            Some(Err(error)) => return error.to_string(),
            None => return "it closed the socket".to_owned(),
        };
        heard.store(true, Ordering::Relaxed);
        if let Some(reason) = take(frame, link).await {
            return reason;
        }
        // Frames that are there already cost nothing of the budget of a task.
        consume_budget().await;
    }
}

/// Writes until the link is over; says why.
async fn write<S>(sink: &mut S, mut queue: mpsc::Receiver<Bytes>, heard: &AtomicBool) -> String
where
    S: Sink<Frame, Error = tungstenite::Error> + Unpin,
{
    let mut ping = interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let frame = tokio::select! {
            message = queue.recv() => match message.map(Utf8Bytes::try_from) {
                Some(Ok(text)) => Frame::Text(text),
                Some(Err(_)) => continue,
                None => return "it is being stopped".to_owned(),
            },
            _ = ping.tick() => {
                if !heard.swap(false, Ordering::Relaxed) {
                    return format!("it gave no sign of life for {PING_EVERY:?}");
                }
                Frame::Ping(Bytes::new())
            }
        };
        match timeout(SEND_PATIENCE, sink.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("it took no message for {SEND_PATIENCE:?}"),
        }
    }
}

/// Takes one frame; a reason when it ends the link.
async fn take(frame: Frame, link: &Arc<Link>) -> Option<String> {
    let bytes = match frame {
        Frame::Text(text) => Bytes::from(text),
        Frame::Binary(bytes) => bytes,
        Frame::Close(_) => return Some("it closed the socket".to_owned()),
        Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_) => return None,
    };
    each_message(&link.mux, &bytes, |_, parsed| match parsed {
        Ok(message) => link.incoming(message, None),
        Err(malformed) => {
            link.mux.failed_by(&malformed);
            tracing::debug!(server = %link.mux.settings.server, %malformed, "odd frame");
        }
    })
    .await;
    None
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::sink::unfold;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_given_up() {
        let (_send, queue) = mpsc::channel(1);
        let mut stuck = Box::pin(unfold((), |(), _: Frame| pending()));
        let reason = write(&mut stuck, queue, &AtomicBool::new(true)).await;
        assert_eq!(reason, "it took no message for 60s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_of_which_nothing_is_heard_is_given_up() {
        let (_send, queue) = mpsc::channel(1);
        let mut open = Box::pin(unfold((), |(), _: Frame| ready(Ok(()))));
        let heard = AtomicBool::new(true);
        let start = Instant::now();
        let lively = async {
            tokio::time::sleep(PING_EVERY / 2).await;
            heard.store(true, Ordering::Relaxed);
            pending().await
        };
        let reason = tokio::select! {
            reason = write(&mut open, queue, &heard) => reason,
            never = lively => never,
        };
        assert_eq!(reason, "it gave no sign of life for 30s");
        assert_eq!(start.elapsed(), PING_EVERY * 2, "it was heard once");
    }
}
