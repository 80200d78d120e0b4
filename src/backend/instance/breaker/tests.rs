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
        forwarded: None,
        missing_scopes: None,
    }
}

fn breaker_caller(client: &Client) -> BreakerCaller<'_> {
    BreakerCaller {
        sharing: Sharing::Agent(client.agent.id),
        client,
    }
}

/// Makes calls of agents one after the other. Each event is the name of an agent and how its call ends: `w`
/// well, `e` with an error, `u` unreachable, `n` neutral; or `b`, the server is back. In the answer, `!`
/// marks calls that the breaker refused.
fn run(breaker: &Breaker, events: &str) -> String {
    let mut seen = Vec::new();
    for event in events.split(' ') {
        if event == "b" {
            breaker.note_reconnected();
            seen.push(event.to_owned());
            continue;
        }
        let (agent, end) = event.split_at(1);
        let client = client(agent);
        let health = match end {
            "u" => CallHealth::Unreachable,
            "e" => CallHealth::Error,
            "w" => CallHealth::Success,
            _ => CallHealth::Neutral,
        };
        let permit = breaker.acquire(Some(breaker_caller(&client)), Instant::now());
        let passes = permit.map(|it| it.finish(health).for_each(drop)).is_ok();
        seen.push(if passes {
            event.to_owned()
        } else {
            format!("{agent}!")
        });
    }
    seen.join(" ")
}

#[tokio::test(start_paused = true)]
async fn failures_of_one_caller_open_its_own_breaker() {
    let check = |events: &str, expect: &str, state: &str, of_callers: &[&str]| {
        let breaker = breaker(2);
        assert_eq!(run(&breaker, events), expect);
        assert_eq!(breaker.report().state, state, "{events}");
        let open = breaker.caller_reports();
        let open: Vec<_> = open.iter().filter_map(|it| it.agent.as_deref()).collect();
        assert_eq!(open, of_callers, "{events}");
    };
    check("1e 1e 1w 2w", "1e 1e 1! 2w", "closed", &["1"]);
    check("1e 1w 1e 1w", "1e 1w 1e 1w", "closed", &[]);
    check(
        "1e 1e 2e 2e 2w 3w",
        "1e 1e 2e 2e 2! 3w",
        "closed",
        &["1", "2"],
    );
    // The first of several in a row counts only for itself.
    check("1e 2e 3e 4w", "1e 2e 3e 4!", "open", &[]);
    check("1e 2e 4w 3e 4w", "1e 2e 4w 3e 4w", "closed", &[]);
    // An unreachable server is unreachable for all.
    check("1u 2u 3w", "1u 2u 3!", "open", &[]);
    check("1u 2u b 3w 4w", "1u 2u b 3w 4w", "closed", &[]);
    // The question was whether it can be reached.
    check("1u 2u b 3e 4w", "1u 2u b 3e 4w", "closed", &[]);
    check("1u 2u b 3u 4w", "1u 2u b 3u 4!", "open", &[]);
}

/// A caller whose own calls fail does not test the server for the others.
#[tokio::test(start_paused = true)]
async fn a_failing_caller_does_not_keep_the_breaker_open() {
    let breaker = breaker(2);
    assert_eq!(run(&breaker, "1e 1e 2e 3e 4w"), "1e 1e 2e 3e 4!");
    tokio::time::advance(OPEN_FOR).await;
    let failing = client("1");
    let slow = breaker.acquire(Some(breaker_caller(&failing)), Instant::now());
    let slow = slow.unwrap();
    assert_eq!(run(&breaker, "1w 4w 5w"), "1! 4w 5w", "others test it");
    assert_eq!(breaker.report().state, "closed");
    slow.finish(CallHealth::Error).for_each(drop);
    assert_eq!(run(&breaker, "1w 4w"), "1! 4w");
    // Once it is answered it may.
    assert_eq!(run(&breaker, "6e 7e 8e 5w"), "6e 7e 8e 5!");
    tokio::time::advance(OPEN_FOR).await;
    assert_eq!(run(&breaker, "1w 1w 5w"), "1w 1w 5w");
    assert_eq!(breaker.report().state, "closed");
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
    assert_eq!(run(&breaker, "1e 1w 2w"), "1e 1! 2w");
    tokio::time::advance(OPEN_FOR).await;
    let client = client("1");
    let own = Some(breaker_caller(&client));
    let trial = breaker.acquire(own, Instant::now()).unwrap();
    assert_eq!(run(&breaker, "1w 2w"), "1! 2w", "one tries");
    // It asks a person, and may take long.
    let changed = breaker.note_client_request(&HashSet::from([Sharing::Agent(client.agent.id)]));
    let names: Vec<_> = changed.iter().map(|it| it.agent.as_deref()).collect();
    assert_eq!(names, [Some("1")]);
    assert_eq!(run(&breaker, "1w 2w"), "1w 2w");
    drop(trial);
    // Whom the server's own holds back has not tried.
    assert_eq!(run(&breaker, "1e"), "1e");
    tokio::time::advance(OPEN_FOR).await;
    assert_eq!(run(&breaker, "2u 1w b 1w"), "2u 1! b 1w");
}

/// Of more callers than are remembered, those who are held back at present stay so, and one more is not
/// held back; nobody else is.
#[tokio::test(start_paused = true)]
async fn there_are_as_many_callers_as_are_remembered() {
    let breaker = breaker(1);
    let fail = |agent: &str| {
        let client = client(agent);
        let permit = breaker.acquire(Some(breaker_caller(&client)), Instant::now());
        let passes = permit.map(|permit| permit.finish(CallHealth::Error).for_each(drop));
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
    run(&breaker, "1e 2e 3w 1w");
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
