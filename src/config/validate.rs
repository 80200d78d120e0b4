//! The shape of a config: keys, types and legal words, checked against the schema of `file`.
//!
//! The schema is generated from the types, so that editors, this check and the decoder agree. What
//! does not conform is reported and left out, so that one mistake hides no other.

pub(crate) mod schema;

use std::fmt::Display;

use serde_json::Value as Json;

use super::{
    diagnostics::{
        redact, renamed_keys,
        report::{ConfigTexts, Diagnostic, Diagnostics},
        suggest,
    },
    file,
    model::policy::{GlobList, glob},
    node::{ConfigValue, Node, TableEntry, ValueOrigin, join_path},
    source::environment,
    units::{MAX_KEYWORD, MIN_KEYWORD, MONEY_KEYWORD, Size, Time, UNIT_KEYWORD, ZERO_KEYWORD},
};
use crate::money::{InvalidAmount, Micros};
use schema::{Section, TAG, enum_words, integer_bounds, key_tables, resolve, tag_value, type_of};

/// Tables that stay although a text is missing which they need, so that what else is wrong with
/// them is found as well: whoever resolves them leaves an empty text alone that is not written.
const INCOMPLETE_ALLOWED: [&str; 1] = ["ArgumentRule"];

/// Reports everything in `node` that `schema` does not allow, and removes it.
pub(super) fn remove_invalid(
    node: &mut Node,
    schema: &Json,
    sources: &mut ConfigTexts,
    diagnostics: &mut Diagnostics,
) {
    let mut check = ShapeCheck {
        root: schema,
        sources,
        findings: diagnostics,
    };
    if !check.check_value(node, schema, "") {
        *node = Node::empty();
    }
}

struct ShapeCheck<'s, 'f> {
    root: &'s Json,
    sources: &'f mut ConfigTexts,
    findings: &'f mut Diagnostics,
}

impl<'s> ShapeCheck<'s, '_> {
    /// Whether `node`, once cleaned, may stay.
    fn check_value(&mut self, node: &mut Node, schema: &'s Json, path: &str) -> bool {
        if node.origin == ValueOrigin::Invalid {
            return false;
        }
        let field = schema;
        let (name, schema) = resolve(self.root, schema);
        match schema.get(UNIT_KEYWORD).and_then(Json::as_str) {
            Some(MONEY_KEYWORD) => return self.check_money(node, path),
            Some(unit) => {
                return self.check_quantity(node, unit, path)
                    && self.check_quantity_bounds(node, [field, schema], path);
            }
            None => {}
        }
        let options = schema.get("oneOf").or_else(|| schema.get("anyOf"));
        if let Some(options) = options.and_then(Json::as_array) {
            return self.check_one_of(node, options, path);
        }
        if let Some(words) = schema.get("enum").and_then(Json::as_array) {
            let words: Vec<&str> = words.iter().filter_map(Json::as_str).collect();
            return self.check_word(node, &words, path);
        }
        match schema.get("type").and_then(Json::as_str) {
            Some("object") => self.check_table(node, Section { name, schema }, path),
            Some("array") => self.check_list(node, schema, path),
            Some("string") => self.check_text(node, path) && self.check_format(node, schema, path),
            Some("boolean") => self.check_boolean(node, path),
            Some("integer") => self.check_integer(node, schema, path),
            Some("number") => self.check_number(node, schema, path),
            _ => true,
        }
    }

    fn check_table(&mut self, node: &mut Node, section: Section<'s>, path: &str) -> bool {
        environment::parse_compound(node);
        let span = node.span;
        let Some(table) = node.as_table_mut() else {
            let keys = section.keys();
            let help =
                (!keys.is_empty()).then(|| format!("its keys are {}", suggest::list_and(&keys)));
            self.report_type(node, "a table", help, path);
            return false;
        };
        let required = section.required();
        let mut missing = required.clone();
        let mut complete = true;
        let entries = std::mem::take(table);
        for (key, mut entry) in entries {
            if matches!(entry.node.value, ConfigValue::Null) {
                continue;
            }
            missing.retain(|name| *name != key);
            if path.is_empty() && key.starts_with(file::EXTENSION_PREFIX) {
                continue;
            }
            let Some(schema) = section.key(&key) else {
                self.unknown_key(&key, &entry, section, path);
                continue;
            };
            if self.check_value(&mut entry.node, schema, &join_path(path, &key)) {
                table.insert(key, entry);
            } else {
                complete &= !required.contains(&key.as_str());
            }
        }
        for name in &missing {
            let finding = Diagnostic::error(format!("`{path}` requires `{name}`"));
            let finding = finding.at(Some(span), format!("`{name}` is missing"));
            let words = section
                .key(name)
                .map(|schema| enum_words(resolve(self.root, schema).1))
                .unwrap_or_default();
            let help = if words.is_empty() {
                format!("add {name} = {}", example_value(section.key(name)))
            } else {
                format!(
                    "add {name} = {}",
                    suggest::join_words(&quoted_words(&words, ""), "or")
                )
            };
            self.findings.add(finding.help(help));
        }
        if INCOMPLETE_ALLOWED.contains(&section.name) {
            for name in required {
                let empty = || TableEntry {
                    key: span,
                    node: Node::new(span, ConfigValue::Text(String::new())),
                };
                table.entry(name.to_owned()).or_insert_with(empty);
            }
            return true;
        }
        complete && missing.is_empty()
    }

    fn unknown_key(&mut self, key: &str, entry: &TableEntry, section: Section<'_>, path: &str) {
        self.sources.hide_values(&entry.node);
        let message = format!("unknown key `{}`", join_path(path, key));
        if renamed_keys::is_planned_key(section.name, key) {
            // A key that promises protection must not be ignored, whoever's document it stands in.
            let finding = Diagnostic::error(message);
            let finding = finding.at(Some(entry.key), "not supported by this version");
            self.findings.add(finding.help("remove it"));
            return;
        }
        let keys = section.keys();
        let close = suggest::closest(key, keys.iter().copied());
        let meant = renamed_keys::equivalent_of(section.name, key).map(str::to_owned);
        let meant = meant.or_else(|| close.map(|close| format!("did you mean `{close}`?")));
        let finding = if self.sources.get(entry.key.source).is_foreign {
            Diagnostic::warning(message)
                .at(Some(entry.key), "ignored")
                .help_if(meant)
        } else {
            let all = || format!("valid keys are {}", suggest::list_and(&keys));
            let finding = Diagnostic::error(message).at(Some(entry.key), "no such key");
            let meant = meant.or_else(|| key_tables::describe_places(self.root, key));
            finding.help(meant.unwrap_or_else(all))
        };
        self.findings.add(finding);
    }

    fn check_list(&mut self, node: &mut Node, schema: &'s Json, path: &str) -> bool {
        environment::parse_compound(node);
        let ConfigValue::List(items) = &mut node.value else {
            let (_, items) = resolve(self.root, &schema["items"]);
            let written = self
                .displayable_text(node)
                .filter(|_| type_of(items) == "string");
            let help = list_suggestion(written.unwrap_or_default(), path);
            self.report_type(node, "a list", Some(help), path);
            return false;
        };
        let mut kept = Vec::new();
        for (index, mut item) in std::mem::take(items).into_iter().enumerate() {
            let stays = schema.get("items").is_none_or(|schema| {
                self.check_value(&mut item, schema, &format!("{path}[{index}]"))
            });
            if stays {
                kept.push(item);
            }
        }
        node.value = ConfigValue::List(kept);
        true
    }

    /// One of several shapes: a word, a table told by its `type`, or whatever has the right type.
    fn check_one_of(&mut self, node: &mut Node, options: &'s [Json], path: &str) -> bool {
        let words: Vec<&str> = options
            .iter()
            .filter_map(|option| option.get("const").and_then(Json::as_str))
            .collect();
        if words.len() == options.len() {
            return self.check_word(node, &words, path);
        }
        if options.iter().all(|option| tag_value(option).is_some()) {
            return self.check_tagged(node, options, path);
        }
        environment::parse_compound(node);
        let wanted = match node.value {
            ConfigValue::List(_) => "array",
            ConfigValue::Table(_) => "object",
            ConfigValue::Bool(_)
            | ConfigValue::Float(_)
            | ConfigValue::Integer(_)
            | ConfigValue::Null
            | ConfigValue::Text(_) => "string",
        };
        let fitting = options
            .iter()
            .find(|option| type_of(resolve(self.root, option).1) == wanted);
        if let Some(option) = fitting {
            let words = enum_words(resolve(self.root, option).1);
            if words.is_empty() || node.as_text().is_some_and(|text| words.contains(&text)) {
                return self.check_value(node, option, path);
            }
        }
        // One of the words says little to who meant another shape.
        let shapes = || options.iter().map(|option| resolve(self.root, option).1);
        let wanted: Vec<String> = shapes().flat_map(describe_types).collect();
        let tables = shapes().filter(|shape| type_of(shape) == "object");
        let help = tables.map(example_table).next();
        let help = help.map(|example| format!("use {example}"));
        self.report_type(node, &suggest::join_words(&wanted, "or"), help, path);
        false
    }

    fn check_tagged(&mut self, node: &mut Node, options: &'s [Json], path: &str) -> bool {
        let tags: Vec<&str> = options.iter().filter_map(tag_value).collect();
        environment::parse_compound(node);
        let span = node.span;
        let Some(table) = node.as_table_mut() else {
            let examples: Vec<String> = options.iter().map(example_table).collect();
            let help = format!("write {}", suggest::join_words(&examples, "or"));
            self.report_type(node, "a table", Some(help), path);
            return false;
        };
        let Some(entry) = table.get_mut(TAG) else {
            let diagnostic = Diagnostic::error(format!("`{path}` requires `{TAG}`"));
            let help = format!(
                "write {}",
                suggest::join_words(&quoted_words(&tags, "type = "), "or")
            );
            self.findings
                .add(diagnostic.at(Some(span), "`type` is missing").help(help));
            return false;
        };
        if !self.check_word(&mut entry.node, &tags, &join_path(path, TAG)) {
            return false;
        }
        let written = entry.node.as_text().map(str::to_owned);
        let option = options
            .iter()
            .find(|option| tag_value(option) == written.as_deref());
        option.is_none_or(|schema| {
            self.check_table(
                node,
                Section {
                    name: "Auth",
                    schema,
                },
                path,
            )
        })
    }

    fn check_word(&mut self, node: &mut Node, words: &[&str], path: &str) -> bool {
        let Some(written) = node.as_text() else {
            let help = format!(
                "valid values are {}",
                suggest::join_words(&quoted_words(words, ""), "and")
            );
            self.report_type(node, "a string", Some(help), path);
            return false;
        };
        if words.contains(&written) {
            return true;
        }
        let message = match self.displayable_text(node) {
            Some(written) => format!("`{written}` is not a valid value for `{path}`"),
            None => format!("invalid value for `{path}`"),
        };
        let label = if renamed_keys::is_planned_word(path, written) {
            "not supported by this version".to_owned()
        } else if let Some(close) = suggest::closest(written, words.iter().copied()) {
            format!("did you mean \"{close}\"?")
        } else {
            "not allowed".to_owned()
        };
        let help = format!(
            "valid values are {}",
            suggest::join_words(&quoted_words(words, ""), "and")
        );
        self.findings.add(
            Diagnostic::error(message)
                .at(Some(node.span), label)
                .help(help),
        );
        false
    }

    fn check_text(&mut self, node: &mut Node, path: &str) -> bool {
        match node.value {
            ConfigValue::Text(_) => true,
            // Other programs take these for strings.
            ConfigValue::Bool(_) | ConfigValue::Float(_) | ConfigValue::Integer(_)
                if self.sources.get(node.span.source).is_foreign =>
            {
                node.value = ConfigValue::Text(self.sources.source_text(node.span).to_owned());
                true
            }
            ConfigValue::Bool(_) | ConfigValue::Float(_) | ConfigValue::Integer(_) => {
                self.report_type(node, "a string", Some("add quotes".to_owned()), path);
                false
            }
            ConfigValue::List(_) if path.rsplit('.').next() == Some("command") => {
                self.report_type(
                    node,
                    "a string",
                    command_words(node)
                        .as_deref()
                        .map(suggest::command_suggestion),
                    path,
                );
                false
            }
            ConfigValue::List(_) | ConfigValue::Null | ConfigValue::Table(_) => {
                self.wrong_type(node, "a string", path)
            }
        }
    }

    fn check_boolean(&mut self, node: &mut Node, path: &str) -> bool {
        if node.origin.is_untyped()
            && let Some(value) = node.as_text().and_then(|text| text.trim().parse().ok())
        {
            node.value = ConfigValue::Bool(value);
        }
        if let ConfigValue::Bool(_) = node.value {
            return true;
        }
        // YAML 1.1 took these for booleans, or they stand in quotes.
        let help = match node.as_text().map(str::to_lowercase).as_deref() {
            Some("on" | "true" | "y" | "yes") => Some("use `true`".to_owned()),
            Some("false" | "n" | "no" | "off") => Some("use `false`".to_owned()),
            _ => None,
        };
        self.report_type(node, "`true` or `false`", help, path);
        false
    }

    fn check_number(&mut self, node: &mut Node, schema: &Json, path: &str) -> bool {
        if node.origin.is_untyped()
            && let Some(value) = node.as_text().and_then(|text| text.trim().parse().ok())
        {
            node.value = ConfigValue::Float(value);
        }
        #[expect(clippy::cast_precision_loss, reason = "bounds of numbers are small")]
        let value = match node.value {
            ConfigValue::Float(value) => value,
            ConfigValue::Integer(value) => value as f64,
            ConfigValue::Bool(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_)
            | ConfigValue::Text(_) => return self.wrong_type(node, "a number", path),
        };
        let bound = |keyword: &str| schema.get(keyword).and_then(Json::as_f64);
        self.check_bounds(node, &value, (bound("minimum"), bound("maximum")), path)
    }

    fn check_integer(&mut self, node: &mut Node, schema: &'s Json, path: &str) -> bool {
        if node.origin.is_untyped()
            && let Some(value) = node.as_text().and_then(|text| text.trim().parse().ok())
        {
            node.value = ConfigValue::Integer(value);
        }
        let ConfigValue::Integer(value) = node.value else {
            let help = match node.value {
                ConfigValue::Float(_) => "remove the fraction",
                ConfigValue::Text(_) if node.origin.is_untyped() => {
                    "the variable must contain only digits"
                }
                ConfigValue::Bool(_)
                | ConfigValue::Integer(_)
                | ConfigValue::List(_)
                | ConfigValue::Null
                | ConfigValue::Table(_)
                | ConfigValue::Text(_) => "use a number without quotes",
            };
            self.report_type(node, "a whole number", Some(help.to_owned()), path);
            return false;
        };
        let (min, max) = integer_bounds(schema);
        self.check_bounds(node, &value, (Some(min), Some(max)), path)
    }

    /// Reports a value that is not between its bounds.
    fn check_bounds<T: Display + PartialOrd>(
        &mut self,
        node: &Node,
        value: &T,
        (min, max): (Option<T>, Option<T>),
        path: &str,
    ) -> bool {
        let label = match (min, max) {
            (Some(min), _) if *value < min => format!("must be at least {min}"),
            (_, Some(max)) if *value > max => format!("must be at most {max}"),
            _ => return true,
        };
        self.report_out_of_range(node, label, path)
    }

    /// A time or a size, which was checked to be one, between the bounds that the schema of its key
    /// names or else that of its unit.
    fn check_quantity_bounds(&mut self, node: &Node, schemas: [&Json; 2], path: &str) -> bool {
        let text = node.as_text().unwrap_or_default();
        let keyword = |keyword: &str| schemas.iter().find_map(|schema| schema.get(keyword));
        let bound = |name: &str| keyword(name).and_then(Json::as_str);
        let (min, max) = (bound(MIN_KEYWORD), bound(MAX_KEYWORD));
        let Some(time) = Time::parse(text) else {
            let bounds = (min.and_then(Size::parse), max.and_then(Size::parse));
            return Size::parse(text)
                .is_none_or(|size| self.check_bounds(node, &size, bounds, path));
        };
        let bounds = min.and_then(Time::parse).zip(max.and_then(Time::parse));
        let zero = if keyword(ZERO_KEYWORD).is_some() {
            "0, or "
        } else {
            ""
        };
        match bounds {
            Some((min, max)) if !(min..=max).contains(&time) => {
                if time.0.is_zero() && !zero.is_empty() {
                    return true;
                }
                let label = format!("must be {zero}between {min} and {max}");
                self.report_out_of_range(node, label, path)
            }
            Some(_) | None => true,
        }
    }

    /// Reports a value that its key does not allow; false, for the caller to return.
    fn report_out_of_range(&mut self, node: &Node, label: String, path: &str) -> bool {
        let diagnostic = Diagnostic::error(format!("`{path}` is out of range"));
        self.findings.add(diagnostic.at(Some(node.span), label));
        false
    }

    /// A text of which the schema says more than that it is one.
    fn check_format(&mut self, node: &Node, schema: &Json, path: &str) -> bool {
        if schema.get("format").and_then(Json::as_str) != Some(GlobList::FORMAT) {
            return true;
        }
        let Err(error) = glob(node.as_text().unwrap_or_default()) else {
            return true;
        };
        let message = match self.displayable_text(node) {
            Some(text) => format!("`{text}` is not a glob"),
            None => format!("the value of `{path}` is not a glob"),
        };
        self.findings.add(
            Diagnostic::error(message)
                .at(Some(node.span), error.kind().to_string())
                .help("`*`, `?`, `[a-z]` and `{a,b}` are special; `\\` escapes them"),
        );
        false
    }

    fn check_quantity(&mut self, node: &mut Node, unit: &str, path: &str) -> bool {
        let is_time = unit == Time::KEYWORD;
        if is_time && matches!(node.value, ConfigValue::Integer(0)) {
            node.value = ConfigValue::Text("0s".to_owned());
        }
        let (noun, units, examples) = if is_time {
            ("a duration", ["s", "ms"], "\"500ms\", \"30s\" or \"1m30s\"")
        } else {
            ("a size", ["KiB", "MiB"], "\"64KiB\" or \"4MiB\"")
        };
        let bare = match &node.value {
            ConfigValue::Text(text) => {
                let parsed = if is_time {
                    Time::parse(text).is_some()
                } else {
                    Size::parse(text).is_some()
                };
                if parsed {
                    return true;
                }
                text.trim().parse::<f64>().is_ok()
            }
            ConfigValue::Float(_) | ConfigValue::Integer(_) => true,
            ConfigValue::Bool(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_) => false,
        };
        let written = self
            .sources
            .source_text(node.span)
            .trim_matches(['"', '\'']);
        let (label, help) = if bare && self.displayable_text(node).is_some() {
            let [small, large] = units.map(|unit| format!("\"{written}{unit}\""));
            ("missing unit", format!("use {small} or {large}"))
        } else {
            (
                if bare { "missing unit" } else { "not valid" },
                format!("for example {examples}"),
            )
        };
        let diagnostic = Diagnostic::error(format!("`{path}` must be {noun} with a unit"));
        self.findings
            .add(diagnostic.at(Some(node.span), label).help(help));
        false
    }

    /// An amount of money, which is a string: a number would be a float, and those are not exact.
    fn check_money(&mut self, node: &Node, path: &str) -> bool {
        let written = match node.value {
            ConfigValue::Text(_) => node.as_text().unwrap_or_default(),
            ConfigValue::Float(_) | ConfigValue::Integer(_) => self.sources.source_text(node.span),
            ConfigValue::Bool(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_) => "",
        };
        let parsed = written.trim().parse::<Micros>();
        let label = match (&node.value, &parsed) {
            (ConfigValue::Text(_), Ok(_)) => return true,
            (ConfigValue::Text(_), Err(invalid)) => invalid.to_string(),
            _ => format!("this is {}", node.kind()),
        };
        let meant = written.trim().trim_start_matches(['$', '+']).trim_start();
        let is_shown = self.displayable_text(node).is_some();
        let help = match meant.parse::<Micros>() {
            Ok(_) if is_shown => format!("use \"{meant}\""),
            Err(InvalidAmount::TooPrecise) => {
                "the smallest amount is \"0.000001\", a micro-dollar".to_owned()
            }
            Ok(_)
            | Err(InvalidAmount::Malformed | InvalidAmount::Negative | InvalidAmount::TooLarge) => {
                "for example \"0.015\"".to_owned()
            }
        };
        let diagnostic = Diagnostic::error(match node.value {
            ConfigValue::Text(_) => format!("`{path}` is not a valid USD amount"),
            ConfigValue::Bool(_)
            | ConfigValue::Float(_)
            | ConfigValue::Integer(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_) => format!("`{path}` must be a quoted amount"),
        });
        self.findings
            .add(diagnostic.at(Some(node.span), label).help(help));
        false
    }

    /// Reports that `node` is not `wanted`; false, for the caller to return.
    fn wrong_type(&mut self, node: &Node, wanted: &str, path: &str) -> bool {
        self.report_type(node, wanted, None, path);
        false
    }

    fn report_type(&mut self, node: &Node, wanted: &str, help: Option<String>, path: &str) {
        let diagnostic = if path.is_empty() {
            Diagnostic::error(format!("a config is {wanted}"))
        } else {
            Diagnostic::error(format!("`{path}` must be {wanted}"))
        };
        let label = format!("this is {}", node.kind());
        self.findings
            .add(diagnostic.at(Some(node.span), label).help_if(help));
    }

    /// The text of `node`, when it may be shown.
    fn displayable_text<'n>(&self, node: &'n Node) -> Option<&'n str> {
        let hidden = &self.sources.get(node.span.source).hidden;
        let shown = node.origin != ValueOrigin::Variable && !hidden.hides(&node.span.range());
        shown.then(|| node.as_text().unwrap_or_default())
    }
}

/// How what is `written` as one text in place of the list at `path` is written as one.
fn list_suggestion(written: &str, path: &str) -> String {
    // Words are arguments; in lists of anything else they stand between commas.
    let shown = redact::redact_command_line(written);
    let items: Vec<&str> = if path.rsplit('.').next() == Some("args") {
        shown.split_whitespace().collect()
    } else {
        written.split(',').map(str::trim).collect()
    };
    let items = items.iter().filter(|item| !item.is_empty());
    let items: Vec<_> = items
        .map(|item| format!("\"{}\"", item.escape_debug()))
        .collect();
    match items.as_slice() {
        [] => "write [\"...\"]".to_owned(),
        items => format!("write [{}]", items.join(", ")),
    }
}

/// The words of a command that is a list, as other programs have it, without what is secret in them;
/// `None` where some are no words, or from a variable.
fn command_words(node: &Node) -> Option<Vec<String>> {
    let items = node.as_list().into_iter().flatten();
    let words = items.map(|item| {
        item.as_text()
            .filter(|_| item.origin == ValueOrigin::Written)
    });
    let words: Vec<&str> = words.collect::<Option<_>>()?;
    Some(redact::redact_words(&words))
}

/// What `schema` describes, for people.
fn describe_types(schema: &Json) -> Vec<String> {
    let words = enum_words(schema);
    match type_of(schema) {
        "array" => vec!["a list".to_owned()],
        "object" => vec!["a table".to_owned()],
        _ if words.is_empty() => vec!["a string".to_owned()],
        _ => quoted_words(&words, ""),
    }
}

/// A stand-in for a table that `schema` describes, with the keys that it needs.
fn example_table(schema: &Json) -> String {
    let section = Section { name: "", schema };
    let required = section.required();
    let keys: Vec<String> = required
        .iter()
        .map(|key| format!("{key} = {}", example_value(section.key(key))))
        .collect();
    format!("{{ {} }}", keys.join(", "))
}

/// A stand-in for a value that `schema` describes.
fn example_value(schema: Option<&Json>) -> String {
    if let Some(word) = schema.and_then(|schema| schema.get("const")) {
        return word.to_string();
    }
    match schema.map(type_of) {
        Some("array") => "[...]",
        Some("boolean" | "integer" | "number") => "...",
        Some(_) | None => "\"...\"",
    }
    .to_owned()
}

/// `"a"`, `"b"`, each behind `prefix`.
fn quoted_words(words: &[&str], prefix: &str) -> Vec<String> {
    words
        .iter()
        .map(|word| format!("{prefix}\"{word}\""))
        .collect()
}
