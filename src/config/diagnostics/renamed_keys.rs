//! Keys that are not ours, or not yet, and what to say about them.

/// Keys and sections that the design names and this version does not have, by the name that the schema
/// gives the table they will belong to (the empty name is the top level).
const PLANNED_KEYS: [(&str, &[&str]); 1] = [("", &["store"])];

/// Words that later versions understand, by the last part of their path.
const PLANNED_WORDS: [(&str, &[&str]); 1] = [("transport", &["openapi"])];

/// Keys that other programs have for what we call differently.
const FOREIGN_KEYS: [(&str, &str, &str); 21] = [
    ("AgentSection", "key", "use `keys = [\"${...}\"]`"),
    ("AgentSection", "profile", "use `profiles = [...]`"),
    ("BudgetTable", "amount", "use `limit`"),
    ("GovernanceConfig", "refusals", "use `refusal_rate`"),
    (
        "ItemRules",
        "price",
        "prices apply to tools only: move the key to `tools`",
    ),
    (
        "ItemRules",
        "timeout",
        "item timeouts apply to tools only: move the key to `tools`",
    ),
    ("RateTable", "limit", "use `calls`"),
    (
        "",
        "auth",
        "`auth` belongs to `governance`, `servers.<name>` and `servers.<name>.replicas[]`",
    ),
    ("", "bind", "use `listen = \"127.0.0.1:8080\"`"),
    ("", "host", "use `listen = \"127.0.0.1:8080\"`"),
    ("", "port", "use `listen = \"127.0.0.1:8080\"`"),
    ("ServerSection", "disabled", "use `enabled = false`"),
    (
        "ServerSection",
        "disabledTools",
        "use `tools = { deny = [...] }`",
    ),
    ("ServerSection", "endpoint", "use `url`"),
    (
        "ServerSection",
        "httpUrl",
        "use `url` with `transport = \"http\"`",
    ),
    ("ServerSection", "program", "use `command`"),
    ("ServerSection", "serverUrl", "use `url`"),
    (
        "ServerSection",
        "token",
        "use `auth = { type = \"bearer\", token = \"...\" }`",
    ),
    ("ServerSection", "toolNamespace", "use `namespace`"),
    ("ServerSection", "type", "use `transport`"),
    ("ServerSection", "uri", "use `url`"),
];

/// Whether `key` of the section `section` is meant for a later version.
pub(in crate::config) fn is_planned_key(section: &str, key: &str) -> bool {
    PLANNED_KEYS
        .iter()
        .any(|(name, keys)| *name == section && keys.contains(&key))
}

/// Whether `word` will be a legal value of the key at `path`.
pub(in crate::config) fn is_planned_word(path: &str, word: &str) -> bool {
    let key = path.rsplit('.').next().unwrap_or_default();
    PLANNED_WORDS
        .iter()
        .any(|(name, words)| *name == key && words.contains(&word))
}

/// What to write instead of the key `key` of another program.
pub(in crate::config) fn equivalent_of(section: &str, key: &str) -> Option<&'static str> {
    let found = FOREIGN_KEYS
        .iter()
        .find(|(name, theirs, _)| *name == section && *theirs == key);
    found.map(|(_, _, help)| *help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_one_of_the_schema() {
        let schema = crate::config::schema();
        let planned = PLANNED_KEYS.iter().map(|(name, _)| name);
        let foreign = FOREIGN_KEYS.iter().map(|(name, ..)| name);
        for name in planned.chain(foreign).filter(|name| !name.is_empty()) {
            assert!(schema["$defs"].get(name).is_some(), "{name}");
        }
    }
}
