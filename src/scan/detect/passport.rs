//! Passports, which only their surroundings tell.

use std::ops::Range;

use super::digits::DigitGroups;
use crate::scan::{
    class::Class,
    context::{Text, ValueContext},
    finding::FoundValue,
    lexicon::Hints,
};

/// A passport number of letters and digits that begins with the word at `word`.
pub(super) fn find_passport(text: &Text<'_>, word: &Range<usize>) -> Option<FoundValue> {
    let bytes = text.bytes();
    let mut span = word.clone();
    let letters_only = bytes[span.clone()].iter().all(u8::is_ascii_uppercase);
    if letters_only {
        // `AB 1234567`: the series apart from the number.
        if word.len() > 3 || !matches!(text.byte(word.end), b' ' | b'-') {
            return None;
        }
        span.end += 1;
        while text.byte(span.end).is_ascii_digit() {
            span.end += 1;
        }
    }
    // `E12 33378`, as some write those of India.
    let split = word.len() == 3
        && !letters_only
        && bytes[word.start].is_ascii_uppercase()
        && bytes[word.start + 1..word.end]
            .iter()
            .all(u8::is_ascii_digit)
        && text.byte(word.end) == b' ';
    if split {
        let digits = bytes[word.end + 1..].iter().take(6);
        let digits = digits.take_while(|b| b.is_ascii_digit()).count();
        span.end += if digits == 5 { 1 + digits } else { 0 };
    }
    let value: Vec<u8> = bytes[span.clone()]
        .iter()
        .copied()
        .filter(u8::is_ascii_alphanumeric)
        .take(12)
        .collect();
    let digits = value.iter().filter(|b| b.is_ascii_digit()).count();
    let shaped = (7..=10).contains(&value.len())
        && (digits >= 3 && value.len() - digits <= 5 || digits >= 1 && value.len() == 9)
        && !value.iter().any(u8::is_ascii_lowercase)
        && !text.byte(span.end).is_ascii_alphanumeric();
    if !shaped {
        return None;
    }
    let named = is_named_passport(text, &span, text.context(&span));
    named.then_some(FoundValue::by_context(Class::Passport, span))
}

/// Whether `around` or another part of the message says that the value at `span` is of a passport.
fn is_named_passport(text: &Text<'_>, span: &Range<usize>, around: ValueContext) -> bool {
    text.is_named(span, around, Hints::PASSPORT) || text.is_seen_as(span, Class::Passport)
}

/// Whether digits are the number of a passport.
pub(super) fn is_passport_number(number: &DigitGroups<'_>) -> bool {
    (7..=9).contains(&number.digits.len())
        && !number.plus
        && !number.paren
        && (number.is_known(Class::Passport)
            || number.text.may_name_passport(&number.span)
                && is_named_passport(number.text, &number.span, number.around()))
}
