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
use http::{HeaderValue, header::AUTHORIZATION};
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::consume_budget,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config,
    tungstenite::{
        self, Message as Frame, Utf8Bytes, client::IntoClientRequest, error::ProtocolError,
        protocol::WebSocketConfig,
    },
};

use super::{
    http::{http_client, redirect::RequestUrl, remote_tls},
    pipe,
};
use crate::{
    backend::{
        BackendError,
        link::{Link, outbound::QueuedMessage, pending::PendingRequests},
    },
    config::Remote,
};

/// Time between pings; a peer from which nothing came in between is dead, unless it may be at work: then
/// it has as long as the most patient call under way.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long the peer may take to read a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the peer may take to read that the socket is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type WebSocketConnection = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a socket to `remote` and starts its task.
pub(crate) async fn open(
    remote: &Remote,
    requests: Arc<PendingRequests>,
    connect: Duration,
    authorization: Option<HeaderValue>,
) -> Result<Arc<Link>, BackendError> {
    let peer = &requests.settings.peer;
    let url = RequestUrl::new(&remote.url, !remote.is_from_variable)?;
    let failed = |error: &tungstenite::Error| {
        if let tungstenite::Error::Http(response) = error {
            if let Err(failure) = peer.note_response(response) {
                return failure;
            }
            if let Some(refused) =
                BackendError::from_auth_status(response.status(), response.headers())
            {
                return refused;
            }
            if response.status().is_redirection() {
                return url.unfollowed(response);
            }
        }
        let is_unreadable = matches!(
            error,
            tungstenite::Error::Protocol(ProtocolError::HttparseError(_))
        );
        let reason = if is_unreadable {
            format!("{error}; {}", http_client::NO_HTTP_REASON)
        } else {
            http_client::root_cause(error)
        };
        BackendError::Connect { reason }
    };
    let mut request = remote
        .url
        .clone()
        .into_client_request()
        .map_err(|error| failed(&error))?;
    let headers = request.headers_mut();
    headers.extend(http_client::request_headers(remote, &peer.own_id)?);
    headers.extend(authorization.map(|it| (AUTHORIZATION, it)));
    headers.insert("sec-websocket-protocol", HeaderValue::from_static("mcp"));
    let connector = Connector::Rustls(Arc::new(remote_tls::config(remote)?));
    let limit = requests.settings.response_bytes_max;
    let config = WebSocketConfig::default()
        .max_message_size(Some(limit))
        .max_frame_size(Some(limit));
    let opening = async {
        let stream = http_client::open_tcp(remote, connect).await?;
        let opening = client_async_tls_with_config(request, stream, Some(config), Some(connector));
        opening.await.map_err(|error| failed(&error))
    };
    let (socket, _) =
        timeout(connect, Box::pin(opening))
            .await
            .map_err(|_| BackendError::Startup {
                after: connect,
                key: "connect_timeout",
                odd: Vec::new(),
            })??;
    let (link, queue) = Link::new_queued(&requests);
    requests
        .tasks
        .spawn("websocket", run(socket, queue, Arc::clone(&link)));
    Ok(link)
}

async fn run(socket: WebSocketConnection, queue: mpsc::Receiver<QueuedMessage>, link: Arc<Link>) {
    let requests = Arc::clone(&link.requests);
    let (mut sink, stream) = socket.split();
    // Whether anything was heard since the last ping.
    let heard = AtomicBool::new(true);
    let mut reading = std::pin::pin!(read(stream, &link, &heard));
    let reason = tokio::select! {
        reason = &mut reading => reason,
        reason = write(&mut sink, queue, &heard, &requests) => {
            // What is being read came before the end.
            tokio::select! {
                biased;
                () = requests.wait_large_reads() => {}
                _ = reading => {}
            }
            reason
        }
        () = requests.closed.cancelled() => "stopping".to_owned(),
    };
    requests.close(reason);
    drop(timeout(CLOSE_TIMEOUT, sink.close()).await);
}

/// Reads until the link is over; says why.
async fn read(
    mut stream: SplitStream<WebSocketConnection>,
    link: &Arc<Link>,
    heard: &AtomicBool,
) -> String {
    loop {
        let frame = match stream.next().await {
            Some(Ok(frame)) => frame,
            Some(Err(tungstenite::Error::Capacity(_))) => {
                return pipe::oversized_reason(link.requests.settings.response_bytes_max);
            }
            Some(Err(error)) => return error.to_string(),
            None => return "the server closed the socket".to_owned(),
        };
        heard.store(true, Ordering::Relaxed);
        if let Some(reason) = handle_frame(frame, link).await {
            return reason;
        }
        // Frames that are there already cost nothing of the budget of a task.
        consume_budget().await;
    }
}

/// Writes until the link is over; says why.
async fn write<S>(
    sink: &mut S,
    mut queue: mpsc::Receiver<QueuedMessage>,
    heard: &AtomicBool,
    requests: &PendingRequests,
) -> String
where
    S: Sink<Frame, Error = tungstenite::Error> + Unpin,
{
    let mut ping = interval(PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard_at = Instant::now();
    loop {
        let frame = tokio::select! {
            message = queue.recv() => {
                let Some(message) = message else {
                    return "stopping".to_owned();
                };
                match message.into_bytes_if_wanted().map(Utf8Bytes::try_from) {
                    Some(Ok(text)) => Frame::Text(text),
                    Some(Err(_)) | None => continue,
                }
            }
            _ = ping.tick() => {
                let silence = heard_at.elapsed();
                if heard.swap(false, Ordering::Relaxed) {
                    heard_at = Instant::now();
                } else if is_dead_after(silence, requests) {
                    let seconds = silence.as_secs();
                    return format!("no data received for {seconds}s");
                }
                Frame::Ping(Bytes::new())
            }
        };
        match timeout(SEND_TIMEOUT, sink.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("sending timed out after {SEND_TIMEOUT:?}"),
        }
    }
}

/// Whether a peer that was silent for so long is dead. Servers that do one thing at a time answer no
/// ping during a call, nor while they wait for what they asked a client; but whatever they are at work
/// on, their callers have given it up by then.
fn is_dead_after(silence: Duration, requests: &PendingRequests) -> bool {
    let patience = requests.idle_timeout_max().unwrap_or_default();
    silence >= patience && !requests.waits_for_person()
}

/// Takes one frame; a reason when it ends the link.
async fn handle_frame(frame: Frame, link: &Arc<Link>) -> Option<String> {
    let bytes = match frame {
        Frame::Text(text) => Bytes::from(text),
        Frame::Binary(bytes) => bytes,
        Frame::Close(_) => return Some("the server closed the socket".to_owned()),
        Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_) => return None,
    };
    // It is there already, and bounded by `limits.response`.
    let bytes = link.requests.settings.byte_budget.count_received(bytes);
    link.receive(&bytes, "ignored an unexpected frame").await;
    None
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::sink::unfold;

    use super::*;
    use crate::{
        auth::Agent,
        backend::{
            instance::handshake::{UNBOUNDED, control_exchange},
            link::{Caller, Exchange, exchange_activity::Suspended, pending::LinkSettings},
        },
        mcp::{LogFilter, Method, Revision},
        names::InvocationId,
        session::{Client, events::event_queue},
        task::Tasks,
    };

    fn requests() -> Arc<PendingRequests> {
        PendingRequests::new(LinkSettings::example(), None, Tasks::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_given_up() {
        let (_send, queue) = mpsc::channel(1);
        let mut stuck = Box::pin(unfold((), |(), _: Frame| pending()));
        let reason = write(&mut stuck, queue, &AtomicBool::new(true), &requests()).await;
        assert_eq!(reason, "sending timed out after 60s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_of_which_nothing_is_heard_is_given_up() {
        let (_send, queue) = mpsc::channel(1);
        let mut open = Box::pin(unfold((), |(), _: Frame| ready(Ok(()))));
        let heard = AtomicBool::new(true);
        let (start, requests) = (Instant::now(), requests());
        let lively = async {
            tokio::time::sleep(PING_INTERVAL / 2).await;
            heard.store(true, Ordering::Relaxed);
            pending().await
        };
        let reason = tokio::select! {
            reason = write(&mut open, queue, &heard, &requests) => reason,
            never = lively => never,
        };
        assert_eq!(reason, "no data received for 30s");
        assert_eq!(start.elapsed(), PING_INTERVAL * 2, "it was heard once");
    }

    /// A server that does one thing at a time answers no ping meanwhile. A listen stream is nothing
    /// that it would be at work on.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_may_be_at_work_is_not_given_up() {
        for (method, is_waited_for) in [(Method::ToolsCall, true), (Method::Listen, false)] {
            let requests = requests();
            let pending = requests
                .register(&call(&method, UNBOUNDED.idle), None)
                .unwrap();
            let (_send, queue) = mpsc::channel(1);
            let mut open = Box::pin(unfold((), |(), _: Frame| ready(Ok(()))));
            let start = Instant::now();
            let heard = AtomicBool::new(true);
            let mut written = Box::pin(write(&mut open, queue, &heard, &requests));
            let gives_up = timeout(PING_INTERVAL * 10, &mut written).await.is_ok();
            assert_eq!(gives_up, !is_waited_for, "{method}");
            if is_waited_for {
                drop(pending);
                written.await;
                assert_eq!(start.elapsed(), PING_INTERVAL * 11, "the call is over");
            }
        }
    }

    /// Whatever such a server is at work on, its caller waits for no longer than this: it is not held
    /// for alive because others call meanwhile. People take their time.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_silent_for_longer_than_callers_wait_is_given_up() {
        let patience = PING_INTERVAL * 5 / 2;
        for asks_client in [false, true] {
            let requests = requests();
            let exchange = call(&Method::ToolsCall, patience);
            let pending = requests.register(&exchange, None).unwrap();
            let asking = asks_client.then(|| Suspended::new(&pending.activity));
            let (_send, queue) = mpsc::channel(1);
            let mut open = Box::pin(unfold((), |(), _: Frame| ready(Ok(()))));
            let start = Instant::now();
            let heard = AtomicBool::new(true);
            let mut written = Box::pin(write(&mut open, queue, &heard, &requests));
            let given_up = timeout(PING_INTERVAL * 10, &mut written).await;
            if asks_client {
                given_up.expect_err("a person is waited for");
                drop(asking);
                written.await;
            } else {
                assert_eq!(given_up.unwrap(), "no data received for 90s");
                assert_eq!(start.elapsed(), PING_INTERVAL * 3);
            }
        }
    }

    /// A call of a client that waits for so long.
    fn call(method: &Method, patience: Duration) -> Exchange<'_> {
        let mut exchange = control_exchange(method, None);
        exchange.limits.idle = patience;
        exchange.caller = Some(Caller {
            invocation: InvocationId(uuid::Uuid::now_v7()),
            client: Arc::new(Client::stateless(
                Agent::anonymous().into(),
                Revision::LEGACY,
            )),
            events: event_queue().0,
            logs: LogFilter::All,
            progress: None,
            uris: None,
            scanners: None,
        });
        exchange
    }
}
