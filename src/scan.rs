//! PII and secrets: finds them in JSON, and takes them out without breaking it.
//!
//! Pure: no I/O, no clock, no task. `governance` owns a [`Scanner`] for each section of the config
//! and asks it about arguments, results, resources, prompts and notifications. What must stay true:
//! nothing but the found spans changes, the result is valid JSON (and what the output schema says,
//! when it was before), the cost is linear in the size, and no found value ever leaves in a
//! [`Verdict`] or an error. A scan never yields: run large ones where they may take a core for a
//! while; `benches/scan.rs` prints how fast they are.
//!
//! `detect` has the detectors and the table of tokens, `national_ids` that of national numbers; `engine::search` goes over
//! a text once and calls them. They ask `context` what stands around a candidate. `engine::document_walk` goes through documents, `scan_sink` decides, `schema_fit` and
//! `schema` keep results valid, `compiled` is what the config says. Text with `escapes` is searched as it is and as
//! `decode` reads it.

mod byte_set;
mod class;
mod context;
mod detect;
mod engine;
mod finding;
mod lexicon;
mod national_ids;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use indexmap::IndexMap;

pub use detect::detectors::InvalidDetector;
pub use engine::compiled::InvalidScan;
pub use engine::schema::OutputSchema;

use crate::{
    config::{Scan, ScanAction},
    mcp::json::Raw,
};
use class::{Class, Country};
use context::{Names, seen_values::SeenValues};
use engine::{
    compiled::{CompiledScan, ScanRules},
    scan_sink::ScanSink,
    schema_fit::{Redaction, SchemaFit, apply_redactions},
};

/// A compiled `scan` section of the config; share it by [`Arc`].
#[derive(Debug)]
pub struct Scanner {
    compiled: CompiledScan,
    rules: [ScanRules; Direction::ALL.len()],
    /// What masks whatever an operator's own classes find.
    custom_rules: ScanRules,
}

/// Where data comes from and goes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// Arguments of a tool, on their way to the server.
    Arguments,
    /// Progress and log messages of a server.
    Notifications,
    /// Prompts, their arguments and texts.
    Prompts,
    /// Contents of resources.
    Resources,
    /// Results of a tool.
    Results,
}

impl Direction {
    const ALL: [Self; 5] = [
        Self::Arguments,
        Self::Notifications,
        Self::Prompts,
        Self::Resources,
        Self::Results,
    ];

    /// The key of the config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Notifications => "notifications",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Results => "results",
        }
    }

    fn actions(self, scan: &Scan) -> &IndexMap<String, ScanAction> {
        match self {
            Self::Arguments => &scan.arguments,
            Self::Notifications => &scan.notifications,
            Self::Prompts => &scan.prompts,
            Self::Resources => &scan.resources,
            Self::Results => &scan.results,
        }
    }
}

/// What a scan found and what follows; values are never in it.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What was found, one entry a class, in the order of [`classes`], then of the config.
    pub hits: Vec<Hit>,
    /// The class because of which the message may not pass: one that is to be blocked, or one whose
    /// values cannot be taken out without breaking the output schema.
    pub blocked: Option<Arc<str>>,
    /// The message with masks, when there is something to mask and nothing blocks it.
    pub redacted: Option<Raw>,
}

impl Verdict {
    /// Nothing was found.
    const CLEAN: Self = Self {
        hits: Vec::new(),
        blocked: None,
        redacted: None,
    };
}

/// How often a class was found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hit {
    /// The name of the class.
    pub class: Arc<str>,
    /// What the config says about it.
    pub action: ScanAction,
    /// How many values; those in the text copy of structured content count again.
    pub count: u64,
}

/// The names of all built-in classes.
pub fn classes() -> impl Iterator<Item = &'static str> {
    Class::ALL.into_iter().map(Class::name)
}

/// The ISO 3166 codes, in lower case, of all countries that have a pack.
pub fn countries() -> impl Iterator<Item = &'static str> {
    Country::ALL.into_iter().map(Country::name)
}

impl Scanner {
    /// Compiles `scan`.
    ///
    /// # Errors
    /// The first mistake, with the name that is wrong.
    pub fn new(scan: &Scan) -> Result<Self, InvalidScan> {
        let compiled = CompiledScan::new(scan)?;
        let [arguments, notifications, prompts, resources, results] =
            Direction::ALL.map(|direction| compiled.rules(direction, scan));
        Ok(Self {
            rules: [arguments?, notifications?, prompts?, resources?, results?],
            custom_rules: compiled.custom_rules(),
            compiled,
        })
    }

    /// Whether nothing is looked for in `direction`, so that a scan can be left out.
    pub fn is_idle(&self, direction: Direction) -> bool {
        let rules = &self.rules[direction as usize];
        rules.wanted.classes.is_empty() && rules.custom.is_empty()
    }

    /// `message` without what an operator's own classes find, whatever is to happen to it elsewhere;
    /// `None` where they find nothing.
    pub fn redact_custom(&self, message: &Raw) -> Option<Raw> {
        if self.custom_rules.custom.is_empty() {
            return None;
        }
        let text = message.as_str();
        let mut sink = ScanSink::new(&self.compiled, &self.custom_rules, self.compiled.mask);
        let changes = engine::document_walk::walk_document(text, Names::default(), &mut sink, 0);
        (!changes.edits.is_empty()).then(|| apply_redactions(text, &changes))
    }

    /// Looks through `message`. `schema` is that of the tool whose result it is, or, among
    /// arguments, that of the `content` with which a client answers its server; it is asked for only
    /// where structured content is to change.
    pub fn scan<'s>(
        &self,
        direction: Direction,
        message: &Raw,
        schema: impl Fn() -> Option<&'s OutputSchema>,
    ) -> Verdict {
        let rules = &self.rules[direction as usize];
        let text = message.as_str();
        let mut sink = ScanSink::new(&self.compiled, rules, self.compiled.mask);
        let mut changes =
            engine::document_walk::walk_document(text, Names::default(), &mut sink, 0);
        if sink.counts.is_empty() {
            return Verdict::CLEAN;
        }
        let member = match direction {
            Direction::Results => Some("structuredContent"),
            Direction::Arguments => schema().map(|_| "content"),
            Direction::Notifications | Direction::Prompts | Direction::Resources => None,
        };
        let structured = member.and_then(|member| message.member(member));
        // What only its surroundings give away may stand without them in the text copy.
        let by_context = std::mem::take(&mut sink.by_context);
        let has_text_copy = structured.is_some() && !by_context.is_empty();
        let read = if has_text_copy {
            SeenValues::new(by_context)
        } else {
            Ok(SeenValues::default())
        };
        let too_many = read.as_ref().err().map(|too_many| too_many.class);
        let known = read.unwrap_or_default();
        if has_text_copy {
            sink =
                ScanSink::new(&self.compiled, rules, self.compiled.mask).with_seen_values(&known);
            changes = engine::document_walk::walk_document(text, Names::default(), &mut sink, 0);
        }
        let hits = self.to_hits(rules, &sink.counts);
        let name = |class: usize| self.compiled.names[class].clone();
        let to_block = hits.iter().find(|hit| hit.action == ScanAction::Block);
        let mut verdict = Verdict {
            // Text that cannot be searched for what has to be masked does not pass.
            blocked: to_block
                .map(|hit| hit.class.clone())
                .or_else(|| too_many.map(name)),
            redacted: None,
            hits: Vec::new(),
        };
        if verdict.blocked.is_none() && !changes.edits.is_empty() {
            let scan = Redaction {
                compiled: &self.compiled,
                rules,
                known: &known,
                member: member.unwrap_or_default(),
                text,
            };
            let schema_fit = structured
                .and_then(|span| Some((span, schema()?)))
                .map_or(SchemaFit::Valid, |(span, schema)| {
                    scan.fit_to_schema(schema, &span, &changes)
                });
            match schema_fit {
                SchemaFit::Valid => verdict.redacted = Some(apply_redactions(text, &changes)),
                SchemaFit::Impossible { class } => verdict.blocked = Some(name(class)),
                SchemaFit::Changed(changes) => {
                    verdict.redacted = Some(apply_redactions(text, &changes));
                }
            }
        }
        verdict.hits = hits;
        verdict
    }

    /// Where values of which classes stand in `text`, which is taken as it is, below the key `key`.
    ///
    /// For tests and measurements; [`Scanner::scan`] is for messages.
    pub fn locate_in_text(
        &self,
        direction: Direction,
        key: &str,
        text: &str,
    ) -> Vec<(Arc<str>, Range<usize>)> {
        let mut sink = ScanSink::new(
            &self.compiled,
            &self.rules[direction as usize],
            self.compiled.mask,
        );
        let names = Names {
            own: key,
            ..Names::default()
        };
        let found = sink.matches(text, names).into_iter();
        found
            .map(|found| (self.compiled.names[found.class].clone(), found.span))
            .collect()
    }

    /// Where values of which classes stand in `message`, as it is written.
    ///
    /// For tests and measurements; [`Scanner::scan`] is for messages.
    pub fn locate(&self, direction: Direction, message: &Raw) -> Vec<(Arc<str>, Range<usize>)> {
        let rules = &self.rules[direction as usize];
        let mut sink = ScanSink::new(&self.compiled, rules, self.compiled.mask).with_marking();
        let edits =
            engine::document_walk::walk_document(message.as_str(), Names::default(), &mut sink, 0)
                .edits;
        let marked = edits.into_iter().map(|edit| (edit.text.into(), edit.span));
        marked.collect()
    }

    fn to_hits(&self, rules: &ScanRules, counts: &[u64]) -> Vec<Hit> {
        let found = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        found
            .map(|(class, count)| Hit {
                class: self.compiled.names[class].clone(),
                action: rules.actions[class],
                count: *count,
            })
            .collect()
    }
}
