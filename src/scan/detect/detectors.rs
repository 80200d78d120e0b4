//! The table of detectors: tokens that show by their form, one row a kind.
//!
//! `detectors.toml` has the rows of the program; operators add rows of the same shape. A token is
//! looked for where a word begins, and [`token_starts`] tells by the word's length and first characters whether a
//! row may be about it, so that rows cost nothing where their prefixes do not occur. Forms without a prefix
//! are found by the length of their first word ([`token_form`] reads it from the pattern); those that
//! others have too need a word of the vendor nearby, of which `search` keeps the last ones.

mod token_form;
mod token_starts;

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, LazyLock, OnceLock},
};

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::{
    config::{CheckDigits, Detector},
    scan::{byte_set::ByteSet, class::Class},
};
use token_form::{TokenForm, TokenStart};
pub(in crate::scan) use token_starts::StartKind;
use token_starts::{KnownStart, TokenStarts};

/// Size of one compiled pattern at most, bytes.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest first word by which a form without a prefix is found.
const WORD_BYTES_MAX: usize = 127;
/// Characters of a UUID before its first dash.
pub(in crate::scan) const UUID_WORD_BYTES: usize = 8;
/// Bits a character that a token has at least, unless its row says otherwise.
const ENTROPY_MIN: f64 = 2.5;

/// Index of a row.
pub(in crate::scan) type RowId = u16;

/// All rows, and the ways to them.
#[derive(Debug)]
pub(in crate::scan) struct Detectors {
    rows: Vec<Arc<DetectorRow>>,
    starts: TokenStarts,
    /// Rows without prefix and word of a vendor, by the length of the first word, with what may follow it.
    by_word_length: Vec<Vec<(ByteSet, RowId)>>,
    /// What may follow a first word that is worth a look, by its length.
    following_bytes: [ByteSet; WORD_BYTES_MAX + 1],
    /// The same rows as far as signs may be among their first characters, by their length in all.
    by_length: Vec<Vec<RowId>>,
}

/// One kind of token.
#[derive(Debug)]
pub(in crate::scan) struct DetectorRow {
    detector: Detector,
    form: TokenForm,
    class: Class,
    /// Compiled when first needed: few kinds occur in what one process sees.
    regex: OnceLock<Regex>,
}

/// Why a row is none; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDetector {
    /// The pattern is not a regular expression, or takes too much memory.
    #[error("invalid pattern: {0}")]
    Pattern(String),
    /// The pattern may match text without end.
    #[error("the pattern is unbounded; write `{{20,200}}` instead of `+`")]
    Unbounded,
    /// The pattern may match characters of which others read a part.
    #[error("the pattern matches non-ASCII characters; use explicit classes such as `[0-9a-f]`")]
    NotAscii,
    /// The pattern may match very little.
    #[error("the pattern matches fewer than 8 characters")]
    MayMatchLittle,
    /// The pattern begins with nothing by which a token could be found.
    #[error(
        "the pattern starts neither with a fixed prefix nor with a word of known length: add a \
         word to `near`"
    )]
    TooShort,
    /// A word of a vendor has other characters than letters and digits, or one alone.
    #[error("`{0}` in `near` must be two or more lower-case letters or digits")]
    VendorWord(String),
}

#[derive(Deserialize)]
struct DetectorFile {
    detectors: Vec<Detector>,
}

static BUILT_IN: LazyLock<Arc<Detectors>> = LazyLock::new(|| {
    let file: DetectorFile =
        toml::from_str(include_str!("detectors.toml")).expect("tests parse it");
    let rows = file.detectors.into_iter().map(DetectorRow::new);
    let rows: Result<Vec<_>, _> = rows.map(|row| row.map(Arc::new)).collect();
    Arc::new(Detectors::of(rows.expect("tests compile each row")))
});

impl Detectors {
    /// The rows of the program.
    pub(in crate::scan) fn built_in() -> Arc<Self> {
        BUILT_IN.clone()
    }

    /// The rows of the program and `own` ones.
    ///
    /// # Errors
    /// The first row that is wrong, by its `id`.
    pub(in crate::scan) fn with_custom(
        own: &[Detector],
    ) -> Result<Arc<Self>, (String, InvalidDetector)> {
        if own.is_empty() {
            return Ok(Self::built_in());
        }
        let row = |detector: &Detector| {
            let row = DetectorRow::new(detector.clone());
            let row = row.and_then(|row| {
                row.regex()?;
                Ok(Arc::new(row))
            });
            row.map_err(|error| (detector.id.clone(), error))
        };
        let own: Result<Vec<_>, _> = own.iter().map(row).collect();
        let mut rows = own?;
        rows.extend(BUILT_IN.rows.iter().cloned());
        Ok(Arc::new(Self::of(rows)))
    }

    fn of(rows: Vec<Arc<DetectorRow>>) -> Self {
        let mut all = Self {
            starts: TokenStarts::new(),
            by_word_length: vec![Vec::new(); WORD_BYTES_MAX + 1],
            following_bytes: [ByteSet::default(); WORD_BYTES_MAX + 1],
            by_length: Vec::new(),
            rows: Vec::new(),
        };
        let mut near: HashMap<String, Vec<RowId>> = HashMap::new();
        for (id, row) in rows.iter().enumerate() {
            let id = RowId::try_from(id).expect("a table has fewer rows");
            for word in &row.detector.near {
                near.entry(word.clone()).or_default().push(id);
            }
            all.add(id, row);
        }
        for (word, ids) in near {
            let (text, of) = (word.into_bytes(), StartKind::Vendor(ids.into()));
            let length = text.len();
            all.starts.add(&KnownStart { text, kind: of }, length);
        }
        for jwt in [b"eyJ", b"ewo"] {
            let (text, of) = (jwt.to_vec(), StartKind::Jwt);
            all.starts.add(&KnownStart { text, kind: of }, jwt.len());
        }
        // UUIDs, which are tokens where a vendor says so, begin like this.
        all.following_bytes[UUID_WORD_BYTES].add(b'-');
        all.rows = rows;
        all
    }

    fn add(&mut self, id: RowId, row: &DetectorRow) {
        for prefix in &row.form.prefixes {
            let (text, of) = (prefix.clone(), StartKind::Token(id));
            self.starts.add(
                &KnownStart { text, kind: of },
                row.form.first_word_len(prefix),
            );
        }
        if !row.form.prefixes.is_empty() || !row.detector.near.is_empty() {
            return;
        }
        match row.form.start {
            TokenStart::Word { ref lengths, then } => {
                for length in lengths.clone() {
                    self.by_word_length[length].push((then, id));
                    self.following_bytes[length] = self.following_bytes[length].union(then);
                }
            }
            TokenStart::Run(_) => {
                let lengths = row.form.len_min..=row.form.len_max;
                if self.by_length.len() <= row.form.len_max {
                    self.by_length.resize_with(row.form.len_max + 1, Vec::new);
                }
                for rows in &mut self.by_length[lengths] {
                    rows.push(id);
                }
            }
        }
    }

    /// Whether a word of `length` characters at the start of `rest` may begin with a prefix or a vendor.
    #[inline]
    pub(in crate::scan) fn may_start(&self, rest: &[u8], length: usize) -> bool {
        self.starts.may_start(rest, length)
    }

    /// The starts that the text at `rest` goes on with, that of JWTs first, then the longest.
    pub(in crate::scan) fn matching_starts<'a>(
        &'a self,
        rest: &'a [u8],
    ) -> impl Iterator<Item = &'a KnownStart> + 'a {
        self.starts.matching(rest)
    }

    /// The rows that a word of a vendor at the start of `word` is about.
    pub(in crate::scan) fn vendor_at<'a>(&'a self, word: &'a [u8]) -> Option<&'a Arc<[RowId]>> {
        self.starts
            .matching(word)
            .find_map(|start| match &start.kind {
                StartKind::Vendor(rows) if is_vendor_word_end(word, start.text.len()) => Some(rows),
                StartKind::Vendor(_) | StartKind::Token(_) | StartKind::Jwt => None,
            })
    }

    /// The rows that words of vendors in a name are about: `myDatadogKey`.
    pub(in crate::scan) fn vendors_in_name(&self, name: &str, out: &mut Vec<Arc<[RowId]>>) {
        let bytes = name.as_bytes();
        let begins = |at: usize| {
            let (before, byte) = (at.checked_sub(1).map_or(b' ', |at| bytes[at]), bytes[at]);
            byte.is_ascii_alphanumeric()
                && (!before.is_ascii_alphanumeric()
                    || before.is_ascii_lowercase() && byte.is_ascii_uppercase())
        };
        for at in (0..bytes.len()).filter(|at| begins(*at)) {
            let rest = &bytes[at..];
            if self.may_start(rest, rest.len()) {
                let found = self.vendor_at(rest);
                let new = found.filter(|rows| !out.iter().any(|known| Arc::ptr_eq(known, rows)));
                out.extend(new.cloned());
            }
        }
    }

    /// Whether a token without prefix may begin with a word of `length` characters that `next` follows.
    #[inline]
    pub(in crate::scan) fn may_be_first_word(&self, length: usize, next: u8) -> bool {
        let after = self.following_bytes.get(length);
        after.is_some_and(|after| after.contains(next))
    }

    /// The rows without prefix whose first word is as long as `word` and ends like it.
    pub(in crate::scan) fn rows_by_word<'a>(
        &'a self,
        text: &'a [u8],
        word: &Range<usize>,
    ) -> impl Iterator<Item = RowId> + 'a {
        let next = text.get(word.end).copied().unwrap_or(0);
        let rows = self.by_word_length.get(word.len()).into_iter().flatten();
        rows.filter(move |(then, _)| then.contains(next))
            .map(|(_, id)| *id)
    }

    /// The rows without prefix that have signs among their first characters and may be `length` long.
    pub(in crate::scan) fn rows_by_length(&self, length: usize) -> &[RowId] {
        self.by_length.get(length).map_or(&[], Vec::as_slice)
    }

    pub(in crate::scan) fn row(&self, id: RowId) -> &DetectorRow {
        &self.rows[usize::from(id)]
    }

    #[cfg(test)]
    pub(in crate::scan) fn all(&self) -> impl Iterator<Item = &DetectorRow> {
        self.rows.iter().map(|row| &**row)
    }
}

/// Whether a vendor's name of `len` characters at the start of `word` is a word of its own there, also in
/// `datadogApiKey` and `DATADOGAPIKEY`.
fn is_vendor_word_end(word: &[u8], len: usize) -> bool {
    const GOING_ON: [&[u8]; 9] = [
        b"key", b"api", b"token", b"secret", b"access", b"auth", b"app", b"client", b"pass",
    ];
    let rest = &word[len..];
    let Some(next) = rest.first().filter(|next| next.is_ascii_alphabetic()) else {
        return true;
    };
    let last = word[len - 1];
    last.is_ascii_lowercase() && next.is_ascii_uppercase()
        || GOING_ON
            .iter()
            .any(|word| rest.len() >= word.len() && rest[..word.len()].eq_ignore_ascii_case(word))
}

impl DetectorRow {
    /// Reads the pattern of `detector`; it is compiled when it is needed.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(in crate::scan) fn new(detector: Detector) -> Result<Self, InvalidDetector> {
        let form = TokenForm::of(&detector.pattern)?;
        if (0x80..=0xff).any(|byte| form.all.contains(byte)) {
            return Err(InvalidDetector::NotAscii);
        }
        let is_word = |word: &&String| {
            word.len() >= 2
                && word
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        if let Some(word) = detector.near.iter().find(|word| !is_word(word)) {
            return Err(InvalidDetector::VendorWord(word.clone()));
        }
        let findable = match &form.start {
            TokenStart::Word { lengths, .. } => *lengths.end() <= WORD_BYTES_MAX,
            TokenStart::Run(_) => form.len_max - form.len_min <= 40,
        };
        if form.prefixes.is_empty() && detector.near.is_empty() && !findable {
            return Err(InvalidDetector::TooShort);
        }
        Ok(Self {
            class: Class::from_detector(detector.class),
            form,
            regex: OnceLock::new(),
            detector,
        })
    }

    pub(in crate::scan) fn class(&self) -> Class {
        self.class
    }

    /// Whether a word of a vendor has to stand near.
    pub(in crate::scan) fn needs_vendor(&self) -> bool {
        !self.detector.near.is_empty()
    }

    #[cfg(test)]
    pub(in crate::scan) fn detector(&self) -> &Detector {
        &self.detector
    }

    /// Whether `byte` may stand among the first characters, so that a token may begin before a word.
    pub(in crate::scan) fn may_start_with(&self, byte: u8) -> bool {
        matches!(&self.form.start, TokenStart::Run(bytes) if bytes.contains(byte))
    }

    fn regex(&self) -> Result<&Regex, InvalidDetector> {
        if let Some(regex) = self.regex.get() {
            return Ok(regex);
        }
        let whole = format!(r"\A(?:{})", self.detector.pattern);
        let built = RegexBuilder::new(&whole)
            .unicode(false)
            .size_limit(PATTERN_BYTES_MAX)
            .build();
        let regex = built.map_err(|error| InvalidDetector::Pattern(error.to_string()))?;
        Ok(self.regex.get_or_init(|| regex))
    }

    /// The secret part of the token that begins at `start`.
    pub(in crate::scan) fn find(&self, text: &[u8], start: usize) -> Option<Range<usize>> {
        let form = &self.form;
        let least = text.get(start..start + form.len_min)?;
        if !least.iter().all(|byte| form.all.contains(*byte)) {
            return None;
        }
        let window = &text[start..text.len().min(start + form.len_max)];
        let regex = self.regex().ok()?;
        let (mut secret, mut end) = if regex.captures_len() > 1 {
            let found = regex.captures(window)?;
            (found.get(1)?.range(), found.get(0)?.end())
        } else {
            let found = regex.find(window)?;
            (found.range(), found.end())
        };
        // The point of a sentence is none of the token.
        while secret.end == end && end > form.len_min && window[end - 1] == b'.' {
            (secret.end, end) = (end - 1, end - 1);
        }
        let at = |offset: usize| text.get(start + end + offset).copied().unwrap_or(0);
        let goes_on = |byte: u8| byte.is_ascii_alphanumeric() || form.last.contains(byte);
        if at(0).is_ascii_alphanumeric() || goes_on(at(0)) && goes_on(at(1)) {
            return None;
        }
        let body = &window[secret.start.max(form.fixed_len.min(secret.end))..secret.end];
        let holds = match self.detector.check {
            Some(CheckDigits::Crc32) => is_crc32_valid(body),
            None => false,
        };
        (holds || self.is_random(body)).then(|| start + secret.start..start + secret.end)
    }

    /// Whether what follows the fixed characters of a token is no stand-in such as `xxxx`.
    fn is_random(&self, body: &[u8]) -> bool {
        const STAND_INS: [&[u8]; 4] = [b"your", b"xxxx", b"redacted", b"placeholder"];
        let stand_in = |word: &&[u8]| {
            body.windows(word.len())
                .any(|window| window.eq_ignore_ascii_case(word))
        };
        let mixed =
            || body.iter().any(u8::is_ascii_digit) && body.iter().any(u8::is_ascii_alphabetic);
        let least = self.detector.entropy.unwrap_or(ENTROPY_MIN);
        (!self.detector.mixed || mixed())
            && entropy(body) >= least.min(max_entropy(body.len()))
            && !STAND_INS.iter().any(stand_in)
    }
}

/// Shannon entropy, bits a character.
fn entropy(body: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in body {
        counts[usize::from(*byte)] += 1;
    }
    let total = count(body.len());
    let used = counts.into_iter().filter(|count| *count > 0);
    used.map(|count| {
        let share = f64::from(count) / total;
        -share * share.log2()
    })
    .sum()
}

/// What so few characters may be asked for: most of what they could have.
fn max_entropy(len: usize) -> f64 {
    const SHARE: f64 = 0.7;
    count(len).log2() * SHARE
}

fn count(len: usize) -> f64 {
    f64::from(u32::try_from(len).unwrap_or(u32::MAX))
}

/// Whether the last six characters of `body` are the CRC-32 of the others, in base 62.
fn is_crc32_valid(body: &[u8]) -> bool {
    const CHECK: usize = 6;
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let Some((rest, check)) = body.split_last_chunk::<CHECK>() else {
        return false;
    };
    let mut crc = super::checksum::crc32(rest);
    check.iter().rev().all(|byte| {
        let digit = DIGITS[(crc % 62) as usize];
        crc /= 62;
        *byte == digit
    }) && crc == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_compiles() {
        let file: DetectorFile = toml::from_str(include_str!("detectors.toml")).unwrap();
        for detector in file.detectors {
            let id = detector.id.clone();
            let row = DetectorRow::new(detector).unwrap_or_else(|error| panic!("{id}: {error}"));
            row.regex().unwrap_or_else(|error| panic!("{id}: {error}"));
        }
    }

    #[test]
    fn ids_name_one_row_each() {
        let mut ids: Vec<_> = BUILT_IN.all().map(|row| &row.detector.id).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }

    #[test]
    fn check_digits_of_github() {
        let token = format!("{}{}", "ghp_", "zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ0mLq17");
        let row = BUILT_IN.all().find(|row| row.detector.id == "github/token");
        assert!(row.unwrap().find(token.as_bytes(), 0).is_some());
        assert!(is_crc32_valid(&token.as_bytes()[4..]));
        assert!(!is_crc32_valid(token[4..].replace("17", "18").as_bytes()));
    }
}
