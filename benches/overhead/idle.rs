//! What a gateway costs that nobody calls: the time until it listens, and the memory it rests in.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    Fault,
    gateway::{Servers, Stable},
};

#[derive(Clone, Debug)]
pub(crate) struct Idle {
    /// From before the start of the process to the line that says it listens, one for each start.
    pub(crate) starts: Vec<Duration>,
    /// Resident once every server is listed, bytes.
    pub(crate) resident: u64,
}

/// Starts a gateway in front of `servers` as many `times`, and looks at the last one.
pub(crate) async fn of_gateway(
    servers: Servers,
    stable: &Stable,
    times: usize,
    settle: Duration,
) -> Result<Idle, Fault> {
    let purpose = format!("idle-{}", servers.name());
    let mut idle = Idle {
        starts: Vec::with_capacity(times),
        resident: 0,
    };
    for time in 1..=times {
        let gateway = servers.start(stable, &purpose).await?;
        servers.ready(&gateway).await?;
        idle.starts.push(gateway.start);
        if time == times {
            sleep(settle).await;
            idle.resident = gateway.resident()?;
        }
        gateway.stop().await?;
    }
    Ok(idle)
}
