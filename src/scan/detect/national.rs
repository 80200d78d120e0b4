//! National identity numbers of the country packs, and passports.
//!
//! A number counts by itself when its shape and check digits leave little doubt; else the
//! surroundings must name it. Each rule says which.

mod checks;
mod other_countries;

use std::ops::Range;

use super::{
    boundary,
    checksum::{ean13, luhn, mod97, verhoeff},
    digits::{DigitGroups, Separator},
};
use crate::scan::{
    class::{Class, Country},
    context::Text,
    finding::{FoundValue, WantedClasses},
    lexicon::Hints,
};
use checks::{
    is_bsn, is_codice_fiscale, is_corsican_nir, is_cpf, is_dowod, is_german_document, is_medicare,
    is_medicare_beneficiary, is_nhs, is_nino, is_nip, is_nir, is_pesel, is_rvnr,
    is_social_security_es, is_tax_id, is_tfn,
};
use other_countries::{
    is_cpr_checked, is_curp, is_day_first, is_ein, is_fodselsnummer, is_hetu, is_kennitala,
    is_my_number, is_personnummer, is_resident_id, is_rfc, is_rodne_cislo, is_rrn, is_rrn_checked,
    is_rut,
};

/// What a value needs besides its shape.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Evidence {
    /// A name nearby.
    NameNearby,
    /// Only that nothing calls it something else.
    ShapeAlone,
}

impl Evidence {
    /// What `number` needs, where its `shape` may be enough.
    fn from_shape(shape: bool, number: &DigitGroups<'_>) -> Self {
        if shape && !number.has_neighbours {
            Self::ShapeAlone
        } else {
            Self::NameNearby
        }
    }
}

/// An identity number of digits only.
pub(in crate::scan) fn numeric_id(
    number: &DigitGroups<'_>,
    wanted: WantedClasses,
) -> Option<FoundValue> {
    if !wanted.classes.contains(Class::NationalId) || number.plus || number.paren {
        return None;
    }
    let matching = countries_with_digits(number.digits.len())
        .iter()
        .filter(|country| wanted.countries.contains(**country))
        .filter_map(|country| Some((*country, numeric_evidence(*country, number)?)));
    for (country, needs) in matching {
        if let Some(by_context) = is_supported_by_context(
            number.text,
            &number.span,
            country,
            needs,
            number.is_known(Class::NationalId),
        ) {
            let span = dni_span(number, country).unwrap_or_else(|| number.span.clone());
            return Some(FoundValue {
                class: Class::NationalId,
                span,
                by_context,
            });
        }
    }
    None
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
    let is_named = boundary::has_name_before(text, word.start);
    let before = || boundary::classes_before_word(text, word.start);
    let classes = wanted.classes;
    let classes = if is_named {
        classes
    } else {
        classes.intersection(before())
    };
    let is_let = |found: &FoundValue| !is_named || before().contains(found.class);
    if classes.contains(Class::NationalId)
        && let Some(compact) = CompactId::read(text, word)
        && let Some(found) = national_id(text, &compact, wanted).filter(is_let)
    {
        return Some(found);
    }
    if classes.contains(Class::Passport) {
        return find_passport(text, word).filter(is_let);
    }
    None
}

fn national_id(text: &Text<'_>, compact: &CompactId, wanted: WantedClasses) -> Option<FoundValue> {
    let known = text.is_seen_as(&compact.span, Class::NationalId);
    for country in Country::ALL
        .into_iter()
        .filter(|c| wanted.countries.contains(*c))
    {
        let Some(needs) = alphanumeric_evidence(country, compact) else {
            continue;
        };
        if let Some(by_context) =
            is_supported_by_context(text, &compact.span, country, needs, known)
        {
            return Some(FoundValue {
                class: Class::NationalId,
                span: compact.span.clone(),
                by_context,
            });
        }
    }
    None
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
    let (country, length) = if text.byte(start).is_ascii_digit() {
        (Country::Fr, 15)
    } else {
        (Country::It, 16)
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
    if !wanted.countries.contains(country) || text.byte(at).is_ascii_alphanumeric() {
        return None;
    }
    let needs = alphanumeric_evidence(country, &id)?;
    let known = text.is_seen_as(&id.span, Class::NationalId);
    let by_context = is_supported_by_context(text, &id.span, country, needs, known)?;
    Some(FoundValue {
        class: Class::NationalId,
        span: id.span,
        by_context,
    })
}

/// Whether the surroundings let a number of `country` be one: `Some` of whether only they say so.
fn is_supported_by_context(
    text: &Text<'_>,
    span: &Range<usize>,
    country: Country,
    needs: Evidence,
    known: bool,
) -> Option<bool> {
    let names = Hints::for_country(country).union(Hints::IDENTITY);
    let around = text.context(span);
    let named = around.strong.intersects(names)
        || around.nearby.intersects(names) && !around.names_other(names);
    match needs {
        Evidence::NameNearby => (named || known).then_some(true),
        Evidence::ShapeAlone => {
            (named || !around.names_other(names.union(Hints::SSN))).then_some(false)
        }
    }
}

/// The countries of which [`numeric_evidence`] knows numbers of so many digits, in the order of all.
fn countries_with_digits(count: usize) -> &'static [Country] {
    use Country::{
        Au, Br, Ca, Ch, Cl, Cn, Cz, De, Dk, Es, Fr, Gb, In, Is, Jp, Kr, Nl, No, Pl, Se, Sk, Us,
    };
    match count {
        8 => &[Au, Cl, Es, Nl],
        9 => &[Au, Br, Ca, Cl, Cz, Nl, Sk, Us],
        10 => &[Au, Cz, Dk, Gb, Is, Pl, Se, Sk],
        11 => &[Au, Br, De, No, Pl],
        12 => &[Es, Fr, In, Jp, Se],
        13 => &[Ch, Fr, Kr],
        15 => &[Fr],
        18 => &[Cn],
        _ => &[],
    }
}

/// Whether the digits are a number of `country`.
fn numeric_evidence(country: Country, number: &DigitGroups<'_>) -> Option<Evidence> {
    let (digits, lens) = (number.digits, number.lens);
    let bare = number.is_bare();
    let space = || number.separator() == Some(Separator::Space);
    let dash = || number.separator() == Some(Separator::Dash);
    let alone = |shape: bool| Evidence::from_shape(shape, number);
    match (country, digits.len()) {
        (Country::Au, 8 | 9) if bare || matches!(lens, [3, 3, 3 | 2] | [2, 3, 3]) => {
            is_tfn(digits).then_some(Evidence::NameNearby)
        }
        (Country::Au, 10 | 11) if bare || lens.starts_with(&[4, 5, 1]) => {
            is_medicare(digits).then_some(Evidence::NameNearby)
        }
        (Country::Br, 11) if bare || lens == [3, 3, 3, 2] => is_cpf(digits).then_some(alone(!bare)),
        (Country::Br, 9) if bare || lens == [2, 3, 3, 1] => {
            is_named_rg(number).then_some(Evidence::NameNearby)
        }
        (Country::Ca, 9) if bare || lens == [3, 3, 3] => {
            (!matches!(digits[0], 0 | 8) && luhn(digits) || digits[0] == 0 && luhn(digits))
                .then_some(Evidence::NameNearby)
        }
        (Country::Ch, 13) if bare || lens == [3, 4, 4, 2] => {
            (digits.starts_with(&[7, 5, 6]) && ean13(digits)).then_some(alone(true))
        }
        (Country::De, 11) if bare || matches!(lens, [2, 3, 3, 3] | [3, 4, 4] | [2, 9]) => {
            is_tax_id(digits).then_some(alone(lens == [2, 3, 3, 3]))
        }
        (Country::Es, 8) if bare || lens == [2, 3, 3] => {
            dni_span(number, country).map(|_| Evidence::ShapeAlone)
        }
        (Country::Es, 12) if bare || matches!(lens, [2, 8, 2] | [2, 10]) => {
            is_social_security_es(digits).then_some(Evidence::NameNearby)
        }
        (Country::Fr, 15) if bare || matches!(lens, [1, 2, 2, 2, 3, 3, 2] | [13, 2]) => {
            is_nir(digits).then_some(alone(true))
        }
        (Country::Fr, 13) if bare || matches!(lens, [1, 2, 2, 2, 3, 3] | [2, 2, 3, 3, 3]) => {
            (matches!(digits[0], 0..=3) && digits[2] <= 9).then_some(Evidence::NameNearby)
        }
        (Country::Fr, 12) if bare => Some(Evidence::NameNearby),
        (Country::Gb, 10) if bare || lens == [3, 3, 4] => {
            is_nhs(digits).then_some(Evidence::NameNearby)
        }
        (Country::In, 12) if bare || lens == [4, 4, 4] => {
            (digits[0] >= 2 && verhoeff(digits)).then_some(alone(space() || dash()))
        }
        (Country::Nl, 9) if bare || matches!(lens, [4, 2, 3] | [3, 3, 3]) => {
            is_bsn(digits).then_some(Evidence::NameNearby)
        }
        (Country::Nl, 8) if bare => {
            let mut padded = [0; 9];
            padded[1..].copy_from_slice(digits);
            is_bsn(&padded).then_some(Evidence::NameNearby)
        }
        (Country::Pl, 11) if bare => is_pesel(digits).then_some(Evidence::NameNearby),
        (Country::Pl, 10) if bare || matches!(lens, [3, 3, 2, 2] | [3, 2, 2, 3]) => {
            is_nip(digits).then_some(Evidence::NameNearby)
        }
        (Country::Us, 9) if bare || lens == [3, 2, 4] => {
            let group = digits[3] * 10 + digits[4];
            let itin = digits[0] == 9 && matches!(group, 50..=65 | 70..=88 | 90..=92 | 94..=99);
            itin.then_some(if dash() {
                Evidence::ShapeAlone
            } else {
                Evidence::NameNearby
            })
        }
        _ => numeric_evidence_other(country, number),
    }
}

/// The same for the countries whose packs are identity numbers alone, and for employers' numbers.
fn numeric_evidence_other(country: Country, number: &DigitGroups<'_>) -> Option<Evidence> {
    let (digits, lens) = (number.digits, number.lens);
    let bare = number.is_bare();
    let dash = || number.separator() == Some(Separator::Dash);
    let alone = |shape: bool| Evidence::from_shape(shape, number);
    match (country, digits.len()) {
        (Country::Us, 9) if lens == [2, 7] && dash() => {
            is_ein(digits).then_some(Evidence::NameNearby)
        }
        (Country::Se, 10 | 12) if bare || matches!(lens, [6 | 8, 4]) && dash() => {
            is_personnummer(digits).then_some(alone(!bare))
        }
        (Country::No, 11) if bare || lens == [6, 5] => {
            is_fodselsnummer(digits).then_some(alone(!bare))
        }
        (Country::Dk, 10) if bare || lens == [6, 4] && dash() => {
            is_day_first(digits).then_some(alone(!bare && is_cpr_checked(digits)))
        }
        (Country::Is, 10) if bare || lens == [6, 4] => {
            is_kennitala(digits).then_some(alone(dash()))
        }
        (Country::Cz | Country::Sk, 9 | 10) if bare || matches!(lens, [6, 3 | 4]) => {
            let slash = number.separator() == Some(Separator::Slash);
            is_rodne_cislo(digits).then_some(alone(slash && digits.len() == 10))
        }
        (Country::Cn, 18) if bare || lens == [6, 8, 4] => {
            is_resident_id(digits, digits[17]).then_some(alone(true))
        }
        (Country::Kr, 13) if bare || lens == [6, 7] => {
            is_rrn(digits).then_some(alone(dash() && is_rrn_checked(digits)))
        }
        (Country::Jp, 12) if bare || lens == [4, 4, 4] => {
            is_my_number(digits).then_some(Evidence::NameNearby)
        }
        (Country::Cl, 8 | 9) if bare || lens.last() == Some(&1) => {
            let grouped = matches!(lens, [1 | 2, 3, 3, 1]);
            is_rut(digits, None).then_some(alone(grouped))
        }
        _ => None,
    }
}

/// The Spanish DNI: eight digits and a check letter, which may be parted from them.
fn dni_span(number: &DigitGroups<'_>, country: Country) -> Option<Range<usize>> {
    if country != Country::Es || number.digits.len() != 8 {
        return None;
    }
    let (text, end) = (number.text, number.span.end);
    let at = if matches!(text.byte(end), b'-' | b' ') {
        end + 1
    } else {
        end
    };
    let letter = text.byte(at);
    let alone = letter.is_ascii_uppercase() && !text.byte(at + 1).is_ascii_alphanumeric();
    (alone && letter == dni_letter(digits_to_number(number.digits)))
        .then_some(number.span.start..at + 1)
}

/// A number whose last character is a letter, parted from its digits: the Spanish DNI, the Finnish
/// identity code, the Chilean RUT.
pub(in crate::scan) fn id_with_separate_letter(
    number: &DigitGroups<'_>,
    wanted: WantedClasses,
) -> Option<FoundValue> {
    if !wanted.classes.contains(Class::NationalId) {
        return None;
    }
    let (text, end, lens) = (number.text, number.span.end, number.lens);
    let ends = |at: usize| !text.byte(at).is_ascii_alphanumeric();
    let (country, span) = match lens {
        [6, 3] if ends(end + 1) && is_hetu(number.digits, text.byte(end)) => {
            (Country::Fi, number.span.start..end + 1)
        }
        [7 | 8] | [1 | 2, 3, 3]
            if matches!(text.byte(end + 1), b'K' | b'k')
                && text.byte(end) == b'-'
                && ends(end + 2)
                && is_rut(number.digits, Some(10)) =>
        {
            (Country::Cl, number.span.start..end + 2)
        }
        [8] | [2, 3, 3] => (Country::Es, dni_span(number, Country::Es)?),
        _ => return None,
    };
    if !wanted.countries.contains(country) {
        return None;
    }
    let known = number.is_known(Class::NationalId);
    let by_context = is_supported_by_context(text, &span, country, Evidence::ShapeAlone, known)?;
    Some(FoundValue {
        class: Class::NationalId,
        span,
        by_context,
    })
}

fn dni_letter(number: u64) -> u8 {
    b"TRWAGMYFPDXBNJZSQVHLCKE"[usize::try_from(number % 23).expect("below 23")]
}

fn digits_to_number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .take(18)
        .fold(0, |value, digit| value * 10 + u64::from(*digit))
}

/// Letters and digits without what parts them, upper case.
struct CompactId {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
    span: Range<usize>,
    /// Whether separators were left out.
    grouped: bool,
    lower: bool,
}

impl CompactId {
    const BYTES_MAX: usize = 20;

    fn empty(span: Range<usize>) -> Self {
        Self {
            bytes: [0; Self::BYTES_MAX],
            len: 0,
            span,
            grouped: false,
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
            compact.grouped = true;
        }
        // `X1234567-L`: a dash before the check letter only.
        let foreigner = compact.has_shape(b"A9999999") && matches!(compact.bytes[0], b'X'..=b'Z');
        let last = compact.span.end + 1;
        if foreigner
            && matches!(text.byte(last - 1), b'-' | b' ')
            && text.byte(last).is_ascii_uppercase()
            && !text.byte(last + 1).is_ascii_alphanumeric()
        {
            compact.append_part(text, &(last..last + 1))?;
            compact.span.end = last + 1;
            compact.grouped = true;
        }
        let end = compact.span.end;
        let next = text.byte(end);
        let glued = next == b'_' && !boundary::is_word_end_underscore(text, end)
            || matches!(next, b'-' | b'/' | b'.' | b':' | b'@' | b'=')
                && text.byte(end + 1).is_ascii_alphanumeric();
        (!glued).then_some(compact)
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

    /// Whether it has the form of `shape`: `A` a letter, `9` a digit, `*` either.
    fn has_shape(&self, shape: &[u8]) -> bool {
        self.len == shape.len()
            && self
                .bytes()
                .iter()
                .zip(shape)
                .all(|(byte, kind)| match kind {
                    b'A' => byte.is_ascii_uppercase(),
                    b'9' => byte.is_ascii_digit(),
                    _ => true,
                })
    }

    fn digits(&self, range: Range<usize>) -> u64 {
        self.bytes()[range].iter().fold(0, |value, b| {
            value * 10 + u64::from(b.wrapping_sub(b'0') % 10)
        })
    }
}

/// Whether the letters and digits are a number of `country`.
fn alphanumeric_evidence(country: Country, id: &CompactId) -> Option<Evidence> {
    // What is written in lower case is more often a piece of a hash.
    let alone = if id.lower {
        Evidence::NameNearby
    } else {
        Evidence::ShapeAlone
    };
    let b = id.bytes();
    match country {
        Country::De if id.has_shape(b"99999999A999") => is_rvnr(b).then_some(alone),
        Country::De if matches!(id.len, 9 | 10) && is_german_document(b) => {
            Some(Evidence::NameNearby)
        }
        Country::Es if id.has_shape(b"99999999A") => {
            (b[8] == dni_letter(id.digits(0..8))).then_some(alone)
        }
        Country::Es if id.has_shape(b"A9999999A") && matches!(b[0], b'X'..=b'Z') => {
            let number = u64::from(b[0] - b'X') * 10_000_000 + id.digits(1..8);
            (b[8] == dni_letter(number)).then_some(alone)
        }
        Country::Fr if id.has_shape(b"999999A99999999") => is_corsican_nir(b).then_some(alone),
        Country::Fr if id.len == 9 && b.iter().filter(|b| b.is_ascii_digit()).count() >= 3 => {
            Some(Evidence::NameNearby).filter(|_| b[0].is_ascii_uppercase())
        }
        Country::Gb if id.has_shape(b"AA999999A") => is_nino(b).then_some(alone),
        Country::In if id.has_shape(b"AAAAA9999A") => matches!(
            b[3],
            b'A' | b'B' | b'C' | b'F' | b'G' | b'H' | b'J' | b'L' | b'P' | b'T'
        )
        .then_some(alone),
        Country::In if id.has_shape(b"AAA9999999") => Some(Evidence::NameNearby),
        Country::It if id.len == 16 => is_codice_fiscale(b).then_some(alone),
        Country::It if id.has_shape(b"AA99999AA") || id.has_shape(b"AA9999999") => {
            Some(Evidence::NameNearby)
        }
        Country::Nl if id.len == 9 && b[0].is_ascii_uppercase() && b[8].is_ascii_digit() => {
            (b[1].is_ascii_uppercase() && b[3].is_ascii_digit()).then_some(Evidence::NameNearby)
        }
        Country::Pl if id.has_shape(b"AAA999999") => is_dowod(b).then_some(Evidence::NameNearby),
        Country::Us if id.len == 11 && is_medicare_beneficiary(b) => Some(if id.grouped {
            alone
        } else {
            Evidence::NameNearby
        }),
        Country::Br if id.has_shape(b"99999999A") && b[8] == b'X' => Some(Evidence::NameNearby),
        Country::Au
        | Country::Br
        | Country::Ca
        | Country::Ch
        | Country::Cl
        | Country::Cn
        | Country::Cz
        | Country::De
        | Country::Dk
        | Country::Es
        | Country::Fi
        | Country::Fr
        | Country::Gb
        | Country::In
        | Country::Is
        | Country::It
        | Country::Jp
        | Country::Kr
        | Country::Mx
        | Country::Nl
        | Country::No
        | Country::Pl
        | Country::Se
        | Country::Sk
        | Country::Us => alphanumeric_evidence_other(country, id, alone),
    }
}

/// The same for the countries whose packs are identity numbers alone.
fn alphanumeric_evidence_other(
    country: Country,
    id: &CompactId,
    alone: Evidence,
) -> Option<Evidence> {
    let b = id.bytes();
    match (country, id.len) {
        (Country::Cl, 8 | 9) if b[id.len - 1] == b'K' => {
            let digits: Vec<u8> = b[..id.len - 1]
                .iter()
                .map(|b| b.wrapping_sub(b'0'))
                .collect();
            let rut = digits.iter().all(|digit| *digit <= 9) && is_rut(&digits, Some(10));
            rut.then_some(Evidence::NameNearby)
        }
        (Country::Cn, _) if id.has_shape(b"99999999999999999A") && b[17] == b'X' => {
            let digits: Vec<u8> = b[..17].iter().map(|b| b - b'0').collect();
            is_resident_id(&digits, 10).then_some(Evidence::ShapeAlone)
        }
        (Country::Fi, _) if id.has_shape(b"999999A999*") && b"ABCDEFYXWVU".contains(&b[6]) => {
            let digits: Vec<u8> = b
                .iter()
                .filter(|b| b.is_ascii_digit())
                .map(|b| b - b'0')
                .collect();
            is_hetu(&digits[..9], b[10]).then_some(alone)
        }
        (Country::Mx, _) if id.has_shape(b"AAAA999999AAAAAA*9") => is_curp(b).then_some(alone),
        (Country::Mx, _) if id.has_shape(b"AAAA999999***") || id.has_shape(b"AAA999999***") => {
            is_rfc(b).then_some(alone)
        }
        _ => None,
    }
}

fn find_passport(text: &Text<'_>, word: &Range<usize>) -> Option<FoundValue> {
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
    let known = text.is_seen_as(&span, Class::Passport);
    let around = text.context(&span);
    let named = around.strong.intersects(Hints::PASSPORT)
        || around.nearby.intersects(Hints::PASSPORT)
            && !around.names_other(Hints::PASSPORT)
            && text.is_labelled(&span, Hints::PASSPORT);
    (named || known).then_some(FoundValue {
        class: Class::Passport,
        span,
        by_context: true,
    })
}

/// A Brazilian RG has no check digits that all states agree on.
fn is_named_rg(number: &DigitGroups<'_>) -> bool {
    let label = &number.text.text[crate::scan::context::char_boundary_before(
        number.text.text,
        number.span.start.saturating_sub(24),
    )..number.span.start];
    let key = number.text.own_key_hints();
    label.contains("RG")
        || label.contains("dentidade")
        || key.intersects(Hints::for_country(Country::Br))
}

/// An IBAN that begins with the word at `word`; ISO 13616.
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
    (whole && mod97(rotated) == 1).then_some(FoundValue {
        class: Class::Iban,
        span: word.start..at,
        by_context: false,
    })
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
    let country = std::str::from_utf8(&country).ok()?.to_owned();
    let found = LENGTHS
        .iter()
        .find(|(_, list)| list.split(' ').any(|code| code == country));
    found.map(|(length, _)| *length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::context::Names;

    #[test]
    fn no_country_has_numbers_of_a_length_that_it_is_not_asked_for() {
        let text = Text::new("", Names::default(), None);
        for count in 7..=24 {
            let asked = countries_with_digits(count);
            for country in Country::ALL.into_iter().filter(|c| !asked.contains(c)) {
                let mut value = 1u64;
                for _ in 0..4000 {
                    value = value
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let digits = format!("{value:020}{value:020}").into_bytes();
                    let digits: Vec<u8> = digits[2..2 + count].iter().map(|b| b - b'0').collect();
                    let number = DigitGroups::without_separators(&text, &digits);
                    assert_eq!(
                        numeric_evidence(country, &number),
                        None,
                        "{country:?} {digits:?}"
                    );
                }
            }
        }
    }
}
