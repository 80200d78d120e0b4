use std::{sync::mpsc, thread};

use super::*;
use crate::{
    config::{ConfigFormat, ConfigText, Environment},
    mcp::Raw,
    task::Tasks,
};

/// A board of two servers that have listed nothing.
pub(super) fn board(tasks: &Tasks) -> (Arc<CatalogStore>, Config, Backends) {
    let source = ConfigText {
        name: "test.toml".to_owned(),
        format: ConfigFormat::Toml,
        text: "[servers.one]\ncommand = 'a'\n[servers.two]\ncommand = 'b'\n[profiles.p]\n"
            .to_owned(),
        directory: ".".into(),
    };
    let config = config::parse([source], &Environment::default()).unwrap();
    let config = config.config;
    let (backends, _) = Backends::new(&config, None, None, tasks);
    let board = CatalogStore::new(
        &config,
        &backends,
        Arc::default(),
        tasks.stop_token().clone(),
    );
    (Arc::new(board), config, backends)
}

/// Lets `server` list a tool of the same name.
pub(super) fn list(board: &CatalogStore, server: &str) {
    let server = ServerName::parse(server).unwrap();
    let Some(mut next) = board.begin_draft() else {
        return;
    };
    let config = next.state.plan.servers.iter().find(|(it, _)| *it == server);
    let config = Arc::clone(&config.unwrap().1);
    let mut offer = empty_offer(&server, &config);
    let tool = format!(r#"{{"name":"{server}"}}"#);
    Arc::make_mut(&mut offer.listing).tools = vec![Raw::parse(tool).unwrap()];
    next.state.offers.plain.insert(server, offer);
    next.merge();
    next.publish();
}

fn tools(board: &CatalogStore) -> Vec<String> {
    let catalog = board.catalog((&OwnerSet::default(), &Scope::All));
    let tools = catalog.list(&Scope::All, Kind::Tools).entries().iter();
    tools.map(|entry| entry.original.to_string()).collect()
}

#[tokio::test]
async fn readers_wait_for_nobody_who_merges() {
    let (board, ..) = board(&Tasks::new());
    list(&board, "one");
    let merging = board.begin_draft().unwrap();
    let (done, read) = mpsc::channel();
    let reader = Arc::clone(&board);
    thread::spawn(move || {
        let (one, profile) = (
            ServerName::parse("one").unwrap(),
            ProfileName::parse("p").unwrap(),
        );
        assert!(reader.has_current_list(&one, Kind::Tools) && reader.stored_at(&one).is_none());
        assert!(reader.has_profile(&profile) && reader.listing(&one).is_some());
        let prospects = reader.unlisted_candidates(
            (&OwnerSet::default(), &Scope::All),
            Kind::Tools,
            "mcp_two_x",
        );
        let candidates = reader.possible_servers(&OwnerSet::default(), Kind::Tools, "mcp_one_x");
        let offers = reader.offers();
        let counts = [prospects.len(), candidates.len(), offers.len()];
        done.send((counts, tools(&reader))).unwrap();
    });
    let read = read.recv_timeout(Duration::from_secs(60));
    assert_eq!(read.unwrap(), ([1, 1, 1], vec!["one".to_owned()]));
    drop(merging);
}

#[tokio::test]
async fn what_is_shown_later_has_what_was_shown_before() {
    let (board, config, backends) = board(&Tasks::new());
    let mut changes = board.changes();
    let merging = board.begin_draft().unwrap();
    let others = ["one", "two"].map(|server| {
        let board = Arc::clone(&board);
        thread::spawn(move || list(&board, server))
    });
    merging.publish();
    for other in others {
        other.join().unwrap();
    }
    assert_eq!(tools(&board), ["one", "two"]);
    assert_eq!(*changes.borrow_and_update(), 2);
    board.replace(&config, &backends);
    assert_eq!(
        tools(&board),
        ["one", "two"],
        "a new plan keeps what is known"
    );
}

#[tokio::test]
async fn nothing_is_shown_after_a_stop() {
    let tasks = Tasks::new();
    let (board, ..) = board(&tasks);
    list(&board, "one");
    tasks.stop_token().cancel();
    list(&board, "two");
    assert_eq!(tools(&board), ["one"]);
}

/// Whoever waits for a look at schemas waits for what is listed at present, and not for ever.
#[tokio::test(start_paused = true)]
async fn a_look_at_schemas_is_waited_for() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (board, ..) = board(&Tasks::new());
    let one = ServerName::parse("one").unwrap();
    assert!(board.has_schemas(&one, PATIENCE).await, "nothing is listed");
    let start = Instant::now();
    for _ in 0..2 {
        list(&board, "one");
        assert!(!board.has_schemas(&one, PATIENCE).await);
        let listing = board.listing(&one);
        let look = async { board.note_schemas(&one, listing, Vec::new()) };
        let ((), is_looked_at) = tokio::join!(look, board.has_schemas(&one, PATIENCE));
        assert!(is_looked_at);
    }
    assert_eq!(start.elapsed(), PATIENCE * 2);
}
