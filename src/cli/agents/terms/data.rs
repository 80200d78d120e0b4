//! What is looked for in data and in arguments, on a command line as in a config: a table of TOML.
//!
//! The text goes through the parser of configs, so that it means the same here and mistakes are
//! found and shown alike.

use std::{fmt::Write as _, path::PathBuf};

use indexmap::IndexMap;
use toml::de::DeValue;

use super::super::super::data_dir::CommandError;
use crate::config::{
    ArgumentRule, ConfigFormat, ConfigText, Environment, Mask, Notice, RuleKind, Scan, Severity,
    Terms, parse,
};

/// A scan on a command line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ScanArg {
    /// What holds for everybody.
    Default,
    /// Nothing is looked for.
    Off,
    /// A table of TOML.
    Given(String),
}

impl ScanArg {
    /// Reads `off`, `default`, or keeps a table for [`ScanArg::to_scan`].
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "default" => Ok(Self::Default),
            _ => Ok(Self::Given(parse_table(text)?)),
        }
    }

    /// What it means in terms.
    pub(super) fn to_scan(&self) -> Result<Option<Scan>, CommandError> {
        match self {
            Self::Default => Ok(None),
            Self::Off => Ok(Some(Scan::default())),
            Self::Given(table) => Ok(parse_terms("--scan", &format!("scan = {table}"))?.scan),
        }
    }
}

/// One value of TOML, which is a table.
pub(super) fn parse_table(text: &str) -> Result<String, String> {
    let text = text.trim();
    let value = DeValue::parse(text).map_err(|error| format!("not a TOML table: {error}"))?;
    if value.get_ref().is_table() {
        return Ok(text.to_owned());
    }
    Err("use a TOML table, such as { results = { api_key = \"redact\" } }".to_owned())
}

/// The rules that `tables` are.
pub(super) fn argument_rules(tables: &[String]) -> Result<Vec<ArgumentRule>, CommandError> {
    let list = format!("args = [{}]", tables.join(", "));
    Ok(parse_terms("--args", &list)?.args)
}

/// The terms of an agent with these lines; mistakes are said to be in `name`.
fn parse_terms(name: &str, lines: &str) -> Result<Terms, CommandError> {
    let source = ConfigText {
        name: name.to_owned(),
        format: ConfigFormat::Toml,
        text: format!("[agents.agent]\n{lines}\n"),
        directory: PathBuf::from("/"),
    };
    let loaded = parse([source], &Environment::default());
    let mut loaded = loaded.map_err(|mistakes| {
        // Warnings are about the rest of a config, which there is none of.
        let is_mistake = |notice: &&Notice| notice.severity == Severity::Mistake;
        let errors = mistakes.notices.iter().filter(is_mistake);
        let messages: Vec<String> = errors.map(ToString::to_string).collect();
        CommandError::usage(messages.join("\n"))
    })?;
    let agent = loaded.config.agents.shift_remove("agent");
    Ok(agent.map(|agent| agent.terms).unwrap_or_default())
}

/// Reads the name of a kind of rule.
pub(super) fn parse_rule_kind(text: &str) -> Result<RuleKind, String> {
    let mut all = RuleKind::ALL.into_iter();
    all.find(|rule| rule.as_str() == text).ok_or_else(|| {
        let names = RuleKind::ALL.map(RuleKind::as_str).join(", ");
        format!("unknown kind of rule `{text}`: use {names}")
    })
}

/// The scan on one line.
pub(in crate::cli::agents) fn display_scan(terms: &Terms) -> String {
    let Some(scan) = &terms.scan else {
        return "default".to_owned();
    };
    let mut parts = Vec::new();
    for (place, actions) in [
        ("arguments", &scan.arguments),
        ("results", &scan.results),
        ("resources", &scan.resources),
        ("prompts", &scan.prompts),
        ("notifications", &scan.notifications),
    ] {
        let shown = actions
            .iter()
            .map(|(class, action)| format!("{place}.{class}={}", action.as_str()));
        parts.extend(shown);
    }
    if parts.is_empty() {
        return "off".to_owned();
    }
    let mut text = parts.join(" ");
    if scan.mask == Mask::Length {
        text.push_str(" mask=length");
    }
    for (name, list) in [
        ("countries", scan.countries.clone()),
        ("custom", key_names(&scan.custom)),
        ("dictionaries", key_names(&scan.dictionaries)),
        (
            "detectors",
            scan.detectors.iter().map(|d| d.id.clone()).collect(),
        ),
        ("allow", scan.allow.clone()),
        ("base64", scan.base64.clone()),
    ] {
        if !list.is_empty() {
            write!(text, " {name}={}", list.join(",")).expect("a String takes all");
        }
    }
    text
}

fn key_names<T>(map: &IndexMap<String, T>) -> Vec<String> {
    map.keys().cloned().collect()
}

/// The names of the rules about arguments on one line; nothing where there are none.
pub(in crate::cli::agents) fn display_argument_rules(terms: &Terms) -> String {
    let names: Vec<&str> = terms.args.iter().map(|rule| rule.name.as_str()).collect();
    names.join(" ")
}

/// What is only observed, on one line; nothing where all is enforced.
pub(in crate::cli::agents) fn display_observed(terms: &Terms) -> String {
    let names: Vec<&str> = terms.observe.iter().map(|rule| rule.as_str()).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_are_read_as_configs_are() {
        let check = |text: &str, expect: Result<&str, &str>| {
            let read = ScanArg::parse(text)
                .and_then(|look| look.to_scan().map_err(|failure| failure.to_string()))
                .map(|scan| {
                    display_scan(&Terms {
                        scan,
                        ..Terms::default()
                    })
                });
            match expect {
                Ok(shown) => assert_eq!(read.as_deref(), Ok(shown), "{text}"),
                Err(part) => assert!(read.as_ref().is_err_and(|e| e.contains(part)), "{read:?}"),
            }
        };
        check("off", Ok("off"));
        check("default", Ok("default"));
        check(
            r#"{ results = { api_key = "redact", "*" = "report" }, mask = "length", countries = ["us"] }"#,
            Ok("results.api_key=redact results.*=report mask=length countries=us"),
        );
        check("{}", Ok("off"));
        check("on", Err("not a TOML table"));
        check("[1]", Err("use a TOML table"));
        check(
            r#"{ results = { api_kye = "redact" } }"#,
            Err("did you mean `api_key`?"),
        );
        check("{ result = {} }", Err("did you mean `results`?"));
        check("{}\nadmin = true", Err("not a TOML table"));
    }
}
