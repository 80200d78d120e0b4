//! What a `scan` section of the config says, compiled, and what can be wrong with it.

use std::{collections::HashSet, sync::Arc};

use globset::{Glob, GlobSet, GlobSetBuilder};
use regex::{Regex, RegexBuilder};

use super::scan_sink;
use crate::{
    config::{Mask, Scan, ScanAction},
    scan::{
        Direction,
        class::{Class, Classes, Countries, Country},
        classes,
        detect::detectors::{Detectors, InvalidDetector},
        finding::WantedClasses,
    },
};

/// Size of one compiled pattern of the config at most, bytes.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What all directions have in common.
#[derive(Debug)]
pub(in crate::scan) struct CompiledScan {
    pub(in crate::scan) mask: Mask,
    pub(in crate::scan) detectors: Arc<Detectors>,
    /// Names of all classes, the built-in ones first.
    pub(in crate::scan) names: Vec<Arc<str>>,
    /// What stands in brackets for a class.
    pub(in crate::scan) labels: Vec<String>,
    /// The patterns of the classes that are not built in.
    pub(in crate::scan) patterns: Vec<Regex>,
    countries: Countries,
    /// Values that never match, as [`scan_sink::normalized`] writes them.
    pub(in crate::scan) allow: HashSet<String>,
    pub(in crate::scan) base64: GlobSet,
}

/// What one direction looks for.
#[derive(Debug)]
pub(in crate::scan) struct ScanRules {
    pub(in crate::scan) direction: Direction,
    /// By index of the class.
    pub(in crate::scan) actions: Vec<ScanAction>,
    pub(in crate::scan) wanted: WantedClasses,
    /// Indices of the classes with patterns of the config.
    pub(in crate::scan) custom: Vec<usize>,
}

impl CompiledScan {
    /// Compiles what `scan` says of all directions.
    ///
    /// # Errors
    /// The first mistake, with the name that is wrong.
    pub(in crate::scan) fn new(scan: &Scan) -> Result<Self, InvalidScan> {
        let mut names: Vec<Arc<str>> = classes().map(Arc::from).collect();
        let mut patterns = Vec::new();
        for (class, pattern) in &scan.custom {
            patterns.push(compile_pattern(class, pattern)?);
            add_class_name(&mut names, class)?;
        }
        for (class, words) in &scan.dictionaries {
            patterns.push(compile_pattern(class, &dictionary_pattern(class, words)?)?);
            add_class_name(&mut names, class)?;
        }
        let allow = scan.allow.iter();
        Ok(Self {
            mask: scan.mask,
            detectors: Detectors::with_custom(&scan.detectors)
                .map_err(|(id, error)| InvalidScan::Detector { id, error })?,
            labels: names.iter().map(|name| mask_label(name)).collect(),
            names,
            patterns,
            countries: selected_countries(&scan.countries)?,
            allow: allow.map(|value| scan_sink::normalized(value)).collect(),
            base64: mime_globs(&scan.base64)?,
        })
    }

    /// What `scan` says of `direction`.
    ///
    /// # Errors
    /// A class that there is none of.
    pub(in crate::scan) fn rules(
        &self,
        direction: Direction,
        scan: &Scan,
    ) -> Result<ScanRules, InvalidScan> {
        const ALL_OTHER_CLASSES: &str = "*";
        let names = &self.names;
        let given = direction.actions(scan);
        let unknown = |class: &&String| {
            *class != ALL_OTHER_CLASSES && !names.iter().any(|name| **name == ***class)
        };
        if let Some(class) = given.keys().find(unknown) {
            return Err(InvalidScan::Class {
                class: class.clone(),
                direction: direction.name(),
            });
        }
        let others = given
            .get(ALL_OTHER_CLASSES)
            .copied()
            .unwrap_or(ScanAction::Off);
        let actions: Vec<ScanAction> = names
            .iter()
            .map(|name| given.get(&**name).copied().unwrap_or(others))
            .collect();
        let on = |class: usize| actions[class] != ScanAction::Off;
        let wanted = Class::ALL.into_iter().filter(|class| on(class.index()));
        Ok(ScanRules {
            direction,
            wanted: WantedClasses {
                classes: wanted.fold(Classes::default(), Classes::with),
                countries: self.countries,
            },
            custom: (Class::ALL.len()..names.len())
                .filter(|class| on(*class))
                .collect(),
            actions,
        })
    }

    /// What masks whatever the classes of the config find.
    pub(in crate::scan) fn custom_rules(&self) -> ScanRules {
        let own = Class::ALL.len()..self.names.len();
        let action = |class: usize| match class {
            class if own.contains(&class) => ScanAction::Redact,
            _ => ScanAction::Off,
        };
        ScanRules {
            direction: Direction::Results,
            actions: (0..self.names.len()).map(action).collect(),
            wanted: WantedClasses {
                classes: Classes::default(),
                countries: self.countries,
            },
            custom: own.clone().collect(),
        }
    }
}

/// A mistake in a `scan` section; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum InvalidScan {
    /// An action is given for something that is no class.
    #[error(
        "`{class}` under `{direction}` is not a known class; see the built-in names, `custom` and `dictionaries`"
    )]
    Class {
        /// What was written.
        class: String,
        /// Under which key.
        direction: &'static str,
    },
    /// A class of the config has the name of another one.
    #[error("class `{0}` already exists")]
    Duplicate(String),
    /// A country has no pack.
    #[error("unsupported country `{0}`")]
    Country(String),
    /// A regular expression cannot be compiled, or takes too much memory.
    #[error("invalid pattern of class `{class}`: {error}")]
    Pattern {
        /// Whose.
        class: String,
        /// Why not.
        error: Box<regex::Error>,
    },
    /// A dictionary has no words, or an empty one.
    #[error("dictionary `{0}` is empty or has an empty word")]
    Dictionary(String),
    /// A detector finds nothing, or too much.
    #[error("invalid detector `{id}`: {error}")]
    Detector {
        /// Which.
        id: String,
        /// Why not.
        error: InvalidDetector,
    },
    /// A MIME type is no glob.
    #[error("`{0}` is not a valid MIME pattern")]
    Mime(String),
}

fn selected_countries(codes: &[String]) -> Result<Countries, InvalidScan> {
    if codes.is_empty() {
        return Ok(Countries::all());
    }
    codes.iter().try_fold(Countries::default(), |all, code| {
        Country::by_name(code)
            .map(|country| all.with(country))
            .ok_or_else(|| InvalidScan::Country(code.clone()))
    })
}

fn add_class_name(names: &mut Vec<Arc<str>>, class: &str) -> Result<(), InvalidScan> {
    if class == "*" || names.iter().any(|name| **name == *class) {
        return Err(InvalidScan::Duplicate(class.to_owned()));
    }
    names.push(class.into());
    Ok(())
}

fn compile_pattern(class: &str, pattern: &str) -> Result<Regex, InvalidScan> {
    let built = RegexBuilder::new(pattern)
        .size_limit(PATTERN_BYTES_MAX)
        .build();
    built.map_err(|error| InvalidScan::Pattern {
        class: class.to_owned(),
        error: Box::new(error),
    })
}

/// A pattern for any of `words`, whole and in any case, with any space between words of a phrase.
fn dictionary_pattern(class: &str, words: &[String]) -> Result<String, InvalidScan> {
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

fn mime_globs(mimes: &[String]) -> Result<GlobSet, InvalidScan> {
    let mut set = GlobSetBuilder::new();
    for mime in mimes {
        set.add(Glob::new(mime).map_err(|_| InvalidScan::Mime(mime.clone()))?);
    }
    set.build().map_err(|_| InvalidScan::Mime(mimes.join(", ")))
}

fn mask_label(name: &str) -> String {
    let upper = |c: char| {
        if c.is_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.chars().map(upper).collect()
}
