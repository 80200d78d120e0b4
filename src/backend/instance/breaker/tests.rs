//! Which callers a breaker holds back, and what its changes are called.

use std::sync::{Arc, OnceLock};

use super::*;
use crate::{
    auth::Agent,
    mcp::{Raw, Revision},
    session::ClientInfo,
};

const OPEN_FOR: Duration = Duration::from_secs(10);

fn breaker(failures: u32) -> Breaker {
    Breaker::new(config::BreakerConfig {
        failures,
        open_for: OPEN_FOR,
    })
}

fn client(agent: &str) -> Client {
    let agent = Agent {
        id: AgentId::from_name(agent),
        name: agent.to_owned(),
        ..Agent::anonymous()
    };
    Client {
        agent: Arc::new(agent),
        client_info: Arc::new(ClientInfo {
            revision: Revision::LEGACY,
            info: None,
            display_name: OnceLock::new(),
            capabilities: Raw::from_static("{}"),
            profile: Arc::default(),
        }),
        session: None,
        gateway: None,
    }
}

/// Whose failures those of `client` are, on a connection of its own or on one that others use as well.
fn principal(client: &Client, shares_connection: bool) -> BreakerCaller<'_> {
    BreakerCaller {
        sharing: Sharing::Agent(client.agent.id),
        client,
        shares_connection,
    }
}

/// Calls of agents with connections of their own, one after another, each with the sign of its end as
/// in `machine`; `b` is that the server is back. What is refused is in the answer as `!`.
fn run(breaker: &Breaker, events: &str) -> String {
    run_on(breaker, events, false)
}

/// The same on connections that agents share, or have to themselves.
fn run_on(breaker: &Breaker, events: &str, shares_connection: bool) -> String {
    let mut seen = Vec::new();
    for event in events.split(' ') {
        if event == "b" {
            breaker.note_reconnected(&Sharing::Shared);
            seen.push(event.to_owned());
            continue;
        }
        let (agent, sign) = event.split_at(1);
        let client = client(agent);
        let sign = match sign {
            "a" => CallHealth::Unreachable,
            "g" => CallHealth::Disconnected,
            "i" => CallHealth::Error,
            "w" => CallHealth::Success,
            _ => CallHealth::Neutral,
        };
        let passage = breaker.acquire(Some(principal(&client, shares_connection)), Instant::now());
        let passes = passage.map(|it| it.finish(sign).for_each(drop)).is_ok();
        seen.push(if passes {
            event.to_owned()
        } else {
            format!("{agent}!")
        });
    }
    seen.join(" ")
}

#[tokio::test(start_paused = true)]
async fn failures_of_one_caller_are_its_own() {
    let check = |events: &str, expect: &str, state: &str, of_callers: &[&str]| {
        let breaker = breaker(2);
        assert_eq!(run(&breaker, events), expect);
        assert_eq!(breaker.report().state, state, "{events}");
        let open = breaker.caller_reports();
        let open: Vec<_> = open.iter().filter_map(|it| it.agent.as_deref()).collect();
        assert_eq!(open, of_callers, "{events}");
    };
    check("1i 1i 1w 2w", "1i 1i 1! 2w", "closed", &["1"]);
    check("1i 1g 1w 2w", "1i 1g 1! 2w", "closed", &["1"]);
    check("1i 1w 1i 1w", "1i 1w 1i 1w", "closed", &[]);
    check(
        "1i 1i 2i 2i 2w 3w",
        "1i 1i 2i 2i 2! 3w",
        "closed",
        &["1", "2"],
    );
    // Of several in a row the first counts for nobody else.
    check("1i 2i 3i 4w", "1i 2i 3i 4!", "open", &[]);
    check("1i 2i 4w 3i 4w", "1i 2i 4w 3i 4w", "closed", &[]);
    // What nobody can be connected to concerns everybody.
    check("1a 2a 3w", "1a 2a 3!", "open", &[]);
    check("1a 2a b 3w 4w", "1a 2a b 3w 4w", "closed", &[]);
    // That it is reached was in question, and nothing else.
    check("1a 2a b 3i 4w", "1a 2a b 3i 4w", "closed", &[]);
    check("1a 2a b 3g 4w", "1a 2a b 3g 4w", "closed", &[]);
    check("1a 2a b 3a 4w", "1a 2a b 3a 4!", "open", &[]);
}

/// On a connection that several agents share, one of them decides for the others no more than elsewhere;
/// that it is gone concerns all.
#[tokio::test(start_paused = true)]
async fn one_caller_opens_no_shared_connection_for_others() {
    let check = |events: &str, expect: &str, state: &str, of_callers: &[&str]| {
        let breaker = breaker(2);
        assert_eq!(run_on(&breaker, events, true), expect);
        assert_eq!(breaker.report().state, state, "{events}");
        let open = breaker.caller_reports();
        let open: Vec<_> = open.iter().filter_map(|it| it.agent.as_deref()).collect();
        assert_eq!(open, of_callers, "{events}");
    };
    check("1i 1i 1i 2w", "1i 1i 1! 2w", "closed", &["1"]);
    check("1i 1i 2i 1w 2w", "1i 1i 2i 1! 2w", "closed", &["1"]);
    check("1i 2i 3i 4w", "1i 2i 3i 4!", "open", &[]);
    check("1g 1g 2w", "1g 1g 2!", "open", &[]);
    check("1g 2g b 3w 4w", "1g 2g b 3w 4w", "closed", &[]);
}

/// Who failed before a breaker opened for all neither keeps it open nor takes the turn of others to find
/// out; that it is answered counts.
#[tokio::test(start_paused = true)]
async fn who_failed_keeps_it_open_for_nobody() {
    let breaker = breaker(2);
    let run = |events: &str| run_on(&breaker, events, true);
    assert_eq!(run("1i 1i 2i 3i 4w"), "1i 1i 2i 3i 4!");
    tokio::time::advance(OPEN_FOR).await;
    let mallory = client("1");
    let slow = breaker.acquire(Some(principal(&mallory, true)), Instant::now());
    let slow = slow.unwrap();
    assert_eq!(breaker.report().state, "half_open");
    assert_eq!(run("1w 2i 4w 5w"), "1! 2i 4w 5w", "others find out");
    assert_eq!(breaker.report().state, "closed");
    slow.finish(CallHealth::Error).for_each(drop);
    assert_eq!(run("1w 4w"), "1! 4w");
    assert_eq!(run("6i 7i 8i 5w"), "6i 7i 8i 5!");
    tokio::time::advance(OPEN_FOR).await;
    assert_eq!(run("1w 5w"), "1w 5w");
}

/// That the connection of the caller on trial is gone says nothing to others.
#[tokio::test(start_paused = true)]
async fn a_trial_on_a_connection_that_is_gone_decides_nothing() {
    let breaker = breaker(2);
    assert_eq!(run(&breaker, "1i 2i 3i 4w"), "1i 2i 3i 4!");
    tokio::time::advance(OPEN_FOR).await;
    assert_eq!(run(&breaker, "4g"), "4g");
    assert_eq!(breaker.report().state, "half_open");
    assert_eq!(run(&breaker, "4g 5w 6w"), "4g 5w 6w");
    assert_eq!(breaker.report().state, "closed");
    let own = breaker.caller_reports();
    let own: Vec<_> = own.iter().filter_map(|it| it.agent.as_deref()).collect();
    assert_eq!(own, ["4"], "it counts for that caller");
    // What it is connected for and fails says that the server is not well.
    assert_eq!(run(&breaker, "1i 2i 3i"), "1i 2i 3i");
    tokio::time::advance(OPEN_FOR).await;
    assert_eq!(run(&breaker, "5i 6w"), "5i 6!");
}

#[tokio::test(start_paused = true)]
async fn whoever_closes_it_says_so_once() {
    let breaker = breaker(1);
    let closed = || vec![BreakerChange::of_server(BreakerTransition::Closed)];
    let open = || {
        breaker
            .acquire(None, Instant::now())
            .unwrap()
            .finish(CallHealth::Error)
    };
    let nobody = HashSet::new();
    assert_eq!(open().count(), 1);
    assert_eq!(
        breaker.note_client_request(&nobody),
        [],
        "nothing is on trial"
    );
    tokio::time::advance(OPEN_FOR).await;
    let trial = breaker.acquire(None, Instant::now()).unwrap();
    assert_eq!(breaker.note_client_request(&nobody), closed());
    assert_eq!(breaker.note_client_request(&nobody), []);
    assert_eq!(trial.finish(CallHealth::Success).count(), 0);
    assert_eq!(open().count(), 1);
    let never = config::BreakerConfig {
        failures: 0,
        open_for: OPEN_FOR,
    };
    assert_eq!(breaker.set_config(never), closed());
    assert_eq!(breaker.set_config(never), []);
}

#[tokio::test(start_paused = true)]
async fn one_caller_tries_for_itself() {
    let breaker = breaker(1);
    assert_eq!(run(&breaker, "1i 1w 2w"), "1i 1! 2w");
    tokio::time::advance(OPEN_FOR).await;
    let client = client("1");
    let own = Some(principal(&client, false));
    let trial = breaker.acquire(own, Instant::now()).unwrap();
    assert_eq!(run(&breaker, "1w 2w"), "1! 2w", "one tries");
    // It asks a person, and may take long.
    let changed = breaker.note_client_request(&HashSet::from([Sharing::Agent(client.agent.id)]));
    let names: Vec<_> = changed.iter().map(|it| it.agent.as_deref()).collect();
    assert_eq!(names, [Some("1")]);
    assert_eq!(run(&breaker, "1w 2w"), "1w 2w");
    drop(trial);
    // Whom the server's own holds back has not tried.
    assert_eq!(run(&breaker, "1i"), "1i");
    tokio::time::advance(OPEN_FOR).await;
    assert_eq!(run(&breaker, "2a 1w b 1w"), "2a 1! b 1w");
}

/// Of more callers than are remembered, those who are held back at present stay so, and one more is not
/// held back; nobody else is.
#[tokio::test(start_paused = true)]
async fn there_are_as_many_callers_as_are_remembered() {
    let breaker = breaker(1);
    let fail = |agent: &str| {
        let client = client(agent);
        let passage = breaker.acquire(Some(principal(&client, false)), Instant::now());
        let passes = passage.map(|passage| passage.finish(CallHealth::Error).for_each(drop));
        // Nobody else is in the row.
        let other = breaker.acquire(None, Instant::now()).unwrap();
        other.finish(CallHealth::Success).for_each(drop);
        passes.is_ok()
    };
    for agent in 0..CALLERS_MAX {
        assert!(fail(&agent.to_string()));
    }
    assert_eq!(breaker.caller_reports().len(), CALLERS_MAX);
    assert!(fail("x") && fail("x"), "there is no room for it");
    assert!(!fail("0") && !fail("4095"));
    tokio::time::advance(OPEN_FOR).await;
    // Of those whose time is over some may still try, and may be forgotten for another.
    assert!(fail("x"));
    assert!(!fail("x"));
    assert_eq!(breaker.caller_reports().len(), 1);
}

/// Whoever is answered leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn who_is_answered_is_forgotten() {
    let breaker = breaker(2);
    run(&breaker, "1i 2i 3w 1w");
    assert_eq!(breaker.lock().callers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_lets_the_next_one_try() {
    let breaker = breaker(1);
    assert!(!breaker.is_open());
    breaker
        .acquire(None, Instant::now())
        .unwrap()
        .finish(CallHealth::Error)
        .for_each(drop);
    assert!(breaker.is_open());
    let retry_after = OPEN_FOR;
    let refused = breaker.acquire(None, Instant::now()).map(drop);
    assert_eq!(refused, Err(BackendError::BreakerOpen { retry_after }));
    tokio::time::advance(OPEN_FOR).await;
    assert!(!breaker.is_open());
    let given_up = breaker.acquire(None, Instant::now()).unwrap();
    assert!(breaker.acquire(None, Instant::now()).is_err(), "one tries");
    drop(given_up);
    breaker
        .acquire(None, Instant::now())
        .unwrap()
        .finish(CallHealth::Success)
        .for_each(drop);
    assert_eq!(breaker.report().state, "closed");
}

#[test]
fn waits_are_rounded_up() {
    assert_eq!(crate::mcp::error::millis(Duration::from_micros(1)), 1);
    assert_eq!(crate::mcp::error::millis(Duration::from_millis(5)), 5);
}
