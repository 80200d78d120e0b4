//! What the gateway may reach on behalf of others: by URLs that come from documents, issuers, clients and API calls.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{
    EnvironmentProxies,
    units::{Size, Time},
};

/// The format of the schema for an [`EgressTarget`].
pub(in crate::config) const EGRESS_FORMAT: &str = "egress-target";

/// Limits on requests to URLs that the gateway learns from documents, issuers, clients and API calls: OAuth
/// metadata, keys of issuers, client metadata.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Egress {
    /// Hosts, addresses and networks (`10.1.0.0/16`) that may be reached although they are private, loopback,
    /// link-local or metadata services of clouds, and without TLS. Hosts of URLs in the config count as listed,
    /// except for link-local addresses and metadata services: no server there is connected to unless it is listed.
    pub allow: Vec<EgressTarget>,
    /// Maximum size of a response.
    #[serde(with = "Size")]
    pub response: usize,
    /// Time limit of a request, redirects included.
    #[serde(with = "Time")]
    pub timeout: Duration,
    /// The proxies of the environment.
    #[serde(skip)]
    pub proxies: EnvironmentProxies,
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            response: 1 << 20,
            timeout: Duration::from_secs(10),
            proxies: EnvironmentProxies::default(),
        }
    }
}

/// A place that may be reached although it is private.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String", extend("format" = EGRESS_FORMAT))]
pub enum EgressTarget {
    /// A host, in small letters.
    Host(String),
    /// A network; one address is a network of its own.
    Network(IpNet),
}

/// Why a text is no [`EgressTarget`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a host name, an address or a network such as 10.1.0.0/16")]
pub struct InvalidEgressTarget;

impl FromStr for EgressTarget {
    type Err = InvalidEgressTarget;

    fn from_str(text: &str) -> Result<Self, InvalidEgressTarget> {
        let text = text.trim();
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network.trunc()));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let is_host = !text.is_empty() && text.chars().all(is_name);
        is_host
            .then(|| Self::Host(text.to_ascii_lowercase()))
            .ok_or(InvalidEgressTarget)
    }
}

impl fmt::Display for EgressTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => f.write_str(host),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            Self::Network(network) => network.fmt(f),
        }
    }
}

impl TryFrom<String> for EgressTarget {
    type Error = InvalidEgressTarget;

    fn try_from(text: String) -> Result<Self, InvalidEgressTarget> {
        text.parse()
    }
}

impl From<EgressTarget> for String {
    fn from(target: EgressTarget) -> Self {
        target.to_string()
    }
}
