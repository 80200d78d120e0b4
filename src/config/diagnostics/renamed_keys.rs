//! Keys that are not ours, or not yet, and what to say about them.

/// Keys and sections that the design names and this version does not have, by the type of `file`
/// they will belong to (the empty name is the top level).
const LATER: [(&str, &[&str]); 1] = [("", &["public_url", "store"])];

/// Words that later versions understand, by the last part of their path.
const LATER_WORDS: [(&str, &[&str]); 1] = [("transport", &["openapi"])];

/// Keys that other programs have for what we call differently.
const IN_PLACE_OF: [(&str, &str, &str); 19] = [
    ("AgentSection", "key", "write `keys = [\"${...}\"]`"),
    ("AgentSection", "profile", "write `profiles = [...]`"),
    ("BudgetSection", "amount", "write `limit`"),
    (
        "ItemRulesSection",
        "price",
        "only tools have prices: write it under `tools`",
    ),
    (
        "ItemRulesSection",
        "timeout",
        "only tools have timeouts of their own: write it under `tools`",
    ),
    ("RateSection", "limit", "write `calls`"),
    ("", "bind", "write `listen = \"127.0.0.1:8080\"`"),
    ("", "host", "write `listen = \"127.0.0.1:8080\"`"),
    ("", "port", "write `listen = \"127.0.0.1:8080\"`"),
    ("ServerSection", "disabled", "write `enabled = false`"),
    (
        "ServerSection",
        "disabledTools",
        "write `tools = { deny = [...] }`",
    ),
    ("ServerSection", "endpoint", "write `url`"),
    (
        "ServerSection",
        "httpUrl",
        "write `url`, and `transport = \"http\"`",
    ),
    ("ServerSection", "program", "write `command`"),
    ("ServerSection", "serverUrl", "write `url`"),
    (
        "ServerSection",
        "token",
        "write `auth = { type = \"bearer\", token = \"...\" }`",
    ),
    ("ServerSection", "toolNamespace", "write `namespace`"),
    ("ServerSection", "type", "write `transport`"),
    ("ServerSection", "uri", "write `url`"),
];

/// Whether `key` of the section `section` is meant for a later version.
pub(in crate::config) fn is_later(section: &str, key: &str) -> bool {
    LATER
        .iter()
        .any(|(name, keys)| *name == section && keys.contains(&key))
}

/// Whether `word` will be a legal value of the key at `path`.
pub(in crate::config) fn is_later_word(path: &str, word: &str) -> bool {
    let key = path.rsplit('.').next().unwrap_or_default();
    LATER_WORDS
        .iter()
        .any(|(name, words)| *name == key && words.contains(&word))
}

/// What to write instead of the key `key` of another program.
pub(in crate::config) fn in_place_of(section: &str, key: &str) -> Option<&'static str> {
    let found = IN_PLACE_OF
        .iter()
        .find(|(name, theirs, _)| *name == section && *theirs == key);
    found.map(|(_, _, help)| *help)
}
