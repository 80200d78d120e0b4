//! Markdown, as much of it as the documents need: which files there are, their parts, and wrapped text.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Longest line, characters.
const LINE_MAX: usize = 118;

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every document of the repository, relative to its root.
pub(crate) fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in ["", "docs/src", "docs/src/reference", "examples/governed"] {
        let entries = fs::read_dir(root().join(directory)).expect("it is there");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let paths = names.map(|name| Path::new(directory).join(name));
        found.extend(paths.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    found.sort();
    assert!(found.len() > 15, "{found:?}");
    found
}

pub(crate) fn read(path: &Path) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A fenced block of code.
pub(crate) struct CodeBlock {
    /// What stands behind the opening fence, such as `toml`.
    pub(crate) info: String,
    pub(crate) text: String,
}

/// The blocks of code of `text`, and the text without them.
pub(crate) fn split(text: &str) -> (Vec<CodeBlock>, String) {
    let (mut blocks, mut prose) = (Vec::new(), String::new());
    for (index, part) in text.split("```").enumerate() {
        if index % 2 == 0 {
            prose.push_str(part);
            continue;
        }
        let (info, code) = part.split_once('\n').expect("a block has a first line");
        blocks.push(CodeBlock {
            info: info.to_owned(),
            text: code.to_owned(),
        });
    }
    (blocks, prose)
}

/// `text` on lines that are not too long, the first after `first` and the others after as many spaces as
/// `indent` says.
pub(crate) fn wrap(first: &str, text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut line = first.to_owned();
    let mut is_begun = false;
    for word in text.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > LINE_MAX {
            out.push_str(&line);
            out.push('\n');
            line = " ".repeat(indent);
        } else if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    out.push_str(&line);
    out.push('\n');
    out
}

/// The anchor of a heading, as mdBook and forges make it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ if character.is_alphanumeric() => Some(character.to_ascii_lowercase()),
            _ => None,
        });
    kept.collect()
}
