use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    backlog,
    pending::{CANCELLATIONS_MAX, LinkSettings},
    *,
};
use crate::backend::instance::handshake;
use crate::{
    auth::Agent,
    mcp::Revision,
    names::Scope,
    session::{replay::StreamItem, state::SessionKind},
    task::Tasks,
};

#[tokio::test(start_paused = true)]
async fn a_notification_waits_for_a_pipe_no_longer_than_it_may() {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let (writer, mut queue) = mpsc::channel(1);
    let link = Link::pipe(requests, writer);
    assert_eq!(link.notify("notifications/a", None).await, Ok(()));
    let after = QUEUE_TIMEOUT;
    let full = link.notify("notifications/b", None).await;
    assert_eq!(
        full,
        Err(BackendError::Timeout { after, key: None }),
        "nobody reads"
    );
    queue.recv().await.unwrap();
    assert_eq!(link.notify("notifications/c", None).await, Ok(()));
    drop(queue);
    let gone = link.notify("notifications/d", None).await;
    assert!(matches!(gone, Err(BackendError::Lost { .. })), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_no_room_was_not_sent() {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let (writer, queue) = mpsc::channel(1);
    let link = Link::pipe(requests, writer);
    link.notify("notifications/a", None).await.unwrap();
    let mut exchange = handshake::control_exchange(&Method::Ping, None);
    let after = Duration::from_secs(1);
    exchange.limits.idle = after;
    let unread = link.request(&exchange).await;
    assert_eq!(
        unread,
        Err(BackendError::WriteTimeout {
            after,
            key: Some("timeout")
        })
    );
    tokio::join!(
        async {
            let cancelled = link.request(&exchange).await.unwrap_err();
            assert!(!cancelled.may_have_arrived(), "{cancelled:?}");
        },
        async { exchange.cancel.cancel() }
    );
    drop(queue);
    let exchange = handshake::control_exchange(&Method::Ping, None);
    let lost = link.request(&exchange).await;
    assert!(matches!(lost, Err(BackendError::Lost { .. })), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_waits_for_is_never_sent() {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let (writer, mut queue) = mpsc::channel(8);
    let link = Link::pipe(requests, writer);
    let mut late = handshake::control_exchange(&Method::Ping, None);
    let after = Duration::from_secs(1);
    late.limits.idle = after;
    assert_eq!(
        link.request(&late).await,
        Err(BackendError::WriteTimeout {
            after,
            key: Some("timeout")
        })
    );
    let cancelled = handshake::control_exchange(&Method::Ping, None);
    let given_up = async {
        tokio::task::yield_now().await;
        cancelled.cancel.cancel();
    };
    let (answer, ()) = tokio::join!(link.request(&cancelled), given_up);
    let unsent = Err(BackendError::Cancelled { is_sent: false });
    assert_eq!(answer, unsent);
    // One that was cancelled while it waited for a connection.
    assert_eq!(link.request(&cancelled).await, unsent);
    let exchange = handshake::control_exchange(&Method::Ping, None);
    drop(tokio::time::timeout(after, link.request(&exchange)).await);
    link.notify("notifications/last", None).await.unwrap();
    let mut sent = Vec::new();
    while let Ok(message) = queue.try_recv() {
        sent.extend(message.into_bytes_if_wanted());
    }
    let last = envelope::encode_notification("notifications/last", None);
    assert_eq!(sent, [last], "neither a request nor its cancellation");
}

/// Requests of which a server reads so many, and then nothing; they are given up. What was read, and
/// what waits behind as many notifications.
async fn given_up(count: usize) -> (Arc<Link>, Vec<Id>, mpsc::Receiver<QueuedMessage>) {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let (writer, mut queue) = mpsc::channel(count);
    let link = Arc::new(Link::pipe(requests, writer));
    let exchange = handshake::control_exchange(&Method::Ping, None);
    let requests = futures_util::future::join_all((0..count).map(|_| link.request(&exchange)));
    let (answers, asked) = tokio::join!(requests, async {
        let mut asked = Vec::new();
        for _ in 0..count {
            let Message::Request(request) = parsed(queue.recv().await.unwrap()) else {
                panic!("it is asked");
            };
            asked.push(request.id);
        }
        for _ in 0..count {
            assert!(link.forward_notification("notifications/x", None));
        }
        exchange.cancel.cancel();
        asked
    });
    let cancelled = Err(BackendError::Cancelled { is_sent: true });
    assert!(answers.iter().all(|answer| *answer == cancelled));
    (link, asked, queue)
}

fn parsed(message: QueuedMessage) -> Message {
    Message::parse(
        &message
            .into_bytes_if_wanted()
            .expect("somebody waits for it"),
    )
    .unwrap()
}

/// The ids of the requests that are cancelled in `queue`.
async fn cancelled(queue: &mut mpsc::Receiver<QueuedMessage>) -> Vec<Id> {
    let mut cancelled = Vec::new();
    let pause = Duration::from_secs(1);
    while let Ok(Some(message)) = tokio::time::timeout(pause, queue.recv()).await {
        let Message::Notification(told) = parsed(message) else {
            panic!("it is told");
        };
        if told.method == notice::CANCELLED {
            let id = told.params.and_then(|params| params.get("requestId"));
            cancelled.extend(id.and_then(Id::from_raw));
        }
    }
    cancelled
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_again_hears_what_is_cancelled() {
    let (_link, asked, mut queue) = given_up(3).await;
    tokio::time::sleep(CLIENT_NOTIFICATION_TIMEOUT / 2).await;
    let mut cancelled = cancelled(&mut queue).await;
    cancelled.sort_by_key(Id::as_number);
    assert_eq!(asked, cancelled);
    assert_eq!(asked.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn cancellations_wait_only_so_long_and_so_many() {
    let (link, asked, mut queue) = given_up(CANCELLATIONS_MAX + 1).await;
    assert_eq!(asked.len(), CANCELLATIONS_MAX + 1);
    assert_eq!(cancelled(&mut queue).await.len(), CANCELLATIONS_MAX);
    assert_eq!(
        link.requests.cancellations.available_permits(),
        CANCELLATIONS_MAX
    );
    let (link, _, mut queue) = given_up(1).await;
    tokio::time::sleep(CLIENT_NOTIFICATION_TIMEOUT + QUEUE_TIMEOUT).await;
    assert_eq!(
        link.requests.cancellations.available_permits(),
        CANCELLATIONS_MAX
    );
    assert_eq!(cancelled(&mut queue).await, []);
}

/// What of `count` notifications of about so many `bytes`, and of a request behind each, reaches a
/// server that begins to read `after` a while.
async fn late_notifications(count: usize, bytes: usize, after: Duration) -> Vec<String> {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let (writer, mut queue) = mpsc::channel(1);
    let link = Link::pipe(requests, writer);
    let text = Raw::from_value(&serde_json::json!({ "text": "x".repeat(bytes) }));
    let exchange = handshake::control_exchange(&Method::Ping, None);
    let mut requests = FuturesUnordered::new();
    for at in 0..=count {
        link.forward_notification(&format!("notifications/{at}"), Some(&text));
        requests.push(link.request(&exchange));
        assert_eq!(requests.next().now_or_never(), None, "nobody reads");
    }
    tokio::time::sleep(after).await;
    let mut read = Vec::new();
    let pause = Duration::from_secs(1);
    loop {
        let message = tokio::select! {
            read = tokio::time::timeout(pause, queue.recv()) => read,
            answer = requests.next() => panic!("{answer:?}"),
        };
        let Ok(Some(message)) = message else { break };
        read.push(match parsed(message) {
            Message::Request(request) => request.id.raw().as_str().to_owned(),
            Message::Notification(told) => told.method.into_owned(),
            Message::Response(response) => panic!("{response:?}"),
        });
    }
    assert!(link.requests.backlog.is_empty());
    read
}

/// Who ends a link lets what has come already be read, but not for ever.
#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_being_read() {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    assert!(
        requests.wait_large_reads().now_or_never().is_some(),
        "nothing is"
    );
    let reading = requests.begin_large_read();
    let mut end = Box::pin(requests.wait_large_reads());
    assert!((&mut end).now_or_never().is_none());
    drop(reading);
    assert!(end.now_or_never().is_some());
    let _reading = requests.begin_large_read();
    requests.wait_large_reads().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_again_is_told_in_order() {
    let read = late_notifications(2, 10, CLIENT_NOTIFICATION_TIMEOUT / 2).await;
    let numbered = |at| [format!("notifications/{at}"), format!("{}", at + 1)];
    assert_eq!(read, (0..=2).flat_map(numbered).collect::<Vec<_>>());
}

/// The first notification is in the pipe, and waits for nothing.
#[tokio::test(start_paused = true)]
async fn notifications_wait_only_so_long_and_so_many() {
    let delivered = async |count, bytes, after| {
        let read = late_notifications(count, bytes, after).await;
        let is_notification = |text: &&String| text.starts_with("notifications/");
        read.iter().filter(is_notification).count() - 1
    };
    let moment = Duration::from_secs(1);
    let most = backlog::MESSAGES_MAX;
    assert_eq!(delivered(most, 10, moment).await, most);
    assert_eq!(delivered(most + 1, 10, moment).await, most);
    let half = backlog::BYTES_MAX / 2;
    assert_eq!(delivered(2, half - 100, moment).await, 2);
    assert_eq!(delivered(2, half + 1, moment).await, 1);
    assert_eq!(delivered(1, 2 * backlog::BYTES_MAX, moment).await, 1);
    assert_eq!(
        delivered(1, 10, CLIENT_NOTIFICATION_TIMEOUT + QUEUE_TIMEOUT).await,
        0
    );
}

/// What becomes of a listen stream whose server, of this revision, sends a `cancelled` for it.
async fn ended_by_its_server(revision: Revision) -> Result<Outcome, BackendError> {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    requests.revision.set(revision).unwrap();
    let (writer, mut queue) = mpsc::channel(1);
    let link = Arc::new(Link::pipe(requests, writer));
    let exchange = handshake::control_exchange(&Method::Listen, None);
    let answer = link.request(&exchange);
    let server = async {
        let Message::Request(asked) = parsed(queue.recv().await.unwrap()) else {
            panic!("no request");
        };
        let id = asked.id.raw();
        for about in ["77", id.as_str()] {
            let params = Raw::parse(format!(r#"{{"requestId":{about}}}"#)).unwrap();
            let cancelled = envelope::encode_notification(notice::CANCELLED, Some(&params));
            link.handle_message(Message::parse(&cancelled).unwrap(), None);
        }
        link.requests.close("it is over");
    };
    tokio::join!(answer, server).0
}

#[tokio::test]
async fn a_listen_stream_ends_where_its_server_says_so() {
    let ended = ended_by_its_server(Revision::MODERN).await.unwrap();
    let error = ended.unwrap_err();
    assert!(error.as_str().contains("the server ended the request"));
    // Before, servers withdraw their own questions so, whatever ids we use.
    let went_on = ended_by_its_server(Revision::V2025November).await;
    assert!(
        matches!(went_on, Err(BackendError::Lost { .. })),
        "{went_on:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_asks_on_and_takes_no_answers_is_given_up() {
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let (writer, _queue) = mpsc::channel(1);
    let link = Arc::new(Link::pipe(requests, writer));
    let ask = |count| {
        for id in 0..count {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            link.handle_message(Message::parse(&text.into()).unwrap(), None);
        }
        link.requests.closed.is_cancelled()
    };
    assert!(!ask(ANSWERS_MAX));
    // The pipe takes one, which makes room for another.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!ask(1));
    assert!(ask(1));
    let BackendError::Lost { reason } = link.requests.lost_error() else {
        panic!("it is lost");
    };
    assert!(reason.contains("does not read responses"), "{reason}");
}

/// A question that its client does not answer in time is withdrawn there, and refused to the server.
#[tokio::test(start_paused = true)]
async fn who_does_not_answer_in_time_is_asked_no_more() {
    let agent = Arc::new(Agent::anonymous());
    let session = Arc::new(Session::new(SessionKind::Stdio, agent, Scope::All));
    let stream = session.open_standalone_stream();
    let settings = LinkSettings::example();
    let patience = settings.ask_timeout;
    let requests = PendingRequests::new(settings, Some(Arc::clone(&session)), Tasks::new());
    let (writer, mut queue) = mpsc::channel(1);
    let link = Arc::new(Link::pipe(requests, writer));
    let asks = r#"{"jsonrpc":"2.0","id":"q","method":"acme/ask"}"#;
    let asks = Message::parse(&Bytes::from_static(asks.as_bytes())).unwrap();
    link.handle_message(asks, None);
    let mut place = stream.attach_at_end();
    let mut next = async || match stream.next(&mut place).await {
        Some(StreamItem::Message(bytes)) => Message::parse(&bytes).unwrap(),
        other => panic!("{other:?}"),
    };
    let Message::Request(question) = next().await else {
        panic!("it is asked");
    };
    let start = tokio::time::Instant::now();
    let Message::Notification(told) = next().await else {
        panic!("it is told");
    };
    assert!(start.elapsed() >= patience);
    assert_eq!(told.method, notice::CANCELLED);
    let id = told.params.and_then(|params| params.get("requestId"));
    assert_eq!(id.as_ref(), Some(question.id.raw()));
    let refusal = parsed(queue.recv().await.unwrap());
    let Message::Response(refusal) = refusal else {
        panic!("{refusal:?}");
    };
    assert!(refusal.outcome.is_err());
    assert!(!session.answer(&question.id, Ok(Raw::from_static("{}"))));
}
