//! Limits as time passes, for one and for many at once.

use proptest::prelude::*;
use tokio::time::advance;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_limit_holds_at_its_edge_and_on_the_way_back() {
    let limits = Limiters::default()
        .for_agent(agent(1))
        .rate_limits(Some(rate(60, 3)), None);
    let call = || limits.check(&calls(&server("a"), None));
    for _ in 0..3 {
        assert_eq!(call(), Ok(()), "at the limit");
    }
    let limited = call().unwrap_err();
    assert_eq!(
        (limited.scope, limited.retry_after),
        (LimitScope::Agent, SECOND)
    );
    advance(Duration::from_nanos(999_999_999)).await;
    let limited = call().unwrap_err();
    assert_eq!(limited.retry_after, Duration::from_nanos(1));
    assert_eq!(limited.retry_after_seconds(), 1);
    assert_eq!(
        limited.to_string(),
        "rate limit of the gateway: 60 calls per 1m; try again in 1 s"
    );
    advance(Duration::from_nanos(1)).await;
    assert_eq!(call(), Ok(()), "one call came back");
    assert!(call().is_err());
    advance(3 * SECOND).await;
    for _ in 0..3 {
        assert_eq!(call(), Ok(()), "the whole burst came back");
    }
    assert!(call().is_err());
}

#[tokio::test(start_paused = true)]
async fn what_is_left_is_what_may_be_called() {
    let limits = Limiters::default()
        .for_agent(agent(1))
        .rate_limits(Some(rate(60, 3)), Some(rate(60, 2)));
    let (a, x): (_, Arc<str>) = (server("a"), "x".into());
    let call = || {
        let target = RateTarget {
            server_rate: Some(rate(60, 5)),
            ..calls(&a, Some(&x))
        };
        limits.check(&target).is_ok()
    };
    let left = || {
        let statuses = limits.statuses(|_| Some(rate(60, 5)));
        let left = statuses.into_iter().map(|it| (it.of, it.left));
        left.collect::<Vec<_>>()
    };
    assert_eq!(left(), [("agent", 3)], "what is not used is not shown");
    assert!(call());
    assert_eq!(left(), [("agent", 2), ("server", 4), ("tool", 1)]);
    assert!(call() && !call());
    assert_eq!(left(), [("agent", 1), ("server", 3), ("tool", 0)]);
    advance(SECOND / 2).await;
    assert_eq!(left(), [("agent", 1), ("server", 3), ("tool", 0)]);
    advance(SECOND / 2).await;
    assert_eq!(left(), [("agent", 2), ("server", 4), ("tool", 1)]);
    assert!(call());
    advance(10 * SECOND).await;
    assert_eq!(left(), [("agent", 3)]);
    let other = limits.statuses(|_| Some(rate(60, 6)));
    assert_eq!(other.len(), 1, "nothing is left of a rate that was changed");
}

#[tokio::test(start_paused = true)]
async fn each_limit_counts_its_own() {
    let limits = Limiters::default()
        .for_agent(agent(1))
        .rate_limits(Some(rate(60, 6)), Some(rate(60, 2)));
    let (a, b) = (server("a"), server("b"));
    let (x, y): (Arc<str>, Arc<str>) = ("x".into(), "y".into());
    let call = |server: &ServerName, tool| {
        let found = limits.check(&RateTarget {
            server_rate: (*server == a).then_some(rate(60, 3)),
            ..calls(server, tool)
        });
        found.map_err(|limited| limited.scope)
    };
    assert_eq!(call(&a, Some(&x)), Ok(()));
    assert_eq!(call(&a, Some(&x)), Ok(()));
    assert_eq!(call(&a, Some(&x)), Err(LimitScope::Tool));
    assert_eq!(call(&a, Some(&y)), Ok(()));
    assert_eq!(call(&a, Some(&y)), Err(LimitScope::Server));
    assert_eq!(call(&a, None), Err(LimitScope::Server));
    assert_eq!(call(&b, Some(&x)), Ok(()), "another server's tool");
    assert_eq!(call(&b, None), Ok(()));
    assert_eq!(call(&b, None), Ok(()), "refused calls are not counted");
    assert_eq!(call(&b, None), Err(LimitScope::Agent));
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_is_told() {
    let slow = Rate {
        per: Duration::from_secs(600),
        ..rate(1, 1)
    };
    let limits = Limiters::default()
        .for_agent(agent(1))
        .rate_limits(Some(rate(60, 1)), Some(slow));
    let tool: Arc<str> = "x".into();
    let target = server("a");
    limits.check(&calls(&target, Some(&tool))).unwrap();
    let limited = limits.check(&calls(&target, Some(&tool))).unwrap_err();
    assert_eq!(limited.scope, LimitScope::Tool);
    assert_eq!(limited.retry_after, Duration::from_secs(600));
    advance(SECOND).await;
    assert!(limits.check(&calls(&target, None)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn agents_do_not_share_and_routes_do() {
    let limiters = Limiters::default();
    let target = server("a");
    let of = |agent, rate| limiters.for_agent(agent).rate_limits(Some(rate), None);
    let one = of(agent(1), rate(60, 1));
    assert!(one.check(&calls(&target, None)).is_ok());
    assert!(
        of(agent(2), rate(60, 1))
            .check(&calls(&target, None))
            .is_ok()
    );
    let again = of(agent(1), rate(60, 1));
    assert!(
        again.check(&calls(&target, None)).is_err(),
        "it is the same limiter"
    );
    let changed = of(agent(1), rate(60, 2));
    assert!(
        changed.check(&calls(&target, None)).is_ok(),
        "a new rate begins anew"
    );
    let back = of(agent(1), rate(60, 1));
    assert!(
        back.check(&calls(&target, None)).is_err(),
        "no rate is reset by asking for another"
    );
}

#[tokio::test(start_paused = true)]
async fn no_rate_is_no_limit() {
    let limits = Limiters::default()
        .for_agent(agent(1))
        .rate_limits(None, None);
    let tool: Arc<str> = "x".into();
    for _ in 0..1000 {
        limits.check(&calls(&server("a"), Some(&tool))).unwrap();
    }
    assert!(limits.agent_limits.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn limiters_of_tools_are_bounded() {
    let limits = Limiters::default()
        .for_agent(agent(1))
        .rate_limits(None, Some(rate(60, 1)));
    let target = server("a");
    let call = |index: usize| {
        let tool: Arc<str> = index.to_string().into();
        limits.check(&calls(&target, Some(&tool)))
    };
    for index in 0..BUCKETS_MAX {
        assert!(call(index).is_ok());
    }
    assert!(call(BUCKETS_MAX).is_ok(), "the first of those that share");
    assert!(
        call(BUCKETS_MAX + 1).is_err(),
        "the second of those that share"
    );
    assert_eq!(limits.agent_limits.lock().len(), BUCKETS_MAX + 1);
    assert!(call(0).is_err(), "what is in use is kept");
    advance(SECOND).await;
    assert!(call(BUCKETS_MAX + 2).is_ok());
    assert_eq!(
        limits.agent_limits.lock().len(),
        1,
        "what is idle is forgotten"
    );
}

#[tokio::test(start_paused = true)]
async fn agents_are_bounded() {
    let limiters = Limiters::new(2);
    let target = server("a");
    let call = |id| {
        let limits = limiters
            .for_agent(agent(id))
            .rate_limits(Some(rate(60, 1)), None);
        limits.check(&calls(&target, None))
    };
    assert!(call(1).is_ok());
    assert!(call(2).is_ok());
    assert!(call(3).is_ok(), "the first of those that share");
    assert!(call(4).is_err(), "the second of those that share");
    assert!(call(1).is_err(), "what is in use is kept");
    let held = limiters.for_agent(agent(2));
    advance(SECOND).await;
    assert!(call(3).is_ok());
    assert!(call(1).is_ok(), "shared, as agent 2 is held");
    assert!(Arc::ptr_eq(&held, &limiters.for_agent(agent(2))));
    assert_eq!(limiters.agents.len(), 2);
}

#[test]
fn many_at_once_get_the_burst_and_no_more() {
    let limits = Limiters::default().for_agent(agent(1)).rate_limits(
        Some(Rate {
            per: Duration::from_secs(3600),
            ..rate(1, 100)
        }),
        None,
    );
    let passed = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    if limits.check(&calls(&server("a"), None)).is_ok() {
                        passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 100);
}

#[tokio::test(start_paused = true)]
async fn absurd_rates_do_not_overflow() {
    for (calls_each, per, burst) in [
        (1, Duration::MAX, u32::MAX),
        (u32::MAX, Duration::ZERO, u32::MAX),
        (u32::MAX, Duration::from_nanos(1), 1),
        (1, Duration::from_secs(86_400), u32::MAX),
    ] {
        let absurd = Rate {
            per,
            ..rate(calls_each, burst)
        };
        let limits = Limiters::default()
            .for_agent(agent(1))
            .rate_limits(Some(absurd), None);
        assert!(
            limits.check(&calls(&server("a"), None)).is_ok(),
            "{absurd:?}"
        );
        // Whether the second passes depends on the rate; that it is decided does not.
        limits.check(&calls(&server("a"), None)).unwrap_or_default();
    }
}

proptest! {
    /// Over any stretch of time no more pass than the burst and what came back meanwhile.
    #[test]
    fn no_more_pass_than_the_rate_allows(burst in 1u32..5, pauses in prop::collection::vec(0u64..3000, 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let limits = Limiters::default().for_agent(agent(1)).rate_limits(Some(rate(60, burst)), None);
            let (mut passed, mut elapsed) = (0, 0);
            for pause in pauses {
                advance(Duration::from_millis(pause)).await;
                elapsed += pause;
                passed += u64::from(limits.check(&calls(&server("a"), None)).is_ok());
                prop_assert!(passed <= u64::from(burst) + elapsed / 1000);
            }
            Ok(())
        })?;
    }
}

fn rate(calls: u32, burst: u32) -> Rate {
    Rate {
        calls: NonZeroU32::new(calls).unwrap(),
        per: Duration::from_secs(60),
        burst: NonZeroU32::new(burst).unwrap(),
    }
}

fn calls<'a>(server: &'a ServerName, tool: Option<&'a Arc<str>>) -> RateTarget<'a> {
    RateTarget {
        server,
        server_rate: None,
        tool,
    }
}

fn agent(id: u128) -> AgentId {
    AgentId(uuid::Uuid::from_u128(id))
}

fn server(name: &str) -> ServerName {
    ServerName::parse(name).unwrap()
}
