//! How far one call is, as its client hears of it.
//!
//! Read by whatever reads from the servers that a call is sent to, one after the other where it is sent
//! once more.

use std::sync::Mutex;

use crate::{lock::lock, mcp::Raw};

/// From here on not every whole number has a double of its own.
const EXACT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// What the client of one call hears of its progress.
#[derive(Debug)]
pub struct Progress {
    /// The token of the client, as it wrote it.
    pub token: Raw,
    /// How far the call was at last, whichever server said so.
    last: Mutex<Option<f64>>,
}

impl Progress {
    /// That of a call which has not begun, under the `token` of its client.
    pub fn new(token: Raw) -> Self {
        Self {
            token,
            last: Mutex::default(),
        }
    }

    /// Whether the progress that `params` say is more than all before, which it counts among from now on.
    /// Doubles of which nobody can tell may be.
    pub fn record_if_rising(&self, params: &Raw) -> bool {
        let progress = params.get("progress");
        let Some(progress) = progress.and_then(|it| it.as_str().parse::<f64>().ok()) else {
            return true;
        };
        let is_exact = progress.abs() < EXACT_INTEGER_MAX;
        let mut last = lock(&self.last);
        let has_risen = last.is_none_or(|last| {
            if is_exact {
                progress > last
            } else {
                progress >= last
            }
        });
        if has_risen {
            *last = Some(progress);
        }
        has_risen
    }
}
