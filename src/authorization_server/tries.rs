//! How often one address may try something.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::{lock::lock, names::PeerAddress};

/// Addresses that are told apart; while there are more, nobody new may try.
const ADDRESSES_MAX: usize = 10_000;

/// Counts tries by address, in windows of a minute.
#[derive(Debug)]
pub struct Tries {
    per_window: u32,
    counts: Mutex<HashMap<PeerAddress, (Instant, u32)>>,
}

impl Tries {
    /// The length of a window.
    pub const WINDOW: Duration = Duration::from_secs(60);

    /// Lets each address try so often in a window.
    pub fn new(per_window: u32) -> Self {
        Self {
            per_window,
            counts: Mutex::default(),
        }
    }

    /// Whether somebody at `address` may try; that counts as a try.
    pub fn admit(&self, address: PeerAddress) -> bool {
        let now = Instant::now();
        let mut counts = lock(&self.counts);
        let network = address.to_network();
        if counts.len() >= ADDRESSES_MAX && !counts.contains_key(&network) {
            counts.retain(|_, (since, _)| now.duration_since(*since) < Self::WINDOW);
            if counts.len() >= ADDRESSES_MAX {
                return false;
            }
        }
        let (since, count) = counts.entry(network).or_insert((now, 0));
        if now.duration_since(*since) >= Self::WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= self.per_window
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_address_may_try_so_often_in_a_minute() {
        let tries = Tries::new(2);
        let at = |last| PeerAddress::from(IpAddr::from([192, 0, 2, last]));
        assert!(tries.admit(at(1)) && tries.admit(at(1)));
        assert!(!tries.admit(at(1)), "one too many");
        assert!(tries.admit(at(2)), "another address");
        tokio::time::advance(Tries::WINDOW).await;
        assert!(tries.admit(at(1)), "another minute");
    }
}
