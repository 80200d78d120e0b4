use super::*;

const EVENTS: [(char, ServerEvent); 13] = [
    ('g', ServerEvent::Greeted),
    ('l', ServerEvent::Listed),
    ('o', ServerEvent::Lost),
    ('m', ServerEvent::CheckMissed),
    ('r', ServerEvent::Refused),
    ('s', ServerEvent::SwitchedOff),
    ('u', ServerEvent::Unlistable),
    ('x', ServerEvent::Unreachable),
    ('w', ServerEvent::Withdrawn),
    ('z', ServerEvent::FellAsleep),
    ('b', ServerEvent::Started),
    ('p', ServerEvent::ListedPartly),
    ('i', ServerEvent::SignInNeeded),
];

/// Each row says where every event leads from one state.
#[test]
fn every_event_in_every_state() {
    use ServerState::{
        Connected as C, Connecting as N, Degraded as D, Disabled as Off, Disconnected as Dis,
        Failed as F, NeedsReauth as R, NeedsSignIn as S,
    };
    let table = [
        //    g    l    o    m    r    s    u    x    w    z    b    p  i
        (C, [N, C, Dis, D, R, Off, D, Dis, C, Dis, N, D, S]),
        (N, [N, C, F, D, R, Off, D, F, N, Dis, N, D, S]),
        (D, [N, C, Dis, D, R, Off, D, Dis, D, Dis, N, D, S]),
        (Off, [Off; 13]),
        (Dis, [N, Dis, Dis, Dis, R, Off, Dis, Dis, F, Dis, N, Dis, S]),
        (F, [N, F, F, F, R, Off, F, F, F, Dis, N, F, S]),
        (R, [N, C, Dis, R, R, Off, R, F, R, Dis, N, D, S]),
        (S, [N, C, Dis, S, R, Off, S, F, S, Dis, N, D, S]),
    ];
    for (index, (state, row)) in table.into_iter().enumerate() {
        assert_eq!(ServerState::ALL[index], state, "the table has every state");
        for ((_, event), expect) in EVENTS.into_iter().zip(row) {
            assert_eq!(state.next(event), expect, "{state:?} after {event:?}");
        }
    }
}

/// Whatever happens, the last thing before `connected` is a listing.
#[test]
fn only_a_listing_leads_to_connected() {
    for state in ServerState::ALL {
        for (_, event) in EVENTS {
            let enters =
                state != ServerState::Connected && state.next(event) == ServerState::Connected;
            assert!(
                !enters || event == ServerEvent::Listed,
                "{state:?} after {event:?}"
            );
        }
    }
}

fn life() -> StateMachine {
    StateMachine::new(
        MachineSubject::Server,
        &ServerName::parse("x").unwrap(),
        &Span::none(),
    )
}

fn lived(events: &str) -> StateMachine {
    let life = life();
    live(&life, events);
    life
}

/// Takes events, each with its letter as the reason.
fn live(life: &StateMachine, events: &str) {
    for letter in events.chars() {
        let (_, event) = EVENTS
            .into_iter()
            .find(|(known, _)| *known == letter)
            .unwrap();
        life.apply(event, Some(letter.to_string()));
    }
}

#[test]
fn it_has_failed_after_so_many_attempts() {
    let after = |attempts: u32, events: &str| {
        let life = life();
        life.set_failed_after(attempts);
        live(&life, events);
        life.state()
    };
    assert_eq!(after(1, "x"), ServerState::Failed);
    assert_eq!(after(3, "xx"), ServerState::Connecting);
    assert_eq!(after(3, "xxx"), ServerState::Failed);
    assert_eq!(
        after(3, "xgox"),
        ServerState::Failed,
        "one that is lost at once counts"
    );
    assert_eq!(
        after(3, "xxxxgo"),
        ServerState::Failed,
        "they are counted on"
    );
    assert_eq!(
        after(3, "xxglogox"),
        ServerState::Connecting,
        "until it is connected"
    );
    assert_eq!(after(3, "r"), ServerState::NeedsReauth);
    let life = life();
    life.set_failed_after(3);
    live(&life, "xo");
    assert_eq!(
        life.snapshot().reason.as_deref(),
        Some("o"),
        "what went wrong is shown"
    );
}

#[test]
fn each_transition_is_kept_once() {
    let check = |events: &str, reason: &str, expect: &[(ServerState, &str)]| {
        let stand = lived(events).snapshot();
        let found: Vec<_> = stand
            .history
            .iter()
            .map(|t| (t.state, t.reason.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(found, expect, "{events}");
        let now = stand.reason.as_deref().unwrap_or_default();
        assert_eq!(now, reason, "{events}");
    };
    let start = (ServerState::Connecting, "");
    check("", "", &[start]);
    check("g", "g", &[start]);
    check("gl", "l", &[start, (ServerState::Connected, "l")]);
    // What is tried again stays what it was, with the latest reason.
    check(
        "xxr",
        "r",
        &[
            start,
            (ServerState::Failed, "x"),
            (ServerState::NeedsReauth, "r"),
        ],
    );
    check(
        "glox",
        "x",
        &[
            start,
            (ServerState::Connected, "l"),
            (ServerState::Disconnected, "o"),
        ],
    );
}

#[test]
fn who_sleeps_is_not_down_until_it_cannot_be_woken() {
    let check = |events: &str, asleep: bool, down: bool, transitions: usize| {
        let life = lived(events);
        let stand = life.snapshot();
        assert_eq!(
            (stand.asleep, life.is_down(), stand.history.len()),
            (asleep, down, transitions),
            "{events}: {stand:?}"
        );
    };
    check("", false, false, 1);
    check("gl", false, false, 2);
    check("glo", false, true, 3);
    check("glog", false, false, 4);
    check("glz", true, false, 3);
    check("glzlmu", true, false, 3);
    check("glzz", true, false, 3);
    check("glzx", false, true, 4);
    check("glzxx", false, true, 4);
    check("glzg", false, false, 4);
    check("glzw", false, true, 4);
    check("x", false, true, 2);
    check("r", false, true, 2);
    check("glm", false, false, 3);
}

#[test]
fn the_history_has_an_end() {
    for (rounds, expect) in [(15, 31), (16, 32), (30, 32)] {
        let life = lived(&"lo".replace('o', "u").repeat(rounds));
        let history = life.snapshot().history;
        assert_eq!(history.len(), expect.min(HISTORY_MAX), "{rounds} rounds");
        assert_eq!(history.last().unwrap().state, ServerState::Degraded);
    }
}

/// Who follows it hears of each change, also of one that leaves the state what it is.
#[test]
fn what_is_known_of_the_lists_is_told() {
    use ListState::{Read, ReadPartly, Unreadable, Untried};
    let life = life();
    let mut changes = life.changes();
    for (event, lists, is_told) in [
        ("g", Untried, false),
        ("m", Untried, true),
        ("u", Unreadable, true),
        ("u", Unreadable, false),
        ("p", ReadPartly, true),
        ("l", Read, true),
        ("r", Read, true),
        ("o", Read, true),
        ("g", Untried, true),
    ] {
        live(&life, event);
        assert_eq!(life.lists(), lists, "{event}");
        let is_changed = changes.has_changed().unwrap();
        assert_eq!(is_changed, is_told, "{event}");
        changes.mark_unchanged();
    }
}

#[test]
fn what_no_longer_holds_is_not_taken() {
    let life = lived("g");
    life.apply_if(ServerEvent::Listed, None, || false);
    assert_eq!(life.state(), ServerState::Connecting);
    life.apply_if(ServerEvent::Listed, None, || true);
    assert_eq!(life.state(), ServerState::Connected);
}
