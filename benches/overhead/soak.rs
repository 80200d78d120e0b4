//! What very many sessions leave behind in the gateway: while they are idle, and after they ended.
//!
//! Called by `main` instead of `plan`. Two gateways, one after the other, so that the second starts
//! small and the little that each ended session might leave shows: the first holds sessions whose
//! clients are silent, then streams of some of them; the second sees sessions come, make a call and
//! go, over as few connections as a run can do with. Both are governed and audited, so that every
//! part that could keep something is there. The smoke run judges the growth as well, though so few
//! sessions show only a leak that is large.

use std::{future::Future, sync::Arc, time::Duration};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    Choice, Fault,
    call::Era,
    cell::Target,
    client::Client,
    figures::{Fact, Figures, GROWTH_PERCENT_MAX},
    gateway::{Rules, Servers, Stable, Transport},
    plan,
    process::{self, Process},
};

/// Clients that open sessions at the same time.
const CLIENTS: usize = 16;

/// Sessions that come before the first look, so that what is set up once is not counted.
const WARM: usize = 200;

/// Batches of the sessions that come and go; memory is looked at after each.
const BATCHES: usize = 20;

/// The batch that ends the first fifth.
const FIFTH: usize = BATCHES / 5;

/// Open files of each process beside those of streams.
const OTHER_FILES: u64 = 1_000;

/// Longest time of one part of the run: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// How many sessions and streams; only a soak looks at them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Amounts {
    /// Soak: idle sessions, 10,000 if not given.
    #[arg(long, value_name = "N", requires = "soak")]
    sessions: Option<usize>,

    /// Soak: streams that stand open, 1,000 if not given, each of a session of its own.
    #[arg(long, value_name = "N", requires = "soak")]
    streams: Option<usize>,

    /// Soak: sessions that are opened and ended, 100,000 if not given; a multiple of 20.
    #[arg(long, value_name = "N", requires = "soak")]
    churn: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    sessions: usize,
    streams: usize,
    churn: usize,
    settle: Duration,
}

impl Extent {
    fn of(choice: &Choice) -> Result<Self, Fault> {
        let (sessions, streams, churn, settle) = if choice.smoke {
            (200, 50, 1_000, Duration::from_millis(100))
        } else {
            (10_000, 1_000, 100_000, Duration::from_secs(2))
        };
        let extent = Self {
            sessions: choice.amounts.sessions.unwrap_or(sessions),
            streams: choice.amounts.streams.unwrap_or(streams),
            churn: choice.amounts.churn.unwrap_or(churn),
            settle,
        };
        if extent.streams == 0 || extent.streams > extent.sessions {
            return Err("there must be a stream, and a session for each".into());
        }
        if extent.churn == 0 || !extent.churn.is_multiple_of(BATCHES) {
            return Err(format!("--churn must be a multiple of {BATCHES}").into());
        }
        Ok(extent)
    }

    /// Raises the limit of open files for the streams, or holds fewer of them and says so.
    fn fit(mut self) -> Result<Self, Fault> {
        let wanted = self.streams;
        if let Some(most) = process::files_max() {
            let most = usize::try_from(most.saturating_sub(OTHER_FILES))?;
            self.streams = wanted.min(most);
        }
        if self.streams < wanted {
            println!(
                "only {} streams instead of {wanted}: the limit of open files (`ulimit -Hn`) is too low",
                self.streams
            );
        }
        if self.streams == 0 {
            return Err("not one stream fits below the limit of open files".into());
        }
        process::allow_files(u64::try_from(self.streams)? + OTHER_FILES)?;
        Ok(self)
    }
}

/// Holds and ends the sessions that `choice` asks for.
pub(crate) async fn run(choice: &Choice) -> Result<Figures, Fault> {
    let extent = Extent::of(choice)?.fit()?;
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let mut figures = Figures {
        machine: plan::machine()?,
        settings: format!(
            "soak, {build} build: {} idle sessions, {} streams, {} sessions opened and ended",
            extent.sessions, extent.streams, extent.churn
        ),
        groups: Vec::new(),
        facts: Vec::new(),
        faults: Vec::new(),
    };
    let stable = Stable::new(&choice.gateway)?;
    let echo = Process::echo(Era::Legacy).await?;
    let servers = Servers {
        era: Era::Legacy,
        transport: Transport::Http,
        count: 1,
        rules: Rules::Audited,
        echo: echo.address(),
        sessions: extent.sessions + WARM + CLIENTS,
    };
    figures
        .facts
        .extend(bounded(hold(servers, &stable, extent)).await?);
    let (facts, fault) = bounded(churn(servers, &stable, extent)).await?;
    figures.facts.extend(facts);
    figures.faults.extend(fault);
    echo.stop().await?;
    Ok(figures)
}

async fn bounded<T>(part: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    timeout(PATIENCE, part)
        .await
        .map_err(|_| "a part of the soak hangs")?
}

/// Memory of idle sessions, and of streams of some of them.
async fn hold(servers: Servers, stable: &Stable, extent: Extent) -> Result<[Fact; 2], Fault> {
    let gateway = servers.start(stable, "held").await?;
    let target = servers.ready(&gateway).await?;
    open_idle(&target, WARM).await?;
    let before = rest(&gateway, extent.settle).await?;
    let idle = open_idle(&target, extent.sessions).await?;
    let held = rest(&gateway, extent.settle).await?;
    let mut streams = JoinSet::new();
    for client in idle.iter().take(extent.streams) {
        let session = client.clone();
        let mut client = Client::connect(target.address, Era::Legacy, Some(session)).await?;
        let stream = client.listen().await?;
        streams.spawn(follow(client, stream));
    }
    let standing = rest(&gateway, extent.settle).await?;
    if let Some(ended) = streams.try_join_next() {
        return Err(format!("a stream that should stand has ended: {ended:?}").into());
    }
    // The figure would flatter a gateway that had dropped sessions meanwhile.
    for session in [idle.first(), idle.last()].into_iter().flatten() {
        let session = Some(session.clone());
        let mut client = Client::connect(target.address, Era::Legacy, session).await?;
        client.call(0, &target.tools[0]).await?;
    }
    drop(streams);
    gateway.stop().await?;
    let each = |name: &str, bytes: f64, count: usize| Fact {
        name: name.to_owned(),
        unit: "KiB",
        values: vec![bytes / count as f64 / 1024.0],
        target: None,
    };
    Ok([
        each(
            "idle session, after one call",
            held as f64 - before as f64,
            extent.sessions,
        ),
        each(
            "standing stream, with its connection",
            standing as f64 - held as f64,
            extent.streams,
        ),
    ])
}

/// Opens so many sessions, each of which makes one call and is silent then; their ids.
async fn open_idle(target: &Target, count: usize) -> Result<Vec<http::HeaderValue>, Fault> {
    let mut client = Client::connect(target.address, Era::Legacy, None).await?;
    let mut sessions = Vec::with_capacity(count);
    for number in 0..count {
        client.begin().await?;
        client.call(number, &target.tools[0]).await?;
        sessions.push(client.session().ok_or("`initialize` opens no session")?);
    }
    Ok(sessions)
}

/// Reads a stream to its end, which should not come.
async fn follow(client: Client, mut stream: Incoming) {
    while let Some(Ok(_)) = stream.frame().await {}
    drop(client);
}

/// Memory after sessions that have come and gone, and what is wrong with it.
async fn churn(
    servers: Servers,
    stable: &Stable,
    extent: Extent,
) -> Result<(Vec<Fact>, Option<Fault>), Fault> {
    let gateway = servers.start(stable, "churned").await?;
    let target = Arc::new(servers.ready(&gateway).await?);
    let batch = extent.churn / BATCHES;
    let mut after = Vec::with_capacity(BATCHES);
    let mut busy = Duration::ZERO;
    for _ in 0..BATCHES {
        let started = Instant::now();
        come_and_go(&target, batch).await?;
        busy += started.elapsed();
        after.push(rest(&gateway, extent.settle).await? as f64);
    }
    gateway.stop().await?;
    let (first, last) = (after[FIFTH - 1], after[BATCHES - 1]);
    let growth = (last / first - 1.0) * 100.0;
    let fault = (growth > GROWTH_PERCENT_MAX).then(|| {
        let after: Vec<String> = after.iter().map(|bytes| megabytes(*bytes)).collect();
        format!("memory grows with ended sessions, MB: {}", after.join(" ")).into()
    });
    let fact = |name: &str, unit, value, target| Fact {
        name: name.to_owned(),
        unit,
        values: vec![value],
        target,
    };
    let rate = (batch * BATCHES) as f64 / busy.as_secs_f64();
    let facts = vec![
        fact("sessions opened and ended", "/s", rate, None),
        fact("resident after a fifth of them", "MB", first / 1e6, None),
        fact("resident after all of them", "MB", last / 1e6, None),
        fact(
            "growth after the first fifth",
            "%",
            growth,
            Some(GROWTH_PERCENT_MAX),
        ),
    ];
    Ok((facts, fault))
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e6)
}

/// Has so many sessions opened, used once and ended.
async fn come_and_go(target: &Arc<Target>, count: usize) -> Result<(), Fault> {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let target = Arc::clone(target);
        let share = count / CLIENTS + usize::from(number < count % CLIENTS);
        clients.spawn(async move {
            let mut client = Client::connect(target.address, Era::Legacy, None).await?;
            for _ in 0..share {
                client.begin().await?;
                client.call(number, &target.tools[0]).await?;
                client.end().await?;
            }
            Ok::<(), Fault>(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

/// Resident memory once it had time to settle.
async fn rest(gateway: &Process, settle: Duration) -> Result<u64, Fault> {
    sleep(settle).await;
    gateway.resident()
}
