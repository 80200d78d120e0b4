//! What stands around a candidate: the words before and after it, the keys above it, its column.
//!
//! Numbers seldom say what they are; their surroundings do. All windows are bounded, so that a
//! look around costs the same wherever it happens.

use std::{
    cell::{Cell, OnceCell},
    ops::Range,
};

use super::{
    class::Class,
    lexicon::{self, Hints},
};
use columns::ColumnHints;
use seen_values::SeenValues;
use words::FoldedWords;
pub(super) use words::{is_accent, last_word_hints, name_hints};

mod columns;
pub(super) mod seen_values;
mod words;

/// Bytes before a candidate that may say something about it.
const BEFORE_BYTES_MAX: usize = 72;
/// Bytes after a candidate that may.
const AFTER_BYTES_MAX: usize = 80;
/// How far one look at the words before a row of numbers reaches, bytes.
const ROW_LOOKBACK_MAX: usize = 48;
/// Longest text that a key which names something else speaks for, bytes: longer ones are prose.
const VALUE_BYTES_MAX: usize = 64;

/// One text to search, with what is known about where it stands.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "a text has a text")]
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    /// Values that other parts of the same message say are sensitive.
    pub(super) seen_values: Option<&'a SeenValues>,
    pub(super) names: Names<'a>,
    keys: OnceCell<Hints>,
    columns: OnceCell<Option<ColumnHints>>,
    /// The last look at the words before a value: several readings of a number begin at one place.
    last_lookup: Cell<Option<ContextLookup>>,
}

/// A look at the words before a value, or one that was not worth it.
#[derive(Clone, Copy, Debug)]
struct ContextLookup {
    /// Where the row of numbers begins that the value goes on.
    origin: usize,
    at: usize,
    /// What [`Text::preceding_hints`] answered.
    hints: Option<(Hints, Hints)>,
}

/// The names above a text in its document, decoded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Names<'a> {
    /// The key of the value itself.
    pub(super) own: &'a str,
    /// The key of the object or array around it.
    pub(super) parent: &'a str,
    /// What a sibling such as `"type": "phone"` calls it.
    pub(super) sibling: &'a str,
}

impl<'a> Names<'a> {
    /// Those that may say something of a number: most values of MCP stand below names that do not.
    fn informative(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let plain =
            |name: &&str| matches!(*name, "" | "arguments" | "content") || is_generic_name(name);
        [self.own, self.parent, self.sibling]
            .into_iter()
            .filter(move |name| !plain(name))
    }
}

/// What the surroundings of one candidate say.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueContext {
    /// What names the value itself: its key, its column, the words right before it.
    pub(super) strong: Hints,
    /// Everything within reach, the former included.
    pub(super) nearby: Hints,
}

impl ValueContext {
    /// Whether a word names the value as `wanted`, or one nearby does and none names it as something else.
    pub(super) fn names(self, wanted: Hints) -> bool {
        self.strong.intersects(wanted)
            || self.nearby.intersects(wanted) && !self.names_other(wanted)
    }

    /// Whether the value is named as something else than `wanted`.
    pub(super) fn names_other(self, wanted: Hints) -> bool {
        self.strong.intersects(Hints::OTHER.union(Hints::VERSION))
            && !self.strong.intersects(wanted)
    }
}

impl<'a> Text<'a> {
    pub(super) fn new(
        text: &'a str,
        names: Names<'a>,
        seen_values: Option<&'a SeenValues>,
    ) -> Self {
        Self {
            text,
            seen_values,
            names,
            keys: OnceCell::new(),
            columns: OnceCell::new(),
            last_lookup: Cell::new(None),
        }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// Whether another part of the message says that the value at `span` is of `class`.
    pub(super) fn is_seen_as(&self, span: &Range<usize>, class: Class) -> bool {
        self.seen_values
            .is_some_and(|known| known.contains(&self.text[span.clone()], class))
    }

    /// The byte at `at`; zero outside of the text.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes().get(at).copied().unwrap_or(0)
    }

    /// The byte before `at`; zero at the start.
    pub(super) fn byte_before(&self, at: usize) -> u8 {
        at.checked_sub(1).map_or(0, |before| self.byte(before))
    }

    /// How long the dash at `at` is, of whatever kind: the hyphen, those that are not broken, the minus,
    /// and those of other scripts.
    pub(super) fn dash_len(&self, at: usize) -> Option<usize> {
        match *self.bytes().get(at..)? {
            [b'-', ..] => Some(1),
            [0xC2, 0xAD, ..] | [0xD6, 0x8A | 0xBE, ..] => Some(2),
            [0xE2, 0x80, 0x90..=0x95, ..]
            | [0xE2, 0x81, 0x83, ..]
            | [0xE2, 0x88, 0x92, ..]
            | [0xE1, 0xA0, 0x86, ..]
            | [0xE3, 0x83, 0xBC, ..]
            | [0xEF, 0xB9, 0x98 | 0xA3, ..]
            | [0xEF, 0xBC, 0x8D, ..] => Some(3),
            _ => None,
        }
    }

    /// How long the space at `at` is, of whatever width.
    pub(super) fn space_len(&self, at: usize) -> Option<usize> {
        match *self.bytes().get(at..)? {
            [b' ', ..] => Some(1),
            [0xC2, 0xA0, ..] => Some(2),
            [0xE2, 0x80, 0x80..=0x8A | 0xAF, ..]
            | [0xE2, 0x81, 0x9F, ..]
            | [0xE3, 0x80, 0x80, ..] => Some(3),
            _ => None,
        }
    }

    /// What the surroundings of `span` say.
    pub(super) fn context(&self, span: &Range<usize>) -> ValueContext {
        let (strong, before) = self.preceding_hints(span.start);
        let rest = self.rest_of_line(span.end);
        let after = if has_letters(rest) {
            let mut words = FoldedWords::default();
            words.fold(rest);
            words
                .all_hints()
                .without(Hints::OTHER.union(Hints::VERSION))
        } else {
            Hints::NONE
        };
        ValueContext {
            strong,
            nearby: strong.union(before).union(after),
        }
    }

    /// Whether a word about passports may stand near `span` or in a name: a quick look that spares most
    /// numbers the slow one.
    pub(super) fn may_name_passport(&self, span: &Range<usize>) -> bool {
        let start = char_boundary_before(self.text, span.start.saturating_sub(BEFORE_BYTES_MAX));
        let end = span.end + self.rest_of_line(span.end).len();
        lexicon::prefilter::may_name_passport(&self.text[start..end])
            || self
                .names
                .informative()
                .any(lexicon::prefilter::may_name_passport)
            || self.columns().is_some()
    }

    /// The same of an account.
    pub(super) fn may_name_account(&self, at: usize) -> bool {
        let start = char_boundary_before(self.text, at.saturating_sub(BEFORE_BYTES_MAX));
        let may_name = lexicon::prefilter::may_name_account;
        may_name(&self.text[start..at])
            || self.names.informative().any(may_name)
            || self.columns().is_some()
    }

    /// Whether something may name a value at `at` a telephone: the words before it, of which only those
    /// after the last number do, a key or a column.
    pub(super) fn may_name_phone(&self, at: usize) -> bool {
        let start = char_boundary_before(self.text, at.saturating_sub(BEFORE_BYTES_MAX));
        let before = &self.bytes()[start..at];
        let number = before.iter().rposition(u8::is_ascii_digit);
        let label = &before[number.map_or(0, |last| last + 1)..];
        // A name that is cut may end in another word than it does as a whole.
        let may_name = |name: &str| {
            name.len() > BEFORE_BYTES_MAX || lexicon::prefilter::may_name_phone(name.as_bytes())
        };
        lexicon::prefilter::may_name_phone(label)
            || self.names.informative().any(may_name)
            || self.columns().is_some()
    }

    /// Whether a word of `wanted` stands near `span`, with no other value between the two that it
    /// rather speaks of.
    pub(super) fn is_labelled(&self, span: &Range<usize>, wanted: Hints) -> bool {
        let start = char_boundary_before(self.text, span.start.saturating_sub(BEFORE_BYTES_MAX));
        let before = &self.text[start..span.start];
        if says(&before[end_of_last_value(before)..], wanted) {
            return true;
        }
        let (clause, has_verb) = self.clause_after(span);
        says(clause, wanted) && (has_verb || digit_words(clause).next().is_none())
    }

    /// What the rest of the clause after `span` says, and whether that begins with a verb:
    /// `12345 is the number of`.
    fn clause_after(&self, span: &Range<usize>) -> (&'a str, bool) {
        const VERBS: [&str; 8] = [
            " is ", " ist ", " est ", " es ", " jest ", " \u{e8} ", " \u{e9} ", ", c'est ",
        ];
        let after = self.rest_of_line(span.end);
        let clause = after.split([';', '?', '!']).next().unwrap_or_default();
        (clause, VERBS.iter().any(|verb| clause.starts_with(verb)))
    }

    /// The same of a number that needs more than a word somewhere in its line: a word before it, or a
    /// verb after it.
    pub(super) fn is_labelled_in_line(&self, span: &Range<usize>, wanted: Hints) -> bool {
        let start = char_boundary_before(self.text, span.start.saturating_sub(BEFORE_BYTES_MAX));
        let line = memchr::memrchr(b'\n', &self.bytes()[start..span.start]);
        let before = &self.text[line.map_or(start, |at| start + at + 1)..span.start];
        says(&before[end_of_last_value(before)..], wanted) || {
            let (clause, has_verb) = self.clause_after(span);
            has_verb && says(clause, wanted)
        }
    }

    /// Whether a word right before the value at `span` names it as `wanted`, or one that speaks of it; `around`
    /// are its surroundings.
    pub(super) fn is_named(
        &self,
        span: &Range<usize>,
        around: ValueContext,
        wanted: Hints,
    ) -> bool {
        around.strong.intersects(wanted) || around.names(wanted) && self.is_labelled(span, wanted)
    }

    /// What the last word before `at` says, or the phrase it ends.
    pub(super) fn preceding_label(&self, at: usize) -> Hints {
        const LABEL_BYTES_MAX: usize = 32;
        let start = char_boundary_before(self.text, at.saturating_sub(LABEL_BYTES_MAX));
        last_word_hints(&self.text[start..at])
    }

    fn rest_of_line(&self, at: usize) -> &'a str {
        let end =
            char_boundary_before(self.text, (at + AFTER_BYTES_MAX).min(self.text.len())).max(at);
        let rest = &self.text[at..end];
        memchr::memchr(b'\n', rest.as_bytes()).map_or(rest, |newline| &rest[..newline])
    }

    /// What names a value that begins at `at`, and what all the words before it say.
    pub(super) fn preceding_hints(&self, at: usize) -> (Hints, Hints) {
        let look = self.lookup(at);
        let said = look.hints.unwrap_or_else(|| {
            if look.origin == at {
                return self.preceding_word_hints(at);
            }
            let strong = self.name_hints(at);
            (
                strong,
                strong.union(self.preceding_word_hints(look.origin).1),
            )
        });
        self.last_lookup.set(Some(ContextLookup {
            hints: Some(said),
            ..look
        }));
        said
    }

    /// Goes past a value at `at` that nobody needs the words of, in a text without columns.
    pub(super) fn skip_value(&self, at: usize) {
        self.last_lookup.set(Some(self.lookup(at)));
    }

    /// The look at the words before `at` as far as the last one tells it: in a row of numbers only
    /// keys and columns name one that is not the first.
    fn lookup(&self, at: usize) -> ContextLookup {
        match self.last_lookup.get() {
            Some(last) if last.at == at => last,
            Some(last) if self.is_row(last, at) => {
                let said = last.hints.map(|(_, before)| {
                    let strong = self.name_hints(at);
                    (strong, strong.union(before))
                });
                ContextLookup {
                    at,
                    hints: said,
                    ..last
                }
            }
            Some(_) | None => ContextLookup {
                origin: at,
                at,
                hints: None,
            },
        }
    }

    /// Whether the value at `at` goes on the row of numbers that was last looked at.
    fn is_row(&self, last: ContextLookup, at: usize) -> bool {
        at > last.at
            && at - last.origin <= ROW_LOOKBACK_MAX
            && self.bytes()[last.at..at]
                .iter()
                .all(|b| b.is_ascii_digit() || matches!(b, b' ' | b',' | b'.' | b'-'))
            && self.byte(last.at).is_ascii_digit()
    }

    fn preceding_word_hints(&self, at: usize) -> (Hints, Hints) {
        let start = char_boundary_before(self.text, at.saturating_sub(BEFORE_BYTES_MAX));
        if !has_letters(&self.text[start..at]) {
            let strong = self.name_hints(at);
            return (strong, strong);
        }
        let mut words = FoldedWords::default();
        words.fold(&self.text[start..at]);
        if start > 0 && !is_boundary(self.byte_before(start)) {
            words.drop_first();
        }
        let (tight, before) = words.adjacent_and_all();
        (tight.union(self.name_hints(at)), before)
    }

    /// What keys and columns say of a value at `at`.
    pub(super) fn name_hints(&self, at: usize) -> Hints {
        self.key_hints().union(self.column_hints(at))
    }

    /// What the keys above the text say.
    pub(super) fn key_hints(&self) -> Hints {
        *self.keys.get_or_init(|| {
            let own = self.own_key_hints();
            let parent =
                specific_name_hints(self.names.parent).without(Hints::OTHER.union(Hints::VERSION));
            // `{"contact": {"since": 1755302400}}`: what has a name of its own is not reached by it.
            let parent = if is_place_name(self.names.own) {
                parent
            } else {
                parent.without(Hints::CONTACT)
            };
            let sibling = specific_name_hints(self.names.sibling);
            let named = if own.is_empty() || own.intersects(Hints::CONTACT) {
                own.union(parent).union(sibling)
            } else {
                own
            };
            if self.text.len() > VALUE_BYTES_MAX {
                named.without(Hints::OTHER.union(Hints::VERSION))
            } else {
                named
            }
        })
    }

    /// What the key of the text itself says.
    pub(super) fn own_key_hints(&self) -> Hints {
        specific_name_hints(self.names.own)
    }

    fn column_hints(&self, at: usize) -> Hints {
        self.columns()
            .map_or(Hints::NONE, |columns| columns.hints_at(self.text, at))
    }

    /// The header of the table that the text is, if it is one.
    pub(super) fn columns(&self) -> Option<&ColumnHints> {
        let columns = self
            .columns
            .get_or_init(|| ColumnHints::parse_header(self.text));
        columns.as_ref()
    }
}

fn has_letters(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_alphabetic() || b >= 0x80)
}

/// Whether a word of `part` says something of `wanted`.
fn says(part: &str, wanted: Hints) -> bool {
    let mut words = FoldedWords::default();
    words.fold(part);
    words.all_hints().intersects(wanted)
}

/// Where the last value in `before` ends that further words part from what follows; zero when
/// there is none.
fn end_of_last_value(before: &str) -> usize {
    const WORD_BYTES_MIN: usize = 4;
    let parting = |rest: &str| {
        rest.contains('\n')
            || rest
                .split(|c: char| !c.is_alphabetic())
                .any(|word| word.len() >= WORD_BYTES_MIN)
    };
    let ends = digit_words(before).map(|value| value.end);
    ends.filter(|end| parting(&before[*end..]))
        .last()
        .unwrap_or(0)
}

/// Words of `text` with as many digits as a year has.
fn digit_words(text: &str) -> impl Iterator<Item = Range<usize>> {
    const DIGITS_MIN: usize = 4;
    let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'/' | b':');
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at += bytes[at..].iter().position(|b| inside(*b))?;
            let start = at;
            at += bytes[at..]
                .iter()
                .position(|b| !inside(*b))
                .unwrap_or(bytes.len() - at);
            let digits = bytes[start..at].iter().filter(|b| b.is_ascii_digit());
            if digits.count() >= DIGITS_MIN {
                return Some(start..at);
            }
        }
    })
}

/// What a name says, but for the plain ones of MCP.
fn specific_name_hints(written: &str) -> Hints {
    if is_generic_name(written) {
        Hints::NONE
    } else {
        name_hints(written)
    }
}

/// Whether the key `name` only says which of several values of one kind its value is.
fn is_place_name(name: &str) -> bool {
    is_generic_name(name)
        || matches!(
            name,
            "" | "value" | "values" | "number" | "no" | "home" | "work" | "office" | "main"
        )
        || matches!(
            name,
            "primary" | "secondary" | "other" | "private" | "business" | "personal" | "default"
        )
}

/// Whether a name of MCP is not meant: every content block has a `text`, which invites nobody to
/// text somebody.
pub(super) fn is_generic_name(name: &str) -> bool {
    matches!(name, "line" | "message" | "text")
}

fn is_boundary(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && byte < 0x80
}

/// The start of the character that `at` lies in.
pub(super) fn char_boundary_before(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_passed_over_say_nothing_of_numbers() {
        let all = ["", "arguments", "content", "line", "message", "text"];
        for plain in all {
            let names = Names {
                own: plain,
                parent: plain,
                sibling: plain,
            };
            assert_eq!(names.informative().next(), None, "{plain}");
            let said = name_hints(plain);
            assert!(
                !said.intersects(Hints::PHONE.union(Hints::PASSPORT)),
                "{plain}"
            );
        }
    }

    #[test]
    fn a_row_is_what_it_was_when_its_first_number_is_passed() {
        for before in ["phone", "phone, then", "order 7", ""] {
            // What is close enough to the first number is too far from the last.
            let text = format!("{before:62}11111 22222, 33333");
            let at = |number| text.find(number).unwrap();
            for number in ["22222", "33333"] {
                let looked = Text::new(&text, Names::default(), None);
                let passed = Text::new(&text, Names::default(), None);
                looked.preceding_hints(at("11111"));
                passed.skip_value(at("11111"));
                let (looked, passed) = (
                    looked.preceding_hints(at(number)),
                    passed.preceding_hints(at(number)),
                );
                assert_eq!(looked, passed, "{text}");
            }
        }
    }

    #[test]
    fn the_words_before_a_value_name_it() {
        let check = |before: &str, wanted: Hints, strong: bool, near: bool| {
            let text = format!("{before}12345");
            let at = before.len();
            let around = Text::new(&text, Names::default(), None);
            let around = around.context(&(at..at + 5));
            assert_eq!(around.strong.intersects(wanted), strong, "{before} strong");
            assert_eq!(around.nearby.intersects(wanted), near, "{before} near");
        };
        check("Téléphone : ", Hints::PHONE, true, true);
        check("phone, then ", Hints::PHONE, false, true);
        check("phone 99 ", Hints::PHONE, false, true);
        check("Order no. ", Hints::OTHER, true, true);
        check("microphone ", Hints::PHONE, false, false);
        check(
            &format!("phone{}", " ".repeat(90)),
            Hints::PHONE,
            false,
            false,
        );
    }
}
