//! How fresh lists are, and how often a server is asked to tell of changes.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use super::*;
use crate::{
    backend::{
        instance::handshake::ServerInitialization,
        link::{
            Link,
            outbound::QueuedMessage,
            pending::{LinkSettings, PendingRequests},
            session_filter::UpstreamContext,
        },
        transport::stdio::process_launcher::Launcher,
    },
    config::Server,
    mcp::{Id, Message, Revision, envelope, method::notice},
    names::ServerName,
    task::Tasks,
};

/// A connection to a server of 2026-07-28, and what is sent on it.
fn control(capabilities: &'static str) -> (CatalogConnection, mpsc::Receiver<QueuedMessage>) {
    let (writer, sent) = mpsc::channel(16);
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let connection = Connection {
        link: Arc::new(Link::pipe(requests, writer)),
        hello: ServerInitialization {
            revision: Revision::MODERN,
            capabilities: Raw::from_static(capabilities),
            info: None,
            instructions: None,
        },
        pid: None,
        follows_lists: AtomicBool::new(false),
    };
    (CatalogConnection(Arc::new(connection)), sent)
}

#[tokio::test]
async fn lists_are_fresh_for_as_long_as_their_server_says() {
    let check = |capabilities, ages: [Option<u64>; 4], expect: Option<u64>| {
        let mut pages = ByKind::default();
        for (kind, ttl_ms) in Kind::ALL.into_iter().zip(ages) {
            pages[kind] = Some(FirstPage {
                ttl_ms,
                ..FirstPage::default()
            });
        }
        let found = control(capabilities).0.freshness(&pages);
        let Some(seconds) = expect else {
            assert_eq!(found, None, "{capabilities} {ages:?}");
            return;
        };
        let shortest = Duration::from_secs(seconds);
        let times = shortest..=shortest.mul_f64(1.0 + JITTER);
        assert!(times.contains(&found.unwrap()), "{found:?} {ages:?}");
    };
    let minute = Some(60_000);
    check("{}", [None, Some(0), None, None], None);
    check("{}", [minute; 4], Some(60));
    check("{}", [Some(90_000), Some(0), minute, None], Some(60));
    check("{}", [Some(1), minute, minute, minute], Some(30));
    check("{}", [Some(u64::MAX); 4], Some(24 * 3600));
    let tells = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":false}}"#;
    check(tells, [minute, None, None, None], None);
    check(tells, [minute; 4], Some(60));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_to_tell_is_asked_less_and_less() {
    let tasks = Tasks::new();
    let outlet = UpstreamContext::example();
    let name = ServerName::parse("x").unwrap();
    let launcher = Launcher::new(None);
    let backend = Backend::new(&name, &Server::example(), &launcher, &outlet, &tasks);
    let (control, mut sent) = control(r#"{"tools":{"listChanged":true}}"#);
    let mut changes = backend.list_changes();
    backend.follow_list_changes(&control);
    let link = Arc::clone(&control.0.link);
    let say = |text: Bytes| link.handle_message(Message::parse(&text).unwrap(), None);
    let mut asked = async || {
        let listen = sent.recv().await.unwrap().into_bytes_if_wanted().unwrap();
        let Message::Request(listen) = Message::parse(&listen).unwrap() else {
            panic!("not a request");
        };
        listen.id
    };
    let refuse = |id: &Id| {
        let refusal = Raw::from_static(r#"{"code":-32601,"message":"no"}"#);
        say(envelope::encode_response(Some(id), &Err(refusal)));
    };
    let check = |start: Instant, seconds: u64| {
        let longest = Duration::from_secs(seconds);
        let times = longest.mul_f64(1.0 - JITTER)..=longest + Duration::from_millis(1);
        assert!(times.contains(&start.elapsed()), "{:?}", start.elapsed());
    };
    let mut id = asked().await;
    for seconds in [5, 10, 20, 40, 80, 160, 300, 300] {
        let start = Instant::now();
        refuse(&id);
        id = asked().await;
        check(start, seconds);
        changes.changed_then_quiet(Duration::ZERO).await;
    }
    say(envelope::encode_notification(
        notice::SUBSCRIPTIONS_ACKNOWLEDGED,
        None,
    ));
    for seconds in [5, 10] {
        let start = Instant::now();
        refuse(&id);
        id = asked().await;
        check(start, seconds);
    }
}

/// However many changes there are, they are heard once it was quiet; of a server that never falls quiet,
/// after as many as are waited out.
#[tokio::test(start_paused = true)]
async fn changes_are_gathered_until_it_is_quiet() {
    const QUIET: Duration = Duration::from_millis(200);
    let check = async |gap_ms: u64, count: u64, expect_ms: &[u64]| {
        let (updates, changes) = watch::channel(0_u64);
        let mut changes = ListChanges(changes);
        let start = Instant::now();
        let tell = async {
            for _ in 0..count {
                updates.send_modify(|count| *count += 1);
                sleep(Duration::from_millis(gap_ms)).await;
            }
            std::future::pending::<()>().await;
        };
        let mut heard = Vec::new();
        let hear = async {
            loop {
                changes.changed_then_quiet(QUIET).await;
                heard.push(start.elapsed().as_millis());
            }
        };
        let over = timeout(Duration::from_secs(60), async { tokio::join!(tell, hear) });
        assert!(over.await.is_err());
        let expect: Vec<u128> = expect_ms.iter().map(|ms| u128::from(*ms)).collect();
        assert_eq!(heard, expect, "{count} changes, one each {gap_ms} ms");
    };
    check(0, 1, &[200]).await;
    check(150, 5, &[4 * 150 + 200]).await;
    check(250, 3, &[200, 450, 700]).await;
    // The last of those waited out is the eleventh; the next is heard for itself.
    check(150, 12, &[10 * 150, 11 * 150 + 200]).await;
}
