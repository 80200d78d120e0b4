//! A server that starts slowly, never, or again and again, or that lists more than others costs the
//! callers of others nothing.
//!
//! Two gateways are measured in turn: one with good servers alone, one where they have bad
//! neighbours. Each has a runtime of its own with a single worker, so that whatever holds up the
//! one gateway shows in its calls and cannot hide by holding up the other as well.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, interval, sleep, timeout},
};

use crate::support::{Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport};

/// Windows of each gateway; the median over them is judged, so that a burst of the tests that run
/// beside this one has to hit most of them to count.
const ROUNDS: usize = 5;

/// Windows that are taken where the first ones are too much: what neighbours cost shows in all of
/// them, what else the machine does comes and goes.
const ROUNDS_MAX: usize = 15;

/// Long enough for the server that flaps each second to do so in every window.
const WINDOW: Duration = Duration::from_secs(1);

/// One call in so much time, whether the last one was quick or not.
const PACE: Duration = Duration::from_millis(5);

/// The most that neighbours may add, as a factor of the control.
const FACTOR: u32 = 2;

/// What the scheduler may add on top: the p99 of a window is the third longest of its calls, and a
/// thread that is preempted twice waits about this long where tests outnumber the cores.
const SLACK: Duration = Duration::from_millis(5);

/// Longest time of a window: calls that take longer than all of it hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// The good servers: the way to one goes through connections, to the other through a program.
const GOOD: [(&str, Transport); 2] = [("far", Transport::Http), ("near", Transport::Stdio)];

/// Tried again each second, for as long as the test takes.
const EACH_SECOND: &str =
    "retry = { base = \"1s\", max = \"1s\", jitter = 0.0, starts_per_minute = 600 }";

/// What a processor that is busy all the time with what a server lists may add, one that the threads
/// of the gateway share: a small part of what a worker that did that itself would be held up.
const BUSY_SLACK: Duration = Duration::from_millis(25);

/// Tools of the server that lists most: as many as a server may have.
const TOOLS: usize = 10_000;

#[test]
fn bad_neighbours_slow_nobody() {
    let bad = Neighbours::start();
    let beside = Side::start(|plan| bad.beside(plan));
    let compared = compare(&beside, SLACK);
    beside.runtime.block_on(bad.were_bad(&beside.gateway));
    compared.unwrap();
    beside.stop();
}

/// All that a long list costs is paid off the workers: reading it, merging and keeping it, and finding
/// out whose view has changed. Each list differs from the one before.
#[test]
fn a_server_that_lists_much_again_and_again_slows_nobody() {
    let vast = Vast::start();
    let beside = Side::start(|plan| plan.server("vast", &vast.backend));
    let all = |tools: &[String]| tools.len() >= TOOLS + GOOD.len();
    beside.runtime.block_on(beside.gateway.tools_until(all));
    let before = vast.listed.load(Ordering::SeqCst);
    let compared = compare(&beside, BUSY_SLACK);
    assert!(vast.listed.load(Ordering::SeqCst) >= before + 2);
    compared.unwrap();
    beside.stop();
}

/// Compares the calls of `beside` with those of a gateway without bad neighbours.
fn compare(beside: &Side, slack: Duration) -> Result<(), String> {
    let alone = Side::start(|plan| plan);
    let (mut control, mut disturbed) = (Vec::new(), Vec::new());
    let is_fine = |control: &[Duration], disturbed: &[Duration]| {
        median(disturbed) <= FACTOR * median(control) + slack
    };
    while control.len() < ROUNDS || control.len() < ROUNDS_MAX && !is_fine(&control, &disturbed) {
        control.push(alone.window());
        disturbed.push(beside.window());
    }
    alone.stop();
    if is_fine(&control, &disturbed) {
        return Ok(());
    }
    Err(format!(
        "p99 of each window alone {control:?}, beside bad neighbours {disturbed:?}"
    ))
}

/// A gateway, its good servers, a client of them, and the thread of all.
struct Side {
    gateway: Gateway,
    client: Client,
    _good: Vec<Backend>,
    runtime: Runtime,
}

impl Side {
    fn start(beside: impl FnOnce(TestGateway) -> TestGateway) -> Self {
        let runtime = runtime();
        let (good, gateway, client) = runtime.block_on(async {
            let mut plan = TestGateway::new();
            let mut good = Vec::new();
            for (name, transport) in GOOD {
                let backend = Backend::start(transport, Era::Legacy).await;
                backend.on_request(|request| {
                    let done = || Auto::Result(r#"{"content":[]}"#.to_owned());
                    (request.method() == "tools/call").then(done)
                });
                plan = plan.server(name, &backend);
                good.push(backend);
            }
            let gateway = beside(plan).launch().await;
            let is_listed = |tools: &[String]| {
                let names = GOOD.map(|(name, _)| tool(name));
                names.iter().all(|name| tools.contains(name))
            };
            gateway.tools_until(is_listed).await;
            let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
            (good, gateway, client)
        });
        Self {
            gateway,
            client,
            _good: good,
            runtime,
        }
    }

    /// The p99 of the calls of one window.
    fn window(&self) -> Duration {
        let calls = async { timeout(PATIENCE, self.calls()).await.unwrap() };
        let mut took = self.runtime.block_on(calls);
        took.sort_unstable();
        took[(took.len() * 99).div_ceil(100) - 1]
    }

    /// How long each call took from when it was due, so that one that is held up does not spare
    /// those that should have come meanwhile.
    async fn calls(&self) -> Vec<Duration> {
        let count = WINDOW.as_millis() / PACE.as_millis();
        let mut pace = interval(PACE);
        let mut took = Vec::new();
        for (id, (server, _)) in (0..count).zip(GOOD.iter().cycle()) {
            let due = pace.tick().await;
            let id = id.to_string();
            let name = format!(r#""name":"{}""#, tool(server));
            self.client.ask(&id, "tools/call", &name).await;
            let answer = self.client.answer(&id).await;
            assert!(answer.result.is_some(), "{answer:?}");
            took.push(Instant::now() - due);
        }
        took
    }

    fn stop(self) {
        let Self {
            gateway, client, ..
        } = self;
        self.runtime.block_on(async {
            drop(client);
            gateway.stop().await;
        });
    }
}

/// The exposed name of the tool of `server` that is called.
fn tool(server: &str) -> String {
    format!("mcp_{server}_echo")
}

/// A runtime with a single worker.
fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// The servers that nobody would want beside theirs; what they do costs neither gateway.
struct Neighbours {
    /// Takes longer to greet than the test takes, as one does that needs half a minute.
    slow: Backend,
    /// Greets and dies, each second anew.
    flapping: Backend,
    _runtime: Runtime,
}

impl Neighbours {
    fn start() -> Self {
        let runtime = runtime();
        let (slow, flapping) = runtime.block_on(async {
            let slow = Backend::start(Transport::Stdio, Era::Legacy).await;
            slow.on_request(|_| Some(Auto::Nothing));
            let flapping = Backend::start(Transport::Stdio, Era::Legacy).await;
            flapping.on_request(|request| (request.method() == "tools/list").then_some(Auto::Die));
            (slow, flapping)
        });
        Self {
            slow,
            flapping,
            _runtime: runtime,
        }
    }

    /// Adds them, and one whose program ends at once.
    fn beside(&self, plan: TestGateway) -> TestGateway {
        plan.server_with("slow", &self.slow, "startup_timeout = \"5m\"")
            .server_with("flapping", &self.flapping, EACH_SECOND)
            .section("never", &format!("command = \"false\"\n{EACH_SECOND}"))
    }

    /// Asserts that they were what they are here for, all the time.
    async fn were_bad(&self, gateway: &Gateway) {
        let slow = gateway.status("slow").await;
        assert_eq!(slow["state"], "connecting", "{slow}");
        assert_eq!(slow["failed_starts"], 0, "{slow}");
        let never = gateway.status("never").await;
        assert!(never["failed_starts"].as_u64() >= Some(3), "{never}");
        assert!(self.flapping.greeted() >= ROUNDS, "it flaps");
    }
}

/// A server that lists many tools, and others each time it is asked, which it wants to be all the time.
struct Vast {
    backend: Arc<Backend>,
    listed: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Vast {
    fn start() -> Self {
        let runtime = runtime();
        let listed = Arc::new(AtomicUsize::new(0));
        let backend = runtime.block_on(async {
            let backend = Arc::new(Backend::start(Transport::Stdio, Era::Legacy).await);
            backend.set_list("tools/list", Self::tools("one"));
            let count = Arc::clone(&listed);
            backend.on_request(move |request| {
                if request.method() == "tools/list" {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                None
            });
            backend
        });
        let restless = Arc::clone(&backend);
        runtime.spawn(async move {
            let lists = ["another", "one"].map(Self::tools);
            for list in lists.iter().cycle() {
                sleep(Duration::from_millis(300)).await;
                restless.set_list("tools/list", list.as_str());
                restless.list_changed("tools").await;
            }
        });
        Self {
            backend,
            listed,
            _runtime: runtime,
        }
    }

    fn tools(word: &str) -> String {
        let tool = |n| {
            format!(
                r#"{{"name":"tool_{n}","description":"{word} of many","inputSchema":{{"type":"object","properties":{{"a":{{"type":"string"}}}}}}}}"#
            )
        };
        let tools: Vec<String> = (0..TOOLS).map(tool).collect();
        format!("[{}]", tools.join(","))
    }
}

fn median(values: &[Duration]) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}
