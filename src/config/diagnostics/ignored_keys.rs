//! Keys of other programs' documents that are not read: one warning for all of a file, and one for those
//! that protected something.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{report::Diagnostic, suggest};
use crate::config::node::Span;

/// How many keys a warning names; the rest is counted.
const KEYS_NAMED_MAX: usize = 25;

/// How many notes a warning has.
const NOTES_MAX: usize = 4;

/// A key of another program's document that is not read.
#[derive(Clone, Debug)]
pub(in crate::config) struct IgnoredKey {
    /// The key.
    pub(in crate::config) span: Span,
    /// Its path.
    pub(in crate::config) path: String,
    /// Its path in any server, when it is one of a server.
    pub(in crate::config) pattern: Option<String>,
    /// Whether something is less protected without it.
    pub(in crate::config) is_protection: bool,
    /// What to do instead.
    pub(in crate::config) note: Option<String>,
}

/// The warnings about `keys`, which may stand in several files.
pub(in crate::config) fn to_warnings(keys: Vec<IgnoredKey>) -> impl Iterator<Item = Diagnostic> {
    let mut groups: BTreeMap<(usize, bool), Vec<IgnoredKey>> = BTreeMap::new();
    for key in keys {
        let group = (key.span.source, key.is_protection);
        groups.entry(group).or_default().push(key);
    }
    groups.into_iter().map(|((_, is_protection), mut keys)| {
        keys.sort_by_key(|key| key.span.start);
        to_warning(&keys, is_protection)
    })
}

fn to_warning(keys: &[IgnoredKey], is_protection: bool) -> Diagnostic {
    let names = shown_names(keys);
    let (named, more) = names.split_at(names.len().min(KEYS_NAMED_MAX));
    let mut named: Vec<String> = named.iter().map(|name| format!("`{name}`")).collect();
    if !more.is_empty() {
        named.push(format!("{} more", more.len()));
    }
    let named = suggest::join_words(&named, "and");
    let (message, label) = if is_protection {
        (
            format!("protection is lost, by keys that are ignored: {named}"),
            "not enforced here",
        )
    } else {
        (format!("ignored keys: {named}"), "not read")
    };
    let mut notes: Vec<&str> = Vec::new();
    for note in keys.iter().filter_map(|key| key.note.as_deref()) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes.truncate(NOTES_MAX);
    if is_protection {
        notes.push("protect with `tools` of a server, `governance.policy` and `governance.auth`");
    }
    let help = (!notes.is_empty()).then(|| notes.join("; "));
    Diagnostic::warning(message)
        .at(keys.first().map(|key| key.span), label)
        .help_if(help)
}

/// Every key once, those that several servers have under one name.
fn shown_names(keys: &[IgnoredKey]) -> Vec<String> {
    let mut paths: HashMap<&str, HashSet<&str>> = HashMap::new();
    for key in keys {
        let pattern = key.pattern.as_deref().unwrap_or(&key.path);
        paths.entry(pattern).or_default().insert(&key.path);
    }
    let mut names: Vec<String> = Vec::new();
    for key in keys {
        let pattern = key.pattern.as_deref();
        let is_shared = |pattern: &&str| paths.get(pattern).is_some_and(|paths| paths.len() > 1);
        let shared = pattern.filter(is_shared);
        let name = shared.unwrap_or(&key.path);
        if !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    names
}
