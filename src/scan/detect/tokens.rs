//! Tokens while a search goes over a text from word to word: which rows of the table a word may begin,
//! and which vendors were named around it.

use std::{cell::OnceCell, ops::Range, sync::Arc};

use super::{
    detectors::{DetectorRow, Detectors, RowId, StartKind, UUID_WORD_BYTES},
    secret_formats,
};
use crate::scan::{context::Text, finding::FoundValue, lexicon::Hints};

/// How far a word of a vendor may stand before a token, bytes.
const BEFORE_BYTES_MAX: usize = 96;
/// A shorter word is no token of a vendor that is named before or above it.
const WORD_BYTES_MIN: usize = 6;
/// Shortest first word of a token without prefix that has signs among its characters.
const RUN_WORD_BYTES_MIN: usize = 8;

/// The state of the search for tokens in one text.
pub(in crate::scan) struct TokenSearch<'a> {
    text: &'a Text<'a>,
    detectors: &'a Detectors,
    /// The last words of vendors.
    recent_vendors: [Option<VendorWord<'a>>; 4],
    next: usize,
    /// The vendors in the names above the text.
    named_vendors: OnceCell<Vec<Arc<[RowId]>>>,
    /// Where the last runs end that were looked at as a whole.
    run_ends: [usize; RUN_SIGNS.len()],
}

/// A word of a vendor in the text.
#[derive(Clone, Copy)]
struct VendorWord<'a> {
    at: usize,
    rows: &'a Arc<[RowId]>,
}

/// The signs that stand among letters and digits: those of base64, and those that URLs keep as they are.
const RUN_SIGNS: [&[u8]; 2] = [b"+/", b"-_~."];

impl<'a> TokenSearch<'a> {
    pub(in crate::scan) fn new(text: &'a Text<'a>, detectors: &'a Detectors) -> Self {
        Self {
            text,
            detectors,
            recent_vendors: [None; 4],
            next: 0,
            named_vendors: OnceCell::new(),
            run_ends: [0; RUN_SIGNS.len()],
        }
    }

    /// Whether [`TokenSearch::find_at`] may find something at the word of `length` characters that `rest` begins with,
    /// which `next` follows: it does not in most words.
    #[inline]
    pub(in crate::scan) fn may_start(
        &self,
        rest: &[u8],
        length: usize,
        next: u8,
        digits: bool,
    ) -> bool {
        digits && length >= WORD_BYTES_MIN
            || self.detectors.may_start(rest, length)
            || self.detectors.may_be_first_word(length, next)
    }

    /// The token that begins with, or has as its first word, the letters and digits at `word`; `digits`:
    /// whether there are digits among them, `letters`: whether there are letters.
    #[inline(never)]
    pub(in crate::scan) fn find_at(
        &mut self,
        word: &Range<usize>,
        letters: bool,
        digits: bool,
    ) -> Option<FoundValue> {
        let rest = &self.text.bytes()[word.start..];
        if self.detectors.may_start(rest, word.len())
            && let Some(found) = self.token_with_prefix(word)
        {
            return Some(found);
        }
        if let Some(found) = self.token_by_length(word) {
            return Some(found);
        }
        if letters
            && digits
            && word.len() >= RUN_WORD_BYTES_MIN
            && let Some(found) = self.token_in_run(word)
        {
            return Some(found);
        }
        let may_be_token = digits && word.len() >= WORD_BYTES_MIN || self.is_uuid(word);
        if may_be_token {
            self.token_of_vendor(word)
        } else {
            None
        }
    }

    /// A token with a prefix; a word of a vendor is remembered.
    fn token_with_prefix(&mut self, word: &Range<usize>) -> Option<FoundValue> {
        let (text, bytes) = (self.text, self.text.bytes());
        for start in self.detectors.matching_starts(&bytes[word.start..]) {
            let found = match start.kind {
                StartKind::Jwt => secret_formats::find_jwt(text, word.start),
                StartKind::Token(id) => {
                    let row = self.detectors.row(id);
                    find_token(text, row, word.start)
                        .filter(|found| !row.needs_vendor() || self.is_vendor_near(id, &found.span))
                }
                StartKind::Vendor(_) => None,
            };
            if found.is_some() {
                return found;
            }
        }
        let rows = self.detectors.vendor_at(&bytes[word.clone()])?;
        self.recent_vendors[self.next] = Some(VendorWord {
            at: word.start,
            rows,
        });
        self.next = (self.next + 1) % self.recent_vendors.len();
        None
    }

    /// A token without prefix whose first word has the length of `word`.
    fn token_by_length(&self, word: &Range<usize>) -> Option<FoundValue> {
        let mut rows = self.detectors.rows_by_word(self.text.bytes(), word);
        rows.find_map(|id| find_token(self.text, self.detectors.row(id), word.start))
    }

    /// A token without prefix that has signs among its characters, `word` being the first of its words
    /// that is worth a look.
    fn token_in_run(&mut self, word: &Range<usize>) -> Option<FoundValue> {
        const BEFORE_BYTES_MAX: usize = 96;
        const AFTER_BYTES_MAX: usize = 96;
        let bytes = self.text.bytes();
        for (kind, signs) in RUN_SIGNS.into_iter().enumerate() {
            if word.start < self.run_ends[kind] {
                continue;
            }
            let inside = |b: &&u8| b.is_ascii_alphanumeric() || signs.contains(b);
            let before = bytes[..word.start].iter().rev().take(BEFORE_BYTES_MAX);
            let start = word.start - before.take_while(inside).count();
            let after = bytes[word.end..].iter().take(AFTER_BYTES_MAX);
            let mut end = word.end + after.take_while(inside).count();
            self.run_ends[kind] = end;
            while self.text.byte_before(end) == b'.' {
                end -= 1;
            }
            let padding = bytes[end..].iter().take(2).take_while(|b| **b == b'=');
            let end = end + padding.count();
            let starts = [Some(start), Some(word.start).filter(|it| *it != start)];
            for start in starts.into_iter().flatten() {
                let mut rows = self.detectors.rows_by_length(end - start).iter();
                let found =
                    rows.find_map(|id| find_token(self.text, self.detectors.row(*id), start));
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// A token of a vendor that is named before `word` or above the text.
    fn token_of_vendor(&self, word: &Range<usize>) -> Option<FoundValue> {
        let recent = self.recent_vendors.into_iter().flatten();
        let near = recent.filter(|vendor| word.start - vendor.at <= BEFORE_BYTES_MAX);
        for vendor in near {
            let found = self.token_of_rows(vendor.rows, word);
            if let Some(found) = found.filter(|it| self.is_labelled_secret(vendor.at, &it.span)) {
                return Some(found);
            }
        }
        let mut named = self.named_vendors().iter();
        named
            .find_map(|rows| self.token_of_rows(rows, word))
            .filter(|found| !self.is_named_other(&found.span))
    }

    /// The token of one of `rows` that has `word` as its first word, or the first that is worth a look.
    fn token_of_rows(&self, rows: &[RowId], word: &Range<usize>) -> Option<FoundValue> {
        // A part of a path is the name of something.
        if self.text.byte_before(word.start) == b'/' {
            return None;
        }
        let is_part = |b: u8| matches!(b, b'+' | b'/');
        rows.iter().find_map(|id| {
            let row = self.detectors.row(*id);
            let before = self.text.bytes()[..word.start].iter().rev().take(96);
            let before = before.take_while(|b| row.may_start_with(**b)).count();
            let starts = [0, before].into_iter().take(1 + usize::from(before > 0));
            let mut found =
                starts.filter_map(|before| find_token(self.text, row, word.start - before));
            found.find(|found| {
                !is_part(self.text.byte_before(found.span.start))
                    && !is_part(self.text.byte(found.span.end))
            })
        })
    }

    /// Whether a vendor of the row `id` is named before `span` or above the text.
    fn is_vendor_near(&self, id: RowId, span: &Range<usize>) -> bool {
        let recent = self.recent_vendors.iter().flatten();
        let mut near = recent.filter(|vendor| span.start.abs_diff(vendor.at) <= BEFORE_BYTES_MAX);
        near.any(|vendor| vendor.rows.contains(&id))
            || self.named_vendors().iter().any(|rows| rows.contains(&id))
    }

    fn named_vendors(&self) -> &[Arc<[RowId]>] {
        self.named_vendors.get_or_init(|| {
            let mut rows = Vec::new();
            let names = self.text.names;
            for name in [names.own, names.parent, names.sibling] {
                self.detectors.vendors_in_name(name, &mut rows);
            }
            rows
        })
    }

    /// Whether the words from a vendor's at `vendor` on, or right before it, say that the value at `span`
    /// is a secret of it.
    fn is_labelled_secret(&self, vendor: usize, span: &Range<usize>) -> bool {
        const LABEL_BYTES_MAX: usize = 32;
        // The vendor may be named within the token.
        let start = vendor.min(span.start).saturating_sub(LABEL_BYTES_MAX);
        let named = || has_secret_word(self.text.names.own.as_bytes());
        (self.has_secret_word_at(&(start..span.start)) || named()) && !self.is_named_other(span)
    }

    /// Whether what is at `span` says so; nothing is where a token reaches over its end.
    fn has_secret_word_at(&self, span: &Range<usize>) -> bool {
        let text = self.text.bytes().get(span.clone());
        text.is_some_and(has_secret_word)
    }

    /// Whether the value at `span` is called something else, such as a request or a commit.
    fn is_named_other(&self, span: &Range<usize>) -> bool {
        let secret = Hints::TOKEN.union(Hints::PASSWORD);
        self.text.context(span).names_other(secret)
    }

    fn is_uuid(&self, word: &Range<usize>) -> bool {
        const DASHES: [usize; 4] = [UUID_WORD_BYTES, 13, 18, 23];
        word.len() == UUID_WORD_BYTES
            && DASHES
                .iter()
                .all(|dash| self.text.byte(word.start + dash) == b'-')
    }
}

/// The token of `row` that begins at `start`.
fn find_token(text: &Text<'_>, row: &DetectorRow, start: usize) -> Option<FoundValue> {
    Some(FoundValue {
        class: row.class(),
        span: row.find(text.bytes(), start)?,
        by_context: row.needs_vendor(),
    })
}

/// Whether `text` has a word about secrets, as a word or within one.
fn has_secret_word(text: &[u8]) -> bool {
    const WORDS: [&[u8]; 12] = [
        b"key", b"token", b"secret", b"api", b"auth", b"cred", b"passw", b"pwd", b"license",
        b"bearer", b"_pat", b"webhook",
    ];
    text.iter().enumerate().any(|(at, byte)| {
        WORDS.iter().any(|word| {
            word[0] == byte.to_ascii_lowercase()
                && text[at..]
                    .get(..word.len())
                    .is_some_and(|part| part.eq_ignore_ascii_case(word))
        })
    })
}
