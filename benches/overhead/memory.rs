//! The memory that a legacy session holds while its client is silent and has no stream open.
//!
//! Every session has made one call, since a client that never calls is none. Two ways to be idle
//! are told apart: the connection is closed, as after a client that reads its answer and hangs
//! up, or it is kept alive, in which case the figure holds the connection as well.

use std::time::Duration;

use http::HeaderValue;
use tokio::time::sleep;

use crate::{
    Fault,
    call::Era,
    cell::Target,
    client::Client,
    gateway::{Servers, Stable},
    process::Process,
};

/// Sessions that come before the first look, so that what is set up once is not counted.
const WARM: usize = 200;

/// What a session holds, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionMemory {
    pub(crate) closed: f64,
    pub(crate) kept: f64,
}

/// Opens `count` sessions of each kind at a gateway in front of `servers`.
pub(crate) async fn of_sessions(
    servers: Servers,
    stable: &Stable,
    count: usize,
    settle: Duration,
) -> Result<SessionMemory, Fault> {
    let servers = Servers {
        sessions: 2 * count + WARM + 1,
        ..servers
    };
    let gateway = servers.start(stable, "sessions").await?;
    let target = servers.ready(&gateway).await?;
    let first = open(&target, 0).await?.session();
    for number in 1..WARM {
        drop(open(&target, number).await?);
    }

    let before = rest(&gateway, settle).await?;
    for number in 0..count {
        drop(open(&target, number).await?);
    }
    let closed = rest(&gateway, settle).await?;
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        clients.push(open(&target, number).await?);
    }
    let kept = rest(&gateway, settle).await?;

    expect_alive(&target, first).await?;
    drop(clients);
    gateway.stop().await?;
    let each = |from: u64, to: u64| (to as f64 - from as f64) / count as f64;
    Ok(SessionMemory {
        closed: each(before, closed),
        kept: each(closed, kept),
    })
}

async fn open(target: &Target, number: usize) -> Result<Client, Fault> {
    let mut client = Client::open(target.address, Era::Legacy, None).await?;
    client.call(number, &target.tools[0]).await?;
    Ok(client)
}

/// Resident memory once it had time to settle.
async fn rest(gateway: &Process, settle: Duration) -> Result<u64, Fault> {
    sleep(settle).await;
    gateway.resident()
}

/// The figure would flatter a gateway that had dropped the oldest sessions meanwhile.
async fn expect_alive(target: &Target, session: Option<HeaderValue>) -> Result<(), Fault> {
    let session = session.ok_or("`initialize` opens no session")?;
    let mut client = Client::connect(target.address, Era::Legacy, Some(session)).await?;
    client.call(0, &target.tools[0]).await
}
