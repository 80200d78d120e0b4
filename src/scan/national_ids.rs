//! The table of national identity numbers, `national_ids.toml`: one row a kind, by what it looks like.

mod checks;

use std::{cell::LazyCell, sync::LazyLock};

use regex_syntax::{
    ParserBuilder,
    hir::{Class, Hir, HirKind},
};
use serde::Deserialize;

use super::{
    byte_set::ByteSet,
    class::{Countries, Country},
};
use checks::Check;

/// All rows, and the ways to them.
pub(super) static NATIONAL_IDS: LazyLock<NationalIds> = LazyLock::new(|| {
    let table: IdTable = toml::from_str(include_str!("national_ids.toml")).expect("tests parse it");
    NationalIds::new(table.ids)
});

/// Characters from the space to the `Z` and further, which numbers are written in.
const CHARACTERS: usize = 64;

/// What `<dd>` and `<mm>` in a pattern are.
const DAY: &str = r"(?:0[1-9]|[12]\d|3[01])";
const MONTH: &str = r"(?:0[1-9]|1[0-2])";

pub(super) struct NationalIds {
    rows: Vec<IdRow>,
    /// What the numbers of rows look like, by their length.
    forms: Vec<IdForms>,
}

/// The forms of one length.
#[derive(Default)]
struct IdForms {
    forms: Vec<IdForm>,
    /// For each place the forms, one bit each, that allow a character from the space on.
    allowed: Vec<[u128; CHARACTERS]>,
}

/// One kind of number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IdRow {
    id: String,
    #[serde(default)]
    pattern: String,
    #[serde(default)]
    named: String,
    #[serde(default)]
    pub(super) near: Vec<String>,
    #[serde(default)]
    is_driving: bool,
    #[serde(default)]
    weights: Vec<Vec<u32>>,
    #[serde(default = "default_modulus")]
    modulus: u32,
    #[serde(default)]
    remainder: u32,
    #[serde(default)]
    ten: bool,
    #[serde(default)]
    letters: String,
    check: Option<Check>,
}

/// One way to write the numbers of a row.
struct IdForm {
    row: usize,
    country: Country,
    is_sufficient: bool,
    is_driving: bool,
}

/// What a number may be.
pub(super) struct PossibleId {
    pub(super) country: Country,
    /// Whether it is the number of a licence to drive, which only words about those name.
    pub(super) is_driving: bool,
    /// Whether the number says enough by itself.
    pub(super) is_sufficient: bool,
}

#[derive(Deserialize)]
struct IdTable {
    ids: Vec<IdRow>,
}

const fn default_modulus() -> u32 {
    11
}

impl NationalIds {
    fn new(rows: Vec<IdRow>) -> Self {
        let mut forms: Vec<IdForms> = Vec::new();
        for (row, columns) in rows.iter().enumerate() {
            for (pattern, is_sufficient) in [(&columns.pattern, true), (&columns.named, false)] {
                for bytes in expand_pattern(pattern) {
                    if forms.len() <= bytes.len() {
                        forms.resize_with(bytes.len() + 1, IdForms::default);
                    }
                    let form = IdForm {
                        row,
                        country: columns.country(),
                        is_sufficient,
                        is_driving: columns.is_driving,
                    };
                    forms[bytes.len()].add(form, &bytes);
                }
            }
        }
        Self { rows, forms }
    }

    pub(super) fn rows(&self) -> &[IdRow] {
        &self.rows
    }

    /// What `written` may be, of these countries, in the order of the table.
    pub(super) fn matching<'a>(
        &'a self,
        written: &'a [u8],
        countries: Countries,
    ) -> impl Iterator<Item = PossibleId> + 'a {
        let forms = self.forms.get(written.len()).into_iter();
        forms.flat_map(move |forms| {
            let mut fitting = forms.fitting(written);
            let compact = LazyCell::new(|| CompactNumber::new(written));
            // A row has forms that follow each other.
            let mut last = None;
            std::iter::from_fn(move || {
                while fitting != 0 {
                    let form = &forms.forms[fitting.trailing_zeros() as usize];
                    fitting &= fitting - 1;
                    if !countries.contains(form.country) {
                        continue;
                    }
                    let is_valid = match last {
                        Some((row, is_valid)) if row == form.row => is_valid,
                        _ => self.rows[form.row].is_valid(&compact),
                    };
                    last = Some((form.row, is_valid));
                    if is_valid {
                        return Some(PossibleId {
                            country: form.country,
                            is_sufficient: form.is_sufficient,
                            is_driving: form.is_driving,
                        });
                    }
                }
                None
            })
        })
    }
}

/// The letters and digits of a number, and what each counts.
struct CompactNumber {
    bytes: [u8; 32],
    values: [u32; 32],
    len: usize,
}

impl CompactNumber {
    fn new(written: &[u8]) -> Self {
        let (mut bytes, mut values, mut len) = ([0; 32], [0; 32], 0);
        for byte in written.iter().filter(|byte| byte.is_ascii_alphanumeric()) {
            (bytes[len], values[len]) = (*byte, checks::value(*byte));
            len += 1;
        }
        if len > 0 && bytes[len - 1].is_ascii_uppercase() {
            values[len - 1] = 10;
        }
        Self { bytes, values, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl IdForms {
    fn add(&mut self, form: IdForm, bytes: &[ByteSet]) {
        assert!(self.forms.len() < 128, "one bit each");
        let bit = 1 << self.forms.len();
        self.allowed.resize(bytes.len(), [0; CHARACTERS]);
        for (allowed, set) in self.allowed.iter_mut().zip(bytes) {
            for (forms, byte) in allowed.iter_mut().zip(b' '..) {
                *forms |= if set.contains(byte) { bit } else { 0 };
            }
        }
        self.forms.push(form);
    }

    /// The forms that `written` has, one bit each.
    fn fitting(&self, written: &[u8]) -> u128 {
        let mut fitting = u128::MAX;
        for (allowed, byte) in self.allowed.iter().zip(written) {
            let at = usize::from(byte.wrapping_sub(b' '));
            fitting &= allowed.get(at).copied().unwrap_or(0);
            if fitting == 0 {
                return 0;
            }
        }
        if self.forms.is_empty() { 0 } else { fitting }
    }
}

impl IdRow {
    /// The country that the `id` begins with.
    pub(super) fn country(&self) -> Country {
        Country::by_name(&self.id[..2]).expect("tests look at each row")
    }

    /// Whether all checks hold.
    fn is_valid(&self, number: &CompactNumber) -> bool {
        let bytes = number.bytes();
        self.weights
            .iter()
            .all(|weights| self.is_sum_valid(number, weights))
            && (self.letters.is_empty() || checks::ends_in_letter(bytes, self.letters.as_bytes()))
            && self.check.is_none_or(|check| check.is_valid(bytes))
    }

    fn is_sum_valid(&self, number: &CompactNumber, weights: &[u32]) -> bool {
        let values = number.values[..number.len].iter();
        let products = values.zip(weights).map(|(value, weight)| value * weight);
        let rest = products.sum::<u32>() % self.modulus;
        rest == self.remainder || self.ten && rest == 1 && number.bytes[weights.len() - 1] == b'0'
    }
}

/// Everything that `pattern`, whose repetitions are all bounded, matches, character by character.
fn expand_pattern(pattern: &str) -> Vec<Vec<ByteSet>> {
    if pattern.is_empty() {
        return Vec::new();
    }
    let pattern = pattern.replace("<dd>", DAY).replace("<mm>", MONTH);
    let mut parser = ParserBuilder::new().unicode(false).utf8(false).build();
    expand(&parser.parse(&pattern).expect("tests parse each pattern"))
}

fn expand(hir: &Hir) -> Vec<Vec<ByteSet>> {
    let join = |all: Vec<Vec<ByteSet>>, part: &[Vec<ByteSet>]| -> Vec<Vec<ByteSet>> {
        let joined = all
            .iter()
            .flat_map(|start| part.iter().map(move |end| [&start[..], end].concat()));
        joined.collect()
    };
    match hir.kind() {
        HirKind::Alternation(parts) => parts.iter().flat_map(expand).collect(),
        HirKind::Concat(parts) => parts
            .iter()
            .fold(vec![Vec::new()], |all, part| join(all, &expand(part))),
        HirKind::Literal(literal) => vec![literal.0.iter().copied().map(ByteSet::of).collect()],
        HirKind::Class(Class::Bytes(_)) => {
            let mut set = ByteSet::default();
            set.add_all(hir);
            vec![vec![set]]
        }
        HirKind::Repetition(repetition) => {
            let part = expand(&repetition.sub);
            let most = repetition.max.unwrap_or(repetition.min);
            let mut all = vec![Vec::new()];
            let mut found = Vec::new();
            for count in 0..=most {
                if count >= repetition.min {
                    found.extend(all.iter().cloned());
                }
                all = join(all, &part);
            }
            found
        }
        HirKind::Capture(capture) => expand(&capture.sub),
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(Class::Unicode(_)) => vec![Vec::new()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_country_and_numbers() {
        for (at, row) in NATIONAL_IDS.rows.iter().enumerate() {
            assert!(row.id.as_bytes()[2] == b'/', "{}", row.id);
            let _ = row.country();
            let mut forms = NATIONAL_IDS.forms.iter().flat_map(|forms| &forms.forms);
            let has_form = forms.any(|form| form.row == at);
            assert!(has_form, "{}", row.id);
        }
    }

    #[test]
    fn patterns_are_expanded_to_what_they_match() {
        let lens = |pattern: &str| -> Vec<usize> {
            let forms = expand_pattern(pattern);
            forms.iter().map(Vec::len).collect()
        };
        assert_eq!(lens(r"\d{3}\W?\d"), [4, 5]);
        assert_eq!(lens("<dd>AB|X{2,3}"), [4, 4, 4, 2, 3]);
    }
}
