//! What happens to what is found: counted, let pass, or masked.

use std::{collections::HashMap, ops::Range};

use super::{
    decode::DecodedText,
    document_walk::Edit,
    embedded::EmbeddedText,
    search::{is_short_word, search},
};
use crate::{
    config::{Mask, ScanAction},
    scan::{
        CompiledScan, Direction, ScanRules,
        class::Class,
        context::{
            Names, Text,
            seen_values::{SeenValues, Values},
        },
        detect::credential,
        finding::FoundValue,
    },
};

/// A text shorter than this holds nothing of the built-in classes, bytes.
const TEXT_BYTES_MIN: usize = 4;
/// How often a text is unescaped at most. Once is enough for what was escaped in one way, however often.
const UNESCAPE_DEPTH_MAX: usize = 4;

/// Takes what one pass over a document finds.
#[derive(Debug)]
pub(in crate::scan) struct ScanSink<'k> {
    compiled: &'k CompiledScan,
    rules: &'k ScanRules,
    mask: Mask,
    /// Values to be taken for sensitive wherever they stand.
    seen_values: Option<&'k SeenValues>,
    /// What stands in place of values that a schema asks another mask for.
    replacements: Option<&'k HashMap<String, Replacement>>,
    /// Whether everything found is an edit, with the name of its class.
    marks_everything: bool,
    /// Found values of each class; empty as long as nothing is found.
    pub(in crate::scan) counts: Vec<u64>,
    /// Found values that only their surroundings gave away.
    pub(in crate::scan) by_context: Values,
    found: Vec<FoundValue>,
}

/// What stands in place of a value that a schema asks another mask for.
#[derive(Clone, Debug)]
pub(in crate::scan) struct Replacement {
    pub(in crate::scan) text: String,
    /// The index of the class of the value.
    pub(in crate::scan) class: usize,
}

/// A found value of any class.
#[derive(Clone, Debug)]
pub(in crate::scan) struct Match {
    /// The index of its class.
    pub(in crate::scan) class: usize,
    pub(in crate::scan) span: Range<usize>,
    action: ScanAction,
    by_context: bool,
}

impl<'k> ScanSink<'k> {
    pub(in crate::scan) fn new(
        compiled: &'k CompiledScan,
        rules: &'k ScanRules,
        mask: Mask,
    ) -> Self {
        Self {
            compiled,
            rules,
            mask,
            seen_values: None,
            replacements: None,
            marks_everything: false,
            counts: Vec::new(),
            by_context: Values::new(),
            found: Vec::new(),
        }
    }

    #[must_use]
    pub(in crate::scan) fn with_seen_values(mut self, known: &'k SeenValues) -> Self {
        self.seen_values = Some(known);
        self
    }

    #[must_use]
    pub(in crate::scan) fn with_replacements(
        mut self,
        replacements: &'k HashMap<String, Replacement>,
    ) -> Self {
        self.replacements = Some(replacements);
        self
    }

    #[must_use]
    pub(in crate::scan) fn with_marking(mut self) -> Self {
        self.marks_everything = true;
        self
    }

    /// The whole text's replacement, when it has one.
    pub(in crate::scan) fn replacement_for(&mut self, text: &str) -> Option<Edit> {
        let Replacement { text: with, class } = self.replacements?.get(text)?.clone();
        for found in self.matches(text, Names::default()) {
            self.count(found.class);
        }
        Some(Edit {
            span: 0..text.len(),
            text: with,
            class,
        })
    }

    /// Counts what is in `text` and says what is to be masked.
    pub(in crate::scan) fn search(&mut self, text: &str, names: Names<'_>) -> Vec<Edit> {
        let mut edits = Vec::new();
        let surroundings = EmbeddedText::of(text);
        for found in self.matches(text, names) {
            let value = &text[found.span.clone()];
            self.note(&found, value);
            if found.action == ScanAction::Redact || self.marks_everything {
                let with = if surroundings.is_json_number(&found.span) && !self.marks_everything {
                    self.masked_number(value)
                } else {
                    self.mask_value(found.class, value)
                };
                edits.push(Edit {
                    span: found.span,
                    text: with,
                    class: found.class,
                });
            }
        }
        edits
    }

    /// What stands in place of the integer `written`, and for which class: an integer, so that the type
    /// stays.
    pub(in crate::scan) fn mask_number(
        &mut self,
        written: &str,
        names: Names<'_>,
    ) -> Option<(String, usize)> {
        let found = self.matches(written, names);
        let mut redacted = None;
        if self.marks_everything {
            let first = found.first()?.class;
            return Some((self.class_name(first), first));
        }
        for found in found {
            self.note(&found, written);
            if found.action == ScanAction::Redact {
                redacted.get_or_insert(found.class);
            }
        }
        let class = redacted?;
        Some((self.masked_number(written), class))
    }

    /// The integer in place of the integer `written`.
    fn masked_number(&self, written: &str) -> String {
        let replacement = self.replacements.and_then(|all| all.get(written));
        replacement.map_or_else(
            || match self.mask {
                Mask::Length => format!("1{}", "0".repeat(written.len() - 1)),
                Mask::Type => "0".to_owned(),
            },
            |replacement| replacement.text.clone(),
        )
    }

    /// Counts `found`, and remembers its `value` for other parts of the message where only its surroundings told it.
    fn note(&mut self, found: &Match, value: &str) {
        self.count(found.class);
        if found.by_context && found.action >= ScanAction::Redact {
            self.by_context.insert(value.to_owned(), found.class);
        }
    }

    fn count(&mut self, class: usize) {
        if self.counts.is_empty() {
            self.counts = vec![0; self.compiled.names.len()];
        }
        self.counts[class] += 1;
    }

    /// Whether base64 content of the type `mime` is to be decoded.
    pub(in crate::scan) fn decodes_mime(&self, mime: &str) -> bool {
        let essence = mime.split(';').next().unwrap_or(mime).trim();
        self.compiled.base64.is_match(essence)
    }

    /// Whether who sends the message decides by it what another program reads of it.
    pub(in crate::scan) fn is_caller_controlled(&self) -> bool {
        matches!(self.rules.direction, Direction::Arguments)
    }

    /// Whether nothing can be found in `word` below the key `own`: so it is with most values.
    pub(in crate::scan) fn is_clean(&self, word: &str, own: &str) -> bool {
        is_short_word(word.as_bytes())
            && !credential::may_be_keyed_secret(own)
            && !self.has_custom()
            && self.replacements.is_none()
    }

    /// Whether an operator's own patterns are looked for, which may be about anything.
    pub(in crate::scan) fn has_custom(&self) -> bool {
        !self.rules.custom.is_empty()
    }

    /// Whether a key is worth a look: most are plain words.
    pub(in crate::scan) fn may_be_in_key(&self, written: &str) -> bool {
        let telling = |b: u8| b.is_ascii_digit() || matches!(b, b'@' | b'\\' | b':');
        self.has_custom() || written.len() >= TEXT_BYTES_MIN && written.bytes().any(telling)
    }

    /// What is found in `text`, overlaps joined, in order. Where it has escapes, what they say is looked
    /// through too, and each of them is taken whole or left whole.
    pub(in crate::scan) fn matches(&mut self, text: &str, names: Names<'_>) -> Vec<Match> {
        self.merge_unescaped(text, names, Vec::new(), UNESCAPE_DEPTH_MAX)
    }

    /// The same with what is `found` in other readings of the text, in positions of this one.
    fn merge_unescaped(
        &mut self,
        text: &str,
        names: Names<'_>,
        mut found: Vec<Match>,
        left: usize,
    ) -> Vec<Match> {
        found.extend(self.search_plain(text, names));
        let Some(view) = DecodedText::unescape(text).filter(|_| left > 0) else {
            return merge_overlaps(found);
        };
        for it in &mut found {
            it.span = view.decoded_span(&it.span);
        }
        let mut found = self.merge_unescaped(&view.text, names, found, left - 1);
        for it in &mut found {
            it.span = view.written_position(it.span.start)..view.written_position(it.span.end);
        }
        found
    }

    /// What is found in `text` as it is written.
    fn search_plain(&mut self, text: &str, names: Names<'_>) -> Vec<Match> {
        let rules = self.rules;
        let match_of = |class: usize, span, by_context| Match {
            class,
            span,
            action: rules.actions[class],
            by_context,
        };
        let mut matches = Vec::new();
        if text.len() >= TEXT_BYTES_MIN && !rules.wanted.classes.is_empty() {
            let looked_at = Text::new(text, names, self.seen_values);
            let detectors = &self.compiled.detectors;
            search(&looked_at, rules.wanted, detectors, &mut self.found);
            let found = self.found.drain(..);
            let found = found.map(|it| match_of(it.class.index(), it.span, it.by_context));
            matches.extend(found.filter(|found| found.action != ScanAction::Off));
        }
        let secrets = self.seen_values.map(|known| known.find_secrets(text));
        let secrets = secrets.into_iter().flatten();
        matches.extend(secrets.map(|(class, span)| match_of(class, span, false)));
        for class in &rules.custom {
            let pattern = &self.compiled.patterns[*class - Class::ALL.len()];
            let spans = pattern.find_iter(text).map(|found| found.range());
            let spans = spans.filter(|span| !span.is_empty());
            matches.extend(spans.map(|span| match_of(*class, span, false)));
        }
        matches.retain(|found| !self.is_allowed(text, &found.span));
        matches
    }

    /// Whether the value at `span` is on the list of those that never match, or a mask of ours.
    fn is_allowed(&self, text: &str, span: &Range<usize>) -> bool {
        let value = &text[span.clone()];
        if value.bytes().all(|b| b == b'*') {
            return true;
        }
        let inside = value.trim_start_matches('[').trim_end_matches(']');
        let bracketed = (value.starts_with('[') || text[..span.start].ends_with('['))
            && (value.ends_with(']') || text[span.end..].starts_with(']'));
        bracketed && self.compiled.labels.iter().any(|label| label == inside)
            || !self.compiled.allow.is_empty() && self.compiled.allow.contains(&normalized(value))
    }

    fn class_name(&self, class: usize) -> String {
        self.compiled.names[class].to_string()
    }

    fn mask_value(&self, class: usize, value: &str) -> String {
        if self.marks_everything {
            return self.class_name(class);
        }
        if let Some(replacement) = self.replacements.and_then(|all| all.get(value)) {
            return replacement.text.clone();
        }
        match self.mask {
            Mask::Length => "*".repeat(value.chars().count()),
            Mask::Type => format!("[{}]", self.compiled.labels[class]),
        }
    }
}

/// A value without what may be written differently each time.
pub(in crate::scan) fn normalized(value: &str) -> String {
    let kept = value
        .chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '-' | '(' | ')'));
    kept.flat_map(char::to_lowercase).collect()
}

/// Joins what overlaps under the strictest, widest, most specific of the classes, so that no
/// part of a value that must not stay does.
fn merge_overlaps(mut matches: Vec<Match>) -> Vec<Match> {
    matches.sort_by_key(|found| (found.span.start, found.span.end));
    let mut joined: Vec<Match> = Vec::with_capacity(matches.len());
    for found in matches {
        match joined.last_mut() {
            Some(last) if found.span.start < last.span.end => {
                let kept = last.action.max(found.action);
                let union = last.span.start..last.span.end.max(found.span.end);
                // What is only reported does not widen what is masked.
                let span = match (last.action == kept, found.action == kept) {
                    (true, true) => union,
                    (true, false) => last.span.clone(),
                    (false, _) => found.span.clone(),
                };
                if precedence(&found) > precedence(last) {
                    *last = found;
                }
                last.span = span;
            }
            Some(_) | None => joined.push(found),
        }
    }
    joined
}

fn precedence(found: &Match) -> (ScanAction, usize, usize) {
    // Of one span: what somebody configured, then what its form says, then what its name says.
    const ORDER: [Class; 13] = [
        Class::Credential,
        Class::Phone,
        Class::IpAddress,
        Class::DateOfBirth,
        Class::Passport,
        Class::Email,
        Class::NationalId,
        Class::UsSsn,
        Class::CreditCard,
        Class::Iban,
        Class::ApiKey,
        Class::Jwt,
        Class::PrivateKey,
    ];
    let rank = ORDER.iter().position(|class| class.index() == found.class);
    (found.action, found.span.len(), rank.unwrap_or(ORDER.len()))
}
