//! Answers of the API for people.

use std::process::ExitCode;

use serde_json::Value;

use crate::cli::{
    output::{escape_terminal, print},
    table::TextTable,
};

/// Prints entries, one a line.
pub(super) fn print_entries(items: &[Value]) -> ExitCode {
    let mut table = TextTable::new(["NAME", "SOURCE", "STATE", "CONFIG"]).fit_to_terminal();
    for item in items {
        let config = &item["config"];
        let state = match (item["reason"].as_str(), &config["enabled"]) {
            (Some(reason), _) => format!("ignored: {reason}"),
            (None, Value::Bool(false)) => "disabled".to_owned(),
            (None, _) => "enabled".to_owned(),
        };
        table.add([text(&item["name"]), source(item), state, summary(config)]);
    }
    table.print()
}

/// What an entry says, in short.
fn summary(config: &Value) -> String {
    let program = config["command"].as_str().map(|command| {
        let args = config["args"].as_array().into_iter().flatten();
        let args = args.filter_map(Value::as_str);
        std::iter::once(command)
            .chain(args)
            .collect::<Vec<_>>()
            .join(" ")
    });
    let other = ["url", "plugin", "transport"];
    let mut other = other.into_iter().filter_map(|key| config[key].as_str());
    program.unwrap_or_else(|| {
        other
            .next()
            .map_or_else(|| config.to_string(), str::to_owned)
    })
}

/// Prints what an entry says, as a config file would have it.
pub(super) fn print_entry(item: &Value) -> ExitCode {
    let mut written = format!("# {}\n", source(item));
    if let Some(reason) = item["reason"].as_str() {
        written.extend(["# ignored: ", reason, "\n"]);
    }
    let config = without_nulls(item["config"].clone());
    written.push_str(&toml::to_string_pretty(&config).unwrap_or_else(|_| config.to_string()));
    print(&escape_terminal(&written))
}

/// Prints what a change would do.
pub(super) fn print_plan(plan: &Value) -> ExitCode {
    let names = |key: &str| plan[key].as_array().cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for (key, verb) in [("servers_added", "adds"), ("servers_removed", "removes")] {
        let each = names(key);
        lines.extend(
            each.iter()
                .map(|name| format!("{verb} the server `{}`", text(name))),
        );
    }
    for server in names("servers_changed") {
        let settings = server["settings"].as_array().into_iter().flatten();
        let settings: Vec<String> = settings.map(text).collect();
        let restarts = if server["restarts"] == true {
            "; its connections restart"
        } else {
            ""
        };
        let (name, settings) = (text(&server["name"]), settings.join(", "));
        lines.push(format!("changes the server `{name}`: {settings}{restarts}"));
    }
    lines.extend(names("others").iter().map(text));
    if lines.is_empty() {
        lines.push("changes nothing that runs".to_owned());
    }
    print(&escape_terminal(&format!("{}\n", lines.join("\n"))))
}

/// Prints what came of connecting to a server.
pub(super) fn print_trial(trial: &Value) -> ExitCode {
    let (status, latency) = (text(&trial["status"]), &trial["latency_ms"]);
    let mut written = format!("{status} after {latency} ms");
    if let Some(error) = trial["error"].as_str() {
        written.extend([": ", error]);
    }
    written.push('\n');
    let printed = print(&escape_terminal(&written));
    let tools = trial["tools"].as_array().cloned().unwrap_or_default();
    if tools.is_empty() {
        return printed;
    }
    let mut table = TextTable::new(["TOOL", "DESCRIPTION"]).fit_to_terminal();
    for tool in &tools {
        table.add([text(&tool["name"]), text(&tool["description"])]);
    }
    table.print()
}

/// Where an entry is written.
fn source(item: &Value) -> String {
    let source = &item["source"];
    match source["type"].as_str() {
        Some("file") => format!("{} line {}", text(&source["file"]), source["line"]),
        _ => "store".to_owned(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// `value` without keys that say nothing, which TOML cannot have.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let kept = entries.into_iter().filter(|(_, value)| !value.is_null());
            kept.map(|(key, value)| (key, without_nulls(value)))
                .collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        leaf @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => leaf,
    }
}
