//! The arguments of a tool as a command line writes them.

use std::io;

use serde_json::Value;

use crate::mcp::Raw;

/// What the command line says, before the tool is known.
#[derive(Debug)]
pub(super) enum GivenArgument {
    /// The whole object.
    Object(Raw),
    /// Names and values; the tool's schema decides what the values are.
    Pairs(Vec<(String, String)>),
}

/// Why there are no arguments; the caller mends the command line.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidArguments {
    /// An argument is given more than once.
    #[error("--arg {name} is given twice")]
    Duplicate {
        /// Its name.
        name: String,
    },
    /// Not JSON.
    #[error("the arguments are not JSON: {error}")]
    Json {
        /// What the parser said.
        error: serde_json::Error,
    },
    /// Not an object.
    #[error("the arguments are not a JSON object; use {{\"name\": value}} or --arg name=value")]
    NotAnObject,
    /// Not a pair.
    #[error("--arg {text}: expected NAME=VALUE")]
    NotAPair {
        /// What was given.
        text: String,
    },
    /// stdin cannot be read.
    #[error("cannot read the arguments from stdin: {0}")]
    Read(#[from] io::Error),
    /// stdin is asked for twice.
    #[error("the key and the arguments cannot both come from stdin")]
    Stdin,
}

impl GivenArgument {
    /// Checks that `text` is an object.
    pub(super) fn from_object(text: String) -> Result<Self, InvalidArguments> {
        let object = Raw::parse(text).map_err(|error| InvalidArguments::Json { error })?;
        if object.is_object() {
            Ok(Self::Object(object))
        } else {
            Err(InvalidArguments::NotAnObject)
        }
    }

    /// Splits each of `pairs` at its first `=`.
    pub(super) fn from_pairs(pairs: &[String]) -> Result<Self, InvalidArguments> {
        let mut split: Vec<(String, String)> = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let text = || pair.clone();
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| InvalidArguments::NotAPair { text: text() })?;
            if split.iter().any(|(known, _)| known == name) {
                let name = name.to_owned();
                return Err(InvalidArguments::Duplicate { name });
            }
            split.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self::Pairs(split))
    }

    /// The arguments object for the tool that is listed as `item`. A value that is JSON is taken as
    /// such, in its own spelling, unless the tool wants a string there.
    pub(super) fn to_arguments(&self, item: &Raw) -> Raw {
        let pairs = match self {
            Self::Object(object) => return object.clone(),
            Self::Pairs(pairs) => pairs,
        };
        let schema: Value = item
            .get("inputSchema")
            .and_then(|schema| schema.read().ok())
            .unwrap_or_default();
        let members: Vec<String> = pairs
            .iter()
            .map(|(name, text)| {
                let wanted = schema.get("properties").and_then(|all| all.get(name));
                let value = to_value(text, wanted);
                format!("{}:{}", Raw::string(name).as_str(), value.as_str())
            })
            .collect();
        Raw::parse(format!("{{{}}}", members.join(","))).expect("joined from valid JSON")
    }
}

fn to_value(text: &str, wanted: Option<&Value>) -> Raw {
    if wanted.is_some_and(wants_string) {
        return Raw::string(text);
    }
    Raw::parse(text.to_owned()).unwrap_or_else(|_| Raw::string(text))
}

/// Whether `schema` says that strings are what is wanted, perhaps among others.
fn wants_string(schema: &Value) -> bool {
    let is_string = |name: &Value| name == "string";
    let by_type = match schema.get("type") {
        Some(Value::Array(names)) => names.iter().any(is_string),
        Some(name) => is_string(name),
        None => false,
    };
    let by_value = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) => values.iter().all(Value::is_string),
        (_, Some(value)) => value.is_string(),
        (_, None) => false,
    };
    let by_branch = ["anyOf", "oneOf"].iter().any(|key| {
        let branches = schema.get(*key).and_then(Value::as_array);
        branches.is_some_and(|branches| branches.iter().any(wants_string))
    });
    by_type || by_value || by_branch
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &str = r#"{"name":"t","inputSchema":{"type":"object","properties":{
        "s":{"type":"string"},"n":{"type":"number"},"either":{"type":["string","null"]},
        "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"e":{"enum":["1","2"]},"any":{}}}}"#;

    #[test]
    fn the_schema_decides_what_a_value_is() {
        let check = |pairs: &[&str], expect: &str| {
            let pairs: Vec<String> = pairs.iter().map(ToString::to_string).collect();
            let found = match GivenArgument::from_pairs(&pairs) {
                Ok(given) => given
                    .to_arguments(&Raw::from_static(ITEM))
                    .as_str()
                    .to_owned(),
                Err(invalid) => invalid.to_string(),
            };
            assert_eq!(found, expect, "{pairs:?}");
        };
        check(&[], "{}");
        check(&["s=5", "n=1e3"], r#"{"s":"5","n":1e3}"#);
        check(&["any=[1, 2]", "new=a b"], r#"{"any":[1, 2],"new":"a b"}"#);
        check(
            &["either=null", "maybe=7", "e=1"],
            r#"{"either":"null","maybe":"7","e":"1"}"#,
        );
        check(&["any=a=b", "n="], r#"{"any":"a=b","n":""}"#);
        check(&["any"], "--arg any: expected NAME=VALUE");
        check(&["any=1", "any=2"], "--arg any is given twice");
    }

    #[test]
    fn an_object_is_passed_on_as_it_is() {
        let check = |text: &str, expect: &str| {
            let found = match GivenArgument::from_object(text.to_owned()) {
                Ok(given) => given
                    .to_arguments(&Raw::from_static(ITEM))
                    .as_str()
                    .to_owned(),
                Err(invalid) => invalid.to_string(),
            };
            assert_eq!(found, expect, "{text}");
        };
        check(r#" {"s" : 1e3} "#, r#"{"s" : 1e3}"#);
        check(
            "[]",
            r#"the arguments are not a JSON object; use {"name": value} or --arg name=value"#,
        );
        check(
            "{",
            "the arguments are not JSON: EOF while parsing an object at line 1 column 1",
        );
    }
}
