//! Rows of agents, keys and entries of the config that Tollbridge did not write.

use std::fmt;

/// Rows as they were read.
#[derive(Clone, Debug)]
pub struct StoredRows<T> {
    /// Those that are used.
    pub rows: Vec<T>,
    /// The others, which are ignored.
    pub refused: Vec<RefusedRow>,
}

impl<T> Default for StoredRows<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            refused: Vec::new(),
        }
    }
}

/// A row that is ignored.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct RefusedRow {
    /// What it would be.
    pub kind: RowKind,
    /// Its id, as it stands there; of an entry of the config, its section.
    pub id: String,
    /// The name of the agent or entry; of a key, the id of the agent.
    pub name: String,
    /// Why it is refused.
    pub why: RowFault,
}

/// Characters of an id and a name that are shown.
const SHOWN_CHARS_MAX: usize = 64;

/// What a row would be.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RowKind {
    /// An agent.
    Agent,
    /// An entry of the config.
    ConfigEntry,
    /// A key.
    Key,
}

/// Why a row is refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum RowFault {
    /// Its MAC is that of something else.
    #[error("its MAC is wrong: the row was edited, or `secret.key` was replaced")]
    MacMismatch,
    /// It is what it was before it was last changed, or removed.
    #[error("an older version of the row was restored")]
    RolledBack,
    /// It has no MAC.
    #[error("it has no MAC")]
    Unsigned,
}

impl RefusedRow {
    /// A row whose id and name may be anything: who wrote it is not known.
    pub(super) fn new(kind: RowKind, id: &[u8], name: &[u8], why: RowFault) -> Self {
        let shown = |bytes| {
            let text = String::from_utf8_lossy(bytes);
            text.chars().take(SHOWN_CHARS_MAX).collect()
        };
        Self {
            kind,
            id: shown(id),
            name: shown(name),
            why,
        }
    }

    /// What people call it.
    pub fn subject(&self) -> &str {
        match self.kind {
            RowKind::Agent | RowKind::ConfigEntry => &self.name,
            RowKind::Key => &self.id,
        }
    }
}

impl fmt::Display for RefusedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, why, .. } = self;
        match self.kind {
            RowKind::Agent => write!(f, "the agent `{name}` ({id}) of the store"),
            RowKind::ConfigEntry => write!(f, "the entry `{id}.{name}` of the store"),
            RowKind::Key => write!(f, "the key {id} (of {name}) of the store"),
        }?;
        write!(f, " is ignored because Tollbridge did not write it: {why}")
    }
}
