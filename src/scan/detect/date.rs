//! Dates of birth: a date that is written in digits or with the name of its month, where the
//! surroundings say that somebody was born then.

use std::ops::Range;

use super::{
    boundary,
    digits::{DigitGroups, Separator},
};
use crate::scan::{
    class::Class,
    context::Text,
    finding::{FoundValue, WantedClasses},
    lexicon::Hints,
};

/// Years in which somebody may have been born.
const YEARS: std::ops::RangeInclusive<u32> = 1900..=2099;

/// A date written in digits, when it is one of birth.
pub(in crate::scan) fn numeric_birth_date(
    number: &DigitGroups<'_>,
    wanted: WantedClasses,
) -> Option<FoundValue> {
    if !wanted.classes.contains(Class::DateOfBirth)
        || number.plus
        || number.paren
        || !is_date(number)
    {
        return None;
    }
    let next = number.text.byte(number.span.end);
    let later = number.text.byte(number.span.end + 1);
    let ends = match next {
        b'T' => later.is_ascii_digit() && number.lens.first() == Some(&4),
        b'-' | b'/' | b':' => false,
        b'.' => !later.is_ascii_digit(),
        b'_' => boundary::is_word_end_underscore(number.text, number.span.end),
        _ => !next.is_ascii_alphanumeric(),
    };
    let is_known = number.is_known(Class::DateOfBirth);
    // `stat` says when files were born.
    if !is_known && has_time_of_day(number) {
        return None;
    }
    (ends && (is_known || is_named_birth(number.text, &number.span)))
        .then(|| birth_date(number.span.clone()))
}

/// Whether a time to the second follows, other than midnight: files are born so, `stat` says.
fn has_time_of_day(number: &DigitGroups<'_>) -> bool {
    const TIME: &[u8] = b" 00:00:00";
    let rest = &number.text.bytes()[number.span.end..];
    let Some(time) = rest.get(..TIME.len()) else {
        return false;
    };
    let shaped = time.iter().zip(TIME).all(|(byte, shape)| {
        if *shape == b'0' {
            byte.is_ascii_digit()
        } else {
            byte == shape
        }
    });
    let fraction = rest[TIME.len()..].starts_with(b".000000000");
    shaped && (time != TIME || fraction)
}

/// A date with the name of a month whose day is the digits at `day`, when it is one of birth.
pub(in crate::scan) fn textual_birth_date(
    text: &Text<'_>,
    day: Range<usize>,
    wanted: WantedClasses,
) -> Option<FoundValue> {
    if !wanted.classes.contains(Class::DateOfBirth) || day.len() > 2 {
        return None;
    }
    let value = text.text.get(day.clone())?.parse::<u32>().ok()?;
    if !(1..=31).contains(&value) {
        return None;
    }
    let after_day = skip_ordinal(text, day.end);
    let span = match month_before(text, day.start) {
        Some(start) => start..year_after(text, after_day)?,
        None => day.start..year_after(text, month_after(text, after_day)?)?,
    };
    let first_placeholder = text.text.get(span.clone()) == Some("1 January 1900");
    (!first_placeholder && is_named_birth(text, &span)).then(|| birth_date(span))
}

fn birth_date(span: Range<usize>) -> FoundValue {
    FoundValue::by_context(Class::DateOfBirth, span)
}

fn is_named_birth(text: &Text<'_>, span: &Range<usize>) -> bool {
    // `(* 6.5.1976 in Mainz)`, as genealogists write.
    let star =
        text.bytes()[..span.start].ends_with(b"(* ") || text.bytes()[..span.start].ends_with(b"(*");
    star || text.is_named(span, text.context(span), Hints::BIRTH)
}

fn is_date(number: &DigitGroups<'_>) -> bool {
    let day = |value: u32| (1..=31).contains(&value);
    let month = |value: u32| (1..=12).contains(&value);
    let pair = |a: u32, b: u32| day(a) && month(b) || month(a) && day(b);
    // What stands in place of a redacted date.
    let placeholder = |y: u32, m: u32, d: u32| (y, m, d) == (1900, 1, 1);
    let uniform = number.separator();
    let separated = matches!(
        uniform,
        Some(Separator::Dash | Separator::Dot | Separator::Slash | Separator::Space)
    );
    let group = |at| number.group(at);
    match number.lens {
        [4, 1 | 2, 1 | 2] => {
            separated
                && YEARS.contains(&group(0))
                && month(group(1))
                && day(group(2))
                && !placeholder(group(0), group(1), group(2))
        }
        [1 | 2, 1 | 2, 4] => separated && YEARS.contains(&group(2)) && pair(group(0), group(1)),
        [1 | 2, 1 | 2, 2] => {
            separated && uniform != Some(Separator::Space) && pair(group(0), group(1))
        }
        [8] => {
            let value = group(0);
            let iso =
                YEARS.contains(&(value / 10_000)) && month(value / 100 % 100) && day(value % 100);
            let turned =
                YEARS.contains(&(value % 10_000)) && pair(value / 1_000_000, value / 10_000 % 100);
            iso || turned
        }
        _ => false,
    }
}

/// Where the ordinal sign or the point after a day ends.
fn skip_ordinal(text: &Text<'_>, at: usize) -> usize {
    const ORDINALS: [&str; 8] = ["st", "nd", "rd", "th", "er", "º", "ª", "°"];
    let rest = text.text.get(at..).unwrap_or_default();
    let found = ORDINALS.iter().find(|ordinal| rest.starts_with(**ordinal));
    at + found.map_or(0, |ordinal| ordinal.len())
}

/// Where the name of a month that follows a day ends.
fn month_after(text: &Text<'_>, at: usize) -> Option<usize> {
    let mut at = skip_filler(text, at);
    let start = at;
    while text.byte(at).is_ascii_alphabetic() || text.byte(at) >= 0x80 {
        at += 1;
        if at - start > 14 {
            return None;
        }
    }
    is_month(text.text.get(start..at)?).then_some(at)
}

/// Where the name of a month that a day follows begins.
fn month_before(text: &Text<'_>, day: usize) -> Option<usize> {
    let mut end = day;
    while matches!(text.byte_before(end), b' ' | b'.' | b'-') && day - end < 2 {
        end -= 1;
    }
    let mut start = end;
    while (text.byte_before(start).is_ascii_alphabetic() || text.byte_before(start) >= 0x80)
        && end - start < 14
    {
        start -= 1;
    }
    (start < end && is_month(text.text.get(start..end)?)).then_some(start)
}

/// Where the four digits of the year end that begin after spaces, commas and small words at `at`.
fn year_after(text: &Text<'_>, at: usize) -> Option<usize> {
    let at = skip_filler(text, at);
    let digits = text.text.get(at..at + 4)?;
    let year: u32 = digits.parse().ok()?;
    (YEARS.contains(&year) && !text.byte(at + 4).is_ascii_alphanumeric()).then_some(at + 4)
}

fn skip_filler(text: &Text<'_>, mut at: usize) -> usize {
    const FILLERS: [&str; 4] = ["of ", "de ", "del ", "do "];
    let mut steps = 0;
    while matches!(text.byte(at), b' ' | b',' | b'.' | b'-' | b'/') && steps < 3 {
        (at, steps) = (at + 1, steps + 1);
    }
    let rest = text.text.get(at..).unwrap_or_default();
    at + FILLERS
        .iter()
        .find(|filler| rest.starts_with(**filler))
        .map_or(0, |f| f.len())
}

/// Whether `word` is the name of a month, or its usual abbreviation, in a language of the packs.
fn is_month(word: &str) -> bool {
    const MONTHS: &str = " jan january januar janvier janv enero ene gennaio gen januari stycznia styczen sty janeiro \
        feb february februar fevrier fevr fev febrero febbraio februari lutego luty lut fevereiro \
        mar march marz maerz mars marzo maart mrt marca marzec marco mrz \
        apr april avril avr abril abr aprile kwietnia kwiecien kwi \
        may mai mayo maggio mag mei maja maj maio \
        jun june juni juin junio giugno giu czerwca czerwiec cze junho \
        jul july juli juillet juil julio luglio lug lipca lipiec lip julho \
        aug august aout agosto ago augustus sierpnia sierpien sie \
        sep sept september septembre septiembre settembre set wrzesnia wrzesien wrz setembro \
        oct october oktober okt octobre octubre ottobre ott pazdziernika pazdziernik paz outubro out \
        nov november novembre noviembre listopada listopad lis novembro \
        dec december dezember dez decembre diciembre dic dicembre grudnia grudzien gru dezembro ";
    const LETTERS_MAX: usize = 14;
    let mut folded = String::with_capacity(LETTERS_MAX + 2);
    folded.push(' ');
    for c in word.chars() {
        folded.push_str(match c {
            'é' | 'É' | 'è' => "e",
            'û' | 'ü' => "u",
            'ä' => "a",
            'ç' => "c",
            'ń' => "n",
            'ś' => "s",
            'ź' => "z",
            _ => "",
        });
        if c.is_ascii_alphabetic() {
            folded.push(c.to_ascii_lowercase());
        }
    }
    folded.push(' ');
    folded.len() > 4 && MONTHS.contains(&folded)
}
