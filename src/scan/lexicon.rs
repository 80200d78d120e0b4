//! Words that say what a number beside them is, in the languages of the country packs.
//!
//! All entries are in lower case, without accents, as [`super::context`] writes what it looks up.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::LazyLock,
};

use super::class::Country;
use lists::{DISCLOSURE_VERBS, OWNERS, PASSWORD_WORDS, compounds, phrases};

mod lists;
pub(super) mod prefilter;

/// Words of a phrase at most.
pub(super) const PHRASE_WORDS_MAX: usize = 4;

/// What words nearby say.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Hints(u64);

impl Hints {
    pub(super) const NONE: Self = Self(0);
    /// A telephone.
    pub(super) const PHONE: Self = Self(1);
    /// Somebody may be reached; weaker than [`Hints::PHONE`].
    pub(super) const CONTACT: Self = Self(1 << 1);
    pub(super) const CARD: Self = Self(1 << 2);
    pub(super) const SSN: Self = Self(1 << 3);
    pub(super) const IP: Self = Self(1 << 4);
    /// A version, a section or an object identifier.
    pub(super) const VERSION: Self = Self(1 << 5);
    pub(super) const PASSPORT: Self = Self(1 << 6);
    pub(super) const BIRTH: Self = Self(1 << 7);
    /// Some other number: of an order, a part, a commit, a time.
    pub(super) const OTHER: Self = Self(1 << 8);
    /// An identity document or number of any country.
    pub(super) const IDENTITY: Self = Self(1 << 9);
    /// At the end of a name it says that the value is not what the words before it name: `phone_id`.
    pub(super) const TAIL: Self = Self(1 << 10);
    /// A password.
    pub(super) const PASSWORD: Self = Self(1 << 11);
    /// A key or token that opens something.
    pub(super) const TOKEN: Self = Self(1 << 12);
    /// An identity number of any country: no other hint stands above theirs.
    pub(super) const NATIONAL: Self = Self(Self::IDENTITY.0 | u64::MAX << Self::COUNTRIES_FROM);

    /// A licence to drive.
    pub(super) const DRIVING: Self = Self(1 << 13);
    /// An account of a bank.
    pub(super) const BANK_ACCOUNT: Self = Self(1 << 14);
    /// An account of whatever kind.
    pub(super) const ACCOUNT: Self = Self(1 << 15);
    /// A bank, or what names one: beside it an account is one of a bank.
    pub(super) const BANK: Self = Self(1 << 16);
    /// A number of whatever kind: in a sentence one of a telephone, as a name of a value any.
    pub(super) const NUMBERING: Self = Self(1 << 17);

    const COUNTRIES_FROM: u64 = 24;

    /// An identity number of `country`.
    pub(super) const fn for_country(country: Country) -> Self {
        Self(1 << (Self::COUNTRIES_FROM + country as u64))
    }

    pub(super) const fn intersects(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What `phrase` says, if anything.
pub(super) fn phrase_hints(phrase: &[u8]) -> Hints {
    lookup_phrase(phrase).hints
}

/// Whether `word` is one of a `list` that spaces part.
pub(super) fn is_listed(list: &str, word: &[u8]) -> bool {
    list.split(' ').any(|listed| listed.as_bytes() == word)
}

/// What is known of `phrase`.
pub(super) fn lookup_phrase(phrase: &[u8]) -> LexiconEntry {
    let lexicon = &*LEXICON;
    if !lexicon.shapes.may_contain(phrase) {
        return LexiconEntry::default();
    }
    lexicon.words.get(phrase).copied().unwrap_or_default()
}

/// Whether `word` says whose a password is, in languages that put that last: `pwd_utente`.
pub(super) fn is_owner_word(word: &[u8]) -> bool {
    OWNERS.iter().any(|owner| owner.as_bytes() == word)
}

/// Whether somebody may tell a secret after the verb `word`.
pub(super) fn is_disclosure_verb(word: &[u8]) -> bool {
    DISCLOSURE_VERBS.iter().any(|verb| verb.as_bytes() == word)
}

/// Whether `word` is the name of a password in a sentence.
pub(super) fn is_password_word(word: &[u8]) -> bool {
    let mut words = PASSWORD_WORDS.iter();
    words.any(|name| name.as_bytes().eq_ignore_ascii_case(word))
}

/// The shapes of verbs and names that a secret may follow, and of `others`.
pub(super) fn telling_words(others: &str) -> EntryShapes {
    let mut shapes = EntryShapes::empty();
    let words = DISCLOSURE_VERBS
        .iter()
        .chain(PASSWORD_WORDS.iter())
        .copied();
    for word in words.chain(others.split(' ')) {
        shapes.add(word.as_bytes());
    }
    shapes
}

/// An entry of the lexicon.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LexiconEntry {
    pub(super) hints: Hints,
    /// What the phrases of several words say that begin with this one.
    pub(super) longer_phrases: Hints,
}

/// What a long word says by how it begins: languages that write compounds as one word.
pub(super) fn compound_hints(word: &[u8]) -> Hints {
    const COMPOUND_BYTES_MIN: usize = 8;
    if word.len() < COMPOUND_BYTES_MIN || !LEXICON.compound_shapes.may_contain(&word[..2]) {
        return Hints::NONE;
    }
    let starts = LEXICON.compounds.iter();
    let said = starts.filter(|(_, start)| start[0] == word[0] && word.starts_with(start));
    said.fold(Hints::NONE, |all, (hints, _)| all.union(*hints))
}

struct Lexicon {
    words: HashMap<&'static [u8], LexiconEntry, BuildHasherDefault<Fnv>>,
    shapes: EntryShapes,
    compounds: Vec<(Hints, &'static [u8])>,
    /// Of their first two letters.
    compound_shapes: EntryShapes,
    /// Of words that name telephones or begin to.
    phones: EntryShapes,
}

static LEXICON: LazyLock<Lexicon> = LazyLock::new(|| {
    let mut words: HashMap<&'static [u8], LexiconEntry, BuildHasherDefault<Fnv>> =
        HashMap::default();
    for (hints, phrase) in phrases() {
        let entry = words.entry(phrase.as_bytes()).or_default();
        entry.hints = entry.hints.union(hints);
        if let Some((first, _)) = phrase.split_once(' ') {
            let first = words.entry(first.as_bytes()).or_default();
            first.longer_phrases = first.longer_phrases.union(hints);
        }
    }
    let (mut shapes, mut compound_shapes, mut phones) = (
        EntryShapes::empty(),
        EntryShapes::empty(),
        EntryShapes::empty(),
    );
    for (word, entry) in &words {
        shapes.add(word);
        let is_phrase = word.contains(&b' ');
        if !is_phrase
            && entry
                .hints
                .union(entry.longer_phrases)
                .intersects(Hints::PHONE)
        {
            phones.add(word);
        }
    }
    let compounds = compounds().map(|(hints, start)| (hints, start.as_bytes()));
    let compounds: Vec<_> = compounds.collect();
    for (hints, start) in &compounds {
        compound_shapes.add(&start[..2]);
        if hints.intersects(Hints::PHONE) {
            phones.add_prefix(start);
        }
    }
    Lexicon {
        words,
        shapes,
        compounds,
        compound_shapes,
        phones,
    }
});

/// How entries begin and end and how long they are: most words are none, which this tells without hashing.
pub(super) struct EntryShapes([u32; Self::ENDS]);

impl EntryShapes {
    /// The first and the last character, of which five bits each count.
    const ENDS: usize = 1 << 10;
    /// Longer words than this are taken to be of this length.
    const LENGTH_MAX: usize = 31;

    const fn empty() -> Self {
        Self([0; Self::ENDS])
    }

    fn add(&mut self, word: &[u8]) {
        let (ends, length) = Self::shape_of(word);
        self.0[ends] |= length;
    }

    /// Adds all words that begin with `start`.
    fn add_prefix(&mut self, start: &[u8]) {
        let (ends, length) = Self::shape_of(start);
        for last in 0..32 {
            self.0[ends & !31 | last] |= length.wrapping_neg();
        }
    }

    pub(super) fn may_contain(&self, word: &[u8]) -> bool {
        let (ends, length) = Self::shape_of(word);
        self.0[ends] & length != 0
    }

    /// The place of both ends and the bit of a length.
    fn shape_of(word: &[u8]) -> (usize, u32) {
        let five = |byte: Option<&u8>| usize::from(byte.map_or(0, |byte| byte & 31));
        (
            five(word.first()) << 5 | five(word.last()),
            1 << word.len().min(Self::LENGTH_MAX),
        )
    }
}

/// FNV-1a: the keys are ours, and short.
#[derive(Clone, Copy, Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The length of a key says nothing that its bytes do not.
    fn write_usize(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found() {
        for (hints, word) in phrases() {
            let known = phrase_hints(word.as_bytes());
            assert_eq!(known.union(hints), known, "{word}");
            assert!(!known.is_empty(), "{word}");
        }
        for (hints, start) in compounds() {
            let known = compound_hints(format!("{start}sxyz").as_bytes());
            assert_eq!(known.union(hints), known, "{start}");
        }
    }
}
