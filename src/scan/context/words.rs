//! The words of a text as the lexicon has them: folded, and parted where names are.

use std::ops::Range;

use super::{BEFORE_BYTES_MAX, char_boundary_before};
use crate::scan::{
    class::Class,
    lexicon::{self, Hints, PHRASE_WORDS_MAX},
};

/// What a name such as `billingPhone` or `date_of_birth` says.
pub(in crate::scan) fn name_hints(name: &str) -> Hints {
    if name.is_empty() || has_mask(name) {
        return Hints::NONE;
    }
    let mut words = FoldedWords::default();
    words.fold(&name[..char_boundary_before(name, name.len().min(BEFORE_BYTES_MAX))]);
    words.name_hints()
}

/// What the last word of `name`, or the phrase it ends, says; digits after it say nothing.
pub(in crate::scan) fn last_word_hints(name: &str) -> Hints {
    if has_mask(name) {
        return Hints::NONE;
    }
    let mut words = FoldedWords::default();
    words.fold(name);
    let turns_nothing = |word: usize| {
        words.is_numeric(word) || word > 0 && lexicon::is_owner_word(words.phrase(word, word + 1))
    };
    let end = (0..words.count)
        .rev()
        .find(|word| !turns_nothing(*word))
        .map_or(0, |last| last + 1);
    let phrases = (end.saturating_sub(PHRASE_WORDS_MAX)..end)
        .map(|start| lexicon::phrase_hints(words.phrase(start, end)));
    let compound = if end > 0 {
        lexicon::compound_hints(words.phrase(end - 1, end))
    } else {
        Hints::NONE
    };
    phrases.fold(compound, Hints::union)
}

/// Words as the lexicon has them, parted by one space.
#[derive(Debug)]
pub(super) struct FoldedWords {
    text: [u8; Self::BYTES_MAX],
    len: usize,
    starts: [u8; Self::WORDS_MAX],
    count: usize,
    /// The first word of the clause that the text ends in.
    clause: usize,
}

impl Default for FoldedWords {
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
enum LastChar {
    Digit,
    Lower,
    None,
    Upper,
}

impl FoldedWords {
    const BYTES_MAX: usize = 160;
    const WORDS_MAX: usize = 40;
    /// Words before a value that still name it.
    const ADJACENT_WORDS: usize = 5;

    pub(super) fn fold(&mut self, text: &str) {
        let mut last = LastChar::None;
        let mut at = 0;
        while let Some(byte) = text.as_bytes().get(at) {
            if !byte.is_ascii() {
                let c = text[at..].chars().next().expect("a character begins here");
                at += c.len_utf8();
                last = self.fold_non_ascii(c, last);
                continue;
            }
            if byte.is_ascii_lowercase() {
                let run = leading_run(&text.as_bytes()[at..], u8::is_ascii_lowercase);
                self.push_letters(run, matches!(last, LastChar::None | LastChar::Digit));
                at += run.len();
                last = LastChar::Lower;
                continue;
            }
            if byte.is_ascii_digit() {
                let run = leading_run(&text.as_bytes()[at..], u8::is_ascii_digit);
                self.push_letters(run, true);
                at += run.len();
                last = LastChar::Digit;
                continue;
            }
            at += 1;
            last = match byte {
                b'A'..=b'Z' => {
                    // `IPAddress` is two words, and so is `phoneNumber`.
                    let next = text.as_bytes().get(at);
                    let next_is_lower = next.is_some_and(u8::is_ascii_lowercase);
                    let starts = last != LastChar::Upper || next_is_lower && self.last_len() > 0;
                    self.push_letter(byte.to_ascii_lowercase(), starts);
                    LastChar::Upper
                }
                // `SS#` is `SS no`.
                b'#' if matches!(last, LastChar::Lower | LastChar::Upper) => {
                    self.push_letters(b"no", true);
                    LastChar::None
                }
                b'[' => {
                    at += mask_len(&text[at..]).unwrap_or(0);
                    LastChar::None
                }
                _ => {
                    if self.ends_clause(*byte, &text[at..]) {
                        self.clause = self.count;
                    }
                    LastChar::None
                }
            };
        }
    }

    /// Folds a character beyond ASCII.
    fn fold_non_ascii(&mut self, c: char, last: LastChar) -> LastChar {
        if is_accent(c) {
            return last;
        }
        if !c.is_alphabetic() {
            return LastChar::None;
        }
        // An ideograph is a word, or a part of one: nothing parts it from the next.
        let ideograph = ideograph_reading(c);
        if !ideograph.is_empty() {
            self.push_letters(ideograph.as_bytes(), true);
            return LastChar::None;
        }
        let starts = matches!(last, LastChar::None | LastChar::Digit);
        for (at, letter) in strip_accent(c).bytes().enumerate() {
            self.push_letter(letter, starts && at == 0);
        }
        if c.is_uppercase() {
            LastChar::Upper
        } else {
            LastChar::Lower
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

    fn push_letter(&mut self, letter: u8, starts: bool) {
        self.push_letters(&[letter], starts);
    }

    /// Goes on with `letters`, which are those of a word from its start or from within.
    fn push_letters(&mut self, letters: &[u8], starts: bool) {
        if starts {
            if self.len > 0 && self.len < Self::BYTES_MAX {
                self.text[self.len] = b' ';
                self.len += 1;
            }
            if self.count == Self::WORDS_MAX || self.len + 1 >= Self::BYTES_MAX {
                self.reset_if_full();
            }
            self.starts[self.count] = u8::try_from(self.len).expect("BYTES_MAX is below 256");
            self.count += 1;
        }
        let fits = letters.len().min(Self::BYTES_MAX - self.len);
        self.text[self.len..self.len + fits].copy_from_slice(&letters[..fits]);
        self.len += fits;
    }

    /// Forgets everything, when there is more than fits: the words close by are what counts.
    fn reset_if_full(&mut self) {
        (self.len, self.count, self.clause) = (0, 0, 0);
    }

    pub(super) fn drop_first(&mut self) {
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
    fn hints_in(&self, starts: Range<usize>) -> Hints {
        let mut found = Hints::NONE;
        for start in starts {
            if self.is_numeric(start) {
                continue;
            }
            let word = self.phrase(start, start + 1);
            let entry = lexicon::lookup_phrase(word);
            found = found.union(entry.hints);
            if entry.hints.is_empty() {
                found = found.union(lexicon::compound_hints(word));
            }
            if !entry.longer_phrases.is_empty() {
                for end in start + 2..=(start + PHRASE_WORDS_MAX).min(self.count) {
                    found = found.union(lexicon::phrase_hints(self.phrase(start, end)));
                }
            }
        }
        found
    }

    pub(super) fn all_hints(&self) -> Hints {
        self.hints_in(0..self.count).without(Hints::TAIL)
    }

    /// What the words right before a value say, which is a label unless another number lies between;
    /// and what all of them say.
    pub(super) fn adjacent_and_all(&self) -> (Hints, Hints) {
        let after_number = (0..self.count)
            .rev()
            .find(|word| self.is_numeric(*word))
            .map_or(0, |n| n + 1);
        let first = self
            .clause
            .max(after_number)
            .max(self.count.saturating_sub(Self::ADJACENT_WORDS));
        let tight = self.hints_in(first..self.count);
        let all = tight.union(self.hints_in(0..first)).without(Hints::TAIL);
        // In a sentence many a small word stands before a value: only `id` and the like turn it.
        (self.apply_tail(tight, first, Hints::OTHER), all)
    }

    fn name_hints(&self) -> Hints {
        self.apply_tail(self.hints_in(0..self.count), 0, Hints::TAIL)
    }

    /// What `found`, which the words from `first` on say, means when a last word such as `id`, which
    /// says all of `turning`, may turn it.
    fn apply_tail(&self, found: Hints, first: usize, turning: Hints) -> Hints {
        if !found.intersects(Hints::TAIL) {
            return found;
        }
        let mut last = self.count;
        while last > first && self.is_numeric(last - 1) {
            last -= 1;
        }
        let word = if last > first {
            lexicon::phrase_hints(self.phrase(last - 1, last))
        } else {
            Hints::NONE
        };
        if !word.intersects(Hints::TAIL) || !word.intersects(turning) {
            return found.without(Hints::TAIL);
        }
        let turned = [
            Hints::PHONE,
            Hints::CONTACT,
            Hints::CARD,
            Hints::IP,
            Hints::BIRTH,
        ]
        .into_iter()
        .chain([Hints::PASSWORD, Hints::TOKEN, Hints::NUMBERING, Hints::TAIL])
        .fold(found, Hints::without);
        turned.union(Hints::OTHER)
    }
}

/// The first bytes of `text` that are of one kind.
fn leading_run(text: &[u8], is_of_kind: impl Fn(&u8) -> bool) -> &[u8] {
    let end = text.iter().position(|byte| !is_of_kind(byte));
    &text[..end.unwrap_or(text.len())]
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

/// Whether `c` is the accent of the letter before it, as in decomposed text (NFD): that of names of
/// files on macOS, say.
pub(in crate::scan) fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// How the ideographs and syllables are read of which words of the lexicon consist.
fn ideograph_reading(c: char) -> &'static str {
    match c {
        '手' => "shou",
        '机' | '機' => "ji",
        '电' | '電' => "dian",
        '话' | '話' => "hua",
        '号' | '號' => "hao",
        '联' | '聯' => "lian",
        '系' | '絡' => "xi",
        '方' => "fang",
        '式' | '驶' | '駛' => "shi",
        '致' => "zhi",
        '拨' | '撥' => "bo",
        '打' => "da",
        '来' | '來' => "lai",
        '携' => "xie",
        '帯' => "dai",
        '전' => "jeon",
        '화' => "hwa",
        '银' | '銀' => "yin",
        '行' => "hang",
        '账' | '帐' | '賬' | '帳' => "zhang",
        '卡' => "ka",
        '驾' | '駕' => "jia",
        '证' | '證' => "zheng",
        '照' => "zhao",
        _ => "",
    }
}

/// A letter of Latin script without its accent; other letters as something no word has.
fn strip_accent(c: char) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_their_values_are() {
        let check = |text: &str, expect: Hints| assert_eq!(name_hints(text), expect, "{text}");
        check("phone", Hints::PHONE);
        check("billingPhone2", Hints::PHONE);
        check("HOME_PHONE", Hints::PHONE);
        check("dateOfBirth", Hints::BIRTH);
        check("date_of_birth", Hints::BIRTH);
        check("clientIPAddress", Hints::IP);
        check("phone_number_id", Hints::OTHER);
        check("colour", Hints::OTHER);
        check("weather", Hints::NONE);
        check("tele\u{301}fono", Hints::PHONE);
    }
}
