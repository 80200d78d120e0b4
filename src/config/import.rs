//! Configs of other programs, as they are: `mcpServers` (Claude Desktop, Cursor, Claude Code and
//! their kin), `servers` with `inputs` (VS Code), and the `bridge` section of an older gateway.
//!
//! Runs on the tree of one source and leaves a tree in our shape: keys are renamed, values keep
//! their places. Our own keys may stand beside theirs. What has no equivalent gives a warning;
//! keys that nobody knows do too, later (`validate`), since the source is marked as foreign.

use super::{
    ConfigFormat,
    diagnostics::report::{ConfigTexts, Diagnostic, Diagnostics},
    node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
};

mod bridge;
mod servers;

/// The keys that a config of VS Code has at the top.
const VS_CODE_KEYS: [&str; 4] = ["$schema", "inputs", "sandbox", "servers"];

/// Keys that its servers have and ours have not.
const VS_CODE_SERVER_KEYS: [&str; 5] = ["dev", "envFile", "gallery", "sandboxEnabled", "type"];

/// Brings `node`, the tree of the source `source`, into our shape.
pub(super) fn import_document(
    node: &mut Node,
    source: usize,
    format: ConfigFormat,
    sources: &mut ConfigTexts,
    diagnostics: &mut Diagnostics,
) {
    let Some(table) = node.as_table_mut() else {
        return;
    };
    let is_of_vs_code = format == ConfigFormat::Json && sources.get(source).is_vs_code_file();
    let Some(dialect) = ForeignDialect::detect(table, format, is_of_vs_code) else {
        return;
    };
    sources.mark_foreign(source);
    if let Some(inputs) = table.shift_remove("inputs") {
        for (id, default) in inputs
            .node
            .as_list()
            .into_iter()
            .flatten()
            .filter_map(parse_input)
        {
            sources.add_input(source, id, default);
        }
    }
    let section = if dialect == ForeignDialect::VsCode {
        "servers"
    } else {
        "mcpServers"
    };
    let Some(theirs) = table.shift_remove(section) else {
        return;
    };
    let is_of_project = sources.get(source).is_project_file();
    let servers = servers::import_servers(theirs.node, dialect, is_of_project, diagnostics);
    let bridge = table.shift_remove("bridge");
    let ours = table.shift_remove("servers");
    let mut servers = TableEntry {
        key: theirs.key,
        node: servers,
    };
    if let Some(bridge) = bridge {
        bridge::import_bridge_section(bridge, &mut servers.node, table, diagnostics);
    }
    if let Some(ours) = ours {
        add_servers(&mut servers, ours, diagnostics);
    }
    table.insert("servers".to_owned(), servers);
}

/// Whose config it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ForeignDialect {
    /// `mcpServers`, with keys of the older gateway.
    Bridge,
    /// `mcpServers`.
    McpServers,
    /// `servers` with `type`, and `inputs`.
    VsCode,
}

impl ForeignDialect {
    /// `None` for a config of our own, which one of VS Code is not, however little it says
    /// (`is_of_vs_code`).
    fn detect(table: &ConfigTable, format: ConfigFormat, is_of_vs_code: bool) -> Option<Self> {
        if let Some(servers) = table.get("mcpServers") {
            let has_bridge_keys = table.contains_key("bridge")
                || servers.node.children().any(|entry| {
                    bridge::SERVER_KEYS
                        .iter()
                        .any(|key| entry.get(key).is_some())
                });
            return Some(if has_bridge_keys {
                Self::Bridge
            } else {
                Self::McpServers
            });
        }
        let servers = table.get("servers")?;
        let has_their_keys = || {
            let mut keys = VS_CODE_SERVER_KEYS.iter();
            keys.any(|key| servers.node.children().any(|it| it.get(key).is_some()))
        };
        let only_theirs = || table.keys().all(|key| VS_CODE_KEYS.contains(&key.as_str()));
        let is_theirs = is_of_vs_code
            || table.contains_key("inputs")
            || (format == ConfigFormat::Json && only_theirs() && has_their_keys());
        is_theirs.then_some(Self::VsCode)
    }
}

/// Id and default of one of the `inputs` of VS Code.
fn parse_input(node: &Node) -> Option<(String, Option<String>)> {
    let text = |key: &str| node.get(key).and_then(|entry| entry.node.as_text());
    Some((text("id")?.to_owned(), text("default").map(str::to_owned)))
}

/// Adds the servers that the document has in our own section.
fn add_servers(servers: &mut TableEntry, ours: TableEntry, diagnostics: &mut Diagnostics) {
    match (servers.node.as_table_mut(), ours.node.value) {
        (Some(table), ConfigValue::Table(ours)) => {
            for (name, entry) in ours {
                diagnostics.insert_key(table, name, entry);
            }
        }
        // `validate` says what is wrong with it.
        (_, value) => servers.node.value = value,
    }
}

/// An entry that `key` of theirs gives us.
fn moved_entry(key: Span, span: Span, value: ConfigValue) -> TableEntry {
    TableEntry {
        key,
        node: Node::new(span, value),
    }
}

/// Warns that `key` of another program is not read.
fn no_equivalent_warning(key: &str, span: Span, why: &str) -> Diagnostic {
    Diagnostic::warning(format!("`{key}` has no equivalent here")).at(Some(span), why)
}
