//! Links between documents lead to files and headings that are there.

use std::{collections::BTreeSet, fs, path::Path};

use crate::markdown::{anchor, documents, read, root, split};

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for document in documents() {
        let text = read(&document);
        for target in targets(&split(&text).1) {
            count += 1;
            if !leads_somewhere(&document, target) {
                wrong.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(count > 50, "{count} links");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every page of the book is in its table of contents, which names no other.
#[test]
fn the_summary_names_every_page() {
    let summary = read(Path::new("docs/src/SUMMARY.md"));
    let named: BTreeSet<String> = targets(&summary).map(str::to_owned).collect();
    let pages = documents().into_iter();
    let pages = pages.filter_map(|path| path.strip_prefix("docs/src").ok().map(Path::to_owned));
    let pages = pages.map(|path| path.display().to_string());
    let pages: BTreeSet<String> = pages.filter(|page| page != "SUMMARY.md").collect();
    assert_eq!(named, pages);
}

/// Where the links of `text` lead.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("](").skip(1);
    parts.filter_map(|part| part.split_once(')').map(|(target, _)| target))
}

fn leads_somewhere(document: &Path, target: &str) -> bool {
    if target.starts_with("http://") || target.starts_with("https://") {
        return true;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = match (path, document.parent()) {
        ("", _) => document.to_owned(),
        (path, Some(directory)) => directory.join(path),
        (path, None) => path.into(),
    };
    if heading.is_empty() {
        return root().join(path).exists();
    }
    let Ok(text) = fs::read_to_string(root().join(path)) else {
        return false;
    };
    let (_, prose) = split(&text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let mut headings = headings.map(|line| anchor(line.trim_start_matches('#')));
    headings.any(|it| it == heading)
}
