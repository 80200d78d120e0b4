//! How long questions to the index of the audit take. `TEST_AUDIT_RECORDS` says of how many records; the times
//! are held to from a million on.

use tokio::time::Instant;

use super::*;

/// Records that are put at once.
const BATCH: u64 = 10_000;
/// From so many records on, times are held to.
const LARGE: u64 = 1_000_000;
/// How long a question may take.
const QUESTION_MAX: Duration = Duration::from_millis(100);

/// How many records the index is to have.
#[expect(
    clippy::disallowed_methods,
    reason = "it is how long the test may take, no setting"
)]
fn size() -> u64 {
    let written = std::env::var("TEST_AUDIT_RECORDS").ok();
    written.map_or(20_000, |written| written.parse().unwrap())
}

/// A record like others: of one of 10,000 agents, to one of 1,000 servers, one a second. Of every 5,000 one is
/// refused, and `rare` is the agent, server and tool of one.
fn record(number: u64) -> IndexedRecord {
    let (agent, server) = (number % 9_973, number % 997);
    let is_rare = number == 3;
    let name = |common: String| if is_rare { "rare".to_owned() } else { common };
    IndexedRecord {
        offset: number * 100,
        ts: at(i64::try_from(number).unwrap()),
        invocation: Uuid::from_u128(number.into()),
        agent_id: format!("agent_{agent:032}"),
        agent_name: name(format!("agent-{agent}")),
        exposed: Some(name(format!("mcp_server{server}_tool{}", number % 7))),
        server: Some(name(format!("server{server}"))),
        tool: Some(format!("tool{}", number % 7)),
        decision: if number % 5_000 == 1 {
            "refused"
        } else {
            "allowed"
        }
        .to_owned(),
        team: Some(format!("team{}", number % 50)),
        workspace: None,
        price: Micros::new(5),
        took: Duration::from_millis(number % 300),
    }
}

/// Puts records into `store`; how long that took.
async fn fill(store: &Store, count: u64) -> Duration {
    let begun = Instant::now();
    for start in (0..count).step_by(BATCH.try_into().unwrap()) {
        let end = count.min(start + BATCH);
        let segment = IndexedSegment {
            chain: "c".to_owned(),
            segment: 1,
            end: end * 100,
            hash: None,
            records: (start..end).map(record).collect(),
        };
        store.audit.put(&[segment]).await.unwrap();
    }
    begun.elapsed()
}

#[tokio::test]
async fn questions_take_no_longer_for_many_records() {
    let (store, _directory) = super::sqlite().await;
    let count = size();
    let filling = fill(&store, count).await;
    println!("{count} records were put in {filling:?}");
    // Opening the connection that reads is none of the questions.
    store.audit.marks().await.unwrap();
    for (what, filter, least) in questions() {
        let begun = Instant::now();
        let found = store.audit.find(&filter, 51).await.unwrap();
        let took = begun.elapsed();
        println!("{what}: {} found in {took:?}", found.len());
        assert!(found.len() >= least, "{what}");
        assert!(count < LARGE || took < QUESTION_MAX, "{what}: {took:?}");
    }
    usage_is_added_up(&store, count).await;
}

/// What is asked, and how many records there are of it at least.
fn questions() -> [(&'static str, IndexFilter, usize); 10] {
    let asked = |agent: &str, server: &str, tool: &str, decision: &str| {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        IndexFilter {
            agent: text(agent),
            server: text(server),
            tool: text(tool),
            decision: text(decision),
            ..IndexFilter::default()
        }
    };
    let day = SignedDuration::from_hours(24);
    let of_a_day = IndexFilter {
        until: Some(at(0) + day),
        ..asked("agent-5", "", "", "")
    };
    [
        ("all", asked("", "", "", ""), 51),
        ("rare agent", asked("rare", "", "", ""), 1),
        ("rare server", asked("", "rare", "", ""), 1),
        ("rare tool", asked("", "", "rare", ""), 1),
        ("no agent", asked("nobody", "", "", ""), 0),
        ("frequent tool", asked("", "", "tool1", ""), 51),
        ("refused", asked("", "", "", "refused"), 4),
        ("failed", asked("", "", "", "failed"), 0),
        ("agent and tool", asked("agent-5", "", "tool5", ""), 1),
        ("agent of a day", of_a_day, 3),
    ]
}

async fn usage_is_added_up(store: &Store, count: u64) {
    for dimension in [
        UsageDimension::Agent,
        UsageDimension::Server,
        UsageDimension::Team,
    ] {
        // Hours of a day, and days of a month.
        for (step_hours, end_hour) in [(1, 24), (24, 24 * 30)] {
            let query = UsageQuery {
                dimension,
                first_hour: 0,
                end_hour,
                step_hours,
                after: None,
                count: 50,
            };
            let begun = Instant::now();
            let answer = store.audit.usage(&query).await.unwrap();
            let took = begun.elapsed();
            println!(
                "{dimension:?} by {step_hours} h: {} sums in {took:?}",
                answer.sums.len()
            );
            assert!(!answer.sums.is_empty());
            assert!(
                count < LARGE || took < QUESTION_MAX,
                "{dimension:?}: {took:?}"
            );
        }
    }
}
