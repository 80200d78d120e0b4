//! National identity numbers in a text: what may be one, and whether its surroundings let it be one.

use std::ops::Range;

use super::{
    boundary,
    digits::{DigitGroups, Separator},
    passport,
};
use crate::scan::{
    class::Class,
    context::Text,
    finding::{FoundValue, WantedClasses},
    lexicon::Hints,
    national_ids::NATIONAL_IDS,
};

/// Characters of a number at most.
const BYTES_MAX: usize = 32;

/// An identity number of digits, and perhaps a letter after them: alone unless it `is_ended`.
pub(in crate::scan) fn numeric_id(
    number: &DigitGroups<'_>,
    wanted: WantedClasses,
    is_ended: bool,
) -> Option<FoundValue> {
    if !wanted.classes.contains(Class::NationalId) || number.plus || number.paren {
        return None;
    }
    let (text, end) = (number.text, number.span.end);
    let (mut written, len) = written_digits(number);
    let sign = usize::from(matches!(text.byte(end), b'-' | b' '));
    let letter = end + sign;
    if text.byte(letter).is_ascii_alphabetic() && !text.byte(letter + 1).is_ascii_alphanumeric() {
        written[len] = text.byte(end).to_ascii_uppercase();
        written[len + sign] = text.byte(letter).to_ascii_uppercase();
        let span = number.span.start..letter + 1;
        let may_suffice = text.byte(letter).is_ascii_uppercase() || text.byte(end) != b' ';
        let found = find_id(text, span, &written[..=len + sign], wanted, may_suffice);
        if found.is_some() {
            return found;
        }
    }
    if !is_ended {
        return None;
    }
    let span = number.span.clone();
    find_id(text, span, &written[..len], wanted, !number.has_neighbours)
}

/// The digits with one sign between two groups.
fn written_digits(number: &DigitGroups<'_>) -> ([u8; BYTES_MAX + 2], usize) {
    let (mut written, mut len, mut from) = ([0; BYTES_MAX + 2], 0, 0);
    for (group, count) in number.lens.iter().enumerate() {
        if let Some(before) = group.checked_sub(1) {
            written[len] = match number.separators[before] {
                Separator::Dash => b'-',
                Separator::Dot => b'.',
                Separator::Paren => b'(',
                Separator::Plus => b'+',
                Separator::Slash => b'/',
                Separator::Space => b' ',
            };
            len += 1;
        }
        for digit in &number.digits[from..from + usize::from(*count)] {
            written[len] = b'0' + digit;
            len += 1;
        }
        from += usize::from(*count);
    }
    (written, len)
}

/// An identity or passport number that is, or begins with, the letters and digits at `word`.
pub(in crate::scan) fn alphanumeric_id(
    text: &Text<'_>,
    word: &Range<usize>,
    wanted: WantedClasses,
) -> Option<FoundValue> {
    const LETTERS_AND_DIGITS: std::ops::RangeInclusive<usize> = 1..=18;
    if !LETTERS_AND_DIGITS.contains(&word.len()) {
        return None;
    }
    let classes = wanted.classes;
    let id = if classes.contains(Class::NationalId) {
        CompactId::read(text, word).and_then(|compact| compact.find(text, wanted))
    } else {
        None
    };
    // What stands before takes longer to read than to see that most words are nothing.
    let is_let =
        |found: &FoundValue| boundary::classes_before_word(text, word.start).contains(found.class);
    id.filter(is_let).or_else(|| {
        let passport = classes.contains(Class::Passport);
        passport
            .then(|| passport::find_passport(text, word))?
            .filter(is_let)
    })
}

/// An identity number of letters and digits at `start` that spaces group like nothing else: the
/// Italian tax code, the social security number of somebody born on Corsica.
pub(in crate::scan) fn spaced_id(
    text: &Text<'_>,
    start: usize,
    wanted: WantedClasses,
) -> Option<FoundValue> {
    let classes = wanted
        .classes
        .intersection(boundary::classes_before_word(text, start));
    if !classes.contains(Class::NationalId) {
        return None;
    }
    let length = if text.byte(start).is_ascii_digit() {
        15
    } else {
        16
    };
    let (mut at, mut id) = (start, CompactId::empty(start..start));
    while id.len < length {
        if text.byte(at) == b' ' && at > start {
            at += 1;
        }
        id.append_part(text, &(at..(at + 1).min(text.text.len())))?;
        if !text.byte(at).is_ascii_alphanumeric() {
            return None;
        }
        at += 1;
    }
    id.span.end = at;
    if text.byte(at).is_ascii_alphanumeric() {
        return None;
    }
    id.find(text, wanted)
}

/// The number that `written` is, when the table and the surroundings of `span` let it be one; where it may
/// not suffice, they have to name it.
fn find_id(
    text: &Text<'_>,
    span: Range<usize>,
    written: &[u8],
    wanted: WantedClasses,
    may_suffice: bool,
) -> Option<FoundValue> {
    let by_context = NATIONAL_IDS
        .matching(written, wanted.countries)
        .find_map(|id| {
            let names = if id.is_driving {
                Hints::DRIVING
            } else {
                Hints::for_country(id.country).union(Hints::IDENTITY)
            };
            let around = text.context(&span);
            let bare = span.len() == written.len() && written.iter().all(u8::is_ascii_digit);
            let named = if id.is_driving {
                text.is_named(&span, around, names)
            } else if bare {
                around.strong.intersects(names)
                    || around.names(names) && text.is_labelled(&span, names)
            } else {
                around.names(names)
            };
            if may_suffice && id.is_sufficient {
                (named || !around.names_other(names.union(Hints::SSN))).then_some(false)
            } else {
                (named || text.is_seen_as(&span, Class::NationalId)).then_some(true)
            }
        })?;
    Some(FoundValue {
        class: Class::NationalId,
        span,
        by_context,
    })
}

/// Letters and digits without what parts them, upper case.
struct CompactId {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
    span: Range<usize>,
    lower: bool,
}

impl CompactId {
    const BYTES_MAX: usize = 20;

    fn empty(span: Range<usize>) -> Self {
        Self {
            bytes: [0; Self::BYTES_MAX],
            len: 0,
            span,
            lower: false,
        }
    }

    /// Reads on from `word` over single separators, as far as an identity number may go.
    fn read(text: &Text<'_>, word: &Range<usize>) -> Option<Self> {
        let mut compact = Self::empty(word.clone());
        compact.append_part(text, word)?;
        let short = word.len() <= 4
            && text.bytes()[word.clone()]
                .iter()
                .any(u8::is_ascii_uppercase);
        let begins_with_digits = text.byte(word.start).is_ascii_digit();
        // `AB 12 34 56 C`, `X-1234567-L`, `1EG4-TE5-MK73`; words of a sentence are not of that form.
        let sign = |at: usize| match text.byte(at) {
            b'.' => Some(1),
            _ => text.dash_len(at).or_else(|| text.space_len(at)),
        };
        while let Some(width) = sign(compact.span.end).filter(|_| short) {
            let start = compact.span.end + width;
            let mut end = start;
            while text.byte(end).is_ascii_alphanumeric() && end - start < 9 {
                end += 1;
            }
            let part = &text.bytes()[start.min(text.text.len())..end.min(text.text.len())];
            let digits = part.iter().filter(|b| b.is_ascii_digit()).count();
            let fits = !part.is_empty()
                && (digits == part.len()
                    || part.len() == 1
                    || word.len() == 1 && digits == 7
                    || begins_with_digits && digits > 0)
                && !part.iter().any(u8::is_ascii_lowercase)
                && compact.len + part.len() <= 13;
            if !fits {
                break;
            }
            compact.append_part(text, &(start..end))?;
            compact.span.end = end;
        }
        // `X1234567-L`: a dash before the check letter only.
        let foreigner = matches!(compact.bytes(), [b'X'..=b'Z', rest @ ..]
            if rest.len() == 7 && rest.iter().all(u8::is_ascii_digit));
        let last = compact.span.end + 1;
        if foreigner
            && matches!(text.byte(last - 1), b'-' | b' ')
            && text.byte(last).is_ascii_uppercase()
            && !text.byte(last + 1).is_ascii_alphanumeric()
        {
            compact.append_part(text, &(last..last + 1))?;
            compact.span.end = last + 1;
        }
        let end = compact.span.end;
        let next = text.byte(end);
        let glued = next == b'_' && !boundary::is_word_end_underscore(text, end)
            || matches!(next, b'-' | b'/' | b'.' | b':' | b'@' | b'=')
                && text.byte(end + 1).is_ascii_alphanumeric();
        (!glued).then_some(compact)
    }

    /// The number that it is. What is written in lower case is more often a piece of a hash.
    /// In both cases it is a name of a program: `iso3166Id`.
    fn find(&self, text: &Text<'_>, wanted: WantedClasses) -> Option<FoundValue> {
        let written = &text.bytes()[self.span.clone()];
        let lower = written.iter().filter(|b| b.is_ascii_lowercase()).count();
        if lower > 1 && written.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        find_id(text, self.span.clone(), self.bytes(), wanted, !self.lower)
    }

    fn append_part(&mut self, text: &Text<'_>, part: &Range<usize>) -> Option<()> {
        for byte in &text.bytes()[part.clone()] {
            *self.bytes.get_mut(self.len)? = byte.to_ascii_uppercase();
            self.lower |= byte.is_ascii_lowercase();
            self.len += 1;
        }
        Some(())
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
