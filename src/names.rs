//! Newtypes for the names and ids that travel through the gateway.
//!
//! Each is checked once, where it enters (config, wire), and is infallible afterwards.

use std::{fmt, sync::Arc};

/// The name of a configured server, unique among servers; letters, digits, `_`, `-` and `.`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServerName(Arc<str>);

impl ServerName {
    /// The longest accepted name, in characters.
    pub const LENGTH_MAX: usize = 64;

    /// Checks `name`.
    ///
    /// # Errors
    /// Says which rule `name` breaks.
    pub fn parse(name: &str) -> Result<Self, InvalidServerName> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > Self::LENGTH_MAX {
            return Err(InvalidServerName::Length { found: name.len() });
        }
        if let Some(found) = name.chars().find(|c| !legal(*c)) {
            return Err(InvalidServerName::Character { found });
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl serde::Serialize for ServerName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Why a server name was refused; the operator mends it in the config.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidServerName {
    /// A character that URLs or tool names cannot carry.
    #[error("`{found}` is not allowed in a server name (letters, digits, `_`, `-` and `.` are)")]
    Character {
        /// The first offending character.
        found: char,
    },
    /// Empty, or longer than [`ServerName::LENGTH_MAX`].
    #[error("a server name has 1 to 64 characters, this one has {found}")]
    Length {
        /// The length found, in bytes.
        found: usize,
    },
}

/// Which part of the catalog a route shows.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Scope {
    /// Everything, merged, under exposed names.
    All,
    /// One server, under its own names.
    Server(ServerName),
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
pub fn strict(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}
