//! A server as it is written: `[servers.X]`.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::{Server, model::transport::TransportSection, units::Time};

/// One server: a program (`command`), a URL (`url`), `replicas`, or the built-in toolbox
/// (`transport = "builtin"`).
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct ServerSection {
    #[serde(flatten)]
    pub(in crate::config) transport: TransportSection,
    /// How long an unused connection besides the catalog connection is kept. Default: 10m. When it
    /// is set for a program, the catalog connection is stopped too: its items stay listed, and the
    /// next call starts the program again.
    pub(in crate::config) idle_timeout: Option<Time>,
    /// Time limit of a call even with progress notifications. Default: 10m, or `timeout` if that is
    /// longer.
    pub(in crate::config) max_total_timeout: Option<Time>,
    /// Instances of the same server in order of preference, instead of `command` or `url`.
    pub(in crate::config) replicas: Vec<ReplicaSection>,
    #[serde(flatten)]
    pub(in crate::config) server: Server,
}

/// One replica: a program or a URL.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct ReplicaSection {
    /// Name in `route`, `/status` and metrics. Default: its number, from 1.
    pub(in crate::config) name: Option<String>,
    /// Location, any string such as `eu-1`.
    pub(in crate::config) locality: Option<String>,
    #[serde(flatten)]
    pub(in crate::config) transport: TransportSection,
}
