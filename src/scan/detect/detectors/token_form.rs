//! What a pattern says of the tokens it matches before it is run: how they begin, how long they are.

use std::ops::RangeInclusive;

use regex_syntax::{
    ParserBuilder,
    hir::{
        Hir, HirKind,
        literal::{ExtractKind, Extractor},
    },
};

use super::InvalidDetector;
use crate::scan::byte_set::ByteSet;

/// Prefixes of one pattern at most; with more it is looked for by its length.
const PREFIXES_MAX: usize = 32;
/// Characters of a token at least.
const TOKEN_BYTES_MIN: usize = 8;

/// What is known of a token from its pattern.
#[derive(Debug)]
pub(super) struct TokenForm {
    /// What every token begins with; empty where that is not fixed.
    pub(super) prefixes: Vec<Vec<u8>>,
    /// How many characters at the start are the same in all tokens.
    pub(super) fixed_len: usize,
    pub(super) start: TokenStart,
    pub(super) len_min: usize,
    pub(super) len_max: usize,
    /// What its last part may.
    pub(super) last: ByteSet,
    /// What all of them may.
    pub(super) all: ByteSet,
}

/// How a token begins.
#[derive(Debug)]
pub(super) enum TokenStart {
    /// With these letters, digits and signs.
    Run(ByteSet),
    /// With a word of so many letters and digits.
    Word {
        lengths: RangeInclusive<usize>,
        /// What may follow it: signs, or everything where the token ends.
        then: ByteSet,
    },
}

impl TokenForm {
    /// Reads `pattern`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn of(pattern: &str) -> Result<Self, InvalidDetector> {
        let parsed = ParserBuilder::new()
            .unicode(false)
            .utf8(false)
            .build()
            .parse(pattern);
        let hir = parsed.map_err(|error| InvalidDetector::Pattern(error.to_string()))?;
        let properties = hir.properties();
        let least = properties.minimum_len().unwrap_or(0);
        let most = properties.maximum_len().ok_or(InvalidDetector::Unbounded)?;
        if least < TOKEN_BYTES_MIN {
            return Err(InvalidDetector::MayMatchLittle);
        }
        let parts = flatten(&hir);
        let mut all = ByteSet::default();
        all.add_all(&hir);
        let set = |part: Option<&&Hir>| {
            let mut set = ByteSet::default();
            if let Some(part) = part {
                set.add_all(part);
            }
            set
        };
        let prefixes = literal_prefixes(&hir);
        let fixed = match prefixes.as_slice() {
            [] => 0,
            [first, rest @ ..] => rest.iter().fold(first.len(), |common, prefix| {
                let same = first.iter().zip(prefix).take(common);
                same.take_while(|(a, b)| a == b).count()
            }),
        };
        Ok(Self {
            prefixes,
            fixed_len: fixed,
            start: TokenStart::of(&parts),
            len_min: least,
            len_max: most,
            last: set(parts.last()),
            all,
        })
    }

    /// How many letters and digits a token that begins with `prefix` has at least before the first sign.
    pub(super) fn first_word_len(&self, prefix: &[u8]) -> usize {
        let word = prefix.iter().take_while(|b| b.is_ascii_alphanumeric());
        let word = word.count();
        match &self.start {
            TokenStart::Word { lengths, .. } if word == prefix.len() => word.max(*lengths.start()),
            TokenStart::Word { .. } | TokenStart::Run(_) => word,
        }
    }
}

impl TokenStart {
    fn of(parts: &[&Hir]) -> Self {
        let (mut least, mut most) = (0, 0);
        let mut so_far = ByteSet::default();
        for part in parts {
            so_far.add_all(part);
            if let HirKind::Literal(literal) = part.kind() {
                let word = literal.0.iter().take_while(|b| b.is_ascii_alphanumeric());
                let word = word.count();
                (least, most) = (least + word, most + word);
                if let Some(sign) = literal.0.get(word) {
                    let mut then = ByteSet::default();
                    then.add(*sign);
                    let lengths = least..=most;
                    return Self::Word { lengths, then };
                }
                continue;
            }
            let mut set = ByteSet::default();
            set.add_all(part);
            let letters = set.any(|byte| byte.is_ascii_alphanumeric());
            let signs = set.any(|byte| !byte.is_ascii_alphanumeric());
            match (letters, signs) {
                (true, true) => return Self::Run(so_far),
                (false, _) => {
                    return Self::Word {
                        lengths: least..=most,
                        then: set,
                    };
                }
                (true, false) => {
                    let properties = part.properties();
                    least += properties.minimum_len().unwrap_or(0);
                    most += properties.maximum_len().unwrap_or(0);
                }
            }
        }
        Self::Word {
            lengths: least..=most,
            then: ByteSet::ALL,
        }
    }
}

/// The parts of a pattern in their order, literals character by character.
fn flatten(hir: &Hir) -> Vec<&Hir> {
    match hir.kind() {
        HirKind::Concat(parts) => parts.iter().flat_map(flatten).collect(),
        HirKind::Capture(capture) => flatten(&capture.sub),
        HirKind::Alternation(_)
        | HirKind::Class(_)
        | HirKind::Empty
        | HirKind::Literal(_)
        | HirKind::Look(_)
        | HirKind::Repetition(_) => vec![hir],
    }
}

/// What every match of `hir` begins with, as far as that is worth looking for.
fn literal_prefixes(hir: &Hir) -> Vec<Vec<u8>> {
    let mut extractor = Extractor::new();
    extractor.kind(ExtractKind::Prefix).limit_class(8);
    let found = extractor.extract(hir);
    let literals = found.literals().unwrap_or_default();
    let worth = |literal: &[u8]| literal.len() >= 2 && literal[0].is_ascii_alphanumeric();
    if literals.is_empty()
        || literals.len() > PREFIXES_MAX
        || !literals.iter().all(|literal| worth(literal.as_bytes()))
    {
        return Vec::new();
    }
    let mut prefixes: Vec<_> = literals
        .iter()
        .map(|literal| literal.as_bytes().to_vec())
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}
