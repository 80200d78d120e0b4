//! The shape of a config: keys, types, legal words, bounds and globs, checked against the schema of
//! `file`.
//!
//! The schema is generated from the types, so that editors, this check and the decoder agree. What
//! does not conform is reported and left out, so that one mistake hides no other.

mod scalars;

use serde_json::Value as Json;

use super::{
    diagnostics::{
        ignored_keys::IgnoredKey,
        redact, renamed_keys,
        report::{ConfigTexts, Diagnostic, Diagnostics},
        suggest,
    },
    file,
    node::{ConfigValue, Node, TableEntry, ValueOrigin, join_path},
    schema::{Section, TAG, enum_words, key_tables, options_of, resolve, tag_value, type_of},
    source::environment,
    units::{MONEY_KEYWORD, UNIT_KEYWORD},
};

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

/// Whether `node` is what `schema`, a part of `root`, describes, and has no other key; what a variable
/// decides is taken to be right.
pub(super) fn conforms(
    node: &Node,
    (root, schema): (&Json, &Json),
    sources: &mut ConfigTexts,
) -> bool {
    let mut findings = Diagnostics::default();
    let mut node = node.clone();
    leave_out_variables(&mut node);
    let is_open = node.origin == ValueOrigin::Invalid;
    let mut check = ShapeCheck {
        root,
        sources,
        findings: &mut findings,
    };
    (is_open || check.check_value(&mut node, schema, "key")) && findings.is_empty()
}

fn leave_out_variables(node: &mut Node) {
    match &mut node.value {
        ConfigValue::List(items) => items.iter_mut().for_each(leave_out_variables),
        ConfigValue::Table(entries) => {
            for entry in entries.values_mut() {
                leave_out_variables(&mut entry.node);
            }
        }
        ConfigValue::Text(text) if text.contains("${") => node.origin = ValueOrigin::Invalid,
        ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::Null
        | ConfigValue::Text(_) => {}
    }
}

/// Whether `node` is a table, or a map of tables, without a single key that `schema` has.
pub(super) fn shares_no_key(node: &Node, root: &Json, schema: &Json) -> bool {
    let (name, schema) = resolve(root, schema);
    let section = Section { name, schema };
    let is_map = schema
        .get("additionalProperties")
        .is_some_and(Json::is_object);
    let entries = node.as_table().into_iter().flatten();
    entries
        .map(|(key, entry)| match section.key(key) {
            Some(schema) if is_map => shares_no_key(&entry.node, root, schema),
            found => found.is_none(),
        })
        .fold(None, |all, shares| Some(all.unwrap_or(true) && shares))
        .unwrap_or_else(|| node.as_table().is_none() && type_of(schema) == "object")
}

/// Sections, and tables of a server, in which an unknown key is an error also in another program's document.
const STRICT_SECTIONS: [&str; 3] = ["agents", "audit", "governance"];
const STRICT_SERVER_KEYS: [&str; 6] = ["limits", "prompts", "rate", "resources", "scan", "tools"];

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
                let is_quantity = self.check_quantity(node, unit, path);
                if is_quantity {
                    self.check_quantity_bounds(node, [field, schema], path);
                }
                return is_quantity;
            }
            None => {}
        }
        let options = options_of(schema);
        if !options.is_empty() {
            return self.check_one_of(node, options, path);
        }
        if let Some(words) = schema.get("enum").and_then(Json::as_array) {
            let words: Vec<&str> = words.iter().filter_map(Json::as_str).collect();
            return self.check_word(node, &words, path);
        }
        match schema.get("type").and_then(Json::as_str) {
            Some("object") => self.check_table(node, Section { name, schema }, path),
            Some("array") => self.check_list(node, schema, path),
            Some("string") => {
                self.check_text(node, schema, path) && self.check_format(node, schema, path)
            }
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
        // What protects must be right wherever it stands.
        let mut segments = path.split('.');
        let section = segments.next().unwrap_or_default();
        let of_server = segments.nth(1).filter(|_| section == "servers");
        let protects = STRICT_SECTIONS.contains(&section)
            || of_server.is_some_and(|key| STRICT_SERVER_KEYS.contains(&key));
        if self.sources.get(entry.key.source).is_foreign && !protects {
            self.findings.ignore_key(IgnoredKey {
                span: entry.key,
                path: join_path(path, key),
                pattern: None,
                is_protection: false,
                note: meant,
            });
            return;
        }
        let all = || format!("valid keys are {}", suggest::list_and(&keys));
        let finding = Diagnostic::error(message).at(Some(entry.key), "no such key");
        let meant = meant.or_else(|| key_tables::describe_places(self.root, key));
        self.findings.add(finding.help(meant.unwrap_or_else(all)));
    }

    fn check_list(&mut self, node: &mut Node, schema: &'s Json, path: &str) -> bool {
        environment::parse_compound(node);
        let ConfigValue::List(items) = &mut node.value else {
            let (_, items) = resolve(self.root, &schema["items"]);
            let written = self
                .displayable_text(node)
                .filter(|_| type_of(items) == "string");
            let help = if type_of(items) == "object" {
                let one = example_table(items);
                format!("write `[[{path}]]` with two brackets in TOML, or a list: [{one}]")
            } else {
                list_suggestion(written.unwrap_or_default(), path)
            };
            self.report_type(node, "a list", Some(help), path);
            return false;
        };
        let mut kept = Vec::new();
        for (index, mut item) in std::mem::take(items).into_iter().enumerate() {
            let is_allowed = schema.get("items").is_none_or(|schema| {
                self.check_value(&mut item, schema, &format!("{path}[{index}]"))
            });
            if is_allowed {
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
        let mut flat = Vec::new();
        self.flatten_options(options, &mut flat);
        let fitting = flat.iter().find(|option| {
            let (_, shape) = resolve(self.root, option);
            let words = enum_words(shape);
            let has_word = || node.as_text().is_some_and(|text| words.contains(&text));
            type_of(shape) == wanted && (words.is_empty() || has_word())
        });
        if let Some(option) = fitting {
            return self.check_value(node, option, path);
        }
        let words: Vec<&str> = flat
            .iter()
            .filter(|option| type_of(resolve(self.root, option).1) == "string")
            .flat_map(|option| match enum_words(resolve(self.root, option).1) {
                words if words.is_empty() => vec![""],
                words => words,
            })
            .collect();
        let is_word = !words.is_empty() && words.iter().all(|word| !word.is_empty());
        let takes_list = flat
            .iter()
            .all(|option| type_of(resolve(self.root, option).1) != "object");
        if node.as_text().is_some() && is_word && takes_list {
            return self.check_word(node, &words, path);
        }
        // One of the words says little to who meant another shape.
        let shapes = || flat.iter().map(|option| resolve(self.root, option).1);
        let wanted: Vec<String> = shapes().flat_map(describe_types).collect();
        let tables = shapes().filter(|shape| type_of(shape) == "object");
        let help = tables.map(example_table).next();
        let help = help.map(|example| format!("use {example}"));
        self.report_type(node, &suggest::join_words(&wanted, "or"), help, path);
        false
    }

    /// Adds `options`, and in place of each that has options itself those, words before other texts.
    fn flatten_options(&self, options: &'s [Json], flat: &mut Vec<&'s Json>) {
        for option in options {
            let (_, shape) = resolve(self.root, option);
            match options_of(shape) {
                nested @ [_, ..] if enum_words(shape).is_empty() => {
                    self.flatten_options(nested, flat);
                }
                _ => flat.push(option),
            }
        }
        flat.sort_by_key(|option| enum_words(resolve(self.root, option).1).is_empty());
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
