//! Views of the catalog for one conversation each.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::units::{Size, Time};

/// Views of the catalog for one conversation each, which agents make over the API.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ViewsConfig {
    /// Maximum number of views of one agent; 0 lets agents make none.
    #[schemars(range(min = 0, max = 10_000))]
    pub per_agent_max: usize,
    /// How long a view lives whose maker does not say; no longer than `ttl_max`.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "1s", "x-max" = "30d"))]
    pub ttl: Duration,
    /// How long a view may live at most, from the moment on when its maker last said how long.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "1s", "x-max" = "30d"))]
    pub ttl_max: Duration,
    /// Maximum size of what a view says, as JSON.
    #[serde(with = "Size")]
    #[schemars(extend("x-min" = "256B", "x-max" = "1MiB"))]
    pub size_max: usize,
}

impl Default for ViewsConfig {
    fn default() -> Self {
        Self {
            per_agent_max: 100,
            ttl: Duration::from_secs(60 * 60),
            ttl_max: Duration::from_secs(24 * 60 * 60),
            size_max: 16 << 10,
        }
    }
}
