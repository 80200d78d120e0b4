//! Newtypes for the names and ids that travel through the gateway.
//!
//! Each is checked once, where it enters (config, wire), and is infallible afterwards.

mod owners;
mod peer_address;
mod secret_name;
mod server_name;

use std::{fmt, str::FromStr, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use owners::{OwnerIndex, OwnerSet};
pub use peer_address::PeerAddress;
pub use secret_name::{InvalidSecretName, SecretName};
pub(crate) use server_name::OWNER_MARK;
pub use server_name::{
    InvalidName, InvalidServerName, ServerId, ServerName, ServerOwner, WorkspaceName,
};

/// Which part of the catalog a route shows.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Scope {
    /// Everything, merged, under exposed names.
    All,
    /// What one profile shows of it, under the names that the profile gives.
    Profile(ProfileName),
    /// One server, under its own names.
    Server(ServerName),
    /// What one view shows, under the names of its profile.
    View {
        /// The view.
        id: ViewId,
        /// Its profile, whose policy holds there; `None` for a view without one, and before it is known who asks.
        profile: Option<ProfileName>,
    },
}

impl Scope {
    /// The profile whose rules hold on the route.
    pub fn profile(&self) -> Option<&ProfileName> {
        match self {
            Self::Profile(profile) => Some(profile),
            Self::View { profile, .. } => profile.as_ref(),
            Self::All | Self::Server(_) => None,
        }
    }

    /// The view whose route it is.
    pub fn view(&self) -> Option<ViewId> {
        match self {
            Self::View { id, .. } => Some(*id),
            Self::All | Self::Profile(_) | Self::Server(_) => None,
        }
    }
}

/// A view of the catalog for one conversation, written `view_<uuidv7>`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ViewId(pub Uuid);

impl ViewId {
    const PREFIX: &str = "view_";

    /// Reads an id; `None` for what is none.
    pub fn parse(text: &str) -> Option<Self> {
        let id = Self(Uuid::parse_str(text.strip_prefix(Self::PREFIX)?).ok()?);
        // Another spelling would be another URL of the same route.
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

/// The identity being governed, written `agent_<uuid>`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AgentId(pub Uuid);

impl AgentId {
    /// The agent of callers that present no credential; the same everywhere.
    pub const ANONYMOUS: Self = Self(Uuid::nil());

    pub(crate) const PREFIX: &str = "agent_";

    /// The id of an agent that is known by its name only: the UUIDv5 of the name.
    pub fn from_name(name: &str) -> Self {
        Self(Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

impl FromStr for AgentId {
    type Err = InvalidAgentId;

    fn from_str(text: &str) -> Result<Self, InvalidAgentId> {
        let uuid = text.strip_prefix(Self::PREFIX).ok_or(InvalidAgentId)?;
        Uuid::parse_str(uuid).map(Self).map_err(|_| InvalidAgentId)
    }
}

impl Serialize for AgentId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AgentId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// A text that is no agent id; its writer mends it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an agent id is `agent_` and a UUID")]
pub struct InvalidAgentId;

/// What is kept of the id that a server gave to a task: its SHA-256, which is short however long the id
/// is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TaskHash(pub [u8; 32]);

impl TaskHash {
    /// The hash of an id.
    pub fn of(id: &str) -> Self {
        Self(Sha256::digest(id.as_bytes()).into())
    }
}

/// One governed call, written `inv_<uuidv7>`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct InvocationId(pub Uuid);

impl InvocationId {
    /// When the call began, to the millisecond; nothing when the id is not of our making.
    pub fn started_at(self) -> Option<Timestamp> {
        uuid_time(self.0)
    }
}

/// When a UUIDv7 was made, to the millisecond.
pub(crate) fn uuid_time(id: Uuid) -> Option<Timestamp> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    Timestamp::new(seconds.try_into().ok()?, nanos.try_into().ok()?).ok()
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inv_{}", self.0)
    }
}

/// The name of a profile; the rules of server names hold, since it stands in URLs.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ProfileName(Arc<str>);

impl ProfileName {
    /// Checks `name`.
    ///
    /// # Errors
    /// Says which rule `name` breaks.
    pub fn parse(name: &str) -> Result<Self, InvalidName> {
        server_name::check_name(name)?;
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for ProfileName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ProfileName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Schemes that hosts dispatch on; they stay in front and the prefix becomes the first segment.
pub const HOST_SCHEMES: [&str; 2] = ["ui", "skill"];

/// The prefix that `name` has in URIs: lower case, `-` for what a scheme cannot carry, `s-` in front
/// of what no scheme begins with and of the schemes that keep their meaning for hosts.
pub fn uri_prefix(name: &str) -> String {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
    let mapped: String = name
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if legal(c) { c } else { '-' })
        .collect();
    let letter_first = mapped.starts_with(|c: char| c.is_ascii_lowercase());
    if letter_first && !HOST_SCHEMES.contains(&mapped.as_str()) {
        mapped
    } else {
        format!("s-{mapped}")
    }
}

/// What stands for `c` in names of the strict charset: itself when it is a letter, digit or `_`.
pub fn to_strict_char(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}
