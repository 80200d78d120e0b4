//! The words and phrases of the lexicon, read from `words.toml` and `national_ids.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::Hints;
use crate::scan::{class::Country, national_ids::NATIONAL_IDS};

/// `words.toml`.
static LISTS: LazyLock<WordLists> =
    LazyLock::new(|| toml::from_str(include_str!("words.toml")).expect("tests parse it"));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WordLists {
    owners: String,
    disclosure_verbs: String,
    password_words: String,
    words: BTreeMap<String, String>,
    compounds: BTreeMap<String, String>,
}

/// Words that say whose a password is, or which, after its name.
pub(super) static OWNERS: LazyLock<Vec<&str>> = LazyLock::new(|| split(&LISTS.owners).collect());

/// Verbs after which somebody may tell a secret.
pub(super) static DISCLOSURE_VERBS: LazyLock<Vec<&str>> =
    LazyLock::new(|| split(&LISTS.disclosure_verbs).collect());

/// Names of passwords in a sentence.
pub(super) static PASSWORD_WORDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| split(&LISTS.password_words).collect());

/// How long words begin that are written as one, with what they say.
pub(super) fn compounds() -> impl Iterator<Item = (Hints, &'static str)> {
    hinted(&LISTS.compounds)
}

/// All words and phrases with what they say.
pub(super) fn phrases() -> impl Iterator<Item = (Hints, &'static str)> {
    let of_countries = NATIONAL_IDS.rows().iter().flat_map(|row| {
        let hints = Hints::for_country(row.country());
        row.near.iter().map(move |word| (hints, word.as_str()))
    });
    hinted(&LISTS.words).chain(of_countries)
}

fn hinted(lists: &'static BTreeMap<String, String>) -> impl Iterator<Item = (Hints, &'static str)> {
    lists.iter().flat_map(|(name, list)| {
        let hints = hints_by_name(name);
        split(list).map(move |word| (hints, word))
    })
}

fn split(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.split(',').map(str::trim)
}

/// What the words under the key `name` say.
fn hints_by_name(name: &str) -> Hints {
    match name {
        "account" => Hints::ACCOUNT,
        "bank" => Hints::BANK,
        "bank_account" => Hints::BANK_ACCOUNT,
        "birth" => Hints::BIRTH,
        "card" => Hints::CARD,
        "driving" => Hints::DRIVING,
        "identity" => Hints::IDENTITY,
        "ip" => Hints::IP,
        "numbering" => Hints::NUMBERING,
        "other" => Hints::OTHER,
        "passport" => Hints::PASSPORT,
        "password" => Hints::PASSWORD,
        "phone" => Hints::PHONE,
        "contact" => Hints::CONTACT,
        "ssn" => Hints::SSN,
        "tail" => Hints::TAIL,
        "token" => Hints::TOKEN,
        "version" => Hints::VERSION,
        code => Hints::for_country(Country::by_name(code).expect("tests look at each key")),
    }
}
