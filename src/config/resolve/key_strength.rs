//! Whether an API key that somebody made up can be guessed.

use std::collections::HashMap;

/// Words of keys that stand in documentation until somebody writes another, without case and marks.
const PLACEHOLDERS: [&str; 20] = [
    "apikeyhere",
    "changeme",
    "changethis",
    "dummykey",
    "insertyour",
    "keygoeshere",
    "keyhere",
    "letmein",
    "passw0rd",
    "password",
    "placeholder",
    "putyour",
    "qwerty",
    "replaceme",
    "replacethis",
    "replacewith",
    "secrethere",
    "yourapikey",
    "yourkey",
    "yoursecret",
];

/// The least number of spelling_steps in which a key can be spelled, see [`spelling_steps`]. Of 32 random characters few
/// stand in any other; a word or a count that is written again and again has less.
const SPELLING_STEPS_MIN: usize = 19;

/// A copy of less than this says as much as its characters.
const COPY_LEN_MIN: usize = 3;

/// The least information of a key, bits, as far as its characters tell; 32 random digits have some 100.
const ENTROPY_BITS_MIN: f64 = 80.0;

/// Of so many pairs of neighbours in a hundred, the second may follow the first in a count.
const SEQUENTIAL_MAX_PERCENT: usize = 84;

/// Why `key` can be guessed, if it can.
pub(in crate::config) fn weakness(key: &str) -> Option<&'static str> {
    let text = key.to_ascii_lowercase();
    let words: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    if PLACEHOLDERS.iter().any(|word| words.contains(word)) {
        return Some("looks like a placeholder");
    }
    let bytes = text.as_bytes();
    if spelling_steps(bytes) < SPELLING_STEPS_MIN || entropy_bits(bytes) < ENTROPY_BITS_MIN {
        return Some("is repetitive");
    }
    let pairs = bytes.windows(2);
    let counted = pairs.clone().filter(|pair| pair[0].abs_diff(pair[1]) <= 1);
    (counted.count() * 100 > pairs.len() * SEQUENTIAL_MAX_PERCENT)
        .then_some("is a sequence of consecutive characters")
}

/// In how many steps `key` can be spelled, where a step writes a character, or copies what was written.
fn spelling_steps(key: &[u8]) -> usize {
    let (mut at, mut steps) = (0, 0);
    while at < key.len() {
        let copied = (0..at)
            .map(|from| {
                let (before, rest) = (&key[from..], &key[at..]);
                let same = before.iter().zip(rest).take_while(|(a, b)| a == b);
                same.count()
            })
            .max();
        at += copied.filter(|it| *it >= COPY_LEN_MIN).unwrap_or(1);
        steps += 1;
    }
    steps
}

/// What the characters of `key` tell, bits, if each came as often as it does by chance.
#[expect(clippy::cast_precision_loss, reason = "keys are short")]
fn entropy_bits(key: &[u8]) -> f64 {
    let mut counts: HashMap<u8, usize> = HashMap::new();
    for byte in key {
        *counts.entry(*byte).or_default() += 1;
    }
    let all = key.len() as f64;
    let of = |count: usize| -(count as f64) * (count as f64 / all).log2();
    counts.into_values().map(of).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_people_make_up_is_weak() {
        for key in [
            "a".repeat(32),
            "ab".repeat(16),
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".to_owned(),
            "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".to_owned(),
            "0".repeat(64),
            "changeme".repeat(4),
            "changeme-3f9a1c77e0b2d4586fa9".to_owned(),
            "CHANGE_ME_0123456789abcdef0123456789".to_owned(),
            "change-me-change-me-change-me-change-me".to_owned(),
            "your-api-key-here-0123456789abcdef".to_owned(),
            "<YOUR_API_KEY_HERE>_______________".to_owned(),
            "replace-with-a-long-random-string".to_owned(),
            "0123456789abcdef".repeat(2),
            "0123456789abcdef".repeat(8),
            "1234567890".repeat(4),
            "0123456789abcdefghijklmnopqrstuvwxyz".to_owned(),
            "zyxwvutsrqponmlkjihgfedcba9876543210".to_owned(),
            "deadbeef".repeat(4),
            "correcthorse".repeat(4),
            "password12345678password12345678".to_owned(),
            "P4ssw0rd-P4ssw0rd-P4ssw0rd-P4ssw0rd".to_owned(),
            "aaaaaaaaaaaaaaaaaaaaaaaa12345678".to_owned(),
            "key1key2key3key4key5key6key7key8".to_owned(),
            "hunter2".repeat(6),
        ] {
            assert!(weakness(&key).is_some(), "{key}");
        }
    }

    #[test]
    fn what_is_made_by_chance_or_long_enough_is_not() {
        for key in [
            "tbk_0123456789abcdef0123456789abcdef",
            "k-0123456789abcdef0123456789abcdef01",
            "k-a-0123456789abcdef0123456789abcdef0123456789abcdef",
            "k-mallory-0123456789abcdef0123456789abcdef0123456789abcdef",
            "tbk_ann_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7",
            "correct-horse-battery-staple-and-some-more",
            "83710594462850193746528109375642",
        ] {
            assert_eq!(weakness(key), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn random_keys_are_taken(bytes in any::<[u8; 16]>()) {
            let key = format!("{:032x}", u128::from_be_bytes(bytes));
            // One in some 10^30 repeats itself; a generator that shrinks finds it at once.
            prop_assume!(bytes.iter().collect::<std::collections::HashSet<_>>().len() > 12);
            prop_assert_eq!(weakness(&key), None);
        }
    }
}
