//! IBANs; ISO 13616.

use std::ops::Range;

use super::{boundary, checksum::mod97};
use crate::scan::{class::Class, context::Text, finding::FoundValue};

/// An IBAN that begins with the word at `word`.
pub(in crate::scan) fn find_iban(text: &Text<'_>, word: &Range<usize>) -> Option<FoundValue> {
    let head = text.bytes().get(word.start..word.start + 4)?;
    let country = [head[0].to_ascii_uppercase(), head[1].to_ascii_uppercase()];
    if !head[2].is_ascii_digit() || !head[3].is_ascii_digit() {
        return None;
    }
    let length = iban_length(country)?;
    let (mut at, mut bytes) = (word.start, Vec::with_capacity(length));
    while bytes.len() < length {
        let byte = text.byte(at);
        if byte.is_ascii_alphanumeric() {
            bytes.push(byte.to_ascii_uppercase());
            at += 1;
        } else {
            let sign = text.dash_len(at).or_else(|| text.space_len(at));
            at += sign.filter(|_| bytes.len().is_multiple_of(4))?;
        }
    }
    let rotated = bytes[4..].iter().chain(&bytes[..4]).copied();
    let whole = !text.byte(at).is_ascii_alphanumeric()
        && boundary::classes_before_word(text, word.start).contains(Class::Iban);
    (whole && mod97(rotated) == 1).then_some(FoundValue::by_value(Class::Iban, word.start..at))
}

/// How long IBANs of a country are, from the registry of SWIFT.
fn iban_length(country: [u8; 2]) -> Option<usize> {
    const LENGTHS: &[(usize, &str)] = &[
        (15, "NO"),
        (16, "BE"),
        (18, "DK FO FI GL NL SD FK"),
        (19, "MK SI"),
        (20, "AT BA EE KZ LT LU XK MN"),
        (21, "CH HR LI LV"),
        (22, "BG BH CR DE GB GE IE ME RS VA"),
        (23, "AE GI IL IQ OM TL SO"),
        (24, "AD CZ ES MD PK RO SA SE SK TN VG"),
        (25, "LY PT ST"),
        (26, "IS TR BI"),
        (27, "FR GR IT MC MR SM DJ"),
        (28, "AL AZ BY CY DO GT HU LB PL SV NI"),
        (29, "BR EG PS QA UA"),
        (30, "JO KW MU YE"),
        (31, "MT SC"),
        (32, "LC"),
        (33, "RU"),
    ];
    let is_listed = |list: &str| list.split(' ').any(|code| code.as_bytes() == country);
    let found = LENGTHS.iter().find(|(_, list)| is_listed(list));
    found.map(|(length, _)| *length)
}
