use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::mpsc;

use super::*;
use crate::{
    backend::{
        Backend, ServerState,
        call_health::CallHealth,
        instance::{InstancePhase, handshake::ServerInitialization},
        link::{
            Link,
            outbound::QueuedMessage,
            pending::{LinkSettings, PendingRequests},
            resource_updates::update_channel,
            session_filter::UpstreamContext,
        },
        transport::stdio::process_launcher::Launcher,
    },
    config::{Remote, Transport},
    mcp::{Id, Message, Raw, Revision},
    names::ServerName,
    task::Tasks,
};

const SECOND: Duration = Duration::from_secs(1);

/// Asked after 30 s, given 10 s, dead after 3 checks.
fn server() -> Server {
    Server::example()
}

fn written() -> Arc<LiveConfig> {
    LiveConfig::new(&server())
}

/// A connection, and what is sent on it.
fn connection() -> (Arc<Connection>, mpsc::Receiver<QueuedMessage>) {
    let (writer, sent) = mpsc::channel(16);
    let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
    let connection = Connection {
        link: Arc::new(Link::pipe(requests, writer)),
        hello: ServerInitialization {
            revision: Revision::LEGACY,
            capabilities: Raw::from_static("{}"),
            info: None,
            instructions: None,
        },
        pid: None,
        follows_lists: AtomicBool::new(false),
    };
    (Arc::new(connection), sent)
}

fn read(message: QueuedMessage) -> Message {
    Message::parse(
        &message
            .into_bytes_if_wanted()
            .expect("somebody waits for it"),
    )
    .unwrap()
}

/// Lets the server answer the request `id`.
fn answer(connection: &Connection, id: &Id) {
    let answer = crate::mcp::envelope::encode_response(Some(id), &Ok(Raw::from_static("{}")));
    let answer = Message::parse(&answer).unwrap();
    connection.link.handle_message(answer, None);
}

fn shared() -> SharedState {
    shared_by(&server())
}

fn shared_by(config: &Server) -> SharedState {
    let name = ServerName::parse("x").unwrap();
    SharedState::new(&name, config, &update_channel().0, &Tasks::new())
}

/// Calls hear of the end of their connection before whoever keeps it.
#[tokio::test]
async fn a_server_whose_connection_has_ended_is_disconnected() {
    let tasks = Tasks::new();
    let outlet = UpstreamContext::example();
    let launcher = Launcher::new(None);
    let name = ServerName::parse("x").unwrap();
    let backend = Backend::new(&name, &server(), &launcher, &outlet, &tasks);
    let (connection, _sent) = connection();
    backend
        .catalog
        .set_phase(InstancePhase::Ready(Arc::clone(&connection)));
    backend
        .connector
        .shared
        .state_machine()
        .apply(ServerEvent::Listed, None);
    assert_eq!(backend.state(), ServerState::Connected);
    connection.link.requests.close("it exited");
    assert_eq!(backend.state(), ServerState::Disconnected);
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_in_time() {
    let (connection, _sent) = connection();
    let shared = shared();
    shared.state_machine().apply(ServerEvent::Listed, None);
    let start = Instant::now();
    let reason = watch_until_dead(&connection, &written(), &shared, &shared.identity).await;
    assert_eq!(
        reason,
        "missed 3 health checks in a row: no response within 10s (its `health.timeout`)"
    );
    // Three times 30 s of silence and 10 s of waiting.
    assert_eq!(start.elapsed(), SECOND * 120);
    assert_eq!(shared.state_machine().state(), ServerState::Degraded);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_while_the_server_speaks() {
    let (connection, mut sent) = connection();
    let (speaker, speaks) = (Arc::clone(&connection), Arc::new(AtomicBool::new(true)));
    let flag = Arc::clone(&speaks);
    Tasks::new().spawn("speaker", async move {
        while flag.load(Ordering::Relaxed) {
            sleep(SECOND * 20).await;
            speaker.link.requests.note_heard();
        }
    });
    let (written, shared) = (written(), shared());
    let mut watch = std::pin::pin!(watch_until_dead(
        &connection,
        &written,
        &shared,
        &shared.identity
    ));
    assert!(timeout(SECOND * 600, &mut watch).await.is_err());
    assert!(sent.try_recv().is_err(), "nothing was asked");
    speaks.store(false, Ordering::Relaxed);
    let ping = tokio::select! {
        ping = timeout(SECOND * 60, sent.recv()) => ping.unwrap().unwrap().into_bytes_if_wanted().unwrap(),
        dead = watch => panic!("{dead}"),
    };
    let ping = String::from_utf8(ping.to_vec()).unwrap();
    assert!(ping.contains(r#""method":"ping""#), "{ping}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_between_begins_the_count_anew() {
    let (connection, mut sent) = connection();
    let answering = Arc::clone(&connection);
    // Every third check is answered.
    Tasks::new().spawn("server", async move {
        let mut count = 0;
        while let Some(request) = sent.recv().await {
            count += 1;
            let Message::Request(request) = read(request) else {
                continue;
            };
            if count % 3 == 0 {
                answer(&answering, &request.id);
            }
        }
    });
    let (written, shared) = (written(), shared());
    shared.state_machine().apply(ServerEvent::Listed, None);
    let watch = watch_until_dead(&connection, &written, &shared, &shared.identity);
    assert!(timeout(SECOND * 3600, watch).await.is_err());
    assert_eq!(
        shared.state_machine().state(),
        ServerState::Degraded,
        "a listing would end it"
    );
}

#[tokio::test(start_paused = true)]
async fn suspicion_hurries() {
    let (connection, _sent) = connection();
    connection.link.requests.note_suspicion();
    let (written, shared, start) = (written(), shared(), Instant::now());
    watch_until_dead(&connection, &written, &shared, &shared.identity).await;
    // The first check is at once.
    assert_eq!(start.elapsed(), SECOND * 90);
}

/// Behind a URL, what one connection reaches is there for all; each process of a program is another.
#[tokio::test(start_paused = true)]
async fn a_check_finds_the_server_there_for_all() {
    for (is_remote, expect) in [(true, "half_open"), (false, "open")] {
        let mut config = server();
        if is_remote {
            config.transport =
                Transport::Http(Remote::example(&"http://127.0.0.1/mcp".parse().unwrap()));
        }
        let shared = shared_by(&config);
        for _ in 0..config.breaker.failures {
            let permit = shared.breaker.acquire(None, Instant::now()).unwrap();
            permit.finish(CallHealth::Unreachable).for_each(drop);
        }
        assert_eq!(shared.breaker.report().state, "open");
        let (connection, mut sent) = connection();
        connection.link.requests.note_suspicion();
        let answering = async {
            while let Some(request) = sent.recv().await {
                if let Message::Request(request) = read(request) {
                    return answer(&connection, &request.id);
                }
            }
        };
        let written = LiveConfig::new(&config);
        let watch = watch_until_dead(&connection, &written, &shared, &shared.identity);
        let both = async { tokio::join!(watch, answering) };
        assert!(timeout(SECOND * 5, both).await.is_err());
        assert_eq!(shared.breaker.report().state, expect, "{is_remote}");
    }
}

/// A server that answers checks, but each call as if it were gone.
#[tokio::test(start_paused = true)]
async fn suspicions_hurry_one_check_a_second() {
    let (connection, mut sent) = connection();
    let (written, shared) = (written(), shared());
    let watch = watch_until_dead(&connection, &written, &shared, &shared.identity);
    let checks = async {
        let mut checks = 0;
        for _ in 0..1000 {
            connection.link.requests.note_suspicion();
            sleep(Duration::from_millis(10)).await;
            while let Ok(request) = sent.try_recv() {
                let Message::Request(request) = read(request) else {
                    panic!("it is asked");
                };
                answer(&connection, &request.id);
                checks += 1;
            }
        }
        checks
    };
    let checks = tokio::select! {
        checks = checks => checks,
        dead = watch => panic!("{dead}"),
    };
    assert!((9..=11).contains(&checks), "{checks} in ten seconds");
}

/// A server that has missed a check, and what `change` then makes of the config; how often it is to
/// be listed again an hour later, and for how long it was watched until it was dead.
async fn rewritten(
    answers: bool,
    change: impl FnOnce(&mut Server),
) -> (u64, Option<Duration>, ServerState) {
    let (connection, mut sent) = connection();
    let (written, shared, start) = (written(), shared(), Instant::now());
    shared.state_machine().apply(ServerEvent::Listed, None);
    let listings = *shared.changes.borrow();
    let mut watch = std::pin::pin!(watch_until_dead(
        &connection,
        &written,
        &shared,
        &shared.identity
    ));
    assert!(timeout(SECOND * 50, &mut watch).await.is_err());
    assert_eq!(
        shared.state_machine().state(),
        ServerState::Degraded,
        "one is missed"
    );
    while sent.try_recv().is_ok() {}
    if answers {
        let answering = Arc::clone(&connection);
        Tasks::new().spawn("server", async move {
            while let Some(request) = sent.recv().await {
                if let Message::Request(request) = read(request) {
                    answer(&answering, &request.id);
                }
            }
        });
    }
    let mut other = server();
    change(&mut other);
    written.update(&other, || {});
    let dead = timeout(SECOND * 3600, watch).await.is_ok();
    let listings = *shared.changes.borrow() - listings;
    (
        listings,
        dead.then(|| start.elapsed()),
        shared.state_machine().state(),
    )
}

/// What was missed before a reload is not forgotten by it.
#[tokio::test(start_paused = true)]
async fn other_settings_forget_no_miss() {
    let elsewhere = |config: &mut Server| config.grace = SECOND * 7;
    let rarely = |config: &mut Server| config.health.interval = SECOND * 60;
    let never = |config: &mut Server| config.health.probe = Probe::Off;
    let state = ServerState::Degraded;
    // Whoever answers is listed again, which ends it.
    assert_eq!(rewritten(true, elsewhere).await, (1, None, state));
    assert_eq!(rewritten(true, rarely).await, (1, None, state));
    assert_eq!(rewritten(true, never).await, (1, None, state));
    assert_eq!(rewritten(false, never).await, (1, None, state));
    // Whoever does not is dead as soon as before: checks go on where they were.
    let dead = Some(SECOND * 120);
    assert_eq!(rewritten(false, elsewhere).await, (0, dead, state));
    // Two more, from second 50 on, with 60 s before each and 10 s of waiting.
    let dead = Some(SECOND * 190);
    assert_eq!(rewritten(false, rarely).await, (0, dead, state));
}
