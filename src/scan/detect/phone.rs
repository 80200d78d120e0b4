//! Telephone numbers: E.164 and the national formats of the country packs.
//!
//! Formats that nothing else is written in count by themselves; all others need somebody to say
//! that they are telephones.

use super::digits::{DigitGroups, Separator, is_in_hex_row};
use crate::scan::{
    class::{Class, Countries, Country},
    finding::FoundValue,
    lexicon::Hints,
};

/// The telephone number that `number` is.
pub(in crate::scan) fn find_phone(
    number: &DigitGroups<'_>,
    countries: Countries,
) -> Option<FoundValue> {
    let digits = number.digits;
    if !(7..=15).contains(&digits.len()) || looks_like_date(number) || is_of_files(number) {
        return None;
    }
    if number.plus {
        return international_phone(number);
    }
    let abroad =
        digits.starts_with(&[0, 0]) && number.lens[0] >= 2 && is_international(&digits[2..]);
    let distinct = has_phone_grouping(number, countries) || abroad && !number.is_bare();
    // Two zeros lead abroad: no country has numbers that begin with them.
    let valid = if digits.starts_with(&[0, 0]) {
        abroad
    } else {
        let mut countries = Country::ALL.into_iter().filter(|c| countries.contains(*c));
        countries.any(|country| is_national(country, digits))
    };
    let known = number.is_known(Class::Phone);
    let signed = is_in_signature(number);
    // Only what names it makes a telephone number of one that no country has.
    if !distinct && !valid && !known && !signed && !number.may_be_named_phone() {
        return None;
    }
    let phone = Hints::PHONE;
    let strong = if signed {
        number.strong_hints().union(phone)
    } else {
        number.strong_hints()
    };
    if strong.intersects(Hints::OTHER.union(Hints::VERSION)) && !strong.intersects(phone) {
        return None;
    }
    // A row of numbers holds no telephone that nothing names.
    let row = number.has_neighbours
        && !number.paren
        && number.separators.iter().all(|s| *s == Separator::Space);
    if row && !strong.intersects(phone) && !known {
        return None;
    }
    if distinct {
        return Some(FoundValue::by_value(Class::Phone, number.span.clone()));
    }
    // `081.4417900` begins with a code of an area: decimals do not begin so.
    let area = digits[0] == 0 && number.lens[0] >= 2;
    let decimals = number.lens.len() == 2 && number.separator() == Some(Separator::Dot) && !area;
    // What is grouped like a social security number is none that is not valid.
    if number.lens == [3, 2, 4] && !strong.intersects(phone) {
        return None;
    }
    let reached = || {
        if number.is_bare() {
            return is_said_of_digits(number, strong);
        }
        number.around().nearby.intersects(phone)
            || !decimals && number.around().nearby.intersects(Hints::CONTACT)
    };
    let named = strong.intersects(phone) && !decimals && (digits.len() <= 12 || valid)
        || valid && !number.has_neighbours && reached();
    (named || known).then(|| FoundValue::by_context(Class::Phone, number.span.clone()))
}

/// Whether digits that nothing groups are said to be a telephone's, which takes more than a word
/// nearby: programs write many numbers.
fn is_said_of_digits(number: &DigitGroups<'_>, strong: Hints) -> bool {
    let reaching = Hints::PHONE.union(Hints::CONTACT);
    // `routing number 021000021`
    let label = number.text.preceding_label(number.span.start);
    let of_bank = label.intersects(Hints::BANK) && !strong.intersects(Hints::PHONE);
    if of_bank || is_count(number.digits) {
        return false;
    }
    if let Some(named) = code_name_hints(number, strong) {
        return named.intersects(Hints::PHONE)
            || named.intersects(Hints::CONTACT) && !named.intersects(Hints::NUMBERING);
    }
    strong.intersects(reaching)
        || number.around().nearby.intersects(reaching)
            && number.text.is_labelled_in_line(&number.span, reaching)
}

/// Whether each digit is the next one after that before it.
fn is_count(digits: &[u8]) -> bool {
    digits.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 10)
}

/// What the name says whose value the number is, as in JSON and code; `None` in a sentence. `strong` is
/// what is said right before it.
fn code_name_hints(number: &DigitGroups<'_>, strong: Hints) -> Option<Hints> {
    let text = number.text;
    if number.span == (0..text.text.len()) && !text.names.own.is_empty() {
        return Some(strong);
    }
    let before = text.bytes()[..number.span.start].trim_ascii_end();
    let before = before.strip_suffix(b"\"").unwrap_or(before);
    let before = before.trim_ascii_end();
    match before {
        [.., b'='] | [.., b'"' | b'\'', b':'] => Some(strong),
        [key @ .., b':'] => is_plain_key(key).then_some(strong),
        [.., b',' | b'(' | b'['] => {
            let open = enclosing_bracket(before)?;
            Some(text.preceding_hints(open).0)
        }
        _ => None,
    }
}

/// Where the bracket of the array or call opens that `before` ends in.
fn enclosing_bracket(before: &[u8]) -> Option<usize> {
    const BYTES_MAX: usize = 160;
    let mut closed = 0_usize;
    let start = before.len().saturating_sub(BYTES_MAX);
    for at in (start..before.len()).rev() {
        match before[at] {
            b')' | b']' => closed += 1,
            b'(' | b'[' if closed > 0 => closed -= 1,
            b'(' => {
                let glued = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'!');
                return before[..at].last().is_some_and(glued).then_some(at);
            }
            b'[' => {
                let value = |b: &u8| matches!(b, b':' | b'=' | b',' | b'[' | b'(');
                let named = before[..at].trim_ascii_end().last();
                return named.is_none_or(value).then_some(at);
            }
            _ => {}
        }
    }
    None
}

/// Whether a text ends in a key as YAML and programs have them: one word in lower case at the start
/// of its line or of an item. Labels of people begin with a capital.
fn is_plain_key(before: &[u8]) -> bool {
    let inside = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let word = before.iter().rev().take_while(|b| inside(b)).count();
    let (rest, word) = before.split_at(before.len() - word);
    let start = rest.trim_ascii_end();
    let starts_item = rest[start.len()..].contains(&b'\n')
        || matches!(start, [] | [.., b'{' | b',' | b'-' | b'(']);
    starts_item && word.first().is_some_and(u8::is_ascii_lowercase)
}

/// Whether a letter such as `T:` or `M:` stands before the number, as in the foot of a letter.
fn is_in_signature(number: &DigitGroups<'_>) -> bool {
    let before = &number.text.bytes()[..number.span.start];
    match before {
        [.., earlier, letter, b':' | b'.', b' '] => {
            matches!(letter, b'C' | b'F' | b'H' | b'M' | b'P' | b'T' | b'W')
                && matches!(earlier, b'\n' | b' ' | b'|' | b',' | b';')
        }
        [letter, b':', b' '] => matches!(letter, b'F' | b'M' | b'P' | b'T'),
        _ => false,
    }
}

fn international_phone(number: &DigitGroups<'_>) -> Option<FoundValue> {
    if !is_international(number.digits) {
        return None;
    }
    let around = number.around();
    if around.names_other(Hints::PHONE) {
        return None;
    }
    // `+` before a digit is also a sign, an addition, or a line of a diff.
    let bare_short = number.is_bare() && number.digits.len() < 10;
    let dotted = number.separator() == Some(Separator::Dot) && number.lens.len() == 2;
    if (bare_short || dotted) && !around.nearby.intersects(Hints::PHONE.union(Hints::CONTACT)) {
        return None;
    }
    Some(FoundValue::by_value(Class::Phone, number.span.clone()))
}

/// Whether digits after `+` are a country code and a number of that country.
fn is_international(digits: &[u8]) -> bool {
    /// How many digits there are with the code of a country, by its first two digits.
    const TOTALS: [(std::ops::RangeInclusive<usize>, &[u8]); 6] = [
        (9..=15, &[49]),
        (11..=13, &[44, 55, 91]),
        (9..=13, &[39]),
        (12..=13, &[86]),
        (
            9..=14,
            &[
                20, 27, 30, 32, 36, 40, 43, 45, 46, 47, 51, 52, 53, 54, 56, 57, 58, 60, 62, 63, 64,
                65, 66, 81, 82, 84, 90, 92, 93, 94, 95, 98,
            ],
        ),
        (
            10..=15,
            &[
                21, 22, 23, 24, 25, 26, 29, 35, 37, 38, 42, 50, 59, 67, 68, 69, 80, 85, 87, 88, 96,
                97, 99,
            ],
        ),
    ];
    let total = digits.len();
    match digits {
        [1, rest @ ..] => is_nanp(rest),
        [7, ..] => total == 11,
        [3, 1 | 3 | 4, third, ..] | [4, 1 | 8, third, ..] | [6, 1, third, ..] => {
            total == 11 || total == 12 && *third == 0
        }
        [first, second, ..] => {
            let code = first * 10 + second;
            let mut totals = TOTALS.iter();
            totals.any(|(lengths, codes)| codes.contains(&code) && lengths.contains(&total))
        }
        [] | [_] => false,
    }
}

/// Ten digits of the North American plan: no area or exchange begins with 0 or 1 or ends in 11.
fn is_nanp(digits: &[u8]) -> bool {
    digits.len() == 10
        && digits[0] >= 2
        && digits[1] != 9
        && digits[3] >= 2
        && digits[1..3] != [1, 1]
        && digits[4..6] != [1, 1]
}

/// Whether `digits`, with the trunk prefix, can be a number of `country`.
fn is_national(country: Country, digits: &[u8]) -> bool {
    let total = digits.len();
    let (first, second) = (digits[0], digits[1]);
    match country {
        Country::Us | Country::Ca => {
            is_nanp(digits) || total == 11 && first == 1 && is_nanp(&digits[1..])
        }
        Country::Gb => {
            first == 0 && matches!(second, 1 | 2 | 3 | 5 | 7 | 8) && matches!(total, 10 | 11)
        }
        Country::De => first == 0 && second != 0 && (7..=13).contains(&total),
        Country::Ch | Country::Fr | Country::Nl => first == 0 && second != 0 && total == 10,
        Country::Es => matches!(first, 6..=9) && total == 9,
        Country::It => {
            first == 3 && (9..=10).contains(&total)
                || first == 0 && second != 0 && (8..=11).contains(&total)
        }
        Country::Pl => (1..=8).contains(&first) && total == 9,
        Country::Br => {
            let area = |at: usize| digits[at] != 0 && digits[at + 1] != 0;
            match total {
                8 => (2..=5).contains(&first),
                9 => first == 9,
                10 => area(0) && (2..=5).contains(&digits[2]),
                11 if first == 0 => area(1),
                11 => area(0) && digits[2] == 9,
                12 => first == 0 && area(1) && digits[3] == 9,
                _ => false,
            }
        }
        Country::In => {
            total == 10 && first >= 6
                || total == 11 && first == 0 && second != 0
                || total == 12 && digits[..2] == [9, 1] && digits[2] >= 6
                || total == 10 && matches!(first, 1..=5)
        }
        Country::Au => {
            first == 0 && matches!(second, 2 | 3 | 4 | 7 | 8) && total == 10
                || total == 10
                    && digits[0] == 1
                    && matches!(digits[1], 3 | 8)
                    && digits[2..4] == [0, 0]
                || total == 8 && matches!(first, 2..=9)
        }
        Country::Cn => match total {
            11 => first == 1 && (3..=9).contains(&second),
            // With the code of an area; that of Beijing and others has three digits.
            10 | 12 => first == 0 && matches!(second, 1..=9) && digits[3] >= 2,
            _ => false,
        },
        // Their packs are identity numbers alone.
        Country::Cl
        | Country::Cz
        | Country::Dk
        | Country::Fi
        | Country::Is
        | Country::Jp
        | Country::Kr
        | Country::Mx
        | Country::No
        | Country::Se
        | Country::Sk => false,
    }
}

/// Whether the grouping is one that only telephone numbers of a country have.
fn has_phone_grouping(number: &DigitGroups<'_>, countries: Countries) -> bool {
    let (digits, lens, paren) = (number.digits, number.lens, number.paren);
    let has = |country| countries.contains(country) && is_national(country, digits);
    let Some(&first) = number.separators.first() else {
        return false;
    };
    let uniform = number.separator();
    let spaced = uniform == Some(Separator::Space) && !number.has_neighbours;
    let dashed = uniform == Some(Separator::Dash);
    let dotted = uniform == Some(Separator::Dot);
    let slashed = uniform == Some(Separator::Slash);
    let closed = paren && first == Separator::Paren;
    let nanp = has(Country::Us) || has(Country::Ca);
    match lens {
        [3, 3, 4] if nanp => closed || dashed || dotted,
        [1, 3, 3, 4] if nanp => {
            dashed || dotted || spaced || number.separators.contains(&Separator::Paren)
        }
        [3, 4, 4] if has(Country::Cn) && digits[0] == 1 => spaced || dashed,
        [2, 2, 2, 2, 2] if has(Country::Fr) => spaced || dotted || dashed,
        [2, 4 | 5, 4] if closed => has(Country::Br) || has(Country::Au),
        [2, 5, 4] if has(Country::Br) => {
            spaced || number.separators == [Separator::Space, Separator::Dash]
        }
        [2, 4, 4] if has(Country::Au) => spaced && digits[0] == 0,
        [3, 2, 2, 2] if has(Country::Es) => spaced,
        [4, 3, 3] if has(Country::Au) && digits[0] == 1 => spaced || dashed,
        [4, 3, 3] if has(Country::Au) => (spaced || dashed) && digits[1] == 4,
        [3, 3, 2, 2] if has(Country::Ch) => spaced || dotted || first == Separator::Slash,
        [3, 4, 4] if has(Country::Gb) => closed || spaced && digits[1] == 2,
        [4, 3, 4] if has(Country::Gb) => closed || spaced && matches!(digits[1], 1 | 3 | 8),
        [5, 6] | [5, 3, 3] if has(Country::Gb) => closed || spaced,
        [3, 7] | [4, 6] if dashed && has(Country::Nl) => true,
        [3, 7] if has(Country::It) => (dashed || slashed) && digits[0] == 3,
        [2, 8] if has(Country::Nl) => dashed && digits[1] == 6,
        [2..=5, 3..=8] | [2..=5, 2..=4, 2..=4] => {
            closed
                && digits[0] == 0
                && (has(Country::De) || has(Country::Nl) || has(Country::It) || has(Country::Gb))
        }
        _ => false,
    }
}

/// Groups as versions, places on the globe, dumps and characters of Unicode have them.
fn is_of_files(number: &DigitGroups<'_>) -> bool {
    let has = |separator| number.separators.contains(&separator);
    let (dash, dot) = (has(Separator::Dash), has(Separator::Dot));
    let unicode = number.lens == [4, 4, 4] && number.digits[0] == 0;
    let dump = number.lens.iter().all(|len| *len == 2) && is_in_hex_row(number);
    // `+4612-05957` and `+690650-1050310` of ISO 6709
    let place = number.plus && dash && matches!(number.lens, [4, 5] | [6, 7]);
    // `20220623.1-1`, `1003.1-1988`
    let version = dash && dot && !number.plus && number.lens.contains(&1);
    // `0065 0302 0301`
    dump || place || version || unicode && (dot || number.digits[1] == 0)
}

/// Three groups that are a day, a month and a year, or eight digits that begin with a year.
fn looks_like_date(number: &DigitGroups<'_>) -> bool {
    let year = |value: u32| (1900..=2099).contains(&value);
    match number.lens {
        [4, 2, 1 | 2] | [4, 1, 2] => year(number.group(0)) && number.group(1) <= 12,
        [1 | 2, 1 | 2, 4] => {
            year(number.group(2)) && number.group(0) <= 31 && number.group(1) <= 31
        }
        [8] => {
            let value = number.group(0);
            year(value / 10_000)
                && (1..=12).contains(&(value / 100 % 100))
                && (1..=31).contains(&(value % 100))
        }
        [4, 4] => year(number.group(0)) && year(number.group(1)),
        // The year and the number of a document.
        [4, 3 | 5 | 6] => year(number.group(0)) && number.separator() == Some(Separator::Dash),
        [4, 2, 2, 2, ..] => year(number.group(0)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_country_has_numbers_that_begin_with_two_zeros() {
        for total in 7..=15 {
            for third in 0..100 {
                let mut digits = vec![third / 10; total];
                digits[..2].fill(0);
                digits[3] = third % 10;
                let of = Country::ALL.into_iter().find(|c| is_national(*c, &digits));
                assert_eq!(of, None, "{digits:?}");
            }
        }
    }
}
