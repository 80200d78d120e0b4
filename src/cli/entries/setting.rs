//! Settings on a command line, as `KEY=VALUE` of a config file.

use std::str::FromStr;

use serde_json::{Map, Value};
use toml::Table;

/// The key of a setting, such as `tools.deny`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SettingKey(Vec<String>);

/// A key and what it is to say.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    key: SettingKey,
    value: Value,
}

/// Why an argument is no setting; whoever typed it mends it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum InvalidSetting {
    /// It has no `=`.
    #[error("write KEY=VALUE")]
    NoValue,
    /// What stands before it is no key.
    #[error("`{0}` is no key of a config")]
    Key(String),
}

impl FromStr for SettingKey {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let invalid = || InvalidSetting::Key(text.to_owned());
        let mut table: Table = format!("{text} = 0").parse().map_err(|_| invalid())?;
        let mut keys = Vec::new();
        // One key leads to the next; other tables are no dotted key.
        while table.len() == 1 {
            let Some((key, value)) = table.into_iter().next() else {
                break;
            };
            keys.push(key);
            let toml::Value::Table(below) = value else {
                return Ok(Self(keys));
            };
            table = below;
        }
        Err(invalid())
    }
}

impl FromStr for Setting {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let (key, value) = text.split_once('=').ok_or(InvalidSetting::NoValue)?;
        Ok(Self {
            key: key.parse()?,
            value: parse_value(value),
        })
    }
}

/// A value as TOML has it; text where it is none.
fn parse_value(text: &str) -> Value {
    let parsed: Result<Table, _> = format!("value = {text}").parse();
    let parsed = parsed.ok().filter(|table| table.len() == 1);
    let value = parsed.and_then(|mut table| table.remove("value"));
    // No setting is a date, and JSON has none.
    let value = value.filter(|value| !value.is_datetime());
    let value = value.and_then(|value| serde_json::to_value(value).ok());
    value.unwrap_or_else(|| text.into())
}

impl Setting {
    /// Puts it into `document`.
    pub(super) fn put_into(&self, document: &mut Value) {
        self.key.put_into(document, self.value.clone());
    }
}

impl SettingKey {
    /// Puts `value` into `document` at the key.
    pub(super) fn put_into(&self, document: &mut Value, value: Value) {
        let mut at = document;
        for key in &self.0 {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[key.as_str()];
        }
        *at = value;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read_as_in_a_config() {
        let check = |text: &str, expect: Value| {
            let mut document = json!({});
            let setting: Setting = text.parse().unwrap();
            setting.put_into(&mut document);
            assert_eq!(document, expect, "{text}");
        };
        check(
            "url=https://h/mcp?a=b",
            json!({ "url": "https://h/mcp?a=b" }),
        );
        check("timeout=30s", json!({ "timeout": "30s" }));
        check("enabled=false", json!({ "enabled": false }));
        check("priority=3", json!({ "priority": 3 }));
        check("tools.deny=[\"a\"]", json!({ "tools": { "deny": ["a"] } }));
        check(
            "auth={ type = \"none\" }",
            json!({ "auth": { "type": "none" } }),
        );
        check("env.\"A.B\"=x", json!({ "env": { "A.B": "x" } }));
        check("cwd=\"1\"", json!({ "cwd": "1" }));
        check("cwd=", json!({ "cwd": "" }));
        check("cwd=2026-01-01", json!({ "cwd": "2026-01-01" }));
        check("cwd=1\nurl = 2", json!({ "cwd": "1\nurl = 2" }));
        let refused = |text: &str| text.parse::<Setting>().unwrap_err();
        assert_eq!(refused("url"), InvalidSetting::NoValue);
        assert_eq!(refused("a b=1"), InvalidSetting::Key("a b".to_owned()));
        assert_eq!(refused("=1"), InvalidSetting::Key(String::new()));
    }
}
