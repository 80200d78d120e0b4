//! Quick looks, which spare most texts the slow ones: none misses what the lexicon knows.

use std::sync::LazyLock;

use super::{
    EntryShapes, Hints, LEXICON, compound_hints,
    lists::{OWNERS, phrases},
    lookup_phrase,
};

/// Shorter words that begin like one of the compounds that name secrets are words of the lists.
const SECRET_COMPOUND_BYTES_MIN: usize = 9;

/// Whether a name that ends in the word `last` may be one of a secret: a quick look that spares
/// most names the slow one.
pub(in crate::scan) fn may_end_secret(last: &str) -> bool {
    let bytes = last.as_bytes();
    let end = bytes
        .iter()
        .rposition(|b| !b.is_ascii_digit() && *b != b'_' && *b != b'-');
    let Some(end) = end.filter(|end| *end > 0) else {
        return bytes.len() <= 1;
    };
    let (a, b) = (bytes[end - 1] | 0x20, bytes[end] | 0x20);
    if !a.is_ascii_lowercase() || !b.is_ascii_lowercase() {
        return true;
    }
    let compound =
        bytes.len() >= SECRET_COMPOUND_BYTES_MIN && matches!(bytes[0] | 0x20, b'k' | b'p' | b'w');
    compound || SECRET_ENDINGS[usize::from(a - b'a')] & (1 << (b - b'a')) != 0
}

/// The same for a name of several words, however they are joined.
pub(in crate::scan) fn may_name_secret(name: &str) -> bool {
    let begins_compound = |b: u8| matches!(b | 0x20, b'k' | b'p' | b'w');
    may_end_secret(name)
        || name.len() >= SECRET_COMPOUND_BYTES_MIN && name.bytes().any(begins_compound)
}

/// Whether a word about passports may stand in `text`: each has one of the [`PASSPORT_MARKS`].
pub(in crate::scan) fn may_name_passport(text: &str) -> bool {
    let is_mark = |three: &[u8]| {
        let mut marks = PASSPORT_MARKS.iter();
        matches!(three[0] | 0x20, b'p' | b'd')
            && marks.any(|mark| three.eq_ignore_ascii_case(mark.as_bytes()))
    };
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "only what never branches is done with many pairs at once"
    )]
    let begins_mark = |(first, second): (&u8, &u8)| {
        let (first, second) = (first | 0x20, second | 0x20);
        (first == b'p') & (second == b'a') | (first == b'd') & (second == b'o')
    };
    let bytes = text.as_bytes();
    let pairs = bytes.iter().zip(bytes.get(1..).unwrap_or_default());
    // Letters with accents may be folded to any. Looking at many pairs at once is quicker than
    // stopping at the first: few texts have one.
    !text.is_ascii()
        || pairs.fold(false, |found, pair| found | begins_mark(pair))
            && bytes.windows(3).any(is_mark)
}

/// Whether a word about accounts may stand in `text`: each begins with one of the [`ACCOUNT_MARKS`].
pub(in crate::scan) fn may_name_account(text: &str) -> bool {
    let is_mark = |three: &[u8]| {
        let mut marks = ACCOUNT_MARKS.iter();
        matches!(
            three[0] | 0x20,
            b'a'..=b'c' | b'g' | b'k' | b'n' | b'p' | b'r'
        ) && marks.any(|mark| three.eq_ignore_ascii_case(mark.as_bytes()))
    };
    // `a/c` in whatever spelling
    let is_short = |three: &[u8]| {
        three[0] | 0x20 == b'a' && !three[1].is_ascii_alphanumeric() && three[2] | 0x20 == b'c'
    };
    let mut windows = text.as_bytes().windows(3);
    !text.is_ascii() || windows.any(|three| is_mark(three) || is_short(three))
}

/// Whether a word that names a telephone may stand in `text`, or one with which a phrase begins
/// that does: a quick look at the words as they are written.
pub(in crate::scan) fn may_name_phone(text: &[u8]) -> bool {
    let lexicon = &*LEXICON;
    let mut rest = text;
    while let Some(first) = rest.first() {
        if !first.is_ascii_alphabetic() {
            // Letters with accents may be folded to any.
            if !first.is_ascii() {
                return true;
            }
            rest = &rest[1..];
            continue;
        }
        let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic());
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        if lexicon.phones.may_contain(word) && may_hint(word, Hints::PHONE) || may_be_compound(word)
        {
            return true;
        }
        rest = after;
    }
    false
}

/// Whether `word`, in whatever case, or a phrase that it begins says something of `wanted`.
fn may_hint(word: &[u8], wanted: Hints) -> bool {
    let mut folded = [0; EntryShapes::LENGTH_MAX];
    let Some(folded) = folded.get_mut(..word.len()) else {
        return true;
    };
    folded.copy_from_slice(word);
    folded.make_ascii_lowercase();
    let entry = lookup_phrase(folded);
    let said = entry
        .hints
        .union(entry.longer_phrases)
        .union(compound_hints(folded));
    said.intersects(wanted)
}

/// Whether the letters of `word` may be those of several words: `homePhone`.
fn may_be_compound(word: &[u8]) -> bool {
    word[1..].iter().any(u8::is_ascii_uppercase) && word.iter().any(u8::is_ascii_lowercase)
}

/// What is part of every entry of the lists about accounts.
const ACCOUNT_MARKS: [&str; 15] = [
    "acc", "ac ", "bba", "cla", "com", "con", "cue", "kon", "rac", "rek", "rib", "ban", "gir",
    "plu", "nr ",
];

/// What is part of every entry of the lists about passports.
const PASSPORT_MARKS: [&str; 3] = ["pas", "doc", "dok"];

/// The last two letters of all words that name secrets, or say whose they are.
static SECRET_ENDINGS: LazyLock<[u32; 26]> = LazyLock::new(|| {
    let mut endings = [0; 26];
    let secrets = Hints::PASSWORD.union(Hints::TOKEN);
    let words = phrases().filter(|(hints, _)| hints.intersects(secrets));
    for word in words.map(|(_, word)| word).chain(OWNERS.iter().copied()) {
        if let [.., a, b] = word.as_bytes() {
            endings[usize::from(a - b'a')] |= 1 << (b - b'a');
        }
    }
    endings
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::lexicon::lists::compounds;

    #[test]
    fn the_quick_look_misses_no_word_about_passports() {
        for (hints, word) in phrases().chain(compounds()) {
            let about = hints.intersects(Hints::PASSPORT);
            assert!(!about || may_name_passport(word), "{word}");
            assert!(!about || may_name_passport(&word.to_uppercase()), "{word}");
        }
        assert!(
            may_name_passport("pässe"),
            "what is folded is not told apart"
        );
        assert!(!may_name_passport("order"));
    }

    #[test]
    fn the_quick_look_misses_no_word_about_accounts() {
        let account = Hints::ACCOUNT.union(Hints::BANK_ACCOUNT);
        for (hints, word) in phrases() {
            // Words that are read from ideographs are written in those.
            let is_read = word.contains("zhang") || word.contains("yin hang");
            let about = hints.intersects(account) && !is_read;
            assert!(!about || may_name_account(word), "{word}");
        }
        assert!(may_name_account("A/C 1"));
        assert!(!may_name_account("order 12345678 at 9"));
    }

    #[test]
    fn the_quick_look_misses_no_word_about_telephones() {
        let check = |text: &str, expect: bool| {
            assert_eq!(may_name_phone(text.as_bytes()), expect, "{text}");
        };
        let words = phrases().filter(|(hints, _)| hints.intersects(Hints::PHONE));
        let words = words.map(|(_, word)| word);
        let compounds = compounds().filter(|(hints, _)| hints.intersects(Hints::PHONE));
        let compounds = compounds.map(|(_, start)| format!("{start}nummer"));
        for word in words.map(str::to_owned).chain(compounds) {
            check(&format!("the {word}, 12"), true);
            check(&word.to_uppercase(), true);
            check(
                &format!("12_{}{}", word[..1].to_uppercase(), &word[1..]),
                true,
            );
            check(&word.replace(' ', "_"), true);
        }
        check("homePhone", true);
        check("IPhone", true);
        check("t\u{e9}l", true);
        check("connection 12 makes a call to a Content, IP", false);
    }
}
