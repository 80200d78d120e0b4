//! One cell of the measurement: one path, one era, so many connections, in a closed loop.
//!
//! `plan` runs the cells. Connections and sessions are opened and warmed before the clock starts,
//! and closed after it stops. A call that is answered wrongly is counted, and ends its connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    Fault,
    call::Era,
    client::{Client, Tool},
    process,
};

/// Longest time of a cell: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where calls of a path go, and whose CPU time they cost.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    /// Called in turn.
    pub(crate) tools: Arc<[Tool]>,
}

/// How much is asked of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) era: Era,
    pub(crate) connections: usize,
    pub(crate) calls: usize,
}

/// What a cell gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// CPU time of the process on the path, microseconds a call.
    pub(crate) cpu_us: f64,
    pub(crate) calls_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// What a cell gave, and what went wrong in it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) sample: Sample,
    pub(crate) faults: Vec<Fault>,
}

/// Runs `load` against `target`.
pub(crate) async fn run(target: &Target, load: Load) -> Result<Outcome, Fault> {
    timeout(PATIENCE, run_unbounded(target, load))
        .await
        .map_err(|_| "a cell hangs")?
}

async fn run_unbounded(target: &Target, load: Load) -> Result<Outcome, Fault> {
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        clients.push(Client::open(target.address, load.era, None).await?);
    }
    let warm = drive(clients, target, load.calls / 4).await?;
    let cpu_before = process::cpu_time(target.pid)?;
    let started = Instant::now();
    let run = drive(warm.clients, target, load.calls).await?;
    let wall = started.elapsed();
    let cpu = process::cpu_time(target.pid)?.saturating_sub(cpu_before);
    for client in run.clients {
        client.close().await?;
    }
    let mut latencies = run.latencies;
    latencies.sort_unstable();
    let answered = latencies.len().max(1) as f64;
    let sample = Sample {
        cpu_us: micros(cpu) / answered,
        calls_per_second: answered / wall.as_secs_f64(),
        p50_us: percentile(&latencies, 50),
        p99_us: percentile(&latencies, 99),
    };
    let faults = warm.faults.into_iter().chain(run.faults).collect();
    Ok(Outcome { sample, faults })
}

#[derive(Default)]
struct Run {
    clients: Vec<Client>,
    latencies: Vec<Duration>,
    faults: Vec<Fault>,
}

/// Has all `clients` make `calls` calls together, each the next one as soon as it can.
async fn drive(clients: Vec<Client>, target: &Target, calls: usize) -> Result<Run, Fault> {
    let taken = Arc::new(AtomicUsize::new(0));
    let mut running = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        let worker = Worker {
            number,
            tools: Arc::clone(&target.tools),
            taken: Arc::clone(&taken),
        };
        running.spawn(worker.drive(client, calls));
    }
    let mut all = Run::default();
    while let Some(one) = running.join_next().await {
        let one = one?;
        all.clients.extend(one.clients);
        all.latencies.extend(one.latencies);
        all.faults.extend(one.faults);
    }
    Ok(all)
}

struct Worker {
    number: usize,
    tools: Arc<[Tool]>,
    /// Calls that some worker has begun.
    taken: Arc<AtomicUsize>,
}

impl Worker {
    async fn drive(self, mut client: Client, calls: usize) -> Run {
        let mut latencies = Vec::with_capacity(calls);
        loop {
            let call = self.taken.fetch_add(1, Ordering::Relaxed);
            if call >= calls {
                break;
            }
            let started = Instant::now();
            let tool = &self.tools[call % self.tools.len()];
            if let Err(fault) = client.call(self.number, tool).await {
                return Run {
                    clients: Vec::new(),
                    latencies,
                    faults: vec![fault],
                };
            }
            latencies.push(started.elapsed());
        }
        Run {
            clients: vec![client],
            latencies,
            faults: Vec::new(),
        }
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().map_or(f64::NAN, micros)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
