//! What one part of a message says of values that other parts hold too.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::scan::class::Class;

/// Bytes of all passwords and tokens of one message that are looked for in its text.
pub(in crate::scan) const SECRETS_BYTES_MAX: usize = 1 << 20;

/// Stands where a word begins or ends; no text has this byte.
const WORD_BOUNDARY_MARK: u8 = 0xff;

/// Values that only their surroundings gave away, with the index of their class.
pub(in crate::scan) type Values = HashMap<String, usize>;

/// Values to be taken for sensitive wherever they stand.
#[derive(Debug, Default)]
pub(in crate::scan) struct SeenValues {
    values: Values,
    /// The values that no form gives away, so that they are looked for as they are.
    secrets: Option<SecretFinder>,
}

/// More passwords and tokens than are looked for.
#[derive(Debug)]
pub(in crate::scan) struct TooManySecrets {
    /// The index of the class that has most of them.
    pub(in crate::scan) class: usize,
}

/// Passwords and tokens, which look like any other word.
#[derive(Debug)]
struct SecretFinder {
    /// Finds them in marked text, so that what is found begins and ends with a word.
    finder: AhoCorasick,
    /// The class of each of its patterns.
    classes: Vec<usize>,
}

impl SeenValues {
    pub(in crate::scan) fn new(values: Values) -> Result<Self, TooManySecrets> {
        Ok(Self {
            secrets: SecretFinder::of(&values)?,
            values,
        })
    }

    /// Whether `value` is of `class`.
    pub(in crate::scan) fn contains(&self, value: &str, class: Class) -> bool {
        self.values.get(value) == Some(&class.index())
    }

    /// Where the known passwords and tokens stand in `text` as words, with their classes.
    pub(in crate::scan) fn find_secrets(&self, text: &str) -> Vec<(usize, Range<usize>)> {
        let Some(secrets) = &self.secrets else {
            return Vec::new();
        };
        let marked = MarkedText::new(text);
        let found = secrets.finder.find_iter(&marked.text).map(|found| {
            let span =
                marked.original_position(found.start())..marked.original_position(found.end() - 1);
            (secrets.classes[found.pattern().as_usize()], span)
        });
        found.collect()
    }
}

impl SecretFinder {
    fn of(values: &Values) -> Result<Option<Self>, TooManySecrets> {
        let secret_classes = [Class::Credential, Class::ApiKey].map(Class::index);
        let (texts, classes): (Vec<_>, Vec<_>) = values
            .iter()
            .filter(|(_, class)| secret_classes.contains(class))
            .filter_map(|(value, class)| Some((search_pattern(value)?, *class)))
            .unzip();
        if texts.is_empty() {
            return Ok(None);
        }
        let bytes_of = |class: usize| -> usize {
            let texts = texts.iter().zip(&classes).filter(|(_, of)| **of == class);
            texts.map(|(text, _)| text.len()).sum()
        };
        let bytes = secret_classes.map(|class| (bytes_of(class), class));
        let class = bytes.iter().max().map_or(0, |(_, class)| *class);
        if bytes.iter().map(|(bytes, _)| bytes).sum::<usize>() > SECRETS_BYTES_MAX {
            return Err(TooManySecrets { class });
        }
        let finder = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|_| TooManySecrets { class })?;
        Ok(Some(Self { finder, classes }))
    }
}

/// What is looked for in marked text to find `secret`; `None` where it is a word or a number alone,
/// which may stand in a text and mean anything.
fn search_pattern(secret: &str) -> Option<Vec<u8>> {
    let words = secret.trim_matches(|c: char| !c.is_alphanumeric());
    let is_mixed = words.contains(char::is_alphabetic) && !words.chars().all(char::is_alphabetic);
    is_mixed.then(|| MarkedText::new(words).text)
}

/// A text with a mark before and after each of its words, which are runs of letters and digits.
struct MarkedText {
    text: Vec<u8>,
    /// Where each mark is, there and in the text as it was.
    marks: Vec<(usize, usize)>,
}

impl MarkedText {
    fn new(text: &str) -> Self {
        let mut marked = Self {
            text: Vec::with_capacity(text.len() + text.len() / 2),
            marks: Vec::new(),
        };
        let mut in_word = false;
        for (at, c) in text.char_indices() {
            if c.is_alphanumeric() != in_word {
                in_word = !in_word;
                marked.mark(at);
            }
            marked
                .text
                .extend_from_slice(&text.as_bytes()[at..at + c.len_utf8()]);
        }
        if in_word {
            marked.mark(text.len());
        }
        marked
    }

    fn mark(&mut self, origin: usize) {
        self.marks.push((self.text.len(), origin));
        self.text.push(WORD_BOUNDARY_MARK);
    }

    /// Where the mark at `mark` is in the text as it was.
    fn original_position(&self, mark: usize) -> usize {
        let at = self.marks.partition_point(|(there, _)| *there < mark);
        self.marks[at].1
    }
}
