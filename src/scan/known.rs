//! What one part of a message says of values that other parts hold too.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{AhoCorasick, MatchKind};

use super::class::Class;

/// A secret shorter than this may be any word, bytes.
const SECRET_BYTES_MIN: usize = 4;

/// Values that only their surroundings gave away, with the index of their class.
pub(super) type Values = HashMap<String, usize>;

/// Values to be taken for sensitive wherever they stand.
#[derive(Debug)]
pub(super) struct Known {
    values: Values,
    /// The values that no form gives away, so that they are looked for as they are.
    secrets: Option<Secrets>,
}

/// Passwords and tokens, which look like any other word.
#[derive(Debug)]
struct Secrets {
    finder: AhoCorasick,
    /// The class of each of its patterns.
    classes: Vec<usize>,
}

impl Known {
    pub(super) fn new(values: Values) -> Self {
        Self {
            secrets: Secrets::of(&values),
            values,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn has_secrets(&self) -> bool {
        self.secrets.is_some()
    }

    /// Whether `value` is of `class`.
    pub(super) fn is(&self, value: &str, class: Class) -> bool {
        self.values.get(value) == Some(&class.index())
    }

    /// Where the known passwords and tokens stand in `text` as words, with their classes.
    pub(super) fn secrets_in<'t>(
        &'t self,
        text: &'t str,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + 't {
        let found = move |secrets: &'t Secrets| {
            let found = secrets.finder.find_iter(text);
            found.map(|found| (secrets.classes[found.pattern().as_usize()], found.range()))
        };
        self.secrets
            .iter()
            .flat_map(found)
            .filter(move |(_, span)| is_word(text, span))
    }
}

impl Secrets {
    fn of(values: &Values) -> Option<Self> {
        let is_secret = |(value, class): &(&String, &usize)| {
            value.len() >= SECRET_BYTES_MIN
                && [Class::Credential, Class::ApiKey]
                    .map(Class::index)
                    .contains(class)
        };
        let (texts, classes): (Vec<&String>, Vec<usize>) = values.iter().filter(is_secret).unzip();
        if texts.is_empty() {
            return None;
        }
        // Too many states for its numbers are the only error: more bytes than a message may have.
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .ok()?;
        Some(Self { finder, classes })
    }
}

/// Whether no letter or digit goes on before or after `span`.
fn is_word(text: &str, span: &Range<usize>) -> bool {
    let before = text[..span.start].chars().next_back();
    let after = text[span.end..].chars().next();
    ![before, after]
        .into_iter()
        .flatten()
        .any(char::is_alphanumeric)
}
