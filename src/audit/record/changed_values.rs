//! What a change made of each key: what it said before, and what it says after.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes of the changes of an event, as JSON; longer ones are left out, and `changes_bytes` says how long they were.
pub const CHANGES_BYTES_MAX: usize = 64 << 10;

/// Stands for what nobody says how to show.
const MASK: &str = "***";

/// The keys that a change made differ, each with its old and its new value; what is secret is masked.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ChangedValues(Vec<ValueChange>);

/// What a change made of one key.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct ValueChange {
    /// The key, with those above it: `tools.deny`.
    key: String,
    /// What it said; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old: Option<Value>,
    /// What it says; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    new: Option<Value>,
}

/// A document, and how it may be shown.
#[derive(Clone, Copy, Debug)]
pub struct MaskedDocument<'a> {
    /// What it says.
    pub written: &'a Value,
    /// The same with a mask in place of each secret.
    pub shown: &'a Value,
}

impl ChangedValues {
    /// The change of one key; nothing where both are the same.
    pub fn of_key(key: &str, old: impl Into<Value>, new: impl Into<Value>) -> Self {
        let mut changes = Self::default();
        let (old, new) = (old.into(), new.into());
        changes.compare(key, Some(unmasked(&old)), Some(unmasked(&new)));
        changes
    }

    /// The keys in which `new` differs from `old`, neither of which has secrets.
    pub fn between(old: &Value, new: &Value) -> Self {
        Self::between_masked(unmasked(old), unmasked(new))
    }

    /// The keys in which `new` differs from `old`. A secret that changed is there, with equal masks.
    pub fn between_masked(old: MaskedDocument<'_>, new: MaskedDocument<'_>) -> Self {
        let mut changes = Self::default();
        changes.compare("", Some(old), Some(new));
        changes
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn compare(
        &mut self,
        key: &str,
        old: Option<MaskedDocument<'_>>,
        new: Option<MaskedDocument<'_>>,
    ) {
        let [old, new] = [old, new].map(|side| side.filter(|side| !side.written.is_null()));
        let [was, is] = [old, new].map(|side| side.map(|side| side.written));
        if was == is {
            return;
        }
        let (Some(Value::Object(before)), Some(Value::Object(after))) = (was, is) else {
            let [old, new] = [old, new].map(|side| side.map(|side| side.shown.clone()));
            let key = key.to_owned();
            self.0.push(ValueChange { key, old, new });
            return;
        };
        let added = after.keys().filter(|name| !before.contains_key(*name));
        for name in before.keys().chain(added) {
            let key = match key {
                "" => name.clone(),
                above => format!("{above}.{name}"),
            };
            let [old, new] = [old, new].map(|side| side?.member(name));
            self.compare(&key, old, new);
        }
    }
}

impl MaskedDocument<'_> {
    fn member(self, name: &str) -> Option<Self> {
        let written = self.written.get(name)?;
        let shown = self.shown.get(name).unwrap_or(&HIDDEN);
        Some(Self { written, shown })
    }
}

/// What is shown of a value of which nothing is known.
static HIDDEN: LazyLock<Value> = LazyLock::new(|| MASK.into());

const fn unmasked(document: &Value) -> MaskedDocument<'_> {
    MaskedDocument {
        written: document,
        shown: document,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_have_the_old_and_the_new_value_of_each_key() {
        for (old, new, expect) in [
            (json!({"a": 1}), json!({"a": 1}), json!([])),
            (
                json!({"a": 1, "b": 2}),
                json!({"b": 3}),
                json!([{"key": "a", "old": 1}, {"key": "b", "old": 2, "new": 3}]),
            ),
            (
                json!({}),
                json!({"a": {"b": 1}}),
                json!([{"key": "a", "new": {"b": 1}}]),
            ),
            (
                json!({"a": {"b": 1, "c": [1]}}),
                json!({"a": {"b": 1, "c": [2], "d": null}}),
                json!([{"key": "a.c", "old": [1], "new": [2]}]),
            ),
            (
                json!({"a": null}),
                json!({"a": "x"}),
                json!([{"key": "a", "new": "x"}]),
            ),
            (
                json!({"a": {"b": 1}}),
                json!({"a": 1}),
                json!([{"key": "a", "old": {"b": 1}, "new": 1}]),
            ),
        ] {
            assert_eq!(json!(ChangedValues::between(&old, &new)), expect);
        }
        assert!(ChangedValues::of_key("a", "x", "x").is_empty());
    }

    #[test]
    fn secrets_are_shown_as_their_masks_and_what_has_none_is_hidden() {
        let old = json!({"env": {"TOKEN": "old-secret"}, "url": "x"});
        let new = json!({"env": {"TOKEN": "new-secret"}, "url": "y"});
        let shown = json!({"env": {"TOKEN": "***"}});
        let [old, new] = [&old, &new].map(|written| MaskedDocument {
            written,
            shown: &shown,
        });
        let changes = ChangedValues::between_masked(old, new);
        let expect = json!([
            {"key": "env.TOKEN", "old": "***", "new": "***"},
            {"key": "url", "old": "***", "new": "***"},
        ]);
        assert_eq!(json!(changes), expect);
    }
}
