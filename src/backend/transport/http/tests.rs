use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::{
    backend::{
        instance::handshake::control_exchange,
        link::{backlog::MESSAGES_MAX, pending::LinkSettings},
    },
    mcp::Raw,
    task::Tasks,
};

#[test]
fn a_denied_session_is_told_from_other_bad_requests() {
    let check = |body: &str, expect: bool| {
        assert_eq!(denies_session(body.as_bytes()), expect, "{body}");
    };
    check("Invalid session ID", true);
    check("Bad Request: No valid session ID provided\n", true);
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#;
    check(error, true);
    let error =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session has expired"}}"#;
    check(error, true);
    check("unknown Mcp-Session-Id", true);
    check("No transport found for sessionId", true);
    check("Session header is required", false);
    check("the session of your bank is invalid", false);
    check("Unsupported protocol version: invalid", false);
    check("", false);
}

/// Whatever is in its body, a redirect is no answer.
#[tokio::test]
async fn a_redirect_answers_nothing() {
    let (listener, link) = mute().await;
    let answer = "HTTP/1.1 302 Found\r\nlocation: /mcp/\r\n\
                  content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let redirect = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut start = [0; 4];
        stream.read_exact(&mut start).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream
    };
    let exchange = control_exchange(&Method::Ping, None);
    let (asked, _stream) = tokio::join!(link.request(&exchange), redirect);
    let failure = asked.expect_err("it is no answer").to_string();
    assert!(failure.contains("/mcp/`"), "{failure}");
}

#[test]
fn types_of_content_are_told_by_their_names() {
    let check = |status: u16, header: &str, expect: Content| {
        let response = Response::builder().status(status);
        let response = response.header(CONTENT_TYPE, header).body(()).unwrap();
        assert_eq!(content_type(&response), expect, "{status} {header}");
    };
    check(200, "application/json", Content::Json);
    check(500, "Application/JSON; charset=utf-8", Content::Json);
    check(200, "text/event-stream", Content::Events);
    check(200, "Text/Event-Stream ;charset=UTF-8", Content::Events);
    check(400, "text/event-stream", Content::Other);
    check(200, "application/json-seq", Content::Other);
    check(200, "text/html", Content::Other);
    assert_eq!(content_type(&Response::new(())), Content::Other);
}

/// Its connections open, and nobody ever reads what is posted.
async fn mute() -> (TcpListener, Arc<Link>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let remote = Remote::example(&url.parse().unwrap());
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let link = open(&remote, requests, POST_TIMEOUT * 10, None).unwrap();
    (listener, link)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_cancelled_before_is_not_sent() {
    let (_listener, link) = mute().await;
    let exchange = control_exchange(&Method::Ping, None);
    exchange.cancel.cancel();
    let cancelled = link.request(&exchange).await;
    assert_eq!(cancelled, Err(BackendError::Cancelled { is_sent: false }));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_no_message_is_given_up() {
    let (_listener, link) = mute().await;
    let after = POST_TIMEOUT;
    let posted = link.notify("notifications/x", None).await;
    assert_eq!(posted, Err(BackendError::Timeout { after, key: None }));
}

#[tokio::test(start_paused = true)]
async fn so_much_of_what_clients_say_waits_for_a_server_that_takes_nothing() {
    let (_listener, link) = mute().await;
    for _ in 0..MESSAGES_MAX {
        assert!(link.forward_notification("notifications/x", None));
    }
    assert!(
        !link.forward_notification("notifications/x", None),
        "there is no room"
    );
    tokio::time::sleep(2 * POST_TIMEOUT).await;
    assert!(link.requests.backlog.is_empty(), "it is given up");
    let large = Raw::from_value(&serde_json::json!({ "text": "x".repeat(3 << 20) }));
    assert!(link.forward_notification("notifications/x", Some(&large)));
    assert!(!link.forward_notification("notifications/x", Some(&large)));
    assert!(
        link.forward_notification("notifications/x", None),
        "a small one finds room"
    );
}
