//! Entries of a config that stand in the store instead of a file.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::config::{WrittenConfig, node::Span};

/// Where the entries of a config come from: nothing that the config says, so that all are equal.
#[derive(Clone, Debug, Default)]
pub struct EntryOrigins {
    /// Where in the files those stand that could be in the store as well.
    pub in_files: BTreeMap<EntryKey, FilePlace>,
    /// Those of the store that count.
    pub in_store: Vec<EntryKey>,
    /// Those of the store that do not count.
    pub faulty: Vec<FaultyEntry>,
    /// Why those of the store could not be read, if so: nobody knows then what the config is without them.
    pub unread: Option<String>,
    /// All of it as it is written; `None` for a config that was not read.
    pub written: Option<Arc<WrittenConfig>>,
    /// Where in it paths stand.
    pub(in crate::config) path_spans: Vec<Span>,
}

impl EntryOrigins {
    /// None, of a config that has paths there.
    pub(in crate::config) fn with_paths(path_spans: Vec<Span>) -> Self {
        Self {
            path_spans,
            ..Self::default()
        }
    }
}

impl PartialEq for EntryOrigins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Which section of the config an entry of the store belongs to.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum EntrySection {
    /// `[servers.NAME]`.
    Servers,
    /// `[profiles.NAME]`.
    Profiles,
    /// `[workspaces.NAME]`.
    Workspaces,
}

impl EntrySection {
    /// Every section that may have entries in the store.
    pub const ALL: [Self; 3] = [Self::Servers, Self::Profiles, Self::Workspaces];

    /// The key of the section.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Profiles => "profiles",
            Self::Workspaces => "workspaces",
        }
    }

    /// What one entry of it is, for people.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Servers => "server",
            Self::Profiles => "profile",
            Self::Workspaces => "workspace",
        }
    }

    /// The section with this key.
    pub fn parse(key: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|section| section.as_str() == key)
    }
}

/// Which entry: its section and its name there.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EntryKey {
    /// The section.
    pub section: EntrySection,
    /// The name, as a config file would have it: that of a server has its owner behind an `@`.
    pub name: String,
}

impl EntryKey {
    /// The entry `name` of `section`.
    pub fn new(section: EntrySection, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { section, name }
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.section.noun(), self.name)
    }
}

/// An entry as the store has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigEntry {
    /// Which one.
    pub key: EntryKey,
    /// JSON: what a config file would have below `SECTION.NAME`.
    pub document: String,
}

/// Where in a file something begins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FilePlace {
    /// The file, as it was named; `environment` for a variable that overrides a key.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}", self.file, self.line)
    }
}

/// An entry of the store that does not count, and why; whoever wrote it mends it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FaultyEntry {
    /// Which one.
    pub key: EntryKey,
    /// What is wrong with it, in one sentence.
    pub fault: String,
}
