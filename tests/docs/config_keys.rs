//! `reference/config.md`: the keys of the schema of configs, a section for each table.

use std::{collections::VecDeque, fmt::Write as _};

use serde_json::{Map, Value};

use tollbridge::config::{restart_keys, server_keys};

use crate::markdown::{anchor, wrap};

/// Where a schema keeps the types that it refers to.
const DEFINITIONS: &str = "#/$defs/";
/// The table whose keys agents and profiles have too.
const TERMS: &str = "GovernanceConfig";

pub(crate) fn page(schema: &Value) -> String {
    let mut page = Page {
        schema,
        told: Vec::new(),
        waiting: VecDeque::new(),
        out: "## Top level\n\n".to_owned(),
    };
    page.keys(schema, "");
    while let Some((name, path)) = page.waiting.pop_front() {
        page.section(name, &path);
    }
    page.out
}

struct Page<'s> {
    schema: &'s Value,
    /// The types that have a section, or will have one.
    told: Vec<&'s str>,
    /// Types without a section yet, each with where in a config it was met first.
    waiting: VecDeque<(&'s str, String)>,
    out: String,
}

impl<'s> Page<'s> {
    fn section(&mut self, name: &'s str, path: &str) {
        let schema = self.definition(name);
        let description = description(schema);
        write!(self.out, "\n## {}\n\n", title(name)).expect("a String takes all");
        let place = if schema.get("properties").is_some() {
            format!("`[{path}]`: ")
        } else {
            String::new()
        };
        self.out
            .push_str(&wrap("", &format!("{place}{description}"), 0));
        self.out.push('\n');
        self.keys(schema, path);
        for option in options(schema) {
            self.option(option, path);
        }
    }

    /// The keys of a table; agents and profiles only name those that they have in common with everybody.
    fn keys(&mut self, schema: &'s Value, path: &str) {
        let terms = &self.definition(TERMS)["properties"];
        let is_other = schema != self.definition(TERMS);
        let mut shared = Vec::new();
        for (key, property) in properties(schema) {
            if is_other && !path.is_empty() && terms.get(key) == Some(property) {
                shared.push(format!("`{key}`"));
                continue;
            }
            let required = required(schema).any(|it| it == key);
            self.key(key, property, required, path);
        }
        if !shared.is_empty() {
            let text = format!("as in [governance](#{}).", anchor(&title(TERMS)));
            let text = format!("- {}: {text}", shared.join(", "));
            self.out.push_str(&wrap("", &text, 2));
        }
    }

    fn key(&mut self, key: &str, schema: &'s Value, required: bool, path: &str) {
        let inner = match path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        let kind = self.kind(schema, &inner);
        let default = schema.get("default").filter(|it| !it.is_object());
        let default = match default {
            Some(default) => format!(", default `{default}`"),
            None if required => ", required".to_owned(),
            None => String::new(),
        };
        let change = changed(&inner);
        let bounds = self.bounds(schema);
        let text = format!("({kind}{bounds}{default}): {}{change}", description(schema));
        self.out.push_str(&wrap(&format!("- `{key}` "), &text, 2));
    }

    /// One of several forms that a value may have.
    fn option(&mut self, option: &'s Value, path: &str) {
        if let Some(word) = option.get("const") {
            let text = description(option);
            self.out.push_str(&wrap(&format!("- `{word}`: "), &text, 2));
            return;
        }
        let tag = option.pointer("/properties/type/const");
        if let Some(tag) = tag {
            let text = format!("`type = {tag}`: {}", description(option));
            self.out.push_str(&wrap("- ", &text, 2));
            for (key, property) in properties(option).filter(|(key, _)| *key != "type") {
                let text = description(property);
                self.out
                    .push_str(&wrap(&format!("  - `{key}`: "), &text, 4));
            }
            return;
        }
        let kind = self.kind(option, path);
        let text = description(option);
        self.out.push_str(&wrap(&format!("- {kind}: "), &text, 2));
    }

    /// What kind of value `schema` describes, with a link where it has a section.
    fn kind(&mut self, schema: &'s Value, path: &str) -> String {
        if let Some(name) = reference(schema) {
            return match name {
                "Time" => "duration".to_owned(),
                "Size" => "size".to_owned(),
                "Amount" => "amount".to_owned(),
                "Off" => "`\"off\"`".to_owned(),
                _ => self.link(name, path),
            };
        }
        if let Some(items) = schema.get("items") {
            return format!("list of {}", self.kind(items, path));
        }
        if let Some(values) = schema
            .get("additionalProperties")
            .filter(|it| it.is_object())
        {
            return format!("table of {}", self.kind(values, &format!("{path}.NAME")));
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("array") => "list".to_owned(),
            Some("boolean") => "boolean".to_owned(),
            Some("integer" | "number") => "number".to_owned(),
            Some("object") => "table".to_owned(),
            Some("string") => "string".to_owned(),
            _ => "any value".to_owned(),
        }
    }

    /// Between what a number, a time or a size must be; the schema of a key goes before that of its type.
    fn bounds(&self, schema: &Value) -> String {
        let of_type = reference(schema).map(|name| self.definition(name));
        let schemas = [Some(schema), of_type];
        let keyword = |keyword: &str| schemas.iter().flatten().find_map(|it| it.get(keyword));
        let is_quantity = keyword("x-unit").is_some();
        let bound = |quantity: &str, number: &str| {
            let name = if is_quantity { quantity } else { number };
            let bound = keyword(name).filter(|it| *it != "none" && **it != 0)?;
            Some(format!("`{}`", bound.to_string().trim_matches('"')))
        };
        let zero = keyword("x-zero").map_or("", |_| "`0` or ");
        match (bound("x-min", "minimum"), bound("x-max", "maximum")) {
            (Some(min), Some(max)) => format!(", {zero}{min} to {max}"),
            (Some(min), None) => format!(", {zero}at least {min}"),
            (None, Some(max)) => format!(", at most {max}"),
            (None, None) => String::new(),
        }
    }

    fn link(&mut self, name: &'s str, path: &str) -> String {
        if !self.told.contains(&name) {
            self.told.push(name);
            self.waiting.push_back((name, path.to_owned()));
        }
        let title = title(name);
        format!(
            "[{}](#{})",
            title.to_lowercase().replace("oauth", "OAuth"),
            anchor(&title)
        )
    }

    fn definition(&self, name: &str) -> &'s Value {
        &self.schema["$defs"][name]
    }
}

/// What a change of the key at `path` does to what runs, where it does not simply apply.
fn changed(path: &str) -> &'static str {
    let of_server = path.strip_prefix("servers.NAME.");
    let mut of_servers = server_keys().filter(|(_, is_taken)| !is_taken);
    if restart_keys().any(|key| key == path) {
        " A change requires a restart of the gateway."
    } else if of_server.is_some_and(|key| of_servers.any(|(anew, _)| anew == key)) {
        " A change restarts the server."
    } else {
        ""
    }
}

/// `ServerLimitsSection` -> `Server limits`.
fn title(name: &str) -> String {
    let suffixes = ["Section", "Config"].into_iter();
    let name = suffixes.fold(name, |name, it| name.strip_suffix(it).unwrap_or(name));
    let mut title = String::new();
    let name = name.replace("OAuth", "Oauth");
    for character in name.chars() {
        if character.is_uppercase() && !title.is_empty() {
            title.push(' ');
            title.extend(character.to_lowercase());
        } else {
            title.push(character);
        }
    }
    title.replace("Oauth", "OAuth").replace("oauth", "OAuth")
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(DEFINITIONS)
}

fn description(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str);
    text.unwrap_or_default().replace('\n', " ")
}

fn properties(schema: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let all = schema.get("properties").and_then(Value::as_object);
    let all = all.into_iter().flat_map(Map::iter);
    all.map(|(key, schema)| (key.as_str(), schema))
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    let keys = schema.get("required").and_then(Value::as_array);
    keys.into_iter().flatten().filter_map(Value::as_str)
}

fn options(schema: &Value) -> impl Iterator<Item = &Value> {
    let all = ["oneOf", "anyOf"].into_iter();
    let all = all.filter_map(|keyword| schema.get(keyword)?.as_array());
    all.flatten()
}
