//! What all entries of the config have in common: where they are written, how they are edited and changed.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{ApiState, ChangePlan, caller::ApiCaller, etag, problem::Problem};
use crate::{
    config::{Config, EntryKey, EntrySection, FilePlace, Role, unmask_document},
    config_change::{ChangeError, EntryChange, EntryPrecondition},
    store::StoredEntry,
};

/// Where something of the config is written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum EntrySource {
    /// In a file, where it is changed.
    File {
        /// The file, as it was named.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// In the store, where the API changes it.
    Store {
        /// When it was made, RFC 3339.
        created: String,
        /// When it was last changed, RFC 3339.
        changed: String,
    },
}

/// The entries of a section, of the files and of the store, at one moment.
pub(super) struct ShownEntries {
    section: EntrySection,
    /// The config that runs.
    pub(super) config: Arc<Config>,
    stored: Vec<StoredEntry>,
}

impl ShownEntries {
    pub(super) fn read(state: &ApiState, section: EntrySection) -> Self {
        let mut stored = state.writer.entries();
        stored.retain(|stored| stored.entry.key.section == section);
        Self {
            section,
            config: state.writer.running(),
            stored,
        }
    }

    /// The names of all, sorted: of those that run, and of those of the store that do not count.
    pub(super) fn names(&self, running: impl Iterator<Item = String>) -> Vec<String> {
        let stored = self.stored.iter();
        let stored = stored.map(|stored| stored.entry.key.name.clone());
        let mut names: Vec<String> = running.chain(stored).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    pub(super) fn stored(&self, name: &str) -> Option<&StoredEntry> {
        let mut stored = self.stored.iter();
        stored.find(|stored| stored.entry.key.name == name)
    }

    fn place(&self, name: &str) -> Option<&FilePlace> {
        let key = EntryKey::new(self.section, name);
        self.config.entries.in_files.get(&key)
    }

    /// The entry of the store, where no file has one of the name.
    pub(super) fn counted(&self, name: &str) -> Option<&StoredEntry> {
        self.stored(name).filter(|_| self.place(name).is_none())
    }

    /// The version of the entry of the store.
    pub(super) fn etag(&self, name: &str) -> Option<String> {
        let stored = self.stored(name);
        stored.map(|stored| etag::of_version(stored.changed))
    }

    /// Where it is written.
    pub(super) fn source(&self, name: &str) -> EntrySource {
        source_of(self.place(name), self.counted(name))
    }

    /// Why it does not count.
    pub(super) fn fault(&self, name: &str) -> Option<String> {
        let mut faulty = self.config.entries.faulty.iter();
        let found = faulty.find(|it| it.key.section == self.section && it.key.name == name);
        found.map(|faulty| faulty.fault.clone())
    }
}

/// An entry that is to be edited.
pub(super) struct EntryEdit {
    pub(super) key: EntryKey,
    /// How its document is shown: what is sent back as it was shown stays as it is.
    pub(super) mask: fn(&str) -> Value,
    pub(super) precondition: EntryPrecondition,
}

impl EntryEdit {
    /// The change that `edit` makes of what the entry says, and which keys differ.
    pub(super) fn to_change(
        &self,
        state: &ApiState,
        edit: impl FnOnce(Value) -> Value,
    ) -> (EntryChange, String) {
        let entries = state.writer.entries();
        let stored = entries.iter().find(|stored| stored.entry.key == self.key);
        let written = stored.map_or("{}", |stored| &*stored.entry.document);
        let written: Value = serde_json::from_str(written).unwrap_or_default();
        let masked = (self.mask)(&written.to_string());
        let mut document = edit(masked.clone());
        unmask_document(&mut document, &written, &masked);
        let change = EntryChange {
            key: self.key.clone(),
            document: Some(document.to_string()),
            // What was edited is what was read.
            precondition: match (self.precondition, stored) {
                (EntryPrecondition::Present, Some(stored)) => {
                    EntryPrecondition::Version(stored.changed)
                }
                _ => self.precondition,
            },
        };
        (change, changed_keys(&written, &document))
    }
}

/// Makes `change`, or says what it would do.
pub(super) async fn make_change(
    state: &ApiState,
    caller: &ApiCaller,
    change: &EntryChange,
    (dry_run, detail): (bool, &str),
) -> Result<ChangePlan, Problem> {
    let made = if dry_run {
        state.writer.plan(change).await
    } else {
        let record = (&*caller.actor(), detail);
        let applied = state.writer.apply(change, record).await;
        applied.map(|(plan, _)| plan)
    };
    made.map_err(|error| problem_for(caller, error))
}

/// What a caller is told of a failed change: of files and other owners a workspace admin knows nothing.
fn problem_for(caller: &ApiCaller, error: ChangeError) -> Problem {
    let is_elsewhere = matches!(
        error,
        ChangeError::Files(_) | ChangeError::NotApplied(_) | ChangeError::Rejected(_)
    );
    let is_stored = matches!(error, ChangeError::NotApplied(_));
    let mut problem = Problem::from(error);
    if caller.role == Role::WorkspaceAdmin && is_elsewhere {
        let detail = if is_stored {
            "the change is stored, and counts once an admin has mended the config files"
        } else {
            "the gateway cannot run with the change: an admin sees why"
        };
        detail.clone_into(&mut problem.detail);
    }
    problem
}

fn source_of(place: Option<&FilePlace>, stored: Option<&StoredEntry>) -> EntrySource {
    match (place, stored) {
        (_, Some(stored)) => EntrySource::Store {
            created: stored.created.to_string(),
            changed: stored.changed.to_string(),
        },
        (Some(place), None) => EntrySource::File {
            file: place.file.clone(),
            line: place.line,
        },
        // A gateway that was given its config otherwise.
        (None, None) => EntrySource::File {
            file: "environment".to_owned(),
            line: 1,
        },
    }
}

/// Makes the changes of a JSON merge patch (RFC 7396).
pub(super) fn merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Some(object) = target.as_object_mut() else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(&key);
        } else {
            merge_patch(object.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// The keys that differ, for the audit: what they say may be secret.
pub(super) fn changed_keys(old: &Value, new: &Value) -> String {
    let changed: Vec<&str> = differing_keys(old, new).collect();
    format!("changed: {}", changed.join(", "))
}

/// The keys in which two documents differ.
pub(super) fn differing_keys<'d>(old: &'d Value, new: &'d Value) -> impl Iterator<Item = &'d str> {
    let keys = |document: &'d Value| document.as_object().into_iter().flatten();
    let added = keys(new).filter(|(key, _)| old.get(key).is_none());
    let all = keys(old).chain(added).map(|(key, _)| key.as_str());
    all.filter(|key| old.get(key) != new.get(key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patches_merge() {
        // The examples of RFC 7396, appendix A.
        let rows = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ];
        for (mut target, patch, expect) in rows {
            merge_patch(&mut target, patch);
            assert_eq!(target, expect);
        }
    }
}
