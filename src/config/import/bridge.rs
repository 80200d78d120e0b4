//! The older gateway: keys of its servers, and its `bridge` section.
//!
//! Its units: `timeout` in seconds, `retryDelay` and the times of `healthCheck` and `failover` in
//! milliseconds. Its `priority` counts the other way round (the lowest wins), so that the sign
//! changes. It gives a server up after `retryAttempts`; we show it as failed then and go on.

use super::{
    entry, no_equivalent,
    servers::{millis, number},
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

/// Our longest delay between attempts, milliseconds, where none is written.
const RETRY_MAX_MILLIS: f64 = 30_000.0;

/// Puts `key` of a server of the older gateway into `ours`.
pub(super) fn server_key(
    key: &str,
    theirs: TableEntry,
    ours: &mut ConfigTable,
    findings: &mut Diagnostics,
) {
    match key {
        "retryAttempts" => retry_attempts(theirs, ours, findings),
        "healthCheck" => health_check(theirs, ours, findings),
        "retryDelay" => retry_delay(theirs, ours, findings),
        "toolNamespace" | "resourceNamespace" | "promptNamespace" => {
            namespace(key, theirs, ours, findings);
        }
        "priority" => {
            let mut theirs = theirs;
            if let ConfigValue::Integer(priority) = &mut theirs.node.value {
                *priority = priority.saturating_neg();
            }
            findings.insert_key(ours, key.to_owned(), theirs);
        }
        _ => findings.insert_key(ours, key.to_owned(), theirs),
    }
}

fn health_check(theirs: TableEntry, ours: &mut ConfigTable, findings: &mut Diagnostics) {
    let (key, span) = (theirs.key, theirs.node.span);
    let health = match theirs.node.value {
        ConfigValue::Table(keys) => {
            let words = [("interval", "interval"), ("timeout", "timeout")];
            let off = ("probe", ConfigValue::Text("off".to_owned()));
            ConfigValue::Table(switched("healthCheck", keys, words, off, findings))
        }
        other @ (ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::List(_)
        | ConfigValue::Null
        | ConfigValue::Text(_)) => other,
    };
    findings.insert_key(ours, "health".to_owned(), entry(key, span, health));
}

/// The keys of a section of theirs under our names, `words` being pairs of theirs and ours; where
/// `enabled` is false, `off` is put there. A bare number under a key of time is milliseconds.
fn switched(
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
                let time = number(&node).filter(|_| key != "maxFailures").map(millis);
                let value = time.map_or(node.value, ConfigValue::Text);
                ours.insert((*name).to_owned(), entry(at, node.span, value));
            }
            (None, _) => {
                let what = format!("{section}.{key}");
                findings.add(no_equivalent(&what, at, "not a key that is understood"));
            }
        }
    }
    if let Some((at, span)) = is_off {
        let (name, value) = off;
        ours.insert(name.to_owned(), entry(at, span, value));
    }
    ours
}

/// Attempts that are none still leave the first one.
fn retry_attempts(mut theirs: TableEntry, ours: &mut ConfigTable, findings: &mut Diagnostics) {
    if let ConfigValue::Integer(attempts @ 0) = &mut theirs.node.value {
        *attempts = 1;
    }
    in_section("retry", "failed_after", theirs, ours, findings);
}

fn retry_delay(mut theirs: TableEntry, ours: &mut ConfigTable, findings: &mut Diagnostics) {
    if let Some(delay) = number(&theirs.node) {
        theirs.node.value = ConfigValue::Text(millis(delay));
        if delay > RETRY_MAX_MILLIS {
            in_section("retry", "max", theirs.clone(), ours, findings);
        }
    }
    in_section("retry", "base", theirs, ours, findings);
}

/// Theirs has a namespace for each kind of item, ours one for all.
fn namespace(key: &str, theirs: TableEntry, ours: &mut ConfigTable, findings: &mut Diagnostics) {
    match ours.get("namespace") {
        None => {
            ours.insert("namespace".to_owned(), theirs);
        }
        Some(other) if other.node.as_text() == theirs.node.as_text() => {}
        Some(_) => findings.add(no_equivalent(
            key,
            theirs.key,
            "a server has one namespace for all its items, the first one written",
        )),
    }
}

/// Puts the section `bridge` into `servers` and into the top level `table`.
pub(super) fn translate(
    bridge: TableEntry,
    servers: &mut Node,
    table: &mut ConfigTable,
    findings: &mut Diagnostics,
) {
    let ConfigValue::Table(keys) = bridge.node.value else {
        table.insert("bridge".to_owned(), bridge);
        return;
    };
    for (key, theirs) in keys {
        match (key.as_str(), &theirs.node.value) {
            ("conflictResolution", _) => in_section("naming", "conflict", theirs, table, findings),
            ("defaultNamespace", ConfigValue::Bool(true)) => {}
            ("defaultNamespace", ConfigValue::Bool(false)) => {
                let bare = ConfigValue::Text("{tool}".to_owned());
                in_section(
                    "naming",
                    "template",
                    entry(theirs.key, theirs.node.span, bare),
                    table,
                    findings,
                );
                let off = ConfigValue::Bool(false);
                let off = entry(theirs.key, theirs.node.span, off);
                in_section("naming", "namespace_resources", off, table, findings);
            }
            ("aggregation", ConfigValue::Table(kinds)) => {
                expose(kinds, theirs.node.span, servers, findings);
            }
            ("failover", ConfigValue::Table(keys)) => {
                let words = [
                    ("maxFailures", "failures"),
                    ("recoveryInterval", "open_for"),
                ];
                let off = ("failures", ConfigValue::Integer(0));
                let section = "bridge.failover";
                let breaker = switched(section, keys.clone(), words, off, findings);
                for_each_server(
                    "breaker",
                    theirs.node.span,
                    &ConfigValue::Table(breaker),
                    servers,
                );
            }
            _ => findings.add(no_equivalent(
                &format!("bridge.{key}"),
                theirs.key,
                "not a key that is understood",
            )),
        }
    }
}

/// Sets `key` in the section `name` of `table`, unless the document has it in our own words.
fn in_section(
    name: &str,
    key: &str,
    value: TableEntry,
    table: &mut ConfigTable,
    findings: &mut Diagnostics,
) {
    let section = table.entry(name.to_owned()).or_insert_with(|| {
        entry(
            value.key,
            value.node.span,
            ConfigValue::Table(ConfigTable::new()),
        )
    });
    if let Some(section) = section.node.as_table_mut() {
        findings.insert_key(section, key.to_owned(), value);
    }
}

/// Lets every server that does not say so itself show the kinds that `kinds` switches on.
fn expose(kinds: &ConfigTable, span: Span, servers: &mut Node, findings: &mut Diagnostics) {
    const KINDS: [&str; 3] = ["tools", "resources", "prompts"];
    for (kind, switch) in kinds {
        let why = if !KINDS.contains(&kind.as_str()) {
            "not a key that is understood"
        } else if !matches!(switch.node.value, ConfigValue::Bool(_)) {
            "neither `true` nor `false`"
        } else {
            continue;
        };
        let what = format!("bridge.aggregation.{kind}");
        findings.add(no_equivalent(&what, switch.key, why));
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
                .or_insert_with(|| entry(span, span, value.clone()));
        }
    }
}
