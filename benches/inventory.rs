//! What a gateway with much in its store takes: its start, each page of the lists of the admin API, and a call.
//!
//! `cargo bench --bench inventory [-- --smoke]`; 10,000 agents with a key each, 1,000 servers and 1,000,000 records of
//! calls, or a hundredth of each. Bounds hold in the long form alone: a figure past its bound is a `MISS`, and one past
//! twice that fails.
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use mimalloc::MiMalloc;
use serde_json::{Value, json};
use tokio::time::Instant;
use tollbridge::{
    agent_change,
    app::{self, ConfigSource, ProcessContext, RunningGateway},
    audit::{AuditLog, Indexer},
    auth::{Agent, AgentDirectory},
    catalog::{ByKind, Catalog, Listing, ServerOffer},
    config::{self, Config, ConfigEntry, EntryKey, EntrySection, Environment, LoadedConfig},
    config_change::ChangedStoreReader,
    governance::{CallOutcome, Governance, Seal, ServerAnswer, Storage},
    mcp::{Id, LogFilter, Method, Raw, Request, Revision},
    names::Scope,
    router,
    session::{Call, Client, ClientInfo, Interest},
    store::{Store, TaskIdScope},
};

/// The gateway's own allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const KEY: &str = "tb_Qm7xN2vKp9sLw4TzR8bYh3CdFj6GaEu5";
/// A page may take this long.
const PAGE_MAX: Duration = Duration::from_millis(100);
/// And a start this long, from reading the config to the first answer.
const START_MAX: Duration = Duration::from_secs(1);
/// A call may take so much of what one of an empty gateway takes.
const CALL_MAX: f64 = 1.2;
/// Calls of which the median counts.
const CALLS: usize = 500;
/// Times that a page is asked for; the least counts, since what else the machine does only adds.
const ASKED: usize = 3;

/// How much there is.
#[derive(Clone, Copy, Debug)]
struct Inventory {
    agents: usize,
    servers: usize,
    records: usize,
}

const LONG: Inventory = Inventory {
    agents: 10_000,
    servers: 1_000,
    records: 1_000_000,
};
const SMOKE: Inventory = Inventory {
    agents: 100,
    servers: 10,
    records: 10_000,
};

#[tokio::main]
async fn main() -> ExitCode {
    drop(rustls::crypto::ring::default_provider().install_default());
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let inventory = if is_smoke { SMOKE } else { LONG };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let [empty, full] = ["empty", "full"].map(|name| room.path().join(name));
    for directory in [&empty, &full] {
        fs::create_dir(directory).expect("made");
        fs::write(directory.join("tollbridge.toml"), config_text(directory)).expect("written");
    }
    let begun = Instant::now();
    fill(&full, inventory).await;
    println!("{inventory:?} filled in {:?}", begun.elapsed());
    let mut verdicts = Vec::new();
    let before = Gateway::start(&empty).await;
    let gateway = Gateway::start(&full).await;
    verdicts.push(within("start", gateway.start, START_MAX));
    for path in paths(inventory) {
        let took = gateway.page(&path).await;
        verdicts.push(within(&path, took, PAGE_MAX));
    }
    let (few, many) = (before.call().await, gateway.call().await);
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    println!("call: {many:?}, {few:?} of an empty gateway, {ratio:.2} times, <={CALL_MAX}");
    verdicts.push(ratio <= CALL_MAX * 2.0);
    before.running.stop().await;
    gateway.running.stop().await;
    if is_smoke || verdicts.into_iter().all(|is_within| is_within) {
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}

/// Prints how long something took; whether it is not past twice its bound.
fn within(what: &str, took: Duration, bound: Duration) -> bool {
    let is_within = took <= bound * 2;
    let verdict = match (took <= bound, is_within) {
        (true, _) => "ok",
        (false, true) => "MISS",
        (false, false) => "FAIL",
    };
    println!("{what}: {took:?}, <={bound:?} {verdict}");
    is_within
}

/// The lists, a first page and a large one, and questions about one of many.
fn paths(inventory: Inventory) -> Vec<String> {
    let last = format!("agent{}", inventory.agents - 1);
    let mut paths = Vec::new();
    for list in ["agents", "servers", "profiles", "tools", "budgets", "audit"] {
        paths.push(list.to_owned());
        paths.push(format!("{list}?limit=500"));
    }
    paths.extend([
        format!("agents/{last}"),
        format!("agents/{last}/keys"),
        format!("servers/server{}", inventory.servers - 1),
        format!("budgets?of=agent&name={last}"),
        "audit?agent=agent0".to_owned(),
        "audit?decision=refused".to_owned(),
        "me".to_owned(),
        "me/audit".to_owned(),
        "usage?by=agent".to_owned(),
        "usage?by=server&step=hour".to_owned(),
    ]);
    paths
}

fn config_text(directory: &Path) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\ndata_dir = '{}'\n[governance]\nauth = \"keys\"\npolicy = {{ mode = \"all\" }}\n\
         budget = {{ limit = \"1000000.00\" }}\n\
         [agents.root]\nrole = \"admin\"\nkeys = [\"{KEY}\"]\n[servers.own]\ntransport = \"builtin\"\n",
        directory.join("data").display()
    )
}

fn load(
    files: &[PathBuf],
    change: Option<tollbridge::config_change::EntryChange>,
) -> Result<LoadedConfig, config::ConfigErrors> {
    let environment = Environment::from_iter([("HOME", "/nowhere")]);
    config::load(files, &environment.with_store(ChangedStoreReader(change)))
}

/// A gateway in this process, and who asks it.
struct Gateway {
    running: RunningGateway,
    client: reqwest::Client,
    /// From reading its config to its first answer.
    start: Duration,
}

impl Gateway {
    async fn start(directory: &Path) -> Self {
        let begun = Instant::now();
        let files = vec![directory.join("tollbridge.toml")];
        let config = load(&files, None).expect("the config is right");
        let read = begun.elapsed();
        let running = app::start(&config.config, ProcessContext::default()).await;
        let running = running.expect("it starts");
        let source = ConfigSource::new(files.clone(), move |change| load(&files, change));
        running.core().follow_config(source);
        let mut gateway = Self {
            running,
            client: reqwest::Client::new(),
            start: Duration::ZERO,
        };
        gateway.get("me").await;
        gateway.start = begun.elapsed();
        println!(
            "started in {:?}, of which its config took {read:?}",
            gateway.start
        );
        gateway
    }

    async fn get(&self, path: &str) -> Value {
        let url = format!("{}/api/v1/{path}", self.running.url);
        let answer = self.client.get(url).bearer_auth(KEY).send().await;
        let answer = answer.expect("it answers");
        let status = answer.status();
        let text = answer.text().await.expect("it is text");
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// How long a page takes.
    async fn page(&self, path: &str) -> Duration {
        let mut least = Duration::MAX;
        for _ in 0..ASKED {
            let begun = Instant::now();
            self.get(path).await;
            least = least.min(begun.elapsed());
        }
        least
    }

    /// How long a call of a tool takes.
    async fn call(&self) -> Duration {
        let asked = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "mcp_own_echo", "arguments": { "message": "a" } },
        });
        let mut times = Vec::with_capacity(CALLS);
        for number in 0..CALLS + CALLS / 10 {
            let begun = Instant::now();
            let request = self.client.post(format!("{}/mcp", self.running.url));
            let request = request.header("accept", "application/json, text/event-stream");
            let answer = request.bearer_auth(KEY).json(&asked).send().await;
            let text = answer
                .expect("it answers")
                .text()
                .await
                .expect("it is text");
            assert!(text.contains("\"result\""), "{text}");
            // The first ones fill what later ones find.
            if number >= CALLS / 10 {
                times.push(begun.elapsed());
            }
        }
        times.sort_unstable();
        times[times.len() / 2]
    }
}

/// Puts it all into the data directory of a gateway that does not run.
async fn fill(directory: &Path, inventory: Inventory) {
    let files = [directory.join("tollbridge.toml")];
    let config = load(&files, None).expect("the config is right").config;
    let data = directory.join("data");
    let store = Store::open(&data).await.expect("a store opens");
    let now = Timestamp::now();
    for number in 0..inventory.agents {
        let name = format!("agent{number}");
        let agent = agent_change::new_agent(&name, (&config, "the file"), now);
        let mut agent = agent.expect("a name");
        agent.team = Some(format!("team{}", number % 50));
        store.agents.add(&agent).await.expect("added");
        let key = agent_change::new_key((agent.id, agent.role), None, &config, now);
        store.keys.add(&key.expect("a key").1).await.expect("added");
    }
    for number in 0..inventory.servers {
        let document = json!({ "url": format!("http://127.0.0.1:9/{number}"), "enabled": false });
        let entry = ConfigEntry {
            key: EntryKey::new(EntrySection::Servers, format!("server{number}")),
            document: document.to_string(),
        };
        store.entries.add(&entry, now).await.expect("added");
    }
    record_calls(&config, (&store, &data.join("audit")), inventory.records).await;
    store.close().await;
}

/// Records calls of a thousand agents, as a gateway does.
async fn record_calls(config: &Config, (store, log_dir): (&Store, &Path), records: usize) {
    let audit = Arc::new(AuditLog::open(log_dir, config.audit).expect("a log opens"));
    let stored = store.agents.agents().await.expect("the store can be read");
    let agents: Vec<Agent> = stored.rows.into_iter().map(Agent::from).collect();
    let clients: Vec<_> = agents.iter().take(1_000).map(client).collect();
    let directory = AgentDirectory::new(config.governance.auth, [].into_iter());
    directory.update_store(agents, Vec::new());
    let books = Storage {
        directory: Arc::new(directory),
        audit: Arc::clone(&audit),
        budgets: None,
        seal: Seal::new(&[0; 32]),
        tasks: None,
    };
    let governance = Governance::new(config, books).expect("the terms can be used");
    let catalog = catalog(config);
    for number in 0..records {
        let wants = Interest {
            logs: LogFilter::None,
            progress_token: None,
        };
        let params = r#"{"name":"mcp_own_echo","arguments":{"message":"a"}}"#;
        let request = Request {
            id: Id::number(1),
            method: Method::ToolsCall,
            params: Some(Raw::from_static(params).into()),
        };
        let client = Arc::clone(&clients[number % clients.len()]);
        let (call, events) = Call::new(request, client, Scope::All, wants);
        let mut ticket = governance.open(&call);
        let routed = router::route(call, &catalog, &|_, _, _| true).expect("the tool is there");
        let admitted = governance.admit(routed, &mut ticket).await;
        drop(admitted.expect("every rule lets it pass"));
        let ending = CallOutcome::Answered(ServerAnswer {
            outcome: Ok(Raw::from_static(r#"{"content":[]}"#)),
            revision: Some("2025-11-25"),
            same_task_id: TaskIdScope::Shared,
        });
        drop((governance.settle(ticket, ending).await, events));
    }
    audit.close().expect("the log ends");
    let mut indexer = Indexer::new(log_dir, Arc::clone(&store.audit));
    indexer.catch_up().await.expect("the index follows");
}

fn client(agent: &Agent) -> Arc<Client> {
    let opening = ClientInfo {
        revision: Revision::LEGACY,
        info: Some(Raw::from_static(r#"{"name":"bench","version":"1.0.0"}"#)),
        display_name: OnceLock::new(),
        capabilities: Raw::from_static("{}"),
        profile: Arc::default(),
    };
    Arc::new(Client {
        agent: Arc::new(agent.clone()),
        client_info: Arc::new(opening),
        session: None,
        forwarded: None,
        missing_scopes: None,
    })
}

fn catalog(config: &Config) -> Catalog {
    let (server, of_config) = config.servers.first().expect("there is one server");
    let tool = r#"{"name":"echo","description":"Says it again.","inputSchema":{"type":"object"}}"#;
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
    Catalog::build(&config.naming, &[offer])
}
