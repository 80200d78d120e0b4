//! What governance alone costs a call: `open`, `admit` and `settle` in this process, without a wire.
//!
//! `cargo bench --bench governance [-- PART CALLS [CALLERS]]`; without arguments every part in turn, several
//! times, and what the rules add to a call, which may not be more than twice its target in every
//! round: less than that is noise. A run of one part is for tools that count instructions (`perf stat`):
//! divide what a long run has more than a short one by the calls that it has more. `overhead`
//! measures the same rules on the whole way.
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use mimalloc::MiMalloc;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tollbridge::{
    audit::{AuditLog, Indexer},
    auth::{Agent, AgentDirectory},
    catalog::{ByKind, Catalog, Listing, ServerOffer},
    config::{self, Config, ConfigText, Environment},
    governance::{CallOutcome, Governance, Seal, ServerAnswer, Storage, budget::Budgets},
    mcp::{Id, LogFilter, Method, Raw, Request, Revision},
    names::Scope,
    router,
    session::{Call, Client, ClientInfo, Interest},
    store::{Store, TaskIdScope},
};

/// The gateway's own allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const RULES: &str = r#"
[governance]
price = "0.015"
policy = { mode = "allowlist", tools = ["echo*/*"], deny = ["delete_*"] }
rate = { calls = 1000000, per = "1s" }
args = [{ name = "no-root", at = "/path", equals = "/" }]
scan = { arguments = { "*" = "redact" }, results = { "*" = "redact" } }
"#;

/// What is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    /// Policy, rate, argument rules and scans.
    Governed,
    /// The same, a budget, and the lines of the audit.
    Audited,
    /// The same, and what the index of the audit takes in later.
    Indexed,
    /// Nothing refuses, records or looks.
    Open,
}

impl Part {
    const ALL: [Self; 4] = [Self::Open, Self::Governed, Self::Audited, Self::Indexed];

    fn name(self) -> &'static str {
        match self {
            Self::Audited => "audited",
            Self::Governed => "governed",
            Self::Indexed => "indexed",
            Self::Open => "open",
        }
    }

    fn is_audited(self) -> bool {
        matches!(self, Self::Audited | Self::Indexed)
    }

    fn config(self) -> Config {
        let (rules, more) = match self {
            Self::Open => ("", "[audit]\nenabled = false\n"),
            Self::Governed => (RULES, "budget = \"off\"\n[audit]\nenabled = false\n"),
            Self::Audited | Self::Indexed => (RULES, "budget = { limit = \"1000000.00\" }\n"),
        };
        let server = "[servers.echo]\nurl = \"http://127.0.0.1:1/mcp\"\n";
        let source = ConfigText {
            name: "bench.toml".to_owned(),
            format: config::ConfigFormat::Toml,
            text: format!("{rules}{more}{server}"),
            directory: PathBuf::new(),
        };
        let loaded = config::parse([source], &Environment::default());
        loaded.expect("the config is right").config
    }
}

/// How many calls, and how many of them at a time.
#[derive(Clone, Copy, Debug)]
struct Load {
    calls: u64,
    callers: u64,
}

/// As many callers as `overhead` has connections.
const CALLERS: u64 = 16;
/// Rounds of all parts; the median of what is added counts.
const ROUNDS: usize = 5;
/// What the rules may add to each of [`CALLERS`] calls at a time, microseconds of CPU, without and
/// with the audit.
const TARGETS: [(Part, f64); 2] = [(Part::Governed, 4.0), (Part::Audited, 12.0)];
/// How far past its target the least of all rounds fails: what else the machine does only adds.
const SLACK: f64 = 2.0;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = |part: &Part| arguments.iter().any(|argument| argument == part.name());
    let mut numbers = arguments
        .iter()
        .filter_map(|argument| argument.parse().ok());
    let chosen: Vec<Part> = Part::ALL.into_iter().filter(named).collect();
    let load = Load {
        calls: numbers.next().unwrap_or(100_000),
        callers: numbers.next().unwrap_or(CALLERS).max(1),
    };
    for part in &chosen {
        println!(
            "{:10} {:6.2} us of CPU a call",
            part.name(),
            run(*part, load).await
        );
    }
    if chosen.is_empty() && !compare(load).await {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs all parts in turn, and says what each adds to a call; whether that is within bounds.
async fn compare(load: Load) -> bool {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut round = Vec::new();
        for part in Part::ALL {
            round.push((part, run(part, load).await));
        }
        rounds.push(round);
    }
    let cost = |round: &[(Part, f64)], wanted: Part| {
        let found = round.iter().find(|(part, _)| *part == wanted);
        found.map_or(f64::NAN, |(_, cost)| *cost)
    };
    for part in Part::ALL {
        let all = rounds.iter().map(|round| cost(round, part)).collect();
        println!("{:10} {:6.2} us of CPU a call", part.name(), median(all));
    }
    let mut is_within = true;
    for (part, target) in TARGETS {
        let added = |round: &Vec<_>| cost(round, part) - cost(round, Part::Open);
        let added: Vec<f64> = rounds.iter().map(added).collect();
        let least = added.iter().copied().fold(f64::INFINITY, f64::min);
        let added = median(added);
        let verdict = if added <= target {
            "ok"
        } else if least <= target * SLACK {
            "MISS"
        } else {
            is_within = false;
            "FAIL"
        };
        let name = part.name();
        println!(
            "{name:10} {added:6.2} us more than open (least {least:.2}), <={target} {verdict}"
        );
    }
    is_within
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// CPU time of this process, microseconds.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let time = std::time::Duration::try_from(time).expect("no clock of a process is negative");
    time.as_secs_f64() * 1e6
}

/// What a call costs, microseconds of CPU.
async fn run(part: Part, load: Load) -> f64 {
    let room = tempfile::tempdir().expect("there is room for a directory");
    let directory: &Path = room.path();
    let config = part.config();
    let store = if part.is_audited() {
        Some(Store::open(directory).await.expect("a store opens"))
    } else {
        None
    };
    let log_dir = directory.join("audit");
    let audit = Arc::new(AuditLog::open(&log_dir, config.audit).expect("a log opens"));
    let budgets = store
        .as_ref()
        .map(|store| Arc::new(Budgets::new(Arc::clone(&store.leases), "bench")));
    let agents = config.agents.values().cloned();
    let directory = Arc::new(AgentDirectory::new(config.governance.auth, agents));
    let books = Storage {
        directory,
        audit: Arc::clone(&audit),
        budgets,
        seal: Seal::new(&[0; 32]),
        tasks: store.as_ref().map(|store| Arc::clone(&store.tasks)),
    };
    let governance = Governance::new(&config, books).expect("the terms can be used");
    let stage = Arc::new((Stage::new(&config), governance));
    // The first calls fill what later ones find.
    let warm = Load { calls: 100, ..load };
    make(&stage, warm).await;
    let start = cpu_us();
    let calls = make(&stage, load).await;
    if let (Part::Indexed, Some(store)) = (part, &store) {
        let mut indexer = Indexer::new(&log_dir, Arc::clone(&store.audit));
        indexer.catch_up().await.expect("the index follows");
    }
    let spent = cpu_us() - start;
    audit.close().expect("the log ends");
    #[expect(clippy::cast_precision_loss, reason = "so many calls nobody waits for")]
    let calls = calls as f64;
    spent / calls
}

/// Makes calls, so many at a time; says how many there were, since each caller makes as many.
async fn make(stage: &Arc<(Stage, Governance)>, load: Load) -> u64 {
    let share = load.calls.div_ceil(load.callers);
    let mut callers = JoinSet::new();
    for _ in 0..load.callers {
        let stage = Arc::clone(stage);
        callers.spawn(async move {
            for _ in 0..share {
                stage.0.call(&stage.1).await;
            }
        });
    }
    callers.join_all().await;
    share * load.callers
}

/// What every call has in common.
struct Stage {
    catalog: Catalog,
    client: Arc<Client>,
    params: Raw,
    result: Raw,
}

impl Stage {
    fn new(config: &Config) -> Self {
        let (server, of_config) = config.servers.first().expect("there is one server");
        let tool =
            r#"{"name":"echo","description":"Says it again.","inputSchema":{"type":"object"}}"#;
        let listing = Listing {
            tools: vec![Raw::from_static(tool)],
            ..Listing::default()
        };
        let offer = ServerOffer {
            server: server.clone(),
            config: Arc::new(of_config.clone()),
            listing: Arc::new(listing),
            modern_http: false,
            listing_gaps: ByKind::default(),
        };
        let opening = ClientInfo {
            revision: Revision::LEGACY,
            info: Some(Raw::from_static(r#"{"name":"bench","version":"1.0.0"}"#)),
            // Found once, as for the clients of sessions.
            display_name: OnceLock::new(),
            capabilities: Raw::from_static("{}"),
            profile: Arc::default(),
        };
        let client = Client {
            agent: Arc::new(Agent::anonymous()),
            client_info: Arc::new(opening),
            session: None,
            forwarded: None,
            missing_scopes: None,
        };
        Self {
            catalog: Catalog::build(&config.naming, &[offer]),
            client: Arc::new(client),
            params: Raw::from_static(
                r#"{"name":"mcp_echo_echo","arguments":{"text":"connection 0004 makes call 00001234, and this is all it says"}}"#,
            ),
            result: Raw::from_static(
                r#"{"content":[{"type":"text","text":"connection 0004 makes call 00001234, and this is all it says"}],"isError":false}"#,
            ),
        }
    }

    async fn call(&self, governance: &Governance) {
        let request = Request {
            id: Id::number(1),
            method: Method::ToolsCall,
            params: Some(self.params.clone().into()),
        };
        let wants = Interest {
            logs: LogFilter::None,
            progress_token: None,
        };
        let (call, events) = Call::new(request, Arc::clone(&self.client), Scope::All, wants);
        let mut ticket = governance.open(&call);
        let routed =
            router::route(call, &self.catalog, &|_, _, _| true).expect("the tool is there");
        let admitted = governance.admit(routed, &mut ticket).await;
        drop(admitted.expect("every rule lets it pass"));
        let ending = CallOutcome::Answered(ServerAnswer {
            outcome: Ok(self.result.clone()),
            revision: Some("2025-11-25"),
            same_task_id: TaskIdScope::Shared,
        });
        let outcome = governance.settle(ticket, ending).await;
        drop((outcome.expect("it is what the server said"), events));
    }
}
