//! The run: what is started, in which order cells follow one another, what else is looked at.
//!
//! Called by `main`. All paths of an era stand ready at once and take turns within a round, so
//! that what disturbs the machine for a while disturbs the ones that are compared alike.

use std::{fs, time::Duration};

use crate::{
    Choice, Fault,
    call::Era,
    cell::{self, Load, Target},
    client::Tool,
    echo,
    figures::{
        AUDITED_US_MAX, Fact, Figures, GOVERNED_US_MAX, Group, HTTP_RATIO_MAX, IDLE_MB_MAX, Row,
        SESSION_KIB_MAX, START_MS_MAX, STDIO_RATIO_MAX,
    },
    gateway::{Rules, Servers, Stable, Transport},
    idle, memory,
    process::{self, Process},
};

/// The name of the path that all others are compared with.
pub(crate) const BARE: &str = "bare proxy";

/// The name of the path without anything between client and server.
pub(crate) const DIRECT: &str = "direct";

const CONNECTIONS: [usize; 3] = [1, 16, 64];
const SERVERS: [usize; 2] = [1, 10];

/// Sessions that gateways of the cells must be able to hold.
const SESSIONS: usize = 10_000;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
struct Extent {
    rounds: usize,
    calls: usize,
    sessions: usize,
    starts: usize,
    settle: Duration,
}

impl Extent {
    fn of(choice: &Choice) -> Self {
        let usual = if choice.smoke {
            let settle = Duration::from_millis(100);
            Self {
                rounds: 1,
                calls: 200,
                sessions: 200,
                starts: 1,
                settle,
            }
        } else {
            let settle = Duration::from_secs(2);
            Self {
                // The machine itself differs by a third between rounds: many short ones say more than few long ones.
                rounds: 21,
                calls: 2_000,
                sessions: 2_000,
                starts: 7,
                settle,
            }
        };
        let rounds = choice.rounds.unwrap_or(usual.rounds).max(1);
        let calls = choice.calls.unwrap_or(usual.calls).max(1);
        Self {
            rounds,
            calls,
            ..usual
        }
    }
}

/// Measures what `choice` asks for.
pub(crate) async fn run(choice: &Choice) -> Result<Figures, Fault> {
    let extent = Extent::of(choice);
    let (build, form) = (
        if cfg!(debug_assertions) {
            "debug build"
        } else {
            "release build"
        },
        if choice.smoke {
            "smoke run, figures mean little"
        } else {
            "full run"
        },
    );
    let mut figures = Figures {
        machine: machine()?,
        settings: format!(
            "{build}, {form}: {} rounds of {} calls a path",
            extent.rounds, extent.calls
        ),
        groups: Vec::new(),
        facts: Vec::new(),
        faults: Vec::new(),
    };
    // Two ends of the connections of sessions, and as much again for everything else.
    process::allow_files(u64::try_from(extent.sessions)? + 1_000)?;
    let stable = Stable::new(&choice.gateway)?;
    for era in Era::ALL {
        if choice.era.is_none_or(|only| only == era) {
            measure_calls(era, choice, extent, &stable, &mut figures).await?;
        }
    }
    figures.facts = added(&figures.groups);
    if !choice.only_calls {
        figures.facts.extend(measure_rest(extent, &stable).await?);
    }
    if choice.smoke {
        figures.forget_targets();
    }
    Ok(figures)
}

/// A path, ready to be called.
struct Lane {
    name: String,
    target: Target,
    ratio_max: Option<f64>,
}

/// What governance adds to a call, where both paths were measured.
fn added(groups: &[Group]) -> Vec<Fact> {
    let mut facts = Vec::new();
    for group in groups {
        let row = |name: &str| group.rows.iter().find(|row| row.path == name);
        let Some(open) = row("http") else { continue };
        let governed = [
            ("http-governed", GOVERNED_US_MAX),
            ("http-audited", AUDITED_US_MAX),
        ];
        for (name, target) in governed {
            let Some(row) = row(name) else { continue };
            let rounds = row.samples.iter().zip(&open.samples);
            let values: Vec<f64> = rounds.map(|(own, open)| own.cpu_us - open.cpu_us).collect();
            facts.push(Fact {
                name: format!(
                    "{name} adds to a call, {}, {} connections",
                    group.era.name(),
                    group.connections
                ),
                unit: "us",
                target: (group.connections == 16).then_some(target),
                values,
            });
        }
    }
    facts
}

async fn measure_calls(
    era: Era,
    choice: &Choice,
    extent: Extent,
    stable: &Stable,
    figures: &mut Figures,
) -> Result<(), Fault> {
    let mut started = Vec::new();
    let lanes = start(era, choice, stable, &mut started).await?;
    let connections = if choice.connections.is_empty() {
        CONNECTIONS.to_vec()
    } else {
        choice.connections.clone()
    };
    let mut groups: Vec<Group> = connections
        .into_iter()
        .map(|connections| Group {
            era,
            connections,
            rows: lanes.iter().map(row).collect(),
        })
        .collect();
    for round in 0..extent.rounds {
        for group in &mut groups {
            let load = Load {
                era,
                connections: group.connections,
                calls: extent.calls,
            };
            // Nobody always comes first, or always after the same other.
            for turn in 0..lanes.len() {
                let index = (turn + round) % lanes.len();
                let outcome = cell::run(&lanes[index].target, load)
                    .await
                    .map_err(|fault| {
                        format!("{} calls, {}: {fault}", era.name(), lanes[index].name)
                    })?;
                group.rows[index].samples.push(outcome.sample);
                figures.faults.extend(outcome.faults);
            }
        }
    }
    figures.groups.extend(groups);
    for process in started {
        process.stop().await?;
    }
    Ok(())
}

fn row(lane: &Lane) -> Row {
    Row {
        path: lane.name.clone(),
        target: lane.ratio_max,
        samples: Vec::new(),
    }
}

/// Starts the paths of `era` that are asked for; their processes are added to `started`, in the
/// order in which they are to be stopped.
async fn start(
    era: Era,
    choice: &Choice,
    stable: &Stable,
    started: &mut Vec<Process>,
) -> Result<Vec<Lane>, Fault> {
    let echo = Process::echo(era).await?;
    let bare = Process::bare_proxy(choice.proxy.as_deref(), echo.address()).await?;
    let mut lanes = Vec::new();
    if choice.wants(DIRECT) {
        lanes.push(plain(DIRECT, &echo, era));
    }
    lanes.push(plain(BARE, &bare, era));
    for (count, transport, rules) in gateways() {
        let servers = Servers {
            era,
            transport,
            count,
            rules,
            echo: echo.address(),
            sessions: SESSIONS,
        };
        lanes.extend(start_gateway(servers, choice, stable, started).await?);
    }
    started.extend([bare, echo]);
    Ok(lanes)
}

/// The gateways that calls go through: what governance costs is seen on one of them.
fn gateways() -> impl Iterator<Item = (usize, Transport, Rules)> {
    let open = SERVERS
        .into_iter()
        .flat_map(|count| Transport::ALL.map(move |transport| (count, transport, Rules::Open)));
    let governed = Rules::ALL.into_iter().filter(|rules| *rules != Rules::Open);
    open.chain(governed.map(|rules| (1, Transport::Http, rules)))
}

/// The paths through one gateway. With several servers one of them is called, which shows what
/// the mere number costs; `-all` calls them in turn, so that each is woken for few calls at a time.
async fn start_gateway(
    servers: Servers,
    choice: &Choice,
    stable: &Stable,
    started: &mut Vec<Process>,
) -> Result<Vec<Lane>, Fault> {
    let (name, all) = (servers.name(), format!("{}-all", servers.name()));
    let spread = servers.count > 1 && choice.wants(&all);
    if !choice.wants(&name) && !spread {
        return Ok(Vec::new());
    }
    let purpose = format!("{}-{name}", servers.era.name());
    let gateway = servers.start(stable, &purpose).await?;
    let target = servers.ready(&gateway).await?;
    started.push(gateway);
    let ratio_max = match (servers.rules, servers.transport) {
        (Rules::Open, Transport::Http) => Some(HTTP_RATIO_MAX),
        (Rules::Open, Transport::Stdio) => Some(STDIO_RATIO_MAX),
        // Their targets are differences, see `added`.
        (Rules::Governed | Rules::Audited | Rules::Keyed, _) => None,
    };
    let mut lanes = Vec::new();
    if choice.wants(&name) {
        let tools = target.tools[..1].into();
        let target = Target {
            tools,
            ..target.clone()
        };
        lanes.push(Lane {
            name,
            target,
            ratio_max,
        });
    }
    if spread {
        lanes.push(Lane {
            name: all,
            target,
            ratio_max,
        });
    }
    Ok(lanes)
}

/// A path on which the echo server's tool has its own name.
fn plain(name: &str, process: &Process, era: Era) -> Lane {
    let tools = [Tool::new(echo::TOOL.to_owned(), era)].into();
    let target = Target {
        address: process.address(),
        pid: process.pid(),
        tools,
    };
    Lane {
        name: name.to_owned(),
        target,
        ratio_max: None,
    }
}

async fn measure_rest(extent: Extent, stable: &Stable) -> Result<Vec<Fact>, Fault> {
    let echo = Process::echo(Era::Legacy).await?;
    let mut facts = Vec::new();
    for count in SERVERS {
        for transport in Transport::ALL {
            let servers = Servers {
                era: Era::Legacy,
                transport,
                count,
                rules: Rules::Open,
                echo: echo.address(),
                sessions: SESSIONS,
            };
            let idle = idle::of_gateway(servers, stable, extent.starts, extent.settle).await?;
            let starts = idle.starts.iter().map(|start| start.as_secs_f64() * 1e3);
            facts.push(Fact {
                name: format!("spawn to listening, {}", servers.name()),
                unit: "ms",
                values: starts.collect(),
                target: Some(START_MS_MAX),
            });
            facts.push(Fact {
                name: format!("resident when idle, {}", servers.name()),
                unit: "MB",
                values: vec![idle.resident as f64 / 1e6],
                target: (count == 10).then_some(IDLE_MB_MAX),
            });
        }
    }
    let servers = Servers {
        era: Era::Legacy,
        transport: Transport::Http,
        count: 1,
        rules: Rules::Open,
        echo: echo.address(),
        sessions: SESSIONS,
    };
    facts.extend(session_facts(servers, stable, extent).await?);
    echo.stop().await?;
    Ok(facts)
}

async fn session_facts(
    servers: Servers,
    stable: &Stable,
    extent: Extent,
) -> Result<[Fact; 2], Fault> {
    let memory = memory::of_sessions(servers, stable, extent.sessions, extent.settle).await?;
    let fact = |name: &str, bytes: f64, target| Fact {
        name: name.to_owned(),
        unit: "KiB",
        values: vec![bytes / 1024.0],
        target,
    };
    Ok([
        fact(
            "idle session, connection closed",
            memory.closed,
            Some(SESSION_KIB_MAX),
        ),
        fact("idle session, connection kept alive", memory.kept, None),
    ])
}

/// Cores and model of the processor.
pub(crate) fn machine() -> Result<String, Fault> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| {
            rest.trim_start_matches([' ', '\t', ':'])
        });
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "{model}, {cores} cores, {} {}",
        std::env::consts::OS,
        std::env::consts::ARCH
    ))
}
