//! PII and secrets: finds them in JSON, and takes them out without breaking it.
//!
//! Pure: no I/O, no clock, no task. `governance` owns a [`Scanner`] for each section of the config
//! and asks it about arguments, results, resources, prompts and notifications. What must stay true:
//! nothing but the found spans changes, the result is valid JSON (and what the output schema says,
//! when it was before), the cost is linear in the size, and no found value ever leaves in a
//! [`Verdict`] or an error. A scan never yields: run large ones where they may take a core for a
//! while; `benches/scan.rs` prints how fast they are.
//!
//! `search` goes over a text once and calls the detectors (`number`, `phone`, `date`, `national`,
//! `internet`, `secret`, `credential`), which ask `context` what stands around a candidate; `walk`
//! goes through documents, `sink` decides, `schema` mends.

mod checksum;
mod class;
mod context;
mod credential;
mod date;
mod decode;
mod internet;
mod known;
mod lexicon;
mod national;
mod number;
mod phone;
mod schema;
mod search;
mod secret;
mod sink;
#[cfg(test)]
mod tests;
mod walk;

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use globset::{Glob, GlobSet, GlobSetBuilder};
use indexmap::IndexMap;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

pub use schema::OutputSchema;

use self::{
    class::{Class, Classes, Countries, Country},
    context::Names,
    known::Known,
    schema::Redacted,
    search::Wanted,
    secret::Prefixes,
    sink::{Replacement, Sink},
    walk::{Changes, Leaf},
};
use crate::{
    config::{Mask, Scan, ScanAction},
    mcp::json::{Patch, Raw},
};

/// Size of one compiled pattern of the config at most, bytes.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A compiled `scan` section of the config; share it by [`Arc`].
#[derive(Debug)]
pub struct Scanner {
    compiled: Compiled,
    rules: [Rules; Direction::ALL.len()],
    /// What masks whatever an operator's own classes find.
    own: Rules,
}

/// What all directions have in common.
#[derive(Debug)]
struct Compiled {
    mask: Mask,
    prefixes: Prefixes,
    /// Names of all classes, the built-in ones first.
    names: Vec<Arc<str>>,
    /// What stands in brackets for a class.
    labels: Vec<String>,
    /// The patterns of the classes that are not built in.
    patterns: Vec<Regex>,
    /// Values that never match, as [`sink::allowed_form`] writes them.
    allow: HashSet<String>,
    base64: GlobSet,
}

/// What one direction looks for.
#[derive(Debug)]
struct Rules {
    /// By index of the class.
    actions: Vec<ScanAction>,
    wanted: Wanted,
    /// Indices of the classes with patterns of the config.
    custom: Vec<usize>,
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
    /// How many values; those in the text twin of structured content count again.
    pub count: u64,
}

/// A mistake in a `scan` section; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum InvalidScan {
    /// An action is given for something that is no class.
    #[error(
        "`{class}` under `{direction}` is no class; see the built-in names, `custom` and `dictionaries`"
    )]
    Class {
        /// What was written.
        class: String,
        /// Under which key.
        direction: &'static str,
    },
    /// A class of the config has the name of another one.
    #[error("the class `{0}` exists already")]
    Duplicate(String),
    /// A country has no pack.
    #[error("there is no pack for the country `{0}`")]
    Country(String),
    /// A regular expression cannot be compiled, or takes too much memory.
    #[error("the pattern of the class `{class}` does not compile: {error}")]
    Pattern {
        /// Whose.
        class: String,
        /// Why not.
        error: Box<regex::Error>,
    },
    /// A dictionary has no words, or an empty one.
    #[error("the dictionary `{0}` has an empty word or none")]
    Dictionary(String),
    /// A MIME type is no glob.
    #[error("`{0}` is no pattern of MIME types")]
    Mime(String),
}

/// The names of all built-in classes.
pub fn classes() -> impl Iterator<Item = &'static str> {
    Class::ALL.into_iter().map(Class::name)
}

/// The ISO 3166 codes, in lower case, of all countries that have a pack.
pub fn countries() -> impl Iterator<Item = &'static str> {
    Country::ALL.into_iter().map(Country::code)
}

impl Scanner {
    /// Compiles `scan`.
    ///
    /// # Errors
    /// The first mistake, with the name that is wrong.
    pub fn new(scan: &Scan) -> Result<Self, InvalidScan> {
        let mut names: Vec<Arc<str>> = classes().map(Arc::from).collect();
        let mut patterns = Vec::new();
        for (class, pattern) in &scan.custom {
            patterns.push(compiled(class, pattern)?);
            add(&mut names, class)?;
        }
        for (class, words) in &scan.dictionaries {
            patterns.push(compiled(class, &any_of(class, words)?)?);
            add(&mut names, class)?;
        }
        let countries = selected(&scan.countries)?;
        let [arguments, notifications, prompts, resources, results] =
            Direction::ALL.map(|direction| rules(direction, scan, &names, countries));
        Ok(Self {
            rules: [arguments?, notifications?, prompts?, resources?, results?],
            own: own_rules(&names, countries),
            compiled: Compiled {
                mask: scan.mask,
                prefixes: Prefixes::new(),
                labels: names.iter().map(|name| label(name)).collect(),
                names,
                patterns,
                allow: scan
                    .allow
                    .iter()
                    .map(|value| sink::allowed_form(value))
                    .collect(),
                base64: globs(&scan.base64)?,
            },
        })
    }

    /// Whether nothing is looked for in `direction`, so that a scan can be left out.
    pub fn is_idle(&self, direction: Direction) -> bool {
        let rules = &self.rules[direction as usize];
        rules.wanted.classes.is_empty() && rules.custom.is_empty()
    }

    /// `message` without what an operator's own classes find, whatever is to happen to it elsewhere;
    /// `None` where they find nothing.
    pub fn without_own(&self, message: &Raw) -> Option<Raw> {
        if self.own.custom.is_empty() {
            return None;
        }
        let text = message.as_str();
        let mut sink = Sink::new(&self.compiled, &self.own, self.compiled.mask);
        let changes = walk::walk(text, Names::default(), &mut sink, 0);
        (!changes.edits.is_empty()).then(|| patched(text, &changes))
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
        let mut sink = Sink::new(&self.compiled, rules, self.compiled.mask);
        let mut changes = walk::walk(text, Names::default(), &mut sink, 0);
        if sink.counts.is_empty() {
            return Verdict::CLEAN;
        }
        let member = match direction {
            Direction::Results => Some("structuredContent"),
            Direction::Arguments => schema().map(|_| "content"),
            Direction::Notifications | Direction::Prompts | Direction::Resources => None,
        };
        let structured = member.and_then(|member| message.member(member));
        // What only its surroundings give away may stand without them in the twin.
        let by_context = std::mem::take(&mut sink.by_context);
        let twin = structured.is_some() && !by_context.is_empty();
        let read = if twin {
            Known::new(by_context)
        } else {
            Ok(Known::default())
        };
        let too_many = read.as_ref().err().map(|too_many| too_many.class);
        let known = read.unwrap_or_default();
        if twin {
            sink = Sink::new(&self.compiled, rules, self.compiled.mask).knowing(&known);
            changes = walk::walk(text, Names::default(), &mut sink, 0);
        }
        let hits = self.hits(rules, &sink.counts);
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
                scanner: self,
                rules,
                known: &known,
                member: member.unwrap_or_default(),
                text,
            };
            let mended = structured
                .and_then(|span| Some((span, schema()?)))
                .map_or(Mended::AsIs, |(span, schema)| {
                    scan.mended(schema, &span, &changes)
                });
            match mended {
                Mended::AsIs => verdict.redacted = Some(patched(text, &changes)),
                Mended::Impossible { class } => verdict.blocked = Some(name(class)),
                Mended::With(changes) => verdict.redacted = Some(patched(text, &changes)),
            }
        }
        verdict.hits = hits;
        verdict
    }

    /// Where values of which classes stand in `text`, which is taken as it is, below the key `key`.
    ///
    /// For tests and measurements; [`Scanner::scan`] is for messages.
    pub fn spans(
        &self,
        direction: Direction,
        key: &str,
        text: &str,
    ) -> Vec<(Arc<str>, Range<usize>)> {
        let mut sink = Sink::new(
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
    pub fn located(&self, direction: Direction, message: &Raw) -> Vec<(Arc<str>, Range<usize>)> {
        let rules = &self.rules[direction as usize];
        let mut sink = Sink::new(&self.compiled, rules, self.compiled.mask).marking();
        let edits = walk::walk(message.as_str(), Names::default(), &mut sink, 0).edits;
        let marked = edits.into_iter().map(|edit| (edit.with.into(), edit.span));
        marked.collect()
    }

    fn hits(&self, rules: &Rules, counts: &[u64]) -> Vec<Hit> {
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

/// A redaction under way whose structured content must fit a schema.
struct Redaction<'a> {
    scanner: &'a Scanner,
    rules: &'a Rules,
    known: &'a Known,
    /// What must fit.
    member: &'static str,
    text: &'a str,
}

impl Redaction<'_> {
    /// Other changes than `changes`, where the schema needs them.
    fn mended(
        &self,
        schema: &OutputSchema,
        structured: &Range<usize>,
        changes: &Changes,
    ) -> Mended {
        let inside =
            |leaf: &&Leaf| structured.start <= leaf.span.start && leaf.span.end <= structured.end;
        let leaves: Vec<&Leaf> = changes.leaves.iter().filter(inside).collect();
        let Some(first) = leaves.first() else {
            return Mended::AsIs;
        };
        let impossible = |leaf: &Leaf| Mended::Impossible { class: leaf.class };
        let original: Option<Value> = serde_json::from_str(&self.text[structured.clone()]).ok();
        let (Some(original), Some(mut current)) = (original, self.structured(changes)) else {
            return impossible(first);
        };
        if schema.accepts(&current) || !schema.accepts(&original) {
            return Mended::AsIs;
        }
        let (other_changes, alternate) = self.otherwise();
        let Some(alternate) = alternate else {
            return impossible(first);
        };
        if let Some(key) = leaves.iter().find(|leaf| leaf.key) {
            // Names of members are not filled in one by one: the other mask fits, or nothing does.
            return if schema.accepts(&alternate) {
                Mended::With(other_changes)
            } else {
                impossible(key)
            };
        }
        let redacted = self.redacted(&leaves, &original, &alternate);
        let compiled = &self.scanner.compiled;
        let mut probe = Sink::new(compiled, self.rules, compiled.mask).knowing(self.known);
        let mut harmless = |leaf: &Redacted, value: &Value| {
            let own = leaf.pointer.rsplit('/').next().unwrap_or_default();
            let names = Names {
                own,
                ..Names::default()
            };
            probe.matches(&plain(value), names).is_empty()
        };
        match schema::fit(schema, &mut current, &redacted, &mut harmless) {
            Ok(replaced) => Mended::With(self.replaced(&leaves, &redacted, &replaced, &current)),
            Err(unfit) => impossible(leaves[unfit]),
        }
    }

    /// The structured content after `changes`.
    fn structured(&self, changes: &Changes) -> Option<Value> {
        let patched = patched(self.text, changes);
        patched.get(self.member)?.read().ok()
    }

    /// The redacted values with what they were; `leaves` are in `original`.
    fn redacted(&self, leaves: &[&Leaf], original: &Value, alternate: &Value) -> Vec<Redacted> {
        let root = self.member.len() + 1;
        let found = leaves.iter().map(|leaf| {
            let pointer = leaf.pointer.get(root..).unwrap_or_default().to_owned();
            Redacted {
                original: original.pointer(&pointer).cloned().unwrap_or_default(),
                alternate: alternate.pointer(&pointer).cloned().unwrap_or_default(),
                pointer,
            }
        });
        found.collect()
    }

    /// What the mask that is not configured makes of the message.
    fn otherwise(&self) -> (Changes, Option<Value>) {
        let compiled = &self.scanner.compiled;
        let other = match compiled.mask {
            Mask::Length => Mask::Type,
            Mask::Type => Mask::Length,
        };
        let mut sink = Sink::new(compiled, self.rules, other).knowing(self.known);
        let changes = walk::walk(self.text, Names::default(), &mut sink, 0);
        let structured = self.structured(&changes);
        (changes, structured)
    }

    /// Changes that make the structured content what was `accepted`, and put what is `replaced` in
    /// its twin wherever the same values stand.
    fn replaced(
        &self,
        leaves: &[&Leaf],
        redacted: &[Redacted],
        replaced: &HashMap<String, Value>,
        accepted: &Value,
    ) -> Changes {
        let replacement = |(redacted, leaf): (&Redacted, &&Leaf)| {
            let with = plain(replaced.get(&redacted.pointer)?);
            let class = leaf.class;
            Some((plain(&redacted.original), Replacement { with, class }))
        };
        let each = redacted.iter().zip(leaves);
        let replacements: HashMap<String, Replacement> = each.filter_map(replacement).collect();
        let compiled = &self.scanner.compiled;
        let mut sink = Sink::new(compiled, self.rules, compiled.mask)
            .knowing(self.known)
            .replacing(&replacements);
        let mut changes = walk::walk(self.text, Names::default(), &mut sink, 0);
        // One value may stand at several places that need different stand-ins, or none.
        let places: HashMap<usize, (&Leaf, &Value)> = leaves
            .iter()
            .zip(redacted)
            .filter_map(|(leaf, redacted)| {
                Some((
                    leaf.span.start,
                    (*leaf, accepted.pointer(&redacted.pointer)?),
                ))
            })
            .collect();
        let mut starts: Vec<&Range<usize>> = places.values().map(|(leaf, _)| &leaf.span).collect();
        starts.sort_by_key(|span| span.start);
        changes.edits.retain(|edit| {
            let after = starts.partition_point(|span| span.start <= edit.span.start);
            after == 0 || starts[after - 1].end < edit.span.end
        });
        changes
            .edits
            .extend(places.values().map(|(leaf, value)| walk::Edit {
                span: leaf.span.clone(),
                with: value.to_string(),
                class: leaf.class,
            }));
        changes
    }
}

/// What a schema makes of a redaction.
enum Mended {
    /// It is accepted, or there is nothing to keep valid.
    AsIs,
    /// Nothing is accepted that hides the values.
    Impossible {
        /// The index of the class of one that cannot be hidden.
        class: usize,
    },
    With(Changes),
}

/// A text as it is, another value as it is written.
fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn patched(text: &str, changes: &Changes) -> Raw {
    let mut patch = Patch::new(text.as_bytes());
    for edit in &changes.edits {
        patch.replace(edit.span.clone(), edit.with.as_bytes());
    }
    patch.finish()
}

fn rules(
    direction: Direction,
    scan: &Scan,
    names: &[Arc<str>],
    countries: Countries,
) -> Result<Rules, InvalidScan> {
    const ALL_OTHERS: &str = "*";
    let given = direction.actions(scan);
    let unknown =
        |class: &&String| *class != ALL_OTHERS && !names.iter().any(|name| **name == ***class);
    if let Some(class) = given.keys().find(unknown) {
        return Err(InvalidScan::Class {
            class: class.clone(),
            direction: direction.name(),
        });
    }
    let others = given.get(ALL_OTHERS).copied().unwrap_or(ScanAction::Off);
    let actions: Vec<ScanAction> = names
        .iter()
        .map(|name| given.get(&**name).copied().unwrap_or(others))
        .collect();
    let on = |class: usize| actions[class] != ScanAction::Off;
    let wanted = Class::ALL.into_iter().filter(|class| on(class.index()));
    Ok(Rules {
        wanted: Wanted {
            classes: wanted.fold(Classes::default(), Classes::with),
            countries,
        },
        custom: (Class::ALL.len()..names.len())
            .filter(|class| on(*class))
            .collect(),
        actions,
    })
}

fn own_rules(names: &[Arc<str>], countries: Countries) -> Rules {
    let own = Class::ALL.len()..names.len();
    let action = |class: usize| match class {
        class if own.contains(&class) => ScanAction::Redact,
        _ => ScanAction::Off,
    };
    Rules {
        actions: (0..names.len()).map(action).collect(),
        wanted: Wanted {
            classes: Classes::default(),
            countries,
        },
        custom: own.clone().collect(),
    }
}

fn selected(codes: &[String]) -> Result<Countries, InvalidScan> {
    if codes.is_empty() {
        return Ok(Countries::all());
    }
    codes.iter().try_fold(Countries::default(), |all, code| {
        let country = Country::ALL
            .into_iter()
            .find(|country| country.code() == code);
        country
            .map(|country| all.with(country))
            .ok_or_else(|| InvalidScan::Country(code.clone()))
    })
}

fn add(names: &mut Vec<Arc<str>>, class: &str) -> Result<(), InvalidScan> {
    if class == "*" || names.iter().any(|name| **name == *class) {
        return Err(InvalidScan::Duplicate(class.to_owned()));
    }
    names.push(class.into());
    Ok(())
}

fn compiled(class: &str, pattern: &str) -> Result<Regex, InvalidScan> {
    let built = RegexBuilder::new(pattern)
        .size_limit(PATTERN_BYTES_MAX)
        .build();
    built.map_err(|error| InvalidScan::Pattern {
        class: class.to_owned(),
        error: Box::new(error),
    })
}

/// A pattern for any of `words`, whole and in any case, with any space between words of a phrase.
fn any_of(class: &str, words: &[String]) -> Result<String, InvalidScan> {
    if words.is_empty() || words.iter().any(|word| word.trim().is_empty()) {
        return Err(InvalidScan::Dictionary(class.to_owned()));
    }
    let boundary = |c: Option<char>| {
        if c.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            r"\b"
        } else {
            ""
        }
    };
    // The longest first: the first alternative that matches wins.
    let mut words: Vec<&str> = words.iter().map(|word| word.trim()).collect();
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    let alternatives: Vec<String> = words
        .into_iter()
        .map(|word| {
            let parts: Vec<String> = word.split_whitespace().map(regex::escape).collect();
            format!(
                "{}{}{}",
                boundary(word.chars().next()),
                parts.join(r"\s+"),
                boundary(word.chars().last())
            )
        })
        .collect();
    Ok(format!("(?i)(?:{})", alternatives.join("|")))
}

fn globs(mimes: &[String]) -> Result<GlobSet, InvalidScan> {
    let mut set = GlobSetBuilder::new();
    for mime in mimes {
        set.add(Glob::new(mime).map_err(|_| InvalidScan::Mime(mime.clone()))?);
    }
    set.build().map_err(|_| InvalidScan::Mime(mimes.join(", ")))
}

fn label(name: &str) -> String {
    let upper = |c: char| {
        if c.is_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.chars().map(upper).collect()
}
