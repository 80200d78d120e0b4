//! The tree that every format is read into: values with the place they were written at.
//!
//! The readers (`toml`, `yaml`, `json`, `environment`) make it, the later stages of loading change
//! it, and `decode` turns it into the types of `file`. A value keeps the span of the text it came
//! from through all of that, so that a mistake found late still points at what was written.

use indexmap::IndexMap;

use super::EntryKey;

/// A stretch of one source, in bytes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Span {
    /// Index into [`super::diagnostics::report::ConfigTexts`].
    pub(super) source: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(super) fn new(source: usize, range: std::ops::Range<usize>) -> Self {
        Self {
            source,
            start: range.start,
            end: range.end,
        }
    }

    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.start..self.end
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.source == other.source && self.start <= other.start && other.end <= self.end
    }
}

/// One value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) value: ConfigValue,
    pub(super) origin: ValueOrigin,
    /// The text as anybody may see it, with the names of variables for their values; where it is no other
    /// than `value`, nothing.
    pub(super) shown: Option<String>,
}

/// How a value came to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ValueOrigin {
    /// A variable in it has no value, or it is an item of a list that cannot be there; reported
    /// already, so that the value is left out silently.
    Invalid,
    /// The value of an environment variable that overrides a key: text, whatever the key's type.
    Environment,
    /// A string that holds the value of a variable; it is text too, and never quoted in messages.
    Variable,
    /// Text of the file.
    Written,
}

impl ValueOrigin {
    /// Whether the text may stand for a number or a boolean.
    pub(super) fn is_untyped(self) -> bool {
        matches!(self, Self::Environment | Self::Variable)
    }
}

/// What a value is.
#[derive(Clone, Debug)]
pub(super) enum ConfigValue {
    Bool(bool),
    Float(f64),
    Integer(i64),
    List(Vec<Node>),
    Null,
    Table(ConfigTable),
    Text(String),
}

/// The entries of a table, in the order they were written.
pub(super) type ConfigTable = IndexMap<String, TableEntry>;

/// One entry of a table.
#[derive(Clone, Debug)]
pub(super) struct TableEntry {
    /// Where the key stands.
    pub(super) key: Span,
    pub(super) node: Node,
}

impl Default for Node {
    fn default() -> Self {
        Self::empty()
    }
}

impl Node {
    pub(super) fn new(span: Span, value: ConfigValue) -> Self {
        Self {
            span,
            value,
            origin: ValueOrigin::Written,
            shown: None,
        }
    }

    /// An empty table that stands nowhere, for merging into.
    pub(super) fn empty() -> Self {
        Self::new(Span::new(0, 0..0), ConfigValue::Table(ConfigTable::new()))
    }

    /// Puts the entry `key` of the store, whose document is `node`, into this config.
    pub(super) fn insert_entry(&mut self, key: &EntryKey, node: Self) {
        let span = node.span;
        let entry = |node| TableEntry { key: span, node };
        let Some(top) = self.as_table_mut() else {
            return;
        };
        let section = top
            .entry(key.section.as_str().to_owned())
            .or_insert_with(|| entry(Self::new(span, ConfigValue::Table(ConfigTable::new()))));
        // What is no section is told as that.
        if let Some(section) = section.node.as_table_mut() {
            section.insert(key.name.clone(), entry(node));
        }
    }

    /// Takes the server `name` out of this config.
    pub(super) fn remove_server(&mut self, name: &str) {
        let servers = self.as_table_mut().and_then(|top| top.get_mut("servers"));
        if let Some(servers) = servers.and_then(|servers| servers.node.as_table_mut()) {
            servers.shift_remove(name);
        }
    }

    /// A config that has only the server `entry`.
    pub(super) fn one_server(name: &str, entry: &TableEntry) -> Self {
        let table = |key: &str, entry: TableEntry| {
            ConfigValue::Table([(key.to_owned(), entry)].into_iter().collect())
        };
        let servers = Self::new(entry.node.span, table(name, entry.clone()));
        let servers = TableEntry {
            key: entry.key,
            node: servers,
        };
        Self::new(entry.node.span, table("servers", servers))
    }

    pub(super) fn as_table(&self) -> Option<&ConfigTable> {
        if let ConfigValue::Table(table) = &self.value {
            Some(table)
        } else {
            None
        }
    }

    pub(super) fn as_table_mut(&mut self) -> Option<&mut ConfigTable> {
        if let ConfigValue::Table(table) = &mut self.value {
            Some(table)
        } else {
            None
        }
    }

    pub(super) fn as_list(&self) -> Option<&Vec<Node>> {
        if let ConfigValue::List(list) = &self.value {
            Some(list)
        } else {
            None
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let ConfigValue::Text(text) = &self.value {
            Some(text)
        } else {
            None
        }
    }

    /// Whether this is `true`, be it as text.
    pub(super) fn is_true(&self) -> bool {
        let text = self.as_text().map(str::trim);
        matches!(self.value, ConfigValue::Bool(true)) || text == Some("true")
    }

    /// The values in this list or table.
    pub(super) fn children(&self) -> impl Iterator<Item = &Node> {
        let (items, entries) = match &self.value {
            ConfigValue::List(list) => (Some(list), None),
            ConfigValue::Table(table) => (None, Some(table)),
            ConfigValue::Bool(_)
            | ConfigValue::Float(_)
            | ConfigValue::Integer(_)
            | ConfigValue::Null
            | ConfigValue::Text(_) => (None, None),
        };
        let entries = entries.into_iter().flat_map(|table| table.values());
        items
            .into_iter()
            .flatten()
            .chain(entries.map(|entry| &entry.node))
    }

    /// Whether this is neither a list nor a table.
    pub(super) fn is_leaf(&self) -> bool {
        !matches!(self.value, ConfigValue::List(_) | ConfigValue::Table(_))
    }

    /// The entry `key`, when this is a table that has it.
    pub(super) fn get(&self, key: &str) -> Option<&TableEntry> {
        self.as_table()?.get(key)
    }

    /// What the value is, for people: "a string".
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            ConfigValue::Bool(_) => "a boolean",
            ConfigValue::Float(_) => "a number",
            ConfigValue::Integer(_) => "a whole number",
            ConfigValue::List(_) => "a list",
            ConfigValue::Null => "null",
            ConfigValue::Table(_) => "a table",
            ConfigValue::Text(_) => "a string",
        }
    }

    /// Marks the items of lists that are not in `conforming`, which is this without what is wrong,
    /// so that [`ValuePath::item_at`] finds the others by their places there.
    ///
    /// The text of a variable becomes the list or table that it turned out to be.
    pub(super) fn mark_removed_items(&mut self, conforming: &Self) {
        let is_text = self.origin == ValueOrigin::Environment && self.as_text().is_some();
        if is_text && conforming.as_text().is_none() {
            *self = conforming.clone();
            return;
        }
        match (&mut self.value, &conforming.value) {
            (ConfigValue::List(items), ConfigValue::List(kept)) => {
                let mut kept = kept.iter().peekable();
                for item in items {
                    match kept.next_if(|kept| kept.span == item.span) {
                        Some(kept) => item.mark_removed_items(kept),
                        None => item.origin = ValueOrigin::Invalid,
                    }
                }
            }
            (ConfigValue::Table(entries), ConfigValue::Table(kept)) => {
                for (key, entry) in entries {
                    if let Some(kept) = kept.get(key) {
                        entry.node.mark_removed_items(&kept.node);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether this is an `auth` of its own, and no `type` alone from a variable, which stands beside
    /// the variables of its other keys.
    fn is_complete_auth(&self) -> bool {
        let is_alone = self.as_table().is_some_and(|table| table.len() == 1);
        self.get("type")
            .is_some_and(|kind| !is_alone || kind.node.origin != ValueOrigin::Environment)
    }

    /// Lays `other` over this: tables merge key by key, everything else is replaced.
    ///
    /// A null removes the key, so that the default holds again. An `auth` that says with `type` what
    /// it is replaces the other, whose keys need not be its own.
    pub(super) fn merge_over(&mut self, other: Self) {
        match (&mut self.value, other.value) {
            (ConfigValue::Table(below), ConfigValue::Table(above)) => merge_tables(below, above),
            (below, above) => {
                *below = above;
                self.span = other.span;
                self.origin = other.origin;
                self.shown = other.shown;
            }
        }
    }
}

fn merge_tables(below: &mut ConfigTable, above: ConfigTable) {
    for (name, entry) in above {
        if matches!(entry.node.value, ConfigValue::Null) {
            below.shift_remove(&name);
            continue;
        }
        let replaces = name == "auth" && entry.node.is_complete_auth();
        match below.get_mut(&name) {
            Some(old) if !replaces => {
                // A section stays where it was begun.
                if old.node.as_table().is_none() || entry.node.as_table().is_none() {
                    old.key = entry.key;
                }
                old.node.merge_over(entry.node);
            }
            _ => {
                below.insert(name, entry);
            }
        }
    }
}

/// A value together with its path and its key, for messages about it.
#[derive(Clone, Debug)]
pub(super) struct ValuePath<'t> {
    node: Option<&'t Node>,
    key: Option<Span>,
    path: String,
}

impl<'t> ValuePath<'t> {
    pub(super) fn root(node: &'t Node) -> Self {
        Self {
            node: Some(node),
            key: None,
            path: String::new(),
        }
    }

    /// The place of `key` in this table, whether it is written or not.
    pub(super) fn child(&self, key: &str) -> ValuePath<'t> {
        let entry = self.node.and_then(|node| node.get(key));
        ValuePath {
            node: entry.map(|entry| &entry.node),
            key: entry.map(|entry| entry.key).or(self.key),
            path: join_path(&self.path, key),
        }
    }

    /// How many items of this list were not left out.
    pub(super) fn item_count(&self) -> usize {
        let items = self.node.and_then(Node::as_list).into_iter().flatten();
        items
            .filter(|item| item.origin != ValueOrigin::Invalid)
            .count()
    }

    /// The place of the item `index` of this list, not counting those that were left out of it; its
    /// path does.
    pub(super) fn item_at(&self, index: usize) -> ValuePath<'t> {
        let items = self.node.and_then(Node::as_list).into_iter().flatten();
        let mut kept = items
            .enumerate()
            .filter(|(_, item)| item.origin != ValueOrigin::Invalid);
        let (written, node) = kept.nth(index).unzip();
        ValuePath {
            node,
            key: self.key,
            path: format!("{}[{}]", self.path, written.unwrap_or(index)),
        }
    }

    /// Whether the value is written at all.
    pub(super) fn is_written(&self) -> bool {
        self.node
            .is_some_and(|node| !matches!(node.value, ConfigValue::Null))
    }

    /// Whether the value is written, and no empty list or table.
    pub(super) fn has_content(&self) -> bool {
        self.is_written()
            && self
                .node
                .is_some_and(|node| node.is_leaf() || node.children().next().is_some())
    }

    /// Whether the text may be shown in a message.
    pub(super) fn is_quotable(&self) -> bool {
        self.node
            .is_none_or(|node| node.origin != ValueOrigin::Variable)
    }

    /// Whether the value stands in a file as it is.
    pub(super) fn is_literal(&self) -> bool {
        self.node
            .is_none_or(|node| node.origin == ValueOrigin::Written)
    }

    /// The text as anybody may see it, but for what looks secret in it; nothing when an environment
    /// variable that overrides the key gave it.
    pub(super) fn displayed(&self) -> Option<&'t str> {
        let node = self.node?;
        match node.origin {
            ValueOrigin::Environment => None,
            ValueOrigin::Invalid | ValueOrigin::Variable | ValueOrigin::Written => {
                node.shown.as_deref().or(node.as_text())
            }
        }
    }

    /// The text, when it is one.
    pub(super) fn text(&self) -> Option<&'t str> {
        self.node.and_then(Node::as_text)
    }

    /// All of the value, also of a table.
    pub(super) fn full_span(&self) -> Option<Span> {
        self.node.map(|node| node.span).or(self.key)
    }

    /// The keys of this table.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'t str> + use<'t> {
        let table = self.node.and_then(Node::as_table);
        table
            .into_iter()
            .flat_map(|table| table.keys())
            .map(String::as_str)
    }

    /// `servers.github.url`.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// What to mark: the value, or the key of a table, or of what encloses an absent value.
    pub(super) fn span(&self) -> Option<Span> {
        match self.node {
            Some(node) if !matches!(node.value, ConfigValue::Table(_)) => Some(node.span),
            _ => self.key,
        }
    }

    /// The key, where there is one.
    pub(super) fn key_span(&self) -> Option<Span> {
        self.key
    }
}

/// `path.key`, with quotes around a key that needs them.
pub(crate) fn join_path(path: &str, key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let key = if !key.is_empty() && key.chars().all(bare) {
        key.to_owned()
    } else {
        format!("\"{}\"", key.escape_debug())
    };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}
