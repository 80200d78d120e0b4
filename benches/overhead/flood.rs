//! What is left to a paying agent while clients that may do nothing send all they can.
//!
//! Called by `main` instead of `plan`. The paying agent makes calls at a steady rate, and what is compared is how
//! many of them are answered in a second without a flood and during one, in turns. Those who send the flood are
//! another process of this program, and yield the processors to everybody else: what is measured is what the gateway
//! spends on them, not what they take from its machine.

use std::{net::SocketAddr, process::Stdio, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    Choice, Fault,
    call::Era,
    cell::Target,
    client::Client,
    figures::{Fact, Figures, LOST_PERCENT_MAX},
    gateway::{FLOODING_KEY, Rules, Servers, Stable, Transport},
    plan,
    process::{self, Process},
};

/// Connections of the paying agent.
const CLIENTS: usize = 4;
/// From one call of a connection to the next.
const PAUSE: Duration = Duration::from_millis(10);
/// Open files of each process beside those of the flood.
const OTHER_FILES: u64 = 1_000;
/// From the start of a flood until it counts.
const SETTLE: Duration = Duration::from_secs(1);
/// Longest time of one call.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a flood consists of.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Flood {
    /// Calls of an agent that may call nothing.
    RefusedCalls,
    /// Calls with a key that nobody has.
    UnknownKeys,
    /// Bodies that do not come to their end, of clients without a key.
    UnfinishedBodies,
    /// The same, of an agent, and large.
    LargeBodies,
    /// Connections on which nothing is said.
    SilentConnections,
}

impl Flood {
    const ALL: [Self; 5] = [
        Self::RefusedCalls,
        Self::UnknownKeys,
        Self::UnfinishedBodies,
        Self::LargeBodies,
        Self::SilentConnections,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::RefusedCalls => "refused-calls",
            Self::UnknownKeys => "unknown-keys",
            Self::UnfinishedBodies => "unfinished-bodies",
            Self::LargeBodies => "large-bodies",
            Self::SilentConnections => "silent-connections",
        }
    }

    fn connections(self) -> u16 {
        match self {
            Self::RefusedCalls | Self::UnknownKeys => 32,
            Self::LargeBodies => 300,
            Self::UnfinishedBodies | Self::SilentConnections => 900,
        }
    }

    /// What each connection sends, again and again where it is answered.
    fn request(self, address: SocketAddr) -> Vec<u8> {
        const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_echo_echo","arguments":{"text":""}}}"#;
        let (key, length, body) = match self {
            Self::RefusedCalls => (FLOODING_KEY, CALL.len(), CALL.to_owned()),
            Self::UnknownKeys => ("tbk_unknown_0000000000000000", CALL.len(), CALL.to_owned()),
            Self::UnfinishedBodies => ("", 4_000_000, CALL.to_owned()),
            Self::LargeBodies => (FLOODING_KEY, 4_000_000, "x".repeat(3_900_000)),
            Self::SilentConnections => return Vec::new(),
        };
        let authorization = match key {
            "" => String::new(),
            key => format!("authorization: Bearer {key}\r\n"),
        };
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\n{authorization}content-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        request.into_bytes()
    }
}

/// Sends a flood until this process is killed.
pub(crate) fn send(flood: Flood, address: SocketAddr) -> Result<(), Fault> {
    rustix::process::nice(19)?;
    process::allow_files(u64::from(flood.connections()) + OTHER_FILES)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let request = Arc::new(flood.request(address));
    runtime.block_on(async {
        let mut connections = JoinSet::new();
        for _ in 0..flood.connections() {
            connections.spawn(connection(address, Arc::clone(&request)));
        }
        connections.join_all().await;
    });
    Ok(())
}

/// Sends `request` as often as it is answered, and connects anew when that ends.
async fn connection(address: SocketAddr, request: Arc<Vec<u8>>) {
    let mut answer = vec![0; 4096];
    loop {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            while stream.write_all(&request).await.is_ok() {
                let Ok(1..) = stream.read(&mut answer).await else {
                    break;
                };
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Measures these floods in rounds, or all where none is named.
pub(crate) async fn run(choice: &Choice, floods: &[Flood]) -> Result<Figures, Fault> {
    let (rounds, window) = if choice.smoke {
        (1, Duration::from_secs(1))
    } else {
        (5, Duration::from_secs(5))
    };
    let rounds = choice.rounds.unwrap_or(rounds);
    let mut figures = Figures {
        machine: plan::machine()?,
        settings: format!(
            "flood: {CLIENTS} connections with a call each {} ms, {rounds} rounds of {} s",
            PAUSE.as_millis(),
            window.as_secs()
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
        rules: Rules::Keyed,
        echo: echo.address(),
        sessions: 100,
    };
    let gateway = servers.start(&stable, "flooded").await?;
    let target = servers.ready(&gateway).await?;
    let floods = if floods.is_empty() {
        &Flood::ALL
    } else {
        floods
    };
    for flood in floods.iter().copied() {
        let mut lost = Vec::new();
        for _ in 0..rounds {
            let calm = calls_in(&target, window).await?;
            let _flood = start(flood, target.address)?;
            sleep(SETTLE).await;
            let flooded = calls_in(&target, window).await?;
            lost.push((1.0 - flooded / calm) * 100.0);
        }
        figures.facts.push(Fact {
            name: format!("throughput lost under {}", flood.name()),
            unit: "%",
            values: lost,
            target: Some(LOST_PERCENT_MAX),
        });
    }
    figures.facts.push(Fact {
        name: "resident after the floods".to_owned(),
        unit: "MB",
        values: vec![gateway.resident()? as f64 / 1e6],
        target: None,
    });
    gateway.stop().await?;
    echo.stop().await?;
    Ok(figures)
}

fn start(flood: Flood, address: SocketAddr) -> Result<Child, Fault> {
    Ok(Command::new(std::env::current_exe()?)
        .args([
            "flood",
            "--flood",
            flood.name(),
            "--address",
            &address.to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?)
}

/// Calls of the paying agent that are answered in a second.
async fn calls_in(target: &Target, window: Duration) -> Result<f64, Fault> {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = Client::open(target.address, Era::Legacy, Rules::Keyed.key()).await?;
        let tool = target.tools[0].clone();
        clients.spawn(async move {
            let mut ticks = interval(PAUSE);
            // Who was served late goes on at once, so that only what a second cannot hold is lost.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let (started, mut answered) = (Instant::now(), 0_u32);
            while started.elapsed() < window {
                ticks.tick().await;
                timeout(PATIENCE, client.call(number, &tool)).await??;
                answered += 1;
            }
            let rate = f64::from(answered) / started.elapsed().as_secs_f64();
            client.close().await?;
            Ok::<_, Fault>(rate)
        });
    }
    let mut rate = 0.0;
    while let Some(done) = clients.join_next().await {
        rate += done??;
    }
    Ok(rate)
}
