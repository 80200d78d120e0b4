//! Mistakes and warnings: collected while a config is read, rendered when it is done.
//!
//! Every stage of loading adds to [`Diagnostics`]; only `config` turns them into [`Notice`]s. What
//! must stay true: no secret reaches an excerpt (see `redact`), and nothing is left out silently.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use annotate_snippets::{
    AnnotationKind, Group, Level, Origin, Renderer, Snippet, renderer::DecorStyle,
};

use super::{
    ignored_keys::{self, IgnoredKey},
    redact::{HiddenRanges, RedactedText},
};
use crate::config::{
    FilePlace,
    node::{ConfigTable, Node, Span, TableEntry},
};

/// How many notices a report shows in full; the rest is counted, since a file with more of them
/// is most likely not a config at all.
const NOTICES_SHOWN_MAX: usize = 100;

/// Longest sentence of a notice; longer ones quote something that is no word.
const MESSAGE_CHARS_MAX: usize = 600;

/// Everything that is wrong with a config, and the warnings beside it, in the order of the files.
#[derive(Clone, Debug, thiserror::Error)]
pub struct ConfigErrors {
    /// At least one of severity [`Severity::Mistake`].
    pub notices: Vec<Notice>,
    /// The files that the config names, in which a mistake may be.
    pub named_files: Vec<PathBuf>,
}

impl ConfigErrors {
    /// The report for a terminal that shows colours.
    pub fn styled(&self) -> String {
        self.render(Notice::styled)
    }

    fn render(&self, each: impl Fn(&Notice) -> String) -> String {
        let count = |severity| {
            self.notices
                .iter()
                .filter(|n| n.severity == severity)
                .count()
        };
        let mut summary = vec![count_noun(count(Severity::Mistake), "error")];
        if count(Severity::Warning) > 0 {
            summary.push(count_noun(count(Severity::Warning), "warning"));
        }
        if self.notices.len() > NOTICES_SHOWN_MAX {
            summary.push(format!("showing the first {NOTICES_SHOWN_MAX}"));
        }
        let mut paragraphs: Vec<String> = self
            .notices
            .iter()
            .take(NOTICES_SHOWN_MAX)
            .map(each)
            .collect();
        paragraphs.push(summary.join(", "));
        paragraphs.join("\n\n")
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Notice::to_string))
    }
}

fn count_noun(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// One mistake or warning; `Display` shows it with the excerpt it is about.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Notice {
    /// Whether it keeps the config from being used.
    pub severity: Severity,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// What is wrong at the place that is marked.
    pub label: Option<String>,
    /// What to do about it.
    pub suggestion: Option<String>,
    /// The file, as it was named, or `environment`.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<usize>,
    /// Column in characters, from 1.
    pub column: Option<usize>,
    #[serde(skip)]
    marks: Vec<RenderedMark>,
}

/// Whether a [`Notice`] keeps the config from being used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It does.
    #[serde(rename = "error")]
    Mistake,
    /// It does not.
    Warning,
}

/// A marked place, in the text that may be shown.
#[derive(Clone, Debug)]
struct RenderedMark {
    excerpt: Arc<RedactedText>,
    /// Line and column in the file.
    place: (usize, usize),
    range: std::ops::Range<usize>,
    label: String,
}

impl RenderedMark {
    /// Whether both stand in one source.
    fn is_same_source(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.excerpt, &other.excerpt)
    }

    /// The renderer counts columns in the excerpt, which is shorter than the file where a secret
    /// was; this puts the file's column into `report`.
    fn fix_columns(&self, report: &str) -> String {
        let name = &self.excerpt.name;
        let (line, column) = self.place;
        let (_, rendered) = line_and_column(&self.excerpt.text, self.range.start);
        report.replacen(
            &format!("{name}:{line}:{rendered}"),
            &format!("{name}:{line}:{column}"),
            1,
        )
    }
}

impl Notice {
    /// A warning of what is known only once the servers are asked, when no file is at hand any more.
    pub(crate) fn warning(message: String, suggestion: Option<String>) -> Self {
        Self::without_file(Severity::Warning, message, suggestion)
    }

    /// A mistake in what the config refers to.
    pub(crate) fn error(message: String) -> Self {
        Self::without_file(Severity::Mistake, message, None)
    }

    fn without_file(severity: Severity, message: String, suggestion: Option<String>) -> Self {
        Self {
            severity,
            message,
            label: None,
            suggestion,
            file: None,
            line: None,
            column: None,
            marks: Vec::new(),
        }
    }

    /// The notice for a terminal that shows colours.
    pub fn styled(&self) -> String {
        self.render(&Renderer::styled())
    }

    fn render(&self, renderer: &Renderer) -> String {
        let level = match self.severity {
            Severity::Mistake => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(&*self.message));
        if let (Some(file), None) = (&self.file, self.marks.first()) {
            group = group.element(Origin::path(&**file));
        }
        for mark in self.marks_of_sources() {
            group = self.excerpt(mark, group);
        }
        if let Some(suggestion) = &self.suggestion {
            group = group.element(Level::HELP.message(&**suggestion));
        }
        let renderer = renderer.clone().decor_style(DecorStyle::Ascii);
        let report = renderer.render(&[group]);
        self.marks_of_sources()
            .fold(report, |report, mark| mark.fix_columns(&report))
    }

    /// The first mark of each source.
    fn marks_of_sources(&self) -> impl Iterator<Item = &RenderedMark> {
        self.marks.iter().enumerate().filter_map(|(index, mark)| {
            let is_first = self.marks[..index]
                .iter()
                .all(|other| !other.is_same_source(mark));
            is_first.then_some(mark)
        })
    }

    /// Adds the text around `mark` and around all other marks of the same source.
    fn excerpt<'a>(&'a self, mark: &'a RenderedMark, group: Group<'a>) -> Group<'a> {
        let mut snippet = Snippet::source(&*mark.excerpt.text).path(&*mark.excerpt.name);
        for (index, other) in self.marks.iter().enumerate() {
            if other.is_same_source(mark) {
                let kind = if index == 0 {
                    AnnotationKind::Primary
                } else {
                    AnnotationKind::Context
                };
                snippet = snippet.annotation(kind.span(other.range.clone()).label(&*other.label));
            }
        }
        group.element(snippet)
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&Renderer::plain()))
    }
}

/// The texts a config is made of.
#[derive(Debug, Default)]
pub(in crate::config) struct ConfigTexts {
    list: Vec<SourceText>,
}

/// One text, and what must not be shown of it.
#[derive(Debug)]
pub(in crate::config) struct SourceText {
    /// How messages name it.
    pub(in crate::config) name: String,
    pub(in crate::config) text: String,
    /// Where it is.
    directory: PathBuf,
    /// Where relative paths in it start, unless that is where it is.
    project: Option<PathBuf>,
    /// Whether it has the shape of another program's config, with that program's `${...}` forms.
    pub(in crate::config) is_foreign: bool,
    /// Whether it is an entry of the store: whoever wrote that may read neither files nor the environment.
    pub(in crate::config) is_stored: bool,
    /// The inputs it declares (VS Code), with their defaults.
    pub(in crate::config) inputs: BTreeMap<String, Option<String>>,
    /// Secrets in it.
    pub(in crate::config) hidden: HiddenRanges,
}

impl SourceText {
    /// Where relative paths in it start: where it is, but for settings of an editor in a project,
    /// which are about the project.
    pub(in crate::config) fn base_dir(&self) -> &Path {
        self.project.as_deref().unwrap_or(&self.directory)
    }

    /// The file, as far as its name and its directory tell.
    pub(in crate::config) fn path(&self) -> PathBuf {
        let file = Path::new(&self.name).file_name();
        file.map_or_else(|| self.directory.clone(), |file| self.directory.join(file))
    }
}

impl ConfigTexts {
    /// Adds a text and gives its number.
    pub(in crate::config) fn add(
        &mut self,
        name: String,
        text: String,
        directory: PathBuf,
    ) -> usize {
        self.list.push(SourceText {
            name,
            text,
            directory,
            project: None,
            is_foreign: false,
            is_stored: false,
            inputs: BTreeMap::new(),
            hidden: HiddenRanges::default(),
        });
        self.list.len() - 1
    }

    pub(in crate::config) fn get(&self, source: usize) -> &SourceText {
        &self.list[source]
    }

    /// The texts, by their numbers.
    pub(in crate::config) fn all(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|source| source.text.as_str())
    }

    /// Whether any of them is another program's config.
    pub(in crate::config) fn has_foreign(&self) -> bool {
        self.list.iter().any(|source| source.is_foreign)
    }

    /// Notes that `source` is another program's config, and the project that it is about.
    pub(in crate::config) fn mark_foreign(&mut self, source: usize, project: Option<PathBuf>) {
        self.list[source].is_foreign = true;
        self.list[source].project = project;
    }

    /// Notes that `source` is an entry of the store.
    pub(in crate::config) fn mark_stored(&mut self, source: usize) {
        self.list[source].is_stored = true;
    }

    /// Notes an input that `source` declares.
    pub(in crate::config) fn add_input(
        &mut self,
        source: usize,
        id: String,
        default: Option<String>,
    ) {
        self.list[source].inputs.insert(id, default);
    }

    /// Changes what is hidden of the source `source`, given its text.
    pub(in crate::config) fn hide(
        &mut self,
        source: usize,
        change: impl FnOnce(&mut HiddenRanges, &str),
    ) {
        let SourceText { hidden, text, .. } = &mut self.list[source];
        change(hidden, text);
    }

    /// Hides every value below `node`, each in the source it stands in.
    pub(in crate::config) fn hide_values(&mut self, node: &Node) {
        if node.is_leaf() {
            self.hide(node.span.source, |hidden, text| {
                hidden.add(node.span.range(), text);
            });
        }
        node.children().for_each(|child| self.hide_values(child));
    }

    /// Where `span` begins.
    pub(in crate::config) fn place(&self, span: Span) -> FilePlace {
        let source = &self.list[span.source];
        FilePlace {
            file: source.name.clone(),
            line: line_and_column(&source.text, span.start).0,
        }
    }

    /// The text at `span`, as it was written.
    pub(in crate::config) fn source_text(&self, span: Span) -> &str {
        self.list[span.source]
            .text
            .get(span.range())
            .unwrap_or_default()
    }
}

/// Something to tell the operator, not yet rendered.
#[derive(Debug)]
pub(in crate::config) struct Diagnostic {
    severity: Severity,
    message: String,
    marks: Vec<(Span, String)>,
    help: Option<String>,
    file: Option<String>,
}

impl Diagnostic {
    pub(in crate::config) fn error(message: impl Into<String>) -> Self {
        Self::new(Severity::Mistake, &message.into())
    }

    pub(in crate::config) fn warning(message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, &message.into())
    }

    fn new(severity: Severity, message: &str) -> Self {
        Self {
            severity,
            message: to_printable_line(message),
            marks: Vec::new(),
            help: None,
            file: None,
        }
    }

    /// Marks `span`; the first mark is where the notice points.
    pub(in crate::config) fn at(mut self, span: Option<Span>, label: impl Into<String>) -> Self {
        if let Some(span) = span {
            self.marks.push((span, to_printable_line(&label.into())));
        }
        self
    }

    /// Names a file, when there is no text to mark.
    pub(in crate::config) fn in_file(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    pub(in crate::config) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(to_printable_line(&help.into()));
        self
    }

    pub(in crate::config) fn help_if(self, help: Option<String>) -> Self {
        match help {
            Some(help) => self.help(help),
            None => self,
        }
    }
}

/// All findings of one load.
#[derive(Debug, Default)]
pub(in crate::config) struct Diagnostics {
    list: Vec<Diagnostic>,
    ignored: Vec<IgnoredKey>,
    duplicate_values: Vec<Node>,
    suppressed: Vec<Span>,
}

impl Diagnostics {
    pub(in crate::config) fn add(&mut self, finding: Diagnostic) {
        self.list.push(finding);
    }

    /// Notes a key of another program that is not read; all of a file are one warning.
    pub(in crate::config) fn ignore_key(&mut self, key: IgnoredKey) {
        self.ignored.push(key);
    }

    /// Room for findings of a trial, of which the same is not told.
    pub(in crate::config) fn trial(&self) -> Self {
        Self {
            suppressed: self.suppressed.clone(),
            ..Self::default()
        }
    }

    /// The first mistake that stands somewhere, for people.
    pub(in crate::config) fn first_mistake(&self) -> Option<&str> {
        let mut mistakes = self.list.iter().filter(|finding| {
            let place = finding.marks.first().map(|(span, _)| *span);
            finding.severity == Severity::Mistake
                && place.is_some_and(|span| !self.is_suppressed(span))
        });
        mistakes.next().map(|finding| finding.message.as_str())
    }

    /// The mistakes that stand in a source that `is_wanted`: its number and the first message of each.
    pub(in crate::config) fn mistakes_in(
        &self,
        is_wanted: impl Fn(usize) -> bool,
    ) -> BTreeMap<usize, String> {
        let mut mistakes = BTreeMap::new();
        for finding in &self.list {
            let Some((span, _)) = finding.marks.first() else {
                continue;
            };
            let is_mistake = finding.severity == Severity::Mistake && !self.is_suppressed(*span);
            if is_mistake && is_wanted(span.source) {
                let message = || match &finding.help {
                    Some(help) => format!("{}: {help}", finding.message),
                    None => finding.message.clone(),
                };
                mistakes.entry(span.source).or_insert_with(message);
            }
        }
        mistakes
    }

    /// Adds what a trial found.
    pub(in crate::config) fn append(&mut self, mut trial: Self) {
        self.list.append(&mut trial.list);
        self.ignored.append(&mut trial.ignored);
        self.duplicate_values.append(&mut trial.duplicate_values);
        self.suppressed = trial.suppressed;
    }

    /// Whether nothing was found, nor ignored.
    pub(in crate::config) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.ignored.is_empty()
    }

    /// Adds `entry` to a table that is being read; a key that is there already is reported.
    pub(in crate::config) fn insert_key(
        &mut self,
        table: &mut ConfigTable,
        name: String,
        entry: TableEntry,
    ) {
        if let Some(other) = table.get(&name) {
            self.add(
                Diagnostic::error(format!("duplicate key `{}`", name.escape_debug()))
                    .at(Some(entry.key), "here")
                    .at(Some(other.key), "and here"),
            );
        }
        self.duplicate_values
            .extend(table.insert(name, entry).map(|old| old.node));
    }

    /// Values that no tree holds, since their key occurred again; they may be secret.
    pub(in crate::config) fn take_duplicate_values(&mut self) -> Vec<Node> {
        std::mem::take(&mut self.duplicate_values)
    }

    /// What points into `span` is not told.
    pub(in crate::config) fn suppress(&mut self, span: Span) {
        self.suppressed.push(span);
    }

    pub(in crate::config) fn is_suppressed(&self, span: Span) -> bool {
        self.suppressed.iter().any(|excused| excused.contains(span))
    }

    /// Renders them, in the order of the sources and of the places in them.
    pub(in crate::config) fn into_notices(mut self, sources: &ConfigTexts) -> Vec<Notice> {
        let ignored = std::mem::take(&mut self.ignored);
        self.list.extend(ignored_keys::to_warnings(ignored));
        let place = |f: &Diagnostic| f.marks.first().map(|(span, _)| (span.source, span.start));
        self.list.sort_by_key(place);
        // What several servers take from one place is said once.
        self.list.dedup_by(|next, last| {
            !next.marks.is_empty() && (&next.message, &next.marks) == (&last.message, &last.marks)
        });
        let excused = std::mem::take(&mut self.suppressed);
        let is_reported = |finding: &Diagnostic| match finding.marks.first() {
            Some((span, _)) => !excused.iter().any(|excused| excused.contains(*span)),
            None => true,
        };
        self.list.retain(is_reported);
        let masked: Vec<_> = sources
            .list
            .iter()
            .map(|source| {
                Arc::new(RedactedText::new(
                    &source.name,
                    &source.text,
                    &source.hidden,
                ))
            })
            .collect();
        self.list
            .into_iter()
            .map(|finding| render_notice(finding, sources, &masked))
            .collect()
    }
}

fn render_notice(
    diagnostic: Diagnostic,
    sources: &ConfigTexts,
    masked: &[Arc<RedactedText>],
) -> Notice {
    let first = diagnostic.marks.first().map(|(span, _)| *span);
    let at = |span: Span| line_and_column(&sources.get(span.source).text, span.start);
    let mark = |(span, label): (Span, String)| {
        let range = masked[span.source].map_range(span.range());
        RenderedMark {
            excerpt: Arc::clone(&masked[span.source]),
            place: at(span),
            range,
            label,
        }
    };
    Notice {
        severity: diagnostic.severity,
        message: diagnostic.message,
        label: diagnostic.marks.first().map(|(_, label)| label.clone()),
        suggestion: diagnostic.help,
        file: first
            .map(|span| sources.get(span.source).name.clone())
            .or(diagnostic.file),
        line: first.map(|span| at(span).0),
        column: first.map(|span| at(span).1),
        marks: diagnostic.marks.into_iter().map(mark).collect(),
    }
}

/// `text` on one line of sensible length: it may quote whatever a file holds.
fn to_printable_line(text: &str) -> String {
    let mut printable = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == MESSAGE_CHARS_MAX {
            printable.push_str("...");
            break;
        }
        if c.is_control() {
            printable.extend(c.escape_debug());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// Line and column of the byte `at`, both from 1, the column in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}
