//! The older gateway: keys of its servers, and its `bridge` section.
//!
//! Its units: `timeout` in seconds, `retryDelay` and the times of `healthCheck` and `failover` in
//! milliseconds. Its `priority` counts the other way round (the lowest wins), so that the sign
//! changes. It gives a server up after `retryAttempts`; we show it as failed then and go on.

use super::{
    ignored_key, moved_entry,
    values::{millis_text, number},
};
use crate::config::{
    diagnostics::report::Diagnostics,
    node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
};

/// Keys that only servers of the older gateway have.
pub(super) const SERVER_KEYS: [&str; 6] = [
    "healthCheck",
    "promptNamespace",
    "resourceNamespace",
    "retryAttempts",
    "retryDelay",
    "toolNamespace",
];

/// Keys of the section of the older gateway that mean something here.
pub(super) const SECTION_KEYS: [&str; 4] = [
    "aggregation",
    "conflictResolution",
    "defaultNamespace",
    "failover",
];

/// Our longest delay between attempts, milliseconds, where none is written.
const RETRY_MAX_MILLIS: f64 = 30_000.0;

/// Puts `key` of a server of the older gateway into `ours`.
pub(super) fn import_server_key(
    key: &str,
    theirs: TableEntry,
    ours: &mut ConfigTable,
    diagnostics: &mut Diagnostics,
) {
    match key {
        "retryAttempts" => import_retry_attempts(theirs, ours, diagnostics),
        "healthCheck" => import_health_check(theirs, ours, diagnostics),
        "retryDelay" => import_retry_delay(theirs, ours, diagnostics),
        "toolNamespace" | "resourceNamespace" | "promptNamespace" => {
            import_namespace(key, theirs, ours, diagnostics);
        }
        "priority" => {
            let mut theirs = theirs;
            if let ConfigValue::Integer(priority) = &mut theirs.node.value {
                *priority = priority.saturating_neg();
            }
            diagnostics.insert_key(ours, key.to_owned(), theirs);
        }
        _ => diagnostics.insert_key(ours, key.to_owned(), theirs),
    }
}

fn import_health_check(theirs: TableEntry, ours: &mut ConfigTable, diagnostics: &mut Diagnostics) {
    let (key, span) = (theirs.key, theirs.node.span);
    let health = match theirs.node.value {
        ConfigValue::Table(keys) => {
            let words = [("interval", "interval"), ("timeout", "timeout")];
            let off = ("probe", ConfigValue::Text("off".to_owned()));
            ConfigValue::Table(import_switched_section(
                "healthCheck",
                keys,
                words,
                off,
                diagnostics,
            ))
        }
        other @ (ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::List(_)
        | ConfigValue::Null
        | ConfigValue::Text(_)) => other,
    };
    diagnostics.insert_key(ours, "health".to_owned(), moved_entry(key, span, health));
}

/// The keys of a section of theirs under our names, `words` being pairs of theirs and ours; where
/// `enabled` is false, `off` is put there. A bare number under a key of time is milliseconds.
fn import_switched_section(
    section: &str,
    keys: ConfigTable,
    words: [(&str, &str); 2],
    off: (&str, ConfigValue),
    findings: &mut Diagnostics,
) -> ConfigTable {
    let mut ours = ConfigTable::new();
    let mut is_off = None;
    for (key, theirs) in keys {
        let TableEntry { key: at, node } = theirs;
        let word = words.iter().find(|(word, _)| *word == key);
        match (word, &node.value) {
            (None, ConfigValue::Bool(enabled)) if key == "enabled" => {
                is_off = (!enabled).then_some((at, node.span));
            }
            (Some((_, name)), _) => {
                let time = number(&node)
                    .filter(|_| key != "maxFailures")
                    .map(millis_text);
                let value = time.map_or(node.value, ConfigValue::Text);
                ours.insert((*name).to_owned(), moved_entry(at, node.span, value));
            }
            (None, _) => {
                let what = format!("{section}.{key}");
                findings.ignore_key(ignored_key(&what, at, None));
            }
        }
    }
    if let Some((at, span)) = is_off {
        let (name, value) = off;
        ours.insert(name.to_owned(), moved_entry(at, span, value));
    }
    ours
}

/// Attempts that are none still leave the first one.
fn import_retry_attempts(
    mut theirs: TableEntry,
    ours: &mut ConfigTable,
    diagnostics: &mut Diagnostics,
) {
    if let ConfigValue::Integer(attempts @ 0) = &mut theirs.node.value {
        *attempts = 1;
    }
    set_in_section("retry", "failed_after", theirs, ours, diagnostics);
}

fn import_retry_delay(
    mut theirs: TableEntry,
    ours: &mut ConfigTable,
    diagnostics: &mut Diagnostics,
) {
    if let Some(delay) = number(&theirs.node) {
        theirs.node.value = ConfigValue::Text(millis_text(delay));
        if delay > RETRY_MAX_MILLIS {
            set_in_section("retry", "max", theirs.clone(), ours, diagnostics);
        }
    }
    set_in_section("retry", "base", theirs, ours, diagnostics);
}

/// Theirs has a namespace for each kind of item, ours one for all.
fn import_namespace(
    key: &str,
    theirs: TableEntry,
    ours: &mut ConfigTable,
    diagnostics: &mut Diagnostics,
) {
    match ours.get("namespace") {
        None => {
            ours.insert("namespace".to_owned(), theirs);
        }
        Some(other) if other.node.as_text() == theirs.node.as_text() => {}
        Some(_) => diagnostics.ignore_key(ignored_key(
            key,
            theirs.key,
            Some("a server has one namespace for all items; using the first one"),
        )),
    }
}

/// Puts the section `bridge` into `servers` and into the top level `table`.
pub(super) fn import_bridge_section(
    bridge: TableEntry,
    servers: &mut Node,
    table: &mut ConfigTable,
    diagnostics: &mut Diagnostics,
) {
    let ConfigValue::Table(keys) = bridge.node.value else {
        table.insert("bridge".to_owned(), bridge);
        return;
    };
    for (key, theirs) in keys {
        match (key.as_str(), &theirs.node.value) {
            ("conflictResolution", _) => {
                set_in_section("naming", "conflict", theirs, table, diagnostics);
            }
            ("defaultNamespace", ConfigValue::Bool(true)) => {}
            ("defaultNamespace", ConfigValue::Bool(false)) => {
                let bare = ConfigValue::Text("{tool}".to_owned());
                set_in_section(
                    "naming",
                    "template",
                    moved_entry(theirs.key, theirs.node.span, bare),
                    table,
                    diagnostics,
                );
                let off = ConfigValue::Bool(false);
                let off = moved_entry(theirs.key, theirs.node.span, off);
                set_in_section("naming", "namespace_resources", off, table, diagnostics);
            }
            ("aggregation", ConfigValue::Table(kinds)) => {
                import_expose(kinds, theirs.node.span, servers, diagnostics);
            }
            ("failover", ConfigValue::Table(keys)) => {
                let words = [
                    ("maxFailures", "failures"),
                    ("recoveryInterval", "open_for"),
                ];
                let off = ("failures", ConfigValue::Integer(0));
                let section = "bridge.failover";
                let breaker =
                    import_switched_section(section, keys.clone(), words, off, diagnostics);
                for_each_server(
                    "breaker",
                    theirs.node.span,
                    &ConfigValue::Table(breaker),
                    servers,
                );
            }
            _ => {
                diagnostics.ignore_key(ignored_key(&format!("bridge.{key}"), theirs.key, None));
            }
        }
    }
}

/// Sets `key` in the section `name` of `table`, unless the document has it in our own words.
fn set_in_section(
    name: &str,
    key: &str,
    value: TableEntry,
    table: &mut ConfigTable,
    diagnostics: &mut Diagnostics,
) {
    let section = table.entry(name.to_owned()).or_insert_with(|| {
        moved_entry(
            value.key,
            value.node.span,
            ConfigValue::Table(ConfigTable::new()),
        )
    });
    if let Some(section) = section.node.as_table_mut() {
        diagnostics.insert_key(section, key.to_owned(), value);
    }
}

/// Lets every server that does not say so itself show the kinds that `kinds` switches on.
fn import_expose(
    kinds: &ConfigTable,
    span: Span,
    servers: &mut Node,
    diagnostics: &mut Diagnostics,
) {
    const KINDS: [&str; 3] = ["tools", "resources", "prompts"];
    for (kind, switch) in kinds {
        let why = if !KINDS.contains(&kind.as_str()) {
            None
        } else if !matches!(switch.node.value, ConfigValue::Bool(_)) {
            Some("kinds are switched by `true` and `false`")
        } else {
            continue;
        };
        let what = format!("bridge.aggregation.{kind}");
        diagnostics.ignore_key(ignored_key(&what, switch.key, why));
    }
    let is_on = |kind: &&str| {
        let switch = kinds.get(*kind).map(|entry| &entry.node.value);
        !matches!(switch, Some(ConfigValue::Bool(false)))
    };
    let shown: Vec<Node> = KINDS
        .iter()
        .filter(|kind| is_on(kind))
        .map(|kind| Node::new(span, ConfigValue::Text((*kind).to_owned())))
        .collect();
    for_each_server("expose", span, &ConfigValue::List(shown), servers);
}

/// Gives every server that does not have it itself the key `key`.
fn for_each_server(key: &str, span: Span, value: &ConfigValue, servers: &mut Node) {
    for (_, server) in servers.as_table_mut().into_iter().flatten() {
        if let Some(keys) = server.node.as_table_mut() {
            keys.entry(key.to_owned())
                .or_insert_with(|| moved_entry(span, span, value.clone()));
        }
    }
}
