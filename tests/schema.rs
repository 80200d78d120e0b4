//! The schema, the types and the example file say the same.

#[path = "settings/commented_example.rs"]
mod commented;

use std::{collections::BTreeSet, path::Path};

use serde_json::Value;
use tollbridge::{
    config::{ConfigFormat, ConfigText, Environment, LoadedConfig, parse, schema},
    names::ServerName,
};

use commented::{VARIABLES, uncommented};

/// Keys whose default would leave the rest of the example without effect; a comment says the default.
const NOT_AT_DEFAULT: [&str; 9] = [
    // Without keys nobody is one of the agents.
    ".governance.auth",
    // By default a rule refuses what its conditions hold of, which is hard to read in a list of
    // what is allowed.
    ".governance.args.action",
    ".agents.researcher.args.action",
    // A rule for all tools would leave nothing to say of the next.
    ".servers.library.route.tools",
    // What an issuer of the operator has.
    ".jwt.ci.algorithms",
    ".jwt.ci.audience",
    ".oauth.audience",
    ".oauth.mode",
    ".oauth.scopes",
];

#[test]
fn the_committed_schema_is_the_one_of_the_types() {
    let committed = read("schemas/config.schema.json");
    let generated = format!("{:#}\n", schema());
    assert!(
        committed == generated,
        "schemas/config.schema.json is out of date; write it anew with\n\n    \
         tollbridge schema > schemas/config.schema.json\n"
    );
}

#[test]
fn the_example_runs_on_a_fresh_machine() {
    let LoadedConfig {
        config, warnings, ..
    } = load(&read("config.example.toml"), &[]);
    assert!(warnings.is_empty(), "{warnings:?}");
    let servers: Vec<&str> = config.servers.keys().map(ServerName::as_str).collect();
    assert_eq!(servers, ["toolbox"]);
    let default = load("[servers.toolbox]\ntransport = 'builtin'", &[]).config;
    assert_eq!(config, default, "the example sets only defaults");
}

#[test]
fn the_example_runs_with_everything_in_it() {
    let LoadedConfig { warnings, .. } = load(&uncommented(), &VARIABLES);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn the_example_has_every_key_at_its_default() {
    let schema = schema();
    let example: Value = toml::from_str(&uncommented()).expect("valid TOML");
    let mut walk = Walk {
        schema: &schema,
        seen: BTreeSet::new(),
        wrong: Vec::new(),
    };
    walk.value(&example, &schema, "");
    assert!(
        walk.wrong.is_empty(),
        "not at their defaults: {:#?}",
        walk.wrong
    );
    let missing: Vec<_> = keys(&schema).difference(&walk.seen).cloned().collect();
    assert!(
        missing.is_empty(),
        "config.example.toml does not mention {missing:#?}"
    );
}

#[test]
fn every_key_is_described() {
    let schema = schema();
    let (_, nothing) = all_keys(&schema)
        .into_iter()
        .partition::<Vec<_>, _>(|(_, _, schema)| {
            schema.get("description").is_some() || schema.get("const").is_some()
        });
    assert!(nothing.is_empty(), "{nothing:#?}");
}

/// A walk through a document and its schema at once.
struct Walk<'s> {
    schema: &'s Value,
    seen: BTreeSet<String>,
    wrong: Vec<String>,
}

impl<'s> Walk<'s> {
    fn value(&mut self, value: &Value, schema: &'s Value, path: &str) {
        let (name, resolved) = resolve(self.schema, schema);
        let options = resolved
            .get("oneOf")
            .or(resolved.get("anyOf"))
            .and_then(Value::as_array);
        for option in options
            .into_iter()
            .flatten()
            .filter(|option| fits(option, value))
        {
            if option.get("$ref").is_some() {
                self.value(value, option, path);
            } else {
                self.table(value, option, name, path);
            }
        }
        self.table(value, resolved, name, path);
        for item in value.as_array().into_iter().flatten() {
            if let Some(items) = resolved.get("items") {
                self.value(item, items, path);
            }
        }
    }

    fn table(&mut self, value: &Value, schema: &'s Value, name: &str, path: &str) {
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = format!("{path}.{key}");
            let property = schema.get("properties").and_then(|keys| keys.get(key));
            if let Some(property) = property {
                self.seen.insert(format!("{name}.{key}"));
                let default = property.get("default");
                let differs = default.is_some_and(|default| default != value);
                let is_free = default.is_some_and(Value::is_object)
                    || NOT_AT_DEFAULT.contains(&path.as_str());
                if differs && !is_free {
                    self.wrong.push(format!("{path} = {value}"));
                }
                self.value(value, property, &path);
            } else if let Some(others) = schema.get("additionalProperties") {
                self.value(value, others, &path);
            }
        }
    }
}

/// Whether `option` is the one of several that describes `value`.
fn fits(option: &Value, value: &Value) -> bool {
    let tag = option.pointer("/properties/type/const");
    match tag {
        Some(tag) => value.get("type") == Some(tag),
        None => value.is_object() && option.get("$ref").is_some(),
    }
}

fn resolve<'s>(root: &'s Value, schema: &'s Value) -> (&'s str, &'s Value) {
    let reference = schema
        .get("$ref")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let name = reference.strip_prefix("#/$defs/").unwrap_or_default();
    root.get("$defs")
        .and_then(|types| types.get(name))
        .map_or(("", schema), |found| (name, found))
}

/// `Naming.template` for every key of every type.
fn keys(schema: &Value) -> BTreeSet<String> {
    all_keys(schema)
        .into_iter()
        .map(|(name, key, _)| format!("{name}.{key}"))
        .collect()
}

fn all_keys(schema: &Value) -> Vec<(String, String, &Value)> {
    let types = schema["$defs"].as_object().into_iter().flatten();
    let types = types
        .map(|(name, schema)| (name.as_str(), schema))
        .chain([("", schema)]);
    let mut keys = Vec::new();
    for (name, schema) in types {
        let options = schema
            .get("oneOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        for schema in options.chain([schema]) {
            for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
                keys.push((name.to_owned(), key.clone(), schema));
            }
        }
    }
    keys
}

fn load(text: &str, environment: &[(&str, &str)]) -> LoadedConfig {
    let environment: Environment = environment.iter().copied().collect();
    let source = ConfigText {
        name: "config.example.toml".to_owned(),
        format: ConfigFormat::Toml,
        text: text.to_owned(),
        directory: "/".into(),
    };
    parse([source], &environment).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
