//! What stands around a candidate: the words before and after it, the keys above it, its column.
//!
//! Numbers seldom say what they are; their surroundings do. All windows are bounded, so that a
//! look around costs the same wherever it happens.

use std::{
    cell::{Cell, OnceCell},
    collections::HashMap,
    ops::Range,
};

use super::{
    class::Class,
    lexicon::{self, Hints, PHRASE_WORDS_MAX},
};

/// Bytes before a candidate that may say something about it.
const BEFORE_BYTES_MAX: usize = 72;
/// Bytes after a candidate that may.
const AFTER_BYTES_MAX: usize = 80;
/// How far one look at the words before a row of numbers reaches, bytes.
const ROW_BYTES_MAX: usize = 48;
/// Longest text that a key which names something else speaks for, bytes: longer ones are prose.
const VALUE_BYTES_MAX: usize = 64;
/// Longest first line that is read as the header of a table, bytes.
const HEADER_BYTES_MAX: usize = 4096;
/// Columns of a table that are told apart.
const COLUMNS_MAX: usize = 64;

/// Values that only their surroundings gave away, with the index of their class.
pub(super) type Known = HashMap<String, usize>;

/// One text to search, with what is known about where it stands.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "a text has a text")]
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    /// Values that other parts of the same message say are sensitive.
    pub(super) known: Option<&'a Known>,
    pub(super) names: Names<'a>,
    keys: OnceCell<Hints>,
    columns: OnceCell<Option<Columns>>,
    /// Where words were last looked at, and the last answer of [`Text::ahead`] with its place:
    /// several readings of a number begin at one.
    last_ahead: Cell<Option<(usize, usize, Hints, Hints)>>,
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

/// What the surroundings of one candidate say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    /// What names the value itself: its key, its column, the words right before it.
    pub(super) strong: Hints,
    /// Everything within reach, the former included.
    pub(super) near: Hints,
}

impl Around {
    /// Whether the value is named as something else than `wanted`.
    pub(super) fn says_other(self, wanted: Hints) -> bool {
        self.strong.any(Hints::OTHER.and(Hints::VERSION)) && !self.strong.any(wanted)
    }
}

impl<'a> Text<'a> {
    pub(super) fn new(text: &'a str, names: Names<'a>, known: Option<&'a Known>) -> Self {
        Self {
            text,
            known,
            names,
            keys: OnceCell::new(),
            columns: OnceCell::new(),
            last_ahead: Cell::new(None),
        }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// Whether another part of the message says that the value at `span` is of `class`.
    pub(super) fn is_known(&self, span: &Range<usize>, class: Class) -> bool {
        let known = self
            .known
            .and_then(|known| known.get(&self.text[span.clone()]));
        known == Some(&class.index())
    }

    /// The byte at `at`; zero outside of the text.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes().get(at).copied().unwrap_or(0)
    }

    /// The byte before `at`; zero at the start.
    pub(super) fn before(&self, at: usize) -> u8 {
        at.checked_sub(1).map_or(0, |before| self.byte(before))
    }

    /// What the surroundings of `span` say.
    pub(super) fn around(&self, span: &Range<usize>) -> Around {
        let (strong, before) = self.ahead(span.start);
        let rest = self.rest_of_line(span.end);
        let after = if has_letters(rest) {
            let mut words = Words::default();
            words.fold(rest);
            words.all().without(Hints::OTHER.and(Hints::VERSION))
        } else {
            Hints::NONE
        };
        Around {
            strong,
            near: strong.and(before).and(after),
        }
    }

    /// Whether a word about passports may stand near `span` or in a name: a quick look that spares most
    /// numbers the slow one.
    pub(super) fn may_name_passport(&self, span: &Range<usize>) -> bool {
        let start = floor(self.text, span.start.saturating_sub(BEFORE_BYTES_MAX));
        let near = [&self.text[start..span.start], self.rest_of_line(span.end)];
        let names = [self.names.own, self.names.parent, self.names.sibling];
        near.into_iter()
            .chain(names)
            .any(lexicon::may_name_passport)
            || self.columns().is_some()
    }

    /// Whether a word of `wanted` stands near `span`, with no other value between the two that it
    /// rather speaks of.
    pub(super) fn is_attached(&self, span: &Range<usize>, wanted: Hints) -> bool {
        let says = |part: &str| {
            let mut words = Words::default();
            words.fold(part);
            words.all().any(wanted)
        };
        let start = floor(self.text, span.start.saturating_sub(BEFORE_BYTES_MAX));
        let before = &self.text[start..span.start];
        if says(&before[after_values(before)..]) {
            return true;
        }
        let after = self.rest_of_line(span.end);
        let clause = after.split([';', '?', '!']).next().unwrap_or_default();
        // `12345 is the number of`
        let told = [
            " is ", " ist ", " est ", " es ", " jest ", " \u{e8} ", " \u{e9} ", ", c'est ",
        ]
        .iter()
        .any(|verb| clause.starts_with(verb));
        says(clause) && (told || values(clause).next().is_none())
    }

    /// What the last word before `at` says, or the phrase it ends.
    pub(super) fn label(&self, at: usize) -> Hints {
        const LABEL_BYTES_MAX: usize = 32;
        let start = floor(self.text, at.saturating_sub(LABEL_BYTES_MAX));
        ending(&self.text[start..at])
    }

    fn rest_of_line(&self, at: usize) -> &'a str {
        let end = floor(self.text, (at + AFTER_BYTES_MAX).min(self.text.len())).max(at);
        let rest = &self.text[at..end];
        memchr::memchr(b'\n', rest.as_bytes()).map_or(rest, |newline| &rest[..newline])
    }

    /// What names a value that begins at `at`, and what all the words before it say.
    pub(super) fn ahead(&self, at: usize) -> (Hints, Hints) {
        if let Some((origin, last, strong, before)) = self.last_ahead.get() {
            if last == at {
                return (strong, before);
            }
            // In a row of numbers only keys and columns name one that is not the first.
            let row = at > last
                && at - origin <= ROW_BYTES_MAX
                && self.bytes()[last..at]
                    .iter()
                    .all(|b| b.is_ascii_digit() || matches!(b, b' ' | b',' | b'.' | b'-'))
                && self.byte(last).is_ascii_digit();
            if row {
                let strong = self.named(at);
                let before = strong.and(before);
                self.last_ahead.set(Some((origin, at, strong, before)));
                return (strong, before);
            }
        }
        let start = floor(self.text, at.saturating_sub(BEFORE_BYTES_MAX));
        if !has_letters(&self.text[start..at]) {
            let strong = self.named(at);
            self.last_ahead.set(Some((at, at, strong, strong)));
            return (strong, strong);
        }
        let mut words = Words::default();
        words.fold(&self.text[start..at]);
        if start > 0 && !is_boundary(self.before(start)) {
            words.drop_first();
        }
        let (tight, before) = words.tight_and_all();
        let strong = tight.and(self.named(at));
        self.last_ahead.set(Some((at, at, strong, before)));
        (strong, before)
    }

    /// What keys and columns say of a value at `at`.
    pub(super) fn named(&self, at: usize) -> Hints {
        self.keys().and(self.column(at))
    }

    /// What the keys above the text say.
    pub(super) fn keys(&self) -> Hints {
        *self.keys.get_or_init(|| {
            let own = self.own_key();
            let parent = name(self.names.parent).without(Hints::OTHER.and(Hints::VERSION));
            let sibling = name_but_plain(self.names.sibling);
            let named = if own.is_none() || own.any(Hints::REACH) {
                own.and(parent).and(sibling)
            } else {
                own
            };
            if self.text.len() > VALUE_BYTES_MAX {
                named.without(Hints::OTHER.and(Hints::VERSION))
            } else {
                named
            }
        })
    }

    /// What the key of the text itself says.
    pub(super) fn own_key(&self) -> Hints {
        name_but_plain(self.names.own)
    }

    fn column(&self, at: usize) -> Hints {
        self.columns()
            .map_or(Hints::NONE, |columns| columns.at(self.text, at))
    }

    /// The header of the table that the text is, if it is one.
    pub(super) fn columns(&self) -> Option<&Columns> {
        let columns = self.columns.get_or_init(|| Columns::of(self.text));
        columns.as_ref()
    }
}

fn has_letters(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_alphabetic() || b >= 0x80)
}

/// Where the last value in `before` ends that further words part from what follows; zero when
/// there is none.
fn after_values(before: &str) -> usize {
    const WORD_BYTES_MIN: usize = 4;
    let parting = |rest: &str| {
        rest.contains('\n')
            || rest
                .split(|c: char| !c.is_alphabetic())
                .any(|word| word.len() >= WORD_BYTES_MIN)
    };
    let ends = values(before).map(|value| value.end);
    ends.filter(|end| parting(&before[*end..]))
        .last()
        .unwrap_or(0)
}

/// Words of `text` with as many digits as a year has.
fn values(text: &str) -> impl Iterator<Item = Range<usize>> {
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

/// What a name says, but for those of MCP: every content block has a `text`, which invites nobody
/// to text somebody.
fn name_but_plain(written: &str) -> Hints {
    if matches!(written, "line" | "message" | "text") {
        Hints::NONE
    } else {
        name(written)
    }
}

/// What a name such as `billingPhone` or `date_of_birth` says.
pub(super) fn name(name: &str) -> Hints {
    if name.is_empty() || has_mask(name) {
        return Hints::NONE;
    }
    let mut words = Words::default();
    words.fold(&name[..floor(name, name.len().min(BEFORE_BYTES_MAX))]);
    words.named()
}

/// What the last word of `name`, or the phrase it ends, says; digits after it say nothing.
pub(super) fn ending(name: &str) -> Hints {
    if has_mask(name) {
        return Hints::NONE;
    }
    let mut words = Words::default();
    words.fold(name);
    let turns_nothing = |word: usize| {
        words.is_numeric(word) || word > 0 && lexicon::is_owner(words.phrase(word, word + 1))
    };
    let end = (0..words.count)
        .rev()
        .find(|word| !turns_nothing(*word))
        .map_or(0, |last| last + 1);
    let phrases = (end.saturating_sub(PHRASE_WORDS_MAX)..end)
        .map(|start| lexicon::phrase(words.phrase(start, end)));
    let compound = if end > 0 {
        lexicon::compound(words.phrase(end - 1, end))
    } else {
        Hints::NONE
    };
    phrases.fold(compound, Hints::and)
}

/// The header of a table whose cells are parted by one character.
#[derive(Debug)]
pub(super) struct Columns {
    separator: u8,
    pub(super) hints: Vec<Hints>,
    /// Where the header ends.
    end: usize,
}

impl Columns {
    /// Longest line that is read as a row, bytes.
    const ROW_BYTES_MAX: usize = 512;

    /// Reads the first line of `text`, when more follow and it looks like a header.
    fn of(text: &str) -> Option<Self> {
        let head = &text.as_bytes()[..text.len().min(HEADER_BYTES_MAX)];
        let end = memchr::memchr(b'\n', head)?;
        let line = text.get(..end)?;
        if line
            .bytes()
            .any(|b| b.is_ascii_digit() || matches!(b, b'{' | b'"' | b':'))
            && !line.contains("\",\"")
        {
            return None;
        }
        let count = |separator: &u8| line.bytes().filter(|b| b == separator).count();
        let separator = [b'\t', b'|', b';', b',']
            .into_iter()
            .find(|s| count(s) > 0)?;
        let cells = line.split(char::from(separator)).take(COLUMNS_MAX);
        let hints: Vec<Hints> = cells.map(|cell| name(cell.trim())).collect();
        Some(Self {
            separator,
            hints,
            end,
        })
    }

    /// The rows below the header of `text`, each as where its cells are, without spaces and quotes.
    pub(super) fn rows<'t>(
        &'t self,
        text: &'t str,
    ) -> impl Iterator<Item = Vec<Range<usize>>> + 't {
        let mut start = self.end + 1;
        let lines = text[start.min(text.len())..].split('\n').map(move |line| {
            let at = start;
            start += line.len() + 1;
            (at, line)
        });
        lines
            .filter(|(_, line)| line.len() <= Self::ROW_BYTES_MAX)
            .map(|(at, line)| self.cells(at, line))
            .filter(|cells| cells.len() == self.hints.len())
    }

    fn cells(&self, at: usize, line: &str) -> Vec<Range<usize>> {
        let (mut cells, mut quoted, mut start) = (Vec::new(), false, 0);
        let cell = |range: Range<usize>| {
            let written = &line[range.clone()];
            let inner = written.trim().trim_matches('"');
            let offset = written.find(inner).unwrap_or(0);
            let start = at + range.start + offset;
            start..start + inner.len()
        };
        for (index, byte) in line.bytes().enumerate() {
            quoted ^= byte == b'"';
            if byte == self.separator && !quoted {
                cells.push(cell(start..index));
                start = index + 1;
            }
        }
        cells.push(cell(start..line.len()));
        cells
    }

    /// What the header says of the cell at `at`; nothing in lines too long to be rows.
    fn at(&self, text: &str, at: usize) -> Hints {
        if at <= self.end {
            return Hints::NONE;
        }
        let start = at.saturating_sub(Self::ROW_BYTES_MAX);
        let before = &text.as_bytes()[start..at];
        let Some(newline) = memchr::memrchr(b'\n', before) else {
            return Hints::NONE;
        };
        let row = &before[newline + 1..];
        let mut quoted = false;
        let column = row
            .iter()
            .filter(|byte| {
                quoted ^= **byte == b'"';
                **byte == self.separator && !quoted
            })
            .count();
        self.hints.get(column).copied().unwrap_or_default()
    }
}

/// Words as the lexicon has them, parted by one space.
#[derive(Debug)]
struct Words {
    text: [u8; Self::BYTES_MAX],
    len: usize,
    starts: [u8; Self::WORDS_MAX],
    count: usize,
    /// The first word of the clause that the text ends in.
    clause: usize,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            text: [0; Self::BYTES_MAX],
            len: 0,
            starts: [0; Self::WORDS_MAX],
            count: 0,
            clause: 0,
        }
    }
}

/// The kind of the character that a fold has seen last.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Last {
    Digit,
    Lower,
    None,
    Upper,
}

impl Words {
    const BYTES_MAX: usize = 160;
    const WORDS_MAX: usize = 40;
    /// Words before a value that still name it.
    const TIGHT_WORDS: usize = 5;

    fn fold(&mut self, text: &str) {
        let mut last = Last::None;
        let mut at = 0;
        while let Some(byte) = text.as_bytes().get(at) {
            if !byte.is_ascii() {
                let c = text[at..].chars().next().expect("a character begins here");
                at += c.len_utf8();
                last = self.unusual(c, last);
                continue;
            }
            if byte.is_ascii_lowercase() {
                let rest = &text.as_bytes()[at..];
                let len = rest.iter().take_while(|b| b.is_ascii_lowercase()).count();
                self.letters(&rest[..len], matches!(last, Last::None | Last::Digit));
                at += len;
                last = Last::Lower;
                continue;
            }
            at += 1;
            last = match byte {
                b'A'..=b'Z' => {
                    // `IPAddress` is two words, and so is `phoneNumber`.
                    let next = text.as_bytes().get(at);
                    let next_is_lower = next.is_some_and(u8::is_ascii_lowercase);
                    let starts = last != Last::Upper || next_is_lower && self.last_len() > 0;
                    self.letter(byte.to_ascii_lowercase(), starts);
                    Last::Upper
                }
                b'0'..=b'9' => {
                    self.letter(*byte, last != Last::Digit);
                    Last::Digit
                }
                b'[' => {
                    at += mask_len(&text[at..]).unwrap_or(0);
                    Last::None
                }
                _ => {
                    if self.ends_clause(*byte, &text[at..]) {
                        self.clause = self.count;
                    }
                    Last::None
                }
            };
        }
    }

    /// Folds a character beyond ASCII.
    fn unusual(&mut self, c: char, last: Last) -> Last {
        if !c.is_alphabetic() {
            return Last::None;
        }
        let starts = matches!(last, Last::None | Last::Digit);
        for (at, letter) in unaccented(c).bytes().enumerate() {
            self.letter(letter, starts && at == 0);
        }
        if c.is_uppercase() {
            Last::Upper
        } else {
            Last::Lower
        }
    }

    /// Whether `sign`, followed by `rest`, parts what is said of one thing from what is said of
    /// another.
    fn ends_clause(&self, sign: u8, rest: &str) -> bool {
        const ABBREVIATION_BYTES_MAX: usize = 4;
        match sign {
            b',' | b';' | b'\n' | b'|' | b'<' | b'&' | b'?' | b'!' | b'\t' | b'{' | b'}' => true,
            b'.' => {
                let next = rest.chars().next();
                next.is_none_or(char::is_whitespace) && self.last_len() > ABBREVIATION_BYTES_MAX
            }
            _ => false,
        }
    }

    fn letter(&mut self, letter: u8, starts: bool) {
        self.letters(&[letter], starts);
    }

    /// Goes on with `letters`, which are those of a word from its start or from within.
    fn letters(&mut self, letters: &[u8], starts: bool) {
        if starts {
            if self.len > 0 && self.len < Self::BYTES_MAX {
                self.text[self.len] = b' ';
                self.len += 1;
            }
            if self.count == Self::WORDS_MAX || self.len + 1 >= Self::BYTES_MAX {
                self.shift();
            }
            self.starts[self.count] = u8::try_from(self.len).expect("BYTES_MAX is below 256");
            self.count += 1;
        }
        let fits = letters.len().min(Self::BYTES_MAX - self.len);
        self.text[self.len..self.len + fits].copy_from_slice(&letters[..fits]);
        self.len += fits;
    }

    /// Forgets everything, when there is more than fits: the words close by are what counts.
    fn shift(&mut self) {
        (self.len, self.count, self.clause) = (0, 0, 0);
    }

    fn drop_first(&mut self) {
        if self.count > 0 {
            self.starts.copy_within(1..self.count, 0);
            self.count -= 1;
            self.clause = self.clause.saturating_sub(1);
        }
    }

    fn last_len(&self) -> usize {
        match self.count {
            0 => 0,
            count => self.len - usize::from(self.starts[count - 1]),
        }
    }

    /// The words from `first` up to `end`, parted by spaces.
    fn phrase(&self, first: usize, end: usize) -> &[u8] {
        let start = usize::from(self.starts[first]);
        let stop = if end < self.count {
            usize::from(self.starts[end]) - 1
        } else {
            self.len
        };
        &self.text[start..stop]
    }

    /// Whether a word is a number: words are of digits or of letters.
    fn is_numeric(&self, word: usize) -> bool {
        self.text[usize::from(self.starts[word])].is_ascii_digit()
    }

    /// What the words of `starts` say, with the phrases that begin at one of them.
    fn hints(&self, starts: Range<usize>) -> Hints {
        let mut found = Hints::NONE;
        for start in starts {
            if self.is_numeric(start) {
                continue;
            }
            let word = self.phrase(start, start + 1);
            let entry = lexicon::entry(word);
            found = found.and(entry.hints);
            if entry.hints.is_none() {
                found = found.and(lexicon::compound(word));
            }
            if entry.begins_phrase {
                for end in start + 2..=(start + PHRASE_WORDS_MAX).min(self.count) {
                    found = found.and(lexicon::phrase(self.phrase(start, end)));
                }
            }
        }
        found
    }

    fn all(&self) -> Hints {
        self.hints(0..self.count).without(Hints::TAIL)
    }

    /// What the words right before a value say, which is a label unless another number lies between;
    /// and what all of them say.
    fn tight_and_all(&self) -> (Hints, Hints) {
        let after_number = (0..self.count)
            .rev()
            .find(|word| self.is_numeric(*word))
            .map_or(0, |n| n + 1);
        let first = self
            .clause
            .max(after_number)
            .max(self.count.saturating_sub(Self::TIGHT_WORDS));
        let tight = self.hints(first..self.count);
        let all = tight.and(self.hints(0..first)).without(Hints::TAIL);
        // In a sentence many a small word stands before a value: only `id` and the like turn it.
        (self.turned(tight, first, Hints::OTHER), all)
    }

    fn named(&self) -> Hints {
        self.turned(self.hints(0..self.count), 0, Hints::TAIL)
    }

    /// What `found`, which the words from `first` on say, means when a last word such as `id`, which
    /// says all of `turning`, may turn it.
    fn turned(&self, found: Hints, first: usize, turning: Hints) -> Hints {
        if !found.any(Hints::TAIL) {
            return found;
        }
        let mut last = self.count;
        while last > first && self.is_numeric(last - 1) {
            last -= 1;
        }
        let word = if last > first {
            lexicon::phrase(self.phrase(last - 1, last))
        } else {
            Hints::NONE
        };
        if !word.any(Hints::TAIL) || !word.any(turning) {
            return found.without(Hints::TAIL);
        }
        let turned = [
            Hints::PHONE,
            Hints::REACH,
            Hints::CARD,
            Hints::IP,
            Hints::BIRTH,
        ]
        .into_iter()
        .chain([Hints::PASSWORD, Hints::TOKEN, Hints::TAIL])
        .fold(found, Hints::without);
        turned.and(Hints::OTHER)
    }
}

/// Whether something was taken out of `name`, so that it is no name any more.
fn has_mask(name: &str) -> bool {
    memchr::memchr_iter(b'[', name.as_bytes()).any(|at| mask_len(&name[at + 1..]).is_some())
}

/// How long the mask of ours is whose bracket stands before `rest`: it names what is gone, and
/// says nothing of what stands beside it.
fn mask_len(rest: &str) -> Option<usize> {
    let close = rest.bytes().take(24).position(|byte| byte == b']')?;
    let label = &rest[..close];
    let ours = Class::ALL
        .into_iter()
        .any(|class| class.name().eq_ignore_ascii_case(label));
    (ours && !label.bytes().any(|byte| byte.is_ascii_lowercase())).then_some(close + 1)
}

/// A letter of Latin script without its accent; other letters as something no word has.
fn unaccented(c: char) -> &'static str {
    match c {
        'à'..='å' | 'À'..='Å' | 'ą' | 'Ą' | 'ā' => "a",
        'æ' | 'Æ' => "ae",
        'ç' | 'Ç' | 'ć' | 'Ć' | 'č' => "c",
        'è'..='ë' | 'È'..='Ë' | 'ę' | 'Ę' | 'ē' => "e",
        'ì'..='ï' | 'Ì'..='Ï' => "i",
        'ł' | 'Ł' => "l",
        'ñ' | 'Ñ' | 'ń' | 'Ń' => "n",
        'ò'..='ö' | 'Ò'..='Ö' | 'ø' | 'Ø' | 'º' => "o",
        'ś' | 'Ś' | 'š' => "s",
        'ß' => "ss",
        'ù'..='ü' | 'Ù'..='Ü' => "u",
        'ý' | 'ÿ' => "y",
        'ź' | 'ż' | 'Ź' | 'Ż' | 'ž' => "z",
        _ => "~",
    }
}

fn is_boundary(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && byte < 0x80
}

/// The start of the character that `at` lies in.
pub(super) fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_their_values_are() {
        let check = |text: &str, expect: Hints| assert_eq!(name(text), expect, "{text}");
        check("phone", Hints::PHONE);
        check("billingPhone2", Hints::PHONE);
        check("HOME_PHONE", Hints::PHONE);
        check("dateOfBirth", Hints::BIRTH);
        check("date_of_birth", Hints::BIRTH);
        check("clientIPAddress", Hints::IP);
        check("phone_number_id", Hints::OTHER);
        check("colour", Hints::OTHER);
        check("weather", Hints::NONE);
    }

    #[test]
    fn the_words_before_a_value_name_it() {
        let check = |before: &str, wanted: Hints, strong: bool, near: bool| {
            let text = format!("{before}12345");
            let at = before.len();
            let around = Text::new(&text, Names::default(), None);
            let around = around.around(&(at..at + 5));
            assert_eq!(around.strong.any(wanted), strong, "{before} strong");
            assert_eq!(around.near.any(wanted), near, "{before} near");
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
