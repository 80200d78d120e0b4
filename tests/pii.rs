//! How much of the labelled corpus in `corpora/pii` the scanner finds, and what it takes for more.
//!
//! Every class is on. A document stands where it would in a message: JSON as structured content,
//! all else as the text of a result. A hit counts when it has the class of a label and covers at
//! least four fifths of it; what overlaps no label, or one of another class, is a false positive of
//! the class it was taken for. The half `tune` is what patterns may be mended by; only the other
//! half, which nobody looks at while doing so, decides whether this test passes.
#![allow(clippy::print_stdout, reason = "the tables are what the test is for")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read its own corpus has nothing to say"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the corpus is read once, before anything runs"
)]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    thread,
};

use serde::Deserialize;
use tollbridge::{
    config::{ConfigFormat, ConfigText, Environment, Scan, ScanAction, parse},
    mcp::Raw,
    scan::{Direction, Scanner, classes, countries},
};

const CORPUS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/corpora/pii/corpus.jsonl"
);
/// Files of the kinds that agents read and write.
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpora/files");
/// Lines of such files for each one in which something may be found.
const LINES_PER_FIND_MIN: usize = 5_000;
const PRECISION_MIN: f64 = 0.98;
const RECALL_MIN: f64 = 0.95;
/// Values of each class, and of each country where that matters.
const POSITIVES_MIN: usize = 100;
/// Documents without a value, but with much that looks like one.
const NEGATIVES_MIN: usize = 5_000;
/// Countries whose packs are identity numbers alone; the tests of `scan` hold their check digits.
const NUMBERS_ALONE: [&str; 12] = [
    "cl", "cn", "cz", "dk", "fi", "is", "jp", "kr", "mx", "no", "se", "sk",
];
/// Classes whose values are written differently in each country.
const OF_COUNTRIES: [&str; 4] = ["date_of_birth", "national_id", "passport", "phone"];
/// Lines of a listing at most; how many more there are stands below it.
const LISTED_MAX: usize = 120;

#[derive(Debug, Deserialize)]
struct Document {
    text: String,
    /// In characters.
    spans: Vec<(usize, usize, String)>,
    locale: String,
    kind: String,
    half: String,
}

/// What a half of the corpus amounts to.
#[derive(Debug, Default)]
struct Score {
    classes: BTreeMap<String, Count>,
    locales: BTreeMap<(String, String), Count>,
    missed: Vec<String>,
    taken: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    found: u32,
    missed: u32,
    wrong: u32,
}

#[test]
fn the_labelled_values_are_found_and_little_else() {
    let documents = corpus();
    let tune = score(&documents, "tune");
    let held = score(&documents, "held");
    println!("{}", tables("tune", &tune));
    println!("{}", tables("held", &held));
    if std::env::var("PII_LIST").is_ok_and(|half| half == "tune") {
        println!("{}", listing(&tune));
    } else {
        println!("{}", listing(&held));
    }
    let failing: Vec<String> = classes()
        .filter(|class| !held.classes[*class].reaches())
        .map(|class| format!("{class} {}", held.classes[class].row()))
        .collect();
    assert!(failing.is_empty(), "below the floor: {failing:#?}");
}

/// Enough of everything, in both halves together, for the rates to mean something.
#[test]
fn the_corpus_is_as_large_as_it_has_to_be() {
    let documents = corpus();
    let (mut labelled, mut bare) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
    for document in &documents {
        for (.., class) in &document.spans {
            let is_of_country = OF_COUNTRIES.contains(&class.as_str());
            let locale = if is_of_country { &document.locale } else { "" };
            *labelled.entry((class.as_str(), locale)).or_default() += 1;
        }
        if document.spans.is_empty() {
            *bare.entry(document.half.as_str()).or_default() += 1;
        }
    }
    let few: Vec<_> = labelled.iter().filter(|it| *it.1 < POSITIVES_MIN).collect();
    assert!(few.is_empty(), "{few:?}");
    for class in classes().filter(|class| *class != "credential") {
        let locales: Vec<_> = labelled.keys().filter(|it| it.0 == class).collect();
        assert!(!locales.is_empty(), "{class}");
        let packs = countries().filter(|country| !NUMBERS_ALONE.contains(country));
        for country in packs.filter(|_| OF_COUNTRIES.contains(&class)) {
            assert!(
                labelled.contains_key(&(class, country)),
                "{class} {country}"
            );
        }
    }
    assert!(bare.values().sum::<usize>() >= NEGATIVES_MIN, "{bare:?}");
    let held = documents.iter().filter(|it| it.half == "held").count();
    assert!(held.abs_diff(documents.len() - held) < documents.len() / 50);
}

/// What agents read and write all day has nothing to find, and what is found in it is lost to them.
///
/// `PII_FILES` names a list of further files, one path a line: what is found in them is printed.
#[test]
fn files_without_personal_data_come_through_unchanged() {
    let scanner = every_class();
    let mut paths: Vec<PathBuf> = fs::read_dir(FILES)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.push(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock").into());
    let (mut lines, mut found) = (0, Vec::new());
    for path in &paths {
        let text = fs::read_to_string(path).unwrap();
        lines += text.lines().count();
        found.extend(found_lines(&scanner, path, &text));
    }
    println!("{} of {lines} lines of files", found.len());
    let allowed = lines / LINES_PER_FIND_MIN;
    assert!(
        found.len() <= allowed,
        "{} of {lines}: {found:#?}",
        found.len()
    );
    if let Ok(list) = std::env::var("PII_FILES") {
        list_finds(&scanner, &list);
    }
}

/// Prints what is found in the files that the file `list` names.
fn list_finds(scanner: &Scanner, list: &str) {
    let (mut lines, mut count) = (0, 0);
    for path in fs::read_to_string(list).unwrap().lines() {
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        lines += text.lines().count();
        for found in found_lines(scanner, Path::new(path), &text) {
            count += 1;
            println!("{found}");
        }
    }
    println!("{count} of {lines} further lines");
}

/// The lines of the file `text` in which something is found where it is the text of a result.
fn found_lines(scanner: &Scanner, path: &Path, text: &str) -> Vec<String> {
    let head = r#"{"content":[{"type":"text","text":""#;
    let message = format!("{head}{}{}", escaped(text), r#""}]}"#);
    let raw = Raw::parse(message.clone()).unwrap();
    let mut found: Vec<String> = Vec::new();
    let mut last = None;
    for (class, at) in scanner.locate(Direction::Results, &raw) {
        let before = format!("\"{}\"", &message[head.len()..at.start]);
        let line = serde_json::from_str::<String>(&before).unwrap();
        let line = line.matches('\n').count();
        if last.replace(line) == Some(line) {
            continue;
        }
        let path = path.display();
        let value = &message[at];
        let whole = text.lines().nth(line).unwrap_or_default();
        let whole: String = whole.chars().take(160).collect();
        found.push(format!("{class}\t{path}:{}\t{value}\t{whole}", line + 1));
    }
    found
}

#[test]
fn configs_know_the_classes_and_countries_of_the_scanner() {
    let load = |scan: &str| {
        let source = ConfigText {
            name: "tollbridge.toml".to_owned(),
            format: ConfigFormat::Toml,
            text: format!("[governance.scan]\n{scan}\n[servers.toolbox]\ntransport = 'builtin'"),
            directory: "/".into(),
        };
        parse([source], &Environment::default())
    };
    // A name that is none is answered with the list of those that are.
    let listed = |scan: &str, what: &str, ends: fn(&str) -> bool| {
        let told = load(scan).unwrap_err().to_string();
        let (_, list) = told.split_once(what).unwrap();
        let names = list.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names = names.filter(|name| !name.is_empty() && *name != "and");
        names
            .take_while(|name| !ends(name))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let known: Vec<_> = classes().collect();
    let given = listed("results = { qx = 'report' }", "the classes are", |name| {
        name == "names"
    });
    assert_eq!(given, known);
    let known: Vec<_> = countries().collect();
    let given = listed("countries = ['qx']", "the countries are", |name| {
        name.len() != 2
    });
    assert_eq!(given, known);
    let quoted: Vec<_> = known.iter().map(|name| format!("'{name}'")).collect();
    load(&format!("countries = [{}]", quoted.join(", "))).unwrap();
}

fn corpus() -> Vec<Document> {
    let corpus = std::fs::read_to_string(CORPUS).unwrap();
    let documents = corpus.lines();
    documents
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Scans the documents of `half` on all cores.
fn every_class() -> Scanner {
    let scan = Scan {
        results: [("*".to_owned(), ScanAction::Report)].into_iter().collect(),
        ..Scan::default()
    };
    Scanner::new(&scan).unwrap()
}

fn score(documents: &[Document], half: &str) -> Score {
    let scanner = every_class();
    let documents: Vec<&Document> = documents.iter().filter(|d| d.half == half).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut total = Score::default();
    for class in classes() {
        total.classes.entry(class.to_owned()).or_default();
    }
    thread::scope(|scope| {
        let parts = documents.chunks(documents.len().div_ceil(threads));
        let workers: Vec<_> = parts
            .map(|part| {
                let scanner = &scanner;
                scope.spawn(move || {
                    let mut score = Score::default();
                    for document in part {
                        score.add(document, scanner);
                    }
                    score
                })
            })
            .collect();
        for worker in workers {
            total.join(worker.join().unwrap());
        }
    });
    total
}

impl Score {
    fn add(&mut self, document: &Document, scanner: &Scanner) {
        let (message, labels) = message(document);
        let raw = Raw::parse(message.clone()).unwrap();
        let hits = scanner.locate(Direction::Results, &raw);
        for (class, span) in &labels {
            let found = hits
                .iter()
                .any(|(hit, at)| **hit == **class && covers(at, span));
            let count = |count: &mut Count| {
                count.found += u32::from(found);
                count.missed += u32::from(!found);
            };
            self.count(class, &document.locale, count);
            if !found {
                let took = hits.iter().find(|(_, at)| overlap(at, span) > 0);
                let took = took.map_or("nothing", |(hit, _)| hit);
                self.missed
                    .push(line(document, class, took, &message, span));
            }
        }
        for (class, at) in &hits {
            let labelled = labels
                .iter()
                .any(|(label, span)| **label == **class && overlap(at, span) > 0);
            if !labelled {
                self.count(class, &document.locale, |count| count.wrong += 1);
                let label = labels.iter().find(|(_, span)| overlap(at, span) > 0);
                let label = label.map_or("nothing", |(label, _)| label);
                self.taken.push(line(document, label, class, &message, at));
            }
        }
    }

    fn count(&mut self, class: &str, locale: &str, count: impl Fn(&mut Count)) {
        count(self.classes.entry(class.to_owned()).or_default());
        if OF_COUNTRIES.contains(&class) {
            let key = (class.to_owned(), locale.to_owned());
            count(self.locales.entry(key).or_default());
        }
    }

    fn join(&mut self, other: Self) {
        for (class, count) in other.classes {
            self.classes.entry(class).or_default().join(count);
        }
        for (key, count) in other.locales {
            self.locales.entry(key).or_default().join(count);
        }
        self.missed.extend(other.missed);
        self.taken.extend(other.taken);
    }
}

impl Count {
    fn join(&mut self, other: Self) {
        self.found += other.found;
        self.missed += other.missed;
        self.wrong += other.wrong;
    }

    fn precision(self) -> f64 {
        f64::from(self.found) / f64::from((self.found + self.wrong).max(1))
    }

    fn recall(self) -> f64 {
        f64::from(self.found) / f64::from((self.found + self.missed).max(1))
    }

    fn reaches(self) -> bool {
        self.precision() >= PRECISION_MIN && self.recall() >= RECALL_MIN
    }

    fn row(self) -> String {
        let (precision, recall) = (self.precision(), self.recall());
        let below = if self.reaches() { "" } else { "  below" };
        format!(
            "{:5} found {:4} missed {:4} wrong   precision {precision:.4}  recall {recall:.4}{below}",
            self.found, self.missed, self.wrong
        )
    }
}

/// The message that holds `document`, and its labels in positions of the message.
fn message(document: &Document) -> (String, Vec<(String, Range<usize>)>) {
    let is_json = document.kind == "json"
        && serde_json::from_str::<serde::de::IgnoredAny>(&document.text).is_ok();
    let ends = |at: usize| -> &str {
        let end = document.text.char_indices().nth(at);
        &document.text[..end.map_or(document.text.len(), |(end, _)| end)]
    };
    let (head, body, tail) = if is_json {
        let head = r#"{"content":[],"structuredContent":"#;
        (head, document.text.clone(), "}")
    } else {
        let head = r#"{"content":[{"type":"text","text":""#;
        (head, escaped(&document.text), r#""}]}"#)
    };
    let at = |chars: usize| {
        let before = ends(chars);
        head.len()
            + if is_json {
                before.len()
            } else {
                escaped(before).len()
            }
    };
    let labels = document.spans.iter().map(|(start, end, class)| {
        let class = if class == "password" {
            "credential"
        } else {
            class
        };
        (class.to_owned(), at(*start)..at(*end))
    });
    (format!("{head}{body}{tail}"), labels.collect())
}

/// `text` as the inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> usize {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

fn covers(hit: &Range<usize>, label: &Range<usize>) -> bool {
    overlap(hit, label) * 5 >= label.len() * 4
}

fn tables(half: &str, score: &Score) -> String {
    let mut out = format!("{half}\n");
    for (class, count) in &score.classes {
        writeln!(out, "  {class:16} {}", count.row()).unwrap();
    }
    for ((class, locale), count) in &score.locales {
        writeln!(out, "  {class:13} {locale:2} {}", count.row()).unwrap();
    }
    out
}

fn listing(score: &Score) -> String {
    let mut out = String::new();
    for (title, lines) in [("missed", &score.missed), ("wrong", &score.taken)] {
        let most = if std::env::var("PII_LIST").is_ok() {
            usize::MAX
        } else {
            LISTED_MAX
        };
        writeln!(out, "{title}").unwrap();
        for line in lines.iter().take(most) {
            writeln!(out, "  {line}").unwrap();
        }
        if lines.len() > most {
            writeln!(out, "  and {} more", lines.len() - most).unwrap();
        }
    }
    out
}

/// What is said of one mistake: its surroundings are the corpus's to show.
fn line(document: &Document, label: &str, took: &str, message: &str, at: &Range<usize>) -> String {
    let value = masked(&message[at.clone()]);
    format!(
        "{label:13} as {took:13} {:5} {:2} {value}",
        document.kind, document.locale
    )
}

/// The first and last characters of `value`, so that it is found again and nothing is spread.
fn masked(value: &str) -> String {
    const SHOWN: usize = 4;
    let chars: Vec<char> = value.chars().collect();
    if chars.len() <= 2 * SHOWN {
        return value.to_owned();
    }
    let (first, last) = (&chars[..SHOWN], &chars[chars.len() - SHOWN..]);
    format!(
        "{}…{}",
        first.iter().collect::<String>(),
        last.iter().collect::<String>()
    )
}
